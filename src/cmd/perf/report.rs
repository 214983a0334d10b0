//! Output of a measurement: a table, a document, or a stream of objects.
//!
//! Keys of the document contain their units; a value that is unknown or not applicable is null. It is also printed on
//! failure, with `error`.

use std::net::SocketAddr;

use flue_adapter::{NodeOptions, word};
use host_stack::node::Progress;
use serde::Serialize;

use super::{
    Plan, StackName,
    histogram::{Latency, Part},
    kind::Kind,
    message::Parameters,
};
use crate::{
    failure::Failure,
    report::{self, Console},
    units::{format_bytes, format_rate},
};

/// Name of the document.
const NAME: &str = "perf";

/// Output format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutputFormat {
    /// A table.
    Text,
    /// One document.
    Document,
    /// One line with an object per interval and size, then the document.
    Stream,
}

/// Measurement of one interval.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Interval {
    /// Length of the interval, seconds.
    pub seconds: f64,
    /// Payload sent by this end (received, with -R), bits per second.
    pub bandwidth_bps: f64,
    /// Messages per second.
    pub messages_per_second: f64,
}

impl Interval {
    pub(super) fn new(seconds: f64, messages: u64, size_bytes: u64) -> Self {
        let messages_per_second = if seconds > 0.0 { messages as f64 / seconds } else { 0.0 };
        let bandwidth_bps = messages_per_second * size_bytes as f64 * 8.0;
        Self { seconds, bandwidth_bps, messages_per_second }
    }
}

/// CPU time of both ends.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize)]
pub struct EndpointCpu {
    /// User time of this end.
    pub local_user_seconds: f64,
    /// System time of this end.
    pub local_system_seconds: f64,
    /// User time of the peer.
    pub remote_user_seconds: Option<f64>,
    /// System time of the peer.
    pub remote_system_seconds: Option<f64>,
    /// CPU time of both ends per 10^9 bytes of payload.
    pub seconds_per_gbyte: Option<f64>,
}

/// Result of one measurement.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Measured {
    /// Message size, bytes.
    pub size_bytes: u64,
    /// Messages; with -b those of both ends.
    pub iterations: u64,
    /// Messages of the warm-up.
    pub warm_up_iterations: u64,
    /// Duration until the arrival of the last message.
    pub seconds: f64,
    /// Payload, bytes.
    pub bytes: u64,
    /// Payload, bits per second.
    pub bandwidth_bps: Option<f64>,
    /// Messages per second.
    pub messages_per_second: f64,
    /// Latencies, nanoseconds.
    pub latency_ns: Option<Latency>,
    /// CPU time.
    pub cpu: EndpointCpu,
    /// Measurements per interval.
    pub intervals: Vec<Interval>,
    /// True if the received data was verified against the data sent.
    pub verified: Option<bool>,
    /// Failed connections of connect-rate.
    pub failures: u64,
    /// Offloaded connections of connect-rate.
    pub offloaded_connections: Option<u64>,
}

/// Setup of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Config {
    kind: String,
    role: &'static str,
    stack: String,
    version: &'static str,
    transport: &'static str,
    progress: Option<&'static str>,
    wait: Option<String>,
    connections: u32,
    depth: u32,
    post_list: u32,
    bidirectional: bool,
    reverse: bool,
    queues: Option<u8>,
    vnet_header: Option<bool>,
    mtu_bytes: Option<u16>,
}

/// Results of a run.
#[derive(Clone, PartialEq, Default, Debug, Serialize)]
struct Results {
    local: Option<String>,
    remote: Option<String>,
    remote_version: Option<String>,
    crc: Option<bool>,
    /// Part of the exchange that a latency covers.
    latency: Option<&'static str>,
    /// TCP segments received by each queue's engine, in the whole run.
    queue_segments: Option<Vec<u64>>,
    measurements: Vec<Measured>,
}

/// Body of the JSON document.
#[derive(Serialize)]
struct Body<'a> {
    config: &'a Config,
    result: &'a Results,
}

/// Collects and prints the results.
#[derive(Debug)]
pub struct Reporter {
    output_format: OutputFormat,
    kind: Kind,
    config: Config,
    results: Results,
    is_headed: bool,
}

impl Reporter {
    /// Creates the reporter of a run.
    pub fn new(kind: Kind, is_client: bool, output_format: OutputFormat) -> Self {
        let latency = kind.timed_part().map(|part| match part {
            Part::HalfRoundTrip => "half round trip",
            Part::Whole => "whole operation",
        });
        Self {
            output_format,
            kind,
            config: Config {
                kind: kind.to_string(),
                role: if is_client { "client" } else { "server" },
                stack: word(StackName::Flue),
                version: env!("CARGO_PKG_VERSION"),
                transport: if kind.is_rdma() { "rdma" } else { "tcp" },
                progress: None,
                wait: None,
                connections: 1,
                depth: 1,
                post_list: 1,
                bidirectional: false,
                reverse: false,
                queues: None,
                vnet_header: None,
                mtu_bytes: None,
            },
            results: Results { latency, ..Results::default() },
            is_headed: false,
        }
    }

    pub(super) fn plan(&mut self, plan: &Plan, progress: Progress) {
        let config = &mut self.config;
        config.stack = word(plan.stack);
        config.progress = (plan.stack != StackName::Kernel).then_some(match progress {
            Progress::Automatic => "automatic",
            Progress::Manual => "manual",
            Progress::Shared => "shared",
        });
        config.wait = Some(word(plan.waiting));
        self.parameters(&plan.parameters);
    }

    /// Records the client's parameters.
    pub(super) const fn parameters(&mut self, parameters: &Parameters) {
        let config = &mut self.config;
        config.connections = parameters.connections;
        config.depth = parameters.depth;
        config.post_list = parameters.post_list;
        config.bidirectional = parameters.bidirectional;
        config.reverse = parameters.reverse;
    }

    /// Records the properties of the link.
    pub(super) const fn link(&mut self, vnet_header: bool, options: &NodeOptions) {
        self.config.queues = Some(options.queues);
        self.config.vnet_header = Some(vnet_header);
        self.config.mtu_bytes = Some(options.mtu_bytes);
    }

    /// Records the TCP segments received by each queue's engine.
    pub(super) fn segments(&mut self, segments: Vec<u64>) {
        self.results.queue_segments = Some(segments);
    }

    /// Records whether MPA negotiated CRCs.
    pub(super) const fn crc(&mut self, crc: Option<bool>) {
        self.results.crc = crc;
    }

    /// Records the addresses of both ends.
    pub(super) fn peers(&mut self, local: Option<SocketAddr>, remote: Option<SocketAddr>) {
        let ip = |end: Option<SocketAddr>| end.map(|end| end.ip().to_canonical().to_string());
        self.results.local = ip(local);
        self.results.remote = ip(remote);
    }

    pub(super) fn peer_version(&mut self, version: String) {
        self.results.remote_version = Some(version);
    }

    fn head(&mut self, console: &mut Console<'_>) {
        if self.is_headed || self.output_format != OutputFormat::Text {
            return;
        }
        self.is_headed = true;
        let Config {
            stack,
            progress,
            wait,
            connections,
            depth,
            post_list,
            bidirectional,
            reverse,
            queues,
            vnet_header,
            mtu_bytes,
            ..
        } = &self.config;
        let Results { crc, local, remote, .. } = &self.results;
        let shown = |text: &Option<String>| text.clone().unwrap_or_else(|| "?".into());
        let direction = match (bidirectional, reverse) {
            (true, _) => ", bidirectional",
            (_, true) => ", reverse",
            _ => "",
        };
        console.step(format_args!("{}{direction}", self.kind.title()));
        console.step(format_args!("  {} to {}", shown(local), shown(remote)));
        let on = |name: &str, flag: bool| format!("{name} {}", if flag { "on" } else { "off" });
        let known = [
            Some(format!("stack {stack}")),
            progress.map(|progress| format!("progress {progress}")),
            wait.as_ref().map(|wait| format!("wait {wait}")),
            queues.map(|queues| format!("queues {queues}")),
            vnet_header.map(|flag| on("vnet header", flag)),
            mtu_bytes.map(|bytes| format!("MTU {bytes} bytes")),
            crc.map(|flag| on("CRC", flag)),
        ];
        let known = known.into_iter().flatten().collect::<Vec<_>>().join(", ");
        console.step(format_args!("  {known}"));
        if self.kind.is_bandwidth() {
            let post_list = match self.kind.is_rdma() {
                true => format!(", post list {post_list}"),
                false => String::new(),
            };
            console.step(format_args!("  connections {connections}, depth {depth}{post_list}"));
        }
        match self.kind.timed_part() {
            None => console.print(format_args!(
                "{:>9}{:>12}{:>9}{:>9}{:>11}{:>10}{:>10}{:>10}",
                "size B",
                "iterations",
                "time s",
                "Gbit/s",
                "msg/s",
                "CPU s/GB",
                "CPU local",
                "CPU peer"
            )),
            Some(part) => {
                let part = match part {
                    Part::HalfRoundTrip => "half round trip",
                    Part::Whole => "whole operation",
                };
                console.step(format_args!("  latency in µs: {part}"));
                console.print(format_args!(
                    "{:>9}{:>11}{:>7}{:>7}{:>7}{:>7}{:>7}{:>7}{:>8}{:>10}",
                    "size B",
                    "iterations",
                    "min",
                    "mean",
                    "p50",
                    "p90",
                    "p99",
                    "p99.9",
                    "max",
                    "rate 1/s",
                ));
            }
        }
    }

    /// Prints an interval.
    pub(super) fn interval(
        &mut self,
        size_bytes: u64,
        from_seconds: f64,
        interval: &Interval,
        console: &mut Console<'_>,
    ) {
        match self.output_format {
            OutputFormat::Document => {}
            OutputFormat::Stream => {
                let event = serde_json::json!({
                    "schema": report::schema(NAME),
                    "event": "interval",
                    "size_bytes": size_bytes,
                    "from_seconds": from_seconds,
                    "interval": interval,
                });
                console.print(event);
            }
            OutputFormat::Text => {
                self.head(console);
                let Interval { seconds, bandwidth_bps, messages_per_second } = interval;
                // The unit of the kind: a latency has no bandwidth.
                let rate = match self.kind.timed_part() {
                    None => {
                        format!("{} {messages_per_second:.0} msg/s", format_rate(*bandwidth_bps))
                    }
                    Some(Part::HalfRoundTrip) => format!("{messages_per_second:.0} round trips/s"),
                    Some(Part::Whole) => format!("{messages_per_second:.0} operations/s"),
                };
                console.print(format_args!(
                    "{:>10} {from_seconds:>6.2}-{:.2} s {rate}",
                    format_bytes(size_bytes),
                    from_seconds + seconds,
                ));
            }
        }
    }

    /// Prints a measurement.
    pub(super) fn measured(&mut self, measured: Measured, console: &mut Console<'_>) {
        match self.output_format {
            OutputFormat::Document => {}
            OutputFormat::Stream => console.print(serde_json::json!({
                "schema": report::schema(NAME),
                "event": "result",
                "result": measured,
            })),
            OutputFormat::Text => {
                self.head(console);
                console.print(row(self.kind, &measured));
            }
        }
        self.results.measurements.push(measured);
    }

    /// Prints the end of the output.
    pub(super) fn finish(&mut self, failure: Option<&Failure>, console: &mut Console<'_>) {
        let body = Body { config: &self.config, result: &self.results };
        let document = report::Document::new(NAME, failure, body);
        // Cannot fail: numbers and strings.
        let text = match self.output_format {
            OutputFormat::Text => return,
            OutputFormat::Document => document.pretty(),
            OutputFormat::Stream => document.line(),
        };
        console.print(text.unwrap_or_default());
    }
}

/// Formats microseconds in at most six characters, up to a second.
fn shown_micros(micros: f64) -> String {
    match micros {
        micros if micros < 100.0 => format!("{micros:.2}"),
        micros if micros < 1000.0 => format!("{micros:.1}"),
        micros => format!("{micros:.0}"),
    }
}

fn row(kind: Kind, measured: &Measured) -> String {
    let Measured { size_bytes, iterations, seconds, messages_per_second, cpu, .. } = measured;
    if let (Some(_), Some(latency)) = (kind.timed_part(), &measured.latency_ns) {
        let micros = |nanos: u64| shown_micros(nanos as f64 / 1e3);
        let mut row = format!(
            "{size_bytes:>9}{iterations:>11}{:>7}{:>7}{:>7}{:>7}{:>7}{:>7}{:>8}{messages_per_second:>10.0}",
            micros(latency.min),
            shown_micros(latency.mean / 1e3),
            micros(latency.p50),
            micros(latency.p90),
            micros(latency.p99),
            micros(latency.p999),
            micros(latency.max),
        );
        if let Some(offloaded) = measured.offloaded_connections {
            let failures = measured.failures;
            row.push_str(&format!("\n          offloaded {offloaded}, failed {failures}"));
        }
        return row;
    }
    let percent = |user: f64, system: f64| {
        if *seconds > 0.0 { (user + system) / seconds * 100.0 } else { 0.0 }
    };
    let remote = cpu.remote_user_seconds.unwrap_or(0.0);
    let remote = percent(remote, cpu.remote_system_seconds.unwrap_or(0.0));
    format!(
        "{size_bytes:>9}{iterations:>12}{seconds:>9.3}{:>9.3}{messages_per_second:>11.0}{:>10.3}\
         {:>8.0} %{remote:>8.0} %",
        measured.bandwidth_bps.unwrap_or(0.0) / 1e9,
        cpu.seconds_per_gbyte.unwrap_or(0.0),
        percent(cpu.local_user_seconds, cpu.local_system_seconds),
    )
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::{super::histogram::Histogram, *};
    use crate::report::Style;

    /// Columns of a terminal.
    const COLUMNS: usize = 80;

    /// Returns the output of a measurement with large figures.
    fn text(kind: Kind) -> String {
        let mut out = Vec::new();
        let none = Box::new(std::io::sink());
        let mut console = Console::on("perf", Style::default(), Box::new(&mut out), none);
        let mut reporter = Reporter::new(kind, true, OutputFormat::Text);
        reporter.config.stack = "kernel".into();
        let far = Some(([255, 255, 255, 255], 65_535).into());
        reporter.peers(far, far);
        let interval = Interval::new(1.0, 1_000_000, 65_536);
        reporter.interval(65_536, 3599.0, &interval, &mut console);
        let mut latencies = Histogram::default();
        [1_000, 100_000_000].into_iter().for_each(|nanos| latencies.record(nanos));
        let measured = Measured {
            size_bytes: 64 << 20,
            iterations: 10_000_000_000,
            warm_up_iterations: 0,
            seconds: 3599.999,
            bytes: 0,
            bandwidth_bps: Some(1e12),
            messages_per_second: 1e7,
            latency_ns: kind.timed_part().and_then(|_| latencies.latency()),
            cpu: EndpointCpu { local_user_seconds: 3600.0, ..EndpointCpu::default() },
            intervals: vec![interval],
            verified: None,
            failures: 0,
            offloaded_connections: None,
        };
        reporter.measured(measured, &mut console);
        drop(console);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn output_fits_a_terminal_and_has_no_empty_field() {
        for kind in Kind::value_variants() {
            let text = text(*kind);
            assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
            let is_empty = |word: &str| word.trim_end_matches(',') == "-";
            assert!(!text.split_whitespace().any(is_empty), "{text}");
        }
    }

    #[test]
    fn interval_has_the_unit_of_its_kind() {
        for (kind, unit) in [
            (Kind::TcpBw, "bit/s"),
            (Kind::TcpRr, "round trips/s"),
            (Kind::ReadLat, "operations/s"),
        ] {
            let text = text(kind);
            let interval = text.lines().find(|line| line.contains("3599.00-3600.00 s")).unwrap();
            assert!(interval.contains(unit), "{interval}");
            assert_eq!(interval.contains("bit/s"), kind == Kind::TcpBw, "{interval}");
        }
    }
}
