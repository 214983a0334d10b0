//! Loss recovery: what is lost, and what an acknowledgement says about the path.
//!
//! With SACK, losses are found by time, as in RACK (RFC 8985): a record is lost when one that was
//! sent later has been delivered and a reordering window has passed. The window is 0 once
//! `duplicate_ack_threshold` segments are sacked and no reordering was ever seen (then this is RFC
//! 6675's rule), else a quarter of the smallest RTT. Because retransmissions carry a time too, a lost
//! retransmission is found the same way. A tail loss probe (RFC 8985 s7) turns a lost tail into this case.
//!
//! Without SACK: NewReno (RFC 6582). Duplicate ACKs count as one delivered segment each, which
//! yields limited transmit (RFC 3042) and the inflation of RFC 5681 s3.2 from the same sum.
//!
//! Both send while `pipe < cwnd`, lost bytes first (RFC 6675 s5). One reduction of the window for
//! each episode; an episode ends when everything that was sent at its start is acknowledged.

mod scoreboard;

use self::scoreboard::{Fate, Record, Scoreboard};
use super::seq::Position;
use crate::time::{Duration, Instant};

/// Assumed delay of a peer's delayed ACK when one segment is in flight (RFC 8985 s7.2,
/// TLP.max_ack_delay): twice Linux' and our own 40 ms and a bit, so that an ACK sent at the last moment,
/// by a timer that is late, is still in time.
const PEER_ACK_DELAY: Duration = Duration::from_millis(100);
/// Smallest probe time-out: below it, a peer's process that waits for a processor looks like loss.
const PROBE_TIMEOUT_MIN: Duration = Duration::from_millis(10);
/// Probe time-out without an RTT sample (RFC 8985 s7.2).
const PROBE_TIMEOUT_INITIAL: Duration = Duration::from_secs(1);

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

/// The most recently sent segment known to be delivered (RFC 8985 s5.2).
#[derive(Clone, Copy, Debug)]
struct Rack {
    /// Number of its transmission; RFC 8985 orders by time, which a batch shares.
    number: u64,
    end: Position,
    rtt: Duration,
    /// Highest byte delivered (RACK.fack).
    highest: Position,
    reordering_seen: bool,
}

#[derive(Clone, Copy, Debug)]
struct TailProbe {
    end: Position,
    retransmission: bool,
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
    pub(super) mss: u64,
    pub(super) rtt_min: Option<Duration>,
}

/// What an acknowledgement brought.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Report {
    /// Bytes newly acknowledged by SND.UNA.
    pub(super) acked: u64,
    /// RTT of the newest segment that was sent once.
    pub(super) rtt: Option<Duration>,
    /// The congestion window may grow.
    pub(super) may_grow: bool,
    /// A time-out is being repaired.
    pub(super) after_timeout: bool,
    /// Fast recovery has begun: reduce the window.
    pub(super) reduce: bool,
    /// A record will be presumed lost then, if nothing is heard.
    pub(super) reordering_deadline: Option<Instant>,
}

/// Loss recovery of one connection.
#[derive(Debug)]
pub(super) struct Recovery {
    board: Scoreboard,
    episode: Episode,
    sack: bool,
    threshold: u32,
    duplicate_acks: u32,
    /// Bytes taken as delivered because of duplicate ACKs (without SACK).
    inferred: u64,
    rack: Rack,
    probe: Option<TailProbe>,
    /// The first retransmission of an episode does not wait for the window (RFC 6675 s5 step 4.3).
    force: bool,
}

impl Recovery {
    pub(super) fn new(una: Position, sack: bool, threshold: u8) -> Self {
        Self {
            board: Scoreboard::new(una),
            episode: Episode::Open,
            sack,
            threshold: u32::from(threshold.max(1)),
            duplicate_acks: 0,
            inferred: 0,
            rack: Rack {
                number: 0,
                end: una,
                rtt: Duration::ZERO,
                highest: una,
                reordering_seen: false,
            },
            probe: None,
            force: false,
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

    /// Bytes presumed on the wire.
    pub(super) fn in_flight(&self) -> u64 {
        self.board.in_flight().saturating_sub(self.inferred)
    }

    /// Nothing is unacknowledged.
    pub(super) fn is_idle(&self) -> bool {
        self.board.is_empty()
    }

    /// Fast recovery is under way: its reduction of the window stands for the flight.
    pub(super) fn is_fast(&self) -> bool {
        matches!(self.episode, Episode::Fast { .. })
    }

    /// A time-out is being repaired.
    pub(super) fn is_repairing_timeout(&self) -> bool {
        matches!(self.episode, Episode::Timeout { .. })
    }

    /// The first run of bytes to resend, and whether it may go out beyond the congestion window.
    pub(super) fn next_lost(&mut self) -> Option<(Position, Position, bool)> {
        self.board.next_lost().map(|(start, end)| (start, end, self.force))
    }

    /// `start..end` was sent, now. `resent`: some of it was on the wire before.
    pub(super) fn sent(&mut self, start: Position, end: Position, resent: bool, now: Instant) {
        if resent {
            self.force = false;
        }
        self.board.sent(start, end, resent, now);
    }

    /// Processes an acknowledgement.
    pub(super) fn on_ack(&mut self, ack: &Ack<'_>) -> Report {
        let mut report = Report::default();
        let in_order = self.board.is_in_order();
        let rack = &mut self.rack;
        // Karn: an ACK that covers a retransmission may have waited for it, so it says nothing about the
        // segments behind it either.
        let (mut newest, mut ambiguous) = (None, false);
        report.acked = self.board.acknowledge(ack.to, |record| {
            rack.deliver(record, ack.now, ack.rtt_min);
            newest = newest.max(Some(record.sent_at));
            ambiguous |= record.resent;
        });
        if ambiguous {
            newest = None;
        }
        let mut sacked = 0;
        if self.sack {
            for &(start, end) in ack.sacks {
                sacked += self.board.sack(start, end, |record| {
                    rack.deliver(record, ack.now, ack.rtt_min);
                    if !record.resent {
                        newest = newest.max(Some(record.sent_at));
                    }
                });
            }
        }
        report.rtt = newest.map(|sent| ack.now - sent);
        let rtt_min = [ack.rtt_min, report.rtt].into_iter().flatten().min();
        self.count_duplicates(ack, report.acked, sacked);
        if self.judge_probe(ack) {
            report.reduce = true;
        }
        if self.sack {
            if !(in_order && self.board.is_in_order()) {
                report.reordering_deadline = self.detect(ack.now, ack.mss, rtt_min);
            }
        } else {
            self.detect_by_duplicates(ack, report.acked);
        }
        self.turn(ack.to, &mut report);
        report
    }

    fn count_duplicates(&mut self, ack: &Ack<'_>, acked: u64, sacked: u64) {
        if acked > 0 {
            self.duplicate_acks = 0;
            // RFC 6582 s3.2 step 3: deflate by what the partial ACK covers, less the hole itself.
            self.inferred = self
                .inferred
                .saturating_sub(acked.saturating_sub(ack.mss))
                .min(self.board.in_flight());
            return;
        }
        if self.board.is_empty() {
            return;
        }
        if sacked > 0 {
            self.duplicate_acks += 1;
        } else if ack.bare && !self.sack {
            self.duplicate_acks += 1;
            self.inferred = (self.inferred + ack.mss).min(self.board.in_flight());
        }
    }

    /// RFC 8985 s7.4.2: whether a probe has repaired a loss that nobody else noticed.
    fn judge_probe(&mut self, ack: &Ack<'_>) -> bool {
        let Some(probe) = self.probe.filter(|probe| ack.to >= probe.end) else { return false };
        if !probe.retransmission || ack.duplicate_report.is_some() {
            self.probe = None;
            return false;
        }
        if ack.to > probe.end {
            self.probe = None;
            return self.episode == Episode::Open;
        }
        if ack.bare && ack.sacks.is_empty() && self.duplicate_acks > 0 {
            self.probe = None;
        }
        false
    }

    /// RFC 8985 s6.2 steps 4 and 5.
    fn detect(&mut self, now: Instant, mss: u64, rtt_min: Option<Duration>) -> Option<Instant> {
        let enough = self.duplicate_acks >= self.threshold
            || self.board.sacked() >= u64::from(self.threshold) * mss
            || self.episode != Episode::Open;
        let window = if enough && !self.rack.reordering_seen {
            Duration::ZERO
        } else {
            rtt_min.unwrap_or_default() / 4
        };
        let rack = self.rack;
        let mut deadline = None;
        self.board.mark_lost(|record| {
            if (record.number, record.end) >= (rack.number, rack.end) {
                return false;
            }
            let due = record.sent_at + rack.rtt + window;
            if due > now {
                deadline = deadline.max(Some(due));
            }
            due <= now
        });
        deadline
    }

    /// RFC 6582 s3.2 steps 2 and 3.
    fn detect_by_duplicates(&mut self, ack: &Ack<'_>, acked: u64) {
        let start = match self.episode {
            Episode::Open => self.duplicate_acks == self.threshold,
            Episode::Fast { until } => acked > 0 && ack.to < until,
            Episode::Timeout { .. } => false,
        };
        if start {
            self.board.mark_first_lost(ack.mss);
            self.force = true;
        }
    }

    /// Moves between episodes.
    fn turn(&mut self, una: Position, report: &mut Report) {
        match self.episode {
            Episode::Open => {}
            Episode::Fast { until } | Episode::Timeout { until } => {
                report.after_timeout = self.is_repairing_timeout();
                report.may_grow = report.after_timeout;
                if una >= until {
                    self.episode = Episode::Open;
                    self.inferred = 0;
                    self.force = false;
                    self.probe = None;
                }
            }
        }
        if self.episode == Episode::Open {
            if self.board.has_lost() {
                self.begin();
                report.reduce = true;
            } else {
                report.may_grow = !report.reduce;
            }
        }
    }

    fn begin(&mut self) {
        if let Some(last) = self.board.last() {
            self.episode = Episode::Fast { until: last.end };
        }
        self.force = true;
        self.probe = None;
    }

    /// The reordering timer has run out. Returns whether an episode begins, and the next deadline.
    pub(super) fn on_reordering_timeout(
        &mut self,
        now: Instant,
        mss: u64,
        rtt_min: Option<Duration>,
    ) -> (bool, Option<Instant>) {
        let deadline = self.detect(now, mss, rtt_min);
        let begins = self.episode == Episode::Open && self.board.has_lost();
        if begins {
            self.begin();
        }
        (begins, deadline)
    }

    /// The retransmission timer has run out: everything in flight is presumed lost (RFC 6675 s5.1).
    pub(super) fn on_timeout(&mut self) {
        // RFC 2018 s8: a sacked record at SND.UNA should have been acknowledged; the peer has reneged.
        if self.board.first().is_some_and(|record| record.fate == Fate::Sacked) {
            self.board.forget_sacks();
        }
        self.board.mark_lost(|_| true);
        if let Some(last) = self.board.last() {
            self.episode = Episode::Timeout { until: last.end };
        }
        self.duplicate_acks = 0;
        self.inferred = 0;
        self.probe = None;
        self.force = true;
    }

    /// The path has become narrower: what is larger than `mss` payload bytes is lost, and not because of
    /// congestion. Repaired as after a time-out, but nobody reduces the window (RFC 1191 s6.4).
    pub(super) fn on_narrow_path(&mut self, mss: u64) {
        // Of a super-segment the last piece may have passed: it is sent twice then.
        self.board.mark_lost(|record| record.len() > mss);
        let Some(last) = self.board.last().filter(|_| self.board.has_lost()) else { return };
        if self.episode == Episode::Open {
            self.episode = Episode::Timeout { until: last.end };
        }
        self.inferred = self.inferred.min(self.board.in_flight());
        self.probe = None;
        self.force = true;
    }

    /// Delay of a tail loss probe from now; `None` when none is allowed (RFC 8985 s7.2).
    pub(super) fn probe_timeout(&self, srtt: Option<Duration>, mss: u64) -> Option<Duration> {
        let quiet = match self.episode {
            Episode::Open => self.board.sacked() == 0,
            // Beyond RFC 8985: in fast recovery the last retransmissions are a tail too.
            Episode::Fast { .. } => true,
            Episode::Timeout { .. } => false,
        };
        let allowed = self.sack
            && quiet
            && self.probe.is_none()
            && !self.board.has_lost()
            && self.board.in_flight() > 0;
        let timeout = srtt.map_or(PROBE_TIMEOUT_INITIAL, |srtt| srtt * 2);
        let lone = self.board.in_flight() <= mss;
        let timeout = timeout + if lone { PEER_ACK_DELAY } else { Duration::ZERO };
        allowed.then(|| timeout.max(PROBE_TIMEOUT_MIN))
    }

    /// A tail loss probe was sent that ends at `end`.
    pub(super) fn probe_sent(&mut self, end: Position, retransmission: bool) {
        self.probe = Some(TailProbe { end, retransmission });
    }

    /// The bytes that a probe without new data resends: the last segment in flight, or in fast
    /// recovery the first, because its loss would hold up everything else.
    pub(super) fn probe_bytes(&self, mss: u64) -> Option<(Position, Position)> {
        let mss = mss.max(1);
        if self.episode == Episode::Open {
            let last = self.board.last()?;
            let skip = last.len().saturating_sub(mss);
            return Some((last.start + skip, last.end));
        }
        let first = self.board.first_in_flight()?;
        Some((first.start, first.end.min(first.start + mss)))
    }

    /// Whether a probe prefers new data to old (RFC 8985 s7.3).
    pub(super) fn probes_with_new_data(&self) -> bool {
        self.episode == Episode::Open
    }
}

impl Rack {
    /// RFC 8985 s6.2 steps 2 and 3.
    fn deliver(&mut self, record: &Record, now: Instant, rtt_min: Option<Duration>) {
        let rtt = now - record.sent_at;
        if record.end > self.highest {
            self.highest = record.end;
        } else if !record.resent {
            self.reordering_seen = true;
        }
        // Too fast for the retransmission: this acknowledges the original.
        if record.resent && rtt_min.is_some_and(|min| rtt < min) {
            return;
        }
        if (record.number, record.end) > (self.number, self.end) {
            self.number = record.number;
            self.end = record.end;
            self.rtt = rtt;
        }
    }
}
