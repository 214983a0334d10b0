//! What a measurement is told as: a table, a document, or a stream of objects.
//!
//! The document ([`SCHEMA`]) is this command's own, for programs that compare runs: its keys carry their
//! units, what is unknown or does not apply is null, and it is there on failure too, with `error`.

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
    report::Console,
    units::{format_bytes, format_rate},
};

/// Name and version of the document.
pub const SCHEMA: &str = "flue-perf/1";

/// How it is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Telling {
    /// A table.
    Text,
    /// One document.
    Document,
    /// An object for each interval and size, one a line, then the document.
    Stream,
}

/// What went on between two looks.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Interval {
    /// Its length.
    pub seconds: f64,
    /// Payload that this end sent (receives, with -R) in it.
    pub bandwidth_bps: f64,
    /// Messages.
    pub messages_per_second: f64,
}

impl Interval {
    pub(super) fn new(seconds: f64, messages: u64, size_bytes: u64) -> Self {
        let messages_per_second = if seconds > 0.0 { messages as f64 / seconds } else { 0.0 };
        let bandwidth_bps = messages_per_second * size_bytes as f64 * 8.0;
        Self { seconds, bandwidth_bps, messages_per_second }
    }
}

/// Processor time of both ends.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize)]
pub struct CpuOfBoth {
    /// This end, in the program.
    pub local_user_seconds: f64,
    /// This end, in the kernel.
    pub local_system_seconds: f64,
    /// The peer, in the program.
    pub remote_user_seconds: Option<f64>,
    /// The peer, in the kernel.
    pub remote_system_seconds: Option<f64>,
    /// Both ends together, for each 10^9 bytes of payload.
    pub seconds_per_gbyte: Option<f64>,
}

/// One measurement.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Measured {
    /// Bytes of a message.
    pub size_bytes: u64,
    /// Messages, of both ends with -b.
    pub iterations: u64,
    /// Messages before it.
    pub warm_up_iterations: u64,
    /// How long it took, until the last message had arrived.
    pub seconds: f64,
    /// Payload.
    pub bytes: u64,
    /// Payload per second, bits.
    pub bandwidth_bps: Option<f64>,
    /// Messages per second.
    pub messages_per_second: f64,
    /// Times, nanoseconds.
    pub latency_ns: Option<Latency>,
    /// Processor time.
    pub cpu: CpuOfBoth,
    /// Line by line.
    pub intervals: Vec<Interval>,
    /// What arrived was compared with what was sent.
    pub verified: Option<bool>,
    /// Things that did not come about: connections of connect-rate.
    pub failures: u64,
    /// Connections that were offloaded, of connect-rate.
    pub offloaded_connections: Option<u64>,
}

/// The document.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Document {
    schema: &'static str,
    error: Option<String>,
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
    /// Received by each queue's engine, in the whole run.
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

/// Collects what is found, and tells it.
#[derive(Debug)]
pub struct Reporter {
    telling: Telling,
    kind: Kind,
    document: Document,
    is_headed: bool,
}

impl Reporter {
    /// Of a run that has not begun.
    pub fn new(kind: Kind, is_client: bool, telling: Telling) -> Self {
        let latency = kind.timed_part().map(|part| match part {
            Part::HalfRoundTrip => "half round trip",
            Part::Whole => "whole operation",
        });
        Self {
            telling,
            kind,
            document: Document {
                schema: SCHEMA,
                error: None,
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
        });
        document.wait = Some(word(plan.waiting));
        self.parameters(&plan.parameters);
    }

    /// What the client asks for.
    pub(super) const fn parameters(&mut self, parameters: &Parameters) {
        let document = &mut self.document;
        document.connections = parameters.connections;
        document.depth = parameters.depth;
        document.post_list = parameters.post_list;
        document.bidirectional = parameters.bidirectional;
        document.reverse = parameters.reverse;
    }

    /// What the link is.
    pub(super) const fn link(&mut self, vnet_header: bool, options: &NodeOptions) {
        self.document.queues = Some(options.queues);
        self.document.vnet_header = Some(vnet_header);
        self.document.mtu_bytes = Some(options.mtu_bytes);
    }

    /// TCP segments that each queue's engine has received.
    pub(super) fn segments(&mut self, segments: Vec<u64>) {
        self.document.queue_segments = Some(segments);
    }

    /// MPA has agreed on CRCs, or not.
    pub(super) const fn crc(&mut self, crc: Option<bool>) {
        self.document.crc = crc;
    }

    /// Who talks to whom.
    pub(super) fn peers(&mut self, local: Option<SocketAddr>, remote: Option<SocketAddr>) {
        let ip = |end: Option<SocketAddr>| end.map(|end| end.ip().to_canonical().to_string());
        self.document.local = ip(local);
        self.document.remote = ip(remote);
    }

    pub(super) fn peer_version(&mut self, version: String) {
        self.document.remote_version = Some(version);
    }

    fn head(&mut self, console: &mut Console<'_>) {
        if self.is_headed || self.telling != Telling::Text {
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
            (true, _) => ", both ways",
            (_, true) => ", the server sends",
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
        console.say(match self.kind.timed_part() {
            None => format!(
                "{:>10} {:>12} {:>9} {:>11} {:>12} {:>9} {:>9} {:>9}",
                "size B",
                "iterations",
                "time s",
                "BW Gbit/s",
                "rate msg/s",
                "CPU s/GB",
                "CPU here",
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

    /// Tells of an interval.
    pub(super) fn interval(
        &mut self,
        size_bytes: u64,
        from_seconds: f64,
        interval: &Interval,
        console: &mut Console<'_>,
    ) {
        match self.telling {
            Telling::Document => {}
            Telling::Stream => {
                let event = serde_json::json!({
                    "schema": SCHEMA,
                    "event": "interval",
                    "size_bytes": size_bytes,
                    "from_seconds": from_seconds,
                    "interval": interval,
                });
                console.say(event);
            }
            Telling::Text => {
                self.head(console);
                let Interval { seconds, bandwidth_bps, messages_per_second } = interval;
                console.say(format_args!(
                    "{:>10} {from_seconds:>6.2}-{:.2} s {} {messages_per_second:.0} msg/s",
                    format_bytes(size_bytes),
                    from_seconds + seconds,
                    format_rate(*bandwidth_bps),
                ));
            }
        }
    }

    /// Tells of a measurement.
    pub(super) fn measured(&mut self, measured: Measured, console: &mut Console<'_>) {
        match self.telling {
            Telling::Document => {}
            Telling::Stream => console.say(serde_json::json!({
                "schema": SCHEMA,
                "event": "result",
                "result": measured,
            })),
            Telling::Text => {
                self.head(console);
                console.say(row(self.kind, &measured));
            }
        }
        self.document.results.push(measured);
    }

    /// Tells the end.
    pub(super) fn finish(&mut self, failure: Option<&Failure>, console: &mut Console<'_>) {
        self.document.error = failure.map(|failure| failure.message.clone());
        // Numbers and strings: that cannot fail.
        let document = match self.telling {
            Telling::Text => return,
            Telling::Document => serde_json::to_string_pretty(&self.document),
            Telling::Stream => serde_json::to_string(&self.document),
        };
        console.say(document.unwrap_or_default());
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
