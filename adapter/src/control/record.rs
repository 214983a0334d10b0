//! A connection as documents tell it: units in the keys, null for what is not known.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use host_stack::{
    socket::{ConnectionRow, Moves, Refusal, SocketState},
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

/// Why a hand-over was not done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Refused {
    /// Who, and why.
    pub message: String,
    /// The target's answer as a number, if it was its.
    pub ndis_status: Option<u32>,
    /// And as a name.
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
    /// Its name within the node.
    pub handle: u64,
    /// As ss calls it: ESTAB, FIN-WAIT-1, LISTEN; null while it is on its way.
    pub state: Option<String>,
    /// Where its data path is.
    pub offload_state: OffloadState,
    /// Our end.
    pub local: SocketAddr,
    /// The peer's end; null of a listener.
    pub remote: Option<SocketAddr>,
    /// Number of the queue pair; null of a connection without one, and while it is being set up.
    #[serde(default)]
    pub qp: Option<u32>,
    /// Received and not yet taken by the client; handshakes under way of a listener.
    pub recv_q: Option<u64>,
    /// Sent and not acknowledged by the peer; a listener's backlog.
    pub send_q: Option<u64>,
    /// Times that the target has taken it over.
    pub offloads: u32,
    /// Times that the host has taken it back.
    pub uploads: u32,
    /// Why the target last wanted it uploaded.
    pub last_upload_reason: Option<String>,
    /// Hand-overs that were not done.
    pub refusals: u32,
    /// Why the last one was not.
    pub last_refusal: Option<Refused>,
    /// What TCP_INFO would say, of an offloaded connection.
    pub info: Option<Box<TcpInfo>>,
    /// Offload state by object and class, in Windows' member names, if asked for and offloaded.
    pub state_tree: Option<Value>,
}

impl Record {
    /// From what the host stack says, and the target if it has the connection; `tree`: with the three classes of
    /// offload state.
    pub fn new(row: &ConnectionRow, look: Option<ConnectionSnapshot>, tree: bool) -> Self {
        let ConnectionRow { handle, local, remote, state, offload, recv_q, send_q, moves } = *row;
        let Moves { offloads, uploads, last_upload_reason, refusals, last_refusal } = moves;
        let mut record = Self {
            handle: handle.0,
            state: state.map(|state| state.name().to_owned()),
            offload_state: offload,
            local,
            remote,
            qp: None,
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

    /// Adds what only the target knows.
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

    /// Listens.
    pub fn is_listener(&self) -> bool {
        self.remote.is_none()
    }
}

/// Windows' name of a reason, without its prefix.
pub fn reason_name(reason: UploadReason) -> String {
    format!("{reason:?}")
}

/// An end as ss shows it: `*` for any address or port.
pub fn shown(end: Option<SocketAddr>) -> String {
    let Some(end) = end else { return "*:*".into() };
    match end.ip() {
        IpAddr::V4(address) if address.is_unspecified() => format!("0.0.0.0:{}", end.port()),
        _ => end.to_string(),
    }
}

/// One table for the fields and how they are found.
macro_rules! tcp_info {
    (|$info:ident, $constant:ident| $($(#[$doc:meta])* $name:ident: $type:ty = $value:expr;)*) => {
        /// What TCP_INFO would say. Names are Linux', with the unit behind.
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
    /// Scales of the peer's windows and of ours; null: none.
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
