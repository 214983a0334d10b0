//! Neighbor discovery for connections that wait for it.
//!
//! smoltcp sends one solicitation a second for all its sockets together, and the first socket in its
//! set takes it: while one connection waits for a neighbor that does not exist, none finds another.
//! So the host solicits for each connection whose SYN has not left; the answers fill smoltcp's cache.

use alloc::{vec, vec::Vec};
use core::net::{IpAddr, Ipv6Addr};

use offload_engine::{
    chimney::client::OffloadHandle,
    state::MacAddress,
    time::{Duration, Instant},
};
use smoltcp::{
    phy::ChecksumCapabilities,
    wire::{
        ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
        EthernetRepr, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv6Packet, Ipv6Repr,
        NdiscNeighborFlags, NdiscRepr, RawHardwareAddress,
    },
};

use super::{Host, config::HostConfig};

/// How long a SYN may wait before the host solicits for it: smoltcp's own solicitation comes first.
pub(super) const SOLICIT_DELAY: Duration = Duration::from_millis(20);
/// Pause between two solicitations (RFC 1122 §2.3.2.1, RFC 4861 RETRANS_TIMER).
pub(super) const SOLICIT_INTERVAL: Duration = Duration::from_secs(1);
/// Hop limit that proves a neighbor (RFC 4861 §7.1).
const NEIGHBOR_HOP_LIMIT: u8 = 255;

impl Host {
    /// Solicits the next hop of a connection in its handshake, if it is time.
    pub(super) fn seek_neighbor(&mut self, now: Instant, handle: OffloadHandle) -> bool {
        let Some(connection) = self.connections.get_mut(&handle) else { return false };
        if connection.flow.syn_sent() || now < connection.solicit_at {
            return false;
        }
        connection.solicit_at = now + SOLICIT_INTERVAL;
        let (source, remote) = (connection.tuple.local().ip(), connection.tuple.remote().ip());
        if let Some(next_hop) = self.config.next_hop(remote) {
            self.solicit_from(now, source, next_hop);
        }
        true
    }

    /// Asks where a neighbor is, from our address of its family.
    pub(super) fn solicit(&mut self, now: Instant, next_hop: IpAddr) {
        let own = self.config.addresses.iter().map(|(own, _)| *own);
        let source = own.into_iter().find(|own| own.is_ipv4() == next_hop.is_ipv4());
        if let Some(source) = source {
            self.solicit_from(now, source, next_hop);
        }
    }

    fn solicit_from(&mut self, now: Instant, source: IpAddr, next_hop: IpAddr) {
        if let Some(frame) = solicitation(&self.config, source, next_hop) {
            self.device.sent.push_back(frame);
            self.send_down(now);
        }
    }
}

fn solicitation(config: &HostConfig, source: IpAddr, target: IpAddr) -> Option<Vec<u8>> {
    let own = EthernetAddress(config.mac.0);
    match (source, target) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            let request = ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Request,
                source_hardware_addr: own,
                source_protocol_addr: source,
                target_hardware_addr: EthernetAddress([0; 6]),
                target_protocol_addr: target,
            };
            let header = EthernetRepr {
                src_addr: own,
                dst_addr: EthernetAddress::BROADCAST,
                ethertype: EthernetProtocol::Arp,
            };
            Some(framed(header, request.buffer_len(), |payload| {
                request.emit(&mut ArpPacket::new_unchecked(payload));
            }))
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            let solicit = Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit {
                target_addr: target,
                lladdr: Some(RawHardwareAddress::from_bytes(&config.mac.0)),
            });
            // RFC 4291 §2.7.1: the solicited-node group of the address's last 24 bits.
            let [.., x, y, z] = target.octets();
            let group = Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, x, y, z]);
            let header = EthernetRepr {
                src_addr: own,
                // RFC 2464 §7.
                dst_addr: EthernetAddress([0x33, 0x33, 0xff, x, y, z]),
                ethertype: EthernetProtocol::Ipv6,
            };
            Some(icmpv6_frame(header, (source, group), &solicit))
        }
        _ => None,
    }
}

/// An answer to our solicitation from `own`: the neighbor and its Ethernet address.
pub(super) fn advertisement(
    own_mac: MacAddress,
    own: IpAddr,
    (neighbor, mac): (IpAddr, MacAddress),
) -> Option<Vec<u8>> {
    let (own_mac, mac) = (EthernetAddress(own_mac.0), EthernetAddress(mac.0));
    let header = |ethertype| EthernetRepr { src_addr: mac, dst_addr: own_mac, ethertype };
    match (neighbor, own) {
        (IpAddr::V4(neighbor), IpAddr::V4(own)) => {
            let reply = ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Reply,
                source_hardware_addr: mac,
                source_protocol_addr: neighbor,
                target_hardware_addr: own_mac,
                target_protocol_addr: own,
            };
            Some(framed(header(EthernetProtocol::Arp), reply.buffer_len(), |payload| {
                reply.emit(&mut ArpPacket::new_unchecked(payload));
            }))
        }
        (IpAddr::V6(neighbor), IpAddr::V6(own)) => {
            let advert = Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert {
                flags: NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE,
                target_addr: neighbor,
                lladdr: Some(RawHardwareAddress::from_bytes(mac.as_bytes())),
            });
            Some(icmpv6_frame(header(EthernetProtocol::Ipv6), (neighbor, own), &advert))
        }
        _ => None,
    }
}

fn icmpv6_frame(
    header: EthernetRepr,
    (source, destination): (Ipv6Addr, Ipv6Addr),
    message: &Icmpv6Repr<'_>,
) -> Vec<u8> {
    let ip = Ipv6Repr {
        src_addr: source,
        dst_addr: destination,
        next_header: IpProtocol::Icmpv6,
        payload_len: message.buffer_len(),
        hop_limit: NEIGHBOR_HOP_LIMIT,
    };
    framed(header, ip.buffer_len() + message.buffer_len(), |payload| {
        let mut packet = Ipv6Packet::new_unchecked(payload);
        ip.emit(&mut packet);
        let mut icmp = Icmpv6Packet::new_unchecked(packet.payload_mut());
        message.emit(&source, &destination, &mut icmp, &ChecksumCapabilities::default());
    })
}

fn framed(header: EthernetRepr, payload: usize, write: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut frame = vec![0; header.buffer_len() + payload];
    header.emit(&mut EthernetFrame::new_unchecked(&mut frame[..]));
    write(&mut frame[header.buffer_len()..]);
    frame
}
