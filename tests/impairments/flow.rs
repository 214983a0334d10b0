//! Connection that carries zeros for a time, and the number of bytes received.
//!
//! A *sink* accepts a connection and counts, a *source* connects and sends. Each runs on its own thread until it is
//! stopped; an earlier failure ends the measurement immediately.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flue_test_support::netns::Namespace;
use host_stack::node::{Node, WaitError};
use host_stack::socket::ListenerId;
use host_stack::stream::Streams;
use offload_engine::chimney::client::OffloadHandle;
use offload_engine::engine::Connections;
use offload_engine::tcp::Info;
use offload_engine::time::Instant as EngineInstant;
use rustix::net::sockopt::set_tcp_congestion;

use crate::hosts::LIMIT;

/// Bytes of one write, and of one list of a flue source.
const CHUNK_BYTES: usize = 64 * 1024;
/// Congestion control of the kernel's sources: Linux's default.
const KERNEL_CONGESTION: &str = "cubic";
/// Interval at which an idle thread checks the stop flag.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum bytes that a flue source has posted and the peer has not acknowledged.
const POSTED_BYTES_MAX: usize = 16 << 20;

/// Flows that are measured together.
pub(crate) struct Flows {
    stop: Arc<AtomicBool>,
    failed: Receiver<String>,
    failing: Sender<String>,
    threads: Vec<JoinHandle<()>>,
    sinks: Vec<Arc<AtomicU64>>,
}

/// Kernel's or flue's end of a connection.
pub(crate) enum End<'a> {
    Kernel(&'a Namespace),
    Flue(&'a Node<Streams>),
}

/// Counters of a flue source's connection at the last update.
pub(crate) type Counted = Arc<std::sync::Mutex<Option<Info>>>;

impl Flows {
    pub(crate) fn new() -> Self {
        let (failing, failed) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        Self { stop, failed, failing, threads: Vec::new(), sinks: Vec::new() }
    }

    /// Starts another connection from `source` to `sink` at 10.0.0.`host`, port `port`. Returns when it is
    /// established, so that no handshake is measured.
    pub(crate) fn add(&mut self, source: End<'_>, sink: End<'_>, host: u8, port: u16) -> Counted {
        let address = SocketAddr::from(([10, 0, 0, host], port));
        let (arrived, counted) = (Arc::new(AtomicU64::new(0)), Counted::default());
        self.sinks.push(arrived.clone());
        match sink {
            End::Kernel(kernel) => {
                let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
                let listener = kernel.run(|| TcpListener::bind(any)).expect("the port is free");
                self.spawn("kernel sink", move |stop| kernel_sink(&listener, &arrived, stop));
            }
            End::Flue(node) => {
                let node = node.clone();
                let listener = listen(&node, address);
                self.spawn("flue sink", move |stop| flue_sink(&node, listener, &arrived, stop));
            }
        }
        match source {
            End::Kernel(kernel) => {
                // A socket belongs to the namespace in which it is created.
                let connect = || TcpStream::connect_timeout(&address, LIMIT);
                let socket = kernel.run(connect).expect("a listening sink");
                // The namespace's default may differ; root may set it on a socket.
                set_tcp_congestion(&socket, KERNEL_CONGESTION).expect("Linux has CUBIC");
                self.spawn("kernel source", move |stop| kernel_source(&socket, stop));
            }
            End::Flue(node) => {
                let handle = connect(node, address);
                let (node, counted) = (node.clone(), counted.clone());
                let source = move |stop: &AtomicBool| flue_source(&node, handle, &counted, stop);
                self.spawn("flue source", source);
            }
        }
        counted
    }

    fn spawn(
        &mut self,
        name: &'static str,
        work: impl FnOnce(&AtomicBool) -> Result<(), String> + Send + 'static,
    ) {
        let (stop, failing) = (self.stop.clone(), self.failing.clone());
        self.threads.push(std::thread::spawn(move || {
            if let Err(why) = work(&stop) {
                // The receiver no longer exists after the measurement.
                let _ = failing.send(format!("{name}: {why}"));
            }
        }));
    }

    /// Bytes received by each flow within `time`.
    pub(crate) fn measure(&self, time: Duration) -> Vec<u64> {
        let read = || self.sinks.iter().map(|sink| sink.load(Ordering::Relaxed));
        let before: Vec<u64> = read().collect();
        // Waits for the given time; a failed flow ends it early.
        match self.failed.recv_timeout(time) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(why) => panic!("{why}"),
            Err(RecvTimeoutError::Disconnected) => unreachable!("the flows own a sender"),
        }
        read().zip(before).map(|(now, before)| now - before).collect()
    }

    /// Stops the flows in any state.
    pub(crate) fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    }
}

/// True if a socket call timed out and must be repeated.
fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn kernel_sink(
    listener: &TcpListener,
    arrived: &AtomicU64,
    stop: &AtomicBool,
) -> Result<(), String> {
    let (mut socket, _) = listener.accept().map_err(|error| error.to_string())?;
    socket.set_read_timeout(Some(POLL_INTERVAL)).map_err(|error| error.to_string())?;
    let mut chunk = vec![0; 4 * CHUNK_BYTES];
    while !stop.load(Ordering::Relaxed) {
        match socket.read(&mut chunk) {
            Ok(0) if stop.load(Ordering::Relaxed) => break,
            Ok(0) => return Err("the peer has closed".into()),
            Ok(bytes) => drop(arrived.fetch_add(bytes as u64, Ordering::Relaxed)),
            Err(error) if is_pause(&error) => {}
            Err(_) if stop.load(Ordering::Relaxed) => break,
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(())
}

fn kernel_source(mut socket: &TcpStream, stop: &AtomicBool) -> Result<(), String> {
    socket.set_write_timeout(Some(POLL_INTERVAL)).map_err(|error| error.to_string())?;
    let chunk = vec![0; CHUNK_BYTES];
    while !stop.load(Ordering::Relaxed) {
        match socket.write(&chunk) {
            Ok(_) => {}
            Err(error) if is_pause(&error) => {}
            Err(_) if stop.load(Ordering::Relaxed) => break,
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(())
}

fn listen(node: &Node<Streams>, address: SocketAddr) -> ListenerId {
    let listener = node.with(|streams, _, _| streams.listen(address, 1));
    let listening = node.wait(Some(LIMIT), |streams, _, _| streams.listening(listener));
    listening.expect("a running node").expect("the port is free");
    listener
}

fn connect(node: &Node<Streams>, address: SocketAddr) -> OffloadHandle {
    let handle = node.with(|streams, _, _| streams.connect(None, address, LIMIT));
    let connected = node.wait(Some(LIMIT), |streams, _, _| {
        streams.status(handle).filter(|status| status.connected || status.closed)
    });
    let status = connected.expect("a running node");
    assert!(status.connected, "not connected: {:?}", status.error);
    handle
}

/// Calls `step` with the stream of `handle` until the flow is stopped. `step` returns true if it made progress.
fn drive(
    node: &Node<Streams>,
    stop: &AtomicBool,
    mut step: impl FnMut(&mut Streams, &mut Connections, EngineInstant) -> Result<bool, String>,
) -> Result<(), String> {
    while !stop.load(Ordering::Relaxed) {
        let stepped = node.wait(Some(POLL_INTERVAL), |streams, connections, now| {
            match step(streams, connections, now) {
                Ok(false) => None,
                other => Some(other),
            }
        });
        match stepped {
            Ok(result) => drop(result?),
            Err(WaitError::TimedOut) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(())
}

fn flue_sink(
    node: &Node<Streams>,
    listener: ListenerId,
    arrived: &AtomicU64,
    stop: &AtomicBool,
) -> Result<(), String> {
    let mut accepted: Option<OffloadHandle> = None;
    drive(node, stop, |streams, connections, now| {
        let Some(handle) = accepted else {
            accepted = streams.accept(listener);
            return Ok(accepted.is_some());
        };
        let mut bytes = 0;
        while let Some(data) = streams.receive(now, connections, handle) {
            bytes += data.len() as u64;
        }
        arrived.fetch_add(bytes, Ordering::Relaxed);
        match streams.status(handle) {
            Some(status) if status.closed => Err(format!("closed: {:?}", status.error)),
            _ => Ok(bytes > 0),
        }
    })
}

fn flue_source(
    node: &Node<Streams>,
    handle: OffloadHandle,
    counted: &Counted,
    stop: &AtomicBool,
) -> Result<(), String> {
    let chunk = Bytes::from(vec![0; CHUNK_BYTES]);
    let mut looked = Instant::now();
    drive(node, stop, |streams, connections, now| {
        let Some(status) = streams.status(handle) else { return Err("forgotten".into()) };
        if status.closed {
            return Err(format!("closed: {:?}", status.error));
        }
        if looked.elapsed() > POLL_INTERVAL {
            looked = Instant::now();
            let ours = connections.list(now).find(|(other, ..)| *other == handle);
            *counted.lock().expect("an unpoisoned lock") = ours.map(|(_, _, info)| info);
        }
        let room = POSTED_BYTES_MAX.saturating_sub(status.unacknowledged) / CHUNK_BYTES;
        if room == 0 {
            return Ok(false);
        }
        for _ in 0..room.min(64) {
            streams.send(now, connections, handle, chunk.clone());
        }
        Ok(true)
    })
}
