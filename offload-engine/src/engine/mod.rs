//! The run loop: receive batch, demultiplex, protocol, transmit batch, timers.

pub mod doorbell;
pub mod port;

use std::{boxed::Box, vec::Vec};

use crate::{
    chimney::client::{ConnectionIo, OffloadClient, OffloadHandle},
    time::Instant,
};

/// The offloaded connections of an engine.
#[derive(Debug)]
pub struct Connections {}

#[allow(unused_variables, clippy::todo)]
impl Connections {
    /// The connection `handle`, to be acted upon outside an upcall; what it queues is drained by the
    /// engine's next poll or flush.
    pub fn get(&mut self, now: Instant, handle: OffloadHandle) -> Option<ConnectionIo<'_>> {
        todo!()
    }

    /// Has the engine call [`OffloadClient::send_room`] for `handle` soon: the client has data to make.
    pub fn kick(&mut self, handle: OffloadHandle) {
        todo!()
    }
}

/// Something to be called on a worker thread without any lock of ours held.
pub type Callback = Box<dyn FnOnce() + Send>;

/// What a node asks of the one client that lives with its engine, beyond the chimney's upcalls.
pub trait NodeClient: OffloadClient + Send {
    /// Takes notices from the host stack, runs timers. Called once per iteration of the run loop and
    /// after every call from outside. Returns whether there was anything to do.
    fn poll(&mut self, now: Instant, connections: &mut Connections) -> bool;

    /// When [`NodeClient::poll`] has to be called again though nothing has happened.
    fn poll_at(&self) -> Option<Instant>;

    /// Moves out the consumer's callbacks that became due. The node calls them, in order, when it
    /// holds no lock.
    fn take_callbacks(&mut self, callbacks: &mut Vec<Callback>);
}
