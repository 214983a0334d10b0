//! Outcome of a connection, for a peer that queries it.

use serde::Serialize;

use crate::memory::Change;

/// Number of the newest completions that are kept.
const COMPLETIONS_MAX: usize = 12;

/// Outcome of a connection.
#[derive(Clone, Default, Debug, Serialize)]
pub struct Report {
    /// Number of the connection, in order of Requests and connects.
    pub number: u32,
    /// Status of Accept or Connect, once it is complete.
    pub opened: Option<String>,
    /// Reason of the end: 0 for an orderly end, otherwise layer, type and code as `0xLTCC`, with the provider's bits
    /// above.
    pub ended: Option<u32>,
    /// Completions of receives: status and bytes.
    pub receives: Vec<(String, u32)>,
    /// Other completions: context and status.
    pub requests: Vec<(u64, String)>,
    /// Changed pages.
    pub changes: Vec<Change>,
    /// Number of current connections of the adapter.
    pub connections: usize,
    /// Number of Requests so far that must receive no response.
    pub holds: u32,
}

impl Report {
    /// Records the completion of a receive.
    pub fn received(&mut self, status: String, bytes: u32) {
        self.receives.push((status, bytes));
        if self.receives.len() > COMPLETIONS_MAX {
            self.receives.remove(0);
        }
    }

    /// Records the completion of a request.
    pub fn completed(&mut self, context: u64, status: String) {
        self.requests.push((context, status));
        if self.requests.len() > COMPLETIONS_MAX {
            self.requests.remove(0);
        }
    }
}
