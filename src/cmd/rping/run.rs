//! Execution of the steps on a queue pair: one connection, one receive, one memory range per purpose.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    time::{Duration, Instant},
};

use rdma_over_tcp::ndk::{
    AdapterConfig, Cq, CrcRequest, Data, DisconnectReason, FpduSize, MrFlags, NdkResultEx,
    NtStatus, OpFlags, Qp, QpLimits, ReadLimit, RegisteredBuffer, Sge,
    blocking::{Connection, Incoming},
};

use super::{
    Role, RpingArgs, pattern,
    steps::{Client, Server, StepError, Work},
    wire::{ADVERT_BYTES, Advert},
};
use crate::{
    adapter::{self, OpenAdapter, Waiter},
    failure::Failure,
    options::Rtr,
    report::Console,
    station::Station,
};

/// Depth of the completion queue: far more than one rping connection uses.
const CQ_DEPTH: u32 = 64;
/// rping requests one Read in each direction.
const LIMITS: ReadLimit = ReadLimit { inbound: 1, outbound: 1 };

/// Offsets in the buffer.
const RECEIVE_AT: usize = 0;
const DATA_AT: usize = 64;

/// Request contexts.
const RECEIVE: u64 = 1;
const SEND: u64 = 2;
const READ: u64 = 3;
const WRITE: u64 = 4;

/// Failure of a server whose client has an IRD of 0.
const NO_READS: &str = "RDMA Read: the peer's IRD is 0, expected at least 1: raise it";

enum Side {
    Client(Client),
    Server(Server),
}

/// Runs `flue rping`.
///
/// # Errors
/// The node or the connection could not be opened, the peer violated the protocol, or data differs.
pub(super) fn run(args: &RpingArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let role = args.role()?;
    let options = adapter::resolve(&args.node, args.queues, args.transport.transport, args.mpa)?;
    adapter::show(&options, console);
    let config = AdapterConfig {
        fpdu_size: FpduSize::Emss,
        connect_timeout: args.connect.limit(),
        crc: CrcRequest::Auto,
        ..AdapterConfig::default()
    };
    // The connection uses the first queue.
    let opened = OpenAdapter::open(&options, config, args.sandbox, console)?;
    opened.interruptible(|waiter| {
        let mut run = Run::new(args, waiter, &opened)?;
        let ended = match role {
            Role::Client(remote, count) => run.client(remote, count, console),
            Role::Server(local) => run.server(local, console),
        };
        if run.started.is_some() {
            run.print_summary(console);
        }
        // The peer closes without error only after its FIN is acknowledged.
        opened.linger();
        ended
    })
}

fn checked<T>(what: &str, result: Result<T, NtStatus>) -> Result<T, Failure> {
    result.map_err(|status| Station::default().status(what, status))
}

impl From<StepError> for Failure {
    fn from(error: StepError) -> Self {
        Self::work(error.to_string())
    }
}

/// State of one run: the objects of one connection.
struct Run<'a> {
    args: &'a RpingArgs,
    waiter: Waiter<'a>,
    station: &'a Station,
    cq: Cq,
    qp: Qp,
    buffer: RegisteredBuffer,
    token: u32,
    work: VecDeque<Work>,
    peer: Option<SocketAddr>,
    pings: u32,
    started: Option<Instant>,
    elapsed: Duration,
}

impl<'a> Run<'a> {
    fn new(
        args: &'a RpingArgs,
        waiter: Waiter<'a>,
        OpenAdapter { adapter, station, .. }: &'a OpenAdapter,
    ) -> Result<Self, Failure> {
        let wake = waiter.waker.clone();
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
            waiter,
            station,
            cq,
            qp,
            token: mr.local_token(),
            buffer,
            work: VecDeque::new(),
            peer: None,
            pings: 0,
            started: None,
            elapsed: Duration::ZERO,
        })
    }

    fn span(&self, offset: usize, length: usize) -> Sge {
        let address = self.buffer.address() + offset as u64;
        Sge { address, length: length as u32, token: self.token }
    }

    /// Returns the memory that the peer reads (0) or writes (1).
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

    fn post_receive(&self) -> Result<(), Failure> {
        let sge = self.span(RECEIVE_AT, ADVERT_BYTES);
        checked("post a receive", self.qp.receive(RECEIVE, &[sge]))
    }

    fn client(
        &mut self,
        remote: SocketAddr,
        count: Option<u32>,
        console: &mut Console<'_>,
    ) -> Result<(), Failure> {
        self.post_receive()?;
        self.station.connecting(remote, console);
        let connected = Connection::connect(&mut self.waiter, &self.qp, remote, LIMITS, &[]);
        let connection = connected?;
        self.established(&connection, console);
        let mut client = Client::new(count, self.advert(1));
        let first = client.connected();
        self.work.push_back(first);
        self.converse(&connection, &mut Side::Client(client), console)
    }

    fn server(&mut self, local: SocketAddr, console: &mut Console<'_>) -> Result<(), Failure> {
        let mut incoming = Incoming::listen(&mut self.waiter, local, 1)?;
        let local = incoming.listener().local_address().unwrap_or(local);
        console.remark(format_args!("listening: {}", self.station.shown(local)));
        let connector = incoming.next(&mut self.waiter)?;
        // Only one connection is served; further ones are refused, as by rdma-core's rping.
        incoming.listener().control_connect_events(true);
        if self.args.mpa.accept.rtr == Some(Rtr::Send) {
            // The client's ready-to-receive message consumes one receive.
            self.post_receive()?;
        }
        self.post_receive()?;
        let connection = Connection::accept(&mut self.waiter, connector, &self.qp, LIMITS, &[])?;
        self.established(&connection, console);
        self.converse(&connection, &mut Side::Server(Server::new(self.args.size)), console)
    }

    fn established(&mut self, connection: &Connection, console: &mut Console<'_>) {
        let connector = connection.connector();
        self.peer = connector.peer_address();
        self.started = Some(Instant::now());
        if let (Some(local), Some(peer)) = (connector.local_address(), self.peer) {
            console.remark(format_args!("connected: {local} to {peer}"));
        }
    }

    /// Executes work and handles completions until the connection has ended regularly.
    fn converse(
        &mut self,
        connection: &Connection,
        side: &mut Side,
        console: &mut Console<'_>,
    ) -> Result<(), Failure> {
        let ended = self.steps(connection, side, console);
        if let Some(started) = self.started {
            self.elapsed = started.elapsed();
        }
        ended
    }

    fn steps(
        &mut self,
        connection: &Connection,
        side: &mut Side,
        console: &mut Console<'_>,
    ) -> Result<(), Failure> {
        loop {
            console.check()?;
            while let Some(work) = self.work.pop_front() {
                if work == Work::Disconnect {
                    self.count(side);
                    return connection.disconnect(&mut self.waiter);
                }
                if let Err(failure) = self.perform(side, work, console) {
                    // A post fails after the connection has ended.
                    return match connection.disconnection().reason() {
                        Some(_) => self.peer_ended(connection, side),
                        None => Err(failure),
                    };
                }
            }
            let mut results = [NdkResultEx::default()];
            if connection.poll(&mut self.waiter, &self.cq, &mut results)? == 0 {
                return self.peer_ended(connection, side);
            }
            let [result] = results;
            self.take(side, &result)?;
            self.count(side);
        }
    }

    fn perform(
        &mut self,
        side: &mut Side,
        work: Work,
        console: &mut Console<'_>,
    ) -> Result<(), Failure> {
        let none = OpFlags::empty();
        match work {
            Work::Receive => self.post_receive(),
            Work::Send(advert) => {
                let octets = advert.encode();
                checked("post a Send", self.qp.send(SEND, Data::Inline(&[&octets]), none))
            }
            Work::Read(from) => {
                let sge = self.span(DATA_AT, from.size as usize);
                let read = self.qp.read(READ, &[sge], from.address, from.token, none);
                // This status has one cause: the ORD is zero.
                if read == Err(NtStatus::INVALID_DEVICE_REQUEST) {
                    return Err(Failure::work(NO_READS));
                }
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
                if let Side::Server(server) = side {
                    self.validate(server.completed(), "client's data", &data)?;
                }
                if self.args.show {
                    console.print(format_args!("server ping data: {}", printable(&data[..text])));
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
        if let Some(at) = pattern::first_difference(&sent, &received) {
            return Err(Failure::work(format!(
                "rping: ping {number}: octet {at}: received {:#04x}, expected {:#04x}",
                received[at], sent[at]
            ))
            .with_hint("the peer must be a server of rping: flue rping -s, or rping -s"));
        }
        self.validate(number, "sent data", &sent)?;
        if self.args.show {
            let text = pattern::text_len(&received);
            console.print(format_args!("ping data: {}", printable(&received[..text])));
        }
        // The sink is cleared, so that stale data cannot match in the next comparison.
        self.buffer.write_at(DATA_AT + size, &vec![0; size]);
        Ok(())
    }

    /// With `--validate`, compares data with the text of a ping.
    fn validate(&self, number: u32, what: &str, data: &[u8]) -> Result<(), Failure> {
        if !self.args.validate {
            return Ok(());
        }
        let mut text = vec![0; data.len()];
        pattern::fill(&mut text, number);
        pattern::first_difference(&text, data).map_or(Ok(()), |at| {
            Err(Failure::work(format!(
                "rping: ping {number}: {what}: octet {at}: {:#04x}, expected {:#04x}",
                data[at], text[at]
            )))
        })
    }

    fn take(&mut self, side: &mut Side, result: &NdkResultEx) -> Result<(), Failure> {
        let what = match result.request_context {
            RECEIVE => "receive",
            SEND => "Send",
            READ => "RDMA Read",
            _ => "RDMA Write",
        };
        if result.status == NtStatus::CANCELLED {
            // Flushed: the disconnect event has the reason.
            return Ok(());
        }
        if result.status != NtStatus::SUCCESS {
            let Err(failure) = checked(what, Err::<(), _>(result.status)) else { return Ok(()) };
            return Err(match result.error() {
                Some(error) => Failure::work(format!("{}: {error}", failure.message)),
                None => failure,
            });
        }
        match (result.request_context, side) {
            (RECEIVE, Side::Server(_)) if self.is_rtr(result) => {}
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

    /// Returns true if this is the ready-to-receive message, if it is a Send.
    fn is_rtr(&self, result: &NdkResultEx) -> bool {
        result.bytes_transferred == 0
            && self.pings == 0
            && self.args.mpa.accept.rtr == Some(Rtr::Send)
    }

    fn count(&mut self, side: &Side) {
        self.pings = match side {
            Side::Client(client) => client.completed(),
            Side::Server(server) => server.completed(),
        };
    }

    /// Handles the peer's disconnect: between two pings it is a server's regular end.
    fn peer_ended(&mut self, connection: &Connection, side: &Side) -> Result<(), Failure> {
        let ended = connection.disconnection().reason();
        let regular = match side {
            Side::Server(server) => server.may_end() && ended == Some(0),
            Side::Client(_) => false,
        };
        if regular {
            self.count(side);
            return connection.disconnect(&mut self.waiter);
        }
        let reason = DisconnectReason(ended.unwrap_or(0));
        Err(Failure::work(format!("rping: connection closed within a ping: {reason}")))
    }

    fn print_summary(&self, console: &mut Console<'_>) {
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
}

/// Returns the text without its NUL, with nonprintable bytes escaped.
fn printable(data: &[u8]) -> String {
    let text = data.strip_suffix(&[0]).unwrap_or(data);
    text.escape_ascii().to_string().replace("\\\\", "\\")
}
