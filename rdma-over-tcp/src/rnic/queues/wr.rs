//! Work requests as posted by consumers.

use alloc::boxed::Box;
use core::ops::BitOr;

use offload_engine::memory::SharedSlice;

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

/// Scatter/gather entry: a range of registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sge {
    /// Virtual address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local token of the region.
    pub token: u32,
}

/// Data of a Send or Write.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Registered memory, read in place until the request completes.
    Registered(&'a [Sge]),
    /// Any memory, captured before the post returns (NDK-INL-1).
    Inline(&'a [&'a [u8]]),
    /// Inline data in memory that the application may write concurrently: parts of registered buffers
    /// ([`RegisteredBuffer::part`](crate::rnic::RegisteredBuffer::part)), or consumer memory given by address only.
    /// Tokens are ignored (NDK-SGE-2).
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
    /// Memory at this address, covered by this token, in the form that interfaces use.
    #[must_use]
    pub const fn new(address: u64, token: u32) -> Self {
        Self { stag: Stag(token), offset: TaggedOffset(address) }
    }
}

/// Flags of a send queue request.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WrFlags(pub(crate) u8);

impl WrFlags {
    /// No flags.
    pub const NONE: Self = Self(0);
    /// A successful request generates no completion.
    pub const SILENT: Self = Self(1);
    /// Starts after all earlier Reads and atomics are done.
    pub const READ_FENCE: Self = Self(2);
    /// The peer's completion is a solicited event.
    pub const SOLICITED: Self = Self(4);
    /// More requests follow immediately: no data has to be sent yet.
    pub const DEFER: Self = Self(8);

    /// First part of the next request, which completes for both.
    pub(crate) const PART: Self = Self(16);

    /// Returns true if all flags of `other` are set.
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
    /// Send.
    Send {
        /// STag of the peer, invalidated before the peer's receive completes.
        invalidate: Option<Stag>,
    },
    /// Send with immediate data, only with [`QpService::Rc`](crate::rnic::QpService).
    SendImmediate {
        /// Data in message order.
        data: [u8; 4],
    },
    /// RDMA Write.
    Write {
        /// First byte of the target.
        to: Remote,
    },
    /// RDMA Read. It is queued while the outbound read limit is reached.
    Read {
        /// First byte of the source.
        from: Remote,
        /// True if success invalidates the token of the sink's first entry.
        invalidate_sink: bool,
    },
    /// Atomic operation of RFC 7306. Its data is one entry of eight bytes, which receives the original value of the
    /// target in the byte order of the machine.
    Atomic {
        /// Memory to operate on.
        target: Remote,
        /// Operation and operands.
        operation: AtomicOperation,
    },
    /// Immediate data (RFC 7306), without other data.
    Immediate {
        /// Data in message order.
        data: [u8; IMMEDIATE_OCTETS],
    },
    /// RDMA Write followed by immediate data: one request with one queue entry and one completion, and two messages.
    /// With [`QpService::Rc`](crate::rnic::QpService), the last four bytes of the immediate data are replaced by the
    /// length of the Write, which the completion of the peer's receive reports.
    WriteImmediate {
        /// First byte of the target.
        to: Remote,
        /// Data in message order.
        data: [u8; IMMEDIATE_OCTETS],
    },
}

/// Kind of a completed request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WcOpcode {
    /// Send, with or without invalidation.
    Send,
    /// RDMA Write.
    Write,
    /// RDMA Read.
    Read,
    /// Fast registration.
    FastRegister,
    /// Local invalidation.
    Invalidate,
    /// Bind of a memory window.
    Bind,
    /// Receive.
    Receive,
    /// Atomic FetchAdd (RFC 7306).
    FetchAdd,
    /// Atomic CmpSwap (RFC 7306).
    CompareSwap,
    /// Immediate data sent (RFC 7306).
    Immediate,
}

/// Kind of a work queue element: one message, or a local operation. An [`Operation`] is one or two elements.
#[derive(Debug)]
pub(crate) enum WqeKind {
    Send {
        word: SendWord,
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
    /// The operands are in the send queue, because few requests have any.
    Atomic {
        target: Remote,
        opcode: WcOpcode,
    },
    Immediate {
        data: [u8; IMMEDIATE_OCTETS],
    },
}

/// Word of a Send for its peer, in the DDP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SendWord {
    None,
    /// STag of the peer that is invalidated.
    Invalidate(Stag),
    /// Immediate data, only with [`QpService::Rc`](crate::rnic::QpService).
    Immediate([u8; 4]),
}

impl From<Option<Stag>> for SendWord {
    fn from(invalidate: Option<Stag>) -> Self {
        invalidate.map_or(Self::None, Self::Invalidate)
    }
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

    /// Returns true if it is a message that the peer counts when it acknowledges
    /// ([`QpService::Rc`](crate::rnic::QpService)).
    pub(crate) const fn is_counted(&self) -> bool {
        matches!(self, Self::Send { .. } | Self::Write { .. } | Self::Immediate { .. })
    }

    /// Returns true if it is executed by this end alone: a bind, an invalidation or a fast registration.
    pub(crate) const fn is_local(&self) -> bool {
        matches!(self, Self::FastRegister { .. } | Self::Invalidate { .. } | Self::Bind { .. })
    }

    /// Returns true if it completes with the peer's response, not with the acknowledgment of its bytes.
    pub(crate) const fn awaits_response(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Atomic { .. })
    }
}
