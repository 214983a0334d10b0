//! Runner of a suite for many seeds: on all CPUs, to the end of the range, with a class and a command for each
//! failure.
//!
//! | variable | seeds |
//! |---|---|
//! | `FLUE_SEED=17` | that one |
//! | `FLUE_SEEDS=1000..6000` | that range, without its end |
//! | `FLUE_SEEDS=5000` | 0 to 4999 |
//! | none | CI: a fixed slice from 0, a slice of the same size derived from the commit's hash, and the open seeds |
//!
//! A seed fails by a panic. Its class ([`Class`]) is set at the check ([`fail`], [`check!`](crate::check)), or
//! else derived from the file of the panic. The list of open seeds is `tests/campaign/open-seeds.txt`.
//!
//! The output of a run bypasses the capture of the test harness, since most of it belongs to runs that pass.
//! Bounds: [`BLOCKS_MAX`] failures are printed in full, [`FAILURES_MAX`] are listed, all are counted.

mod open;
mod range;
#[cfg(test)]
mod tests;
mod watch;

use std::{
    collections::BTreeMap,
    fmt,
    io::Write as _,
    ops::Range,
    panic::resume_unwind,
    path::{Path, PathBuf},
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{RecvTimeoutError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use self::{
    open::OpenSeed,
    watch::{Failure, watch},
};
pub use self::{range::from_environment, watch::fail};

/// Failures of a run that are printed in full, when they occur.
pub const BLOCKS_MAX: usize = 20;
/// Failures of a run that are listed at its end.
pub const FAILURES_MAX: usize = 1_000;
/// Results queued for aggregation.
const RESULTS_MAX: usize = 64;
/// Interval of progress lines.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// Progress lines after which a seed that is still running is listed: a minute.
const LONG_INTERVALS: u32 = 12;

/// Failure class.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// Connection that ended with an error, or was never established.
    LostConnection,
    /// Request that did not complete, completed twice, out of order, or with a wrong result.
    WrongCompletion,
    /// No progress, or not enough progress.
    Stuck,
    /// Segment that no legal stack would have sent.
    IllegalOnTheWire,
    /// Data lost, duplicated, reordered or changed.
    WrongData,
    /// Panic outside of the tests.
    Panic,
    /// Any other assertion of the test.
    Other,
}

impl Class {
    const ALL: [Self; 7] = [
        Self::LostConnection,
        Self::WrongCompletion,
        Self::Stuck,
        Self::IllegalOnTheWire,
        Self::WrongData,
        Self::Panic,
        Self::Other,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::LostConnection => "lost connection",
            Self::WrongCompletion => "wrong completion",
            Self::Stuck => "stuck",
            Self::IllegalOnTheWire => "illegal on the wire",
            Self::WrongData => "wrong data",
            Self::Panic => "panic",
            Self::Other => "other",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Fails with a [`Class`] and a formatted text if the condition does not hold: `check!(WrongData, a == b, "…")`.
#[macro_export]
macro_rules! check {
    ($class:ident, $condition:expr, $($text:tt)+) => {
        if !$condition {
            $crate::seeds::fail($crate::seeds::Class::$class, &format!($($text)+));
        }
    };
}

/// Test that runs for any seed.
#[derive(Clone, Copy, Debug)]
pub struct Suite {
    /// Name in the list of open seeds and in `tests/campaign/run`.
    pub name: &'static str,
    /// Command that repeats a seed, without `FLUE_SEED=17`.
    pub command: &'static str,
    /// Seeds in each of CI's two slices.
    pub seeds: u64,
    /// Classes of panics by the end of the file path, for panics without a separate class.
    pub classes: &'static [(&'static str, Class)],
}

impl Suite {
    /// Runs the seeds selected by the environment. Returns the sum of the results of `run` for the seeds that
    /// passed, of the selected range or of CI's fixed slice. CI's second slice is excluded, because averages of
    /// 150 arbitrary seeds vary.
    ///
    /// # Panics
    /// After the last seed, if a seed failed that is not open, or an open seed passed.
    pub fn run<S: Send, T: Default>(
        &self,
        run: impl Fn(u64) -> S + Sync,
        add: impl Fn(&mut T, S),
    ) -> T {
        let (mut campaign, mut sum) = (Campaign::new(*self, open::read(self.name)), T::default());
        let asked = from_environment();
        campaign.is_single = asked.as_ref().is_some_and(|(_, is_single)| *is_single);
        match asked {
            Some((range, _)) => campaign.slice(range, "", &run, |summary| add(&mut sum, summary)),
            None => {
                let commit = range::commit();
                campaign.slice(0..self.seeds, "", &run, |summary| add(&mut sum, summary));
                let slice = range::of_commit(&commit, self.seeds);
                campaign.slice(slice, &format!(", of commit {commit}"), &run, drop);
                campaign.open_seeds_left(&run);
            }
        }
        (campaign.print)(&campaign.text());
        if let Err(text) = campaign.verdict() {
            // The panics were already printed; this one needs no backtrace.
            (campaign.print)(&format!("{text}\n"));
            resume_unwind(Box::new(text));
        }
        sum
    }
}

/// True if a single seed is selected, which allows more output.
pub fn is_single() -> bool {
    from_environment().is_some_and(|(_, is_single)| is_single)
}

/// Root of the workspace.
fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Writes past the capture of the test harness, in one write.
fn print(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Results of the seeds so far.
struct Campaign {
    suite: Suite,
    open: Vec<OpenSeed>,
    is_single: bool,
    /// Completed slices: lines of a table.
    rows: Vec<String>,
    seeds: u64,
    failed: BTreeMap<Class, u64>,
    failures: Vec<Failure>,
    /// Open seeds that failed as expected.
    known: Vec<OpenSeed>,
    /// Open seeds that passed.
    passed: Vec<OpenSeed>,
    print: fn(&str),
}

impl Campaign {
    const fn new(suite: Suite, open: Vec<OpenSeed>) -> Self {
        Self {
            suite,
            open,
            is_single: false,
            rows: Vec::new(),
            seeds: 0,
            failed: BTreeMap::new(),
            failures: Vec::new(),
            known: Vec::new(),
            passed: Vec::new(),
            print,
        }
    }

    /// Runs `range` on all CPUs; `keep` receives the results of the seeds that pass, in any order.
    fn slice<S: Send>(
        &mut self,
        range: Range<u64>,
        source: &str,
        run: &(impl Fn(u64) -> S + Sync),
        mut keep: impl FnMut(S),
    ) {
        let begin = Instant::now();
        let (failed_before, known_before) = (self.failed.clone(), self.known.len());
        let Suite { name, classes, .. } = self.suite;
        let (is_single, next) = (self.is_single, AtomicU64::new(range.start));
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let threads = threads.min(usize::try_from(range.end - range.start).unwrap_or(threads));
        let running: Vec<_> = (0..threads).map(|_| AtomicU64::new(u64::MAX)).collect();
        thread::scope(|scope| {
            let (sender, results) = sync_channel(RESULTS_MAX);
            for slot in &running {
                let (sender, next, end) = (sender.clone(), &next, range.end);
                scope.spawn(move || {
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        slot.store(seed, Ordering::Relaxed);
                        if seed >= end {
                            slot.store(u64::MAX, Ordering::Relaxed);
                            return;
                        }
                        let result = watch(seed, is_single, classes, || run(seed));
                        if sender.send((seed, result)).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(sender);
            let mut progress = Progress::new(name, &range, &running);
            loop {
                match results.recv_timeout(PROGRESS_INTERVAL) {
                    Ok((seed, Ok(summary))) => {
                        self.pass(seed);
                        keep(summary);
                    }
                    Ok((_, Err(failure))) => self.fail(failure),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                progress.report(&next, self.failed.values().sum());
            }
        });
        let failed = self.failed.iter().map(|(class, count)| {
            (*class, count - failed_before.get(class).copied().unwrap_or_default())
        });
        let known = self.known.len() - known_before;
        let (Range { start, end }, seconds) = (range, begin.elapsed().as_secs_f64());
        let failed = tally(failed, known);
        self.rows.push(format!(
            "| {name} | {start}..{end}{source} | {} | {failed} | {seconds:.1} s |\n",
            end - start
        ));
        self.seeds += end - start;
    }

    /// Runs the open seeds that were in no slice, so that each run includes all.
    fn open_seeds_left<S: Send>(&mut self, run: &(impl Fn(u64) -> S + Sync)) {
        let is_done = |one: &OpenSeed| self.known.contains(one) || self.passed.contains(one);
        let had = |one: &OpenSeed| self.failures.iter().any(|failure| failure.seed == one.seed);
        let left: Vec<_> =
            self.open.iter().filter(|one| !is_done(one) && !had(one)).map(|one| one.seed).collect();
        for seed in left {
            self.slice(seed..seed + 1, ", open", run, drop);
        }
    }

    fn pass(&mut self, seed: u64) {
        self.passed.extend(self.open.iter().find(|one| one.seed == seed).cloned());
    }

    fn fail(&mut self, failure: Failure) {
        let is_open = |one: &&OpenSeed| one.seed == failure.seed && one.class == failure.class;
        if let (Some(one), false) = (self.open.iter().find(is_open), self.is_single) {
            self.known.push(one.clone());
            return;
        }
        *self.failed.entry(failure.class).or_default() += 1;
        // The default hook has printed the panic of a single seed.
        if self.failures.len() < BLOCKS_MAX && !self.is_single {
            (self.print)(&format!("{} {failure}{}", self.suite.name, self.repeat(failure.seed)));
        }
        if self.failures.len() < FAILURES_MAX {
            self.failures.push(failure);
        }
    }

    fn repeat(&self, seed: u64) -> String {
        format!("    repeat: FLUE_SEED={seed} {}\n", self.suite.command)
    }

    /// Summary printed at the end of a run.
    fn text(&self) -> String {
        let name = self.suite.name;
        let mut text = match &self.open[..] {
            [] => format!("{name}: no open seeds\n"),
            open => format!("{name}: {} open seeds\n", open.len()),
        };
        for OpenSeed { seed, class, note, .. } in &self.known {
            text += &format!("{name} open seed {seed}: {class} ({note})\n");
        }
        let mut failures: Vec<_> = self.failures.iter().collect();
        failures.sort_unstable_by_key(|failure| failure.seed);
        for failure in failures {
            let Failure { seed, class, place, .. } = failure;
            let (line, repeat) = (failure.first_line(), self.repeat(*seed));
            text += &format!("{name} seed {seed}: {class}, at {place}: {line}\n{repeat}");
        }
        text + &self.rows.concat()
    }

    /// # Errors
    /// If a seed failed that is not open, or an open seed passed.
    fn verdict(&self) -> Result<(), String> {
        let mut wrong = Vec::new();
        let failed: u64 = self.failed.values().sum();
        if failed > 0 {
            let by_class = tally(self.failed.clone(), 0);
            wrong.push(format!("{failed} of {} seeds failed: {by_class}", self.seeds));
        }
        for OpenSeed { seed, note, .. } in &self.passed {
            wrong.push(format!(
                "seed {seed} passes: remove it from tests/campaign/open-seeds.txt ({note})"
            ));
        }
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(format!("{}: {}", self.suite.name, wrong.join("; ")))
        }
    }
}

/// Formats counts: `3 stuck, 1 panic`.
fn tally(failed: impl IntoIterator<Item = (Class, u64)>, known: usize) -> String {
    let failed = failed.into_iter().filter(|(_, count)| *count > 0);
    let mut parts: Vec<_> = failed.map(|(class, count)| format!("{count} {class}")).collect();
    if known > 0 {
        parts.push(format!("{known} open"));
    }
    if parts.is_empty() { "none".into() } else { parts.join(", ") }
}

/// Prints the progress of a slice, and once a minute the seeds that run for longer.
struct Progress<'a> {
    name: &'static str,
    range: &'a Range<u64>,
    running: &'a [AtomicU64],
    seen: Vec<u64>,
    at: Instant,
    lines: u32,
}

impl<'a> Progress<'a> {
    fn new(name: &'static str, range: &'a Range<u64>, running: &'a [AtomicU64]) -> Self {
        let seen = vec![u64::MAX; running.len()];
        Self { name, range, running, seen, at: Instant::now(), lines: 0 }
    }

    fn report(&mut self, next: &AtomicU64, failed: u64) {
        if self.at.elapsed() < PROGRESS_INTERVAL {
            return;
        }
        self.at = Instant::now();
        let Range { start, end } = *self.range;
        let begun = next.load(Ordering::Relaxed).min(end) - start;
        let mut text =
            format!("{}: {begun} of {} seeds, {failed} failed\n", self.name, end - start);
        self.lines += 1;
        let slots = self.running.iter().zip(&mut self.seen);
        for (slot, seen) in slots.filter(|_| self.lines.is_multiple_of(LONG_INTERVALS)) {
            let seed = slot.load(Ordering::Relaxed);
            if seed == *seen && seed != u64::MAX {
                text += &format!("{} seed {seed} has been running for a minute\n", self.name);
            }
            *seen = seed;
        }
        print(&text);
    }
}
