//! Switch of one connection between the two stacks (CH-ARC-3): order of its client's sends while the connection
//! migrates.
//!
//! | state | sends of the client |
//! |---|---|
//! | in the host | are passed to the host stack, at most [`SEND_CREDIT_BYTES`] incomplete |
//! | offloading | are queued; those that reached the host stack too late are returned, and precede all others |
//! | offloaded | are passed to the target after all returned requests have arrived |
//! | uploading | are queued |
//!
//! Pure: notices of the host stack and upcalls of the target are inputs; [`Switch::poll_host`] and
//! [`Switch::poll_target`] return the output.
//!
//! Two ordering rules of engine and host stack make one state sufficient. The engine has the client process its notices
//! before it accepts, refuses or uploads a connection, so no upcall overtakes the notice that precedes it. The host
//! stack returns late requests before it reports that it serves the connection again.

mod output;

use alloc::collections::VecDeque;

use offload_engine::{
    listing::OffloadState,
    nbl::{NblChain, NetBufferList},
    tcp::TcpPhase,
};

use crate::socket::SEND_CREDIT_BYTES;

/// Request of the client, in send order.
#[derive(Debug)]
pub enum SendRequest {
    /// Data.
    List(NetBufferList),
    /// FIN.
    Shutdown,
    /// RST. Drops queued requests.
    Reset,
}

/// Progress of a reset by the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reset {
    No,
    Due,
    /// Passed to the host stack, which resets the connection unless the target gets it.
    AtHost,
    Done,
}

/// Switch of one connection.
#[derive(Debug)]
pub struct Switch {
    state: OffloadState,
    /// True if the handshake is complete: no stack receives a request before.
    is_open: bool,
    reset: Reset,
    /// True if the connection has ended.
    is_closed: bool,
    /// Lists and shutdowns that no stack has. The first `returned` of them precede the others.
    waiting: VecDeque<SendRequest>,
    returned: usize,
    waiting_bytes: usize,
    /// Number of lists that a stack has, and their bytes.
    lists: usize,
    bytes: usize,
    /// Lists and shutdowns that the host stack has yet to return.
    to_return: usize,
    /// True if a shutdown was passed to the host stack since the connection entered it.
    shutdown_in_host: bool,
    /// True if our FIN was offloaded with the connection: no request of the target reports its acknowledgment.
    awaits_fin: bool,
}

impl Switch {
    /// Connection whose handshake is not complete.
    pub const fn opening() -> Self {
        Self::at(OffloadState::InHost, false)
    }

    /// Offloaded connection, all of whose requests so far were passed to the target.
    pub const fn offloaded() -> Self {
        Self::at(OffloadState::Offloaded, true)
    }

    const fn at(state: OffloadState, is_open: bool) -> Self {
        Self {
            state,
            is_open,
            reset: Reset::No,
            is_closed: false,
            waiting: VecDeque::new(),
            returned: 0,
            waiting_bytes: 0,
            lists: 0,
            bytes: 0,
            to_return: 0,
            shutdown_in_host: false,
            awaits_fin: false,
        }
    }

    /// Stack that has the data path.
    pub const fn state(&self) -> OffloadState {
        self.state
    }

    /// Bytes of incomplete lists.
    pub const fn outstanding(&self) -> usize {
        self.bytes + self.waiting_bytes
    }

    /// True if the target has the connection and everything that precedes its next request: then a new
    /// [`Switch::offloaded`] is equivalent.
    pub fn is_settled(&self) -> bool {
        let has_all = self.to_return == 0 && self.waiting.is_empty() && !self.awaits_fin;
        self.state == OffloadState::Offloaded && (has_all || self.reset == Reset::Done)
    }

    /// Enters the host stack: the handshake is complete (`Established`), or the target has refused the connection, and
    /// the host stack again has the lists that were offloaded.
    pub fn begin_in_host(&mut self) {
        debug_assert_eq!(self.to_return, 0, "late requests are returned before the host serves");
        (self.state, self.is_open) = (OffloadState::InHost, true);
        self.awaits_fin = false;
        self.returned = 0;
    }

    /// Re-enters the host stack with this number of lists and bytes (`Uploaded`).
    pub fn complete_upload(&mut self, lists: usize, bytes: usize) {
        (self.lists, self.bytes) = (lists, bytes);
        self.begin_in_host();
    }

    /// Begins the offload with `unanswered` of the lists, and with the FIN if `shutdown` (`Offloading`). The host stack
    /// returns the other requests.
    pub fn begin_offload(&mut self, unanswered: usize, shutdown: bool) {
        debug_assert!(unanswered <= self.lists, "{unanswered} of {} lists", self.lists);
        self.state = OffloadState::Offloading;
        let is_fin_late = core::mem::take(&mut self.shutdown_in_host) && !shutdown;
        self.to_return = self.lists.saturating_sub(unanswered) + usize::from(is_fin_late);
        self.awaits_fin |= shutdown;
    }

    /// Takes requests that reached the host stack after the offload had begun (`Returned`).
    pub fn take_returned(&mut self, chain: NblChain, shutdown: bool) {
        for list in chain {
            self.complete(&list);
            self.queue_returned(SendRequest::List(list));
        }
        if shutdown {
            self.queue_returned(SendRequest::Shutdown);
        }
    }

    fn queue_returned(&mut self, item: SendRequest) {
        self.to_return = self.to_return.saturating_sub(1);
        self.waiting_bytes += length_of(&item);
        self.waiting.insert(self.returned, item);
        self.returned += 1;
    }

    /// Enters the target (`OffloadClient::offloaded`).
    pub fn complete_offload(&mut self) {
        debug_assert_eq!(self.state, OffloadState::Offloading, "notices are read first");
        self.state = OffloadState::Offloaded;
    }

    /// Leaves the target for the host (`OffloadClient::uploaded`).
    pub fn begin_upload(&mut self) {
        debug_assert_eq!(self.state, OffloadState::Offloaded, "notices are read first");
        self.state = OffloadState::Uploading;
    }

    /// Counts the completion of a list in either stack.
    pub fn complete(&mut self, list: &NetBufferList) {
        debug_assert!(self.lists > 0 || self.is_closed, "completed list is in neither stack");
        self.lists = self.lists.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(list.bytes_transferred + list.data_length());
    }

    /// Accepts a chain. Returns it if the target accepts it immediately; otherwise it is queued.
    pub fn send(&mut self, chain: NblChain) -> Option<NblChain> {
        if self.serves_target() && self.waiting.is_empty() {
            self.lists += chain.len();
            self.bytes += chain.iter().map(NetBufferList::data_length).sum::<usize>();
            return Some(chain);
        }
        chain.into_iter().for_each(|list| self.wait(list));
        None
    }

    /// Queues a list until a stack accepts it.
    pub fn wait(&mut self, list: NetBufferList) {
        self.waiting_bytes += list.data_length();
        self.waiting.push_back(SendRequest::List(list));
    }

    /// Closes the send direction after the requests so far.
    pub fn shut_down(&mut self) {
        self.waiting.push_back(SendRequest::Shutdown);
    }

    /// Resets the connection in its current or next stack.
    pub fn reset(&mut self) {
        if self.reset == Reset::No {
            self.reset = Reset::Due;
        }
    }

    /// Closes the connection: no stack receives anything but a reset.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// Discards the lists of a stack that has lost the connection's state: none of them completes.
    pub fn discard_lists(&mut self) {
        self.lists = 0;
    }

    /// Returns the next list of a closed connection that was never sent, once all older ones are complete.
    pub fn poll_unsent(&mut self) -> Option<NetBufferList> {
        if !self.is_closed || self.lists > 0 {
            return None;
        }
        loop {
            let item = self.waiting.pop_front()?;
            self.waiting_bytes -= length_of(&item);
            if let SendRequest::List(list) = item {
                return Some(list);
            }
        }
    }

    /// Returns the next request for the host stack.
    pub fn poll_host(&mut self) -> Option<SendRequest> {
        if self.reset == Reset::Due && self.state != OffloadState::Offloaded {
            self.reset = Reset::AtHost;
            return Some(SendRequest::Reset);
        }
        if self.state != OffloadState::InHost || !self.is_open || self.is_over() {
            return None;
        }
        let length = length_of(self.waiting.front()?);
        // One list may exceed the credit.
        if self.bytes > 0 && self.bytes + length > SEND_CREDIT_BYTES {
            return None;
        }
        let item = self.pop_request()?;
        self.shutdown_in_host |= matches!(item, SendRequest::Shutdown);
        Some(item)
    }

    /// Returns the next request for the target.
    pub fn poll_target(&mut self) -> Option<SendRequest> {
        if self.state == OffloadState::Offloaded && matches!(self.reset, Reset::Due | Reset::AtHost)
        {
            self.reset = Reset::Done;
            return Some(SendRequest::Reset);
        }
        if !self.serves_target() {
            return None;
        }
        self.returned = 0;
        self.pop_request()
    }

    /// Returns true, once, if our FIN was offloaded with the connection and `phase` shows that it is acknowledged.
    pub fn detects_offloaded_fin(&mut self, phase: impl FnOnce() -> TcpPhase) -> bool {
        let is_seen = self.awaits_fin && matches!(phase(), TcpPhase::FinWait2 | TcpPhase::TimeWait);
        self.awaits_fin &= !is_seen;
        is_seen
    }

    fn is_over(&self) -> bool {
        self.is_closed || self.reset != Reset::No
    }

    /// True if the target may receive the next request: it has all older ones.
    fn serves_target(&self) -> bool {
        self.state == OffloadState::Offloaded && self.to_return == 0 && !self.is_over()
    }

    fn pop_request(&mut self) -> Option<SendRequest> {
        let item = self.waiting.pop_front()?;
        let length = length_of(&item);
        self.waiting_bytes -= length;
        self.bytes += length;
        self.lists += usize::from(matches!(item, SendRequest::List(_)));
        Some(item)
    }
}

fn length_of(item: &SendRequest) -> usize {
    match item {
        SendRequest::List(list) => list.data_length(),
        SendRequest::Shutdown | SendRequest::Reset => 0,
    }
}

#[cfg(test)]
mod tests;
