//! Work requests of programs: lists and scatter/gather entries, at any address.

use std::ffi::c_int;

use flue_verbs_abi::objects::ibv_sge;
use rdma_over_tcp::rnic::Sge;

use crate::guard::Errno;

/// Maximum number of scatter/gather entries of a request.
pub(crate) const SGES_MAX: usize = 16;

/// Scatter/gather entries in the form of the core.
pub(crate) struct SgeList {
    entries: [Sge; SGES_MAX],
    count: usize,
}

impl SgeList {
    /// Reads the entries of a request.
    ///
    /// # Safety
    /// `list` has `count` entries. They need not be aligned: libiscsi keeps them in packed structures.
    #[inline]
    pub(crate) unsafe fn of(list: *const ibv_sge, count: c_int) -> Result<Self, Errno> {
        let count = usize::try_from(count).ok().filter(|count| *count <= SGES_MAX);
        let count = count.ok_or(Errno(libc::EINVAL))?;
        let mut entries = [Sge { address: 0, length: 0, token: 0 }; SGES_MAX];
        for (at, entry) in entries[..count].iter_mut().enumerate() {
            // SAFETY: guaranteed by the caller.
            let ibv_sge { addr, length, lkey } = unsafe { list.add(at).read_unaligned() };
            *entry = Sge { address: addr, length, token: lkey };
        }
        Ok(Self { entries, count })
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[Sge] {
        &self.entries[..self.count]
    }
}

/// Returns the error number, and reports the failed request of the list.
pub(crate) fn answer<T>(posted: Result<c_int, Errno>, at: *mut T, bad: *mut *mut T) -> c_int {
    match posted {
        Ok(zero) => zero,
        Err(error) => {
            if !bad.is_null() {
                // SAFETY: the program passes writable memory for it.
                unsafe { bad.write_unaligned(at) };
            }
            error.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misaligned_entries_are_read() {
        let given =
            [(7, 8, 9), (10, 11, 12)].map(|(addr, length, lkey)| ibv_sge { addr, length, lkey });
        let mut octets = [0_u8; 2 * size_of::<ibv_sge>() + 1];
        // SAFETY: there is room for both.
        let entries = unsafe {
            let list = octets.as_mut_ptr().add(1).cast::<ibv_sge>();
            list.cast::<[ibv_sge; 2]>().write_unaligned(given);
            SgeList::of(list, 2)
        };
        let Ok(entries) = entries else { panic!("two entries") };
        let expected = [(7, 8, 9), (10, 11, 12)];
        let expected = expected.map(|(address, length, token)| Sge { address, length, token });
        assert_eq!(entries.as_slice(), expected);
    }
}
