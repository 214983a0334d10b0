//! In-order bytes to the consumer: posted requests first, indications of the rest (CH §7.4).
//!
//! The chimney's chart has four entries. A segment comes in by [`Connection::deliver`], which places its bytes
//! straight from the frame into the posted memory: one copy. Requests that are posted only queue, and
//! [`Connection::deliver_waiting`] looks at them when the call that posted them has returned. The push timer is a
//! timer of the connection. The chart's `busy` has no variable: a [`Consumer`] is called from these two functions
//! alone, one call at a time, and its own calls only queue (CH-RCC-2, CH-DEL-1, CH-DEL-7).
//!
//! `P` of the chart is [`Connection::place`], `B` is [`Connection::indicate`]. Bytes that the consumer has
//! refused wait in the receiver's backlog, every piece with its PSH, and new bytes queue up behind them
//! (CH-DEL-2, CH-DEL-4).
//!
//! A zero-byte request completes when bytes are there that no request before it takes (CH-DEL-5).
//!
//! Limits: requests are as many as the consumer has posted; [`IDLE_ROUNDS_MAX`] rounds without a byte moved.

use alloc::{collections::VecDeque, vec::Vec};

use super::{Connection, Timer};
use crate::{
    nbl::{ReceiveBufferList, ReceiveChain},
    status::NdisStatus,
    time::Instant,
};

/// Rounds of one delivery in which no byte moves: a consumer that refuses bytes and posts zero-byte requests
/// for them in the same upcall would loop for ever. Beyond it the bytes wait for its next post.
const IDLE_ROUNDS_MAX: u32 = 16;
/// Most emptied chains kept, so that completions allocate nothing.
const SPARE_CHAINS_MAX: usize = 4;

/// The receiver of a connection's data. Called by [`Connection::deliver`] and [`Connection::deliver_waiting`] only.
pub trait Consumer {
    /// Receive requests are complete, in order.
    fn receive_complete(&mut self, connection: &mut Connection, chain: ReceiveChain);

    /// In-order bytes that no request took; returns how many of them the consumer takes. `push`: they end with
    /// a PSH.
    fn indicate(&mut self, connection: &mut Connection, data: &[u8], push: bool) -> usize;
}

/// A posted request, and where its next byte goes.
#[derive(Debug)]
struct Posted {
    list: ReceiveBufferList,
    /// Bytes that its memory still takes.
    room: usize,
    mdl: usize,
    offset: usize,
}

impl Posted {
    fn new(mut list: ReceiveBufferList) -> Self {
        list.status = NdisStatus::PENDING;
        let length = list.data_length();
        list.bytes_transferred = list.bytes_transferred.min(length);
        let mut posted = Self { room: length - list.bytes_transferred, mdl: 0, offset: 0, list };
        posted.skip(posted.list.bytes_transferred);
        posted
    }

    /// Moves the place of the next byte forward.
    fn skip(&mut self, count: usize) {
        self.offset += count;
        while let Some(mdl) = self.list.mdls.get(self.mdl)
            && self.offset >= mdl.len()
        {
            self.offset -= mdl.len();
            self.mdl += 1;
        }
    }

    /// Copies as much of `data` as there is room for; returns how much that is.
    fn fill(&mut self, data: &[u8]) -> usize {
        let total = data.len().min(self.room);
        let mut left = &data[..total];
        while !left.is_empty() {
            let Some(mdl) = self.list.mdls.get_mut(self.mdl) else { break };
            let count = left.len().min(mdl.len() - self.offset);
            let (now, later) = left.split_at(count);
            mdl[self.offset..self.offset + count].copy_from_slice(now);
            left = later;
            self.skip(count);
        }
        self.room -= total;
        self.list.bytes_transferred += total;
        total
    }

    const fn is_partly_filled(&self) -> bool {
        self.list.bytes_transferred > 0
    }
}

/// Receive requests of one connection: those that wait for bytes, and those complete but not yet reported.
#[derive(Debug, Default)]
pub(super) struct Requests {
    queue: VecDeque<Posted>,
    done: ReceiveChain,
    spare: Vec<ReceiveChain>,
}

impl Requests {
    fn post(&mut self, mut chain: ReceiveChain) {
        self.queue.extend(chain.drain(..).map(Posted::new));
        if self.spare.len() < SPARE_CHAINS_MAX {
            self.spare.push(chain);
        }
    }

    /// Whether a request could take bytes, or wants to be completed because bytes are there.
    pub(super) fn is_available(&self) -> bool {
        !self.queue.is_empty()
    }

    /// How many wait.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Fills requests in order and completes those that are full (CH-RCV-2). Returns the bytes placed, and whether a
    /// request was completed.
    fn fill(&mut self, data: &[u8]) -> (usize, bool) {
        let (mut placed, mut completed) = (0, false);
        while placed < data.len() {
            let Some(front) = self.queue.front_mut() else { break };
            placed += front.fill(&data[placed..]);
            if front.room == 0 {
                completed = true;
                self.complete_front(NdisStatus::SUCCESS);
            }
        }
        (placed, completed)
    }

    fn complete_front(&mut self, status: NdisStatus) {
        if let Some(Posted { mut list, .. }) = self.queue.pop_front() {
            list.status = status;
            self.done.push_back(list);
        }
    }

    /// Completes all requests, each with the bytes it holds.
    fn complete_all(&mut self, status: NdisStatus) {
        while self.is_available() {
            self.complete_front(status);
        }
    }

    /// Refuses `chain`.
    fn refuse(&mut self, chain: ReceiveChain, status: NdisStatus) {
        self.post(chain);
        self.complete_all(status);
    }

    /// The request that bytes were placed in last, unless it waits until it is full.
    fn pushable(&self) -> bool {
        self.queue.front().is_some_and(|front| front.is_partly_filled() && !front.list.no_push)
    }

    /// Whether requests are complete.
    fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Takes what is complete, in order.
    #[inline]
    pub(super) fn take_done(&mut self) -> Option<ReceiveChain> {
        if self.done.is_empty() {
            return None;
        }
        let empty = self.spare.pop().unwrap_or_default();
        Some(core::mem::replace(&mut self.done, empty))
    }
}

impl Connection {
    /// Posts receive requests: always accepted (PENDING), completed in order and once each (CH-RCV-1, -2, -8). What
    /// waits is placed by the next [`Connection::deliver_waiting`]. Behind the event of the peer's FIN they complete
    /// INVALID_STATE (CH-RCV-9), behind an abort REQUEST_ABORTED, in the middle of an upload UPLOAD_IN_PROGRESS.
    pub fn post_receive(&mut self, now: Instant, chain: ReceiveChain) {
        self.now = now;
        if let Some(status) = self.receive_refusal() {
            self.requests.refuse(chain, status);
            return;
        }
        for list in &chain {
            // CH-RCV-5: the timer runs for bytes that the poster has put there.
            if list.bytes_transferred > 0 && !list.no_push {
                self.start_push_timer();
            }
            self.watch_post(list.data_length().saturating_sub(list.bytes_transferred));
        }
        self.requests.post(chain);
        self.receiver.set_blocked(false);
    }

    /// What a request completes with that is posted too late. Behind others it has to wait for its turn
    /// (CH-RCV-2): those of a connection whose state is lost complete when the host takes it (CH §5.6).
    fn receive_refusal(&self) -> Option<NdisStatus> {
        if self.requests.is_available() {
            None
        } else if self.aborted {
            Some(NdisStatus::REQUEST_ABORTED)
        } else if self.peer_closed_raised {
            Some(NdisStatus::INVALID_STATE)
        } else {
            self.hold.uploading.then_some(NdisStatus::UPLOAD_IN_PROGRESS)
        }
    }

    /// Receive requests that are complete; each is reported once. [`Connection::poll_event`] has them too.
    pub fn poll_receive_complete(&mut self) -> Option<ReceiveChain> {
        self.requests.take_done()
    }

    /// Delivers what [`Connection::handle_segment`] has found to continue the stream, then what has become
    /// contiguous. Stands for [`Connection::settle`], and is to be called after every segment.
    pub fn deliver(&mut self, now: Instant, data: &[u8], push: bool, consumer: &mut impl Consumer) {
        self.now = now;
        // Older bytes first.
        let waits = self.receiver.backlog().is_some();
        let rest = if waits || data.is_empty() { data } else { self.run(data, push, consumer) };
        self.settle(rest, push);
        // Common case: the consumer has taken all of it.
        if self.receiver.backlog_bytes() > 0 || self.requests.has_done() {
            self.deliver_waiting(now, consumer);
        }
    }

    /// Delivers what waits, as far as requests and the consumer take it.
    #[inline]
    pub fn deliver_waiting(&mut self, now: Instant, consumer: &mut impl Consumer) {
        self.now = now;
        let mut idle_rounds = 0;
        while idle_rounds < IDLE_ROUNDS_MAX {
            let before = self.receiver.backlog_bytes();
            self.place_waiting();
            self.complete_requests(consumer);
            let Some((data, push)) = self.receiver.backlog() else { return };
            if !self.requests.is_available() {
                if self.receiver.is_blocked() {
                    return;
                }
                let data = data.clone();
                let (rest, refused) = self.indicate(&data, push, consumer);
                let rest = rest.len();
                self.backlog_consumed(data.len() - rest);
                // What was posted during the call takes what was refused.
                if refused && !self.requests.is_available() {
                    self.receiver.set_blocked(true);
                    return;
                }
            }
            let moved = self.receiver.backlog_bytes() < before;
            idle_rounds = if moved { 0 } else { idle_rounds + 1 };
        }
        self.receiver.set_blocked(true);
    }

    /// The chart for a segment that came in order: P, then B, until it is gone or refused. Returns what is
    /// left of it.
    #[inline]
    fn run<'d>(&mut self, data: &'d [u8], push: bool, consumer: &mut impl Consumer) -> &'d [u8] {
        let mut rest = data;
        let mut idle_rounds = 0;
        while idle_rounds < IDLE_ROUNDS_MAX {
            let before = rest.len();
            rest = self.place(rest, push);
            self.complete_requests(consumer);
            if rest.is_empty() || self.receiver.is_blocked() || self.aborted {
                return rest;
            }
            if !self.requests.is_available() {
                let refused;
                (rest, refused) = self.indicate(rest, push, consumer);
                // What was posted during the call takes what was refused.
                if rest.is_empty() || refused && !self.requests.is_available() {
                    self.receiver.set_blocked(!rest.is_empty());
                    return rest;
                }
            }
            idle_rounds = if rest.len() == before { idle_rounds + 1 } else { 0 };
        }
        self.receiver.set_blocked(true);
        rest
    }

    /// P for bytes of one segment. Returns those that found no room.
    #[inline]
    fn place<'d>(&mut self, data: &'d [u8], push: bool) -> &'d [u8] {
        if !self.requests.is_available() {
            return data;
        }
        let (placed, completed) = self.requests.fill(data);
        let rest = &data[placed..];
        self.placed(completed, push && rest.is_empty(), rest.is_empty());
        rest
    }

    /// P for everything that waits: the PSH of the last piece placed decides (CH-DEL-4).
    #[inline]
    fn place_waiting(&mut self) {
        let (mut completed, mut push, mut any) = (false, false, false);
        while self.requests.is_available()
            && let Some((data, pushed)) = self.receiver.backlog()
        {
            let data = data.clone();
            let (count, full) = self.requests.fill(&data);
            push = pushed && count == data.len();
            completed |= full;
            any = true;
            self.receiver.consumed(self.now, count);
        }
        if any {
            self.placed(completed, push, self.receiver.backlog().is_none());
            self.raise_peer_closed();
        }
    }

    /// The end of P: what becomes of a request that is partly filled (CH-RCV-5, CH-RCV-6, CH-DEL-6).
    fn placed(&mut self, completed: bool, push: bool, all: bool) {
        if completed {
            self.timers.stop(Timer::Push);
        }
        if !all || !self.requests.pushable() {
            return;
        }
        if push {
            self.requests.complete_front(NdisStatus::SUCCESS);
            self.timers.stop(Timer::Push);
        } else {
            self.start_push_timer();
        }
    }

    fn start_push_timer(&mut self) {
        self.timers.set(Timer::Push, self.now + self.config.push_delay);
    }

    /// B: indicates the front of `data`, RcvIndicationSize of it at most (CH-IND-4). Returns what the consumer
    /// has not taken, and whether it has refused any.
    #[inline]
    fn indicate<'d>(
        &mut self,
        data: &'d [u8],
        push: bool,
        consumer: &mut impl Consumer,
    ) -> (&'d [u8], bool) {
        let count = match self.cached.rcv_indication_size {
            0 => data.len(),
            size => data.len().min(super::saturate(size.into())),
        };
        let whole = count == data.len();
        let taken = consumer.indicate(self, &data[..count], push && whole).min(count);
        self.watch_indication(taken);
        (&data[taken..], taken < count)
    }

    /// Passes completed requests to the consumer.
    #[inline]
    fn complete_requests(&mut self, consumer: &mut impl Consumer) {
        if let Some(chain) = self.requests.take_done() {
            consumer.receive_complete(self, chain);
        }
    }

    /// CH §7.4, push timer expiry.
    pub(super) fn on_push_timeout(&mut self) {
        if self.requests.pushable() {
            self.requests.complete_front(NdisStatus::SUCCESS);
        }
    }

    /// Everything before the peer's FIN is consumed: requests complete with what they have, or with nothing, which is
    /// the end of the stream (CH-RCV-10).
    pub(super) fn end_receives(&mut self) {
        self.timers.stop(Timer::Push);
        self.requests.complete_all(NdisStatus::SUCCESS);
    }

    /// The connection is lost: requests complete with the valid bytes they have (CH §7.2). Nothing is delivered any
    /// more.
    pub(super) fn abort_receives(&mut self) {
        self.aborted = true;
        self.timers.stop(Timer::Push);
        self.requests.complete_all(NdisStatus::REQUEST_ABORTED);
        self.receiver.discard();
        self.peer_closed_raised = true;
    }

    /// The connection goes back to the host: requests complete with the bytes they have, which count as delivered
    /// (CH-TRM-3, CH-TRM-10).
    pub(super) fn return_receives(&mut self) {
        self.timers.stop(Timer::Push);
        self.requests.complete_all(NdisStatus::UPLOAD_IN_PROGRESS);
    }
}
