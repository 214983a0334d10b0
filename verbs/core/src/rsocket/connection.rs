//! Established connection: both halves of its stream, mapped buffers, end.
//!
//! Each direction ends separately. A peer that shuts down sends a message after its data. A peer that disappears
//! without one (killed process, lost host, Terminate) has reset the connection, even if TCP closes normally: data that
//! it accepted from its program may be missing.

use std::collections::VecDeque;

use super::{
    receiver::Receiver,
    resources::{CONTROL_REQUESTS, Owned, RequestId, Resources},
    sender::{REQUESTS_OF_DATA, Sender},
    wire::{ConnectionData, Entry, IomapEntry, MESSAGE_BYTES, Message, Violation},
};
use crate::{errno::Errno, mr::Mr};

/// Send queue entries reserved for Shutdown and Disconnect.
const SHUTDOWN_REQUESTS: u32 = 2;

/// Buffer of the program that the peer may write.
#[derive(Debug)]
struct MappedBuffer {
    /// Entry of the peer's iomap. `None`: not announced.
    index: Option<u16>,
    /// Program's name: address and length.
    name: (usize, usize),
    region: Owned<Mr>,
}

/// Readiness for calls, and conditions of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Readiness {
    /// True if a receive or an accept does not block.
    pub is_readable: bool,
    /// True if a send does not block.
    pub is_writable: bool,
    /// True if an error is pending.
    pub has_error: bool,
    /// True if the peer sends no more data.
    pub is_finished: bool,
    /// True if both directions are closed.
    pub is_over: bool,
}

/// Established connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) resources: Resources,
    remote: ConnectionData,
    sender: Sender,
    receiver: Receiver,
    /// True if requests can be sent. An accepted connection waits for the first message of the peer.
    pub(super) is_established: bool,
    /// True if the peer sends no more data.
    is_finished: bool,
    /// True if the receive direction is shut down.
    is_read_shut: bool,
    /// True if the send direction is shut down.
    is_write_shut: bool,
    /// True if either side has sent Disconnect.
    is_disconnected: bool,
    /// True if the connection has failed.
    is_broken: bool,
    /// Pending error, which is reported once.
    error: Option<Errno>,
    /// Control requests in flight.
    control: u32,
    /// Entry of the peer's list of grants that is written next.
    slot: u32,
    /// Buffers mapped by the peer.
    iomap: Vec<IomapEntry>,
    /// Mapped buffers, and changes that the peer does not have yet.
    mappings: Vec<MappedBuffer>,
    unannounced: VecDeque<(u16, IomapEntry)>,
}

impl Connection {
    pub(super) fn new(resources: Resources, remote: ConnectionData, is_established: bool) -> Self {
        let sizes = resources.sizes;
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
            unannounced: VecDeque::new(),
            resources,
        }
    }

    /// Handles the loss of the connection.
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

    /// Handles a rejected post: the connection is closed, and completions follow.
    fn check(&mut self, posted: Result<(), Errno>) {
        if let Err(error) = posted {
            tracing::debug!(qpn = self.resources.qp.number(), %error, "rsocket work request not posted");
            self.end(Errno::CONNRESET);
        }
    }

    /// Processes completions and their effects.
    pub(super) fn advance(&mut self) {
        let mut received = Vec::new();
        let (sender, control, mut is_broken) = (&mut self.sender, &mut self.control, false);
        self.resources.completions(|done, has_succeeded, bytes| {
            is_broken |= !has_succeeded;
            match done {
                RequestId::Received(at) if has_succeeded => received.push((at, bytes)),
                RequestId::Received(_) => {}
                RequestId::Data(bytes) => sender.completed(REQUESTS_OF_DATA, bytes),
                RequestId::Direct(bytes) => sender.completed(1, bytes),
                RequestId::Mapped => sender.completed(REQUESTS_OF_DATA, 0),
                RequestId::Control(requests) => *control = control.saturating_sub(requests),
            }
        });
        let handled = received.iter().try_for_each(|(at, bytes)| self.handle(*at, *bytes));
        if let Err(violation) = handled {
            tracing::error!(
                qpn = self.resources.qp.number(),
                %violation,
                "rsocket protocol violation by the peer"
            );
            self.end(Errno::PROTO);
            self.resources.fail();
        }
        if is_broken {
            self.end(Errno::CONNRESET);
        }
        if self.is_broken {
            return;
        }
        let places: Vec<_> = received.into_iter().map(|(at, _)| at).collect();
        let posted = self.resources.post_receives(&places);
        self.check(posted);
        self.announce_mappings();
        self.send_credits();
    }

    fn handle(&mut self, at: u32, bytes: u32) -> Result<(), Violation> {
        if bytes as usize != MESSAGE_BYTES {
            return Err(Violation::Message);
        }
        match self.resources.message(at, self.remote.order)? {
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
                let grant = self.resources.take_grant(self.sender.next_slot());
                if grant.length > 0 { self.sender.grant(grant) } else { Ok(()) }
            }
            Message::Iomap(index) => {
                self.receiver.noted()?;
                let place = self.iomap.get_mut(usize::from(index)).ok_or(Violation::IomapIndex)?;
                *place = self.resources.iomap_entry(index);
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
        self.control + requests + SHUTDOWN_REQUESTS <= CONTROL_REQUESTS
    }

    const fn is_live(&self) -> bool {
        self.is_established && !self.is_broken && !self.is_disconnected
    }

    fn send_credits(&mut self) {
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
                    let entry = self.resources.half_at(at).to_octets(order);
                    let to = (self.remote.grant_address(self.slot), self.remote.grants.key);
                    self.slot = (self.slot + 1) % self.remote.grants.length;
                    self.control += 2;
                    self.resources.notify(RequestId::Control(2), to, &entry, message)
                }
                None => {
                    self.control += 1;
                    self.resources.send_message(message)
                }
            };
            self.check(posted);
        }
    }

    fn announce_mappings(&mut self) {
        while self.is_live() && !self.is_write_shut && self.sender.can_notify() {
            let Some((index, entry)) = self.unannounced.pop_front() else { return };
            self.sender.notify();
            let order = self.remote.order;
            let to = (self.remote.iomap_address(index), self.remote.grants.key);
            let message = Message::Iomap(index).to_octets(order);
            let posted =
                self.resources.notify(RequestId::Mapped, to, &entry.to_octets(order), message);
            self.check(posted);
        }
    }

    /// Takes the pending error.
    pub(super) const fn take_error(&mut self) -> Option<Errno> {
        self.error.take()
    }

    /// Receives into `pieces`. A peek leaves the bytes in the ring. `None`: no bytes yet.
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
                self.resources.read(at, front);
                left = back;
                total += count;
                if !is_peek {
                    self.receiver.consume(count);
                }
            }
        }
        if total > 0 {
            self.send_credits();
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

    /// Returns the number of bytes that can be received.
    pub(super) fn unread(&self) -> usize {
        self.receiver.unread()
    }

    /// Returns true if no more bytes follow.
    pub(super) const fn is_read_over(&self) -> bool {
        self.is_finished || self.is_read_shut || self.is_broken
    }

    /// Returns the reason for which nothing can be sent.
    fn refusal(&mut self) -> Option<Errno> {
        if let Some(error) = self.take_error() {
            return Some(error);
        }
        if self.is_write_shut {
            return Some(Errno::PIPE);
        }
        (self.is_broken || self.is_disconnected).then_some(Errno::CONNRESET)
    }

    /// Sends a part of `pieces`, after the bytes that were sent already. `None`: nothing can be sent now.
    pub(super) fn send(
        &mut self,
        pieces: &[&[u8]],
        already: usize,
    ) -> Option<Result<usize, Errno>> {
        if let Some(error) = self.refusal() {
            return Some(Err(error));
        }
        let mut sent = 0;
        // The peer gets a mapping before data that was sent after it.
        while self.is_live() && self.unannounced.is_empty() {
            let Some(data) = rest(pieces, already + sent) else { return Some(Ok(sent)) };
            let Some(plan) = self.sender.plan(data.len()) else { break };
            let bytes = plan.length();
            let message = Message::Data(bytes).to_octets(self.remote.order);
            let posted = self.resources.send(&plan, &data[..bytes as usize], Some(message));
            self.check(posted);
            sent += bytes as usize;
        }
        (sent > 0).then_some(Ok(sent))
    }

    /// Writes `data` to the buffer mapped by the peer at `offset`. `None`: nothing can be sent now.
    pub(super) fn write_mapped(
        &mut self,
        data: &[u8],
        offset: u64,
    ) -> Option<Result<usize, Errno>> {
        if let Some(error) = self.refusal() {
            return Some(Err(error));
        }
        let mut sent = 0;
        while self.is_live() && self.unannounced.is_empty() && sent < data.len() {
            let target = offset.checked_add(sent as u64);
            let target = target.and_then(|at| self.iomap.iter().find_map(|entry| entry.at(at)));
            let Some(target) = target else {
                return Some(if sent > 0 { Ok(sent) } else { Err(Errno::INVAL) });
            };
            let left = &data[sent..];
            let Some(plan) = self.sender.plan_direct(left.len(), target) else { break };
            let bytes = plan.length() as usize;
            let posted = self.resources.send(&plan, &left[..bytes], None);
            self.check(posted);
            sent += bytes;
        }
        (sent > 0 || data.is_empty()).then_some(Ok(sent))
    }

    /// Shuts down directions, and notifies the peer.
    pub(super) fn shut_down(&mut self, read: bool, write: bool) {
        if read && !self.is_read_shut {
            self.is_read_shut = true;
            self.receiver.consume(self.receiver.unread());
        }
        if write && !self.is_write_shut {
            self.is_write_shut = true;
            let is_all = self.is_finished || self.is_read_shut;
            let message = if is_all { Message::Disconnect } else { Message::Shutdown };
            self.send_end(message);
        } else if read && self.is_write_shut {
            self.send_end(Message::Disconnect);
        }
    }

    fn send_end(&mut self, message: Message) {
        if !self.is_live() {
            return;
        }
        self.is_disconnected = message == Message::Disconnect;
        self.control += 1;
        let posted = self.resources.send_message(message.to_octets(self.remote.order));
        self.check(posted);
    }

    /// Returns true if the connection has failed.
    pub(super) const fn is_lost(&self) -> bool {
        self.is_broken
    }

    /// Returns true if no request is in flight.
    pub(super) const fn is_drained(&self) -> bool {
        self.is_broken || self.sender.is_idle() && self.control == 0
    }

    /// Sends a keep-alive.
    pub(super) fn probe(&mut self) {
        if self.is_live() && self.has_control(1) {
            self.control += 1;
            let posted = self.resources.probe();
            self.check(posted);
        }
    }

    pub(super) fn readiness(&self) -> Readiness {
        let is_ended = self.is_broken || self.error.is_some();
        let can_send = self.is_live() && self.unannounced.is_empty() && self.sender.can_send();
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

    /// Maps a buffer at `offset`. Without `is_announced`, it is only registered.
    ///
    /// # Errors
    /// `ENOMEM`: the peer's iomap is full.
    pub(super) fn map(
        &mut self,
        region: Owned<Mr>,
        name: (usize, usize),
        offset: u64,
        is_announced: bool,
    ) -> Result<(), Errno> {
        let index = if is_announced {
            let used: Vec<_> = self.mappings.iter().filter_map(|it| it.index).collect();
            let free = (0..self.remote.iomap_entries).find(|index| !used.contains(index));
            let index = free.ok_or(Errno::NOMEM)?;
            let (address, length) = name;
            let length = u32::try_from(length).map_err(|_| Errno::INVAL)?;
            let memory = Entry { address: address as u64, key: region.key(), length };
            self.unannounced.push_back((index, IomapEntry { offset, memory }));
            Some(index)
        } else {
            None
        };
        self.mappings.push(MappedBuffer { index, name, region });
        self.announce_mappings();
        Ok(())
    }

    /// Removes a mapping. The drop of the returned region ends the access to the buffer.
    ///
    /// # Errors
    /// `EINVAL`: no such mapping.
    pub(super) fn unmap(&mut self, name: (usize, usize)) -> Result<Owned<Mr>, Errno> {
        let at = self.mappings.iter().position(|it| it.name == name).ok_or(Errno::INVAL)?;
        let MappedBuffer { index, name: _, region } = self.mappings.swap_remove(at);
        if let Some(index) = index {
            self.unannounced.retain(|(it, _)| *it != index);
            self.unannounced.push_back((index, IomapEntry::default()));
            self.announce_mappings();
        }
        Ok(region)
    }
}

/// Returns the rest of the first piece that is not empty after `skip` bytes.
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
