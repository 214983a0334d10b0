//! Runs a wire: takes, sends, sleeps until a frame comes or is due.
//!
//! A frame that is due within [`SPIN`] is waited for by polling: a sleep ends some ten microseconds late,
//! even with the timer slack of 1 ns that the thread asks for (50 us is the kernel's default). How late
//! frames were in the end is counted.

use std::{
    io,
    num::NonZeroU64,
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use offload_engine::{
    link::{Link, Wire, WireEnd},
    time::Instant as WireInstant,
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    time::Timespec,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::{WireConfig, report::StatsReporter};
use crate::{failure::Failure, report::Console};

/// How long before a frame is due the wire stops sleeping.
const SPIN: Duration = Duration::from_micros(20);

/// The user's wish to end.
#[derive(Debug)]
pub(super) struct Stop {
    told: Arc<AtomicBool>,
    /// Readable once it was told: ends a sleep.
    bell: UnixStream,
}

impl Stop {
    /// SIGINT, SIGTERM and SIGHUP become that wish.
    pub(super) fn on_signals() -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::work(format!("catch signals: {error}"));
        let told = Arc::new(AtomicBool::new(false));
        let (bell, ringer) = UnixStream::pair().map_err(failed)?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, told.clone()).map_err(failed)?;
            let ringer = ringer.try_clone().map_err(failed)?;
            signal_hook::low_level::pipe::register(signal, ringer).map_err(failed)?;
        }
        Ok(Self { told, bell })
    }
}

/// A wire at work.
pub(super) struct Run {
    pub(super) wire: Wire<Box<dyn Link>>,
    /// Readable when a frame waits at that end.
    ends: [OwnedFd; 2],
    stop: Stop,
    origin: Instant,
}

impl Run {
    /// # Errors
    /// No descriptor is left.
    pub(super) fn new(wire: Wire<Box<dyn Link>>, stop: Stop) -> Result<Self, Failure> {
        let descriptor = |end| {
            let descriptor = wire.link(end).descriptor().ok_or(io::ErrorKind::Unsupported)?;
            descriptor.try_clone_to_owned()
        };
        let failed = |error: io::Error| Failure::work(format!("descriptor of a TAP: {error}"));
        let ends =
            [descriptor(WireEnd::A).map_err(failed)?, descriptor(WireEnd::B).map_err(failed)?];
        Ok(Self { wire, ends, stop, origin: Instant::now() })
    }

    /// Time since it began.
    pub(super) fn elapsed(&self) -> Duration {
        self.origin.elapsed()
    }

    fn now(&self) -> WireInstant {
        WireInstant::ZERO + self.elapsed()
    }

    /// Moves frames until the time is over or somebody wants it to end.
    ///
    /// # Errors
    /// A TAP is gone.
    pub(super) fn until_told(
        &mut self,
        config: &WireConfig,
        console: &mut Console<'_>,
    ) -> Result<(), Failure> {
        // Sleeps are less exact without it; the summary tells by how much.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let end = config.duration().map(|duration| WireInstant::ZERO + duration);
        let mut teller = StatsReporter::new(config.interval());
        while !self.stop.told.load(Ordering::Relaxed) {
            let now = self.now();
            teller.tell_if_due(now, &self.wire, console);
            console.check()?;
            if end.is_some_and(|end| now >= end) {
                break;
            }
            let origin = self.origin;
            let clock = || WireInstant::ZERO + origin.elapsed();
            let taken = self.wire.take(clock).map_err(|(at, error)| gone(config, at, &error))?;
            let sent = self.wire.send(self.now());
            if taken + sent > 0 {
                continue;
            }
            let due = [self.wire.poll_at(), teller.next_at(), end].into_iter().flatten().min();
            self.rest(due)?;
        }
        Ok(())
    }

    /// Sleeps until a frame comes, the user wants it to end, or `due` is near.
    fn rest(&self, due: Option<WireInstant>) -> Result<(), Failure> {
        let left = due.map(|due| due.saturating_since(self.now()));
        let sleep = left.map(|left| left.saturating_sub(SPIN));
        if sleep == Some(Duration::ZERO) {
            std::hint::spin_loop();
            return Ok(());
        }
        let failed = |error: Errno| Failure::work(format!("wait for frames: {error}"));
        let timeout =
            sleep.map(Timespec::try_from).transpose().map_err(|_| failed(Errno::INVAL))?;
        let [a, b] = &self.ends;
        let mut ready = [
            PollFd::new(a, PollFlags::IN),
            PollFd::new(b, PollFlags::IN),
            PollFd::new(&self.stop.bell, PollFlags::IN),
        ];
        match poll(&mut ready, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }
}

fn gone(config: &WireConfig, at: WireEnd, error: &io::Error) -> Failure {
    let end = match at {
        WireEnd::A => &config.a,
        WireEnd::B => &config.b,
    };
    Failure::work(format!("{}: the TAP is gone: {error}", end.tap))
}
