//! Datagrams between queue pairs of unreliable datagram service, in UDP.
//!
//! One datagram is one message. Its header, in network byte order:
//!
//! | octets | field |
//! |---|---|
//! | 6 | magic |
//! | 1 | version |
//! | 1 | flags: 1 immediate data, 2 solicited event; other bits 0 |
//! | 4, 4 | numbers of the receiving and of the sending queue pair, 24 bits |
//! | 4 | key of the receiving queue pair (Q_Key) |
//! | 4 | immediate data, as the sender has them in memory; 0 without the flag |
//!
//! The header and those of UDP and IPv6 take 72 octets. A payload of the largest path MTU of InfiniBand that is 80
//! octets below the MTU of an interface therefore fits into one packet.

use core::net::{IpAddr, Ipv6Addr};

/// First octets of a datagram.
const MAGIC: [u8; 6] = *b"flueud";

/// Version of this format.
const VERSION: u8 = 1;

/// Flag: the immediate data are valid.
const IMMEDIATE: u8 = 1;
/// Flag: the receive is a solicited event.
const SOLICITED: u8 = 2;

/// Largest number of a queue pair.
const NUMBER_MAX: u32 = 0xff_ffff;

/// Octets of the header.
pub const HEADER_OCTETS: usize = 24;

/// Octets of the global route header that precedes a payload in its receive.
pub const ROUTE_HEADER_OCTETS: usize = 40;

/// Octets of an IPv4 header without options.
const IPV4_OCTETS: usize = 20;
/// Octets of a UDP header.
const UDP_OCTETS: usize = 8;
/// UDP in the protocol of IPv4 and the next header of IPv6.
const UDP: u8 = 17;
/// Hop limit in a global route header. The socket does not report that of the packet.
const HOP_LIMIT: u8 = 64;

/// Header of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatagramHeader {
    /// Number of the receiving queue pair.
    pub destination: u32,
    /// Number of the sending queue pair.
    pub source: u32,
    /// Key of the receiving queue pair.
    pub key: u32,
    /// Immediate data, as the sender has them in memory.
    pub immediate: Option<[u8; 4]>,
    /// True if the receive is a solicited event.
    pub solicited: bool,
}

impl DatagramHeader {
    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_OCTETS] {
        let Self { destination, source, key, immediate, solicited } = *self;
        let flags = if immediate.is_some() { IMMEDIATE } else { 0 };
        let flags = flags | if solicited { SOLICITED } else { 0 };
        let mut octets = [0; HEADER_OCTETS];
        octets[..6].copy_from_slice(&MAGIC);
        (octets[6], octets[7]) = (VERSION, flags);
        octets[8..12].copy_from_slice(&destination.to_be_bytes());
        octets[12..16].copy_from_slice(&source.to_be_bytes());
        octets[16..20].copy_from_slice(&key.to_be_bytes());
        octets[20..].copy_from_slice(&immediate.unwrap_or_default());
        octets
    }

    /// Parses a datagram, and returns its header and payload. `None`: too short, of another format or version, unknown
    /// flags, a number of more than 24 bits, or immediate data without their flag.
    #[must_use]
    pub fn parse(datagram: &[u8]) -> Option<(Self, &[u8])> {
        let (header, payload) = datagram.split_first_chunk::<HEADER_OCTETS>()?;
        let word = |at: usize| {
            let octets = header[at..].first_chunk().copied();
            u32::from_be_bytes(octets.unwrap_or_default())
        };
        let [.., a, b, c, d] = *header;
        let (flags, immediate) = (header[7], [a, b, c, d]);
        let is_known = header[..6] == MAGIC
            && header[6] == VERSION
            && flags & !(IMMEDIATE | SOLICITED) == 0
            && word(8) <= NUMBER_MAX
            && word(12) <= NUMBER_MAX
            && (flags & IMMEDIATE != 0 || immediate == [0; 4]);
        let parsed = Self {
            destination: word(8),
            source: word(12),
            key: word(16),
            immediate: (flags & IMMEDIATE != 0).then_some(immediate),
            solicited: flags & SOLICITED != 0,
        };
        is_known.then_some((parsed, payload))
    }
}

/// Returns the checksum of an IPv4 header whose checksum field is 0; or 0 for a header with a right checksum.
#[must_use]
pub fn ipv4_checksum(header: &[u8]) -> u16 {
    let words = header.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word)));
    let mut sum: u32 = words.sum();
    // The first carry may cause another one.
    while sum > u32::from(u16::MAX) {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Returns the global route header of a datagram with these addresses and octets of payload: a header of IPv6, or zeros
/// and a header of IPv4. Addresses of different families are both written as those of IPv6.
#[must_use]
pub fn route_header(
    source: IpAddr,
    destination: IpAddr,
    payload_octets: usize,
) -> [u8; ROUTE_HEADER_OCTETS] {
    let octets = (UDP_OCTETS + HEADER_OCTETS + payload_octets).min(usize::from(u16::MAX)) as u16;
    let mut header = [0; ROUTE_HEADER_OCTETS];
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let v4 = &mut header[ROUTE_HEADER_OCTETS - IPV4_OCTETS..];
            v4[0] = 0x45;
            v4[2..4].copy_from_slice(&octets.saturating_add(IPV4_OCTETS as u16).to_be_bytes());
            (v4[8], v4[9]) = (HOP_LIMIT, UDP);
            v4[12..16].copy_from_slice(&source.octets());
            v4[16..].copy_from_slice(&destination.octets());
            let checksum = ipv4_checksum(v4);
            v4[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        (source, destination) => {
            let v6 = |ip: IpAddr| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            let [source, destination] =
                [source, destination].map(v6).map(|ip: Ipv6Addr| ip.octets());
            header[0] = 0x60;
            header[4..6].copy_from_slice(&octets.to_be_bytes());
            (header[6], header[7]) = (UDP, HOP_LIMIT);
            header[8..24].copy_from_slice(&source);
            header[24..].copy_from_slice(&destination);
        }
    }
    header
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const HEADER: DatagramHeader = DatagramHeader {
        destination: 0x01_2345,
        source: 0x65_4321,
        key: 0x1111_1111,
        immediate: Some([1, 2, 3, 4]),
        solicited: true,
    };

    #[test]
    fn fields_have_their_places() {
        let octets = HEADER.encode();
        let expected =
            b"flueud\x01\x03\0\x01\x23\x45\0\x65\x43\x21\x11\x11\x11\x11\x01\x02\x03\x04";
        assert_eq!(octets[..], expected[..]);
        let plain = DatagramHeader { immediate: None, solicited: false, ..HEADER };
        assert_eq!(plain.encode()[7], 0);
        assert_eq!(plain.encode()[20..], [0; 4]);
    }

    proptest! {
        // Any octets are refused, or are a header whose encoding is the same, and the rest.
        #[test]
        fn any_octets_are_parsed_or_refused(
            octets in prop::collection::vec(any::<u8>(), 0..3 * HEADER_OCTETS),
            is_ours in any::<bool>(),
        ) {
            let mut octets = octets;
            if is_ours && octets.len() >= HEADER_OCTETS {
                octets[..7].copy_from_slice(b"flueud\x01");
                octets[7] &= 3;
                (octets[8], octets[12]) = (0, 0);
            }
            match DatagramHeader::parse(&octets) {
                Some((header, payload)) => {
                    prop_assert_eq!([&header.encode()[..], payload].concat(), octets);
                }
                None => prop_assert!(!is_ours || octets.len() < HEADER_OCTETS || octets[7] & 1 == 0),
            }
        }

        // The sum of some headers has a second carry.
        #[test]
        fn any_ipv4_route_header_has_a_right_checksum(
            source in any::<[u8; 4]>(),
            destination in any::<[u8; 4]>(),
            octets in 0..4096_usize,
        ) {
            let header = route_header(source.into(), destination.into(), octets);
            prop_assert_eq!(ipv4_checksum(&header[20..]), 0);
        }
    }

    #[test]
    fn second_carry_is_added() {
        // 0xffff + 0xffff + 1 is 0x1ffff, and its first carry has another one.
        let mut header = [0; 20];
        header[..2].copy_from_slice(&[0xff, 0xff]);
        header[2..4].copy_from_slice(&[0xff, 0xff]);
        header[4..6].copy_from_slice(&[0, 1]);
        assert_eq!(ipv4_checksum(&header), !1);
    }

    #[test]
    fn malformed_datagrams_are_refused() {
        let datagram = [&HEADER.encode()[..], b"payload"].concat();
        assert_eq!(DatagramHeader::parse(&datagram), Some((HEADER, &b"payload"[..])));
        for length in 0..HEADER_OCTETS {
            assert_eq!(DatagramHeader::parse(&datagram[..length]), None, "{length} octets");
        }
        // Magic, version, flags, and the highest octets of both numbers.
        let changes = (0..7).map(|at| (at, 0x80)).chain([(7, 4), (7, 1), (8, 1), (12, 1)]);
        for (at, bits) in changes.collect::<Vec<_>>() {
            let mut changed = datagram.clone();
            changed[at] ^= bits;
            assert_eq!(DatagramHeader::parse(&changed), None, "octet {at}");
        }
    }

    #[test]
    fn ipv4_route_header_has_a_right_checksum() {
        let header = route_header([10, 0, 0, 2].into(), [10, 0, 0, 1].into(), 100);
        assert_eq!(header[..20], [0; 20]);
        assert_eq!(header[20..32], [0x45, 0, 0, 152, 0, 0, 0, 0, 64, 17, header[30], header[31]]);
        assert_eq!(header[32..], [10, 0, 0, 2, 10, 0, 0, 1]);
        assert_eq!(ipv4_checksum(&header[20..]), 0);
    }

    #[test]
    fn ipv6_route_header_fills_all_octets() {
        let header = route_header("fd00::2".parse().unwrap(), "fd00::1".parse().unwrap(), 9);
        assert_eq!(header[..8], [0x60, 0, 0, 0, 0, 41, 17, 64]);
        assert_eq!((header[8], header[23], header[24], header[39]), (0xfd, 2, 0xfd, 1));
        // The length is that of the field at most.
        let long = route_header("::2".parse().unwrap(), "::1".parse().unwrap(), 1 << 20);
        assert_eq!(long[4..6], [0xff; 2]);
        let long = route_header([1; 4].into(), [2; 4].into(), usize::from(u16::MAX));
        assert_eq!(long[22..24], [0xff; 2]);
    }
}
