//! Paths with an MTU below the link's (RFC 1191 §6.3, RFC 8201 §5.3).
//!
//! The target reports ICMP errors for a connection's path, since only it has the data in flight. The host owns the path
//! MTU (CH-UPD-5), and applies it to later offloads to the same address, so that each need not discover it. After
//! [`RAISE_AFTER`] the entry expires: the path may have become wider. Existing connections on the path keep their path
//! MTU.
//!
//! Limit: [`PATHS_MAX`]; above it the oldest entry is evicted.

use alloc::collections::BTreeMap;
use core::net::IpAddr;

use offload_engine::{tcp::RAISE_AFTER, time::Instant};

/// Maximum number of addresses with a recorded path MTU.
pub(super) const PATHS_MAX: usize = 1024;

/// Recorded path MTUs by destination address.
#[derive(Debug, Default)]
pub(super) struct Paths(BTreeMap<IpAddr, PathMtuEntry>);

#[derive(Clone, Copy, Debug)]
struct PathMtuEntry {
    mtu: u32,
    since: Instant,
}

impl Paths {
    pub(super) fn record_path_mtu(&mut self, now: Instant, remote: IpAddr, mtu: u32) {
        if self.0.len() >= PATHS_MAX && !self.0.contains_key(&remote) {
            let oldest = self.0.iter().min_by_key(|(_, narrow)| narrow.since);
            if let Some(oldest) = oldest.map(|(address, _)| *address) {
                self.0.remove(&oldest);
            }
        }
        self.0.insert(remote, PathMtuEntry { mtu, since: now });
    }

    /// Path MTU to `remote` in bytes, at most `link`.
    pub(super) fn mtu(&mut self, now: Instant, remote: IpAddr, link: u32) -> u32 {
        match self.0.get(&remote) {
            Some(narrow) if now - narrow.since < RAISE_AFTER => narrow.mtu.min(link),
            Some(_) => {
                self.0.remove(&remote);
                link
            }
            None => link,
        }
    }
}

#[cfg(test)]
mod tests {
    use offload_engine::time::Duration;

    use super::*;

    fn address(number: u32) -> IpAddr {
        core::net::Ipv4Addr::from_bits(number).into()
    }

    // RFC 1191 §6.3: ten minutes; never above the link's MTU.
    #[test]
    fn path_mtu_expires_after_ten_minutes() {
        let mut paths = Paths::default();
        let start = Instant::from_millis(5);
        paths.record_path_mtu(start, address(1), 1280);
        assert_eq!(paths.mtu(start, address(1), 1500), 1280);
        assert_eq!(paths.mtu(start, address(1), 1000), 1000);
        assert_eq!(paths.mtu(start, address(2), 1500), 1500);
        let almost = start + (RAISE_AFTER - Duration::from_millis(1));
        assert_eq!(paths.mtu(almost, address(1), 1500), 1280);
        assert_eq!(paths.mtu(start + RAISE_AFTER, address(1), 1500), 1500);
        assert!(paths.0.is_empty());
    }

    #[test]
    fn oldest_path_is_evicted_first() {
        let mut paths = Paths::default();
        let now = Instant::from_millis(5);
        for number in 0..PATHS_MAX as u32 {
            paths.record_path_mtu(
                now + Duration::from_millis(number.into()),
                address(number),
                1280,
            );
        }
        paths.record_path_mtu(now + Duration::from_secs(2), address(0), 1000);
        assert_eq!(paths.0.len(), PATHS_MAX);
        paths.record_path_mtu(now + Duration::from_secs(3), address(9_999), 1280);
        assert_eq!(paths.0.len(), PATHS_MAX);
        let now = now + Duration::from_secs(3);
        let known = [0, 1, 2, 9_999].map(|number| paths.mtu(now, address(number), 1500));
        assert_eq!(known, [1000, 1500, 1280, 1280]);
    }
}
