//! The command line.
use std::{ffi::OsString, process::ExitCode};
/// x
pub fn main(_arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    ExitCode::SUCCESS
}
