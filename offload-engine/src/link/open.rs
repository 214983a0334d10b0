//! Opening of a TAP, with or without the virtio-net header, with one queue or several, and fallbacks.
#![forbid(unsafe_code)]

use std::{boxed::Box, io, os::fd::OwnedFd, path::Path, string::String, vec::Vec};

use super::{
    Link, PlainTap, ReclaimMode, VnetTap,
    attach::{self, NODE, NapiMode, Queueing, TAP_QUEUES_MAX, TapError, no_gso_packets},
    napi,
    vnet::{Grant, VnetError},
};

crate::option_enum! {
    /// Use of a virtio-net header on a TAP, by which the kernel segments and checksums GSO packets.
    pub enum VnetMode {
        /// If the kernel supports it; otherwise frames of at most one MTU, with a warning
        // Counted in `LinkStats::vnet_fallbacks`.
        #[default]
        Auto,
        /// Fail if the kernel does not support it
        // With `TapError::NoVnetHeader`.
        On,
        /// Checksums of sent frames only: frames of at most one MTU, received ones complete
        // Checksums of received frames are complete: a checksum omitted by the kernel implies payload in pages. Reading
        // these costs more than the sum.
        Checksum,
        /// Complete frames of at most one MTU
        Off,
    }
}

/// Options for opening a TAP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TapOptions {
    /// Interface name, 1 to 15 bytes. A pattern with one `%d` selects the first free number.
    pub name: String,
    /// Largest IP packet, [`MTU_MIN`](super::MTU_MIN) to [`MTU_MAX`](super::MTU_MAX) bytes. This is the limit of the
    /// link. The interface's own MTU is configured with its address and not changed here.
    pub mtu: usize,
    /// Use of the virtio-net header.
    pub vnet: VnetMode,
    /// Reclaiming of pages of transmitted GSO packets.
    pub reclaim: ReclaimMode,
    /// NAPI mode for written frames.
    pub napi: NapiMode,
}

impl TapOptions {
    /// Creates options with the given values, default reclaiming, and no NAPI.
    pub fn new(name: impl Into<String>, mtu: usize, vnet: VnetMode) -> Self {
        let (reclaim, napi) = (ReclaimMode::default(), NapiMode::default());
        Self { name: name.into(), mtu, vnet, reclaim, napi }
    }
}

/// Open TAP.
pub struct OpenTap {
    /// Link of the TAP.
    pub link: Box<dyn Link>,
    /// Actual name of the interface.
    pub name: String,
    /// True if frames have a virtio-net header.
    pub vnet_header: bool,
    /// True if pages of transmitted frames are reclaimed.
    pub reclaims: bool,
    /// True if a kernel thread processes written frames.
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

/// Attaches to a TAP and creates it if it does not exist. A created TAP is removed when the link is dropped. One that
/// was made persistent before remains.
///
/// # Errors
/// [`TapError`] names what is missing.
pub fn open_tap(options: &TapOptions) -> Result<OpenTap, TapError> {
    open_tap_at(NODE.as_ref(), options, Queueing::Single)
}

/// Attaches to each queue of a TAP. Each queue is a separate link. The kernel distributes flows over them, and a flow
/// follows the queue on which its frames were last written. All have the same capabilities. With one queue it is the
/// same as [`open_tap`].
///
/// # Errors
/// [`TapError::Queues`], or an error of [`open_tap`].
pub fn open_tap_queues(options: &TapOptions, queues: usize) -> Result<Vec<OpenTap>, TapError> {
    match queues {
        1 => return Ok(Vec::from([open_tap(options)?])),
        2..=TAP_QUEUES_MAX => {}
        _ => return Err(TapError::Queues { queues }),
    }
    let node = Path::new(NODE);
    let first = open_tap_at(node, options, Queueing::Multi)?;
    // The header applies to the whole device, so the other queues use that of the first.
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
        let source = io::Error::other("queues with different offloads");
        return Err(TapError::Io { step: "TUNSETOFFLOAD", source });
    }
    Ok(opened)
}

/// Opens an inherited descriptor of a TAP. Name and NAPI mode are those of the descriptor. Its virtio-net header cannot
/// be changed.
///
/// # Errors
/// [`TapError::Descriptor`]; [`TapError::NoVnetHeader`] if one is required; or an error of [`open_tap`].
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
            let reason = "has a virtio-net header before frames: expected plain frames";
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

/// Variant of [`open_tap`] with the node that is opened for a vnet header.
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
                tracing::warn!(%interface, %error, "threaded NAPI disabled: writers process frames");
                // NAPI without a thread costs more than it saves.
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
                    "virtio-net header disabled: no GSO packets"
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
        return Err(TapError::NoReclaim { name, source: no_gso_packets() });
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
    fn number_of_queues_is_checked() {
        let options = TapOptions::new("t0", 1500, VnetMode::Auto);
        for queues in [0, TAP_QUEUES_MAX + 1] {
            let error = open_tap_queues(&options, queues).unwrap_err();
            assert!(matches!(error, TapError::Queues { queues: given } if given == queues));
        }
    }
}
