//! Background thread of a core that its consumers drive while they wait or poll.
//!
//! The thread runs the loop while no consumer does. Consumers are recorded in [`Presence`]: threads that wait are
//! counted, and so are polls. While a thread waits, the background thread dozes: it checks again every [`DOZE`], and
//! the descriptors that wake the loop do not wake it. Otherwise it sleeps on them as any other sleeper.
//!
//! A consumer that polls may drive the core with each poll, or poll only for a moment and then spin on memory that the
//! core writes. The first must not be disturbed, the second must be served immediately. So the thread keeps a score of
//! its checks ([`Usefulness`]): whether it found work that the consumer was not fetching. By this score it dozes or
//! sleeps on the descriptors.
//!
//! While the thread sleeps on the descriptors, each post is sent immediately by the thread that posts. A consumer that
//! posts large messages in sequence without a poll would then send each by itself. So after [`POSTS_MIN`] posts
//! within one sleep, in which nothing has arrived, the thread dozes too, and flushes waiting posts whenever it wakes.
//!
//! If the thread itself receives a stream of messages, it polls for more for a moment before it sleeps ([`Linger`]). If
//! it receives single ones, it stays on the CPU of the consumer that posts ([`CpuFollower`]).
//!
//! If a consumer is in a call when the thread wakes, the thread waits for the end of the call. If such calls are long
//! ([`LongCalls`]), it dozes.
//!
//! So a consumer that polls or waits has no thread hop and no competitor for its CPU; a consumer that computes is
//! served by the thread after one [`DOZE`] at the latest. [`Presence::request`] ends the doze immediately: a consumer
//! is about to sleep in a system call of its own.
//!
//! The thread also calls the callbacks that consumers' threads must not call within their calls
//! ([`Monitor::with_progress_thread`]).

use std::io;

use super::{Monitor, Passive, Urgency, cpu::CpuFollower};
use crate::{
    engine::doorbell::{Doorbell, Sleep},
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    thread::current_cpu,
    time::{Duration, Instant},
};

/// Interval at which a dozing thread checks whether it is needed.
const DOZE: Duration = Duration::from_millis(1);

/// Polls within a [`DOZE`] at which a consumer counts as polling.
const POLLS_MIN: u64 = 4;

/// Weight of a poll that found something to do, and may have taken long.
const BUSY_POLL: u64 = 16;

/// Polls without a check that was needed, for [`DOZE`] at least, at which the consumer counts as fetching everything.
/// They end a sleep on the descriptors: arrivals would wake the thread within the system call, where it finds nothing.
/// A consumer may poll for its completion as long as the thread of its peer dozes, which is not steady.
const STEADY_POLLS: u64 = 256;

/// Messages, or parts of them, received in a pass of the thread from which it expects more soon.
const STREAM_MIN: u64 = 8;

/// Time for which the thread looks for them before it sleeps. A wake-up would cost the sender more than a system call.
const LINGER: Duration = Duration::from_micros(50);

/// Time in a call of a consumer after which the call is long: it sends large messages. The end of each would wake the
/// thread.
const LONG_CALL: Duration = Duration::from_micros(100);

/// Long calls in sequence from which the thread dozes. A single one may have been preempted.
const LONG_CALLS_MIN: u32 = 2;

/// Time after the last poll from which a consumer does not poll: it spins on memory, or computes.
const POLL_PAUSE: Duration = Duration::from_micros(50);

/// Posts that may wait, within a [`DOZE`] or a sleep on the descriptors, at which a consumer counts as
/// posting.
const POSTS_MIN: u64 = 8;

/// Checks without polls after which a posting consumer still counts as polling: it posts until its queue is
/// full, which may last some milliseconds, and polls again.
const POSTING_DOZES_MAX: u32 = 4;

/// Counters of a [`Presence`] at the last check.
#[derive(Clone, Copy, Default)]
struct Seen {
    polls: u64,
    posts: u64,
    /// Checks since there were polls.
    dozes_without_polls: u32,
}

/// Thread that drives the core.
enum Driver {
    /// Thread of a consumer that waits, or that posts and polls.
    Consumer,
    /// None: a consumer posts one request after the other, and nothing arrives. Waiting posts are sent once per
    /// [`DOZE`].
    Poster,
    /// None recorded, unless a consumer is in a call, or polls. `has_polled`: one has since the last check.
    Unseen { has_polled: bool },
    /// None: a consumer is about to sleep.
    None,
}

/// Polls of all consumers.
#[derive(Clone, Copy)]
struct Polls {
    count: u64,
    /// Time of the last one.
    at: Instant,
    /// True if it brought the consumer nothing, so that it polls again.
    is_empty: bool,
}

/// Score of the thread's checks: high if polls of the consumer fetch everything.
#[derive(Clone, Copy)]
struct Usefulness {
    useless: u32,
    /// Polls at the last check that changed the score, and its time.
    polls: u64,
    at: Instant,
}

impl Usefulness {
    /// Score from which the thread dozes while a consumer polls.
    const DOZES_MIN: u32 = 4;
    /// Highest score, and the first.
    const MAX: u32 = 8;

    const fn new() -> Self {
        Self { useless: Self::MAX, polls: 0, at: Instant::ZERO }
    }

    const fn dozes(&self) -> bool {
        self.useless >= Self::DOZES_MIN
    }

    /// Records a check at `now`, after `polls`, which found work or not. `has_polled`: since the last check. Returns
    /// true if the thread dozes, false if it sleeps on the descriptors.
    fn record(&mut self, now: Instant, polls: Polls, has_polled: bool, busy: bool) -> bool {
        let is_polling = now - polls.at < POLL_PAUSE;
        let is_needed = busy && (!is_polling || !polls.is_empty && !self.dozes());
        let is_useless = match self.dozes() {
            true => has_polled,
            false => {
                let count = polls.count - self.polls;
                is_polling && count >= STEADY_POLLS && now - self.at >= DOZE
            }
        };
        if is_needed {
            // A consumer that alternates between polls and memory has useless checks too.
            self.useless = self.useless.saturating_sub(2);
        } else if is_useless {
            self.useless = (self.useless + 1).min(Self::MAX);
        } else {
            return false;
        }
        (self.polls, self.at) = (polls.count, now);
        has_polled && self.dozes()
    }
}

/// Phase after a pass that has received a stream of messages, in which the thread does not sleep.
///
/// If nothing arrives in it, it is skipped for the next streams: once, three times, up to 63 times. So a sender that
/// needs this CPU, or that pauses longer, gets it.
#[derive(Default)]
struct Linger {
    /// Messages received at the last pass.
    received: u64,
    until: Option<Instant>,
    failures: u32,
    skips: u32,
}

impl Linger {
    const FAILURES_MAX: u32 = 6;

    /// Records a pass at `now` that found work, after which the core has `received` messages. Returns true if they are
    /// a stream.
    fn record(&mut self, now: Instant, received: u64) -> bool {
        let count = received.wrapping_sub(std::mem::replace(&mut self.received, received));
        if self.until.take().is_some() {
            self.failures = 0;
        }
        if count < STREAM_MIN {
            return false;
        }
        if self.skips > 0 {
            self.skips -= 1;
        } else {
            self.until = Some(now + LINGER);
        }
        true
    }

    /// Returns true if the thread that has found nothing at `now` continues to look.
    fn continues(&mut self, now: Instant) -> bool {
        let Some(until) = self.until else { return false };
        if now >= until {
            self.until = None;
            self.failures = (self.failures + 1).min(Self::FAILURES_MAX);
            self.skips = (1 << self.failures) - 1;
        }
        now < until
    }
}

/// Long calls of consumers, in sequence, for whose end the thread has waited.
#[derive(Default)]
struct LongCalls(u32);

impl LongCalls {
    /// Records that the thread has waited for the end of a call. Returns true if it dozes.
    fn record(&mut self, waited: Duration) -> bool {
        self.0 = if waited < LONG_CALL { 0 } else { self.0.saturating_add(1) };
        self.0 >= LONG_CALLS_MIN
    }
}

/// [`Presence::cpu`] without a post.
const NO_CPU: usize = usize::MAX;

/// Record of the consumers that drive a core.
#[derive(Debug)]
pub struct Presence {
    /// Threads that wait, and drive the core meanwhile.
    waiting: AtomicUsize,
    polls: AtomicU64,
    /// Time of the last poll, nanoseconds of the core's clock.
    polled_at: AtomicU64,
    /// True if it found nothing, or nothing for the consumer.
    is_empty: AtomicBool,
    /// Posts that may wait.
    posts: AtomicU64,
    /// CPU of the first post since the thread has slept; taken by the thread.
    cpu: AtomicUsize,
    /// Count of posts that ends the sleep of the thread on the descriptors; 0 while it does not sleep there.
    relief_of_posts: AtomicU64,
    /// The same for polls, and the time from which it applies, nanoseconds of the core's clock.
    relief_of_polls: AtomicU64,
    relief_at: AtomicU64,
    is_requested: AtomicBool,
    doorbell: Doorbell,
}

impl Presence {
    /// A record without consumers.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            waiting: AtomicUsize::new(0),
            polls: AtomicU64::new(0),
            polled_at: AtomicU64::new(0),
            is_empty: AtomicBool::new(false),
            posts: AtomicU64::new(0),
            cpu: AtomicUsize::new(NO_CPU),
            relief_of_posts: AtomicU64::new(0),
            relief_of_polls: AtomicU64::new(0),
            relief_at: AtomicU64::new(0),
            is_requested: AtomicBool::new(false),
            doorbell: Doorbell::new()?,
        })
    }

    /// Records a poll by a consumer at `now`, a `busy` one as several. Returns true if the thread must be woken: the
    /// consumer polls steadily.
    #[inline]
    fn polled(&self, now: Instant, busy: bool) -> bool {
        self.polled_at.store(now.as_nanos(), Ordering::Relaxed);
        self.is_empty.store(!busy, Ordering::Relaxed);
        let weight = if busy { BUSY_POLL } else { 1 };
        let polls = self.polls.fetch_add(weight, Ordering::Relaxed) + weight;
        now.as_nanos() >= self.relief_at.load(Ordering::Relaxed)
            && Self::is_reached(&self.relief_of_polls, polls)
    }

    /// Returns true once when `count` has reached the relief.
    #[inline]
    fn is_reached(relief: &AtomicU64, count: u64) -> bool {
        let limit = relief.load(Ordering::Relaxed);
        limit != 0 && count >= limit && relief.swap(0, Ordering::Relaxed) != 0
    }

    /// Records the CPU of a post, if the thread has slept since the last one.
    #[inline]
    fn record_cpu(&self) {
        if self.cpu.load(Ordering::Relaxed) == NO_CPU {
            self.cpu.store(current_cpu().unwrap_or(NO_CPU), Ordering::Relaxed);
        }
    }

    /// Records a post that may wait. Returns true if the thread must be woken for it.
    #[inline]
    fn post(&self) -> bool {
        let posts = self.posts.fetch_add(1, Ordering::Relaxed) + 1;
        Self::is_reached(&self.relief_of_posts, posts)
    }

    /// Reports that the last poll brought the consumer nothing, so that it polls again.
    #[inline]
    pub fn expect_poll(&self) {
        self.is_empty.store(true, Ordering::Relaxed);
    }

    /// Has the thread drive the core, unless a consumer waits.
    #[inline]
    pub fn request(&self) {
        if !self.is_requested.load(Ordering::Relaxed) {
            self.is_requested.store(true, Ordering::Relaxed);
        }
        self.doorbell.ring();
    }

    /// Takes the CPU of the first post since the last call.
    fn take_cpu(&self) -> Option<usize> {
        let cpu = self.cpu.swap(NO_CPU, Ordering::Relaxed);
        (cpu != NO_CPU).then_some(cpu)
    }

    fn polls(&self) -> Polls {
        let at = Instant::from_nanos(self.polled_at.load(Ordering::Relaxed));
        let is_empty = self.is_empty.load(Ordering::Relaxed);
        Polls { count: self.polls.load(Ordering::Relaxed), at, is_empty }
    }

    fn has_waiters(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Thread that drives the core, by the counters since the last check, which had `seen`.
    fn driver(&self, seen: &mut Seen) -> Driver {
        let (polls, posts) =
            (self.polls.load(Ordering::Relaxed), self.posts.load(Ordering::Relaxed));
        let has_polled = polls.wrapping_sub(seen.polls) >= POLLS_MIN;
        let has_posted = posts.wrapping_sub(seen.posts) >= POSTS_MIN;
        let dozes_without_polls =
            if has_polled { 0 } else { seen.dozes_without_polls.saturating_add(1) };
        *seen = Seen { polls, posts, dozes_without_polls };
        let is_requested = self.is_requested.swap(false, Ordering::Relaxed);
        if self.has_waiters() {
            Driver::Consumer
        } else if is_requested {
            Driver::None
        } else if has_posted && dozes_without_polls <= POSTING_DOZES_MAX {
            Driver::Consumer
        } else if has_posted {
            Driver::Poster
        } else {
            Driver::Unseen { has_polled }
        }
    }

    fn doze(&self, is_stopping: impl Fn() -> bool) {
        self.doorbell.sleep(|| {
            let wanted = self.is_requested.load(Ordering::Relaxed) || is_stopping();
            (!wanted).then_some(Sleep { timeout: Some(DOZE), ..Sleep::default() })
        });
    }
}

impl<K: Passive> Monitor<K> {
    /// Runs `wait`, which drives the core, and records that a consumer waits meanwhile.
    pub fn with_presence<R>(&self, presence: &Presence, wait: impl FnOnce() -> R) -> R {
        struct PresenceGuard<'a>(&'a Presence);
        impl Drop for PresenceGuard<'_> {
            fn drop(&mut self) {
                self.0.waiting.fetch_sub(1, Ordering::Relaxed);
                // Common case: the consumer waits again soon.
                self.0.polls.fetch_add(POLLS_MIN, Ordering::Relaxed);
            }
        }
        presence.waiting.fetch_add(1, Ordering::Relaxed);
        let _leave = PresenceGuard(presence);
        // Ends the sleep of the thread on the descriptors; the ring carries the count to it.
        self.doorbell().ring();
        wait()
    }

    /// Runs the loop once for a consumer that polls, unless another thread runs it. Returns true if there was anything
    /// to do.
    // With automatic progress each poll of an empty queue skips it, and must not save registers for the loop.
    #[inline(never)]
    pub fn progress_of_poll(&self, presence: &Presence) -> bool {
        let now = self.now();
        let busy = self.try_progress(now).is_some_and(|pass| pass.busy);
        // A poll that found something may have taken long.
        let ended = if busy { self.now() } else { now };
        if presence.polled(ended, busy) {
            self.doorbell().ring();
        }
        busy
    }

    /// As [`Monitor::with_lazily`]. The waiting posts of a posting consumer are sent by the thread, within
    /// a millisecond or two.
    #[inline]
    pub fn post_lazily(&self, presence: &Presence, f: impl FnOnce(&mut K) -> Urgency) {
        presence.record_cpu();
        self.with_lazily_unless(f, || presence.post());
    }

    /// Runs the background thread, until [`Monitor::stop_progress_thread`].
    pub fn progress_thread(&self, presence: &Presence) {
        let (mut seen, mut usefulness) = (Seen::default(), Usefulness::new());
        let (mut linger, mut long_calls) = (Linger::default(), LongCalls::default());
        let mut follower = CpuFollower::default();
        while !self.is_stopping() {
            self.deliver_of_progress_thread();
            let dozes = match presence.driver(&mut seen) {
                Driver::Consumer => true,
                Driver::Poster => {
                    self.progress();
                    true
                }
                Driver::Unseen { has_polled } => {
                    let now = self.now();
                    let polls = presence.polls();
                    let pass = self.try_progress(now);
                    if let Some(pass) = pass.filter(|pass| pass.busy)
                        && linger.record(now, pass.received)
                    {
                        follower.release();
                    }
                    let busy = pass.map(|pass| pass.busy);
                    match (usefulness.record(now, polls, has_polled, busy == Some(true)), busy) {
                        (true, _) => true,
                        (false, Some(true)) => false,
                        (false, None) if !has_polled => {
                            self.progress();
                            long_calls.record(self.now() - now)
                        }
                        (false, Some(false)) if !has_polled && linger.continues(now) => {
                            core::hint::spin_loop();
                            false
                        }
                        (false, _) => {
                            if let Some(cpu) = presence.take_cpu() {
                                follower.record_sleep(cpu);
                            }
                            !self.sleep_alone(presence, &usefulness)
                        }
                    }
                }
                Driver::None => !self.progress() && !self.sleep_alone(presence, &usefulness),
            };
            if dozes {
                presence.doze(|| self.is_stopping());
            }
        }
        self.deliver_of_loop();
    }

    /// Stops the background thread.
    pub fn stop_progress_thread(&self, presence: &Presence) {
        self.stop();
        self.doorbell().ring();
        presence.doorbell.ring();
    }

    /// Sleeps as [`Monitor::wait`] does with manual progress, until a consumer waits, or has polled steadily since the
    /// score changed. Returns false if another thread already does.
    fn sleep_alone(&self, presence: &Presence, usefulness: &Usefulness) -> bool {
        if !self.begin_sleep() {
            return false;
        }
        let posts = presence.posts.load(Ordering::Relaxed);
        presence.relief_of_posts.store(posts + POSTS_MIN, Ordering::Relaxed);
        presence.relief_at.store((usefulness.at + DOZE).as_nanos(), Ordering::Relaxed);
        presence.relief_of_polls.store(usefulness.polls + STEADY_POLLS, Ordering::Relaxed);
        let is_news =
            || presence.has_waiters() || self.is_stopping() || self.is_due_for_progress_thread();
        self.sleep_unless(None, false, |_| is_news());
        presence.relief_of_posts.store(0, Ordering::Relaxed);
        presence.relief_of_polls.store(0, Ordering::Relaxed);
        self.end_sleep();
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{
        sync::Arc,
        thread::{self, ThreadId},
        vec::Vec,
    };

    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::*;
    use crate::{engine::Callback, runtime::Progress};

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn thread_lingers_after_a_stream_and_rarely_if_nothing_follows() {
        let mut linger = Linger::default();
        let mut now = Instant::from_micros(1);
        let mut received = 0;
        let mut lingers_after = |linger: &mut Linger, count: u64, followed: bool| {
            received += count;
            linger.record(now, received);
            let lingers = linger.continues(now + LINGER / 2);
            if !followed {
                assert!(!linger.continues(now + LINGER));
            }
            now += LINGER;
            lingers
        };
        assert!(!lingers_after(&mut linger, STREAM_MIN - 1, false), "no stream");
        for _ in 0..100 {
            assert!(lingers_after(&mut linger, STREAM_MIN, true));
        }
        let lingering: Vec<_> =
            (0..12).map(|_| lingers_after(&mut linger, STREAM_MIN, false)).collect();
        let pauses: Vec<_> = lingering.iter().map(|it| u8::from(*it)).collect();
        assert_eq!(pauses, [1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0]);
        let count = (0..640).filter(|_| lingers_after(&mut linger, STREAM_MIN, false)).count();
        assert!((10..=13).contains(&count), "{count} of 640");
    }

    #[test]
    fn thread_dozes_after_long_calls_in_sequence() {
        let mut calls = LongCalls::default();
        let short = LONG_CALL - Duration::from_micros(1);
        let dozes = [short, LONG_CALL, LONG_CALL, LONG_CALL, short, LONG_CALL];
        assert_eq!(dozes.map(|it| calls.record(it)), [false, false, true, true, false, false]);
    }

    #[test]
    fn cpu_of_a_post_is_that_of_its_thread_and_taken_once() {
        let presence = Presence::new().unwrap();
        assert_eq!(presence.take_cpu(), None);
        thread::spawn(move || {
            bind_to_own_cpu();
            presence.record_cpu();
            assert_eq!([(); 2].map(|()| presence.take_cpu()), [current_cpu(), None]);
        })
        .join()
        .unwrap();
    }

    /// Core that records the thread that has sent each post, and the CPUs of the last one that has run the loop.
    #[derive(Default)]
    struct Posts {
        waiting: usize,
        sent: Vec<ThreadId>,
        cpus: Option<CpuSet>,
    }

    impl Passive for Posts {
        fn poll(&mut self, now: Instant) -> io::Result<bool> {
            self.cpus = sched_getaffinity(None).ok();
            Ok(self.settle(now))
        }

        fn settle(&mut self, _now: Instant) -> bool {
            let count = std::mem::take(&mut self.waiting);
            self.sent.extend(std::iter::repeat_n(thread::current().id(), count));
            count > 0
        }

        fn poll_at(&self, _now: Instant) -> Option<Instant> {
            None
        }

        fn has_input(&self) -> bool {
            self.waiting > 0
        }

        fn awaits_writable(&self) -> bool {
            false
        }

        fn take_callbacks(&mut self, _callbacks: &mut Vec<Callback>) {}

        fn device_lost(&mut self) {}

        fn repeat_last_acks(&mut self, _now: Instant) {}
    }

    fn until(what: &str, mut holds: impl FnMut() -> bool) {
        let begun = std::time::Instant::now();
        while !holds() {
            assert!(begun.elapsed() < LIMIT, "{what}");
            thread::yield_now();
        }
    }

    #[test]
    fn driver_follows_polls_posts_and_requests() {
        let presence = Presence::new().unwrap();
        let mut seen = Seen::default();
        let mut driver = || presence.driver(&mut seen);
        let poll = |busy| presence.polled(Instant::from_micros(9), busy);
        (0..POLLS_MIN).for_each(|_| assert!(!poll(false)));
        assert!(matches!(driver(), Driver::Unseen { has_polled: true }));
        (1..POLLS_MIN).for_each(|_| assert!(!poll(false)));
        assert!(matches!(driver(), Driver::Unseen { has_polled: false }));
        assert!(!poll(true));
        assert!(matches!(driver(), Driver::Unseen { has_polled: true }));
        let Polls { count, at, is_empty } = presence.polls();
        assert_eq!((count, at), (POLLS_MIN * 2 - 1 + BUSY_POLL, Instant::from_micros(9)));
        assert!(!is_empty);
        for check in 1..=POSTING_DOZES_MAX + 1 {
            (0..POSTS_MIN).for_each(|_| assert!(!presence.post()));
            match check <= POSTING_DOZES_MAX {
                true => assert!(matches!(driver(), Driver::Consumer), "{check}"),
                false => assert!(matches!(driver(), Driver::Poster), "{check}"),
            }
        }
        assert!(matches!(driver(), Driver::Unseen { has_polled: false }));
        poll(true);
        presence.request();
        assert!(matches!(driver(), Driver::None));
        assert!(matches!(driver(), Driver::Unseen { has_polled: false }));
        presence.waiting.store(1, Ordering::Relaxed);
        assert!(matches!(driver(), Driver::Consumer));
    }

    // Steady polls, or as many posts, end a sleep on the descriptors once.
    #[test]
    fn sleep_ends_once_at_its_relief() {
        let presence = Presence::new().unwrap();
        presence.relief_of_polls.store(BUSY_POLL, Ordering::Relaxed);
        presence.relief_at.store(2, Ordering::Relaxed);
        presence.relief_of_posts.store(2, Ordering::Relaxed);
        let polls = [1, 2, 3].map(|at| presence.polled(Instant::from_nanos(at), true));
        assert_eq!(polls, [false, true, false]);
        assert_eq!([(); 3].map(|()| presence.post()), [false, true, false]);
    }

    #[test]
    fn thread_dozes_while_polls_fetch_everything_and_sleeps_on_descriptors_otherwise() {
        let mut usefulness = Usefulness::new();
        let mut now = Instant::ZERO;
        let mut count = 0;
        // A check after `more` polls, and `pause` after the last one, which found nothing if `is_empty`.
        let mut record = |more: u64, pause, is_empty, busy| {
            (now, count) = (now + DOZE, count + more);
            let at = Instant::from_nanos(now.as_nanos().saturating_sub(pause));
            usefulness.record(now, Polls { count, at, is_empty }, more > 0, busy)
        };
        let pause = POLL_PAUSE.as_nanos() as u64;
        // Polls alone, some of which find something.
        (0..100).for_each(|check| assert!(record(4, pause - 1, check % 2 == 0, true), "{check}"));
        assert!(!record(0, pause, true, false), "the consumer computes");
        assert!(!record(0, pause, true, true), "it computes while data arrives");
        (0..8).for_each(|_| assert!(record(4, 0, true, false)));
        // Polls for a completion, then memory: the thread finds the data.
        assert_eq!([(); 3].map(|()| record(4, pause, false, true)), [true, true, false]);
        for round in 0..100 {
            assert!(!record(STEADY_POLLS - 1, 0, true, true), "{round}");
            assert!(!record(1, 0, false, true), "{round}");
        }
        // Polls alone again.
        let dozes = [(); 6].map(|()| record(STEADY_POLLS, 0, true, true));
        assert_eq!(dozes, [false, false, false, true, true, true]);
    }

    fn bind_to_own_cpu() -> CpuSet {
        let mut set = CpuSet::new();
        set.set(current_cpu().unwrap());
        sched_setaffinity(None, &set).unwrap();
        set
    }

    fn shared_node() -> (Arc<Monitor<Posts>>, Arc<Presence>, thread::JoinHandle<()>) {
        let bell = Arc::new(Doorbell::new().unwrap());
        let core = Posts::default();
        let node = Arc::new(Monitor::new(core, bell, None, Duration::ZERO, Progress::Manual));
        let presence = Arc::new(Presence::new().unwrap());
        let (of_thread, its_presence) = (node.clone(), presence.clone());
        let background = thread::spawn(move || of_thread.progress_thread(&its_presence));
        (node, presence, background)
    }

    // Single posts, after each of which the thread wakes.
    #[test]
    fn thread_moves_to_the_cpu_of_posts() {
        let (node, presence, background) = shared_node();
        let consumer = thread::spawn(move || {
            let own = bind_to_own_cpu();
            until("the thread is bound to the CPU of the posts", || {
                node.post_lazily(&presence, |_| Urgency::Now);
                node.doorbell().ring();
                node.with_core(|core, _| core.cpus) == Some(own)
            });
            node.stop_progress_thread(&presence);
        });
        consumer.join().unwrap();
        background.join().unwrap();
    }

    // While the thread sleeps, each post is sent by the thread that posts.
    #[test]
    fn repeated_posts_without_polls_are_sent_by_the_background_thread() {
        let (node, presence, background) = shared_node();
        let post = || {
            node.post_lazily(&presence, |core| {
                core.waiting += 1;
                Urgency::Soon
            });
        };
        let sent = || node.with(|core, _| core.sent.clone());

        until("the thread sleeps", || presence.relief_of_posts.load(Ordering::Relaxed) != 0);
        until("on the descriptors", || node.sleepers().0 && node.is_sleeping());
        (1..POSTS_MIN).for_each(|_| post());
        assert_eq!(sent(), [thread::current().id(); POSTS_MIN as usize - 1]);
        post();
        // Checked without a call that would send it.
        let is_sent = || node.with_core(|core, _| core.sent.len()) == POSTS_MIN as usize;
        until("the last is sent", is_sent);
        assert_eq!(sent().pop(), Some(background.thread().id()));
        node.stop_progress_thread(&presence);
        background.join().unwrap();
    }
}
