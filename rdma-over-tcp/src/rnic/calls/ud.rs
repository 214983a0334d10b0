//! Calls of queue pairs of [`QpService::Ud`](crate::rnic::QpService).

use offload_engine::runtime::Urgency;

use super::post::data_length;
use crate::rnic::{
    Rnic,
    objects::id::QpId,
    queues::{
        qp::{Qp, QpState},
        ud::{Destination, UdAttributes},
        wr::{Data, SendWord, WqeKind, WrFlags},
    },
    status::VerbError,
    transport::Command,
};

impl Rnic {
    /// Returns the attributes of a queue pair of [`QpService::Ud`](crate::rnic::QpService).
    fn ud_attributes(&mut self, id: QpId) -> Result<&mut UdAttributes, VerbError> {
        let qp = self.objects.qps.get_mut(id).ok_or(VerbError::InvalidHandle)?;
        qp.ud.as_deref_mut().ok_or(VerbError::InvalidArgument)
    }

    /// Starts a queue pair of [`QpService::Ud`](crate::rnic::QpService): it receives the datagrams for its number
    /// ([`Rnic::set_qp_numbers`]) until a reset. Payloads have at most `payload_max` octets; a longer request fails.
    /// Posts are accepted after [`Rnic::allow_sends`].
    ///
    /// # Errors
    /// [`VerbError::InvalidHandle`]; [`VerbError::InvalidArgument`]: another service, no number, or no octets.
    pub fn start_datagrams(&mut self, id: QpId, payload_max: u32) -> Result<(), VerbError> {
        let number = self.objects.qps.get(id).and_then(|qp| qp.number);
        let number = number.filter(|_| payload_max > 0).ok_or(VerbError::InvalidArgument)?;
        self.ud_attributes(id)?.payload_max = payload_max;
        self.objects.datagrams.numbers.insert(number, id);
        Ok(())
    }

    /// Closes the port of queue pairs of [`QpService::Ud`](crate::rnic::QpService) that
    /// [`Driver::open_datagrams`](crate::adapter::Driver::open_datagrams) has opened. Call it after the last of them
    /// was closed.
    pub fn close_datagrams(&mut self, port: u16) {
        self.commands.push_back(Command::CloseDatagrams { port });
    }

    /// Cancels the close of a port that the transport has not executed.
    pub(crate) fn keep_datagrams(&mut self, port: u16) {
        self.commands.retain(|command| *command != Command::CloseDatagrams { port });
    }

    /// Sets the key that datagrams to a queue pair of [`QpService::Ud`](crate::rnic::QpService) must contain, in any
    /// state. A reset sets it to 0.
    ///
    /// # Errors
    /// [`VerbError::InvalidHandle`]; [`VerbError::InvalidArgument`]: another service.
    pub fn set_datagram_key(&mut self, id: QpId, key: u32) -> Result<(), VerbError> {
        self.ud_attributes(id)?.key = key;
        Ok(())
    }

    /// Returns true if a request of a queue pair of [`QpService::Ud`](crate::rnic::QpService) has failed. Its other
    /// requests were flushed, and posts are flushed until [`Rnic::allow_sends`] or a reset. Datagrams are received.
    #[must_use]
    pub fn have_sends_failed(&self, id: QpId) -> bool {
        let ud = self.objects.qps.get(id).and_then(|qp| qp.ud.as_ref());
        ud.is_some_and(|ud| ud.has_failed)
    }

    /// Returns true if the queue pair is of [`QpService::Ud`](crate::rnic::QpService).
    pub(super) fn is_datagram_qp(&self, id: QpId) -> bool {
        self.objects.qps.get(id).is_some_and(|qp| qp.ud.is_some())
    }

    /// Allows posts to a queue pair of this service, or again after a failure.
    pub(super) fn allow_datagrams(&mut self, id: QpId) -> Result<(), VerbError> {
        self.ud_attributes(id)?.has_failed = false;
        if let Some(qp) = self.objects.qps.get_mut(id).filter(|qp| qp.state == QpState::Idle) {
            qp.state = QpState::Connected;
        }
        Ok(())
    }

    /// Posts a datagram. It completes when the transport has it, also if it is lost.
    ///
    /// # Errors
    /// As [`Rnic::post`] for a Send; [`VerbError::InvalidArgument`]: another service.
    pub fn post_datagram(
        &mut self,
        id: QpId,
        context: u64,
        (destination, immediate): (Destination, Option<[u8; 4]>),
        data: Data<'_>,
        flags: WrFlags,
    ) -> (Result<(), VerbError>, Urgency) {
        let (qp, length) = match self.checked_datagram(id, data) {
            Ok(checked) => checked,
            Err(error) => return (Err(error), self.schedule_qp(id)),
        };
        let kind = WqeKind::Send { word: immediate.map_or(SendWord::None, SendWord::Immediate) };
        qp.push_request(context, kind, (data, length), flags);
        let is_over = qp.state == QpState::Error;
        let urgency = match qp.ud.as_mut().filter(|ud| !is_over && !ud.has_failed) {
            None => self.flush_late(id),
            Some(ud) => {
                ud.destinations.push_back(destination);
                match flags.contains(WrFlags::DEFER) {
                    true => Urgency::None,
                    false => self.schedule_qp(id),
                }
            }
        };
        (Ok(()), urgency)
    }

    /// Checks a datagram as [`Rnic::post_datagram`] does, without posting it. See [`Rnic::check_post`].
    ///
    /// # Errors
    /// As [`Rnic::post_datagram`].
    pub fn check_datagram(&mut self, id: QpId, data: Data<'_>) -> Result<(), VerbError> {
        self.checked_datagram(id, data).map(drop)
    }

    fn checked_datagram(&mut self, id: QpId, data: Data<'_>) -> Result<(&mut Qp, u32), VerbError> {
        let limits = self.config.limits;
        let qp = self.check_any_sender(id)?;
        if qp.ud.is_none() {
            return Err(VerbError::InvalidArgument);
        }
        let length = data_length(qp, &limits, false, data)?;
        Ok((qp, length))
    }

    /// Schedules the transmission of the datagrams of a queue pair without a connection. The notifications that its
    /// posts have caused are due at once.
    #[cold]
    pub(super) fn schedule_datagrams(&mut self, id: QpId) -> Urgency {
        let ud = self.objects.qps.get_mut(id).and_then(|qp| qp.ud.as_mut());
        match ud.filter(|ud| !ud.holds_sends && !ud.destinations.is_empty()) {
            Some(ud) => {
                if !core::mem::replace(&mut ud.is_scheduled, true) {
                    self.objects.datagrams.scheduled.push_back(id);
                }
                Urgency::Now
            }
            None if self.objects.outbox.0.is_empty() => Urgency::None,
            None => Urgency::Now,
        }
    }
}
