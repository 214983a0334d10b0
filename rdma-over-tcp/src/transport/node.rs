//! Adapter that is a client of a node: its streams are connections of the node, in the host stack or the offload
//! target.
//!
//! A stream has the number of its connection. Requests to the host stack and its notices use the client's port. A
//! connection owned by the offload target is a plain one (`offloaded`) without state in this module; any other has a
//! [`HostStream`]. A connection can be offloaded or uploaded at any time, on request of the user or of either stack:
//! the queue pair above is not affected.

use alloc::{boxed::Box, vec::Vec};
use core::net::SocketAddr;

use hashbrown::HashMap;
use host_stack::{
    socket::{EndpointId, HostError, ListenerId as ListenerName, Notice, Request, SocketPort},
    switch::Switch,
};
use offload_engine::{
    address::{LocalAddress, unscoped},
    chimney::client::{ConnectionEvent, ConnectionIo, OffloadClient, OffloadHandle},
    engine::{Callback, Connections, NodeClient},
    nbl::{NblChain, NetBufferList, ReceiveChain},
    status::NdisStatus,
    time::Instant,
};

use super::{
    buffers::Spare,
    host::{HostIo, HostStream},
    looped::LoopbackConnections,
    node_datagrams::NodeDatagrams,
    offloaded::Io,
};
use crate::rnic::{
    Config, ConnectError, FpduSize, Rnic, StreamId,
    objects::id::{ListenerId, SharedEndpointId},
    transport::{Command, LlpStream, Reservation, StreamEvent},
};

/// Call of the adapter for one stream.
#[derive(Clone, Copy)]
enum Call<'a> {
    Open,
    Received(&'a [u8]),
    Sent(Option<u64>),
    Room,
    Event(StreamEvent),
}

impl Call<'_> {
    /// Makes the call. Returns the number of bytes accepted.
    #[inline(always)]
    fn to(self, rnic: &mut Rnic, id: StreamId, io: &mut impl LlpStream) -> usize {
        match self {
            Self::Received(data) => return rnic.handle_received(id, io, data),
            Self::Open => rnic.handle_open(id, io),
            Self::Sent(end) => rnic.handle_sent(id, io, end),
            Self::Room => rnic.handle_room(id, io),
            Self::Event(event) => rnic.handle_event(id, io, event),
        }
        0
    }
}

/// Adapter whose streams are connections of a node.
#[derive(Debug)]
pub struct NodeRnic {
    rnic: Rnic,
    port: SocketPort,
    listeners: HashMap<ListenerName, ListenerId>,
    names: HashMap<ListenerId, ListenerName>,
    /// Host endpoints mapped to shared endpoints, and the reverse.
    endpoints: HashMap<EndpointId, SharedEndpointId>,
    endpoint_names: HashMap<SharedEndpointId, EndpointId>,
    /// Streams that the target does not own, or not completely.
    moving: HashMap<StreamId, HostStream>,
    /// True if each segment begins with an FPDU.
    is_aligned: bool,
    /// True if addresses stay reserved while connections accepted there exist.
    keeps_endpoints: bool,
    /// Connections of the adapter to itself.
    loops: LoopbackConnections,
    datagrams: NodeDatagrams,
    spare: Spare,
}

impl NodeRnic {
    /// Creates an adapter that requests connections from the host stack through `port`. `wake` makes the engine's
    /// thread poll again: it is called after each callback, which may destroy objects.
    #[must_use]
    pub fn new(config: Config, port: SocketPort, wake: Box<dyn Fn() + Send + Sync>) -> Self {
        let names = port.clone();
        port.request(Request::KeepAlive { keep_alive: config.keep_alive });
        let is_aligned = config.fpdu_size == FpduSize::Emss;
        let keeps_endpoints = config.exclusive_endpoints;
        Self {
            rnic: Rnic::new(config, Box::new(move || StreamId(names.allocate())), wake),
            datagrams: NodeDatagrams::new(port.clone()),
            port,
            listeners: HashMap::new(),
            names: HashMap::new(),
            endpoints: HashMap::new(),
            endpoint_names: HashMap::new(),
            moving: HashMap::new(),
            is_aligned,
            keeps_endpoints,
            loops: LoopbackConnections::default(),
            spare: Spare::default(),
        }
    }

    /// Returns the adapter.
    pub const fn rnic(&mut self) -> &mut Rnic {
        &mut self.rnic
    }

    /// Requests the UDP port of a queue pair number. [`NodeRnic::datagrams_answer`] has the answer.
    pub(crate) fn open_datagrams(&mut self, port: u16) {
        self.rnic.keep_datagrams(port);
        self.datagrams.open(port);
    }

    /// True if the host stack has sent all datagrams.
    pub(crate) const fn are_datagrams_sent(&self) -> bool {
        self.datagrams.are_sent()
    }

    /// Returns the answer to a request for a UDP port; `None`: not answered.
    pub(crate) fn datagrams_answer(&mut self, port: u16) -> Option<Result<(), HostError>> {
        self.datagrams.answer(port)
    }

    fn execute(&mut self, now: Instant, command: Command) {
        let endpoint = |name| self.keeps_endpoints.then_some(EndpointId(name));
        let request = match command {
            Command::Connect { stream, local, endpoint: shared, remote, timeout } => {
                let shared = shared.and_then(|id| self.endpoint_names.get(&id)).copied();
                Request::Connect {
                    handle: OffloadHandle(stream.0),
                    local: local.map(unscoped),
                    endpoint: shared.or_else(|| endpoint(stream.0)),
                    remote: unscoped(remote),
                    timeout,
                    at_once: true,
                }
            }
            Command::Bind { endpoint, local } => {
                let name = EndpointId(self.port.allocate());
                self.endpoints.insert(name, endpoint);
                self.endpoint_names.insert(endpoint, name);
                Request::Bind { endpoint: name, local: unscoped(local) }
            }
            Command::Listen { listener, local, backlog } => {
                let name = ListenerName(self.port.allocate());
                self.listeners.insert(name, listener);
                self.names.insert(listener, name);
                let endpoint = endpoint(name.0);
                let local = LocalAddress { address: unscoped(local.address), ..local };
                Request::Listen { listener: name, local, endpoint, backlog, at_once: true }
            }
            Command::Unlisten { listener } => match self.names.get(&listener) {
                Some(name) => {
                    self.listeners.remove(name);
                    Request::Unlisten { listener: *name }
                }
                None => return,
            },
            Command::Release { reservation: Reservation::Stream(stream) } => {
                Request::Unbind { endpoint: EndpointId(stream.0) }
            }
            // The last command for a listener.
            Command::Release { reservation: Reservation::Listener(id) } => {
                match self.names.remove(&id) {
                    Some(name) => Request::Unbind { endpoint: EndpointId(name.0) },
                    None => return,
                }
            }
            Command::Release { reservation: Reservation::Shared(id) } => {
                match self.endpoint_names.remove(&id) {
                    Some(name) => {
                        self.endpoints.remove(&name);
                        Request::Unbind { endpoint: name }
                    }
                    None => return,
                }
            }
            Command::Abort { stream } if self.loops.contains(stream) => {
                let Self { loops, rnic, spare, .. } = self;
                return loops.abort(now, stream, rnic, spare);
            }
            Command::Abort { stream } => Request::Abort { handle: OffloadHandle(stream.0) },
            Command::CloseDatagrams { port } => return self.datagrams.close(port),
        };
        self.port.request(request);
    }

    fn handle_notice(&mut self, now: Instant, connections: &mut Connections, notice: Notice) {
        match notice {
            Notice::Listening { listener, local } => {
                if let Some(id) = self.listeners.get(&listener) {
                    self.rnic.handle_listening(*id, local);
                }
            }
            Notice::ListenFailed { listener, error } => {
                if let Some(id) = self.listeners.remove(&listener) {
                    self.names.remove(&id);
                    self.rnic.handle_listen_failed(id, connect_error(error));
                }
            }
            Notice::Established { handle, listener, local, remote, offloading, mss } => {
                let id = StreamId(handle.0);
                let listener = listener.and_then(|name| self.listeners.get(&name)).copied();
                self.rnic.handle_established(now, id, listener, (local, remote));
                if !offloading {
                    // The connection stays in the host, or the target has rejected it.
                    let new = || HostStream::new(Switch::opening());
                    let stream = self.moving.entry(id).or_insert_with(new);
                    stream.switch.begin_in_host();
                    stream.mss = mss;
                    self.with_host_stream(now, id, |rnic, io| rnic.handle_open(id, io));
                }
            }
            Notice::Offloading { handle, unanswered, shutdown } => {
                if let Some(stream) = self.moving.get_mut(&StreamId(handle.0)) {
                    stream.switch.begin_offload(unanswered, shutdown);
                }
            }
            Notice::Returned { handle, chain, shutdown } => {
                let id = StreamId(handle.0);
                // A stream that has ended since then has no request left.
                let Some(stream) = self.moving.get_mut(&id) else { return };
                stream.switch.take_returned(chain, shutdown);
                if let Some(mut io) = connections.get(now, handle) {
                    self.settle(id, &mut io);
                }
            }
            Notice::Uploaded { handle, lists, bytes, mss } => {
                let id = StreamId(handle.0);
                if let Some(stream) = self.moving.get_mut(&id) {
                    stream.switch.complete_upload(lists, bytes);
                    stream.mss = mss;
                }
                self.with_host_stream(now, id, |rnic, io| rnic.handle_room(id, io));
            }
            Notice::Data { handle, data } => {
                let id = StreamId(handle.0);
                self.with_host_stream(now, id, |rnic, io| {
                    rnic.handle_received(id, io, &data);
                });
                self.port.request(Request::Consumed { handle, count: data.len() });
            }
            Notice::Sent { handle, chain } => {
                let id = StreamId(handle.0);
                if let Some(stream) = self.moving.get_mut(&id) {
                    chain.iter().for_each(|list| stream.switch.complete(list));
                }
                let end = self.completed(chain).1;
                self.with_host_stream(now, id, |rnic, io| rnic.handle_sent(id, io, end));
            }
            Notice::PeerClosed { handle } => {
                self.host_event(now, StreamId(handle.0), StreamEvent::PeerClosed);
            }
            Notice::ShutDown { handle } => {
                self.host_event(now, StreamId(handle.0), StreamEvent::ShutDown);
            }
            Notice::ConnectFailed { handle, error: HostError::OwnAddress { local, remote } } => {
                self.connect_loopback(now, StreamId(handle.0), (local, remote));
            }
            Notice::ConnectFailed { handle, error } => {
                self.rnic.handle_stream_lost(StreamId(handle.0), connect_error(error));
            }
            Notice::Closed { handle, error } => {
                let id = StreamId(handle.0);
                if error == Some(HostError::Reset) {
                    self.host_event(now, id, StreamEvent::Reset);
                }
                self.moving.remove(&id);
                self.rnic.handle_stream_lost(id, end_error(error));
            }
            Notice::Bound { endpoint, local } => {
                if let Some(id) = self.endpoints.get(&endpoint) {
                    self.rnic.handle_bound(*id, local);
                }
            }
            Notice::BindFailed { endpoint, error } => {
                if let Some(id) = self.endpoints.remove(&endpoint) {
                    self.endpoint_names.remove(&id);
                    self.rnic.handle_bind_failed(id, connect_error(error));
                }
            }
            Notice::DatagramsOpen { port } => self.datagrams.opened(port, Ok(())),
            Notice::DatagramsFailed { port, error } => self.datagrams.opened(port, Err(error)),
            Notice::Datagram { source, destination, data } => {
                let port = destination.port();
                self.rnic.handle_datagram(port, source, destination.ip(), &data);
                self.port.request(Request::DatagramConsumed { port, data });
            }
            Notice::DatagramSent { data } => {
                if self.datagrams.sent(data) {
                    self.rnic.handle_datagram_room();
                }
            }
        }
    }

    /// Connects to a listener of this adapter. The host stack has checked the local address.
    fn connect_loopback(
        &mut self,
        now: Instant,
        id: StreamId,
        (local, remote): (SocketAddr, SocketAddr),
    ) {
        let Some(listener) = self.rnic.listener_at(remote) else {
            return self.rnic.handle_stream_lost(id, ConnectError::Refused);
        };
        let passive = StreamId(self.port.allocate());
        self.loops.join(id, passive);
        self.rnic.handle_established(now, id, None, (local, remote));
        self.rnic.handle_established(now, passive, Some(listener), (remote, local));
        let Self { loops, rnic, spare, .. } = self;
        for id in [id, passive] {
            loops.call(now, id, rnic, spare, |rnic, io| rnic.handle_open(id, io));
        }
    }

    /// Calls the adapter for a stream outside of the target, and passes the resulting requests to the host. No effect
    /// for any other stream.
    fn with_host_stream(
        &mut self,
        now: Instant,
        id: StreamId,
        call: impl FnOnce(&mut Rnic, &mut HostIo<'_>),
    ) {
        let Self { rnic, moving, spare, port, is_aligned, .. } = self;
        let Some(stream) = moving.get_mut(&id) else { return };
        call(rnic, &mut HostIo { now, stream, spare });
        stream.switch.pass_to_host(port, OffloadHandle(id.0), *is_aligned);
    }

    fn host_event(&mut self, now: Instant, id: StreamId, event: StreamEvent) {
        self.with_host_stream(now, id, |rnic, io| rnic.handle_event(id, io, event));
    }

    /// Calls the adapter for a stream owned by the target. Returns the number of bytes accepted.
    #[inline(always)]
    fn call(&mut self, io: &mut ConnectionIo<'_>, call: Call<'_>) -> usize {
        let id = StreamId(io.handle.0);
        // Most nodes have no stream in migration.
        if !self.moving.is_empty() && self.moving.contains_key(&id) {
            return self.call_moving(id, io, call);
        }
        call.to(&mut self.rnic, id, &mut Io { io, spare: &mut self.spare })
    }

    /// As [`NodeRnic::call`], for a stream with a notice of the host still pending.
    #[cold]
    fn call_moving(&mut self, id: StreamId, io: &mut ConnectionIo<'_>, call: Call<'_>) -> usize {
        let mut taken = 0;
        self.with_host_stream(io.now, id, |rnic, io| taken = call.to(rnic, id, io));
        self.settle(id, io);
        taken
    }

    /// Passes the queued requests to the target if the switch allows it. Once settled, the stream is a plain offloaded
    /// one.
    fn settle(&mut self, id: StreamId, io: &mut ConnectionIo<'_>) {
        let Some(stream) = self.moving.get_mut(&id) else { return };
        if stream.switch.detects_offloaded_fin(|| io.query().delegated.state) {
            self.host_event(io.now, id, StreamEvent::ShutDown);
        }
        let Some(stream) = self.moving.get_mut(&id) else { return };
        stream.switch.post_to_target(io);
        if stream.switch.is_settled() {
            self.moving.remove(&id);
            self.rnic.handle_open(id, &mut Io { io, spare: &mut self.spare });
        }
    }

    /// Reclaims completed lists. Returns their chain, empty, and the serial of the last list that the peer has
    /// acknowledged.
    #[inline]
    fn completed(&mut self, mut chain: NblChain) -> (NblChain, Option<u64>) {
        let mut end = None;
        while let Some(list) = chain.pop_front() {
            if list.status == NdisStatus::SUCCESS {
                end = Some(list.context);
            }
            self.spare.keep(list.net_buffers);
        }
        (chain, end)
    }
}

/// Maps an error of the host stack to that of a consumer's connect.
const fn connect_error(error: HostError) -> ConnectError {
    match error {
        HostError::Refused | HostError::Reset => ConnectError::Refused,
        HostError::TimedOut | HostError::RetransmissionLimit | HostError::Unanswered(_) => {
            ConnectError::TimedOut
        }
        HostError::HostUnreachable => ConnectError::HostUnreachable,
        HostError::NetworkUnreachable => ConnectError::NetworkUnreachable,
        HostError::AddressNotAvailable => ConnectError::InvalidAddress,
        HostError::AddressInUse => ConnectError::AddressInUse,
        HostError::NoPorts => ConnectError::NoPorts,
        HostError::Aborted => ConnectError::Aborted,
        _ => ConnectError::NoResources,
    }
}

/// Maps the reason why an established connection has ended in the host.
const fn end_error(error: Option<HostError>) -> ConnectError {
    match error {
        Some(HostError::RetransmissionLimit | HostError::Unanswered(_)) => ConnectError::TimedOut,
        _ => ConnectError::Aborted,
    }
}

impl OffloadClient for NodeRnic {
    fn offloaded(&mut self, io: &mut ConnectionIo<'_>) {
        // Receive the bytes that were offloaded with the connection (CH-DEL-3).
        io.resume_receive();
        let id = StreamId(io.handle.0);
        match self.moving.get_mut(&id) {
            Some(stream) => {
                stream.switch.complete_offload();
                self.settle(id, io);
            }
            None => {
                self.call(io, Call::Open);
            }
        }
    }

    fn receive(&mut self, io: &mut ConnectionIo<'_>, data: &[u8], _push: bool) -> usize {
        self.call(io, Call::Received(data))
    }

    fn receive_complete(&mut self, _io: &mut ConnectionIo<'_>, _chain: ReceiveChain) {
        // This client posts no receive requests.
    }

    fn send_complete(&mut self, io: &mut ConnectionIo<'_>, chain: NblChain) {
        if !self.moving.is_empty()
            && let Some(stream) = self.moving.get_mut(&StreamId(io.handle.0))
        {
            chain.iter().for_each(|list| stream.switch.complete(list));
        }
        let (chain, end) = self.completed(chain);
        io.recycle_chain(chain);
        self.call(io, Call::Sent(end));
    }

    fn send_room(&mut self, io: &mut ConnectionIo<'_>) {
        self.call(io, Call::Room);
    }

    fn disconnect_complete(&mut self, io: &mut ConnectionIo<'_>, nbl: NetBufferList) {
        // A FIN that is uploaded to the host as part of the state is not complete yet.
        if nbl.status != NdisStatus::UPLOAD_IN_PROGRESS {
            self.call(io, Call::Event(StreamEvent::ShutDown));
        }
    }

    fn uploaded(&mut self, handle: OffloadHandle) {
        let new = || HostStream::new(Switch::offloaded());
        self.moving.entry(StreamId(handle.0)).or_insert_with(new).switch.begin_upload();
    }

    fn event(&mut self, io: &mut ConnectionIo<'_>, event: ConnectionEvent) {
        let call = match event {
            // The host stack receives the event too, and decides (CH-EVT-1): the stream continues there, or ends.
            ConnectionEvent::Retrieve(_) | ConnectionEvent::SendBacklogChange(_) => Call::Room,
            ConnectionEvent::Disconnect => Call::Event(StreamEvent::PeerClosed),
            ConnectionEvent::Abort => Call::Event(StreamEvent::Reset),
            ConnectionEvent::Released => Call::Event(StreamEvent::Released),
        };
        self.call(io, call);
        if event == ConnectionEvent::Released {
            self.moving.remove(&StreamId(io.handle.0));
        }
    }
}

impl NodeClient for NodeRnic {
    fn name() -> &'static str {
        "RDMA"
    }

    fn poll(&mut self, now: Instant, connections: &mut Connections) -> bool {
        let mut worked = false;
        while let Some(notice) = self.port.notice() {
            worked = true;
            self.handle_notice(now, connections, notice);
        }
        // Includes the end of received datagrams.
        worked |= self.rnic.run(now);
        while let Some(command) = self.rnic.next_command() {
            worked = true;
            self.execute(now, command);
        }
        while let Some(id) = self.rnic.next_scheduled() {
            worked = true;
            if self.loops.contains(id) {
                let Self { loops, rnic, spare, .. } = self;
                loops.call(now, id, rnic, spare, |rnic, io| rnic.handle_room(id, io));
                continue;
            }
            if !self.moving.is_empty() {
                self.with_host_stream(now, id, |rnic, io| rnic.handle_room(id, io));
            }
            connections.schedule_send_room(OffloadHandle(id.0));
        }
        if self.loops.has_work() {
            let Self { loops, rnic, spare, .. } = self;
            worked |= loops.run(now, rnic, spare);
        }
        if self.rnic.has_datagrams() {
            worked = true;
            self.rnic.transmit_datagrams(&mut self.datagrams);
        }
        worked
    }

    fn poll_at(&self) -> Option<Instant> {
        self.rnic.run_at()
    }

    fn has_input(&self) -> bool {
        self.port.has_notice() || self.rnic.has_work() || self.loops.has_work()
    }

    fn take_callbacks(&mut self, callbacks: &mut Vec<Callback>) {
        callbacks.append(self.rnic.callbacks());
    }

    fn take_callbacks_of_calls(&mut self, callbacks: &mut Vec<Callback>) {
        self.rnic.take_callbacks_of_calls(callbacks);
    }

    fn has_callbacks_of_loop(&self) -> bool {
        self.rnic.has_callbacks_of_loop()
    }

    fn device_lost(&mut self) {
        self.moving.clear();
        self.loops.clear();
        self.rnic.handle_device_lost();
    }
}

#[cfg(all(test, feature = "simulation"))]
mod tests {
    use host_stack::{node::Core, simulation::station};
    use offload_engine::{
        engine::EngineConfig,
        link::{MemoryLinkOptions, memory_link_pair},
    };

    use super::*;

    // A peer may reset a connection whose late sends are not returned yet.
    #[test]
    fn return_after_end_creates_no_stream() {
        let (link, _peer) = memory_link_pair(MemoryLinkOptions::default());
        let (host, wake) = (station(1), Box::new(|| {}));
        let config = EngineConfig::new(host.mac);
        let client = |port| NodeRnic::new(Config::default(), port, wake);
        let mut core = Core::new(Box::new(link), config, host, client).unwrap();
        let Core { clients, engine, .. } = &mut core;
        let rnic = clients.first_mut::<NodeRnic>();
        let chain = [NetBufferList::new(1)].into();
        let late = Notice::Returned { handle: OffloadHandle(7), chain, shutdown: false };
        rnic.handle_notice(Instant::ZERO, engine.connections(), late);
        assert!(rnic.moving.is_empty());
    }

    #[test]
    fn errors_of_the_host_stack() {
        for (error, expected) in [
            (HostError::Refused, ConnectError::Refused),
            (HostError::Reset, ConnectError::Refused),
            (HostError::TimedOut, ConnectError::TimedOut),
            (HostError::RetransmissionLimit, ConnectError::TimedOut),
            (HostError::HostUnreachable, ConnectError::HostUnreachable),
            (HostError::NetworkUnreachable, ConnectError::NetworkUnreachable),
            (HostError::AddressNotAvailable, ConnectError::InvalidAddress),
            (HostError::AddressInUse, ConnectError::AddressInUse),
            (HostError::NoPorts, ConnectError::NoPorts),
            (HostError::OffloadRefused, ConnectError::NoResources),
        ] {
            assert_eq!(connect_error(error), expected, "{error:?}");
        }
        for (error, expected) in [
            (None, ConnectError::Aborted),
            (Some(HostError::Reset), ConnectError::Aborted),
            (Some(HostError::RetransmissionLimit), ConnectError::TimedOut),
            (Some(HostError::StateLost), ConnectError::Aborted),
        ] {
            assert_eq!(end_error(error), expected, "{error:?}");
        }
    }
}
