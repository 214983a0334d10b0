//! Parsing of received frames into a flow and a segment.

use etherparse::{EtherType, IpNumber, Ipv4HeaderSlice, Ipv4Slice, Ipv6HeaderSlice, Ipv6Slice};

use super::{FlowKey, TcpOption, TcpOptions, is_mapped, mapped};
use crate::{
    checksum,
    segment::{Ecn, Flags, SackBlock, Segment, SeqNum, Timestamps},
};

/// Maximum number of SACK blocks in an option list (RFC 2018 §3: 40 bytes of options).
pub const SACK_BLOCKS_MAX: usize = 4;

/// Bytes of a TCP header without options.
const TCP_HEADER_MIN: usize = 20;

/// TCP segment in a frame that the target may process.
#[derive(Clone, Copy, Debug)]
pub struct TcpFrame<'a> {
    /// Flow as seen from this node: the local address is the destination.
    pub flow: FlowKey,
    /// ECN bits of the IP header.
    pub ecn: Ecn,
    /// VLAN tag.
    pub vlan: Vlan,
    tcp: TcpView<'a>,
    pseudo_sum: u64,
}

#[derive(Clone, Copy)]
struct TcpView<'a> {
    bytes: &'a [u8],
    header_len: usize,
}

impl core::fmt::Debug for TcpView<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} bytes, header {}", self.bytes.len(), self.header_len)
    }
}

/// 802.1Q tag of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Vlan {
    /// No tag.
    Untagged,
    /// Tag with this VLAN id, 0..=4095. Id 0 is a priority tag.
    Tagged(u16),
}

impl Vlan {
    /// True if a frame with this tag may belong to a neighbor with `vlan_id` (CH §9.4). Id 0 disables the filter; any
    /// other requires exactly that tag.
    pub fn is_accepted_by(self, vlan_id: u16) -> bool {
        vlan_id == 0 || self == Self::Tagged(vlan_id)
    }
}

/// Packet after the Ethernet header and at most one VLAN tag.
pub(super) struct Network<'a> {
    pub(super) vlan: Vlan,
    pub(super) ether_type: EtherType,
    pub(super) packet: &'a [u8],
}

/// Parses the Ethernet and 802.1Q headers. Frames with a second tag are passed to the host.
pub(super) fn network(frame: &[u8]) -> Option<Network<'_>> {
    let (addresses_and_type, packet) = frame.split_first_chunk::<14>()?;
    let [.., type0, type1] = *addresses_and_type;
    let ether_type = EtherType(u16::from_be_bytes([type0, type1]));
    if ether_type != EtherType::VLAN_TAGGED_FRAME {
        return Some(Network { vlan: Vlan::Untagged, ether_type, packet });
    }
    let (&[tci0, tci1, type0, type1], packet) = packet.split_first_chunk()?;
    Some(Network {
        vlan: Vlan::Tagged(u16::from_be_bytes([tci0, tci1]) & 0xfff),
        ether_type: EtherType(u16::from_be_bytes([type0, type1])),
        packet,
    })
}

/// Finds TCP over plain IP in a frame. `None` if the frame is for the host (CH §9.1).
pub fn classify(frame: &[u8]) -> Option<TcpFrame<'_>> {
    let Network { vlan, ether_type, packet } = network(frame)?;
    match ether_type {
        EtherType::IPV4 => classify_ipv4(packet, vlan),
        EtherType::IPV6 => classify_ipv6(packet, vlan),
        _ => None,
    }
}

/// Reason why [`parse`] finds no TCP segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoSegment {
    /// Fragment of an IP packet.
    Fragment,
    /// The IPv4 header checksum is wrong, or the IPv6 packet claims to be a jumbogram (RFC 2675), which does not fit
    /// into an Ethernet frame.
    BadHeader,
    /// Any other reason, including a malformed TCP header.
    Other,
}

/// Finds TCP in a frame as a host does: IPv4 options and IPv6 extension headers are skipped (RFC 9293 MUST-50). Slower
/// than [`classify`].
///
/// # Errors
/// [`NoSegment`]: no complete TCP segment.
pub fn parse(frame: &[u8]) -> Result<TcpFrame<'_>, NoSegment> {
    let Network { vlan, ether_type, packet } = network(frame).ok_or(NoSegment::Other)?;
    let (payload, ecn, addresses, has_good_header) = match ether_type {
        EtherType::IPV4 => {
            let ip = Ipv4Slice::from_slice(packet).map_err(|_| NoSegment::Other)?;
            let header = ip.header();
            let (local, remote) = (mapped(header.destination()), mapped(header.source()));
            let sum = checksum::fold(checksum::add(0, header.slice()));
            (ip.payload().clone(), header.ecn(), Addresses { local, remote }, sum == 0xffff)
        }
        EtherType::IPV6 => {
            let ip = Ipv6Slice::from_slice(packet).map_err(|_| NoSegment::Other)?;
            let header = ip.header();
            let addresses =
                Addresses::v6(header.destination(), header.source()).ok_or(NoSegment::Other)?;
            // The slice of a jumbogram would extend to the end of the frame.
            let has_length = header.payload_length() != 0;
            (ip.payload().clone(), header.ecn(), addresses, has_length)
        }
        _ => return Err(NoSegment::Other),
    };
    if payload.fragmented {
        return Err(NoSegment::Fragment);
    }
    if payload.ip_number != IpNumber::TCP {
        return Err(NoSegment::Other);
    }
    if !has_good_header {
        return Err(NoSegment::BadHeader);
    }
    // The prefix of a mapped IPv4 address adds 0xffff, which is 0 in one's complement.
    let pseudo = checksum::add(checksum::add(0, &addresses.remote), &addresses.local);
    finish(payload.payload, addresses, Ecn::from_bits(ecn.value()), vlan, pseudo)
        .ok_or(NoSegment::Other)
}

/// Returns the flow of a fragmented TCP segment from its first fragment. Other fragments have no ports. `None` for any
/// other frame.
pub fn classify_fragment(frame: &[u8]) -> Option<FlowKey> {
    /// Bytes of an IPv6 fragment header (RFC 8200 §4.5).
    const FRAGMENT_HEADER: usize = 8;
    let Network { vlan: _, ether_type, packet } = network(frame)?;
    let (addresses, tcp) = match ether_type {
        EtherType::IPV4 => {
            let ip = Ipv4HeaderSlice::from_slice(packet).ok()?;
            let first = ip.more_fragments() && ip.fragments_offset().value() == 0;
            if !first || ip.protocol() != IpNumber::TCP {
                return None;
            }
            let (local, remote) = (mapped(ip.destination()), mapped(ip.source()));
            (Addresses { local, remote }, packet.get(ip.slice().len()..)?)
        }
        EtherType::IPV6 => {
            let ip = Ipv6HeaderSlice::from_slice(packet).ok()?;
            let behind = packet.get(ip.slice().len()..)?;
            let (header, tcp) = behind.split_at_checked(FRAGMENT_HEADER)?;
            let first = u16::from_be_bytes([header[2], header[3]]) == 1;
            let is_tcp = IpNumber(header[0]) == IpNumber::TCP;
            if ip.next_header() != IpNumber::IPV6_FRAGMENTATION_HEADER || !first || !is_tcp {
                return None;
            }
            (Addresses::v6(ip.destination(), ip.source())?, tcp)
        }
        _ => return None,
    };
    let &[remote0, remote1, local0, local1] = tcp.first_chunk()?;
    Some(FlowKey {
        local_address: addresses.local,
        remote_address: addresses.remote,
        local_port: u16::from_be_bytes([local0, local1]),
        remote_port: u16::from_be_bytes([remote0, remote1]),
    })
}

/// Called for every frame, so the fields are read in place. A test compares the result with `etherparse`.
fn classify_ipv4(packet: &[u8], vlan: Vlan) -> Option<TcpFrame<'_>> {
    /// Version 4 and a header of five words, without options.
    const VERSION_AND_LENGTH: u8 = 0x45;
    /// More-fragments flag and fragment offset.
    const FRAGMENT: u16 = 0x3fff;
    let header = packet.first_chunk::<20>()?;
    let [version, tos, len0, len1, _, _, fragment0, fragment1, _, protocol, _, _, rest @ ..] =
        *header;
    let fragment = u16::from_be_bytes([fragment0, fragment1]) & FRAGMENT;
    let is_tcp = IpNumber(protocol) == IpNumber::TCP;
    if version != VERSION_AND_LENGTH || fragment != 0 || !is_tcp {
        return None;
    }
    if checksum::fold(checksum::add_header(0, header)) != 0xffff {
        return None;
    }
    // Bytes after total_len are Ethernet padding.
    let total_len = usize::from(u16::from_be_bytes([len0, len1]));
    let tcp_bytes = packet.get(header.len()..total_len)?;
    let pseudo = checksum::add_header(0, &rest);
    let [r0, r1, r2, r3, l0, l1, l2, l3] = rest;
    let flow = Addresses { local: mapped([l0, l1, l2, l3]), remote: mapped([r0, r1, r2, r3]) };
    finish(tcp_bytes, flow, Ecn::from_bits(tos & 3), vlan, pseudo)
}

fn classify_ipv6(packet: &[u8], vlan: Vlan) -> Option<TcpFrame<'_>> {
    let (header, behind) = packet.split_first_chunk::<40>()?;
    let [version, class, _, _, len0, len1, next_header, _, addresses @ ..] = header;
    if version >> 4 != 6 || IpNumber(*next_header) != IpNumber::TCP {
        return None;
    }
    let tcp_bytes = behind.get(..usize::from(u16::from_be_bytes([*len0, *len1])))?;
    let pseudo = checksum::add_header(0, addresses);
    let (remote, local) = addresses.split_first_chunk::<16>()?;
    let flow = Addresses::v6(*local.first_chunk()?, *remote)?;
    finish(tcp_bytes, flow, Ecn::from_bits(class >> 4 & 3), vlan, pseudo)
}

struct Addresses {
    local: [u8; 16],
    remote: [u8; 16],
}

impl Addresses {
    /// Addresses of an IPv6 packet. `None` if one is IPv4-mapped. A mapped address is not allowed on the wire (RFC 4291
    /// §2.5.5.2), and would match an IPv4 connection.
    fn v6(local: [u8; 16], remote: [u8; 16]) -> Option<Self> {
        (!is_mapped(&local) && !is_mapped(&remote)).then_some(Self { local, remote })
    }
}

fn finish(
    tcp_bytes: &[u8],
    addresses: Addresses,
    ecn: Ecn,
    vlan: Vlan,
    pseudo: u64,
) -> Option<TcpFrame<'_>> {
    let &[remote0, remote1, local0, local1, .., words, _, _, _, _, _, _, _] =
        tcp_bytes.first_chunk::<TCP_HEADER_MIN>()?;
    let header_len = usize::from(words >> 4) * 4;
    if header_len < TCP_HEADER_MIN || header_len > tcp_bytes.len() {
        return None;
    }
    let flow = FlowKey {
        local_address: addresses.local,
        remote_address: addresses.remote,
        local_port: u16::from_be_bytes([local0, local1]),
        remote_port: u16::from_be_bytes([remote0, remote1]),
    };
    let pseudo_sum = pseudo + u64::from(IpNumber::TCP.0) + tcp_bytes.len() as u64;
    let view = TcpView { bytes: tcp_bytes, header_len };
    Some(TcpFrame { flow, ecn, vlan, tcp: view, pseudo_sum })
}

impl<'a> TcpFrame<'a> {
    /// True if the TCP checksum is correct.
    pub fn checksum_is_valid(&self) -> bool {
        checksum::fold(checksum::add(self.pseudo_sum, self.tcp.bytes)) == 0xffff
    }

    /// True if the segment was received over IPv6.
    pub fn is_ipv6(&self) -> bool {
        self.flow.is_ipv6()
    }

    /// Octets of the IP header (without options) and the TCP header, and octets of the payload.
    pub fn octets(&self) -> (usize, usize) {
        let ip = if self.is_ipv6() { 40 } else { 20 };
        (ip + self.tcp.header_len, self.tcp.bytes.len() - self.tcp.header_len)
    }

    /// Returns the TCP header, including options.
    pub fn header(&self) -> &'a [u8] {
        &self.tcp.bytes[..self.tcp.header_len]
    }

    /// Returns the options of the TCP header.
    pub fn options(&self) -> TcpOptions<'a> {
        TcpOptions::new(&self.header()[TCP_HEADER_MIN..])
    }

    /// Returns the payload.
    pub fn payload(&self) -> &'a [u8] {
        &self.tcp.bytes[self.tcp.header_len..]
    }

    /// Returns the source of the segment.
    #[cfg(test)]
    pub(crate) fn remote(&self) -> core::net::SocketAddr {
        self.flow.remote()
    }

    /// Returns the segment. Its SACK blocks are written to `sack`.
    #[inline]
    pub fn segment<'s>(
        &self,
        gso_size: usize,
        sack: &'s mut [SackBlock; SACK_BLOCKS_MAX],
    ) -> Segment<'s>
    where
        'a: 's,
    {
        let bytes = self.tcp.bytes;
        let word = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let options = Options::parse(&bytes[20..self.tcp.header_len], sack);
        Segment {
            seq: SeqNum(word(4)),
            ack: SeqNum(word(8)),
            flags: Flags(bytes[13]),
            window: u16::from_be_bytes([bytes[14], bytes[15]]),
            timestamps: options.timestamps,
            sack: &sack[..options.sack_count],
            payload: &bytes[self.tcp.header_len..],
            gso_size,
            ecn: self.ecn,
        }
    }
}

struct Options {
    timestamps: Option<Timestamps>,
    sack_count: usize,
}

impl Options {
    #[inline]
    fn parse(bytes: &[u8], sack: &mut [SackBlock; SACK_BLOCKS_MAX]) -> Self {
        // Nearly every segment has exactly these options: NOP, NOP, timestamps (RFC 7323 appendix A).
        if let [1, 1, 8, 10, v0, v1, v2, v3, e0, e1, e2, e3] = *bytes {
            let timestamps = Timestamps {
                value: u32::from_be_bytes([v0, v1, v2, v3]),
                echo: u32::from_be_bytes([e0, e1, e2, e3]),
            };
            return Self { timestamps: Some(timestamps), sack_count: 0 };
        }
        Self::parse_any(bytes, sack)
    }

    /// Parses options up to the first one of illegal length (RFC 9293 MUST-7).
    fn parse_any(bytes: &[u8], sack: &mut [SackBlock; SACK_BLOCKS_MAX]) -> Self {
        let mut options = Self { timestamps: None, sack_count: 0 };
        for option in TcpOptions::new(bytes).map_while(Result::ok) {
            match option {
                TcpOption::Timestamps(timestamps) => options.timestamps = Some(timestamps),
                TcpOption::Sack(blocks) => {
                    options.sack_count = 0;
                    for (slot, block) in sack.iter_mut().zip(blocks.iter()) {
                        *slot = block;
                        options.sack_count += 1;
                    }
                }
                _ => {}
            }
        }
        options
    }
}
