//! The moves of a connection between host and target.

use offload_engine::{
    chimney::client::UploadReason, listing::Refusal, status::NdisStatus, time::Instant,
};

/// What a connection has been through.
#[derive(Clone, Copy, Debug)]
pub(super) struct History {
    /// Its handshake was done then.
    pub(super) opened_at: Instant,
    /// It was last taken into the host then.
    pub(super) returned_at: Instant,
    /// Hand-overs to the target that were completed.
    pub(super) offloads: u32,
    /// Hand-overs from it.
    pub(super) uploads: u32,
    /// Why the target asked for the last upload, if it did.
    pub(super) upload_reason: Option<UploadReason>,
    /// Why the target last refused it.
    pub(super) refusal: Option<NdisStatus>,
    /// Hand-overs that were not done, and why the last one was not.
    pub(super) refusals: u32,
    pub(super) last_refusal: Option<Refusal>,
}

impl History {
    pub(super) const fn new(opened_at: Instant) -> Self {
        Self {
            opened_at,
            returned_at: opened_at,
            offloads: 0,
            uploads: 0,
            upload_reason: None,
            refusal: None,
            refusals: 0,
            last_refusal: None,
        }
    }

    /// Counts a hand-over that was not done.
    pub(super) fn refused(&mut self, refusal: Refusal) {
        self.refusals += 1;
        self.last_refusal = Some(refusal);
    }
}
