//! Delivery of in-order bytes to the consumer: to posted requests first, then by indication (CH §7.4).
//!
//! The chimney's state chart has four entry points. [`Connection::deliver`] processes a segment and copies its bytes
//! from the frame to the posted memory: one copy. Posted requests are only queued; [`Connection::deliver_backlog`]
//! processes them after the call that posted them has returned. The push timer is a timer of the connection. The
//! chart's `busy` has no variable: a [`Consumer`] is called from these two functions only, one call at a time, and its
//! own calls only queue (CH-RCC-2, CH-DEL-1, CH-DEL-7).
//!
//! `P` of the chart is [`Connection::place`], `B` is [`Connection::indicate`]. Refused bytes are kept in the receiver's
//! backlog, every piece with its PSH, and new bytes are queued after them (CH-DEL-2, CH-DEL-4).
//!
//! A zero-byte request completes when bytes are available that no request before it takes (CH-DEL-5).
//!
//! Limits: as many requests as the consumer has posted; [`IDLE_ROUNDS_MAX`] rounds without a byte moved.

use alloc::{collections::VecDeque, vec::Vec};

use super::{Connection, Timer};
use crate::{
    nbl::{ReceiveBufferList, ReceiveChain},
    status::NdisStatus,
    time::Instant,
};

/// Rounds of one delivery in which no byte moves. A consumer that refuses bytes and posts zero-byte requests for them
/// in the same upcall would cause an endless loop. After the limit the bytes are kept until its next post.
const IDLE_ROUNDS_MAX: u32 = 16;
/// Maximum number of emptied chains kept, so that completions do not allocate.
const SPARE_CHAINS_MAX: usize = 4;

/// Receiver of a connection's data. Called by [`Connection::deliver`] and [`Connection::deliver_backlog`] only.
pub trait Consumer {
    /// Completes receive requests, in order.
    fn receive_complete(&mut self, connection: &mut Connection, chain: ReceiveChain);

    /// Indicates in-order bytes that no request took; returns the number of bytes taken. `push` is true if they end
    /// with a PSH.
    fn indicate(&mut self, connection: &mut Connection, data: &[u8], push: bool) -> usize;
}

/// Posted request and the position of its next byte.
#[derive(Debug)]
struct PostedRequest {
    list: ReceiveBufferList,
    /// Free bytes of its memory.
    room: usize,
    mdl: usize,
    offset: usize,
}

impl PostedRequest {
    fn new(mut list: ReceiveBufferList) -> Self {
        list.status = NdisStatus::PENDING;
        let length = list.data_length();
        list.bytes_transferred = list.bytes_transferred.min(length);
        let mut posted = Self { room: length - list.bytes_transferred, mdl: 0, offset: 0, list };
        posted.skip(posted.list.bytes_transferred);
        posted
    }

    /// Advances the position of the next byte.
    fn skip(&mut self, count: usize) {
        self.offset += count;
        while let Some(mdl) = self.list.mdls.get(self.mdl)
            && self.offset >= mdl.len()
        {
            self.offset -= mdl.len();
            self.mdl += 1;
        }
    }

    /// Copies as much of `data` as fits; returns the number of bytes.
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

/// Receive requests of one connection: queued ones, and completed ones not reported yet.
#[derive(Debug, Default)]
pub(super) struct Requests {
    queue: VecDeque<PostedRequest>,
    done: ReceiveChain,
    spare: Vec<ReceiveChain>,
}

impl Requests {
    fn post(&mut self, mut chain: ReceiveChain) {
        self.queue.extend(chain.drain(..).map(PostedRequest::new));
        if self.spare.len() < SPARE_CHAINS_MAX {
            self.spare.push(chain);
        }
    }

    /// True if a request is queued.
    pub(super) fn is_available(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Number of queued requests.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Fills requests in order and completes full ones (CH-RCV-2). Returns the bytes placed, and true if a request was
    /// completed.
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
        if let Some(PostedRequest { mut list, .. }) = self.queue.pop_front() {
            list.status = status;
            self.done.push_back(list);
        }
    }

    /// Completes all requests, each with the bytes it contains.
    fn complete_all(&mut self, status: NdisStatus) {
        while self.is_available() {
            self.complete_front(status);
        }
    }

    /// Completes all requests of `chain` with `status`.
    fn refuse(&mut self, chain: ReceiveChain, status: NdisStatus) {
        self.post(chain);
        self.complete_all(status);
    }

    /// True if the front request is partly filled and in push mode.
    fn pushable(&self) -> bool {
        self.queue.front().is_some_and(|front| front.is_partly_filled() && !front.list.no_push)
    }

    /// True if completed requests are not reported yet.
    fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Removes the completed requests, in order.
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
    /// Posts receive requests: always accepted (PENDING), completed in order and once each (CH-RCV-1, -2, -8). The next
    /// [`Connection::deliver_backlog`] fills them from the backlog. After the event of the peer's FIN they complete
    /// INVALID_STATE (CH-RCV-9), after an abort REQUEST_ABORTED, during an upload UPLOAD_IN_PROGRESS.
    pub fn post_receive(&mut self, now: Instant, chain: ReceiveChain) {
        self.now = now;
        if let Some(status) = self.receive_refusal() {
            self.requests.refuse(chain, status);
            return;
        }
        for list in &chain {
            // CH-RCV-5: the timer also runs for bytes that the poster has placed.
            if list.bytes_transferred > 0 && !list.no_push {
                self.start_push_timer();
            }
            self.check_posted_request(list.data_length().saturating_sub(list.bytes_transferred));
        }
        self.requests.post(chain);
        self.receiver.set_blocked(false);
    }

    /// Status of a request that is posted too late. After queued requests it must keep its order (CH-RCV-2); those of a
    /// connection with corrupt state complete when the host terminates it (CH §5.6).
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

    /// Returns completed receive requests, each once. [`Connection::poll_event`] also returns them.
    pub fn poll_receive_complete(&mut self) -> Option<ReceiveChain> {
        self.requests.take_done()
    }

    /// Delivers the in-order data of [`Connection::handle_segment`], then data that has become contiguous. Replaces
    /// [`Connection::settle`]; call it after every segment.
    pub fn deliver(&mut self, now: Instant, data: &[u8], push: bool, consumer: &mut impl Consumer) {
        self.now = now;
        // Older bytes are delivered first.
        let has_backlog = self.receiver.backlog().is_some();
        let rest = if has_backlog || data.is_empty() {
            data
        } else {
            self.deliver_in_order(data, push, consumer)
        };
        self.settle(rest, push);
        // Common case: the consumer has taken all data.
        if self.receiver.backlog_bytes() > 0 || self.requests.has_done() {
            self.deliver_backlog(now, consumer);
        }
    }

    /// Delivers the backlog, as far as requests and the consumer take it.
    #[inline]
    pub fn deliver_backlog(&mut self, now: Instant, consumer: &mut impl Consumer) {
        self.now = now;
        let mut idle_rounds = 0;
        while idle_rounds < IDLE_ROUNDS_MAX {
            let before = self.receiver.backlog_bytes();
            self.place_backlog();
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
                // Requests posted during the call take the refused data.
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

    /// State chart for an in-order segment: P, then B, until all data is taken or refused. Returns the rest.
    #[inline]
    fn deliver_in_order<'d>(
        &mut self,
        data: &'d [u8],
        push: bool,
        consumer: &mut impl Consumer,
    ) -> &'d [u8] {
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
                // Requests posted during the call take the refused data.
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

    /// P for the bytes of one segment. Returns the bytes that did not fit.
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

    /// P for the backlog. The PSH of the last piece placed decides (CH-DEL-4).
    #[inline]
    fn place_backlog(&mut self) {
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

    /// End of P: completes a partly filled request or starts its timer (CH-RCV-5, CH-RCV-6, CH-DEL-6).
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

    /// B: indicates the front of `data`, at most RcvIndicationSize bytes (CH-IND-4). Returns the bytes not taken, and
    /// true if the consumer has refused any.
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
        self.check_indication(taken);
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

    /// Completes all requests after everything before the peer's FIN is consumed, with their bytes. A request without
    /// bytes indicates the end of the stream (CH-RCV-10).
    pub(super) fn end_receives(&mut self) {
        self.timers.stop(Timer::Push);
        self.requests.complete_all(NdisStatus::SUCCESS);
    }

    /// Aborts receives of a lost connection: requests complete with their valid bytes (CH §7.2). Nothing more is
    /// delivered.
    pub(super) fn abort_receives(&mut self) {
        self.aborted = true;
        self.timers.stop(Timer::Push);
        self.requests.complete_all(NdisStatus::REQUEST_ABORTED);
        self.receiver.discard();
        self.peer_closed_raised = true;
    }

    /// Completes requests for an upload, with their bytes, which count as delivered (CH-TRM-3, CH-TRM-10).
    pub(super) fn return_receives(&mut self) {
        self.timers.stop(Timer::Push);
        self.requests.complete_all(NdisStatus::UPLOAD_IN_PROGRESS);
    }
}
