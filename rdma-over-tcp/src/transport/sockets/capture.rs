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
use core::{fmt, net::SocketAddr};

use hashbrown::HashMap;
use offload_engine::{
    link::{CaptureOutput, CaptureStatus, Direction, Recorder, SyntheticEvent, SyntheticFlow},
    memory::Piece,
    time::Instant,
};

use crate::rnic::StreamId;

/// Capture of the connections of one adapter.
pub(super) struct Capture {
    recorder: Recorder<CaptureOutput>,
    flows: HashMap<StreamId, SyntheticFlow>,
    payload: Vec<u8>,
    frame: Vec<u8>,
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("flows", &self.flows).finish_non_exhaustive()
    }
}

impl Capture {
    pub(super) fn new(recorder: Recorder<CaptureOutput>) -> Self {
        Self { recorder, flows: HashMap::new(), payload: Vec::new(), frame: Vec::new() }
    }

    /// Adds a connection that was established before the capture. Its data is recorded from now on, without a
    /// handshake.
    pub(super) fn adopt(&mut self, id: StreamId, (local, remote): (SocketAddr, SocketAddr)) {
        self.flows.insert(id, SyntheticFlow::new(local, remote));
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
        let first = if is_passive { Direction::Inbound } else { Direction::Outbound };
        self.record(now, id, first, SyntheticEvent::Handshake);
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
        self.record(now, id, Direction::Outbound, SyntheticEvent::Data(&payload));
        self.payload = payload;
    }

    /// Records received bytes.
    pub(super) fn received(&mut self, now: Instant, id: StreamId, data: &[u8]) {
        self.record(now, id, Direction::Inbound, SyntheticEvent::Data(data));
    }

    /// Records the FIN of one direction.
    pub(super) fn end(&mut self, now: Instant, id: StreamId, way: Direction) {
        self.record(now, id, way, SyntheticEvent::Fin);
        self.flush();
    }

    /// Records a reset by this side.
    pub(super) fn reset(&mut self, now: Instant, id: StreamId) {
        self.record(now, id, Direction::Outbound, SyntheticEvent::Reset);
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

    fn record(&mut self, now: Instant, id: StreamId, way: Direction, event: SyntheticEvent<'_>) {
        let Self { recorder, flows, frame, .. } = self;
        if let Some(flow) = flows.get_mut(&id) {
            flow.frames(way, event, frame, |way, frame| recorder.record(now, way, None, frame));
        }
    }
}
