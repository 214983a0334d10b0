//! Memory windows.

use crate::{adapter::Adapter, rnic::WindowId};

/// A memory window: a part of a region, opened to the peer of the queue pair that has bound it (NDK-MEM-16). Closing it
/// ends that.
#[derive(Clone, Debug)]
pub struct Mw {
    pub(super) adapter: Adapter,
    pub(super) id: WindowId,
}

impl Mw {
    /// NdkGetRemoteTokenFromMw: that of the last [`Qp::bind`](super::Qp::bind), which has returned it.
    #[must_use]
    pub fn remote_token(&self) -> u32 {
        self.adapter.with(|core, _| core.window_token(self.id).unwrap_or(0))
    }
}
