//! Kernel TCP socket as the other end of a connection, on threads in a namespace.
//!
//! A [`Plan`] defines the data that the peer sends, its reading rate and its close. [`KernelPeer`] executes the
//! plan on its threads, and [`KernelPeer::finish`] returns the [`Outcome`]. Two threads send and receive
//! concurrently (except with [`End::AnswerPeer`]), so neither direction can starve the other.
//!
//! Limits: a socket call that makes no progress for [`STALL_MAX`] ends the peer with its error, so a test fails
//! instead of hanging.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{set_socket_linger, set_socket_recv_buffer_size};

use crate::netns::Namespace;
use crate::stream::{Digest, HashingSink, Stream};

/// Time limit for progress of one socket call. A sender with an initial RTO of 0.2 s has retransmitted eight
/// times by then.
pub const STALL_MAX: Duration = Duration::from_secs(60);

/// Bytes per write and read call.
const CHUNK_BYTES: usize = 256 * 1024;

/// Close mode of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// FIN after the last byte sent; then reads until the other side's FIN.
    HalfClose,
    /// FIN only after the other side's FIN was read: the other side half-closes first.
    AfterPeer,
    /// Sends nothing before the other side's FIN was read; then all data, and FIN.
    AnswerPeer,
    /// RST immediately after the last byte was passed to the socket; unread and unsent data is discarded
    /// (`SO_LINGER` of zero seconds).
    Reset,
}

/// Reading rate of the peer.
#[derive(Debug)]
pub enum Pace {
    /// Unlimited.
    Free,
    /// One read of at most `bytes`, then a pause: a slow application, whose window closes and opens.
    Slow {
        /// Maximum bytes per read.
        bytes: usize,
        /// Time between two reads.
        pause: Duration,
    },
    /// No read until a message arrives on the channel, or its other end is dropped; then unlimited. The window
    /// stays closed as long as the test requires.
    Held(mpsc::Receiver<()>),
}

/// Plan of a kernel peer.
#[derive(Debug)]
pub struct Plan {
    /// Seed of the stream sent.
    pub seed: u64,
    /// Bytes to send.
    pub send_bytes: u64,
    /// Reading rate.
    pub pace: Pace,
    /// Close mode.
    pub end: End,
    /// Receive buffer in bytes (`SO_RCVBUF`, which the kernel doubles); `None`: the kernel's autotuning.
    pub receive_buffer_bytes: Option<usize>,
}

impl Plan {
    /// Sends `bytes` of the stream of `seed`, half-closes, and reads until the end.
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

/// Result of a plan.
#[derive(Debug)]
pub struct Outcome {
    /// Data passed to the socket.
    pub sent: Digest,
    /// Data read from the socket.
    pub received: Digest,
    /// Error that ended sending, if any (a reset by the other side, a stall).
    pub send_error: Option<io::Error>,
    /// Error that ended receiving, if any; `None`: the other side's FIN.
    pub receive_error: Option<io::Error>,
}

impl Outcome {
    /// Asserts that both directions ended without an error, and that the received data is `expected`.
    ///
    /// # Panics
    ///
    /// If the assertion fails.
    pub fn assert_received(&self, expected: Digest) {
        let Self { sent: _, received, send_error, receive_error } = self;
        assert!(send_error.is_none(), "sending ended with {send_error:?}");
        assert!(receive_error.is_none(), "receiving ended with {receive_error:?}");
        assert_eq!(*received, expected, "the data read by the kernel differ from the data sent");
    }
}

/// Running peer.
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
    /// If the address cannot be bound.
    pub fn listen(host: &Namespace, address: SocketAddr, plan: Plan) -> Self {
        let listener = host.run(|| TcpListener::bind(address)).expect("the address is free");
        let address = listener.local_addr().expect("a bound socket has an address");
        let thread = host.spawn_thread(move || {
            await_connection(&listener)?;
            let (socket, _) = listener.accept()?;
            drop(listener);
            plan.execute(&socket)
        });
        Self { address, thread }
    }

    /// Connects to `address`.
    pub fn connect(host: &Namespace, address: SocketAddr, plan: Plan) -> Self {
        let thread = host
            .spawn_thread(move || plan.execute(&TcpStream::connect_timeout(&address, STALL_MAX)?));
        Self { address, thread }
    }

    /// Listening address, or the address connected to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until the plan is complete.
    ///
    /// # Panics
    ///
    /// If there was no connection.
    pub fn finish(self) -> Outcome {
        let outcome = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        outcome.unwrap_or_else(|error| panic!("no connection with {}: {error}", self.address))
    }
}

/// `accept` has no timeout; polling the listener has.
fn await_connection(listener: &TcpListener) -> io::Result<()> {
    let mut ready = [PollFd::new(listener, PollFlags::IN)];
    let limit = Timespec::try_from(STALL_MAX).expect("a minute fits");
    match poll(&mut ready, Some(&limit))? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

impl Plan {
    fn execute(self, socket: &TcpStream) -> io::Result<Outcome> {
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
                    // After a reset there is nothing to close, and the reader has reported the error.
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
            // An error means that the test dropped its end, which also releases the reader.
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
            // The pause is the requested behavior, not a synchronization.
            thread::sleep(pause);
        }
    }
}
