//! Offloaded connections as a transport: an adapter that is a client of a node.
//!
//! A stream has the number of its connection. FPDUs leave as net buffer lists, one net buffer each; what the host stack
//! is asked for, and answers, goes through the client's port.

use alloc::{boxed::Box, vec, vec::Vec};

use bytes::Bytes;
use hashbrown::HashMap;
use host_stack::{
    node,
    socket::{EndpointId, HostError, ListenerId as ListenerName, Notice, Request, SocketPort},
};
use offload_engine::{
    chimney::client::{
        ConnectionEvent, ConnectionIo, Disconnect, OffloadClient, OffloadHandle, UploadReason,
    },
    engine::{Callback, Connections, NodeClient},
    memory::Span,
    nbl::{NblChain, NetBuffer, NetBufferList, ReceiveChain},
    status::NdisStatus,
    time::Instant,
};

use crate::{
    mpa::GatherList,
    rnic::{
        self, Config, ConnectError, History, Rnic, StreamId,
        id::ListenerId,
        transport::{Command, Loss, Reservation, StreamEvent, Transport},
    },
};

/// Net buffers kept for reuse.
const SPARE_MAX: usize = 1024;

/// Octets in a microsecond of the fastest path: 100 Gbit/s.
const PATH_OCTETS_PER_US: u128 = 12_500;

/// Octets in flight that every path is taken to hold: delayed acknowledgements and batches need some.
const PATH_OCTETS_MIN: usize = 512 * 1024;

/// FPDUs leave as MDLs of a net buffer.
impl GatherList for NetBuffer {
    type Payload = Span;

    #[inline]
    fn push_encoded(&mut self, octets: Bytes) {
        self.push_mdl(octets);
    }

    #[inline]
    fn push_payload(&mut self, payload: Span) {
        self.push_mdl(payload);
    }
}

/// The content of a net buffer list: one net buffer.
#[derive(Debug)]
pub(crate) struct Buffers(Vec<NetBuffer>);

impl GatherList for Buffers {
    type Payload = Span;

    #[inline]
    fn push_encoded(&mut self, octets: Bytes) {
        self.0[0].push_mdl(octets);
    }

    #[inline]
    fn push_payload(&mut self, payload: Span) {
        self.0[0].push_mdl(payload);
    }
}

/// Storage that came back with completed lists: one empty net buffer each.
#[derive(Default, Debug)]
pub(crate) struct Spare(Vec<Vec<NetBuffer>>);

impl Spare {
    #[inline]
    fn take(&mut self) -> Buffers {
        Buffers(self.0.pop().unwrap_or_else(|| vec![NetBuffer::new()]))
    }

    #[inline]
    fn keep(&mut self, mut buffers: Vec<NetBuffer>) {
        if let [buffer] = &mut buffers[..]
            && self.0.len() < SPARE_MAX
        {
            buffer.clear();
            self.0.push(buffers);
        }
    }
}

/// A connection during an upcall.
struct Io<'a, 'b> {
    io: &'a mut ConnectionIo<'b>,
    spare: &'a mut Spare,
}

impl Transport for Io<'_, '_> {
    type List = Buffers;

    #[inline]
    fn now(&self) -> Instant {
        self.io.now
    }

    #[inline]
    fn list(&mut self) -> Buffers {
        self.spare.take()
    }

    #[inline]
    fn keep(&mut self, list: Buffers) {
        self.spare.keep(list.0);
    }

    #[inline]
    fn send(&mut self, serial: u64, list: Buffers) {
        let mut chain = self.io.empty_chain();
        chain.push_back(NetBufferList { net_buffers: list.0, ..NetBufferList::new(serial) });
        self.io.send(chain);
    }

    fn shutdown(&mut self) {
        self.io.disconnect(Disconnect::Graceful, NetBufferList::new(0));
    }

    fn reset(&mut self) {
        self.io.disconnect(Disconnect::Abortive, NetBufferList::new(0));
    }

    #[inline]
    fn send_room(&self) -> usize {
        self.io.send_room()
    }

    #[inline]
    fn send_outstanding(&self) -> usize {
        self.io.send_outstanding()
    }

    fn path_octets(&self) -> usize {
        let Some(min_rtt) = self.io.min_rtt() else { return usize::MAX };
        let octets = min_rtt.as_nanos().saturating_mul(PATH_OCTETS_PER_US) / 1_000;
        usize::try_from(octets).unwrap_or(usize::MAX).max(PATH_OCTETS_MIN)
    }

    fn detach_tail(&mut self, octets_max: usize) -> bool {
        self.io.detach_tail(octets_max)
    }

    fn detach_withdrawn(&mut self) {
        self.io.detach_withdrawn();
    }

    #[inline]
    fn effective_mss(&self) -> usize {
        self.io.effective_mss()
    }

    #[inline]
    fn super_segment_max(&self) -> usize {
        self.io.super_segment_max()
    }
}

/// An adapter whose streams are offloaded connections of a node.
#[derive(Debug)]
pub struct NodeRnic {
    rnic: Rnic,
    port: SocketPort,
    listeners: HashMap<ListenerName, ListenerId>,
    names: HashMap<ListenerId, ListenerName>,
    spare: Spare,
}

impl NodeRnic {
    /// An adapter that asks the host stack for connections through `port`. `wake` makes the thread that runs the engine
    /// poll again: it is called when a callback has returned, which may let objects go.
    #[must_use]
    pub fn new(config: Config, port: SocketPort, wake: Box<dyn Fn() + Send + Sync>) -> Self {
        let names = port.clone();
        Self {
            rnic: Rnic::new(config, Box::new(move || StreamId(names.allocate())), wake),
            port,
            listeners: HashMap::new(),
            names: HashMap::new(),
            spare: Spare::default(),
        }
    }

    /// The history of each connection, until it is gone.
    pub fn histories(&self) -> impl Iterator<Item = &History> {
        self.rnic.histories()
    }

    /// The adapter.
    pub const fn rnic(&mut self) -> &mut Rnic {
        &mut self.rnic
    }

    fn carry_out(&mut self, command: Command) {
        let request = match command {
            Command::Connect { stream, local, remote, timeout } => Request::Connect {
                handle: OffloadHandle(stream.0),
                local,
                endpoint: Some(EndpointId(stream.0)),
                remote,
                timeout,
                must_offload: true,
            },
            Command::Listen { listener, local, backlog } => {
                let name = ListenerName(self.port.allocate());
                self.listeners.insert(name, listener);
                self.names.insert(listener, name);
                let endpoint = Some(EndpointId(name.0));
                Request::Listen { listener: name, local, endpoint, backlog, must_offload: true }
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
            // The last that is asked for a listener.
            Command::Release { reservation: Reservation::Listener(id) } => {
                match self.names.remove(&id) {
                    Some(name) => Request::Unbind { endpoint: EndpointId(name.0) },
                    None => return,
                }
            }
            Command::Abort { stream } => Request::Abort { handle: OffloadHandle(stream.0) },
        };
        self.port.request(request);
    }

    fn handle_notice(&mut self, now: Instant, notice: Notice) {
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
            Notice::Established { handle, listener, local, remote, offloading: true } => {
                let listener = listener.and_then(|name| self.listeners.get(&name)).copied();
                self.rnic.handle_established(now, StreamId(handle.0), listener, (local, remote));
            }
            // Queue pairs run on offloaded connections only; the target has no room for this one.
            Notice::Established { handle, offloading: false, .. } => {
                self.rnic.handle_gone(StreamId(handle.0), ConnectError::NoResources);
                self.port.request(Request::Abort { handle });
                self.port.request(Request::Unbind { endpoint: EndpointId(handle.0) });
            }
            Notice::ConnectFailed { handle, error } => {
                self.rnic.handle_gone(StreamId(handle.0), connect_error(error));
            }
            Notice::Closed { handle, .. } => {
                self.rnic.handle_gone(StreamId(handle.0), ConnectError::Aborted);
            }
            // Addresses are reserved by listening and connecting; the others only connections have that stay in the
            // host.
            Notice::Bound { .. }
            | Notice::BindFailed { .. }
            | Notice::Offloading { .. }
            | Notice::Returned { .. }
            | Notice::Uploaded { .. }
            | Notice::Data { .. }
            | Notice::Sent { .. }
            | Notice::PeerClosed { .. } => {}
        }
    }

    /// The adapter with a way into one connection.
    #[inline]
    fn parts<'a, 'b>(
        &'a mut self,
        io: &'a mut ConnectionIo<'b>,
    ) -> (&'a mut Rnic, StreamId, Io<'a, 'b>) {
        let id = StreamId(io.handle.0);
        (&mut self.rnic, id, Io { io, spare: &mut self.spare })
    }
}

impl From<rnic::Urgency> for node::Urgency {
    fn from(urgency: rnic::Urgency) -> Self {
        match urgency {
            rnic::Urgency::None => Self::None,
            rnic::Urgency::Soon => Self::Soon,
            rnic::Urgency::Now => Self::Now,
        }
    }
}

/// The host stack's errors as a consumer sees them.
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

impl OffloadClient for NodeRnic {
    fn offloaded(&mut self, io: &mut ConnectionIo<'_>) {
        // The bytes that the connection brought along are wanted (CH-DEL-3).
        io.resume_receive();
        let (rnic, id, mut io) = self.parts(io);
        rnic.handle_open(id, &mut io);
    }

    fn receive(&mut self, io: &mut ConnectionIo<'_>, data: &[u8], _push: bool) -> usize {
        let (rnic, id, mut io) = self.parts(io);
        rnic.handle_received(id, &mut io, data);
        data.len()
    }

    fn receive_complete(&mut self, _io: &mut ConnectionIo<'_>, _chain: ReceiveChain) {
        // Posts no receive requests.
    }

    fn send_complete(&mut self, io: &mut ConnectionIo<'_>, mut chain: NblChain) {
        let mut end = None;
        while let Some(list) = chain.pop_front() {
            if list.status == NdisStatus::SUCCESS {
                end = Some(list.context);
            }
            self.spare.keep(list.net_buffers);
        }
        io.keep_chain(chain);
        let (rnic, id, mut io) = self.parts(io);
        rnic.handle_sent(id, &mut io, end);
    }

    fn send_room(&mut self, io: &mut ConnectionIo<'_>) {
        let (rnic, id, mut io) = self.parts(io);
        rnic.handle_room(id, &mut io);
    }

    fn disconnect_complete(&mut self, io: &mut ConnectionIo<'_>, _nbl: NetBufferList) {
        let (rnic, id, mut io) = self.parts(io);
        rnic.handle_event(id, &mut io, StreamEvent::ShutDown);
    }

    fn uploaded(&mut self, handle: OffloadHandle) {
        // The target is rid of all (UPLOAD_ALL, CH s5.7). The host resets the connection.
        self.rnic.handle_gone(StreamId(handle.0), ConnectError::Aborted);
    }

    fn event(&mut self, io: &mut ConnectionIo<'_>, event: ConnectionEvent) {
        let (rnic, id, mut io) = self.parts(io);
        match stream_event(event) {
            Some(event) => rnic.handle_event(id, &mut io, event),
            None => rnic.handle_room(id, &mut io),
        }
    }
}

/// An event of the target as the stream's; `None`: the stream carries on.
const fn stream_event(event: ConnectionEvent) -> Option<StreamEvent> {
    let (reason, is_stopped) = match event {
        // The target carries on (CH-EVT-1).
        ConnectionEvent::Retrieve(reason) if !reason.is_mandatory() => return None,
        ConnectionEvent::SendBacklogChange(_) => return None,
        ConnectionEvent::Disconnect => return Some(StreamEvent::PeerClosed),
        ConnectionEvent::Released => return Some(StreamEvent::Released),
        ConnectionEvent::Abort => (Loss::Aborted, false),
        ConnectionEvent::Retrieve(UploadReason::TimeoutExpiration) => (Loss::TimedOut, true),
        ConnectionEvent::Retrieve(_) => (Loss::Aborted, true),
    };
    Some(StreamEvent::Lost { reason, is_stopped })
}

impl NodeClient for NodeRnic {
    fn name() -> &'static str {
        "RDMA"
    }

    fn poll(&mut self, now: Instant, connections: &mut Connections) -> bool {
        let mut worked = false;
        while let Some(notice) = self.port.notice() {
            worked = true;
            self.handle_notice(now, notice);
        }
        worked |= self.rnic.run(now);
        while let Some(command) = self.rnic.next_command() {
            worked = true;
            self.carry_out(command);
        }
        while let Some(id) = self.rnic.next_kick() {
            worked = true;
            connections.kick(OffloadHandle(id.0));
        }
        worked
    }

    fn poll_at(&self) -> Option<Instant> {
        self.rnic.run_at()
    }

    fn has_input(&self) -> bool {
        self.port.has_notice() || self.rnic.has_work()
    }

    fn take_callbacks(&mut self, callbacks: &mut Vec<Callback>) {
        callbacks.append(self.rnic.callbacks());
    }

    fn device_lost(&mut self) {
        self.rnic.handle_device_lost();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // CH-EVT-1, -6, -7: an optional reason to give a connection up is none.
    #[test]
    fn events() {
        use ConnectionEvent::{Abort, Disconnect, Released, Retrieve};
        let lost = |reason, is_stopped| Some(StreamEvent::Lost { reason, is_stopped });
        for (event, expected) in [
            (Disconnect, Some(StreamEvent::PeerClosed)),
            (Released, Some(StreamEvent::Released)),
            (Abort, lost(Loss::Aborted, false)),
            (Retrieve(UploadReason::TimeoutExpiration), lost(Loss::TimedOut, true)),
            (Retrieve(UploadReason::HardwareFailure), lost(Loss::Aborted, true)),
            (Retrieve(UploadReason::LowActivity), None),
            (Retrieve(UploadReason::NoBufferPreposting), None),
        ] {
            assert_eq!(stream_event(event), expected, "{event:?}");
        }
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
    }
}
