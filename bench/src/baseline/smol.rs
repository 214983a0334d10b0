//! `smoltcp-*`: smoltcp, polled directly, on a TAP with plain frames.
//!
//! The device resembles smoltcp's own TAP device, but allocates its buffers once.

use std::sync::{
    Arc,
    atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use clap::Args;
use flue_report::failure::Failure;
use offload_engine::link::VnetMode;
use serde_json::json;
use smoltcp::{
    iface::{Config, Interface, PollResult, SocketHandle, SocketSet},
    phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken},
    socket::tcp::{self, Socket},
    time::Instant,
    wire::{EthernetAddress, HardwareAddress, IpCidr},
};

use super::{
    Common, Outcome,
    far_end::FarEnd,
    frame::Station,
    kernel::{Done, KernelEnd, Task},
    latency::Samples,
    measure::{End, SpinThenYield, Stopwatch, bind, thread_cpu_seconds},
    test_bed::{Attachment, FAR, NEAR, Tap, TapRequest, TestBed},
    wire::whole_ns,
};

const MTU_BYTES: u16 = 1500;
const FRAME_BYTES_MAX: usize = MTU_BYTES as usize + 14;
/// Size of a read or write, bytes.
const MEMORY_BYTES: usize = 1 << 20;
/// Size of a ping-pong message, bytes.
const PING_BYTES: usize = 8;

/// Options of smoltcp.
#[derive(Args, Clone, Debug)]
pub struct SmolArgs {
    /// Socket buffer for each direction [4096 to 1048576]
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "1048576",
        value_parser = clap::value_parser!(u32).range(4096..=1_048_576)
    )]
    pub buffer: u32,

    /// Options of all kinds.
    #[command(flatten)]
    pub common: Common,
}

/// TAP as a device of smoltcp.
struct TapDevice {
    tap: Tap,
    received: Vec<u8>,
    transmitted: Vec<u8>,
    /// First error; smoltcp does not return it.
    error: Option<Failure>,
}

/// Received frame.
struct Frame<'a>(&'a [u8]);

impl RxToken for Frame<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(self.0)
    }
}

/// Token to transmit a frame.
struct Transmit<'a> {
    tap: &'a Tap,
    buffer: &'a mut [u8],
    error: &'a mut Option<Failure>,
}

impl TxToken for Transmit<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, bytes: usize, fill: F) -> R {
        let frame = &mut self.buffer[..bytes];
        let result = fill(frame);
        if let Err(failure) = self.tap.write(frame) {
            self.error.get_or_insert(failure);
        }
        result
    }
}

impl TapDevice {
    fn new(tap: Tap) -> Self {
        let buffer = || vec![0; FRAME_BYTES_MAX];
        Self { tap, received: buffer(), transmitted: buffer(), error: None }
    }
}

impl Device for TapDevice {
    type RxToken<'a> = Frame<'a>;
    type TxToken<'a> = Transmit<'a>;

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME_BYTES_MAX;
        capabilities
    }

    fn receive(&mut self, _now: Instant) -> Option<(Frame<'_>, Transmit<'_>)> {
        let Self { tap, received, transmitted, error } = self;
        match tap.read(received) {
            Ok(bytes) => {
                Some((Frame(&received[..bytes?]), Transmit { tap, buffer: transmitted, error }))
            }
            Err(failure) => {
                error.get_or_insert(failure);
                None
            }
        }
    }

    fn transmit(&mut self, _now: Instant) -> Option<Transmit<'_>> {
        let Self { tap, transmitted, error, .. } = self;
        Some(Transmit { tap, buffer: transmitted, error })
    }
}

/// Interface with one socket.
struct Stack {
    device: TapDevice,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    idle: SpinThenYield,
}

impl Stack {
    fn new(tap: Tap, station: Station, buffer_bytes: u32, idle: SpinThenYield) -> Self {
        let mut device = TapDevice::new(tap);
        let mut config = Config::new(HardwareAddress::Ethernet(EthernetAddress(station.mac)));
        config.random_seed = u64::from(station.address.to_bits());
        let mut interface = Interface::new(config, &mut device, Instant::now());
        interface.update_ip_addrs(|addresses| {
            // The list has room for the first address.
            let _ = addresses.push(IpCidr::new(station.address.into(), 24));
        });
        // Touched, so that there are no page faults during the run.
        let buffer = || tcp::SocketBuffer::new(vec![1; buffer_bytes as usize]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(socket);
        Self { device, interface, sockets, handle, idle }
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    /// Polls the interface; fails after ten seconds without progress (`measure::STALL_LIMIT`).
    fn poll(&mut self) -> Result<(), Failure> {
        let polled = self.interface.poll(Instant::now(), &mut self.device, &mut self.sockets);
        if let Some(failure) = self.device.error.take() {
            return Err(failure);
        }
        if polled == PollResult::SocketStateChanged {
            self.idle.renew();
        } else if !self.idle.wait() {
            return Err(Failure::work("smoltcp: no progress: frame dropped"));
        }
        Ok(())
    }

    fn listen(&mut self, port: u16) -> Result<(), Failure> {
        self.socket().listen(port).map_err(|error| Failure::work(format!("smoltcp: {error}")))
    }

    fn connect(&mut self) -> Result<(), Failure> {
        let socket = self.sockets.get_mut::<Socket<'_>>(self.handle);
        let far = (FAR.address, FAR.port);
        socket
            .connect(self.interface.context(), far, NEAR.port)
            .map_err(|error| Failure::work(format!("smoltcp: {error}")))?;
        while !self.socket().may_send() {
            self.poll()?;
        }
        Ok(())
    }

    /// Writes as much as fits.
    fn write(&mut self, data: &[u8]) -> Result<usize, Failure> {
        let written = self.socket().send_slice(data);
        written.map_err(|error| Failure::work(format!("smoltcp: send: {error}")))
    }

    /// Reads available data; `None` after the peer's FIN.
    fn read(&mut self, memory: &mut [u8]) -> Result<Option<usize>, Failure> {
        match self.socket().recv_slice(memory) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(tcp::RecvError::Finished) => Ok(None),
            Err(error) => Err(Failure::work(format!("smoltcp: receive: {error}"))),
        }
    }

    /// Sends a FIN and waits for its acknowledgment.
    fn finish(&mut self) -> Result<(), Failure> {
        use tcp::State::{Closed, FinWait2, TimeWait};
        self.socket().close();
        while !matches!(self.socket().state(), FinWait2 | TimeWait | Closed) {
            self.poll()?;
        }
        Ok(())
    }
}

/// State shared by both ends.
#[derive(Debug, Default)]
struct Shared {
    bytes: AtomicU64,
    stop: AtomicBool,
}

/// Totals of a transfer.
struct Transfer {
    bytes: u64,
    near_cpu_seconds: f64,
    far: Done,
    dropped_frames: u64,
}

/// Writes until the measured period has ended; returns the number of bytes. `arrived` returns the receiver's count.
fn write_for_a_while(
    stack: &mut Stack,
    watch: &mut Stopwatch,
    arrived: impl Fn() -> u64,
) -> Result<u64, Failure> {
    let data = vec![0x5a; MEMORY_BYTES];
    let mut written = 0;
    while !watch.is_over(arrived()) {
        stack.poll()?;
        written += stack.write(&data)? as u64;
    }
    Ok(written)
}

fn tap_request(attachment: Attachment) -> TapRequest {
    TapRequest { attachment, mtu_bytes: MTU_BYTES, vnet: VnetMode::Off }
}

/// Connection from smoltcp on a TAP to a kernel socket.
struct Run {
    test_bed: TestBed,
    kernel: KernelEnd,
    stack: Stack,
}

impl Run {
    fn connect(args: &SmolArgs, task: Task) -> Result<Self, Failure> {
        let SmolArgs { buffer, common } = args;
        let mut test_bed = TestBed::make(common, 1)?;
        let tap = test_bed.open(tap_request(Attachment::Kernel))?;
        let kernel = KernelEnd::start(task, common)?;
        bind(common, End::Near)?;
        let mut stack = Stack::new(tap, NEAR, *buffer, SpinThenYield::new());
        stack.connect()?;
        Ok(Self { test_bed, kernel, stack })
    }

    /// Closes the connection. `bytes` were transferred; `cpu_before` is the near end's CPU time at the start.
    fn end(self, bytes: u64, cpu_before: f64) -> Result<Transfer, Failure> {
        let Self { mut test_bed, kernel, mut stack } = self;
        let near_cpu_seconds = thread_cpu_seconds() - cpu_before;
        stack.finish()?;
        let far = kernel.join()?;
        Ok(Transfer { bytes, near_cpu_seconds, far, dropped_frames: test_bed.dropped_frames()? })
    }
}

/// Measures sending from smoltcp to the kernel.
pub(super) fn send(args: &SmolArgs) -> Result<Outcome, Failure> {
    let mut run = Run::connect(args, Task::Sink)?;
    let cpu_before = thread_cpu_seconds();
    let mut watch = Stopwatch::start(args.common.seconds);
    let Run { kernel, stack, .. } = &mut run;
    let bytes = write_for_a_while(stack, &mut watch, || kernel.bytes())?;
    conclude(args, &watch, &run.end(bytes, cpu_before)?)
}

/// Measures sending from the kernel to smoltcp.
pub(super) fn receive(args: &SmolArgs) -> Result<Outcome, Failure> {
    let mut run = Run::connect(args, Task::Source)?;
    let cpu_before = thread_cpu_seconds();
    let mut watch = Stopwatch::start(args.common.seconds);
    let mut memory = vec![1; MEMORY_BYTES];
    let mut bytes = 0;
    while let Some(read) = run.stack.read(&mut memory)? {
        bytes += read as u64;
        if watch.is_over(bytes) {
            run.kernel.stop();
        }
        run.stack.poll()?;
    }
    conclude(args, &watch, &run.end(bytes, cpu_before)?)
}

/// Two smoltcp stacks; the far one runs on a dedicated thread.
struct Pair {
    test_bed: TestBed,
    near: Stack,
    shared: Arc<Shared>,
    far: FarEnd<Done>,
}

type FarLoop = fn(&mut Stack, &Shared) -> Result<u64, Failure>;

fn pair_of(args: &SmolArgs, idle: SpinThenYield, far_loop: FarLoop) -> Result<Pair, Failure> {
    let SmolArgs { buffer, common } = args;
    let mut test_bed = TestBed::make(common, 2)?;
    let mut near = Stack::new(test_bed.open(tap_request(Attachment::Bridge))?, NEAR, *buffer, idle);
    let mut far = Stack::new(test_bed.open(tap_request(Attachment::Bridge))?, FAR, *buffer, idle);
    far.listen(FAR.port)?;
    let shared = Arc::new(Shared::default());
    let theirs = Arc::clone(&shared);
    let far = FarEnd::start(common, move || {
        let before = thread_cpu_seconds();
        let bytes = far_loop(&mut far, &theirs)?;
        let cpu_seconds = thread_cpu_seconds() - before;
        // The near end may still need an acknowledgment.
        while !theirs.stop.load(Acquire) {
            far.poll()?;
        }
        Ok(Done { bytes, cpu_seconds })
    })?;
    bind(common, End::Near)?;
    near.connect()?;
    Ok(Pair { test_bed, near, shared, far })
}

impl Pair {
    /// Stops the far end. Returns its totals, and the number of frames that the TAPs dropped.
    fn end(self) -> Result<(Done, u64), Failure> {
        let Self { mut test_bed, near: _near, shared, far } = self;
        // Read first, because the far end closes its TAP.
        let dropped_frames = test_bed.dropped_frames();
        shared.stop.store(true, Release);
        Ok((far.join()?, dropped_frames?))
    }
}

/// Reads into `memory` until the peer has closed its direction; calls `take` with the bytes of each read.
fn read_to_end(
    stack: &mut Stack,
    memory: &mut [u8],
    mut take: impl FnMut(&mut Stack, &[u8]) -> Result<(), Failure>,
) -> Result<u64, Failure> {
    while !stack.socket().may_recv() {
        stack.poll()?;
    }
    let mut total = 0;
    while let Some(bytes) = stack.read(memory)? {
        total += bytes as u64;
        take(stack, &memory[..bytes])?;
        stack.poll()?;
    }
    Ok(total)
}

fn count(stack: &mut Stack, shared: &Shared) -> Result<u64, Failure> {
    read_to_end(stack, &mut vec![1; MEMORY_BYTES], |_, data| {
        shared.bytes.fetch_add(data.len() as u64, Relaxed);
        Ok(())
    })
}

fn echo(stack: &mut Stack, _shared: &Shared) -> Result<u64, Failure> {
    read_to_end(stack, &mut [0; PING_BYTES], |stack, data| {
        if !data.is_empty() && stack.write(data)? != data.len() {
            return Err(Failure::work("smoltcp: no buffer for a message"));
        }
        Ok(())
    })
}

/// Measures sending from smoltcp to smoltcp.
pub(super) fn pair(args: &SmolArgs) -> Result<Outcome, Failure> {
    let mut pair = pair_of(args, SpinThenYield::new(), count)?;
    let cpu_before = thread_cpu_seconds();
    let mut watch = Stopwatch::start(args.common.seconds);
    let shared = Arc::clone(&pair.shared);
    let arrived = || shared.bytes.load(Relaxed);
    let bytes = write_for_a_while(&mut pair.near, &mut watch, arrived)?;
    let near_cpu_seconds = thread_cpu_seconds() - cpu_before;
    pair.near.finish()?;
    let (far, dropped_frames) = pair.end()?;
    conclude(args, &watch, &Transfer { bytes, near_cpu_seconds, far, dropped_frames })
}

/// Compares the counts of both ends, and returns the result.
fn conclude(args: &SmolArgs, watch: &Stopwatch, transfer: &Transfer) -> Result<Outcome, Failure> {
    let Transfer { bytes, near_cpu_seconds, far, dropped_frames } = transfer;
    if far.bytes != *bytes {
        let message =
            format!("byte count: far end {}, near end {bytes}, expected equal", far.bytes);
        return Err(Failure::work(message));
    }
    let detail = json!({
        "mtu_bytes": MTU_BYTES,
        "buffer_bytes": args.buffer,
        "dropped_frames": dropped_frames,
        "near_cpu_seconds": near_cpu_seconds,
        "far_cpu_seconds": far.cpu_seconds,
        "cpus": args.common.cpus,
    });
    Outcome::bandwidth(watch.measured()?, detail)
}

/// Measures the ping-pong of one message.
pub(super) fn round_trips(args: &SmolArgs) -> Result<Outcome, Failure> {
    let SmolArgs { buffer, common } = args;
    let mut pair = pair_of(args, SpinThenYield::for_answers(common), echo)?;
    let mut samples = Samples::with_room_for(common.seconds.as_secs_f64());
    let mut watch = Stopwatch::start(common.seconds);
    let mut memory = [0; PING_BYTES];
    let mut count = 0_u64;
    while !watch.is_over(count) {
        count += 1;
        let before = std::time::Instant::now();
        pair.near.write(&count.to_ne_bytes())?;
        let mut got = 0;
        while got < PING_BYTES {
            pair.near.poll()?;
            let read = pair.near.read(&mut memory[got..])?;
            got += read.ok_or_else(|| Failure::work("far end: connection closed"))?;
        }
        let elapsed = before.elapsed();
        if u64::from_ne_bytes(memory) != count {
            return Err(Failure::work("reply: differs from the message"));
        }
        if watch.is_warm() {
            samples.push(whole_ns(elapsed));
        }
    }
    pair.near.finish()?;
    let (far, dropped_frames) = pair.end()?;
    let latency = samples.distribution(2);
    let latency =
        latency.ok_or_else(|| Failure::work("measurement: no reply in the measured time"))?;
    let detail = json!({
        "message_bytes": PING_BYTES,
        "mtu_bytes": MTU_BYTES,
        "buffer_bytes": buffer,
        "dropped_frames": dropped_frames,
        "far_cpu_seconds": far.cpu_seconds,
        "cpus": common.cpus,
    });
    Ok(Outcome::half_round_trips(watch.measured()?, latency, PING_BYTES as u64, detail))
}
