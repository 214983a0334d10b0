//! Connections of an adapter to itself: both ends are local, and no segment is sent.
//!
//! The host stack has no route to its own addresses, so it returns such a connect, and this module looks up the
//! adapter's listener. The data of one end is queued as a copy, delivered to the other end in the next passes, and then
//! counts as acknowledged.

use alloc::{collections::VecDeque, vec::Vec};

use hashbrown::HashMap;
use offload_engine::{memory::to_vec, nbl::NetBuffer, time::Instant};

use super::buffers::{Buffers, Spare};
use crate::rnic::{
    Rnic, StreamId,
    transport::{LlpStream, StreamEvent},
};

/// Bytes that an end may have in flight.
const WINDOW_BYTES: usize = 256 * 1024;

/// Bytes of the largest "segment".
const SEGMENT_BYTES: usize = 16 * 1024;

/// Lists delivered in one call, over all connections.
const LISTS_MAX: usize = 64;

/// Queued item of an end.
#[derive(Debug)]
enum Item {
    /// Serial and bytes of a list.
    List(u64, Vec<u8>),
    Fin,
}

/// One end of a connection.
#[derive(Debug)]
struct End {
    peer: StreamId,
    sent: VecDeque<Item>,
    /// Bytes sent but not delivered.
    outstanding: usize,
    is_reset: bool,
    /// True if its FIN is delivered.
    has_ended: bool,
    /// True if it is in the list of ends with items to deliver.
    is_listed: bool,
}

/// Connections of an adapter to itself.
#[derive(Default, Debug)]
pub(super) struct LoopbackConnections {
    ends: HashMap<StreamId, End>,
    /// Ends with queued items.
    busy: VecDeque<StreamId>,
}

/// I/O of one end.
pub(super) struct LoopIo<'a> {
    now: Instant,
    end: &'a mut End,
    spare: &'a mut Spare,
}

impl LlpStream for LoopIo<'_> {
    type List = Buffers;

    const CAN_REFUSE_DATA: bool = false;
    const READS_PAYLOAD_ONCE: bool = false;

    fn resume_receive(&mut self) {}

    fn now(&self) -> Instant {
        self.now
    }

    fn list(&mut self) -> Buffers {
        self.spare.take()
    }

    fn keep(&mut self, list: Buffers) {
        self.spare.keep(list.0);
    }

    fn send(&mut self, serial: u64, list: Buffers) {
        let bytes = to_vec(list.0.iter().flat_map(NetBuffer::pieces));
        self.spare.keep(list.0);
        self.end.outstanding += bytes.len();
        self.end.sent.push_back(Item::List(serial, bytes));
    }

    fn shutdown(&mut self) {
        self.end.sent.push_back(Item::Fin);
    }

    fn reset(&mut self) {
        self.end.is_reset = true;
    }

    fn send_room(&self) -> usize {
        WINDOW_BYTES.saturating_sub(self.end.outstanding)
    }

    fn send_outstanding(&self) -> usize {
        self.end.outstanding
    }

    fn path_octets(&self) -> usize {
        // The window is the limit.
        usize::MAX
    }

    fn detach_tail(&mut self, _octets_max: usize) -> bool {
        // All data is copied, and delivered soon.
        false
    }

    fn detach_withdrawn(&mut self) {
        // All data is copied.
    }

    fn effective_mss(&self) -> usize {
        SEGMENT_BYTES
    }

    fn gso_payload_max(&self) -> usize {
        SEGMENT_BYTES
    }
}

impl LoopbackConnections {
    pub(super) fn contains(&self, id: StreamId) -> bool {
        self.ends.contains_key(&id)
    }

    pub(super) fn has_work(&self) -> bool {
        !self.busy.is_empty()
    }

    /// Removes all connections: the adapter has ended their streams.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Connects two streams.
    pub(super) fn join(&mut self, one: StreamId, other: StreamId) {
        for (id, peer) in [(one, other), (other, one)] {
            let end = End {
                peer,
                sent: VecDeque::new(),
                outstanding: 0,
                is_reset: false,
                has_ended: false,
                is_listed: false,
            };
            self.ends.insert(id, end);
        }
    }

    /// Resets a connection for its own end.
    pub(super) fn abort(&mut self, now: Instant, id: StreamId, rnic: &mut Rnic, spare: &mut Spare) {
        self.call(now, id, rnic, spare, |_, io| io.reset());
    }

    /// Calls the adapter for an end, and processes the resulting I/O.
    pub(super) fn call(
        &mut self,
        now: Instant,
        id: StreamId,
        rnic: &mut Rnic,
        spare: &mut Spare,
        call: impl FnOnce(&mut Rnic, &mut LoopIo<'_>),
    ) {
        let Some(end) = self.ends.get_mut(&id) else { return };
        call(rnic, &mut LoopIo { now, end, spare });
        let has_work = end.is_reset || !end.sent.is_empty();
        if has_work && !core::mem::replace(&mut end.is_listed, true) {
            self.busy.push_back(id);
        }
    }

    /// Delivers queued items. Returns true if there were any.
    pub(super) fn run(&mut self, now: Instant, rnic: &mut Rnic, spare: &mut Spare) -> bool {
        let mut worked = false;
        for _ in 0..LISTS_MAX {
            let Some(id) = self.busy.pop_front() else { break };
            worked = true;
            let Some(end) = self.ends.get_mut(&id) else { continue };
            end.is_listed = false;
            if end.is_reset {
                self.reset(now, id, rnic, spare);
                continue;
            }
            let Some(item) = end.sent.pop_front() else { continue };
            let peer = end.peer;
            if !end.sent.is_empty() {
                end.is_listed = true;
                self.busy.push_back(id);
            }
            match item {
                Item::List(serial, bytes) => {
                    end.outstanding -= bytes.len();
                    self.call(now, peer, rnic, spare, |rnic, io| {
                        rnic.handle_received(peer, io, &bytes);
                    });
                    self.call(now, id, rnic, spare, |rnic, io| {
                        rnic.handle_sent(id, io, Some(serial));
                    });
                }
                Item::Fin => {
                    end.has_ended = true;
                    self.event(now, peer, rnic, spare, StreamEvent::PeerClosed);
                    self.event(now, id, rnic, spare, StreamEvent::ShutDown);
                    let has_ended = |id| self.ends.get(id).is_some_and(|end| end.has_ended);
                    let is_over = [id, peer].iter().all(has_ended);
                    if is_over {
                        for id in [id, peer] {
                            self.event(now, id, rnic, spare, StreamEvent::Released);
                            self.ends.remove(&id);
                        }
                    }
                }
            }
        }
        worked
    }

    fn event(
        &mut self,
        now: Instant,
        id: StreamId,
        rnic: &mut Rnic,
        spare: &mut Spare,
        event: StreamEvent,
    ) {
        self.call(now, id, rnic, spare, |rnic, io| rnic.handle_event(id, io, event));
    }

    /// Removes both ends.
    fn reset(&mut self, now: Instant, id: StreamId, rnic: &mut Rnic, spare: &mut Spare) {
        let Some(peer) = self.ends.get(&id).map(|end| end.peer) else { return };
        for (id, event) in [(id, StreamEvent::ShutDown), (peer, StreamEvent::Reset)] {
            self.event(now, id, rnic, spare, event);
            self.event(now, id, rnic, spare, StreamEvent::Released);
            self.ends.remove(&id);
        }
    }
}
