//! In-flight limit of the connections of a path, and their turns to send.
//!
//! The windows of many connections together exceed the queue of a TAP and the caches. So the connections of a path
//! share the limit that one connection has by the minimum RTT (`tcp::Config::in_flight_min`, `link_rate`). A connection
//! sends new data while less is in flight. If more is, it waits in FIFO order for a turn of [`TURN_BYTES`].
//!
//! Not limited: retransmissions, probes and ACKs, and a connection with at most [`SMALL_FLIGHT_BYTES`] in flight and
//! unsent, whose ACK the peer may delay. After a retransmission timeout the bytes of a connection do not count, so that
//! an unreachable peer does not stop other connections of the path.
//!
//! A waiting connection needs no timer: each ACK, timeout and removal of a counted connection is followed by
//! [`Turns::next`].

use std::{collections::VecDeque, vec::Vec};

use crate::{chimney::tree::TargetContext, tcp::Connection};

/// New data of one turn, in bytes.
const TURN_BYTES: u64 = 1024 * 1024;

/// Bytes in flight of a connection that do not need a turn: ACKs of two segments or of small messages may be delayed.
const SMALL_FLIGHT_BYTES: u64 = 8 * 1024;

/// Share of one connection in the limit of its path.
#[derive(Debug, Default)]
pub(super) struct Share {
    /// Bytes in flight that the path counts.
    counted: u64,
    /// Value of [`Connection::bytes_sent`] at which its turn ends.
    turn_end: u64,
    /// True if the connection is queued for a turn.
    queued: bool,
}

impl Share {
    /// Starts a turn, or continues an unfinished one.
    pub(super) fn start_turn(&mut self, tcp: &Connection) {
        self.queued = false;
        if !self.has_turn(tcp) {
            self.turn_end = tcp.bytes_sent() + TURN_BYTES;
        }
    }

    fn has_turn(&self, tcp: &Connection) -> bool {
        tcp.bytes_sent() < self.turn_end
    }
}

/// Connections of one path. Paths without connections have the default value.
#[derive(Debug, Default)]
struct PathQueue {
    in_flight: u64,
    /// Smallest limit of a connection since the path was idle, in bytes. It does not grow while the queues of the path
    /// increase the RTT.
    limit: Option<u64>,
    /// Connections that wait for a turn. Those removed since are skipped.
    waiting: VecDeque<TargetContext>,
    /// True if the path is in [`Turns::contended`].
    is_contended: bool,
}

impl PathQueue {
    /// Counts `counted` bytes in flight of a connection.
    fn count(&mut self, share: &mut Share, counted: u64) {
        self.in_flight = self.in_flight + counted - share.counted;
        share.counted = counted;
        if self.in_flight == 0 && self.waiting.is_empty() {
            self.limit = None;
        }
    }

    fn has_room(&self, in_flight_min: u64) -> bool {
        self.in_flight < self.limit.unwrap_or(in_flight_min)
    }
}

/// Bytes in flight that a path counts of a connection.
const fn counted(in_flight: u64) -> u64 {
    if in_flight > SMALL_FLIGHT_BYTES { in_flight } else { 0 }
}

/// Turns of the connections of all paths.
#[derive(Debug)]
pub(super) struct Turns {
    /// By index of the path.
    paths: Vec<PathQueue>,
    /// Paths with waiting connections.
    contended: VecDeque<usize>,
    in_flight_min: u64,
}

impl Turns {
    /// Creates turns of paths whose limit before the first RTT sample is `in_flight_min` bytes.
    pub(super) const fn new(in_flight_min: u64) -> Self {
        Self { paths: Vec::new(), contended: VecDeque::new(), in_flight_min }
    }

    /// Allocates the counters of a path.
    pub(super) fn add_path(&mut self, path: TargetContext) {
        let index = path.index as usize;
        if index >= self.paths.len() {
            self.paths.resize_with(index + 1, PathQueue::default);
        }
    }

    /// Counts the present flight of a connection.
    #[inline]
    pub(super) fn count(&mut self, path: TargetContext, share: &mut Share, tcp: &Connection) {
        let counted = counted(tcp.in_flight());
        if counted != share.counted
            && let Some(path) = self.paths.get_mut(path.index as usize)
        {
            path.count(share, counted);
        }
    }

    /// Returns true if a connection with new data may send now. Otherwise it waits for its turn.
    #[inline]
    pub(super) fn may_send(
        &mut self,
        path: TargetContext,
        connection: TargetContext,
        share: &mut Share,
        tcp: &Connection,
    ) -> bool {
        let index = path.index as usize;
        let Some(path) = self.paths.get_mut(index) else { return true };
        if path.in_flight == 0 && path.waiting.is_empty() {
            share.turn_end = 0;
            return true;
        }
        self.may_send_on_busy_path(index, connection, share, tcp)
    }

    #[inline(never)]
    fn may_send_on_busy_path(
        &mut self,
        index: usize,
        connection: TargetContext,
        share: &mut Share,
        tcp: &Connection,
    ) -> bool {
        let path = &mut self.paths[index];
        let (in_flight, unsent) = (tcp.in_flight(), tcp.unsent());
        path.count(share, counted(in_flight));
        if let Some(limit) = tcp.in_flight_max() {
            path.limit = Some(path.limit.map_or(limit, |least| least.min(limit)));
        }
        // A connection that has the path to itself is limited by TCP alone.
        let has_room = path.in_flight == share.counted || path.has_room(self.in_flight_min);
        let has_turn = share.has_turn(tcp);
        if has_room && (path.waiting.is_empty() || has_turn)
            || in_flight + unsent <= SMALL_FLIGHT_BYTES
        {
            return true;
        }
        if !core::mem::replace(&mut share.queued, true) {
            // One whose turn is not over is the next.
            match has_turn {
                true => path.waiting.push_front(connection),
                false => path.waiting.push_back(connection),
            }
            if !core::mem::replace(&mut path.is_contended, true) {
                self.contended.push_back(index);
            }
        }
        false
    }

    /// True if a connection waits for a turn.
    #[inline]
    pub(super) fn is_contended(&self) -> bool {
        !self.contended.is_empty()
    }

    /// Returns the next waiting connection of a path that has room. `start` gives it a turn by [`Share::start_turn`],
    /// and returns false if it was removed.
    pub(super) fn next(
        &mut self,
        mut start: impl FnMut(TargetContext) -> bool,
    ) -> Option<TargetContext> {
        for _ in 0..self.contended.len() {
            let index = self.contended.pop_front()?;
            let path = &mut self.paths[index];
            let mut next = None;
            while next.is_none() && path.has_room(self.in_flight_min) {
                let Some(connection) = path.waiting.pop_front() else { break };
                next = start(connection).then_some(connection);
            }
            path.is_contended = !path.waiting.is_empty();
            if path.is_contended {
                self.contended.push_back(index);
            }
            if next.is_some() {
                return next;
            }
        }
        None
    }

    /// Ends the share of a connection that is removed.
    pub(super) fn remove(&mut self, path: TargetContext, share: &mut Share) {
        if let Some(path) = self.paths.get_mut(path.index as usize) {
            path.count(share, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_lasts_while_connections_wait() {
        let (mut path, mut share) = (PathQueue::default(), Share::default());
        path.waiting.push_back(TargetContext { index: 1, generation: 1 });
        path.limit = Some(50_000);
        path.count(&mut share, 10_000);
        path.count(&mut share, 0);
        assert_eq!((path.in_flight, path.limit), (0, Some(50_000)));
        path.waiting.clear();
        path.count(&mut share, 10_000);
        path.count(&mut share, 0);
        assert_eq!(path.limit, None);
    }
}
