//! JSON line printed by the baselines, including libfabric's.

use flue_report::{failure::Failure, schema};
use serde::Deserialize;

use crate::{
    baseline,
    sample::{Covers, Cpu, Latency, Sample},
};

#[derive(Deserialize)]
struct Line {
    schema: String,
    error: Option<Failure>,
    value: Option<f64>,
    unit: Option<String>,
    latency_ns: Option<Latency>,
    cpu: Option<baseline::Cpu>,
    bytes: Option<u64>,
    seconds: Option<f64>,
    detail: Option<Detail>,
}

#[derive(Deserialize)]
struct Detail {
    messages_per_second: Option<f64>,
}

/// Parses the sample in the last line of `text`.
pub(super) fn sample(text: &str) -> Result<Sample, String> {
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let line: Line = serde_json::from_str(line)
        .map_err(|error| format!("baseline: invalid document: {error}"))?;
    let expected = schema(baseline::NAME);
    if line.schema != expected {
        return Err(format!("schema {:?}, expected {expected}", line.schema));
    }
    if let Some(failure) = line.error {
        return Err(failure.message);
    }
    let value = line.value.ok_or("no value")?;
    let mut sample = Sample {
        seconds: line.seconds,
        bytes: line.bytes,
        messages_per_second: line.detail.and_then(|detail| detail.messages_per_second),
        latency_ns: line.latency_ns,
        cpu: line.cpu.zip(line.bytes).map(|(times, bytes)| Cpu {
            user_seconds: times.user_seconds,
            system_seconds: times.system_seconds,
            bytes,
            covers: Covers::Measurement,
        }),
        ..Sample::default()
    };
    match line.unit.as_deref() {
        Some("bps") => sample.bandwidth_bps = Some(value),
        Some("msgs_per_s") => sample.messages_per_second = Some(value),
        Some("connections_per_s") => sample.connections_per_second = Some(value),
        Some("ns") => {
            let latency = sample.latency_ns.get_or_insert_default();
            latency.p50.get_or_insert(value);
        }
        other => return Err(format!("unit {other:?}: not supported")),
    }
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contest::Metric;

    #[test]
    fn line_is_parsed_into_sample() {
        let text = r#"{"schema":"flue.baseline/1","kind":"bare-tcp-send","value":8.1e10,"unit":"bps","samples":null,
            "latency_ns":null,"cpu":{"user_seconds":0.5,"system_seconds":1.5},"bytes":10000000000,"seconds":1.0,
            "detail":{"messages_per_second":5.0,"frames":7}}"#;
        let text = format!("other output\n{}\n", text.replace('\n', ""));
        let sample = sample(&text).unwrap();
        assert_eq!(sample.figure(Metric::BandwidthBps), Some(8.1e10));
        assert_eq!(sample.figure(Metric::MessagesPerSecond), Some(5.0));
        assert_eq!(sample.figure(Metric::CpuSecondsPerGbyte), Some(0.2));
    }

    #[test]
    fn latency_value_is_the_median() {
        let text = r#"{"schema":"flue.baseline/1","value":1450.0,"unit":"ns"}"#;
        assert_eq!(sample(text).unwrap().figure(Metric::LatencyP50Ns), Some(1450.0));
    }

    #[test]
    fn invalid_output_has_a_reason() {
        let cases = [
            ("", "invalid document"),
            (
                r#"{"schema":"flue.baseline/1","error":{"kind":"failure","message":"2 frames lost","hint":null}}"#,
                "2 frames lost",
            ),
            (r#"{"schema":"flue.baseline/1","value":1.0,"unit":"miles"}"#, "miles"),
            (r#"{"schema":"flue.baseline/1"}"#, "no value"),
        ];
        for (text, why) in cases {
            let error = sample(text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
