//! Reads and atomics of the peer, from their request to their response.

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

/// A request of the peer that is answered in its turn.
#[derive(Clone, Copy, Debug)]
pub(super) enum InboundRequest {
    Read(InboundRead),
    Atomic(InboundAtomic),
}

/// A Read of the peer, and the DDP header that it came with, for a Terminate.
#[derive(Clone, Copy, Debug)]
pub(super) struct InboundRead {
    pub(super) header: Option<HeaderCopy>,
    pub(super) request: ReadRequest,
}

impl InboundRead {
    /// It cannot be answered any more; `sent` octets of the response have left.
    pub(super) fn failed(&self, error: WireError, sent: u32) -> Failure {
        let left = self.request.advanced(sent);
        Failure::new(match self.header {
            Some(header) => Terminate::for_read(error, header, left),
            None => Terminate::new(error),
        })
    }
}

/// An atomic of the peer, and the DDP header that it came with.
#[derive(Clone, Copy, Debug)]
pub(super) struct InboundAtomic {
    pub(super) header: Option<HeaderCopy>,
    pub(super) request: AtomicRequest,
}

impl InboundAtomic {
    /// Checks the target: token, right and bounds, and that it is a word of memory (EXT-5.1-1).
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

    /// The request has come: it is checked, and carried out when its turn comes.
    pub(super) fn accept(&self, user: User, regions: &Regions) -> Result<(), WireError> {
        self.check(user, regions, &mut None).map(drop)
    }

    /// Carries it out, if the peer still may (EXT-5-1, EXT-5.2.1-3).
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
