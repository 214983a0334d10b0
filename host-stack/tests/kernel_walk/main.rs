//! Hand-overs against the kernel's TCP, over a TAP: many connections at once, both ways, and each goes down to the
//! target and up again many times while it carries data.
//!
//! The kernel knows nothing of it. Every byte is summed on both sides (SHA-256), and the kernel says itself whether
//! anything was amiss: segments that it had to send again, RSTs, timestamps that went back (PAWS), SACK blocks that
//! were taken back. A monitor on the wire judges each segment ([`flue_test_support::legal`]).
//!
//! | module | gives |
//! |---|---|
//! | [`bench`] | a namespace with a TAP, a node on it, and the kernel's counters |
//! | [`talk`] | the node's end of one connection: what it sends, sums and when it moves |
//!
//! The campaign: `FLUE_CONNECTIONS=200 FLUE_MOVES=20 FLUE_KIB=1024 cargo test -p host-stack --test kernel_walk --
//! --ignored --nocapture campaign`.

mod bench;
mod talk;

use flue_test_support::load::quiet;
use flue_test_support::needs::{Need, lacks};

use crate::bench::{Outcome, Scenario, run};

const NEEDS: &[Need] = &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("unshare")];

/// A number from the environment.
fn from_env(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}

/// Runs it until nothing was amiss.
fn run_clean(scenario: &Scenario) {
    quiet(|| run(scenario), Outcome::is_clean);
}

// CH-INI, CH-TRM, CH-FWD-2: the stream is exact and the peer does not notice.
#[test]
fn twenty_connections_move_six_times() {
    if !lacks(NEEDS) {
        run_clean(&Scenario::default());
    }
}

#[test]
fn super_segments_and_hand_overs() {
    if !lacks(NEEDS) {
        run_clean(&Scenario { vnet: true, connections: 6, ..Scenario::default() });
    }
}

#[test]
fn large_frames_and_hand_overs() {
    if !lacks(NEEDS) {
        run_clean(&Scenario { mtu: 9000, connections: 6, ..Scenario::default() });
    }
}

#[test]
fn ipv6_and_hand_overs() {
    if !lacks(NEEDS) {
        run_clean(&Scenario { v6: true, connections: 6, ..Scenario::default() });
    }
}

/// Both shards have half of the connections, and what is said above holds for each of them.
#[test]
fn two_queues_and_hand_overs() {
    if !lacks(NEEDS) {
        run_clean(&Scenario { queues: 2, connections: 8, ..Scenario::default() });
    }
}

#[test]
fn super_segments_on_four_queues() {
    if !lacks(NEEDS) {
        let scenario = Scenario { queues: 4, connections: 8, vnet: true, ..Scenario::default() };
        run_clean(&scenario);
    }
}

/// All that comes for a connection comes to the wrong engine, is passed on, and nothing is lost by it.
#[test]
fn frames_by_the_wrong_queue_are_passed_on() {
    if !lacks(NEEDS) {
        let scenario = Scenario { queues: 2, connections: 8, crossed: true, ..Scenario::default() };
        let outcome = quiet(|| run(&scenario), Outcome::lost_nothing);
        assert!(outcome.engines.iter().all(|stats| stats.rx_passed_on > 0), "{outcome:?}");
    }
}

#[test]
#[ignore = "a campaign: minutes"]
fn campaign() {
    assert!(!lacks(NEEDS), "a campaign needs all of it");
    let scenario = Scenario {
        connections: from_env("FLUE_CONNECTIONS", 200) as usize,
        moves: from_env("FLUE_MOVES", 20),
        bytes: from_env("FLUE_KIB", 1024) << 10,
        ..Scenario::default()
    };
    // What the machine's load alone does: tail loss probes, mostly.
    let still = run(&Scenario { moves: 0, ..scenario });
    println!("no hand-overs: {still:?}");
    let moved = run(&scenario);
    println!("{} hand-overs each: {moved:?}", scenario.moves);
    assert!(moved.is_clean(), "{moved:?}");
}
