//! C interface of rsocket data: `iovec`, `msghdr`, mapped buffers.

use std::{
    ffi::{c_int, c_void},
    ptr::{self, NonNull},
    slice,
};

use libc::{
    EOPNOTSUPP, MSG_DONTWAIT, MSG_OOB, MSG_PEEK, MSG_WAITALL, iovec, msghdr, off_t, sockaddr,
    socklen_t,
};
use offload_engine::memory::{SharedSpan, mapped};
use rdma_over_tcp::rnic::RegisteredBuffer;

use super::{socket::write_address, table};
use crate::guard::{self, Errno};

/// Maximum number of pieces of a call (`IOV_MAX`).
const PIECES_MAX: usize = 1024;

/// Returns the program's pieces that are not empty.
unsafe fn pieces<'a>(pieces: *const iovec, count: usize) -> Result<Vec<&'a iovec>, Errno> {
    if count > PIECES_MAX {
        return Err(Errno(libc::EMSGSIZE));
    }
    if count == 0 {
        return Ok(Vec::new());
    }
    if pieces.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: the program passes this many.
    let all = unsafe { slice::from_raw_parts(pieces, count) };
    let total = all.iter().try_fold(0_usize, |total, piece| total.checked_add(piece.iov_len));
    if total.is_none_or(|total| isize::try_from(total).is_err()) {
        return Err(Errno(libc::EINVAL));
    }
    let some: Vec<_> = all.iter().filter(|piece| piece.iov_len > 0).collect();
    match some.iter().any(|piece| piece.iov_base.is_null()) {
        true => Err(Errno(libc::EFAULT)),
        false => Ok(some),
    }
}

unsafe fn receive(
    socket: c_int,
    vector: *const iovec,
    count: usize,
    flags: c_int,
) -> Result<usize, Errno> {
    let socket = table::find(socket)?;
    if flags & MSG_OOB != 0 {
        return Err(Errno(EOPNOTSUPP));
    }
    // SAFETY: guaranteed by the caller; the program does not use the memory meanwhile.
    let mut into: Vec<_> = unsafe {
        let pieces = pieces(vector, count)?;
        pieces
            .iter()
            .map(|piece| slice::from_raw_parts_mut(piece.iov_base.cast::<u8>(), piece.iov_len))
            .collect()
    };
    let has = |flag: c_int| flags & flag != 0;
    socket.receive(&mut into, has(MSG_DONTWAIT), has(MSG_PEEK), has(MSG_WAITALL))
}

unsafe fn send(
    socket: c_int,
    vector: *const iovec,
    count: usize,
    flags: c_int,
) -> Result<usize, Errno> {
    let socket = table::find(socket)?;
    if flags & MSG_OOB != 0 {
        return Err(Errno(EOPNOTSUPP));
    }
    // SAFETY: guaranteed by the caller; the program does not change the memory meanwhile.
    let from: Vec<_> = unsafe {
        let pieces = pieces(vector, count)?;
        pieces
            .iter()
            .map(|piece| slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len))
            .collect()
    };
    socket.send(&from, flags & MSG_DONTWAIT != 0)
}

const fn one(buffer: *const c_void, length: usize) -> iovec {
    iovec { iov_base: buffer.cast_mut(), iov_len: length }
}

pub(crate) unsafe extern "C" fn rrecv(
    socket: c_int,
    buffer: *mut c_void,
    length: usize,
    flags: c_int,
) -> isize {
    // SAFETY: guaranteed by the program.
    guard::bytes(|| unsafe { receive(socket, &one(buffer, length), 1, flags) })
}

pub(crate) unsafe extern "C" fn rrecvfrom(
    socket: c_int,
    buffer: *mut c_void,
    length: usize,
    flags: c_int,
    from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> isize {
    guard::bytes(|| {
        // SAFETY: guaranteed by the program.
        let count = unsafe { receive(socket, &one(buffer, length), 1, flags) }?;
        if !from.is_null() && count > 0 {
            let peer = table::find(socket)?.peer_address()?;
            // SAFETY: guaranteed by the program.
            unsafe { write_address(peer, from, from_length) }?;
        }
        Ok(count)
    })
}

pub(crate) unsafe extern "C" fn rrecvmsg(
    socket: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> isize {
    guard::bytes(|| {
        // SAFETY: guaranteed by the program.
        unsafe {
            let message = message.as_mut().ok_or(Errno(libc::EFAULT))?;
            let count = receive(socket, message.msg_iov, message.msg_iovlen, flags)?;
            message.msg_namelen = 0;
            message.msg_controllen = 0;
            message.msg_flags = 0;
            Ok(count)
        }
    })
}

pub(crate) unsafe extern "C" fn rread(socket: c_int, buffer: *mut c_void, length: usize) -> isize {
    // SAFETY: guaranteed by the program.
    guard::bytes(|| unsafe { receive(socket, &one(buffer, length), 1, 0) })
}

pub(crate) unsafe extern "C" fn rreadv(socket: c_int, vector: *const iovec, count: c_int) -> isize {
    guard::bytes(|| {
        let count = usize::try_from(count).map_err(|_| Errno(libc::EINVAL))?;
        // SAFETY: guaranteed by the program.
        unsafe { receive(socket, vector, count, 0) }
    })
}

pub(crate) unsafe extern "C" fn rsend(
    socket: c_int,
    buffer: *const c_void,
    length: usize,
    flags: c_int,
) -> isize {
    // SAFETY: guaranteed by the program.
    guard::bytes(|| unsafe { send(socket, &one(buffer, length), 1, flags) })
}

pub(crate) unsafe extern "C" fn rsendto(
    socket: c_int,
    buffer: *const c_void,
    length: usize,
    flags: c_int,
    to: *const sockaddr,
    _to_length: socklen_t,
) -> isize {
    guard::bytes(|| {
        if !to.is_null() {
            table::find(socket)?;
            return Err(Errno(libc::EISCONN));
        }
        // SAFETY: guaranteed by the program.
        unsafe { send(socket, &one(buffer, length), 1, flags) }
    })
}

pub(crate) unsafe extern "C" fn rsendmsg(
    socket: c_int,
    message: *const msghdr,
    flags: c_int,
) -> isize {
    guard::bytes(|| {
        // SAFETY: guaranteed by the program.
        unsafe {
            let message = message.as_ref().ok_or(Errno(libc::EFAULT))?;
            if !message.msg_control.is_null() && message.msg_controllen > 0 {
                return Err(Errno(EOPNOTSUPP));
            }
            send(socket, message.msg_iov, message.msg_iovlen, flags)
        }
    })
}

pub(crate) unsafe extern "C" fn rwrite(
    socket: c_int,
    buffer: *const c_void,
    length: usize,
) -> isize {
    // SAFETY: guaranteed by the program.
    guard::bytes(|| unsafe { send(socket, &one(buffer, length), 1, 0) })
}

pub(crate) unsafe extern "C" fn rwritev(
    socket: c_int,
    vector: *const iovec,
    count: c_int,
) -> isize {
    guard::bytes(|| {
        let count = usize::try_from(count).map_err(|_| Errno(libc::EINVAL))?;
        // SAFETY: guaranteed by the program.
        unsafe { send(socket, vector, count, 0) }
    })
}

/// With an offset of -1, the offset is the buffer's address.
pub(crate) unsafe extern "C" fn riomap(
    socket: c_int,
    buffer: *mut c_void,
    length: usize,
    protection: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    let mapped = guard::bytes(|| {
        let socket = table::find(socket)?;
        if protection & !libc::PROT_WRITE != 0 || length == 0 || isize::try_from(length).is_err() {
            return Err(Errno(libc::EINVAL));
        }
        let start = NonNull::new(buffer.cast::<u8>()).ok_or(Errno(libc::EFAULT))?;
        let address = start.as_ptr().addr();
        let offset = if offset == -1 { address } else { offset as usize };
        mapped::check(address, length, true)?;
        // SAFETY: the pages are mapped and writable. The program, which is not Rust, keeps them until `riounmap` or
        // `rclose` has returned; after that the span is not used.
        let span = unsafe { SharedSpan::from_raw(start, length, true, ()) };
        let is_told = protection & libc::PROT_WRITE != 0;
        socket.map(&RegisteredBuffer::from(span), offset as u64, is_told)?;
        Ok(offset)
    });
    mapped as off_t
}

pub(crate) extern "C" fn riounmap(socket: c_int, buffer: *mut c_void, length: usize) -> c_int {
    guard::done(|| table::find(socket)?.unmap(buffer.addr(), length))
}

/// EINVAL: the peer has no mapping at this offset.
pub(crate) unsafe extern "C" fn riowrite(
    socket: c_int,
    buffer: *const c_void,
    length: usize,
    offset: off_t,
    flags: c_int,
) -> isize {
    guard::bytes(|| {
        let socket = table::find(socket)?;
        let piece = one(buffer, length);
        // SAFETY: guaranteed by the program; it does not change the memory during the call.
        let data = unsafe {
            match pieces(ptr::from_ref(&piece), 1)?.first() {
                Some(piece) => slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len),
                None => return Ok(0),
            }
        };
        socket.write_mapped(data, offset as u64, flags & MSG_DONTWAIT != 0)
    })
}
