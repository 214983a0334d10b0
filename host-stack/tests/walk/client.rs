//! Client that receives in all ways of the chimney: indications accepted, accepted in part and refused, and posted
//! buffers. It sends through [`Streams`].

use std::collections::{BTreeMap, VecDeque};

use bytes::BytesMut;
use flue_test_support::{
    check,
    seeds::{Class, fail},
};
use host_stack::{
    socket::SocketState,
    stream::{OffloadState, StreamStatus, Streams},
};
use offload_engine::{
    chimney::client::{ConnectionEvent, ConnectionIo, OffloadClient, OffloadHandle},
    engine::{Callback, Connections, NodeClient},
    nbl::{NblChain, NetBufferList, ReceiveBufferList, ReceiveChain},
    status::NdisStatus,
    time::{Duration, Instant},
};
use oorandom::Rand64;

use crate::incidents::{Coverage, CoverageEvent, Ending, Incidents};

/// Maximum pending receive requests of a connection.
const POSTED_MAX: usize = 4;

/// Receive behavior of a client. Probabilities are in percent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiverProfile {
    /// Probability that an indication is refused, or accepted in part.
    pub(crate) refuses: u64,
    /// Probability that a receive request is posted when possible.
    pub(crate) posts: u64,
    /// Probability of a pause in reading.
    pub(crate) pause_probability: u64,
    /// Maximum length of the pause, in microseconds.
    pub(crate) pause_max: u64,
    /// Maximum size of a receive request, in bytes.
    pub(crate) post_bytes_max: u64,
}

impl ReceiverProfile {
    pub(crate) fn new(rng: &mut Rand64) -> Self {
        let mut pick = |choices: &[u64]| choices[rng.rand_range(0..choices.len() as u64) as usize];
        Self {
            refuses: pick(&[0, 0, 10, 50]),
            posts: pick(&[0, 0, 10, 60]),
            pause_probability: pick(&[0, 0, 2]),
            pause_max: pick(&[1_000, 100_000]),
            post_bytes_max: pick(&[200, 5_000, 100_000]),
        }
    }
}

/// Event counts over all connections of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ClientCounts {
    pub(crate) indications: u64,
    pub(crate) refused: u64,
    pub(crate) receives_posted: u64,
    pub(crate) receives_completed: u64,
    pub(crate) receives_uploaded: u64,
    pub(crate) offloads: u64,
    pub(crate) uploads: u64,
}

/// Received data of one connection.
#[derive(Debug, Default)]
struct ClientLog {
    received: Vec<u8>,
    /// End of the pause in reading.
    paused_until: Instant,
    /// True if the target expects a resume.
    refused: bool,
    /// Contexts of the pending receive requests.
    posted: VecDeque<u64>,
}

/// Client under test.
#[derive(Debug)]
pub(crate) struct Walker {
    pub(crate) streams: Streams,
    pub(crate) tally: ClientCounts,
    profile: ReceiverProfile,
    rng: Rand64,
    logs: BTreeMap<OffloadHandle, ClientLog>,
    /// Connections to read.
    readers: Vec<OffloadHandle>,
    /// Memory of completed requests. Clearing new memory each time took a third of a run.
    spare: Vec<BytesMut>,
    next_context: u64,
    polled_at: Instant,
    /// Time of the next turn of an end without an event.
    alarm: Option<Instant>,
    /// Polling interval.
    pub(crate) tick: Option<Duration>,
    /// True if connections may end before all data is transferred.
    ends_early: bool,
    pub(crate) seen: Coverage,
}

impl Walker {
    pub(crate) fn new(streams: Streams, profile: ReceiverProfile, seed: u64) -> Self {
        let rng = Rand64::new(u128::from(seed));
        Self {
            streams,
            tally: ClientCounts::default(),
            profile,
            rng,
            logs: BTreeMap::new(),
            readers: Vec::new(),
            spare: Vec::new(),
            next_context: 1,
            polled_at: Instant::ZERO,
            alarm: None,
            tick: None,
            ends_early: false,
            seen: Coverage::default(),
        }
    }

    /// Schedules a poll at `at`.
    pub(crate) fn wake_at(&mut self, at: Instant) {
        self.alarm = Some(self.alarm.map_or(at, |alarm| alarm.min(at)));
    }

    pub(crate) fn with_incidents(self, incidents: &Incidents) -> Self {
        let ends_early = incidents.ending != Ending::Graceful;
        Self { tick: incidents.tick, ends_early, ..self }
    }

    /// Adds a connection to read.
    pub(crate) fn add_reader(&mut self, handle: OffloadHandle) {
        if !self.readers.contains(&handle) {
            self.readers.push(handle);
        }
    }

    /// All data received on a connection.
    pub(crate) fn received(&self, handle: OffloadHandle) -> &[u8] {
        self.logs.get(&handle).map_or(&[], |log| &log.received)
    }

    /// Number of pending receive requests of all connections.
    pub(crate) fn posted(&self) -> usize {
        self.logs.values().map(|log| log.posted.len()).sum()
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.rng.rand_range(0..100) < percent
    }

    /// Random receive request; one in eight holds no memory (CH-RCV-7).
    fn request(&mut self, handle: OffloadHandle) -> ReceiveBufferList {
        let context = self.next_context;
        self.next_context += 1;
        self.tally.receives_posted += 1;
        self.logs.entry(handle).or_default().posted.push_back(context);
        let mut list = ReceiveBufferList::new(context);
        if self.rng.rand_range(0..8) != 0 {
            for _ in 0..1 + self.rng.rand_range(0..3) {
                let bytes = self.rng.rand_range(1..self.profile.post_bytes_max) as usize;
                let most = self.profile.post_bytes_max as usize;
                let mut mdl = self.spare.pop().unwrap_or_else(|| BytesMut::with_capacity(most));
                mdl.resize(bytes, 0);
                list.mdls.push(mdl);
            }
            list.no_push = self.rng.rand_range(0..3) == 0;
        }
        list
    }

    /// Reads data of the host, and resumes a target that was refused.
    fn read(&mut self, now: Instant, connections: &mut Connections, handle: OffloadHandle) {
        if self.logs.get(&handle).is_some_and(|log| log.paused_until > now) {
            return;
        }
        while let Some(data) = self.streams.receive(now, connections, handle) {
            self.logs.entry(handle).or_default().received.extend_from_slice(&data);
            if self.rest(now, handle) {
                return;
            }
        }
        // A connection lookup is work for the engine, so it is made only if there is something to do, and not at each
        // tick once no more data can arrive.
        let is_ticking = self.tick.is_some();
        let is_offloaded = |status: StreamStatus| {
            status.unread == 0
                && status.state == OffloadState::Offloaded
                && !(status.closed || is_ticking && status.peer_closed)
        };
        let Some(status) = self.streams.status(handle).filter(|status| is_offloaded(*status))
        else {
            return;
        };
        let log = self.logs.entry(handle).or_default();
        let (refused, has_room) =
            (core::mem::take(&mut log.refused), log.posted.len() < POSTED_MAX);
        // After the FIN a request completes immediately: with many such ends the nodes would seldom be idle.
        let rarity = if status.peer_closed { 20 } else { 1 };
        let posts = has_room && self.chance(self.profile.posts.div_ceil(rarity));
        if !refused && !posts {
            return;
        }
        let list = posts.then(|| self.request(handle));
        match (connections.get(now, handle), list) {
            (Some(mut io), Some(list)) => io.post_receive(ReceiveChain::from([list])),
            (Some(mut io), None) => io.resume_receive(),
            (None, list) => {
                // Uploading: no resume is needed, and no request was posted.
                let log = self.logs.entry(handle).or_default();
                log.refused = refused;
                log.posted.truncate(log.posted.len() - usize::from(list.is_some()));
            }
        }
    }

    /// True if it pauses reading.
    fn rest(&mut self, now: Instant, handle: OffloadHandle) -> bool {
        let pause_probability = self.chance(self.profile.pause_probability);
        if pause_probability {
            let time = Duration::from_micros(self.rng.rand_range(1..self.profile.pause_max));
            self.logs.entry(handle).or_default().paused_until = now + time;
        }
        pause_probability
    }
}

impl OffloadClient for Walker {
    fn offloaded(&mut self, io: &mut ConnectionIo<'_>) {
        self.tally.offloads += 1;
        let phase = io.query().delegated.state;
        self.seen.note(CoverageEvent::OffloadedIn(SocketState::from(phase).name()));
        self.streams.offloaded(io);
    }

    fn receive(&mut self, io: &mut ConnectionIo<'_>, data: &[u8], _push: bool) -> usize {
        self.tally.indications += 1;
        let handle = io.handle;
        let pause_probability = self.logs.entry(handle).or_default().paused_until > io.now;
        // Data of the host are older.
        let waits = self.streams.status(handle).is_some_and(|status| status.unread > 0);
        let taken = if pause_probability || waits {
            0
        } else if self.chance(self.profile.refuses) {
            self.rest(io.now, handle);
            self.rng.rand_range(0..data.len() as u64) as usize
        } else {
            data.len()
        };
        let log = self.logs.entry(handle).or_default();
        log.received.extend_from_slice(&data[..taken]);
        log.refused = taken < data.len();
        self.tally.refused += u64::from(log.refused);
        taken
    }

    fn receive_complete(&mut self, io: &mut ConnectionIo<'_>, chain: ReceiveChain) {
        for list in chain {
            let log = self.logs.entry(io.handle).or_default();
            let is_next = log.posted.pop_front() == Some(list.context);
            check!(WrongCompletion, is_next, "in order, each once (CH-RCV-8): {}", list.context);
            for slice in list.slices() {
                log.received.extend_from_slice(slice);
            }
            self.tally.receives_completed += 1;
            match list.status {
                NdisStatus::SUCCESS | NdisStatus::INVALID_STATE => {}
                // CH-TRM-10.
                NdisStatus::UPLOAD_IN_PROGRESS => self.tally.receives_uploaded += 1,
                NdisStatus::REQUEST_ABORTED if self.ends_early => {}
                other => {
                    fail(Class::WrongCompletion, &format!("a receive request completed {other}"))
                }
            }
            if list.status == NdisStatus::SUCCESS && self.chance(self.profile.posts) {
                let again = self.request(io.handle);
                io.post_receive(ReceiveChain::from([again]));
            }
            self.spare.extend(list.mdls);
        }
    }

    fn send_complete(&mut self, io: &mut ConnectionIo<'_>, chain: NblChain) {
        self.streams.send_complete(io, chain);
    }

    fn send_room(&mut self, io: &mut ConnectionIo<'_>) {
        self.streams.send_room(io);
    }

    fn disconnect_complete(&mut self, io: &mut ConnectionIo<'_>, nbl: NetBufferList) {
        self.streams.disconnect_complete(io, nbl);
    }

    fn event(&mut self, io: &mut ConnectionIo<'_>, event: ConnectionEvent) {
        self.streams.event(io, event);
    }

    fn uploaded(&mut self, handle: OffloadHandle) {
        self.tally.uploads += 1;
        let log = self.logs.entry(handle).or_default();
        log.refused = false;
        let is_empty = log.posted.is_empty();
        check!(WrongCompletion, is_empty, "receive requests outlive the upload (CH-TRM-3)");
        self.streams.uploaded(handle);
    }
}

impl NodeClient for Walker {
    fn poll(&mut self, now: Instant, connections: &mut Connections) -> bool {
        self.polled_at = now;
        self.alarm = self.alarm.filter(|at| *at > now);
        let busy = self.streams.poll(now, connections);
        for index in 0..self.readers.len() {
            self.read(now, connections, self.readers[index]);
        }
        busy
    }

    fn poll_at(&self) -> Option<Instant> {
        let streams = self.streams.poll_at();
        let pause_probability =
            self.logs.values().map(|log| log.paused_until).filter(|at| *at > self.polled_at);
        let tick = self.tick.map(|tick| self.polled_at + tick);
        streams.into_iter().chain(pause_probability).chain(self.alarm).chain(tick).min()
    }

    fn has_input(&self) -> bool {
        self.streams.has_input()
    }

    fn take_callbacks(&mut self, callbacks: &mut Vec<Callback>) {
        self.streams.take_callbacks(callbacks);
    }
}
