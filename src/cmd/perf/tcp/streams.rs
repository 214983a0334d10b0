//! Streams of a node, on each of its queues.
//!
//! With manual progress a spinning end runs the node's loop once per poll; a blocking end waits in the node, which
//! polls briefly and then sleeps. With automatic progress the node's threads do the work, and a wait ends with their
//! wake-up. Several queues: [`Relays`].

use std::{
    collections::HashSet,
    net::{Ipv6Addr, SocketAddr},
    thread::{park_timeout, yield_now},
    time::{Duration, Instant},
};

use bytes::Bytes;
use host_stack::{
    node::{Node, Progress, WaitError},
    socket::ListenerId,
    stream::{OffloadState, StreamStatus, Streams},
};
use offload_engine::{
    chimney::client::OffloadHandle, engine::Connections, time::Instant as EngineInstant,
};

use super::{Bulk, Stack};
use crate::{
    cmd::perf::{Plan, Waiting, phase::ANSWER_LIMIT, queues::Relays, report::Reporter},
    control::server::Control,
    failure::Failure,
    node::{self, OpenNodes},
    options::NodeSetup,
    report::Console,
    station::Station,
    waker::Waker,
};

/// Limit of connections in the handshake.
const BACKLOG: usize = 128;
/// Polls per clock read.
const POLLS_PER_CLOCK: u32 = 64;
/// Longest wait between reads of clock and signals.
const WAIT_MAX: Duration = Duration::from_millis(200);

/// Node with its streams.
pub(super) struct NodeStack {
    // Dropped before the nodes: a relay must not hold a node's last handle.
    _relays: Relays,
    _control: Option<Control>,
    /// Nodes, one per queue.
    nodes: Vec<Node<Streams>>,
    station: Station,
    waker: Waker,
    /// True if this thread runs the loops and does not sleep.
    spins: bool,
    /// Listeners, one per queue.
    listeners: Vec<ListenerId>,
    /// Streams connected so far: selects the queue of the next one.
    connected: usize,
    /// Open streams and their queues.
    open: HashSet<(usize, OffloadHandle)>,
    message: Bytes,
}

/// Stream on a queue.
pub(super) struct Stream {
    queue: usize,
    handle: OffloadHandle,
    /// Received data that the caller has not read.
    rest: Bytes,
}

impl NodeStack {
    /// Opens the TAP and starts the node.
    pub(super) fn open(
        plan: &Plan,
        setup: &NodeSetup,
        reporter: &mut Reporter,
        console: &mut Console<'_>,
    ) -> Result<Self, Failure> {
        let (limit, client) = (plan.connect_limit, Streams::new);
        let opened = OpenNodes::open(setup, limit, plan.sandbox, console, client)?;
        let OpenNodes { nodes, vnet_header, station, control } = opened;
        reporter.link(vnet_header, &setup.node);
        let waker = Waker::new();
        let woken = nodes[0].clone();
        waker.set(move || woken.wake());
        waker.catch_signals()?;
        let spins = plan.waiting == Waiting::Spin && nodes[0].progress() == Progress::Manual;
        Ok(Self {
            _relays: Relays::start(&nodes)?,
            _control: control,
            nodes,
            station,
            waker,
            spins,
            listeners: Vec::new(),
            connected: 0,
            open: HashSet::new(),
            message: Bytes::new(),
        })
    }

    /// Removes a stream after both FINs are exchanged, or after an abort.
    fn forget(&mut self, queue: usize, handle: OffloadHandle) {
        self.open.remove(&(queue, handle));
        self.nodes[queue]
            .with(|streams, connections, now| streams.forget(now, connections, handle));
    }

    /// Waits until `condition` returns a value for a queue, or for a signal; `None` after the time limit.
    fn wait<T>(
        &self,
        queue: usize,
        limit: Option<Duration>,
        mut condition: impl FnMut(&mut Streams, &mut Connections, EngineInstant) -> Option<T>,
    ) -> Result<Option<T>, Failure> {
        self.wait_for_any(limit, |at, streams, connections, now| {
            // With manual progress the loops of all queues run.
            if at == queue { condition(streams, connections, now) } else { None }
        })
    }

    /// Waits until `condition`, called with each queue in turn, returns a value.
    fn wait_for_any<T>(
        &self,
        limit: Option<Duration>,
        mut condition: impl FnMut(usize, &mut Streams, &mut Connections, EngineInstant) -> Option<T>,
    ) -> Result<Option<T>, Failure> {
        let mut until = None;
        let mut polls = 0_u32;
        let is_one = self.nodes.len() == 1;
        let most = limit.unwrap_or(WAIT_MAX).min(WAIT_MAX);
        let step = if self.spins || !is_one { Duration::ZERO } else { most };
        loop {
            for (queue, node) in self.nodes.iter().enumerate() {
                match node.wait(Some(step), |streams, io, now| condition(queue, streams, io, now)) {
                    Ok(result) => return Ok(Some(result)),
                    Err(WaitError::TimedOut) => {}
                    Err(error) => return Err(Failure::work(error.to_string())),
                }
            }
            polls = polls.wrapping_add(1);
            if !self.spins || polls.is_multiple_of(POLLS_PER_CLOCK) {
                self.waker.interrupted()?;
                let now = Instant::now();
                let until = *until.get_or_insert_with(|| limit.map(|limit| now + limit));
                if until.is_some_and(|until| until <= now) {
                    return Ok(None);
                }
                match self.nodes[0].progress() {
                    _ if is_one => {}
                    Progress::Manual => yield_now(),
                    Progress::Automatic | Progress::Shared => park_timeout(most),
                }
            }
        }
    }
}

/// Returns the reason why a stream can be neither read nor written.
fn ended(status: Option<StreamStatus>) -> Option<Failure> {
    let Some(status) = status else { return Some(Failure::work("TCP: connection not found")) };
    match status.error {
        Some(error) => Some(Failure::work(format!("TCP: {error}"))),
        None if status.closed || (status.peer_closed && status.unread == 0) => {
            Some(Failure::work("TCP: connection closed by the peer"))
        }
        None => None,
    }
}

impl Stack for NodeStack {
    type Conn = Stream;

    fn station(&self) -> &Station {
        &self.station
    }

    fn listen(&mut self, port: u16) -> Result<SocketAddr, Failure> {
        let local = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        for (queue, node) in self.nodes.iter().enumerate() {
            let listener = node.with(|streams, _, _| streams.listen(local, BACKLOG));
            let listening =
                |streams: &mut Streams, _: &mut Connections, _| streams.listening(listener);
            match self.wait(queue, Some(ANSWER_LIMIT), listening)? {
                Some(Ok(_)) => self.listeners.push(listener),
                Some(Err(error)) => {
                    return Err(self.station.stream(&format!("listen on port {port}"), error));
                }
                None => return Err(Failure::work(format!("listen on port {port}: no reply"))),
            }
        }
        Ok(local)
    }

    fn accept(&mut self, limit: Option<Duration>) -> Result<Option<Stream>, Failure> {
        let accepted = self.wait_for_any(limit, |queue, streams, _, _| {
            let listener = self.listeners.get(queue)?;
            streams.accept(*listener).map(|handle| (queue, handle))
        })?;
        self.open.extend(accepted);
        Ok(accepted.map(|(queue, handle)| Stream { queue, handle, rest: Bytes::new() }))
    }

    fn connect(&mut self, remote: SocketAddr) -> Result<Stream, Failure> {
        let queue = self.connected % self.nodes.len();
        self.connected += 1;
        let node = &self.nodes[queue];
        let limit = self.station.limit();
        let handle = node.with(|streams, _, _| streams.connect(None, remote, limit));
        let connected = self.wait(queue, Some(limit + ANSWER_LIMIT), |streams, _, _| {
            let status = streams.status(handle)?;
            match status.error {
                Some(error) => {
                    Some(Err(self.station.stream(&format!("connect to {remote}"), error)))
                }
                None => (status.connected || status.closed).then_some(Ok(())),
            }
        })?;
        match connected {
            Some(Ok(())) => {
                self.open.insert((queue, handle));
                Ok(Stream { queue, handle, rest: Bytes::new() })
            }
            Some(Err(failure)) => {
                self.forget(queue, handle);
                Err(failure)
            }
            None => Err(Failure::work(format!("connect to {remote}: no reply"))),
        }
    }

    fn addresses(&self, conn: &Stream) -> (Option<SocketAddr>, Option<SocketAddr>) {
        let status = self.nodes[conn.queue].with(|streams, _, _| streams.status(conn.handle));
        status.map_or((None, None), |status| (status.local, status.remote))
    }

    fn is_offloaded(&self, conn: &Stream) -> bool {
        let status = self.nodes[conn.queue].with(|streams, _, _| streams.status(conn.handle));
        status.is_some_and(|status| status.state == OffloadState::Offloaded)
    }

    fn write(&mut self, conn: &mut Stream, data: &[u8]) -> Result<(), Failure> {
        let data = Bytes::copy_from_slice(data);
        self.nodes[conn.queue].with(|streams, connections, now| {
            streams.send(now, connections, conn.handle, data);
        });
        Ok(())
    }

    fn read(
        &mut self,
        conn: &mut Stream,
        buffer: &mut [u8],
        limit: Duration,
    ) -> Result<(), Failure> {
        let mut filled = 0;
        let handle = conn.handle;
        while filled < buffer.len() {
            if conn.rest.is_empty() {
                let received =
                    self.wait(conn.queue, Some(limit), |streams, connections, now| match streams
                        .receive(now, connections, handle)
                    {
                        Some(data) => Some(Ok(data)),
                        None => ended(streams.status(handle)).map(Err),
                    })?;
                conn.rest = match received {
                    Some(Ok(data)) => data,
                    Some(Err(failure)) => return Err(failure),
                    None => {
                        return Err(Failure::work(
                            "TCP: no data from the peer within the time limit",
                        ));
                    }
                };
            }
            let count = conn.rest.len().min(buffer.len() - filled);
            buffer[filled..filled + count].copy_from_slice(&conn.rest.split_to(count));
            filled += count;
        }
        Ok(())
    }

    fn is_readable(&mut self, conn: &mut Stream) -> bool {
        if !conn.rest.is_empty() {
            return true;
        }
        let status = self.nodes[conn.queue].with(|streams, _, _| streams.status(conn.handle));
        // A subsequent read returns the reason of the end.
        status.is_none_or(|status| status.unread > 0 || ended(Some(status)).is_some())
    }

    fn bulk(
        &mut self,
        data: &mut [Stream],
        control: &mut Stream,
        bulk: &mut Bulk,
    ) -> Result<(), Failure> {
        if self.message.len() != bulk.size_bytes {
            self.message = Bytes::from(vec![0x5a; bulk.size_bytes]);
        }
        let message = self.message.clone();
        let (mut polls, spins, before) = (0, self.spins, bulk.received_bytes);
        let (last, mut spoken) = (self.nodes.len() - 1, false);
        let moved = self.wait_for_any(Some(WAIT_MAX), |queue, streams, connections, now| {
            for stream in data.iter_mut().filter(|stream| stream.queue == queue) {
                let moved = move_bytes(streams, connections, now, stream, &message, bulk);
                if let Err(failure) = moved {
                    return Some(Err(failure));
                }
            }
            if queue == control.queue {
                let status = streams.status(control.handle);
                spoken = status.is_none_or(|it| it.unread > 0 || it.closed || it.peer_closed);
            }
            if queue != last {
                // All streams are served in turn.
                return None;
            }
            polls += 1;
            let is_flushed = bulk.budget.is_over();
            // With a sleeping wait, progress is returned immediately: it may complete the phase.
            let has_progress = !spins && bulk.received_bytes != before;
            (polls >= POLLS_PER_CLOCK || is_flushed || has_progress || spoken).then_some(Ok(()))
        })?;
        bulk.is_flushed = true;
        moved.unwrap_or(Ok(()))
    }

    fn await_end(&mut self, conn: &mut Stream, limit: Duration) -> Result<(), Failure> {
        let handle = conn.handle;
        let closed = self.wait(conn.queue, Some(limit), |streams, connections, now| {
            while streams.receive(now, connections, handle).is_some() {}
            streams.status(handle).is_none_or(|it| it.peer_closed || it.closed).then_some(())
        })?;
        closed.ok_or_else(|| Failure::work("TCP: no FIN from the peer within the time limit"))
    }

    fn close(&mut self, mut conn: Stream, limit: Duration) -> Result<(), Failure> {
        let (queue, handle) = (conn.queue, conn.handle);
        let was_closed = self.nodes[queue].with(|streams, connections, now| {
            streams.shutdown(now, connections, handle);
            streams.status(handle).is_some_and(|status| status.peer_closed)
        });
        let ended = self.await_end(&mut conn, limit).and_then(|()| {
            self.wait(queue, Some(limit), |streams, _, _| {
                // The active closer waits for the peer's FIN; the passive closer waits for the acknowledgment of its
                // own FIN.
                let done = |it: StreamStatus| !was_closed || it.shut_down || it.closed;
                streams.status(handle).is_none_or(done).then_some(())
            })
        });
        self.forget(queue, handle);
        match ended? {
            Some(()) => Ok(()),
            None => Err(Failure::work("TCP: FIN not acknowledged within the time limit")),
        }
    }

    fn interrupted(&self) -> Result<(), Failure> {
        self.waker.interrupted()
    }

    fn linger(&mut self) {
        // Failed connections are aborted, so that the peer receives a reset.
        for (queue, handle) in std::mem::take(&mut self.open) {
            self.forget(queue, handle);
        }
        self.nodes.iter().for_each(node::linger);
    }

    fn segments(&self) -> Option<Vec<u64>> {
        let of = |node: &Node<_>| node.with_engine(|engine, _| engine.stats().rx_segments);
        Some(self.nodes.iter().map(of).collect())
    }
}

impl Drop for NodeStack {
    fn drop(&mut self) {
        self.waker.clear();
    }
}

/// Sends within the in-flight limit, and takes received data.
fn move_bytes(
    streams: &mut Streams,
    connections: &mut Connections,
    now: EngineInstant,
    stream: &mut Stream,
    message: &Bytes,
    bulk: &mut Bulk,
) -> Result<(), Failure> {
    let handle = stream.handle;
    let Some(status) = streams.status(handle) else {
        return Err(Failure::work("TCP: connection not found"));
    };
    if let Some(failure) = ended(Some(status)) {
        return Err(failure);
    }
    if bulk.sends && !bulk.budget.is_over() {
        let room = bulk.flight_bytes.saturating_sub(status.unacknowledged) / message.len();
        let count = (room as u64).min(bulk.budget.left);
        for _ in 0..count {
            streams.send(now, connections, handle, message.clone());
        }
        bulk.budget.left -= count;
        bulk.sent += count;
    }
    if bulk.receives {
        bulk.received_bytes += std::mem::take(&mut stream.rest).len() as u64;
        while let Some(data) = streams.receive(now, connections, handle) {
            bulk.received_bytes += data.len() as u64;
        }
    }
    Ok(())
}
