//! One end of one connection, on its own thread.

use bytes::{Bytes, BytesMut};
use host_stack::stream::StreamStatus;
use offload_engine::{
    chimney::client::{ConnectionIo, OffloadHandle},
    nbl::{NblChain, NetBuffer, NetBufferList, ReceiveBufferList, ReceiveChain},
};
use oorandom::Rand64;

use super::{LIMIT, PORT, TestNode};

/// Maximum number of bytes sent by one end.
const BYTES_MAX: u64 = 1_000_000;
/// Unacknowledged bytes at which an end stops sending.
const UNACKNOWLEDGED_MAX: usize = 64 * 1024;
/// Mean number of ends per reset instead of a close.
const ABORTS_ONE_IN: u64 = 8;

/// Role of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Connects,
    Accepts,
}

/// Result of a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) role: Role,
    /// Port of the connecting side, which identifies the connection on both sides.
    pub(crate) port: u16,
    /// True if one of the ends resets the connection.
    pub(crate) reset: bool,
    /// Final status.
    pub(crate) status: Option<StreamStatus>,
    pub(crate) lists: u64,
    pub(crate) queries: u64,
    pub(crate) updates: u64,
    pub(crate) received: u64,
    /// Expected bytes: less than the peer's plan if the connection was reset.
    pub(crate) expected: u64,
}

/// Data of one direction: a function of the seed and the connection.
struct Direction {
    rng: Rand64,
    total: u64,
    at: u64,
    aborts: bool,
}

impl Direction {
    /// `aborts`: the direction may end with a reset. A lost RST is not retransmitted, so this excludes lossy links.
    fn new(seed: u64, port: u16, from: Role, aborts: bool) -> Self {
        let from = u128::from(from == Role::Connects);
        let mut rng = Rand64::new((u128::from(seed) << 32) | (u128::from(port) << 1) | from);
        let total = 1 + rng.rand_range(0..BYTES_MAX);
        let aborts = rng.rand_range(0..ABORTS_ONE_IN) == 0 && aborts;
        Self { rng, total, at: 0, aborts }
    }

    fn left(&self) -> u64 {
        self.total - self.at
    }

    fn next(&mut self, count: usize) -> Vec<u8> {
        self.at += count as u64;
        (0..count).map(|_| self.rng.rand_u64() as u8).collect()
    }
}

/// Worker of one end.
pub(crate) struct Worker {
    node: TestNode,
    handle: OffloadHandle,
    role: Role,
    seed: u64,
    aborts: bool,
    /// Generator of the next actions.
    rng: Rand64,
    lists: Lists,
    end: End,
}

/// Lists posted and completed by a worker.
#[derive(Debug, Default)]
struct Lists {
    posted: usize,
    completed: usize,
    /// Context of the last completed list.
    context: u64,
    /// Number of posted receive requests.
    receives: u64,
}

impl Worker {
    pub(crate) fn new(
        node: TestNode,
        handle: OffloadHandle,
        role: Role,
        (seed, aborts): (u64, bool),
        index: u64,
    ) -> Self {
        let side = u64::from(role == Role::Connects);
        let rng = Rand64::new((u128::from(seed) << 64) | u128::from(index * 2 + side));
        let end = End {
            role,
            port: 0,
            reset: false,
            status: None,
            lists: 0,
            queries: 0,
            updates: 0,
            received: 0,
            expected: 0,
        };
        Self { node, handle, role, seed, aborts, rng, lists: Lists::default(), end }
    }

    /// Runs the connection from open to close.
    pub(crate) fn run(mut self) -> End {
        let status = self.wait("established", |status| status.connected || status.closed);
        assert!(status.connected, "{status:?}");
        let named = if self.role == Role::Connects { status.local } else { status.remote };
        let port = named.unwrap().port();
        assert_ne!(port, PORT);
        let peer = if self.role == Role::Connects { Role::Accepts } else { Role::Connects };
        let mut out = Direction::new(self.seed, port, self.role, self.aborts);
        let mut inward = Direction::new(self.seed, port, peer, self.aborts);
        // Both ends must expect a reset by either.
        let reset = out.aborts || inward.aborts;
        (self.end.port, self.end.reset) = (port, reset);
        let aborts_at = if out.aborts { out.total / 2 } else { u64::MAX };
        if out.aborts {
            // A reset may overtake the end of the handshake; then the connection is never accepted.
            self.send(&mut out);
            self.wait("accepted", |status| status.unacknowledged == 0 || status.closed);
        }
        while out.left() > 0 && out.at < aborts_at {
            self.act(&mut out);
            self.receive(&mut inward);
            self.take_completed();
            let status = self.status();
            if status.closed {
                break;
            }
            if status.unacknowledged >= UNACKNOWLEDGED_MAX {
                self.wait("acknowledged", |status| {
                    status.unacknowledged < UNACKNOWLEDGED_MAX || status.unread > 0 || status.closed
                });
            }
        }
        if out.aborts {
            self.node.with(|client, connections, now| {
                client.streams.abort(now, connections, self.handle);
            });
        }
        self.finish(&mut inward, reset);
        self.end
    }

    /// Closes the send direction and receives the remaining data.
    fn finish(&mut self, inward: &mut Direction, reset: bool) {
        self.node.with(|client, connections, now| {
            client.streams.shutdown(now, connections, self.handle);
        });
        let status = loop {
            self.receive(inward);
            let status = self.wait("the end", |status| {
                let through = status.shut_down && status.peer_closed;
                status.unread > 0 || through || status.closed
            });
            if status.unread == 0 {
                break status;
            }
        };
        self.take_completed();
        self.end.expected = if status.error.is_some() { self.end.received } else { inward.total };
        self.end.status = Some(status);
        if reset || status.error.is_some() {
            return;
        }
        assert_eq!(inward.left(), 0, "{:?} {status:?}", self.role);
        assert_eq!(status.unacknowledged, 0, "{:?} {status:?}", self.role);
        assert_eq!(self.lists.completed, self.lists.posted, "{:?} {status:?}", self.lists);
    }

    fn status(&self) -> StreamStatus {
        self.node.with(|client, _, _| client.streams.status(self.handle)).unwrap()
    }

    fn wait(&self, state: &str, is_so: impl Fn(&StreamStatus) -> bool) -> StreamStatus {
        let waited = self
            .node
            .wait(Some(LIMIT), |client, _, _| client.streams.status(self.handle).filter(&is_so));
        waited.unwrap_or_else(|error| {
            panic!("{:?} {:?}: {state}: {error}; {:?}", self.role, self.handle, self.status())
        })
    }

    /// Performs one random call.
    fn act(&mut self, out: &mut Direction) {
        match self.rng.rand_range(0..10) {
            0 => self.with_io(|io, end| {
                let delegated = io.query().delegated;
                assert!(delegated.snd_una.is_at_or_before(delegated.snd_max));
                end.queries += 1;
            }),
            1 => self.update(),
            2 => self.post_receive(),
            3 => self.with_io(|io, _| assert!(io.info().bytes_acked <= BYTES_MAX)),
            _ => self.send(out),
        }
    }

    /// Posts a list of one to three MDLs.
    fn send(&mut self, out: &mut Direction) {
        let mut buffer = NetBuffer::new();
        for _ in 0..self.rng.rand_range(1..4) {
            let count = self.rng.rand_range(1..9_000).min(out.left()) as usize;
            buffer.push_mdl(Bytes::from(out.next(count)));
        }
        self.end.lists += 1;
        self.lists.posted += 1;
        let mut list = NetBufferList::new(0);
        list.net_buffers.push(buffer);
        self.node.with(|client, connections, now| {
            client.streams.post(now, connections, self.handle, NblChain::from([list]));
        });
    }

    fn with_io(&mut self, f: impl FnOnce(&mut ConnectionIo<'_>, &mut End)) {
        let (handle, end) = (self.handle, &mut self.end);
        self.node.with(|_, connections, now| {
            if let Some(mut io) = connections.get(now, handle) {
                f(&mut io, end);
            }
        });
    }

    /// CH-UPD-5: SO_RCVBUF, Nagle's algorithm and keep-alive, as set by a socket.
    fn update(&mut self) {
        let nagle = self.rng.rand_range(0..2) == 0;
        let keep_alive = self.rng.rand_range(0..2) == 0;
        self.with_io(|io, end| {
            let mut cached = io.query().cached;
            cached.nagling_enabled = nagle;
            cached.keep_alive_enabled = keep_alive;
            cached.rcv_indication_size = 1_000 * u32::from(nagle);
            io.update(cached);
            assert_eq!(io.query().cached, cached, "a query returns the updated values");
            end.updates += 1;
        });
    }

    /// Posts a receive request, completed by every PSH or only when full.
    fn post_receive(&mut self) {
        let length = self.rng.rand_range(0..4_000) as usize;
        let no_push = self.rng.rand_range(0..4) == 0;
        let context = self.lists.receives;
        let mut posted = false;
        self.with_io(|io, _| {
            let mut list = ReceiveBufferList::from_mdl(context, BytesMut::zeroed(length));
            list.no_push = no_push;
            io.post_receive(ReceiveChain::from([list]));
            posted = true;
        });
        self.lists.receives += u64::from(posted);
    }

    /// CH-SNC-1: each list completes once, in posting order, whichever stack sent it.
    fn take_completed(&mut self) {
        let chain = self.node.with(|client, _, _| client.streams.completed(self.handle));
        for list in chain {
            assert!(list.context > self.lists.context, "{:?} {list:?}", self.lists);
            self.lists.context = list.context;
            self.lists.completed += 1;
        }
    }

    /// Receives the peer's bytes, and verifies their order.
    fn receive(&mut self, inward: &mut Direction) {
        loop {
            let data = self.node.with(|client, connections, now| {
                client.streams.receive(now, connections, self.handle)
            });
            let Some(data) = data else { return };
            assert!(data.len() as u64 <= inward.left(), "more than the peer sends");
            let at = inward.at;
            assert!(inward.next(data.len()) == data, "wrong bytes from {at} on");
            self.end.received += data.len() as u64;
        }
    }
}
