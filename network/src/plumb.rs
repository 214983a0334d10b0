//! The kernel's side of a node: its TAP made ready, and the lab's bridge between TAP and cable.

use std::time::Duration;

use flue_report::{failure::Failure, units::IpPrefix};

use crate::{NetError, Netlink, sysctl};

/// How long a link may take until frames pass it. It takes a few milliseconds; the limit is for
/// machines that are very busy.
pub const FORWARDING_LIMIT: Duration = Duration::from_secs(5);

/// Frames that the kernel keeps for the reader of a TAP which flue has made. What is more it drops without a word,
/// and its own 1,000 are less than one peer's window of 4 MiB in plain frames (2,900), or than a thousand
/// connections have in flight. The queue itself takes 8 bytes a frame. What waits there is what the windows of peers
/// allow; a sender on this machine that heeds none can have 640 MiB of super-segments wait.
pub const TXQUEUELEN_DEFAULT: u32 = 10_000;

/// The kernel's side of a TAP.
#[derive(Clone, Copy, Debug)]
pub struct KernelSide<'a> {
    /// The TAP.
    pub tap: &'a str,
    /// Largest IP packet, bytes.
    pub mtu_bytes: u16,
    /// The bridge the TAP is to be a port of.
    pub bridge: Option<&'a str>,
    /// Addresses that the kernel is to have there.
    pub addresses: &'a [IpPrefix],
    /// Frames that the kernel is to keep for the TAP's reader. `None`: [`TXQUEUELEN_DEFAULT`] where the program that
    /// holds the TAP has made it; one that was there before keeps its own.
    pub txqueuelen: Option<u32>,
}

/// Makes a TAP ready, once somebody holds it (a TAP has carrier only then): MTU, length of its queue, bridge,
/// addresses of the kernel's side, up, and frames passing.
///
/// # Errors
/// The operation that failed and the interface it failed on.
pub fn make_ready(netlink: &mut Netlink, side: &KernelSide<'_>) -> Result<(), Failure> {
    let KernelSide { tap, mtu_bytes, bridge, addresses, txqueuelen } = *side;
    let current = netlink.link(tap)?;
    if addresses.iter().any(|prefix| prefix.address().is_ipv6()) {
        sysctl::calm_ipv6(tap)?;
    } else if !current.up {
        sysctl::silence_ipv6(tap)?;
    }
    // What holds already is not asked for: the owner of a TAP need not have CAP_NET_ADMIN.
    if current.mtu_bytes != Some(mtu_bytes.into()) {
        netlink.set_mtu(tap, mtu_bytes)?;
    }
    let txqueuelen = txqueuelen.or_else(|| current.temporary_tun.then_some(TXQUEUELEN_DEFAULT));
    if let Some(frames) = txqueuelen.filter(|frames| current.txqueuelen != Some(*frames)) {
        match netlink.set_txqueuelen(tap, frames) {
            // Frames pass all the same, if fewer may wait.
            Err(error) if is_denied(&error) => {
                tracing::warn!(%error, "the kernel keeps {} frames", current.txqueuelen.unwrap_or(0));
            }
            other => other?,
        }
    }
    if let Some(bridge) = bridge
        && current.master_index != Some(netlink.link(bridge)?.index)
    {
        netlink.set_bridge(tap, Some(bridge))?;
    }
    for prefix in addresses {
        match netlink.add_address(tap, *prefix) {
            Err(error) if is_already_there(&error) => {}
            other => other?,
        }
    }
    let current = netlink.link(tap)?;
    if !current.up {
        netlink.set_up(tap)?;
    }
    Ok(netlink.wait_forwarding(tap, FORWARDING_LIMIT)?)
}

fn is_already_there(error: &NetError) -> bool {
    error.source.kind() == std::io::ErrorKind::AlreadyExists
}

fn is_denied(error: &NetError) -> bool {
    error.source.kind() == std::io::ErrorKind::PermissionDenied
}

/// Makes a bridge and brings it up, in a namespace that has none of that name.
///
/// # Errors
/// The operation that failed.
pub fn make_bridge(netlink: &mut Netlink, name: &str, mtu_bytes: u16) -> Result<(), NetError> {
    netlink.create_bridge(name, mtu_bytes)?;
    sysctl::silence_ipv6(name)?;
    netlink.set_up(name)
}

/// Lets frames cross the bridges of this namespace without a pass through the IPv4 packet filter, where the module
/// br_netfilter would take them there.
///
/// # Errors
/// The setting exists and cannot be written.
pub fn bypass_packet_filter() -> Result<(), NetError> {
    sysctl::write(&["bridge", "bridge-nf-call-iptables"], "0").map(drop)
}

/// Makes an interface the port of a bridge and brings it up. It forwards once its other end is up.
///
/// # Errors
/// The operation that failed.
pub fn make_port(netlink: &mut Netlink, name: &str, bridge: &str) -> Result<(), NetError> {
    sysctl::silence_ipv6(name)?;
    netlink.set_bridge(name, Some(bridge))?;
    netlink.set_up(name)
}
