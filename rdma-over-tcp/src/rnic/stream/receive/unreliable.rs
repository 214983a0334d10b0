//! Messages at a queue pair of [`QpService::Uc`](crate::rnic::QpService): one that cannot be executed is dropped, and
//! the stream continues. Errors of the stream itself end it, as with the other services.

use super::{Receiver, UlpduError, place_in};
use crate::{
    ddp::{Stag, TaggedSegment, UntaggedSegment},
    error::WireError,
    rdmap::SendKind,
    rnic::{
        memory::{region::Regions, registration::Access},
        objects::id::QpId,
        queues::qp::Qp,
        status::WcStatus,
        tables::Objects,
    },
};

impl Receiver {
    /// Processes a segment of a Write. A segment that is not permitted drops it and the rest of the message.
    #[cold]
    pub(super) fn unreliable_write(
        &mut self,
        qp: &mut Qp,
        regions: &Regions,
        segment: &TaggedSegment,
        payload: &[u8],
    ) -> Result<(), WireError> {
        let is_first = !self.writes.is_in_message();
        let placed = self.writes.accept(segment, payload.len()).map_err(|error| error.wire())?;
        self.dropped.is_write &= !is_first;
        if !payload.is_empty() && !self.dropped.is_write {
            let TaggedSegment { stag: Stag(token), offset, .. } = *segment;
            let (user, length) = (qp.user(), payload.len() as u32);
            let right = Access::REMOTE_WRITE;
            let region = &mut self.write_region;
            match regions.access_again(region, user, token, offset.0, length, right) {
                Ok(granted) if qp.permits(right) => {
                    granted.place(payload);
                    qp.stats.write_segments_placed += 1;
                    qp.stats.write_bytes_placed += payload.len() as u64;
                }
                _ => self.dropped.is_write = true,
            }
        }
        let is_placed = placed.message_octets.is_some_and(|octets| octets > 0);
        qp.stats.writes_placed += u64::from(is_placed && !self.dropped.is_write);
        self.write_octets = placed.message_octets.unwrap_or_default();
        Ok(())
    }

    /// Processes a segment of a Send. Without a receive that is long enough, the message is dropped; a receive that was
    /// taken is that of the next message.
    #[cold]
    pub(super) fn unreliable_send(
        &mut self,
        objects: &mut Objects,
        id: QpId,
        segment: &UntaggedSegment,
        kind: SendKind,
        payload: &[u8],
    ) -> Result<(), UlpduError> {
        if !self.sends.is_in_message() {
            self.dropped.is_send = objects.take_receive(id).is_none();
        }
        let place = self.sends.accept(segment, payload.len(), Some(u32::MAX));
        let place = place.map_err(|error| error.wire())?;
        let Some(qp) = objects.qps.get(id) else { return Ok(()) };
        let end = u64::from(place.offset) + payload.len() as u64;
        self.dropped.is_send |= end > u64::from(qp.receiving.length);
        if self.dropped.is_send {
            return Ok(());
        }
        if !place_in(&objects.regions, &mut self.local_region, qp, place.offset, payload) {
            let error = WireError::DdpLocalCatastrophic;
            return Err(UlpduError { error, receive_status: Some(WcStatus::LocalProtection) });
        }
        match place.message_octets {
            Some(bytes) => self.send_received(objects, id, kind, bytes),
            None => Ok(()),
        }
    }
}
