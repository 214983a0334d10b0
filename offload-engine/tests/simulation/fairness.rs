//! Fairness of flows that share a bottleneck.

use std::fmt::Write as _;

use offload_engine::{
    tcp::CongestionAlgorithm::{self, Cubic, NewReno},
    time::{Duration, Instant},
};

use super::{
    network::{Link, Network, Outcome, Source},
    snapshot,
};

const HEADER: &str = "\
# Flows that share one drop-tail bottleneck of one bandwidth-delay product, each starting `stagger` after the last.
# Shares are Mbit/s of each flow over the second half of the run; the index is Jain's, (sum x)^2 / (n sum x^2): 1 is
# fair, 1/n means that one flow has the whole rate.
#
# FLUE_BLESS=1 cargo test -p offload-engine --test simulation   writes this file.
";

/// Minimum of Jain's index for flows of one kind, in thousandths.
const INDEX_MIN: u64 = 900;

struct Share {
    link: Link,
    stagger: Duration,
    time: Duration,
    flows: Vec<(CongestionAlgorithm, &'static str)>,
}

impl Share {
    fn run(&self) -> Vec<Outcome> {
        let source = |(number, (algorithm, _)): (u32, &(CongestionAlgorithm, _))| Source {
            algorithm: *algorithm,
            start: Instant::ZERO + self.stagger * number,
        };
        let sources: Vec<_> = (0..).zip(&self.flows).map(source).collect();
        Network::new(self.link, 1, &sources).run(self.time)
    }

    fn is_of_one_kind(&self) -> bool {
        self.flows.iter().all(|(_, name)| *name == self.flows[0].1)
    }
}

/// Returns Jain's fairness index in thousandths.
fn index(shares: impl Iterator<Item = u64> + Clone) -> u64 {
    let count = shares.clone().count() as u128;
    let sum: u128 = shares.clone().map(u128::from).sum();
    let squares: u128 = shares.map(|share| u128::from(share).pow(2)).sum();
    (1_000 * sum.pow(2) / (count * squares).max(1)) as u64
}

fn cases() -> Vec<Share> {
    let link = |rate, rtt| Link { rate, rtt: Duration::from_millis(rtt), loss: 0, late: 0 };
    let mut cases = Vec::new();
    let (cubic, newreno) = ((Cubic, "cubic"), (NewReno, "newreno"));
    for kind in [cubic, newreno] {
        for count in [2, 4, 8] {
            cases.push(Share {
                link: link(100, 20),
                stagger: Duration::from_secs(1),
                time: Duration::from_secs(60),
                flows: vec![kind; count],
            });
        }
    }
    for flows in [vec![cubic, newreno], vec![newreno, cubic, newreno, cubic]] {
        cases.push(Share {
            link: link(100, 20),
            stagger: Duration::from_secs(1),
            time: Duration::from_secs(60),
            flows,
        });
    }
    cases
}

// RFC 5681, RFC 9438 §5: flows that start later obtain their share.
#[test]
fn flows_share_bottleneck_fairly() {
    let mut text = String::from(HEADER);
    for case in cases() {
        let outcomes = case.run();
        let late = outcomes.iter().map(|outcome| outcome.delivered_late);
        let micros = (case.time / 2).as_micros() as u64;
        let index = index(late.clone());
        write!(
            text,
            "{:>5} Mbit/s {:>3} ms stagger {:>4} ms index {}.{:03} |",
            case.link.rate,
            case.link.rtt.as_millis(),
            case.stagger.as_millis(),
            index / 1_000,
            index % 1_000,
        )
        .expect("write to a String");
        for ((_, name), share) in case.flows.iter().zip(late.clone()) {
            let tenths = share * 80 / micros;
            write!(text, " {name} {}.{}", tenths / 10, tenths % 10).expect("as before");
        }
        text.push('\n');
        if case.is_of_one_kind() {
            assert!(index >= INDEX_MIN, "unfair:\n{text}");
        }
        let total: u64 = late.sum();
        let capacity = case.link.rate * micros / 8;
        assert!(total * 100 >= capacity * 85, "the link was idle too long:\n{text}");
    }
    println!("{text}");
    snapshot::check("fairness.txt", &text);
}

// Equal shares have an index of 1, and a single active flow has 1/n.
#[test]
fn fairness_index_matches_jain() {
    assert_eq!(index([5, 5, 5, 5].into_iter()), 1_000);
    assert_eq!(index([9, 0, 0, 0].into_iter()), 250);
}
