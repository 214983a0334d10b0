//! Object lifetimes: NDK-LIFE-1 to -7, -11 to -13, endpoints.

use std::{
    boxed::Box,
    sync::{Arc, Mutex},
    vec::Vec,
};

use offload_engine::time::Duration;

use super::{
    bench::Bench,
    sides::{LIMITS, RESET, Side, connected, listen},
};
use crate::{
    ndk::{
        AdapterConfig, AdapterFlags, Connector, CqNotify, Deferral, NtStatus, OpFlags, QpLimits,
    },
    rnic::{Close, Key},
};

/// Records the order of close completions.
#[derive(Clone, Default)]
struct Order(Arc<Mutex<Vec<&'static str>>>);

impl Order {
    fn note(&self, name: &'static str) -> impl FnOnce() + Send + 'static {
        let order = self.0.clone();
        move || order.lock().unwrap().push(name)
    }

    fn take(&self) -> Vec<&'static str> {
        core::mem::take(&mut self.0.lock().unwrap())
    }
}

// NDK-LIFE-1, -4, -5, -6, -9, -10: antecedents closed first all pend, and complete after their successors.
#[test]
pub(super) fn antecedents_first() {
    let mut bench = Bench::new(1);
    let (active, _passive) = connected(&mut bench);
    let order = Order::default();
    let connector = active.connector.clone().unwrap();
    assert_eq!(active.adapter.close(order.note("adapter")), NtStatus::PENDING);
    assert_eq!(active.pd.close(order.note("pd")), NtStatus::PENDING);
    assert_eq!(active.cq.close(order.note("cq")), NtStatus::PENDING);
    assert_eq!(active.qp.close(order.note("qp")), NtStatus::PENDING, "the connector references it");
    bench.settle();
    assert_eq!(order.take(), [] as [&str; 0]);
    assert!(active.adapter.create_pd().is_err(), "closing");
    assert_eq!(active.mr.close(order.note("mr")), NtStatus::SUCCESS, "no references");
    assert_eq!(connector.close(order.note("connector")), NtStatus::SUCCESS);
    bench.settle();
    let closed = order.take();
    assert_eq!(closed[0], "qp");
    assert_eq!(closed[3], "adapter", "{closed:?}");
    assert!(closed[1..3].contains(&"pd") && closed[1..3].contains(&"cq"));
    assert!(bench.nodes[0].is_idle());
}

// NDK-LIFE-6: the antecedent waits until the successor's completion has returned, not only started.
#[test]
fn completion_must_have_returned() {
    let mut bench = Bench::new(1);
    let side = Side::new(&bench, 0);
    let order = Order::default();
    // A running notification pins the queue.
    side.arm(CqNotify::Any);
    side.receive(1, 0, 1);
    side.qp.flush();
    let running = core::mem::take(bench.nodes[0].access().lock().callbacks());
    assert_eq!(running.len(), 1, "started, not returned");
    assert_eq!(side.qp.close(order.note("qp")), NtStatus::SUCCESS);
    assert_eq!(side.cq.close(order.note("cq")), NtStatus::PENDING, "NDK-LIFE-8");
    bench.settle();
    assert_eq!(order.take(), [] as [&str; 0]);
    running.into_iter().for_each(|callback| callback());
    bench.settle();
    assert_eq!(order.take(), ["cq"]);
    assert_eq!(side.log.take(), [("cq", NtStatus::SUCCESS)]);
}

// NDK-LIFE-7, NDK-ASY-3: a close from inside the object's own completion; no callback follows it.
#[test]
pub(super) fn close_inside_the_own_completion() {
    let mut bench = Bench::new(1);
    let side = Side::new(&bench, 0);
    let connector = side.adapter.create_connector().unwrap();
    let order = Order::default();
    let (own, inner) = (connector.clone(), order.clone());
    let completion = move |status| {
        assert_eq!(status, NtStatus::CONNECTION_REFUSED);
        assert_eq!(own.close(inner.note("connector")), NtStatus::PENDING, "it has not returned");
        inner.note("returns")();
    };
    let remote = bench.server;
    let status = connector.connect(&side.qp, None, remote, LIMITS, b"", completion);
    assert_eq!(status, NtStatus::PENDING);
    bench.settle();
    assert_eq!(order.take(), ["returns", "connector"]);
    assert_eq!(side.qp.close(|| {}), NtStatus::SUCCESS, "released by the failed connect");
}

// A timer fires when it is due, and pins its object until then. The loss of the device fires it immediately.
#[test]
fn timer_is_called_when_due_or_by_the_loss_of_the_device() {
    let mut bench = Bench::new(1);
    let (adapter, order) = (bench.nodes[0].adapter.clone(), Order::default());
    let pause = Duration::from_millis(10);
    let start = || {
        adapter.with(|core, now| {
            let key = Key::Connector(core.create_connector().unwrap());
            core.call_at(now + pause, key, Box::new(order.note("timer")))
                .map_err(drop)
                .map(|()| key)
        })
    };
    let key = start().unwrap();
    bench.advance(pause / 2);
    let close = adapter.with(|core, _| core.close(key, Box::new(order.note("close"))));
    assert_eq!(close, Close::Pending);
    bench.settle();
    assert_eq!(order.take(), [] as [&str; 0]);
    bench.advance(pause / 2);
    assert_eq!(order.take(), ["timer", "close"]);

    let key = start().unwrap();
    bench.lose_device(0);
    assert_eq!(order.take(), ["timer"]);
    let late = adapter.with(|core, now| core.call_at(now, key, Box::new(|| {})));
    assert!(late.is_err(), "no loop is running");
}

// NDK-LIFE-2: the id of a closed object is invalid, also after its slot is reused.
#[test]
pub(super) fn stale_handles() {
    let mut bench = Bench::new(1);
    let side = Side::new(&bench, 0);
    assert_eq!(side.qp.close(|| {}), NtStatus::SUCCESS);
    let other = side.pd.create_qp(&side.cq, &side.cq, 9, QpLimits::default()).unwrap();
    assert_eq!(side.qp.receive(1, &[]), Err(NtStatus::INVALID_PARAMETER));
    side.qp.flush();
    assert_eq!(side.qp.close(|| {}), NtStatus::SUCCESS);
    other.receive(1, &[]).unwrap();
    bench.settle();
    assert_eq!(side.outcomes(), []);
}

// NDK-LIFE-3, -11, -12: closing a connected queue pair resets and flushes; its completions remain.
#[test]
pub(super) fn close_of_a_connected_queue_pair() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    active.receive(1, 0, 1);
    let order = Order::default();
    assert_eq!(active.qp.close(order.note("qp")), NtStatus::PENDING);
    bench.settle();
    assert_eq!(active.outcomes(), [(1, NtStatus::CANCELLED)]);
    assert_eq!(passive.log.take(), [("disconnect event", RESET)]);
    let connector = active.connector.clone().unwrap();
    assert_eq!(connector.close(order.note("connector")), NtStatus::SUCCESS);
    bench.settle();
    assert_eq!(order.take(), ["qp"]);
}

// NDK-EP-1, -2, -5: the address stays in use until the accepted connector is closed.
#[test]
pub(super) fn endpoint_reuse() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    // `connected` has closed its listener; the accepted connector keeps the endpoint.
    let listener = passive.adapter.create_listener(|_| {}).unwrap();
    let local = bench.server;
    assert_eq!(listener.listen(local, |_| {}), NtStatus::SHARING_VIOLATION);
    let remote = bench.server;
    let other = Side::new(&bench, 0);
    let connector = other.adapter.create_connector().unwrap();
    let note = other.log.note("connect");
    let status = connector.connect(&other.qp, None, remote, LIMITS, b"", note);
    assert_eq!(status, NtStatus::PENDING);
    bench.settle();
    assert_eq!(other.log.take(), [("connect", NtStatus::CONNECTION_REFUSED)], "NDK-EP-5");
    assert_eq!(passive.connector.clone().unwrap().close(|| {}), NtStatus::SUCCESS);
    bench.settle();
    assert_eq!(listener.listen(local, |_| {}), NtStatus::PENDING);
    assert_eq!(listener.listen(local, |_| {}), NtStatus::ADDRESS_ALREADY_ASSOCIATED);
    bench.settle();
    assert_eq!(listener.local_address(), Some(local));
    drop(active);
}

// NDK-EP-5, -7, NDK-LIFE-7: a pending connect event is not delivered after its listener is closed.
#[test]
fn connect_event_after_close() {
    let mut bench = Bench::new(1);
    let (listener, mailbox) = listen(&mut bench);
    let active = Side::new(&bench, 0);
    let connector = active.adapter.create_connector().unwrap();
    let note = active.log.note("connect");
    let remote = bench.server;
    let status = connector.connect(&active.qp, None, remote, LIMITS, b"", note);
    assert_eq!(status, NtStatus::PENDING);
    // Run until the event is queued, but not called.
    let mut events = Vec::new();
    while events.is_empty() {
        assert!(bench.step_without_callbacks(1));
        events.append(bench.nodes[1].access().lock().callbacks());
    }
    let order = Order::default();
    assert_eq!(listener.close(order.note("listener")), NtStatus::PENDING);
    events.into_iter().for_each(|event| event());
    bench.settle();
    assert!(mailbox.lock().unwrap().is_empty());
    assert_eq!(order.take(), ["listener"]);
    assert_eq!(active.log.take(), [("connect", NtStatus::CONNECTION_REFUSED)]);
    assert!(bench.nodes[1].access().lock().is_idle());
}

/// Closes a connector in its event, then accepts it. Returns the statuses of both calls.
fn close_and_accept(seed: u64) -> (NtStatus, NtStatus) {
    let deferral = Some(Deferral { seed, delay_max: Duration::from_millis(1) });
    let mut bench = Bench::with(1, AdapterConfig { deferral, ..AdapterConfig::default() });
    let (active, passive) = (Side::new(&bench, 0), Side::new(&bench, 1));
    let (statuses, qp) = (Arc::new(Mutex::new(Vec::new())), passive.qp.clone());
    let results = statuses.clone();
    let event = move |connector: Connector| {
        let close = connector.close(|| {});
        let accept = connector.accept(&qp, LIMITS, b"", None, |_| panic!("it does not pend"));
        results.lock().unwrap().push((close, accept));
    };
    let listener = passive.adapter.create_listener(event).unwrap();
    let note = passive.log.note("listen");
    assert_eq!(listener.listen(bench.server, note), NtStatus::PENDING);
    bench.settle();
    let connector = active.adapter.create_connector().unwrap();
    let note = active.log.note("connect");
    let status = connector.connect(&active.qp, None, bench.server, LIMITS, b"", note);
    assert_eq!(status, NtStatus::PENDING);
    bench.settle();
    assert_eq!(active.log.take(), [("connect", NtStatus::CONNECTION_REFUSED)]);
    let statuses = statuses.lock().unwrap();
    assert_eq!(statuses.len(), 1);
    statuses[0]
}

// NDK-LIFE-2: a closed object cannot be used, even while its close pends. An accept after it would never be closed.
#[test]
fn connector_with_pending_close_is_not_accepted() {
    let statuses: Vec<_> = (0..8).map(close_and_accept).collect();
    assert!(statuses.iter().any(|(close, _)| *close == NtStatus::PENDING), "{statuses:?}");
    for (_, accept) in statuses {
        assert_eq!(accept, NtStatus::CONNECTION_INVALID);
    }
}

// NDKPI: the limits of NDK_ADAPTER_INFO are those of creation.
#[test]
pub(super) fn creation_limits() {
    let bench = Bench::new(1);
    let side = Side::new(&bench, 0);
    let info = side.adapter.info();
    let invalid = NtStatus::INVALID_PARAMETER;
    assert_eq!(side.adapter.create_cq(info.max_cq_depth + 1, |_| {}).err(), Some(invalid));
    assert_eq!(side.cq.resize(info.max_cq_depth + 1), Err(invalid));
    let most = QpLimits {
        receive_queue_depth: info.max_receive_queue_depth,
        initiator_queue_depth: info.max_initiator_queue_depth,
        max_receive_request_sge: info.max_receive_request_sge,
        max_initiator_request_sge: info.max_initiator_request_sge,
        inline_data_size: info.max_inline_data_size,
    };
    let create = |limits| side.pd.create_qp(&side.cq, &side.cq, 0, limits).err();
    assert_eq!(create(most), None);
    for over in [
        QpLimits { receive_queue_depth: most.receive_queue_depth + 1, ..most },
        QpLimits { initiator_queue_depth: most.initiator_queue_depth + 1, ..most },
        QpLimits { max_receive_request_sge: most.max_receive_request_sge + 1, ..most },
        QpLimits { max_initiator_request_sge: most.max_initiator_request_sge + 1, ..most },
        QpLimits { inline_data_size: most.inline_data_size + 1, ..most },
    ] {
        assert_eq!(create(over), Some(invalid));
    }
    assert_eq!(info.max_srq_depth, 64 * 1024, "NDK-SRQ-1");
    assert!(info.adapter_flags.contains(AdapterFlags::CQ_RESIZE_SUPPORTED), "NDK-RSZ-1");
    assert_eq!(info.max_window_size, info.max_registration_size);
    assert_eq!(side.adapter.create_cq(0, |_| {}).err(), Some(invalid));
    let mr = side.pd.create_mr(true).unwrap();
    let pages = info.frmr_page_count;
    assert_eq!(mr.initialize_fast_register(pages + 1, true), Err(NtStatus::IMPLEMENTATION_LIMIT));
    assert_eq!(mr.initialize_fast_register(pages, true), Ok(()));
}

// NDK-LIFE-3, -4, NDK-DISC-1: closes directly after a disconnect wait for it; no data is lost.
#[test]
pub(super) fn close_after_disconnect() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    let order = Order::default();
    passive.receive(1, 0, 200_000);
    active.fill(0, 200_000, 3);
    active.send(2, 0, 200_000);
    let connector = active.connector.clone().unwrap();
    let note = order.note("disconnect");
    assert_eq!(connector.disconnect(move |_| note()), NtStatus::PENDING);
    assert_eq!(active.qp.close(order.note("qp")), NtStatus::PENDING);
    assert_eq!(connector.close(order.note("connector")), NtStatus::PENDING);
    bench.settle();
    assert_eq!(order.take(), ["disconnect", "connector", "qp"]);
    assert_eq!(active.outcomes(), [(2, NtStatus::SUCCESS)]);
    assert_eq!(passive.outcomes(), [(1, NtStatus::SUCCESS)]);
    assert_eq!(passive.log.take(), [("disconnect event", NtStatus(0))]);
    assert!(passive.content(0, 200_000) == active.content(0, 200_000));
}

// NDK-LIFE-3, -11: closing a queue pair while its connect is pending flushes its receives.
#[test]
fn close_of_a_connecting_queue_pair() {
    let mut bench = Bench::new(1);
    let side = Side::new(&bench, 0);
    let (_listener, _mailbox) = listen(&mut bench);
    side.receive(1, 0, 10);
    let connector = side.adapter.create_connector().unwrap();
    let note = side.log.note("connect");
    let remote = bench.server;
    assert_eq!(connector.connect(&side.qp, None, remote, LIMITS, &[], note), NtStatus::PENDING);
    bench.settle();
    assert_eq!(side.qp.close(|| {}), NtStatus::SUCCESS, "the connect has ended");
    bench.settle();
    assert_eq!(side.log.take(), [("connect", NtStatus::CANCELLED)]);
    assert_eq!(side.outcomes(), [(1, NtStatus::CANCELLED)]);
}

// NDK-LIFE-4: the close of a region waits for a queued fast registration, which then fails.
#[test]
fn close_of_region_after_registration() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    let mr = active.pd.create_mr(true).unwrap();
    mr.initialize_fast_register(1, true).unwrap();
    bench.is_cut = true;
    let (source, sink) = (passive.sge(0, 10), active.sge(0, 10));
    active.qp.read(1, &[sink], source.address, source.token, OpFlags::empty()).unwrap();
    // After the read, whose response does not arrive.
    let flags = OpFlags::READ_FENCE | OpFlags::ALLOW_REMOTE_READ;
    active.qp.fast_register(2, &mr, &active.buffer, 0, 10, 0, flags).unwrap();
    let order = Order::default();
    assert_eq!(mr.close(order.note("region")), NtStatus::PENDING);
    bench.settle();
    assert_eq!(order.take(), [] as [&str; 0]);
    bench.is_cut = false;
    bench.settle();
    let refused = NtStatus::INVALID_DEVICE_REQUEST;
    assert_eq!(active.outcomes(), [(1, NtStatus::SUCCESS), (2, refused)]);
    assert_eq!(order.take(), ["region"]);
}
