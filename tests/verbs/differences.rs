//! Rows whose programs fail in a release of Debian, with the reason. A row that passes, or fails otherwise, is a
//! failure, so that the list stays true.

use crate::place::Place;
use crate::releases;

/// Failure of a row.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Part of the report by which it is recognized.
    pub(crate) evidence: &'static str,
    /// For the table of docs/verbs.md.
    pub(crate) reason: &'static str,
}

/// Rows that fail in a release.
#[derive(Debug)]
pub(crate) struct Difference {
    /// Code name.
    release: &'static str,
    /// Names of the rows.
    rows: &'static [&'static str],
    on_sockets: Failure,
    on_nodes: Failure,
    /// True if the server listens at a TCP port of the kernel, too, after it listens by RDMA.
    pub(crate) listens_by_tcp: bool,
}

const DIFFERENCES: &[Difference] = &[Difference {
    release: "trixie",
    rows: &["cmtime", "cmtime_of_1000"],
    on_sockets: Failure {
        evidence: "server has ended",
        reason: "listens by TCP and by RDMA at one port, which is one port of the kernel",
    },
    on_nodes: Failure {
        evidence: "rdma_connect: Invalid argument",
        reason: "connects without queue pairs in its last step, which iWARP does not allow",
    },
    listens_by_tcp: true,
}];

/// Returns the difference of a row in the release on which this test runs.
pub(crate) fn of(row: &str) -> Option<&'static Difference> {
    let release = releases::codename();
    DIFFERENCES.iter().find(|it| it.release == release && it.rows.contains(&row))
}

impl Difference {
    /// Returns the failure that is expected there.
    pub(crate) fn failure(&self, place: &Place) -> &Failure {
        match place {
            Place::Sockets(_) => &self.on_sockets,
            Place::Nodes(_) => &self.on_nodes,
        }
    }
}
