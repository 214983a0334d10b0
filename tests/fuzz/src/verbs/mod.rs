//! Verbs and connection management in any order and with any arguments.
//!
//! A script is a list of [`Call`]s. One thread makes the calls through the exported C functions of the library.
//! Both ends of every connection are in this process, on kernel sockets of the loopback interface. Objects are
//! live; keys, lengths, addresses, counts and flags may be invalid. Behavior that the manual pages forbid to a
//! program is excluded: destroyed objects are not used, and identifiers outlive their queue pairs and events.
//!
//! Each call and each completion is compared with the state of the harness:
//!
//! - Nothing crashes, panics, or exceeds a time limit. A failure is one that the call may return, and a valid
//!   request is rejected only if the queue is full.
//! - A request completes once, on its queue, in order, with its `wr_id`, and not after the end of its queue
//!   pair. An unsignaled request that succeeds has no completion. At the end all queue pairs are in error. Then
//!   every request that requires a completion has one, unless its completion queue has reported a failure.
//! - A receive contains the data sent by the peer, in order; so do the target of an earlier Write, and the sink
//!   of a Read. Memory registered for reading does not change. Memory of a removed registration may be
//!   overwritten or become inaccessible immediately.
//! - Destroying an object in use returns EBUSY, and the object stays usable. An event refers to a live object,
//!   in a state that allows it, and an armed completion queue generates one.
//! - A connect, an accept and a disconnect generate their event.
//! - At the end every object can be destroyed, and the numbers of descriptors and threads are unchanged.

mod calls;
mod cm;
mod ffi;
mod finale;
mod ledger;
mod memory;
mod objects;
mod poll;
mod post;
pub mod seeds;
mod steps;
mod watch;
mod world;

use core::ops::AddAssign;
use std::sync::PoisonError;

pub use self::{
    calls::{CALLS_MAX, Call, read, write},
    watch::watch_crashes,
};
use self::{watch::ResourceUsage, world::World};

macro_rules! summary {
    ($($(#[$about:meta])* $name:ident,)*) => {
        /// Counters of the cases that scripts have exercised.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct Summary {
            $($(#[$about])* pub $name: u64,)*
        }

        impl Summary {
            /// All counters zero.
            pub const ZERO: Self = Self { $($name: 0),* };

            /// True if every counter is at least that of `other`.
            #[must_use]
            pub const fn has(&self, other: &Self) -> bool {
                $(self.$name >= other.$name)&&*
            }
        }

        impl AddAssign for Summary {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

summary! {
    /// Requests posted to send queues.
    sends,
    /// Receives posted.
    receives,
    /// Binds posted.
    binds,
    /// Registrations changed or removed.
    registrations,
    /// Completions polled.
    completions,
    /// Successful completions.
    successes,
    /// Completions of flushed requests.
    flushed,
    /// Messages received.
    messages,
    /// Transfers with compared data.
    checked,
    /// Events of all kinds.
    events,
    /// Failed completion queues.
    overruns,
    /// Calls that returned EBUSY.
    busy,
    /// Connection requests.
    requests,
    /// Connection ends that were established.
    established,
    /// Connection ends that were not established.
    failed_connects,
    /// Connection ends that the peer has rejected.
    rejected,
}

/// Makes the calls of a script, and destroys the remaining objects.
///
/// # Panics
/// On a violation.
pub fn run(script: &[Call]) -> Summary {
    let process_state = watch::process_state().lock().unwrap_or_else(PoisonError::into_inner);
    let (before, panics) = (ResourceUsage::now(), watch::panics());
    let mut world = World::new(process_state);
    for (at, call) in script.iter().enumerate() {
        watch::calling(Some(format!("call {at}, {call:?}")));
        world.step(call);
        assert_eq!(watch::panics(), panics, "the library has panicked in call {at}, {call:?}");
    }
    watch::calling(Some("the end of a script".into()));
    let summary = world.finish(script.len() % 2 == 1);
    assert_eq!(watch::panics(), panics, "the library has panicked at the end of the script");
    watch::wait_until("descriptors and threads are as many as before", || {
        ResourceUsage::now().is_within(before)
    });
    watch::calling(None);
    summary
}

/// Runs libFuzzer's octets as a script.
pub fn check(octets: &[u8]) {
    run(&read(octets));
}
