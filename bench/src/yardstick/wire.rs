//! `tap-bw`, `tap-rtt`: frames from one TAP over a bridge to another, and nothing else.

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
    bed::{Bed, FAR, FRAME_BYTES_MAX, Ground, NEAR, Tap, Wanted},
    far_end::FarEnd,
    frame::{self, ACK, Checksum, HEADERS_BYTES, Head, Segment, Station},
    latency::Samples,
    measure::{End, Patience, Stopwatch, bind, thread_cpu_seconds},
};

/// Frames on the way, at most. A TAP holds a thousand; larger ones are fewer, for the caches' sake.
const PLAIN_WINDOW_FRAMES: u64 = 256;
const SUPER_WINDOW_FRAMES: u64 = 16;
/// Payload of the pieces of a super-segment.
const MSS: u16 = 1460;
const PLAIN_FRAME_BYTES_MAX: usize = HEADERS_BYTES + MSS as usize;
/// Frames between two looks at the clock.
const FRAMES_PER_CLOCK: u32 = 32;
/// Bytes of the frame that goes there and back.
const PING_BYTES: usize = 64;
const MTU_BYTES: u16 = 1500;

/// Options of the wire.
#[derive(Args, Clone, Debug)]
pub struct WireArgs {
    /// Bytes of a frame [64 to 1514; with --gso to 65535]
    #[arg(long, value_name = "BYTES", default_value = "1514")]
    pub frame: usize,

    /// Super-segments: the TAPs have a virtio-net header, and the kernel carries the frame in one piece
    #[arg(long)]
    pub gso: bool,

    /// What all kinds have in common.
    #[command(flatten)]
    pub common: Common,
}

/// One TAP and what is needed to use it.
struct Port {
    tap: Tap,
    port: u16,
    /// The frame that is sent. Its number alone is new each time.
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    patience: Patience,
}

impl Port {
    /// For frames of `frame_bytes`.
    fn new(tap: Tap, near: Station, far: Station, frame_bytes: usize, patience: Patience) -> Self {
        let checksum = if tap.vnet_header() { Checksum::Header } else { Checksum::Software };
        let payload = vec![0x5a; frame_bytes - HEADERS_BYTES];
        let mut head = Head::new(near, far, tap.vnet_header(), checksum, MSS);
        let segment = Segment { flags: ACK, ..Segment::default() };
        let outgoing = [head.patch(segment, &payload), &payload].concat();
        Self { tap, port: near.port, outgoing, incoming: vec![1; FRAME_BYTES_MAX], patience }
    }

    /// Sends the frame, with its number in it. Nobody on the way looks at TCP's checksum.
    fn write(&mut self, number: u32) -> Result<(), Failure> {
        frame::set_sequence(&mut self.outgoing[self.tap.front_bytes()..], number);
        self.tap.write(&self.outgoing)
    }

    /// The number and the payload of a frame of the other port's, if there is one; `None` also for others.
    fn read(&mut self) -> Result<Option<(u32, usize)>, Failure> {
        let Some(bytes) = self.tap.read(&mut self.incoming)? else { return Ok(None) };
        let frame = self.incoming[..bytes].get(self.tap.front_bytes()..).unwrap_or_default();
        let head = &frame[..frame.len().min(HEADERS_BYTES)];
        let received = frame::parse(head, frame.len() - head.len(), self.port);
        Ok(received.map(|it| (it.segment.seq, it.payload_bytes)))
    }

    /// Waits for a frame; an error when none comes.
    fn wait(&mut self, stop: &AtomicBool) -> Result<Option<(u32, usize)>, Failure> {
        let mut patience = self.patience;
        loop {
            if let Some(found) = self.read()? {
                return Ok(Some(found));
            }
            if stop.load(Relaxed) {
                return Ok(None);
            }
            if !patience.wait() {
                return Err(Failure::work("a frame was lost: none comes any more"));
            }
        }
    }
}

/// What both ends share.
#[derive(Debug, Default)]
struct Shared {
    frames: AtomicU64,
    bytes: AtomicU64,
    stop: AtomicBool,
}

/// What the far end has found when it was told to stop.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    /// Frames that did not come in their order.
    out_of_order: u64,
    cpu_seconds: f64,
}

/// Two ports, of which the far one belongs to a thread.
struct Pair {
    bed: Bed,
    near: Port,
    shared: Arc<Shared>,
    far: FarEnd<Found>,
}

type FarLoop = fn(Port, &Shared) -> Result<Found, Failure>;

fn pair(
    common: &Common,
    vnet_header: bool,
    frame_bytes: usize,
    patience: Patience,
    far_loop: FarLoop,
) -> Result<Pair, Failure> {
    let mut bed = Bed::make(common, 2)?;
    let vnet = if vnet_header { VnetMode::On } else { VnetMode::Off };
    let wanted = Wanted { ground: Ground::Bridge, mtu_bytes: MTU_BYTES, vnet };
    let mut near = Port::new(bed.open(wanted)?, NEAR, FAR, frame_bytes, patience);
    let mut far = Port::new(bed.open(wanted)?, FAR, NEAR, PING_BYTES, patience);
    let shared = Arc::new(Shared::default());
    // The bridge learns where both are, and later frames go to one port only.
    far.write(0)?;
    near.wait(&shared.stop)?;
    near.write(0)?;
    far.wait(&shared.stop)?;
    let theirs = Arc::clone(&shared);
    let far = FarEnd::start(common, move || {
        let before = thread_cpu_seconds();
        let found = far_loop(far, &theirs)?;
        Ok(Found { cpu_seconds: thread_cpu_seconds() - before, ..found })
    })?;
    bind(common, End::Near)?;
    Ok(Pair { bed, near, shared, far })
}

impl Pair {
    /// Stops the far end. Returns what it has found, and how many frames the TAPs have dropped.
    fn end(self) -> Result<(Found, u64), Failure> {
        let Self { mut bed, near: _near, shared, far } = self;
        // Before the far end takes its TAP along.
        let dropped_frames = bed.dropped_frames()?;
        shared.stop.store(true, Relaxed);
        Ok((far.join()?, dropped_frames))
    }
}

fn count(mut port: Port, shared: &Shared) -> Result<Found, Failure> {
    let (mut frames, mut bytes, mut found) = (0_u64, 0_u64, Found::default());
    while let Some((number, payload_bytes)) = port.wait(&shared.stop)? {
        found.out_of_order += u64::from(number != frames as u32);
        frames += 1;
        bytes += payload_bytes as u64;
        shared.bytes.store(bytes, Relaxed);
        // The near end reads this one, and sends more.
        shared.frames.store(frames, Release);
    }
    Ok(found)
}

fn echo(mut port: Port, shared: &Shared) -> Result<Found, Failure> {
    while let Some((number, _)) = port.wait(&shared.stop)? {
        port.write(number)?;
    }
    Ok(Found::default())
}

/// One way, as fast as it goes.
pub(super) fn bandwidth(args: &WireArgs) -> Result<Outcome, Failure> {
    let WireArgs { frame: frame_bytes, gso, common } = args;
    let max = if *gso { usize::from(u16::MAX) } else { PLAIN_FRAME_BYTES_MAX };
    if !(PING_BYTES..=max).contains(frame_bytes) {
        let message = format!("--frame: {frame_bytes} is not within {PING_BYTES} to {max} bytes");
        return Err(Failure::usage(message));
    }
    let mut pair = pair(common, *gso, *frame_bytes, Patience::new(), count)?;
    let is_super = *frame_bytes > PLAIN_FRAME_BYTES_MAX;
    let window = if is_super { SUPER_WINDOW_FRAMES } else { PLAIN_WINDOW_FRAMES };
    let mut watch = Stopwatch::start(common.seconds);
    let mut sent = 0_u64;
    let cpu_before = thread_cpu_seconds();
    while !watch.is_over(pair.shared.bytes.load(Relaxed)) {
        for _ in 0..FRAMES_PER_CLOCK {
            until_below(&pair.shared, sent, window)?;
            pair.near.write(sent as u32)?;
            sent += 1;
        }
    }
    let near_cpu_seconds = thread_cpu_seconds() - cpu_before;
    until_below(&pair.shared, sent, 1)?;
    let (found, dropped_frames) = pair.end()?;
    if found.out_of_order > 0 {
        let message = format!("{} frames did not come in their order", found.out_of_order);
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

/// Waits until fewer than `window` of the frames that were sent are on their way.
fn until_below(shared: &Shared, sent: u64, window: u64) -> Result<(), Failure> {
    let mut patience = Patience::new();
    loop {
        let on_the_way = sent - shared.frames.load(Acquire);
        if on_the_way < window {
            return Ok(());
        }
        if !patience.wait() {
            return Err(Failure::work(format!("{on_the_way} frames were lost on the way")));
        }
    }
}

/// There and back, one at a time.
pub(super) fn round_trips(common: &Common) -> Result<Outcome, Failure> {
    let mut pair = pair(common, false, PING_BYTES, Patience::for_answers(common), echo)?;
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
            return Err(Failure::work("a frame came back that was not asked for"));
        }
        if watch.is_warm() {
            samples.push(whole_ns(elapsed));
        }
    }
    let (found, dropped_frames) = pair.end()?;
    let latency = samples.distribution(2);
    let latency =
        latency.ok_or_else(|| Failure::work("no frame came back in the time measured"))?;
    let detail = json!({
        "frame_bytes": PING_BYTES,
        "dropped_frames": dropped_frames,
        "far_cpu_seconds": found.cpu_seconds,
        "cpus": common.cpus,
    });
    Ok(Outcome::half_round_trips(watch.measured()?, latency, PING_BYTES as u64, detail))
}

/// Nanoseconds that fit.
pub(super) fn whole_ns(duration: Duration) -> u32 {
    u32::try_from(duration.as_nanos()).unwrap_or(u32::MAX)
}
