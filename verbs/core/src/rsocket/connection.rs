//! A connection: both halves of its stream on their endpoint, mapped buffers, and how it ends.
//!
//! Each direction ends by itself. A peer that has shut down has told so, behind its data; one that goes without telling
//! (a process that is killed, a host that is gone, a Terminate) has reset the connection, whatever TCP says: bytes that
//! it had taken from its program may be missing.

use std::collections::VecDeque;

use super::{
    receiver::Receiver,
    resources::{CONTROL_REQUESTS, Done, Endpoint, Owned},
    sender::{REQUESTS_OF_DATA, Sender},
    wire::{ConnectionData, Entry, IomapEntry, MESSAGE_BYTES, Message, Violation},
};
use crate::{errno::Errno, mr::Region};

/// Requests that stay free for Shutdown and Disconnect.
const REQUESTS_OF_THE_END: u32 = 2;

/// A buffer of the program that the peer may write.
#[derive(Debug)]
struct Mapping {
    /// The entry of the peer's iomap; without one it was not told.
    index: Option<u16>,
    /// The program's name of it: address and length.
    name: (usize, usize),
    region: Owned<Region>,
}

/// What can be done without waiting, and what has happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Readiness {
    /// A receive, or an accept, returns.
    pub is_readable: bool,
    /// A send returns.
    pub is_writable: bool,
    /// There is an error.
    pub has_error: bool,
    /// The peer sends no more.
    pub is_finished: bool,
    /// Neither side sends any more.
    pub is_over: bool,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) endpoint: Endpoint,
    remote: ConnectionData,
    sender: Sender,
    receiver: Receiver,
    /// Requests can be sent: of an accepted connection, once the peer has begun.
    pub(super) is_established: bool,
    /// The peer sends no more.
    is_finished: bool,
    /// This side wants no more.
    is_read_shut: bool,
    /// This side sends no more.
    is_write_shut: bool,
    /// Either side has told that the connection is over.
    is_disconnected: bool,
    /// Nothing can be sent any more.
    is_broken: bool,
    /// Told once.
    error: Option<Errno>,
    /// Requests about the connection that are in flight.
    control: u32,
    /// The entry of the peer's list of grants that is written next.
    slot: u32,
    /// What the peer has mapped.
    iomap: Vec<IomapEntry>,
    /// What this side has mapped, and what of it the peer is to be told.
    mappings: Vec<Mapping>,
    untold: VecDeque<(u16, IomapEntry)>,
}

impl Connection {
    pub(super) fn new(endpoint: Endpoint, remote: ConnectionData, is_established: bool) -> Self {
        let sizes = endpoint.sizes;
        let requests = sizes.send_queue.into();
        Self {
            remote,
            sender: Sender::new(sizes.send_buffer, requests, remote.credits, remote.data),
            receiver: Receiver::new(sizes.half, sizes.credits),
            is_established,
            is_finished: false,
            is_read_shut: false,
            is_write_shut: false,
            is_disconnected: false,
            is_broken: false,
            error: None,
            control: 0,
            slot: 1 % remote.grants.length,
            iomap: vec![IomapEntry::default(); sizes.iomap_entries.into()],
            mappings: Vec::new(),
            untold: VecDeque::new(),
            endpoint,
        }
    }

    /// Nothing comes any more.
    pub(super) fn lost(&mut self) {
        self.advance();
        self.end(Errno::CONNRESET);
    }

    fn end(&mut self, error: Errno) {
        if !self.is_broken && !self.is_disconnected {
            self.error = Some(error);
        }
        self.is_broken = true;
    }

    /// The adapter takes no request: the connection has ended, and the completions will say so.
    fn check(&mut self, posted: Result<(), Errno>) {
        if let Err(error) = posted {
            tracing::debug!(?error, "an rsocket's request is refused");
            self.end(Errno::CONNRESET);
        }
    }

    /// Takes in what has completed, and does what follows.
    pub(super) fn advance(&mut self) {
        let mut received = Vec::new();
        let (sender, control, mut is_broken) = (&mut self.sender, &mut self.control, false);
        self.endpoint.completions(|done, has_succeeded, bytes| {
            is_broken |= !has_succeeded;
            match done {
                Done::Received(at) if has_succeeded => received.push((at, bytes)),
                Done::Received(_) => {}
                Done::Data(bytes) => sender.completed(REQUESTS_OF_DATA, bytes),
                Done::Direct(bytes) => sender.completed(1, bytes),
                Done::Mapped => sender.completed(REQUESTS_OF_DATA, 0),
                Done::Control(requests) => *control = control.saturating_sub(requests),
            }
        });
        let handled = received.iter().try_for_each(|(at, bytes)| self.handle(*at, *bytes));
        if let Err(violation) = handled {
            tracing::error!(?violation, "the peer of an rsocket violates the protocol");
            self.end(Errno::PROTO);
            self.endpoint.fail();
        }
        if is_broken {
            self.end(Errno::CONNRESET);
        }
        if self.is_broken {
            return;
        }
        let places: Vec<_> = received.into_iter().map(|(at, _)| at).collect();
        let posted = self.endpoint.post_receives(&places);
        self.check(posted);
        self.tell_mappings();
        self.tell_credits();
    }

    fn handle(&mut self, at: u32, bytes: u32) -> Result<(), Violation> {
        if bytes as usize != MESSAGE_BYTES {
            return Err(Violation::Message);
        }
        match self.endpoint.message(at, self.remote.order)? {
            Message::Data(_) | Message::Shutdown if self.is_finished => Err(Violation::Message),
            Message::Data(bytes) => {
                self.receiver.placed(bytes)?;
                if self.is_read_shut {
                    self.receiver.consume(self.receiver.unread());
                }
                Ok(())
            }
            Message::Credits(limit) => {
                self.sender.set_limit(limit);
                let grant = self.endpoint.take_grant(self.sender.next_slot());
                if grant.length > 0 { self.sender.grant(grant) } else { Ok(()) }
            }
            Message::Iomap(index) => {
                self.receiver.noted()?;
                let place = self.iomap.get_mut(usize::from(index)).ok_or(Violation::IomapIndex)?;
                *place = self.endpoint.iomap_entry(index);
                Ok(())
            }
            Message::Disconnect => {
                self.is_finished = true;
                self.is_disconnected = true;
                Ok(())
            }
            Message::Shutdown => {
                self.is_finished = true;
                self.is_disconnected |= self.is_write_shut;
                Ok(())
            }
            Message::KeepAlive => Ok(()),
        }
    }

    const fn has_control(&self, requests: u32) -> bool {
        self.control + requests + REQUESTS_OF_THE_END <= CONTROL_REQUESTS
    }

    const fn is_live(&self) -> bool {
        self.is_established && !self.is_broken && !self.is_disconnected
    }

    fn tell_credits(&mut self) {
        while self.is_live()
            && !self.is_finished
            && self.has_control(2)
            && self.receiver.is_update_due()
        {
            let update = self.receiver.update();
            let order = self.remote.order;
            let message = Message::Credits(update.limit).to_octets(order);
            let posted = match update.grant {
                Some(at) => {
                    let entry = self.endpoint.half_at(at).to_octets(order);
                    let to = (self.remote.grant_address(self.slot), self.remote.grants.key);
                    self.slot = (self.slot + 1) % self.remote.grants.length;
                    self.control += 2;
                    self.endpoint.notify(Done::Control(2), to, &entry, message)
                }
                None => {
                    self.control += 1;
                    self.endpoint.tell(message)
                }
            };
            self.check(posted);
        }
    }

    fn tell_mappings(&mut self) {
        while self.is_live() && !self.is_write_shut && self.sender.can_notify() {
            let Some((index, entry)) = self.untold.pop_front() else { return };
            self.sender.notify();
            let order = self.remote.order;
            let to = (self.remote.iomap_address(index), self.remote.grants.key);
            let message = Message::Iomap(index).to_octets(order);
            let posted = self.endpoint.notify(Done::Mapped, to, &entry.to_octets(order), message);
            self.check(posted);
        }
    }

    /// The error that was not told yet.
    pub(super) const fn take_error(&mut self) -> Option<Errno> {
        self.error.take()
    }

    /// Receives into `pieces`; of a peek the bytes stay. `None`: there are none yet.
    pub(super) fn receive(
        &mut self,
        pieces: &mut [&mut [u8]],
        already: usize,
        is_peek: bool,
    ) -> Option<Result<usize, Errno>> {
        let (mut skip, mut total) = (already, 0);
        for piece in pieces {
            let before = skip.min(piece.len());
            skip -= before;
            let mut left = &mut piece[before..];
            while !left.is_empty() && !self.is_read_shut {
                let peeked = if is_peek { total } else { 0 };
                let (at, count) = self.receiver.next(peeked, left.len());
                if count == 0 {
                    break;
                }
                let (front, back) = left.split_at_mut(count);
                self.endpoint.read(at, front);
                left = back;
                total += count;
                if !is_peek {
                    self.receiver.consume(count);
                }
            }
        }
        if total > 0 {
            self.tell_credits();
            return Some(Ok(total));
        }
        if self.is_finished || self.is_read_shut {
            return Some(Ok(0));
        }
        if let Some(error) = self.take_error() {
            return Some(Err(error));
        }
        self.is_broken.then_some(Ok(0))
    }

    /// Bytes that can be received now.
    pub(super) fn unread(&self) -> usize {
        self.receiver.unread()
    }

    /// Whether no more can be received than what is there.
    pub(super) const fn is_read_over(&self) -> bool {
        self.is_finished || self.is_read_shut || self.is_broken
    }

    /// Why nothing can be sent any more.
    fn refusal(&mut self) -> Option<Errno> {
        if let Some(error) = self.take_error() {
            return Some(error);
        }
        if self.is_write_shut {
            return Some(Errno::PIPE);
        }
        (self.is_broken || self.is_disconnected).then_some(Errno::CONNRESET)
    }

    /// Sends what it can of `pieces`, without the bytes that were sent already. `None`: nothing now.
    pub(super) fn send(
        &mut self,
        pieces: &[&[u8]],
        already: usize,
    ) -> Option<Result<usize, Errno>> {
        if let Some(error) = self.refusal() {
            return Some(Err(error));
        }
        let mut sent = 0;
        // Mappings are told before data that were sent behind them.
        while self.is_live() && self.untold.is_empty() {
            let Some(data) = rest(pieces, already + sent) else { return Some(Ok(sent)) };
            let Some(plan) = self.sender.plan(data.len()) else { break };
            let bytes = plan.length();
            let message = Message::Data(bytes).to_octets(self.remote.order);
            let posted = self.endpoint.send(&plan, &data[..bytes as usize], Some(message));
            self.check(posted);
            sent += bytes as usize;
        }
        (sent > 0).then_some(Ok(sent))
    }

    /// Writes `data` to what the peer has mapped as `offset`. `None`: nothing now.
    pub(super) fn write_mapped(
        &mut self,
        data: &[u8],
        offset: u64,
    ) -> Option<Result<usize, Errno>> {
        if let Some(error) = self.refusal() {
            return Some(Err(error));
        }
        let mut sent = 0;
        while self.is_live() && self.untold.is_empty() && sent < data.len() {
            let target = offset.checked_add(sent as u64);
            let target = target.and_then(|at| self.iomap.iter().find_map(|entry| entry.at(at)));
            let Some(target) = target else {
                return Some(if sent > 0 { Ok(sent) } else { Err(Errno::INVAL) });
            };
            let left = &data[sent..];
            let Some(plan) = self.sender.plan_direct(left.len(), target) else { break };
            let bytes = plan.length() as usize;
            let posted = self.endpoint.send(&plan, &left[..bytes], None);
            self.check(posted);
            sent += bytes;
        }
        (sent > 0 || data.is_empty()).then_some(Ok(sent))
    }

    /// Ends directions, and tells the peer.
    pub(super) fn shut_down(&mut self, read: bool, write: bool) {
        if read && !self.is_read_shut {
            self.is_read_shut = true;
            self.receiver.consume(self.receiver.unread());
        }
        if write && !self.is_write_shut {
            self.is_write_shut = true;
            let is_all = self.is_finished || self.is_read_shut;
            let message = if is_all { Message::Disconnect } else { Message::Shutdown };
            self.tell_end(message);
        } else if read && self.is_write_shut {
            self.tell_end(Message::Disconnect);
        }
    }

    fn tell_end(&mut self, message: Message) {
        if !self.is_live() {
            return;
        }
        self.is_disconnected = message == Message::Disconnect;
        self.control += 1;
        let posted = self.endpoint.tell(message.to_octets(self.remote.order));
        self.check(posted);
    }

    /// Whether nothing comes any more.
    pub(super) const fn is_lost(&self) -> bool {
        self.is_broken
    }

    /// Whether all that was sent has left.
    pub(super) const fn is_drained(&self) -> bool {
        self.is_broken || self.sender.is_idle() && self.control == 0
    }

    /// Sees whether the peer is still there.
    pub(super) fn probe(&mut self) {
        if self.is_live() && self.has_control(1) {
            self.control += 1;
            let posted = self.endpoint.probe();
            self.check(posted);
        }
    }

    pub(super) fn readiness(&self) -> Readiness {
        let is_ended = self.is_broken || self.error.is_some();
        let can_send = self.is_live() && self.untold.is_empty() && self.sender.can_send();
        let is_finished = self.is_finished || self.is_read_shut;
        Readiness {
            is_readable: self.unread() > 0 || is_finished || is_ended,
            is_writable: can_send || self.is_write_shut || self.is_disconnected || is_ended,
            has_error: self.error.is_some(),
            is_finished: is_finished || self.is_broken,
            is_over: self.unread() == 0
                && (self.is_broken || self.is_disconnected || is_finished && self.is_write_shut),
        }
    }

    /// Maps a buffer for the peer, as `offset`; without `is_told` it only is registered.
    ///
    /// # Errors
    /// `ENOMEM`: the peer's iomap is full.
    pub(super) fn map(
        &mut self,
        region: Owned<Region>,
        name: (usize, usize),
        offset: u64,
        is_told: bool,
    ) -> Result<(), Errno> {
        let index = if is_told {
            let used: Vec<_> = self.mappings.iter().filter_map(|it| it.index).collect();
            let free = (0..self.remote.iomap_entries).find(|index| !used.contains(index));
            let index = free.ok_or(Errno::NOMEM)?;
            let (address, length) = name;
            let length = u32::try_from(length).map_err(|_| Errno::INVAL)?;
            let memory = Entry { address: address as u64, key: region.key(), length };
            self.untold.push_back((index, IomapEntry { offset, memory }));
            Some(index)
        } else {
            None
        };
        self.mappings.push(Mapping { index, name, region });
        self.tell_mappings();
        Ok(())
    }

    /// Takes a buffer back. It is the program's again when what is returned was dropped.
    ///
    /// # Errors
    /// `EINVAL`: there is none.
    pub(super) fn unmap(&mut self, name: (usize, usize)) -> Result<Owned<Region>, Errno> {
        let at = self.mappings.iter().position(|it| it.name == name).ok_or(Errno::INVAL)?;
        let Mapping { index, name: _, region } = self.mappings.swap_remove(at);
        if let Some(index) = index {
            self.untold.retain(|(it, _)| *it != index);
            self.untold.push_back((index, IomapEntry::default()));
            self.tell_mappings();
        }
        Ok(region)
    }
}

/// The first piece with something in it behind `skip` bytes.
fn rest<'a>(pieces: &[&'a [u8]], skip: usize) -> Option<&'a [u8]> {
    let mut skip = skip;
    for piece in pieces {
        if skip < piece.len() {
            return Some(&piece[skip..]);
        }
        skip -= piece.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_sent_in_order() {
        let pieces: [&[u8]; 4] = [b"ab", b"", b"c", b"def"];
        for (skip, expected) in
            [(0, Some("ab")), (1, Some("b")), (2, Some("c")), (3, Some("def")), (5, Some("f"))]
        {
            assert_eq!(rest(&pieces, skip), expected.map(str::as_bytes), "{skip}");
        }
        assert_eq!(rest(&pieces, 6), None);
        assert_eq!(rest(&[], 0), None);
    }
}
