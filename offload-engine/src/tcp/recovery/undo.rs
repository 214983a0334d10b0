//! Detection of spurious losses and timeouts.
//!
//! Three indications. Timestamps: the first acknowledgment of a retransmission echoes a segment sent before it (Eifel,
//! RFC 3522). DSACK: each retransmitted byte has arrived twice (RFC 2883, RFC 3708). F-RTO: see [`FRto`].

use super::rack;
use crate::{tcp::seq::Position, time::Instant};

/// State for undoing the last reduction of the congestion window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Undo {
    /// SND.UNA at the start of the episode.
    marker: Position,
    /// Time of the first retransmission.
    resent_at: Option<Instant>,
    /// Retransmitted bytes not reported as duplicates.
    unreported: u64,
    /// True after the first acknowledgment of a retransmission.
    evaluated: bool,
    /// True if the episode includes a timeout.
    pub(super) timeout: bool,
}

impl Undo {
    pub(super) const fn new(una: Position, timeout: bool) -> Self {
        Self { marker: una, resent_at: None, unreported: 0, evaluated: false, timeout }
    }

    pub(super) fn resent(&mut self, bytes: u64, now: Instant) {
        self.resent_at.get_or_insert(now);
        self.unreported += bytes;
    }

    /// True if a transmission at `sent_at` belongs to the episode.
    pub(super) fn covers(&self, sent_at: Instant) -> bool {
        self.resent_at.is_some_and(|first| first <= sent_at)
    }

    /// Processes the acknowledgment of a retransmission, by a segment that echoes `echo`. Returns true if the echo is
    /// older than the first retransmission (RFC 3522 §3.2 steps 4 and 5). Only the first such segment counts.
    pub(super) fn is_echo_older(&mut self, echo: Option<u32>) -> bool {
        let first = !core::mem::replace(&mut self.evaluated, true);
        let older = |echo| self.resent_at.is_some_and(|at| rack::is_older(echo, at));
        first && echo.is_some_and(older)
    }

    /// Records that bytes `start..end` have arrived twice.
    pub(super) fn duplicate(&mut self, start: Position, end: Position) {
        if end > self.marker {
            let bytes = end.since(start.max(self.marker));
            self.unreported = self.unreported.saturating_sub(bytes);
        }
    }

    /// True if every retransmitted byte has arrived twice.
    pub(super) const fn is_all_reported(&self) -> bool {
        self.resent_at.is_some() && self.unreported == 0
    }
}

/// State of F-RTO (RFC 5682), in its SACK variant if SACK is enabled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FRto {
    /// Inactive, or the loss was real.
    Off,
    /// The first segment is retransmitted, and its acknowledgment is pending (step 2).
    First,
    /// The first segment was acknowledged. New data is sent before further retransmissions, and the next
    /// acknowledgment decides (step 3).
    Second {
        /// True if new data was sent.
        sent: bool,
    },
}

/// Input of [`FRto`] from an acknowledgment.
#[derive(Clone, Copy, Debug)]
pub(super) struct FRtoEvent {
    /// True if SND.UNA has advanced.
    pub(super) advanced: bool,
    /// True if everything in flight at the timeout is acknowledged.
    pub(super) complete: bool,
    /// True if data was selectively acknowledged, or for a duplicate ACK.
    pub(super) duplicate: bool,
    pub(super) sack: bool,
}

impl FRto {
    /// RFC 5682 §2.1 and §3.1, steps 2 and 3, without the detection of a spurious timeout.
    pub(super) const fn next(self, event: FRtoEvent) -> Self {
        let FRtoEvent { advanced, complete, duplicate, sack } = event;
        match self {
            // With SACK a duplicate only reports which bytes have arrived.
            Self::First if advanced && !complete => Self::Second { sent: false },
            Self::First if !advanced && (sack || !duplicate) => Self::First,
            Self::Second { .. } if !advanced && !duplicate => self,
            Self::Off | Self::First | Self::Second { .. } => Self::Off,
        }
    }
}
