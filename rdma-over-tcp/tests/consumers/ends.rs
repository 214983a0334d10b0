//! Node with two consumers, byte streams and NDK, and blocking calls.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use bytes::Bytes;
use host_stack::{
    host::HostConfig,
    node::{Node, NodeConfig},
    socket::{HostError, ListenerId},
    stream::{StreamStatus, Streams},
};
use offload_engine::{
    chimney::client::OffloadHandle,
    link::Link,
    state::MacAddress,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use rdma_over_tcp::ndk::{
    Adapter, AdapterConfig, AdapterCore, Connector, Cq, Data, Listener, MrFlags, NdkResultEx,
    NtStatus, OpFlags, Qp, QpLimits, ReadLimit, RegisteredBuffer, Sge, open_on,
};

/// Time limit that only a failure reaches, so it may be long.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
const LIMITS: ReadLimit = ReadLimit { inbound: 4, outbound: 4 };
/// Maximum bytes of an NDK message.
pub(crate) const MESSAGE_MAX: usize = 10_000;
/// Maximum messages in flight per direction: an end that receives one per message sent is at most one ahead.
const SLOTS: usize = 2;
/// Bytes of the receive and send slots.
const BUFFER: usize = 2 * SLOTS * MESSAGE_MAX;

/// Address of host `index`.
pub(crate) fn at(index: usize, port: u16) -> SocketAddr {
    (Ipv4Addr::new(10, 3, 0, 1 + index as u8), port).into()
}

/// Status passed to a callback.
#[derive(Clone, Default)]
struct CallbackResults(Arc<Mutex<Option<NtStatus>>>);

impl CallbackResults {
    fn callback(&self) -> impl FnOnce(NtStatus) + Send + 'static {
        let results = self.clone();
        move |status| *results.0.lock() = Some(status)
    }
}

/// End of a queue pair's connection.
pub(crate) struct End {
    ndk: Node<AdapterCore>,
    cq: Cq,
    pub(crate) qp: Qp,
    pub(crate) connector: Connector,
    buffer: RegisteredBuffer,
    token: u32,
    /// Receives and sends posted since the start.
    posted: AtomicUsize,
    sent: AtomicUsize,
    /// Reasons of disconnect events.
    ended: Arc<Mutex<Vec<u32>>>,
}

/// Node with two consumers.
pub(crate) struct Host {
    pub(crate) streams: Node<Streams>,
    pub(crate) ndk: Node<AdapterCore>,
    pub(crate) adapter: Adapter,
}

pub(crate) fn start(index: usize, link: Box<dyn Link>) -> Host {
    let mac = MacAddress([2, 0, 0, 0, 3, 1 + index as u8]);
    let config = NodeConfig::new(HostConfig::new(mac, at(index, 0).ip()));
    let streams = Node::start(link, config, Streams::new).unwrap();
    let (ndk, adapter) = open_on(&streams, AdapterConfig::default()).unwrap();
    Host { streams, ndk, adapter }
}

fn wait<T>(node: &Node<AdapterCore>, what: &str, f: impl FnMut() -> Option<T>) -> T {
    node.wait_until(Some(LIMIT), f).unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// Waits for the outcome of an NDK call.
fn outcome(
    node: &Node<AdapterCore>,
    call: impl FnOnce(Box<dyn FnOnce(NtStatus) + Send>) -> NtStatus,
) -> NtStatus {
    let results = CallbackResults::default();
    match call(Box::new(results.callback())) {
        NtStatus::PENDING => wait(node, "a completion", || results.0.lock().take()),
        inline => inline,
    }
}

/// Waits until the object is closed and its reservations are released.
pub(crate) fn closed(
    node: &Node<AdapterCore>,
    close: impl FnOnce(Box<dyn FnOnce() + Send>) -> NtStatus,
) {
    let status = outcome(node, |done| close(Box::new(move || done(NtStatus::SUCCESS))));
    assert_eq!(status, NtStatus::SUCCESS);
}

impl Host {
    /// Creates an NDK listener, and the list of its requests.
    pub(crate) fn ndk_listen(&self, local: SocketAddr) -> Result<(Listener, Incoming), NtStatus> {
        let incoming = Incoming::default();
        let requests = incoming.clone();
        let listener = self
            .adapter
            .create_listener(move |connector| requests.0.lock().push(connector))
            .unwrap();
        match outcome(&self.ndk, |done| listener.listen(local, done)) {
            NtStatus::SUCCESS => Ok((listener, incoming)),
            status => Err(status),
        }
    }

    /// Creates a queue pair and its objects, not connected.
    fn end(&self, connector: Connector) -> End {
        let cq = self.adapter.create_cq(16, |_| {}).unwrap();
        let pd = self.adapter.create_pd().unwrap();
        let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default()).unwrap();
        let mr = pd.create_mr(false).unwrap();
        let buffer = self.adapter.allocate(BUFFER).unwrap();
        mr.register(&buffer, 0, BUFFER, MrFlags::ALLOW_LOCAL_WRITE).unwrap();
        let token = mr.local_token();
        let [posted, sent] = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let (ndk, ended) = (self.ndk.clone(), Arc::default());
        let end = End { ndk, cq, qp, connector, buffer, token, posted, sent, ended };
        (0..SLOTS).for_each(|_| end.post_receive());
        end
    }

    pub(crate) fn ndk_connect(
        &self,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<End, NtStatus> {
        let end = self.end(self.adapter.create_connector().unwrap());
        let connect = |done| end.connector.connect(&end.qp, local, remote, LIMITS, &[], done);
        let complete = |done| end.connector.complete_connect(Some(end.end_callback()), done);
        match outcome(&self.ndk, connect) {
            NtStatus::SUCCESS => {
                assert_eq!(outcome(&self.ndk, complete), NtStatus::SUCCESS);
                Ok(end)
            }
            status => Err(status),
        }
    }

    pub(crate) fn ndk_accept(&self, incoming: &Incoming) -> End {
        let connector = wait(&self.ndk, "a request", || incoming.0.lock().pop());
        let end = self.end(connector);
        let ended = Some(end.end_callback());
        let accept = |done| end.connector.accept(&end.qp, LIMITS, &[], ended, done);
        assert_eq!(outcome(&self.ndk, accept), NtStatus::SUCCESS);
        end
    }

    /// Connects a queue pair of this host to a listener of `there`.
    pub(crate) fn ndk_pair(&self, there: &Host, incoming: &Incoming, to: SocketAddr) -> [End; 2] {
        std::thread::scope(|scope| {
            let accepts = scope.spawn(|| there.ndk_accept(incoming));
            let one = self.ndk_connect(None, to).unwrap();
            [one, accepts.join().unwrap()]
        })
    }
}

/// Requests reported by a listener.
#[derive(Clone, Default)]
pub(crate) struct Incoming(Arc<Mutex<Vec<Connector>>>);

impl End {
    fn post_receive(&self) {
        let at = self.posted.fetch_add(1, Ordering::Relaxed) % SLOTS * MESSAGE_MAX;
        let address = self.buffer.address() + at as u64;
        let sge = Sge { address, length: MESSAGE_MAX as u32, token: self.token };
        self.qp.receive(at as u64, &[sge]).unwrap();
    }

    fn end_callback(&self) -> Box<dyn FnOnce(u32) + Send> {
        let ended = self.ended.clone();
        Box::new(move |reason| ended.lock().push(reason))
    }

    /// Sends a message of at most [`MESSAGE_MAX`] bytes. All messages except the previous one must have arrived.
    pub(crate) fn send(&self, data: &[u8]) {
        let slot = self.sent.fetch_add(1, Ordering::Relaxed) % SLOTS;
        let at = (SLOTS + slot) * MESSAGE_MAX;
        self.buffer.write_at(at, data);
        let address = self.buffer.address() + at as u64;
        let sge = Sge { address, length: data.len() as u32, token: self.token };
        self.qp.send(2, Data::Registered(&[sge]), OpFlags::SILENT_SUCCESS).unwrap();
    }

    /// Waits for the next completion.
    pub(crate) fn complete(&self) -> NdkResultEx {
        let mut results = [NdkResultEx::default()];
        let deadline = std::time::Instant::now() + LIMIT;
        while self.cq.poll_ex(&mut results) == 0 {
            assert!(std::time::Instant::now() < deadline, "no completion");
            std::thread::yield_now();
        }
        results[0]
    }

    /// Returns the next message of the peer.
    pub(crate) fn received(&self) -> Vec<u8> {
        let result = self.complete();
        assert_eq!((result.status, result.qp_context), (NtStatus::SUCCESS, 0));
        let mut data = vec![0; result.bytes_transferred as usize];
        self.buffer.read_at(result.request_context as usize, &mut data);
        self.post_receive();
        data
    }

    /// Waits for the disconnect event.
    pub(crate) fn disconnected(&self) {
        wait(&self.ndk, "a disconnect event", || (!self.ended.lock().is_empty()).then_some(()));
    }
}

/// Blocking calls of byte streams.
pub(crate) trait Calls {
    fn listen(&self, local: SocketAddr) -> Result<(ListenerId, SocketAddr), HostError>;
    fn unlisten(&self, listener: ListenerId);
    fn bind(&self, local: SocketAddr) -> Result<SocketAddr, HostError>;
    fn connect(
        &self,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<OffloadHandle, HostError>;
    fn accept(&self, listener: ListenerId) -> OffloadHandle;
    fn send(&self, handle: OffloadHandle, data: &[u8]);
    fn read(&self, handle: OffloadHandle, count: usize) -> Vec<u8>;
    fn until(&self, handle: OffloadHandle, what: &str, is: impl Fn(&StreamStatus) -> bool);
}

impl Calls for Node<Streams> {
    fn listen(&self, local: SocketAddr) -> Result<(ListenerId, SocketAddr), HostError> {
        let listener = self.with(|streams, _, _| streams.listen(local, 8));
        let listening = self.wait(Some(LIMIT), |streams, _, _| streams.listening(listener));
        listening.expect("no result of listen").map(|local| (listener, local))
    }

    fn unlisten(&self, listener: ListenerId) {
        self.with(|streams, _, _| streams.unlisten(listener));
    }

    fn bind(&self, local: SocketAddr) -> Result<SocketAddr, HostError> {
        let endpoint = self.with(|streams, _, _| streams.bind(local));
        self.wait(Some(LIMIT), |streams, _, _| streams.bound(endpoint)).expect("no result of bind")
    }

    fn connect(
        &self,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<OffloadHandle, HostError> {
        let handle = self.with(|streams, _, _| streams.connect(local, remote, LIMIT));
        let connected = self.wait(Some(LIMIT), |streams, _, _| {
            let status = streams.status(handle)?;
            match status.error {
                Some(error) => Some(Err(error)),
                None => status.connected.then_some(Ok(handle)),
            }
        });
        connected.expect("no result of connect")
    }

    fn accept(&self, listener: ListenerId) -> OffloadHandle {
        self.wait(Some(LIMIT), |streams, _, _| streams.accept(listener))
            .expect("no connection to accept")
    }

    fn send(&self, handle: OffloadHandle, data: &[u8]) {
        self.with(|streams, connections, now| {
            streams.send(now, connections, handle, Bytes::copy_from_slice(data))
        });
    }

    fn read(&self, handle: OffloadHandle, count: usize) -> Vec<u8> {
        let mut all = Vec::new();
        let read = self.wait(Some(LIMIT), |streams, connections, now| {
            while let Some(data) = streams.receive(now, connections, handle) {
                all.extend_from_slice(&data);
            }
            (all.len() >= count).then_some(())
        });
        read.expect("no data");
        all
    }

    fn until(&self, handle: OffloadHandle, what: &str, is: impl Fn(&StreamStatus) -> bool) {
        let reached = self.wait(Some(LIMIT), |streams, _, _| {
            streams.status(handle).is_some_and(|status| is(&status)).then_some(())
        });
        reached.unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}
