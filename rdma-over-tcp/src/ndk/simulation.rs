//! An adapter on virtual time, with its NDK consumer.

use super::Adapter;
pub use crate::access::simulation::AdapterClient;

impl AdapterClient {
    /// The adapter as its consumer.
    pub fn adapter(&self) -> Adapter {
        Adapter::from(self.access())
    }
}
