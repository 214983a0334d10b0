//! Work requests, as consumers post them.

use alloc::boxed::Box;
use core::ops::BitOr;

use offload_engine::memory::SharedSlice;

use super::cq::WcOpcode;
use crate::{
    ddp::{Stag, TaggedOffset},
    rdmap::{AtomicOperation, IMMEDIATE_OCTETS},
    rnic::{
        memory::{
            fast::Prepared,
            window::{PreparedBind, Revocable},
        },
        objects::id::RegionId,
    },
};

/// A scatter/gather entry: a piece of registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sge {
    /// Virtual address of the first byte.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// Local token of the region.
    pub token: u32,
}

/// The data of a send or write.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Registered memory, read where it lies until the request completes.
    Registered(&'a [Sge]),
    /// Any memory, captured before the post returns (NDK-INL-1).
    Inline(&'a [&'a [u8]]),
    /// The same of memory that others may write meanwhile: parts of registered buffers
    /// ([`RegisteredBuffer::part`](crate::rnic::RegisteredBuffer::part)), or of a consumer's memory that is known by
    /// its addresses alone. No token is looked at (NDK-SGE-2).
    InlineSges(&'a [SharedSlice<'a>]),
}

/// Memory of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// STag of the peer's region.
    pub stag: Stag,
    /// Tagged offset of the first byte.
    pub offset: TaggedOffset,
}

impl Remote {
    /// Memory at an address that is covered by a token, as interfaces have them.
    #[must_use]
    pub const fn new(address: u64, token: u32) -> Self {
        Self { stag: Stag(token), offset: TaggedOffset(address) }
    }
}

/// Options of a request of the send queue.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WrFlags(pub(crate) u8);

impl WrFlags {
    /// No option.
    pub const NONE: Self = Self(0);
    /// A success gives no completion.
    pub const SILENT: Self = Self(1);
    /// Begins when all earlier Reads and atomics are done.
    pub const READ_FENCE: Self = Self(2);
    /// The peer's completion is a solicited event.
    pub const SOLICITED: Self = Self(4);
    /// More requests follow at once: nothing needs to be sent yet.
    pub const DEFER: Self = Self(8);

    /// The front part of the request behind it, which completes for both.
    pub(crate) const PART: Self = Self(16);

    /// Returns whether these include all options of `other`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for WrFlags {
    type Output = Self;

    fn bitor(self, rhs: Self) -> Self {
        Self(self.0 | rhs.0)
    }
}

/// Operation of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// A Send.
    Send {
        /// An STag of the peer's that is invalid before the peer's receive completes.
        invalidate: Option<Stag>,
    },
    /// An RDMA Write.
    Write {
        /// The first byte of the target.
        to: Remote,
    },
    /// An RDMA Read. Beyond the outbound read limit it waits its turn.
    Read {
        /// The first byte of the source.
        from: Remote,
        /// A success invalidates the token of the sink's first entry.
        invalidate_sink: bool,
    },
    /// An atomic of RFC 7306. Its data are one entry of eight bytes, which receives the target's value before it, as a
    /// number of the machine's.
    Atomic {
        /// The target.
        target: Remote,
        /// Operands.
        operation: AtomicOperation,
    },
    /// Immediate data (RFC 7306), without other data.
    Immediate {
        /// In the order of the message.
        data: [u8; IMMEDIATE_OCTETS],
    },
    /// An RDMA Write with immediate data after it: one request, with one place in the queue and one completion, and two
    /// messages.
    WriteImmediate {
        /// The first byte of the target.
        to: Remote,
        /// In the order of the message.
        data: [u8; IMMEDIATE_OCTETS],
    },
}

/// Kind of a work queue element: one message, or a local operation. An [`Operation`] becomes one or two elements.
#[derive(Debug)]
pub(crate) enum WqeKind {
    Send {
        invalidate: Option<Stag>,
    },
    Write {
        to: Remote,
    },
    Read {
        from: Remote,
        invalidate_sink: bool,
    },
    FastRegister {
        region: RegionId,
        prepared: Box<Prepared>,
    },
    Invalidate {
        target: Revocable,
    },
    Bind {
        prepared: Box<PreparedBind>,
    },
    /// Its operands are in the send queue: few requests have any.
    Atomic {
        target: Remote,
        opcode: WcOpcode,
    },
    Immediate {
        data: [u8; IMMEDIATE_OCTETS],
    },
}

impl WqeKind {
    pub(crate) const fn atomic(target: Remote, operation: &AtomicOperation) -> Self {
        let opcode = match operation {
            AtomicOperation::FetchAdd { .. } => WcOpcode::FetchAdd,
            AtomicOperation::CompareSwap { .. } => WcOpcode::CompareSwap,
        };
        Self::Atomic { target, opcode }
    }

    pub(crate) const fn opcode(&self) -> WcOpcode {
        match self {
            Self::Send { .. } => WcOpcode::Send,
            Self::Write { .. } => WcOpcode::Write,
            Self::Read { .. } => WcOpcode::Read,
            Self::FastRegister { .. } => WcOpcode::FastRegister,
            Self::Invalidate { .. } => WcOpcode::Invalidate,
            Self::Bind { .. } => WcOpcode::Bind,
            Self::Atomic { opcode, .. } => *opcode,
            Self::Immediate { .. } => WcOpcode::Immediate,
        }
    }

    /// Returns whether it is done when the peer has answered, not when its bytes are acknowledged.
    pub(crate) const fn awaits_response(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Atomic { .. })
    }
}
