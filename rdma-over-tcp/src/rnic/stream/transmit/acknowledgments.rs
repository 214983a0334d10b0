//! State of the acknowledgments on a stream of [`QpService::Rc`](crate::rnic::QpService), in both directions.
//!
//! Sends, Writes and immediate data are numbered from 0 at both ends, modulo 2^32, in the order of the stream. The
//! zero-length Write of the start-up has a number, too. The receiver counts the messages that it has executed. It
//! reports the count once per pass of the transport, also between the segments of another message.
//!
//! A sender whose message waits for a receive starts no request, and suspends the one that is partly sent. Responses
//! and acknowledgments continue. So the data behind the waiting message is limited to that in flight. The sender
//! continues after a higher count, or after the same count without the condition: the wait is over, but the message is
//! not complete.

use super::message::Message;
use crate::{
    ddp::{HeaderOctets, Msn},
    error::WireError,
    rdmap::{Acknowledgment, Syndrome, acknowledgment_header},
    rnic::status::WcStatus,
};

/// Acknowledgments of a stream.
#[derive(Debug)]
pub(super) struct Acknowledgments {
    /// Own messages passed to TCP.
    pub(super) sent: u32,
    /// Own messages that the peer has executed.
    acknowledged: u32,
    /// True if the next own message waits for a receive of the peer: no request starts or continues.
    pub(super) is_paused: bool,
    /// Request that was partly sent when the pause began. No other one starts before its end.
    pub(super) suspended: Option<Message>,
    /// Status with which the peer has failed a request. Its Terminate follows.
    pub(super) reported: Option<WcStatus>,
    /// Messages of the peer executed.
    pub(super) executed: u32,
    /// Value of `executed` in the last acknowledgment.
    announced: u32,
    /// Condition for the next acknowledgment, which is due for it alone.
    pub(super) condition: Option<Syndrome>,
    /// True if the last acknowledgment has reported that a message of the peer waits.
    is_wait_announced: bool,
    msn: Msn,
}

impl Acknowledgments {
    pub(super) const fn new() -> Self {
        Self {
            sent: 0,
            acknowledged: 0,
            is_paused: false,
            suspended: None,
            reported: None,
            executed: 0,
            announced: 0,
            condition: None,
            is_wait_announced: false,
            msn: Msn::FIRST,
        }
    }

    /// Returns true if an acknowledgment has to be sent.
    pub(super) const fn is_due(&self) -> bool {
        self.executed != self.announced || self.condition.is_some()
    }

    /// Returns the acknowledgment that is due.
    pub(super) fn take_due(&mut self) -> Option<HeaderOctets> {
        if !self.is_due() {
            return None;
        }
        self.announced = self.executed;
        let syndrome = self.condition.take().unwrap_or(Syndrome::Executed);
        self.is_wait_announced = syndrome == Syndrome::NotReady;
        let msn = self.msn;
        self.msn = msn.next();
        Some(acknowledgment_header(msn, &Acknowledgment { count: self.executed, syndrome }))
    }

    /// Records that no message of the peer waits. If the peer was informed of the wait, it is informed of the
    /// end.
    pub(super) fn end_wait(&mut self) {
        if self.condition == Some(Syndrome::NotReady) {
            self.condition = None;
        }
        if self.is_wait_announced && self.condition.is_none() {
            self.condition = Some(Syndrome::Executed);
        }
    }

    /// Suspends the message in progress if the pause has begun, or resumes the suspended one.
    pub(super) fn suspend_or_resume(&mut self, message: &mut Option<Message>) {
        if self.is_paused {
            if message.as_ref().is_some_and(|message| message.source.is_counted()) {
                self.suspended = message.take();
            }
        } else if message.is_none() {
            *message = self.suspended.take();
        }
    }

    /// Processes an acknowledgment of the peer. `is_cutting` is true if a request is partly passed to TCP. Returns true
    /// if requests that could not start may start now.
    ///
    /// # Errors
    /// The count decreases, or exceeds the number of messages sent; or the condition applies to a message that was not
    /// sent.
    pub(super) fn process(
        &mut self,
        acknowledgment: &Acknowledgment,
        is_cutting: bool,
    ) -> Result<bool, WireError> {
        let &Acknowledgment { count, syndrome } = acknowledgment;
        let was_paused = self.is_paused;
        let advanced = count.wrapping_sub(self.acknowledged);
        if advanced > self.sent.wrapping_sub(self.acknowledged) {
            return Err(WireError::OperationUnspecified);
        }
        self.acknowledged = count;
        if advanced > 0 || syndrome == Syndrome::Executed {
            self.is_paused = false;
        }
        let has_next = is_cutting || self.sent != self.acknowledged;
        match syndrome {
            Syndrome::Executed => {}
            Syndrome::NotReady if has_next => self.is_paused = true,
            Syndrome::NotReady => return Err(WireError::OperationUnspecified),
            Syndrome::Failed(number) => {
                let status = WcStatus::from_reported(number);
                if status.is_none() || status == Some(WcStatus::RnrRetryExceeded) && !has_next {
                    return Err(WireError::OperationUnspecified);
                }
                self.reported = status;
            }
        }
        Ok(was_paused && !self.is_paused)
    }
}
