//! flue and the kernel in the same weather: a `flue wire` lies between two hosts, and kernel pairs and flue
//! pairs are measured over it by turns.
//!
//! `docs/tools/wire.md` has the commands. What is measured is written to `docs/measurements/impaired-throughput.txt`.
//!
//! | module | gives |
//! |---|---|
//! | [`hosts`] | a flue node in the test's own process, and kernels with room for the path |
//! | [`flow`] | one connection that runs for a time, kernel or flue at either end |
//! | [`table`] | throughput x loss, and fairness at a bottleneck |
//! | [`many`] | connections at once, every byte summed |

mod flow;
mod hosts;
mod many;
mod table;

use flue_test_support::needs::{Need, lacks};

const FLUE: &str = env!("CARGO_BIN_EXE_flue");
const NEEDS: &[Need] =
    &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("nft"), Need::Tool("unshare")];

/// A number from the environment.
fn from_env(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}

/// 50 connections between a flue node and a kernel, all at once, both ways at once: every byte.
/// `FLUE_IMPAIRMENT_MIB` is what each moves each way (2); the campaign moves 100.
#[test]
fn fifty_connections_through_bursts_of_loss_and_reordering() {
    if !lacks(NEEDS) {
        many::run(50, from_env("FLUE_IMPAIRMENT_MIB", 2) << 20);
    }
}

/// A cell of the table as CI can afford it: both pairs get through, and the loss was there.
#[test]
fn a_kernel_pair_and_a_flue_pair_in_the_same_weather() {
    if !lacks(NEEDS) {
        table::smoke();
    }
}

/// Throughput x loss. `FLUE_IMPAIRMENT_SECONDS` a run (10), `FLUE_IMPAIRMENT_RUNS` for each cell (3).
#[test]
#[ignore = "a campaign: 15 minutes"]
fn throughput_and_loss() {
    assert!(!lacks(NEEDS), "a campaign needs all of it");
    table::throughput(from_env("FLUE_IMPAIRMENT_SECONDS", 10), from_env("FLUE_IMPAIRMENT_RUNS", 3));
}

/// Two flue flows and a kernel flow over one bottleneck. Variables as above.
#[test]
#[ignore = "a campaign: 3 minutes"]
fn fairness() {
    assert!(!lacks(NEEDS), "a campaign needs all of it");
    table::fairness(from_env("FLUE_IMPAIRMENT_SECONDS", 20), from_env("FLUE_IMPAIRMENT_RUNS", 3));
}
