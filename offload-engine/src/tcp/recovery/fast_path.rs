//! ACK fast path: SND.UNA advances over data sent once, without loss or reordering.
//!
//! [`Recovery::on_ack_slow`] checks every acknowledgment for probes, duplicates, reordering, the end of an episode and
//! spurious losses. Most of these checks are not needed here.

use super::{Ack, Delivery, Episode, Recovery, Report};

impl Recovery {
    /// True if there is no loss and `ack` advances SND.UNA over data sent once. [`Recovery::on_ack_fast`] then does the
    /// remaining checks of [`Recovery::on_ack_slow`].
    pub(super) fn takes_fast_path(&self, ack: &Ack<'_>, delivery: &Delivery) -> bool {
        delivery.acked > 0
            && !delivery.ambiguous
            && self.episode == Episode::Open
            && self.probe.is_none()
            && self.inferred == 0
            && self.board.sacked() == 0
            && !self.board.has_lost()
            && ack.sacks.is_empty()
            && ack.dsack.is_none()
    }

    /// Equivalent of [`Recovery::on_ack_slow`] for an acknowledgment that [`Recovery::takes_fast_path`].
    pub(super) fn on_ack_fast(
        &mut self,
        ack: &Ack<'_>,
        delivery: &Delivery,
        flight: u64,
    ) -> Report {
        let known = u64::from(core::mem::take(&mut self.duplicate_acks)) * ack.mss;
        let Delivery { acked, bytes, newest, .. } = *delivery;
        let mut report = Report {
            acked,
            delivered: if self.sack { bytes } else { acked.saturating_sub(known) },
            rtt: newest.map(|sent| ack.now - sent),
            flight,
            ..Report::default()
        };
        self.record_reordering(delivery);
        let by_time = self.options.rack && self.sack;
        // Data older than a delivered retransmission may still be in flight, and is then overdue.
        if by_time && self.board.has_older(self.rack.number) {
            report.lost = self.detect(ack, &mut report);
        }
        self.update_episode(ack.to, &mut report);
        if by_time {
            self.rack.adapt(ack.to, self.board.nxt(), false, false);
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use alloc::{format, vec::Vec};

    use proptest::prelude::*;

    use super::{
        super::{Ack, Position, RecoveryOptions},
        *,
    };
    use crate::{
        tcp::SeqNum,
        time::{Duration, Instant},
    };

    const MSS: u64 = 1000;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Send,
        Acknowledge,
        Sack,
        Resend,
        Probe,
        TimeOut,
        Reorder,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => Just(Step::Send),
            6 => Just(Step::Acknowledge),
            2 => Just(Step::Sack),
            2 => Just(Step::Resend),
            1 => Just(Step::Probe),
            1 => Just(Step::TimeOut),
            1 => Just(Step::Reorder),
        ]
    }

    /// Applies one step to each of `both`; the second uses the slow path.
    fn apply(both: &mut [Recovery; 2], now: Instant, step: Step, bytes: u64) -> Vec<Report> {
        let (una, nxt) = (both[0].board.una(), both[0].board.nxt());
        let (rtt_min, srtt) = (Some(Duration::from_millis(2)), Some(Duration::from_millis(3)));
        let reports = both.iter_mut().enumerate().map(|(index, recovery)| {
            let mut to = una;
            let mut sacks = [(nxt, nxt)];
            let mut count = 0;
            match step {
                Step::Send => recovery.sent(nxt, nxt + bytes, false, now),
                Step::Resend => {
                    if let Some((start, end, _)) = recovery.next_lost(MSS) {
                        recovery.sent(start, end, true, now);
                    }
                }
                Step::Probe if una < nxt && recovery.may_probe() => {
                    let (start, end) = recovery.probe_bytes(MSS).expect("bytes in flight");
                    recovery.sent(start, end, true, now);
                    recovery.probe_sent(end, true);
                }
                Step::TimeOut if una < nxt => recovery.on_timeout(now, rtt_min, srtt),
                Step::Reorder => return recovery.on_reordering_timeout(now, MSS, rtt_min, srtt),
                Step::Probe | Step::TimeOut => {}
                Step::Acknowledge => to = (una + bytes).min(nxt),
                Step::Sack => {
                    sacks[0].0 = (una + bytes).min(nxt);
                    count = usize::from(sacks[0].0 > una && sacks[0].0 < nxt);
                }
            }
            if !matches!(step, Step::Acknowledge | Step::Sack) {
                return Report::default();
            }
            let ack = Ack {
                now,
                to,
                sacks: &sacks[..count],
                dsack: None,
                bare: true,
                can_send_new: false,
                echo: None,
                mss: MSS,
                rtt_min,
                srtt,
            };
            if index == 0 {
                return recovery.on_ack(&ack);
            }
            let flight = recovery.flight();
            let delivery = recovery.deliver(&ack);
            recovery.on_ack_slow(&ack, &delivery, flight)
        });
        reports.collect()
    }

    proptest! {
        // After any history, the fast path gives the same result as the slow path.
        #[test]
        fn fast_path_matches_slow_path(
            [sack, rack, limited, early]: [bool; 4],
            steps in prop::collection::vec((step(), 1u64..4 * MSS, 0u64..4_000), 1..80),
        ) {
            let options = RecoveryOptions {
                rack,
                limited_transmit: limited,
                early_retransmit: early,
                ..RecoveryOptions::default()
            };
            let una = Position::first(SeqNum(u32::MAX - 5_000));
            let mut both = [0, 1].map(|_| Recovery::new(una, sack, 3, options));
            let mut now = Instant::from_millis(1);
            for (step, bytes, micros) in steps {
                now += Duration::from_micros(micros);
                let reports = apply(&mut both, now, step, bytes);
                prop_assert_eq!(reports[0], reports[1]);
                for recovery in &mut both {
                    recovery.update_prr(&reports[0], Some(5 * MSS), MSS);
                }
                let [one, other] = both.each_ref().map(|recovery| format!("{recovery:?}"));
                prop_assert_eq!(one, other);
            }
        }
    }
}
