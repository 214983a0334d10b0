//! Identity of the device: its kind, interface and GIDs. They are known before an adapter is started.

use std::net::IpAddr;

use flue_adapter::{AdapterOptions, DeviceKind};
use flue_network::{InterfaceAddress, Netlink};

use crate::{
    address::{self, Interface},
    gid::{GidEntry, GidTable},
};

/// Octets of an interface's MTU that IP, UDP and InfiniBand headers of a RoCE adapter take.
const ROCE_HEADER_BYTES: u32 = 80;

/// Path MTUs by the number of `IBV_MTU_*`, from 1: 256 to 4096 bytes.
const MTU_NUMBERS: std::ops::RangeInclusive<u8> = 1..=5;

/// Returns the number of the largest path MTU of at most `bytes`; at least that of 256 bytes.
#[must_use]
pub fn mtu_number(bytes: u32) -> u8 {
    let fits = |number: &u8| mtu_bytes(*number) <= bytes;
    MTU_NUMBERS.rev().find(fits).unwrap_or(*MTU_NUMBERS.start())
}

/// Returns the bytes of a path MTU, [`mtu_number`].
#[must_use]
pub const fn mtu_bytes(number: u8) -> u32 {
    128 << number
}

/// Width and speed of a port in the numbers of InfiniBand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortSpeed {
    /// Width, `IBV_WIDTH_*`.
    pub width: u8,
    /// Speed of a lane, `IBV_SPEED_*`.
    pub speed: u8,
    /// Product of both, in units of 100 Mbit/s.
    pub effective: u64,
}

impl PortSpeed {
    /// 1X at 25 Gbit/s, for ports without a speed, as of TCP.
    pub const DEFAULT: Self = Self { width: 1, speed: 32, effective: 250 };

    /// Returns the speed of an Ethernet link, as RoCE drivers of the kernel report it.
    const fn of_ethernet(mbps: u32) -> Self {
        match mbps {
            0..=1000 => Self { width: 1, speed: 1, effective: 25 },
            1001..=10_000 => Self { width: 1, speed: 8, effective: 100 },
            10_001..=20_000 => Self { width: 2, speed: 2, effective: 200 },
            20_001..=25_000 => Self::DEFAULT,
            25_001..=40_000 => Self { width: 2, speed: 8, effective: 400 },
            40_001.. => Self { width: 2, speed: 32, effective: 1000 },
        }
    }
}

/// Returns the addresses of interfaces that are up; `None`, with the reason in the log: no memory or descriptor is
/// available.
#[must_use]
pub fn addresses_of_machine() -> Option<Vec<InterfaceAddress>> {
    let found = Netlink::open().and_then(|mut netlink| netlink.addresses());
    found.inspect_err(|error| tracing::error!(%error, "addresses not listed")).ok()
}

/// Function that lists the addresses of interfaces that are up, as [`addresses_of_machine`].
pub type ListAddresses = fn() -> Option<Vec<InterfaceAddress>>;

/// Identity of the device.
#[derive(Debug)]
pub struct Identity {
    kind: DeviceKind,
    interface: Interface,
    gids: GidTable,
    /// Lists the current addresses; `None`: those of a node, which do not change.
    list: Option<ListAddresses>,
}

impl Identity {
    /// Creates the identity that these options select.
    #[must_use]
    pub fn new(options: &AdapterOptions, list: ListAddresses) -> Self {
        let kind = options.device;
        let node = options.transport.node();
        let (interface, gids) = match (kind, node) {
            (DeviceKind::Iwarp, Some(node)) => {
                (address::interface_of_node(node), GidTable::default())
            }
            (DeviceKind::Iwarp, None) => (address::interface_of_device(), GidTable::default()),
            (DeviceKind::Roce, Some(node)) => {
                let gids = GidTable::of_node(node, address::scope_of_node(node));
                (address::interface_of_node(node), gids)
            }
            (DeviceKind::Roce, None) => of_machine(&list().unwrap_or_default()),
        };
        Self { kind, interface, gids, list: node.is_none().then_some(list) }
    }

    /// Returns true for a RoCE device.
    #[must_use]
    pub fn is_roce(&self) -> bool {
        self.kind == DeviceKind::Roce
    }

    /// Returns the interface whose hardware address and MTU the device has.
    #[must_use]
    pub const fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Returns the number of the active MTU, `IBV_MTU_*`.
    #[must_use]
    pub fn active_mtu(&self) -> u8 {
        match self.kind {
            DeviceKind::Iwarp => mtu_number(self.interface.mtu),
            DeviceKind::Roce => mtu_number(self.interface.mtu.saturating_sub(ROCE_HEADER_BYTES)),
        }
    }

    /// Returns the active speed of the port.
    #[must_use]
    pub fn port_speed(&self) -> PortSpeed {
        let speed = self.is_roce().then_some(self.interface.mbps).flatten();
        speed.map_or(PortSpeed::DEFAULT, PortSpeed::of_ethernet)
    }

    /// Returns the GID table, with the entries of removed addresses.
    #[must_use]
    pub const fn gids(&self) -> &GidTable {
        &self.gids
    }

    /// Returns the entries of the GID table; `None`: the address was removed. All are present if the addresses cannot
    /// be listed.
    #[must_use]
    pub fn current_gids(&self) -> Vec<Option<GidEntry>> {
        let current = self.list.and_then(|list| list());
        let is_present = |entry: &GidEntry| {
            let is_same =
                |it: &InterfaceAddress| it.ip == entry.gid.ip() && it.index == entry.interface;
            current.as_ref().is_none_or(|current| current.iter().any(is_same))
        };
        let entries = (0..self.gids.len()).filter_map(|index| self.gids.get(index));
        entries.map(|entry| Some(entry).filter(is_present)).collect()
    }
}

/// Returns interface and GIDs of this machine.
fn of_machine(addresses: &[InterfaceAddress]) -> (Interface, GidTable) {
    let preferred: Option<IpAddr> = address::default_source();
    let gids = GidTable::of_machine(addresses, preferred);
    let first = gids.get(0).and_then(|entry| {
        addresses.iter().find(|it| it.ip == entry.gid.ip() && it.index == entry.interface)
    });
    let interface = match first {
        Some(first) => address::interface_named(&first.name),
        None => address::interface_of_device(),
    };
    (interface, gids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn active_mtu_is_below_that_of_the_interface() {
        let cases = [
            (9000, 5),
            (4176, 5),
            (4175, 4),
            (1500, 3),
            (1104, 3),
            (1103, 2),
            (576, 1),
            (68, 1),
            (65_536, 5),
        ];
        for (mtu, expected) in cases {
            let interface = Interface { mtu, ..Interface::default() };
            let identity = Identity {
                kind: DeviceKind::Roce,
                interface,
                gids: GidTable::default(),
                list: None,
            };
            assert_eq!(identity.active_mtu(), expected, "{mtu}");
        }
        assert_eq!([255, 256, 1500, 4096].map(mtu_number), [1, 1, 3, 5]);
    }

    #[test]
    fn entry_of_a_removed_address_is_empty() {
        fn only_second() -> Option<Vec<InterfaceAddress>> {
            Some(vec![address(9)])
        }
        fn address(last: u8) -> InterfaceAddress {
            let ip = [10, 0, 0, last].into();
            InterfaceAddress { ip, name: "a".into(), index: 2, is_loopback: false }
        }
        let gids = GidTable::of_machine(&[address(8), address(9)], None);
        let interface = Interface::default();
        let list: Option<ListAddresses> = Some(only_second);
        let mut identity = Identity { kind: DeviceKind::Roce, interface, gids, list };
        let second = identity.gids().get(1);
        assert_eq!(identity.current_gids(), [None, second]);
        for unknown in [None, Some((|| None) as ListAddresses)] {
            identity.list = unknown;
            assert_eq!(identity.current_gids(), [identity.gids().get(0), second]);
        }
    }

    // Gbit/s of a lane times lanes, as programs compute it.
    #[test]
    fn ethernet_speed_has_width_and_speed() {
        let shown = |mbps| {
            let PortSpeed { width, speed, effective } = PortSpeed::of_ethernet(mbps);
            (width, speed, effective)
        };
        assert_eq!(shown(1000), (1, 1, 25));
        assert_eq!(shown(10_000), (1, 8, 100));
        assert_eq!(shown(20_000), (2, 2, 200));
        assert_eq!(shown(25_000), (1, 32, 250));
        assert_eq!(shown(40_000), (2, 8, 400));
        assert_eq!(shown(100_000), (2, 32, 1000));
    }
}
