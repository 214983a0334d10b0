//! Impairments, measured by kernel pings, each of which passes the node's link twice, and by transfers.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use flue_test_support::bench::{Bench, START};
use flue_test_support::ping::{Answer, Pinger};
use flue_test_support::process::Output;

use crate::table::{ALL, rows};

rows! { ALL;
    "--drop", "--drop 50" => drop_frames;
    "--burst", "--drop 40 --burst 50" => burst;
    "--dup", "--dup 100" => dup;
    "--reorder", "--reorder 50" => reorder;
    "--corrupt", "--corrupt 30" => corrupt;
    "--delay", "--delay 20ms" => delay;
    "--jitter", "--delay 20ms --jitter 15ms" => jitter;
    "--rate", "--rate 8Mbit" => rate;
    "--queue", "--rate 1Mbit --queue 2p" => queue;
}

/// Number of concurrent pings: within the capacity of the socket buffer.
const COUNT: u16 = 200;
/// Time without a response after which none is expected; a time limit if all are expected.
const QUIET: Duration = Duration::from_millis(500);

/// Responses to [`COUNT`] pings of a node with these options.
fn answers(bench: &Bench, options: &str, is_enough: impl Fn(&[Answer]) -> bool) -> Vec<Answer> {
    let _flue = bench.listen(options, Output::Bytes);
    let mut pinger = Pinger::new(&bench.kernel, Ipv4Addr::new(10, 0, 0, 2));
    pinger.once();
    pinger.burst(COUNT, 0, QUIET, is_enough)
}

/// True if exactly all responses have arrived.
fn all(answers: &[Answer]) -> bool {
    answers.len() >= usize::from(COUNT)
}

fn never(_: &[Answer]) -> bool {
    false
}

/// Numbers of the pings that were answered.
fn numbers(answers: &[Answer]) -> Vec<u16> {
    answers.iter().map(|(number, _)| *number).collect()
}

fn drop_frames(bench: &Bench) {
    assert_eq!(numbers(&answers(bench, "--drop 0", all)), (0..COUNT).collect::<Vec<_>>());
    // One of four passes in both directions.
    let some = answers(bench, "--drop 50", never).len();
    assert!((20..=90).contains(&some), "{some} of {COUNT}");
    let line = format!("nc {} -w 1 --drop 100 10.0.0.1 9", Bench::attached(2));
    let mut flue = bench.start(&line, Output::Bytes);
    flue.expect_exit(1, START);
}

/// Average number of consecutive unanswered pings, over several bursts.
fn mean_run(bench: &Bench, options: &str) -> f64 {
    let _flue = bench.listen(options, Output::Bytes);
    let mut pinger = Pinger::new(&bench.kernel, Ipv4Addr::new(10, 0, 0, 2));
    pinger.once();
    let (mut missing, mut runs) = (0, 0);
    for _ in 0..3 {
        let came: BTreeSet<_> =
            numbers(&pinger.burst(COUNT, 0, QUIET, never)).into_iter().collect();
        let lost = |number: &u16| !came.contains(number);
        missing += (0..COUNT).filter(lost).count();
        runs += (0..COUNT).filter(lost).filter(|it| *it == 0 || came.contains(&(it - 1))).count();
    }
    missing as f64 / runs as f64
}

fn burst(bench: &Bench) {
    let (each, bursts) = (mean_run(bench, "--drop 40"), mean_run(bench, "--drop 40 --burst 20"));
    assert!(each < 5.0 && bursts > 2.0 * each, "{each}, {bursts} with bursts");
}

fn dup(bench: &Bench) {
    // Limited by the socket's buffer: requests and responses are duplicated.
    const COUNT: u16 = 50;
    for (percent, times) in [(0, 1), (100, 4)] {
        let _flue = bench.listen(&format!("--dup {percent}"), Output::Bytes);
        let mut pinger = Pinger::new(&bench.kernel, Ipv4Addr::new(10, 0, 0, 2));
        pinger.once();
        let came = numbers(&pinger.burst(COUNT, 0, QUIET, never));
        for number in 0..COUNT {
            let found = came.iter().filter(|other| **other == number).count();
            assert_eq!(found, times, "--dup {percent}, {number}: {came:?}");
        }
    }
}

fn reorder(bench: &Bench) {
    assert!(numbers(&answers(bench, "--reorder 0", all)).is_sorted());
    let mixed = numbers(&answers(bench, "--reorder 50", all));
    let passed = mixed.windows(2).filter(|two| two[0] > two[1]).count();
    assert!(passed > 10, "{mixed:?}");
    assert!(mixed.len() >= usize::from(COUNT) - 4, "too many losses: {}", mixed.len());
}

fn corrupt(bench: &Bench) {
    let damaged = || -> u64 {
        ["IcmpInCsumErrors", "IpInHdrErrors"].map(|name| bench.kernel.counter(name)).iter().sum()
    };
    answers(bench, "--corrupt 0", all);
    assert_eq!(damaged(), 0);
    let came = answers(bench, "--corrupt 30", never).len();
    assert!(came < usize::from(COUNT), "the node accepted corrupted requests: {came}");
    assert!(came > 20 && damaged() > 5, "{came} arrived, {} corrupted", damaged());
}

fn delay(bench: &Bench) {
    // Up to one turn of the engine may be missing: a frame's timestamp is that of the turn that reads it.
    let both_ways = Duration::from_millis(39);
    let late = answers(bench, "--delay 20ms", all);
    assert!(all(&late) && late.iter().all(|(_, time)| *time >= both_ways), "{late:?}");
    quick(bench, "--delay 0s", both_ways);
}

/// Checks that some ping of a node with these options is answered within the limit.
fn quick(bench: &Bench, options: &str, limit: Duration) {
    let _flue = bench.listen(options, Output::Bytes);
    let mut pinger = Pinger::new(&bench.kernel, Ipv4Addr::new(10, 0, 0, 2));
    let deadline = Instant::now() + START;
    while pinger.once() >= limit {
        assert!(Instant::now() < deadline, "{options}: no response within {limit:?}");
    }
}

fn jitter(bench: &Bench) {
    let least = Duration::from_millis(9);
    let late = answers(bench, "--delay 20ms --jitter 15ms", all);
    assert!(all(&late) && late.iter().all(|(_, time)| *time >= least), "{late:?}");
    quick(bench, "--delay 20ms --jitter 15ms", Duration::from_millis(35));
}

fn rate(bench: &Bench) {
    let mut flue = bench.listen("--rate 8Mbit", Output::Bytes);
    let mut socket = bench.connect();
    let began = Instant::now();
    // The node's wire transmits at 1 MB/s.
    let mut input = flue.take_input();
    let writer = std::thread::spawn(move || input.write_all(&[7; 500_000]));
    let mut received = Vec::new();
    socket.read_to_end(&mut received).unwrap();
    let took = began.elapsed();
    writer.join().unwrap().unwrap();
    assert_eq!(received.len(), 500_000);
    assert!(took >= Duration::from_millis(480), "{took:?}");
}

fn queue(bench: &Bench) {
    let came = |options: &str, enough: usize| {
        let _flue = bench.listen(&format!("--rate 1Mbit {options}"), Output::Bytes);
        let mut pinger = Pinger::new(&bench.kernel, Ipv4Addr::new(10, 0, 0, 2));
        pinger.once();
        pinger.burst(20, 1000, 4 * QUIET, |answers| answers.len() >= enough).len()
    };
    assert_eq!(came("", 20), 20);
    // One on the wire, and two queued; a few more can be transmitted during the burst.
    let few = came("--queue 2p", 20);
    assert!((1..=12).contains(&few), "{few} of 20");
}
