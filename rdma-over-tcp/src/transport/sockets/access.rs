//! The threads around an adapter on kernel sockets: consumers drive it while they wait or poll, and a thread of its own
//! does otherwise ([`Presence`]).

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::{fmt, net::SocketAddr};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Mutex, PoisonError},
    thread::JoinHandle,
    time::SystemTime,
};

use host_stack::{
    node::{Monitor, Presence, Progress, WaitError},
    socket::ConnectionRow,
};
use offload_engine::{
    descriptor::moved_up,
    engine::doorbell::Doorbell,
    link::Recorder,
    time::{Duration, Instant},
};

use super::{capture::CaptureOutput, core::SocketRnic, listening::ListeningSocket};
use crate::rnic::{Config, History, ListenerId, Rnic, Urgency};

/// How an adapter on kernel sockets runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketsConfig {
    /// How long a thread that waits polls before it sleeps.
    pub spin: Duration,
}

impl Default for SocketsConfig {
    fn default() -> Self {
        Self { spin: Duration::from_micros(20) }
    }
}

/// Kernel sockets with an adapter on them. Clones are the same; when the last is dropped, and the last handle of the
/// adapter, its connections are reset and its thread ends.
#[derive(Clone)]
pub struct Sockets(Arc<Running>);

struct Running {
    shared: Arc<Monitor<SocketRnic>>,
    presence: Arc<Presence>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Sockets {
    /// Starts the thread of an adapter.
    ///
    /// # Errors
    /// No descriptor or thread is left, or (InvalidInput) keep-alive is beyond its limits.
    pub(crate) fn start(config: SocketsConfig, adapter: Config) -> io::Result<Self> {
        let doorbell = Arc::new(Doorbell::new()?);
        let (bell, presence) = (doorbell.clone(), Arc::new(Presence::new()?));
        let wake = move || bell.ring();
        let core = SocketRnic::new(adapter, Box::new(wake))?;
        let descriptor = moved_up(core.descriptor().as_fd().try_clone_to_owned()?);
        let SocketsConfig { spin, .. } = config;
        let shared = Monitor::new(core, doorbell, Some(descriptor), spin, Progress::Manual);
        let attendant = presence.clone();
        let shared = Arc::new(shared.with_attendant(Box::new(move || attendant.request())));
        let (own, of_thread) = (shared.clone(), presence.clone());
        let attend = move || {
            let _fails = own.fail_by_panic();
            own.attend(&of_thread);
        };
        let thread = offload_engine::thread::start("flue-sockets", attend)?;
        Ok(Self(Arc::new(Running { shared, presence, thread: Mutex::new(Some(thread)) })))
    }

    /// Calls `work` with the adapter, and does what follows from it.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Rnic, Instant) -> R) -> R {
        let result = self.0.shared.with(|core, now| work(core.rnic(), now));
        // It may have asked for a notification, and be about to sleep.
        self.expect_sleep();
        result
    }

    /// Has the thread drive the sockets: a consumer is about to sleep, perhaps.
    pub(crate) fn expect_sleep(&self) {
        self.0.presence.request();
    }

    /// As [`Sockets::with`]; what follows may wait as `work` says.
    pub(crate) fn with_lazily(&self, work: impl FnOnce(&mut Rnic) -> Urgency) {
        self.0.shared.post_lazily(&self.0.presence, |core| work(core.rnic()).into());
    }

    /// One pass over the sockets, unless another thread makes one: for consumers that poll. Returns whether there was
    /// anything to do.
    pub(crate) fn poll(&self) -> bool {
        let busy = self.0.shared.try_progress().unwrap_or(false);
        self.0.presence.polled(busy);
        busy
    }

    /// Calls `look` with the history of each connection.
    pub fn histories(&self, mut look: impl FnMut(&History)) {
        self.0.shared.with(|core, _| core.histories().for_each(&mut look));
    }

    /// Waits until `f`, which may use the adapter, has a result. The sockets are driven here meanwhile. Not for
    /// callbacks.
    ///
    /// # Errors
    /// The time is over.
    pub fn wait_until<R>(
        &self,
        timeout: Option<Duration>,
        f: impl FnMut() -> Option<R>,
    ) -> Result<R, WaitError> {
        let Running { shared, presence, .. } = &*self.0;
        let deadline = timeout.map(|timeout| shared.now() + timeout);
        shared.attended(presence, || shared.wait_until(deadline, f))
    }

    /// Records what is sent and received from now on, in frames made up around it: Wireshark shows MPA, DDP and RDMAP,
    /// and of TCP what a connection without losses would be. `output` is a pcapng file whose interface is called
    /// `kernel`.
    ///
    /// # Errors
    /// Those of the output. One that comes later ends the capture and is logged.
    pub fn start_capture(&self, output: CaptureOutput) -> io::Result<()> {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.0.shared.with(|core, now| {
            let at_zero = u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX);
            let at_zero = at_zero.saturating_sub(now.as_nanos());
            core.start_capture(Recorder::new(output, "kernel", at_zero)?);
            Ok(())
        })
    }

    /// Writes out what the capture has buffered. It also happens when a connection begins or ends, and on drop, which a
    /// process that calls `exit` does not come to.
    pub fn flush_capture(&self) {
        self.0.shared.with(|core, _| core.flush_capture());
    }

    /// Listeners and connections, by the numbers that they have here.
    pub fn list(&self) -> Vec<ConnectionRow> {
        self.0.shared.with(|core, _| core.rows())
    }

    /// The socket of a listener, for the child of a fork.
    pub fn listening_socket(&self, listener: ListenerId) -> Option<Arc<ListeningSocket>> {
        self.0.shared.with(|core, _| core.listening_socket(listener))
    }

    /// Has the next listener at this address listen on a socket that does already: one that the process has inherited.
    pub fn inherit(&self, local: SocketAddr, socket: OwnedFd) {
        self.0.shared.with(|core, _| core.inherit(local, socket));
    }

    /// Has every [`Sockets::wait_until`] look at its condition again: something outside has changed.
    pub fn wake(&self) {
        self.0.shared.wake();
    }

    /// Ends the adapter after a panic that may have left it in any state: its connections are reset, and its consumers
    /// hear that the device is gone. Not for callbacks.
    pub fn abandon(&self) {
        self.0.shared.abandon();
    }

    /// Waits until all connections have ended, so that their peers see that.
    ///
    /// # Errors
    /// The time is over.
    pub fn linger(&self, timeout: Duration) -> Result<(), WaitError> {
        let Running { shared, presence, .. } = &*self.0;
        let deadline = shared.now() + timeout;
        shared.attended(presence, || {
            shared.wait(Some(deadline), |core, _| core.is_silent().then_some(()))
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.end_attendance(&self.presence);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The last handle may be dropped by a callback on that very thread.
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the sockets has panicked");
        }
    }
}

impl fmt::Debug for Sockets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sockets").finish_non_exhaustive()
    }
}
