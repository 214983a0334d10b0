//! Explicit Congestion Notification (RFC 3168) of one connection, if negotiated by the handshake.
//!
//! Receiver: a CE mark on data is echoed by ECE on every segment sent, until CWR arrives. Sender: ECE reduces the
//! congestion window as a loss does, once per flight; the next new data carries CWR, also after a loss. New data is
//! sent as ECT(0); retransmissions, window probes and segments without data are not (§6.1.4 to §6.1.6).
//!
//! A GSO packet may carry CWR: links set it on the first segment only (§6.1.2), the kernel by `VIRTIO_NET_HDR_GSO_ECN`.
//!
//! A loss in a flight already reduced for ECE reduces the window again, which §6.1.2 does not require. A spurious loss
//! reduction can then be undone without undoing ECN's.

use super::{
    Connection, Ecn, Flags, Segment, congestion::Congestion, recovery::Recovery, seq::Position,
};

/// ECN state of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct EcnState {
    enabled: bool,
    /// True after a mark until CWR arrives: every segment sent carries ECE.
    echo: bool,
    /// True after a window reduction: the next new data carries CWR.
    cwr_due: bool,
    /// True if CWR was sent for the current loss episode.
    episode_signaled: bool,
    /// End of the flight at the last reduction: further ECE up to it is ignored.
    reduction_end: Option<Position>,
}

impl EcnState {
    pub(super) const fn new(enabled: bool, echo: bool) -> Self {
        Self {
            enabled,
            echo: enabled && echo,
            cwr_due: false,
            episode_signaled: false,
            reduction_end: None,
        }
    }

    pub(super) const fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// True if sent segments carry ECE.
    pub(super) const fn echo(&self) -> bool {
        self.echo
    }

    /// True if the window was reduced and part of that flight is unacknowledged (CWR state of Linux).
    pub(super) fn is_reduced(&self, una: Position) -> bool {
        self.reduction_end.is_some_and(|until| una < until)
    }

    /// Returns the codepoint of new data, and true if it carries CWR.
    pub(super) fn on_new_data(&mut self, recovery: &Recovery) -> (Ecn, bool) {
        if !self.enabled {
            return (Ecn::NotCapable, false);
        }
        // RFC 3168 §6.1.2: CWR follows any reduction of the window.
        let episode = recovery.is_fast() || recovery.is_repairing_timeout();
        let cwr = self.cwr_due || (episode && !self.episode_signaled);
        self.episode_signaled = episode;
        self.cwr_due = false;
        (Ecn::Capable0, cwr)
    }
}

impl Connection {
    /// Receiver: processes the ECN bits of an acceptable segment (RFC 3168 §6.1.3).
    pub(super) fn process_ce(&mut self, segment: &Segment<'_>) {
        // §6.1.5: only data in the window is processed. A pure ACK is never ECT.
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
                // The echo must reach the sender within an RTT, not after a delayed ACK.
                self.receiver.ack_now();
            }
        }
    }

    /// Sender: processes ECE on an acceptable acknowledgment of `acked` new bytes, with `outstanding` in flight before
    /// (RFC 3168 §6.1.2).
    pub(super) fn process_ece(&mut self, segment: &Segment<'_>, acked: u64, outstanding: u64) {
        if !self.ecn.enabled || !segment.flags.contains(Flags::ECE) {
            return;
        }
        self.counters.delivered_ce += acked.div_ceil(self.mss);
        // Up to and including the end of that flight, the peer has not received our CWR.
        let is_reduced = self.ecn.reduction_end.is_some_and(|until| self.snd.una <= until);
        let episode = self.recovery.is_fast() || self.recovery.is_repairing_timeout();
        if is_reduced || episode || outstanding == 0 {
            return;
        }
        // RFC 8511 allows a weaker response than to a loss; the controllers here use one for both.
        self.congestion.on_loss(self.now, outstanding);
        self.counters.ecn_reductions += 1;
        self.ecn.reduction_end = Some(self.snd.max);
        self.ecn.cwr_due = true;
    }
}
