//! The phase with many messages under way: `depth` on each connection, one posted for each that completes.
//!
//! Who sends ends its half when the budget is spent and everything is complete: it says so, and the other
//! side answers when all of it has arrived, which for Writes a Send behind them tells. So the time from the
//! first post to that answer is the time of exactly the messages that are counted.

use std::time::Instant;

use super::session::Session;
use crate::{
    cmd::perf::{Waiting, message::Message, phase::Phase},
    failure::Failure,
};

/// Which halves of a phase are this end's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Halves {
    pub(super) sends: bool,
    pub(super) receives: bool,
}

/// How far a half is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Half {
    Running,
    /// Sender: the end is told. Receiver: it is known how much will have come.
    Ending(u64),
    Done,
}

/// Runs the phase; returns messages sent and the peer's.
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
                session.dialogue.say(&Message::End { messages, receives, slots })?;
                sender = Half::Ending(messages);
            }
        }
        session.news(Session::is_granted)?;
        // One at a time: what comes after the last one of this phase is the next phase's.
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
            session.dialogue.say(&Message::Ended)?;
        }
        if sender == Half::Done && receiver == Half::Done {
            session.to_verify = filled;
            return Ok((session.completed, peer_messages));
        }
        if phase.is_clock_due() || blocks {
            session.dialogue.host.interrupted()?;
            let done = if halves.sends { session.completed } else { session.received };
            phase.clock(Instant::now(), done, || session.signs())?;
        }
    }
}
