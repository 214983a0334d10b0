//! Offload state trees: what a state operation carries (CH §4).
//!
//! A tree names objects of three layers: neighbors, the paths behind them, the connections on these. One call of an
//! operation takes any number of them (CH-ARC-5). In NDIS a node is an NDIS_MINIPORT_OFFLOAD_BLOCK_LIST followed in
//! memory by state structures, and `DependentBlockList` and `NextBlock` link the nodes; here a [`Block`] owns its
//! dependents, in order, and what follows it is its payload. A tree moves into the target with the call and back
//! with the completion, so it is inaccessible in between, and every node comes back with its status written.
//!
//! The order of traversal is depth first, then breadth (CH-TREE-1): a node, its first dependent with all
//! below it, the next dependent. That is the order in which these vectors nest.

use alloc::{boxed::Box, vec::Vec};
use core::convert::Infallible;

use bytes::Bytes;

use super::client::{ClientTag, OffloadHandle};
use crate::{
    nbl::NblChain,
    segment::SeqNum,
    state::{
        ConnectionState, NeighborCached, NeighborConst, NeighborDelegated, NeighborState,
        PathCached, PathConst, PathState, TcpCached, TcpConst, TcpDelegated, TcpState, TcpUpdate,
    },
    status::NdisStatus,
    table::Name,
};

/// The target's name for an offloaded object (the value in the slot MiniportOffloadContext points to). It holds as
/// long as the object is offloaded (CH-TREE-10); a name that has ceased to hold answers FAILURE, it never
/// names another object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TargetContext {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl TargetContext {
    /// A name that a target gives: for targets other than [`Engine`](crate::engine::Engine).
    pub const fn new(index: u32, generation: u32) -> Self {
        Self { index, generation }
    }
}

impl Name for TargetContext {
    fn new(index: u32, generation: u32) -> Self {
        Self::new(index, generation)
    }

    fn index(self) -> u32 {
        self.index
    }

    fn generation(self) -> u32 {
        self.generation
    }
}

/// A node of a tree.
#[derive(Debug)]
pub struct Block<P, D> {
    /// The host's name for the object (NdisOffloadHandle): what events and indications carry.
    pub handle: OffloadHandle,
    /// The node's role in this operation, and its state.
    pub payload: P,
    /// The result; [`NdisStatus::PENDING`] until the target has written it.
    pub status: NdisStatus,
    /// The nodes below, in order.
    pub dependents: Vec<D>,
}

impl<P, D> Block<P, D> {
    /// A node without dependents.
    pub const fn new(handle: OffloadHandle, payload: P) -> Self {
        Self { handle, payload, status: NdisStatus::PENDING, dependents: Vec::new() }
    }

    /// The node with `dependents` below it.
    #[must_use]
    pub fn with(mut self, dependents: Vec<D>) -> Self {
        self.dependents = dependents;
        self
    }
}

/// A TCP node: nothing depends on it.
pub type TcpBlock<T> = Block<T, Infallible>;
/// A path node with its connections.
pub type PathBlock<P, T> = Block<P, TcpBlock<T>>;
/// A neighbor node with its paths.
pub type NeighborBlock<N, P, T> = Block<N, PathBlock<P, T>>;
/// A tree: neighbor nodes, since each neighbor is the root of its own (CH-TREE-9).
pub type Tree<N, P, T> = Vec<NeighborBlock<N, P, T>>;

/// A node's role at initiate (CH §4.2).
#[derive(Debug)]
pub enum InitiateNode<S> {
    /// A place for an object that the operation does not concern; always SUCCESS, whatever the results below
    /// (CH-TREE-8).
    Placeholder,
    /// An offloaded object that what is below depends on. SUCCESS, OFFLOAD_PARTIAL_SUCCESS, or FAILURE, as all, some or
    /// none of its direct dependents went in.
    Linker(TargetContext),
    /// A new object.
    New {
        /// Its state. Gone once the object is offloaded, untouched otherwise (CH-INI-4).
        state: Option<S>,
        /// Written by the target if it took the object, and only then (CH-TREE-3).
        context: Option<TargetContext>,
    },
}

impl<S> InitiateNode<S> {
    /// A new object with this state.
    pub const fn new(state: S) -> Self {
        Self::New { state: Some(state), context: None }
    }
}

/// A connection to be taken over: TCP state in its three classes, and data.
#[derive(Debug)]
pub struct TcpObject {
    /// The client that gets its upcalls.
    pub client: ClientTag,
    /// The state.
    pub tcp: TcpState,
    /// Bytes from SND.UNA on: in flight up to SND.MAX, unsent beyond (CH-SNB-1 to -4).
    pub send_data: NblChain,
    /// Acknowledged bytes left of RCV.NXT that no consumer has taken yet (CH-DEL-3). The target makes copies
    /// (CH-INI-5) only of what it must: these are reference-counted.
    pub buffered_data: Vec<Bytes>,
    /// Bytes right of RCV.NXT that a SACK has promised to keep. Not in Windows' structure.
    pub out_of_order: Vec<(SeqNum, Bytes)>,
}

impl TcpObject {
    /// The connection's part of `state`, apart from the objects it depends on.
    pub fn split(client: ClientTag, state: ConnectionState) -> (NeighborState, PathState, Self) {
        let ConnectionState { neighbor, path, tcp, send_data, buffered_data, out_of_order } = state;
        (neighbor, path, Self { client, tcp, send_data, buffered_data, out_of_order })
    }

    /// The reverse.
    pub fn join(self, neighbor: NeighborState, path: PathState) -> (ClientTag, ConnectionState) {
        let Self { client, tcp, send_data, buffered_data, out_of_order } = self;
        (client, ConnectionState { neighbor, path, tcp, send_data, buffered_data, out_of_order })
    }
}

/// What MiniportInitiateOffload gets.
pub type InitiateTree =
    Tree<InitiateNode<NeighborState>, InitiateNode<PathState>, InitiateNode<Box<TcpObject>>>;

/// A node of query, invalidate or terminate.
#[derive(Debug)]
pub enum ObjectNode<P> {
    /// Only what is below counts; always SUCCESS.
    Placeholder,
    /// An offloaded object.
    Object {
        /// Which.
        context: TargetContext,
        /// The query and its answer.
        payload: P,
    },
}

/// Which classes of an object are queried, and the answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Query<C, A, D> {
    /// The const class.
    pub constant: Asked<C>,
    /// The cached class.
    pub cached: Asked<A>,
    /// The delegated class.
    pub delegated: Asked<D>,
}

/// One class in a query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked<T> {
    /// Not asked for.
    No,
    /// Asked for.
    Yes,
    /// Answered.
    Answer(T),
}

impl<C, A, D> Query<C, A, D> {
    /// All three classes (OFFLOAD_STATE_TYPE NeighborOffloadState, Ip4OffloadState, TcpOffloadState).
    pub const fn all() -> Self {
        Self { constant: Asked::Yes, cached: Asked::Yes, delegated: Asked::Yes }
    }

    /// The delegated class alone.
    pub const fn delegated() -> Self {
        Self { constant: Asked::No, cached: Asked::No, delegated: Asked::Yes }
    }
}

/// The delegated class of a TCP object as a query sees it: data heads and tails are sizes then (CH §3.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpQueried {
    /// The variables.
    pub delegated: TcpDelegated,
    /// SendBacklogSize: bytes that the poster should keep outstanding (CH-ST-2).
    pub send_backlog_size: u32,
    /// ReceiveBacklogSize: bytes that wait in the target (CH-ST-3).
    pub receive_backlog_size: u32,
}

/// PATH_OFFLOAD_STATE_DELEGATED: a header without variables.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PathDelegated;

/// What MiniportQueryOffload gets.
pub type QueryTree = Tree<
    ObjectNode<Query<NeighborConst, NeighborCached, NeighborDelegated>>,
    ObjectNode<Query<PathConst, PathCached, PathDelegated>>,
    ObjectNode<Query<TcpConst, TcpCached, TcpQueried>>,
>;

/// A node's role at update (CH §5.3).
#[derive(Clone, Copy, Debug)]
pub enum UpdateNode<S> {
    /// Only what is below counts.
    Placeholder,
    /// New parent of the dependents: the neighbor of paths (CH-UPD-2). Below a linker, the
    /// object that is relinked.
    Linker(TargetContext),
    /// New values of the cached class.
    Cached {
        /// Which object.
        context: TargetContext,
        /// All its cached variables.
        cached: S,
    },
}

/// What MiniportUpdateOffload gets.
pub type UpdateTree =
    Tree<UpdateNode<NeighborCached>, UpdateNode<PathCached>, UpdateNode<Box<TcpUpdate>>>;

/// What MiniportInvalidateOffload gets.
pub type InvalidateTree = Tree<ObjectNode<()>, ObjectNode<()>, ObjectNode<()>>;

/// What MiniportTerminateOffload gets. A TCP object's state is `None` on the way down; with SUCCESS it comes back with
/// everything that was not acknowledged or not delivered (CH-TRM-5, -6). Unlike in Windows all three classes come
/// back, so that the host needs no copy of the state that it once handed down.
pub type TerminateTree =
    Tree<ObjectNode<Option<NeighborDelegated>>, ObjectNode<()>, ObjectNode<Option<Box<TcpObject>>>>;
