//! Foreign memory that is unmapped as soon as its deregistration is complete. Data written from it may be in TCP's
//! queues, in frames that are lost and retransmitted, or not yet in TCP. In half of the seeds the connection moves
//! between the stacks meanwhile.

use std::{
    net::SocketAddr,
    ptr::NonNull,
    sync::{Arc, Mutex},
};

use offload_engine::memory::SharedSpan;
use oorandom::Rand64;
use rdma_over_tcp::{
    mpa::startup::{RtrKind, RtrSet},
    ndk::{
        Adapter, Connector, Cq, Data, DisconnectEvent, Mr, MrFlags, NdkResultEx, NtStatus, OpFlags,
        PAGE_SIZE, Pd, Qp, QpLimits, ReadLimit, RegisteredBuffer, Sge,
    },
};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::{
    bench::Bench,
    moves::Migrators,
    plan::{Plan, draw, once_in},
};

const PAGES: usize = 256 * 1024;
const LIMITS: ReadLimit = ReadLimit { inbound: 4, outbound: 4 };
/// Address of the pages in the queue pair's requests.
const NAME: u64 = 0x10_0000_0000;

/// Outcome of one run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End {
    /// True if the Write completed; false if its connection has ended.
    pub(crate) is_whole: bool,
    /// True if the deregistration pended.
    pub(crate) is_pending: bool,
    /// True if the peer had not acknowledged all data when the pages were unmapped.
    pub(crate) was_in_flight: bool,
}

/// Status passed to a callback.
#[derive(Clone, Default)]
pub(crate) struct CallbackResults(Arc<Mutex<Option<NtStatus>>>);

impl CallbackResults {
    pub(crate) fn callback(&self) -> impl FnOnce(NtStatus) + Send + 'static {
        let results = self.clone();
        move |status| *results.0.lock().unwrap() = Some(status)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.0.lock().unwrap().is_some()
    }

    pub(crate) fn take(&self) -> Option<NtStatus> {
        self.0.lock().unwrap().take()
    }
}

/// Anonymous pages, written and then optionally read-only.
struct Pages(NonNull<u8>);

impl Pages {
    fn new(content: &[u8], is_writable: bool) -> Self {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new pages, at an address that the system chooses.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), content.len(), protection, MapFlags::PRIVATE)
        };
        let start = NonNull::new(start.unwrap().cast::<u8>()).unwrap();
        // SAFETY: that many bytes are mapped writable, and no other reference to them exists.
        unsafe { start.copy_from_nonoverlapping(NonNull::from(content).cast(), content.len()) };
        if !is_writable {
            // SAFETY: no reference to them exists.
            unsafe { mprotect(start.as_ptr().cast(), content.len(), MprotectFlags::READ).unwrap() };
        }
        Self(start)
    }

    fn unmap(self) {
        // SAFETY: the owner of their spans was dropped, and the test has no reference to them.
        unsafe { munmap(self.0.as_ptr().cast(), PAGES).unwrap() };
    }
}

/// Queue pair and its objects.
pub(crate) struct Side {
    adapter: Adapter,
    pd: Pd,
    cq: Cq,
    pub(crate) qp: Qp,
    results: Vec<(u64, NtStatus)>,
}

impl Side {
    pub(crate) fn new(adapter: &Adapter) -> Self {
        let cq = adapter.create_cq(16, |_| {}).unwrap();
        let pd = adapter.create_pd().unwrap();
        let limits = QpLimits { inline_data_size: 16, ..QpLimits::default() };
        let qp = pd.create_qp(&cq, &cq, 0, limits).unwrap();
        Self { adapter: adapter.clone(), pd, cq, qp, results: Vec::new() }
    }

    pub(crate) fn register(&self, buffer: &RegisteredBuffer, rights: MrFlags) -> Mr {
        let mr = self.pd.create_mr(false).unwrap();
        mr.register(buffer, 0, buffer.len(), rights).unwrap();
        mr
    }

    /// Registers all of `buffer` at address 0, by request `context`.
    pub(crate) fn fast_registered(
        &self,
        context: u64,
        buffer: &RegisteredBuffer,
        rights: OpFlags,
    ) -> Mr {
        let mr = self.pd.create_mr(true).unwrap();
        mr.initialize_fast_register(buffer.len().div_ceil(PAGE_SIZE) as u32, true).unwrap();
        self.qp.fast_register(context, &mr, buffer, 0, buffer.len(), 0, rights).unwrap();
        mr
    }

    /// Posts a receive of `bytes` bytes.
    pub(crate) fn receive(&self, context: u64, bytes: usize) {
        let buffer = self.adapter.allocate(bytes).unwrap();
        let mr = self.register(&buffer, MrFlags::ALLOW_LOCAL_WRITE);
        let sge = Sge { address: buffer.address(), length: bytes as u32, token: mr.local_token() };
        self.qp.receive(context, &[sge]).unwrap();
    }

    /// Status of request `context`, after it is complete.
    pub(crate) fn outcome(&mut self, context: u64) -> Option<NtStatus> {
        let mut results = [NdkResultEx::default(); 4];
        let count = self.cq.poll_ex(&mut results);
        let results = results[..count].iter();
        self.results.extend(results.map(|result| (result.request_context, result.status)));
        self.results.iter().find(|(of, _)| *of == context).map(|(_, status)| *status)
    }
}

/// Connects two queue pairs; `event` is the accepting end's disconnect event.
pub(crate) fn connect(
    bench: &mut Bench,
    sides: [&Side; 2],
    remote: SocketAddr,
    event: Option<DisconnectEvent>,
) -> [Connector; 2] {
    connect_with(bench, sides.map(|side| &side.qp), remote, [None, event]).0
}

/// Connects two queue pairs, with their disconnect events. Also returns the result of the accepting end, which may
/// complete only with the first message.
pub(crate) fn connect_with(
    bench: &mut Bench,
    qps: [&Qp; 2],
    remote: SocketAddr,
    [event, of_accepted]: [Option<DisconnectEvent>; 2],
) -> ([Connector; 2], CallbackResults) {
    let incoming = Arc::<Mutex<Option<Connector>>>::default();
    let of_listener = incoming.clone();
    let request = move |connector| *of_listener.lock().unwrap() = Some(connector);
    let listener = bench.adapters[1].create_listener(request).unwrap();
    let [active, accepting, done] = [(); 3].map(|()| CallbackResults::default());
    assert_eq!(listener.listen(remote, done.callback()), NtStatus::PENDING);
    bench.run(|| done.is_done()).unwrap();
    let connector = bench.adapters[0].create_connector().unwrap();
    let status = connector.connect(qps[0], None, remote, LIMITS, &[], active.callback());
    assert_eq!(status, NtStatus::PENDING);
    bench.run(|| incoming.lock().unwrap().is_some()).unwrap();
    let accepted = incoming.lock().unwrap().take().unwrap();
    let _ = accepted.accept(qps[1], LIMITS, &[], of_accepted, accepting.callback());
    bench.run(|| active.is_done()).unwrap();
    assert_eq!(active.take(), Some(NtStatus::SUCCESS));
    let _ = connector.complete_connect(event, active.callback());
    bench.run(|| active.is_done()).unwrap();
    ([connector, accepted], accepting)
}

/// Runs a Write from pages that are unmapped while it is in flight, or afterwards.
pub(crate) fn run(seed: u64) -> End {
    let rng = &mut Rand64::new(u128::from(seed) ^ 0x00f0_e19a);
    let is_bad = !once_in(rng, 4);
    let mut plan = Plan::with(rng, is_bad);
    // An RTR by a Send would consume the receive.
    plan.adapters.iter_mut().for_each(|adapter| adapter.rtr = RtrSet::only(RtrKind::Write));
    let moves = once_in(rng, 2);
    if moves {
        plan.mix_policies(rng);
    }
    let mut bench = Bench::new(&plan, [seed, seed + 1]);
    bench.moves = moves.then(|| Migrators::new(rng));
    let [mut near, mut far] = [0, 1].map(|at| Side::new(&bench.adapters[at]));
    let remote = SocketAddr::new(plan.addresses[1], 7000);
    let _connectors = connect(&mut bench, [&near, &far], remote, None);

    let length = PAGES - draw(rng, 4096);
    let content: Vec<u8> = (0..PAGES).map(|at| (at * 7 + at / 251) as u8 | 1).collect();
    let is_writable = once_in(rng, 2);
    let pages = Pages::new(&content, is_writable);
    let owner = Arc::new(());
    // SAFETY: they are unmapped when the owner is dropped, and no reference to them exists.
    let memory = unsafe { SharedSpan::from_raw(pages.0, PAGES, is_writable, owner.clone()) };
    let source = RegisteredBuffer::from(memory).at_address(NAME);
    if !is_writable {
        let mr = near.pd.create_mr(false).unwrap();
        for rights in [MrFlags::ALLOW_LOCAL_WRITE, MrFlags::ALLOW_REMOTE_WRITE] {
            let refused = mr.register(&source, 0, PAGES, rights);
            assert_eq!(refused, Err(NtStatus::ACCESS_VIOLATION));
        }
        assert_eq!(mr.close(|| {}), NtStatus::SUCCESS);
    }
    let source_mr = near.register(&source, MrFlags::empty());
    let sink = bench.adapters[1].allocate(PAGES).unwrap();
    let rights = MrFlags::ALLOW_LOCAL_WRITE | MrFlags::ALLOW_REMOTE_WRITE;
    let sink_mr = far.register(&sink, rights);

    far.qp.receive(9, &[]).unwrap();
    let sge = Sge { address: NAME, length: length as u32, token: source_mr.local_token() };
    let (to, token) = (sink.address(), sink_mr.remote_token());
    near.qp.write(1, Data::Registered(&[sge]), to, token, OpFlags::empty()).unwrap();
    near.qp.send(2, Data::Inline(&[]), OpFlags::empty()).unwrap();
    let mut rounds = draw(rng, 300);
    // It stalls if all work is done before.
    let _ = bench.run(|| {
        rounds = rounds.saturating_sub(1);
        rounds == 0
    });

    let done = CallbackResults::default();
    let callback = done.callback();
    let closes = once_in(rng, 3);
    let end = move || callback(NtStatus::SUCCESS);
    let status = if closes { source_mr.close(end) } else { source_mr.deregister(end) };
    let is_pending = status == NtStatus::PENDING;
    if is_pending {
        bench.run(|| done.is_done()).unwrap();
    } else {
        assert_eq!(status, NtStatus::SUCCESS);
    }
    let was_in_flight = near.outcome(1).is_none();
    drop(source);
    assert_eq!(Arc::strong_count(&owner), 1, "seed {seed}: memory still referenced");
    pages.unmap();

    bench.run(|| near.outcome(2).is_some()).unwrap();
    let is_whole = near.outcome(1) == Some(NtStatus::SUCCESS);
    let mut placed = vec![0; PAGES];
    if is_whole {
        assert_eq!(near.outcome(2), Some(NtStatus::SUCCESS));
        bench.run(|| far.outcome(9).is_some()).unwrap();
        sink.read_at(0, &mut placed);
        assert!(placed[..length] == content[..length], "seed {seed}");
    } else {
        assert_eq!(near.outcome(1), Some(NtStatus::ACCESS_VIOLATION));
        assert_eq!(near.outcome(2), Some(NtStatus::CANCELLED));
        bench.run_until_empty().unwrap();
        sink.read_at(0, &mut placed);
        let end = placed.iter().position(|byte| *byte == 0).unwrap();
        assert!(placed[..end] == content[..end], "seed {seed}");
        assert!(end < length && placed[end..].iter().all(|byte| *byte == 0), "seed {seed}");
    }
    End { is_whole, is_pending, was_in_flight }
}
