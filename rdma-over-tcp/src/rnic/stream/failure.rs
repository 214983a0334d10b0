//! Errors that this side finds in a stream.

use crate::{
    error::{EndReason, Truncation, WireError},
    rdmap::Terminate,
    rnic::status::WcStatus,
};

/// Why a stream fails.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    /// The Terminate for the peer.
    pub(super) terminate: Option<Terminate>,
    /// The status of the receive in progress, if it is not Flushed.
    pub(super) receive_status: Option<WcStatus>,
    /// The peer's FIN is the error.
    pub(super) truncation: Option<Truncation>,
}

impl Failure {
    pub(super) const fn new(terminate: Terminate) -> Self {
        Self { terminate: Some(terminate), receive_status: None, truncation: None }
    }

    /// The peer may still read, so it is told (RDM-6.2.1-1).
    pub(super) const fn truncated(truncation: Truncation) -> Self {
        let terminate = Terminate::new(WireError::MpaConnectionLost);
        Self { truncation: Some(truncation), ..Self::new(terminate) }
    }

    /// Returns whether a message has found no receive, and may wait for one.
    pub(super) fn is_without_receive(&self) -> bool {
        let error = self.terminate.map(|terminate| terminate.number);
        error == Some(WireError::UntaggedNoBuffer.number())
    }

    /// The reason for the disconnect event.
    pub(super) fn reason(&self) -> Option<EndReason> {
        let error = self.terminate.map(|terminate| EndReason::Found(terminate.number));
        self.truncation.map(EndReason::Truncated).or(error)
    }
}
