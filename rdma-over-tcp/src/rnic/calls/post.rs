//! Posting of work requests.
//!
//! A post checks what can be checked without memory: state, flags, numbers. Memory is checked when the
//! request's turn comes, because it may be registered by an earlier request. An error return means no
//! completion, success means one will come (NDK-WR-4).
//!
//! A post to a connection that has nothing under way is sent before it returns. While the connection flows, as
//! [`Flow`](crate::rnic::queues::qp::Flow) has it, or when the request is deferred (NDK-DEF-1), a post only queues:
//! whoever polls the engine next sends what has come together, in as few segments as it fits. So does a post when much
//! is waiting. With a transport that calls [`Rnic::begin_poll`] such a post sends full lists only, and the rest waits
//! for a poll.

use alloc::boxed::Box;

use offload_engine::runtime::Urgency;

use crate::{
    rdmap::{ATOMIC_TARGET_OCTETS, IMMEDIATE_OCTETS},
    rnic::{
        Rnic,
        memory::{
            fast::FastMemory,
            region::FastRegisterLimits,
            registration::Access,
            window::{Bind, Revocable},
        },
        objects::id::{QpId, RegionId},
        queues::{
            qp::{LatePosts, Qp, QpState, ReceiveOutcome},
            sges::{capture, inline_length, total_length},
            wr::{Data, Operation, Sge, WqeKind, WrFlags},
        },
        status::{VerbError, WcStatus},
        tables::Objects,
    },
};

/// A fast-register request: memory and the address it is to have.
#[derive(Clone, Copy, Debug)]
pub struct FastRegister<'a> {
    /// The region, which [`Rnic::initialize_fast_register`] has prepared.
    pub region: RegionId,
    /// The memory.
    pub memory: FastMemory<'a>,
    /// Bytes.
    pub length: usize,
    /// The address of the first byte; at the same place in its page as in the memory's.
    pub base: u64,
    /// Rights.
    pub rights: Access,
}

impl Rnic {
    /// Posts a receive, in any state (NDK-CON-10); where the connection is over it is flushed at once. Its memory is
    /// checked when a message arrives for it.
    ///
    /// # Errors
    /// [`VerbError::InvalidHandle`]; [`VerbError::TooManySges`], [`VerbError::TooLong`]: over the queue pair's or the
    /// adapter's limits; [`VerbError::QueueFull`]; [`VerbError::InvalidArgument`]: its receives come from a shared
    /// receive queue; with [`LatePosts::Refuse`] also [`VerbError::CqFailed`] and [`VerbError::DeviceLost`].
    pub fn post_receive(
        &mut self,
        id: QpId,
        context: u64,
        sges: &[Sge],
    ) -> (Result<(), VerbError>, Urgency) {
        let bytes_max = self.config.limits.transfer_bytes_max;
        let Some(qp) = self.objects.qps.get_mut(id) else {
            return (Err(VerbError::InvalidHandle), Urgency::None);
        };
        if qp.srq.is_some() {
            return (Err(VerbError::InvalidArgument), Urgency::None);
        }
        let is_over = qp.state == QpState::Error && qp.stream.is_none();
        if is_over && qp.late_posts == LatePosts::Refuse {
            // Nobody would hear of its completion (NDK-CQ-13, -14).
            let cq = self.objects.cqs.get(qp.receive_cq);
            if self.is_lost {
                return (Err(VerbError::DeviceLost), Urgency::None);
            }
            if cq.is_some_and(|cq| cq.queue.has_failed()) {
                return (Err(VerbError::CqFailed), Urgency::None);
            }
        }
        let length = match total_length(sges, qp.limits.max_receive_request_sge, bytes_max) {
            Ok(length) => length,
            Err(error) => return (Err(error), Urgency::None),
        };
        let Some(receives) = self.objects.receive_queues.get_mut(qp.receives) else {
            return (Err(VerbError::InvalidHandle), Urgency::None);
        };
        if receives.is_full(usize::from(qp.is_receiving)) {
            return (Err(VerbError::QueueFull), Urgency::None);
        }
        receives.push(context, length, sges);
        let is_awaited = core::mem::take(&mut qp.awaits_receive);
        if !is_over {
            let urgency = if is_awaited { self.kick_qp(id) } else { Urgency::None };
            return (Ok(()), urgency);
        }
        self.objects.complete_receive(id, ReceiveOutcome::failed(WcStatus::Flushed, None));
        self.objects.deliver_completions();
        (Ok(()), Urgency::Now)
    }

    /// Posts a request. A Read's data are the entries of its sink, which must be registered.
    ///
    /// # Errors
    /// Those of all posts to a send queue: [`VerbError::InvalidHandle`]; [`VerbError::NotConnected`]: not in
    /// [`QpState::Connected`], see [`LatePosts`]; [`VerbError::QueueFull`];
    /// [`VerbError::TooManySges`], [`VerbError::TooLong`], [`VerbError::InlineTooLong`]: over the queue pair's or the
    /// adapter's limits. Of a Read or an atomic: [`VerbError::NoReads`]; [`VerbError::InvalidArgument`]: its data are
    /// inline. Of an atomic or immediate data: [`VerbError::NoExtensions`]; [`VerbError::InvalidArgument`]: not the
    /// data that [`Operation`] names.
    // So that an operation is not copied, most of which are smaller than the largest.
    #[inline(always)]
    pub fn post(
        &mut self,
        id: QpId,
        context: u64,
        operation: Operation,
        data: Data<'_>,
        flags: WrFlags,
    ) -> (Result<(), VerbError>, Urgency) {
        let kind = match operation {
            Operation::Send { invalidate } => WqeKind::Send { invalidate },
            Operation::Write { to } => WqeKind::Write { to },
            Operation::Read { from, invalidate_sink } => WqeKind::Read { from, invalidate_sink },
            Operation::Atomic { .. }
            | Operation::Immediate { .. }
            | Operation::WriteImmediate { .. } => {
                let result = self.try_post_extension(id, context, operation, data, flags);
                return self.posted(id, result, flags);
            }
        };
        self.post_kind(id, context, kind, data, flags)
    }

    #[inline]
    fn post_kind(
        &mut self,
        id: QpId,
        context: u64,
        kind: WqeKind,
        data: Data<'_>,
        flags: WrFlags,
    ) -> (Result<(), VerbError>, Urgency) {
        let result = self.try_post(id, context, kind, data, flags);
        self.posted(id, result, flags)
    }

    /// Has a request sent that was posted, or refused, now or with those that follow.
    #[inline(always)]
    fn posted(
        &mut self,
        id: QpId,
        result: Result<(), VerbError>,
        flags: WrFlags,
    ) -> (Result<(), VerbError>, Urgency) {
        if result.is_ok() && self.flush_late(id) {
            return (result, Urgency::Now);
        }
        // NDK-DEF-3: a failure indicates what was deferred before it.
        let urgency = match result.is_err() || !flags.contains(WrFlags::DEFER) {
            true => self.kick_qp(id),
            false => Urgency::None,
        };
        (result, urgency)
    }

    /// Flushes the request that was posted last, if it has come too late. Returns whether it has.
    #[inline]
    fn flush_late(&mut self, id: QpId) -> bool {
        let Objects { qps, completed, .. } = &mut self.objects;
        let Some(qp) = qps.get_mut(id) else { return false };
        if qp.state != QpState::Error {
            return false;
        }
        qp.flush_last(completed);
        self.objects.deliver_completions();
        true
    }

    #[inline(always)]
    fn try_post(
        &mut self,
        id: QpId,
        context: u64,
        kind: WqeKind,
        data: Data<'_>,
        flags: WrFlags,
    ) -> Result<(), VerbError> {
        let is_read = matches!(kind, WqeKind::Read { .. });
        let (qp, length) = self.check_request(id, is_read, data)?;
        qp.flow.post(if is_read { 0 } else { length });
        match data {
            Data::Inline(parts) => {
                let captured = capture(&mut qp.captures, parts);
                qp.sends.push_captured(context, flags, kind, captured);
            }
            Data::InlineSges(parts) => {
                let captured = capture(&mut qp.captures, parts);
                qp.sends.push_captured(context, flags, kind, captured);
            }
            Data::Registered(sges) => qp.sends.push(context, flags, kind, length, sges),
        }
        Ok(())
    }

    /// Posts an operation of RFC 7306.
    #[inline(never)]
    fn try_post_extension(
        &mut self,
        id: QpId,
        context: u64,
        operation: Operation,
        data: Data<'_>,
        flags: WrFlags,
    ) -> Result<(), VerbError> {
        self.check_post(id, operation, data)?;
        let immediate = match operation {
            Operation::Atomic { target, operation } => {
                let (qp, Data::Registered(sges)) = (self.check_sender(id)?, data) else {
                    return Err(VerbError::InvalidArgument);
                };
                qp.flow.post(0);
                let kind = WqeKind::atomic(target, &operation);
                qp.sends.push_atomic(context, flags, kind, operation, sges);
                return Ok(());
            }
            Operation::WriteImmediate { to, data: immediate } => {
                let part = flags | WrFlags::PART;
                self.try_post(id, context, WqeKind::Write { to }, data, part)?;
                // In the error state the part is flushed with the rest, which completes for both.
                let qp = self.check_sender(id)?;
                if qp.state == QpState::Error {
                    qp.sends.finish_last(WcStatus::Flushed);
                }
                immediate
            }
            Operation::Immediate { data } => data,
            Operation::Send { .. } | Operation::Write { .. } | Operation::Read { .. } => {
                unreachable!("an operation of RFC 5040")
            }
        };
        let qp = self.check_sender(id)?;
        qp.flow.post(IMMEDIATE_OCTETS as u32);
        qp.sends.push(context, flags, WqeKind::Immediate { data: immediate }, 0, &[]);
        Ok(())
    }

    /// A queue pair whose send queue takes a Send, Write or Read with these data, and how many bytes they are.
    #[inline]
    fn check_request(
        &mut self,
        id: QpId,
        is_read: bool,
        data: Data<'_>,
    ) -> Result<(&mut Qp, u32), VerbError> {
        let limits = self.config.limits;
        let qp = self.check_sender(id)?;
        if is_read && qp.has_no_reads() {
            // It would wait for ever.
            return Err(VerbError::NoReads);
        }
        let length = match data {
            Data::Inline(_) | Data::InlineSges(_) if is_read => {
                return Err(VerbError::InvalidArgument);
            }
            Data::Inline(parts) => inline_length(parts, qp.limits.inline_data_size)?,
            Data::InlineSges(parts) => inline_length(parts, qp.limits.inline_data_size)?,
            Data::Registered(sges) => {
                let adapter_max = if is_read { limits.read_sges_max } else { limits.send_sges_max };
                let sges_max = qp.limits.max_initiator_request_sge.min(adapter_max);
                total_length(sges, sges_max, limits.transfer_bytes_max)?
            }
        };
        Ok((qp, length))
    }

    /// Checks a request as [`Rnic::post`] does, and posts nothing: for those that are to be posted together or not at
    /// all. [`Rnic::send_queue_room`] says how many there may be.
    ///
    /// # Errors
    /// As [`Rnic::post`].
    pub fn check_post(
        &mut self,
        id: QpId,
        operation: Operation,
        data: Data<'_>,
    ) -> Result<(), VerbError> {
        match operation {
            Operation::Send { .. } | Operation::Write { .. } => {
                self.check_request(id, false, data)?;
            }
            Operation::Read { .. } => {
                self.check_request(id, true, data)?;
            }
            Operation::Atomic { .. } => {
                let Data::Registered(&[sge]) = data else {
                    return Err(VerbError::InvalidArgument);
                };
                let qp = self.check_extensions(id)?;
                if sge.length != ATOMIC_TARGET_OCTETS {
                    return Err(VerbError::InvalidArgument);
                }
                if qp.limits.max_initiator_request_sge == 0 {
                    return Err(VerbError::TooManySges);
                }
                if qp.has_no_reads() {
                    return Err(VerbError::NoReads); // EXT-5.2-1
                }
            }
            Operation::Immediate { .. } => {
                self.check_extensions(id)?;
                if !matches!(data, Data::Registered([])) {
                    return Err(VerbError::InvalidArgument);
                }
            }
            Operation::WriteImmediate { .. } => {
                self.check_extensions(id)?;
                self.check_request(id, false, data)?;
            }
        }
        Ok(())
    }

    /// A queue pair whose send queue takes requests of RFC 7306.
    fn check_extensions(&mut self, id: QpId) -> Result<&mut Qp, VerbError> {
        let qp = self.check_sender(id)?;
        if qp.rfc7306 { Ok(qp) } else { Err(VerbError::NoExtensions) }
    }

    /// Says whether a queue pair is to use RFC 7306, before it is connected ([`Config::rfc7306`](crate::rnic::Config)).
    ///
    /// # Errors
    /// [`VerbError::InvalidHandle`]; [`VerbError::InvalidArgument`]: it is or was connected.
    pub fn allow_extensions(&mut self, id: QpId, allow: bool) -> Result<(), VerbError> {
        let qp = self.objects.qps.get_mut(id).ok_or(VerbError::InvalidHandle)?;
        if qp.state != QpState::Idle {
            return Err(VerbError::InvalidArgument);
        }
        qp.rfc7306 = allow;
        Ok(())
    }

    /// Posts a fast registration. Returns the token, which is valid for later requests of the queue pair (NDK-MEM-8).
    ///
    /// # Errors
    /// As [`Rnic::post`]; [`VerbError::InvalidHandle`]: the region is gone, or of another domain;
    /// [`VerbError::InvalidArgument`]: bytes outside the buffer or the pages, pages that are not aligned, more pages
    /// than the region was prepared for, or more bytes than
    /// [`Limits::registration_bytes_max`](crate::rnic::Limits); [`VerbError::NotMapped`]: logical addresses outside of
    /// mappings; [`VerbError::NoRemoteAccess`]; [`VerbError::ReadOnly`].
    pub fn post_fast_register(
        &mut self,
        id: QpId,
        context: u64,
        request: FastRegister<'_>,
        flags: WrFlags,
    ) -> (Result<u32, VerbError>, Urgency) {
        match self.prepare_fast_register(id, request) {
            Ok((token, kind)) => {
                let (result, urgency) =
                    self.post_kind(id, context, kind, Data::Registered(&[]), flags);
                (result.map(|()| token), urgency)
            }
            Err(error) => (Err(error), self.kick_qp(id)),
        }
    }

    fn prepare_fast_register(
        &mut self,
        id: QpId,
        request: FastRegister<'_>,
    ) -> Result<(u32, WqeKind), VerbError> {
        let FastRegister { region, memory, length, base, rights } = request;
        let pd = self.check_sender(id)?.pd;
        if length as u64 > self.config.limits.registration_bytes_max {
            return Err(VerbError::InvalidArgument);
        }
        let regions = &mut self.objects.regions;
        if regions.table.get(region).is_none_or(|region| region.pd != pd) {
            return Err(VerbError::InvalidHandle);
        }
        let prepared = regions.prepare_fast_register(region, memory, length, base, rights)?;
        let token = prepared.token();
        Ok((token, WqeKind::FastRegister { region, prepared: Box::new(prepared) }))
    }

    /// Posts an invalidation of a region that a fast registration has registered, or of a window of type 2 that this
    /// queue pair has bound (NDK-MEM-9). One that finds nothing to invalidate when its turn comes completes as
    /// [`WcStatus::LocalOperation`] and ends the connection; so does one of a region that windows are bound to.
    ///
    /// # Errors
    /// As [`Rnic::post`]; [`VerbError::InvalidHandle`]: region or window is gone, of another domain, or not of that
    /// kind.
    pub fn post_invalidate(
        &mut self,
        id: QpId,
        context: u64,
        target: Revocable,
        flags: WrFlags,
    ) -> (Result<(), VerbError>, Urgency) {
        let checked = self.check_sender(id).map(|qp| qp.pd);
        match checked.and_then(|pd| self.objects.regions.check_revocable(pd, target)) {
            Ok(()) => {
                let kind = WqeKind::Invalidate { target };
                self.post_kind(id, context, kind, Data::Registered(&[]), flags)
            }
            Err(error) => (Err(error), self.kick_qp(id)),
        }
    }

    /// Posts a bind of a memory window. Returns its token, for peers: it opens nothing before the bind completes, or at
    /// least before a later Send of the same queue pair has told the peer. A bind that meets the region or the window
    /// in the wrong state when its turn comes completes as [`WcStatus::LocalOperation`] and ends the connection.
    ///
    /// # Errors
    /// As [`Rnic::post`]; [`VerbError::InvalidHandle`]: window or region is gone, being closed, or of another domain;
    /// [`VerbError::InvalidArgument`]: bytes outside the region, rights that are no peer's, a key for a window of type
    /// 1, no bytes for one of type 2, or a base that wraps; [`VerbError::RightsNotAllowed`]: the region is registered
    /// without [`Access::BIND`], or without [`Access::LOCAL_WRITE`] for a right to write.
    pub fn post_bind(
        &mut self,
        id: QpId,
        context: u64,
        bind: Bind,
        flags: WrFlags,
    ) -> (Result<u32, VerbError>, Urgency) {
        let checked = self.check_sender(id).map(|qp| qp.pd);
        match checked.and_then(|pd| self.objects.regions.prepare_bind(pd, bind)) {
            Ok(prepared) => {
                let token = prepared.token;
                let kind = WqeKind::Bind { prepared: Box::new(prepared) };
                let (result, urgency) =
                    self.post_kind(id, context, kind, Data::Registered(&[]), flags);
                (result.map(|()| token), urgency)
            }
            Err(error) => (Err(error), self.kick_qp(id)),
        }
    }

    /// Prepares a region for fast registrations. They give it a token, which is valid while it is registered.
    ///
    /// # Errors
    /// [`VerbError::TooManyPages`]; [`VerbError::InvalidHandle`]; [`VerbError::InvalidArgument`]: not a region for fast
    /// registration, or of no page; [`VerbError::NoResources`].
    pub fn initialize_fast_register(
        &mut self,
        region: RegionId,
        limits: FastRegisterLimits,
    ) -> Result<(), VerbError> {
        if limits.pages > self.config.limits.fast_register_pages_max {
            return Err(VerbError::TooManyPages);
        }
        self.objects.regions.initialize(region, limits)
    }

    /// Requests that can be posted to the send queue now.
    #[must_use]
    pub fn send_queue_room(&self, id: QpId) -> usize {
        self.objects.qps.get(id).map_or(0, |qp| qp.sends.room())
    }

    /// A queue pair whose send queue takes requests: connected, or flushing late posts, and with room (NDK-CON-11).
    fn check_sender(&mut self, id: QpId) -> Result<&mut Qp, VerbError> {
        let qp = self.objects.qps.get_mut(id).ok_or(VerbError::InvalidHandle)?;
        let is_late = qp.state == QpState::Error && qp.late_posts == LatePosts::Flush;
        if qp.state != QpState::Connected && !is_late {
            return Err(if self.is_lost { VerbError::DeviceLost } else { VerbError::NotConnected });
        }
        if qp.sends.is_full() {
            return Err(VerbError::QueueFull);
        }
        Ok(qp)
    }

    /// Has the queue pair's requests sent, those that were deferred ([`WrFlags::DEFER`]) among them. Returns how soon
    /// that must be.
    #[inline]
    pub fn kick_qp(&mut self, id: QpId) -> Urgency {
        let Some(qp) = self.objects.qps.get_mut(id) else { return Urgency::None };
        let Some(stream) = qp.stream else { return Urgency::None };
        let urgency = match qp.flow.may_wait() {
            true => Urgency::Soon,
            false => Urgency::Now,
        };
        if !core::mem::replace(&mut qp.flow.is_kicked, true) {
            match qp.state {
                QpState::Connected => self.kick_open(stream),
                _ => self.kick(stream),
            }
        }
        urgency
    }
}
