//! What was posted, and what may come of it.
//!
//! Each request has a number of its own as `wr_id`. A completion takes its request out of the ledger, so that a second
//! one finds none; so does one behind its queue pair's end. Requests that are not signalled and succeed leave with the
//! next completion of their send queue, which is in posting order.

use std::collections::{BTreeMap, VecDeque};

use super::memory::Memory;

/// Numbers are spread over all 64 bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Octets that a request has sent, and when they are known for certain.
#[derive(Clone, Debug, Default)]
pub(super) struct Payload {
    pub(super) length: u32,
    /// `None`: others may have written where they lay.
    pub(super) octets: Option<Vec<u8>>,
    /// Areas that they come from, with [`Memory::known`].
    pub(super) areas: Vec<(usize, u32)>,
}

impl Payload {
    /// The octets, unless somebody has got the right to write to them meanwhile.
    pub(super) fn certain(&self, memory: &Memory) -> Option<&[u8]> {
        let is_certain =
            self.areas.iter().all(|(area, taints)| memory.is_untouched(*area, *taints));
        self.octets.as_deref().filter(|_| is_certain)
    }
}

/// What a completion's success is checked for.
#[derive(Clone, Debug)]
pub(super) enum Check {
    Nothing,
    /// A Read into a place of the sinks.
    Read {
        place: usize,
        expected: Vec<u8>,
    },
    /// A receive with room for so many octets; of a checked one, with its place.
    Receive {
        room: u64,
        place: Option<usize>,
    },
}

/// The queue of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Queue {
    Send(usize),
    Receive(usize),
    Shared(usize),
}

/// A request that was posted.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) queue: Queue,
    pub(super) is_signaled: bool,
    /// `ibv_wc_opcode`.
    pub(super) opcode: u32,
    pub(super) check: Check,
}

/// Requests that have not completed, by number.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    requests: BTreeMap<u64, Request>,
    last: u64,
}

impl Ledger {
    /// The number of the next request, and its `wr_id`.
    pub(super) fn next(&self, ahead: u64) -> u64 {
        (self.last + 1 + ahead).wrapping_mul(SPREAD)
    }

    /// A request was posted.
    pub(super) fn post(&mut self, request: Request) {
        self.last += 1;
        self.requests.insert(self.last, request);
    }

    /// Numbers that were given out are not used again.
    pub(super) fn skip(&mut self) {
        self.last += 1;
    }

    /// A request has completed: its number, and the request. Those before it on its queue have completed as well; they
    /// are returned behind it.
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

    /// Takes out the requests of a queue, which do not complete any more.
    pub(super) fn withdraw(&mut self, queue: Queue) -> Vec<Request> {
        let numbers: Vec<_> = self.of(queue).map(|(number, _)| *number).collect();
        numbers.iter().filter_map(|number| self.requests.remove(number)).collect()
    }
}

/// What undoes the spreading.
const fn inverse() -> u64 {
    // Newton's iteration: each step doubles the bits that are right, of which there are 3 at first.
    let (mut inverse, mut step) = (SPREAD, 0);
    while step < 5 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(SPREAD.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
}

const _: () = assert!(inverse().wrapping_mul(SPREAD) == 1);

/// What one end of a connection has sent that the other can see, in order.
#[derive(Clone, Debug)]
pub(super) enum Sent {
    Send { payload: Payload, invalidated: Option<u32> },
    Write { place: usize, octets: Vec<u8> },
    Immediate { data: u32 },
}

/// A connection: what the client has sent, and the server.
#[derive(Debug, Default)]
pub(super) struct Connection {
    pub(super) sent: [VecDeque<Sent>; 2],
    /// Private data of the server's acceptance.
    pub(super) reply: Vec<u8>,
}
