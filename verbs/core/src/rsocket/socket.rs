//! An rsocket's life: bound, listening or connecting, connected, closed.
//!
//! Calls look first, poll for a moment, and then sleep. What may change the state of an rsocket wakes up those that
//! wait for it: completions that were asked for, events of connection management, and calls of other threads.

use std::{
    collections::VecDeque,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rdma_over_tcp::rnic::RegisteredBuffer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    connection::{Connection, Readiness},
    endpoint::{Endpoint, Owned, Sizes},
    waker::{Waker, Wakers},
    wire::{ConnectionData, DATA_BYTES_MAX, told_iomap_entries},
};
use crate::{
    cm::{ConnectParameters, Event, EventChannel, EventKind, Id, PortSpace},
    engine::Engine,
    errno::Errno,
    events::Listener,
    latch::lock,
    memory::{Region, access, rights},
};

/// How long a call polls before it sleeps.
const POLL_TIME: Duration = Duration::from_micros(20);

/// How long a close waits until what was sent has left, unless the program has said so.
const CLOSE_TIME: Duration = Duration::from_secs(60);

/// How long a close waits for the end of the connection behind that.
const DISCONNECT_TIME: Duration = Duration::from_secs(1);

/// Bytes of the smallest and the largest buffer.
const BUFFER_BYTES: std::ops::RangeInclusive<u32> = 4096..=1 << 28;

/// Requests and messages in flight, at least and at most.
const QUEUE_DEPTH: std::ops::RangeInclusive<u16> = 16..=8192;

/// Bytes of a message with an iomap entry are always sent inline.
const INLINE_BYTES_MIN: u32 = 48;

/// An address family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    const fn unspecified(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Self::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        }
    }

    fn check(self, address: SocketAddr) -> Result<(), Errno> {
        if address.is_ipv4() == (self == Self::V4) { Ok(()) } else { Err(Errno::AFNOSUPPORT) }
    }

    /// An IPv6 socket that IPv4 peers use has addresses of its own family.
    fn map(self, address: SocketAddr) -> SocketAddr {
        match (self, address) {
            (Self::V6, SocketAddr::V4(address)) => {
                SocketAddr::new(address.ip().to_ipv6_mapped().into(), address.port())
            }
            _ => address,
        }
    }
}

/// Directions to be shut down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// Nothing is to be received any more.
    Read,
    /// Nothing is to be sent any more.
    Write,
    /// Both.
    Both,
}

/// What a close does with data that are on their way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linger {
    /// It waits until they have left.
    Default,
    /// It waits so long.
    For(Duration),
    /// It resets the connection.
    Reset,
}

/// What a connection is to have; a listener's are those of its connections.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes of the send buffer.
    pub send_buffer: u32,
    /// Bytes of the receive buffer.
    pub receive_buffer: u32,
    /// Requests in flight.
    pub send_queue: u32,
    /// Messages of the peer in flight.
    pub receive_queue: u32,
    /// Bytes that are sent without the send buffer.
    pub inline: u32,
    /// Buffers that the peer may map.
    pub iomap_entries: u16,
    /// The address may be shared.
    pub is_reuse: bool,
    /// IPv6 only.
    pub is_family_only: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            send_buffer: 1 << 18,
            receive_buffer: 1 << 18,
            send_queue: 384,
            receive_queue: 384,
            inline: 64,
            iomap_entries: 0,
            is_reuse: false,
            is_family_only: false,
        }
    }
}

impl Settings {
    /// Brings them to what there can be.
    pub fn limit(&mut self) {
        let Self { send_buffer, receive_buffer, send_queue, receive_queue, .. } = self;
        for bytes in [send_buffer, receive_buffer] {
            // Halves that begin at addresses of their own.
            *bytes = (*bytes).clamp(*BUFFER_BYTES.start(), *BUFFER_BYTES.end()) & !15;
        }
        for depth in [send_queue, receive_queue] {
            *depth = (*depth).clamp((*QUEUE_DEPTH.start()).into(), (*QUEUE_DEPTH.end()).into());
        }
        self.inline = self.inline.min(DATA_BYTES_MAX);
        self.iomap_entries = told_iomap_entries(self.iomap_entries);
    }

    fn sizes(&self, engine: &Engine) -> Sizes {
        let mut limited = self.clone();
        limited.limit();
        let narrow = |depth: u32| u16::try_from(depth).unwrap_or(*QUEUE_DEPTH.end());
        Sizes {
            send_buffer: limited.send_buffer,
            half: limited.receive_buffer / 2,
            send_queue: narrow(limited.send_queue),
            credits: narrow(limited.receive_queue),
            inline: limited.inline.max(INLINE_BYTES_MIN).min(engine.limits().inline_bytes_max),
            iomap_entries: limited.iomap_entries,
        }
    }
}

#[derive(Debug)]
enum Phase {
    Idle,
    Listening(VecDeque<Event>),
    Connecting(Box<Endpoint>),
    Connected(Box<Connection>),
    Failed,
    Closed,
}

#[derive(Debug)]
struct State {
    settings: Settings,
    phase: Phase,
    id: Option<Arc<Id>>,
    /// Where the program has bound it.
    bound: Option<SocketAddr>,
    /// Why it is not connected: told once.
    error: Option<Errno>,
    /// The program has been told that it is connected.
    is_connect_told: bool,
}

/// An rsocket.
#[derive(Debug)]
pub struct Socket {
    engine: &'static Engine,
    family: Family,
    channel: Arc<EventChannel>,
    wakers: Arc<Wakers>,
    /// Descriptors for threads that sleep, so that a call does not fail where the program has used up its own.
    spare: Mutex<Vec<Arc<Waker>>>,
    is_nonblocking: AtomicBool,
    state: Mutex<State>,
}

impl Socket {
    /// An rsocket.
    ///
    /// # Errors
    /// No descriptor is left. As [`Engine::check`].
    pub fn new(
        engine: &'static Engine,
        family: Family,
        settings: Settings,
    ) -> Result<Arc<Self>, Errno> {
        engine.check()?;
        let wakers = Arc::new(Wakers::default());
        let channel = EventChannel::with_listener(wake_up(&wakers))?;
        let state = State {
            settings,
            phase: Phase::Idle,
            id: None,
            bound: None,
            error: None,
            is_connect_told: false,
        };
        Ok(Arc::new(Self {
            engine,
            family,
            channel,
            wakers,
            spare: Mutex::new(vec![Waker::new()?]),
            is_nonblocking: AtomicBool::new(false),
            state: Mutex::new(state),
        }))
    }

    /// Its family.
    pub const fn family(&self) -> Family {
        self.family
    }

    /// Whether calls do not wait.
    pub fn is_nonblocking(&self) -> bool {
        self.is_nonblocking.load(Ordering::Relaxed)
    }

    /// Says whether calls do not wait.
    pub fn set_nonblocking(&self, is_nonblocking: bool) {
        self.is_nonblocking.store(is_nonblocking, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Its settings.
    pub fn settings(&self) -> Settings {
        self.lock().settings.clone()
    }

    /// Changes its settings.
    ///
    /// # Errors
    /// `EINVAL`: sharing of the address, once it is bound. As [`Engine::check`].
    pub fn set(&self, change: impl FnOnce(&mut Settings)) -> Result<(), Errno> {
        self.engine.check()?;
        let mut state = self.lock();
        change(&mut state.settings);
        state.settings.limit();
        Ok(())
    }

    /// Whether a connection is there, or begun.
    pub fn is_opened(&self) -> bool {
        matches!(self.lock().phase, Phase::Connecting(_) | Phase::Connected(_))
    }

    /// Whether it listens.
    pub fn is_listening(&self) -> bool {
        matches!(self.lock().phase, Phase::Listening(_))
    }

    /// Its own address.
    pub fn local_address(&self) -> SocketAddr {
        let id = self.lock().id.clone();
        let local = id.and_then(|id| id.addresses().0);
        let none = || SocketAddr::new(self.family.unspecified(), 0);
        self.family.map(local.unwrap_or_else(none))
    }

    /// Its peer's.
    ///
    /// # Errors
    /// `ENOTCONN`.
    pub fn peer_address(&self) -> Result<SocketAddr, Errno> {
        let id = {
            let state = self.lock();
            if !matches!(state.phase, Phase::Connected(_)) {
                return Err(Errno::NOTCONN);
            }
            state.id.clone()
        };
        let remote = id.and_then(|id| id.addresses().1).ok_or(Errno::NOTCONN)?;
        Ok(self.family.map(remote))
    }

    fn new_id(&self, settings: &Settings) -> Result<Arc<Id>, Errno> {
        let id = Id::new(self.engine, PortSpace::Tcp, self.channel.clone())?;
        id.set_reuse(settings.is_reuse)?;
        id.set_family_only(settings.is_family_only)?;
        Ok(id)
    }

    /// Binds it to a local address.
    ///
    /// # Errors
    /// `EINVAL`: it is bound, or connected. `EAFNOSUPPORT`, and those of [`Id::bind`].
    pub fn bind(&self, address: SocketAddr) -> Result<(), Errno> {
        self.engine.check()?;
        self.family.check(address)?;
        let mut state = self.lock();
        if !matches!(state.phase, Phase::Idle) || state.id.is_some() {
            return Err(Errno::INVAL);
        }
        let id = self.new_id(&state.settings)?;
        id.bind(address)?;
        state.bound = id.addresses().0;
        state.id = Some(id);
        Ok(())
    }

    /// Listens.
    ///
    /// # Errors
    /// `EINVAL`: it is connected. Those of [`Id::listen`].
    pub fn listen(&self, backlog: i32) -> Result<(), Errno> {
        self.engine.check()?;
        let id = {
            let state = self.lock();
            match state.phase {
                Phase::Listening(_) => return Ok(()),
                Phase::Idle => state.id.clone(),
                _ => return Err(Errno::INVAL),
            }
        };
        let id = match id {
            Some(id) => id,
            None => {
                self.bind(SocketAddr::new(self.family.unspecified(), 0))?;
                self.lock().id.clone().ok_or(Errno::INVAL)?
            }
        };
        // It waits for the adapter.
        id.listen(backlog)?;
        let mut state = self.lock();
        if matches!(state.phase, Phase::Idle) {
            state.phase = Phase::Listening(VecDeque::new());
        }
        Ok(())
    }

    /// The next connection.
    ///
    /// # Errors
    /// `EINVAL`: it does not listen. `EAGAIN`, `EINTR`. No memory or descriptor is left.
    pub fn accept(&self) -> Result<Arc<Self>, Errno> {
        loop {
            let (request, settings) = self.wait(self.is_nonblocking(), |state| {
                let settings = state.settings.clone();
                let Phase::Listening(requests) = &mut state.phase else {
                    return Some(Err(Errno::INVAL));
                };
                requests.pop_front().map(|request| Ok((request, settings)))
            })?;
            let id = request.id.clone();
            match self.take_up(&request, settings) {
                Ok(Some(accepted)) => return Ok(accepted),
                // Its peer speaks another protocol, or has gone.
                Ok(None) => _ = id.destroy(),
                Err(error) => {
                    let _ = id.reject(&[]);
                    let _ = id.destroy();
                    return Err(error);
                }
            }
        }
    }

    fn take_up(&self, request: &Event, settings: Settings) -> Result<Option<Arc<Self>>, Errno> {
        let id = &request.id;
        let remote = match ConnectionData::parse(&request.private_data) {
            Ok(remote) => remote,
            Err(violation) => {
                tracing::error!(?violation, "a request that is none of an rsocket");
                let _ = id.reject(&[]);
                return Ok(None);
            }
        };
        let accepted = Self::new(self.engine, self.family, settings)?;
        let endpoint = accepted.endpoint(&accepted.settings())?;
        id.migrate(&accepted.channel)?;
        let parameters = ConnectParameters {
            private_data: endpoint.connection_data().to_octets().to_vec(),
            ..ConnectParameters::default()
        };
        let mut state = accepted.lock();
        let begun = id.accept(&endpoint.qp, &parameters);
        state.phase = Phase::Connected(Box::new(Connection::new(endpoint, remote, false)));
        state.is_connect_told = true;
        match begun {
            Ok(()) => {
                state.id = Some(id.clone());
                drop(state);
                Ok(Some(accepted))
            }
            Err(error) => {
                tracing::debug!(?error, "a peer has gone before it was accepted");
                Ok(None)
            }
        }
    }

    fn endpoint(&self, settings: &Settings) -> Result<Endpoint, Errno> {
        Endpoint::new(self.engine, settings.sizes(self.engine), wake_up(&self.wakers))
    }

    /// Connects.
    ///
    /// # Errors
    /// `EISCONN`, `EALREADY`, `EINPROGRESS`, `EINTR`: it goes on meanwhile. `ECONNREFUSED`, `ETIMEDOUT` and others.
    pub fn connect(&self, remote: SocketAddr) -> Result<(), Errno> {
        self.engine.check()?;
        self.family.check(remote)?;
        let is_nonblocking = self.is_nonblocking();
        {
            let mut state = self.lock();
            self.advance(&mut state);
            match &state.phase {
                Phase::Idle => self.begin_to_connect(&mut state, remote)?,
                Phase::Connecting(_) if is_nonblocking => return Err(Errno::ALREADY),
                Phase::Connecting(_) => {}
                Phase::Connected(_) => {
                    let is_told = std::mem::replace(&mut state.is_connect_told, true);
                    return if is_told { Err(Errno::ISCONN) } else { Ok(()) };
                }
                Phase::Listening(_) => return Err(Errno::ISCONN),
                Phase::Failed => {
                    if let Some(error) = state.error.take() {
                        return Err(error);
                    }
                    self.renew(&mut state)?;
                    self.begin_to_connect(&mut state, remote)?;
                }
                Phase::Closed => return Err(Errno::BADF),
            }
        }
        let connected = self.wait(is_nonblocking, |state| match &state.phase {
            Phase::Connecting(_) => None,
            Phase::Connected(_) => {
                state.is_connect_told = true;
                Some(Ok(()))
            }
            _ => Some(Err(state.error.take().unwrap_or(Errno::CONNREFUSED))),
        });
        match connected {
            Err(Errno::AGAIN) => Err(Errno::INPROGRESS),
            other => other,
        }
    }

    fn begin_to_connect(&self, state: &mut State, remote: SocketAddr) -> Result<(), Errno> {
        let id = match &state.id {
            Some(id) => id.clone(),
            None => self.new_id(&state.settings)?,
        };
        let begun = (|| {
            id.resolve_address(None, remote)?;
            id.resolve_route()?;
            let endpoint = self.endpoint(&state.settings)?;
            let parameters = ConnectParameters {
                private_data: endpoint.connection_data().to_octets().to_vec(),
                ..ConnectParameters::default()
            };
            id.connect(&endpoint.qp, &parameters)?;
            Ok(endpoint)
        })();
        match begun {
            Ok(endpoint) => {
                state.phase = Phase::Connecting(Box::new(endpoint));
                state.id = Some(id);
                Ok(())
            }
            Err(error) => {
                state.id = Some(id);
                self.renew(state)?;
                Err(error)
            }
        }
    }

    /// Makes it as it was before a connect that has failed.
    fn renew(&self, state: &mut State) -> Result<(), Errno> {
        if let Some(id) = state.id.take() {
            let _ = id.destroy();
        }
        state.phase = Phase::Idle;
        if let Some(bound) = state.bound {
            let id = self.new_id(&state.settings)?;
            id.bind(bound)?;
            state.id = Some(id);
        }
        Ok(())
    }

    /// Takes in what has happened.
    fn advance(&self, state: &mut State) {
        while let Some(event) = self.channel.take() {
            event.owner().acknowledge();
            self.handle(state, event);
        }
        if let Phase::Connected(connection) = &mut state.phase {
            connection.advance();
        }
    }

    fn handle(&self, state: &mut State, event: Event) {
        match event.kind {
            EventKind::AddressResolved | EventKind::RouteResolved => {}
            EventKind::ConnectRequest => {
                if let Phase::Listening(requests) = &mut state.phase {
                    requests.push_back(event);
                }
            }
            EventKind::Established => {
                state.phase = match std::mem::replace(&mut state.phase, Phase::Failed) {
                    Phase::Connecting(endpoint) => {
                        match ConnectionData::parse(&event.private_data) {
                            Ok(remote) => {
                                Phase::Connected(Box::new(Connection::new(*endpoint, remote, true)))
                            }
                            Err(violation) => {
                                tracing::error!(?violation, "the peer has no rsocket there");
                                state.error = Some(Errno::PROTO);
                                endpoint.fail();
                                Phase::Failed
                            }
                        }
                    }
                    Phase::Connected(mut connection) => {
                        connection.is_established = true;
                        Phase::Connected(connection)
                    }
                    other => other,
                };
            }
            EventKind::ConnectError
            | EventKind::Unreachable
            | EventKind::Rejected
            | EventKind::Disconnected => match &mut state.phase {
                Phase::Connecting(_) => {
                    let error = event.status.checked_abs().filter(|number| *number > 0);
                    state.error = Some(error.map_or(Errno::CONNREFUSED, Errno));
                    state.phase = Phase::Failed;
                }
                Phase::Connected(connection) => connection.lost(),
                _ => {}
            },
        }
        self.wakers.wake();
    }

    fn attempt<T>(
        &self,
        attempt: &mut impl FnMut(&mut State) -> Option<Result<T, Errno>>,
    ) -> Option<Result<T, Errno>> {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Closed) {
            return Some(Err(Errno::BADF));
        }
        self.advance(&mut state);
        attempt(&mut state)
    }

    /// Waits until `attempt` has a result.
    fn wait<T>(
        &self,
        is_nonblocking: bool,
        mut attempt: impl FnMut(&mut State) -> Option<Result<T, Errno>>,
    ) -> Result<T, Errno> {
        self.engine.check()?;
        let begun = Instant::now();
        loop {
            if let Some(result) = self.attempt(&mut attempt) {
                return result;
            }
            self.engine.progress();
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
            self.wakers.enter(&waker);
            self.arm();
            let found = self.attempt(&mut attempt);
            let slept = if found.is_none() { waker.wait() } else { Ok(()) };
            self.wakers.leave(&waker);
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

    /// A descriptor to sleep on, which is not woken up yet.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn waker(&self) -> Result<Arc<Waker>, Errno> {
        let spare = lock(&self.spare).pop();
        spare.map_or_else(Waker::new, Ok)
    }

    /// Keeps a descriptor that no rsocket wakes up any more.
    pub fn put_back(&self, waker: Arc<Waker>) {
        let mut spare = lock(&self.spare);
        if spare.is_empty() && waker.reset() {
            spare.push(waker);
        }
    }

    /// Has changes wake up `waker` from now on, until [`Socket::leave`]. What is there already is looked for behind it.
    pub fn enter(&self, waker: &Arc<Waker>) {
        self.wakers.enter(waker);
        self.arm();
    }

    /// Ends [`Socket::enter`].
    pub fn leave(&self, waker: &Arc<Waker>) {
        self.wakers.leave(waker);
    }

    fn arm(&self) {
        if let Phase::Connected(connection) = &self.lock().phase {
            // It fails in the child of a fork only, where nothing comes.
            let _ = connection.endpoint.arm();
        }
    }

    /// Makes one pass over the sockets.
    pub fn progress(&self) {
        self.engine.progress();
    }

    /// What can be done without waiting.
    ///
    /// # Errors
    /// `EBADF`: it is closed. As [`Engine::check`].
    pub fn readiness(&self) -> Result<Readiness, Errno> {
        self.engine.check()?;
        let mut state = self.lock();
        self.advance(&mut state);
        let error = state.error;
        Ok(match &state.phase {
            Phase::Idle => Readiness {
                is_writable: true,
                is_over: true,
                has_error: error.is_some(),
                ..Readiness::default()
            },
            Phase::Listening(requests) => {
                Readiness { is_readable: !requests.is_empty(), ..Readiness::default() }
            }
            Phase::Connecting(_) => Readiness::default(),
            Phase::Connected(connection) => connection.readiness(),
            Phase::Failed => Readiness {
                is_readable: true,
                is_writable: true,
                has_error: true,
                is_finished: true,
                is_over: true,
            },
            Phase::Closed => return Err(Errno::BADF),
        })
    }

    /// The error that was not told yet, which is told by this.
    ///
    /// # Errors
    /// As [`Engine::check`].
    pub fn take_error(&self) -> Result<Option<Errno>, Errno> {
        self.engine.check()?;
        let mut state = self.lock();
        self.advance(&mut state);
        let of_connection = match &mut state.phase {
            Phase::Connected(connection) => connection.take_error(),
            _ => None,
        };
        Ok(state.error.take().or(of_connection))
    }

    /// Receives into `pieces`: what there is, or all that there is room for; 0 is the end. Of a peek the bytes stay.
    ///
    /// # Errors
    /// `ENOTCONN`, `ECONNRESET`, `EPROTO`, `EAGAIN`, `EINTR`.
    pub fn receive(
        &self,
        pieces: &mut [&mut [u8]],
        is_nonblocking: bool,
        is_peek: bool,
        wants_all: bool,
    ) -> Result<usize, Errno> {
        let room: usize = pieces.iter().map(|piece| piece.len()).sum();
        if room == 0 {
            return Ok(0);
        }
        let is_nonblocking = is_nonblocking || self.is_nonblocking();
        let mut total = 0;
        let received = self.wait(is_nonblocking, |state| {
            let connection = match connected(state) {
                Ok(connection) => connection,
                Err(None) => return None,
                Err(Some(error)) => return Some(Err(error)),
            };
            if is_peek && wants_all {
                // More than half of the ring may not come before something was read.
                let enough = room.min(connection.endpoint.sizes.half as usize);
                if connection.unread() < enough && !connection.is_read_over() && !is_nonblocking {
                    return None;
                }
            }
            match connection.receive(pieces, total, is_peek)? {
                Ok(0) => Some(Ok(())),
                Ok(count) => {
                    total += count;
                    (total == room || !wants_all || is_peek).then_some(Ok(()))
                }
                Err(error) => Some(Err(error)),
            }
        });
        match received {
            Err(error) if total == 0 => Err(error),
            _ => Ok(total),
        }
    }

    /// Sends all of `pieces`, or what can be sent without waiting.
    ///
    /// # Errors
    /// `ENOTCONN`, `EPIPE`: it was shut down. `ECONNRESET`, `EPROTO`, `EAGAIN`, `EINTR`: nothing was sent.
    pub fn send(&self, pieces: &[&[u8]], is_nonblocking: bool) -> Result<usize, Errno> {
        let all: usize = pieces.iter().map(|piece| piece.len()).sum();
        self.send_by(all, is_nonblocking, |connection, sent| connection.send(pieces, sent))
    }

    /// Writes `data` into memory that the peer has mapped, from `offset` on.
    ///
    /// # Errors
    /// `EINVAL`: nothing is mapped there. As [`Socket::send`].
    pub fn write_mapped(
        &self,
        data: &[u8],
        offset: u64,
        is_nonblocking: bool,
    ) -> Result<usize, Errno> {
        self.send_by(data.len(), is_nonblocking, |connection, sent| {
            let at = offset.checked_add(sent as u64);
            let Some(at) = at else { return Some(Err(Errno::INVAL)) };
            connection.write_mapped(&data[sent..], at)
        })
    }

    fn send_by(
        &self,
        all: usize,
        is_nonblocking: bool,
        mut send: impl FnMut(&mut Connection, usize) -> Option<Result<usize, Errno>>,
    ) -> Result<usize, Errno> {
        let mut sent = 0;
        let done = self.wait(is_nonblocking || self.is_nonblocking(), |state| {
            let connection = match connected(state) {
                Ok(connection) => connection,
                Err(None) => return None,
                Err(Some(error)) => return Some(Err(error)),
            };
            if all == 0 {
                return Some(Ok(()));
            }
            match send(connection, sent)? {
                Ok(count) => {
                    sent += count;
                    (sent == all).then_some(Ok(()))
                }
                Err(error) => Some(Err(error)),
            }
        });
        match done {
            Err(error) if sent == 0 => Err(error),
            _ => Ok(sent),
        }
    }

    /// Ends directions.
    ///
    /// # Errors
    /// `ENOTCONN`. As [`Engine::check`].
    pub fn shut_down(&self, how: How) -> Result<(), Errno> {
        self.engine.check()?;
        let mut state = self.lock();
        self.advance(&mut state);
        let connection = connected(&mut state).map_err(|_| Errno::NOTCONN)?;
        let (read, write) = (how != How::Write, how != How::Read);
        connection.shut_down(read, write);
        drop(state);
        self.wakers.wake();
        Ok(())
    }

    /// Sees whether the peer is still there.
    pub fn probe(&self) {
        let mut state = self.lock();
        self.advance(&mut state);
        if let Ok(connection) = connected(&mut state) {
            connection.probe();
        }
    }

    /// Maps a buffer for the peer as `offset`; or only registers it.
    ///
    /// # Errors
    /// `EINVAL`: it is not connected. `ENOMEM`: the peer's iomap is full. Those of [`Region::new`].
    pub fn map(&self, buffer: &RegisteredBuffer, offset: u64, is_told: bool) -> Result<(), Errno> {
        self.engine.check()?;
        let mut state = self.lock();
        self.advance(&mut state);
        let connection = connected(&mut state).map_err(|_| Errno::INVAL)?;
        let remote = if is_told { access::REMOTE_WRITE } else { 0 };
        let rights = rights(access::LOCAL_WRITE | remote)?;
        let region = Region::new(&connection.endpoint.pd, buffer, rights)?;
        let name = (buffer.address() as usize, buffer.len());
        connection.map(Owned::new(region, Region::destroy), name, offset, is_told)
    }

    /// Ends a mapping: nothing writes the buffer any more.
    ///
    /// # Errors
    /// `EINVAL`: there is none. As [`Engine::check`].
    pub fn unmap(&self, address: usize, length: usize) -> Result<(), Errno> {
        self.engine.check()?;
        let region = {
            let mut state = self.lock();
            let connection = connected(&mut state).map_err(|_| Errno::INVAL)?;
            connection.unmap((address, length))?
        };
        // It waits for Writes that are being placed.
        drop(region);
        Ok(())
    }

    /// Waits for at most `time` until `is_done`; no signal interrupts it.
    fn linger(&self, time: Duration, mut is_done: impl FnMut(&mut State) -> bool) {
        let deadline = Instant::now().checked_add(time);
        let mut attempt = |state: &mut State| is_done(state).then_some(Ok(()));
        let Ok(waker) = self.waker() else { return };
        self.wakers.enter(&waker);
        loop {
            self.arm();
            self.engine.progress();
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
        self.wakers.leave(&waker);
    }

    /// Closes it: sends what is on its way, ends the connection, and gives back what it has used. Other threads' calls
    /// return `EBADF`.
    pub fn close(&self, linger: Linger) {
        if self.engine.check().is_ok() {
            self.end(linger);
        }
        let (phase, id) = {
            let mut state = self.lock();
            (std::mem::replace(&mut state.phase, Phase::Closed), state.id.take())
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
            let Phase::Connected(connection) = &mut state.phase else { return };
            if connection.is_established {
                connection.shut_down(true, true);
            }
            state.id.clone()
        };
        self.wakers.wake();
        self.linger(time, |state| match &state.phase {
            Phase::Connected(connection) => connection.is_drained(),
            _ => true,
        });
        // Of one that is over already there is nothing to wait for.
        let Some(true) = id.map(|id| id.disconnect().is_ok()) else { return };
        self.linger(time.min(DISCONNECT_TIME), |state| match &state.phase {
            Phase::Connected(connection) => connection.is_lost(),
            _ => true,
        });
    }
}

/// An rsocket that nobody has closed resets its connection.
impl Drop for Socket {
    fn drop(&mut self) {
        self.close(Linger::Reset);
    }
}

fn wake_up(wakers: &Arc<Wakers>) -> Listener {
    let wakers = wakers.clone();
    Listener(Box::new(move || wakers.wake()))
}

/// The connection, or why there is none; `None`: it is being made.
fn connected(state: &mut State) -> Result<&mut Connection, Option<Errno>> {
    match &mut state.phase {
        Phase::Connected(connection) => Ok(connection),
        Phase::Connecting(_) => Err(None),
        Phase::Closed => Err(Some(Errno::BADF)),
        Phase::Idle | Phase::Listening(_) | Phase::Failed => {
            Err(Some(state.error.take().unwrap_or(Errno::NOTCONN)))
        }
    }
}
