//! Queue pairs: limits, state, completion and flush of requests.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::fmt;

use super::{
    cq::{Arrival, Completion},
    rc::{QpService, RcAttributes},
    receive_queue::{Receive, ReceiveQueue},
    send_queue::{Progress, SendQueue, WorkRequest},
    sges::capture,
    ud::UdAttributes,
    wr::{Data, WcOpcode, WqeKind, WrFlags},
};
use crate::{
    error::ErrorNumber,
    mpa::Slab,
    rnic::{
        config::Limits,
        memory::{
            region::Regions,
            registration::{Access, User},
        },
        objects::{
            id::{CqId, PdId, QpId, ReceiveQueueId, SrqId, StreamId, Table, kind},
            lifetime::Life,
        },
        stats::QpStats,
        status::{VerbError, WcStatus},
    },
};

/// Limits of a queue pair, each at most the adapter's [`Limits`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpLimits {
    /// Receives outstanding.
    pub receive_queue_depth: u32,
    /// Initiator requests outstanding.
    pub initiator_queue_depth: u32,
    /// Scatter/gather entries of a receive.
    pub max_receive_request_sge: u32,
    /// Scatter/gather entries of a Send, Write or Read.
    pub max_initiator_request_sge: u32,
    /// Bytes of inline data.
    pub inline_data_size: u32,
}

impl Default for QpLimits {
    fn default() -> Self {
        Self {
            receive_queue_depth: 128,
            initiator_queue_depth: 128,
            max_receive_request_sge: 4,
            max_initiator_request_sge: 4,
            inline_data_size: 256,
        }
    }
}

impl QpLimits {
    /// # Errors
    /// [`VerbError::InvalidArgument`]: one of the five exceeds the limit of the adapter.
    pub(crate) const fn check(&self, limits: &Limits) -> Result<(), VerbError> {
        if self.receive_queue_depth > limits.receive_depth_max
            || self.initiator_queue_depth > limits.send_depth_max
            || self.max_receive_request_sge > limits.receive_sges_max
            || self.max_initiator_request_sge > limits.send_sges_max
            || self.inline_data_size > limits.inline_bytes_max
        {
            return Err(VerbError::InvalidArgument);
        }
        Ok(())
    }
}

/// Creation attributes of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpConfig {
    /// Completion queue of receives.
    pub receive_cq: CqId,
    /// Completion queue of the send queue's requests; may be the same.
    pub send_cq: CqId,
    /// Context in each completion ([`Completion::qp_context`]).
    pub context: u64,
    /// Limits of the queue pair.
    pub limits: QpLimits,
    /// Shared receive queue; `None`: its own queue. With a shared receive queue [`QpLimits::receive_queue_depth`]
    /// and [`QpLimits::max_receive_request_sge`] are ignored.
    pub srq: Option<SrqId>,
    /// Policy of posts to the send queue once the connection has ended or is being ended.
    pub error_state_posts: ErrorStatePosts,
    /// Service of the queue pair. Its peers have the same one.
    pub service: QpService,
}

/// Policy of posts to the send queue of a queue pair in [`QpState::Error`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ErrorStatePosts {
    /// The post returns [`VerbError::NotConnected`], and no completion follows, as NDKPI requires (NDK-CON-11).
    #[default]
    Refuse,
    /// The request completes as [`WcStatus::Flushed`], after the requests posted before, as verbs requires.
    Flush,
}

/// Asynchronous event of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpEvent {
    /// The queue pair is in [`QpState::Error`], and has completed the last receive that it took from its shared receive
    /// queue. It takes no more receives. Reported once.
    LastReceive,
    /// Requests wait in the send queue of a queue pair of [`QpService::Rc`] that has no connection: the queue was empty
    /// when a request was posted, or it was not empty when the connection was lost ([`QpState::Lost`]).
    RequestsWaiting,
}

/// Callback for the events of a queue pair. Called with no lock held. It must not own the adapter, because that would
/// be a reference cycle.
pub type QpNotification = Arc<dyn Fn(QpEvent) + Send + Sync>;

/// Event callback of a queue pair, if its consumer has registered one.
#[derive(Clone, Default)]
pub(crate) struct QpNotifier(pub(crate) Option<QpNotification>);

impl fmt::Debug for QpNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QpNotifier({})", self.0.is_some())
    }
}

/// Treatment of completions when a queue pair is destroyed or reset.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum CompletionRetention {
    /// Posted requests complete as [`WcStatus::Flushed`]. Completions remain in their queues until they are polled.
    #[default]
    Keep,
    /// The queue pair's completions are removed from its completion queues, and none follows.
    Discard,
}

/// State of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpState {
    /// Not connected, but can be connected. Receives may be posted, as in every state. Initiator requests are queued if
    /// [`Rnic::allow_sends`](crate::rnic::Rnic::allow_sends) was called.
    Idle,
    /// A connector is establishing a connection for the queue pair. Posts are accepted as in [`QpState::Idle`].
    Connecting,
    /// Initiator requests may be posted (NDK-CON-12). Of [`QpService::Ud`]: datagrams may be posted.
    Connected,
    /// Only with [`QpService::Rc`]: the connection has ended without an error, by a FIN, a reset or a timeout. Receives
    /// stay posted and requests stay queued, also those posted from now on, until
    /// [`Rnic::fail_sends`](crate::rnic::Rnic::fail_sends), [`Rnic::break_qp`](crate::rnic::Rnic::break_qp) or
    /// [`Rnic::reset_qp`](crate::rnic::Rnic::reset_qp). It cannot be connected again before a reset.
    Lost,
    /// The connection has ended: posted requests are flushed (NDK-DISC-6, NDK-WR-5).
    Error,
}

/// Bytes that posts may queue before they are sent immediately. Two lists of a kernel socket, which share a write; the
/// short end of a large message shares a segment with the next message.
const WAITING_BYTES_MAX: u64 = 512 * 1024;

/// Posts since the queue was last drained after which the consumer is expected to keep posting.
const POSTS_MIN: u32 = 4;

/// Posts without a completion after which a consumer is expected to wait for the next one with a completion.
const SILENT_POSTS_MIN: u32 = 32;

/// Approximate bytes of headers and CRC of a message.
const MESSAGE_OVERHEAD_BYTES: u64 = 24;

/// State for the batching of posts. A connection is busy while much data is in flight
/// ([`LlpStream::is_busy`](crate::rnic::transport::LlpStream::is_busy)). The consumer of a busy connection soon
/// polls the engine, for example for the acknowledgment. All posts until then are sent together.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Flow {
    is_busy: bool,
    /// True if TCP has no room: nothing can be sent before data is acknowledged.
    is_full: bool,
    /// True if the engine has been requested to serve the connection.
    pub(crate) is_scheduled: bool,
    /// Approximate bytes posted and not sent.
    unsent_bytes: u64,
    /// Posts since the queue was last drained.
    posts: u32,
    /// Posts without a completion since then.
    silent_posts: u32,
    /// True if the consumer is expected to wait for a completion of the peer's execution.
    is_awaited: bool,
}

impl Flow {
    pub(crate) const fn may_wait(self) -> bool {
        self.is_full || self.is_busy && !self.is_awaited && self.unsent_bytes < WAITING_BYTES_MAX
    }

    /// Returns true if the unsent data should be deferred to the next posts, if a list holds `list_bytes`. The end of a
    /// single message is not deferred, because its consumer may sleep now.
    pub(crate) const fn defers(self, list_bytes: usize) -> bool {
        (self.is_busy || self.is_full)
            && !self.is_awaited
            && self.posts >= POSTS_MIN
            && self.unsent_bytes < list_bytes as u64
    }

    /// Records a posted message of this size.
    pub(crate) const fn post(&mut self, bytes: u32) {
        self.unsent_bytes = self.unsent_bytes.saturating_add(bytes as u64 + MESSAGE_OVERHEAD_BYTES);
        self.posts = self.posts.saturating_add(1);
    }

    /// Records a posted message that the peer acknowledges. A completion after many messages without one is likely to
    /// be waited for, with few messages after it. These are sent later, while the peer executes the others.
    pub(crate) const fn post_acknowledged(&mut self, is_silent: bool) {
        match is_silent {
            true => self.silent_posts = self.silent_posts.saturating_add(1),
            false => self.is_awaited |= self.silent_posts >= SILENT_POSTS_MIN,
        }
    }

    /// Records a list of this size passed to the transport.
    pub(crate) const fn sent(&mut self, bytes: usize) {
        self.unsent_bytes = self.unsent_bytes.saturating_sub(bytes as u64);
    }

    /// Records the end of a transmit pass, and the state of the transport
    /// ([`LlpStream::is_busy`](crate::rnic::transport::LlpStream::is_busy)).
    pub(crate) const fn transmit_ended(&mut self, pumped: TransmitOutcome, is_busy: bool) {
        if matches!(pumped, TransmitOutcome::Drained) {
            (self.unsent_bytes, self.posts) = (0, 0);
            (self.silent_posts, self.is_awaited) = (0, false);
        }
        self.is_full = matches!(pumped, TransmitOutcome::Full);
        self.is_busy = is_busy;
        self.is_scheduled = false;
    }
}

/// State of the send queue after a transmit pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TransmitOutcome {
    /// Nothing can be sent: the queue is empty, or waits for a Read or an atomic.
    Drained,
    /// Less than a full list is unsent. The next posts or the next poll ([`Rnic::begin_poll`](crate::rnic::Rnic)) send
    /// it.
    Deferred,
    /// The transport has no more room.
    Full,
}

/// Queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) life: Life,
    /// Its own identifier.
    pub(crate) id: QpId,
    pub(crate) pd: PdId,
    pub(crate) context: u64,
    /// Number for monitoring; `None`: that of the identifier.
    pub(crate) number: Option<u32>,
    /// Number of the peer's queue pair, for monitoring.
    pub(crate) peer_number: Option<u32>,
    pub(crate) limits: QpLimits,
    pub(crate) state: QpState,
    pub(crate) sends: SendQueue,
    /// Queue of its receives: its own, or that of a shared receive queue.
    pub(crate) receives: ReceiveQueueId,
    pub(crate) srq: Option<SrqId>,
    pub(crate) receive_cq: CqId,
    /// Receive of the message in progress.
    pub(crate) receiving: Receive,
    pub(crate) is_receiving: bool,
    /// True if a message waits for the next receive to be posted.
    pub(crate) awaits_receive: bool,
    pub(crate) flow: Flow,
    /// Slab of inline data.
    pub(crate) captures: Slab,
    /// STag that the queue pair's Read Requests use as their sink. Its key byte counts Reads.
    pub(crate) sink_token: u32,
    /// Reads and atomics that may be outstanding (ORD).
    pub(crate) read_limit: u32,
    /// True if atomics and immediate data are allowed in both directions.
    pub(crate) rfc7306: bool,
    /// Rights of the peer's Writes, Reads and atomics, in addition to those of the memory. Only with
    /// [`QpService::Rc`].
    pub(crate) rights: Access,
    /// Attributes of [`QpService::Rc`] and [`QpService::Uc`]; `None`: another service.
    pub(crate) rc: Option<RcAttributes>,
    /// Attributes of [`QpService::Ud`]; `None`: another service.
    pub(crate) ud: Option<Box<UdAttributes>>,
    /// Queue pair whose requests arrive here: this one is its twin ([`Rnic::create_twin`](crate::rnic::Rnic)).
    pub(crate) twin_of: Option<QpId>,
    pub(crate) error_state_posts: ErrorStatePosts,
    pub(crate) retention: CompletionRetention,
    pub(crate) notifier: QpNotifier,
    /// True if [`QpEvent::LastReceive`] was reported.
    pub(crate) is_last_receive_reported: bool,
    pub(crate) stream: Option<StreamId>,
    pub(crate) stats: QpStats,
}

/// Completion that is not yet in its queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completed {
    pub(crate) cq: CqId,
    pub(crate) completion: Completion,
}

/// Outcome of a receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveOutcome {
    pub(crate) status: WcStatus,
    pub(crate) bytes: u32,
    pub(crate) arrival: Arrival,
    pub(crate) solicited: bool,
    pub(crate) error: Option<ErrorNumber>,
}

impl ReceiveOutcome {
    pub(crate) const fn failed(status: WcStatus, error: Option<ErrorNumber>) -> Self {
        Self { status, bytes: 0, arrival: Arrival::Plain, solicited: false, error }
    }
}

impl Qp {
    /// Adds a request of `length` bytes to the send queue; inline data is copied.
    #[inline(always)]
    pub(crate) fn push_request(
        &mut self,
        context: u64,
        kind: WqeKind,
        (data, length): (Data<'_>, u32),
        flags: WrFlags,
    ) {
        let captured = match data {
            Data::Inline(parts) => capture(&mut self.captures, parts),
            Data::InlineSges(parts) => capture(&mut self.captures, parts),
            Data::Registered(sges) => {
                self.sends.push(context, flags, kind, length, sges);
                return;
            }
        };
        self.sends.push_captured(context, flags, kind, captured);
    }

    /// Resets the queue pair to its initial state, except its identifier and its statistics. Its queues are empty.
    pub(crate) fn reset(&mut self) {
        self.sends = SendQueue::new(self.sends.cq, self.limits.initiator_queue_depth);
        self.state = QpState::Idle;
        self.flow = Flow::default();
        self.read_limit = 0;
        self.rights = Access::REMOTE;
        self.rc = self.rc.map(RcAttributes::reset);
        self.ud = self.ud.take().map(|_| Box::default());
        self.retention = CompletionRetention::Keep;
        self.is_last_receive_reported = false;
    }

    /// Identity of the queue pair in access checks.
    #[inline]
    pub(crate) const fn user(&self) -> User {
        User { pd: self.pd, qp: self.id }
    }

    /// Returns true if no other queue pair takes receives of its queue, or if those that do are twins.
    pub(crate) const fn has_own_receives(&self) -> bool {
        self.srq.is_none() && self.twin_of.is_none()
    }

    /// Returns true if the queue pair is of [`QpService::Rc`] or [`QpService::Uc`].
    #[inline]
    pub(crate) const fn is_rc(&self) -> bool {
        self.rc.is_some()
    }

    /// Returns true if the peer acknowledges requests: [`QpService::Rc`].
    #[inline]
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.rc.is_some_and(|rc| !rc.is_unreliable)
    }

    /// Returns true if the queue pair is of [`QpService::Uc`].
    #[inline]
    pub(crate) fn is_unreliable(&self) -> bool {
        self.rc.is_some_and(|rc| rc.is_unreliable)
    }

    /// Returns the service.
    pub(crate) fn service(&self) -> QpService {
        match self.rc {
            None if self.ud.is_some() => QpService::Ud,
            None => QpService::Iwarp,
            Some(RcAttributes { is_unreliable: true, .. }) => QpService::Uc,
            Some(_) => QpService::Rc,
        }
    }

    /// Returns true if the peer's requests that need `right` are permitted, as far as the queue pair decides.
    pub(crate) fn permits(&self, right: Access) -> bool {
        !self.is_rc() || self.rights.contains(right)
    }

    /// Returns true if posts are queued although the queue pair is not connected.
    pub(crate) fn queues_posts(&self) -> bool {
        self.rc.is_some_and(|rc| match self.state {
            QpState::Idle | QpState::Connecting => rc.allows_sends,
            QpState::Lost => true,
            QpState::Connected | QpState::Error => false,
        })
    }

    /// Returns true if a Read would wait forever.
    pub(crate) fn has_no_reads(&self) -> bool {
        self.state == QpState::Connected && self.read_limit == 0
    }

    /// Returns true if the next request is a local operation that can start although the queue pair is not connected.
    pub(crate) fn is_next_early(&mut self) -> bool {
        let (holds_sends, begun) = (self.rc.is_some_and(|rc| rc.holds_sends), self.sends.begun());
        let Some(request) = self.sends.next_mut() else { return false };
        // Reads of the lost connection may be outstanding.
        let is_fenced = begun > 0 && request.flags.contains(WrFlags::READ_FENCE);
        request.kind.is_local() && !holds_sends && !is_fenced
    }

    /// Executes the next request, a local operation, and records its outcome. Returns true if it succeeded.
    #[inline(never)]
    pub(crate) fn execute_local(&mut self, regions: &mut Regions) -> bool {
        let user = self.user();
        let Some(request) = self.sends.next_mut() else { return true };
        let ok = match &request.kind {
            WqeKind::FastRegister { region, prepared } => regions.fast_register(*region, prepared),
            WqeKind::Invalidate { target } => regions.invalidate(user, *target), // NDK-MEM-10, NDK-CQ-17
            WqeKind::Bind { prepared } => regions.bind(user, **prepared),
            _ => unreachable!("a local operation"),
        };
        let status = if ok { WcStatus::Success } else { WcStatus::LocalOperation };
        self.sends.advance(Progress::Done(status));
        ok
    }

    /// Completes the last posted request as Flushed, in posting order: it was posted too late.
    pub(crate) fn flush_last(&mut self, completed: &mut Vec<Completed>) {
        self.sends.finish_last(WcStatus::Flushed);
        self.complete_done(completed);
    }

    /// Completes the requests at the front of the queue whose outcome is known (NDK-WR-6).
    #[inline]
    pub(crate) fn complete_done(&mut self, completed: &mut Vec<Completed>) {
        while let Some((request, status)) = self.sends.front_outcome() {
            match status {
                WcStatus::Success => {}
                WcStatus::Flushed => self.stats.flushed += 1,
                // The first message of a Write with immediate data failed: the request completes in the flush.
                _ if request.flags.contains(WrFlags::PART) => return,
                _ => {}
            }
            let completion = self.send_completion(request, status);
            self.sends.discard_front();
            if let Some(completion) = completion {
                completed.push(Completed { cq: self.sends.cq, completion });
            }
        }
    }

    /// Completes all requests in posting order: those with an outcome report it, the rest are Flushed (NDK-FL-1,
    /// NDK-FL-4). No request after a failed one succeeds, even if its buffers are no longer in use.
    pub(crate) fn flush_sends(&mut self, completed: &mut Vec<Completed>) {
        let mut failed = false;
        // Outcome of the failed part before the request.
        let mut front = None;
        self.sends.drop_operands();
        if let Some(ud) = &mut self.ud {
            ud.destinations.clear();
        }
        while let Some(mut request) = self.sends.pop() {
            let mut status = match request.progress {
                Progress::Done(status) if !failed => status,
                _ => WcStatus::Flushed,
            };
            let has_failed = !matches!(status, WcStatus::Success | WcStatus::Flushed);
            failed |= has_failed;
            if request.flags.contains(WrFlags::PART) {
                front = has_failed.then_some((status, request.error));
                continue;
            }
            if let Some(outcome) = front.take() {
                (status, request.error) = outcome;
            }
            self.stats.flushed += u64::from(status == WcStatus::Flushed);
            if let Some(completion) = self.send_completion(&request, status) {
                completed.push(Completed { cq: self.sends.cq, completion });
            }
        }
    }

    /// Completes all receives as Flushed, in posting order. Of a shared receive queue, only the receive taken by the
    /// message in progress belongs to the queue pair (NDK-SRQ-6).
    pub(crate) fn flush_receives(
        &mut self,
        queues: &mut Table<kind::ReceiveQueue, ReceiveQueue>,
        completed: &mut Vec<Completed>,
    ) {
        let flushed = ReceiveOutcome::failed(WcStatus::Flushed, None);
        if self.is_receiving {
            self.complete_receiving(flushed, completed);
        }
        let own = self.has_own_receives().then_some(self.receives);
        let Some(queue) = own.and_then(|own| queues.get_mut(own)) else { return };
        while let Some(context) = queue.discard() {
            self.complete_receive(context, flushed, completed);
        }
    }

    /// Returns the completion of a request; `None` for the success of a silent request (NDK-SIL-1).
    #[inline]
    fn send_completion(&self, request: &WorkRequest, status: WcStatus) -> Option<Completion> {
        let is_success = status == WcStatus::Success;
        let is_silent = is_success && request.flags.contains(WrFlags::SILENT);
        let is_part = request.flags.contains(WrFlags::PART);
        if is_silent || is_part || self.retention == CompletionRetention::Discard {
            return None;
        }
        Some(Completion {
            status,
            opcode: request.kind.opcode(),
            error: request.error,
            bytes: if is_success { request.length } else { 0 },
            arrival: Arrival::Plain,
            solicited: false,
            qp: self.id,
            qp_context: self.context,
            context: request.context,
        })
    }

    /// Takes the next receive, unless a message is in progress. Returns true if there is a receive.
    #[inline]
    pub(crate) fn take_receive(
        &mut self,
        queues: &mut Table<kind::ReceiveQueue, ReceiveQueue>,
    ) -> bool {
        if !self.is_receiving {
            let queue = queues.get_mut(self.receives);
            self.is_receiving = queue.is_some_and(|queue| queue.take(&mut self.receiving));
        }
        self.is_receiving
    }

    /// Completes the receive of the message in progress.
    #[inline]
    pub(crate) fn complete_receiving(
        &mut self,
        outcome: ReceiveOutcome,
        completed: &mut Vec<Completed>,
    ) {
        self.is_receiving = false;
        self.complete_receive(self.receiving.context, outcome, completed);
    }

    #[inline]
    fn complete_receive(
        &mut self,
        context: u64,
        outcome: ReceiveOutcome,
        completed: &mut Vec<Completed>,
    ) {
        let ReceiveOutcome { status, bytes, arrival, solicited, error } = outcome;
        self.stats.flushed += u64::from(status == WcStatus::Flushed);
        let completion = Completion {
            status,
            opcode: WcOpcode::Receive,
            error,
            bytes,
            arrival,
            solicited,
            qp: self.id,
            qp_context: self.context,
            context,
        };
        if self.retention == CompletionRetention::Keep {
            completed.push(Completed { cq: self.receive_cq, completion });
        }
    }
}
