//! Private data of MPA Requests and Replies between queue pairs that programs connect themselves.
//!
//! | octets | field |
//! |---|---|
//! | 6 | magic |
//! | 1, 1 | lowest and highest version of the sender; in a Reply twice the chosen one |
//! | 4 | extensions of the sender, [`extension`]; in a Reply the chosen ones |
//! | 4, 4 | QP numbers of the receiver and of the sender |
//! | 4, 4 | PSN of the sender's requests, valid if bit 31 is set; PSN that the sender expects |
//! | 16 | GID of the sender |
//! | 8 | nonce of the sender's life, drawn at RTR |
//! | 1, 1, 1, 1 | RNR timer, RNR retries (255: not set), path MTU, 0 |
//! | 2, 2 | Reads and atomics that the sender has outstanding (65535: not set), and that it serves |
//! | 4 | reason of a refusal; 0 otherwise |
//!
//! Numbers are big-endian. Further octets are ignored, so that later versions can add fields.

use crate::gid::Gid;

/// First octets of the private data.
const MAGIC: [u8; 6] = *b"fluerc";

/// Version of this format.
const VERSION: u8 = 1;

/// Octets of the private data.
pub(super) const OCTETS: usize = 64;

/// Bit of a PSN that is valid.
const PSN_VALID: u32 = 1 << 31;

/// Number of retries of a sender that has not set it yet.
const NO_RETRIES: u8 = u8::MAX;

/// Extensions of the protocol.
pub(super) mod extension {
    /// Acknowledgments of executed messages.
    pub(in crate::rendezvous) const ACKNOWLEDGMENTS: u32 = 1;
    /// Send and Write with immediate data.
    pub(in crate::rendezvous) const IMMEDIATE: u32 = 1 << 1;
    /// Atomics of RFC 7306.
    pub(in crate::rendezvous) const ATOMICS: u32 = 1 << 2;
    /// Receiver not ready.
    pub(in crate::rendezvous) const RNR: u32 = 1 << 3;
    /// Unreliable connected service: no acknowledgments, and no errors of the peer.
    pub(in crate::rendezvous) const UNRELIABLE: u32 = 1 << 4;
    /// All that a queue pair of the service UC requires.
    pub(in crate::rendezvous) const UC: u32 = IMMEDIATE | UNRELIABLE;
    /// All that a queue pair of the service RC requires.
    pub(in crate::rendezvous) const RC: u32 = ACKNOWLEDGMENTS | IMMEDIATE | ATOMICS | RNR;
}

/// Reason of a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Refusal {
    /// No queue pair has the number.
    Unknown = 1,
    /// The queue pair had a connection since its last reset.
    Spent = 2,
    /// QP numbers, GIDs or PSNs of both ends do not match.
    Mismatch = 3,
    /// No common version, or not all extensions.
    Version = 4,
    /// Too many requests, or a newer one of the same queue pair.
    Busy = 5,
}

impl Refusal {
    const ALL: [Self; 5] = [Self::Unknown, Self::Spent, Self::Mismatch, Self::Version, Self::Busy];

    const fn text(self) -> &'static str {
        match self {
            Self::Unknown => "queue pair does not exist",
            Self::Spent => "queue pair already had a connection: reset it",
            Self::Mismatch => "QP number, GID or PSN does not match",
            Self::Version => "version of the private data not supported",
            Self::Busy => "too many requests",
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

/// Queue pair of the sender, in the private data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct QpDescription {
    /// Extensions.
    pub(super) extensions: u32,
    /// QP number of the receiver of the private data.
    pub(super) destination: u32,
    /// QP number of the sender.
    pub(super) source: u32,
    /// PSN of the sender's first request; `None`: not set yet.
    pub(super) sq_psn: Option<u32>,
    /// PSN that the sender expects of the first request.
    pub(super) rq_psn: u32,
    /// GID of the sender.
    pub(super) gid: Gid,
    /// Nonce of the life of the queue pair.
    pub(super) nonce: u64,
    /// Code of the sender's RNR timer.
    pub(super) min_rnr_timer: u8,
    /// Retries of the sender; `None`: not set yet.
    pub(super) rnr_retry: Option<u8>,
    /// Path MTU, `IBV_MTU_*`.
    pub(super) path_mtu: u8,
    /// Reads and atomics that the sender has outstanding; `None`: not set yet.
    pub(super) max_rd_atomic: Option<u16>,
    /// Reads and atomics that the sender serves.
    pub(super) max_dest_rd_atomic: u16,
    /// Refusal; `None`: not refused.
    pub(super) refusal: Option<Refusal>,
}

/// Error of private data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Malformed {
    /// Not of this format.
    Foreign,
    /// Of this format, in a version that is not supported.
    Version,
}

/// Position in octets that are read or written.
struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }
}

impl QpDescription {
    /// Encodes the description.
    pub(super) fn encode(&self) -> Vec<u8> {
        let Self {
            extensions,
            destination,
            source,
            sq_psn,
            rq_psn,
            gid,
            nonce,
            min_rnr_timer,
            rnr_retry,
            path_mtu,
            max_rd_atomic,
            max_dest_rd_atomic,
            refusal,
        } = *self;
        let psn = sq_psn.map_or(0, |psn| psn | PSN_VALID);
        let reason = refusal.map_or(0, |refusal| refusal as u32);
        let mut octets = Vec::with_capacity(OCTETS);
        octets.extend(MAGIC);
        octets.extend([VERSION, VERSION]);
        for number in [extensions, destination, source, psn, rq_psn] {
            octets.extend(number.to_be_bytes());
        }
        octets.extend(gid.0);
        octets.extend(nonce.to_be_bytes());
        octets.extend([min_rnr_timer, rnr_retry.unwrap_or(NO_RETRIES), path_mtu, 0]);
        octets.extend(max_rd_atomic.unwrap_or(u16::MAX).to_be_bytes());
        octets.extend(max_dest_rd_atomic.to_be_bytes());
        octets.extend(reason.to_be_bytes());
        octets
    }

    /// Decodes a description.
    ///
    /// # Errors
    /// [`Malformed`].
    pub(super) fn decode(octets: &[u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor(octets);
        let magic = cursor.take::<6>();
        let versions = cursor.take::<2>();
        let (Some(MAGIC), Some([lowest, highest])) = (magic, versions) else {
            return Err(Malformed::Foreign);
        };
        if !(lowest..=highest).contains(&VERSION) {
            return Err(Malformed::Version);
        }
        Self::fields(&mut cursor).ok_or(Malformed::Foreign)
    }

    fn fields(cursor: &mut Cursor<'_>) -> Option<Self> {
        let [extensions, destination, source] = [cursor.u32()?, cursor.u32()?, cursor.u32()?];
        let (psn, rq_psn) = (cursor.u32()?, cursor.u32()?);
        let gid = Gid(cursor.take()?);
        let nonce = cursor.take().map(u64::from_be_bytes)?;
        let [min_rnr_timer, rnr_retry, path_mtu, _] = cursor.take()?;
        let (max_rd_atomic, max_dest_rd_atomic) = (cursor.u16()?, cursor.u16()?);
        let reason = cursor.u32()?;
        Some(Self {
            extensions,
            destination,
            source,
            sq_psn: (psn & PSN_VALID != 0).then_some(psn & !PSN_VALID),
            rq_psn,
            gid,
            nonce,
            min_rnr_timer,
            rnr_retry: Some(rnr_retry).filter(|it| *it != NO_RETRIES),
            path_mtu,
            max_rd_atomic: Some(max_rd_atomic).filter(|it| *it != u16::MAX),
            max_dest_rd_atomic,
            refusal: Refusal::ALL.into_iter().find(|it| *it as u32 == reason),
        })
    }

    /// Checks the description of the peer against this one, of the own queue pair.
    ///
    /// # Errors
    /// Reason to refuse the peer.
    pub(super) fn check(&self, peer: &Self) -> Result<(), Refusal> {
        if peer.extensions & self.extensions != self.extensions {
            return Err(Refusal::Version);
        }
        let psns_match =
            |sender: &Self, receiver: &Self| sender.sq_psn.is_none_or(|psn| psn == receiver.rq_psn);
        let is_match = (peer.destination, peer.source) == (self.source, self.destination)
            && psns_match(self, peer)
            && psns_match(peer, self);
        if is_match { Ok(()) } else { Err(Refusal::Mismatch) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        // Any octets are foreign, of another version, or a description whose encoding is decoded to the same.
        #[test]
        fn any_octets_are_decoded_or_refused(
            octets in prop::collection::vec(any::<u8>(), 0..2 * OCTETS),
            is_ours in any::<bool>(),
        ) {
            let mut octets = octets;
            if is_ours {
                let head = [&MAGIC[..], &[VERSION, VERSION]].concat();
                let length = head.len().min(octets.len());
                octets[..length].copy_from_slice(&head[..length]);
            }
            let decoded = QpDescription::decode(&octets);
            prop_assert_eq!(decoded.is_ok(), is_ours && octets.len() >= OCTETS);
            if let Ok(found) = decoded {
                prop_assert_eq!(QpDescription::decode(&found.encode()), Ok(found));
                let _ = description().check(&found);
            }
        }
    }

    fn description() -> QpDescription {
        QpDescription {
            extensions: extension::RC,
            destination: 0x01_1234,
            source: 0x02_4321,
            sq_psn: Some(0x12_3456),
            rq_psn: 0x65_4321,
            gid: Gid::of([10, 0, 0, 1].into()),
            nonce: 0x0102_0304_0506_0708,
            min_rnr_timer: 12,
            rnr_retry: Some(7),
            path_mtu: 3,
            max_rd_atomic: Some(16),
            max_dest_rd_atomic: 8,
            refusal: None,
        }
    }

    #[test]
    fn fields_have_their_places() {
        let octets = description().encode();
        assert_eq!(octets.len(), OCTETS);
        assert_eq!(&octets[..12], b"fluerc\x01\x01\0\0\0\x0f");
        assert_eq!(octets[12..20], [0, 1, 0x12, 0x34, 0, 2, 0x43, 0x21]);
        assert_eq!(octets[20..28], [0x80, 0x12, 0x34, 0x56, 0, 0x65, 0x43, 0x21]);
        assert_eq!(octets[28..44], description().gid.0);
        assert_eq!(octets[44..60], [1, 2, 3, 4, 5, 6, 7, 8, 12, 7, 3, 0, 0, 16, 0, 8]);
        assert_eq!(octets[60..], [0; 4]);
    }

    #[test]
    fn decoding_is_the_inverse_of_encoding() {
        let early =
            QpDescription { sq_psn: None, rnr_retry: None, max_rd_atomic: None, ..description() };
        let refused =
            Refusal::ALL.map(|refusal| QpDescription { refusal: Some(refusal), ..description() });
        for it in [description(), early].into_iter().chain(refused) {
            let mut octets = it.encode();
            assert_eq!(QpDescription::decode(&octets), Ok(it));
            octets.extend([9; 32]);
            assert_eq!(QpDescription::decode(&octets), Ok(it), "later fields are ignored");
        }
    }

    #[test]
    fn foreign_short_and_later_private_data_are_refused() {
        let octets = description().encode();
        for length in 0..OCTETS {
            assert_eq!(QpDescription::decode(&octets[..length]), Err(Malformed::Foreign));
        }
        for at in 0..MAGIC.len() {
            let mut changed = octets.clone();
            changed[at] ^= 1;
            assert_eq!(QpDescription::decode(&changed), Err(Malformed::Foreign));
        }
        for (lowest, highest, is_known) in
            [(0, 1, true), (1, 9, true), (2, 9, false), (0, 0, false)]
        {
            let mut changed = octets.clone();
            (changed[6], changed[7]) = (lowest, highest);
            assert_eq!(QpDescription::decode(&changed).is_ok(), is_known);
        }
    }

    // Each valid PSN is compared with the one that the other end expects.
    #[test]
    fn peer_has_to_match() {
        let own = description();
        let peer = QpDescription {
            destination: own.source,
            source: own.destination,
            sq_psn: Some(own.rq_psn),
            rq_psn: 0x12_3456,
            ..description()
        };
        assert_eq!(own.check(&peer), Ok(()));
        assert_eq!(own.check(&QpDescription { sq_psn: None, ..peer }), Ok(()));
        let early = QpDescription { sq_psn: None, ..own };
        assert_eq!(early.check(&QpDescription { rq_psn: 9, ..peer }), Ok(()));
        type Edit = fn(&mut QpDescription);
        let edits: [(Edit, Refusal); 6] = [
            (|it| it.destination ^= 1, Refusal::Mismatch),
            (|it| it.source ^= 1, Refusal::Mismatch),
            (|it| it.sq_psn = Some(1), Refusal::Mismatch),
            (|it| it.rq_psn ^= 1, Refusal::Mismatch),
            (|it| it.extensions = 7, Refusal::Version),
            (|it| it.extensions = 0, Refusal::Version),
        ];
        for (edit, refusal) in edits {
            let mut peer = peer;
            edit(&mut peer);
            assert_eq!(own.check(&peer), Err(refusal), "{peer:?}");
        }
        // Both ends are of the same service.
        let unreliable = |of: QpDescription| QpDescription { extensions: extension::UC, ..of };
        assert_eq!(unreliable(own).check(&unreliable(peer)), Ok(()));
        assert_eq!(own.check(&unreliable(peer)), Err(Refusal::Version));
        assert_eq!(unreliable(own).check(&peer), Err(Refusal::Version));
    }
}
