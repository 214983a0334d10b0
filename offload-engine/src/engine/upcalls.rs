//! Upcalls to a connection's client: received data, completions and events.

use bytes::Bytes;

use super::{NodeClient, connections::Offloaded};
use crate::{
    chimney::client::{ConnectionEvent, ConnectionIo, OffloadHandle},
    nbl::{NblChain, ReceiveChain},
    state::ConnectionState,
    tcp::{self, Consumer, Event, Segment},
    time::Instant,
};

/// Processes a segment in TCP and delivers its data to the client.
pub(super) fn receive(
    now: Instant,
    offloaded: &mut Offloaded,
    segment: &Segment<'_>,
    buffer: Option<&Bytes>,
    client: &mut dyn NodeClient,
) {
    let received = offloaded.tcp.handle_segment(now, segment);
    let data = &segment.payload[received.in_order];
    let mut upcalls = Upcalls { buffer, ..Upcalls::new(now, offloaded, client) };
    offloaded.tcp.deliver(now, data, received.push, &mut upcalls);
}

/// Places and indicates buffered data until all is consumed or some is refused (CH §7.4).
pub(super) fn deliver_backlog(
    now: Instant,
    offloaded: &mut Offloaded,
    client: &mut dyn NodeClient,
) {
    let mut upcalls = Upcalls::new(now, offloaded, client);
    offloaded.tcp.deliver_backlog(now, &mut upcalls);
}

/// Consumer that delivers a connection's data to its client.
struct Upcalls<'c> {
    handle: OffloadHandle,
    now: Instant,
    gso_payload_max: usize,
    is_lent: bool,
    /// Buffer of a lent frame.
    buffer: Option<&'c Bytes>,
    client: &'c mut dyn NodeClient,
}

impl<'c> Upcalls<'c> {
    fn new(now: Instant, offloaded: &mut Offloaded, client: &'c mut dyn NodeClient) -> Self {
        let gso_payload_max = offloaded.gso_payload_max();
        let (handle, is_lent) = (offloaded.handle, offloaded.loans.may_be_lent());
        Self { handle, now, gso_payload_max, is_lent, buffer: None, client }
    }

    fn io<'a>(&self, connection: &'a mut tcp::Connection) -> ConnectionIo<'a>
    where
        'c: 'a,
    {
        let &Self { handle, now, gso_payload_max, is_lent, buffer, client: _ } = self;
        ConnectionIo { handle, now, connection, gso_payload_max, is_lent, buffer }
    }
}

impl Consumer for Upcalls<'_> {
    fn receive_complete(&mut self, connection: &mut tcp::Connection, chain: ReceiveChain) {
        let io = &mut self.io(connection);
        self.client.receive_complete(io, chain);
    }

    fn indicate(&mut self, connection: &mut tcp::Connection, data: &[u8], push: bool) -> usize {
        let io = &mut self.io(connection);
        self.client.receive(io, data, push)
    }
}

/// Outcome of [`raise_events`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EventOutcome {
    /// No event.
    None,
    /// At least one event.
    Raised,
    /// The connection was closed.
    Closed,
}

/// Raises pending events to the client. Common case: none.
#[inline]
pub(super) fn raise_events(
    now: Instant,
    offloaded: &mut Offloaded,
    client: &mut dyn NodeClient,
) -> EventOutcome {
    match offloaded.poll_event() {
        None => EventOutcome::None,
        Some(event) => raise(now, offloaded, event, client),
    }
}

/// Raises `first` and all further pending events.
fn raise(
    now: Instant,
    offloaded: &mut Offloaded,
    first: Event,
    client: &mut dyn NodeClient,
) -> EventOutcome {
    let mut next = Some(first);
    while let Some(event) = next {
        if let Event::Retrieve(reason) = event {
            offloaded.retrieves.push(reason);
        }
        let io = &mut offloaded.io(now);
        match event {
            Event::ReceiveComplete(chain) => client.receive_complete(io, chain),
            Event::SendComplete(chain) => {
                if let Some(chain) = without_disconnect_data(chain) {
                    client.send_complete(io, chain);
                }
            }
            Event::DisconnectComplete(nbl) => client.disconnect_complete(io, nbl),
            Event::SendBacklogChange(size) => {
                client.event(io, ConnectionEvent::SendBacklogChange(size));
            }
            Event::PeerClosed => client.event(io, ConnectionEvent::Disconnect),
            Event::Reset => client.event(io, ConnectionEvent::Abort),
            Event::Retrieve(reason) => client.event(io, ConnectionEvent::Retrieve(reason)),
            Event::Closed => {
                client.event(io, ConnectionEvent::Released);
                return EventOutcome::Closed;
            }
        }
        next = offloaded.poll_event();
    }
    EventOutcome::Raised
}

/// Removes the data of a disconnect that completed before (see [`ConnectionState::DISCONNECT_DATA`]).
fn without_disconnect_data(mut chain: NblChain) -> Option<NblChain> {
    if chain.back().is_some_and(|list| list.context == ConnectionState::DISCONNECT_DATA) {
        chain.pop_back();
        return (!chain.is_empty()).then_some(chain);
    }
    Some(chain)
}
