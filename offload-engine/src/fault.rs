//! Panics on demand, for tests of shared libraries: in builds with debug assertions only.

/// Panics where the environment variable `variable` says: `call`, in the caller; `core`, while `locked` has a lock that
/// the panic poisons; `thread`, on a thread of the library. Without the variable, nothing happens.
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
            "call" => panic!("a test's, in a call"),
            "core" => locked(|| panic!("a test's, with the adapter's lock")),
            "thread" => {
                let falls = || panic!("a test's, on a thread of the library");
                assert!(thread::start("flue-fault", falls).unwrap().join().is_err());
            }
            _ => {}
        }
    }
}
