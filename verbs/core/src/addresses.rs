//! Addresses that identifiers can have, and the device's identity that follows from them: on kernel sockets those of
//! this machine, on a node its own.

use std::{
    fmt, fs,
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    path::Path,
    str::FromStr,
};

use flue_node::NodeOptions;

use rustix::net::{
    AddressFamily, SocketAddrAny, SocketFlags, SocketType, bind, connect, getsockname, ipproto,
    socket_with, sockopt,
};

use crate::errno::Errno;

fn family(of: SocketAddr) -> AddressFamily {
    if of.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

fn address(found: SocketAddrAny) -> Result<SocketAddr, Errno> {
    Ok(SocketAddr::try_from(found)?)
}

/// Takes a port of the machine's without listening: nobody else gets it, but for sockets that share it with this one,
/// as a listener and a connection of the adapter do. Returns it with the whole address.
///
/// # Errors
/// `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES`.
pub fn reserve(at: SocketAddr, is_family_only: bool) -> Result<(OwnedFd, SocketAddr), Errno> {
    let socket =
        socket_with(family(at), SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if at.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, is_family_only)?;
    }
    bind(&socket, &at)?;
    let local = address(getsockname(&socket)?)?;
    Ok((socket, local))
}

/// The local address from which the kernel reaches `remote`, with port 0.
///
/// # Errors
/// `ENETUNREACH`, `EHOSTUNREACH`: there is no route; `EADDRNOTAVAIL`: `from` is not an address of this machine.
pub fn source_of(remote: SocketAddr, from: Option<IpAddr>) -> Result<SocketAddr, Errno> {
    let socket = socket_with(family(remote), SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    if let Some(from) = from {
        bind(&socket, &SocketAddr::new(from, 0))?;
    }
    // Some port: nothing is sent.
    let target = SocketAddr::new(remote.ip(), remote.port().max(1));
    connect(&socket, &target)?;
    let mut local = address(getsockname(&socket)?)?;
    local.set_port(0);
    Ok(local)
}

/// An interface of this machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Its hardware address.
    pub mac: [u8; 6],
    /// Bytes of its largest IP packet.
    pub mtu: u32,
}

/// `aa:bb:cc:dd:ee:ff`.
fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut octets = text.trim().split(':').map(|octet| u8::from_str_radix(octet, 16));
    let mut mac = [0; 6];
    for octet in &mut mac {
        *octet = octets.next()?.ok()?;
    }
    octets.next().is_none().then_some(mac)
}

fn interface(directory: &Path) -> Option<Interface> {
    let read = |file: &str| fs::read_to_string(directory.join(file)).ok();
    Some(Interface {
        name: directory.file_name()?.to_str()?.to_owned(),
        index: read("ifindex")?.trim().parse().ok()?,
        mac: read("address").as_deref().and_then(parse_mac).unwrap_or_default(),
        mtu: read("mtu")?.trim().parse().ok()?,
    })
}

/// Bit of an interface's flags: up.
const UP: u32 = 1;
/// Bit of an interface's flags: loopback.
const LOOPBACK: u32 = 8;

/// The interface that gives the device its identity: the first that is up, loopback if there is no other.
#[must_use]
pub fn interface_of_device() -> Interface {
    let Ok(entries) = fs::read_dir("/sys/class/net") else { return Interface::default() };
    let mut found: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let path = entry.path();
            let flags = fs::read_to_string(path.join("flags")).ok()?;
            let flags = u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).ok()?;
            let interface = interface(&path)?;
            (flags & UP != 0).then_some((flags & LOOPBACK != 0, interface.index, interface))
        })
        .collect();
    found.sort_by_key(|(is_loopback, index, _)| (*is_loopback, *index));
    found.into_iter().next().map(|(.., interface)| interface).unwrap_or_default()
}

/// The node that gives the device its identity: it has no interface of this machine.
#[must_use]
pub fn interface_of_node(node: &NodeOptions) -> Interface {
    let mac = node.mac().octets();
    Interface { name: node.tap.clone(), index: 0, mac, mtu: node.mtu_bytes.into() }
}

/// The address of a node from which it reaches `remote`, with port 0.
///
/// # Errors
/// `EHOSTUNREACH`: it is the node itself, or a loopback address: a node has no connections with itself. `ENETUNREACH`:
/// there is no route. `EADDRNOTAVAIL`: `from` is not an address of the node.
pub fn source_on_node(
    node: &NodeOptions,
    remote: SocketAddr,
    from: Option<IpAddr>,
) -> Result<SocketAddr, Errno> {
    let to = remote.ip();
    if to.is_loopback() || is_of_node(node, to) {
        return Err(Errno::HOSTUNREACH);
    }
    let same_family = |ip: IpAddr| ip.is_ipv4() == to.is_ipv4();
    let on_link = node.addresses.iter().find(|prefix| prefix.contains(to));
    let has_gateway = node.gateways.iter().any(|gateway| same_family(*gateway));
    let routed = node.addresses.iter().find(|own| has_gateway && same_family(own.address()));
    let source = on_link.or(routed).ok_or(Errno::NETUNREACH)?.address();
    match from {
        Some(from) if !is_of_node(node, from) => Err(Errno::ADDRNOTAVAIL),
        from => Ok(SocketAddr::new(from.unwrap_or(source), 0)),
    }
}

/// What a program means that binds to `at` on a node: a loopback address is the first of the node's of that family.
/// libfabric looks for devices so.
#[must_use]
pub fn at_node(node: &NodeOptions, at: SocketAddr) -> SocketAddr {
    let mut own = node.addresses.iter().map(|own| own.address());
    match at.ip().is_loopback() {
        true => {
            let first = own.find(|own| own.is_ipv4() == at.is_ipv4());
            SocketAddr::new(first.unwrap_or_else(|| at.ip()), at.port())
        }
        false => at,
    }
}

/// Whether it is an address of the node.
#[must_use]
pub fn is_of_node(node: &NodeOptions, ip: IpAddr) -> bool {
    node.addresses.iter().any(|own| own.address() == ip)
}

/// An address of the kernel that stands for one of a node, for programs that use both worlds under one name: they are
/// told the kernel's, and meet the node's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The kernel's, as the program says and sees it.
    pub host: IpAddr,
    /// The node's.
    pub node: IpAddr,
}

impl FromStr for Mapping {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('=').and_then(|(host, node)| {
            Some(Self { host: host.parse().ok()?, node: node.parse().ok()? })
        });
        let mapping = parsed.ok_or("not HOST=NODE, two IP addresses")?;
        let Self { host, node } = mapping;
        if host.is_ipv4() != node.is_ipv4() {
            return Err("an IPv4 and an IPv6 address".into());
        }
        if host.is_unspecified() || node.is_unspecified() {
            return Err("an unspecified address stands for all; it cannot be mapped".into());
        }
        Ok(mapping)
    }
}

impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.host, self.node)
    }
}

/// The identifier of a node: EUI-64 of a hardware address.
#[must_use]
pub const fn eui64(mac: [u8; 6]) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac;
    [a ^ 2, b, c, 0xff, 0xfe, d, e, f]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_addresses() {
        assert_eq!(parse_mac("52:54:00:12:34:56\n"), Some([0x52, 0x54, 0, 0x12, 0x34, 0x56]));
        assert_eq!(parse_mac("52:54:00:12:34"), None);
        assert_eq!(parse_mac("52:54:00:12:34:56:78"), None);
        assert_eq!(parse_mac("-"), None);
        let guid = eui64([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
        assert_eq!(guid, [0x50, 0x54, 0, 0xff, 0xfe, 0x12, 0x34, 0x56]);
    }

    // A port that is reserved is taken for those that do not share, and free for those that do.
    #[test]
    fn reserved_ports() {
        let (_kept, local) = reserve("127.0.0.1:0".parse().unwrap(), false).unwrap();
        assert_ne!(local.port(), 0);
        let stranger = std::net::UdpSocket::bind(local);
        assert!(stranger.is_ok(), "another protocol's ports are others");
        let again = reserve(local, false).unwrap();
        assert_eq!(again.1, local);
        let foreign = reserve("192.0.2.1:0".parse().unwrap(), false);
        assert_eq!(foreign.map(|_| ()), Err(Errno::ADDRNOTAVAIL));
    }

    #[test]
    fn sources_of_nodes() {
        let node = |gateways: &[&str]| NodeOptions {
            addresses: ["10.0.0.1/24", "10.1.0.1/24", "fd00::1/64"]
                .map(|it| it.parse().unwrap())
                .into(),
            gateways: gateways.iter().map(|it| it.parse().unwrap()).collect(),
            ..NodeOptions::default()
        };
        let source = |gateways: &[&str], remote: &str, from: Option<&str>| {
            let from = from.map(|from| from.parse().unwrap());
            let found =
                source_on_node(&node(gateways), SocketAddr::new(remote.parse().unwrap(), 7), from);
            found.map(|found| found.to_string())
        };
        assert_eq!(source(&[], "10.1.0.9", None).as_deref(), Ok("10.1.0.1:0"));
        assert_eq!(source(&[], "fd00::9", None).as_deref(), Ok("[fd00::1]:0"));
        assert_eq!(source(&[], "10.1.0.9", Some("10.0.0.1")).as_deref(), Ok("10.0.0.1:0"));
        assert_eq!(source(&[], "10.1.0.9", Some("10.0.0.2")), Err(Errno::ADDRNOTAVAIL));
        assert_eq!(source(&[], "192.0.2.1", None), Err(Errno::NETUNREACH));
        assert_eq!(source(&["10.0.0.254"], "192.0.2.1", None).as_deref(), Ok("10.0.0.1:0"));
        assert_eq!(source(&["10.0.0.254"], "2001:db8::1", None), Err(Errno::NETUNREACH));
        let at = |text: &str| at_node(&node(&[]), text.parse().unwrap()).to_string();
        assert_eq!(
            ["127.0.0.1:7", "[::1]:8", "10.9.9.9:9"].map(at),
            ["10.0.0.1:7", "[fd00::1]:8", "10.9.9.9:9"]
        );
        for itself in ["10.0.0.1", "127.0.0.1", "::1", "fd00::1"] {
            assert_eq!(source(&["10.0.0.254"], itself, None), Err(Errno::HOSTUNREACH), "{itself}");
        }
    }

    #[test]
    fn mappings() {
        let mapping: Mapping = "127.0.0.1=10.9.0.1".parse().unwrap();
        assert_eq!(mapping.to_string(), "127.0.0.1=10.9.0.1");
        for wrong in ["", "127.0.0.1", "127.0.0.1=x", "::1=10.9.0.1", "0.0.0.0=10.9.0.1"] {
            assert!(wrong.parse::<Mapping>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn sources() {
        let source = source_of("127.0.0.1:7".parse().unwrap(), None).unwrap();
        assert_eq!(source, "127.0.0.1:0".parse().unwrap());
        let source =
            source_of("127.0.0.1:0".parse().unwrap(), Some([127, 0, 0, 9].into())).unwrap();
        assert_eq!(source, "127.0.0.9:0".parse().unwrap());
    }
}
