//! Bandwidth phase: `depth` outstanding messages per connection, one posted per completion.
//!
//! A sender ends its half after its budget is spent and all requests are complete: it sends End. The other side replies
//! after all data has arrived; for Writes, a trailing Send per connection indicates that. So the time from the first
//! post to that reply covers exactly the counted messages.

use std::time::Instant;

use super::session::Session;
use crate::{
    cmd::perf::{Waiting, message::Message, phase::Phase},
    failure::Failure,
};

/// Halves of a phase that this end executes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Halves {
    pub(super) sends: bool,
    pub(super) receives: bool,
}

/// Progress of one half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Half {
    Running,
    /// Sender: End was sent. Receiver: the expected total is known.
    Ending(u64),
    Done,
}

/// Runs the phase; returns messages sent by this end and by the peer.
pub(super) fn run(
    session: &mut Session<'_>,
    phase: &mut Phase<'_, '_, '_>,
    halves: Halves,
) -> Result<(u64, u64), Failure> {
    let half = |runs| if runs { Half::Running } else { Half::Done };
    let (mut sender, mut receiver) = (half(halves.sends), half(halves.receives));
    let mut peer_messages = 0;
    let mut filled = 0;
    let blocks = session.dialogue.host.waiting == Waiting::Block;
    loop {
        if sender == Half::Running {
            session.refill(&mut phase.budget)?;
            if phase.budget.is_over() && session.completed == session.posted {
                let receives = match session.post_markers()? {
                    0 if session.counts_receives() => session.completed,
                    markers => markers,
                };
                let messages = session.completed;
                let slots = session.filled();
                session.dialogue.send_message(&Message::End { messages, receives, slots })?;
                sender = Half::Ending(messages);
            }
        }
        session.process_events(Session::is_granted)?;
        // One message per iteration: any message after the last one of this phase belongs to the next phase.
        if let Some(message) = session.dialogue.next() {
            match (message, sender, receiver) {
                (Message::End { messages, receives, slots }, _, Half::Running) => {
                    receiver = Half::Ending(receives);
                    peer_messages = messages;
                    session.added += messages;
                    filled = slots;
                }
                (Message::Ended, Half::Ending(_), _) => sender = Half::Done,
                (message, ..) => return Err(message.out_of_turn("the end of a phase")),
            }
        }
        if let Half::Ending(receives) = receiver
            && session.received >= receives
        {
            receiver = Half::Done;
            session.dialogue.send_message(&Message::Ended)?;
        }
        if sender == Half::Done && receiver == Half::Done {
            session.to_verify = filled;
            return Ok((session.completed, peer_messages));
        }
        if phase.is_clock_due() || blocks {
            session.dialogue.host.interrupted()?;
            let done = if halves.sends { session.completed } else { session.received };
            phase.clock(Instant::now(), done, || session.activity())?;
        }
    }
}
