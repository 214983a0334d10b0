//! Summary of device usage at the end of a program (`--verbose`).

use std::{
    ffi::OsString,
    fmt,
    fs::File,
    io::{self, Write as _},
    os::fd::AsRawFd as _,
    process,
};

use flue_verbs_core::usage::Totals;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::failure::Failure;

/// Memory file of the launcher, to which processes of the program write their usage.
#[derive(Debug)]
pub(super) struct Usage(File);

impl Usage {
    /// Creates the file.
    ///
    /// # Errors
    /// No descriptor or memory is available.
    pub(super) fn new() -> Result<Self, Failure> {
        let file = memfd_create("flue-usage", MemfdFlags::CLOEXEC)
            .map_err(|error| Failure::work(format!("memory file of --verbose: {error}")))?;
        Ok(Self(file.into()))
    }

    /// Returns the path by which processes open the file while the calling process exists.
    pub(super) fn path(&self) -> OsString {
        format!("/proc/{}/fd/{}", process::id(), self.0.as_raw_fd()).into()
    }

    /// Prints the line to standard error.
    pub(super) fn print(&self) {
        // Standard error may be closed.
        let _ = io::stderr().write_all(format!("flue: {self}\n").as_bytes());
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Totals::read(&self.0) {
            Ok(Totals { processes: 0, .. }) => f.write_str(
                "device not used: no process of the program opened it through libibverbs or librdmacm",
            ),
            Ok(Totals { processes, queue_pairs, connections }) => write!(
                f,
                "device used: processes={processes} queue_pairs={queue_pairs} connections={connections}"
            ),
            Err(error) => write!(f, "device use unknown: {error}"),
        }
    }
}
