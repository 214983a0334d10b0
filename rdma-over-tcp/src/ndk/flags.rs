//! Flags and enumerations of NDKPI with their header values, and the legality of each flag per operation.
//!
//! Unknown bits are kept (`from_bits_retain`), so that the call that receives them can reject them. A composite is
//! contained if all its bits are set (NDK-FLG-1).

use core::fmt;

use bitflags::bitflags;

use super::status::NtStatus;
use crate::rnic::{Access, Arm, WcOpcode, WrFlags};

bitflags! {
    /// NDK_OP_FLAG_*: flags of a work request.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
    pub struct OpFlags: u32 {
        /// No completion on success (NDK-SIL-1).
        const SILENT_SUCCESS = 0x001;
        /// The request starts only after all earlier reads have completed (NDK-FEN-1).
        const READ_FENCE = 0x002;
        /// The peer's receive completion is a solicited one (NDK-CQ-8).
        const SEND_AND_SOLICIT_EVENT = 0x004;
        /// Fast register: the peer may read.
        const ALLOW_REMOTE_READ = 0x008;
        /// Fast register: the region may be the target of receives and reads.
        const ALLOW_LOCAL_WRITE = 0x010;
        /// Fast register: the peer may write. A composite of 0x20 and local write (NDK-FLG-1).
        const ALLOW_REMOTE_WRITE = 0x030;
        /// The data is captured before the post returns (NDK-INL-1).
        const INLINE = 0x040;
        /// Fast register: the region may be the sink of a read. Not required here, never rejected (NDK-MEM-14).
        const RDMA_READ_SINK = 0x080;
        /// A successful read invalidates the token of its first entry (NDK-FLG-2, NDK-FLG-3).
        const RDMA_READ_LOCAL_INVALIDATE = 0x100;
        /// A hint that more requests follow immediately (NDK-DEF-1).
        const DEFER = 0x200;
        /// Fast register: the peer may use atomics (RFC 7306). Not part of NDKPI.
        const ALLOW_REMOTE_ATOMIC = 0x8000_0000;
    }
}

bitflags! {
    /// NDK_MR_FLAG_*: rights of a registered region. Local read is always granted.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
    pub struct MrFlags: u32 {
        /// The region may be the target of receives and reads.
        const ALLOW_LOCAL_WRITE = 0x1;
        /// The peer may read.
        const ALLOW_REMOTE_READ = 0x2;
        /// The peer may write. A composite of 0x4 and local write.
        const ALLOW_REMOTE_WRITE = 0x5;
        /// The region may be the sink of a read. Not required here, never rejected (NDK-MEM-14).
        const RDMA_READ_SINK = 0x8;
        /// The peer may use atomics (RFC 7306). Not part of NDKPI.
        const ALLOW_REMOTE_ATOMIC = 0x8000_0000;
    }
}

bitflags! {
    /// NDK_ADAPTER_FLAG_*: features that the adapter guarantees.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
    pub struct AdapterFlags: u32 {
        /// The last byte of a buffer is never written before an earlier one.
        const IN_ORDER_DMA_SUPPORTED = 0x0000_0001;
        /// A read needs no special right on its sink.
        const RDMA_READ_SINK_NOT_REQUIRED = 0x0000_0002;
        /// Notifications can be moderated.
        const CQ_INTERRUPT_MODERATION_SUPPORTED = 0x0000_0004;
        /// Several connections may progress in parallel.
        const MULTI_ENGINE_SUPPORTED = 0x0000_0008;
        /// Reads may invalidate their sink (NDK-FLG-3).
        const RDMA_READ_LOCAL_INVALIDATE_SUPPORTED = 0x0000_0010;
        /// Completion queues can be resized.
        const CQ_RESIZE_SUPPORTED = 0x0000_0100;
        /// An address can connect to itself.
        const LOOPBACK_CONNECTIONS_SUPPORTED = 0x0001_0000;
    }
}

/// Trigger of an arm (NDK_CQ_NOTIFY_*). The order is that of NDK-CQ-6.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CqNotify {
    /// Failure of the CQ itself (value 0; NDK-CQ-9).
    Errors,
    /// A solicited receive, or an error completion (value 2; NDK-CQ-8).
    Solicited,
    /// Any completion (value 1; NDK-CQ-7).
    Any,
}

impl From<CqNotify> for Arm {
    fn from(notify: CqNotify) -> Self {
        match notify {
            CqNotify::Errors => Self::Failure,
            CqNotify::Solicited => Self::Solicited,
            CqNotify::Any => Self::Next,
        }
    }
}

impl CqNotify {
    /// Returns the value in the NDKPI header.
    #[must_use]
    pub const fn value(self) -> u32 {
        match self {
            Self::Errors => 0,
            Self::Any => 1,
            Self::Solicited => 2,
        }
    }
}

/// NDK_OPERATION_TYPE, with the bit-like values of the NDKPI header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum OperationType {
    /// A receive completed by a send.
    Receive = 1,
    /// A local send, or send and invalidate (NDK-RI-4).
    Send = 2,
    /// A fast registration.
    FastRegister = 4,
    /// A bind of a window.
    Bind = 8,
    /// A local invalidation.
    Invalidate = 16,
    /// A read.
    Read = 32,
    /// A write.
    Write = 64,
    /// A receive completed by a peer's send and invalidate.
    ReceiveAndInvalidate = 0x8001,
    /// An atomic FetchAdd. Not part of NDKPI, as the types below.
    FetchAdd = 0x1_0001,
    /// An atomic CmpSwap.
    CompareSwap = 0x1_0002,
    /// A send of immediate data.
    Immediate = 0x1_0004,
    /// A receive completed by a peer's immediate data; its buffer is unchanged.
    ReceiveImmediate = 0x1_8001,
}

impl From<WcOpcode> for OperationType {
    #[inline]
    fn from(opcode: WcOpcode) -> Self {
        match opcode {
            WcOpcode::Send => Self::Send,
            WcOpcode::Write => Self::Write,
            WcOpcode::Read => Self::Read,
            WcOpcode::FastRegister => Self::FastRegister,
            WcOpcode::Invalidate => Self::Invalidate,
            WcOpcode::Bind => Self::Bind,
            WcOpcode::Receive => Self::Receive,
            WcOpcode::FetchAdd => Self::FetchAdd,
            WcOpcode::CompareSwap => Self::CompareSwap,
            WcOpcode::Immediate => Self::Immediate,
        }
    }
}

impl fmt::Display for OperationType {
    /// Writes the name without NDKPI's prefix.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Receive => "Receive",
            Self::Send => "Send",
            Self::FastRegister => "FastRegister",
            Self::Bind => "Bind",
            Self::Invalidate => "Invalidate",
            Self::Read => "Read",
            Self::Write => "Write",
            Self::ReceiveAndInvalidate => "ReceiveAndInvalidate",
            Self::FetchAdd => "FetchAdd",
            Self::CompareSwap => "CompareSwap",
            Self::Immediate => "Immediate",
            Self::ReceiveImmediate => "ReceiveImmediate",
        })
    }
}

impl OpFlags {
    /// Returns the flags that are legal on an initiator request of type `operation`.
    #[must_use]
    pub const fn legal(operation: OperationType) -> Self {
        let common = Self::SILENT_SUCCESS.union(Self::READ_FENCE).union(Self::DEFER);
        let rights = Self::ALLOW_REMOTE_READ.union(Self::ALLOW_REMOTE_WRITE);
        let sink = Self::RDMA_READ_SINK.union(Self::ALLOW_REMOTE_ATOMIC);
        match operation {
            OperationType::Send => common.union(Self::SEND_AND_SOLICIT_EVENT).union(Self::INLINE),
            OperationType::Write => common.union(Self::INLINE), // NDK-FLG-4
            OperationType::Read => common.union(Self::RDMA_READ_LOCAL_INVALIDATE),
            OperationType::FastRegister => common.union(rights).union(sink),
            OperationType::Bind => common.union(rights),
            OperationType::Invalidate => common,
            OperationType::FetchAdd | OperationType::CompareSwap => common,
            OperationType::Immediate => common.union(Self::SEND_AND_SOLICIT_EVENT),
            OperationType::Receive
            | OperationType::ReceiveAndInvalidate
            | OperationType::ReceiveImmediate => Self::empty(),
        }
    }

    /// Rejects flags that are unknown or illegal on `operation`.
    ///
    /// # Errors
    /// [`NtStatus::INVALID_PARAMETER`] (NDK-FLG-5), also for bit 0x20 without 0x10 (NDK-FLG-1).
    pub const fn check(self, operation: OperationType) -> Result<(), NtStatus> {
        let half_composite = self.bits() & 0x30 == 0x20;
        if !Self::legal(operation).contains(self) || half_composite {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        Ok(())
    }

    /// Returns the rights that a fast registration requests. Windows may be bound to any region.
    pub(super) fn rights(self) -> Access {
        Access::BIND | self.named_rights()
    }

    /// Returns the rights that a bind requests for the peer. Local write is half of a composite, and a right of the
    /// region (NDK-MEM-11).
    pub(super) fn window_rights(self) -> Access {
        self.named_rights().without(Access::LOCAL_WRITE)
    }

    fn named_rights(self) -> Access {
        access(
            self.contains(Self::ALLOW_LOCAL_WRITE),
            self.contains(Self::ALLOW_REMOTE_READ),
            self.contains(Self::ALLOW_REMOTE_WRITE),
            self.contains(Self::ALLOW_REMOTE_ATOMIC),
        )
    }

    /// Returns the options of a work request. All but DEFER have the same bits there.
    #[inline]
    pub(super) const fn options(self) -> WrFlags {
        let same = Self::SILENT_SUCCESS.union(Self::READ_FENCE).union(Self::SEND_AND_SOLICIT_EVENT);
        let defer = if self.contains(Self::DEFER) { WrFlags::DEFER.0 } else { 0 };
        WrFlags(self.intersection(same).bits() as u8 | defer)
    }
}

fn access(local_write: bool, remote_read: bool, remote_write: bool, atomic: bool) -> Access {
    let right = |is_granted, right| if is_granted { right } else { Access::NONE };
    right(local_write, Access::LOCAL_WRITE)
        | right(remote_read, Access::REMOTE_READ)
        | right(remote_write, Access::REMOTE_WRITE)
        | right(atomic, Access::REMOTE_ATOMIC)
}

impl MrFlags {
    /// Returns the rights of a region. Windows may be bound to any.
    pub(super) fn rights(self) -> Access {
        Access::BIND
            | access(
                self.contains(Self::ALLOW_LOCAL_WRITE),
                self.contains(Self::ALLOW_REMOTE_READ),
                self.contains(Self::ALLOW_REMOTE_WRITE),
                self.contains(Self::ALLOW_REMOTE_ATOMIC),
            )
    }

    /// Rejects unknown bits, and 0x4 without local write.
    ///
    /// # Errors
    /// [`NtStatus::INVALID_PARAMETER`].
    pub const fn check(self) -> Result<(), NtStatus> {
        let half_composite = self.bits() & 0x5 == 0x4;
        if !Self::all().contains(self) || half_composite {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // NDK-FLG-1: 0x10 is local write, 0x20 alone is malformed, 0x30 is remote write.
    #[test]
    fn composite_op_flags() {
        let check = |bits| OpFlags::from_bits_retain(bits).check(OperationType::FastRegister);
        assert_eq!(check(0x10), Ok(()));
        let local = Access::LOCAL_WRITE;
        assert_eq!(OpFlags::from_bits_retain(0x10).rights(), local | Access::BIND);
        assert_eq!(check(0x20), Err(NtStatus::INVALID_PARAMETER));
        assert_eq!(check(0x30), Ok(()));
        let remote = Access::REMOTE_WRITE | Access::REMOTE_READ;
        assert_eq!(
            OpFlags::from_bits_retain(0x30).rights(),
            local | Access::REMOTE_WRITE | Access::BIND
        );
        assert_eq!(OpFlags::from_bits_retain(0x38).rights(), local | remote | Access::BIND);
        assert_eq!(OpFlags::from_bits_retain(0x38).window_rights(), remote);
        assert_eq!(OpFlags::from_bits_retain(0x10).window_rights(), Access::NONE);
        assert!(!OpFlags::from_bits_retain(0x10).contains(OpFlags::ALLOW_REMOTE_WRITE));
    }

    #[test]
    fn composite_mr_flags() {
        assert_eq!(MrFlags::from_bits_retain(0x1).check(), Ok(()));
        assert_eq!(MrFlags::from_bits_retain(0x4).check(), Err(NtStatus::INVALID_PARAMETER));
        assert_eq!(MrFlags::from_bits_retain(0x5).check(), Ok(()));
        assert_eq!(MrFlags::from_bits_retain(0x10).check(), Err(NtStatus::INVALID_PARAMETER));
        assert!(!MrFlags::from_bits_retain(0x1).contains(MrFlags::ALLOW_REMOTE_WRITE));
    }

    // NDK-FLG-2, -4, -5.
    #[test]
    fn legality_per_operation() {
        use OperationType::{Bind, FastRegister, Invalidate, Read, Send, Write};
        let rows: [(u32, &[OperationType]); 9] = [
            (0x001, &[Send, Write, Read, Bind, FastRegister, Invalidate]),
            (0x002, &[Send, Write, Read, Bind, FastRegister, Invalidate]),
            (0x004, &[Send]),
            (0x008, &[Bind, FastRegister]),
            (0x030, &[Bind, FastRegister]),
            (0x040, &[Send, Write]),
            (0x080, &[FastRegister]),
            (0x100, &[Read]),
            (0x200, &[Send, Write, Read, Bind, FastRegister, Invalidate]),
        ];
        for (bits, legal) in rows {
            for operation in [Send, Write, Read, Bind, FastRegister, Invalidate] {
                let expected = legal.contains(&operation);
                assert_eq!(
                    OpFlags::from_bits_retain(bits).check(operation).is_ok(),
                    expected,
                    "{bits:#x} {operation:?}"
                );
            }
        }
        assert!(OpFlags::from_bits_retain(0x400).check(Send).is_err());
    }

    #[test]
    fn options() {
        for (flag, option) in [
            (OpFlags::empty(), WrFlags::NONE),
            (OpFlags::SILENT_SUCCESS, WrFlags::SILENT),
            (OpFlags::READ_FENCE, WrFlags::READ_FENCE),
            (OpFlags::SEND_AND_SOLICIT_EVENT, WrFlags::SOLICITED),
            (OpFlags::DEFER, WrFlags::DEFER),
            (OpFlags::INLINE, WrFlags::NONE),
            (OpFlags::from_bits_retain(0xffff), WrFlags(0xf)),
        ] {
            assert_eq!(flag.options(), option, "{flag:?}");
        }
    }

    #[test]
    fn header_values() {
        let values = [CqNotify::Errors, CqNotify::Any, CqNotify::Solicited].map(CqNotify::value);
        assert_eq!(values, [0, 1, 2]);
        assert_eq!(OperationType::ReceiveAndInvalidate as u32, 32769);
    }
}
