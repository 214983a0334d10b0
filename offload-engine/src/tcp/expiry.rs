//! Timer expiry.

use super::{
    Connection, TcpPhase, Timer, UploadReason, congestion::Congestion, input::CHALLENGE_KEEP_ALIVE,
    timers,
};
use crate::time::{Duration, Instant};

/// Use so far of the limit for an unacknowledged segment or unanswered probes.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    spent: Duration,
    /// Retransmissions or probes.
    count: u8,
}

impl Connection {
    /// Handles every timer that is due at `now`. Call [`Connection::poll_transmit`] afterwards.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        for timer in timers::ALL {
            if self.timers.expire(timer, now) {
                self.on_expiry(timer);
            }
        }
    }

    fn on_expiry(&mut self, timer: Timer) {
        match timer {
            Timer::Retransmit => self.on_retransmission_timeout(),
            Timer::TailProbe => self.on_tail_probe(),
            Timer::Reordering => self.on_reordering(),
            Timer::Persist => self.on_persist(),
            Timer::DelayedAck => self.receiver.ack_now(),
            Timer::KeepAlive => self.on_keep_alive(),
            // Expiry only makes poll_transmit due.
            Timer::Pacing => {}
            Timer::Push => self.on_push_timeout(),
            Timer::Activity => self.on_activity_timeout(),
            Timer::Close => self.on_close_timeout(),
        }
    }

    /// RFC 6298 §5.4 to §5.6, RFC 5681 §3.1.
    fn on_retransmission_timeout(&mut self) {
        if self.recovery.is_idle() {
            return;
        }
        let since = *self.attempts.since.get_or_insert(self.now);
        let attempt = Attempt {
            spent: self.attempts.spent + (self.now - since),
            count: self.attempts.retransmissions,
        };
        let Some(left) = self.time_left(attempt) else {
            self.stop(UploadReason::TimeoutExpiration);
            return;
        };
        let outstanding = self.snd.nxt.since(self.snd.una).min(self.congestion.cwnd());
        // One reduction per flight, even if fast recovery did not repair it.
        let first = self.attempts.retransmissions == 0 && !self.recovery.is_fast();
        // Before the reduction, because the window after a timeout is one segment.
        self.detect_black_hole(self.attempts.retransmissions.saturating_add(1));
        self.congestion.on_rto(self.now, outstanding, first);
        self.recovery.on_timeout(self.now, self.rtt.min(), self.rtt.srtt());
        self.rtt.back_off();
        self.attempts.retransmissions = self.attempts.retransmissions.saturating_add(1);
        self.counters.timeouts += 1;
        self.pending.tail_probe = false;
        self.timers.stop(Timer::TailProbe);
        self.timers.stop(Timer::Reordering);
        self.timers.set(Timer::Retransmit, self.now + self.rtt.rto().min(left));
    }

    /// Time left for retransmissions or probes; `None` if they have failed. MaxRT (CH §3.5) is the user timeout of RFC
    /// 9293 §3.8.3 and RFC 5482: a time, 0 for a count, or none for no limit.
    fn time_left(&self, attempt: Attempt) -> Option<Duration> {
        let Attempt { spent, count } = attempt;
        match self.cached.max_rt {
            None => Some(Duration::MAX),
            Some(0) => (count < self.config.retransmissions_max).then_some(Duration::MAX),
            Some(ticks) => Duration::from_millis(u64::from(ticks))
                .checked_sub(spent)
                .filter(|left| !left.is_zero()),
        }
    }

    /// RFC 8985 §7.3.
    fn on_tail_probe(&mut self) {
        if self.recovery.is_idle() {
            return;
        }
        self.pending.tail_probe = true;
        self.timers.set(Timer::Retransmit, self.rtt.timeout(self.now));
    }

    /// RFC 8985 §6.3.
    fn on_reordering(&mut self) {
        let outstanding = self.snd.nxt.since(self.snd.una).min(self.congestion.cwnd());
        let (rtt_min, srtt) = (self.rtt.min(), self.rtt.srtt());
        let report = self.recovery.on_reordering_timeout(self.now, self.mss, rtt_min, srtt);
        if report.reduce {
            self.congestion.on_loss(self.now, outstanding);
            self.counters.fast_retransmits += 1;
        }
        self.recovery.update_prr(&report, self.congestion.ssthresh(), self.mss);
        if let Some(deadline) = report.reordering_deadline {
            self.timers.set(Timer::Reordering, deadline);
        }
    }

    /// CH §10.4, or the override of silly window avoidance.
    fn on_persist(&mut self) {
        if !self.window_closed() {
            self.pending.small_segment = true;
            return;
        }
        // With a time limit, probe responses do not matter: the data is not accepted (RFC 5482 §3).
        let since = *self.attempts.closed_since.get_or_insert(self.now);
        let attempt = Attempt {
            spent: self.attempts.spent + (self.now - since),
            count: self.attempts.probes,
        };
        let Some(left) = self.time_left(attempt) else {
            self.stop(UploadReason::TimeoutExpiration);
            return;
        };
        self.pending.window_probe = true;
        let timeout = self.rtt.rto_shifted(u32::from(self.attempts.probes)).min(left);
        self.attempts.probes = self.attempts.probes.saturating_add(1);
        self.timers.set(Timer::Persist, self.now + timeout);
    }

    /// CH §10.5, §9.2.
    fn on_keep_alive(&mut self) {
        if !self.recovery.is_idle() || self.window_closed() {
            // RFC 9293 §3.8.4 (MUST-26): outstanding data probes the peer by itself.
            let idle = match self.cached.keep_alive_enabled {
                true => self.cached.keep_alive_idle(),
                false => CHALLENGE_KEEP_ALIVE,
            };
            self.timers.set(Timer::KeepAlive, self.now + idle);
            return;
        }
        if self.attempts.keep_alives >= self.cached.keep_alive_probes() {
            // CH §9.2: the host did not enable keep-alive.
            if self.challenges.keep_alive_armed {
                self.stop_closed(UploadReason::TimeoutExpiration);
            } else {
                self.stop(UploadReason::TimeoutExpiration);
            }
            return;
        }
        self.attempts.keep_alives += 1;
        self.pending.keep_alive = true;
        let interval = self.cached.keep_alive_interval();
        self.timers.set(Timer::KeepAlive, self.now + interval);
    }

    /// FIN_WAIT_2 (CH §10.7) or TIME_WAIT.
    fn on_close_timeout(&mut self) {
        if self.phase == TcpPhase::TimeWait {
            self.end();
        } else {
            // CH §10.7.
            self.stop_closed(UploadReason::TimeoutExpiration);
        }
    }

    /// Restarts keep-alive, if enabled, after a segment of the peer (RFC 9293 §3.8.4).
    pub(super) fn restart_keep_alive(&mut self) {
        // TIME-WAIT has one timer, and no keep-alive.
        if self.cached.keep_alive_enabled && self.phase != TcpPhase::TimeWait {
            self.timers.set(Timer::KeepAlive, self.now + self.cached.keep_alive_idle());
        } else {
            self.timers.stop(Timer::KeepAlive);
        }
    }

    /// Ticks of the chimney until `timer` expires; `None` if it is not running.
    pub(super) fn ticks_left(&self, timer: Timer, now: Instant) -> Option<u32> {
        let left = self.timers.deadline(timer)? - now;
        Some(u32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX - 1))
    }
}
