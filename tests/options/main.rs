//! Every option of `flue nc`, `flue rping` and `flue perf` does what its help says: a row and a test for each, on real
//! TAPs, against a run without the option or with another value.
//!
//! Node options, chimney options and impairments are the same in the three commands: their effect is tested once, by
//! `flue nc` with a kernel as its peer, and that each command takes them in the same way by its configuration.

mod chimney;
mod impairments;
mod link;
mod mpa;
mod nc;
mod output;
mod perf;
mod rping;
mod table;
mod tcp;

use flue_test_support::needs::Need;

const FLUE: &str = env!("CARGO_BIN_EXE_flue");
const NEEDS: &[Need] =
    &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("nft"), Need::Tool("unshare")];
