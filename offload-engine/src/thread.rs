//! Threads of a library loaded into another program.
//!
//! The signals of the process belong to the program. A signal that the program blocks, to read it by signalfd(2) or
//! sigwait(3), is delivered to any thread that does not block it. By default this ends the process. So every thread of
//! the library blocks all signals, except those raised by a fault of the thread itself. If these were blocked, the
//! kernel would end the process without calling the program's handler.
//!
//! The mask is set in the thread that starts another one, which inherits it. So no thread runs without the mask.

use std::{
    io,
    mem::MaybeUninit,
    string::String,
    thread::{Builder, JoinHandle, Scope, ScopedJoinHandle},
};

/// Signals raised in a thread by its own faults.
const FAULT_SIGNALS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Starts a thread that receives no signal of the program.
///
/// # Errors
/// The system cannot create another thread.
pub fn start<T: Send + 'static>(
    name: impl Into<String>,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let _blocked = BlockedSignals::new();
    Builder::new().name(name.into()).spawn(run)
}

/// Variant of [`start`] for a thread that exits before `scope`.
///
/// # Errors
/// As for [`start`].
pub fn start_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    run: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    let _blocked = BlockedSignals::new();
    Builder::new().spawn_scoped(scope, run)
}

/// Returns the CPU of the calling thread; `None` if the system does not report it.
pub fn current_cpu() -> Option<usize> {
    // SAFETY: the function has neither arguments nor preconditions.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Blocks the signals of the calling thread until it is dropped.
struct BlockedSignals {
    before: libc::sigset_t,
}

impl BlockedSignals {
    fn new() -> Self {
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: the sets outlive the calls. `sigfillset` initializes the first one, without the signals reserved by
        // the C library. `pthread_sigmask` initializes the second one, since its first argument is valid.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for signal in FAULT_SIGNALS {
                libc::sigdelset(all.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
            Self { before: before.assume_init() }
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set was returned by the same function.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut())
        };
    }
}

#[cfg(test)]
mod tests {
    use std::{format, fs, string::String, thread};

    use super::*;

    /// Blocked signals of the calling thread, as bits from signal 1 on.
    fn blocked() -> u64 {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    }

    const fn bit(signal: libc::c_int) -> u64 {
        1 << (signal - 1)
    }

    /// Signals that cannot be blocked: SIGKILL, SIGSTOP, and 32 and 33, by which the C library changes user ids of all
    /// threads.
    fn cannot_be_blocked() -> u64 {
        [libc::SIGKILL, libc::SIGSTOP, 32, 33].map(bit).iter().sum()
    }

    #[test]
    fn new_threads_block_all_signals_except_those_of_faults() {
        let before = blocked();
        let expected = !(FAULT_SIGNALS.map(bit).iter().sum::<u64>() | cannot_be_blocked());
        let seen = start("blocked", || (blocked(), thread::current().name().map(String::from)));
        let (mask, name) = seen.unwrap().join().unwrap();
        assert_eq!(format!("{mask:016x}"), format!("{expected:016x}"));
        assert_eq!(name.as_deref(), Some("blocked"));
        let scoped = thread::scope(|scope| start_scoped(scope, blocked).unwrap().join().unwrap());
        assert_eq!(scoped, expected);
        assert_eq!(blocked(), before);
    }

    #[test]
    fn signal_mask_of_caller_is_restored() {
        let nested = start("outer", || {
            let before = blocked();
            start("inner", || ()).unwrap().join().unwrap();
            blocked() == before
        });
        assert!(nested.unwrap().join().unwrap());
    }
}
