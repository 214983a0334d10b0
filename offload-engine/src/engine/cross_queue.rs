//! Several engines on the queues of one device: each has its connections, and none looks into another's.
//!
//! The kernel gives a frame to the queue on which the last frame of its flow was written, so what comes for
//! a connection comes to the engine that has it. Not always: it forgets a flow of which nothing was written
//! for 3 s, remembers 4,096 of them, and spreads the others by a hash. So an engine may get a frame of a
//! connection that another one has; it passes the frame on, to be taken there as if it had come by that
//! queue. The same holds for ICMP errors that quote such a connection, and for fragments, which carry other
//! addresses or no ports and so have other hashes.
//!
//! A directory that all engines share has the engine of each flow. It is written when a connection comes and
//! goes, and read for frames that an engine has no connection for, never for its own. It is a hint: an
//! engine that no longer has the connection gives the frame to the host stack, which knows.
//!
//! Around a hand-over a frame that came by another queue may be overtaken: between a look into the directory and the
//! queue that it names the connection may come or go. TCP repairs it.
//!
//! Limit: [`PASSED_FRAMES_MAX`] frames on their way to one engine; beyond it they are dropped and counted, as a device
//! drops what its queue does not take.

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

/// Frames that may be on their way from other engines to one: as many as the kernel's default queue of a TAP.
pub const PASSED_FRAMES_MAX: usize = 1024;
/// Frames of other engines taken in one iteration.
const TAKEN_MAX: usize = 64;
/// Parts of the directory, each with a lock of its own.
const STRIPES: usize = 64;

/// A frame on its way from one engine to another.
#[derive(Debug)]
struct Passed {
    data: Box<[u8]>,
    checksum: RxChecksum,
    gso_size: usize,
}

/// Which engine has which flow.
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

/// An engine as the others see it.
#[derive(Clone, Debug)]
struct Sibling {
    inbox: Sender<Passed>,
    doorbell: Arc<Doorbell>,
}

/// What an engine knows of the others.
#[derive(Debug)]
pub(super) struct Siblings {
    own: usize,
    /// All of them, itself included.
    all: Arc<[Sibling]>,
    inbox: Receiver<Passed>,
    directory: Arc<Directory>,
}

impl Siblings {
    pub(super) fn has_input(&self) -> bool {
        !self.inbox.is_empty()
    }
}

impl Engine {
    /// Engines on the queues of one device, and the host stack's end of each one's port. One doorbell wakes the host
    /// stack for all of them.
    ///
    /// # Errors
    /// No descriptor is left for the doorbells.
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
        let sibling = |(inbox, (engine, _)): (Sender<Passed>, &(Self, HostPort))| Sibling {
            inbox,
            doorbell: engine.doorbell.clone(),
        };
        let all = senders.into_iter().zip(&group).map(sibling).collect::<Arc<[_]>>();
        for (own, ((engine, port), inbox)) in group.iter_mut().zip(receivers).enumerate() {
            engine.host_doorbell = host_doorbell.clone();
            port.host_doorbell = host_doorbell.clone();
            let (all, directory) = (all.clone(), directory.clone());
            engine.siblings = Some(Box::new(Siblings { own, all, inbox, directory }));
        }
        Ok(group)
    }

    /// A connection has come: frames of its flow that the others get are for this engine.
    pub(super) fn publish(&self, flow: &FlowKey) {
        if let Some(siblings) = &self.siblings {
            siblings.directory.stripe(flow).lock().insert(*flow, siblings.own);
        }
    }

    /// A connection has gone.
    pub(super) fn withdraw(&self, flow: &FlowKey) {
        if let Some(siblings) = &self.siblings {
            siblings.directory.stripe(flow).lock().remove(flow);
        }
    }

    /// A frame that no connection of this engine's is for. If another engine has the connection, it gets the frame;
    /// else it is the caller's.
    pub(super) fn pass_on(&mut self, frame: &RxFrame<'_>) -> bool {
        let Some(siblings) = &self.siblings else { return false };
        let flow = classify(frame.data)
            .map(|tcp| tcp.flow)
            .or_else(|| classify_icmp(frame.data).map(|icmp| icmp.flow))
            .or_else(|| classify_fragment(frame.data));
        let Some(flow) = flow else { return false };
        let owner = siblings.directory.stripe(&flow).lock().get(&flow).copied();
        let Some(owner) = owner.filter(|owner| *owner != siblings.own) else { return false };
        let Sibling { inbox, doorbell } = &siblings.all[owner];
        let passed =
            Passed { data: frame.data.into(), checksum: frame.checksum, gso_size: frame.gso_size };
        if inbox.try_send(passed).is_ok() {
            doorbell.ring();
            self.stats.rx_passed_on += 1;
        } else {
            self.stats.rx_passed_on_dropped += 1;
        }
        true
    }

    /// Takes everything that other engines have passed on up to now.
    pub(super) fn take_all_passed(&mut self, now: Instant, clients: &mut Clients) {
        for _ in 0..PASSED_FRAMES_MAX.div_ceil(TAKEN_MAX) {
            if !self.take_passed(now, clients) {
                return;
            }
        }
    }

    /// Takes what other engines have passed on. Returns whether there was anything.
    pub(super) fn take_passed(&mut self, now: Instant, clients: &mut Clients) -> bool {
        let to_host_before = self.stats.rx_to_host;
        let mut taken = 0;
        while taken < TAKEN_MAX {
            let Some(siblings) = &self.siblings else { return false };
            let Ok(Passed { data, checksum, gso_size }) = siblings.inbox.try_recv() else { break };
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
