//! Translation of addresses and ports between program and adapter.
//!
//! An address of the program is translated once, at the call, to its canonical form ([`canonical`]). The [`View`]
//! records the form that the program gave. The program then gets addresses in its own family and with its own port.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use offload_engine::address::canonical;
use serde::{Deserialize, Serialize};

/// Mapping of a kernel address to a node address, for programs that use both networks under one name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AddressMapping {
    /// Kernel address, which the program uses.
    pub host: IpAddr,
    /// Node address.
    pub node: IpAddr,
}

impl FromStr for AddressMapping {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('=').and_then(|(host, node)| {
            Some(Self { host: host.parse().ok()?, node: node.parse().ok()? })
        });
        let mapping = parsed.ok_or("expected HOST=NODE, two IP addresses")?;
        let Self { host, node } = mapping;
        if host.is_ipv4() != node.is_ipv4() {
            return Err("an IPv4 and an IPv6 address: expected the same family".into());
        }
        if host.is_unspecified() || node.is_unspecified() {
            return Err("unspecified address: expected one address of a host".into());
        }
        Ok(mapping)
    }
}

impl fmt::Display for AddressMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.host, self.node)
    }
}

/// Mapping of a port to another RDMA port, for programs that use one port number for TCP and RDMA.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PortMapping {
    /// Address that the mapping is limited to. `None`: any.
    pub host: Option<IpAddr>,
    /// Port that the program uses.
    pub port: u16,
    /// Port that the adapter uses.
    pub rdma_port: u16,
}

impl PortMapping {
    fn applies_to(&self, ip: IpAddr, port: u16) -> bool {
        self.port == port && self.host.is_none_or(|host| host == ip)
    }

    /// Returns true if both mappings translate the same port of the program, or translate to the same port of the
    /// adapter.
    #[must_use]
    pub fn conflicts_with(&self, other: &Self) -> bool {
        let is_same_host = self.host == other.host;
        let may_meet = is_same_host || self.host.is_none() || other.host.is_none();
        is_same_host && self.port == other.port || may_meet && self.rdma_port == other.rdma_port
    }
}

impl FromStr for PortMapping {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected =
            || String::from("expected [HOST:]PORT=PORT, such as 3260=3261 or 10.0.0.1:3260=3261");
        let (from, to) = text.split_once('=').ok_or_else(expected)?;
        let rdma_port: u16 = to.parse().map_err(|_| expected())?;
        let (host, port) = match from.parse::<u16>() {
            Ok(port) => (None, port),
            Err(_) => {
                let host: SocketAddr = from.parse().map_err(|_| expected())?;
                (Some(canonical(host).ip()), host.port())
            }
        };
        if port == 0 || rdma_port == 0 {
            return Err("port 0: expected 1..=65535".into());
        }
        Ok(Self { host, port, rdma_port })
    }
}

impl fmt::Display for PortMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, rdma_port } = self;
        match host {
            Some(host) => write!(f, "{}={rdma_port}", SocketAddr::new(*host, *port)),
            None => write!(f, "{port}={rdma_port}"),
        }
    }
}

/// Form of an address for the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct View {
    /// True if an IPv4 address is reported as an IPv4-mapped IPv6 address.
    pub is_mapped: bool,
    /// Port of the program, if it is mapped.
    pub port: Option<u16>,
}

/// Translation between addresses of the program and of the adapter.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AddressMap {
    /// Address mappings.
    pub addresses: Vec<AddressMapping>,
    /// Port mappings; those with a host have precedence.
    pub ports: Vec<PortMapping>,
}

impl AddressMap {
    /// Translates an address of the program to that of the adapter, and returns the program's view of it.
    #[must_use]
    pub fn translate(&self, given: SocketAddr) -> (SocketAddr, View) {
        let mut address = canonical(given);
        let is_mapped = given.is_ipv6() && address.is_ipv4();
        let (ip, port) = (address.ip(), address.port());
        let found = self.ports.iter().filter(|it| it.applies_to(ip, port));
        let found = found.max_by_key(|it| it.host.is_some());
        if let Some(mapping) = found {
            address.set_port(mapping.rdma_port);
        }
        if let Some(mapping) = self.addresses.iter().find(|it| it.host == ip) {
            address.set_ip(mapping.node);
        }
        (address, View { is_mapped, port: found.map(|_| port) })
    }

    /// Translates an address of the adapter to the address that is reported to the program.
    #[must_use]
    pub fn shown(&self, mut address: SocketAddr, view: View) -> SocketAddr {
        if let Some(mapping) = self.addresses.iter().find(|it| it.node == address.ip()) {
            address.set_ip(mapping.host);
        }
        if let Some(port) = view.port {
            address.set_port(port);
        }
        match address.ip() {
            IpAddr::V4(ip) if view.is_mapped => {
                SocketAddr::new(ip.to_ipv6_mapped().into(), address.port())
            }
            _ => address,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapping_without_two_addresses_of_one_family_is_refused() {
        let mapping: AddressMapping = "127.0.0.1=10.9.0.1".parse().unwrap();
        assert_eq!(mapping.to_string(), "127.0.0.1=10.9.0.1");
        for wrong in ["", "127.0.0.1", "127.0.0.1=x", "::1=10.9.0.1", "0.0.0.0=10.9.0.1"] {
            assert!(wrong.parse::<AddressMapping>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn port_mapping_is_parsed_and_shown() {
        for text in ["3260=3261", "10.0.0.1:3260=3261", "[fd00::1]:3260=3261"] {
            assert_eq!(text.parse::<PortMapping>().unwrap().to_string(), text);
        }
        for wrong in ["", "3260", "3260=", "=3261", "0=3261", "3260=0", "3260=65536", "x:1=2"] {
            assert!(wrong.parse::<PortMapping>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn port_mappings_that_meet_conflict() {
        let conflict = |one: &str, other: &str| {
            let [one, other] = [one, other].map(|it| it.parse::<PortMapping>().unwrap());
            assert_eq!(one.conflicts_with(&other), other.conflicts_with(&one));
            one.conflicts_with(&other)
        };
        assert!(conflict("1=2", "1=3"));
        assert!(conflict("1=3", "2=3"));
        assert!(conflict("10.0.0.1:1=3", "2=3"));
        assert!(!conflict("10.0.0.1:1=3", "1=4"));
        assert!(!conflict("10.0.0.1:1=3", "10.0.0.2:1=3"));
    }

    fn map() -> AddressMap {
        AddressMap {
            addresses: vec!["127.0.0.1=10.9.0.1".parse().unwrap()],
            ports: ["3260=3261", "10.0.0.1:3260=3262"].map(|it| it.parse().unwrap()).into(),
        }
    }

    #[test]
    fn translated_address_is_shown_as_given() {
        for (given, expected) in [
            ("127.0.0.1:7", "10.9.0.1:7"),
            ("127.0.0.1:3260", "10.9.0.1:3261"),
            ("[::ffff:127.0.0.1]:3260", "10.9.0.1:3261"),
            ("[::ffff:192.0.2.1]:7", "192.0.2.1:7"),
            ("10.0.0.1:3260", "10.0.0.1:3262"),
            ("[::]:3260", "[::]:3261"),
            ("[fe80::1%3]:3260", "[fe80::1%3]:3261"),
        ] {
            let given: SocketAddr = given.parse().unwrap();
            let (address, view) = map().translate(given);
            assert_eq!(address, expected.parse().unwrap(), "{given}");
            assert_eq!(map().shown(address, view), given);
        }
    }

    #[test]
    fn port_that_the_program_did_not_give_is_shown_as_it_is() {
        let peer = "10.9.0.2:3261".parse().unwrap();
        assert_eq!(map().shown(peer, View::default()), peer);
    }
}
