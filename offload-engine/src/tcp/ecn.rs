//! Explicit Congestion Notification (RFC 3168) of one connection, if the handshake has agreed on it.
//!
//! Receiver: a CE mark on data is echoed by ECE on everything that is sent, until CWR comes. Sender: ECE
//! reduces the congestion window as a loss does, once for the bytes in flight; the next new data has CWR,
//! also after a loss. New data goes out as ECT(0); retransmissions, window probes and segments
//! without data do not (§6.1.4 to §6.1.6).
//!
//! A super-segment may carry CWR: links leave it on the first piece only (§6.1.2), the kernel by
//! `VIRTIO_NET_HDR_GSO_ECN`.
//!
//! A loss among the bytes that ECE was answered for reduces the window once more, which §6.1.2 would spare:
//! so a reduction that turns out wrong can be undone without touching ECN's.

use super::{
    Connection, Ecn, Flags, Segment, congestion::Congestion, recovery::Recovery, seq::Position,
};

/// What a connection does about marks.
#[derive(Clone, Copy, Debug)]
pub(super) struct EcnState {
    enabled: bool,
    /// A mark has come, and no CWR since: everything sent carries ECE.
    echo: bool,
    /// The window was reduced: the next new data carries CWR.
    cwr_due: bool,
    /// The present loss episode has been signalled by CWR.
    episode_told: bool,
    /// What was in flight at the last reduction ends here: ECE up to it is answered.
    answered: Option<Position>,
}

impl EcnState {
    pub(super) const fn new(enabled: bool, echo: bool) -> Self {
        Self { enabled, echo: enabled && echo, cwr_due: false, episode_told: false, answered: None }
    }

    pub(super) const fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Whether ECE is due on what is sent.
    pub(super) const fn echo(&self) -> bool {
        self.echo
    }

    /// Whether the window was reduced, and some of the flight is still in flight (Linux' CWR).
    pub(super) fn is_answering(&self, una: Position) -> bool {
        self.answered.is_some_and(|until| una < until)
    }

    /// New data is being sent: its codepoint, and whether it has CWR.
    pub(super) fn on_new_data(&mut self, recovery: &Recovery) -> (Ecn, bool) {
        if !self.enabled {
            return (Ecn::NotCapable, false);
        }
        // RFC 3168 §6.1.2: whatever has reduced the window, CWR follows.
        let episode = recovery.is_fast() || recovery.is_repairing_timeout();
        let cwr = self.cwr_due || (episode && !self.episode_told);
        self.episode_told = episode;
        self.cwr_due = false;
        (Ecn::Capable0, cwr)
    }
}

impl Connection {
    /// The receiver's half: an acceptable segment has come (RFC 3168 §6.1.3).
    pub(super) fn note_marks(&mut self, segment: &Segment<'_>) {
        // §6.1.5: only data in the window counts. A pure ACK is never ECT.
        if !self.ecn.enabled || segment.payload.is_empty() {
            return;
        }
        if segment.flags.contains(Flags::CWR) {
            self.ecn.echo = false;
        }
        if segment.ecn == Ecn::Congestion {
            self.counters.ce_received += u64::from(segment.pieces());
            if !self.ecn.echo {
                self.ecn.echo = true;
                // The sender should know within a round trip, not after a delayed ACK.
                self.receiver.ack_now();
            }
        }
    }

    /// The sender's half: an acceptable acknowledgement that has newly acknowledged `acked` bytes, with
    /// `outstanding` in flight before (RFC 3168 §6.1.2).
    pub(super) fn answer_echo(&mut self, segment: &Segment<'_>, acked: u64, outstanding: u64) {
        if !self.ecn.enabled || !segment.flags.contains(Flags::ECE) {
            return;
        }
        self.counters.delivered_ce += acked.div_ceil(self.mss);
        // Up to and including `answered`, the peer has not seen our CWR yet.
        let answered = self.ecn.answered.is_some_and(|until| self.snd.una <= until);
        let episode = self.recovery.is_fast() || self.recovery.is_repairing_timeout();
        if answered || episode || outstanding == 0 {
            return;
        }
        // RFC 8511 allows a weaker answer than to a loss: controllers here have one for both.
        self.congestion.on_loss(self.now, outstanding);
        self.counters.ecn_reductions += 1;
        self.ecn.answered = Some(self.snd.max);
        self.ecn.cwr_due = true;
    }
}
