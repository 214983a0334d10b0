//! Posted requests and their expected completions.
//!
//! Each request has a unique number as its `wr_id`. A completion removes its request from the ledger, so a
//! second completion finds none; the end of the queue pair removes its requests too. Successful unsignaled
//! requests are removed by the next completion of their send queue, which is in posting order.

use std::collections::{BTreeMap, VecDeque};

use super::memory::Memory;

/// Multiplier that spreads the numbers over all 64 bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Octets sent by a request, and the areas that they depend on.
#[derive(Clone, Debug, Default)]
pub(super) struct Payload {
    pub(super) length: u32,
    /// `None` if their memory may have been written by others.
    pub(super) octets: Option<Vec<u8>>,
    /// Areas of the octets, with [`Memory::known`].
    pub(super) areas: Vec<(usize, u32)>,
}

impl Payload {
    /// The octets, unless a registration has since granted write access to them.
    pub(super) fn certain(&self, memory: &Memory) -> Option<&[u8]> {
        let is_certain =
            self.areas.iter().all(|(area, taints)| memory.is_untouched(*area, *taints));
        self.octets.as_deref().filter(|_| is_certain)
    }
}

/// Check of a successful completion.
#[derive(Clone, Debug)]
pub(super) enum Check {
    Nothing,
    /// A Read into a place of the sink area.
    Read {
        place: usize,
        expected: Vec<u8>,
    },
    /// A receive with room for `room` octets; a checked one has a place.
    Receive {
        room: u64,
        place: Option<usize>,
    },
}

/// Queue of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Queue {
    Send(usize),
    Receive(usize),
    Shared(usize),
}

/// Posted request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) queue: Queue,
    pub(super) is_signaled: bool,
    /// `ibv_wc_opcode`.
    pub(super) opcode: u32,
    pub(super) check: Check,
}

/// Outstanding requests, by number.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    requests: BTreeMap<u64, Request>,
    last: u64,
}

impl Ledger {
    /// `wr_id` of the request after the next `ahead` ones.
    pub(super) fn next(&self, ahead: u64) -> u64 {
        (self.last + 1 + ahead).wrapping_mul(SPREAD)
    }

    /// Records a posted request.
    pub(super) fn post(&mut self, request: Request) {
        self.last += 1;
        self.requests.insert(self.last, request);
    }

    /// Skips a number that was assigned but not posted.
    pub(super) fn skip(&mut self) {
        self.last += 1;
    }

    /// Removes a completed request. Returns its number, the request, and the earlier requests of its queue,
    /// which have completed too.
    ///
    /// # Panics
    /// If there is no such request.
    pub(super) fn complete(&mut self, wr_id: u64, text: &str) -> (Request, Vec<Request>) {
        let number = wr_id.wrapping_mul(inverse());
        let request = self.requests.remove(&number);
        let Some(request) = request else {
            panic!("a completion of request {number}, which is not outstanding ({text})")
        };
        let is_silent = |it: &Request| it.queue == request.queue && !it.is_signaled;
        let before = self.requests.range(..number).filter(|(_, it)| it.queue == request.queue);
        let is_ordered = !matches!(request.queue, Queue::Shared(_));
        let before: Vec<_> = before.filter(|_| is_ordered).map(|(number, _)| *number).collect();
        let mut silent = Vec::new();
        for earlier in before {
            let passed = self.requests.remove(&earlier).filter(is_silent);
            silent.push(passed.unwrap_or_else(|| {
                panic!("request {number} has completed before request {earlier} ({text})")
            }));
        }
        (request, silent)
    }

    /// Requests of a queue.
    pub(super) fn of(&self, queue: Queue) -> impl Iterator<Item = (&u64, &Request)> {
        self.requests.iter().filter(move |(_, request)| request.queue == queue)
    }

    /// Removes the requests of a queue that will never complete.
    pub(super) fn withdraw(&mut self, queue: Queue) -> Vec<Request> {
        let numbers: Vec<_> = self.of(queue).map(|(number, _)| *number).collect();
        numbers.iter().filter_map(|number| self.requests.remove(number)).collect()
    }
}

/// Inverse of the multiplier.
const fn inverse() -> u64 {
    // Newton's iteration: each step doubles the number of correct bits, initially 3.
    let (mut inverse, mut step) = (SPREAD, 0);
    while step < 5 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(SPREAD.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
}

const _: () = assert!(inverse().wrapping_mul(SPREAD) == 1);

/// Message or Write of one end of a connection that the other end can observe, in order.
#[derive(Clone, Debug)]
pub(super) enum Sent {
    Send { payload: Payload, invalidated: Option<u32> },
    Write { place: usize, octets: Vec<u8> },
    Immediate { data: u32 },
}

/// Connection: data sent by the client and by the server.
#[derive(Debug, Default)]
pub(super) struct Connection {
    pub(super) sent: [VecDeque<Sent>; 2],
    /// Private data of the server's `rdma_accept`.
    pub(super) reply: Vec<u8>,
}
