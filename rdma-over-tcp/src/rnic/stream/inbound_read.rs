//! Reads of the peer, from their request to their response.

use super::failure::Failure;
use crate::{
    ddp::HeaderCopy,
    error::WireError,
    rdmap::{ReadRequest, Terminate},
};

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
