//! The command `flue`. Everything it does is in the library, so that tests can use it too.

use std::process::ExitCode;

/// Runs before Rust's runtime, which opens /dev/null in place of a standard output that is closed.
// SAFETY: the C library calls each entry of this section once, as a C function; `probe` reads a flag of a descriptor
// and stores it, for which nothing has to be initialized.
#[used]
#[unsafe(link_section = ".init_array")]
static PROBE: extern "C" fn() = probe;

extern "C" fn probe() {
    flue::report::stdout::note_closed();
}

fn main() -> ExitCode {
    flue::cli::main(std::env::args_os())
}
