//! Descriptors of a library that is a guest in a process.
//!
//! Servers close unknown descriptors when they become a daemon, often those up to a fixed number, and
//! open their own files under the lowest free numbers. So descriptors that no program sees have high numbers.
//!
//! A program that closes all descriptors closes these as well, and may open its own files under their numbers. The
//! library must not use such a number again. [`watch`] opens a sentinel: a memory file with a random offset, which no
//! other file has. Once the sentinel is closed or replaced, all descriptors of the process count as lost
//! ([`are_lost`]): threads check that before a pass over descriptors, and [`Guarded`] closes none.

use std::{
    format,
    hash::{BuildHasher, Hasher, RandomState},
    io,
    ops::{Deref, DerefMut},
    os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd},
    process,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use rustix::{
    fs::{MemfdFlags, SeekFrom, memfd_create, seek},
    io::{Errno, fcntl_dupfd_cloexec},
    process::{Resource, getrlimit},
};

/// Lowest number where the limit of the process allows more than twice as many.
const LOWEST: u64 = 1024;

/// Sentinels of processes that descend from each other, each after the loss of its parent's.
const SENTINELS_MAX: usize = 16;

static SENTINELS: [OnceLock<Sentinel>; SENTINELS_MAX] = [const { OnceLock::new() }; SENTINELS_MAX];
/// Index of this process's sentinel.
static CURRENT: AtomicUsize = AtomicUsize::new(0);

/// Moves a descriptor to a high number: from 1024 on, or from the middle of a lower RLIMIT_NOFILE. It stays where it
/// is if all of these are in use.
#[must_use]
pub fn move_to_high_number(descriptor: OwnedFd) -> OwnedFd {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let lowest = LOWEST.min(limit / 2) as RawFd;
    fcntl_dupfd_cloexec(&descriptor, lowest).unwrap_or(descriptor)
}

/// Duplicates the descriptor of that number, which the program has inherited, to a high number.
///
/// # Errors
/// EBADF: it is not open; EMFILE.
pub fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the kernel checks the number.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor, which nothing else owns.
    Ok(move_to_high_number(unsafe { OwnedFd::from_raw_fd(copy) }))
}

/// Logs that no descriptor is left, once per process, with the limits of the process and the machine (EMFILE, ENFILE).
#[cold]
pub fn log_shortage() {
    static IS_LOGGED: AtomicBool = AtomicBool::new(false);
    if !IS_LOGGED.swap(true, Ordering::Relaxed) {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.map_or_else(|| "unlimited".into(), |limit| format!("{limit}"));
        tracing::error!(
            "descriptors: RLIMIT_NOFILE={limit} or fs.file-max reached: raise the limit of the process (ulimit -n) \
             or of the machine (sysctl), or close files"
        );
    }
}

/// Memory file whose offset identifies it.
#[derive(Debug)]
struct Sentinel {
    /// Never closed by this library.
    file: OwnedFd,
    offset: u64,
    /// Process that has opened it.
    owner: u32,
    is_lost: AtomicBool,
}

impl Sentinel {
    fn new() -> io::Result<Self> {
        let file = move_to_high_number(memfd_create("flue-sentinel", MemfdFlags::CLOEXEC)?);
        // At least 2^32: offsets of files that are read or written from their beginning are smaller.
        let offset = RandomState::new().build_hasher().finish() >> 2 | 1 << 32;
        seek(&file, SeekFrom::Start(offset))?;
        Ok(Self { file, offset, owner: process::id(), is_lost: AtomicBool::new(false) })
    }

    #[inline]
    fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
            || seek(&self.file, SeekFrom::Current(0)) != Ok(self.offset) && self.lose()
    }

    #[cold]
    fn lose(&self) -> bool {
        if !self.is_lost.swap(true, Ordering::Relaxed) {
            tracing::error!("descriptors of the library closed by the program: device lost");
        }
        true
    }
}

/// Watches the descriptors of this process. Call before the first one is opened. In the child of a fork that has closed
/// its parent's descriptors, those opened from now on are watched.
///
/// # Errors
/// No descriptor or memory is left. ENODEV: they are lost.
pub fn watch() -> io::Result<()> {
    let current = CURRENT.load(Ordering::Relaxed);
    let mut at = current;
    if let Some(sentinel) = SENTINELS[current].get()
        && sentinel.is_lost()
    {
        if sentinel.owner == process::id() {
            return Err(Errno::NODEV.into());
        }
        at += 1;
    }
    let place = SENTINELS.get(at).ok_or(Errno::MFILE)?;
    if place.get().is_none() {
        let sentinel = Sentinel::new()?;
        // Of two threads the second one closes its own.
        let _ = place.set(sentinel);
        CURRENT.store(at, Ordering::Relaxed);
    }
    Ok(())
}

/// Returns true if the program has closed the descriptors that are watched. They stay lost.
#[inline]
pub fn are_lost() -> bool {
    SENTINELS[CURRENT.load(Ordering::Relaxed)].get().is_some_and(Sentinel::is_lost)
}

/// Owner of a descriptor that is not closed once the descriptors are lost: the number may be that of another file.
#[derive(Debug)]
pub struct Guarded<T: IntoRawFd> {
    /// `None` at the end of its life.
    inner: Option<T>,
    /// Index of the sentinel that it was opened under.
    sentinel: usize,
}

impl<T: IntoRawFd> Guarded<T> {
    /// Returns true if the number still belongs to this descriptor.
    #[inline]
    pub fn is_intact(&self) -> bool {
        self.sentinel == CURRENT.load(Ordering::Relaxed) && !are_lost()
    }

    /// Returns the descriptor without its guard.
    pub fn into_inner(mut self) -> T {
        self.inner.take().expect("the owner exists until it is closed")
    }
}

impl<T: IntoRawFd> From<T> for Guarded<T> {
    fn from(inner: T) -> Self {
        Self { inner: Some(inner), sentinel: CURRENT.load(Ordering::Relaxed) }
    }
}

impl<T: IntoRawFd> Deref for Guarded<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.inner.as_ref().expect("the owner exists until it is closed")
    }
}

impl<T: IntoRawFd> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("the owner exists until it is closed")
    }
}

impl<T: IntoRawFd + AsFd> AsFd for Guarded<T> {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        (**self).as_fd()
    }
}

impl<T: IntoRawFd> Drop for Guarded<T> {
    fn drop(&mut self) {
        if !self.is_intact()
            && let Some(inner) = self.inner.take()
        {
            let _ = inner.into_raw_fd();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::fd::AsRawFd};

    use super::*;

    #[test]
    fn moved_descriptor_is_the_same_file_in_the_upper_half() {
        let file = OwnedFd::from(File::open("/proc/self/status").unwrap());
        let before = rustix::fs::fstat(&file).unwrap().st_ino;
        let low = file.as_raw_fd();
        let moved = move_to_high_number(file);
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        assert!(moved.as_raw_fd() as u64 >= LOWEST.min(limit / 2), "{moved:?}");
        assert_ne!(moved.as_raw_fd(), low);
        assert_eq!(rustix::fs::fstat(&moved).unwrap().st_ino, before);
        assert!(rustix::io::fcntl_getfd(&moved).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    }

    // Another file under the number of the sentinel has another offset.
    #[test]
    fn replaced_sentinel_is_lost_for_good() {
        let mut sentinel = Sentinel::new().unwrap();
        assert!(!sentinel.is_lost());
        let other = memfd_create("other", MemfdFlags::CLOEXEC).unwrap();
        let own = std::mem::replace(&mut sentinel.file, other);
        assert!(sentinel.is_lost());
        sentinel.file = own;
        assert!(sentinel.is_lost());
    }
}
