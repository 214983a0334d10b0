//! Receiving half of a stream: the ring that the peer writes to, its credits and grants.
//!
//! The ring is granted by halves: the first with the connection, each next one once half of the ring is free. Bytes are
//! placed in ring order, so a message only has their number. A credit is one message of the peer; it is returned once
//! the program has read all bytes of the message.

use std::collections::VecDeque;

use super::wire::Violation;

/// Update for the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Update {
    /// Sequence number up to which it may send.
    pub(super) limit: u16,
    /// Granted half of the ring, by its first byte.
    pub(super) grant: Option<u32>,
}

/// Receiving half of a stream.
#[derive(Debug)]
pub(super) struct Receiver {
    /// Half of the ring, in bytes.
    half: u32,
    /// Bytes since the establishment: granted, received, read by the program.
    granted: u64,
    received: u64,
    read: u64,
    /// Unread bytes of each message, oldest first.
    messages: VecDeque<u32>,
    /// Maximum number of unread messages.
    credits: u16,
    /// Number of messages read.
    consumed: u16,
    /// Number of messages read at which the next credit update is due.
    due: u16,
}

impl Receiver {
    /// Creates the state for a ring of twice `half` bytes, with its first half granted, and this number of messages.
    pub(super) fn new(half: u32, credits: u16) -> Self {
        Self {
            half,
            granted: half.into(),
            received: 0,
            read: 0,
            messages: VecDeque::new(),
            credits,
            consumed: 0,
            due: credits / 2,
        }
    }

    fn ring(&self) -> u64 {
        2 * u64::from(self.half)
    }

    /// Returns the number of unread bytes.
    pub(super) fn unread(&self) -> usize {
        // At most the size of the ring.
        (self.received - self.read) as usize
    }

    /// Records placed bytes.
    ///
    /// # Errors
    /// [`Violation::BytesNotGranted`], [`Violation::NoCredit`].
    pub(super) fn placed(&mut self, bytes: u32) -> Result<(), Violation> {
        let received = self.received.checked_add(bytes.into());
        let received = received.filter(|received| *received <= self.granted);
        self.received = received.ok_or(Violation::BytesNotGranted)?;
        if bytes == 0 {
            return self.noted();
        }
        if self.messages.len() >= usize::from(self.credits) {
            return Err(Violation::NoCredit);
        }
        self.messages.push_back(bytes);
        Ok(())
    }

    /// Records a message without data, which uses a credit.
    ///
    /// # Errors
    /// [`Violation::NoCredit`].
    pub(super) fn noted(&mut self) -> Result<(), Violation> {
        if self.messages.len() >= usize::from(self.credits) {
            return Err(Violation::NoCredit);
        }
        self.consumed = self.consumed.wrapping_add(1);
        Ok(())
    }

    /// Returns offset and length of contiguous unread bytes after `skip`, at most `count`.
    pub(super) fn next(&self, skip: usize, count: usize) -> (usize, usize) {
        let left = self.unread().saturating_sub(skip);
        let at = (self.read + skip as u64) % self.ring();
        let to_end = (self.ring() - at) as usize;
        (at as usize, count.min(left).min(to_end))
    }

    /// Records `count` bytes as read, at most the unread ones.
    pub(super) fn consume(&mut self, count: usize) {
        debug_assert!(count <= self.unread(), "{count} bytes of {}", self.unread());
        let mut left = count.min(self.unread());
        self.read += left as u64;
        while let Some(first) = self.messages.front_mut() {
            let taken = left.min(*first as usize);
            *first -= taken as u32;
            left -= taken;
            if *first > 0 {
                break;
            }
            self.messages.pop_front();
            self.consumed = self.consumed.wrapping_add(1);
        }
    }

    fn has_half(&self) -> bool {
        self.ring() - (self.granted - self.read) >= self.half.into()
    }

    /// Returns true if an update for the peer is due.
    pub(super) fn is_update_due(&self) -> bool {
        self.has_half() || self.consumed.wrapping_sub(self.due).cast_signed() >= 0
    }

    /// Returns the update for the peer.
    pub(super) fn update(&mut self) -> Update {
        self.due = self.consumed.wrapping_add(self.credits / 2);
        let grant = self.has_half().then(|| {
            let at = (self.granted % self.ring()) as u32;
            self.granted += u64::from(self.half);
            at
        });
        Update { limit: self.consumed.wrapping_add(self.credits), grant }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn halves_are_granted_in_turn() {
        let mut receiver = Receiver::new(100, 8);
        assert!(receiver.is_update_due(), "the second half is free");
        assert_eq!(receiver.update(), Update { limit: 8, grant: Some(100) });
        assert!(!receiver.is_update_due());
        receiver.placed(60).unwrap();
        receiver.placed(100).unwrap();
        assert_eq!(receiver.unread(), 160);
        receiver.consume(99);
        assert!(!receiver.is_update_due());
        receiver.consume(1);
        assert_eq!(receiver.update(), Update { limit: 9, grant: Some(0) });
        receiver.placed(140).unwrap();
        assert_eq!(receiver.next(0, 1000), (100, 100));
        assert_eq!(
            receiver.next(100, 1000),
            (0, 100),
            "after its end the ring continues at its start"
        );
        assert_eq!(receiver.next(120, 5), (20, 5));
        assert_eq!(receiver.next(200, 5).1, 0);
        receiver.consume(200);
        assert_eq!(receiver.unread(), 0);
    }

    // Half of the credits are returned immediately, also for few bytes.
    #[test]
    fn credits_of_small_messages_are_returned_by_halves() {
        let mut receiver = Receiver::new(1000, 8);
        receiver.update();
        for _ in 0..8 {
            receiver.placed(1).unwrap();
        }
        assert_eq!(receiver.placed(1), Err(Violation::NoCredit));
        let mut receiver = Receiver::new(1000, 8);
        receiver.update();
        for round in 0..100_000_u32 {
            receiver.placed(1).unwrap();
            receiver.consume(1);
            if receiver.is_update_due() {
                let update = receiver.update();
                assert_eq!(update.limit, (round + 1 + 8) as u16, "it wraps around at 16 bits");
            }
        }
    }

    #[test]
    fn bytes_and_messages_beyond_the_limits_are_violations() {
        let mut receiver = Receiver::new(100, 8);
        receiver.placed(100).unwrap();
        assert_eq!(receiver.placed(1), Err(Violation::BytesNotGranted));
        assert_eq!(receiver.placed(u32::MAX), Err(Violation::BytesNotGranted));
        let mut receiver = Receiver::new(u32::MAX / 2, 2);
        receiver.placed(1).unwrap();
        receiver.placed(1).unwrap();
        assert_eq!(receiver.placed(0), Err(Violation::NoCredit));
        assert_eq!(receiver.noted(), Err(Violation::NoCredit));
    }

    proptest! {
        // A sender within its limits is never rejected and never starved, and the bytes keep their order.
        #[test]
        fn peer_within_its_grants_is_served(
            half in 1_u32..64, credits in 2_u16..20, steps in prop::collection::vec(1_usize..90, 1..400),
        ) {
            let mut receiver = Receiver::new(half, credits);
            let (mut granted, mut limit, mut sequence) = (u64::from(half), credits, 0_u16);
            let (mut sent, mut read) = (0_u64, 0_u64);
            let mut ring = vec![0_u8; 2 * half as usize];
            for step in steps {
                while sent < granted && sequence != limit {
                    let count = (granted - sent).min(step as u64) as u32;
                    for at in sent..sent + u64::from(count) {
                        ring[(at % u64::from(2 * half)) as usize] = at as u8;
                    }
                    prop_assert_eq!(receiver.placed(count), Ok(()));
                    sent += u64::from(count);
                    sequence = sequence.wrapping_add(1);
                }
                prop_assert!(receiver.unread() > 0, "there is always something in flight");
                let (at, count) = receiver.next(0, step);
                for byte in &ring[at..at + count] {
                    prop_assert_eq!(*byte, read as u8);
                    read += 1;
                }
                receiver.consume(count);
                while receiver.is_update_due() {
                    let update = receiver.update();
                    limit = update.limit;
                    if let Some(at) = update.grant {
                        prop_assert_eq!(u64::from(at), granted % u64::from(2 * half));
                        granted += u64::from(half);
                    }
                }
            }
        }

        // Unread bytes never exceed the ring.
        #[test]
        fn peer_beyond_its_grants_is_detected(
            half in 1_u32..64, credits in 2_u16..20,
            steps in prop::collection::vec((any::<u32>(), any::<bool>(), 0_usize..200), 1..200),
        ) {
            let mut receiver = Receiver::new(half, credits);
            for (bytes, is_small, read) in steps {
                let bytes = if is_small { bytes % 50 } else { bytes };
                if receiver.placed(bytes).is_err() {
                    break;
                }
                let (at, count) = receiver.next(0, read);
                prop_assert!(at + count <= 2 * half as usize);
                receiver.consume(count);
                if receiver.is_update_due() {
                    receiver.update();
                }
                prop_assert!(receiver.unread() <= 2 * half as usize);
            }
        }
    }
}
