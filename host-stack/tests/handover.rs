//! Two nodes over a lossy network on virtual time: connect, offload, transfer data in both directions, close.
//!
//! Everything is a function of the seed. A failure prints it with the command to repeat it: `FLUE_SEED=17 cargo test -p
//! host-stack --test handover streams`. `FLUE_SEEDS=0..5000` runs a campaign ([`flue_test_support::seeds`]);
//! `FLUE_PCAP=file` together with FLUE_SEED writes a capture.

use std::{
    collections::VecDeque,
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
};

use bytes::Bytes;
use flue_test_support::{check, seeds::Suite, stream::Stream};
use host_stack::{
    host::HostConfig,
    node::Core,
    simulation::{Pair, engine_with_long_time_wait, impaired_wire},
    socket::OffloadPolicy,
    stream::{OffloadState, StreamStatus, Streams},
};
use offload_engine::{
    chimney::client::OffloadHandle,
    link::{Impairments, Link, MemoryLinkOptions},
    nbl::NetBufferList,
    state::MacAddress,
    status::NdisStatus,
    tcp::PushPolicy,
    time::{Duration, Instant},
};
use oorandom::Rand64;

const SUITE: Suite = Suite {
    name: "handover",
    command: "cargo test -p host-stack --test handover streams",
    seeds: 150,
    classes: &[],
};
const IN_HOST: Suite = Suite {
    name: "in-host",
    command: "cargo test -p host-stack --test handover two_ends",
    ..SUITE
};
/// Time limit of a seed, in virtual time: generous, since a lost SYN costs seconds and a lost probe more.
const LIMIT: Instant = Instant::from_millis(7_200_000);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(120);

/// Parameters selected by a seed.
#[derive(Debug)]
struct Plan {
    impairments: [Impairments; 2],
    link: MemoryLinkOptions,
    policies: [OffloadPolicy; 2],
    /// Mean number of steps between two migrations of the connection to the other stack, for each end; 0: none.
    moves: [u64; 2],
    push: PushPolicy,
    addresses: [IpAddr; 2],
    bytes: [usize; 2],
    receive_buffer: usize,
}

impl Plan {
    fn new(rng: &mut Rand64) -> Self {
        let percent = |rng: &mut Rand64, most: u64| rng.rand_range(0..most * 100) as f64 / 100.0;
        let bad = rng.rand_range(0..3) != 0;
        let mut impairments = || {
            let mut one = Impairments { seed: rng.rand_u64(), ..Impairments::default() };
            one.delay = Duration::from_micros(rng.rand_range(0..3_000));
            if bad {
                one.drop_pct = percent(rng, 5);
                one.duplicate_pct = percent(rng, 5);
                one.reorder_pct = percent(rng, 10);
                one.corrupt_pct = percent(rng, 2);
            }
            one
        };
        let impairments = [impairments(), impairments()];
        let mtu = [1280, 1500, 9000][rng.rand_range(0..3) as usize];
        let link = MemoryLinkOptions {
            mtu,
            offloads: rng.rand_range(0..2) == 0,
            ..MemoryLinkOptions::default()
        };
        let mut policy = || match rng.rand_range(0..4) {
            0 => OffloadPolicy::Never,
            1 => OffloadPolicy::Auto,
            _ => OffloadPolicy::Always,
        };
        let policies = [policy(), policy()];
        let mut moves = [0, 0];
        let kind = rng.rand_range(0..4);
        if kind > 0 {
            let often = [5, 50, 500][rng.rand_range(0..3) as usize];
            moves[rng.rand_range(0..2) as usize] = often;
            if kind == 3 {
                moves = [often; 2];
            }
        }
        let v6 = rng.rand_range(0..3) == 0;
        let texts = if v6 { ["fd00::1", "fd00::2"] } else { ["10.1.0.1", "10.1.0.2"] };
        let mut size = || match rng.rand_range(0..4) {
            0 => rng.rand_range(0..3),
            1 => rng.rand_range(0..5_000),
            _ => rng.rand_range(0..400_000),
        } as usize;
        Self {
            impairments,
            link,
            policies,
            moves,
            bytes: [size(), size()],
            push: if rng.rand_range(0..2) == 0 {
                PushPolicy::EachList
            } else {
                PushPolicy::QueueEmpty
            },
            addresses: texts.map(|text| text.parse().unwrap()),
            receive_buffer: [8 * 1024, 64 * 1024, 512 * 1024][rng.rand_range(0..3) as usize],
        }
    }

    fn node(&self, index: usize, link: impl Link + 'static, seed: u64) -> Core {
        let mac = MacAddress([2, 0, 0, 0, 0, 1 + index as u8]);
        let mut engine = engine_with_long_time_wait(mac);
        engine.tcp.push = self.push;
        let host = HostConfig {
            mtu: self.link.mtu,
            policy: self.policies[index],
            // As in the target.
            time_wait: engine.tcp.time_wait,
            receive_buffer: self.receive_buffer,
            seed,
            ..HostConfig::new(mac, self.addresses[index])
        };
        Core::new(Box::new(link), engine, host, Streams::new).unwrap()
    }
}

/// One end: data to send, and its progress.
struct End {
    data: Vec<u8>,
    sent: usize,
    shut: bool,
    received: Vec<u8>,
    rng: Rand64,
    handle: Option<OffloadHandle>,
    /// Mean number of steps between two migrations.
    moves: u64,
    /// Contexts and lengths of the outstanding lists, in order.
    lists: VecDeque<(u64, usize)>,
}

impl End {
    fn new(length: usize, moves: u64, rng: &mut Rand64) -> Self {
        let mut rng = Rand64::new(u128::from(rng.rand_u64()));
        let mut data = vec![0; length];
        Stream::new(rng.rand_u64()).fill(&mut data);
        Self {
            data,
            sent: 0,
            shut: false,
            received: Vec::new(),
            rng,
            handle: None,
            moves,
            lists: VecDeque::new(),
        }
    }

    /// Sends and reads some data.
    fn act(&mut self, core: &mut Core, now: Instant) -> Option<StreamStatus> {
        let handle = self.handle?;
        let (streams, connections) =
            (core.clients.first_mut::<Streams>(), core.engine.connections());
        while self.sent < self.data.len()
            && streams.status(handle)?.unacknowledged < 200_000
            && streams.status(handle)?.error.is_none()
        {
            let most = (self.data.len() - self.sent) as u64;
            let length = 1 + self.rng.rand_range(0..most.min(30_000)) as usize;
            let piece = Bytes::copy_from_slice(&self.data[self.sent..self.sent + length]);
            let context = streams.send(now, connections, handle, piece);
            self.lists.push_back((context, length));
            self.sent += length;
        }
        if self.sent == self.data.len() && !self.shut {
            self.shut = true;
            streams.shutdown(now, connections, handle);
        }
        while let Some(data) = streams.receive(now, connections, handle) {
            self.received.extend_from_slice(&data);
        }
        // Its lists complete aborted; the connection's error is reported instead.
        if streams.status(handle)?.error.is_some() {
            return streams.status(handle);
        }
        // CH-SNC-1, -3: each list completes once, in order and whole, whichever stack has it at the end.
        for list in streams.completed(handle) {
            let (left, expected) = (list.data_length(), self.lists.pop_front());
            let NetBufferList { context, bytes_transferred, status, .. } = list;
            let is_next = expected == Some((context, bytes_transferred));
            check!(
                WrongCompletion,
                is_next && left == 0 && status == NdisStatus::SUCCESS,
                "not {expected:?}: list {context}, {status}, {bytes_transferred} bytes, {left} left"
            );
        }
        if self.moves > 0 && self.rng.rand_range(0..self.moves) == 0 {
            match streams.status(handle)?.state {
                OffloadState::InHost => streams.offload(handle),
                OffloadState::Offloaded => streams.upload(handle),
                OffloadState::Offloading | OffloadState::Uploading | OffloadState::Kernel => {}
            }
        }
        streams.status(handle)
    }
}

fn scenario(seed: u64) -> (String, u64) {
    let mut rng = Rand64::new(u128::from(seed));
    let plan = Plan::new(&mut rng);
    run(&plan, rng)
}

/// Returns a description of the run, and its number of uploads.
fn run(plan: &Plan, mut rng: Rand64) -> (String, u64) {
    let [left, right] = impaired_wire(plan.link, plan.impairments).unwrap();
    let mut pair =
        Pair::new(plan.node(0, left, rng.rand_u64()), plan.node(1, right, rng.rand_u64()));
    let mut end = |index: usize| End::new(plan.bytes[index], plan.moves[index], &mut rng);
    let mut ends = [end(0), end(1)];

    let server = SocketAddr::new(plan.addresses[1], 5000);
    let listener = pair.b.clients.first_mut::<Streams>().listen(server, 4);
    ends[0].handle =
        Some(pair.a.clients.first_mut::<Streams>().connect(None, server, CONNECT_TIMEOUT));

    let mut over = [false; 2];
    let outcome = pair.run(LIMIT, |pair| {
        if ends[1].handle.is_none() {
            ends[1].handle = pair.b.clients.first_mut::<Streams>().accept(listener);
        }
        let (now, [a, b]) = (pair.now, &mut ends);
        let statuses = [a.act(&mut pair.a, now), b.act(&mut pair.b, now)];
        for (over, status) in over.iter_mut().zip(statuses) {
            let Some(status) = status else { continue };
            check!(
                LostConnection,
                status.error.is_none(),
                "{:?} at {now:?}\n{plan:?}",
                status.error
            );
            *over = status.shut_down && status.peer_closed && status.unread == 0;
        }
        over.iter().all(|over| *over).then_some(())
    });
    let mut text = format!("{plan:?}\n");
    for (index, (end, core)) in ends.iter().zip([&pair.a, &pair.b]).enumerate() {
        let status = end.handle.and_then(|handle| core.clients.first::<Streams>().status(handle));
        let _ = writeln!(
            text,
            "node {index}: sent {} of {}, received {}, {status:?}",
            end.sent,
            end.data.len(),
            end.received.len()
        );
        let _ = writeln!(text, "  {:?} {:?}", core.engine.stats(), core.engine.link_stats());
    }
    check!(Stuck, outcome.is_ok(), "{outcome:?}\n{text}");
    check!(WrongData, ends[0].received == ends[1].data, "b to a differs\n{text}");
    check!(WrongData, ends[1].received == ends[0].data, "a to b differs\n{text}");
    for (index, core) in [&pair.a, &pair.b].into_iter().enumerate() {
        let handle = ends[index].handle.unwrap();
        let state = core.clients.first::<Streams>().status(handle).unwrap().state;
        let lists = &ends[index].lists;
        check!(WrongCompletion, lists.is_empty(), "lists without a completion\n{text}");
        match plan.policies[index] {
            _ if plan.moves[index] > 0 => {}
            OffloadPolicy::Always => {
                // The host has TIME-WAIT.
                let was_offloaded =
                    matches!(state, OffloadState::Offloaded | OffloadState::Uploading);
                assert!(was_offloaded, "{state:?}\n{text}");
                assert_eq!(core.engine.stats().initiates, 1, "{text}");
            }
            OffloadPolicy::Never => assert_eq!(core.engine.stats().initiates, 0, "{text}"),
            OffloadPolicy::Auto => {}
        }
        assert_eq!(core.engine.stats().initiate_failures, 0, "{text}");
    }
    let stats = |core: &Core| core.host.as_ref().expect("a host stack").stats();
    let uploads = [&pair.a, &pair.b].map(|core| stats(core).uploads);
    (text, uploads.iter().sum())
}

// CH-INI, CH-TRM, CH-FWD-2, CH-SND-2: no byte is lost, duplicated or reordered by any offload or upload, whatever the
// network does, and each list completes once.
#[test]
fn streams_survive_migrations() {
    let add = |sum: &mut (u64, u64), uploads: u64| *sum = (sum.0 + 1, sum.1 + uploads);
    let (runs, uploads): (u64, u64) = SUITE.run(|seed| scenario(seed).1, add);
    println!("{uploads} uploads in {runs} runs");
    assert!(runs < SUITE.seeds || uploads > runs, "{uploads} uploads in {runs} runs");
}

// RFC 9293 §3.10.7.4: two ends that stay in the host make progress, whatever both lose.
#[test]
fn two_ends_in_the_host_make_progress() {
    let in_host = |seed| {
        let mut rng = Rand64::new(u128::from(seed));
        let mut plan = Plan::new(&mut rng);
        plan.policies = [OffloadPolicy::Never; 2];
        plan.moves = [0; 2];
        for one in &mut plan.impairments {
            one.drop_pct = 1.0 + rng.rand_range(0..700) as f64 / 100.0;
        }
        run(&plan, rng);
    };
    IN_HOST.run(in_host, |(): &mut (), ()| {});
}

// The bench is deterministic: the same seed gives the same run.
#[test]
fn same_seed_gives_same_run() {
    assert_eq!(scenario(3), scenario(3));
}
