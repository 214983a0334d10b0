//! Requests for queue pairs that are not yet in RTR. They are kept unanswered, the newest of each queue pair.

use std::collections::HashMap;

use super::Request;

/// Maximum number of requests held in a process.
const HELD_MAX: usize = 16_384;

/// Requests by the number of their queue pair.
#[derive(Debug, Default)]
pub(super) struct HeldRequests(HashMap<u32, Request>);

impl HeldRequests {
    /// Holds a request, and returns the one that has to be refused instead: an older one of the queue pair, or the
    /// request itself if there are too many.
    pub(super) fn hold(&mut self, request: Request) -> Option<Request> {
        let number = request.description.destination;
        if self.0.len() >= HELD_MAX && !self.0.contains_key(&number) {
            return Some(request);
        }
        self.0.insert(number, request)
    }

    /// Takes the request of a queue pair.
    pub(super) fn take(&mut self, number: u32) -> Option<Request> {
        self.0.remove(&number)
    }
}
