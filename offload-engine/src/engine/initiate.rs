//! MiniportInitiateOffload: traversal of a state tree (CH §4, §5.1).
//!
//! Depth first, then breadth (CH-TREE-1). Dependents of a failed node are not attempted (CH-TREE-6). Each neighbor is a
//! root, so the trees of other neighbors are still attempted (CH-TREE-2, -9). A connection is live as soon as its node
//! is offloaded (CH-TREE-4). Its client is notified after all nodes are processed and the host was notified (CH-INI-2,
//! -3).

use std::{boxed::Box, vec::Vec};

use super::{Clients, Engine, connections::ParentObjects, port::ToHost, terminate::reset_unowned};
use crate::{
    chimney::{
        client::OffloadHandle,
        tree::{
            Block, InitiateNode, InitiateTree, NeighborBlock, PathBlock, TargetContext, TcpBlock,
            TcpObject,
        },
    },
    state::{NeighborState, PathState},
    status::NdisStatus,
    time::{Duration, Instant},
};

type NeighborNode = NeighborBlock<
    InitiateNode<NeighborState>,
    InitiateNode<PathState>,
    InitiateNode<Box<TcpObject>>,
>;
type PathNode = PathBlock<InitiateNode<PathState>, InitiateNode<Box<TcpObject>>>;
type TcpNode = TcpBlock<InitiateNode<Box<TcpObject>>>;

/// Trees delayed until the end of a pause (CH §5.7). Further ones complete with RESOURCES.
pub const DELAYED_TREES_MAX: usize = 1024;

/// Parent of a node.
#[derive(Clone, Copy)]
enum Parent {
    /// Failed node.
    Failed,
    /// Placeholder.
    Placeholder,
    /// Offloaded object.
    Object(TargetContext),
}

/// Outcome of a node itself, before its dependents are counted.
struct NodeOutcome {
    status: NdisStatus,
    parent: Parent,
}

impl NodeOutcome {
    const PLACEHOLDER: Self = Self { status: NdisStatus::SUCCESS, parent: Parent::Placeholder };

    fn new(result: Result<TargetContext, NdisStatus>) -> Self {
        match result {
            Ok(context) => Self { status: NdisStatus::SUCCESS, parent: Parent::Object(context) },
            Err(status) => Self { status, parent: Parent::Failed },
        }
    }
}

/// Adds the object of a new node. Its state becomes `None` on success and is unchanged otherwise (CH-INI-4, CH-TREE-3).
fn add_object<S>(
    state: &mut Option<S>,
    context: &mut Option<TargetContext>,
    add: impl FnOnce(&S) -> Result<TargetContext, NdisStatus>,
) -> NodeOutcome {
    let result = state.as_ref().ok_or(NdisStatus::FAILURE).and_then(add);
    if let Ok(taken) = result {
        *state = None;
        *context = Some(taken);
    }
    NodeOutcome::new(result)
}

/// Returns a node's status from its own outcome and that of its direct dependents (CH §4.2, CH-TREE-5, -8).
fn conclude<S, D>(
    node: &InitiateNode<S>,
    own: NdisStatus,
    dependents: &[Block<D, impl Sized>],
) -> NdisStatus {
    let failures = dependents.iter().filter(|dependent| !is_offloaded(dependent.status)).count();
    match node {
        _ if own != NdisStatus::SUCCESS => own,
        InitiateNode::Placeholder => own,
        InitiateNode::Linker(_) if failures > 0 && failures == dependents.len() => {
            NdisStatus::FAILURE
        }
        InitiateNode::Linker(_) | InitiateNode::New { .. } => match failures {
            0 => NdisStatus::SUCCESS,
            _ => NdisStatus::OFFLOAD_PARTIAL_SUCCESS,
        },
    }
}

/// True if this is the status of an offloaded object.
fn is_offloaded(status: NdisStatus) -> bool {
    status == NdisStatus::SUCCESS || status == NdisStatus::OFFLOAD_PARTIAL_SUCCESS
}

/// Advances the timestamp clock of the connections in a delayed tree, and the age measured with it.
fn advance_timestamps(tree: &mut InitiateTree, waited: Duration) {
    let ticks = u32::try_from(waited.as_millis()).unwrap_or(u32::MAX);
    let paths = tree.iter_mut().flat_map(|neighbor| &mut neighbor.dependents);
    for connection in paths.flat_map(|path| &mut path.dependents) {
        if let InitiateNode::New { state: Some(object), .. } = &mut connection.payload {
            let delegated = &mut object.tcp.delegated;
            delegated.ts_time = delegated.ts_time.wrapping_add(ticks);
            delegated.ts_recent_age = delegated.ts_recent_age.saturating_add(ticks);
        }
    }
}

impl Engine {
    /// Offloads the objects of a tree. While offloading is paused, outstanding initiates are delayed (CH §5.7).
    pub(super) fn take_initiate(
        &mut self,
        now: Instant,
        mut tree: InitiateTree,
        clients: &mut Clients,
    ) {
        if !self.paused {
            self.initiate(now, tree, clients);
        } else if self.delayed_trees.len() < DELAYED_TREES_MAX {
            self.delayed_trees.push_back((now, tree));
        } else {
            refuse(&mut tree);
            self.notify_host(ToHost::InitiateComplete(tree));
        }
    }

    /// Processes trees that a pause has delayed. Returns true if there were any.
    pub(super) fn process_delayed_trees(&mut self, now: Instant, clients: &mut Clients) -> bool {
        let mut busy = false;
        while !self.paused
            && let Some((since, mut tree)) = self.delayed_trees.pop_front()
        {
            advance_timestamps(&mut tree, now - since);
            self.initiate(now, tree, clients);
            busy = true;
        }
        busy
    }

    fn initiate(&mut self, now: Instant, mut tree: InitiateTree, clients: &mut Clients) {
        // Notifications that the host stack sent to the client before this message are processed first.
        clients.poll(now, &mut self.connections);
        let mut taken = Vec::new();
        for neighbor in &mut tree {
            self.initiate_neighbor(now, neighbor, &mut taken);
        }
        self.notify_host(ToHost::InitiateComplete(tree));
        // CH-INI-2.
        for slot in taken {
            if let Some(offloaded) = self.connections.slot(slot) {
                let tag = offloaded.client;
                if clients.contains(tag) {
                    clients.of(tag).offloaded(&mut offloaded.io(now));
                } else {
                    reset_unowned(now, offloaded);
                }
            }
            self.connections.mark_ready(slot);
        }
    }

    fn initiate_neighbor(
        &mut self,
        now: Instant,
        block: &mut NeighborNode,
        taken: &mut Vec<usize>,
    ) {
        let Block { handle, payload, status, dependents } = block;
        let outcome = match payload {
            InitiateNode::Placeholder => NodeOutcome::PLACEHOLDER,
            InitiateNode::Linker(context) => {
                let valid = self.objects.neighbor_is_valid(*context);
                NodeOutcome::new(valid.then_some(*context).ok_or(NdisStatus::FAILURE))
            }
            InitiateNode::New { state, context } => {
                add_object(state, context, |state| self.objects.add_neighbor(now, *handle, state))
            }
        };
        for path in dependents.iter_mut() {
            self.initiate_path(now, outcome.parent, path, taken);
        }
        *status = conclude(payload, outcome.status, dependents);
    }

    fn initiate_path(
        &mut self,
        now: Instant,
        parent: Parent,
        block: &mut PathNode,
        taken: &mut Vec<usize>,
    ) {
        let Block { handle: _, payload, status, dependents } = block;
        let outcome = match (payload, parent) {
            (InitiateNode::Placeholder, Parent::Failed) => {
                NodeOutcome { parent: Parent::Failed, ..NodeOutcome::PLACEHOLDER }
            }
            (InitiateNode::Placeholder, _) => NodeOutcome::PLACEHOLDER,
            (InitiateNode::Linker(context), parent) => {
                NodeOutcome::new(self.find_path(*context, parent).ok_or(NdisStatus::FAILURE))
            }
            (InitiateNode::New { state, context }, Parent::Object(neighbor)) => {
                add_object(state, context, |state| self.objects.add_path(neighbor, state))
            }
            // Dependents of a failed node are not attempted (CH-TREE-6), and a path requires a neighbor.
            (InitiateNode::New { .. }, Parent::Failed | Parent::Placeholder) => {
                NodeOutcome::new(Err(NdisStatus::FAILURE))
            }
        };
        for tcp in dependents.iter_mut() {
            tcp.status = self.initiate_connection_node(now, outcome.parent, tcp, taken);
        }
        *status = conclude(&block.payload, outcome.status, &block.dependents);
    }

    /// Returns the path of a linker. A neighbor above it must be the path's own: only an update links a path to another
    /// one.
    fn find_path(&self, context: TargetContext, parent: Parent) -> Option<TargetContext> {
        let linked = match parent {
            Parent::Failed => false,
            Parent::Placeholder => true,
            Parent::Object(neighbor) => self.objects.neighbor_of(context) == Some(neighbor),
        };
        (linked && self.objects.path_is_valid(context)).then_some(context)
    }

    fn initiate_connection_node(
        &mut self,
        now: Instant,
        parent: Parent,
        block: &mut TcpNode,
        taken: &mut Vec<usize>,
    ) -> NdisStatus {
        let (state, context) = match &mut block.payload {
            InitiateNode::Placeholder => return NdisStatus::SUCCESS,
            InitiateNode::Linker(context) => {
                return match self.connections.find_context(*context) {
                    Some(_) => NdisStatus::SUCCESS,
                    None => NdisStatus::FAILURE,
                };
            }
            InitiateNode::New { state, context } => (state, context),
        };
        let Parent::Object(path) = parent else {
            self.stats.initiate_failures += 1;
            return NdisStatus::FAILURE;
        };
        let Some(object) = state.take() else { return NdisStatus::FAILURE };
        match self.offload_connection(now, block.handle, path, object) {
            Ok((slot, name)) => {
                *context = Some(name);
                taken.push(slot);
                self.stats.initiates += 1;
                NdisStatus::SUCCESS
            }
            Err((status, object)) => {
                *state = Some(object);
                self.stats.initiate_failures += 1;
                status
            }
        }
    }

    fn offload_connection(
        &mut self,
        now: Instant,
        handle: OffloadHandle,
        path: TargetContext,
        object: Box<TcpObject>,
    ) -> Result<(usize, TargetContext), (NdisStatus, Box<TcpObject>)> {
        if let Err(status) = self.connections.admit(self.objects.capabilities(), &object) {
            return Err((status, object));
        }
        let Some((neighbor_state, path_state)) = self.objects.joined(now, path) else {
            return Err((NdisStatus::FAILURE, object));
        };
        if let Some(admission) = &mut self.admission
            && !admission(&path_state, &object.tcp)
        {
            return Err((NdisStatus::OFFLOAD_CONNECTION_REJECTED, object));
        }
        let parent = ParentObjects { path, neighbor_state, path_state };
        let context = self.connections.insert(now, handle, &parent, object)?;
        self.objects.attach(path);
        if let Some(offloaded) = self.connections.slot(context.index as usize) {
            let flow = offloaded.flow;
            self.publish(&flow);
        }
        Ok((context.index as usize, context))
    }
}

/// Refuses all nodes of a tree that cannot be delayed.
fn refuse(tree: &mut InitiateTree) {
    let refuse = NdisStatus::RESOURCES;
    for neighbor in tree {
        neighbor.status = refuse;
        for path in &mut neighbor.dependents {
            path.status = refuse;
            path.dependents.iter_mut().for_each(|tcp| tcp.status = refuse);
        }
    }
}
