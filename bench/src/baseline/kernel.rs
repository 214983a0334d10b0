//! Kernel end of a connection: a thread that reads from or writes to a socket as fast as possible.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use flue_report::failure::Failure;
use rustix::net::sockopt;

use super::{
    Common,
    far_end::FarEnd,
    measure::{STALL_LIMIT, thread_cpu_seconds},
    test_bed::FAR,
};

/// Size of a read or write, bytes.
const MEMORY_BYTES: usize = 1 << 20;

/// Congestion control without pacing, which the machine's default may have.
const CONGESTION_CONTROL: &str = "reno";

/// Task of the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Task {
    /// Reads until the peer's FIN.
    Sink,
    /// Writes until [`KernelEnd::stop`], then sends its FIN and waits for the peer's.
    Source,
}

/// State shared with the thread.
#[derive(Debug, Default)]
struct Shared {
    bytes: AtomicU64,
    stop: AtomicBool,
}

/// Totals of a finished end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    /// Bytes read or written.
    pub(super) bytes: u64,
    /// CPU time of its thread.
    pub(super) cpu_seconds: f64,
}

/// Kernel end of a connection.
#[derive(Debug)]
pub(super) struct KernelEnd {
    shared: Arc<Shared>,
    far: FarEnd<Done>,
    /// Congestion control of the socket, if it could be set.
    pub(super) congestion_control: Option<&'static str>,
}

fn failed(what: &'static str) -> impl Fn(std::io::Error) -> Failure {
    move |error| Failure::work(format!("kernel socket: {what}: {error}"))
}

impl KernelEnd {
    /// Listens, and starts the thread that accepts one connection.
    pub(super) fn start(task: Task, common: &Common) -> Result<Self, Failure> {
        let listener = TcpListener::bind((FAR.address, FAR.port)).map_err(failed("listen"))?;
        // Accepted sockets inherit it.
        let chosen = sockopt::set_tcp_congestion(&listener, CONGESTION_CONTROL).is_ok();
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let far = FarEnd::start(common, move || {
            let (stream, _) = listener.accept().map_err(failed("accept"))?;
            let before = thread_cpu_seconds();
            let bytes = match task {
                Task::Sink => sink(stream, &theirs),
                Task::Source => source(stream, &theirs),
            }?;
            Ok(Done { bytes, cpu_seconds: thread_cpu_seconds() - before })
        })?;
        let congestion_control = chosen.then_some(CONGESTION_CONTROL);
        Ok(Self { shared, far, congestion_control })
    }

    /// Returns the bytes read or written so far.
    pub(super) fn bytes(&self) -> u64 {
        self.shared.bytes.load(Relaxed)
    }

    /// Requests the thread to stop writing.
    pub(super) fn stop(&self) {
        self.shared.stop.store(true, Relaxed);
    }

    /// Returns true if the thread has ended.
    pub(super) fn is_done(&self) -> bool {
        self.far.is_finished()
    }

    /// Waits until its thread has exited; returns its totals.
    pub(super) fn join(self) -> Result<Done, Failure> {
        self.far.join()
    }
}

fn sink(mut stream: TcpStream, shared: &Shared) -> Result<u64, Failure> {
    let mut memory = vec![1; MEMORY_BYTES];
    let mut total = 0;
    stream.set_read_timeout(Some(STALL_LIMIT * 2)).map_err(failed("timeout"))?;
    loop {
        match stream.read(&mut memory) {
            Ok(0) => return Ok(total),
            Ok(bytes) => {
                total += bytes as u64;
                shared.bytes.store(total, Relaxed);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(failed("read")(error)),
        }
    }
}

fn source(mut stream: TcpStream, shared: &Shared) -> Result<u64, Failure> {
    let mut memory = vec![0x5a; MEMORY_BYTES];
    let mut total = 0;
    stream.set_nodelay(true).map_err(failed("TCP_NODELAY"))?;
    stream.set_write_timeout(Some(STALL_LIMIT * 2)).map_err(failed("timeout"))?;
    stream.set_read_timeout(Some(STALL_LIMIT * 2)).map_err(failed("timeout"))?;
    while !shared.stop.load(Relaxed) {
        match stream.write(&memory) {
            Ok(bytes) => {
                total += bytes as u64;
                shared.bytes.store(total, Relaxed);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(failed("write")(error)),
        }
    }
    stream.shutdown(Shutdown::Write).map_err(failed("shutdown"))?;
    while stream.read(&mut memory).map_err(failed("read"))? > 0 {}
    Ok(total)
}
