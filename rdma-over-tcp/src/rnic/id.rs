//! Names of objects: a place in a table and the generation of that place.
//!
//! A name says what kind of object it is for, and nothing of what such an object consists of. So the objects can name
//! each other without their files knowing each other.

use core::{fmt, hash, marker::PhantomData};

/// The name of an object of kind `K`. Stale names find nothing.
pub(crate) struct Id<K> {
    pub(super) index: u32,
    pub(super) generation: u32,
    kind: PhantomData<fn() -> K>,
}

impl<K> Id<K> {
    pub(super) const fn new(index: u32, generation: u32) -> Self {
        Self { index, generation, kind: PhantomData }
    }
}

impl<K> Clone for Id<K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K> Copy for Id<K> {}
impl<K> PartialEq for Id<K> {
    fn eq(&self, other: &Self) -> bool {
        (self.index, self.generation) == (other.index, other.generation)
    }
}
impl<K> Eq for Id<K> {}
impl<K> hash::Hash for Id<K> {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        (self.index, self.generation).hash(state);
    }
}
impl<K> fmt::Debug for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// The kinds of objects.
pub(crate) mod kind {
    #[derive(Debug)]
    pub(crate) enum Pd {}
    #[derive(Debug)]
    pub(crate) enum Cq {}
    #[derive(Debug)]
    pub(crate) enum Region {}
    #[derive(Debug)]
    pub(crate) enum ReceiveQueue {}
    #[derive(Debug)]
    pub(crate) enum Qp {}
    #[derive(Debug)]
    pub(crate) enum Connector {}
    #[derive(Debug)]
    pub(crate) enum Listener {}
}

pub(crate) type PdId = Id<kind::Pd>;
pub(crate) type CqId = Id<kind::Cq>;
pub(crate) type RegionId = Id<kind::Region>;
pub(crate) type ReceiveQueueId = Id<kind::ReceiveQueue>;
pub(crate) type QpId = Id<kind::Qp>;
pub(crate) type ConnectorId = Id<kind::Connector>;
pub(crate) type ListenerId = Id<kind::Listener>;

/// The name of an object of any kind. Receive queues belong to their queue pair and are not closed on their own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Key {
    /// The adapter itself.
    Rnic,
    Pd(PdId),
    Cq(CqId),
    Region(RegionId),
    Qp(QpId),
    Connector(ConnectorId),
    Listener(ListenerId),
}

/// A byte stream below MPA. The transport gives the numbers, each to one stream at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(pub u64);
