//! Host addresses on the command line: IP addresses, link-local ones with a scope.

use std::{
    fmt,
    net::{IpAddr, SocketAddr, SocketAddrV6},
    str::FromStr,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice::name_to_index, socket_with};

use crate::{adapter::Transport, failure::Failure};

/// IP address with an optional scope: `10.0.0.1`, `fd00::1`, `fe80::1%eth0`, `fe80::1%3`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostAddress {
    /// IP address. An IPv4-mapped one is stored as IPv4.
    pub ip: IpAddr,
    /// Name or index of an interface.
    scope: Option<String>,
}

impl HostAddress {
    /// Returns the address with a port. A node has one link, so a scope is accepted and has no effect.
    ///
    /// # Errors
    /// [`Failure::usage`]: on kernel sockets, a scope that is not an interface.
    pub fn at(&self, port: u16, transport: Transport) -> Result<SocketAddr, Failure> {
        match (self.ip, &self.scope) {
            (IpAddr::V6(ip), Some(scope)) if transport == Transport::Kernel => {
                let index = scope.parse().ok().or_else(|| index_of(scope));
                let index = index.ok_or_else(|| {
                    Failure::usage(format!("{self}: interface {scope} not found"))
                })?;
                Ok(SocketAddrV6::new(ip, port, 0, index).into())
            }
            (ip, _) => Ok(SocketAddr::new(ip, port)),
        }
    }
}

fn index_of(interface: &str) -> Option<u32> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None).ok()?;
    name_to_index(&socket, interface).ok()
}

impl From<IpAddr> for HostAddress {
    fn from(ip: IpAddr) -> Self {
        Self { ip: ip.to_canonical(), scope: None }
    }
}

impl FromStr for HostAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, scope) = match text.split_once('%') {
            Some((address, scope)) => (address, Some(scope)),
            None => (text, None),
        };
        let ip: IpAddr = address.parse().map_err(|_| {
            String::from("expected an IP address, such as 10.77.0.2, fd00::2 or fe80::2%eth0")
        })?;
        let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        match scope {
            Some("") => Err("no interface after %".into()),
            Some(_) if !is_link_local => {
                Err("a scope requires a link-local address (fe80::)".into())
            }
            scope => Ok(Self { ip: ip.to_canonical(), scope: scope.map(str::to_owned) }),
        }
    }
}

impl fmt::Display for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.scope {
            Some(scope) => write!(f, "{}%{scope}", self.ip),
            None => write!(f, "{}", self.ip),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str, transport: Transport) -> Result<String, String> {
        let host: HostAddress = text.parse()?;
        let address = host.at(7, transport).map_err(|failure| failure.to_string())?;
        Ok(address.to_string())
    }

    #[test]
    fn scope_is_resolved_on_kernel_sockets_and_dropped_on_a_node() {
        let ok = |text: &str| Ok(text.to_owned());
        assert_eq!(at("fe80::1%3", Transport::Kernel), ok("[fe80::1%3]:7"));
        assert_eq!(at("fe80::1%lo", Transport::Kernel), ok("[fe80::1%1]:7"));
        assert_eq!(at("fe80::1%lo", Transport::Tap), ok("[fe80::1]:7"));
        assert_eq!(at("fe80::1%none0", Transport::Tap), ok("[fe80::1]:7"));
        let unknown = at("fe80::1%none0", Transport::Kernel).unwrap_err();
        assert!(unknown.contains("interface none0 not found"), "{unknown}");
    }

    #[test]
    fn mapped_address_is_ipv4() {
        for transport in [Transport::Tap, Transport::Kernel] {
            assert_eq!(at("::ffff:10.0.0.1", transport), Ok("10.0.0.1:7".into()));
        }
    }

    #[test]
    fn other_text_is_rejected() {
        for text in ["", "host", "10.0.0.1%lo", "fd00::1%lo", "fe80::1%", "10.0.0.1:7"] {
            assert!(text.parse::<HostAddress>().is_err(), "{text}");
        }
        assert_eq!("fe80::1%eth0".parse::<HostAddress>().unwrap().to_string(), "fe80::1%eth0");
    }
}
