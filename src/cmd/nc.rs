//! `flue nc`: standard input to a connection, the connection to standard output.
//!
//! Both directions end for themselves: the end of standard input becomes a FIN (the other direction
//! goes on), the peer's FIN becomes the end of standard output. The run ends when both have ended.
//!
//! Reading and writing block, the node must not: a thread each, with a bounded queue between
//! ([`QUEUE_CHUNKS_MAX`] chunks of at most [`CHUNK_BYTES_MAX`] bytes). [`Pump::step`] moves what can be
//! moved without waiting; the threads wake the node when that may have changed. At most
//! [`UNACKNOWLEDGED_BYTES_MAX`] bytes are with TCP and unacknowledged.

use std::{
    fmt,
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr},
    thread,
    time::Duration,
};

use crate::{
    control::{message::NodeName, server},
    failure::Failure,
    host::HostAddress,
    node,
    options::{NodeArgs, QueueOptions, Quietness},
    report::{
        Console,
        stdout::{self, Stdout},
    },
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

/// Bytes of one read of standard input.
pub const CHUNK_BYTES_MAX: usize = 64 * 1024;
/// Chunks that wait in each direction.
pub const QUEUE_CHUNKS_MAX: usize = 16;
/// Bytes given to TCP and not yet acknowledged.
pub const UNACKNOWLEDGED_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of the largest receive request.
const RECEIVE_BYTES_MAX: i64 = 1024 * 1024;

/// Connections that may be in their handshake.
const BACKLOG: usize = 1;

/// Copy standard input to a connection, and the connection to standard output
///
/// With -l it listens and takes one connection. The end of standard input ends the sending direction
/// (FIN) and leaves the other open; the run ends when both directions have ended. Names are not resolved.
///
/// With --json the document goes to standard error: standard output is the connection's.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  flue nc -l 5000 > file                            the peer's bytes into a file
  flue nc 10.77.0.1 5000 < file                     a file to the peer
  flue nc --host-addr 10.77.0.1/24 -l 5000          talk to it from the machine: nc 10.77.0.2 5000")]
pub struct NcArgs {
    /// Listen, for one connection
    #[arg(short, long)]
    pub listen: bool,

    /// HOST and PORT to connect to; with -l, PORT or HOST PORT to listen on
    #[arg(value_name = "HOST PORT", num_args = 0..=2)]
    pub place: Vec<String>,

    /// With -l: the port, for those used to "nc -l -p PORT"
    #[arg(short = 'p', value_name = "PORT", requires = "listen")]
    pub listen_port: Option<String>,

    /// Address to connect from [default: the node's first of that family]
    #[arg(short = 's', long, value_name = "IP", conflicts_with = "listen")]
    pub source: Option<HostAddress>,

    /// Seconds that connecting may take: 1..=600
    #[arg(short = 'w', long, value_name = "SECONDS", default_value_t = 10,
          value_parser = clap::value_parser!(u16).range(1..=600))]
    pub timeout: u16,

    /// Keep two receive requests of so many bytes posted to the target: 1..=1048576
    /// [default: none; received data is indicated]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=RECEIVE_BYTES_MAX))]
    pub prepost: Option<u32>,

    /// Log what happens on standard error
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,

    /// How the run is told.
    #[command(flatten)]
    pub output: Quietness,

    /// The queues of its TAP; the connection is the first one's.
    #[command(flatten)]
    pub queues: QueueOptions,

    /// The node.
    #[command(flatten)]
    pub node: NodeArgs,
}

/// What the options ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Listen there; an unspecified address stands for all of the node's.
    Listen(SocketAddr),
    /// Connect to `remote`.
    Connect {
        /// From there; `None`: as the host stack chooses.
        local: Option<SocketAddr>,
        /// To there.
        remote: SocketAddr,
        /// Within that time.
        timeout: Duration,
    },
}

impl NcArgs {
    /// What the options ask for.
    ///
    /// # Errors
    /// [`Failure::usage`].
    pub fn place(&self) -> Result<Place, Failure> {
        let words: Vec<&str> = self.place.iter().map(String::as_str).collect();
        let words =
            [words.as_slice(), &self.listen_port.as_deref().into_iter().collect::<Vec<_>>()]
                .concat();
        match (self.listen, words.as_slice()) {
            (true, [port]) => {
                Ok(Place::Listen(SocketAddr::new(self.node.all_addresses(), parse_port(port)?)))
            }
            (true, [host, port]) => {
                Ok(Place::Listen(SocketAddr::new(parse_host(host)?, parse_port(port)?)))
            }
            (true, _) => Err(Failure::usage("-l: give PORT, or HOST PORT")),
            (false, [host, port]) => {
                let remote = SocketAddr::new(parse_host(host)?, parse_port(port)?);
                let source = self.source.as_ref().map(|source| source.ip);
                if source.is_some_and(|source| source.is_ipv4() != remote.is_ipv4()) {
                    return Err(Failure::usage(
                        "-s: not of the family of the address to connect to",
                    ));
                }
                let local = source.map(|source| SocketAddr::new(source, 0));
                let timeout = Duration::from_secs(self.timeout.into());
                Ok(Place::Connect { local, remote, timeout })
            }
            (false, _) => Err(Failure::usage("give HOST PORT to connect to, or -l PORT to listen")),
        }
    }
}

fn parse_host(text: &str) -> Result<IpAddr, Failure> {
    let host = text
        .parse::<HostAddress>()
        .map_err(|why| Failure::usage(format!("HOST {text:?}: {why} (names are not resolved)")))?;
    Ok(host.ip)
}

fn parse_port(text: &str) -> Result<u16, Failure> {
    match text.parse() {
        Ok(port @ 1..) => Ok(port),
        _ => Err(Failure::usage(format!("PORT {text:?}: not a port from 1 to 65535"))),
    }
}

/// What the reading thread has read.
#[derive(Debug)]
pub enum Input {
    /// Octets, at least one.
    Data(Bytes),
    /// The end, or why reading ended.
    End(io::Result<()>),
}

/// Reads `input` on a thread of its own until its end; calls `wake` when there is something new.
///
/// # Errors
/// No thread is left.
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
            // Nobody listens any more: the run has ended.
            let unheard = sender.send(next).is_err();
            wake();
            if is_end || unheard {
                return;
            }
        }
    })?;
    Ok(receiver)
}

/// The queue to the writing thread.
#[derive(Debug)]
pub struct Output {
    /// `None`: nothing more will come.
    chunks: Option<Sender<Bytes>>,
    ended: Receiver<io::Result<()>>,
}

/// Writes `output` on a thread of its own; calls `wake` when there is room again and at the end.
///
/// # Errors
/// No thread is left.
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
        // Nobody listens any more: the run has ended.
        let _ = to_pump.send(result);
        wake();
    })?;
    Ok(Output { chunks: Some(sender), ended })
}

/// The connection, as the pump sees it.
pub trait ByteStream {
    /// How it is; `None`: there is none.
    fn status(&self) -> Option<StreamStatus>;
    /// Sends data. Always accepted.
    fn send(&mut self, data: Bytes);
    /// No more data from us.
    fn shutdown(&mut self);
    /// The next received data.
    fn receive(&mut self) -> Option<Bytes>;
}

/// A stream of a node, for the time of one call.
#[derive(Debug)]
pub struct NodeStream<'a> {
    /// The node's client.
    pub streams: &'a mut Streams,
    /// The node's offloaded connections.
    pub connections: &'a mut Connections,
    /// The time of the call.
    pub now: EngineInstant,
    /// Which stream.
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

/// What has gone across.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Moved {
    /// Octets given to the connection.
    pub sent_bytes: u64,
    /// Octets taken from it.
    pub received_bytes: u64,
}

/// What the offload target has counted. As last seen: with the connection its counters end, so the
/// very last segments may be missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Counted {
    /// Segments sent, each piece of a super-segment counted.
    pub segments_sent: u64,
    /// Those of them with PSH.
    pub psh_segments_sent: u64,
    /// Those of them with an octet that was sent before.
    pub segments_retransmitted: u64,
    /// Times that losses were found, by fast retransmit or by time.
    pub fast_retransmits: u64,
    /// Times that nothing was heard for a retransmission time-out.
    pub timeouts: u64,
    /// Times that segments were made smaller for the path.
    pub path_mtu_reductions: u64,
    /// Explicit congestion notification was agreed on.
    pub ecn: bool,
    /// Segments received with the mark of a router.
    pub ecn_marks_received: u64,
    /// Times that the window was reduced because the peer had received marks.
    pub ecn_reductions: u64,
}

impl From<Info> for Counted {
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

impl fmt::Display for Counted {
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
             {timeouts} time-outs)"
        )?;
        if *path_mtu_reductions > 0 {
            write!(f, ", path MTU reduced: {path_mtu_reductions}")?;
        }
        if *ecn {
            write!(f, ", ECN marks: {ecn_marks_received} received, {ecn_reductions} answered")?;
        }
        Ok(())
    }
}

/// Moves octets between the queues and the connection.
#[derive(Debug)]
pub struct Pump {
    input: Receiver<Input>,
    input_ended: bool,
    output: Output,
    /// How writing has ended.
    written: Option<io::Result<()>>,
    moved: Moved,
}

impl Pump {
    /// Between what [`start_reader`] and [`start_writer`] gave.
    pub fn new(input: Receiver<Input>, output: Output) -> Self {
        Self { input, input_ended: false, output, written: None, moved: Moved::default() }
    }

    /// What has gone across so far.
    pub const fn moved(&self) -> Moved {
        self.moved
    }

    /// Moves what can be moved. `None`: call again when the stream, or one of the queues, has changed.
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
                    return Err(Failure::work("standard input: its reader is gone"));
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
            // Not full, and nobody else sends: it fails only when the writer has ended, which
            // `ended` tells.
            if chunks.try_send(data).is_ok() {
                self.moved.received_bytes += length;
            }
        }
        if stream.status().is_some_and(|status| status.peer_closed && status.unread == 0) {
            self.output.chunks = None;
        }
    }
}

/// Runs the command.
///
/// # Errors
/// The node or the connection could not be had, or did not end well.
pub fn run(args: &NcArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let place = args.place()?;
    let setup = args.node.resolve_on(args.queues)?;
    console.config(&setup);
    // The one connection is the first queue's.
    let client = |port| {
        let mut streams = Streams::new(port);
        streams.post_receives(args.prepost.unwrap_or(0) as usize);
        streams
    };
    let nodes = setup.node.open(client)?;
    let node = nodes.into_iter().next().ok_or_else(|| Failure::work("a TAP without a queue"))?;
    let _control = server::serve(node.clone(), NodeName::of(&setup.node), &setup.control)?;
    let waker = Waker::new();
    let woken = node.clone();
    waker.set(move || woken.wake());
    let ended = waker.catch_signals().and_then(|()| converse(&node, place, &waker, console));
    waker.clear();
    ended
}

fn converse(
    node: &Node<Streams>,
    place: Place,
    waker: &Waker,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let handle = match place {
        Place::Listen(local) => accept(node, local, waker, console)?,
        Place::Connect { local, remote, timeout } => {
            node.with(|streams, _, _| streams.connect(local, remote, timeout))
        }
    };
    let established = wait(node, waker, |streams, _, _| {
        let status = streams.status(handle)?;
        match status.error {
            Some(error) => Some(Err(Failure::work(error.to_string()))),
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
        counted = ours.map(|(_, _, info)| Counted::from(info)).or(counted);
        ended
    });
    if let Some(Err(error)) = pump.written.take() {
        console.unwritten(error);
    }
    let last = node.with(|streams, _, _| streams.status(handle));
    let Moved { sent_bytes, received_bytes } = pump.moved();
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
    waker: &Waker,
    console: &mut Console<'_>,
) -> Result<OffloadHandle, Failure> {
    let listener = node.with(|streams, _, _| streams.listen(local, BACKLOG));
    let listening = wait(node, waker, |streams, _, _| {
        let state = streams.listening(listener)?;
        Some(state.map_err(|error| Failure::work(error.to_string())))
    })?;
    console.remark(format_args!("listening: {listening}"));
    let handle = wait(node, waker, |streams, _, _| streams.accept(listener).map(Ok))?;
    node.with(|streams, _, _| streams.unlisten(listener));
    Ok(handle)
}

/// Waits for a result, or a signal.
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
