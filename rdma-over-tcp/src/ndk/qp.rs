//! Queue pairs: limits, state, and how requests are completed or flushed.

use alloc::vec::Vec;
use core::net::SocketAddr;

use offload_engine::chimney::client::OffloadHandle;

use super::{
    cq::NdkResultEx,
    flags::{OpFlags, OperationType},
    info::{AdapterInfo, QpStats},
    lifetime::Life,
    objects::{Completed, Objects},
    pd::Pd,
    queue::{InitiatorQueue, ReceiveQueue, WorkRequest},
    slab::Id,
    status::NtStatus,
};
use crate::mpa::Slab;

/// Limits of a queue pair, each up to the adapter's (NdkCreateQp).
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
    /// [`NtStatus::INVALID_PARAMETER`]: one of the five is over the adapter's.
    pub(crate) const fn check(&self, info: &AdapterInfo) -> Result<(), NtStatus> {
        if self.receive_queue_depth > info.max_receive_queue_depth
            || self.initiator_queue_depth > info.max_initiator_queue_depth
            || self.max_receive_request_sge > info.max_receive_request_sge
            || self.max_initiator_request_sge > info.max_initiator_request_sge
            || self.inline_data_size > info.max_inline_data_size
        {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        Ok(())
    }
}

/// Where a queue pair is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum QpState {
    /// Not connected; may be.
    Idle,
    /// A connector is setting up a connection for it.
    Connecting,
    /// Initiator requests may be posted (NDK-CON-12).
    Connected,
    /// The connection is over: what is posted is flushed (NDK-DISC-6, NDK-WR-5).
    Error,
}

/// Bytes that posts may queue before one has them sent itself: some super-segments, so that the short end of one large
/// message shares a segment with the next.
const WAITING_BYTES_MAX: u32 = 256 * 1024;

/// Bytes of headers and CRC of a message, about.
const MESSAGE_OVERHEAD_BYTES: u32 = 24;

/// Whether what is posted may wait for company. A connection flows while it has more than two segments' worth under
/// way: whoever uses it polls the engine soon, be it for the acknowledgement, and what has been posted until
/// then goes out together.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Flow {
    /// More than two segments' worth is under way.
    is_flowing: bool,
    /// TCP has no room: nothing can be sent before something is acknowledged.
    is_full: bool,
    /// The engine has been asked to look at the connection.
    pub(crate) is_kicked: bool,
    /// Bytes posted since it has looked last.
    waiting_bytes: u32,
}

impl Flow {
    pub(crate) const fn may_wait(self) -> bool {
        self.is_full || self.is_flowing && self.waiting_bytes < WAITING_BYTES_MAX
    }

    /// A message of so many bytes was posted.
    pub(crate) const fn post(&mut self, bytes: u32) {
        let bytes = bytes.saturating_add(MESSAGE_OVERHEAD_BYTES);
        self.waiting_bytes = self.waiting_bytes.saturating_add(bytes);
    }

    /// What TCP had room for was sent; `outstanding` bytes are under way.
    pub(crate) const fn pumped(&mut self, is_full: bool, outstanding: usize, emss: usize) {
        let is_flowing = outstanding > 2 * emss;
        *self = Self { is_flowing, is_full, is_kicked: false, waiting_bytes: 0 };
    }
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) life: Life,
    pub(crate) pd: Id<Pd>,
    pub(crate) context: u64,
    pub(crate) limits: QpLimits,
    pub(crate) state: QpState,
    pub(crate) initiator: InitiatorQueue,
    pub(crate) receives: ReceiveQueue,
    pub(crate) flow: Flow,
    /// Memory of inline data.
    pub(crate) captures: Slab,
    /// The token that the queue pair's Read Requests name as their sink; its key byte counts reads.
    pub(crate) sink_token: u32,
    /// Reads that may be outstanding (ORD).
    pub(crate) read_limit: u32,
    pub(crate) stream: Option<OffloadHandle>,
    pub(crate) stats: QpStats,
}

/// What OID_NDK_CONNECTIONS would list of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionEntry {
    /// Our end.
    pub local: SocketAddr,
    /// The peer's end.
    pub remote: SocketAddr,
    /// Statistics.
    pub stats: QpStats,
}

/// How a receive ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveOutcome {
    pub(crate) status: NtStatus,
    pub(crate) bytes: u32,
    pub(crate) invalidated_token: Option<u32>,
    pub(crate) solicited: bool,
    pub(crate) error_code: u32,
}

impl ReceiveOutcome {
    pub(crate) const fn failed(status: NtStatus, error_code: u32) -> Self {
        Self { status, bytes: 0, invalidated_token: None, solicited: false, error_code }
    }
}

impl Qp {
    /// Completes the initiator requests whose turn it is (NDK-WR-6).
    #[inline]
    pub(crate) fn complete_done(&mut self, completed: &mut Vec<Completed>) {
        while let Some((request, status)) = self.initiator.front_done() {
            let result = initiator_result(self.context, request, status);
            self.stats.flushed += u64::from(status == NtStatus::CANCELLED);
            self.initiator.pop();
            if let Some(entry) = result {
                completed.push(Completed { cq: self.initiator.cq, entry, solicited: false });
            }
        }
    }
}

impl Objects {
    /// Completes the receive at the front.
    pub(crate) fn complete_receive(&mut self, id: Id<Qp>, outcome: ReceiveOutcome) {
        let Some(qp) = self.qps.get_mut(id) else { return };
        let Some(receive) = qp.receives.pop() else { return };
        let ReceiveOutcome { status, bytes, invalidated_token, solicited, error_code } = outcome;
        qp.stats.flushed += u64::from(status == NtStatus::CANCELLED);
        let operation = match invalidated_token {
            Some(_) => OperationType::ReceiveAndInvalidate,
            None => OperationType::Receive,
        };
        let entry = NdkResultEx {
            status,
            bytes_transferred: bytes,
            qp_context: qp.context,
            request_context: receive.context,
            operation,
            provider_error_code: error_code,
            invalidated_token: invalidated_token.unwrap_or(0),
        };
        let cq = qp.receives.cq;
        self.complete(cq, entry, solicited);
    }

    /// Completes everything posted, in posting order: what has its outcome with it, the rest CANCELLED
    /// (NDK-FL-1, NDK-FL-4). Behind a request that has failed nothing has succeeded, though its buffers may
    /// have been done with.
    pub(crate) fn flush(&mut self, id: Id<Qp>) {
        let mut failed = false;
        let Some(qp) = self.qps.get_mut(id) else { return };
        while let Some(request) = qp.initiator.pop() {
            let status = match request.progress {
                super::queue::Progress::Done(status) if !failed => status,
                _ => NtStatus::CANCELLED,
            };
            failed |= !status.is_success() && status != NtStatus::CANCELLED;
            qp.stats.flushed += u64::from(status == NtStatus::CANCELLED);
            if let Some(entry) = initiator_result(qp.context, &request, status) {
                let cq = qp.initiator.cq;
                self.completed.push(Completed { cq, entry, solicited: false });
            }
        }
        while self.qps.get(id).is_some_and(|qp| qp.receives.front().is_some()) {
            self.complete_receive(id, ReceiveOutcome::failed(NtStatus::CANCELLED, 0));
        }
    }
}

/// What the consumer is told of an initiator request; nothing of the success of a silent one (NDK-SIL-1).
fn initiator_result(
    qp_context: u64,
    request: &WorkRequest,
    status: NtStatus,
) -> Option<NdkResultEx> {
    let is_success = status == NtStatus::SUCCESS;
    if is_success && request.flags.contains(OpFlags::SILENT_SUCCESS) {
        return None;
    }
    Some(NdkResultEx {
        status,
        bytes_transferred: if is_success { request.length } else { 0 },
        qp_context,
        request_context: request.context,
        operation: request.kind.operation(),
        provider_error_code: request.error_code,
        invalidated_token: 0,
    })
}
