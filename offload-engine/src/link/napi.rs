//! NAPI mode of a TAP: written frames are processed by the writer, or by a kernel thread.
//!
//! Without NAPI, write(2) on a TAP returns after the frame has passed the bridge or the kernel's TCP, and its receiver
//! was woken. With threaded NAPI (IFF_NAPI, `threaded` in the interface's sysfs directory) write(2) only queues the
//! frame. The thread `napi/NAME-N` processes queued frames, up to 64 at a time, through GRO, so plain frames of one
//! flow reach the kernel's TCP together. This increases bandwidth if a CPU is available for the thread. It adds a
//! wake-up if the thread sleeps. NAPI without the thread is slower than no NAPI.
//!
//! sysfs shows the network namespace in which it was mounted. So each use creates its own instance, which is not
//! attached to the mount tree.
#![forbid(unsafe_code)]

use std::{format, os::fd::OwnedFd};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags},
};

/// Enables threaded NAPI for `interface` in the caller's network namespace.
pub(super) fn thread(interface: &str) -> rustix::io::Result<()> {
    let setting = open(interface, OFlags::WRONLY)?;
    match rustix::io::write(&setting, b"1")? {
        1 => Ok(()),
        _ => Err(Errno::IO),
    }
}

fn open(interface: &str, access: OFlags) -> rustix::io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&context)?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    let root = rustix::mount::fsmount(&context, flags, MountAttrFlags::empty())?;
    let path = format!("class/net/{interface}/threaded");
    rustix::fs::openat(root, path, access | OFlags::CLOEXEC, Mode::empty())
}

/// True if threaded NAPI is enabled.
#[cfg(test)]
pub(super) fn is_threaded(interface: &str) -> bool {
    let mut answer = [0; 2];
    let setting = open(interface, OFlags::RDONLY).unwrap();
    rustix::io::read(&setting, &mut answer).unwrap();
    &answer == b"1\n"
}
