//! Two adapters on loopback, and the state that an interface keeps of them.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use rdma_over_tcp::{
    adapter::{self, Adapter, SocketsConfig},
    rnic::{
        Access as Rights, Completion, CompletionQueue, Config, ConnectError, ConnectorId, CqId,
        Data, ErrorStatePosts, Operation, PdId, QpConfig, QpId, QpLimits, QpService, ReadLimit,
        RegionId, RegisteredBuffer, Sge, VerbError, WcStatus, WrFlags,
    },
};

/// Longer than any operation that completes at all.
const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

pub(crate) const READS: ReadLimit = ReadLimit { inbound: 4, outbound: 4 };

/// Values passed to callbacks.
pub(crate) struct CallbackResults<T>(Arc<Mutex<Vec<T>>>);

impl<T> Clone for CallbackResults<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Send + 'static> CallbackResults<T> {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    pub(crate) fn push(&self, value: T) {
        self.0.lock().unwrap().push(value);
    }

    pub(crate) fn callback(&self) -> Box<dyn FnOnce(T) + Send> {
        let results = self.clone();
        Box::new(move |value| results.push(value))
    }

    pub(crate) fn take(&self) -> Option<T> {
        let mut results = self.0.lock().unwrap();
        if results.is_empty() { None } else { Some(results.remove(0)) }
    }
}

/// One end: an adapter with a domain, a completion queue and a queue pair.
pub(crate) struct End {
    pub(crate) adapter: Adapter,
    pub(crate) pd: PdId,
    pub(crate) cq: CqId,
    pub(crate) queue: Arc<CompletionQueue>,
    pub(crate) qp: QpId,
}

/// Completion in the form of an interface.
pub(crate) struct Polled(pub(crate) Option<Completion>);

impl From<Completion> for Polled {
    fn from(completion: Completion) -> Self {
        Self(Some(completion))
    }
}

impl End {
    pub(crate) fn new(error_state_posts: ErrorStatePosts) -> Self {
        let config = Config { rfc7306: true, ..Config::default() };
        let adapter = adapter::open_sockets(SocketsConfig::default(), config).unwrap();
        let (pd, cq, queue, qp) = adapter.with(|rnic, _| {
            let pd = rnic.create_pd().unwrap();
            let (cq, queue) = rnic.create_cq(256, Arc::new(|_| {})).unwrap();
            let limits = QpLimits::default();
            let config = QpConfig {
                receive_cq: cq,
                send_cq: cq,
                context: 7,
                limits,
                srq: None,
                error_state_posts,
                service: QpService::Iwarp,
            };
            (pd, cq, queue, rnic.create_qp(pd, config).unwrap())
        });
        Self { adapter, pd, cq, queue, qp }
    }

    pub(crate) fn wait<R>(&self, look: impl FnMut() -> Option<R>) -> R {
        self.adapter.wait_until(LIMIT, look).expect("condition not reached within the limit")
    }

    pub(crate) fn register(&self, buffer: &RegisteredBuffer, rights: Rights) -> (RegionId, u32) {
        self.adapter.with(|rnic, _| {
            let region = rnic.create_region(self.pd, false).unwrap();
            rnic.register(region, buffer, 0, buffer.len(), rights).unwrap();
            (region, rnic.token(region).unwrap())
        })
    }

    pub(crate) fn post(
        &self,
        context: u64,
        operation: Operation,
        data: Data<'_>,
    ) -> Result<(), VerbError> {
        self.adapter.post(|rnic| rnic.post(self.qp, context, operation, data, WrFlags::NONE))
    }

    pub(crate) fn send(&self, context: u64, data: &[u8]) -> Result<(), VerbError> {
        self.post(context, Operation::Send { invalidate: None }, Data::Inline(&[data]))
    }

    pub(crate) fn receive(&self, context: u64, sges: &[Sge]) {
        self.adapter.post(|rnic| rnic.post_receive(self.qp, context, sges)).unwrap();
    }

    pub(crate) fn poll(&self) -> Option<Completion> {
        let mut polled = [Polled(None)];
        if self.queue.poll(&mut polled) == 0 {
            self.adapter.progress();
            self.queue.poll(&mut polled);
        }
        let [Polled(completion)] = polled;
        completion
    }

    /// Waits for the next completion.
    pub(crate) fn completion(&self) -> Completion {
        self.wait(|| self.poll())
    }

    /// Waits for the next completions; returns their contexts and statuses.
    pub(crate) fn outcomes(&self, count: usize) -> Vec<(u64, WcStatus)> {
        let outcome = |_| {
            let completion = self.completion();
            (completion.context, completion.status)
        };
        (0..count).map(outcome).collect()
    }
}

/// Waits for the outcome of a pending request.
pub(crate) fn outcome(
    end: &End,
    begin: impl FnOnce(&mut dyn FnMut() -> Box<dyn FnOnce(Result<(), ConnectError>) + Send>),
) -> Result<(), ConnectError> {
    let results = CallbackResults::new();
    begin(&mut || results.callback());
    end.wait(|| results.take())
}

/// Connects two ends. Returns the connectors, and the results of the disconnect events.
pub(crate) fn connect(near: &End, far: &End) -> [(ConnectorId, CallbackResults<()>); 2] {
    let (requests, events) =
        (CallbackResults::new(), [CallbackResults::new(), CallbackResults::new()]);
    let request = requests.clone();
    let listener = far.adapter.with(|rnic, _| {
        rnic.create_listener(Arc::new(move |connector| request.push(connector))).unwrap()
    });
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    outcome(far, |done| {
        far.adapter
            .with(|rnic, _| rnic.listen(listener, local, Default::default(), done()))
            .unwrap();
    })
    .unwrap();
    let remote = far.adapter.with(|rnic, _| rnic.listener_address(listener)).unwrap();
    let (connected, accepted, completed) =
        (CallbackResults::new(), CallbackResults::new(), CallbackResults::new());
    let active = near.adapter.with(|rnic, _| {
        let connector = rnic.create_connector().unwrap();
        let done = connected.callback();
        rnic.connect(connector, near.qp, (None, remote), READS, b"hello", done).unwrap();
        connector
    });
    let passive: ConnectorId = far.wait(|| requests.take());
    far.adapter.with(|rnic, now| {
        assert_eq!(&rnic.connection_data(passive).unwrap().private_data[..], b"hello");
        let (event, done) = (events[1].clone(), accepted.callback());
        let event = Box::new(move |_| event.push(()));
        rnic.accept(now, passive, far.qp, READS, &[], Some(event), done).unwrap();
    });
    assert_eq!(near.wait(|| connected.take()), Ok(()));
    near.adapter.with(|rnic, _| {
        let (event, done) = (events[0].clone(), completed.callback());
        let event = Box::new(move |_| event.push(()));
        rnic.complete_connect(active, Some(event), done).unwrap();
    });
    assert_eq!(near.wait(|| completed.take()), Ok(()));
    assert_eq!(far.wait(|| accepted.take()), Ok(()));
    let [of_near, of_far] = events;
    [(active, of_near), (passive, of_far)]
}
