//! The core of an adapter: its objects, its streams, and what drives them.
//!
//! Everything that happens enters through one of three doors: an upcall of the target (with a way into
//! one connection), a notice of the host stack, or a consumer's call. The latter two only note what is to
//! be done and have the engine kicked; the upcall that follows does it.

use alloc::{boxed::Box, collections::BTreeSet, vec::Vec};

use hashbrown::HashMap;
use host_stack::socket::{HostError, ListenerId, Notice, Request, SocketPort};
use offload_engine::{
    chimney::client::{ConnectionEvent, ConnectionIo, OffloadClient, OffloadHandle},
    engine::{Callback, Connections, NodeClient},
    nbl::{NblChain, NetBufferList, ReceiveChain},
    time::Instant,
};

use super::{
    config::AdapterConfig,
    connector::{Connector, ConnectorState},
    lifetime::{Key, Return},
    listener::{Listener, ListenerState},
    objects::Objects,
    qp::ConnectionEntry,
    slab::Id,
    status::NtStatus,
    stream::{History, Stream},
    wire::Wire,
};

/// An adapter.
#[derive(Debug)]
pub struct AdapterCore {
    pub(crate) config: AdapterConfig,
    pub(crate) port: SocketPort,
    pub(crate) objects: Objects,
    pub(crate) streams: HashMap<OffloadHandle, Stream>,
    pub(crate) listeners: HashMap<ListenerId, Id<Listener>>,
    /// Streams with something to do.
    kicks: Vec<OffloadHandle>,
    /// Deadlines of streams; one that is no longer the stream's own is void.
    deadlines: BTreeSet<(Instant, OffloadHandle)>,
}

impl AdapterCore {
    /// An adapter that asks the host stack for connections through `port`. `wake` is called when a callback
    /// has returned, which may let others go (NDK-LIFE-6): it makes the thread that runs the engine poll again.
    #[must_use]
    pub fn new(config: AdapterConfig, port: SocketPort, wake: Box<dyn Fn() + Send + Sync>) -> Self {
        let objects = Objects::new(config.info, config.capabilities, config.seed, wake);
        Self {
            config,
            port,
            objects,
            streams: HashMap::new(),
            listeners: HashMap::new(),
            kicks: Vec::new(),
            deadlines: BTreeSet::new(),
        }
    }

    /// The port to the host stack. Whoever polls takes the notices from it and hands them to
    /// [`AdapterCore::handle_notice`].
    #[must_use]
    pub const fn port(&self) -> &SocketPort {
        &self.port
    }

    /// How each connection came to be where it is, until it is gone.
    pub fn histories(&self) -> impl Iterator<Item = &History> {
        self.streams.values().map(|stream| &stream.history)
    }

    /// Takes a notice of the host stack.
    pub fn handle_notice(&mut self, now: Instant, notice: Notice) {
        match notice {
            Notice::Listening { listener, local } => self.listening(listener, local),
            Notice::ListenFailed { listener, error } => self.listen_failed(listener, error),
            Notice::Established { handle, listener, local, remote, offloading, .. } => {
                self.established(handle, listener, (local, remote), offloading);
                if let Some(stream) = self.streams.get_mut(&handle) {
                    stream.history.offloading = Some(now);
                }
            }
            Notice::ConnectFailed { handle, error } => self.lose(handle, connect_status(error)),
            Notice::Closed { handle, .. } => self.lose(handle, NtStatus::CONNECTION_ABORTED),
            // What only connections have that stay in the host.
            Notice::Offloading { .. }
            | Notice::Returned { .. }
            | Notice::Uploaded { .. }
            | Notice::Data { .. }
            | Notice::Sent { .. }
            | Notice::PeerClosed { .. } => {}
        }
    }

    /// A connection ended in the host: before it was offloaded, or after it had come back.
    fn lose(&mut self, handle: OffloadHandle, status: NtStatus) {
        if let Some(mut stream) = self.streams.remove(&handle) {
            stream.lost(&mut self.objects, status);
        }
        self.objects.deliver_completions();
    }

    /// Notes that a stream has something to do.
    pub(crate) fn kick(&mut self, handle: OffloadHandle) {
        let Some(stream) = self.streams.get_mut(&handle) else { return };
        if stream.is_offloaded() && !stream.is_kicked {
            stream.is_kicked = true;
            self.kicks.push(handle);
        }
    }

    /// As [`AdapterCore::kick`], of a stream that the target has. One that is noted twice has one turn all the same.
    pub(crate) fn kick_offloaded(&mut self, handle: OffloadHandle) {
        self.kicks.push(handle);
    }

    /// Works on a stream outside of an upcall; what it notes is done by the next one.
    pub(crate) fn with_stream(
        &mut self,
        handle: OffloadHandle,
        work: impl FnOnce(&mut Stream, &mut Objects, &AdapterConfig),
    ) {
        let Self { streams, objects, config, .. } = self;
        if let Some(stream) = streams.get_mut(&handle) {
            work(stream, objects, config);
            self.schedule(handle);
            self.kick(handle);
        }
    }

    /// Aborts a stream. One that is still with the host stack is forgotten there: if its hand-over is
    /// under way the abort is done when the target has it, else nothing comes of it any more.
    pub(crate) fn abort_stream(&mut self, handle: OffloadHandle) {
        self.with_stream(handle, |stream, _, _| stream.abort());
        let Some(stream) = self.streams.get(&handle) else { return };
        if !stream.is_offloaded() {
            if !stream.is_established {
                self.streams.remove(&handle);
            }
            self.port.request(Request::Abort { handle });
        }
    }

    /// Works on a stream in an upcall.
    fn upcall<W: Wire>(
        &mut self,
        handle: OffloadHandle,
        wire: &mut W,
        work: impl FnOnce(&mut Stream, &mut Objects, &AdapterConfig, &mut W),
    ) {
        let Self { streams, objects, config, deadlines, .. } = self;
        if let Some(stream) = streams.get_mut(&handle) {
            work(stream, objects, config, wire);
            if let Some(deadline) = stream.deadline {
                deadlines.insert((deadline, handle));
            }
        }
        self.finish_upcall();
    }

    fn schedule(&mut self, handle: OffloadHandle) {
        if let Some(deadline) = self.streams.get(&handle).and_then(|stream| stream.deadline) {
            self.deadlines.insert((deadline, handle));
        }
    }

    /// The end of an upcall, or of what is like one: completions go to their queues, and connections end of
    /// queue pairs whose completion queue has failed.
    #[inline]
    fn finish_upcall(&mut self) {
        self.objects.deliver_completions();
        if !self.objects.doomed.is_empty() {
            self.end_doomed();
        }
    }

    #[cold]
    fn end_doomed(&mut self) {
        while let Some(handle) = self.objects.doomed.pop() {
            self.with_stream(handle, |stream, objects, _| {
                stream.lost(objects, NtStatus::CONNECTION_ABORTED);
                stream.abort();
            });
            self.objects.deliver_completions();
        }
    }

    /// Timers, returned callbacks, failures of completion queues. Returns whether there was anything.
    pub(crate) fn run(&mut self, now: Instant) -> bool {
        let mut worked = false;
        for returned in self.objects.returns.take() {
            worked = true;
            match returned {
                Return::Unpin(key) => self.objects.unpin(key),
                Return::CqNotification(cq) => self.objects.notification_returned(cq),
                Return::Refuse(connector) => self.refuse(connector),
            }
        }
        while let Some(&(deadline, handle)) = self.deadlines.first() {
            if deadline > now {
                break;
            }
            self.deadlines.pop_first();
            worked = true;
            let is_due =
                self.streams.get(&handle).is_some_and(|stream| stream.deadline == Some(deadline));
            if is_due {
                self.with_stream(handle, |stream, objects, _| stream.expire(objects));
            }
        }
        self.finish_upcall();
        worked
    }

    /// A poll by somebody who reads the channel from the host stack itself.
    pub(crate) fn poll_without_notices(
        &mut self,
        now: Instant,
        connections: &mut Connections,
    ) -> bool {
        let mut worked = self.run(now);
        while let Some(handle) = self.next_kick() {
            worked = true;
            connections.kick(handle);
        }
        worked
    }

    /// The next stream to be kicked.
    pub(crate) fn next_kick(&mut self) -> Option<OffloadHandle> {
        self.kicks.pop()
    }

    pub(crate) fn on_offloaded(&mut self, handle: OffloadHandle, wire: &mut impl Wire) {
        self.upcall(handle, wire, |stream, objects, config, wire| {
            stream.offloaded(objects, config, wire);
        });
    }

    pub(crate) fn on_receive(&mut self, handle: OffloadHandle, wire: &mut impl Wire, data: &[u8]) {
        self.upcall(handle, wire, |stream, objects, config, wire| {
            stream.receive(objects, config, wire, data);
        });
    }

    pub(crate) fn on_send_complete(
        &mut self,
        handle: OffloadHandle,
        wire: &mut impl Wire,
        chain: NblChain,
    ) {
        self.upcall(handle, wire, |stream, objects, config, wire| {
            stream.send_complete(objects, config, wire, chain);
        });
    }

    pub(crate) fn on_send_room(&mut self, handle: OffloadHandle, wire: &mut impl Wire) {
        self.upcall(handle, wire, |stream, objects, config, wire| {
            stream.act(objects, config, wire);
        });
    }

    pub(crate) fn on_disconnect_complete(&mut self, handle: OffloadHandle, wire: &mut impl Wire) {
        self.upcall(handle, wire, |stream, objects, _, _| stream.disconnect_complete(objects));
    }

    pub(crate) fn on_event(
        &mut self,
        handle: OffloadHandle,
        wire: &mut impl Wire,
        event: ConnectionEvent,
    ) {
        self.upcall(handle, wire, |stream, objects, config, wire| {
            stream.event(objects, config, wire, event);
        });
        if event == ConnectionEvent::Released {
            self.streams.remove(&handle);
        }
    }

    /// The host has taken a connection back because the target is rid of all (UPLOAD_ALL, CH s5.7). NDK runs on
    /// offloaded connections only, so it ends: the host resets it, and nobody reads its lists any more.
    pub(crate) fn on_uploaded(&mut self, handle: OffloadHandle) {
        self.lose(handle, NtStatus::CONNECTION_ABORTED);
    }

    /// Callbacks that became due.
    pub(crate) fn callbacks(&mut self) -> &mut Vec<Callback> {
        self.objects.deliver_completions();
        &mut self.objects.outbox.0
    }

    /// The connections there are.
    pub(crate) fn connections(&self) -> Vec<ConnectionEntry> {
        let entry = |connector: &Connector| {
            let stats = self.objects.qps.get(connector.qp?)?.stats;
            Some(ConnectionEntry { local: connector.local?, remote: connector.remote?, stats })
        };
        let objects = &self.objects;
        objects
            .connectors
            .ids()
            .filter_map(|id| objects.connectors.get(id))
            .filter(|connector| connector.state == ConnectorState::Connected)
            .filter_map(entry)
            .collect()
    }

    /// Whether no object is left but the adapter itself.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.objects.count() == 0
    }

    /// Closes the adapter: `completion` follows when every descendant is closed and its callbacks have
    /// returned (NDK-LIFE-9).
    pub(crate) fn close_adapter(&mut self, completion: Box<dyn FnOnce() + Send>) -> NtStatus {
        self.objects.close(Key::Adapter, completion)
    }

    fn listening(&mut self, name: ListenerId, local: core::net::SocketAddr) {
        let Some(&id) = self.listeners.get(&name) else { return };
        let Some(listener) = self.objects.listeners.get_mut(id) else { return };
        listener.state = ListenerState::Listening;
        listener.local = Some(local);
        listener.endpoint = Some(self.objects.endpoints.reference(local));
        self.end_listen(id, NtStatus::SUCCESS);
    }

    fn listen_failed(&mut self, name: ListenerId, error: HostError) {
        let Some(id) = self.listeners.remove(&name) else { return };
        if let Some(listener) = self.objects.listeners.get_mut(id) {
            listener.state = ListenerState::Idle;
            listener.name = None;
        }
        self.end_listen(id, connect_status(error));
    }

    fn end_listen(&mut self, id: Id<Listener>, status: NtStatus) {
        let request =
            self.objects.listeners.get_mut(id).and_then(|listener| listener.request.take());
        if let Some(completion) = request {
            self.objects.end_request(Key::Listener(id), completion, status);
        }
    }
}

/// What a consumer is told of the host stack's errors.
const fn connect_status(error: HostError) -> NtStatus {
    match error {
        HostError::Refused | HostError::Reset => NtStatus::CONNECTION_REFUSED,
        HostError::TimedOut | HostError::RetransmissionLimit | HostError::Unanswered(_) => {
            NtStatus::IO_TIMEOUT
        }
        HostError::HostUnreachable => NtStatus::HOST_UNREACHABLE,
        HostError::NetworkUnreachable => NtStatus::NETWORK_UNREACHABLE,
        HostError::AddressNotAvailable => NtStatus::INVALID_ADDRESS,
        HostError::AddressInUse => NtStatus::SHARING_VIOLATION,
        HostError::NoPorts => NtStatus::TOO_MANY_ADDRESSES,
        HostError::Aborted => NtStatus::CONNECTION_ABORTED,
        _ => NtStatus::INSUFFICIENT_RESOURCES,
    }
}

impl OffloadClient for AdapterCore {
    fn offloaded(&mut self, io: &mut ConnectionIo<'_>) {
        // What the connection brought along is wanted (CH-DEL-3).
        io.resume_receive();
        self.on_offloaded(io.handle, io);
    }

    fn receive(&mut self, io: &mut ConnectionIo<'_>, data: &[u8], _push: bool) -> usize {
        self.on_receive(io.handle, io, data);
        data.len()
    }

    fn receive_complete(&mut self, _io: &mut ConnectionIo<'_>, _chain: ReceiveChain) {
        // Posts no receive requests.
    }

    fn send_complete(&mut self, io: &mut ConnectionIo<'_>, chain: NblChain) {
        self.on_send_complete(io.handle, io, chain);
    }

    fn send_room(&mut self, io: &mut ConnectionIo<'_>) {
        self.on_send_room(io.handle, io);
    }

    fn disconnect_complete(&mut self, io: &mut ConnectionIo<'_>, _nbl: NetBufferList) {
        self.on_disconnect_complete(io.handle, io);
    }

    fn uploaded(&mut self, handle: OffloadHandle) {
        self.on_uploaded(handle);
    }

    fn event(&mut self, io: &mut ConnectionIo<'_>, event: ConnectionEvent) {
        self.on_event(io.handle, io, event);
    }
}

impl NodeClient for AdapterCore {
    fn name() -> &'static str {
        "NDK"
    }

    fn poll(&mut self, now: Instant, connections: &mut Connections) -> bool {
        let mut worked = false;
        while let Some(notice) = self.port.notice() {
            worked = true;
            self.handle_notice(now, notice);
        }
        worked | self.poll_without_notices(now, connections)
    }

    fn poll_at(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    fn has_input(&self) -> bool {
        self.port.has_notice() || self.objects.returns.is_pending() || !self.kicks.is_empty()
    }

    fn take_callbacks(&mut self, callbacks: &mut Vec<Callback>) {
        callbacks.append(self.callbacks());
    }
}
