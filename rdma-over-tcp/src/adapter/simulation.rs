//! Adapter on virtual time, for nodes of [`host_stack::simulation`].
//!
//! The node pair polls the adapter with its engine. A consumer calls the same adapter through a lock. The clock does
//! not advance between two polls.

use alloc::{sync::Arc, vec::Vec};
use std::{
    io,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use offload_engine::{
    chimney::client::{ConnectionEvent, ConnectionIo, OffloadClient, OffloadHandle},
    engine::{Callback, Connections, NodeClient},
    nbl::{NblChain, NetBufferList, ReceiveChain},
    time::Instant,
};

use super::{Adapter, Driver};
use crate::{rnic::Rnic, transport::NodeRnic};

/// Adapter shared between the engine that polls it and its consumer.
#[derive(Debug)]
struct SharedAdapter {
    core: Mutex<NodeRnic>,
    now: Mutex<Instant>,
    /// True if the consumer has called since the last poll.
    is_called: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Driver for SharedAdapter {
    fn enter(&self, work: &mut dyn FnMut(&mut Rnic, Instant)) {
        self.is_called.store(true, Ordering::Relaxed);
        let now = *locked(&self.now);
        work(locked(&self.core).rnic(), now);
    }

    /// The host stack answers in a later poll. Until then, and after a failure, datagrams are lost.
    fn open_datagrams(&self, port: u16) -> io::Result<()> {
        self.is_called.store(true, Ordering::Relaxed);
        locked(&self.core).open_datagrams(port);
        Ok(())
    }
}

/// The adapter as the client of its engine. Clones refer to the same adapter.
#[derive(Clone, Debug)]
pub struct AdapterClient(Arc<SharedAdapter>);

impl AdapterClient {
    /// Creates the client of an engine at time 0.
    pub fn new(core: NodeRnic) -> Self {
        Self(Arc::new(SharedAdapter {
            core: Mutex::new(core),
            now: Mutex::new(Instant::ZERO),
            is_called: AtomicBool::new(false),
        }))
    }

    /// Returns the adapter as its consumer uses it.
    pub fn adapter(&self) -> Adapter {
        Adapter::new(self.0.clone())
    }

    /// True if no object remains.
    pub fn is_idle(&self) -> bool {
        self.core().rnic().is_idle()
    }

    fn core(&self) -> MutexGuard<'_, NodeRnic> {
        locked(&self.0.core)
    }
}

impl OffloadClient for AdapterClient {
    fn offloaded(&mut self, io: &mut ConnectionIo<'_>) {
        self.core().offloaded(io);
    }

    fn receive(&mut self, io: &mut ConnectionIo<'_>, data: &[u8], push: bool) -> usize {
        self.core().receive(io, data, push)
    }

    fn receive_complete(&mut self, io: &mut ConnectionIo<'_>, chain: ReceiveChain) {
        self.core().receive_complete(io, chain);
    }

    fn send_complete(&mut self, io: &mut ConnectionIo<'_>, chain: NblChain) {
        self.core().send_complete(io, chain);
    }

    fn send_room(&mut self, io: &mut ConnectionIo<'_>) {
        self.core().send_room(io);
    }

    fn disconnect_complete(&mut self, io: &mut ConnectionIo<'_>, nbl: NetBufferList) {
        self.core().disconnect_complete(io, nbl);
    }

    fn event(&mut self, io: &mut ConnectionIo<'_>, event: ConnectionEvent) {
        self.core().event(io, event);
    }

    fn uploaded(&mut self, handle: OffloadHandle) {
        self.core().uploaded(handle);
    }
}

impl NodeClient for AdapterClient {
    fn poll(&mut self, now: Instant, connections: &mut Connections) -> bool {
        *locked(&self.0.now) = now;
        let is_called = self.0.is_called.swap(false, Ordering::Relaxed);
        self.core().poll(now, connections) | is_called
    }

    fn poll_at(&self) -> Option<Instant> {
        self.core().poll_at()
    }

    fn has_input(&self) -> bool {
        self.0.is_called.load(Ordering::Relaxed) || self.core().has_input()
    }

    fn take_callbacks(&mut self, callbacks: &mut Vec<Callback>) {
        self.core().take_callbacks(callbacks);
    }
}
