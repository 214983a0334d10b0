//! `flue perf`: command lines of both ends, and its document.

use std::net::IpAddr;

use flue_report::{failure::Failure, schema};
use serde::Deserialize;

use super::{End, PORT, Pair, Span, Tools, words};
use crate::{
    contest::{PerfJob, Route},
    namespaces::{BRIDGE, KERNELS, NODE_AND_KERNEL, NODES, Namespace, PREFIX_LEN},
    process::Ready,
    sample::{Covers, Cpu, Latency, Sample},
};

/// Longest warm-up, seconds; the warm-up of a short run is a fifth of its time.
const WARM_UP_SECONDS: f64 = 0.2;

/// Placement of an end.
enum Side<'a> {
    Node { address: IpAddr, kernel: Option<IpAddr>, options: &'a [String] },
    Kernel { namespace: Namespace },
}

impl Tools<'_> {
    /// Returns server and client of a job.
    pub(super) fn perf_pair(&self, job: &PerfJob, span: &Span) -> Pair {
        let PerfJob { kind, route, client, ends, node } = job;
        let on_bridge = |address| Side::Node { address, kernel: None, options: node };
        let before_kernel = || Side::Node {
            address: NODE_AND_KERNEL[0],
            kernel: Some(NODE_AND_KERNEL[1]),
            options: node,
        };
        let here = Side::Kernel { namespace: Namespace::Bridge };
        let (client_side, server_side, server_address) = match *route {
            Route::TwoNodes => (on_bridge(NODES[0]), on_bridge(NODES[1]), NODES[1]),
            Route::NodeToKernel => (before_kernel(), here, NODE_AND_KERNEL[1]),
            Route::KernelToNode => (here, before_kernel(), NODE_AND_KERNEL[0]),
            Route::TwoKernels => {
                let (left, right) = (
                    Side::Kernel { namespace: Namespace::Left },
                    Side::Kernel { namespace: Namespace::Right },
                );
                (left, right, KERNELS[1])
            }
        };
        let ready = match server_side {
            Side::Node { .. } => Ready::Output("listening"),
            Side::Kernel { .. } => Ready::Listening(PORT),
        };
        let port = ["-p".to_owned(), PORT.to_string()];
        let mut server_words = vec!["perf".to_owned(), (*kind).to_owned(), "--one-off".into()];
        server_words.extend(port.clone());
        let mut client_words =
            vec!["perf".to_owned(), (*kind).to_owned(), server_address.to_string()];
        client_words.extend(port);
        client_words.push("--json".into());
        match span {
            Span::Seconds(seconds) => {
                let warm_up = WARM_UP_SECONDS.min(seconds / 5.0);
                let seconds =
                    ["-D".to_owned(), seconds.to_string(), "-O".into(), warm_up.to_string()];
                client_words.extend(seconds);
            }
            Span::Iterations(count) => {
                let count = ["-n".to_owned(), count.to_string(), "-O".into(), "0".into()];
                client_words.extend(count);
            }
        }
        client_words.extend_from_slice(client);
        for end in [&mut server_words, &mut client_words] {
            end.extend_from_slice(ends);
        }
        Pair {
            server: self.perf_end(server_words, "s", &server_side),
            client: self.perf_end(client_words, "c", &client_side),
            ready,
        }
    }

    fn perf_end(&self, mut line: Vec<String>, letter: &str, side: &Side<'_>) -> End {
        let mut add = |option: &str, value: String| line.extend([option.to_owned(), value]);
        let namespace = match side {
            Side::Kernel { namespace } => {
                add("--stack", "kernel".into());
                *namespace
            }
            Side::Node { address, kernel, options } => {
                add("--tap", format!("bench{}{letter}", self.runs));
                add("--addr", format!("{address}/{PREFIX_LEN}"));
                match kernel {
                    Some(kernel) => add("--host-addr", format!("{kernel}/{PREFIX_LEN}")),
                    None => add("--bridge", BRIDGE.into()),
                }
                add("--mtu", self.mtu_bytes.to_string());
                add("--control", "none".into());
                line.extend_from_slice(options);
                Namespace::Bridge
            }
        };
        End::new(namespace, self.namespaces.program(), words(line))
    }
}

#[derive(Deserialize)]
struct Document {
    schema: String,
    error: Option<Failure>,
    #[serde(default)]
    result: Results,
}

#[derive(Deserialize, Default)]
struct Results {
    measurements: Vec<Outcome>,
}

/// Result for one size of a run.
#[derive(Deserialize)]
struct Outcome {
    iterations: u64,
    #[serde(default)]
    warm_up_iterations: u64,
    seconds: f64,
    bytes: u64,
    bandwidth_bps: Option<f64>,
    messages_per_second: Option<f64>,
    latency_ns: Option<Latency>,
    cpu: Option<Times>,
}

#[derive(Deserialize)]
struct Times {
    local_user_seconds: f64,
    local_system_seconds: f64,
    remote_user_seconds: Option<f64>,
    remote_system_seconds: Option<f64>,
}

/// Parses the single result in the client's document.
fn outcome(text: &str) -> Result<Outcome, String> {
    let document: Document = serde_json::from_str(text)
        .map_err(|error| format!("flue perf: invalid document: {error}"))?;
    let expected = schema("perf");
    if document.schema != expected {
        return Err(format!("schema {:?}, expected {expected}", document.schema));
    }
    if let Some(failure) = document.error {
        return Err(failure.message);
    }
    let [outcome] = <[Outcome; 1]>::try_from(document.result.measurements)
        .map_err(|results| format!("{} measurements, expected one", results.len()))?;
    Ok(outcome)
}

/// Parses the sample in the client's document.
pub(super) fn sample(text: &str) -> Result<Sample, String> {
    let outcome = outcome(text)?;
    let cpu = outcome.cpu.and_then(|times| {
        Some(Cpu {
            user_seconds: times.local_user_seconds + times.remote_user_seconds?,
            system_seconds: times.local_system_seconds + times.remote_system_seconds?,
            bytes: outcome.bytes,
            covers: Covers::Measurement,
        })
    });
    Ok(Sample {
        seconds: Some(outcome.seconds),
        bytes: Some(outcome.bytes),
        bandwidth_bps: outcome.bandwidth_bps,
        messages_per_second: outcome.messages_per_second,
        latency_ns: outcome.latency_ns,
        cpu,
        ..Sample::default()
    })
}

/// Returns the messages of a run, including the warm-up.
pub(super) fn messages(text: &str) -> Result<u64, String> {
    outcome(text).map(|outcome| outcome.iterations + outcome.warm_up_iterations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contest::Metric;

    const TEXT: &str = r#"{"schema": "flue.perf/1", "config": {"kind": "write-lat", "role": "client"},
        "result": {"measurements": [
        {"size_bytes": 8, "iterations": 1000, "warm_up_iterations": 20, "seconds": 0.5, "bytes": 8000,
         "bandwidth_bps": null, "messages_per_second": 2e3,
         "latency_ns": {"samples": 1000, "min": 2000, "mean": 2500.5, "p50": 2400, "p90": 2600, "p99": 3000,
                        "p999": 9000, "max": 20000, "histogram": [[2000, 1000]]},
         "cpu": {"local_user_seconds": 0.1, "local_system_seconds": 0.2, "remote_user_seconds": 0.3,
                 "remote_system_seconds": 0.4, "seconds_per_gbyte": null}, "intervals": []}]}}"#;

    #[test]
    fn document_is_parsed_into_sample() {
        let sample = sample(TEXT).unwrap();
        assert_eq!(sample.figure(Metric::LatencyP50Ns), Some(2400.0));
        assert_eq!(sample.figure(Metric::MessagesPerSecond), Some(2000.0));
        assert_eq!(sample.figure(Metric::BandwidthBps), None);
        let cpu = sample.cpu.unwrap();
        assert!((cpu.user_seconds - 0.4).abs() < 1e-9 && (cpu.system_seconds - 0.6).abs() < 1e-9);
        assert_eq!((cpu.bytes, cpu.covers), (8000, Covers::Measurement));
        assert_eq!(messages(TEXT), Ok(1020));
    }

    #[test]
    fn cpu_time_needs_both_ends() {
        let text = TEXT.replace("\"remote_user_seconds\": 0.3", "\"remote_user_seconds\": null");
        assert_eq!(sample(&text).unwrap().cpu, None);
    }

    #[test]
    fn invalid_output_has_a_reason() {
        let cases = [
            ("", "invalid document"),
            ("{\"schema\": \"flue.perf/2\"}", "schema"),
            (
                r#"{"schema": "flue.perf/1", "error": {"kind": "failure", "message": "no peer", "hint": null}}"#,
                "no peer",
            ),
            (r#"{"schema": "flue.perf/1", "result": {"measurements": []}}"#, "0 measurements"),
        ];
        for (text, why) in cases {
            let error = sample(text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
