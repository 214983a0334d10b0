//! The channels between the host stack and the engine.
//!
//! One channel each way carries frames and control messages in one order, so a hand-over cannot
//! overtake the frames that were sent before it. Frames toward the host are dropped and counted when
//! its queue is full, as an adapter does; control messages never are.

use std::{sync::Arc, vec::Vec};

use crossbeam_channel::{Receiver, Sender};

use super::doorbell::Doorbell;
use crate::{
    chimney::{
        client::{ClientTag, OffloadHandle, UploadReason},
        provider::{AdapterStatus, Forward, OffloadHost, OffloadProvider},
        tree::{InitiateTree, InvalidateTree, QueryTree, TargetContext, TerminateTree, UpdateTree},
    },
    link::LinkCapabilities,
    state::Ticks,
    time::Instant,
};

/// Frames that may wait toward the host stack; beyond it they are dropped and counted.
pub const TO_HOST_FRAMES_MAX: usize = 4096;

/// From the host stack down to the engine: the calls of [`OffloadProvider`], and frames.
#[derive(Debug)]
pub enum FromHost {
    /// A frame to transmit, complete with checksums.
    Frame(Vec<u8>),
    /// [`OffloadProvider::initiate`].
    Initiate(InitiateTree),
    /// [`OffloadProvider::query`].
    Query(QueryTree),
    /// [`OffloadProvider::update`].
    Update(UpdateTree),
    /// [`OffloadProvider::invalidate`].
    Invalidate(InvalidateTree),
    /// [`OffloadProvider::terminate`].
    Terminate(TerminateTree),
    /// [`OffloadProvider::forward`].
    Forward(Forward),
    /// The host has forwarded all frames that it held of a connection when its initiate was completed: those that the
    /// target has kept since then are newer
    /// ([`EngineConfig::waits_for_forwards`](super::EngineConfig::waits_for_forwards)).
    Forwarded(TargetContext),
    /// A client has left the node. No connection of it is initiated after this.
    Leave(ClientTag),
}

/// From the engine up to the host stack: the calls of [`OffloadHost`], and frames.
#[derive(Debug)]
pub enum ToHost {
    /// A received frame that belongs to no offloaded connection.
    Frame {
        /// The frame from its Ethernet header on.
        data: Vec<u8>,
        /// Its TCP checksum needs no verification (see `RxChecksum::Valid`), and may not be filled in.
        checksum_valid: bool,
    },
    /// `OffloadHost::initiate_complete`.
    InitiateComplete(InitiateTree),
    /// `OffloadHost::query_complete`.
    QueryComplete(QueryTree),
    /// `OffloadHost::update_complete`.
    UpdateComplete(UpdateTree),
    /// `OffloadHost::invalidate_complete`.
    InvalidateComplete(InvalidateTree),
    /// `OffloadHost::terminate_complete`. Frames that the target has kept of a connection that had stopped follow
    /// (CH §9.3).
    TerminateComplete(TerminateTree),
    /// `OffloadHost::forward_complete`.
    ForwardComplete(Forward),
    /// `OffloadHost::retrieve`.
    Retrieve {
        /// Which connection.
        handle: OffloadHandle,
        /// Why.
        reason: UploadReason,
    },
    /// `OffloadHost::neighbor_reachability_query`.
    NeighborReachabilityQuery {
        /// Which neighbor.
        neighbor: OffloadHandle,
        /// Ticks since the host last confirmed that it is reachable.
        host_reachability_delta: Ticks,
        /// Ticks since the target last confirmed it.
        nic_reachability_delta: Ticks,
    },
    /// `OffloadHost::status`.
    Status(AdapterStatus),
    /// An ICMP message, which the host gets as a frame too, has narrowed the connection's path: it quoted bytes
    /// in flight, which only the target can check (RFC 5927 §4.1). No message of the chimney; without it
    /// the host could not keep its cached variable (CH-UPD-5).
    PathMtu {
        /// Which connection.
        handle: OffloadHandle,
        /// The path MTU in bytes.
        path_mtu: u32,
    },
    /// The connection has ended while offloaded, and the target has released it.
    Released {
        /// Which connection.
        handle: OffloadHandle,
    },
}

impl ToHost {
    /// Makes the call of the chimney that this message carries, or returns the message if it carries none, such as a
    /// frame.
    pub fn call(self, now: Instant, host: &mut impl OffloadHost) -> Option<Self> {
        match self {
            Self::InitiateComplete(tree) => host.initiate_complete(now, tree),
            Self::QueryComplete(tree) => host.query_complete(now, tree),
            Self::UpdateComplete(tree) => host.update_complete(now, tree),
            Self::InvalidateComplete(tree) => host.invalidate_complete(now, tree),
            Self::TerminateComplete(tree) => host.terminate_complete(now, tree),
            Self::ForwardComplete(segment) => host.forward_complete(now, segment),
            Self::Retrieve { handle, reason } => host.retrieve(now, handle, reason),
            Self::NeighborReachabilityQuery {
                neighbor,
                host_reachability_delta,
                nic_reachability_delta,
            } => host.neighbor_reachability_query(
                now,
                neighbor,
                host_reachability_delta,
                nic_reachability_delta,
            ),
            Self::Status(status) => host.status(now, status),
            Self::Frame { .. } | Self::PathMtu { .. } | Self::Released { .. } => return Some(self),
        }
        None
    }
}

/// The host's end.
#[derive(Debug)]
pub struct HostPort {
    /// Down. Ring [`HostPort::engine_doorbell`] after sending.
    pub to_engine: Sender<FromHost>,
    /// Up.
    pub from_engine: Receiver<ToHost>,
    /// Wakes the engine.
    pub engine_doorbell: Arc<Doorbell>,
    /// Wakes the host stack; the engine rings it.
    pub host_doorbell: Arc<Doorbell>,
    /// What the link can do.
    pub capabilities: LinkCapabilities,
}

impl HostPort {
    /// Sends that no older frames than those received by the target itself will be forwarded any more.
    pub fn forwarded(&self, connection: TargetContext) {
        self.call(FromHost::Forwarded(connection));
    }

    fn call(&self, message: FromHost) {
        // An engine that is gone completes nothing any more.
        let _ = self.to_engine.send(message);
        self.engine_doorbell.ring();
    }
}

impl OffloadProvider for HostPort {
    fn initiate(&mut self, tree: InitiateTree) {
        self.call(FromHost::Initiate(tree));
    }

    fn query(&mut self, tree: QueryTree) {
        self.call(FromHost::Query(tree));
    }

    fn update(&mut self, tree: UpdateTree) {
        self.call(FromHost::Update(tree));
    }

    fn invalidate(&mut self, tree: InvalidateTree) {
        self.call(FromHost::Invalidate(tree));
    }

    fn terminate(&mut self, tree: TerminateTree) {
        self.call(FromHost::Terminate(tree));
    }

    fn forward(&mut self, segment: Forward) {
        self.call(FromHost::Forward(segment));
    }
}
