//! One measurement, whoever made it.

use serde::{Deserialize, Serialize};

use super::contest::Metric;

/// Times of single operations, ns; what a tool does not tell is null.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Latency {
    /// How many operations.
    pub(super) samples: Option<u64>,
    /// The shortest.
    pub(super) min: Option<f64>,
    /// Their mean.
    pub(super) mean: Option<f64>,
    /// Half of them took at most this.
    pub(super) p50: Option<f64>,
    /// Nine in ten.
    pub(super) p90: Option<f64>,
    /// 99 in a hundred.
    pub(super) p99: Option<f64>,
    /// 999 in a thousand.
    pub(super) p999: Option<f64>,
    /// The longest.
    pub(super) max: Option<f64>,
}

/// Processor time of both ends.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct Cpu {
    /// In user mode, seconds.
    pub(super) user_seconds: f64,
    /// In the kernel, seconds.
    pub(super) system_seconds: f64,
    /// Bytes of payload that were moved meanwhile.
    pub(super) bytes: u64,
    /// What it covers.
    pub(super) covers: Covers,
}

/// What a processor time covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Covers {
    /// The measurement, as both ends tell.
    Measurement,
    /// Both processes from start to end.
    Processes,
}

impl Cpu {
    /// Seconds for 10^9 bytes; none when nothing was moved.
    pub(super) fn seconds_per_gbyte(&self) -> Option<f64> {
        let seconds = self.user_seconds + self.system_seconds;
        (self.bytes > 0).then(|| seconds * 1e9 / self.bytes as f64)
    }
}

/// One measurement.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub(super) struct Sample {
    /// How long it was measured, seconds.
    pub(super) seconds: Option<f64>,
    /// Payload in that time.
    pub(super) bytes: Option<u64>,
    /// Payload, bits per second.
    pub(super) bandwidth_bps: Option<f64>,
    /// Messages per second.
    pub(super) messages_per_second: Option<f64>,
    /// Of single operations.
    pub(super) latency_ns: Option<Latency>,
    /// Of both ends.
    pub(super) cpu: Option<Cpu>,
}

impl Sample {
    /// The figure, in base units, if this measurement has it.
    pub(super) fn figure(&self, metric: Metric) -> Option<f64> {
        match metric {
            Metric::BandwidthBps => self.bandwidth_bps,
            Metric::MessagesPerSecond => self.messages_per_second,
            Metric::LatencyP50Ns => self.latency_ns.and_then(|latency| latency.p50),
            Metric::CpuSecondsPerGbyte => self.cpu.and_then(|cpu| cpu.seconds_per_gbyte()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_for_a_gbyte_of_ten_to_the_nine() {
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
