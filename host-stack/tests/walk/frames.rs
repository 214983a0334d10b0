//! Frames that a network changes, and those that it makes itself.

use std::net::IpAddr;

use etherparse::{SlicedPacket, TransportSlice};
use offload_engine::state::MacAddress;
use smoltcp::{
    phy::ChecksumCapabilities,
    wire::{
        ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
        EthernetRepr, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv6Packet, Ipv6Repr, NdiscRepr,
        RawHardwareAddress,
    },
};

const ETHERNET_BYTES: usize = 14;
const TYPE_AT: usize = 12;
const ARP: [u8; 2] = [0x08, 0x06];
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
/// The sender's Ethernet address in ARP.
const ARP_SENDER_AT: usize = ETHERNET_BYTES + 8;
const IPV6_HEADER_BYTES: usize = 40;
const ICMPV6_AT: usize = ETHERNET_BYTES + IPV6_HEADER_BYTES;
/// Neighbor solicitation and advertisement, and where their options begin.
const SOLICIT_OR_ADVERT: [u8; 2] = [135, 136];
const NDISC_OPTIONS_AT: usize = ICMPV6_AT + 24;
const OPTION_SACK: u8 = 5;

/// What a network looks at in a TCP frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tcp {
    pub(crate) from: u16,
    pub(crate) to: u16,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) window: u16,
    pub(crate) syn: bool,
    pub(crate) fin: bool,
    pub(crate) rst: bool,
    pub(crate) is_ack: bool,
    /// Bytes of IP and TCP headers, and of payload.
    pub(crate) header_bytes: usize,
    pub(crate) payload_bytes: usize,
    /// Where the TCP header begins, and its options end.
    pub(crate) at: usize,
    pub(crate) options_end: usize,
}

impl Tcp {
    pub(crate) fn of(frame: &[u8]) -> Option<Self> {
        let packet = SlicedPacket::from_ethernet(frame).ok()?;
        let Some(TransportSlice::Tcp(tcp)) = packet.transport else { return None };
        let at = frame.len() - tcp.slice().len();
        let options_end = at + tcp.header_slice().len();
        Some(Self {
            from: tcp.source_port(),
            to: tcp.destination_port(),
            seq: tcp.sequence_number(),
            ack: tcp.acknowledgment_number(),
            window: tcp.window_size(),
            syn: tcp.syn(),
            fin: tcp.fin(),
            rst: tcp.rst(),
            is_ack: tcp.ack(),
            header_bytes: options_end - ETHERNET_BYTES,
            payload_bytes: tcp.payload().len(),
            at,
            options_end,
        })
    }

    /// One beyond what it takes up.
    pub(crate) fn end(&self) -> u32 {
        self.seq.wrapping_add(self.payload_bytes as u32 + u32::from(self.fin) + u32::from(self.syn))
    }
}

/// Adds what `new` adds to `old` to the checksum at `at` (RFC 1624 §3).
pub(crate) fn adjust(frame: &mut [u8], at: usize, old: &[u8], new: &[u8]) {
    let words = |bytes: &[u8], flip: u16| {
        let pairs = bytes.chunks_exact(2);
        pairs.map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]) ^ flip)).sum::<u32>()
    };
    let mut sum = words(&frame[at..at + 2], u16::MAX) + words(old, u16::MAX) + words(new, 0);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[at..at + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// Turns ECT(0) or ECT(1) into CE. Returns whether it was one of them.
pub(crate) fn mark(frame: &mut [u8]) -> bool {
    let is_v4 = frame[TYPE_AT..ETHERNET_BYTES] == IPV4;
    if !is_v4 && frame[TYPE_AT..ETHERNET_BYTES] != IPV6 {
        return false;
    }
    let (at, shift) = (ETHERNET_BYTES + 1, if is_v4 { 0 } else { 4 });
    if !matches!(frame[at] >> shift & 3, 1 | 2) {
        return false;
    }
    let old = [frame[at - 1], frame[at]];
    frame[at] |= 3 << shift;
    let new = [frame[at - 1], frame[at]];
    if is_v4 {
        adjust(frame, ETHERNET_BYTES + 10, &old, &new);
    }
    true
}

/// Moves the right edge of the first SACK block that is beyond the acknowledgement right, up to `bytes` and not
/// beyond `max`. The checksum is adjusted unless the link computes it.
pub(crate) fn extend_sack(
    frame: &mut [u8],
    tcp: &Tcp,
    bytes: u32,
    max: u32,
    by_link: bool,
) -> bool {
    let mut at = tcp.at + 20;
    while at + 1 < tcp.options_end {
        match frame[at] {
            0 => return false,
            1 => at += 1,
            OPTION_SACK => break,
            _ => at += usize::from(frame[at + 1]).max(2),
        }
    }
    if at + 1 >= tcp.options_end {
        return false;
    }
    let blocks = at + 2..at + usize::from(frame[at + 1]);
    for edge_at in blocks.skip(4).step_by(8) {
        let old: [u8; 4] = frame[edge_at..edge_at + 4].try_into().expect("four bytes");
        let edge = u32::from_be_bytes(old);
        let room = max.wrapping_sub(edge);
        if edge.wrapping_sub(tcp.ack).cast_signed() <= 0 || room.cast_signed() <= 0 {
            continue;
        }
        let new = edge.wrapping_add(room.min(bytes)).to_be_bytes();
        frame[edge_at..edge_at + 4].copy_from_slice(&new);
        // At an odd place the bytes count the other way round.
        let (from, to) = if (edge_at - tcp.at).is_multiple_of(2) {
            (old.to_vec(), new.to_vec())
        } else {
            let shifted = |four: [u8; 4]| [&[0], &four[..], &[0]].concat();
            (shifted(old), shifted(new))
        };
        if !by_link {
            adjust(frame, tcp.at + 16, &from, &to);
        }
        return true;
    }
    false
}

/// Has a frame come from another Ethernet address, and say so if it is ARP or neighbor discovery.
pub(crate) fn send_from(frame: &mut [u8], mac: MacAddress) {
    frame[6..TYPE_AT].copy_from_slice(&mac.0);
    if frame[TYPE_AT..ETHERNET_BYTES] == ARP {
        frame[ARP_SENDER_AT..ARP_SENDER_AT + 6].copy_from_slice(&mac.0);
        return;
    }
    if !is_solicitation_or_advert(frame) {
        return;
    }
    let mut at = NDISC_OPTIONS_AT;
    while at + 8 <= frame.len() {
        if matches!(frame[at], 1 | 2) {
            let old = frame[at + 2..at + 8].to_vec();
            frame[at + 2..at + 8].copy_from_slice(&mac.0);
            adjust(frame, ICMPV6_AT + 2, &old, &mac.0);
        }
        at += 8 * usize::from(frame[at + 1]).max(1);
    }
}

fn is_solicitation_or_advert(frame: &[u8]) -> bool {
    frame[TYPE_AT..ETHERNET_BYTES] == IPV6
        && frame.len() >= NDISC_OPTIONS_AT
        && frame[ETHERNET_BYTES + 6] == 58
        && SOLICIT_OR_ADVERT.contains(&frame[ICMPV6_AT])
}

/// Whether it asks for a neighbor.
pub(crate) fn is_solicitation(frame: &[u8]) -> bool {
    let is_arp = frame[TYPE_AT..ETHERNET_BYTES] == ARP;
    is_arp && frame[ETHERNET_BYTES + 7] == 1
        || is_solicitation_or_advert(frame) && frame[ICMPV6_AT] == SOLICIT_OR_ADVERT[0]
}

/// It is ARP from `address`, or a neighbor advertisement of it.
pub(crate) fn announces(frame: &[u8], address: IpAddr) -> bool {
    let told = |at: usize, octets: &[u8]| frame.get(at..at + octets.len()) == Some(octets);
    match address {
        IpAddr::V4(address) => {
            let is_arp = frame[TYPE_AT..ETHERNET_BYTES] == ARP;
            is_arp && told(ARP_SENDER_AT + 6, &address.octets())
        }
        IpAddr::V6(address) => {
            is_solicitation_or_advert(frame)
                && !is_solicitation(frame)
                && told(ICMPV6_AT + 8, &address.octets())
        }
    }
}

/// Tells the node at `to` by a question where the one that asks is now.
pub(crate) fn question(from: (IpAddr, MacAddress), to: (IpAddr, MacAddress)) -> Vec<u8> {
    let [source_mac, target_mac] = [from.1, to.1].map(|mac| EthernetAddress(mac.0));
    let framed = |ethertype, bytes, write: &dyn Fn(&mut [u8])| {
        let header = EthernetRepr { src_addr: source_mac, dst_addr: target_mac, ethertype };
        let mut frame = vec![0; header.buffer_len() + bytes];
        header.emit(&mut EthernetFrame::new_unchecked(&mut frame[..]));
        write(&mut frame[header.buffer_len()..]);
        frame
    };
    match (from.0, to.0) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            let request = ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Request,
                source_hardware_addr: source_mac,
                source_protocol_addr: source,
                target_hardware_addr: EthernetAddress([0; 6]),
                target_protocol_addr: target,
            };
            framed(EthernetProtocol::Arp, request.buffer_len(), &|bytes| {
                request.emit(&mut ArpPacket::new_unchecked(bytes));
            })
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            let solicit = Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit {
                target_addr: target,
                lladdr: Some(RawHardwareAddress::from_bytes(&source_mac.0)),
            });
            let ip = Ipv6Repr {
                src_addr: source,
                dst_addr: target,
                next_header: IpProtocol::Icmpv6,
                payload_len: solicit.buffer_len(),
                hop_limit: 255,
            };
            let bytes = ip.buffer_len() + solicit.buffer_len();
            framed(EthernetProtocol::Ipv6, bytes, &|bytes| {
                let mut packet = Ipv6Packet::new_unchecked(bytes);
                ip.emit(&mut packet);
                let mut message = Icmpv6Packet::new_unchecked(packet.payload_mut());
                solicit.emit(&source, &target, &mut message, &ChecksumCapabilities::default());
            })
        }
        _ => unreachable!("both nodes have addresses of one family"),
    }
}
