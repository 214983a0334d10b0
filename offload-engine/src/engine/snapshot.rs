//! Read-only snapshots of connections, for monitoring.

use super::Engine;
use crate::{
    chimney::{client::OffloadHandle, tree::TcpQueried},
    state::{NeighborState, PathState, TcpState},
    tcp::Info,
    time::Instant,
};

/// Snapshot of an offloaded connection for monitoring: TCP_INFO, and its three objects as in a query (CH §5.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionSnapshot {
    /// TCP_INFO.
    pub info: Info,
    /// Next hop. `None` if the connection was offloaded without one.
    pub neighbor: Option<NeighborState>,
    /// Path.
    pub path: Option<PathState>,
    /// TCP state.
    pub tcp: TcpState,
    /// Delegated class as in a query, with the backlogs.
    pub queried: TcpQueried,
    /// Bytes posted and not acknowledged.
    pub send_outstanding: usize,
}

impl Engine {
    /// Returns a snapshot of the connection `handle` if it is offloaded.
    pub fn snapshot(&self, now: Instant, handle: OffloadHandle) -> Option<ConnectionSnapshot> {
        let offloaded = self.connections.peek(handle)?;
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
