//! Acknowledgments in the transmit path of [`QpService::Rc`](crate::rnic::QpService).

use offload_engine::memory::Span;

use super::{ListBuilder, Transmitter};
use crate::{
    error::WireError,
    mpa::GatherList,
    rdmap::{Acknowledgment, Syndrome},
    rnic::status::WcStatus,
};

impl Transmitter {
    /// Returns true if the queue pair is of [`QpService::Rc`](crate::rnic::QpService).
    pub(in crate::rnic::stream) const fn is_rc(&self) -> bool {
        self.acknowledgments.is_some()
    }

    /// Returns true if an acknowledgment has to be sent.
    #[inline]
    pub(in crate::rnic::stream) fn has_due_acknowledgment(&self) -> bool {
        self.acknowledgments.as_ref().is_some_and(|acknowledgments| acknowledgments.is_due())
    }

    /// Records the number of messages of the peer that were executed.
    #[inline]
    pub(in crate::rnic::stream) fn set_executed(&mut self, count: u32) {
        if let Some(acknowledgments) = &mut self.acknowledgments {
            acknowledgments.executed = count;
        }
    }

    /// Schedules an acknowledgment for the next message of the peer, which waits for a receive.
    pub(in crate::rnic::stream) fn report_not_ready(&mut self) {
        self.report(Syndrome::NotReady);
    }

    /// Cancels the effect of [`Transmitter::report_not_ready`], if it was not sent yet.
    pub(in crate::rnic::stream) fn cancel_not_ready(&mut self) {
        if let Some(acknowledgments) = &mut self.acknowledgments
            && acknowledgments.condition == Some(Syndrome::NotReady)
        {
            acknowledgments.condition = None;
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

    /// Adds the acknowledgment that is due to the list.
    #[inline]
    pub(super) fn push_acknowledgment(
        &mut self,
        builder: &mut ListBuilder<impl GatherList<Payload = Span>>,
    ) {
        let acknowledgments = self.acknowledgments.as_mut();
        if let Some(header) = acknowledgments.and_then(|it| it.take_due()) {
            self.push_header(builder, &header);
        }
    }

    /// Returns true if no request may start, because the peer has no receive for an earlier one.
    #[inline]
    pub(super) fn is_paused(&self) -> bool {
        self.acknowledgments.as_ref().is_some_and(|acknowledgments| acknowledgments.is_paused)
    }

    /// Number of the next message; `None`: messages are not numbered.
    #[inline]
    pub(super) fn next_number(&self) -> Option<u32> {
        self.acknowledgments.as_ref().map(|acknowledgments| acknowledgments.sent)
    }

    /// Records that a numbered message is passed to TCP.
    #[inline]
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
