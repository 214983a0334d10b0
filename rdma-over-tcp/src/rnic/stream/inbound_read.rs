//! Reads and atomics of the peer, from the request to the response.

use core::sync::atomic::Ordering;

use super::failure::Failure;
use crate::{
    ddp::HeaderCopy,
    error::WireError,
    rdmap::{
        ATOMIC_REQUEST_OCTETS, ATOMIC_TARGET_OCTETS, AtomicRequest, AtomicResponse, ReadRequest,
        Terminate,
    },
    rnic::memory::{
        region::{Granted, Owner, Regions},
        registration::{Access, AccessError, User},
    },
};

/// Request of the peer, answered in order.
#[derive(Clone, Copy, Debug)]
pub(super) enum InboundRequest {
    Read(InboundRead),
    Atomic(InboundAtomic),
}

/// Read of the peer, with the DDP header of its request for a Terminate.
#[derive(Clone, Copy, Debug)]
pub(super) struct InboundRead {
    pub(super) header: Option<HeaderCopy>,
    pub(super) request: ReadRequest,
}

impl InboundRead {
    /// Returns the failure of a Read that cannot be answered, after `sent` octets of the response.
    pub(super) fn failed(&self, error: WireError, sent: u32) -> Failure {
        let left = self.request.advanced(sent);
        Failure::new(match self.header {
            Some(header) => Terminate::for_read(error, header, left),
            None => Terminate::new(error),
        })
    }
}

/// Atomic of the peer, with the DDP header of its request.
#[derive(Clone, Copy, Debug)]
pub(super) struct InboundAtomic {
    pub(super) header: Option<HeaderCopy>,
    pub(super) request: AtomicRequest,
}

impl InboundAtomic {
    /// Checks the target: token, right, bounds, and alignment (EXT-5.1-1).
    fn check<'a>(
        &self,
        user: User,
        regions: &'a Regions,
        hint: &mut Option<Owner>,
    ) -> Result<Granted<'a>, WireError> {
        let AtomicRequest { stag, offset, .. } = self.request;
        let (length, right) = (ATOMIC_TARGET_OCTETS, Access::REMOTE_ATOMIC);
        let granted = regions
            .access_again(hint, user, stag.0, offset.0, length, right)
            .map_err(AccessError::request)?;
        match granted.word() {
            Some(_) => Ok(granted),
            None => Err(WireError::OperationStreamCatastrophic), // EXT-8.2-1
        }
    }

    /// Checks the request on arrival. It is executed when its response is due.
    pub(super) fn accept(&self, user: User, regions: &Regions) -> Result<(), WireError> {
        self.check(user, regions, &mut None).map(drop)
    }

    /// Executes the atomic if the peer still has the right (EXT-5-1, EXT-5.2.1-3).
    pub(super) fn execute(
        &self,
        user: User,
        regions: &Regions,
        hint: &mut Option<Owner>,
    ) -> Result<AtomicResponse, Failure> {
        let AtomicRequest { operation, identifier, .. } = self.request;
        let granted = self.check(user, regions, hint).map_err(|error| self.failed(error))?;
        let apply = |value| Some(operation.apply(value));
        let word = granted.word();
        let outcome = word
            .and_then(|word| word.fetch_update(Ordering::AcqRel, Ordering::Acquire, apply).ok());
        match outcome {
            Some(original) => Ok(AtomicResponse { identifier, original }),
            None => Err(self.failed(WireError::OperationStreamCatastrophic)),
        }
    }

    fn failed(&self, error: WireError) -> Failure {
        // EXT-8.1-1: no RDMAP header.
        Failure::new(match self.header {
            Some(header) => Terminate::for_request(error, header, ATOMIC_REQUEST_OCTETS),
            None => Terminate::new(error),
        })
    }
}
