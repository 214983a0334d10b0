//! Failure of the device: the loss of its link, or a panic of the library.
//!
//! By then the core has ended all connections and flushed what was posted. Each identifier that was bound to the device
//! gets `RDMA_CM_EVENT_DEVICE_REMOVAL`, each open device `IBV_EVENT_DEVICE_FATAL`, and no queue of events lets anybody
//! wait any more. The device does not come back: neither does the link, nor what a panic has left behind.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{
    async_event, cm,
    device::Device,
    event_queue,
    process::{GENERATIONS_MAX, generation},
    qp,
};

/// Whether a process has lost its device.
static HAVE_FAILED: [AtomicBool; GENERATIONS_MAX] =
    [const { AtomicBool::new(false) }; GENERATIONS_MAX];

/// Whether this process has lost its device.
pub fn has_failed() -> bool {
    HAVE_FAILED.get(generation()).is_some_and(|lost| lost.load(Ordering::Acquire))
}

/// Reports the loss of the device's link to the program.
pub fn report_link_loss(device: &'static Device) {
    device.with(|core, _| core.notify_of_loss(Box::new(end)));
}

/// Resets all connections at the end of the process, for a node without a launcher. The kernel resets those of its
/// sockets, and a launcher those of a node, unless it has ended with the parent of this process.
pub fn reset_connections() {
    cm::close_all();
    qp::fail_all();
}

/// The library has panicked: ends the device. Not for callbacks.
pub fn fail() {
    if let Some(device) = Device::started() {
        device.abandon();
    }
    // The core may not have been able to say it.
    end();
}

fn end() {
    let Some(has_failed) = HAVE_FAILED.get(generation()) else { return };
    if has_failed.swap(true, Ordering::AcqRel) {
        return;
    }
    tracing::error!("device failed: its connections are closed");
    cm::remove_device();
    async_event::device_failed();
    event_queue::close_all();
}
