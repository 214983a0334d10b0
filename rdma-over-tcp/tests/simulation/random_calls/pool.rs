//! Handles of a consumer: of existing objects and of some closed ones.

use std::sync::{Arc, Mutex};

use oorandom::Rand64;
use rdma_over_tcp::ndk::{Connector, Cq, Listener, Mr, Mw, Pd, Qp, SharedEndpoint, Srq};

use crate::plan::{draw, once_in};

/// Maximum handles of one type. The oldest ones are removed.
const HANDLES_MAX: usize = 10;

/// Handles of one type. Callbacks add to them.
pub(super) struct Handles<T>(Arc<Mutex<List<T>>>);

struct List<T> {
    handles: Vec<T>,
    /// Number of handles added.
    added: u64,
}

impl<T> Clone for Handles<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(List { handles: Vec::new(), added: 0 })))
    }
}

impl<T: Clone> Handles<T> {
    /// Adds a handle. Returns the handle removed, if any, whose object must be closed.
    pub(super) fn add(&self, handle: T) -> Option<T> {
        let List { handles, added } = &mut *self.0.lock().unwrap();
        *added += 1;
        let oldest = (handles.len() == HANDLES_MAX).then(|| handles.remove(0));
        handles.push(handle);
        oldest
    }

    /// Usually the newest one: objects of one age often belong together.
    pub(super) fn any(&self, rng: &mut Rand64) -> Option<T> {
        let List { handles, .. } = &*self.0.lock().unwrap();
        let last = handles.len().checked_sub(1)?;
        let place = if once_in(rng, 4) { draw(rng, handles.len()) } else { last };
        Some(handles[place].clone())
    }

    pub(super) fn all(&self) -> Vec<T> {
        self.0.lock().unwrap().handles.clone()
    }

    /// Number of handles added.
    pub(super) fn added(&self) -> u64 {
        self.0.lock().unwrap().added
    }
}

/// Memory that is, or was, accessible to the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub(super) address: u64,
    pub(super) length: u64,
    pub(super) token: u32,
}

/// All handles of a consumer.
#[derive(Default)]
pub(super) struct Pool {
    pub(super) pds: Handles<Pd>,
    pub(super) cqs: Handles<Cq>,
    pub(super) qps: Handles<Qp>,
    pub(super) srqs: Handles<Srq>,
    pub(super) mrs: Handles<Mr>,
    pub(super) mws: Handles<Mw>,
    pub(super) connectors: Handles<Connector>,
    pub(super) listeners: Handles<Listener>,
    pub(super) endpoints: Handles<SharedEndpoint>,
    pub(super) offers: Handles<Offer>,
}
