//! Protection domains: regions that a queue pair may use.

use super::lifetime::Life;

/// Protection domain. Regions refer to their domain, and access checks compare domains.
#[derive(Debug)]
pub(crate) struct Pd {
    pub(crate) life: Life,
    /// Token of logical addresses in the requests of its queue pairs.
    pub(crate) privileged_token: u32,
}
