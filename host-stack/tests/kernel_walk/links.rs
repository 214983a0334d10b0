//! Queues that are served one at a time.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use offload_engine::link::{Link, LinkCapabilities, LinkStats, RxBatch, TxFrame, TxOutcome};
use offload_engine::time::Instant;

/// Links that receive on their own queue, and transmit on the next one.
pub(crate) fn cross(links: Vec<Box<dyn Link>>) -> Vec<Box<dyn Link>> {
    let count = links.len();
    share(links, |own| (own + 1) % count, |_| {})
}

/// Links of which one at a time is active, followed by `then`. They transmit on the queue given by `transmit`.
pub(crate) fn share<L: Link + 'static>(
    links: Vec<L>,
    transmit: impl Fn(usize) -> usize,
    then: fn(&mut L),
) -> Vec<Box<dyn Link>> {
    let own = |link: &L| {
        let descriptor = link.descriptor().map(|descriptor| descriptor.try_clone_to_owned());
        descriptor.expect("a TAP has one").expect("descriptors are left")
    };
    let descriptors = links.iter().map(own).collect::<Vec<_>>();
    let all = Arc::new(Mutex::new(links));
    let shared = |(own, descriptor)| {
        let (all, transmit) = (all.clone(), transmit(own));
        Box::new(Shared { all, own, transmit, then, descriptor }) as Box<dyn Link>
    };
    descriptors.into_iter().enumerate().map(shared).collect()
}

struct Shared<L> {
    all: Arc<Mutex<Vec<L>>>,
    own: usize,
    transmit: usize,
    then: fn(&mut L),
    descriptor: OwnedFd,
}

impl<L: Link> Shared<L> {
    fn with<T>(&self, queue: usize, work: impl FnOnce(&mut L) -> T) -> T {
        let link = &mut self.all.lock().expect("no panic while locked")[queue];
        let result = work(link);
        (self.then)(link);
        result
    }
}

impl<L: Link> Link for Shared<L> {
    fn capabilities(&self) -> LinkCapabilities {
        self.with(self.own, |link| link.capabilities())
    }

    fn receive(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        self.with(self.own, |link| link.receive(now, batch))
    }

    fn transmit(&mut self, now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        self.with(self.transmit, |link| link.transmit(now, frame))
    }

    fn flush(&mut self, now: Instant) {
        self.with(self.transmit, |link| link.flush(now));
    }

    fn uses_comments(&self) -> bool {
        self.with(self.transmit, |link| link.uses_comments())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.descriptor.as_fd())
    }

    fn poll_at(&self) -> Option<Instant> {
        None
    }

    fn stats(&self) -> LinkStats {
        self.with(self.own, |link| link.stats())
    }
}
