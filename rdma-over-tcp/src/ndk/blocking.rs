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
//! let Pair { adapters: [near, far], nodes: [mut near_node, mut far_node] } =
//!     Pair::open(AdapterConfig::default())?;
//! let server = (Pair::ADDRESSES[1], 7174).into();
//!
//! let mut incoming = Incoming::listen(&mut far_node, &far, server, 1)?;
//! let passive = thread::spawn(move || -> Result<Vec<u8>, NodeError> {
//!     let (pd, cq) = (far.create_pd()?, far.create_cq(16, |_| {})?);
//!     let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default())?;
//!     let (buffer, mr) = (far.allocate(4096)?, pd.create_mr(false)?);
//!     mr.register(&buffer, 0, 4096, MrFlags::ALLOW_LOCAL_WRITE)?;
//!     qp.receive(1, &[Sge { address: buffer.address(), length: 4096, token: mr.local_token() }])?;
//!     let connector = incoming.next(&mut far_node)?;
//!     let connection = Connection::accept(&mut far_node, connector, &qp, ReadLimit::default(), &[])?;
//!     let mut results = [NdkResultEx::default()];
//!     connection.poll(&mut far_node, &cq, &mut results)?;
//!     let mut data = vec![0; results[0].bytes_transferred as usize];
//!     buffer.read_at(0, &mut data);
//!     connection.disconnect(&mut far_node)?;
//!     Ok(data)
//! });
//!
//! let (pd, cq) = (near.create_pd()?, near.create_cq(16, |_| {})?);
//! let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default())?;
//! let connection = Connection::connect(&mut near_node, &near, &qp, server, ReadLimit::default(), &[])?;
//! qp.send(1, Data::Inline(&[b"hello"]), OpFlags::empty())?;
//! assert_eq!(passive.join().unwrap()?, b"hello");
//! connection.disconnect(&mut near_node)?;
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
    Adapter, Begun, CallError, ConnectCause, Connector, Cq, Driver, Ended, Listener, NdkResultEx,
    NtStatus, Qp, ReadLimit, SharedEndpoint, call::peer_data, turn_away,
};

/// A way to wait until something has happened on an adapter. An [`Adapter`] and its [`Driver`] wait without a limit; a
/// program that has a time limit, or has to check for signals, implements its own.
pub trait Wait {
    /// A wait that ended without a result, or a call that failed.
    type Error;

    /// The error of a call that failed.
    fn failed(&self, error: CallError) -> Self::Error;

    /// Calls `look` now, and again whenever something may have changed, until it has a result.
    ///
    /// # Errors
    /// The wait has ended without one.
    fn wait<T>(&mut self, look: impl FnMut() -> Option<T>) -> Result<T, Self::Error>;
}

/// An error of calls that wait on an [`Adapter`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// A call that waited has failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Another call has failed.
    #[error("NDK: {0}")]
    Status(#[from] NtStatus),
    /// The wait has ended without a result.
    #[error(transparent)]
    Wait(#[from] WaitError),
}

impl<D: Driver> Wait for D {
    type Error = NodeError;

    fn failed(&self, error: CallError) -> NodeError {
        error.into()
    }

    fn wait<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> Result<T, NodeError> {
        let mut found = None;
        self.wait_while(None, &mut || {
            found = look();
            found.is_some()
        })?;
        Ok(found.ok_or(WaitError::TimedOut)?)
    }
}

impl Wait for Adapter {
    type Error = NodeError;

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
/// It has failed, or the wait has.
pub fn call<W: Wait>(
    waiter: &mut W,
    name: &str,
    begin: impl FnOnce(Box<dyn FnOnce(NtStatus) + Send>) -> NtStatus,
) -> Result<(), W::Error> {
    call_and_ask(waiter, name, begin, || None)
}

/// As [`call`], of a connector's connect, completion or accept: the error says why.
///
/// # Errors
/// As [`call`].
pub fn call_on<W: Wait>(
    waiter: &mut W,
    connector: &Connector,
    name: &str,
    begin: impl FnOnce(Box<dyn FnOnce(NtStatus) + Send>) -> NtStatus,
) -> Result<(), W::Error> {
    call_and_ask(waiter, name, begin, || connector.failure())
}

/// As [`call`]; `cause` says why it has failed.
fn call_and_ask<W: Wait>(
    waiter: &mut W,
    name: &str,
    begin: impl FnOnce(Box<dyn FnOnce(NtStatus) + Send>) -> NtStatus,
    cause: impl FnOnce() -> Option<ConnectCause>,
) -> Result<(), W::Error> {
    let begun = Begun::begin(begin);
    match waiter.wait(|| begun.status())? {
        NtStatus::SUCCESS => Ok(()),
        status => Err(waiter.failed(CallError { call: name.into(), status, cause: cause() })),
    }
}

/// CLOSE_NDK_ADAPTER_HANDLER as NDKPI has it: waits until every object of the adapter is closed, and every callback of
/// them has returned (NDK-LIFE-9). Not for callbacks, whose return it would wait for.
///
/// # Errors
/// The wait has failed.
pub fn close_adapter<W: Wait>(waiter: &mut W, adapter: &Adapter) -> Result<(), W::Error> {
    let closed = Begun::close(|done| adapter.close(done));
    waiter.wait(|| closed.status()).map(drop)
}

/// Creates a shared endpoint, and waits until its address is reserved.
///
/// # Errors
/// As [`Adapter::create_shared_endpoint`]; or the wait has failed.
pub fn create_shared_endpoint<W: Wait>(
    waiter: &mut W,
    adapter: &Adapter,
    local: SocketAddr,
) -> Result<SharedEndpoint, W::Error> {
    let made = Arc::new(OnceLock::new());
    let tell = made.clone();
    let status = adapter.create_shared_endpoint(local, move |endpoint| {
        // The creation has one completion.
        let _ = tell.set(endpoint);
    });
    let made = match status {
        NtStatus::PENDING => waiter.wait(|| made.get().cloned())?,
        status => Err(status),
    };
    made.map_err(|status| {
        let call = format!("create a shared endpoint at {local}");
        waiter.failed(CallError { call, status, cause: None })
    })
}

/// A listener, and the connections that have come.
#[derive(Debug)]
pub struct Incoming {
    listener: Listener,
    connectors: Receiver<Connector>,
}

impl Incoming {
    /// Listens. At most `backlog` connections wait for [`Incoming::next`]; the peer of another one is rejected.
    ///
    /// # Errors
    /// As [`Listener::listen`]; or the wait has failed.
    pub fn listen<W: Wait>(
        waiter: &mut W,
        adapter: &Adapter,
        local: SocketAddr,
        backlog: usize,
    ) -> Result<Self, W::Error> {
        let name = format!("listen on {local}");
        let (sender, connectors) = sync_channel(backlog);
        let event = move |connector| {
            if let Err(TrySendError::Full(connector) | TrySendError::Disconnected(connector)) =
                sender.try_send(connector)
            {
                turn_away(&connector, &[]);
            }
        };
        let listener = adapter.create_listener(event).map_err(|status| {
            waiter.failed(CallError { call: name.clone(), status, cause: None })
        })?;
        call(waiter, &name, |done| listener.listen(local, done))?;
        Ok(Self { listener, connectors })
    }

    /// The listener.
    pub const fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Waits for the next connection, to be accepted or rejected.
    ///
    /// # Errors
    /// The wait has failed.
    pub fn next<W: Wait>(&mut self, waiter: &mut W) -> Result<Connector, W::Error> {
        waiter.wait(|| self.connectors.try_recv().ok())
    }
}

/// A connection of a queue pair.
#[derive(Debug)]
pub struct Connection {
    connector: Connector,
    ended: Ended,
    private_data: Vec<u8>,
}

impl Connection {
    fn of(connector: Connector) -> Self {
        let private_data = peer_data(&connector);
        Self { connector, ended: Ended::default(), private_data }
    }

    /// Connects a queue pair.
    ///
    /// # Errors
    /// As [`Connector::connect`] and [`Connector::complete_connect`]; or the wait has failed.
    pub fn connect<W: Wait>(
        waiter: &mut W,
        adapter: &Adapter,
        qp: &Qp,
        remote: SocketAddr,
        limits: ReadLimit,
        private_data: &[u8],
    ) -> Result<Self, W::Error> {
        let name = format!("connect to {remote}");
        let connector = adapter.create_connector().map_err(|status| {
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
        let event = Some(self.ended.event());
        call_on(waiter, &self.connector, "complete the connection", |done| {
            self.connector.complete_connect(event, done)
        })
    }

    /// Accepts a connection for a queue pair, and waits until the peer has completed it.
    ///
    /// # Errors
    /// As [`Connector::accept`]; or the wait has failed.
    pub fn accept<W: Wait>(
        waiter: &mut W,
        connector: Connector,
        qp: &Qp,
        limits: ReadLimit,
        private_data: &[u8],
    ) -> Result<Self, W::Error> {
        let connection = Self::of(connector);
        let event = Some(connection.ended.event());
        call_on(waiter, &connection.connector, "accept", |done| {
            connection.connector.accept(qp, limits, private_data, event, done)
        })?;
        Ok(connection)
    }

    /// The peer's private data: of its request, or of its answer.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Its connector.
    pub const fn connector(&self) -> &Connector {
        &self.connector
    }

    /// The end by the peer, or by an error.
    pub const fn ended(&self) -> &Ended {
        &self.ended
    }

    /// Waits for completions and moves them into `results`; returns how many. 0: the connection has ended, and none is
    /// left.
    ///
    /// # Errors
    /// The wait has failed.
    pub fn poll<W: Wait>(
        &self,
        waiter: &mut W,
        cq: &Cq,
        results: &mut [NdkResultEx],
    ) -> Result<usize, W::Error> {
        waiter.wait(|| {
            // Looked at first: completions that came before the end are taken after it.
            let has_ended = self.ended.reason().is_some();
            match cq.poll_ex(results) {
                0 if !has_ended => None,
                count => Some(count),
            }
        })
    }

    /// Sends what was posted, then disconnects, and waits until the peer has acknowledged that. A connection that is
    /// gone needs no disconnect.
    ///
    /// # Errors
    /// As [`Connector::disconnect`]; or the wait has failed.
    pub fn disconnect<W: Wait>(&self, waiter: &mut W) -> Result<(), W::Error> {
        let begun = Begun::begin(|done| self.connector.disconnect(done));
        match waiter.wait(|| begun.status())? {
            NtStatus::SUCCESS => Ok(()),
            NtStatus::CONNECTION_INVALID | NtStatus::DEVICE_REMOVED
                if self.ended.reason().is_some() =>
            {
                Ok(())
            }
            status => {
                Err(waiter.failed(CallError { call: "disconnect".into(), status, cause: None }))
            }
        }
    }
}
