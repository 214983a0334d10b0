//! Panics on demand, for tests: in builds with debug assertions only.

use crate::config::Carrier;

/// A test's wish, when it calls `NdkQueryAdapterInfo`.
#[inline]
pub(crate) fn inject(carrier: &Carrier) {
    #[cfg(debug_assertions)]
    on_demand::inject(carrier);
    #[cfg(not(debug_assertions))]
    let _ = carrier;
}

#[cfg(debug_assertions)]
mod on_demand {
    use std::env;

    use offload_engine::thread;

    use crate::config::Carrier;

    /// Where it is to panic: set by the program while it runs.
    const WHERE: &str = "FLUE_NDKPI_TEST_PANIC";

    pub(super) fn inject(carrier: &Carrier) {
        let Ok(wish) = env::var(WHERE) else { return };
        match wish.as_str() {
            "call" => panic!("a test's, in a call"),
            "core" => carrier.with_lock(|| panic!("a test's, with the adapter's lock")),
            "thread" => {
                let falls = || panic!("a test's, on a thread of the library");
                assert!(thread::start("flue-fault", falls).unwrap().join().is_err());
            }
            _ => {}
        }
    }
}
