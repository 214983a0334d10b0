//! Local endpoints in use: one table per node, for all clients and shards.
//!
//! A port is reserved for an explicit request and for an assigned port. An endpoint
//! ([`Request::Bind`](crate::socket::Request::Bind)) holds it until its client releases it. A listener holds it until
//! it stops listening, an opened connection until it ends. All reservations of a client are released when it
//! unregisters. An unspecified address covers the node's addresses of its families ([`LocalAddress`]).
//!
//! | holder of the port | bind | listen | connect |
//! |---|---|---|---|
//! | endpoint | in use | in use | in use |
//! | listener | in use | in use | in use |
//! | connection opened from here, of the same consumer | in use | free | free, if the peer is another |
//! | the same, of another consumer | in use | in use | in use |
//! | accepted connection; one in TIME-WAIT in the host | free | free | free, if the peer is another |
//!
//! The client that bound an endpoint may listen on it and connect from it. Each shard of one consumer may bind, and
//! listen on, the same endpoint. So a restarted listener can reuse its port, as on Linux with SO_REUSEADDR, whatever
//! connections remain. Two consumers never share an endpoint.

use alloc::{collections::BTreeSet, vec::Vec};
use hashbrown::HashMap;
use offload_engine::{address::LocalAddress, chimney::client::OffloadHandle};

use super::{connection::EPHEMERAL_PORTS, shards::ClientId};
use crate::socket::{ConsumerId, EndpointId, HostError, ListenerId};

/// Holder of a local endpoint.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Name {
    Endpoint(EndpointId),
    Listener(ListenerId),
    /// Connection opened by this node.
    Connection(OffloadHandle),
}

/// Owner of a reservation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Holder {
    pub(super) client: ClientId,
    pub(super) consumer: ConsumerId,
}

/// Requested use of a local endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) name: Name,
    pub(super) local: LocalAddress,
    pub(super) holder: Holder,
    /// Endpoint that the claim listens on or connects from.
    pub(super) endpoint: Option<EndpointId>,
}

#[derive(Clone, Copy, Debug)]
struct Reservation {
    local: LocalAddress,
    holder: Holder,
    /// Endpoint created for a connection; released if the connection fails.
    created: Option<EndpointId>,
}

/// Table of reservations.
#[derive(Debug)]
pub(super) struct Ports {
    all: HashMap<Name, Reservation>,
    by_port: BTreeSet<(u16, Name)>,
    /// First ephemeral port of the next search.
    next: u16,
}

impl Claim {
    fn is_compatible_with(&self, name: Name, used: &Reservation) -> bool {
        let is_own = self.endpoint.is_some_and(|own| name == Name::Endpoint(own));
        let is_of_consumer = used.holder.consumer == self.holder.consumer;
        match (self.name, name) {
            _ if is_own => used.holder.client == self.holder.client,
            (Name::Connection(_), Name::Endpoint(_) | Name::Listener(_)) => false,
            (_, Name::Endpoint(_) | Name::Listener(_)) => {
                is_of_consumer
                    && used.local == self.local
                    && used.holder.client.shard != self.holder.client.shard
            }
            (Name::Endpoint(_), Name::Connection(_)) => false,
            (_, Name::Connection(_)) => is_of_consumer,
        }
    }
}

impl Ports {
    /// Creates an empty table; the search for ephemeral ports begins at `next`.
    pub(super) fn new(next: u16) -> Self {
        Self { all: HashMap::new(), by_port: BTreeSet::new(), next }
    }

    fn at(&self, local: LocalAddress) -> impl Iterator<Item = (Name, &Reservation)> {
        let port = local.address.port();
        let first = (port, Name::Endpoint(EndpointId(0)));
        let of_port = self.by_port.range(first..).take_while(move |(of, _)| *of == port);
        let used = of_port.filter_map(|(_, name)| Some((*name, self.all.get(name)?)));
        used.filter(move |(_, used)| used.local.overlaps(&local))
    }

    /// True if the claim does not conflict with a reservation.
    pub(super) fn permits(&self, claim: &Claim) -> bool {
        !self.all.contains_key(&claim.name)
            && self.at(claim.local).all(|(name, used)| claim.is_compatible_with(name, used))
    }

    /// True if neither `local` nor an overlapping address is in use.
    pub(super) fn is_unused(&self, local: LocalAddress) -> bool {
        self.at(local).next().is_none()
    }

    /// Address of an endpoint, `None` if it does not exist. Returns an error if it belongs to another client.
    pub(super) fn endpoint(
        &self,
        endpoint: EndpointId,
        client: ClientId,
    ) -> Result<Option<LocalAddress>, HostError> {
        match self.all.get(&Name::Endpoint(endpoint)) {
            Some(found) if found.holder.client == client => Ok(Some(found.local)),
            Some(_) => Err(HostError::AddressInUse),
            None => Ok(None),
        }
    }

    /// Reserves a claim, and names its endpoint if it is new.
    pub(super) fn reserve(&mut self, claim: &Claim) {
        let &Claim { name, local, holder, endpoint } = claim;
        let endpoint =
            endpoint.filter(|endpoint| !self.all.contains_key(&Name::Endpoint(*endpoint)));
        if let Some(endpoint) = endpoint {
            self.insert(Name::Endpoint(endpoint), Reservation { local, holder, created: None });
        }
        self.insert(name, Reservation { local, holder, created: endpoint });
    }

    fn insert(&mut self, name: Name, reservation: Reservation) {
        self.by_port.insert((reservation.local.address.port(), name));
        self.all.insert(name, reservation);
    }

    /// Releases a reservation. Idempotent.
    pub(super) fn release(&mut self, name: Name) {
        if let Some(Reservation { local, .. }) = self.all.remove(&name) {
            self.by_port.remove(&(local.address.port(), name));
        }
    }

    /// Releases the reservations of a connection that could not be opened.
    pub(super) fn fail(&mut self, handle: OffloadHandle) {
        let name = Name::Connection(handle);
        if let Some(endpoint) = self.all.get(&name).and_then(|found| found.created) {
            self.release(Name::Endpoint(endpoint));
        }
        self.release(name);
    }

    /// Releases an endpoint of this client.
    pub(super) fn unbind(&mut self, endpoint: EndpointId, client: ClientId) {
        if let Ok(Some(_)) = self.endpoint(endpoint, client) {
            self.release(Name::Endpoint(endpoint));
        }
    }

    /// Releases all reservations of a client.
    pub(super) fn release_client(&mut self, client: ClientId) {
        let of_client = self.all.iter().filter(|(_, used)| used.holder.client == client);
        for name in of_client.map(|(name, _)| *name).collect::<Vec<_>>() {
            self.release(name);
        }
    }

    /// Searches the ephemeral ports from the end of the last search. A 4-tuple is reused as late as possible, so that
    /// it does not match a peer's TIME-WAIT (P13).
    pub(super) fn ephemeral(
        &mut self,
        is_free: impl Fn(&Self, u16) -> bool,
    ) -> Result<u16, HostError> {
        for _ in EPHEMERAL_PORTS {
            let port = self.next;
            self.next = port.checked_add(1).unwrap_or(EPHEMERAL_PORTS.start as u16);
            if is_free(self, port) {
                return Ok(port);
            }
        }
        Err(HostError::NoPorts)
    }
}

#[cfg(test)]
mod tests;
