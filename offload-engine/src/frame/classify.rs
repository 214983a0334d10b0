//! From a received frame to a flow and a parsed segment.

use core::net::SocketAddr;

use etherparse::{EtherType, Ethernet2Slice, IpNumber, Ipv4HeaderSlice, Ipv6HeaderSlice, TcpSlice};

use super::{FlowKey, TcpOption, TcpOptions, checksum, mapped};
use crate::tcp::{Flags, SackBlock, Segment, SeqNum, Timestamps};

/// Most SACK blocks an option list can hold (RFC 2018 s3: 40 bytes of options).
pub const SACK_BLOCKS_MAX: usize = 4;

/// A TCP segment in a frame that the target may process.
#[derive(Clone, Copy, Debug)]
pub struct TcpFrame<'a> {
    /// Its flow, as seen from this node: local is the destination.
    pub flow: FlowKey,
    /// The two ECN bits of the IP header.
    pub ecn: u8,
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

/// Finds TCP over plain IP in a frame. `None`: the frame is the host's (CH 9.1).
pub fn classify(frame: &[u8]) -> Option<TcpFrame<'_>> {
    let ethernet = Ethernet2Slice::from_slice_without_fcs(frame).ok()?;
    let packet = ethernet.payload_slice();
    match ethernet.ether_type() {
        EtherType::IPV4 => classify_ipv4(packet),
        EtherType::IPV6 => classify_ipv6(packet),
        _ => None,
    }
}

fn classify_ipv4(packet: &[u8]) -> Option<TcpFrame<'_>> {
    let ip = Ipv4HeaderSlice::from_slice(packet).ok()?;
    if ip.ihl() != 5 || ip.is_fragmenting_payload() || ip.protocol() != IpNumber::TCP {
        return None;
    }
    if checksum::fold(checksum::add(0, ip.slice())) != 0xffff {
        return None;
    }
    // What lies behind total_len is Ethernet padding.
    let tcp_bytes = packet.get(ip.slice().len()..usize::from(ip.total_len()))?;
    let pseudo = checksum::add(checksum::add(0, &ip.source()), &ip.destination());
    finish(tcp_bytes, mapped(ip.destination()), mapped(ip.source()), ip.ecn().value(), pseudo)
}

fn classify_ipv6(packet: &[u8]) -> Option<TcpFrame<'_>> {
    let ip = Ipv6HeaderSlice::from_slice(packet).ok()?;
    if ip.next_header() != IpNumber::TCP {
        return None;
    }
    let header_len = ip.slice().len();
    let tcp_bytes = packet.get(header_len..header_len + usize::from(ip.payload_length()))?;
    let pseudo = checksum::add(checksum::add(0, &ip.source()), &ip.destination());
    finish(tcp_bytes, ip.destination(), ip.source(), ip.ecn().value(), pseudo)
}

fn finish(
    tcp_bytes: &[u8],
    local_address: [u8; 16],
    remote_address: [u8; 16],
    ecn: u8,
    pseudo: u64,
) -> Option<TcpFrame<'_>> {
    let tcp = TcpSlice::from_slice(tcp_bytes).ok()?;
    let flow = FlowKey {
        local_address,
        remote_address,
        local_port: tcp.destination_port(),
        remote_port: tcp.source_port(),
    };
    let pseudo_sum = pseudo + u64::from(IpNumber::TCP.0) + tcp_bytes.len() as u64;
    let view = TcpView { bytes: tcp_bytes, header_len: tcp.header_slice().len() };
    Some(TcpFrame { flow, ecn, tcp: view, pseudo_sum })
}

impl<'a> TcpFrame<'a> {
    /// Whether the TCP checksum is right.
    pub fn checksum_is_valid(&self) -> bool {
        checksum::fold(checksum::add(self.pseudo_sum, self.tcp.bytes)) == 0xffff
    }

    /// Where the segment came from.
    pub fn remote(&self) -> SocketAddr {
        self.flow.remote()
    }

    /// The segment. `sack` is where its SACK blocks are put.
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
        }
    }
}

struct Options {
    timestamps: Option<Timestamps>,
    sack_count: usize,
}

impl Options {
    fn parse(bytes: &[u8], sack: &mut [SackBlock; SACK_BLOCKS_MAX]) -> Self {
        // Nearly every segment has exactly this: NOP, NOP, timestamps (RFC 7323 appendix A).
        if let [1, 1, 8, 10, v0, v1, v2, v3, e0, e1, e2, e3] = *bytes {
            let timestamps = Timestamps {
                value: u32::from_be_bytes([v0, v1, v2, v3]),
                echo: u32::from_be_bytes([e0, e1, e2, e3]),
            };
            return Self { timestamps: Some(timestamps), sack_count: 0 };
        }
        Self::parse_any(bytes, sack)
    }

    /// Options up to the first of illegal length (RFC 9293 MUST-7).
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
