//! The words of the contest: what is measured of whom, and what would be good enough.
//!
//! A [`Group`] is one piece of work that several contestants do in turns: flue first, its peers after it.
//! A [`Job`] is how one of them does it; two groups with the same job share its samples. A [`Goal`] is a
//! bound on flue's figure: by itself, or beside that of another contestant of its group.

use flue_report::units::three_digits;
use serde::Serialize;

/// Whose program it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum System {
    /// This one.
    Flue,
    /// Sockets of the kernel.
    Kernel,
    /// libfabric over its tcp provider.
    Libfabric,
    /// UCX over tcp.
    Ucx,
    /// iperf3: sockets of the kernel again, by somebody else.
    Iperf3,
    /// smoltcp's own loop.
    Smoltcp,
    /// A TCP without recovery: what a TAP lets any engine do.
    #[serde(rename = "bare TCP")]
    BareTcp,
    /// Frames without a protocol.
    #[serde(rename = "TAP")]
    Tap,
}

/// What a figure is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Metric {
    /// Payload in one direction, bits per second.
    BandwidthBps,
    /// Messages per second.
    MessagesPerSecond,
    /// Median of half the round trip (of the whole operation for reads), ns.
    LatencyP50Ns,
    /// Processor time of both ends, user and system, for 10^9 bytes of payload.
    CpuSecondsPerGbyte,
}

impl Metric {
    /// What people read it in, and how many base units that is.
    pub(super) const fn unit(self) -> (&'static str, f64) {
        match self {
            Self::BandwidthBps => ("Gbit/s", 1e9),
            Self::MessagesPerSecond => ("M/s", 1e6),
            Self::LatencyP50Ns => ("µs", 1e3),
            Self::CpuSecondsPerGbyte => ("s/GB", 1.0),
        }
    }

    /// `value`, in base units, as people read it, without its unit.
    pub(super) fn shown(self, value: f64) -> String {
        three_digits(value / self.unit().1)
    }
}

/// Where the two ends of a `flue perf` run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Route {
    /// Two nodes, their TAPs on one bridge.
    TwoNodes,
    /// The client is a node, the server the kernel at the other side of its TAP.
    NodeToKernel,
    /// The client is the kernel, the server a node.
    KernelToNode,
    /// Two kernels, joined by a veth pair.
    TwoKernels,
}

/// `flue perf` at both ends.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct PerfJob {
    /// What it measures.
    pub(super) kind: &'static str,
    /// Where.
    pub(super) route: Route,
    /// Options of the client, who tells the server.
    pub(super) client: Vec<String>,
    /// Options of both ends.
    pub(super) ends: Vec<String>,
    /// Options of every node among the ends.
    pub(super) node: Vec<String>,
}

/// How a contestant does its work.
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
        /// Ping-pong, or a stream of so many outstanding at once.
        depth: Option<u32>,
    },
    /// A test of `ucx_perftest`.
    Ucx {
        /// Its name there.
        test: &'static str,
        /// Bytes of a message.
        size_bytes: u64,
        /// Ping-pong.
        latency: bool,
    },
    /// One stream of iperf3.
    Iperf3,
    /// `flue bench yardstick KIND`.
    Yardstick {
        /// Kind and options.
        arguments: Vec<String>,
    },
}

impl Job {
    /// What has to be found for it.
    pub(super) const fn needs(&self) -> Need {
        match self {
            Self::Perf(_) | Self::Yardstick { .. } => Need::Nothing,
            Self::Libfabric { .. } => Need::Libfabric,
            Self::Ucx { .. } => Need::Ucx,
            Self::Iperf3 => Need::Iperf3,
        }
    }
}

/// What a job needs that flue does not bring along.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Need {
    /// Nothing.
    Nothing,
    /// A C compiler and libfabric's headers.
    Libfabric,
    /// `ucx_perftest`.
    Ucx,
    /// `iperf3`.
    Iperf3,
}

/// One of those who do a group's work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Contestant {
    /// Names it within its group.
    pub(super) name: String,
    /// Whose program.
    pub(super) system: System,
    /// How.
    pub(super) job: Job,
}

/// A bound on flue's figure.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "bound", content = "value")]
pub(super) enum Bound {
    /// At least so many times the other's.
    RatioAtLeast(f64),
    /// At most so many times the other's.
    RatioAtMost(f64),
    /// At least this, in base units.
    AtLeast(f64),
    /// At most so much more than the other's, in base units.
    ExcessAtMost(f64),
}

impl Bound {
    /// Whether `flue` keeps it beside `other`; unknown when it speaks of another that there is not.
    pub(super) fn is_kept(self, flue: f64, other: Option<f64>) -> Option<bool> {
        match self {
            Self::AtLeast(least) => Some(flue >= least),
            Self::RatioAtLeast(factor) => other.map(|other| flue >= factor * other),
            Self::RatioAtMost(factor) => other.map(|other| flue <= factor * other),
            Self::ExcessAtMost(excess) => other.map(|other| flue <= other + excess),
        }
    }

    /// How far it is kept: 1 just so, more with room to spare, whichever way the metric goes.
    pub(super) fn progress(self, flue: f64, other: Option<f64>) -> Option<f64> {
        let progress = match self {
            Self::AtLeast(least) => flue / least,
            Self::RatioAtLeast(factor) => flue / (factor * other?),
            Self::RatioAtMost(factor) => factor * other? / flue,
            Self::ExcessAtMost(excess) => (other? + excess) / flue,
        };
        progress.is_finite().then_some(progress)
    }

    /// As people read it; `metric` is that of the figure.
    pub(super) fn shown(self, metric: Metric) -> String {
        let (unit, _) = metric.unit();
        match self {
            Self::RatioAtLeast(factor) => format!("≥ {factor} ×"),
            Self::RatioAtMost(factor) => format!("≤ {factor} ×"),
            Self::AtLeast(least) => format!("≥ {} {unit}", metric.shown(least)),
            Self::ExcessAtMost(excess) => format!("≤ it + {} {unit}", metric.shown(excess)),
        }
    }
}

/// What would be good enough, and what would be better still.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Goal {
    /// Of which figure.
    pub(super) metric: Metric,
    /// The contestant it is held against; none for a bound by itself.
    pub(super) beside: Option<String>,
    /// Good enough. None: a stretch only.
    pub(super) goal: Option<Bound>,
    /// Better still.
    pub(super) stretch: Option<Bound>,
}

/// The picture a group is a point of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Panel {
    /// RDMA Write over message size.
    Write,
    /// RDMA Read over message size.
    Read,
    /// Send and Receive over message size.
    Send,
    /// RDMA Write over connections.
    Connections,
    /// RDMA Write over queues of the TAP.
    Queues,
}

/// One piece of work, done in turns.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Group {
    /// Names it: for `--only`, and in the documents.
    pub(super) id: String,
    /// What the work is.
    pub(super) title: String,
    /// The figure it is about.
    pub(super) metric: Metric,
    /// The picture, and where on its axis.
    pub(super) point: Option<(Panel, u64)>,
    /// It is one of the table of goals, not just a point of a picture.
    pub(super) is_row: bool,
    /// flue, and then the others.
    pub(super) contestants: Vec<Contestant>,
    /// What is wanted.
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
    fn bounds_say_whether_and_how_far_they_are_kept() {
        let least = Bound::RatioAtLeast(0.75);
        assert_eq!(least.is_kept(60.0, Some(80.0)), Some(true));
        assert_eq!(least.is_kept(59.0, Some(80.0)), Some(false));
        assert_eq!(least.is_kept(59.0, None), None);
        assert_eq!(least.progress(60.0, Some(80.0)), Some(1.0));
        let most = Bound::RatioAtMost(0.5);
        assert_eq!(most.is_kept(2.0, Some(4.0)), Some(true));
        assert_eq!(most.is_kept(2.1, Some(4.0)), Some(false));
        assert_eq!(most.progress(1.0, Some(4.0)), Some(2.0));
        assert_eq!(Bound::AtLeast(3e6).is_kept(3e6, None), Some(true));
        assert_eq!(Bound::AtLeast(3e6).progress(1.5e6, None), Some(0.5));
        let excess = Bound::ExcessAtMost(500.0);
        assert_eq!(excess.is_kept(1_950.0, Some(1_450.0)), Some(true));
        assert_eq!(excess.is_kept(1_951.0, Some(1_450.0)), Some(false));
        assert_eq!(most.progress(0.0, Some(4.0)), None, "no figure is no progress");
    }

    #[test]
    fn bounds_read_as_people_write_them() {
        assert_eq!(Bound::RatioAtLeast(0.75).shown(Metric::BandwidthBps), "≥ 0.75 ×");
        assert_eq!(Bound::AtLeast(3e6).shown(Metric::MessagesPerSecond), "≥ 3.00 M/s");
        assert_eq!(Bound::ExcessAtMost(500.0).shown(Metric::LatencyP50Ns), "≤ it + 0.500 µs");
    }
}
