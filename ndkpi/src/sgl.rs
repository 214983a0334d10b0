//! Scatter/gather lists of consumers.

use std::ptr::{self, NonNull};

use offload_engine::memory::SharedSlice;
use rdma_over_tcp::ndk::{NtStatus, Sge};

use crate::abi::types::{NDK_SGE, ULONG};

/// Maximum number of entries of a list; adapters accept fewer.
const SGES_MAX: usize = 64;
/// Maximum bytes of inline data, the same as that of adapters.
pub(crate) const INLINE_BYTES_MAX: usize = 1024;

/// # Errors
/// INVALID_PARAMETER: the pointer is null although the count is not 0.
///
/// # Safety
/// The pointer is null, or to `count` entries that are not written meanwhile.
unsafe fn entries<'a>(sgl: *const NDK_SGE, count: ULONG) -> Result<&'a [NDK_SGE], NtStatus> {
    match (count as usize, sgl.is_null() || !sgl.is_aligned()) {
        (0, _) => Ok(&[]), // NDK-SGE-4
        (_, true) => Err(NtStatus::INVALID_PARAMETER),
        // SAFETY: the caller guarantees it.
        (count, false) => Ok(unsafe { std::slice::from_raw_parts(sgl, count) }),
    }
}

/// Calls `work` with a list of registered memory. The token of an entry determines whether its address is virtual or
/// logical (NDK-SGE-1).
///
/// # Errors
/// As `work`; INVALID_PARAMETER: the pointer is null although the count is not 0; DATA_OVERRUN: too many entries.
///
/// # Safety
/// The pointer is null, or to `count` entries that are not written meanwhile.
pub(crate) unsafe fn with_sges<R>(
    sgl: *const NDK_SGE,
    count: ULONG,
    work: impl FnOnce(&[Sge]) -> Result<R, NtStatus>,
) -> Result<R, NtStatus> {
    if count as usize > SGES_MAX {
        return Err(NtStatus::DATA_OVERRUN);
    }
    // SAFETY: the caller guarantees it.
    let entries = unsafe { entries(sgl, count) }?;
    let mut list = [Sge { address: 0, length: 0, token: 0 }; SGES_MAX];
    for (sge, entry) in list.iter_mut().zip(entries) {
        let NDK_SGE { VirtualAddress: address, Length: length, MemoryRegionToken: token } = *entry;
        *sge = Sge { address, length, token };
    }
    work(&list[..entries.len()])
}

/// Calls `work` with a copy of the memory of a list. Tokens are ignored (NDK-SGE-2, NDK-INL-1).
///
/// # Errors
/// As `work`; INVALID_PARAMETER: more than `bytes_max` bytes, or an entry with a null address.
///
/// # Safety
/// As [`with_sges`]; and the memory of each entry can be read, as NDKPI requires for inline data.
pub(crate) unsafe fn with_copy<R>(
    sgl: *const NDK_SGE,
    count: ULONG,
    bytes_max: u32,
    work: impl FnOnce(&[u8]) -> Result<R, NtStatus>,
) -> Result<R, NtStatus> {
    // SAFETY: the caller guarantees it.
    let entries = unsafe { entries(sgl, count) }?;
    let mut copy = [0_u8; INLINE_BYTES_MAX];
    let room = INLINE_BYTES_MAX.min(bytes_max as usize);
    let mut filled = 0_usize;
    for entry in entries {
        let (bytes, end) = (entry.Length as usize, filled.checked_add(entry.Length as usize));
        let end = end.filter(|end| *end <= room).ok_or(NtStatus::INVALID_PARAMETER)?;
        let from = ptr::with_exposed_provenance_mut::<u8>(entry.VirtualAddress as usize);
        if from.is_null() && bytes > 0 {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        if let Some(from) = NonNull::new(from) {
            // SAFETY: the caller guarantees that the entry's memory can be read.
            unsafe { SharedSlice::from_raw(from, bytes) }.read(&mut copy[filled..end]);
        }
        filled = end;
    }
    work(&copy[..filled])
}

#[cfg(test)]
mod tests {
    use rdma_over_tcp::rnic::Limits;

    use super::*;

    fn entry(data: &[u8]) -> NDK_SGE {
        let address = data.as_ptr().expose_provenance() as u64;
        NDK_SGE { VirtualAddress: address, Length: data.len() as u32, MemoryRegionToken: 0xdead }
    }

    #[test]
    fn limits_cover_those_of_adapters() {
        let limits = Limits::default();
        assert_eq!(limits.inline_bytes_max as usize, INLINE_BYTES_MAX);
        for sges in [limits.send_sges_max, limits.receive_sges_max, limits.read_sges_max] {
            assert!((sges as usize) < SGES_MAX);
        }
    }

    // NDK-SGE-2: tokens are ignored, the number of entries is not limited, the number of bytes is. NDK-SGE-4
    #[test]
    fn inline_data_is_copied() {
        let data = [7_u8; 10];
        let list = vec![entry(&data); 100];
        let copied = |count, bytes_max| {
            // SAFETY: the list has `count` entries, whose memory can be read.
            unsafe { with_copy(list.as_ptr(), count, bytes_max, |copy| Ok(copy.to_vec())) }
        };
        assert_eq!(copied(100, 1000), Ok(vec![7; 1000]));
        assert_eq!(copied(100, 999), Err(NtStatus::INVALID_PARAMETER));
        assert_eq!(copied(0, 0), Ok(vec![]));
        let none = [NDK_SGE { VirtualAddress: 0, Length: 1, MemoryRegionToken: 0 }];
        // SAFETY: null is refused.
        unsafe {
            let refused = Err(NtStatus::INVALID_PARAMETER);
            assert_eq!(with_copy(none.as_ptr(), 1, 100, |_| Ok(())), refused);
            assert_eq!(with_copy(ptr::null(), 1, 100, |_| Ok(())), refused);
            assert_eq!(with_sges(ptr::null(), 1, |_| Ok(())), refused);
            assert_eq!(with_sges(ptr::null(), 0, |list| Ok(list.len())), Ok(0));
            assert_eq!(with_sges(list.as_ptr(), 65, |_| Ok(())), Err(NtStatus::DATA_OVERRUN));
            let seen = with_sges(list.as_ptr(), 64, |list| Ok(list[63])).unwrap();
            assert_eq!((seen.address, seen.length), (data.as_ptr() as u64, 10));
        }
    }
}
