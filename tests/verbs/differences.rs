//! Rows whose programs differ in a release of Debian: what is expected there instead, and why. A row that passes
//! although it should fail is a failure, so that the list stays true.

use crate::place::Place;
use crate::releases;

/// Expectation for a row in one release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expected {
    /// It fails on kernel sockets; and on nodes the server listens at the same port of the kernel, after the node's.
    KernelPortTaken,
}

/// Row that differs in a release.
#[derive(Debug)]
pub(crate) struct Difference {
    /// Code name.
    release: &'static str,
    /// Names of the rows.
    rows: &'static [&'static str],
    pub(crate) expected: Expected,
    /// For the table of docs/verbs.md.
    pub(crate) reason: &'static str,
}

const DIFFERENCES: &[Difference] = &[Difference {
    release: "trixie",
    rows: &["cmtime", "cmtime_of_1000"],
    expected: Expected::KernelPortTaken,
    reason: "listens by TCP and by RDMA at one port, which on kernel sockets is one port of the kernel",
}];

/// Returns the difference of a row in the release on which this test runs.
pub(crate) fn of(row: &str) -> Option<&'static Difference> {
    let release = releases::codename();
    DIFFERENCES.iter().find(|it| it.release == release && it.rows.contains(&row))
}

impl Difference {
    /// True if the row fails there.
    pub(crate) fn fails(&self, place: &Place) -> bool {
        match self.expected {
            Expected::KernelPortTaken => matches!(place, Place::Sockets(_)),
        }
    }
}
