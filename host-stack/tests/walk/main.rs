//! Random hand-over walks: two nodes over a bad network on virtual time. At every event a seed decides whether a
//! connection changes stacks, while data flows both ways.
//!
//! A run passes if every byte arrives in order, every list comes back once and in order, nothing is left in any
//! table, and no peer could tell: a monitor on each side's wire finds only what one legal stack may send
//! ([`flue_test_support::legal`]).
//!
//! | module | decides |
//! |---|---|
//! | [`plan`] | what a seed chooses: weather, options, windows, how a client behaves |
//! | [`client`] | indications accepted, refused and accepted in part; posted buffers |
//! | [`incidents`] | what else happens: half-closes, closed windows, narrow paths, marks, lost links, resets… |
//! | [`road`], [`frames`] | the network that does so |
//! | [`middlebox`] | options that get lost on the way |
//! | [`meddler`] | pauses of the target, settings, queries |
//! | [`queues`] | nodes with two queues, and which frames come by the wrong one |
//! | [`end`] | what one end of a connection posts, where it moves, how it ends |
//! | [`run`] | connections, and what must hold in the end |
//!
//! Everything is a function of the seed. A failure prints it with the command that repeats it:
//! `FLUE_SEED=17 cargo test -p host-stack --test walk streams`. `FLUE_SEEDS=0..5000` runs a campaign
//! ([`flue_test_support::seeds`]); `FLUE_PCAP=file` beside FLUE_SEED writes what each node's monitor sees to `file.0`
//! and `file.1`.

mod client;
mod end;
mod fault_injector;
mod frames;
mod incidents;
mod lossy_network;
mod middlebox;
mod plan;
mod queues;
mod run;
mod threads;

use flue_test_support::seeds::Suite;

use crate::{
    incidents::Seen,
    queues::Queues,
    run::{Summary, walk},
};

const SUITE: Suite = Suite {
    name: "walk",
    command: "cargo test -p host-stack --test walk streams",
    seeds: 150,
    classes: &[],
};

// CH-INI, CH-TRM, CH-FWD-2, CH-SND-2, CH-RCV-8: no byte is lost, doubled or moved by any number of hand-overs, and
// nobody can tell.
#[test]
fn streams_survive_random_walks() {
    let total: Total = SUITE.run(walk, |total: &mut Total, summary| total.add(&summary));
    println!("{total:?}");
    total.check();
}

/// What all seeds together have done.
#[derive(Debug, Default)]
struct Total {
    seeds: u64,
    offloads: u64,
    uploads: u64,
    receives_posted: u64,
    receives_uploaded: u64,
    refused: u64,
    with_sack: u64,
    /// Those whose link treats all frames well.
    clean_seeds: u64,
    seen: Seen,
}

impl Total {
    fn add(&mut self, summary: &Summary) {
        self.seeds += 1;
        self.clean_seeds += u64::from(summary.is_clean);
        self.seen.add(&summary.seen);
        for tally in &summary.tallies {
            self.offloads += tally.offloads;
            self.uploads += tally.uploads;
            self.receives_posted += tally.receives_posted;
            self.receives_uploaded += tally.receives_uploaded;
            self.refused += tally.refused;
        }
        for counts in &summary.counts {
            self.with_sack += counts.with_sack;
        }
    }

    /// All that the chimney has was in it, and clean links, on which `walk` requires that nothing is sent twice.
    fn check(&self) {
        if self.seeds < SUITE.seeds {
            return;
        }
        assert!(self.offloads.min(self.uploads) > 5 * self.seeds, "{self:?}");
        let rare = [self.receives_posted, self.receives_uploaded, self.refused, self.with_sack];
        assert!(rare.into_iter().all(|count| count > self.seeds / 2), "{self:?}");
        self.seen.check();
        assert!(self.clean_seeds > self.seeds / 20, "{self:?}");
    }
}

// The bench is what it says: the same seed, the same run. With one queue and with two.
#[test]
fn a_seed_is_a_run() {
    let is_spread = |seed: &u64| Queues::new(*seed).wrong_pct.iter().all(|pct| *pct > 0);
    let two_queues = (0..).find(is_spread).expect("one seed in twenty");
    for seed in [3, two_queues] {
        assert_eq!(walk(seed), walk(seed));
    }
}
