//! A node: engine, client and host stack, and the threads and sleeps around them.
//!
//! Theory of operation
//!
//! [`Core`] is passive: engine, client, and (unless a thread of its own has it) the host stack;
//! [`Core::poll`] is one iteration, time is its argument. Simulations use it as it is. [`Node`] is the
//! shell that owns a clock and decides who runs the loop:
//!
//! * *Automatic progress*: one thread runs the engine, a second one the host stack. Both poll while
//!   there is work, go on polling for [`NodeConfig::spin`], then sleep in poll(2) on the link's
//!   descriptor and their doorbell. A caller that posts ([`Node::with`]) takes the core's lock and
//!   transmits on its own thread: no thread hop stands between a post and the wire.
//! * *Manual progress*: no thread. The loop runs inside [`Node::wait`], on the caller's thread.
//!
//! The consumer's callbacks run with no lock held, one at a time, in order ([`Node::with`] and the
//! engine's thread both deliver; whoever comes first).
//!
//! The lock is taken once per iteration and per call, never per packet.

use std::{
    boxed::Box,
    collections::VecDeque,
    format, io,
    os::fd::{AsFd, OwnedFd},
    string::String,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    vec::Vec,
};

use offload_engine::{
    engine::{Callback, Connections, Engine, EngineConfig, NodeClient, doorbell::Doorbell},
    link::Link,
    time::{Duration, Instant},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use crate::{
    host::{Host, HostConfig},
    socket::SocketPort,
};

/// Who runs the loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Progress {
    /// Threads of the node.
    #[default]
    Automatic,
    /// The caller, inside [`Node::wait`].
    Manual,
}

/// How a node runs.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The offload target.
    pub engine: EngineConfig,
    /// The host stack.
    pub host: HostConfig,
    /// Who runs the loop.
    pub progress: Progress,
    /// How long an idle loop polls before it sleeps. A wake-up across processors costs 20 to 35 µs.
    pub spin: Duration,
}

/// Engine, client and host stack without clock or thread.
#[derive(Debug)]
pub struct Core<C> {
    /// The offload target.
    pub engine: Engine,
    /// The layer above it.
    pub client: C,
    /// The host stack, unless a thread of its own runs it.
    pub host: Option<Host>,
}

impl<C: NodeClient> Core<C> {
    /// A node on `link`; `client` makes the layer above from its port to the host stack.
    ///
    /// # Errors
    /// No descriptor is left for the doorbells, or (InvalidInput) the host's configuration cannot work.
    pub fn new(
        link: Box<dyn Link>,
        engine: EngineConfig,
        host: HostConfig,
        client: impl FnOnce(SocketPort) -> C,
    ) -> io::Result<Self> {
        // Our host says when it has forwarded everything.
        let engine = EngineConfig { waits_for_forwards: true, ..engine };
        let (engine, host_port) = Engine::new(link, engine)?;
        let (socket_port, host_sockets) = SocketPort::pair(host_port.host_doorbell.clone());
        let host = Host::new(host, host_port, host_sockets)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        Ok(Self { engine, client: client(socket_port), host: Some(host) })
    }

    /// One iteration. Returns whether there was anything to do.
    ///
    /// # Errors
    /// The link is gone.
    pub fn poll(&mut self, now: Instant) -> io::Result<bool> {
        let mut busy = self.engine.poll(now, &mut self.client)?;
        if let Some(host) = &mut self.host {
            busy |= host.poll(now);
        }
        Ok(busy)
    }

    /// When [`Core::poll`] has to be called again though nothing has happened.
    pub fn poll_at(&self, now: Instant) -> Option<Instant> {
        let host = self.host.as_ref().and_then(|host| host.poll_at(now));
        [self.engine.poll_at(&self.client), host].into_iter().flatten().min()
    }

    /// Whether something waits in a queue. Look before sleeping.
    pub fn has_input(&self) -> bool {
        self.engine.has_input()
            || self.client.has_input()
            || self.host.as_ref().is_some_and(Host::has_input)
    }
}

struct Shared<C> {
    core: Mutex<Core<C>>,
    /// Signalled after iterations that did something, and by [`Node::wake`].
    changed: Condvar,
    /// Threads in [`Node::wait`], automatic progress.
    waiting: AtomicUsize,
    /// Threads that want the core's lock; the engine's thread lets them go first.
    contenders: AtomicUsize,
    /// Counts what [`Node::wait_until`] may want to look at again.
    changes: AtomicU64,
    callbacks: Mutex<VecDeque<Callback>>,
    delivering: AtomicBool,
    engine_doorbell: Arc<Doorbell>,
    host_doorbell: Arc<Doorbell>,
    /// The link's descriptor, to sleep on without holding the lock.
    descriptor: Option<OwnedFd>,
    /// Until when the engine's thread sleeps, in nanoseconds; 0: it does not.
    sleeping_until: AtomicU64,
    started: std::time::Instant,
    spin: Duration,
    progress: Progress,
    stopping: AtomicBool,
    woken: AtomicBool,
    failure: Mutex<Option<String>>,
}

/// A node with its clock and threads. Clones are the same node.
pub struct Node<C: NodeClient + 'static> {
    shared: Arc<Shared<C>>,
    threads: Arc<Threads<C>>,
}

/// Stops and joins the node's threads when its last handle is dropped.
struct Threads<C> {
    shared: Arc<Shared<C>>,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

/// Why waiting ended without a result.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The time is over.
    #[error("node: not done within the time limit")]
    TimedOut,
    /// The link is gone.
    #[error("link: {0}")]
    Link(String),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic in a consumer's closure must not take the other connections down.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<C> Shared<C> {
    fn now(&self) -> Instant {
        let nanos = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Instant::from_nanos(nanos)
    }

    fn fail(&self, error: &io::Error) {
        lock(&self.failure).get_or_insert_with(|| format!("{error}"));
        self.stopping.store(true, Ordering::SeqCst);
        self.changed.notify_all();
    }

    fn failure(&self) -> Option<WaitError> {
        lock(&self.failure).clone().map(WaitError::Link)
    }
}

impl<C: NodeClient> Shared<C> {
    /// The core for a caller: announced, so that a busy engine's thread lets it in.
    fn enter(&self) -> MutexGuard<'_, Core<C>> {
        self.contenders.fetch_add(1, Ordering::SeqCst);
        let core = lock(&self.core);
        self.contenders.fetch_sub(1, Ordering::SeqCst);
        core
    }

    /// Runs `f` and what follows from it: notices taken, segments sent.
    fn call<R>(
        &self,
        core: &mut Core<C>,
        f: impl FnOnce(&mut C, &mut Connections, Instant) -> R,
    ) -> R {
        let now = self.now();
        let result = f(&mut core.client, core.engine.connections(), now);
        let polled = core.client.poll(now, core.engine.connections());
        if core.engine.flush(now, &mut core.client) || polled {
            self.changes.fetch_add(1, Ordering::SeqCst);
        }
        self.collect_callbacks(core);
        let due = core.engine.poll_at(&core.client).map_or(u64::MAX, Instant::as_nanos);
        if due < self.sleeping_until.load(Ordering::SeqCst) || core.has_input() {
            self.engine_doorbell.ring();
        }
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.changed.notify_all();
        }
        result
    }

    fn collect_callbacks(&self, core: &mut Core<C>) {
        let mut due = Vec::new();
        core.client.take_callbacks(&mut due);
        if !due.is_empty() {
            lock(&self.callbacks).extend(due);
        }
    }

    /// Calls what is due, with no lock held. A callback that posts adds to the queue; the outermost
    /// delivery takes it, so callbacks neither nest nor overtake each other.
    fn deliver(&self) {
        loop {
            if lock(&self.callbacks).is_empty() || self.delivering.swap(true, Ordering::SeqCst) {
                return;
            }
            loop {
                let next = lock(&self.callbacks).pop_front();
                let Some(callback) = next else { break };
                callback();
            }
            self.delivering.store(false, Ordering::SeqCst);
            self.changes.fetch_add(1, Ordering::SeqCst);
            self.changed.notify_all();
        }
    }

    fn iterate(&self, core: &mut Core<C>) -> bool {
        match core.poll(self.now()) {
            Ok(busy) => {
                self.collect_callbacks(core);
                if busy {
                    self.changes.fetch_add(1, Ordering::SeqCst);
                }
                busy
            }
            Err(error) => {
                self.fail(&error);
                false
            }
        }
    }

    /// Sleeps until the link is readable, the doorbell rings, or `until`.
    fn sleep(&self, core_has_input: impl FnOnce() -> bool, writable: bool, until: Option<Instant>) {
        let until_nanos = until.map_or(u64::MAX, Instant::as_nanos);
        self.sleeping_until.store(until_nanos, Ordering::SeqCst);
        self.engine_doorbell.announce_sleep();
        let stay = core_has_input()
            || self.stopping.load(Ordering::SeqCst)
            || self.woken.load(Ordering::SeqCst);
        if !stay {
            let timeout = until.map(|until| until - self.now());
            let link_events = if writable { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            sleep_on(
                self.descriptor.as_ref().map(|descriptor| (descriptor, link_events)),
                &self.engine_doorbell,
                timeout,
            );
        }
        self.sleeping_until.store(0, Ordering::SeqCst);
        self.engine_doorbell.awake();
    }

    fn engine_thread(&self) {
        let mut idle_since = None;
        while !self.stopping.load(Ordering::SeqCst) {
            while self.contenders.load(Ordering::SeqCst) > 0 {
                std::thread::yield_now();
            }
            let (busy, until, writable) = {
                let mut core = lock(&self.core);
                let busy = self.iterate(&mut core);
                let until = core.engine.poll_at(&core.client);
                (busy, until, core.engine.wants_writable())
            };
            self.deliver();
            if busy {
                idle_since = None;
                if self.waiting.load(Ordering::SeqCst) > 0 {
                    self.changed.notify_all();
                }
                continue;
            }
            let now = self.now();
            if now - *idle_since.get_or_insert(now) < self.spin {
                std::thread::yield_now();
                continue;
            }
            self.sleep(|| lock(&self.core).has_input(), writable, until);
            idle_since = None;
        }
        self.changed.notify_all();
    }

    fn host_thread(&self, mut host: Host) {
        while !self.stopping.load(Ordering::SeqCst) {
            if host.poll(self.now()) {
                continue;
            }
            let until = host.poll_at(self.now());
            self.host_doorbell.announce_sleep();
            if !host.has_input() && !self.stopping.load(Ordering::SeqCst) {
                let timeout = until.map(|until| until - self.now());
                sleep_on(None, &self.host_doorbell, timeout);
            }
            self.host_doorbell.awake();
        }
    }
}

fn sleep_on(link: Option<(&OwnedFd, PollFlags)>, doorbell: &Doorbell, timeout: Option<Duration>) {
    let bell = doorbell.descriptor();
    let mut waits = Vec::with_capacity(2);
    waits.push(PollFd::from_borrowed_fd(bell, PollFlags::IN));
    if let Some((descriptor, events)) = link {
        waits.push(PollFd::from_borrowed_fd(descriptor.as_fd(), events));
    }
    // A time-out that does not fit a timespec is as good as none.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut waits, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => tracing::warn!(%error, "poll"),
    }
}

impl<C: NodeClient + 'static> Node<C> {
    /// Starts a node on `link`; `client` makes the layer above from its port to the host stack.
    ///
    /// # Errors
    /// No descriptor or thread is left, or (InvalidInput) the host's configuration cannot work.
    pub fn start(
        link: Box<dyn Link>,
        config: NodeConfig,
        client: impl FnOnce(SocketPort) -> C,
    ) -> io::Result<Self> {
        let NodeConfig { engine, host, progress, spin } = config;
        let descriptor = link.descriptor().map(|fd| fd.try_clone_to_owned()).transpose()?;
        let mut core = Core::new(link, engine, host, client)?;
        let own_host = match progress {
            Progress::Automatic => core.host.take(),
            Progress::Manual => None,
        };
        let (engine_doorbell, host_doorbell) =
            (core.engine.doorbell().clone(), core.engine.host_doorbell().clone());
        let shared = Arc::new(Shared {
            core: Mutex::new(core),
            changed: Condvar::new(),
            waiting: AtomicUsize::new(0),
            contenders: AtomicUsize::new(0),
            changes: AtomicU64::new(0),
            callbacks: Mutex::new(VecDeque::new()),
            delivering: AtomicBool::new(false),
            engine_doorbell,
            host_doorbell,
            descriptor,
            sleeping_until: AtomicU64::new(0),
            started: std::time::Instant::now(),
            spin,
            progress,
            stopping: AtomicBool::new(false),
            woken: AtomicBool::new(false),
            failure: Mutex::new(None),
        });
        let node = Self {
            threads: Arc::new(Threads { shared: shared.clone(), handles: Mutex::default() }),
            shared,
        };
        if let Some(host) = own_host {
            let shared = node.shared.clone();
            node.spawn("flue-engine", move || shared.engine_thread())?;
            let shared = node.shared.clone();
            node.spawn("flue-host", move || shared.host_thread(host))?;
        }
        Ok(node)
    }

    fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let handle = std::thread::Builder::new().name(name.into()).spawn(run)?;
        lock(&self.threads.handles).push(handle);
        Ok(())
    }

    /// The node's time.
    pub fn now(&self) -> Instant {
        self.shared.now()
    }

    /// The doorbell that wakes the engine.
    pub fn doorbell(&self) -> &Arc<Doorbell> {
        &self.shared.engine_doorbell
    }

    /// Who runs the loop.
    pub fn progress(&self) -> Progress {
        self.shared.progress
    }

    /// Acts on the client, and sends what follows from it before returning.
    pub fn with<R>(&self, f: impl FnOnce(&mut C, &mut Connections, Instant) -> R) -> R {
        let result = {
            let mut core = self.shared.enter();
            self.shared.call(&mut core, f)
        };
        self.shared.deliver();
        result
    }

    /// Looks at the engine: counters, link, connections.
    pub fn with_engine<R>(&self, f: impl FnOnce(&mut Engine, Instant) -> R) -> R {
        let mut core = self.shared.enter();
        f(&mut core.engine, self.shared.now())
    }

    /// Waits until `f` has a result; it is called after each change, and may act as in
    /// [`Node::with`]. With manual progress the loop runs here.
    ///
    /// # Errors
    /// The time is over, or the link is gone.
    pub fn wait<R>(
        &self,
        timeout: Option<Duration>,
        f: impl FnMut(&mut C, &mut Connections, Instant) -> Option<R>,
    ) -> Result<R, WaitError> {
        let deadline = timeout.map(|timeout| self.now() + timeout);
        match self.shared.progress {
            Progress::Automatic => self.wait_automatic(deadline, f),
            Progress::Manual => self.wait_manual(deadline, f),
        }
    }

    /// Waits until `f` has a result. Unlike in [`Node::wait`] it is called with no lock held, so it may use
    /// handles that enter the node themselves.
    ///
    /// # Errors
    /// The time is over, or the link is gone.
    pub fn wait_until<R>(
        &self,
        timeout: Option<Duration>,
        mut f: impl FnMut() -> Option<R>,
    ) -> Result<R, WaitError> {
        let deadline = timeout.map(|timeout| self.now() + timeout);
        let shared = &*self.shared;
        loop {
            let before = shared.changes.load(Ordering::SeqCst);
            if let Some(result) = f() {
                return Ok(result);
            }
            let left = deadline.map(|deadline| deadline - self.now());
            self.wait(left, |_, _, _| {
                (shared.changes.load(Ordering::SeqCst) != before).then_some(())
            })?;
        }
    }

    /// Has every [`Node::wait`] look at its condition again: something outside the node has changed.
    pub fn wake(&self) {
        self.shared.changes.fetch_add(1, Ordering::SeqCst);
        self.shared.woken.store(true, Ordering::SeqCst);
        self.shared.engine_doorbell.ring();
        drop(self.shared.enter());
        self.shared.changed.notify_all();
    }

    fn wait_automatic<R>(
        &self,
        deadline: Option<Instant>,
        mut f: impl FnMut(&mut C, &mut Connections, Instant) -> Option<R>,
    ) -> Result<R, WaitError> {
        let shared = &*self.shared;
        shared.waiting.fetch_add(1, Ordering::SeqCst);
        let mut core = shared.enter();
        let outcome = loop {
            shared.woken.store(false, Ordering::SeqCst);
            // Not counted while it acts itself: it needs no signal of its own doing.
            shared.waiting.fetch_sub(1, Ordering::SeqCst);
            let before = shared.changes.load(Ordering::SeqCst);
            let result = shared.call(&mut core, &mut f);
            shared.waiting.fetch_add(1, Ordering::SeqCst);
            if let Some(result) = result {
                break Ok(result);
            }
            if let Some(failure) = shared.failure() {
                break Err(failure);
            }
            let left = deadline.map(|deadline| deadline - shared.now());
            if left == Some(Duration::ZERO) {
                break Err(WaitError::TimedOut);
            }
            // What the call took in after `f` had looked, nobody will signal.
            let unseen = shared.changes.load(Ordering::SeqCst) != before;
            if unseen || !lock(&shared.callbacks).is_empty() {
                drop(core);
                shared.deliver();
                core = shared.enter();
                continue;
            }
            core = match left {
                Some(left) => {
                    let waited = shared.changed.wait_timeout(core, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => shared.changed.wait(core).unwrap_or_else(PoisonError::into_inner),
            };
        };
        drop(core);
        shared.waiting.fetch_sub(1, Ordering::SeqCst);
        shared.deliver();
        outcome
    }

    fn wait_manual<R>(
        &self,
        deadline: Option<Instant>,
        mut f: impl FnMut(&mut C, &mut Connections, Instant) -> Option<R>,
    ) -> Result<R, WaitError> {
        let shared = &*self.shared;
        let mut idle_since = None;
        loop {
            shared.woken.store(false, Ordering::SeqCst);
            let mut core = shared.enter();
            let mut busy = shared.iterate(&mut core);
            let before = shared.changes.load(Ordering::SeqCst);
            let result = shared.call(&mut core, &mut f);
            busy |= shared.changes.load(Ordering::SeqCst) != before;
            let now = shared.now();
            let until = core.poll_at(now).into_iter().chain(deadline).min();
            let writable = core.engine.wants_writable();
            drop(core);
            shared.deliver();
            if let Some(result) = result {
                return Ok(result);
            }
            if let Some(failure) = shared.failure() {
                return Err(failure);
            }
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Err(WaitError::TimedOut);
            }
            if busy {
                idle_since = None;
            } else if now - *idle_since.get_or_insert(now) < shared.spin {
                std::thread::yield_now();
            } else {
                shared.sleep(|| shared.enter().has_input(), writable, until);
                idle_since = None;
            }
        }
    }
}

impl<C: NodeClient + 'static> Clone for Node<C> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), threads: self.threads.clone() }
    }
}

impl<C: NodeClient + 'static> core::fmt::Debug for Node<C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Node").field("progress", &self.shared.progress).finish_non_exhaustive()
    }
}

impl<C> Drop for Threads<C> {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.engine_doorbell.ring();
        self.shared.host_doorbell.ring();
        let own = std::thread::current().id();
        for handle in lock(&self.handles).drain(..) {
            // The last handle may be dropped by a callback on the engine's own thread.
            if handle.thread().id() != own && handle.join().is_err() {
                tracing::error!("a thread of the node has panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests;
