//! Measurements, and the text file that records them.
//!
//! The kernel pair and the flue pair of a cell are measured alternately, with the same settings and seed of the wire,
//! over their own wire and hosts. The measured value is payload read by the receiving application, from the
//! connection request on.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flue_test_support::load::repeat_until_quiet;
use flue_test_support::netns::Namespace;
use flue_test_support::switch::Switch;
use flue_test_support::wire::{Counters, Wire};
use offload_engine::tcp::Info;

use crate::FLUE;
use crate::flow::{End, Flows};
use crate::hosts::{flue_node, raise_buffer_limits};

/// Bytes of a full-sized frame, and of its payload: timestamps take 12 of 1460.
const FRAME_BYTES: f64 = 1514.0;
const PAYLOAD_BYTES: f64 = 1448.0;
const PORT: u16 = 5001;

/// Lateness of the wire above which a run is repeated: other work of the machine disturbed it.
const LATE_MAX: Duration = Duration::from_millis(1);
/// Maximum number of such repetitions; the last run counts then, and the snapshot records it.
const RERUNS_MAX: usize = 12;

/// Impairments of a cell.
#[derive(Clone, Copy)]
struct Cell {
    rtt_ms: u32,
    /// Rate; `None` for the wire's maximum.
    rate_mbit: Option<u32>,
    /// Loss in the data direction, in percent.
    loss: f64,
    /// Mean length of loss bursts; 0 for independent losses.
    burst: u32,
    /// Reordering in the data direction, in percent.
    reorder: f64,
}

/// Result of a run.
#[derive(Clone, Copy, Debug)]
struct Run {
    mbit: f64,
    /// Retransmitted segments, in percent of those sent.
    again: f64,
    /// Frames received by the wire in the data direction.
    frames: u64,
    lost: u64,
    reordered: u64,
    queue_full: u64,
    /// Frames lost in the acknowledgment direction.
    lost_acks: u64,
    /// Frames dropped by the kernels because the wire did not read them in time.
    unfetched: u64,
    /// Lateness of the wire's frames, 99th percentile.
    late: Duration,
}

impl Cell {
    fn options(&self, seed: u64) -> String {
        let Self { rtt_ms, rate_mbit, loss, burst, reorder } = self;
        let mut options = format!("--seed {seed} --delay {}us", rtt_ms * 500);
        if let Some(rate) = rate_mbit {
            write!(options, " --rate {rate}mbit --queue {rtt_ms}ms").expect("write to a String");
        }
        write!(options, " --ab drop={loss},burst={burst},reorder={reorder}")
            .expect("write to a String");
        options
    }

    /// Payload rate of the wire without loss.
    fn ideal(&self) -> Option<f64> {
        self.rate_mbit.map(|rate| f64::from(rate) * PAYLOAD_BYTES / FRAME_BYTES)
    }

    /// Throughput of one Reno flow at this loss rate (Mathis et al. 1997), at most the ideal.
    fn reno(&self) -> Option<f64> {
        let bits = PAYLOAD_BYTES * 8.0;
        let mbit = bits / (f64::from(self.rtt_ms) * 1e3) * (1.5 / (self.loss / 100.0)).sqrt();
        self.ideal().map(|ideal| ideal.min(mbit))
    }

    fn kernel_pair(&self, seed: u64, seconds: u64) -> Run {
        let (left, wire, right) = Wire::between_kernels(Path::new(FLUE), &self.options(seed));
        raise_buffer_limits(&left);
        raise_buffer_limits(&right);
        let mut flows = Flows::new();
        flows.add(End::Kernel(&left), End::Kernel(&right), 2, PORT);
        let bytes = flows.measure(Duration::from_secs(seconds))[0];
        flows.stop();
        let (sent, again) = (left.counter("TcpOutSegs"), left.counter("TcpRetransSegs"));
        let run = Run::new(bytes, seconds, again, sent, &wire.finish());
        self.check(&run);
        let names = ["TcpExtTCPTimeouts", "TcpExtTCPLossProbes", "TcpExtTCPFastRetrans"];
        let counts = names.map(|name| left.counter(name));
        run.log(&format!("kernel, seed {seed}: timeouts, probes, fast retransmits {counts:?}"));
        run
    }

    fn flue_pair(&self, seed: u64, seconds: u64) -> Run {
        let (left, right) = (Switch::new(1500), Switch::new(1500));
        let bridge = Switch::BRIDGE;
        let options = format!("--bridge-a {bridge} --bridge-b {bridge} {}", self.options(seed));
        let wire = Wire::start(Path::new(FLUE), left.namespace(), right.namespace(), &options);
        let (source, sink) = (flue_node(&left, 1), flue_node(&right, 2));
        let mut flows = Flows::new();
        let counted = flows.add(End::Flue(&source), End::Flue(&sink), 2, PORT);
        let bytes = flows.measure(Duration::from_secs(seconds))[0];
        flows.stop();
        let info = counted.lock().expect("an unpoisoned lock").take();
        let (sent, again) = info.map_or((0, 0), |info| (info.segs_out, info.total_retrans));
        let run = Run::new(bytes, seconds, again, sent, &wire.finish());
        self.check(&run);
        run.log(&format!("flue, seed {seed}: {}", info.map_or_else(String::new, |it| said(&it))));
        run
    }

    /// Checks that the impairments occurred as configured, and that no other loss did.
    fn check(&self, run: &Run) {
        let Run { frames, lost, reordered, lost_acks, .. } = *run;
        let frames = frames as f64;
        for (name, count, share) in
            [("lost", lost, self.loss), ("reordered", reordered, self.reorder)]
        {
            let (count, expected) = (count as f64, frames * share / 100.0);
            let error = (count - expected).abs();
            // Bursts with a mean of b increase the deviation by at most sqrt(2 b).
            let wider = f64::from(2 * self.burst).sqrt().max(1.0);
            assert!(
                error <= 5.0 * wider * expected.sqrt() + 1.0,
                "{name}: {count} of {frames}, not {expected}"
            );
        }
        assert_eq!(lost_acks, 0, "{run:?}");
    }

    /// Repeats `run` while the wire was late; counts the repetitions in `repeated`. An overloaded wire is late in any
    /// run.
    fn in_time(&self, mut run: impl FnMut() -> Run, repeated: &mut usize) -> Run {
        let mut found = run();
        for _ in 0..RERUNS_MAX {
            if found.late <= LATE_MAX || self.rate_mbit.is_none_or(|rate| rate > 1000) {
                break;
            }
            *repeated += 1;
            found = run();
        }
        found
    }

    fn name(&self) -> String {
        match (self.loss, self.reorder, self.rate_mbit) {
            (_, _, None) => "no rate".into(),
            (_, _, Some(10_000)) => "10 Gbit/s".into(),
            (loss, 0.0, _) if self.burst > 0 => format!("{loss} % by {}", self.burst),
            (loss, 0.0, _) => format!("{loss} %"),
            (_, reorder, _) => format!("reorder {reorder} %"),
        }
    }
}

/// Counters of a flue connection, for the log.
fn said(info: &Info) -> String {
    let Info { rtt, snd_cwnd, snd_ssthresh, snd_wnd, timeouts, fast_retransmits, .. } = info;
    format!(
        "rtt {rtt:.1?}, cwnd {snd_cwnd}, ssthresh {snd_ssthresh:?}, peer's window {snd_wnd}, \
         {timeouts} timeouts, {fast_retransmits} recoveries"
    )
}

impl Run {
    fn new(bytes: u64, seconds: u64, again: u64, sent: u64, wire: &Counters) -> Self {
        Self {
            mbit: bytes as f64 * 8.0 / seconds as f64 / 1e6,
            again: 100.0 * again as f64 / sent.max(1) as f64,
            frames: wire.to_right("frames_in"),
            lost: wire.to_right("lost"),
            reordered: wire.to_right("reordered"),
            queue_full: wire.to_right("queue_full"),
            lost_acks: wire.to_left("lost"),
            unfetched: wire.to_right("tap_drops") + wire.to_left("tap_drops"),
            late: wire.late()[1].unwrap_or_default(),
        }
    }

    fn log(&self, said: &str) {
        let Self { mbit, queue_full, unfetched, late, lost, .. } = self;
        println!(
            "    {mbit:.1} Mbit/s; wire: {lost} dropped, {queue_full} queue full, {unfetched} TAP drops, \
             late {late:.1?}; {said}"
        );
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len() % 2 == 1 { values[half] } else { (values[half - 1] + values[half]) / 2.0 }
}

/// Median and range, `94.3 (93.9..94.6)`.
fn spread(values: Vec<f64>) -> String {
    let (least, most) = values
        .iter()
        .fold((f64::MAX, 0.0_f64), |(least, most), &value| (least.min(value), most.max(value)));
    format!("{:.1} ({least:.1}..{most:.1})", median(values))
}

/// Runs two pairs at a low loss rate.
pub(crate) fn smoke() {
    let cell = Cell { rtt_ms: 4, rate_mbit: Some(50), loss: 0.5, burst: 0, reorder: 0.5 };
    let [kernel, flue]: [&dyn Fn() -> Run; 2] =
        [&|| cell.kernel_pair(1, 2), &|| cell.flue_pair(1, 2)];
    for pair in [kernel, flue] {
        let run = || {
            let run = pair();
            assert!(run.mbit < 50.0, "rate limit not applied: {run:?}");
            run
        };
        // A stalled flow is slower than the limit; a flow whose processes are not scheduled may be as slow.
        repeat_until_quiet(run, |run| run.mbit > 2.0 && run.again > 0.0);
    }
}

const LOSSES: [f64; 5] = [0.0, 0.01, 0.1, 1.0, 5.0];

/// Parts of the table, each measured as one.
const SLOW: &str = "throughput, 100 Mbit/s, RTT 10 ms";
const FAR: &str = "throughput, 100 Mbit/s, RTT 100 ms";
const FAST: &str = "throughput, unlimited rate";

/// Measures the whole table.
pub(crate) fn throughput(seconds: u64, runs: u64) {
    for (part, rtt_ms) in [(SLOW, 10), (FAR, 100)] {
        let cell = |loss, burst, reorder| {
            let rate_mbit = Some(100);
            Cell { rtt_ms, rate_mbit, loss, burst, reorder }
        };
        let mut cells: Vec<Cell> = LOSSES.map(|loss| cell(loss, 0, 0.0)).into();
        cells.extend([cell(0.1, 5, 0.0), cell(0.0, 0, 1.0)]);
        table(part, "A queue of one bandwidth-delay product.", &cells, seconds, runs);
    }
    let fast = |rate_mbit, loss| Cell { rtt_ms: 1, rate_mbit, loss, burst: 0, reorder: 0.0 };
    let title = "RTT 1 ms: GSO packets whole; then 10 Gbit/s in frames of the MTU.";
    table(FAST, title, &[fast(None, 0.0), fast(Some(10_000), 0.0)], seconds, runs);
}

/// Measures the selected cells of a part, and writes the part if all of its cells were measured.
fn table(part: &str, title: &str, cells: &[Cell], seconds: u64, runs: u64) {
    let wanted =
        |cell: &Cell| only().is_none_or(|only| format!("{part}, {}", cell.name()).contains(&only));
    if !cells.iter().any(wanted) {
        return;
    }
    let mut text = format!(
        "Goodput of one connection, Mbit/s: median of {runs} runs of {seconds} s each from the handshake on\n\
         (min..max), kernel and flue alternating, seeds 1 to {runs}. Loss and reordering affect only data.\n\
         ideal: rate x {PAYLOAD_BYTES}/{FRAME_BYTES}; reno: the smaller of that and Mathis' formula; again:\n\
         retransmitted segments, median, percent of all sent. Kernel: CUBIC, buffers of up to 64 MiB.\n\
         flue: PSH when the queue is empty, so segments span posted lists, as the kernel's do; receive\n\
         windows of up to 64 MiB. {title}\n"
    );
    let head = format!(
        "{:<12}{:>7}{:>7}{:>27}{:>27}{:>9}{:>9}{:>9}",
        "loss", "ideal", "reno", "kernel", "flue", "flue/", "kernel", "flue"
    );
    let units = format!("{:>89}{:>9}{:>9}", "kernel", "again %", "again %");
    writeln!(text, "\n{head}\n{units}").expect("write to a String");
    println!("\n{part}\n\n{head}");
    let (mut late, mut repeated) = (Duration::ZERO, 0);
    for cell in cells.iter().filter(|cell| wanted(cell)) {
        let mut found: [Vec<Run>; 2] = Default::default();
        for seed in 1..=runs {
            // The order alternates, to average out a drift of the machine.
            for turn in 0..2 {
                let is_flue = (turn + seed) % 2 == 0;
                let run = || match is_flue {
                    true => cell.flue_pair(seed, seconds),
                    false => cell.kernel_pair(seed, seconds),
                };
                found[usize::from(is_flue)].push(cell.in_time(run, &mut repeated));
            }
        }
        let line = row(cell, &found);
        println!("{line}");
        writeln!(text, "{line}").expect("write to a String");
        late = found.iter().flatten().map(|run| run.late).fold(late, Duration::max);
    }
    let line = format!(
        "99 % of the wire's frames left within {late:.1?} of their time; {repeated} runs that exceeded \
         {LATE_MAX:?} were repeated."
    );
    println!("{line}");
    writeln!(text, "{line}").expect("write to a String");
    if cells.iter().all(wanted) {
        write(part, &text);
    }
}

/// Filter from the environment: cells whose part and name contain it.
fn only() -> Option<String> {
    std::env::var("FLUE_IMPAIRMENT_ONLY").ok()
}

fn row(cell: &Cell, [kernel, flue]: &[Vec<Run>; 2]) -> String {
    let mbit = |runs: &[Run]| runs.iter().map(|run| run.mbit).collect::<Vec<_>>();
    let again = |runs: &[Run]| median(runs.iter().map(|run| run.again).collect());
    let number =
        |value: Option<f64>| value.map_or_else(|| "-".into(), |value| format!("{value:.1}"));
    let name = cell.name();
    let share = median(mbit(flue)) / median(mbit(kernel));
    format!(
        "{name:<12}{:>7}{:>7}{:>27}{:>27}{share:>9.2}{:>9.2}{:>9.2}",
        number(cell.ideal()),
        number(cell.reno()),
        spread(mbit(kernel)),
        spread(mbit(flue)),
        again(kernel),
        again(flue),
    )
}

/// Sender over the bottleneck.
#[derive(Clone, Copy, PartialEq)]
enum Sender {
    Kernel,
    Flue,
}

/// Measures flows that share a bottleneck: two of flue and one of the kernel, and for comparison three of the kernel.
pub(crate) fn fairness(seconds: u64, runs: u64) {
    let warm_up = Duration::from_secs(seconds.div_ceil(4));
    let mut text = format!(
        "Three flows from one side to kernels on the other, 100 Mbit/s, RTT 20 ms, queue of one\n\
         bandwidth-delay product, started together. Goodput in {seconds} s after {warm_up:?}, Mbit/s; Jain's index\n\
         is 1 if all are equal and 1/3 if one flow has the whole rate. Seeds 1 to {runs}.\n\n\
         {:<26}{:>7}{:>8}{:>8}{:>8}{:>8}{:>8}{:>12}\n",
        "flows", "seed", "first", "second", "third", "sum", "Jain", "wire late"
    );
    use Sender::{Flue, Kernel};
    for senders in [[Flue, Flue, Kernel], [Kernel, Kernel, Kernel]] {
        for seed in 1..=runs {
            let mut shared = share(senders, seed, warm_up, seconds);
            for _ in 0..RERUNS_MAX {
                if shared.1 <= LATE_MAX {
                    break;
                }
                println!("    wire late {:.1?}, repeated: {}", shared.1, shared.0);
                shared = share(senders, seed, warm_up, seconds);
            }
            let line = format!("{}{:>12}", shared.0, format!("{:.1?}", shared.1));
            println!("{line}");
            writeln!(text, "{line}").expect("write to a String");
        }
    }
    write("fairness", &text);
}

/// Line of the table, and lateness of the wire.
fn share(senders: [Sender; 3], seed: u64, warm_up: Duration, seconds: u64) -> (String, Duration) {
    let (left, right) = (Switch::new(1500), Namespace::new());
    let options = format!(
        "--bridge-a {} --addr-b 10.0.0.2/24 --seed {seed} --delay 10ms --rate 100mbit --queue 20ms",
        Switch::BRIDGE
    );
    let wire = Wire::start(Path::new(FLUE), left.namespace(), &right, &options);
    left.namespace().ip(&format!("addr add 10.0.0.1/24 dev {}", Switch::BRIDGE));
    raise_buffer_limits(left.namespace());
    raise_buffer_limits(&right);
    let nodes: Vec<_> = [3, 4]
        .into_iter()
        .take(senders.iter().filter(|&&sender| sender == Sender::Flue).count())
        .map(|host| flue_node(&left, host))
        .collect();
    let mut flows = Flows::new();
    let mut free = nodes.iter();
    for (port, sender) in (PORT..).zip(senders) {
        let source = match sender {
            Sender::Kernel => End::Kernel(left.namespace()),
            Sender::Flue => End::Flue(free.next().expect("one node per sender")),
        };
        flows.add(source, End::Kernel(&right), 2, port);
    }
    flows.measure(warm_up);
    let bytes = flows.measure(Duration::from_secs(seconds));
    flows.stop();
    let late = wire.finish().late()[1].unwrap_or_default();
    let rates: Vec<f64> =
        bytes.iter().map(|&bytes| bytes as f64 * 8.0 / seconds as f64 / 1e6).collect();
    let (sum, squares) =
        rates.iter().fold((0.0, 0.0), |(sum, squares), rate| (sum + rate, squares + rate * rate));
    let names = senders.map(|sender| if sender == Sender::Flue { "flue" } else { "kernel" });
    let [first, second, third] = [rates[0], rates[1], rates[2]];
    let line = format!(
        "{:<26}{seed:>7}{first:>8.1}{second:>8.1}{third:>8.1}{sum:>8.1}{:>8.3}",
        names.join(", "),
        sum * sum / (3.0 * squares)
    );
    (line, late)
}

/// Replaces a part of the snapshot with `text`; the other parts are kept. Does nothing if cells are missing.
fn write(part: &str, text: &str) {
    let path: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "docs", "measurements", "impaired-throughput.txt"]
            .iter()
            .collect();
    let old = fs::read_to_string(&path).unwrap_or_default();
    let mark = |part: &str| format!("== {part} ==\n");
    let kept = |part: &str| {
        let (_, rest) = old.split_once(&mark(part))?;
        Some(rest.split("\n== ").next().unwrap_or(rest).trim_end().to_owned())
    };
    let mut parts = vec![];
    for name in [SLOW, FAR, FAST, "fairness"] {
        let body = if name == part { Some(text.trim_end().to_owned()) } else { kept(name) };
        parts.extend(body.map(|body| format!("{}{body}\n", mark(name))));
    }
    fs::create_dir_all(path.parent().expect("a parent directory"))
        .expect("a writable docs directory");
    fs::write(&path, parts.join("\n")).expect("a writable docs directory");
    println!("written: {}", path.display());
}
