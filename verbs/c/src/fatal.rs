//! C interface of the failure of the device: panics of the library end it.

use flue_verbs_core::fatal;
use rdma_over_tcp::adapter::PanicHandler;

static PANIC_HANDLER: PanicHandler = PanicHandler::new(fatal::fail);

/// Whether anything has panicked.
#[inline]
pub(crate) fn has_panicked() -> bool {
    PANIC_HANDLER.has_panicked()
}

/// Has panics end the device.
pub(crate) fn install_hook() {
    // Tests of this crate have a hook of their own.
    if cfg!(not(test)) {
        PANIC_HANDLER.install_hook();
    }
}

/// A call has panicked: ends the device, or waits until another thread has.
#[cold]
pub(crate) fn panicked() {
    PANIC_HANDLER.panicked();
}
