//! Moves of queue pairs' connections between the stacks, as by `flue offload` and `flue upload`: any connection at any
//! time, including one that is already moving.

use crossbeam_channel::Receiver;
use host_stack::{
    node::Core, simulation::Pair, socket::ConnectionRow, socket::Request, stream::OffloadState,
};
use offload_engine::time::{Duration, Instant};
use oorandom::Rand64;

use crate::plan::{draw, once_in};

/// Mover of the connections of one node.
struct Migrator {
    /// Pending list of connections.
    rows: Option<Receiver<Vec<ConnectionRow>>>,
    /// Time of the next request.
    due: Instant,
}

/// Movers of both nodes.
pub(crate) struct Migrators {
    movers: [Migrator; 2],
    rng: Rand64,
    /// Maximum time between two requests, µs.
    rest: usize,
    /// Requests until the interval is increased.
    frequent: u32,
}

/// Maximum frequent requests of a seed: a run with half a minute of virtual time would otherwise take as long in real
/// time. After them the maximum time between two is [`RARE`], µs.
const FREQUENT_MAX: u32 = 5_000;
const RARE: usize = 100_000;

impl Migrators {
    pub(crate) fn new(rng: &mut Rand64) -> Self {
        let mut rng = Rand64::new(u128::from(rng.rand_u64()));
        let rest = [300, 3_000, 30_000][draw(&mut rng, 3)];
        let movers = [(); 2].map(|()| Migrator { rows: None, due: Instant::ZERO });
        Self { movers, rng, rest, frequent: FREQUENT_MAX }
    }

    /// Moves a connection of each node if its time is reached.
    pub(crate) fn step(&mut self, pair: &Pair<Core>) {
        let Self { movers, rng, rest, frequent } = self;
        let now = pair.now;
        for (core, mover) in [&pair.a, &pair.b].into_iter().zip(movers) {
            if let Some(rows) = mover.rows.as_ref().and_then(|rows| rows.try_recv().ok()) {
                mover.rows = None;
                let rows = rows.iter().filter(|row| row.remote.is_some()).collect::<Vec<_>>();
                if !rows.is_empty() {
                    core.request(request(rows[draw(rng, rows.len())], rng));
                }
            } else if mover.rows.is_none() && mover.due <= now {
                let rest = if *frequent > 0 { *rest } else { RARE };
                *frequent = frequent.saturating_sub(1);
                mover.due = now + Duration::from_micros(1 + draw(rng, rest) as u64);
                let (reply, rows) = crossbeam_channel::bounded(1);
                mover.rows = Some(rows);
                core.request(Request::List { only: None, reply });
            }
        }
    }
}

/// Selects the other stack in nine of ten cases, otherwise the current or pending stack of the connection.
fn request(row: &ConnectionRow, rng: &mut Rand64) -> Request {
    let handle = row.handle;
    let is_down = matches!(row.offload, OffloadState::Offloaded | OffloadState::Offloading);
    match is_down != once_in(rng, 10) {
        true => Request::Upload { handle },
        false => Request::Offload { handle },
    }
}
