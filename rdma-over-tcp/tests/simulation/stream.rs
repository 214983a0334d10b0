//! Byte stream in parallel to the queue pairs: another client of the same nodes, on the same addresses.
//!
//! Both ends send continuously, and check the data on arrival. Occasionally one of them moves its connection to the
//! other stack.

use std::net::SocketAddr;

use flue_test_support::{check, stream::Stream};
use host_stack::{
    node::Core,
    simulation::Pair,
    socket::ListenerId,
    stream::{OffloadState, Streams},
};
use offload_engine::{
    chimney::client::{ClientTag, OffloadHandle},
    time::Duration,
};
use oorandom::Rand64;

use crate::plan::{draw, once_in};

const PORT: u16 = 7001;
/// A lost SYN costs seconds.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum unacknowledged bytes of an end.
const WINDOW: usize = 128 * 1024;

/// One end: state of its sent and expected data.
struct End {
    client: ClientTag,
    handle: Option<OffloadHandle>,
    source: Stream,
    left: usize,
    expected: Stream,
    missing: usize,
    shut_down: bool,
}

/// Both ends, and their progress.
pub(crate) struct ByteStream {
    ends: [End; 2],
    server: SocketAddr,
    listener: ListenerId,
    rng: Rand64,
    /// One in this many steps moves the connection; 0: never.
    moves: usize,
    pub(crate) moved: usize,
}

fn streams(core: &mut Core, client: ClientTag) -> &mut Streams {
    core.clients.get_mut(client).expect("a registered client")
}

impl ByteStream {
    /// Registers a client with each node; the second one listens.
    pub(crate) fn new(rng: &mut Rand64, pair: &mut Pair<Core>, server: SocketAddr) -> Self {
        let mut rng = Rand64::new(u128::from(rng.rand_u64()));
        let server = SocketAddr::new(server.ip(), PORT);
        let clients = [&mut pair.a, &mut pair.b].map(|core| core.register(Streams::new).unwrap());
        let listener = streams(&mut pair.b, clients[1]).listen(server, 4);
        let seeds = [rng.rand_u64(), rng.rand_u64()];
        let bytes = [(); 2].map(|()| draw(&mut rng, 400_000));
        let end = |own: usize| End {
            client: clients[own],
            handle: None,
            source: Stream::new(seeds[own]),
            left: bytes[own],
            expected: Stream::new(seeds[1 - own]),
            missing: bytes[1 - own],
            shut_down: false,
        };
        let ends = [end(0), end(1)];
        let moves = [0, 200, 50][draw(&mut rng, 3)];
        Self { ends, server, listener, rng, moves, moved: 0 }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.ends.iter().all(|end| end.shut_down && end.missing == 0)
    }

    /// Sends and receives as far as possible at this time.
    pub(crate) fn step(&mut self, pair: &mut Pair<Core>) {
        let Self { ends: [one, other], server, listener, rng, moves, moved } = self;
        let listening = streams(&mut pair.b, other.client).listening(*listener);
        if one.handle.is_none() && listening.is_some_and(|state| state.is_ok()) {
            let client = streams(&mut pair.a, one.client);
            one.handle = Some(client.connect(None, *server, TIMEOUT));
        }
        if other.handle.is_none() {
            other.handle = streams(&mut pair.b, other.client).accept(*listener);
        }
        let now = pair.now;
        for (end, core) in [(one, &mut pair.a), (other, &mut pair.b)] {
            let Some(handle) = end.handle else { continue };
            let client: &mut Streams = core.clients.get_mut(end.client).unwrap();
            let connections = core.engine.connections();
            let Some(status) = client.status(handle).filter(|status| status.connected) else {
                continue;
            };
            check!(LostConnection, status.error.is_none(), "the byte stream: {status:?}");
            if end.left > 0 && status.unacknowledged < WINDOW {
                let mut chunk = vec![0; (1 + draw(rng, 20_000)).min(end.left)];
                end.source.fill(&mut chunk);
                end.left -= chunk.len();
                client.send(now, connections, handle, chunk.into());
            } else if end.left == 0 && !end.shut_down {
                end.shut_down = true;
                client.shutdown(now, connections, handle);
            }
            while let Some(data) = client.receive(now, connections, handle) {
                let known = data.len().min(end.missing);
                let mut expected = vec![0; known];
                end.expected.fill(&mut expected);
                check!(WrongData, data == expected, "the byte stream, {} missing", end.missing);
                end.missing -= known;
            }
            if *moves > 0 && once_in(rng, *moves) {
                match status.state {
                    OffloadState::InHost => client.offload(handle),
                    OffloadState::Offloaded => client.upload(handle),
                    OffloadState::Offloading | OffloadState::Uploading | OffloadState::Kernel => {
                        continue;
                    }
                }
                *moved += 1;
            }
        }
    }
}
