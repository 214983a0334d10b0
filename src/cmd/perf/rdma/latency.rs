//! Phases with one outstanding message.
//!
//! *write-lat*, as in perftest's ib_write_lat: each end writes into the other's memory and polls the last byte of its
//! own, which the adapter stores last. Between two polls of the byte it polls the completion queue, so that the engine
//! runs with manual progress. *send-lat*: the same with Send and Receive. *read-lat*, *atomic-lat*: one request after
//! the other; the server is passive.

use std::time::Instant;

use super::session::Session;
use crate::{
    cmd::perf::{Waiting, kind::Kind, message::Message, phase::Phase},
    failure::Failure,
};
use rdma_over_tcp::ndk::OpFlags;

/// Sequence number of write-lat messages, carried in the polled byte.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct PingNumber(u8);

/// Awaited event.
#[derive(Clone, Copy)]
enum Awaited {
    /// The last byte of the sink has this value.
    Byte(u8),
    /// This number of receives completed.
    Receives(u64),
    /// This number of requests completed.
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

    /// Waits for the event. Returns false if a control message arrived instead.
    fn await_event(
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
            self.process_events(|region, _| match awaited {
                Awaited::Byte(value) => region.buffer.load_last(byte_at) == value,
                Awaited::Receives(_) | Awaited::Requests(_) => false,
            })?;
            if phase.is_clock_due() || blocks {
                self.dialogue.host.interrupted()?;
                phase.clock(Instant::now(), self.posted, || self.activity())?;
            }
        }
    }

    /// Posts one message when the queue has room.
    fn post_ping(
        &mut self,
        phase: &mut Phase<'_, '_, '_>,
        number: PingNumber,
    ) -> Result<(), Failure> {
        while self.lanes[0].room == 0 {
            self.await_event(phase, Awaited::Requests(self.completed + 1))?;
        }
        if self.parameters.kind == Kind::WriteLat {
            let at = self.region.layout.source_at + self.size_bytes - 1;
            self.region.buffer.write_at(at as usize, &[number.0]);
        }
        self.post_one(0, OpFlags::empty())
    }
}

impl PingNumber {
    const fn next(&mut self) -> Self {
        self.0 = self.0.wrapping_add(1);
        *self
    }
}

/// Runs the client's phase; returns the number of messages.
pub(super) fn ping(
    session: &mut Session<'_>,
    phase: &mut Phase<'_, '_, '_>,
    number: &mut PingNumber,
) -> Result<u64, Failure> {
    let is_whole = matches!(session.parameters.kind, Kind::ReadLat | Kind::AtomicLat);
    let mut messages = 0;
    let mut before = Instant::now();
    while !phase.budget.is_over() {
        let number = number.next();
        let receives = session.received + 1;
        session.post_ping(phase, number)?;
        let awaited = match session.parameters.kind {
            Kind::WriteLat => Awaited::Byte(number.0),
            Kind::SendLat => Awaited::Receives(receives),
            _ => Awaited::Requests(session.posted),
        };
        if !session.await_event(phase, awaited)? {
            return Err(Failure::work("peer: message within a phase"));
        }
        let now = Instant::now();
        let nanos = (now - before).as_nanos() as u64;
        phase.histogram.record(if is_whole { nanos } else { nanos / 2 });
        before = now;
        messages += 1;
        // The budget may have expired while waiting for the response.
        phase.budget.left = phase.budget.left.saturating_sub(1);
        phase.budget.update(now);
    }
    session.dialogue.send_message(&Message::End { messages, receives: 0, slots: 0 })?;
    match session.await_message()? {
        Message::Ended => Ok(messages),
        message => Err(message.out_of_turn("Ended")),
    }
}

/// Runs the server's phase until the client ends it; returns the client's messages.
pub(super) fn pong(
    session: &mut Session<'_>,
    phase: &mut Phase<'_, '_, '_>,
    number: &mut PingNumber,
) -> Result<u64, Failure> {
    let mut receives = session.received;
    loop {
        let mut expected = *number;
        expected.next();
        let awaited = match session.parameters.kind {
            Kind::WriteLat => Awaited::Byte(expected.0),
            Kind::SendLat => Awaited::Receives(receives + 1),
            // The server is passive in reads and atomics.
            _ => Awaited::Requests(u64::MAX),
        };
        if !session.await_event(phase, awaited)? {
            return match session.dialogue.next() {
                Some(Message::End { messages, .. }) => {
                    session.added += messages;
                    session.dialogue.send_message(&Message::Ended)?;
                    Ok(messages)
                }
                Some(message) => Err(message.out_of_turn("End")),
                None => Err(Failure::work("peer: completion without a message")),
            };
        }
        *number = expected;
        receives += 1;
        session.post_ping(phase, expected)?;
    }
}
