//! Channels between the host stack and the engine.
//!
//! One channel per direction carries frames and control messages in one order. So a migration cannot overtake frames
//! sent before it. Frames to the host are dropped and counted when its queue is full, as an adapter does. Control
//! messages are never dropped.

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

/// Frames queued for the host stack. Further ones are dropped and counted.
pub const TO_HOST_FRAMES_MAX: usize = 4096;

/// Messages from the host stack to the engine: calls of the host to the target, and frames.
///
/// For one object: while it is being offloaded, only [`FromHost::Initiate`] of other objects (CH-INI-1); no update
/// while one is outstanding (CH-UPD-3); [`FromHost::Terminate`] only after its other requests have completed
/// (CH-TRM-1). A call that violates these rules completes with FAILURE.
#[derive(Debug)]
pub enum FromHost {
    /// Frame to transmit, complete with checksums.
    Frame(Vec<u8>),
    /// MiniportInitiateOffload: offload these objects. Completed by [`ToHost::InitiateComplete`].
    Initiate(InitiateTree),
    /// MiniportQueryOffload: query any class of any object.
    Query(QueryTree),
    /// MiniportUpdateOffload: replace cached classes, or link paths to another neighbor.
    Update(UpdateTree),
    /// MiniportInvalidateOffload: stop sending on these objects and on all that depend on them.
    Invalidate(InvalidateTree),
    /// MiniportTerminateOffload: upload these objects.
    Terminate(TerminateTree),
    /// MiniportTcpOffloadForward: a segment of the connection that was received by the host (CH-FWD-2), as its frame,
    /// with verified checksum. Completed by [`ToHost::ForwardComplete`].
    Forward(Forward),
    /// The host has forwarded all frames of a connection that it held when its initiate completed. Frames that the
    /// target has kept since then are newer
    /// ([`EngineConfig::waits_for_forwards`](super::EngineConfig::waits_for_forwards)).
    Forwarded(TargetContext),
    /// A client was removed from the node. None of its connections is initiated after this.
    RemoveClient(ClientTag),
}

/// Messages from the engine to the host stack: calls of the target to the host, and frames.
#[derive(Debug)]
pub enum ToHost {
    /// Received frame that belongs to no offloaded connection.
    Frame {
        /// Frame from its Ethernet header on.
        data: Vec<u8>,
        /// True if the TCP checksum needs no verification (see `RxChecksum::Valid`). It may be incomplete.
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
    /// NdisMTerminateOffloadComplete. Frames that the target kept of a stopped connection follow (CH §9.3).
    TerminateComplete(TerminateTree),
    /// NdisTcpOffloadForwardComplete.
    ForwardComplete(Forward),
    /// TcpIndicateRetrieve: the target requests an upload of the connection. For mandatory reasons the connection has
    /// stopped.
    Retrieve {
        /// Connection to upload.
        handle: OffloadHandle,
        /// Reason of the upload.
        reason: UploadReason,
    },
    /// NeighborReachabilityQuery (CH §9.7): the neighbor was not confirmed for NceStaleTicks. The host responds with an
    /// update of its HostReachabilityDelta. In Windows the response is the result of the call, which two threads do not
    /// have.
    NeighborReachabilityQuery {
        /// Neighbor queried.
        neighbor: OffloadHandle,
        /// Ticks since the host last confirmed reachability.
        host_reachability_delta: Ticks,
        /// Ticks since the target last confirmed reachability.
        nic_reachability_delta: Ticks,
    },
    /// NdisMIndicateStatusEx.
    Status(AdapterStatus),
    /// Path MTU reduced by an ICMP message, which the host receives as a frame too. The message quoted bytes in flight,
    /// which only the target can verify (RFC 5927 §4.1). Not a chimney message, but the host needs it to update its
    /// cached variable (CH-UPD-5).
    PathMtu {
        /// Connection of the path.
        handle: OffloadHandle,
        /// Path MTU in bytes.
        path_mtu: u32,
    },
    /// The connection was closed while offloaded, and the target released it.
    Released {
        /// Connection released.
        handle: OffloadHandle,
    },
}

/// Host stack's end of the channels.
#[derive(Debug)]
pub struct HostPort {
    /// Messages to the engine. Ring [`HostPort::engine_doorbell`] after sending.
    pub to_engine: Sender<FromHost>,
    /// Messages from the engine.
    pub from_engine: Receiver<ToHost>,
    /// Wakes the engine.
    pub engine_doorbell: Arc<Doorbell>,
    /// Wakes the host stack. Rung by the engine.
    pub host_doorbell: Arc<Doorbell>,
    /// Capabilities of the link.
    pub capabilities: LinkCapabilities,
}

impl HostPort {
    /// Sends [`FromHost::Forwarded`]: the host will forward no frames older than those received by the target.
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
        // An engine that was dropped completes no calls.
        let _ = self.to_engine.send(message);
        self.engine_doorbell.ring();
    }
}
