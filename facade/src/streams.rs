//! Byte streams of a TAP node with blocking calls. Each connection is offloaded after its handshake, unless the
//! options of the node exclude it.
//!
//! ```no_run
//! use std::{io::{Read, Write}, time::Duration};
//!
//! use flue_rdma::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The kernel's side of the TAP has 10.77.0.1. Its peer is, for example, "nc -l 5000".
//! let options = NodeOptions {
//!     addresses: vec!["10.77.0.2/24".parse()?],
//!     host_addresses: vec!["10.77.0.1/24".parse()?],
//!     ..NodeOptions::default()
//! };
//! let node = StreamNode::open(&options)?;
//! let mut stream = node.connect("10.77.0.1:5000".parse()?, Duration::from_secs(3))?;
//! stream.write_all(b"hello\n")?;
//! stream.shutdown();
//! let mut reply = String::new();
//! stream.read_to_string(&mut reply)?;
//! stream.close(Duration::from_secs(3))?;
//! # Ok(())
//! # }
//! ```

use std::{
    io::{self, ErrorKind, Read, Write},
    net::SocketAddr,
    time::Duration,
};

use bytes::{Buf as _, Bytes};
use flue_adapter::{Error, NodeOptions};
use host_stack::{
    node::{Node, WaitError},
    socket::{HostError, ListenerId},
    stream::{StreamStatus, Streams},
};
use offload_engine::chimney::client::OffloadHandle;

/// Limit of written bytes that the peer has not acknowledged. A write waits beyond it.
const UNACKNOWLEDGED_BYTES_MAX: usize = 1 << 20;
/// Connections that wait for [`StreamListener::accept`].
const BACKLOG: usize = 128;

/// A node whose connections are byte streams.
#[derive(Clone, Debug)]
pub struct StreamNode(Node<Streams>);

impl StreamNode {
    /// Opens a node with one queue.
    ///
    /// # Errors
    /// As [`NodeOptions::open_one`].
    pub fn open(options: &NodeOptions) -> Result<Self, Error> {
        options.open_one(Streams::new).map(Self)
    }

    /// Uses a node that the caller has opened, for example on another link than a TAP.
    pub const fn on(node: Node<Streams>) -> Self {
        Self(node)
    }

    /// Connects to `remote` within `limit`.
    ///
    /// # Errors
    /// The peer or the next hop does not respond, or refuses; or the link is lost.
    pub fn connect(&self, remote: SocketAddr, limit: Duration) -> io::Result<BlockingStream> {
        let handle = self.0.with(|streams, _, _| streams.connect(None, remote, limit));
        // Dropped, and removed from the node, if it fails.
        let stream = BlockingStream { node: self.clone(), handle, unread: Bytes::new() };
        stream.wait(None, |status| match status.error {
            Some(error) => Some(Err(failure(error))),
            None => (status.connected || status.closed).then_some(Ok(())),
        })?;
        Ok(stream)
    }

    /// Listens on `local`. Port 0 selects a free port.
    ///
    /// # Errors
    /// The address is in use, or not one of the node; or the link is lost.
    pub fn listen(&self, local: SocketAddr) -> io::Result<StreamListener> {
        let id = self.0.with(|streams, _, _| streams.listen(local, BACKLOG));
        let mut listener = StreamListener { node: self.clone(), id, local };
        let state = self.0.wait(None, |streams, _, _| streams.listening(id)).map_err(lost)?;
        listener.local = state.map_err(failure)?;
        Ok(listener)
    }
}

/// A listener. Dropping it stops listening; accepted connections remain.
#[derive(Debug)]
pub struct StreamListener {
    node: StreamNode,
    id: ListenerId,
    local: SocketAddr,
}

impl StreamListener {
    /// Returns the local address.
    pub const fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// The link is lost.
    pub fn accept(&self) -> io::Result<BlockingStream> {
        let accepted = self.node.0.wait(None, |streams, _, _| streams.accept(self.id));
        let handle = accepted.map_err(lost)?;
        Ok(BlockingStream { node: self.node.clone(), handle, unread: Bytes::new() })
    }
}

impl Drop for StreamListener {
    fn drop(&mut self) {
        self.node.0.with(|streams, _, _| streams.unlisten(self.id));
    }
}

/// A connection. Dropping it resets a connection that is not closed: [`BlockingStream::close`] ends it in order.
#[derive(Debug)]
pub struct BlockingStream {
    node: StreamNode,
    handle: OffloadHandle,
    /// Received data that the caller has not read.
    unread: Bytes,
}

impl BlockingStream {
    /// Returns the state of the connection, with the stack that has it; `None`: the node has removed it.
    #[must_use]
    pub fn status(&self) -> Option<StreamStatus> {
        self.node.0.with(|streams, _, _| streams.status(self.handle))
    }

    /// Sends a FIN after the written data. The other direction remains open.
    pub fn shutdown(&mut self) {
        let handle = self.handle;
        self.node.0.with(|streams, connections, now| streams.shutdown(now, connections, handle));
    }

    /// Requests the offload of the connection.
    pub fn offload(&mut self) {
        self.node.0.with(|streams, _, _| streams.offload(self.handle));
    }

    /// Requests the upload of the connection to the host stack.
    pub fn upload(&mut self) {
        self.node.0.with(|streams, _, _| streams.upload(self.handle));
    }

    /// Sends a FIN after the written data, discards received data, and waits for the FIN of the peer, at most `limit`.
    ///
    /// # Errors
    /// The peer does not close in time, or has reset the connection.
    pub fn close(mut self, limit: Duration) -> io::Result<()> {
        self.shutdown();
        let handle = self.handle;
        let closed = self.node.0.wait(Some(limit), |streams, connections, now| {
            while streams.receive(now, connections, handle).is_some() {}
            let status = streams.status(handle)?;
            match status.error {
                Some(error) => Some(Err(failure(error))),
                None => (status.peer_closed && status.shut_down || status.closed).then_some(Ok(())),
            }
        });
        closed.unwrap_or_else(|error| Err(lost(error)))
    }

    /// Waits until `f` has a result for the status of the stream.
    fn wait<T>(
        &self,
        limit: Option<Duration>,
        mut f: impl FnMut(StreamStatus) -> Option<io::Result<T>>,
    ) -> io::Result<T> {
        let waited = self.node.0.wait(limit, |streams, _, _| match streams.status(self.handle) {
            Some(status) => f(status),
            None => Some(Err(ErrorKind::NotConnected.into())),
        });
        waited.unwrap_or_else(|error| Err(lost(error)))
    }
}

impl Read for BlockingStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.unread.is_empty() && !buffer.is_empty() {
            let handle = self.handle;
            let received = self.node.0.wait(None, |streams, connections, now| {
                if let Some(data) = streams.receive(now, connections, handle) {
                    return Some(Ok(data));
                }
                let Some(status) = streams.status(handle) else { return Some(Ok(Bytes::new())) };
                match status.error {
                    Some(error) => Some(Err(failure(error))),
                    None => (status.peer_closed || status.closed).then(|| Ok(Bytes::new())),
                }
            });
            self.unread = received.map_err(lost)??;
        }
        let count = self.unread.len().min(buffer.len());
        self.unread.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

impl Write for BlockingStream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        self.wait(None, |status| match status.error {
            Some(error) => Some(Err(failure(error))),
            None if status.closed => Some(Err(ErrorKind::BrokenPipe.into())),
            None => (status.unacknowledged < UNACKNOWLEDGED_BYTES_MAX).then_some(Ok(())),
        })?;
        let (handle, count) = (self.handle, data.len().min(UNACKNOWLEDGED_BYTES_MAX));
        let data = Bytes::copy_from_slice(&data[..count]);
        self.node.0.with(|streams, connections, now| streams.send(now, connections, handle, data));
        Ok(count)
    }

    /// Written data is sent without a call.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for BlockingStream {
    fn drop(&mut self) {
        let handle = self.handle;
        self.node.0.with(|streams, connections, now| streams.forget(now, connections, handle));
    }
}

fn lost(error: WaitError) -> io::Error {
    match error {
        WaitError::TimedOut => ErrorKind::TimedOut.into(),
        error => io::Error::other(error),
    }
}

fn failure(error: HostError) -> io::Error {
    let kind = match error {
        HostError::Refused => ErrorKind::ConnectionRefused,
        HostError::TimedOut | HostError::RetransmissionLimit | HostError::Unanswered(_) => {
            ErrorKind::TimedOut
        }
        HostError::HostUnreachable => ErrorKind::HostUnreachable,
        HostError::NetworkUnreachable => ErrorKind::NetworkUnreachable,
        HostError::AddressNotAvailable => ErrorKind::AddrNotAvailable,
        HostError::AddressInUse => ErrorKind::AddrInUse,
        HostError::Reset => ErrorKind::ConnectionReset,
        HostError::Aborted => ErrorKind::ConnectionAborted,
        _ => ErrorKind::Other,
    };
    io::Error::new(kind, error)
}
