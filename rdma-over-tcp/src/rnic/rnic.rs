//! The adapter: its objects, its streams, and what drives them.
//!
//! Everything enters in one of two ways: by a call of the transport, mostly with a way into one stream, or by a
//! consumer's call. The latter only notes what is to be done and has the transport call; that call does it.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet, VecDeque},
    vec::Vec,
};
use core::{fmt, net::SocketAddr};

use hashbrown::HashMap;
use offload_engine::{address::LocalAddress, time::Instant};

use super::{
    config::{CallbackThread, Config},
    connection::{
        cause::ConnectCause,
        connector::{Connector, ConnectorState},
        listener::ListenerState,
    },
    objects::{
        id::{CqId, Key, ListenerId, StreamId},
        later::Later,
        lifetime::{Callback, Return},
    },
    queues::srq::SrqEvent,
    stats::{ConnectionEntry, History},
    status::ConnectError,
    stream::Stream,
    tables::Objects,
    transport::{Command, LlpStream, Reservation, StreamEvent},
};
use crate::error::EndReason;

/// An RDMA adapter.
pub struct Rnic {
    pub(crate) config: Config,
    pub(crate) objects: Objects,
    pub(crate) streams: HashMap<StreamId, Stream>,
    /// Names for new streams.
    pub(crate) names: Box<dyn FnMut() -> StreamId + Send>,
    /// Requests to the transport.
    pub(crate) commands: VecDeque<Command>,
    /// Streams with something to do.
    kicks: Vec<StreamId>,
    /// The transport is gone.
    pub(crate) is_lost: bool,
    /// Called when it is.
    loss: Option<Callback>,
    deadlines: Deadlines,
    /// Ends of requests that are held back.
    pub(crate) later: Later,
    /// Notifications of completion queues that are held back, by the end of their time.
    holds: BTreeMap<(Instant, u64), (CqId, u64)>,
    holds_begun: u64,
}

/// The deadlines of streams.
#[derive(Debug, Default)]
struct Deadlines(BTreeSet<(Instant, StreamId)>);

impl Deadlines {
    /// A stream's deadline was `before`, and is another now, perhaps.
    #[inline]
    fn change(&mut self, id: StreamId, before: Option<Instant>, after: Option<Instant>) {
        if before != after {
            self.replace(id, before, after);
        }
    }

    fn replace(&mut self, id: StreamId, before: Option<Instant>, after: Option<Instant>) {
        if let Some(before) = before {
            self.0.remove(&(before, id));
        }
        self.0.extend(after.map(|after| (after, id)));
    }

    /// Removes the first that is due.
    #[inline]
    fn take_due(&mut self, now: Instant) -> Option<StreamId> {
        let due = self.first().is_some_and(|deadline| deadline <= now);
        if due { self.0.pop_first().map(|(_, id)| id) } else { None }
    }

    fn first(&self) -> Option<Instant> {
        self.0.first().map(|(deadline, _)| *deadline)
    }
}

impl fmt::Debug for Rnic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { objects, streams, .. } = self;
        f.debug_struct("Rnic").field("objects", objects).field("streams", streams).finish()
    }
}

impl Rnic {
    /// An adapter whose streams get their names from `names`. `wake` is called when a callback has returned, which may
    /// let objects go (NDK-LIFE-6): it makes the thread that runs the transport call [`Rnic::run`] again.
    pub(crate) fn new(
        config: Config,
        names: Box<dyn FnMut() -> StreamId + Send>,
        wake: Box<dyn Fn() + Send + Sync>,
    ) -> Self {
        let objects = Objects::new(config.limits, config.capabilities, config.seed, wake);
        let later = Later::new(config.deferral);
        Self {
            config,
            objects,
            streams: HashMap::new(),
            names,
            commands: VecDeque::new(),
            kicks: Vec::new(),
            is_lost: false,
            loss: None,
            deadlines: Deadlines::default(),
            later,
            holds: BTreeMap::new(),
            holds_begun: 0,
        }
    }

    /// The history of each connection, until it is gone.
    pub fn histories(&self) -> impl Iterator<Item = &History> {
        self.streams.values().map(|stream| &stream.history)
    }

    /// The connections that are established.
    pub fn connections(&self) -> Vec<ConnectionEntry> {
        let entry = |connector: &Connector| {
            let qp = connector.qp?;
            let stats = self.objects.qps.get(qp)?.stats;
            let (local, remote) = (connector.local?, connector.remote?);
            Some(ConnectionEntry { local, remote, qp: qp.number(), stats })
        };
        let objects = &self.objects;
        objects
            .connectors
            .names()
            .filter_map(|id| objects.connectors.get(id))
            .filter(|connector| connector.state == ConnectorState::Connected)
            .filter_map(entry)
            .collect()
    }

    /// Local endpoints: of listeners that listen (`true`), and shared ones (`false`).
    pub fn local_endpoints(&self) -> Vec<(SocketAddr, bool)> {
        let Objects { listeners, shared_endpoints, .. } = &self.objects;
        let listening = listeners.names().filter_map(|id| listeners.get(id));
        let listening = listening.filter(|listener| listener.state == ListenerState::Listening);
        let listening = listening.filter_map(|listener| Some((listener.local?, true)));
        let shared = shared_endpoints.names().filter_map(|id| shared_endpoints.get(id));
        let shared = shared.filter_map(|endpoint| Some((endpoint.endpoint?.address, false)));
        listening.chain(shared).collect()
    }

    /// Returns whether the adapter is closed: it has no object left, and takes none.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.objects.is_closed()
    }

    /// Returns whether no object is left but the adapter itself.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.objects.count() == 0
    }

    /// Has `event` called when the transport is gone, once, behind what ends by that; now if it is gone already.
    pub fn notify_of_loss(&mut self, event: Callback) {
        if self.is_lost {
            self.objects.outbox.push((), event);
        } else {
            self.loss = Some(event);
        }
    }

    /// Notes that a stream has something to do.
    pub(crate) fn kick(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.is_open() && !stream.is_kicked {
            stream.is_kicked = true;
            self.kicks.push(id);
        }
    }

    /// As [`Rnic::kick`], of a stream that the transport has opened. One that is noted twice has one turn all the same.
    pub(crate) fn kick_open(&mut self, id: StreamId) {
        self.kicks.push(id);
    }

    /// A pass of the transport begins: what was left to it is sent, and nothing is left meanwhile.
    pub(crate) fn begin_poll(&mut self) {
        self.objects.may_leave = false;
        while let Some(id) = self.objects.left.pop() {
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.is_left = false;
                self.kicks.push(id);
            }
        }
    }

    /// The pass is over. Posts until the next one leave to it what fills no list, as long as the connection flows.
    pub(crate) const fn end_poll(&mut self) {
        self.objects.may_leave = true;
    }

    /// Works on a stream outside of a call of the transport; the next one does what this notes.
    pub(crate) fn with_stream(
        &mut self,
        id: StreamId,
        work: impl FnOnce(&mut Stream, &mut Objects, &Config),
    ) {
        let Self { streams, objects, config, deadlines, .. } = self;
        if let Some(stream) = streams.get_mut(&id) {
            let before = stream.deadline;
            work(stream, objects, config);
            deadlines.change(id, before, stream.deadline);
            self.kick(id);
        }
    }

    /// Aborts a stream. One that is not open yet is forgotten: if its handshake is done, the abort follows when the
    /// transport opens it, else nothing comes of it any more.
    pub(crate) fn abort_stream(&mut self, id: StreamId) {
        self.with_stream(id, |stream, _, _| stream.abort());
        let Some(stream) = self.streams.get(&id) else { return };
        if !stream.is_open() {
            if !stream.is_established {
                self.forget(id);
            }
            self.commands.push_back(Command::Abort { stream: id });
        }
    }

    /// Works on a stream in a call of the transport.
    #[inline]
    fn upcall<T: LlpStream>(
        &mut self,
        id: StreamId,
        io: &mut T,
        work: impl FnOnce(&mut Stream, &mut Objects, &Config, &mut T),
    ) {
        let Self { streams, objects, config, deadlines, .. } = self;
        if let Some(stream) = streams.get_mut(&id) {
            let before = stream.deadline;
            work(stream, objects, config, io);
            deadlines.change(id, before, stream.deadline);
        }
        self.finish_upcall();
    }

    /// Removes a stream.
    fn forget(&mut self, id: StreamId) -> Option<Stream> {
        let stream = self.streams.remove(&id)?;
        self.deadlines.change(id, stream.deadline, None);
        Some(stream)
    }

    /// The end of a call: completions go to their queues, connections end of queue pairs whose completion queue has
    /// failed, and the transport is asked to release addresses.
    #[inline]
    fn finish_upcall(&mut self) {
        self.objects.deliver_completions();
        if !self.objects.doomed.is_empty() {
            self.end_doomed();
        }
        if self.objects.endpoints.has_released() {
            self.release_addresses();
        }
        if !self.objects.retries.is_empty() {
            self.retry_plain();
        }
    }

    #[cold]
    fn release_addresses(&mut self) {
        let released = self.objects.endpoints.take_released().into_iter();
        self.commands.extend(released.map(|reservation| Command::Release { reservation }));
    }

    /// NDK-CQ-13: queue pairs whose completion queue has overrun are unusable, connected or not.
    #[cold]
    fn end_doomed(&mut self) {
        while let Some(id) = self.objects.doomed.pop() {
            if let Some(stream) = self.objects.qps.get(id).and_then(|qp| qp.stream) {
                self.with_stream(stream, |stream, objects, _| {
                    stream.lost_by(objects, ConnectError::Aborted, EndReason::CqOverrun);
                    stream.abort();
                });
            }
            // A connect that has failed leaves it idle.
            self.objects.break_qp(id);
            self.objects.deliver_completions();
        }
    }

    /// Lets the time of notifications run that are held back (NDK-MOD-5), and tells those whose time is over.
    #[cold]
    fn run_holds(&mut self, now: Instant) {
        for id in core::mem::take(&mut self.objects.held) {
            let queue = self.objects.cqs.get(id).map(|cq| &cq.queue);
            if let Some((hold, interval)) = queue.and_then(|queue| queue.begin_hold()) {
                self.holds_begun += 1;
                self.holds.insert((now + interval, self.holds_begun), (id, hold));
            }
        }
        while let Some(entry) = self.holds.first_entry().filter(|entry| entry.key().0 <= now) {
            let (id, hold) = entry.remove();
            if let Some(cq) = self.objects.cqs.get(id) {
                cq.queue.end_hold(hold);
            }
            self.objects.notify(id);
        }
    }

    /// Timers, returned callbacks, failures of completion queues. Returns whether there was anything.
    #[inline]
    pub(crate) fn run(&mut self, now: Instant) -> bool {
        let mut worked = self.objects.returns.is_pending() && self.take_returns();
        while let Some(id) = self.deadlines.take_due(now) {
            worked = true;
            self.with_stream(id, |stream, objects, config| stream.expire(objects, config, now));
        }
        if !self.later.is_empty() {
            worked |= self.end_held(Some(now));
        }
        self.finish_upcall();
        if !self.objects.held.is_empty() || !self.holds.is_empty() {
            self.run_holds(now);
        }
        worked
    }

    /// Acts on the returns of callbacks. Returns whether there were any.
    pub(crate) fn take_returns(&mut self) -> bool {
        let returns = self.objects.returns.take();
        let worked = !returns.is_empty();
        for returned in returns {
            match returned {
                Return::Unpin(key) => self.objects.unpin(key),
                Return::CqNotification(cq) => self.objects.notification_returned(cq),
                Return::Unused(region) => self.objects.registration_unused(region),
                Return::Refuse(connector) => self.refuse(connector),
            }
        }
        worked
    }

    /// Has all streams let go of memory that is wanted back.
    pub(crate) fn recall_memory(&mut self) {
        let Self { streams, kicks, .. } = self;
        for (id, stream) in streams.iter_mut().filter(|(_, stream)| stream.is_open()) {
            stream.is_recalling = true;
            if !core::mem::replace(&mut stream.is_kicked, true) {
                kicks.push(*id);
            }
        }
    }

    /// When [`Rnic::run`] is due next.
    pub(crate) fn run_at(&self) -> Option<Instant> {
        let hold = self.holds.first_key_value().map(|((at, _), _)| *at);
        self.deadlines.first().into_iter().chain(hold).chain(self.later.first()).min()
    }

    /// Returns whether [`Rnic::run`], [`Rnic::next_command`] or [`Rnic::next_kick`] has something now, or after
    /// [`Rnic::begin_poll`].
    pub(crate) fn has_work(&self) -> bool {
        self.objects.returns.is_pending()
            || !self.kicks.is_empty()
            || !self.objects.left.is_empty()
            || !self.commands.is_empty()
            || !self.objects.held.is_empty()
    }

    /// Returns whether callbacks wait for a thread that runs the loop ([`CallbackThread::Own`]).
    #[cfg(feature = "node")]
    pub(crate) fn has_callbacks_of_loop(&self) -> bool {
        self.config.callbacks == CallbackThread::Own && !self.objects.outbox.0.is_empty()
    }

    /// The next request to the transport.
    #[inline]
    pub(crate) fn next_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// The next stream for which the transport is to call [`Rnic::handle_room`].
    #[inline]
    pub(crate) fn next_kick(&mut self) -> Option<StreamId> {
        self.kicks.pop()
    }

    /// Callbacks that became due.
    pub(crate) fn callbacks(&mut self) -> &mut Vec<Callback> {
        self.objects.deliver_completions();
        &mut self.objects.outbox.0
    }

    /// As [`Rnic::callbacks`], of those that any thread may call.
    pub(crate) fn take_callbacks_of_calls(&mut self, callbacks: &mut Vec<Callback>) {
        if self.config.callbacks == CallbackThread::Caller {
            callbacks.append(self.callbacks());
        }
    }

    /// The handshake of a stream is done: of one that was asked for, or that came in at `listener`. Said twice it means
    /// nothing new.
    pub(crate) fn handle_established(
        &mut self,
        now: Instant,
        id: StreamId,
        listener: Option<ListenerId>,
        (local, remote): (SocketAddr, SocketAddr),
    ) {
        match self.streams.get_mut(&id) {
            Some(stream) if stream.is_established => return,
            Some(stream) => {
                stream.is_established = true;
                let connector = stream.connector.and_then(|id| self.objects.connectors.get_mut(id));
                if let Some(connector) = connector {
                    connector.local = Some(local);
                    connector.remote = Some(remote);
                    let endpoints = &mut self.objects.endpoints;
                    connector.endpoint = Some(match connector.shared {
                        // The reservation is the shared endpoint's (NDK-EP-1).
                        Some(_) => endpoints.reference(local),
                        None => endpoints.reserve(local, Reservation::Stream(id)),
                    });
                }
            }
            None => {
                let listener = listener.filter(|id| self.objects.is_open(Key::Listener(*id)));
                let stream = match listener {
                    Some(listener) => self.incoming_stream(id, listener, (local, remote)),
                    // The listener was closed meanwhile (NDK-EP-5).
                    None => {
                        let reservation = Reservation::Stream(id);
                        self.commands.push_back(Command::Abort { stream: id });
                        self.commands.push_back(Command::Release { reservation });
                        Stream::orphan(id)
                    }
                };
                self.streams.insert(id, stream);
            }
        }
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.history.offloading = Some(now);
        }
    }

    /// A connection that has come in at `listener`. It may displace another one.
    fn incoming_stream(
        &mut self,
        id: StreamId,
        listener: ListenerId,
        addresses: (SocketAddr, SocketAddr),
    ) -> Stream {
        let Some(found) = self.objects.listeners.get_mut(listener) else {
            return Stream::orphan(id);
        };
        let (number, displaced) = found.awaiting.add(id, addresses.1.ip(), &found.config);
        if let Some(displaced) = displaced {
            self.objects.counters.requests_displaced += 1;
            self.end_stream(displaced, ConnectError::Aborted);
        }
        Stream::passive(id, listener, number, addresses)
    }

    /// The transport has the stream: bytes may flow, for the first time or where it is now.
    pub(crate) fn handle_open(&mut self, id: StreamId, io: &mut impl LlpStream) {
        self.upcall(id, io, |stream, objects, config, io| match stream.is_open() {
            false => stream.open(objects, config, io),
            true => stream.act(objects, config, io),
        });
    }

    /// Bytes in order. Returns how many are taken: all, or less and no more until
    /// [`LlpStream::resume_receive`], where the transport may be refused ([`LlpStream::MAY_REFUSE`]).
    #[inline(always)]
    pub(crate) fn handle_received(
        &mut self,
        id: StreamId,
        io: &mut impl LlpStream,
        data: &[u8],
    ) -> usize {
        let mut taken = data.len();
        self.upcall(id, io, |stream, objects, config, io| {
            taken = stream.receive(objects, config, io, data);
        });
        taken
    }

    /// All lists up to the one with serial `end` are acknowledged; `None`: lists came back that never will be.
    pub(crate) fn handle_sent(&mut self, id: StreamId, io: &mut impl LlpStream, end: Option<u64>) {
        self.upcall(id, io, |stream, objects, config, io| stream.sent(objects, config, io, end));
    }

    /// There is room again, or the stream was kicked.
    #[inline(always)]
    pub(crate) fn handle_room(&mut self, id: StreamId, io: &mut impl LlpStream) {
        self.upcall(id, io, |stream, objects, config, io| stream.act(objects, config, io));
    }

    /// A direction of the stream has ended, or all of it.
    pub(crate) fn handle_event(
        &mut self,
        id: StreamId,
        io: &mut impl LlpStream,
        event: StreamEvent,
    ) {
        self.upcall(id, io, |stream, objects, config, io| {
            stream.event(objects, config, io, event);
        });
        if event == StreamEvent::Released {
            self.forget(id);
        }
    }

    /// The stream could not be opened, or is gone without another call.
    pub(crate) fn handle_gone(&mut self, id: StreamId, error: ConnectError) {
        if let Some(mut stream) = self.forget(id) {
            if let Some(connector) = stream.connector
                && error == ConnectError::TimedOut
                && !stream.is_established
            {
                let cause = ConnectCause::NoHandshake(self.config.connect_timeout);
                self.objects.note_cause(connector, cause);
            }
            stream.lost(&mut self.objects, error);
        }
        self.finish_upcall();
    }

    /// The transport is gone: every request that is pending ends, and no connection is made any more.
    pub(crate) fn handle_device_lost(&mut self) {
        self.is_lost = true;
        self.commands.clear();
        self.kicks.clear();
        self.objects.left.clear();
        self.deadlines = Deadlines::default();
        // NDK-CQ-14: the arms are told of the loss, not of the flush.
        let cqs: Vec<_> = self.objects.cqs.names().collect();
        for cq in cqs.iter().filter_map(|id| self.objects.cqs.get(*id)) {
            cq.queue.lose_device();
        }
        for (_, mut stream) in self.streams.drain() {
            stream.lost(&mut self.objects, ConnectError::DeviceLost);
        }
        let qps: Vec<_> = self.objects.qps.names().collect();
        qps.into_iter().for_each(|id| self.objects.break_qp(id));
        let listeners: Vec<_> = self.objects.listeners.names().collect();
        for id in listeners {
            self.handle_listen_failed(id, ConnectError::DeviceLost);
        }
        let endpoints: Vec<_> = self.objects.shared_endpoints.names().collect();
        for id in endpoints {
            self.handle_bind_failed(id, ConnectError::DeviceLost);
        }
        let srqs: Vec<_> = self.objects.srqs.names().collect();
        srqs.into_iter().for_each(|id| self.objects.tell_srq(id, SrqEvent::DeviceLost));
        self.end_held(None);
        self.objects.deliver_completions();
        cqs.into_iter().for_each(|id| self.objects.notify(id));
        if let Some(event) = self.loss.take() {
            self.objects.outbox.push((), event);
        }
    }

    /// The listener listens at `local`.
    pub(crate) fn handle_listening(&mut self, id: ListenerId, local: SocketAddr) {
        let Some(listener) = self.objects.listeners.get_mut(id) else { return };
        if listener.state != ListenerState::Starting {
            return;
        }
        listener.state = ListenerState::Listening;
        listener.local = Some(local);
        let reservation = Reservation::Listener(id);
        let local = LocalAddress { address: local, v6_only: listener.config.v6_only };
        listener.endpoint = Some(self.objects.endpoints.reserve(local, reservation));
        self.end_listen(id, Ok(()));
    }

    /// The transport cannot listen there.
    pub(crate) fn handle_listen_failed(&mut self, id: ListenerId, error: ConnectError) {
        if let Some(listener) = self.objects.listeners.get_mut(id) {
            listener.state = ListenerState::Idle;
        }
        self.end_listen(id, Err(error));
    }

    fn end_listen(&mut self, id: ListenerId, outcome: Result<(), ConnectError>) {
        let request =
            self.objects.listeners.get_mut(id).and_then(|listener| listener.request.take());
        if let Some(completion) = request {
            self.objects.end_request(Key::Listener(id), completion, outcome);
        }
    }
}
