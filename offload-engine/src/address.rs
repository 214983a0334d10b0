//! Local addresses: address families of an unspecified address, overlap of two addresses, canonical form.
//!
//! The rules are those of Linux sockets (ip(7), ipv6(7)): `0.0.0.0` covers every IPv4 address, and `[::]` every IPv6
//! address. `[::]` covers every IPv4 address too, unless it is restricted to its family (IPV6_V6ONLY). An IPv4-mapped
//! IPv6 address (RFC 4291 §2.5.5.2) means the IPv4 address. A link-local address without a scope matches every scope.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Local address and port of a listener or of a bound endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LocalAddress {
    /// Address. An unspecified one covers all addresses of its families.
    pub address: SocketAddr,
    /// True if `[::]` covers IPv6 only. Ignored for any other address.
    pub v6_only: bool,
}

impl From<SocketAddr> for LocalAddress {
    fn from(address: SocketAddr) -> Self {
        Self { address, v6_only: false }
    }
}

impl LocalAddress {
    /// Returns true if this address accepts a connection to `address`.
    #[must_use]
    pub fn covers(&self, address: SocketAddr) -> bool {
        let own = self.address;
        if own.port() != address.port() {
            return false;
        }
        match (own.ip(), address.ip()) {
            (IpAddr::V4(ip), IpAddr::V4(_)) if ip.is_unspecified() => true,
            (IpAddr::V6(ip), other) if ip.is_unspecified() => other.is_ipv6() || !self.v6_only,
            (ip, other) => ip == other && scopes_match(own, address),
        }
    }

    /// Returns true if both accept some common address.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.covers(other.address) || other.covers(self.address)
    }
}

fn scope(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(address) => address.scope_id(),
    }
}

fn scopes_match(one: SocketAddr, other: SocketAddr) -> bool {
    let (one, other) = (scope(one), scope(other));
    one == other || one == 0 || other == 0
}

/// Returns the address in its canonical form: an IPv4-mapped one as IPv4, without flow information. The scope is kept.
#[must_use]
pub fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(mut v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(v4.into(), v6.port()),
            None => {
                v6.set_flowinfo(0);
                v6.into()
            }
        },
        SocketAddr::V4(_) => address,
    }
}

/// Returns the canonical form of `local` for a connection to `remote`. `[::]` covers IPv4 as well: toward an IPv4 peer
/// it means `0.0.0.0`.
#[must_use]
pub fn source_for(local: SocketAddr, remote: SocketAddr) -> SocketAddr {
    match (canonical(local), remote) {
        (SocketAddr::V6(local), SocketAddr::V4(_)) if local.ip().is_unspecified() => {
            SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), local.port())
        }
        (local, _) => local,
    }
}

/// Returns the address without its scope, for a stack with one link.
#[must_use]
pub fn unscoped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(text: &str) -> LocalAddress {
        let (text, v6_only) = text.strip_suffix(" only").map_or((text, false), |it| (it, true));
        LocalAddress { address: text.parse().unwrap(), v6_only }
    }

    #[test]
    fn unspecified_address_covers_its_families() {
        for (listener, address, expected) in [
            ("0.0.0.0:7", "10.0.0.1:7", true),
            ("0.0.0.0:7", "10.0.0.1:8", false),
            ("0.0.0.0:7", "[fd00::1]:7", false),
            ("[::]:7", "10.0.0.1:7", true),
            ("[::]:7", "[fd00::1]:7", true),
            ("[::]:7 only", "10.0.0.1:7", false),
            ("[::]:7 only", "[fd00::1]:7", true),
            ("10.0.0.1:7", "10.0.0.1:7", true),
            ("10.0.0.1:7", "10.0.0.2:7", false),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(local(listener).covers(address), expected, "{listener} {address}");
        }
    }

    #[test]
    fn overlap_is_symmetric_and_honors_family_and_scope() {
        for (one, other, expected) in [
            ("0.0.0.0:7", "[::]:7", true),
            ("0.0.0.0:7", "[::]:7 only", false),
            ("[::]:7 only", "[::]:7", true),
            ("[::]:7", "10.0.0.1:7", true),
            ("[::]:7 only", "10.0.0.1:7", false),
            ("0.0.0.0:7", "[fd00::1]:7", false),
            ("[fe80::1%2]:7", "[fe80::1%3]:7", false),
            ("[fe80::1%2]:7", "[fe80::1]:7", true),
            ("[::]:7 only", "[fe80::1%3]:7", true),
            ("0.0.0.0:7", "0.0.0.0:8", false),
        ] {
            let (one, other) = (local(one), local(other));
            assert_eq!(one.overlaps(&other), expected, "{one:?} {other:?}");
            assert_eq!(other.overlaps(&one), expected, "{other:?} {one:?}");
        }
    }

    #[test]
    fn mapped_address_becomes_ipv4() {
        for (given, expected) in [
            ("[::ffff:10.0.0.1]:7", "10.0.0.1:7"),
            ("[::ffff:0.0.0.0]:7", "0.0.0.0:7"),
            ("[::1]:7", "[::1]:7"),
            ("[fe80::1%3]:7", "[fe80::1%3]:7"),
            ("10.0.0.1:7", "10.0.0.1:7"),
        ] {
            let expected: SocketAddr = expected.parse().unwrap();
            assert_eq!(canonical(given.parse().unwrap()), expected, "{given}");
        }
        assert_eq!(unscoped("[fe80::1%3]:7".parse().unwrap()), "[fe80::1]:7".parse().unwrap());
    }
}
