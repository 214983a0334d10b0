//! Capture of kernel connections: frames synthesized around the bytes sent and received, so that Wireshark decodes MPA,
//! DDP and RDMAP.
//!
//! Only the bytes, their order and their times are real. The handshake is synthesized when a connection is established,
//! and sequence numbers count from it. Every write and read is one segment, or several if it exceeds the maximum. The
//! kernel's segmentation, acknowledgments and retransmits are not captured; tcpdump shows them. The payload of a Send
//! or Write is read once more for the capture: a consumer that changes it while the request is pending gets other bytes
//! in the capture. A capture that starts later has the data of open connections from then on; Wireshark decodes MPA of
//! connections whose start is in the capture.

use alloc::vec::Vec;
use core::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use etherparse::{PacketBuilder, PacketBuilderStep, TcpHeader};
use hashbrown::HashMap;
use offload_engine::{
    link::{CaptureOutput, CaptureStatus, Direction, Recorder},
    memory::Piece,
    time::Instant,
};

use crate::rnic::StreamId;

/// Bytes of one segment.
const SEGMENT_BYTES_MAX: usize = 64_000;

/// Window of every segment.
const WINDOW: u16 = u16::MAX;

/// Hop limit of every segment.
const HOPS: u8 = 64;

/// Ethernet addresses: kernel sockets have none.
const NEAR: [u8; 6] = [2, 0, 0, 0, 0, 1];
const FAR: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Capture of the connections of one adapter.
pub(super) struct Capture {
    recorder: Recorder<CaptureOutput>,
    flows: HashMap<StreamId, Flow>,
    payload: Vec<u8>,
    frame: Vec<u8>,
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("flows", &self.flows).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Flow {
    local: SocketAddr,
    remote: SocketAddr,
    /// Next sequence number of each direction.
    sent: u32,
    received: u32,
}

/// Flags of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Flags {
    syn: bool,
    ack: bool,
    psh: bool,
    fin: bool,
    rst: bool,
}

const SYN: Flags = Flags { syn: true, ack: false, psh: false, fin: false, rst: false };
const ACK: Flags = Flags { ack: true, ..NONE };
const NONE: Flags = Flags { syn: false, ack: false, psh: false, fin: false, rst: false };

impl Flow {
    /// Encodes a segment's frame.
    fn segment(&mut self, frame: &mut Vec<u8>, way: Direction, flags: Flags, payload: &[u8]) {
        let (from, to, macs, sequence, acknowledged) = match way {
            Direction::Outbound => {
                (self.local, self.remote, (NEAR, FAR), &mut self.sent, self.received)
            }
            Direction::Inbound => {
                (self.remote, self.local, (FAR, NEAR), &mut self.received, self.sent)
            }
        };
        let header = TcpHeader {
            acknowledgment_number: if flags.ack { acknowledged } else { 0 },
            syn: flags.syn,
            ack: flags.ack,
            psh: flags.psh,
            fin: flags.fin,
            rst: flags.rst,
            ..TcpHeader::new(from.port(), to.port(), *sequence, WINDOW)
        };
        let octets = payload.len() as u32 + u32::from(flags.syn) + u32::from(flags.fin);
        *sequence = sequence.wrapping_add(octets);
        let ethernet = PacketBuilder::ethernet2(macs.0, macs.1);
        frame.clear();
        let written = match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => write(
                ethernet.ipv4(from.octets(), to.octets(), HOPS).tcp_header(header),
                frame,
                payload,
            ),
            (from, to) => {
                let octets = |address: IpAddr| match address {
                    IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                    IpAddr::V6(address) => address.octets(),
                };
                write(
                    ethernet.ipv6(octets(from), octets(to), HOPS).tcp_header(header),
                    frame,
                    payload,
                )
            }
        };
        debug_assert!(written, "a segment fits");
    }
}

fn write(step: PacketBuilderStep<TcpHeader>, frame: &mut Vec<u8>, payload: &[u8]) -> bool {
    step.write(frame, payload).is_ok()
}

impl Capture {
    pub(super) fn new(recorder: Recorder<CaptureOutput>) -> Self {
        Self { recorder, flows: HashMap::new(), payload: Vec::new(), frame: Vec::new() }
    }

    /// Adds a connection that was established before the capture. Its data is recorded from now on, without a
    /// handshake.
    pub(super) fn adopt(&mut self, id: StreamId, (local, remote): (SocketAddr, SocketAddr)) {
        self.flows.insert(id, Flow { local, remote, sent: 0, received: 0 });
    }

    /// Returns the number of frames recorded, and the error that ended the recording.
    pub(super) fn status(&self) -> CaptureStatus {
        self.recorder.status()
    }

    /// Writes buffered frames, and returns the final state.
    pub(super) fn finish(self) -> CaptureStatus {
        self.recorder.finish()
    }

    /// Records an established connection; `is_passive`: true if it was accepted.
    pub(super) fn open(
        &mut self,
        now: Instant,
        id: StreamId,
        addresses: (SocketAddr, SocketAddr),
        is_passive: bool,
    ) {
        self.adopt(id, addresses);
        let (first, second) = match is_passive {
            true => (Direction::Inbound, Direction::Outbound),
            false => (Direction::Outbound, Direction::Inbound),
        };
        self.record(now, id, first, SYN, &[]);
        self.record(now, id, second, Flags { ack: true, ..SYN }, &[]);
        self.record(now, id, first, ACK, &[]);
        self.flush();
    }

    /// Records the first `bytes` bytes of the pieces as sent.
    pub(super) fn sent<'a>(
        &mut self,
        now: Instant,
        id: StreamId,
        pieces: impl Iterator<Item = Piece<'a>>,
        bytes: usize,
    ) {
        let mut payload = core::mem::take(&mut self.payload);
        payload.clear();
        for piece in pieces {
            let count = piece.len().min(bytes - payload.len());
            piece.part(0, count).append_to(&mut payload);
            if payload.len() == bytes {
                break;
            }
        }
        self.data(now, id, Direction::Outbound, &payload);
        self.payload = payload;
    }

    /// Records received bytes.
    pub(super) fn received(&mut self, now: Instant, id: StreamId, data: &[u8]) {
        self.data(now, id, Direction::Inbound, data);
    }

    /// Records the FIN of one direction.
    pub(super) fn end(&mut self, now: Instant, id: StreamId, way: Direction) {
        self.record(now, id, way, Flags { fin: true, ..ACK }, &[]);
        self.flush();
    }

    /// Records a reset by this side.
    pub(super) fn reset(&mut self, now: Instant, id: StreamId) {
        self.record(now, id, Direction::Outbound, Flags { rst: true, ..ACK }, &[]);
        self.flush();
    }

    /// Flushes buffered frames. An error has ended the recording, and is logged.
    pub(super) fn flush(&mut self) {
        let _ = self.recorder.flush();
    }

    /// Removes the state of a connection.
    pub(super) fn remove(&mut self, id: StreamId) {
        self.flows.remove(&id);
    }

    fn data(&mut self, now: Instant, id: StreamId, way: Direction, data: &[u8]) {
        let count = data.len().div_ceil(SEGMENT_BYTES_MAX);
        for (at, part) in data.chunks(SEGMENT_BYTES_MAX).enumerate() {
            let flags = Flags { psh: at + 1 == count, ..ACK };
            self.record(now, id, way, flags, part);
        }
    }

    fn record(&mut self, now: Instant, id: StreamId, way: Direction, flags: Flags, payload: &[u8]) {
        let Self { recorder, flows, frame, .. } = self;
        if let Some(flow) = flows.get_mut(&id) {
            flow.segment(frame, way, flags, payload);
            recorder.record(now, way, None, frame);
        }
    }
}
