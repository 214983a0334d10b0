//! Configuration and counters of a host.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use offload_engine::{
    frame::FlowKey,
    state::{KeepAlive, MacAddress, TcpCached},
    time::Duration,
};
use smoltcp::iface::Interface;

use super::RETRANSMISSION_MAX;
use crate::{
    offload_policy::OffloadRules,
    socket::{AUTO_OFFLOAD_BYTES, OffloadPolicy},
    window::{scale_for, scale_of_buffer},
};

/// Maximum number of addresses of one host: smoltcp's table (`iface-max-addr-count-8`).
pub const ADDRESSES_MAX: usize = 8;
/// Smallest MTU, in bytes: required by IPv6 of every link (RFC 8200 §5).
pub const MTU_MIN: usize = 1280;
/// Largest MTU, in bytes: the largest length of an IPv4 packet.
pub const MTU_MAX: usize = 65_535;
/// Smallest and largest socket buffers, in bytes. 1 GiB is the largest scaled window (RFC 7323 §2.3).
pub const BUFFER_RANGE: core::ops::RangeInclusive<usize> = 4096..=1 << 30;

/// Configuration of a host.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Our Ethernet address; unicast.
    pub mac: MacAddress,
    /// Our addresses and their prefix lengths; at most [`ADDRESSES_MAX`], unicast.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Default gateways; the first of each family is used.
    pub gateways: Vec<IpAddr>,
    /// Largest IP packet in bytes, [`MTU_MIN`] to [`MTU_MAX`]. A smaller MTU of the link takes precedence.
    pub mtu: usize,
    /// Selection of offloaded connections.
    pub policy: OffloadPolicy,
    /// Timing of offloads and uploads.
    pub rules: OffloadRules,
    /// True if our SYNs offer ECN (RFC 3168), and offers are accepted. smoltcp does not support it: data of a
    /// connection in the host are not ECN-capable, but marks are echoed.
    pub ecn: bool,
    /// Bytes in one direction after which [`OffloadPolicy::Auto`] offloads a connection.
    pub auto_offload_bytes: u64,
    /// True if the timestamps option is offered and accepted (RFC 7323 §3.2).
    pub timestamps: bool,
    /// Receive buffer of a connection in the host, in bytes, and the target's InitialRcvWnd.
    pub receive_buffer: usize,
    /// Maximum receive window of an offloaded connection, in bytes; `receive_buffer` if that is larger. It fixes the
    /// window scale for the connection's life: 4 MiB require scale 7. The engine has its own limit
    /// ([`offload_engine::tcp::Config::rcv_wnd_max`]); the smaller one applies.
    pub receive_window_max: usize,
    /// Send buffer of a connection in the host, in bytes.
    pub send_buffer: usize,
    /// Time for which a connection in the host that both sides have closed answers late segments (RFC 9293 §3.6.1: 2
    /// MSL). The target's counterpart is [`offload_engine::tcp::Config::time_wait`].
    pub time_wait: Duration,
    /// Seed of ISNs, ephemeral ports and the timestamp offset. Draw it from the OS except in simulations: smoltcp's
    /// ISNs are only as unpredictable as the seed.
    pub seed: u64,
    /// Secret key of the ISNs and SYN cookies of accepted connections, with `seed`. Draw it from the OS except in
    /// simulations.
    pub isn_key: [u64; 2],
    /// Cached state of every offloaded connection (TCP_OFFLOAD_STATE_CACHED); `initial_rcv_wnd` is set from
    /// `receive_buffer`. The host itself applies Nagle, keep-alive, TTL and `max_rt`.
    pub tcp: TcpCached,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            mac: MacAddress([0x02, 0, 0, 0, 0, 1]),
            addresses: Vec::new(),
            gateways: Vec::new(),
            mtu: 1500,
            policy: OffloadPolicy::default(),
            rules: OffloadRules::default(),
            ecn: false,
            auto_offload_bytes: AUTO_OFFLOAD_BYTES,
            timestamps: true,
            receive_buffer: 256 * 1024,
            receive_window_max: 4 * 1024 * 1024,
            send_buffer: 256 * 1024,
            time_wait: Duration::from_secs(60),
            seed: 0,
            isn_key: [0; 2],
            tcp: TcpCached::default(),
        }
    }
}

/// Invalid configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Multicast, or all zero.
    #[error("MAC address {0}: expected a unicast address")]
    Mac(MacAddress),
    /// Not unicast, or a prefix longer than the address.
    #[error("address {0}/{1}: expected a unicast address with its prefix length")]
    Address(IpAddr, u8),
    /// More than [`ADDRESSES_MAX`].
    #[error("{0} addresses: expected at most {ADDRESSES_MAX}")]
    Addresses(usize),
    /// Not unicast, or not on-link (IPv6 link-local addresses are).
    #[error("gateway {0}: expected a unicast address on the link")]
    Gateway(IpAddr),
    /// Outside of [`MTU_MIN`] to [`MTU_MAX`].
    #[error("MTU {0}: expected {MTU_MIN} to {MTU_MAX} bytes")]
    Mtu(usize),
    /// Outside of [`BUFFER_RANGE`].
    #[error("buffer of {0} bytes: expected 4 KiB to 1 GiB")]
    Buffer(usize),
    /// Larger than the maximum scaled window.
    #[error("receive window of {0} bytes: expected at most 1 GiB")]
    ReceiveWindow(usize),
    /// A TTL of 0 is not sent (RFC 1122 §3.2.1.7).
    #[error("TTL 0: expected 1 to 255")]
    Ttl,
    /// No engine, or shards whose ports do not share one ID allocator.
    #[error("engines: expected at least one, and one allocator of names for all clients")]
    Shards,
}

impl HostConfig {
    /// Creates a configuration with one address, on a subnet of /24 or /64.
    pub fn new(mac: MacAddress, address: IpAddr) -> Self {
        let prefix = if address.is_ipv4() { 24 } else { 64 };
        Self { mac, addresses: Vec::from([(address, prefix)]), ..Self::default() }
    }

    /// True if the client's request offloads a connection as soon as it is established ([`OffloadPolicy::Auto`]).
    pub(super) fn offloads_immediately(&self, at_once: bool, tuple: &FlowKey) -> bool {
        let (local, remote) = (tuple.local().port(), tuple.remote().port());
        at_once && self.policy == OffloadPolicy::Auto && self.rules.covers(local, remote)
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.mac.0[0] & 1 != 0 || self.mac == MacAddress::default() {
            return Err(ConfigError::Mac(self.mac));
        }
        if self.addresses.len() > ADDRESSES_MAX {
            return Err(ConfigError::Addresses(self.addresses.len()));
        }
        for &(address, prefix) in &self.addresses {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            if !is_unicast(address) || prefix > bits {
                return Err(ConfigError::Address(address, prefix));
            }
        }
        let cannot_be = |gateway: &&IpAddr| {
            let local = matches!(gateway, IpAddr::V6(v6) if v6.is_unicast_link_local());
            !is_unicast(**gateway) || !(local || self.on_link(**gateway))
        };
        if let Some(&gateway) = self.gateways.iter().find(cannot_be) {
            return Err(ConfigError::Gateway(gateway));
        }
        if !(MTU_MIN..=MTU_MAX).contains(&self.mtu) {
            return Err(ConfigError::Mtu(self.mtu));
        }
        for buffer in [self.receive_buffer, self.send_buffer] {
            if !BUFFER_RANGE.contains(&buffer) {
                return Err(ConfigError::Buffer(buffer));
            }
        }
        if self.receive_window_max > *BUFFER_RANGE.end() {
            return Err(ConfigError::ReceiveWindow(self.receive_window_max));
        }
        if self.tcp.ttl_or_hop_limit == 0 {
            return Err(ConfigError::Ttl);
        }
        Ok(())
    }

    pub(super) fn add_routes(&self, interface: &mut Interface) {
        let routes = interface.routes_mut();
        for gateway in self.gateways.iter().rev() {
            // Each call replaces the family's default route, so the table never fills up.
            let _ = match gateway {
                IpAddr::V4(gateway) => routes.add_default_ipv4_route(*gateway),
                IpAddr::V6(gateway) => routes.add_default_ipv6_route(*gateway),
            };
        }
    }

    /// True if `address` is reachable: on-link, or through a gateway of its family.
    pub(super) fn has_route(&self, address: IpAddr) -> bool {
        self.next_hop(address).is_some()
            && self.addresses.iter().any(|(own, _)| own.is_ipv4() == address.is_ipv4())
    }

    /// Next hop of a packet to `address`.
    pub(super) fn next_hop(&self, address: IpAddr) -> Option<IpAddr> {
        if self.on_link(address) {
            return Some(address);
        }
        self.gateways.iter().copied().find(|gateway| gateway.is_ipv4() == address.is_ipv4())
    }

    /// Next hop to the peer of a received packet. A peer without a route is its own next hop.
    pub(super) fn reply_hop(&self, peer: IpAddr) -> IpAddr {
        self.next_hop(peer).unwrap_or(peer)
    }

    fn on_link(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|&(own, prefix)| shares_prefix(own, address, prefix))
    }

    /// True if a connection to this address is possible: a unicast address and a port (RFC 9293 MUST-46). IPv6 packets
    /// do not carry mapped IPv4 addresses (RFC 4291 §2.5.5.2).
    pub(super) fn is_reachable(&self, remote: SocketAddr) -> bool {
        let address = remote.ip();
        let is_mapped = address.to_canonical() != address;
        remote.port() != 0 && is_unicast(address) && !is_mapped && !self.is_broadcast(address)
    }

    /// True if `address` is the broadcast address of a connected subnet (RFC 1122 §3.2.1.3; RFC 3021: not with a prefix
    /// of 31 bits).
    fn is_broadcast(&self, address: IpAddr) -> bool {
        let IpAddr::V4(address) = address else { return false };
        self.addresses.iter().any(|&(own, prefix)| {
            let host_bits = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
            prefix < 31
                && shares_prefix(own, address.into(), prefix)
                && address.to_bits() & host_bits == host_bits
        })
    }

    pub(super) fn is_ours(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|(own, _)| *own == address)
    }

    /// Time without an answer after which a connection in the host is aborted; `None`: never.
    pub(super) fn retransmission_max(&self) -> Option<Duration> {
        match self.tcp.max_rt {
            Some(0) => Some(RETRANSMISSION_MAX),
            Some(ticks) => Some(Duration::from_millis(u64::from(ticks))),
            None => None,
        }
    }

    /// Difference between the window scale on the wire and smoltcp's.
    pub(super) fn scale_raise(&self) -> u8 {
        let smoltcp = scale_of_buffer(self.receive_buffer);
        scale_for(self.receive_window_max).saturating_sub(smoltcp)
    }

    /// Host-owned state of a connection whose client has set this keep-alive.
    pub(super) fn cached(&self, keep_alive: Option<KeepAlive>) -> TcpCached {
        let own = TcpCached {
            initial_rcv_wnd: u32::try_from(self.receive_buffer).unwrap_or(u32::MAX),
            ..self.tcp
        };
        own.or_kept_alive(keep_alive)
    }
}

fn is_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_multicast() && !v4.is_broadcast() && !v4.is_unspecified(),
        IpAddr::V6(v6) => !v6.is_multicast() && !v6.is_unspecified(),
    }
}

fn shares_prefix(own: IpAddr, other: IpAddr, prefix: u8) -> bool {
    let prefix = u32::from(prefix);
    match (own, other) {
        (IpAddr::V4(own), IpAddr::V4(other)) => {
            let differing = own.to_bits() ^ other.to_bits();
            differing.checked_shr(32 - prefix).unwrap_or(0) == 0
        }
        (IpAddr::V6(own), IpAddr::V6(other)) => {
            let differing = own.to_bits() ^ other.to_bits();
            differing.checked_shr(128 - prefix).unwrap_or(0) == 0
        }
        _ => false,
    }
}

/// Counters of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct HostStats {
    /// Frames taken from the engine.
    pub frames_in: u64,
    /// Frames sent to the engine.
    pub frames_out: u64,
    /// Received TCP segments with a wrong checksum, dropped.
    pub checksum_errors: u64,
    /// Received IP fragments, dropped.
    pub fragments_dropped: u64,
    /// SYNs that arrived when the listener's backlog, or [`super::CONNECTIONS_MAX`], was full.
    pub listen_overflows: u64,
    /// SYNs answered with a cookie.
    pub cookies_sent: u64,
    /// Connections opened by a cookie; part of `passive_opens`.
    pub cookies_accepted: u64,
    /// SYNs dropped because their connection exists.
    pub duplicate_syns: u64,
    /// Datagrams delivered to clients.
    pub datagrams_in: u64,
    /// Datagrams of clients that were sent, or wait for the Ethernet address of the next hop.
    pub datagrams_out: u64,
    /// Datagrams of clients that were dropped: no route, longer than the path MTU, or the next hop does not answer.
    pub datagrams_out_dropped: u64,
    /// Connections opened by this node.
    pub active_opens: u64,
    /// Connections accepted.
    pub passive_opens: u64,
    /// Handshakes that failed.
    pub attempt_fails: u64,
    /// Initiates begun.
    pub initiates: u64,
    /// Initiates refused by the target.
    pub initiates_refused: u64,
    /// Offloads refused by the host because socket and wire disagreed.
    pub exports_refused: u64,
    /// Connections imported into smoltcp, refused ones included.
    pub imports: u64,
    /// Terminates begun.
    pub terminates: u64,
    /// Connections uploaded from the target that were not closed.
    pub uploads: u64,
    /// Connections uploaded in TIME-WAIT, with no data to deliver.
    pub time_waits: u64,
    /// Uploads requested by the target.
    pub retrieves: u64,
    /// Requested uploads that the policy has ignored.
    pub retrieves_ignored: u64,
    /// Updates of cached variables sent to the target.
    pub updates: u64,
    /// Connections lost in transition: the export or import of their state failed.
    pub handoffs_lost: u64,
    /// Frames of offloaded connections forwarded to the target (CH-FWD-2).
    pub forwards: u64,
    /// Frames dropped because too many were held for a connection with an outstanding initiate.
    pub forwards_dropped: u64,
}
