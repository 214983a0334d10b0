//! Loom model of callbacks that return and the engine that waits for them: every interleaving. Run by `tests/loom`.

use loom::thread;
use offload_engine::engine::doorbell::{Doorbell, Sleep};

use super::*;

// NDK-LIFE-4, -6: the engine processes each return once, even if it sleeps. Otherwise a close would pend forever.
#[test]
fn each_return_is_processed_once() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let bell = Arc::new(Doorbell::new().unwrap());
        let ring = bell.clone();
        let returns = Returns::new(Box::new(move || ring.ring()));
        let callbacks = [(); 2].map(|()| {
            let guard = ReturnGuard::new(&returns, Return::Unpin(Key::Rnic));
            thread::spawn(move || drop(guard))
        });
        let mut returned = Vec::new();
        while returned.len() < callbacks.len() {
            let taken = returns.take();
            if taken.is_empty() {
                bell.sleep(|| (!returns.is_pending()).then(Sleep::default));
            }
            returned.extend(taken);
        }
        for callback in callbacks {
            callback.join().unwrap();
        }
        assert_eq!(returned.len(), 2);
    });
}
