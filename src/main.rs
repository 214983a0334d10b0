//! The command `flue`. Everything it does is in the library, so that tests can use it too.

use std::process::ExitCode;

fn main() -> ExitCode {
    flue::cli::main(std::env::args_os())
}
