//! Sample: one measurement, from any tool.

use serde::{Deserialize, Serialize};

use super::contest::Metric;

/// Latency of single operations, ns; null if the tool does not report it.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Latency {
    /// Number of operations.
    pub(super) samples: Option<u64>,
    /// Minimum.
    pub(super) min: Option<f64>,
    /// Mean.
    pub(super) mean: Option<f64>,
    /// Median.
    pub(super) p50: Option<f64>,
    /// 90th percentile.
    pub(super) p90: Option<f64>,
    /// 99th percentile.
    pub(super) p99: Option<f64>,
    /// 99.9th percentile.
    pub(super) p999: Option<f64>,
    /// Maximum.
    pub(super) max: Option<f64>,
}

/// CPU time of both ends.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct Cpu {
    /// User time, seconds.
    pub(super) user_seconds: f64,
    /// System time, seconds.
    pub(super) system_seconds: f64,
    /// Payload bytes transferred in that time.
    pub(super) bytes: u64,
    /// Period covered.
    pub(super) covers: Covers,
}

/// Period covered by a CPU time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Covers {
    /// The measurement, as both ends report it.
    Measurement,
    /// The lifetime of both processes.
    Processes,
}

impl Cpu {
    /// Returns seconds per 10^9 bytes; `None` without payload.
    pub(super) fn seconds_per_gbyte(&self) -> Option<f64> {
        let seconds = self.user_seconds + self.system_seconds;
        (self.bytes > 0).then(|| seconds * 1e9 / self.bytes as f64)
    }
}

/// One measurement.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub(super) struct Sample {
    /// Length of the measurement, seconds.
    pub(super) seconds: Option<f64>,
    /// Payload bytes in that time.
    pub(super) bytes: Option<u64>,
    /// Payload bandwidth, bits per second.
    pub(super) bandwidth_bps: Option<f64>,
    /// Messages per second.
    pub(super) messages_per_second: Option<f64>,
    /// Connections established per second.
    pub(super) connections_per_second: Option<f64>,
    /// Latency of single operations.
    pub(super) latency_ns: Option<Latency>,
    /// CPU time of both ends.
    pub(super) cpu: Option<Cpu>,
}

impl Sample {
    /// Returns the value in base units, if the tool reports it.
    pub(super) fn figure(&self, metric: Metric) -> Option<f64> {
        match metric {
            Metric::BandwidthBps => self.bandwidth_bps,
            Metric::MessagesPerSecond => self.messages_per_second,
            Metric::ConnectionsPerSecond => self.connections_per_second,
            Metric::LatencyP50Ns => self.latency_ns.and_then(|latency| latency.p50),
            Metric::LatencyP99Ns => self.latency_ns.and_then(|latency| latency.p99),
            Metric::CpuSecondsPerGbyte => self.cpu.and_then(|cpu| cpu.seconds_per_gbyte()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_per_ten_to_the_nine_bytes() {
        let cpu = Cpu {
            user_seconds: 0.25,
            system_seconds: 0.75,
            bytes: 4_000_000_000,
            covers: Covers::Measurement,
        };
        assert_eq!(cpu.seconds_per_gbyte(), Some(0.25));
        assert_eq!(Cpu { bytes: 0, ..cpu }.seconds_per_gbyte(), None);
        let sample = Sample { cpu: Some(cpu), ..Sample::default() };
        assert_eq!(sample.figure(Metric::CpuSecondsPerGbyte), Some(0.25));
        assert_eq!(sample.figure(Metric::BandwidthBps), None);
    }
}
