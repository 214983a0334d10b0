//! Memory as NDKPI describes it: chains of MDLs, and pages of logical address mappings.

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
/// Entries of requests name them with the domain's [privileged token](Pd::privileged_token) (NDK-SGE-1), and
/// [`Qp::fast_register_pages`] takes the pages.
#[derive(Clone, Debug)]
pub struct LogicalAddressMapping {
    pub(super) adapter: Adapter,
    pub(super) memory: LogicalMemory,
}

impl LogicalAddressMapping {
    /// AdapterPageCount of a mapping of `length` bytes whose first one has the virtual address `address`; `None`: no
    /// bytes, or more pages than a ULONG counts. A buffer for the page array that has less room is too small.
    #[must_use]
    pub const fn pages_needed(address: u64, length: usize) -> Option<u32> {
        LogicalMemory::pages_needed(address, length)
    }

    /// AdapterPageCount.
    #[must_use]
    pub const fn page_count(&self) -> u32 {
        self.memory.pages
    }

    /// AdapterPageArray: the logical address of each page, a multiple of [`PAGE_SIZE`]. Consumers must not count on
    /// the pages following each other (NDK-SGE-3).
    pub fn pages(&self) -> impl Iterator<Item = u64> + use<> {
        let LogicalMemory { address, pages, .. } = self.memory;
        let first = address - address % PAGE_SIZE as u64;
        (0..u64::from(pages)).map(move |page| first + page * PAGE_SIZE as u64)
    }

    /// FBO: the place of the first byte in the first page (NDK-MEM-4).
    #[must_use]
    pub const fn first_byte_offset(&self) -> u32 {
        (self.memory.address % PAGE_SIZE as u64) as u32
    }

    const fn id(&self) -> LamId {
        self.memory.id
    }
}

impl Adapter {
    /// NdkBuildLam of `length` bytes of an MDL chain: buffers whose addresses follow each other, from the first byte of
    /// the first on (NDK-MEM-1). The addresses are [`RegisteredBuffer::at_address`]'s: indices, never dereferenced
    /// (NDK-MEM-2).
    ///
    /// # Errors
    /// Nothing is mapped. [`NtStatus::INVALID_PARAMETER`]: no bytes, a chain that is shorter or whose addresses do not
    /// follow each other so far, or the adapter is being closed; [`NtStatus::INSUFFICIENT_RESOURCES`].
    pub fn build_lam(
        &self,
        chain: &[RegisteredBuffer],
        length: usize,
    ) -> Result<LogicalAddressMapping, NtStatus> {
        let memory = self.with(|core, _| core.build_lam(chain, length))?;
        Ok(LogicalAddressMapping { adapter: self.clone(), memory })
    }

    /// NdkReleaseLam, for a mapping that no request uses any more. SUCCESS, or PENDING and `completion` follows, when
    /// nothing of the adapter reads or writes the memory.
    ///
    /// A request that uses it all the same does no harm: when its turn comes it fails with ACCESS_VIOLATION, and a
    /// region that is registered by pages of the mapping is invalid from now on. What is in flight is copied, as with
    /// [`Mr::deregister`]. The call of NDKPI returns nothing: where the memory's owner may do with it what he likes
    /// when it returns, it has to wait for the completion.
    ///
    /// # Errors
    /// [`NtStatus::INVALID_PARAMETER`]: another adapter's mapping.
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
    /// NdkGetPrivilegedMemoryRegionToken: the token of entries whose address is a logical one (NDK-SGE-1). It gives
    /// requests of the domain's queue pairs the right to read and to write, and peers none.
    #[must_use]
    pub fn privileged_token(&self) -> u32 {
        self.adapter.with(|core, _| core.privileged_token(self.id)).unwrap_or(0)
    }
}

impl Mr {
    /// NdkRegisterMr of `length` bytes of an MDL chain, as [`Adapter::build_lam`] takes it: one region under the
    /// addresses of the chain.
    ///
    /// # Errors
    /// As [`Mr::register`]; [`NtStatus::INVALID_PARAMETER`] also for a chain that is shorter, or whose addresses do not
    /// follow each other so far (NDK-MEM-1).
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
    /// NdkFastRegister: `length` bytes from byte `first_byte_offset` (FBO) of the first page on, known as
    /// `base_address`. `pages` are logical addresses of mappings that are not released, in any order, of as many
    /// mappings as there are pages. Returns the token, valid for later requests of this queue pair (NDK-MEM-8).
    ///
    /// # Errors
    /// As said at [`Qp`], and of NDK-MEM-7: [`NtStatus::INVALID_PARAMETER`]: no bytes, more than the pages have behind
    /// the FBO, or than the adapter registers; more pages than [`Mr::initialize_fast_register`] allowed, or one that is
    /// not aligned; an FBO of a page or more; a base address that is not at that place of a page, or wraps.
    /// [`NtStatus::ACCESS_VIOLATION`]: a byte that is of no mapping; remote rights on a region initialized without;
    /// a right to write memory that may only be read.
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

    /// A fast registration without a mapping: `length` bytes of `buffer` from `offset` on, known as `base_address`.
    /// Otherwise as [`Qp::fast_register_pages`]; the FBO is that of `offset`.
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
