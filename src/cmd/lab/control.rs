//! What the lab and its two node processes tell each other: JSON, one object a line, the orders on the
//! node's standard input, the reports on its standard output.

use std::{fmt, net::IpAddr, path::PathBuf};

use clap::ValueEnum;
use host_stack::stream::OffloadState;
use serde::{Deserialize, Serialize};

use super::script::TransferKind;
use crate::{adapter::Transport, failure::Failure, options::NodeSetup};

/// Longest line, bytes. The longest of ours has a failure's text in it.
pub const LINE_BYTES_MAX: u64 = 64 * 1024;

/// Which node.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, ValueEnum,
)]
#[value(rename_all = "verbatim")]
pub enum Side {
    /// Connects; has the file.
    A,
    /// Listens; gets it.
    B,
}

impl Side {
    /// Both, in order.
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    /// 0 for A, 1 for B.
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A => "A",
            Self::B => "B",
        })
    }
}

/// All that a node has to know.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodePlan {
    /// The node, with its bridge.
    pub setup: NodeSetup,
    /// What carries the queue pair's byte stream. Kernel sockets need of the node no more than addresses, MTU, seed,
    /// capture and control socket.
    pub transport: Transport,
    /// The interface that leads to the other node; `None`: both are on this machine's loopback.
    pub cable: Option<String>,
    /// Where B listens and A connects to.
    pub target: IpAddr,
    /// The port there.
    pub port: u16,
    /// The file that A passes.
    pub file: PathBuf,
    /// Octets of one Send, Write or Read.
    pub chunk_bytes: u32,
    /// Receives that B posts ahead.
    pub window_receives: u32,
}

/// From the lab to a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Order {
    /// The cable is there: make bridge and TAP, start the node; B listens.
    Start {
        /// How.
        plan: Box<NodePlan>,
    },
    /// To A: B listens.
    Connect,
}

/// Counters of a connection, or how much they have grown. `None`: unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Segments sent, counting each piece of a super-segment.
    pub segments: Option<u64>,
    /// Of these, segments that held an octet sent before.
    pub retransmitted_segments: Option<u64>,
    /// Of these, segments with PSH.
    pub psh_segments: Option<u64>,
}

impl Counters {
    /// How much they have grown since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        let grown = |now: Option<u64>, then: Option<u64>| {
            now.zip(then).map(|(now, then)| now.saturating_sub(then))
        };
        let Self { segments, retransmitted_segments, psh_segments } = self;
        Self {
            segments: grown(segments, earlier.segments),
            retransmitted_segments: grown(retransmitted_segments, earlier.retransmitted_segments),
            psh_segments: grown(psh_segments, earlier.psh_segments),
        }
    }
}

/// How FPDUs are cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FpduCut {
    /// One for each segment.
    Emss,
    /// As large as a super-segment.
    SuperSegment,
}

impl fmt::Display for FpduCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Emss => "one a segment",
            Self::SuperSegment => "one a super-segment",
        })
    }
}

/// What MPA and the connection's set-up came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Negotiated {
    /// MPA revision.
    pub mpa_revision: Option<u8>,
    /// FPDUs carry a CRC.
    pub crc: Option<bool>,
    /// FPDUs carry markers.
    pub markers: Option<bool>,
    /// RDMA Reads from the peer at once.
    pub inbound_reads: Option<u32>,
    /// RDMA Reads to the peer at once.
    pub outbound_reads: Option<u32>,
    /// How this node cuts the FPDUs that it sends.
    pub fpdus: Option<FpduCut>,
}

/// From a node to the lab.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub enum Report {
    /// The node's process is in its own network namespace.
    Namespace {
        /// The process.
        pid: u32,
    },
    /// The TAP is there and is a port of the bridge; frames pass, and the node is ready.
    Linked {
        /// Frames carry a virtio-net header.
        vnet_header: Option<bool>,
    },
    /// B: listens.
    Listening,
    /// The connection's data path has got to another place.
    Moved {
        /// Where.
        state: OffloadState,
        /// The time since the node connects or listens, nanoseconds.
        at_ns: u64,
    },
    /// The queue pair is connected.
    Connected {
        /// What was negotiated.
        negotiated: Negotiated,
    },
    /// A passage has ended; what this node knows of it.
    Passed {
        /// Which.
        passage: TransferKind,
        /// Octets of the file.
        bytes: u64,
        /// From its beginning until B had said that all has arrived, nanoseconds.
        time_ns: u64,
        /// What this node's side of the connection has sent meanwhile.
        counters: Counters,
        /// Where the data path was.
        state: OffloadState,
    },
    /// The digests of a passage agree.
    Verified {
        /// Which.
        passage: TransferKind,
        /// SHA-256, hexadecimal.
        sha256: String,
    },
    /// The queue pair has disconnected gracefully and the connection is gone.
    Closed {
        /// Of the connection's whole life.
        counters: Counters,
    },
    /// It did not work. The node ends.
    Failed {
        /// Why.
        failure: Failure,
    },
    /// It did. The node ends.
    Done,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_survive_a_line() {
        let reports = [
            Report::Namespace { pid: 7 },
            Report::Passed {
                passage: TransferKind::Write,
                bytes: 1,
                time_ns: u64::MAX,
                counters: Counters { segments: Some(3), ..Counters::default() },
                state: OffloadState::Offloaded,
            },
            Report::Failed { failure: Failure::lacking("a\n\"b\"").with_hint("c") },
            Report::Done,
        ];
        for report in reports {
            let line = serde_json::to_string(&report).unwrap();
            assert!(!line.contains('\n'));
            assert_eq!(serde_json::from_str::<Report>(&line).unwrap(), report);
        }
    }

    #[test]
    fn unknown_counters_stay_unknown() {
        let then = Counters { segments: Some(10), psh_segments: None, ..Counters::default() };
        let now =
            Counters { segments: Some(25), psh_segments: Some(1), retransmitted_segments: Some(2) };
        let grown = Counters { segments: Some(15), ..Counters::default() };
        assert_eq!(now.since(then), grown);
    }
}
