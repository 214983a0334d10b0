//! Other threads and signals reach a node that waits.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI32, Ordering},
    },
    thread,
};

use host_stack::node::Node;
use offload_engine::engine::NodeClient;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::failure::Failure;

/// Wakes the node, for other threads; and the signal that has come, 0 for none.
///
/// Threads that may block for ever hold this, and not the node, so that the node ends (and its capture
/// is written out) when the run does.
pub struct Waker<C: NodeClient + 'static> {
    node: Arc<Mutex<Option<Node<C>>>>,
    signal: Arc<AtomicI32>,
}

impl<C: NodeClient + 'static> Waker<C> {
    /// Of no node yet.
    pub fn new() -> Self {
        Self { node: Arc::default(), signal: Arc::default() }
    }

    /// Of this node from now on, or of none.
    pub fn set(&self, node: Option<Node<C>>) {
        *self.node.lock().unwrap_or_else(PoisonError::into_inner) = node;
    }

    /// Has the node's waiters look again.
    pub fn wake(&self) {
        if let Some(node) = &*self.node.lock().unwrap_or_else(PoisonError::into_inner) {
            node.wake();
        }
    }

    /// Tells of a signal that has come.
    ///
    /// # Errors
    /// One has.
    pub fn interrupted(&self) -> Result<(), Failure> {
        match self.signal.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => {
                let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
                Err(Failure::work(format!("interrupted by {name}")))
            }
        }
    }

    /// From now on SIGINT, SIGTERM and SIGHUP wake the node instead of ending the process.
    ///
    /// # Errors
    /// No handler or thread can be had.
    pub fn catch_signals(&self) -> Result<(), Failure> {
        let failed = |error: io::Error| Failure::work(format!("catch signals: {error}"));
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
        let waker = self.clone();
        let watch = move || {
            for signal in signals.forever() {
                waker.signal.store(signal, Ordering::Relaxed);
                waker.wake();
            }
        };
        thread::Builder::new().name("flue-signals".into()).spawn(watch).map_err(failed)?;
        Ok(())
    }
}

impl<C: NodeClient + 'static> Clone for Waker<C> {
    fn clone(&self) -> Self {
        Self { node: self.node.clone(), signal: self.signal.clone() }
    }
}

impl<C: NodeClient + 'static> Default for Waker<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: NodeClient + 'static> std::fmt::Debug for Waker<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waker").field("signal", &self.signal).finish_non_exhaustive()
    }
}
