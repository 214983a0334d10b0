//! `flue wire` between kernels, and between flue and flue: what the options ask for happens, shows in the
//! wire's counters, and shows in those of the kernels at its ends, which know nothing of it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use flue_test_support::flue::{command, exchange};
use flue_test_support::kernel_peer::{KernelPeer, Plan};
use flue_test_support::load::quiet;
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

/// What two kernels and the wire between them counted.
struct Seen {
    wire: Counters,
    left: Namespace,
    right: Namespace,
    took: Duration,
}

/// `to_right` and `to_left` bytes at once through a wire with `options`; both arrive whole.
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
    assert!(left.links().is_empty() && right.links().is_empty(), "the TAPs outlived the wire");
    Seen { wire, left, right, took }
}

/// Nothing was lost or changed, and what came in came out.
fn assert_clean(wire: &Counters) {
    for name in ["lost", "queue_full", "overflow", "malformed", "refused", "duplicated"] {
        assert_eq!((wire.to_right(name), wire.to_left(name)), (0, 0), "{name}: {wire:?}");
    }
    for (into, out) in [("frames_in", "frames_out"), ("bytes_in", "bytes_out")] {
        assert_eq!(wire.to_right(into), wire.to_right(out), "{wire:?}");
        assert_eq!(wire.to_left(into), wire.to_left(out), "{wire:?}");
    }
}

/// A wire without impairments carries everything; the kernels hardly send anything twice (a tail loss
/// probe when one of them had to wait for a processor).
fn cleanly(options: &str, at: IpAddr) {
    let run = || clean_run(options, at);
    quiet(run, |hosts| {
        hosts.iter().all(|[sent, again, dropped]| *again <= sent / 1000 + 2 + dropped)
    });
}

/// Of each kernel: segments sent, those that were sent again, and frames that the kernels dropped themselves.
fn clean_run(options: &str, at: IpAddr) -> [[u64; 3]; 2] {
    let bytes = 48 * MIB;
    let Seen { wire, left, right, .. } = between_kernels(options, at, bytes, bytes);
    assert_clean(&wire);
    assert!(wire.to_right("bytes_in") > bytes && wire.to_left("bytes_in") > bytes, "{wire:?}");
    // Frames are counted as on the wire, whether they came in one piece or not.
    assert!(wire.to_right("frames_in") > bytes / 1500, "{wire:?}");
    // What the kernels themselves dropped: before the wire fetched it, or before the reader did.
    let unfetched = wire.to_right("tap_drops") + wire.to_left("tap_drops");
    let backlog = |host: &Namespace| host.counter("TcpExtTCPBacklogDrop");
    let dropped = unfetched + backlog(&left) + backlog(&right);
    [left, right].map(|host| [host.counter("TcpOutSegs"), host.counter("TcpRetransSegs"), dropped])
}

flue_test_support::tests! { NEEDS;
    clean_with_super_segments => cleanly("--vnet on", RIGHT_V4);
    clean_with_super_segments_over_ipv6 => cleanly("--vnet on", RIGHT_V6);
    clean_with_plain_frames => cleanly("--vnet off", RIGHT_V4);
    /// Whole super-segments are held and released.
    clean_and_late => cleanly("--vnet on --delay 2ms", RIGHT_V4);

    /// In one direction alone, and each lost segment is sent again.
    loss_in_bursts => {
        let Seen { wire, left, right, .. } =
            between_kernels("--ab drop=1,burst=3 --seed 1", RIGHT_V4, 16 * MIB, MIB);
        let (lost, again) = (wire.to_right("lost"), left.counter("TcpRetransSegs"));
        assert!(lost > 20 && again * 10 >= lost * 9, "{lost} lost, {again} sent again");
        assert_eq!(wire.to_left("lost"), 0);
        assert!(right.counter("TcpExtTCPOFOQueue") > 0, "no gap was seen");
    };
    /// RFC 2883: what arrives twice is told to the sender.
    duplicates => {
        let Seen { wire, right, .. } = between_kernels("--ab dup=2", RIGHT_V4, 8 * MIB, 0);
        let (doubled, told) = (wire.to_right("duplicated"), right.counter("TcpExtTCPDSACKOldSent"));
        assert!(doubled > 50 && told * 2 >= doubled, "{doubled} doubled, {told} told");
    };
    reordering => {
        let Seen { wire, right, .. } = between_kernels("--ab reorder=1", RIGHT_V4, 8 * MIB, 0);
        let (passed, seen) = (wire.to_right("reordered"), right.counter("TcpExtTCPOFOQueue"));
        assert!(passed > 20 && seen >= passed / 2, "{passed} passed, {seen} seen");
        assert_eq!(wire.to_right("lost"), 0);
    };
    /// The kernel's checksums find every flipped bit that matters to it.
    corruption => {
        let Seen { wire, right, .. } = between_kernels("--ab corrupt=1", RIGHT_V4, 8 * MIB, 0);
        let found = right.counter("TcpInCsumErrors") + right.counter("IpInHdrErrors");
        let corrupted = wire.to_right("corrupted");
        assert!(corrupted > 20 && found * 10 >= corrupted * 8, "{corrupted} corrupted, {found} found");
    };
    /// No datagram is faster than the wire, and one comes that is hardly slower: on a busy machine after many others.
    delay => {
        let (left, wire, right) =
            Wire::between_kernels(Path::new(FLUE), "--delay 10ms --jitter 1ms --ba delay=5ms");
        let deadline = Instant::now() + START;
        loop {
            let times = echo_times(&left, &right, "10.0.0.2", 50);
            let least = times.iter().min().copied().unwrap_or_default();
            assert!(least >= Duration::from_millis(13), "{times:?}");
            if least < Duration::from_millis(25) {
                break;
            }
            assert!(Instant::now() < deadline, "{times:?}");
        }
        let wire = wire.finish();
        assert!(wire.late()[0].is_some(), "nothing was held: {wire:?}");
    };
    /// The wire is full and no fuller than its rate; what finds the queue full is lost.
    rate_and_queue => {
        let options = "--rate 40mbit --queue 30p --delay 2ms";
        let run = || {
            let Seen { wire, left, took, .. } = between_kernels(options, RIGHT_V4, 8 * MIB, 0);
            let wire_time = Duration::from_secs_f64(wire.to_right("bytes_out") as f64 * 8.0 / 40e6);
            // The connection lasted at least as long as the wire was busy, but for the frames before it.
            assert!(took > wire_time.mul_f64(0.99), "{took:?} for {wire_time:?}");
            assert!(wire.to_right("queue_full") > 0 && wire.to_right("lost") == 0, "{wire:?}");
            // Each segment that found the queue full was sent again; an acknowledgement, or a frame of IPv6's, was not.
            assert!(left.counter("TcpRetransSegs") * 10 >= wire.to_right("queue_full") * 9);
            (took, wire_time)
        };
        // A kernel that waits for a processor leaves the wire idle.
        quiet(run, |(took, wire_time)| *took < *wire_time * 3);
    };
    /// All at once, and both streams arrive whole all the same.
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

/// flue on both ends: a node's TAP and the wire's TAP on a bridge, at either end.
/// Returns what the wire has counted, and the ended nodes.
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
        assert_eq!(there.join().expect("it does not panic").0, Stream::new(1).digest(bytes));
    });
    Some((wire.finish(), [client, server]))
}

#[test]
fn a_flue_pair_through_loss_and_reordering() {
    let options = "--drop 0.5 --burst 3 --reorder 1 --delay 1ms --seed 4";
    let Some((wire, nodes)) = between_flues(options, "", 8 * MIB) else { return };
    nodes.into_iter().for_each(|mut node| node.expect_exit(0, LIMIT));
    for name in ["lost", "reordered"] {
        assert!(wire.to_right(name) > 0 && wire.to_left(name) > 0, "{name}: {wire:?}");
    }
}

/// Neither connection is offloaded, and both ends lose data and acknowledgements. All bytes arrive. Which status a node
/// ends with is chance: the other one stays 500 ms behind its end, and may leave with the last acknowledgement lost.
#[test]
fn a_pair_that_stays_in_the_host_through_loss() {
    let pair = between_flues("--drop 3 --seed 4", "--offload never", 256 << 10);
    let Some((wire, _)) = pair else { return };
    assert!(wire.to_right("lost") > 0 && wire.to_left("lost") > 0, "{wire:?}");
}

/// A wire that is told how long ends by itself, says what passed, and takes its TAPs along.
#[test]
fn it_ends_by_itself_and_says_what_it_did() {
    if lacks(NEEDS) {
        return;
    }
    let host = Namespace::new();
    let line = "wire w0 w1 -D 1 --interval 1 --delay 1ms --seed 5";
    let mut wire = Process::start(&host, command(FLUE, line), Output::Lines);
    wire.expect_exit(0, START);
    let said = wire.all_lines(START);
    // The time of an interval is told as it was: a second, or more.
    for words in ["A to B: drop 0%, dup 0%", "seed: 5", "joined: w0", "frames in", " s  A to B"] {
        assert!(said.contains(words), "{words:?} is not in {said}");
    }
    assert!(host.links().is_empty(), "left: {:?}", host.links());
}

#[test]
fn what_is_missing_is_told_with_its_status() {
    if lacks(NEEDS) {
        return;
    }
    let host = Namespace::new();
    let cases = [
        ("wire w0 w0", 2, "a wire has two ends"),
        ("wire w0 w1 --netns-a no-such-namespace", 1, "/run/netns/no-such-namespace"),
        ("wire w0 w1 --netns-b /dev/null", 1, "it is no network namespace"),
        ("wire w0 w1 --bridge-b no-such-bridge", 1, "no-such-bridge"),
        ("wire lo w1", 1, "no single-queue TAP"),
    ];
    for (line, status, words) in cases {
        let mut wire = Process::start(&host, command(FLUE, line), Output::Lines);
        wire.expect_exit(status, START);
        wire.expect_line(words, START);
        assert!(host.links().is_empty(), "{line} left {:?}", host.links());
    }
}

/// Somebody deletes a TAP beneath it.
#[test]
fn a_tap_that_goes_is_told() {
    if lacks(NEEDS) {
        return;
    }
    let (left, right) = (Namespace::new(), Namespace::new());
    let line = format!("wire w0 w1 --netns-b {}", right.path().display());
    let mut wire = Process::start(&left, command(FLUE, &line), Output::Lines);
    wire.expect_line("joined", START);
    right.ip("link delete w1");
    wire.expect_line("w1: the TAP is gone", START);
    wire.expect_exit(1, START);
    assert!(left.links().is_empty(), "left: {:?}", left.links());
}
