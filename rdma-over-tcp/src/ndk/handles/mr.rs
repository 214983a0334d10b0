//! Memory regions.

use alloc::boxed::Box;

use crate::{
    adapter::Adapter,
    ndk::{flags::MrFlags, status::NtStatus},
    rnic::{FastRegisterLimits, RegionId, RegisteredBuffer, Rnic},
};

/// Memory region.
#[derive(Clone, Debug)]
pub struct Mr {
    pub(super) adapter: Adapter,
    pub(super) id: RegionId,
}

impl Mr {
    /// NdkRegisterMr: registers `length` bytes of `buffer`, starting at `offset`, with their own addresses (NDK-MEM-3).
    ///
    /// # Errors
    /// [`NtStatus::INVALID_PARAMETER`]: the range is empty or outside the buffer, illegal flags, a region for fast
    /// registration, or one that is registered or whose deregistration is pending; [`NtStatus::ACCESS_VIOLATION`]: a
    /// write right on read-only memory; [`NtStatus::INSUFFICIENT_RESOURCES`].
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

    /// NdkDeregisterMr: from now on the token grants no access (RFC 5040 §8.1.1).
    ///
    /// SUCCESS, or PENDING and `completion` follows, when the memory is no longer accessed. Data sent from it but not
    /// yet acknowledged is copied. The call waits for a device that still reads it. A Send or Write that has begun, but
    /// is not yet completely queued at TCP, terminates its connection with ACCESS_VIOLATION.
    ///
    /// A close does the same, but first waits for the windows. Its completion means the same.
    ///
    /// # Errors
    /// Nothing has changed. [`NtStatus::INVALID_PARAMETER`]: not registered, or a region for fast registration;
    /// [`NtStatus::DEVICE_BUSY`]: windows are bound.
    pub fn deregister(&self, completion: impl FnOnce() + Send + 'static) -> NtStatus {
        let completion = Box::new(completion);
        let result = self.adapter.with(|core, now| core.deregister_at(now, self.id, completion));
        result.map_or_else(NtStatus::from, NtStatus::from)
    }

    /// NdkInitializeFastRegisterMr: allows fast registrations of up to `pages` pages, with remote rights only if
    /// `remote_access` is set (NDK-MEM-6).
    ///
    /// # Errors
    /// [`NtStatus::IMPLEMENTATION_LIMIT`]: too many pages; [`NtStatus::INVALID_PARAMETER`]: not a region for fast
    /// registration; [`NtStatus::INSUFFICIENT_RESOURCES`].
    pub fn initialize_fast_register(
        &self,
        pages: u32,
        remote_access: bool,
    ) -> Result<(), NtStatus> {
        let limits = FastRegisterLimits { pages, remote_access };
        Ok(self.adapter.with(|core, _| core.initialize_fast_register(self.id, limits))?)
    }

    /// NdkGetLocalTokenFromMr: the token for scatter/gather entries. 0 before the first registration, and while one is
    /// pending ([`Mr::begin_register`]).
    #[must_use]
    pub fn local_token(&self) -> u32 {
        self.adapter.with(|core, _| core.token(self.id).unwrap_or(0))
    }

    /// NdkGetRemoteTokenFromMr: the token for the peer. It equals the local token; the region's rights determine the
    /// access.
    #[must_use]
    pub fn remote_token(&self) -> u32 {
        self.local_token()
    }
}
