//! A capture of kernel connections: frames made up around the bytes that are sent and received, so that Wireshark shows
//! MPA, DDP and RDMAP.
//!
//! Only the bytes, their order and their times are real. The handshake is made up when a connection is established,
//! sequence numbers count from it, and every write and read is a segment, or several where it is longer than one can
//! be. The kernel cuts, acknowledges and retransmits as it likes; tcpdump shows that. The payload of a Send or Write is
//! read once more for the capture: a consumer that changes it while the request is pending sees other bytes here.

use alloc::{boxed::Box, vec::Vec};
use core::{
    fmt,
    net::{IpAddr, SocketAddr},
};
use std::io::Write;

use etherparse::{PacketBuilder, PacketBuilderStep, TcpHeader};
use hashbrown::HashMap;
use offload_engine::{
    link::{Direction, Recorder},
    memory::Piece,
    time::Instant,
};

use crate::rnic::StreamId;

/// Bytes of one segment.
const SEGMENT_BYTES_MAX: usize = 64_000;

/// The window of every segment.
const WINDOW: u16 = u16::MAX;

/// Hop limit of every segment.
const HOPS: u8 = 64;

/// Ethernet addresses: kernel sockets have none.
const NEAR: [u8; 6] = [2, 0, 0, 0, 0, 1];
const FAR: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Where a capture goes.
pub type CaptureOutput = Box<dyn Write + Send>;

/// A capture.
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
    /// The next sequence number of each direction.
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
    /// Writes a segment's frame.
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

    /// A connection is established; `is_passive`: it has come in.
    pub(super) fn open(
        &mut self,
        now: Instant,
        id: StreamId,
        (local, remote): (SocketAddr, SocketAddr),
        is_passive: bool,
    ) {
        self.flows.insert(id, Flow { local, remote, sent: 0, received: 0 });
        let (first, second) = match is_passive {
            true => (Direction::Inbound, Direction::Outbound),
            false => (Direction::Outbound, Direction::Inbound),
        };
        self.record(now, id, first, SYN, &[]);
        self.record(now, id, second, Flags { ack: true, ..SYN }, &[]);
        self.record(now, id, first, ACK, &[]);
        self.flush();
    }

    /// The first `bytes` bytes of these were sent.
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

    /// These bytes were received.
    pub(super) fn received(&mut self, now: Instant, id: StreamId, data: &[u8]) {
        self.data(now, id, Direction::Inbound, data);
    }

    /// One direction has ended.
    pub(super) fn end(&mut self, now: Instant, id: StreamId, way: Direction) {
        self.record(now, id, way, Flags { fin: true, ..ACK }, &[]);
        self.flush();
    }

    /// The connection is reset by us.
    pub(super) fn reset(&mut self, now: Instant, id: StreamId) {
        self.record(now, id, Direction::Outbound, Flags { rst: true, ..ACK }, &[]);
        self.flush();
    }

    /// Writes out what is buffered. An error has ended the recording, and is logged.
    pub(super) fn flush(&mut self) {
        let _ = self.recorder.flush();
    }

    /// The connection is forgotten.
    pub(super) fn forget(&mut self, id: StreamId) {
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
