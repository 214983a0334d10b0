//! TCP listeners of this process: cause of a bind that fails with EADDRINUSE.

use std::{collections::HashSet, fs};

/// Listening state (TCP_LISTEN) in `/proc/net/tcp`.
const LISTENING: &str = "0A";

/// Returns the inodes of sockets that listen on `port`, from a table of `/proc/net/tcp`.
fn inodes_of_listeners(table: &str, port: u16) -> impl Iterator<Item = u64> {
    let listeners = table.lines().skip(1).filter_map(move |line| {
        let mut fields = line.split_whitespace();
        let (_, local_port) = fields.nth(1)?.rsplit_once(':')?;
        let is_port = u16::from_str_radix(local_port, 16) == Ok(port);
        let state = fields.nth(1)?;
        // After the state: queues, timer, retransmissions, user, timeout, inode.
        let inode = fields.nth(5)?.parse().ok()?;
        (is_port && state == LISTENING).then_some(inode)
    });
    listeners.filter(|inode| *inode != 0)
}

/// Returns true if this process has a TCP socket that listens on `port`.
pub(super) fn has_listener(port: u16) -> bool {
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"].map(fs::read_to_string);
    let listeners: HashSet<u64> =
        tables.iter().flatten().flat_map(|table| inodes_of_listeners(table, port)).collect();
    let Ok(descriptors) = fs::read_dir("/proc/self/fd") else { return false };
    descriptors.flatten().any(|descriptor| {
        let target = fs::read_link(descriptor.path()).unwrap_or_default();
        let inode = target
            .to_str()
            .and_then(|target| target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
        inode.is_some_and(|inode: u64| listeners.contains(&inode))
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn listener_of_this_process_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(has_listener(port));
        drop(listener);
        assert!(!has_listener(port));
    }

    #[test]
    fn other_states_and_ports_do_not_count() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:0CBC 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 41 1 0 100 0 0 10 0
   1: 0100007F:0CBC 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 42 1 0 20 4 30 10 -1
   2: 00000000:0CBD 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 43 1 0 100 0 0 10 0
   3: short";
        assert_eq!(inodes_of_listeners(table, 3260).collect::<Vec<_>>(), [41]);
    }
}
