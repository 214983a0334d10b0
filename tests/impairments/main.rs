//! flue and the kernel under the same impairments: a `flue wire` connects two hosts, and kernel pairs and flue pairs
//! are measured alternately.
//!
//! `docs/tools/wire.md` documents the commands. Results are written to `docs/measurements/impaired-throughput.txt`.
//!
//! | module | contents |
//! |---|---|
//! | [`hosts`] | flue node in the test process, and kernels with buffers sized for the path |
//! | [`flow`] | connection of limited time, kernel or flue at either end |
//! | [`table`] | throughput by loss rate, and fairness at a bottleneck |
//! | [`many`] | concurrent connections with every byte checked |

mod flow;
mod hosts;
mod many;
mod table;

use flue_test_support::needs::{Need, lacks};

const FLUE: &str = env!("CARGO_BIN_EXE_flue");
const NEEDS: &[Need] =
    &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("nft"), Need::Tool("unshare")];

/// Number from an environment variable.
fn from_env(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => {
            text.parse().unwrap_or_else(|_| panic!("{name}: expected a number, got {text}"))
        }
        Err(_) => default,
    }
}

/// 50 concurrent connections between a flue node and a kernel, both directions: every byte is checked.
/// `FLUE_IMPAIRMENT_MIB` is the volume per connection and direction (2); the campaign uses 100.
#[test]
fn fifty_connections_through_bursts_of_loss_and_reordering() {
    if !lacks(NEEDS) {
        many::run(50, from_env("FLUE_IMPAIRMENT_MIB", 2) << 20);
    }
}

/// Cell of the table, shortened for CI: both pairs transfer data, and the loss occurred.
#[test]
fn kernel_pair_and_flue_pair_with_same_impairments() {
    if !lacks(NEEDS) {
        table::smoke();
    }
}

/// Throughput by loss rate. `FLUE_IMPAIRMENT_SECONDS` per run (10), `FLUE_IMPAIRMENT_RUNS` per cell (3).
#[test]
#[ignore = "a campaign: 15 minutes"]
fn throughput_and_loss() {
    assert!(!lacks(NEEDS), "missing prerequisite of the campaign");
    table::throughput(from_env("FLUE_IMPAIRMENT_SECONDS", 10), from_env("FLUE_IMPAIRMENT_RUNS", 3));
}

/// Two flue flows and a kernel flow over one bottleneck. Variables as above.
#[test]
#[ignore = "a campaign: 3 minutes"]
fn fairness() {
    assert!(!lacks(NEEDS), "missing prerequisite of the campaign");
    table::fairness(from_env("FLUE_IMPAIRMENT_SECONDS", 20), from_env("FLUE_IMPAIRMENT_RUNS", 3));
}
