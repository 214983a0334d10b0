//! Connections of a listener whose MPA Request is not complete. They use memory and are not authenticated. So their
//! number is limited, and a new connection displaces the oldest one.

use alloc::collections::{BTreeMap, BTreeSet};
use core::net::IpAddr;

use hashbrown::HashMap;

use crate::rnic::{config::ListenerConfig, objects::id::StreamId};

/// Number of a connection in order of arrival.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ArrivalNumber(u64);

/// Connections in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Awaiting {
    next: u64,
    streams: BTreeMap<ArrivalNumber, (StreamId, IpAddr)>,
    peers: HashMap<IpAddr, BTreeSet<ArrivalNumber>>,
}

impl Awaiting {
    /// Adds a connection of `peer`. Also returns the displaced connection: the peer's oldest if the peer has too many,
    /// otherwise the oldest of all if there are too many.
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

    // A peer displaces its own connections first. If all peers together have too many, the oldest is displaced.
    #[test]
    fn oldest_connection_is_displaced() {
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
        assert_eq!(awaiting.remove(second), None, "already displaced");
        assert_eq!(awaiting.remove(seventh), Some(StreamId(7)));
        assert_eq!(awaiting.add(StreamId(8), peer(5), &CONFIG).1, None);
        assert_eq!((awaiting.streams.len(), awaiting.peers.len()), (4, 4));
    }

    // Displaced connections leave no entries.
    #[test]
    fn memory_is_bounded() {
        let mut awaiting = Awaiting::default();
        for id in 0..1_000 {
            awaiting.add(StreamId(id), peer(id as u8), &CONFIG);
        }
        assert_eq!((awaiting.streams.len(), awaiting.peers.len()), (4, 4));
    }
}
