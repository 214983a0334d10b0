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
    state::TcpConst,
    status::NdisStatus,
    tcp::{CaState, Info},
};
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
    /// Bytes received and not yet read by the client; for a listener, handshakes in progress.
    pub recv_q: Option<u64>,
    /// Bytes sent and not yet acknowledged by the peer; for a listener, its backlog.
    pub send_q: Option<u64>,
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
    /// Values of TCP_INFO, for an offloaded connection.
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
            recv_q: recv_q.map(|count| count as u64),
            send_q: send_q.map(|count| count as u64),
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
        self.info = Some(Box::new(TcpInfo::new(info, &tcp.constant)));
        self.state_tree = tree.then(|| {
            state::tree(neighbor.as_ref(), path.as_ref(), &tcp.constant, &tcp.cached, queried)
        });
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

/// Declares the fields and the expressions of their values in one table.
macro_rules! tcp_info {
    (|$info:ident, $constant:ident| $($(#[$doc:meta])* $name:ident: $type:ty = $value:expr;)*) => {
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
        }
    };
}

tcp_info! { |info, constant|
    timestamps: bool = constant.timestamp_enabled;
    sack: bool = constant.sack_enabled;
    ecn: bool = info.ecn;
    /// Window scales of the peer and of this end; null: none.
    wscale: Option<(u8, u8)> = constant
        .window_scaling_enabled
        .then_some((constant.snd_wind_scale, constant.rcv_wind_scale));
    rto_ns: u64 = nanos(info.rto);
    rtt_ns: Option<u64> = info.rtt.map(nanos);
    rttvar_ns: Option<u64> = info.rttvar.map(nanos);
    min_rtt_ns: Option<u64> = info.min_rtt.map(nanos);
    rcv_rtt_ns: Option<u64> = info.rcv_rtt.map(nanos);
    snd_mss_bytes: u64 = info.snd_mss as u64;
    rcv_mss_bytes: u64 = info.rcv_mss as u64;
    advmss_bytes: u64 = info.advmss as u64;
    pmtu_bytes: u64 = info.pmtu.into();
    snd_cwnd_bytes: u64 = info.snd_cwnd;
    snd_ssthresh_bytes: Option<u64> = info.snd_ssthresh;
    snd_wnd_bytes: u64 = info.snd_wnd;
    rcv_wnd_bytes: u64 = info.rcv_wnd;
    rcv_space_bytes: u64 = info.rcv_space;
    bytes_sent: u64 = info.bytes_sent;
    bytes_retrans: u64 = info.bytes_retrans;
    bytes_acked: u64 = info.bytes_acked;
    bytes_received: u64 = info.bytes_received;
    bytes_delivered: u64 = info.bytes_delivered;
    segs_out: u64 = info.segs_out;
    segs_in: u64 = info.segs_in;
    segs_psh_out: u64 = info.push_out;
    unacked_segs: u64 = info.unacked;
    sacked_segs: u64 = info.sacked;
    lost_segs: u64 = info.lost;
    retrans_segs: u64 = info.retrans;
    total_retrans_segs: u64 = info.total_retrans;
    fast_retransmits: u64 = info.fast_retransmits;
    timeouts: u64 = info.timeouts;
    spurious_timeouts: u64 = info.spurious_timeouts;
    dsack_dups: u64 = info.dsack_dups;
    reord_seen: u64 = info.reord_seen;
    delivered_ce_segs: u64 = info.delivered_ce;
    ce_received_segs: u64 = info.ce_received;
    challenge_acks: u64 = info.challenge_acks;
    path_mtu_reductions: u64 = info.path_mtu_reductions;
    soft_errors: u64 = info.soft_errors;
    ca_state: CaState = info.ca_state;
    pacing_rate_bps: Option<u64> = info.pacing_rate.map(|bytes| bytes.saturating_mul(8));
    last_data_sent_ns: Option<u64> = info.last_data_sent.map(nanos);
    last_data_recv_ns: Option<u64> = info.last_data_recv.map(nanos);
    last_ack_recv_ns: Option<u64> = info.last_ack_recv.map(nanos);
    busy_time_ns: u64 = nanos(info.busy_time);
    rwnd_limited_ns: u64 = nanos(info.rwnd_limited);
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
