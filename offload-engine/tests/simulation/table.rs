//! One flow over all kinds of paths.

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use offload_engine::{
    tcp::CongestionAlgorithm,
    time::{Duration, Instant},
};

use super::{
    network::{Link, MSS, Network, OVERHEAD, Outcome, PARTS, Source},
    snapshot,
};

const HEADER: &str = "\
# One flow of 1448-byte segments over a drop-tail bottleneck whose queue holds one bandwidth-delay product
# (at least 64 frames), SACK and timestamps on, a window of 1 GiB. Loss is random, of data only; `late` is the share of
# frames that are delayed by up to a quarter of the RTT.
#
#   goodput   bytes delivered in order, over the whole run, in Mbit/s; `steady` over its second half
#   ideal     goodput of a sender that never leaves the link idle: rate x 1448 / 1538
#   formula   limit by the response function at that loss rate p, at most `ideal`:
#             Reno  sqrt(3 / 2p) segments per RTT (RFC 5348 §3.1 without its timeouts);
#             CUBIC 1.054 x (RTT / p)^(3/4) segments per RTT, or Reno's if that is more (RFC 9438 §5.1)
#   again     retransmitted segments; `needless`: those of them that had already arrived
#   timeouts  retransmission timeouts
#   overflow  frames dropped by the full queue; `lost`: frames dropped at random
#
# FLUE_BLESS=1 cargo test -p offload-engine --test simulation   writes this file.
";

/// Algorithms of the table, with their names in it.
const ALGORITHMS: &[(CongestionAlgorithm, &str)] =
    &[(CongestionAlgorithm::Cubic, "cubic"), (CongestionAlgorithm::NewReno, "newreno")];

#[derive(Clone, Copy)]
struct Row {
    link: Link,
    algorithm: CongestionAlgorithm,
    name: &'static str,
    time: Duration,
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for &(algorithm, name) in ALGORITHMS {
        for rate in [100, 10_000] {
            for rtt in [10, 100] {
                for (loss, late) in [(0, 0), (1, 0), (10, 0), (100, 0), (500, 0), (0, 100)] {
                    let link = Link { rate, rtt: Duration::from_millis(rtt), loss, late };
                    // A lossy path requires time to reach its mean, and is cheap to simulate.
                    let time = Duration::from_secs(if loss > 0 { 100 } else { 10 });
                    rows.push(Row { link, algorithm, name, time });
                }
            }
        }
    }
    rows
}

/// Converts bytes in `time` to Mbit/s, in tenths.
fn tenths(bytes: u64, time: Duration) -> u64 {
    (u128::from(bytes) * 8 * 10 / time.as_micros()) as u64
}

impl Row {
    fn run(&self) -> Outcome {
        let source = Source { algorithm: self.algorithm, start: Instant::ZERO };
        Network::new(self.link, 1, &[source]).run(self.time)[0]
    }

    /// Ideal goodput in tenths of Mbit/s.
    fn ideal(&self) -> u64 {
        self.link.rate * 10 * MSS / (MSS + OVERHEAD)
    }

    /// Goodput of the response function in tenths of Mbit/s. Integer arithmetic, so that it is the same on all
    /// machines.
    fn formula(&self) -> u64 {
        let Link { rtt, loss, .. } = self.link;
        if loss == 0 {
            return self.ideal();
        }
        let (millis, loss, parts) = (rtt.as_millis(), u128::from(loss), u128::from(PARTS));
        // Segments per RTT, in thousandths.
        let reno = (3 * parts * 1_000_000 / (2 * loss)).isqrt();
        // C (3 + beta) / (4 (1 - beta)) = 1.2333, RTT in seconds: (1.2333 RTT^3 / p^3)^(1/4).
        let fourth = 12_333 * millis.pow(3) * parts.pow(3) * 1_000_000_000_000
            / (10_000 * 1_000_000_000 * loss.pow(3));
        let cubic = fourth.isqrt().isqrt();
        let segments = if self.name == "cubic" { reno.max(cubic) } else { reno };
        let tenths = segments * u128::from(MSS) * 8 * 10 / (rtt.as_micros() * 1_000);
        (tenths as u64).min(self.ideal())
    }

    fn text(&self, outcome: &Outcome) -> String {
        let Outcome {
            delivered,
            delivered_late,
            retransmitted,
            timeouts,
            spurious,
            overflowed,
            lost,
        } = *outcome;
        let Row { link, name, time, .. } = *self;
        let mbits = |tenths: u64| format!("{}.{}", tenths / 10, tenths % 10);
        let percent = |parts: u64| format!("{}.{:02}%", parts / 100, parts % 100);
        format!(
            "{:>5} Mbit/s {:>3} ms {:>6} {:>6} {:>8} | {:>8} {:>8} {:>8} {:>8} | {:>6} {:>8} {:>8} | {:>8} {:>6}\n",
            link.rate,
            link.rtt.as_millis(),
            percent(link.loss),
            percent(link.late),
            name,
            mbits(tenths(delivered, time)),
            mbits(tenths(delivered_late, time / 2)),
            mbits(self.ideal()),
            mbits(self.formula()),
            retransmitted,
            spurious,
            timeouts,
            overflowed,
            lost,
        )
    }

    /// Checks independent of the table, which `FLUE_BLESS` cannot override.
    fn check(&self, outcome: &Outcome) {
        let Link { loss, late, .. } = self.link;
        let row = self.text(outcome);
        assert!(tenths(outcome.delivered, self.time) <= self.ideal(), "more than the link: {row}");
        assert!(outcome.spurious <= outcome.retransmitted, "{row}");
        let steady = tenths(outcome.delivered_late, self.time / 2);
        if loss == 0 && late == 0 {
            assert!(steady * 100 >= self.ideal() * 95, "the link is idle: {row}");
            assert_eq!(outcome.timeouts, 0, "{row}");
        } else if late == 0 {
            assert!(steady * 100 >= self.formula() * 60, "far below the response function: {row}");
        }
        assert_eq!(outcome.lost > 0, loss > 0, "{row}");
        if late == 0 {
            // A dropped frame is retransmitted at least once, unless the run ends before.
            assert!(outcome.retransmitted >= (outcome.overflowed + outcome.lost) / 2, "{row}");
        }
    }
}

/// Runs every row, on as many threads as there are CPUs. Returns the results in order.
fn outcomes(rows: &[Row]) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some(index) = Some(next.fetch_add(1, Ordering::Relaxed))
            && let Some(row) = rows.get(index)
        {
            done.push((index, row.run()));
        }
        done
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let mut done: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no row panics")).collect()
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

// RFC 5681, RFC 9438, RFC 8985, RFC 6298: throughput and recovery over loss.
#[test]
fn throughput_over_loss_matches_snapshot() {
    let rows = rows();
    let outcomes = outcomes(&rows);
    let mut text = String::from(HEADER);
    writeln!(
        text,
        "{:>12} {:>6} {:>6} {:>6} {:>8} | {:>8} {:>8} {:>8} {:>8} | {:>6} {:>8} {:>8} | {:>8} {:>6}",
        "rate", "RTT", "loss", "late", "control", "goodput", "steady", "ideal", "formula",
        "again", "needless", "timeouts", "overflow", "lost",
    )
    .expect("write to a String");
    for (row, outcome) in rows.iter().zip(&outcomes) {
        text += &row.text(outcome);
    }
    println!("{text}");
    for (row, outcome) in rows.iter().zip(&outcomes) {
        row.check(outcome);
    }
    snapshot::check("impairments.txt", &text);
}

// The result of a row depends on its seed only.
#[test]
fn row_is_reproducible() {
    let row = Row {
        link: Link { rate: 100, rtt: Duration::from_millis(10), loss: 100, late: 100 },
        algorithm: CongestionAlgorithm::default(),
        name: "any",
        time: Duration::from_secs(2),
    };
    assert_eq!(row.text(&row.run()), row.text(&row.run()));
}
