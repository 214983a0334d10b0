//! Test bed of a baseline: a network namespace, one or two TAPs, and a bridge.

use std::{
    io::{IoSlice, IoSliceMut},
    net::Ipv4Addr,
    os::fd::OwnedFd,
};

use flue_network::{Netlink, environment, namespace, plumb};
use flue_report::failure::Failure;
use ipnet::IpNet;
use offload_engine::link::{Link, NapiMode, OpenTap, ReclaimMode, TapOptions, VnetMode};
use rustix::io::Errno;

use super::{Common, frame::Station, frame::VNET_BYTES};

/// Stations of a run; against a kernel socket the far one belongs to the kernel.
pub(super) const NEAR: Station = Station {
    mac: [0x02, 0, 0x0a, 0x58, 0, 2],
    address: Ipv4Addr::new(10, 88, 0, 2),
    port: 40_000,
};
pub(super) const FAR: Station =
    Station { mac: [0x02, 0, 0x0a, 0x58, 0, 1], address: Ipv4Addr::new(10, 88, 0, 1), port: 5001 };
const PREFIX_LEN: u8 = 24;

const BRIDGE: &str = "yard-bridge";

/// Buffer size for the largest frame.
pub(super) const FRAME_BYTES_MAX: usize = 66_000;

/// Direct access to a TAP.
pub(super) struct Tap {
    fd: OwnedFd,
    name: String,
    vnet_header: bool,
    /// Keeps the interface alive.
    _link: Box<dyn Link>,
}

impl Tap {
    /// Returns true if frames have a virtio-net header.
    pub(super) const fn vnet_header(&self) -> bool {
        self.vnet_header
    }

    /// Returns the length of the virtio-net header, bytes.
    pub(super) const fn front_bytes(&self) -> usize {
        if self.vnet_header { VNET_BYTES } else { 0 }
    }

    /// Reads one frame, with its virtio-net header. Returns the total length; `None` if no frame is available.
    pub(super) fn read(&self, buffer: &mut [u8]) -> Result<Option<usize>, Failure> {
        self.received(rustix::io::read(&self.fd, buffer))
    }

    /// Reads one frame: the first bytes, with the virtio-net header, into `head`, the others into `rest`. Returns the
    /// total length; `None` if no frame is available.
    pub(super) fn scatter(
        &self,
        head: &mut [u8],
        rest: &mut [u8],
    ) -> Result<Option<usize>, Failure> {
        let slices = &mut [IoSliceMut::new(head), IoSliceMut::new(rest)];
        self.received(rustix::io::readv(&self.fd, slices))
    }

    fn received(&self, read: Result<usize, Errno>) -> Result<Option<usize>, Failure> {
        match read {
            Ok(bytes) => Ok(Some(bytes)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(self.failed("read", error)),
        }
    }

    /// Writes one frame, with its virtio-net header; retries while the kernel's queue is full.
    pub(super) fn write(&self, frame: &[u8]) -> Result<(), Failure> {
        self.retry(|| rustix::io::write(&self.fd, frame))
    }

    /// Writes one frame, with headers and payload from separate buffers.
    pub(super) fn gather(&self, head: &[u8], payload: &[u8]) -> Result<(), Failure> {
        if payload.is_empty() {
            return self.write(head);
        }
        let slices = [IoSlice::new(head), IoSlice::new(payload)];
        self.retry(|| rustix::io::writev(&self.fd, &slices))
    }

    fn retry(&self, write: impl Fn() -> Result<usize, Errno>) -> Result<(), Failure> {
        loop {
            match write() {
                Ok(_) => return Ok(()),
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => rustix::thread::sched_yield(),
                Err(error) => return Err(self.failed("write", error)),
            }
        }
    }

    fn failed(&self, what: &str, error: Errno) -> Failure {
        Failure::work(format!("TAP {}: {what}: {error}", self.name))
    }
}

/// Attachment of the TAPs of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Attachment {
    /// The kernel's stack, with the address of [`FAR`].
    Kernel,
    /// A bridge.
    Bridge,
}

/// Requested properties of a TAP.
#[derive(Clone, Copy, Debug)]
pub(super) struct TapRequest {
    pub(super) attachment: Attachment,
    pub(super) mtu_bytes: u16,
    /// Offloads of the virtio-net header.
    pub(super) vnet: VnetMode,
}

/// Test bed.
pub(super) struct TestBed {
    netlink: Netlink,
    /// TAPs named by `--tap`.
    given: Vec<String>,
    napi: NapiMode,
    opened: Vec<String>,
    has_bridge: bool,
}

impl TestBed {
    /// Creates the test bed in a new network namespace; with `--tap` in the current one.
    pub(super) fn make(common: &Common, taps: usize) -> Result<Self, Failure> {
        let given = common.tap.clone();
        if !given.is_empty() && given.len() != taps {
            let message = format!("--tap: {} TAPs, expected {taps}", given.len());
            return Err(Failure::usage(message));
        }
        environment::check_tun()?;
        if given.is_empty() {
            namespace::enter()?;
            // Best effort: without it frames only take longer.
            let _ = plumb::bypass_packet_filter();
        }
        let netlink = Netlink::open()?;
        let napi = common.napi;
        Ok(Self { netlink, given, napi, opened: Vec::new(), has_bridge: false })
    }

    /// Opens the next TAP, and configures the kernel's side.
    pub(super) fn open(&mut self, tap_request: TapRequest) -> Result<Tap, Failure> {
        let TapRequest { attachment, mtu_bytes, vnet } = tap_request;
        let is_given = !self.given.is_empty();
        let number = self.opened.len();
        let name = self.given.get(number).cloned().unwrap_or_else(|| format!("yard{number}"));
        let (reclaim, napi) = (ReclaimMode::Off, self.napi);
        let options =
            TapOptions { reclaim, napi, ..TapOptions::new(name.clone(), mtu_bytes.into(), vnet) };
        let makes_bridge = attachment == Attachment::Bridge && !is_given;
        if makes_bridge && !self.has_bridge {
            plumb::make_bridge(&mut self.netlink, BRIDGE, mtu_bytes)?;
            self.has_bridge = true;
        }
        let prefix = IpNet::new(FAR.address.into(), PREFIX_LEN)
            .map_err(|error| Failure::work(error.to_string()))?;
        let side = plumb::KernelSide {
            bridge: makes_bridge.then_some(BRIDGE),
            addresses: if attachment == Attachment::Kernel { vec![prefix] } else { Vec::new() },
            txqueuelen: None,
        };
        let opened = plumb::open_taps(&mut self.netlink, &options, 1, &side)?.pop();
        let OpenTap { link, vnet_header, threaded_napi, .. } =
            opened.expect("one queue was requested");
        if napi == NapiMode::Threaded && !threaded_napi {
            return Err(Failure::lacking(format!("TAP {name}: threaded NAPI not supported")));
        }
        let lacking = || Failure::work(format!("TAP {name}: no descriptor"));
        let fd = link.descriptor().ok_or_else(lacking)?;
        let fd = fd.try_clone_to_owned();
        let fd = fd.map_err(|error| Failure::work(format!("TAP {name}: {error}")))?;
        self.opened.push(name.clone());
        Ok(Tap { fd, name, vnet_header, _link: link })
    }

    /// Returns the kernel's station on `tap`.
    pub(super) fn kernel_station(&mut self, tap: &Tap) -> Result<Station, Failure> {
        let mac = self.netlink.link(&tap.name)?.mac;
        let lacking = || Failure::work(format!("TAP {}: no Ethernet address", tap.name));
        Ok(Station { mac: mac.ok_or_else(lacking)?, ..FAR })
    }

    /// Returns the number of frames that the kernel dropped because the queue of a TAP was full.
    pub(super) fn dropped_frames(&mut self) -> Result<u64, Failure> {
        let mut total = 0;
        for name in &self.opened {
            total += self.netlink.link(name)?.tx_dropped;
        }
        Ok(total)
    }
}
