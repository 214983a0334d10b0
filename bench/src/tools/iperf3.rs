//! `iperf3`: one stream, and its JSON output.

use serde::Deserialize;

use super::{End, PORT, Pair, Tools, words};
use crate::{
    contest::Need,
    namespaces::{KERNELS, Namespace},
    process::{Fault, Ready},
    sample::{Covers, Cpu, Sample},
};

impl Tools<'_> {
    pub(super) fn iperf3_pair(&self) -> Result<Pair, Fault> {
        let program = self.program(Need::Iperf3)?;
        let port = PORT.to_string();
        let address = KERNELS[1].to_string();
        // iperf3 accepts only whole seconds, at least one.
        let seconds = self.seconds.ceil().max(1.0).to_string();
        let client = ["-c", &address, "-p", &port, "-t", &seconds, "-J"];
        Ok(Pair {
            server: End::new(Namespace::Right, program, words(["-s", "-1", "-p", &port])),
            client: End::new(Namespace::Left, program, words(client)),
            ready: Ready::Listening(PORT),
        })
    }
}

#[derive(Deserialize)]
struct Document {
    error: Option<String>,
    end: Option<Totals>,
}

#[derive(Deserialize)]
struct Totals {
    sum_received: Option<Sum>,
    cpu_utilization_percent: Option<Percent>,
}

#[derive(Deserialize)]
struct Sum {
    seconds: f64,
    bytes: u64,
    bits_per_second: f64,
}

#[derive(Deserialize)]
struct Percent {
    host_user: f64,
    host_system: f64,
    remote_user: f64,
    remote_system: f64,
}

/// Parses the sample in the client's document, as counted by the receiver.
pub(super) fn sample(text: &str) -> Result<Sample, String> {
    let document: Document =
        serde_json::from_str(text).map_err(|error| format!("iperf3: invalid JSON: {error}"))?;
    if let Some(error) = document.error {
        return Err(error);
    }
    let end = document.end.ok_or("no end")?;
    let sum = end.sum_received.ok_or("no sum_received")?;
    let cpu = end.cpu_utilization_percent.map(|percent| Cpu {
        user_seconds: (percent.host_user + percent.remote_user) / 100.0 * sum.seconds,
        system_seconds: (percent.host_system + percent.remote_system) / 100.0 * sum.seconds,
        bytes: sum.bytes,
        covers: Covers::Measurement,
    });
    Ok(Sample {
        seconds: Some(sum.seconds),
        bytes: Some(sum.bytes),
        bandwidth_bps: Some(sum.bits_per_second),
        cpu,
        ..Sample::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_is_parsed_into_sample() {
        let text = r#"{"start": {"version": "iperf 3.12"}, "intervals": [], "end": {
            "streams": [], "sum_sent": {"seconds": 2.0, "bytes": 8000, "bits_per_second": 32000.0, "retransmits": 0},
            "sum_received": {"start": 0, "end": 2.0, "seconds": 2.0, "bytes": 4000, "bits_per_second": 16000.0},
            "cpu_utilization_percent": {"host_total": 50.0, "host_user": 10.0, "host_system": 40.0,
                                        "remote_total": 25.0, "remote_user": 5.0, "remote_system": 20.0}}}"#;
        let sample = sample(text).unwrap();
        assert_eq!((sample.bytes, sample.bandwidth_bps), (Some(4000), Some(16_000.0)));
        let cpu = sample.cpu.unwrap();
        assert!((cpu.user_seconds - 0.3).abs() < 1e-9 && (cpu.system_seconds - 1.2).abs() < 1e-9);
    }

    #[test]
    fn invalid_output_has_a_reason() {
        let refused = r#"{"start": {}, "end": {}, "error": "unable to connect to server: Connection refused"}"#;
        assert!(sample(refused).unwrap_err().contains("Connection refused"));
        assert!(sample("iperf3: error").unwrap_err().contains("invalid JSON"));
        assert!(sample(r#"{"end": {}}"#).unwrap_err().contains("sum_received"));
    }
}
