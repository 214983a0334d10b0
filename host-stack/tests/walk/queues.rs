//! Device with several queues, as seen by a node's engines. Like a TAP, it delivers a frame on the queue on which the
//! last frame of that flow was written; the seed selects some frames for another queue.

use std::{
    collections::{HashMap, VecDeque},
    io,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use host_stack::node::Cores;
use offload_engine::{
    link::{
        CaptureLink, Link, LinkCapabilities, LinkStats, RxBatch, RxChecksum, RxFrame, TxFrame,
        TxOutcome, wrapper,
    },
    time::Instant,
};
use oorandom::Rand64;

use crate::{
    client::Walker,
    frames::Tcp,
    incidents::{Coverage, CoverageEvent},
    lossy_network::LossyNetwork,
    plan::pick,
};

/// Frames received from the link at once.
const BATCH_FRAMES: usize = 64;

/// Queue parameters of a seed, for each node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queues {
    pub(crate) count: [usize; 2],
    /// Percentage of the frames delivered on the wrong queue.
    pub(crate) wrong_pct: [u64; 2],
    /// Queue of the first connection opened by the node; each subsequent connection uses the next queue.
    first: usize,
    /// True if the threads of each node run in random order.
    pub(crate) free: [bool; 2],
}

impl Queues {
    /// One seed in five has two queues at the walker, and half of those at the peer too. Drawn from a separate
    /// generator, so that the other choices of a seed do not depend on it.
    pub(crate) fn new(seed: u64) -> Self {
        let rng = &mut Rand64::new(u128::from(seed) ^ 0x90e5 << 64);
        let count = match rng.rand_range(0..10) {
            0 => [2, 1],
            1 => [2, 2],
            _ => [1, 1],
        };
        let wrong_pct = [(); 2].map(|()| pick(rng, &[0, 5, 50, 100]));
        let wrong_pct = [0, 1].map(|node| if count[node] > 1 { wrong_pct[node] } else { 0 });
        let first = pick(rng, &[0, 1]);
        Self { count, wrong_pct, first, free: [(); 2].map(|()| pick(rng, &[true, false, false])) }
    }

    /// Queue of connection `index` at the node that opens it.
    pub(crate) const fn of_opened(&self, index: usize) -> usize {
        (self.first + index) % self.count[0]
    }
}

/// Counts the events on the queues of a node with several.
pub(crate) fn count(seen: &mut Coverage, cores: &Cores) {
    if cores.shards.len() == 1 {
        return;
    }
    for (queue, shard) in cores.shards.iter().enumerate() {
        let (tally, stats) = (shard.clients.first::<Walker>().tally, shard.engine.stats());
        seen.count(CoverageEvent::OffloadedOnQueue(queue), tally.offloads);
        seen.count(CoverageEvent::UploadedFromQueue(queue), tally.uploads);
        seen.count(CoverageEvent::PassedOn, stats.rx_passed_on);
        seen.count(CoverageEvent::PassedIn, stats.rx_passed_in);
    }
}

/// Verifies that all frames passed on between engines were received, and none dropped.
pub(crate) fn passed(cores: &Cores) -> Result<(), String> {
    let stats: Vec<_> = cores.shards.iter().map(|core| core.engine.stats()).collect();
    let on: u64 = stats.iter().map(|stats| stats.rx_passed_on).sum();
    let taken: u64 = stats.iter().map(|stats| stats.rx_passed_in).sum();
    let dropped: u64 = stats.iter().map(|stats| stats.rx_passed_on_dropped).sum();
    if on == taken && dropped == 0 {
        return Ok(());
    }
    Err(format!("{on} frames passed on, {taken} taken, {dropped} dropped"))
}

#[derive(Debug)]
struct Stored {
    data: Vec<u8>,
    checksum: RxChecksum,
    gso_size: usize,
}

/// Device shared by the queues.
#[derive(Debug)]
struct Device<L> {
    link: L,
    batch: RxBatch,
    queues: Vec<VecDeque<Stored>>,
    /// Queue on which the last frame of a flow was written, by ports.
    flows: HashMap<(u16, u16), usize>,
    wrong_pct: u64,
    rng: Rand64,
    network: Arc<Mutex<LossyNetwork>>,
}

impl<L: Link> Device<L> {
    /// Spreads all received frames.
    fn fill(&mut self, now: Instant) -> io::Result<()> {
        let Self { link, batch, queues, flows, wrong_pct, rng, network } = self;
        loop {
            batch.clear();
            link.receive(now, batch)?;
            for RxFrame { data, checksum, gso_size, .. } in batch.frames() {
                let tcp = Tcp::of(data);
                // A frame of an unknown flow is delivered on any queue.
                let known = tcp.and_then(|tcp| flows.get(&(tcp.to, tcp.from)).copied());
                let mut queue =
                    known.unwrap_or_else(|| rng.rand_range(0..queues.len() as u64) as usize);
                if known.is_some() && rng.rand_range(0..100) < *wrong_pct {
                    queue = (queue + 1) % queues.len();
                    lock(network).seen.note(CoverageEvent::WrongQueue);
                }
                queues[queue].push_back(Stored { data: data.to_vec(), checksum, gso_size });
            }
            if !batch.is_full() {
                return Ok(());
            }
        }
    }
}

/// Queue of a device.
#[derive(Debug)]
pub(crate) struct Queue<L> {
    device: Arc<Mutex<Device<L>>>,
    own: usize,
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates the queues of a device with `link`.
pub(crate) fn queues<L: Link>(
    link: L,
    count: usize,
    wrong_pct: u64,
    seed: u64,
    network: Arc<Mutex<LossyNetwork>>,
) -> Vec<Queue<L>> {
    let device = Arc::new(Mutex::new(Device {
        link,
        batch: RxBatch::new(BATCH_FRAMES),
        queues: (0..count).map(|_| VecDeque::new()).collect(),
        flows: HashMap::new(),
        wrong_pct,
        rng: Rand64::new(u128::from(seed) ^ 0xde1c << 64),
        network,
    }));
    (0..count).map(|own| Queue { device: device.clone(), own }).collect()
}

impl<L: Link> Link for Queue<L> {
    fn capabilities(&self) -> LinkCapabilities {
        lock(&self.device).link.capabilities()
    }

    fn receive(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        let device = &mut *lock(&self.device);
        device.fill(now)?;
        let before = batch.len();
        while !batch.is_full()
            && let Some(Stored { data, checksum, gso_size }) = device.queues[self.own].pop_front()
        {
            batch.push(&data, checksum, gso_size);
        }
        Ok(batch.len() - before)
    }

    fn transmit(&mut self, now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        let device = &mut *lock(&self.device);
        let mut data = Vec::with_capacity(frame.len());
        frame.gather_into(&mut data);
        if let Some(tcp) = Tcp::of(&data) {
            device.flows.insert((tcp.from, tcp.to), self.own);
        }
        device.link.transmit(now, frame)
    }

    fn flush(&mut self, now: Instant) {
        lock(&self.device).link.flush(now);
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn poll_at(&self) -> Option<Instant> {
        let device = lock(&self.device);
        let waiting = (!device.queues[self.own].is_empty()).then_some(Instant::ZERO);
        waiting.or_else(|| device.link.poll_at())
    }

    fn stats(&self) -> LinkStats {
        lock(&self.device).link.stats()
    }

    fn uses_comments(&self) -> bool {
        lock(&self.device).link.uses_comments()
    }
}

/// Capture that is flushed after each step, so that frames of several queues are in order.
#[derive(Debug)]
pub(crate) struct FlushedCaptureLink<L, W: io::Write>(pub(crate) CaptureLink<L, W>);

impl<L: Link, W: io::Write + Send> wrapper::LinkWrapper for FlushedCaptureLink<L, W> {
    wrapper::wraps!(CaptureLink<L, W>, 0);

    fn receive(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        let received = Link::receive(&mut self.0, now, batch);
        self.0.flush_file()?;
        received
    }

    fn transmit(&mut self, now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        let outcome = Link::transmit(&mut self.0, now, frame);
        self.0.flush_file().expect("the capture can be written");
        outcome
    }
}
