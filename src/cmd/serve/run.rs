//! Connections of the server, and their completions.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, sync_channel},
    },
    thread,
};

use flue_adapter::AdapterOptions;
use rdma_over_tcp::ndk::{
    Adapter, AdapterConfig, ConnectCause, Connector, Cq, CrcRequest, Data, DisconnectReason,
    Disconnection, FpduSize, Listener, Mr, MrFlags, NdkResultEx, NtStatus, OpFlags, OperationType,
    Pd, PendingCall, Qp, QpLimits, ReadLimit, RegisteredBuffer, Sge,
    blocking::{Wait, call},
    reject_and_close,
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    stdio::stdout,
};

use super::{
    CONNECTIONS_MAX, ServeArgs,
    event::{Event, hex},
    offer::{self, Offered, Region},
};
use crate::{
    adapter::{self, OpenAdapter, Waiter},
    failure::Failure,
    report::Console,
    station::Station,
};

/// Requests in addition to echoes.
const SPARE_REQUESTS: u32 = 4;
/// Completions read per poll.
const RESULTS_MAX: usize = 32;
/// Limit of accepted connections that are not yet handled.
const INCOMING_MAX: usize = 16;
/// Largest private data, bytes.
const PRIVATE_DATA_MAX: usize = 512;

/// Runs `flue serve`.
pub(super) fn run(args: &ServeArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let options = adapter::resolve(&args.node, args.queues, args.transport.transport, args.mpa)?;
    let options = AdapterOptions { rfc7306: Some(args.rfc7306), ..options };
    adapter::show(&options, console);
    let config = AdapterConfig {
        fpdu_size: FpduSize::Emss,
        crc: CrcRequest::Auto,
        ..AdapterConfig::default()
    };
    // The connections use the first queue.
    let opened = OpenAdapter::open(&options, config, args.sandbox, console)?;
    opened.interruptible(|waiter| {
        let ended = Server::new(args, waiter, &opened).and_then(|server| server.serve(console));
        // Peers close without error only after their FINs are acknowledged.
        opened.linger();
        ended
    })
}

fn checked<T>(what: &str, result: Result<T, NtStatus>) -> Result<T, Failure> {
    result.map_err(|status| Station::default().status(what, status))
}

/// State of a connection.
enum State {
    /// Waiting for the peer's first message.
    Accepting(PendingCall),
    Open,
    /// The peer has disconnected, and the local disconnect is in progress.
    Closing(PendingCall),
}

/// Queue pair, and memory with one slot per receive.
struct Slots {
    qp: Qp,
    /// `None` without receives.
    memory: Option<(RegisteredBuffer, Mr)>,
    /// Length of a slot, bytes.
    size: u64,
}

impl Slots {
    /// Returns the entry of the first `length` bytes of a slot.
    fn sge(&self, slot: u64, length: u32) -> Option<Sge> {
        let (buffer, mr) = self.memory.as_ref()?;
        let address = buffer.address() + slot * self.size;
        Some(Sge { address, length, token: mr.local_token() })
    }

    fn received(&self, slot: u64, length: u32) -> Vec<u8> {
        let Some((buffer, _)) = &self.memory else { return Vec::new() };
        let mut octets = vec![0; length as usize];
        buffer.read_at((slot * self.size) as usize, &mut octets);
        octets
    }

    fn post_receive(&self, slot: u64) -> Result<(), NtStatus> {
        self.qp.receive(slot, self.sge(slot, self.size as u32).as_slice())
    }

    fn echo(&self, result: &NdkResultEx) -> Result<(), NtStatus> {
        let slot = result.request_context;
        match result.operation {
            OperationType::ReceiveImmediate => {
                self.qp.immediate(slot, result.immediate, OpFlags::empty())
            }
            _ => {
                let sge = self.sge(slot, result.bytes_transferred);
                self.qp.send(slot, Data::Registered(sge.as_slice()), OpFlags::empty())
            }
        }
    }

    /// Closes the objects. An object is destroyed after the objects that depend on it; completion is not awaited.
    fn close(&self) {
        let _ = self.qp.close(|| {});
        if let Some((_, mr)) = &self.memory {
            let _ = mr.close(|| {});
        }
    }
}

/// Connection and its receives.
struct Session {
    connector: Connector,
    slots: Slots,
    state: State,
    /// True if the connection was logged as established.
    is_logged: bool,
    ended: Disconnection,
}

impl Session {
    /// Returns true if the session requires handling.
    fn requires_handling(&self) -> bool {
        match &self.state {
            State::Accepting(begun) | State::Closing(begun) => begun.status().is_some(),
            State::Open => self.ended.reason().is_some(),
        }
    }

    fn close(&self) {
        let _ = self.connector.close(|| {});
        self.slots.close();
    }
}

/// Event of the server's loop.
enum ServeEvent {
    /// The reader of the log has closed it.
    LogClosed,
    AcceptedConnection(Connector),
    /// Number of completions.
    Completions(usize),
    /// Number of a session that requires handling.
    Session(u64),
}

/// Offered memory and its sessions.
struct Server<'a> {
    args: &'a ServeArgs,
    waiter: Waiter<'a>,
    adapter: &'a Adapter,
    station: &'a Station,
    pd: Pd,
    cq: Cq,
    /// Kept alive because peers access it.
    _regions: Vec<(RegisteredBuffer, Mr)>,
    offered: Vec<Offered>,
    private_data: String,
    sessions: BTreeMap<u64, Session>,
    /// True if the reader of the log has closed it.
    is_log_closed: Arc<AtomicBool>,
    /// Number of connections so far.
    count: u64,
    results: [NdkResultEx; RESULTS_MAX],
}

impl<'a> Server<'a> {
    fn new(
        args: &'a ServeArgs,
        waiter: Waiter<'a>,
        OpenAdapter { adapter, station, .. }: &'a OpenAdapter,
    ) -> Result<Self, Failure> {
        let pd = checked("create a PD", adapter.create_pd())?;
        let own = 2 * u32::from(args.receives) + SPARE_REQUESTS;
        let wake = waiter.waker.clone();
        let depth = CONNECTIONS_MAX as u32 * own;
        let cq = checked("create a CQ", adapter.create_cq(depth, move |_| wake.wake()))?;
        let (mut regions, mut offered) = (Vec::new(), Vec::new());
        for Region { length, rights } in args.regions() {
            let (buffer, mr) = registered(adapter, &pd, length, rights.flags())?;
            let (stag, address) = (mr.remote_token(), buffer.address());
            offered.push(Offered { stag, address, length, rights: rights.to_string() });
            regions.push((buffer, mr));
        }
        let most = adapter.info().max_callee_data as usize;
        let private_data = offer::private_data(&offered, most)?;
        Ok(Self {
            args,
            waiter,
            adapter,
            station,
            pd,
            cq,
            _regions: regions,
            offered,
            private_data,
            sessions: BTreeMap::new(),
            is_log_closed: Arc::default(),
            count: 0,
            results: [NdkResultEx::default(); RESULTS_MAX],
        })
    }

    /// Logs an event. The loop ends when the log cannot be written.
    fn log(&self, console: &mut Console<'_>, event: &Event) {
        console.print(event.line(self.args.json));
    }

    /// Serves until a signal is received, or with `--once` until the first connection has ended.
    fn serve(mut self, console: &mut Console<'_>) -> Result<(), Failure> {
        let (listener, incoming) = self.listen()?;
        let local = self.args.local()?;
        let address = listener.local_address().unwrap_or(local);
        let shown = self.station.shown(address);
        self.log(console, &Event::Listening { address, shown, regions: self.offered.clone() });
        watch_log_reader(&self.waiter, &self.is_log_closed)?;
        loop {
            // Fail fast: without this, the peers' tests would continue without a log.
            console.check().map_err(|failure| failure.at("log"))?;
            match self.next_event(&incoming)? {
                ServeEvent::LogClosed => console.unwritten(io::ErrorKind::BrokenPipe.into()),
                ServeEvent::AcceptedConnection(connector) => {
                    if self.admit(connector, console) && self.args.once {
                        listener.control_connect_events(true);
                    }
                }
                ServeEvent::Completions(count) => {
                    for index in 0..count {
                        let result = self.results[index];
                        self.take(&result, console);
                    }
                }
                ServeEvent::Session(number) => {
                    let is_over = self.handle_session(number, console);
                    if is_over && self.args.once {
                        let _ = listener.close(|| {});
                        return Ok(());
                    }
                }
            }
        }
    }

    fn listen(&mut self) -> Result<(Listener, Receiver<Connector>), Failure> {
        let (sender, incoming) = sync_channel(INCOMING_MAX);
        let event = move |connector| {
            if let Err(refused) = sender.try_send(connector) {
                let (std::sync::mpsc::TrySendError::Full(connector)
                | std::sync::mpsc::TrySendError::Disconnected(connector)) = refused;
                reject_and_close(&connector, b"flue serve: busy");
            }
        };
        let listener = checked("create a listener", self.adapter.create_listener(event))?;
        let local = self.args.local()?;
        let config = self.args.listen.config();
        call(&mut self.waiter, &format!("listen on {local}"), |done| {
            listener.listen_with(local, config, done)
        })?;
        Ok((listener, incoming))
    }

    /// Waits for the next event. Completions have priority, also those of an ended connection.
    fn next_event(&mut self, incoming: &Receiver<Connector>) -> Result<ServeEvent, Failure> {
        let Self { waiter, cq, results, sessions, is_log_closed, .. } = self;
        waiter.wait(|| {
            if is_log_closed.load(Ordering::Acquire) {
                return Some(ServeEvent::LogClosed);
            }
            let of_session = sessions.iter().find(|(_, session)| session.requires_handling());
            let of_session = of_session.map(|(number, _)| ServeEvent::Session(*number));
            match cq.poll_ex(results) {
                0 => of_session
                    .or_else(|| incoming.try_recv().ok().map(ServeEvent::AcceptedConnection)),
                count => Some(ServeEvent::Completions(count)),
            }
        })
    }

    /// Accepts a connection. Returns false if it was rejected; a rejected connection does not affect the others.
    fn admit(&mut self, connector: Connector, console: &mut Console<'_>) -> bool {
        if self.sessions.len() >= CONNECTIONS_MAX {
            reject_and_close(&connector, b"flue serve: busy");
            return false;
        }
        let number = self.count + 1;
        let slots = match self.slots(number) {
            Ok(slots) => slots,
            Err(failure) => {
                tracing::warn!(peer = ?connector.peer_address(), "client rejected: {}", failure.message);
                reject_and_close(&connector, b"flue serve: out of resources");
                return false;
            }
        };
        self.count = number;
        let mut octets = [0; PRIVATE_DATA_MAX];
        let (_, length, _) = connector.connection_data(Some(&mut octets));
        let limits = ReadLimit { inbound: self.args.ird.into(), outbound: 0 };
        let request = Event::Request {
            connection: number,
            peer: connector.peer_address(),
            private_data: hex(&octets[..length.min(PRIVATE_DATA_MAX)]),
            ird: limits.inbound,
        };
        self.log(console, &request);
        let ended = Disconnection::default();
        let begun = PendingCall::begin(|done| {
            let data = self.private_data.as_bytes();
            connector.accept(&slots.qp, limits, data, Some(ended.event()), done)
        });
        let session =
            Session { connector, slots, state: State::Accepting(begun), is_logged: false, ended };
        self.sessions.insert(number, session);
        true
    }

    /// Creates the queue pair of connection `number` and posts its receives: the peer may send as soon as it has the
    /// Reply.
    fn slots(&self, number: u64) -> Result<Slots, Failure> {
        let receives = u32::from(self.args.receives);
        let limits = QpLimits {
            receive_queue_depth: receives,
            initiator_queue_depth: receives + SPARE_REQUESTS,
            ..QpLimits::default()
        };
        let size = self.args.receive_size;
        let qp = checked("create a QP", self.pd.create_qp(&self.cq, &self.cq, number, limits))?;
        let mut slots = Slots { qp, memory: None, size };
        let posted = match u64::from(receives) * size {
            0 => Ok(()),
            length => registered(self.adapter, &self.pd, length, MrFlags::ALLOW_LOCAL_WRITE)
                .and_then(|memory| {
                    slots.memory = Some(memory);
                    (0..receives.into())
                        .try_for_each(|slot| checked("post a receive", slots.post_receive(slot)))
                }),
        };
        match posted {
            Ok(()) => Ok(slots),
            Err(failure) => {
                slots.close();
                Err(failure)
            }
        }
    }

    /// Handles an event of a session. Returns true if the session is over.
    fn handle_session(&mut self, number: u64, console: &mut Console<'_>) -> bool {
        let Some(session) = self.sessions.get_mut(&number) else { return false };
        match &session.state {
            State::Accepting(begun) if begun.status() == Some(NtStatus::SUCCESS) => {
                session.state = State::Open;
                self.log_established(number, console);
                false
            }
            State::Open => {
                let begun = PendingCall::begin(|done| session.connector.disconnect(done));
                session.state = State::Closing(begun);
                false
            }
            State::Accepting(begun) | State::Closing(begun) => {
                let status = begun.status();
                self.end(number, status, console);
                true
            }
        }
    }

    /// Logs the connection as established, once: the first message may be handled before the end of the accept.
    fn log_established(&mut self, number: u64, console: &mut Console<'_>) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        if !std::mem::replace(&mut session.is_logged, true) {
            self.log(console, &Event::Established { connection: number });
        }
    }

    /// Ends a session, or a request that was not accepted.
    fn end(&mut self, number: u64, status: Option<NtStatus>, console: &mut Console<'_>) {
        let Some(session) = self.sessions.remove(&number) else { return };
        let stats = session.slots.qp.stats();
        let (reason, words) = match (session.ended.reason(), status) {
            (Some(0), _) => (DisconnectReason(0), "graceful disconnect by the peer".to_owned()),
            (Some(code), _) => (DisconnectReason(code), DisconnectReason(code).to_string()),
            (None, status) => not_accepted(status, session.connector.failure()),
        };
        if let Some(terminate) = Event::terminate(number, &stats, reason) {
            self.log(console, &terminate);
        }
        let (counters, code) = ((&stats).into(), reason.0);
        self.log(console, &Event::Ended { connection: number, reason: words, code, counters });
        session.close();
    }

    /// Handles a completion: a receive is logged, and echoed or reposted; the completion of an echo frees its slot.
    fn take(&mut self, result: &NdkResultEx, console: &mut Console<'_>) {
        let (number, slot) = (result.qp_context, result.request_context);
        if !self.sessions.contains_key(&number) || result.status == NtStatus::CANCELLED {
            return;
        }
        if result.status != NtStatus::SUCCESS {
            return self.log(console, &Event::failed(number, result));
        }
        self.log_established(number, console);
        let Some(session) = self.sessions.get(&number) else { return };
        let event = match result.operation {
            OperationType::Receive | OperationType::ReceiveAndInvalidate => {
                let bytes = result.bytes_transferred;
                let data = hex(&session.slots.received(slot, bytes));
                let is_invalidated = result.operation == OperationType::ReceiveAndInvalidate;
                let invalidated = is_invalidated.then_some(result.invalidated_token);
                Event::Send { connection: number, bytes, data, invalidated }
            }
            OperationType::ReceiveImmediate => {
                Event::Immediate { connection: number, data: hex(&result.immediate) }
            }
            // Completion of an echo.
            _ => {
                let _ = session.slots.post_receive(slot);
                return;
            }
        };
        self.log(console, &event);
        let answered = match self.args.echo {
            true => session.slots.echo(result),
            false => session.slots.post_receive(slot),
        };
        if let Err(status) = answered {
            // A connection that ended in the meantime accepts no posts.
            tracing::debug!(connection = number, %status, "echo or receive not posted");
        }
    }
}

/// Sets `is_log_closed` and wakes the server when standard output is a pipe or a socket closed by its reader: an idle
/// server would not detect that otherwise. The thread ends with the process.
fn watch_log_reader(waiter: &Waiter<'_>, is_log_closed: &Arc<AtomicBool>) -> Result<(), Failure> {
    let (waker, is_log_closed) = (waiter.waker.clone(), is_log_closed.clone());
    let watch = move || {
        let output = stdout();
        // No event is requested: errors and hang-ups are always reported. Other files have none.
        let mut descriptors = [PollFd::new(&output, PollFlags::empty())];
        while let Err(Errno::INTR) = poll(&mut descriptors, None) {}
        if descriptors[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
            is_log_closed.store(true, Ordering::Release);
            waker.wake();
        }
    };
    let started = thread::Builder::new().name("flue-reader".into()).spawn(watch);
    started.map(drop).map_err(|error| Failure::work(format!("start a thread: {error}")))
}

/// Returns the reason why a connection was not established, and its text.
fn not_accepted(
    status: Option<NtStatus>,
    cause: Option<ConnectCause>,
) -> (DisconnectReason, String) {
    let reason = cause.as_ref().map_or(DisconnectReason::LOST, DisconnectReason::of_attempt);
    let status = status.map_or_else(String::new, |status| format!(": {status}"));
    let cause = cause.map_or_else(String::new, |cause| format!(": {cause}"));
    (reason, format!("not accepted{status}{cause}"))
}

/// Allocates and registers memory.
fn registered(
    adapter: &Adapter,
    pd: &Pd,
    length: u64,
    flags: MrFlags,
) -> Result<(RegisteredBuffer, Mr), Failure> {
    let length = length as usize;
    let buffer = checked("allocate", adapter.allocate(length))?;
    let mr = checked("create an MR", pd.create_mr(false))?;
    match checked("register an MR", mr.register(&buffer, 0, length, flags)) {
        Ok(_) => Ok((buffer, mr)),
        Err(failure) => {
            let _ = mr.close(|| {});
            Err(failure)
        }
    }
}
