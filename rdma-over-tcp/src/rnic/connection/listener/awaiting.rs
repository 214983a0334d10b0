//! Connections of a listener whose MPA Request is not complete. They cost memory and nobody has vouched for them, so
//! there are limits, and the oldest makes room for a new one.

use alloc::collections::{BTreeMap, BTreeSet};
use core::net::IpAddr;

use hashbrown::HashMap;

use crate::rnic::{config::ListenerConfig, objects::id::StreamId};

/// Number of a connection in order of arrival.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ArrivalNumber(u64);

/// Connections in order of their arrival.
#[derive(Debug, Default)]
pub(crate) struct Awaiting {
    next: u64,
    streams: BTreeMap<ArrivalNumber, (StreamId, IpAddr)>,
    peers: HashMap<IpAddr, BTreeSet<ArrivalNumber>>,
}

impl Awaiting {
    /// Adds a connection of `peer`. Also returns the one that has to go for it: the peer's oldest if the peer has too
    /// many, else the oldest of all if those are too many.
    pub(crate) fn add(
        &mut self,
        id: StreamId,
        peer: IpAddr,
        config: &ListenerConfig,
    ) -> (ArrivalNumber, Option<StreamId>) {
        let number = ArrivalNumber(self.next);
        self.next += 1;
        let same = self.peers.entry(peer).or_default();
        let victim = match same.len() >= config.requests_per_peer_max.max(1) {
            true => same.first().copied(),
            false if self.streams.len() >= config.requests_max.max(1) => {
                self.streams.keys().next().copied()
            }
            false => None,
        };
        same.insert(number);
        self.streams.insert(number, (id, peer));
        (number, victim.and_then(|victim| self.remove(victim)))
    }

    /// Removes the connection with this number.
    pub(crate) fn remove(&mut self, number: ArrivalNumber) -> Option<StreamId> {
        let (id, peer) = self.streams.remove(&number)?;
        if let Some(same) = self.peers.get_mut(&peer) {
            same.remove(&number);
            if same.is_empty() {
                self.peers.remove(&peer);
            }
        }
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: ListenerConfig =
        ListenerConfig { backlog: 1, requests_max: 4, requests_per_peer_max: 2, v6_only: false };

    fn peer(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    // One peer displaces its own connections only; of all the oldest goes.
    #[test]
    fn the_oldest_makes_room() {
        let mut awaiting = Awaiting::default();
        let mut add = |id, of| awaiting.add(StreamId(id), peer(of), &CONFIG);
        assert_eq!(add(1, 1).1, None);
        let (second, none) = add(2, 2);
        assert_eq!(none, None);
        assert_eq!(add(3, 2).1, None);
        assert_eq!(add(4, 2).1, Some(StreamId(2)), "of the same peer");
        assert_eq!(add(5, 3).1, None);
        assert_eq!(add(6, 4).1, Some(StreamId(1)), "of all");
        let (seventh, third) = add(7, 5);
        assert_eq!(third, Some(StreamId(3)));
        assert_eq!(awaiting.remove(second), None, "it has gone");
        assert_eq!(awaiting.remove(seventh), Some(StreamId(7)));
        assert_eq!(awaiting.add(StreamId(8), peer(5), &CONFIG).1, None);
        assert_eq!((awaiting.streams.len(), awaiting.peers.len()), (4, 4));
    }

    // Nothing is left of connections that have gone.
    #[test]
    fn memory_is_bounded() {
        let mut awaiting = Awaiting::default();
        for id in 0..1_000 {
            awaiting.add(StreamId(id), peer(id as u8), &CONFIG);
        }
        assert_eq!((awaiting.streams.len(), awaiting.peers.len()), (4, 4));
    }
}
