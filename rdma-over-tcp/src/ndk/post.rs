//! Posting of work requests.
//!
//! A post checks what can be checked without memory: state, flags, numbers. Memory is checked when the
//! request's turn comes, because it may be registered by an earlier request. An error return means no
//! completion, success means one will come (NDK-WR-4).
//!
//! A post to a connection that has nothing under way is sent before it returns. While the connection flows, as
//! [`Flow`](super::qp::Flow) has it, or when the request is deferred (NDK-DEF-1), a post only queues: whoever polls
//! the engine next sends what has come together, in as few segments as it fits.

use host_stack::node::Urgency;

use super::{
    adapter::AdapterCore,
    flags::OpFlags,
    memory::RegisteredBuffer,
    mr::{FastRegisterLimits, Mr},
    qp::{Qp, QpState, ReceiveOutcome},
    queue::{Data, Kind, Sge, capture, total_length},
    slab::Id,
    status::NtStatus,
};

/// A fast-register request: a span of a buffer and the address it is to have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FastRegister<'a> {
    pub(crate) mr: Id<Mr>,
    pub(crate) buffer: &'a RegisteredBuffer,
    pub(crate) offset: usize,
    pub(crate) length: usize,
    pub(crate) base: u64,
}

impl AdapterCore {
    /// NdkReceive. May be posted in any state (NDK-CON-10); where the connection is over it is flushed
    /// at once.
    pub(crate) fn post_receive(
        &mut self,
        id: Id<Qp>,
        context: u64,
        sges: &[Sge],
    ) -> (Result<(), NtStatus>, Urgency) {
        let bytes_max = self.config.info.max_transfer_length;
        let Some(qp) = self.objects.qps.get_mut(id) else {
            return (Err(NtStatus::INVALID_PARAMETER), Urgency::None);
        };
        let length = match total_length(sges, qp.limits.max_receive_request_sge, bytes_max) {
            Ok(length) => length,
            Err(status) => return (Err(status), Urgency::None),
        };
        if qp.receives.is_full() {
            return (Err(NtStatus::NO_MORE_ENTRIES), Urgency::None);
        }
        qp.receives.push(context, length, sges);
        let is_over = qp.state == QpState::Error && qp.stream.is_none();
        if !is_over {
            return (Ok(()), Urgency::None);
        }
        let cancelled = ReceiveOutcome::failed(NtStatus::CANCELLED, 0);
        self.objects.complete_receive(id, cancelled);
        self.objects.deliver_completions();
        (Ok(()), Urgency::Now)
    }

    /// NdkSend, NdkSendAndInvalidate, NdkWrite, NdkRead.
    pub(crate) fn post(
        &mut self,
        id: Id<Qp>,
        context: u64,
        kind: Kind,
        data: Data<'_>,
        flags: OpFlags,
    ) -> (Result<(), NtStatus>, Urgency) {
        let result = self.try_post(id, context, kind, data, flags);
        // NDK-DEF-3: a failure indicates what was deferred before it.
        let urgency = match result.is_err() || !flags.contains(OpFlags::DEFER) {
            true => self.kick_qp(id),
            false => Urgency::None,
        };
        (result, urgency)
    }

    fn try_post(
        &mut self,
        id: Id<Qp>,
        context: u64,
        kind: Kind,
        data: Data<'_>,
        flags: OpFlags,
    ) -> Result<(), NtStatus> {
        flags.check(kind.operation())?;
        let is_inline = matches!(data, Data::Inline(_));
        let is_read = matches!(kind, Kind::Read { .. });
        if is_inline && is_read || !is_inline && flags.contains(OpFlags::INLINE) {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        let info = self.config.info;
        let qp = self.check_initiator(id)?;
        if is_read && qp.read_limit == 0 {
            // It would wait for ever.
            return Err(NtStatus::INVALID_DEVICE_REQUEST);
        }
        match data {
            Data::Inline(parts) => {
                let captured = capture(&mut qp.captures, parts, qp.limits.inline_data_size)?;
                qp.flow.post(captured.len() as u32);
                qp.initiator.push_captured(context, flags, kind, captured);
            }
            Data::Registered(sges) => {
                let adapter_max = match is_read {
                    true => info.max_read_request_sge,
                    false => info.max_initiator_request_sge,
                };
                let sges_max = qp.limits.max_initiator_request_sge.min(adapter_max);
                let length = total_length(sges, sges_max, info.max_transfer_length)?;
                qp.flow.post(if is_read { 0 } else { length });
                qp.initiator.push(context, flags, kind, length, sges);
            }
        }
        Ok(())
    }

    /// NdkFastRegister: the token is valid when this returns (NDK-MEM-8).
    pub(crate) fn post_fast_register(
        &mut self,
        id: Id<Qp>,
        context: u64,
        request: FastRegister<'_>,
        flags: OpFlags,
    ) -> (Result<u32, NtStatus>, Urgency) {
        match self.prepare_fast_register(id, request, flags) {
            Ok((token, kind)) => {
                let (result, urgency) = self.post(id, context, kind, Data::Registered(&[]), flags);
                (result.map(|()| token), urgency)
            }
            Err(status) => (Err(status), self.kick_qp(id)),
        }
    }

    fn prepare_fast_register(
        &mut self,
        id: Id<Qp>,
        request: FastRegister<'_>,
        flags: OpFlags,
    ) -> Result<(u32, Kind), NtStatus> {
        let FastRegister { mr, buffer, offset, length, base } = request;
        flags.check(super::OperationType::FastRegister)?;
        let pd = self.check_initiator(id)?.pd;
        if self.objects.regions.slab.get(mr).is_none_or(|mr| mr.pd != pd) {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        let registration =
            self.objects.regions.prepare_fast_register(mr, buffer, offset, length, base, flags)?;
        let token = registration.token;
        let kind = Kind::FastRegister { mr, registration: alloc::boxed::Box::new(registration) };
        Ok((token, kind))
    }

    /// NdkInvalidate, for regions registered by a fast register (NDK-MEM-9).
    pub(crate) fn post_invalidate(
        &mut self,
        id: Id<Qp>,
        context: u64,
        mr: Id<Mr>,
        flags: OpFlags,
    ) -> (Result<(), NtStatus>, Urgency) {
        let region = self.objects.regions.slab.get(mr).filter(|mr| mr.is_fast_register);
        let region_pd = region.map(|mr| mr.pd);
        match self.check_initiator(id).map(|qp| qp.pd) {
            Ok(pd) if region_pd == Some(pd) => {
                self.post(id, context, Kind::Invalidate { mr }, Data::Registered(&[]), flags)
            }
            Ok(_) => (Err(NtStatus::INVALID_PARAMETER), self.kick_qp(id)),
            Err(status) => (Err(status), self.kick_qp(id)),
        }
    }

    /// NdkInitializeFastRegisterMr.
    pub(crate) fn initialize_fast_register(
        &mut self,
        mr: Id<Mr>,
        limits: FastRegisterLimits,
    ) -> Result<(), NtStatus> {
        let pages_max = self.config.info.frmr_page_count;
        if limits.pages > pages_max {
            return Err(NtStatus::IMPLEMENTATION_LIMIT);
        }
        self.objects.regions.initialize(mr, limits)
    }

    /// A queue pair that takes initiator requests: connected, and with room (NDK-CON-11).
    fn check_initiator(&mut self, id: Id<Qp>) -> Result<&mut Qp, NtStatus> {
        let qp = self.objects.qps.get_mut(id).ok_or(NtStatus::INVALID_PARAMETER)?;
        if qp.state != QpState::Connected {
            return Err(NtStatus::CONNECTION_INVALID);
        }
        if qp.initiator.is_full() {
            return Err(NtStatus::NO_MORE_ENTRIES);
        }
        Ok(qp)
    }

    /// Has the queue pair's requests sent. Returns how soon that must be.
    fn kick_qp(&mut self, id: Id<Qp>) -> Urgency {
        let Some(qp) = self.objects.qps.get_mut(id) else { return Urgency::None };
        let Some(handle) = qp.stream else { return Urgency::None };
        let urgency = match qp.flow.may_wait() {
            true => Urgency::Soon,
            false => Urgency::Now,
        };
        if !core::mem::replace(&mut qp.flow.is_kicked, true) {
            match qp.state {
                QpState::Connected => self.kick_offloaded(handle),
                _ => self.kick(handle),
            }
        }
        urgency
    }
}
