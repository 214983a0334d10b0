//! Path functions of libc that redirect the files of the device to a directory of `flue run`.
//!
//! Programs read `/sys/class/infiniband/flue0`, `/sys/class/infiniband_verbs` and `/dev/infiniband`, which only drivers
//! of the kernel create. `flue run` writes the same files to a directory, passes it in [`settings::FILES`], and
//! preloads this library. Each function that takes a path compares its first bytes. A path of the device is replaced
//! with the path in the directory; any other path is passed on to the next definition of the function, which is libc's
//! or that of another preloaded library.
//!
//! The functions run before the constructors of this and other libraries, in allocators, in signal handlers and between
//! vfork and exec. So they allocate nothing, take no lock, start no thread, and do not change `errno`. Not reached:
//! static programs, direct system calls, and calls inside libc, such as those of glob(3).
//!
//! [`settings::FILES`]: flue_verbs_abi::settings::FILES

mod place;
mod tree;

// In a unit test they would replace the functions of the test itself.
#[cfg(not(test))]
mod calls;
#[cfg(not(test))]
mod constructor;
#[cfg(not(test))]
mod next;
