//! Data path operations for callgrind, run by `tests/instructions.rs`.
//!
//! Instructions are collected only inside [`guard_measured`], and dumped by [`guard_case_ends`]. For each case
//! a line with its name and the number of operations is printed, in the order of the dumps. With a name as
//! argument, only that case runs: `valgrind --tool=callgrind target/release/hot-paths NAME`.

#[path = "../../../../rdma-over-tcp/benches/paths/cq.rs"]
mod cq;
#[path = "../../../../rdma-over-tcp/benches/paths/fpdu.rs"]
mod fpdu;
#[path = "../../../../offload-engine/benches/paths/mod.rs"]
mod tcp;

use std::hint::black_box;

use flue_guard::{
    rdma::{self, Operation, Traffic},
    stream::{LISTS, Pump},
    virtual_time::{Stations, address},
};
use offload_engine::{checksum, frame::classify, tcp::Transmit};
use rdma_over_tcp::ndk::{Adapter, AdapterConfig, AdapterCore, Cq, CqNotify, NdkResultEx, Pair};

use self::{
    cq::Completions,
    fpdu::{Decoding, Encoding},
    tcp::{BATCH, Ends, GSO_PACKET_BYTES, SEGMENT_BYTES},
};

/// Small messages in one frame.
const PACKED: u64 = 64;
/// Repetitions of the warm-up, and of the counted run.
const ROUNDS: u64 = 32;
const PORT: u16 = 7000;

/// Runs `work` with counting enabled.
#[inline(never)]
fn guard_measured(work: &mut dyn FnMut()) {
    work();
    // Prevents a tail call above, whose return the tool would not detect.
    black_box(());
}

/// Triggers a dump of the counts since the last one.
#[inline(never)]
fn guard_case_ends(name: &str, operations: u64) {
    println!("{name} {operations}");
}

/// Counts an operation that leaves the state unchanged.
fn repeat(name: &str, mut work: impl FnMut()) {
    (0..ROUNDS).for_each(|_| work());
    guard_measured(&mut || (0..ROUNDS).for_each(|_| work()));
    guard_case_ends(name, ROUNDS);
}

/// Step of a round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Send,
    Receive,
    Acknowledge,
}

/// Runs rounds of several steps, one of which is counted. The first half of the rounds is warm-up.
struct Rounds {
    counted: Step,
    is_warm: bool,
}

impl Rounds {
    fn run(counted: Step, mut round: impl FnMut(&Self)) {
        (0..ROUNDS).for_each(|_| round(&Self { counted, is_warm: false }));
        (0..ROUNDS).for_each(|_| round(&Self { counted, is_warm: true }));
    }

    fn step(&self, step: Step, work: &mut dyn FnMut()) {
        match self.is_warm && self.counted == step {
            true => guard_measured(work),
            false => work(),
        }
    }
}

/// Segments processed by TCP alone, in batches; an operation is one segment, or one ACK.
fn tcp(name: &str, bytes: usize, counted: Step) {
    let mut ends = Ends::new(bytes);
    let (mut segments, mut acknowledgments) = (0, 0);
    let mut sent: Vec<Transmit> = Vec::with_capacity(BATCH as usize);
    let mut answers: Vec<Transmit> = Vec::with_capacity(BATCH as usize);
    Rounds::run(counted, |round| {
        sent.clear();
        answers.clear();
        round.step(Step::Send, &mut || sent.extend((0..BATCH).map(|_| ends.transmit())));
        round.step(Step::Receive, &mut || {
            answers.extend(sent.iter().filter_map(|transmit| ends.receive(transmit)));
        });
        round.step(Step::Acknowledge, &mut || {
            answers.iter().for_each(|answer| ends.acknowledge(answer));
        });
        if round.is_warm {
            segments += sent.len() as u64;
            acknowledgments += answers.len() as u64;
        }
    });
    let operations = if counted == Step::Acknowledge { acknowledgments } else { segments };
    guard_case_ends(name, operations);
}

/// Frame of a full segment with timestamps and correct checksums.
fn frame() -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    let total = (20 + 32 + SEGMENT_BYTES) as u16;
    let mut ip = vec![0x45, 0, 0, 0, 0x80, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    let sum = checksum::finish(checksum::add(0, &ip));
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut tcp = vec![0, 7, 0, 9, 1, 2, 3, 4, 5, 6, 7, 8, 0x80, 0x10, 4, 0, 0, 0, 0, 0];
    tcp.extend([1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 8]);
    tcp.resize(32 + SEGMENT_BYTES, 0x5a);
    let pseudo = checksum::add(6 + tcp.len() as u64, &ip[12..20]);
    let sum = checksum::finish(checksum::add(pseudo, &tcp));
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    frame.extend(ip);
    frame.extend(tcp);
    frame
}

fn classified(name: &str, has_checksum: bool) {
    let frame = frame();
    repeat(name, || {
        let segment = classify(black_box(&frame)).expect("TCP over plain IP");
        assert!(!has_checksum || segment.checksum_is_valid());
    });
}

/// A node that receives a batch of segments of a stream and acknowledges it; an operation is one iteration.
fn stream_iteration(name: &str) {
    let mut stations = Stations::new(|port| Pump::new(port, SEGMENT_BYTES));
    let nodes = stations.nodes.clone();
    nodes[1].with(|pump, _| pump.listen(address(1, PORT)));
    nodes[0].with(|pump, _| pump.connect(address(1, PORT)));
    while nodes.iter().any(|node| node.with_client(|pump| pump.offloaded().is_none())) {
        stations.step();
    }
    Rounds::run(Step::Receive, |round| {
        let (sent, received) = (
            nodes[0].with_client(|pump| pump.lists_sent),
            nodes[1].with_client(|pump| pump.bytes_received),
        );
        nodes[0].with(|pump, _| pump.sends = true);
        nodes[0].with(|pump, _| pump.sends = false);
        let now = nodes[1].now();
        let mut core = nodes[1].core();
        round.step(Step::Receive, &mut || {
            assert!(core.poll(now).expect("a link in memory"));
        });
        if round.is_warm {
            let bytes = core.clients.first::<Pump>().bytes_received - received;
            assert_eq!(bytes, (LISTS * SEGMENT_BYTES) as u64, "a whole batch in one iteration");
        }
        drop(core);
        while nodes[0].with_client(|pump| pump.lists_sent) < sent + LISTS as u64 {
            stations.step();
        }
    });
    guard_case_ends(name, ROUNDS);
}

/// Writes of `bytes`: posted, sent as frames, or placed by the peer's next iterations. An operation is one
/// write.
fn writes(name: &str, bytes: usize, batch: u64, counted: Step) {
    writes_by(name, (Operation::Write, bytes), batch, counted, false);
}

/// Like [`writes`], with a batch that is sent together; the cost is per write.
fn packed(name: &str, counted: Step) {
    writes_by(name, (Operation::Write, 64), PACKED, counted, true);
}

/// Writes of 64 bytes between queue pairs of reliable connected service: one by one, or a batch that is sent together.
/// The peer's iterations include the acknowledgment, which the last step processes.
fn reliable(name: &str, counted: Step, is_packed: bool) {
    let batch = if is_packed { PACKED } else { BATCH };
    writes_by(name, (Operation::RcWrite, 64), batch, counted, is_packed);
}

fn writes_by(
    name: &str,
    work @ (operation, bytes): (Operation, usize),
    batch: u64,
    counted: Step,
    is_packed: bool,
) {
    let mut stations =
        Stations::new(|port| AdapterCore::new(AdapterConfig::default(), port, Box::new(|| {})));
    let nodes = stations.nodes.clone();
    let adapters = [0, 1].map(|index| Adapter::new(nodes[index].clone()));
    let step = &mut || stations.step();
    let ends = rdma::connect([&adapters[0], &adapters[1]], address(1, PORT), work, step);
    let mut traffic = Traffic::new(ends.expect("queue pairs"), operation, bytes);
    Rounds::run(counted, |round| {
        let now = nodes[1].now();
        round.step(Step::Send, &mut || match is_packed {
            true => {
                traffic.post_together(batch);
                nodes[0].core().poll(now).expect("a link in memory");
            }
            false => (0..batch).for_each(|_| traffic.post()),
        });
        let mut core = nodes[1].core();
        round.step(Step::Receive, &mut || while core.poll(now).expect("a link in memory") {});
        drop(core);
        if operation == Operation::RcWrite {
            let mut core = nodes[0].core();
            round.step(Step::Acknowledge, &mut || {
                while core.poll(now).expect("a link in memory") {}
            });
            drop(core);
            let completed = traffic.take_completions();
            assert!(!round.is_warm || completed == batch, "one acknowledgment covers all");
        }
        traffic.finish(step);
    });
    guard_case_ends(name, batch * ROUNDS);
}

fn completions(name: &str) {
    let completions = Completions::new();
    Rounds::run(Step::Receive, |round| {
        completions.post();
        round.step(Step::Receive, &mut || {
            completions.push();
            completions.poll();
        });
    });
    guard_case_ends(name, ROUNDS * Completions::COUNT as u64);
}

/// Polls of an empty queue of a node with its own threads.
fn empty_queue(name: &str, mut work: impl FnMut(&Cq)) {
    let pair = Pair::open(AdapterConfig::default()).expect("threads and descriptors");
    let cq = pair.adapters[0].create_cq(16, |_| {}).expect("a queue");
    repeat(name, || work(&cq));
}

fn poll_of_nothing(name: &str) {
    let mut results = [NdkResultEx::default(); 16];
    empty_queue(name, |cq| assert_eq!(cq.poll_ex(&mut results), 0));
}

fn encoding(name: &str, octets: usize) {
    let mut encoding = Encoding::new(octets);
    repeat(name, || assert!(encoding.encode().data_length() > octets));
}

fn decoding(name: &str, octets: usize) {
    let mut decoding = Decoding::new(octets);
    repeat(name, || assert!(decoding.decode() > octets));
}

/// Function of a case, called with its name.
type Case = Box<dyn Fn(&str)>;

fn cases() -> Vec<(&'static str, Case)> {
    let tcp = |bytes, step| -> Case { Box::new(move |name| tcp(name, bytes, step)) };
    let write =
        |bytes, batch, step| -> Case { Box::new(move |name| writes(name, bytes, batch, step)) };
    let packing = |step| -> Case { Box::new(move |name| packed(name, step)) };
    let rc = |step, is_packed| -> Case { Box::new(move |name| reliable(name, step, is_packed)) };
    vec![
        ("tcp-receive-1448", tcp(SEGMENT_BYTES, Step::Receive)),
        ("tcp-receive-63712", tcp(GSO_PACKET_BYTES, Step::Receive)),
        ("tcp-transmit-1448", tcp(SEGMENT_BYTES, Step::Send)),
        ("tcp-transmit-63712", tcp(GSO_PACKET_BYTES, Step::Send)),
        ("tcp-acknowledge", tcp(SEGMENT_BYTES, Step::Acknowledge)),
        ("classify", Box::new(|name| classified(name, false))),
        ("classify-checksum-1448", Box::new(|name| classified(name, true))),
        ("fpdu-encode-64", Box::new(|name| encoding(name, 64))),
        ("fpdu-encode-64000", Box::new(|name| encoding(name, 64_000))),
        ("fpdu-decode-64", Box::new(|name| decoding(name, 64))),
        ("fpdu-decode-64000", Box::new(|name| decoding(name, 64_000))),
        ("cq-push-poll", Box::new(completions)),
        ("ndk-poll-empty", Box::new(poll_of_nothing)),
        ("ndk-arm", Box::new(|name| empty_queue(name, |cq| cq.arm(CqNotify::Any)))),
        ("write-64-post-to-frame", write(64, BATCH, Step::Send)),
        ("write-64-frame-to-memory", write(64, BATCH, Step::Receive)),
        ("write-64-packed-post-to-frame", packing(Step::Send)),
        ("write-64-packed-frame-to-memory", packing(Step::Receive)),
        ("write-65536-post-to-frames", write(65_536, 1, Step::Send)),
        ("write-65536-frames-to-memory", write(65_536, 1, Step::Receive)),
        ("rc-write-64-post-to-frame", rc(Step::Send, false)),
        ("rc-write-64-frame-to-memory", rc(Step::Receive, false)),
        ("rc-write-64-acknowledgment", rc(Step::Acknowledge, false)),
        ("rc-write-64-packed-post-to-frame", rc(Step::Send, true)),
        ("rc-write-64-packed-frame-to-memory", rc(Step::Receive, true)),
        ("rc-write-64-packed-acknowledgment", rc(Step::Acknowledge, true)),
        ("iteration-of-16-segments", Box::new(stream_iteration)),
    ]
}

fn main() {
    assert_eq!(GSO_PACKET_BYTES, 63_712, "the names of the cases contain this size");
    let chosen = std::env::args().nth(1);
    for (name, case) in cases() {
        if chosen.as_deref().is_none_or(|chosen| chosen == name) {
            case(name);
        }
    }
}
