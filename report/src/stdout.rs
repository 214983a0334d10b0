//! Standard output that cannot be written: closed from the start, full, or without a reader.
//!
//! Rust's runtime opens /dev/null in place of a closed standard output, and ignores SIGPIPE. A program that wants to
//! report the former calls [`note_closed`] before the runtime starts; the latter makes writes fail with EPIPE, which
//! ends a command as SIGPIPE would: silently, with [`BROKEN_PIPE_STATUS`].

use std::{
    io::{self, Write},
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::io::Errno;

use crate::failure::Failure;

/// Exit status of a command whose reader is gone: what a shell reports after SIGPIPE.
pub const BROKEN_PIPE_STATUS: u8 = 128 + 13;

/// Standard output was closed when the process started.
static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Notes whether standard output is closed.
pub fn note_closed() {
    let flags = rustix::io::fcntl_getfd(rustix::stdio::stdout());
    WAS_CLOSED.store(flags == Err(Errno::BADF), Ordering::Relaxed);
}

/// Standard output; EBADF if it was closed from the start.
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

/// Returns whether the reader is gone.
pub fn is_broken_pipe(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

/// The failure of a run whose output is not written.
pub fn failure(error: &io::Error) -> Failure {
    Failure::work(format!("standard output: {error}"))
}

/// Reports on standard error, unless the reader is gone, that a command has not written its output; returns the exit
/// status.
pub fn fail(error: &io::Error, err: &mut dyn Write, command: &str) -> u8 {
    if is_broken_pipe(error) {
        return BROKEN_PIPE_STATUS;
    }
    let failure = failure(error);
    // There is no other place for diagnostics.
    let _ = writeln!(err, "flue {command}: {failure}");
    failure.exit_status()
}
