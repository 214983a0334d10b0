//! Receive path after a message that waits for its receive.

use alloc::boxed::Box;

use super::{Received, Receiver, UlpduOutcome};
use crate::{
    mpa::Decoder,
    rdmap,
    rdmap::{Inbound, Opcode, Terminate},
    rnic::{
        objects::id::QpId,
        stream::{failure::Failure, transmit::Transmitter, waiting::Waiting},
        tables::Objects,
    },
};

impl Receiver {
    /// Processes the FPDUs that end in `input`, after a message that waits for its receive. Responses to requests of
    /// this end and acknowledgments are executed; the rest is kept in order, while there is room for it. So two ends
    /// whose messages wait can still complete the Reads that their consumers depend on.
    ///
    /// # Errors
    /// As [`Receiver::receive`].
    pub(in crate::rnic::stream) fn receive_behind(
        &mut self,
        objects: &mut Objects,
        id: QpId,
        transmitter: &mut Transmitter,
        (decoder, waiting): (&mut Decoder, &mut Waiting),
        input: &mut &[u8],
    ) -> Result<Received, Box<Failure>> {
        self.counted(objects, id, decoder, |this, objects, decoder| {
            while !input.is_empty() && !waiting.is_full() {
                let ulpdu = match decoder.next(input) {
                    Ok(Some(ulpdu)) => ulpdu,
                    Ok(None) => break,
                    Err(error) => return Err(Box::new(Failure::new(Terminate::new(error.wire())))),
                };
                this.fpdus += 1;
                if !overtakes(ulpdu, transmitter.is_rc()) {
                    waiting.keep(ulpdu);
                    continue;
                }
                match this.handle_late(objects, id, transmitter, ulpdu)? {
                    UlpduOutcome::Placed | UlpduOutcome::MaySend => {}
                    UlpduOutcome::Terminate(terminate) => {
                        return Ok(Received::Terminate(terminate));
                    }
                    UlpduOutcome::RetriesExceeded => return Ok(Received::RetriesExceeded),
                }
            }
            Ok(Received::All { may_send: true })
        })
    }
}

/// Returns true if a ULPDU is processed although an earlier message waits for its receive. A Terminate of a peer of
/// [`QpService::Rc`](crate::rnic::QpService) is, because the message could wait without a limit.
fn overtakes(ulpdu: &[u8], is_rc: bool) -> bool {
    match rdmap::parse(ulpdu) {
        Ok(Inbound::ReadResponse { .. }) => true,
        Ok(Inbound::Extension { opcode, .. }) => opcode == Opcode::AtomicResponse,
        Ok(Inbound::Private { opcode, .. }) => is_rc && opcode == Opcode::Acknowledgment,
        Ok(Inbound::Terminate { .. }) => is_rc,
        _ => false,
    }
}
