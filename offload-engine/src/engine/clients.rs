//! The clients of a node: the layers above the target, and the one that a connection's upcalls go to.
//!
//! Theory of operation
//!
//! A client is registered in a table, boxed, and has a tag from then on ([`ClientTag`]). Every connection carries the
//! tag of the client that has connected it, or of the listener that has accepted it. The engine looks the tag up once
//! for a received segment and once for a connection's turn: an index and a comparison, without a hash, a lock or an
//! allocation. What follows are virtual calls.
//!
//! A tag is the client's place in the table and the generation of that place, so a place can be taken again, and a tag
//! is not given twice until its place has had 2^32 clients. A client may leave at any time: the
//! [`Engine`](super::Engine) resets its offloaded connections ([`FromHost::Leave`](super::port::FromHost::Leave)) and
//! those whose offload is pending. Upcalls with a stale tag are delivered to [`OrphanClient`], which drops everything.
//! Other clients are not affected.
//!
//! A client's own state is reached by tag and type ([`Clients::get`], [`Clients::get_mut`]): a lookup as above and a
//! comparison of types. Whoever holds the table, behind the one lock of a shard, needs no other lock for it.
//!
//! Limit: [`CLIENTS_MAX`] clients at once.

use std::{any::Any, boxed::Box, vec::Vec};

use super::{Callback, Connections, NodeClient};
use crate::{
    chimney::client::{ClientTag, ConnectionEvent, ConnectionIo, OffloadClient, OffloadHandle},
    nbl::{NblChain, NetBufferList, ReceiveChain},
    table::{Name, Table},
    time::Instant,
};

/// Clients of an engine at once.
pub const CLIENTS_MAX: usize = 256;

/// All clients that an engine may have are registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("node: no more than {CLIENTS_MAX} clients at once")]
pub struct TooManyClients;

/// A tag is `generation * CLIENTS_MAX + index`.
impl Name for ClientTag {
    #[inline]
    fn new(index: u32, generation: u32) -> Self {
        Self(u64::from(generation) * CLIENTS_MAX as u64 + u64::from(index))
    }

    #[inline]
    fn index(self) -> u32 {
        (self.0 % CLIENTS_MAX as u64) as u32
    }

    #[inline]
    fn generation(self) -> u32 {
        (self.0 / CLIENTS_MAX as u64) as u32
    }
}

/// [`ClientTag::NOBODY`] has generation 0.
const FIRST_GENERATION: u32 = 1;

/// The clients of an engine.
pub struct Clients {
    table: Table<ClientTag, Box<dyn NodeClient>>,
    nobody: OrphanClient,
    /// Callbacks of clients that have left, and their memory: it may hold handles whose drop enters the node.
    left: Vec<Callback>,
}

impl Default for Clients {
    fn default() -> Self {
        Self::new()
    }
}

impl Clients {
    /// The tag of the client that is registered first.
    pub const FIRST: ClientTag = ClientTag(FIRST_GENERATION as u64 * CLIENTS_MAX as u64);

    /// No client.
    pub const fn new() -> Self {
        let table = Table::starting_at(FIRST_GENERATION, 1, CLIENTS_MAX as u32);
        Self { table, nobody: OrphanClient, left: Vec::new() }
    }

    /// Registers a client, which `make` makes, given its tag.
    ///
    /// # Errors
    /// There are [`CLIENTS_MAX`] already; `make` is not called.
    pub fn insert<C: NodeClient>(
        &mut self,
        make: impl FnOnce(ClientTag) -> C,
    ) -> Result<ClientTag, TooManyClients> {
        let tag = self.table.next_name().ok_or(TooManyClients)?;
        self.table.insert(Box::new(make(tag))).map_err(|_| TooManyClients)
    }

    /// Takes a client out. What it had for its consumer, and the client itself, go by [`Clients::take_callbacks`], for
    /// they may enter the node. Returns whether there was such a client.
    pub fn remove(&mut self, tag: ClientTag) -> bool {
        let Some(mut client) = self.table.remove(tag) else { return false };
        client.take_callbacks(&mut self.left);
        self.left.push(Box::new(move || drop(client)));
        true
    }

    /// Whether this client is registered.
    pub fn contains(&self, tag: ClientTag) -> bool {
        self.table.get(tag).is_some()
    }

    /// A client's own state. `None`: there is no such client, or it is none of this type.
    pub fn get<C: NodeClient>(&self, tag: ClientTag) -> Option<&C> {
        (&**self.table.get(tag)? as &dyn Any).downcast_ref()
    }

    /// As [`Clients::get`], to be changed.
    pub fn get_mut<C: NodeClient>(&mut self, tag: ClientTag) -> Option<&mut C> {
        (&mut **self.table.get_mut(tag)? as &mut dyn Any).downcast_mut()
    }

    /// The state of the client that was registered first, for simulations, which have made it.
    ///
    /// # Panics
    /// It has left, or is none of this type.
    pub fn first<C: NodeClient>(&self) -> &C {
        self.get(Self::FIRST).expect("the first client, of this type")
    }

    /// As [`Clients::first`], to be changed.
    ///
    /// # Panics
    /// As [`Clients::first`].
    pub fn first_mut<C: NodeClient>(&mut self) -> &mut C {
        self.get_mut(Self::FIRST).expect("the first client, of this type")
    }

    /// The client that a connection's upcalls go to.
    #[inline]
    pub(super) fn of(&mut self, tag: ClientTag) -> &mut dyn NodeClient {
        match self.table.get_mut(tag) {
            Some(client) => &mut **client,
            None => &mut self.nobody,
        }
    }

    /// [`NodeClient::poll`] of each. Returns whether there was anything to do.
    #[inline]
    pub fn poll(&mut self, now: Instant, connections: &mut Connections) -> bool {
        self.table.values_mut().fold(false, |busy, client| client.poll(now, connections) | busy)
    }

    /// The earliest [`NodeClient::poll_at`].
    #[inline]
    pub fn poll_at(&self) -> Option<Instant> {
        self.table.iter().filter_map(|(_, client)| client.poll_at()).min()
    }

    /// Whether something waits for one of them.
    #[inline]
    pub fn has_input(&self) -> bool {
        self.table.iter().any(|(_, client)| client.has_input())
    }

    /// [`NodeClient::device_lost`] of each.
    pub fn device_lost(&mut self) {
        self.table.values_mut().for_each(|client| client.device_lost());
    }

    /// Moves out the callbacks that became due, of each in order.
    #[inline]
    pub fn take_callbacks(&mut self, callbacks: &mut Vec<Callback>) {
        callbacks.append(&mut self.left);
        self.table.values_mut().for_each(|client| client.take_callbacks(callbacks));
    }

    /// Whether callbacks of one of them wait for a thread that runs the loop.
    #[inline]
    pub fn has_callbacks_of_loop(&self) -> bool {
        self.table.iter().any(|(_, client)| client.has_callbacks_of_loop())
    }

    /// [`NodeClient::take_callbacks_of_calls`] of each.
    #[inline]
    pub fn take_callbacks_of_calls(&mut self, callbacks: &mut Vec<Callback>) {
        callbacks.append(&mut self.left);
        self.table.values_mut().for_each(|client| client.take_callbacks_of_calls(callbacks));
    }
}

impl core::fmt::Debug for Clients {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.table.names()).finish()
    }
}

/// The client of connections whose own client has left.
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
