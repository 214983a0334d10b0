//! The node of a measurement on queue pairs: opened, waited on, and asked. Each queue of it has an adapter.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    thread::{park_timeout, yield_now},
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, bounded};
use flue_adapter::{AdapterOptions, OpenAdapter, control::server::Control};
use host_stack::node::{Progress, WaitError};
use rdma_over_tcp::ndk::{
    Adapter, AdapterConfig, Begun, CallError, Connector, DisconnectReason, Ended, FpduSize,
    Listener, ListenerConfig, NdkResultEx, NtStatus, Qp, ReadLimit,
    blocking::{Wait, call, call_on},
    turn_away,
};

use crate::{
    adapter::linger,
    cmd::perf::{
        Plan, Waiting, message::Opening, phase::ANSWER_LIMIT, queues::Relays, report::Reporter,
    },
    failure::Failure,
    waker::Waker,
};

/// Reads at once, asked for in each direction: all that an adapter offers.
const READS_MAX: u32 = 128;
const READ_LIMIT: ReadLimit = ReadLimit { inbound: READS_MAX, outbound: READS_MAX };
/// How long a wait may last before clock and signals are looked at.
const WAIT_MAX: Duration = Duration::from_millis(200);
/// Wait for the reason behind a request that was flushed.
const REASON_LIMIT: Duration = Duration::from_secs(1);
/// Peers that have connected and are not looked at yet.
const INCOMING_MAX: usize = 2048;
/// Looks in vain after which a spinning end offers the processor to others: two ends that share one would
/// else wait for the scheduler's tick at each message.
const LOOKS_PER_YIELD: u32 = 64;

/// A result of NDK, as a failure that says what was tried.
pub(super) fn checked<T>(what: &str, result: Result<T, NtStatus>) -> Result<T, Failure> {
    result.map_err(|status| refused(what, status))
}

/// The failure of a request.
pub(super) fn refused(what: &str, status: NtStatus) -> Failure {
    Failure::work(format!("NDK: {what}: {status}"))
}

/// The failure of an accept, with its cause.
pub(super) fn not_accepted(what: &str, status: NtStatus, connector: Option<&Connector>) -> Failure {
    let cause = connector.and_then(Connector::failure);
    Failure::work(CallError { call: what.to_owned(), status, cause }.to_string())
}

/// The peer has ended a connection.
pub(super) fn cut_off(reason: u32) -> Failure {
    let why = DisconnectReason(reason);
    Failure::work(format!("the connection has ended in the middle: {why}"))
}

/// A connection that has come, and the queue that has it.
pub(super) struct AcceptedConnection {
    pub(super) queue: usize,
    pub(super) connector: Connector,
}

/// A node with an adapter for each of its queues.
pub(super) struct PerfNode {
    // Before the nodes, whose last handles relays shall not have.
    _relays: Relays,
    _control: Option<Control>,
    pub(super) adapters: Vec<Adapter>,
    pub(super) waiting: Waiting,
    is_manual: bool,
    waker: Waker,
}

impl PerfNode {
    /// Opens TAP and adapters.
    pub(super) fn open(
        plan: &Plan,
        options: &AdapterOptions,
        reporter: &mut Reporter,
    ) -> Result<Self, Failure> {
        let node = options.transport.node();
        // Kernel sockets need no FPDUs that begin with segments.
        let fpdu_size = node.map_or(FpduSize::Max, |_| FpduSize::default());
        // The peer is a flue perf of the same kind: it can, too.
        let rfc7306 = plan.kind.is_extension();
        let opened =
            options.open(AdapterConfig { rfc7306, fpdu_size, ..AdapterConfig::default() })?;
        let OpenAdapter { adapters, nodes, vnet_header } = opened;
        if let (Some(node), Some(vnet_header)) = (node, vnet_header) {
            reporter.link(vnet_header, node);
        }
        let control = options.serve(adapters.clone())?;
        let relays = Relays::start(&nodes)?;
        let is_manual = node.is_some_and(|node| node.progress == Progress::Manual);
        let waker = Waker::new();
        let woken = adapters[0].clone();
        waker.set(move || woken.wake());
        waker.catch_signals()?;
        Ok(Self {
            _relays: relays,
            _control: control,
            adapters,
            waiting: plan.waiting,
            is_manual,
            waker,
        })
    }

    /// Waits for what `look` finds, or a signal; `None`: the time is over.
    pub(super) fn wait<T>(
        &self,
        limit: Option<Duration>,
        mut look: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>, Failure> {
        let [adapter] = &self.adapters[..] else { return self.wait_for_any(limit, look) };
        let waited = adapter.wait_until(limit, || match self.waker.interrupted() {
            Ok(()) => look().map(Ok),
            Err(interrupted) => Some(Err(interrupted)),
        });
        match waited {
            Ok(result) => result.map(Some),
            Err(WaitError::TimedOut) => Ok(None),
            Err(error) => Err(Failure::work(error.to_string())),
        }
    }

    /// The failure of a request, whose connection may have ended.
    pub(super) fn failed(&self, result: &NdkResultEx, ended: &Ended) -> Failure {
        // The callback with the reason follows the flush, from another thread.
        if result.status == NtStatus::CANCELLED {
            return match self.wait(Some(REASON_LIMIT), || ended.reason()) {
                Ok(reason) => cut_off(reason.unwrap_or(0)),
                Err(failure) => failure,
            };
        }
        let Failure { message, .. } = refused(&result.operation.to_string(), result.status);
        match (ended.reason(), result.error()) {
            // Says who has found it too.
            (Some(reason @ 1..), _) => {
                Failure::work(format!("{message}: {}", DisconnectReason(reason)))
            }
            (_, Some(error)) => Failure::work(format!("{message}: {error}")),
            (_, None) => Failure::work(message),
        }
    }

    /// The same with several queues, on any of which something may happen.
    fn wait_for_any<T>(
        &self,
        limit: Option<Duration>,
        mut look: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>, Failure> {
        let until = limit.map(|limit| Instant::now() + limit);
        let mut looks = 0;
        loop {
            self.interrupted()?;
            if let Some(found) = look() {
                return Ok(Some(found));
            }
            for adapter in &self.adapters {
                // Runs the loop, with manual progress; and says whether there still is a link.
                match adapter.wait_while(Some(Duration::ZERO), &mut || false) {
                    Ok(()) | Err(WaitError::TimedOut) => {}
                    Err(error) => return Err(Failure::work(error.to_string())),
                }
            }
            let left = until.map_or(WAIT_MAX, |until| until - Instant::now());
            if left.is_zero() {
                return Ok(look());
            }
            match self.is_manual {
                true => self.idle(&mut looks),
                false => park_timeout(left.min(WAIT_MAX)),
            }
        }
    }

    /// Tells of a signal that has come.
    pub(super) fn interrupted(&self) -> Result<(), Failure> {
        self.waker.interrupted()
    }

    /// After a look in vain, of a spinning end.
    pub(super) fn idle(&self, looks: &mut u32) {
        *looks = looks.wrapping_add(1);
        if looks.is_multiple_of(LOOKS_PER_YIELD) {
            yield_now();
        }
    }

    /// Connects a queue pair of a queue of ours; also returns the peer's queue, which it has said.
    pub(super) fn connect(
        &self,
        queue: usize,
        qp: &Qp,
        remote: SocketAddr,
        opening: Opening,
        ended: &Ended,
    ) -> Result<(Connector, usize), Failure> {
        let connector = checked("create a connector", self.adapters[queue].create_connector())?;
        let (waiter, name) = (&mut &*self, format!("connect to {remote}"));
        let connected = call_on(waiter, &connector, &name, |done| {
            connector.connect(qp, None, remote, READ_LIMIT, &opening.encode(), done)
        })
        .and_then(|()| {
            let peer_queue = queue_of(&connector)?;
            call_on(waiter, &connector, "complete the connection", |done| {
                connector.complete_connect(Some(ended.event()), done)
            })?;
            Ok(peer_queue)
        });
        match connected {
            Ok(peer_queue) => Ok((connector, peer_queue)),
            Err(failure) => {
                let _ = connector.close(|| {});
                let hint =
                    "is there a flue perf server of the same kind, and not with another client?";
                Err(failure.with_hint(hint))
            }
        }
    }

    /// Begins to accept a connection for a queue pair of its queue, which it says.
    pub(super) fn accept(&self, came: &AcceptedConnection, qp: &Qp, ended: &Ended) -> Begun {
        let AcceptedConnection { queue, connector } = came;
        let said = [*queue as u8];
        Begun::begin(|done| connector.accept(qp, READ_LIMIT, &said, Some(ended.event()), done))
    }

    /// Listens at all of the node's addresses, on each queue: the host stack spreads what comes.
    pub(super) fn listen(
        &self,
        port: u16,
        config: ListenerConfig,
    ) -> Result<(Vec<Listener>, Receiver<AcceptedConnection>), Failure> {
        let (sender, incoming) = bounded(INCOMING_MAX);
        let mut listeners = Vec::new();
        for (queue, adapter) in self.adapters.iter().enumerate() {
            let sender = sender.clone();
            let event = move |connector| {
                if let Err(refused) = sender.try_send(AcceptedConnection { queue, connector }) {
                    turn_away(&refused.into_inner().connector, b"flue perf: busy");
                }
            };
            let listener = checked("create a listener", adapter.create_listener(event))?;
            let listen = |ip: IpAddr| {
                call(&mut &*self, &format!("listen on port {port}"), |done| {
                    listener.listen_with(SocketAddr::new(ip, port), config, done)
                })
            };
            // Of both families, where the kernel has IPv6.
            listen(Ipv6Addr::UNSPECIFIED.into())
                .or_else(|_| listen(Ipv4Addr::UNSPECIFIED.into()))?;
            listeners.push(listener);
        }
        Ok((listeners, incoming))
    }

    /// Whether MPA has agreed on CRCs, of any connection there is.
    pub(super) fn crc(&self) -> Option<bool> {
        let mut crc = None;
        for adapter in &self.adapters {
            adapter.with(|core, _| {
                let mut negotiated = core.histories().filter_map(|history| history.negotiated);
                crc = crc.or_else(|| Some(negotiated.next()?.framing.crc));
            });
        }
        crc
    }

    /// TCP segments that each queue's engine has received so far.
    pub(super) fn segments(&self) -> Vec<u64> {
        self.adapters.iter().filter_map(|adapter| adapter.segments_received()).collect()
    }

    /// Stays until the peer's FINs are acknowledged, so that its end is clean too.
    pub(super) fn linger(&self) {
        self.adapters.iter().for_each(linger);
    }
}

impl Drop for PerfNode {
    fn drop(&mut self) {
        self.waker.clear();
    }
}

/// Waits for an answer.
impl Wait for &PerfNode {
    type Error = Failure;

    fn failed(&self, error: CallError) -> Failure {
        Failure::work(error.to_string())
    }

    fn wait<T>(&mut self, look: impl FnMut() -> Option<T>) -> Result<T, Failure> {
        let answer = PerfNode::wait(self, Some(ANSWER_LIMIT), look)?;
        answer.ok_or_else(|| Failure::work(format!("NDK: no answer within {ANSWER_LIMIT:?}")))
    }
}

/// The queue that the peer has said in its Reply. An end of one queue need not say it.
fn queue_of(connector: &Connector) -> Result<usize, Failure> {
    let mut octets = [0];
    match connector.connection_data(Some(&mut octets)) {
        (NtStatus::SUCCESS, 0 | 1, _) => Ok(octets[0].into()),
        (status, length, _) => Err(Failure::work(format!(
            "the peer's Reply: {length} octets of private data ({status})"
        ))),
    }
}
