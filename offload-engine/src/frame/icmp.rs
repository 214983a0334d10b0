//! ICMP errors about segments sent by this node (RFC 792, RFC 1191 §4, RFC 4443 §3).
//!
//! Only errors with a correct checksum are parsed, and only if they quote enough of a TCP segment for its flow and its
//! sequence number. Source quench is ignored (RFC 9293 MUST-55, RFC 6633). Redirects are processed by the host. TCP
//! determines if the quoted segment is in flight.

use etherparse::{EtherType, IpNumber, Ipv4HeaderSlice, Ipv6HeaderSlice};

use super::{
    FlowKey, Vlan,
    classify::{Network, network},
    mapped,
};
use crate::{
    checksum,
    segment::{PathError, PathErrorKind, SeqNum, SoftError},
};

/// Bytes of an ICMP header before the quoted packet.
const ICMP_HEADER_BYTES: usize = 8;
/// Bytes of a quoted TCP header that every router sends: ports and sequence number (RFC 792).
const QUOTED_TCP_BYTES: usize = 8;

/// ICMP error in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IcmpError {
    /// Flow of the quoted segment. The local address is its source.
    pub flow: FlowKey,
    /// VLAN tag of the frame.
    pub vlan: Vlan,
    /// Kind of the error and sequence number quoted.
    pub error: PathError,
}

/// Finds an ICMP error about a TCP segment in a frame. `None` for any other frame.
pub fn classify_icmp(frame: &[u8]) -> Option<IcmpError> {
    let Network { vlan, ether_type, packet } = network(frame)?;
    let (flow, error) = match ether_type {
        EtherType::IPV4 => ipv4(packet)?,
        EtherType::IPV6 => ipv6(packet)?,
        _ => return None,
    };
    Some(IcmpError { flow, vlan, error })
}

/// ICMP message: type, code, the four bytes before the quoted packet, and that packet.
struct Message<'a> {
    kind: (u8, u8),
    rest: u32,
    quoted: &'a [u8],
}

impl<'a> Message<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (header, quoted) = bytes.split_at_checked(ICMP_HEADER_BYTES)?;
        let rest = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        Some(Self { kind: (header[0], header[1]), rest, quoted })
    }
}

fn ipv4(packet: &[u8]) -> Option<(FlowKey, PathError)> {
    let ip = Ipv4HeaderSlice::from_slice(packet).ok()?;
    if ip.protocol() != IpNumber::ICMP || ip.is_fragmenting_payload() {
        return None;
    }
    let bytes = packet.get(ip.slice().len()..usize::from(ip.total_len()))?;
    let header_sum = checksum::fold(checksum::add(0, ip.slice()));
    if header_sum != 0xffff || checksum::fold(checksum::add(0, bytes)) != 0xffff {
        return None;
    }
    let Message { kind, rest, quoted } = Message::parse(bytes)?;
    let quote = Ipv4HeaderSlice::from_slice(quoted).ok()?;
    if quote.protocol() != IpNumber::TCP || quote.fragments_offset().value() != 0 {
        return None;
    }
    let kind = match kind {
        (3, 0 | 6 | 11) => PathErrorKind::Soft(SoftError::NetworkUnreachable),
        (3, 2) => PathErrorKind::Soft(SoftError::ProtocolUnreachable),
        (3, 3) => PathErrorKind::Soft(SoftError::PortUnreachable),
        (3, 4) => PathErrorKind::TooBig {
            // RFC 1191 §4: the low half; the high half is unused.
            next_hop_mtu: rest & 0xffff,
            packet_len: quote.total_len().into(),
        },
        (3, 9 | 10 | 13..=15) => PathErrorKind::Soft(SoftError::Prohibited),
        (3, _) => PathErrorKind::Soft(SoftError::HostUnreachable),
        (11, _) => PathErrorKind::Soft(SoftError::TimeExceeded),
        (12, _) => PathErrorKind::Soft(SoftError::ParameterProblem),
        _ => return None,
    };
    let tcp = quoted.get(quote.slice().len()..)?;
    quoted_segment(tcp, mapped(quote.source()), mapped(quote.destination()), kind)
}

fn ipv6(packet: &[u8]) -> Option<(FlowKey, PathError)> {
    let ip = Ipv6HeaderSlice::from_slice(packet).ok()?;
    if ip.next_header() != IpNumber::IPV6_ICMP {
        return None;
    }
    let at = ip.slice().len();
    let bytes = packet.get(at..at + usize::from(ip.payload_length()))?;
    let addresses = checksum::add(checksum::add(0, &ip.source()), &ip.destination());
    let pseudo = addresses + u64::from(IpNumber::IPV6_ICMP.0) + bytes.len() as u64;
    if checksum::fold(checksum::add(pseudo, bytes)) != 0xffff {
        return None;
    }
    let Message { kind, rest, quoted } = Message::parse(bytes)?;
    let quote = Ipv6HeaderSlice::from_slice(quoted).ok()?;
    // Sent packets have no extension headers.
    if quote.next_header() != IpNumber::TCP {
        return None;
    }
    let kind = match kind {
        (1, 0) => PathErrorKind::Soft(SoftError::NetworkUnreachable),
        (1, 1 | 5 | 6) => PathErrorKind::Soft(SoftError::Prohibited),
        (1, 4) => PathErrorKind::Soft(SoftError::PortUnreachable),
        (1, _) => PathErrorKind::Soft(SoftError::HostUnreachable),
        (2, _) => PathErrorKind::TooBig {
            // Only IPv4 routers may omit the MTU, which is 0 then. Here 0 becomes 1, which is below every minimum.
            next_hop_mtu: rest.max(1),
            packet_len: u32::from(quote.payload_length()) + quote.slice().len() as u32,
        },
        (3, _) => PathErrorKind::Soft(SoftError::TimeExceeded),
        (4, _) => PathErrorKind::Soft(SoftError::ParameterProblem),
        _ => return None,
    };
    let tcp = quoted.get(quote.slice().len()..)?;
    quoted_segment(tcp, quote.source(), quote.destination(), kind)
}

fn quoted_segment(
    tcp: &[u8],
    local_address: [u8; 16],
    remote_address: [u8; 16],
    kind: PathErrorKind,
) -> Option<(FlowKey, PathError)> {
    let &[s0, s1, d0, d1, q0, q1, q2, q3] = tcp.first_chunk::<QUOTED_TCP_BYTES>()?;
    let flow = FlowKey {
        local_address,
        remote_address,
        local_port: u16::from_be_bytes([s0, s1]),
        remote_port: u16::from_be_bytes([d0, d1]),
    };
    Some((flow, PathError { seq: SeqNum(u32::from_be_bytes([q0, q1, q2, q3])), kind }))
}
