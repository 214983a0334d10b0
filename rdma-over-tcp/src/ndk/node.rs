//! Two clients in one node: NDK, and whatever else uses offloaded connections.
//!
//! Connections and listeners are told apart by their client tag and their names; the channel from the
//! host stack is read here and each notice handed to whom it concerns.

use alloc::vec::Vec;

use host_stack::socket::Notice;
use offload_engine::{
    chimney::client::{ClientTag, ConnectionEvent, ConnectionIo, OffloadClient},
    engine::{Callback, Connections, NodeClient},
    nbl::{NblChain, NetBufferList},
    time::Instant,
};

use super::adapter::{AdapterCore, CLIENT_TAG};

/// A client beside NDK.
pub trait StreamClient: NodeClient {
    /// Takes a notice of one of its connections or listeners. Its own [`NodeClient::poll`] must not read
    /// the channel.
    fn notice(&mut self, now: Instant, notice: Notice);
}

/// NDK and a client `S` in one node.
#[derive(Debug)]
pub struct NodeClients<S> {
    /// The adapter.
    pub ndk: AdapterCore,
    /// The other client.
    pub streams: S,
}

impl<S: StreamClient> OffloadClient for NodeClients<S> {
    fn offloaded(&mut self, io: &mut ConnectionIo<'_>, client: ClientTag) {
        if client == CLIENT_TAG {
            self.ndk.offloaded(io, client);
        } else {
            self.streams.offloaded(io, client);
        }
    }

    fn receive(&mut self, io: &mut ConnectionIo<'_>, data: &[u8], push: bool) -> usize {
        if self.ndk.owns(io.handle) {
            self.ndk.receive(io, data, push)
        } else {
            self.streams.receive(io, data, push)
        }
    }

    fn send_complete(&mut self, io: &mut ConnectionIo<'_>, chain: NblChain) {
        if self.ndk.owns(io.handle) {
            self.ndk.send_complete(io, chain);
        } else {
            self.streams.send_complete(io, chain);
        }
    }

    fn send_room(&mut self, io: &mut ConnectionIo<'_>) {
        if self.ndk.owns(io.handle) {
            self.ndk.send_room(io);
        } else {
            self.streams.send_room(io);
        }
    }

    fn disconnect_complete(&mut self, io: &mut ConnectionIo<'_>, nbl: NetBufferList) {
        if self.ndk.owns(io.handle) {
            self.ndk.disconnect_complete(io, nbl);
        } else {
            self.streams.disconnect_complete(io, nbl);
        }
    }

    fn event(&mut self, io: &mut ConnectionIo<'_>, event: ConnectionEvent) {
        if self.ndk.owns(io.handle) {
            self.ndk.event(io, event);
        } else {
            self.streams.event(io, event);
        }
    }
}

impl<S: StreamClient> NodeClient for NodeClients<S> {
    fn poll(&mut self, now: Instant, connections: &mut Connections) -> bool {
        let mut worked = false;
        while let Some(notice) = self.ndk.port().notice() {
            worked = true;
            if self.ndk.concerns(&notice) {
                self.ndk.handle_notice(now, notice);
            } else {
                self.streams.notice(now, notice);
            }
        }
        // Both poll, whatever the other says.
        worked
            | self.ndk.poll_without_notices(now, connections)
            | self.streams.poll(now, connections)
    }

    fn poll_at(&self) -> Option<Instant> {
        [self.ndk.poll_at(), self.streams.poll_at()].into_iter().flatten().min()
    }

    fn has_input(&self) -> bool {
        self.ndk.has_input() || self.streams.has_input()
    }

    fn take_callbacks(&mut self, callbacks: &mut Vec<Callback>) {
        self.ndk.take_callbacks(callbacks);
        self.streams.take_callbacks(callbacks);
    }
}

/// No other client: its connections, which nobody can ask for, swallow what they get.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoStreams;

impl OffloadClient for NoStreams {
    fn offloaded(&mut self, _io: &mut ConnectionIo<'_>, _client: ClientTag) {}

    fn receive(&mut self, _io: &mut ConnectionIo<'_>, data: &[u8], _push: bool) -> usize {
        data.len()
    }

    fn send_complete(&mut self, _io: &mut ConnectionIo<'_>, _chain: NblChain) {}

    fn send_room(&mut self, _io: &mut ConnectionIo<'_>) {}

    fn disconnect_complete(&mut self, _io: &mut ConnectionIo<'_>, _nbl: NetBufferList) {}

    fn event(&mut self, _io: &mut ConnectionIo<'_>, _event: ConnectionEvent) {}
}

impl NodeClient for NoStreams {
    fn poll(&mut self, _now: Instant, _connections: &mut Connections) -> bool {
        false
    }

    fn poll_at(&self) -> Option<Instant> {
        None
    }

    fn has_input(&self) -> bool {
        false
    }

    fn take_callbacks(&mut self, _callbacks: &mut Vec<Callback>) {}
}

impl StreamClient for NoStreams {
    fn notice(&mut self, _now: Instant, _notice: Notice) {}
}
