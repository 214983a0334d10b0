//! Protection domain: its users, lifetime.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use rdma_over_tcp::rnic::{Key, PdId};

use crate::{device::Engine, errno::Errno};

/// A protection domain.
#[derive(Debug)]
pub struct Pd {
    engine: &'static Engine,
    id: PdId,
    /// Regions, queue pairs and others in it.
    pub(crate) users: AtomicUsize,
}

impl Pd {
    /// A domain.
    ///
    /// # Errors
    /// `ENOMEM`: there are too many. As [`Engine::check`].
    pub fn new(engine: &'static Engine) -> Result<Arc<Self>, Errno> {
        engine.check()?;
        let id = engine.with(|core, _| core.create_pd())?;
        Ok(Arc::new(Self { engine, id, users: AtomicUsize::new(0) }))
    }

    pub(crate) const fn id(&self) -> PdId {
        self.id
    }

    /// The adapter.
    pub const fn engine(&self) -> &'static Engine {
        self.engine
    }

    /// Ends it.
    ///
    /// # Errors
    /// `EBUSY`: something is in it. As [`Engine::check`].
    pub fn destroy(&self) -> Result<(), Errno> {
        if self.users.load(Ordering::Relaxed) > 0 {
            return Err(Errno::BUSY);
        }
        self.engine.check()?;
        let _ = self.engine.with(|core, _| core.close(Key::Pd(self.id), Box::new(|| {})));
        Ok(())
    }
}
