//! One connection.

use std::{net::SocketAddr, sync::mpsc::Sender};

use rdma_over_tcp::ndk::{
    Adapter, Connector, Cq, CqNotify, Data, NdkResultEx, NtStatus, OpFlags, OperationType, Pd, Qp,
    QpLimits, ReadLimit, Sge,
};

use crate::{
    command::{Command, Receives},
    memory::{FAST, Memory, PAGE},
    report::Report,
};

/// What has happened to a connection.
pub(crate) enum Event {
    /// A Request has come: the number is the listener's.
    Incoming(Connector),
    /// Connect is done, or has failed.
    Answered(NtStatus),
    /// Accept or CompleteConnect is done, or has failed.
    Opened(NtStatus),
    /// It has ended; the reason is NDK's.
    Ended(u32),
    /// Its disconnect is done.
    Closed,
    /// The completion queue has entries.
    Completions,
    /// A deregistration is complete.
    Deregistered,
    /// The server is to end.
    Quit,
}

/// Reads each way.
const LIMITS: ReadLimit = ReadLimit { inbound: 4, outbound: 4 };
const QUEUE_DEPTH: u32 = 64;
const INLINE_BYTES: u32 = 1024;
/// Request contexts above those of receives.
const ANSWER: u64 = 100;
const READ: u64 = 101;
const WRITE: u64 = 102;
const FAST_REGISTER: u64 = 103;

/// A connection and its objects.
pub(crate) struct Session {
    pub(crate) report: Report,
    connector: Connector,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    fast: rdma_over_tcp::ndk::Mr,
    memory: Memory,
    receives: Receives,
    /// Bytes of the Read under way.
    reading: usize,
    events: Sender<(u32, Event)>,
    /// The objects are closed.
    is_closed: bool,
}

/// A command that the server, and not the session, has to see to.
pub(crate) enum ServerRequest {
    Report(u32),
    Connect(SocketAddr),
}

fn name(status: NtStatus) -> String {
    let text = status.to_string();
    text.split(' ').next().unwrap_or_default().trim_start_matches("STATUS_").to_owned()
}

impl Session {
    /// Objects for a connection, with its receives posted.
    ///
    /// # Errors
    /// The adapter has no more.
    pub(crate) fn new(
        number: u32,
        adapter: &Adapter,
        connector: Connector,
        receives: Receives,
        events: &Sender<(u32, Event)>,
    ) -> Result<Self, NtStatus> {
        let pd = adapter.create_pd()?;
        let tell = events.clone();
        let cq = adapter.create_cq(4 * QUEUE_DEPTH, move |_| {
            let _ = tell.send((number, Event::Completions));
        })?;
        let limits = QpLimits {
            receive_queue_depth: QUEUE_DEPTH,
            initiator_queue_depth: QUEUE_DEPTH,
            inline_data_size: INLINE_BYTES,
            ..QpLimits::default()
        };
        let qp = pd.create_qp(&cq, &cq, 0, limits)?;
        let memory = Memory::new(adapter, &pd)?;
        let fast = pd.create_mr(true)?;
        fast.initialize_fast_register(1, true)?;
        let session = Self {
            report: Report { number, ..Report::default() },
            connector,
            pd,
            cq,
            qp,
            fast,
            memory,
            receives,
            reading: 0,
            events: events.clone(),
            is_closed: false,
        };
        for slot in 0..receives.count {
            session.post_receive(slot.into())?;
        }
        session.cq.arm(CqNotify::Any);
        Ok(session)
    }

    fn tells<T>(&self, event: fn(T) -> Event) -> impl FnOnce(T) + Send + use<T> {
        let (events, number) = (self.events.clone(), self.report.number);
        move |value| {
            let _ = events.send((number, event(value)));
        }
    }

    /// Accepts, with what the peer is told of the memory in the Reply.
    pub(crate) fn accept(&mut self, foreign: (u32, u64)) {
        let mut said = self.report.number.to_be_bytes().to_vec();
        for (token, address) in self.memory.adverts().into_iter().chain([foreign]) {
            said.extend_from_slice(&token.to_be_bytes());
            said.extend_from_slice(&address.to_be_bytes());
        }
        let ended = Box::new(self.tells(Event::Ended));
        let status =
            self.connector.accept(&self.qp, LIMITS, &said, Some(ended), self.tells(Event::Opened));
        if status != NtStatus::PENDING {
            self.opened(status);
        }
    }

    /// Connects.
    pub(crate) fn connect(&mut self, remote: SocketAddr) {
        let done = self.tells(Event::Answered);
        let status = self.connector.connect(&self.qp, None, remote, LIMITS, b"", done);
        if status != NtStatus::PENDING {
            self.opened(status);
        }
    }

    /// The peer has answered the connect.
    pub(crate) fn answered(&mut self, status: NtStatus) {
        if status != NtStatus::SUCCESS {
            return self.opened(status);
        }
        let ended = Box::new(self.tells(Event::Ended));
        let status = self.connector.complete_connect(Some(ended), self.tells(Event::Opened));
        if status != NtStatus::PENDING {
            self.opened(status);
        }
    }

    /// Accept or connect is done.
    pub(crate) fn opened(&mut self, status: NtStatus) {
        self.report.opened = Some(name(status));
        if status != NtStatus::SUCCESS {
            self.close();
        }
    }

    /// The connection is over.
    pub(crate) fn ended(&mut self, reason: u32) {
        self.completions();
        self.report.ended = Some(reason);
        // Behind an orderly end of the peer's this side ends in order too.
        if reason == 0 {
            let status = self.connector.disconnect(self.tells(|_: NtStatus| Event::Closed));
            if status == NtStatus::PENDING {
                return;
            }
        }
        self.close();
    }

    /// The disconnect is done.
    pub(crate) fn closed(&mut self) {
        self.completions();
        self.report.ended.get_or_insert(0);
        self.close();
    }

    /// The report as it stands.
    pub(crate) fn report(&self) -> Report {
        Report { changes: self.memory.changes(), ..self.report.clone() }
    }

    /// Whether nothing will change any more.
    pub(crate) fn is_over(&self) -> bool {
        self.is_closed
    }

    fn close(&mut self) {
        if core::mem::replace(&mut self.is_closed, true) {
            return;
        }
        let _ = self.connector.close(|| {});
        let _ = self.qp.close(|| {});
        let _ = self.cq.close(|| {});
        let _ = self.fast.close(|| {});
        self.memory.close();
        let _ = self.pd.close(|| {});
    }

    fn post_receive(&self, slot: usize) -> Result<(), NtStatus> {
        let sge = self.memory.receive(slot, self.receives.bytes.into());
        let sges = [sge];
        // A receive of no bytes has no entry.
        let sges = if sge.length == 0 { &sges[..0] } else { &sges[..] };
        self.qp.receive(slot as u64, sges)
    }

    /// Sends `octets`. On a connection that ends meanwhile it is refused, and the end is told.
    fn answer(&self, octets: &[u8]) {
        let _ = self.qp.send(ANSWER, Data::Inline(&[octets]), OpFlags::empty());
    }

    /// Answers what only the server knows.
    pub(crate) fn answer_with(&self, kind: u8, octets: &[u8]) {
        self.answer(&[&[kind], octets].concat());
    }

    /// Takes all completions; returns what the server has to see to.
    pub(crate) fn completions(&mut self) -> Vec<ServerRequest> {
        let mut wishes = Vec::new();
        let mut results = [NdkResultEx::default(); 16];
        loop {
            let count = self.cq.poll_ex(&mut results);
            if count == 0 {
                break;
            }
            for result in &results[..count] {
                wishes.extend(self.completion(result));
            }
        }
        if !self.is_closed {
            self.cq.arm(CqNotify::Any);
        }
        wishes
    }

    fn completion(&mut self, result: &NdkResultEx) -> Option<ServerRequest> {
        let (status, context) = (result.status, result.request_context);
        let is_receive = matches!(
            result.operation,
            OperationType::Receive | OperationType::ReceiveAndInvalidate
        );
        if !is_receive {
            self.report.completed(context, name(status));
            if status == NtStatus::SUCCESS && context == READ {
                self.answer_with(b'R', &self.memory.sink_octets(self.reading.min(512)));
            }
            return None;
        }
        let bytes = result.bytes_transferred;
        self.report.received(name(status), bytes);
        if status != NtStatus::SUCCESS {
            return None;
        }
        let slot = context as usize;
        let octets = self.memory.received(slot, bytes as usize);
        if self.receives.again {
            // Refused only when the connection has ended.
            let _ = self.post_receive(slot);
        }
        self.obey(&octets)
    }

    fn obey(&mut self, octets: &[u8]) -> Option<ServerRequest> {
        let none = OpFlags::empty();
        match Command::decode(octets) {
            Command::None => {}
            Command::Echo => self.answer(octets),
            Command::Report(number) => return Some(ServerRequest::Report(number)),
            Command::Connect(remote) => return Some(ServerRequest::Connect(remote)),
            Command::Deregister(page) => {
                let mr = self.memory.regions.get(usize::from(page))?;
                let status = mr.deregister({
                    let tell = self.tells(|()| Event::Deregistered);
                    move || tell(())
                });
                if status != NtStatus::PENDING {
                    self.deregistered();
                }
            }
            Command::FastRegister => self.fast_register(),
            Command::Read(remote) => {
                self.reading = remote.bytes as usize;
                let sge = [self.memory.sink(remote.bytes)];
                let sges: &[Sge] = if remote.bytes == 0 { &[] } else { &sge };
                let _ = self.qp.read(READ, sges, remote.to, remote.stag, none);
            }
            Command::Write(remote) => {
                let sge = [self.memory.source(remote.bytes)];
                let data = Data::Registered(if remote.bytes == 0 { &[] } else { &sge });
                let _ = self.qp.write(WRITE, data, remote.to, remote.stag, none);
                self.answer(b"W");
            }
            Command::Big(bytes) => {
                self.answer(b"B");
                let whole = [self.memory.source(PAGE as u32); 4];
                let entries = (bytes as usize / PAGE).min(4);
                let _ = self.qp.send(ANSWER, Data::Registered(&whole[..entries]), none);
            }
            Command::Invalidate(stag) => {
                self.answer(b"V");
                let data = Data::Inline(&[b"V"]);
                let flags = OpFlags::SEND_AND_SOLICIT_EVENT;
                let _ = self.qp.send_and_invalidate(ANSWER, data, stag, flags);
            }
            Command::Disconnect => {
                let _ = self.connector.disconnect(self.tells(|_: NtStatus| Event::Closed));
            }
        }
        None
    }

    /// A deregistration is complete.
    pub(crate) fn deregistered(&self) {
        self.answer(b"D");
    }

    fn fast_register(&self) {
        let address = self.memory.address(FAST);
        let rights = OpFlags::ALLOW_REMOTE_READ | OpFlags::ALLOW_REMOTE_WRITE;
        let (buffer, offset) = (&self.memory.buffer, FAST * PAGE);
        let posted =
            self.qp.fast_register(FAST_REGISTER, &self.fast, buffer, offset, PAGE, address, rights);
        if let Ok(token) = posted {
            self.answer(&[b"F", &token.to_be_bytes()[..], &address.to_be_bytes()].concat());
        }
    }
}
