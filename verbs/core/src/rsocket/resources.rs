//! Resources of a connection: a queue pair with its completion queue, and four registered buffers.
//!
//! | memory | the peer may write it | |
//! |---|---|---|
//! | send buffer | no | Writes are read from it until they complete |
//! | inbox | no | a message for each receive |
//! | ring | yes | the peer's data |
//! | lists | yes | what the peer grants and has mapped |

use std::{ops::Deref, sync::Arc};

use rdma_over_tcp::rnic::{
    Completion, Data, Operation, QpLimits, RegisteredBuffer, Remote, Sge, WcStatus, WrFlags,
};

use super::{
    sender::{GRANT_SLOTS, Plan},
    wire::{
        ByteOrder, ConnectionData, ENTRY_BYTES, Entry, IOMAP_ENTRY_BYTES, IomapEntry,
        MESSAGE_BYTES, Message, Violation,
    },
};
use crate::{
    attributes::{IbvQpState, QpKind},
    cq::Cq,
    device::Device,
    errno::Errno,
    event_queue::EventCallback,
    mr::{Mr, access, rights},
    pd::Pd,
    qp::{Qp, QpAttributes, QpOwner},
};

/// Send queue entries for control messages, in addition to those for data.
pub(super) const CONTROL_REQUESTS: u32 = 10;

/// Receives beyond the credits, for control messages. A peer without credits may still send credit updates: at most two
/// for messages received and four for bytes; then Shutdown and Disconnect.
const RECEIVES_OF_CONTROL: u32 = 16;

/// Completions per poll.
const BATCH: usize = 32;

/// Sizes of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sizes {
    /// Send buffer, in bytes.
    pub(super) send_buffer: u32,
    /// Half of the ring, in bytes.
    pub(super) half: u32,
    /// Send queue entries for data.
    pub(super) send_queue: u16,
    /// Messages that the peer may send.
    pub(super) credits: u16,
    /// Maximum number of bytes that are sent inline, without the send buffer.
    pub(super) inline: u32,
    /// Entries of the iomap.
    pub(super) iomap_entries: u16,
}

/// Work request, as identified by its completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestId {
    /// Receive of a message, by slot of the inbox.
    Received(u32),
    /// Data with a message, in bytes.
    Data(u32),
    /// Write to mapped memory, in bytes.
    Direct(u32),
    /// Announcement of a mapping.
    Mapped,
    /// Control message, in send queue entries.
    Control(u32),
}

impl RequestId {
    const fn to_number(self) -> u64 {
        let (kind, value) = match self {
            Self::Received(at) => (0, at),
            Self::Data(bytes) => (1, bytes),
            Self::Direct(bytes) => (2, bytes),
            Self::Mapped => (3, 0),
            Self::Control(requests) => (4, requests),
        };
        (kind as u64) << 32 | value as u64
    }

    const fn from_number(number: u64) -> Self {
        let value = number as u32;
        match number >> 32 {
            0 => Self::Received(value),
            1 => Self::Data(value),
            2 => Self::Direct(value),
            3 => Self::Mapped,
            _ => Self::Control(value),
        }
    }
}

/// Adapter object that is destroyed with its owner.
#[derive(Debug)]
pub(super) struct Owned<T> {
    object: Arc<T>,
    end: fn(&T) -> Result<(), Errno>,
}

impl<T> Owned<T> {
    pub(super) fn new(object: impl Into<Arc<T>>, end: fn(&T) -> Result<(), Errno>) -> Self {
        Self { object: object.into(), end }
    }
}

impl<T> Deref for Owned<T> {
    type Target = Arc<T>;

    fn deref(&self) -> &Arc<T> {
        &self.object
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // In the child of a fork, the object is the parent's, and the call fails.
        let _ = (self.end)(&self.object);
    }
}

/// Registered memory of the library.
#[derive(Debug)]
struct Memory {
    buffer: RegisteredBuffer,
    region: Owned<Mr>,
}

impl Memory {
    fn new(pd: &Arc<Pd>, bytes: usize, flags: u32) -> Result<Self, Errno> {
        let buffer = RegisteredBuffer::allocate(bytes).ok_or(Errno::NOMEM)?;
        let region = Mr::new(pd, &buffer, rights(flags)?)?;
        Ok(Self { buffer, region: Owned::new(region, Mr::destroy) })
    }

    fn entry(&self, at: u32, length: u32) -> Entry {
        let address = self.buffer.address().wrapping_add(at.into());
        Entry { address, key: self.region.key(), length }
    }

    fn sge(&self, at: u32, length: u32) -> Sge {
        let Entry { address, key, length } = self.entry(at, length);
        Sge { address, length, token: key }
    }
}

/// Adapter objects of a connection. Fields are dropped in this order.
#[derive(Debug)]
pub(super) struct Resources {
    pub(super) qp: Owned<Qp>,
    pub(super) sizes: Sizes,
    cq: Owned<Cq>,
    send: Memory,
    inbox: Memory,
    ring: Memory,
    lists: Memory,
    pub(super) pd: Owned<Pd>,
}

impl Resources {
    /// Creates all objects, and posts the receives. `callback` is called for each requested notification of a
    /// completion.
    ///
    /// # Errors
    /// `ENOMEM`, `EINVAL`: a limit of the adapter. As [`Device::check`].
    pub(super) fn new(
        device: &'static Device,
        sizes: Sizes,
        callback: EventCallback,
    ) -> Result<Self, Errno> {
        let Sizes { send_buffer, half, send_queue, credits, inline, iomap_entries } = sizes;
        let receives = u32::from(credits) + RECEIVES_OF_CONTROL;
        let requests = u32::from(send_queue) + CONTROL_REQUESTS;
        let local = access::LOCAL_WRITE;
        let remote = local | access::REMOTE_WRITE;
        let lists =
            GRANT_SLOTS as usize * ENTRY_BYTES + usize::from(iomap_entries) * IOMAP_ENTRY_BYTES;

        let pd = Owned::new(Pd::new(device)?, Pd::destroy);
        let lists = Memory::new(&pd, lists, remote)?;
        let ring = Memory::new(&pd, 2 * half as usize, remote)?;
        let inbox = Memory::new(&pd, receives as usize * MESSAGE_BYTES, local)?;
        let send = Memory::new(&pd, send_buffer as usize, local)?;
        let cq = Cq::with_callback(device, receives + requests, callback)?;
        let cq = Owned::new(cq, Cq::destroy);
        let limits = QpLimits {
            receive_queue_depth: receives,
            initiator_queue_depth: requests,
            max_receive_request_sge: 1,
            max_initiator_request_sge: 2,
            inline_data_size: inline,
        };
        let attributes = QpAttributes {
            send_cq: cq.clone(),
            receive_cq: cq.clone(),
            srq: None,
            limits,
            owner: QpOwner::Library,
            kind: QpKind::Rc,
        };
        let qp = Qp::new(&pd, attributes, Box::new(|_, _| {}))?;
        let qp = Owned::new(qp, Qp::destroy);
        let resources = Self { qp, sizes, cq, send, inbox, ring, lists, pd };
        let all: Vec<_> = (0..receives).collect();
        resources.post_receives(&all)?;
        Ok(resources)
    }

    /// Returns the private data for the peer.
    pub(super) fn connection_data(&self) -> ConnectionData {
        ConnectionData {
            order: ByteOrder::NATIVE,
            credits: self.sizes.credits,
            iomap_entries: self.sizes.iomap_entries,
            grants: self.lists.entry(0, GRANT_SLOTS),
            data: self.half_at(0),
        }
    }

    /// Returns the half of the ring that begins at `at`.
    pub(super) fn half_at(&self, at: u32) -> Entry {
        self.ring.entry(at, self.sizes.half)
    }

    /// Requests a notification for the next completion.
    pub(super) fn arm(&self) -> Result<(), Errno> {
        self.cq.request_notification(false)
    }

    /// Calls `take` for each completion, with true if the request has succeeded.
    pub(super) fn completions(&self, mut take: impl FnMut(RequestId, bool, u32)) {
        let mut batch = [None::<Completion>; BATCH];
        loop {
            let count = self.cq.take(&mut batch);
            for completion in batch[..count].iter().flatten() {
                let Completion { context, status, bytes, .. } = *completion;
                take(RequestId::from_number(context), status == WcStatus::Success, bytes);
            }
            if count < BATCH {
                return;
            }
        }
    }

    /// Returns the message in a slot of the inbox.
    pub(super) fn message(&self, at: u32, order: ByteOrder) -> Result<Message, Violation> {
        let mut octets = [0; MESSAGE_BYTES];
        self.inbox.buffer.read_at(at as usize * MESSAGE_BYTES, &mut octets);
        Message::parse(octets, order)
    }

    /// Posts receives for these slots of the inbox.
    pub(super) fn post_receives(&self, slots: &[u32]) -> Result<(), Errno> {
        if slots.is_empty() {
            return Ok(());
        }
        self.qp.post_receives(|poster| {
            slots.iter().try_for_each(|at| {
                let sge = self.inbox.sge(at * MESSAGE_BYTES as u32, MESSAGE_BYTES as u32);
                poster.post(RequestId::Received(*at).to_number(), &[sge])
            })
        })
    }

    /// Copies unread bytes from the ring.
    pub(super) fn read(&self, at: usize, into: &mut [u8]) {
        self.ring.buffer.read_at(at, into);
    }

    /// Takes the peer's entry from the list of grants, and clears it. No placement runs during the call.
    pub(super) fn take_grant(&self, slot: u32) -> Entry {
        let mut octets = [0; ENTRY_BYTES];
        let (list, at) = (&self.lists.buffer, slot as usize * ENTRY_BYTES);
        self.qp.device().with(|_, _| {
            list.read_at(at, &mut octets);
            list.write_at(at, &[0; ENTRY_BYTES]);
        });
        Entry::from_octets(&octets, ByteOrder::NATIVE)
    }

    /// Returns an entry of the iomap, as written by the peer.
    pub(super) fn iomap_entry(&self, index: u16) -> IomapEntry {
        let mut octets = [0; IOMAP_ENTRY_BYTES];
        let at = GRANT_SLOTS as usize * ENTRY_BYTES + usize::from(index) * IOMAP_ENTRY_BYTES;
        self.qp.device().with(|_, _| self.lists.buffer.read_at(at, &mut octets));
        IomapEntry::from_octets(&octets, ByteOrder::NATIVE)
    }

    /// Sends `data` as planned: with a message, or to mapped memory without one.
    pub(super) fn send(
        &self,
        plan: &Plan,
        data: &[u8],
        message: Option<[u8; MESSAGE_BYTES]>,
    ) -> Result<(), Errno> {
        let Plan { at, first, second, to } = *plan;
        let is_inline = to.length <= self.sizes.inline;
        let inline = [data];
        let sges = [self.send.sge(at, first), self.send.sge(0, second)];
        let data = if is_inline {
            Data::Inline(&inline)
        } else {
            let (front, back) = data.split_at(first as usize);
            self.send.buffer.write_at(at as usize, front);
            if second == 0 {
                Data::Registered(&sges[..1])
            } else {
                self.send.buffer.write_at(0, back);
                Data::Registered(&sges)
            }
        };
        let request = Operation::Write { to: Remote::new(to.address, to.key) };
        let Some(message) = message else {
            let done = RequestId::Direct(to.length).to_number();
            return self.qp.post_send(|poster| poster.post(done, request, data, WrFlags::NONE));
        };
        self.write_and_send(RequestId::Data(to.length), request, data, message)
    }

    fn write_and_send(
        &self,
        done: RequestId,
        write: Operation,
        data: Data<'_>,
        message: [u8; MESSAGE_BYTES],
    ) -> Result<(), Errno> {
        let done = done.to_number();
        let send = Operation::Send { invalidate: None };
        self.qp.post_send(|poster| {
            // The completion of the Send covers the Write.
            poster.post(done, write, data, WrFlags::SILENT)?;
            poster.post(done, send, Data::Inline(&[&message]), WrFlags::NONE)
        })
    }

    /// Writes an entry to the peer's memory, and sends a message.
    pub(super) fn notify(
        &self,
        done: RequestId,
        (address, key): (u64, u32),
        entry: &[u8],
        message: [u8; MESSAGE_BYTES],
    ) -> Result<(), Errno> {
        let write = Operation::Write { to: Remote::new(address, key) };
        self.write_and_send(done, write, Data::Inline(&[entry]), message)
    }

    /// Sends a message without data.
    pub(super) fn send_message(&self, message: [u8; MESSAGE_BYTES]) -> Result<(), Errno> {
        let done = RequestId::Control(1).to_number();
        let send = Operation::Send { invalidate: None };
        self.qp
            .post_send(|poster| poster.post(done, send, Data::Inline(&[&message]), WrFlags::NONE))
    }

    /// Posts an RDMA Write of zero bytes, which does not reach the application of the peer. TCP detects a lost peer.
    pub(super) fn probe(&self) -> Result<(), Errno> {
        let done = RequestId::Control(1).to_number();
        let write = Operation::Write { to: Remote::new(0, 0) };
        self.qp.post_send(|poster| poster.post(done, write, Data::Inline(&[]), WrFlags::NONE))
    }

    /// Aborts the connection.
    pub(super) fn fail(&self) {
        let _ = self.qp.modify(IbvQpState::Error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_id_round_trips_through_its_number() {
        let all = [
            RequestId::Received(u32::MAX),
            RequestId::Data(1),
            RequestId::Direct(65536),
            RequestId::Mapped,
            RequestId::Control(2),
        ];
        for done in all {
            assert_eq!(RequestId::from_number(done.to_number()), done);
        }
    }
}
