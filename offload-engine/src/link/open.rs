//! Opening a TAP: with the virtio-net header or without, one queue or several, and what falls back.
#![forbid(unsafe_code)]

use std::{boxed::Box, io, os::fd::OwnedFd, path::Path, string::String, vec::Vec};

use super::{
    Link, PlainTap, ReclaimMode, VnetTap,
    attach::{self, NODE, NapiMode, Queueing, TAP_QUEUES_MAX, TapError, no_super_segments},
    napi,
    vnet::{Grant, VnetError},
};

crate::option_enum! {
    /// Whether frames of a TAP carry a virtio-net header, through which the kernel segments and checksums
    /// super-segments.
    pub enum VnetMode {
        /// Where the kernel has it; else frames of at most one MTU, with a warning
        // Counted in `LinkStats::vnet_fallbacks`.
        #[default]
        Auto,
        /// Fail where the kernel does not have it
        // With `TapError::NoVnetHeader`.
        On,
        /// For checksums of sent frames only: frames of at most one MTU, received ones complete
        // A checksum left out by the kernel would come with payload in pages, which costs more to read than the sum
        // does.
        Checksum,
        /// Complete frames of at most one MTU
        Off,
    }
}

/// Which TAP to open, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TapOptions {
    /// Interface name, 1 to 15 bytes. A pattern with one `%d` takes the first free number.
    pub name: String,
    /// Largest IP packet, [`MTU_MIN`](super::MTU_MIN) to [`MTU_MAX`](super::MTU_MAX) bytes. What the link promises; the
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

/// Takes over the descriptor of a TAP that somebody else has opened and passed on. Name and NAPI are those of the
/// descriptor; it has a virtio-net header or not, and cannot be told otherwise.
///
/// # Errors
/// [`TapError::Descriptor`]; [`TapError::NoVnetHeader`] if one is demanded; else as [`open_tap`].
pub fn open_tap_descriptor(descriptor: OwnedFd, options: &TapOptions) -> Result<OpenTap, TapError> {
    let TapOptions { name: _, mtu, vnet, reclaim, napi: _ } = options;
    attach::check_mtu(*mtu)?;
    let (name, flags) = attach::inherited(&descriptor)?;
    let queueing = match flags & libc::IFF_MULTI_QUEUE {
        0 => Queueing::Single,
        _ => Queueing::Multi,
    };
    let grant = match (flags & libc::IFF_VNET_HDR != 0, vnet) {
        (true, VnetMode::Auto | VnetMode::On) => Some(Grant::Richest),
        (true, VnetMode::Checksum) => Some(Grant::Checksum),
        (true, VnetMode::Off) => {
            let reason = "has a virtio-net header before its frames, and plain ones are asked for";
            return Err(TapError::Descriptor { reason });
        }
        (false, VnetMode::Auto | VnetMode::Off) => None,
        (false, VnetMode::On | VnetMode::Checksum) => {
            let source = io::ErrorKind::Unsupported.into();
            return Err(TapError::NoVnetHeader { step: "IFF_VNET_HDR of the descriptor", source });
        }
    };
    let opened = match grant {
        Some(grant) => {
            with_header(VnetTap::on(descriptor, name, *mtu, grant)?, *reclaim, queueing)?
        }
        None => plain(PlainTap::on(descriptor, name, *mtu)?, *reclaim)?,
    };
    log(&opened);
    Ok(opened)
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
    log(&opened);
    Ok(opened)
}

fn log(opened: &OpenTap) {
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
}

fn attach(node: &Path, options: &TapOptions, queueing: Queueing) -> Result<OpenTap, TapError> {
    let TapOptions { name, mtu, vnet, reclaim, napi } = options;
    let open_plain = || PlainTap::open_queue(name, *mtu, queueing, *napi);
    let open_vnet = |granted| VnetTap::open_node(node, name, *mtu, queueing, *napi, granted);
    match vnet {
        VnetMode::Off => plain(open_plain()?, *reclaim),
        VnetMode::On => with_header(open_vnet(Grant::Richest)?, *reclaim, queueing),
        VnetMode::Checksum => with_header(open_vnet(Grant::Checksum)?, *reclaim, queueing),
        VnetMode::Auto => match open_vnet(Grant::Richest) {
            Ok(tap) => with_header(tap, *reclaim, queueing),
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
                plain(tap, *reclaim)
            }
        },
    }
}

fn plain(tap: PlainTap, reclaim: ReclaimMode) -> Result<OpenTap, TapError> {
    let name = tap.name().into();
    if reclaim == ReclaimMode::On {
        return Err(TapError::NoReclaim { name, source: no_super_segments() });
    }
    let link = Box::new(tap);
    Ok(OpenTap { link, name, vnet_header: false, reclaims: false, threaded_napi: false })
}

fn with_header(
    mut tap: VnetTap,
    reclaim: ReclaimMode,
    queueing: Queueing,
) -> Result<OpenTap, TapError> {
    tap.set_reclaim(reclaim, queueing)?;
    let (name, reclaims) = (tap.name().into(), tap.reclaims());
    let link = Box::new(tap);
    Ok(OpenTap { link, name, vnet_header: true, reclaims, threaded_napi: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_queues() {
        let options = TapOptions::new("t0", 1500, VnetMode::Auto);
        for queues in [0, TAP_QUEUES_MAX + 1] {
            let error = open_tap_queues(&options, queues).unwrap_err();
            assert!(matches!(error, TapError::Queues { queues: given } if given == queues));
        }
    }
}
