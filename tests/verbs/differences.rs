//! Rows whose programs fail in a release of Debian, with the reason. A listed row that passes or fails differently is
//! a failure, so that the list stays accurate.

use crate::releases;
use crate::test_bed::Device;

/// Rows that fail in a release.
#[derive(Debug)]
pub(crate) struct Difference {
    /// Code name.
    release: &'static str,
    devices: &'static [Device],
    /// Names of the rows.
    rows: &'static [&'static str],
    /// Additional options of `flue run`, for both ends.
    pub(crate) options: &'static str,
    /// Parts of the report that identify the failure.
    report_texts: &'static [&'static str],
    /// Reason, for the table of docs/measurements/verbs-programs.md.
    pub(crate) reason: &'static str,
    /// True if the server also listens on a kernel TCP port after it listens by RDMA.
    pub(crate) listens_by_tcp: bool,
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        release: "trixie",
        devices: &[Device::Iwarp, Device::Roce],
        rows: &["cmtime", "cmtime_of_1000"],
        // Its control connection has the same port number.
        options: "--port-map 7471=7472",
        // The test passes with queue pairs, then repeats with the queue pair numbers 1000, 1001, ... and no queue
        // pairs. InfiniBand's connection manager only transmits the number. Linux's iWARP connection manager looks up
        // the queue pair for the TCP connection, and fails with EINVAL as well.
        report_texts: &["qp_conn", "test - no QPs", "rdma_connect: Invalid argument"],
        reason: "passes with queue pairs; then connects with queue pair numbers that do not exist: EINVAL on iWARP",
        listens_by_tcp: true,
    },
    Difference {
        release: "bookworm",
        devices: &[Device::Roce],
        rows: &["ib_write_bw_with_immediate_data", "ib_write_lat_with_immediate_data"],
        options: "",
        report_texts: &["unrecognized option '--write_with_imm'"],
        reason: "this version of perftest has no Write with immediate",
        listens_by_tcp: false,
    },
];

/// Returns the difference of a row on that device, in the release on which this test runs.
pub(crate) fn of(device: Device, row: &str) -> Option<&'static Difference> {
    let release = releases::codename();
    let is_of = |it: &&Difference| {
        it.release == release && it.devices.contains(&device) && it.rows.contains(&row)
    };
    DIFFERENCES.iter().find(is_of)
}

impl Difference {
    /// Returns true if a report shows the expected failure.
    pub(crate) fn explains(&self, report: &str) -> bool {
        self.report_texts.iter().all(|part| report.contains(part))
    }
}
