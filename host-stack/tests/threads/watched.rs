//! Streams with verified upcalls: each completion makes a callback, and the callbacks keep a ledger.

use std::{collections::HashMap, sync::Arc};

use host_stack::{socket::SocketPort, stream::Streams};
use offload_engine::{
    chimney::client::{ConnectionEvent, ConnectionIo, OffloadClient, OffloadHandle},
    engine::{Callback, Connections, NodeClient},
    nbl::{NblChain, NetBufferList, ReceiveChain},
    status::NdisStatus,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::TestNode;

/// Number of callbacks between two that call the node themselves.
const CALLBACKS_BETWEEN_POSTS: u64 = 16;

/// Ledger of the callbacks.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    running: AtomicBool,
    made: AtomicU64,
    called: AtomicU64,
    /// Serial number of each connection's next callback.
    next: Mutex<HashMap<OffloadHandle, u64>>,
    node: Mutex<Option<TestNode>>,
}

impl Ledger {
    /// Sets the node that callbacks call; `None` releases it.
    pub(crate) fn attach(&self, node: Option<TestNode>) {
        let before = std::mem::replace(&mut *self.node.lock(), node);
        drop(before);
    }

    /// Records a callback: never nested or concurrent, and in order for each connection.
    fn call(&self, handle: OffloadHandle, serial: u64) {
        // Relaxed: the threads that deliver consecutive callbacks are already synchronized, and the race detector must
        // not derive an order from this flag.
        let nested = self.running.swap(true, Ordering::Relaxed);
        assert!(!nested, "callbacks nest, or run on two threads");
        let called = self.called.load(Ordering::Relaxed);
        if called.is_multiple_of(CALLBACKS_BETWEEN_POSTS) {
            let node = self.node.lock().clone();
            if let Some(node) = node {
                // This would deliver further callbacks, if that were allowed.
                let known = node.with(|client, _, _| client.streams.status(handle).is_some());
                assert!(known);
            }
        }
        let mut next = self.next.lock();
        let next = next.entry(handle).or_default();
        assert_eq!(serial, *next, "completion out of order, duplicated or lost");
        *next += 1;
        self.running.store(false, Ordering::Relaxed);
        self.called.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until every callback was called.
    pub(crate) fn settle(&self, node: &TestNode, limit: Duration) {
        let counts = || (self.called.load(Ordering::Relaxed), self.made.load(Ordering::Relaxed));
        let settled = node.wait_until(Some(limit), || {
            let (called, made) = counts();
            (called == made).then_some(())
        });
        assert_eq!(settled, Ok(()), "(called, made) {:?}", counts());
        assert!(!self.running.load(Ordering::Relaxed));
    }
}

/// Completions of one connection.
#[derive(Debug, Default)]
struct Completions {
    made: u64,
    /// Context of the last completed list.
    context: u64,
    /// Number of completed receive requests.
    receives: u64,
    released: bool,
}

/// Client of a node: [`Streams`], with verification of every upcall.
#[derive(Debug)]
pub(crate) struct VerifiedStreams {
    pub(crate) streams: Streams,
    ledger: Arc<Ledger>,
    completions: HashMap<OffloadHandle, Completions>,
    callbacks: Callbacks,
}

#[derive(Default)]
struct Callbacks(Vec<Callback>);

impl std::fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Callbacks({})", self.0.len())
    }
}

impl VerifiedStreams {
    pub(crate) fn new(port: SocketPort, ledger: Arc<Ledger>) -> Self {
        Self {
            streams: Streams::new(port),
            ledger,
            completions: HashMap::new(),
            callbacks: Callbacks::default(),
        }
    }

    /// CH-SND-2: in posting order, each once. CH-EVT-6: nothing after the last upcall.
    fn watch(&mut self, handle: OffloadHandle, list: &NetBufferList) {
        let seen = self.completions.entry(handle).or_default();
        assert!(!seen.released, "a completion after the last upcall");
        assert!(list.context > seen.context, "{} after {}", list.context, seen.context);
        assert!(matches!(list.status, NdisStatus::SUCCESS | NdisStatus::REQUEST_ABORTED));
        seen.context = list.context;
        let (serial, ledger) = (seen.made, self.ledger.clone());
        seen.made += 1;
        self.ledger.made.fetch_add(1, Ordering::Relaxed);
        self.callbacks.0.push(Box::new(move || ledger.call(handle, serial)));
    }
}

impl OffloadClient for VerifiedStreams {
    fn offloaded(&mut self, io: &mut ConnectionIo<'_>) {
        self.streams.offloaded(io);
    }

    fn receive(&mut self, io: &mut ConnectionIo<'_>, data: &[u8], push: bool) -> usize {
        OffloadClient::receive(&mut self.streams, io, data, push)
    }

    /// CH-RCC-1, -3: in posting order; the data is the next of the stream, whatever the status.
    fn receive_complete(&mut self, io: &mut ConnectionIo<'_>, chain: ReceiveChain) {
        for list in chain {
            let seen = self.completions.entry(io.handle).or_default();
            assert_eq!(list.context, seen.receives, "a receive request overtook another");
            seen.receives += 1;
            for data in list.slices() {
                let taken = OffloadClient::receive(&mut self.streams, io, data, false);
                assert_eq!(taken, data.len(), "more data are unread than a worker permits");
            }
        }
    }

    fn send_complete(&mut self, io: &mut ConnectionIo<'_>, chain: NblChain) {
        // Context 0: bytes that the host stack had at the offload.
        for list in chain.iter().filter(|list| list.context != 0) {
            self.watch(io.handle, list);
        }
        self.streams.send_complete(io, chain);
    }

    fn send_room(&mut self, io: &mut ConnectionIo<'_>) {
        self.streams.send_room(io);
    }

    fn disconnect_complete(&mut self, io: &mut ConnectionIo<'_>, nbl: NetBufferList) {
        self.streams.disconnect_complete(io, nbl);
    }

    fn uploaded(&mut self, handle: OffloadHandle) {
        self.streams.uploaded(handle);
    }

    fn event(&mut self, io: &mut ConnectionIo<'_>, event: ConnectionEvent) {
        let seen = self.completions.entry(io.handle).or_default();
        assert!(!seen.released, "{event:?} after the last upcall");
        seen.released = event == ConnectionEvent::Released;
        self.streams.event(io, event);
    }
}

impl NodeClient for VerifiedStreams {
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
        callbacks.append(&mut self.callbacks.0);
    }
}
