//! Offloads and uploads of a connection.

use offload_engine::{
    chimney::client::UploadReason, listing::Refusal, status::NdisStatus, time::Instant,
};

/// History of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct History {
    /// End of the handshake.
    pub(super) opened_at: Instant,
    /// Last entry into the host.
    pub(super) returned_at: Instant,
    /// Number of completed offloads.
    pub(super) offloads: u32,
    /// Number of uploads.
    pub(super) uploads: u32,
    /// Reason of the last upload, if the target requested it.
    pub(super) upload_reason: Option<UploadReason>,
    /// Status of the target's last refusal.
    pub(super) refusal: Option<NdisStatus>,
    /// Number of offloads that failed, and reason of the last failure.
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

    /// Counts a failed offload.
    pub(super) fn refused(&mut self, refusal: Refusal) {
        self.refusals += 1;
        self.last_refusal = Some(refusal);
    }
}
