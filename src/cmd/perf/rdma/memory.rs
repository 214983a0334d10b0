//! Registered memory of one end: a small buffer for control messages, and one for data.
//!
//! ```text
//! grants, one cache line per connection | marker | source | sink
//! ```
//! Source and sink are divided into slots, each one message rounded up to a multiple of [`LINE_BYTES`]. Message i of
//! connection c uses slot (c + i) modulo the slot count. The slot count is the number of outstanding messages per
//! connection, at most the number that fits into [`CYCLE_BYTES`], at least one. All connections share the slots.
//!
//! The source holds a pattern that differs at each offset; bandwidth phases never change it. A message is transferred
//! from slot n to slot n, so the sink must hold the same pattern afterwards, which is verified.
//!
//! Atomics add to the first word of the sink; their results are placed in slots of the source.

use std::sync::atomic::Ordering;

use rdma_over_tcp::ndk::{Adapter, Mr, MrFlags, PAGE_SIZE, Pd, RegisteredBuffer, Sge};

use super::node::checked;
use crate::{
    cmd::perf::{
        DEPTH_MAX,
        message::{MESSAGE_BYTES_MAX, Memory, Parameters},
    },
    failure::Failure,
};

/// Receive slots for control messages.
pub(super) const MESSAGE_SLOTS: usize = 8;
/// Cache line, bytes.
const LINE_BYTES: u64 = 64;
/// Bytes over which small messages cycle; larger messages use one slot. perftest's cycling buffer is a page too.
const CYCLE_BYTES: u64 = 4096;
/// Bytes filled or compared per step.
const CHUNK_BYTES: usize = 4096;

/// Offsets in the buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    marker_at: u64,
    pub(super) source_at: u64,
    pub(super) sink_at: u64,
    part_bytes: u64,
    pub(super) length: u64,
}

impl Layout {
    /// Computes the layout for parameters within their limits.
    pub(super) fn new(parameters: &Parameters) -> Self {
        let page = PAGE_SIZE as u64;
        let marker_at = u64::from(parameters.connections) * LINE_BYTES;
        let source_at = (marker_at + LINE_BYTES).next_multiple_of(page);
        let part_bytes = parameters.size_max_bytes.next_multiple_of(LINE_BYTES).max(CYCLE_BYTES);
        let sink_at = (source_at + part_bytes).next_multiple_of(page);
        Self { marker_at, source_at, sink_at, part_bytes, length: sink_at + part_bytes }
    }

    /// Returns the offset of a connection's grant counter.
    pub(super) const fn grant_at(&self, connection: usize) -> u64 {
        connection as u64 * LINE_BYTES
    }

    /// Returns the slots for messages of this size.
    pub(super) fn slots(&self, size_bytes: u64, depth: u32) -> Slots {
        let stride = size_bytes.next_multiple_of(LINE_BYTES).max(LINE_BYTES);
        let fit = (CYCLE_BYTES / stride).max(1);
        Slots { stride, count: u64::from(depth.min(DEPTH_MAX)).min(fit) as usize }
    }
}

/// Slots of source and sink.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slots {
    pub(super) stride: u64,
    pub(super) count: usize,
}

impl Slots {
    /// Returns the slot after this one.
    pub(super) const fn after(&self, slot: usize) -> usize {
        if slot + 1 >= self.count { 0 } else { slot + 1 }
    }

    /// Returns the offset of a slot in its part.
    pub(super) const fn offset(&self, slot: usize) -> u64 {
        slot as u64 * self.stride
    }
}

/// Receive buffer of control messages.
#[derive(Debug)]
pub(super) struct Mailbox {
    buffer: RegisteredBuffer,
    pub(super) mr: Mr,
    token: u32,
}

impl Mailbox {
    /// Allocates [`MESSAGE_SLOTS`] slots.
    pub(super) fn new(adapter: &Adapter, pd: &Pd) -> Result<Self, Failure> {
        let length = MESSAGE_SLOTS * MESSAGE_BYTES_MAX;
        let buffer = checked("allocate", adapter.allocate(length))?;
        let mr = registered(&buffer, pd, length, MrFlags::ALLOW_LOCAL_WRITE)?;
        Ok(Self { token: mr.local_token(), buffer, mr })
    }

    /// Returns the scatter/gather entry of a slot.
    pub(super) fn sge(&self, slot: usize) -> Sge {
        let address = self.buffer.address() + (slot * MESSAGE_BYTES_MAX) as u64;
        Sge { address, length: MESSAGE_BYTES_MAX as u32, token: self.token }
    }

    /// Returns the received bytes.
    pub(super) fn octets(&self, slot: usize, length: usize) -> Vec<u8> {
        let mut octets = vec![0; length.min(MESSAGE_BYTES_MAX)];
        self.buffer.read_at(slot % MESSAGE_SLOTS * MESSAGE_BYTES_MAX, &mut octets);
        octets
    }
}

fn registered(
    buffer: &RegisteredBuffer,
    pd: &Pd,
    length: usize,
    rights: MrFlags,
) -> Result<Mr, Failure> {
    let mr = checked("create an MR", pd.create_mr(false))?;
    checked("register an MR", mr.register(buffer, 0, length, rights))?;
    Ok(mr)
}

/// Data buffer.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) buffer: RegisteredBuffer,
    /// Registrations, one per queue.
    mrs: Vec<Mr>,
    tokens: Vec<u32>,
    pub(super) layout: Layout,
}

/// Writes the pattern from `offset`, a multiple of eight, into `chunk`.
fn pattern(offset: u64, chunk: &mut [u8]) {
    for (index, word) in chunk.chunks_mut(8).enumerate() {
        let number = (offset / 8 + index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let octets = (number ^ number >> 29).to_le_bytes();
        word.copy_from_slice(&octets[..word.len()]);
    }
}

impl Region {
    /// Allocates the buffer, and registers it in the protection domain of each queue.
    pub(super) fn new<'p>(
        adapter: &Adapter,
        pds: impl Iterator<Item = &'p Pd>,
        parameters: &Parameters,
    ) -> Result<Self, Failure> {
        let layout = Layout::new(parameters);
        let rights = MrFlags::ALLOW_LOCAL_WRITE
            | MrFlags::ALLOW_REMOTE_READ
            | MrFlags::ALLOW_REMOTE_WRITE
            | MrFlags::ALLOW_REMOTE_ATOMIC;
        let length = layout.length as usize;
        let buffer = checked("allocate", adapter.allocate(length))?;
        let mut region = Self { buffer, mrs: Vec::new(), tokens: Vec::new(), layout };
        for pd in pds {
            let mr = registered(&region.buffer, pd, length, rights)?;
            region.tokens.push(mr.local_token());
            region.mrs.push(mr);
        }
        Ok(region)
    }

    /// Returns the description of the memory for the peer.
    pub(super) fn memory(&self) -> Memory {
        Memory { address: self.buffer.address(), tokens: self.tokens.clone() }
    }

    /// Returns the scatter/gather entry of a range, with the token of a queue.
    pub(super) fn sge(&self, queue: usize, offset: u64, length: u64) -> Sge {
        let token = self.tokens[queue];
        Sge { address: self.buffer.address() + offset, length: length as u32, token }
    }

    /// Returns the entry for the one byte of a marker.
    pub(super) fn marker_sge(&self, queue: usize) -> Sge {
        self.sge(queue, self.layout.marker_at, 1)
    }

    /// Closes the registrations.
    pub(super) fn close(&self) {
        for mr in &self.mrs {
            let _ = mr.close(|| {});
        }
    }

    /// Returns the number of the peer's grants on this connection, modulo 256.
    pub(super) fn grants(&self, connection: usize) -> u8 {
        self.buffer.load_last(self.layout.grant_at(connection) as usize)
    }

    /// Returns the word at `offset`: the target of the peer's atomics, or the result of an atomic.
    pub(super) fn word(&self, offset: u64) -> u64 {
        let word = self.buffer.word(offset as usize);
        word.map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Prepares the memory for messages of a new size.
    pub(super) fn prepare(&self, slots: Slots, connections: usize) {
        let mut chunk = [0; CHUNK_BYTES];
        for connection in 0..connections {
            self.buffer.write_at(self.layout.grant_at(connection) as usize, &[0]);
        }
        let bytes = slots.offset(slots.count);
        for from in (0..bytes).step_by(CHUNK_BYTES) {
            let length = (bytes - from).min(CHUNK_BYTES as u64) as usize;
            chunk.fill(0);
            self.buffer.write_at((self.layout.sink_at + from) as usize, &chunk[..length]);
            pattern(from, &mut chunk[..length]);
            self.buffer.write_at((self.layout.source_at + from) as usize, &chunk[..length]);
        }
    }

    /// Compares the first `filled` slots of the sink with the pattern of the peer's source.
    pub(super) fn verify(&self, slots: Slots, filled: u64, size_bytes: u64) -> Result<(), Failure> {
        let (mut found, mut wanted) = ([0; CHUNK_BYTES], [0; CHUNK_BYTES]);
        for slot in 0..filled.min(slots.count as u64) {
            let begin = slots.offset(slot as usize);
            for from in (0..size_bytes).step_by(CHUNK_BYTES) {
                let length = (size_bytes - from).min(CHUNK_BYTES as u64) as usize;
                let (found, wanted) = (&mut found[..length], &mut wanted[..length]);
                self.buffer.read_at((self.layout.sink_at + begin + from) as usize, found);
                pattern(begin + from, wanted);
                if let Some(at) = found.iter().zip(wanted.iter()).position(|(a, b)| a != b) {
                    return Err(Failure::work(format!(
                        "data: slot {slot}, byte {}: received {:#04x}, expected {:#04x}",
                        from + at as u64,
                        found[at],
                        wanted[at]
                    )));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::perf::kind::Kind;

    fn layout(connections: u32, size_max_bytes: u64) -> Layout {
        Layout::new(&Parameters {
            kind: Kind::WriteBw,
            connections,
            depth: 128,
            post_list: 64,
            bidirectional: true,
            reverse: false,
            size_max_bytes,
        })
    }

    #[test]
    fn parts_are_disjoint_and_hold_their_slots() {
        for (connections, size) in [(1, 1), (16_384, 64 << 10), (3, 1 << 20), (1, 5 << 20)] {
            let layout = layout(connections, size);
            assert!(layout.grant_at(connections as usize) <= layout.marker_at);
            assert!(layout.marker_at < layout.source_at && layout.source_at < layout.sink_at);
            for depth in [1, 128, DEPTH_MAX] {
                let slots = layout.slots(size, depth);
                assert!((1..=depth as usize).contains(&slots.count));
                let end = slots.offset(slots.count - 1) + size;
                assert!(layout.source_at + end <= layout.sink_at);
                assert!(layout.sink_at + end <= layout.length);
                assert_eq!(slots.after(slots.count - 1), 0);
            }
        }
        assert_eq!(layout(1, 64).slots(64, 128), Slots { stride: 64, count: 64 });
        assert_eq!(layout(1, 1 << 20).slots(1 << 20, 128), Slots { stride: 1 << 20, count: 1 });
    }

    #[test]
    fn pattern_differs_between_slots() {
        let (mut one, mut other) = ([0; 64], [0; 64]);
        pattern(0, &mut one);
        pattern(64, &mut other);
        assert_ne!(one, other);
        let mut short = [0; 5];
        pattern(64, &mut short);
        assert_eq!(short, other[..5]);
    }
}
