//! Memory of consumers, as described by MDL chains.

use std::ptr::NonNull;

use offload_engine::memory::{SharedSpan, mapped};
use rdma_over_tcp::ndk::{NtStatus, RegisteredBuffer};

use crate::abi::types::MDL;

/// Memory of a consumer.
pub(crate) type Memory = RegisteredBuffer;

/// Returns the start of the first `length` bytes of a chain.
///
/// # Errors
/// INVALID_PARAMETER: a length of zero, a chain that is too short, an empty MDL, or an MDL that is not contiguous with
/// the previous one (NDK-MEM-1, NDK-MEM-18).
///
/// # Safety
/// The pointer is null, or points to an MDL chain.
unsafe fn start(mdl: *const MDL, length: usize) -> Result<NonNull<u8>, NtStatus> {
    let mut piece = mdl;
    let (mut start, mut end) = (None, 0);
    let mut missing = length;
    while missing > 0 {
        // SAFETY: the caller guarantees it.
        let Some(found) = (unsafe { piece.as_ref() }) else {
            return Err(NtStatus::INVALID_PARAMETER);
        };
        let (at, bytes) = (found.VirtualAddress.expose_provenance(), found.ByteCount as usize);
        let is_next = start.is_none() || at == end;
        end = at
            .checked_add(bytes)
            .filter(|_| bytes > 0 && is_next)
            .ok_or(NtStatus::INVALID_PARAMETER)?;
        start = start.or_else(|| NonNull::new(found.VirtualAddress.cast()));
        missing = missing.saturating_sub(bytes);
        piece = found.Next;
    }
    start.ok_or(NtStatus::INVALID_PARAMETER)
}

/// Returns the first `length` bytes of a chain, to be registered under their addresses (NDK-MEM-3).
///
/// # Errors
/// As [`start`]; INVALID_PARAMETER also for memory that is not mapped, or not writable although `is_written` is set.
///
/// # Safety
/// The pointer is null, or points to an MDL chain. The memory stays mapped until the adapter has stopped using it: the
/// consumer has pinned it.
pub(crate) unsafe fn memory(
    mdl: *const MDL,
    length: usize,
    is_written: bool,
) -> Result<Memory, NtStatus> {
    // SAFETY: the caller guarantees it.
    let start = unsafe { start(mdl, length) }?;
    mapped::check(start.as_ptr().addr(), length, is_written)
        .map_err(|_| NtStatus::INVALID_PARAMETER)?;
    // SAFETY: the pages are mapped, and writable if `is_written` is set; the consumer, which is not Rust, keeps them
    // mapped.
    Ok(unsafe { SharedSpan::from_raw(start, length, is_written, ()) }.into())
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    fn chain(pieces: &mut [MDL]) -> *const MDL {
        for at in 1..pieces.len() {
            pieces[at - 1].Next = &raw mut pieces[at];
        }
        pieces.as_mut_ptr()
    }

    fn piece(at: usize, bytes: u32) -> MDL {
        let address = ptr::with_exposed_provenance_mut(at);
        MDL { Next: ptr::null_mut(), VirtualAddress: address, ByteCount: bytes }
    }

    // NDK-MEM-1
    #[test]
    fn chains_are_virtually_contiguous() {
        let start_of = |pieces: &mut [MDL], length| {
            // SAFETY: `chain` returns an MDL chain.
            unsafe { start(chain(pieces), length) }.map(|it| it.as_ptr().addr())
        };
        let refused = Err(NtStatus::INVALID_PARAMETER);
        for length in [1, 10, 11, 60] {
            let mut pieces = [piece(0x1000, 10), piece(0x100a, 50)];
            assert_eq!(start_of(&mut pieces, length), Ok(0x1000), "{length}");
        }
        assert_eq!(start_of(&mut [piece(0x1000, 10), piece(0x100a, 50)], 61), refused);
        assert_eq!(start_of(&mut [piece(0x1000, 10), piece(0x100a, 50)], 0), refused);
        // The second MDL is read only if it is needed.
        assert_eq!(start_of(&mut [piece(0x1000, 10), piece(0x100b, 50)], 10), Ok(0x1000));
        assert_eq!(start_of(&mut [piece(0x1000, 10), piece(0x100b, 50)], 11), refused);
        assert_eq!(start_of(&mut [piece(0x1000, 10), piece(0x1009, 50)], 11), refused);
        assert_eq!(start_of(&mut [piece(0x1000, 0), piece(0x1000, 50)], 11), refused);
        assert_eq!(start_of(&mut [piece(usize::MAX - 5, 10)], 10), refused);
        assert_eq!(start_of(&mut [piece(0, 10)], 10), refused);
        // SAFETY: null is allowed.
        assert_eq!(unsafe { start(ptr::null(), 1) }, Err(NtStatus::INVALID_PARAMETER));
        // A circular chain with an empty MDL does not loop forever.
        let mut ring = [piece(0x1000, 10), piece(0x100a, 0)];
        let first = chain(&mut ring);
        // SAFETY: the pointer is to the second of the two MDLs.
        unsafe { (*first.cast_mut().add(1)).Next = first.cast_mut() };
        // SAFETY: the pointer is to an MDL chain.
        assert_eq!(unsafe { start(first, 100) }, Err(NtStatus::INVALID_PARAMETER));
    }
}
