//! Memory window: rights, key, lifetime.

use std::sync::{Arc, atomic::Ordering};

use rdma_over_tcp::rnic::{Access, Key, WindowId, WindowType};

use crate::{errno::Errno, mr::access, pd::Pd};

/// Converts access flags to rights of a window.
///
/// # Errors
/// `EINVAL`: flags other than remote access, zero-based addresses, and those without effect: local write, since
/// requests of this end do not use windows, and optional flags.
pub fn mw_rights(flags: u32) -> Result<Access, Errno> {
    use access::{LOCAL_WRITE, OPTIONAL, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE, ZERO_BASED};
    let map = [
        (REMOTE_WRITE, Access::REMOTE_WRITE),
        (REMOTE_READ, Access::REMOTE_READ),
        (REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
    ];
    let ignored = ZERO_BASED | LOCAL_WRITE | OPTIONAL;
    let known = map.iter().fold(ignored, |known, (flag, _)| known | flag);
    if flags & !known != 0 {
        return Err(Errno::INVAL);
    }
    let named = map.iter().filter(|(flag, _)| flags & flag != 0);
    Ok(named.fold(Access::NONE, |rights, (_, right)| rights | *right))
}

/// Memory window.
#[derive(Debug)]
pub struct Mw {
    pd: Arc<Pd>,
    id: WindowId,
    kind: WindowType,
}

impl Mw {
    /// Creates an unbound window.
    ///
    /// # Errors
    /// `ENOMEM`: the adapter's limit is reached. As [`Device::check`](crate::device::Device::check).
    pub fn new(pd: &Arc<Pd>, kind: WindowType) -> Result<Self, Errno> {
        let device = pd.device();
        device.check()?;
        let id = device.with(|core, _| core.create_window(pd.id(), kind))?;
        pd.users.fetch_add(1, Ordering::Relaxed);
        Ok(Self { pd: pd.clone(), id, kind })
    }

    pub(crate) const fn id(&self) -> WindowId {
        self.id
    }

    /// Returns the type.
    pub const fn kind(&self) -> WindowType {
        self.kind
    }

    /// Returns the key of the last bind, or the initial key.
    ///
    /// # Errors
    /// As [`Device::check`](crate::device::Device::check).
    pub fn key(&self) -> Result<u32, Errno> {
        self.pd.device().check()?;
        self.pd.device().with(|core, _| core.window_token(self.id)).ok_or(Errno::INVAL)
    }

    /// Destroys the window and the access that it grants.
    ///
    /// # Errors
    /// As [`Device::check`](crate::device::Device::check).
    pub fn destroy(&self) -> Result<(), Errno> {
        self.pd.device().check()?;
        let _ = self.pd.device().with(|core, _| core.close(Key::Window(self.id), Box::new(|| {})));
        self.pd.users.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_grant_remote_rights_only() {
        use access::{HUGETLB, LOCAL_WRITE, MW_BIND, REMOTE_READ, REMOTE_WRITE, ZERO_BASED};
        assert_eq!(mw_rights(LOCAL_WRITE), Ok(Access::NONE));
        let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let flags = LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE | ZERO_BASED | 1 << 20;
        assert_eq!(mw_rights(flags), Ok(both));
        for foreign in [MW_BIND, HUGETLB, 1 << 8] {
            assert_eq!(mw_rights(REMOTE_READ | foreign), Err(Errno::INVAL));
        }
    }
}
