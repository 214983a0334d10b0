//! Atomics and immediate data (RFC 7306) for consumers of NDK. NDKPI has neither: these methods, their operation types
//! and flags are specific to this adapter.

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
    /// Enables or disables atomics and immediate data for the queue pair, before it is connected. Without a call the
    /// adapter's configuration applies (`AdapterConfig::rfc7306`). Both sides need the same setting: MPA does not
    /// negotiate it.
    ///
    /// # Errors
    /// [`NtStatus::INVALID_PARAMETER`]: the queue pair is or was connected.
    pub fn allow_extensions(&self, allow: bool) -> Result<(), NtStatus> {
        Ok(self.adapter.with(|core, _| core.allow_extensions(self.id, allow))?)
    }

    /// Adds `add` to eight aligned bytes of the peer, a number in its machine's byte order. `result`, eight bytes,
    /// receives the previous value. The region needs the right
    /// [`MrFlags::ALLOW_REMOTE_ATOMIC`](crate::ndk::MrFlags::ALLOW_REMOTE_ATOMIC). Counts as a read for the outbound
    /// read limit and for [`OpFlags::READ_FENCE`]. Not part of NDKPI.
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

    /// Replaces eight aligned bytes of the peer by `swap` if they equal `compare`. Otherwise as [`Qp::fetch_add`].
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

    /// Any atomic operation, with masks. Otherwise as [`Qp::fetch_add`].
    ///
    /// # Errors
    /// As listed at [`Qp`]; [`NtStatus::NOT_SUPPORTED`]: RFC 7306 is disabled on the queue pair;
    /// [`NtStatus::INVALID_DEVICE_REQUEST`]: the connection allows no reads; [`NtStatus::INVALID_PARAMETER`]: `result`
    /// is not eight bytes long.
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

    /// Sends eight bytes that consume a receive of the peer, of any length, and are returned in its completion
    /// ([`NdkResultEx::immediate`](crate::ndk::NdkResultEx::immediate)). After a Write they signal that the Write is
    /// placed. Not part of NDKPI.
    ///
    /// # Errors
    /// As listed at [`Qp`]; [`NtStatus::NOT_SUPPORTED`]: RFC 7306 is disabled on the queue pair.
    pub fn immediate(&self, context: u64, data: [u8; 8], flags: OpFlags) -> Result<(), NtStatus> {
        self.checked_post(flags.check(OperationType::Immediate), |core| {
            let (immediate, data) = (Operation::Immediate { data }, Data::Registered(&[]));
            core.post(self.id, context, immediate, data, flags.options())
        })
    }
}
