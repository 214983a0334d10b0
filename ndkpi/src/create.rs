//! Handing out objects that were made.

use rdma_over_tcp::ndk::NtStatus;

use crate::{
    abi::{functions::NDK_FN_CREATE_COMPLETION, types::PVOID},
    objects::{self, Kind},
};

/// Makes an object, inline, and writes its pointer to `out`.
///
/// # Errors
/// As `make`; INVALID_PARAMETER: no place for the pointer; INSUFFICIENT_RESOURCES: no place for the object.
///
/// # Safety
/// `out` is null or can be written.
pub(crate) unsafe fn create<T: Kind>(
    out: *mut *mut T::Seen,
    _completion: (NDK_FN_CREATE_COMPLETION, PVOID),
    make: impl FnOnce() -> Result<T, NtStatus>,
) -> Result<NtStatus, NtStatus> {
    if out.is_null() {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    let place = objects::reserve()?;
    let object = place.fill(make()?);
    // SAFETY: as the caller says.
    unsafe { out.write(object) };
    Ok(NtStatus::SUCCESS)
}
