//! `tap-bw`, `tap-rtt`: raw frames from one TAP over a bridge to another.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::{Duration, Instant},
};

use clap::Args;
use flue_report::failure::Failure;
use offload_engine::link::VnetMode;
use serde_json::json;

use super::{
    Common, Outcome,
    far_end::FarEnd,
    frame::{self, ACK, Checksum, HEADERS_BYTES, Head, Segment, Station},
    latency::Samples,
    measure::{End, SpinThenYield, Stopwatch, bind, thread_cpu_seconds},
    test_bed::{Attachment, FAR, FRAME_BYTES_MAX, NEAR, Tap, TapRequest, TestBed},
};

/// Limits of frames in flight. A TAP queues 1,000; fewer large frames, so that they remain in the caches.
const PLAIN_WINDOW_FRAMES: u64 = 256;
const GSO_WINDOW_FRAMES: u64 = 16;
/// MSS of GSO packets.
const MSS: u16 = 1460;
const PLAIN_FRAME_BYTES_MAX: usize = HEADERS_BYTES + MSS as usize;
/// Frames per clock read.
const FRAMES_PER_CLOCK: u32 = 32;
/// Size of a ping-pong frame, bytes.
const PING_BYTES: usize = 64;
const MTU_BYTES: u16 = 1500;

/// Options of the wire.
#[derive(Args, Clone, Debug)]
pub struct WireArgs {
    /// Frame size [64 to 1514; with --gso to 65535]
    #[arg(long, value_name = "BYTES", default_value = "1514")]
    pub frame: usize,

    /// GSO packets: the TAPs have a virtio-net header, and the kernel forwards them without segmentation
    #[arg(long)]
    pub gso: bool,

    /// Options of all kinds.
    #[command(flatten)]
    pub common: Common,
}

/// TAP with its buffers.
struct Port {
    tap: Tap,
    port: u16,
    /// Frame to send, with a new sequence number each time.
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    idle: SpinThenYield,
}

impl Port {
    /// Creates a port that sends frames of `frame_bytes` bytes.
    fn new(tap: Tap, near: Station, far: Station, frame_bytes: usize, idle: SpinThenYield) -> Self {
        let checksum = if tap.vnet_header() { Checksum::Header } else { Checksum::Software };
        let payload = vec![0x5a; frame_bytes - HEADERS_BYTES];
        let mut head = Head::new(near, far, tap.vnet_header(), checksum, MSS);
        let segment = Segment { flags: ACK, ..Segment::default() };
        let outgoing = [head.patch(segment, &payload), &payload].concat();
        Self { tap, port: near.port, outgoing, incoming: vec![1; FRAME_BYTES_MAX], idle }
    }

    /// Sends the frame with this sequence number. Nothing on the path verifies the TCP checksum.
    fn write(&mut self, number: u32) -> Result<(), Failure> {
        frame::set_sequence(&mut self.outgoing[self.tap.front_bytes()..], number);
        self.tap.write(&self.outgoing)
    }

    /// Returns sequence number and payload length of the next frame; `None` if there is none from the other port.
    fn read(&mut self) -> Result<Option<(u32, usize)>, Failure> {
        let Some(bytes) = self.tap.read(&mut self.incoming)? else { return Ok(None) };
        let frame = self.incoming[..bytes].get(self.tap.front_bytes()..).unwrap_or_default();
        let head = &frame[..frame.len().min(HEADERS_BYTES)];
        let received = frame::parse(head, frame.len() - head.len(), self.port);
        Ok(received.map(|it| (it.segment.seq, it.payload_bytes)))
    }

    /// Waits for a frame; fails if none arrives.
    fn wait(&mut self, stop: &AtomicBool) -> Result<Option<(u32, usize)>, Failure> {
        let mut idle = self.idle;
        loop {
            if let Some(found) = self.read()? {
                return Ok(Some(found));
            }
            if stop.load(Relaxed) {
                return Ok(None);
            }
            if !idle.wait() {
                return Err(Failure::work("frame dropped: no frame within the time limit"));
            }
        }
    }
}

/// State shared by both ends.
#[derive(Debug, Default)]
struct Shared {
    frames: AtomicU64,
    bytes: AtomicU64,
    stop: AtomicBool,
}

/// Result of the far end.
#[derive(Clone, Copy, Debug, Default)]
struct FarEndResult {
    /// Frames out of order.
    out_of_order: u64,
    cpu_seconds: f64,
}

/// Two ports; the far one is used by a dedicated thread.
struct Pair {
    test_bed: TestBed,
    near: Port,
    shared: Arc<Shared>,
    far: FarEnd<FarEndResult>,
}

type FarLoop = fn(Port, &Shared) -> Result<FarEndResult, Failure>;

fn pair(
    common: &Common,
    vnet_header: bool,
    frame_bytes: usize,
    idle: SpinThenYield,
    far_loop: FarLoop,
) -> Result<Pair, Failure> {
    let mut test_bed = TestBed::make(common, 2)?;
    let vnet = if vnet_header { VnetMode::On } else { VnetMode::Off };
    let tap_request = TapRequest { attachment: Attachment::Bridge, mtu_bytes: MTU_BYTES, vnet };
    let mut near = Port::new(test_bed.open(tap_request)?, NEAR, FAR, frame_bytes, idle);
    let mut far = Port::new(test_bed.open(tap_request)?, FAR, NEAR, PING_BYTES, idle);
    let shared = Arc::new(Shared::default());
    // The bridge learns both addresses, and does not flood frames during the run.
    far.write(0)?;
    near.wait(&shared.stop)?;
    near.write(0)?;
    far.wait(&shared.stop)?;
    let theirs = Arc::clone(&shared);
    let far = FarEnd::start(common, move || {
        let before = thread_cpu_seconds();
        let found = far_loop(far, &theirs)?;
        Ok(FarEndResult { cpu_seconds: thread_cpu_seconds() - before, ..found })
    })?;
    bind(common, End::Near)?;
    Ok(Pair { test_bed, near, shared, far })
}

impl Pair {
    /// Stops the far end. Returns its result, and the number of frames that the TAPs dropped.
    fn end(self) -> Result<(FarEndResult, u64), Failure> {
        let Self { mut test_bed, near: _near, shared, far } = self;
        // Read first, because the far end closes its TAP.
        let dropped_frames = test_bed.dropped_frames()?;
        shared.stop.store(true, Relaxed);
        Ok((far.join()?, dropped_frames))
    }
}

fn count(mut port: Port, shared: &Shared) -> Result<FarEndResult, Failure> {
    let (mut frames, mut bytes, mut found) = (0_u64, 0_u64, FarEndResult::default());
    while let Some((number, payload_bytes)) = port.wait(&shared.stop)? {
        found.out_of_order += u64::from(number != frames as u32);
        frames += 1;
        bytes += payload_bytes as u64;
        shared.bytes.store(bytes, Relaxed);
        // The near end waits for this counter.
        shared.frames.store(frames, Release);
    }
    Ok(found)
}

fn echo(mut port: Port, shared: &Shared) -> Result<FarEndResult, Failure> {
    while let Some((number, _)) = port.wait(&shared.stop)? {
        port.write(number)?;
    }
    Ok(FarEndResult::default())
}

/// Measures frames in one direction, as fast as possible.
pub(super) fn bandwidth(args: &WireArgs) -> Result<Outcome, Failure> {
    let WireArgs { frame: frame_bytes, gso, common } = args;
    let max = if *gso { usize::from(u16::MAX) } else { PLAIN_FRAME_BYTES_MAX };
    if !(PING_BYTES..=max).contains(frame_bytes) {
        let message = format!("--frame {frame_bytes}: expected {PING_BYTES} to {max} bytes");
        return Err(Failure::usage(message));
    }
    let mut pair = pair(common, *gso, *frame_bytes, SpinThenYield::new(), count)?;
    let is_super = *frame_bytes > PLAIN_FRAME_BYTES_MAX;
    let window = if is_super { GSO_WINDOW_FRAMES } else { PLAIN_WINDOW_FRAMES };
    let mut watch = Stopwatch::start(common.seconds);
    let mut sent = 0_u64;
    let cpu_before = thread_cpu_seconds();
    while !watch.is_over(pair.shared.bytes.load(Relaxed)) {
        for _ in 0..FRAMES_PER_CLOCK {
            wait_until_below(&pair.shared, sent, window)?;
            pair.near.write(sent as u32)?;
            sent += 1;
        }
    }
    let near_cpu_seconds = thread_cpu_seconds() - cpu_before;
    wait_until_below(&pair.shared, sent, 1)?;
    let (found, dropped_frames) = pair.end()?;
    if found.out_of_order > 0 {
        let message = format!("{} frames arrived out of order", found.out_of_order);
        return Err(Failure::work(message));
    }
    let measured = watch.measured()?;
    let frames = measured.count as f64 / (frame_bytes - HEADERS_BYTES) as f64;
    let detail = json!({
        "frame_bytes": frame_bytes,
        "frames_per_second": frames / measured.seconds,
        "frames": sent,
        "window_frames": window,
        "vnet_header": gso,
        "dropped_frames": dropped_frames,
        "near_cpu_seconds": near_cpu_seconds,
        "far_cpu_seconds": found.cpu_seconds,
        "cpus": common.cpus,
    });
    Outcome::bandwidth(measured, detail)
}

/// Waits until fewer than `window` of the `sent` frames are in flight.
fn wait_until_below(shared: &Shared, sent: u64, window: u64) -> Result<(), Failure> {
    let mut idle = SpinThenYield::new();
    loop {
        let in_flight = sent - shared.frames.load(Acquire);
        if in_flight < window {
            return Ok(());
        }
        if !idle.wait() {
            return Err(Failure::work(format!("{in_flight} frames dropped")));
        }
    }
}

/// Measures the ping-pong of one frame.
pub(super) fn round_trips(common: &Common) -> Result<Outcome, Failure> {
    let mut pair = pair(common, false, PING_BYTES, SpinThenYield::for_answers(common), echo)?;
    let mut samples = Samples::with_room_for(common.seconds.as_secs_f64());
    let mut watch = Stopwatch::start(common.seconds);
    let mut number = 0_u32;
    while !watch.is_over(number.into()) {
        number += 1;
        let before = Instant::now();
        pair.near.write(number)?;
        let answer = pair.near.wait(&pair.shared.stop)?;
        let elapsed = before.elapsed();
        if answer.is_none_or(|(it, _)| it != number) {
            return Err(Failure::work("reply: unexpected sequence number"));
        }
        if watch.is_warm() {
            samples.push(whole_ns(elapsed));
        }
    }
    let (found, dropped_frames) = pair.end()?;
    let latency = samples.distribution(2);
    let latency =
        latency.ok_or_else(|| Failure::work("measurement: no reply in the measured time"))?;
    let detail = json!({
        "frame_bytes": PING_BYTES,
        "dropped_frames": dropped_frames,
        "far_cpu_seconds": found.cpu_seconds,
        "cpus": common.cpus,
    });
    Ok(Outcome::half_round_trips(watch.measured()?, latency, PING_BYTES as u64, detail))
}

/// Returns nanoseconds, saturating.
pub(super) fn whole_ns(duration: Duration) -> u32 {
    u32::try_from(duration.as_nanos()).unwrap_or(u32::MAX)
}
