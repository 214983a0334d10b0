//! Cost limits of a message, and the table of its actual costs.

use std::{cmp::Ordering, fmt};

use flue_guard::{counting::Usage, rdma::Operation};

/// Links between the nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LinkKind {
    /// In memory, on virtual time; the core is called directly.
    Memory,
    /// TAPs on a bridge, with manual progress.
    Taps,
    /// Kernel sockets on loopback, driven by the consumer.
    Sockets,
}

/// Traffic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    /// Lists of a stream, the same number each way.
    Stream {
        /// Size of a list.
        bytes: usize,
    },
    /// Messages one way.
    Rdma {
        /// RDMA operation.
        operation: Operation,
        /// Size of a message.
        bytes: usize,
    },
}

impl Work {
    /// All kinds of traffic, in the order of the table.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        BUDGETS.into_iter().map(|(work, ..)| work)
    }

    const fn bytes(self) -> usize {
        match self {
            Self::Stream { bytes } | Self::Rdma { bytes, .. } => bytes,
        }
    }

    /// Number of warm-up messages, and number of counted messages.
    pub(crate) const fn messages(self) -> (u64, u64) {
        match self.bytes() {
            0..=2048 => (40_000, 2_000),
            2049..=100_000 => (12_000, 500),
            _ => (600, 50),
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Stream { .. } => "stream, both ways",
            Self::Rdma { operation: Operation::Write, .. } => "RDMA Write",
            Self::Rdma { operation: Operation::Send, .. } => "Send/Receive",
            Self::Rdma { operation: Operation::Read, .. } => "RDMA Read",
            Self::Rdma { operation: Operation::FetchAdd, .. } => "FetchAdd",
            Self::Rdma { operation: Operation::Immediate, .. } => "immediate data",
            Self::Rdma { operation: Operation::RcWrite, .. } => "RC Write",
            Self::Rdma { operation: Operation::RcSend, .. } => "RC Send/Receive",
        };
        let bytes = self.bytes();
        f.pad(&format!("{name} {bytes:>9} B"))
    }
}

/// Cost of one message.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Cost {
    allocations: f64,
    bytes: f64,
    locks: f64,
    frames: f64,
}

impl Cost {
    pub(crate) fn new(usage: Usage, frames: u64, messages: u64) -> Self {
        let each = |count: u64| count as f64 / messages as f64;
        Self {
            allocations: each(usage.allocations.count),
            bytes: each(usage.allocations.bytes),
            locks: each(usage.locks),
            frames: each(frames),
        }
    }

    /// Compares by allocations, then by locks.
    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        let key = |cost: &Self| [cost.allocations, cost.locks];
        key(self).partial_cmp(&key(other)).unwrap_or(Ordering::Equal)
    }
}

/// Cost limits of a message: allocations and locks, in memory, over TAPs, and on kernel sockets.
///
/// In memory the numbers are those of this revision, rounded up, because nothing there depends on the machine.
/// A change that reduces them updates this table. Three in a hundred messages of 64 KiB exhaust the sender's
/// spare net buffers. Over TAPs there is a margin for the scheduler, and for a frame of the kernel. A message
/// of 50 segments takes the locks of its iterations and of a completion, not 50. On kernel sockets there is a
/// margin for empty polls, whose number depends on the other end.
const BUDGETS: [Row; 16] = [
    (Work::Stream { bytes: 1448 }, [0.0, 0.0], [0.01, 0.3], NONE),
    (Work::Stream { bytes: 64 * KIB }, [0.0, 0.0], [0.01, 0.7], NONE),
    (rdma(Operation::Write, 64), [0.0, 1.13], [0.01, 2.6], [0.01, 7.0]),
    (rdma(Operation::Write, 64 * KIB), [0.03, 0.51], [0.01, 2.6], [0.01, 9.0]),
    (rdma(Operation::Write, 1024 * KIB), [0.0, 2.0], [0.01, 14.0], [0.01, ANY]),
    (rdma(Operation::Send, 64), [0.0, 2.26], [0.01, 5.0], [0.01, 10.0]),
    (rdma(Operation::Send, 64 * KIB), [0.03, 1.76], [0.01, 5.0], [0.01, 12.0]),
    (rdma(Operation::Send, 1024 * KIB), [0.0, 4.0], [0.01, 17.0], [0.01, ANY]),
    (rdma(Operation::Read, 64), [0.0, 1.13], [0.01, 2.7], [0.01, 6.0]),
    (rdma(Operation::Read, 64 * KIB), [0.03, 1.26], [0.01, 4.0], [0.01, 12.0]),
    (rdma(Operation::Read, 1024 * KIB), [0.0, 2.0], [0.05, 12.0], [0.01, ANY]),
    (rdma(Operation::FetchAdd, 8), [0.0, 1.13], [0.01, 2.7], [0.01, 6.0]),
    (rdma(Operation::Immediate, 8), [0.0, 2.26], [0.01, 5.0], [0.01, 10.0]),
    (rdma(Operation::RcSend, 64), [0.0, 1.06], [0.01, 5.0], [0.01, 10.0]),
    (rdma(Operation::RcWrite, 64), [0.0, 0.04], [0.01, 2.6], [0.01, 7.0]),
    (rdma(Operation::RcWrite, 64 * KIB), [0.03, 0.51], [0.01, 2.6], [0.01, 9.0]),
];

/// Kind of traffic, and its budget in each place, in their order.
type Row = (Work, [f64; 2], [f64; 2], [f64; 2]);

/// Empty polls take a lock each, and a message of 1 MiB is in flight for a long time.
const ANY: f64 = f64::INFINITY;

/// Kernel sockets carry no streams of the engine.
const NONE: [f64; 2] = [0.0, 0.0];

const KIB: usize = 1024;

const fn rdma(operation: Operation, bytes: usize) -> Work {
    Work::Rdma { operation, bytes }
}

fn budget(link_kind: LinkKind, work: Work) -> [f64; 2] {
    let mut rows = BUDGETS.into_iter();
    let row = rows.find(|(of, ..)| *of == work).expect("each work has a budget");
    let (_, memory, taps, sockets) = row;
    match link_kind {
        LinkKind::Memory => memory,
        LinkKind::Taps => taps,
        LinkKind::Sockets => sockets,
    }
}

/// Rows of a place.
#[derive(Debug)]
pub(crate) struct Table {
    link_kind: LinkKind,
    rows: String,
    over: Vec<String>,
}

impl Table {
    pub(crate) fn new(link_kind: LinkKind) -> Self {
        let rows = format!(
            "{link_kind:?}, a message{:32} allocations     bytes     locks    frames\n",
            ""
        );
        Self { link_kind, rows, over: Vec::new() }
    }

    pub(crate) fn add(&mut self, work: Work, cost: Cost) {
        self.over.extend(self.excess(work, &cost));
        let Cost { allocations, bytes, locks, frames } = cost;
        self.rows +=
            &format!("{work:44} {allocations:11.3} {bytes:9.1} {locks:9.3} {frames:9.3}\n");
    }

    /// Returns how the cost exceeds the budget.
    pub(crate) fn excess(&self, work: Work, cost: &Cost) -> Vec<String> {
        let Cost { allocations, locks, .. } = cost;
        let [allocations_max, locks_max] = budget(self.link_kind, work);
        let mut over = Vec::new();
        if *allocations > allocations_max {
            over.push(format!("{work}: {allocations} allocations, not {allocations_max}"));
        }
        if *locks > locks_max {
            over.push(format!("{work}: {locks} locks, not {locks_max}"));
        }
        over
    }

    /// Prints the table.
    ///
    /// # Panics
    /// If a row exceeds its budget.
    pub(crate) fn finish(self) {
        println!("{}", self.rows);
        assert!(self.over.is_empty(), "\n{}{}", self.rows, self.over.join("\n"));
    }
}
