//! Queue pairs.

use super::{Mr, Mw, check_same};
use crate::{
    adapter::Adapter,
    ddp::Stag,
    ndk::{
        flags::{OpFlags, OperationType},
        status::NtStatus,
    },
    rnic::{
        Bind, Data, Operation, QpId, QpState, QpStats, Remote, Revocable, Rnic, Sge, Urgency,
        VerbError,
    },
};

/// Object whose token [`Qp::invalidate`] revokes: a region or a window.
#[derive(Clone, Copy, Debug)]
pub enum Invalidate<'a> {
    /// A region registered by a fast registration.
    Mr(&'a Mr),
    /// A window bound by the same queue pair.
    Mw(&'a Mw),
}

impl<'a> From<&'a Mr> for Invalidate<'a> {
    fn from(mr: &'a Mr) -> Self {
        Self::Mr(mr)
    }
}

impl<'a> From<&'a Mw> for Invalidate<'a> {
    fn from(mw: &'a Mw) -> Self {
        Self::Mw(mw)
    }
}

/// Queue pair.
///
/// A post fails inline, and no completion follows (NDK-WR-4), with:
/// - [`NtStatus::CONNECTION_INVALID`]: not connected (NDK-CON-11); does not apply to receives.
/// - [`NtStatus::NO_MORE_ENTRIES`]: the queue is at its depth.
/// - [`NtStatus::DATA_OVERRUN`]: too many entries.
/// - [`NtStatus::BUFFER_OVERFLOW`]: too many bytes.
/// - [`NtStatus::INVALID_PARAMETER`]: illegal flags, or too much inline data.
#[derive(Clone, Debug)]
pub struct Qp {
    pub(in crate::ndk) adapter: Adapter,
    pub(in crate::ndk) id: QpId,
}

impl Qp {
    /// NdkReceive: legal in every state (NDK-CON-10).
    ///
    /// # Errors
    /// As listed at [`Qp`]; [`NtStatus::INVALID_PARAMETER`]: it uses a shared receive queue;
    /// [`NtStatus::INVALID_DEVICE_STATE`]: its completion queue has failed.
    pub fn receive(&self, context: u64, sges: &[Sge]) -> Result<(), NtStatus> {
        Ok(self.adapter.post(|core| core.post_receive(self.id, context, sges))?)
    }

    /// NdkSend.
    ///
    /// # Errors
    /// As listed at [`Qp`].
    pub fn send(&self, context: u64, data: Data<'_>, flags: OpFlags) -> Result<(), NtStatus> {
        self.post(context, OperationType::Send, Operation::Send { invalidate: None }, data, flags)
    }

    /// NdkSendAndInvalidate: the peer's token `remote_token` is invalid before its receive completes (NDK-RI-1).
    ///
    /// # Errors
    /// As listed at [`Qp`].
    pub fn send_and_invalidate(
        &self,
        context: u64,
        data: Data<'_>,
        remote_token: u32,
        flags: OpFlags,
    ) -> Result<(), NtStatus> {
        let invalidate = Some(Stag(remote_token));
        self.post(context, OperationType::Send, Operation::Send { invalidate }, data, flags)
    }

    /// NdkWrite.
    ///
    /// # Errors
    /// As listed at [`Qp`].
    pub fn write(
        &self,
        context: u64,
        data: Data<'_>,
        remote_address: u64,
        remote_token: u32,
        flags: OpFlags,
    ) -> Result<(), NtStatus> {
        let to = Remote::new(remote_address, remote_token);
        self.post(context, OperationType::Write, Operation::Write { to }, data, flags)
    }

    /// NdkRead. Reads over the outbound read limit are queued.
    ///
    /// # Errors
    /// As listed at [`Qp`]; [`NtStatus::INVALID_DEVICE_REQUEST`]: the connection allows no reads.
    pub fn read(
        &self,
        context: u64,
        sges: &[Sge],
        remote_address: u64,
        remote_token: u32,
        flags: OpFlags,
    ) -> Result<(), NtStatus> {
        let invalidate_sink = flags.contains(OpFlags::RDMA_READ_LOCAL_INVALIDATE);
        let from = Remote::new(remote_address, remote_token);
        let read = Operation::Read { from, invalidate_sink };
        self.post(context, OperationType::Read, read, Data::Registered(sges), flags)
    }

    /// NdkInvalidate of a region registered by [`Qp::fast_register`], or of a window bound by this queue pair
    /// (NDK-MEM-9).
    ///
    /// # Errors
    /// As listed at [`Qp`].
    pub fn invalidate<'a>(
        &self,
        context: u64,
        object: impl Into<Invalidate<'a>>,
        flags: OpFlags,
    ) -> Result<(), NtStatus> {
        let (adapter, target) = match object.into() {
            Invalidate::Mr(mr) => (&mr.adapter, Revocable::Region(mr.id)),
            Invalidate::Mw(mw) => (&mw.adapter, Revocable::Window(mw.id)),
        };
        check_same(&self.adapter, adapter)?;
        self.checked_post(flags.check(OperationType::Invalidate), |core| {
            core.post_invalidate(self.id, context, target, flags.options())
        })
    }

    /// NdkBind: grants this queue pair's peer access to `length` bytes of a registered region, starting at `address`.
    /// The access lasts until either side invalidates `mw`, or it is closed. A bound window cannot be bound again
    /// (NDK-MEM-12). Returns the token, which is valid once the bind has completed. Peers use the region's addresses.
    ///
    /// # Errors
    /// As listed at [`Qp`]; [`NtStatus::ACCESS_VIOLATION`]: remote write to a region without local write (NDK-MEM-11);
    /// [`NtStatus::INVALID_PARAMETER`] also for zero bytes, or bytes outside the region.
    pub fn bind(
        &self,
        context: u64,
        mr: &Mr,
        mw: &Mw,
        address: u64,
        length: u64,
        flags: OpFlags,
    ) -> Result<u32, NtStatus> {
        check_same(&self.adapter, &mr.adapter)?;
        check_same(&self.adapter, &mw.adapter)?;
        let (window, region, rights) = (mw.id, mr.id, flags.window_rights());
        let bind = Bind { window, key: None, region, address, length, base: address, rights };
        self.checked_post(flags.check(OperationType::Bind), |core| {
            core.post_bind(self.id, context, bind, flags.options())
        })
    }

    pub(super) fn post(
        &self,
        context: u64,
        kind: OperationType,
        operation: Operation,
        data: Data<'_>,
        flags: OpFlags,
    ) -> Result<(), NtStatus> {
        let is_inline = !matches!(data, Data::Registered(_)) || !flags.contains(OpFlags::INLINE);
        let checked = flags.check(kind).and(match is_inline {
            true => Ok(()),
            false => Err(NtStatus::INVALID_PARAMETER),
        });
        self.checked_post(checked, |core| {
            core.post(self.id, context, operation, data, flags.options())
        })
    }

    /// Posts if the arguments are valid. A failure indicates the requests deferred before it (NDK-DEF-3).
    #[inline]
    pub(super) fn checked_post<R>(
        &self,
        checked: Result<(), NtStatus>,
        post: impl Fn(&mut Rnic) -> (Result<R, VerbError>, Urgency),
    ) -> Result<R, NtStatus> {
        self.adapter.post(|core| match checked {
            Ok(()) => {
                let (result, urgency) = post(core);
                (result.map_err(NtStatus::from), urgency)
            }
            Err(status) => (Err(status), core.schedule_qp(self.id)),
        })
    }

    /// NdkFlush: all posted requests complete CANCELLED. A queue pair that was connected cannot be used afterwards
    /// (NDK-FL-4).
    pub fn flush(&self) {
        self.adapter.with(|core, _| core.flush(self.id));
    }

    /// Returns the statistics.
    #[must_use]
    pub fn stats(&self) -> QpStats {
        self.adapter.with(|core, _| core.qp_stats(self.id)).unwrap_or_default()
    }

    /// True if initiator requests may be posted.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.adapter.with(|core, _| core.qp_state(self.id)) == Some(QpState::Connected)
    }
}
