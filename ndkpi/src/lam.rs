//! NdkBuildLam and NdkReleaseLam: logical addresses of consumers' memory.
//!
//! A mapping is registered in the table of objects and `AdapterContext` is its slot. So a mapping that a consumer
//! releases is looked up before it is used.

use std::{ffi::c_void, mem::offset_of, ptr, sync::Arc};

use rdma_over_tcp::ndk::{LogicalAddressMapping, NtStatus};

use crate::{
    abi::{
        types::{MDL, NDK_LOGICAL_ADDRESS, NDK_LOGICAL_ADDRESS_MAPPING, NDK_OBJECT_TYPE, ULONG},
        values::NdkObjectTypeUndefined,
    },
    mdl,
    objects::{self, Kind},
};

/// Mapping, with the adapter that it belongs to.
pub(crate) struct Lam {
    pub(crate) mapping: LogicalAddressMapping,
    adapter: usize,
}

impl Kind for Lam {
    type Public = c_void;
    const TYPE: NDK_OBJECT_TYPE = NdkObjectTypeUndefined;

    fn dispatch() -> *const c_void {
        ptr::null()
    }
}

/// Returns the bytes of a mapping with `pages` pages.
fn bytes(pages: u32) -> Option<ULONG> {
    let array = (pages as usize).checked_mul(size_of::<NDK_LOGICAL_ADDRESS>())?;
    let first = offset_of!(NDK_LOGICAL_ADDRESS_MAPPING, AdapterPageArray);
    ULONG::try_from(first.checked_add(array)?).ok()
}

/// Maps the first `length` bytes of a chain with `build` of the adapter `adapter`, and writes the pages for the
/// consumer. `size` contains the available bytes and receives the required ones (NDK-MEM-4).
///
/// # Errors
/// BUFFER_TOO_SMALL; INVALID_PARAMETER: as of [`mdl::memory`], or a pointer is null; as `build`.
///
/// # Safety
/// As [`mdl::memory`]; each pointer is null or can be written, `mapping` with as many bytes as `size` contains.
pub(crate) unsafe fn write_mapping(
    chain: *const MDL,
    length: usize,
    (mapping, size, offset): (*mut NDK_LOGICAL_ADDRESS_MAPPING, *mut ULONG, *mut ULONG),
    adapter: usize,
    build: impl FnOnce(&mdl::Memory) -> Result<LogicalAddressMapping, NtStatus>,
) -> Result<(), NtStatus> {
    if size.is_null() || offset.is_null() {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    // SAFETY: the caller guarantees it. Read-only memory is mapped for read access.
    let memory =
        unsafe { mdl::memory(chain, length, true).or_else(|_| mdl::memory(chain, length, false)) }?;
    let pages = LogicalAddressMapping::pages_needed(memory.address(), length);
    let needed = pages.and_then(bytes).ok_or(NtStatus::INSUFFICIENT_RESOURCES)?;
    // SAFETY: the caller guarantees it.
    let room = unsafe { size.replace(needed) };
    if room < needed {
        return Err(NtStatus::BUFFER_TOO_SMALL);
    }
    if mapping.is_null() || !mapping.is_aligned() {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    let slot = objects::reserve()?;
    let built = build(&memory)?;
    let lam = Lam { mapping: built.clone(), adapter };
    // SAFETY: `mapping` has room for these pages, and `offset` can be written.
    unsafe {
        offset.write(built.first_byte_offset());
        (&raw mut (*mapping).AdapterPageCount).write(built.page_count());
        let array = (&raw mut (*mapping).AdapterPageArray).cast::<NDK_LOGICAL_ADDRESS>();
        for (at, page) in built.pages().enumerate() {
            array.add(at).write(page);
        }
        (&raw mut (*mapping).AdapterContext).write(slot.fill(lam));
    }
    Ok(())
}

/// Removes a mapping that [`write_mapping`] has written.
///
/// # Errors
/// INVALID_HANDLE: not a mapping, or already released; INVALID_PARAMETER: a mapping of another adapter.
///
/// # Safety
/// The pointer is null, or points to a mapping.
pub(crate) unsafe fn take(
    mapping: *mut NDK_LOGICAL_ADDRESS_MAPPING,
    adapter: usize,
) -> Result<Arc<Lam>, NtStatus> {
    if mapping.is_null() || !mapping.is_aligned() {
        return Err(NtStatus::INVALID_HANDLE);
    }
    // SAFETY: the caller guarantees it.
    let context = unsafe { (&raw const (*mapping).AdapterContext).read() };
    if objects::get::<Lam>(context)?.adapter != adapter {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    Ok(objects::take::<Lam>(context)?.0)
}
