//! Offloads and uploads against the kernel's TCP, over a TAP: many concurrent connections in both directions, each of
//! which migrates many times while it carries data.
//!
//! The migrations are invisible to the kernel. Every byte is hashed on both sides (SHA-256). The kernel's counters show
//! any anomaly: retransmitted segments, RSTs, timestamps that decrease (PAWS), withdrawn SACK blocks. A monitor on the
//! wire checks each segment ([`flue_test_support::legal`]).
//!
//! | module | content |
//! |---|---|
//! | [`bench`] | a node and its connections with the kernel, and the final conditions |
//! | [`network`] | the namespaces, the TAP, and loss |
//! | [`links`] | queues that are served one at a time, by the right engine or the wrong one |
//! | [`exchange`] | the node's end of one connection: its data, digests and migrations |
//! | [`outcome`] | the counters of kernel, engines and monitor, and their limits |
//! | [`seeds`] | sequential runs of the seeds of a campaign |
//!
//! Campaign: `FLUE_SEEDS=20 FLUE_LOSS=1 cargo test --profile campaign -p host-stack --test kernel_walk -- --ignored
//! --nocapture campaign`. A seed determines the bytes, the node's initial sequence numbers and the byte counts at which
//! each connection migrates. Loss and timing depend on the kernel and have no seed: repeating a seed repeats its plan.

mod bench;
mod exchange;
mod links;
mod network;
mod outcome;
mod seeds;

use flue_test_support::load::repeat_until_quiet;
use flue_test_support::needs::{Need, lacks};
use flue_test_support::seeds::from_environment;

use crate::bench::{Scenario, run};
use crate::outcome::Outcome;

const NEEDS: &[Need] = &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("unshare")];
const LOSS_NEEDS: &[Need] =
    &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("nft"), Need::Tool("unshare")];

/// Repeats the run until it has no anomaly.
fn run_clean(scenario: &Scenario) {
    repeat_until_quiet(|| run(scenario), Outcome::is_clean);
}

// CH-INI, CH-TRM, CH-FWD-2: the stream is exact and the peer sees no anomaly.
#[test]
fn twenty_connections_move_six_times() {
    if !lacks(NEEDS) {
        run_clean(&Scenario::default());
    }
}

#[test]
fn gso_packets_and_migrations() {
    if !lacks(NEEDS) {
        run_clean(&Scenario { vnet: true, connections: 6, ..Scenario::default() });
    }
}

#[test]
fn large_frames_and_migrations() {
    if !lacks(NEEDS) {
        run_clean(&Scenario { mtu: 9000, connections: 6, ..Scenario::default() });
    }
}

#[test]
fn ipv6_and_migrations() {
    if !lacks(NEEDS) {
        run_clean(&Scenario { v6: true, connections: 6, ..Scenario::default() });
    }
}

/// Each shard has half of the connections, under the same conditions.
#[test]
fn two_queues_and_migrations() {
    if !lacks(NEEDS) {
        run_clean(&Scenario { queues: 2, connections: 8, ..Scenario::default() });
    }
}

#[test]
fn gso_packets_on_four_queues() {
    if !lacks(NEEDS) {
        let scenario = Scenario { queues: 4, connections: 8, vnet: true, ..Scenario::default() };
        run_clean(&scenario);
    }
}

/// All frames of a connection arrive at the wrong engine and are passed on without loss.
#[test]
fn frames_by_the_wrong_queue_are_passed_on() {
    if !lacks(NEEDS) {
        let scenario = Scenario { queues: 2, connections: 8, crossed: true, ..Scenario::default() };
        let outcome = repeat_until_quiet(|| run(&scenario), Outcome::lost_nothing);
        assert!(outcome.engines.iter().all(|stats| stats.rx_passed_on > 0), "{outcome:?}");
    }
}

/// One segment in a hundred is lost in each direction.
#[test]
fn migrations_under_loss() {
    if !lacks(LOSS_NEEDS) {
        let outcome = run(&Scenario { loss: 1, ..Scenario::default() });
        assert!(outcome.survived_loss(), "{outcome:?}");
    }
}

#[test]
#[ignore = "a campaign: minutes"]
fn campaign() {
    assert!(!lacks(LOSS_NEEDS), "missing prerequisite of the campaign");
    let number = |name, default| seeds::number(name).unwrap_or(default);
    let scenario = Scenario {
        connections: number("FLUE_CONNECTIONS", 200) as usize,
        moves: number("FLUE_MOVES", 20),
        bytes: number("FLUE_KIB", 1024) << 10,
        loss: number("FLUE_LOSS", 0) as u32,
        time_wait: true,
        ..Scenario::default()
    };
    // For comparison: the effects of load and loss alone.
    println!("no migrations: {:?}", run(&Scenario { moves: 0, ..scenario }));
    let seeds = from_environment().map_or(0..1, |(seeds, _)| seeds);
    seeds::for_each(seeds, |seed| {
        let scenario = Scenario { seed, ..scenario };
        let outcome = if scenario.loss > 0 {
            let outcome = run(&scenario);
            assert!(outcome.survived_loss(), "{outcome:?}");
            outcome
        } else {
            repeat_until_quiet(|| run(&scenario), Outcome::is_clean)
        };
        println!("seed {seed}: {outcome:?}");
    });
}
