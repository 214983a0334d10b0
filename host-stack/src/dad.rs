//! Duplicate address detection: probes, conflict detection, and defense of an address in use.
//!
//! IPv4 follows RFC 5227 (ARP probes), IPv6 RFC 4862 §5.4 (Neighbor Solicitations from `::`). All functions are pure.
//! The opener of a node sends the [`probe`]s before the node starts and checks received frames with [`conflict`]. A
//! running host answers other stations' probes with `defense`, since smoltcp drops packets without a sender address.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use offload_engine::state::MacAddress;
use smoltcp::{
    phy::ChecksumCapabilities,
    wire::{
        ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
        EthernetRepr, Icmpv6Message, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv6Packet, Ipv6Repr,
        NdiscNeighborFlags, NdiscRepr, RawHardwareAddress,
    },
};

offload_engine::option_enum! {
    /// Use of duplicate address detection.
    pub enum Detection {
        /// Refuse to start with an address that another station uses
        #[default]
        On,
        /// Start without the check
        Off,
    }
}

/// Hop limit of neighbor discovery, whose packets routers do not forward (RFC 4861 §7.1).
const NEIGHBOR_HOP_LIMIT: u8 = 255;
/// All-nodes address of the link (RFC 4291 §2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Returns the probe for a tentative address: a query without a sender address.
#[must_use]
pub fn probe(mac: MacAddress, address: IpAddr) -> Option<Vec<u8>> {
    let unspecified = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    solicitation(mac, unspecified, address)
}

/// Returns the query for the link-layer address of `target`, from `source`; both have the same family.
pub(crate) fn solicitation(mac: MacAddress, source: IpAddr, target: IpAddr) -> Option<Vec<u8>> {
    match (source, target) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            let request = ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Request,
                source_hardware_addr: EthernetAddress(mac.0),
                source_protocol_addr: source,
                target_hardware_addr: EthernetAddress([0; 6]),
                target_protocol_addr: target,
            };
            Some(arp(mac, EthernetAddress::BROADCAST, &request))
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            let own = RawHardwareAddress::from_bytes(&mac.0);
            // RFC 4861 §4.3: a solicitation from the unspecified address has no link-layer address.
            let lladdr = (!source.is_unspecified()).then_some(own);
            let solicit = NdiscRepr::NeighborSolicit { target_addr: target, lladdr };
            // RFC 4291 §2.7.1: the solicited-node group of the address's last 24 bits.
            let [.., x, y, z] = target.octets();
            let group = Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, x, y, z]);
            Some(neighbor_discovery((source, mac), (group, group_mac(group)), solicit))
        }
        _ => None,
    }
}

/// Returns the answer of a station to another station's query; both addresses have the same family.
pub(crate) fn advertisement(
    (address, mac): (IpAddr, MacAddress),
    (to, to_mac): (IpAddr, MacAddress),
) -> Option<Vec<u8>> {
    match (address, to) {
        (IpAddr::V4(address), IpAddr::V4(to)) => {
            let reply = ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Reply,
                source_hardware_addr: EthernetAddress(mac.0),
                source_protocol_addr: address,
                target_hardware_addr: EthernetAddress(to_mac.0),
                target_protocol_addr: to,
            };
            Some(arp(mac, EthernetAddress(to_mac.0), &reply))
        }
        (IpAddr::V6(address), IpAddr::V6(to)) => {
            let advert = NdiscRepr::NeighborAdvert {
                flags: NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE,
                target_addr: address,
                lladdr: Some(RawHardwareAddress::from_bytes(&mac.0)),
            };
            Some(neighbor_discovery((address, mac), (to, to_mac), advert))
        }
        _ => None,
    }
}

/// Returns the own address that another station uses or probes according to a received frame, and that station. `mac`:
/// our Ethernet address, so that our own looped-back probe is not a conflict.
#[must_use]
pub fn conflict(frame: &[u8], mac: MacAddress, ours: &[IpAddr]) -> Option<(IpAddr, MacAddress)> {
    let is_ours = |address: &IpAddr| ours.contains(address);
    match parse(frame)? {
        // RFC 5227 §2.1.1: any ARP packet with that sender address. We send none before the probe completes.
        Claim::Used { address, by } => Some((address, by)).filter(|_| is_ours(&address)),
        Claim::Probed { address, by } => {
            Some((address, by)).filter(|_| by != mac && is_ours(&address))
        }
        // RFC 5227 §2.1.1 applies to IPv4 only.
        Claim::Queried { from, by, .. } => {
            Some((from, by)).filter(|_| from.is_ipv4() && is_ours(&from))
        }
    }
}

/// Returns the answer to another station's probe for an own address.
pub(crate) fn defense(
    frame: &[u8],
    mac: MacAddress,
    is_ours: impl Fn(IpAddr) -> bool,
) -> Option<Vec<u8>> {
    let Claim::Probed { address, by } = parse(frame)? else { return None };
    if by == mac || !is_ours(address) {
        return None;
    }
    match address {
        IpAddr::V4(_) => advertisement((address, mac), (Ipv4Addr::UNSPECIFIED.into(), by)),
        // RFC 4861 §7.2.4: an advertisement for the unspecified address is sent to all nodes.
        IpAddr::V6(address) => {
            let advert = NdiscRepr::NeighborAdvert {
                flags: NdiscNeighborFlags::OVERRIDE,
                target_addr: address,
                lladdr: Some(RawHardwareAddress::from_bytes(&mac.0)),
            };
            Some(neighbor_discovery((address, mac), (ALL_NODES, group_mac(ALL_NODES)), advert))
        }
    }
}

/// Returns the answer to another station's query for the link-layer address of an own address.
pub fn answer(frame: &[u8], mac: MacAddress, is_ours: impl Fn(IpAddr) -> bool) -> Option<Vec<u8>> {
    let Claim::Queried { address, from, by } = parse(frame)? else { return None };
    if !is_ours(address) {
        return None;
    }
    advertisement((address, mac), (from, by))
}

/// Address information in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Claim {
    /// A station uses the address.
    Used { address: IpAddr, by: MacAddress },
    /// A station without an address queries it.
    Probed { address: IpAddr, by: MacAddress },
    /// A station with the address `from` queries it.
    Queried { address: IpAddr, from: IpAddr, by: MacAddress },
}

fn parse(frame: &[u8]) -> Option<Claim> {
    let ethernet = EthernetFrame::new_checked(frame).ok()?;
    match ethernet.ethertype() {
        EthernetProtocol::Arp => parse_arp(ethernet.payload()),
        EthernetProtocol::Ipv6 => parse_ipv6(ethernet.payload(), MacAddress(ethernet.src_addr().0)),
        _ => None,
    }
}

fn parse_arp(payload: &[u8]) -> Option<Claim> {
    let packet = ArpPacket::new_checked(payload).ok()?;
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr,
        source_protocol_addr,
        target_protocol_addr,
        ..
    } = ArpRepr::parse(&packet).ok()?
    else {
        return None;
    };
    let by = MacAddress(source_hardware_addr.0);
    let (from, address) = (source_protocol_addr.into(), target_protocol_addr.into());
    match (operation, source_protocol_addr.is_unspecified()) {
        (ArpOperation::Request, false) => Some(Claim::Queried { address, from, by }),
        (ArpOperation::Request, true) => Some(Claim::Probed { address, by }),
        (_, false) => Some(Claim::Used { address: from, by }),
        (_, true) => None,
    }
}

fn parse_ipv6(payload: &[u8], by: MacAddress) -> Option<Claim> {
    let packet = Ipv6Packet::new_checked(payload).ok()?;
    if packet.next_header() != IpProtocol::Icmpv6 || packet.hop_limit() != NEIGHBOR_HOP_LIMIT {
        return None;
    }
    let message = Icmpv6Packet::new_checked(packet.payload()).ok()?;
    let kind = message.msg_type();
    if !matches!(kind, Icmpv6Message::NeighborAdvert | Icmpv6Message::NeighborSolicit)
        || !message.verify_checksum(&packet.src_addr(), &packet.dst_addr())
    {
        return None;
    }
    let address = message.target_addr().into();
    match kind {
        Icmpv6Message::NeighborAdvert => Some(Claim::Used { address, by }),
        // RFC 4862 §5.4.3: a query from a specified address is address resolution.
        _ if packet.src_addr().is_unspecified() => Some(Claim::Probed { address, by }),
        _ => Some(Claim::Queried { address, from: packet.src_addr().into(), by }),
    }
}

fn arp(mac: MacAddress, to: EthernetAddress, packet: &ArpRepr) -> Vec<u8> {
    let header = EthernetRepr {
        src_addr: EthernetAddress(mac.0),
        dst_addr: to,
        ethertype: EthernetProtocol::Arp,
    };
    framed(header, packet.buffer_len(), |payload| {
        packet.emit(&mut ArpPacket::new_unchecked(payload));
    })
}

/// Ethernet address of a multicast group (RFC 2464 §7).
const fn group_mac(group: Ipv6Addr) -> MacAddress {
    let [.., w, x, y, z] = group.octets();
    MacAddress([0x33, 0x33, w, x, y, z])
}

fn neighbor_discovery(
    (source, mac): (Ipv6Addr, MacAddress),
    (destination, to): (Ipv6Addr, MacAddress),
    message: NdiscRepr<'_>,
) -> Vec<u8> {
    let message = Icmpv6Repr::Ndisc(message);
    let ip = Ipv6Repr {
        src_addr: source,
        dst_addr: destination,
        next_header: IpProtocol::Icmpv6,
        payload_len: message.buffer_len(),
        hop_limit: NEIGHBOR_HOP_LIMIT,
    };
    let header = EthernetRepr {
        src_addr: EthernetAddress(mac.0),
        dst_addr: EthernetAddress(to.0),
        ethertype: EthernetProtocol::Ipv6,
    };
    framed(header, ip.buffer_len() + message.buffer_len(), |payload| {
        let mut packet = Ipv6Packet::new_unchecked(payload);
        ip.emit(&mut packet);
        let mut emitted = Icmpv6Packet::new_unchecked(packet.payload_mut());
        message.emit(&source, &destination, &mut emitted, &ChecksumCapabilities::default());
    })
}

fn framed(header: EthernetRepr, payload: usize, write: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut frame = alloc::vec![0; header.buffer_len() + payload];
    header.emit(&mut EthernetFrame::new_unchecked(&mut frame[..]));
    write(&mut frame[header.buffer_len()..]);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
    const THEIRS: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);

    fn addresses() -> [IpAddr; 2] {
        ["10.0.0.1", "fd00::1"].map(|it| it.parse().unwrap())
    }

    #[test]
    fn defended_address_is_a_conflict() {
        for address in addresses() {
            let probe = probe(OURS, address).unwrap();
            let answer = defense(&probe, THEIRS, |it| it == address).unwrap();
            assert_eq!(conflict(&answer, OURS, &addresses()), Some((address, THEIRS)));
            assert_eq!(conflict(&answer, OURS, &[]), None);
        }
    }

    #[test]
    fn reflected_own_probe_is_no_conflict() {
        for address in addresses() {
            let probe = probe(OURS, address).unwrap();
            assert_eq!(conflict(&probe, OURS, &addresses()), None);
            assert_eq!(defense(&probe, OURS, |_| true), None);
        }
    }

    #[test]
    fn simultaneous_probe_of_another_station_is_a_conflict() {
        for address in addresses() {
            let probe = probe(THEIRS, address).unwrap();
            assert_eq!(conflict(&probe, OURS, &addresses()), Some((address, THEIRS)));
        }
    }

    // RFC 5227 §2.1.1: the sender address matters, whatever the packet's purpose.
    #[test]
    fn use_of_the_address_is_a_conflict_even_by_our_own_ethernet_address() {
        let [v4, _] = addresses();
        let query = solicitation(OURS, v4, "10.0.0.9".parse().unwrap()).unwrap();
        assert_eq!(conflict(&query, OURS, &addresses()), Some((v4, OURS)));
    }

    #[test]
    fn address_resolution_is_neither_conflict_nor_defended() {
        let others = ["10.0.0.9", "fd00::9"].map(|it| it.parse::<IpAddr>().unwrap());
        for (address, other) in addresses().into_iter().zip(others) {
            let query = solicitation(THEIRS, other, address).unwrap();
            assert_eq!(conflict(&query, OURS, &addresses()), None);
            assert_eq!(defense(&query, OURS, |_| true), None);
        }
    }

    #[test]
    fn query_for_an_own_address_is_answered() {
        let others = ["10.0.0.9", "fd00::9"].map(|it| it.parse::<IpAddr>().unwrap());
        for (address, other) in addresses().into_iter().zip(others) {
            let query = solicitation(THEIRS, other, address).unwrap();
            let reply = answer(&query, OURS, |it| it == address).unwrap();
            assert_eq!(reply[..12], [THEIRS.0, OURS.0].concat());
            assert_eq!(parse(&reply), Some(Claim::Used { address, by: OURS }));
            assert_eq!(answer(&query, OURS, |_| false), None);
            assert_eq!(answer(&query[..30], OURS, |_| true), None);
            assert_eq!(answer(&probe(THEIRS, address).unwrap(), OURS, |_| true), None);
        }
    }

    #[test]
    fn probe_for_another_address_is_not_answered() {
        for address in addresses() {
            let probe = probe(THEIRS, address).unwrap();
            assert_eq!(defense(&probe, OURS, |_| false), None);
        }
    }

    #[test]
    fn damaged_and_short_frames_are_ignored() {
        for address in addresses() {
            let probe = probe(THEIRS, address).unwrap();
            for length in 0..probe.len() {
                let _ = defense(&probe[..length], OURS, |_| true);
                let _ = conflict(&probe[..length], OURS, &addresses());
            }
        }
        let [_, v6] = addresses();
        let mut probe = probe(THEIRS, v6).unwrap();
        *probe.last_mut().unwrap() ^= 1;
        assert_eq!(defense(&probe, OURS, |_| true), None, "checksum");
    }
}
