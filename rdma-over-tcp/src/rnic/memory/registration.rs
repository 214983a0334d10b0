//! Registrations: spans of memory with a token and rights, and the users with access.

use alloc::boxed::Box;
use core::ops::BitOr;

use oorandom::Rand64;

use super::spans::Spans;
use crate::{
    error::WireError,
    rnic::{
        objects::id::{LamId, PdId, QpId},
        status::VerbError,
    },
};

/// Access rights to registered memory. Sending from it needs none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Access(u8);

impl Access {
    /// Source of Sends and Writes only.
    pub const NONE: Self = Self(0);
    /// Target of receives and Reads.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Source of peers' Reads.
    pub const REMOTE_READ: Self = Self(2);
    /// Target of peers' Writes.
    pub const REMOTE_WRITE: Self = Self(4);
    /// Target of peers' atomics (RFC 7306).
    pub const REMOTE_ATOMIC: Self = Self(8);
    /// Binding of memory windows.
    pub const BIND: Self = Self(16);

    /// All rights of peers.
    pub const REMOTE: Self = Self(2 | 4 | 8);

    /// Returns true if all rights of `other` are included.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns these rights without those of `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) const fn writes(self) -> bool {
        self.0 & (Self::LOCAL_WRITE.0 | Self::REMOTE_WRITE.0 | Self::REMOTE_ATOMIC.0) != 0
    }

    pub(crate) const fn is_remote(self) -> bool {
        self.0 & (Self::REMOTE_READ.0 | Self::REMOTE_WRITE.0 | Self::REMOTE_ATOMIC.0) != 0
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, rhs: Self) -> Self {
        Self(self.0 | rhs.0)
    }
}

/// Registered memory with its token.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    pub(crate) token: u32,
    pub(crate) memory: Spans,
    /// Address of the first byte for local and remote users.
    pub(crate) base: u64,
    pub(crate) rights: Access,
    /// Mappings that contain the memory's pages. The release of any of them ends the registration.
    pub(crate) lams: Box<[LamId]>,
}

/// Sequence of a region's keys.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Keys {
    secret: u64,
    used: u8,
}

impl Keys {
    /// Returns the current key of the permutation: four rounds of a Feistel network with halves of four bits.
    fn key(self) -> u8 {
        let halves = (self.used >> 4, self.used & 0xf);
        let (left, right) = (0..4).fold(halves, |(left, right), round| {
            let secret = (self.secret >> (16 * round)) as u16;
            let mixed = u16::from(right).wrapping_add(secret).wrapping_mul(secret | 1) >> 7;
            (right, left ^ (mixed as u8 & 0xf))
        });
        left << 4 | right
    }

    /// Returns the next key, different from `last`.
    pub(crate) fn next(&mut self, last: Option<u8>, random: &mut Rand64) -> u8 {
        loop {
            if self.used == 0 {
                self.secret = random.rand_u64();
            }
            let key = self.key();
            self.used = self.used.wrapping_add(1);
            if Some(key) != last {
                return key;
            }
        }
    }
}

/// User whose access is checked: a queue pair of a protection domain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User {
    pub(crate) pd: PdId,
    pub(crate) qp: QpId,
}

/// Users with access to a registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Holder {
    /// Queue pairs of this domain.
    Pd(PdId),
    /// Peers of this domain's queue pairs.
    Peers(PdId),
    /// The peer of this queue pair.
    Peer(QpId),
}

impl Holder {
    /// Checks the association (RFC 5041 §7.1), and that windows are used by peers only.
    #[inline]
    pub(crate) fn check(self, user: User, right: Access) -> Result<(), AccessError> {
        let (is_associated, is_for_peers) = match self {
            Self::Pd(pd) => (pd == user.pd, false),
            Self::Peers(pd) => (pd == user.pd, true),
            Self::Peer(qp) => (qp == user.qp, true),
        };
        match is_associated {
            false => Err(AccessError::NotAssociated),
            true if is_for_peers && !right.is_remote() => Err(AccessError::Rights),
            true => Ok(()),
        }
    }
}

/// Reason of a refused access, in the order of the checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AccessError {
    /// Unknown token, stale key, or not registered.
    Invalid,
    /// Other protection domain, or other queue pair.
    NotAssociated,
    /// The right was not granted.
    Rights,
    /// Address plus length wraps.
    Wrap,
    /// Outside the registered memory.
    Bounds,
}

impl AccessError {
    /// Returns the error for a tagged segment (RFC 5041 §7.2). DDP has no code for a missing right; other
    /// implementations send Invalid STag.
    pub(crate) const fn tagged(self) -> WireError {
        match self {
            Self::Invalid | Self::Rights => WireError::TaggedInvalidStag,
            Self::NotAssociated => WireError::TaggedNotAssociated,
            Self::Wrap => WireError::TaggedWrap,
            Self::Bounds => WireError::TaggedBounds,
        }
    }

    /// Returns the error for the buffer of a Read or Atomic Request (RFC 5040 §7.2, RFC 7306 §8.2).
    pub(crate) const fn request(self) -> WireError {
        match self {
            Self::Invalid => WireError::ProtectionInvalidStag,
            Self::Rights => WireError::ProtectionAccess,
            Self::NotAssociated => WireError::ProtectionNotAssociated,
            Self::Wrap => WireError::ProtectionWrap,
            Self::Bounds => WireError::ProtectionBounds,
        }
    }
}

impl Registration {
    /// Creates a registration of `memory` at address `base`, without a token.
    ///
    /// # Errors
    /// [`VerbError::InvalidArgument`]: the addresses wrap; [`VerbError::ReadOnly`].
    pub(crate) fn new(memory: Spans, base: u64, rights: Access) -> Result<Self, VerbError> {
        if base.checked_add(memory.len() as u64).is_none() {
            return Err(VerbError::InvalidArgument);
        }
        if rights.writes() && !memory.is_writable() {
            return Err(VerbError::ReadOnly);
        }
        Ok(Self { token: 0, memory, base, rights, lams: Box::default() })
    }

    /// Returns the offset of `address` in the memory, if `right` is granted and `length` bytes from it on are within
    /// bounds.
    #[inline]
    pub(crate) fn locate(
        &self,
        address: u64,
        length: u64,
        right: Access,
    ) -> Result<usize, AccessError> {
        if !self.rights.contains(right) {
            return Err(AccessError::Rights);
        }
        let end = address.checked_add(length).ok_or(AccessError::Wrap)?;
        if address < self.base || end > self.base + self.memory.len() as u64 {
            return Err(AccessError::Bounds);
        }
        Ok((address - self.base) as usize)
    }
}
