//! A thread at each end of each queue pair's connection: registered memory is filled, sent from, placed into
//! and looked at by consumers' threads and the engines' at once.
//!
//! It is meant for a race detector as well, `tests/race`: it is here, where the memory of an operation
//! passes from a consumer to the engine and back, that a missing order would be a data race.
#![cfg(not(loom))]

#[path = "../../host-stack/tests/threads/link.rs"]
mod link;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    os::fd::BorrowedFd,
    sync::{Arc, mpsc},
    thread,
};

use host_stack::{
    host::HostConfig,
    node::{Node, NodeConfig, Progress},
};
use offload_engine::{
    chimney::state::MacAddress,
    engine::{EngineConfig, EngineStats},
    link::{Link, LinkCapabilities, LinkStats, MemoryLinkOptions, RxBatch, TxFrame, TxOutcome},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};
use rdma_over_tcp::ndk::{
    Adapter, AdapterConfig, AdapterCore, Connector, Cq, CqNotify, Data, MrFlags, NdkResultEx,
    NtStatus, OpFlags, OperationType, Qp, QpLimits, ReadLimit, RegisteredBuffer, Sge, open,
    open_queues,
};

const CONNECTIONS: usize = 4;
/// Round trips of each connection.
const ROUNDS: u32 = 40;
/// Bytes of a message, and of what is written beside it: more than a segment.
const LENGTH: usize = 5_000;
/// Where things lie in the one buffer of an end.
const SEND_AT: usize = 0;
const RECEIVE_AT: usize = LENGTH;
const TARGET_AT: usize = 3 * LENGTH;
const READ_AT: usize = 4 * LENGTH;
/// What is written while it is sent: more than is copied aside.
const RACE: usize = 60_000;
const RACE_AT: usize = 5 * LENGTH;
/// What is read while the peer writes it.
const RACED_AT: usize = RACE_AT + RACE;
const BUFFER: usize = RACED_AT + RACE;
/// Writes of that, and Reads.
const RACES: u32 = 12;
/// Of each end: an introduction and two messages a round both ways, a read and a write a round.
const COMPLETIONS: u32 = 2 * (1 + 2 * ROUNDS) + 2 * ROUNDS;
const LIMIT: Duration = Duration::from_secs(60);
const LIMITS: ReadLimit = ReadLimit { inbound: 4, outbound: 4 };

type TestNode = Node<AdapterCore>;

/// What callbacks tell the thread of an end.
#[derive(Default)]
struct Told {
    status: Mutex<Option<NtStatus>>,
    notified: AtomicBool,
    /// Callbacks of this end that run: never two.
    running: AtomicU32,
}

impl Told {
    fn tells(self: &Arc<Self>) -> impl FnOnce(NtStatus) + Send + 'static {
        let told = self.clone();
        move |status| *told.status.lock() = Some(status)
    }
}

/// One end of a connection.
struct End {
    node: TestNode,
    told: Arc<Told>,
    cq: Cq,
    qp: Qp,
    buffer: RegisteredBuffer,
    token: u32,
    /// Where the peer may write, and what it may read.
    peer: (u64, u32),
    sends: u32,
    writes: u32,
    reads: u32,
    receives: u32,
}

fn pattern(round: u32, index: usize) -> u8 {
    (round as usize * 31 + index * 7) as u8
}

impl End {
    fn new(node: &TestNode, adapter: &Adapter) -> Self {
        let told = Arc::new(Told::default());
        let of_cq = told.clone();
        let notification = move |status| {
            // NDK-CQ-3
            assert_eq!(of_cq.running.fetch_add(1, Ordering::Relaxed), 0);
            assert_eq!(status, NtStatus::SUCCESS);
            of_cq.notified.store(true, Ordering::Relaxed);
            of_cq.running.fetch_sub(1, Ordering::Relaxed);
        };
        let cq = adapter.create_cq(64, notification).unwrap();
        let pd = adapter.create_pd().unwrap();
        let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default()).unwrap();
        let mr = pd.create_mr(false).unwrap();
        let buffer = adapter.allocate(BUFFER).unwrap();
        let rights =
            MrFlags::ALLOW_LOCAL_WRITE | MrFlags::ALLOW_REMOTE_READ | MrFlags::ALLOW_REMOTE_WRITE;
        mr.register(&buffer, 0, BUFFER, rights).unwrap();
        let token = mr.local_token();
        let end = Self {
            node: node.clone(),
            told,
            cq,
            qp,
            buffer,
            token,
            peer: (0, 0),
            sends: 0,
            writes: 0,
            reads: 0,
            receives: 0,
        };
        // The peer is at most one message ahead.
        for slot in 0..2 {
            end.post_receive(slot);
        }
        end
    }

    fn sge(&self, offset: usize) -> Sge {
        let address = self.buffer.address() + offset as u64;
        Sge { address, length: LENGTH as u32, token: self.token }
    }

    fn post_receive(&self, slot: u32) {
        let offset = RECEIVE_AT + slot as usize % 2 * LENGTH;
        self.qp.receive(u64::from(slot), &[self.sge(offset)]).unwrap();
    }

    fn wait<T>(&self, what: &str, f: impl FnMut() -> Option<T>) -> T {
        self.node.wait_until(Some(LIMIT), f).unwrap_or_else(|error| panic!("{what}: {error}"))
    }

    /// What a request comes to.
    fn status(&self, what: &str, inline: NtStatus) {
        if inline == NtStatus::PENDING {
            let later = self.wait(what, || self.told.status.lock().take());
            assert_eq!(later, NtStatus::SUCCESS, "{what}");
        } else {
            assert_eq!(inline, NtStatus::SUCCESS, "{what}");
        }
    }

    fn connect(&self, connector: &Connector, remote: SocketAddr) {
        let status = connector.connect(&self.qp, None, remote, LIMITS, &[], self.told.tells());
        self.status("connect", status);
        self.status("complete", connector.complete_connect(None, self.told.tells()));
    }

    /// Takes completions until `is_enough`; arms and waits when there are none.
    fn complete(&mut self, is_enough: impl Fn(&Self) -> bool) {
        while !is_enough(self) {
            let mut results = [NdkResultEx::default(); 4];
            let count = self.cq.poll_ex(&mut results);
            for result in &results[..count] {
                assert_eq!(result.status, NtStatus::SUCCESS, "{result:?}");
                match result.operation {
                    OperationType::Receive => self.receives += 1,
                    OperationType::Send => self.sends += 1,
                    OperationType::Write => self.writes += 1,
                    OperationType::Read => self.reads += 1,
                    other => panic!("{other:?}"),
                }
            }
            if count == 0 {
                self.cq.arm(CqNotify::Any);
                let notified = || self.told.notified.swap(false, Ordering::Relaxed).then_some(());
                self.wait("a notification", notified);
            }
        }
    }

    fn check(&self, round: u32, offset: usize) {
        let mut data = vec![0; LENGTH];
        self.buffer.read_at(offset, &mut data);
        let wrong = data.iter().enumerate().position(|(at, byte)| *byte != pattern(round, at));
        assert_eq!(wrong, None, "round {round}, {offset}");
    }

    /// Says where the peer may write, in the first message.
    fn introduce(&mut self) {
        let mut advert = [0; 12];
        advert[..8].copy_from_slice(&self.buffer.address().to_be_bytes());
        advert[8..].copy_from_slice(&self.token.to_be_bytes());
        self.qp.send(0, Data::Inline(&[&advert]), OpFlags::NONE).unwrap();
        self.complete(|end| end.receives >= 1 && end.sends == 1);
        let mut theirs = [0; 12];
        self.buffer.read_at(RECEIVE_AT, &mut theirs);
        let (address, token) = theirs.split_at(8);
        self.peer = (
            u64::from_be_bytes(address.try_into().unwrap()),
            u32::from_be_bytes(token.try_into().unwrap()),
        );
        self.post_receive(2);
    }

    /// One round: memory is filled, written to the peer and sent; what the peer does the same way is checked
    /// where it was placed; what it has sent is read from its memory; and a word says that all is done, so
    /// that memory may be filled anew.
    fn round(&mut self, round: u32) {
        let data: Vec<u8> = (0..LENGTH).map(|at| pattern(round, at)).collect();
        self.buffer.write_at(SEND_AT, &data);
        let (address, token) = self.peer;
        let sge = [self.sge(SEND_AT)];
        let target = address + TARGET_AT as u64;
        self.qp.write(1, Data::Registered(&sge), target, token, OpFlags::NONE).unwrap();
        self.qp.send(2, Data::Registered(&sge), OpFlags::NONE).unwrap();
        self.complete(|end| end.receives >= 2 * round);
        self.check(round, RECEIVE_AT + (2 * round as usize - 1) % 2 * LENGTH);
        self.check(round, TARGET_AT);
        self.post_receive(2 * round + 1);
        let source = address + SEND_AT as u64;
        self.qp.read(3, &[self.sge(READ_AT)], source, token, OpFlags::NONE).unwrap();
        self.complete(|end| end.reads == round);
        self.check(round, READ_AT);
        self.qp.send(4, Data::Inline(&[b"done"]), OpFlags::NONE).unwrap();
        // The peer's next message may have come already.
        self.complete(|end| end.receives > 2 * round && end.sends > 2 * round);
        assert_eq!((self.sends, self.writes), (2 * round + 1, round));
        self.post_receive(2 * round + 2);
    }

    /// Memory that is written while it is sent and while the peer reads it, and read while the peer writes it: always
    /// with the same bytes, or CRCs would not fit.
    fn race(mut self) -> u32 {
        self.introduce();
        let data: Vec<u8> = (0..RACE).map(|at| pattern(1, at) | 1).collect();
        self.buffer.write_at(RACE_AT, &data);
        let is_over = Arc::<AtomicBool>::default();
        let racer = {
            let (buffer, data, is_over) = (self.buffer.clone(), data.clone(), is_over.clone());
            thread::spawn(move || {
                let mut seen = vec![0; RACE];
                while !is_over.load(Ordering::Relaxed) {
                    buffer.write_at(RACE_AT, &data);
                    buffer.read_at(RACED_AT, &mut seen);
                    assert!(seen.iter().zip(&data).all(|(seen, byte)| [0, *byte].contains(seen)));
                }
            })
        };
        // Now the peer may read.
        self.qp.send(2, Data::Inline(&[b"filled"]), OpFlags::NONE).unwrap();
        self.complete(|end| end.receives >= 2);
        let (address, token) = self.peer;
        let source = [Sge { length: RACE as u32, ..self.sge(RACE_AT) }];
        for round in 1..=RACES {
            let target = address + RACED_AT as u64;
            self.qp.write(1, Data::Registered(&source), target, token, OpFlags::NONE).unwrap();
            let theirs = address + RACE_AT as u64;
            self.qp.read(3, &[self.sge(READ_AT)], theirs, token, OpFlags::NONE).unwrap();
            self.complete(|end| end.writes == round && end.reads == round);
        }
        self.qp.send(4, Data::Inline(&[b"done"]), OpFlags::NONE).unwrap();
        self.complete(|end| end.receives == 3 && end.sends == 3);
        is_over.store(true, Ordering::Relaxed);
        racer.join().unwrap();
        let mut placed = vec![0; RACE];
        self.buffer.read_at(RACED_AT, &mut placed);
        assert!(placed == data);
        self.receives + self.reads + self.sends + self.writes
    }

    fn run(mut self) -> u32 {
        self.introduce();
        for round in 1..=ROUNDS {
            self.round(round);
        }
        self.receives + self.reads + self.sends + self.writes
    }
}

fn address(index: usize) -> SocketAddr {
    (Ipv4Addr::new(10, 2, 0, 1 + index as u8), 9).into()
}

fn config(index: usize, progress: Progress) -> NodeConfig {
    let mac = MacAddress([2, 0, 0, 0, 1, 1 + index as u8]);
    NodeConfig {
        engine: EngineConfig::new(mac),
        host: HostConfig {
            mac,
            addresses: vec![(address(index).ip(), 24)],
            ..HostConfig::default()
        },
        progress,
        spin: Duration::from_micros(20),
    }
}

fn node(index: usize, link: Box<dyn Link>, progress: Progress) -> (TestNode, Adapter) {
    open(link, config(index, progress), AdapterConfig::default()).unwrap()
}

fn listen(node: &TestNode, adapter: &Adapter, told: impl Fn(Connector) + Send + Sync + 'static) {
    let listener = adapter.create_listener(told).unwrap();
    let listening = Arc::new(Told::default());
    let status = listener.listen(address(1), listening.tells());
    if status == NtStatus::PENDING {
        let status = node.wait_until(Some(LIMIT), || listening.status.lock().take());
        assert_eq!(status, Ok(NtStatus::SUCCESS));
    }
}

/// The accepting ends: one for each incoming request, on a thread of its own.
fn accept(node: &TestNode, adapter: &Adapter, run: fn(End) -> u32) -> Vec<thread::JoinHandle<u32>> {
    let incoming: Arc<Mutex<Vec<Connector>>> = Arc::default();
    let told = incoming.clone();
    listen(node, adapter, move |connector| told.lock().push(connector));
    let (node, adapter) = (node.clone(), adapter.clone());
    let ends = (0..CONNECTIONS).map(move |_| {
        let (node, adapter, incoming) = (node.clone(), adapter.clone(), incoming.clone());
        thread::spawn(move || {
            let end = End::new(&node, &adapter);
            let connector = end.wait("a request", || incoming.lock().pop());
            let status = connector.accept(&end.qp, LIMITS, &[], None, end.told.tells());
            end.status("accept", status);
            run(end)
        })
    });
    ends.collect()
}

// NDK-CQ-1, -2, -3, -11: completions hand memory back; NDK-LIFE: callbacks one at a time.
fn memory_passes_between_threads(progress: [Progress; 2]) {
    ends_do(End::run, COMPLETIONS, progress);
}

/// Both ends of each connection do the same; each has so many completions.
fn ends_do(run: fn(End) -> u32, completions: u32, progress: [Progress; 2]) {
    let (one, other) = link::bell_links(MemoryLinkOptions::default());
    let (near, near_adapter) = node(0, Box::new(one), progress[0]);
    let (far, far_adapter) = node(1, Box::new(other), progress[1]);
    let mut ends = accept(&far, &far_adapter, run);
    ends.extend(connect(&near, &near_adapter, run));
    for end in ends {
        assert_eq!(end.join().unwrap(), completions);
    }
}

/// The connecting ends.
fn connect(
    node: &TestNode,
    adapter: &Adapter,
    run: fn(End) -> u32,
) -> Vec<thread::JoinHandle<u32>> {
    let end = |_| {
        let (node, adapter) = (node.clone(), adapter.clone());
        thread::spawn(move || {
            let end = End::new(&node, &adapter);
            end.connect(&adapter.create_connector().unwrap(), address(1));
            run(end)
        })
    };
    (0..CONNECTIONS).map(end).collect()
}

/// The accepting end has two queues, each with an adapter, and they share a listening address. The device has no idea
/// which queue a connection belongs to.
fn memory_passes_between_queues(progress: Progress) {
    let (one, queues) = link::queue_links(MemoryLinkOptions::default(), 2);
    let (near, near_adapter) = node(0, Box::new(one), Progress::Automatic);
    let links = queues.into_iter().map(|queue| Box::new(queue) as Box<dyn Link>).collect();
    let far = open_queues(links, config(1, progress), AdapterConfig::default()).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let runs = |node: &TestNode| {
        let (node, over) = (node.clone(), over.clone());
        let run = move || node.wait_until(None, || over.load(Ordering::Acquire).then_some(()));
        thread::spawn(move || run().unwrap())
    };
    // With manual progress somebody has to run each of them.
    let runners = far.iter().map(|(node, _)| runs(node)).collect::<Vec<_>>();
    let (incoming, requests) = mpsc::channel();
    for (queue, (node, adapter)) in far.iter().enumerate() {
        let incoming = Mutex::new(incoming.clone());
        listen(node, adapter, move |connector| incoming.lock().send((queue, connector)).unwrap());
    }
    let mut ends = connect(&near, &near_adapter, End::run);
    let (mut accepted, mut strays) = ([0; 2], 0);
    let all = [(); CONNECTIONS].map(|()| requests.recv_timeout(LIMIT).unwrap());
    for (queue, connector) in all {
        accepted[queue] += 1;
        let ports = [connector.peer_address().unwrap().port(), address(1).port()];
        strays += usize::from(link::queue_of(&ports.map(u16::to_be_bytes).concat(), 2) != queue);
        let (node, adapter) = far[queue].clone();
        ends.push(thread::spawn(move || {
            let end = End::new(&node, &adapter);
            let status = connector.accept(&end.qp, LIMITS, &[], None, end.told.tells());
            end.status("accept", status);
            end.run()
        }));
    }
    for end in ends {
        assert_eq!(end.join().unwrap(), COMPLETIONS);
    }
    over.store(true, Ordering::Release);
    far.iter().for_each(|(node, _)| node.wake());
    runners.into_iter().for_each(|runner| runner.join().unwrap());
    // While none has ended they are spread evenly, and the last one has come before the first was accepted.
    assert_eq!(accepted, [CONNECTIONS / 2; 2]);
    let stats = [0, 1].map(|queue| far[queue].0.with_engine(|engine, _| engine.stats()));
    assert!(stats.iter().all(|stats| stats.rx_segments > 0), "{stats:?}");
    let sum = |count: fn(&EngineStats) -> u64| stats.iter().map(count).sum::<u64>();
    // By chance the device may have given all of them to the queue on which they are.
    assert_eq!(
        sum(|stats| stats.rx_passed_on) > 0,
        strays > 0,
        "{strays} of {CONNECTIONS}: {stats:?}"
    );
    assert_eq!(sum(|stats| stats.rx_passed_on_dropped), 0);
}

/// Objects of two queues are of two adapters: none is taken for one of the other that has its number.
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
    let never = |_| panic!("what is refused inline does not call back");
    assert_eq!(foreign.connect(&qp, None, address(0), LIMITS, &[], never), refused);
    assert_eq!(foreign.accept(&qp, LIMITS, &[], None, never), refused);
    let region = other.create_pd().unwrap().create_mr(true).unwrap();
    let buffer = one.allocate(4096).unwrap();
    let registered = qp.fast_register(1, &region, &buffer, 0, 4096, 0, OpFlags::NONE);
    assert_eq!(registered.err(), Some(refused));
    assert_eq!(qp.invalidate(1, &region, OpFlags::NONE).err(), Some(refused));
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
fn memory_that_others_write_is_sent_and_read() {
    let completions = 3 + 3 + 2 * RACES;
    ends_do(End::race, completions, [Progress::Automatic, Progress::Automatic]);
}

/// A device that can be taken away.
struct Mortal<L> {
    link: L,
    is_gone: Arc<AtomicBool>,
}

impl<L: Link> Link for Mortal<L> {
    fn capabilities(&self) -> LinkCapabilities {
        self.link.capabilities()
    }

    fn receive(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        match self.is_gone.load(Ordering::Relaxed) {
            true => Err(io::Error::other("no such device")),
            false => self.link.receive(now, batch),
        }
    }

    fn transmit(&mut self, now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        self.link.transmit(now, frame)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.link.descriptor()
    }

    fn poll_at(&self) -> Option<Instant> {
        self.link.poll_at()
    }

    fn stats(&self) -> LinkStats {
        self.link.stats()
    }
}

// The device is gone under a queue pair at rest: its receives are flushed and its consumer is told, without a call of
// the consumer's; what is asked for later fails.
#[test]
fn a_device_that_has_gone_ends_requests() {
    let (one, other) = link::bell_links(MemoryLinkOptions::default());
    let is_gone = Arc::<AtomicBool>::default();
    let link = Mortal { link: one, is_gone: is_gone.clone() };
    let (near, near_adapter) = node(0, Box::new(link), Progress::Automatic);
    let (far, far_adapter) = node(1, Box::new(other), Progress::Automatic);
    let incoming: Arc<Mutex<Vec<Connector>>> = Arc::default();
    let told = incoming.clone();
    listen(&far, &far_adapter, move |connector| told.lock().push(connector));
    let passive = End::new(&far, &far_adapter);
    let accepting = thread::spawn(move || {
        let connector = passive.wait("a request", || incoming.lock().pop());
        let status = connector.accept(&passive.qp, LIMITS, &[], None, passive.told.tells());
        passive.status("accept", status);
    });
    let end = End::new(&near, &near_adapter);
    let connector = near_adapter.create_connector().unwrap();
    let status = connector.connect(&end.qp, None, address(1), LIMITS, &[], end.told.tells());
    end.status("connect", status);
    let (events, event) = mpsc::channel();
    let disconnected = Box::new(move |reason| events.send(reason).unwrap());
    end.status("complete", connector.complete_connect(Some(disconnected), end.told.tells()));
    accepting.join().unwrap();

    is_gone.store(true, Ordering::Relaxed);
    near.doorbell().ring();
    assert_eq!(event.recv_timeout(LIMIT), Ok(0x2001));
    let mut results = [NdkResultEx::default(); 4];
    let count = end.cq.poll_ex(&mut results);
    let statuses: Vec<_> = results[..count].iter().map(|result| result.status).collect();
    assert_eq!(statuses, [NtStatus::CANCELLED; 2]);
    let post = end.qp.send(0, Data::Inline(&[b"late"]), OpFlags::NONE);
    assert_eq!(post, Err(NtStatus::CONNECTION_INVALID));
    let again = near_adapter.create_connector().unwrap();
    let pd = near_adapter.create_pd().unwrap();
    let qp = pd.create_qp(&end.cq, &end.cq, 0, QpLimits::default()).unwrap();
    let status = again.connect(&qp, None, address(1), LIMITS, &[], |_| {});
    assert_eq!(status, NtStatus::DEVICE_REMOVED);
}
