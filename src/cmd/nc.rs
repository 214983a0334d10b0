//! `flue nc`: copies standard input to a connection, and the connection to standard output.
//!
//! Each direction ends independently. The end of standard input is sent as a FIN, while the other direction continues;
//! the peer's FIN ends standard output. The run ends when both have ended.
//!
//! Reading and writing block, but the node must not block. Each runs on a dedicated thread, with a bounded queue
//! ([`QUEUE_CHUNKS_MAX`] chunks of at most [`CHUNK_BYTES_MAX`] bytes). [`Pump::step`] moves data without blocking; the
//! threads wake the node when more may be possible. At most [`UNACKNOWLEDGED_BYTES_MAX`] bytes passed to TCP are
//! unacknowledged.

use std::{
    fmt,
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr},
    thread,
    time::Duration,
};

use crate::{
    failure::Failure,
    host::HostAddress,
    node::{self, OpenNodes},
    options::{NodeArgs, OutputArgs, QueueOptions},
    report::{
        Console,
        stdout::{self, Stdout},
    },
    sandbox::SandboxArgs,
    station::{ConnectOptions, Station},
    waker::Waker,
};
use bytes::Bytes;
use clap::Args;
use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};
use host_stack::{
    node::{Node, WaitError},
    stream::{StreamStatus, Streams},
};
use offload_engine::{
    chimney::client::OffloadHandle, engine::Connections, tcp::Info, time::Instant as EngineInstant,
};

/// Largest read of standard input, bytes.
pub const CHUNK_BYTES_MAX: usize = 64 * 1024;
/// Queue limit of each direction, chunks.
pub const QUEUE_CHUNKS_MAX: usize = 16;
/// Limit of unacknowledged bytes passed to TCP.
pub const UNACKNOWLEDGED_BYTES_MAX: usize = 1024 * 1024;

/// Largest receive request, bytes.
const RECEIVE_BYTES_MAX: i64 = 1024 * 1024;

/// Limit of connections in the handshake.
const BACKLOG: usize = 1;

/// Copy standard input to a connection, and the connection to standard output
///
/// With -l it listens and accepts one connection. The end of standard input closes the sending direction (FIN); the
/// other direction remains open. The command exits when both directions are closed. Names are not resolved.
///
/// With --json the document is printed on standard error, because standard output has the data of the connection.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  # receive from a program of this machine
  flue nc -l 5000 --host-addr 10.77.0.1/24 > received &
  echo hello | nc -N 10.77.0.2 5000

  # a file between two nodes on a bridge
  ip link add br0 type bridge && ip link set br0 up
  flue nc -l 5000 --tap t0 --bridge br0 > copy &
  flue nc 10.77.0.2 5000 --tap t1 --addr 10.77.0.3/24 --bridge br0 < /etc/passwd")]
pub struct NcArgs {
    /// Listen, and accept one connection
    #[arg(short, long)]
    pub listen: bool,

    /// Connect to HOST and PORT; with -l, listen on PORT or HOST PORT
    #[arg(value_name = "HOST PORT", num_args = 0..=2)]
    pub place: Vec<String>,

    /// Listen on this port, with -l: for the syntax "nc -l -p PORT"
    #[arg(short = 'p', value_name = "PORT", requires = "listen")]
    pub listen_port: Option<String>,

    /// Connect from this address [default: the node's first of the family]
    #[arg(short = 's', long, value_name = "IP", conflicts_with = "listen")]
    pub source: Option<HostAddress>,

    /// Time limit of its connect.
    #[command(flatten)]
    pub connect: ConnectOptions,

    /// Keep two receive requests of this size posted, bytes: 1..=1048576
    ///
    /// By default none are posted, and received data is indicated.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=RECEIVE_BYTES_MAX))]
    pub prepost: Option<u32>,

    /// Log events on standard error
    #[arg(short, long, conflicts_with = "quiet", help_heading = "Output")]
    pub verbose: bool,

    /// Output format.
    #[command(flatten)]
    pub output: OutputArgs,

    /// Rights of the process.
    #[command(flatten)]
    pub sandbox: SandboxArgs,

    /// The queues of its TAP; the connection is the first one's.
    #[command(flatten)]
    pub queues: QueueOptions,

    /// The node.
    #[command(flatten)]
    pub node: NodeArgs,
}

/// Endpoint selected by the options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Endpoint {
    /// Listen on this address; an unspecified address means all addresses of the node.
    Listen(SocketAddr),
    /// Connect to `remote`.
    Connect {
        /// Local address; `None`: chosen by the host stack.
        local: Option<SocketAddr>,
        /// Remote address.
        remote: SocketAddr,
        /// Time limit of the connect.
        timeout: Duration,
    },
}

impl NcArgs {
    /// Returns the endpoint selected by the options.
    ///
    /// # Errors
    /// [`Failure::usage`].
    pub fn endpoint(&self) -> Result<Endpoint, Failure> {
        let words: Vec<&str> = self.place.iter().map(String::as_str).collect();
        let words =
            [words.as_slice(), &self.listen_port.as_deref().into_iter().collect::<Vec<_>>()]
                .concat();
        match (self.listen, words.as_slice()) {
            (true, [port]) => {
                Ok(Endpoint::Listen(SocketAddr::new(self.node.all_addresses(), parse_port(port)?)))
            }
            (true, [host, port]) => {
                Ok(Endpoint::Listen(SocketAddr::new(parse_host(host)?, parse_port(port)?)))
            }
            (true, _) => Err(Failure::usage("-l: no port: give PORT or HOST PORT")),
            (false, [host, port]) => {
                let remote = SocketAddr::new(parse_host(host)?, parse_port(port)?);
                let source = self.source.as_ref().map(|source| source.ip);
                if source.is_some_and(|source| source.is_ipv4() != remote.is_ipv4()) {
                    return Err(Failure::usage(
                        "-s: another address family than HOST, expected the same",
                    ));
                }
                let local = source.map(|source| SocketAddr::new(source, 0));
                let timeout = self.connect.limit();
                Ok(Endpoint::Connect { local, remote, timeout })
            }
            (false, _) => Err(Failure::usage(
                "HOST PORT: missing: give HOST PORT to connect to, or -l PORT to listen",
            )),
        }
    }
}

fn parse_host(text: &str) -> Result<IpAddr, Failure> {
    let host = text
        .parse::<HostAddress>()
        .map_err(|why| Failure::usage(format!("HOST {text:?}: {why}; names are not resolved")))?;
    Ok(host.ip)
}

fn parse_port(text: &str) -> Result<u16, Failure> {
    match text.parse() {
        Ok(port @ 1..) => Ok(port),
        _ => Err(Failure::usage(format!("PORT {text:?}: expected 1..=65535"))),
    }
}

/// Input of the reading thread.
#[derive(Debug)]
pub enum Input {
    /// Data, at least one byte.
    Data(Bytes),
    /// End of the input, or the error that ended reading.
    End(io::Result<()>),
}

/// Reads `input` on a thread of its own until its end; calls `wake` for every new input.
///
/// # Errors
/// The thread could not be started.
pub fn start_reader(
    mut input: impl Read + Send + 'static,
    wake: impl Fn() + Send + 'static,
) -> io::Result<Receiver<Input>> {
    let (sender, receiver) = bounded(QUEUE_CHUNKS_MAX);
    thread::Builder::new().name("flue-input".into()).spawn(move || {
        let mut chunk = vec![0; CHUNK_BYTES_MAX];
        loop {
            let next = match input.read(&mut chunk) {
                Ok(0) => Input::End(Ok(())),
                Ok(length) => Input::Data(Bytes::copy_from_slice(&chunk[..length])),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Input::End(Err(error)),
            };
            let is_end = matches!(next, Input::End(_));
            // The receiver is dropped once the run has ended.
            let is_closed = sender.send(next).is_err();
            wake();
            if is_end || is_closed {
                return;
            }
        }
    })?;
    Ok(receiver)
}

/// Queue to the writing thread.
#[derive(Debug)]
pub struct Output {
    /// `None` after the last chunk.
    chunks: Option<Sender<Bytes>>,
    ended: Receiver<io::Result<()>>,
}

/// Writes `output` on a thread of its own; calls `wake` when the queue has room again, and at the end.
///
/// # Errors
/// The thread could not be started.
pub fn start_writer(
    mut output: impl Write + Send + 'static,
    wake: impl Fn() + Send + 'static,
) -> io::Result<Output> {
    let (sender, chunks) = bounded::<Bytes>(QUEUE_CHUNKS_MAX);
    let (to_pump, ended) = bounded(1);
    thread::Builder::new().name("flue-output".into()).spawn(move || {
        let result = chunks.iter().try_for_each(|chunk| {
            let written = output.write_all(&chunk).and_then(|()| output.flush());
            wake();
            written
        });
        // The receiver is dropped once the run has ended.
        let _ = to_pump.send(result);
        wake();
    })?;
    Ok(Output { chunks: Some(sender), ended })
}

/// Byte stream as used by the pump.
pub trait ByteStream {
    /// Returns the state of the stream; `None`: no connection.
    fn status(&self) -> Option<StreamStatus>;
    /// Queues data to send. Never refused.
    fn send(&mut self, data: Bytes);
    /// Sends a FIN after the queued data.
    fn shutdown(&mut self);
    /// Returns the next received data.
    fn receive(&mut self) -> Option<Bytes>;
}

/// Stream of a node, for the duration of one call.
#[derive(Debug)]
pub struct NodeStream<'a> {
    /// Streams of the node.
    pub streams: &'a mut Streams,
    /// Offloaded connections of the node.
    pub connections: &'a mut Connections,
    /// Time of the call.
    pub now: EngineInstant,
    /// Handle of the stream.
    pub handle: OffloadHandle,
}

impl ByteStream for NodeStream<'_> {
    fn status(&self) -> Option<StreamStatus> {
        self.streams.status(self.handle)
    }

    fn send(&mut self, data: Bytes) {
        self.streams.send(self.now, self.connections, self.handle, data);
    }

    fn shutdown(&mut self) {
        self.streams.shutdown(self.now, self.connections, self.handle);
    }

    fn receive(&mut self) -> Option<Bytes> {
        self.streams.receive(self.now, self.connections, self.handle)
    }
}

/// Amount of data transferred.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct TransferCounts {
    /// Bytes passed to the connection.
    pub sent_bytes: u64,
    /// Bytes taken from the connection.
    pub received_bytes: u64,
}

/// Counters of the offload target at the last snapshot. They are removed with the connection, so the very last segments
/// may be missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct OffloadCounters {
    /// Segments sent, counted after segmentation.
    pub segments_sent: u64,
    /// Segments among these with PSH.
    pub psh_segments_sent: u64,
    /// Segments among these that contain a byte sent before.
    pub segments_retransmitted: u64,
    /// Losses detected by fast retransmit or RACK.
    pub fast_retransmits: u64,
    /// Expirations of the retransmission timer.
    pub timeouts: u64,
    /// Reductions of the segment size for the path MTU.
    pub path_mtu_reductions: u64,
    /// True if ECN was negotiated.
    pub ecn: bool,
    /// Segments received with the CE mark.
    pub ecn_marks_received: u64,
    /// Reductions of the congestion window in response to ECE.
    pub ecn_reductions: u64,
}

impl From<Info> for OffloadCounters {
    fn from(info: Info) -> Self {
        Self {
            segments_sent: info.segs_out,
            psh_segments_sent: info.push_out,
            segments_retransmitted: info.total_retrans,
            fast_retransmits: info.fast_retransmits,
            timeouts: info.timeouts,
            path_mtu_reductions: info.path_mtu_reductions,
            ecn: info.ecn,
            ecn_marks_received: info.ce_received,
            ecn_reductions: info.ecn_reductions,
        }
    }
}

impl fmt::Display for OffloadCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            segments_sent,
            psh_segments_sent,
            segments_retransmitted,
            fast_retransmits,
            timeouts,
            path_mtu_reductions,
            ecn,
            ecn_marks_received,
            ecn_reductions,
        } = self;
        write!(
            f,
            "offloaded: {segments_sent} segments sent, {psh_segments_sent} with PSH, \
             {segments_retransmitted} retransmitted ({fast_retransmits} recoveries, \
             {timeouts} timeouts)"
        )?;
        if *path_mtu_reductions > 0 {
            write!(f, ", path MTU reduced: {path_mtu_reductions}")?;
        }
        if *ecn {
            write!(f, ", ECN marks: {ecn_marks_received} received, {ecn_reductions} reductions")?;
        }
        Ok(())
    }
}

/// Moves data between the queues and the connection.
#[derive(Debug)]
pub struct Pump {
    input: Receiver<Input>,
    input_ended: bool,
    output: Output,
    /// Result of writing.
    written: Option<io::Result<()>>,
    moved: TransferCounts,
}

impl Pump {
    /// Creates a pump between the queues of [`start_reader`] and [`start_writer`].
    pub fn new(input: Receiver<Input>, output: Output) -> Self {
        Self { input, input_ended: false, output, written: None, moved: TransferCounts::default() }
    }

    /// Returns the amount of data transferred so far.
    pub const fn moved(&self) -> TransferCounts {
        self.moved
    }

    /// Moves data without blocking. `None`: call again after a change of the stream or of a queue.
    pub fn step(&mut self, stream: &mut impl ByteStream) -> Option<Result<(), Failure>> {
        if let Err(failure) = self.step_input(stream) {
            return Some(Err(failure));
        }
        self.step_output(stream);
        if self.written.is_none() {
            self.written = self.output.ended.try_recv().ok();
        }
        if let Some(Err(error)) = &self.written {
            return Some(Err(stdout::failure(error)));
        }
        let status = stream.status()?;
        if status.closed && status.unread == 0 {
            self.output.chunks = None;
            if let Some(error) = status.error {
                return Some(Err(Failure::work(error.to_string())));
            }
        }
        let both_ended = status.closed || (self.input_ended && status.shut_down);
        (both_ended && self.written.is_some()).then_some(Ok(()))
    }

    fn step_input(&mut self, stream: &mut impl ByteStream) -> Result<(), Failure> {
        while !self.input_ended
            && stream.status().is_some_and(|status| {
                !status.closed && status.unacknowledged < UNACKNOWLEDGED_BYTES_MAX
            })
        {
            match self.input.try_recv() {
                Ok(Input::Data(data)) => {
                    self.moved.sent_bytes += data.len() as u64;
                    stream.send(data);
                }
                Ok(Input::End(Ok(()))) => {
                    self.input_ended = true;
                    stream.shutdown();
                }
                Ok(Input::End(Err(error))) => {
                    return Err(Failure::work(format!("standard input: {error}")));
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    return Err(Failure::work("standard input: the reader has exited"));
                }
            }
        }
        Ok(())
    }

    fn step_output(&mut self, stream: &mut impl ByteStream) {
        let Some(chunks) = &self.output.chunks else { return };
        while !chunks.is_full() {
            let Some(data) = stream.receive() else { break };
            let length = data.len() as u64;
            // The queue is not full and has one sender, so this fails only if the writer has ended. `ended` has the
            // reason.
            if chunks.try_send(data).is_ok() {
                self.moved.received_bytes += length;
            }
        }
        if stream.status().is_some_and(|status| status.peer_closed && status.unread == 0) {
            self.output.chunks = None;
        }
    }
}

/// Runs `flue nc`.
///
/// # Errors
/// The node or the connection could not be opened, or ended with an error.
pub fn run(args: &NcArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let place = args.endpoint()?;
    let setup = args.node.resolve_on(args.queues)?;
    console.config(&setup);
    // The connection uses the first queue.
    let client = |port| {
        let mut streams = Streams::new(port);
        streams.post_receives(args.prepost.unwrap_or(0) as usize);
        streams
    };
    let opened = OpenNodes::open(&setup, args.connect.limit(), args.sandbox, console, client)?;
    let OpenNodes { mut nodes, vnet_header: _, station, control: _control } = opened;
    let node = nodes.swap_remove(0);
    drop(nodes);
    let waker = Waker::new();
    let woken = node.clone();
    waker.set(move || woken.wake());
    let ended =
        waker.catch_signals().and_then(|()| converse(&node, place, &station, &waker, console));
    waker.clear();
    ended
}

fn converse(
    node: &Node<Streams>,
    place: Endpoint,
    station: &Station,
    waker: &Waker,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let (call, handle) = match place {
        Endpoint::Listen(local) => {
            ("accept".to_owned(), accept(node, local, station, waker, console)?)
        }
        Endpoint::Connect { local, remote, timeout } => {
            station.connecting(remote, console);
            let handle = node.with(|streams, _, _| streams.connect(local, remote, timeout));
            (format!("connect to {remote}"), handle)
        }
    };
    let established = wait(node, waker, |streams, _, _| {
        let status = streams.status(handle)?;
        match status.error {
            Some(error) => Some(Err(station.stream(&call, error))),
            None => (status.connected || status.closed).then_some(Ok(status)),
        }
    })?;
    let shown = |end: Option<SocketAddr>| end.map_or_else(|| "?".into(), |end| end.to_string());
    let (local, remote) = (shown(established.local), shown(established.remote));
    console.remark(format_args!("connected: {local} to {remote}"));
    let failed = |error: io::Error| Failure::work(format!("start a thread: {error}"));
    let wake = |waker: &Waker| {
        let waker = waker.clone();
        move || waker.wake()
    };
    let input = start_reader(io::stdin(), wake(waker)).map_err(failed)?;
    let output = start_writer(Stdout, wake(waker)).map_err(failed)?;
    let mut pump = Pump::new(input, output);
    let mut counted = None;
    let ended = wait(node, waker, |streams, connections, now| {
        let ended = pump.step(&mut NodeStream { streams, connections, now, handle });
        let ours = connections.list(now).find(|(other, ..)| *other == handle);
        counted = ours.map(|(_, _, info)| OffloadCounters::from(info)).or(counted);
        ended
    });
    if let Some(Err(error)) = pump.written.take() {
        console.unwritten(error);
    }
    let last = node.with(|streams, _, _| streams.status(handle));
    let TransferCounts { sent_bytes, received_bytes } = pump.moved();
    console.result(&serde_json::json!({
        "local": local,
        "remote": remote,
        "offload_state": last.map(|status| status.state.to_string()),
        "sent_bytes": sent_bytes,
        "received_bytes": received_bytes,
        "offloaded": counted,
    }));
    ended?;
    let path = counted.map_or_else(|| "never offloaded".into(), |counted| counted.to_string());
    console
        .remark(format_args!("ended: {sent_bytes} bytes sent, {received_bytes} received; {path}"));
    let closed = |streams: &mut Streams, _: &mut Connections, _| {
        streams.status(handle).is_none_or(|status| status.closed).then_some(())
    };
    match node.wait(Some(node::LINGER_LIMIT), closed) {
        Ok(()) | Err(WaitError::TimedOut) => Ok(()),
        Err(error) => Err(Failure::work(error.to_string())),
    }
}

fn accept(
    node: &Node<Streams>,
    local: SocketAddr,
    station: &Station,
    waker: &Waker,
    console: &mut Console<'_>,
) -> Result<OffloadHandle, Failure> {
    let listener = node.with(|streams, _, _| streams.listen(local, BACKLOG));
    let listening = wait(node, waker, |streams, _, _| {
        let state = streams.listening(listener)?;
        Some(state.map_err(|error| station.stream(&format!("listen on {local}"), error)))
    })?;
    console.remark(format_args!("listening: {}", station.shown(listening)));
    let handle = wait(node, waker, |streams, _, _| streams.accept(listener).map(Ok))?;
    node.with(|streams, _, _| streams.unlisten(listener));
    Ok(handle)
}

/// Waits for a result or a signal.
fn wait<T>(
    node: &Node<Streams>,
    waker: &Waker,
    mut f: impl FnMut(&mut Streams, &mut Connections, EngineInstant) -> Option<Result<T, Failure>>,
) -> Result<T, Failure> {
    let result = node.wait(None, |streams, connections, now| {
        if let Err(interrupted) = waker.interrupted() {
            return Some(Err(interrupted));
        }
        f(streams, connections, now)
    });
    result.unwrap_or_else(|error| Err(Failure::work(error.to_string())))
}

#[cfg(test)]
mod tests;
