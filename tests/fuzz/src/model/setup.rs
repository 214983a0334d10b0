//! Initial connection of a run.

use std::{collections::HashSet, net::Ipv4Addr};

use flue_test_support::ranges::Ranges;
use offload_engine::{
    state::{ConnectionState, TcpConst, TcpDelegated},
    tcp::{Config, CongestionAlgorithm, CongestionOptions, Connection, PushPolicy, SeqNum},
    time::Instant,
};

use super::{AllowedOutcomes, Requests, Summary, World};
use crate::script::Setup;

/// MSS of both directions.
const MSS: [u16; 6] = [1460, 1460, 536, 8960, 100, 64];
/// Size of the largest receive window in bytes; it keeps the final phase short.
const RECEIVE_WINDOW_MAX: u32 = 200_000;
/// Path MTU without headers.
const PATH_PAYLOAD: usize = 8_960;
/// Start time of a run.
const START: Instant = Instant::from_millis(1_000);

pub(super) fn config(setup: &Setup) -> Config {
    Config {
        push: if setup.push_at_end { PushPolicy::QueueEmpty } else { PushPolicy::EachList },
        congestion: if setup.unlimited {
            CongestionAlgorithm::Unlimited
        } else if setup.newreno {
            CongestionAlgorithm::NewReno
        } else {
            CongestionAlgorithm::Cubic
        },
        // Autotuned, with a limit that keeps the final phase short.
        rcv_wnd_max: 2 * RECEIVE_WINDOW_MAX,
        congestion_options: CongestionOptions {
            pacing: setup.pacing,
            ..CongestionOptions::default()
        },
        ..Config::default()
    }
}

impl World {
    pub(super) fn new(setup: &Setup) -> Self {
        // Whole units of the scale, as the handshake's windows have.
        let unscale = |bytes: u32| (bytes >> setup.scale << setup.scale).max(1 << setup.scale);
        let receive = u32::from(setup.receive_window) << setup.scale;
        let receive = unscale(receive.min(RECEIVE_WINDOW_MAX));
        let send = unscale(u32::from(setup.send_window) << setup.scale);
        let clock = setup.remote_isn.rotate_left(7);
        let state = state(setup, receive, send, clock);
        let tcp = Connection::from_state(START, Box::new(state), PATH_PAYLOAD, config(setup))
            .unwrap_or_else(|(error, _)| panic!("{error}: {setup:?}"));
        Self {
            tcp,
            setup: *setup,
            now: START,
            summary: Summary::default(),
            end: None,
            allowed_outcomes: AllowedOutcomes::default(),
            delivered: 0,
            edge: u64::from(receive),
            sent: Ranges::default(),
            sacked: Ranges::default(),
            highest: 0,
            fin: None,
            peer_closed: false,
            accept_limit: None,
            requests: Requests::default(),
            una: 0,
            snd_max: 0,
            wnd: u64::from(send),
            fin_sent: false,
            progress_at: START,
            newest: (0, 0),
            wnd_max: u64::from(send),
            clock,
            jumped: false,
            marked: false,
            stamps: HashSet::from([clock]),
            our_stamp: None,
        }
    }

    /// Full segment size of both directions.
    pub(super) fn mss(&self) -> usize {
        self.tcp.effective_mss()
    }
}

fn state(setup: &Setup, receive: u32, send: u32, clock: u32) -> ConnectionState {
    let mss = MSS[usize::from(setup.mss) % MSS.len()];
    let seqs = (SeqNum(setup.local_isn), SeqNum(setup.remote_isn));
    let [local, remote] = [2, 1].map(|port| (Ipv4Addr::LOCALHOST, port).into());
    let mut state = ConnectionState::established(local, remote, seqs, receive);
    state.path.cached.path_mtu = 9_000;
    state.tcp.constant = TcpConst {
        timestamp_enabled: setup.timestamps,
        sack_enabled: setup.sack,
        ecn_enabled: setup.ecn,
        window_scaling_enabled: true,
        snd_wind_scale: setup.scale,
        rcv_wind_scale: setup.scale,
        remote_mss: mss,
        local_mss: mss,
        ..state.tcp.constant
    };
    state.tcp.cached.nagling_enabled = setup.nagle;
    state.tcp.delegated = TcpDelegated {
        snd_wnd: send,
        max_snd_wnd: send,
        ts_recent: clock,
        ts_time: setup.local_isn.rotate_left(9),
        ..state.tcp.delegated
    };
    state
}
