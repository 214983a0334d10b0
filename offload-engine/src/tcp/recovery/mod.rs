//! Loss recovery: detection of losses, and the RTT and reordering that acknowledgements show.
//!
//! With SACK, losses are found by time (RACK, RFC 8985): a record is lost when one that was sent later
//! has been delivered and a reordering window has passed. Because retransmissions carry a time too, a
//! lost retransmission is found the same way. Switched off, RFC 6675 counts what was sacked above.
//!
//! Without SACK: NewReno (RFC 6582). Duplicate ACKs count as one delivered segment each, which
//! yields limited transmit (RFC 3042) and the inflation of RFC 5681 §3.2 from the same sum. Early retransmit
//! (RFC 5827) needs fewer of them for small flights.
//!
//! A tail loss probe (RFC 8985 §7) turns a lost tail into one of these cases. Lost bytes go first (RFC 6675
//! §5), while what is in flight is less than a window: PRR's in fast recovery (RFC 9937), else the
//! congestion controller's. One reduction of the window for each episode; an episode ends when
//! everything that was sent at its start is acknowledged, or when it turns out that nothing was lost.
//!
//! | file | question |
//! |---|---|
//! | `scoreboard` | which bytes are in flight, arrived, lost |
//! | `rack` | how late is too late |
//! | `probe` | when to ask for a tail, and what the answer means |
//! | `prr` | how much may be sent in fast recovery |
//! | `undo` | was it a loss at all |
//! | `routine` | what an acknowledgement brings while nothing is wrong |

mod fast_path;
mod options;
mod probe;
mod prr;
mod rack;
mod scoreboard;
mod undo;

pub use self::options::RecoveryOptions;
use self::{
    probe::{TailProbe, Verdict},
    prr::Prr,
    rack::Rack,
    scoreboard::{Record, RecordState, Scoreboard},
    undo::{FRto, FRtoEvent, Undo},
};
use super::seq::Position;
use crate::time::{Duration, Instant};

/// Largest flight in segments that early retransmit is for (RFC 5827 §3.1).
const EARLY_SEGMENTS_MAX: u64 = 3;

/// What the sender is doing about losses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Episode {
    /// Nothing.
    Open,
    /// Fast recovery until everything before `until` is acknowledged.
    Fast { until: Position },
    /// Repair after a time-out, until the same.
    Timeout { until: Position },
}

/// An acceptable acknowledgement, translated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ack<'a> {
    pub(super) now: Instant,
    /// Everything before is acknowledged.
    pub(super) to: Position,
    /// SACK blocks above `to`.
    pub(super) sacks: &'a [(Position, Position)],
    /// A block that reports a duplicate (RFC 2883).
    pub(super) duplicate_report: Option<(Position, Position)>,
    /// Could be a duplicate ACK in the sense of RFC 5681: no data, no news about window or FIN.
    pub(super) bare: bool,
    /// There is data, or a FIN, that was never sent and that the peer's window allows.
    pub(super) can_send_new: bool,
    /// TSecr in ms of our clock.
    pub(super) echo: Option<u32>,
    pub(super) mss: u64,
    pub(super) rtt_min: Option<Duration>,
    pub(super) srtt: Option<Duration>,
}

/// What an acknowledgement brought.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Report {
    /// Bytes newly acknowledged by SND.UNA.
    pub(super) acked: u64,
    /// Bytes newly known to have arrived, by whatever means (DeliveredData, RFC 9937 §4).
    pub(super) delivered: u64,
    /// Bytes newly presumed lost.
    pub(super) lost: u64,
    /// RTT of the newest segment that was sent once.
    pub(super) rtt: Option<Duration>,
    /// The congestion window may grow.
    pub(super) may_grow: bool,
    /// A time-out is being repaired.
    pub(super) after_timeout: bool,
    /// Reduce the window: fast recovery has begun, or a probe has repaired a loss.
    pub(super) reduce: bool,
    /// Take the last reduction back. Goes before `reduce`.
    pub(super) undo: bool,
    /// A record will be presumed lost then, without an acknowledgement.
    pub(super) reordering_deadline: Option<Instant>,
    /// Bytes outstanding and not known to have arrived, before this acknowledgement.
    flight: u64,
}

/// Counters that only go up.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Counts {
    pub(super) undo_by_timestamp: u64,
    pub(super) undo_by_dsack: u64,
    pub(super) undo_by_f_rto: u64,
    pub(super) spurious_timeouts: u64,
    pub(super) dsack_dups: u64,
    pub(super) reord_seen: u64,
}

/// A summary of the records that one acknowledgement covers.
#[derive(Clone, Copy, Default, Debug)]
struct Delivery {
    /// Bytes acknowledged by SND.UNA, and those of them and of blocks that were not known to have arrived.
    acked: u64,
    bytes: u64,
    /// Bytes newly sacked.
    sacked: u64,
    /// When the newest record that was sent once was sent.
    newest: Option<Instant>,
    /// SND.UNA has passed something resent.
    ambiguous: bool,
    /// SND.UNA has passed something that this episode has resent.
    repaired: bool,
    /// Something sent once, and before the time-out that is being repaired, has arrived.
    original: bool,
    /// Something sent once has arrived after something above it.
    reordered: bool,
}

/// Bytes between SND.UNA and SND.NXT that are something special.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScoreboardCounts {
    pub(super) sacked: u64,
    /// Presumed lost, and not resent yet.
    pub(super) lost: u64,
    /// Resent, and in flight.
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
    /// Bytes taken as delivered because of duplicate ACKs (without SACK).
    inferred: u64,
    rack: Rack,
    probe: Option<TailProbe>,
    /// Probes since fast recovery began.
    episode_probes: u8,
    prr: Option<Prr>,
    undo: Option<Undo>,
    f_rto: FRto,
    /// The first retransmission of an episode does not wait for the window (RFC 6675 §5 step 4.3).
    force: bool,
    /// Number of the last transmission before the episode.
    before_episode: u64,
    /// RFC 6675 §4 rule 4 was used in this episode.
    rescued: bool,
    /// Duplicate ACKs of what lies below may answer what a time-out has resent (RFC 6582 §3.2 step 2).
    timeout_until: Option<Position>,
    /// Bytes ever resent, and bytes ever reported as duplicates of them.
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

    /// Duplicate ACKs seen for SND.UNA.
    pub(super) const fn duplicate_acks(&self) -> u32 {
        self.duplicate_acks
    }

    /// Continues a count of duplicate ACKs.
    pub(super) fn set_duplicate_acks(&mut self, count: u8) {
        self.duplicate_acks = u32::from(count);
    }

    pub(super) const fn counts(&self) -> Counts {
        self.counts
    }

    /// Bytes presumed on the wire.
    #[inline]
    pub(super) fn in_flight(&self) -> u64 {
        self.board.in_flight().saturating_sub(self.inferred)
    }

    /// Bytes that stand against the window.
    #[inline]
    pub(super) fn occupied(&self) -> u64 {
        if self.options.limited_transmit || self.episode != Episode::Open {
            self.in_flight()
        } else {
            // RFC 5681 §3.2 without RFC 3042: losses by duplicate ACKs still count.
            self.board.outstanding() - self.board.lost()
        }
    }

    /// What may be in flight in fast recovery; `None` when the congestion controller's window decides.
    pub(super) fn window(&self) -> Option<u64> {
        self.prr.as_ref().map(Prr::window)
    }

    /// Nothing is unacknowledged.
    pub(super) fn is_idle(&self) -> bool {
        self.board.is_empty()
    }

    /// Nothing is unacknowledged and nothing of the past is being repaired or judged: an acknowledgement of
    /// nothing new, without blocks, does not count.
    pub(super) fn is_quiet(&self) -> bool {
        self.board.is_empty()
            && self.episode == Episode::Open
            && self.probe.is_none()
            && self.undo.is_none()
    }

    /// Fast recovery is under way: its reduction of the window stands for the flight.
    pub(super) const fn is_fast(&self) -> bool {
        matches!(self.episode, Episode::Fast { .. })
    }

    /// A time-out is being repaired.
    pub(super) const fn is_repairing_timeout(&self) -> bool {
        matches!(self.episode, Episode::Timeout { .. })
    }

    /// The first run of bytes to resend, about `most` of it, and whether it may go out beyond the congestion
    /// window.
    #[inline]
    pub(super) fn next_lost(&mut self, most: u64) -> Option<(Position, Position, bool)> {
        self.board.next_lost(most).map(|(start, end)| (start, end, self.force))
    }

    /// What RFC 6675 §4 sends in fast recovery when nothing is presumed lost and nothing new may be sent: rule
    /// 3, then once in an episode rule 4, the last segment.
    #[inline]
    pub(super) fn next_doubtful(&self, mss: u64) -> Option<(Position, Position)> {
        let counts = self.sack && !self.options.rack && self.is_fast();
        if !counts || self.board.has_lost() {
            return None;
        }
        if let Some((start, end)) = self.board.next_doubtful(self.before_episode) {
            return Some((start, end));
        }
        let last =
            self.board.last().filter(|last| !self.rescued && last.fate == RecordState::InFlight)?;
        Some((last.start + last.len().saturating_sub(mss), last.end))
    }

    /// Bytes that [`Recovery::next_doubtful`] has named, up to `end`, were sent.
    pub(super) fn doubtful_sent(&mut self, end: Position) {
        self.rescued |= self.board.last().is_some_and(|last| last.end == end);
    }

    /// RFC 5682 step 2: new data goes before more retransmissions; whether none was sent yet.
    pub(super) const fn awaits_new_data(&self) -> Option<bool> {
        match self.f_rto {
            FRto::Second { sent } => Some(!sent),
            FRto::Off | FRto::First => None,
        }
    }

    /// Whether there was new data for [`Recovery::awaits_new_data`]; without, recovery goes on as ever.
    pub(super) const fn offer_new_data(&mut self, sent: bool) {
        self.f_rto = if sent { FRto::Second { sent } } else { FRto::Off };
    }

    /// Segments are missing, but none is presumed lost yet.
    pub(super) fn has_doubts(&self) -> bool {
        self.duplicate_acks > 0 || self.board.sacked() > 0
    }

    /// Bytes selectively acknowledged.
    pub(super) const fn sacked(&self) -> u64 {
        self.board.sacked()
    }

    /// Counts for a report: a walk over everything in flight.
    pub(super) fn tally(&self) -> ScoreboardCounts {
        ScoreboardCounts {
            sacked: self.board.sacked(),
            lost: self.board.lost(),
            resent: self.board.resent_in_flight(),
        }
    }

    /// `start..end` was sent, now. `resent`: some of it was on the wire before.
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

    /// Processes an acknowledgement. [`Recovery::regulate`] follows when the window is reduced.
    pub(super) fn on_ack(&mut self, ack: &Ack<'_>) -> Report {
        let flight = self.flight();
        let delivery = self.deliver(ack);
        if self.is_routine(ack, &delivery) {
            self.proceed(ack, &delivery, flight)
        } else {
            self.consider(ack, &delivery, flight)
        }
    }

    /// Bytes outstanding and not known to have arrived.
    fn flight(&self) -> u64 {
        let flight = self.board.outstanding() - self.board.sacked();
        flight.saturating_sub(self.inferred)
    }

    /// What follows from what has been delivered. `flight`: bytes that were in flight before.
    fn consider(&mut self, ack: &Ack<'_>, delivery: &Delivery, flight: u64) -> Report {
        let (repaired, answered) = self.judge_probe(ack, delivery.acked);
        let inferred = if answered { 0 } else { self.count_duplicates(ack, delivery) };
        let mut report = Report {
            acked: delivery.acked,
            delivered: if self.sack { delivery.bytes } else { inferred },
            rtt: delivery.newest.map(|sent| ack.now - sent),
            flight,
            ..Report::default()
        };
        let duplicate = self.hear_duplicate_report(ack);
        self.note_reordering(delivery);
        report.undo = self.undo_spurious(ack, delivery, duplicate);
        report.reduce = repaired;
        if self.is_fast() && report.delivered > 0 {
            // The pause that was probed has ended; another may follow.
            self.probe = None;
        }
        self.ask_f_rto(ack, delivery);
        report.lost = self.detect(ack, &mut report);
        let ended = self.turn(ack.to, &mut report);
        if self.options.rack && self.sack {
            self.rack.adapt(ack.to, self.board.nxt(), duplicate, ended || report.undo);
        }
        report
    }

    /// Applies an acknowledgement to the scoreboard.
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
            // RFC 8985 §6.2 step 3. Compared with what was known before: blocks come in any order.
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
        // Karn: an ACK that covers a retransmission may have waited for it, so it is no sample of the
        // segments behind it either; without SACK it need not be about the original ones at all.
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

    /// Counts duplicate ACKs. Returns what is newly delivered if there is no SACK (RFC 9937 §4).
    fn count_duplicates(&mut self, ack: &Ack<'_>, delivery: &Delivery) -> u64 {
        let Delivery { acked, sacked, .. } = *delivery;
        if acked > 0 {
            let known = u64::from(self.duplicate_acks) * ack.mss;
            self.duplicate_acks = 0;
            // RFC 6582 §3.2 step 3: deflate by what the partial ACK covers, less the hole itself.
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

    /// Takes a report of a duplicate into account; returns whether it is one about recovery. Duplicates beyond
    /// what was ever resent are the network's, and those of a probe are expected.
    fn hear_duplicate_report(&mut self, ack: &Ack<'_>) -> bool {
        let Some((start, end)) = ack.duplicate_report.filter(|_| self.options.dsack) else {
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

    fn note_reordering(&mut self, delivery: &Delivery) {
        if self.sack && delivery.reordered {
            self.counts.reord_seen += 1;
            self.rack.note_reordering();
        }
    }

    /// Whether the last reduction of the window answered no loss: its episode ends, and the window is what it was.
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
            // What looked lost was overtaken.
            self.rack.note_reordering();
        }
        self.undo = None;
        if self.episode != Episode::Open {
            self.board.unmark_lost();
            self.close();
        }
        may_undo
    }

    /// RFC 8985 §7.4.2: whether a probe has repaired a loss that was not detected otherwise; and whether this is the
    /// duplicate ACK that it has caused, which means nothing else.
    fn judge_probe(&mut self, ack: &Ack<'_>, acked: u64) -> (bool, bool) {
        let verdict = self.probe.map(|probe| probe.judge(ack, acked, self.options.dsack));
        if matches!(verdict, Some(Verdict::Over | Verdict::Repaired)) {
            self.probe = None;
        }
        // In fast recovery the loss is one of the episode's.
        let repaired = verdict == Some(Verdict::Repaired) && self.episode == Episode::Open;
        if repaired {
            self.undo = None;
        }
        (repaired, verdict == Some(Verdict::Over) && acked == 0)
    }

    /// Moves F-RTO on (RFC 5682).
    fn ask_f_rto(&mut self, ack: &Ack<'_>, delivery: &Delivery) {
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
        let reported = !ack.sacks.is_empty() || ack.duplicate_report.is_some();
        if failed && !reported {
            self.resume_repair();
        }
    }

    /// RFC 5682 §2.1 step 3a: the loss was real, and no block covers the two new segments. They count as
    /// unacknowledged as the rest, for a peer need not keep what is out of order; else they would fill the
    /// window, and the repair would stand still until the next, longer time-out.
    fn resume_repair(&mut self) {
        self.force = true;
        self.inferred = 0;
        self.board.mark_due(|_| true);
        if let Some(last) = self.board.last() {
            self.episode = Episode::Timeout { until: last.end };
        }
    }

    /// Finds losses; returns the bytes.
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

    /// RFC 8985 §6.2 steps 4 and 5. The RFC has one deadline for all that is late; here the oldest has its
    /// own, because it is known for free, and the next one follows.
    fn detect_by_time(
        &mut self,
        now: Instant,
        mss: u64,
        rtt_min: Option<Duration>,
        srtt: Option<Duration>,
    ) -> (u64, Option<Instant>) {
        let certain = self.duplicate_acks >= self.threshold
            || self.board.sacked() >= u64::from(self.threshold) * mss
            || self.episode != Episode::Open;
        let patience = self.rack.patience(certain, rtt_min, srtt);
        let (number, end) = (self.rack.number, self.rack.end);
        let (lost, waits) =
            self.board.mark_overdue(number, end, |sent_at| sent_at + patience <= now);
        (lost, waits.map(|sent_at| sent_at + patience))
    }

    /// RFC 6675 §5 steps 1 to 4, and (C) while in recovery. After a time-out SACK shows only what need not be
    /// resent (§5.1).
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
                let asked = self.probe.is_some_and(|probe| ack.to < probe.end);
                let enough = asked || self.duplicate_acks >= self.threshold(ack);
                // Else this may answer what the time-out has resent for nothing.
                let news = self.timeout_until.is_none_or(|until| ack.to > until);
                duplicate && enough && news
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

    /// Duplicate ACKs that indicate a loss: fewer when the flight is too small to cause as many (RFC 5827 §3.1).
    fn threshold(&self, ack: &Ack<'_>) -> u32 {
        let segments = self.board.outstanding().div_ceil(ack.mss.max(1));
        let early = self.options.early_retransmit && !ack.can_send_new;
        if early && (2..=EARLY_SEGMENTS_MAX).contains(&segments) {
            self.threshold.min(segments as u32 - 1)
        } else {
            self.threshold
        }
    }

    /// Moves between episodes; returns whether one has ended.
    fn turn(&mut self, una: Position, report: &mut Report) -> bool {
        let mut ended = false;
        if let Episode::Fast { until } | Episode::Timeout { until } = self.episode {
            report.after_timeout = self.is_repairing_timeout();
            report.may_grow = report.after_timeout;
            ended = una >= until;
            if ended {
                self.close();
            }
        }
        if self.episode == Episode::Open {
            if self.board.has_lost() {
                self.begin();
                report.reduce = true;
            } else {
                // What ends fast recovery has been paid for: the window is the threshold (RFC 6582 §3.2).
                report.may_grow = !report.reduce && (!ended || report.after_timeout);
            }
        }
        ended
    }

    /// An episode is over.
    fn close(&mut self) {
        self.episode = Episode::Open;
        self.duplicate_acks = 0;
        self.inferred = 0;
        self.force = false;
        self.probe = None;
        self.prr = None;
        self.f_rto = FRto::Off;
    }

    /// Fast recovery begins.
    fn begin(&mut self) {
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

    /// Brings the window in step with `report`, after the congestion controller was notified: `ssthresh` is its
    /// threshold. Does nothing outside fast recovery.
    #[inline]
    pub(super) fn regulate(&mut self, report: &Report, ssthresh: Option<u64>, mss: u64) {
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

    /// The reordering timer has run out: like an acknowledgement of nothing.
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
            self.begin();
            report.reduce = true;
        }
        report
    }

    /// The retransmission timer has run out. With RACK what was sent lately stays in flight (RFC 8985 §6.3), else
    /// everything is presumed lost (RFC 6675 §5.1).
    pub(super) fn on_timeout(
        &mut self,
        now: Instant,
        rtt_min: Option<Duration>,
        srtt: Option<Duration>,
    ) {
        // RFC 2018 §8: a sacked record at SND.UNA should have been acknowledged; the peer has reneged.
        if self.board.first().is_some_and(|record| record.fate == RecordState::Sacked) {
            self.board.forget_sacks();
        }
        let by_time = self.sack && self.options.rack;
        let patience = self.rack.patience(true, rtt_min, srtt);
        self.board.mark_due(|sent_at| !by_time || sent_at + patience <= now);
        let Some(last) = self.board.last() else { return };
        let until = last.end;
        let was_fast = self.is_fast();
        if self.episode == Episode::Open {
            self.undo = Some(Undo::new(self.board.una(), true));
        }
        self.close();
        self.episode = Episode::Timeout { until };
        self.timeout_until = Some(until);
        self.force = true;
        // RFC 5682 §3.1: in fast recovery a loss is known already.
        if self.options.f_rto && !was_fast {
            self.f_rto = FRto::First;
        }
    }

    /// The path has become narrower: what is larger than `mss` payload bytes is lost, and not because of
    /// congestion. Repaired as after a time-out, but without a reduction of the window (RFC 1191 §6.4).
    pub(super) fn on_narrow_path(&mut self, mss: u64) {
        // Of a super-segment the last piece may have passed: it is sent twice then.
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

    /// Records and log entries looked at since the start.
    #[cfg(test)]
    pub(super) fn steps(&self) -> u64 {
        self.board.steps.get()
    }
}

/// The later of two times, one of which there may not be.
fn later(one: Option<Instant>, other: Instant) -> Instant {
    one.map_or(other, |one| one.max(other))
}
