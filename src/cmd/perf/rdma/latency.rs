//! The phases with one message under way.
//!
//! *write-lat*, as perftest's ib_write_lat: each end writes into the other's memory and waits for the last
//! byte of its own to change, which the adapter stores last; between two looks it polls the completion
//! queue, so that with manual progress the engine runs. *send-lat*: the same by Send and Receive.
//! *read-lat*, *atomic-lat*: one after the other; the server does nothing.

use std::time::Instant;

use super::session::Session;
use crate::{
    cmd::perf::{Waiting, kind::Kind, message::Message, phase::Phase},
    failure::Failure,
};
use rdma_over_tcp::ndk::OpFlags;

/// Counts the messages of write-lat, in the byte that is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Turn(u8);

/// What an end waits for.
#[derive(Clone, Copy)]
enum Awaited {
    /// The last byte of the sink has this value.
    Byte(u8),
    /// So many receives have completed.
    Receives(u64),
    /// So many requests have.
    Requests(u64),
}

impl Session<'_> {
    fn has(&self, awaited: Awaited) -> bool {
        match awaited {
            Awaited::Byte(value) => {
                let at = self.region.layout.sink_at + self.size_bytes - 1;
                self.region.buffer.load_last(at as usize) == value
            }
            Awaited::Receives(count) => self.received >= count,
            Awaited::Requests(count) => self.completed >= count,
        }
    }

    /// Waits; `false`: a message has come instead.
    fn await_turn(
        &mut self,
        phase: &mut Phase<'_, '_, '_>,
        awaited: Awaited,
    ) -> Result<bool, Failure> {
        let blocks = self.dialogue.host.waiting == Waiting::Block;
        let byte_at = (self.region.layout.sink_at + self.size_bytes - 1) as usize;
        loop {
            if self.has(awaited) {
                return Ok(true);
            }
            if self.dialogue.has_message() {
                return Ok(false);
            }
            self.news(|region, _| match awaited {
                Awaited::Byte(value) => region.buffer.load_last(byte_at) == value,
                Awaited::Receives(_) | Awaited::Requests(_) => false,
            })?;
            if phase.is_clock_due() || blocks {
                self.dialogue.host.interrupted()?;
                phase.clock(Instant::now(), self.posted, || self.signs())?;
            }
        }
    }

    /// Posts one message, when there is room.
    fn serve_turn(&mut self, phase: &mut Phase<'_, '_, '_>, turn: Turn) -> Result<(), Failure> {
        while self.lanes[0].room == 0 {
            self.await_turn(phase, Awaited::Requests(self.completed + 1))?;
        }
        if self.parameters.kind == Kind::WriteLat {
            let at = self.region.layout.source_at + self.size_bytes - 1;
            self.region.buffer.write_at(at as usize, &[turn.0]);
        }
        self.post_one(0, OpFlags::empty())
    }
}

impl Turn {
    const fn next(&mut self) -> Self {
        self.0 = self.0.wrapping_add(1);
        *self
    }
}

/// The client's phase; returns the messages.
pub(super) fn ping(
    session: &mut Session<'_>,
    phase: &mut Phase<'_, '_, '_>,
    turn: &mut Turn,
) -> Result<u64, Failure> {
    let is_whole = matches!(session.parameters.kind, Kind::ReadLat | Kind::AtomicLat);
    let mut messages = 0;
    let mut before = Instant::now();
    while !phase.budget.is_over() {
        let turn = turn.next();
        let receives = session.received + 1;
        session.serve_turn(phase, turn)?;
        let awaited = match session.parameters.kind {
            Kind::WriteLat => Awaited::Byte(turn.0),
            Kind::SendLat => Awaited::Receives(receives),
            _ => Awaited::Requests(session.posted),
        };
        if !session.await_turn(phase, awaited)? {
            return Err(Failure::work("the server has spoken in the middle of a phase"));
        }
        let now = Instant::now();
        let nanos = (now - before).as_nanos() as u64;
        phase.histogram.record(if is_whole { nanos } else { nanos / 2 });
        before = now;
        messages += 1;
        // The clock may have ended it while the answer was waited for.
        phase.budget.left = phase.budget.left.saturating_sub(1);
        phase.budget.look(now);
    }
    session.dialogue.say(&Message::End { messages, receives: 0, slots: 0 })?;
    match session.await_message()? {
        Message::Ended => Ok(messages),
        message => Err(message.out_of_turn("Ended")),
    }
}

/// The server's phase, until the client ends it; returns the client's messages.
pub(super) fn pong(
    session: &mut Session<'_>,
    phase: &mut Phase<'_, '_, '_>,
    turn: &mut Turn,
) -> Result<u64, Failure> {
    let mut receives = session.received;
    loop {
        let mut expected = *turn;
        expected.next();
        let awaited = match session.parameters.kind {
            Kind::WriteLat => Awaited::Byte(expected.0),
            Kind::SendLat => Awaited::Receives(receives + 1),
            // Reads and atomics are none of the server's business.
            _ => Awaited::Requests(u64::MAX),
        };
        if !session.await_turn(phase, awaited)? {
            return match session.dialogue.next() {
                Some(Message::End { messages, .. }) => {
                    session.added += messages;
                    session.dialogue.say(&Message::Ended)?;
                    Ok(messages)
                }
                Some(message) => Err(message.out_of_turn("End")),
                None => Err(Failure::work("no message where one had come")),
            };
        }
        *turn = expected;
        receives += 1;
        session.serve_turn(phase, expected)?;
    }
}
