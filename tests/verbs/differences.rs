//! Rows whose programs fail in a release of Debian, with the reason. A listed row that passes or fails differently is
//! a failure, so that the list stays accurate.

use crate::releases;

/// Rows that fail in a release.
#[derive(Debug)]
pub(crate) struct Difference {
    /// Code name.
    release: &'static str,
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

const DIFFERENCES: &[Difference] = &[Difference {
    release: "trixie",
    rows: &["cmtime", "cmtime_of_1000"],
    // Its control connection has the same port number.
    options: "--port-map 7471=7472",
    // The test passes with queue pairs, then repeats with the queue pair numbers 1000, 1001, ... and no queue pairs.
    // InfiniBand's connection manager only transmits the number. Linux's iWARP connection manager looks up the queue
    // pair for the TCP connection, and fails with EINVAL as well.
    report_texts: &["qp_conn", "test - no QPs", "rdma_connect: Invalid argument"],
    reason: "passes with queue pairs; then connects with queue pair numbers that do not exist: EINVAL on iWARP",
    listens_by_tcp: true,
}];

/// Returns the difference of a row in the release on which this test runs.
pub(crate) fn of(row: &str) -> Option<&'static Difference> {
    let release = releases::codename();
    DIFFERENCES.iter().find(|it| it.release == release && it.rows.contains(&row))
}

impl Difference {
    /// Returns true if a report shows the expected failure.
    pub(crate) fn explains(&self, report: &str) -> bool {
        self.report_texts.iter().all(|part| report.contains(part))
    }
}
