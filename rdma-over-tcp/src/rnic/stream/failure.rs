//! Errors of a stream that were detected locally.

use crate::{
    error::{EndReason, Truncation, WireError},
    rdmap::Terminate,
    rnic::status::WcStatus,
};

/// Failure of a stream.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    /// Terminate for the peer.
    pub(super) terminate: Option<Terminate>,
    /// Status of the receive in progress, if it is not Flushed.
    pub(super) receive_status: Option<WcStatus>,
    /// Position of the peer's FIN, if the FIN is the error.
    pub(super) truncation: Option<Truncation>,
}

impl Failure {
    pub(super) const fn new(terminate: Terminate) -> Self {
        Self { terminate: Some(terminate), receive_status: None, truncation: None }
    }

    /// The peer may still read, so it receives a Terminate (RDM-6.2.1-1).
    pub(super) const fn truncated(truncation: Truncation) -> Self {
        let terminate = Terminate::new(WireError::MpaConnectionLost);
        Self { truncation: Some(truncation), ..Self::new(terminate) }
    }

    /// Returns true if the failure is a message without a receive, which may wait for one.
    pub(super) fn is_without_receive(&self) -> bool {
        let error = self.terminate.map(|terminate| terminate.number);
        error == Some(WireError::UntaggedNoBuffer.number())
    }

    /// Returns true if a request of this end has failed here: its memory, or its sink. Errors of a receive have a
    /// status, and those of the peer's request have the header of the request.
    pub(super) fn is_of_own_request(&self) -> bool {
        let is_local = self.terminate.is_some_and(|terminate| {
            (terminate.number.etype, terminate.number.code) == (0, 0)
                && terminate.number.layer < 2
                && terminate.header.is_none()
        });
        is_local && self.receive_status.is_none()
    }

    /// Returns the reason for the disconnect event.
    pub(super) fn reason(&self) -> Option<EndReason> {
        let error = self.terminate.map(|terminate| EndReason::Detected(terminate.number));
        self.truncation.map(EndReason::Truncated).or(error)
    }
}
