//! Memory as NDKPI describes it: MDL chains, and pages of logical address mappings.

use alloc::boxed::Box;

use super::{Mr, Pd, Qp, check_same};
use crate::{
    adapter::Adapter,
    ndk::{
        flags::{MrFlags, OpFlags, OperationType},
        status::NtStatus,
    },
    rnic::{
        FastMemory, FastRegister, Key, LamId, LogicalMemory, PAGE_SIZE, RegisteredBuffer, Rnic,
    },
};

/// NDK_LOGICAL_ADDRESS_MAPPING: logical addresses of a chain of buffers, from [`Adapter::build_lam`] until
/// [`Adapter::release_lam`].
///
/// Request entries refer to them with the domain's [privileged token](Pd::privileged_token) (NDK-SGE-1).
/// [`Qp::fast_register_pages`] takes the pages.
#[derive(Clone, Debug)]
pub struct LogicalAddressMapping {
    pub(super) adapter: Adapter,
    pub(super) memory: LogicalMemory,
}

impl LogicalAddressMapping {
    /// Returns AdapterPageCount of a mapping of `length` bytes whose first byte has the virtual address `address`.
    /// `None`: zero bytes, or more pages than a ULONG holds. A page-array buffer with fewer entries is too small.
    #[must_use]
    pub const fn pages_needed(address: u64, length: usize) -> Option<u32> {
        LogicalMemory::pages_needed(address, length)
    }

    /// AdapterPageCount.
    #[must_use]
    pub const fn page_count(&self) -> u32 {
        self.memory.pages
    }

    /// AdapterPageArray: the logical address of each page, a multiple of [`PAGE_SIZE`]. Consumers must not assume that
    /// pages are contiguous (NDK-SGE-3).
    pub fn pages(&self) -> impl Iterator<Item = u64> + use<> {
        let LogicalMemory { address, pages, .. } = self.memory;
        let first = address - address % PAGE_SIZE as u64;
        (0..u64::from(pages)).map(move |page| first + page * PAGE_SIZE as u64)
    }

    /// FBO: offset of the first byte in the first page (NDK-MEM-4).
    #[must_use]
    pub const fn first_byte_offset(&self) -> u32 {
        (self.memory.address % PAGE_SIZE as u64) as u32
    }

    const fn id(&self) -> LamId {
        self.memory.id
    }
}

impl Adapter {
    /// NdkBuildLam of `length` bytes of an MDL chain, from the first byte of its first buffer (NDK-MEM-1). The buffers
    /// must have contiguous addresses. The addresses are those of [`RegisteredBuffer::at_address`]: indices, never
    /// dereferenced (NDK-MEM-2).
    ///
    /// # Errors
    /// Nothing is mapped. [`NtStatus::INVALID_PARAMETER`]: zero bytes, a chain that is shorter or not contiguous over
    /// `length`, or the adapter is being closed; [`NtStatus::INSUFFICIENT_RESOURCES`].
    pub fn build_lam(
        &self,
        chain: &[RegisteredBuffer],
        length: usize,
    ) -> Result<LogicalAddressMapping, NtStatus> {
        let memory = self.with(|core, _| core.build_lam(chain, length))?;
        Ok(LogicalAddressMapping { adapter: self.clone(), memory })
    }

    /// NdkReleaseLam, for a mapping that no request uses. SUCCESS, or PENDING and `completion` follows, when
    /// the adapter no longer accesses the memory.
    ///
    /// A request that still uses the mapping is safe: it fails with ACCESS_VIOLATION when it is processed. A region
    /// registered by pages of the mapping is invalid from now on. Data in flight is copied, as with [`Mr::deregister`].
    /// The NDKPI call returns nothing. A caller that reuses the memory on return must therefore wait for the
    /// completion.
    ///
    /// # Errors
    /// [`NtStatus::INVALID_PARAMETER`]: mapping of another adapter.
    pub fn release_lam(
        &self,
        lam: &LogicalAddressMapping,
        completion: impl FnOnce() + Send + 'static,
    ) -> NtStatus {
        if let Err(status) = check_same(self, &lam.adapter) {
            return status;
        }
        let (key, completion) = (Key::Lam(lam.id()), Box::new(completion));
        self.with(|core, _| core.close(key, completion)).into()
    }
}

impl Pd {
    /// NdkGetPrivilegedMemoryRegionToken: the token for entries with a logical address (NDK-SGE-1). It grants read and
    /// write to requests of the domain's queue pairs, and no access to peers.
    #[must_use]
    pub fn privileged_token(&self) -> u32 {
        self.adapter.with(|core, _| core.privileged_token(self.id)).unwrap_or(0)
    }
}

impl Mr {
    /// NdkRegisterMr of `length` bytes of an MDL chain, as for [`Adapter::build_lam`]: one region with the addresses of
    /// the chain.
    ///
    /// # Errors
    /// As [`Mr::register`]; [`NtStatus::INVALID_PARAMETER`] also for a chain that is shorter or not contiguous over
    /// `length` (NDK-MEM-1).
    pub fn register_chain(
        &self,
        chain: &[RegisteredBuffer],
        length: usize,
        flags: MrFlags,
    ) -> Result<(), NtStatus> {
        flags.check()?;
        let rights = flags.rights();
        let register = |core: &mut Rnic| core.register_chain(self.id, chain, length, rights);
        Ok(self.adapter.with(|core, _| register(core))?)
    }
}

impl Qp {
    /// NdkFastRegister: registers `length` bytes, starting at byte `first_byte_offset` (FBO) of the first page, at
    /// `base_address`. `pages` are logical addresses of mappings that are not released. They may be in any order and of
    /// different mappings. Returns the token, valid for later requests of this queue pair (NDK-MEM-8).
    ///
    /// # Errors
    /// As listed at [`Qp`], and of NDK-MEM-7:
    /// - [`NtStatus::INVALID_PARAMETER`]: zero bytes, more than the pages hold after the FBO, or more than the
    ///   adapter's limit.
    /// - [`NtStatus::INVALID_PARAMETER`]: more pages than [`Mr::initialize_fast_register`] allowed, or an unaligned
    ///   page; an FBO of a page or more; a base address with another offset in its page, or one that wraps.
    /// - [`NtStatus::ACCESS_VIOLATION`]: a byte outside all mappings; remote rights on a region initialized without; a
    ///   write right on read-only memory.
    #[expect(clippy::too_many_arguments, reason = "NdkFastRegister has them")]
    pub fn fast_register_pages(
        &self,
        context: u64,
        mr: &Mr,
        pages: &[u64],
        first_byte_offset: u32,
        length: usize,
        base_address: u64,
        flags: OpFlags,
    ) -> Result<u32, NtStatus> {
        let memory = FastMemory::Pages { pages, first_byte: first_byte_offset };
        self.fast_register_any(context, mr, memory, (length, base_address), flags)
    }

    /// Fast registration without a mapping: registers `length` bytes of `buffer`, starting at `offset`, at
    /// `base_address`. Otherwise as [`Qp::fast_register_pages`]; the FBO is that of `offset`.
    ///
    /// # Errors
    /// As [`Qp::fast_register_pages`]; [`NtStatus::INVALID_PARAMETER`] also for bytes outside the buffer.
    #[expect(clippy::too_many_arguments, reason = "NdkFastRegister has them")]
    pub fn fast_register(
        &self,
        context: u64,
        mr: &Mr,
        buffer: &RegisteredBuffer,
        offset: usize,
        length: usize,
        base_address: u64,
        flags: OpFlags,
    ) -> Result<u32, NtStatus> {
        let memory = FastMemory::Buffer { buffer, offset };
        self.fast_register_any(context, mr, memory, (length, base_address), flags)
    }

    fn fast_register_any(
        &self,
        context: u64,
        mr: &Mr,
        memory: FastMemory<'_>,
        (length, base): (usize, u64),
        flags: OpFlags,
    ) -> Result<u32, NtStatus> {
        check_same(&self.adapter, &mr.adapter)?;
        let request = FastRegister { region: mr.id, memory, length, base, rights: flags.rights() };
        self.checked_post(flags.check(OperationType::FastRegister), |core| {
            core.post_fast_register(self.id, context, request, flags.options())
        })
    }
}
