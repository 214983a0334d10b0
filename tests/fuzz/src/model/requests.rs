//! Posted requests and their completions: all of them, once, in order (CH-SND-1, -2, CH-DIS-6).

use std::collections::{HashSet, VecDeque};

use bytes::Bytes;
use offload_engine::{
    chimney::client::Disconnect,
    memory::SharedSpan,
    nbl::{Mdl, NblChain, NetBufferList},
    status::NdisStatus,
};

use super::{POSTED_MAX, World, stream::Stream};

/// Contexts of the two disconnects.
const GRACEFUL: u64 = u64::MAX;
const ABORTIVE: u64 = u64::MAX - 1;

/// State of a disconnect request.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Request {
    #[default]
    None,
    Pending,
    Done(NdisStatus),
}

/// End of a list in the send stream.
#[derive(Clone, Copy, Debug)]
struct Posted {
    context: u64,
    len: u64,
    end: u64,
}

/// Requests and their completions.
#[derive(Default, Debug)]
pub(super) struct Requests {
    posted: u64,
    lists: VecDeque<Posted>,
    next_context: u64,
    /// Posted after the disconnect, and therefore refused.
    refused: HashSet<u64>,
    graceful: Request,
    abortive: Request,
}

fn list(context: u64, start: u64, len: u64) -> NetBufferList {
    let mut data = Vec::new();
    Stream::Ours.write(start, len, &mut data);
    let data = Bytes::from(data);
    // Two buffers, so that segments gather; one is shared, so that a tail is copied.
    let cut = data.len() / 3;
    let mut list = NetBufferList::new(context);
    list.net_buffers.push(data.slice(..cut).into());
    let second = SharedSpan::allocate(data.len(), 1).map_or_else(Mdl::default, |memory| {
        memory.write(0, &data);
        memory.slice(cut..data.len()).into()
    });
    list.net_buffers.push(second.into());
    list
}

impl Requests {
    /// Bytes posted.
    pub(super) fn posted(&self) -> u64 {
        self.posted
    }

    /// True if a FIN follows the posted data.
    pub(super) fn has_pending_fin(&self) -> bool {
        self.graceful != Request::None
    }

    /// End of the sequence space that the peer must acknowledge, FIN included.
    pub(super) fn end(&self) -> u64 {
        self.posted + u64::from(self.has_pending_fin())
    }

    /// True if the FIN of this side is acknowledged.
    pub(super) fn is_closed_gracefully(&self) -> bool {
        self.graceful == Request::Done(NdisStatus::SUCCESS)
    }

    fn build(&mut self, lens: impl Iterator<Item = u64>) -> NblChain {
        let mut chain = NblChain::new();
        for len in lens {
            let context = self.next_context;
            self.next_context += 1;
            chain.push_back(list(context, self.posted, len));
            if self.has_pending_fin() {
                self.refused.insert(context);
                continue;
            }
            self.posted += len;
            self.lists.push_back(Posted { context, len, end: self.posted });
        }
        chain
    }

    /// Checks completed lists; `ended`: the connection was aborted.
    pub(super) fn complete(&mut self, chain: NblChain, acked: u64, ended: bool) {
        assert!(!chain.is_empty(), "an empty completion");
        for list in chain {
            if self.refused.remove(&list.context) {
                assert_eq!(list.status, NdisStatus::REQUEST_ABORTED);
                continue;
            }
            let expected = self.lists.pop_front().expect("a completion of a posted list");
            assert_eq!(list.context, expected.context, "completions in order");
            if list.status == NdisStatus::SUCCESS {
                assert!(expected.end <= acked, "complete before it is acknowledged");
                assert_eq!(list.bytes_transferred as u64, expected.len);
            } else {
                assert_eq!(list.status, NdisStatus::REQUEST_ABORTED);
                assert!(ended, "aborted without a reason");
            }
        }
    }

    pub(super) fn complete_disconnect(&mut self, list: &NetBufferList, ended: bool) {
        let request = match list.context {
            GRACEFUL => &mut self.graceful,
            ABORTIVE => &mut self.abortive,
            other => panic!("a disconnect {other} that was not requested"),
        };
        assert_eq!(*request, Request::Pending, "completed once");
        *request = Request::Done(list.status);
        assert!(self.lists.is_empty(), "lists complete before the disconnect");
        assert!(list.status == NdisStatus::SUCCESS || ended, "{:?}", list.status);
    }

    /// Request for an abort.
    pub(super) fn abort(&mut self) -> NetBufferList {
        self.abortive = Request::Pending;
        NetBufferList::new(ABORTIVE)
    }

    /// Asserts that no request is pending.
    pub(super) fn check_answered(&self) {
        assert!(self.lists.is_empty() && self.refused.is_empty(), "lists that never completed");
        assert_ne!(self.graceful, Request::Pending, "a disconnect that never completed");
        assert_ne!(self.abortive, Request::Pending, "an abort that never completed");
    }
}

impl World {
    pub(super) fn post(&mut self, lists: u8, len: u16) {
        let room = POSTED_MAX.saturating_sub(self.requests.posted);
        let len = u64::from(len).min(room / 2);
        let chain = self.requests.build((0..lists.min(8)).map(|n| len >> n));
        self.tcp.post_send(self.now, chain);
    }

    pub(super) fn disconnect(&mut self, len: u16) {
        if self.requests.has_pending_fin() {
            return;
        }
        let len = u64::from(len).min(POSTED_MAX.saturating_sub(self.requests.posted));
        let list = list(GRACEFUL, self.requests.posted, len);
        self.requests.posted += len;
        self.requests.graceful = Request::Pending;
        self.tcp.disconnect(self.now, Disconnect::Graceful, list);
    }
}
