//! C interface of `SO_KEEPALIVE`: an RDMA Write of zero bytes every `TCP_KEEPIDLE` seconds. It does not reach the
//! peer's program. Without an acknowledgment TCP aborts the connection, which resets the rsocket. One thread serves all
//! rsockets of a process.

use std::{
    os::fd::RawFd,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use flue_verbs_core::{
    process::{self, GENERATIONS_MAX},
    rsocket::Socket,
};
use offload_engine::thread;

use crate::guard::Errno;

struct KeptAlive {
    /// Descriptor and its rsocket.
    socket: (RawFd, Weak<Socket>),
    interval: Duration,
    due: Instant,
}

/// rsockets of a process, and its thread.
struct Service {
    kept: Mutex<(Vec<KeptAlive>, bool)>,
    changed: Condvar,
}

static SERVICES: [Service; GENERATIONS_MAX] =
    [const { Service { kept: Mutex::new((Vec::new(), false)), changed: Condvar::new() } };
        GENERATIONS_MAX];

impl Service {
    fn lock(&self) -> MutexGuard<'_, (Vec<KeptAlive>, bool)> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs until no rsocket has keep-alive.
    fn run(&self) {
        let mut kept = self.lock();
        loop {
            kept.0.retain(|it| it.socket.1.strong_count() > 0);
            let Some(next) = kept.0.iter().map(|it| it.due).min() else {
                kept.1 = false;
                return;
            };
            let now = Instant::now();
            if let Some(time) = next.checked_duration_since(now).filter(|time| !time.is_zero()) {
                let waited = self.changed.wait_timeout(kept, time);
                kept = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let mut due = Vec::new();
            for it in &mut kept.0 {
                if it.due <= now {
                    it.due = now + it.interval;
                    due.extend(it.socket.1.upgrade());
                }
            }
            drop(kept);
            due.iter().for_each(|socket| socket.probe());
            drop(due);
            kept = self.lock();
        }
    }
}

/// Sets the interval of keep-alive probes. `None`: disabled.
pub(super) fn set(
    descriptor: RawFd,
    socket: &Arc<Socket>,
    interval: Option<Duration>,
) -> Result<(), Errno> {
    let service = SERVICES.get(process::generation()).ok_or(Errno(libc::ENODEV))?;
    let mut kept = service.lock();
    kept.0.retain(|it| it.socket.0 != descriptor);
    if let Some(interval) = interval {
        let due = Instant::now() + interval;
        kept.0.push(KeptAlive { socket: (descriptor, Arc::downgrade(socket)), interval, due });
        if !kept.1 {
            thread::start("flue-keepalive", || service.run())?;
            kept.1 = true;
        }
    }
    drop(kept);
    service.changed.notify_all();
    Ok(())
}
