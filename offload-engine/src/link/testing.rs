//! Frames for tests of links, built by etherparse so that they are independent of the tested code.
#![forbid(unsafe_code)]

use std::vec::Vec;

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};

use super::{
    Impairments, Link, QueueLimit, RATE_QUEUE_BYTES_MAX, RX_BUFFER_BYTES, RxBatch, TxChecksum,
    TxFrame, TxOffload, TxOutcome, TxSegment, checksum, layout::TcpLayout,
};
use crate::{
    memory::{Piece, SharedSpan},
    time::{Duration, Instant},
};

pub(super) const MACS: ([u8; 6], [u8; 6]) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
const V6: ([u8; 16], [u8; 16]) = (
    [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
);
/// Ports that dissectors do not assign to a protocol.
pub(super) const PORTS: (u16, u16) = (49_200, 49_300);
pub(super) const TIMESTAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];

/// Default impairments, with every setting explicit.
pub(super) const NONE: Impairments = Impairments {
    drop_pct: 0.0,
    burst_mean: 0.0,
    duplicate_pct: 0.0,
    reorder_pct: 0.0,
    corrupt_pct: 0.0,
    delay: Duration::ZERO,
    jitter: Duration::ZERO,
    rate_bps: None,
    queue: QueueLimit::Bytes(RATE_QUEUE_BYTES_MAX),
    seed: 1,
};

/// Builds a complete TCP frame with ACK, PSH, FIN, CWR and timestamps.
pub(super) fn tcp_frame(ipv6: bool, seq: u32, payload: &[u8]) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2(MACS.0, MACS.1);
    let ip = if ipv6 {
        ethernet.ipv6(V6.0, V6.1, 64)
    } else {
        ethernet.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
    };
    let mut tcp = ip.tcp(PORTS.0, PORTS.1, seq, 1000).ack(77).psh().fin();
    tcp = tcp.options_raw(&TIMESTAMPS).unwrap();
    let mut frame = Vec::with_capacity(tcp.size(payload.len()));
    tcp.write(&mut frame, payload).unwrap();
    let layout = TcpLayout::of(&frame).unwrap();
    frame[layout.tcp + 13] |= 0x80; // CWR, which the builder does not support
    checksum::fill_tcp(&mut frame, &layout);
    frame
}

/// Variant of [`tcp_frame`] with the pseudo-header sum in its checksum field. Returns the frame and its checksum
/// offload.
pub(super) fn partial_frame(ipv6: bool, seq: u32, payload: &[u8]) -> (Vec<u8>, TxChecksum) {
    let mut frame = tcp_frame(ipv6, seq, payload);
    let layout = TcpLayout::of(&frame).unwrap();
    let partial = checksum::partial(&frame, &layout);
    frame[layout.tcp + 16..layout.tcp + 18].copy_from_slice(&partial.to_be_bytes());
    (frame, TxChecksum { start: layout.tcp as u16, offset: 16 })
}

/// Returns the segmentation offload of a frame of [`partial_frame`].
pub(super) fn segment_offload(frame: &[u8], place: TxChecksum, size: u16) -> TxOffload {
    let layout = TcpLayout::of(frame).unwrap();
    let segment = TxSegment { size, header_len: layout.payload as u16, ipv6: layout.ipv6 };
    TxOffload { checksum: Some(place), segment: Some(segment) }
}

/// Fields of a complete TCP frame as parsed by etherparse.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Parsed {
    pub(super) identification: Option<u16>,
    pub(super) seq: u32,
    pub(super) psh: bool,
    pub(super) fin: bool,
    pub(super) cwr: bool,
    pub(super) options: Vec<u8>,
    pub(super) payload: Vec<u8>,
}

/// Parses a frame and checks its lengths and checksums. `None` if one is wrong.
pub(super) fn parse(frame: &[u8]) -> Option<Parsed> {
    let packet = SlicedPacket::from_ethernet(frame).ok()?;
    let Some(TransportSlice::Tcp(tcp)) = packet.transport else { return None };
    let header = tcp.to_header();
    let (identification, checksum) = match packet.net? {
        NetSlice::Ipv4(ip) => {
            let ip_header = ip.header().to_header();
            if ip_header.header_checksum != ip_header.calc_header_checksum()
                || frame.len() != 14 + usize::from(ip_header.total_len)
            {
                return None;
            }
            let checksum = header.calc_checksum_ipv4(&ip_header, tcp.payload()).ok()?;
            (Some(ip_header.identification), checksum)
        }
        NetSlice::Ipv6(ip) => {
            let ip_header = ip.header().to_header();
            if frame.len() != 54 + usize::from(ip_header.payload_length) {
                return None;
            }
            (None, header.calc_checksum_ipv6(&ip_header, tcp.payload()).ok()?)
        }
        NetSlice::Arp(_) => return None,
    };
    (checksum == header.checksum).then(|| Parsed {
        identification,
        seq: header.sequence_number,
        psh: header.psh,
        fin: header.fin,
        cwr: header.cwr,
        options: tcp.options().to_vec(),
        payload: tcp.payload().to_vec(),
    })
}

/// Transmits `frame`, split into a head and two pieces of payload, one of them in shared memory.
pub(super) fn transmit(
    link: &mut impl Link,
    now: Instant,
    frame: &[u8],
    offload: TxOffload,
) -> TxOutcome {
    let head = frame.len().min(66);
    let middle = head + (frame.len() - head) / 3;
    let shared = SharedSpan::allocate(frame.len(), 1).unwrap();
    shared.write(0, frame);
    let shared = shared.view().slice(middle, frame.len() - middle);
    let payload = [Piece::Private(&frame[head..middle]), Piece::Shared(shared)];
    let frame = TxFrame {
        offload,
        head: &frame[..head],
        payload: &payload,
        lender: None,
        comment: Some("NBL 7"),
    };
    link.transmit(now, &frame)
}

/// Receives all queued frames: data, checksum status, segment size.
pub(super) fn receive_all(
    link: &mut impl Link,
    now: Instant,
) -> Vec<(Vec<u8>, super::RxChecksum, usize)> {
    let mut batch = RxBatch::new(8);
    let mut frames = Vec::new();
    while link.receive(now, &mut batch).unwrap() > 0 {
        frames.extend(batch.frames().map(|f| (f.data.to_vec(), f.checksum, f.gso_size)));
        batch.clear();
    }
    frames
}

/// Returns bytes whose values identify their position.
pub(super) fn pattern(len: usize) -> Vec<u8> {
    assert!(len < RX_BUFFER_BYTES);
    (0..len).map(|i| (i % 251) as u8 ^ (i >> 8) as u8).collect()
}
