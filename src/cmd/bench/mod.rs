//! `flue bench`: how fast flue is, beside what else a user could run on the same machine.

pub mod yardstick;

use clap::{Args, Subcommand};

use self::yardstick::YardstickArgs;
use crate::{failure::Failure, report::Console};

/// Measure flue and its peers on this machine
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    /// A part alone.
    #[command(subcommand)]
    pub part: BenchPart,
}

/// Parts of the bench that are programs of their own.
#[derive(Subcommand, Clone, Debug)]
#[allow(missing_docs, reason = "a comment on a variant would take the place of its help")]
pub enum BenchPart {
    #[command(hide = true)]
    Yardstick(YardstickArgs),
}

/// Runs it. Call it before the process has a second thread.
///
/// # Errors
/// Those of the part.
pub fn run(args: &BenchArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    match &args.part {
        BenchPart::Yardstick(args) => yardstick::run(args, console),
    }
}
