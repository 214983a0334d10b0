//! Process primitives of the launcher: fork(2), and the parent-death signal of a program.
#![allow(unsafe_code, reason = "the standard library has no safe function for either")]

use std::{io, os::unix::process::CommandExt as _, process::Command};

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

/// Forks the calling process. Returns the child's id, or `None` in the child.
///
/// The caller has no other thread: in the child, locks held by such a thread would stay locked.
///
/// # Errors
/// Those of fork(2).
pub(super) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: both processes return with memory of their own; the process has no other thread, see above.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        id => Ok(Pid::from_raw(id)),
    }
}

/// Requests that the kernel kill the program when the calling thread exits.
pub(crate) fn end_with_parent(command: &mut Command) {
    let parent = getpid();
    let arrange = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have exited before the request.
        if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    };
    // SAFETY: the closure runs in the child after fork, and only makes system calls: it takes no lock and does not
    // allocate.
    unsafe { command.pre_exec(arrange) };
}
