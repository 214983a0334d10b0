//! Pending creates and requests, moderation, failed queues, a lost device, extension interfaces.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    vec::Vec,
};

use offload_engine::time::{Duration, Instant};

use super::{
    bench::{Bench, TestAccess},
    sides::{ALL_RIGHTS, LIMITS, Log, Side, connected},
};
use crate::{
    ndk::{
        Adapter, AdapterConfig, Capabilities, CqNotify, Created, Data, Deferral, Driver,
        ExtensionInterface, Guid, NdkVersion, NtStatus, OpFlags, QpLimits, RFC7306_INTERFACE,
        RFC7306_VERSION,
    },
    rnic::Rnic,
};

const DELAY_MAX: Duration = Duration::from_millis(10);

fn deferred(seed: u64) -> AdapterConfig {
    AdapterConfig { deferral: Some(Deferral { seed, delay_max: DELAY_MAX }), ..Default::default() }
}

/// Creates a slot and a completion that stores the created object, or the failure, in it.
fn place<T: Send + 'static>() -> (Arc<Mutex<Vec<T>>>, impl FnOnce(T) + Send + 'static) {
    let place = Arc::new(Mutex::new(Vec::new()));
    let put = place.clone();
    (place, move |result| put.lock().unwrap().push(result))
}

/// Returns the object of a create, inline or by its completion, and whether it pended.
fn finished<T>(
    bench: &mut Bench,
    created: Result<Created<T>, NtStatus>,
    place: &Mutex<Vec<Result<T, NtStatus>>>,
) -> (Result<T, NtStatus>, bool) {
    match created {
        Ok(Created::Done(object)) => {
            bench.advance(DELAY_MAX);
            assert!(place.lock().unwrap().is_empty(), "NDK-ASY-1: no completion");
            (Ok(object), false)
        }
        Ok(Created::Pending) => {
            bench.settle();
            bench.advance(DELAY_MAX);
            let object = place.lock().unwrap().pop().expect("NDK-ASY-1: one completion");
            assert!(place.lock().unwrap().is_empty());
            (object, true)
        }
        Err(status) => (Err(status), false),
    }
}

macro_rules! create {
    ($bench:ident, $pended:ident, $call:expr) => {{
        let (place, put) = place();
        let created = $call(put);
        let (object, has_pended) = finished(&mut $bench, created, &place);
        $pended += u32::from(has_pended);
        object.unwrap()
    }};
}

// NDK-ASY-1, -2, -4: every create and request may pend, and completes once. The created objects work like any other.
#[test]
fn creates_and_requests_pend() {
    let mut pended = 0;
    for seed in 0..20 {
        let mut bench = Bench::with(1, deferred(seed));
        let adapter = bench.nodes[0].adapter.clone();
        let log = Log::default();
        let pd = create!(bench, pended, |put| adapter.begin_create_pd(put));
        let cq = create!(bench, pended, |put| adapter.begin_create_cq(8, log.note("cq"), put));
        let limits = QpLimits::default();
        let qp = create!(bench, pended, |put| pd.begin_create_qp(&cq, &cq, 5, limits, put));
        let srq = create!(bench, pended, |put| pd.begin_create_srq(8, 1, 0, |_| {}, put));
        let shared = create!(bench, pended, |put| {
            pd.begin_create_qp_with_srq((&cq, &cq), &srq, 6, limits, put)
        });
        let mr = create!(bench, pended, |put| pd.begin_create_mr(false, put));
        let fast = create!(bench, pended, |put| pd.begin_create_mr(true, put));
        let mw = create!(bench, pended, |put| pd.begin_create_mw(put));
        let connector = create!(bench, pended, |put| adapter.begin_create_connector(put));
        let listener = create!(bench, pended, |put| adapter.begin_create_listener(|_| {}, put));
        let buffer = adapter.allocate(4096).unwrap();
        let chain = core::slice::from_ref(&buffer);
        let lam = create!(bench, pended, |put| adapter.begin_build_lam(chain, 4096, put));
        assert_eq!(lam.page_count(), 1);
        let none = |_| panic!("refused");
        let refused = Err(NtStatus::INVALID_PARAMETER);
        assert!(adapter.begin_build_lam(chain, 4097, none).map(|_| ()) == refused);
        let mut end = |status: NtStatus| {
            bench.advance(DELAY_MAX);
            let completions = log.take();
            match status {
                NtStatus::PENDING => {
                    pended += 1;
                    assert_eq!(completions, [("done", NtStatus::SUCCESS)]);
                }
                status => assert_eq!((status, completions.len()), (NtStatus::SUCCESS, 0)),
            }
        };
        let mut tokens = Vec::new();
        for is_chain in [false, true] {
            let note = log.note("done");
            let status = match is_chain {
                false => mr.begin_register(&buffer, 0, 4096, ALL_RIGHTS, note),
                true => mr.begin_register_chain(chain, 4096, ALL_RIGHTS, note),
            };
            let is_known = |token| (token != 0) == (status == NtStatus::SUCCESS);
            assert!(is_known(mr.local_token()) && is_known(mr.remote_token()), "{status:?}");
            end(status);
            tokens.push(mr.local_token());
            if !is_chain {
                let note = log.note("done");
                end(mr.deregister(move || note(NtStatus::SUCCESS)));
            }
        }
        assert!(tokens[0] != 0 && tokens[1] != 0 && tokens[0] != tokens[1], "{tokens:?}");
        end(fast.begin_initialize_fast_register(4, true, log.note("done")));
        end(cq.begin_resize(16, log.note("done")));
        end(srq.begin_modify(16, 0, log.note("done")));
        assert_eq!(cq.begin_resize(0, |_| panic!("refused")), NtStatus::INVALID_PARAMETER);
        let note = log.note("done");
        end(mr.deregister(move || note(NtStatus::SUCCESS)));
        qp.receive(1, &[]).unwrap();
        qp.flush();
        let mut results = [crate::ndk::NdkResult::default(); 2];
        assert_eq!(cq.poll(&mut results), 1);
        // Antecedents first. Each close completes once, and successors before their antecedents.
        let mut closes = 0;
        macro_rules! close {
            ($($object:ident)*) => {$({
                let note = log.note(stringify!($object));
                let status = $object.close(move || note(NtStatus::SUCCESS));
                closes += usize::from(status == NtStatus::PENDING);
                assert!([NtStatus::PENDING, NtStatus::SUCCESS].contains(&status), "NDK-LIFE-1");
            })*};
        }
        assert_eq!(adapter.release_lam(&lam, || {}), NtStatus::SUCCESS);
        close!(adapter pd cq srq qp shared mr fast mw connector listener);
        bench.settle();
        bench.advance(DELAY_MAX);
        bench.settle();
        let closed: Vec<_> = log.take().into_iter().map(|(name, _)| name).collect();
        assert_eq!(closed.len(), closes, "{closed:?}");
        assert_eq!(closed.last(), Some(&"adapter"));
        let at = |name| closed.iter().position(|it| *it == name);
        assert!(at("pd") > at("qp") && at("cq") > at("qp") && at("srq") > at("shared"));
    }
    assert!((200..400).contains(&pended), "{pended} of more than 300 pended");
}

// Requests complete in the order of their times, which are drawn from the seed: another seed, another order.
#[test]
fn pending_requests_end_in_another_order() {
    let orders: Vec<Vec<_>> = [1, 1, 2]
        .into_iter()
        .map(|seed| {
            let mut bench = Bench::with(1, deferred(seed));
            let order = Arc::new(Mutex::new(Vec::new()));
            for number in 0..16 {
                let completed = order.clone();
                let adapter = &bench.nodes[0].adapter;
                let complete = move |_| completed.lock().unwrap().push(number);
                let _ = adapter.begin_create_pd(complete).unwrap();
            }
            bench.settle();
            bench.advance(DELAY_MAX);
            core::mem::take(&mut *order.lock().unwrap())
        })
        .collect();
    assert_eq!(orders[0], orders[1], "repeatable");
    assert_ne!(orders[0], orders[2]);
    assert!(!orders[0].is_sorted(), "{:?}", orders[0]);
}

// NDK-ASY-3, -4, NDK-LIFE-4: an object may be used and closed inside its own create completion. Its close waits for the
// completion to return. The completion also reports failures.
#[test]
fn pending_creates_fail_and_close_inside() {
    let (mut failed, mut closed) = (BTreeSet::new(), 0);
    for seed in 0..20 {
        let capabilities = Capabilities { max_pd_count: 1, ..Capabilities::default() };
        let mut bench = Bench::with(1, AdapterConfig { capabilities, ..deferred(seed) });
        let adapter = bench.nodes[0].adapter.clone();
        let log = Log::default();
        let note = log.note("closed");
        let status = adapter.begin_create_pd(move |pd| {
            let pd = pd.unwrap();
            let _ = pd.create_mw().unwrap().close(|| {});
            let in_callback = pd.close(move || note(NtStatus::SUCCESS));
            assert_eq!(in_callback, NtStatus::PENDING, "its completion has not returned");
        });
        let has_pended = matches!(status, Ok(Created::Pending));
        let (place, put) = place();
        match adapter.begin_create_pd(put) {
            Err(NtStatus::INSUFFICIENT_RESOURCES) => failed.insert("inline"),
            Ok(Created::Pending) => failed.insert("later"),
            other => panic!("{other:?}"),
        };
        bench.settle();
        for _ in 0..4 {
            bench.advance(DELAY_MAX);
        }
        let created = place.lock().unwrap().pop();
        assert!(
            created.is_none_or(|created| created.err() == Some(NtStatus::INSUFFICIENT_RESOURCES))
        );
        if has_pended {
            closed += 1;
            assert_eq!(log.take(), [("closed", NtStatus::SUCCESS)]);
        }
    }
    assert_eq!(failed, BTreeSet::from(["inline", "later"]));
    assert!(closed > 5, "{closed}");
}

// NDK-MOD-1, -2, -3, -4, -5, -6: moderation reduces notifications, by count and by time; completions are available at
// once.
#[test]
fn interrupt_moderation() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    let cq = &passive.cq;
    let mut context = 0;
    let mut send = |bench: &mut Bench, count: u32| {
        for _ in 0..count {
            context += 1;
            passive.receive(context, 0, 10);
            active.send(context, 0, 10);
            bench.settle();
            assert_eq!(passive.outcomes().len(), 1, "at once");
            assert_eq!(active.outcomes().len(), 1);
        }
    };
    let notified = [("cq", NtStatus::SUCCESS)];
    // Without moderation: one notification per completion.
    let mut notifications = 0;
    for _ in 0..8 {
        cq.arm(CqNotify::Any);
        send(&mut bench, 1);
        notifications += passive.log.take().len();
    }
    assert_eq!(notifications, 8);
    // By count: one notification per four. By time, when no more completions are added.
    assert_eq!(cq.control_interrupt_moderation(1_000, 4), NtStatus::SUCCESS);
    for _ in 0..2 {
        cq.arm(CqNotify::Any);
        send(&mut bench, 3);
        assert_eq!(passive.log.take(), []);
        send(&mut bench, 1);
        assert_eq!(passive.log.take(), notified);
    }
    cq.arm(CqNotify::Any);
    bench.advance(Duration::from_secs(1));
    send(&mut bench, 1);
    bench.advance(Duration::from_micros(999));
    assert_eq!(passive.log.take(), []);
    bench.advance(Duration::from_micros(1));
    assert_eq!(passive.log.take(), notified);
    bench.advance(Duration::from_secs(1));
    assert_eq!(passive.log.take(), [], "one notification for one arm (NDK-CQ-2)");
    // The count alone, the time alone, neither.
    assert_eq!(cq.control_interrupt_moderation(u32::MAX, 2), NtStatus::SUCCESS);
    cq.arm(CqNotify::Any);
    send(&mut bench, 1);
    bench.advance(Duration::from_secs(3_600));
    assert_eq!(passive.log.take(), []);
    send(&mut bench, 1);
    assert_eq!(passive.log.take(), notified);
    for count in [u32::MAX, 1_025] {
        assert_eq!(cq.control_interrupt_moderation(100, count), NtStatus::SUCCESS);
        cq.arm(CqNotify::Any);
        send(&mut bench, 20);
        assert_eq!(passive.log.take(), []);
        bench.advance(Duration::from_micros(100));
        assert_eq!(passive.log.take(), notified);
        let mix = cq.control_interrupt_moderation(u32::MAX, count);
        assert_eq!(mix, NtStatus::INVALID_PARAMETER_MIX);
    }
    // Disabling moderation delivers the delayed notification.
    cq.arm(CqNotify::Any);
    send(&mut bench, 1);
    assert_eq!(passive.log.take(), []);
    for (interval, count) in [(0, 9), (9, 0), (9, 1), (0, u32::MAX), (u32::MAX, 1)] {
        assert_eq!(cq.control_interrupt_moderation(interval, count), NtStatus::SUCCESS);
    }
    bench.settle();
    assert_eq!(passive.log.take(), notified);
    cq.arm(CqNotify::Any);
    send(&mut bench, 1);
    assert_eq!(passive.log.take(), notified);
}

/// Driver of an adapter that counts its entries.
struct CountingDriver(Arc<TestAccess>, AtomicUsize);

impl Driver for CountingDriver {
    fn enter(&self, work: &mut dyn FnMut(&mut Rnic, Instant)) {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.enter(work);
    }
}

// A poll of an empty queue, and an arm that is not satisfied, do not enter the adapter, whose lock another thread may
// hold.
#[test]
fn polls_and_arms_of_empty_queue_do_not_enter_adapter() {
    let mut bench = Bench::new(1);
    let access = Arc::new(CountingDriver(bench.nodes[0].access().clone(), AtomicUsize::new(0)));
    let adapter = Adapter::new(access.clone());
    let log = Log::default();
    let (pd, cq) = (adapter.create_pd().unwrap(), adapter.create_cq(4, log.note("cq")).unwrap());
    let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default()).unwrap();
    let entered = || access.1.load(Ordering::Relaxed);
    let before = entered();
    let mut results = [crate::ndk::NdkResult::default(); 4];
    for notify in [CqNotify::Errors, CqNotify::Solicited, CqNotify::Any] {
        assert_eq!(cq.poll(&mut results), 0);
        cq.arm(notify);
    }
    assert_eq!(entered(), before);
    qp.receive(1, &[]).unwrap();
    qp.flush();
    bench.settle();
    assert_eq!(log.take(), [("cq", NtStatus::SUCCESS)]);
    qp.receive(2, &[]).unwrap();
    qp.flush();
    let before = entered();
    cq.arm(CqNotify::Any);
    assert_eq!(entered(), before + 1, "a notification is due");
    bench.settle();
    assert_eq!(log.take(), [("cq", NtStatus::SUCCESS)]);
}

// NDK-CQ-13: a queue pair on an overrun queue is unusable, even if it was never connected. It rejects receives, whose
// completions would be lost. Requests posted on the other queue are cancelled.
#[test]
pub(super) fn overrun_fails_idle_queue_pairs() {
    let mut bench = Bench::new(1);
    let side = Side::new(&bench, 0);
    let small = side.adapter.create_cq(1, side.log.note("small")).unwrap();
    let limits = QpLimits::default();
    let victim = side.pd.create_qp(&small, &side.cq, 1, limits).unwrap();
    let idle = side.pd.create_qp(&side.cq, &small, 2, limits).unwrap();
    idle.receive(7, &[]).unwrap();
    small.arm(CqNotify::Errors);
    for context in 0..2 {
        victim.receive(context, &[]).unwrap();
    }
    victim.flush();
    bench.settle();
    assert_eq!(side.log.take(), [("small", NtStatus::BUFFER_OVERFLOW)]);
    assert_eq!(victim.receive(3, &[]), Err(NtStatus::INVALID_DEVICE_STATE));
    assert_eq!(side.outcomes(), [(7, NtStatus::CANCELLED)]);
    for qp in [&victim, &idle] {
        let connector = side.adapter.create_connector().unwrap();
        let status = connector.connect(qp, None, bench.server, LIMITS, b"", |_| {});
        assert_eq!(status, NtStatus::INVALID_DEVICE_STATE);
    }
    assert_eq!(small.resize(5), Err(NtStatus::INVALID_DEVICE_STATE));
    assert_eq!(side.adapter.counters().cq_error, 1);
}

// NDK-CQ-14, NDK-SRQ-4: loss of the device. Armed queues are notified, and each later arm. Requests are cancelled, also
// those of idle queue pairs. Later calls return the status, and objects can be closed.
#[test]
fn device_loss_is_reported_everywhere() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    let idle = Side::new(&bench, 0);
    let quiet = idle.adapter.create_cq(4, idle.log.note("quiet")).unwrap();
    let srq = idle.pd.create_srq(4, 1, 0, idle.log.note("srq")).unwrap();
    let connector = idle.adapter.create_connector().unwrap();
    let listener = idle.adapter.create_listener(|_| {}).unwrap();
    let mr = idle.pd.create_mr(false).unwrap();
    for side in [&active, &idle] {
        side.receive(1, 0, 1);
        side.arm(CqNotify::Any);
    }
    quiet.arm(CqNotify::Errors);
    bench.lose_device(0);
    let internal = NtStatus::INTERNAL_ERROR;
    assert!(active.log.take().contains(&("cq", internal)));
    assert_eq!(idle.log.take(), [("srq", internal), ("cq", internal), ("quiet", internal)]);
    for side in [&active, &idle] {
        assert_eq!(side.outcomes(), [(1, NtStatus::CANCELLED)]);
        side.arm(CqNotify::Solicited);
        bench.settle();
        assert_eq!(side.log.take(), [("cq", internal)], "NDK-CQ-15");
        assert!(!side.qp.is_connected());
    }
    let removed = NtStatus::DEVICE_REMOVED;
    let adapter = &idle.adapter;
    assert_eq!(adapter.create_pd().err(), Some(removed));
    assert_eq!(adapter.create_cq(4, |_| {}).err(), Some(removed));
    assert_eq!(adapter.create_connector().err(), Some(removed));
    assert_eq!(adapter.create_listener(|_| {}).err(), Some(removed));
    assert_eq!(adapter.create_shared_endpoint(bench.server, |_| {}), removed);
    assert_eq!(idle.pd.create_mr(true).err(), Some(removed));
    assert_eq!(idle.pd.create_mw().err(), Some(removed));
    assert_eq!(idle.pd.create_srq(4, 1, 0, |_| {}).err(), Some(removed));
    let limits = QpLimits::default();
    assert_eq!(idle.pd.create_qp(&idle.cq, &idle.cq, 0, limits).err(), Some(removed));
    assert_eq!(mr.register(&idle.buffer, 0, 1, ALL_RIGHTS), Err(removed));
    assert_eq!(quiet.resize(8), Err(removed));
    assert_eq!(quiet.control_interrupt_moderation(1, 2), removed);
    assert_eq!(connector.connect(&idle.qp, None, bench.server, LIMITS, b"", |_| {}), removed);
    assert_eq!(listener.listen(bench.server, |_| {}), removed);
    assert_eq!(idle.qp.receive(2, &[]), Err(removed));
    let data = Data::Registered(&[]);
    assert_eq!(active.qp.send(3, data, OpFlags::empty()), Err(removed));
    let connected = active.connector.as_ref().unwrap();
    assert_eq!(connected.disconnect(|_| {}), removed);
    assert_eq!(connected.close(|| {}), NtStatus::SUCCESS);
    assert_eq!(active.qp.close(|| {}), NtStatus::SUCCESS);
    assert_eq!(srq.close(|| {}), NtStatus::SUCCESS);
    drop(passive);
}

// NDK-DISC-1: a disconnect whose FIN is not acknowledged ends after its time limit.
#[test]
fn disconnect_times_out() {
    let mut bench = Bench::new(1);
    let (active, _passive) = connected(&mut bench);
    bench.is_cut = true;
    active.receive(1, 0, 1);
    let note = active.log.note("disconnect");
    assert_eq!(active.connector.as_ref().unwrap().disconnect(note), NtStatus::PENDING);
    bench.advance(Duration::from_secs(29));
    assert_eq!(active.log.take(), []);
    bench.advance(Duration::from_secs(1));
    assert_eq!(active.log.take(), [("disconnect", NtStatus::IO_TIMEOUT)]);
    assert_eq!(active.outcomes(), [(1, NtStatus::CANCELLED)]);
}

fn creates_nothing(adapter: &Adapter) {
    let refused = Some(NtStatus::INVALID_PARAMETER);
    assert_eq!(adapter.create_pd().err(), refused);
    assert_eq!(adapter.create_cq(1, |_| {}).err(), refused);
    assert_eq!(adapter.create_connector().err(), refused);
    let local = "10.0.0.1:9".parse().unwrap();
    let status = adapter.create_shared_endpoint(local, |_| panic!("refused"));
    assert_eq!(Some(status), refused);
}

// NDK-LIFE-7, NDK-ASY-1: a closed adapter creates no objects, used before or not. Each pending close completes.
#[test]
fn closed_adapter_stays_closed() {
    let mut bench = Bench::new(1);
    let adapter = bench.nodes[0].adapter.clone();
    let none = || panic!("SUCCESS has no completion");
    assert_eq!(adapter.close(none), NtStatus::SUCCESS);
    creates_nothing(&adapter);
    assert_eq!(adapter.close(none), NtStatus::SUCCESS);
    let side = Side::new(&bench, 1);
    let log = Log::default();
    for name in ["first", "second"] {
        let note = log.note(name);
        let status = side.adapter.close(move || note(NtStatus::SUCCESS));
        assert_eq!(status, NtStatus::PENDING);
    }
    creates_nothing(&side.adapter);
    let _ = side.qp.close(|| {});
    let _ = side.mr.close(|| {});
    let _ = side.cq.close(|| {});
    let _ = side.pd.close(|| {});
    bench.settle();
    assert_eq!(log.take(), [("first", NtStatus::SUCCESS), ("second", NtStatus::SUCCESS)]);
    creates_nothing(&side.adapter);
}

// NdkQueryExtensionInterface: the only interface, in its version, at the objects that support it.
#[test]
fn extension_interfaces() {
    let bench = Bench::new(1);
    let side = Side::new(&bench, 0);
    let query = |guid, version| side.qp.query_extension(guid, version);
    let found = Ok(ExtensionInterface::Rfc7306);
    assert_eq!(query(RFC7306_INTERFACE, RFC7306_VERSION), found);
    let none = Err(NtStatus::NOT_SUPPORTED);
    assert_eq!(query(Guid(RFC7306_INTERFACE.0 ^ 1), RFC7306_VERSION), none);
    for (major, minor) in [(1, 1), (2, 0), (0, 0)] {
        assert_eq!(query(RFC7306_INTERFACE, NdkVersion { major, minor }), none);
    }
    assert_eq!(side.adapter.query_extension(RFC7306_INTERFACE, RFC7306_VERSION), none);
    assert_eq!(side.cq.query_extension(RFC7306_INTERFACE, RFC7306_VERSION), none);
}
