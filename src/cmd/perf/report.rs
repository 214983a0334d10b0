//! Output of a measurement: a table, a document, or a stream of objects.
//!
//! The body of the document is specific to this command, for programs that compare runs. Its keys contain their units;
//! a value that is unknown or not applicable is null. It is also printed on failure, with `error`.

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

/// Body of the JSON document.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Document {
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
    /// TCP segments received by each queue's engine, in the whole run.
    queue_segments: Option<Vec<u64>>,
    vnet_header: Option<bool>,
    mtu_bytes: Option<u16>,
    crc: Option<bool>,
    local: Option<String>,
    remote: Option<String>,
    remote_version: Option<String>,
    latency: Option<&'static str>,
    results: Vec<Measured>,
}

/// Collects and prints the results.
#[derive(Debug)]
pub struct Reporter {
    output_format: OutputFormat,
    kind: Kind,
    document: Document,
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
            document: Document {
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
                queue_segments: None,
                vnet_header: None,
                mtu_bytes: None,
                crc: None,
                local: None,
                remote: None,
                remote_version: None,
                latency,
                results: Vec::new(),
            },
            is_headed: false,
        }
    }

    pub(super) fn plan(&mut self, plan: &Plan, progress: Progress) {
        let document = &mut self.document;
        document.stack = word(plan.stack);
        document.progress = (plan.stack != StackName::Kernel).then_some(match progress {
            Progress::Automatic => "automatic",
            Progress::Manual => "manual",
            Progress::Shared => "shared",
        });
        document.wait = Some(word(plan.waiting));
        self.parameters(&plan.parameters);
    }

    /// Records the client's parameters.
    pub(super) const fn parameters(&mut self, parameters: &Parameters) {
        let document = &mut self.document;
        document.connections = parameters.connections;
        document.depth = parameters.depth;
        document.post_list = parameters.post_list;
        document.bidirectional = parameters.bidirectional;
        document.reverse = parameters.reverse;
    }

    /// Records the properties of the link.
    pub(super) const fn link(&mut self, vnet_header: bool, options: &NodeOptions) {
        self.document.queues = Some(options.queues);
        self.document.vnet_header = Some(vnet_header);
        self.document.mtu_bytes = Some(options.mtu_bytes);
    }

    /// Records the TCP segments received by each queue's engine.
    pub(super) fn segments(&mut self, segments: Vec<u64>) {
        self.document.queue_segments = Some(segments);
    }

    /// Records whether MPA negotiated CRCs.
    pub(super) const fn crc(&mut self, crc: Option<bool>) {
        self.document.crc = crc;
    }

    /// Records the addresses of both ends.
    pub(super) fn peers(&mut self, local: Option<SocketAddr>, remote: Option<SocketAddr>) {
        let ip = |end: Option<SocketAddr>| end.map(|end| end.ip().to_canonical().to_string());
        self.document.local = ip(local);
        self.document.remote = ip(remote);
    }

    pub(super) fn peer_version(&mut self, version: String) {
        self.document.remote_version = Some(version);
    }

    fn head(&mut self, console: &mut Console<'_>) {
        if self.is_headed || self.output_format != OutputFormat::Text {
            return;
        }
        self.is_headed = true;
        let Document {
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
            crc,
            local,
            remote,
            ..
        } = &self.document;
        let shown = |text: &Option<String>| text.clone().unwrap_or_else(|| "?".into());
        let on = |flag: Option<bool>| match flag {
            Some(true) => "on",
            Some(false) => "off",
            None => "-",
        };
        let direction = match (bidirectional, reverse) {
            (true, _) => ", bidirectional",
            (_, true) => ", reverse",
            _ => "",
        };
        console.step(format_args!("{}{direction}", self.kind.title()));
        console.step(format_args!("  {} to {}", shown(local), shown(remote)));
        console.step(format_args!(
            "  stack {stack}, progress {}, wait {}, queues {}, vnet header {}, MTU {} bytes, CRC {}",
            progress.unwrap_or("-"),
            shown(wait),
            queues.map_or_else(|| "-".into(), |queues| queues.to_string()),
            on(*vnet_header),
            mtu_bytes.map_or_else(|| "-".into(), |bytes| bytes.to_string()),
            on(*crc),
        ));
        console.step(format_args!(
            "  connections {connections}, depth {depth}, post list {post_list}"
        ));
        console.print(match self.kind.timed_part() {
            None => format!(
                "{:>10} {:>12} {:>9} {:>11} {:>12} {:>9} {:>9} {:>9}",
                "size B",
                "iterations",
                "time s",
                "BW Gbit/s",
                "rate msg/s",
                "CPU s/GB",
                "CPU local",
                "CPU peer"
            ),
            Some(part) => format!(
                "{:>10} {:>12} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>12}   {}",
                "size B",
                "iterations",
                "min µs",
                "mean µs",
                "p50 µs",
                "p90 µs",
                "p99 µs",
                "p99.9 µs",
                "max µs",
                "rate 1/s",
                match part {
                    Part::HalfRoundTrip => "(half round trip)",
                    Part::Whole => "(whole operation)",
                }
            ),
        });
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
                console.print(format_args!(
                    "{:>10} {from_seconds:>6.2}-{:.2} s {} {messages_per_second:.0} msg/s",
                    format_bytes(size_bytes),
                    from_seconds + seconds,
                    format_rate(*bandwidth_bps),
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
        self.document.results.push(measured);
    }

    /// Prints the end of the output.
    pub(super) fn finish(&mut self, failure: Option<&Failure>, console: &mut Console<'_>) {
        let document = report::Document::new(NAME, failure, &self.document);
        // Cannot fail: numbers and strings.
        let text = match self.output_format {
            OutputFormat::Text => return,
            OutputFormat::Document => document.pretty(),
            OutputFormat::Stream => document.line(),
        };
        console.print(text.unwrap_or_default());
    }
}

fn row(kind: Kind, measured: &Measured) -> String {
    let Measured { size_bytes, iterations, seconds, messages_per_second, cpu, .. } = measured;
    if let (Some(_), Some(latency)) = (kind.timed_part(), &measured.latency_ns) {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        let mut row = format!(
            "{size_bytes:>10} {iterations:>12} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2} \
             {messages_per_second:>12.0}",
            micros(latency.min),
            latency.mean / 1e3,
            micros(latency.p50),
            micros(latency.p90),
            micros(latency.p99),
            micros(latency.p999),
            micros(latency.max),
        );
        if let Some(offloaded) = measured.offloaded_connections {
            let failures = measured.failures;
            row.push_str(&format!("   offloaded {offloaded}, failed {failures}"));
        }
        return row;
    }
    let percent = |user: f64, system: f64| {
        if *seconds > 0.0 { (user + system) / seconds * 100.0 } else { 0.0 }
    };
    let remote = cpu.remote_user_seconds.unwrap_or(0.0);
    let remote = percent(remote, cpu.remote_system_seconds.unwrap_or(0.0));
    format!(
        "{size_bytes:>10} {iterations:>12} {seconds:>9.3} {:>11.3} {messages_per_second:>12.0} \
         {:>9.3} {:>7.0} % {remote:>7.0} %",
        measured.bandwidth_bps.unwrap_or(0.0) / 1e9,
        cpu.seconds_per_gbyte.unwrap_or(0.0),
        percent(cpu.local_user_seconds, cpu.local_system_seconds),
    )
}
