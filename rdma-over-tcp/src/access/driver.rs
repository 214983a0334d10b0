//! One interface to the two drivers of an adapter: a node on a link, and kernel sockets.

use host_stack::node::{Node, WaitError};
use offload_engine::time::Duration;

use crate::{
    rnic::History,
    transport::{NodeRnic, Sockets},
};

/// Drives an adapter, and blocks the program's threads until something changes. Implemented by a node on a link and by
/// kernel sockets.
pub trait Driver: Send + Sync {
    /// Waits until `is_over`, which may use the adapter, and is called now and after each change. The adapter may be
    /// run here meanwhile. Not for callbacks.
    ///
    /// # Errors
    /// The time is over, or the link is gone.
    fn wait_while(
        &self,
        timeout: Option<Duration>,
        is_over: &mut dyn FnMut() -> bool,
    ) -> Result<(), WaitError>;

    /// Has every [`Driver::wait_while`] look again: something outside has changed.
    fn wake(&self);

    /// Waits until all connections have ended in order: what is dropped before is reset.
    ///
    /// # Errors
    /// The time is over, or the link is gone.
    fn linger(&self, timeout: Duration) -> Result<(), WaitError>;

    /// Calls `look` with the history of each connection.
    fn histories(&self, look: &mut dyn FnMut(&History));

    /// TCP segments that have come so far; `None`: it is not told.
    fn segments_received(&self) -> Option<u64>;
}

impl dyn Driver + '_ {
    /// Waits until `look` has a result ([`Driver::wait_while`]).
    ///
    /// # Errors
    /// As [`Driver::wait_while`].
    pub fn wait_until<R>(
        &self,
        timeout: Option<Duration>,
        mut look: impl FnMut() -> Option<R>,
    ) -> Result<R, WaitError> {
        let mut found = None;
        self.wait_while(timeout, &mut || {
            found = look();
            found.is_some()
        })?;
        found.ok_or(WaitError::TimedOut)
    }
}

impl Driver for Node<NodeRnic> {
    fn wait_while(
        &self,
        timeout: Option<Duration>,
        is_over: &mut dyn FnMut() -> bool,
    ) -> Result<(), WaitError> {
        self.wait_until(timeout, || is_over().then_some(()))
    }

    fn wake(&self) {
        Self::wake(self);
    }

    fn linger(&self, timeout: Duration) -> Result<(), WaitError> {
        Self::linger(self, timeout)
    }

    fn histories(&self, look: &mut dyn FnMut(&History)) {
        self.with(|core, _, _| core.histories().for_each(look));
    }

    fn segments_received(&self) -> Option<u64> {
        Some(self.with_engine(|engine, _| engine.stats().rx_segments))
    }
}

impl Driver for Sockets {
    fn wait_while(
        &self,
        timeout: Option<Duration>,
        is_over: &mut dyn FnMut() -> bool,
    ) -> Result<(), WaitError> {
        self.wait_until(timeout, || is_over().then_some(()))
    }

    fn wake(&self) {
        Self::wake(self);
    }

    fn linger(&self, timeout: Duration) -> Result<(), WaitError> {
        Self::linger(self, timeout)
    }

    fn histories(&self, look: &mut dyn FnMut(&History)) {
        Self::histories(self, look);
    }

    fn segments_received(&self) -> Option<u64> {
        None
    }
}
