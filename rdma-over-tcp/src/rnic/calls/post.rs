//! Posting of work requests.
//!
//! A post checks everything that does not depend on memory: state, flags, numbers. Memory is checked when the request
//! starts, because an earlier request may register it. A post that returns an error gives no completion; a successful
//! post gives one (NDK-WR-4).
//!
//! A post to an idle connection is sent before it returns. A post only queues if the connection is busy, as defined by
//! [`Flow`](crate::rnic::queues::qp::Flow), or if the request is deferred (NDK-DEF-1). The next poll of the engine
//! sends the queued requests in as few segments as possible; so does a post when many bytes are queued. With a
//! transport that calls [`Rnic::begin_poll`], such a post sends full lists only, and the rest waits for a poll.

use alloc::boxed::Box;

use offload_engine::runtime::Urgency;

use crate::{
    rdmap::{ATOMIC_TARGET_OCTETS, IMMEDIATE_OCTETS},
    rnic::{
        Rnic,
        config::Limits,
        memory::{
            fast::FastMemory,
            region::FastRegisterLimits,
            registration::Access,
            window::{Bind, Revocable},
        },
        objects::id::{QpId, RegionId},
        queues::{
            qp::{ErrorStatePosts, Qp, QpEvent, QpState, ReceiveOutcome},
            sges::{inline_length, total_length},
            wr::{Data, Operation, SendWord, Sge, WqeKind, WrFlags},
        },
        status::{VerbError, WcStatus},
        tables::Objects,
    },
};

/// Fast-register request: memory and its base address.
#[derive(Clone, Copy, Debug)]
pub struct FastRegister<'a> {
    /// Region, prepared by [`Rnic::initialize_fast_register`].
    pub region: RegionId,
    /// Memory to register.
    pub memory: FastMemory<'a>,
    /// Length in bytes.
    pub length: usize,
    /// Address of the first byte, with the same offset in its page as in the page of the memory.
    pub base: u64,
    /// Access rights.
    pub rights: Access,
}

/// Immediate data of a Write of `length` bytes, of which the first four bytes are the consumer's.
const fn with_length(
    [a, b, c, d, ..]: [u8; IMMEDIATE_OCTETS],
    length: u32,
) -> [u8; IMMEDIATE_OCTETS] {
    let [e, f, g, h] = length.to_be_bytes();
    [a, b, c, d, e, f, g, h]
}

/// Returns the bytes of a request's data, if they are within the limits.
#[inline(always)]
pub(super) fn data_length(
    qp: &Qp,
    limits: &Limits,
    is_read: bool,
    data: Data<'_>,
) -> Result<u32, VerbError> {
    match data {
        Data::Inline(_) | Data::InlineSges(_) if is_read => Err(VerbError::InvalidArgument),
        Data::Inline(parts) => inline_length(parts, qp.limits.inline_data_size),
        Data::InlineSges(parts) => inline_length(parts, qp.limits.inline_data_size),
        Data::Registered(sges) => {
            let adapter_max = if is_read { limits.read_sges_max } else { limits.send_sges_max };
            let sges_max = qp.limits.max_initiator_request_sge.min(adapter_max);
            total_length(sges, sges_max, limits.transfer_bytes_max)
        }
    }
}

impl Rnic {
    /// Posts a receive, in any state (NDK-CON-10). If the connection has ended, it is flushed immediately. Its memory
    /// is checked when a message arrives for it.
    ///
    /// # Errors
    /// [`VerbError::InvalidHandle`]; [`VerbError::TooManySges`], [`VerbError::TooLong`]: a limit of the queue pair or
    /// the adapter is exceeded; [`VerbError::QueueFull`]; [`VerbError::InvalidArgument`]: the queue pair uses a shared
    /// receive queue; with [`ErrorStatePosts::Refuse`] also [`VerbError::CqFailed`] and [`VerbError::DeviceLost`].
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
        if is_over && qp.error_state_posts == ErrorStatePosts::Refuse {
            // Its completion would never be delivered (NDK-CQ-13, -14).
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
        let is_awaited_by_twin = receives.is_awaited();
        let queue = qp.receives;
        let is_awaited = core::mem::take(&mut qp.awaits_receive);
        if !is_over {
            let mut urgency = if is_awaited { self.schedule_qp(id) } else { Urgency::None };
            if is_awaited_by_twin {
                urgency = self.schedule_waiting(queue);
            }
            return (Ok(()), urgency);
        }
        self.objects.complete_receive(id, ReceiveOutcome::failed(WcStatus::Flushed, None));
        self.objects.deliver_completions();
        (Ok(()), Urgency::Now)
    }

    /// Posts a request. The data of a Read are the entries of its sink, which must be registered.
    ///
    /// # Errors
    /// For every request: [`VerbError::InvalidHandle`]; [`VerbError::NotConnected`]: not in [`QpState::Connected`], see
    /// [`ErrorStatePosts`] and [`Rnic::allow_sends`]; [`VerbError::QueueFull`]; [`VerbError::TooManySges`],
    /// [`VerbError::TooLong`], [`VerbError::InlineTooLong`]: a limit of the queue pair or the adapter is exceeded. For
    /// a Read or an atomic: [`VerbError::NoReads`]; [`VerbError::InvalidArgument`]: inline data. For an atomic or
    /// immediate data: [`VerbError::NoExtensions`]; [`VerbError::InvalidArgument`]: an operation of another
    /// [`QpService`](crate::rnic::QpService), or not the data that [`Operation`] specifies. With
    /// [`QpService::Ud`](crate::rnic::QpService), requests are posted by [`Rnic::post_datagram`].
    // Inlined so that the operation is not copied: most operations are smaller than the largest one.
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
            Operation::Send { invalidate } => WqeKind::Send { word: invalidate.into() },
            Operation::Write { to } => WqeKind::Write { to },
            Operation::Read { from, invalidate_sink } => WqeKind::Read { from, invalidate_sink },
            Operation::Atomic { .. }
            | Operation::Immediate { .. }
            | Operation::WriteImmediate { .. }
            | Operation::SendImmediate { .. } => {
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

    /// Schedules the transmission of a request after a post, successful or not: now, or with later requests. A success
    /// includes the state of the queue pair.
    #[inline(always)]
    fn posted(
        &mut self,
        id: QpId,
        result: Result<QpState, VerbError>,
        flags: WrFlags,
    ) -> (Result<(), VerbError>, Urgency) {
        // NDK-DEF-3: a failed post indicates the requests deferred before it.
        let urgency = match result {
            Ok(state) if state != QpState::Connected => self.posted_unconnected(id, state),
            Ok(_) if flags.contains(WrFlags::DEFER) => Urgency::None,
            Ok(_) | Err(_) => self.schedule_qp(id),
        };
        (result.map(drop), urgency)
    }

    /// Flushes a request posted in the error state. Otherwise executes local operations, which need no connection, or
    /// reports the first request that waits for one.
    #[cold]
    #[inline(never)]
    fn posted_unconnected(&mut self, id: QpId, state: QpState) -> Urgency {
        if state == QpState::Error {
            return self.flush_late(id);
        }
        if self.execute_early(id) {
            return Urgency::Now;
        }
        if state == QpState::Lost && self.complete_lost(id) {
            return Urgency::Now;
        }
        let is_first = self.objects.qps.get(id).is_some_and(|qp| qp.sends.outstanding() == 1);
        if !is_first {
            return Urgency::None;
        }
        self.objects.raise_qp_event(id, QpEvent::RequestsWaiting);
        Urgency::Now
    }

    /// Completes the requests of an unreliable queue pair whose connection is lost: their messages are lost. Returns
    /// false for another service.
    fn complete_lost(&mut self, id: QpId) -> bool {
        let is_unreliable = self.objects.qps.get(id).is_some_and(Qp::is_unreliable);
        if is_unreliable {
            self.objects.complete_lost(id);
            self.objects.deliver_completions();
        }
        is_unreliable
    }

    /// Flushes the last posted request: the queue pair is in the error state.
    pub(super) fn flush_late(&mut self, id: QpId) -> Urgency {
        let Objects { qps, completed, .. } = &mut self.objects;
        if let Some(qp) = qps.get_mut(id) {
            qp.flush_last(completed);
        }
        self.objects.deliver_completions();
        Urgency::Now
    }

    #[inline(always)]
    fn try_post(
        &mut self,
        id: QpId,
        context: u64,
        kind: WqeKind,
        data: Data<'_>,
        flags: WrFlags,
    ) -> Result<QpState, VerbError> {
        let is_read = matches!(kind, WqeKind::Read { .. });
        let (qp, length) = self.check_request(id, is_read, data)?;
        qp.flow.post(if is_read { 0 } else { length });
        if qp.is_acknowledged() {
            qp.flow.post_acknowledged(flags.contains(WrFlags::SILENT));
        }
        qp.push_request(context, kind, (data, length), flags);
        Ok(qp.state)
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
    ) -> Result<QpState, VerbError> {
        self.check_post(id, operation, data)?;
        let immediate = match operation {
            Operation::SendImmediate { data: immediate } => {
                let kind = WqeKind::Send { word: SendWord::Immediate(immediate) };
                return self.try_post(id, context, kind, data, flags);
            }
            Operation::Atomic { target, operation } => {
                let (qp, Data::Registered(sges)) = (self.check_sender(id)?, data) else {
                    return Err(VerbError::InvalidArgument);
                };
                qp.flow.post(0);
                let kind = WqeKind::atomic(target, &operation);
                qp.sends.push_atomic(context, flags, kind, operation, sges);
                return Ok(qp.state);
            }
            Operation::WriteImmediate { to, data: immediate } => {
                let (qp, length) = self.check_request(id, false, data)?;
                let immediate = if qp.is_rc() { with_length(immediate, length) } else { immediate };
                let part = flags | WrFlags::PART;
                let state = self.try_post(id, context, WqeKind::Write { to }, data, part)?;
                // In the error state the part is flushed with the rest, which completes for both.
                if state == QpState::Error {
                    self.check_sender(id)?.sends.finish_last(WcStatus::Flushed);
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
        Ok(qp.state)
    }

    /// Returns the queue pair if its send queue accepts a Send, Write or Read with this data, and the number of bytes.
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
            // The Read would wait forever.
            return Err(VerbError::NoReads);
        }
        let length = data_length(qp, &limits, is_read, data)?;
        Ok((qp, length))
    }

    /// Checks a request as [`Rnic::post`] does, without posting it. For requests that are posted together or not at
    /// all. [`Rnic::send_queue_room`] returns their maximum number.
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
            Operation::SendImmediate { .. } => {
                if !self.check_request(id, false, data)?.0.is_rc() {
                    return Err(VerbError::InvalidArgument);
                }
            }
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
                let is_rc = self.check_extensions(id)?.is_rc();
                if is_rc || !matches!(data, Data::Registered([])) {
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

    /// Returns the queue pair if its send queue accepts requests of RFC 7306.
    fn check_extensions(&mut self, id: QpId) -> Result<&mut Qp, VerbError> {
        let qp = self.check_sender(id)?;
        if qp.rfc7306 { Ok(qp) } else { Err(VerbError::NoExtensions) }
    }

    /// Enables or disables RFC 7306 for a queue pair before it is connected ([`Config::rfc7306`](crate::rnic::Config)).
    ///
    /// # Errors
    /// [`VerbError::InvalidHandle`]; [`VerbError::InvalidArgument`]: the queue pair is or was connected.
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
    /// As [`Rnic::post`]; [`VerbError::InvalidHandle`]: the region does not exist, or belongs to another domain;
    /// [`VerbError::InvalidArgument`]: bytes outside of the buffer or the pages, pages that are not aligned, more pages
    /// than the region was prepared for, or more bytes than [`Limits::registration_bytes_max`](crate::rnic::Limits);
    /// [`VerbError::NotMapped`]: logical addresses outside of mappings; [`VerbError::NoRemoteAccess`];
    /// [`VerbError::ReadOnly`].
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
            Err(error) => (Err(error), self.schedule_qp(id)),
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

    /// Posts an invalidation of a fast-registered region, or of a window of type 2 that this queue pair has bound
    /// (NDK-MEM-9). If the target is not valid when the request starts, it completes as [`WcStatus::LocalOperation`]
    /// and ends the connection. The same holds for a region with bound windows.
    ///
    /// # Errors
    /// As [`Rnic::post`]; [`VerbError::InvalidHandle`]: region or window does not exist, belongs to another domain, or
    /// is of another kind.
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
            Err(error) => (Err(error), self.schedule_qp(id)),
        }
    }

    /// Posts a bind of a memory window. Returns its token, for peers. Peers must not use the token before the bind
    /// completes, or before a later Send of the same queue pair has announced it. A bind that finds the region or the
    /// window in the wrong state when it starts completes as [`WcStatus::LocalOperation`] and ends the connection.
    ///
    /// # Errors
    /// As [`Rnic::post`]; [`VerbError::InvalidHandle`]: window or region does not exist, is being closed, or belongs to
    /// another domain; [`VerbError::InvalidArgument`]: bytes outside of the region, rights that are not remote rights,
    /// a key for a window of type 1, no bytes for a window of type 2, or a base that wraps;
    /// [`VerbError::RightsNotAllowed`]: the region is registered without [`Access::BIND`], or without
    /// [`Access::LOCAL_WRITE`] for a write right.
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
            Err(error) => (Err(error), self.schedule_qp(id)),
        }
    }

    /// Checks a bind as [`Rnic::post_bind`] does, without posting it. See [`Rnic::check_post`].
    ///
    /// # Errors
    /// As [`Rnic::post_bind`].
    pub fn check_bind(&mut self, id: QpId, bind: Bind) -> Result<(), VerbError> {
        let pd = self.check_sender(id)?.pd;
        self.objects.regions.check_bind(pd, bind)
    }

    /// Checks an invalidation as [`Rnic::post_invalidate`] does, without posting it. See [`Rnic::check_post`].
    ///
    /// # Errors
    /// As [`Rnic::post_invalidate`].
    pub fn check_invalidate(&mut self, id: QpId, target: Revocable) -> Result<(), VerbError> {
        let pd = self.check_sender(id)?.pd;
        self.objects.regions.check_revocable(pd, target)
    }

    /// Prepares a region for fast registrations. Each of them returns a token, which is valid while it is registered.
    ///
    /// # Errors
    /// [`VerbError::TooManyPages`]; [`VerbError::InvalidHandle`]; [`VerbError::InvalidArgument`]: not a region for fast
    /// registration, or a limit of zero pages; [`VerbError::NoResources`].
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

    /// Returns the number of requests that can be posted to the send queue now.
    #[must_use]
    pub fn send_queue_room(&self, id: QpId) -> usize {
        self.objects.qps.get(id).map_or(0, |qp| qp.sends.room())
    }

    /// As [`Rnic::check_any_sender`], for requests with a connection.
    #[inline]
    fn check_sender(&mut self, id: QpId) -> Result<&mut Qp, VerbError> {
        let qp = self.check_any_sender(id)?;
        if qp.ud.is_some() { Err(VerbError::InvalidArgument) } else { Ok(qp) }
    }

    /// Returns the queue pair if its send queue accepts requests: connected, or flushing late posts, and with room
    /// (NDK-CON-11).
    pub(super) fn check_any_sender(&mut self, id: QpId) -> Result<&mut Qp, VerbError> {
        let qp = self.objects.qps.get_mut(id).ok_or(VerbError::InvalidHandle)?;
        let is_late = qp.state == QpState::Error && qp.error_state_posts == ErrorStatePosts::Flush;
        if qp.state != QpState::Connected && !is_late && !qp.queues_posts() {
            return Err(if self.is_lost { VerbError::DeviceLost } else { VerbError::NotConnected });
        }
        if qp.sends.is_full() {
            return Err(VerbError::QueueFull);
        }
        Ok(qp)
    }

    /// Schedules the transmission of the queue pair's requests, including deferred ones ([`WrFlags::DEFER`]). Returns
    /// its urgency.
    #[inline]
    pub fn schedule_qp(&mut self, id: QpId) -> Urgency {
        let Some(qp) = self.objects.qps.get_mut(id) else { return Urgency::None };
        let Some(stream) = qp.stream else { return self.schedule_datagrams(id) };
        let urgency = match qp.flow.may_wait() {
            true => Urgency::Soon,
            false => Urgency::Now,
        };
        if !core::mem::replace(&mut qp.flow.is_scheduled, true) {
            match qp.state {
                QpState::Connected => self.schedule_opened(stream),
                _ => self.schedule(stream),
            }
        }
        urgency
    }
}
