//! Flags and enumerations of NDKPI with their header values, and which flag is legal where.

use core::ops::{BitOr, BitOrAssign};

use super::status::NtStatus;
use crate::rnic::{Access, Arm, WrFlags};

macro_rules! flag_set {
    ($(#[$doc:meta])* $name:ident { $($(#[$flag_doc:meta])* $flag:ident = $value:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
        pub struct $name(pub u32);

        impl $name {
            /// No flag.
            pub const NONE: Self = Self(0);
            $($(#[$flag_doc])* pub const $flag: Self = Self($value);)*

            /// Returns whether every bit of `other` is set: a composite flag needs all of its bits (NDK-FLG-1).
            #[must_use]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Without the bits of `other`.
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }
        }

        impl BitOr for $name {
            type Output = Self;

            fn bitor(self, rhs: Self) -> Self {
                Self(self.0 | rhs.0)
            }
        }

        impl BitOrAssign for $name {
            fn bitor_assign(&mut self, rhs: Self) {
                self.0 |= rhs.0;
            }
        }
    };
}

flag_set! {
    /// NDK_OP_FLAG_*: flags of a work request.
    OpFlags {
        /// No completion on success (NDK-SIL-1).
        SILENT_SUCCESS = 0x001;
        /// Not before all earlier reads have completed (NDK-FEN-1).
        READ_FENCE = 0x002;
        /// The peer's receive completion is a solicited one (NDK-CQ-8).
        SEND_AND_SOLICIT_EVENT = 0x004;
        /// Fast register: peers may read.
        ALLOW_REMOTE_READ = 0x008;
        /// Fast register: may be the target of receives and reads.
        ALLOW_LOCAL_WRITE = 0x010;
        /// Fast register: peers may write. A composite of 0x20 and local write (NDK-FLG-1).
        ALLOW_REMOTE_WRITE = 0x030;
        /// The data is captured before the post returns (NDK-INL-1).
        INLINE = 0x040;
        /// Fast register: may be the sink of a read. Not required here, never refused (NDK-MEM-14).
        RDMA_READ_SINK = 0x080;
        /// A successful read invalidates the token of its first entry (NDK-FLG-2, NDK-FLG-3).
        RDMA_READ_LOCAL_INVALIDATE = 0x100;
        /// A hint that more requests follow at once (NDK-DEF-1).
        DEFER = 0x200;
        /// Fast register: peers may use atomics (RFC 7306). No flag of NDKPI's.
        ALLOW_REMOTE_ATOMIC = 0x8000_0000;
    }
}

flag_set! {
    /// NDK_MR_FLAG_*: rights of a registered region. Local read is always granted.
    MrFlags {
        /// May be the target of receives and reads.
        ALLOW_LOCAL_WRITE = 0x1;
        /// Peers may read.
        ALLOW_REMOTE_READ = 0x2;
        /// Peers may write. A composite of 0x4 and local write.
        ALLOW_REMOTE_WRITE = 0x5;
        /// May be the sink of a read. Not required here, never refused (NDK-MEM-14).
        RDMA_READ_SINK = 0x8;
        /// Peers may use atomics (RFC 7306). No flag of NDKPI's.
        ALLOW_REMOTE_ATOMIC = 0x8000_0000;
    }
}

flag_set! {
    /// NDK_ADAPTER_FLAG_*: what the adapter promises.
    AdapterFlags {
        /// The last byte of a buffer never changes before an earlier one.
        IN_ORDER_DMA_SUPPORTED = 0x0000_0001;
        /// A read needs no special right on its sink.
        RDMA_READ_SINK_NOT_REQUIRED = 0x0000_0002;
        /// Notifications can be moderated.
        CQ_INTERRUPT_MODERATION_SUPPORTED = 0x0000_0004;
        /// Several connections may progress in parallel.
        MULTI_ENGINE_SUPPORTED = 0x0000_0008;
        /// Reads may invalidate their sink (NDK-FLG-3).
        RDMA_READ_LOCAL_INVALIDATE_SUPPORTED = 0x0000_0010;
        /// Completion queues can be resized.
        CQ_RESIZE_SUPPORTED = 0x0000_0100;
        /// An address can connect to itself.
        LOOPBACK_CONNECTIONS_SUPPORTED = 0x0001_0000;
    }
}

/// The trigger of an arm (NDK_CQ_NOTIFY_*). The order is that of NDK-CQ-6.
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
    /// The header's number.
    #[must_use]
    pub const fn value(self) -> u32 {
        match self {
            Self::Errors => 0,
            Self::Any => 1,
            Self::Solicited => 2,
        }
    }
}

/// NDK_OPERATION_TYPE, with the header's bit-like values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum OperationType {
    /// A receive completed by a send.
    Receive = 1,
    /// A local send, or send and invalidate (NDK-RI-4).
    Send = 2,
    /// A fast registration.
    FastRegister = 4,
    /// A window's bind.
    Bind = 8,
    /// A local invalidation.
    Invalidate = 16,
    /// A read.
    Read = 32,
    /// A write.
    Write = 64,
    /// A receive completed by a peer's send and invalidate.
    ReceiveAndInvalidate = 0x8001,
    /// An atomic FetchAdd. No type of NDKPI's, as those below.
    FetchAdd = 0x1_0001,
    /// An atomic CmpSwap.
    CompareSwap = 0x1_0002,
    /// Immediate data sent.
    Immediate = 0x1_0004,
    /// A receive completed by a peer's immediate data: nothing was placed in its buffer.
    ReceiveImmediate = 0x1_8001,
}

impl OpFlags {
    /// The flags legal on an initiator request of type `operation`.
    #[must_use]
    pub const fn legal(operation: OperationType) -> Self {
        let common = Self::SILENT_SUCCESS.0 | Self::READ_FENCE.0 | Self::DEFER.0;
        let rights = Self::ALLOW_REMOTE_READ.0 | Self::ALLOW_REMOTE_WRITE.0;
        let sink = Self::RDMA_READ_SINK.0 | Self::ALLOW_REMOTE_ATOMIC.0;
        Self(match operation {
            OperationType::Send => common | Self::SEND_AND_SOLICIT_EVENT.0 | Self::INLINE.0,
            OperationType::Write => common | Self::INLINE.0, // NDK-FLG-4
            OperationType::Read => common | Self::RDMA_READ_LOCAL_INVALIDATE.0,
            OperationType::FastRegister => common | rights | sink,
            OperationType::Bind => common | rights,
            OperationType::Invalidate => common,
            OperationType::FetchAdd | OperationType::CompareSwap => common,
            OperationType::Immediate => common | Self::SEND_AND_SOLICIT_EVENT.0,
            OperationType::Receive
            | OperationType::ReceiveAndInvalidate
            | OperationType::ReceiveImmediate => 0,
        })
    }

    /// Refuses flags that are unknown or illegal on `operation`.
    ///
    /// # Errors
    /// [`NtStatus::INVALID_PARAMETER`] (NDK-FLG-5), also for bit 0x20 without 0x10 (NDK-FLG-1).
    pub const fn check(self, operation: OperationType) -> Result<(), NtStatus> {
        let half_composite = self.0 & 0x30 == 0x20;
        if self.0 & !Self::legal(operation).0 != 0 || half_composite {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        Ok(())
    }

    /// The rights that a fast registration asks for. Windows may be bound to any region.
    pub(super) fn rights(self) -> Access {
        Access::BIND | self.named_rights()
    }

    /// The rights that a bind asks for: those of peers. Local write is half of a composite, and is the region's
    /// (NDK-MEM-11).
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

    /// The options of a work request. All but DEFER have the same bits there.
    #[inline]
    pub(super) const fn options(self) -> WrFlags {
        let same = Self::SILENT_SUCCESS.0 | Self::READ_FENCE.0 | Self::SEND_AND_SOLICIT_EVENT.0;
        let defer = if self.contains(Self::DEFER) { WrFlags::DEFER.0 } else { 0 };
        WrFlags((self.0 & same) as u8 | defer)
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
    /// The rights of a region. Windows may be bound to any.
    pub(super) fn rights(self) -> Access {
        Access::BIND
            | access(
                self.contains(Self::ALLOW_LOCAL_WRITE),
                self.contains(Self::ALLOW_REMOTE_READ),
                self.contains(Self::ALLOW_REMOTE_WRITE),
                self.contains(Self::ALLOW_REMOTE_ATOMIC),
            )
    }

    /// Refuses unknown bits, and 0x4 without local write.
    ///
    /// # Errors
    /// [`NtStatus::INVALID_PARAMETER`].
    pub const fn check(self) -> Result<(), NtStatus> {
        let half_composite = self.0 & 0x5 == 0x4;
        let known = 0xf | Self::ALLOW_REMOTE_ATOMIC.0;
        if self.0 & !known != 0 || half_composite {
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
        let check = |bits| OpFlags(bits).check(OperationType::FastRegister);
        assert_eq!(check(0x10), Ok(()));
        let local = Access::LOCAL_WRITE;
        assert_eq!(OpFlags(0x10).rights(), local | Access::BIND);
        assert_eq!(check(0x20), Err(NtStatus::INVALID_PARAMETER));
        assert_eq!(check(0x30), Ok(()));
        let remote = Access::REMOTE_WRITE | Access::REMOTE_READ;
        assert_eq!(OpFlags(0x30).rights(), local | Access::REMOTE_WRITE | Access::BIND);
        assert_eq!(OpFlags(0x38).rights(), local | remote | Access::BIND);
        assert_eq!(OpFlags(0x38).window_rights(), remote);
        assert_eq!(OpFlags(0x10).window_rights(), Access::NONE);
        assert!(!OpFlags(0x10).contains(OpFlags::ALLOW_REMOTE_WRITE));
    }

    #[test]
    fn composite_mr_flags() {
        assert_eq!(MrFlags(0x1).check(), Ok(()));
        assert_eq!(MrFlags(0x4).check(), Err(NtStatus::INVALID_PARAMETER));
        assert_eq!(MrFlags(0x5).check(), Ok(()));
        assert_eq!(MrFlags(0x10).check(), Err(NtStatus::INVALID_PARAMETER));
        assert!(!MrFlags(0x1).contains(MrFlags::ALLOW_REMOTE_WRITE));
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
                    OpFlags(bits).check(operation).is_ok(),
                    expected,
                    "{bits:#x} {operation:?}"
                );
            }
        }
        assert!(OpFlags(0x400).check(Send).is_err());
    }

    #[test]
    fn options() {
        for (flag, option) in [
            (OpFlags::NONE, WrFlags::NONE),
            (OpFlags::SILENT_SUCCESS, WrFlags::SILENT),
            (OpFlags::READ_FENCE, WrFlags::READ_FENCE),
            (OpFlags::SEND_AND_SOLICIT_EVENT, WrFlags::SOLICITED),
            (OpFlags::DEFER, WrFlags::DEFER),
            (OpFlags::INLINE, WrFlags::NONE),
            (OpFlags(0xffff), WrFlags(0xf)),
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
