//! C interface of the failure of the device: panics of the library end it.

use flue_verbs_core::fatal;
use rdma_over_tcp::adapter::PanicHandler;

static PANIC_HANDLER: PanicHandler = PanicHandler::new(fatal::fail);

/// Returns true after a panic.
#[inline]
pub(crate) fn has_panicked() -> bool {
    PANIC_HANDLER.has_panicked()
}

/// Installs the panic hook, which closes the device.
pub(crate) fn install_hook() {
    // Tests of this crate use their own hook.
    if cfg!(not(test)) {
        PANIC_HANDLER.install_hook();
    }
}

/// Closes the device after a panic of a call, or waits until another thread has done so.
#[cold]
pub(crate) fn panicked() {
    PANIC_HANDLER.panicked();
}
