//! Measurements on queue pairs.
//!
//! One queue pair carries messages ([`super::message`]), one for each connection the data; all of them
//! complete into one queue, which one thread polls. [`memory`] says what lies where, [`node`] opens and
//! connects, [`session`] takes completions, [`bandwidth`] and [`latency`] are the phases, [`client`] and
//! [`server`] the two ends.

mod bandwidth;
mod client;
mod lane;
mod latency;
mod memory;
mod node;
mod server;
mod session;

use flue_adapter::AdapterOptions;

use self::node::PerfNode;
use super::{Plan, report::Reporter};
use crate::{failure::Failure, report::Console};

/// Runs one end.
///
/// # Errors
/// As the command.
pub(super) fn run(
    plan: &Plan,
    options: &AdapterOptions,
    reporter: &mut Reporter,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let node = PerfNode::open(plan, options, reporter)?;
    match plan.remote {
        Some(remote) => client::run(plan, &node, remote, reporter, console),
        None => server::run(plan, &node, reporter, console),
    }
}
