//! Established connection as offloaded by a host.

use std::net::Ipv4Addr;

use offload_engine::{
    state::{ConnectionState, TcpConst},
    tcp::SeqNum,
};

/// Negotiated options, the same in both directions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) sack: bool,
    pub(crate) timestamps: bool,
    /// Payload bytes of a segment, including options.
    pub(crate) mss: u16,
    pub(crate) scale: u8,
    /// Window in bytes.
    pub(crate) window: u32,
}

/// Creates an established connection before its first segment.
pub(crate) fn state(shape: Shape, local: SeqNum, remote: SeqNum) -> ConnectionState {
    let Shape { sack, timestamps, mss, scale, window } = shape;
    let [ours, theirs] = [2, 1].map(|port| (Ipv4Addr::LOCALHOST, port).into());
    let mut state = ConnectionState::established(ours, theirs, (local, remote), window);
    state.tcp.constant = TcpConst {
        timestamp_enabled: timestamps,
        sack_enabled: sack,
        window_scaling_enabled: true,
        snd_wind_scale: scale,
        rcv_wind_scale: scale,
        remote_mss: mss,
        local_mss: mss,
        ..state.tcp.constant
    };
    state
}
