//! Adapter on kernel sockets, and the threads around it. Consumers run it while they wait or poll; otherwise a progress
//! thread does ([`Presence`]).

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::net::SocketAddr;
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Mutex, PoisonError},
    thread::JoinHandle,
};

use offload_engine::{
    chimney::client::OffloadHandle,
    descriptor::{are_lost, move_to_high_number},
    engine::doorbell::Doorbell,
    link::{CaptureOutput, CaptureStatus, Recorder, unix_nanos_at_zero},
    listing::ConnectionRow,
    runtime::{Monitor, Presence, Progress, WaitError},
    socket::TcpStatistics,
    time::{Duration, Instant},
};

use super::{
    Adapter,
    driver::{Driver, Stack},
};
use crate::{
    rnic::{Config, ListenerId, Rnic, Urgency},
    transport::{ListeningSocket, SocketRnic},
};

/// Options of an adapter on kernel sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketsConfig {
    /// Time for which a waiting thread polls before it sleeps.
    pub spin: Duration,
}

impl Default for SocketsConfig {
    fn default() -> Self {
        Self { spin: Duration::from_micros(20) }
    }
}

/// Opens an adapter on the kernel's TCP sockets, with the addresses and ports of this machine. It needs neither a TAP
/// nor privileges. When its last handle is dropped, its connections are reset and its thread exits.
///
/// # Errors
/// No descriptor or thread is available, or (InvalidInput) keep-alive exceeds its limits.
pub fn open_sockets(config: SocketsConfig, adapter: Config) -> io::Result<Adapter> {
    open(config, adapter, None)
}

/// Opens an adapter as [`open_sockets`] does, and captures the data that it sends and receives, in pcapng.
///
/// Frames are synthesized around the data. Wireshark shows MPA, DDP and RDMAP, and the TCP of a connection without
/// losses. The interface is named `kernel`. A later error of the output ends the capture and is logged.
///
/// # Errors
/// As [`open_sockets`]; or those of the output.
pub fn open_captured_sockets(
    config: SocketsConfig,
    adapter: Config,
    capture: CaptureOutput,
) -> io::Result<Adapter> {
    open(config, adapter, Some(capture))
}

fn open(
    config: SocketsConfig,
    adapter: Config,
    capture: Option<CaptureOutput>,
) -> io::Result<Adapter> {
    let doorbell = Arc::new(Doorbell::new()?);
    let (bell, presence) = (doorbell.clone(), Arc::new(Presence::new()?));
    let wake = move || bell.ring();
    let core = SocketRnic::new(adapter, Box::new(wake))?;
    let descriptor = move_to_high_number(core.descriptor().as_fd().try_clone_to_owned()?);
    let SocketsConfig { spin } = config;
    let shared = Monitor::new(core, doorbell, Some(descriptor), spin, Progress::Shared);
    if let Some(output) = capture {
        shared.with(|core, now| start_capture(core, now, output, "kernel"))?;
    }
    let of_callbacks = presence.clone();
    let shared = Arc::new(shared.with_progress_thread(Box::new(move || of_callbacks.request())));
    let (own, of_thread) = (shared.clone(), presence.clone());
    let run = move || {
        let _fails = own.fail_by_panic();
        own.progress_thread(&of_thread);
    };
    let thread = offload_engine::thread::start("flue-sockets", run)?;
    Ok(Adapter::new(Arc::new(Sockets { shared, presence, thread: Mutex::new(Some(thread)) })))
}

fn start_capture(
    core: &mut SocketRnic,
    now: Instant,
    output: CaptureOutput,
    interface: &str,
) -> io::Result<()> {
    core.start_capture(Recorder::new(output, interface, unix_nanos_at_zero(now))?)
}

/// Driver of a core on kernel sockets.
struct Sockets {
    shared: Arc<Monitor<SocketRnic>>,
    presence: Arc<Presence>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Driver for Sockets {
    fn enter(&self, work: &mut dyn FnMut(&mut Rnic, Instant)) {
        self.shared.with(|core, now| work(core.rnic(), now));
        // The consumer may have requested a notification, and be about to sleep.
        self.presence.request();
    }

    fn enter_for_post(&self, work: &mut dyn FnMut(&mut Rnic) -> Urgency) {
        self.shared.post_lazily(&self.presence, |core| work(core.rnic()));
    }

    fn progress(&self) -> bool {
        self.shared.progress_of_poll(&self.presence)
    }

    fn expect_poll(&self) {
        self.presence.expect_poll();
    }

    fn expect_sleep(&self) {
        self.presence.request();
    }

    fn wait_while(
        &self,
        timeout: Option<Duration>,
        is_over: &mut dyn FnMut() -> bool,
    ) -> Result<(), WaitError> {
        let Self { shared, presence, .. } = self;
        let deadline = timeout.map(|timeout| shared.now() + timeout);
        shared.with_presence(presence, || shared.wait_until(deadline, || is_over().then_some(())))
    }

    fn wake(&self) {
        self.shared.wake();
    }

    fn linger(&self, timeout: Duration) -> Result<(), WaitError> {
        let Self { shared, presence, .. } = self;
        let deadline = shared.now() + timeout;
        shared.with_presence(presence, || {
            shared.wait(Some(deadline), |core, _| core.is_silent().then_some(()))
        })
    }

    fn list(&self, _timeout: Duration) -> Result<Vec<ConnectionRow>, WaitError> {
        Ok(self.shared.with(|core, _| core.rows()))
    }

    fn statistics(&self, handles: &[OffloadHandle]) -> Vec<Option<TcpStatistics>> {
        self.shared.with(|core, _| handles.iter().map(|it| core.statistics(*it)).collect())
    }

    fn migrate(&self, _handle: OffloadHandle, _to: Stack) -> io::Result<()> {
        let message = "kernel sockets: migration not supported";
        Err(io::Error::new(io::ErrorKind::Unsupported, message))
    }

    fn start_capture(&self, output: CaptureOutput, interface: &str) -> io::Result<()> {
        self.shared.with(|core, now| start_capture(core, now, output, interface))
    }

    fn stop_capture(&self) -> Option<CaptureStatus> {
        self.shared.with(|core, _| core.stop_capture())
    }

    fn capture(&self) -> Option<CaptureStatus> {
        self.shared.with(|core, _| core.capture())
    }

    /// The kernel delivers data in flight on closed connections. Captures are flushed here because a process that calls
    /// `exit` does not drop them.
    fn finish(&self, _timeout: Duration) {
        self.shared.with(|core, _| core.flush_capture());
    }

    fn abandon(&self) {
        self.shared.abandon();
    }

    fn listening_socket(&self, listener: ListenerId) -> Option<Arc<ListeningSocket>> {
        self.shared.with(|core, _| core.listening_socket(listener))
    }

    fn open_datagrams(&self, port: u16) -> io::Result<()> {
        self.shared.with(|core, _| core.open_datagrams(port))
    }

    fn inherit(&self, local: SocketAddr, socket: OwnedFd) {
        self.shared.with(|core, _| core.inherit(local, socket));
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        self.shared.stop_progress_thread(&self.presence);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A callback on that very thread may drop the last handle. A thread that sleeps on lost descriptors cannot be
        // woken.
        if let Some(thread) = thread
            && !are_lost()
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("panic in the thread of the kernel sockets");
        }
    }
}
