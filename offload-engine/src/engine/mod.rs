//! Run loop: receive batch, demultiplex, protocol processing, transmit batch, timers.
//!
//! Theory of operation
//!
//! The engine owns the link. [`Engine::poll`] runs one iteration and never blocks. It processes control messages and
//! frames from the host stack, a batch of frames from the link, due timers, and the client's requests. Then it
//! processes every connection that was touched: it delivers events and transmits segments. A frame of an offloaded
//! connection is processed in place in the receive buffer. Every other frame is passed to the host stack unchanged.
//! Acknowledgments are built at the end of the batch, so a batch results in one.
//!
//! Time is an argument and the caller has the clock ([`Engine::poll_at`] bounds its sleep), so the same loop runs on a
//! device and in simulation.
//!
//! State operations are messages too, processed in order of arrival: a tree is completed and returned before the next
//! message is read.
//!
//! | file | contents |
//! |---|---|
//! | `run` | one iteration |
//! | `transmit` | transmission of segments and of the host's frames |
//! | `upcalls` | delivery of data, completions and events to a client |
//! | `clients` | table of clients |
//! | `connections` | lookup of connections by flow, handle and timer |
//! | `payload` | payload of a segment, split into frames |
//! | `loans` | memory borrowed by the link, and completions delayed by it |
//! | `initiate` | offload of objects |
//! | `update` | queries, updates, invalidation |
//! | `terminate` | upload of objects and its order |
//! | `forward` | segments forwarded by the host |
//! | `adapter` | pause and resume, statistics, reachability of neighbors |
//! | `port`, `doorbell` | messages between host and engine |
//! | `cross_queue` | several engines on the queues of one device |
//! | `snapshot` | state of one connection for monitoring |
//! | `trace` | rows for `flue plot` |
//!
//! Limits:
//!
//! * [`EngineConfig::rx_batch_frames_max`] frames (or `rx_batch_bytes_max` bytes) and [`FROM_HOST_MESSAGES_MAX`]
//!   messages per iteration
//! * [`TRANSMIT_SEGMENTS_MAX`] segments of one connection before the next one is served
//! * [`port::TO_HOST_FRAMES_MAX`] frames queued for the host
//! * [`STALLED_FRAMES_MAX`] frames queued while the link is full
//! * [`HELD_FRAMES_MAX`] frames and [`HELD_BYTES_MAX`] bytes kept per stopped connection
//! * [`EARLY_FRAMES_MAX`] frames and [`EARLY_BYTES_MAX`] bytes kept per newly offloaded connection
//! * [`DELAYED_TREES_MAX`] trees delayed by a pause

mod adapter;
mod clients;
mod connections;
mod cross_queue;
pub mod doorbell;
mod forward;
mod initiate;
mod loans;
mod payload;
pub mod port;
mod run;
mod snapshot;
mod terminate;
#[cfg(test)]
mod tests;
pub mod trace;
mod transmit;
mod turns;
mod upcalls;
mod update;

use std::{any::Any, boxed::Box, collections::VecDeque, io::Write, sync::Arc, vec::Vec};

use crossbeam_channel::{Receiver, Sender};

use self::{
    adapter::Statistics,
    cross_queue::CrossQueue,
    doorbell::Doorbell,
    port::{FromHost, HostPort, ToHost},
    trace::Trace,
};
pub use self::{
    clients::{CLIENTS_MAX, Clients, TooManyClients},
    connections::{
        BURST_BYTES_MAX, Connections, EARLY_BYTES_MAX, EARLY_FRAMES_MAX, HELD_BYTES_MAX,
        HELD_FRAMES_MAX,
    },
    cross_queue::PASSED_FRAMES_MAX,
    initiate::DELAYED_TREES_MAX,
    snapshot::ConnectionSnapshot,
};
use crate::{
    chimney::{
        client::OffloadClient,
        objects::Objects,
        provider::OffloadCapabilities,
        tree::{InitiateTree, TerminateTree},
    },
    frame::FlowKey,
    link::{
        CaptureLink, CaptureOutput, CaptureStatus, Link, LinkCapabilities, LinkStats, Recorder,
        RxBatch, TxOffload, unix_nanos_at_zero,
    },
    state::{MacAddress, PathState, TcpState},
    tcp,
    time::{Duration, Instant},
};

/// Messages from the host stack processed in one iteration.
pub const FROM_HOST_MESSAGES_MAX: usize = 256;
/// Segments of one connection sent before the next connection is served.
pub const TRANSMIT_SEGMENTS_MAX: usize = 64;
/// Frames queued while the link is full. Further segments of a connection are treated as sent and lost.
pub const STALLED_FRAMES_MAX: usize = 64;

/// Receive buffers. All reads use one: a frame is verified and placed while it is in the cache. A second buffer of 64
/// KiB would not be cached.
const RX_BUFFERS: usize = 1;

/// Function that a worker thread calls without holding a lock of the node.
pub type Callback = Box<dyn FnOnce() + Send>;

/// Requirements of a node on each of its clients, beyond the chimney's upcalls. The defaults suit a client that only
/// handles upcalls.
pub trait NodeClient: OffloadClient + Any + Send {
    /// Name of a client of this type in messages and errors.
    fn name() -> &'static str
    where
        Self: Sized,
    {
        core::any::type_name::<Self>()
    }

    /// Processes notifications from the host stack and runs timers. Called once per iteration of the run loop and after
    /// every call from outside. Also called before each [`OffloadClient::offloaded`], so that the host's notifications
    /// about a connection are processed first. Returns true if there was work.
    fn poll(&mut self, _now: Instant, _connections: &mut Connections) -> bool {
        false
    }

    /// Time at which [`NodeClient::poll`] must be called again without another event.
    fn poll_at(&self) -> Option<Instant> {
        None
    }

    /// True if a notification of the host stack is queued. Checked before the engine sleeps.
    fn has_input(&self) -> bool {
        false
    }

    /// Moves out the consumer's callbacks that are due. The node calls them in order, without holding a lock, on a
    /// thread that runs the loop.
    fn take_callbacks(&mut self, _callbacks: &mut Vec<Callback>) {}

    /// Variant of [`NodeClient::take_callbacks`] for callbacks that any thread may run: also the thread of a call of
    /// the node, before that call returns. By default all of them.
    fn take_callbacks_of_calls(&mut self, callbacks: &mut Vec<Callback>) {
        self.take_callbacks(callbacks);
    }

    /// True if callbacks remain that only a thread of the engine loop may run. Such a thread is woken to run them.
    fn has_callbacks_of_loop(&self) -> bool {
        false
    }

    /// Reports the loss of the device: no further upcall or notification follows. All outstanding requests of a
    /// consumer complete with a reason, and later requests fail.
    fn device_lost(&mut self) {}
}

/// Limits and policies of an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// MAC address of the interface.
    pub mac: MacAddress,
    /// Supported features and limits. Each limit has its status at initiate.
    pub capabilities: OffloadCapabilities,
    /// NceStaleTicks: time that a neighbor counts as reachable after the last confirmation (CH §9.7).
    pub nce_stale: Duration,
    /// Frames received from the link in one iteration.
    pub rx_batch_frames_max: usize,
    /// Bytes of frames after which a batch ends. It lets every connection be served, and acknowledges the first half of
    /// a flight of half a megabyte before the peer has sent the second.
    pub rx_batch_bytes_max: usize,
    /// Payload bytes of a GSO packet, limited by the link.
    pub gso_payload_max: usize,
    /// True if frames of a newly offloaded connection are kept until the host has forwarded the earlier ones
    /// (`FromHost::Forwarded`), at most [`EARLY_BYTES_MAX`]. Otherwise segments are reordered within the node, and the
    /// peer retransmits. For hosts that send that message, as flue's host stack does.
    pub waits_for_forwards: bool,
    /// Limits and policies of every connection.
    pub tcp: tcp::Config,
}

impl EngineConfig {
    /// Creates the default configuration of an interface.
    pub fn new(mac: MacAddress) -> Self {
        Self {
            mac,
            capabilities: OffloadCapabilities::default(),
            // REACHABLE_TIME of RFC 4861 §10.
            nce_stale: Duration::from_secs(30),
            rx_batch_frames_max: 64,
            rx_batch_bytes_max: 256 * 1024,
            gso_payload_max: 64 * 1024,
            waits_for_forwards: false,
            tcp: tcp::Config { time_wait_uploads: true, ..tcp::Config::default() },
        }
    }
}

/// Counters of an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct EngineStats {
    /// Segments of offloaded connections received.
    pub rx_segments: u64,
    /// Segments of offloaded connections with a wrong TCP checksum, dropped (InErrors).
    pub rx_checksum_errors: u64,
    /// Segments of offloaded connections without the VLAN tag of their neighbor, dropped (CH §9.4).
    pub rx_vlan_dropped: u64,
    /// ICMP errors about bytes in flight of an offloaded connection. The host receives them too.
    pub rx_path_errors: u64,
    /// ICMP errors about offloaded connections that quote bytes not in flight (RFC 5927 §4.1).
    pub rx_path_errors_ignored: u64,
    /// First fragments of segments of offloaded connections, passed to the host.
    pub rx_fragments: u64,
    /// Frames passed to the host stack.
    pub rx_to_host: u64,
    /// Frames dropped because the host stack's queue was full.
    pub rx_to_host_dropped: u64,
    /// Frames of another engine's connections, passed to that engine ([`Engine::group`]).
    pub rx_passed_on: u64,
    /// Such frames dropped because [`PASSED_FRAMES_MAX`] were queued for that engine.
    pub rx_passed_on_dropped: u64,
    /// Frames passed to this engine by other engines.
    pub rx_passed_in: u64,
    /// Frames sent for the host stack.
    pub tx_from_host: u64,
    /// GSO packets and segments sent.
    pub tx_segments: u64,
    /// Segments not sent because an object that their connection depends on is invalid (CH-INV-2).
    pub tx_invalid: u64,
    /// Segments delayed because the link was full.
    pub tx_stalled: u64,
    /// Segments dropped because link and queue were full. TCP retransmits them.
    pub tx_lost: u64,
    /// Connections offloaded.
    pub initiates: u64,
    /// Connections refused.
    pub initiate_failures: u64,
    /// Connections uploaded.
    pub terminates: u64,
    /// Frames kept for the host, of stopped connections (CH §9.3).
    pub rx_held: u64,
    /// Frames of such connections dropped because [`HELD_FRAMES_MAX`] or [`HELD_BYTES_MAX`] was reached.
    pub rx_held_dropped: u64,
    /// Segments that the host forwarded (CH-FWD-2).
    pub forwards: u64,
    /// Forwarded frames that belong to no offloaded connection, or that the target does not process.
    pub forwards_dropped: u64,
}

/// Decides if a connection is a good candidate. If not, it completes with OFFLOAD_CONNECTION_REJECTED.
pub type Admission = Box<dyn FnMut(&PathState, &TcpState) -> bool + Send>;

struct Stalled {
    frame: Vec<u8>,
    head_len: usize,
    offload: TxOffload,
}

/// Offload target: one link, its offloaded connections, and the port to the host stack.
pub struct Engine {
    /// The link, with the capture that starts and stops at run time.
    link: CaptureLink<Box<dyn Link>, CaptureOutput>,
    capabilities: LinkCapabilities,
    connections: Connections,
    objects: Objects,
    paused: bool,
    /// Trees delayed by a pause, each with the time of its arrival.
    delayed_trees: VecDeque<(Instant, InitiateTree)>,
    admission: Option<Admission>,
    /// Statistics of IPv4 and of IPv6.
    statistics: [Statistics; 2],
    /// Uploaded connections whose next frame gets a capture comment.
    uploaded_flows: VecDeque<FlowKey>,
    to_host: Sender<ToHost>,
    from_host: Receiver<FromHost>,
    doorbell: Arc<Doorbell>,
    host_doorbell: Arc<Doorbell>,
    /// Other engines of the device. `None` for a single engine.
    cross_queue: Option<Box<CrossQueue>>,
    batch: RxBatch,
    /// True if the last iteration ended after the first frame of a batch, and the rest is pending.
    has_batch_left: bool,
    stalled: VecDeque<Stalled>,
    /// Limit of `stalled`. 0 while a terminate is delayed, so that no connection sends.
    stalled_max: usize,
    /// True if frames were transmitted since the last flush of the link.
    unflushed: bool,
    /// Slots of connections whose payload the link may have borrowed.
    borrowed: Vec<usize>,
    /// Terminate delayed until the link returns borrowed payload.
    delayed_terminate: Option<TerminateTree>,
    config: EngineConfig,
    stats: EngineStats,
    trace: Option<Trace>,
}

impl Engine {
    /// Creates an engine on `link`. Returns it with the host stack's end of its port.
    ///
    /// # Errors
    /// No file descriptor is available for the doorbells.
    pub fn new(mut link: Box<dyn Link>, config: EngineConfig) -> std::io::Result<(Self, HostPort)> {
        let (to_engine, from_host) = crossbeam_channel::unbounded();
        let (to_host, from_engine) = crossbeam_channel::unbounded();
        let capabilities = link.capabilities();
        let port = HostPort {
            to_engine,
            from_engine,
            engine_doorbell: Arc::new(Doorbell::new()?),
            host_doorbell: Arc::new(Doorbell::new()?),
            capabilities,
        };
        link.set_waker(port.engine_doorbell.clone().into());
        let engine = Self {
            link: CaptureLink::idle(link),
            capabilities,
            connections: Connections::new(&config, capabilities),
            objects: Objects::new(config.mac, config.capabilities, config.nce_stale),
            paused: false,
            delayed_trees: VecDeque::new(),
            admission: None,
            statistics: [Statistics::default(); 2],
            uploaded_flows: VecDeque::new(),
            to_host,
            from_host,
            doorbell: port.engine_doorbell.clone(),
            host_doorbell: port.host_doorbell.clone(),
            cross_queue: None,
            batch: RxBatch::new(RX_BUFFERS),
            has_batch_left: false,
            stalled: VecDeque::new(),
            stalled_max: STALLED_FRAMES_MAX,
            unflushed: false,
            borrowed: Vec::new(),
            delayed_terminate: None,
            config,
            stats: EngineStats::default(),
            trace: None,
        };
        Ok((engine, port))
    }

    /// Returns the offloaded connections.
    pub fn connections(&mut self) -> &mut Connections {
        &mut self.connections
    }

    /// Returns the neighbor and path objects.
    pub const fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Sets the admission policy of offloads.
    pub fn set_admission(&mut self, admission: Admission) {
        self.admission = Some(admission);
    }

    /// Sets the VLAN ids of the interface, without 0. If there are none, a neighbor may have any (CH §9.4).
    pub fn set_interface_vlans(&mut self, vlans: Vec<u16>) {
        self.objects.set_interface_vlans(vlans);
    }

    /// Injects a hardware failure of a connection (CH §5.6): the next query, invalidate or terminate detects it.
    /// Returns true if the connection exists.
    #[cfg(test)]
    pub(crate) fn inject_failure(&mut self, handle: crate::chimney::client::OffloadHandle) -> bool {
        let offloaded = self.connections.by_handle(handle);
        offloaded.map(|offloaded| offloaded.failed = true).is_some()
    }

    /// Returns the doorbell that wakes this engine.
    pub fn doorbell(&self) -> &Arc<Doorbell> {
        &self.doorbell
    }

    /// Returns the doorbell that wakes the host stack.
    #[cfg(test)]
    pub(crate) fn host_doorbell(&self) -> &Arc<Doorbell> {
        &self.host_doorbell
    }

    /// Returns the counters.
    pub fn stats(&self) -> EngineStats {
        self.stats
    }

    /// Returns the link's counters.
    pub fn link_stats(&self) -> LinkStats {
        self.link.stats()
    }

    /// Writes the buffers of capture and trace. Drop does so too, but a process that calls `exit` drops nothing.
    pub fn sync(&mut self) {
        self.link.sync();
        if let Some(trace) = &mut self.trace {
            trace.flush();
        }
    }

    /// Starts a capture of all frames of the link, those of the host stack included, in pcapng. The interface is named
    /// `interface` in the file. Stops a capture that runs.
    ///
    /// # Errors
    /// The header could not be written.
    pub fn start_capture(
        &mut self,
        now: Instant,
        output: CaptureOutput,
        interface: &str,
    ) -> std::io::Result<()> {
        self.link.start(Recorder::new(output, interface, unix_nanos_at_zero(now))?);
        Ok(())
    }

    /// Stops the capture and returns its final state; `None`: none runs.
    pub fn stop_capture(&mut self) -> Option<CaptureStatus> {
        self.link.stop()
    }

    /// Returns the state of the capture; `None`: none runs.
    pub fn capture(&self) -> Option<CaptureStatus> {
        self.link.status()
    }

    /// Starts a [`trace`]: writes a row to `output` for each change of a connection's congestion control, until the
    /// engine is dropped. `output` should be buffered.
    ///
    /// # Errors
    /// The header could not be written.
    pub fn start_trace(&mut self, output: Box<dyn Write + Send>) -> std::io::Result<()> {
        self.trace = Some(Trace::new(output)?);
        Ok(())
    }

    /// True if a message of the host stack is queued, or other work is pending. Checked before sleeping.
    pub fn has_input(&self) -> bool {
        let held = !self.paused && !self.delayed_trees.is_empty();
        let passed = self.cross_queue.as_ref().is_some_and(|cross_queue| cross_queue.has_input());
        let ready = self.connections.has_ready() && !self.is_stalled();
        let messages = self.delayed_terminate.is_none() && !self.from_host.is_empty();
        held || passed || messages || ready || self.has_ended_loans()
    }

    /// True if the queue for a full link is full, or the link must return borrowed memory.
    fn is_stalled(&self) -> bool {
        self.stalled.len() >= self.stalled_max
    }

    /// Removes all connections after the loss of the device, with the memory of their unsent data. Connections with
    /// payload borrowed by the link remain.
    pub fn device_lost(&mut self) {
        let slots: Vec<_> = self.connections.occupied().map(|(slot, _)| slot).collect();
        for slot in slots {
            let is_lent = self.connections.slot(slot).is_some_and(|found| found.loans.is_lent());
            if !is_lent {
                self.connections.remove(slot);
            }
        }
    }

    /// True if no data remains to be sent to a peer: every connection is in TIME-WAIT, and no frame is queued or
    /// delayed.
    pub fn is_silent(&self) -> bool {
        let phases = self.connections.occupied();
        phases.map(|(_, found)| found.tcp.phase()).all(|phase| phase == tcp::TcpPhase::TimeWait)
            && self.from_host.is_empty()
            && self.stalled.is_empty()
            && self.link.poll_at().is_none()
    }

    /// Repeats the last acknowledgment of each connection in TIME-WAIT whose path has lost segments. For a node that
    /// exits before TIME-WAIT ends: if the acknowledgment of the FIN was lost, the peer's retransmission would not be
    /// answered.
    pub fn repeat_last_acks(&mut self) {
        self.connections.repeat_last_acks();
    }

    /// True if a frame is queued until the link becomes writable.
    pub fn awaits_writable(&self) -> bool {
        !self.stalled.is_empty()
    }
}

impl core::fmt::Debug for Engine {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Engine")
            .field("capabilities", &self.capabilities)
            .field("connections", &self.connections)
            .field("config", &self.config)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}
