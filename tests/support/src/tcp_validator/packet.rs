//! Parsed frame with verified checksums.

use std::net::{IpAddr, SocketAddr};

use etherparse::checksum::Sum16BitWords;
use etherparse::{LinkSlice, NetSlice, SlicedPacket, TcpOptionElement, TcpSlice, TransportSlice};

/// Octets of an Ethernet header without a tag.
const ETHERNET_HEADER_BYTES: usize = 14;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// IP header fields except the addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct IpHeader {
    pub(super) ttl: u8,
    pub(super) dscp: u8,
    /// The two ECN bits (RFC 3168 §5).
    pub(super) ecn: u8,
    /// Don't Fragment; true for IPv6, which routers never fragment.
    pub(super) dont_fragment: bool,
    /// Length of the whole packet.
    pub(super) bytes: usize,
}

/// TCP segment with its IP and Ethernet fields.
#[derive(Clone, Debug)]
pub(super) struct Packet<'a> {
    pub(super) source_mac: Mac,
    pub(super) destination_mac: Mac,
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) ip: IpHeader,
    pub(super) seq: u32,
    /// `None` if the ACK flag is not set.
    pub(super) ack: Option<u32>,
    pub(super) syn: bool,
    pub(super) fin: bool,
    pub(super) rst: bool,
    pub(super) urg: bool,
    pub(super) ece: bool,
    pub(super) cwr: bool,
    /// True if a reserved bit is set.
    pub(super) reserved: bool,
    pub(super) window: u16,
    pub(super) mss: Option<u16>,
    pub(super) window_scale: Option<u8>,
    pub(super) sack_permitted: bool,
    pub(super) sack: Vec<(u32, u32)>,
    /// TSval and TSecr.
    pub(super) timestamps: Option<(u32, u32)>,
    pub(super) option_bytes: usize,
    pub(super) payload: &'a [u8],
    /// True if both checksums are correct.
    pub(super) is_intact: bool,
}

impl<'a> Packet<'a> {
    /// Parses a frame. `None` if it is not TCP or is truncated.
    pub(super) fn parse(frame: &'a [u8]) -> Option<Self> {
        let packet = SlicedPacket::from_ethernet(frame).ok()?;
        let Some(LinkSlice::Ethernet2(ethernet)) = packet.link else { return None };
        let TransportSlice::Tcp(tcp) = packet.transport? else { return None };
        let (addresses, ip, is_intact) = network(&packet.net?, &tcp, frame.len())?;
        let mut parsed = Self {
            source_mac: ethernet.source(),
            destination_mac: ethernet.destination(),
            from: SocketAddr::new(addresses[0], tcp.source_port()),
            to: SocketAddr::new(addresses[1], tcp.destination_port()),
            ip,
            seq: tcp.sequence_number(),
            ack: tcp.ack().then(|| tcp.acknowledgment_number()),
            syn: tcp.syn(),
            fin: tcp.fin(),
            rst: tcp.rst(),
            urg: tcp.urg(),
            ece: tcp.ece(),
            cwr: tcp.cwr(),
            reserved: tcp.slice()[12] & 0x0f != 0,
            window: tcp.window_size(),
            mss: None,
            window_scale: None,
            sack_permitted: false,
            sack: Vec::new(),
            timestamps: None,
            option_bytes: tcp.options().len(),
            payload: tcp.payload(),
            is_intact,
        };
        parsed.read_options(&tcp);
        Some(parsed)
    }

    fn read_options(&mut self, tcp: &TcpSlice<'_>) {
        for option in tcp.options_iterator().map_while(Result::ok) {
            match option {
                TcpOptionElement::Noop => {}
                TcpOptionElement::MaximumSegmentSize(mss) => self.mss = Some(mss),
                TcpOptionElement::WindowScale(scale) => self.window_scale = Some(scale),
                TcpOptionElement::SelectiveAcknowledgementPermitted => self.sack_permitted = true,
                TcpOptionElement::SelectiveAcknowledgement(first, others) => {
                    self.sack.push(first);
                    self.sack.extend(others.into_iter().flatten());
                }
                TcpOptionElement::Timestamp(value, echo) => self.timestamps = Some((value, echo)),
            }
        }
    }

    /// SEG.LEN of RFC 9293.
    pub(super) fn sequence_len(&self) -> u64 {
        self.payload.len() as u64 + u64::from(self.syn) + u64::from(self.fin)
    }
}

/// Addresses, header, and true if the checksums of IP and TCP are correct.
fn network(
    net: &NetSlice<'_>,
    tcp: &TcpSlice<'_>,
    frame_bytes: usize,
) -> Option<([IpAddr; 2], IpHeader, bool)> {
    let bytes = frame_bytes - ETHERNET_HEADER_BYTES;
    match net {
        NetSlice::Ipv4(slice) => {
            let header = slice.header();
            let ip = IpHeader {
                ttl: header.ttl(),
                dscp: header.dcp().value(),
                ecn: header.ecn().value(),
                dont_fragment: header.dont_fragment(),
                bytes,
            };
            let sum = tcp.calc_checksum_ipv4(header.source(), header.destination()).ok()?;
            // Summed over the received octets: a parsed header has no field for the reserved flag.
            let header_sum = Sum16BitWords::new().add_slice(header.slice()).ones_complement();
            let is_intact = is_same(sum, tcp.checksum()) && header_sum == 0;
            let addresses = [header.source_addr().into(), header.destination_addr().into()];
            Some((addresses, ip, is_intact))
        }
        NetSlice::Ipv6(slice) => {
            let header = slice.header();
            let ip = IpHeader {
                ttl: header.hop_limit(),
                dscp: header.dscp().value(),
                ecn: header.ecn().value(),
                dont_fragment: true,
                bytes,
            };
            let sum = tcp.calc_checksum_ipv6(header.source(), header.destination()).ok()?;
            let addresses = [header.source_addr().into(), header.destination_addr().into()];
            // A length of 0 indicates a jumbogram, which no stack here accepts.
            let is_intact = is_same(sum, tcp.checksum()) && header.payload_length() != 0;
            Some((addresses, ip, is_intact))
        }
        NetSlice::Arp(_) => None,
    }
}

/// True if two checksums are equal. One's complement has two zeros (RFC 1071 §2).
fn is_same(a: u16, b: u16) -> bool {
    a % 0xffff == b % 0xffff
}
