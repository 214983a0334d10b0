//! Memory regions.

use alloc::boxed::Box;

use crate::{
    adapter::Adapter,
    ndk::{flags::MrFlags, status::NtStatus},
    rnic::{FastRegisterLimits, RegionId, RegisteredBuffer, Rnic},
};

/// A memory region.
#[derive(Clone, Debug)]
pub struct Mr {
    pub(super) adapter: Adapter,
    pub(super) id: RegionId,
}

impl Mr {
    /// NdkRegisterMr: `length` bytes of `buffer` from `offset` on, under their own addresses (NDK-MEM-3).
    ///
    /// # Errors
    /// [`NtStatus::INVALID_PARAMETER`]: the span is empty or leaves the buffer, illegal flags, a region for
    /// fast registration, or one that is registered or whose deregistration is pending;
    /// [`NtStatus::ACCESS_VIOLATION`]: a right to write memory that may only be read;
    /// [`NtStatus::INSUFFICIENT_RESOURCES`].
    pub fn register(
        &self,
        buffer: &RegisteredBuffer,
        offset: usize,
        length: usize,
        flags: MrFlags,
    ) -> Result<(), NtStatus> {
        flags.check()?;
        let rights = flags.rights();
        let register = |core: &mut Rnic| core.register(self.id, buffer, offset, length, rights);
        Ok(self.adapter.with(|core, _| register(core))?)
    }

    /// NdkDeregisterMr: from now on the token opens nothing (RFC 5040 §8.1.1). SUCCESS, or PENDING and `completion`
    /// follows, when nothing reads or writes the memory any more: what was sent from it and is not acknowledged is
    /// copied, and a device that still reads it is waited for. A Send or Write that has begun and is not yet with TCP
    /// as a whole ends its connection, with ACCESS_VIOLATION.
    ///
    /// A close does the same, but waits for the windows, and its completion says the same.
    ///
    /// # Errors
    /// Nothing has changed. [`NtStatus::INVALID_PARAMETER`]: not registered, or a region for fast registration;
    /// [`NtStatus::DEVICE_BUSY`]: windows are bound.
    pub fn deregister(&self, completion: impl FnOnce() + Send + 'static) -> NtStatus {
        let completion = Box::new(completion);
        let result = self.adapter.with(|core, now| core.deregister_at(now, self.id, completion));
        result.map_or_else(NtStatus::from, NtStatus::from)
    }

    /// NdkInitializeFastRegisterMr: fast registrations may have up to `pages` pages, and remote rights only
    /// with `remote_access` (NDK-MEM-6).
    ///
    /// # Errors
    /// [`NtStatus::IMPLEMENTATION_LIMIT`]: too many pages; [`NtStatus::INVALID_PARAMETER`]: not a region
    /// for fast registration; [`NtStatus::INSUFFICIENT_RESOURCES`].
    pub fn initialize_fast_register(
        &self,
        pages: u32,
        remote_access: bool,
    ) -> Result<(), NtStatus> {
        let limits = FastRegisterLimits { pages, remote_access };
        Ok(self.adapter.with(|core, _| core.initialize_fast_register(self.id, limits))?)
    }

    /// NdkGetLocalTokenFromMr: for scatter/gather entries. 0 before the first registration, and while one pends
    /// ([`Mr::begin_register`]).
    #[must_use]
    pub fn local_token(&self) -> u32 {
        self.adapter.with(|core, _| core.token(self.id).unwrap_or(0))
    }

    /// NdkGetRemoteTokenFromMr: for the peer. The same number; what it allows are the region's rights.
    #[must_use]
    pub fn remote_token(&self) -> u32 {
        self.local_token()
    }
}
