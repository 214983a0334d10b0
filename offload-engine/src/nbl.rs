//! NET_BUFFER_LIST, NET_BUFFER and MDL chains.
//!
//! A [`NetBufferList`] is posted by an upper layer and returned to it. Ownership moves to the target with the post and
//! back with the completion (CH-SND-3). It contains [`NetBuffer`]s, each a chain of MDLs. An MDL is a reference-counted
//! view of memory, private or shared ([`Span`]), which is not copied before the gathered write.
//!
//! The data of a net buffer starts `current_mdl_offset` bytes into its current MDL and spans `data_length` bytes along
//! the chain (CH-BUF-1). Advancing moves the start and frees no MDL (CH-BUF-2).

use alloc::{collections::VecDeque, vec, vec::Vec};

use bytes::BytesMut;

use crate::{
    memory::{Piece, Span, to_vec},
    status::NdisStatus,
};

/// Piece of memory in the chain of a net buffer.
pub type Mdl = Span;

/// NET_BUFFER: data along a chain of MDLs.
#[derive(Clone, Debug, Default)]
pub struct NetBuffer {
    mdls: Vec<Mdl>,
    current_mdl: usize,
    current_mdl_offset: usize,
    data_offset: usize,
    data_length: usize,
}

impl NetBuffer {
    /// Creates an empty net buffer.
    pub const fn new() -> Self {
        Self {
            mdls: Vec::new(),
            current_mdl: 0,
            current_mdl_offset: 0,
            data_offset: 0,
            data_length: 0,
        }
    }

    /// Appends an MDL. All of it becomes data.
    #[inline]
    pub fn push_mdl(&mut self, mdl: impl Into<Mdl>) {
        let mdl = mdl.into();
        self.data_length += mdl.len();
        self.mdls.push(mdl);
    }

    /// Data length in bytes.
    pub const fn data_length(&self) -> usize {
        self.data_length
    }

    /// Unused bytes before the data, counted from the start of the chain.
    pub const fn data_offset(&self) -> usize {
        self.data_offset
    }

    /// Returns the whole MDL chain, including MDLs before the data.
    pub fn mdls(&self) -> &[Mdl] {
        &self.mdls
    }

    /// Moves the start of the data forward by `count` bytes (NdisAdvanceNetBufferDataStart with
    /// FreeMdl FALSE; CH-BUF-2).
    ///
    /// # Panics
    /// `count` exceeds the data length: an error of the caller.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.data_length, "advance of {count} beyond {} bytes", self.data_length);
        let whole = count == self.data_length;
        self.data_offset += count;
        self.data_length -= count;
        if whole {
            self.current_mdl = self.mdls.len();
            self.current_mdl_offset = 0;
            return;
        }
        let mut left = count;
        while let Some(mdl) = self.mdls.get(self.current_mdl) {
            let room = mdl.len() - self.current_mdl_offset;
            if left < room {
                self.current_mdl_offset += left;
                return;
            }
            left -= room;
            self.current_mdl += 1;
            self.current_mdl_offset = 0;
        }
        debug_assert_eq!(left, 0);
    }

    /// Returns the data, in order. Empty MDLs are skipped.
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        let first = self.current_mdl;
        let offset = self.current_mdl_offset;
        self.mdls[first.min(self.mdls.len())..]
            .iter()
            .enumerate()
            .map(move |(index, mdl)| {
                let offset = if index == 0 { offset } else { 0 };
                mdl.piece().part(offset, mdl.len() - offset)
            })
            .filter(|piece| !piece.is_empty())
    }

    /// Replaces shared memory that contains data after the first `skip` bytes by copies. The poster may then reuse its
    /// own memory, except for the skipped part.
    pub fn detach(&mut self, skip: usize) {
        let mut before = self.data_offset + skip;
        for mdl in &mut self.mdls {
            let len = mdl.len();
            if before < len {
                detach_mdl(mdl);
            }
            before = before.saturating_sub(len);
        }
    }

    /// Replaces withdrawn shared memory by copies, wherever the data starts.
    pub fn detach_withdrawn(&mut self) {
        self.mdls.iter_mut().filter(|mdl| mdl.is_withdrawn()).for_each(detach_mdl);
    }

    /// Removes all MDLs, and keeps the chain's storage for reuse.
    pub fn clear(&mut self) {
        let Self { mdls, current_mdl, current_mdl_offset, data_offset, data_length } = self;
        mdls.clear();
        *current_mdl = 0;
        *current_mdl_offset = 0;
        *data_offset = 0;
        *data_length = 0;
    }
}

fn detach_mdl(mdl: &mut Mdl) {
    if let Some(copy) = mdl.copied() {
        *mdl = copy.into();
    }
}

impl<M: Into<Mdl>> From<M> for NetBuffer {
    fn from(mdl: M) -> Self {
        let mdl = mdl.into();
        let data_length = mdl.len();
        // Room for one: most net buffers have a single MDL.
        Self { mdls: vec![mdl], data_length, ..Self::new() }
    }
}

/// NET_BUFFER_LIST: the unit of posting, PSH and completion.
#[derive(Clone, Debug)]
pub struct NetBufferList {
    /// Net buffers. The owner must not change them while the list is posted (CH-BUF-3).
    pub net_buffers: Vec<NetBuffer>,
    /// Completion status. [`NdisStatus::PENDING`] until completed.
    pub status: NdisStatus,
    /// TcpOffloadBytesTransferred: bytes acknowledged by the peer (CH-SNC-1, CH-SNC-4), or bytes placed.
    pub bytes_transferred: usize,
    /// Value of the poster (ProtocolReserved), returned unchanged. It names the list in captures.
    pub context: u64,
}

impl NetBufferList {
    /// Creates an empty list with the poster's `context`.
    pub const fn new(context: u64) -> Self {
        Self { net_buffers: Vec::new(), status: NdisStatus::PENDING, bytes_transferred: 0, context }
    }

    /// Creates a list with one net buffer of one MDL.
    pub fn from_mdl(context: u64, mdl: impl Into<Mdl>) -> Self {
        Self { net_buffers: vec![NetBuffer::from(mdl)], ..Self::new(context) }
    }

    /// Data length of all net buffers in bytes.
    pub fn data_length(&self) -> usize {
        self.net_buffers.iter().map(NetBuffer::data_length).sum()
    }

    /// Returns the data, in order.
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        self.net_buffers.iter().flat_map(NetBuffer::pieces)
    }

    /// Returns a copy of the data.
    pub fn to_vec(&self) -> Vec<u8> {
        to_vec(self.pieces())
    }

    /// Completes the list: sets the status, and advances the data starts by the bytes transferred (CH-SNC-1). They add
    /// to earlier ones: a partly acknowledged list may be offloaded.
    pub fn complete(&mut self, status: NdisStatus, bytes_transferred: usize) {
        self.status = status;
        self.bytes_transferred += bytes_transferred;
        let mut left = bytes_transferred;
        for net_buffer in &mut self.net_buffers {
            let count = left.min(net_buffer.data_length());
            net_buffer.advance(count);
            left -= count;
        }
        debug_assert_eq!(left, 0, "more bytes transferred than the list holds");
    }
}

/// Chain of net buffer lists, in order.
pub type NblChain = VecDeque<NetBufferList>;

/// Receive request: a NET_BUFFER_LIST of one NET_BUFFER of memory that the target writes (CH-RCV-1). The memory moves
/// to the target with the post and back with the completion, so a partial write is never visible.
#[derive(Clone, Debug)]
pub struct ReceiveBufferList {
    /// Memory, in order. Each piece is usable up to its length. Without memory it is a zero-byte request, which resumes
    /// indications and receives no data (CH-RCV-7).
    pub mdls: Vec<BytesMut>,
    /// TcpReceiveNoPush: the request completes only when full. Otherwise it also completes, with the data received so
    /// far, on a PSH or when the push timer expires (CH-RCV-5).
    pub no_push: bool,
    /// Completion status. [`NdisStatus::PENDING`] until completed.
    pub status: NdisStatus,
    /// TcpReceiveBytesTransferred: bytes of data at the start of the memory. If it is not 0 when posted, the target
    /// continues after them. The whole memory is returned, so this replaces the data start that NDIS advances
    /// (CH-RCC-1).
    pub bytes_transferred: usize,
    /// Value of the poster, returned unchanged.
    pub context: u64,
}

impl ReceiveBufferList {
    /// Creates a zero-byte request in push mode.
    pub const fn new(context: u64) -> Self {
        Self {
            mdls: Vec::new(),
            no_push: false,
            status: NdisStatus::PENDING,
            bytes_transferred: 0,
            context,
        }
    }

    /// Creates a request with one piece of memory in push mode.
    pub fn from_mdl(context: u64, mdl: BytesMut) -> Self {
        let mut list = Self::new(context);
        list.mdls.push(mdl);
        list
    }

    /// Bytes of memory, written or not.
    pub fn data_length(&self) -> usize {
        self.mdls.iter().map(BytesMut::len).sum()
    }

    /// Returns the data received so far, in order: the first `bytes_transferred` bytes of the memory.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let mut left = self.bytes_transferred;
        self.mdls
            .iter()
            .map(move |mdl| {
                let count = left.min(mdl.len());
                left -= count;
                &mdl[..count]
            })
            .filter(|slice| !slice.is_empty())
    }
}

/// Chain of receive requests, in order.
pub type ReceiveChain = VecDeque<ReceiveBufferList>;

#[cfg(test)]
mod tests {
    use alloc::{vec, vec::Vec};

    use bytes::Bytes;

    use super::*;
    use crate::memory::SharedSpan;

    fn shared(data: &[u8]) -> SharedSpan {
        let span = SharedSpan::allocate(data.len().max(1), 1).unwrap();
        span.write(0, data);
        span.slice(0..data.len())
    }

    fn list(parts: &[&[&'static [u8]]]) -> NetBufferList {
        let mut list = NetBufferList::new(7);
        for mdls in parts {
            let mut net_buffer = NetBuffer::new();
            for mdl in *mdls {
                net_buffer.push_mdl(Bytes::from_static(mdl));
            }
            list.net_buffers.push(net_buffer);
        }
        list
    }

    // CH-BUF-1: data spans the chain, including empty MDLs.
    #[test]
    fn data_spans_mdl_chain() {
        let list = list(&[&[b"ab", b"", b"c"], &[], &[b"de"]]);
        assert_eq!(list.data_length(), 5);
        assert_eq!(list.to_vec(), b"abcde");
    }

    // CH-BUF-2: the start and the offsets advance, and MDLs remain.
    #[test]
    fn advance_keeps_mdls() {
        for count in 0..=5 {
            let mut net_buffer = NetBuffer::new();
            for mdl in [&b"ab"[..], b"", b"cde"] {
                net_buffer.push_mdl(Bytes::from_static(mdl));
            }
            net_buffer.advance(count);
            assert_eq!(net_buffer.data_offset(), count);
            assert_eq!(net_buffer.data_length(), 5 - count);
            assert_eq!(net_buffer.mdls().len(), 3);
            assert_eq!(to_vec(net_buffer.pieces()), b"abcde"[count..]);
        }
    }

    #[test]
    #[should_panic(expected = "beyond")]
    fn advance_beyond_data_panics() {
        NetBuffer::from(Bytes::from_static(b"x")).advance(2);
    }

    // The data keeps its offset, in separate memory. Private memory is not copied.
    #[test]
    fn detached_data_is_a_copy() {
        let source = shared(&[1, 2, 3, 4]);
        let mut net_buffer = NetBuffer::from(source.clone());
        net_buffer.push_mdl(Bytes::from_static(&[5]));
        net_buffer.push_mdl(source.slice(1..3));
        net_buffer.advance(1);
        let private = net_buffer.mdls()[1].as_ptr();
        net_buffer.detach(0);
        source.write(0, &[0; 4]);
        assert!(net_buffer.mdls().iter().all(|mdl| matches!(mdl, Mdl::Private(_))));
        assert_eq!(net_buffer.mdls()[1].as_ptr(), private);
        assert_eq!(net_buffer.data_offset(), 1);
        assert_eq!(to_vec(net_buffer.pieces()), [2, 3, 4, 5, 2, 3]);
    }

    // Withdrawn memory is released, including MDLs before the data, and no other memory.
    #[test]
    fn withdrawn_memory_is_released() {
        let owner = alloc::sync::Arc::new(());
        let other = shared(b"xy");
        let withdrawn = shared(b"abcdef").under(owner.clone());
        let mut net_buffer = NetBuffer::from(withdrawn.slice(0..2));
        net_buffer.push_mdl(other.clone());
        net_buffer.push_mdl(withdrawn.slice(2..6));
        net_buffer.advance(3);
        net_buffer.detach_withdrawn();
        assert_eq!(net_buffer.mdls()[0].as_ptr(), withdrawn.as_ptr(), "not withdrawn yet");
        withdrawn.withdraw();
        drop(withdrawn);
        net_buffer.detach_withdrawn();
        assert_eq!(alloc::sync::Arc::strong_count(&owner), 1);
        assert_eq!(net_buffer.mdls()[1].as_ptr(), other.as_ptr().cast_const());
        assert_eq!(to_vec(net_buffer.pieces()), b"ycdef");
    }

    // Memory that contains only skipped data is not copied, empty or not.
    #[test]
    fn skipped_data_is_not_copied() {
        for (skip, copied) in
            [(0, [true, true]), (2, [true, true]), (3, [false, true]), (7, [false, false])]
        {
            let mut net_buffer = NetBuffer::new();
            for mdl in [&b"abcd"[..], b"", b"efgh"] {
                net_buffer.push_mdl(shared(mdl));
            }
            net_buffer.advance(1);
            let places = |net_buffer: &NetBuffer| [0, 2].map(|at| net_buffer.mdls()[at].as_ptr());
            let before = places(&net_buffer);
            net_buffer.detach(skip);
            let after = places(&net_buffer);
            assert_eq!([0, 1].map(|at| before[at] != after[at]), copied, "{skip}");
            assert_eq!(to_vec(net_buffer.pieces()), b"bcdefgh");
        }
    }

    // CH-SNC-1: completion advances the data starts of net buffers.
    #[test]
    fn completion_advances_net_buffers() {
        let mut list = list(&[&[b"abc"], &[b"de", b"f"]]);
        list.complete(NdisStatus::REQUEST_ABORTED, 4);
        assert_eq!(list.bytes_transferred, 4);
        assert_eq!(
            list.net_buffers.iter().map(NetBuffer::data_length).collect::<Vec<_>>(),
            vec![0, 2]
        );
    }
}
