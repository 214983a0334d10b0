//! `flue bench`: bandwidth, message rate, latency and CPU time of flue compared with kernel TCP, libfabric, UCX, iperf3
//! and smoltcp, on one machine.
//!
//! # Measurements
//!
//! The catalog (`catalog`) is a list of groups. A group is one workload, such as "RDMA Write, 1 MiB", that several
//! contestants run in turns, flue first. Rows have goals; points belong to a chart over message size, connections or
//! queues. In each round every contestant is measured once (`rounds`), and medians are compared (`stats`, `outcome`).
//! The results are tables on the terminal (`text`), a JSON document (`outcome`) and an HTML page (`page`).
//!
//! | module | purpose |
//! |---|---|
//! | `contest` | types: group, contestant, job, metric, goal |
//! | `catalog` | all groups and goals |
//! | `namespaces` | network namespaces, and starting programs in them |
//! | `pace` | repetition of samples taken while the machine was slow |
//! | `process` | child processes with deadlines |
//! | `tools` | the command line of each job, and parsing its output |
//! | `installed` | search for installed peers |
//! | `syscalls` | system calls per message, counted by strace |
//! | `baseline` | measuring programs of this crate: raw TAP, minimal TCP, smoltcp, libfabric |
//!
//! # Add a baseline
//!
//! 1. Write its loop in a file under `baseline`: `bed` provides TAPs, `measure` clocks and CPU times. It returns an
//!    `Outcome`, and fails when a frame was lost.
//! 2. Add a variant to [`baseline::Kind`], with its name and its call. `flue bench baseline NAME` then prints one line
//!    of JSON.
//! 3. Add a contestant with `Job::Baseline` to the groups in `catalog` in which it is compared. A new kind of program
//!    also needs a `System`, with a color in `page/style.css`.
//! 4. Add a test to `tests/baseline.rs` of the workspace, and a sentence to `docs/tools/perf.md`.
//!
//! An external program is a `Job` instead, with its command line and parser in `tools` and a check in `installed`.
#![forbid(unsafe_code)]

pub mod baseline;
mod catalog;
mod contest;
mod installed;
mod machine;
mod namespaces;
mod outcome;
mod pace;
mod page;
mod process;
mod rounds;
mod sample;
mod stats;
mod syscalls;
mod text;
mod tools;

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Instant,
};

use clap::{Args, Subcommand};
use flue_network::environment;
use flue_report::{Console, Document, Style, failure::Failure, progress::Progress};

use self::{
    baseline::BaselineArgs,
    contest::{Group, Job, Need},
    installed::Installed,
    machine::Machine,
    namespaces::Namespaces,
    outcome::{Contest, Report, Score, Settings},
    pace::{Pace, ResampleCounts},
    process::{Fault, Signals},
    rounds::{Measure, Rounds, Step},
    sample::Sample,
    syscalls::{Calls, EndCalls},
    tools::Tools,
};
pub use self::{machine::Build, namespaces::JoinArgs};

/// Limit of rounds for the points of charts.
const PLOT_ROUNDS_MAX: u32 = 3;
/// MTUs that a node accepts, bytes.
const MTU_BYTES: std::ops::RangeInclusive<i64> = 1280..=65_521;
/// Range of the length of a measurement, seconds.
const SECONDS: std::ops::RangeInclusive<f64> = 0.02..=600.0;

/// Compare flue with kernel TCP, libfabric, UCX, iperf3 and smoltcp
///
/// Runs in network namespaces of its own: one with a bridge for the TAPs of nodes, and two joined by a veth pair for
/// the peers. Each round measures every contestant once, so that other load on the machine affects all of them. The
/// medians of the rounds are compared. Peers that are not installed are skipped, and their packages are printed.
/// Everything is removed, also on Ctrl-C.
///
/// Requires what "flue doctor" checks. Other load on the machine lowers the figures; it changes the ratios less. A full
/// run takes about 15 minutes, --only goals about half of that, and up to twice as long on a virtual machine that is
/// slow for seconds at a time: samples are then delayed or repeated.
#[derive(Args, Clone, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_long_help = "Examples:
  flue bench --html bench.html --json bench.json
  flue bench --only goals
  flue bench --only write-1m,latency-write --rounds 9 --seconds 2
  flue bench --quick --only size-write --html sizes.html"
)]
pub struct BenchArgs {
    /// A part of the bench.
    #[command(subcommand)]
    pub part: Option<BenchPart>,

    /// Measure each contestant this many times: 1..=99
    ///
    /// At most 3 times for the points of charts.
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=99))]
    pub rounds: u32,

    /// Length of one measurement, seconds: 0.02..=600
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = parse_seconds)]
    pub seconds: f64,

    /// Measure these rows and charts; "goals": all rows, "plots": all charts
    ///
    /// --list prints the names.
    #[arg(long, value_name = "ROW,…", value_delimiter = ',')]
    pub only: Vec<String>,

    /// Compare flue with itself under these options of "flue perf"
    ///
    /// An example is "--sandbox off". They replace options of the row with the same name. Peers and goals are omitted.
    /// Only rows that "flue perf" measures are compared.
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true, conflicts_with = "check",
          value_parser = parse_options)]
    pub against: Option<String>,

    /// Measure fewer points of charts, in one round
    #[arg(long)]
    pub quick: bool,

    /// List rows and charts, and exit
    #[arg(long)]
    pub list: bool,

    /// Count system calls of flue per message; requires strace
    #[arg(long)]
    pub syscalls: bool,

    /// Exit with status 1 if a goal is missed
    #[arg(long)]
    pub check: bool,

    /// Set the MTU of all links, bytes: 1280..=65521
    #[arg(long, value_name = "BYTES", default_value_t = 1500,
          value_parser = clap::value_parser!(u16).range(MTU_BYTES))]
    pub mtu: u16,

    /// Write all results, with every sample, to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write an HTML page with charts to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Print results and errors only, no progress
    #[arg(short, long)]
    pub quiet: bool,
}

/// Parts of the bench that run as processes of their own.
#[derive(Subcommand, Clone, Debug)]
#[allow(missing_docs, reason = "a comment on a variant would replace its help")]
pub enum BenchPart {
    #[command(alias = "yardstick", hide = true)]
    Baseline(BaselineArgs),
    #[command(hide = true)]
    Join(JoinArgs),
    #[command(hide = true)]
    Hold,
}

fn parse_options(text: &str) -> Result<String, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    if words.is_empty() { Err("expected options".into()) } else { Ok(words.join(" ")) }
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| SECONDS.contains(seconds));
    seconds.ok_or_else(|| format!("expected seconds, {} to {}", SECONDS.start(), SECONDS.end()))
}

/// Runs `flue bench` of `build`. Call it before the process has a second thread.
///
/// # Errors
/// A prerequisite is missing; flue could not be measured; or, with `--check`, a goal is missed.
pub fn run(args: &BenchArgs, build: Build, console: &mut Console<'_>) -> Result<(), Failure> {
    match &args.part {
        Some(BenchPart::Baseline(args)) => baseline::run(args, console),
        Some(BenchPart::Join(args)) => args.run(),
        Some(BenchPart::Hold) => namespaces::hold(),
        None => run_bench(args, build, console),
    }
}

fn run_bench(args: &BenchArgs, build: Build, console: &mut Console<'_>) -> Result<(), Failure> {
    let groups = chosen(args)?;
    if args.list {
        list(&groups, console);
        return Ok(());
    }
    // Fail early if the files cannot be written, not after 15 minutes.
    for path in args.json.iter().chain(&args.html) {
        fs::write(path, "").map_err(|error| write_failure(path, &error))?;
    }
    environment::check_tun()?;
    let namespaces = Namespaces::make(args.mtu)?;
    let scratch = Scratch::new()?;
    let needs: Vec<Need> =
        groups.iter().flat_map(|it| &it.contestants).map(|it| it.job.needs()).collect();
    let installed = installed::search(&scratch.0, &needs);
    let signals =
        Signals::catch().map_err(|error| Failure::work(format!("catch signals: {error}")))?;
    let mut report = new_report(args, build, &namespaces, &installed);
    show_setup(&report, console);
    let programs = installed.programs.clone();
    let tools = Tools::new(&namespaces, &signals, args.seconds, args.mtu, programs);
    let rounds = Rounds { rows: report.settings.rounds, points: report.settings.plot_rounds };
    let total = rounds::count(&groups, rounds) as u64;
    let style = Style { quiet: args.quiet, ..console.style() };
    let progress = Progress::new(Instant::now(), total, style);
    let mut bench = Bench { tools, pace: Pace::new(), progress };
    report.contests =
        groups.iter().map(|group| Contest::new(group, bench.scores(group, &installed))).collect();
    let mut ended = rounds::run(&groups, &mut report.contests, rounds, &mut bench);
    for (group, contest) in groups.iter().zip(&mut report.contests) {
        contest.summarize(group);
    }
    if ended.is_ok() && args.syscalls {
        ended = bench.count_calls(&groups, &installed, &scratch.0, &mut report, total);
    }
    bench.progress.clear();
    report.interrupted_by = ended.err();
    report.resampled = bench.pace.resampled();
    show_results(&report, console);
    let ended = conclude(args, &report);
    write_files(args, &report, ended.as_ref().err(), console)?;
    ended
}

/// Returns the groups selected by `--only`.
fn chosen(args: &BenchArgs) -> Result<Vec<Group>, Failure> {
    let mut groups = catalog::groups(args.quick);
    for word in &args.only {
        if !groups.iter().any(|group| group.matches(word)) {
            return Err(Failure::usage(format!("--only {word}: row or chart not found"))
                .with_hint("\"flue bench --list\" prints the names"));
        }
    }
    let is_selected =
        |group: &Group| args.only.is_empty() || args.only.iter().any(|it| group.matches(it));
    groups.retain(is_selected);
    if let Some(options) = &args.against {
        groups = catalog::compared_with_options(groups, options);
        if groups.is_empty() {
            return Err(Failure::usage("--against: flue perf measures none of these rows"));
        }
    }
    Ok(groups)
}

fn list(groups: &[Group], console: &mut Console<'_>) {
    use flue_report::table::{Align, Table};
    let mut table =
        Table::new(&[("name", Align::Left), ("work", Align::Left), ("peer", Align::Left)]);
    for group in groups {
        let peers: Vec<&str> = group.contestants[1..].iter().map(|it| it.name.as_str()).collect();
        table.row([group.id.clone(), group.title.clone(), peers.join(", ")]);
    }
    console.print(table);
}

fn new_report(
    args: &BenchArgs,
    flue: Build,
    namespaces: &Namespaces,
    installed: &Installed,
) -> Report {
    let plot_rounds = if args.quick { 1 } else { args.rounds.min(PLOT_ROUNDS_MAX) };
    Report {
        flue,
        date: machine::now(),
        command: std::env::args().collect(),
        machine: Machine::read(),
        settings: Settings {
            rounds: args.rounds,
            plot_rounds,
            seconds: args.seconds,
            quick: args.quick,
            mtu_bytes: args.mtu,
            vnet_header: true,
            crc: true,
            congestion_control: namespaces.congestion_control,
        },
        namespaces: namespaces.names.clone(),
        peers: installed.peers.clone(),
        interrupted_by: None,
        resampled: ResampleCounts::default(),
        contests: Vec::new(),
        system_calls: Vec::new(),
    }
}

/// Prints the setup of the run.
fn show_setup(report: &Report, console: &mut Console<'_>) {
    for line in page::facts(report) {
        console.print(line);
    }
    for peer in report.peers.iter().filter(|peer| !peer.found) {
        let (name, why, package) = (peer.name, &peer.detail, peer.package);
        console.print(format_args!("{name}: skipped: {why}: apt-get install {package} (Debian)"));
    }
    if report.flue.profile == "debug" {
        console.print("flue: debug build: the figures are meaningless; use a release build");
    }
}

fn show_results(report: &Report, console: &mut Console<'_>) {
    if report.contests.iter().any(|contest| contest.is_row) {
        console.print(format_args!("\n{}", text::rows(report)));
        if let Some(note) = text::cpu_of_goals(report) {
            console.print(format_args!("\n{note}"));
        }
        console.print("medians of the rounds; ratio: median of flue divided by that of the peer");
    }
    for (panel, title) in page::PANELS {
        if let Some(table) = text::points(report, panel) {
            console.print(format_args!("\n{title}, Gbit/s\n{table}"));
        }
    }
    if let Some(table) = text::system_calls(report) {
        console.print(format_args!(
            "\nSystem calls of flue under strace, per message and per MB\n{table}"
        ));
    }
    let ResampleCounts { again, slow } = report.resampled;
    if again + slow > 0 {
        console.print(format_args!(
            "data exchange between CPUs: slow at times: {again} samples repeated, {slow} slow samples kept"
        ));
    }
    for line in text::failures(report) {
        console.print(line);
    }
    let tally = report.tally();
    if tally != outcome::VerdictCounts::default() {
        let outcome::VerdictCounts { met, missed, unknown } = tally;
        console.print(format_args!("goals: {met} met, {missed} missed, {unknown} not measured"));
    }
}

fn write_files(
    args: &BenchArgs,
    report: &Report,
    failure: Option<&Failure>,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    if let Some(path) = &args.html {
        fs::write(path, page::html(report)).map_err(|error| write_failure(path, &error))?;
        console.print(format_args!("charts: {}", path.display()));
    }
    if let Some(path) = &args.json {
        let body = outcome::Body { config: &report.settings, result: report };
        let document = Document::new(outcome::NAME, failure, body);
        let text = document.pretty().map_err(io::Error::other);
        text.and_then(|text| fs::write(path, text + "\n"))
            .map_err(|error| write_failure(path, &error))?;
        console.print(format_args!("results: {}", path.display()));
    }
    Ok(())
}

fn write_failure(path: &Path, error: &io::Error) -> Failure {
    Failure::work(format!("write {}: {error}", path.display()))
}

fn conclude(args: &BenchArgs, report: &Report) -> Result<(), Failure> {
    if let Some(signal) = report.interrupted_by {
        return Err(Failure::interrupted(signal));
    }
    if let Some((id, why)) = report.own_failures().first() {
        return Err(Failure::work(format!("measurement of flue: {id}: {why}")));
    }
    let missed = report.tally().missed;
    if args.check && missed > 0 {
        return Err(Failure::work(format!("goals: {missed} missed, expected 0")));
    }
    Ok(())
}

/// Runs the jobs and reports progress.
struct Bench<'a> {
    tools: Tools<'a>,
    pace: Pace,
    progress: Progress,
}

impl Bench<'_> {
    fn scores(&mut self, group: &Group, installed: &Installed) -> Vec<Score> {
        let score = |it: &contest::Contestant| {
            let absent = (!installed.has(it.job.needs())).then(|| "not found".to_owned());
            Score::new(it, self.tools.command_line(&it.job), absent)
        };
        group.contestants.iter().map(score).collect()
    }

    fn count_calls(
        &mut self,
        groups: &[Group],
        installed: &Installed,
        scratch: &Path,
        report: &mut Report,
        done: u64,
    ) -> Result<(), i32> {
        let Some(strace) = &installed.strace else { return Ok(()) };
        for group in groups.iter().filter(|group| group.is_row) {
            let text = format!("system calls: {}", group.id);
            self.progress.update(Instant::now(), done, &text);
            let job = &group.contestants[0].job;
            let counted = self.tools.count_calls(strace, scratch, &group.id, &group.title, job);
            let calls = match counted {
                None => continue,
                Some(Ok(calls)) => calls,
                Some(Err(Fault::Interrupted(signal))) => return Err(signal),
                Some(Err(Fault::Failed(why))) => Calls {
                    id: group.id.clone(),
                    title: group.title.clone(),
                    size_bytes: 0,
                    messages: 0,
                    client: EndCalls::default(),
                    server: EndCalls::default(),
                    error: Some(why),
                },
            };
            report.system_calls.push(calls);
        }
        Ok(())
    }
}

impl Measure for Bench<'_> {
    fn measure(&mut self, job: &Job) -> Result<Sample, Fault> {
        let signals = self.tools.signals;
        self.pace.sample(|| signals.check(), || self.tools.measure(job))
    }

    fn report(&mut self, step: &Step<'_>) {
        let Step { done, all, round, group, name, result } = step;
        let result = match result {
            None => "…".to_owned(),
            Some(Ok(figure)) => {
                format!("{} {}", group.metric.shown(*figure), group.metric.unit().0)
            }
            Some(Err(why)) => format!("failed: {why}"),
        };
        let text = format!("{done}/{all}  round {round}  {}  {name}  {result}", group.id);
        self.progress.update(Instant::now(), *done as u64, &text);
    }
}

/// Temporary directory for build products, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("flue-bench-{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| write_failure(&path, &error))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Best effort: a remainder is removed with the system's temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}
