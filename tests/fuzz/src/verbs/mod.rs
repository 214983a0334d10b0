//! Verbs and connection management as a program calls them: any order, any arguments.
//!
//! A script is a list of [`Call`]s, which one thread makes through the exported C functions of the library. Both ends
//! of every connection are in this process, on kernel sockets of the loopback interface. Objects are live ones; keys,
//! lengths, addresses, counts and flags may be wrong. What a program must not do by the manual pages is not done:
//! objects that are gone are not named, and identifiers outlive their queue pairs and events.
//!
//! Each call and each completion is compared with what the harness knows:
//!
//! - nothing crashes, panics, or takes longer than a limit; a failure is one of those that the call has, and a valid
//!   request is refused for lack of room only;
//! - a request completes once, on its queue, in order, with its `wr_id`, and not behind its queue pair's end; one that
//!   is not signalled and succeeds does not. When all queue pairs are in error at the end every request that owes a
//!   completion has one, unless its completion queue has failed and has said so;
//! - a receive has what the peer has sent, in order; so has the target of a Write before it, and the sink of a Read.
//!   Memory that is registered for reading stays as it is, and that of an ended registration may be overwritten or
//!   become inaccessible at once;
//! - an object that is in use is EBUSY, and works on; an event is of a live object, in a state that allows it, and an
//!   armed completion queue has one;
//! - a connect, an accept and a disconnect come to their event;
//! - at the end everything can be closed, and descriptors and threads are as many as before.

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
use self::{watch::Holdings, world::World};

macro_rules! summary {
    ($($(#[$about:meta])* $name:ident,)*) => {
        /// What scripts have seen.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct Summary {
            $($(#[$about])* pub $name: u64,)*
        }

        impl Summary {
            /// Nothing was seen.
            pub const NOTHING: Self = Self { $($name: 0),* };

            /// True if there is as much of everything as in another.
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
    /// Registrations that were changed or ended.
    registrations,
    /// Completions polled.
    completions,
    /// Those of success.
    successes,
    /// Those of flushed requests.
    flushed,
    /// Messages that have come to a receive.
    messages,
    /// Transfers whose data were compared.
    checked,
    /// Events of all kinds.
    events,
    /// Completion queues that have failed.
    overruns,
    /// Calls that have answered EBUSY.
    busy,
    /// Connection requests.
    requests,
    /// Ends of connections that were established.
    established,
    /// Ends that were not.
    failed_connects,
    /// Those that the peer has refused.
    rejected,
}

/// Makes the calls of a script, and closes what it leaves.
///
/// # Panics
/// On a violation.
pub fn run(script: &[Call]) -> Summary {
    let lasting = watch::lasting().lock().unwrap_or_else(PoisonError::into_inner);
    let (before, panics) = (Holdings::now(), watch::panics());
    let mut world = World::new(lasting);
    for (at, call) in script.iter().enumerate() {
        watch::calling(Some(format!("call {at}, {call:?}")));
        world.step(call);
        assert_eq!(watch::panics(), panics, "the library has panicked in call {at}, {call:?}");
    }
    watch::calling(Some("the end of a script".into()));
    let summary = world.finish(script.len() % 2 == 1);
    assert_eq!(watch::panics(), panics, "the library has panicked at the end of the script");
    watch::wait_until("descriptors and threads are as many as before", || {
        Holdings::now().is_within(before)
    });
    watch::calling(None);
    summary
}

/// Runs the script that libFuzzer's octets are.
pub fn check(octets: &[u8]) {
    run(&read(octets));
}
