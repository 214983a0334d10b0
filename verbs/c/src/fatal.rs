//! The end of the device ([`flue_verbs_core::fatal`]): by the loss of its link, or by a panic of the library.

use flue_verbs_abi::enums::IBV_EVENT_DEVICE_FATAL;
use flue_verbs_core::{
    device::Engine,
    event_queue::{Acknowledgements, Listener},
    fatal,
};
use rdma_over_tcp::adapter::PanicHandler;

use crate::async_events::{AsyncEvent, OPEN};

static RESORT: PanicHandler = PanicHandler::new(|| fatal::fail(&teller()));

/// Whether anything has panicked.
#[inline]
pub(crate) fn has_panicked() -> bool {
    RESORT.has_panicked()
}

/// Has panics end the device.
pub(crate) fn install_hook() {
    // Tests of this crate have a hook of their own.
    if cfg!(not(test)) {
        RESORT.install_hook();
    }
}

/// A call has panicked: ends the device, or waits until another thread has.
#[cold]
pub(crate) fn panicked() {
    RESORT.panicked();
}

/// Has the program hear of the end of the adapter's link.
pub(crate) fn watch(engine: &'static Engine) {
    fatal::watch(engine, teller());
}

/// Tells all that have opened the device.
fn teller() -> Listener {
    Listener(Box::new(|| {
        for events in OPEN.members() {
            let acknowledgements = Acknowledgements::default().into();
            events.push(AsyncEvent { kind: IBV_EVENT_DEVICE_FATAL, name: 0, acknowledgements });
        }
    }))
}
