//! The end of the device ([`flue_verbs_core::loss`]): by the loss of its link, or by a panic of the library.
//!
//! A panic may be on any thread: the program's in a call, one of the adapter's, that of a callback. The panic hook sees
//! all of them, and has a thread of its own tell the program, since the one that panics may still hold locks. A call
//! that has panicked returns when the program was told.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, set_hook},
    sync::{
        Once,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use flue_verbs_abi::enums::IBV_EVENT_DEVICE_FATAL;
use flue_verbs_core::{
    engine::Engine,
    events::{Acknowledgements, Listener},
    loss,
};

use crate::async_events::{AsyncEvent, OPEN};

/// Set by the first panic; the device is unusable from then on.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// Whether anything has panicked.
#[inline]
pub(crate) fn has_panicked() -> bool {
    PANICKED.load(Ordering::Relaxed)
}

/// Has panics end the device, and be in the log: standard output and error belong to the program.
pub(crate) fn install_hook() {
    static INSTALLED: Once = Once::new();
    // Tests of this crate have a hook of their own.
    if cfg!(not(test)) {
        INSTALLED.call_once(|| {
            set_hook(Box::new(|panic| {
                tracing::error!("{panic}");
                if !PANICKED.swap(true, Ordering::Relaxed) {
                    // Without a thread the program is told by the call, if it was one.
                    let _ = thread::Builder::new().name("flue-fatal".into()).spawn(end_device);
                }
            }));
        });
    }
}

/// A call has panicked: ends the device, or waits until another thread has.
#[cold]
pub(crate) fn panicked() {
    PANICKED.store(true, Ordering::Relaxed);
    end_device();
}

fn end_device() {
    static ENDED: Once = Once::new();
    ENDED.call_once(|| {
        // After a panic anything may panic again.
        let _ = catch_unwind(AssertUnwindSafe(|| loss::fail(&teller())));
    });
}

/// Has the program hear of the end of the adapter's link.
pub(crate) fn watch(engine: &'static Engine) {
    loss::watch(engine, teller());
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
