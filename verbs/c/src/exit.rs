//! Handlers of exit(3).
//!
//! Thread-local values of the thread that calls exit, which the log needs, are destroyed before its handlers run. So a
//! handler runs on a dedicated thread. If none can be created, it runs on the calling thread, without the log.
//!
//! Two threads of a program may call exit at once. The C library removes a handler from its list before the call, so
//! the second thread ends the process while the first one is in the last handler. So each handler is registered twice:
//! the second call waits for the first one, and has nothing left to do.

use std::{
    io, process,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering},
    },
    thread::JoinHandle,
};

use rustix::thread::futex;

use crate::guard;

/// Process id while a thread runs a handler, otherwise 0. In the child of a fork it may be that of the parent.
static RUNNER: AtomicU32 = AtomicU32::new(0);

/// Id of the thread in a handler, otherwise 0.
static RUNNER_THREAD: AtomicI32 = AtomicI32::new(0);

static IS_LOG_CLOSED: AtomicBool = AtomicBool::new(false);

/// Returns true if a handler runs on a thread without the thread-local values of the log.
pub(crate) fn is_log_closed() -> bool {
    IS_LOG_CLOSED.load(Ordering::Relaxed)
}

/// Registers a handler, which calls [`run`] and is not due when it is called again. Returns false if no memory is
/// available.
pub(crate) fn register(handler: extern "C" fn()) -> bool {
    // SAFETY: a function of this library, which is never unloaded while the program runs.
    (0..2).all(|_| unsafe { libc::atexit(handler) } == 0)
}

/// Runs the body of a handler if it is due, after that of another thread.
pub(crate) fn run(is_due: impl FnOnce() -> bool, body: impl FnOnce() + Send + 'static) {
    let (own, thread) = (process::id(), rustix::thread::gettid().as_raw_nonzero().get());
    loop {
        match RUNNER.compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => break,
            // A signal handler calls exit within the first call.
            Err(_) if RUNNER_THREAD.load(Ordering::Relaxed) == thread => return,
            // Fails if the value has changed, or a signal has arrived.
            Err(other) if other == own => {
                let _ = futex::wait(&RUNNER, futex::Flags::PRIVATE, own, None);
            }
            // The parent was in a handler at the fork: its thread does not exist here.
            Err(other) => {
                let _ = RUNNER.compare_exchange(other, 0, Ordering::AcqRel, Ordering::Acquire);
            }
        }
    }
    RUNNER_THREAD.store(thread, Ordering::Relaxed);
    guard::nothing(|| {
        if is_due() {
            run_on(|run| offload_engine::thread::start("flue-exit", run), body);
        }
    });
    RUNNER_THREAD.store(0, Ordering::Relaxed);
    RUNNER.store(0, Ordering::Release);
    // Cannot fail for a valid address.
    let _ = futex::wake(&RUNNER, futex::Flags::PRIVATE, u32::MAX >> 1);
}

/// Runs the body on the thread that `start` creates, or here.
fn run_on(
    start: impl FnOnce(Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>>,
    body: impl FnOnce() + Send + 'static,
) {
    let place = Arc::new(Mutex::new(Some(body)));
    let run = {
        let place = place.clone();
        move || take(&place).into_iter().for_each(guard::nothing)
    };
    match start(Box::new(run)) {
        Ok(thread) => {
            let _ = thread.join();
        }
        Err(_) => {
            IS_LOG_CLOSED.store(true, Ordering::Relaxed);
            take(&place).into_iter().for_each(guard::nothing);
        }
    }
}

fn take<T>(place: &Mutex<Option<T>>) -> Option<T> {
    place.lock().ok()?.take()
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{atomic::AtomicUsize, mpsc},
        thread,
        time::Duration,
    };

    use super::*;

    #[test]
    fn body_runs_once_with_and_without_a_thread() {
        for starts in [true, false] {
            let count = Arc::new(AtomicUsize::new(0));
            let counter = count.clone();
            let start = |run: Box<dyn FnOnce() + Send>| match starts {
                true => Ok(thread::spawn(run)),
                false => Err(io::ErrorKind::WouldBlock.into()),
            };
            let body = move || {
                counter.fetch_add(1, Ordering::Relaxed);
            };
            run_on(start, body);
            assert_eq!((count.load(Ordering::Relaxed), is_log_closed()), (1, !starts));
        }
    }

    #[test]
    fn exit_within_a_handler_returns() {
        run(
            || {
                run(|| unreachable!("not due"), || unreachable!("not due"));
                false
            },
            || unreachable!("not due"),
        );
    }

    #[test]
    fn second_thread_waits_for_the_handler_of_the_first() {
        let (begun, begin) = mpsc::channel();
        let (entered, enter) = mpsc::channel();
        let second = thread::spawn(move || {
            begin.recv().unwrap();
            let is_due = || entered.send(()).is_err();
            run(is_due, || unreachable!("not due"));
        });
        let waits = Arc::new(AtomicBool::new(false));
        let of_body = waits.clone();
        let body = move || {
            begun.send(()).unwrap();
            let early = enter.recv_timeout(Duration::from_millis(20));
            of_body.store(early == Err(mpsc::RecvTimeoutError::Timeout), Ordering::Release);
            // Until the second thread has sent.
            let _ = thread::spawn(move || enter.recv());
        };
        run(|| true, body);
        second.join().unwrap();
        assert!(waits.load(Ordering::Acquire));
    }
}
