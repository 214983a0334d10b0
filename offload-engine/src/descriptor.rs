//! Descriptors of a library that is a guest in a process.
//!
//! Servers close the descriptors that they do not know when they become a daemon, often those up to a fixed number, and
//! open files of their own under the lowest free numbers. So descriptors that no program sees have high numbers. One
//! that is closed all the same fails with EBADF, and does not write to a file of the program.

use std::os::fd::{OwnedFd, RawFd};

use rustix::{
    io::fcntl_dupfd_cloexec,
    process::{Resource, getrlimit},
};

/// Lowest number where the limit of the process allows more than twice as many.
const LOWEST: u64 = 1024;

/// Moves a descriptor to a high number: from 1024 on, or from the middle of a lower RLIMIT_NOFILE. It stays where it
/// is if all of these are in use.
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
