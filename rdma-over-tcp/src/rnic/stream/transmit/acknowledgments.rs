//! Acknowledgments on a stream of [`QpService::Rc`](crate::rnic::QpService), in both directions.
//!
//! Sends, Writes and immediate data are numbered from 0 at both ends, modulo 2^32, in the order of the stream. The
//! zero-length Write of the start-up has a number, too. The receiver counts the messages that it has executed. It
//! reports the count once per receive pass, also between the segments of another message.

use offload_engine::memory::Span;

use super::{ListBuilder, Transmitter};
use crate::{
    ddp::{HeaderOctets, Msn},
    error::WireError,
    mpa::GatherList,
    rdmap::{Acknowledgment, Syndrome, acknowledgment_header},
    rnic::status::WcStatus,
};

/// Acknowledgments of a stream.
#[derive(Debug)]
pub(super) struct Acknowledgments {
    /// Own messages passed to TCP.
    sent: u32,
    /// Own messages that the peer has executed.
    acknowledged: u32,
    /// True if the next own message waits for a receive of the peer: no request starts.
    is_paused: bool,
    /// Status with which the peer has failed a request. Its Terminate follows.
    reported: Option<WcStatus>,
    /// Messages of the peer executed.
    executed: u32,
    /// Value of `executed` in the last acknowledgment.
    announced: u32,
    /// Condition for the next acknowledgment, which is due for it alone.
    condition: Option<Syndrome>,
    msn: Msn,
}

impl Acknowledgments {
    pub(super) const fn new() -> Self {
        Self {
            sent: 0,
            acknowledged: 0,
            is_paused: false,
            reported: None,
            executed: 0,
            announced: 0,
            condition: None,
            msn: Msn::FIRST,
        }
    }

    /// Returns true if an acknowledgment has to be sent.
    pub(super) const fn is_due(&self) -> bool {
        self.executed != self.announced || self.condition.is_some()
    }

    /// Returns the acknowledgment that is due.
    fn take_due(&mut self) -> Option<HeaderOctets> {
        if !self.is_due() {
            return None;
        }
        self.announced = self.executed;
        let syndrome = self.condition.take().unwrap_or(Syndrome::Executed);
        let msn = self.msn;
        self.msn = msn.next();
        Some(acknowledgment_header(msn, &Acknowledgment { count: self.executed, syndrome }))
    }

    /// Processes the peer's count. Returns true if it has advanced.
    ///
    /// # Errors
    /// The count decreases, or exceeds the number of messages sent.
    fn advance(&mut self, count: u32) -> Result<bool, WireError> {
        let advanced = count.wrapping_sub(self.acknowledged);
        if advanced > self.sent.wrapping_sub(self.acknowledged) {
            return Err(WireError::OperationUnspecified);
        }
        self.acknowledged = count;
        if advanced > 0 {
            self.is_paused = false;
        }
        Ok(advanced > 0)
    }
}

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
        let Some(acknowledgments) = &mut self.acknowledgments else {
            return Err(WireError::OperationUnexpectedOpcode);
        };
        let was_paused = acknowledgments.is_paused;
        acknowledgments.advance(acknowledgment.count)?;
        let has_next = is_cutting || acknowledgments.sent != acknowledgments.acknowledged;
        match acknowledgment.syndrome {
            Syndrome::Executed => {}
            Syndrome::NotReady if has_next => acknowledgments.is_paused = true,
            Syndrome::NotReady => return Err(WireError::OperationUnspecified),
            Syndrome::Failed(number) => {
                let status = WcStatus::from_reported(number);
                if status.is_none() || status == Some(WcStatus::RnrRetryExceeded) && !has_next {
                    return Err(WireError::OperationUnspecified);
                }
                acknowledgments.reported = status;
            }
        }
        Ok(was_paused && !acknowledgments.is_paused)
    }

    /// Status with which the peer has failed a request, if it has.
    pub(in crate::rnic::stream) fn reported(&self) -> Option<WcStatus> {
        self.acknowledgments.as_ref().and_then(|acknowledgments| acknowledgments.reported)
    }
}
