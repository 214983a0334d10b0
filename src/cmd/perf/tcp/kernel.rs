//! Kernel sockets.
//!
//! Blocking mode waits in poll(2) after EAGAIN. Requests and responses, and a one-way stream on one connection, block
//! in the call itself, as a simple program does. Nagle's algorithm is disabled.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use rdma_over_tcp::ndk::NtStatus;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::{Bulk, Stack};
use crate::{
    cmd::perf::{Plan, Waiting, phase::ANSWER_LIMIT},
    failure::Failure,
    station::Station,
};

/// Largest read, bytes.
const READ_BYTES: usize = 1 << 20;
/// Bytes moved by blocking calls before the other connections are polled.
const CALL_BYTES: usize = 1 << 20;
/// Time limit of a blocking call. The message that ends a phase may follow the last bytes on another connection.
const CALL_MAX: Duration = Duration::from_millis(4);
/// Reads or writes on one connection before the next one is served.
const TURN_CALLS: usize = 16;
/// Turns before control returns to the caller, which reads the clock.
const TURNS_PER_CALL: usize = 16;
/// Longest wait between reads of clock and signals.
const WAIT_MAX: Duration = Duration::from_millis(200);

/// Stack of kernel sockets.
pub(super) struct Kernel {
    listener: Option<TcpListener>,
    waiting: Waiting,
    /// The received signal; 0: none.
    signal: Arc<AtomicUsize>,
    station: Station,
    received: Vec<u8>,
    message: Vec<u8>,
}

/// Connected socket.
pub(super) struct Socket {
    stream: TcpStream,
    /// Time limit of blocking calls; `None` if the socket is nonblocking.
    blocks: Option<Duration>,
    /// Bytes of the current message that are not yet sent.
    left: usize,
}

fn failed(what: &str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::work(format!("kernel TCP: {what}: {error}"))
}

fn is_not_ready(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

impl Kernel {
    pub(super) fn new(plan: &Plan) -> Result<Self, Failure> {
        let received = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let number = signal as usize;
            signal_hook::flag::register_usize(signal, received.clone(), number)
                .map_err(failed("signals"))?;
        }
        Ok(Self {
            listener: None,
            waiting: plan.waiting,
            signal: received,
            station: Station::new(None, plan.connect_limit),
            received: vec![0; READ_BYTES],
            message: Vec::new(),
        })
    }

    fn socket(stream: TcpStream) -> io::Result<Socket> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Socket { stream, blocks: None, left: 0 })
    }

    /// Waits until one of the sockets is ready, at most `limit`.
    fn wait(&self, sockets: &mut [PollFd<'_>], limit: Duration) -> Result<(), Failure> {
        let limit = Timespec::try_from(limit).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        match poll(sockets, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => self.interrupted(),
            Err(error) => Err(failed("poll")(error.into())),
        }
    }

    /// Waits for one socket as configured.
    fn await_one(
        &self,
        socket: &Socket,
        flags: PollFlags,
        until: Instant,
        polls: &mut u32,
    ) -> Result<(), Failure> {
        *polls = polls.wrapping_add(1);
        if self.waiting == Waiting::Spin && !polls.is_multiple_of(1024) {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(Failure::work("kernel TCP: no data from the peer within the time limit"));
        }
        match self.waiting {
            Waiting::Spin => self.interrupted(),
            Waiting::Block => self.wait(&mut [PollFd::new(&socket.stream, flags)], WAIT_MAX),
        }
    }

    /// Sets the socket to blocking calls with a time limit, or to nonblocking.
    fn set_blocking(&self, socket: &mut Socket, limit: Option<Duration>) -> Result<(), Failure> {
        if socket.blocks != limit {
            socket.stream.set_nonblocking(limit.is_none()).map_err(failed("fcntl"))?;
            if limit.is_some() {
                socket.stream.set_read_timeout(limit).map_err(failed("SO_RCVTIMEO"))?;
                socket.stream.set_write_timeout(limit).map_err(failed("SO_SNDTIMEO"))?;
            }
            socket.blocks = limit;
        }
        Ok(())
    }
}

impl Stack for Kernel {
    type Conn = Socket;

    fn station(&self) -> &Station {
        &self.station
    }

    fn listen(&mut self, port: u16) -> Result<SocketAddr, Failure> {
        // Dual stack if the kernel has IPv6.
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
            .map_err(|error| match error.kind() {
                ErrorKind::AddrInUse => self
                    .station
                    .status(&format!("listen on port {port}"), NtStatus::SHARING_VIOLATION),
                _ => failed(&format!("listen on port {port}"))(error),
            })?;
        listener.set_nonblocking(true).map_err(failed("fcntl"))?;
        let local = listener.local_addr().map_err(failed("getsockname"))?;
        self.listener = Some(listener);
        Ok(local)
    }

    fn accept(&mut self, limit: Option<Duration>) -> Result<Option<Socket>, Failure> {
        let Some(listener) = &self.listener else { return Ok(None) };
        let until = limit.map(|limit| Instant::now() + limit);
        loop {
            match listener.accept() {
                Ok((stream, _)) => return Self::socket(stream).map(Some).map_err(failed("accept")),
                Err(error)
                    if is_not_ready(&error) || error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(failed("accept")(error)),
            }
            if until.is_some_and(|until| until <= Instant::now()) {
                return Ok(None);
            }
            self.wait(&mut [PollFd::new(listener, PollFlags::IN)], WAIT_MAX)?;
        }
    }

    fn connect(&mut self, remote: SocketAddr) -> Result<Socket, Failure> {
        let limit = self.station.limit();
        TcpStream::connect_timeout(&remote, limit).and_then(Self::socket).map_err(|error| {
            let seconds = limit.as_secs_f64();
            let why = match error.kind() {
                ErrorKind::TimedOut => format!("no reply to SYN in {seconds} s"),
                ErrorKind::ConnectionRefused => "connection refused".into(),
                _ => error.to_string(),
            };
            Failure::work(format!("connect to {remote}: {why}"))
        })
    }

    fn addresses(&self, conn: &Socket) -> (Option<SocketAddr>, Option<SocketAddr>) {
        (conn.stream.local_addr().ok(), conn.stream.peer_addr().ok())
    }

    fn is_offloaded(&self, _: &Socket) -> bool {
        false
    }

    fn write(&mut self, conn: &mut Socket, data: &[u8]) -> Result<(), Failure> {
        let (mut rest, mut polls, until) = (data, 0, Instant::now() + ANSWER_LIMIT);
        while !rest.is_empty() {
            match conn.stream.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if is_not_ready(&error) => {
                    self.await_one(conn, PollFlags::OUT, until, &mut polls)?;
                }
                Err(error) => return Err(failed("write")(error)),
            }
        }
        Ok(())
    }

    fn read(
        &mut self,
        conn: &mut Socket,
        buffer: &mut [u8],
        limit: Duration,
    ) -> Result<(), Failure> {
        self.set_blocking(conn, (self.waiting == Waiting::Block).then_some(WAIT_MAX))?;
        let (mut filled, mut polls, until) = (0, 0, None);
        let mut until: Option<Instant> = until;
        while filled < buffer.len() {
            match conn.stream.read(&mut buffer[filled..]) {
                Ok(0) => {
                    return Err(Failure::work("kernel TCP: connection closed by the peer"));
                }
                Ok(count) => filled += count,
                Err(error) if is_not_ready(&error) => {
                    // The clock is read only if no data is available.
                    let until = *until.get_or_insert_with(|| Instant::now() + limit);
                    self.await_one(conn, PollFlags::IN, until, &mut polls)?;
                }
                Err(error) => return Err(failed("read")(error)),
            }
        }
        Ok(())
    }

    fn is_readable(&mut self, conn: &mut Socket) -> bool {
        if self.set_blocking(conn, None).is_err() {
            return true;
        }
        // A subsequent read returns the error.
        !matches!(conn.stream.peek(&mut [0]), Err(error) if is_not_ready(&error))
    }

    fn bulk(
        &mut self,
        data: &mut [Socket],
        control: &mut Socket,
        bulk: &mut Bulk,
    ) -> Result<(), Failure> {
        self.message.resize(bulk.size_bytes, 0x5a);
        self.set_blocking(control, None)?;
        // One blocking call, which sleeps in the kernel, as in a program with nothing else to do.
        let is_over = bulk.sends && bulk.budget.is_over() && bulk.is_flushed;
        if let [socket] = &mut *data
            && self.waiting == Waiting::Block
            && bulk.sends != bulk.receives
            && !is_over
        {
            self.set_blocking(socket, Some(CALL_MAX))?;
            bulk.is_flushed = true;
            let calls = (CALL_BYTES / bulk.size_bytes).clamp(1, TURN_CALLS);
            return match bulk.sends {
                true => send(socket, &self.message, bulk, calls).map(drop),
                false => receive(socket, &mut self.received, bulk, 1).map(drop),
            };
        }
        for socket in data.iter_mut() {
            self.set_blocking(socket, None)?;
        }
        for turn in 0..TURNS_PER_CALL {
            let mut moved = false;
            bulk.is_flushed = true;
            for socket in data.iter_mut() {
                if bulk.sends {
                    moved |= send(socket, &self.message, bulk, TURN_CALLS)?;
                }
                if bulk.receives {
                    moved |= receive(socket, &mut self.received, bulk, TURN_CALLS)?;
                }
            }
            if !moved {
                // Wait only without progress: the data just moved may complete the phase.
                if turn == 0 && self.waiting == Waiting::Block {
                    let wants_out = bulk.sends && !(bulk.budget.is_over() && bulk.is_flushed);
                    let mut flags = PollFlags::empty();
                    flags.set(PollFlags::OUT, wants_out);
                    flags.set(PollFlags::IN, bulk.receives);
                    let sockets = data.iter().map(|socket| PollFd::new(&socket.stream, flags));
                    let control = PollFd::new(&control.stream, PollFlags::IN);
                    let mut sockets: Vec<_> = sockets.chain([control]).collect();
                    self.wait(&mut sockets, WAIT_MAX)?;
                }
                return Ok(());
            }
        }
        Ok(())
    }

    fn await_end(&mut self, conn: &mut Socket, limit: Duration) -> Result<(), Failure> {
        let (mut polls, until) = (0, Instant::now() + limit);
        loop {
            match conn.stream.read(&mut self.received) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
                Err(error) if is_not_ready(&error) => {
                    self.await_one(conn, PollFlags::IN, until, &mut polls)?;
                }
                Err(error) => return Err(failed("read")(error)),
            }
        }
    }

    fn close(&mut self, mut conn: Socket, limit: Duration) -> Result<(), Failure> {
        // A connection that the peer has reset cannot be shut down.
        let _ = conn.stream.shutdown(std::net::Shutdown::Write);
        self.await_end(&mut conn, limit)
    }

    fn interrupted(&self) -> Result<(), Failure> {
        match self.signal.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Failure::interrupted(signal as i32)),
        }
    }
}

/// Writes messages until the socket buffer is full, or the turn is over.
fn send(
    socket: &mut Socket,
    message: &[u8],
    bulk: &mut Bulk,
    calls: usize,
) -> Result<bool, Failure> {
    let mut moved = false;
    for _ in 0..calls {
        if socket.left == 0 {
            if bulk.budget.is_over() {
                return Ok(moved);
            }
            bulk.budget.left -= 1;
            bulk.sent += 1;
            socket.left = message.len();
        }
        match socket.stream.write(&message[message.len() - socket.left..]) {
            Ok(count) => {
                socket.left -= count;
                moved = true;
            }
            Err(error) if is_not_ready(&error) => break,
            Err(error) => return Err(failed("write")(error)),
        }
    }
    bulk.is_flushed &= socket.left == 0;
    Ok(moved)
}

/// Reads until the socket is empty, or the turn is over.
fn receive(
    socket: &mut Socket,
    buffer: &mut [u8],
    bulk: &mut Bulk,
    calls: usize,
) -> Result<bool, Failure> {
    let mut moved = false;
    for _ in 0..calls {
        match socket.stream.read(buffer) {
            Ok(0) => return Err(Failure::work("kernel TCP: connection closed by the peer")),
            Ok(count) => {
                bulk.received_bytes += count as u64;
                moved = true;
                // A short read: the socket is empty.
                if count < buffer.len() {
                    break;
                }
            }
            Err(error) if is_not_ready(&error) => break,
            Err(error) => return Err(failed("read")(error)),
        }
    }
    Ok(moved)
}
