//! Network setup for flue's commands, without iproute2.
//!
//! [`Netlink`] creates links, addresses and bridges by rtnetlink, [`plumb`] connects them, and [`sysctl`] changes
//! settings. [`namespace`] moves the process into a new network namespace. [`environment`] checks the prerequisites of
//! a TAP and names those that are missing.
//!
//! A [`Netlink`] operates on the network namespace of the thread that opened it. The kernel acknowledges each request
//! before the call returns; an error names the operation and the object. Interfaces are identified by name and looked
//! up for each request: a name survives re-creation of its interface, an index does not. No function sleeps for a fixed
//! time: [`Netlink::wait_forwarding`] waits for notifications of the kernel, up to a limit.

#![deny(unsafe_code)]

pub mod environment;
pub mod error;
mod message;
pub mod namespace;
pub mod plumb;
pub mod socket_diag;
pub mod sysctl;
mod wait;

use std::{collections::HashMap, fmt, io, net::IpAddr, time::Duration};

use ipnet::IpNet;
use netlink_packet_core::Nla;
use netlink_packet_route::{
    RouteNetlinkMessage,
    address::{AddressAttribute, AddressFlags, AddressMessage},
    link::{
        InfoBridge, InfoData, InfoKind, InfoPortData, InfoTun, InfoVeth, LinkAttribute, LinkFlags,
        LinkInfo, LinkMessage,
    },
};
use rustix::io::Errno;

pub use self::error::{Cause, Error};
use self::message::{Connection, Mode};

/// Attribute of a TUN interface: nonzero if it persists without an open descriptor (linux/if_link.h); one byte.
const IFLA_TUN_PERSIST: u16 = 6;

/// A failed operation on the network configuration.
#[derive(Debug)]
pub struct NetError {
    /// The operation, such as "create veth pair".
    pub operation: &'static str,
    /// Name of the object.
    pub object: String,
    /// The reason.
    pub source: io::Error,
}

impl fmt::Display for NetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, object, source } = self;
        write!(f, "{operation} {object}: {source}")
    }
}

impl NetError {
    fn is(&self, errno: Errno) -> bool {
        self.source.raw_os_error() == Some(errno.raw_os_error())
    }
}

/// Error of the interface that an option names as a bridge.
fn bridge_error(name: &str, problem: &str) -> NetError {
    let source = io::Error::new(io::ErrorKind::InvalidInput, problem);
    NetError { operation: "bridge", object: name.into(), source }
}

impl std::error::Error for NetError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// A network namespace, identified by a process in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamespaceOf {
    /// Process id.
    pub pid: u32,
}

/// One end of a veth pair.
#[derive(Clone, Copy, Debug)]
pub struct VethEnd<'a> {
    /// Name of the interface.
    pub name: &'a str,
    /// Namespace of the interface; `None`: the caller's.
    pub namespace: Option<NamespaceOf>,
}

/// Properties of an interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkView {
    /// Interface index in its namespace.
    pub index: u32,
    /// True if the interface is administratively up.
    pub up: bool,
    /// True if the interface has carrier: a TAP while a process has it open, a veth end while its peer is up.
    pub carrier: bool,
    /// MTU, bytes.
    pub mtu_bytes: Option<u32>,
    /// Ethernet address.
    pub mac: Option<[u8; 6]>,
    /// Index of the bridge that this interface is a port of.
    pub master_index: Option<u32>,
    /// True if the bridge port forwards; `None` if the interface is not a bridge port.
    pub port_forwarding: Option<bool>,
    /// Frames that the kernel dropped on transmission; on a TAP, because its queue was full.
    pub tx_dropped: u64,
    /// Length of the transmit queue, frames; on a TAP, the queue to its reader.
    pub txqueuelen: Option<u32>,
    /// True for a TAP or TUN interface that the kernel removes when the last process closes it. Such an interface was
    /// created by the process that attached to its only queue. False if the kernel does not report the attribute.
    pub temporary_tun: bool,
}

impl LinkView {
    /// Returns true if the interface passes frames: up, with carrier, and forwarding if it is a bridge port.
    pub fn forwards(&self) -> bool {
        self.up && self.carrier && self.port_forwarding.unwrap_or(true)
    }

    fn from_message(message: &LinkMessage) -> Self {
        let mut view = Self {
            index: message.header.index,
            up: message.header.flags.contains(LinkFlags::Up),
            carrier: message.header.flags.contains(LinkFlags::LowerUp),
            mtu_bytes: None,
            mac: None,
            master_index: None,
            port_forwarding: None,
            tx_dropped: 0,
            txqueuelen: None,
            temporary_tun: false,
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::Mtu(mtu) => view.mtu_bytes = Some(*mtu),
                LinkAttribute::Address(octets) => view.mac = octets.as_slice().try_into().ok(),
                LinkAttribute::Stats64(stats) => view.tx_dropped = stats.tx_dropped,
                LinkAttribute::TxQueueLen(frames) => view.txqueuelen = Some(*frames),
                LinkAttribute::Controller(index) => view.master_index = Some(*index),
                LinkAttribute::LinkInfo(infos) => {
                    view.temporary_tun |= is_temporary_tun(infos);
                    view.port_forwarding = view.port_forwarding.or_else(|| port_forwarding(infos));
                }
                _ => {}
            }
        }
        view
    }
}

/// Returns the address of a message, unless it is not unique, or not yet known to be. The address of a point-to-point
/// link is that of its own end.
fn usable_address(message: &AddressMessage) -> Option<IpAddr> {
    let (mut own, mut any) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(ip) => own = Some(*ip),
            AddressAttribute::Address(ip) => any = Some(*ip),
            AddressAttribute::Flags(flags)
                if flags.intersects(AddressFlags::Tentative | AddressFlags::Dadfailed) =>
            {
                return None;
            }
            _ => {}
        }
    }
    own.or(any)
}

/// Returns true if a bridge port forwards; `None` if `infos` does not describe a bridge port.
fn port_forwarding(infos: &[LinkInfo]) -> Option<bool> {
    use netlink_packet_route::link::{BridgePortState, InfoBridgePort};
    infos.iter().find_map(|info| match info {
        LinkInfo::PortData(InfoPortData::BridgePort(attributes)) => {
            attributes.iter().find_map(|attribute| match attribute {
                InfoBridgePort::State(state) => Some(*state == BridgePortState::Forwarding),
                _ => None,
            })
        }
        _ => None,
    })
}

/// Returns true if `infos` describes a TUN or TAP interface that is not persistent.
fn is_temporary_tun(infos: &[LinkInfo]) -> bool {
    let is_temporary = |info: &InfoTun| match info {
        InfoTun::Other(attribute) => {
            let mut value = [1];
            // Ignore an attribute of a different length.
            if attribute.value_len() == value.len() {
                attribute.emit_value(&mut value);
            }
            attribute.kind() == IFLA_TUN_PERSIST && value == [0]
        }
        _ => false,
    };
    infos.iter().any(|info| match info {
        LinkInfo::Data(InfoData::Tun(attributes)) => attributes.iter().any(is_temporary),
        _ => false,
    })
}

/// Address of an interface that is up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InterfaceAddress {
    /// Address.
    pub ip: IpAddr,
    /// Name of the interface.
    pub name: String,
    /// Index of the interface.
    pub index: u32,
    /// True for the loopback interface.
    pub is_loopback: bool,
}

/// rtnetlink socket for one network namespace.
#[derive(Debug)]
pub struct Netlink {
    connection: Connection,
}

impl Netlink {
    /// Opens the socket in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The rtnetlink socket cannot be created.
    pub fn open() -> Result<Self, NetError> {
        let connection = Connection::open(&[]).map_err(|source| NetError {
            operation: "open",
            object: "rtnetlink socket".into(),
            source,
        })?;
        Ok(Self { connection })
    }

    fn request(
        &mut self,
        operation: &'static str,
        object: &str,
        mode: Mode,
        message: RouteNetlinkMessage,
    ) -> Result<Vec<RouteNetlinkMessage>, NetError> {
        let failed = |source| NetError { operation, object: object.to_owned(), source };
        self.connection.request(mode, message).map_err(failed)
    }

    /// Returns the properties of an interface.
    ///
    /// # Errors
    /// ENODEV if no interface has this name.
    pub fn link(&mut self, name: &str) -> Result<LinkView, NetError> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.into()));
        let request = RouteNetlinkMessage::GetLink(message);
        let answers = self.request("interface", name, Mode::Get, request)?;
        let view = answers.iter().find_map(|answer| match answer {
            RouteNetlinkMessage::NewLink(message) => Some(LinkView::from_message(message)),
            _ => None,
        });
        view.ok_or_else(|| NetError {
            operation: "interface",
            object: name.into(),
            source: Errno::NODEV.into(),
        })
    }

    /// Creates a bridge without spanning tree: its ports forward as soon as they have carrier.
    ///
    /// # Errors
    /// EEXIST, EPERM, EOPNOTSUPP.
    pub fn create_bridge(&mut self, name: &str, mtu_bytes: u16) -> Result<(), NetError> {
        use netlink_packet_route::link::BridgeStpState;
        let data = InfoData::Bridge(vec![
            InfoBridge::ForwardDelay(0),
            InfoBridge::StpState(BridgeStpState::Disabled),
            // With snooping the bridge sends queries, which would appear in captures.
            InfoBridge::MulticastSnooping(false),
        ]);
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name.into()),
            LinkAttribute::Mtu(mtu_bytes.into()),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge), LinkInfo::Data(data)]),
        ];
        let request = RouteNetlinkMessage::NewLink(message);
        self.request("create bridge", name, Mode::Create, request).map(drop)
    }

    /// Creates a veth pair, each end directly in its namespace.
    ///
    /// # Errors
    /// EEXIST, EPERM, EOPNOTSUPP, ESRCH (the process that identifies a namespace has ended).
    pub fn create_veth(
        &mut self,
        one: VethEnd<'_>,
        other: VethEnd<'_>,
        mtu_bytes: u16,
    ) -> Result<(), NetError> {
        let end = |VethEnd { name, namespace }: VethEnd<'_>| {
            let mut message = LinkMessage::default();
            message.attributes.push(LinkAttribute::IfName(name.into()));
            message.attributes.push(LinkAttribute::Mtu(mtu_bytes.into()));
            if let Some(NamespaceOf { pid }) = namespace {
                message.attributes.push(LinkAttribute::NetNsPid(pid));
            }
            message
        };
        let mut message = end(one);
        let peer = InfoData::Veth(InfoVeth::Peer(end(other)));
        let info = vec![LinkInfo::Kind(InfoKind::Veth), LinkInfo::Data(peer)];
        message.attributes.push(LinkAttribute::LinkInfo(info));
        let object = format!("{} - {}", one.name, other.name);
        let request = RouteNetlinkMessage::NewLink(message);
        self.request("create veth pair", &object, Mode::Create, request).map(drop)
    }

    fn change(
        &mut self,
        operation: &'static str,
        name: &str,
        edit: impl FnOnce(&mut LinkMessage),
    ) -> Result<(), NetError> {
        let mut message = LinkMessage::default();
        message.header.index = self.link(name)?.index;
        edit(&mut message);
        self.request(operation, name, Mode::Change, RouteNetlinkMessage::SetLink(message)).map(drop)
    }

    /// Sets an interface up.
    ///
    /// # Errors
    /// ENODEV, EPERM.
    pub fn set_up(&mut self, name: &str) -> Result<(), NetError> {
        self.change("set up", name, |message| {
            message.header.flags = LinkFlags::Up;
            message.header.change_mask = LinkFlags::Up;
        })
    }

    /// Sets the MTU, bytes.
    ///
    /// # Errors
    /// EINVAL if the device does not support it.
    pub fn set_mtu(&mut self, name: &str, mtu_bytes: u16) -> Result<(), NetError> {
        self.change("set MTU of", name, |message| {
            message.attributes.push(LinkAttribute::Mtu(mtu_bytes.into()));
        })
    }

    /// Sets the Ethernet address. A bridge then keeps it when ports are added, whose addresses it would otherwise use.
    ///
    /// # Errors
    /// ENODEV, EPERM; EADDRNOTAVAIL for a multicast address.
    pub fn set_mac(&mut self, name: &str, mac: [u8; 6]) -> Result<(), NetError> {
        self.change("set Ethernet address of", name, |message| {
            message.attributes.push(LinkAttribute::Address(mac.to_vec()));
        })
    }

    /// Sets the length of the transmit queue, frames.
    ///
    /// # Errors
    /// ENODEV, EPERM, ENOMEM.
    pub fn set_txqueuelen(&mut self, name: &str, frames: u32) -> Result<(), NetError> {
        self.change("set transmit queue length of", name, |message| {
            message.attributes.push(LinkAttribute::TxQueueLen(frames));
        })
    }

    /// Makes an interface a port of `bridge`, or of no bridge.
    ///
    /// # Errors
    /// ENODEV for `name`; EBUSY if it is a port of another bridge; `bridge` does not exist, or is not a bridge.
    pub fn set_bridge(&mut self, name: &str, bridge: Option<&str>) -> Result<(), NetError> {
        let index = match bridge {
            Some(bridge) => self.bridge(bridge)?.index,
            None => 0,
        };
        let changed = self.change("set bridge of", name, |message| {
            message.attributes.push(LinkAttribute::Controller(index));
        });
        match (changed, bridge) {
            // The kernel returns EOPNOTSUPP for an interface that cannot have ports.
            (Err(error), Some(bridge)) if error.is(Errno::OPNOTSUPP) => {
                Err(bridge_error(bridge, "not a bridge: name a bridge or drop the option"))
            }
            (changed, _) => changed,
        }
    }

    /// Returns the properties of a bridge.
    ///
    /// # Errors
    /// No interface has this name.
    pub(crate) fn bridge(&mut self, name: &str) -> Result<LinkView, NetError> {
        self.link(name).map_err(|error| match error.is(Errno::NODEV) {
            true => bridge_error(name, "not found: create it or drop the option"),
            false => error,
        })
    }

    /// Adds an address to the kernel's side, without duplicate address detection.
    ///
    /// # Errors
    /// EEXIST, ENODEV, EPERM; EACCES when IPv6 is disabled on the interface.
    pub fn add_address(&mut self, name: &str, prefix: IpNet) -> Result<(), NetError> {
        use netlink_packet_route::AddressFamily;
        let mut message = AddressMessage::default();
        message.header.family =
            if prefix.addr().is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        message.header.prefix_len = prefix.prefix_len();
        message.header.index = self.link(name)?.index;
        message.attributes = vec![
            AddressAttribute::Local(prefix.addr()),
            AddressAttribute::Address(prefix.addr()),
            AddressAttribute::Flags(AddressFlags::Nodad),
        ];
        let request = RouteNetlinkMessage::NewAddress(message);
        let object = format!("{prefix} to {name}");
        self.request("add address", &object, Mode::Create, request).map(drop)
    }

    /// Returns the addresses of all interfaces that are up, in the order of the kernel, except those that are not
    /// unique on their link or not yet known to be.
    ///
    /// # Errors
    /// ENOBUFS.
    pub fn addresses(&mut self) -> Result<Vec<InterfaceAddress>, NetError> {
        let all = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let links = self.request("interfaces", "", Mode::List, all)?;
        let all = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let addresses = self.request("addresses", "", Mode::List, all)?;
        let of_link = |answer: &RouteNetlinkMessage| {
            let RouteNetlinkMessage::NewLink(message) = answer else { return None };
            let name = message.attributes.iter().find_map(|attribute| match attribute {
                LinkAttribute::IfName(name) => Some(name.clone()),
                _ => None,
            })?;
            let flags = message.header.flags;
            let is_loopback = flags.contains(LinkFlags::Loopback);
            flags.contains(LinkFlags::Up).then_some((message.header.index, (name, is_loopback)))
        };
        let links: HashMap<_, _> = links.iter().filter_map(of_link).collect();
        let of_address = |answer: &RouteNetlinkMessage| {
            let RouteNetlinkMessage::NewAddress(message) = answer else { return None };
            let index = message.header.index;
            let (name, is_loopback) = links.get(&index)?.clone();
            let ip = usable_address(message)?;
            Some(InterfaceAddress { ip, name, index, is_loopback })
        };
        Ok(addresses.iter().filter_map(of_address).collect())
    }

    /// Waits until `name` forwards: up, with carrier, and forwarding if it is a bridge port.
    ///
    /// # Errors
    /// ETIMEDOUT after `limit`, and the errors of [`Netlink::link`].
    pub fn wait_forwarding(&mut self, name: &str, limit: Duration) -> Result<(), NetError> {
        wait::until(self, name, limit, LinkView::forwards)
    }
}

#[cfg(test)]
mod tests;
