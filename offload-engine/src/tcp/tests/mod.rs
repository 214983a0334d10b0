//! Tests of whole connections, one file per subject; this file has the common fixtures.

mod chimney_disconnect;
mod chimney_receive;
mod chimney_retrieve;
mod chimney_send;
mod chimney_state;
mod conformance;
mod congestion;
mod ecn;
mod endings;
mod handoff;
mod hardening;
mod info;
mod pacing;
mod pair;
mod path_mtu;
mod receiving;
mod recovery;
mod scenario;
mod sending;
mod throughput;
mod window;

use alloc::{boxed::Box, vec, vec::Vec};
use core::net::Ipv4Addr;

use super::*;
use crate::state::{MacAddress, TcpState, TcpUpdate};

impl Connection {
    /// Requests an upload for `reason`.
    pub(super) fn request_upload(&mut self, now: Instant, reason: UploadReason) {
        self.now = now;
        if self.stopped || self.is_ended() {
            return;
        }
        if reason.is_mandatory() { self.stop(reason) } else { self.request_optional_upload(reason) }
    }

    /// Applies an update of the cached class with the flags that a host would set.
    pub(super) fn set_cached(&mut self, now: Instant, cached: TcpCached) {
        let update = TcpUpdate::of(&self.cached, cached);
        self.update_cached(now, &update);
    }
}

/// Path MTU of 1500 less IPv4 and TCP headers.
pub(super) const PATH_PAYLOAD: usize = 1460;
pub(super) const LOCAL: SeqNum = SeqNum(1_000);
pub(super) const REMOTE: SeqNum = SeqNum(50_000);
pub(super) const WINDOW: u32 = 60_000;

pub(super) const WIRE: TxLimits = TxLimits { gso_payload_max: 0, new_data: true };
pub(super) const GSO: TxLimits = TxLimits { gso_payload_max: 65_160, new_data: true };

/// Returns an established connection without options: segments of 1460 bytes, nothing outstanding.
pub(super) fn state() -> Box<ConnectionState> {
    let [local, remote] = [2, 1].map(|port| (Ipv4Addr::LOCALHOST, port).into());
    Box::new(ConnectionState::established(local, remote, (LOCAL, REMOTE), WINDOW))
}

pub(super) fn list(context: u64, data: &[u8]) -> NetBufferList {
    NetBufferList::from_mdl(context, Bytes::copy_from_slice(data))
}

/// A connection, its time, and helpers for tests.
pub(super) struct Bench {
    pub(super) tcp: Connection,
    pub(super) now: Instant,
    next_context: u64,
}

impl Bench {
    /// Creates a bench with NewReno, as its windows are easy to predict.
    pub(super) fn new(state: Box<ConnectionState>) -> Self {
        Self::with(state, Config { congestion: CongestionAlgorithm::NewReno, ..Config::default() })
    }

    pub(super) fn with(state: Box<ConnectionState>, config: Config) -> Self {
        let now = Instant::from_millis(1_000);
        let tcp = Connection::from_state(now, state, PATH_PAYLOAD, config).expect("a valid state");
        Self { tcp, now, next_context: 1 }
    }

    /// Advances to the next deadline and handles it; returns the time until it.
    pub(super) fn wait_for_timer(&mut self) -> Duration {
        let deadline = self.tcp.poll_timeout().expect("a timer runs");
        let waited = deadline - self.now;
        self.now = self.now.max(deadline);
        self.tcp.handle_timeout(self.now);
        waited
    }

    /// Posts one list of `len` bytes.
    pub(super) fn post(&mut self, len: usize) {
        let data: Vec<u8> = (0..len).map(|n| n as u8).collect();
        let list = list(self.next_context, &data);
        self.next_context += 1;
        self.tcp.post_send(self.now, NblChain::from([list]));
    }

    pub(super) fn transmit(&mut self, limits: TxLimits) -> Vec<Transmit> {
        core::iter::from_fn(|| self.tcp.poll_transmit(self.now, limits)).collect()
    }

    /// Returns all segments sent now, as (offset from the first sequence number, length, flags).
    pub(super) fn sent(&mut self) -> Vec<(u32, usize, Flags)> {
        let shape = |t: Transmit| (t.seq.distance(LOCAL).cast_unsigned(), t.payload_len, t.flags);
        self.transmit(WIRE).into_iter().map(shape).collect()
    }

    pub(super) fn events(&mut self) -> Vec<Event> {
        core::iter::from_fn(|| self.tcp.poll_event()).collect()
    }

    /// Processes a segment; the consumer takes all data, the backlog first.
    pub(super) fn input(&mut self, segment: Segment<'_>) -> Vec<u8> {
        let waiting = self.tcp.backlog().is_some();
        let received = self.tcp.handle_segment(self.now, &segment);
        let fresh = &segment.payload[received.in_order];
        let mut taken = vec![];
        if waiting {
            self.tcp.settle(fresh, received.push);
        } else {
            taken.extend_from_slice(fresh);
            self.tcp.settle(&[], false);
        }
        while let Some((data, _)) = self.tcp.backlog() {
            taken.extend_from_slice(data);
            let count = data.len();
            self.tcp.backlog_consumed(count);
        }
        taken
    }

    /// Processes a segment without data, and leaves the backlog unchanged.
    pub(super) fn input_raw(&mut self, segment: Segment<'_>) {
        self.tcp.handle_segment(self.now, &segment);
        self.tcp.settle(&[], false);
    }

    /// Processes a pure acknowledgment of the first `count` bytes.
    pub(super) fn ack(&mut self, count: u32) {
        self.input(Segment { ack: LOCAL + count, ..ack() });
    }
}

/// Returns a pure ACK of nothing, with the usual window.
pub(super) fn ack() -> Segment<'static> {
    Segment {
        seq: REMOTE,
        ack: LOCAL,
        flags: Flags::ACK,
        window: WINDOW as u16,
        timestamps: None,
        sack: &[],
        payload: &[],
        gso_size: 0,
        ecn: Ecn::NotCapable,
    }
}

/// Returns a segment with `payload`, `offset` bytes into the peer's stream.
pub(super) fn data(offset: u32, payload: &[u8]) -> Segment<'_> {
    Segment { seq: REMOTE + offset, payload, ..ack() }
}

/// Returns (context, status, bytes) of completed lists.
pub(super) fn completions(events: &[Event]) -> Vec<(u64, NdisStatus, usize)> {
    let mut seen = vec![];
    for event in events {
        if let Event::SendComplete(chain) = event {
            seen.extend(chain.iter().map(|l| (l.context, l.status, l.bytes_transferred)));
        }
    }
    seen
}
