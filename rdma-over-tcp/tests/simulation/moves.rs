//! Somebody who has the connections of queue pairs moved between the stacks, as a user does with `flue offload` and
//! `flue upload`: any connection at any time, also while it is on its way.

use crossbeam_channel::Receiver;
use host_stack::{
    host::ConnectionRow,
    node::Core,
    simulation::Pair,
    socket::{Notice, Request, SocketPort},
    stream::OffloadState,
};
use offload_engine::{
    chimney::client::{ClientTag, ConnectionEvent, ConnectionIo, OffloadClient, OffloadHandle},
    engine::{Callback, Connections, NodeClient},
    nbl::{NblChain, NetBufferList, ReceiveChain},
    time::{Duration, Instant},
};
use oorandom::Rand64;

use crate::plan::{draw, once_in};

/// A client that has no connections of its own.
struct Asker {
    port: SocketPort,
    rows: Option<Receiver<Vec<ConnectionRow>>>,
}

impl OffloadClient for Asker {
    fn offloaded(&mut self, _io: &mut ConnectionIo<'_>) {}
    fn receive(&mut self, _io: &mut ConnectionIo<'_>, data: &[u8], _push: bool) -> usize {
        data.len()
    }
    fn receive_complete(&mut self, _io: &mut ConnectionIo<'_>, _chain: ReceiveChain) {}
    fn send_complete(&mut self, _io: &mut ConnectionIo<'_>, _chain: NblChain) {}
    fn send_room(&mut self, _io: &mut ConnectionIo<'_>) {}
    fn disconnect_complete(&mut self, _io: &mut ConnectionIo<'_>, _nbl: NetBufferList) {}
    fn uploaded(&mut self, _handle: OffloadHandle) {}
    fn event(&mut self, _io: &mut ConnectionIo<'_>, _event: ConnectionEvent) {}
}

impl NodeClient for Asker {
    fn name() -> &'static str {
        "mover"
    }
    fn poll(&mut self, _now: Instant, _connections: &mut Connections) -> bool {
        self.port.notice().is_some_and(|notice: Notice| panic!("{notice:?}"))
    }
    fn poll_at(&self) -> Option<Instant> {
        None
    }
    fn has_input(&self) -> bool {
        self.port.has_notice()
    }
    fn take_callbacks(&mut self, _callbacks: &mut Vec<Callback>) {}
}

/// The movers of both nodes.
pub(crate) struct Moves {
    clients: [ClientTag; 2],
    rng: Rand64,
    /// Microseconds between two wishes, at most.
    rest: usize,
    /// When each node's next one is due.
    due: [Instant; 2],
}

impl Moves {
    pub(crate) fn new(rng: &mut Rand64, pair: &mut Pair<Core>) -> Self {
        let mut rng = Rand64::new(u128::from(rng.rand_u64()));
        let clients = [&mut pair.a, &mut pair.b]
            .map(|core| core.register(|port| Asker { port, rows: None }).unwrap());
        let rest = [300, 3_000, 30_000][draw(&mut rng, 3)];
        Self { clients, rng, rest, due: [Instant::ZERO; 2] }
    }

    /// Has connections moved, now and then.
    pub(crate) fn step(&mut self, pair: &mut Pair<Core>) {
        let Self { clients, rng, rest, due } = self;
        let now = pair.now;
        let nodes = [&mut pair.a, &mut pair.b].into_iter().zip(clients);
        for ((core, client), due) in nodes.zip(due) {
            let asker: &mut Asker = core.clients.get_mut(*client).expect("it stays");
            if let Some(rows) = asker.rows.as_ref().and_then(|rows| rows.try_recv().ok()) {
                asker.rows = None;
                let of_pairs = rows.into_iter().filter(|row| row.remote.is_some());
                let rows: Vec<_> = of_pairs.collect();
                if !rows.is_empty() {
                    let ConnectionRow { handle, offload, .. } = rows[draw(rng, rows.len())];
                    let is_down =
                        matches!(offload, OffloadState::Offloaded | OffloadState::Offloading);
                    // A wish for where it is, or goes to, is one too.
                    let request = match is_down != once_in(rng, 10) {
                        true => Request::Upload { handle },
                        false => Request::Offload { handle },
                    };
                    asker.port.request(request);
                }
            } else if asker.rows.is_none() && *due <= now {
                *due = now + Duration::from_micros(1 + draw(rng, *rest) as u64);
                let (reply, rows) = crossbeam_channel::bounded(1);
                asker.rows = Some(rows);
                asker.port.request(Request::List { reply });
            }
        }
    }
}
