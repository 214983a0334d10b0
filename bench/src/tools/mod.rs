//! Execution of each job, and parsing of its tool's output: a server and a client, or one program.
//!
//! Limits: a server must be ready within [`READY_LIMIT`]. A client must exit within twice the measuring time plus
//! [`GRACE`], and a server within [`END_LIMIT`] after its client. After that a program is killed; without a client's
//! result the measurement has failed.

mod document;
mod iperf3;
mod perf;
mod trace;
mod ucx;
mod verbs;

use std::{
    collections::HashMap,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use super::{
    contest::{Job, Need},
    namespaces::{KERNELS, Namespace, Namespaces},
    process::{ExitedProgram, Fault, Ready, Running, Signals},
    sample::{Covers, Cpu, Sample},
};

/// Time limit for the readiness of a server.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// Time limit of a client in addition to the measurement.
const GRACE: Duration = Duration::from_secs(60);
/// Time limit for the exit of a server after its client.
const END_LIMIT: Duration = Duration::from_secs(30);
/// Port of the server.
const PORT: u16 = 18_515;

/// Executor of jobs.
#[derive(Debug)]
pub(super) struct Tools<'a> {
    /// Network namespaces.
    pub(super) namespaces: &'a Namespaces,
    /// Signals that end a run early.
    pub(super) signals: &'a Signals,
    /// Length of one measurement, seconds.
    pub(super) seconds: f64,
    /// MTU of every node.
    pub(super) mtu_bytes: u16,
    /// Paths of external programs.
    pub(super) programs: HashMap<Need, PathBuf>,
    /// Iterations per second of earlier UCX runs, by test and size.
    ucx_rates: HashMap<(&'static str, u64), f64>,
    /// Runs so far: part of a TAP's name, because the TAP of an earlier run may still exist.
    runs: u32,
}

/// Arguments of a command line.
type Arguments = Vec<OsString>;

fn words<W: Into<OsString>>(of: impl IntoIterator<Item = W>) -> Arguments {
    of.into_iter().map(Into::into).collect()
}

/// One program of a pair.
#[derive(Clone, Debug)]
struct End {
    namespace: Namespace,
    program: PathBuf,
    words: Arguments,
    /// Environment variables.
    environment: Vec<(&'static str, String)>,
}

impl End {
    fn new(namespace: Namespace, program: &Path, words: Arguments) -> Self {
        Self { namespace, program: program.into(), words, environment: Vec::new() }
    }

    /// Returns the command line, for display.
    fn command_line(&self) -> String {
        let program = self.program.file_name().unwrap_or_default().to_string_lossy();
        let program = if program == "exe" { "flue".into() } else { program };
        let variables = self.environment.iter().map(|(name, value)| format!("{name}={value}"));
        let words = self.words.iter().map(|word| word.to_string_lossy().into_owned());
        variables.chain([program.into_owned()]).chain(words).collect::<Vec<_>>().join(" ")
    }
}

/// Server, client, and readiness condition of the server.
#[derive(Clone, Debug)]
struct Pair {
    server: End,
    client: End,
    ready: Ready,
}

/// Exited pair.
#[derive(Debug)]
struct ExitedPair {
    server: Option<ExitedProgram>,
    client: ExitedProgram,
}

impl ExitedPair {
    /// Returns the CPU time of both processes from start to exit, for `bytes` of payload.
    fn cpu(&self, bytes: u64) -> Option<Cpu> {
        let (user, system) = self.client.cpu_seconds?;
        let (server_user, server_system) = self.server.as_ref()?.cpu_seconds?;
        Some(Cpu {
            user_seconds: user + server_user,
            system_seconds: system + server_system,
            bytes,
            covers: Covers::Processes,
        })
    }
}

/// Result of a job.
pub(super) type Measured = Result<Sample, Fault>;

impl<'a> Tools<'a> {
    /// Creates an executor; `programs` are the installed ones.
    pub(super) fn new(
        namespaces: &'a Namespaces,
        signals: &'a Signals,
        seconds: f64,
        mtu_bytes: u16,
        programs: HashMap<Need, PathBuf>,
    ) -> Self {
        let ucx_rates = HashMap::new();
        Self { namespaces, signals, seconds, mtu_bytes, programs, ucx_rates, runs: 0 }
    }

    /// Runs a job once.
    pub(super) fn measure(&mut self, job: &Job) -> Measured {
        match job {
            Job::Perf(job) => {
                let pair = self.perf_pair(job, &Span::Seconds(self.seconds));
                let ended = self.run_pair(&pair, self.limit())?;
                perf::sample(&ended.client.out).map_err(|why| ended.fault(&why))
            }
            Job::Libfabric { operation, size_bytes, depth } => {
                let pair = self.libfabric_pair(operation, *size_bytes, *depth)?;
                let ended = self.run_pair(&pair, self.limit())?;
                let mut sample =
                    document::sample(&ended.client.out).map_err(|why| ended.fault(&why))?;
                if depth.is_some() {
                    let rate = || Some(sample.bandwidth_bps? / 8.0 / *size_bytes as f64);
                    sample.messages_per_second = sample.messages_per_second.or_else(rate);
                }
                Ok(sample)
            }
            Job::LibfabricConnect { connections } => {
                let pair = self.libfabric_pair("connect", 1, Some(*connections))?;
                let ended = self.run_pair(&pair, self.limit())?;
                document::sample(&ended.client.out).map_err(|why| ended.fault(&why))
            }
            Job::Perftest { program, size_bytes, on_nodes } => {
                self.perftest(program, *size_bytes, *on_nodes)
            }
            Job::Rstream { size_bytes, on_nodes } => self.rstream(*size_bytes, *on_nodes),
            Job::Cmtime { connections } => self.cmtime(*connections),
            Job::Ucx { test, size_bytes, latency } => self.ucx(test, *size_bytes, *latency),
            Job::Iperf3 => {
                let pair = self.iperf3_pair()?;
                let ended = self.run_pair(&pair, self.limit())?;
                iperf3::sample(&ended.client.out).map_err(|why| ended.fault(&why))
            }
            Job::Baseline { arguments } => {
                let end = self.baseline(arguments);
                let mut running = self.start(&end)?;
                let ended = running.wait(self.signals, self.limit())?;
                let sample = document::sample(&ended.out);
                sample.map_err(|why| Fault::Failed(format!("{why}; {}", ended.describe())))
            }
        }
    }

    /// Returns the command line of the measuring process, for display.
    pub(super) fn command_line(&mut self, job: &Job) -> String {
        let end = match job {
            Job::Perf(job) => Ok(self.perf_pair(job, &Span::Seconds(self.seconds)).client),
            Job::Libfabric { operation, size_bytes, depth } => {
                self.libfabric_pair(operation, *size_bytes, *depth).map(|pair| pair.client)
            }
            Job::LibfabricConnect { connections } => {
                self.libfabric_pair("connect", 1, Some(*connections)).map(|pair| pair.client)
            }
            Job::Perftest { program, size_bytes, on_nodes } => {
                self.perftest_pair(program, *size_bytes, *on_nodes).map(|pair| pair.client)
            }
            Job::Rstream { size_bytes, on_nodes } => {
                self.rstream_pair(*size_bytes, *on_nodes).map(|pair| pair.client)
            }
            Job::Cmtime { connections } => self.cmtime_pair(*connections).map(|pair| pair.client),
            Job::Ucx { test, size_bytes, .. } => {
                self.ucx_pair(test, *size_bytes, 1_000, None).map(|pair| pair.client)
            }
            Job::Iperf3 => self.iperf3_pair().map(|pair| pair.client),
            Job::Baseline { arguments } => Ok(self.baseline(arguments)),
        };
        end.map_or_else(|_| String::new(), |end| end.command_line())
    }

    fn limit(&self) -> Duration {
        GRACE + Duration::from_secs_f64(2.0 * self.seconds)
    }

    fn program(&self, need: Need) -> Result<&Path, Fault> {
        let found = self.programs.get(&need).map(PathBuf::as_path);
        found.ok_or_else(|| Fault::Failed("not installed".into()))
    }

    fn command(&self, end: &End) -> Command {
        let mut command = self.namespaces.command(end.namespace, &end.program);
        command.args(&end.words).envs(end.environment.iter().cloned());
        command
    }

    fn start(&mut self, end: &End) -> Result<Running, Fault> {
        self.runs += 1;
        let name = end.program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = if name == "exe" { "flue".to_owned() } else { name };
        Running::start(&name, self.command(end))
    }

    fn run_pair(&mut self, pair: &Pair, limit: Duration) -> Result<ExitedPair, Fault> {
        let signals = self.signals;
        let mut server = self.start(&pair.server)?;
        server
            .wait_ready(&pair.ready, signals, READY_LIMIT)
            .map_err(|fault| at("server", fault))?;
        let mut client = self.start(&pair.client)?;
        let client = client.wait(signals, limit).map_err(|fault| {
            let output = server.last_output();
            at(&format!("client (last output of the server: {output:?})"), fault)
        })?;
        if !client.status.success() {
            let why = Fault::Failed(format!("client: {}", client.describe()));
            return Err(why);
        }
        // A server that does not exit does not invalidate its client's result.
        let server = match server.wait(signals, END_LIMIT) {
            Ok(ended) => Some(ended),
            Err(Fault::Failed(_)) => None,
            Err(interrupted) => return Err(interrupted),
        };
        Ok(ExitedPair { server, client })
    }

    fn libfabric_pair(
        &self,
        operation: &str,
        size_bytes: u64,
        depth: Option<u32>,
    ) -> Result<Pair, Fault> {
        let program = self.program(Need::Libfabric)?;
        let port = ["--port".to_owned(), PORT.to_string()];
        let mut options = vec![
            "--op".to_owned(),
            operation.into(),
            "--size".into(),
            size_bytes.to_string(),
            "--depth".into(),
            depth.unwrap_or(1).to_string(),
            "--seconds".into(),
            self.seconds.to_string(),
        ];
        if depth.is_none() {
            options.push("--latency".into());
        }
        let server = ["server".to_owned()].into_iter().chain(port.clone());
        let client = ["client".to_owned(), KERNELS[1].to_string()];
        let client = client.into_iter().chain(port).chain(options);
        Ok(Pair {
            server: End::new(Namespace::Right, program, words(server)),
            client: End::new(Namespace::Left, program, words(client)),
            ready: Ready::Listening(PORT),
        })
    }

    fn baseline(&self, arguments: &[String]) -> End {
        let own = ["bench", "baseline"].into_iter().map(str::to_owned);
        let seconds = ["--seconds".to_owned(), self.seconds.to_string()];
        let words = words(own.chain(arguments.iter().cloned()).chain(seconds));
        End::new(Namespace::Bridge, self.namespaces.program(), words)
    }
}

/// Length of a `flue perf` run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Span {
    /// Time, seconds.
    Seconds(f64),
    /// Number of operations.
    Iterations(u64),
}

impl ExitedPair {
    /// Returns the fault of a client whose output could not be parsed.
    fn fault(&self, why: &str) -> Fault {
        Fault::Failed(format!("client: {why}; {}", self.client.describe()))
    }
}

fn at(whose: &str, fault: Fault) -> Fault {
    match fault {
        Fault::Failed(why) => Fault::Failed(format!("{whose}: {why}")),
        interrupted @ Fault::Interrupted(_) => interrupted,
    }
}
