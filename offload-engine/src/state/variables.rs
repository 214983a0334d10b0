//! Names and values of all variables of a TCP object, for comparisons in tests of migrations.

use alloc::{format, string::String, vec, vec::Vec};

use super::{TcpCached, TcpConst, TcpDelegated, TcpPhase, TcpState, TimerState};
use crate::segment::SeqNum;

/// Class of a variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    Const,
    Cached,
    Delegated,
}

pub(crate) type Variables = Vec<(&'static str, Class, String)>;

/// Destructures `$value` exhaustively and lists its members: a forgotten one does not compile. Members after the
/// semicolon are left to the caller.
macro_rules! list {
    ($all:expr, $class:expr, $value:expr, $type:ident { $($name:ident),* $(; $($left:ident),*)? }) => {
        let $type { $($name,)* $($($left,)*)? } = $value;
        $($all.push((stringify!($name), $class, format!("{:?}", $name)));)*
    };
}

pub(crate) use list;

/// Returns the variables of a TCP object.
pub(crate) fn tcp_variables(state: &TcpState) -> Variables {
    let TcpState { constant, cached, delegated } = *state;
    let mut all = Vec::new();
    list!(
        all,
        Class::Const,
        constant,
        TcpConst {
            timestamp_enabled,
            sack_enabled,
            window_scaling_enabled,
            remote_port,
            local_port,
            snd_wind_scale,
            rcv_wind_scale,
            remote_mss,
            local_mss,
            hash_value,
            ecn_enabled
        }
    );
    list!(
        all,
        Class::Cached,
        cached,
        TcpCached {
            keep_alive_enabled,
            nagling_enabled,
            initial_rcv_wnd,
            rcv_indication_size,
            ka_probe_count,
            ka_timeout,
            ka_interval,
            max_rt,
            flow_label,
            ttl_or_hop_limit,
            tos_or_traffic_class,
            user_priority
        }
    );
    list!(all, Class::Delegated, delegated, TcpDelegated {
        state, rcv_nxt, rcv_wnd, snd_una, snd_nxt, snd_max, snd_wnd, max_snd_wnd, snd_wl1, cwnd, ss_thresh, srtt,
        rtt_var, ts_recent, ts_recent_age, ts_time, total_rt, dup_ack_count, snd_wnd_probe_count, ecn_echo;
        keep_alive, retransmit
    });
    let timers = [
        (keep_alive, ["keep_alive_count", "keep_alive_timeout"]),
        (retransmit, ["retransmit_count", "retransmit_timeout"]),
    ];
    for (TimerState { count, timeout_delta }, [name, due]) in timers {
        all.push((name, Class::Delegated, format!("{count:?}")));
        all.push((due, Class::Delegated, format!("{timeout_delta:?}")));
    }
    all
}

/// Returns the names of the variables whose values differ.
pub(crate) fn differing(old: &Variables, new: &Variables) -> Vec<&'static str> {
    let pairs = old.iter().zip(new);
    pairs.filter(|(old, new)| old != new).map(|(_, new)| new.0).collect()
}

/// Returns a connection with data in flight, some of it to be retransmitted, all timers running, and no variable at its
/// default.
pub(crate) fn busy(tcp: TcpState) -> TcpState {
    let TcpState { constant, cached, delegated } = tcp;
    TcpState {
        constant: TcpConst {
            timestamp_enabled: true,
            sack_enabled: true,
            window_scaling_enabled: true,
            snd_wind_scale: 7,
            rcv_wind_scale: 6,
            ecn_enabled: true,
            ..constant
        },
        cached: TcpCached { keep_alive_enabled: true, ..cached },
        delegated: TcpDelegated {
            snd_nxt: delegated.snd_una + 600,
            snd_max: delegated.snd_una + 800,
            cwnd: 40_000,
            ss_thresh: 30_000,
            srtt: 800,
            rtt_var: 100,
            ts_recent: 5,
            ts_recent_age: 20,
            ts_time: 77,
            total_rt: 900,
            dup_ack_count: 1,
            keep_alive: TimerState { count: 1, timeout_delta: Some(3_000) },
            retransmit: TimerState { count: 2, timeout_delta: Some(400) },
            ..delegated
        },
    }
}

/// Names of variables, and a function that changes them.
pub(crate) type Change<T> = (&'static [&'static str], fn(&mut T));

/// Changes of a [`busy`] state, for each member by name. Members that depend on each other change together.
pub(crate) fn tcp_changes() -> Vec<Change<TcpState>> {
    vec![
        (&["timestamp_enabled"], |s| s.constant.timestamp_enabled = false),
        (&["sack_enabled"], |s| s.constant.sack_enabled = false),
        (&["window_scaling_enabled", "snd_wind_scale", "rcv_wind_scale"], |s| {
            s.constant.window_scaling_enabled = false;
            (s.constant.snd_wind_scale, s.constant.rcv_wind_scale) = (0, 0);
        }),
        (&["remote_port"], |s| s.constant.remote_port = 99),
        (&["local_port"], |s| s.constant.local_port = 99),
        (&["snd_wind_scale"], |s| s.constant.snd_wind_scale = 14),
        (&["rcv_wind_scale"], |s| s.constant.rcv_wind_scale = 14),
        (&["remote_mss"], |s| s.constant.remote_mss = 999),
        (&["local_mss"], |s| s.constant.local_mss = 999),
        (&["hash_value"], |s| s.constant.hash_value = 99),
        (&["ecn_enabled"], |s| s.constant.ecn_enabled = false),
        (&["keep_alive_enabled"], |s| s.cached.keep_alive_enabled = false),
        (&["nagling_enabled"], |s| s.cached.nagling_enabled = true),
        (&["initial_rcv_wnd"], |s| s.cached.initial_rcv_wnd = 99),
        (&["rcv_indication_size"], |s| s.cached.rcv_indication_size = 99),
        (&["ka_probe_count"], |s| s.cached.ka_probe_count = 99),
        (&["ka_timeout"], |s| s.cached.ka_timeout = 99),
        (&["ka_interval"], |s| s.cached.ka_interval = 99),
        (&["max_rt"], |s| s.cached.max_rt = None),
        (&["max_rt"], |s| s.cached.max_rt = Some(99_999)),
        (&["flow_label"], |s| s.cached.flow_label = 0xf_ffff),
        (&["ttl_or_hop_limit"], |s| s.cached.ttl_or_hop_limit = 99),
        (&["tos_or_traffic_class"], |s| s.cached.tos_or_traffic_class = 99),
        (&["user_priority"], |s| s.cached.user_priority = 7),
        (&["state"], |s| s.delegated.state = TcpPhase::CloseWait),
        (&["state"], |s| s.delegated.state = TcpPhase::FinWait1),
        (&["state"], |s| s.delegated.state = TcpPhase::Closing),
        (&["state"], |s| s.delegated.state = TcpPhase::LastAck),
        (&["rcv_nxt"], |s| s.delegated.rcv_nxt = SeqNum(u32::MAX)),
        (&["rcv_wnd"], |s| s.delegated.rcv_wnd = 1_000_000),
        (&["rcv_wnd"], |s| s.delegated.rcv_wnd = 0),
        (&["snd_una", "snd_nxt", "snd_max"], |s| {
            let d = &mut s.delegated;
            (d.snd_una, d.snd_nxt, d.snd_max) = (SeqNum(u32::MAX - 9), SeqNum(590), SeqNum(790));
        }),
        (&["snd_nxt"], |s| s.delegated.snd_nxt += 1),
        (&["snd_max"], |s| s.delegated.snd_max += 200),
        (&["snd_wnd"], |s| s.delegated.snd_wnd = 800),
        (&["max_snd_wnd"], |s| s.delegated.max_snd_wnd = 1 << 30),
        (&["snd_wl1"], |s| s.delegated.snd_wl1 = s.delegated.rcv_nxt - 3),
        (&["cwnd"], |s| s.delegated.cwnd = 1_500),
        (&["ss_thresh"], |s| s.delegated.ss_thresh = u32::MAX),
        (&["srtt"], |s| s.delegated.srtt = u16::MAX),
        (&["srtt", "rtt_var"], |s| (s.delegated.srtt, s.delegated.rtt_var) = (0, 0)),
        (&["rtt_var"], |s| s.delegated.rtt_var = 1),
        (&["ts_recent"], |s| s.delegated.ts_recent = u32::MAX),
        (&["ts_recent_age"], |s| s.delegated.ts_recent_age = 999),
        (&["ts_time"], |s| s.delegated.ts_time = u32::MAX),
        (&["total_rt"], |s| s.delegated.total_rt = 99_999),
        (&["dup_ack_count"], |s| s.delegated.dup_ack_count = 2),
        (&["snd_wnd", "snd_wnd_probe_count", "retransmit_count", "retransmit_timeout"], |s| {
            let d = &mut s.delegated;
            (d.snd_wnd, d.snd_wnd_probe_count) = (0, 9);
            d.retransmit = TimerState { count: 4, timeout_delta: Some(0) };
        }),
        (&["keep_alive_count"], |s| s.delegated.keep_alive.count = 9),
        (&["keep_alive_timeout"], |s| s.delegated.keep_alive.timeout_delta = Some(0)),
        (&["keep_alive_enabled", "keep_alive_count", "keep_alive_timeout"], |s| {
            s.cached.keep_alive_enabled = false;
            s.delegated.keep_alive = TimerState::default();
        }),
        (&["retransmit_count"], |s| s.delegated.retransmit.count = 14),
        (&["retransmit_timeout"], |s| s.delegated.retransmit.timeout_delta = Some(0)),
        (&["ecn_echo"], |s| s.delegated.ecn_echo = true),
    ]
}
