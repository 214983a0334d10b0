//! Atomics and immediate data (RFC 7306) for consumers of NDK. NDKPI has neither: these methods, their operation types
//! and flags are this adapter's.

use super::Qp;
use crate::{
    ndk::{
        flags::{OpFlags, OperationType},
        status::NtStatus,
    },
    rdmap::AtomicOperation,
    rnic::{Data, Operation, Remote, Sge},
};

impl Qp {
    /// Says whether the queue pair is to use atomics and immediate data, before it is connected; without a call the
    /// adapter's configuration counts (`AdapterConfig::rfc7306`). Both ends have to know: MPA does not negotiate it.
    ///
    /// # Errors
    /// [`NtStatus::INVALID_PARAMETER`]: the queue pair is or was connected.
    pub fn allow_extensions(&self, allow: bool) -> Result<(), NtStatus> {
        Ok(self.adapter.with(|core, _| core.allow_extensions(self.id, allow))?)
    }

    /// Adds `add` to eight aligned bytes of the peer, a number of its machine's; `result`, eight bytes, gets what they
    /// were before. A right [`MrFlags::ALLOW_REMOTE_ATOMIC`](crate::ndk::MrFlags::ALLOW_REMOTE_ATOMIC) is needed there.
    /// Counts as a read: toward the outbound read limit, and for [`OpFlags::READ_FENCE`]. Not in NDKPI.
    ///
    /// # Errors
    /// As [`Qp::atomic`].
    pub fn fetch_add(
        &self,
        context: u64,
        result: Sge,
        remote_address: u64,
        remote_token: u32,
        add: u64,
        flags: OpFlags,
    ) -> Result<(), NtStatus> {
        let operation = AtomicOperation::FetchAdd { add, mask: 0 };
        self.atomic(context, result, remote_address, remote_token, operation, flags)
    }

    /// Replaces eight aligned bytes of the peer by `swap`, if they are `compare`. As [`Qp::fetch_add`] otherwise.
    ///
    /// # Errors
    /// As [`Qp::atomic`].
    pub fn compare_swap(
        &self,
        context: u64,
        result: Sge,
        remote_address: u64,
        remote_token: u32,
        (compare, swap): (u64, u64),
        flags: OpFlags,
    ) -> Result<(), NtStatus> {
        let (compare_mask, swap_mask) = (u64::MAX, u64::MAX);
        let operation = AtomicOperation::CompareSwap { compare, compare_mask, swap, swap_mask };
        self.atomic(context, result, remote_address, remote_token, operation, flags)
    }

    /// Any atomic, with masks. As [`Qp::fetch_add`] otherwise.
    ///
    /// # Errors
    /// As said at [`Qp`]; [`NtStatus::NOT_SUPPORTED`]: the queue pair does without RFC 7306;
    /// [`NtStatus::INVALID_DEVICE_REQUEST`]: the connection allows no reads; [`NtStatus::INVALID_PARAMETER`]: `result`
    /// has not eight bytes.
    pub fn atomic(
        &self,
        context: u64,
        result: Sge,
        remote_address: u64,
        remote_token: u32,
        operation: AtomicOperation,
        flags: OpFlags,
    ) -> Result<(), NtStatus> {
        let target = Remote::new(remote_address, remote_token);
        self.checked_post(flags.check(OperationType::FetchAdd), |core| {
            core.post(
                self.id,
                context,
                Operation::Atomic { target, operation },
                Data::Registered(&[result]),
                flags.options(),
            )
        })
    }

    /// Sends eight bytes that take a receive of the peer, of any length, and stand in its completion
    /// ([`NdkResultEx::immediate`](crate::ndk::NdkResultEx::immediate)). Behind a Write it tells that the Write is
    /// placed. Not in NDKPI.
    ///
    /// # Errors
    /// As said at [`Qp`]; [`NtStatus::NOT_SUPPORTED`]: the queue pair does without RFC 7306.
    pub fn immediate(&self, context: u64, data: [u8; 8], flags: OpFlags) -> Result<(), NtStatus> {
        self.checked_post(flags.check(OperationType::Immediate), |core| {
            let (immediate, data) = (Operation::Immediate { data }, Data::Registered(&[]));
            core.post(self.id, context, immediate, data, flags.options())
        })
    }
}
