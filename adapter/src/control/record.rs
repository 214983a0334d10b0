//! Connection as reported in documents: units in the keys, null for unknown values.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use host_stack::{
    socket::{ConnectionRow, MigrationCounts, Refusal, SocketState},
    stream::OffloadState,
};
use offload_engine::{
    chimney::client::UploadReason,
    engine::ConnectionSnapshot,
    socket::TcpStatistics,
    state::{TcpConst, TcpDelegated, TimerState},
    status::NdisStatus,
    tcp::{CaState, Info, TcpPhase},
};
use rdma_over_tcp::rnic::{ConnectionEntry, Counters, QpStats};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::state;

/// Refusal of an offload or upload.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Refused {
    /// Component that refused, and the reason.
    pub message: String,
    /// NDIS_STATUS as a number, if the target refused.
    pub ndis_status: Option<u32>,
    /// Name of that status.
    pub ndis_status_name: Option<String>,
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        let status = match refusal {
            Refusal::Target(status) => Some(status),
            Refusal::Host(_) => None,
        };
        let name = |status: NdisStatus| status.name().map(|name| format!("NDIS_STATUS_{name}"));
        Self {
            message: refusal.to_string(),
            ndis_status: status.map(|status| status.0),
            ndis_status_name: status.and_then(name),
        }
    }
}

/// Counters of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct QueuePairCounters {
    /// Posted requests that are not complete.
    pub outstanding: u64,
    /// Receives in its receive queue, its own or a shared one, that no message has taken.
    pub receives_posted: u64,
    /// Sends started.
    pub sends: u64,
    /// Payload bytes of these Sends.
    pub send_bytes: u64,
    /// Writes started.
    pub writes: u64,
    /// Payload bytes of these Writes.
    pub write_bytes: u64,
    /// Read Requests sent.
    pub reads: u64,
    /// Bytes of Read Responses placed.
    pub read_bytes: u64,
    /// Atomic Requests sent.
    pub atomics: u64,
    /// Immediate Data messages sent.
    pub immediates: u64,
    /// Sends and immediate data received.
    pub receives: u64,
    /// Payload bytes of the received Sends.
    pub receive_bytes: u64,
    /// Writes of the peer placed in full, without those of no data.
    pub writes_placed: u64,
    /// Payload bytes of the peer's Writes placed.
    pub write_bytes_placed: u64,
    /// FPDUs of the peer's Writes placed.
    pub write_segments_placed: u64,
    /// Read Requests of the peer answered.
    pub read_responses: u64,
    /// Bytes of Read Responses sent.
    pub read_response_bytes: u64,
    /// Atomic Requests of the peer answered.
    pub atomic_responses: u64,
    /// FPDUs sent.
    pub fpdus_sent: u64,
    /// FPDUs received.
    pub fpdus_received: u64,
    /// Requests completed as flushed.
    pub requests_flushed: u64,
    /// Terminate messages sent.
    pub terminates_sent: u64,
    /// Terminate messages received.
    pub terminates_received: u64,
}

impl QueuePairCounters {
    fn new(outstanding: usize, receives_posted: usize, stats: &QpStats) -> Self {
        let QpStats {
            sends,
            send_bytes,
            writes,
            write_bytes,
            reads,
            read_bytes,
            atomics,
            immediates,
            receives,
            receive_bytes,
            writes_placed,
            write_bytes_placed,
            write_segments_placed,
            read_responses,
            read_response_bytes,
            atomic_responses,
            fpdu_out,
            fpdu_in,
            // Of interest to the development of the adapter only.
            lists_out: _,
            copied_aside_bytes: _,
            tails_copied: _,
            flushed,
            terminates_out,
            terminates_in,
        } = *stats;
        Self {
            outstanding: outstanding as u64,
            receives_posted: receives_posted as u64,
            sends,
            send_bytes,
            writes,
            write_bytes,
            reads,
            read_bytes,
            atomics,
            immediates,
            receives,
            receive_bytes,
            writes_placed,
            write_bytes_placed,
            write_segments_placed,
            read_responses,
            read_response_bytes,
            atomic_responses,
            fpdus_sent: fpdu_out,
            fpdus_received: fpdu_in,
            requests_flushed: flushed,
            terminates_sent: terminates_out,
            terminates_received: terminates_in,
        }
    }
}

/// Counters of an adapter since it was opened, those of closed connections included.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct AdapterCounters {
    /// Outbound connections established.
    pub connects: u64,
    /// Inbound connections established.
    pub accepts: u64,
    /// Connection attempts that failed.
    pub connect_failures: u64,
    /// Connections that failed before the consumer disconnected. A FIN of the peer is no failure.
    pub connection_errors: u64,
    /// Connections established now.
    pub active_connections: u64,
    /// Completion queues that failed.
    pub cq_errors: u64,
    /// Datagrams received that no queue pair has taken.
    pub datagrams_dropped: u64,
    /// FPDU bytes sent.
    pub fpdu_bytes_sent: u64,
    /// FPDU bytes received.
    pub fpdu_bytes_received: u64,
    /// FPDUs sent.
    pub fpdus_sent: u64,
    /// FPDUs received.
    pub fpdus_received: u64,
}

impl AdapterCounters {
    /// Returns the sum of these counters and those of another adapter.
    #[must_use]
    pub(super) fn plus(self, counters: &Counters) -> Self {
        let Counters {
            connect,
            accept,
            connect_failure,
            // Of interest to the development of the adapter only.
            requests_displaced: _,
            empty_writes: _,
            connection_error,
            active_connection,
            cq_error,
            fpdu_in_octets,
            fpdu_out_octets,
            fpdu_in,
            fpdu_out,
            datagrams_dropped,
        } = *counters;
        Self {
            connects: self.connects + connect,
            accepts: self.accepts + accept,
            connect_failures: self.connect_failures + connect_failure,
            connection_errors: self.connection_errors + connection_error,
            active_connections: self.active_connections + active_connection,
            cq_errors: self.cq_errors + cq_error,
            datagrams_dropped: self.datagrams_dropped + datagrams_dropped,
            fpdu_bytes_sent: self.fpdu_bytes_sent + fpdu_out_octets,
            fpdu_bytes_received: self.fpdu_bytes_received + fpdu_in_octets,
            fpdus_sent: self.fpdus_sent + fpdu_out,
            fpdus_received: self.fpdus_received + fpdu_in,
        }
    }
}

/// Kind of a pending timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimerKind {
    /// Retransmission.
    Retransmit,
    /// Keep-alive.
    KeepAlive,
    /// End of TIME-WAIT or FIN-WAIT-2.
    TimeWait,
    /// Probe of a closed window.
    Persist,
}

/// Pending timer of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Timer {
    /// Kind.
    pub kind: TimerKind,
    /// Time until it expires, milliseconds.
    pub left_ms: u64,
    /// Retransmissions or probes without a reply.
    pub count: u64,
}

/// Memory of a connection's buffers, bytes. Values that only the kernel has are null for an offloaded connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BufferMemory {
    /// Received and not yet read; of the kernel, with the overhead of its buffers.
    pub receive_bytes: u64,
    /// Limit of the receive buffer.
    pub receive_max_bytes: u64,
    /// Sent and not yet acknowledged; of the kernel, with the overhead of its buffers.
    pub send_bytes: u64,
    /// Limit of the send buffer; of an offloaded connection, the bytes that keep it busy.
    pub send_max_bytes: u64,
    /// In the queues of the device.
    pub transmit_bytes: Option<u64>,
    /// Allocated and unused.
    pub forward_bytes: Option<u64>,
    /// Options.
    pub options_bytes: Option<u64>,
    /// Received while a system call had the socket.
    pub backlog_bytes: Option<u64>,
    /// Packets dropped.
    pub drops: Option<u64>,
}

impl BufferMemory {
    fn new(look: &ConnectionSnapshot) -> Self {
        Self {
            receive_bytes: look.queried.receive_backlog_size.into(),
            receive_max_bytes: look.info.rcv_space,
            send_bytes: look.send_outstanding as u64,
            send_max_bytes: look.queried.send_backlog_size.into(),
            transmit_bytes: None,
            forward_bytes: None,
            options_bytes: None,
            backlog_bytes: None,
            drops: None,
        }
    }
}

/// Returns the pending timers in the delegated state of an offloaded connection.
fn timers(delegated: &TcpDelegated) -> Vec<Timer> {
    let TcpDelegated { state, keep_alive, retransmit, snd_wnd_probe_count, .. } = *delegated;
    let (kind, probes) = match (state, snd_wnd_probe_count) {
        (TcpPhase::FinWait2 | TcpPhase::TimeWait, _) => (TimerKind::TimeWait, None),
        (_, 0) => (TimerKind::Retransmit, None),
        (_, probes) => (TimerKind::Persist, Some(probes)),
    };
    let timer = |kind, timer: TimerState, probes: Option<u64>| {
        let left_ms = timer.timeout_delta?.into();
        Some(Timer { kind, left_ms, count: probes.unwrap_or_else(|| timer.count.into()) })
    };
    let probes = probes.map(u64::from);
    let all = [timer(kind, retransmit, probes), timer(TimerKind::KeepAlive, keep_alive, None)];
    all.into_iter().flatten().collect()
}

/// A listener or a connection.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Handle, unique within the node.
    pub handle: u64,
    /// State as ss prints it: ESTAB, FIN-WAIT-1, LISTEN; null without a snapshot of the target that has the connection.
    pub state: Option<String>,
    /// Location of the data path.
    pub offload_state: OffloadState,
    /// Local address and port.
    pub local: SocketAddr,
    /// Address and port of the peer; null for a listener.
    pub remote: Option<SocketAddr>,
    /// Queue pair number; null for a connection without a queue pair, and while it is being set up.
    #[serde(default)]
    pub qp: Option<u32>,
    /// Number of the peer's queue pair, for queue pairs that their programs connect; null otherwise.
    #[serde(default)]
    pub peer_qp: Option<u32>,
    /// Counters of the queue pair; null without one.
    #[serde(default)]
    pub rdma: Option<Box<QueuePairCounters>>,
    /// Bytes received and not yet read by the client; for a listener, handshakes in progress.
    pub recv_q: Option<u64>,
    /// Bytes sent and not yet acknowledged by the peer; for a listener, its backlog.
    pub send_q: Option<u64>,
    /// Pending timers; null in the host stack and for a kernel socket.
    #[serde(default)]
    pub timers: Option<Vec<Timer>>,
    /// Memory of its buffers; null in the host stack and for a kernel socket.
    #[serde(default)]
    pub memory: Option<BufferMemory>,
    /// Number of completed offloads.
    pub offloads: u32,
    /// Number of completed uploads.
    pub uploads: u32,
    /// Reason of the target's last upload request.
    pub last_upload_reason: Option<String>,
    /// Number of refused offloads and uploads.
    pub refusals: u32,
    /// The last refusal.
    pub last_refusal: Option<Refused>,
    /// Values of TCP_INFO, for an offloaded connection and for a kernel socket.
    pub info: Option<Box<TcpInfo>>,
    /// Offload state by object and class, with the member names of Windows; only if requested and offloaded.
    pub state_tree: Option<Value>,
}

impl Record {
    /// Creates a record from the row of the host stack and, if the connection is offloaded, the snapshot of the target.
    /// `tree`: include the three classes of offload state.
    pub fn new(row: &ConnectionRow, look: Option<ConnectionSnapshot>, tree: bool) -> Self {
        let ConnectionRow { handle, local, remote, state, offload, recv_q, send_q, moves } = *row;
        let MigrationCounts { offloads, uploads, last_upload_reason, refusals, last_refusal } =
            moves;
        let mut record = Self {
            handle: handle.0,
            state: state.map(|state| state.name().to_owned()),
            offload_state: offload,
            local,
            remote,
            qp: None,
            peer_qp: None,
            rdma: None,
            recv_q: recv_q.map(|count| count as u64),
            send_q: send_q.map(|count| count as u64),
            timers: None,
            memory: None,
            offloads,
            uploads,
            last_upload_reason: last_upload_reason.map(reason_name),
            refusals,
            last_refusal: last_refusal.map(Refused::from),
            info: None,
            state_tree: None,
        };
        if let Some(look) = look {
            record.complete(&look, tree);
        }
        record
    }

    /// Adds the values that only the target has.
    fn complete(&mut self, look: &ConnectionSnapshot, tree: bool) {
        let ConnectionSnapshot { info, neighbor, path, tcp, queried, send_outstanding } = look;
        let phase = SocketState::from(info.phase);
        self.state.get_or_insert_with(|| phase.name().to_owned());
        self.recv_q.get_or_insert_with(|| queried.receive_backlog_size.into());
        self.send_q.get_or_insert(*send_outstanding as u64);
        self.timers = Some(timers(&queried.delegated));
        self.memory = Some(BufferMemory::new(look));
        self.info = Some(Box::new(TcpInfo::new(info, &tcp.constant)));
        self.state_tree = tree.then(|| {
            state::tree(neighbor.as_ref(), path.as_ref(), &tcp.constant, &tcp.cached, queried)
        });
    }

    /// Adds the number and the counters of its queue pair.
    pub(super) fn set_queue_pair(&mut self, entry: &ConnectionEntry) {
        let ConnectionEntry {
            local: _,
            remote: _,
            qp,
            peer_qp,
            outstanding,
            receives_posted,
            ref stats,
        } = *entry;
        (self.qp, self.peer_qp) = (Some(qp), peer_qp);
        self.rdma = Some(Box::new(QueuePairCounters::new(outstanding, receives_posted, stats)));
    }

    /// Adds the statistics of its kernel socket.
    pub(super) fn set_statistics(&mut self, statistics: &TcpStatistics) {
        self.info = Some(Box::new(TcpInfo::of_kernel(statistics)));
    }

    /// Returns true for a listener.
    pub fn is_listener(&self) -> bool {
        self.remote.is_none()
    }
}

/// Returns the name of a reason as Windows defines it, without its prefix.
pub fn reason_name(reason: UploadReason) -> String {
    format!("{reason:?}")
}

/// Formats an address and port as ss does: `*` for any address or port.
pub fn shown(end: Option<SocketAddr>) -> String {
    let Some(end) = end else { return "*:*".into() };
    match end.ip() {
        IpAddr::V4(address) if address.is_unspecified() => format!("0.0.0.0:{}", end.port()),
        _ => end.to_string(),
    }
}

/// Declares the fields, and the expressions of their values for an offloaded connection and for a kernel socket, in one
/// table.
macro_rules! tcp_info {
    (|$info:ident, $constant:ident, $kernel:ident|
        $($(#[$doc:meta])* $name:ident: $type:ty = $value:expr, $of_kernel:expr;)*) => {
        /// Values of TCP_INFO. Field names are those of Linux, followed by the unit.
        #[allow(missing_docs, reason = "the names are those of TCP_INFO and of offload_engine::tcp::Info")]
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
        pub struct TcpInfo {
            $($(#[$doc])* pub $name: $type,)*
        }

        impl TcpInfo {
            fn new($info: &Info, $constant: &TcpConst) -> Self {
                Self { $($name: $value,)* }
            }

            /// Converts the statistics of a kernel socket. Values that the kernel does not report are `None`.
            fn of_kernel($kernel: &TcpStatistics) -> Self {
                Self { $($name: $of_kernel,)* }
            }
        }
    };
}

tcp_info! { |info, constant, kernel|
    timestamps: bool = constant.timestamp_enabled, kernel.options & 1 != 0;
    sack: bool = constant.sack_enabled, kernel.options & 2 != 0;
    ecn: bool = info.ecn, kernel.options & 8 != 0;
    /// Window scales of the peer and of this end; null: none.
    wscale: Option<(u8, u8)> = constant
        .window_scaling_enabled
        .then_some((constant.snd_wind_scale, constant.rcv_wind_scale)),
        (kernel.options & 4 != 0).then_some(kernel.wscale);
    rto_ns: u64 = nanos(info.rto), nanos(kernel.rto);
    rtt_ns: Option<u64> = info.rtt.map(nanos), sample(kernel.rtt);
    rttvar_ns: Option<u64> = info.rttvar.map(nanos), sample(kernel.rtt).map(|_| nanos(kernel.rttvar));
    min_rtt_ns: Option<u64> = info.min_rtt.map(nanos), sample(kernel.min_rtt);
    rcv_rtt_ns: Option<u64> = info.rcv_rtt.map(nanos), sample(kernel.rcv_rtt);
    snd_mss_bytes: u64 = info.snd_mss as u64, kernel.snd_mss.into();
    rcv_mss_bytes: u64 = info.rcv_mss as u64, kernel.rcv_mss.into();
    advmss_bytes: u64 = info.advmss as u64, kernel.advmss.into();
    pmtu_bytes: u64 = info.pmtu.into(), kernel.pmtu.into();
    snd_cwnd_bytes: u64 = info.snd_cwnd, u64::from(kernel.snd_cwnd) * u64::from(kernel.snd_mss);
    snd_ssthresh_bytes: Option<u64> = info.snd_ssthresh, (kernel.snd_ssthresh < SSTHRESH_INFINITE)
        .then(|| u64::from(kernel.snd_ssthresh) * u64::from(kernel.snd_mss));
    snd_wnd_bytes: Option<u64> = Some(info.snd_wnd), kernel.snd_wnd.map(Into::into);
    rcv_wnd_bytes: Option<u64> = Some(info.rcv_wnd), kernel.rcv_wnd.map(Into::into);
    rcv_space_bytes: u64 = info.rcv_space, kernel.rcv_space.into();
    bytes_sent: u64 = info.bytes_sent, kernel.bytes_sent;
    bytes_retrans: u64 = info.bytes_retrans, kernel.bytes_retrans;
    bytes_acked: u64 = info.bytes_acked, kernel.bytes_acked;
    bytes_received: u64 = info.bytes_received, kernel.bytes_received;
    bytes_delivered: Option<u64> = Some(info.bytes_delivered), None;
    segs_out: u64 = info.segs_out, kernel.segs_out.into();
    segs_in: u64 = info.segs_in, kernel.segs_in.into();
    segs_psh_out: Option<u64> = Some(info.push_out), None;
    unacked_segs: u64 = info.unacked, kernel.unacked.into();
    sacked_segs: u64 = info.sacked, kernel.sacked.into();
    lost_segs: u64 = info.lost, kernel.lost.into();
    retrans_segs: u64 = info.retrans, kernel.retrans.into();
    total_retrans_segs: u64 = info.total_retrans, kernel.total_retrans.into();
    fast_retransmits: Option<u64> = Some(info.fast_retransmits), None;
    timeouts: Option<u64> = Some(info.timeouts), None;
    spurious_timeouts: Option<u64> = Some(info.spurious_timeouts), None;
    dsack_dups: u64 = info.dsack_dups, kernel.dsack_dups.into();
    reord_seen: u64 = info.reord_seen, kernel.reord_seen.into();
    delivered_ce_segs: u64 = info.delivered_ce, kernel.delivered_ce.into();
    ce_received_segs: Option<u64> = Some(info.ce_received), None;
    challenge_acks: Option<u64> = Some(info.challenge_acks), None;
    path_mtu_reductions: Option<u64> = Some(info.path_mtu_reductions), None;
    soft_errors: Option<u64> = Some(info.soft_errors), None;
    ca_state: CaState = info.ca_state, ca_state(kernel.ca_state);
    pacing_rate_bps: Option<u64> = info.pacing_rate.map(|bytes| bytes.saturating_mul(8)),
        (kernel.pacing_rate < u64::MAX).then(|| kernel.pacing_rate.saturating_mul(8));
    last_data_sent_ns: Option<u64> = info.last_data_sent.map(nanos), Some(nanos(kernel.last_data_sent));
    last_data_recv_ns: Option<u64> = info.last_data_recv.map(nanos), Some(nanos(kernel.last_data_recv));
    last_ack_recv_ns: Option<u64> = info.last_ack_recv.map(nanos), Some(nanos(kernel.last_ack_recv));
    busy_time_ns: u64 = nanos(info.busy_time), nanos(kernel.busy_time);
    rwnd_limited_ns: u64 = nanos(info.rwnd_limited), nanos(kernel.rwnd_limited);
}

/// Slow start threshold of the kernel before the first loss.
const SSTHRESH_INFINITE: u32 = 0x7fff_ffff;
/// Time of the kernel without a sample, microseconds; 0 is another.
const NO_SAMPLE: Duration = Duration::from_micros(u32::MAX as u64);

/// Returns a measured time of the kernel; `None`: no sample.
fn sample(time: Duration) -> Option<u64> {
    (!time.is_zero() && time < NO_SAMPLE).then(|| nanos(time))
}

/// Returns the congestion state with the number of the kernel.
const fn ca_state(number: u8) -> CaState {
    match number {
        1 => CaState::Disorder,
        2 => CaState::Cwr,
        3 => CaState::Recovery,
        4 => CaState::Loss,
        _ => CaState::Open,
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
