//! `struct tcp_info` in Linux' layout (include/uapi/linux/tcp.h), from the state of the target.
//!
//! Unknown members are 0. For a connection in the host stack that is all but the state, since smoltcp does not
//! report them.

use host_stack::stream::StreamStatus;
use offload_engine::{
    state::TcpState,
    tcp::{Info, TcpPhase},
    time::Duration,
};

/// TCP_INFINITE_SSTHRESH.
const SSTHRESH_INFINITE: u64 = 0x7fff_ffff;
const OPTION_TIMESTAMPS: u8 = 1;
const OPTION_SACK: u8 = 2;
const OPTION_WINDOW_SCALE: u8 = 4;
const OPTION_ECN: u8 = 8;

/// Bytes in the order of the structure's members, in native byte order.
#[derive(Default)]
struct Layout(Vec<u8>);

impl Layout {
    fn bytes(&mut self, values: &[u8]) -> &mut Self {
        self.0.extend_from_slice(values);
        self
    }

    /// 32-bit members, saturating.
    fn words(&mut self, values: &[u64]) -> &mut Self {
        for value in values {
            let word = u32::try_from(*value).unwrap_or(u32::MAX);
            self.bytes(&word.to_ne_bytes());
        }
        self
    }

    fn longs(&mut self, values: &[u64]) -> &mut Self {
        for value in values {
            self.bytes(&value.to_ne_bytes());
        }
        self
    }
}

/// Snapshot of a connection of the target.
pub(crate) struct InfoSnapshot {
    pub(crate) info: Info,
    pub(crate) state: TcpState,
    /// Bytes posted and not acknowledged.
    pub(crate) outstanding: u64,
}

impl InfoSnapshot {
    /// Bytes sent and not acknowledged, including a FIN.
    pub(crate) fn in_flight(&self) -> u64 {
        let delegated = &self.state.delegated;
        u64::from(delegated.snd_max.0.wrapping_sub(delegated.snd_una.0))
    }

    /// Bytes posted and not sent.
    pub(crate) fn unsent(&self) -> u64 {
        self.outstanding.saturating_sub(self.in_flight())
    }
}

/// TCP_INFO of a connection.
pub(crate) fn tcp_info(status: &StreamStatus, snapshot: Option<&InfoSnapshot>) -> Vec<u8> {
    match snapshot {
        Some(snapshot) => of_target(snapshot),
        None => {
            // Established, CloseWait or Close: the states visible to the socket layer.
            let state = match (status.closed, status.connected, status.peer_closed) {
                (true, _, _) => 7,
                (false, false, _) => 2,
                (false, true, true) => 8,
                (false, true, false) => 1,
            };
            let mut layout = Layout::default();
            layout.bytes(&[state]).bytes(&[0; 279]);
            layout.0
        }
    }
}

fn of_target(snapshot: &InfoSnapshot) -> Vec<u8> {
    let InfoSnapshot { info, state, outstanding: _ } = snapshot;
    let (constant, delegated) = (&state.constant, &state.delegated);
    let mss = (info.snd_mss as u64).max(1);
    let agreed = [
        (constant.timestamp_enabled, OPTION_TIMESTAMPS),
        (constant.sack_enabled, OPTION_SACK),
        (constant.window_scaling_enabled, OPTION_WINDOW_SCALE),
        (info.ecn, OPTION_ECN),
    ];
    let options = agreed.iter().filter(|(agreed, _)| *agreed).fold(0, |all, (_, one)| all | one);
    let retransmit = delegated.retransmit.count;
    let mut layout = Layout::default();
    // state, ca_state, retransmits, probes, backoff, options, scales, flags
    let ca_state = info.ca_state as u8;
    layout.bytes(&[phase(info.phase), ca_state, retransmit, 0, retransmit, options]);
    layout.bytes(&[constant.snd_wind_scale | constant.rcv_wind_scale << 4, 0]);
    // rto, ato, snd_mss, rcv_mss
    layout.words(&[micros(Some(info.rto)), 0, mss, info.rcv_mss as u64]);
    // unacked, sacked, lost, retrans, fackets: Linux counts retransmitted segments as lost until they arrive.
    let lost = info.lost + info.retrans;
    layout.words(&[info.unacked, info.sacked, lost, info.retrans, 0]);
    // last_data_sent, last_ack_sent, last_data_recv, last_ack_recv
    layout.words(&[millis(info.last_data_sent), 0, millis(info.last_data_recv)]);
    layout.words(&[millis(info.last_ack_recv)]);
    // pmtu, rcv_ssthresh, rtt, rttvar
    layout.words(&[u64::from(info.pmtu), info.rcv_space, micros(info.rtt), micros(info.rttvar)]);
    // snd_ssthresh, snd_cwnd, advmss, reordering
    let ssthresh = info.snd_ssthresh.map_or(SSTHRESH_INFINITE, |bytes| bytes / mss);
    layout.words(&[ssthresh, info.snd_cwnd / mss, info.advmss as u64, 0]);
    // rcv_rtt, rcv_space, total_retrans
    layout.words(&[micros(info.rcv_rtt), info.rcv_space, info.total_retrans]);
    // pacing_rate, max_pacing_rate, bytes_acked, bytes_received
    let pacing_rate = info.pacing_rate.unwrap_or(0);
    layout.longs(&[pacing_rate, 0, info.bytes_acked, info.bytes_received]);
    // segs_out, segs_in, notsent_bytes, min_rtt, data_segs_in, data_segs_out
    let min_rtt = micros(info.min_rtt);
    layout.words(&[info.segs_out, info.segs_in, snapshot.unsent(), min_rtt, 0, 0]);
    // delivery_rate, busy_time, rwnd_limited, sndbuf_limited
    let (busy, limited) = (micros(Some(info.busy_time)), micros(Some(info.rwnd_limited)));
    layout.longs(&[0, busy, limited, 0]);
    // delivered, delivered_ce
    layout.words(&[info.bytes_delivered / mss, info.delivered_ce]);
    layout.longs(&[info.bytes_sent, info.bytes_retrans]);
    // dsack_dups, reord_seen, rcv_ooopack, snd_wnd, rcv_wnd, rehash
    layout.words(&[info.dsack_dups, info.reord_seen, 0, info.snd_wnd, info.rcv_wnd, 0]);
    // total_rto, total_rto_recoveries (16 bits each); total_rto_time, received_ce; seven more of accurate ECN
    let timeouts = u16::try_from(info.timeouts).unwrap_or(u16::MAX).to_ne_bytes();
    layout.bytes(&timeouts).bytes(&[0; 2]).words(&[0, info.ce_received]).words(&[0; 7]);
    layout.0
}

fn micros(time: Option<Duration>) -> u64 {
    time.map_or(0, |time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

fn millis(time: Option<Duration>) -> u64 {
    time.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// Linux' state numbers.
fn phase(phase: TcpPhase) -> u8 {
    match phase {
        TcpPhase::Established => 1,
        TcpPhase::FinWait1 => 4,
        TcpPhase::FinWait2 => 5,
        TcpPhase::TimeWait => 6,
        TcpPhase::Closed => 7,
        TcpPhase::CloseWait => 8,
        TcpPhase::LastAck => 9,
        TcpPhase::Closing => 11,
    }
}
