//! Looking at a connection without disturbing it: for who watches, and is neither its client nor its host.

use super::Engine;
use crate::{
    chimney::{client::OffloadHandle, tree::TcpQueried},
    state::{NeighborState, PathState, TcpState},
    tcp::Info,
    time::Instant,
};

/// A snapshot of an offloaded connection for monitoring: TCP_INFO, and its three objects as in a query (CH §5.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionSnapshot {
    /// TCP_INFO.
    pub info: Info,
    /// The next hop; `None`: of a hand-over that brought none.
    pub neighbor: Option<NeighborState>,
    /// The route.
    pub path: Option<PathState>,
    /// The connection.
    pub tcp: TcpState,
    /// Its delegated class as a query sees it: with the backlogs.
    pub queried: TcpQueried,
    /// Bytes posted and not acknowledged.
    pub send_outstanding: usize,
}

impl Engine {
    /// The connection `handle`, if it is offloaded.
    pub fn look(&self, now: Instant, handle: OffloadHandle) -> Option<ConnectionSnapshot> {
        let offloaded = self.connections.look(handle)?;
        let tcp = offloaded.tcp.tcp_state(now);
        let (neighbor, path) = self.objects.joined(now, offloaded.path).unzip();
        Some(ConnectionSnapshot {
            info: offloaded.tcp.info(now),
            neighbor,
            path,
            tcp,
            queried: TcpQueried {
                delegated: tcp.delegated,
                send_backlog_size: offloaded.tcp.send_backlog_size(),
                receive_backlog_size: offloaded.tcp.receive_backlog_size(),
            },
            send_outstanding: offloaded.tcp.send_outstanding(),
        })
    }
}
