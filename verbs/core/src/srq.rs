//! Shared receive queue: depth, limit event, lifetime.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use rdma_over_tcp::rnic::{Key, Rnic, Sge, SrqAttributes, SrqConfig, SrqEvent, SrqId, Urgency};

use crate::{device::Device, errno::Errno, pd::Pd};

/// Handler for the limit event: fewer receives are queued than the limit. The flag is true once the queue is destroyed;
/// it is set before the withdrawal of queued events.
pub type LimitHandler = Box<dyn Fn(&AtomicBool) + Send + Sync>;

/// Shared receive queue.
#[derive(Debug)]
pub struct Srq {
    device: &'static Device,
    id: SrqId,
    pd: Arc<Pd>,
    /// Number of queue pairs that use it.
    pub(crate) users: AtomicUsize,
    /// True once the queue is destroyed: outstanding notifications are dropped.
    is_destroyed: Arc<AtomicBool>,
}

impl Srq {
    /// Creates a queue.
    ///
    /// # Errors
    /// `EINVAL`: a limit above the adapter's. `ENOMEM`. As [`Device::check`].
    pub fn new(
        pd: &Arc<Pd>,
        depth: u32,
        sges_max: u32,
        reached: LimitHandler,
    ) -> Result<Arc<Self>, Errno> {
        let device = pd.device();
        device.check()?;
        if depth == 0 {
            return Err(Errno::INVAL);
        }
        let is_destroyed = Arc::new(AtomicBool::new(false));
        let flag = is_destroyed.clone();
        let notification = Arc::new(move |event| {
            // The loss of the device is a separate event.
            if event == SrqEvent::LimitReached {
                reached(&flag);
            }
        });
        let config = SrqConfig { depth, max_receive_request_sge: sges_max, limit: 0 };
        let id = device.with(|core, _| core.create_srq(pd.id(), config, notification))?;
        pd.users.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(Self { device, id, pd: pd.clone(), users: AtomicUsize::new(0), is_destroyed }))
    }

    pub(crate) const fn id(&self) -> SrqId {
        self.id
    }

    /// Returns the number of the queue.
    pub const fn number(&self) -> u32 {
        self.id.number()
    }

    /// Changes the depth, arms the limit event, or both.
    ///
    /// # Errors
    /// `EINVAL`: a value above the adapter's limit, or more receives are queued. As [`Device::check`].
    pub fn modify(&self, depth: Option<u32>, limit: Option<u32>) -> Result<(), Errno> {
        self.device.check()?;
        Ok(self.device.with(|core, _| core.modify_srq(self.id, depth, limit))?)
    }

    /// Returns depth, entries per request and limit.
    ///
    /// # Errors
    /// As [`Device::check`].
    pub fn attributes(&self) -> Result<SrqAttributes, Errno> {
        self.device.check()?;
        self.device.with(|core, _| core.srq_attributes(self.id)).ok_or(Errno::INVAL)
    }

    /// Calls `work` to post receives.
    ///
    /// # Errors
    /// Errors of `work`. As [`Device::check`].
    #[inline]
    pub fn post_receives<E: From<Errno>>(
        &self,
        work: impl Fn(&mut SrqPoster<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.device.check()?;
        self.device.post(|core| (work(&mut SrqPoster { core, id: self.id }), Urgency::None))
    }

    /// Destroys the queue.
    ///
    /// # Errors
    /// `EBUSY`: queue pairs use it. As [`Device::check`].
    pub fn destroy(&self) -> Result<(), Errno> {
        if self.users.load(Ordering::Relaxed) > 0 {
            return Err(Errno::BUSY);
        }
        self.device.check()?;
        self.is_destroyed.store(true, Ordering::Relaxed);
        let _ = self.device.with(|core, _| core.close(Key::Srq(self.id), Box::new(|| {})));
        self.pd.users.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Access to a shared receive queue during a post.
#[derive(Debug)]
pub struct SrqPoster<'a> {
    core: &'a mut Rnic,
    id: SrqId,
}

impl SrqPoster<'_> {
    /// Posts a receive.
    ///
    /// # Errors
    /// `EINVAL`: too many scatter/gather entries. `ENOMEM`: the queue is full.
    #[inline]
    pub fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), Errno> {
        Ok(self.core.post_srq_receive(self.id, wr_id, sges).0?)
    }
}
