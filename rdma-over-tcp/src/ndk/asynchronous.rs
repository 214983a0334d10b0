//! Calls as futures, for tasks of any executor: connect or accept, then post, and await completions.
//!
//! Callbacks of the adapter wake every future; no object has a thread or timer. The adapter must therefore
//! make progress by itself: a node with automatic progress ([`NodeConfig`]), or kernel sockets
//! ([`open_sockets`](super::open_sockets)). All futures are `Send`. Dropping a future is safe: a connection that was
//! being established is closed, and other calls complete without a waiter.
//!
//! [`NodeConfig`]: host_stack::node::NodeConfig
//!
//! ```
//! use futures::{executor::block_on, try_join};
//! use rdma_over_tcp::ndk::{
//!     AdapterConfig, Data, MrFlags, NdkResultEx, OpFlags, Pair, QpLimits, ReadLimit, Sge,
//!     asynchronous::{Completions, Connection, Incoming},
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pair = Pair::open(AdapterConfig::default())?;
//! let [near, far] = &pair.adapters;
//! let server = (Pair::ADDRESSES[1], 7174).into();
//!
//! let passive = async {
//!     let completions = Completions::create(far, 16)?;
//!     let pd = far.create_pd()?;
//!     let qp = pd.create_qp(completions.cq(), completions.cq(), 0, QpLimits::default())?;
//!     let (buffer, mr) = (far.allocate(4096)?, pd.create_mr(false)?);
//!     mr.register(&buffer, 0, 4096, MrFlags::ALLOW_LOCAL_WRITE)?;
//!     qp.receive(1, &[Sge { address: buffer.address(), length: 4096, token: mr.local_token() }])?;
//!     let mut incoming = Incoming::listen(far, server, 1).await?;
//!     let connector = incoming.next().await;
//!     let connection = Connection::accept(connector, &qp, ReadLimit::default(), &[]).await?;
//!     let mut results = [NdkResultEx::default()];
//!     connection.next(&completions, &mut results).await?;
//!     let mut data = vec![0; results[0].bytes_transferred as usize];
//!     buffer.read_at(0, &mut data);
//!     connection.disconnect().await?;
//!     Ok::<_, Box<dyn std::error::Error>>(data)
//! };
//! let active = async {
//!     let completions = Completions::create(near, 16)?;
//!     let pd = near.create_pd()?;
//!     let qp = pd.create_qp(completions.cq(), completions.cq(), 0, QpLimits::default())?;
//!     let connection = Connection::connect(near, &qp, server, ReadLimit::default(), &[]).await?;
//!     qp.send(1, Data::Inline(&[b"hello"]), OpFlags::empty())?;
//!     connection.disconnection().await;
//!     Ok(())
//! };
//! let (data, ()) = block_on(async { try_join!(passive, active) })?;
//! assert_eq!(data, b"hello");
//! # Ok(())
//! # }
//! ```

use alloc::{
    collections::VecDeque,
    format,
    string::String,
    sync::{Arc, Weak},
    vec::Vec,
};
use core::{
    future::{Future, poll_fn},
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
};
use std::sync::OnceLock;

use offload_engine::sync::Mutex;

use super::{
    Adapter, CallError, Connector, Cq, CqNotify, Disconnection, Listener, NdkResultEx, NtStatus,
    PendingCall, Qp, ReadLimit,
    call::peer_data,
    outcome::{WakerRegistration, Wakers},
    reject_and_close,
};

/// State set by the notification of a completion queue.
#[derive(Default, Debug)]
struct CqState {
    failure: OnceLock<NtStatus>,
    wakers: Arc<Wakers>,
}

/// Completion queue that any number of tasks can await. Each completion is returned to one task.
#[derive(Clone, Debug)]
pub struct Completions {
    cq: Cq,
    notified: Arc<CqState>,
}

impl Completions {
    /// Creates a completion queue of `depth` entries.
    ///
    /// # Errors
    /// As [`Adapter::create_cq`].
    pub fn create(adapter: &Adapter, depth: u32) -> Result<Self, NtStatus> {
        let notified = Arc::<CqState>::default();
        let shared = notified.clone();
        let cq = adapter.create_cq(depth, move |status| {
            if status != NtStatus::SUCCESS {
                let _ = shared.failure.set(status);
            }
            shared.wakers.wake();
        })?;
        Ok(Self { cq, notified })
    }

    /// Returns the queue itself: for queue pairs, and to resize or close it. A caller that arms it takes a wake-up from
    /// the tasks.
    #[must_use]
    pub const fn cq(&self) -> &Cq {
        &self.cq
    }

    /// Waits for completions and moves them into `results`. Returns their number; 0 only if `results` is empty.
    ///
    /// # Errors
    /// [`NtStatus::BUFFER_OVERFLOW`]: the queue overran, and its completions are lost (NDK-CQ-13).
    /// [`NtStatus::INTERNAL_ERROR`]: the device is lost.
    pub async fn next(&self, results: &mut [NdkResultEx]) -> Result<usize, NtStatus> {
        let mut registration = self.notified.wakers.registration();
        poll_fn(|context| self.poll_next(&mut registration, context, results)).await
    }

    fn poll_next(
        &self,
        registration: &mut WakerRegistration,
        context: &Context<'_>,
        results: &mut [NdkResultEx],
    ) -> Poll<Result<usize, NtStatus>> {
        let count = self.cq.poll_ex(results);
        if count > 0 || results.is_empty() {
            return Poll::Ready(Ok(count));
        }
        if let Some(status) = self.notified.failure.get() {
            return Poll::Ready(Err(*status));
        }
        // The order matters: a completion added since the poll satisfies the arm immediately (NDK-CQ-4, NDK-CQ-11).
        registration.register(context);
        self.cq.arm(CqNotify::Any);
        Poll::Pending
    }
}

/// Queue of incoming connections.
#[derive(Debug)]
struct ConnectorQueue {
    connectors: Mutex<VecDeque<Connector>>,
    backlog: usize,
    wakers: Arc<Wakers>,
}

impl ConnectorQueue {
    fn push(&self, connector: Connector) {
        let mut connectors = self.connectors.lock();
        if connectors.len() >= self.backlog {
            drop(connectors);
            return reject_and_close(&connector, &[]);
        }
        connectors.push_back(connector);
        drop(connectors);
        self.wakers.wake();
    }
}

impl Drop for ConnectorQueue {
    fn drop(&mut self) {
        for connector in self.connectors.lock().drain(..) {
            reject_and_close(&connector, &[]);
        }
    }
}

/// Listener with its queue of incoming connections. When dropped, it rejects queued connections and closes the
/// listener.
#[derive(Debug)]
pub struct Incoming {
    listener: Listener,
    queue: Arc<ConnectorQueue>,
}

impl Incoming {
    /// Starts to listen. At most `backlog` connections are queued for [`Incoming::next`]; further ones are rejected.
    ///
    /// # Errors
    /// As [`Listener::listen`].
    pub async fn listen(
        adapter: &Adapter,
        local: SocketAddr,
        backlog: usize,
    ) -> Result<Self, CallError> {
        let queue = Arc::new(ConnectorQueue {
            connectors: Mutex::new(VecDeque::new()),
            backlog,
            wakers: Arc::default(),
        });
        // The adapter owns the event, which must not keep the connectors alive.
        let waiting = Arc::downgrade(&queue);
        let event = move |connector| match Weak::upgrade(&waiting) {
            Some(queue) => queue.push(connector),
            None => reject_and_close(&connector, &[]),
        };
        let name = || format!("listen on {local}");
        let listener = adapter.create_listener(event).map_err(|status| failed(name(), status))?;
        // Created before the wait: a dropped task closes the listener.
        let incoming = Self { listener, queue };
        let status = PendingCall::begin(|done| incoming.listener.listen(local, done)).await;
        check(status).map_err(|status| failed(name(), status))?;
        Ok(incoming)
    }

    /// Returns the listener.
    #[must_use]
    pub const fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Waits for the next connection, which the caller accepts or rejects.
    pub async fn next(&mut self) -> Connector {
        let mut registration = self.queue.wakers.registration();
        poll_fn(|context| {
            registration.register(context);
            let next = self.queue.connectors.lock().pop_front();
            next.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        let _ = self.listener.close(|| {});
    }
}

/// Connection of a queue pair. When dropped, it closes its connector, and a connection that was not disconnected is
/// reset (NDK-LIFE-11).
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
    /// As [`Connector::connect`] and [`Connector::complete_connect`].
    pub async fn connect(
        adapter: &Adapter,
        qp: &Qp,
        remote: SocketAddr,
        limits: ReadLimit,
        private_data: &[u8],
    ) -> Result<Self, CallError> {
        let name = || format!("connect to {remote}");
        let connector = adapter.create_connector().map_err(|status| failed(name(), status))?;
        let mut connection = Self::of(connector);
        let connector = &connection.connector;
        let connected = PendingCall::begin(|done| {
            connector.connect(qp, None, remote, limits, private_data, done)
        });
        connection.check(name, connected.await)?;
        connection.private_data = peer_data(&connection.connector);
        let event = Some(connection.disconnection.event());
        let completed =
            PendingCall::begin(|done| connection.connector.complete_connect(event, done));
        connection.check(|| "complete the connection".into(), completed.await)?;
        Ok(connection)
    }

    /// Accepts a connection for a queue pair, and waits until the peer has completed it.
    ///
    /// # Errors
    /// As [`Connector::accept`].
    pub async fn accept(
        connector: Connector,
        qp: &Qp,
        limits: ReadLimit,
        private_data: &[u8],
    ) -> Result<Self, CallError> {
        let connection = Self::of(connector);
        let event = Some(connection.disconnection.event());
        let accepted = PendingCall::begin(|done| {
            connection.connector.accept(qp, limits, private_data, event, done)
        });
        connection.check(|| "accept".into(), accepted.await)?;
        Ok(connection)
    }

    fn check(&self, call: impl FnOnce() -> String, status: NtStatus) -> Result<(), CallError> {
        let cause = || self.connector.failure();
        check(status).map_err(|status| CallError { call: call(), status, cause: cause() })
    }

    /// Returns the private data of the peer's request or reply.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Returns its connector.
    #[must_use]
    pub const fn connector(&self) -> &Connector {
        &self.connector
    }

    /// Returns a future of the end by the peer or by an error. It does not borrow the connection.
    #[must_use]
    pub fn disconnection(&self) -> Disconnection {
        self.disconnection.clone()
    }

    /// Waits as [`Completions::next`] does, but returns 0 when the connection has ended and no completion remains.
    ///
    /// # Errors
    /// As [`Completions::next`].
    pub async fn next(
        &self,
        completions: &Completions,
        results: &mut [NdkResultEx],
    ) -> Result<usize, NtStatus> {
        let (mut disconnection, mut registration) =
            (self.disconnection(), completions.notified.wakers.registration());
        poll_fn(|context| {
            // The end is checked first: completions added before it are returned before it.
            let has_ended = Pin::new(&mut disconnection).poll(context).is_ready();
            match completions.poll_next(&mut registration, context, results) {
                Poll::Pending if has_ended => Poll::Ready(Ok(0)),
                outcome => outcome,
            }
        })
        .await
    }

    /// Sends all posted requests, then disconnects, and waits until the peer has acknowledged the disconnect. A
    /// connection that has already ended needs no disconnect.
    ///
    /// # Errors
    /// As [`Connector::disconnect`].
    pub async fn disconnect(&self) -> Result<(), CallError> {
        match PendingCall::begin(|done| self.connector.disconnect(done)).await {
            NtStatus::CONNECTION_INVALID if self.disconnection.reason().is_some() => Ok(()),
            status => check(status).map_err(|status| failed("disconnect".into(), status)),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let _ = self.connector.close(|| {});
    }
}

const fn check(status: NtStatus) -> Result<(), NtStatus> {
    if status.0 == NtStatus::SUCCESS.0 { Ok(()) } else { Err(status) }
}

const fn failed(call: String, status: NtStatus) -> CallError {
    CallError { call, status, cause: None }
}
