//! Consumers' questions, and calls that change one object only.

use core::net::SocketAddr;

use crate::rnic::{
    Rnic,
    config::Config,
    connection::{cause::ConnectCause, connector::ConnectionData},
    memory::{buffer::RegisteredBuffer, registration::Access},
    objects::id::{ConnectorId, CqId, Key, ListenerId, QpId, RegionId},
    queues::{
        cq::{Arm, CqModeration, Pushed},
        qp::QpState,
    },
    stats::{Counters, QpStats},
    status::VerbError,
};

impl Rnic {
    /// The configuration, with the limits.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Counters.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.objects.counters
    }

    /// Asks for a notification of a completion queue: one callback, for what is in the queue and newer than the last
    /// one, or for what comes next. Of two arms the stronger one counts.
    pub fn arm_cq(&mut self, id: CqId, arm: Arm) {
        if let Some(cq) = self.objects.cqs.get(id) {
            let armed = cq.queue.arm(arm);
            self.handle_arm(id, armed);
        }
    }

    /// Does what an arm of the queue itself has left to do.
    pub(crate) fn handle_arm(&mut self, id: CqId, armed: Pushed) {
        if armed.is_hold_new {
            self.objects.held.push(id);
        }
        self.objects.notify(id);
    }

    /// Has notifications of a completion queue held back ([`CqModeration`]); `None`: no more. One that is held back now
    /// is held by the new measure from now on.
    ///
    /// # Errors
    /// [`VerbError::InvalidHandle`]; [`VerbError::NeverNotified`]: neither time nor count; [`VerbError::DeviceLost`].
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
    /// [`VerbError::InvalidHandle`]; [`VerbError::InvalidArgument`]: no entries, or more than the adapter's limit;
    /// [`VerbError::CompletionsPresent`]: more entries are present, nothing has changed; [`VerbError::CqFailed`];
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

    /// Registers `length` bytes of `buffer` from `offset` on with a region, which gets a token for it. Local and remote
    /// users name the bytes by the buffer's addresses ([`RegisteredBuffer::at_address`]).
    ///
    /// Any memory can be registered ([`SharedSpan::from_raw`](offload_engine::memory::SharedSpan::from_raw)), at any
    /// byte, and with any number of regions at once: each has rights of its own. A buffer keeps its memory until
    /// nothing of the adapter uses it, see [`Rnic::deregister`].
    ///
    /// # Errors
    /// [`VerbError::InvalidArgument`]: a span that is empty, leaves the buffer or is larger than
    /// [`Limits::registration_bytes_max`](crate::rnic::Limits), a region for fast registration, or one that is
    /// registered, or whose deregistration is not complete; [`VerbError::ReadOnly`]: a right to write memory that may
    /// only be read; [`VerbError::InvalidHandle`]; [`VerbError::NoResources`]: no token is left;
    /// [`VerbError::DeviceLost`].
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

    /// As [`Rnic::register`], of `length` bytes of several buffers, from the beginning of the first on, whose addresses
    /// follow each other: to their users they are one.
    ///
    /// # Errors
    /// As [`Rnic::register`]; [`VerbError::InvalidArgument`] also for a chain that is shorter, or whose addresses do
    /// not follow each other so far.
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

    /// The token of a region: for scatter/gather entries of the domain's queue pairs and, as an STag, for peers, as its
    /// rights allow. `None` before the first registration, and while the end of one is held back
    /// ([`Deferral`](crate::rnic::Deferral)).
    #[must_use]
    pub fn token(&self, id: RegionId) -> Option<u32> {
        if self.later.is_registering(Key::Region(id)) {
            return None;
        }
        self.objects.regions.table.get(id)?.token
    }

    /// The state of a queue pair; `None`: it is gone.
    #[must_use]
    pub fn qp_state(&self, id: QpId) -> Option<QpState> {
        self.objects.qps.get(id).map(|qp| qp.state)
    }

    /// Statistics of a queue pair.
    #[must_use]
    pub fn qp_stats(&self, id: QpId) -> Option<QpStats> {
        self.objects.qps.get(id).map(|qp| qp.stats)
    }

    /// Private data and read limits of the peer: from a connect event until the accept, or from the success of a
    /// connect until its completion; and those of a rejection (NDK-CD-2, NDK-CD-7).
    #[must_use]
    pub fn connection_data(&self, id: ConnectorId) -> Option<&ConnectionData> {
        self.objects.connectors.get(id)?.data.as_ref()
    }

    /// Why a connector's last attempt to connect or to accept has failed: what its
    /// [`ConnectError`](crate::rnic::ConnectError) does not tell apart, and the private data of a rejection.
    #[must_use]
    pub fn connect_cause(&self, id: ConnectorId) -> Option<&ConnectCause> {
        self.objects.connectors.get(id)?.cause.as_ref()
    }

    /// The local end of a connector, once its handshake is done.
    #[must_use]
    pub fn local_address(&self, id: ConnectorId) -> Option<SocketAddr> {
        self.objects.connectors.get(id)?.local
    }

    /// The peer of a connector, while connected or connecting.
    #[must_use]
    pub fn peer_address(&self, id: ConnectorId) -> Option<SocketAddr> {
        self.objects.connectors.get(id)?.remote
    }

    /// The listener that a connection to this address of the adapter's own would come in at.
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

    /// Where a listener listens, once it does.
    #[must_use]
    pub fn listener_address(&self, id: ListenerId) -> Option<SocketAddr> {
        self.objects.listeners.get(id)?.local
    }
}
