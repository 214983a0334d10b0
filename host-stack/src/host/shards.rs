//! The engines that one host stack serves, each with the clients that live with it.
//!
//! An adapter with several queues has an engine for each, a *shard* of the node. A connection belongs to one shard all
//! its life: to that of the client that has connected, or of the listener that has accepted it. Its frames are sent on
//! that queue, so the device learns to deliver what comes for it there; it is handed down to that engine, and its
//! client gets its notices. Neighbors and paths are objects of a shard: each engine is given those that its own
//! connections depend on, so updates of one go to every shard that has it.
//!
//! Listeners of several shards may have one address. A connection is then accepted for the shard on whose queue its SYN
//! has come, as long as that is about as loaded as the others ([`Shards::place`]): where the device has spread the
//! flow, its frames come even when the device has forgotten it.

use alloc::{collections::BTreeMap, sync::Arc, vec::Vec};
use core::{
    ops::{Index, IndexMut},
    sync::atomic::{AtomicU64, Ordering},
};

use crossbeam_channel::Sender;
use offload_engine::{
    chimney::client::{ClientTag, OffloadHandle},
    engine::port::{FromHost, HostPort},
    state::KeepAlive,
};

use super::objects::Objects;
use crate::socket::{ConsumerId, HostSocketPort, Notice};

/// Which shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct ShardId(usize);

/// A client of the node: tags are given by each shard for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ClientId {
    pub(super) shard: ShardId,
    pub(super) tag: ClientTag,
}

/// What the host knows of a client.
#[derive(Debug)]
pub(super) struct Client {
    /// What messages call it.
    pub(super) name: &'static str,
    pub(super) consumer: ConsumerId,
    pub(super) keep_alive: Option<KeepAlive>,
    notices: Sender<Notice>,
}

impl ShardId {
    /// What belongs to no connection, such as ARP, goes through this one.
    pub(super) const FIRST: Self = Self(0);

    #[cfg(test)]
    pub(super) const fn numbered(number: usize) -> Self {
        Self(number)
    }
}

/// An engine and its clients.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) engine: HostPort,
    pub(super) requests: HostSocketPort,
    /// Those that have registered and not left.
    clients: BTreeMap<ClientTag, Client>,
    /// What its engine has besides connections.
    pub(super) objects: Objects,
    /// Its engine has asked that nothing be offloaded.
    pub(super) paused: bool,
    /// Connections that belong to it, in the host or with its engine.
    pub(super) connections: usize,
    /// Something was queued for the engine, or for a client that lives with it.
    ring: bool,
}

impl Shard {
    /// Sends a message down.
    pub(super) fn tell_engine(&mut self, message: FromHost) {
        // The engine's end lives as long as the node; what is sent to a node that has ended is void.
        let _ = self.engine.to_engine.send(message);
        self.ring = true;
    }

    /// Sends a notice to a client, unless it has left.
    pub(super) fn notify(&mut self, client: ClientTag, notice: Notice) {
        if let Some(client) = self.clients.get(&client) {
            // As in `tell_engine`.
            let _ = client.notices.send(notice);
            self.ring = true;
        }
    }

    pub(super) fn register(
        &mut self,
        client: ClientTag,
        name: &'static str,
        consumer: ConsumerId,
        notices: Sender<Notice>,
    ) {
        self.clients.insert(client, Client { name, consumer, keep_alive: None, notices });
    }

    pub(super) fn keep_alive(&mut self, client: ClientTag, keep_alive: Option<KeepAlive>) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.keep_alive = keep_alive;
        }
    }

    pub(super) fn remove(&mut self, client: ClientTag) -> Option<Client> {
        self.clients.remove(&client)
    }

    pub(super) fn client(&self, client: ClientTag) -> Option<&Client> {
        self.clients.get(&client)
    }
}

/// All of them.
#[derive(Debug)]
pub(super) struct Shards {
    all: Vec<Shard>,
    next_id: Arc<AtomicU64>,
}

impl Shards {
    /// At least one, and all with one allocator of names; else there are none.
    pub(super) fn new(ports: Vec<(HostPort, HostSocketPort)>) -> Option<Self> {
        let next_id = ports.first()?.1.next_id.clone();
        if ports.iter().any(|(_, requests)| !Arc::ptr_eq(&requests.next_id, &next_id)) {
            return None;
        }
        let shard = |(engine, requests)| Shard {
            engine,
            requests,
            clients: BTreeMap::new(),
            objects: Objects::default(),
            paused: false,
            connections: 0,
            ring: false,
        };
        Some(Self { all: ports.into_iter().map(shard).collect(), next_id })
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.all.len()).map(ShardId)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Shard> {
        self.all.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Shard> {
        self.all.iter_mut()
    }

    /// A name for an object of ours.
    pub(super) fn new_handle(&self) -> OffloadHandle {
        OffloadHandle(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Wakes the engines for which something was queued.
    pub(super) fn ring(&mut self) {
        for shard in &mut self.all {
            if core::mem::take(&mut shard.ring) {
                shard.engine.engine_doorbell.ring();
            }
        }
    }

    /// Where a connection is to go whose SYN came by the queue of `arrived`: there, unless the least loaded of
    /// `candidates` has an eighth less. So a few connections are spread evenly, and of many nearly all stay where the
    /// device has put them.
    pub(super) fn place(
        &self,
        arrived: ShardId,
        candidates: impl Iterator<Item = ShardId> + Clone,
    ) -> Option<ShardId> {
        let least = candidates.clone().min_by_key(|shard| self[*shard].connections)?;
        let load = self[least].connections;
        let stays = candidates.into_iter().any(|shard| shard == arrived)
            && self[arrived].connections <= load + load / 8;
        Some(if stays { arrived } else { least })
    }
}

impl Index<ShardId> for Shards {
    type Output = Shard;

    fn index(&self, ShardId(index): ShardId) -> &Shard {
        &self.all[index]
    }
}

impl IndexMut<ShardId> for Shards {
    fn index_mut(&mut self, ShardId(index): ShardId) -> &mut Shard {
        &mut self.all[index]
    }
}
