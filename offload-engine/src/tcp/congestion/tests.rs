//! Unit tests of the controllers. Those of CUBIC are in its own module.

use alloc::vec::Vec;

use super::{window::Window, *};

pub(super) const MSS: u64 = 1448;

pub(super) fn window(cwnd: u64, ssthresh: Option<u64>) -> Window {
    let ssthresh = ssthresh.map_or(u32::MAX, |ssthresh| ssthresh as u32);
    let options = CongestionOptions { hystart: false, ..CongestionOptions::default() };
    Window::new(MSS, cwnd as u32, ssthresh, options)
}

pub(super) fn ack(acked: u64) -> AckSample {
    AckSample {
        now: Instant::ZERO,
        acked,
        limited: true,
        after_timeout: false,
        rtt: None,
        srtt: None,
        round_begins: false,
    }
}

pub(super) fn ack_at(now: Instant, acked: u64, rtt: Duration) -> AckSample {
    AckSample { now, rtt: Some(rtt), srtt: Some(rtt), ..ack(acked) }
}

mod shared {
    use super::*;

    // RFC 6928 §2.
    #[test]
    fn initial_window_is_ten_segments() {
        let first = |mss, cwnd| {
            let options = CongestionOptions::default();
            NewReno::new(Window::new(mss, cwnd, u32::MAX, options)).cwnd()
        };
        assert_eq!(first(MSS, 0), 10 * MSS);
        assert_eq!(first(1460, 0), 14_600);
        assert_eq!(first(8960, 0), 2 * 8960);
        assert_eq!(first(1, 0), 10);
        assert_eq!(first(MSS, 5_000), 5_000);
    }

    // RFC 5681 §4.1, RFC 2861 §3: the restart window, and a threshold that returns to the old window.
    #[test]
    fn idle_window_restarts() {
        for mut controller in [
            Controller::NewReno(NewReno::new(window(100 * MSS, Some(50 * MSS)))),
            Controller::Cubic(Cubic::new(window(100 * MSS, Some(50 * MSS)))),
        ] {
            controller.on_idle();
            assert_eq!((controller.cwnd(), controller.ssthresh()), (10 * MSS, Some(75 * MSS)));
            controller.on_idle();
            assert_eq!((controller.cwnd(), controller.ssthresh()), (10 * MSS, Some(75 * MSS)));
        }
        let mut never_lost = NewReno::new(window(100 * MSS, None));
        never_lost.on_idle();
        assert_eq!((never_lost.cwnd(), never_lost.ssthresh()), (10 * MSS, None));
    }

    // RFC 2861 §3: halfway per RTO, not below the initial window.
    #[test]
    fn underused_window_decays() {
        for mut controller in [
            Controller::NewReno(NewReno::new(window(100 * MSS, Some(40 * MSS)))),
            Controller::Cubic(Cubic::new(window(100 * MSS, Some(40 * MSS)))),
        ] {
            controller.on_underuse(20 * MSS);
            assert_eq!((controller.cwnd(), controller.ssthresh()), (60 * MSS, Some(75 * MSS)));
            controller.on_underuse(0);
            assert_eq!(controller.cwnd(), 35 * MSS);
            for _ in 0..20 {
                controller.on_underuse(0);
            }
            assert_eq!((controller.cwnd(), controller.ssthresh()), (10 * MSS, Some(75 * MSS)));
        }
    }

    // RFC 5681 §3.1, RFC 9438 §5.8: an unused window does not grow, in either phase.
    #[test]
    fn unused_window_does_not_grow() {
        for ssthresh in [None, Some(5 * MSS)] {
            for mut controller in [
                Controller::NewReno(NewReno::new(window(10 * MSS, ssthresh))),
                Controller::Cubic(Cubic::new(window(10 * MSS, ssthresh))),
            ] {
                let rtt = Duration::from_millis(100);
                for n in 1..200 {
                    let now = Instant::from_millis(100 * n);
                    controller.on_ack(AckSample { limited: false, ..ack_at(now, 8 * MSS, rtt) });
                }
                assert_eq!((controller.cwnd(), controller.ssthresh()), (10 * MSS, ssthresh));
            }
        }
    }
}

mod newreno {
    use super::*;

    // RFC 5681 §3.1: exponential below ssthresh, one MSS per window above.
    #[test]
    fn slow_start_then_avoidance() {
        let mut reno = NewReno::new(window(0, Some(20 * MSS)));
        reno.on_ack(ack(10 * MSS));
        assert_eq!(reno.cwnd(), 20 * MSS);
        assert!(!reno.in_slow_start());
        reno.on_ack(ack(19 * MSS));
        assert_eq!(reno.cwnd(), 20 * MSS);
        reno.on_ack(ack(MSS));
        assert_eq!(reno.cwnd(), 21 * MSS);
    }

    // RFC 5681 §3.2 and equation 4; RFC 3465 §2.3.
    #[test]
    fn loss_halves_and_timeout_resets_window() {
        let mut reno = NewReno::new(window(100 * MSS, None));
        reno.on_loss(Instant::ZERO, 100 * MSS);
        assert_eq!((reno.cwnd(), reno.ssthresh()), (50 * MSS, Some(50 * MSS)));
        reno.on_rto(Instant::ZERO, 40 * MSS, true);
        assert_eq!((reno.cwnd(), reno.ssthresh()), (MSS, Some(20 * MSS)));
        reno.on_rto(Instant::ZERO, MSS, false);
        assert_eq!(reno.ssthresh(), Some(20 * MSS));
        reno.on_ack(AckSample { after_timeout: true, ..ack(9 * MSS) });
        assert_eq!(reno.cwnd(), 2 * MSS);
        reno.on_loss(Instant::ZERO, MSS);
        assert_eq!(reno.ssthresh(), Some(2 * MSS));
    }

    // RFC 5682 §4: a spurious reduction is undone, once.
    #[test]
    fn undo_restores_window() {
        let mut reno = NewReno::new(window(100 * MSS, None));
        reno.on_rto(Instant::ZERO, 100 * MSS, true);
        reno.on_rto(Instant::ZERO, MSS, false);
        reno.undo();
        assert_eq!((reno.cwnd(), reno.ssthresh()), (100 * MSS, None));
        reno.on_ack(ack(MSS));
        reno.undo();
        assert_eq!(reno.cwnd(), 101 * MSS);
    }
}

mod hystart {
    use super::{super::hystart::HyStart, *};

    fn millis(count: u64) -> Option<Duration> {
        Some(Duration::from_millis(count))
    }

    fn observe(hystart: &mut HyStart, rtt_ms: u64, round_begins: bool) -> bool {
        hystart.observe(&AckSample { rtt: millis(rtt_ms), round_begins, ..ack(MSS) })
    }

    /// Processes a round of `samples` samples; returns true if slow start has ended.
    fn round(hystart: &mut HyStart, samples: u32, rtt_ms: u64) -> bool {
        (1..=samples).fold(false, |ended, n| ended | observe(hystart, rtt_ms, n == 1))
    }

    fn is_conservative(hystart: &HyStart) -> bool {
        hystart.growth(4, 1) == 1
    }

    // RFC 9406 §4.2: a rise is an eighth, bounded to 4 to 16 ms.
    #[test]
    fn rtt_rise_starts_conservative_phase() {
        for (before, after, rise) in [
            (10, 13, false),
            (10, 14, true),
            (80, 89, false),
            (80, 90, true),
            (400, 415, false),
            (400, 416, true),
        ] {
            let mut hystart = HyStart::new(false, true);
            round(&mut hystart, 8, before);
            round(&mut hystart, 8, after);
            assert_eq!(is_conservative(&hystart), rise, "{before} to {after} ms");
        }
    }

    // RFC 9406 §4.2: after a rise, five rounds with a quarter of the growth, including the round of its detection.
    #[test]
    fn five_conservative_rounds_end_slow_start() {
        let mut hystart = HyStart::new(false, true);
        assert!(!round(&mut hystart, 8, 50));
        assert!(!round(&mut hystart, 20, 60));
        assert_eq!(hystart.growth(4 * MSS, MSS), MSS);
        for _ in 0..4 {
            assert!(!round(&mut hystart, 8, 70));
        }
        assert!(round(&mut hystart, 1, 70), "slow start ends with the sixth round");
    }

    // RFC 9406 §4.2: an RTT below that at the start of the phase means jitter.
    #[test]
    fn jitter_resumes_slow_start() {
        let mut hystart = HyStart::new(false, true);
        round(&mut hystart, 8, 50);
        round(&mut hystart, 8, 60);
        assert!(is_conservative(&hystart));
        round(&mut hystart, 8, 60);
        assert!(is_conservative(&hystart));
        round(&mut hystart, 8, 59);
        assert!(!is_conservative(&hystart));
    }

    // RFC 9406 §4.2: seven samples are not enough; the minimum RTT is compared.
    #[test]
    fn round_without_eight_samples_is_ignored() {
        let mut hystart = HyStart::new(false, true);
        round(&mut hystart, 8, 50);
        round(&mut hystart, 7, 200);
        assert!(!is_conservative(&hystart));
        let mut hystart = HyStart::new(false, true);
        round(&mut hystart, 8, 50);
        observe(&mut hystart, 50, true);
        for _ in 0..30 {
            observe(&mut hystart, 200, false);
        }
        assert!(!is_conservative(&hystart));
    }

    /// Returns true if slow start ends in a round of `acks` ACKs, `gap_us` apart, over an RTT of `rtt_ms`.
    fn train(mut hystart: HyStart, rtt_ms: u64, acks: u64, gap_us: u64, limited: bool) -> bool {
        (0..acks).any(|n| {
            let now = Instant::from_micros(1_000_000 + n * gap_us);
            let rtt = Duration::from_millis(rtt_ms);
            let sample = AckSample { round_begins: n == 0, limited, ..ack_at(now, MSS, rtt) };
            hystart.observe(&sample)
        })
    }

    // HyStart: ACKs without a gap for more than half of the minimum RTT, for a paced sender the whole RTT. Trains
    // limited by the producer, and short paths, do not count.
    #[test]
    fn long_ack_train_ends_slow_start() {
        let new = HyStart::new;
        assert!(train(new(false, true), 50, 27, 1_000, true));
        assert!(!train(new(false, true), 50, 26, 1_000, true), "25 ms");
        assert!(!train(new(true, true), 50, 51, 1_000, true), "50 ms, paced");
        assert!(train(new(true, true), 50, 52, 1_000, true), "paced");
        assert!(train(new(false, true), 50, 14, 2_000, true));
        assert!(!train(new(false, true), 50, 100, 2_001, true), "gaps");
        assert!(!train(new(false, true), 50, 100, 1_000, false), "not limited by the window");
        assert!(!train(new(false, true), 3, 100, 1_000, true), "RTT too short for trains");
        assert!(!train(new(false, false), 50, 100, 1_000, true), "ACK trains disabled");
    }

    // A gap ends a train, and the rest of the round may be another.
    #[test]
    fn ack_gap_starts_new_train() {
        let mut hystart = HyStart::new(false, true);
        let mut now = Instant::from_millis(1_000);
        let mut acks = |count: u64, pause_ms: u64, begins: bool| {
            now += Duration::from_millis(pause_ms);
            (0..count).any(|n| {
                now += Duration::from_millis(1);
                let sample = ack_at(now, MSS, Duration::from_millis(50));
                hystart.observe(&AckSample { round_begins: begins && n == 0, ..sample })
            })
        };
        assert!(!acks(20, 0, true));
        assert!(!acks(26, 3, false));
        assert!(acks(1, 0, false));
    }

    // RFC 9406 §4.2, L: the growth per ACK is bounded, unless the sender is paced.
    #[test]
    fn growth_per_ack_is_bounded() {
        let (unpaced, paced) = (HyStart::new(false, true), HyStart::new(true, true));
        assert_eq!(unpaced.growth(20 * MSS, MSS), 20 * MSS);
        assert_eq!(unpaced.growth(100 * MSS, MSS), 64 * 1024);
        assert_eq!(unpaced.growth(100 * 8960, 8960), 8 * 8960);
        assert_eq!(paced.growth(100 * MSS, MSS), 100 * MSS);
    }

    /// Rounds that double the flight, on a path with a queue beyond 100 segments.
    fn first_slow_start(options: CongestionOptions, ssthresh: u32) -> Cubic {
        let mut cubic = Cubic::new(Window::new(MSS, 0, ssthresh, options));
        for round in 0..7 {
            let acks = cubic.cwnd() / MSS;
            let queue = acks.saturating_sub(100);
            for n in 1..=acks {
                let rtt = Duration::from_micros(50_000 + 500 * queue);
                let now = Instant::from_millis(60 * round);
                let sample = AckSample { round_begins: n == 1, ..ack_at(now, MSS, rtt) };
                cubic.on_ack(sample);
            }
        }
        cubic
    }

    // RFC 9406 §1, §4.3: it ends near the start of the queue; without HyStart++, or after a loss, it does not.
    #[test]
    fn first_slow_start_ends_before_queue_is_full() {
        let on = CongestionOptions::default();
        let off = CongestionOptions { hystart: false, ..on };
        let stopped = first_slow_start(on, u32::MAX);
        assert!(stopped.cwnd() < 500 * MSS, "{} segments", stopped.cwnd() / MSS);
        assert_eq!(first_slow_start(off, u32::MAX).cwnd(), 1280 * MSS);
        assert_eq!(first_slow_start(on, u32::MAX - 1).cwnd(), 1280 * MSS);
    }
}

// Loss, timeout and underuse do not change an unlimited window.
#[test]
fn unlimited_window_never_changes() {
    let mut controller = Unlimited;
    let windows: Vec<_> = (0..3)
        .map(|n| {
            match n {
                0 => controller.on_loss(Instant::ZERO, 1),
                1 => controller.on_rto(Instant::ZERO, 1, true),
                _ => controller.on_underuse(0),
            }
            controller.cwnd()
        })
        .collect();
    assert_eq!(windows, [u64::MAX; 3]);
}
