//! rsockets: sockets over RDMA. The device has none yet; `rpoll` and `rselect` serve descriptors of the kernel.

use std::ffi::{c_int, c_long, c_void};

use libc::{iovec, msghdr, off_t, sockaddr, socklen_t};

use crate::guard::{self, Errno};

#[unsafe(no_mangle)]
extern "C" fn rsocket(_domain: c_int, _type: c_int, _protocol: c_int) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn rbind(_socket: c_int, _addr: *const sockaddr, _length: socklen_t) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn rlisten(_socket: c_int, _backlog: c_int) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn raccept(_socket: c_int, _addr: *mut sockaddr, _length: *mut socklen_t) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn rconnect(_socket: c_int, _addr: *const sockaddr, _length: socklen_t) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn rshutdown(_socket: c_int, _how: c_int) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn rclose(_socket: c_int) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn rrecv(_socket: c_int, _buffer: *mut c_void, _length: usize, _flags: c_int) -> isize {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP))) as isize
}

#[unsafe(no_mangle)]
extern "C" fn rrecvfrom(
    _socket: c_int,
    _buffer: *mut c_void,
    _length: usize,
    _flags: c_int,
    _from: *mut sockaddr,
    _from_length: *mut socklen_t,
) -> isize {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP))) as isize
}

#[unsafe(no_mangle)]
extern "C" fn rrecvmsg(_socket: c_int, _message: *mut msghdr, _flags: c_int) -> isize {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP))) as isize
}

#[unsafe(no_mangle)]
extern "C" fn rsend(
    _socket: c_int,
    _buffer: *const c_void,
    _length: usize,
    _flags: c_int,
) -> isize {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP))) as isize
}

#[unsafe(no_mangle)]
extern "C" fn rsendto(
    _socket: c_int,
    _buffer: *const c_void,
    _length: usize,
    _flags: c_int,
    _to: *const sockaddr,
    _to_length: socklen_t,
) -> isize {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP))) as isize
}

#[unsafe(no_mangle)]
extern "C" fn rsendmsg(_socket: c_int, _message: *const msghdr, _flags: c_int) -> isize {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP))) as isize
}

#[unsafe(no_mangle)]
extern "C" fn rread(_socket: c_int, _buffer: *mut c_void, _length: usize) -> isize {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP))) as isize
}

#[unsafe(no_mangle)]
extern "C" fn rreadv(_socket: c_int, _pieces: *const iovec, _count: c_int) -> isize {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP))) as isize
}

#[unsafe(no_mangle)]
extern "C" fn rwrite(_socket: c_int, _buffer: *const c_void, _length: usize) -> isize {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP))) as isize
}

#[unsafe(no_mangle)]
extern "C" fn rwritev(_socket: c_int, _pieces: *const iovec, _count: c_int) -> isize {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP))) as isize
}

#[unsafe(no_mangle)]
extern "C" fn rgetpeername(_socket: c_int, _addr: *mut sockaddr, _length: *mut socklen_t) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn rgetsockname(_socket: c_int, _addr: *mut sockaddr, _length: *mut socklen_t) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn rsetsockopt(
    _socket: c_int,
    _level: c_int,
    _name: c_int,
    _value: *const c_void,
    _length: socklen_t,
) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn rgetsockopt(
    _socket: c_int,
    _level: c_int,
    _name: c_int,
    _value: *mut c_void,
    _length: *mut socklen_t,
) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn rfcntl(_socket: c_int, _command: c_int, _argument: c_long) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn riomap(
    _socket: c_int,
    _buffer: *mut c_void,
    _length: usize,
    _protection: c_int,
    _flags: c_int,
    _offset: off_t,
) -> isize {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP))) as isize
}

#[unsafe(no_mangle)]
extern "C" fn riounmap(_socket: c_int, _buffer: *mut c_void, _length: usize) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn riowrite(
    _socket: c_int,
    _buffer: *const c_void,
    _length: usize,
    _offset: off_t,
    _flags: c_int,
) -> isize {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP))) as isize
}

/// Descriptors are the kernel's, since there are no rsockets.
#[unsafe(no_mangle)]
unsafe extern "C" fn rpoll(
    descriptors: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout: c_int,
) -> c_int {
    // SAFETY: the caller's arguments, unchanged.
    unsafe { libc::poll(descriptors, count, timeout) }
}

/// Descriptors are the kernel's, since there are no rsockets.
#[unsafe(no_mangle)]
unsafe extern "C" fn rselect(
    count: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    timeout: *mut libc::timeval,
) -> c_int {
    // SAFETY: the caller's arguments, unchanged.
    unsafe { libc::select(count, read, write, except, timeout) }
}
