//! Protection domain: its users, lifetime.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use rdma_over_tcp::rnic::{Key, PdId};

use crate::{device::Device, errno::Errno};

/// Protection domain.
#[derive(Debug)]
pub struct Pd {
    device: &'static Device,
    id: PdId,
    /// Number of regions, windows, queue pairs and shared receive queues in it.
    pub(crate) users: AtomicUsize,
}

impl Pd {
    /// Creates a domain.
    ///
    /// # Errors
    /// `ENOMEM`: the adapter's limit is reached. As [`Device::check`].
    pub fn new(device: &'static Device) -> Result<Arc<Self>, Errno> {
        device.check()?;
        let id = device.with(|core, _| core.create_pd())?;
        Ok(Arc::new(Self { device, id, users: AtomicUsize::new(0) }))
    }

    pub(crate) const fn id(&self) -> PdId {
        self.id
    }

    /// Returns the device.
    pub const fn device(&self) -> &'static Device {
        self.device
    }

    /// Destroys the domain.
    ///
    /// # Errors
    /// `EBUSY`: it has users. As [`Device::check`].
    pub fn destroy(&self) -> Result<(), Errno> {
        if self.users.load(Ordering::Relaxed) > 0 {
            return Err(Errno::BUSY);
        }
        self.device.check()?;
        let _ = self.device.with(|core, _| core.close(Key::Pd(self.id), Box::new(|| {})));
        Ok(())
    }
}
