//! Catalog of the measurements: rows with goals, and points of charts.
//!
//! If the number of outstanding operations of a contestant is configurable, it is [`depth_of`] for all.

use flue_report::units::format_bytes;

use super::contest::{Bound, Contestant, Goal, Group, Job, Metric, Panel, PerfJob, Route, System};

/// Message sizes of the charts, bytes: powers of four from 64 B, and 8 MiB.
const SIZES_BYTES: [u64; 10] =
    [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20];
/// Message sizes with `--quick`, bytes.
const QUICK_SIZES_BYTES: [u64; 4] = [64, 4 << 10, 64 << 10, 1 << 20];
/// Connections of the chart; `--quick` omits the last two.
const CONNECTIONS: [u32; 5] = [1, 10, 100, 1_000, 10_000];
/// TAP queues of the chart.
const QUEUES: [u32; 2] = [1, 2];
/// CPU on which the absolute goals were set; relative goals compare peers on the CPU of the run.
pub(super) const GOALS_CPU: &str = "set on 2 CPUs of a virtual machine, Intel Xeon";
/// Size of a small message, bytes.
const SMALL_BYTES: u64 = 64;
/// Connections established concurrently.
const CONNECTIONS_AT_ONCE: u32 = 1_000;
/// Size of a ping-pong message, bytes.
const PING_BYTES: u64 = 8;

/// Size of a ping-pong message in perftest's default, bytes.
const PERFTEST_PING_BYTES: u64 = 2;

/// Options for the completion wait of an end.
const SPIN: &str = "--wait spin";
const BLOCK: &str = "--wait block";
/// Options of a node with manual progress. The second sends plain frames, with the window of the minimal TCP: a larger
/// one would overflow the TAP queue.
const MANUAL: &str = "--progress manual";
const PLAIN: &str = "--progress manual --vnet off --napi threaded --receive-window 700000";

const KIB_64: u64 = 64 << 10;
const MIB: u64 = 1 << 20;

/// Returns the number of outstanding operations: enough to fill a window, and few enough to keep the buffers in the
/// caches.
pub(super) const fn depth_of(size_bytes: u64) -> u32 {
    match size_bytes {
        0..=2_048 => 256,
        2_049..=32_768 => 128,
        32_769..=131_072 => 64,
        _ => 16,
    }
}

fn strings(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn perf(kind: &'static str, route: Route, client: &str, ends: &str, node: &str) -> Job {
    let [client, ends, node] = [client, ends, node].map(strings);
    Job::Perf(PerfJob { kind, route, client, ends, node })
}

/// Returns flue between two nodes; both ends poll.
fn flue(kind: &'static str, client: &str) -> Contestant {
    named("flue", System::Flue, perf(kind, Route::TwoNodes, client, SPIN, MANUAL))
}

/// Returns a stream of flue operations.
fn flue_stream(kind: &'static str, size_bytes: u64) -> Contestant {
    flue(kind, &format!("-s {size_bytes} -t {}", depth_of(size_bytes)))
}

fn named(name: impl Into<String>, system: System, job: Job) -> Contestant {
    Contestant { name: name.into(), system, job }
}

fn libfabric(operation: &'static str, size_bytes: u64) -> Contestant {
    let depth = Some(depth_of(size_bytes));
    named("libfabric", System::Libfabric, Job::Libfabric { operation, size_bytes, depth })
}

fn libfabric_ping(operation: &'static str) -> Contestant {
    libfabric_ping_of(operation, PING_BYTES)
}

fn libfabric_ping_of(operation: &'static str, size_bytes: u64) -> Contestant {
    let job = Job::Libfabric { operation, size_bytes, depth: None };
    named("libfabric", System::Libfabric, job)
}

fn ucx(name: &str, test: &'static str, size_bytes: u64) -> Contestant {
    named(name, System::Ucx, Job::Ucx { test, size_bytes, latency: false })
}

fn ucx_ping(name: &str, test: &'static str) -> Contestant {
    named(name, System::Ucx, Job::Ucx { test, size_bytes: PING_BYTES, latency: true })
}

/// Returns a stream between two kernel sockets, written in chunks of this size.
fn kernel(size_bytes: u64) -> Contestant {
    let client = format!("-s {size_bytes}");
    named("kernel TCP", System::Kernel, perf("tcp-bw", Route::TwoKernels, &client, "", ""))
}

/// Returns a ping-pong between two kernel sockets.
fn kernel_ping(wait: &str) -> Contestant {
    let client = format!("-s {PING_BYTES}");
    named("kernel TCP", System::Kernel, perf("tcp-rr", Route::TwoKernels, &client, wait, ""))
}

fn baseline(name: &str, system: System, line: &str) -> Contestant {
    named(name, system, Job::Baseline { arguments: strings(line) })
}

fn goal(metric: Metric, peer: &str, goal: Bound) -> Goal {
    Goal { metric, peer: Some(peer.into()), goal: Some(goal), stretch: None }
}

fn row(
    id: &str,
    title: &str,
    metric: Metric,
    contestants: Vec<Contestant>,
    goals: Vec<Goal>,
) -> Group {
    Group {
        id: id.into(),
        title: title.into(),
        metric,
        point: None,
        is_row: true,
        contestants,
        goals,
    }
}

/// Returns all groups, rows first.
pub(super) fn groups(quick: bool) -> Vec<Group> {
    let mut groups = Vec::new();
    groups.extend(large_operations());
    groups.extend(small_messages());
    groups.extend(round_trips());
    groups.extend(streams());
    groups.push(hundred_connections());
    groups.extend(on_kernel_sockets());
    groups.extend(verbs_programs());
    groups.extend(programs_on_nodes());
    groups.extend(points(quick));
    groups
}

/// Returns the rows that `flue perf` measures. The peer is flue with `options`, which replace those of the same name.
pub(super) fn compared_with_options(groups: Vec<Group>, options: &str) -> Vec<Group> {
    let options_of_peer = strings(options);
    let is_replaced = |pair: &[String]| pair.iter().take(1).any(|it| options_of_peer.contains(it));
    let compared = groups.into_iter().filter(|it| it.is_row).filter_map(|mut group| {
        group.contestants.truncate(1);
        let flue = group.contestants.first()?;
        let Job::Perf(job) = &flue.job else { return None };
        let mut job = job.clone();
        for own in [&mut job.client, &mut job.ends, &mut job.node] {
            // Each option of a row has a value.
            *own = own.chunks(2).filter(|pair| !is_replaced(pair)).flatten().cloned().collect();
        }
        job.ends.extend(options_of_peer.iter().cloned());
        let name = format!("with {options}");
        group.goals = vec![Goal {
            metric: group.metric,
            peer: Some(name.clone()),
            goal: None,
            stretch: None,
        }];
        group.contestants.push(named(name, System::Flue, Job::Perf(job)));
        Some(group)
    });
    compared.collect()
}

fn large_operations() -> Vec<Group> {
    use Bound::{RatioAtLeast, RatioAtMost};
    let bandwidth = Metric::BandwidthBps;
    let ahead = |metric, factor, stretch| Goal {
        stretch,
        ..goal(metric, "libfabric", RatioAtLeast(factor))
    };
    let cpu = || goal(Metric::CpuSecondsPerGbyte, "libfabric", RatioAtMost(1.0));
    let mut write = row(
        "write-1m",
        "RDMA Write, 1 MiB, CRC on",
        bandwidth,
        vec![
            flue_stream("write-bw", MIB),
            libfabric("write", MIB),
            ucx("UCX put", "ucp_put_bw", MIB),
            ucx("UCX AM", "ucp_am_bw", MIB),
            kernel(MIB),
            named("iperf3", System::Iperf3, Job::Iperf3),
        ],
        vec![ahead(bandwidth, 0.75, Some(RatioAtLeast(1.0))), cpu()],
    );
    write.point = Some((Panel::Write, MIB));
    let mut read = row(
        "read-1m",
        "RDMA Read, 1 MiB, CRC on",
        bandwidth,
        vec![flue_stream("read-bw", MIB), libfabric("read", MIB), ucx("UCX get", "ucp_get", MIB)],
        vec![ahead(bandwidth, 0.7, Some(RatioAtLeast(1.0))), cpu()],
    );
    read.point = Some((Panel::Read, MIB));
    let mut medium = row(
        "write-64k",
        "RDMA Write, 64 KiB, CRC on",
        bandwidth,
        vec![
            flue_stream("write-bw", KIB_64),
            libfabric("write", KIB_64),
            ucx("UCX put", "ucp_put_bw", KIB_64),
            kernel(KIB_64),
        ],
        vec![ahead(bandwidth, 1.0, None), cpu()],
    );
    medium.point = Some((Panel::Write, KIB_64));
    vec![write, read, medium]
}

fn small_messages() -> Vec<Group> {
    let rate = Metric::MessagesPerSecond;
    let goals = |peers: &[&str]| {
        let by_itself = Goal {
            metric: rate,
            peer: None,
            goal: Some(Bound::AtLeast(3e6)),
            stretch: Some(Bound::AtLeast(6e6)),
        };
        let ratios = peers.iter().map(|peer| goal(rate, peer, Bound::RatioAtLeast(6.0)));
        std::iter::once(by_itself).chain(ratios).collect()
    };
    let mut send = row(
        "send-64b",
        "Send/Receive, 64 B, queued",
        rate,
        vec![
            flue_stream("send-bw", SMALL_BYTES),
            libfabric("send", SMALL_BYTES),
            ucx("UCX AM", "ucp_am_bw", SMALL_BYTES),
            kernel(SMALL_BYTES),
        ],
        goals(&["libfabric", "UCX AM", "kernel TCP"]),
    );
    send.point = Some((Panel::Send, SMALL_BYTES));
    let mut write = row(
        "write-64b",
        "RDMA Write, 64 B, queued",
        rate,
        vec![
            flue_stream("write-bw", SMALL_BYTES),
            libfabric("write", SMALL_BYTES),
            ucx("UCX put", "ucp_put_bw", SMALL_BYTES),
            kernel(SMALL_BYTES),
        ],
        goals(&["libfabric", "UCX put", "kernel TCP"]),
    );
    write.point = Some((Panel::Write, SMALL_BYTES));
    vec![send, write]
}

fn round_trips() -> Vec<Group> {
    use Bound::{ExcessAtMost, RatioAtMost};
    let metric = Metric::LatencyP50Ns;
    let ping = |kind| flue(kind, &format!("-s {PING_BYTES}"));
    let floor = || baseline("TAP's floor", System::Tap, "tap-rtt");
    let stretch = || Goal {
        metric,
        peer: Some("TAP's floor".into()),
        goal: None,
        stretch: Some(ExcessAtMost(500.0)),
    };
    let small = format!("-s {PING_BYTES}");
    let blocking = perf("write-lat", Route::TwoNodes, &small, BLOCK, MANUAL);
    let goals = || {
        vec![
            goal(metric, "libfabric", RatioAtMost(0.7)),
            goal(metric, "kernel TCP", RatioAtMost(0.85)),
            stretch(),
        ]
    };
    vec![
        row(
            "latency-write",
            "RDMA Write, 8 B, half round trip, polling",
            metric,
            vec![
                ping("write-lat"),
                libfabric_ping("write"),
                ucx_ping("UCX put", "ucp_put_lat"),
                kernel_ping(SPIN),
                floor(),
            ],
            goals(),
        ),
        row(
            "latency-send",
            "Send/Receive, 8 B, half round trip, polling",
            metric,
            vec![
                ping("send-lat"),
                libfabric_ping("send"),
                ucx_ping("UCX tag", "tag_lat"),
                kernel_ping(SPIN),
                floor(),
            ],
            goals(),
        ),
        row(
            "latency-read",
            "RDMA Read, 8 B, whole operation, polling",
            metric,
            vec![ping("read-lat"), libfabric_ping("read")],
            Vec::new(),
        ),
        row(
            "latency-block",
            "RDMA Write, 8 B, half round trip, blocking waits",
            metric,
            vec![named("flue", System::Flue, blocking), kernel_ping(BLOCK)],
            vec![goal(metric, "kernel TCP", RatioAtMost(1.0))],
        ),
    ]
}

fn streams() -> Vec<Group> {
    use Bound::RatioAtLeast;
    let metric = Metric::BandwidthBps;
    let stream = |route, node: &str| {
        let job = perf("tcp-bw", route, &format!("-s {MIB}"), "", node);
        named("flue", System::Flue, job)
    };
    let bare = |line: &str| baseline("bare TCP", System::BareTcp, line);
    let smoltcp = |line: &str| baseline("smoltcp", System::Smoltcp, line);
    let gso_packets = |id: &str, title: &str, route, line: &str| {
        let near = goal(metric, "bare TCP", RatioAtLeast(0.85));
        let ahead = Goal {
            metric,
            peer: Some("kernel TCP".into()),
            goal: None,
            stretch: Some(RatioAtLeast(1.0)),
        };
        let contestants = vec![stream(route, MANUAL), bare(line), kernel(MIB)];
        row(id, title, metric, contestants, vec![near, ahead])
    };
    let plain = |id: &str, title: &str, route, bare_line: &str, smoltcp_line: &str| {
        let goals = vec![
            goal(metric, "smoltcp", RatioAtLeast(1.5)),
            goal(metric, "bare TCP", RatioAtLeast(0.9)),
        ];
        let contestants = vec![stream(route, PLAIN), smoltcp(smoltcp_line), bare(bare_line)];
        row(id, title, metric, contestants, goals)
    };
    vec![
        gso_packets(
            "stream-to-kernel",
            "stream to a kernel socket, GSO packets",
            Route::NodeToKernel,
            "bare-tcp-send",
        ),
        gso_packets(
            "stream-from-kernel",
            "stream from a kernel socket, GSO packets",
            Route::KernelToNode,
            "bare-tcp-recv",
        ),
        plain(
            "plain-to-kernel",
            "stream to a kernel socket, plain frames",
            Route::NodeToKernel,
            "bare-tcp-send --plain --checksum software --napi threaded",
            "smoltcp-send --napi threaded",
        ),
        plain(
            "plain-from-kernel",
            "stream from a kernel socket, plain frames",
            Route::KernelToNode,
            "bare-tcp-recv --plain --checksum software --napi threaded",
            "smoltcp-recv --napi threaded",
        ),
    ]
}

/// Returns concurrent RDMA Writes on several connections, whose total depth is limited.
fn many(connections: u32) -> Contestant {
    if connections == 1 {
        return flue_stream("write-bw", MIB);
    }
    let depth = (1_600 / connections).clamp(2, depth_of(MIB));
    flue("write-bw", &format!("-s {MIB} -t {depth} -P {connections}"))
}

fn hundred_connections() -> Group {
    let mut hundred = many(100);
    hundred.name = "flue".into();
    let mut one = flue_stream("write-bw", MIB);
    one.name = "flue, 1 connection".into();
    row(
        "connections-100",
        "RDMA Write, 1 MiB, 100 connections at once",
        Metric::BandwidthBps,
        vec![hundred, one],
        vec![goal(Metric::BandwidthBps, "flue, 1 connection", Bound::RatioAtLeast(0.9))],
    )
}

/// Returns groups of queue pairs on kernel sockets, over the veth pair of the peers.
fn on_kernel_sockets() -> Vec<Group> {
    use Bound::{AtLeast, RatioAtLeast, RatioAtMost};
    let on_sockets = |kind, client: &str, ends: &str| {
        named("flue", System::Flue, perf(kind, Route::TwoKernels, client, ends, ""))
    };
    let stream = |kind, size, ends: &str| {
        on_sockets(kind, &format!("-s {size} -t {}", depth_of(size)), ends)
    };
    let operations = |kind, size| stream(kind, size, SPIN);
    let faster = |factor| goal(Metric::BandwidthBps, "libfabric", RatioAtLeast(factor));
    let cpu = |factor| goal(Metric::CpuSecondsPerGbyte, "libfabric", RatioAtMost(factor));
    let bandwidth = |id: &str, title: &str, kind, operation, size, goals| {
        let contestants = vec![operations(kind, size), libfabric(operation, size)];
        row(id, title, Metric::BandwidthBps, contestants, goals)
    };
    let by_itself = Goal {
        metric: Metric::MessagesPerSecond,
        peer: None,
        goal: Some(AtLeast(3e6)),
        stretch: None,
    };
    let small = |id: &str, title: &str, kind, operation| {
        let contestants = vec![operations(kind, SMALL_BYTES), libfabric(operation, SMALL_BYTES)];
        row(id, title, Metric::MessagesPerSecond, contestants, vec![by_itself.clone()])
    };
    let without_crc = |id: &str, title: &str, kind, operation| {
        let ends = format!("{SPIN} --mpa-crc off");
        let contestants = vec![stream(kind, MIB, &ends), libfabric(operation, MIB)];
        let goals = vec![faster(1.1), cpu(1.0)];
        row(id, title, Metric::BandwidthBps, contestants, goals)
    };
    let ping = on_sockets("write-lat", &format!("-s {PING_BYTES}"), SPIN);
    let pinged = vec![ping, libfabric_ping("write"), kernel_ping(SPIN)];
    let sooner = goal(Metric::LatencyP50Ns, "libfabric", RatioAtMost(0.9));
    vec![
        bandwidth(
            "kernel-write-1m",
            "RDMA Write, 1 MiB, CRC on, kernel sockets",
            "write-bw",
            "write",
            MIB,
            vec![faster(0.9), cpu(1.15)],
        ),
        bandwidth(
            "kernel-read-1m",
            "RDMA Read, 1 MiB, CRC on, kernel sockets",
            "read-bw",
            "read",
            MIB,
            vec![faster(0.9), cpu(1.15)],
        ),
        without_crc(
            "kernel-write-1m-no-crc",
            "RDMA Write, 1 MiB, CRC off, kernel sockets",
            "write-bw",
            "write",
        ),
        without_crc(
            "kernel-read-1m-no-crc",
            "RDMA Read, 1 MiB, CRC off, kernel sockets",
            "read-bw",
            "read",
        ),
        bandwidth(
            "kernel-write-64k",
            "RDMA Write, 64 KiB, CRC on, kernel sockets",
            "write-bw",
            "write",
            KIB_64,
            vec![faster(1.3)],
        ),
        small("kernel-send-64b", "Send/Receive, 64 B, kernel sockets", "send-bw", "send"),
        small("kernel-write-64b", "RDMA Write, 64 B, kernel sockets", "write-bw", "write"),
        row(
            "kernel-latency",
            "RDMA Write, 8 B, half round trip, polling, kernel sockets",
            Metric::LatencyP50Ns,
            pinged,
            vec![sooner],
        ),
    ]
}

/// Returns groups of unmodified programs under `flue run`, on kernel sockets, over the veth pair of the peers.
fn verbs_programs() -> Vec<Group> {
    use Bound::{RatioAtLeast, RatioAtMost};
    let perftest = |program, size_bytes| perftest_on(program, program, size_bytes, false);
    let mut groups = Vec::new();
    for (operation, title, program, kind) in [
        ("write", "RDMA Write", "ib_write_bw", "write-bw"),
        ("read", "RDMA Read", "ib_read_bw", "read-bw"),
        ("send", "Send/Receive", "ib_send_bw", "send-bw"),
    ] {
        for (name, size) in [("64k", KIB_64), ("1m", MIB)] {
            let depth = depth_of(size);
            let own = perf(kind, Route::TwoKernels, &format!("-s {size} -t {depth}"), SPIN, "");
            let contestants = vec![
                perftest(program, size),
                named("flue perf", System::Flue, own),
                libfabric(operation, size),
            ];
            groups.push(row(
                &format!("verbs-{operation}-{name}"),
                &format!("{title}, {}, {program} under flue run", format_bytes(size)),
                Metric::BandwidthBps,
                contestants,
                vec![goal(Metric::BandwidthBps, "flue perf", RatioAtLeast(0.9))],
            ));
        }
    }
    let latency = Metric::LatencyP50Ns;
    groups.push(row(
        "verbs-send-latency",
        "Send/Receive, 2 B, half round trip, ib_send_lat under flue run, polling",
        latency,
        vec![
            perftest("ib_send_lat", PERFTEST_PING_BYTES),
            libfabric_ping_of("send", PERFTEST_PING_BYTES),
        ],
        vec![goal(latency, "libfabric", RatioAtMost(1.3))],
    ));
    groups.push(row(
        "verbs-write-latency",
        "RDMA Write, 8 B, half round trip, ib_write_lat under flue run, which polls memory",
        latency,
        vec![perftest("ib_write_lat", PING_BYTES), kernel_ping(BLOCK)],
        vec![goal(latency, "kernel TCP", RatioAtMost(1.2))],
    ));
    let rate = Metric::ConnectionsPerSecond;
    let connections = CONNECTIONS_AT_ONCE;
    groups.push(row(
        "verbs-connect",
        "connections, 1,000 at once, cmtime under flue run",
        rate,
        vec![
            named("cmtime", System::Flue, Job::Cmtime { connections }),
            named("libfabric", System::Libfabric, Job::LibfabricConnect { connections }),
        ],
        // Reciprocal of 1.5 times the duration.
        vec![goal(rate, "libfabric", RatioAtLeast(0.667))],
    ));
    groups
}

fn perftest_on(name: &str, program: &'static str, size_bytes: u64, on_nodes: bool) -> Contestant {
    named(name, System::Flue, Job::Perftest { program, size_bytes, on_nodes })
}

/// Returns groups of unmodified programs under `flue run`, each on a node of its own, compared with kernel sockets.
fn programs_on_nodes() -> Vec<Group> {
    use Bound::{AtLeast, AtMost};
    const PLACES: [(&str, bool); 2] = [("nodes", true), ("kernel sockets", false)];
    let perftest = |program, size| {
        PLACES.map(|(name, on_nodes)| perftest_on(name, program, size, on_nodes)).to_vec()
    };
    let rstream = |size_bytes| {
        let job = |on_nodes| Job::Rstream { size_bytes, on_nodes };
        PLACES.map(|(name, on_nodes)| named(name, System::Flue, job(on_nodes))).to_vec()
    };
    let absolute = |metric, bound| Goal { metric, peer: None, goal: Some(bound), stretch: None };
    let compared =
        |metric| Goal { metric, peer: Some(PLACES[1].0.into()), goal: None, stretch: None };
    let (latency, p99) = (Metric::LatencyP50Ns, Metric::LatencyP99Ns);
    let (rate, bandwidth) = (Metric::MessagesPerSecond, Metric::BandwidthBps);
    vec![
        row(
            "node-write-latency",
            "RDMA Write, 64 B, half round trip, ib_write_lat on nodes, which polls memory",
            latency,
            perftest("ib_write_lat", SMALL_BYTES),
            vec![absolute(latency, AtMost(30e3)), absolute(p99, AtMost(200e3)), compared(p99)],
        ),
        row(
            "node-send-latency",
            "Send/Receive, 64 B, half round trip, ib_send_lat on nodes, polling",
            latency,
            perftest("ib_send_lat", SMALL_BYTES),
            vec![compared(p99)],
        ),
        row(
            "node-write-64k",
            "RDMA Write, 64 KiB, ib_write_bw on nodes",
            bandwidth,
            perftest("ib_write_bw", KIB_64),
            vec![compared(Metric::CpuSecondsPerGbyte)],
        ),
        row(
            "node-rstream-64b",
            "rsockets, 64 B, rstream on nodes",
            rate,
            rstream(SMALL_BYTES),
            // 30 µs for each transfer.
            vec![absolute(rate, AtLeast(1e9 / 30e3))],
        ),
        row(
            "node-rstream-64k",
            "rsockets, 64 KiB, rstream on nodes",
            bandwidth,
            rstream(KIB_64),
            vec![absolute(bandwidth, AtLeast(8e9)), compared(Metric::CpuSecondsPerGbyte)],
        ),
    ]
}

fn points(quick: bool) -> Vec<Group> {
    let mut groups = Vec::new();
    let sizes: &[u64] = if quick { &QUICK_SIZES_BYTES } else { &SIZES_BYTES };
    for &size in sizes {
        groups.extend(points_of_size(size));
    }
    let connections = if quick { &CONNECTIONS[..3] } else { &CONNECTIONS[..] };
    for &count in connections {
        let mut contestants = vec![many(count)];
        let client = format!("-s {MIB} -P {count}");
        let kernels = perf("tcp-bw", Route::TwoKernels, &client, "", "");
        contestants.push(named("kernel TCP", System::Kernel, kernels));
        let title = format!("RDMA Write, 1 MiB, connections: {count}");
        groups.push(point(Panel::Connections, count.into(), title, contestants));
    }
    for count in QUEUES {
        let connections = format!("-s {MIB} -t {} -P 4", depth_of(MIB));
        let node = format!("--progress auto --queues {count}");
        let job = perf("write-bw", Route::TwoNodes, &connections, "", &node);
        let title = format!("RDMA Write, 1 MiB, 4 connections, queues: {count}");
        let contestants = vec![named("flue", System::Flue, job)];
        groups.push(point(Panel::Queues, count.into(), title, contestants));
    }
    groups
}

fn points_of_size(size: u64) -> [Group; 3] {
    let title = |what: &str| format!("{what}, {}", format_bytes(size));
    let write = vec![
        flue_stream("write-bw", size),
        libfabric("write", size),
        ucx("UCX put", "ucp_put_bw", size),
        kernel(size),
    ];
    let read = vec![
        flue_stream("read-bw", size),
        libfabric("read", size),
        ucx("UCX get", "ucp_get", size),
        kernel(size),
    ];
    let send = vec![
        flue_stream("send-bw", size),
        libfabric("send", size),
        ucx("UCX AM", "ucp_am_bw", size),
        kernel(size),
    ];
    [
        point(Panel::Write, size, title("RDMA Write"), write),
        point(Panel::Read, size, title("RDMA Read"), read),
        point(Panel::Send, size, title("Send/Receive"), send),
    ]
}

fn point(panel: Panel, at: u64, title: String, contestants: Vec<Contestant>) -> Group {
    let name = match panel {
        Panel::Write => "size-write",
        Panel::Read => "size-read",
        Panel::Send => "size-send",
        Panel::Connections => "connections",
        Panel::Queues => "queues",
    };
    Group {
        id: format!("{name}/{at}"),
        title,
        metric: Metric::BandwidthBps,
        point: Some((panel, at)),
        is_row: false,
        contestants,
        goals: Vec::new(),
    }
}

/// `--only` value for all rows.
pub(super) const ALL_ROWS: &str = "goals";
/// `--only` value for the points of all charts.
pub(super) const ALL_POINTS: &str = "plots";

impl Group {
    /// Returns true if `word` selects the group: its name, its chart's name, [`ALL_ROWS`] or [`ALL_POINTS`].
    pub(super) fn matches(&self, word: &str) -> bool {
        let series = self.id.split('/').next().unwrap_or(&self.id);
        self.id == word
            || (!self.is_row && series == word)
            || word == if self.is_row { ALL_ROWS } else { ALL_POINTS }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_and_goals_name_contestants() {
        for quick in [false, true] {
            let groups = groups(quick);
            let names: HashSet<_> = groups.iter().map(|group| group.id.as_str()).collect();
            assert_eq!(names.len(), groups.len());
            for group in &groups {
                assert_eq!(group.contestants[0].system, System::Flue, "{}", group.id);
                let contestants: HashSet<_> =
                    group.contestants.iter().map(|it| it.name.as_str()).collect();
                assert_eq!(contestants.len(), group.contestants.len(), "{}", group.id);
                for goal in &group.goals {
                    let peer = goal.peer.as_deref();
                    assert!(peer.is_none_or(|it| contestants.contains(it)), "{}", group.id);
                }
            }
        }
    }

    #[test]
    fn every_row_is_a_goal_or_a_comparison() {
        let rows: Vec<Group> = groups(false).into_iter().filter(|group| group.is_row).collect();
        assert_eq!(rows.len(), 36);
        assert!(rows.iter().all(|row| row.contestants.len() > 1));
        let with_goals = rows.iter().filter(|row| row.goals.iter().any(|it| it.goal.is_some()));
        assert_eq!(with_goals.count(), 33, "latency-read and two rows on nodes have no goal");
    }

    #[test]
    fn flue_is_compared_with_its_own_options() {
        let compared = compared_with_options(groups(false), "--sandbox off --wait block");
        assert_eq!(compared.len(), 22);
        for group in &compared {
            let [flue, other] = &group.contestants[..] else { panic!("{}: two ends", group.id) };
            let (Job::Perf(own), Job::Perf(others)) = (&flue.job, &other.job) else { panic!() };
            // A row with `--wait` has the new value, and all rows keep their other options.
            let is_wait = |word: &&String| ["--wait", "spin", "block"].contains(&word.as_str());
            let mut expected: Vec<_> = own.ends.iter().filter(|it| !is_wait(it)).cloned().collect();
            expected.extend(strings("--sandbox off --wait block"));
            assert_eq!(others.ends, expected, "{}", group.id);
            assert_eq!((&others.client, &others.node), (&own.client, &own.node), "{}", group.id);
            assert_eq!(group.goals[0].peer.as_ref(), Some(&other.name), "{}", group.id);
        }
    }

    #[test]
    fn points_share_the_jobs_of_rows() {
        let groups = groups(false);
        let job = |id: &str| {
            let group = groups.iter().find(|group| group.id == id).unwrap();
            group.contestants[0].job.clone()
        };
        assert_eq!(job("write-1m"), job("size-write/1048576"));
        assert_eq!(job("send-64b"), job("size-send/64"));
        assert_eq!(job("write-1m"), job("connections/1"));
        assert_eq!(job("connections-100"), job("connections/100"));
    }

    #[test]
    fn quick_catalog_has_fewer_points() {
        let count = |quick| groups(quick).iter().filter(|group| !group.is_row).count();
        assert_eq!(count(false), 10 * 3 + 5 + 2);
        assert_eq!(count(true), 4 * 3 + 3 + 2);
    }

    #[test]
    fn groups_are_selected_by_name_by_chart_and_all_at_once() {
        let groups = groups(false);
        let selected = |word: &str| groups.iter().filter(|group| group.matches(word)).count();
        assert_eq!(selected("write-1m"), 1);
        assert_eq!(selected("size-write"), 10);
        assert_eq!(selected("size-write/64"), 1);
        assert_eq!(selected("connections"), 5);
        assert_eq!(selected("connections-100"), 1);
        assert_eq!((selected("goals"), selected("plots")), (36, 37));
        assert_eq!(selected("write"), 0);
    }
}
