//! `flue wire` between kernels, and between flue nodes. The effect of each option is visible in the wire's counters
//! and in those of the kernels, which are unaware of the wire.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use flue_test_support::flue::{command, exchange};
use flue_test_support::kernel_peer::{KernelPeer, Plan};
use flue_test_support::load::repeat_until_quiet;
use flue_test_support::needs::{Need, lacks};
use flue_test_support::netns::Namespace;
use flue_test_support::process::{Output, Process};
use flue_test_support::stream::Stream;
use flue_test_support::switch::Switch;
use flue_test_support::wire::{Counters, Wire, echo_times};

const FLUE: &str = env!("CARGO_BIN_EXE_flue");
const NEEDS: &[Need] = &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("unshare")];
const MIB: u64 = 1 << 20;
const START: Duration = Duration::from_secs(120);
const LIMIT: Duration = Duration::from_secs(300);
const RIGHT_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const RIGHT_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2));

/// Counters of two kernels and the wire between them.
struct Seen {
    wire: Counters,
    left: Namespace,
    right: Namespace,
    took: Duration,
}

/// Transfers `to_right` and `to_left` bytes concurrently through a wire with `options`; checks that both streams are
/// exact.
fn between_kernels(options: &str, at: IpAddr, to_right: u64, to_left: u64) -> Seen {
    let (left, wire, right) = Wire::between_kernels(Path::new(FLUE), options);
    let any =
        if at.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let server = KernelPeer::listen(&right, SocketAddr::new(any, 0), Plan::send(2, to_left));
    let address = SocketAddr::new(at, server.address().port());
    let start = Instant::now();
    let client = KernelPeer::connect(&left, address, Plan::send(1, to_right));
    client.finish().assert_received(Stream::new(2).digest(to_left));
    server.finish().assert_received(Stream::new(1).digest(to_right));
    let took = start.elapsed();
    let wire = wire.finish();
    assert!(left.links().is_empty() && right.links().is_empty(), "the TAPs were not removed");
    Seen { wire, left, right, took }
}

/// Checks that no frame was lost or changed, and that every received frame was sent.
fn assert_clean(wire: &Counters) {
    for name in ["lost", "queue_full", "overflow", "malformed", "refused", "duplicated"] {
        assert_eq!((wire.to_right(name), wire.to_left(name)), (0, 0), "{name}: {wire:?}");
    }
    for (into, out) in [("frames_in", "frames_out"), ("bytes_in", "bytes_out")] {
        assert_eq!(wire.to_right(into), wire.to_right(out), "{wire:?}");
        assert_eq!(wire.to_left(into), wire.to_left(out), "{wire:?}");
    }
}

/// Checks a wire without impairments: it carries everything, and the kernels rarely retransmit. A kernel that is not
/// scheduled sends a tail loss probe.
fn cleanly(options: &str, at: IpAddr) {
    let run = || clean_run(options, at);
    repeat_until_quiet(run, |hosts| {
        hosts.iter().all(|[sent, again, dropped]| *again <= sent / 1000 + 2 + dropped)
    });
}

/// Counters of each kernel: segments sent, segments retransmitted, and frames that the kernel dropped.
fn clean_run(options: &str, at: IpAddr) -> [[u64; 3]; 2] {
    let bytes = 48 * MIB;
    let Seen { wire, left, right, .. } = between_kernels(options, at, bytes, bytes);
    assert_clean(&wire);
    assert!(wire.to_right("bytes_in") > bytes && wire.to_left("bytes_in") > bytes, "{wire:?}");
    // Frames are counted as on the wire, whether or not they were read as one GSO packet.
    assert!(wire.to_right("frames_in") > bytes / 1500, "{wire:?}");
    // Frames that the kernels dropped: before the wire or the receiver read them.
    let unfetched = wire.to_right("tap_drops") + wire.to_left("tap_drops");
    let backlog = |host: &Namespace| host.counter("TcpExtTCPBacklogDrop");
    let dropped = unfetched + backlog(&left) + backlog(&right);
    [left, right].map(|host| [host.counter("TcpOutSegs"), host.counter("TcpRetransSegs"), dropped])
}

flue_test_support::tests! { NEEDS;
    clean_with_gso_packets => cleanly("--vnet on", RIGHT_V4);
    clean_with_gso_packets_over_ipv6 => cleanly("--vnet on", RIGHT_V6);
    clean_with_plain_frames => cleanly("--vnet off", RIGHT_V4);
    /// Delay applies to whole GSO packets.
    clean_and_late => cleanly("--vnet on --delay 2ms", RIGHT_V4);

    /// Loss in one direction only; each lost segment is retransmitted.
    loss_in_bursts => {
        let Seen { wire, left, right, .. } =
            between_kernels("--ab drop=1,burst=3 --seed 1", RIGHT_V4, 16 * MIB, MIB);
        let (lost, again) = (wire.to_right("lost"), left.counter("TcpRetransSegs"));
        assert!(lost > 20 && again * 10 >= lost * 9, "{lost} lost, {again} retransmitted");
        assert_eq!(wire.to_left("lost"), 0);
        assert!(right.counter("TcpExtTCPOFOQueue") > 0, "no out-of-order data was received");
    };
    /// RFC 2883: duplicates are reported to the sender.
    duplicates => {
        let Seen { wire, right, .. } = between_kernels("--ab dup=2", RIGHT_V4, 8 * MIB, 0);
        let (doubled, told) = (wire.to_right("duplicated"), right.counter("TcpExtTCPDSACKOldSent"));
        assert!(doubled > 50 && told * 2 >= doubled, "{doubled} duplicated, {told} reported");
    };
    reordering => {
        let Seen { wire, right, .. } = between_kernels("--ab reorder=1", RIGHT_V4, 8 * MIB, 0);
        let (passed, seen) = (wire.to_right("reordered"), right.counter("TcpExtTCPOFOQueue"));
        assert!(passed > 20 && seen >= passed / 2, "{passed} passed, {seen} seen");
        assert_eq!(wire.to_right("lost"), 0);
    };
    /// The kernel's checksums detect every flipped bit that matters.
    corruption => {
        let Seen { wire, right, .. } = between_kernels("--ab corrupt=1", RIGHT_V4, 8 * MIB, 0);
        let found = right.counter("TcpInCsumErrors") + right.counter("IpInHdrErrors");
        let corrupted = wire.to_right("corrupted");
        assert!(corrupted > 20 && found * 10 >= corrupted * 8, "{corrupted} corrupted, {found} found");
    };
    /// Most datagrams return after both delays. Exact limits are checked under virtual time, next to the code.
    delay => {
        let run = || {
            let (left, wire, right) =
                Wire::between_kernels(Path::new(FLUE), "--delay 10ms --jitter 1ms --ba delay=5ms");
            let mut times = echo_times(&left, &right, "10.0.0.2", 50);
            times.sort_unstable();
            let wire = wire.finish();
            assert!(wire.late()[0].is_some(), "no frame was delayed: {wire:?}");
            times
        };
        let delays = Duration::from_millis(13)..Duration::from_millis(25);
        repeat_until_quiet(run, |times| delays.contains(&times[times.len() / 2]));
    };
    /// Throughput reaches the rate and does not exceed it; frames that exceed the queue are dropped.
    rate_and_queue => {
        let options = "--rate 40mbit --queue 30p --delay 2ms";
        let run = || {
            let Seen { wire, left, took, .. } = between_kernels(options, RIGHT_V4, 8 * MIB, 0);
            let wire_time = Duration::from_secs_f64(wire.to_right("bytes_out") as f64 * 8.0 / 40e6);
            // The connection lasted at least as long as the wire was busy, except for the frames before it.
            assert!(took > wire_time.mul_f64(0.99), "{took:?} for {wire_time:?}");
            assert!(wire.to_right("queue_full") > 0 && wire.to_right("lost") == 0, "{wire:?}");
            // Each dropped segment was retransmitted; dropped acknowledgments and IPv6 control frames were not.
            assert!(left.counter("TcpRetransSegs") * 10 >= wire.to_right("queue_full") * 9);
            (took, wire_time)
        };
        // A kernel that is not scheduled leaves the wire idle.
        repeat_until_quiet(run, |(took, wire_time)| *took < *wire_time * 3);
    };
    /// All impairments at once; both streams are exact.
    everything_at_once => {
        let options = "--drop 1 --burst 2 --dup 1 --reorder 1 --corrupt 0.5 --delay 500us --jitter 200us \
                       --rate 400mbit --queue 200kB";
        let Seen { wire, .. } = between_kernels(options, RIGHT_V4, 4 * MIB, 4 * MIB);
        for name in ["lost", "duplicated", "reordered", "corrupted"] {
            assert!(wire.to_right(name) > 0 && wire.to_left(name) > 0, "{name}: {wire:?}");
        }
        let parts = ["frames_out", "lost", "queue_full", "corrupted_lost", "in_flight"];
        let ends: u64 = parts.iter().map(|name| wire.to_right(name)).sum();
        assert_eq!(wire.to_right("frames_in") + wire.to_right("duplicated"), ends, "{wire:?}");
    };
}

/// Runs flue at both ends, each node's TAP and one of the wire's TAPs on a bridge. Returns the wire's counters and
/// the ended nodes.
fn between_flues(
    wire_options: &str,
    node_options: &str,
    bytes: u64,
) -> Option<(Counters, [Process; 2])> {
    if lacks(&[NEEDS, &[Need::Tool("nft")]].concat()) {
        return None;
    }
    let (left, right) = (Switch::new(1500), Switch::new(1500));
    let bridge = Switch::BRIDGE;
    let options = format!("--bridge-a {bridge} --bridge-b {bridge} {wire_options}");
    let wire = Wire::start(Path::new(FLUE), left.namespace(), right.namespace(), &options);
    let node = |host: u8| {
        format!("--tap tap0 --addr 10.0.0.{host}/24 --bridge {bridge} --seed {host} {node_options}")
    };
    let line = format!("nc -l 5000 {}", node(2));
    let mut server = Process::start(right.namespace(), command(FLUE, &line), Output::Bytes);
    server.expect_line("listening", START);
    let line = format!("nc 10.0.0.2 5000 {}", node(1));
    let mut client = Process::start(left.namespace(), command(FLUE, &line), Output::Bytes);
    std::thread::scope(|scope| {
        let there = scope.spawn(|| exchange(&mut server, 2, bytes, LIMIT));
        let here = exchange(&mut client, 1, bytes, LIMIT);
        assert_eq!(here.0, Stream::new(2).digest(bytes));
        assert_eq!(
            there.join().expect("a thread that does not panic").0,
            Stream::new(1).digest(bytes)
        );
    });
    Some((wire.finish(), [client, server]))
}

#[test]
fn flue_pair_survives_loss_and_reordering() {
    let options = "--drop 0.5 --burst 3 --reorder 1 --delay 1ms --seed 4";
    let Some((wire, nodes)) = between_flues(options, "", 8 * MIB) else { return };
    nodes.into_iter().for_each(|mut node| node.expect_exit(0, LIMIT));
    for name in ["lost", "reordered"] {
        assert!(wire.to_right(name) > 0 && wire.to_left(name) > 0, "{name}: {wire:?}");
    }
}

/// Neither connection is offloaded, and both ends lose data and acknowledgments. All bytes arrive. The exit status of
/// a node depends on timing: the other node exits 500 ms after its end, even if its last acknowledgment was lost.
#[test]
fn pair_in_host_survives_loss() {
    let pair = between_flues("--drop 3 --seed 4", "--offload never", 256 << 10);
    let Some((wire, _)) = pair else { return };
    assert!(wire.to_right("lost") > 0 && wire.to_left("lost") > 0, "{wire:?}");
}

/// A wire with a duration ends on its own, reports its counters, and removes its TAPs.
#[test]
fn wire_with_duration_exits_and_reports_counters() {
    if lacks(NEEDS) {
        return;
    }
    let host = Namespace::new();
    let line = "wire w0 w1 -D 1 --interval 1 --delay 1ms --seed 5";
    let mut wire = Process::start(&host, command(FLUE, line), Output::Lines);
    wire.expect_exit(0, START);
    let said = wire.all_lines(START);
    // The reported interval is the measured one: one second or more.
    for words in ["A to B: drop 0%, dup 0%", "seed: 5", "joined: w0", "frames in", " s  A to B"] {
        assert!(said.contains(words), "{words:?} not in {said}");
    }
    assert!(host.links().is_empty(), "left: {:?}", host.links());
}

#[test]
fn missing_prerequisite_is_reported_with_its_status() {
    if lacks(NEEDS) {
        return;
    }
    let host = Namespace::new();
    let cases = [
        ("wire w0 w0", 2, "same as TAP_A"),
        ("wire w0 w1 --netns-a no-such-namespace", 1, "/run/netns/no-such-namespace"),
        ("wire w0 w1 --netns-b /dev/null", 1, "expected a network namespace"),
        ("wire w0 w1 --bridge-b no-such-bridge", 1, "no-such-bridge"),
        ("wire lo w1", 1, "not a single-queue TAP"),
    ];
    for (line, status, words) in cases {
        let mut wire = Process::start(&host, command(FLUE, line), Output::Lines);
        wire.expect_exit(status, START);
        wire.expect_line(words, START);
        assert!(host.links().is_empty(), "{line} left {:?}", host.links());
    }
}

/// Another process deletes a TAP in use.
#[test]
fn removed_tap_is_reported() {
    if lacks(NEEDS) {
        return;
    }
    let (left, right) = (Namespace::new(), Namespace::new());
    let line = format!("wire w0 w1 --netns-b {}", right.path().display());
    let mut wire = Process::start(&left, command(FLUE, &line), Output::Lines);
    wire.expect_line("joined", START);
    right.ip("link delete w1");
    wire.expect_line("TAP w1: removed", START);
    wire.expect_exit(1, START);
    assert!(left.links().is_empty(), "left: {:?}", left.links());
}
