//! Limits of outstanding Reads in each direction (IRD and ORD).

use crate::mpa::startup::{Enhanced, ReadLimits};

/// Read limits requested by a consumer, and negotiated read limits (NDK-CD-1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadLimit {
    /// Reads of the peer served at the same time (IRD).
    pub inbound: u32,
    /// Own Reads outstanding at the same time (ORD).
    pub outbound: u32,
}

impl ReadLimit {
    /// Returns the limits capped by those of the adapter. Excessive requests never fail (NDK-CD-1).
    pub(crate) fn capped(self, adapter: Self) -> ReadLimits {
        let narrow = |wish: u32, max: u32| u16::try_from(wish.min(max)).unwrap_or(u16::MAX);
        ReadLimits {
            ird: narrow(self.inbound, adapter.inbound),
            ord: narrow(self.outbound, adapter.outbound),
        }
    }

    /// Returns the effective limits of a connection, given the enhanced data of the peer. A limit that the peer does
    /// not specify remains as requested.
    pub(crate) fn effective(own: ReadLimits, peer: Option<&Enhanced>) -> Self {
        let peer_ird = peer.and_then(|peer| peer.ird.reads()).unwrap_or(u16::MAX);
        let peer_ord = peer.and_then(|peer| peer.ord.reads()).unwrap_or(u16::MAX);
        Self { inbound: own.ird.min(peer_ord).into(), outbound: own.ord.min(peer_ird).into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mpa::startup::{ReadDepth, RtrSet};

    // NDK-CD-1: minimum of request, adapter and peer, in every combination.
    #[test]
    fn read_limit_matrix() {
        let adapter = ReadLimit { inbound: 8, outbound: 16 };
        for wish in [0, 1, 7, 8, 9, 16, 17, u32::MAX] {
            for peer in [None, Some(0), Some(1), Some(8), Some(128)] {
                let own = ReadLimit { inbound: wish, outbound: wish }.capped(adapter);
                let enhanced = peer.map(|depth| Enhanced {
                    ird: ReadDepth::new(depth),
                    ord: ReadDepth::new(depth),
                    peer_to_peer: false,
                    rtr: RtrSet::NONE,
                });
                let peer = peer.map_or(u32::MAX, u32::from);
                assert_eq!(
                    ReadLimit::effective(own, enhanced.as_ref()),
                    ReadLimit { inbound: wish.min(8).min(peer), outbound: wish.min(16).min(peer) }
                );
            }
        }
    }
}
