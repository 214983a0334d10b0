//! Protocol between the lab and its two node processes: JSON, one object per line. Orders are written to the node's
//! standard input, reports to its standard output.

use std::{fmt, net::IpAddr, path::PathBuf};

use clap::ValueEnum;
use host_stack::stream::OffloadState;
use serde::{Deserialize, Serialize};

use super::script::TransferKind;
use crate::{adapter::Transport, failure::Failure, options::NodeSetup, table::cell};

/// Longest line, bytes. The longest line of this implementation contains the text of a failure.
pub const LINE_BYTES_MAX: u64 = 64 * 1024;

/// Node.
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
    /// Both sides, A first.
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    /// Returns 0 for A, 1 for B.
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

/// Configuration of a node process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodePlan {
    /// Setup of the node, with its bridge.
    pub setup: NodeSetup,
    /// Transport of the queue pair's byte stream. Kernel sockets use only addresses, MTU, seed, capture and control
    /// socket of the setup.
    pub transport: Transport,
    /// Interface to the other node; `None` if both nodes use the loopback interface of this machine.
    pub cable: Option<String>,
    /// Address where B listens and to which A connects.
    pub target: IpAddr,
    /// Port where B listens.
    pub port: u16,
    /// File transferred by A.
    pub file: PathBuf,
    /// Bytes of one Send, Write or Read.
    pub chunk_bytes: u32,
    /// Receives that B posts ahead.
    pub window_receives: u32,
}

/// Order from the lab to a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Order {
    /// The cable exists: create bridge and TAP, start the node; B listens.
    Start {
        /// Configuration of the node.
        plan: Box<NodePlan>,
    },
    /// To A: B listens.
    Connect,
}

/// Counters of a connection, or their increase. `None`: unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Segments sent, counted after segmentation.
    pub segments: Option<u64>,
    /// Segments among these that contain a byte sent before.
    pub retransmitted_segments: Option<u64>,
    /// Segments among these with PSH.
    pub psh_segments: Option<u64>,
}

impl Counters {
    /// Returns the increase since `earlier`.
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

/// FPDU size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FpduCut {
    /// One FPDU per segment (EMSS).
    Emss,
    /// FPDUs as large as a GSO packet.
    #[serde(rename = "gso_packet")]
    GsoPacket,
    /// FPDUs as large as MPA allows.
    Max,
}

impl fmt::Display for FpduCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Emss => "one per segment",
            Self::GsoPacket => "one per GSO packet",
            Self::Max => "of up to 64 KiB",
        })
    }
}

/// Parameters negotiated by MPA and the connection setup.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Negotiated {
    /// MPA revision.
    pub mpa_revision: Option<u8>,
    /// True if FPDUs carry a CRC.
    pub crc: Option<bool>,
    /// True if FPDUs carry markers.
    pub markers: Option<bool>,
    /// IRD: RDMA Reads from the peer that may be outstanding.
    pub inbound_reads: Option<u32>,
    /// ORD: RDMA Reads to the peer that may be outstanding.
    pub outbound_reads: Option<u32>,
    /// Size of the FPDUs that this node sends.
    pub fpdus: Option<FpduCut>,
}

impl fmt::Display for Negotiated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mpa_revision, crc, markers, inbound_reads, outbound_reads, fpdus } = *self;
        let switch = |on| match on {
            Some(true) => "on",
            Some(false) => "off",
            None => "unknown",
        };
        write!(
            f,
            "MPA revision {}, CRC {}, markers {}, IRD {}, ORD {}, FPDUs {}",
            cell(mpa_revision),
            switch(crc),
            switch(markers),
            cell(inbound_reads),
            cell(outbound_reads),
            cell(fpdus)
        )
    }
}

/// Report from a node to the lab.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub enum Report {
    /// The node process runs in its own network namespace.
    Namespace {
        /// Process id.
        pid: u32,
    },
    /// The TAP is a port of the bridge, frames are forwarded, and the node is ready.
    Linked {
        /// True if frames carry a virtio-net header.
        vnet_header: Option<bool>,
    },
    /// B listens.
    Listening,
    /// The offload state of the connection changed.
    Moved {
        /// New offload state.
        state: OffloadState,
        /// Time since connect or listen, nanoseconds.
        at_ns: u64,
    },
    /// The queue pair is connected.
    Connected {
        /// Negotiated parameters.
        negotiated: Negotiated,
    },
    /// Progress of a transfer, from the node that requests it.
    Progress {
        /// Kind of the transfer.
        passage: TransferKind,
        /// Bytes of the requests that have completed.
        bytes: u64,
    },
    /// A transfer is complete; this node's measurements.
    Passed {
        /// Kind of the transfer.
        passage: TransferKind,
        /// Bytes of the file.
        bytes: u64,
        /// Time from the start of the transfer until B confirmed the arrival of all bytes, nanoseconds.
        time_ns: u64,
        /// Segments sent by this node during the transfer.
        counters: Counters,
        /// Offload state of the connection.
        state: OffloadState,
    },
    /// The digests of a transfer match.
    Verified {
        /// Kind of the transfer.
        passage: TransferKind,
        /// SHA-256, hexadecimal.
        sha256: String,
    },
    /// The queue pair disconnected gracefully and the connection is closed.
    Closed {
        /// Counters over the lifetime of the connection.
        counters: Counters,
    },
    /// The run failed. The node exits.
    Failed {
        /// Reason for the failure.
        failure: Failure,
    },
    /// The run succeeded. The node exits.
    Done,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_round_trips_through_one_line() {
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
