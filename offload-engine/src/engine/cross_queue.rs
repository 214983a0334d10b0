//! Several engines on the queues of one device. Each has its own connections and does not access those of the other
//! engines.
//!
//! The kernel delivers a frame to the queue on which the last frame of its flow was written. So frames of a connection
//! normally reach the engine that has it. There are exceptions: the kernel forgets a flow after 3 s without a write,
//! remembers 4,096 flows, and distributes the rest by a hash. So an engine may receive a frame of another engine's
//! connection. It passes the frame to that engine, which processes it like a frame of its own queue. The same applies
//! to ICMP errors that quote such a connection, and to fragments. They have other addresses or no ports, and so other
//! hashes.
//!
//! A directory shared by all engines maps each flow to its engine. It is written when a connection is added or removed.
//! It is read only for frames without a connection in the receiving engine. It is a hint: an engine that no longer has
//! the connection passes the frame to the host stack, which demultiplexes it.
//!
//! During a migration a frame from another queue may be reordered, because the connection may be added or removed
//! between the lookup and the processing. TCP recovers from this.
//!
//! Limit: [`PASSED_FRAMES_MAX`] queued frames per receiving engine. Further ones are dropped and counted, as a device
//! drops frames when its queue is full.

use std::{
    boxed::Box,
    hash::{BuildHasher, RandomState},
    io,
    sync::Arc,
    vec::Vec,
};

use crossbeam_channel::{Receiver, Sender};
use hashbrown::HashMap;

use super::{Clients, Engine, EngineConfig, doorbell::Doorbell, port::HostPort};
use crate::{
    frame::{FlowKey, classify, classify_fragment, classify_icmp},
    link::{Link, RxChecksum, RxFrame},
    sync::Mutex,
    time::Instant,
};

/// Queued frames from other engines per engine: the length of the kernel's default TAP queue.
pub const PASSED_FRAMES_MAX: usize = 1024;
/// Frames from other engines processed in one iteration.
const PASSED_FRAMES_PER_ITERATION: usize = 64;
/// Partitions of the directory, each with its own lock.
const STRIPES: usize = 64;

/// Frame passed from one engine to another.
#[derive(Debug)]
struct PassedFrame {
    data: Box<[u8]>,
    checksum: RxChecksum,
    gso_size: usize,
}

/// Map from flows to engines.
#[derive(Debug)]
struct Directory {
    stripes: [Mutex<HashMap<FlowKey, usize>>; STRIPES],
    hasher: RandomState,
}

impl Directory {
    fn new() -> Self {
        Self { stripes: std::array::from_fn(|_| Mutex::default()), hasher: RandomState::new() }
    }

    fn stripe(&self, flow: &FlowKey) -> &Mutex<HashMap<FlowKey, usize>> {
        &self.stripes[self.hasher.hash_one(flow) as usize % STRIPES]
    }
}

/// Endpoint of an engine for the other engines.
#[derive(Clone, Debug)]
struct QueueEndpoint {
    inbox: Sender<PassedFrame>,
    doorbell: Arc<Doorbell>,
}

/// State shared with the other engines of the device.
#[derive(Debug)]
pub(super) struct CrossQueue {
    own: usize,
    /// All engines, including this one.
    all: Arc<[QueueEndpoint]>,
    inbox: Receiver<PassedFrame>,
    directory: Arc<Directory>,
}

impl CrossQueue {
    pub(super) fn has_input(&self) -> bool {
        !self.inbox.is_empty()
    }
}

impl Engine {
    /// Creates engines on the queues of one device. Returns each with the host stack's end of its port. One doorbell
    /// wakes the host stack for all of them.
    ///
    /// # Errors
    /// No file descriptor is available for the doorbells.
    pub fn group(
        links: Vec<Box<dyn Link>>,
        config: EngineConfig,
    ) -> io::Result<Vec<(Self, HostPort)>> {
        let made = links.into_iter().map(|link| Self::new(link, config));
        let mut group = made.collect::<io::Result<Vec<_>>>()?;
        if group.len() < 2 {
            return Ok(group);
        }
        let host_doorbell = Arc::new(Doorbell::new()?);
        let directory = Arc::new(Directory::new());
        let inboxes = group.iter().map(|_| crossbeam_channel::bounded(PASSED_FRAMES_MAX));
        let (senders, receivers): (Vec<_>, Vec<_>) = inboxes.unzip();
        let sibling = |(inbox, (engine, _)): (Sender<PassedFrame>, &(Self, HostPort))| {
            QueueEndpoint { inbox, doorbell: engine.doorbell.clone() }
        };
        let all = senders.into_iter().zip(&group).map(sibling).collect::<Arc<[_]>>();
        for (own, ((engine, port), inbox)) in group.iter_mut().zip(receivers).enumerate() {
            engine.host_doorbell = host_doorbell.clone();
            port.host_doorbell = host_doorbell.clone();
            let (all, directory) = (all.clone(), directory.clone());
            engine.cross_queue = Some(Box::new(CrossQueue { own, all, inbox, directory }));
        }
        Ok(group)
    }

    /// Registers a flow in the directory: other engines pass its frames to this engine.
    pub(super) fn publish(&self, flow: &FlowKey) {
        if let Some(cross_queue) = &self.cross_queue {
            cross_queue.directory.stripe(flow).lock().insert(*flow, cross_queue.own);
        }
    }

    /// Removes a flow from the directory.
    pub(super) fn withdraw(&self, flow: &FlowKey) {
        if let Some(cross_queue) = &self.cross_queue {
            cross_queue.directory.stripe(flow).lock().remove(flow);
        }
    }

    /// Passes a frame without a connection in this engine to the engine that has the connection. Returns false if there
    /// is none; the frame then remains the caller's.
    pub(super) fn pass_to_owner(&mut self, frame: &RxFrame<'_>) -> bool {
        let Some(cross_queue) = &self.cross_queue else { return false };
        let flow = classify(frame.data)
            .map(|tcp| tcp.flow)
            .or_else(|| classify_icmp(frame.data).map(|icmp| icmp.flow))
            .or_else(|| classify_fragment(frame.data));
        let Some(flow) = flow else { return false };
        let owner = cross_queue.directory.stripe(&flow).lock().get(&flow).copied();
        let Some(owner) = owner.filter(|owner| *owner != cross_queue.own) else { return false };
        let QueueEndpoint { inbox, doorbell } = &cross_queue.all[owner];
        let passed = PassedFrame {
            data: frame.data.into(),
            checksum: frame.checksum,
            gso_size: frame.gso_size,
        };
        if inbox.try_send(passed).is_ok() {
            doorbell.ring();
            self.stats.rx_passed_on += 1;
        } else {
            self.stats.rx_passed_on_dropped += 1;
        }
        true
    }

    /// Processes all frames that other engines have passed so far.
    pub(super) fn process_all_passed(&mut self, now: Instant, clients: &mut Clients) {
        for _ in 0..PASSED_FRAMES_MAX.div_ceil(PASSED_FRAMES_PER_ITERATION) {
            if !self.process_passed(now, clients) {
                return;
            }
        }
    }

    /// Processes frames that other engines have passed. Returns true if there were any.
    pub(super) fn process_passed(&mut self, now: Instant, clients: &mut Clients) -> bool {
        let to_host_before = self.stats.rx_to_host;
        let mut taken = 0;
        while taken < PASSED_FRAMES_PER_ITERATION {
            let Some(cross_queue) = &self.cross_queue else { return false };
            let Ok(PassedFrame { data, checksum, gso_size }) = cross_queue.inbox.try_recv() else {
                break;
            };
            taken += 1;
            self.stats.rx_passed_in += 1;
            self.take_frame(
                now,
                &RxFrame { data: &data, checksum, gso_size, buffer: None },
                clients,
            );
        }
        if self.stats.rx_to_host != to_host_before {
            self.host_doorbell.ring();
        }
        taken > 0
    }
}
