//! Attaching to a TAP: checks, flags of TUNSETIFF, and what exactly is missing when it fails.
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

/// The TUN driver's device node.
pub(super) const NODE: &str = "/dev/net/tun";

/// Smallest MTU: what every IPv4 module must forward unfragmented (RFC 791 §3.2).
pub const MTU_MIN: usize = 68;
/// Largest MTU of a TAP: the driver's 65 535 less the Ethernet header.
pub const MTU_MAX: usize = 65_521;

/// Most queues of one TAP that [`open_tap_queues`](super::open_tap_queues) opens.
pub const TAP_QUEUES_MAX: usize = 16;

crate::option_enum! {
    /// What takes frames that were written to a TAP up the kernel's stack.
    pub enum NapiMode {
        /// The writer, one frame at a time, before write(2) returns
        #[default]
        Off,
        /// A thread of the kernel, as many at a time as wait, merged by GRO: more bandwidth with plain frames, one more
        /// wake-up for a frame that comes alone. Off, with a warning, where the kernel refuses it (CAP_SYS_ADMIN)
        // `OpenTap::threaded_napi` says whether it was granted.
        Threaded,
    }
}

impl NapiMode {
    /// The flags of TUNSETIFF.
    pub(super) const fn flags(self) -> c_int {
        match self {
            Self::Off => 0,
            Self::Threaded => libc::IFF_NAPI,
        }
    }
}

/// Why a TAP could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TapError {
    /// The kernel would not take the name.
    #[error("bad interface name {name:?}: {reason}")]
    Name {
        /// The name given.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The MTU is out of range.
    #[error("MTU {mtu} is not within {MTU_MIN} to {MTU_MAX} bytes")]
    Mtu {
        /// The MTU given.
        mtu: usize,
    },
    /// There is no TUN node.
    #[error("{node} does not exist: load the `tun` module, or give the container this device")]
    NodeAbsent {
        /// The node's path.
        node: PathBuf,
    },
    /// There is a TUN node, but no driver behind it.
    #[error("{node} has no driver behind it: load the `tun` module (CONFIG_TUN)")]
    NodeWithoutDriver {
        /// The node's path.
        node: PathBuf,
    },
    /// The TUN node may not be opened.
    #[error(
        "{node} may not be opened for reading and writing: it is mode {mode:04o} of user {owner}, \
         and this process needs 0666 (udev's default), or to be user {owner}; in a container, the \
         device cgroup must allow it too"
    )]
    NodeDenied {
        /// The node's path.
        node: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// Its owner's user id.
        owner: u32,
    },
    /// The interface may not be created, or belongs to another user.
    #[error(
        "no permission for interface {name:?}: needs CAP_NET_ADMIN in this network namespace, or a \
         persistent TAP that belongs to this user (ip tuntap add dev {name} mode tap user ...)"
    )]
    NotPermitted {
        /// The interface.
        name: String,
    },
    /// Another process has the interface open.
    #[error("interface {name:?} is busy: another process has it open")]
    Busy {
        /// The interface.
        name: String,
    },
    /// There is an interface of this name that is no TAP that could be attached to.
    #[error("interface {name:?} exists and is no single-queue TAP")]
    NotATap {
        /// The interface.
        name: String,
    },
    /// There is an interface of this name that is no TAP with several queues.
    #[error(
        "interface {name:?} exists and is no multi-queue TAP (ip tuntap add dev {name} mode tap \
         multi_queue ...)"
    )]
    NotMultiQueue {
        /// The interface.
        name: String,
    },
    /// The kernel's TAPs have one queue.
    #[error("no TAP with several queues on this kernel: IFF_MULTI_QUEUE is not among its features")]
    NoMultiQueue,
    /// The number of queues is out of range.
    #[error("{queues} queues: a TAP has 1 to {TAP_QUEUES_MAX}")]
    Queues {
        /// The number given.
        queues: usize,
    },
    /// The vnet header was demanded and the kernel lacks it.
    #[error("no virtio-net header on this kernel: {step} failed")]
    NoVnetHeader {
        /// The request that failed.
        step: &'static str,
        /// Its error.
        source: io::Error,
    },
    /// Reclaiming was demanded and cannot be had.
    #[error("pages transmitted on interface {name:?} cannot be reclaimed")]
    NoReclaim {
        /// The interface.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// What was passed on is no TAP that can be used.
    #[error("the descriptor {reason}")]
    Descriptor {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Anything else.
    #[error("{step} failed")]
    Io {
        /// The request that failed.
        step: &'static str,
        /// Its error.
        source: io::Error,
    },
}

/// Whether an attach is to the one queue of a TAP, or adds a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Queueing {
    Single,
    Multi,
}

impl Queueing {
    /// The flags of TUNSETIFF.
    pub(super) const fn flags(self) -> c_int {
        match self {
            Self::Single => 0,
            Self::Multi => libc::IFF_MULTI_QUEUE,
        }
    }

    /// Checks the kernel's features.
    pub(super) fn check(self, features: c_uint) -> Result<(), TapError> {
        let flags = self.flags() as c_uint;
        if features & flags == flags { Ok(()) } else { Err(TapError::NoMultiQueue) }
    }

    /// What TUNSETIFF's error means.
    pub(super) fn attach_error(self, name: &str, source: io::Error) -> TapError {
        match attach_error(name, source) {
            TapError::NotATap { name } if self == Self::Multi => TapError::NotMultiQueue { name },
            error => error,
        }
    }
}

/// Why nothing is reclaimed where frames are small.
pub(super) fn no_super_segments() -> io::Error {
    io::Error::other("there are no super-segments without the virtio-net header's segmentation")
}

/// The kernel's own rules, checked first because `tun_tap` cuts long names silently and the
/// kernel's answer is a bare EINVAL.
pub(super) fn check_name(name: &str) -> Result<(), TapError> {
    let reason = match name {
        "" => "it is empty",
        "." | ".." => "it is a directory's name",
        _ if name.len() > NAME_BYTES_MAX => "it is longer than 15 bytes",
        _ if name.contains(['/', ':', '\0']) => "it contains '/', ':' or a zero byte",
        _ if name.contains(|c: char| c.is_whitespace()) => "it contains white space",
        _ => return Ok(()),
    };
    Err(TapError::Name { name: name.into(), reason })
}

pub(super) fn check_mtu(mtu: usize) -> Result<(), TapError> {
    if (MTU_MIN..=MTU_MAX).contains(&mtu) { Ok(()) } else { Err(TapError::Mtu { mtu }) }
}

/// Opens the TUN node; the error names what is missing.
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

/// The interface of a TAP's descriptor that somebody else has opened, and its flags. Reading from it, and writing to
/// it, does not block from now on.
pub(super) fn inherited(fd: &OwnedFd) -> Result<(String, c_int), TapError> {
    let refused = |reason| TapError::Descriptor { reason };
    let (name, flags) =
        tun::interface(fd).map_err(|source| match Errno::from_io_error(&source) {
            Some(Errno::NOTTY | Errno::BADFD | Errno::INVAL) => {
                refused("is not that of an attached TAP")
            }
            _ => TapError::Io { step: "TUNGETIFF", source },
        })?;
    if flags & libc::IFF_TAP == 0 {
        return Err(refused("is that of a TUN interface, not of a TAP"));
    }
    if flags & libc::IFF_NO_PI == 0 {
        return Err(refused("has packet information before its frames; IFF_NO_PI is needed"));
    }
    rustix::io::ioctl_fionbio(fd, true)
        .map_err(|error| TapError::Io { step: "FIONBIO", source: error.into() })?;
    Ok((name, flags))
}

/// What TUNSETIFF's error means.
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
    fn names_the_kernel_would_refuse() {
        for name in ["", ".", "..", "sixteen-bytes-xx", "a/b", "a:b", "a b", "a\0b", "tab\t"] {
            assert!(matches!(check_name(name), Err(TapError::Name { .. })), "{name:?}");
        }
        for name in ["a", "fifteen-bytes-x", "flue%d", "tap0.100"] {
            assert!(check_name(name).is_ok(), "{name:?}");
        }
    }

    #[test]
    fn mtu_range() {
        for (mtu, good) in [(67, false), (68, true), (1500, true), (65_521, true), (65_522, false)]
        {
            assert_eq!(check_mtu(mtu).is_ok(), good, "{mtu}");
        }
    }

    #[test]
    fn an_absent_node_is_named() {
        let error = open_node("/nonexistent/tun".as_ref()).unwrap_err();
        assert!(matches!(&error, TapError::NodeAbsent { .. }));
        assert!(std::format!("{error}").contains("/nonexistent/tun does not exist"));
    }

    #[test]
    fn errors_of_attaching() {
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
    fn several_queues_need_a_kernel_that_has_them() {
        let features = (libc::IFF_TAP | libc::IFF_VNET_HDR) as c_uint;
        assert!(Queueing::Single.check(features).is_ok());
        assert!(matches!(Queueing::Multi.check(features), Err(TapError::NoMultiQueue)));
        assert!(Queueing::Multi.check(features | libc::IFF_MULTI_QUEUE as c_uint).is_ok());
    }
}
