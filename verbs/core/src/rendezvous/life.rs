//! Life of a queue pair that its program connects: from RTR to the next reset, with at most one connection.

use std::{iter, net::SocketAddr};

use rdma_over_tcp::{
    error::{EndReason, ErrorNumber},
    rnic::{Access, CompletionRetention, ConnectError, ConnectorId, QpId, QpState, RcPeer, Rnic},
};

use super::{numbers, request::close, timing};
use crate::{
    async_event::{AsyncEventKind, event_of},
    attributes::{IbvQpAttributes, IbvQpState},
    device::Device,
    errno::Errno,
    gid::{Gid, GidEntry},
    mr::access,
};

/// Part of the queue pair in the establishment of its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// Has the larger GID and QP number.
    Dials,
    /// Has the smaller ones.
    Accepts,
    /// Is connected to itself.
    Itself,
}

/// Stage of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// No connection yet, nor an attempt.
    Waiting,
    /// The Request is sent, or will be.
    Dialing,
    /// The Reply has arrived.
    Completing,
    /// The Reply is sent.
    Accepting,
    /// Both ends can send.
    Established,
    /// The connection was lost. The next one requires a reset.
    Lost,
}

/// Addresses of both ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    pub(super) source: Gid,
    /// Local address, with port 0.
    pub(super) local: SocketAddr,
    /// Address and port of the peer.
    pub(super) remote: SocketAddr,
}

/// Time from RTR to the next reset.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) number: u64,
    pub(super) nonce: u64,
    pub(super) role: Role,
    pub(super) stage: Stage,
    pub(super) path: Path,
    pub(super) connector: Option<ConnectorId>,
    /// Retries of the peer's messages that find no receive, once the peer has sent them: [`RcPeer::rnr_retries`].
    pub(super) peer_retries: Option<Option<u8>>,
    /// Hidden queue pair of a connection to itself, and its connector.
    pub(super) twin: Option<(QpId, ConnectorId)>,
    /// Dials that have failed.
    pub(super) failed: u32,
    /// Error of the last dial that has failed.
    pub(super) error: Option<ConnectError>,
    /// Number of the timer of the next dial; earlier ones have no effect.
    pub(super) timer: u64,
}

/// State that transitions and connections change.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) state: IbvQpState,
    pub(super) attributes: IbvQpAttributes,
    pub(super) life: Option<Life>,
    pub(super) lives: u64,
    /// Number of the budget that runs; `None`: requests do not wait for a connection.
    pub(super) budget: Option<u64>,
    pub(super) budgets: u64,
    /// Moves into and out of SQD.
    pub(super) drains: u64,
}

/// Converts access flags of a queue pair to rights.
pub(super) fn rights(flags: u32) -> Access {
    let map = [
        (access::LOCAL_WRITE, Access::LOCAL_WRITE),
        (access::REMOTE_WRITE, Access::REMOTE_WRITE),
        (access::REMOTE_READ, Access::REMOTE_READ),
        (access::REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
        (access::MW_BIND, Access::BIND),
    ];
    let named = map.iter().filter(|(flag, _)| flags & flag != 0);
    named.fold(Access::NONE, |rights, (_, right)| rights | *right)
}

/// Returns the event of a connection that failed, if this end detected an error of the peer's requests. A message
/// without a suitable receive and the loss of the connection have none.
pub(super) fn event(reason: EndReason) -> Option<AsyncEventKind> {
    match reason {
        // A receive is too short, or its memory is not valid.
        EndReason::Detected(
            ErrorNumber { layer: 1, etype: 2, .. } | ErrorNumber { etype: 0, layer: 0 | 1, .. },
        ) => None,
        EndReason::Detected(_) => Some(event_of(reason)),
        EndReason::CqOverrun => Some(AsyncEventKind::QpFatal),
        EndReason::Terminated(_)
        | EndReason::TerminatedUnnumbered
        | EndReason::Truncated(_)
        | EndReason::Lost(_) => None,
    }
}

impl Path {
    /// Returns the addresses of an address vector.
    ///
    /// # Errors
    /// `EINVAL`: the GID entry is empty. `ENETUNREACH`, `EHOSTUNREACH` and others: what the kernel reports about the
    /// destination.
    pub(super) fn of(device: &Device, attributes: &IbvQpAttributes) -> Result<Self, Errno> {
        let IbvQpAttributes { address: vector, dest_qp_num, .. } = attributes;
        let entries = device.identity().current_gids();
        let entry = entries.get(usize::from(vector.sgid_index)).copied().flatten();
        let GidEntry { gid: source, interface } = entry.ok_or(Errno::INVAL)?;
        let interface = if device.addresses().node().is_some() { 0 } else { interface };
        let local = source.at(interface, 0);
        let remote = vector.dgid.at(interface, numbers::port(*dest_qp_num));
        let path = Self { source, local, remote };
        // A node has connections with itself without a route.
        if device.addresses().node().is_some() && local.ip() == remote.ip() {
            return Ok(path);
        }
        match device.addresses().source_of(remote, Some(local)) {
            Ok(_) => Ok(path),
            // The address was removed in the meantime.
            Err(Errno::ADDRNOTAVAIL) => Err(Errno::INVAL),
            Err(error) => Err(error),
        }
    }
}

impl Inner {
    /// Creates the state of a queue pair in RESET.
    pub(super) fn new() -> Self {
        Self {
            state: IbvQpState::Reset,
            attributes: IbvQpAttributes::default(),
            life: None,
            lives: 0,
            budget: None,
            budgets: 0,
            drains: 0,
        }
    }

    /// Returns the state that is reported to the program.
    pub(super) fn reported(&self, core: &Rnic, qp: QpId) -> IbvQpState {
        match core.qp_state(qp) {
            Some(QpState::Error) | None => IbvQpState::Error,
            _ if core.have_sends_failed(qp) => IbvQpState::SendError,
            _ => self.state,
        }
    }

    /// Returns true if the attributes of RTS are set.
    pub(super) fn can_send(&self) -> bool {
        matches!(self.state, IbvQpState::ReadyToSend | IbvQpState::Drained)
    }

    /// Returns the life with this number if the connector is its current one.
    pub(super) fn current(&mut self, life: u64, connector: ConnectorId) -> Option<&mut Life> {
        self.life.as_mut().filter(|it| it.number == life && it.connector == Some(connector))
    }

    /// Sets the policy for messages of the peer without a receive, at the queue pair and its twin.
    pub(super) fn apply_rc_peer(&self, core: &mut Rnic, qp: QpId) {
        let Some(Life { peer_retries: Some(retries), twin, .. }) = &self.life else { return };
        let rnr_timer = timing::rnr_timer(self.attributes.min_rnr_timer);
        let peer = RcPeer { rnr_retries: *retries, rnr_timer };
        for qp in iter::once(qp).chain(twin.map(|(twin, _)| twin)) {
            // A queue pair of another service has no policy.
            let _ = core.set_rc_peer(qp, peer);
        }
    }

    /// Ends the life: closes its connection, or the attempt.
    pub(super) fn end(&mut self, core: &mut Rnic) {
        self.budget = None;
        let Some(mut life) = self.life.take() else { return };
        if let Some(connector) = life.connector {
            close(core, connector);
        }
        life.close_twin(core);
    }
}

impl Life {
    /// Closes the other end of a connection to itself.
    pub(super) fn close_twin(&mut self, core: &mut Rnic) {
        let Some((twin, connector)) = self.twin.take() else { return };
        let _ = core.close_qp(twin, CompletionRetention::Discard, Box::new(|| {}));
        close(core, connector);
    }
}
