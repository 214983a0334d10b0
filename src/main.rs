//! The command `flue`. All code is in the library, where tests can use it too.

use std::process::ExitCode;

/// Entry of `.init_array`: runs before the Rust runtime, which opens /dev/null in place of a closed standard output.
// SAFETY: the C library calls each entry of this section once, as a C function; `probe` reads a flag of a descriptor
// and stores it, which requires no initialization.
#[used]
#[unsafe(link_section = ".init_array")]
static PROBE: extern "C" fn() = probe;

extern "C" fn probe() {
    flue::report::stdout::note_closed();
}

fn main() -> ExitCode {
    flue::cli::main(std::env::args_os())
}
