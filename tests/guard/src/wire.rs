//! Link with counted calls.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use offload_engine::{
    link::{
        Link, RxBatch, TxFrame, TxOutcome,
        wrapper::{LinkWrapper, wraps},
    },
    time::Instant,
};

use crate::counting::excluded;

/// Call counters of a link.
#[derive(Debug, Default)]
pub struct Calls {
    receives: AtomicU64,
    transmits: AtomicU64,
    frames: AtomicU64,
}

/// Values of [`Calls`] at one instant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CallCounts {
    /// Batches requested.
    pub receives: u64,
    /// Frames or GSO packets sent.
    pub transmits: u64,
    /// Frames or GSO packets received.
    pub frames: u64,
}

impl Calls {
    /// Counts so far.
    pub fn counts(&self) -> CallCounts {
        let Self { receives, transmits, frames } = self;
        CallCounts {
            receives: receives.load(Ordering::Relaxed),
            transmits: transmits.load(Ordering::Relaxed),
            frames: frames.load(Ordering::Relaxed),
        }
    }
}

/// Link with [`Calls`].
#[derive(Debug)]
pub struct CountedLink<L> {
    link: L,
    calls: Arc<Calls>,
    is_fixture: bool,
}

impl<L: Link> CountedLink<L> {
    /// Wraps `link`. Its allocations and locks are counted unless it `is_fixture`.
    pub fn new(link: L, is_fixture: bool) -> (Self, Arc<Calls>) {
        let calls = Arc::<Calls>::default();
        (Self { link, calls: calls.clone(), is_fixture }, calls)
    }

    // Inlined, so that the instructions of a row are independent of the program's layout.
    #[inline(always)]
    fn call<R>(&mut self, work: impl FnOnce(&mut L) -> R) -> R {
        match self.is_fixture {
            true => excluded(|| work(&mut self.link)),
            false => work(&mut self.link),
        }
    }
}

impl<L: Link> LinkWrapper for CountedLink<L> {
    wraps!(L, link);

    fn receive(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        let received = self.call(|link| link.receive(now, batch));
        self.calls.receives.fetch_add(1, Ordering::Relaxed);
        let frames = *received.as_ref().unwrap_or(&0);
        self.calls.frames.fetch_add(frames as u64, Ordering::Relaxed);
        received
    }

    fn transmit(&mut self, now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        self.calls.transmits.fetch_add(1, Ordering::Relaxed);
        self.call(|link| link.transmit(now, frame))
    }
}
