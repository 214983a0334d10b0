//! NET_BUFFER_LIST, NET_BUFFER and MDL chains.
//!
//! A [`NetBufferList`] is what an upper layer posts and gets back: ownership moves into the target
//! with the post and out of it with the completion (CH-SND-3). It holds [`NetBuffer`]s, each a chain
//! of MDLs. An MDL is a reference-counted view of memory, private or shared ([`Span`]), that is never copied on its
//! way to the gathered write.
//!
//! Data of a net buffer starts `current_mdl_offset` bytes into its current MDL and runs
//! `data_length` bytes along the chain (CH-BUF-1). Advancing moves that start and frees no MDL
//! (CH-BUF-2).

use alloc::{collections::VecDeque, vec, vec::Vec};

use bytes::BytesMut;

use crate::{
    memory::{Piece, Span, to_vec},
    status::NdisStatus,
};

/// One piece of memory in a net buffer's chain.
pub type Mdl = Span;

/// A NET_BUFFER: data that runs along a chain of MDLs.
#[derive(Clone, Debug, Default)]
pub struct NetBuffer {
    mdls: Vec<Mdl>,
    current_mdl: usize,
    current_mdl_offset: usize,
    data_offset: usize,
    data_length: usize,
}

impl NetBuffer {
    /// An empty net buffer.
    pub const fn new() -> Self {
        Self {
            mdls: Vec::new(),
            current_mdl: 0,
            current_mdl_offset: 0,
            data_offset: 0,
            data_length: 0,
        }
    }

    /// Appends an MDL; all of it becomes data.
    #[inline]
    pub fn push_mdl(&mut self, mdl: impl Into<Mdl>) {
        let mdl = mdl.into();
        self.data_length += mdl.len();
        self.mdls.push(mdl);
    }

    /// Bytes of data.
    pub const fn data_length(&self) -> usize {
        self.data_length
    }

    /// Unused bytes in front of the data, counted from the start of the chain.
    pub const fn data_offset(&self) -> usize {
        self.data_offset
    }

    /// The whole MDL chain, used or not.
    pub fn mdls(&self) -> &[Mdl] {
        &self.mdls
    }

    /// Moves the start of the data forward by `count` bytes (NdisAdvanceNetBufferDataStart with
    /// FreeMdl FALSE; CH-BUF-2).
    ///
    /// # Panics
    /// When `count` exceeds the data length: a caller's bug.
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

    /// The data, in order; empty MDLs are skipped.
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

    /// Replaces shared memory that holds data behind the first `skip` bytes by copies of it: the poster may use its own
    /// again, but for what is skipped.
    pub fn detach(&mut self, skip: usize) {
        let mut before = self.data_offset + skip;
        for mdl in &mut self.mdls {
            let len = mdl.len();
            if before < len {
                copy_aside(mdl);
            }
            before = before.saturating_sub(len);
        }
    }

    /// Replaces shared memory that its owner has withdrawn by copies of it, wherever the data starts.
    pub fn detach_withdrawn(&mut self) {
        self.mdls.iter_mut().filter(|mdl| mdl.is_withdrawn()).for_each(copy_aside);
    }

    /// Removes all MDLs, keeping the chain's storage for reuse.
    pub fn clear(&mut self) {
        let Self { mdls, current_mdl, current_mdl_offset, data_offset, data_length } = self;
        mdls.clear();
        *current_mdl = 0;
        *current_mdl_offset = 0;
        *data_offset = 0;
        *data_length = 0;
    }
}

fn copy_aside(mdl: &mut Mdl) {
    if let Some(copy) = mdl.copied() {
        *mdl = copy.into();
    }
}

impl<M: Into<Mdl>> From<M> for NetBuffer {
    fn from(mdl: M) -> Self {
        let mdl = mdl.into();
        let data_length = mdl.len();
        // Room for one: most are not added to.
        Self { mdls: vec![mdl], data_length, ..Self::new() }
    }
}

/// A NET_BUFFER_LIST: the unit that is posted, marked with PSH at its end, and completed.
#[derive(Clone, Debug)]
pub struct NetBufferList {
    /// Its net buffers. The owner may not change them while the list is posted (CH-BUF-3).
    pub net_buffers: Vec<NetBuffer>,
    /// Completion status; [`NdisStatus::PENDING`] until completed.
    pub status: NdisStatus,
    /// TcpOffloadBytesTransferred: bytes the peer acknowledged (CH-SNC-1, CH-SNC-4), or bytes placed.
    pub bytes_transferred: usize,
    /// The poster's own value (ProtocolReserved): comes back untouched, and names the list in captures.
    pub context: u64,
}

impl NetBufferList {
    /// An empty list with the poster's `context`.
    pub const fn new(context: u64) -> Self {
        Self { net_buffers: Vec::new(), status: NdisStatus::PENDING, bytes_transferred: 0, context }
    }

    /// A list of one net buffer of one MDL.
    pub fn from_mdl(context: u64, mdl: impl Into<Mdl>) -> Self {
        Self { net_buffers: vec![NetBuffer::from(mdl)], ..Self::new(context) }
    }

    /// Bytes of data in all net buffers.
    pub fn data_length(&self) -> usize {
        self.net_buffers.iter().map(NetBuffer::data_length).sum()
    }

    /// The data, in order.
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        self.net_buffers.iter().flat_map(NetBuffer::pieces)
    }

    /// A copy of the data.
    pub fn to_vec(&self) -> Vec<u8> {
        to_vec(self.pieces())
    }

    /// Completes the list: sets the status, and advances the data starts by the bytes transferred (CH-SNC-1).
    /// Those add to what was transferred before: a list may change hands, partly acknowledged.
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

/// A chain of net buffer lists, in order.
pub type NblChain = VecDeque<NetBufferList>;

/// A receive request: a NET_BUFFER_LIST of one NET_BUFFER of memory that the target writes (CH-RCV-1). The
/// memory moves into the target with the post and back with the completion, so it is never visible half written.
#[derive(Clone, Debug)]
pub struct ReceiveBufferList {
    /// The memory, in order; each piece is usable as far as its length. None of it: a zero-byte request, which asks
    /// for indications again and holds no data (CH-RCV-7).
    pub mdls: Vec<BytesMut>,
    /// TcpReceiveNoPush: completes when full. Otherwise it completes with what it holds when a PSH comes or
    /// the push timer runs out, too (CH-RCV-5).
    pub no_push: bool,
    /// Completion status; [`NdisStatus::PENDING`] until completed.
    pub status: NdisStatus,
    /// TcpReceiveBytesTransferred: bytes of data at the front of the memory. Not 0 when posted: the target
    /// continues behind them. As the memory comes back whole, this stands for the data start that NDIS advances
    /// (CH-RCC-1).
    pub bytes_transferred: usize,
    /// The poster's own value; comes back untouched.
    pub context: u64,
}

impl ReceiveBufferList {
    /// A zero-byte request in push mode.
    pub const fn new(context: u64) -> Self {
        Self {
            mdls: Vec::new(),
            no_push: false,
            status: NdisStatus::PENDING,
            bytes_transferred: 0,
            context,
        }
    }

    /// A request of one piece of memory in push mode.
    pub fn from_mdl(context: u64, mdl: BytesMut) -> Self {
        let mut list = Self::new(context);
        list.mdls.push(mdl);
        list
    }

    /// Bytes of memory, written or not.
    pub fn data_length(&self) -> usize {
        self.mdls.iter().map(BytesMut::len).sum()
    }

    /// The data received so far, in order: the first `bytes_transferred` bytes of the memory.
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

/// A chain of receive requests, in order.
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

    // CH-BUF-1: data runs along the chain, over empty MDLs.
    #[test]
    fn data_runs_along_the_chain() {
        let list = list(&[&[b"ab", b"", b"c"], &[], &[b"de"]]);
        assert_eq!(list.data_length(), 5);
        assert_eq!(list.to_vec(), b"abcde");
    }

    // CH-BUF-2: the start moves, offsets follow, MDLs stay.
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
    fn advance_beyond_the_data_is_a_bug() {
        NetBuffer::from(Bytes::from_static(b"x")).advance(2);
    }

    // The data stays where it was, in memory of its own; what is private stays as it is.
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

    // Memory that its owner wants back is let go of, also where the data starts behind it, and no other.
    #[test]
    fn withdrawn_memory_is_let_go_of() {
        let owner = alloc::sync::Arc::new(());
        let other = shared(b"xy");
        let withdrawn = shared(b"abcdef").under(owner.clone());
        let mut net_buffer = NetBuffer::from(withdrawn.slice(0..2));
        net_buffer.push_mdl(other.clone());
        net_buffer.push_mdl(withdrawn.slice(2..6));
        net_buffer.advance(3);
        net_buffer.detach_withdrawn();
        assert_eq!(net_buffer.mdls()[0].as_ptr(), withdrawn.as_ptr(), "it is not withdrawn");
        withdrawn.withdraw();
        drop(withdrawn);
        net_buffer.detach_withdrawn();
        assert_eq!(alloc::sync::Arc::strong_count(&owner), 1);
        assert_eq!(net_buffer.mdls()[1].as_ptr(), other.as_ptr().cast_const());
        assert_eq!(to_vec(net_buffer.pieces()), b"ycdef");
    }

    // Memory that holds only what is skipped stays, empty or not.
    #[test]
    fn what_is_skipped_is_not_copied() {
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

    // CH-SNC-1: completion advances over net buffers.
    #[test]
    fn completion_advances_over_net_buffers() {
        let mut list = list(&[&[b"abc"], &[b"de", b"f"]]);
        list.complete(NdisStatus::REQUEST_ABORTED, 4);
        assert_eq!(list.bytes_transferred, 4);
        assert_eq!(
            list.net_buffers.iter().map(NetBuffer::data_length).collect::<Vec<_>>(),
            vec![0, 2]
        );
    }
}
