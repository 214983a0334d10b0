//! Addresses: local sources, port reservations, identity of the device. On kernel sockets those of this machine, on a
//! node its own.

mod listeners;

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    path::Path,
};

use flue_adapter::NodeOptions;
use offload_engine::{
    address::{LocalAddress, unscoped},
    state::MacAddress,
};
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketFlags, SocketType, bind, connect, getsockname, ipproto,
    netdevice::name_to_index, socket_with, sockopt,
};

use crate::errno::Errno;

fn family(of: SocketAddr) -> AddressFamily {
    if of.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

fn address(found: SocketAddrAny) -> Result<SocketAddr, Errno> {
    Ok(SocketAddr::try_from(found)?)
}

/// Addresses that connections of a device can have.
#[derive(Debug)]
pub enum Addresses {
    /// Addresses of this machine.
    Machine,
    /// Addresses of a node.
    Node(Box<NodeOptions>),
}

impl Addresses {
    /// Returns the options of the node. `None`: the addresses are those of this machine.
    pub fn node(&self) -> Option<&NodeOptions> {
        match self {
            Self::Machine => None,
            Self::Node(node) => Some(node),
        }
    }

    /// Returns the scope of link-local addresses without one. 0: none.
    pub(crate) fn scope(&self) -> u32 {
        self.node().map_or(0, scope_of_node)
    }

    /// Returns the address in the form of the adapter. On a node, which has one link, the scope is removed.
    pub(crate) fn of_adapter(&self, address: SocketAddr) -> SocketAddr {
        match self {
            Self::Machine => address,
            Self::Node(_) => unscoped(address),
        }
    }

    /// Reserves a port without listening. On a node, port 0 is returned unchanged: the caller chooses one.
    ///
    /// # Errors
    /// As [`reserve`]; `EADDRNOTAVAIL`: not an address of the node.
    pub(crate) fn reserve(
        &self,
        at: LocalAddress,
    ) -> Result<(Option<OwnedFd>, LocalAddress), Errno> {
        let v6_only = at.v6_only;
        match self {
            Self::Machine => {
                let (reservation, address) = reserve(at)?;
                Ok((Some(reservation), LocalAddress { address, v6_only }))
            }
            Self::Node(node) => {
                let address = at_node(node, at.address);
                let is_own = address.ip().is_unspecified() || is_of_node(node, address.ip());
                if !is_own {
                    return Err(Errno::ADDRNOTAVAIL);
                }
                Ok((None, LocalAddress { address, v6_only }))
            }
        }
    }

    /// Returns the local address for connections to `remote`, with port 0.
    ///
    /// # Errors
    /// As [`source_of`] and [`source_on_node`].
    pub(crate) fn source_of(
        &self,
        remote: SocketAddr,
        from: Option<SocketAddr>,
    ) -> Result<SocketAddr, Errno> {
        match self {
            Self::Machine => source_of(remote, from),
            Self::Node(node) => source_on_node(node, remote, from),
        }
    }

    /// Logs the cause of a failed bind or listen if a TCP listener of this program has the port. Ports of a node are
    /// independent of those of the kernel.
    pub(crate) fn log_port_in_use(&self, at: SocketAddr) {
        let port = at.port();
        if matches!(self, Self::Machine) && listeners::has_listener(port) {
            tracing::error!(
                "bind to {at}: address in use: this program has a TCP listener on port {port}: use another RDMA port, \
                 flue run --port-map {port}=PORT"
            );
        }
    }
}

/// Reserves a port of the machine without listening, for sockets that share it: a listener and connections of the
/// adapter. Returns the socket and the complete address.
///
/// # Errors
/// `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES`.
fn reserve(at: LocalAddress) -> Result<(OwnedFd, SocketAddr), Errno> {
    let LocalAddress { address: at, v6_only } = at;
    let socket =
        socket_with(family(at), SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if at.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, v6_only)?;
    }
    bind(&socket, &at)?;
    let local = address(getsockname(&socket)?)?;
    Ok((socket, local))
}

/// Returns the local address from which the kernel reaches `remote`, with port 0, and with the scope if it is
/// link-local.
///
/// # Errors
/// `ENETUNREACH`, `EHOSTUNREACH`: no route. `EADDRNOTAVAIL`: `from` is not an address of this machine. `EINVAL`: a
/// link-local address without a scope, or scopes of two interfaces.
fn source_of(remote: SocketAddr, from: Option<SocketAddr>) -> Result<SocketAddr, Errno> {
    let socket = socket_with(family(remote), SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    if let Some(mut from) = from {
        from.set_port(0);
        bind(&socket, &from)?;
    }
    // Any port will do, since nothing is sent.
    let mut target = remote;
    target.set_port(remote.port().max(1));
    connect(&socket, &target)?;
    let mut local = address(getsockname(&socket)?)?;
    local.set_port(0);
    Ok(local)
}

fn is_link_local(address: SocketAddr) -> bool {
    matches!(address.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Returns the scope of an address. 0: none.
pub(crate) fn scope(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(address) => address.scope_id(),
    }
}

/// Returns the address, with this scope if it is link-local and has none.
pub(crate) fn with_scope(address: SocketAddr, scope: u32) -> SocketAddr {
    match address {
        SocketAddr::V6(mut v6) if is_link_local(address) && v6.scope_id() == 0 => {
            v6.set_scope_id(scope);
            v6.into()
        }
        _ => address,
    }
}

/// Returns the scope of a node's link-local addresses: the index of its TAP, or 0 if that is in another network
/// namespace.
pub(crate) fn scope_of_node(node: &NodeOptions) -> u32 {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None);
    socket.and_then(|socket| name_to_index(&socket, &node.tap)).unwrap_or(0)
}

/// Network interface.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Interface {
    /// Name.
    pub name: String,
    /// Index.
    pub index: u32,
    /// Hardware address.
    pub mac: MacAddress,
    /// MTU in bytes.
    pub mtu: u32,
    /// Speed in Mbit/s; `None`: unknown.
    pub mbps: Option<u32>,
}

fn interface(directory: &Path) -> Option<Interface> {
    let read = |file: &str| fs::read_to_string(directory.join(file)).ok();
    Some(Interface {
        name: directory.file_name()?.to_str()?.to_owned(),
        index: read("ifindex")?.trim().parse().ok()?,
        mac: read("address").and_then(|text| text.trim().parse().ok()).unwrap_or_default(),
        mtu: read("mtu")?.trim().parse().ok()?,
        // Links without a speed report -1, or an error.
        mbps: read("speed").and_then(|text| text.trim().parse().ok()).filter(|mbps| *mbps > 0),
    })
}

/// Interface flag IFF_UP.
const UP: u32 = 1;
/// Interface flag IFF_LOOPBACK.
const LOOPBACK: u32 = 8;

/// Returns the interface whose identity the device has: the first that is up, or loopback if there is no other.
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

/// MTU of an interface whose MTU cannot be read, in bytes.
const MTU_DEFAULT: u32 = 1500;

/// Returns the interface with this name. Without sysfs, only its name is known.
pub(crate) fn interface_named(name: &str) -> Interface {
    let directory = Path::new("/sys/class/net").join(name);
    interface(&directory).unwrap_or_else(|| Interface {
        name: name.into(),
        mtu: MTU_DEFAULT,
        ..Interface::default()
    })
}

/// Returns the address from which the default route leaves; `None`: no such route.
pub(crate) fn default_source() -> Option<IpAddr> {
    // An address of the documentation, to which nothing is sent.
    let outside = SocketAddr::from(([192, 0, 2, 1], 9));
    source_of(outside, None).ok().map(|source| source.ip())
}

/// Returns the identity that the device has on a node, which has no interface of this machine.
#[must_use]
pub fn interface_of_node(node: &NodeOptions) -> Interface {
    let mac = node.mac();
    let mtu = node.mtu_bytes.into();
    Interface { name: node.tap.clone(), index: 0, mac, mtu, mbps: None }
}

/// Returns the address of a node for connections to `remote`, with port 0.
///
/// # Errors
/// `EHOSTUNREACH`: `remote` is the node itself or a loopback address; a node has no connections with itself.
/// `ENETUNREACH`: no route, as for a link-local address outside of the prefixes. `EADDRNOTAVAIL`: `from` is not an
/// address of the node.
fn source_on_node(
    node: &NodeOptions,
    remote: SocketAddr,
    from: Option<SocketAddr>,
) -> Result<SocketAddr, Errno> {
    let from = from.map(|from| from.ip());
    let to = remote.ip();
    if to.is_loopback() || is_of_node(node, to) {
        return Err(Errno::HOSTUNREACH);
    }
    let same_family = |ip: IpAddr| ip.is_ipv4() == to.is_ipv4();
    let on_link = node.addresses.iter().find(|prefix| prefix.contains(to));
    let has_gateway =
        !is_link_local(remote) && node.gateways.iter().any(|gateway| same_family(*gateway));
    let routed = node.addresses.iter().find(|own| has_gateway && same_family(own.address()));
    let source = on_link.or(routed).ok_or(Errno::NETUNREACH)?.address();
    match from {
        Some(from) if !is_of_node(node, from) => Err(Errno::ADDRNOTAVAIL),
        from => Ok(SocketAddr::new(from.unwrap_or(source), 0)),
    }
}

/// Returns the address of a node for a bind to `at`: a loopback address is replaced with the node's first address of
/// that family. libfabric discovers devices by such binds.
fn at_node(node: &NodeOptions, at: SocketAddr) -> SocketAddr {
    let mut own = node.addresses.iter().map(|own| own.address());
    match at.ip().is_loopback() {
        true => {
            let first = own.find(|own| own.is_ipv4() == at.is_ipv4());
            SocketAddr::new(first.unwrap_or_else(|| at.ip()), at.port())
        }
        false => at,
    }
}

/// Returns true if `ip` is an address of the node.
fn is_of_node(node: &NodeOptions, ip: IpAddr) -> bool {
    node.addresses.iter().any(|own| own.address() == ip)
}

/// Returns the EUI-64 of a hardware address, for the GUID of the node.
#[must_use]
pub const fn eui64(MacAddress(mac): MacAddress) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac;
    [a ^ 2, b, c, 0xff, 0xfe, d, e, f]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guid_is_the_eui64_of_the_hardware_address() {
        let guid = eui64(MacAddress([0x52, 0x54, 0, 0x12, 0x34, 0x56]));
        assert_eq!(guid, [0x50, 0x54, 0, 0xff, 0xfe, 0x12, 0x34, 0x56]);
    }

    // A reserved port is in use for sockets that do not share it, and free for those that do.
    #[test]
    fn reserved_port_can_be_shared() {
        let at = |text: &str| LocalAddress::from(text.parse::<SocketAddr>().unwrap());
        let (_kept, local) = reserve(at("127.0.0.1:0")).unwrap();
        assert_ne!(local.port(), 0);
        let stranger = std::net::UdpSocket::bind(local);
        assert!(stranger.is_ok(), "UDP ports are independent of TCP ports");
        let again = reserve(local.into()).unwrap();
        assert_eq!(again.1, local);
        let foreign = reserve(at("192.0.2.1:0"));
        assert_eq!(foreign.map(|_| ()), Err(Errno::ADDRNOTAVAIL));
    }

    #[test]
    fn node_source_follows_prefixes_and_gateways() {
        let node = |gateways: &[&str]| NodeOptions {
            addresses: ["10.0.0.1/24", "10.1.0.1/24", "fd00::1/64"]
                .map(|it| it.parse().unwrap())
                .into(),
            gateways: gateways.iter().map(|it| it.parse().unwrap()).collect(),
            ..NodeOptions::default()
        };
        let source = |gateways: &[&str], remote: &str, from: Option<&str>| {
            let from = from.map(|from| SocketAddr::new(from.parse().unwrap(), 0));
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
    fn source_is_a_local_address_without_port() {
        let source = source_of("127.0.0.1:7".parse().unwrap(), None).unwrap();
        assert_eq!(source, "127.0.0.1:0".parse().unwrap());
        let source =
            source_of("127.0.0.1:0".parse().unwrap(), Some(([127, 0, 0, 9], 5).into())).unwrap();
        assert_eq!(source, "127.0.0.9:0".parse().unwrap());
    }
}
