//! Calls of queue pairs of [`QpService::Rc`](crate::rnic::QpService).

use crate::{
    mpa::Slab,
    rnic::{
        Rnic,
        memory::{region::Owner, registration::Access},
        objects::{
            id::{Key, QpId},
            lifetime::Life,
        },
        queues::{
            qp::{CompletionRetention, Flow, Qp, QpNotifier, QpState},
            rc::{QpService, RcAttributes, RcPeer},
            receive_queue::Receive,
            send_queue::{Progress, SendQueue},
        },
        stats::QpStats,
        status::{VerbError, WcStatus},
        stream::Stream,
        tables::Objects,
    },
};

impl Rnic {
    /// Returns the attributes of a queue pair of [`QpService::Rc`](crate::rnic::QpService).
    fn rc_attributes(&mut self, id: QpId) -> Result<&mut RcAttributes, VerbError> {
        let qp = self.objects.qps.get_mut(id).ok_or(VerbError::InvalidHandle)?;
        qp.rc.as_mut().ok_or(VerbError::InvalidArgument)
    }

    /// Changes the service of a queue pair before it is connected. Its receives remain. In other states than
    /// [`QpState::Idle`], and from or to [`QpService::Ud`], the call has no effect.
    ///
    /// # Errors
    /// [`VerbError::InvalidHandle`].
    pub fn set_qp_service(&mut self, id: QpId, service: QpService) -> Result<(), VerbError> {
        let qp = self.objects.qps.get_mut(id).ok_or(VerbError::InvalidHandle)?;
        let services = [qp.service(), service];
        if qp.state == QpState::Idle
            && services[0] != services[1]
            && !services.contains(&QpService::Ud)
        {
            qp.rc = RcAttributes::of(service);
            qp.rfc7306 = self.config.rfc7306 || qp.is_rc();
        }
        Ok(())
    }

    /// Allows posts to the send queue of a queue pair of [`QpService::Rc`](crate::rnic::QpService) that is not
    /// connected, until it is reset. The requests are sent in order once it is connected, and count for the depth of
    /// the queue. Local operations (binds, invalidations, fast registrations) before the first of them are executed at
    /// once.
    ///
    /// A queue pair of [`QpService::Ud`](crate::rnic::QpService) accepts datagrams after the call, also after a failed
    /// one.
    ///
    /// # Errors
    /// [`VerbError::InvalidHandle`]; [`VerbError::InvalidArgument`]: another service.
    pub fn allow_sends(&mut self, id: QpId) -> Result<(), VerbError> {
        if self.is_datagram_qp(id) {
            return self.allow_datagrams(id);
        }
        self.rc_attributes(id)?.allows_sends = true;
        Ok(())
    }

    /// Holds the requests of a queue pair that have not started, or starts them again. Posts are accepted in both
    /// cases. A reset ends the hold.
    ///
    /// # Errors
    /// [`VerbError::InvalidHandle`]; [`VerbError::InvalidArgument`]: of [`QpService::Iwarp`](crate::rnic::QpService).
    pub fn hold_sends(&mut self, id: QpId, is_held: bool) -> Result<(), VerbError> {
        match self.objects.qps.get_mut(id).and_then(|qp| qp.ud.as_mut()) {
            Some(ud) => ud.holds_sends = is_held,
            None => self.rc_attributes(id)?.holds_sends = is_held,
        }
        self.execute_early(id);
        let _ = self.schedule_qp(id);
        Ok(())
    }

    /// Executes the local operations at the front of the send queue of a queue pair that is not connected: they need no
    /// peer. One that fails completes as [`WcStatus::LocalOperation`] and moves the queue pair to [`QpState::Error`].
    /// Returns true if there was one.
    pub(super) fn execute_early(&mut self, id: QpId) -> bool {
        let Objects { qps, regions, completed, .. } = &mut self.objects;
        let Some(qp) = qps.get_mut(id).filter(|qp| qp.queues_posts()) else { return false };
        let (mut has_executed, mut is_intact) = (false, true);
        while is_intact && qp.is_next_early() {
            (has_executed, is_intact) = (true, qp.execute_local(regions));
        }
        if !has_executed {
            return false;
        }
        qp.complete_done(completed);
        if !is_intact {
            self.break_qp(id);
        }
        self.objects.deliver_completions();
        true
    }

    /// Returns true if all requests that have started are complete.
    #[must_use]
    pub fn are_sends_drained(&self, id: QpId) -> bool {
        let Some(qp) = self.objects.qps.get(id) else { return true };
        let stream = qp.stream.and_then(|id| self.streams.get(&id));
        qp.sends.begun() == 0 && !stream.is_some_and(Stream::is_cutting_request)
    }

    /// Sets the parameters of the peer's requests, in any state. They apply at once, also to a message that waits for a
    /// receive: its time is counted from the start of the wait. For a new connection they are set before
    /// [`Rnic::accept`] or [`Rnic::complete_connect`]. By default, and after a reset, messages wait without a limit.
    ///
    /// # Errors
    /// As [`Rnic::allow_sends`].
    pub fn set_rc_peer(&mut self, id: QpId, peer: RcPeer) -> Result<(), VerbError> {
        self.rc_attributes(id)?.peer = peer;
        if let Some(stream) = self.objects.qps.get(id).and_then(|qp| qp.stream) {
            self.with_stream(stream, |stream, objects, _| stream.change_wait(objects));
        }
        Ok(())
    }

    /// Sets the rights of the peer's Writes, Reads and atomics at a queue pair, in any state, in addition to the rights
    /// of the memory. By default, and after a reset, the peer has all of them. Local rights are ignored. A request
    /// without the right fails as [`WcStatus::RemoteInvalidRequest`] at the peer, and ends the connection. The rights
    /// apply with [`QpService::Rc`](crate::rnic::QpService) only; of another service the memory alone decides.
    ///
    /// # Errors
    /// [`VerbError::InvalidHandle`].
    pub fn set_qp_access(&mut self, id: QpId, rights: Access) -> Result<(), VerbError> {
        let qp = self.objects.qps.get_mut(id).ok_or(VerbError::InvalidHandle)?;
        qp.rights = rights;
        Ok(())
    }

    /// Returns the number of posted requests of the send queue that are not complete. A Write with immediate data is
    /// one.
    #[must_use]
    pub fn outstanding_sends(&self, id: QpId) -> usize {
        self.objects.qps.get(id).map_or(0, |qp| qp.sends.outstanding())
    }

    /// Fails the oldest outstanding request of a queue pair of [`QpService::Rc`](crate::rnic::QpService) with `status`,
    /// and moves the queue pair to [`QpState::Error`] as [`Rnic::break_qp`] does. For retries that have expired.
    ///
    /// # Errors
    /// As [`Rnic::allow_sends`].
    pub fn fail_sends(&mut self, id: QpId, status: WcStatus) -> Result<(), VerbError> {
        self.rc_attributes(id)?;
        let qp = self.objects.qps.get_mut(id);
        if let Some(request) = qp.and_then(|qp| qp.sends.oldest_unfinished()) {
            request.progress = Progress::Done(status);
        }
        self.break_qp(id);
        Ok(())
    }

    /// Creates the twin of a queue pair of [`QpService::Rc`](crate::rnic::QpService): the passive end of a connection
    /// of the queue pair to itself. Messages to the twin take receives of the queue pair, and complete them with its
    /// identifier and context. Domain, completion queues and rights are those of the queue pair at the time of the
    /// call. Nothing is posted to the twin.
    ///
    /// A close of the queue pair pends until the twin is closed.
    ///
    /// # Errors
    /// As [`Rnic::allow_sends`], and [`VerbError::InvalidArgument`] for a twin; [`VerbError::InvalidHandle`] also while
    /// the queue pair is being closed; [`VerbError::NoResources`]; [`VerbError::DeviceLost`].
    pub fn create_twin(&mut self, id: QpId) -> Result<QpId, VerbError> {
        self.check_parent(Key::Qp(id))?;
        let RcAttributes { peer, is_unreliable, .. } = *self.rc_attributes(id)?;
        let sink_token = self.objects.regions.draw(Owner::ReadSink)?;
        let twin = self.objects.qps.get(id).filter(|qp| qp.twin_of.is_none()).map(|qp| Qp {
            life: Life::default(),
            id: qp.id,
            pd: qp.pd,
            context: qp.context,
            number: qp.number,
            peer_number: qp.peer_number,
            limits: qp.limits,
            state: QpState::Idle,
            sends: SendQueue::new(qp.sends.cq, 0),
            receives: qp.receives,
            srq: qp.srq,
            receive_cq: qp.receive_cq,
            receiving: Receive::default(),
            is_receiving: false,
            awaits_receive: false,
            flow: Flow::default(),
            captures: Slab::new(),
            sink_token,
            read_limit: 0,
            rfc7306: qp.rfc7306,
            rights: qp.rights,
            rc: Some(RcAttributes { peer, is_unreliable, ..RcAttributes::default() }),
            ud: None,
            twin_of: Some(id),
            error_state_posts: qp.error_state_posts,
            retention: CompletionRetention::Keep,
            notifier: QpNotifier::default(),
            is_last_receive_reported: true,
            stream: None,
            stats: QpStats::default(),
        });
        let inserted = twin
            .ok_or(VerbError::InvalidArgument)
            .and_then(|twin| self.objects.qps.insert(twin).map_err(|_| VerbError::NoResources));
        match inserted {
            Ok(twin) => {
                self.pin_parents(twin);
                self.objects.pin(Key::Qp(id));
            }
            Err(_) => self.objects.regions.release_token(sink_token),
        }
        inserted
    }
}
