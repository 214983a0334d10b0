//! All connections of the server, on one thread that receives the events of callbacks.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::mpsc::{Receiver, Sender, channel},
    time::{Duration, Instant},
};

use rdma_over_tcp::ndk::{
    Adapter, AdapterConfig, Connector, Listener, NtStatus, PendingCall, RegisteredBuffer,
};

use crate::{
    command::{Opening, Receives},
    memory::{PAGE, READ_WRITE, change, pattern},
    report::Report,
    session::{Event, ServerRequest, Session},
};

/// Maximum number of connections whose report is kept.
const REPORTS_MAX: usize = 64;
/// Time for which a Request without a response is kept.
const HOLD: Duration = Duration::from_secs(10);

/// The server.
pub struct Server {
    adapter: Adapter,
    events: Sender<(u32, Event)>,
    inbox: Receiver<(u32, Event)>,
    sessions: BTreeMap<u32, Session>,
    /// Requests without a response, and the time of their arrival.
    held: Vec<(Connector, Instant)>,
    numbers: u32,
    holds: u32,
    /// Page that belongs to no connection, and its STag.
    foreign: (RegisteredBuffer, u32),
    _listener: Listener,
}

/// Returns time limits for tests: silence is detected within seconds, and a peer on a busy machine is not mistaken as
/// silent.
#[must_use]
pub fn adapter_config() -> AdapterConfig {
    let (short, long) = (Duration::from_secs(3), Duration::from_secs(5));
    AdapterConfig {
        request_timeout: short,
        reply_timeout: short,
        terminate_timeout: long,
        accept_timeout: long,
        disconnect_timeout: long,
        ..AdapterConfig::default()
    }
}

impl Server {
    /// Listens at `local`.
    ///
    /// # Errors
    /// The adapter or the listener cannot be created.
    pub fn listen(adapter: Adapter, local: SocketAddr) -> Result<Self, NtStatus> {
        let (events, inbox) = channel();
        let tell = events.clone();
        let listener = adapter.create_listener(move |connector| {
            let _ = tell.send((0, Event::Incoming(connector)));
        })?;
        let begun = PendingCall::begin(|done| listener.listen(local, done));
        while begun.status().is_none() {
            std::thread::yield_now();
        }
        if let Some(status) = begun.status().filter(|status| *status != NtStatus::SUCCESS) {
            return Err(status);
        }
        let foreign = adapter.allocate(PAGE)?;
        foreign.write_at(0, &pattern(0));
        let mr = adapter.create_pd()?.create_mr(false)?;
        let [read, write] = READ_WRITE;
        mr.register(&foreign, 0, PAGE, read | write)?;
        Ok(Self {
            adapter,
            events,
            inbox,
            sessions: BTreeMap::new(),
            held: Vec::new(),
            numbers: 0,
            holds: 0,
            foreign: (foreign, mr.remote_token()),
            _listener: listener,
        })
    }

    /// Returns a function that ends [`Server::run`].
    pub fn stopper(&self) -> impl FnOnce() + Send + use<> {
        let events = self.events.clone();
        move || {
            let _ = events.send((0, Event::Quit));
        }
    }

    /// Serves until the stopper is called.
    pub fn run(mut self) {
        while let Ok((number, event)) = self.inbox.recv() {
            if !self.handle(number, event) {
                return;
            }
        }
    }

    fn handle(&mut self, number: u32, event: Event) -> bool {
        match event {
            Event::Quit => return false,
            Event::Incoming(connector) => self.incoming(connector),
            Event::Completions => self.completions(number),
            other => {
                let Some(session) = self.sessions.get_mut(&number) else { return true };
                match other {
                    Event::Answered(status) => session.answered(status),
                    Event::Opened(status) => session.opened(status),
                    Event::Ended(reason) => session.ended(reason),
                    Event::Closed => session.closed(),
                    Event::Deregistered => session.deregistered(),
                    Event::Quit | Event::Incoming(_) | Event::Completions => {}
                }
            }
        }
        true
    }

    fn incoming(&mut self, connector: Connector) {
        self.held.retain(|(connector, since)| {
            let keep = since.elapsed() < HOLD;
            if !keep {
                let _ = connector.close(|| {});
            }
            keep
        });
        let mut octets = [0; 512];
        let (_, length, _) = connector.connection_data(Some(&mut octets));
        match Opening::decode(&octets[..length.min(512)]) {
            Opening::Hold => {
                self.holds += 1;
                self.held.push((connector, Instant::now()));
            }
            Opening::Reject => {
                let _ = connector.reject(b"no");
                let _ = connector.close(|| {});
            }
            Opening::Accept(receives) => {
                let foreign = (self.foreign.1, self.foreign.0.address());
                if let Some(session) = self.session(connector, receives) {
                    session.accept(foreign);
                }
            }
        }
    }

    /// Creates a session; `None`: no resources are available, and the peer is rejected.
    fn session(&mut self, connector: Connector, receives: Receives) -> Option<&mut Session> {
        self.forget();
        self.numbers += 1;
        let number = self.numbers;
        let refused = connector.clone();
        match Session::new(number, &self.adapter, connector, receives, &self.events) {
            Ok(session) => Some(self.sessions.entry(number).or_insert(session)),
            Err(status) => {
                eprintln!("connection {number}: not accepted: {status}");
                let _ = refused.reject(b"full");
                let _ = refused.close(|| {});
                None
            }
        }
    }

    /// Removes the oldest reports of ended connections.
    fn forget(&mut self) {
        while self.sessions.len() >= REPORTS_MAX {
            let over = self.sessions.iter().find(|(_, session)| session.is_over());
            let Some(number) = over.map(|(number, _)| *number) else { return };
            self.sessions.remove(&number);
        }
    }

    fn completions(&mut self, number: u32) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        if session.is_over() {
            return;
        }
        for command in session.completions() {
            let (kind, octets) = match command {
                ServerRequest::Report(of) => (b'Q', self.report(of)),
                ServerRequest::Connect(remote) => (b'O', self.connect(remote)),
            };
            if let Some(session) = self.sessions.get(&number) {
                session.answer_with(kind, &octets);
            }
        }
    }

    fn report(&self, of: u32) -> Vec<u8> {
        let mut report = self.sessions.get(&of).map_or_else(Report::default, Session::report);
        let mut octets = vec![0; PAGE];
        self.foreign.0.read_at(0, &mut octets);
        // The foreign page is reported as one more page of each connection.
        report.changes.extend(change(&octets, 0).map(|it| crate::memory::Change { page: 9, ..it }));
        report.connections = self.adapter.connections().len();
        report.holds = self.holds;
        let mut text = serde_json::to_vec(&report).unwrap_or_default();
        text.truncate(1000);
        text
    }

    fn connect(&mut self, remote: SocketAddr) -> Vec<u8> {
        let Ok(connector) = self.adapter.create_connector() else { return Vec::new() };
        let Some(session) = self.session(connector, Receives::DEFAULT) else { return Vec::new() };
        session.connect(remote);
        session.report.number.to_be_bytes().to_vec()
    }
}
