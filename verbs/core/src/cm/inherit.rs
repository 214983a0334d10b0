//! Inheritance by the child of a fork: identifiers and channels that it takes over.
//!
//! Programs listen, daemonize, and wait for connections in the child. So a child that waits for events of an inherited
//! channel takes over its identifiers. Identifiers with a connection or a queue pair remain the parent's. The child
//! inherits the kernel's socket of a listener with its accept queue, and the parent accepts no further connection. On a
//! node, the parent must exit first.
//!
//! Threads of the parent may have held a lock at the fork, and do not exist in the child. So locks are only tried: an
//! object whose lock is held remains the parent's. [`ForkGate`] excludes that the library's own threads hold one then,
//! or while the child takes its objects over.

use std::{os::fd::OwnedFd, sync::Arc};

use offload_engine::descriptor::Guarded;
use rustix::event::{PollFd, PollFlags, poll};

use super::id::{Id, IdPhase, channel::EventChannel, inherited};
use crate::{device::Device, errno::Errno, process::ForkGate};

impl Id {
    /// Returns true if this process can take the identifier over. `None`: its events are not those of `channel`, or its
    /// lock is held.
    fn is_inheritable(&self, channel: &Arc<EventChannel>) -> Option<bool> {
        let inner = self.try_lock()?;
        if inner.is_destroyed || !Arc::ptr_eq(&inner.channel, channel) {
            return None;
        }
        let has_no_connection = matches!(
            inner.phase,
            IdPhase::Idle
                | IdPhase::Bound
                | IdPhase::AddressResolved
                | IdPhase::RouteResolved
                | IdPhase::Listening
        );
        Some(has_no_connection && inner.connector.is_none() && inner.qp.is_none())
    }

    /// Transfers the identifier to this process.
    fn take_over(self: &Arc<Self>, device: &'static Device) -> Result<(), Errno> {
        let (bound, socket, listening) = {
            let mut inner = self.try_lock().ok_or(Errno::NODEV)?;
            inner.listener = None;
            let bound = inner.bound.map(|bound| (bound, inner.is_reuse));
            let is_listening = inner.phase == IdPhase::Listening;
            let listening = inner.bound.filter(|_| is_listening).map(|at| (at, inner.backlog));
            (bound, inner.socket.take(), listening)
        };
        self.enter(device);
        if let Some((bound, is_reuse)) = bound {
            let _ = device.bind(bound, is_reuse);
        }
        let Some((local, backlog)) = listening else { return Ok(()) };
        if let Some((local, socket)) = socket.and_then(|socket| socket.take()) {
            device.inherit(local, socket);
        }
        let listened = self.begin_to_listen(local, backlog);
        let listened = listened.map(|listener| self.listening(listener, backlog));
        listened.inspect_err(|error| {
            tracing::error!(local = %local.address, %error, "listener of the parent process not inherited");
        })
    }
}

impl EventChannel {
    /// Transfers an inherited channel, and its identifiers without a connection, to this process.
    ///
    /// # Errors
    /// `ENODEV`: all its identifiers have connections, or another thread held its lock at the fork. As [`Id::listen`].
    pub fn take_over(self: &Arc<Self>, device: &'static Device) -> Result<(), Errno> {
        let _gate = ForkGate::enter();
        if self.events().is_own() {
            return Ok(());
        }
        let inheritable = self.inheritable().ok_or(Errno::NODEV)?;
        self.events().take_over()?;
        inheritable.iter().try_for_each(|id| id.take_over(device))
    }

    /// Returns true if this process can take an inherited channel over: not all its identifiers have connections.
    pub fn is_inheritable(self: &Arc<Self>) -> bool {
        let _gate = ForkGate::enter();
        self.inheritable().is_some()
    }

    fn inheritable(self: &Arc<Self>) -> Option<Vec<Arc<Id>>> {
        let (mut inheritable, mut others) = (Vec::new(), 0);
        for id in inherited() {
            match id.is_inheritable(self) {
                Some(true) => inheritable.push(id),
                Some(false) => others += 1,
                None => {}
            }
        }
        (others == 0 || !inheritable.is_empty()).then_some(inheritable)
    }
}

/// Returns the inherited channels of listening identifiers, with their sockets.
fn listening() -> Vec<(Arc<EventChannel>, Option<Guarded<OwnedFd>>)> {
    let of = |id: Arc<Id>| {
        let inner = id.try_lock().filter(|inner| inner.phase == IdPhase::Listening)?;
        let socket = inner.socket.as_ref().and_then(|socket| socket.try_clone());
        Some((inner.channel.clone(), socket))
    };
    let _gate = ForkGate::enter();
    inherited().into_iter().filter_map(of).collect()
}

/// Returns the inherited channels of listening identifiers.
pub fn listening_channels() -> Vec<Arc<EventChannel>> {
    listening().into_iter().map(|(channel, _)| channel).collect()
}

/// Wakes programs that poll inherited channels once a connection is in the accept queue of a socket. Returns when all
/// sockets are done.
pub fn announce_connections() {
    let mut left: Vec<_> =
        listening().into_iter().filter_map(|(channel, socket)| Some((channel, socket?))).collect();
    while !left.is_empty() {
        let mut polled: Vec<_> =
            left.iter().map(|(_, socket)| PollFd::new(socket, PollFlags::IN)).collect();
        match poll(&mut polled, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
        }
        let ready: Vec<_> = polled.iter().map(PollFd::revents).collect();
        let mut ready = ready.into_iter();
        left.retain(|(channel, _)| {
            let events = ready.next().unwrap_or(PollFlags::empty());
            if events.contains(PollFlags::IN) && !channel.events().is_own() {
                channel.events().wake();
            }
            events.is_empty()
        });
    }
}
