//! `flue bench yardstick`: what the path under flue can carry, and what else could run on it.
//!
//! | kind | what it measures |
//! |---|---|
//! | `tap-bw`, `tap-rtt` | frames from TAP to TAP over a bridge, with no protocol: the ceiling and the floor |
//! | `bare-tcp-send`, `bare-tcp-recv` | a TCP that only moves bytes, on a TAP, against a socket of the kernel |
//! | `smoltcp-*` | smoltcp, polled by itself, on the same TAPs |
//!
//! Each is as lean as it can be written: buffers are made beforehand, a frame costs one system call and
//! nothing else, and who waits spins with sched_yield(2). None of them repairs anything: a frame that is
//! lost makes the run fail, since its figure would be about something else. Both ends are threads of one
//! process. Bytes are counted where they arrive.
//!
//! A run lives in a network namespace of its own that ends with it, unless TAPs are named. It prints one
//! line of JSON, also when it fails. `libfabric.c` beside this file is the same for libfabric, in C since
//! that is where its interface is.

mod bare;
mod bed;
mod engine;
mod far_end;
mod frame;
mod kernel;
mod latency;
mod measure;
mod smol;
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

/// The name and version of the documents that a run prints.
pub const SCHEMA: &str = "flue-yardstick/1";

/// Measure the path below flue, or another stack on it; prints one line of JSON
#[derive(Args, Clone, Debug)]
pub struct YardstickArgs {
    /// What to measure.
    #[command(subcommand)]
    pub kind: Kind,
}

/// What all kinds have in common.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// How long to measure, after a short warm-up [0.01 to 600]
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse_seconds)]
    pub seconds: Duration,

    /// Use this TAP of the caller's network namespace instead of a new one in a new namespace; kinds with
    /// two TAPs need two, which are ports of a bridge
    #[arg(long, value_name = "NAME")]
    pub tap: Vec<String>,

    /// NAPI mode for frames written to a TAP
    #[arg(long, value_name = "MODE", default_value = "off", value_parser = napi_parser())]
    pub napi: NapiMode,

    /// Bind both ends to processors
    #[arg(long, value_name = "A,B", value_parser = parse_processors)]
    pub cpus: Option<(usize, usize)>,
}

/// What is measured.
#[derive(Subcommand, Clone, Debug)]
pub enum Kind {
    /// Frames from a TAP over a bridge to a TAP, one way
    TapBw(WireArgs),
    /// A frame there and back: half the round trip
    TapRtt {
        /// What all kinds have in common.
        #[command(flatten)]
        common: Common,
    },
    /// A TCP without costs sends to a socket of the kernel
    BareTcpSend(BareArgs),
    /// It receives from one
    BareTcpRecv(BareArgs),
    /// smoltcp sends to a socket of the kernel
    SmoltcpSend(SmolArgs),
    /// smoltcp receives from one
    SmoltcpRecv(SmolArgs),
    /// smoltcp sends to smoltcp, on two TAPs and a bridge
    SmoltcpPair(SmolArgs),
    /// Eight bytes between the two, there and back: half the round trip
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

/// What `value` of a document is counted in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Unit {
    /// Bits of payload in a second.
    Bps,
    /// Nanoseconds: the median.
    Ns,
}

/// What a run has found.
#[derive(Debug)]
struct Outcome {
    value: f64,
    unit: Unit,
    latency: Option<Latency>,
    /// Of both ends and the kernel's work for them.
    cpu: Cpu,
    /// Payload that has arrived in the time measured.
    bytes: u64,
    seconds: f64,
    /// What else is worth knowing, by kind.
    detail: Value,
}

impl Outcome {
    /// Bandwidth, of what a stopwatch has measured at the receiver.
    fn bandwidth(measured: measure::Measured, detail: Value) -> Result<Self, Failure> {
        let measure::Measured { seconds, count: bytes, cpu } = measured;
        if bytes == 0 {
            return Err(Failure::work("nothing arrived in the time measured"));
        }
        let value = bytes as f64 * 8.0 / seconds;
        Ok(Self { value, unit: Unit::Bps, latency: None, cpu, bytes, seconds, detail })
    }

    /// Half round trips, each of `bytes_each` bytes one way.
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

/// The line that is printed.
#[derive(Serialize, Debug)]
struct Document<'a> {
    schema: &'static str,
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

/// The line that is printed instead when there is no figure.
#[derive(Serialize, Debug)]
struct Refusal<'a> {
    schema: &'static str,
    kind: &'static str,
    error: &'a str,
}

fn document(kind: &'static str, outcome: &Result<Outcome, Failure>) -> String {
    let text = match outcome {
        Ok(Outcome { value, unit, latency, cpu, bytes, seconds, detail }) => {
            serde_json::to_string(&Document {
                schema: SCHEMA,
                kind,
                value: *value,
                unit: *unit,
                samples: latency.as_ref().map(|it| it.samples),
                latency_ns: latency.as_ref(),
                cpu: *cpu,
                bytes: *bytes,
                seconds: *seconds,
                detail,
            })
        }
        Err(failure) => {
            serde_json::to_string(&Refusal { schema: SCHEMA, kind, error: &failure.message })
        }
    };
    text.expect("numbers, strings and maps with string keys can be serialised")
}

/// Measures, and prints the line. Call it before the process has a second thread.
///
/// # Errors
/// [`Failure::work`] when frames were lost or nothing moved, [`Failure::lacking`] when the machine has no
/// TUN or no namespaces.
pub fn run(args: &YardstickArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let outcome = args.kind.measure();
    console.say(document(args.kind.name(), &outcome));
    outcome.map(drop)
}

fn napi_parser() -> impl TypedValueParser<Value = NapiMode> {
    let modes = PossibleValuesParser::new(["off", "threaded"]);
    modes.map(|it| if it == "threaded" { NapiMode::Threaded } else { NapiMode::Off })
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    if (0.01..=600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(format!("{text} is not within 0.01 to 600 seconds"))
    }
}

/// Most processors that a set of them has bits for.
const PROCESSORS_MAX: usize = 1024;

fn parse_processors(text: &str) -> Result<(usize, usize), String> {
    let both = text.split_once(',').ok_or_else(|| format!("{text:?} is not two, with a comma"))?;
    let one = |text: &str| match text.parse() {
        Ok(number) if number < PROCESSORS_MAX => Ok(number),
        _ => Err(format!("{text:?} is not a processor's number below {PROCESSORS_MAX}")),
    };
    Ok((one(both.0)?, one(both.1)?))
}

#[cfg(test)]
mod tests;
