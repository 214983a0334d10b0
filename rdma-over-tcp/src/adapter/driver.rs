//! The trait that a transport implements once, for all interfaces.

use alloc::{sync::Arc, vec, vec::Vec};
use core::net::SocketAddr;
use std::{io, os::fd::OwnedFd};

use offload_engine::{
    chimney::client::OffloadHandle,
    engine::ConnectionSnapshot,
    listing::ConnectionRow,
    runtime::WaitError,
    time::{Duration, Instant},
};

use crate::{
    rnic::{ListenerId, Rnic, Urgency},
    transport::{CaptureOutput, ListeningSocket},
};

/// TCP stack of a machine with an offload target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stack {
    /// The offload target.
    Target,
    /// The host stack.
    Host,
}

/// Lock, clock and threads around a core on one transport.
///
/// Required is the way in. The defaults are those of a transport without threads, which its caller runs, with one TCP
/// stack and no device.
pub trait Driver: Send + Sync {
    /// Calls `work` with the core, once, and does what follows from it: frames are sent, and the callbacks that became
    /// due run after the lock was released.
    fn enter(&self, work: &mut dyn FnMut(&mut Rnic, Instant));

    /// As [`Driver::enter`], but `work` returns when its effects must be flushed: the way of posts.
    fn enter_to_post(&self, work: &mut dyn FnMut(&mut Rnic) -> Urgency) {
        self.enter(&mut |core, _| {
            work(core);
        });
    }

    /// Runs the transport once if its consumer has to: a consumer that polls makes its own progress. Returns whether
    /// there was anything to do.
    fn progress(&self) -> bool {
        false
    }

    /// Reports a consumer that has requested a notification without entering, and may be about to sleep in a system
    /// call of its own.
    fn expect_sleep(&self) {}

    /// Waits until `is_over`, which may use the adapter, and is called now and after each change. The transport may be
    /// run here meanwhile: by default by [`Driver::progress`] alone, until that finds nothing to do. Not for callbacks.
    ///
    /// # Errors
    /// The timeout has elapsed, or the device is lost.
    fn wait_while(
        &self,
        _timeout: Option<Duration>,
        is_over: &mut dyn FnMut() -> bool,
    ) -> Result<(), WaitError> {
        while !is_over() {
            if !self.progress() {
                return Err(WaitError::TimedOut);
            }
        }
        Ok(())
    }

    /// Has every [`Driver::wait_while`] check its condition: something outside has changed.
    fn wake(&self) {}

    /// Waits until all connections have ended in order: those that are left when the adapter is dropped are reset.
    ///
    /// # Errors
    /// The timeout has elapsed, or the device is lost.
    fn linger(&self, timeout: Duration) -> Result<(), WaitError> {
        self.wait_while(Some(timeout), &mut || {
            let mut is_silent = false;
            self.enter(&mut |core, _| is_silent = core.histories().next().is_none());
            is_silent
        })
    }

    /// Listeners and connections of the transport, by handle.
    ///
    /// # Errors
    /// No answer within `timeout`.
    fn list(&self, _timeout: Duration) -> Result<Vec<ConnectionRow>, WaitError> {
        Ok(Vec::new())
    }

    /// The listener or connection with this handle; `None`: not found.
    ///
    /// # Errors
    /// As [`Driver::list`].
    fn find(
        &self,
        handle: OffloadHandle,
        timeout: Duration,
    ) -> Result<Option<ConnectionRow>, WaitError> {
        Ok(self.list(timeout)?.into_iter().find(|row| row.handle == handle))
    }

    /// State of these connections in the offload target; `None`: not offloaded.
    fn look(&self, handles: &[OffloadHandle]) -> Vec<Option<ConnectionSnapshot>> {
        vec![None; handles.len()]
    }

    /// Requests that a connection moves to another stack.
    ///
    /// # Errors
    /// The transport has one stack only.
    fn migrate(&self, _handle: OffloadHandle, _to: Stack) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// TCP segments received so far; `None`: not counted.
    fn segments_received(&self) -> Option<u64> {
        None
    }

    /// Records what is sent and received from now on, in pcapng. Does nothing on a link, whose capture is a wrapper of
    /// the link.
    ///
    /// # Errors
    /// Those of the output.
    fn start_capture(&self, _output: CaptureOutput) -> io::Result<()> {
        Ok(())
    }

    /// Prepares for the exit of the process: bytes that closed connections have in flight get `timeout` to arrive, and
    /// buffered captures are written.
    fn finish(&self, _timeout: Duration) {}

    /// Ends the adapter after a panic that may have left it in any state: its connections are reset, and consumers are
    /// notified that the device is lost. Not for callbacks.
    fn abandon(&self) {
        self.enter(&mut |core, _| core.handle_device_lost());
    }

    /// True if the device serves one process at a time, and a child has to wait for its parent's exit.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// The kernel's socket of a listener, for the child of a fork; `None`: it has none.
    fn listening_socket(&self, _listener: ListenerId) -> Option<Arc<ListeningSocket>> {
        None
    }

    /// Has the next listener at this address use a socket that listens already, which the process has inherited.
    fn inherit(&self, _local: SocketAddr, _socket: OwnedFd) {}
}
