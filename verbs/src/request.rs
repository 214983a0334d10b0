//! Work requests as programs give them: lists, and their scatter/gather entries, at any address.

use std::ffi::c_int;

use flue_verbs_abi::objects::ibv_sge;
use rdma_over_tcp::rnic::Sge;

use crate::guard::Errno;

/// Scatter/gather entries of a request, at most.
pub(crate) const SGES_MAX: usize = 16;

/// Scatter/gather entries in the core's form.
pub(crate) struct Entries {
    entries: [Sge; SGES_MAX],
    count: usize,
}

impl Entries {
    /// Those of a request.
    ///
    /// # Safety
    /// `list` has `count` entries.
    #[inline]
    pub(crate) unsafe fn of(list: *const ibv_sge, count: c_int) -> Result<Self, Errno> {
        let count = usize::try_from(count).ok().filter(|count| *count <= SGES_MAX);
        let count = count.ok_or(Errno(libc::EINVAL))?;
        let mut entries = [Sge { address: 0, length: 0, token: 0 }; SGES_MAX];
        for (at, entry) in entries[..count].iter_mut().enumerate() {
            // SAFETY: as the caller says.
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

/// The number of the error, and where the list has stopped.
pub(crate) fn answer<T>(posted: Result<c_int, Errno>, at: *mut T, bad: *mut *mut T) -> c_int {
    match posted {
        Ok(zero) => zero,
        Err(error) => {
            if !bad.is_null() {
                // SAFETY: the program gives a place for it.
                unsafe { bad.write_unaligned(at) };
            }
            error.0
        }
    }
}
