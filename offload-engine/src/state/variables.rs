//! Every variable of a TCP object, by name: what tests of hand-overs compare.

use alloc::{format, string::String, vec::Vec};

use super::{TcpCached, TcpConst, TcpDelegated, TcpState, TimerState};

/// Which class a variable is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    Const,
    Cached,
    Delegated,
}

pub(crate) type Variables = Vec<(&'static str, Class, String)>;

/// Takes `$value` apart exhaustively and lists its members: one that is forgotten does not compile. A member after the
/// semicolon is left for the caller.
macro_rules! list {
    ($all:expr, $class:expr, $value:expr, $type:ident { $($name:ident),* $(; $($left:ident),*)? }) => {
        let $type { $($name,)* $($($left,)*)? } = $value;
        $($all.push((stringify!($name), $class, format!("{:?}", $name)));)*
    };
}

pub(crate) use list;

/// The variables of a TCP object.
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
