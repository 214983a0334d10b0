//! Errors that this side finds in a stream.

use crate::{rdmap::Terminate, rnic::status::WcStatus};

/// Why a stream fails.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    /// The Terminate for the peer.
    pub(super) terminate: Option<Terminate>,
    /// The status of the receive in progress, if it is not Flushed.
    pub(super) receive_status: Option<WcStatus>,
}

impl Failure {
    pub(super) const fn new(terminate: Terminate) -> Self {
        Self { terminate: Some(terminate), receive_status: None }
    }
}
