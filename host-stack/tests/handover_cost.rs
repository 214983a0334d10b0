//! Cost of an offload and an upload, and the number of bytes at which an offload pays.
//!
//! Two nodes on an in-memory link with a constant virtual clock. The CPU time of each step of a migration is measured
//! separately. No thread sleeps or runs concurrently, so only the work is measured, without wake-ups.
//!
//! ```text
//! cargo test -p host-stack --test handover_cost -- --ignored --nocapture
//! ```
//!
//! writes `docs/measurements/handover.txt`. Costs depend on the machine; their order of magnitude should not.

use std::fmt::Write as _;
use std::path::PathBuf;

use bytes::Bytes;
use host_stack::host::HostConfig;
use host_stack::node::Core;
use host_stack::simulation::{Pair, station};
use host_stack::socket::OffloadPolicy;
use host_stack::stream::{OffloadState, Streams};
use offload_engine::chimney::client::OffloadHandle;
use offload_engine::link::{MemoryLinkOptions, memory_link_pair};
use offload_engine::time::{Duration, Instant};
use rustix::time::{ClockId, clock_gettime};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
/// Size of smoltcp's buffers in each direction: the default.
const BUFFER_BYTES: usize = 256 * KIB;
/// Offloads and uploads per row.
const CYCLES: usize = 300;
/// Bytes transferred in a throughput measurement.
const BULK_BYTES: usize = 64 * MIB;
/// Throughput measurements.
const BULK_RUNS: usize = 5;
/// Bytes of a list, and maximum bytes posted at once.
const LIST_BYTES: usize = 64 * KIB;
const POSTED_BYTES_MAX: usize = 1024 * KIB;
const LIMIT: Duration = Duration::from_secs(600);

/// CPU time used by this thread, in nanoseconds; other threads may run too.
fn cpu_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Two nodes with a connection between them. The policy applies to the left one; the right one is always offloaded.
struct Bench {
    pair: Pair<Core>,
    handles: [OffloadHandle; 2],
}

impl Bench {
    fn new(policy: OffloadPolicy, offloads: bool, buffer: usize) -> Self {
        let options =
            MemoryLinkOptions { offloads, queue_frames_max: 100_000, ..Default::default() };
        let host = |number, policy| HostConfig {
            policy,
            receive_buffer: buffer,
            send_buffer: buffer,
            ..station(number)
        };
        let hosts = [host(1, policy), host(2, OffloadPolicy::Always)];
        let mut pair = Pair::streams(memory_link_pair(options), hosts);
        let handles = pair.connect(Instant::ZERO + LIMIT);
        let mut bench = Self { pair, handles };
        bench.settle();
        bench
    }

    /// Runs until both nodes were idle for a second.
    fn settle(&mut self) {
        let until = self.pair.now + Duration::from_secs(1);
        let _: Result<(), _> = self.pair.run(until, |_| None);
    }

    fn state(&self) -> OffloadState {
        self.pair.status(0, self.handles[0]).state
    }

    /// Posts `bytes` at a node; they are queued until the nodes run.
    fn send(&mut self, from: usize, bytes: usize) {
        self.pair.send(from, self.handles[from], Bytes::from(vec![7; bytes]));
    }

    /// One step of the left node: host, then engine. Returns the nanoseconds of each.
    fn step(&mut self) -> [u64; 2] {
        let (now, core) = (self.pair.now, &mut self.pair.a);
        let start = cpu_time();
        core.host.as_mut().unwrap().poll(now);
        let between = cpu_time();
        core.engine.poll(now, &mut core.clients).unwrap();
        [between - start, cpu_time() - between]
    }

    /// Moves the connection to the other stack, and returns the time of each step.
    fn moved(&mut self, to: OffloadState) -> Vec<[u64; 2]> {
        match to {
            OffloadState::Offloaded => {
                self.pair.a.clients.first_mut::<Streams>().offload(self.handles[0])
            }
            _ => self.pair.a.clients.first_mut::<Streams>().upload(self.handles[0]),
        }
        let mut steps = Vec::new();
        while self.state() != to {
            assert!(steps.len() < 100, "{:?} after 100 steps", self.state());
            steps.push(self.step());
        }
        steps
    }

    /// CPU time of both nodes together for `BULK_BYTES` from left to right, in seconds.
    fn bulk(&mut self) -> f64 {
        let piece = Bytes::from(vec![7; LIST_BYTES]);
        let (mut sent, mut received) = (0, 0);
        let handles = self.handles;
        let start = cpu_time();
        let until = self.pair.now + LIMIT;
        let done = self.pair.run(until, |pair| {
            while sent < BULK_BYTES && pair.status(0, handles[0]).unacknowledged < POSTED_BYTES_MAX
            {
                pair.send(0, handles[0], piece.clone());
                sent += LIST_BYTES;
            }
            while let Some(data) = pair.receive(1, handles[1]) {
                received += data.len();
            }
            (received == BULK_BYTES).then_some(())
        });
        done.unwrap();
        (cpu_time() - start) as f64 / 1e9
    }
}

/// Median and 90 % quantile, in microseconds.
fn quantiles(mut nanos: Vec<u64>) -> [f64; 2] {
    nanos.sort_unstable();
    [nanos.len() / 2, nanos.len() * 9 / 10].map(|at| nanos[at] as f64 / 1000.0)
}

/// Outstanding data during a migration.
#[derive(Clone, Copy)]
enum Load {
    Idle,
    /// The left node has posted data that is not acknowledged.
    InFlight(usize),
    /// The right node has sent data that the left client does not read.
    Undelivered(usize),
}

/// Measures one row of the table. Returns the medians of a whole offload and a whole upload, in microseconds.
fn measure(text: &mut String, name: &str, load: Load, buffer: usize) -> [f64; 2] {
    let mut bench = Bench::new(OffloadPolicy::Never, false, buffer);
    // Grows the congestion window, as on a used connection.
    bench.bulk();
    bench.settle();
    match load {
        Load::Idle => {}
        Load::InFlight(bytes) => {
            bench.send(0, bytes);
            bench.step();
            bench.step();
        }
        Load::Undelivered(bytes) => {
            bench.send(1, bytes);
            bench.settle();
        }
    }
    let mut parts: [Vec<u64>; 6] = Default::default();
    for _ in 0..CYCLES {
        for (to, first) in [(OffloadState::Offloaded, 0), (OffloadState::InHost, 3)] {
            let steps = bench.moved(to);
            let sum = |part: usize| steps.iter().map(|step| step[part]).sum::<u64>();
            parts[first].push(sum(0) + sum(1));
            parts[first + 1].push(sum(0));
            parts[first + 2].push(sum(1));
        }
    }
    let [down, down_host, down_engine, up, up_host, up_engine] = parts.map(quantiles);
    let _ = writeln!(
        text,
        "{name:<22}{:>9.1}{:>9.1}{:>9.1}{:>9.1}  {:>9.1}{:>9.1}{:>9.1}{:>9.1}",
        down[0], down[1], down_host[0], down_engine[0], up[0], up[1], up_host[0], up_engine[0],
    );
    [down[0], up[0]]
}

/// Nanoseconds per KiB, best of several runs: in the host, and offloaded.
fn throughput(text: &mut String, name: &str, offloads: bool) -> f64 {
    let per_kib = |policy| {
        let runs = (0..BULK_RUNS).map(|_| {
            let mut bench = Bench::new(policy, offloads, BUFFER_BYTES);
            bench.bulk() * 1e9 / (BULK_BYTES / KIB) as f64
        });
        runs.fold(f64::MAX, f64::min)
    };
    let (host, target) = (per_kib(OffloadPolicy::Never), per_kib(OffloadPolicy::Always));
    let gbit = |per_kib: f64| KIB as f64 * 8.0 / per_kib;
    let _ = writeln!(
        text,
        "{name:<22}{host:>9.0}{target:>9.0}{:>12.2}{:>9.2}",
        gbit(host),
        gbit(target)
    );
    host - target
}

/// Column headers, each with its width.
fn header(first: usize, columns: &[(&str, usize)]) -> String {
    let mut line = " ".repeat(first);
    for (name, width) in columns {
        let _ = write!(line, "{name:>width$}");
    }
    line + "\n"
}

fn report() -> String {
    let mut text = String::from(
        "== migration ==\n\
         One connection is offloaded and uploaded 300 times; no threads, no wake-ups. CPU time, \u{b5}s: median,\n\
         90 % quantile, and the medians of the host's part and the engine's. Offload: from the request to Offloaded;\n\
         the host's part is the export from smoltcp and the tree, the engine's is the initiate. Upload: to InHost;\n\
         the engine's part is the terminate, the host's is the import into smoltcp, which allocates buffers of\n\
         256 KiB in each direction, and of 2 MiB in the last row. MTU 1500.\n\n",
    );
    let heads = ["offload", "90 %", "host", "engine", "upload", "90 %", "host", "engine"];
    text.push_str(&header(22, &heads.map(|head| (head, if head == "upload" { 11 } else { 9 }))));
    let idle = measure(&mut text, "idle", Load::Idle, BUFFER_BYTES);
    measure(&mut text, "64 KiB in flight", Load::InFlight(64 * KIB), BUFFER_BYTES);
    measure(&mut text, "1 MiB undelivered", Load::Undelivered(MIB), 2 * MIB);
    text.push_str(
        "\n== throughput ==\n\
         64 MiB from left to right, CPU time of both nodes together; the right one is offloaded, the left\n\
         one is in smoltcp or offloaded. Best of 5. Nanoseconds per KiB, then Gbit/s.\n\n",
    );
    text.push_str(&header(22, &[("smoltcp", 9), ("target", 9), ("smoltcp", 12), ("target", 9)]));
    let plain = throughput(&mut text, "frames of 1500", false);
    let segmented = throughput(&mut text, "GSO packets", true);
    text.push_str(
        "\n== break-even ==\n\
         KiB after which an offload, and an offload with its upload, of an idle connection has paid off.\n\n",
    );
    text.push_str(&header(22, &[("offload", 9), ("both", 9)]));
    for (name, gain) in [("frames of 1500", plain), ("GSO packets", segmented)] {
        assert!(gain > 0.0, "{name}: the target is slower than smoltcp\n{text}");
        let kib = |micros: f64| micros * 1000.0 / gain;
        let _ = writeln!(text, "{name:<22}{:>9.1}{:>9.1}", kib(idle[0]), kib(idle[0] + idle[1]));
    }
    text
}

#[test]
#[ignore = "a measurement"]
fn offload_and_upload_cost() {
    let text = report();
    println!("{text}");
    let path: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "..", "docs", "measurements", "handover.txt"].iter().collect();
    std::fs::write(path, text).unwrap();
}
