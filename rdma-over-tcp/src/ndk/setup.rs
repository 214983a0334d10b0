//! Consumers' calls that make, connect and close objects.

use alloc::boxed::Box;
use core::{net::SocketAddr, sync::atomic::Ordering};

use bytes::Bytes;
use host_stack::socket::{ListenerId, Request};
use offload_engine::{chimney::client::OffloadHandle, time::Instant};

use super::{
    adapter::AdapterCore,
    connector::{Connector, ConnectorState, DisconnectEvent, ReadLimit},
    cq::CompletionQueue,
    info::AdapterInfo,
    lifetime::{CloseCompletion, Cq, Key, Life, RequestCompletion},
    listener::{BACKLOG, ConnectEvent, Listener, ListenerState},
    mr::{Keys, Mr},
    pd::Pd,
    qp::{Flow, Qp, QpLimits, QpState},
    queue::{InitiatorQueue, ReceiveQueue},
    slab::Id,
    status::NtStatus,
    stream::Stream,
};
use crate::mpa::{Slab, startup::PrivateData};

const FULL: NtStatus = NtStatus::INSUFFICIENT_RESOURCES;

impl AdapterCore {
    pub(crate) const fn info(&self) -> AdapterInfo {
        self.config.info
    }

    fn check_open(&mut self, key: Key) -> Result<(), NtStatus> {
        if self.objects.is_open(key) { Ok(()) } else { Err(NtStatus::INVALID_PARAMETER) }
    }

    pub(crate) fn create_cq(
        &mut self,
        depth: u32,
        notification: super::Notification,
    ) -> Result<(Id<Cq>, alloc::sync::Arc<CompletionQueue>), NtStatus> {
        if depth > self.config.info.max_cq_depth {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        self.check_open(Key::Adapter)?;
        let queue = CompletionQueue::new(depth);
        let object = Cq { life: Life::default(), queue: queue.clone(), notification };
        let id = self.objects.cqs.insert(object).map_err(|_| FULL)?;
        self.objects.pin(Key::Adapter);
        Ok((id, queue))
    }

    pub(crate) fn create_pd(&mut self) -> Result<Id<Pd>, NtStatus> {
        self.check_open(Key::Adapter)?;
        let id = self.objects.pds.insert(Pd { life: Life::default() }).map_err(|_| FULL)?;
        self.objects.pin(Key::Adapter);
        Ok(id)
    }

    pub(crate) fn create_mr(
        &mut self,
        pd: Id<Pd>,
        is_fast_register: bool,
    ) -> Result<Id<Mr>, NtStatus> {
        self.check_open(Key::Pd(pd))?;
        let mr = Mr {
            life: Life::default(),
            pd,
            is_fast_register,
            limits: None,
            token: None,
            keys: Keys::default(),
            registration: None,
        };
        let id = self.objects.regions.slab.insert(mr).map_err(|_| FULL)?;
        self.objects.pin(Key::Pd(pd));
        Ok(id)
    }

    pub(crate) fn create_qp(
        &mut self,
        pd: Id<Pd>,
        receive_cq: Id<Cq>,
        initiator_cq: Id<Cq>,
        context: u64,
        limits: QpLimits,
    ) -> Result<Id<Qp>, NtStatus> {
        limits.check(&self.config.info)?;
        for key in [Key::Pd(pd), Key::Cq(receive_cq), Key::Cq(initiator_cq)] {
            self.check_open(key)?;
        }
        for cq in [receive_cq, initiator_cq] {
            if self.objects.cqs.get(cq).is_some_and(|cq| cq.queue.has_failed()) {
                return Err(NtStatus::INVALID_PARAMETER); // NDK-CQ-13
            }
        }
        let sink_token = self.objects.regions.draw(None)?;
        let qp = Qp {
            life: Life::default(),
            pd,
            context,
            limits,
            state: QpState::Idle,
            initiator: InitiatorQueue::new(initiator_cq, limits.initiator_queue_depth),
            receives: ReceiveQueue::new(receive_cq, limits.receive_queue_depth),
            flow: Flow::default(),
            captures: Slab::new(),
            sink_token,
            read_limit: 0,
            stream: None,
            stats: super::QpStats::default(),
        };
        let Ok(id) = self.objects.qps.insert(qp) else {
            self.objects.regions.give_back(sink_token);
            return Err(FULL);
        };
        for key in [Key::Pd(pd), Key::Cq(receive_cq), Key::Cq(initiator_cq)] {
            self.objects.pin(key);
        }
        Ok(id)
    }

    pub(crate) fn create_connector(&mut self) -> Result<Id<Connector>, NtStatus> {
        self.check_open(Key::Adapter)?;
        let connector = Connector::new(ConnectorState::Idle);
        let id = self.objects.connectors.insert(connector).map_err(|_| FULL)?;
        self.objects.pin(Key::Adapter);
        Ok(id)
    }

    pub(crate) fn create_listener(
        &mut self,
        event: ConnectEvent,
    ) -> Result<Id<Listener>, NtStatus> {
        self.check_open(Key::Adapter)?;
        let listener = Listener {
            life: Life::default(),
            state: ListenerState::Idle,
            name: None,
            local: None,
            endpoint: None,
            quiet: alloc::sync::Arc::default(),
            event,
            request: None,
        };
        let id = self.objects.listeners.insert(listener).map_err(|_| FULL)?;
        self.objects.pin(Key::Adapter);
        Ok(id)
    }

    /// NdkCloseXxx: first what the kind of object needs, then the common end.
    pub(crate) fn close(&mut self, key: Key, completion: CloseCompletion) -> NtStatus {
        match key {
            Key::Adapter | Key::Pd(_) | Key::Cq(_) => {}
            Key::Mr(id) => {
                self.objects.regions.revoke(id);
            }
            Key::Qp(id) => self.release_qp(id),
            Key::Connector(id) => self.release_connector(id),
            Key::Listener(id) => self.unlisten(id),
        }
        self.objects.close(key, completion)
    }

    /// NDK-LIFE-3, -11: without a disconnect the connection is aborted, and everything flushed.
    fn release_qp(&mut self, id: Id<Qp>) {
        let handle = self.objects.qps.get(id).and_then(|qp| qp.stream);
        let connector = handle
            .and_then(|handle| self.streams.get(&handle)?.connector)
            .and_then(|connector| self.objects.connectors.get(connector));
        match handle {
            // The flush comes with the disconnect (NDK-DISC-1).
            Some(_)
                if connector
                    .is_some_and(|connector| connector.state == ConnectorState::Disconnecting) => {}
            Some(handle) => self.end_stream(handle, NtStatus::CANCELLED),
            None => self.objects.flush(id),
        }
    }

    /// NDK-LIFE-11. A passive connector that was not answered is refused.
    fn release_connector(&mut self, id: Id<Connector>) {
        let Some(connector) = self.objects.connectors.get(id) else { return };
        let Some(handle) = connector.stream else { return };
        match connector.state {
            ConnectorState::Pending => self.with_stream(handle, |stream, _, _| stream.refuse()),
            // The graceful end that was asked for goes on; its completion comes before the close's.
            ConnectorState::Disconnecting => {}
            _ => self.end_stream(handle, NtStatus::CANCELLED),
        }
    }

    /// Ends a stream from this side, abruptly, without a disconnect event (NDK-DISC-4).
    fn end_stream(&mut self, handle: OffloadHandle, status: NtStatus) {
        self.with_stream(handle, |stream, objects, _| {
            if let Some(connector) = stream.connector.and_then(|id| objects.connectors.get_mut(id))
            {
                connector.disconnect_event = None;
            }
            stream.lost(objects, status);
        });
        self.abort_stream(handle);
    }

    /// A connect event that was not delivered.
    pub(crate) fn refuse(&mut self, id: Id<Connector>) {
        if let Some(handle) = self.objects.connectors.get(id).and_then(|connector| connector.stream)
        {
            self.with_stream(handle, |stream, _, _| stream.refuse());
        }
        // Nobody has its name, so nobody waits for the close.
        let _ = self.objects.close(Key::Connector(id), Box::new(|| {}));
    }

    /// NdkFlush. A connected queue pair cannot go on after it (NDK-FL-4).
    pub(crate) fn flush(&mut self, id: Id<Qp>) {
        let Some(qp) = self.objects.qps.get(id) else { return };
        match qp.stream {
            Some(handle) if qp.state == QpState::Connected => {
                self.with_stream(handle, |stream, objects, _| {
                    stream.lost(objects, NtStatus::CONNECTION_ABORTED);
                });
                self.abort_stream(handle);
            }
            _ => self.objects.flush(id),
        }
    }

    /// NDK-CD-5
    fn private_data(&self, data: &[u8], max: u32) -> Result<PrivateData, NtStatus> {
        if data.len() > max as usize {
            return Err(NtStatus::INVALID_BUFFER_SIZE);
        }
        PrivateData::new(Bytes::copy_from_slice(data)).map_err(|_| NtStatus::INVALID_BUFFER_SIZE)
    }

    /// A queue pair for a new connection: idle and not closed.
    fn check_qp(&mut self, id: Id<Qp>) -> Result<(), NtStatus> {
        self.check_open(Key::Qp(id))?;
        let Some(qp) = self.objects.qps.get(id) else { return Err(NtStatus::INVALID_DEVICE_STATE) };
        let cqs = [qp.receives.cq, qp.initiator.cq].map(|cq| self.objects.cqs.get(cq));
        match qp.state {
            // NDK-CQ-13: nobody would hear of its completions.
            QpState::Idle if cqs.into_iter().flatten().any(|cq| cq.queue.has_failed()) => {
                Err(NtStatus::INVALID_DEVICE_STATE)
            }
            QpState::Idle => Ok(()),
            QpState::Connecting | QpState::Connected => Err(NtStatus::CONNECTION_ACTIVE),
            // NDK-DISC-6
            QpState::Error => Err(NtStatus::INVALID_DEVICE_STATE),
        }
    }

    fn attach(&mut self, id: Id<Connector>, qp_id: Id<Qp>, handle: OffloadHandle) {
        if let Some(qp) = self.objects.qps.get_mut(qp_id) {
            qp.state = QpState::Connecting;
            qp.stream = Some(handle);
        }
        if let Some(connector) = self.objects.connectors.get_mut(id) {
            connector.qp = Some(qp_id);
            connector.stream = Some(handle);
        }
        self.objects.pin(Key::Qp(qp_id));
    }

    /// NdkConnect.
    pub(crate) fn connect(
        &mut self,
        id: Id<Connector>,
        qp: Id<Qp>,
        (local, remote): (Option<SocketAddr>, SocketAddr),
        limits: ReadLimit,
        private_data: &[u8],
        completion: RequestCompletion,
    ) -> NtStatus {
        match self.try_connect(id, qp, (local, remote), limits, private_data) {
            Ok(()) => {
                self.objects.begin_request(id, completion);
                NtStatus::PENDING
            }
            Err(status) => status,
        }
    }

    fn try_connect(
        &mut self,
        id: Id<Connector>,
        qp: Id<Qp>,
        (local, remote): (Option<SocketAddr>, SocketAddr),
        limits: ReadLimit,
        private_data: &[u8],
    ) -> Result<(), NtStatus> {
        let private_data = self.private_data(private_data, self.config.info.max_caller_data)?;
        self.check_open(Key::Connector(id))?;
        let state = self.objects.connectors.get(id).map(|connector| connector.state);
        if state != Some(ConnectorState::Idle) {
            return Err(NtStatus::ADDRESS_ALREADY_ASSOCIATED);
        }
        self.check_qp(qp)?;
        if remote.ip().is_unspecified() || remote.port() == 0 {
            return Err(NtStatus::INVALID_ADDRESS);
        }
        let explicit = local.filter(|local| local.port() != 0);
        if explicit.is_some_and(|local| self.objects.endpoints.is_in_use(local)) {
            return Err(NtStatus::SHARING_VIOLATION); // NDK-EP-2
        }
        let own = limits.capped(self.objects.read_limits());
        let handle = OffloadHandle(self.port.allocate());
        let initiator = Stream::initiator(&self.config, own, private_data);
        self.streams.insert(handle, Stream::active(handle, id, qp, initiator, own));
        self.attach(id, qp, handle);
        if let Some(connector) = self.objects.connectors.get_mut(id) {
            connector.state = ConnectorState::Connecting;
            connector.remote = Some(remote);
            connector.data = None;
        }
        self.port.request(Request::Connect {
            handle,
            local,
            remote,
            timeout: self.config.connect_timeout,
            must_offload: true,
        });
        Ok(())
    }

    /// TCP is up.
    pub(crate) fn established(
        &mut self,
        handle: OffloadHandle,
        listener: Option<ListenerId>,
        (local, remote): (SocketAddr, SocketAddr),
        is_offloading: bool,
    ) {
        if !is_offloading {
            // NDK runs on offloaded connections only; the host should not have answered so.
            if let Some(mut stream) = self.streams.remove(&handle) {
                stream.lost(&mut self.objects, FULL);
            }
            self.port.request(Request::Abort { handle });
            return;
        }
        match self.streams.get_mut(&handle) {
            Some(stream) => {
                stream.is_established = true;
                let connector = stream.connector.and_then(|id| self.objects.connectors.get_mut(id));
                if let Some(connector) = connector {
                    connector.local = Some(local);
                    connector.remote = Some(remote);
                    connector.endpoint = Some(self.objects.endpoints.reference(local));
                }
            }
            None => match listener.and_then(|name| self.listeners.get(&name)) {
                Some(&id) => {
                    let stream = Stream::passive(handle, id, (local, remote));
                    self.streams.insert(handle, stream);
                }
                // The listener was closed meanwhile (NDK-EP-5).
                None => {
                    self.streams.insert(handle, Stream::orphan(handle));
                    self.port.request(Request::Abort { handle });
                }
            },
        }
    }

    /// NdkCompleteConnect.
    pub(crate) fn complete_connect(
        &mut self,
        id: Id<Connector>,
        disconnect_event: Option<DisconnectEvent>,
        completion: RequestCompletion,
    ) -> NtStatus {
        let Some(connector) = self.objects.connectors.get_mut(id) else {
            return NtStatus::CONNECTION_INVALID;
        };
        let handle = match (connector.state, connector.stream) {
            (ConnectorState::ConnectDone, Some(handle)) => handle,
            (ConnectorState::Closed, _) => return NtStatus::CONNECTION_ABORTED,
            _ => return NtStatus::CONNECTION_INVALID,
        };
        connector.state = ConnectorState::Completing;
        connector.disconnect_event = disconnect_event;
        connector.data = None; // NDK-CD-2
        self.objects.begin_request(id, completion);
        self.with_stream(handle, |stream, _, _| stream.complete_connect());
        NtStatus::PENDING
    }

    /// NdkAccept.
    #[expect(clippy::too_many_arguments, reason = "NdkAccept has them")]
    pub(crate) fn accept(
        &mut self,
        now: Instant,
        id: Id<Connector>,
        qp: Id<Qp>,
        limits: ReadLimit,
        private_data: &[u8],
        disconnect_event: Option<DisconnectEvent>,
        completion: RequestCompletion,
    ) -> NtStatus {
        let prepared = self
            .private_data(private_data, self.config.info.max_callee_data)
            .and_then(|data| self.check_qp(qp).map(|()| data));
        let private_data = match prepared {
            Ok(data) => data,
            Err(status) => return status,
        };
        let Some(connector) = self.objects.connectors.get_mut(id) else {
            return NtStatus::CONNECTION_INVALID;
        };
        let handle = match (connector.state, connector.stream) {
            (ConnectorState::Pending, Some(handle)) => handle,
            (ConnectorState::Closed, _) => return NtStatus::CONNECTION_ABORTED,
            _ => return NtStatus::CONNECTION_INVALID,
        };
        connector.state = ConnectorState::Accepting;
        connector.disconnect_event = disconnect_event;
        connector.data = None; // NDK-CD-2
        self.attach(id, qp, handle);
        self.objects.begin_request(id, completion);
        let own = limits.capped(self.objects.read_limits());
        self.with_stream(handle, |stream, _, config| {
            stream.accept(config, qp, own, private_data);
            stream.deadline = Some(now + config.accept_timeout);
        });
        NtStatus::PENDING
    }

    /// NdkReject, on either side (NDK-CON-2, -3).
    pub(crate) fn reject(&mut self, id: Id<Connector>, private_data: &[u8]) -> NtStatus {
        let max = self.config.info.max_callee_data;
        let private_data = match self.private_data(private_data, max) {
            Ok(data) => data,
            Err(status) => return status,
        };
        let Some(connector) = self.objects.connectors.get_mut(id) else {
            return NtStatus::CONNECTION_INVALID;
        };
        let handle = match (connector.state, connector.stream) {
            (ConnectorState::Pending | ConnectorState::ConnectDone, Some(handle)) => handle,
            (ConnectorState::Closed, _) => return NtStatus::CONNECTION_ABORTED,
            _ => return NtStatus::CONNECTION_INVALID,
        };
        let is_passive = connector.state == ConnectorState::Pending;
        if is_passive {
            connector.state = ConnectorState::Closed;
            connector.stream = None;
            self.with_stream(handle, |stream, _, _| {
                stream.reject(crate::mpa::startup::ReadLimits::default(), private_data);
            });
        } else {
            // MPA has no frame for it: the passive side sees the connection end.
            self.end_stream(handle, NtStatus::CONNECTION_ABORTED);
        }
        NtStatus::SUCCESS
    }

    /// NdkDisconnect.
    pub(crate) fn disconnect(
        &mut self,
        now: Instant,
        id: Id<Connector>,
        completion: RequestCompletion,
    ) -> NtStatus {
        let Some(connector) = self.objects.connectors.get_mut(id) else {
            return NtStatus::CONNECTION_INVALID;
        };
        let (ConnectorState::Connected, Some(handle)) = (connector.state, connector.stream) else {
            return NtStatus::CONNECTION_INVALID;
        };
        connector.state = ConnectorState::Disconnecting;
        connector.disconnect_event = None; // NDK-DISC-4
        let qp = connector.qp.and_then(|qp| self.objects.qps.get_mut(qp));
        if let Some(qp) = qp {
            qp.state = QpState::Error; // no more initiator requests
        }
        self.objects.begin_request(id, completion);
        self.with_stream(handle, |stream, _, config| stream.disconnect(config, now));
        NtStatus::PENDING
    }

    /// NdkListen.
    pub(crate) fn listen(
        &mut self,
        id: Id<Listener>,
        local: SocketAddr,
        completion: RequestCompletion,
    ) -> NtStatus {
        if local.port() != 0 && self.objects.endpoints.is_in_use(local) {
            return NtStatus::SHARING_VIOLATION; // NDK-EP-2
        }
        let Some(listener) = self.objects.listeners.get_mut(id) else {
            return NtStatus::INVALID_PARAMETER;
        };
        if listener.state != ListenerState::Idle {
            return NtStatus::ADDRESS_ALREADY_ASSOCIATED;
        }
        let name = ListenerId(self.port.allocate());
        listener.state = ListenerState::Starting;
        listener.name = Some(name);
        listener.request = Some(completion);
        self.objects.pin(Key::Listener(id));
        self.listeners.insert(name, id);
        self.port.request(Request::Listen {
            listener: name,
            local,
            backlog: BACKLOG,
            must_offload: true,
        });
        NtStatus::PENDING
    }

    /// NdkControlConnectEvents.
    pub(crate) fn pause(&mut self, id: Id<Listener>, pause: bool) {
        let listener = self.objects.listeners.get(id);
        // One that is being closed stays quiet (NDK-EP-5).
        if let Some(listener) = listener.filter(|listener| !listener.life.is_closing()) {
            listener.quiet.store(pause, Ordering::Release);
        }
    }

    /// NDK-EP-5: new connections are rejected from now on.
    fn unlisten(&mut self, id: Id<Listener>) {
        let Some(listener) = self.objects.listeners.get_mut(id) else { return };
        listener.quiet.store(true, Ordering::Release);
        if let Some(name) = listener.name.take() {
            self.listeners.remove(&name);
            self.port.request(Request::Unlisten { listener: name });
        }
        let request = listener.request.take();
        if let Some(completion) = request {
            self.objects.end_request(Key::Listener(id), completion, NtStatus::CANCELLED);
        }
    }
}
