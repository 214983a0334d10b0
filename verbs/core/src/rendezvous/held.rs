//! Requests for queue pairs that are not yet in RTR. They are kept unanswered, the newest of each queue pair.

use std::collections::HashMap;

/// Maximum number of requests held in a process.
const HELD_MAX: usize = 16_384;

/// Requests by the number of their queue pair.
#[derive(Debug)]
pub(super) struct HeldRequests<R>(HashMap<u32, R>);

impl<R> Default for HeldRequests<R> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<R> HeldRequests<R> {
    /// Holds a request for a queue pair, and returns the one that has to be refused instead: an older one of the queue
    /// pair, or the request itself if there are too many.
    pub(super) fn hold(&mut self, number: u32, request: R) -> Option<R> {
        if self.0.len() >= HELD_MAX && !self.0.contains_key(&number) {
            return Some(request);
        }
        self.0.insert(number, request)
    }

    /// Takes the request of a queue pair.
    pub(super) fn take(&mut self, number: u32) -> Option<R> {
        self.0.remove(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_request_is_held_within_the_limit() {
        let mut held = HeldRequests::default();
        assert_eq!(held.hold(7, "old"), None);
        assert_eq!(held.hold(7, "new"), Some("old"));
        for number in 8..HELD_MAX as u32 + 7 {
            assert_eq!(held.hold(number, "other"), None);
        }
        assert_eq!(held.hold(1, "excess"), Some("excess"));
        assert_eq!(held.hold(7, "newest"), Some("new"), "replaced at the limit as well");
        assert_eq!((held.take(7), held.take(7)), (Some("newest"), None));
        assert_eq!(held.hold(1, "excess"), None);
    }
}
