//! Offsets of IP and TCP headers in a frame, for software segmentation, checksums and corruption.
//!
//! Only a complete TCP segment over IPv4 or IPv6 has a layout. Callers treat any other frame as opaque bytes.
#![forbid(unsafe_code)]

use super::device::ETHERNET_HEADER_BYTES;

/// Protocol number of TCP (RFC 9293 §3.1).
pub(super) const PROTOCOL_TCP: u8 = 6;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;
const VLAN_TAG_BYTES: usize = 4;
/// Stacked VLAN tags that are skipped.
const VLAN_TAGS_MAX: usize = 2;
/// IPv6 extension headers that are skipped (RFC 8200 §4.1 names four that may precede TCP).
const EXTENSION_HEADERS_MAX: usize = 4;
const IPV6_HEADER_BYTES: usize = 40;
const IPV4_HEADER_BYTES_MIN: usize = 20;
const TCP_HEADER_BYTES_MIN: usize = 20;

/// Byte offsets within a frame: `ip < tcp < payload <= end <= frame length`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TcpLayout {
    /// Offset of the IP header.
    pub(super) ip: usize,
    /// True for IPv6.
    pub(super) ipv6: bool,
    /// Offset of the TCP header.
    pub(super) tcp: usize,
    /// Offset of the first byte after the TCP header.
    pub(super) payload: usize,
    /// End of the IP packet. Ethernet padding may follow.
    pub(super) end: usize,
}

impl TcpLayout {
    /// Returns the layout of a frame that contains one complete, unfragmented TCP segment.
    #[inline]
    pub(super) fn of(frame: &[u8]) -> Option<Self> {
        let (ip, ethertype) = network_header(frame)?;
        let (ipv6, tcp, end) = match ethertype {
            ETHERTYPE_IPV4 => ipv4(frame, ip)?,
            ETHERTYPE_IPV6 => ipv6(frame, ip)?,
            _ => return None,
        };
        if end > frame.len() || tcp + TCP_HEADER_BYTES_MIN > end {
            return None;
        }
        let payload = tcp + usize::from(frame[tcp + 12] >> 4) * 4;
        (payload >= tcp + TCP_HEADER_BYTES_MIN && payload <= end).then_some(Self {
            ip,
            ipv6,
            tcp,
            payload,
            end,
        })
    }
}

fn word(frame: &[u8], at: usize) -> Option<u16> {
    let bytes = frame.get(at..at + 2)?;
    Some(u16::from_be_bytes([bytes[0], bytes[1]]))
}

fn network_header(frame: &[u8]) -> Option<(usize, u16)> {
    let mut at = ETHERNET_HEADER_BYTES;
    for _ in 0..=VLAN_TAGS_MAX {
        let ethertype = word(frame, at - 2)?;
        if ethertype != ETHERTYPE_VLAN && ethertype != ETHERTYPE_SERVICE_VLAN {
            return Some((at, ethertype));
        }
        at += VLAN_TAG_BYTES;
    }
    None
}

/// Returns `(false, transport header, end)`.
fn ipv4(frame: &[u8], ip: usize) -> Option<(bool, usize, usize)> {
    let header = frame.get(ip..ip + IPV4_HEADER_BYTES_MIN)?;
    let header_len = usize::from(header[0] & 0x0f) * 4;
    let total_len = usize::from(word(frame, ip + 2)?);
    let fragment = word(frame, ip + 6)? & 0x3fff != 0; // more-fragments flag or an offset
    let well_formed = header[0] >> 4 == 4
        && (IPV4_HEADER_BYTES_MIN..=total_len).contains(&header_len)
        && header[9] == PROTOCOL_TCP
        && !fragment;
    well_formed.then_some((false, ip + header_len, ip + total_len))
}

/// Returns `(true, transport header, end)`.
fn ipv6(frame: &[u8], ip: usize) -> Option<(bool, usize, usize)> {
    let header = frame.get(ip..ip + IPV6_HEADER_BYTES)?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let end = ip + IPV6_HEADER_BYTES + usize::from(word(frame, ip + 4)?);
    let mut next = header[6];
    let mut at = ip + IPV6_HEADER_BYTES;
    for _ in 0..=EXTENSION_HEADERS_MAX {
        match next {
            PROTOCOL_TCP => return Some((true, at, end)),
            // Hop-by-hop, routing, destination options: RFC 8200 §4.3, §4.4, §4.6.
            0 | 43 | 60 => {
                next = *frame.get(at)?;
                at += (usize::from(*frame.get(at + 1)?) + 1) * 8;
            }
            _ => return None,
        }
    }
    None
}
