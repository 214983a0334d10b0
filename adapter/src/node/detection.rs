//! Duplicate address detection on a TAP, before its node starts ([`host_stack::dad`] has the packets).
//!
//! Timers: RFC 5227 §1.1 probes three times in up to seven seconds, for networks whose switches take seconds to
//! forward. Here the TAP already forwards, and another station of this machine replies within the time of a wake-up. So
//! a bridge port is probed immediately and again after [`REPEAT`], and observed for [`WATCH`]. A TAP that this process
//! created and that is no bridge port has only the kernel on its other end. The kernel replies while the probe is
//! written, so that TAP is observed for [`WATCH_ALONE`].

use std::{io, net::IpAddr, time::Duration};

use host_stack::dad;
use offload_engine::{
    link::{Link, OpenTap, RxBatch, TxFrame, TxOffload},
    state::MacAddress,
    time::Instant,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::options::NodeOptions;
use crate::error::Error;

/// Pause before the second probe.
const REPEAT: Duration = Duration::from_millis(40);
/// Observation time of a bridge port, or of a TAP whose other end is unknown.
const WATCH: Duration = Duration::from_millis(100);
/// Observation time of a TAP that has only the kernel on its other end.
const WATCH_ALONE: Duration = Duration::from_millis(10);
/// Maximum number of frames received per call.
const FRAMES_MAX: usize = 64;

/// Checks that no other station uses an address of the node. Frames that arrive during the check are dropped.
/// `is_alone`: only the kernel is on the other end of the TAP.
///
/// # Errors
/// [`Error::prerequisite`], which names the address and the station; or the device was removed.
pub(crate) fn detect_duplicates(
    taps: &mut [OpenTap],
    options: &NodeOptions,
    is_alone: bool,
) -> Result<(), Error> {
    let mac = options.mac();
    let ours: Vec<_> = options.addresses.iter().map(|prefix| prefix.address()).collect();
    let found = watch(taps, mac, &ours, is_alone)
        .map_err(|error| Error::operation(format!("duplicate address detection: {error}")))?;
    let Some((address, station)) = found else { return Ok(()) };
    let error = format!("address {address}: in use by station {station}");
    let hint = "choose another --addr, or skip the check with --dad off";
    Err(flue_network::Error::prerequisite(error).with_hint(hint).into())
}

fn watch(
    taps: &mut [OpenTap],
    mac: MacAddress,
    ours: &[IpAddr],
    is_alone: bool,
) -> io::Result<Option<(IpAddr, MacAddress)>> {
    let rounds: &[Duration] = if is_alone { &[WATCH_ALONE] } else { &[REPEAT, WATCH - REPEAT] };
    let mut batch = RxBatch::new(FRAMES_MAX);
    for time in rounds {
        if let Some(tap) = taps.first_mut() {
            ours.iter().filter_map(|own| dad::probe(mac, *own)).for_each(|it| send(tap, &it));
        }
        let deadline = std::time::Instant::now() + *time;
        loop {
            // A reply may arrive on any queue.
            for tap in &mut *taps {
                batch.clear();
                tap.link.receive(Instant::ZERO, &mut batch)?;
                let mut found = batch.frames().map(|frame| dad::conflict(frame.data, mac, ours));
                if let Some(conflict) = found.find_map(|conflict| conflict) {
                    return Ok(Some(conflict));
                }
            }
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                break;
            }
            wait(taps, left)?;
        }
    }
    Ok(None)
}

/// Waits until a frame has arrived, or for `time`.
fn wait(taps: &[OpenTap], time: Duration) -> io::Result<()> {
    let timeout = Timespec::try_from(time).map_err(io::Error::other)?;
    let descriptors = taps.iter().filter_map(|tap| tap.link.descriptor());
    let mut ready: Vec<_> =
        descriptors.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN)).collect();
    match poll(&mut ready, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn send(tap: &mut OpenTap, frame: &[u8]) {
    let frame = TxFrame {
        offload: TxOffload::default(),
        head: frame,
        payload: &[],
        lender: None,
        comment: None,
    };
    // Fails if the interface is down; then it has no other stations.
    let _ = tap.link.transmit(Instant::ZERO, &frame);
    tap.link.flush(Instant::ZERO);
}
