//! Shared receive queue: depth, limit event, lifetime.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use rdma_over_tcp::rnic::{Key, Rnic, Sge, SrqAttributes, SrqConfig, SrqEvent, SrqId, Urgency};

use crate::{device::Device, errno::Errno, pd::Pd};

/// What is called when fewer receives are queued than the limit: an asynchronous event, unless the queue is destroyed:
/// then the flag is set, before events that wait are withdrawn.
pub type LimitHandler = Box<dyn Fn(&AtomicBool) + Send + Sync>;

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    device: &'static Device,
    id: SrqId,
    pd: Arc<Pd>,
    /// Queue pairs on it.
    pub(crate) users: AtomicUsize,
    /// It is destroyed: a notification that is under way is dropped.
    is_destroyed: Arc<AtomicBool>,
}

impl Srq {
    /// A queue.
    ///
    /// # Errors
    /// `EINVAL`: a limit over the adapter's. `ENOMEM`. As [`Device::check`].
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
            // The loss of the device is told elsewhere.
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

    /// Its number.
    pub const fn number(&self) -> u32 {
        self.id.number()
    }

    /// Changes its depth, arms its limit, or both.
    ///
    /// # Errors
    /// `EINVAL`: over the adapter's limit, or more receives are queued. As [`Device::check`].
    pub fn modify(&self, depth: Option<u32>, limit: Option<u32>) -> Result<(), Errno> {
        self.device.check()?;
        Ok(self.device.with(|core, _| core.modify_srq(self.id, depth, limit))?)
    }

    /// What there is of it.
    ///
    /// # Errors
    /// As [`Device::check`].
    pub fn attributes(&self) -> Result<SrqAttributes, Errno> {
        self.device.check()?;
        self.device.with(|core, _| core.srq_attributes(self.id)).ok_or(Errno::INVAL)
    }

    /// Has `work` post receives.
    ///
    /// # Errors
    /// What `work` returns, and as [`Device::check`].
    #[inline]
    pub fn post_receives<E: From<Errno>>(
        &self,
        work: impl Fn(&mut SrqPoster<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.device.check()?;
        self.device.post(|core| (work(&mut SrqPoster { core, id: self.id }), Urgency::None))
    }

    /// Ends it.
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

/// Posts to a shared receive queue.
#[derive(Debug)]
pub struct SrqPoster<'a> {
    core: &'a mut Rnic,
    id: SrqId,
}

impl SrqPoster<'_> {
    /// Posts a receive.
    ///
    /// # Errors
    /// `EINVAL`: over a limit. `ENOMEM`: the queue is full.
    #[inline]
    pub fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), Errno> {
        Ok(self.core.post_srq_receive(self.id, wr_id, sges).0?)
    }
}
