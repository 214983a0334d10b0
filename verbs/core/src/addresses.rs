//! Addresses of this machine, and the device's identity that follows from them.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    path::Path,
};

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
    fn sources() {
        let source = source_of("127.0.0.1:7".parse().unwrap(), None).unwrap();
        assert_eq!(source, "127.0.0.1:0".parse().unwrap());
        let source =
            source_of("127.0.0.1:0".parse().unwrap(), Some([127, 0, 0, 9].into())).unwrap();
        assert_eq!(source, "127.0.0.9:0".parse().unwrap());
    }
}
