//! Offload state trees of state operations (CH §4).
//!
//! A tree names objects of three layers: neighbors, the paths that use them, the connections of these paths. One call
//! of an operation handles any number of them (CH-ARC-5). In NDIS a node is an NDIS_MINIPORT_OFFLOAD_BLOCK_LIST
//! followed in memory by state structures, and `DependentBlockList` and `NextBlock` link the nodes. Here a [`Block`]
//! owns its dependents, in order, and the state structures are its payload. The call moves the tree into the target and
//! the completion moves it back. In between it is inaccessible. Every node is returned with its status written.
//!
//! The order of traversal is depth first, then breadth (CH-TREE-1): a node, its first dependent with all its
//! dependents, the next dependent. The vectors nest in that order.

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

/// Name of an offloaded object assigned by the target (the value that MiniportOffloadContext points to). It is valid as
/// long as the object is offloaded (CH-TREE-10). An operation on an invalid name completes with FAILURE. A name never
/// refers to another object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TargetContext {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl TargetContext {
    /// Creates a name, for targets other than [`Engine`](crate::engine::Engine).
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

/// Node of a tree.
#[derive(Debug)]
pub struct Block<P, D> {
    /// Name of the object assigned by the host (NdisOffloadHandle), carried by events and indications.
    pub handle: OffloadHandle,
    /// Role of the node in this operation, and its state.
    pub payload: P,
    /// Result. [`NdisStatus::PENDING`] until the target has written it.
    pub status: NdisStatus,
    /// Dependent nodes, in order.
    pub dependents: Vec<D>,
}

impl<P, D> Block<P, D> {
    /// Creates a node without dependents.
    pub const fn new(handle: OffloadHandle, payload: P) -> Self {
        Self { handle, payload, status: NdisStatus::PENDING, dependents: Vec::new() }
    }

    /// Returns the node with `dependents`.
    #[must_use]
    pub fn with(mut self, dependents: Vec<D>) -> Self {
        self.dependents = dependents;
        self
    }
}

/// TCP node, without dependents.
pub type TcpBlock<T> = Block<T, Infallible>;
/// Path node with its connections.
pub type PathBlock<P, T> = Block<P, TcpBlock<T>>;
/// Neighbor node with its paths.
pub type NeighborBlock<N, P, T> = Block<N, PathBlock<P, T>>;
/// Tree of neighbor nodes; each neighbor is a root (CH-TREE-9).
pub type Tree<N, P, T> = Vec<NeighborBlock<N, P, T>>;

/// Role of a node at initiate (CH §4.2).
#[derive(Debug)]
pub enum InitiateNode<S> {
    /// Placeholder for an object that the operation does not affect. Always SUCCESS, independent of the status of its
    /// dependents (CH-TREE-8).
    Placeholder,
    /// Offloaded object that the nodes below depend on. SUCCESS, OFFLOAD_PARTIAL_SUCCESS or FAILURE: all, some or none
    /// of its direct dependents were offloaded.
    Linker(TargetContext),
    /// New object.
    New {
        /// State. `None` after the object was offloaded, unchanged otherwise (CH-INI-4).
        state: Option<S>,
        /// Name written by the target if it offloaded the object, and only then (CH-TREE-3).
        context: Option<TargetContext>,
    },
}

impl<S> InitiateNode<S> {
    /// Creates a node for a new object with this state.
    pub const fn new(state: S) -> Self {
        Self::New { state: Some(state), context: None }
    }
}

/// Connection to be offloaded: TCP state in its three classes, and data.
#[derive(Debug)]
pub struct TcpObject {
    /// Client that receives its upcalls.
    pub client: ClientTag,
    /// TCP state.
    pub tcp: TcpState,
    /// Bytes from SND.UNA on: in flight up to SND.MAX, unsent beyond (CH-SNB-1 to -4).
    pub send_data: NblChain,
    /// Acknowledged bytes before RCV.NXT that no consumer has taken (CH-DEL-3). They are reference-counted, so the
    /// target copies (CH-INI-5) only where necessary.
    pub buffered_data: Vec<Bytes>,
    /// Bytes beyond RCV.NXT that were reported by SACK and must be kept. Not part of the Windows structure.
    pub out_of_order: Vec<(SeqNum, Bytes)>,
}

impl TcpObject {
    /// Splits `state` into neighbor, path and connection.
    pub fn split(client: ClientTag, state: ConnectionState) -> (NeighborState, PathState, Self) {
        let ConnectionState { neighbor, path, tcp, send_data, buffered_data, out_of_order } = state;
        (neighbor, path, Self { client, tcp, send_data, buffered_data, out_of_order })
    }

    /// Reverse of [`TcpObject::split`].
    pub fn join(self, neighbor: NeighborState, path: PathState) -> (ClientTag, ConnectionState) {
        let Self { client, tcp, send_data, buffered_data, out_of_order } = self;
        (client, ConnectionState { neighbor, path, tcp, send_data, buffered_data, out_of_order })
    }
}

/// Argument of MiniportInitiateOffload.
pub type InitiateTree =
    Tree<InitiateNode<NeighborState>, InitiateNode<PathState>, InitiateNode<Box<TcpObject>>>;

/// Node of query, invalidate or terminate.
#[derive(Debug)]
pub enum ObjectNode<P> {
    /// Placeholder for an object that the operation does not affect; always SUCCESS.
    Placeholder,
    /// Offloaded object.
    Object {
        /// Name of the object.
        context: TargetContext,
        /// Query and its result.
        payload: P,
    },
}

/// Classes of an object to be queried, and the results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Query<C, A, D> {
    /// Const class.
    pub constant: ClassQuery<C>,
    /// Cached class.
    pub cached: ClassQuery<A>,
    /// Delegated class.
    pub delegated: ClassQuery<D>,
}

/// One class in a query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClassQuery<T> {
    /// Not queried.
    No,
    /// Queried.
    Yes,
    /// Result.
    Answer(T),
}

impl<C, A, D> Query<C, A, D> {
    /// Queries all three classes (OFFLOAD_STATE_TYPE NeighborOffloadState, Ip4OffloadState, TcpOffloadState).
    pub const fn all() -> Self {
        Self { constant: ClassQuery::Yes, cached: ClassQuery::Yes, delegated: ClassQuery::Yes }
    }

    /// Queries the delegated class alone.
    pub const fn delegated() -> Self {
        Self { constant: ClassQuery::No, cached: ClassQuery::No, delegated: ClassQuery::Yes }
    }
}

/// Delegated class of a TCP object as a query returns it, with sizes in place of data (CH §3.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpQueried {
    /// Delegated variables.
    pub delegated: TcpDelegated,
    /// SendBacklogSize: bytes that the poster should keep outstanding (CH-ST-2).
    pub send_backlog_size: u32,
    /// ReceiveBacklogSize: bytes buffered in the target (CH-ST-3).
    pub receive_backlog_size: u32,
}

/// PATH_OFFLOAD_STATE_DELEGATED: a header without variables.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PathDelegated;

/// Argument of MiniportQueryOffload.
pub type QueryTree = Tree<
    ObjectNode<Query<NeighborConst, NeighborCached, NeighborDelegated>>,
    ObjectNode<Query<PathConst, PathCached, PathDelegated>>,
    ObjectNode<Query<TcpConst, TcpCached, TcpQueried>>,
>;

/// Role of a node at update (CH §5.3).
#[derive(Clone, Copy, Debug)]
pub enum UpdateNode<S> {
    /// Placeholder for an object that the operation does not affect.
    Placeholder,
    /// New parent of the dependents: the neighbor of paths (CH-UPD-2). Below a linker, the object that is relinked.
    Linker(TargetContext),
    /// New values of the cached class.
    Cached {
        /// Name of the object.
        context: TargetContext,
        /// All its cached variables.
        cached: S,
    },
}

/// Argument of MiniportUpdateOffload.
pub type UpdateTree =
    Tree<UpdateNode<NeighborCached>, UpdateNode<PathCached>, UpdateNode<Box<TcpUpdate>>>;

/// Argument of MiniportInvalidateOffload.
pub type InvalidateTree = Tree<ObjectNode<()>, ObjectNode<()>, ObjectNode<()>>;

/// Argument of MiniportTerminateOffload. The state of a TCP object is `None` in the call. A completion with SUCCESS
/// returns the state with all data not acknowledged or not delivered (CH-TRM-5, -6). Unlike in Windows all three
/// classes are returned, so the host needs no copy of the offloaded state.
pub type TerminateTree =
    Tree<ObjectNode<Option<NeighborDelegated>>, ObjectNode<()>, ObjectNode<Option<Box<TcpObject>>>>;
