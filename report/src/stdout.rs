//! Standard output that cannot be written: closed at start, full, or a broken pipe.
//!
//! Rust's runtime opens /dev/null in place of a closed standard output, and ignores SIGPIPE. To report a closed
//! standard output, a program calls [`note_closed`] before the runtime starts. With SIGPIPE ignored, writes to a broken
//! pipe fail with EPIPE. A command then exits without output, as on SIGPIPE, with [`BROKEN_PIPE_STATUS`].

use std::{
    io::{self, Write},
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::io::Errno;

pub use crate::failure::BROKEN_PIPE_STATUS;
use crate::failure::Failure;

/// True if standard output was closed when the process started.
static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Records whether standard output is closed.
pub fn note_closed() {
    let flags = rustix::io::fcntl_getfd(rustix::stdio::stdout());
    WAS_CLOSED.store(flags == Err(Errno::BADF), Ordering::Relaxed);
}

/// Standard output. Writes fail with EBADF if it was closed at start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stdout;

impl Write for Stdout {
    fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        match WAS_CLOSED.load(Ordering::Relaxed) {
            true => Err(Errno::BADF.into()),
            false => io::stdout().write(octets),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}

/// Returns true if the error is that of a broken pipe.
pub fn is_broken_pipe(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

/// Converts a write error of standard output to a failure.
pub fn failure(error: &io::Error) -> Failure {
    Failure::work(format!("standard output: {error}"))
}

/// Reports on standard error that the output was not written, unless standard output is a broken pipe. Returns the exit
/// status.
pub fn fail(error: &io::Error, err: &mut dyn Write, command: &str) -> u8 {
    if is_broken_pipe(error) {
        return BROKEN_PIPE_STATUS;
    }
    let failure = failure(error);
    // A write error on standard error cannot be reported.
    let _ = writeln!(err, "flue {command}: {failure}");
    failure.exit_status()
}
