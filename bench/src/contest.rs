//! Types of the comparison: workloads, contestants, metrics and goals.
//!
//! A [`Group`] is one workload that several contestants run in turns, flue first. A [`Job`] is the method by which a
//! contestant runs it; groups with the same job share its samples. A [`Goal`] is a bound on flue's result, absolute or
//! relative to another contestant of the group.

use flue_report::units::three_digits;
use serde::Serialize;

/// Software under test.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum System {
    /// flue.
    Flue,
    /// Kernel sockets.
    Kernel,
    /// libfabric over its tcp provider.
    Libfabric,
    /// UCX over tcp.
    Ucx,
    /// iperf3, on kernel sockets.
    Iperf3,
    /// smoltcp, polled directly.
    Smoltcp,
    /// A TCP without loss recovery: an upper bound for any engine on a TAP.
    #[serde(rename = "bare TCP")]
    BareTcp,
    /// Raw frames.
    #[serde(rename = "TAP")]
    Tap,
}

/// Metric of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Metric {
    /// Payload in one direction, bits per second.
    BandwidthBps,
    /// Messages per second.
    MessagesPerSecond,
    /// Connections established per second.
    ConnectionsPerSecond,
    /// Median of half the round trip (for reads, of the whole operation), nanoseconds.
    LatencyP50Ns,
    /// 99th percentile of the same.
    LatencyP99Ns,
    /// CPU time of both ends, user and system, per 10^9 bytes of payload.
    CpuSecondsPerGbyte,
}

impl Metric {
    /// Returns the unit for display, and its size in base units.
    pub(super) const fn unit(self) -> (&'static str, f64) {
        match self {
            Self::BandwidthBps => ("Gbit/s", 1e9),
            Self::MessagesPerSecond => ("M/s", 1e6),
            Self::ConnectionsPerSecond => ("k/s", 1e3),
            Self::LatencyP50Ns | Self::LatencyP99Ns => ("µs", 1e3),
            Self::CpuSecondsPerGbyte => ("s/GB", 1.0),
        }
    }

    /// Formats `value`, given in base units, in the unit for display.
    pub(super) fn shown(self, value: f64) -> String {
        three_digits(value / self.unit().1)
    }
}

/// Placement of the two ends of a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Route {
    /// Two nodes, their TAPs on one bridge.
    TwoNodes,
    /// The client is a node, the server a kernel socket on its TAP.
    NodeToKernel,
    /// The client is a kernel socket, the server a node.
    KernelToNode,
    /// Two kernel sockets, connected by a veth pair.
    TwoKernels,
}

/// `flue perf` at both ends.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct PerfJob {
    /// Kind of the test.
    pub(super) kind: &'static str,
    /// Placement of the ends.
    pub(super) route: Route,
    /// Options of the client, which sends them to the server.
    pub(super) client: Vec<String>,
    /// Options of both ends.
    pub(super) ends: Vec<String>,
    /// Options of each end that is a node.
    pub(super) node: Vec<String>,
}

/// Method by which a contestant runs its workload.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Job {
    /// `flue perf` at both ends.
    Perf(PerfJob),
    /// The libfabric baseline.
    Libfabric {
        /// Operation: write, read or send.
        operation: &'static str,
        /// Message size, bytes.
        size_bytes: u64,
        /// Outstanding operations of a stream; `None`: ping-pong.
        depth: Option<u32>,
    },
    /// The libfabric baseline: concurrent connects of endpoints.
    LibfabricConnect {
        /// Number of endpoints.
        connections: u32,
    },
    /// A program of perftest under `flue run`.
    Perftest {
        /// Name of the program.
        program: &'static str,
        /// Message size, bytes.
        size_bytes: u64,
        /// True if each end has a node, false on kernel sockets.
        on_nodes: bool,
    },
    /// `rstream` under `flue run`.
    Rstream {
        /// Message size, bytes.
        size_bytes: u64,
        /// True if each end has a node, false on kernel sockets.
        on_nodes: bool,
    },
    /// `cmtime` under `flue run`, on kernel sockets.
    Cmtime {
        /// Connections established concurrently.
        connections: u32,
    },
    /// A test of `ucx_perftest`.
    Ucx {
        /// Name of the test.
        test: &'static str,
        /// Message size, bytes.
        size_bytes: u64,
        /// True for a ping-pong, false for a stream.
        latency: bool,
    },
    /// One stream of iperf3.
    Iperf3,
    /// `flue bench baseline KIND`.
    Baseline {
        /// Kind and its options.
        arguments: Vec<String>,
    },
}

impl Job {
    /// Returns the external software that the job requires.
    pub(super) const fn needs(&self) -> Need {
        match self {
            Self::Perf(_) | Self::Baseline { .. } => Need::Nothing,
            Self::Libfabric { .. } | Self::LibfabricConnect { .. } => Need::Libfabric,
            Self::Perftest { .. } => Need::Perftest,
            Self::Cmtime { .. } => Need::Cmtime,
            Self::Rstream { .. } => Need::Rstream,
            Self::Ucx { .. } => Need::Ucx,
            Self::Iperf3 => Need::Iperf3,
        }
    }
}

/// External software required by a job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Need {
    /// Nothing.
    Nothing,
    /// A C compiler and libfabric's headers.
    Libfabric,
    /// The programs of perftest.
    Perftest,
    /// `cmtime`.
    Cmtime,
    /// `rstream`.
    Rstream,
    /// `ucx_perftest`.
    Ucx,
    /// `iperf3`.
    Iperf3,
}

/// Participant of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Contestant {
    /// Name, unique within the group.
    pub(super) name: String,
    /// Software under test.
    pub(super) system: System,
    /// Method of the measurement.
    pub(super) job: Job,
}

/// Bound on flue's result.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "bound", content = "value")]
pub(super) enum Bound {
    /// At least this multiple of the peer's result.
    RatioAtLeast(f64),
    /// At most this multiple of the peer's result.
    RatioAtMost(f64),
    /// At least this value, in base units.
    AtLeast(f64),
    /// At most this value, in base units.
    AtMost(f64),
    /// At most the peer's result plus this value, in base units.
    ExcessAtMost(f64),
}

impl Bound {
    /// Returns true if `flue` meets the bound; `None` if the bound is relative and `other` is unknown.
    pub(super) fn is_met(self, flue: f64, other: Option<f64>) -> Option<bool> {
        match self {
            Self::AtLeast(least) => Some(flue >= least),
            Self::AtMost(most) => Some(flue <= most),
            Self::RatioAtLeast(factor) => other.map(|other| flue >= factor * other),
            Self::RatioAtMost(factor) => other.map(|other| flue <= factor * other),
            Self::ExcessAtMost(excess) => other.map(|other| flue <= other + excess),
        }
    }

    /// Returns true if the bound refers to no peer, so that it depends on the CPU.
    pub(super) const fn is_absolute(self) -> bool {
        matches!(self, Self::AtLeast(_) | Self::AtMost(_))
    }

    /// Returns the degree to which the bound is met: 1 exactly, more if better, for upper bounds as well.
    pub(super) fn progress(self, flue: f64, other: Option<f64>) -> Option<f64> {
        let progress = match self {
            Self::AtLeast(least) => flue / least,
            Self::AtMost(most) => most / flue,
            Self::RatioAtLeast(factor) => flue / (factor * other?),
            Self::RatioAtMost(factor) => factor * other? / flue,
            Self::ExcessAtMost(excess) => (other? + excess) / flue,
        };
        progress.is_finite().then_some(progress)
    }

    /// Formats the bound; `metric` is that of the result.
    pub(super) fn shown(self, metric: Metric) -> String {
        let (unit, _) = metric.unit();
        match self {
            Self::RatioAtLeast(factor) => format!("≥ {factor} ×"),
            Self::RatioAtMost(factor) => format!("≤ {factor} ×"),
            Self::AtLeast(least) => format!("≥ {} {unit}", metric.shown(least)),
            Self::AtMost(most) => format!("≤ {} {unit}", metric.shown(most)),
            Self::ExcessAtMost(excess) => format!("≤ peer + {} {unit}", metric.shown(excess)),
        }
    }
}

/// Goal for flue.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Goal {
    /// Metric of the goal.
    pub(super) metric: Metric,
    /// Contestant to which relative bounds refer; `None` for absolute ones.
    pub(super) peer: Option<String>,
    /// Bound of the goal; `None` if there is only a stretch goal, or a comparison.
    pub(super) goal: Option<Bound>,
    /// Bound of the stretch goal.
    pub(super) stretch: Option<Bound>,
}

/// Chart that contains a group as a point.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Panel {
    /// RDMA Write over message size.
    Write,
    /// RDMA Read over message size.
    Read,
    /// Send and Receive over message size.
    Send,
    /// RDMA Write over the number of connections.
    Connections,
    /// RDMA Write over the number of TAP queues.
    Queues,
}

/// One workload.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Group {
    /// Name for `--only` and in the documents.
    pub(super) id: String,
    /// Description of the workload.
    pub(super) title: String,
    /// Main metric.
    pub(super) metric: Metric,
    /// Chart, and position on its horizontal axis.
    pub(super) point: Option<(Panel, u64)>,
    /// True for a row of the table of goals, false for a mere point of a chart.
    pub(super) is_row: bool,
    /// flue, then its peers.
    pub(super) contestants: Vec<Contestant>,
    /// Goals for flue.
    pub(super) goals: Vec<Goal>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_displayed_in_their_unit() {
        assert_eq!(Metric::LatencyP50Ns.shown(3_104.0), "3.10");
        assert_eq!(Metric::BandwidthBps.shown(67.4e9), "67.4");
    }

    #[test]
    fn bounds_have_verdict_and_progress() {
        let least = Bound::RatioAtLeast(0.75);
        assert_eq!(least.is_met(60.0, Some(80.0)), Some(true));
        assert_eq!(least.is_met(59.0, Some(80.0)), Some(false));
        assert_eq!(least.is_met(59.0, None), None);
        assert_eq!(least.progress(60.0, Some(80.0)), Some(1.0));
        let most = Bound::RatioAtMost(0.5);
        assert_eq!(most.is_met(2.0, Some(4.0)), Some(true));
        assert_eq!(most.is_met(2.1, Some(4.0)), Some(false));
        assert_eq!(most.progress(1.0, Some(4.0)), Some(2.0));
        assert_eq!(Bound::AtLeast(3e6).is_met(3e6, None), Some(true));
        assert_eq!(Bound::AtLeast(3e6).progress(1.5e6, None), Some(0.5));
        assert_eq!(Bound::AtMost(30e3).is_met(30_001.0, None), Some(false));
        assert_eq!(Bound::AtMost(30e3).progress(15e3, None), Some(2.0));
        let excess = Bound::ExcessAtMost(500.0);
        assert_eq!(excess.is_met(1_950.0, Some(1_450.0)), Some(true));
        assert_eq!(excess.is_met(1_951.0, Some(1_450.0)), Some(false));
        assert_eq!(most.progress(0.0, Some(4.0)), None, "progress is undefined for zero");
    }

    #[test]
    fn bounds_are_displayed_with_units() {
        assert_eq!(Bound::RatioAtLeast(0.75).shown(Metric::BandwidthBps), "≥ 0.75 ×");
        assert_eq!(Bound::AtLeast(3e6).shown(Metric::MessagesPerSecond), "≥ 3.00 M/s");
        assert_eq!(Bound::AtMost(30e3).shown(Metric::LatencyP99Ns), "≤ 30.0 µs");
        assert_eq!(Bound::ExcessAtMost(500.0).shown(Metric::LatencyP50Ns), "≤ peer + 0.500 µs");
    }
}
