//! Socket of a listener. The child of a fork inherits it and can take it over, with its pending connections.
//!
//! After a fork both processes have the socket and the epoll set of the parent's adapter. The child removes the socket
//! from that set, so that the parent accepts no further connection, and listens on it with its own adapter.

use alloc::sync::Arc;
use core::net::SocketAddr;
use std::{
    os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd},
    sync::{Mutex, PoisonError},
};

use offload_engine::descriptor::Guarded;
use rustix::{
    event::epoll,
    io::Errno,
    net::{getsockname, sockopt},
};

use super::kernel::address;

/// Listening socket, and the epoll set that contains it.
#[derive(Debug)]
pub struct ListeningSocket {
    /// `None` in a child that has taken it over.
    socket: Mutex<Option<Guarded<OwnedFd>>>,
    poller: Arc<Guarded<OwnedFd>>,
    local: SocketAddr,
}

impl ListeningSocket {
    pub(super) fn new(
        socket: Guarded<OwnedFd>,
        poller: Arc<Guarded<OwnedFd>>,
        local: SocketAddr,
    ) -> Self {
        Self { socket: Mutex::new(Some(socket)), poller, local }
    }

    /// Calls `work` with the socket.
    pub(super) fn with<R>(
        &self,
        work: impl FnOnce(BorrowedFd<'_>) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        work(socket.as_ref().ok_or(Errno::BADF)?.as_fd())
    }

    /// Removes the socket from the parent's adapter, in the child of a fork. `None` if another thread of the parent
    /// used it at the fork, or the program has closed its descriptor.
    pub fn take(&self) -> Option<(SocketAddr, OwnedFd)> {
        let socket = self.take_intact()?;
        if self.poller.is_intact() {
            let _ = epoll::delete(&self.poller, &socket);
        }
        Some((self.local, socket.into_inner()))
    }

    /// Closes the socket in the child of a fork: the parent continues to listen.
    pub fn close_inherited(&self) {
        drop(self.take_intact());
    }

    fn take_intact(&self) -> Option<Guarded<OwnedFd>> {
        // The holder of the lock, if any, does not exist in this process.
        let socket = self.socket.try_lock().ok()?.take()?;
        if !self.is_intact(socket.as_fd()) {
            // The number may be that of another file of the program, which must stay open.
            let _ = socket.into_inner().into_raw_fd();
            return None;
        }
        Some(socket)
    }

    /// Duplicates the descriptor of the socket, in the child of a fork.
    pub fn try_clone(&self) -> Option<Guarded<OwnedFd>> {
        let socket = self.socket.try_lock().ok()?;
        let socket = socket.as_ref().filter(|it| self.is_intact(it.as_fd()))?;
        socket.try_clone().ok().map(Guarded::from)
    }

    fn is_intact(&self, socket: BorrowedFd<'_>) -> bool {
        let local = getsockname(socket).and_then(address);
        local == Ok(self.local) && sockopt::socket_acceptconn(socket) == Ok(true)
    }
}
