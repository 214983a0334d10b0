//! NdkBuildLam and NdkReleaseLam: logical addresses of consumers' memory.
//!
//! A mapping is in the table of objects, so that what a consumer gives back is looked up before it is used;
//! `AdapterContext` is its place there.

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

/// A mapping, and the adapter whose it is.
pub(crate) struct Lam {
    pub(crate) mapping: LogicalAddressMapping,
    adapter: usize,
}

impl Kind for Lam {
    type Seen = c_void;
    const TYPE: NDK_OBJECT_TYPE = NdkObjectTypeUndefined;

    fn dispatch() -> *const c_void {
        ptr::null()
    }
}

/// Bytes of a mapping of so many pages.
fn bytes(pages: u32) -> Option<ULONG> {
    let array = (pages as usize).checked_mul(size_of::<NDK_LOGICAL_ADDRESS>())?;
    let first = offset_of!(NDK_LOGICAL_ADDRESS_MAPPING, AdapterPageArray);
    ULONG::try_from(first.checked_add(array)?).ok()
}

/// Maps the first `length` bytes of a chain by `build`, which is `adapter`'s, and tells the consumer of the pages.
/// `size` has the room that there is, and gets what is needed (NDK-MEM-4).
///
/// # Errors
/// BUFFER_TOO_SMALL; INVALID_PARAMETER: as of [`mdl::memory`], or a place is missing; as `build`.
///
/// # Safety
/// As [`mdl::memory`]; each place is null or can be written, `mapping` with as many bytes as `size` says.
pub(crate) unsafe fn tell(
    chain: *const MDL,
    length: usize,
    (mapping, size, offset): (*mut NDK_LOGICAL_ADDRESS_MAPPING, *mut ULONG, *mut ULONG),
    adapter: usize,
    build: impl FnOnce(&mdl::Memory) -> Result<LogicalAddressMapping, NtStatus>,
) -> Result<(), NtStatus> {
    if size.is_null() || offset.is_null() {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    // SAFETY: as the caller says. What may only be read is mapped so.
    let memory =
        unsafe { mdl::memory(chain, length, true).or_else(|_| mdl::memory(chain, length, false)) }?;
    let pages = LogicalAddressMapping::pages_needed(memory.address(), length);
    let needed = pages.and_then(bytes).ok_or(NtStatus::INSUFFICIENT_RESOURCES)?;
    // SAFETY: as the caller says.
    let room = unsafe { size.replace(needed) };
    if room < needed {
        return Err(NtStatus::BUFFER_TOO_SMALL);
    }
    if mapping.is_null() || !mapping.is_aligned() {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    let place = objects::reserve()?;
    let built = build(&memory)?;
    let lam = Lam { mapping: built.clone(), adapter };
    // SAFETY: there is room for as many pages, and for the offset.
    unsafe {
        offset.write(built.first_byte_offset());
        (&raw mut (*mapping).AdapterPageCount).write(built.page_count());
        let array = (&raw mut (*mapping).AdapterPageArray).cast::<NDK_LOGICAL_ADDRESS>();
        for (at, page) in built.pages().enumerate() {
            array.add(at).write(page);
        }
        (&raw mut (*mapping).AdapterContext).write(place.fill(lam));
    }
    Ok(())
}

/// Takes back a mapping that [`tell`] has told.
///
/// # Errors
/// INVALID_HANDLE: it is none, or was taken back; INVALID_PARAMETER: another adapter's.
///
/// # Safety
/// The pointer is null, or of a mapping.
pub(crate) unsafe fn take(
    mapping: *mut NDK_LOGICAL_ADDRESS_MAPPING,
    adapter: usize,
) -> Result<Arc<Lam>, NtStatus> {
    if mapping.is_null() || !mapping.is_aligned() {
        return Err(NtStatus::INVALID_HANDLE);
    }
    // SAFETY: as the caller says.
    let context = unsafe { (&raw const (*mapping).AdapterContext).read() };
    if objects::get::<Lam>(context)?.adapter != adapter {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    Ok(objects::take::<Lam>(context)?.0)
}
