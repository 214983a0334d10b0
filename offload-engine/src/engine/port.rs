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
        provider::{AdapterStatus, Forward},
        tree::{InitiateTree, InvalidateTree, QueryTree, TargetContext, TerminateTree, UpdateTree},
    },
    link::LinkCapabilities,
    state::Ticks,
};

/// Frames that may wait toward the host stack; beyond it they are dropped and counted.
pub const TO_HOST_FRAMES_MAX: usize = 4096;

/// From the host stack down to the engine: the host's calls to the target, and frames.
///
/// For one object: nothing but [`FromHost::Initiate`] of others while it is being offloaded (CH-INI-1), no update while
/// one is in progress (CH-UPD-3), and [`FromHost::Terminate`] only when its other requests have completed (CH-TRM-1). A
/// call that breaks these rules is answered FAILURE.
#[derive(Debug)]
pub enum FromHost {
    /// A frame to transmit, complete with checksums.
    Frame(Vec<u8>),
    /// MiniportInitiateOffload: take these objects over. Completed by [`ToHost::InitiateComplete`].
    Initiate(InitiateTree),
    /// MiniportQueryOffload: any class of any object.
    Query(QueryTree),
    /// MiniportUpdateOffload: new values of cached classes, or paths to another neighbor.
    Update(UpdateTree),
    /// MiniportInvalidateOffload: stop sending on these objects and on all that depend on them.
    Invalidate(InvalidateTree),
    /// MiniportTerminateOffload: give these objects back.
    Terminate(TerminateTree),
    /// MiniportTcpOffloadForward: a segment of the connection that reached the host first (CH-FWD-2), as the frame it
    /// came in, its checksum verified. Completed by [`ToHost::ForwardComplete`].
    Forward(Forward),
    /// The host has forwarded all frames that it held of a connection when its initiate was completed: those that the
    /// target has kept since then are newer
    /// ([`EngineConfig::waits_for_forwards`](super::EngineConfig::waits_for_forwards)).
    Forwarded(TargetContext),
    /// A client has left the node. No connection of it is initiated after this.
    Leave(ClientTag),
}

/// From the engine up to the host stack: the target's calls to the host, and frames.
#[derive(Debug)]
pub enum ToHost {
    /// A received frame that belongs to no offloaded connection.
    Frame {
        /// The frame from its Ethernet header on.
        data: Vec<u8>,
        /// Its TCP checksum needs no verification (see `RxChecksum::Valid`), and may not be filled in.
        checksum_valid: bool,
    },
    /// NdisMInitiateOffloadComplete.
    InitiateComplete(InitiateTree),
    /// NdisMQueryOffloadStateComplete.
    QueryComplete(QueryTree),
    /// NdisMUpdateOffloadComplete.
    UpdateComplete(UpdateTree),
    /// NdisMInvalidateOffloadComplete.
    InvalidateComplete(InvalidateTree),
    /// NdisMTerminateOffloadComplete. Frames that the target has kept of a connection that had stopped follow
    /// (CH §9.3).
    TerminateComplete(TerminateTree),
    /// NdisTcpOffloadForwardComplete.
    ForwardComplete(Forward),
    /// TcpIndicateRetrieve: the target requests an upload of the connection. Mandatory reasons mean that it has
    /// stopped.
    Retrieve {
        /// Which connection.
        handle: OffloadHandle,
        /// Why.
        reason: UploadReason,
    },
    /// NeighborReachabilityQuery (CH §9.7): the neighbor was not confirmed for NceStaleTicks. The host answers with an
    /// update of its HostReachabilityDelta; in Windows the answer is the call's result, which two threads do not have.
    NeighborReachabilityQuery {
        /// Which neighbor.
        neighbor: OffloadHandle,
        /// Ticks since the host last confirmed that it is reachable.
        host_reachability_delta: Ticks,
        /// Ticks since the target last confirmed it.
        nic_reachability_delta: Ticks,
    },
    /// NdisMIndicateStatusEx.
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

    /// Sends [`FromHost::Initiate`].
    pub fn initiate(&self, tree: InitiateTree) {
        self.call(FromHost::Initiate(tree));
    }

    /// Sends [`FromHost::Query`].
    pub fn query(&self, tree: QueryTree) {
        self.call(FromHost::Query(tree));
    }

    /// Sends [`FromHost::Update`].
    pub fn update(&self, tree: UpdateTree) {
        self.call(FromHost::Update(tree));
    }

    /// Sends [`FromHost::Invalidate`].
    pub fn invalidate(&self, tree: InvalidateTree) {
        self.call(FromHost::Invalidate(tree));
    }

    /// Sends [`FromHost::Terminate`].
    pub fn terminate(&self, tree: TerminateTree) {
        self.call(FromHost::Terminate(tree));
    }

    /// Sends [`FromHost::Forward`].
    pub fn forward(&self, segment: Forward) {
        self.call(FromHost::Forward(segment));
    }

    fn call(&self, message: FromHost) {
        // An engine that is gone completes nothing any more.
        let _ = self.to_engine.send(message);
        self.engine_doorbell.ring();
    }
}
