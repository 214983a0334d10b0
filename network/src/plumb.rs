//! Setup of the kernel's side of TAPs, bridges and their ports.

use std::time::Duration;

use ipnet::IpNet;
use offload_engine::link::{OpenTap, TapOptions, open_tap_queues};

use crate::{Error, NetError, Netlink, environment::tap_error, sysctl};

/// Time limit for a link to start forwarding. Links take a few milliseconds; the limit allows for a busy machine.
pub const FORWARDING_LIMIT: Duration = Duration::from_secs(5);

/// Queue length of a TAP that flue created, frames. The kernel silently drops frames above it. Its default of 1,000 is
/// less than one peer's window of 4 MiB in plain frames (2,900), and less than a thousand connections have in flight.
/// The queue itself takes 8 bytes per frame. The windows of peers limit the backlog. A local sender that ignores them
/// can fill the queue with 640 MiB of GSO packets.
pub const TXQUEUELEN_DEFAULT: u32 = 10_000;

/// The kernel's side of a TAP.
#[derive(Clone, Default, Debug)]
pub struct KernelSide<'a> {
    /// Bridge that the TAP becomes a port of.
    pub bridge: Option<&'a str>,
    /// Addresses of the kernel on the TAP.
    pub addresses: Vec<IpNet>,
    /// Queue length of the TAP, frames. `None`: [`TXQUEUELEN_DEFAULT`] if this process created the TAP, otherwise
    /// unchanged.
    pub txqueuelen: Option<u32>,
}

/// Opens a TAP with `queues` queues and sets up the kernel's side of it. The TAP forwards when this returns.
///
/// # Errors
/// An option, a prerequisite or an operation: [`Error::cause`].
pub fn open_taps(
    netlink: &mut Netlink,
    options: &TapOptions,
    queues: usize,
    side: &KernelSide<'_>,
) -> Result<Vec<OpenTap>, Error> {
    let opened = open_tap_queues(options, queues).map_err(tap_error)?;
    make_ready(netlink, &opened[0].name, options.mtu, side)?;
    Ok(opened)
}

/// Sets up a TAP that a process has open, because a TAP has carrier only while it is open. Sets MTU, queue length,
/// bridge and the kernel's addresses, sets the TAP up, and waits until it forwards.
///
/// # Errors
/// The failed operation and its interface.
pub fn make_ready(
    netlink: &mut Netlink,
    tap: &str,
    mtu_bytes: usize,
    side: &KernelSide<'_>,
) -> Result<(), Error> {
    let KernelSide { bridge, ref addresses, txqueuelen } = *side;
    let current = netlink.link(tap)?;
    if addresses.iter().any(|prefix| prefix.addr().is_ipv6()) {
        sysctl::enable_ipv6_without_dad(tap)?;
    } else if !current.up {
        sysctl::disable_ipv6(tap)?;
    }
    // Change only the settings that differ: the owner of a TAP need not have CAP_NET_ADMIN.
    let mtu_bytes = u16::try_from(mtu_bytes)
        .map_err(|_| Error::option(format!("--mtu {mtu_bytes}: expected at most 65521 bytes")))?;
    if current.mtu_bytes != Some(mtu_bytes.into()) {
        netlink.set_mtu(tap, mtu_bytes)?;
    }
    let txqueuelen = txqueuelen.or_else(|| current.temporary_tun.then_some(TXQUEUELEN_DEFAULT));
    if let Some(frames) = txqueuelen.filter(|frames| current.txqueuelen != Some(*frames)) {
        match netlink.set_txqueuelen(tap, frames) {
            // A shorter queue is sufficient for operation.
            Err(error) if is_denied(&error) => {
                tracing::warn!(%error, frames = current.txqueuelen, "txqueuelen: unchanged");
            }
            other => other?,
        }
    }
    if let Some(bridge) = bridge
        && current.master_index != Some(netlink.bridge(bridge)?.index)
    {
        netlink.set_bridge(tap, Some(bridge))?;
    }
    for prefix in addresses {
        match netlink.add_address(tap, *prefix) {
            Err(error) if is_existing_object(&error) => {}
            other => other?,
        }
    }
    let current = netlink.link(tap)?;
    if !current.up {
        netlink.set_up(tap)?;
    }
    Ok(netlink.wait_forwarding(tap, FORWARDING_LIMIT)?)
}

fn is_existing_object(error: &NetError) -> bool {
    error.source.kind() == std::io::ErrorKind::AlreadyExists
}

fn is_denied(error: &NetError) -> bool {
    error.source.kind() == std::io::ErrorKind::PermissionDenied
}

/// Creates a bridge and sets it up.
///
/// # Errors
/// The failed operation.
pub fn make_bridge(netlink: &mut Netlink, name: &str, mtu_bytes: u16) -> Result<(), NetError> {
    netlink.create_bridge(name, mtu_bytes)?;
    sysctl::disable_ipv6(name)?;
    netlink.set_up(name)
}

/// Exempts the frames of this namespace's bridges from the IPv4 packet filter, which the module br_netfilter would
/// apply to them.
///
/// # Errors
/// The setting exists and cannot be written.
pub fn bypass_packet_filter() -> Result<(), NetError> {
    sysctl::write(&["bridge", "bridge-nf-call-iptables"], "0").map(drop)
}

/// Makes an interface a bridge port and sets it up. The port forwards once it has carrier.
///
/// # Errors
/// The failed operation.
pub fn make_port(netlink: &mut Netlink, name: &str, bridge: &str) -> Result<(), NetError> {
    sysctl::disable_ipv6(name)?;
    netlink.set_bridge(name, Some(bridge))?;
    netlink.set_up(name)
}
