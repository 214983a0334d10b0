//! Throughput of one and several queues of a TAP: bytes between a node's streams and kernel sockets, with GSO packets.
//!
//! Each queue has its engine thread and a consumer thread; each connection has a thread with a socket. All share the
//! machine's CPUs, so the gain depends on their number. Samples alternate.
//!
//! ```text
//! cargo test --release -p host-stack --test queues_cost -- --ignored --nocapture
//! ```
//!
//! `FLUE_ROUNDS=3`, `FLUE_CONNECTIONS=8`, `FLUE_WAY=out`, `FLUE_QUEUES=2` restrict the run.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flue_test_support::needs::{Need, lacks};
use flue_test_support::netns::Namespace;
use host_stack::host::HostConfig;
use host_stack::node::{Node, NodeConfig};
use host_stack::socket::ListenerId;
use host_stack::stream::Streams;
use offload_engine::chimney::client::OffloadHandle;
use offload_engine::link::{TapOptions, VnetMode, open_tap_queues};
use offload_engine::state::MacAddress;
use offload_engine::time::Duration as EngineDuration;
use rustix::time::{ClockId, clock_gettime};

const NEEDS: &[Need] = &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("unshare")];
const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 9]);
const TAP: &str = "queues0";
const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 1);
const NODE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 98, 0, 2)), 5000);
const ROUNDS: usize = 5;
const CONNECTIONS: [usize; 2] = [2, 8];
const QUEUES: [usize; 2] = [1, 2];
const WARM_UP: Duration = Duration::from_millis(200);
const SAMPLE: Duration = Duration::from_millis(800);
/// Time limit of a socket call, or of a consumer's wait, without work.
const STEP: Duration = Duration::from_millis(50);
const LIMIT: EngineDuration = EngineDuration::from_secs(10);
/// Bytes of a list, and maximum bytes posted and unacknowledged per connection.
const LIST_BYTES: usize = 64 * 1024;
const POSTED_BYTES_MAX: usize = 512 * 1024;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The node sends.
    Out,
    /// The node receives.
    In,
}

/// State shared by all threads of a sample.
#[derive(Default)]
struct Shared {
    /// Bytes received by the receivers.
    received: AtomicU64,
    over: AtomicBool,
}

#[derive(Clone)]
struct Sample {
    bits_per_second: f64,
    /// CPU time of all threads of both ends, user and system.
    cpu_seconds_per_gbyte: f64,
    /// Frames passed on between queues, and all frames received for connections.
    passed_on: u64,
    segments: u64,
}

fn start(kernel: &Namespace, queues: usize) -> Vec<Node<Streams>> {
    let options = TapOptions::new(TAP, 1500, VnetMode::On);
    let taps = kernel.run(|| open_tap_queues(&options, queues)).expect("TAP can be opened");
    kernel.ip(&format!("addr add {KERNEL}/24 dev {TAP}"));
    kernel.ip(&format!("link set {TAP} up"));
    let spin = EngineDuration::from_micros(50);
    let config = NodeConfig { spin, ..NodeConfig::new(HostConfig::new(MAC, NODE.ip())) };
    let links = taps.into_iter().map(|tap| tap.link).collect();
    Node::start_queues(links, config, Streams::new).expect("node can be started")
}

/// Kernel socket on its own thread.
fn peer(kernel: &Namespace, way: Way, shared: &Arc<Shared>) -> JoinHandle<()> {
    let shared = shared.clone();
    kernel.spawn_thread(move || {
        let mut socket = TcpStream::connect(NODE).expect("the node listens");
        socket.set_read_timeout(Some(STEP)).expect("a time that is not zero");
        socket.set_write_timeout(Some(STEP)).expect("a time that is not zero");
        let mut buffer = vec![7; 256 * 1024];
        while !shared.over.load(Ordering::Relaxed) {
            // An expired call is repeated.
            match way {
                Way::Out => {
                    let count = socket.read(&mut buffer).unwrap_or(0);
                    shared.received.fetch_add(count as u64, Ordering::Relaxed);
                }
                Way::In => drop(socket.write(&buffer)),
            }
        }
    })
}

/// Consumer of a queue, with the connections accepted by its listener.
fn consume(node: &Node<Streams>, way: Way, accepted: &[OffloadHandle], shared: &Shared) {
    let list = Bytes::from(vec![7; LIST_BYTES]);
    let step = EngineDuration::from_nanos(STEP.as_nanos() as u64);
    while !shared.over.load(Ordering::Relaxed) {
        // A timeout without work is not a failure.
        let _ = node.wait(Some(step), |streams, connections, now| {
            let mut received = 0;
            for handle in accepted {
                if way == Way::Out {
                    let status = streams.status(*handle).expect("it is not forgotten");
                    let room = POSTED_BYTES_MAX.saturating_sub(status.unacknowledged);
                    for _ in 0..room / LIST_BYTES {
                        streams.send(now, connections, *handle, list.clone());
                    }
                }
                while let Some(data) = streams.receive(now, connections, *handle) {
                    received += data.len() as u64;
                }
            }
            shared.received.fetch_add(received, Ordering::Relaxed);
            shared.over.load(Ordering::Relaxed).then_some(())
        });
    }
}

fn listen(node: &Node<Streams>) -> ListenerId {
    let listener = node.with(|streams, _, _| streams.listen(NODE, 64));
    let listening = node.wait(Some(LIMIT), |streams, _, _| streams.listening(listener));
    listening.expect("the node answers").expect("the port is free");
    listener
}

/// CPU time of this process, in seconds.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn sample(queues: usize, connections: usize, way: Way) -> Sample {
    let kernel = Namespace::new();
    let nodes = start(&kernel, queues);
    let listeners: Vec<_> = nodes.iter().map(listen).collect();
    let shared = Arc::new(Shared::default());
    let peers: Vec<_> = (0..connections).map(|_| peer(&kernel, way, &shared)).collect();
    // Connections are spread evenly.
    let share = connections / queues;
    let accepted: Vec<Vec<_>> = nodes
        .iter()
        .zip(&listeners)
        .map(|(node, listener)| {
            let next = |_| {
                let accepted = node.wait(Some(LIMIT), |streams, _, _| streams.accept(*listener));
                accepted.expect("the kernel connects")
            };
            (0..share).map(next).collect()
        })
        .collect();
    let sample = thread::scope(|scope| {
        for (node, accepted) in nodes.iter().zip(&accepted) {
            scope.spawn(|| consume(node, way, accepted, &shared));
        }
        thread::sleep(WARM_UP);
        let (begin, cpu) = (Instant::now(), cpu_seconds());
        let before = shared.received.load(Ordering::Relaxed);
        thread::sleep(SAMPLE);
        let bytes = (shared.received.load(Ordering::Relaxed) - before) as f64;
        let (took, cpu) = (begin.elapsed().as_secs_f64(), cpu_seconds() - cpu);
        shared.over.store(true, Ordering::Relaxed);
        nodes.iter().for_each(Node::wake);
        let stats = nodes.iter().map(|node| node.with_engine(|engine, _| engine.stats()));
        let (passed_on, segments) = stats.fold((0, 0), |(passed_on, segments), stats| {
            (passed_on + stats.rx_passed_on, segments + stats.rx_segments)
        });
        Sample {
            bits_per_second: bytes * 8.0 / took,
            cpu_seconds_per_gbyte: cpu / (bytes * 1e-9),
            passed_on,
            segments,
        }
    });
    peers.into_iter().for_each(|peer| peer.join().expect("a socket is not worth a panic"));
    sample
}

fn median(values: impl Iterator<Item = f64>) -> (f64, f64, f64) {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

/// Reads a number from the environment.
fn from_env(name: &str) -> Option<usize> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

#[test]
#[ignore = "a measurement of half a minute, without assertions"]
fn figures() {
    assert!(!lacks(NEEDS), "missing prerequisite of the measurement");
    println!("node  connections  queues  Gbit/s (min..max)      cpu s/GB  passed on / segments");
    let chosen = |name, all: &[usize]| from_env(name).map_or_else(|| all.to_vec(), |one| vec![one]);
    let all_queues = chosen("FLUE_QUEUES", &QUEUES);
    let only_way = std::env::var("FLUE_WAY").ok();
    for (way, name) in [(Way::Out, "out"), (Way::In, "in")] {
        if only_way.as_deref().is_some_and(|only| only != name) {
            continue;
        }
        for connections in chosen("FLUE_CONNECTIONS", &CONNECTIONS) {
            let mut rows = vec![Vec::new(); all_queues.len()];
            for _ in 0..from_env("FLUE_ROUNDS").unwrap_or(ROUNDS) {
                for (row, queues) in rows.iter_mut().zip(&all_queues) {
                    row.push(sample(*queues, connections, way));
                }
            }
            for (row, queues) in rows.iter().zip(&all_queues) {
                let (rate, least, most) =
                    median(row.iter().map(|sample| sample.bits_per_second * 1e-9));
                let (cpu, ..) = median(row.iter().map(|sample| sample.cpu_seconds_per_gbyte));
                let passed: u64 = row.iter().map(|sample| sample.passed_on).sum();
                let segments: u64 = row.iter().map(|sample| sample.segments).sum();
                let range = format!("({least:.1}..{most:.1})");
                println!(
                    "{name:<4} {connections:>12}  {queues:>6}  {rate:>6.1} {range:<14}  {cpu:>8.2}  \
                     {passed} / {segments}"
                );
            }
        }
    }
}
