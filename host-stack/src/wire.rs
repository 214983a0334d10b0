//! TCP segment in an Ethernet frame, parsed once, and frames built by the host.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use etherparse::{
    EtherType, IpHeaders, NetHeaders, PacketBuilder, PacketBuilderStep, PacketHeaders, TcpHeader,
    TcpOptionElement,
};
use offload_engine::{
    checksum,
    frame::{self, FlowKey, NoSegment, SACK_BLOCKS_MAX, TcpFrame, TcpOption},
    state::{ConnectionState, MacAddress, TcpConst},
    tcp::{self, Flags, SackBlock, SeqNum, Timestamps},
};

/// Options of a SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SynOptions {
    /// Maximum segment size; `None`: absent, or 0, which counts as absent.
    pub(crate) mss: Option<u16>,
    /// Window scale, 0..=14 (RFC 7323 §2.3: a larger one counts as 14).
    pub(crate) window_scale: Option<u8>,
    /// SACK permitted.
    pub(crate) sack: bool,
}

/// Bytes of an Ethernet header.
const ETHERNET_HEADER_BYTES: usize = 14;

/// Bytes of a TCP header without options.
const TCP_HEADER_BYTES_MIN: usize = 20;

/// Largest window scale (RFC 7323 §2.3).
pub(crate) const WINDOW_SCALE_MAX: u8 = 14;

/// TCP segment: the fields of its frame that the host reads or changes.
#[derive(Clone, Debug)]
pub(crate) struct Segment<'a> {
    pub(crate) source_mac: MacAddress,
    pub(crate) destination_mac: MacAddress,
    /// Parsed frame: flow of a received segment, ECN bits, payload, checksum.
    pub(crate) frame: TcpFrame<'a>,
    pub(crate) seq: SeqNum,
    pub(crate) ack: SeqNum,
    pub(crate) flags: Flags,
    pub(crate) window: u16,
    pub(crate) syn_options: SynOptions,
    pub(crate) timestamps: Option<Timestamps>,
    pub(crate) payload_len: u32,
    /// Offset of the TCP header in the frame.
    pub(crate) tcp_at: usize,
    /// True if no option has an illegal length: smoltcp drops it otherwise.
    pub(crate) is_well_formed: bool,
}

/// The flags by which a SYN offers ECN (RFC 3168 §6.1.1).
pub(crate) const ECN_OFFER: Flags = Flags(Flags::ECE.0 | Flags::CWR.0);

/// Adds flags to the TCP header at `tcp_at` of a frame with a valid checksum, and updates the checksum (RFC 1624
/// equation 3).
pub(crate) fn add_flags(frame: &mut [u8], tcp_at: usize, flags: Flags) {
    let Some(tcp) = frame.get_mut(tcp_at..tcp_at + TCP_HEADER_BYTES_MIN) else { return };
    let before = u16::from_be_bytes([tcp[12], tcp[13]]);
    let after = before | u16::from(flags.0);
    let checksum = u16::from_be_bytes([tcp[16], tcp[17]]);
    let sum = u64::from(!checksum) + u64::from(!before) + u64::from(after);
    tcp[13] |= flags.0;
    tcp[16..18].copy_from_slice(&checksum::finish(sum).to_be_bytes());
}

/// Returns `frame` with the sequence number, FIN, ECE and payload length of `segment`.
pub(crate) fn rewritten(frame: &[u8], segment: &Segment<'_>) -> Option<Vec<u8>> {
    let headers = PacketHeaders::from_ethernet_slice(frame).ok()?;
    let ip = match headers.net? {
        NetHeaders::Ipv4(header, extensions) => IpHeaders::Ipv4(header, extensions),
        NetHeaders::Ipv6(header, extensions) => IpHeaders::Ipv6(header, extensions),
        NetHeaders::Arp(_) => return None,
    };
    let mut tcp = headers.transport?.tcp()?;
    tcp.sequence_number = segment.seq.0;
    (tcp.fin, tcp.ece) = (segment.flags.contains(Flags::FIN), segment.flags.contains(Flags::ECE));
    let payload = headers.payload.slice().get(..segment.payload_len as usize)?;
    let builder = PacketBuilder::ethernet2(segment.source_mac.0, segment.destination_mac.0);
    write(builder.ip(ip).tcp_header(tcp), payload)
}

/// Overwrites the window of the segment at `tcp_at` of a frame for smoltcp, which does not verify its checksum.
pub(crate) fn set_window(frame: &mut [u8], tcp_at: usize, window: u16) {
    if let Some(field) = frame.get_mut(tcp_at + 14..tcp_at + 16) {
        field.copy_from_slice(&window.to_be_bytes());
    }
}

/// Class of a frame for the host.
#[derive(Clone, Debug)]
pub(crate) enum Frame<'a> {
    /// Complete TCP segment.
    Tcp(Segment<'a>),
    /// Fragment of an IP packet. smoltcp is built without reassembly and would process a first fragment as the whole
    /// packet. RFC 9293 connections with path MTU discovery do not need fragments.
    Fragment,
    /// TCP after a bad IP header, where smoltcp finds no segment.
    BadHeader,
    /// Any other frame, including malformed TCP, left to smoltcp.
    Other,
}

/// Parses a frame. The host does not use VLANs: smoltcp drops tagged frames.
pub(crate) fn parse(frame: &[u8]) -> Frame<'_> {
    match frame::parse(frame) {
        _ if frame.get(12..14) == Some(&EtherType::VLAN_TAGGED_FRAME.0.to_be_bytes()) => {
            Frame::Other
        }
        Ok(tcp) => Frame::Tcp(Segment::new(frame, tcp)),
        Err(NoSegment::Fragment) => Frame::Fragment,
        Err(NoSegment::BadHeader) => Frame::BadHeader,
        Err(NoSegment::Other) => Frame::Other,
    }
}

impl<'a> Segment<'a> {
    fn new(data: &[u8], frame: TcpFrame<'a>) -> Self {
        let mac = |at: usize| MacAddress(core::array::from_fn(|index| data[at + index]));
        let mut sack = [SackBlock { start: SeqNum(0), end: SeqNum(0) }; SACK_BLOCKS_MAX];
        let tcp::Segment { seq, ack, flags, window, timestamps, payload, .. } =
            frame.segment(0, &mut sack);
        let mut syn_options = SynOptions::default();
        let mut is_well_formed = true;
        for option in frame.options() {
            match option {
                Ok(TcpOption::Mss(mss)) => syn_options.mss = Some(mss).filter(|mss| *mss != 0),
                Ok(TcpOption::WindowScale(scale)) => {
                    syn_options.window_scale = Some(scale.min(WINDOW_SCALE_MAX));
                }
                Ok(TcpOption::SackPermitted) => syn_options.sack = true,
                Ok(TcpOption::Timestamps(_) | TcpOption::Sack(_) | TcpOption::Unknown(_)) => {}
                Err(_) => is_well_formed = false,
            }
        }
        Self {
            source_mac: mac(6),
            destination_mac: mac(0),
            frame,
            seq,
            ack,
            flags,
            window,
            syn_options,
            timestamps,
            payload_len: payload.len() as u32,
            // Both are slices of one buffer.
            tcp_at: frame.header().as_ptr().addr() - data.as_ptr().addr(),
            is_well_formed,
        }
    }

    /// 4-tuple of a received frame.
    pub(crate) const fn received_on(&self) -> FlowKey {
        self.frame.flow
    }

    /// 4-tuple of a sent frame.
    pub(crate) const fn sent_on(&self) -> FlowKey {
        self.frame.flow.reversed()
    }

    /// Addresses of another frame in the same direction.
    pub(crate) fn way(&self) -> FrameAddresses {
        let macs = (self.source_mac, self.destination_mac);
        FrameAddresses { macs, from: self.frame.flow.remote(), to: self.frame.flow.local() }
    }

    /// True if it offers ECN, provided that it is a SYN without ACK (RFC 3168 §6.1.1: an ECN-setup SYN).
    pub(crate) const fn offers_ecn(&self) -> bool {
        self.flags.contains(ECN_OFFER)
    }

    /// True if it accepts ECN, provided that it is a SYN with ACK (an ECN-setup SYN-ACK). ECE without CWR: a peer that
    /// mirrors the flags of a SYN does not support ECN.
    pub(crate) const fn accepts_ecn(&self) -> bool {
        self.flags.contains(Flags::ECE) && !self.flags.contains(Flags::CWR)
    }

    /// True if it requests a new connection: SYN without ACK.
    pub(crate) const fn is_open_request(&self) -> bool {
        self.flags.contains(Flags::SYN)
            && !self.flags.contains(Flags::ACK)
            && !self.flags.contains(Flags::RST)
    }

    /// True if RST is set.
    pub(crate) const fn is_reset(&self) -> bool {
        self.flags.contains(Flags::RST)
    }

    /// Number of sequence numbers it occupies: payload, SYN, FIN.
    pub(crate) fn sequence_len(&self) -> u32 {
        self.payload_len
            + u32::from(self.flags.contains(Flags::SYN))
            + u32::from(self.flags.contains(Flags::FIN))
    }
}

/// Segment without data at `seq`, with the addresses, acknowledgment, window and timestamps of `segment`.
pub(crate) fn empty_frame(segment: &Segment<'_>, seq: SeqNum, fin: bool) -> Option<Vec<u8>> {
    let &Segment { ack, window, timestamps, .. } = segment;
    ack_frame(
        segment.way(),
        u8::MAX,
        &Acknowledgment { seq, ack, window, timestamps, ece: false, fin },
    )
}

/// Fields of a bare acknowledgment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledgment {
    pub(crate) seq: SeqNum,
    pub(crate) ack: SeqNum,
    pub(crate) window: u16,
    /// Timestamps, if they were negotiated.
    pub(crate) timestamps: Option<Timestamps>,
    /// ECN-Echo.
    pub(crate) ece: bool,
    pub(crate) fin: bool,
}

/// SYN or SYN-ACK.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Syn {
    pub(crate) seq: SeqNum,
    /// Acknowledgment number of a SYN-ACK.
    pub(crate) ack: Option<SeqNum>,
    /// Window in bytes: the window of a SYN is never scaled (RFC 7323 §2.2).
    pub(crate) window: u16,
    pub(crate) options: SynOptions,
    pub(crate) timestamps: Option<Timestamps>,
    /// True if it offers or accepts ECN.
    pub(crate) ecn: bool,
}

/// Addresses of a frame built by the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameAddresses {
    pub(crate) macs: (MacAddress, MacAddress),
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
}

/// Builds a bare acknowledgment, or a FIN.
pub(crate) fn ack_frame(way: FrameAddresses, ttl: u8, ack: &Acknowledgment) -> Option<Vec<u8>> {
    data_frame(way, ttl, ack, &[])
}

/// Builds a SYN or SYN-ACK, with the option order of Linux.
pub(crate) fn syn_frame(way: FrameAddresses, ttl: u8, syn: &Syn) -> Option<Vec<u8>> {
    let FrameAddresses { macs, from, to } = way;
    let &Syn { seq, ack, window, options, timestamps, ecn } = syn;
    let builder =
        packet(macs, (from.ip(), to.ip()), ttl)?.tcp(from.port(), to.port(), seq.0, window).syn();
    let builder = match (ack, ecn) {
        (Some(ack), true) => builder.ack(ack.0).ece(),
        (Some(ack), false) => builder.ack(ack.0),
        (None, true) => builder.ece().cwr(),
        (None, false) => builder,
    };
    let stamp = timestamps.map(|it| TcpOptionElement::Timestamp(it.value, it.echo));
    let elements = [
        options.mss.map(TcpOptionElement::MaximumSegmentSize),
        options.sack.then_some(TcpOptionElement::SelectiveAcknowledgementPermitted),
        stamp,
        options.window_scale.map(|_| TcpOptionElement::Noop),
        options.window_scale.map(TcpOptionElement::WindowScale),
    ];
    let elements = elements.into_iter().flatten().collect::<Vec<_>>();
    write(builder.options(&elements).ok()?, &[])
}

/// Builds a bare RST at `seq`.
pub(crate) fn bare_reset(
    way: FrameAddresses,
    ttl: u8,
    (seq, ack): (SeqNum, SeqNum),
) -> Option<Vec<u8>> {
    let FrameAddresses { macs, from, to } = way;
    let builder = packet(macs, (from.ip(), to.ip()), ttl)?
        .tcp(from.port(), to.port(), seq.0, 0)
        .rst()
        .ack(ack.0);
    write(builder, &[])
}

/// Builds an acknowledgment with data.
pub(crate) fn data_frame(
    way: FrameAddresses,
    ttl: u8,
    ack: &Acknowledgment,
    payload: &[u8],
) -> Option<Vec<u8>> {
    let FrameAddresses { macs, from, to } = way;
    let builder = packet(macs, (from.ip(), to.ip()), ttl)?
        .tcp(from.port(), to.port(), ack.seq.0, ack.window)
        .ack(ack.ack.0);
    let builder = if ack.fin { builder.fin() } else { builder };
    let builder = if ack.ece { builder.ece() } else { builder };
    write(stamped(builder, ack.timestamps)?, payload)
}

/// Builds an RST for a connection that could not be continued: at SND.NXT, which the peer accepts (RFC 5961 §3.2).
pub(crate) fn reset_frame(state: &ConnectionState, source_mac: MacAddress) -> Option<Vec<u8>> {
    let tcp = &state.tcp;
    let path = &state.path.constant;
    let ip = packet(
        (source_mac, state.neighbor.cached.dl_destination_address),
        (path.source_address, path.destination_address),
        tcp.cached.ttl_or_hop_limit,
    )?;
    let TcpConst { local_port, remote_port, .. } = tcp.constant;
    let builder = ip.tcp(local_port, remote_port, tcp.delegated.snd_nxt.0, 0);
    write(builder.rst().ack(tcp.delegated.rcv_nxt.0), &[])
}

/// Builds a UDP datagram, which may not be fragmented.
pub(crate) fn udp_frame(way: FrameAddresses, ttl: u8, payload: &[u8]) -> Option<Vec<u8>> {
    let FrameAddresses { macs, from, to } = way;
    let builder = packet(macs, (from.ip(), to.ip()), ttl)?.udp(from.port(), to.port());
    let mut frame = Vec::with_capacity(builder.size(payload.len()));
    builder.write(&mut frame, payload).ok()?;
    Some(frame)
}

/// Octets of the IP packet in a frame built by the host.
pub(crate) fn ip_octets(frame: &[u8]) -> usize {
    frame.len().saturating_sub(ETHERNET_HEADER_BYTES)
}

/// Sets the destination Ethernet address of a frame.
pub(crate) fn set_destination(frame: &mut [u8], mac: MacAddress) {
    if let Some(field) = frame.first_chunk_mut() {
        *field = mac.0;
    }
}

/// Builds Ethernet and IP headers, each from source to destination.
fn packet(
    (source_mac, destination_mac): (MacAddress, MacAddress),
    addresses: (IpAddr, IpAddr),
    ttl: u8,
) -> Option<PacketBuilderStep<IpHeaders>> {
    let ethernet = PacketBuilder::ethernet2(source_mac.0, destination_mac.0);
    match addresses {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            Some(ethernet.ipv4(source.octets(), destination.octets(), ttl))
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            Some(ethernet.ipv6(source.octets(), destination.octets(), ttl))
        }
        _ => None,
    }
}

/// Adds the timestamps option, with the usual alignment (RFC 7323 appendix A).
fn stamped(
    builder: PacketBuilderStep<TcpHeader>,
    timestamps: Option<Timestamps>,
) -> Option<PacketBuilderStep<TcpHeader>> {
    let Some(Timestamps { value, echo }) = timestamps else { return Some(builder) };
    let option = TcpOptionElement::Timestamp(value, echo);
    builder.options(&[TcpOptionElement::Noop, TcpOptionElement::Noop, option]).ok()
}

fn write(builder: PacketBuilderStep<TcpHeader>, payload: &[u8]) -> Option<Vec<u8>> {
    let mut frame = Vec::with_capacity(builder.size(payload.len()));
    builder.write(&mut frame, payload).ok()?;
    Some(frame)
}

/// Frame with these flags (`S`, `F`, `R`, and any other letter for ACK) and this payload, for tests.
#[cfg(test)]
pub(crate) fn forged(
    builder: PacketBuilderStep<TcpHeader>,
    flags: &str,
    ack: u32,
    payload: &[u8],
) -> Vec<u8> {
    let builder = flags.chars().fold(builder, |builder, flag| match flag {
        'S' => builder.syn(),
        'F' => builder.fin(),
        'R' => builder.rst(),
        _ => builder.ack(ack),
    });
    write(builder, payload).expect("memory")
}

#[cfg(test)]
mod tests {
    use etherparse::{PacketBuilder, TcpOptionElement};
    use offload_engine::tcp::{Flags, SeqNum, Timestamps};

    use super::{Frame, empty_frame, forged, parse};

    // RFC 7323 §3.2: negotiated timestamps are in every segment, including one that the host derives from another.
    #[test]
    fn empty_frame_copies_the_segment_fields() {
        let stamps = [TcpOptionElement::Timestamp(77, 88)];
        for (options, expected) in
            [(&stamps[..], Some(Timestamps { value: 77, echo: 88 })), (&[], None)]
        {
            for (v6, fin) in [(false, false), (false, true), (true, false), (true, true)] {
                let ethernet = PacketBuilder::ethernet2([2; 6], [4; 6]);
                let ip = match v6 {
                    false => ethernet.ipv4([1; 4], [2; 4], 64),
                    true => ethernet.ipv6([1; 16], [2; 16], 64),
                };
                let builder = ip.tcp(1, 2, 3, 4).psh().options(options).unwrap();
                let whole = forged(builder, "A", 5, b"data");
                let Frame::Tcp(whole) = parse(&whole) else { panic!("a segment") };
                let empty = empty_frame(&whole, SeqNum(9), fin).unwrap();
                let Frame::Tcp(empty) = parse(&empty) else { panic!("a segment") };
                assert!(empty.is_well_formed && empty.frame.checksum_is_valid());
                assert_eq!(empty.timestamps, expected);
                assert_eq!((empty.seq, empty.payload_len), (SeqNum(9), 0));
                assert_eq!((empty.ack, empty.window), (whole.ack, whole.window));
                let flags = if fin { Flags::ACK | Flags::FIN } else { Flags::ACK };
                assert_eq!(empty.flags, flags);
                assert_eq!(empty.received_on(), whole.received_on());
                assert_eq!(empty.source_mac, whole.source_mac);
                assert_eq!(empty.destination_mac, whole.destination_mac);
            }
        }
    }

    // RFC 8200 §3: no state is updated from a packet in which smoltcp finds no segment. No checksum covers the IPv6
    // header, so a damaged length is not detected otherwise.
    #[test]
    fn zero_length_is_a_bad_header() {
        let builder =
            PacketBuilder::ethernet2([2; 6], [4; 6]).ipv6([1; 16], [2; 16], 64).tcp(1, 2, 3, 4);
        let mut frame = forged(builder, "A", 5, b"data");
        let Frame::Tcp(segment) = parse(&frame) else { panic!("a segment") };
        assert!(segment.is_well_formed);
        frame[18..20].fill(0);
        assert!(matches!(parse(&frame), Frame::BadHeader));
    }

    // RFC 1071 §2: one's complement has two zeros.
    #[test]
    fn zero_checksum_is_valid_in_both_forms() {
        let frame = |v6: bool, word: u16| {
            let ethernet = PacketBuilder::ethernet2([2; 6], [4; 6]);
            let ip = match v6 {
                false => ethernet.ipv4([1; 4], [2; 4], 64),
                true => ethernet.ipv6([1; 16], [2; 16], 64),
            };
            forged(ip.tcp(1, 2, 3, 4), "A", 5, &word.to_be_bytes())
        };
        for v6 in [false, true] {
            let checksum_at = if v6 { 14 + 40 + 16 } else { 14 + 20 + 16 };
            let stated =
                |frame: &[u8]| u16::from_be_bytes([frame[checksum_at], frame[checksum_at + 1]]);
            // A segment that contains the checksum of the rest sums to zero.
            let mut frame = frame(v6, stated(&frame(v6, 0)));
            assert_eq!(stated(&frame), 0);
            let is_right = |frame: &[u8]| match parse(frame) {
                Frame::Tcp(segment) => segment.frame.checksum_is_valid(),
                _ => panic!("a segment"),
            };
            assert!(is_right(&frame));
            frame[checksum_at..checksum_at + 2].fill(0xff);
            assert!(is_right(&frame));
            frame[checksum_at + 1] = 0xfe;
            assert!(!is_right(&frame));
        }
    }
}
