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

/// Event of a connection.
pub(crate) enum Event {
    /// A Request has arrived on the listener.
    Incoming(Connector),
    /// Connect has completed or failed.
    Answered(NtStatus),
    /// Accept or CompleteConnect has completed or failed.
    Opened(NtStatus),
    /// The connection has ended, with the reason of NDK.
    Ended(u32),
    /// The disconnect has completed.
    Closed,
    /// The completion queue has entries.
    Completions,
    /// A deregistration has completed.
    Deregistered,
    /// The server must stop.
    Quit,
}

/// Limits of reads in each direction.
const LIMITS: ReadLimit = ReadLimit { inbound: 4, outbound: 4 };
const QUEUE_DEPTH: u32 = 64;
const INLINE_BYTES: u32 = 1024;
/// Request contexts, above those of receives.
const ANSWER: u64 = 100;
const READ: u64 = 101;
const WRITE: u64 = 102;
const FAST_REGISTER: u64 = 103;

/// Connection with its objects.
pub(crate) struct Session {
    pub(crate) report: Report,
    connector: Connector,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    fast: rdma_over_tcp::ndk::Mr,
    memory: Memory,
    receives: Receives,
    /// Bytes of the Read in progress.
    reading: usize,
    events: Sender<(u32, Event)>,
    /// True if the objects are closed.
    is_closed: bool,
}

/// Command that needs the server's state.
pub(crate) enum ServerRequest {
    Report(u32),
    Connect(SocketAddr),
}

fn name(status: NtStatus) -> String {
    let text = status.to_string();
    text.split(' ').next().unwrap_or_default().trim_start_matches("STATUS_").to_owned()
}

impl Session {
    /// Creates the objects of a connection, with its receives posted.
    ///
    /// # Errors
    /// Not enough resources in the adapter.
    pub(crate) fn new(
        number: u32,
        adapter: &Adapter,
        connector: Connector,
        receives: Receives,
        events: &Sender<(u32, Event)>,
    ) -> Result<Self, NtStatus> {
        let pd = adapter.create_pd()?;
        let sender = events.clone();
        let cq = adapter.create_cq(4 * QUEUE_DEPTH, move |_| {
            let _ = sender.send((number, Event::Completions));
        })?;
        let limits = QpLimits {
            receive_queue_depth: QUEUE_DEPTH,
            initiator_queue_depth: QUEUE_DEPTH,
            inline_data_size: INLINE_BYTES,
            ..QpLimits::default()
        };
        let qp = pd.create_qp(&cq, &cq, 0, limits)?;
        qp.allow_extensions(receives.extensions)?;
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

    fn event_sender<T>(&self, event: fn(T) -> Event) -> impl FnOnce(T) + Send + use<T> {
        let (events, number) = (self.events.clone(), self.report.number);
        move |value| {
            let _ = events.send((number, event(value)));
        }
    }

    /// Accepts. The Reply advertises the memory to the peer.
    pub(crate) fn accept(&mut self, foreign: (u32, u64)) {
        let mut private_data = self.report.number.to_be_bytes().to_vec();
        for (token, address) in self.memory.adverts().into_iter().chain([foreign]) {
            private_data.extend_from_slice(&token.to_be_bytes());
            private_data.extend_from_slice(&address.to_be_bytes());
        }
        let ended = Box::new(self.event_sender(Event::Ended));
        let status = self.connector.accept(
            &self.qp,
            LIMITS,
            &private_data,
            Some(ended),
            self.event_sender(Event::Opened),
        );
        if status != NtStatus::PENDING {
            self.opened(status);
        }
    }

    /// Connects to `remote`.
    pub(crate) fn connect(&mut self, remote: SocketAddr) {
        let done = self.event_sender(Event::Answered);
        let status = self.connector.connect(&self.qp, None, remote, LIMITS, b"", done);
        if status != NtStatus::PENDING {
            self.opened(status);
        }
    }

    /// Handles the result of Connect.
    pub(crate) fn answered(&mut self, status: NtStatus) {
        if status != NtStatus::SUCCESS {
            return self.opened(status);
        }
        let ended = Box::new(self.event_sender(Event::Ended));
        let status = self.connector.complete_connect(Some(ended), self.event_sender(Event::Opened));
        if status != NtStatus::PENDING {
            self.opened(status);
        }
    }

    /// Handles the result of Accept, Connect or CompleteConnect.
    pub(crate) fn opened(&mut self, status: NtStatus) {
        self.report.opened = Some(name(status));
        if status != NtStatus::SUCCESS {
            self.close();
        }
    }

    /// Handles the end of the connection.
    pub(crate) fn ended(&mut self, reason: u32) {
        self.completions();
        self.report.ended = Some(reason);
        // After an orderly end by the peer, this side closes normally too.
        if reason == 0 {
            let status = self.connector.disconnect(self.event_sender(|_: NtStatus| Event::Closed));
            if status == NtStatus::PENDING {
                return;
            }
        }
        self.close();
    }

    /// Handles the completion of the disconnect.
    pub(crate) fn closed(&mut self) {
        self.completions();
        self.report.ended.get_or_insert(0);
        self.close();
    }

    /// Returns the current report.
    pub(crate) fn report(&self) -> Report {
        Report { changes: self.memory.changes(), ..self.report.clone() }
    }

    /// Returns true if the report is final.
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

    /// Sends `octets`. If the connection is ending, the send fails; the end is reported by an event.
    fn answer(&self, octets: &[u8]) {
        let _ = self.qp.send(ANSWER, Data::Inline(&[octets]), OpFlags::empty());
    }

    /// Replies with data of the server.
    pub(crate) fn answer_with(&self, kind: u8, octets: &[u8]) {
        self.answer(&[&[kind], octets].concat());
    }

    /// Polls all completions. Returns the commands for the server.
    pub(crate) fn completions(&mut self) -> Vec<ServerRequest> {
        let mut commands = Vec::new();
        let mut results = [NdkResultEx::default(); 16];
        loop {
            let count = self.cq.poll_ex(&mut results);
            if count == 0 {
                break;
            }
            for result in &results[..count] {
                commands.extend(self.completion(result));
            }
        }
        if !self.is_closed {
            self.cq.arm(CqNotify::Any);
        }
        commands
    }

    fn completion(&mut self, result: &NdkResultEx) -> Option<ServerRequest> {
        let (status, context) = (result.status, result.request_context);
        let is_receive = matches!(
            result.operation,
            OperationType::Receive
                | OperationType::ReceiveAndInvalidate
                | OperationType::ReceiveImmediate
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
            // Fails only if the connection has ended.
            let _ = self.post_receive(slot);
        }
        self.execute(&octets)
    }

    fn execute(&mut self, octets: &[u8]) -> Option<ServerRequest> {
        let none = OpFlags::empty();
        match Command::decode(octets) {
            Command::None => {}
            Command::Echo => self.answer(octets),
            Command::Report(number) => return Some(ServerRequest::Report(number)),
            Command::Connect(remote) => return Some(ServerRequest::Connect(remote)),
            Command::Deregister(page) => {
                let mr = self.memory.regions.get(usize::from(page))?;
                let status = mr.deregister({
                    let send = self.event_sender(|()| Event::Deregistered);
                    move || send(())
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
                let _ = self.connector.disconnect(self.event_sender(|_: NtStatus| Event::Closed));
            }
        }
        None
    }

    /// Handles a completed deregistration.
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
