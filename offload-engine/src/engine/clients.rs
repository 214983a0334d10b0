//! Clients of a node: the layers above the target that receive upcalls.
//!
//! Theory of operation
//!
//! A client is stored boxed in a table. Registration assigns it a tag ([`ClientTag`]). Every connection carries the tag
//! of the client that connected it, or of the listener that accepted it. The engine resolves the tag once per received
//! segment and once per poll of a connection. This is an index and a comparison, without a hash, a lock or an
//! allocation. The upcalls are virtual calls.
//!
//! A tag is the index of a table entry and its generation. So an entry can be reused, and a tag is not assigned twice
//! until its entry has held 2^32 clients. A client may be removed at any time. The [`Engine`](super::Engine) then
//! resets its offloaded connections ([`FromHost::RemoveClient`](super::port::FromHost::RemoveClient)) and those whose
//! offload is pending. Upcalls with a stale tag are delivered to [`OrphanClient`], which drops all data. Other clients
//! are not affected.
//!
//! A client's own state is accessed by tag and type ([`Clients::get`], [`Clients::get_mut`]): a lookup as above and a
//! comparison of types. The lock of the shard protects the table, so the access needs no other lock.
//!
//! Limit: [`CLIENTS_MAX`] concurrent clients.

use std::{any::Any, boxed::Box, vec::Vec};

use super::{Callback, Connections, NodeClient};
use crate::{
    chimney::client::{ClientTag, ConnectionEvent, ConnectionIo, OffloadClient, OffloadHandle},
    nbl::{NblChain, NetBufferList, ReceiveChain},
    table::{Name, Table},
    time::Instant,
};

/// Concurrent clients of an engine.
pub const CLIENTS_MAX: usize = 256;

/// Error: the engine already has the maximum number of clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("node: client limit of {CLIENTS_MAX} reached")]
pub struct TooManyClients;

/// The index is the upper half of a tag, and the generation is the lower half.
impl Name for ClientTag {
    #[inline]
    fn new(index: u32, generation: u32) -> Self {
        Self(u64::from(index) << 32 | u64::from(generation))
    }

    #[inline]
    fn index(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline]
    fn generation(self) -> u32 {
        self.0 as u32
    }
}

/// [`ClientTag::NONE`] has generation 0.
const FIRST_GENERATION: u32 = 1;

/// Clients of an engine.
pub struct Clients {
    table: Table<ClientTag, Box<dyn NodeClient>>,
    orphan: OrphanClient,
    /// Callbacks of removed clients, and the clients themselves, whose drop may enter the node through a handle.
    removed: Vec<Callback>,
}

impl Default for Clients {
    fn default() -> Self {
        Self::new()
    }
}

impl Clients {
    /// Tag of the first client registered.
    pub const FIRST: ClientTag = ClientTag(FIRST_GENERATION as u64);

    /// Creates an empty table.
    pub const fn new() -> Self {
        let table = Table::starting_at(FIRST_GENERATION, 1, CLIENTS_MAX as u32);
        Self { table, orphan: OrphanClient, removed: Vec::new() }
    }

    /// Registers a client. `make` creates it from its tag.
    ///
    /// # Errors
    /// [`CLIENTS_MAX`] clients are registered already. `make` is not called.
    pub fn insert<C: NodeClient>(
        &mut self,
        make: impl FnOnce(ClientTag) -> C,
    ) -> Result<ClientTag, TooManyClients> {
        let tag = self.table.next_name().ok_or(TooManyClients)?;
        self.table.insert(Box::new(make(tag))).map_err(|_| TooManyClients)
    }

    /// Removes a client. Its pending callbacks and the client itself are returned by [`Clients::take_callbacks`],
    /// because they may enter the node. Returns true if the client existed.
    pub fn remove(&mut self, tag: ClientTag) -> bool {
        let Some(mut client) = self.table.remove(tag) else { return false };
        client.take_callbacks(&mut self.removed);
        self.removed.push(Box::new(move || drop(client)));
        true
    }

    /// True if this client is registered.
    pub fn contains(&self, tag: ClientTag) -> bool {
        self.table.get(tag).is_some()
    }

    /// Returns a client's own state. `None` if the client does not exist or has another type.
    pub fn get<C: NodeClient>(&self, tag: ClientTag) -> Option<&C> {
        (&**self.table.get(tag)? as &dyn Any).downcast_ref()
    }

    /// Mutable variant of [`Clients::get`].
    pub fn get_mut<C: NodeClient>(&mut self, tag: ClientTag) -> Option<&mut C> {
        (&mut **self.table.get_mut(tag)? as &mut dyn Any).downcast_mut()
    }

    /// Returns the state of the first client registered, for simulations.
    ///
    /// # Panics
    /// The client was removed or has another type.
    pub fn first<C: NodeClient>(&self) -> &C {
        self.get(Self::FIRST).expect("the first client, of this type")
    }

    /// Mutable variant of [`Clients::first`].
    ///
    /// # Panics
    /// As [`Clients::first`].
    pub fn first_mut<C: NodeClient>(&mut self) -> &mut C {
        self.get_mut(Self::FIRST).expect("the first client, of this type")
    }

    /// Returns the client that receives a connection's upcalls.
    #[inline]
    pub(super) fn of(&mut self, tag: ClientTag) -> &mut dyn NodeClient {
        match self.table.get_mut(tag) {
            Some(client) => &mut **client,
            None => &mut self.orphan,
        }
    }

    /// Calls [`NodeClient::poll`] of each client. Returns true if any of them did work.
    #[inline]
    pub fn poll(&mut self, now: Instant, connections: &mut Connections) -> bool {
        self.table.values_mut().fold(false, |busy, client| client.poll(now, connections) | busy)
    }

    /// Earliest [`NodeClient::poll_at`].
    #[inline]
    pub fn poll_at(&self) -> Option<Instant> {
        self.table.iter().filter_map(|(_, client)| client.poll_at()).min()
    }

    /// True if any client has input to process.
    #[inline]
    pub fn has_input(&self) -> bool {
        self.table.iter().any(|(_, client)| client.has_input())
    }

    /// Calls [`NodeClient::device_lost`] of each client.
    pub fn device_lost(&mut self) {
        self.table.values_mut().for_each(|client| client.device_lost());
    }

    /// Moves out the callbacks that are due, in order for each client.
    #[inline]
    pub fn take_callbacks(&mut self, callbacks: &mut Vec<Callback>) {
        callbacks.append(&mut self.removed);
        self.table.values_mut().for_each(|client| client.take_callbacks(callbacks));
    }

    /// True if a client has callbacks that only a thread of the engine loop may run.
    #[inline]
    pub fn has_callbacks_of_loop(&self) -> bool {
        self.table.iter().any(|(_, client)| client.has_callbacks_of_loop())
    }

    /// Calls [`NodeClient::take_callbacks_of_calls`] of each client.
    #[inline]
    pub fn take_callbacks_of_calls(&mut self, callbacks: &mut Vec<Callback>) {
        callbacks.append(&mut self.removed);
        self.table.values_mut().for_each(|client| client.take_callbacks_of_calls(callbacks));
    }
}

impl core::fmt::Debug for Clients {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.table.names()).finish()
    }
}

/// Client of connections whose own client was removed.
#[derive(Debug)]
struct OrphanClient;

impl OffloadClient for OrphanClient {
    fn offloaded(&mut self, _io: &mut ConnectionIo<'_>) {}

    fn receive(&mut self, _io: &mut ConnectionIo<'_>, data: &[u8], _push: bool) -> usize {
        data.len()
    }

    fn receive_complete(&mut self, _io: &mut ConnectionIo<'_>, _chain: ReceiveChain) {}

    fn send_complete(&mut self, _io: &mut ConnectionIo<'_>, _chain: NblChain) {}

    fn send_room(&mut self, _io: &mut ConnectionIo<'_>) {}

    fn disconnect_complete(&mut self, _io: &mut ConnectionIo<'_>, _nbl: NetBufferList) {}

    fn event(&mut self, _io: &mut ConnectionIo<'_>, _event: ConnectionEvent) {}

    fn uploaded(&mut self, _handle: OffloadHandle) {}
}

impl NodeClient for OrphanClient {}
