//! Protection domains: which queue pairs may use which regions.

use super::lifetime::Life;

/// A protection domain. What it protects is in the regions: their check compares domains.
#[derive(Debug)]
pub(crate) struct Pd {
    pub(crate) life: Life,
    /// Names logical addresses in its queue pairs' requests.
    pub(crate) privileged_token: u32,
}
