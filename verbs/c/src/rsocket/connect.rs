//! C interface of connections of rsockets: `sockaddr`, descriptors, errno.

use std::{ffi::c_int, net::SocketAddr};

use libc::{AF_INET, AF_INET6, O_NONBLOCK, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

use super::{
    socket::{set_flags, write_address},
    table,
};
use crate::{
    address,
    guard::{self, Errno},
};

/// Reads an address argument of `length` bytes.
unsafe fn given(addr: *const sockaddr, length: socklen_t) -> Result<SocketAddr, Errno> {
    if addr.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    if (length as usize) < size_of::<libc::sa_family_t>() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: the program passes this many bytes.
    let family = c_int::from(unsafe { (&raw const (*addr).sa_family).read_unaligned() });
    let needed = match family {
        AF_INET => size_of::<sockaddr_in>(),
        AF_INET6 => size_of::<sockaddr_in6>(),
        _ => return Err(Errno(libc::EAFNOSUPPORT)),
    };
    if (length as usize) < needed {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: it has the length of its family.
    unsafe { address::read(addr) }
}

pub(crate) unsafe extern "C" fn rbind(
    socket: c_int,
    addr: *const sockaddr,
    length: socklen_t,
) -> c_int {
    guard::done(|| {
        let socket = table::find(socket)?;
        // SAFETY: guaranteed by the program.
        socket.bind(unsafe { given(addr, length) }?)
    })
}

pub(crate) extern "C" fn rlisten(socket: c_int, backlog: c_int) -> c_int {
    guard::done(|| table::find(socket)?.listen(backlog))
}

/// As with librdmacm, the connection inherits the blocking mode of the listener.
pub(crate) unsafe extern "C" fn raccept(
    socket: c_int,
    addr: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    guard::number(|| {
        let listener = table::find(socket)?;
        // Created first, so that no connection is accepted without a descriptor for it.
        let descriptor = table::descriptor(listener.family(), false)?;
        let accepted = listener.accept()?;
        if !addr.is_null()
            && let Ok(peer) = accepted.peer_address()
        {
            // SAFETY: guaranteed by the program.
            unsafe { write_address(peer, addr, length) }?;
        }
        let is_nonblocking = listener.is_nonblocking();
        accepted.set_nonblocking(is_nonblocking);
        let descriptor = table::enter(descriptor, accepted)?;
        if is_nonblocking {
            set_flags(descriptor, O_NONBLOCK)?;
        }
        Ok(descriptor)
    })
}

pub(crate) unsafe extern "C" fn rconnect(
    socket: c_int,
    addr: *const sockaddr,
    length: socklen_t,
) -> c_int {
    guard::done(|| {
        let socket = table::find(socket)?;
        // SAFETY: guaranteed by the program.
        socket.connect(unsafe { given(addr, length) }?)
    })
}
