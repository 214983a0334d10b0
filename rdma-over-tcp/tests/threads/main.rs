//! A thread at each end of each queue pair's connection: registered memory is filled, sent, placed and read by the
//! consumers' and the engines' threads concurrently.
//!
//! The test is also meant for a race detector, `tests/race`: the memory of an operation is passed from a consumer to
//! the engine and back, and a missing memory order would be a data race.
#![cfg(not(loom))]

mod datagrams;
mod end;
#[path = "../../../host-stack/tests/threads/link.rs"]
mod link;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, mpsc},
    thread,
};

use host_stack::{
    host::HostConfig,
    node::{NodeConfig, Progress},
    stream::OffloadState,
};
use offload_engine::{
    engine::EngineStats,
    link::{
        Link, MemoryLinkOptions, RxBatch,
        wrapper::{LinkWrapper, wraps},
    },
    state::MacAddress,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};
use rdma_over_tcp::ndk::{
    Adapter, AdapterConfig, Connector, Data, DisconnectReason, NdkResultEx, NtStatus, OpFlags,
    QpLimits, SocketsConfig, open, open_queues, open_sockets,
};

use self::end::{CallbackResults, End, LIMIT, LIMITS, RACES, TestNode, move_connections};

const CONNECTIONS: usize = 4;
/// Round trips of each connection.
const ROUNDS: u32 = 40;
/// Completions of each end: an introduction and two messages per round in both directions, a read and a write per
/// round.
const COMPLETIONS: u32 = 2 * (1 + 2 * ROUNDS) + 2 * ROUNDS;
/// Completions of an end that races with its peer.
const COMPLETIONS_OF_A_RACE: u32 = 3 + 3 + 2 * RACES;

fn address(index: usize) -> SocketAddr {
    (Ipv4Addr::new(10, 2, 0, 1 + index as u8), 9).into()
}

fn config(index: usize, progress: Progress) -> NodeConfig {
    let mac = MacAddress([2, 0, 0, 0, 1, 1 + index as u8]);
    NodeConfig { progress, ..NodeConfig::new(HostConfig::new(mac, address(index).ip())) }
}

fn node(index: usize, link: Box<dyn Link>, progress: Progress) -> (TestNode, Adapter) {
    open(link, config(index, progress), AdapterConfig::default()).unwrap()
}

/// Listens at `local`; returns the local address.
fn listen(
    adapter: &Adapter,
    local: SocketAddr,
    on_request: impl Fn(Connector) + Send + Sync + 'static,
) -> SocketAddr {
    let listener = adapter.create_listener(on_request).unwrap();
    let listening = Arc::new(CallbackResults::default());
    let status = listener.listen(local, listening.callback());
    if status == NtStatus::PENDING {
        let status = adapter.wait_until(Some(LIMIT), || listening.status.lock().take());
        assert_eq!(status, Ok(NtStatus::SUCCESS));
    }
    listener.local_address().unwrap()
}

/// Runs the accepting ends: one per incoming request, each on a dedicated thread.
fn accept(
    adapter: &Adapter,
    local: SocketAddr,
    run: fn(End) -> u32,
) -> (SocketAddr, Vec<thread::JoinHandle<u32>>) {
    let incoming: Arc<Mutex<Vec<Connector>>> = Arc::default();
    let requests = incoming.clone();
    let local = listen(adapter, local, move |connector| requests.lock().push(connector));
    let adapter = adapter.clone();
    let ends = (0..CONNECTIONS).map(move |_| {
        let (adapter, incoming) = (adapter.clone(), incoming.clone());
        thread::spawn(move || {
            let end = End::new(&adapter);
            let connector = end.wait("a request", || incoming.lock().pop());
            let status = connector.accept(&end.qp, LIMITS, &[], None, end.callbacks.callback());
            end.status("accept", status);
            run(end)
        })
    });
    (local, ends.collect())
}

/// Runs an end as in most tests.
fn rounds(end: End) -> u32 {
    end.run(|round| round == ROUNDS)
}

// NDK-CQ-1, -2, -3, -11: completions return the memory to the consumer; NDK-LIFE: callbacks run one at a time.
fn memory_passes_between_threads(progress: [Progress; 2]) {
    run_ends(rounds, COMPLETIONS, progress);
}

/// Both ends of each connection run the same code; each has `completions` completions.
fn run_ends(run: fn(End) -> u32, completions: u32, progress: [Progress; 2]) {
    let (one, other) = link::bell_links(MemoryLinkOptions::default());
    let (_near, near_adapter) = node(0, Box::new(one), progress[0]);
    let (_far, far_adapter) = node(1, Box::new(other), progress[1]);
    run_adapters([near_adapter, far_adapter], address(1), run, completions);
}

/// As [`run_ends`], of two adapters.
fn run_adapters(
    [near, far]: [Adapter; 2],
    local: SocketAddr,
    run: fn(End) -> u32,
    completions: u32,
) {
    let (local, mut ends) = accept(&far, local, run);
    ends.extend(connect(&near, local, run));
    for end in ends {
        assert_eq!(end.join().unwrap(), completions);
    }
}

/// Runs the connecting ends.
fn connect(
    adapter: &Adapter,
    remote: SocketAddr,
    run: fn(End) -> u32,
) -> Vec<thread::JoinHandle<u32>> {
    let end = |_| {
        let adapter = adapter.clone();
        thread::spawn(move || {
            let end = End::new(&adapter);
            end.connect(&adapter.create_connector().unwrap(), remote);
            run(end)
        })
    };
    (0..CONNECTIONS).map(end).collect()
}

/// The accepting end has two queues, each with an adapter, and they share a listening address. The device cannot derive
/// the queue of a connection.
fn memory_passes_between_queues(progress: Progress) {
    let (one, queues) = link::queue_links(MemoryLinkOptions::default(), 2);
    let (_near, near_adapter) = node(0, Box::new(one), Progress::Automatic);
    let links = queues.into_iter().map(|queue| Box::new(queue) as Box<dyn Link>).collect();
    let far = open_queues(links, config(1, progress), AdapterConfig::default()).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let runs = |node: &TestNode| {
        let (node, over) = (node.clone(), over.clone());
        let run = move || node.wait_until(None, || over.load(Ordering::Acquire).then_some(()));
        thread::spawn(move || run().unwrap())
    };
    // With manual progress a thread has to run each of them.
    let runners = far.iter().map(|(node, _)| runs(node)).collect::<Vec<_>>();
    let (incoming, requests) = mpsc::channel();
    for (queue, (_, adapter)) in far.iter().enumerate() {
        let incoming = Mutex::new(incoming.clone());
        let on_request = move |connector| incoming.lock().send((queue, connector)).unwrap();
        listen(adapter, address(1), on_request);
    }
    let mut ends = connect(&near_adapter, address(1), rounds);
    let (mut accepted, mut strays) = ([0; 2], 0);
    let all = [(); CONNECTIONS].map(|()| requests.recv_timeout(LIMIT).unwrap());
    for (queue, connector) in all {
        accepted[queue] += 1;
        let ports = [connector.peer_address().unwrap().port(), address(1).port()];
        strays += usize::from(link::queue_of(&ports.map(u16::to_be_bytes).concat(), 2) != queue);
        let adapter = far[queue].1.clone();
        ends.push(thread::spawn(move || {
            let end = End::new(&adapter);
            let status = connector.accept(&end.qp, LIMITS, &[], None, end.callbacks.callback());
            end.status("accept", status);
            rounds(end)
        }));
    }
    for end in ends {
        assert_eq!(end.join().unwrap(), COMPLETIONS);
    }
    over.store(true, Ordering::Release);
    far.iter().for_each(|(node, _)| node.wake());
    runners.into_iter().for_each(|runner| runner.join().unwrap());
    // While none has ended they are distributed evenly, and the last one has arrived before the first was accepted.
    assert_eq!(accepted, [CONNECTIONS / 2; 2]);
    let stats = [0, 1].map(|queue| far[queue].0.with_engine(|engine, _| engine.stats()));
    assert!(stats.iter().all(|stats| stats.rx_segments > 0), "{stats:?}");
    let sum = |count: fn(&EngineStats) -> u64| stats.iter().map(count).sum::<u64>();
    // By chance the device may have steered all of them to their own queue.
    assert_eq!(
        sum(|stats| stats.rx_passed_on) > 0,
        strays > 0,
        "{strays} of {CONNECTIONS}: {stats:?}"
    );
    assert_eq!(sum(|stats| stats.rx_passed_on_dropped), 0);
}

/// Objects of two queues belong to two adapters: an object with the same number in the other adapter is not accepted.
#[test]
fn objects_of_two_adapters_are_not_mixed() {
    let (_one, queues) = link::queue_links(MemoryLinkOptions::default(), 2);
    let links = queues.into_iter().map(|queue| Box::new(queue) as Box<dyn Link>).collect();
    let config = config(1, Progress::Automatic);
    let far = open_queues(links, config, AdapterConfig::default()).unwrap();
    let [(_, one), (_, other)] = &far[..] else { panic!("two queues have two adapters") };
    let (own, others) = (one.create_cq(4, |_| {}).unwrap(), other.create_cq(4, |_| {}).unwrap());
    let pd = one.create_pd().unwrap();
    let refused = NtStatus::INVALID_PARAMETER;
    for (receive, initiator) in [(&own, &others), (&others, &own)] {
        assert_eq!(pd.create_qp(receive, initiator, 0, QpLimits::default()).err(), Some(refused));
    }
    let qp = pd.create_qp(&own, &own, 0, QpLimits::default()).unwrap();
    let foreign = other.create_connector().unwrap();
    let never = |_| panic!("callback of a call refused inline");
    assert_eq!(foreign.connect(&qp, None, address(0), LIMITS, &[], never), refused);
    assert_eq!(foreign.accept(&qp, LIMITS, &[], None, never), refused);
    let region = other.create_pd().unwrap().create_mr(true).unwrap();
    let buffer = one.allocate(4096).unwrap();
    let registered = qp.fast_register(1, &region, &buffer, 0, 4096, 0, OpFlags::empty());
    assert_eq!(registered.err(), Some(refused));
    assert_eq!(qp.invalidate(1, &region, OpFlags::empty()).err(), Some(refused));
}

#[test]
fn memory_passes_between_threads_and_two_queues() {
    memory_passes_between_queues(Progress::Automatic);
}

#[test]
fn memory_passes_between_threads_that_run_two_queues() {
    memory_passes_between_queues(Progress::Manual);
}

#[test]
fn memory_passes_between_threads_and_engines() {
    memory_passes_between_threads([Progress::Automatic, Progress::Automatic]);
}

#[test]
fn memory_passes_between_threads_that_run_the_engine() {
    memory_passes_between_threads([Progress::Automatic, Progress::Manual]);
}

#[test]
fn memory_passes_between_threads_that_share_the_engine() {
    memory_passes_between_threads([Progress::Shared, Progress::Shared]);
}

// Connections are offloaded and uploaded at both ends while their memory is in use.
#[test]
fn memory_passes_while_connections_move() {
    let (one, other) = link::bell_links(MemoryLinkOptions::default());
    let (near, near_adapter) = node(0, Box::new(one), Progress::Automatic);
    let (far, far_adapter) = node(1, Box::new(other), Progress::Automatic);
    let (_, mut ends) = accept(&far_adapter, address(1), rounds);
    ends.extend(connect(&near_adapter, address(1), rounds));
    while !ends.iter().all(thread::JoinHandle::is_finished) {
        for (node, to) in [
            (&near, OffloadState::InHost),
            (&far, OffloadState::InHost),
            (&near, OffloadState::Offloaded),
            (&far, OffloadState::Offloaded),
        ] {
            move_connections(node, to);
        }
    }
    for end in ends {
        assert_eq!(end.join().unwrap(), COMPLETIONS);
    }
    for node in [near, far] {
        let stats = node.with_engine(|engine, _| engine.stats());
        assert!(stats.initiates > 2 * CONNECTIONS as u64, "{stats:?}");
    }
}

#[test]
fn concurrently_written_memory_is_sent_and_read() {
    run_ends(End::race, COMPLETIONS_OF_A_RACE, [Progress::Automatic, Progress::Automatic]);
}

// As above on kernel sockets, where each waiting thread may drive them.
#[test]
fn memory_passes_between_threads_and_kernel_sockets() {
    for (run, completions) in
        [(rounds as fn(End) -> u32, COMPLETIONS), (End::race, COMPLETIONS_OF_A_RACE)]
    {
        let ends = [0, 1]
            .map(|_| open_sockets(SocketsConfig::default(), AdapterConfig::default()).unwrap());
        run_adapters(ends, (Ipv4Addr::LOCALHOST, 0).into(), run, completions);
    }
}

/// Device that can be removed.
struct RemovableLink<L> {
    link: L,
    is_gone: Arc<AtomicBool>,
}

impl<L: Link> LinkWrapper for RemovableLink<L> {
    wraps!(L, link);

    fn receive(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        match self.is_gone.load(Ordering::Relaxed) {
            true => Err(io::Error::other("no such device")),
            false => self.link.receive(now, batch),
        }
    }
}

// The device is removed under an idle queue pair: its receives are flushed and its consumer gets an event, without a
// call of the consumer; later requests fail.
#[test]
fn removed_device_flushes_requests() {
    let (one, other) = link::bell_links(MemoryLinkOptions::default());
    let is_gone = Arc::<AtomicBool>::default();
    let link = RemovableLink { link: one, is_gone: is_gone.clone() };
    let (near, near_adapter) = node(0, Box::new(link), Progress::Automatic);
    let (_far, far_adapter) = node(1, Box::new(other), Progress::Automatic);
    let incoming: Arc<Mutex<Vec<Connector>>> = Arc::default();
    let requests = incoming.clone();
    listen(&far_adapter, address(1), move |connector| requests.lock().push(connector));
    let passive = End::new(&far_adapter);
    let accepting = thread::spawn(move || {
        let connector = passive.wait("a request", || incoming.lock().pop());
        let status = connector.accept(&passive.qp, LIMITS, &[], None, passive.callbacks.callback());
        passive.status("accept", status);
    });
    let end = End::new(&near_adapter);
    let connector = near_adapter.create_connector().unwrap();
    let status =
        connector.connect(&end.qp, None, address(1), LIMITS, &[], end.callbacks.callback());
    end.status("connect", status);
    let (events, event) = mpsc::channel();
    let disconnected = Box::new(move |reason| events.send(reason).unwrap());
    end.status(
        "complete",
        connector.complete_connect(Some(disconnected), end.callbacks.callback()),
    );
    accepting.join().unwrap();

    is_gone.store(true, Ordering::Relaxed);
    near.doorbell().ring();
    assert_eq!(event.recv_timeout(LIMIT), Ok(DisconnectReason::DEVICE_LOST.0));
    let mut results = [NdkResultEx::default(); 4];
    let count = end.cq.poll_ex(&mut results);
    let statuses: Vec<_> = results[..count].iter().map(|result| result.status).collect();
    assert_eq!(statuses, [NtStatus::CANCELLED; 2]);
    let post = end.qp.send(0, Data::Inline(&[b"late"]), OpFlags::empty());
    assert_eq!(post, Err(NtStatus::DEVICE_REMOVED));
    assert_eq!(near_adapter.create_connector().err(), Some(NtStatus::DEVICE_REMOVED));
    let (closed, close) = mpsc::channel();
    if connector.close(move || closed.send(()).unwrap()) == NtStatus::PENDING {
        assert_eq!(close.recv_timeout(LIMIT), Ok(()));
    }
    assert_eq!(end.cq.close(|| {}), NtStatus::PENDING);
}
