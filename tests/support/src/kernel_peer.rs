//! A kernel TCP socket as the other end of a connection, on threads in a namespace.
//!
//! A [`Plan`] says what the peer sends, how fast it reads and how it ends; [`KernelPeer`] carries
//! it out while the test does something else, and [`KernelPeer::finish`] gives the [`Outcome`].
//! Sending and receiving run at the same time on two threads (unless [`End::AnswerPeer`] is asked
//! for), so neither direction can starve the other.
//!
//! Limits: a socket call that makes no progress for [`STALL_MAX`] ends the peer with its error, so
//! a test fails instead of hanging.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{set_socket_linger, set_socket_recv_buffer_size};

use crate::netns::Namespace;
use crate::stream::{Digest, HashingSink, Stream};

/// How long one socket call may make no progress. A sender that starts with an RTO of 0.2 s has
/// tried eight times by then.
pub const STALL_MAX: Duration = Duration::from_secs(60);

/// Bytes per write and read call.
const CHUNK_BYTES: usize = 256 * 1024;

/// How the peer ends its side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// FIN after the last byte sent; then reads on to the other side's FIN.
    HalfClose,
    /// FIN only after the other side's FIN has been read: the other side half-closes first.
    AfterPeer,
    /// Sends nothing before the other side's FIN has been read; then all of it, and FIN.
    AnswerPeer,
    /// RST at once after the last byte was handed to the socket, unread and unsent data thrown
    /// away (`SO_LINGER` of zero seconds).
    Reset,
}

/// How the peer reads.
#[derive(Debug)]
pub enum Pace {
    /// As fast as it can.
    Free,
    /// One read of at most `bytes`, then a pause: a slow application, whose window closes and
    /// opens.
    Slow {
        /// Most bytes taken by one read.
        bytes: usize,
        /// Time between two reads.
        pause: Duration,
    },
    /// Not at all until something is received on the channel, or its other end is dropped; then
    /// as fast as it can. Its window closes for as long as the test wishes.
    Held(mpsc::Receiver<()>),
}

/// What a kernel peer is to do.
#[derive(Debug)]
pub struct Plan {
    /// Seed of the stream it sends.
    pub seed: u64,
    /// Bytes it sends.
    pub send_bytes: u64,
    /// How it reads.
    pub pace: Pace,
    /// How it ends.
    pub end: End,
    /// Its receive buffer in bytes (`SO_RCVBUF`, which the kernel doubles); `None` leaves it to
    /// the kernel's tuning.
    pub receive_buffer_bytes: Option<usize>,
}

impl Plan {
    /// Sends `bytes` of the stream of `seed`, half-closes, and reads all that comes.
    pub fn send(seed: u64, bytes: u64) -> Self {
        Self {
            seed,
            send_bytes: bytes,
            pace: Pace::Free,
            end: End::HalfClose,
            receive_buffer_bytes: None,
        }
    }

    /// Sends nothing and closes after the other side did.
    pub fn receive() -> Self {
        Self { end: End::AfterPeer, ..Self::send(0, 0) }
    }
}

/// What became of a plan.
#[derive(Debug)]
pub struct Outcome {
    /// What was handed to the socket.
    pub sent: Digest,
    /// What was read from it.
    pub received: Digest,
    /// The error that ended sending, if one did (a reset by the other side, a stall).
    pub send_error: Option<io::Error>,
    /// The error that ended receiving, if one did; `None` is the other side's FIN.
    pub receive_error: Option<io::Error>,
}

impl Outcome {
    /// Asserts that both directions ended in order, and that what came is `expected`.
    ///
    /// # Panics
    ///
    /// Otherwise.
    pub fn assert_received(&self, expected: Digest) {
        let Self { sent: _, received, send_error, receive_error } = self;
        assert!(send_error.is_none(), "sending ended with {send_error:?}");
        assert!(receive_error.is_none(), "receiving ended with {receive_error:?}");
        assert_eq!(*received, expected, "what the kernel read is not what was sent");
    }
}

/// A peer at work.
#[derive(Debug)]
pub struct KernelPeer {
    address: SocketAddr,
    thread: JoinHandle<io::Result<Outcome>>,
}

impl KernelPeer {
    /// Listens at `address` (port 0: the kernel chooses) and serves the first connection.
    ///
    /// # Panics
    ///
    /// When the address cannot be bound.
    pub fn listen(host: &Namespace, address: SocketAddr, plan: Plan) -> Self {
        let listener = host.run(|| TcpListener::bind(address)).expect("the address is free");
        let address = listener.local_addr().expect("a bound socket has an address");
        let thread = host.spawn_thread(move || {
            await_connection(&listener)?;
            let (socket, _) = listener.accept()?;
            drop(listener);
            plan.carry_out(&socket)
        });
        Self { address, thread }
    }

    /// Connects to `address`.
    pub fn connect(host: &Namespace, address: SocketAddr, plan: Plan) -> Self {
        let thread = host.spawn_thread(move || {
            plan.carry_out(&TcpStream::connect_timeout(&address, STALL_MAX)?)
        });
        Self { address, thread }
    }

    /// The listening address, or the one connected to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until the plan is carried out.
    ///
    /// # Panics
    ///
    /// When there was no connection.
    pub fn finish(self) -> Outcome {
        let outcome = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        outcome.unwrap_or_else(|error| panic!("no connection with {}: {error}", self.address))
    }
}

/// `accept` knows no time limit; waiting for the listener to become readable does.
fn await_connection(listener: &TcpListener) -> io::Result<()> {
    let mut ready = [PollFd::new(listener, PollFlags::IN)];
    let limit = Timespec::try_from(STALL_MAX).expect("a minute fits");
    match poll(&mut ready, Some(&limit))? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

impl Plan {
    fn carry_out(self, socket: &TcpStream) -> io::Result<Outcome> {
        let Self { seed, send_bytes, pace, end, receive_buffer_bytes } = self;
        socket.set_read_timeout(Some(STALL_MAX))?;
        socket.set_write_timeout(Some(STALL_MAX))?;
        if let Some(bytes) = receive_buffer_bytes {
            set_socket_recv_buffer_size(socket, bytes)?;
        }
        if end == End::Reset {
            set_socket_linger(socket, Some(Duration::ZERO))?;
            let (sent, send_error) = send(socket, seed, send_bytes);
            let received = HashingSink::default().finish();
            return Ok(Outcome { sent, received, send_error, receive_error: None });
        }
        thread::scope(|scope| {
            let reader = scope.spawn(|| receive(socket, pace));
            let join = |reader: thread::ScopedJoinHandle<'_, _>| {
                reader.join().expect("reading does not panic")
            };
            let close = || socket.shutdown(Shutdown::Write).err();
            let (sent, send_error, (received, receive_error)) = match end {
                End::AnswerPeer => {
                    let read = join(reader);
                    let (sent, error) = send(socket, seed, send_bytes);
                    (sent, error.or_else(close), read)
                }
                End::AfterPeer => {
                    let (sent, error) = send(socket, seed, send_bytes);
                    let read = join(reader);
                    // After a reset there is nothing to close, and the reader has told it.
                    (sent, if read.1.is_none() { error.or_else(close) } else { error }, read)
                }
                End::HalfClose | End::Reset => {
                    let (sent, error) = send(socket, seed, send_bytes);
                    (sent, error.or_else(close), join(reader))
                }
            };
            Ok(Outcome { sent, received, send_error, receive_error })
        })
    }
}

fn send(mut socket: &TcpStream, seed: u64, bytes: u64) -> (Digest, Option<io::Error>) {
    let mut stream = Stream::new(seed);
    let mut summer = HashingSink::default();
    let mut chunk = vec![0; CHUNK_BYTES];
    while summer.bytes() < bytes {
        let left = usize::try_from(bytes - summer.bytes()).unwrap_or(usize::MAX);
        let piece = &mut chunk[..left.min(CHUNK_BYTES)];
        stream.fill(piece);
        if let Err(error) = socket.write_all(piece) {
            return (summer.finish(), Some(error));
        }
        summer.update(piece);
    }
    (summer.finish(), None)
}

fn receive(mut socket: &TcpStream, pace: Pace) -> (Digest, Option<io::Error>) {
    let mut summer = HashingSink::default();
    let mut chunk = vec![0; CHUNK_BYTES];
    let (size, pause) = match pace {
        Pace::Free => (CHUNK_BYTES, None),
        Pace::Slow { bytes, pause } => (bytes.min(CHUNK_BYTES), Some(pause)),
        Pace::Held(release) => {
            // An error means that the test dropped its end: that releases too.
            let _ = release.recv();
            (CHUNK_BYTES, None)
        }
    };
    loop {
        match socket.read(&mut chunk[..size]) {
            Ok(0) => return (summer.finish(), None),
            Ok(bytes) => summer.update(&chunk[..bytes]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (summer.finish(), Some(error)),
        }
        if let Some(pause) = pause {
            // The pause is the behaviour asked for; nothing is synchronised by it.
            thread::sleep(pause);
        }
    }
}
