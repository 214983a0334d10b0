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

/// Addresses of one host: smoltcp's table (`iface-max-addr-count-8`).
pub const ADDRESSES_MAX: usize = 8;
/// Smallest MTU, in bytes: IPv6 demands it of every link (RFC 8200 §5).
pub const MTU_MIN: usize = 1280;
/// Largest MTU, in bytes: the largest length of an IPv4 packet.
pub const MTU_MAX: usize = 65_535;
/// Smallest and largest socket buffers, in bytes. 1 GiB is the largest scaled window (RFC 7323 §2.3).
pub const BUFFER_RANGE: core::ops::RangeInclusive<usize> = 4096..=1 << 30;

/// How a host is set up.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Our Ethernet address; unicast.
    pub mac: MacAddress,
    /// Our addresses and their prefix lengths; at most [`ADDRESSES_MAX`], unicast.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Default gateways; the first of each family counts.
    pub gateways: Vec<IpAddr>,
    /// Largest IP packet in bytes, [`MTU_MIN`] to [`MTU_MAX`]; the link's counts if it is smaller.
    pub mtu: usize,
    /// Which connections are offloaded.
    pub policy: OffloadPolicy,
    /// When, and when they come back.
    pub rules: OffloadRules,
    /// ECN (RFC 3168) is offered by our SYNs, and accepted. smoltcp does not know of it: while a connection is
    /// in the host its data is not ECN-capable, but marks are echoed.
    pub ecn: bool,
    /// Bytes in one direction after which [`OffloadPolicy::Auto`] offloads a connection.
    pub auto_offload_bytes: u64,
    /// Whether the timestamps option is offered, and agreed to (RFC 7323 §3.2).
    pub timestamps: bool,
    /// Receive buffer of a connection in the host, in bytes, and the target's InitialRcvWnd.
    pub receive_buffer: usize,
    /// Bytes that a connection's receive window may grow to in the target; more than `receive_buffer`, or
    /// the buffer counts. It fixes the window scale for the connection's life: 4 MiB mean scale 7. The engine
    /// has a limit of its own ([`offload_engine::tcp::Config::rcv_wnd_max`]), and the smaller one counts.
    pub receive_window_max: usize,
    /// Send buffer of a connection in the host, in bytes.
    pub send_buffer: usize,
    /// How long a connection in the host that both sides have closed answers what comes late (RFC 9293 §3.6.1: 2 MSL).
    /// The target's counterpart is [`offload_engine::tcp::Config::time_wait`].
    pub time_wait: Duration,
    /// Seed of ISNs, ephemeral ports and the timestamp offset. Draw it from the OS outside of
    /// simulations: smoltcp's ISNs are only as unpredictable as it is.
    pub seed: u64,
    /// Secret key of the ISNs and SYN cookies of accepted connections, with `seed`. Draw it from the OS outside of
    /// simulations.
    pub isn_key: [u64; 2],
    /// The cached state of every connection that is offloaded (TCP_OFFLOAD_STATE_CACHED); `initial_rcv_wnd` is
    /// taken from `receive_buffer`. The host itself follows Nagle, keep-alive, TTL and `max_rt`.
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

/// A configuration that cannot work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Multicast, or all zero.
    #[error("{0} is not a unicast Ethernet address")]
    Mac(MacAddress),
    /// Not unicast, or a prefix longer than the address.
    #[error("{0}/{1} is not an address a host can have")]
    Address(IpAddr, u8),
    /// More than [`ADDRESSES_MAX`].
    #[error("{0} addresses; at most {ADDRESSES_MAX} are possible")]
    Addresses(usize),
    /// Not unicast, or not on a link of ours (IPv6 link-local addresses are).
    #[error("{0} cannot be a gateway")]
    Gateway(IpAddr),
    /// Outside of [`MTU_MIN`] to [`MTU_MAX`].
    #[error("MTU {0} is outside of {MTU_MIN} to {MTU_MAX}")]
    Mtu(usize),
    /// Outside of [`BUFFER_RANGE`].
    #[error("a buffer of {0} bytes is outside of 4 KiB to 1 GiB")]
    Buffer(usize),
    /// Larger than a scaled window can be.
    #[error("a receive window of {0} bytes is larger than 1 GiB")]
    ReceiveWindow(usize),
    /// 0 would never leave the machine (RFC 1122 §3.2.1.7).
    #[error("TTL 0")]
    Ttl,
    /// No engine, or shards whose ports do not share one allocator of names.
    #[error("a host stack has at least one engine, and its clients one allocator of names")]
    Shards,
}

impl HostConfig {
    /// A host with one address, on a subnet of /24 or /64.
    pub fn new(mac: MacAddress, address: IpAddr) -> Self {
        let prefix = if address.is_ipv4() { 24 } else { 64 };
        Self { mac, addresses: Vec::from([(address, prefix)]), ..Self::default() }
    }

    /// Returns whether a connection is offloaded as soon as it is established because its client wants it
    /// ([`OffloadPolicy::Auto`]).
    pub(super) fn wants(&self, at_once: bool, tuple: &FlowKey) -> bool {
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

    /// Whether `address` can be reached: on a link of ours, or through a gateway of its family.
    pub(super) fn has_route(&self, address: IpAddr) -> bool {
        self.next_hop(address).is_some()
            && self.addresses.iter().any(|(own, _)| own.is_ipv4() == address.is_ipv4())
    }

    /// The next hop of a packet to `address`.
    pub(super) fn next_hop(&self, address: IpAddr) -> Option<IpAddr> {
        if self.on_link(address) {
            return Some(address);
        }
        self.gateways.iter().copied().find(|gateway| gateway.is_ipv4() == address.is_ipv4())
    }

    /// The same for the peer of a received packet: one without a route is its own next hop.
    pub(super) fn hop_back(&self, peer: IpAddr) -> IpAddr {
        self.next_hop(peer).unwrap_or(peer)
    }

    fn on_link(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|&(own, prefix)| shares_prefix(own, address, prefix))
    }

    /// Whether a connection can be made to this address: to one station, on a port (RFC 9293 MUST-46). IPv6 packets
    /// do not carry mapped IPv4 addresses (RFC 4291 §2.5.5.2).
    pub(super) fn is_reachable(&self, remote: SocketAddr) -> bool {
        let address = remote.ip();
        let is_mapped = address.to_canonical() != address;
        remote.port() != 0 && is_unicast(address) && !is_mapped && !self.is_broadcast(address)
    }

    /// Whether `address` means every station of a subnet of ours (RFC 1122 §3.2.1.3; RFC 3021: not with
    /// 31 bits of prefix).
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

    /// Time without an answer after which a connection in the host is given up; `None`: never.
    pub(super) fn retransmission_max(&self) -> Option<Duration> {
        match self.tcp.max_rt {
            Some(0) => Some(RETRANSMISSION_MAX),
            Some(ticks) => Some(Duration::from_millis(u64::from(ticks))),
            None => None,
        }
    }

    /// How much larger the scale of windows is on the wire than smoltcp's.
    pub(super) fn scale_raise(&self) -> u8 {
        let smoltcp = scale_of_buffer(self.receive_buffer);
        scale_for(self.receive_window_max).saturating_sub(smoltcp)
    }

    /// The host's part of the state of a connection, whose client wants this keep-alive.
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
    /// Frames sent down.
    pub frames_out: u64,
    /// Received TCP segments with a wrong checksum, dropped.
    pub checksum_errors: u64,
    /// Received IP fragments, dropped.
    pub fragments_dropped: u64,
    /// SYNs that arrived when the listener's backlog, or [`super::CONNECTIONS_MAX`], was reached.
    pub listen_overflows: u64,
    /// SYNs that were answered by a cookie.
    pub cookies_sent: u64,
    /// Connections that were opened by a cookie; part of `passive_opens`.
    pub cookies_accepted: u64,
    /// SYNs dropped because their connection exists.
    pub duplicate_syns: u64,
    /// Connections opened by us.
    pub active_opens: u64,
    /// Connections accepted.
    pub passive_opens: u64,
    /// Handshakes that failed.
    pub attempt_fails: u64,
    /// Hand-overs begun.
    pub initiates: u64,
    /// Hand-overs that the target has refused.
    pub initiates_refused: u64,
    /// Hand-overs that the host has refused because socket and wire did not agree.
    pub exports_refused: u64,
    /// Connections that came back from the target into smoltcp, refused ones among them.
    pub imports: u64,
    /// Uploads begun.
    pub terminates: u64,
    /// Connections that came back from the target after it had had them, and were not over.
    pub uploads: u64,
    /// Connections that came back from the target in TIME-WAIT, with nothing left to be delivered.
    pub time_waits: u64,
    /// Times that the target has asked for an upload.
    pub retrieves: u64,
    /// Such requests that the policy has not followed.
    pub retrieves_ignored: u64,
    /// Updates of cached variables that were sent to the target.
    pub updates: u64,
    /// Connections lost on the way: their state could not be taken out or put back.
    pub handoffs_lost: u64,
    /// Frames of offloaded connections handed on to the target (CH-FWD-2).
    pub forwards: u64,
    /// Frames dropped because too many were held for a connection whose initiate was not complete.
    pub forwards_dropped: u64,
}
