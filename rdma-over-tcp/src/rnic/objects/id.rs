//! Names of objects: a place in a table and the generation of that place.
//!
//! A name says what kind of object it is for, and nothing of what such an object consists of. So the objects can name
//! each other without their files knowing each other.

use core::{fmt, hash, marker::PhantomData};

use offload_engine::table::{self, Name};

/// The name of an object of kind `K`. Stale names find nothing: those of objects that are gone are refused.
pub struct Id<K> {
    index: u32,
    generation: u32,
    kind: PhantomData<fn() -> K>,
}

/// A table of objects of kind `K`.
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

    /// A number of 24 bits for interfaces whose objects have one, such as the QP number of verbs: the object's place in
    /// its table, and above 16 bits of that the count of objects that the place has had. No two queue pairs have the
    /// same number as long as [`Capabilities::max_qp_count`](crate::rnic::Capabilities) is at most 65,536, the default;
    /// the same holds for other kinds. A number comes again when its place has had 255 other objects. Never below
    /// 65,536.
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

/// The kinds of objects.
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

/// The name of a protection domain.
pub type PdId = Id<kind::Pd>;
/// The name of a completion queue.
pub type CqId = Id<kind::Cq>;
/// The name of a memory region.
pub type RegionId = Id<kind::Region>;
pub(crate) type ReceiveQueueId = Id<kind::ReceiveQueue>;
/// The name of a queue pair.
pub type QpId = Id<kind::Qp>;
/// The name of a memory window.
pub type WindowId = Id<kind::Window>;
/// The name of a logical address mapping.
pub type LamId = Id<kind::Lam>;
/// The name of a shared receive queue.
pub type SrqId = Id<kind::Srq>;
/// The name of a connector.
pub type ConnectorId = Id<kind::Connector>;
/// The name of a listener.
pub type ListenerId = Id<kind::Listener>;
/// The name of a shared endpoint.
pub type SharedEndpointId = Id<kind::SharedEndpoint>;

/// The name of an object of any kind. Receive queues belong to their queue pair or shared receive queue, and are not
/// closed on their own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Key {
    /// The adapter itself.
    Rnic,
    /// A protection domain.
    Pd(PdId),
    /// A completion queue.
    Cq(CqId),
    /// A memory region.
    Region(RegionId),
    /// A memory window.
    Window(WindowId),
    /// A logical address mapping.
    Lam(LamId),
    /// A queue pair.
    Qp(QpId),
    /// A shared receive queue.
    Srq(SrqId),
    /// A connector.
    Connector(ConnectorId),
    /// A listener.
    Listener(ListenerId),
    /// A shared endpoint.
    SharedEndpoint(SharedEndpointId),
}

/// A byte stream below MPA. The transport gives the numbers, each to one stream at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(pub u64);
