//! Adapter on kernel sockets: a sequence of non-blocking passes.

mod datagrams;
mod opening;

use alloc::{
    boxed::Box,
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    vec,
    vec::Vec,
};
use core::{mem::MaybeUninit, net::SocketAddr};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use hashbrown::HashMap;
use offload_engine::{
    chimney::client::OffloadHandle,
    descriptor::{Guarded, move_to_high_number},
    engine::Callback,
    link::{CaptureOutput, CaptureStatus, Direction, Recorder},
    listing::{ConnectionRow, MigrationCounts, OffloadState, SocketState},
    runtime::Passive,
    socket::{TcpInfo, TcpStatistics},
    time::{Duration, Instant},
};
use rustix::{
    event::{
        Timespec,
        epoll::{self, CreateFlags, Event, EventFlags},
    },
    io::Errno,
    net::{RecvFlags, getpeername, getsockname, recv, sockopt},
};

use super::{
    capture::Capture,
    datagrams::DatagramSockets,
    kernel::{address, check_keep_alive, end_error, ends},
    listening::ListeningSocket,
    stream::{ReceiveState, SendState, SocketIo, SocketStream, Stage},
};
use crate::{
    rnic::{
        Config, ConnectError, FpduSize, Rnic, SharedEndpointId, StreamId, objects::id::ListenerId,
        transport::StreamEvent,
    },
    transport::buffers::Spare,
};

/// Bytes of one receive: a few large FPDUs, and still within the second-level cache.
const RECEIVE_BYTES: usize = 256 * 1024;

/// Bytes that a stream may receive, or send, before the other streams are served.
const TURN_BYTES: usize = 1 << 20;

/// Maximum number of hot streams, which are read in each pass.
const HOT_MAX: usize = 4;

/// Passes over the hot streams per query of the epoll set.
const HOT_POLLS: u32 = 16;

/// Passes in which the hot streams may receive nothing; then only epoll is queried.
const HOT_MISSES_MAX: u32 = 1000;

/// Maximum events of one pass.
const EVENTS_MAX: usize = 64;

/// Time limit for the peer's FIN after it has acknowledged this side's.
const FIN_WAIT_MAX: Duration = Duration::from_secs(60);

/// Listener on a kernel socket.
#[derive(Debug)]
struct Listening {
    id: ListenerId,
    socket: Arc<ListeningSocket>,
    backlog: usize,
    /// True if it accepts no connections; its address stays reserved.
    is_closed: bool,
    /// End of the pause in accepting, after a lack of descriptors or memory.
    paused_until: Option<Instant>,
}

/// Adapter whose streams are kernel sockets.
#[derive(Debug)]
pub struct SocketRnic {
    rnic: Rnic,
    poller: Arc<Guarded<OwnedFd>>,
    capture: Option<Capture>,
    /// True if each list ends a segment.
    is_aligned: bool,
    streams: HashMap<StreamId, SocketStream>,
    listeners: HashMap<u64, Listening>,
    /// Names of the listeners in the epoll set.
    names: HashMap<ListenerId, u64>,
    /// Listening sockets inherited from the process that forked this one.
    inherited: Vec<(SocketAddr, Guarded<OwnedFd>)>,
    /// Sockets of queue pairs without a connection.
    datagrams: DatagramSockets,
    /// Sockets that reserve the addresses of shared endpoints.
    endpoints: HashMap<SharedEndpointId, Guarded<OwnedFd>>,
    /// Streams and listeners that are not drained.
    ready: VecDeque<u64>,
    /// Time limits of handshakes and of peers' FINs, and ends of listeners' pauses.
    deadlines: BTreeSet<(Instant, u64)>,
    received: Box<[u8]>,
    /// Streams that have received recently, the latest first.
    hot: Vec<StreamId>,
    /// True if the last query of the epoll set returned more than [`HOT_MAX`] events.
    is_crowded: bool,
    /// Passes since the last query of the epoll set.
    hot_polls: u32,
    /// Consecutive passes in which the hot streams received nothing.
    hot_misses: u32,
    spare: Spare,
    /// Number of runs of the loop.
    run: u64,
    next_name: NextName,
}

/// Counter of the names of streams and listeners.
type NextName = Arc<core::sync::atomic::AtomicU64>;

impl SocketRnic {
    /// Creates an adapter without connections. `wake` is called after each callback.
    ///
    /// # Errors
    /// No free descriptor, or (InvalidInput) keep-alive outside the kernel's range.
    pub(crate) fn new(config: Config, wake: Box<dyn Fn() + Send + Sync>) -> io::Result<Self> {
        config.keep_alive.as_ref().map_or(Ok(()), check_keep_alive)?;
        let next_name = NextName::default();
        let names = next_name.clone();
        let is_aligned = config.fpdu_size != FpduSize::Max;
        let name = move || StreamId(allocate(&names));
        let poller: Arc<Guarded<OwnedFd>> =
            Arc::new(move_to_high_number(epoll::create(CreateFlags::CLOEXEC)?).into());
        Ok(Self {
            rnic: Rnic::new(config, Box::new(name), wake),
            datagrams: DatagramSockets::new(poller.clone()),
            poller,
            capture: None,
            is_aligned,
            streams: HashMap::new(),
            listeners: HashMap::new(),
            names: HashMap::new(),
            inherited: Vec::new(),
            endpoints: HashMap::new(),
            ready: VecDeque::new(),
            deadlines: BTreeSet::new(),
            received: vec![0; RECEIVE_BYTES].into(),
            hot: Vec::with_capacity(HOT_MAX),
            is_crowded: false,
            hot_polls: 0,
            hot_misses: 0,
            spare: Spare::default(),
            run: 0,
            next_name,
        })
    }

    /// Returns the adapter.
    pub const fn rnic(&mut self) -> &mut Rnic {
        &mut self.rnic
    }

    /// Starts recording the bytes sent and received, also of open connections.
    ///
    /// # Errors
    /// AlreadyExists: a capture runs.
    pub(crate) fn start_capture(&mut self, recorder: Recorder<CaptureOutput>) -> io::Result<()> {
        if self.capture.is_some() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "a capture runs: --pcap"));
        }
        let mut capture = Capture::new(recorder);
        for (id, stream) in self.streams.iter().filter(|(_, it)| it.stage == Stage::Open) {
            // A failed connection has no peer.
            if let Ok(addresses) = ends(stream.socket.as_fd()) {
                capture.adopt(*id, addresses);
            }
        }
        self.capture = Some(capture);
        Ok(())
    }

    /// Stops the capture and returns its final state; `None`: none runs.
    pub(crate) fn stop_capture(&mut self) -> Option<CaptureStatus> {
        self.capture.take().map(Capture::finish)
    }

    /// Returns the state of the capture; `None`: none runs.
    pub(crate) fn capture(&self) -> Option<CaptureStatus> {
        self.capture.as_ref().map(Capture::status)
    }

    /// Flushes the capture's buffer.
    pub(crate) fn flush_capture(&mut self) {
        if let Some(capture) = &mut self.capture {
            capture.flush();
        }
    }

    /// Returns the rows of listeners and connections.
    pub(crate) fn rows(&self) -> Vec<ConnectionRow> {
        let row = |name: u64, socket: BorrowedFd<'_>, remote: Option<SocketAddr>, send_q| {
            let state = TcpInfo::of(socket).map(|info| SocketState::of_kernel(info.state));
            Some(ConnectionRow {
                handle: OffloadHandle(name),
                local: getsockname(socket).and_then(address).ok()?,
                remote,
                state,
                offload: OffloadState::Kernel,
                recv_q: Some(0),
                send_q: Some(send_q),
                moves: MigrationCounts::default(),
            })
        };
        let listeners = self.listeners.iter().filter(|(_, listening)| !listening.is_closed);
        let listeners = listeners.map(|(name, it)| {
            it.socket.with(|socket| Ok(row(*name, socket, None, it.backlog))).ok().flatten()
        });
        let connections = self.streams.iter().map(|(id, it)| {
            let remote = getpeername(&it.socket).ok().flatten();
            row(id.0, it.socket.as_fd(), remote.and_then(|it| address(it).ok()), it.queued_bytes())
        });
        let mut rows: Vec<_> = listeners.chain(connections).flatten().collect();
        rows.sort_by_key(|row| row.handle.0);
        rows
    }

    /// Returns the kernel's statistics of a connection.
    pub(crate) fn statistics(&self, handle: OffloadHandle) -> Option<TcpStatistics> {
        TcpStatistics::of(self.streams.get(&StreamId(handle.0))?.socket.as_fd())
    }

    /// True if no byte, handshake or FIN sent is unacknowledged. Makes the kernel send pending acknowledgments at
    /// once.
    #[cfg(all(test, feature = "simulation"))]
    pub(crate) fn is_quiescent(&self) -> bool {
        /// SYN-SENT, SYN-RECEIVED, FIN-WAIT-1, LAST-ACK and CLOSING.
        const WAITING: [u8; 5] = [2, 3, 4, 9, 11];
        self.streams.values().fold(true, |is_quiescent, stream| {
            // A closed one has nothing to acknowledge.
            let _ = sockopt::set_tcp_quickack(&stream.socket, true);
            let info = TcpInfo::of(stream.socket.as_fd()).expect("a TCP socket");
            is_quiescent && info.unacked == 0 && !WAITING.contains(&info.state)
        })
    }

    /// True if there is no connection.
    pub(crate) fn is_silent(&self) -> bool {
        self.streams.is_empty()
    }

    /// Returns the descriptor that is readable when a socket is ready.
    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.poller
    }

    /// Returns the socket of a listener.
    pub(crate) fn listening_socket(&self, listener: ListenerId) -> Option<Arc<ListeningSocket>> {
        let listening = self.listeners.get(self.names.get(&listener)?)?;
        (!listening.is_closed).then(|| listening.socket.clone())
    }

    /// Makes the next listener at this address use a socket that already listens.
    pub(crate) fn inherit(&mut self, local: SocketAddr, socket: OwnedFd) {
        self.inherited.push((local, socket.into()));
    }

    /// Handles the events of one socket.
    fn handle_ready(&mut self, now: Instant, name: u64, events: EventFlags) {
        let id = StreamId(name);
        let Some(stream) = self.streams.get_mut(&id) else {
            if !self.handle_datagram_events(name, events) {
                self.accept(now, name);
            }
            return;
        };
        if stream.stage == Stage::Connecting {
            if events.intersects(EventFlags::OUT | EventFlags::ERR | EventFlags::HUP) {
                self.set_deadline(id, None);
                self.handle_connected(now, id);
            }
            return;
        }
        if events.contains(EventFlags::ERR)
            && stream.receive_state == ReceiveState::Refused
            && let Ok(Err(error)) = sockopt::socket_error(&stream.socket)
        {
            // No read follows that would return the error.
            self.fail(now, id, error);
            return;
        }
        stream.is_writable |= events.contains(EventFlags::OUT);
        let is_end = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
        if events.intersects(EventFlags::IN | is_end)
            && self.receive(now, id, events.intersects(is_end))
            && !self.hot.contains(&id)
        {
            self.hot.truncate(HOT_MAX - 1);
            self.hot.insert(0, id);
            self.hot_misses = 0;
        }
        self.advance(now, id);
    }

    /// Reads the hot streams. Returns true if any data was received.
    fn poll_hot(&mut self, now: Instant) -> bool {
        for at in 0..self.hot.len() {
            let id = self.hot[at];
            if self.receive(now, id, false) {
                self.hot_misses = 0;
                // The stream may have ended.
                if self.hot.get(at) == Some(&id) {
                    self.hot[..=at].rotate_right(1);
                }
                self.advance(now, id);
                self.watch_blocked(id);
                return true;
            }
            self.watch_blocked(id);
        }
        self.hot_misses += 1;
        if self.hot_misses > HOT_MISSES_MAX {
            self.hot.clear();
        }
        false
    }

    /// Requests a query of the epoll set in this pass if the stream waits for room: the set reports it.
    fn watch_blocked(&mut self, id: StreamId) {
        if self.streams.get(&id).is_some_and(SocketStream::awaits_room) {
            self.hot_polls = HOT_POLLS;
        }
    }

    /// Receives until no data is left, or for one turn. Returns true if any data was received.
    fn receive(&mut self, now: Instant, id: StreamId, to_the_end: bool) -> bool {
        let Self { rnic, streams, received, spare, ready, capture, poller, .. } = self;
        let mut bytes = 0;
        loop {
            let Some(stream) = streams.get_mut(&id) else { return bytes > 0 };
            if stream.is_fin_received
                || stream.is_reset
                || stream.receive_state == ReceiveState::Refused
            {
                return bytes > 0;
            }
            if !stream.refused.is_empty() {
                let refused = core::mem::take(&mut stream.refused);
                let io = &mut SocketIo { now, stream, spare };
                let taken = rnic.handle_received(id, io, &refused);
                bytes += taken;
                if taken < refused.len()
                    && let Err(error) = stream.refuse(&refused[taken..], poller)
                {
                    self.fail(now, id, error);
                    return true;
                }
                continue;
            }
            match recv(&stream.socket, &mut received[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    stream.is_fin_received = true;
                    if let Some(capture) = capture {
                        capture.end(now, id, Direction::Inbound);
                    }
                    let io = &mut SocketIo { now, stream, spare };
                    rnic.handle_event(id, io, StreamEvent::PeerClosed);
                    return true;
                }
                Ok((count, _)) => {
                    bytes += count;
                    if let Some(capture) = capture {
                        capture.received(now, id, &received[..count]);
                    }
                    let io = &mut SocketIo { now, stream, spare };
                    let taken = rnic.handle_received(id, io, &received[..count]);
                    if taken < count {
                        if let Err(error) = stream.refuse(&received[taken..count], poller) {
                            self.fail(now, id, error);
                        }
                        return true;
                    }
                    // A short read: the kernel's buffer is empty.
                    if count < received.len() && !to_the_end {
                        return true;
                    }
                    if bytes >= TURN_BYTES {
                        if !core::mem::replace(&mut stream.is_ready, true) {
                            ready.push_back(id.0);
                        }
                        return true;
                    }
                }
                Err(Errno::AGAIN) => return bytes > 0,
                Err(Errno::INTR) => {}
                Err(error) => {
                    self.fail(now, id, error);
                    return true;
                }
            }
        }
    }

    /// Calls the adapter for a stream.
    fn call(
        &mut self,
        now: Instant,
        id: StreamId,
        call: impl FnOnce(&mut Rnic, &mut SocketIo<'_>),
    ) {
        let Self { rnic, streams, spare, .. } = self;
        if let Some(stream) = streams.get_mut(&id) {
            call(rnic, &mut SocketIo { now, stream, spare });
        }
    }

    /// Performs the writes and ends that result from calls of the adapter.
    fn advance(&mut self, now: Instant, id: StreamId) {
        let mut bytes = 0;
        loop {
            let Self { rnic, streams, spare, ready, run, poller, capture, .. } = self;
            let Some(stream) = streams.get_mut(&id) else { return };
            if stream.is_reset {
                self.reset(now, id);
                return;
            }
            if !stream.has_queued() || !stream.is_writable {
                break;
            }
            if bytes >= TURN_BYTES {
                if !core::mem::replace(&mut stream.is_ready, true) {
                    ready.push_back(id.0);
                }
                return;
            }
            let written = stream.write(*run, poller, |pieces, bytes| {
                if let Some(capture) = capture {
                    capture.sent(now, id, pieces, bytes);
                }
            });
            match written.map(|bytes| (bytes, stream.advance(bytes, spare))) {
                Ok((written, end)) => {
                    bytes += written;
                    if end.is_some() {
                        let io = &mut SocketIo { now, stream, spare };
                        rnic.handle_sent(id, io, end);
                    }
                }
                Err(error) => {
                    self.receive_rest(now, id);
                    self.fail(now, id, error);
                    return;
                }
            }
        }
        self.finish(now, id);
    }

    /// Receives data that arrived before the connection failed, such as a Terminate. The error was already read, so the
    /// end of the data would be taken for a FIN.
    fn receive_rest(&mut self, now: Instant, id: StreamId) {
        let Self { rnic, streams, received, spare, capture, .. } = self;
        let Some(stream) = streams.get_mut(&id) else { return };
        if stream.receive_state != ReceiveState::Accepting {
            // Data would be delivered out of order: the refused data is first.
            return;
        }
        while let Ok((count @ 1.., _)) =
            recv(&stream.socket, &mut received[..], RecvFlags::DONTWAIT)
        {
            if let Some(capture) = capture {
                capture.received(now, id, &received[..count]);
            }
            rnic.handle_received(id, &mut SocketIo { now, stream, spare }, &received[..count]);
        }
    }

    /// Ends the directions or the stream as requested, after all queued data is written.
    fn finish(&mut self, now: Instant, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        match stream.finish_resume(&self.poller) {
            Ok(false) => {}
            Ok(true) => {
                if !core::mem::replace(&mut stream.is_ready, true) {
                    self.ready.push_back(id.0);
                }
            }
            Err(error) => {
                self.fail(now, id, error);
                return;
            }
        }
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.send_state == SendState::FinQueued && !stream.has_queued() {
            if let Err(error) = stream.shut_down(&self.poller) {
                self.fail(now, id, error);
                return;
            }
            if let Some(capture) = &mut self.capture {
                capture.end(now, id, Direction::Outbound);
            }
        }
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.take_fin_acknowledged() {
            if let Ok(Err(error)) = sockopt::socket_error(&stream.socket) {
                self.fail(now, id, error);
                return;
            }
            self.set_deadline(id, Some(now + FIN_WAIT_MAX));
            self.call(now, id, |rnic, io| rnic.handle_event(id, io, StreamEvent::ShutDown));
        }
        let is_over = |stream: &SocketStream| {
            stream.is_fin_received && stream.send_state == SendState::FinAcknowledged
        };
        if self.streams.get(&id).is_some_and(is_over) {
            self.release(now, id);
        }
    }

    fn release(&mut self, now: Instant, id: StreamId) {
        self.call(now, id, |rnic, io| rnic.handle_event(id, io, StreamEvent::Released));
        self.remove(id);
    }

    pub(super) fn remove(&mut self, id: StreamId) -> Option<SocketStream> {
        self.hot.retain(|hot| *hot != id);
        if let Some(capture) = &mut self.capture {
            capture.remove(id);
        }
        self.set_deadline(id, None);
        self.streams.remove(&id)
    }

    pub(super) fn set_deadline(&mut self, id: StreamId, deadline: Option<Instant>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if let Some(before) = core::mem::replace(&mut stream.deadline, deadline) {
            self.deadlines.remove(&(before, id.0));
        }
        self.deadlines.extend(deadline.map(|deadline| (deadline, id.0)));
    }

    fn reset(&mut self, now: Instant, id: StreamId) {
        self.call(now, id, |rnic, io| rnic.handle_event(id, io, StreamEvent::ShutDown));
        if let Some(stream) = self.streams.get(&id) {
            stream.reset_on_close();
        }
        if let Some(capture) = &mut self.capture {
            capture.reset(now, id);
        }
        self.release(now, id);
    }

    /// Handles the failure of a connection.
    fn fail(&mut self, now: Instant, id: StreamId, error: Errno) {
        if let Some(stream) = self.streams.get(&id) {
            stream.reset_on_close();
        }
        if matches!(error, Errno::CONNRESET | Errno::PIPE) {
            self.call(now, id, |rnic, io| rnic.handle_event(id, io, StreamEvent::Reset));
            self.release(now, id);
            return;
        }
        self.remove(id);
        self.rnic.handle_stream_lost(id, end_error(error));
    }

    fn expire(&mut self, now: Instant) -> bool {
        let mut worked = false;
        while let Some(&(deadline, name)) = self.deadlines.first().filter(|(at, _)| *at <= now) {
            self.deadlines.remove(&(deadline, name));
            worked = true;
            let id = StreamId(name);
            match self.streams.get(&id).map(|stream| (stream.stage, stream.send_state)) {
                Some((Stage::Connecting, _)) => {
                    self.remove(id);
                    self.rnic.handle_stream_lost(id, ConnectError::TimedOut);
                }
                // The peer has not sent its FIN: the kernel waits for it without the stream.
                Some((_, SendState::FinAcknowledged)) => self.release(now, id),
                Some(_) => {}
                None => self.accept(now, name),
            }
        }
        worked
    }

    /// Serves streams that have more to read or to write. Returns true if there were any.
    fn run_ready(&mut self, now: Instant) -> bool {
        let count = self.ready.len();
        for _ in 0..count {
            let Some(name) = self.ready.pop_front() else { break };
            let id = StreamId(name);
            match self.streams.get_mut(&id) {
                Some(stream) => {
                    stream.is_ready = false;
                    self.receive(now, id, true);
                    self.advance(now, id);
                }
                None => {
                    if !self.receive_datagrams(name, true) {
                        self.accept(now, name);
                    }
                }
            }
        }
        count > 0
    }

    /// Handles the events of the sockets.
    fn take_events(&mut self, now: Instant) -> io::Result<bool> {
        let mut events = [MaybeUninit::<Event>::uninit(); EVENTS_MAX];
        let events = match epoll::wait(&self.poller, &mut events, Some(&Timespec::default())) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        self.is_crowded = events.len() > HOT_MAX;
        for event in &*events {
            // Copied: the structure is packed.
            let (flags, data) = (event.flags, event.data);
            self.handle_ready(now, data.u64(), flags);
        }
        Ok(!events.is_empty())
    }

    /// Resets all connections that were not closed gracefully.
    fn close(&mut self) {
        for (_, stream) in self.streams.drain() {
            if stream.send_state < SendState::FinSent && !stream.sends_fin_at_exit {
                stream.reset_on_close();
            }
        }
        self.listeners.clear();
        self.endpoints.clear();
        self.datagrams.close();
    }
}

impl Drop for SocketRnic {
    fn drop(&mut self) {
        self.close();
    }
}

impl Passive for SocketRnic {
    fn poll(&mut self, now: Instant) -> io::Result<bool> {
        self.run += 1;
        self.rnic.begin_poll();
        let worked = self.settle(now);
        let mut taken = self.poll_hot(now);
        self.hot_polls += 1;
        // A handshake may have been completed in time, and be found late: all sockets precede an expired limit.
        let has_expired = self.deadlines.first().is_some_and(|(at, _)| *at <= now);
        if has_expired || self.is_crowded || self.hot.is_empty() || self.hot_polls >= HOT_POLLS {
            self.hot_polls = 0;
            let queries = if has_expired { 1 + self.streams.len() / EVENTS_MAX } else { 1 };
            for _ in 0..queries {
                if !self.take_events(now)? {
                    break;
                }
                taken = true;
            }
        }
        let expired = self.expire(now);
        let settled = self.settle(now);
        self.rnic.end_poll();
        Ok(settled | worked | taken | expired)
    }

    fn settle(&mut self, now: Instant) -> bool {
        let mut worked = self.rnic.run(now);
        while let Some(command) = self.rnic.next_command() {
            worked = true;
            self.execute(now, command);
        }
        while let Some(id) = self.rnic.next_scheduled() {
            worked = true;
            self.call(now, id, |rnic, io| rnic.handle_room(id, io));
            self.advance(now, id);
        }
        worked |= self.transmit_datagrams();
        worked | self.run_ready(now)
    }

    fn poll_at(&self, _now: Instant) -> Option<Instant> {
        let own = self.deadlines.first().map(|(deadline, _)| *deadline);
        self.rnic.run_at().into_iter().chain(own).min()
    }

    fn has_input(&self) -> bool {
        self.rnic.has_work() || !self.ready.is_empty()
    }

    fn awaits_writable(&self) -> bool {
        // The epoll set includes it.
        false
    }

    fn received(&self) -> u64 {
        self.rnic.counters().fpdu_in
    }

    fn take_callbacks(&mut self, callbacks: &mut Vec<Callback>) {
        callbacks.append(self.rnic.callbacks());
    }

    fn take_callbacks_of_calls(&mut self, callbacks: &mut Vec<Callback>) {
        self.rnic.take_callbacks_of_calls(callbacks);
    }

    fn device_lost(&mut self) {
        self.close();
        self.rnic.handle_device_lost();
    }

    fn repeat_last_acks(&mut self, _now: Instant) {
        // The kernel's TIME-WAIT outlives the process.
    }
}

fn allocate(names: &NextName) -> u64 {
    names.fetch_add(1, core::sync::atomic::Ordering::Relaxed)
}
