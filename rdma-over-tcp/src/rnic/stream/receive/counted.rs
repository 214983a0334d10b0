//! Writes at a queue pair of [`QpService::Rc`](crate::rnic::QpService): they need a right of the queue pair, and are
//! counted for the acknowledgment.

use super::Receiver;
use crate::{
    ddp::TaggedSegment,
    error::WireError,
    rnic::{
        memory::{region::Regions, registration::Access},
        queues::qp::Qp,
    },
};

impl Receiver {
    /// Processes a segment of a Write.
    // Not inlined: the Write of the other service stays as small as it is without acknowledgments.
    #[inline(never)]
    pub(super) fn counted_write(
        &mut self,
        (qp, regions): (&mut Qp, &Regions),
        segment: &TaggedSegment,
        payload: &[u8],
    ) -> Result<(), WireError> {
        if qp.is_unreliable() {
            return self.unreliable_write(qp, regions, segment, payload);
        }
        if !payload.is_empty() && !qp.permits(Access::REMOTE_WRITE) {
            return Err(WireError::OperationStreamCatastrophic);
        }
        let placed = self.place_write(qp, regions, segment, payload)?;
        if let Some(octets) = placed.message_octets {
            self.write_octets = octets;
            self.executed = self.executed.wrapping_add(1);
        }
        Ok(())
    }
}
