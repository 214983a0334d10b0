//! Byte streams over connections before and after offload: a client for plain TCP.
//!
//! Each stream has a [`Switch`]. Sends are posted to the target while the connection is offloaded, to the host stack
//! while it is not, and are queued during a transition (CH-ARC-3).
//!
//! Received data is indicated, or fill receive requests posted in advance ([`Streams::post_receives`], CH-RCV-1): in
//! order, each until it is full or a PSH completes it. Without a request data is indicated again.
//!
//! Limits: a stream with [`RECEIVE_QUEUE_BYTES_MAX`] unread bytes accepts no more from the target, and the peer's
//! window closes; the posted requests may hold more. From the host it holds at most [`RECEIVE_CREDIT_BYTES`]. When a
//! connection in the host enters TIME-WAIT, the stream receives all remaining data. That is at most one receive buffer
//! ([`HostConfig::receive_buffer`](crate::host::HostConfig::receive_buffer)) beyond that limit.

mod stacks;

use core::ops::RangeInclusive;
use std::{collections::VecDeque, net::SocketAddr, vec::Vec};

use bytes::{Bytes, BytesMut};
use hashbrown::HashMap;
use offload_engine::{
    address::{canonical, source_for, unscoped},
    chimney::client::{ConnectionIo, OffloadHandle},
    engine::Connections,
    nbl::{NblChain, NetBufferList, ReceiveBufferList, ReceiveChain},
    status::NdisStatus,
    tcp::SoftError,
    time::{Duration, Instant},
};

use crate::{
    socket::{EndpointId, HostError, ListenerId, RECEIVE_CREDIT_BYTES, Request, SocketPort},
    switch::Switch,
};
pub use offload_engine::listing::OffloadState;

/// Maximum unread bytes of one stream.
pub const RECEIVE_QUEUE_BYTES_MAX: usize = 1024 * 1024;

/// Minimum size of received data that is kept in place: at least half of the memory it holds is data. Smaller data
/// are copied.
const KEEP_BYTES_MIN: usize = 32 * 1024;

/// Size of the blocks to which received data is copied, in bytes. The minimum suits a stream of a few bytes. The
/// maximum fits into the CPU's cache together with the data read into it.
const BLOCK_BYTES: RangeInclusive<usize> = 4 * 1024..=256 * 1024;
/// Number of pieces of the first piece's size that a block is allocated for.
const BLOCK_PIECES: usize = 4;
/// Maximum number of full blocks kept for reuse by a stream.
const BLOCKS_MAX: usize = 2;

/// Receive requests that a stream keeps posted: one is filled while the client processes the other.
const RECEIVES_POSTED: usize = 2;

/// Memory for received bytes. A block is filled from the front, handed out in pieces, and reused when all pieces are
/// dropped. A reader that keeps up causes no allocation, and uses one or two blocks.
#[derive(Debug, Default)]
struct Blocks {
    filling: BytesMut,
    full: VecDeque<BytesMut>,
}

impl Blocks {
    /// Returns a copy of `data`.
    fn copy(&mut self, data: &[u8]) -> Bytes {
        if !self.filling.try_reclaim(data.len()) {
            self.turn(data.len());
        }
        self.filling.extend_from_slice(data);
        self.filling.split().freeze()
    }

    /// Continues with another block that has `room` bytes: the oldest, if none of its pieces is in use.
    fn turn(&mut self, room: usize) {
        // The block is exhausted, so its size is unknown; the first one has no memory.
        self.full.push_back(core::mem::take(&mut self.filling));
        if self.full.front_mut().is_some_and(|oldest| oldest.try_reclaim(room)) {
            self.filling = self.full.pop_front().unwrap_or_default();
            return;
        }
        if self.full.len() > BLOCKS_MAX {
            // Its memory is freed with its last piece.
            self.full.pop_front();
        }
        let size = room.saturating_mul(BLOCK_PIECES);
        let size = size.clamp(*BLOCK_BYTES.start(), *BLOCK_BYTES.end());
        self.filling = BytesMut::with_capacity(size.max(room));
    }
}

/// Status of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamStatus {
    /// Stack that has the data path.
    pub state: OffloadState,
    /// True if the handshake is complete.
    pub connected: bool,
    /// Local address; `None` before the handshake is complete.
    pub local: Option<SocketAddr>,
    /// Remote address; `None` before the handshake is complete.
    pub remote: Option<SocketAddr>,
    /// Bytes sent by the client and not yet acknowledged by the peer.
    pub unacknowledged: usize,
    /// Bytes received and not yet read.
    pub unread: usize,
    /// True if the peer has sent FIN; no more data follows once `unread` is 0.
    pub peer_closed: bool,
    /// True if our FIN is acknowledged.
    pub shut_down: bool,
    /// True if the connection is closed.
    pub closed: bool,
    /// Reason for its end, or for a failed connect.
    pub error: Option<HostError>,
}

#[derive(Debug)]
struct Stream {
    /// `state` and `unacknowledged` are those of `switch`.
    status: StreamStatus,
    /// Order of sends.
    switch: Switch,
    receive_queue: VecDeque<Bytes>,
    /// Memory of received bytes.
    blocks: Blocks,
    /// True if the stack that has the connection holds refused data.
    refused: bool,
    /// Number of posted receive requests.
    receives_posted: usize,
    /// Memory of unposted receive requests.
    request_memory: Vec<BytesMut>,
    /// Last ICMP error before the target's retransmission limit.
    soft_error: Option<SoftError>,
    /// Bytes delivered by the host and not yet consumed.
    host_unconsumed: usize,
    completed: VecDeque<NetBufferList>,
}

impl Stream {
    fn new() -> Self {
        Self {
            status: StreamStatus {
                state: OffloadState::InHost,
                connected: false,
                local: None,
                remote: None,
                unacknowledged: 0,
                unread: 0,
                peer_closed: false,
                shut_down: false,
                closed: false,
                error: None,
            },
            switch: Switch::opening(),
            receive_queue: VecDeque::new(),
            blocks: Blocks::default(),
            refused: false,
            receives_posted: 0,
            request_memory: Vec::new(),
            soft_error: None,
            host_unconsumed: 0,
            completed: VecDeque::new(),
        }
    }

    fn end(&mut self, error: Option<HostError>) {
        let error = match (error, self.soft_error) {
            (Some(HostError::RetransmissionLimit), Some(soft)) => Some(HostError::Unanswered(soft)),
            (error, _) => error,
        };
        self.status.closed = true;
        if self.status.error.is_none() {
            self.status.error = error;
        }
        self.switch.close();
        if error == Some(HostError::StateLost) {
            self.switch.discard_lists();
        }
        self.return_unsent();
    }

    /// Completes lists that can no longer be sent, once all older ones are complete.
    fn return_unsent(&mut self) {
        while let Some(mut list) = self.switch.poll_unsent() {
            list.complete(NdisStatus::REQUEST_ABORTED, 0);
            self.completed.push_back(list);
        }
    }

    /// Handles a list completed by a stack.
    fn complete(&mut self, list: NetBufferList) {
        self.switch.complete(&list);
        if list.context != 0 {
            self.completed.push_back(list);
        }
        self.return_unsent();
    }

    /// Records the acknowledgment of a FIN that no request of the target reports.
    fn record_fin(&mut self, io: &ConnectionIo<'_>) {
        self.status.shut_down |= self.switch.detects_offloaded_fin(|| io.query().delegated.state);
    }

    /// Posts receive requests of `bytes` each, unless enough are posted or too much data is unread.
    fn post_receives(&mut self, io: &mut ConnectionIo<'_>, bytes: usize) {
        let is_over = self.status.peer_closed || self.status.closed;
        if bytes == 0 || is_over || self.status.unread > RECEIVE_QUEUE_BYTES_MAX {
            return;
        }
        let missing = RECEIVES_POSTED.saturating_sub(self.receives_posted);
        self.receives_posted += missing;
        let request = |_| {
            let memory = self.request_memory.pop().filter(|memory| memory.len() == bytes);
            let memory = memory.unwrap_or_else(|| BytesMut::zeroed(bytes));
            ReceiveBufferList::from_mdl(0, memory)
        };
        let chain: ReceiveChain = (0..missing).map(request).collect();
        if !chain.is_empty() {
            io.post_receive(chain);
        }
    }

    fn push_received(&mut self, data: Bytes) {
        self.status.unread += data.len();
        self.receive_queue.push_back(data);
    }
}

#[derive(Debug)]
struct StreamListener {
    state: Option<Result<SocketAddr, HostError>>,
    accepted: VecDeque<OffloadHandle>,
}

/// Streams and listeners of a client for plain TCP.
#[derive(Debug)]
pub struct Streams {
    port: SocketPort,
    /// Requested local endpoints; `None`: not answered yet.
    endpoints: HashMap<EndpointId, Option<Result<SocketAddr, HostError>>>,
    streams: HashMap<OffloadHandle, Stream>,
    listeners: HashMap<ListenerId, StreamListener>,
    next_context: u64,
    /// Size of each receive request, in bytes; 0: none is posted.
    receive_bytes: usize,
}

/// Returns the address in the host stack's form: an IPv4-mapped one as IPv4, and without a scope, since a node has one
/// link.
fn on_node(address: SocketAddr) -> SocketAddr {
    unscoped(canonical(address))
}

impl Streams {
    /// Creates a client with this port to the host stack.
    pub fn new(port: SocketPort) -> Self {
        Self {
            port,
            endpoints: HashMap::new(),
            streams: HashMap::new(),
            listeners: HashMap::new(),
            next_context: 1,
            receive_bytes: 0,
        }
    }

    /// Keeps two receive requests of `bytes` each posted on every offloaded stream (CH-RCV-1), at most
    /// [`RECEIVE_QUEUE_BYTES_MAX`]. 0, the default: none, data is indicated. Applies from the next offload of each
    /// stream. Data is copied from a request, whose memory is posted again, so one-byte requests do not use more
    /// memory.
    pub fn post_receives(&mut self, bytes: usize) {
        self.receive_bytes = bytes.min(RECEIVE_QUEUE_BYTES_MAX);
    }

    /// Requests a local endpoint for this client alone; port 0: an ephemeral one. [`Streams::bound`] returns the
    /// result.
    pub fn bind(&mut self, local: SocketAddr) -> EndpointId {
        let endpoint = EndpointId(self.port.allocate());
        self.endpoints.insert(endpoint, None);
        self.port.request(Request::Bind { endpoint, local: on_node(local) });
        endpoint
    }

    /// Returns the address of a reserved endpoint, or the error; `None` until the host answers.
    pub fn bound(&self, endpoint: EndpointId) -> Option<Result<SocketAddr, HostError>> {
        *self.endpoints.get(&endpoint)?
    }

    /// Releases an endpoint. Its listener and connections remain.
    pub fn unbind(&mut self, endpoint: EndpointId) {
        if self.endpoints.remove(&endpoint).is_some() {
            self.port.request(Request::Unbind { endpoint });
        }
    }

    /// Starts to connect. [`Streams::status`] reports the progress.
    pub fn connect(
        &mut self,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        timeout: Duration,
    ) -> OffloadHandle {
        let handle = OffloadHandle(self.port.allocate());
        self.streams.insert(handle, Stream::new());
        let (endpoint, at_once) = (None, false);
        let remote = on_node(remote);
        let local = local.map(|local| source_for(unscoped(local), remote));
        self.port.request(Request::Connect { handle, local, endpoint, remote, timeout, at_once });
        handle
    }

    /// Starts to listen. [`Streams::listening`] returns the result.
    pub fn listen(&mut self, local: SocketAddr, backlog: usize) -> ListenerId {
        let listener = ListenerId(self.port.allocate());
        self.listeners.insert(listener, StreamListener { state: None, accepted: VecDeque::new() });
        let (local, endpoint, at_once) = (on_node(local).into(), None, false);
        self.port.request(Request::Listen { listener, local, endpoint, backlog, at_once });
        listener
    }

    /// Returns the address of a listener, or the error; `None` until the host answers.
    pub fn listening(&self, listener: ListenerId) -> Option<Result<SocketAddr, HostError>> {
        self.listeners.get(&listener)?.state
    }

    /// Returns the next accepted connection.
    pub fn accept(&mut self, listener: ListenerId) -> Option<OffloadHandle> {
        self.listeners.get_mut(&listener)?.accepted.pop_front()
    }

    /// True if [`Streams::accept`] has a connection.
    pub fn has_accepted(&self, listener: ListenerId) -> bool {
        self.listeners.get(&listener).is_some_and(|listener| !listener.accepted.is_empty())
    }

    /// Stops listening. Accepted connections remain.
    pub fn unlisten(&mut self, listener: ListenerId) {
        if self.listeners.remove(&listener).is_some() {
            self.port.request(Request::Unlisten { listener });
        }
    }

    /// Returns the status of a stream; `None` if it does not exist or was removed.
    pub fn status(&self, handle: OffloadHandle) -> Option<StreamStatus> {
        let stream = self.streams.get(&handle)?;
        let (state, unacknowledged) = (stream.switch.state(), stream.switch.outstanding());
        Some(StreamStatus { state, unacknowledged, ..stream.status })
    }

    /// Sends data as one net buffer list. Always accepted; the caller bounds [`StreamStatus::unacknowledged`]. Returns
    /// the list's context.
    pub fn send(
        &mut self,
        now: Instant,
        connections: &mut Connections,
        handle: OffloadHandle,
        data: Bytes,
    ) -> u64 {
        let context = self.next_context;
        let chain = NblChain::from([NetBufferList::from_mdl(context, data)]);
        self.post(now, connections, handle, chain);
        context
    }

    /// Posts a chain of net buffer lists with their contexts. [`Streams::completed`] returns them.
    pub fn post(
        &mut self,
        now: Instant,
        connections: &mut Connections,
        handle: OffloadHandle,
        mut chain: NblChain,
    ) {
        let Some(stream) = self.streams.get_mut(&handle) else { return };
        for list in &mut chain {
            list.context = self.next_context;
            self.next_context += 1;
        }
        let Some(chain) = stream.switch.send(chain) else {
            stream.return_unsent();
            return self.push(now, connections, handle);
        };
        if let Some(mut io) = connections.get(now, handle) {
            io.send(chain);
        }
    }

    /// Returns the completed lists of a stream, in order.
    pub fn completed(&mut self, handle: OffloadHandle) -> VecDeque<NetBufferList> {
        self.streams
            .get_mut(&handle)
            .map(|stream| core::mem::take(&mut stream.completed))
            .unwrap_or_default()
    }

    /// Returns the next received data.
    pub fn receive(
        &mut self,
        now: Instant,
        connections: &mut Connections,
        handle: OffloadHandle,
    ) -> Option<Bytes> {
        let stream = self.streams.get_mut(&handle)?;
        let data = stream.receive_queue.pop_front()?;
        stream.status.unread -= data.len();
        let from_host = data.len().min(stream.host_unconsumed);
        if from_host > 0 {
            stream.host_unconsumed -= from_host;
            self.port.request(Request::Consumed { handle, count: from_host });
        }
        if stream.refused && stream.status.unread <= RECEIVE_QUEUE_BYTES_MAX / 2 {
            stream.refused = false;
            if let Some(mut io) = connections.get(now, handle) {
                io.resume_receive();
                stream.post_receives(&mut io, self.receive_bytes);
            }
        }
        Some(data)
    }

    /// Sends FIN after all sent data.
    pub fn shutdown(&mut self, now: Instant, connections: &mut Connections, handle: OffloadHandle) {
        if let Some(stream) = self.streams.get_mut(&handle) {
            stream.switch.shut_down();
            self.push(now, connections, handle);
        }
    }

    /// Requests the offload of the connection, regardless of the policy. [`StreamStatus::state`] reports the progress;
    /// sends are queued meanwhile.
    pub fn offload(&mut self, handle: OffloadHandle) {
        self.port.request(Request::Offload { handle });
    }

    /// Requests the upload of the connection. It stays in the host until [`Streams::offload`].
    pub fn upload(&mut self, handle: OffloadHandle) {
        self.port.request(Request::Upload { handle });
    }

    /// Resets a connection.
    pub fn abort(&mut self, now: Instant, connections: &mut Connections, handle: OffloadHandle) {
        let Some(stream) = self.streams.get_mut(&handle) else { return };
        stream.switch.reset();
        stream.end(Some(HostError::Aborted));
        self.push(now, connections, handle);
    }

    /// Removes a closed stream; aborts an open one.
    pub fn forget(&mut self, now: Instant, connections: &mut Connections, handle: OffloadHandle) {
        if self.status(handle).is_some_and(|status| !status.closed) {
            self.abort(now, connections, handle);
        }
        self.streams.remove(&handle);
    }

    /// Posts queued sends to the stack that has the connection.
    fn push(&mut self, now: Instant, connections: &mut Connections, handle: OffloadHandle) {
        let Some(Stream { switch, .. }) = self.streams.get_mut(&handle) else { return };
        switch.pass_to_host(&self.port, handle, false);
        if switch.state() == OffloadState::Offloaded
            && let Some(mut io) = connections.get(now, handle)
        {
            switch.post_to_target(&mut io);
        }
    }
}

const _: () = assert!(RECEIVE_CREDIT_BYTES <= RECEIVE_QUEUE_BYTES_MAX);

#[cfg(test)]
mod tests;
