//! Acknowledgments in the transmit path of [`QpService::Rc`](crate::rnic::QpService).

use offload_engine::memory::Span;

use super::{ListBuilder, OutboundMessage, Transmitter};
use crate::{
    error::WireError,
    mpa::GatherList,
    rdmap::{Acknowledgment, Syndrome},
    rnic::{
        queues::{qp::Qp, send_queue::Progress},
        status::WcStatus,
    },
};

impl Transmitter {
    /// Returns true if the queue pair is of [`QpService::Rc`](crate::rnic::QpService) or
    /// [`QpService::Uc`](crate::rnic::QpService).
    pub(in crate::rnic::stream) const fn is_rc(&self) -> bool {
        self.is_rc
    }

    /// Returns true if the peer acknowledges requests: [`QpService::Rc`](crate::rnic::QpService).
    pub(super) const fn is_acknowledged(&self) -> bool {
        self.acknowledgments.is_some()
    }

    /// Returns true if an acknowledgment has to be sent.
    #[inline]
    pub(in crate::rnic::stream) fn has_due_acknowledgment(&self) -> bool {
        self.acknowledgments.as_ref().is_some_and(|acknowledgments| acknowledgments.is_due())
    }

    /// Records the number of messages of the peer that were executed. Returns true if an acknowledgment has become due.
    pub(in crate::rnic::stream) fn set_executed(&mut self, count: u32) -> bool {
        self.acknowledgments.as_mut().is_some_and(|acknowledgments| {
            let was_due = acknowledgments.is_due();
            acknowledgments.executed = count;
            acknowledgments.is_due() && !was_due
        })
    }

    /// Schedules an acknowledgment for the next message of the peer, which waits for a receive.
    pub(in crate::rnic::stream) fn report_not_ready(&mut self) {
        self.report(Syndrome::NotReady);
    }

    /// Ends the effect of [`Transmitter::report_not_ready`].
    pub(in crate::rnic::stream) fn report_ready(&mut self) {
        if let Some(acknowledgments) = &mut self.acknowledgments {
            acknowledgments.end_wait();
        }
    }

    /// Schedules an acknowledgment for a request of the peer that has failed.
    pub(in crate::rnic::stream) fn report_failure(&mut self, status: WcStatus) {
        self.report(Syndrome::Failed(status.reported_number()));
    }

    fn report(&mut self, condition: Syndrome) {
        if let Some(acknowledgments) = &mut self.acknowledgments {
            acknowledgments.condition = Some(condition);
        }
    }

    /// Adds the acknowledgment that is due to the list, and suspends or resumes the message in progress.
    #[inline]
    pub(super) fn begin_list(
        &mut self,
        builder: &mut ListBuilder<impl GatherList<Payload = Span>>,
    ) {
        if self.is_acknowledged() {
            self.push_acknowledgment(builder);
            if let Some(acknowledgments) = &mut self.acknowledgments {
                acknowledgments.suspend_or_resume(&mut self.message);
            }
        }
    }

    /// Adds the acknowledgment that is due to the list.
    #[inline(never)]
    pub(super) fn push_acknowledgment(
        &mut self,
        builder: &mut ListBuilder<impl GatherList<Payload = Span>>,
    ) {
        let acknowledgments = self.acknowledgments.as_mut();
        if let Some(header) = acknowledgments.and_then(|it| it.take_due()) {
            self.push_header(builder, &header);
        }
    }

    /// Returns true if no request may start, because the peer has no receive for an earlier one, or a request is
    /// suspended for this reason.
    #[inline]
    pub(super) fn is_paused(&self) -> bool {
        self.acknowledgments.as_ref().is_some_and(|acknowledgments| {
            acknowledgments.is_paused || acknowledgments.suspended.is_some()
        })
    }

    /// Returns true if a request is suspended.
    pub(super) fn has_suspended(&self) -> bool {
        self.acknowledgments
            .as_ref()
            .is_some_and(|acknowledgments| acknowledgments.suspended.is_some())
    }

    /// Drops the suspended request.
    pub(super) fn abandon_suspended(&mut self) {
        if let Some(acknowledgments) = &mut self.acknowledgments {
            acknowledgments.suspended = None;
        }
    }

    /// Assigns its number to the message of the next request, which starts. All of the message is passed to TCP if
    /// `is_whole`.
    // Not inlined, so that requests of another service are not slower.
    #[inline(never)]
    pub(super) fn count_started(&mut self, qp: &mut Qp, source: &OutboundMessage, is_whole: bool) {
        if let Some(acknowledgments) = &self.acknowledgments
            && source.is_counted()
            && let Some(request) = qp.sends.next_mut()
        {
            request.msn = acknowledgments.sent;
        }
        if is_whole {
            self.count_sent(qp, source.is_counted());
        }
    }

    /// Advances the next request, whose message is passed to TCP. It waits for the peer.
    #[inline(never)]
    pub(super) fn count_sent(&mut self, qp: &mut Qp, is_counted: bool) {
        qp.sends.advance(Progress::Sent);
        if is_counted {
            self.message_sent();
        }
    }

    /// Records that a numbered message is passed to TCP.
    pub(super) fn message_sent(&mut self) {
        if let Some(acknowledgments) = &mut self.acknowledgments {
            acknowledgments.sent = acknowledgments.sent.wrapping_add(1);
        }
    }

    /// Processes an acknowledgment. Returns true if requests that could not start may start now.
    ///
    /// # Errors
    /// The count is not possible, or the condition applies to a message that was not sent.
    pub(in crate::rnic::stream) fn acknowledged(
        &mut self,
        acknowledgment: &Acknowledgment,
    ) -> Result<bool, WireError> {
        let is_cutting = self.is_cutting_request();
        match &mut self.acknowledgments {
            Some(acknowledgments) => acknowledgments.process(acknowledgment, is_cutting),
            None => Err(WireError::OperationUnexpectedOpcode),
        }
    }

    /// Status with which the peer has failed a request, if it has.
    pub(in crate::rnic::stream) fn reported(&self) -> Option<WcStatus> {
        self.acknowledgments.as_ref().and_then(|acknowledgments| acknowledgments.reported)
    }
}
