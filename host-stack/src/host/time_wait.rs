//! TIME-WAIT without a socket (RFC 9293 §3.6.1).
//!
//! A socket of smoltcp has buffers, takes its turn in each poll, and leaves TIME-WAIT after 10 s; the connection that
//! closes last leaves with its last ACK. What the peer retransmits after that would be answered by an RST: a FIN whose
//! acknowledgement was lost, at a time-out that has doubled some times, or the end of a window that was sent again as a
//! whole. A peer that has delivered everything would see its connection reset. So the host keeps a record of a
//! connection that both sides have closed, and the socket goes at once:
//!
//! * data, a FIN, and an empty segment from before RCV.NXT are acknowledged; data and a FIN restart the timer;
//! * any other ACK, and an RST (RFC 1337), are dropped;
//! * a SYN beyond the connection's sequence numbers opens a new one.
//!
//! A connection is acknowledged at most once per [`ANSWER_INTERVAL`], whatever comes for it: a spoofer who knows the
//! 4-tuple cannot make the host send a segment for each of its own (ACK throttling, RFC 5961 §7). All answers are the
//! same, so one is enough for a window that is sent again as a whole, and a FIN whose answer was lost gets another
//! at its next time-out behind the interval. There is no limit for all connections together: it would reveal to an
//! attacker whether segments that it has forged for another connection were answered.
//!
//! A record holds no port. A connection to the same peer address and port may have it again at once if the peer has
//! closed first, else after [`REST`]. Limits: [`RECORDS_MAX`], about 300 bytes each;
//! the record made first goes first, whether or not its timer was restarted. Timer:
//! [`HostConfig::time_wait`](super::HostConfig::time_wait), looked at when a record is made or asked for, so that
//! nothing wakes up for it.

use alloc::collections::VecDeque;

use hashbrown::HashMap;
use offload_engine::{
    frame::FlowKey,
    time::{Duration, Instant},
};

use super::shards::ShardId;
use crate::{observer::Flow, wire::Segment};

/// Records kept. A bound, since a peer makes a record by opening and closing a connection: about 5 MB.
pub(super) const RECORDS_MAX: usize = 16_384;
/// Least time between two acknowledgements to one connection, as in Linux (`tcp_invalid_ratelimit`): half the least
/// retransmission time-out of RFC 6298 §2.4.
pub(super) const ANSWER_INTERVAL: Duration = Duration::from_millis(500);

/// Time before the end that has closed first connects from the same 4-tuple again: longer than a segment of the old
/// connection is on its way.
pub(super) const REST: Duration = Duration::from_secs(10);

/// A connection that is over.
#[derive(Debug)]
struct Record {
    shard: ShardId,
    flow: Flow,
    until: Instant,
    /// Its 4-tuple is not used for a new connection until then.
    rests_until: Instant,
    /// When a segment was last acknowledged.
    answered_at: Option<Instant>,
    /// Serial of its entry in the order.
    serial: u64,
}

const _: () = assert!(size_of::<Record>() + size_of::<FlowKey>() <= 512);

/// How a segment of a connection that is over is answered.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub(super) enum Answer {
    /// There is no record.
    Unknown,
    /// Dropped.
    None,
    /// An acknowledgement of the flow, by that queue.
    Acknowledge(ShardId, Flow),
}

/// The records of a host.
#[derive(Debug, Default)]
pub(super) struct TimeWaits {
    records: HashMap<FlowKey, Record>,
    /// When to look at a record again: one entry for each, and for each that was replaced.
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
        let rests_until = if is_first { now + time.min(REST) } else { now };
        let record = Record { shard, flow, until, rests_until, answered_at: None, serial };
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

    /// Removes the records whose timer has expired. One that was restarted goes behind the others.
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

    /// Returns whether a connection of this 4-tuple was closed by this end a moment ago.
    pub(super) fn rests(&self, now: Instant, tuple: &FlowKey) -> bool {
        self.records.get(tuple).is_some_and(|record| record.rests_until > now)
    }

    /// The connections that this end has closed first, a moment ago.
    pub(super) fn resting(
        &self,
        now: Instant,
    ) -> impl Iterator<Item = (FlowKey, ShardId, Flow)> + '_ {
        let rest = self.records.iter().filter(move |(_, record)| record.rests_until > now);
        rest.map(|(tuple, record)| (*tuple, record.shard, record.flow))
    }

    /// Records there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns whether a SYN is an old duplicate: of this connection or one before it.
    pub(super) fn rejects(&self, now: Instant, segment: &Segment<'_>) -> bool {
        let record = self.records.get(&segment.received_on());
        record.is_some_and(|record| {
            record.until > now && !segment.seq.is_after(record.flow.acknowledged)
        })
    }

    /// The answer to a segment other than an open request.
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
