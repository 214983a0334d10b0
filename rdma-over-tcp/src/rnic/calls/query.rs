//! Queries of consumers, and calls that change a single object.

use core::net::SocketAddr;

use crate::rnic::{
    Rnic,
    config::Config,
    connection::{cause::ConnectCause, connector::ConnectionData},
    memory::{buffer::RegisteredBuffer, registration::Access},
    objects::id::{ConnectorId, CqId, Key, ListenerId, QpId, RegionId},
    queues::{
        cq::{Arm, CqModeration, PushOutcome},
        qp::QpState,
    },
    stats::{Counters, QpStats},
    status::VerbError,
};

impl Rnic {
    /// Configuration, including the limits.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Counters of the adapter.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.objects.counters
    }

    /// Arms a completion queue: one callback for entries newer than the last notification, or for the next entry. Of
    /// two arms the stronger one applies.
    pub fn arm_cq(&mut self, id: CqId, arm: Arm) {
        if let Some(cq) = self.objects.cqs.get(id) {
            let armed = cq.queue.arm(arm);
            self.handle_arm(id, armed);
        }
    }

    /// Processes the result of an arm of the queue itself.
    pub(crate) fn handle_arm(&mut self, id: CqId, armed: PushOutcome) {
        if armed.is_hold_new {
            self.objects.held.push(id);
        }
        self.objects.notify(id);
    }

    /// Sets the moderation of a completion queue's notifications ([`CqModeration`]); `None`: disabled. A notification
    /// held now is held again under the new moderation.
    ///
    /// # Errors
    /// [`VerbError::InvalidHandle`]; [`VerbError::NeverNotified`]: neither interval nor count;
    /// [`VerbError::DeviceLost`].
    pub fn moderate_cq(
        &mut self,
        id: CqId,
        moderation: Option<CqModeration>,
    ) -> Result<(), VerbError> {
        if self.is_lost {
            return Err(VerbError::DeviceLost);
        }
        let cq = self.objects.cqs.get(id).ok_or(VerbError::InvalidHandle)?;
        if moderation.is_some_and(|it| it.interval.is_none() && it.count.is_none()) {
            return Err(VerbError::NeverNotified);
        }
        if cq.queue.moderate(moderation) {
            self.objects.held.push(id);
        }
        self.objects.notify(id);
        Ok(())
    }

    /// Changes the depth of a completion queue.
    ///
    /// # Errors
    /// [`VerbError::InvalidHandle`]; [`VerbError::InvalidArgument`]: no entries, or more than the limit of the adapter;
    /// [`VerbError::CompletionsPresent`]: more entries are present, and nothing was changed; [`VerbError::CqFailed`];
    /// [`VerbError::DeviceLost`].
    pub fn resize_cq(&mut self, id: CqId, depth: u32) -> Result<(), VerbError> {
        if self.is_lost {
            return Err(VerbError::DeviceLost);
        }
        let cq = self.objects.cqs.get(id).ok_or(VerbError::InvalidHandle)?;
        if depth == 0 || depth > self.config.limits.cq_depth_max {
            return Err(VerbError::InvalidArgument);
        }
        cq.queue.resize(depth)
    }

    /// Registers `length` bytes of `buffer` from `offset` on with a region, which receives a token. Local and remote
    /// accesses address the bytes by the buffer's addresses ([`RegisteredBuffer::at_address`]).
    ///
    /// Any memory can be registered ([`SharedSpan::from_raw`](offload_engine::memory::SharedSpan::from_raw)), at any
    /// byte, and with any number of regions at the same time, each with its own rights. A buffer keeps its memory until
    /// the adapter no longer uses it, see [`Rnic::deregister`].
    ///
    /// # Errors
    /// [`VerbError::InvalidArgument`]: a span that is empty, exceeds the buffer or is larger than
    /// [`Limits::registration_bytes_max`](crate::rnic::Limits), a region for fast registration, or a region that is
    /// registered or whose deregistration is not complete; [`VerbError::ReadOnly`]: a write right for read-only memory;
    /// [`VerbError::InvalidHandle`]; [`VerbError::NoResources`]: no token is left; [`VerbError::DeviceLost`].
    pub fn register(
        &mut self,
        id: RegionId,
        buffer: &RegisteredBuffer,
        offset: usize,
        length: usize,
        rights: Access,
    ) -> Result<(), VerbError> {
        let end = offset.checked_add(length).ok_or(VerbError::InvalidArgument)?;
        let part = buffer.slice(offset..end).ok_or(VerbError::InvalidArgument)?;
        self.register_chain(id, core::slice::from_ref(&part), length, rights)
    }

    /// As [`Rnic::register`], for `length` bytes of several buffers with consecutive addresses, from the start of the
    /// first one. They form one address range.
    ///
    /// # Errors
    /// As [`Rnic::register`]; [`VerbError::InvalidArgument`] also for a chain that is too short, or whose addresses are
    /// not consecutive.
    pub fn register_chain(
        &mut self,
        id: RegionId,
        chain: &[RegisteredBuffer],
        length: usize,
        rights: Access,
    ) -> Result<(), VerbError> {
        if self.is_lost {
            return Err(VerbError::DeviceLost);
        }
        if length as u64 > self.config.limits.registration_bytes_max {
            return Err(VerbError::InvalidArgument);
        }
        self.objects.regions.register(id, chain, length, rights)
    }

    /// Token of a region: for scatter/gather entries of the domain's queue pairs and, if the rights permit, as an STag
    /// for peers. `None` before the first registration, and while the completion of a registration is deferred
    /// ([`Deferral`](crate::rnic::Deferral)).
    #[must_use]
    pub fn token(&self, id: RegionId) -> Option<u32> {
        if self.deferred.is_registering(Key::Region(id)) {
            return None;
        }
        self.objects.regions.table.get(id)?.token
    }

    /// Sets the numbers under which [`Rnic::connections`] lists a queue pair and its peer, for consumers with numbers
    /// of their own. Without an effect if the queue pair does not exist.
    pub fn set_qp_numbers(&mut self, id: QpId, own: u32, peer: Option<u32>) {
        if let Some(qp) = self.objects.qps.get_mut(id) {
            (qp.number, qp.peer_number) = (Some(own), peer);
        }
    }

    /// State of a queue pair; `None`: it does not exist.
    #[must_use]
    pub fn qp_state(&self, id: QpId) -> Option<QpState> {
        self.objects.qps.get(id).map(|qp| qp.state)
    }

    /// Statistics of a queue pair; `None`: it does not exist.
    #[must_use]
    pub fn qp_stats(&self, id: QpId) -> Option<QpStats> {
        self.objects.qps.get(id).map(|qp| qp.stats)
    }

    /// Private data and read limits of the peer. Available from a connect event until the accept, from the success of a
    /// connect until its completion, and after a rejection (NDK-CD-2, NDK-CD-7).
    #[must_use]
    pub fn connection_data(&self, id: ConnectorId) -> Option<&ConnectionData> {
        self.objects.connectors.get(id)?.data.as_ref()
    }

    /// Cause of the failure of a connector's last connect or accept. It distinguishes cases that share one
    /// [`ConnectError`](crate::rnic::ConnectError), and contains the private data of a rejection.
    #[must_use]
    pub fn connect_cause(&self, id: ConnectorId) -> Option<&ConnectCause> {
        self.objects.connectors.get(id)?.cause.as_ref()
    }

    /// Local address of a connector, once its handshake is done.
    #[must_use]
    pub fn local_address(&self, id: ConnectorId) -> Option<SocketAddr> {
        self.objects.connectors.get(id)?.local
    }

    /// Peer address of a connector, while connected or connecting.
    #[must_use]
    pub fn peer_address(&self, id: ConnectorId) -> Option<SocketAddr> {
        self.objects.connectors.get(id)?.remote
    }

    /// Returns the listener that would receive a connection to this local address.
    #[cfg(feature = "node")]
    pub(crate) fn listener_at(&self, address: SocketAddr) -> Option<ListenerId> {
        use crate::rnic::connection::listener::ListenerState;

        let listeners = &self.objects.listeners;
        listeners.names().find(|id| {
            let Some(listener) = listeners.get(*id) else { return false };
            let is_listening = listener.state == ListenerState::Listening;
            is_listening && listener.endpoint.is_some_and(|local| local.covers(address))
        })
    }

    /// Local address of a listener, once it listens.
    #[must_use]
    pub fn listener_address(&self, id: ListenerId) -> Option<SocketAddr> {
        self.objects.listeners.get(id)?.local
    }
}
