//! Trait that each transport implements once, for all interfaces.

use alloc::{sync::Arc, vec, vec::Vec};
use core::net::SocketAddr;
use std::{io, os::fd::OwnedFd};

use offload_engine::{
    chimney::client::OffloadHandle,
    engine::ConnectionSnapshot,
    link::{CaptureOutput, CaptureStatus},
    listing::ConnectionRow,
    runtime::WaitError,
    socket::TcpStatistics,
    time::{Duration, Instant},
};

use crate::{
    rnic::{ListenerId, Rnic, Urgency},
    transport::ListeningSocket,
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
/// Only [`Driver::enter`] is required. The defaults fit a transport without threads, run by its caller, with one TCP
/// stack and no device.
pub trait Driver: Send + Sync {
    /// Calls `work` with the core, once, and performs the resulting actions. Frames are sent, and due callbacks run
    /// after the lock is released.
    fn enter(&self, work: &mut dyn FnMut(&mut Rnic, Instant));

    /// Calls `work` as [`Driver::enter`] does, for posts. `work` returns the urgency with which its effects must be
    /// flushed.
    fn enter_for_post(&self, work: &mut dyn FnMut(&mut Rnic) -> Urgency) {
        self.enter(&mut |core, _| {
            work(core);
        });
    }

    /// Runs the transport once if its consumer has to: a polling consumer makes its own progress. Returns true if there
    /// was work.
    fn progress(&self) -> bool {
        false
    }

    /// Reports that [`Driver::progress`] returned true and brought the consumer nothing: it polls again.
    fn expect_poll(&self) {}

    /// Reports that a consumer requested a notification without entering the core. It may then sleep in a system call
    /// of its own.
    fn expect_sleep(&self) {}

    /// Waits until `is_over` returns true. `is_over` may use the adapter; it is called immediately and after each
    /// change. Meanwhile this thread may run the transport. By default it calls only [`Driver::progress`], until that
    /// finds no work. Must not be called from callbacks.
    ///
    /// # Errors
    /// The timeout elapsed, or the device is lost.
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

    /// Makes every [`Driver::wait_while`] check its condition again, after a change outside the adapter.
    fn wake(&self) {}

    /// Waits until all connections have closed normally. Connections that remain when the adapter is dropped are reset.
    ///
    /// # Errors
    /// The timeout elapsed, or the device is lost.
    fn linger(&self, timeout: Duration) -> Result<(), WaitError> {
        self.wait_while(Some(timeout), &mut || {
            let mut is_silent = false;
            self.enter(&mut |core, _| is_silent = core.histories().next().is_none());
            is_silent
        })
    }

    /// Returns the listeners and connections of the transport, by handle.
    ///
    /// # Errors
    /// No answer within `timeout`.
    fn list(&self, _timeout: Duration) -> Result<Vec<ConnectionRow>, WaitError> {
        Ok(Vec::new())
    }

    /// Returns the listener or connection with this handle; `None`: not found.
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

    /// Returns the state of these connections in the offload target; `None`: not offloaded.
    fn snapshots(&self, handles: &[OffloadHandle]) -> Vec<Option<ConnectionSnapshot>> {
        vec![None; handles.len()]
    }

    /// Returns the kernel's statistics of these connections; `None`: not on a kernel socket.
    fn statistics(&self, handles: &[OffloadHandle]) -> Vec<Option<TcpStatistics>> {
        vec![None; handles.len()]
    }

    /// Requests the migration of a connection to another stack.
    ///
    /// # Errors
    /// The transport has one stack only.
    fn migrate(&self, _handle: OffloadHandle, _to: Stack) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Starts a capture in pcapng, with an interface of this name. It ends at [`Driver::stop_capture`], or at the first
    /// error of the output; traffic continues.
    ///
    /// # Errors
    /// The header could not be written, a capture runs, or the transport has no captures.
    fn start_capture(&self, _output: CaptureOutput, _interface: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Stops the capture and returns its final state; `None`: none runs.
    fn stop_capture(&self) -> Option<CaptureStatus> {
        None
    }

    /// Returns the state of the capture; `None`: none runs.
    fn capture(&self) -> Option<CaptureStatus> {
        None
    }

    /// Returns the number of TCP segments received so far; `None`: not counted.
    fn segments_received(&self) -> Option<u64> {
        None
    }

    /// Prepares for the exit of the process. Data in flight on closed connections gets `timeout` to arrive, and
    /// buffered captures are written.
    fn finish(&self, _timeout: Duration) {}

    /// Shuts the adapter down after a panic that may have left any state inconsistent. Its connections are reset, and
    /// consumers are notified that the device is lost. Must not be called from callbacks.
    fn abandon(&self) {
        self.enter(&mut |core, _| core.handle_device_lost());
    }

    /// True if the device serves one process at a time, and a child has to wait for its parent's exit.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// Returns the kernel socket of a listener, for the child of a fork; `None`: the listener has none.
    fn listening_socket(&self, _listener: ListenerId) -> Option<Arc<ListeningSocket>> {
        None
    }

    /// Opens the port of a queue pair number for datagrams ([`QpService::Ud`](crate::rnic::QpService)). The port is
    /// that of the number's low 16 bits. A repeated call has no effect. [`Rnic::close_datagrams`] closes it.
    ///
    /// # Errors
    /// AddrInUse: another process, or another client of the node, has the port. Unsupported, the default: the
    /// driver has no datagrams. Any other error of the socket.
    fn open_datagrams(&self, _port: u16) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Makes the next listener at this address use a listening socket that the process inherited.
    fn inherit(&self, _local: SocketAddr, _socket: OwnedFd) {}
}
