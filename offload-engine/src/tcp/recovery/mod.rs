//! Loss recovery: loss detection, and the RTT and reordering derived from acknowledgments.
//!
//! With SACK, losses are detected by time (RACK, RFC 8985). A record is lost when one sent later was delivered and a
//! reordering window has passed. Retransmissions also have a time, so a lost retransmission is detected the same way.
//! Without RACK, RFC 6675 counts sacked data above.
//!
//! Without SACK: NewReno (RFC 6582). Duplicate ACKs count as one delivered segment each. The same sum gives limited
//! transmit (RFC 3042) and the inflation of RFC 5681 §3.2. Early retransmit (RFC 5827) needs fewer of them for small
//! flights.
//!
//! A tail loss probe (RFC 8985 §7) turns a lost tail into one of these cases. Lost bytes are sent first (RFC 6675 §5),
//! while the flight is less than a window: PRR's in fast recovery (RFC 9937), otherwise the congestion controller's.
//! The window is reduced once per episode. An episode ends when all data sent before its start is acknowledged, or when
//! the loss was spurious.
//!
//! | file | subject |
//! |---|---|
//! | `scoreboard` | bytes in flight, sacked and lost |
//! | `rack` | reordering window |
//! | `probe` | tail loss probe and its acknowledgment |
//! | `prr` | window in fast recovery |
//! | `undo` | detection of spurious losses |
//! | `fast_path` | acknowledgments without loss or reordering |

mod fast_path;
mod options;
mod probe;
mod prr;
mod rack;
mod scoreboard;
mod undo;

pub use self::options::RecoveryOptions;
use self::{
    probe::{ProbeOutcome, TailProbe},
    prr::Prr,
    rack::Rack,
    scoreboard::{Record, RecordState, Scoreboard},
    undo::{FRto, FRtoEvent, Undo},
};
use super::seq::Position;
use crate::time::{Duration, Instant};

/// Largest flight in segments for early retransmit (RFC 5827 §3.1).
const EARLY_SEGMENTS_MAX: u64 = 3;

/// Loss recovery episode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Episode {
    /// None.
    Open,
    /// Fast recovery until everything before `until` is acknowledged.
    Fast { until: Position },
    /// Recovery from a timeout until everything before `until` is acknowledged.
    Timeout { until: Position },
}

/// Acceptable acknowledgment, as input of recovery.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ack<'a> {
    pub(super) now: Instant,
    /// SEG.ACK: everything before it is acknowledged.
    pub(super) to: Position,
    /// SACK blocks above `to`.
    pub(super) sacks: &'a [(Position, Position)],
    /// SACK block that reports a duplicate (RFC 2883).
    pub(super) dsack: Option<(Position, Position)>,
    /// True if this may be a duplicate ACK of RFC 5681: no data, no window update, no FIN.
    pub(super) bare: bool,
    /// True if there is unsent data, or a FIN, that the peer's window allows.
    pub(super) can_send_new: bool,
    /// TSecr in ms of our clock.
    pub(super) echo: Option<u32>,
    pub(super) mss: u64,
    pub(super) rtt_min: Option<Duration>,
    pub(super) srtt: Option<Duration>,
}

/// Result of an acknowledgment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Report {
    /// Bytes newly acknowledged by SND.UNA.
    pub(super) acked: u64,
    /// Bytes newly known to have arrived, by any indication (DeliveredData, RFC 9937 §4).
    pub(super) delivered: u64,
    /// Bytes newly presumed lost.
    pub(super) lost: u64,
    /// RTT of the newest segment that was sent once.
    pub(super) rtt: Option<Duration>,
    /// True if the congestion window may grow.
    pub(super) may_grow: bool,
    /// True if a timeout is being repaired.
    pub(super) after_timeout: bool,
    /// True if the window must be reduced: fast recovery has started, or a probe has repaired a loss.
    pub(super) reduce: bool,
    /// True if the last reduction must be undone, before `reduce`.
    pub(super) undo: bool,
    /// Time at which a record is presumed lost without another acknowledgment.
    pub(super) reordering_deadline: Option<Instant>,
    /// Bytes outstanding and not known to have arrived, before this acknowledgment.
    flight: u64,
}

/// Monotonic counters.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Counts {
    pub(super) undo_by_timestamp: u64,
    pub(super) undo_by_dsack: u64,
    pub(super) undo_by_f_rto: u64,
    pub(super) spurious_timeouts: u64,
    pub(super) dsack_dups: u64,
    pub(super) reord_seen: u64,
}

/// Summary of the records covered by one acknowledgment.
#[derive(Clone, Copy, Default, Debug)]
struct Delivery {
    /// Bytes acknowledged by SND.UNA, and all bytes newly known to have arrived.
    acked: u64,
    bytes: u64,
    /// Bytes newly sacked.
    sacked: u64,
    /// Transmission time of the newest record that was sent once.
    newest: Option<Instant>,
    /// True if SND.UNA has passed a retransmitted record.
    ambiguous: bool,
    /// True if SND.UNA has passed a record retransmitted in this episode.
    repaired: bool,
    /// True if a record sent once, before the timeout under repair, has arrived.
    original: bool,
    /// True if a record sent once has arrived after a higher one.
    reordered: bool,
}

/// Byte counts of the scoreboard between SND.UNA and SND.NXT.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScoreboardCounts {
    pub(super) sacked: u64,
    /// Presumed lost and not retransmitted.
    pub(super) lost: u64,
    /// Retransmitted and in flight.
    pub(super) resent: u64,
}

/// Loss recovery of one connection.
#[derive(Debug)]
pub(super) struct Recovery {
    options: RecoveryOptions,
    board: Scoreboard,
    episode: Episode,
    sack: bool,
    threshold: u32,
    duplicate_acks: u32,
    /// Bytes counted as delivered because of duplicate ACKs (without SACK).
    inferred: u64,
    rack: Rack,
    probe: Option<TailProbe>,
    /// Probes since the start of fast recovery.
    episode_probes: u8,
    prr: Option<Prr>,
    undo: Option<Undo>,
    f_rto: FRto,
    /// True if the next retransmission ignores the window: the first of an episode (RFC 6675 §5 step 4.3).
    force: bool,
    /// Number of the last transmission before the episode.
    before_episode: u64,
    /// True if RFC 6675 §4 rule 4 was used in this episode.
    rescued: bool,
    /// Duplicate ACKs below this may be caused by retransmissions of a timeout (RFC 6582 §3.2 step 2).
    timeout_until: Option<Position>,
    /// Total bytes retransmitted, and total bytes of them reported as duplicates.
    resent: u64,
    reported: u64,
    counts: Counts,
}

impl Recovery {
    pub(super) fn new(una: Position, sack: bool, threshold: u8, options: RecoveryOptions) -> Self {
        Self {
            options,
            board: Scoreboard::new(una),
            episode: Episode::Open,
            sack,
            threshold: u32::from(threshold.max(1)),
            duplicate_acks: 0,
            inferred: 0,
            rack: Rack::new(una),
            probe: None,
            episode_probes: 0,
            prr: None,
            undo: None,
            f_rto: FRto::Off,
            force: false,
            before_episode: 0,
            rescued: false,
            timeout_until: None,
            resent: 0,
            reported: 0,
            counts: Counts::default(),
        }
    }

    /// Duplicate ACKs for SND.UNA.
    pub(super) const fn duplicate_acks(&self) -> u32 {
        self.duplicate_acks
    }

    /// Imports a count of duplicate ACKs.
    pub(super) fn set_duplicate_acks(&mut self, count: u8) {
        self.duplicate_acks = u32::from(count);
    }

    pub(super) const fn counts(&self) -> Counts {
        self.counts
    }

    /// Bytes presumed in flight.
    #[inline]
    pub(super) fn in_flight(&self) -> u64 {
        self.board.in_flight().saturating_sub(self.inferred)
    }

    /// Bytes counted against the window.
    #[inline]
    pub(super) fn occupied(&self) -> u64 {
        if self.options.limited_transmit || self.episode != Episode::Open {
            self.in_flight()
        } else {
            // RFC 5681 §3.2 without RFC 3042: duplicate ACKs allow no new data, but losses still reduce the count.
            self.board.outstanding() - self.board.lost()
        }
    }

    /// In-flight limit in fast recovery; `None` if the congestion controller's window applies.
    pub(super) fn window(&self) -> Option<u64> {
        self.prr.as_ref().map(Prr::window)
    }

    /// True if nothing is unacknowledged.
    pub(super) fn is_idle(&self) -> bool {
        self.board.is_empty()
    }

    /// True if nothing is unacknowledged and no earlier loss is being repaired or evaluated. An acknowledgment of
    /// nothing new, without SACK blocks, then has no effect.
    pub(super) fn is_inactive(&self) -> bool {
        self.board.is_empty()
            && self.episode == Episode::Open
            && self.probe.is_none()
            && self.undo.is_none()
    }

    /// True in fast recovery: its reduction of the window covers the flight.
    pub(super) const fn is_fast(&self) -> bool {
        matches!(self.episode, Episode::Fast { .. })
    }

    /// True if a timeout is being repaired.
    pub(super) const fn is_repairing_timeout(&self) -> bool {
        matches!(self.episode, Episode::Timeout { .. })
    }

    /// First range of lost bytes, about `most` of it, and true if it may exceed the congestion window.
    #[inline]
    pub(super) fn next_lost(&mut self, most: u64) -> Option<(Position, Position, bool)> {
        self.board.next_lost(most).map(|(start, end)| (start, end, self.force))
    }

    /// Range that RFC 6675 §4 retransmits in fast recovery when nothing is presumed lost and nothing new may be sent.
    /// Rule 3, then once per episode rule 4, the last segment.
    #[inline]
    pub(super) fn next_unsacked(&self, mss: u64) -> Option<(Position, Position)> {
        let counts = self.sack && !self.options.rack && self.is_fast();
        if !counts || self.board.has_lost() {
            return None;
        }
        if let Some((start, end)) = self.board.next_unsacked(self.before_episode) {
            return Some((start, end));
        }
        let last = self
            .board
            .last()
            .filter(|last| !self.rescued && last.state == RecordState::InFlight)?;
        Some((last.start + last.len().saturating_sub(mss), last.end))
    }

    /// Records the transmission of bytes returned by [`Recovery::next_unsacked`], up to `end`.
    pub(super) fn unsacked_sent(&mut self, end: Position) {
        self.rescued |= self.board.last().is_some_and(|last| last.end == end);
    }

    /// RFC 5682 step 2: new data is sent before further retransmissions. `Some(true)` if none was sent yet.
    pub(super) const fn awaits_new_data(&self) -> Option<bool> {
        match self.f_rto {
            FRto::Second { sent } => Some(!sent),
            FRto::Off | FRto::First => None,
        }
    }

    /// Sets the outcome for [`Recovery::awaits_new_data`]; without new data, normal recovery continues.
    pub(super) const fn offer_new_data(&mut self, sent: bool) {
        self.f_rto = if sent { FRto::Second { sent } } else { FRto::Off };
    }

    /// True if segments are out of order or lost, but none is presumed lost yet.
    pub(super) fn in_disorder(&self) -> bool {
        self.duplicate_acks > 0 || self.board.sacked() > 0
    }

    /// Bytes selectively acknowledged.
    pub(super) const fn sacked(&self) -> u64 {
        self.board.sacked()
    }

    /// Byte counts for `Info`; walks all records.
    pub(super) fn scoreboard_counts(&self) -> ScoreboardCounts {
        ScoreboardCounts {
            sacked: self.board.sacked(),
            lost: self.board.lost(),
            resent: self.board.resent_in_flight(),
        }
    }

    /// Records the transmission of `start..end` now. `resent` is true if part of it was sent before.
    #[inline]
    pub(super) fn sent(&mut self, start: Position, end: Position, resent: bool, now: Instant) {
        let again = end.since(start) - end.since(self.board.nxt().max(start));
        if resent {
            self.force = false;
        }
        if again > 0 {
            self.resent += again;
            if let Some(undo) = self.undo.as_mut().filter(|_| self.episode != Episode::Open) {
                undo.resent(again, now);
            }
        }
        if let Some(prr) = &mut self.prr {
            prr.sent(end.since(start));
        }
        self.board.sent(start, end, resent, now);
    }

    /// Processes an acknowledgment. Call [`Recovery::update_prr`] after the congestion controller.
    pub(super) fn on_ack(&mut self, ack: &Ack<'_>) -> Report {
        let flight = self.flight();
        let delivery = self.deliver(ack);
        if self.takes_fast_path(ack, &delivery) {
            self.on_ack_fast(ack, &delivery, flight)
        } else {
            self.on_ack_slow(ack, &delivery, flight)
        }
    }

    /// Bytes outstanding and not known to have arrived.
    fn flight(&self) -> u64 {
        let flight = self.board.outstanding() - self.board.sacked();
        flight.saturating_sub(self.inferred)
    }

    /// Processes an acknowledgment on the slow path. `flight`: bytes in flight before it.
    fn on_ack_slow(&mut self, ack: &Ack<'_>, delivery: &Delivery, flight: u64) -> Report {
        let (repaired, answered) = self.check_probe(ack, delivery.acked);
        let inferred = if answered { 0 } else { self.count_duplicates(ack, delivery) };
        let mut report = Report {
            acked: delivery.acked,
            delivered: if self.sack { delivery.bytes } else { inferred },
            rtt: delivery.newest.map(|sent| ack.now - sent),
            flight,
            ..Report::default()
        };
        let duplicate = self.process_dsack(ack);
        self.record_reordering(delivery);
        report.undo = self.undo_spurious(ack, delivery, duplicate);
        report.reduce = repaired;
        if self.is_fast() && report.delivered > 0 {
            // The probed pause has ended; another may follow.
            self.probe = None;
        }
        self.update_f_rto(ack, delivery);
        report.lost = self.detect(ack, &mut report);
        let ended = self.update_episode(ack.to, &mut report);
        if self.options.rack && self.sack {
            self.rack.adapt(ack.to, self.board.nxt(), duplicate, ended || report.undo);
        }
        report
    }

    /// Applies an acknowledgment to the scoreboard.
    fn deliver(&mut self, ack: &Ack<'_>) -> Delivery {
        let mut delivery = Delivery::default();
        let highest = self.rack.highest;
        let until = match self.episode {
            Episode::Timeout { until } => Some(until),
            Episode::Open | Episode::Fast { .. } => None,
        };
        let (rack, undo) = (&mut self.rack, &self.undo);
        let mut note = |delivery: &mut Delivery, record: &Record| {
            delivery.bytes += record.len();
            // RFC 8985 §6.2 step 3. Compared with the state before this ACK: blocks are in any order.
            delivery.reordered |= !record.resent && record.end < highest;
            delivery.original |= !record.resent && until.is_some_and(|until| record.end <= until);
            rack.highest = rack.highest.max(record.end);
            rack.deliver(record, ack);
        };
        let acked = self.board.acknowledge(ack.to, |record| {
            note(&mut delivery, record);
            delivery.newest = Some(later(delivery.newest, record.sent_at));
            if record.resent {
                delivery.ambiguous = true;
                delivery.repaired |= undo.as_ref().is_some_and(|undo| undo.covers(record.sent_at));
            }
        });
        delivery.acked = acked;
        // Karn: an ACK that covers a retransmission may have been delayed by it, so it gives no sample of later
        // segments either. Without SACK it need not be caused by originals at all.
        if delivery.ambiguous {
            delivery.newest = None;
            delivery.original &= self.sack;
        }
        let sacks = if self.sack { ack.sacks } else { &[] };
        for &(start, end) in sacks {
            delivery.sacked += self.board.sack(start, end, ack.mss, |record| {
                note(&mut delivery, record);
                if !record.resent {
                    delivery.newest = Some(later(delivery.newest, record.sent_at));
                }
            });
        }
        delivery
    }

    /// Counts duplicate ACKs. Returns the newly delivered bytes without SACK (RFC 9937 §4).
    fn count_duplicates(&mut self, ack: &Ack<'_>, delivery: &Delivery) -> u64 {
        let Delivery { acked, sacked, .. } = *delivery;
        if acked > 0 {
            let known = u64::from(self.duplicate_acks) * ack.mss;
            self.duplicate_acks = 0;
            // RFC 6582 §3.2 step 3: deflate by the bytes that the partial ACK covers, less the hole itself.
            self.inferred = self
                .inferred
                .saturating_sub(acked.saturating_sub(ack.mss))
                .min(self.board.in_flight());
            return acked.saturating_sub(known);
        }
        if self.board.is_empty() {
            return 0;
        }
        if sacked > 0 {
            self.duplicate_acks += 1;
        } else if ack.bare && !self.sack {
            self.duplicate_acks += 1;
            let inferred = (self.inferred + ack.mss).min(self.board.in_flight());
            let before = core::mem::replace(&mut self.inferred, inferred);
            return inferred.saturating_sub(before);
        }
        0
    }

    /// Processes a DSACK; returns true if it concerns recovery. Duplicates beyond all retransmitted bytes are the
    /// network's, and those of a probe are expected.
    fn process_dsack(&mut self, ack: &Ack<'_>) -> bool {
        let Some((start, end)) = ack.dsack.filter(|_| self.options.dsack) else {
            return false;
        };
        self.counts.dsack_dups += 1;
        self.reported += end.since(start);
        if self.reported > self.resent {
            self.reported = self.resent;
            return false;
        }
        let probe = self.probe.filter(|_| self.episode == Episode::Open);
        if probe.is_some_and(|probe| probe.retransmission && probe.end == end) {
            return false;
        }
        if let Some(undo) = &mut self.undo {
            undo.duplicate(start, end);
        }
        true
    }

    fn record_reordering(&mut self, delivery: &Delivery) {
        if self.sack && delivery.reordered {
            self.counts.reord_seen += 1;
            self.rack.record_reordering();
        }
    }

    /// Returns true if the last window reduction was spurious. Ends its episode; the window is restored.
    fn undo_spurious(&mut self, ack: &Ack<'_>, delivery: &Delivery, duplicate: bool) -> bool {
        // RFC 5682 §2.1 and §3.1 step 3b.
        let original = self.f_rto != FRto::Off && delivery.original;
        let may_undo = self.options.undo;
        let Some(undo) = &mut self.undo else { return false };
        let counter = if may_undo && delivery.repaired && undo.is_echo_older(ack.echo) {
            &mut self.counts.undo_by_timestamp
        } else if may_undo && duplicate && undo.is_all_reported() {
            &mut self.counts.undo_by_dsack
        } else if original {
            &mut self.counts.undo_by_f_rto
        } else {
            return false;
        };
        *counter += u64::from(may_undo);
        if undo.timeout {
            self.counts.spurious_timeouts += 1;
        } else {
            // The segments presumed lost were reordered.
            self.rack.record_reordering();
        }
        self.undo = None;
        if self.episode != Episode::Open {
            self.board.unmark_lost();
            self.end_episode();
        }
        may_undo
    }

    /// RFC 8985 §7.4.2. The first result is true if a probe has repaired an otherwise undetected loss. The second is
    /// true if this is the duplicate ACK caused by the probe, which has no other meaning.
    fn check_probe(&mut self, ack: &Ack<'_>, acked: u64) -> (bool, bool) {
        let outcome = self.probe.map(|probe| probe.evaluate(ack, acked, self.options.dsack));
        if matches!(outcome, Some(ProbeOutcome::NoLoss | ProbeOutcome::Repaired)) {
            self.probe = None;
        }
        // In fast recovery the loss belongs to the episode.
        let repaired = outcome == Some(ProbeOutcome::Repaired) && self.episode == Episode::Open;
        if repaired {
            self.undo = None;
        }
        (repaired, outcome == Some(ProbeOutcome::NoLoss) && acked == 0)
    }

    /// Advances the F-RTO state (RFC 5682).
    fn update_f_rto(&mut self, ack: &Ack<'_>, delivery: &Delivery) {
        let Episode::Timeout { until } = self.episode else { return };
        let before = self.f_rto;
        self.f_rto = before.next(FRtoEvent {
            advanced: delivery.acked > 0,
            complete: ack.to >= until,
            duplicate: delivery.sacked > 0 || ack.bare && delivery.acked == 0,
            sack: self.sack,
        });
        let failed = before == (FRto::Second { sent: true })
            && self.f_rto == FRto::Off
            && delivery.acked == 0;
        let reported = !ack.sacks.is_empty() || ack.dsack.is_some();
        if failed && !reported {
            self.resume_repair();
        }
    }

    /// RFC 5682 §2.1 step 3a: the loss was real, and no SACK block covers the two new segments. They count as
    /// unacknowledged like the rest, as a peer need not keep out-of-order data. Otherwise they would fill the window,
    /// and the repair would stall until the next, longer timeout.
    fn resume_repair(&mut self) {
        self.force = true;
        self.inferred = 0;
        self.board.mark_due(|_| true);
        if let Some(last) = self.board.last() {
            self.episode = Episode::Timeout { until: last.end };
        }
    }

    /// Detects losses; returns the bytes.
    fn detect(&mut self, ack: &Ack<'_>, report: &mut Report) -> u64 {
        if !self.sack {
            return self.detect_by_duplicates(ack, report.acked);
        }
        if !self.options.rack {
            return self.detect_by_count(ack);
        }
        let rtt_min = [ack.rtt_min, report.rtt].into_iter().flatten().min();
        let (lost, deadline) = self.detect_by_time(ack.now, ack.mss, rtt_min, ack.srtt);
        report.reordering_deadline = deadline;
        lost
    }

    /// RFC 8985 §6.2 steps 4 and 5. The RFC has one deadline for all late records. Here the oldest has its own, as it
    /// costs nothing, and the next one follows.
    fn detect_by_time(
        &mut self,
        now: Instant,
        mss: u64,
        rtt_min: Option<Duration>,
        srtt: Option<Duration>,
    ) -> (u64, Option<Instant>) {
        let threshold_reached = self.duplicate_acks >= self.threshold
            || self.board.sacked() >= u64::from(self.threshold) * mss
            || self.episode != Episode::Open;
        let loss_delay = self.rack.loss_delay(threshold_reached, rtt_min, srtt);
        let (number, end) = (self.rack.number, self.rack.end);
        let (lost, pending) =
            self.board.mark_overdue(number, end, |sent_at| sent_at + loss_delay <= now);
        (lost, pending.map(|sent_at| sent_at + loss_delay))
    }

    /// RFC 6675 §5 steps 1 to 4, and (C) while in recovery. After a timeout SACK only excludes data from retransmission
    /// (§5.1).
    fn detect_by_count(&mut self, ack: &Ack<'_>) -> u64 {
        let since = match self.episode {
            Episode::Open => u64::MAX,
            Episode::Fast { .. } => self.before_episode,
            Episode::Timeout { .. } => return 0,
        };
        let threshold = self.threshold(ack);
        let lost = self.board.mark_by_count(threshold, ack.mss, since);
        let enough = self.episode == Episode::Open && self.duplicate_acks >= threshold;
        if enough && lost == 0 { self.board.mark_first(ack.mss) } else { lost }
    }

    /// RFC 6582 §3.2 steps 2 and 3.
    fn detect_by_duplicates(&mut self, ack: &Ack<'_>, acked: u64) -> u64 {
        let start = match self.episode {
            Episode::Open => {
                let duplicate = acked == 0 && self.duplicate_acks > 0;
                let probed = self.probe.is_some_and(|probe| ack.to < probe.end);
                let enough = probed || self.duplicate_acks >= self.threshold(ack);
                // Otherwise this may be a response to unnecessary retransmissions of the timeout.
                let is_new = self.timeout_until.is_none_or(|until| ack.to > until);
                duplicate && enough && is_new
            }
            Episode::Fast { until } => acked > 0 && ack.to < until,
            Episode::Timeout { .. } => false,
        };
        if !start {
            return 0;
        }
        self.force = true;
        self.board.mark_first(ack.mss)
    }

    /// Duplicate ACKs that indicate a loss; fewer if the flight is too small to cause as many (RFC 5827 §3.1).
    fn threshold(&self, ack: &Ack<'_>) -> u32 {
        let segments = self.board.outstanding().div_ceil(ack.mss.max(1));
        let early = self.options.early_retransmit && !ack.can_send_new;
        if early && (2..=EARLY_SEGMENTS_MAX).contains(&segments) {
            self.threshold.min(segments as u32 - 1)
        } else {
            self.threshold
        }
    }

    /// Updates the episode; returns true if one has ended.
    fn update_episode(&mut self, una: Position, report: &mut Report) -> bool {
        let mut ended = false;
        if let Episode::Fast { until } | Episode::Timeout { until } = self.episode {
            report.after_timeout = self.is_repairing_timeout();
            report.may_grow = report.after_timeout;
            ended = una >= until;
            if ended {
                self.end_episode();
            }
        }
        if self.episode == Episode::Open {
            if self.board.has_lost() {
                self.begin_fast_recovery();
                report.reduce = true;
            } else {
                // The ACK that ends fast recovery does not grow the window: it is the threshold (RFC 6582 §3.2).
                report.may_grow = !report.reduce && (!ended || report.after_timeout);
            }
        }
        ended
    }

    /// Ends the episode.
    fn end_episode(&mut self) {
        self.episode = Episode::Open;
        self.duplicate_acks = 0;
        self.inferred = 0;
        self.force = false;
        self.probe = None;
        self.prr = None;
        self.f_rto = FRto::Off;
    }

    /// Starts fast recovery.
    fn begin_fast_recovery(&mut self) {
        let Some(last) = self.board.last() else { return };
        self.episode = Episode::Fast { until: last.end };
        self.force = true;
        self.probe = None;
        self.before_episode = self.board.transmissions();
        self.rescued = false;
        self.episode_probes = 0;
        self.timeout_until = None;
        self.undo = Some(Undo::new(self.board.una(), false));
    }

    /// Updates PRR after the congestion controller has processed `report`; `ssthresh` is its threshold. Does nothing
    /// outside fast recovery.
    #[inline]
    pub(super) fn update_prr(&mut self, report: &Report, ssthresh: Option<u64>, mss: u64) {
        if !(self.options.prr && self.is_fast()) {
            return;
        }
        if report.reduce {
            self.prr = ssthresh.map(|target| Prr::new(target, report.flight));
        }
        let in_flight = self.in_flight();
        if let Some(prr) = &mut self.prr
            && (report.delivered > 0 || report.lost > 0)
        {
            let safe = report.acked > 0 && report.lost == 0;
            prr.update(report.delivered, in_flight, safe, mss);
        }
    }

    /// Processes the expiry of the reordering timer, as an acknowledgment of nothing new.
    pub(super) fn on_reordering_timeout(
        &mut self,
        now: Instant,
        mss: u64,
        rtt_min: Option<Duration>,
        srtt: Option<Duration>,
    ) -> Report {
        let flight = self.board.outstanding() - self.board.sacked();
        let (lost, reordering_deadline) = self.detect_by_time(now, mss, rtt_min, srtt);
        let mut report = Report { lost, reordering_deadline, flight, ..Report::default() };
        if self.episode == Episode::Open && self.board.has_lost() {
            self.begin_fast_recovery();
            report.reduce = true;
        }
        report
    }

    /// Processes a retransmission timeout. With RACK recently sent data stays in flight (RFC 8985 §6.3), otherwise all
    /// is presumed lost (RFC 6675 §5.1).
    pub(super) fn on_timeout(
        &mut self,
        now: Instant,
        rtt_min: Option<Duration>,
        srtt: Option<Duration>,
    ) {
        // RFC 2018 §8: a sacked record at SND.UNA should have been acknowledged; the peer has reneged.
        if self.board.first().is_some_and(|record| record.state == RecordState::Sacked) {
            self.board.clear_sacked();
        }
        let by_time = self.sack && self.options.rack;
        let loss_delay = self.rack.loss_delay(true, rtt_min, srtt);
        self.board.mark_due(|sent_at| !by_time || sent_at + loss_delay <= now);
        let Some(last) = self.board.last() else { return };
        let until = last.end;
        let was_fast = self.is_fast();
        if self.episode == Episode::Open {
            self.undo = Some(Undo::new(self.board.una(), true));
        }
        self.end_episode();
        self.episode = Episode::Timeout { until };
        self.timeout_until = Some(until);
        self.force = true;
        // RFC 5682 §3.1: in fast recovery the loss is already known.
        if self.options.f_rto && !was_fast {
            self.f_rto = FRto::First;
        }
    }

    /// Processes a path MTU reduction: records larger than `mss` payload bytes are lost, and not by congestion.
    /// Repaired as after a timeout, but without a reduction of the window (RFC 1191 §6.4).
    pub(super) fn on_path_mtu_reduced(&mut self, mss: u64) {
        // The last segment of a GSO packet may have passed; it is then sent twice.
        self.board.mark_larger(mss);
        let Some(last) = self.board.last().filter(|_| self.board.has_lost()) else { return };
        if self.episode == Episode::Open {
            self.episode = Episode::Timeout { until: last.end };
            self.undo = None;
        }
        self.inferred = self.inferred.min(self.board.in_flight());
        self.probe = None;
        self.force = true;
    }

    /// Records and log entries visited since the start.
    #[cfg(test)]
    pub(super) fn steps(&self) -> u64 {
        self.board.steps.get()
    }
}

/// Later of an optional time and another.
fn later(one: Option<Instant>, other: Instant) -> Instant {
    one.map_or(other, |one| one.max(other))
}
