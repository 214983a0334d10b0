//! Ethernet, IP and TCP headers: flow of a received frame, and headers of sent frames.
//!
//! [`classify`] demultiplexes between the two stacks: it finds TCP over plain IPv4 or IPv6. All other frames are for
//! the host (CH §9.1): ARP, ICMP, fragments, IPv4 options, IPv6 extension headers, stacked VLAN tags, and malformed
//! frames. The host uses [`parse`], which skips options and extension headers. [`classify_icmp`] finds the host's
//! frames that report an error about a sent segment, and [`classify_fragment`] those that are fragments of one.
//! [`HeaderTemplate`] stores the prepared headers of one connection, so that a segment costs a copy of about 70 bytes
//! and a few stores.

mod classify;
mod icmp;
mod options;
mod template;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub use self::{
    classify::{NoSegment, SACK_BLOCKS_MAX, TcpFrame, Vlan, classify, classify_fragment, parse},
    icmp::{IcmpError, classify_icmp},
    options::{IllegalLength, SackBlocks, TcpOption, TcpOptions},
    template::{HEADER_BYTES_MAX, HeaderTemplate},
};
pub use crate::segment::SegmentHeader;

/// Addresses and ports of a TCP connection as seen from this node. IPv4 addresses are stored v4-mapped.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowKey {
    local_address: [u8; 16],
    remote_address: [u8; 16],
    local_port: u16,
    remote_port: u16,
}

const fn mapped(address: [u8; 4]) -> [u8; 16] {
    let [a, b, c, d] = address;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

/// True for an IPv4-mapped address (RFC 4291 §2.5.5.2).
fn is_mapped(address: &[u8; 16]) -> bool {
    address[..12] == mapped([0; 4])[..12]
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => mapped(v4.octets()),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn address(octets: [u8; 16]) -> IpAddr {
    let v6 = Ipv6Addr::from(octets);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), |v4: Ipv4Addr| IpAddr::V4(v4))
}

impl FlowKey {
    /// Creates the flow between two addresses of one family.
    pub fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        Self {
            local_address: octets(local.ip()),
            remote_address: octets(remote.ip()),
            local_port: local.port(),
            remote_port: remote.port(),
        }
    }

    /// Returns the local address and port.
    pub fn local(&self) -> SocketAddr {
        SocketAddr::new(address(self.local_address), self.local_port)
    }

    /// True if the addresses are IPv6.
    pub fn is_ipv6(&self) -> bool {
        !is_mapped(&self.local_address)
    }

    /// Returns the flow as seen from the peer.
    #[must_use]
    pub const fn reversed(&self) -> Self {
        Self {
            local_address: self.remote_address,
            remote_address: self.local_address,
            local_port: self.remote_port,
            remote_port: self.local_port,
        }
    }

    /// Returns the remote address and port.
    pub fn remote(&self) -> SocketAddr {
        SocketAddr::new(address(self.remote_address), self.remote_port)
    }
}

impl core::fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} <- {}", self.local(), self.remote())
    }
}

#[cfg(test)]
mod tests;
