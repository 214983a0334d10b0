//! Frames received by the host: state that it may have processed, and state that it must have processed.

use super::connection::{Connection, Syn, unwrap};
use super::packet::Packet;

impl Connection {
    /// Processes an intact received segment. `may_bind`: the host must process the segment if it is acceptable.
    pub(super) fn arrived(&mut self, time_ns: u64, packet: &Packet<'_>, may_bind: bool) {
        self.receiving.unanswered = true;
        if packet.rst {
            self.is_reset = true;
            return;
        }
        if packet.syn {
            self.syn_arrived(packet);
        }
        let is_young = self.stamp_arrived(packet);
        let (Some(agreed), false) = (self.agreed(), packet.syn) else { return };
        let start = unwrap(self.receiving.next, packet.seq);
        let is_binding = may_bind && is_young && self.is_acceptable(start, packet);
        if let Some(ack) = packet.ack {
            let window = u64::from(packet.window) << agreed.their_scale;
            self.acknowledged(time_ns, ack, window, is_binding);
        }
        // A segment with an old acknowledgment may be dropped as a whole (RFC 5961 §5.2; smoltcp always does).
        let una = self.sending.una;
        let is_old = packet.ack.is_some_and(|ack| unwrap(self.sending.max, ack) < una);
        self.note_marks(time_ns, start, packet, is_binding && !is_old);
        self.data_arrived(start, packet);
    }

    fn syn_arrived(&mut self, packet: &Packet<'_>) {
        if self.theirs.is_some() {
            return;
        }
        self.opened(Syn::of(packet));
        if let (Some(ack), Some(_)) = (packet.ack, self.ours) {
            let una = unwrap(self.sending.max, ack);
            if una == self.sending.max {
                self.sending.una = una;
                self.sending.edge = una + u64::from(packet.window);
            }
        }
    }

    /// True if no timestamp that the host may have processed makes this one old (RFC 7323 §5.3).
    fn stamp_arrived(&mut self, packet: &Packet<'_>) -> bool {
        let Some((value, _)) = packet.timestamps else { return true };
        let stamps = &mut self.stamps;
        // Usually the same millisecond; this check saves an insertion.
        if stamps.newest_arrived != Some(value) {
            stamps.arrived.insert(value);
        }
        let newest = *stamps.newest_arrived.get_or_insert(value);
        let is_young = value.wrapping_sub(newest).cast_signed() >= 0;
        if is_young {
            stamps.newest_arrived = Some(value);
        }
        is_young
    }

    /// True if RFC 9293 §3.10.7.4 accepts it, regardless of the other segments that the host has processed.
    fn is_acceptable(&self, start: u64, packet: &Packet<'_>) -> bool {
        let receiving = &self.receiving;
        let end = start + packet.sequence_len();
        // Data beyond the window may have arrived, but need not have been accepted.
        if start == end {
            let is_next = start == receiving.next && start <= receiving.edge;
            is_next || (start > receiving.next && start < receiving.edge)
        } else {
            end > receiving.next && start < receiving.edge
        }
    }

    fn acknowledged(&mut self, time_ns: u64, ack: u32, window: u64, is_binding: bool) {
        let sending = &mut self.sending;
        let una = unwrap(sending.max, ack);
        if una > sending.max {
            return;
        }
        sending.una = sending.una.max(una);
        sending.edge = sending.edge.max(una + window);
        let newest = sending.una_pending.back().map_or(sending.una_known, |&(_, una)| una);
        if is_binding && una > newest {
            sending.una_pending.push_back((time_ns, una));
        }
    }

    /// RFC 3168 §6.1.3: marks count on data; CWR arrives on new data and ends the echo. A host with several
    /// queues may process frames of one instant in another order, and one that migrates a connection holds
    /// frames back. The echo is therefore due once the marked bytes are acknowledged.
    fn note_marks(&mut self, time_ns: u64, start: u64, packet: &Packet<'_>, is_binding: bool) {
        const CE: u8 = 3;
        if packet.cwr {
            self.marks.echo_due = None;
            self.marks.cwr_at = Some(time_ns);
        }
        if packet.ip.ecn == CE && !packet.payload.is_empty() {
            self.marks.ce_received = true;
            let is_after_cwr = self.marks.cwr_at != Some(time_ns);
            if is_binding && is_after_cwr && self.marks.echo_due.is_none() {
                self.marks.echo_due = Some((time_ns, start + packet.payload.len() as u64));
            }
        }
    }

    fn data_arrived(&mut self, start: u64, packet: &Packet<'_>) {
        let receiving = &mut self.receiving;
        let end = start + packet.payload.len() as u64;
        if packet.fin {
            receiving.fin = Some(end);
        }
        receiving.arrived.insert(start, end);
        if let Some((_, high)) = receiving.arrived.around(receiving.next) {
            receiving.next = high;
        }
        if receiving.fin == Some(receiving.next) {
            receiving.next += 1;
        }
    }
}
