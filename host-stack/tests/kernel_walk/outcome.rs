//! Final counters of kernel, engines and monitor, and their limits.

use std::time::Duration;

use flue_test_support::netns::Namespace;
use flue_test_support::tcp_validator::Counts;
use offload_engine::engine::EngineStats;

use crate::network::Drops;

/// Maximum number of the node's segments sent twice: ten, and one in a hundred. A tail loss probe is sent after 10 ms
/// of silence (RFC 8985 §7), and on a busy machine the answering thread may wait that long for a CPU.
const PROBES_MAX: u64 = 10;
const SEGMENTS_PER_PROBE: u64 = 100;

/// Counters of the kernel that show errors of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Kernel {
    retransmitted: u64,
    loss_probes: u64,
    fast_retransmits: u64,
    timeouts: u64,
    resets_sent: u64,
    peer_resets: u64,
    old_timestamps: u64,
    reneging: u64,
    bad_segments: u64,
    challenges: u64,
}

impl Kernel {
    pub(crate) fn of(namespace: &Namespace) -> Self {
        Self {
            retransmitted: namespace.counter("TcpRetransSegs"),
            loss_probes: namespace.counter("TcpExtTCPLossProbes"),
            fast_retransmits: namespace.counter("TcpExtTCPFastRetrans"),
            timeouts: namespace.counter("TcpExtTCPTimeouts"),
            resets_sent: namespace.counter("TcpOutRsts"),
            peer_resets: namespace.counter("TcpEstabResets"),
            old_timestamps: namespace.counter("TcpExtPAWSEstab"),
            reneging: namespace.counter("TcpExtTCPSACKReneging"),
            bad_segments: namespace.counter("TcpInErrs"),
            challenges: namespace.counter("TcpExtTCPChallengeACK"),
        }
    }
}

/// Result of a run.
#[derive(Debug)]
#[expect(dead_code, reason = "most fields are read only through Debug")]
pub(crate) struct Outcome {
    pub(crate) offloads: u64,
    pub(crate) uploads: u64,
    pub(crate) took: Duration,
    pub(crate) kernel: Kernel,
    pub(crate) lost: Drops,
    pub(crate) node: Counts,
    /// Statistics of each queue's engine.
    pub(crate) engines: Vec<EngineStats>,
}

impl Outcome {
    /// True without RSTs, old segments, withdrawn SACK blocks, timeouts and segments considered lost, and with few
    /// segments sent twice: tail loss probes.
    pub(crate) fn is_clean(&self) -> bool {
        let Kernel { retransmitted, loss_probes, .. } = self.kernel;
        let rest = Kernel { retransmitted: 0, loss_probes: 0, ..self.kernel };
        let probes_max = PROBES_MAX + self.node.segments / SEGMENTS_PER_PROBE;
        rest == Kernel::default()
            && retransmitted <= loss_probes
            && self.node.retransmitted <= probes_max
            && self.node.resets == 0
    }

    /// As `is_clean`, except that a migration may have reordered segments within the node, which the peer may have
    /// considered lost.
    pub(crate) fn lost_nothing(&self) -> bool {
        let Kernel { fast_retransmits, retransmitted, loss_probes, .. } = self.kernel;
        let rest = Kernel { fast_retransmits: 0, retransmitted: 0, loss_probes: 0, ..self.kernel };
        rest == Kernel::default()
            && fast_retransmits <= self.offloads + self.uploads
            && retransmitted <= fast_retransmits + loss_probes
            && self.node.resets == 0
    }

    /// True if there were retransmissions of any kind and no other anomaly, and frames were lost in both directions. No
    /// connection is reset: the monitor sees no RST in either direction before both FINs are acknowledged. After that a
    /// late duplicate may arrive at a closed connection on either side, and is answered with RST (RFC 9293 §3.10.7.1);
    /// the other end is in TIME-WAIT.
    pub(crate) fn survived_loss(&self) -> bool {
        let rest = Kernel {
            retransmitted: 0,
            loss_probes: 0,
            fast_retransmits: 0,
            timeouts: 0,
            resets_sent: 0,
            ..self.kernel
        };
        let Drops { to_node, to_kernel } = self.lost;
        rest == Kernel::default() && self.node.peer_resets == 0 && to_node > 0 && to_kernel > 0
    }
}
