//! What became of a connection, for a peer that asks.

use serde::Serialize;

use crate::memory::Change;

/// The newest completions that are kept.
const COMPLETIONS_MAX: usize = 12;

/// What became of a connection.
#[derive(Clone, Default, Debug, Serialize)]
pub struct Report {
    /// Its number, in order of Requests and connects.
    pub number: u32,
    /// The status of Accept or Connect, once there is one.
    pub opened: Option<String>,
    /// Why it ended: 0 for an orderly end, else layer, type and code as `0xLTCC`, and the provider's bits above.
    pub ended: Option<u32>,
    /// Completions of receives: status and bytes.
    pub receives: Vec<(String, u32)>,
    /// Other completions: context and status.
    pub requests: Vec<(u64, String)>,
    /// Pages that changed.
    pub changes: Vec<Change>,
    /// Connections that the adapter has now.
    pub connections: usize,
    /// Requests that were never to be answered, so far.
    pub holds: u32,
}

impl Report {
    /// Notes the completion of a receive.
    pub fn received(&mut self, status: String, bytes: u32) {
        self.receives.push((status, bytes));
        if self.receives.len() > COMPLETIONS_MAX {
            self.receives.remove(0);
        }
    }

    /// Notes the completion of a request.
    pub fn completed(&mut self, context: u64, status: String) {
        self.requests.push((context, status));
        if self.requests.len() > COMPLETIONS_MAX {
            self.requests.remove(0);
        }
    }
}
