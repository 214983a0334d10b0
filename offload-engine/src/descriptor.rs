//! File descriptors of a library loaded into another program.
//!
//! Servers that become a daemon close descriptors they did not open, often all up to a fixed number. They then open
//! their own files with the lowest free numbers. So the library's descriptors have high numbers. If one is closed
//! nevertheless, its use fails with EBADF instead of writing to a file of the program.

use std::os::fd::{OwnedFd, RawFd};

use rustix::{
    io::fcntl_dupfd_cloexec,
    process::{Resource, getrlimit},
};

/// Lowest number, if the limit of the process allows more than twice as many.
const LOWEST: u64 = 1024;

/// Moves a descriptor to a high number: from 1024 on, or from the middle of a lower RLIMIT_NOFILE. It keeps its number
/// if all of these are in use.
#[must_use]
pub fn moved_up(descriptor: OwnedFd) -> OwnedFd {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let lowest = LOWEST.min(limit / 2) as RawFd;
    fcntl_dupfd_cloexec(&descriptor, lowest).unwrap_or(descriptor)
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
        let moved = moved_up(file);
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        assert!(moved.as_raw_fd() as u64 >= LOWEST.min(limit / 2), "{moved:?}");
        assert_ne!(moved.as_raw_fd(), low);
        assert_eq!(rustix::fs::fstat(&moved).unwrap().st_ino, before);
        assert!(rustix::io::fcntl_getfd(&moved).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    }
}
