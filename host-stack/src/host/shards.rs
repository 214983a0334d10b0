//! Engines served by one host stack, each with its clients.
//!
//! An adapter with several queues has an engine per queue, a *shard* of the node. A connection belongs to one shard for
//! its whole life: that of the client that connected, or of the listener that accepted it. Its frames are sent on that
//! queue, so the device learns to deliver its frames there. It is offloaded to that engine, whose clients receive its
//! notices. Neighbors and paths are objects of a shard: each engine receives those of its own connections, so an update
//! is sent to every shard that has the object.
//!
//! Listeners of several shards may have one address. A connection is then accepted on the shard whose queue received
//! its SYN, unless that shard is much more loaded than the others ([`Shards::place`]). The device's hash selects this
//! queue, so frames arrive there even if the device forgets the flow.

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

/// Index of a shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct ShardId(usize);

/// Client of the node; each shard assigns its own tags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ClientId {
    pub(super) shard: ShardId,
    pub(super) tag: ClientTag,
}

/// State of a client.
#[derive(Debug)]
pub(super) struct Client {
    /// Name in log messages.
    pub(super) name: &'static str,
    pub(super) consumer: ConsumerId,
    pub(super) keep_alive: Option<KeepAlive>,
    notices: Sender<Notice>,
}

impl ShardId {
    /// Shard of traffic without a connection, such as ARP.
    pub(super) const FIRST: Self = Self(0);

    #[cfg(test)]
    pub(super) const fn numbered(number: usize) -> Self {
        Self(number)
    }
}

/// Engine and its clients.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) engine: HostPort,
    pub(super) requests: HostSocketPort,
    /// Registered clients.
    clients: BTreeMap<ClientTag, Client>,
    /// Neighbors and paths of the engine.
    pub(super) objects: Objects,
    /// True if the engine has paused offloads.
    pub(super) paused: bool,
    /// Connections of the shard, in the host or offloaded.
    pub(super) connections: usize,
    /// True if something was queued for the engine, or for one of its clients.
    ring: bool,
}

impl Shard {
    /// Sends a message to the engine.
    pub(super) fn send_to_engine(&mut self, message: FromHost) {
        // The engine's receiver lives as long as the node; messages to a stopped node are discarded.
        let _ = self.engine.to_engine.send(message);
        self.ring = true;
    }

    /// Sends a notice to a client, unless it has unregistered.
    pub(super) fn notify(&mut self, client: ClientTag, notice: Notice) {
        if let Some(client) = self.clients.get(&client) {
            // As in `send_to_engine`.
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

/// All shards of a node.
#[derive(Debug)]
pub(super) struct Shards {
    all: Vec<Shard>,
    next_id: Arc<AtomicU64>,
}

impl Shards {
    /// Returns the shards if there is at least one, and all share one ID allocator; otherwise `None`.
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

    /// Allocates a handle for an object of the host.
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

    /// Shard for a connection whose SYN arrived on the queue of `arrived`: that one, unless the least loaded of
    /// `candidates` has an eighth less. A few connections are thus spread evenly; of many, nearly all stay on the
    /// device's queue.
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
