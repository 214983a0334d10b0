//! Event loop of a wire: receive, transmit, sleep until a frame arrives or is due.
//!
//! Within [`SPIN`] before a frame is due, the loop polls. A sleep ends about ten microseconds late, even with the
//! requested timer slack of 1 ns (the kernel's default is 50 µs). The remaining lateness is measured.

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

/// Time before a frame is due at which the wire stops sleeping.
const SPIN: Duration = Duration::from_micros(20);

/// Stop request of the user.
#[derive(Debug)]
pub(super) struct Stop {
    is_requested: Arc<AtomicBool>,
    /// Readable after the request: ends a sleep.
    descriptor: UnixStream,
}

impl Stop {
    /// Converts SIGINT, SIGTERM and SIGHUP into a stop request.
    pub(super) fn on_signals() -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::work(format!("catch signals: {error}"));
        let is_requested = Arc::new(AtomicBool::new(false));
        let (descriptor, writer) = UnixStream::pair().map_err(failed)?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, is_requested.clone()).map_err(failed)?;
            let writer = writer.try_clone().map_err(failed)?;
            signal_hook::low_level::pipe::register(signal, writer).map_err(failed)?;
        }
        Ok(Self { is_requested, descriptor })
    }
}

/// Running wire.
pub(super) struct Run {
    pub(super) wire: Wire<Box<dyn Link>>,
    /// Readable when a frame is available at that end.
    ends: [OwnedFd; 2],
    stop: Stop,
    origin: Instant,
}

impl Run {
    /// Creates the event loop.
    ///
    /// # Errors
    /// No descriptor is available.
    pub(super) fn new(wire: Wire<Box<dyn Link>>, stop: Stop) -> Result<Self, Failure> {
        let descriptor = |end| {
            let descriptor = wire.link(end).descriptor().ok_or(io::ErrorKind::Unsupported)?;
            descriptor.try_clone_to_owned()
        };
        let failed =
            |error: io::Error| Failure::work(format!("TAP: duplicate the descriptor: {error}"));
        let ends =
            [descriptor(WireEnd::A).map_err(failed)?, descriptor(WireEnd::B).map_err(failed)?];
        Ok(Self { wire, ends, stop, origin: Instant::now() })
    }

    /// Returns the time since the start.
    pub(super) fn elapsed(&self) -> Duration {
        self.origin.elapsed()
    }

    fn now(&self) -> WireInstant {
        WireInstant::ZERO + self.elapsed()
    }

    /// Forwards frames until the duration has passed or a stop is requested.
    ///
    /// # Errors
    /// A TAP was removed.
    pub(super) fn until_stopped(
        &mut self,
        config: &WireConfig,
        console: &mut Console<'_>,
    ) -> Result<(), Failure> {
        // Sleeps are less exact without it; the summary contains the lateness.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let end = config.duration().map(|duration| WireInstant::ZERO + duration);
        let mut reporter = StatsReporter::new(config.interval());
        while !self.stop.is_requested.load(Ordering::Relaxed) {
            let now = self.now();
            reporter.report_if_due(now, &self.wire, console);
            console.check()?;
            if end.is_some_and(|end| now >= end) {
                break;
            }
            let origin = self.origin;
            let clock = || WireInstant::ZERO + origin.elapsed();
            let taken = self.wire.take(clock).map_err(|(at, error)| removed(config, at, &error))?;
            let sent = self.wire.send(self.now());
            if taken + sent > 0 {
                continue;
            }
            let due = [self.wire.poll_at(), reporter.next_at(), end].into_iter().flatten().min();
            self.sleep(due)?;
        }
        Ok(())
    }

    /// Sleeps until a frame arrives, a stop is requested, or `due` is near.
    fn sleep(&self, due: Option<WireInstant>) -> Result<(), Failure> {
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
            PollFd::new(&self.stop.descriptor, PollFlags::IN),
        ];
        match poll(&mut ready, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }
}

fn removed(config: &WireConfig, at: WireEnd, error: &io::Error) -> Failure {
    let end = match at {
        WireEnd::A => &config.a,
        WireEnd::B => &config.b,
    };
    Failure::work(format!("TAP {}: removed: {error}", end.tap))
}
