//! The steps on a queue pair: one connection, one receive, one piece of memory for each purpose.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, unbounded};
use host_stack::node::Node;
use rdma_over_tcp::ndk::{
    Adapter, AdapterCore, Connector, Cq, Data, FpduSize, MrFlags, NdkResultEx, NtStatus, OpFlags,
    Qp, QpLimits, ReadLimit, RegisteredBuffer, Sge,
};

use super::{
    Role, RpingArgs, pattern,
    steps::{Client, Server, StepError, Work},
    wire::{ADVERT_BYTES, Advert},
};
use crate::{control::server, failure::Failure, net::Netlink, node, report::Console, waker::Waker};

/// Completions that wait: far more than one connection of rping ever has.
const CQ_DEPTH: u32 = 64;
/// rping asks for one read each way.
const LIMITS: ReadLimit = ReadLimit { inbound: 1, outbound: 1 };

/// Where things lie in the one buffer.
const RECEIVE_AT: usize = 0;
const DATA_AT: usize = 64;

/// Request contexts.
const RECEIVE: u64 = 1;
const SEND: u64 = 2;
const READ: u64 = 3;
const WRITE: u64 = 4;

/// What a callback tells.
enum Note {
    Listening(NtStatus),
    Incoming(Connector),
    /// Connect, CompleteConnect or Accept has ended.
    Connected(NtStatus),
    /// The peer has disconnected, or the connection is lost; the Terminate's code, or 0.
    Ended(u32),
    Disconnected(NtStatus),
}

enum Side {
    Client(Client),
    Server(Server),
}

/// Runs the command.
///
/// # Errors
/// The node or the connection could not be had, the peer broke the rules, or data differs.
pub(super) fn run(args: &RpingArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let role = args.role()?;
    let config = args.queues.resolve(args.node.resolve()?)?;
    console.config(&config);
    let links = node::open_links(&mut Netlink::open()?, &config)?.links;
    let opened = node::open_adapters(links, &config, FpduSize::Emss)?;
    // The one connection is the first queue's.
    let first = opened.into_iter().next();
    let (node, adapter) = first.ok_or_else(|| Failure::work("a TAP without a queue"))?;
    let _control = server::serve(&node, &config)?;
    let waker = Waker::new();
    waker.set(Some(node.clone()));
    let ended = waker.catch_signals().and_then(|()| {
        let mut run = Run::new(args, &node, &adapter, &waker)?;
        let ended = match role {
            Role::Client(remote, count) => run.client(remote, count, console),
            Role::Server(local) => run.server(local, console),
        };
        run.tell(console);
        run.linger();
        ended
    });
    waker.set(None);
    ended
}

/// A status that is not SUCCESS or PENDING is the end.
fn check(what: &str, status: NtStatus) -> Result<(), Failure> {
    match status {
        NtStatus::SUCCESS | NtStatus::PENDING => Ok(()),
        status => Err(Failure::work(format!("NDK: {what}: {status}"))),
    }
}

fn checked<T>(what: &str, result: Result<T, NtStatus>) -> Result<T, Failure> {
    result.map_err(|status| Failure::work(format!("NDK: {what}: {status}")))
}

impl From<StepError> for Failure {
    fn from(error: StepError) -> Self {
        Self::work(error.to_string())
    }
}

/// One run: the objects of one connection.
struct Run<'a> {
    args: &'a RpingArgs,
    node: &'a Node<AdapterCore>,
    adapter: &'a Adapter,
    waker: &'a Waker<AdapterCore>,
    notes: Receiver<Note>,
    told: Sender<Note>,
    cq: Cq,
    qp: Qp,
    buffer: RegisteredBuffer,
    token: u32,
    work: VecDeque<Work>,
    connector: Option<Connector>,
    peer: Option<SocketAddr>,
    pings: u32,
    started: Option<Instant>,
    elapsed: Duration,
    /// The peer has ended the connection; no request completes any more.
    ended: Option<u32>,
}

impl<'a> Run<'a> {
    fn new(
        args: &'a RpingArgs,
        node: &'a Node<AdapterCore>,
        adapter: &'a Adapter,
        waker: &'a Waker<AdapterCore>,
    ) -> Result<Self, Failure> {
        let (told, notes) = unbounded();
        let wake = waker.clone();
        let cq = checked("create a CQ", adapter.create_cq(CQ_DEPTH, move |_| wake.wake()))?;
        let pd = checked("create a PD", adapter.create_pd())?;
        let qp = checked("create a QP", pd.create_qp(&cq, &cq, 0, QpLimits::default()))?;
        let mr = checked("create an MR", pd.create_mr(false))?;
        let length = DATA_AT + 2 * args.size as usize;
        let buffer = checked("allocate", adapter.allocate(length))?;
        let rights =
            MrFlags::ALLOW_LOCAL_WRITE | MrFlags::ALLOW_REMOTE_READ | MrFlags::ALLOW_REMOTE_WRITE;
        checked("register an MR", mr.register(&buffer, 0, length, rights))?;
        Ok(Self {
            args,
            node,
            adapter,
            waker,
            notes,
            told,
            cq,
            qp,
            token: mr.local_token(),
            buffer,
            work: VecDeque::new(),
            connector: None,
            peer: None,
            pings: 0,
            started: None,
            elapsed: Duration::ZERO,
            ended: None,
        })
    }

    fn span(&self, offset: usize, length: usize) -> Sge {
        let address = self.buffer.address() + offset as u64;
        Sge { address, length: length as u32, token: self.token }
    }

    /// The memory that the peer reads (0) or writes (1).
    fn advert(&self, index: usize) -> Advert {
        let size = self.args.size;
        let address = self.buffer.address() + (DATA_AT + index * size as usize) as u64;
        Advert { address, token: self.token, size }
    }

    fn data(&self, index: usize, length: usize) -> Vec<u8> {
        let mut data = vec![0; length];
        self.buffer.read_at(DATA_AT + index * self.args.size as usize, &mut data);
        data
    }

    /// Waits for what `f` looks for, or a signal.
    fn wait<T>(&self, mut f: impl FnMut() -> Option<T>) -> Result<T, Failure> {
        let waited = self.node.wait_until(None, || match self.waker.interrupted() {
            Ok(()) => f().map(Ok),
            Err(interrupted) => Some(Err(interrupted)),
        });
        waited.unwrap_or_else(|error| Err(Failure::work(error.to_string())))
    }

    fn note(&self) -> Result<Note, Failure> {
        self.wait(|| self.notes.try_recv().ok())
    }

    fn post_receive(&self) -> Result<(), Failure> {
        let sge = self.span(RECEIVE_AT, ADVERT_BYTES);
        checked("post a receive", self.qp.receive(RECEIVE, &[sge]))
    }

    fn disconnect_event(&self) -> Option<rdma_over_tcp::ndk::DisconnectEvent> {
        let told = self.told.clone();
        Some(Box::new(move |reason| {
            // The receiver goes with the run; nobody is left to be told then.
            let _ = told.send(Note::Ended(reason));
        }))
    }

    /// A completion that tells with which status.
    fn telling(
        &self,
        note: impl FnOnce(NtStatus) -> Note + Send + 'static,
    ) -> impl FnOnce(NtStatus) + Send + 'static {
        let told = self.told.clone();
        move |status| {
            let _ = told.send(note(status));
        }
    }

    fn connected(&self, what: &str, status: NtStatus) -> Result<(), Failure> {
        check(what, status)?;
        if status != NtStatus::PENDING {
            return Ok(());
        }
        match self.note()? {
            Note::Connected(status) => check(what, status),
            _ => Err(Failure::work(format!("NDK: {what}: the connection has ended"))),
        }
    }

    fn client(
        &mut self,
        remote: SocketAddr,
        count: Option<u32>,
        console: &mut Console<'_>,
    ) -> Result<(), Failure> {
        let connector = checked("create a connector", self.adapter.create_connector())?;
        self.connector = Some(connector.clone());
        self.post_receive()?;
        let status =
            connector.connect(&self.qp, None, remote, LIMITS, &[], self.telling(Note::Connected));
        self.connected(&format!("connect to {remote}"), status)?;
        let event = self.disconnect_event();
        let status = connector.complete_connect(event, self.telling(Note::Connected));
        self.connected("complete the connect", status)?;
        self.established(&connector, console);
        let mut client = Client::new(count, self.advert(1));
        let first = client.connected();
        self.work.push_back(first);
        self.converse(&mut Side::Client(client), console)
    }

    fn server(&mut self, local: SocketAddr, console: &mut Console<'_>) -> Result<(), Failure> {
        let told = self.told.clone();
        let listener = checked(
            "create a listener",
            self.adapter.create_listener(move |connector| {
                let _ = told.send(Note::Incoming(connector));
            }),
        )?;
        let status = listener.listen(local, self.telling(Note::Listening));
        check(&format!("listen on {local}"), status)?;
        let connector = loop {
            match self.note()? {
                Note::Listening(status) => {
                    check(&format!("listen on {local}"), status)?;
                    let local = listener.local_address().unwrap_or(local);
                    console.remark(format_args!("listening: {local}"));
                }
                Note::Incoming(connector) => break connector,
                _ => {}
            }
        };
        // One connection is served; the next one finds nobody, as with rdma-core's.
        listener.control_connect_events(true);
        self.connector = Some(connector.clone());
        self.post_receive()?;
        let event = self.disconnect_event();
        let status = connector.accept(&self.qp, LIMITS, &[], event, self.telling(Note::Connected));
        self.established(&connector, console);
        self.connected("accept", status)?;
        self.converse(&mut Side::Server(Server::new(self.args.size)), console)
    }

    fn established(&mut self, connector: &Connector, console: &mut Console<'_>) {
        self.peer = connector.peer_address();
        self.started = Some(Instant::now());
        if let (Some(local), Some(peer)) = (connector.local_address(), self.peer) {
            console.remark(format_args!("connected: {local} to {peer}"));
        }
    }

    /// Does work and takes completions until the connection has ended as it should.
    fn converse(&mut self, side: &mut Side, console: &mut Console<'_>) -> Result<(), Failure> {
        let ended = self.steps(side, console);
        if let Some(started) = self.started {
            self.elapsed = started.elapsed();
        }
        ended
    }

    fn steps(&mut self, side: &mut Side, console: &mut Console<'_>) -> Result<(), Failure> {
        loop {
            while let Some(work) = self.work.pop_front() {
                if work == Work::Disconnect {
                    return check("disconnect", self.disconnect(side)?);
                }
                self.perform(side, work, console)?;
            }
            let Some(result) = self.completion()? else { return self.peer_ended(side) };
            self.take(side, &result)?;
            self.count(side);
        }
    }

    /// The next completion; `None`: the peer has ended the connection.
    fn completion(&mut self) -> Result<Option<NdkResultEx>, Failure> {
        let mut ended = self.ended;
        let next = self.wait(|| {
            // Looked at first: completions that came before the end are still taken after it.
            while let Ok(note) = self.notes.try_recv() {
                if let Note::Ended(reason) = note {
                    ended = Some(reason);
                }
            }
            let mut results = [EMPTY];
            match (self.cq.poll_ex(&mut results), ended) {
                (0, None) => None,
                (0, Some(_)) => Some(None),
                _ => Some(Some(results[0])),
            }
        });
        self.ended = ended;
        next
    }

    fn perform(
        &mut self,
        side: &mut Side,
        work: Work,
        console: &mut Console<'_>,
    ) -> Result<(), Failure> {
        let none = OpFlags::NONE;
        match work {
            Work::Receive => self.post_receive(),
            Work::Send(advert) => {
                let octets = advert.encode();
                checked("post a Send", self.qp.send(SEND, Data::Inline(&[&octets]), none))
            }
            Work::Read(from) => {
                let sge = self.span(DATA_AT, from.size as usize);
                let read = self.qp.read(READ, &[sge], from.address, from.token, none);
                checked("post a Read", read)
            }
            Work::Write(to) => {
                let sge = self.span(DATA_AT, to.size as usize);
                let data = Data::Registered(std::slice::from_ref(&sge));
                checked("post a Write", self.qp.write(WRITE, data, to.address, to.token, none))
            }
            Work::Fill(number) => {
                let mut text = vec![0; self.args.size as usize];
                pattern::fill(&mut text, number);
                self.buffer.write_at(DATA_AT, &text);
                if let Side::Client(client) = side {
                    let next = client.filled(self.advert(0))?;
                    self.work.push_front(next);
                }
                Ok(())
            }
            Work::Compare(number) => self.compare(number, console),
            Work::Show(length) => {
                let data = self.data(0, length as usize);
                let text = pattern::text_len(&data);
                if self.args.show {
                    console.say(format_args!("server ping data: {}", printable(&data[..text])));
                }
                if let Side::Server(server) = side {
                    let next = server.shown(text as u32)?;
                    self.work.push_front(next);
                }
                Ok(())
            }
            Work::Disconnect => Ok(()),
        }
    }

    fn compare(&self, number: u32, console: &mut Console<'_>) -> Result<(), Failure> {
        let size = self.args.size as usize;
        let (sent, received) = (self.data(0, size), self.data(1, size));
        if self.args.validate
            && let Some(at) = pattern::first_difference(&sent, &received)
        {
            return Err(Failure::work(format!(
                "rping: ping {number} came back changed: octet {at} is {:#04x}, not {:#04x}",
                received[at], sent[at]
            )));
        }
        if self.args.show {
            let text = pattern::text_len(&received);
            console.say(format_args!("ping data: {}", printable(&received[..text])));
        }
        // What is compared next must have come anew.
        self.buffer.write_at(DATA_AT + size, &vec![0; size]);
        Ok(())
    }

    fn take(&mut self, side: &mut Side, result: &NdkResultEx) -> Result<(), Failure> {
        let what = match result.request_context {
            RECEIVE => "receive",
            SEND => "Send",
            READ => "RDMA Read",
            _ => "RDMA Write",
        };
        if result.status == NtStatus::CANCELLED {
            // Flushed: the peer's end says why, and it has been noted or will be.
            return Ok(());
        }
        check(what, result.status)?;
        match (result.request_context, side) {
            (RECEIVE, side) => {
                let mut octets = vec![0; (result.bytes_transferred as usize).min(ADVERT_BYTES)];
                self.buffer.read_at(RECEIVE_AT, &mut octets);
                match side {
                    Side::Client(client) => {
                        let work = client.received(&octets)?;
                        self.work.extend(work.into_iter().flatten());
                    }
                    Side::Server(server) => self.work.extend(server.received(&octets)?),
                }
            }
            (READ, Side::Server(server)) => self.work.push_back(server.read_done()?),
            (WRITE, Side::Server(server)) => self.work.push_back(server.write_done()?),
            _ => {}
        }
        Ok(())
    }

    fn count(&mut self, side: &Side) {
        self.pings = match side {
            Side::Client(client) => client.completed(),
            Side::Server(server) => server.completed(),
        };
    }

    fn disconnect(&mut self, side: &Side) -> Result<NtStatus, Failure> {
        self.count(side);
        let Some(connector) = &self.connector else { return Ok(NtStatus::SUCCESS) };
        let status = connector.disconnect(self.telling(Note::Disconnected));
        if status != NtStatus::PENDING {
            return Ok(status);
        }
        loop {
            if let Note::Disconnected(status) = self.note()? {
                return Ok(status);
            }
        }
    }

    /// The peer has disconnected: between two pings that is a server's regular end.
    fn peer_ended(&mut self, side: &Side) -> Result<(), Failure> {
        let regular = match side {
            Side::Server(server) => server.may_end() && self.ended == Some(0),
            Side::Client(_) => false,
        };
        if regular {
            return match self.disconnect(side)? {
                // It has not waited for ours: its connection is gone already.
                NtStatus::CONNECTION_INVALID => Ok(()),
                status => check("disconnect", status),
            };
        }
        let reason = match self.ended {
            Some(0) | None => String::new(),
            Some(code) => {
                format!(" (Terminate {:x}/{:x}/{:02x})", code >> 12, code >> 8 & 15, code & 255)
            }
        };
        Err(Failure::work(format!(
            "rping: the peer has ended the connection within a ping{reason}"
        )))
    }

    fn tell(&self, console: &mut Console<'_>) {
        let size_bytes = self.args.size;
        console.result(&serde_json::json!({
            "peer": self.peer,
            "pings": self.pings,
            "size_bytes": size_bytes,
            "elapsed_ns": u64::try_from(self.elapsed.as_nanos()).ok(),
        }));
        console.remark(format_args!(
            "ended: {} pings of {size_bytes} bytes in {:.1} ms",
            self.pings,
            self.elapsed.as_secs_f64() * 1e3
        ));
    }

    /// Stays until the peer's FIN is acknowledged, so that its end is clean too.
    fn linger(&self) {
        node::linger(self.node);
    }
}

const EMPTY: NdkResultEx = NdkResultEx {
    status: NtStatus::SUCCESS,
    bytes_transferred: 0,
    qp_context: 0,
    request_context: 0,
    operation: rdma_over_tcp::ndk::OperationType::Send,
    provider_error_code: 0,
    invalidated_token: 0,
};

/// The text without its NUL; what is not text, escaped.
fn printable(data: &[u8]) -> String {
    let text = data.strip_suffix(&[0]).unwrap_or(data);
    text.escape_ascii().to_string().replace("\\\\", "\\")
}
