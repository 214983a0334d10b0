//! C interface of rsockets: creation, addresses, connections, close.

use std::{
    ffi::{c_int, c_long},
    net::SocketAddr,
};

use flue_verbs_core::rsocket::{Family, Shutdown, Socket, SocketOptions};
use libc::{
    AF_INET, AF_INET6, F_GETFD, F_GETFL, F_SETFD, F_SETFL, IPPROTO_TCP, O_NONBLOCK, SOCK_CLOEXEC,
    SOCK_NONBLOCK, SOCK_STREAM, sockaddr, sockaddr_in, sockaddr_in6, socklen_t,
};

use super::{keep_alive, options, table};
use crate::{
    address, config,
    guard::{self, Errno},
};

/// Sets the blocking mode of the descriptor, which the program can query.
pub(super) fn set_flags(descriptor: c_int, flags: c_int) -> Result<(), Errno> {
    // SAFETY: no memory is involved.
    match unsafe { libc::fcntl(descriptor, F_SETFL, flags) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}

pub(crate) extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    guard::number(|| {
        let family = match domain {
            AF_INET => Family::V4,
            AF_INET6 => Family::V6,
            _ => return Err(Errno(libc::EAFNOSUPPORT)),
        };
        let is_stream = kind & !(SOCK_CLOEXEC | SOCK_NONBLOCK) == SOCK_STREAM;
        if !is_stream || protocol != 0 && protocol != IPPROTO_TCP {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let socket = Socket::new(config::device()?, family, SocketOptions::default())?;
        let descriptor = table::descriptor(family, kind & SOCK_CLOEXEC != 0)?;
        let descriptor = table::enter(descriptor, socket.clone())?;
        if kind & SOCK_NONBLOCK != 0 {
            set_flags(descriptor, O_NONBLOCK)?;
            socket.set_nonblocking(true);
        }
        Ok(descriptor)
    })
}

/// Writes an address for the program, up to the given length, and its length.
pub(super) unsafe fn write_address(
    from: SocketAddr,
    addr: *mut sockaddr,
    length: *mut socklen_t,
) -> Result<(), Errno> {
    if length.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    let size = if from.is_ipv4() { size_of::<sockaddr_in>() } else { size_of::<sockaddr_in6>() };
    let stored = address::storage(from);
    // SAFETY: the program passes a buffer of the given size.
    unsafe {
        let count = size.min(*length as usize);
        if count > 0 && addr.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        if count > 0 {
            std::ptr::copy_nonoverlapping((&raw const stored).cast::<u8>(), addr.cast(), count);
        }
        *length = size as socklen_t;
    }
    Ok(())
}

pub(crate) extern "C" fn rshutdown(socket: c_int, how: c_int) -> c_int {
    guard::done(|| {
        let socket = table::find(socket)?;
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Err(Errno(libc::EINVAL)),
        };
        socket.shut_down(how)
    })
}

pub(crate) extern "C" fn rclose(descriptor: c_int) -> c_int {
    guard::done(|| {
        if table::close_inherited(descriptor)? {
            return Ok(());
        }
        let socket = table::remove(descriptor)?;
        let _ = keep_alive::set(descriptor, &socket, None);
        socket.close(options::linger(descriptor));
        // SAFETY: the descriptor is that of the rsocket, which was removed from the table.
        unsafe { rustix::io::close(descriptor) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn rgetpeername(
    socket: c_int,
    addr: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    guard::done(|| {
        let peer = table::find(socket)?.peer_address()?;
        // SAFETY: guaranteed by the program.
        unsafe { write_address(peer, addr, length) }
    })
}

pub(crate) unsafe extern "C" fn rgetsockname(
    socket: c_int,
    addr: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    guard::done(|| {
        let local = table::find(socket)?.local_address();
        // SAFETY: guaranteed by the program.
        unsafe { write_address(local, addr, length) }
    })
}

pub(crate) extern "C" fn rfcntl(descriptor: c_int, command: c_int, argument: c_long) -> c_int {
    guard::number(|| {
        let socket = table::find(descriptor)?;
        if !matches!(command, F_GETFL | F_SETFL | F_GETFD | F_SETFD) {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        // The program passes an int.
        let argument = argument as c_int;
        // SAFETY: no memory is involved.
        let result = unsafe { libc::fcntl(descriptor, command, argument) };
        if result < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        if command == F_SETFL {
            socket.set_nonblocking(argument & O_NONBLOCK != 0);
        }
        Ok(result)
    })
}
