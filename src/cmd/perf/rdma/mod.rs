//! Measurements on queue pairs.
//!
//! One queue pair carries control messages ([`super::message`]), one per connection carries data. All of them complete
//! into the completion queues of their queues, which one thread polls. [`memory`] defines the layout, [`node`] opens
//! and connects, [`session`] handles completions, [`bandwidth`] and [`latency`] are the phases, [`client`] and
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
/// Same as the command.
pub(super) fn run(
    plan: &Plan,
    options: &AdapterOptions,
    reporter: &mut Reporter,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let node = PerfNode::open(plan, options, reporter, console)?;
    match plan.remote {
        Some(remote) => client::run(plan, &node, remote, reporter, console),
        None => server::run(plan, &node, reporter, console),
    }
}
