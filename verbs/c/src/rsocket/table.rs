//! Table of rsockets by descriptor.
//!
//! The descriptor is that of a kernel TCP socket that is never bound or connected. It reserves the number, and keeps
//! options. Its inode reveals if the program has closed it without the library: then the number no longer
//! belongs to an rsocket.
//!
//! Each generation of processes ([`process::generation`]) has its own table. A child reads its parent's only to
//! distinguish an rsocket that it cannot use from other descriptors. It does not wait for the lock, whose holder may
//! not exist in the child.

use std::{
    collections::BTreeMap,
    ffi::c_int,
    os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, Once, PoisonError},
    time::Duration,
};

use flue_verbs_core::{
    process::{self, GENERATIONS_MAX},
    rsocket::{Family, Linger, Socket},
};
use rustix::{
    fs::fstat,
    net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with},
};

use crate::{exit, guard::Errno, inherit};

/// Maximum time for which the exit of the process waits until data of an open rsocket are sent.
const EXIT_TIME: Duration = Duration::from_secs(5);

#[derive(Clone)]
struct OpenSocket {
    socket: Arc<Socket>,
    inode: u64,
}

type SocketTable = BTreeMap<c_int, OpenSocket>;

static TABLES: [Mutex<SocketTable>; GENERATIONS_MAX] =
    [const { Mutex::new(BTreeMap::new()) }; GENERATIONS_MAX];

fn own() -> Result<MutexGuard<'static, SocketTable>, Errno> {
    let table = TABLES.get(process::generation()).ok_or(Errno(libc::ENODEV))?;
    Ok(table.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Returns the inode of a descriptor.
fn inode(descriptor: c_int) -> Option<u64> {
    if descriptor < 0 {
        return None;
    }
    // SAFETY: it is only queried, and may be closed.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    fstat(borrowed).ok().map(|stat| stat.st_ino)
}

/// Creates a descriptor for an rsocket.
pub(super) fn descriptor(family: Family, is_cloexec: bool) -> Result<OwnedFd, Errno> {
    let family = match family {
        Family::V4 => AddressFamily::INET,
        Family::V6 => AddressFamily::INET6,
    };
    let flags = if is_cloexec { SocketFlags::CLOEXEC } else { SocketFlags::empty() };
    socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))
        .map_err(|error| Errno(error.raw_os_error()))
}

/// Adds an rsocket, and returns the number of its descriptor, which the program owns from then on.
pub(super) fn enter(descriptor: OwnedFd, socket: Arc<Socket>) -> Result<c_int, Errno> {
    static AT_EXIT: Once = Once::new();
    AT_EXIT.call_once(|| {
        if !exit::register(at_exit) {
            tracing::error!(
                error = "no memory",
                "exit handler not installed: open rsockets are reset at exit"
            );
        }
    });
    let number = descriptor.as_raw_fd();
    let inode = inode(number).ok_or(Errno(libc::EBADF))?;
    // The number may have been that of another rsocket, which the program closed without the library.
    let before = own()?.insert(number, OpenSocket { socket, inode });
    drop(before);
    Ok(descriptor.into_raw_fd())
}

/// Returns the rsocket of a descriptor.
///
/// # Errors
/// `EBADF`: not an rsocket. `ENODEV`: it belongs to another process.
pub(super) fn find(descriptor: c_int) -> Result<Arc<Socket>, Errno> {
    let entry = own()?.get(&descriptor).cloned();
    if let Some(entry) = entry {
        if inode(descriptor) == Some(entry.inode) {
            return Ok(entry.socket);
        }
        let removed = own()?.remove(&descriptor);
        drop(removed);
        return Err(Errno(libc::EBADF));
    }
    let entry = inherited(descriptor).ok_or(Errno(libc::EBADF))?;
    if !entry.socket.is_inheritable() {
        return Err(Errno(libc::ENODEV));
    }
    entry.socket.take_over(inherit::device()?).map_err(|error| {
        tracing::error!(%error, descriptor, "rsocket of the parent process not inherited");
        Errno(libc::ENODEV)
    })?;
    own()?.insert(descriptor, entry.clone());
    Ok(entry.socket)
}

/// Returns the rsocket of a process that this one descends from.
fn inherited(descriptor: c_int) -> Option<OpenSocket> {
    let find = |table: &Mutex<SocketTable>| {
        let entry = table.try_lock().ok()?.get(&descriptor)?.clone();
        (inode(descriptor) == Some(entry.inode)).then_some(entry)
    };
    TABLES[..process::generation().min(GENERATIONS_MAX)].iter().rev().find_map(find)
}

/// Closes the child's copy of an rsocket of the parent. Returns false if the descriptor is not one.
pub(super) fn close_inherited(descriptor: c_int) -> Result<bool, Errno> {
    if own()?.contains_key(&descriptor) {
        return Ok(false);
    }
    let Some(entry) = inherited(descriptor) else { return Ok(false) };
    entry.socket.close_inherited();
    // SAFETY: it is the rsocket's.
    unsafe { rustix::io::close(descriptor) };
    Ok(true)
}

/// Removes an rsocket. Its descriptor remains open.
pub(super) fn remove(descriptor: c_int) -> Result<Arc<Socket>, Errno> {
    find(descriptor)?;
    own()?.remove(&descriptor).map(|entry| entry.socket).ok_or(Errno(libc::EBADF))
}

/// Closes the rsockets at the exit of the process. As with TCP of the kernel, data sent before an exit without a close
/// are delivered.
extern "C" fn at_exit() {
    let is_due = || own().is_ok_and(|entries| !entries.is_empty());
    exit::run(is_due, || {
        let Ok(mut entries) = own() else { return };
        let all = std::mem::take(&mut *entries);
        drop(entries);
        for (_, OpenSocket { socket, .. }) in all {
            if socket.is_listening() {
                // The kernel closes it with the process; a child of a fork may continue to listen.
                std::mem::forget(socket);
                continue;
            }
            socket.close(Linger::For(EXIT_TIME));
        }
    });
}
