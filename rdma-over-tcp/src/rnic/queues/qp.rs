//! Queue pairs: limits, state, and how requests are completed or flushed.

use alloc::{sync::Arc, vec::Vec};
use core::fmt;

use super::{
    cq::{Arrival, Completion, WcOpcode},
    receive_queue::{Receive, ReceiveQueue},
    send_queue::{Progress, SendQueue, WorkRequest},
    wr::WrFlags,
};
use crate::{
    error::ErrorNumber,
    mpa::Slab,
    rnic::{
        config::Limits,
        memory::registration::User,
        objects::{
            id::{CqId, PdId, QpId, ReceiveQueueId, SrqId, StreamId, Table, kind},
            lifetime::Life,
        },
        stats::QpStats,
        status::{VerbError, WcStatus},
    },
};

/// Limits of a queue pair, each up to the adapter's [`Limits`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpLimits {
    /// Receives outstanding.
    pub receive_queue_depth: u32,
    /// Initiator requests outstanding.
    pub initiator_queue_depth: u32,
    /// Scatter/gather entries of a receive.
    pub max_receive_request_sge: u32,
    /// Scatter/gather entries of a send, write or read.
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
    /// [`VerbError::InvalidArgument`]: one of the five is over the adapter's.
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

/// What a queue pair is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpConfig {
    /// Where completions of receives go.
    pub receive_cq: CqId,
    /// Where completions of the send queue's requests go; may be the same.
    pub send_cq: CqId,
    /// Stands in each completion ([`Completion::qp_context`]).
    pub context: u64,
    /// Limits.
    pub limits: QpLimits,
    /// Where its receives come from, if not from a queue of its own. Then [`QpLimits::receive_queue_depth`] and
    /// [`QpLimits::max_receive_request_sge`] do not count.
    pub srq: Option<SrqId>,
    /// Posts to the send queue once the connection is over or is being ended.
    pub late_posts: LatePosts,
}

/// What becomes of a request that is posted to the send queue of a queue pair in [`QpState::Error`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum LatePosts {
    /// [`VerbError::NotConnected`]; no completion follows. NDKPI wants it so (NDK-CON-11).
    #[default]
    Refuse,
    /// It completes as [`WcStatus::Flushed`], behind what was posted before. Verbs wants it so.
    Flush,
}

/// What a queue pair tells its consumer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpEvent {
    /// It is in [`QpState::Error`], and has completed the last receive that it has taken from its shared receive queue:
    /// it takes no more. Told once.
    LastReceive,
}

/// Called when a queue pair has something to tell. Called when no lock is held; it must not keep the adapter alive, or
/// the two hold each other.
pub type QpNotification = Arc<dyn Fn(QpEvent) + Send + Sync>;

/// A queue pair's notification, if its consumer has asked for one.
#[derive(Clone, Default)]
pub(crate) struct QpNotifier(pub(crate) Option<QpNotification>);

impl fmt::Debug for QpNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QpNotifier({})", self.0.is_some())
    }
}

/// Completions of a queue pair that goes, or is reset.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Unpolled {
    /// What is posted completes as [`WcStatus::Flushed`]; completions stay in their queues until they are polled.
    #[default]
    Keep,
    /// The queue pair's completions are taken out of its completion queues, and none follows.
    Discard,
}

/// Where a queue pair is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpState {
    /// Not connected; may be. Receives may be posted, as in every state.
    Idle,
    /// A connector is setting up a connection for it.
    Connecting,
    /// Initiator requests may be posted (NDK-CON-12).
    Connected,
    /// The connection is over: what is posted is flushed (NDK-DISC-6, NDK-WR-5).
    Error,
}

/// Bytes that posts may queue before one has them sent itself: two lists of a kernel socket, which share a write; and
/// the short end of a large message shares a segment with the next.
const WAITING_BYTES_MAX: u64 = 512 * 1024;

/// Posts since nothing was left to send from which on a consumer counts as one that goes on posting.
const POSTS_MIN: u32 = 4;

/// Bytes of headers and CRC of a message, about.
const MESSAGE_OVERHEAD_BYTES: u64 = 24;

/// Decides whether posts may wait for more of them. A connection flows while much is under way
/// ([`LlpStream::is_flowing`](crate::rnic::transport::LlpStream::is_flowing)): whoever uses it polls the engine soon,
/// be it for the acknowledgement, and what has been posted until then goes out together.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Flow {
    is_flowing: bool,
    /// TCP has no room: nothing can be sent before something is acknowledged.
    is_full: bool,
    /// The engine has been asked to look at the connection.
    pub(crate) is_kicked: bool,
    /// Bytes posted and not sent, about.
    unsent_bytes: u64,
    /// Posts since nothing was left to send.
    posts: u32,
}

impl Flow {
    pub(crate) const fn may_wait(self) -> bool {
        self.is_full || self.is_flowing && self.unsent_bytes < WAITING_BYTES_MAX
    }

    /// Returns whether what is unsent is better left to the next posts, where a list takes `list_bytes`. The end of a
    /// lone message is not: whoever posted it may sleep now.
    pub(crate) const fn leaves(self, list_bytes: usize) -> bool {
        (self.is_flowing || self.is_full)
            && self.posts >= POSTS_MIN
            && self.unsent_bytes < list_bytes as u64
    }

    /// A message of so many bytes was posted.
    pub(crate) const fn post(&mut self, bytes: u32) {
        self.unsent_bytes = self.unsent_bytes.saturating_add(bytes as u64 + MESSAGE_OVERHEAD_BYTES);
        self.posts = self.posts.saturating_add(1);
    }

    /// A list of so many bytes is with the transport.
    pub(crate) const fn sent(&mut self, bytes: usize) {
        self.unsent_bytes = self.unsent_bytes.saturating_sub(bytes as u64);
    }

    /// The transport has what it is to have, and may be flowing
    /// ([`LlpStream::is_flowing`](crate::rnic::transport::LlpStream::is_flowing)).
    pub(crate) const fn pumped(&mut self, pumped: Pumped, is_flowing: bool) {
        if matches!(pumped, Pumped::Drained) {
            (self.unsent_bytes, self.posts) = (0, 0);
        }
        self.is_full = matches!(pumped, Pumped::Full);
        self.is_flowing = is_flowing;
        self.is_kicked = false;
    }
}

/// State of the send queue after lists were handed to the transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pumped {
    /// Nothing can be sent: the queue is empty, or waits for a Read or an atomic.
    Drained,
    /// Less than a full list is unsent; the next posts or the next poll ([`Rnic::begin_poll`](crate::rnic::Rnic)) send
    /// it.
    Left,
    /// The transport has no more room.
    Full,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) life: Life,
    /// Its own name.
    pub(crate) id: QpId,
    pub(crate) pd: PdId,
    pub(crate) context: u64,
    pub(crate) limits: QpLimits,
    pub(crate) state: QpState,
    pub(crate) sends: SendQueue,
    /// Where its receives come from, and where their completions go.
    pub(crate) receives: ReceiveQueueId,
    pub(crate) srq: Option<SrqId>,
    pub(crate) receive_cq: CqId,
    /// The receive that the message in progress goes to.
    pub(crate) receiving: Receive,
    pub(crate) is_receiving: bool,
    /// It is to be told of the next receive: a message waits for it.
    pub(crate) awaits_receive: bool,
    pub(crate) flow: Flow,
    /// Memory of inline data.
    pub(crate) captures: Slab,
    /// The STag that the queue pair's Read Requests name as their sink; its key byte counts Reads.
    pub(crate) sink_token: u32,
    /// Reads and atomics that may be outstanding (ORD).
    pub(crate) read_limit: u32,
    /// Atomics and immediate data are allowed, both ways.
    pub(crate) rfc7306: bool,
    pub(crate) late_posts: LatePosts,
    pub(crate) unpolled: Unpolled,
    pub(crate) notifier: QpNotifier,
    /// [`QpEvent::LastReceive`] was told.
    pub(crate) is_last_receive_told: bool,
    pub(crate) stream: Option<StreamId>,
    pub(crate) stats: QpStats,
}

/// A completion on its way to its queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completed {
    pub(crate) cq: CqId,
    pub(crate) completion: Completion,
}

/// The outcome of a receive.
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
    /// As it was made, but for its name and its statistics. Its queues are empty.
    pub(crate) fn reset(&mut self) {
        self.sends = SendQueue::new(self.sends.cq, self.limits.initiator_queue_depth);
        self.state = QpState::Idle;
        self.flow = Flow::default();
        self.read_limit = 0;
        self.unpolled = Unpolled::Keep;
        self.is_last_receive_told = false;
    }

    /// Whose accesses its own are.
    #[inline]
    pub(crate) const fn user(&self) -> User {
        User { pd: self.pd, qp: self.id }
    }

    /// A Read would wait for ever.
    pub(crate) fn has_no_reads(&self) -> bool {
        self.state == QpState::Connected && self.read_limit == 0
    }

    /// The request that was posted last has come too late: it completes Flushed, in its turn.
    pub(crate) fn flush_last(&mut self, completed: &mut Vec<Completed>) {
        self.sends.finish_last(WcStatus::Flushed);
        self.complete_done(completed);
    }

    /// Completes the requests whose turn it is (NDK-WR-6).
    #[inline]
    pub(crate) fn complete_done(&mut self, completed: &mut Vec<Completed>) {
        while let Some((request, status)) = self.sends.front_done() {
            match status {
                WcStatus::Success => {}
                WcStatus::Flushed => self.stats.flushed += 1,
                // The first message of a Write with immediate data has failed: the request completes in the flush.
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

    /// Completes all requests, in posting order: what has its outcome with it, the rest Flushed (NDK-FL-1, NDK-FL-4).
    /// Behind a request that has failed nothing has succeeded, though its buffers may have been done with.
    pub(crate) fn flush_sends(&mut self, completed: &mut Vec<Completed>) {
        let mut failed = false;
        // Of the part in front of the request.
        let mut front = None;
        self.sends.drop_operands();
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

    /// Completes all receives, in posting order, as Flushed. Of a shared receive queue that is the one which the
    /// message in progress has taken: the others are not the queue pair's (NDK-SRQ-6).
    pub(crate) fn flush_receives(
        &mut self,
        queues: &mut Table<kind::ReceiveQueue, ReceiveQueue>,
        completed: &mut Vec<Completed>,
    ) {
        let flushed = ReceiveOutcome::failed(WcStatus::Flushed, None);
        if self.is_receiving {
            self.complete_receiving(flushed, completed);
        }
        let own = self.srq.is_none().then_some(self.receives);
        let Some(queue) = own.and_then(|own| queues.get_mut(own)) else { return };
        while let Some(context) = queue.discard() {
            self.complete_receive(context, flushed, completed);
        }
    }

    /// The completion of a request; none for the success of a silent one (NDK-SIL-1).
    #[inline]
    fn send_completion(&self, request: &WorkRequest, status: WcStatus) -> Option<Completion> {
        let is_success = status == WcStatus::Success;
        let is_silent = is_success && request.flags.contains(WrFlags::SILENT);
        let is_part = request.flags.contains(WrFlags::PART);
        if is_silent || is_part || self.unpolled == Unpolled::Discard {
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

    /// Takes the next receive, unless a message is in progress. Returns whether there is one.
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

    /// Completes the receive that the message in progress goes to.
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
        if self.unpolled == Unpolled::Keep {
            completed.push(Completed { cq: self.receive_cq, completion });
        }
    }
}
