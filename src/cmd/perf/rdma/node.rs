//! Node of a measurement on queue pairs: open, wait, query. Each of its queues has an adapter.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    thread::{park_timeout, yield_now},
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, bounded};
use flue_adapter::{AdapterOptions, OpenAdapter, control::server::Control};
use host_stack::node::{Progress, WaitError};
use rdma_over_tcp::ndk::{
    Adapter, AdapterConfig, CallError, Connector, CrcRequest, DisconnectReason, Disconnection,
    FpduSize, Listener, ListenerConfig, NdkResultEx, NtStatus, PendingCall, Qp, ReadLimit,
    blocking::{Wait, call, call_on},
    reject_and_close,
};

use crate::{
    adapter::{OpenAdapters, linger},
    cmd::perf::{
        Plan, Waiting, message::Opening, no_server, phase::ANSWER_LIMIT, queues::Relays,
        report::Reporter,
    },
    failure::Failure,
    report::Console,
    station::Station,
    waker::Waker,
};

/// Outstanding Reads requested in each direction: the adapter's maximum.
const READS_MAX: u32 = 128;
const READ_LIMIT: ReadLimit = ReadLimit { inbound: READS_MAX, outbound: READS_MAX };
/// Longest wait between reads of clock and signals.
const WAIT_MAX: Duration = Duration::from_millis(200);
/// Time limit for the disconnect reason after a flushed request.
const REASON_LIMIT: Duration = Duration::from_secs(1);
/// Limit of connected peers that are not yet handled.
const INCOMING_MAX: usize = 2048;
/// Empty polls after which a spinning end yields the CPU. Two ends that share one CPU would otherwise wait for the
/// scheduler's tick at each message.
const POLLS_PER_YIELD: u32 = 64;

/// Converts an NDK result into a failure with the operation `what`.
pub(super) fn checked<T>(what: &str, result: Result<T, NtStatus>) -> Result<T, Failure> {
    result.map_err(|status| refused(what, status))
}

/// Returns the failure of a request.
pub(super) fn refused(what: &str, status: NtStatus) -> Failure {
    Station::default().status(what, status)
}

/// Returns the failure of an accept, with its cause.
pub(super) fn not_accepted(what: &str, status: NtStatus, connector: Option<&Connector>) -> Failure {
    let cause = connector.and_then(Connector::failure);
    Station::default().failure(&CallError { call: what.to_owned(), status, cause })
}

/// Returns the failure for a connection that the peer ended.
pub(super) fn peer_disconnected(reason: u32) -> Failure {
    let why = DisconnectReason(reason);
    Failure::work(format!("connection: closed before the end of the measurement: {why}"))
}

/// Accepted connection and its queue.
pub(super) struct AcceptedConnection {
    pub(super) queue: usize,
    pub(super) connector: Connector,
}

/// Node with an adapter for each of its queues.
pub(super) struct PerfNode {
    // Dropped before the nodes: a relay must not hold a node's last handle.
    _relays: Relays,
    _control: Option<Control>,
    pub(super) adapters: Vec<Adapter>,
    pub(super) waiting: Waiting,
    is_manual: bool,
    station: Station,
    waker: Waker,
}

impl PerfNode {
    /// Opens TAP and adapters.
    pub(super) fn open(
        plan: &Plan,
        options: &AdapterOptions,
        reporter: &mut Reporter,
        console: &mut Console<'_>,
    ) -> Result<Self, Failure> {
        let node = options.transport.node();
        // Kernel sockets do not need FPDUs aligned with segments.
        let fpdu_size = node.map_or(FpduSize::Max, |_| FpduSize::default());
        // The peer is a flue perf of the same kind, so it supports RFC 7306.
        let rfc7306 = plan.kind.is_extension();
        let config = AdapterConfig {
            rfc7306,
            fpdu_size,
            crc: CrcRequest::Auto,
            connect_timeout: plan.connect_limit,
            ..AdapterConfig::default()
        };
        let opened = OpenAdapters::open(options, config, plan.sandbox, console)?;
        let OpenAdapters { opened, station, control } = opened;
        let OpenAdapter { adapters, nodes, vnet_header, config: _ } = opened;
        if let (Some(node), Some(vnet_header)) = (node, vnet_header) {
            reporter.link(vnet_header, node);
        }
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
            station,
            waker,
        })
    }

    /// Waits until `condition` returns a value, or for a signal; `None` after the time limit.
    pub(super) fn wait<T>(
        &self,
        limit: Option<Duration>,
        mut condition: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>, Failure> {
        let [adapter] = &self.adapters[..] else { return self.wait_for_any(limit, condition) };
        let waited = adapter.wait_until(limit, || match self.waker.interrupted() {
            Ok(()) => condition().map(Ok),
            Err(interrupted) => Some(Err(interrupted)),
        });
        match waited {
            Ok(result) => result.map(Some),
            Err(WaitError::TimedOut) => Ok(None),
            Err(error) => Err(Failure::work(error.to_string())),
        }
    }

    /// Returns the failure of a request whose connection may have ended.
    pub(super) fn failed(&self, result: &NdkResultEx, ended: &Disconnection) -> Failure {
        // The callback with the reason follows the flush, from another thread.
        if result.status == NtStatus::CANCELLED {
            return match self.wait(Some(REASON_LIMIT), || ended.reason()) {
                Ok(reason) => peer_disconnected(reason.unwrap_or(0)),
                Err(failure) => failure,
            };
        }
        let Failure { message, .. } = refused(&result.operation.to_string(), result.status);
        match (ended.reason(), result.error()) {
            // The text also contains the side that detected the error.
            (Some(reason @ 1..), _) => {
                Failure::work(format!("{message}: {}", DisconnectReason(reason)))
            }
            (_, Some(error)) => Failure::work(format!("{message}: {error}")),
            (_, None) => Failure::work(message),
        }
    }

    /// Waits for an event on any of several queues.
    fn wait_for_any<T>(
        &self,
        limit: Option<Duration>,
        mut condition: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>, Failure> {
        let until = limit.map(|limit| Instant::now() + limit);
        let mut polls = 0;
        loop {
            self.interrupted()?;
            if let Some(found) = condition() {
                return Ok(Some(found));
            }
            for adapter in &self.adapters {
                // Runs the loop with manual progress, and detects a removed link.
                match adapter.wait_while(Some(Duration::ZERO), &mut || false) {
                    Ok(()) | Err(WaitError::TimedOut) => {}
                    Err(error) => return Err(Failure::work(error.to_string())),
                }
            }
            let left = until.map_or(WAIT_MAX, |until| until - Instant::now());
            if left.is_zero() {
                return Ok(condition());
            }
            match self.is_manual {
                true => self.idle(&mut polls),
                false => park_timeout(left.min(WAIT_MAX)),
            }
        }
    }

    /// Returns the text of the address of a listener.
    pub(super) fn shown(&self, local: Option<SocketAddr>) -> String {
        local.map_or_else(|| "?".into(), |local| self.station.shown(local))
    }

    /// Prints the address of a connect that begins, on a terminal.
    pub(super) fn connecting(&self, remote: SocketAddr, console: &mut Console<'_>) {
        self.station.connecting(remote, console);
    }

    /// Returns an error if a signal was received.
    pub(super) fn interrupted(&self) -> Result<(), Failure> {
        self.waker.interrupted()
    }

    /// Handles an empty poll of a spinning end.
    pub(super) fn idle(&self, polls: &mut u32) {
        *polls = polls.wrapping_add(1);
        if polls.is_multiple_of(POLLS_PER_YIELD) {
            yield_now();
        }
    }

    /// Connects a queue pair on a local queue; also returns the peer's queue, from its Reply.
    pub(super) fn connect(
        &self,
        queue: usize,
        qp: &Qp,
        remote: SocketAddr,
        opening: Opening,
        ended: &Disconnection,
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
                Err(no_server(failure))
            }
        }
    }

    /// Starts accepting a connection on a queue pair; the Reply carries the queue index.
    pub(super) fn accept(
        &self,
        accepted: &AcceptedConnection,
        qp: &Qp,
        ended: &Disconnection,
    ) -> PendingCall {
        let AcceptedConnection { queue, connector } = accepted;
        let private_data = [*queue as u8];
        PendingCall::begin(|done| {
            connector.accept(qp, READ_LIMIT, &private_data, Some(ended.event()), done)
        })
    }

    /// Listens on all addresses of the node, on each queue: the host stack distributes the connections.
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
                    reject_and_close(&refused.into_inner().connector, b"flue perf: busy");
                }
            };
            let listener = checked("create a listener", adapter.create_listener(event))?;
            let listen = |ip: IpAddr| {
                call(&mut &*self, &format!("listen on port {port}"), |done| {
                    listener.listen_with(SocketAddr::new(ip, port), config, done)
                })
            };
            // Dual stack if the kernel has IPv6.
            listen(Ipv6Addr::UNSPECIFIED.into())
                .or_else(|_| listen(Ipv4Addr::UNSPECIFIED.into()))?;
            listeners.push(listener);
        }
        Ok((listeners, incoming))
    }

    /// Returns true if MPA negotiated CRCs on an existing connection; `None` without connections.
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

    /// Returns the number of TCP segments received by each queue's engine.
    pub(super) fn segments(&self) -> Vec<u64> {
        self.adapters.iter().filter_map(|adapter| adapter.segments_received()).collect()
    }

    /// Waits until the peer's FINs are acknowledged, so that the peer closes without error.
    pub(super) fn linger(&self) {
        self.adapters.iter().for_each(linger);
    }
}

impl Drop for PerfNode {
    fn drop(&mut self) {
        self.waker.clear();
    }
}

/// Waits for the completion of a call. New objects belong to the first adapter.
impl Wait for &PerfNode {
    type Error = Failure;

    fn adapter(&self) -> &Adapter {
        &self.adapters[0]
    }

    fn failed(&self, error: CallError) -> Failure {
        self.station.failure(&error)
    }

    fn wait<T>(&mut self, condition: impl FnMut() -> Option<T>) -> Result<T, Failure> {
        // A connect has its own time limit, and its reason is known only after it.
        let limit = ANSWER_LIMIT + self.station.limit();
        let answer = PerfNode::wait(self, Some(limit), condition)?;
        answer.ok_or_else(|| Failure::work(format!("no answer of the peer in {limit:?}")))
    }
}

/// Returns the peer's queue from its Reply. A peer with one queue may omit it.
fn queue_of(connector: &Connector) -> Result<usize, Failure> {
    let mut octets = [0];
    match connector.connection_data(Some(&mut octets)) {
        (NtStatus::SUCCESS, 0 | 1, _) => Ok(octets[0].into()),
        (status, length, _) => Err(Failure::work(format!(
            "peer: Reply with {length} octets of private data ({status})"
        ))),
    }
}
