//! In-memory links that wake threads sleeping on them.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use offload_engine::{
    link::{
        Link, LinkCapabilities, LinkStats, MemoryLink, MemoryLinkOptions, RxBatch, RxChecksum,
        TxFrame, TxOutcome, memory_link_pair,
    },
    sync::Mutex,
    time::Instant,
};
use rustix::event::{EventfdFlags, eventfd};

/// [`MemoryLink`] with a descriptor: readable when there may be frames.
#[derive(Debug)]
pub(crate) struct BellLink {
    link: MemoryLink,
    inbound: Arc<OwnedFd>,
    /// Descriptors of all queues of the other end.
    outbound: Vec<Arc<OwnedFd>>,
}

/// Creates both ends.
pub(crate) fn bell_links(options: MemoryLinkOptions) -> (BellLink, BellLink) {
    let (one, other) = memory_link_pair(options);
    let (one_bell, other_bell) = (bell(), bell());
    (
        BellLink { link: one, inbound: one_bell.clone(), outbound: vec![other_bell.clone()] },
        BellLink { link: other, inbound: other_bell, outbound: vec![one_bell] },
    )
}

fn bell() -> Arc<OwnedFd> {
    Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap())
}

fn ring(bell: &OwnedFd) {
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

/// One of several queues of an end. Flows are spread over the queues by their ports, and stay there whatever queue they
/// are sent on: a device that learns no flows.
#[derive(Debug)]
pub(crate) struct QueueLink {
    device: Arc<Mutex<Device>>,
    own: usize,
    capabilities: LinkCapabilities,
    bells: Vec<Arc<OwnedFd>>,
    outbound: Arc<OwnedFd>,
}

#[derive(Debug)]
struct Device {
    link: MemoryLink,
    batch: RxBatch,
    /// Frames, with their checksum state and GSO size.
    queues: Vec<VecDeque<(Vec<u8>, RxChecksum, usize)>>,
}

/// Creates two ends, of which the second one has `count` queues.
#[allow(dead_code, reason = "used by one of two test programs")]
pub(crate) fn queue_links(options: MemoryLinkOptions, count: usize) -> (BellLink, Vec<QueueLink>) {
    let (one, other) = memory_link_pair(options);
    let (outbound, bells) = (bell(), (0..count).map(|_| bell()).collect::<Vec<_>>());
    let capabilities = other.capabilities();
    let queues = vec![VecDeque::new(); count];
    let device = Arc::new(Mutex::new(Device { link: other, batch: RxBatch::new(16), queues }));
    let queue = |own| {
        let (device, bells, outbound) = (device.clone(), bells.clone(), outbound.clone());
        QueueLink { device, own, capabilities, bells, outbound }
    };
    let queues = (0..count).map(queue).collect();
    (BellLink { link: one, inbound: outbound.clone(), outbound: bells.clone() }, queues)
}

/// Queue on which the device delivers frames with these ports.
pub(crate) fn queue_of(ports: &[u8], count: usize) -> usize {
    ports.iter().fold(0_usize, |sum, byte| sum + usize::from(*byte)) % count
}

impl Device {
    /// Spreads the received frames. Ports are read at their offset in IPv4 without options; other frames are delivered
    /// on any queue.
    fn spread(&mut self, now: Instant, bells: &[Arc<OwnedFd>]) -> io::Result<()> {
        loop {
            self.batch.clear();
            if self.link.receive(now, &mut self.batch)? == 0 {
                return Ok(());
            }
            for frame in self.batch.frames() {
                let ports = frame.data.get(34..38).unwrap_or_default();
                let queue = queue_of(ports, self.queues.len());
                self.queues[queue].push_back((frame.data.to_vec(), frame.checksum, frame.gso_size));
                ring(&bells[queue]);
            }
        }
    }
}

impl Link for QueueLink {
    fn capabilities(&self) -> LinkCapabilities {
        self.capabilities
    }

    fn receive(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        let own = &self.bells[self.own];
        let _ = rustix::io::read(own, &mut [0; 8]);
        let mut device = self.device.lock();
        device.spread(now, &self.bells)?;
        let before = batch.len();
        while !batch.is_full()
            && let Some((frame, checksum, gso_size)) = device.queues[self.own].pop_front()
        {
            assert!(batch.push(&frame, checksum, gso_size), "frame fits into a batch of this size");
        }
        if !device.queues[self.own].is_empty() {
            ring(own);
        }
        Ok(batch.len() - before)
    }

    fn transmit(&mut self, now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        let outcome = self.device.lock().link.transmit(now, frame);
        ring(&self.outbound);
        outcome
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bells[self.own].as_fd())
    }

    fn poll_at(&self) -> Option<Instant> {
        self.device.lock().link.poll_at()
    }

    fn stats(&self) -> LinkStats {
        self.device.lock().link.stats()
    }
}

impl Link for BellLink {
    fn capabilities(&self) -> LinkCapabilities {
        self.link.capabilities()
    }

    fn receive(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        // Cleared before reading frames: later frames signal again.
        let _ = rustix::io::read(&self.inbound, &mut [0; 8]);
        let received = self.link.receive(now, batch)?;
        if batch.is_full() {
            ring(&self.inbound);
        }
        Ok(received)
    }

    fn transmit(&mut self, now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        let outcome = self.link.transmit(now, frame);
        self.outbound.iter().for_each(|bell| ring(bell));
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
