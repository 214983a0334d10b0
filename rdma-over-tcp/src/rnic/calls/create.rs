//! Consumers' calls that make and close objects.
//!
//! Closing works as in NDKPI, which is the most lenient of the interfaces: an object may be closed before those that
//! depend on it, its close is pending then. An interface that refuses it counts for itself, or asks
//! [`Rnic::is_in_use`].

use alloc::{boxed::Box, sync::Arc};
use core::sync::atomic::Ordering;

use offload_engine::time::Instant;

use crate::{
    mpa::Slab,
    rnic::{
        Rnic,
        config::ListenerConfig,
        connection::{
            connector::{Connector, ConnectorState},
            listener::{ConnectEvent, Listener, ListenerState},
        },
        memory::region::{Owner, Region},
        objects::{
            id::{ConnectorId, CqId, Key, ListenerId, PdId, QpId, RegionId, StreamId},
            lifetime::{Callback, Close, CloseCompletion, Life},
            pd::Pd,
        },
        queues::{
            cq::{CompletionQueue, Cq, Notification},
            qp::{Flow, Qp, QpConfig, QpNotification, QpNotifier, QpState, Unpolled},
            receive_queue::{Receive, ReceiveQueue},
            send_queue::SendQueue,
        },
        stats::QpStats,
        status::{ConnectError, VerbError},
        transport::{Command, Reservation},
    },
};

impl Rnic {
    /// An object that is there and not being closed.
    pub(crate) fn check_open(&mut self, key: Key) -> Result<(), VerbError> {
        if self.objects.is_open(key) { Ok(()) } else { Err(VerbError::InvalidHandle) }
    }

    /// As [`Rnic::check_open`], of an object that something new is to belong to: not behind the loss of the device.
    pub(crate) fn check_parent(&mut self, key: Key) -> Result<(), VerbError> {
        if self.is_lost { Err(VerbError::DeviceLost) } else { self.check_open(key) }
    }

    /// A completion queue of `depth` entries, which `notification` is for. The queue is returned beside its name:
    /// polling it needs no call of the adapter.
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

    /// A protection domain.
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

    /// A memory region that nothing is registered with yet: for [`Rnic::register`], or for fast registrations.
    ///
    /// # Errors
    /// [`VerbError::InvalidHandle`]: the domain is gone or is being closed; [`VerbError::NoResources`];
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

    /// A queue pair.
    ///
    /// # Errors
    /// [`VerbError::InvalidArgument`]: a limit over the adapter's, or a completion queue that has failed;
    /// [`VerbError::InvalidHandle`]: the domain or a queue is gone or is being closed, or the shared receive queue is
    /// of another domain; [`VerbError::NoResources`];
    /// [`VerbError::DeviceLost`].
    pub fn create_qp(&mut self, pd: PdId, config: QpConfig) -> Result<QpId, VerbError> {
        let QpConfig { receive_cq, send_cq, context, limits, srq, late_posts } = config;
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
            self.objects.regions.give_back(sink_token);
            return Err(VerbError::NoResources);
        };
        let qp = Qp {
            life: Life::default(),
            id: QpId::new(0, 0),
            pd,
            context,
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
            rfc7306: self.config.rfc7306,
            late_posts,
            unpolled: Unpolled::Keep,
            notifier: QpNotifier::default(),
            is_last_receive_told: false,
            stream: None,
            stats: QpStats::default(),
        };
        let Ok(id) = self.objects.qps.insert(qp) else {
            self.objects.regions.give_back(sink_token);
            if srq.is_none() {
                self.objects.receive_queues.remove(receives);
            }
            return Err(VerbError::NoResources);
        };
        if let Some(qp) = self.objects.qps.get_mut(id) {
            qp.id = id;
        }
        for key in [Key::Pd(pd), Key::Cq(receive_cq), Key::Cq(send_cq)] {
            self.objects.pin(key);
        }
        if let Some(srq) = srq {
            self.objects.pin(Key::Srq(srq));
        }
        Ok(id)
    }

    /// Has `notification` called for a queue pair's events ([`QpEvent`](crate::rnic::QpEvent)), from now on.
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

    /// A connector, for one connection that this side opens.
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

    /// A listener. `event` is given a connector for each incoming request, to be accepted, rejected or closed.
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
            quiet: Arc::default(),
            event,
            request: None,
            config: ListenerConfig::default(),
            awaiting: Default::default(),
        };
        let id = self.objects.listeners.insert(listener).map_err(|_| VerbError::NoResources)?;
        self.objects.pin(Key::Rnic);
        Ok(id)
    }

    /// Closes an object. [`Close::Pending`]: `completion` follows as the last callback for it, when nothing depends on
    /// it any more: its successors are closed, its requests have ended, and its callbacks have returned. Antecedents
    /// may be closed before their successors. A second close of one object changes nothing.
    ///
    /// | object | what its close does | what it waits for |
    /// |---|---|---|
    /// | adapter | nothing new can be created | all objects |
    /// | protection domain | no new successors | regions, windows, queue pairs and shared receive queues |
    /// | completion queue | completions of its queue pairs are dropped | its queue pairs |
    /// | region | as [`Rnic::deregister`] | the uses of its memory, and windows that are bound to it |
    /// | memory window | it is unbound | nothing |
    /// | logical address mapping | its addresses open nothing; registrations of its pages end | uses of its memory |
    /// | queue pair | its connection is reset, unless it is being ended; a flush | its last connection's connector |
    /// | shared receive queue | no more posts; receives that are left vanish in the end | its queue pairs |
    /// | connector | an offer that was not answered is refused, a connection reset | its pending request |
    /// | listener | peers are refused from now on | connectors of its connections |
    /// | shared endpoint | nothing connects from it any more | connectors that have |
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

    /// As [`Rnic::close`] of a queue pair, and says what becomes of its completions.
    pub fn close_qp(&mut self, id: QpId, unpolled: Unpolled, completion: CloseCompletion) -> Close {
        match unpolled {
            Unpolled::Keep => {}
            Unpolled::Discard => self.objects.discard_completions(id),
        }
        self.close(Key::Qp(id), completion)
    }

    /// Returns whether a close of the object would have to wait, as things are. A region counts as in use as long as it
    /// is registered.
    pub fn is_in_use(&mut self, key: Key) -> bool {
        self.take_returns();
        self.objects.is_pinned(key)
    }

    /// Ends a registration. The token opens nothing from now on: no byte of the memory is written any more, and none is
    /// read for a request that begins later, here or at the peer; such a request fails, and ends its connection.
    ///
    /// What has begun may still read the memory: lists of FPDUs that TCP has not sent or may have to retransmit, a
    /// frame that a device has borrowed. [`Close::Done`]: nothing does. [`Close::Pending`]: `completion` follows as
    /// soon as nothing does, and it is certain to follow without any help of the consumer or a peer: in the transport's
    /// next call for each connection what is not acknowledged is copied, and a message of which a part is not with TCP
    /// yet ends its connection, its request completing with [`WcStatus::LocalProtection`](crate::rnic::WcStatus). Only
    /// a frame that a device has borrowed is waited for. The owner that [`SharedSpan::from_raw`] was given is dropped
    /// before `completion` is called, unless the consumer itself has a
    /// [`RegisteredBuffer`](crate::rnic::RegisteredBuffer) or span of the memory left.
    ///
    /// A consumer whose call must not return before the memory is free (`ibv_dereg_mr`) has `completion` set a flag,
    /// and drives the adapter until it is set: [`Driver::wait_while`](crate::adapter::Driver::wait_while) does both.
    /// With kernel sockets nothing uses the memory any more when the call that has entered the adapter
    /// ([`Adapter::with`](crate::adapter::Adapter::with)) returns, since no device borrows it; `completion` follows
    /// in the next pass over the sockets.
    ///
    /// [`SharedSpan::from_raw`]: offload_engine::memory::SharedSpan::from_raw
    ///
    /// # Errors
    /// [`VerbError::InvalidArgument`]: the region is not registered, or by a work request, whose registration an
    /// invalidation ends (NDK-MEM-5, -9); [`VerbError::WindowsBound`].
    pub fn deregister(&mut self, id: RegionId, completion: Callback) -> Result<Close, VerbError> {
        self.deregister_or(id, completion, |_, _| Close::Done)
    }

    /// As [`Rnic::deregister`], which may be held back ([`Deferral`](crate::rnic::Deferral)).
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
            region.uses.await_end(completion);
        }
        Ok(Close::Pending)
    }

    /// Has streams let go of memory that is wanted back, if some of the region's is in use. Returns whether it is.
    fn recall(&mut self, id: RegionId) -> bool {
        self.take_returns();
        let is_used = self.objects.regions.is_used(id);
        if is_used {
            self.recall_memory();
        }
        is_used
    }

    /// NDK-LIFE-3, -11: without a disconnect the connection is aborted, and everything flushed.
    fn release_qp(&mut self, id: QpId) {
        let stream = self.objects.qps.get(id).and_then(|qp| qp.stream);
        let connector = stream
            .and_then(|id| self.streams.get(&id)?.connector)
            .and_then(|connector| self.objects.connectors.get(connector));
        match stream {
            // The flush comes with the disconnect (NDK-DISC-1).
            Some(_)
                if connector
                    .is_some_and(|connector| connector.state == ConnectorState::Disconnecting) => {}
            Some(stream) => {
                self.end_stream(stream, ConnectError::Cancelled);
                // One whose connect was under way is idle again, with its receives.
                self.objects.flush(id);
            }
            None => self.objects.flush(id),
        }
    }

    /// NDK-LIFE-11. A passive connector that was not answered is refused.
    fn release_connector(&mut self, id: ConnectorId) {
        let Some(connector) = self.objects.connectors.get(id) else { return };
        let Some(stream) = connector.stream else { return };
        match connector.state {
            ConnectorState::Pending => self.with_stream(stream, |stream, _, _| stream.refuse()),
            // The graceful end that was asked for goes on; its completion comes before the close's.
            ConnectorState::Disconnecting => {}
            _ => self.end_stream(stream, ConnectError::Cancelled),
        }
    }

    /// Ends a stream from this side, abruptly, without a disconnect event (NDK-DISC-4).
    pub(crate) fn end_stream(&mut self, id: StreamId, error: ConnectError) {
        self.with_stream(id, |stream, objects, _| {
            if let Some(connector) = stream.connector.and_then(|id| objects.connectors.get_mut(id))
            {
                connector.disconnect_event = None;
            }
            stream.lost(objects, error);
        });
        self.abort_stream(id);
    }

    /// A connect event that was not delivered.
    pub(crate) fn refuse(&mut self, id: ConnectorId) {
        if let Some(stream) = self.objects.connectors.get(id).and_then(|connector| connector.stream)
        {
            self.with_stream(stream, |stream, _, _| stream.refuse());
        }
        // The consumer never had its name.
        let _ = self.objects.close(Key::Connector(id), Box::new(|| {}));
    }

    /// Completes everything posted as flushed. A connected queue pair cannot go on after it (NDK-FL-4): its connection
    /// is reset. No disconnect event follows: the end is this side's (NDK-DISC-4).
    pub fn flush(&mut self, id: QpId) {
        match self.established(id) {
            Some(stream) => self.end_stream(stream, ConnectError::Aborted),
            None => self.objects.flush(id),
        }
    }

    /// The stream of a queue pair whose connection is established, and is not being ended by this side.
    fn established(&self, id: QpId) -> Option<StreamId> {
        let stream = self.objects.qps.get(id)?.stream?;
        let connector = self.objects.connectors.get(self.streams.get(&stream)?.connector?)?;
        (connector.state == ConnectorState::Connected).then_some(stream)
    }

    /// Brings a queue pair to [`QpState::Error`] from any state: its connection, or the attempt to make one, is reset,
    /// and everything posted is flushed. The disconnect event of an established connection follows.
    pub fn break_qp(&mut self, id: QpId) {
        if let Some(stream) = self.established(id) {
            self.with_stream(stream, |it, objects, _| it.lost(objects, ConnectError::Aborted));
            self.abort_stream(stream);
        } else {
            self.objects.flush(id);
        }
        if let Some(stream) = self.objects.qps.get(id).and_then(|qp| qp.stream) {
            self.end_stream(stream, ConnectError::Cancelled);
        }
        self.objects.break_qp(id);
    }

    /// Brings a queue pair back to [`QpState::Idle`], from any state, so that it can be connected again. Its connection
    /// is reset if there is one, without a disconnect event; its queues are emptied and give no completion; those of
    /// its completions that were not polled are taken out of their queues. Name, limits, and statistics stay. The
    /// connector of its last connection is not used any more, and is the consumer's to close: until then a close of the
    /// queue pair is pending.
    ///
    /// # Errors
    /// [`VerbError::InvalidHandle`]: gone, or being closed.
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

    /// While paused, connection requests are refused as if nobody listened.
    pub fn pause(&mut self, id: ListenerId, pause: bool) {
        let listener = self.objects.listeners.get(id);
        // One that is being closed stays quiet (NDK-EP-5).
        if let Some(listener) = listener.filter(|listener| !listener.life.is_closing()) {
            listener.quiet.store(pause, Ordering::Release);
        }
    }

    /// NDK-EP-5: new connections are rejected from now on.
    fn unlisten(&mut self, id: ListenerId) {
        let Some(listener) = self.objects.listeners.get_mut(id) else { return };
        listener.quiet.store(true, Ordering::Release);
        if listener.state != ListenerState::Idle {
            listener.state = ListenerState::Idle;
            self.commands.push_back(Command::Unlisten { listener: id });
            if listener.endpoint.is_none() {
                // The answer is still on its way.
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
