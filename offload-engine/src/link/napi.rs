//! Who takes a written frame up the kernel's stack: the writer itself, or a thread of the kernel.
//!
//! Without NAPI, write(2) on a TAP returns when the frame has gone through the bridge or the kernel's TCP, and
//! whoever waits for it was woken. With threaded NAPI (IFF_NAPI, `threaded` in the interface's sysfs directory)
//! write(2) queues it, and `napi/NAME-N` takes what is queued, up to 64 frames at a time, through GRO: plain frames
//! of one flow reach the kernel's TCP together. More bandwidth where there is a processor for the thread; a wake-up
//! more where the thread sleeps. NAPI without the thread is slower than none.
//!
//! sysfs shows the network namespace in which it was mounted. So each use has an instance of its own, mounted
//! nowhere.
#![forbid(unsafe_code)]

use std::{format, os::fd::OwnedFd};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags},
};

/// Has the frames that are written to `interface` of the caller's network namespace taken by a thread of the kernel.
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

/// Whether it does.
#[cfg(test)]
pub(super) fn is_threaded(interface: &str) -> bool {
    let mut answer = [0; 2];
    let setting = open(interface, OFlags::RDONLY).unwrap();
    rustix::io::read(&setting, &mut answer).unwrap();
    &answer == b"1\n"
}
