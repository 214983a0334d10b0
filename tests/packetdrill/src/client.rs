//! Client of the node under test: [`Streams`], with a gate before the data that the target receives.
//!
//! A stream accepts data at the rate of arrival. A socket keeps data in TCP until the application reads, so
//! that the window reflects the unread data. The gate therefore refuses data that is not requested; TCP keeps
//! it and reduces the window (CH-IND-1). In the host stack, data is delivered on credit instead.

use std::collections::HashMap;

use host_stack::stream::Streams;
use offload_engine::{
    chimney::client::{ConnectionEvent, ConnectionIo, Disconnect, OffloadClient, OffloadHandle},
    engine::{Callback, Connections, NodeClient},
    nbl::{NblChain, NetBufferList, ReceiveChain},
    time::Instant,
};

/// Gate of one connection with the target.
#[derive(Default, Debug)]
struct Gate {
    /// Bytes requested by a reader.
    requested: usize,
    /// True if data was refused since.
    refused: bool,
    /// Bytes accepted.
    passed: u64,
    /// True if the application has closed the socket: received data will not be read.
    abandoned: bool,
}

/// Layer above host stack and target.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) streams: Streams,
    gates: HashMap<OffloadHandle, Gate>,
}

impl Client {
    pub(crate) fn new(streams: Streams) -> Self {
        Self { streams, gates: HashMap::new() }
    }

    /// Requests at most `count` bytes, which are delivered with the next poll of the node.
    pub(crate) fn request_data(
        &mut self,
        now: Instant,
        connections: &mut Connections,
        handle: OffloadHandle,
        count: usize,
    ) {
        if let Some(gate) = self.gates.get_mut(&handle) {
            gate.requested = count;
            gate.refused = false;
            if let Some(mut io) = connections.get(now, handle) {
                io.resume_receive();
            }
        }
    }

    /// Closes the gate again.
    pub(crate) fn close_gate(&mut self, handle: OffloadHandle) {
        if let Some(gate) = self.gates.get_mut(&handle) {
            gate.requested = 0;
        }
    }

    /// True if the target has data for a reader.
    pub(crate) fn has_refused(&self, handle: OffloadHandle) -> bool {
        self.gates.get(&handle).is_some_and(|gate| gate.refused)
    }

    /// Bytes accepted by the gate.
    pub(crate) fn passed(&self, handle: OffloadHandle) -> u64 {
        self.gates.get(&handle).map_or(0, |gate| gate.passed)
    }

    /// Records that the application has closed: further data causes an RST (RFC 1122 §4.2.2.13).
    pub(crate) fn abandon(&mut self, handle: OffloadHandle) {
        self.gates.entry(handle).or_default().abandoned = true;
    }
}

impl OffloadClient for Client {
    fn offloaded(&mut self, io: &mut ConnectionIo<'_>) {
        self.gates.entry(io.handle).or_default();
        self.streams.offloaded(io);
    }

    fn receive(&mut self, io: &mut ConnectionIo<'_>, data: &[u8], push: bool) -> usize {
        let gate = self.gates.entry(io.handle).or_default();
        if gate.abandoned {
            io.disconnect(Disconnect::Abortive, NetBufferList::new(0));
            return data.len();
        }
        let open = gate.requested.min(data.len());
        gate.requested -= open;
        let taken = match open {
            0 => 0,
            open => OffloadClient::receive(&mut self.streams, io, &data[..open], push),
        };
        if let Some(gate) = self.gates.get_mut(&io.handle) {
            gate.passed += taken as u64;
            gate.refused |= taken < data.len();
        }
        taken
    }

    fn receive_complete(&mut self, io: &mut ConnectionIo<'_>, chain: ReceiveChain) {
        self.streams.receive_complete(io, chain);
    }

    fn send_complete(&mut self, io: &mut ConnectionIo<'_>, chain: NblChain) {
        self.streams.send_complete(io, chain);
    }

    fn send_room(&mut self, io: &mut ConnectionIo<'_>) {
        self.streams.send_room(io);
    }

    fn disconnect_complete(&mut self, io: &mut ConnectionIo<'_>, nbl: NetBufferList) {
        self.streams.disconnect_complete(io, nbl);
    }

    fn event(&mut self, io: &mut ConnectionIo<'_>, event: ConnectionEvent) {
        self.streams.event(io, event);
    }

    fn uploaded(&mut self, handle: OffloadHandle) {
        self.streams.uploaded(handle);
    }
}

impl NodeClient for Client {
    fn poll(&mut self, now: Instant, connections: &mut Connections) -> bool {
        self.streams.poll(now, connections)
    }

    fn poll_at(&self) -> Option<Instant> {
        self.streams.poll_at()
    }

    fn has_input(&self) -> bool {
        self.streams.has_input()
    }

    fn take_callbacks(&mut self, callbacks: &mut Vec<Callback>) {
        self.streams.take_callbacks(callbacks);
    }
}
