//! Panics on demand, for tests: in builds with debug assertions only.

/// A test's wish, when it calls `ibv_query_device`.
#[inline]
pub(crate) fn inject() {
    #[cfg(debug_assertions)]
    on_demand::inject();
}

#[cfg(debug_assertions)]
mod on_demand {
    use std::env;

    use flue_verbs_core::engine::Engine;
    use offload_engine::thread;

    /// Where it is to panic: set by the program while it runs.
    const WHERE: &str = "FLUE_VERBS_TEST_PANIC";

    pub(super) fn inject() {
        let Ok(wish) = env::var(WHERE) else { return };
        match wish.as_str() {
            "call" => panic!("a test's, in a call"),
            "core" => {
                let engine = Engine::started().expect("a test starts it before");
                engine.access().with(|_, _| panic!("a test's, with the adapter's lock"));
            }
            "thread" => {
                let falls = || panic!("a test's, on a thread of the library");
                assert!(thread::start("flue-fault", falls).unwrap().join().is_err());
            }
            _ => {}
        }
    }
}
