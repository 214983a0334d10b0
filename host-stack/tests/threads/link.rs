//! Links joined in memory that wake who sleeps on them.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use offload_engine::{
    link::{
        Link, LinkCapabilities, LinkStats, MemoryLink, MemoryLinkOptions, RxBatch, TxFrame,
        TxOutcome, memory_link_pair,
    },
    time::Instant,
};
use rustix::event::{EventfdFlags, eventfd};

/// A [`MemoryLink`] with a descriptor: readable when there may be frames.
#[derive(Debug)]
pub(crate) struct BellLink {
    link: MemoryLink,
    inbound: Arc<OwnedFd>,
    outbound: Arc<OwnedFd>,
}

/// Two ends.
pub(crate) fn bell_links(options: MemoryLinkOptions) -> (BellLink, BellLink) {
    let bell = || Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
    let (one, other) = memory_link_pair(options);
    let (one_bell, other_bell) = (bell(), bell());
    (
        BellLink { link: one, inbound: one_bell.clone(), outbound: other_bell.clone() },
        BellLink { link: other, inbound: other_bell, outbound: one_bell },
    )
}

impl Link for BellLink {
    fn capabilities(&self) -> LinkCapabilities {
        self.link.capabilities()
    }

    fn receive(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        // Before the frames: what comes after them rings again.
        let _ = rustix::io::read(&self.inbound, &mut [0; 8]);
        let received = self.link.receive(now, batch)?;
        if batch.is_full() {
            let _ = rustix::io::write(&self.inbound, &1_u64.to_ne_bytes());
        }
        Ok(received)
    }

    fn transmit(&mut self, now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        let outcome = self.link.transmit(now, frame);
        let _ = rustix::io::write(&self.outbound, &1_u64.to_ne_bytes());
        outcome
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.inbound.as_fd())
    }

    fn poll_at(&self) -> Option<Instant> {
        self.link.poll_at()
    }

    fn stats(&self) -> LinkStats {
        self.link.stats()
    }
}
