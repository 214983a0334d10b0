//! Futures of NDK's calls: many connections on one thread, dropped tasks, failed queues; over a link in memory and over
//! kernel sockets.
#![cfg(not(loom))]

use std::{
    error::Error,
    fs, io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Wake, Waker},
};

use futures::{
    FutureExt,
    executor::{LocalPool, ThreadPool, block_on},
    future::{join, join_all, select, try_join},
    pin_mut,
    task::{LocalSpawnExt, SpawnExt},
};
use rdma_over_tcp::ndk::{
    Adapter, AdapterConfig, Connector, Data, DisconnectReason, MrFlags, NdkResultEx, NtStatus,
    OpFlags, Pair, PendingCall, Qp, QpLimits, ReadLimit, RegisteredBuffer, Sge, SocketsConfig,
    asynchronous::{Completions, Connection, Incoming},
    open_sockets,
};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;
const LIMITS: ReadLimit = ReadLimit { inbound: 4, outbound: 4 };
const BYTES: usize = 4096;

/// Queue pair with memory, and its own completion queue.
struct End {
    completions: Completions,
    qp: Qp,
    buffer: RegisteredBuffer,
    token: u32,
}

impl End {
    fn new(adapter: &Adapter) -> Outcome<Self> {
        Self::with_depth(adapter, 64)
    }

    fn with_depth(adapter: &Adapter, depth: u32) -> Outcome<Self> {
        let completions = Completions::create(adapter, depth)?;
        let pd = adapter.create_pd()?;
        let cq = completions.cq();
        let qp = pd.create_qp(cq, cq, 7, QpLimits::default())?;
        let (buffer, mr) = (adapter.allocate(BYTES)?, pd.create_mr(false)?);
        mr.register(&buffer, 0, BYTES, MrFlags::ALLOW_LOCAL_WRITE)?;
        let token = mr.local_token();
        Ok(Self { completions, qp, buffer, token })
    }

    fn sge(&self, length: u32) -> Sge {
        Sge { address: self.buffer.address(), length, token: self.token }
    }

    fn receive(&self, context: u64) -> Outcome<()> {
        Ok(self.qp.receive(context, &[self.sge(BYTES as u32)])?)
    }

    async fn connect(&self, adapter: &Adapter, server: SocketAddr) -> Outcome<Connection> {
        Ok(Connection::connect(adapter, &self.qp, server, LIMITS, b"request").await?)
    }

    async fn accept(&self, connector: Connector) -> Outcome<Connection> {
        Ok(Connection::accept(connector, &self.qp, LIMITS, b"answer").await?)
    }

    /// Polls completions until that of a receive, whose bytes it returns.
    async fn arrival(&self, connection: &Connection) -> Outcome<Option<Vec<u8>>> {
        loop {
            let mut results = [NdkResultEx::default()];
            if connection.next(&self.completions, &mut results).await? == 0 {
                return Ok(None);
            }
            let [result] = results;
            if result.status == NtStatus::CANCELLED {
                continue;
            }
            assert_eq!(result.status, NtStatus::SUCCESS);
            let mut bytes = vec![0; result.bytes_transferred as usize];
            self.buffer.read_at(0, &mut bytes);
            return Ok(Some(bytes));
        }
    }
}

/// Echoes until the connection ends.
async fn echo(adapter: Adapter, connector: Connector) -> Outcome<u32> {
    let end = End::new(&adapter)?;
    end.receive(1)?;
    let connection = end.accept(connector).await?;
    assert_eq!(connection.private_data(), b"request");
    let mut count = 0;
    while let Some(bytes) = end.arrival(&connection).await? {
        count += 1;
        end.receive(1)?;
        end.qp.send(2, Data::Inline(&[&bytes]), OpFlags::SILENT_SUCCESS)?;
    }
    Ok(count)
}

async fn ping(adapter: &Adapter, server: SocketAddr, client: u32, rounds: u32) -> Outcome<()> {
    let end = End::new(adapter)?;
    let connection = end.connect(adapter, server).await?;
    assert_eq!(connection.private_data(), b"answer");
    for round in 0..rounds {
        end.receive(1)?;
        let message = format!("{client} {round}");
        end.qp.send(2, Data::Inline(&[message.as_bytes()]), OpFlags::SILENT_SUCCESS)?;
        assert_eq!(end.arrival(&connection).await?.as_deref(), Some(message.as_bytes()));
    }
    Ok(connection.disconnect().await?)
}

fn threads() -> io::Result<usize> {
    Ok(fs::read_dir("/proc/self/task")?.count())
}

/// Runs `clients` connections with `rounds` echoes each, all as tasks of this thread.
fn many(
    near: &Adapter,
    far: &Adapter,
    server: SocketAddr,
    clients: u32,
    rounds: u32,
) -> Outcome<()> {
    let mut pool = LocalPool::new();
    let mut incoming = pool.run_until(Incoming::listen(far, server, clients as usize))?;
    let server = incoming.listener().local_address().ok_or("listener has no address")?;
    let (far, spawner) = (far.clone(), pool.spawner());
    let serving = async move {
        let mut echoes = Vec::new();
        for _ in 0..clients {
            let connector = incoming.next().await;
            echoes.push(spawner.spawn_local_with_handle(echo(far.clone(), connector))?);
        }
        Outcome::Ok(join_all(echoes).await)
    };
    let pings = join_all((0..clients).map(|client| ping(near, server, client, rounds)));
    let (echoes, pings) = pool.run_until(join(serving, pings));
    for ping in pings {
        ping?;
    }
    let echoes: Vec<_> = echoes?.into_iter().collect::<Outcome<_>>()?;
    assert_eq!(echoes, vec![rounds; clients as usize]);
    Ok(())
}

#[test]
fn many_connections_are_tasks_of_one_thread() {
    let pair = Pair::open(AdapterConfig::default()).unwrap();
    let [near, far] = &pair.adapters;
    let before = threads().unwrap();
    many(near, far, (Pair::ADDRESSES[1], 7000).into(), 200, 20).unwrap();
    // Other tests of this process run meanwhile, with a few threads each; one thread per object would be hundreds.
    assert!(threads().unwrap() < before + 50);
}

#[test]
fn many_connections_on_kernel_sockets() {
    let open = |seed| {
        let config = AdapterConfig { seed, ..AdapterConfig::default() };
        open_sockets(SocketsConfig::default(), config).unwrap()
    };
    let (near, far) = (open(1), open(2));
    many(&near, &far, ([127, 0, 0, 1], 0).into(), 100, 10).unwrap();
}

// Tasks and their futures move between threads.
#[test]
fn tasks_of_several_threads() {
    let pair = Pair::open(AdapterConfig::default()).unwrap();
    let [near, far] = pair.adapters.clone();
    let server = (Pair::ADDRESSES[1], 7000).into();
    let pool = ThreadPool::builder().pool_size(3).create().unwrap();
    let mut incoming = block_on(Incoming::listen(&far, server, 8)).unwrap();
    let pings: Vec<_> = (0..8)
        .map(|client| {
            let near = near.clone();
            let ping = async move { ping(&near, server, client, 100).await };
            pool.spawn_with_handle(ping).unwrap()
        })
        .collect();
    let echoes: Vec<_> = (0..8)
        .map(|_| {
            let connector = block_on(incoming.next());
            pool.spawn_with_handle(echo(far.clone(), connector)).unwrap()
        })
        .collect();
    for ping in block_on(join_all(pings)) {
        ping.unwrap();
    }
    for count in block_on(join_all(echoes)) {
        assert_eq!(count.unwrap(), 100);
    }
}

// A task dropped during its connect drops its connector: the peer's accept fails, and nothing is left.
#[test]
fn dropped_connect_is_closed() {
    let pair = Pair::open(AdapterConfig::default()).unwrap();
    let [near, far] = &pair.adapters;
    let server = (Pair::ADDRESSES[1], 7000).into();
    let (active, passive) = (End::new(near).unwrap(), End::new(far).unwrap());
    let connector = block_on(async {
        let mut incoming = Incoming::listen(far, server, 1).await.unwrap();
        let connecting = active.connect(near, server).fuse();
        pin_mut!(connecting);
        futures::select! {
            _ = connecting => panic!("connect completed without an accept"),
            connector = incoming.next().fuse() => connector,
        }
    });
    let refused = block_on(passive.accept(connector)).unwrap_err().to_string();
    assert!(refused.contains("ABORTED") || refused.contains("REFUSED"), "{refused}");
    assert_eq!(near.connections().len(), 0);
    // A close completes only when no other object depends on the object (NDK-LIFE-4).
    let End { completions, qp, .. } = active;
    let closed = PendingCall::close(|done| completions.cq().close(done));
    assert_eq!(closed.status(), None);
    let _ = qp.close(|| {});
    assert_eq!(block_on(closed), NtStatus::SUCCESS);
}

// Requests that were not accepted are rejected when the listener is dropped, and the port is closed afterwards.
#[test]
fn dropped_listeners_reject() {
    let pair = Pair::open(AdapterConfig::default()).unwrap();
    let [near, far] = &pair.adapters;
    let server = (Pair::ADDRESSES[1], 7000).into();
    let ends = [End::new(near).unwrap(), End::new(near).unwrap()];
    let incoming = block_on(Incoming::listen(far, server, 1)).unwrap();
    let [one, other] = ends.each_ref().map(|end| Box::pin(end.connect(near, server)));
    // One is in the backlog, so the other is rejected; the first is rejected when the listener is dropped.
    let (rejected, waiting) = block_on(select(one, other)).factor_first();
    drop(incoming);
    for outcome in [rejected, block_on(waiting)] {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("CONNECTION_REFUSED"), "{error}");
    }
    let late = block_on(ends[0].connect(near, server)).unwrap_err().to_string();
    assert!(late.contains("CONNECTION_REFUSED"), "{late}");
}

// NDK-CQ-13: a failed queue loses its completions; every poll returns the failure.
#[test]
fn failed_queue_ends_wait() {
    let pair = Pair::open(AdapterConfig::default()).unwrap();
    let [near, far] = &pair.adapters;
    let server = (Pair::ADDRESSES[1], 7000).into();
    let (active, passive) = (End::with_depth(near, 2).unwrap(), End::new(far).unwrap());
    for context in 0..4 {
        passive.receive(context).unwrap();
    }
    block_on(async {
        let mut incoming = Incoming::listen(far, server, 1).await.unwrap();
        let accept = async { passive.accept(incoming.next().await).await };
        let (connection, _peer) = try_join(active.connect(near, server), accept).await.unwrap();
        let ended = connection.disconnection();
        for context in 0..4 {
            // The queue pair fails with its queue, so later posts may be refused.
            let _ = active.qp.send(context, Data::Inline(&[b"x"]), OpFlags::empty());
        }
        let reason = DisconnectReason(ended.await);
        assert!(reason.to_string().contains("completion queue"), "{reason}");
        let mut results = [NdkResultEx::default(); 4];
        let failed = active.completions.next(&mut results).await;
        assert_eq!(failed, Err(NtStatus::BUFFER_OVERFLOW));
        let again = active.completions.next(&mut results).await;
        assert_eq!(again, Err(NtStatus::BUFFER_OVERFLOW));
        assert_eq!(active.completions.next(&mut []).await, Ok(0));
    });
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

// Every task that awaits the end is woken; a dropped one is not.
#[test]
fn end_wakes_all_waiters() {
    let pair = Pair::open(AdapterConfig::default()).unwrap();
    let [near, far] = &pair.adapters;
    let server = (Pair::ADDRESSES[1], 7000).into();
    let (active, passive) = (End::new(near).unwrap(), End::new(far).unwrap());
    let (connection, peer) = block_on(async {
        let mut incoming = Incoming::listen(far, server, 1).await.unwrap();
        let accept = async { passive.accept(incoming.next().await).await };
        try_join(active.connect(near, server), accept).await.unwrap()
    });
    let flags: Vec<Arc<Flag>> = (0..3).map(|_| Arc::default()).collect();
    let mut ends: Vec<_> = (0..3).map(|_| peer.disconnection()).collect();
    for (end, flag) in ends.iter_mut().zip(&flags) {
        let waker = Waker::from(flag.clone());
        assert!(end.poll_unpin(&mut Context::from_waker(&waker)).is_pending());
    }
    drop(ends.pop());
    block_on(connection.disconnect()).unwrap();
    assert_eq!(block_on(peer.disconnection()), 0);
    for end in ends {
        assert_eq!(block_on(end), 0);
    }
    let woken: Vec<bool> = flags.iter().map(|flag| flag.0.load(Ordering::SeqCst)).collect();
    assert_eq!(woken, [true, true, false]);
}
