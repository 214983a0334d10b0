//! Processes of the launcher: fork(2), and the end of a program with its parent.
#![allow(unsafe_code, reason = "the standard library has no safe function for either")]

use std::{io, os::unix::process::CommandExt as _, process::Command};

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

/// Copies the calling process. Returns the child's id, or `None` in the child.
///
/// The caller has no other thread: in the child that thread's locks would stay locked.
///
/// # Errors
/// Those of fork(2).
pub(super) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: both processes return from here with memory of their own; see above for threads.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        id => Ok(Pid::from_raw(id)),
    }
}

/// Has the kernel kill the program when the calling thread has ended.
pub(super) fn end_with_parent(command: &mut Command) {
    let parent = getpid();
    let arrange = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have ended before.
        if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    };
    // SAFETY: the closure runs in the child of a fork, and only makes system calls: it takes no lock and allocates
    // nothing.
    unsafe { command.pre_exec(arrange) };
}
