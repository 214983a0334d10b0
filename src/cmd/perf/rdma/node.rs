//! The node of a measurement on queue pairs: opened, waited on, and asked.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
    thread::yield_now,
    time::Duration,
};

use crossbeam_channel::{Receiver, bounded};
use host_stack::node::{Node, WaitError};
use rdma_over_tcp::ndk::{
    Adapter, AdapterCore, Connector, DisconnectEvent, FpduSize, Listener, NtStatus, Qp, ReadLimit,
};

use crate::{
    cmd::perf::{Plan, Waiting, message::Opening, phase::ANSWER_LIMIT, report::Reporter},
    control::server::{self, Control},
    failure::Failure,
    net::Netlink,
    node::{OpenLink, linger, open_adapter, open_link},
    options::NodeConfig,
    waker::Waker,
};

/// Reads at once, asked for in each direction: all that an adapter offers.
const READS_MAX: u32 = 128;
/// How long the other side's FIN is waited for after the end.
const LINGER_LIMIT: Duration = Duration::from_millis(500);
/// Peers that have connected and are not looked at yet.
const INCOMING_MAX: usize = 2048;
/// Looks in vain after which a spinning end offers the processor to others: two ends that share one would
/// else wait for the scheduler's tick at each message.
const LOOKS_PER_YIELD: u32 = 64;

/// The connections of a session: which one has ended, and NDK's reason.
pub(super) type Ended = Arc<OnceLock<u32>>;

/// A result of NDK, as a failure that says what was tried.
pub(super) fn checked<T>(what: &str, result: Result<T, NtStatus>) -> Result<T, Failure> {
    result.map_err(|status| refused(what, status))
}

/// The failure of a request.
pub(super) fn refused(what: &str, status: NtStatus) -> Failure {
    Failure::work(format!("NDK: {what}: {status}"))
}

/// A node with its adapter.
pub(super) struct PerfNode {
    _control: Option<Control>,
    pub(super) node: Node<AdapterCore>,
    pub(super) adapter: Adapter,
    pub(super) waiting: Waiting,
    waker: Waker<AdapterCore>,
}

impl PerfNode {
    /// Opens TAP and adapter.
    pub(super) fn open(
        plan: &Plan,
        config: &NodeConfig,
        reporter: &mut Reporter,
    ) -> Result<Self, Failure> {
        let OpenLink { link, vnet_header } = open_link(&mut Netlink::open()?, config)?;
        let (node, adapter) = open_adapter(link, config, FpduSize::Auto)?;
        reporter.link(vnet_header, config.mtu_bytes);
        let control = server::serve(&node, config)?;
        let waker = Waker::new();
        waker.set(Some(node.clone()));
        waker.catch_signals()?;
        Ok(Self { _control: control, node, adapter, waiting: plan.waiting, waker })
    }

    /// Waits for what `look` finds, or a signal; `None`: the time is over.
    pub(super) fn wait<T>(
        &self,
        limit: Option<Duration>,
        mut look: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>, Failure> {
        let waited = self.node.wait_until(limit, || match self.waker.interrupted() {
            Ok(()) => look().map(Ok),
            Err(interrupted) => Some(Err(interrupted)),
        });
        match waited {
            Ok(result) => result.map(Some),
            Err(WaitError::TimedOut) => Ok(None),
            Err(error) => Err(Failure::work(error.to_string())),
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

    /// Begins something asynchronous and waits for its completion.
    pub(super) fn ask(
        &self,
        what: &str,
        begin: impl FnOnce(Box<dyn FnOnce(NtStatus) + Send>) -> NtStatus,
    ) -> Result<(), Failure> {
        let status = match self.begin(begin) {
            Asked::Inline(status) => status,
            Asked::Later(answer) => self
                .wait(Some(ANSWER_LIMIT), || answer.try_recv().ok())?
                .ok_or_else(|| Failure::work(format!("NDK: {what}: no answer")))?,
        };
        if status == NtStatus::SUCCESS { Ok(()) } else { Err(refused(what, status)) }
    }

    /// Begins something asynchronous.
    pub(super) fn begin(
        &self,
        begin: impl FnOnce(Box<dyn FnOnce(NtStatus) + Send>) -> NtStatus,
    ) -> Asked {
        let (sender, answer) = bounded(1);
        // Nobody listens any more when the run has ended meanwhile.
        let status = begin(Box::new(move |status| {
            let _ = sender.send(status);
        }));
        match status {
            NtStatus::PENDING => Asked::Later(answer),
            status => Asked::Inline(status),
        }
    }

    /// Connects a queue pair.
    pub(super) fn connect(
        &self,
        qp: &Qp,
        remote: SocketAddr,
        opening: Opening,
        ended: &Ended,
    ) -> Result<Connector, Failure> {
        let connector = checked("create a connector", self.adapter.create_connector())?;
        let what = format!("connect to {remote}");
        let connected = self
            .ask(&what, |done| {
                connector.connect(qp, None, remote, limits(), &opening.encode(), done)
            })
            .and_then(|()| {
                self.ask("complete the connection", |done| {
                    connector.complete_connect(Some(event(ended)), done)
                })
            });
        match connected {
            Ok(()) => Ok(connector),
            Err(failure) => {
                let _ = connector.close(|| {});
                let hint =
                    "is there a flue perf server of the same kind, and not with another client?";
                Err(failure.with_hint(hint))
            }
        }
    }

    /// Begins to accept a connection for a queue pair.
    pub(super) fn accept(&self, connector: &Connector, qp: &Qp, ended: &Ended) -> Asked {
        self.begin(|done| connector.accept(qp, limits(), &[], Some(event(ended)), done))
    }

    /// Listens at all of the node's addresses.
    pub(super) fn listen(&self, port: u16) -> Result<(Listener, Receiver<Connector>), Failure> {
        let (sender, incoming) = bounded(INCOMING_MAX);
        // Who finds the channel full is dropped unanswered, and times out.
        let event = move |connector| drop(sender.try_send(connector));
        let listener = checked("create a listener", self.adapter.create_listener(event))?;
        let local = SocketAddr::from(([0, 0, 0, 0], port));
        self.ask(&format!("listen on port {port}"), |done| listener.listen(local, done))?;
        Ok((listener, incoming))
    }

    /// Whether MPA has agreed on CRCs, of any connection there is.
    pub(super) fn crc(&self) -> Option<bool> {
        self.node.with(|core, _, _| {
            core.histories().find_map(|history| Some(history.negotiated?.framing.crc))
        })
    }

    /// Stays until the peer's FINs are acknowledged, so that its end is clean too.
    pub(super) fn linger(&self) {
        linger(&self.node, LINGER_LIMIT);
    }
}

impl Drop for PerfNode {
    fn drop(&mut self) {
        self.waker.set(None);
    }
}

/// How a request goes.
pub(super) enum Asked {
    /// It has its status.
    Inline(NtStatus),
    /// It will come.
    Later(Receiver<NtStatus>),
}

impl Asked {
    /// Whether there is a status.
    pub(super) fn has_answer(&self) -> bool {
        match self {
            Self::Inline(_) => true,
            Self::Later(answer) => !answer.is_empty(),
        }
    }

    /// The status, once there is one.
    pub(super) fn status(&self) -> Option<NtStatus> {
        match self {
            Self::Inline(status) => Some(*status),
            Self::Later(answer) => answer.try_recv().ok(),
        }
    }
}

const fn limits() -> ReadLimit {
    ReadLimit { inbound: READS_MAX, outbound: READS_MAX }
}

fn event(ended: &Ended) -> DisconnectEvent {
    let ended = ended.clone();
    // The first to end says why.
    Box::new(move |reason| {
        let _ = ended.set(reason);
    })
}
