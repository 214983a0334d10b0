//! Memory windows: tokens for peers that open a part of a region, each with its own rights, from a bind until it is
//! unbound.
//!
//! | | [`WindowType::One`] | [`WindowType::Two`] |
//! |---|---|---|
//! | opens the memory to | the peers of all queue pairs of its domain | the peer of the queue pair that has bound it |
//! | token of a bind | the next one of the adapter's choice | as of type 1, or with a key of the consumer's choice |
//! | bound while it is bound | yes: the former binding ends | no |
//! | unbound by | a bind of no bytes, its close | an invalidation by either end, its close, the end of its queue pair |
//!
//! A bind is a work request. Its token is known when the post returns; it opens nothing before the request's turn. What
//! a window opens are bytes of its region: a region is not deregistered or invalidated while windows are bound to it,
//! and the close of one is pending until then. A window never opens memory to requests of this side.

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

/// The type of a memory window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowType {
    /// Associated with its protection domain.
    One,
    /// Associated with the queue pair that has bound it.
    Two,
}

/// What a window is to be bound to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bind {
    /// The window.
    pub window: WindowId,
    /// The low 8 bits of the token, of a window of type 2; `None`: the next key, which differs from the last one.
    pub key: Option<u8>,
    /// A region of the same domain that is registered with [`Access::BIND`] when the request's turn comes.
    pub region: RegionId,
    /// The first byte, by the region's addresses.
    pub address: u64,
    /// Bytes. 0 unbinds a window of type 1.
    pub length: u64,
    /// The address of the first byte for peers: `address`, or 0 for a window that counts from its beginning.
    pub base: u64,
    /// [`Access::REMOTE_READ`], [`Access::REMOTE_WRITE`], [`Access::REMOTE_ATOMIC`]. The latter two need a region with
    /// [`Access::LOCAL_WRITE`].
    pub rights: Access,
}

/// What an invalidation takes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Revocable {
    /// A region that a fast registration has registered.
    Region(RegionId),
    /// A window of type 2, bound by the same queue pair.
    Window(WindowId),
    /// Whichever of these has this token, with this key, when the request's turn comes.
    Token(u32),
}

/// A bind whose turn has not come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreparedBind {
    pub(crate) bind: Bind,
    pub(crate) token: u32,
}

/// A part of a region that is open.
#[derive(Debug)]
pub(crate) struct Binding {
    pub(crate) region: RegionId,
    pub(crate) holder: Holder,
    pub(crate) registration: Registration,
}

/// A memory window.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) life: Life,
    pub(crate) pd: PdId,
    pub(crate) kind: WindowType,
    /// The token of the last bind that was posted.
    pub(crate) token: u32,
    pub(crate) keys: Keys,
    pub(crate) binding: Option<Binding>,
}

impl Window {
    /// What its token opens.
    pub(crate) fn opened(&self) -> Option<(Holder, &Registration)> {
        let Binding { holder, registration, .. } = self.binding.as_ref()?;
        Some((*holder, registration))
    }
}

impl Bind {
    /// Checks what the bind asks of a registration, and returns the memory that it opens: some.
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
