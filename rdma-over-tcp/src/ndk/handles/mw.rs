//! Memory windows.

use crate::{adapter::Adapter, rnic::WindowId};

/// Memory window: a part of a region, opened to the peer of the queue pair that bound it (NDK-MEM-16). Closing the
/// window revokes that access.
#[derive(Clone, Debug)]
pub struct Mw {
    pub(super) adapter: Adapter,
    pub(super) id: WindowId,
}

impl Mw {
    /// NdkGetRemoteTokenFromMw: the token returned by the last [`Qp::bind`](super::Qp::bind).
    #[must_use]
    pub fn remote_token(&self) -> u32 {
        self.adapter.with(|core, _| core.window_token(self.id).unwrap_or(0))
    }
}
