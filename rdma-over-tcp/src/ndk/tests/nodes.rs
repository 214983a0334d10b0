//! Adapters with automatic progress, on nodes and on kernel sockets: the callback thread, loopback connections, opening
//! by version.

use std::{
    boxed::Box,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread::{self, ThreadId},
    vec,
    vec::Vec,
};

use host_stack::{
    host::HostConfig,
    node::{Node, NodeConfig},
};
use offload_engine::{
    link::{MemoryLink, MemoryLinkOptions, memory_link_pair},
    state::MacAddress,
    status::NdisStatus,
    time::Duration,
};

use super::{sides::LIMITS, taps};
use crate::ndk::{
    Adapter, AdapterConfig, AdapterCore, AdapterFlags, CallbackThread, Connector, Cq, CqNotify,
    Data, DisconnectEvent, Listener, ListenerConfig, Miniport, MrFlags, NDK_VERSION, NdkResultEx,
    NdkVersion, NtStatus, OpFlags, Pd, PendingCall, Qp, QpLimits, RegisteredBuffer, Sge,
    SocketsConfig,
    blocking::{Connection, Incoming, NodeError, Wait, close_adapter, create_shared_endpoint},
    open, open_sockets,
};

/// Timeout of events that should occur immediately; reached only in a failure.
const LIMIT: Duration = Duration::from_secs(60);
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 3, 0, 1);

fn node(config: AdapterConfig) -> (MemoryLink, Node<AdapterCore>, Adapter) {
    let (near, far) = memory_link_pair(MemoryLinkOptions::default());
    let host = HostConfig::new(MacAddress([2, 0, 0, 0, 3, 1]), ADDRESS.into());
    let (node, adapter) = open(Box::new(near), NodeConfig::new(host), config).unwrap();
    (far, node, adapter)
}

/// Runs a consumer that flushes, and so completes receives, while it holds a lock that its notification takes. Returns
/// the thread of the notification.
fn notified_under_a_lock(adapter: &Adapter, takes_lock: bool) -> ThreadId {
    let lock = Arc::new(Mutex::new(0));
    let (sender, receiver) = mpsc::channel();
    let of_callback = lock.clone();
    let notification = move |status| {
        assert_eq!(status, NtStatus::SUCCESS);
        if takes_lock {
            *of_callback.lock().unwrap() += 1;
        }
        sender.send(thread::current().id()).unwrap();
        // Fires once: another notification would need an arm.
    };
    let pd = adapter.create_pd().unwrap();
    let cq = adapter.create_cq(8, notification).unwrap();
    let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default()).unwrap();
    qp.receive(1, &[]).unwrap();
    cq.arm(CqNotify::Any);
    {
        let _held = takes_lock.then(|| lock.lock().unwrap());
        qp.flush();
        let mut results = [NdkResultEx::default()];
        assert_eq!(cq.poll_ex(&mut results), 1, "polling runs no callback either");
    }
    receiver.recv_timeout(LIMIT).expect("a notification")
}

// Callbacks run on a thread of the adapter. A consumer that calls under a lock that its callback takes does not
// deadlock. If configured, callbacks run on the caller's thread.
#[test]
fn callbacks_run_on_adapter_thread() {
    let own = thread::current().id();
    for callbacks in [CallbackThread::Own, CallbackThread::Caller] {
        let config = AdapterConfig { callbacks, ..AdapterConfig::default() };
        let takes_lock = callbacks == CallbackThread::Own;
        let (_link, _node, adapter) = node(config.clone());
        let of_node = notified_under_a_lock(&adapter, takes_lock);
        let adapter = open_sockets(SocketsConfig::default(), config).unwrap();
        let of_sockets = notified_under_a_lock(&adapter, takes_lock);
        if takes_lock {
            assert!(of_node != own && of_sockets != own);
        } else {
            assert_eq!((of_node, of_sockets), (own, own));
        }
    }
}

/// Connects an adapter to itself, and sends.
fn connect_to_itself(adapter: &Adapter, (listen_at, remote): (SocketAddr, SocketAddr)) {
    let flags = adapter.info().adapter_flags;
    assert!(flags.contains(AdapterFlags::LOOPBACK_CONNECTIONS_SUPPORTED));
    let pd = adapter.create_pd().unwrap();
    let cq = || adapter.create_cq(16, |_| {}).unwrap();
    let (near_cq, far_cq) = (cq(), cq());
    let qp = |cq| pd.create_qp(cq, cq, 0, QpLimits::default()).unwrap();
    let (near_qp, far_qp) = (qp(&near_cq), qp(&far_cq));
    let length = 1 << 20;
    let (buffer, mr) = (adapter.allocate(2 * length).unwrap(), pd.create_mr(false).unwrap());
    let rights =
        MrFlags::ALLOW_LOCAL_WRITE | MrFlags::ALLOW_REMOTE_READ | MrFlags::ALLOW_REMOTE_WRITE;
    mr.register(&buffer, 0, 2 * length, rights).unwrap();
    let token = mr.local_token();
    let sge = |offset: usize| Sge {
        address: buffer.address() + offset as u64,
        length: length as u32,
        token,
    };
    buffer.write_at(0, &vec![0xa5; length]);
    far_qp.receive(1, &[sge(length)]).unwrap();
    let mut incoming = Incoming::listen(&mut adapter.clone(), listen_at, 4).unwrap();
    let connection = thread::scope(|scope| {
        let passive = scope.spawn(|| {
            let waiter = &mut adapter.clone();
            let connector = incoming.next(waiter).unwrap();
            Connection::accept(waiter, connector, &far_qp, LIMITS, b"").unwrap()
        });
        let waiter = &mut adapter.clone();
        let near = Connection::connect(waiter, &near_qp, remote, LIMITS, b"").unwrap();
        (near, passive.join().unwrap())
    });
    let (near, far) = connection;
    let waiter = &mut adapter.clone();
    assert_eq!(near.connector().peer_address(), Some(remote));
    assert_eq!(far.connector().peer_address(), near.connector().local_address());
    near_qp.send(2, Data::Registered(&[sge(0)]), OpFlags::empty()).unwrap();
    let mut results = [NdkResultEx::default()];
    assert_eq!(far.poll(waiter, &far_cq, &mut results).unwrap(), 1);
    assert_eq!((results[0].request_context, results[0].status), (1, NtStatus::SUCCESS));
    assert_eq!(near.poll(waiter, &near_cq, &mut results).unwrap(), 1);
    let mut copy = vec![0; length];
    buffer.read_at(length, &mut copy);
    assert!(copy.iter().all(|byte| *byte == 0xa5));
    let (target, source) = (sge(length), sge(0));
    near_qp.read(3, &[target], source.address, token, OpFlags::empty()).unwrap();
    assert_eq!(near.poll(waiter, &near_cq, &mut results).unwrap(), 1);
    assert_eq!((results[0].request_context, results[0].status), (3, NtStatus::SUCCESS));
    assert_eq!(adapter.counters().active_connection, 2);
    near.disconnect(waiter).unwrap();
    waiter.wait(|| far.disconnection().reason()).unwrap();
    far.disconnect(waiter).unwrap();
    assert_eq!(adapter.counters().active_connection, 0);
    // A connect without a listener, and an abortive close.
    let nowhere = SocketAddr::new(remote.ip(), 1);
    let qp = pd.create_qp(&near_cq, &near_cq, 0, QpLimits::default()).unwrap();
    let connector = adapter.create_connector().unwrap();
    let begun = PendingCall::begin(|done| connector.connect(&qp, None, nowhere, LIMITS, b"", done));
    let status = waiter.wait(|| begun.status()).unwrap();
    assert_eq!(status, NtStatus::CONNECTION_REFUSED);
    let begun = PendingCall::begin(|done| connector.connect(&qp, None, remote, LIMITS, b"", done));
    let offered = incoming.next(waiter).unwrap();
    assert_eq!(begun.status(), None);
    let _ = connector.close(|| {});
    let status = waiter.wait(|| begun.status()).unwrap();
    assert_eq!(status, NtStatus::CANCELLED);
    waiter.wait(|| (offered.reject(b"") == NtStatus::CONNECTION_ABORTED).then_some(())).unwrap();
}

// LOOPBACK_CONNECTIONS_SUPPORTED: an address connects to itself, with a listener at that address or at the unspecified
// one.
#[test]
fn adapter_connects_to_itself() {
    let remote = SocketAddr::from((ADDRESS, 7000));
    for listen_at in [remote, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 7000))] {
        let (_link, _node, adapter) = node(AdapterConfig::default());
        connect_to_itself(&adapter, (listen_at, remote));
    }
    let adapter = open_sockets(SocketsConfig::default(), AdapterConfig::default()).unwrap();
    let local = super::kernel::server();
    connect_to_itself(&adapter, (local, local));
}

/// Listens at an address. Returns the listener, which listens until it is closed, or the status.
fn try_listen(
    adapter: &mut Adapter,
    local: SocketAddr,
    v6_only: bool,
) -> Result<Listener, NtStatus> {
    let listener = adapter.create_listener(|_| {}).unwrap();
    let config = ListenerConfig { v6_only, ..ListenerConfig::default() };
    let begun = PendingCall::begin(|done| listener.listen_with(local, config, done));
    let Ok(status) = adapter.wait(|| begun.status()) else { panic!("the device is lost") };
    if status == NtStatus::SUCCESS { Ok(listener) } else { Err(status) }
}

fn listen_in_both_families(adapter: &mut Adapter) {
    let at = |ip: IpAddr, port| SocketAddr::new(ip, port);
    let (v4, v6) = (Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into());
    for (first, second) in [(v4, v6), (v6, v4)] {
        for v6_only in [true, false] {
            let one = try_listen(adapter, at(first, 0), v6_only).unwrap();
            let port = one.local_address().unwrap().port();
            let other = try_listen(adapter, at(second, port), v6_only);
            assert_eq!(other.as_ref().err().is_none(), v6_only, "{first} {second}: {other:?}");
            let _ = one.close(|| {});
            other.into_iter().for_each(|other| _ = other.close(|| {}));
        }
    }
    // A mapped address means IPv4.
    let mapped = at(Ipv4Addr::UNSPECIFIED.to_ipv6_mapped().into(), 0);
    let listener = try_listen(adapter, mapped, true).unwrap();
    assert_eq!(listener.local_address().unwrap().ip(), v4);
}

#[test]
fn listeners_of_both_families_share_a_port_if_ipv6_is_restricted() {
    let (_link, _node, mut adapter) = node(AdapterConfig::default());
    listen_in_both_families(&mut adapter);
    let mut adapter = open_sockets(SocketsConfig::default(), AdapterConfig::default()).unwrap();
    listen_in_both_families(&mut adapter);
}

// NDK-EP-2, -3, -4: the host stack reserves the address of a shared endpoint, and two connections use it.
#[test]
fn shared_endpoints_of_a_node() {
    let (_link, node, adapter) = node(AdapterConfig::default());
    let waiter = &mut adapter.clone();
    let foreign = (Ipv4Addr::new(10, 3, 0, 9), 0).into();
    let NodeError::Call(refused) =
        create_shared_endpoint(waiter, foreign).expect_err("another node's")
    else {
        panic!("the node is running");
    };
    assert_eq!(refused.status, NtStatus::INVALID_ADDRESS);
    let endpoint = create_shared_endpoint(waiter, (ADDRESS, 0).into()).unwrap();
    let local = endpoint.local_address().unwrap();
    assert!(local.port() >= 49_152);
    // Another consumer of the node.
    let (_, other) = crate::ndk::open_on(&node, AdapterConfig::default()).unwrap();
    let (sender, receiver) = mpsc::channel();
    let status = other.create_shared_endpoint(local, move |made| sender.send(made.err()).unwrap());
    assert_eq!(status, NtStatus::PENDING);
    assert_eq!(receiver.recv_timeout(LIMIT), Ok(Some(NtStatus::SHARING_VIOLATION)));
    let pd = adapter.create_pd().unwrap();
    let cq = adapter.create_cq(16, |_| {}).unwrap();
    let mut peer_addresses = vec![];
    let (mut connections, mut qps) = (vec![], vec![]);
    for port in [7000, 7001] {
        let remote = SocketAddr::from((ADDRESS, port));
        let mut incoming = Incoming::listen(waiter, remote, 1).unwrap();
        let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default()).unwrap();
        let connector = adapter.create_connector().unwrap();
        let begun = PendingCall::begin(|done| {
            connector.connect_with_shared_endpoint(&qp, &endpoint, remote, LIMITS, b"", done)
        });
        let offered = incoming.next(waiter).unwrap();
        assert_eq!(begun.status(), None);
        peer_addresses.push(offered.peer_address());
        connections.push((connector, offered, incoming));
        qps.push(qp);
    }
    assert_eq!(peer_addresses, [Some(local); 2]);
    // NDK-LIFE-9: the close of an adapter completes after its objects are closed, in any order.
    let (sender, receiver) = mpsc::channel();
    let closing = thread::spawn({
        let mut adapter = adapter.clone();
        move || {
            close_adapter(&mut adapter).unwrap();
            sender.send(()).unwrap();
        }
    });
    until("the close has begun", || match adapter.create_pd() {
        Ok(early) => {
            let _ = early.close(|| {});
            false
        }
        Err(status) => status == NtStatus::INVALID_PARAMETER,
    });
    let _ = endpoint.close(|| {});
    for (connector, offered, incoming) in connections {
        for connector in [connector, offered] {
            let _ = connector.close(|| {});
        }
        let _ = incoming.listener().close(|| {});
    }
    assert_eq!(receiver.try_recv(), Err(mpsc::TryRecvError::Empty), "objects remain");
    for qp in qps {
        let _ = qp.close(|| {});
    }
    let _ = cq.close(|| {});
    let _ = pd.close(|| {});
    assert_eq!(receiver.recv_timeout(LIMIT), Ok(()));
    closing.join().unwrap();
}

// NDK-VER-1, NDK-MGT-2: adapters are opened by version, several times, but not while NDK is disabled.
#[test]
fn opening_by_version() {
    let (_link, node, first) = node(AdapterConfig::default());
    let miniport = Miniport::on_node(node, AdapterConfig::default());
    let version = |major, minor| NdkVersion { major, minor };
    for bad in [version(1, 2), version(2, 2), version(3, 0)] {
        assert_eq!(miniport.open(bad).err(), Some(NdisStatus::BAD_VERSION), "{bad:?}");
    }
    let one = miniport.open(version(2, 0)).unwrap();
    assert_eq!(one.info().version, NDK_VERSION, "the highest minor");
    assert_eq!(one.info(), miniport.attributes().capabilities.info);
    let other = miniport.open(version(2, 1)).unwrap();
    assert_eq!(one.create_pd().unwrap().close(|| {}), NtStatus::SUCCESS);
    assert!(miniport.attributes().enabled && !miniport.is_disabled());
    miniport.set_state(false);
    assert!(!miniport.attributes().enabled);
    assert_eq!(miniport.open(version(2, 1)).err(), Some(NdisStatus::ADAPTER_NOT_READY));
    assert!(!miniport.is_disabled(), "two are open");
    for adapter in [&one, &other] {
        assert!(adapter.create_pd().is_ok(), "still usable");
    }
    drop(one);
    assert!(!miniport.is_disabled());
    drop(other);
    assert!(miniport.is_disabled(), "no handle remains");
    miniport.set_state(true);
    let adapter = miniport.open(version(2, 1)).unwrap();
    assert_eq!(adapter.close(|| {}), NtStatus::SUCCESS);
    miniport.set_state(false);
    assert!(miniport.is_disabled());
    miniport.set_state(true);
    // A node has a limit of clients.
    let mut opened = vec![];
    let full = loop {
        match miniport.open(version(2, 1)) {
            Ok(adapter) => opened.push(adapter),
            Err(status) => break status,
        }
    };
    assert_eq!(full, NdisStatus::RESOURCES);
    drop(first);
}

// NDK-MGT-1: queries cover all open adapters.
#[test]
fn queries_of_a_miniport() {
    let miniport = Miniport::on_sockets(SocketsConfig::default(), AdapterConfig::default());
    let adapters = [0, 1].map(|_| miniport.open(NDK_VERSION).unwrap());
    for adapter in &adapters {
        let (sender, receiver) = mpsc::channel();
        let listener = adapter.create_listener(|_| {}).unwrap();
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let status = listener.listen(local, move |status| sender.send(status).unwrap());
        assert_eq!(status, NtStatus::PENDING);
        assert_eq!(receiver.recv_timeout(LIMIT), Ok(NtStatus::SUCCESS));
    }
    let endpoints = miniport.local_endpoints().entries;
    assert_eq!((endpoints.len(), endpoints.iter().all(|it| it.listener)), (4, true));
    assert_eq!(miniport.connections().entries, []);
    assert_eq!(miniport.statistics().connect, 0);
    assert_eq!(miniport.attributes().capabilities.missing_counter_mask, 0xf << 26);
}

/// One rank of a mesh: the state that its callbacks use.
struct Rank {
    adapter: Adapter,
    pd: Pd,
    cq: Cq,
    buffer: RegisteredBuffer,
    token: u32,
    connections: Mutex<Vec<(Connector, Qp)>>,
    established: AtomicUsize,
    ended: AtomicUsize,
}

impl Rank {
    fn new(adapter: &Adapter) -> Arc<Self> {
        let pd = adapter.create_pd().unwrap();
        let cq = adapter.create_cq(256, |_| {}).unwrap();
        let (buffer, mr) = (adapter.allocate(4096).unwrap(), pd.create_mr(false).unwrap());
        mr.register(&buffer, 0, 4096, MrFlags::ALLOW_LOCAL_WRITE).unwrap();
        Arc::new(Self {
            adapter: adapter.clone(),
            pd,
            cq,
            buffer,
            token: mr.local_token(),
            connections: Mutex::default(),
            established: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
        })
    }

    /// Creates a queue pair with a receive.
    fn qp(&self) -> Qp {
        let qp = self.pd.create_qp(&self.cq, &self.cq, 0, QpLimits::default()).unwrap();
        let sge = Sge { address: self.buffer.address(), length: 8, token: self.token };
        qp.receive(1, &[sge]).unwrap();
        qp
    }

    /// Counts a connection, and stores it.
    fn establish(self: &Arc<Self>, connector: Connector, qp: Qp) -> impl FnOnce(NtStatus) + use<> {
        let rank = self.clone();
        move |status| {
            if status != NtStatus::SUCCESS {
                let _ = connector.close(|| {});
                let _ = qp.close(|| {});
                return;
            }
            rank.connections.lock().unwrap().push((connector, qp));
            rank.established.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn end(self: &Arc<Self>) -> Option<DisconnectEvent> {
        // The adapter may own the event until its own end.
        let rank = Arc::downgrade(self);
        Some(Box::new(move |_| {
            if let Some(rank) = rank.upgrade() {
                rank.ended.fetch_add(1, Ordering::Relaxed);
            }
        }))
    }

    /// Accepts every connection, inside the event.
    fn listen(self: &Arc<Self>, local: SocketAddr) -> Listener {
        let rank = Arc::downgrade(self);
        let listener = self.adapter.create_listener(move |connector| {
            let Some(rank) = rank.upgrade() else { return };
            let qp = rank.qp();
            let done = rank.establish(connector.clone(), qp.clone());
            let status = connector.accept(&qp, LIMITS, b"", rank.end(), done);
            assert_eq!(status, NtStatus::PENDING);
        });
        let listener = listener.unwrap();
        let (sender, receiver) = mpsc::channel();
        let status = listener.listen(local, move |status| sender.send(status).unwrap());
        assert_eq!(status, NtStatus::PENDING);
        assert_eq!(receiver.recv_timeout(LIMIT), Ok(NtStatus::SUCCESS));
        listener
    }

    /// Connects, and completes inside the completion.
    fn connect(self: &Arc<Self>, remote: SocketAddr) {
        let (connector, qp) = (self.adapter.create_connector().unwrap(), self.qp());
        let (rank, same, used) = (self.clone(), connector.clone(), qp.clone());
        let status = connector.connect(&qp, None, remote, LIMITS, b"", move |status| {
            assert_eq!(status, NtStatus::SUCCESS);
            let done = rank.establish(same.clone(), used);
            assert_eq!(same.complete_connect(rank.end(), done), NtStatus::PENDING);
        });
        assert_eq!(status, NtStatus::PENDING);
    }
}

/// Waits for an effect of another thread that causes no wake-up.
fn until(condition: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + LIMIT;
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "not within {LIMIT:?}: {condition}");
        thread::yield_now();
    }
}

/// Every rank connects to every other, concurrently and in both directions. Each end of each connection sends and
/// receives a message. Then the active ends disconnect, and the passive ends after them.
fn mesh(ranks: &[(Adapter, SocketAddr)]) {
    let others = ranks.len() - 1;
    let all: Vec<_> = ranks.iter().map(|(adapter, _)| Rank::new(adapter)).collect();
    let listeners: Vec<_> =
        all.iter().zip(ranks).map(|(rank, (_, local))| rank.listen(*local)).collect();
    for (from, rank) in all.iter().enumerate() {
        for (_, remote) in ranks.iter().enumerate().filter(|(to, _)| *to != from).map(|it| it.1) {
            rank.connect(*remote);
        }
    }
    for rank in &all {
        let count = || rank.established.load(Ordering::Relaxed);
        until("all connections", || count() == 2 * others);
        for (_, qp) in &*rank.connections.lock().unwrap() {
            qp.send(2, Data::Inline(&[b"a word"]), OpFlags::empty()).unwrap();
        }
    }
    for rank in &all {
        let mut contexts = Vec::new();
        until("all messages", || {
            let mut results = [NdkResultEx::default(); 16];
            let count = rank.cq.poll_ex(&mut results);
            for result in &results[..count] {
                assert_eq!(result.status, NtStatus::SUCCESS);
                contexts.push(result.request_context);
            }
            contexts.len() == 4 * others
        });
        contexts.sort_unstable();
        assert!(contexts[..2 * others].iter().all(|context| *context == 1));
        assert_eq!(rank.adapter.counters().active_connection, 2 * others as u64);
    }
    // Each rank disconnects the half that its peer does not.
    let (sender, receiver) = mpsc::channel();
    for (rank, (_, local)) in all.iter().zip(ranks) {
        for (connector, _) in &*rank.connections.lock().unwrap() {
            if connector.local_address() != Some(*local) {
                let sender = sender.clone();
                let status = connector.disconnect(move |status| sender.send(status).unwrap());
                assert_eq!(status, NtStatus::PENDING);
            }
        }
    }
    for _ in 0..others * ranks.len() {
        assert_eq!(receiver.recv_timeout(LIMIT), Ok(NtStatus::SUCCESS));
    }
    for rank in &all {
        until("the peers' ends", || rank.ended.load(Ordering::Relaxed) == others);
        for (connector, qp) in rank.connections.lock().unwrap().drain(..) {
            let _ = connector.close(|| {});
            let _ = qp.close(|| {});
        }
        assert_eq!(rank.adapter.counters().active_connection, 0);
    }
    drop(listeners);
}

// SDK ndmpic and ndconn: ranks connect to each other concurrently, in callbacks; four over kernel sockets, two on
// nodes.
#[test]
fn mesh_of_ranks() {
    let opened: Vec<_> = (0..4)
        .map(|_| open_sockets(SocketsConfig::default(), AdapterConfig::default()).unwrap())
        .collect();
    let ranks: Vec<_> =
        opened.into_iter().map(|adapter| (adapter, super::kernel::server())).collect();
    mesh(&ranks);
    let ([_near, _far], ranks) = pair(AdapterConfig::default());
    mesh(&ranks);
}

// SDK ndmpic and ndconn, between two namespaces.
#[test]
fn mesh_of_ranks_on_taps() {
    let Some(wire) = taps::Wire::new() else { return };
    let opened = [0, 1].map(|index| {
        let (link, config) = (Box::new(wire.tap(index)), NodeConfig::new(taps::host(index)));
        let (node, adapter) = open(link, config, AdapterConfig::default()).unwrap();
        (node, (adapter, SocketAddr::from((taps::address(index), 7000))))
    });
    let ranks = opened.each_ref().map(|(_, rank)| rank.clone());
    mesh(&ranks);
}

/// Returns two nodes on a link, and their adapters with their addresses.
fn pair(config: AdapterConfig) -> ([Node<AdapterCore>; 2], [(Adapter, SocketAddr); 2]) {
    let (near, far) = memory_link_pair(MemoryLinkOptions::default());
    let opened = [(near, 1), (far, 2)].map(|(link, host)| {
        let address = Ipv4Addr::new(10, 3, 0, host);
        let host = HostConfig::new(MacAddress([2, 0, 0, 0, 3, host]), address.into());
        let (node, adapter) = open(Box::new(link), NodeConfig::new(host), config.clone()).unwrap();
        (node, (adapter, SocketAddr::from((address, 7000))))
    });
    let [(near, one), (far, other)] = opened;
    ([near, far], [one, other])
}

// NDK-EP-10: an adapter has addresses of both families.
#[test]
fn both_families() {
    let addresses = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), (Ipv6Addr::LOCALHOST, 0).into()];
    let adapter = open_sockets(SocketsConfig::default(), AdapterConfig::default()).unwrap();
    for local in addresses {
        let rank = Rank::new(&adapter);
        let listener = rank.listen(local);
        rank.connect(listener.local_address().unwrap());
        until("both ends", || rank.established.load(Ordering::Relaxed) == 2);
    }
}

// NDK-WR-3, NDK-CQ-2, -3: flushes and connector closes run concurrently with posts and polls of other threads. Each
// accepted request completes exactly once.
#[test]
fn flush_and_close_concurrent_with_posts() {
    let (_nodes, [(near, _), (far, remote)]) = pair(AdapterConfig::default());
    let (near, far) = (Rank::new(&near), Rank::new(&far));
    let _listener = far.listen(remote);
    for round in 0..50 {
        near.connect(remote);
        until("a connection", || near.established.load(Ordering::Relaxed) > round);
        let (connector, qp) = near.connections.lock().unwrap().pop().unwrap();
        let posted = thread::scope(|scope| {
            let poster = scope.spawn(|| {
                let mut posted = 0;
                loop {
                    // At most as many as the completion queue holds.
                    if posted == 200 && qp.is_connected() {
                        thread::yield_now();
                        continue;
                    }
                    match qp.send(2, Data::Inline(&[b"x"]), OpFlags::empty()) {
                        Ok(()) => posted += 1,
                        Err(NtStatus::NO_MORE_ENTRIES) => thread::yield_now(),
                        Err(status) => break (posted, status),
                    }
                }
            });
            until("some posts", || qp.stats().sends > 0 || poster.is_finished());
            if round % 2 == 0 {
                qp.flush();
            } else {
                let _ = connector.close(|| {});
            }
            poster.join().unwrap()
        });
        assert_eq!(posted.1, NtStatus::CONNECTION_INVALID);
        qp.flush();
        let mut counts = [0; 3];
        until("every completion", || {
            let mut results = [NdkResultEx::default(); 16];
            let count = near.cq.poll_ex(&mut results);
            for result in &results[..count] {
                counts[result.request_context as usize] += 1;
            }
            counts[2] == posted.0 && counts[1] == 1
        });
        let _ = connector.close(|| {});
        let _ = qp.close(|| {});
        for (connector, qp) in far.connections.lock().unwrap().drain(..) {
            let _ = connector.close(|| {});
            let _ = qp.close(|| {});
        }
    }
    let mut results = [NdkResultEx::default(); 4];
    assert_eq!(near.cq.poll_ex(&mut results), 0, "no duplicates");
}
