//! Results of tests, for docs/measurements/verbs-programs.md: `tests/verbs/table` combines the files.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use crate::test_bed::{Device, Transport};

/// Environment variable with a directory for results, with a subdirectory for each row of the table; tests/verbs/run
/// sets it.
const RESULTS: &str = "FLUE_VERBS_RESULTS";

fn directory() -> Option<PathBuf> {
    env::var_os(RESULTS).map(PathBuf::from)
}

/// True if tests may take long.
pub(crate) fn are_enabled() -> bool {
    directory().is_some()
}

/// Programs of a row.
pub(crate) struct Programs<'a> {
    /// Position in the table.
    pub(crate) order: usize,
    pub(crate) name: &'a str,
    /// Debian package.
    pub(crate) package: &'a str,
    /// Options of `flue run` other than those of the node.
    pub(crate) options: &'a str,
    pub(crate) server: Option<&'a str>,
    pub(crate) client: &'a str,
}

fn code(text: &str) -> String {
    // A vertical bar would end the cell.
    if text.is_empty() { "-".into() } else { format!("`{}`", text.replace('|', "\\|")) }
}

fn write(file: &Path, text: &str) {
    let directory = file.parent().expect("a file of a row");
    fs::create_dir_all(directory).expect("a directory");
    fs::write(file, text).expect("a writable directory");
}

/// Writes the output of programs without an option for the device, on that transport, and their run time.
pub(crate) fn note(programs: &Programs<'_>, transport: &Transport, seen: &str, took: Duration) {
    note_on(Device::of_environment(), programs, transport, seen, took);
}

/// Writes the output of the programs on that device and transport, and their run time.
pub(crate) fn note_on(
    device: Device,
    programs: &Programs<'_>,
    transport: &Transport,
    seen: &str,
    took: Duration,
) {
    let Some(directory) = directory() else { return };
    let &Programs { order, name, package, options, server, client } = programs;
    let row = directory.join(format!("{order:03}-{name}"));
    let cells = [code(options), code(server.unwrap_or_default()), code(client)].join(" | ");
    write(&row.join("programs"), &format!("| {package} | {cells} |"));
    let cell = match (device, transport) {
        (Device::Iwarp, Transport::Sockets(_)) => "iwarp-sockets",
        (Device::Iwarp, Transport::Nodes(_)) => "iwarp-nodes",
        (Device::Roce, Transport::Sockets(_)) => "roce-sockets",
        (Device::Roce, Transport::Nodes(_)) => "roce-nodes",
    };
    write(&row.join(cell), &format!(" {seen} ({:.1} s) |", took.as_secs_f64()));
}

/// First position in the table after those of [`crate::table::ROWS`].
pub(crate) const SERVERS: usize = 100;
pub(crate) const STREAMS: usize = 110;
pub(crate) const UNPRIVILEGED: usize = 120;
pub(crate) const REFUSALS: usize = 130;
pub(crate) const SUITES: usize = 140;
pub(crate) const MIGRATION: usize = 160;
pub(crate) const RDMA_IO: usize = 170;
pub(crate) const STORAGE: usize = 180;
pub(crate) const CONNECT: usize = 190;
pub(crate) const UCX: usize = 200;
pub(crate) const CRATES: usize = 220;
