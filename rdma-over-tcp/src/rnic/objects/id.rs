//! Identifiers of objects: a table index and the generation of that table entry.
//!
//! An identifier contains the kind of its object, but not the type of its contents. So objects can refer to each other
//! without dependencies between their files.

use core::{fmt, hash, marker::PhantomData};

use offload_engine::table::{self, Name};

/// Identifier of an object of kind `K`. Stale identifiers of removed objects are refused.
pub struct Id<K> {
    index: u32,
    generation: u32,
    kind: PhantomData<fn() -> K>,
}

/// Table of objects of kind `K`.
pub(crate) type Table<K, T> = table::Table<Id<K>, T>;

impl<K> Name for Id<K> {
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

impl<K> Id<K> {
    pub(crate) const fn new(index: u32, generation: u32) -> Self {
        Self { index, generation, kind: PhantomData }
    }

    /// Number of 24 bits for interfaces whose objects have one, such as the QP number of verbs. The low 16 bits are the
    /// table index; the upper bits count the objects that have used this table entry. Numbers of queue pairs are unique
    /// if [`Capabilities::max_qp_count`](crate::rnic::Capabilities) is at most 65,536, the default; the same holds for
    /// other kinds. A number is reused after 255 other objects in the same table entry. It is never below 65,536.
    #[must_use]
    pub const fn number(self) -> u32 {
        (1 + self.generation % 0xff) << 16 | self.index & 0xffff
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

/// Kinds of objects.
pub(crate) mod kind {
    /// Protection domains.
    #[derive(Debug)]
    pub enum Pd {}
    /// Completion queues.
    #[derive(Debug)]
    pub enum Cq {}
    /// Memory regions.
    #[derive(Debug)]
    pub enum Region {}
    #[derive(Debug)]
    pub(crate) enum ReceiveQueue {}
    /// Queue pairs.
    #[derive(Debug)]
    pub enum Qp {}
    /// Memory windows.
    #[derive(Debug)]
    pub enum Window {}
    /// Logical address mappings.
    #[derive(Debug)]
    pub enum Lam {}
    /// Shared receive queues.
    #[derive(Debug)]
    pub enum Srq {}
    /// Connectors.
    #[derive(Debug)]
    pub enum Connector {}
    /// Listeners.
    #[derive(Debug)]
    pub enum Listener {}
    /// Shared endpoints.
    #[derive(Debug)]
    pub enum SharedEndpoint {}
}

/// Identifier of a protection domain.
pub type PdId = Id<kind::Pd>;
/// Identifier of a completion queue.
pub type CqId = Id<kind::Cq>;
/// Identifier of a memory region.
pub type RegionId = Id<kind::Region>;
pub(crate) type ReceiveQueueId = Id<kind::ReceiveQueue>;
/// Identifier of a queue pair.
pub type QpId = Id<kind::Qp>;
/// Identifier of a memory window.
pub type WindowId = Id<kind::Window>;
/// Identifier of a logical address mapping.
pub type LamId = Id<kind::Lam>;
/// Identifier of a shared receive queue.
pub type SrqId = Id<kind::Srq>;
/// Identifier of a connector.
pub type ConnectorId = Id<kind::Connector>;
/// Identifier of a listener.
pub type ListenerId = Id<kind::Listener>;
/// Identifier of a shared endpoint.
pub type SharedEndpointId = Id<kind::SharedEndpoint>;

/// Identifier of an object of any kind. Receive queues belong to their queue pair or shared receive queue, and are not
/// closed on their own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Key {
    /// Adapter.
    Rnic,
    /// Protection domain.
    Pd(PdId),
    /// Completion queue.
    Cq(CqId),
    /// Memory region.
    Region(RegionId),
    /// Memory window.
    Window(WindowId),
    /// Logical address mapping.
    Lam(LamId),
    /// Queue pair.
    Qp(QpId),
    /// Shared receive queue.
    Srq(SrqId),
    /// Connector.
    Connector(ConnectorId),
    /// Listener.
    Listener(ListenerId),
    /// Shared endpoint.
    SharedEndpoint(SharedEndpointId),
}

/// Identifier of a byte stream below MPA. The transport assigns the numbers, each to one stream at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(pub u64);
