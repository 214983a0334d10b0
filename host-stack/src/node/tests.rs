//! Wake-ups and errors of blocked callers.

use std::{
    net::SocketAddr,
    sync::{
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
};

use offload_engine::{
    chimney::client::{ConnectionEvent, ConnectionIo, OffloadClient, OffloadHandle},
    engine::Callback,
    link::{
        MemoryLink, MemoryLinkOptions, RxBatch, TxFrame, TxOutcome, memory_link_pair,
        wrapper::{LinkWrapper, wraps},
    },
    nbl::{NblChain, NetBufferList, ReceiveChain},
};

use super::*;
use crate::{simulation::station, socket::OffloadPolicy, stream::Streams};

/// Time limit of a failing test, so it may be long.
const LIMIT: Duration = Duration::from_secs(60);

/// Client without a connection, whose host has one notice.
#[derive(Default)]
struct NoticeClient {
    is_sent: bool,
    is_received: bool,
    due: Vec<Callback>,
    /// True to panic in the next poll by the engine's thread.
    panics: bool,
    /// Remaining polls that report work.
    busy_polls: u32,
    /// Number of device-lost notifications.
    losses: u32,
    /// Makes a callback due in the poll after the device-lost callback returns.
    follow_up: Option<FollowUp>,
}

struct FollowUp {
    has_returned: Arc<AtomicBool>,
    callback: Callback,
}

impl OffloadClient for NoticeClient {
    fn offloaded(&mut self, _io: &mut ConnectionIo<'_>) {}
    fn receive(&mut self, _io: &mut ConnectionIo<'_>, data: &[u8], _push: bool) -> usize {
        data.len()
    }
    fn receive_complete(&mut self, _io: &mut ConnectionIo<'_>, _chain: ReceiveChain) {}
    fn send_complete(&mut self, _io: &mut ConnectionIo<'_>, _chain: NblChain) {}
    fn send_room(&mut self, _io: &mut ConnectionIo<'_>) {}
    fn disconnect_complete(&mut self, _io: &mut ConnectionIo<'_>, _nbl: NetBufferList) {}
    fn event(&mut self, _io: &mut ConnectionIo<'_>, _event: ConnectionEvent) {}
    fn uploaded(&mut self, _handle: OffloadHandle) {}
}

impl NodeClient for NoticeClient {
    fn poll(&mut self, _now: Instant, _connections: &mut Connections) -> bool {
        let of_engine = std::thread::current().name() == Some("flue-engine");
        assert!(!(self.panics && of_engine), "panic requested by the test");
        let is_due = self.is_sent && !self.is_received;
        self.is_received |= is_due;
        let is_restless = self.busy_polls > 0;
        self.busy_polls -= u32::from(is_restless);
        let followed = self.follow_up.take_if(|it| it.has_returned.load(Ordering::Relaxed));
        let follows = followed.is_some();
        self.due.extend(followed.map(|it| it.callback));
        is_due | is_restless | follows
    }
    fn has_input(&self) -> bool {
        self.panics || (self.is_sent && !self.is_received)
    }
    fn take_callbacks(&mut self, callbacks: &mut Vec<Callback>) {
        callbacks.append(&mut self.due);
    }
    fn device_lost(&mut self) {
        self.losses += 1;
        if let Some(FollowUp { has_returned, .. }) = &self.follow_up {
            let has_returned = has_returned.clone();
            self.due.push(Box::new(move || has_returned.store(true, Ordering::Relaxed)));
        }
        assert!(!self.panics, "another panic requested by the test");
    }
}

fn config(progress: Progress) -> NodeConfig {
    NodeConfig { progress, spin: Duration::ZERO, ..NodeConfig::new(HostConfig::default()) }
}

fn link() -> Box<dyn Link> {
    Box::new(memory_link_pair(MemoryLinkOptions::default()).0)
}

fn start(progress: Progress) -> Node<NoticeClient> {
    Node::start(link(), config(progress), |_| NoticeClient::default()).unwrap()
}

fn start_queues(count: usize, progress: Progress) -> Vec<Node<NoticeClient>> {
    let links = (0..count).map(|_| link()).collect();
    Node::start_queues(links, config(progress), |_| NoticeClient::default()).unwrap()
}

/// The notice arrives after the condition was evaluated, in the same call: no other wake-up follows.
fn notice_after_the_check_ends_the_wait(progress: Progress) {
    let node = start(progress);
    let (begin, mut evaluations) = (node.now(), 0);
    let is_received = node.wait(Some(LIMIT), |client, _, _| {
        let is_received = client.is_received;
        client.is_sent = true;
        evaluations += 1;
        is_received.then_some(())
    });
    assert_eq!(is_received, Ok(()));
    assert_eq!(evaluations, 2);
    assert!(node.now() - begin < LIMIT, "only the time limit ended the wait");
}

#[test]
fn notice_after_the_check_ends_the_wait_with_threads() {
    notice_after_the_check_ends_the_wait(Progress::Automatic);
}

#[test]
fn notice_after_the_check_ends_the_wait_without_threads() {
    notice_after_the_check_ends_the_wait(Progress::Manual);
}

#[test]
fn notice_after_the_check_ends_the_wait_with_shared_progress() {
    notice_after_the_check_ends_the_wait(Progress::Shared);
}

/// With manual progress a call runs the loop once, and reports whether there was work. Due callbacks have run when it
/// returns. With automatic progress only the node's threads run the loop.
#[test]
fn progress_once_runs_one_round() {
    let node = start(Progress::Manual);
    node.progress_once();
    let called = Arc::new(AtomicUsize::new(0));
    let counts = called.clone();
    node.shared.with_core(|core, _| {
        let client = core.clients.first_mut::<NoticeClient>();
        client.is_sent = true;
        client.due.push(Box::new(move || {
            counts.fetch_add(1, Ordering::Relaxed);
        }));
    });
    assert!(node.progress_once());
    assert_eq!(called.load(Ordering::Relaxed), 1);
    assert!(node.with(|client, _, _| client.is_received));
    assert!(!node.progress_once(), "nothing is left");
    assert!(!start(Progress::Automatic).progress_once());
}

/// With shared progress the node's thread runs the loop without a wait or poll, also after a consumer has polled.
#[test]
fn shared_progress_does_not_depend_on_callers() {
    let node = start(Progress::Shared);
    for round in 0..2 {
        assert_eq!(node.list(LIMIT), Ok(Vec::new()), "{round}");
        (0..1000).for_each(|_| {
            node.progress_once();
        });
    }
}

/// Permanent work does not extend a wait.
#[test]
fn busy_client_does_not_extend_waits() {
    let node = start(Progress::Manual);
    node.with(|client, _, _| client.busy_polls = 20_000_000);
    let outcome = node.wait_until(Some(Duration::from_millis(1)), || None::<()>);
    assert_eq!(outcome, Err(WaitError::TimedOut));
    assert!(node.with(|client, _, _| client.busy_polls) > 0);
}

/// A panic in a callback affects only its consumer: callbacks after it are still called.
#[test]
fn callback_panic_affects_no_other_callback() {
    let node = start(Progress::Automatic);
    let called = Arc::new(AtomicUsize::new(0));
    let count = || {
        let called = called.clone();
        Box::new(move || {
            called.fetch_add(1, Ordering::Relaxed);
        }) as Callback
    };
    for _ in 0..2 {
        node.with(|client, _, _| {
            client.due.push(Box::new(|| panic!("panic requested by the test")));
            client.due.push(count());
        });
    }
    let both = node.wait_until(Some(LIMIT), || (called.load(Ordering::Relaxed) == 2).then_some(()));
    assert_eq!(both, Ok(()));
}

/// Link of a removed device, as reported by its reads.
struct LostLink(Box<dyn Link>);

impl LinkWrapper for LostLink {
    wraps!(Box<dyn Link>, 0);

    fn receive(&mut self, _now: Instant, _batch: &mut RxBatch) -> io::Result<usize> {
        Err(io::Error::other("no such device"))
    }
}

fn lost_link() -> Box<dyn Link> {
    Box::new(LostLink(link()))
}

/// All waits without a time limit return the reason, with threads or without, whatever the queue.
#[test]
fn lost_device_ends_every_wait() {
    let link_lost = WaitError::Link("no such device".into());
    for progress in [Progress::Automatic, Progress::Manual, Progress::Shared] {
        let node = Node::start(lost_link(), config(progress), |_| NoticeClient::default()).unwrap();
        for _ in 0..2 {
            assert_eq!(node.wait_until(None, || None::<()>), Err(link_lost.clone()));
        }
    }
    let links: Vec<Box<dyn Link>> = Vec::from([link(), lost_link()]);
    let nodes = Node::start_queues(links, config(Progress::Automatic), |_| NoticeClient::default())
        .unwrap();
    for node in &nodes {
        assert_eq!(node.wait_until(None, || None::<()>), Err(link_lost.clone()));
    }
}

/// The engine's thread has panicked: present and later waits without a time limit return the reason.
#[test]
fn client_panic_ends_every_wait() {
    let node = start(Progress::Automatic);
    let waits = node.clone();
    let other = std::thread::spawn(move || waits.wait_until(None, || None::<()>));
    node.with(|client, _, _| client.panics = true);
    assert_eq!(other.join().unwrap(), Err(WaitError::Panicked));
    assert_eq!(node.wait_until(None, || None::<()>), Err(WaitError::Panicked));
}

/// The thread that detects a panic stops the device. Each client is notified once, even if that notification panics.
#[test]
fn abandoned_node_notifies_every_client() {
    for (progress, panics) in [
        (Progress::Automatic, false),
        (Progress::Manual, false),
        (Progress::Automatic, true),
        (Progress::Shared, false),
    ] {
        let nodes = start_queues(2, progress);
        nodes[0].with(|client, _, _| client.panics = panics);
        if panics {
            assert_eq!(nodes[0].wait_until(None, || None::<()>), Err(WaitError::Panicked));
        }
        for _ in 0..2 {
            nodes[1].abandon();
        }
        for node in &nodes {
            assert_eq!(node.wait_until(None, || None::<()>), Err(WaitError::Panicked));
            assert_eq!(node.with(|client, _, _| client.losses), 1);
        }
    }
}

/// After the device is lost no thread runs the loop. Work deferred until a callback returns still completes.
#[test]
fn lost_device_callbacks_complete_deferred_work() {
    for progress in [Progress::Automatic, Progress::Manual, Progress::Shared] {
        let node = start(progress);
        let (called, calls) = mpsc::channel();
        node.with(|client, _, _| {
            let callback = Box::new(move || called.send(()).unwrap());
            client.follow_up = Some(FollowUp { has_returned: Arc::default(), callback });
        });
        node.abandon();
        assert_eq!(calls.recv_timeout(LIMIT), Ok(()), "{progress:?}");
    }
}

/// Shards share the host stack and the device: none continues without the others.
#[test]
fn panic_in_one_shard_ends_all() {
    let nodes = start_queues(3, Progress::Automatic);
    let waits = nodes[2].clone();
    let other = std::thread::spawn(move || waits.wait_until(None, || None::<()>));
    nodes[0].with(|client, _, _| client.panics = true);
    assert_eq!(other.join().unwrap(), Err(WaitError::Panicked));
    assert_eq!(nodes[1].wait_until(None, || None::<()>), Err(WaitError::Panicked));
}

/// Each shard has its lock, client and waits; the host stack answers to any of them on its own thread.
#[test]
fn shards_are_nodes_of_their_own() {
    for progress in [Progress::Automatic, Progress::Manual, Progress::Shared] {
        let nodes = start_queues(2, progress);
        let mut engines = 0;
        nodes[0].with_engines(|_, _| engines += 1);
        assert_eq!(engines, 2);
        nodes[1].with(|client, _, _| client.is_sent = true);
        let is_received =
            nodes[1].wait(Some(LIMIT), |client, _, _| client.is_received.then_some(client.is_sent));
        assert_eq!(is_received, Ok(true));
        assert!(!nodes[0].with(|client, _, _| client.is_sent || client.is_received));
        for node in &nodes {
            assert_eq!(node.list(LIMIT), Ok(Vec::new()));
        }
    }
    let none =
        Node::start_queues(Vec::new(), config(Progress::Automatic), |_| NoticeClient::default());
    assert_eq!(none.err().map(|error| error.kind()), Some(io::ErrorKind::InvalidInput));
}

/// A connection in the host stack, or offloaded, and the thread that runs the loop.
const PLACES: [(OffloadPolicy, Progress); 4] = [
    (OffloadPolicy::Never, Progress::Automatic),
    (OffloadPolicy::Always, Progress::Automatic),
    (OffloadPolicy::Always, Progress::Manual),
    (OffloadPolicy::Always, Progress::Shared),
];

/// Two nodes on a memory link, and a connection between them.
fn connected(
    options: MemoryLinkOptions,
    policy: OffloadPolicy,
    progress: Progress,
) -> [(Node<Streams>, OffloadHandle); 2] {
    connected_over(options, |link| link, policy, progress)
}

/// As `connected`, with `near_link` around the first node's end of the link.
fn connected_over<L: Link + 'static>(
    options: MemoryLinkOptions,
    near_link: impl FnOnce(MemoryLink) -> L,
    policy: OffloadPolicy,
    progress: Progress,
) -> [(Node<Streams>, OffloadHandle); 2] {
    let address = SocketAddr::from(([10, 0, 0, 2], 7));
    let (one, other) = memory_link_pair(options);
    let ends: [(u8, Box<dyn Link>, Progress); 2] =
        [(1, Box::new(near_link(one)), progress), (2, Box::new(other), Progress::Automatic)];
    let [near, far] = ends.map(|(number, link, progress)| {
        let host = HostConfig { policy, ..station(number) };
        let config = NodeConfig { progress, spin: Duration::ZERO, ..NodeConfig::new(host) };
        Node::start(link, config, Streams::new).unwrap()
    });
    let listener = far.with(|streams, _, _| streams.listen(address, 1));
    far.wait(Some(LIMIT), |streams, _, _| streams.listening(listener)).unwrap().unwrap();
    let client = near.with(|streams, _, _| streams.connect(None, address, LIMIT));
    let connected = |streams: &mut Streams| streams.status(client)?.connected.then_some(());
    near.wait(Some(LIMIT), |streams, _, _| connected(streams)).unwrap();
    let server = far.wait(Some(LIMIT), |streams, _, _| streams.accept(listener)).unwrap();
    [(near, client), (far, server)]
}

/// Only a received frame wakes a node that sleeps on a memory link, with the connection in either stack and with either
/// progress mode.
#[test]
fn nodes_on_a_memory_link_wake_each_other() {
    const ROUNDS: u8 = 20;
    for (policy, progress) in PLACES {
        let ends = connected(MemoryLinkOptions::default(), policy, progress);
        let [(near, client), (far, server)] = ends;
        let answers = std::thread::spawn(move || {
            for _ in 0..ROUNDS {
                far.wait(Some(LIMIT), |streams, connections, now| {
                    let question = streams.receive(now, connections, server)?;
                    streams.send(now, connections, server, question);
                    Some(())
                })
                .unwrap();
            }
            far
        });
        for round in 0..ROUNDS {
            let question = Vec::from([round]).into();
            near.with(|streams, connections, now| {
                streams.send(now, connections, client, question);
            });
            let answer = near.wait(Some(LIMIT), |streams, connections, now| {
                streams.receive(now, connections, client)
            });
            assert_eq!(answer.as_deref(), Ok(&[round][..]), "{policy:?} {progress:?}");
        }
        drop(answers.join().unwrap());
    }
}

/// Free space in its queue wakes a sender that has found it full: two frames per timeout would take too long.
#[test]
fn room_in_a_memory_link_wakes_the_sender() {
    const BYTES: usize = 2 << 20;
    let options = MemoryLinkOptions { offloads: false, queue_frames_max: 2, mtu: 1500 };
    for policy in [OffloadPolicy::Never, OffloadPolicy::Always] {
        let [(near, client), (far, server)] = connected(options, policy, Progress::Automatic);
        near.with(|streams, connections, now| {
            streams.send(now, connections, client, std::vec![1; BYTES].into());
        });
        let mut left = BYTES;
        let all = far.wait(Some(LIMIT), |streams, connections, now| {
            while let Some(piece) = streams.receive(now, connections, server) {
                left -= piece.len();
            }
            (left == 0).then_some(())
        });
        assert_eq!(all, Ok(()), "{policy:?}: {left} bytes are missing");
        assert!(near.with_engine(|engine, _| engine.link_stats().tx_full) > 0);
    }
}

/// Closes the near side, and waits until the far one has received the FIN.
fn half_close(
    near: &Node<Streams>,
    client: OffloadHandle,
    far: &Node<Streams>,
    server: OffloadHandle,
) {
    near.with(|streams, connections, now| streams.shutdown(now, connections, client));
    far.wait(Some(LIMIT), |streams, connections, now| {
        let _ = streams.receive(now, connections, server);
        streams.status(server)?.peer_closed.then_some(())
    })
    .unwrap();
}

/// Link that drops frames to send while it is muted.
struct MutedLink {
    link: MemoryLink,
    is_mute: Arc<AtomicBool>,
    lost: mpsc::Sender<()>,
}

impl LinkWrapper for MutedLink {
    wraps!(MemoryLink, link);

    fn transmit(&mut self, now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        match self.is_mute.load(Ordering::Relaxed) {
            true => {
                let _ = self.lost.send(());
                TxOutcome::Sent
            }
            false => self.link.transmit(now, frame),
        }
    }
}

/// The acknowledgment of the peer's FIN is lost, and TIME-WAIT ends with the node: the peer still closes normally.
#[test]
fn shutdown_repeats_the_last_acknowledgment() {
    for (policy, progress) in PLACES {
        let is_mute = Arc::new(AtomicBool::new(false));
        let (lost, losses) = mpsc::channel();
        let mute = |link| MutedLink { link, is_mute: is_mute.clone(), lost };
        let ends = connected_over(MemoryLinkOptions::default(), mute, policy, progress);
        let [(near, client), (far, server)] = ends;
        // The path is known to lose segments: the first FIN.
        is_mute.store(true, Ordering::Relaxed);
        near.with(|streams, connections, now| streams.shutdown(now, connections, client));
        let deadline = near.now() + LIMIT;
        while losses.recv_timeout(Duration::from_millis(1)).is_err() {
            assert!(near.now() < deadline, "{policy:?} {progress:?}: no FIN");
            near.progress_once();
        }
        is_mute.store(false, Ordering::Relaxed);
        let poll_far = |streams: &mut Streams, connections: &mut Connections, now| {
            let _ = streams.receive(now, connections, server);
            streams.status(server)?.peer_closed.then_some(())
        };
        while far.wait(Some(Duration::from_millis(1)), poll_far).is_err() {
            assert!(
                near.now() < deadline,
                "{policy:?} {progress:?}: the FIN was not retransmitted"
            );
            near.progress_once();
        }
        is_mute.store(true, Ordering::Relaxed);
        far.with(|streams, connections, now| streams.shutdown(now, connections, server));
        assert_eq!(near.linger(LIMIT), Ok(()), "{policy:?} {progress:?}");
        let closed = |streams: &mut Streams| {
            let status = streams.status(server)?;
            status.closed.then_some(status.error)
        };
        assert_eq!(far.with(|streams, _, _| closed(streams)), None, "the FIN was acknowledged");
        is_mute.store(false, Ordering::Relaxed);
        drop(near);
        let end = far.wait(Some(LIMIT), |streams, _, _| closed(streams));
        assert_eq!(end, Ok(None), "{policy:?} {progress:?}");
    }
}

/// A node lingers until the peer's FIN, with the connection in either stack.
#[test]
fn node_lingers_until_peer_has_closed() {
    for (policy, progress) in PLACES {
        let ends = connected(MemoryLinkOptions::default(), policy, progress);
        let [(near, client), (far, server)] = ends;
        half_close(&near, client, &far, server);
        let early = near.linger(Duration::from_millis(20));
        assert_eq!(early, Err(WaitError::TimedOut), "{policy:?} {progress:?}: it is half open");
        far.with(|streams, connections, now| streams.shutdown(now, connections, server));
        let begin = near.now();
        assert_eq!(near.linger(LIMIT), Ok(()), "{policy:?} {progress:?}");
        assert!(near.now() - begin < LIMIT);
    }
}
