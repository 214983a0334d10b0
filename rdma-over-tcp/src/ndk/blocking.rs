//! Blocking calls, for programs whose threads may wait: connect or accept, then post, and wait for completions.
//!
//! ```
//! use std::thread;
//!
//! use rdma_over_tcp::ndk::{
//!     AdapterConfig, Data, MrFlags, NdkResultEx, OpFlags, Pair, QpLimits, ReadLimit, Sge,
//!     blocking::{Connection, Incoming, NodeError},
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Two nodes on a link in memory; `ndk::open` has one on a TAP, `ndk::open_sockets` needs none.
//! let Pair { adapters: [mut near, mut far], .. } = Pair::open(AdapterConfig::default())?;
//! let server = (Pair::ADDRESSES[1], 7174).into();
//!
//! let mut incoming = Incoming::listen(&mut far, server, 1)?;
//! let passive = thread::spawn(move || -> Result<Vec<u8>, NodeError> {
//!     let (pd, cq) = (far.create_pd()?, far.create_cq(16, |_| {})?);
//!     let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default())?;
//!     let (buffer, mr) = (far.allocate(4096)?, pd.create_mr(false)?);
//!     mr.register(&buffer, 0, 4096, MrFlags::ALLOW_LOCAL_WRITE)?;
//!     for half in [0, 2048] {
//!         let (address, token) = (buffer.address() + half, mr.local_token());
//!         qp.receive(half, &[Sge { address, length: 2048, token }])?;
//!     }
//!     let connector = incoming.next(&mut far)?;
//!     let connection = Connection::accept(&mut far, connector, &qp, ReadLimit::default(), &[])?;
//!     let mut results = [NdkResultEx::default(); 2];
//!     assert_eq!(connection.poll_all(&mut far, &cq, &mut results)?, 2);
//!     let mut data = vec![0; results[0].bytes_transferred as usize];
//!     buffer.read_at(0, &mut data);
//!     connection.disconnect(&mut far)?;
//!     Ok(data)
//! });
//!
//! let (pd, cq) = (near.create_pd()?, near.create_cq(16, |_| {})?);
//! let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default())?;
//! let connection = Connection::connect(&mut near, &qp, server, ReadLimit::default(), &[])?;
//! qp.send(1, Data::Inline(&[b"hello"]), OpFlags::empty())?;
//! qp.send(2, Data::Inline(&[b"again"]), OpFlags::empty())?;
//! assert_eq!(passive.join().unwrap()?, b"hello");
//! connection.disconnect(&mut near)?;
//! # Ok(())
//! # }
//! ```

use alloc::{boxed::Box, format, sync::Arc, vec::Vec};
use core::net::SocketAddr;
use std::sync::{
    OnceLock,
    mpsc::{Receiver, TrySendError, sync_channel},
};

use offload_engine::runtime::WaitError;

use super::{
    Adapter, CallError, ConnectCause, Connector, Cq, Disconnection, Listener, NdkResultEx,
    NtStatus, PendingCall, Qp, ReadLimit, SharedEndpoint, call::peer_data, reject_and_close,
};

/// Wait for an event of an adapter. An [`Adapter`] waits without a limit. A program with a time limit, or one that has
/// to check for signals, implements its own.
pub trait Wait {
    /// Error of a wait that ended without a result, or of a failed call.
    type Error;

    /// Returns the adapter whose events end the wait.
    fn adapter(&self) -> &Adapter;

    /// Converts the error of a failed call.
    fn failed(&self, error: CallError) -> Self::Error;

    /// Calls `look` now, and again after each possible change, until it returns a result.
    ///
    /// # Errors
    /// The wait ended without a result.
    fn wait<T>(&mut self, look: impl FnMut() -> Option<T>) -> Result<T, Self::Error>;
}

/// Error of a call that waits on an [`Adapter`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// A waiting call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A call that does not wait failed.
    #[error("NDK: {0}")]
    Status(#[from] NtStatus),
    /// The wait ended without a result.
    #[error(transparent)]
    Wait(#[from] WaitError),
}

impl Wait for Adapter {
    type Error = NodeError;

    fn adapter(&self) -> &Adapter {
        self
    }

    fn failed(&self, error: CallError) -> NodeError {
        error.into()
    }

    fn wait<T>(&mut self, look: impl FnMut() -> Option<T>) -> Result<T, NodeError> {
        Ok(self.wait_until(None, look)?)
    }
}

/// Begins a call and waits for its completion.
///
/// # Errors
/// The call failed, or the wait did.
pub fn call<W: Wait>(
    waiter: &mut W,
    name: &str,
    begin: impl FnOnce(Box<dyn FnOnce(NtStatus) + Send>) -> NtStatus,
) -> Result<(), W::Error> {
    call_with_cause(waiter, name, begin, || None)
}

/// Begins a connector's connect, completion or accept as [`call`] does. The error includes the cause.
///
/// # Errors
/// As [`call`].
pub fn call_on<W: Wait>(
    waiter: &mut W,
    connector: &Connector,
    name: &str,
    begin: impl FnOnce(Box<dyn FnOnce(NtStatus) + Send>) -> NtStatus,
) -> Result<(), W::Error> {
    call_with_cause(waiter, name, begin, || connector.failure())
}

/// Begins a call as [`call`] does; `cause` returns the cause of its failure.
fn call_with_cause<W: Wait>(
    waiter: &mut W,
    name: &str,
    begin: impl FnOnce(Box<dyn FnOnce(NtStatus) + Send>) -> NtStatus,
    cause: impl FnOnce() -> Option<ConnectCause>,
) -> Result<(), W::Error> {
    let begun = PendingCall::begin(begin);
    match waiter.wait(|| begun.status())? {
        NtStatus::SUCCESS => Ok(()),
        status => Err(waiter.failed(CallError { call: name.into(), status, cause: cause() })),
    }
}

/// Blocking form of CLOSE_NDK_ADAPTER_HANDLER, as in NDKPI. It waits until every object of the adapter is closed and
/// all their callbacks have returned (NDK-LIFE-9). Must not be called from callbacks, because it would wait for their
/// return.
///
/// # Errors
/// The wait failed.
pub fn close_adapter<W: Wait>(waiter: &mut W) -> Result<(), W::Error> {
    let closed = PendingCall::close(|done| waiter.adapter().close(done));
    waiter.wait(|| closed.status()).map(drop)
}

/// Creates a shared endpoint, and waits until its address is reserved.
///
/// # Errors
/// As [`Adapter::create_shared_endpoint`]; or the wait failed.
pub fn create_shared_endpoint<W: Wait>(
    waiter: &mut W,
    local: SocketAddr,
) -> Result<SharedEndpoint, W::Error> {
    let created = Arc::new(OnceLock::new());
    let completed = created.clone();
    let status = waiter.adapter().create_shared_endpoint(local, move |endpoint| {
        // The creation completes once.
        let _ = completed.set(endpoint);
    });
    let endpoint = match status {
        NtStatus::PENDING => waiter.wait(|| created.get().cloned())?,
        status => Err(status),
    };
    endpoint.map_err(|status| {
        let call = format!("create a shared endpoint at {local}");
        waiter.failed(CallError { call, status, cause: None })
    })
}

/// Listener with its queue of incoming connections.
#[derive(Debug)]
pub struct Incoming {
    listener: Listener,
    connectors: Receiver<Connector>,
}

impl Incoming {
    /// Starts to listen. At most `backlog` connections are queued for [`Incoming::next`]; further ones are rejected.
    ///
    /// # Errors
    /// As [`Listener::listen`]; or the wait failed.
    pub fn listen<W: Wait>(
        waiter: &mut W,
        local: SocketAddr,
        backlog: usize,
    ) -> Result<Self, W::Error> {
        let name = format!("listen on {local}");
        let (sender, connectors) = sync_channel(backlog);
        let event = move |connector| {
            if let Err(TrySendError::Full(connector) | TrySendError::Disconnected(connector)) =
                sender.try_send(connector)
            {
                reject_and_close(&connector, &[]);
            }
        };
        let listener = waiter.adapter().create_listener(event).map_err(|status| {
            waiter.failed(CallError { call: name.clone(), status, cause: None })
        })?;
        call(waiter, &name, |done| listener.listen(local, done))?;
        Ok(Self { listener, connectors })
    }

    /// Returns the listener.
    pub const fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Waits for the next connection, which the caller accepts or rejects.
    ///
    /// # Errors
    /// The wait failed.
    pub fn next<W: Wait>(&mut self, waiter: &mut W) -> Result<Connector, W::Error> {
        waiter.wait(|| self.connectors.try_recv().ok())
    }
}

/// Connection of a queue pair.
#[derive(Debug)]
pub struct Connection {
    connector: Connector,
    disconnection: Disconnection,
    private_data: Vec<u8>,
}

impl Connection {
    fn of(connector: Connector) -> Self {
        let private_data = peer_data(&connector);
        Self { connector, disconnection: Disconnection::default(), private_data }
    }

    /// Connects a queue pair.
    ///
    /// # Errors
    /// As [`Connector::connect`] and [`Connector::complete_connect`]; or the wait failed.
    pub fn connect<W: Wait>(
        waiter: &mut W,
        qp: &Qp,
        remote: SocketAddr,
        limits: ReadLimit,
        private_data: &[u8],
    ) -> Result<Self, W::Error> {
        let name = format!("connect to {remote}");
        let connector = waiter.adapter().create_connector().map_err(|status| {
            waiter.failed(CallError { call: name.clone(), status, cause: None })
        })?;
        let mut connection = Self::of(connector);
        match connection.establish(waiter, &name, |connector, done| {
            connector.connect(qp, None, remote, limits, private_data, done)
        }) {
            Ok(()) => Ok(connection),
            Err(error) => {
                let _ = connection.connector.close(|| {});
                Err(error)
            }
        }
    }

    fn establish<W: Wait>(
        &mut self,
        waiter: &mut W,
        name: &str,
        connect: impl FnOnce(&Connector, Box<dyn FnOnce(NtStatus) + Send>) -> NtStatus,
    ) -> Result<(), W::Error> {
        call_on(waiter, &self.connector, name, |done| connect(&self.connector, done))?;
        self.private_data = peer_data(&self.connector);
        let event = Some(self.disconnection.event());
        call_on(waiter, &self.connector, "complete the connection", |done| {
            self.connector.complete_connect(event, done)
        })
    }

    /// Accepts a connection for a queue pair, and waits until the peer has completed it.
    ///
    /// # Errors
    /// As [`Connector::accept`]; or the wait failed.
    pub fn accept<W: Wait>(
        waiter: &mut W,
        connector: Connector,
        qp: &Qp,
        limits: ReadLimit,
        private_data: &[u8],
    ) -> Result<Self, W::Error> {
        let connection = Self::of(connector);
        let event = Some(connection.disconnection.event());
        call_on(waiter, &connection.connector, "accept", |done| {
            connection.connector.accept(qp, limits, private_data, event, done)
        })?;
        Ok(connection)
    }

    /// Returns the private data of the peer's request or reply.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Returns its connector.
    pub const fn connector(&self) -> &Connector {
        &self.connector
    }

    /// Returns the end by the peer or by an error.
    pub const fn disconnection(&self) -> &Disconnection {
        &self.disconnection
    }

    /// Waits for a completion, and moves those that are available into `results`. Returns their number, which may be
    /// less than the length; 0: the connection has ended and no completion remains.
    ///
    /// # Errors
    /// The wait failed.
    pub fn poll<W: Wait>(
        &self,
        waiter: &mut W,
        cq: &Cq,
        results: &mut [NdkResultEx],
    ) -> Result<usize, W::Error> {
        waiter.wait(|| {
            // The end is checked first: completions added before it are returned before it.
            let has_ended = self.disconnection.reason().is_some();
            match cq.poll_ex(results) {
                0 if !has_ended => None,
                count => Some(count),
            }
        })
    }

    /// Waits as [`Connection::poll`] until `results` is full. Returns the number of completions, which is less than the
    /// length only if the connection has ended.
    ///
    /// # Errors
    /// The wait failed.
    pub fn poll_all<W: Wait>(
        &self,
        waiter: &mut W,
        cq: &Cq,
        results: &mut [NdkResultEx],
    ) -> Result<usize, W::Error> {
        let mut count = 0;
        while count < results.len() {
            match self.poll(waiter, cq, &mut results[count..])? {
                0 => break,
                more => count += more,
            }
        }
        Ok(count)
    }

    /// Sends all posted requests, then disconnects, and waits until the peer has acknowledged the disconnect. A
    /// connection that has already ended needs no disconnect.
    ///
    /// # Errors
    /// As [`Connector::disconnect`]; or the wait failed.
    pub fn disconnect<W: Wait>(&self, waiter: &mut W) -> Result<(), W::Error> {
        let begun = PendingCall::begin(|done| self.connector.disconnect(done));
        match waiter.wait(|| begun.status())? {
            NtStatus::SUCCESS => Ok(()),
            NtStatus::CONNECTION_INVALID | NtStatus::DEVICE_REMOVED
                if self.disconnection.reason().is_some() =>
            {
                Ok(())
            }
            status => {
                Err(waiter.failed(CallError { call: "disconnect".into(), status, cause: None }))
            }
        }
    }
}
