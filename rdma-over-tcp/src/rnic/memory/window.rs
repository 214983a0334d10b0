//! Memory windows: remote tokens for parts of a region, each with its own rights, valid from a bind until an unbind.
//!
//! | | [`WindowType::One`] | [`WindowType::Two`] |
//! |---|---|---|
//! | accessible to | the peers of all queue pairs of its domain | the peer of the queue pair that has bound it |
//! | token of a bind | the next one, chosen by the adapter | as of type 1, or with a key chosen by the consumer |
//! | bind while bound | allowed: replaces the previous binding | refused |
//! | unbound by | a bind of no bytes, its close | an invalidation by either end, its close, the end of its queue pair |
//!
//! A bind is a work request. Its token is known when the post returns, and is invalid until the request is executed. A
//! window covers bytes of its region: a region cannot be deregistered or invalidated while windows are bound to it, and
//! its close pends until then. A window grants no access to local requests.

use super::{
    registration::{Access, Holder, Keys, Registration},
    spans::Spans,
};
use crate::rnic::{
    objects::{
        id::{PdId, RegionId, WindowId},
        lifetime::Life,
    },
    status::VerbError,
};

/// Type of a memory window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowType {
    /// Associated with its protection domain.
    One,
    /// Associated with the queue pair that bound it.
    Two,
}

/// Parameters of a bind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bind {
    /// Window to bind.
    pub window: WindowId,
    /// Low 8 bits of the token, for a window of type 2; `None`: the next key, which differs from the last one.
    pub key: Option<u8>,
    /// Region of the same domain, registered with [`Access::BIND`] when the request starts.
    pub region: RegionId,
    /// Address of the first byte, in the region's addresses.
    pub address: u64,
    /// Length in bytes. 0 unbinds a window of type 1.
    pub length: u64,
    /// Address of the first byte for peers: `address`, or 0 for a zero-based window.
    pub base: u64,
    /// Rights: [`Access::REMOTE_READ`], [`Access::REMOTE_WRITE`], [`Access::REMOTE_ATOMIC`]. The latter two require a
    /// region with [`Access::LOCAL_WRITE`].
    pub rights: Access,
}

/// Target of an invalidation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Revocable {
    /// Fast-registered region.
    Region(RegionId),
    /// Window of type 2, bound by the same queue pair.
    Window(WindowId),
    /// Region or window that has this token, including the key, when the request starts.
    Token(u32),
}

/// Bind that was posted and has not started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreparedBind {
    pub(crate) bind: Bind,
    pub(crate) token: u32,
}

/// Part of a region that a window covers.
#[derive(Debug)]
pub(crate) struct Binding {
    pub(crate) region: RegionId,
    pub(crate) holder: Holder,
    pub(crate) registration: Registration,
}

/// State of one memory window.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) life: Life,
    pub(crate) pd: PdId,
    pub(crate) kind: WindowType,
    /// Token of the last posted bind.
    pub(crate) token: u32,
    pub(crate) keys: Keys,
    pub(crate) binding: Option<Binding>,
}

impl Window {
    /// Returns the registration of the bound window.
    pub(crate) fn current_registration(&self) -> Option<(Holder, &Registration)> {
        let Binding { holder, registration, .. } = self.binding.as_ref()?;
        Some((*holder, registration))
    }
}

impl Bind {
    /// Checks the bind against a registration of the region. Returns the memory of the window, which is not empty.
    pub(crate) fn check(&self, registration: &Registration) -> Result<Spans, VerbError> {
        let Registration { memory, base, rights, .. } = registration;
        let needs_writable = self.rights.writes();
        if !rights.contains(Access::BIND) || needs_writable && !rights.contains(Access::LOCAL_WRITE)
        {
            return Err(VerbError::RightsNotAllowed);
        }
        let start = self.address.checked_sub(*base).ok_or(VerbError::InvalidArgument)?;
        let end = start.checked_add(self.length).filter(|end| *end <= memory.len() as u64);
        let end = end.ok_or(VerbError::InvalidArgument)?;
        // Both are within the memory.
        memory.slice(start as usize..end as usize).ok_or(VerbError::InvalidArgument)
    }
}
