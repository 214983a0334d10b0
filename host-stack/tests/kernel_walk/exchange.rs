//! Node end of one connection.

use std::collections::VecDeque;

use bytes::Bytes;
use flue_test_support::stream::{HashingSink, Stream};
use host_stack::stream::{OffloadState, Streams};
use offload_engine::{chimney::client::OffloadHandle, engine::Connections, time::Instant};
use oorandom::Rand64;

/// Maximum size of a list, in bytes.
const LIST_BYTES_MAX: u64 = 16 * 1024;
/// Maximum posted and unacknowledged bytes.
const POSTED_BYTES_MAX: usize = 128 * 1024;

/// Sent and received data of one end, and its migrations.
pub(crate) struct Exchange {
    pub(crate) handle: OffloadHandle,
    stream: Stream,
    bytes: u64,
    to_send: u64,
    /// List prepared without holding the node.
    next: Option<Bytes>,
    arrived: VecDeque<Bytes>,
    received_bytes: u64,
    pub(crate) received: HashingSink,
    /// Bytes of both directions at which each remaining migration is due.
    due: VecDeque<u64>,
    moved: u64,
    /// Target state of a requested migration.
    awaited: Option<OffloadState>,
    pub(crate) is_over: bool,
}

impl Exchange {
    /// Sends `bytes` of the stream of `seed`, and migrates `moves` times, each after another part of the data was
    /// transferred. The seed determines the sizes of the parts; a small one causes two migrations in close succession.
    pub(crate) fn new(handle: OffloadHandle, seed: u64, bytes: u64, moves: u64) -> Self {
        let mut generator = Rand64::new(seed.into());
        let mut due = (0..moves).map(|_| generator.rand_range(0..2 * bytes)).collect::<Vec<_>>();
        due.sort_unstable();
        Self {
            handle,
            stream: Stream::new(seed),
            bytes,
            to_send: bytes,
            next: None,
            arrived: VecDeque::new(),
            received_bytes: 0,
            received: HashingSink::default(),
            due: due.into(),
            moved: 0,
            awaited: None,
            is_over: false,
        }
    }

    /// Work that does not need the node: hashes received data, prepares the next list.
    pub(crate) fn work(&mut self) {
        while let Some(data) = self.arrived.pop_front() {
            self.received.update(&data);
        }
        if self.next.is_none() && self.to_send > 0 {
            let mut list = vec![0; LIST_BYTES_MAX.min(self.to_send) as usize];
            self.stream.fill(&mut list);
            self.to_send -= list.len() as u64;
            self.next = Some(list.into());
        }
    }

    /// Sends, receives and migrates as far as possible. Returns true if there was any work.
    pub(crate) fn step(
        &mut self,
        streams: &mut Streams,
        io: &mut Connections,
        now: Instant,
    ) -> bool {
        if self.is_over {
            return false;
        }
        let status = streams.status(self.handle).expect("stream exists");
        assert!(status.error.is_none(), "{status:?} after {} moves", self.moved);
        let mut busy = false;
        // The last list, and the FIN, are deferred until the last migration.
        let is_last = self.to_send == 0;
        if status.unacknowledged < POSTED_BYTES_MAX
            && (!is_last || self.has_moved())
            && let Some(list) = self.next.take()
        {
            streams.send(now, io, self.handle, list);
            busy = true;
            if is_last {
                streams.shutdown(now, io, self.handle);
            }
        }
        while let Some(data) = streams.receive(now, io, self.handle) {
            self.received_bytes += data.len() as u64;
            self.arrived.push_back(data);
            busy = true;
        }
        busy |= self.walk(streams, status.state, status.unacknowledged as u64);
        let is_over = is_last && self.next.is_none() && status.shut_down && status.peer_closed;
        if is_over && status.unread == 0 {
            self.is_over = true;
            busy = true;
        }
        busy
    }

    /// Progress, for the message of a failing test.
    pub(crate) fn describe(&self, streams: &Streams) -> String {
        let Self { handle, to_send, received_bytes, due, moved, awaited, .. } = self;
        let status = streams.status(*handle);
        format!(
            "{handle:?}: {to_send} bytes to send, {received_bytes} received, {moved} moves made, {due:?} to make, \
             {awaited:?} awaited, {status:?}\n"
        )
    }

    fn has_moved(&self) -> bool {
        self.due.is_empty() && self.awaited.is_none()
    }

    /// Requests the next migration when its share of the data was transferred and the previous one is complete.
    fn walk(&mut self, streams: &mut Streams, state: OffloadState, unacknowledged: u64) -> bool {
        if self.awaited.is_some_and(|awaited| awaited == state) {
            self.awaited = None;
            self.moved += 1;
            return true;
        }
        let held = self.next.as_ref().map_or(0, |next| next.len() as u64);
        let sent = (self.bytes - self.to_send).saturating_sub(held + unacknowledged);
        // The last list is held back, and the peer may be finished: then the migration is due.
        let passed = sent + self.received_bytes + 2 * LIST_BYTES_MAX;
        let is_due = self.due.front().is_some_and(|&due| passed >= due);
        if self.awaited.is_some() || !is_due {
            return false;
        }
        match state {
            OffloadState::InHost => {
                streams.offload(self.handle);
                self.awaited = Some(OffloadState::Offloaded);
            }
            OffloadState::Offloaded => {
                streams.upload(self.handle);
                self.awaited = Some(OffloadState::InHost);
            }
            OffloadState::Offloading | OffloadState::Uploading | OffloadState::Kernel => {
                return false;
            }
        }
        self.due.pop_front();
        true
    }
}
