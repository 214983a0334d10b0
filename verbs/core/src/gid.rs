//! GIDs of the RoCE device: one for each address that peers can dial.
//!
//! The first entry is the IPv4 address from which the default route leaves. Other IPv4 addresses, IPv6 addresses and
//! link-local IPv6 addresses follow. Loopback addresses have entries only if there are no others. A lone entry is
//! repeated as index 1, which some programs use without a query. The table is fixed when it is created; the entry of an
//! address that is removed later is empty.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use flue_adapter::NodeOptions;
use flue_network::InterfaceAddress;

/// Maximum number of entries; `sgid_index` is an octet.
const ENTRIES_MAX: usize = 255;

/// Global identifier of a port: an IPv6 address, or an IPv4 address in its IPv4-mapped form.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Returns the GID of an address.
    #[must_use]
    pub const fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => Self(ip.to_ipv6_mapped().octets()),
            IpAddr::V6(ip) => Self(ip.octets()),
        }
    }

    /// Returns the address.
    #[must_use]
    pub const fn ip(self) -> IpAddr {
        Ipv6Addr::from_octets(self.0).to_canonical()
    }

    /// Returns the address at an interface, with a port.
    #[must_use]
    pub fn at(self, interface: u32, port: u16) -> SocketAddr {
        match SocketAddr::new(self.ip(), port) {
            SocketAddr::V6(v6) if self.is_link_local() => {
                SocketAddrV6::new(*v6.ip(), port, 0, interface).into()
            }
            address => address,
        }
    }

    /// Returns true if a peer can have it: neither zero nor multicast.
    #[must_use]
    pub fn is_unicast(self) -> bool {
        let ip = self.ip();
        !ip.is_unspecified() && !ip.is_multicast()
    }

    /// Returns true if it is link-local, so that a connection needs the interface.
    #[must_use]
    pub const fn is_link_local(self) -> bool {
        Ipv6Addr::from_octets(self.0).is_unicast_link_local()
    }
}

/// Entry of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GidEntry {
    /// GID.
    pub gid: Gid,
    /// Index of the interface. 0: the interface of a node in another network namespace.
    pub interface: u32,
}

/// GID table of the port.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GidTable(Vec<GidEntry>);

/// Order of the kinds of addresses.
fn kind(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => 0,
        IpAddr::V6(ip) if ip.is_unicast_link_local() => 2,
        IpAddr::V6(_) => 1,
    }
}

impl GidTable {
    /// Creates the table of a machine with these addresses. `preferred`: source address of the default route.
    #[must_use]
    pub fn of_machine(addresses: &[InterfaceAddress], preferred: Option<IpAddr>) -> Self {
        let is_loopback = |it: &&InterfaceAddress| it.is_loopback || it.ip.is_loopback();
        let mut chosen: Vec<_> = addresses.iter().filter(|it| !is_loopback(it)).collect();
        if chosen.is_empty() {
            chosen = addresses.iter().collect();
        }
        chosen.sort_by_key(|it| (Some(it.ip) != preferred, kind(it.ip), it.index));
        let entry = |it: &InterfaceAddress| GidEntry { gid: Gid::of(it.ip), interface: it.index };
        Self::of_entries(chosen.into_iter().map(entry))
    }

    /// Creates the table of a node.
    #[must_use]
    pub fn of_node(node: &NodeOptions, interface: u32) -> Self {
        let mut addresses: Vec<_> = node.addresses.iter().map(|it| it.address()).collect();
        addresses.sort_by_key(|ip| kind(*ip));
        Self::of_entries(addresses.into_iter().map(|ip| GidEntry { gid: Gid::of(ip), interface }))
    }

    fn of_entries(entries: impl Iterator<Item = GidEntry>) -> Self {
        let mut table = Vec::new();
        for entry in entries {
            if !table.contains(&entry) {
                table.push(entry);
            }
        }
        if let [lone] = table[..] {
            table.push(lone);
        }
        table.truncate(ENTRIES_MAX);
        Self(table)
    }

    /// Returns the number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if the table has no entries.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns an entry. `None`: the index is beyond the table.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<GidEntry> {
        self.0.get(index).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(ip: &str, index: u32) -> InterfaceAddress {
        let is_loopback = index == 1;
        InterfaceAddress { ip: ip.parse().unwrap(), name: format!("if{index}"), index, is_loopback }
    }

    fn shown(table: &GidTable) -> Vec<String> {
        table.0.iter().map(|entry| format!("{}%{}", entry.gid.ip(), entry.interface)).collect()
    }

    #[test]
    fn default_route_is_first_and_loopback_absent() {
        let all = [
            address("127.0.0.1", 1),
            address("::1", 1),
            address("fe80::1", 2),
            address("2001:db8::1", 2),
            address("10.0.0.1", 2),
            address("192.0.2.7", 3),
            address("fe80::1", 3),
        ];
        let table = GidTable::of_machine(&all, Some("192.0.2.7".parse().unwrap()));
        let expected = ["192.0.2.7%3", "10.0.0.1%2", "2001:db8::1%2", "fe80::1%2", "fe80::1%3"];
        assert_eq!(shown(&table), expected);
        assert_eq!(shown(&GidTable::of_machine(&all, None))[0], "10.0.0.1%2");
        assert_eq!(table.get(5), None);
    }

    #[test]
    fn loopback_is_used_alone_and_a_lone_entry_is_repeated() {
        let both = [address("::1", 1), address("127.0.0.1", 1)];
        assert_eq!(shown(&GidTable::of_machine(&both, None)), ["127.0.0.1%1", "::1%1"]);
        let one = GidTable::of_machine(&both[1..], None);
        assert_eq!(shown(&one), ["127.0.0.1%1", "127.0.0.1%1"]);
        assert!(GidTable::of_machine(&[], None).is_empty());
    }

    #[test]
    fn node_has_its_own_addresses() {
        let node = NodeOptions {
            addresses: ["fe80::2/64", "fd00::1/64", "10.0.0.1/24"]
                .map(|it| it.parse().unwrap())
                .into(),
            ..NodeOptions::default()
        };
        assert_eq!(shown(&GidTable::of_node(&node, 7)), ["10.0.0.1%7", "fd00::1%7", "fe80::2%7"]);
    }

    #[test]
    fn mapped_address_is_an_ipv4_address() {
        let gid = Gid::of("10.1.2.3".parse().unwrap());
        assert_eq!(gid.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3]);
        assert!(gid.ip().is_ipv4() && gid.is_unicast() && !gid.is_link_local());
        assert!(!Gid::default().is_unicast());
        assert!(!Gid::of("ff02::1".parse().unwrap()).is_unicast());
        assert!(!Gid::of("239.0.0.1".parse().unwrap()).is_unicast());
        assert!(Gid::of("fe80::1".parse().unwrap()).is_link_local());
    }
}
