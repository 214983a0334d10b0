//! The end of the device: its link is gone, or the library has panicked.
//!
//! By then the core has ended all connections and flushed what was posted. Each identifier that was bound to the device
//! gets `RDMA_CM_EVENT_DEVICE_REMOVAL`, each open device `IBV_EVENT_DEVICE_FATAL`, and no queue of events lets anybody
//! wait any more. The device does not come back: neither does the link, nor what a panic has left behind.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{
    async_event, cm,
    device::Engine,
    event_queue,
    process::{GENERATIONS_MAX, generation},
    qp,
};

/// Whether a process has lost its device.
static ARE_LOST: [AtomicBool; GENERATIONS_MAX] =
    [const { AtomicBool::new(false) }; GENERATIONS_MAX];

/// Whether this process has lost its device.
pub fn is_lost() -> bool {
    ARE_LOST.get(generation()).is_some_and(|lost| lost.load(Ordering::Acquire))
}

/// Reports the loss of the device's link to the program.
pub fn watch(engine: &'static Engine) {
    engine.with(|core, _| core.notify_of_loss(Box::new(end)));
}

/// Resets all connections at the end of the process, for a node without a launcher. The kernel resets those of its
/// sockets, and a launcher those of a node, unless it has ended with the parent of this process.
pub fn reset_connections() {
    cm::close_all();
    qp::fail_all();
}

/// The library has panicked: ends the device. Not for callbacks.
pub fn fail() {
    if let Some(engine) = Engine::started() {
        engine.abandon();
    }
    // The core may not have been able to say it.
    end();
}

fn end() {
    let Some(is_lost) = ARE_LOST.get(generation()) else { return };
    if is_lost.swap(true, Ordering::AcqRel) {
        return;
    }
    tracing::error!("the device is gone");
    cm::remove_device();
    async_event::device_failed();
    event_queue::close_all();
}
