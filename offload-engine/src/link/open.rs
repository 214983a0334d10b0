//! Opening a TAP: which kind, and what exactly is missing when it cannot be had.
#![forbid(unsafe_code)]

use std::{
    boxed::Box,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    string::String,
    vec::Vec,
};

use libc::{c_int, c_uint};
use rustix::io::Errno;

use super::{
    Link, PlainTap, ReclaimMode, VnetTap, napi,
    tun::{self, NAME_BYTES_MAX},
    vnet::{Grant, VnetError},
};

/// The TUN driver's device node.
pub(super) const NODE: &str = "/dev/net/tun";

/// Smallest MTU: what every IPv4 module must forward unfragmented (RFC 791 s3.2).
pub const MTU_MIN: usize = 68;
/// Largest MTU of a TAP: the driver's 65 535 less the Ethernet header.
pub const MTU_MAX: usize = 65_521;

/// Most queues of one TAP that [`open_tap_queues`] opens.
pub const TAP_QUEUES_MAX: usize = 16;

/// Whether to use the virtio-net header, and with it checksum and segmentation offload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum VnetMode {
    /// If the kernel has it; otherwise plain, counted in `vnet_fallbacks` and logged.
    #[default]
    Auto,
    /// Yes, or fail with [`TapError::NoVnetHeader`].
    On,
    /// As `On`, but only for the checksums of transmitted frames: frames are of MTU size in both directions, and
    /// received ones complete. A checksum left out by the kernel would come with payload in pages, which costs more
    /// to read than the sum does.
    Checksum,
    /// No: complete frames of MTU size only.
    Off,
}

/// Who takes frames that are written to the TAP up the kernel's stack. See the module `napi`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum NapiMode {
    /// The writer, before write(2) returns.
    #[default]
    Off,
    /// A thread of the kernel, many at a time, merged by GRO. Needs CAP_SYS_ADMIN; without it
    /// `Off`, logged and told in [`OpenTap::threaded_napi`].
    Threaded,
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

/// Which TAP to open, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TapOptions {
    /// Interface name, 1 to 15 bytes. A pattern with one `%d` takes the first free number.
    pub name: String,
    /// Largest IP packet, [`MTU_MIN`] to [`MTU_MAX`] bytes. What the link promises; the
    /// interface's own MTU is configured with its address and not changed here.
    pub mtu: usize,
    /// Whether to use the virtio-net header.
    pub vnet: VnetMode,
    /// Whether pages of transmitted super-segments are brought back to the processor that wrote them.
    pub reclaim: ReclaimMode,
    /// Who takes written frames on.
    pub napi: NapiMode,
}

impl TapOptions {
    /// As asked, transmitted pages brought back where that helps, and no NAPI.
    pub fn new(name: impl Into<String>, mtu: usize, vnet: VnetMode) -> Self {
        let (reclaim, napi) = (ReclaimMode::default(), NapiMode::default());
        Self { name: name.into(), mtu, vnet, reclaim, napi }
    }
}

/// An open TAP.
pub struct OpenTap {
    /// The link.
    pub link: Box<dyn Link>,
    /// The interface's actual name.
    pub name: String,
    /// Whether frames carry a virtio-net header.
    pub vnet_header: bool,
    /// Whether transmitted pages are brought back.
    pub reclaims: bool,
    /// Whether a thread of the kernel takes on what is written.
    pub threaded_napi: bool,
}

impl std::fmt::Debug for OpenTap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { link, name, vnet_header, reclaims, threaded_napi } = self;
        f.debug_struct("OpenTap")
            .field("capabilities", &link.capabilities())
            .field("name", name)
            .field("vnet_header", vnet_header)
            .field("reclaims", reclaims)
            .field("threaded_napi", threaded_napi)
            .finish()
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
    /// The interface may not be created, or belongs to somebody else.
    #[error(
        "no permission for interface {name:?}: needs CAP_NET_ADMIN in this network namespace, or a \
         persistent TAP that belongs to this user (ip tuntap add dev {name} mode tap user ...)"
    )]
    NotPermitted {
        /// The interface.
        name: String,
    },
    /// Somebody else has the interface open.
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
    /// Anything else.
    #[error("{step} failed")]
    Io {
        /// The request that failed.
        step: &'static str,
        /// Its error.
        source: io::Error,
    },
}

/// Attaches to a TAP, creating it if it does not exist. A created one vanishes when the link is
/// dropped; one made persistent beforehand stays.
///
/// # Errors
/// See [`TapError`]: each kind names what is missing.
pub fn open_tap(options: &TapOptions) -> Result<OpenTap, TapError> {
    open_tap_at(NODE.as_ref(), options, Queueing::Single)
}

/// Attaches to a TAP once for each of its queues, which are links of their own: the kernel spreads flows over them,
/// and a flow follows the queue on which frames of it were last written. All have the same capabilities. For one
/// queue it is [`open_tap`].
///
/// # Errors
/// [`TapError::Queues`]; else as [`open_tap`].
pub fn open_tap_queues(options: &TapOptions, queues: usize) -> Result<Vec<OpenTap>, TapError> {
    match queues {
        1 => return Ok(Vec::from([open_tap(options)?])),
        2..=TAP_QUEUES_MAX => {}
        _ => return Err(TapError::Queues { queues }),
    }
    let node = Path::new(NODE);
    let first = open_tap_at(node, options, Queueing::Multi)?;
    // The header is the whole device's: the others follow the first.
    let vnet = match (first.vnet_header, options.vnet) {
        (false, _) => VnetMode::Off,
        (true, VnetMode::Checksum) => VnetMode::Checksum,
        (true, _) => VnetMode::On,
    };
    let others = TapOptions { name: first.name.clone(), vnet, ..*options };
    let mut opened = Vec::from([first]);
    for _ in 1..queues {
        opened.push(open_tap_at(node, &others, Queueing::Multi)?);
    }
    let capabilities = opened[0].link.capabilities();
    if opened.iter().any(|queue| queue.link.capabilities() != capabilities) {
        let source = io::Error::other("its queues were granted different offloads");
        return Err(TapError::Io { step: "TUNSETOFFLOAD", source });
    }
    Ok(opened)
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

/// [`open_tap`] with the node that the attempt with a vnet header opens.
pub(super) fn open_tap_at(
    node: &Path,
    options: &TapOptions,
    queueing: Queueing,
) -> Result<OpenTap, TapError> {
    let mut opened = attach(node, options, queueing)?;
    if options.napi == NapiMode::Threaded {
        match napi::thread(&opened.name) {
            Ok(()) => opened.threaded_napi = true,
            Err(error) => {
                let interface = &opened.name;
                tracing::warn!(%interface, %error, "no threaded NAPI; writers take frames on");
                // NAPI without a thread costs more than it brings.
                drop(opened);
                let without = TapOptions { napi: NapiMode::Off, ..options.clone() };
                opened = attach(node, &without, queueing)?;
            }
        }
    }
    let capabilities = opened.link.capabilities();
    tracing::info!(
        interface = %opened.name,
        vnet_header = opened.vnet_header,
        reclaims = opened.reclaims,
        threaded_napi = opened.threaded_napi,
        mtu = capabilities.mtu,
        tso4_max = capabilities.tso4_max,
        tso6_max = capabilities.tso6_max,
        "TAP open"
    );
    Ok(opened)
}

fn attach(node: &Path, options: &TapOptions, queueing: Queueing) -> Result<OpenTap, TapError> {
    let TapOptions { name, mtu, vnet, reclaim, napi } = options;
    let open_plain = || PlainTap::open_queue(name, *mtu, queueing, *napi);
    let open_vnet = |granted| VnetTap::open_node(node, name, *mtu, queueing, *napi, granted);
    let with_header = |mut tap: VnetTap| {
        tap.set_reclaim(*reclaim, queueing)?;
        Ok::<_, TapError>(with_header(tap))
    };
    let without_header = |tap: PlainTap| {
        if *reclaim == ReclaimMode::On {
            let (name, source) = (tap.name().into(), no_super_segments());
            return Err(TapError::NoReclaim { name, source });
        }
        Ok(plain(tap))
    };
    match vnet {
        VnetMode::Off => without_header(open_plain()?),
        VnetMode::On => with_header(open_vnet(Grant::Richest)?),
        VnetMode::Checksum => with_header(open_vnet(Grant::Checksum)?),
        VnetMode::Auto => match open_vnet(Grant::Richest) {
            Ok(tap) => with_header(tap),
            Err(VnetError::Fatal(error)) => Err(error),
            Err(VnetError::Unsupported { step, source }) => {
                tracing::warn!(
                    interface = %name,
                    step,
                    error = %source,
                    "no virtio-net header; frames of MTU size only"
                );
                let mut tap = open_plain()?;
                tap.count_fallback();
                without_header(tap)
            }
        },
    }
}

/// Why nothing is reclaimed where frames are small.
pub(super) fn no_super_segments() -> io::Error {
    io::Error::other("there are no super-segments without the virtio-net header's segmentation")
}

fn plain(tap: PlainTap) -> OpenTap {
    let name = tap.name().into();
    OpenTap { link: Box::new(tap), name, vnet_header: false, reclaims: false, threaded_napi: false }
}

fn with_header(tap: VnetTap) -> OpenTap {
    let (name, reclaims) = (tap.name().into(), tap.reclaims());
    OpenTap { link: Box::new(tap), name, vnet_header: true, reclaims, threaded_napi: false }
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

/// Opens the TUN node, and says what is wrong with it otherwise.
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
        let options = TapOptions::new("t0", 1500, VnetMode::Auto);
        for queues in [0, TAP_QUEUES_MAX + 1] {
            let error = open_tap_queues(&options, queues).unwrap_err();
            assert!(matches!(error, TapError::Queues { queues: given } if given == queues));
        }
    }
}
