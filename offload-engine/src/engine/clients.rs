//! The clients of a node: the layers above the target, and the one that a connection's upcalls go to.
//!
//! Theory of operation
//!
//! A client is registered in a table, boxed, and has a tag from then on ([`ClientTag`]). Every connection carries the
//! tag of the client that has connected it, or of the listener that has accepted it. The engine looks the tag up once
//! for a received segment and once for a connection's turn: an index and a comparison, without a hash, a lock or an
//! allocation. What follows are virtual calls.
//!
//! A tag is the client's place in the table and the number of its registration, so it is never given twice, and a place
//! can be taken again. A client may leave while connections of it are anywhere: [`Engine`](super::Engine) resets those
//! that it has ([`FromHost::Leave`](super::port::FromHost::Leave)), and those that are still on their way to it, and
//! upcalls with the tag of no client (any more) go to [`Nobody`], which drops everything. The other
//! clients do not notice.
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
    time::Instant,
};

/// Clients of an engine at once.
pub const CLIENTS_MAX: usize = 256;

/// All clients that an engine may have are registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("node: no more than {CLIENTS_MAX} clients at once")]
pub struct TooManyClients;

struct Slot {
    /// [`ClientTag::NOBODY`]: a free entry.
    tag: ClientTag,
    client: Box<dyn NodeClient>,
}

/// The clients of an engine.
pub struct Clients {
    slots: Vec<Slot>,
    nobody: Nobody,
    registrations: u64,
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
    pub const FIRST: ClientTag = tag_of(1, 0);

    /// No client.
    pub const fn new() -> Self {
        Self { slots: Vec::new(), nobody: Nobody, registrations: 0, left: Vec::new() }
    }

    /// Registers a client, which `make` makes, given its tag.
    ///
    /// # Errors
    /// There are [`CLIENTS_MAX`] already; `make` is not called.
    pub fn insert<C: NodeClient>(
        &mut self,
        make: impl FnOnce(ClientTag) -> C,
    ) -> Result<ClientTag, TooManyClients> {
        let free = self.slots.iter().position(|slot| slot.tag == ClientTag::NOBODY);
        let index = free.unwrap_or(self.slots.len());
        if index == CLIENTS_MAX {
            return Err(TooManyClients);
        }
        self.registrations += 1;
        let tag = tag_of(self.registrations, index);
        let slot = Slot { tag, client: Box::new(make(tag)) };
        match self.slots.get_mut(index) {
            Some(free) => *free = slot,
            None => self.slots.push(slot),
        }
        Ok(tag)
    }

    /// Takes a client out. What it had for its consumer, and the client itself, go by [`Clients::take_callbacks`], for
    /// they may enter the node. Returns whether there was such a client.
    pub fn remove(&mut self, tag: ClientTag) -> bool {
        let Some(slot) = self.slots.get_mut(index_of(tag)).filter(|slot| slot.tag == tag) else {
            return false;
        };
        slot.tag = ClientTag::NOBODY;
        let mut client = core::mem::replace(&mut slot.client, Box::new(Nobody));
        client.take_callbacks(&mut self.left);
        self.left.push(Box::new(move || drop(client)));
        true
    }

    /// Whether this client is registered.
    pub fn contains(&self, tag: ClientTag) -> bool {
        self.slots
            .get(index_of(tag))
            .is_some_and(|slot| slot.tag == tag && tag != ClientTag::NOBODY)
    }

    /// A client's own state. `None`: there is no such client, or it is none of this type.
    pub fn get<C: NodeClient>(&self, tag: ClientTag) -> Option<&C> {
        let slot = self.slots.get(index_of(tag)).filter(|slot| slot.tag == tag)?;
        (&*slot.client as &dyn Any).downcast_ref()
    }

    /// As [`Clients::get`], to be changed.
    pub fn get_mut<C: NodeClient>(&mut self, tag: ClientTag) -> Option<&mut C> {
        let slot = self.slots.get_mut(index_of(tag)).filter(|slot| slot.tag == tag)?;
        (&mut *slot.client as &mut dyn Any).downcast_mut()
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
        match self.slots.get_mut(index_of(tag)) {
            Some(slot) if slot.tag == tag => &mut *slot.client,
            _ => &mut self.nobody,
        }
    }

    /// [`NodeClient::poll`] of each. Returns whether there was anything to do.
    #[inline]
    pub fn poll(&mut self, now: Instant, connections: &mut Connections) -> bool {
        let poll = |busy, slot: &mut Slot| slot.client.poll(now, connections) | busy;
        self.slots.iter_mut().fold(false, poll)
    }

    /// The earliest [`NodeClient::poll_at`].
    #[inline]
    pub fn poll_at(&self) -> Option<Instant> {
        self.slots.iter().filter_map(|slot| slot.client.poll_at()).min()
    }

    /// Whether something waits for one of them.
    #[inline]
    pub fn has_input(&self) -> bool {
        self.slots.iter().any(|slot| slot.client.has_input())
    }

    /// [`NodeClient::device_lost`] of each.
    pub fn device_lost(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.client.device_lost());
    }

    /// Moves out the callbacks that became due, of each in order.
    #[inline]
    pub fn take_callbacks(&mut self, callbacks: &mut Vec<Callback>) {
        callbacks.append(&mut self.left);
        self.slots.iter_mut().for_each(|slot| slot.client.take_callbacks(callbacks));
    }

    /// Whether callbacks of one of them wait for a thread that runs the loop.
    #[inline]
    pub fn has_callbacks_of_loop(&self) -> bool {
        self.slots.iter().any(|slot| slot.client.has_callbacks_of_loop())
    }

    /// [`NodeClient::take_callbacks_of_calls`] of each.
    #[inline]
    pub fn take_callbacks_of_calls(&mut self, callbacks: &mut Vec<Callback>) {
        callbacks.append(&mut self.left);
        self.slots.iter_mut().for_each(|slot| slot.client.take_callbacks_of_calls(callbacks));
    }
}

impl core::fmt::Debug for Clients {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.slots.iter().map(|slot| slot.tag)).finish()
    }
}

const fn tag_of(registration: u64, index: usize) -> ClientTag {
    ClientTag(registration * CLIENTS_MAX as u64 + index as u64)
}

const fn index_of(tag: ClientTag) -> usize {
    tag.0 as usize % CLIENTS_MAX
}

/// The client of connections whose own client has left.
#[derive(Debug)]
struct Nobody;

impl OffloadClient for Nobody {
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

impl NodeClient for Nobody {}
