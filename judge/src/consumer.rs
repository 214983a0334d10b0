//! Consumers of the judged peer, and the values that they have in common with the judge.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Octets of a page of [`Consumer::Flue`].
pub(crate) const PAGE: usize = 4096;
/// Octets of a Read of the peer. rping's default buffer has 64.
pub(crate) const READ_SIZE: usize = 60;
/// Memory of the judge: STag and tagged offset of what the peer reads, and of what it writes.
pub(crate) const SOURCE: (u32, u64) = (0x51A6, 0x7000);
pub(crate) const TARGET: (u32, u64) = (0xABCD, 0xFFFF_FFFF_0000_0000);

/// Consumer of the peer. Each one permits the cases of those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Consumer {
    /// Any listener: start-up only
    None,
    /// "rping -s -P" of rdma-core: it reads and writes memory of the judge
    Rping,
    /// Command protocol of tests/hostile: memory, reports, connects
    Flue,
}

impl Consumer {
    /// Returns the name of the option's value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Rping => "rping",
            Self::Flue => "flue",
        }
    }
}

/// Returns the initial content of a page of [`Consumer::Flue`].
pub(crate) fn pattern(page: usize) -> Vec<u8> {
    (0..PAGE).map(|at| (at * 7 + page * 31 + at / 256) as u8).collect()
}

/// Change of a page: page, offset of the first changed octet, number of changed octets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub(crate) struct Change {
    pub(crate) page: usize,
    pub(crate) first: usize,
    pub(crate) count: usize,
}

/// Report of [`Consumer::Flue`] about a connection.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub(crate) struct Report {
    pub(crate) opened: Option<String>,
    pub(crate) ended: Option<u32>,
    pub(crate) receives: Vec<(String, u32)>,
    pub(crate) changes: Vec<Change>,
    pub(crate) connections: usize,
    pub(crate) holds: u32,
}
