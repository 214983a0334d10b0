//! `bare-tcp-send`, `bare-tcp-recv`: a minimal TCP on a TAP, with a kernel socket as peer.

use clap::Args;
use flue_report::failure::Failure;
use offload_engine::link::{NapiMode, VnetMode};
use serde_json::json;

use super::{
    Common, Outcome,
    engine::{Arrival, Engine, ErrorCounters, Settings},
    frame::{Checksum, HEADERS_BYTES, MTU_OVERHEAD_BYTES},
    kernel::{Done, KernelEnd, Task},
    measure::{End, SpinThenYield, Stopwatch, bind, thread_cpu_seconds},
    test_bed::{Attachment, TapRequest, TestBed},
};

/// Largest frame that the kernel segments.
const GSO_FRAME_BYTES_MAX: usize = 65_535;
/// Receive windows for GSO packets and for plain frames. A TAP silently drops frames beyond its queue of 1,000.
const GSO_WINDOW_BYTES: u32 = 4_000_000;
const PLAIN_WINDOW_BYTES: u32 = 700_000;
/// Received bytes per acknowledgment; an acknowledgment is sent earlier when the TAP is empty.
const GSO_ACK_BYTES: u32 = 128 * 1024;
const PLAIN_ACK_BYTES: u32 = 32 * 1024;
/// Reads of an empty TAP before received data is acknowledged.
const EMPTY_READS: u32 = 3;
/// Segments sent between two reads of acknowledgments.
const GSO_PACKETS_PER_READ: u32 = 1;
const PLAIN_SEGMENTS_PER_READ: u32 = 8;
/// Segments sent, or reads of the TAP, between two reads of the clock.
const STEPS_PER_CLOCK: u32 = 32;

/// Options of the bare TCP.
#[derive(Args, Clone, Debug)]
pub struct BareArgs {
    /// Frames of MTU size; otherwise GSO packets of 64 KiB
    #[arg(long)]
    pub plain: bool,

    /// Method for the TCP checksums of plain frames; the default is the faster one. With "software", and when
    /// receiving plain frames, the TAP has no virtio-net header
    #[arg(long, value_enum, requires = "plain")]
    pub checksum: Option<Checksum>,

    /// MTU [1280 to 65521]
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "1500",
        value_parser = clap::value_parser!(u16).range(crate::MTU_BYTES)
    )]
    pub mtu: u16,

    /// Most bytes in flight; when sending, the kernel's receive window is a limit too
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(65536..=16_000_000))]
    pub window: Option<u32>,

    /// Options of all kinds.
    #[command(flatten)]
    pub common: Common,
}

impl BareArgs {
    fn checksum(&self, task: Task) -> Checksum {
        match (self.plain, task) {
            (false, _) => Checksum::Header,
            (true, Task::Sink) => self.checksum.unwrap_or(Checksum::Header),
            // The kernel sends complete checksums to a TAP without the header.
            (true, Task::Source) => Checksum::Software,
        }
    }
}

/// An established connection.
struct Bench {
    checksum: Checksum,
    test_bed: TestBed,
    engine: Engine,
    kernel: KernelEnd,
    segment_bytes: usize,
    mss: usize,
    window_bytes: u32,
}

fn connect(args: &BareArgs, task: Task) -> Result<Bench, Failure> {
    let BareArgs { plain, mtu, window, common, .. } = args;
    let mut test_bed = TestBed::make(common, 1)?;
    let vnet = match (args.checksum(task), plain) {
        (Checksum::Software, _) => VnetMode::Off,
        (Checksum::Header, true) => VnetMode::Checksum,
        (Checksum::Header, false) => VnetMode::On,
    };
    let tap_request = TapRequest { attachment: Attachment::Kernel, mtu_bytes: *mtu, vnet };
    let tap = test_bed.open(tap_request)?;
    let far = test_bed.kernel_station(&tap)?;
    let kernel = KernelEnd::start(task, common)?;
    bind(common, End::Near)?;

    let mss = usize::from(*mtu) - MTU_OVERHEAD_BYTES;
    let in_frame = GSO_FRAME_BYTES_MAX - HEADERS_BYTES;
    let segment_bytes = if *plain { mss } else { (in_frame / mss * mss).max(mss) };
    let checksum = args.checksum(task);
    let default = match (task, plain) {
        (Task::Sink, _) => u32::MAX,
        (Task::Source, true) => PLAIN_WINDOW_BYTES,
        (Task::Source, false) => GSO_WINDOW_BYTES,
    };
    let window_bytes = window.unwrap_or(default);
    let settings = Settings { mss: mss as u16, checksum, window_bytes, far };
    let mut engine = Engine::new(tap, settings);
    engine.connect()?;
    Ok(Bench { checksum, test_bed, engine, kernel, segment_bytes, mss, window_bytes })
}

/// Measures sending from the minimal TCP to the kernel.
pub(super) fn send(args: &BareArgs) -> Result<Outcome, Failure> {
    let mut bench = connect(args, Task::Sink)?;
    let Bench { engine, kernel, segment_bytes, mss, window_bytes, .. } = &mut bench;
    let per_read = if args.plain { PLAIN_SEGMENTS_PER_READ } else { GSO_PACKETS_PER_READ };
    let mut watch = Stopwatch::start(args.common.seconds);
    let mut idle = SpinThenYield::new();
    let (mut sent_bytes, mut segments, mut since_look) = (0_u64, 0_u64, 0);
    let cpu_before = thread_cpu_seconds();
    while !watch.is_over(kernel.bytes()) {
        for _ in 0..STEPS_PER_CLOCK {
            let room = engine.room_bytes(*window_bytes);
            let bytes = next_segment(room, engine.window_bytes(), *segment_bytes, *mss);
            if bytes > 0 {
                engine.send(bytes)?;
                sent_bytes += bytes as u64;
                segments += 1;
                since_look += 1;
                idle.renew();
            }
            if since_look >= per_read || room < 2 * *segment_bytes {
                since_look = 0;
                while engine.receive()? != Arrival::Nothing {}
            }
            if bytes == 0 && !idle.wait() {
                return Err(stalled(engine));
            }
        }
    }
    let near_cpu_seconds = thread_cpu_seconds() - cpu_before;
    let mut idle = SpinThenYield::new();
    while engine.in_flight_bytes() > 0 {
        if engine.receive()? == Arrival::Nothing && !idle.wait() {
            return Err(stalled(engine));
        }
    }
    engine.finish()?;
    while !kernel.is_done() {
        if engine.receive()? == Arrival::Nothing && !idle.wait() {
            return Err(Failure::work(
                "kernel socket: no end of the connection within the time limit",
            ));
        }
    }
    conclude(args, bench, &watch, Sent { sent_bytes, segments, near_cpu_seconds })
}

/// Returns the bytes of the next segment: a full one if there is room, otherwise whole packets that are a good part of
/// the window (sender SWS avoidance, RFC 9293 §3.8.6.2.1).
const fn next_segment(room: usize, window: usize, segment: usize, mss: usize) -> usize {
    if room >= segment {
        return segment;
    }
    let packets = room / mss * mss;
    if packets * 2 < window { 0 } else { packets }
}

fn stalled(engine: &Engine) -> Failure {
    let bytes = engine.in_flight_bytes();
    Failure::work(format!("frame dropped: {bytes} bytes not acknowledged"))
}

/// Measures receiving by the minimal TCP from the kernel.
pub(super) fn receive(args: &BareArgs) -> Result<Outcome, Failure> {
    let mut bench = connect(args, Task::Source)?;
    let Bench { engine, kernel, .. } = &mut bench;
    let ack_bytes = if args.plain { PLAIN_ACK_BYTES } else { GSO_ACK_BYTES };
    let mut watch = Stopwatch::start(args.common.seconds);
    let mut idle = SpinThenYield::new();
    let (mut received_bytes, mut segments, mut empty_reads, mut steps) = (0_u64, 0_u64, 0, 0_u32);
    let cpu_before = thread_cpu_seconds();
    let mut near_cpu_seconds = 0.0;
    while !engine.has_ended() {
        let arrival = engine.receive()?;
        let is_empty = arrival == Arrival::Nothing;
        if let Arrival::Data(bytes) = arrival {
            received_bytes += bytes as u64;
            segments += 1;
            empty_reads = 0;
            idle.renew();
        }
        empty_reads += u32::from(is_empty);
        let due_bytes = engine.unacknowledged_bytes();
        if due_bytes >= ack_bytes || (due_bytes > 0 && is_empty && empty_reads >= EMPTY_READS) {
            engine.acknowledge()?;
        } else if is_empty && !idle.wait() {
            return Err(Failure::work("kernel socket: stopped sending"));
        }
        steps = steps.wrapping_add(1);
        if steps.is_multiple_of(STEPS_PER_CLOCK) && watch.is_over(received_bytes) {
            if near_cpu_seconds == 0.0 {
                near_cpu_seconds = thread_cpu_seconds() - cpu_before;
            }
            kernel.stop();
        }
    }
    engine.acknowledge()?;
    engine.finish()?;
    conclude(args, bench, &watch, Sent { sent_bytes: received_bytes, segments, near_cpu_seconds })
}

/// Totals of the minimal TCP's end.
#[derive(Clone, Copy, Debug)]
struct Sent {
    sent_bytes: u64,
    segments: u64,
    near_cpu_seconds: f64,
}

/// Compares the counts of both ends, and returns the result.
fn conclude(
    args: &BareArgs,
    bench: Bench,
    watch: &Stopwatch,
    sent: Sent,
) -> Result<Outcome, Failure> {
    let Bench { checksum, mut test_bed, engine, kernel, segment_bytes, window_bytes, .. } = bench;
    let Sent { sent_bytes, segments, near_cpu_seconds } = sent;
    let congestion_control = kernel.congestion_control;
    let Done { bytes, cpu_seconds } = kernel.join()?;
    let dropped_frames = test_bed.dropped_frames()?;
    validate(engine.errors, dropped_frames, sent_bytes, bytes)?;
    let detail = json!({
        "mtu_bytes": args.mtu,
        "segment_bytes_max": segment_bytes,
        "segment_bytes_mean": sent_bytes as f64 / segments.max(1) as f64,
        "segments": segments,
        "window_bytes": (window_bytes != u32::MAX).then_some(window_bytes),
        "checksum": if checksum == Checksum::Software { "software" } else { "header" },
        "congestion_control": congestion_control,
        "duplicate_segments": engine.errors.duplicates,
        "dropped_frames": dropped_frames,
        "near_cpu_seconds": near_cpu_seconds,
        "far_cpu_seconds": cpu_seconds,
        "threaded_napi": args.common.napi == NapiMode::Threaded,
        "cpus": args.common.cpus,
    });
    Outcome::bandwidth(watch.measured()?, detail)
}

/// Checks the validity of the run: all data arrived without retransmission.
fn validate(
    errors: ErrorCounters,
    dropped_frames: u64,
    ours_bytes: u64,
    theirs_bytes: u64,
) -> Result<(), Failure> {
    // The kernel sends duplicates when an acknowledgment is late: no data was lost.
    let ErrorCounters { gaps, duplicates: _, damaged } = errors;
    if gaps + damaged > 0 {
        return Err(Failure::work(format!(
            "frames dropped: {gaps} segments after a gap, {damaged} damaged, TAP drops \
             {dropped_frames}"
        )));
    }
    if ours_bytes != theirs_bytes {
        return Err(Failure::work(format!(
            "byte count: kernel {theirs_bytes}, this end {ours_bytes}, expected equal"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_with_losses_is_invalid() {
        let fine = ErrorCounters { gaps: 0, duplicates: 3, damaged: 0 };
        assert!(validate(fine, 0, 100, 100).is_ok());
        let message = |errors, ours, theirs| validate(errors, 7, ours, theirs).unwrap_err().message;
        assert!(
            message(ErrorCounters { gaps: 2, ..fine }, 1, 1).contains("2 segments after a gap")
        );
        assert!(message(ErrorCounters { damaged: 1, ..fine }, 1, 1).contains("TAP drops 7"));
        assert!(message(fine, 99, 100).contains("kernel 100, this end 99"));
    }

    #[test]
    fn segments_are_full_or_a_good_part_of_the_window() {
        let next = |room, window| next_segment(room, window, 64_240, 1460);
        assert_eq!(next(64_240, 4_000_000), 64_240);
        assert_eq!(next(64_239, 4_000_000), 0);
        assert_eq!(next(60_000, 65_535), 59_860);
        assert_eq!(next(30_000, 65_535), 0);
        assert_eq!(next(1459, 2000), 0);
        assert_eq!(next_segment(1460, 3_000_000, 1460, 1460), 1460);
    }
}
