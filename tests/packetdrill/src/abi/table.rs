//! `struct packetdrill_interface`.

use core::ffi::{c_int, c_longlong, c_uint, c_ulong, c_void};

use libc::{
    epoll_event, iovec, loff_t, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t,
    timeval,
};

/// Pointer to the instance, as packetdrill stores it.
pub(crate) type User = *mut c_void;

/// `struct packetdrill_interface`: the order of the members is the interface.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    pub(crate) userdata: User,
    pub(crate) free: extern "C" fn(User),
    pub(crate) socket: extern "C" fn(User, c_int, c_int, c_int) -> c_int,
    pub(crate) bind: unsafe extern "C" fn(User, c_int, *const sockaddr, socklen_t) -> c_int,
    pub(crate) listen: extern "C" fn(User, c_int, c_int) -> c_int,
    pub(crate) accept: unsafe extern "C" fn(User, c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    pub(crate) connect: unsafe extern "C" fn(User, c_int, *const sockaddr, socklen_t) -> c_int,
    pub(crate) read: unsafe extern "C" fn(User, c_int, *mut c_void, size_t) -> ssize_t,
    pub(crate) readv: unsafe extern "C" fn(User, c_int, *const iovec, c_int) -> ssize_t,
    pub(crate) recv: unsafe extern "C" fn(User, c_int, *mut c_void, size_t, c_int) -> ssize_t,
    pub(crate) recvfrom: unsafe extern "C" fn(
        User,
        c_int,
        *mut c_void,
        size_t,
        c_int,
        *mut sockaddr,
        *mut socklen_t,
    ) -> ssize_t,
    pub(crate) recvmsg: unsafe extern "C" fn(User, c_int, *mut msghdr, c_int) -> ssize_t,
    pub(crate) write: unsafe extern "C" fn(User, c_int, *const c_void, size_t) -> ssize_t,
    pub(crate) writev: unsafe extern "C" fn(User, c_int, *const iovec, c_int) -> ssize_t,
    pub(crate) send: unsafe extern "C" fn(User, c_int, *const c_void, size_t, c_int) -> ssize_t,
    pub(crate) sendto: unsafe extern "C" fn(
        User,
        c_int,
        *const c_void,
        size_t,
        c_int,
        *const sockaddr,
        socklen_t,
    ) -> ssize_t,
    pub(crate) sendmsg: unsafe extern "C" fn(User, c_int, *const msghdr, c_int) -> ssize_t,
    pub(crate) fcntl: extern "C" fn(User, c_int, c_int, c_int) -> c_int,
    pub(crate) ioctl: unsafe extern "C" fn(User, c_int, c_ulong, *mut c_int) -> c_int,
    pub(crate) close: extern "C" fn(User, c_int) -> c_int,
    pub(crate) shutdown: extern "C" fn(User, c_int, c_int) -> c_int,
    pub(crate) getsockopt:
        unsafe extern "C" fn(User, c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int,
    pub(crate) setsockopt:
        unsafe extern "C" fn(User, c_int, c_int, c_int, *const c_void, socklen_t) -> c_int,
    pub(crate) poll: unsafe extern "C" fn(User, *mut pollfd, nfds_t, c_int) -> c_int,
    pub(crate) netdev_send: unsafe extern "C" fn(User, *const c_void, size_t) -> c_int,
    pub(crate) netdev_receive:
        unsafe extern "C" fn(User, *mut c_void, *mut size_t, *mut c_longlong) -> c_int,
    pub(crate) usleep: extern "C" fn(User, c_uint) -> c_int,
    pub(crate) gettimeofday: unsafe extern "C" fn(User, *mut timeval, *mut c_void) -> c_int,
    pub(crate) epoll_create: extern "C" fn(User, c_int) -> c_int,
    pub(crate) epoll_ctl: extern "C" fn(User, c_int, c_int, c_int, *mut epoll_event) -> c_int,
    pub(crate) epoll_wait: extern "C" fn(User, c_int, *mut epoll_event, c_int, c_int) -> c_int,
    pub(crate) pipe: extern "C" fn(User, *mut c_int) -> c_int,
    pub(crate) splice:
        extern "C" fn(User, c_int, *mut loff_t, c_int, *mut loff_t, size_t, c_uint) -> ssize_t,
}
