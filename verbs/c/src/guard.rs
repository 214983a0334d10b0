//! Errors and panics at the C boundary.
//!
//! Functions of libibverbs that return `int` return the error number. Functions of librdmacm, and readers of events and
//! tables, return -1 and set errno. Functions that return a pointer return null and set errno.

use std::{
    ffi::c_int,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
};

pub(crate) use flue_verbs_core::errno::Errno;
use offload_engine::descriptor::log_shortage;

use crate::fatal;

pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: the C library returns a valid pointer to the errno of the thread.
    unsafe { *libc::__errno_location() = errno.0 };
}

/// Calls `body`. A panic closes the device.
#[inline]
fn catch<T>(body: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        fatal::panicked();
        Err(Errno(libc::EIO))
    })
}

/// Runs the body of a C function, which cannot be canceled and does not unwind. After a panic, it and all later calls
/// return EIO.
#[inline(always)]
fn run<T>(body: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    if fatal::has_panicked() {
        return Err(Errno(libc::EIO));
    }
    run_always(body)
}

/// As [`run`], but also after a panic.
///
/// A thread with asynchronous cancellation is canceled before the body or after it. The unwinding may begin at any
/// instruction of this frame and of its callers. So these frames own no values and have no landing pads: Rust's
/// personality routine ends a forced unwinding at an instruction that is not in its table, and the process aborts.
#[inline(always)]
fn run_always<T>(body: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let (mut state, mut kind, mut ignored) = (0, 0, 0);
    // SAFETY: the places outlive the calls; the values are the constants, or what the same functions have returned.
    unsafe {
        // The type too: a signal of pthread_cancel that arrives after the state has changed reads the type only.
        pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &raw mut kind);
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut state);
    }
    let result = run_to_end(body);
    // SAFETY: as above.
    unsafe {
        pthread_setcancelstate(state, &raw mut ignored);
        pthread_setcanceltype(kind, &raw mut ignored);
    }
    result
}

/// Runs the body of a C function with cancellation disabled. Never unwinds, which `extern "C"` states to the compiler.
#[inline(never)]
#[expect(improper_ctypes_definitions, reason = "called from this file only")]
extern "C" fn run_to_end<T, F: FnOnce() -> Result<T, Errno>>(body: F) -> Result<T, Errno> {
    fatal::install_hook();
    let result = catch(body);
    if let Err(Errno(libc::EMFILE | libc::ENFILE)) = result {
        log_shortage();
    }
    result
}

/// For functions that post and poll: as [`status`], with a negative error number. Cancellation is not deferred, since
/// no cancellation point is reached.
#[inline]
pub(crate) fn fast(body: impl FnOnce() -> Result<c_int, Errno>) -> Result<c_int, Errno> {
    if fatal::has_panicked() {
        return Err(Errno(libc::EIO));
    }
    catch(body)
}

/// For functions that return the error number itself.
#[inline(always)]
pub(crate) fn status(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    run(body).map_or_else(|errno| errno.0, |()| 0)
}

/// For functions that return a number from 0, or -1 and errno.
#[inline(always)]
pub(crate) fn number(body: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    run(body).unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// For readers of events, which report the event of a panic: as [`number`], but also after a panic.
#[inline(always)]
pub(crate) fn event(body: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    run_always(body).unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// For functions that return a number of bytes or another wide number, or -1 and errno.
#[inline(always)]
pub(crate) fn bytes(body: impl FnOnce() -> Result<usize, Errno>) -> isize {
    let bytes = run(|| isize::try_from(body()?).map_err(|_| Errno(libc::EOVERFLOW)));
    bytes.unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// For functions that return 0, or -1 and errno.
#[inline(always)]
pub(crate) fn done(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    number(|| body().map(|()| 0))
}

/// For functions that return a pointer, or null and errno.
#[inline(always)]
pub(crate) fn pointer<T>(body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    run(body).unwrap_or_else(|errno| {
        set_errno(errno);
        ptr::null_mut()
    })
}

/// For functions that return a value and cannot fail: also after a panic. `otherwise`: value after a panic of the body.
#[inline(always)]
pub(crate) fn value<T: Copy>(body: impl FnOnce() -> T, otherwise: T) -> T {
    run_always(|| Ok(body())).unwrap_or(otherwise)
}

/// For functions that return nothing and cannot fail.
#[inline(always)]
pub(crate) fn nothing(body: impl FnOnce()) {
    let _ = run(|| {
        body();
        Ok(())
    });
}

unsafe extern "C" {
    // Not in the libc crate. The second unwinds if it makes a pending cancellation asynchronous.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;
const PTHREAD_CANCEL_DEFERRED: c_int = 0;

/// Copies a structure of the program at any address: programs embed them in packed structures. `None`: null pointer.
///
/// # Safety
/// `from` is null, or `T` can be read there.
#[inline]
pub(crate) unsafe fn copied<T: Copy>(from: *const T) -> Option<T> {
    // SAFETY: guaranteed by the caller.
    (!from.is_null()).then(|| unsafe { from.read_unaligned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno() -> c_int {
        std::io::Error::last_os_error().raw_os_error().unwrap_or_default()
    }

    /// One test, since a panic closes the device of the whole process.
    #[test]
    fn each_kind_of_function_returns_its_errors_and_a_panic_closes_the_device() {
        assert_eq!(status(|| Ok(())), 0);
        assert_eq!(status(|| Err(Errno(libc::EINVAL))), libc::EINVAL);
        assert_eq!(number(|| Ok(7)), 7);
        assert_eq!(done(|| Err(Errno(libc::EADDRINUSE))), -1);
        assert_eq!(errno(), libc::EADDRINUSE);
        assert!(pointer::<u8>(|| Err(Errno(libc::ENOMEM))).is_null());
        assert_eq!(errno(), libc::ENOMEM);

        assert_eq!(status(|| panic!("a bug")), libc::EIO);
        assert!(fatal::has_panicked());
        assert_eq!(done(|| Ok(())), -1);
        assert_eq!(errno(), libc::EIO);
        assert_eq!(event(|| Ok(3)), 3);
        assert_eq!(value(|| 4, 0), 4);
        assert_eq!(value(|| panic!("a bug"), 5), 5);
    }
}
