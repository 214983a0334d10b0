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

macro_rules! list {
    ($all:ident, $class:expr, $($name:ident),*) => {
        $($all.push((stringify!($name), $class, format!("{:?}", $name)));)*
    };
}

pub(crate) use list;

/// The variables of a TCP object. Taken apart exhaustively: one that is forgotten does not compile.
pub(crate) fn tcp_variables(state: &TcpState) -> Variables {
    let TcpState { constant, cached, delegated } = *state;
    let mut all = Vec::new();
    list_const(constant, &mut all);
    list_cached(cached, &mut all);
    list_delegated(delegated, &mut all);
    all
}

fn list_const(constant: TcpConst, all: &mut Variables) {
    let TcpConst {
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
        ecn_enabled,
    } = constant;
    list!(all, Class::Const, timestamp_enabled, sack_enabled, window_scaling_enabled);
    list!(all, Class::Const, remote_port, local_port, snd_wind_scale, rcv_wind_scale);
    list!(all, Class::Const, remote_mss, local_mss, hash_value, ecn_enabled);
}

fn list_cached(cached: TcpCached, all: &mut Variables) {
    let TcpCached {
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
        user_priority,
    } = cached;
    list!(all, Class::Cached, keep_alive_enabled, nagling_enabled, initial_rcv_wnd);
    list!(all, Class::Cached, rcv_indication_size, ka_probe_count, ka_timeout, ka_interval);
    list!(all, Class::Cached, max_rt, flow_label, ttl_or_hop_limit, tos_or_traffic_class);
    list!(all, Class::Cached, user_priority);
}

fn list_delegated(delegated: TcpDelegated, all: &mut Variables) {
    let TcpDelegated {
        state,
        rcv_nxt,
        rcv_wnd,
        snd_una,
        snd_nxt,
        snd_max,
        snd_wnd,
        max_snd_wnd,
        snd_wl1,
        cwnd,
        ss_thresh,
        srtt,
        rtt_var,
        ts_recent,
        ts_recent_age,
        ts_time,
        total_rt,
        dup_ack_count,
        snd_wnd_probe_count,
        keep_alive,
        retransmit,
        ecn_echo,
    } = delegated;
    let TimerState { count: keep_alive_count, timeout_delta: keep_alive_timeout } = keep_alive;
    let TimerState { count: retransmit_count, timeout_delta: retransmit_timeout } = retransmit;
    list!(all, Class::Delegated, state, rcv_nxt, rcv_wnd, snd_una, snd_nxt, snd_max, snd_wnd);
    list!(all, Class::Delegated, max_snd_wnd, snd_wl1, cwnd, ss_thresh, srtt, rtt_var);
    list!(all, Class::Delegated, ts_recent, ts_recent_age, ts_time, total_rt, dup_ack_count);
    list!(all, Class::Delegated, snd_wnd_probe_count, keep_alive_count, keep_alive_timeout);
    list!(all, Class::Delegated, retransmit_count, retransmit_timeout, ecn_echo);
}
