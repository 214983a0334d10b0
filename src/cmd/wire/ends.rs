//! Ends of a wire: one TAP each, in this or another network namespace.
//!
//! A namespace is entered by a thread that exits after the TAP is created. TAP and rtnetlink socket remain bound to the
//! namespace in which they were opened.

use std::{
    fmt,
    fs::File,
    io,
    os::fd::AsFd,
    path::{Path, PathBuf},
    thread,
};

use offload_engine::link::{Link, OpenTap, ReclaimMode, TapOptions, VnetMode};
use rustix::{
    io::Errno,
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use serde::Serialize;

use crate::{
    failure::Failure,
    net::{
        Netlink,
        plumb::{self, KernelSide},
    },
    units::IpPrefix,
};

/// Directory of the named namespaces of `ip netns`.
const NAMED_NAMESPACES: &str = "/run/netns";

/// Configuration of one end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct EndConfig {
    /// Name of the TAP.
    pub tap: String,
    /// Network namespace; `None`: the caller's.
    pub netns: Option<PathBuf>,
    /// Bridge of which the TAP is a port.
    pub bridge: Option<String>,
    /// Addresses of the kernel on the TAP.
    pub addresses: Vec<IpPrefix>,
}

impl fmt::Display for EndConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tap, netns, bridge, addresses } = self;
        write!(f, "tap {tap}")?;
        if let Some(path) = netns {
            write!(f, " in {}", path.display())?;
        }
        if let Some(bridge) = bridge {
            write!(f, ", port of {bridge}")?;
        }
        addresses.iter().try_for_each(|address| write!(f, ", {address}"))
    }
}

/// Returns the path of a namespace: a name with a slash is a path itself.
pub(super) fn namespace_path(name: &str) -> PathBuf {
    if name.contains('/') { name.into() } else { Path::new(NAMED_NAMESPACES).join(name) }
}

/// Open end.
pub(super) struct End {
    tap: String,
    vnet_header: bool,
    link: Option<Box<dyn Link>>,
    netlink: Netlink,
}

/// Opens the TAP of an end and configures its kernel interface.
pub(super) fn open(end: &EndConfig, mtu_bytes: u16, vnet: VnetMode) -> Result<End, Failure> {
    let opened = match &end.netns {
        None => open_here(end, mtu_bytes, vnet),
        Some(path) => thread::scope(|scope| {
            let inside = scope.spawn(|| {
                enter(path).map_err(|error| entry_failure(path, &error))?;
                open_here(end, mtu_bytes, vnet)
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        }),
    };
    opened.map_err(|failure| failure.at(&end.tap))
}

fn open_here(end: &EndConfig, mtu_bytes: u16, vnet: VnetMode) -> Result<End, Failure> {
    let EndConfig { tap, netns: _, bridge, addresses } = end;
    let mut netlink = Netlink::open()?;
    let addresses = addresses.iter().copied().map(Into::into).collect();
    let side = KernelSide { bridge: bridge.as_deref(), addresses, txqueuelen: None };
    let reclaim = ReclaimMode::Off;
    let options = TapOptions { reclaim, ..TapOptions::new(tap, mtu_bytes.into(), vnet) };
    let opened = plumb::open_taps(&mut netlink, &options, 1, &side)?.pop();
    let OpenTap { link, vnet_header, .. } = opened.expect("one queue was requested");
    Ok(End { tap: tap.clone(), vnet_header, link: Some(link), netlink })
}

fn enter(path: &Path) -> io::Result<()> {
    let namespace = File::open(path)?;
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}

fn entry_failure(path: &Path, error: &io::Error) -> Failure {
    let text = format!("network namespace {}: {error}", path.display());
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::PERM | Errno::ACCESS) => {
            Failure::lacking(text).with_hint("run with CAP_SYS_ADMIN in that namespace")
        }
        Some(Errno::INVAL) => Failure::work(format!("{text}: expected a network namespace")),
        _ => Failure::work(text),
    }
}

impl End {
    /// Takes the link; the end keeps reporting on the TAP.
    pub(super) fn take_link(&mut self) -> Box<dyn Link> {
        self.link.take().expect("link is taken once")
    }

    pub(super) fn describe(&self) -> String {
        let header = if self.vnet_header { "GSO packets" } else { "plain frames" };
        format!("{} ({header})", self.tap)
    }

    /// Returns the number of frames that the kernel dropped because the wire did not read them in time; `None`: not
    /// available.
    pub(super) fn dropped(&mut self) -> Option<u64> {
        Some(self.netlink.link(&self.tap).ok()?.tx_dropped)
    }
}
