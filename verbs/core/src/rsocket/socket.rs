//! rsocket: state, blocking calls, close.
//!
//! Blocking calls try, poll for a short time, and then block. Changes of state wake them: requested completions, events
//! of connection management, and calls of other threads.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    connection::{Connection, Readiness},
    options::{Family, Linger, SocketOptions},
    resources::Resources,
    waker::{Waker, Wakers},
    wire::ConnectionData,
};
use crate::{
    cm::{Event, EventChannel, EventKind, Id},
    device::{Device, OwnerDevice},
    errno::Errno,
    event_queue::EventCallback,
    sync::lock,
};

/// Time for which a call polls before it blocks.
const POLL_TIME: Duration = Duration::from_micros(20);

/// Time for which a close waits until all data is sent, without `SO_LINGER`.
const CLOSE_TIME: Duration = Duration::from_secs(60);

/// Time for which a close waits for the end of the connection after that.
const DISCONNECT_TIME: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) enum SocketPhase {
    Idle,
    Listening(VecDeque<Event>),
    Connecting(Box<Resources>),
    Connected(Box<Connection>),
    Failed,
    Closed,
}

#[derive(Debug)]
pub(super) struct SocketState {
    pub(super) options: SocketOptions,
    pub(super) phase: SocketPhase,
    pub(super) id: Option<Arc<Id>>,
    /// Address that the program has bound.
    pub(super) bound: Option<SocketAddr>,
    /// Pending error, which is reported once.
    pub(super) error: Option<Errno>,
    /// True if the establishment was reported to the program.
    pub(super) is_connect_reported: bool,
}

/// rsocket.
#[derive(Debug)]
pub struct Socket {
    owner: OwnerDevice,
    pub(super) family: Family,
    pub(super) channel: Arc<EventChannel>,
    pub(super) wakers: Arc<Wakers>,
    /// Spare wakers, so that a blocking call does not fail when the program has used up its descriptors.
    spare: Mutex<Vec<Arc<Waker>>>,
    is_nonblocking: AtomicBool,
    state: Mutex<SocketState>,
}

impl Socket {
    /// Creates an rsocket.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`: no descriptor available. As [`Device::check`].
    pub fn new(
        device: &'static Device,
        family: Family,
        options: SocketOptions,
    ) -> Result<Arc<Self>, Errno> {
        device.check()?;
        let wakers = Arc::new(Wakers::default());
        let channel = EventChannel::with_callback(wake_up(&wakers))?;
        let state = SocketState {
            options,
            phase: SocketPhase::Idle,
            id: None,
            bound: None,
            error: None,
            is_connect_reported: false,
        };
        Ok(Arc::new(Self {
            owner: OwnerDevice::of(device),
            family,
            channel,
            wakers,
            spare: Mutex::new(vec![Waker::new()?]),
            is_nonblocking: AtomicBool::new(false),
            state: Mutex::new(state),
        }))
    }

    /// Returns the device.
    pub(super) fn device(&self) -> &'static Device {
        self.owner.device()
    }

    /// Returns true if the child of a fork can take the rsocket over: it has no connection, and no thread held its lock
    /// at the fork.
    pub fn is_inheritable(&self) -> bool {
        let state = self.state.try_lock();
        state
            .is_ok_and(|state| matches!(state.phase, SocketPhase::Idle | SocketPhase::Listening(_)))
    }

    /// Transfers the rsocket to this process, without requests that the parent has taken.
    ///
    /// # Errors
    /// `ENODEV`: not inheritable. As [`EventChannel::take_over`].
    pub fn take_over(&self, device: &'static Device) -> Result<(), Errno> {
        let mut state = self.state.try_lock().map_err(|_| Errno::NODEV)?;
        match &mut state.phase {
            SocketPhase::Idle => {}
            SocketPhase::Listening(requests) => requests.clear(),
            _ => return Err(Errno::NODEV),
        }
        // The parent uses the same open files.
        self.spare.try_lock().map_err(|_| Errno::NODEV)?.clear();
        self.wakers.take_over()?;
        self.channel.take_over(device)?;
        self.owner.change(device);
        Ok(())
    }

    /// Closes the child's copy of the parent's rsocket, which remains open in the parent.
    pub fn close_inherited(&self) {
        let id = self.state.try_lock().ok().and_then(|state| state.id.clone());
        if let Some(id) = id {
            let _ = id.destroy();
        }
    }

    /// Returns the address family.
    pub const fn family(&self) -> Family {
        self.family
    }

    /// Returns true if calls are non-blocking.
    pub fn is_nonblocking(&self) -> bool {
        self.is_nonblocking.load(Ordering::Relaxed)
    }

    /// Sets the blocking mode.
    pub fn set_nonblocking(&self, is_nonblocking: bool) {
        self.is_nonblocking.store(is_nonblocking, Ordering::Relaxed);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SocketState> {
        lock(&self.state)
    }

    /// Returns the options.
    pub fn options(&self) -> SocketOptions {
        self.lock().options.clone()
    }

    /// Changes the options.
    ///
    /// # Errors
    /// `EINVAL`: sharing of a bound address. As [`Device::check`].
    pub fn set(&self, change: impl FnOnce(&mut SocketOptions)) -> Result<(), Errno> {
        self.device().check()?;
        let mut state = self.lock();
        change(&mut state.options);
        state.options.limit();
        Ok(())
    }

    /// Returns true if a connection is established or in progress.
    pub fn is_opened(&self) -> bool {
        matches!(self.lock().phase, SocketPhase::Connecting(_) | SocketPhase::Connected(_))
    }

    /// Returns true if the rsocket listens.
    pub fn is_listening(&self) -> bool {
        matches!(self.lock().phase, SocketPhase::Listening(_))
    }

    /// Returns the local address.
    pub fn local_address(&self) -> SocketAddr {
        let id = self.lock().id.clone();
        let local = id.and_then(|id| id.addresses().0);
        let none = || SocketAddr::new(self.family.unspecified(), 0);
        self.family.map(local.unwrap_or_else(none))
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// `ENOTCONN`.
    pub fn peer_address(&self) -> Result<SocketAddr, Errno> {
        let id = {
            let state = self.lock();
            if !matches!(state.phase, SocketPhase::Connected(_)) {
                return Err(Errno::NOTCONN);
            }
            state.id.clone()
        };
        let remote = id.and_then(|id| id.addresses().1).ok_or(Errno::NOTCONN)?;
        Ok(self.family.map(remote))
    }

    /// Processes events and completions.
    pub(super) fn advance(&self, state: &mut SocketState) {
        while let Ok(Some(event)) = self.channel.take() {
            event.owner().acknowledge();
            self.handle(state, event);
        }
        if let SocketPhase::Connected(connection) = &mut state.phase {
            connection.advance();
        }
    }

    fn handle(&self, state: &mut SocketState, event: Event) {
        match event.kind {
            EventKind::AddressResolved
            | EventKind::RouteResolved
            // Connections of rsockets have one step.
            | EventKind::ConnectResponse => {}
            EventKind::ConnectRequest => {
                if let SocketPhase::Listening(requests) = &mut state.phase {
                    requests.push_back(event);
                }
            }
            EventKind::Established => {
                state.phase = match std::mem::replace(&mut state.phase, SocketPhase::Failed) {
                    SocketPhase::Connecting(resources) => {
                        match ConnectionData::parse(&event.private_data) {
                            Ok(remote) => SocketPhase::Connected(Box::new(Connection::new(
                                *resources, remote, true,
                            ))),
                            Err(violation) => {
                                tracing::error!(
                                    peer = event.id.peer(),
                                    %violation,
                                    "rsocket connection failed"
                                );
                                state.error = Some(Errno::PROTO);
                                resources.fail();
                                SocketPhase::Failed
                            }
                        }
                    }
                    SocketPhase::Connected(mut connection) => {
                        connection.is_established = true;
                        SocketPhase::Connected(connection)
                    }
                    other => other,
                };
            }
            EventKind::ConnectError
            | EventKind::Unreachable
            | EventKind::Rejected
            | EventKind::Disconnected => match &mut state.phase {
                SocketPhase::Connecting(_) => {
                    let error = event.status.checked_abs().filter(|number| *number > 0);
                    state.error = Some(error.map_or(Errno::CONNREFUSED, Errno));
                    state.phase = SocketPhase::Failed;
                }
                SocketPhase::Connected(connection) => connection.lost(),
                _ => {}
            },
            EventKind::DeviceRemoval => match &mut state.phase {
                SocketPhase::Listening(_) | SocketPhase::Connecting(_) => {
                    state.error = Some(Errno::NODEV);
                    state.phase = SocketPhase::Failed;
                }
                SocketPhase::Connected(connection) => connection.lost(),
                _ => {}
            },
        }
        self.wakers.wake();
    }

    fn attempt<T>(
        &self,
        attempt: &mut impl FnMut(&mut SocketState) -> Option<Result<T, Errno>>,
    ) -> Option<Result<T, Errno>> {
        let mut state = self.lock();
        if matches!(state.phase, SocketPhase::Closed) {
            return Some(Err(Errno::BADF));
        }
        self.advance(&mut state);
        attempt(&mut state)
    }

    /// Calls `attempt` until it returns a result, and blocks between calls.
    pub(super) fn wait<T>(
        &self,
        is_nonblocking: bool,
        mut attempt: impl FnMut(&mut SocketState) -> Option<Result<T, Errno>>,
    ) -> Result<T, Errno> {
        self.device().check()?;
        let begun = Instant::now();
        loop {
            if let Some(result) = self.attempt(&mut attempt) {
                return result;
            }
            self.device().progress();
            if is_nonblocking || begun.elapsed() > POLL_TIME {
                break;
            }
        }
        if let Some(result) = self.attempt(&mut attempt) {
            return result;
        }
        if is_nonblocking {
            return Err(Errno::AGAIN);
        }
        loop {
            let waker = self.waker()?;
            self.wakers.add(&waker);
            self.arm();
            let found = self.attempt(&mut attempt);
            let slept = if found.is_none() { waker.wait() } else { Ok(()) };
            self.wakers.remove(&waker);
            self.put_back(waker);
            if let Some(result) = found {
                return result;
            }
            if let Some(result) = self.attempt(&mut attempt) {
                return result;
            }
            slept?;
        }
    }

    /// Returns a waker without a pending wake-up.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`: no descriptor available.
    pub fn waker(&self) -> Result<Arc<Waker>, Errno> {
        let spare = lock(&self.spare).pop();
        spare.map_or_else(Waker::new, Ok)
    }

    /// Returns a waker, which no rsocket uses, for later use.
    pub fn put_back(&self, waker: Arc<Waker>) {
        let mut spare = lock(&self.spare);
        if spare.is_empty() && waker.reset() {
            spare.push(waker);
        }
    }

    /// Registers `waker` for changes until [`Socket::remove_waker`]. The caller must check the state afterwards.
    pub fn add_waker(&self, waker: &Arc<Waker>) {
        self.wakers.add(waker);
        self.arm();
    }

    /// Ends [`Socket::add_waker`].
    pub fn remove_waker(&self, waker: &Arc<Waker>) {
        self.wakers.remove(waker);
    }

    fn arm(&self) {
        if let SocketPhase::Connected(connection) = &self.lock().phase {
            // Fails only in the child of a fork, where no completion arrives.
            let _ = connection.resources.arm();
        }
    }

    /// Makes one iteration of the adapter.
    pub fn progress(&self) {
        self.device().progress();
    }

    /// Returns the readiness for calls.
    ///
    /// # Errors
    /// `EBADF`: closed. As [`Device::check`].
    pub fn readiness(&self) -> Result<Readiness, Errno> {
        self.device().check()?;
        let mut state = self.lock();
        self.advance(&mut state);
        let error = state.error;
        Ok(match &state.phase {
            SocketPhase::Idle => Readiness {
                is_writable: true,
                is_over: true,
                has_error: error.is_some(),
                ..Readiness::default()
            },
            SocketPhase::Listening(requests) => {
                Readiness { is_readable: !requests.is_empty(), ..Readiness::default() }
            }
            SocketPhase::Connecting(_) => Readiness::default(),
            SocketPhase::Connected(connection) => connection.readiness(),
            SocketPhase::Failed => Readiness {
                is_readable: true,
                is_writable: true,
                has_error: true,
                is_finished: true,
                is_over: true,
            },
            SocketPhase::Closed => return Err(Errno::BADF),
        })
    }

    /// Takes the pending error.
    ///
    /// # Errors
    /// As [`Device::check`].
    pub fn take_error(&self) -> Result<Option<Errno>, Errno> {
        self.device().check()?;
        let mut state = self.lock();
        self.advance(&mut state);
        let of_connection = match &mut state.phase {
            SocketPhase::Connected(connection) => connection.take_error(),
            _ => None,
        };
        Ok(state.error.take().or(of_connection))
    }

    /// Waits until `is_done`, for at most `time`. Signals do not interrupt it.
    fn linger(&self, time: Duration, mut is_done: impl FnMut(&mut SocketState) -> bool) {
        let deadline = Instant::now().checked_add(time);
        let mut attempt = |state: &mut SocketState| is_done(state).then_some(Ok(()));
        let Ok(waker) = self.waker() else { return };
        self.wakers.add(&waker);
        loop {
            self.arm();
            self.device().progress();
            if self.attempt(&mut attempt).is_some() {
                break;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let descriptor = waker.descriptor();
            let mut fds = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
            if poll(&mut fds, left.as_ref()).is_ok_and(|count| count > 0) {
                let _ = waker.wait();
            }
        }
        self.wakers.remove(&waker);
    }

    /// Closes the rsocket: sends buffered data, disconnects, and frees its objects. Calls of other threads return
    /// `EBADF`.
    pub fn close(&self, linger: Linger) {
        if self.device().check().is_ok() {
            self.end(linger);
        }
        let (phase, id) = {
            let mut state = self.lock();
            (std::mem::replace(&mut state.phase, SocketPhase::Closed), state.id.take())
        };
        self.wakers.wake();
        if let Some(id) = id {
            let _ = id.destroy();
        }
        drop(phase);
    }

    fn end(&self, linger: Linger) {
        let time = match linger {
            Linger::Default => CLOSE_TIME,
            Linger::For(time) => time,
            Linger::Reset => return,
        };
        let id = {
            let mut state = self.lock();
            self.advance(&mut state);
            let SocketPhase::Connected(connection) = &mut state.phase else { return };
            if connection.is_established {
                connection.shut_down(true, true);
            }
            state.id.clone()
        };
        self.wakers.wake();
        self.linger(time, |state| match &state.phase {
            SocketPhase::Connected(connection) => connection.is_drained(),
            _ => true,
        });
        // A connection that is closed already needs no wait.
        let Some(true) = id.map(|id| id.disconnect().is_ok()) else { return };
        self.linger(time.min(DISCONNECT_TIME), |state| match &state.phase {
            SocketPhase::Connected(connection) => connection.is_lost(),
            _ => true,
        });
    }
}

/// An rsocket that is dropped without a close resets its connection.
impl Drop for Socket {
    fn drop(&mut self) {
        self.close(Linger::Reset);
    }
}

pub(super) fn wake_up(wakers: &Arc<Wakers>) -> EventCallback {
    let wakers = wakers.clone();
    EventCallback(Box::new(move || wakers.wake()))
}

/// Returns the connection, or the error. `None`: the connection is in progress.
pub(super) fn connected(state: &mut SocketState) -> Result<&mut Connection, Option<Errno>> {
    match &mut state.phase {
        SocketPhase::Connected(connection) => Ok(connection),
        SocketPhase::Connecting(_) => Err(None),
        SocketPhase::Closed => Err(Some(Errno::BADF)),
        SocketPhase::Idle | SocketPhase::Listening(_) | SocketPhase::Failed => {
            Err(Some(state.error.take().unwrap_or(Errno::NOTCONN)))
        }
    }
}
