//! Whether an episode of recovery answered a loss at all.
//!
//! Three signals show that it did not. Timestamps: the first acknowledgement of something resent
//! echoes a segment sent before (Eifel, RFC 3522). Reports of duplicates: each byte that was resent has
//! arrived twice (RFC 2883, RFC 3708). F-RTO: see [`FRto`].

use super::rack;
use crate::{tcp::seq::Position, time::Instant};

/// What is remembered of the last reduction of the congestion window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Undo {
    /// SND.UNA when the episode began.
    marker: Position,
    /// When the first byte was resent.
    resent_at: Option<Instant>,
    /// Bytes resent that no duplicate was reported of.
    unreported: u64,
    /// The first acknowledgement of something resent has come.
    judged: bool,
    /// A time-out was part of it.
    pub(super) timeout: bool,
}

impl Undo {
    pub(super) const fn new(una: Position, timeout: bool) -> Self {
        Self { marker: una, resent_at: None, unreported: 0, judged: false, timeout }
    }

    pub(super) fn resent(&mut self, bytes: u64, now: Instant) {
        self.resent_at.get_or_insert(now);
        self.unreported += bytes;
    }

    /// Whether a transmission at `sent_at` is one of the episode's.
    pub(super) fn covers(&self, sent_at: Instant) -> bool {
        self.resent_at.is_some_and(|first| first <= sent_at)
    }

    /// Something resent is acknowledged, by a segment that echoes `echo`: whether it was sent before (RFC 3522
    /// §3.2 steps 4 and 5). Only the first such segment counts.
    pub(super) fn is_echo_older(&mut self, echo: Option<u32>) -> bool {
        let first = !core::mem::replace(&mut self.judged, true);
        let older = |echo| self.resent_at.is_some_and(|at| rack::is_older(echo, at));
        first && echo.is_some_and(older)
    }

    /// Bytes `start..end` have arrived twice.
    pub(super) fn duplicate(&mut self, start: Position, end: Position) {
        if end > self.marker {
            let bytes = end.since(start.max(self.marker));
            self.unreported = self.unreported.saturating_sub(bytes);
        }
    }

    /// Everything that was resent has arrived twice.
    pub(super) const fn is_all_reported(&self) -> bool {
        self.resent_at.is_some() && self.unreported == 0
    }
}

/// F-RTO (RFC 5682), in its form with SACK where there is SACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FRto {
    /// Not asked, or the answer was that the loss is real.
    Off,
    /// The first segment is resent; waits for an acknowledgement of it (step 2).
    First,
    /// It has come: new data is sent instead of more old data, then the next acknowledgement decides (step 3).
    Second {
        /// New data was sent.
        sent: bool,
    },
}

/// What an acknowledgement meant for [`FRto`].
#[derive(Clone, Copy, Debug)]
pub(super) struct FRtoEvent {
    /// SND.UNA has moved.
    pub(super) advanced: bool,
    /// Everything that was in flight at the time-out is acknowledged.
    pub(super) complete: bool,
    /// Something was selectively acknowledged, or it is a duplicate ACK.
    pub(super) duplicate: bool,
    pub(super) sack: bool,
}

impl FRto {
    /// RFC 5682 §2.1 and §3.1, steps 2 and 3, but for the verdict "spurious".
    pub(super) const fn next(self, news: FRtoEvent) -> Self {
        let FRtoEvent { advanced, complete, duplicate, sack } = news;
        match self {
            // With SACK a duplicate only shows which bytes have arrived.
            Self::First if advanced && !complete => Self::Second { sent: false },
            Self::First if !advanced && (sack || !duplicate) => Self::First,
            Self::Second { .. } if !advanced && !duplicate => self,
            Self::Off | Self::First | Self::Second { .. } => Self::Off,
        }
    }
}
