//! Sending half of a stream: the peer's grants, requests in flight.
//!
//! Transmission is limited by the granted bytes, by credits, by the send buffer, which holds data until their Writes
//! complete, and by the depth of the send queue.

use std::collections::VecDeque;

use super::wire::{DATA_BYTES_MAX, Entry, Violation};

/// Entries of the list of grants.
pub(super) const GRANT_SLOTS: u32 = 2;

/// Free bytes of the send buffer below which it counts as full. Avoids small messages.
const LOW_WATER: u32 = 2048;

/// Maximum number of bytes of one message, so that the peer reads the first ones while others are in flight.
const MESSAGE_BYTES_MAX: u32 = 1 << 16;

/// Send queue entries of a message with data: a Write and a Send.
pub(super) const REQUESTS_OF_DATA: u32 = 2;

/// Part of the send buffer and its target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Plan {
    /// Offset of the first byte in the send buffer.
    pub(super) at: u32,
    /// Bytes up to the end of the buffer.
    pub(super) first: u32,
    /// Bytes from the start of the buffer on.
    pub(super) second: u32,
    /// Memory of the peer, of the same length.
    pub(super) to: Entry,
}

impl Plan {
    /// Returns the length in bytes.
    pub(super) const fn length(&self) -> u32 {
        self.to.length
    }
}

/// Sending half of a stream.
#[derive(Debug)]
pub(super) struct Sender {
    /// Sequence number of the next message, and the first one beyond the credits.
    sequence: u16,
    limit: u16,
    /// Granted memory of the peer.
    grants: VecDeque<Entry>,
    /// Entry of the list of grants that the peer writes next.
    slot: u32,
    /// Size of the send buffer, bytes in flight, offset of the next byte.
    buffer: u32,
    used: u32,
    head: u32,
    /// Requests in flight, and their maximum.
    requests: u32,
    requests_max: u32,
}

impl Sender {
    /// Creates the state of a new connection, with the first grant.
    pub(super) fn new(buffer: u32, requests_max: u32, limit: u16, first: Entry) -> Self {
        Self {
            sequence: 0,
            limit,
            grants: VecDeque::from([first]),
            slot: 1,
            buffer,
            used: 0,
            head: 0,
            requests: 0,
            requests_max,
        }
    }

    /// Sets the sequence number up to which the peer's credits reach.
    pub(super) const fn set_limit(&mut self, limit: u16) {
        self.limit = limit;
    }

    /// Returns the entry of the list that has the peer's next grant.
    pub(super) const fn next_slot(&self) -> u32 {
        self.slot
    }

    /// Records a grant.
    ///
    /// # Errors
    /// [`Violation::Entry`]: address overflow, or all slots are in use.
    pub(super) fn grant(&mut self, entry: Entry) -> Result<(), Violation> {
        let entry = entry.check()?;
        if self.grants.len() >= GRANT_SLOTS as usize {
            return Err(Violation::Entry);
        }
        self.grants.push_back(entry);
        self.slot = (self.slot + 1) % GRANT_SLOTS;
        Ok(())
    }

    const fn has_room(&self, requests: u32) -> bool {
        let low = if self.buffer < LOW_WATER { self.buffer } else { LOW_WATER };
        self.buffer - self.used >= low && self.requests + requests <= self.requests_max
    }

    /// Returns true if a message without data of the stream can be sent.
    pub(super) const fn can_notify(&self) -> bool {
        self.has_room(REQUESTS_OF_DATA) && self.sequence != self.limit
    }

    /// Returns true if data can be sent.
    pub(super) fn can_send(&self) -> bool {
        self.can_notify() && !self.grants.is_empty()
    }

    /// Returns true if no request is in flight.
    pub(super) const fn is_idle(&self) -> bool {
        self.requests == 0
    }

    fn place(&mut self, to: Entry) -> Plan {
        let (at, length) = (self.head, to.length);
        let first = length.min(self.buffer - at);
        self.head = ((u64::from(at) + u64::from(length)) % u64::from(self.buffer)) as u32;
        self.used += length;
        Plan { at, first, second: length - first, to }
    }

    fn bytes(&self, count: usize, room: u32) -> u32 {
        let most = MESSAGE_BYTES_MAX.min(DATA_BYTES_MAX).min(self.buffer - self.used).min(room);
        u32::try_from(count).unwrap_or(u32::MAX).min(most)
    }

    /// Plans the transmission of up to `count` bytes. `None`: nothing can be sent now.
    pub(super) fn plan(&mut self, count: usize) -> Option<Plan> {
        if !self.can_send() || count == 0 {
            return None;
        }
        let room = *self.grants.front()?;
        let length = self.bytes(count, room.length);
        let front = self.grants.front_mut()?;
        // `grant` has checked for overflow.
        front.address = front.address.wrapping_add(length.into());
        front.length -= length;
        if front.length == 0 {
            self.grants.pop_front();
        }
        self.sequence = self.sequence.wrapping_add(1);
        self.requests += REQUESTS_OF_DATA;
        Some(self.place(Entry { length, ..room }))
    }

    /// Plans a Write to mapped memory, which needs neither a grant nor a message.
    pub(super) fn plan_direct(&mut self, count: usize, to: Entry) -> Option<Plan> {
        let length = self.bytes(count, to.length);
        if !self.has_room(1) || length == 0 {
            return None;
        }
        self.requests += 1;
        Some(self.place(Entry { length, ..to }))
    }

    /// Records a message without data of the stream: a Write and a Send.
    pub(super) const fn notify(&mut self) {
        self.sequence = self.sequence.wrapping_add(1);
        self.requests += REQUESTS_OF_DATA;
    }

    /// Records completed requests and the freed bytes of the send buffer.
    pub(super) const fn completed(&mut self, requests: u32, bytes: u32) {
        self.requests = self.requests.saturating_sub(requests);
        self.used = self.used.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(address: u64, length: u32) -> Entry {
        Entry { address, key: 7, length }
    }

    #[test]
    fn grants_are_filled_in_order() {
        let mut sender = Sender::new(10_000, 100, 100, entry(1000, 50));
        assert_eq!(sender.next_slot(), 1);
        sender.grant(entry(5000, 30)).unwrap();
        assert_eq!(sender.next_slot(), 0);
        assert_eq!(sender.grant(entry(0, 1)), Err(Violation::Entry), "both are in use");
        let plan = sender.plan(40).unwrap();
        assert_eq!(plan, Plan { at: 0, first: 40, second: 0, to: entry(1000, 40) });
        let plan = sender.plan(40).unwrap();
        assert_eq!(plan.to, entry(1040, 10), "no message spans two grants");
        let plan = sender.plan(100).unwrap();
        assert_eq!((plan.at, plan.to), (50, entry(5000, 30)));
        assert!(!sender.can_send());
        assert_eq!(sender.plan(1), None);
        assert!(sender.can_notify());
        assert_eq!(sender.grant(entry(u64::MAX, 1)), Err(Violation::Entry));
        sender.grant(entry(u64::MAX - 1, 1)).unwrap();
        assert_eq!(sender.plan(9).unwrap().length(), 1);
    }

    #[test]
    fn plan_wraps_around_the_send_buffer() {
        let mut sender = Sender::new(5000, 100, 100, entry(0, 1 << 20));
        assert_eq!(sender.plan(4000).unwrap().at, 0);
        assert!(!sender.can_send(), "the rest is too little");
        sender.completed(2, 4000);
        let plan = sender.plan(4000).unwrap();
        assert_eq!((plan.at, plan.first, plan.second), (4000, 1000, 3000));
        assert!(!sender.is_idle());
        sender.completed(2, 4000);
        assert!(sender.is_idle());
    }

    #[test]
    fn credits_and_requests_limit_transmission() {
        let mut sender = Sender::new(1 << 20, 5, 3, entry(0, 1 << 20));
        assert!(sender.plan(1).is_some() && sender.plan(1).is_some());
        assert_eq!(sender.plan(1), None, "one of five requests is left, and a message needs two");
        assert_eq!(sender.plan_direct(10, entry(9, 5)).unwrap().to, entry(9, 5));
        assert_eq!(sender.plan_direct(10, entry(9, 5)), None);
        sender.completed(5, 7);
        assert!(sender.plan(1).is_some());
        assert_eq!(sender.plan(1), None, "no credit");
        sender.set_limit(4);
        sender.notify();
        assert!(!sender.can_notify());
    }

    proptest! {
        // Writes stay within the grants and the buffer, for any grants and any order of completions.
        #[test]
        fn plans_stay_within_bounds(
            buffer in 1_u32..10_000,
            steps in prop::collection::vec((any::<u64>(), any::<u32>(), 0_usize..9000, any::<u16>()), 1..200),
        ) {
            let mut sender = Sender::new(buffer, 20, 10, entry(0, 100));
            let mut flying = VecDeque::new();
            for (address, length, count, limit) in steps {
                sender.set_limit(limit);
                let _ = sender.grant(entry(address, length));
                if let Some(plan) = sender.plan(count) {
                    prop_assert!(plan.at + plan.first <= buffer && plan.second <= plan.at);
                    prop_assert_eq!(plan.first + plan.second, plan.length());
                    prop_assert!(plan.to.address.checked_add(plan.length().into()).is_some());
                    flying.push_back(plan.length());
                }
                prop_assert!(flying.iter().sum::<u32>() <= buffer);
                if count % 3 == 0 && let Some(bytes) = flying.pop_front() {
                    sender.completed(REQUESTS_OF_DATA, bytes);
                }
            }
        }
    }
}
