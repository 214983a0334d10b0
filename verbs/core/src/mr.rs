//! Memory region: registration, rights, lifetime.

use std::{
    mem,
    sync::{Arc, atomic::Ordering},
};

use rdma_over_tcp::rnic::{Access, Close, Key, RegionId, RegisteredBuffer, VerbError};

use crate::{errno::Errno, pd::Pd, sync::OneShot};

/// Access flags, `IBV_ACCESS_*`.
pub mod access {
    /// Local write.
    pub const LOCAL_WRITE: u32 = 1;
    /// Remote write.
    pub const REMOTE_WRITE: u32 = 1 << 1;
    /// Remote read.
    pub const REMOTE_READ: u32 = 1 << 2;
    /// Remote atomics.
    pub const REMOTE_ATOMIC: u32 = 1 << 3;
    /// Binding of memory windows.
    pub const MW_BIND: u32 = 1 << 4;
    /// Addresses relative to the first byte of the region.
    pub const ZERO_BASED: u32 = 1 << 5;
    /// On-demand paging.
    pub const ON_DEMAND: u32 = 1 << 6;
    /// Huge pages.
    pub const HUGETLB: u32 = 1 << 7;
    /// Optional flags (`IBV_ACCESS_OPTIONAL_RANGE`).
    pub const OPTIONAL: u32 = 0x3ff << 20;
}

/// Converts access flags to rights.
///
/// # Errors
/// `EINVAL`: unknown flags, or remote write or atomics without local write. `EOPNOTSUPP`: on-demand paging.
pub fn rights(flags: u32) -> Result<Access, Errno> {
    use access::{
        HUGETLB, LOCAL_WRITE, MW_BIND, ON_DEMAND, OPTIONAL, REMOTE_ATOMIC, REMOTE_READ,
        REMOTE_WRITE, ZERO_BASED,
    };
    let map = [
        (LOCAL_WRITE, Access::LOCAL_WRITE),
        (REMOTE_WRITE, Access::REMOTE_WRITE),
        (REMOTE_READ, Access::REMOTE_READ),
        (REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
        (MW_BIND, Access::BIND),
    ];
    let ignored = ZERO_BASED | HUGETLB | OPTIONAL;
    if flags & ON_DEMAND != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let known = map.iter().fold(ignored, |known, (flag, _)| known | flag);
    let is_foreign_write = flags & (REMOTE_WRITE | REMOTE_ATOMIC) != 0;
    if flags & !known != 0 || is_foreign_write && flags & LOCAL_WRITE == 0 {
        return Err(Errno::INVAL);
    }
    let named = map.iter().filter(|(flag, _)| flags & flag != 0);
    Ok(named.fold(Access::NONE, |rights, (_, right)| rights | *right))
}

/// Memory region.
#[derive(Debug)]
pub struct Mr {
    pd: Arc<Pd>,
    id: RegionId,
    key: u32,
}

impl Mr {
    /// Registers `buffer`. Requests and peers use its address.
    ///
    /// # Errors
    /// `EINVAL`: zero bytes, too many bytes, or an address that overflows. `EFAULT`: a right to write read-only memory.
    /// `ENOMEM`: too many regions. As [`Device::check`](crate::device::Device::check).
    pub fn new(pd: &Arc<Pd>, buffer: &RegisteredBuffer, rights: Access) -> Result<Self, Errno> {
        let device = pd.device();
        device.check()?;
        let (id, key) = device.with(|core, _| {
            let id = core.create_region(pd.id(), false)?;
            let registered = core.register(id, buffer, 0, buffer.len(), rights);
            if let Err(error) = registered {
                let _ = core.close(Key::Region(id), Box::new(|| {}));
                return Err(error);
            }
            Ok((id, core.token(id).unwrap_or_default()))
        })?;
        pd.users.fetch_add(1, Ordering::Relaxed);
        Ok(Self { pd: pd.clone(), id, key })
    }

    /// Returns the key, which is both the local and the remote one.
    pub const fn key(&self) -> u32 {
        self.key
    }

    /// Returns the domain.
    pub const fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    pub(crate) const fn id(&self) -> RegionId {
        self.id
    }

    /// Registers `buffer` in a domain in place of the current memory, which the adapter does not access after the
    /// return. The key remains. A failure changes nothing.
    ///
    /// # Errors
    /// As [`Mr::new`] and [`Mr::destroy`].
    pub fn replace(
        &mut self,
        pd: &Arc<Pd>,
        buffer: &RegisteredBuffer,
        rights: Access,
    ) -> Result<(), Errno> {
        let mut new = Self::new(pd, buffer, rights)?;
        let ids = [self.id, new.id];
        let ended = Arc::new(OneShot::default());
        let end = ended.clone();
        let ending = pd.device().with(|core, _| {
            core.exchange_tokens(ids)?;
            let ending = core.deregister(self.id, Box::new(move || end.set(())));
            if ending.is_err() {
                let _ = core.exchange_tokens(ids);
            }
            ending
        });
        if ending.is_ok() {
            mem::swap(&mut self.key, &mut new.key);
            mem::swap(self, &mut new);
        }
        // The memory is that of the old region, or the new one after a failure.
        match ending {
            Ok(Close::Pending) => ended.wait(),
            Ok(Close::Done) => {}
            Err(error) => {
                new.destroy()?;
                return Err(of_deregistration(error));
            }
        }
        new.release();
        Ok(())
    }

    /// Releases a region without memory.
    fn release(&self) {
        let _ = self.pd.device().with(|core, _| core.close(Key::Region(self.id), Box::new(|| {})));
        self.pd.users.fetch_sub(1, Ordering::Relaxed);
    }

    /// Deregisters the memory. After the return the adapter does not access it.
    ///
    /// # Errors
    /// `EBUSY`: windows are bound to it. As [`Device::check`](crate::device::Device::check).
    pub fn destroy(&self) -> Result<(), Errno> {
        let device = self.pd.device();
        device.check()?;
        let ended = Arc::new(OneShot::default());
        let end = ended.clone();
        let ending = device.with(|core, _| core.deregister(self.id, Box::new(move || end.set(()))));
        match ending {
            Ok(Close::Pending) => ended.wait(),
            Ok(Close::Done) => {}
            Err(error) => return Err(of_deregistration(error)),
        }
        self.release();
        Ok(())
    }
}

/// Converts the error of a deregistration.
fn of_deregistration(error: VerbError) -> Errno {
    match error {
        VerbError::WindowsBound => Errno::BUSY,
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_flags_map_to_rights() {
        use access::{HUGETLB, LOCAL_WRITE, ON_DEMAND, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE};
        assert_eq!(rights(0), Ok(Access::NONE));
        assert_eq!(rights(REMOTE_READ | HUGETLB | 1 << 20), Ok(Access::REMOTE_READ));
        let all = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;
        let granted = rights(all).unwrap();
        for right in
            [Access::LOCAL_WRITE, Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC]
        {
            assert!(granted.contains(right));
        }
        assert_eq!(rights(REMOTE_WRITE), Err(Errno::INVAL), "remote write requires local write");
        assert_eq!(rights(REMOTE_ATOMIC | REMOTE_READ), Err(Errno::INVAL));
        assert_eq!(rights(1 << 8 | LOCAL_WRITE), Err(Errno::INVAL));
        assert_eq!(rights(1 << 30), Err(Errno::INVAL));
        assert_eq!(rights(LOCAL_WRITE | ON_DEMAND), Err(Errno::OPNOTSUPP));
    }
}
