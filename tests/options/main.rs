//! Effect of every option of `flue nc`, `flue rping` and `flue perf`, compared with its help. Each option has a row
//! and a test on real TAPs, compared with a run without the option or with another value.
//!
//! Node options, chimney options and impairments are the same in the three commands. Their effect is tested once,
//! with `flue nc` and a kernel peer; the resulting configuration is compared between the commands.

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
