//! `flue bench baseline`: baselines, the limits of the path below flue and the results of other stacks on it.
//!
//! | kind | measurement |
//! |---|---|
//! | `tap-bw`, `tap-rtt` | raw frames from TAP to TAP over a bridge: the limits of bandwidth and latency |
//! | `bare-tcp-send`, `bare-tcp-recv` | a minimal TCP without loss recovery on a TAP, with a kernel socket as peer |
//! | `smoltcp-*` | smoltcp on the same TAPs, polled directly |
//!
//! Each does the minimum of work: buffers are allocated in advance, a frame costs one system call, and waits spin with
//! sched_yield(2). There is no loss recovery: a lost frame makes the run fail, because the result would be misleading.
//! Both ends are threads of one process. Bytes are counted at the receiver.
//!
//! A run has its own network namespace, unless `--tap` names TAPs. It prints one line of JSON, also on failure.
//! `libfabric.c` in this directory is the baseline for libfabric, in C because its interface is.

mod bare;
mod engine;
mod far_end;
mod frame;
mod kernel;
mod latency;
mod measure;
mod smol;
mod test_bed;
mod wire;

use std::time::Duration;

use clap::{
    Args, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
use flue_report::{Console, failure::Failure};
use offload_engine::link::NapiMode;
use serde::Serialize;
use serde_json::Value;

pub(crate) use self::measure::Cpu;
use self::{bare::BareArgs, latency::Latency, smol::SmolArgs, wire::WireArgs};

/// Name of the documents that a run prints.
pub const NAME: &str = "baseline";

/// Measure the path below flue, or another stack on it; print one line of JSON
#[derive(Args, Clone, Debug)]
pub struct BaselineArgs {
    /// Measurement.
    #[command(subcommand)]
    pub kind: Kind,
}

/// Options of all kinds.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Measure for this time after a short warm-up, seconds: 0.01..=600
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse_seconds)]
    pub seconds: Duration,

    /// Use this TAP of the current network namespace instead of a new one
    ///
    /// Kinds with two TAPs require two, which must be ports of one bridge.
    #[arg(long, value_name = "NAME")]
    pub tap: Vec<String>,

    /// Select the NAPI mode for frames written to a TAP
    #[arg(long, value_name = "MODE", default_value = "off", value_parser = napi_parser())]
    pub napi: NapiMode,

    /// Bind the two ends to these CPUs
    #[arg(long, value_name = "A,B", value_parser = parse_cpus)]
    pub cpus: Option<(usize, usize)>,
}

/// Measurement.
#[derive(Subcommand, Clone, Debug)]
pub enum Kind {
    /// Raw frames from one TAP over a bridge to another
    TapBw(WireArgs),
    /// Half the round trip of a raw frame
    TapRtt {
        /// Options of all kinds.
        #[command(flatten)]
        common: Common,
    },
    /// A minimal TCP sends to a kernel socket
    BareTcpSend(BareArgs),
    /// A minimal TCP receives from a kernel socket
    BareTcpRecv(BareArgs),
    /// smoltcp sends to a kernel socket
    SmoltcpSend(SmolArgs),
    /// smoltcp receives from a kernel socket
    SmoltcpRecv(SmolArgs),
    /// smoltcp sends to smoltcp, over two TAPs and a bridge
    SmoltcpPair(SmolArgs),
    /// Half the round trip of 8 bytes between two smoltcp stacks
    SmoltcpRtt(SmolArgs),
}

impl Kind {
    const fn name(&self) -> &'static str {
        match self {
            Self::TapBw(_) => "tap-bw",
            Self::TapRtt { .. } => "tap-rtt",
            Self::BareTcpSend(_) => "bare-tcp-send",
            Self::BareTcpRecv(_) => "bare-tcp-recv",
            Self::SmoltcpSend(_) => "smoltcp-send",
            Self::SmoltcpRecv(_) => "smoltcp-recv",
            Self::SmoltcpPair(_) => "smoltcp-pair",
            Self::SmoltcpRtt(_) => "smoltcp-rtt",
        }
    }

    fn measure(&self) -> Result<Outcome, Failure> {
        match self {
            Self::TapBw(args) => wire::bandwidth(args),
            Self::TapRtt { common } => wire::round_trips(common),
            Self::BareTcpSend(args) => bare::send(args),
            Self::BareTcpRecv(args) => bare::receive(args),
            Self::SmoltcpSend(args) => smol::send(args),
            Self::SmoltcpRecv(args) => smol::receive(args),
            Self::SmoltcpPair(args) => smol::pair(args),
            Self::SmoltcpRtt(args) => smol::round_trips(args),
        }
    }
}

/// Unit of a document's `value`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Unit {
    /// Payload bits per second.
    Bps,
    /// Nanoseconds (a median).
    Ns,
}

/// Result of a run.
#[derive(Debug)]
struct Outcome {
    value: f64,
    unit: Unit,
    latency: Option<Latency>,
    /// CPU time of both ends, including the kernel's.
    cpu: Cpu,
    /// Payload bytes received in the measured time.
    bytes: u64,
    seconds: f64,
    /// Further values, specific to the kind.
    detail: Value,
}

impl Outcome {
    /// Creates the result of a bandwidth run, measured at the receiver.
    fn bandwidth(measured: measure::Measured, detail: Value) -> Result<Self, Failure> {
        let measure::Measured { seconds, count: bytes, cpu } = measured;
        if bytes == 0 {
            return Err(Failure::work("measurement: no data received in the measured time"));
        }
        let value = bytes as f64 * 8.0 / seconds;
        Ok(Self { value, unit: Unit::Bps, latency: None, cpu, bytes, seconds, detail })
    }

    /// Creates the result of a ping-pong with messages of `bytes_each` bytes: half round trips.
    fn half_round_trips(
        measured: measure::Measured,
        latency: Latency,
        bytes_each: u64,
        detail: Value,
    ) -> Self {
        let measure::Measured { seconds, count, cpu } = measured;
        let (value, unit) = (latency.p50, Unit::Ns);
        let bytes = count * bytes_each;
        Self { value, unit, latency: Some(latency), cpu, bytes, seconds, detail }
    }
}

/// Body of the document of a successful run.
#[derive(Serialize, Debug)]
struct Document<'a> {
    kind: &'static str,
    value: f64,
    unit: Unit,
    samples: Option<usize>,
    latency_ns: Option<&'a Latency>,
    cpu: Cpu,
    bytes: u64,
    seconds: f64,
    detail: &'a Value,
}

/// Body of the document of a failed run.
#[derive(Serialize, Debug)]
struct Refusal {
    kind: &'static str,
}

fn document(kind: &'static str, outcome: &Result<Outcome, Failure>) -> String {
    let text = match outcome {
        Ok(Outcome { value, unit, latency, cpu, bytes, seconds, detail }) => {
            let body = Document {
                kind,
                value: *value,
                unit: *unit,
                samples: latency.as_ref().map(|it| it.samples),
                latency_ns: latency.as_ref(),
                cpu: *cpu,
                bytes: *bytes,
                seconds: *seconds,
                detail,
            };
            flue_report::Document::new(NAME, None, body).line()
        }
        Err(failure) => flue_report::Document::new(NAME, Some(failure), Refusal { kind }).line(),
    };
    text.expect("numbers, strings and maps with string keys serialize")
}

/// Measures, and prints the document. Call it before the process has a second thread.
///
/// # Errors
/// [`Failure::work`] if frames were lost or nothing was received, [`Failure::lacking`] without TUN or network
/// namespaces.
pub fn run(args: &BaselineArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let outcome = args.kind.measure();
    console.print(document(args.kind.name(), &outcome));
    outcome.map(drop)
}

fn napi_parser() -> impl TypedValueParser<Value = NapiMode> {
    let modes = PossibleValuesParser::new(["off", "threaded"]);
    modes.map(|it| if it == "threaded" { NapiMode::Threaded } else { NapiMode::Off })
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?}: expected seconds"))?;
    if (0.01..=600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(format!("{text}: expected 0.01 to 600 seconds"))
    }
}

/// Number of CPUs in a CPU set.
const CPUS_MAX: usize = 1024;

fn parse_cpus(text: &str) -> Result<(usize, usize), String> {
    let both =
        text.split_once(',').ok_or_else(|| format!("{text:?}: expected two CPU numbers, A,B"))?;
    let one = |text: &str| match text.parse() {
        Ok(number) if number < CPUS_MAX => Ok(number),
        _ => Err(format!("{text:?}: expected a CPU number below {CPUS_MAX}")),
    };
    Ok((one(both.0)?, one(both.1)?))
}

#[cfg(test)]
mod tests;
