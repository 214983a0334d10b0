//! Consumer calls that create and close objects.
//!
//! The close rules are those of NDKPI, the most lenient interface: an object may be closed before the objects that
//! depend on it, and its close pends in that case. An interface that refuses such a close keeps its own counts, or
//! queries [`Rnic::is_in_use`].

use alloc::{boxed::Box, sync::Arc};
use core::sync::atomic::Ordering;

use offload_engine::time::Instant;

use crate::{
    error::EndReason,
    mpa::Slab,
    rnic::{
        Rnic,
        config::ListenerConfig,
        connection::{
            connector::{Connector, ConnectorState},
            listener::{ConnectEvent, Listener, ListenerState},
        },
        memory::{
            region::{Owner, Region},
            registration::Access,
        },
        objects::{
            id::{ConnectorId, CqId, Key, ListenerId, PdId, QpId, RegionId, StreamId},
            lifetime::{Callback, Close, CloseCompletion, Life},
            pd::Pd,
        },
        queues::{
            cq::{CompletionQueue, Cq, Notification},
            qp::{CompletionRetention, Flow, Qp, QpConfig, QpNotification, QpNotifier, QpState},
            rc::{QpService, RcAttributes},
            receive_queue::{Receive, ReceiveQueue},
            send_queue::SendQueue,
        },
        stats::QpStats,
        status::{ConnectError, VerbError},
        transport::{Command, Reservation},
    },
};

impl Rnic {
    /// Checks that an object exists and is not being closed.
    pub(crate) fn check_open(&mut self, key: Key) -> Result<(), VerbError> {
        if self.objects.is_open(key) { Ok(()) } else { Err(VerbError::InvalidHandle) }
    }

    /// As [`Rnic::check_open`], for the parent of a new object: also fails after the loss of the device.
    pub(crate) fn check_parent(&mut self, key: Key) -> Result<(), VerbError> {
        if self.is_lost { Err(VerbError::DeviceLost) } else { self.check_open(key) }
    }

    /// Creates a completion queue of `depth` entries with its `notification`. The queue is returned with its
    /// identifier, because polling it needs no call of the adapter.
    ///
    /// # Errors
    /// [`VerbError::InvalidArgument`]: no entries, or more than [`Limits::cq_depth_max`](crate::rnic::Limits);
    /// [`VerbError::InvalidHandle`]: the adapter is being closed; [`VerbError::NoResources`];
    /// [`VerbError::DeviceLost`].
    pub fn create_cq(
        &mut self,
        depth: u32,
        notification: Notification,
    ) -> Result<(CqId, Arc<CompletionQueue>), VerbError> {
        self.check_parent(Key::Rnic)?;
        if depth == 0 || depth > self.config.limits.cq_depth_max {
            return Err(VerbError::InvalidArgument);
        }
        let queue = CompletionQueue::new(depth);
        let object = Cq { life: Life::default(), queue: queue.clone(), notification };
        let id = self.objects.cqs.insert(object).map_err(|_| VerbError::NoResources)?;
        self.objects.pin(Key::Rnic);
        Ok((id, queue))
    }

    /// Creates a protection domain.
    ///
    /// # Errors
    /// [`VerbError::InvalidHandle`]: the adapter is being closed; [`VerbError::NoResources`];
    /// [`VerbError::DeviceLost`].
    pub fn create_pd(&mut self) -> Result<PdId, VerbError> {
        self.check_parent(Key::Rnic)?;
        let pd = Pd { life: Life::default(), privileged_token: 0 };
        let id = self.objects.pds.insert(pd).map_err(|_| VerbError::NoResources)?;
        let token = self.objects.regions.draw_privileged(id);
        match (token, self.objects.pds.get_mut(id)) {
            (Ok(token), Some(pd)) => pd.privileged_token = token,
            _ => {
                self.objects.pds.remove(id);
                return Err(VerbError::NoResources);
            }
        }
        self.objects.pin(Key::Rnic);
        Ok(id)
    }

    /// Creates a memory region without a registration, for [`Rnic::register`] or for fast registrations.
    ///
    /// # Errors
    /// [`VerbError::InvalidHandle`]: the domain does not exist or is being closed; [`VerbError::NoResources`];
    /// [`VerbError::DeviceLost`].
    pub fn create_region(
        &mut self,
        pd: PdId,
        is_fast_register: bool,
    ) -> Result<RegionId, VerbError> {
        self.check_parent(Key::Pd(pd))?;
        let region = Region::new(pd, is_fast_register);
        let id = self.objects.regions.table.insert(region).map_err(|_| VerbError::NoResources)?;
        self.objects.pin(Key::Pd(pd));
        Ok(id)
    }

    /// Creates a queue pair.
    ///
    /// # Errors
    /// [`VerbError::InvalidArgument`]: a limit exceeds that of the adapter, or a completion queue has failed;
    /// [`VerbError::InvalidHandle`]: the domain or a queue does not exist or is being closed, or the shared receive
    /// queue belongs to another domain; [`VerbError::NoResources`]; [`VerbError::DeviceLost`].
    pub fn create_qp(&mut self, pd: PdId, config: QpConfig) -> Result<QpId, VerbError> {
        let QpConfig { receive_cq, send_cq, context, limits, srq, error_state_posts, service } =
            config;
        let rc = RcAttributes::of(service);
        let ud = (service == QpService::Ud).then(Box::default);
        limits.check(&self.config.limits)?;
        self.check_parent(Key::Pd(pd))?;
        for key in [Key::Cq(receive_cq), Key::Cq(send_cq)] {
            self.check_open(key)?;
        }
        for cq in [receive_cq, send_cq] {
            if self.objects.cqs.get(cq).is_some_and(|cq| cq.queue.has_failed()) {
                return Err(VerbError::InvalidArgument); // NDK-CQ-13
            }
        }
        let shared = match srq {
            None => None,
            Some(id) => {
                self.check_open(Key::Srq(id))?;
                let of_same_pd = self.objects.srqs.get(id).filter(|srq| srq.pd == pd);
                Some(of_same_pd.ok_or(VerbError::InvalidHandle)?.queue)
            }
        };
        let sink_token = self.objects.regions.draw(Owner::ReadSink)?;
        let own = || ReceiveQueue::new(limits.receive_queue_depth);
        let receive_queues = &mut self.objects.receive_queues;
        let receives = shared.map_or_else(|| receive_queues.insert(own()), Ok);
        let Ok(receives) = receives else {
            self.objects.regions.release_token(sink_token);
            return Err(VerbError::NoResources);
        };
        let qp = Qp {
            life: Life::default(),
            id: QpId::new(0, 0),
            pd,
            context,
            number: None,
            peer_number: None,
            limits,
            state: QpState::Idle,
            sends: SendQueue::new(send_cq, limits.initiator_queue_depth),
            receives,
            srq,
            receive_cq,
            receiving: Receive::default(),
            is_receiving: false,
            awaits_receive: false,
            flow: Flow::default(),
            captures: Slab::new(),
            sink_token,
            read_limit: 0,
            rfc7306: self.config.rfc7306 || rc.is_some(),
            rights: Access::REMOTE,
            rc,
            ud,
            twin_of: None,
            error_state_posts,
            retention: CompletionRetention::Keep,
            notifier: QpNotifier::default(),
            is_last_receive_reported: false,
            stream: None,
            stats: QpStats::default(),
        };
        let Ok(id) = self.objects.qps.insert(qp) else {
            self.objects.regions.release_token(sink_token);
            if srq.is_none() {
                self.objects.receive_queues.remove(receives);
            }
            return Err(VerbError::NoResources);
        };
        if let Some(qp) = self.objects.qps.get_mut(id) {
            qp.id = id;
        }
        self.pin_parents(id);
        Ok(id)
    }

    /// Pins the objects of a queue pair.
    pub(super) fn pin_parents(&mut self, id: QpId) {
        let Some(&Qp { pd, receive_cq, srq, ref sends, .. }) = self.objects.qps.get(id) else {
            return;
        };
        let keys = [Key::Pd(pd), Key::Cq(receive_cq), Key::Cq(sends.cq)];
        for key in keys.into_iter().chain(srq.map(Key::Srq)) {
            self.objects.pin(key);
        }
    }

    /// Registers `notification` for the events of a queue pair ([`QpEvent`](crate::rnic::QpEvent)).
    ///
    /// # Errors
    /// [`VerbError::InvalidHandle`].
    pub fn notify_of_qp(
        &mut self,
        id: QpId,
        notification: QpNotification,
    ) -> Result<(), VerbError> {
        let qp = self.objects.qps.get_mut(id).ok_or(VerbError::InvalidHandle)?;
        qp.notifier = QpNotifier(Some(notification));
        Ok(())
    }

    /// Creates a connector for one outgoing connection.
    ///
    /// # Errors
    /// [`VerbError::InvalidHandle`]: the adapter is being closed; [`VerbError::NoResources`];
    /// [`VerbError::DeviceLost`].
    pub fn create_connector(&mut self) -> Result<ConnectorId, VerbError> {
        self.check_parent(Key::Rnic)?;
        let connector = Connector::new(ConnectorState::Idle);
        let id = self.objects.connectors.insert(connector).map_err(|_| VerbError::NoResources)?;
        self.objects.pin(Key::Rnic);
        Ok(id)
    }

    /// Creates a listener. `event` is called with a connector for each incoming request, which is then accepted,
    /// rejected or closed.
    ///
    /// # Errors
    /// [`VerbError::InvalidHandle`]: the adapter is being closed; [`VerbError::NoResources`];
    /// [`VerbError::DeviceLost`].
    pub fn create_listener(&mut self, event: ConnectEvent) -> Result<ListenerId, VerbError> {
        self.check_parent(Key::Rnic)?;
        let listener = Listener {
            life: Life::default(),
            state: ListenerState::Idle,
            local: None,
            endpoint: None,
            is_paused: Arc::default(),
            event,
            request: None,
            config: ListenerConfig::default(),
            awaiting: Default::default(),
        };
        let id = self.objects.listeners.insert(listener).map_err(|_| VerbError::NoResources)?;
        self.objects.pin(Key::Rnic);
        Ok(id)
    }

    /// Closes an object. With [`Close::Pending`], `completion` is called as the last callback of the object, when
    /// nothing depends on it: its successors are closed, its requests have ended, and its callbacks have returned.
    /// Antecedents may be closed before their successors. A second close of one object has no further effect.
    ///
    /// | object | effect of the close | the close waits for |
    /// |---|---|---|
    /// | adapter | no new objects can be created | all objects |
    /// | protection domain | no new successors | regions, windows, queue pairs and shared receive queues |
    /// | completion queue | completions of its queue pairs are dropped | its queue pairs |
    /// | region | as [`Rnic::deregister`] | the uses of its memory, and windows bound to it |
    /// | memory window | it is unbound | nothing |
    /// | logical address mapping | its addresses are invalid; registrations of its pages end | uses of its memory |
    /// | queue pair | its connection is reset, unless it is being ended; a flush | its last connection's connector |
    /// | shared receive queue | no more posts; remaining receives are dropped without completion | its queue pairs |
    /// | connector | an unanswered offer is refused, a connection reset | its pending request |
    /// | listener | peers are refused from now on | connectors of its connections |
    /// | shared endpoint | no new connects from it | its connectors |
    pub fn close(&mut self, key: Key, completion: CloseCompletion) -> Close {
        match key {
            Key::Rnic | Key::Pd(_) | Key::Cq(_) | Key::Srq(_) | Key::SharedEndpoint(_) => {}
            Key::Region(id) => {
                self.objects.regions.revoke(id);
                self.recall(id);
            }
            Key::Window(id) => drop(self.objects.regions.unbind(id)),
            Key::Lam(id) => self.release_lam(id),
            Key::Qp(id) => self.release_qp(id),
            Key::Connector(id) => self.release_connector(id),
            Key::Listener(id) => self.unlisten(id),
        }
        self.objects.close(key, completion)
    }

    /// As [`Rnic::close`] for a queue pair, with the treatment of its completions.
    pub fn close_qp(
        &mut self,
        id: QpId,
        retention: CompletionRetention,
        completion: CloseCompletion,
    ) -> Close {
        match retention {
            CompletionRetention::Keep => {}
            CompletionRetention::Discard => self.objects.discard_completions(id),
        }
        self.close(Key::Qp(id), completion)
    }

    /// Returns true if a close of the object would pend now. A region is in use while it is registered.
    pub fn is_in_use(&mut self, key: Key) -> bool {
        self.take_returns();
        self.objects.is_pinned(key)
    }

    /// Ends a registration. Its token is invalid from now on: the memory is no longer written, and no request that
    /// starts later reads it, locally or at the peer. Such a request fails and ends its connection.
    ///
    /// Earlier requests may still read the memory: lists of FPDUs that TCP has not sent or may retransmit, and frames
    /// that a device has borrowed. With [`Close::Done`] there are no such uses. With [`Close::Pending`], `completion`
    /// is called when the last use ends, without any action of the consumer or a peer.
    ///
    /// In the next call of the transport for each connection, unacknowledged data is copied. A message that is only
    /// partly passed to TCP ends its connection, and its request completes with
    /// [`WcStatus::LocalProtection`](crate::rnic::WcStatus). Only frames that a device has borrowed have to be waited
    /// for. The owner passed to [`SharedSpan::from_raw`] is dropped before `completion` is called, unless the consumer
    /// itself still has a [`RegisteredBuffer`](crate::rnic::RegisteredBuffer) or span of the memory.
    ///
    /// A call that must not return before the memory is free (`ibv_dereg_mr`) uses a `completion` that sets a flag, and
    /// drives the adapter until the flag is set: [`Driver::wait_while`](crate::adapter::Driver::wait_while) does both.
    /// With kernel sockets, no use of the memory remains when the call that entered the adapter
    /// ([`Adapter::with`](crate::adapter::Adapter::with)) returns, because no device borrows it. `completion` is called
    /// in the next pass over the sockets.
    ///
    /// [`SharedSpan::from_raw`]: offload_engine::memory::SharedSpan::from_raw
    ///
    /// # Errors
    /// [`VerbError::InvalidArgument`]: the region is not registered, or it was registered by a work request, whose
    /// registration is ended by an invalidation (NDK-MEM-5, -9); [`VerbError::WindowsBound`].
    pub fn deregister(&mut self, id: RegionId, completion: Callback) -> Result<Close, VerbError> {
        self.deregister_or(id, completion, |_, _| Close::Done)
    }

    /// As [`Rnic::deregister`], with a completion that may be deferred ([`Deferral`](crate::rnic::Deferral)).
    ///
    /// # Errors
    /// As [`Rnic::deregister`].
    pub fn deregister_at(
        &mut self,
        now: Instant,
        id: RegionId,
        completion: Callback,
    ) -> Result<Close, VerbError> {
        self.deregister_or(id, completion, |rnic, completion| {
            rnic.pend(now, Key::Region(id), completion).map_or(Close::Done, |()| Close::Pending)
        })
    }

    /// Exchanges the tokens of two registered regions: users of a token reach the other memory, with its domain and its
    /// rights. For a registration that replaces another one under its token. Windows remain bound to their memory.
    ///
    /// # Errors
    /// [`VerbError::InvalidHandle`]; [`VerbError::InvalidArgument`]: the same region, one for fast registrations, or
    /// one that is not registered.
    pub fn exchange_tokens(&mut self, ids: [RegionId; 2]) -> Result<(), VerbError> {
        self.objects.regions.exchange_tokens(ids)
    }

    fn deregister_or(
        &mut self,
        id: RegionId,
        completion: Callback,
        unused: impl FnOnce(&mut Self, Callback) -> Close,
    ) -> Result<Close, VerbError> {
        let region = self.objects.regions.table.get(id).ok_or(VerbError::InvalidArgument)?;
        if region.is_fast_register {
            return Err(VerbError::InvalidArgument);
        }
        if region.windows > 0 {
            return Err(VerbError::WindowsBound);
        }
        if !self.objects.regions.revoke(id) {
            return Err(VerbError::InvalidArgument);
        }
        if !self.recall(id) {
            return Ok(unused(self, completion));
        }
        if let Some(region) = self.objects.regions.table.get_mut(id) {
            region.uses.begin_deregistration(completion);
        }
        Ok(Close::Pending)
    }

    /// Requests that streams release withdrawn memory if the region's memory is in use. Returns true if it is.
    fn recall(&mut self, id: RegionId) -> bool {
        self.take_returns();
        let is_used = self.objects.regions.is_used(id);
        if is_used {
            self.recall_memory();
        }
        is_used
    }

    /// NDK-LIFE-3, -11: without a disconnect the connection is aborted, and all requests are flushed.
    fn release_qp(&mut self, id: QpId) {
        let stream = self.objects.qps.get(id).and_then(|qp| qp.stream);
        let connector = stream
            .and_then(|id| self.streams.get(&id)?.connector)
            .and_then(|connector| self.objects.connectors.get(connector));
        match stream {
            // The disconnect performs the flush (NDK-DISC-1).
            Some(_)
                if connector
                    .is_some_and(|connector| connector.state == ConnectorState::Disconnecting) => {}
            Some(stream) => {
                self.end_stream(stream, ConnectError::Cancelled);
                // A queue pair whose connect was pending is idle again, with its receives.
                self.objects.flush(id);
            }
            None => self.objects.flush(id),
        }
    }

    /// NDK-LIFE-11: an unanswered passive connector is refused.
    fn release_connector(&mut self, id: ConnectorId) {
        let Some(connector) = self.objects.connectors.get(id) else { return };
        let Some(stream) = connector.stream else { return };
        match connector.state {
            ConnectorState::Pending => self.with_stream(stream, |stream, _, _| stream.refuse()),
            // The requested graceful end continues; its completion precedes that of the close.
            ConnectorState::Disconnecting => {}
            _ => self.end_stream(stream, ConnectError::Cancelled),
        }
    }

    /// Aborts a stream from this end, without a disconnect event (NDK-DISC-4).
    pub(crate) fn end_stream(&mut self, id: StreamId, error: ConnectError) {
        self.with_stream(id, |stream, objects, _| {
            if let Some(connector) = stream.connector.and_then(|id| objects.connectors.get_mut(id))
            {
                connector.disconnect_event = None;
            }
        });
        self.end_locally(id, error, EndReason::Lost(error.into()));
    }

    /// Ends the connection of a stream from this end: with a FIN for a queue pair of
    /// [`QpService::Rc`](crate::rnic::QpService), otherwise with a reset.
    fn end_locally(&mut self, id: StreamId, error: ConnectError, reason: EndReason) {
        let mut is_draining = false;
        self.with_stream(id, |stream, objects, _| {
            is_draining = stream.end_locally(objects, error, reason);
        });
        if !is_draining {
            self.abort_stream(id);
        }
    }

    /// Refuses the connection of a connect event that was not delivered.
    pub(crate) fn refuse(&mut self, id: ConnectorId) {
        if let Some(stream) = self.objects.connectors.get(id).and_then(|connector| connector.stream)
        {
            self.with_stream(stream, |stream, _, _| stream.refuse());
        }
        // The consumer never received its identifier.
        let _ = self.objects.close(Key::Connector(id), Box::new(|| {}));
    }

    /// Completes all posted requests as flushed. A connected queue pair cannot continue (NDK-FL-4): its connection is
    /// reset. No disconnect event follows, because this end closes the connection (NDK-DISC-4).
    pub fn flush(&mut self, id: QpId) {
        match self.established(id) {
            Some(stream) => self.end_stream(stream, ConnectError::Aborted),
            None => self.objects.flush(id),
        }
    }

    /// Returns the stream of a queue pair whose connection is established and is not being ended by this end.
    fn established(&self, id: QpId) -> Option<StreamId> {
        let stream = self.objects.qps.get(id)?.stream?;
        let connector = self.objects.connectors.get(self.streams.get(&stream)?.connector?)?;
        (connector.state == ConnectorState::Connected).then_some(stream)
    }

    /// Moves a queue pair to [`QpState::Error`] from any state. Its connection or connection attempt is reset, and all
    /// posted requests are flushed. The disconnect event of an established connection follows.
    pub fn break_qp(&mut self, id: QpId) {
        if let Some(stream) = self.established(id) {
            let error = ConnectError::Aborted;
            self.end_locally(stream, error, EndReason::Lost(error.into()));
        } else {
            self.objects.flush(id);
        }
        if let Some(stream) = self.objects.qps.get(id).and_then(|qp| qp.stream) {
            self.end_stream(stream, ConnectError::Cancelled);
        }
        self.objects.break_qp(id);
    }

    /// Moves a queue pair to [`QpState::Idle`] from any state, so that it can be connected again. Its connection is
    /// reset if there is one, without a disconnect event. Its queues are emptied without completions, and its unpolled
    /// completions are removed from their queues. Identifier, limits and statistics remain.
    ///
    /// The connector of its last connection is no longer used, but the consumer has to close it. Until then a close of
    /// the queue pair pends.
    ///
    /// # Errors
    /// [`VerbError::InvalidHandle`]: the queue pair does not exist, or is being closed.
    pub fn reset_qp(&mut self, id: QpId) -> Result<(), VerbError> {
        self.check_open(Key::Qp(id))?;
        self.objects.discard_completions(id);
        if let Some(stream) = self.objects.qps.get(id).and_then(|qp| qp.stream) {
            self.end_stream(stream, ConnectError::Cancelled);
        }
        self.objects.break_qp(id);
        self.objects.regions.unbind_all(id);
        let qp = self.objects.qps.get_mut(id).ok_or(VerbError::InvalidHandle)?;
        qp.reset();
        Ok(())
    }

    /// Pauses or resumes a listener. While paused, connection requests are rejected without private data.
    pub fn pause(&mut self, id: ListenerId, pause: bool) {
        let listener = self.objects.listeners.get(id);
        // A listener that is being closed remains paused (NDK-EP-5).
        if let Some(listener) = listener.filter(|listener| !listener.life.is_closing()) {
            listener.is_paused.store(pause, Ordering::Release);
        }
    }

    /// Stops a listener: new connections are rejected from now on (NDK-EP-5).
    fn unlisten(&mut self, id: ListenerId) {
        let Some(listener) = self.objects.listeners.get_mut(id) else { return };
        listener.is_paused.store(true, Ordering::Release);
        if listener.state != ListenerState::Idle {
            listener.state = ListenerState::Idle;
            self.commands.push_back(Command::Unlisten { listener: id });
            if listener.endpoint.is_none() {
                // The transport has not answered yet.
                let reservation = Reservation::Listener(id);
                self.commands.push_back(Command::Release { reservation });
            }
        }
        let request = listener.request.take();
        if let Some(completion) = request {
            self.objects.end_request(Key::Listener(id), completion, Err(ConnectError::Cancelled));
        }
    }
}
