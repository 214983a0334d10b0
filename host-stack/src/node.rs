//! Node: engine, clients and host stack, with their threads and sleeps.
//!
//! Theory of operation
//!
//! [`Core`] is passive: engine, clients, and the host stack unless it has its own thread. [`Core::poll`] is one
//! iteration; time is its argument. Simulations use it directly, or [`Cores`] for a device with several queues.
//! [`Node`] owns a clock and runs the loop in one of three modes:
//!
//! * *Automatic progress*: one thread runs the engine, a second one the host stack. Both poll while there is work and
//!   for [`NodeConfig::spin`] longer. Then they sleep in poll(2) on the link's descriptor and their doorbell. A caller
//!   that posts ([`Node::with`]) takes the core's lock and transmits on its own thread, so no thread switch delays a
//!   post.
//! * *Manual progress*: no thread. The loop runs inside [`Node::wait`], on the caller's thread.
//! * *Shared progress*: as manual progress, and a thread runs the loop while no caller does ([`Presence`]).
//!
//! A node has one or more clients ([`Node::register`]), which share its device and addresses and are otherwise
//! independent. A [`Node`] is a typed handle of one client, through which calls reach that client's state; lower layers
//! dispatch by tag ([`Clients`]). A client is unregistered when its last handle is dropped.
//!
//! A device with several queues has a *shard* for each ([`Node::start_queues`]). Each shard has its own engine,
//! clients, lock and thread, and is a [`Node`] to its callers. All share one host stack, which then has a thread with
//! manual progress too; nothing of the data path is shared. With manual progress every shard must be run by a caller,
//! since the device delivers to all of them.
//!
//! The consumer's callbacks run with no lock held, one at a time, in order. Clients may request that [`Node::with`]
//! runs their callbacks too, on the first available thread. Callbacks of other clients run only on the engine's thread,
//! or with manual progress on the thread that runs the loop ([`NodeClient::take_callbacks_of_calls`]). A panic in a
//! callback is logged and has no further effect.
//!
//! The lock is taken once per iteration and per call, never per packet. [`offload_engine::runtime`] has the lock, the
//! waits, and the protocol against lost wake-ups.

mod core;

use std::{
    boxed::Box, fmt, format, io, marker::PhantomData, string::String, sync::Arc,
    thread::JoinHandle, vec, vec::Vec,
};

use crossbeam_channel::Receiver;
use offload_engine::{
    chimney::client::{ClientTag, OffloadHandle},
    descriptor,
    engine::{
        Clients, ConnectionSnapshot, Connections, Engine, EngineConfig, NodeClient, TooManyClients,
        doorbell::{Doorbell, Sleep},
    },
    link::Link,
    runtime::{LAST_ACK_REPEATS, Monitor, Presence},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    tcp::TcpPhase,
    time::{Duration, Instant},
};

pub use offload_engine::runtime::{Progress, Urgency, WaitError};

pub use self::core::{Core, Cores};
use crate::{
    host::{Host, HostConfig},
    socket::{ConnectionRow, Request, RequestPort, SocketPort, SocketState},
    stream::OffloadState,
};

/// Configuration of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Configuration of the offload target.
    pub engine: EngineConfig,
    /// Configuration of the host stack.
    pub host: HostConfig,
    /// Thread that runs the loop.
    pub progress: Progress,
    /// Polling time of an idle loop before it sleeps. A wake-up across CPUs costs 20 to 35 µs.
    pub spin: Duration,
}

impl NodeConfig {
    /// Configuration with automatic progress and a default engine. Its idle loop polls about as long as a wake-up
    /// takes.
    pub fn new(host: HostConfig) -> Self {
        let (progress, spin) = (Progress::Automatic, Duration::from_micros(20));
        Self { engine: EngineConfig::new(host.mac), host, progress, spin }
    }
}

/// Handle of a node, or of one of its shards, for one of its clients: `C` is that client. Clones are equivalent. When
/// the last clone is dropped the client is unregistered: its listeners are closed, and its connections are reset. The
/// node continues for its other clients, and ends with the last handle of any. That drop returns after these RSTs and
/// all earlier frames are sent, at most [`SHUTDOWN_DRAIN_MAX`] later. After a drop in a callback of the node, the node
/// ends after that callback.
///
/// TIME-WAIT ends with the node. So it repeats the last acknowledgment twice on connections in TIME-WAIT whose path
/// has lost segments. A peer whose FIN is not acknowledged would otherwise retransmit it until its timeout.
pub struct Node<C: NodeClient> {
    shared: Arc<Monitor<Core>>,
    /// Record of the callers that drive the shard; with shared progress.
    presence: Option<Arc<Presence>>,
    // Dropped before the threads: a node ends when its last client has unregistered.
    membership: Arc<Membership>,
    threads: Arc<Threads>,
    client: PhantomData<fn() -> C>,
}

/// Registration of a client with its node, until dropped.
struct Membership {
    client: ClientTag,
    requests: RequestPort,
    engine_doorbell: Arc<Doorbell>,
}

impl Drop for Membership {
    /// Takes no lock: the last handle may be dropped on any thread.
    fn drop(&mut self) {
        self.requests.request_of(self.client, Request::Unregister);
        // With manual progress the thread that sleeps on the engine's doorbell runs the host stack.
        self.engine_doorbell.ring();
    }
}

/// Maximum duration of a node's shutdown until its last frames are sent: the RSTs of its clients' connections, and the
/// FINs and ACKs of connections that both sides have closed. Reached if the link accepts no frames, or a next hop does
/// not answer.
pub const SHUTDOWN_DRAIN_MAX: Duration = Duration::from_secs(1);

/// Polling interval of [`Node::linger`]: the end of a connection in the host stack wakes no thread.
const LINGER_PAUSE: Duration = Duration::from_millis(1);

/// Stops and joins the threads of all shards when the last handle of any is dropped.
struct Threads {
    /// True if the host stack, on its own thread, has no more frames to send. Its doorbells are rung afterwards.
    host_is_silent: Arc<AtomicBool>,
    shards: Vec<Arc<Monitor<Core>>>,
    /// With shared progress, of each shard.
    presences: Vec<Arc<Presence>>,
    host_doorbell: Arc<Doorbell>,
    requests: RequestPort,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

/// Thread of the host stack, until all shards have ended.
fn host_thread(shards: &[Arc<Monitor<Core>>], doorbell: &Doorbell, mut host: Host) {
    let is_stopping = || shards.iter().all(|shared| shared.is_stopping());
    let now = || shards[0].now();
    while !is_stopping() {
        if !host.poll(now()) {
            sleep_of_host(doorbell, &host, now(), None, &is_stopping);
        }
    }
    let deadline = now() + SHUTDOWN_DRAIN_MAX;
    let is_over = |host: &Host| host.is_silent() && !host.has_input();
    while now() < deadline && !is_over(&host) && !shards.iter().any(|shared| shared.has_failed()) {
        if !host.poll(now()) {
            sleep_of_host(doorbell, &host, now(), Some(deadline), &|| false);
        }
    }
    (0..LAST_ACK_REPEATS).for_each(|_| host.repeat_last_acks(now()));
}

fn sleep_of_host(
    doorbell: &Doorbell,
    host: &Host,
    now: Instant,
    deadline: Option<Instant>,
    is_stopping: &dyn Fn() -> bool,
) {
    let until = host.poll_at(now).into_iter().chain(deadline).min();
    let timeout = until.map(|until| until - now);
    doorbell.sleep(|| {
        let is_idle = !host.has_input() && !is_stopping();
        is_idle.then_some(Sleep { timeout, ..Sleep::default() })
    });
}

/// Thread of an engine. After a lost link it also stops the other shards: they use the same device.
fn engine_thread(
    own: &Monitor<Core>,
    presence: Option<&Presence>,
    shards: &[Arc<Monitor<Core>>],
    host_is_silent: &AtomicBool,
) {
    match presence {
        Some(presence) => own.progress_thread(presence),
        None => own.engine_thread(),
    }
    let Err(failure) = own.wait(Some(own.now()), |_, _| None::<()>) else { return };
    if failure == WaitError::TimedOut {
        // The node was dropped.
        finish(own, host_is_silent);
        return;
    }
    for other in shards.iter().filter(|other| !std::ptr::eq(&***other, own)) {
        other.fail_with_lost(failure.clone());
        other.doorbell().ring();
    }
}

/// Sends the last frames of a node without clients.
fn finish(shard: &Monitor<Core>, host_is_silent: &AtomicBool) {
    shard.finish(shard.now() + SHUTDOWN_DRAIN_MAX, |core| {
        (core.host.is_some() || host_is_silent.load(Ordering::Acquire)) && core.is_silent()
    });
}

/// Client of a handle.
fn own<C: NodeClient>(clients: &mut Clients, client: ClientTag) -> &mut C {
    clients.get_mut(client).expect("client is unregistered with its last handle")
}

impl<C: NodeClient> Node<C> {
    /// Starts a node on `link`; `client` creates its first client from the client's port to the host stack.
    ///
    /// # Errors
    /// No descriptor or thread is available, or (InvalidInput) the host's configuration is invalid.
    pub fn start(
        link: Box<dyn Link>,
        config: NodeConfig,
        client: impl FnOnce(SocketPort) -> C,
    ) -> io::Result<Self> {
        let mut client = Some(client);
        let made = |port| (client.take().expect("one link has one client"))(port);
        let mut nodes = Self::start_queues(Vec::from([link]), config, made)?;
        Ok(nodes.pop().expect("one link has one shard"))
    }

    /// Starts a node on the queues of one device, each with its engine and client. Returns a handle for each shard, in
    /// the order of `links`. `client` is called once for each, in that order. A connection belongs to the shard whose
    /// client connects it. Connections accepted on one address by listeners of several shards are spread over them.
    ///
    /// # Errors
    /// As [`Node::start`]; InvalidInput also without any link.
    pub fn start_queues(
        links: Vec<Box<dyn Link>>,
        config: NodeConfig,
        client: impl FnMut(SocketPort) -> C,
    ) -> io::Result<Vec<Self>> {
        let NodeConfig { engine, host, progress, spin } = config;
        let descriptors = links
            .iter()
            .map(|link| link.descriptor().map(|fd| fd.try_clone_to_owned()).transpose())
            .collect::<io::Result<Vec<_>>>()?;
        let Cores { shards: mut cores, host, host_doorbell, requests } =
            Cores::new(links, engine, host, client)?;
        let own_host = if progress != Progress::Automatic && cores.len() == 1 {
            cores[0].host = Some(host);
            None
        } else {
            Some(host)
        };
        let mut presences = Vec::new();
        let mut shards = Vec::new();
        for (core, descriptor) in cores.into_iter().zip(descriptors) {
            let doorbell = core.engine.doorbell().clone();
            let mut shared = Monitor::new(core, doorbell, descriptor, spin, progress);
            if progress == Progress::Shared {
                let presence = Arc::new(Presence::new()?);
                let of_callbacks = presence.clone();
                shared = shared.with_progress_thread(Box::new(move || of_callbacks.request()));
                presences.push(presence);
            }
            shards.push(Arc::new(shared));
        }
        let host_is_silent = Arc::new(AtomicBool::new(false));
        let threads = Arc::new(Threads {
            host_is_silent: host_is_silent.clone(),
            shards: shards.clone(),
            presences: presences.clone(),
            host_doorbell: host_doorbell.clone(),
            requests,
            handles: Mutex::default(),
        });
        if progress != Progress::Manual {
            for (index, shared) in shards.iter().enumerate() {
                let (shared, all) = (shared.clone(), shards.clone());
                let (presence, host_is_silent) =
                    (presences.get(index).cloned(), host_is_silent.clone());
                let name = match index {
                    0 => "flue-engine".into(),
                    _ => format!("flue-engine-{index}"),
                };
                let run =
                    move || engine_thread(&shared, presence.as_deref(), &all, &host_is_silent);
                threads.spawn(name, run)?;
            }
        }
        if let Some(host) = own_host {
            let all = shards.clone();
            let run = move || {
                host_thread(&all, &host_doorbell, host);
                host_is_silent.store(true, Ordering::Release);
                all.iter().for_each(|shared| shared.doorbell().ring());
            };
            threads.spawn("flue-host".into(), run)?;
        }
        let node = |(index, shared)| {
            let presence = presences.get(index).cloned();
            Self::of(shared, presence, threads.clone(), Clients::FIRST)
        };
        Ok(shards.into_iter().enumerate().map(node).collect())
    }

    fn of(
        shared: Arc<Monitor<Core>>,
        presence: Option<Arc<Presence>>,
        threads: Arc<Threads>,
        client: ClientTag,
    ) -> Self {
        let membership = Membership {
            client,
            requests: shared.with_core(|core, _| core.requests.clone()),
            engine_doorbell: shared.doorbell().clone(),
        };
        Self { shared, presence, membership: Arc::new(membership), threads, client: PhantomData }
    }

    /// Registers another client with this shard of the node: `client` creates it from its port to the host stack. It
    /// shares the node's addresses, and has its own connections and listeners. Returns the new client's handle.
    ///
    /// # Errors
    /// The maximum number of clients, [`CLIENTS_MAX`](offload_engine::engine::CLIENTS_MAX), is reached.
    pub fn register<D: NodeClient>(
        &self,
        client: impl FnOnce(SocketPort) -> D,
    ) -> Result<Node<D>, TooManyClients> {
        let tag = self.shared.with(|core, _| core.register(client))?;
        Ok(Node::of(self.shared.clone(), self.presence.clone(), self.threads.clone(), tag))
    }

    /// Current time of the node.
    pub fn now(&self) -> Instant {
        self.shared.now()
    }

    /// Doorbell that wakes the engine.
    pub fn doorbell(&self) -> &Arc<Doorbell> {
        self.shared.doorbell()
    }

    /// Thread that runs the loop.
    pub fn progress(&self) -> Progress {
        self.shared.progress_mode()
    }

    /// Calls `f` on the client, and sends the resulting frames before it returns.
    pub fn with<R>(&self, f: impl FnOnce(&mut C, &mut Connections, Instant) -> R) -> R {
        let client = self.membership.client;
        let result = self
            .shared
            .with(|core, now| f(own(&mut core.clients, client), core.engine.connections(), now));
        // The consumer may have requested a notification, and be about to sleep.
        self.expect_sleep();
        result
    }

    /// Reports that [`Node::progress_once`] returned true and brought the caller nothing, so that it polls again.
    pub fn expect_poll(&self) {
        if let Some(presence) = &self.presence {
            presence.expect_poll();
        }
    }

    /// Reports that the caller may sleep in a system call of its own: with shared progress, the node's thread runs the
    /// loop.
    pub fn expect_sleep(&self) {
        if let Some(presence) = &self.presence {
            presence.request();
        }
    }

    /// Runs `wait`, which runs the loop with shared progress.
    fn while_present<R>(&self, wait: impl FnOnce() -> R) -> R {
        match &self.presence {
            Some(presence) => self.shared.with_presence(presence, wait),
            None => wait(),
        }
    }

    /// Calls `f` on the client, as [`Node::with`]; `f` returns when the effects must be flushed. Deferred work must be
    /// visible in [`NodeClient::has_input`]. With manual progress it is done in the next run of the loop.
    pub fn with_lazily(&self, f: impl FnOnce(&mut C) -> Urgency) {
        let client = self.membership.client;
        let f = |core: &mut Core| f(own(&mut core.clients, client));
        match &self.presence {
            Some(presence) => self.shared.post_lazily(presence, f),
            None => self.shared.with_lazily(f),
        }
    }

    /// Calls `f` on the engine of this shard: counters, link, connections.
    pub fn with_engine<R>(&self, f: impl FnOnce(&mut Engine, Instant) -> R) -> R {
        self.shared.with_core(|core, now| f(&mut core.engine, now))
    }

    /// Calls `f` on the engines of all shards of the device, in the order of its queues.
    pub fn with_engines(&self, mut f: impl FnMut(&mut Engine, Instant)) {
        for shared in &self.threads.shards {
            shared.with_core(|core, now| f(&mut core.engine, now));
        }
    }

    /// Sends a request to the host stack. With manual progress it is handled when the loop runs.
    pub fn request(&self, request: Request) {
        self.threads.requests.request(request);
        if self.progress() != Progress::Automatic {
            self.shared.doorbell().ring();
        }
    }

    /// Returns the listeners and connections of the host stack, by handle.
    ///
    /// # Errors
    /// No answer within `timeout`; with manual progress no caller runs the loop.
    pub fn list(&self, timeout: Duration) -> Result<Vec<ConnectionRow>, WaitError> {
        self.rows(None).recv_timeout(timeout).map_err(|_| WaitError::TimedOut)
    }

    /// Returns the listener or connection of the host stack with this handle; `None` if not found.
    ///
    /// # Errors
    /// As [`Node::list`].
    pub fn find(
        &self,
        handle: OffloadHandle,
        timeout: Duration,
    ) -> Result<Option<ConnectionRow>, WaitError> {
        let rows = self.rows(Some(handle)).recv_timeout(timeout);
        rows.map(|mut rows| rows.pop()).map_err(|_| WaitError::TimedOut)
    }

    fn rows(&self, only: Option<OffloadHandle>) -> Receiver<Vec<ConnectionRow>> {
        let (reply, rows) = crossbeam_channel::bounded(1);
        self.request(Request::List { only, reply });
        rows
    }

    /// Returns the state of these connections in the offload target; `None`: not offloaded.
    pub fn snapshots(&self, handles: &[OffloadHandle]) -> Vec<Option<ConnectionSnapshot>> {
        let mut snapshots = vec![None; handles.len()];
        self.with_engines(|engine, now| {
            for (snapshot, handle) in snapshots.iter_mut().zip(handles) {
                *snapshot = snapshot.or_else(|| engine.snapshot(now, *handle));
            }
        });
        snapshots
    }

    /// Waits until the device's connections have ended in both stacks, except for TIME-WAIT. A dropped node resets the
    /// remaining connections, and a peer that has just begun to close would be affected. With manual progress the loop
    /// runs here. Not for callbacks.
    ///
    /// # Errors
    /// The time limit is reached, or the link is lost.
    pub fn linger(&self, timeout: Duration) -> Result<(), WaitError> {
        let deadline = self.now() + timeout;
        let mut rows = self.rows(None);
        loop {
            let check_at = deadline.min(self.now() + LINGER_PAUSE);
            match self.while_present(|| self.shared.wait_until(Some(check_at), || None::<()>)) {
                Ok(()) | Err(WaitError::TimedOut) => {}
                Err(failure) => return Err(failure),
            }
            if let Ok(listed) = rows.try_recv() {
                if self.has_ended(&listed) {
                    return Ok(());
                }
                rows = self.rows(None);
            }
            if self.now() >= deadline {
                return Err(WaitError::TimedOut);
            }
        }
    }

    /// Stops the device after a panic of the consumer or of the node that may have left inconsistent state. Clients are
    /// notified of the lost device. Not for callbacks.
    pub fn abandon(&self) {
        self.threads.shards.iter().for_each(|shard| shard.abandon());
    }

    /// True if all connections are in TIME-WAIT, those of the host stack's list and the target's.
    fn has_ended(&self, listed: &[ConnectionRow]) -> bool {
        let is_live = |row: &ConnectionRow| match row.state {
            Some(state) => !matches!(state, SocketState::Listen | SocketState::TimeWait),
            // The target has the state, unless the connection is in transition.
            None => row.offload != OffloadState::Offloaded,
        };
        let mut is_left = listed.iter().any(is_live);
        self.with_engines(|engine, now| {
            let mut infos = engine.connections().list(now);
            is_left |= infos.any(|(_, _, info)| info.phase != TcpPhase::TimeWait);
        });
        !is_left
    }

    /// Waits until `f` has a result. It is called after each change, and may act as in [`Node::with`]. With manual
    /// progress the loop runs here. Not for callbacks: later callbacks would be blocked.
    ///
    /// # Errors
    /// The time limit is reached, or the link is lost.
    pub fn wait<R>(
        &self,
        timeout: Option<Duration>,
        mut f: impl FnMut(&mut C, &mut Connections, Instant) -> Option<R>,
    ) -> Result<R, WaitError> {
        let deadline = timeout.map(|timeout| self.now() + timeout);
        let client = self.membership.client;
        self.while_present(|| {
            self.shared.wait(deadline, |core, now| {
                f(own(&mut core.clients, client), core.engine.connections(), now)
            })
        })
    }

    /// Waits until `f` has a result. Unlike in [`Node::wait`], `f` is called with no lock held, so it may use handles
    /// that enter the node.
    ///
    /// # Errors
    /// The time limit is reached, or the link is lost.
    pub fn wait_until<R>(
        &self,
        timeout: Option<Duration>,
        f: impl FnMut() -> Option<R>,
    ) -> Result<R, WaitError> {
        let deadline = timeout.map(|timeout| self.now() + timeout);
        self.while_present(|| self.shared.wait_until(deadline, f))
    }

    /// Runs the loop once, with manual or shared progress, for consumers that poll. With automatic progress the node's
    /// threads run it, and this does nothing. Returns true if there was any work. Not for callbacks.
    pub fn progress_once(&self) -> bool {
        match self.progress() {
            Progress::Automatic => false,
            Progress::Manual => self.shared.progress(),
            Progress::Shared => {
                let Some(presence) = &self.presence else { return false };
                self.shared.progress_of_poll(presence)
            }
        }
    }

    /// Makes every [`Node::wait`] re-evaluate its condition after a change outside the node.
    pub fn wake(&self) {
        self.shared.wake();
    }
}

impl<C: NodeClient> Clone for Node<C> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            presence: self.presence.clone(),
            threads: self.threads.clone(),
            membership: self.membership.clone(),
            client: PhantomData,
        }
    }
}

impl<C: NodeClient> fmt::Debug for Node<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("progress", &self.progress()).finish_non_exhaustive()
    }
}

impl Threads {
    /// Spawns a thread whose panic stops the whole node.
    fn spawn(&self, name: String, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let shards = self.shards.clone();
        let run = move || {
            let _fails = shards.iter().map(Monitor::fail_by_panic).collect::<Vec<_>>();
            run();
        };
        let handle = offload_engine::thread::start(name, run)?;
        self.handles.lock().push(handle);
        Ok(())
    }
}

impl Threads {
    /// With manual progress the thread that drops the last handle runs the loops for the last time, those of several
    /// shards concurrently.
    fn finish_manual(&self) {
        match &self.shards[..] {
            [shard, ..] if shard.progress_mode() != Progress::Manual => {}
            [shard] => finish(shard, &self.host_is_silent),
            // Joined one by one, which the race detector supports; it does not support the end of a scope.
            shards => std::thread::scope(|scope| {
                let mut running = Vec::new();
                for shard in shards {
                    let run = || finish(shard, &self.host_is_silent);
                    match offload_engine::thread::start_scoped(scope, run) {
                        Ok(handle) => running.push(handle),
                        Err(error) => tracing::error!(%error, "shutdown thread not started"),
                    }
                }
                for handle in running {
                    if handle.join().is_err() {
                        tracing::error!("panic during shutdown of the node");
                    }
                }
            }),
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        for shared in &self.shards {
            shared.stop();
            shared.doorbell().ring();
        }
        for (shared, presence) in self.shards.iter().zip(&self.presences) {
            shared.stop_progress_thread(presence);
        }
        self.host_doorbell.ring();
        if !std::thread::panicking() {
            self.finish_manual();
        }
        let own = std::thread::current().id();
        let handles = std::mem::take(&mut *self.handles.lock());
        for handle in handles {
            // The last handle may be dropped by a callback on the engine's own thread. A thread that sleeps on lost
            // descriptors cannot be woken.
            if handle.thread().id() != own && !descriptor::are_lost() && handle.join().is_err() {
                tracing::error!("panic in a node thread");
            }
        }
    }
}

#[cfg(test)]
mod tests;
