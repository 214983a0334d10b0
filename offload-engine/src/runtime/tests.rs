//! Waits of threads on a core without a link.

use std::{io, sync::Arc, thread, vec::Vec};

use super::{Monitor, Passive, Progress, WaitError};
use crate::{
    engine::{Callback, doorbell::Doorbell},
    time::{Duration, Instant},
};

/// Time limit that only a failure reaches.
const LIMIT: Duration = Duration::from_secs(60);

/// Core that receives one message.
#[derive(Default)]
struct Inbox {
    is_sent: bool,
    is_received: bool,
}

impl Passive for Inbox {
    fn poll(&mut self, _now: Instant) -> io::Result<bool> {
        let is_new = self.has_input();
        self.is_received |= is_new;
        Ok(is_new)
    }

    fn settle(&mut self, _now: Instant) -> bool {
        false
    }

    fn poll_at(&self, _now: Instant) -> Option<Instant> {
        None
    }

    fn has_input(&self) -> bool {
        self.is_sent && !self.is_received
    }

    fn awaits_writable(&self) -> bool {
        false
    }

    fn take_callbacks(&mut self, _callbacks: &mut Vec<Callback>) {}

    fn device_lost(&mut self) {}

    fn repeat_last_acks(&mut self, _now: Instant) {}
}

fn core() -> Arc<Monitor<Inbox>> {
    let doorbell = Arc::new(Doorbell::new().unwrap());
    let (core, spin) = (Inbox::default(), Duration::ZERO);
    Arc::new(Monitor::new(core, doorbell, None, spin, Progress::Manual))
}

#[test]
fn waiting_thread_replaces_timed_out_sleeper() {
    let mut time = Duration::from_millis(100);
    loop {
        let core = core();
        let sleeps = core.clone();
        let sleeper = thread::spawn(move || {
            let deadline = sleeps.now() + time;
            sleeps.wait(Some(deadline), |_, _| None::<()>)
        });
        let reach = |sleepers| {
            while core.sleepers() != sleepers && !sleeper.is_finished() {
                thread::yield_now();
            }
            core.sleepers() == sleepers
        };
        reach((true, 0));
        let follows = core.clone();
        let follower = thread::spawn(move || {
            let deadline = follows.now() + LIMIT;
            follows.wait(Some(deadline), |inbox, _| inbox.is_received.then_some(()))
        });
        let in_time = reach((true, 1));
        assert_eq!(sleeper.join().unwrap(), Err(WaitError::TimedOut));
        // Reported by the doorbell alone.
        core.with_core(|inbox, _| inbox.is_sent = true);
        core.doorbell().ring();
        assert_eq!(follower.join().unwrap(), Ok(()));
        if in_time {
            return;
        }
        // A thread has taken longer to start than the sleeper slept.
        time *= 2;
    }
}
