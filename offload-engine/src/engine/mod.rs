//! The run loop: receive batch, demultiplex, protocol, transmit batch, timers.
//!
//! Theory of operation
//!
//! The engine owns the link. [`Engine::poll`] is one iteration and never waits: it takes control
//! messages and frames from the host stack, a batch of frames from the link, the timers that are due,
//! and the client's requests; then it drains every connection that was touched: events go up, segments
//! go out. A frame of an offloaded connection is processed where it lies in the receive buffer; every
//! other frame goes to the host stack unchanged. Acknowledgements are made at the
//! end of the batch, so a batch makes one.
//!
//! Time is an argument, and the caller has the clock ([`Engine::poll_at`] bounds its sleep), so the same loop
//! runs on a device and under simulation.
//!
//! State operations are messages too, done one by one as they come: a tree is answered and sent back before the
//! next message is read.
//!
//! | file | question |
//! |---|---|
//! | `run` | what happens in one iteration |
//! | `transmit` | how a segment or a frame of the host leaves |
//! | `upcalls` | how data, completions and events reach a client |
//! | `clients` | which client gets an upcall |
//! | `connections` | which connection a frame, a handle or a timer belongs to |
//! | `payload` | the memory of a frame |
//! | `loans` | memory that the link has borrowed, and completions that wait for it |
//! | `initiate` | objects that are taken over |
//! | `update` | queries, updates, invalidation |
//! | `terminate` | objects that are given back, and in which order |
//! | `forward` | segments that the host hands back |
//! | `adapter` | pause and resume, statistics, reachability of neighbors |
//! | `port`, `doorbell` | messages between host and engine |
//! | `siblings` | several engines on the queues of one device |
//! | `trace` | rows for `flue plot` |
//!
//! Limits: [`EngineConfig::rx_batch_frames_max`] frames (or `rx_batch_bytes_max` bytes) and
//! [`FROM_HOST_MESSAGES_MAX`] messages per iteration, [`TRANSMIT_SEGMENTS_MAX`] segments of one connection
//! before the next one has its turn, [`port::TO_HOST_FRAMES_MAX`] frames waiting toward the host,
//! [`STALLED_FRAMES_MAX`] frames waiting for a full link, [`HELD_FRAMES_MAX`] frames and [`HELD_BYTES_MAX`]
//! bytes of a connection that has stopped, [`EARLY_FRAMES_MAX`] frames and [`EARLY_BYTES_MAX`] bytes of one
//! that was just taken over, [`HELD_TREES_MAX`] trees that wait for the end of a pause.

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
mod upcalls;
mod update;

use std::{any::Any, boxed::Box, collections::VecDeque, io::Write, sync::Arc, vec::Vec};

use crossbeam_channel::{Receiver, Sender};

use self::{
    adapter::Statistics,
    cross_queue::Siblings,
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
    initiate::HELD_TREES_MAX,
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
    link::{Link, LinkCapabilities, LinkStats, RxBatch, TxOffload},
    state::{MacAddress, PathState, TcpState},
    tcp,
    time::{Duration, Instant},
};

/// Messages taken from the host stack in one iteration.
pub const FROM_HOST_MESSAGES_MAX: usize = 256;
/// Segments of one connection sent before the next connection has its turn.
pub const TRANSMIT_SEGMENTS_MAX: usize = 64;
/// Frames kept while the link is full. Beyond it the connection's segments count as sent and lost.
pub const STALLED_FRAMES_MAX: usize = 64;

/// Receive buffers. One is used for all reads: a frame is checked and placed while it is in the cache, and a second
/// buffer of 64 KiB would not be.
const RX_BUFFERS: usize = 1;

/// A function that a worker thread calls with no lock of ours held.
pub type Callback = Box<dyn FnOnce() + Send>;

/// Requirements of a node on each of its clients, beyond the chimney's upcalls. A client that only answers upcalls has
/// the defaults.
pub trait NodeClient: OffloadClient + Any + Send {
    /// Name of a client of this type in messages and errors.
    fn name() -> &'static str
    where
        Self: Sized,
    {
        core::any::type_name::<Self>()
    }

    /// Takes notices from the host stack, runs timers. Called once per iteration of the run loop, after
    /// every call from outside, and before each [`OffloadClient::offloaded`], so that the host's
    /// notices about a connection are read before the target has it. Returns whether there was anything to do.
    fn poll(&mut self, _now: Instant, _connections: &mut Connections) -> bool {
        false
    }

    /// When [`NodeClient::poll`] has to be called again though nothing has happened.
    fn poll_at(&self) -> Option<Instant> {
        None
    }

    /// Whether a notice of the host stack is queued; checked before the engine sleeps.
    fn has_input(&self) -> bool {
        false
    }

    /// Moves out the consumer's callbacks that became due. The node calls them, in order, when it
    /// holds no lock, on a thread that runs the loop.
    fn take_callbacks(&mut self, _callbacks: &mut Vec<Callback>) {}

    /// As [`NodeClient::take_callbacks`], of those that any thread may call: also the thread of a call of the node,
    /// before that call returns. By default all of them.
    fn take_callbacks_of_calls(&mut self, callbacks: &mut Vec<Callback>) {
        self.take_callbacks(callbacks);
    }

    /// Whether others wait: then a thread that runs the loop is woken, and takes them.
    fn has_callbacks_of_loop(&self) -> bool {
        false
    }

    /// The device is gone: no upcall and no notice follows. Everything that a consumer waits for ends with a reason,
    /// and later requests fail.
    fn device_lost(&mut self) {}
}

/// Limits and policies of an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// The interface's address.
    pub mac: MacAddress,
    /// What is supported, and how much of it; each limit has its status at initiate.
    pub capabilities: OffloadCapabilities,
    /// NceStaleTicks: how long a neighbor counts as reachable after the last confirmation (CH §9.7).
    pub nce_stale: Duration,
    /// Frames taken from the link in one iteration.
    pub rx_batch_frames_max: usize,
    /// Bytes of frames after which a batch ends: connections have their turns, and a peer with half a megabyte in
    /// flight gets an ACK for the first half before it has sent the second.
    pub rx_batch_bytes_max: usize,
    /// Payload bytes of a super-segment, at most what the link takes.
    pub super_segment_max: usize,
    /// Frames for a connection that was just taken over wait until the host has forwarded the earlier ones
    /// (`FromHost::Forwarded`), at most [`EARLY_BYTES_MAX`]. Otherwise segments overtake each other within the node,
    /// and the peer retransmits. For hosts that send that message, as ours does.
    pub waits_for_forwards: bool,
    /// Every connection's limits and policies.
    pub tcp: tcp::Config,
}

impl EngineConfig {
    /// Defaults for an interface.
    pub fn new(mac: MacAddress) -> Self {
        Self {
            mac,
            capabilities: OffloadCapabilities::default(),
            // REACHABLE_TIME of RFC 4861 §10.
            nce_stale: Duration::from_secs(30),
            rx_batch_frames_max: 64,
            rx_batch_bytes_max: 256 * 1024,
            super_segment_max: 64 * 1024,
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
    /// ICMP errors about bytes that an offloaded connection has in flight; the host gets them too.
    pub rx_path_errors: u64,
    /// ICMP errors about offloaded connections that quote something else (RFC 5927 §4.1).
    pub rx_path_errors_ignored: u64,
    /// First fragments of segments of offloaded connections; the host gets them.
    pub rx_fragments: u64,
    /// Frames passed to the host stack.
    pub rx_to_host: u64,
    /// Frames dropped because the host stack's queue was full.
    pub rx_to_host_dropped: u64,
    /// Frames of connections that another engine has, passed on to it ([`Engine::group`]).
    pub rx_passed_on: u64,
    /// Such frames dropped because [`PASSED_FRAMES_MAX`] were on their way there.
    pub rx_passed_on_dropped: u64,
    /// Frames that other engines have passed on to this one.
    pub rx_passed_in: u64,
    /// Frames sent for the host stack.
    pub tx_from_host: u64,
    /// Super-segments and segments sent.
    pub tx_segments: u64,
    /// Segments not sent because an object below their connection is invalid (CH-INV-2).
    pub tx_invalid: u64,
    /// Segments that a full link made wait.
    pub tx_stalled: u64,
    /// Segments that neither the link nor the queue before it took; retransmission repairs it.
    pub tx_lost: u64,
    /// Connections taken over.
    pub initiates: u64,
    /// Connections refused.
    pub initiate_failures: u64,
    /// Connections given back.
    pub terminates: u64,
    /// Frames kept of connections that had stopped, for the host (CH §9.3).
    pub rx_held: u64,
    /// Frames of such connections dropped because [`HELD_FRAMES_MAX`] or [`HELD_BYTES_MAX`] was reached.
    pub rx_held_dropped: u64,
    /// Segments that the host handed back (CH-FWD-2).
    pub forwards: u64,
    /// Frames handed back that belong to no offloaded connection, or that the target does not process.
    pub forwards_dropped: u64,
}

/// Whether a connection is a good candidate; if not, it is answered OFFLOAD_CONNECTION_REJECTED.
pub type Admission = Box<dyn FnMut(&PathState, &TcpState) -> bool + Send>;

struct Stalled {
    frame: Vec<u8>,
    head_len: usize,
    offload: TxOffload,
}

/// The offload target: one link, its offloaded connections, and the port to the host stack.
pub struct Engine {
    link: Box<dyn Link>,
    capabilities: LinkCapabilities,
    connections: Connections,
    objects: Objects,
    paused: bool,
    /// The time since which they wait.
    held_trees: VecDeque<(Instant, InitiateTree)>,
    admission: Option<Admission>,
    /// Of IPv4 and of IPv6.
    statistics: [Statistics; 2],
    /// Connections whose next frame gets a comment.
    given_back: VecDeque<FlowKey>,
    to_host: Sender<ToHost>,
    from_host: Receiver<FromHost>,
    doorbell: Arc<Doorbell>,
    host_doorbell: Arc<Doorbell>,
    /// `None`: it is alone on its device.
    siblings: Option<Box<Siblings>>,
    batch: RxBatch,
    /// The last iteration has ended behind the first frame of a batch, the rest of which is pending.
    is_ahead: bool,
    stalled: VecDeque<Stalled>,
    /// How many may; none while a terminate waits, so that no connection sends.
    stalled_max: usize,
    /// Frames were transmitted since the link was flushed.
    unflushed: bool,
    /// Connections of which the link has borrowed payload.
    borrowed: Vec<usize>,
    /// A terminate that waits for what the link has borrowed.
    lent_tree: Option<TerminateTree>,
    config: EngineConfig,
    stats: EngineStats,
    trace: Option<Trace>,
}

impl Engine {
    /// An engine on `link`, and the host stack's end of its port.
    ///
    /// # Errors
    /// No descriptor is left for the doorbells.
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
            link,
            capabilities,
            connections: Connections::new(&config, capabilities),
            objects: Objects::new(config.mac, config.capabilities, config.nce_stale),
            paused: false,
            held_trees: VecDeque::new(),
            admission: None,
            statistics: [Statistics::default(); 2],
            given_back: VecDeque::new(),
            to_host,
            from_host,
            doorbell: port.engine_doorbell.clone(),
            host_doorbell: port.host_doorbell.clone(),
            siblings: None,
            batch: RxBatch::new(RX_BUFFERS),
            is_ahead: false,
            stalled: VecDeque::new(),
            stalled_max: STALLED_FRAMES_MAX,
            unflushed: false,
            borrowed: Vec::new(),
            lent_tree: None,
            config,
            stats: EngineStats::default(),
            trace: None,
        };
        Ok((engine, port))
    }

    /// The offloaded connections.
    pub fn connections(&mut self) -> &mut Connections {
        &mut self.connections
    }

    /// The neighbor and path objects.
    pub const fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Has `admission` judge every connection that is to be taken over.
    pub fn set_admission(&mut self, admission: Admission) {
        self.admission = Some(admission);
    }

    /// The VLAN ids of the interface, without 0; none: a neighbor may have any (CH §9.4).
    pub fn set_interface_vlans(&mut self, vlans: Vec<u16>) {
        self.objects.set_interface_vlans(vlans);
    }

    /// Makes the hardware behind a connection fail (CH §5.6): the next query, invalidate or terminate finds out.
    /// Returns whether there is such a connection.
    #[cfg(test)]
    pub(crate) fn inject_failure(&mut self, handle: crate::chimney::client::OffloadHandle) -> bool {
        let offloaded = self.connections.by_handle(handle);
        offloaded.map(|offloaded| offloaded.failed = true).is_some()
    }

    /// The doorbell that wakes this engine.
    pub fn doorbell(&self) -> &Arc<Doorbell> {
        &self.doorbell
    }

    /// The doorbell that wakes the host stack.
    #[cfg(test)]
    pub(crate) fn host_doorbell(&self) -> &Arc<Doorbell> {
        &self.host_doorbell
    }

    /// Counters.
    pub fn stats(&self) -> EngineStats {
        self.stats
    }

    /// The link's counters.
    pub fn link_stats(&self) -> LinkStats {
        self.link.stats()
    }

    /// Writes out what capture and trace have buffered. Also happens on drop, which a process that calls `exit` does
    /// not come to.
    pub fn sync(&mut self) {
        self.link.sync();
        if let Some(trace) = &mut self.trace {
            trace.flush();
        }
    }

    /// Writes a row of [`trace`] to `output`, which should have a buffer, whenever a connection's
    /// congestion control has changed, until the engine is dropped.
    ///
    /// # Errors
    /// The header could not be written.
    pub fn start_trace(&mut self, output: Box<dyn Write + Send>) -> std::io::Result<()> {
        self.trace = Some(Trace::new(output)?);
        Ok(())
    }

    /// Whether a message of the host stack waits, or a frame for a link that was full; to be checked before
    /// sleeping.
    pub fn has_input(&self) -> bool {
        let held = !self.paused && !self.held_trees.is_empty();
        let passed = self.siblings.as_ref().is_some_and(|siblings| siblings.has_input());
        let ready = self.connections.has_ready() && !self.is_stalled();
        let messages = self.lent_tree.is_none() && !self.from_host.is_empty();
        held || passed || messages || ready || self.has_ended_loans()
    }

    /// The queue for a full link is full, or the link has to return borrowed memory.
    fn is_stalled(&self) -> bool {
        self.stalled.len() >= self.stalled_max
    }

    /// The device is gone: connections are forgotten, and with them the memory that they were to send. What the link
    /// has borrowed stays until it gives it back.
    pub fn device_lost(&mut self) {
        let slots: Vec<_> = self.connections.occupied().map(|(slot, _)| slot).collect();
        for slot in slots {
            let is_lent = self.connections.slot(slot).is_some_and(|found| found.loans.is_lent());
            if !is_lent {
                self.connections.remove(slot);
            }
        }
    }

    /// Returns whether nothing is left to send to a peer: every connection is in TIME-WAIT, and no frame waits for the
    /// link or in it.
    pub fn is_silent(&self) -> bool {
        let phases = self.connections.occupied();
        phases.map(|(_, found)| found.tcp.phase()).all(|phase| phase == tcp::TcpPhase::TimeWait)
            && self.from_host.is_empty()
            && self.stalled.is_empty()
            && self.link.poll_at().is_none()
    }

    /// Acknowledges once more, on each connection in TIME-WAIT whose path has lost segments, what the peer has sent:
    /// for a node that ends before TIME-WAIT does. The peer of a FIN whose acknowledgement was lost would send it to
    /// nobody.
    pub fn repeat_last_acks(&mut self) {
        self.connections.repeat_last_acks();
    }

    /// Whether a frame waits for the link to become writable.
    pub fn wants_writable(&self) -> bool {
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
