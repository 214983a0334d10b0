//! Attachment to a TAP: checks, flags of TUNSETIFF, and the cause of a failure.
#![forbid(unsafe_code)]

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    string::String,
};

use libc::{c_int, c_uint};
use rustix::io::Errno;

use super::tun::{self, NAME_BYTES_MAX};

/// Device node of the TUN driver.
pub(super) const NODE: &str = "/dev/net/tun";

/// Smallest MTU: every IPv4 module must forward packets of this size unfragmented (RFC 791 §3.2).
pub const MTU_MIN: usize = 68;
/// Largest MTU of a TAP: the driver's 65 535 minus the Ethernet header.
pub const MTU_MAX: usize = 65_521;

/// Maximum number of queues of one TAP that [`open_tap_queues`](super::open_tap_queues) opens.
pub const TAP_QUEUES_MAX: usize = 16;

crate::option_enum! {
    /// NAPI mode for frames written to a TAP.
    pub enum NapiMode {
        /// write(2) delivers one frame at a time
        #[default]
        Off,
        /// A kernel thread delivers batches, merged by GRO: more bandwidth with plain frames, one more wake-up for a
        /// single frame. Requires CAP_SYS_ADMIN; otherwise off, with a warning
        // `OpenTap::threaded_napi` is true if it was granted.
        Threaded,
    }
}

impl NapiMode {
    /// Returns the flags of TUNSETIFF.
    pub(super) const fn flags(self) -> c_int {
        match self {
            Self::Off => 0,
            Self::Threaded => libc::IFF_NAPI,
        }
    }
}

/// Reason why a TAP could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TapError {
    /// The kernel does not accept the name.
    #[error("interface name {name:?}: {reason}")]
    Name {
        /// Name given.
        name: String,
        /// Problem with the name.
        reason: &'static str,
    },
    /// The MTU is out of range.
    #[error("MTU {mtu}: expected {MTU_MIN} to {MTU_MAX} bytes")]
    Mtu {
        /// MTU given.
        mtu: usize,
    },
    /// The TUN node does not exist.
    #[error("{node} not found: load the `tun` module, or add the device to the container")]
    NodeAbsent {
        /// Path of the node.
        node: PathBuf,
    },
    /// The TUN node exists, but has no driver.
    #[error("{node} has no driver: load the `tun` module (CONFIG_TUN)")]
    NodeWithoutDriver {
        /// Path of the node.
        node: PathBuf,
    },
    /// The TUN node cannot be opened.
    #[error(
        "{node} cannot be opened: mode {mode:04o}, owner {owner}, expected mode 0666 (udev's default) or \
         this user as owner; in a container, the device cgroup must permit it too"
    )]
    NodeDenied {
        /// Path of the node.
        node: PathBuf,
        /// Permission bits of the node.
        mode: u32,
        /// User id of its owner.
        owner: u32,
    },
    /// The interface cannot be created, or belongs to another user.
    #[error(
        "interface {name:?}: permission denied: requires CAP_NET_ADMIN in this network namespace, or a \
         persistent TAP of this user (ip tuntap add dev {name} mode tap user ...)"
    )]
    NotPermitted {
        /// Name of the interface.
        name: String,
    },
    /// Another process has the interface open.
    #[error("interface {name:?} is busy: in use by another process")]
    Busy {
        /// Name of the interface.
        name: String,
    },
    /// The interface exists and is not a TAP that can be attached to.
    #[error("interface {name:?} exists and is not a single-queue TAP")]
    NotATap {
        /// Name of the interface.
        name: String,
    },
    /// The interface exists and is not a multi-queue TAP.
    #[error(
        "interface {name:?} exists and is not a multi-queue TAP: create one (ip tuntap add dev {name} mode tap \
         multi_queue ...)"
    )]
    NotMultiQueue {
        /// Name of the interface.
        name: String,
    },
    /// TAPs of this kernel have one queue.
    #[error("multi-queue TAP not supported by this kernel: no IFF_MULTI_QUEUE")]
    NoMultiQueue,
    /// The number of queues is out of range.
    #[error("{queues} queues: expected 1 to {TAP_QUEUES_MAX}")]
    Queues {
        /// Number given.
        queues: usize,
    },
    /// The vnet header is required and the kernel does not support it.
    #[error("virtio-net header not supported by this kernel: {step} failed")]
    NoVnetHeader {
        /// Request that failed.
        step: &'static str,
        /// Error of the request.
        source: io::Error,
    },
    /// Reclaiming is required and not possible.
    #[error("interface {name:?}: transmitted pages cannot be reclaimed")]
    NoReclaim {
        /// Name of the interface.
        name: String,
        /// Reason.
        source: io::Error,
    },
    /// The inherited descriptor is not a usable TAP.
    #[error("descriptor {reason}")]
    Descriptor {
        /// Problem with the descriptor.
        reason: &'static str,
    },
    /// Any other error.
    #[error("{step} failed")]
    Io {
        /// Request that failed.
        step: &'static str,
        /// Error of the request.
        source: io::Error,
    },
}

/// Kind of an attach: to the only queue of a TAP, or as an additional queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Queueing {
    Single,
    Multi,
}

impl Queueing {
    /// Returns the flags of TUNSETIFF.
    pub(super) const fn flags(self) -> c_int {
        match self {
            Self::Single => 0,
            Self::Multi => libc::IFF_MULTI_QUEUE,
        }
    }

    /// Checks the features of the kernel.
    pub(super) fn check(self, features: c_uint) -> Result<(), TapError> {
        let flags = self.flags() as c_uint;
        if features & flags == flags { Ok(()) } else { Err(TapError::NoMultiQueue) }
    }

    /// Maps an error of TUNSETIFF.
    pub(super) fn attach_error(self, name: &str, source: io::Error) -> TapError {
        match attach_error(name, source) {
            TapError::NotATap { name } if self == Self::Multi => TapError::NotMultiQueue { name },
            error => error,
        }
    }
}

/// Error of reclaiming on a link without GSO packets.
pub(super) fn no_gso_packets() -> io::Error {
    io::Error::other("GSO packets not supported: enable the virtio-net header with segmentation")
}

/// Checks a name by the kernel's rules. Checked first because `tun_tap` silently truncates long names and the kernel
/// only returns EINVAL.
pub(super) fn check_name(name: &str) -> Result<(), TapError> {
    let reason = match name {
        "" => "empty",
        "." | ".." => "reserved",
        _ if name.len() > NAME_BYTES_MAX => "longer than 15 bytes",
        _ if name.contains(['/', ':', '\0']) => "contains '/', ':' or a zero byte",
        _ if name.contains(|c: char| c.is_whitespace()) => "contains white space",
        _ => return Ok(()),
    };
    Err(TapError::Name { name: name.into(), reason })
}

pub(super) fn check_mtu(mtu: usize) -> Result<(), TapError> {
    if (MTU_MIN..=MTU_MAX).contains(&mtu) { Ok(()) } else { Err(TapError::Mtu { mtu }) }
}

/// Opens the TUN node. The error names what is missing.
pub(super) fn open_node(node: &Path) -> Result<OwnedFd, TapError> {
    tun::open_node(node).map_err(|source| match Errno::from_io_error(&source) {
        Some(Errno::NOENT | Errno::NOTDIR) => TapError::NodeAbsent { node: node.into() },
        Some(Errno::NODEV | Errno::NXIO) => TapError::NodeWithoutDriver { node: node.into() },
        Some(Errno::ACCESS | Errno::PERM) => {
            let (mode, owner) =
                rustix::fs::stat(node).map_or((0, 0), |stat| (stat.st_mode & 0o7777, stat.st_uid));
            TapError::NodeDenied { node: node.into(), mode, owner }
        }
        _ => TapError::Io { step: "opening the TUN node", source },
    })
}

/// Returns the interface name and flags of an inherited TAP descriptor. Sets the descriptor to non-blocking mode.
pub(super) fn inherited(fd: &OwnedFd) -> Result<(String, c_int), TapError> {
    let refused = |reason| TapError::Descriptor { reason };
    let (name, flags) =
        tun::interface(fd).map_err(|source| match Errno::from_io_error(&source) {
            Some(Errno::NOTTY | Errno::BADFD | Errno::INVAL) => refused("is not an attached TAP"),
            _ => TapError::Io { step: "TUNGETIFF", source },
        })?;
    if flags & libc::IFF_TAP == 0 {
        return Err(refused("is a TUN interface, expected a TAP"));
    }
    if flags & libc::IFF_NO_PI == 0 {
        return Err(refused("has packet information before frames: open the TAP with IFF_NO_PI"));
    }
    rustix::io::retry_on_intr(|| rustix::io::ioctl_fionbio(fd, true))
        .map_err(|error| TapError::Io { step: "FIONBIO", source: error.into() })?;
    Ok((name, flags))
}

/// Maps an error of TUNSETIFF.
pub(super) fn attach_error(name: &str, source: io::Error) -> TapError {
    let name = String::from(name);
    match Errno::from_io_error(&source) {
        Some(Errno::PERM | Errno::ACCESS) => TapError::NotPermitted { name },
        Some(Errno::BUSY) => TapError::Busy { name },
        Some(Errno::INVAL) => TapError::NotATap { name },
        _ => TapError::Io { step: "TUNSETIFF", source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_interface_names_are_refused() {
        for name in ["", ".", "..", "sixteen-bytes-xx", "a/b", "a:b", "a b", "a\0b", "tab\t"] {
            assert!(matches!(check_name(name), Err(TapError::Name { .. })), "{name:?}");
        }
        for name in ["a", "fifteen-bytes-x", "flue%d", "tap0.100"] {
            assert!(check_name(name).is_ok(), "{name:?}");
        }
    }

    #[test]
    fn mtu_range_is_checked() {
        for (mtu, good) in [(67, false), (68, true), (1500, true), (65_521, true), (65_522, false)]
        {
            assert_eq!(check_mtu(mtu).is_ok(), good, "{mtu}");
        }
    }

    #[test]
    fn absent_node_is_named() {
        let error = open_node("/nonexistent/tun".as_ref()).unwrap_err();
        assert!(matches!(&error, TapError::NodeAbsent { .. }));
        assert!(std::format!("{error}").contains("/nonexistent/tun not found"));
    }

    #[test]
    fn attach_errors_are_mapped() {
        let error = |errno: Errno| attach_error("t0", errno.into());
        assert!(matches!(error(Errno::PERM), TapError::NotPermitted { .. }));
        assert!(matches!(error(Errno::BUSY), TapError::Busy { .. }));
        assert!(matches!(error(Errno::INVAL), TapError::NotATap { .. }));
        assert!(matches!(error(Errno::NOMEM), TapError::Io { step: "TUNSETIFF", .. }));
        let error = |errno: Errno| Queueing::Multi.attach_error("t0", errno.into());
        assert!(matches!(error(Errno::INVAL), TapError::NotMultiQueue { .. }));
        assert!(matches!(error(Errno::BUSY), TapError::Busy { .. }));
    }

    #[test]
    fn multi_queue_requires_kernel_support() {
        let features = (libc::IFF_TAP | libc::IFF_VNET_HDR) as c_uint;
        assert!(Queueing::Single.check(features).is_ok());
        assert!(matches!(Queueing::Multi.check(features), Err(TapError::NoMultiQueue)));
        assert!(Queueing::Multi.check(features | libc::IFF_MULTI_QUEUE as c_uint).is_ok());
    }
}
