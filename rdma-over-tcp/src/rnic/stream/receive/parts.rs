//! Segments whose payload is placed in parts, as it arrives.
//!
//! A long segment without CRC is processed as a sequence of shorter ones: each part is checked as a segment of its own,
//! only the last one has the L bit. Before the first octet is placed, the whole segment is checked. A segment that
//! fails this check is gathered, and fails as any other.

use alloc::boxed::Box;

use super::{
    Receiver, UlpduError,
    open_segment::{Kind, OpenSegment},
};
use crate::{
    ddp::HeaderCopy,
    mpa::Decoder,
    rdmap::{self, Inbound, Terminate},
    rnic::{
        memory::registration::Access,
        objects::id::QpId,
        queues::{sges::pieces, wr::Sge},
        stream::{
            failure::Failure,
            transmit::{Response, Transmitter},
        },
        tables::Objects,
    },
};

/// Octets of the shortest ULPDU that is taken in parts. A shorter one is gathered faster.
const PARTS_MIN: usize = 4096;

/// Failure of the stream by an error in a segment that is taken in parts.
#[cold]
fn failure(open: &OpenSegment, UlpduError { error, receive_status }: UlpduError) -> Box<Failure> {
    let terminate = Some(Terminate::for_segment(error, open.header, open.ulpdu_octets));
    Box::new(Failure { terminate, receive_status, truncation: None })
}

impl Receiver {
    /// Consumes octets of a segment that is taken in parts, or that may be. Returns `None` if it may not, and consumes
    /// nothing; else true if data may be sent that could not be sent before.
    ///
    /// # Errors
    /// As [`Receiver::receive`].
    #[inline(never)]
    pub(super) fn take_part(
        &mut self,
        objects: &mut Objects,
        id: QpId,
        transmitter: &mut Transmitter,
        decoder: &mut Decoder,
        input: &mut &[u8],
    ) -> Result<Option<bool>, Box<Failure>> {
        if let Some(payload) = decoder.take_open(input) {
            return self.place_part(objects, id, transmitter, payload).map(Some);
        }
        // The first FPDU establishes the connection.
        let start = decoder.start(input).filter(|_| self.has_received());
        let Some(start) = start.filter(|start| start.ulpdu_octets >= PARTS_MIN) else {
            return Ok(None);
        };
        let Some(open) =
            self.check_whole(objects, id, transmitter, start.octets, start.ulpdu_octets)
        else {
            return Ok(None);
        };
        let payload = &start.octets[open.header.len()..];
        self.open = Some(open);
        decoder.open(input);
        self.place_part(objects, id, transmitter, payload).map(Some)
    }

    /// Checks the whole segment that begins with `octets`. `None`: it may not be taken in parts.
    fn check_whole(
        &mut self,
        objects: &mut Objects,
        id: QpId,
        transmitter: &Transmitter,
        octets: &[u8],
        ulpdu_octets: usize,
    ) -> Option<OpenSegment> {
        let header = HeaderCopy::of(octets)?;
        let left = ulpdu_octets.checked_sub(header.len()).filter(|left| *left > 0)?;
        let kind = match rdmap::parse(octets).ok()? {
            Inbound::Write { segment, .. } => {
                self.writes.clone().accept(&segment, left).ok()?;
                Kind::Write(segment)
            }
            Inbound::ReadResponse { segment, .. } => {
                let Response::Read(pending) = &transmitter.outstanding.front()?.response else {
                    return None;
                };
                pending.clone().accept(&segment, left).ok()?;
                Kind::ReadResponse(segment)
            }
            Inbound::Send { segment, kind, .. } => {
                let capacity = Some(objects.take_receive(id)?);
                self.sends.clone().accept(&segment, left, capacity).ok()?;
                Kind::Send(segment, kind)
            }
            _ => return None,
        };
        let open = OpenSegment { kind, header, ulpdu_octets, left };
        self.is_accessible(objects, id, transmitter, &open).then_some(open)
    }

    /// Returns true if the memory for the payload of a segment is accessible.
    fn is_accessible(
        &mut self,
        objects: &Objects,
        id: QpId,
        transmitter: &Transmitter,
        open: &OpenSegment,
    ) -> bool {
        let Objects { qps, regions, .. } = objects;
        let Some(qp) = qps.get(id) else { return false };
        let (user, octets) = (qp.user(), open.left as u32);
        let local_region = &mut self.local_region;
        let is_writable = |piece: Sge| {
            let Sge { token, address, length } = piece;
            let right = Access::LOCAL_WRITE;
            regions.access_again(local_region, user, token, address, length, right).is_ok()
        };
        match &open.kind {
            Kind::Write(segment) => {
                let right = Access::REMOTE_WRITE;
                let (token, address) = (segment.stag.0, segment.offset.0);
                let region = &mut self.write_region;
                let granted = regions.access_again(region, user, token, address, octets, right);
                (!qp.is_rc() || qp.permits(right)) && granted.is_ok()
            }
            Kind::ReadResponse(_) => {
                let Some(oldest) = transmitter.outstanding.front() else { return false };
                let (Response::Read(pending), Some(serial)) = (&oldest.response, oldest.serial)
                else {
                    return false;
                };
                pieces(qp.sends.sges(serial), pending.received(), octets).all(is_writable)
            }
            Kind::Send(segment, _) => qp.receiving.pieces(segment.offset, octets).all(is_writable),
        }
    }

    /// Places a part of the open segment; without one, the octets follow its payload. Returns true if data may be sent
    /// that could not be sent before.
    fn place_part(
        &mut self,
        objects: &mut Objects,
        id: QpId,
        transmitter: &mut Transmitter,
        payload: &[u8],
    ) -> Result<bool, Box<Failure>> {
        let Some(mut open) = self.open.filter(|_| !payload.is_empty()) else { return Ok(false) };
        let part = open.take(payload.len());
        let is_end = open.left == 0;
        self.open = (!is_end).then_some(open);
        self.fpdus += u64::from(is_end);
        let placed = match &part {
            Kind::Write(segment) => {
                let qp = objects.qps.get(id);
                let before = qp.map_or(0, |qp| qp.stats.write_segments_placed);
                let written = self.write(objects, id, segment, payload).map_err(UlpduError::from);
                // Counted as one segment, with its last part.
                if let Some(qp) = objects.qps.get_mut(id).filter(|_| !is_end) {
                    qp.stats.write_segments_placed = before;
                }
                written
            }
            Kind::ReadResponse(segment) => {
                self.read_response(objects, id, transmitter, segment, payload)
            }
            Kind::Send(segment, kind) => self.send(objects, id, segment, *kind, payload),
        };
        match placed {
            Ok(()) => Ok(matches!(part, Kind::ReadResponse(_))),
            Err(error) => Err(failure(&open, error)),
        }
    }
}
