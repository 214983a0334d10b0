//! Injected panics for tests of shared libraries, in builds with debug assertions only.

/// Panics as the environment variable `variable` selects. `call` panics in the caller, `core` while `locked` holds a
/// lock that the panic poisons, and `thread` on a thread of the library. Without the variable this has no effect.
#[inline]
pub fn inject(variable: &str, locked: impl FnOnce(fn())) {
    #[cfg(debug_assertions)]
    on_demand::inject(variable, locked);
    #[cfg(not(debug_assertions))]
    let _ = (variable, locked);
}

#[cfg(debug_assertions)]
mod on_demand {
    use std::env;

    use crate::thread;

    pub(super) fn inject(variable: &str, locked: impl FnOnce(fn())) {
        let Ok(place) = env::var(variable) else { return };
        match place.as_str() {
            "call" => panic!("requested by the test, in a call"),
            "core" => locked(|| panic!("requested by the test, with the lock of the adapter")),
            "thread" => {
                let falls = || panic!("requested by the test, on a thread of the library");
                assert!(thread::start("flue-fault", falls).unwrap().join().is_err());
            }
            _ => {}
        }
    }
}
