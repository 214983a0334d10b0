//! Failure of the device: the loss of its link, or a panic of the library.
//!
//! The core has closed all connections and flushed posted requests before. Each identifier that was bound to the device
//! gets `RDMA_CM_EVENT_DEVICE_REMOVAL`, each open device `IBV_EVENT_DEVICE_FATAL`, and event queues no longer block.
//! The failure is permanent.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{
    async_event, cm,
    device::Device,
    event_queue,
    process::{GENERATIONS_MAX, generation},
    qp,
};

/// True if the device of a generation has failed.
static HAVE_FAILED: [AtomicBool; GENERATIONS_MAX] =
    [const { AtomicBool::new(false) }; GENERATIONS_MAX];

/// Returns true if the device of this process has failed.
pub fn has_failed() -> bool {
    HAVE_FAILED.get(generation()).is_some_and(|lost| lost.load(Ordering::Acquire))
}

/// Reports the loss of the device's link to the program.
pub fn report_link_loss(device: &'static Device) {
    device.with(|core, _| core.notify_on_transport_loss(Box::new(end)));
}

/// Resets all connections at the exit of the process, for a node whose launcher has exited. Otherwise the kernel resets
/// those of its sockets, and the launcher those of a node.
pub fn reset_connections() {
    cm::close_all();
    qp::fail_all();
}

/// Closes the device after a panic of the library. Must not be called from a callback of the core.
pub fn fail() {
    if let Some(device) = Device::started() {
        device.abandon();
    }
    // The core does not report the loss if the panic has left it unusable.
    end();
}

fn end() {
    let Some(has_failed) = HAVE_FAILED.get(generation()) else { return };
    if has_failed.swap(true, Ordering::AcqRel) {
        return;
    }
    tracing::error!("device failed: connections closed");
    cm::remove_device();
    async_event::device_failed();
    event_queue::close_all();
}
