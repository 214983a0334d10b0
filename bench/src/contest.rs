//! Types of the contest: workloads, contestants, metrics and goals.
//!
//! A [`Group`] is one workload that several contestants run in turns, flue first. A [`Job`] is how a contestant runs
//! it; groups with the same job share its samples. A [`Goal`] is a bound on flue's figure, absolute or relative to
//! another contestant of the group.

use flue_report::units::three_digits;
use serde::Serialize;

/// The software that is measured.
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

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Metric {
    /// Payload in one direction, bits per second.
    BandwidthBps,
    /// Messages per second.
    MessagesPerSecond,
    /// Connections made per second.
    ConnectionsPerSecond,
    /// Median of half the round trip (for reads, of the whole operation), ns.
    LatencyP50Ns,
    /// CPU time of both ends, user and system, for 10^9 bytes of payload.
    CpuSecondsPerGbyte,
}

impl Metric {
    /// The unit for display, and its size in base units.
    pub(super) const fn unit(self) -> (&'static str, f64) {
        match self {
            Self::BandwidthBps => ("Gbit/s", 1e9),
            Self::MessagesPerSecond => ("M/s", 1e6),
            Self::ConnectionsPerSecond => ("k/s", 1e3),
            Self::LatencyP50Ns => ("µs", 1e3),
            Self::CpuSecondsPerGbyte => ("s/GB", 1.0),
        }
    }

    /// `value`, given in base units, in the unit for display.
    pub(super) fn shown(self, value: f64) -> String {
        three_digits(value / self.unit().1)
    }
}

/// Where the two ends of a `flue perf` run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Route {
    /// Two nodes, their TAPs on one bridge.
    TwoNodes,
    /// The client is a node, the server a kernel socket behind its TAP.
    NodeToKernel,
    /// The client is a kernel socket, the server a node.
    KernelToNode,
    /// Two kernel sockets, joined by a veth pair.
    TwoKernels,
}

/// `flue perf` at both ends.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct PerfJob {
    /// The kind of test.
    pub(super) kind: &'static str,
    /// Where the ends run.
    pub(super) route: Route,
    /// Options of the client, which passes them on to the server.
    pub(super) client: Vec<String>,
    /// Options of both ends.
    pub(super) ends: Vec<String>,
    /// Options of each end that is a node.
    pub(super) node: Vec<String>,
}

/// How a contestant runs its workload.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Job {
    /// `flue perf` at both ends.
    Perf(PerfJob),
    /// The libfabric yardstick.
    Libfabric {
        /// write, read or send.
        operation: &'static str,
        /// Bytes of a message.
        size_bytes: u64,
        /// Outstanding operations of a stream; `None`: ping-pong.
        depth: Option<u32>,
    },
    /// The libfabric yardstick: so many endpoints are connected at once.
    LibfabricConnect {
        /// How many.
        connections: u32,
    },
    /// A program of perftest under `flue run`, on kernel sockets.
    Perftest {
        /// Its name.
        program: &'static str,
        /// Bytes of a message.
        size_bytes: u64,
    },
    /// `cmtime` under `flue run`, on kernel sockets.
    Cmtime {
        /// Connections that it makes at once.
        connections: u32,
    },
    /// A test of `ucx_perftest`.
    Ucx {
        /// The name of the test.
        test: &'static str,
        /// Bytes of a message.
        size_bytes: u64,
        /// A ping-pong, not a stream.
        latency: bool,
    },
    /// One stream of iperf3.
    Iperf3,
    /// `flue bench yardstick KIND`.
    Yardstick {
        /// The kind and its options.
        arguments: Vec<String>,
    },
}

impl Job {
    /// What must be installed for it.
    pub(super) const fn needs(&self) -> Need {
        match self {
            Self::Perf(_) | Self::Yardstick { .. } => Need::Nothing,
            Self::Libfabric { .. } | Self::LibfabricConnect { .. } => Need::Libfabric,
            Self::Perftest { .. } => Need::Perftest,
            Self::Cmtime { .. } => Need::Cmtime,
            Self::Ucx { .. } => Need::Ucx,
            Self::Iperf3 => Need::Iperf3,
        }
    }
}

/// External software that a job needs.
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
    /// `ucx_perftest`.
    Ucx,
    /// `iperf3`.
    Iperf3,
}

/// A participant of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Contestant {
    /// Name, unique within the group.
    pub(super) name: String,
    /// What is measured.
    pub(super) system: System,
    /// How it is measured.
    pub(super) job: Job,
}

/// A bound on flue's figure.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "bound", content = "value")]
pub(super) enum Bound {
    /// At least this multiple of the peer's.
    RatioAtLeast(f64),
    /// At most this multiple of the peer's.
    RatioAtMost(f64),
    /// At least this, in base units.
    AtLeast(f64),
    /// At most the peer's plus this, in base units.
    ExcessAtMost(f64),
}

impl Bound {
    /// Whether `flue` meets the bound; `None` if the bound is relative and `other` is unknown.
    pub(super) fn is_met(self, flue: f64, other: Option<f64>) -> Option<bool> {
        match self {
            Self::AtLeast(least) => Some(flue >= least),
            Self::RatioAtLeast(factor) => other.map(|other| flue >= factor * other),
            Self::RatioAtMost(factor) => other.map(|other| flue <= factor * other),
            Self::ExcessAtMost(excess) => other.map(|other| flue <= other + excess),
        }
    }

    /// How well the bound is met: 1 exactly, more if better, for bounds from above as well.
    pub(super) fn progress(self, flue: f64, other: Option<f64>) -> Option<f64> {
        let progress = match self {
            Self::AtLeast(least) => flue / least,
            Self::RatioAtLeast(factor) => flue / (factor * other?),
            Self::RatioAtMost(factor) => factor * other? / flue,
            Self::ExcessAtMost(excess) => (other? + excess) / flue,
        };
        progress.is_finite().then_some(progress)
    }

    /// For display; `metric` is that of the figure.
    pub(super) fn shown(self, metric: Metric) -> String {
        let (unit, _) = metric.unit();
        match self {
            Self::RatioAtLeast(factor) => format!("≥ {factor} ×"),
            Self::RatioAtMost(factor) => format!("≤ {factor} ×"),
            Self::AtLeast(least) => format!("≥ {} {unit}", metric.shown(least)),
            Self::ExcessAtMost(excess) => format!("≤ peer + {} {unit}", metric.shown(excess)),
        }
    }
}

/// A goal for flue.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Goal {
    /// The figure.
    pub(super) metric: Metric,
    /// The contestant that relative bounds refer to; `None` for absolute ones.
    pub(super) peer: Option<String>,
    /// The goal; `None` if there is only a stretch goal.
    pub(super) goal: Option<Bound>,
    /// The stretch goal.
    pub(super) stretch: Option<Bound>,
}

/// The chart that a group is a point of.
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
    /// Name, for `--only` and in the documents.
    pub(super) id: String,
    /// Description of the workload.
    pub(super) title: String,
    /// The main figure.
    pub(super) metric: Metric,
    /// The chart, and the position on its horizontal axis.
    pub(super) point: Option<(Panel, u64)>,
    /// A row of the table of goals, not just a point of a chart.
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
    fn figures_are_shown_in_their_unit() {
        assert_eq!(Metric::LatencyP50Ns.shown(3_104.0), "3.10");
        assert_eq!(Metric::BandwidthBps.shown(67.4e9), "67.4");
    }

    #[test]
    fn bounds_say_whether_and_how_well_they_are_met() {
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
        let excess = Bound::ExcessAtMost(500.0);
        assert_eq!(excess.is_met(1_950.0, Some(1_450.0)), Some(true));
        assert_eq!(excess.is_met(1_951.0, Some(1_450.0)), Some(false));
        assert_eq!(most.progress(0.0, Some(4.0)), None, "no figure is no progress");
    }

    #[test]
    fn bounds_are_displayed_with_units() {
        assert_eq!(Bound::RatioAtLeast(0.75).shown(Metric::BandwidthBps), "≥ 0.75 ×");
        assert_eq!(Bound::AtLeast(3e6).shown(Metric::MessagesPerSecond), "≥ 3.00 M/s");
        assert_eq!(Bound::ExcessAtMost(500.0).shown(Metric::LatencyP50Ns), "≤ peer + 0.500 µs");
    }
}
