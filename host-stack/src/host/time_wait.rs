//! TIME-WAIT without a socket (RFC 9293 §3.6.1).
//!
//! A smoltcp socket has buffers, takes part in each poll, and leaves TIME-WAIT after 10 s. The connection that closes
//! last is removed with its last ACK. Later retransmissions of the peer would be answered with RST: a FIN whose
//! acknowledgment was lost, or the end of a window that is retransmitted as a whole. A peer that has delivered
//! everything would have its connection reset. So the host keeps a record of a connection that both sides have closed,
//! and removes the socket immediately:
//!
//! * data, a FIN, and an empty segment from before RCV.NXT are acknowledged; data and a FIN restart the timer;
//! * any other ACK, and an RST (RFC 1337), are dropped;
//! * a SYN beyond the connection's sequence numbers opens a new one.
//!
//! A connection is acknowledged at most once per [`ANSWER_INTERVAL`], whatever segments arrive for it. An attacker
//! with the 4-tuple cannot make the host send one segment per forged segment (ACK throttling, RFC 5961 §7). All
//! answers are equal, so one suffices for a window that is retransmitted as a whole. A FIN whose answer was lost is
//! answered again at its next timeout after the interval. There is no limit over all connections: it would reveal to an
//! attacker whether segments forged for another connection were answered.
//!
//! A record holds no port. A new connection to the same peer address and port may reuse it immediately if the peer
//! closed first, otherwise after [`REUSE_DELAY`]. Limits: [`RECORDS_MAX`], about 300 bytes each; the oldest record is
//! evicted first, even if its timer was restarted. Timer: [`HostConfig::time_wait`](super::HostConfig::time_wait),
//! checked when a record is created or looked up, so that it needs no wake-up.

use alloc::collections::VecDeque;

use hashbrown::HashMap;
use offload_engine::{
    frame::FlowKey,
    time::{Duration, Instant},
};

use super::shards::ShardId;
use crate::{observer::Flow, wire::Segment};

/// Maximum number of records, about 5 MB. Bounded, since a peer creates a record by opening and closing a connection.
pub(super) const RECORDS_MAX: usize = 16_384;
/// Minimum time between two acknowledgments for one connection, as in Linux (`tcp_invalid_ratelimit`): half the
/// minimum retransmission timeout of RFC 6298 §2.4.
pub(super) const ANSWER_INTERVAL: Duration = Duration::from_millis(500);

/// Time before the side that closed first reuses the 4-tuple: longer than the lifetime of a segment of the old
/// connection.
pub(super) const REUSE_DELAY: Duration = Duration::from_secs(10);

/// Record of a closed connection.
#[derive(Debug)]
struct Record {
    shard: ShardId,
    flow: Flow,
    until: Instant,
    /// Time before which the 4-tuple is not reused.
    reusable_at: Instant,
    /// Time of the last acknowledgment.
    answered_at: Option<Instant>,
    /// Serial number of its entry in `order`.
    serial: u64,
}

const _: () = assert!(size_of::<Record>() + size_of::<FlowKey>() <= 512);

/// Answer to a segment of a closed connection.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "destructured at once")]
pub(super) enum Answer {
    /// No record exists.
    Unknown,
    /// Dropped.
    None,
    /// Acknowledges the segment for the flow, on the queue of that shard.
    Acknowledge(ShardId, Flow),
}

/// TIME-WAIT records of a host.
#[derive(Debug, Default)]
pub(super) struct TimeWaits {
    records: HashMap<FlowKey, Record>,
    /// Expiry time of each record, with stale entries of replaced records.
    order: VecDeque<(Instant, FlowKey, u64)>,
    last_serial: u64,
}

impl TimeWaits {
    pub(super) fn insert(
        &mut self,
        now: Instant,
        (time, is_first): (Duration, bool),
        tuple: FlowKey,
        (shard, flow): (ShardId, Flow),
    ) {
        self.expire(now);
        self.last_serial += 1;
        let (until, serial) = (now + time, self.last_serial);
        let reusable_at = if is_first { now + time.min(REUSE_DELAY) } else { now };
        let record = Record { shard, flow, until, reusable_at, answered_at: None, serial };
        self.records.insert(tuple, record);
        self.order.push_back((until, tuple, serial));
        while self.order.len() > RECORDS_MAX {
            if let Some((_, tuple, serial)) = self.order.pop_front() {
                self.remove(tuple, serial);
            }
        }
    }

    fn remove(&mut self, tuple: FlowKey, serial: u64) {
        if self.records.get(&tuple).is_some_and(|record| record.serial == serial) {
            self.records.remove(&tuple);
        }
    }

    /// Removes records whose timer has expired. A restarted record is appended to the order.
    fn expire(&mut self, now: Instant) {
        while let Some(&(_, tuple, serial)) = self.order.front().filter(|(at, ..)| *at <= now) {
            self.order.pop_front();
            let restarted = |record: &&Record| record.serial == serial && record.until > now;
            match self.records.get(&tuple).filter(restarted) {
                Some(record) => self.order.push_back((record.until, tuple, serial)),
                None => self.remove(tuple, serial),
            }
        }
    }

    /// True if this side closed a connection of this 4-tuple within [`REUSE_DELAY`].
    pub(super) fn blocks_reuse(&self, now: Instant, tuple: &FlowKey) -> bool {
        self.records.get(tuple).is_some_and(|record| record.reusable_at > now)
    }

    /// Connections that this side closed first within [`REUSE_DELAY`].
    pub(super) fn recently_closed(
        &self,
        now: Instant,
    ) -> impl Iterator<Item = (FlowKey, ShardId, Flow)> + '_ {
        let rest = self.records.iter().filter(move |(_, record)| record.reusable_at > now);
        rest.map(|(tuple, record)| (*tuple, record.shard, record.flow))
    }

    /// Number of records.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// True if a SYN is an old duplicate of this connection or of an earlier one.
    pub(super) fn rejects(&self, now: Instant, segment: &Segment<'_>) -> bool {
        let record = self.records.get(&segment.received_on());
        record.is_some_and(|record| {
            record.until > now && !segment.seq.is_after(record.flow.acknowledged)
        })
    }

    /// Answer to a segment other than a SYN.
    pub(super) fn answer(&mut self, now: Instant, time: Duration, segment: &Segment<'_>) -> Answer {
        let Some(record) = self.records.get_mut(&segment.received_on()) else {
            return Answer::Unknown;
        };
        if record.until <= now {
            return Answer::Unknown;
        }
        record.flow.incoming(now, segment);
        let is_empty = segment.sequence_len() == 0;
        if segment.is_reset() || is_empty && segment.seq == record.flow.acknowledged {
            return Answer::None;
        }
        if !is_empty {
            record.until = now + time;
        }
        if record.answered_at.is_some_and(|at| now < at + ANSWER_INTERVAL) {
            return Answer::None;
        }
        record.answered_at = Some(now);
        Answer::Acknowledge(record.shard, record.flow)
    }
}

#[cfg(test)]
mod tests;
