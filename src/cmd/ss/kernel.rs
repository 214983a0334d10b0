//! Values that only the kernel has of its sockets: timers, memory, owner and inode. They are queried from the kernel,
//! not from the node, and only if the node is in the network namespace of this process.

use std::{fs, path::PathBuf};

use flue_network::socket_diag::{Memory, SocketDiag, SocketState, TimerKind as KernelTimer};
use host_stack::stream::OffloadState;

use super::listing::{Listed, Row};
use crate::control::record::{BufferMemory, Timer, TimerKind};

/// Adds the values to the kernel sockets of a node. Those of another network namespace stay unknown.
pub(super) fn complete(listed: &mut Listed) {
    let is_kernel = |row: &Row| row.record.offload_state == OffloadState::Kernel;
    let Some(node) = &listed.node else { return };
    if !listed.connections.iter().any(is_kernel) || !is_same_network(node.pid) {
        return;
    }
    let diag = match SocketDiag::open() {
        Ok(diag) => diag,
        Err(error) => {
            tracing::warn!(%error, "sock_diag: not available");
            return;
        }
    };
    for row in listed.connections.iter_mut().filter(|row| is_kernel(row)) {
        match diag.query(row.record.local, row.record.remote) {
            Ok(Some(state)) => set(row, &state),
            // Closed since the listing.
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "sock_diag: query failed");
                return;
            }
        }
    }
}

/// Returns true if a process has the network namespace of this one.
fn is_same_network(pid: u32) -> bool {
    let network = |process: String| -> Option<PathBuf> {
        fs::read_link(format!("/proc/{process}/ns/net")).ok()
    };
    let own = network("self".into());
    own.is_some() && own == network(pid.to_string())
}

fn set(row: &mut Row, state: &SocketState) {
    let SocketState { timer, retransmits, uid: _, inode, memory } = *state;
    let timer = timer.map(|(kind, left)| Timer {
        kind: match kind {
            KernelTimer::Retransmit => TimerKind::Retransmit,
            KernelTimer::KeepAlive => TimerKind::KeepAlive,
            KernelTimer::TimeWait => TimerKind::TimeWait,
            KernelTimer::Persist => TimerKind::Persist,
        },
        left_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
        count: retransmits.into(),
    });
    row.record.timers = Some(timer.into_iter().collect());
    row.record.memory = memory.map(|memory| {
        let Memory {
            receive,
            receive_max,
            transmit,
            send_max,
            forward,
            send,
            options,
            backlog,
            drops,
        } = memory;
        BufferMemory {
            receive_bytes: receive.into(),
            receive_max_bytes: receive_max.into(),
            send_bytes: send.into(),
            send_max_bytes: send_max.into(),
            transmit_bytes: Some(transmit.into()),
            forward_bytes: Some(forward.into()),
            options_bytes: Some(options.into()),
            backlog_bytes: Some(backlog.into()),
            drops: Some(drops.into()),
        }
    });
    row.inode = (inode != 0).then_some(inode);
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;
    use crate::cmd::ss::tests::{connection, listed};

    #[test]
    fn kernel_socket_of_this_network_namespace_has_values_of_the_kernel() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = near.peer_addr().unwrap().to_string();
        let mut record = connection(&near.local_addr().unwrap().to_string(), Some(&peer));
        let offloaded = record.clone();
        record.offload_state = OffloadState::Kernel;
        let [mut listed] = listed(vec![record, offloaded]);
        // A process that does not exist has no network namespace.
        for (pid, is_known) in [(1 << 22, false), (std::process::id(), true)] {
            if let Some(node) = &mut listed.node {
                node.pid = pid;
            }
            complete(&mut listed);
            let [kernel, offloaded] = &listed.connections[..] else { panic!("two rows") };
            assert_eq!(kernel.inode.is_some(), is_known, "{pid}");
            assert_eq!(kernel.record.memory.is_some_and(|it| it.receive_max_bytes > 0), is_known);
            assert_eq!(kernel.record.timers.is_some(), is_known);
            assert_eq!((offloaded.inode, offloaded.record.memory), (None, None));
        }
    }
}
