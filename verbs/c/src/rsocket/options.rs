//! C interface of rsocket options: levels, names, values.
//!
//! Options that have a meaning for TCP are kept by the kernel's socket of the descriptor, which checks their values as
//! programs expect. Their effects are implemented here.

use std::{
    ffi::{c_int, c_void},
    mem, ptr,
    time::Duration,
};

use flue_verbs_core::rsocket::{Linger, Socket};
use libc::{
    IP_TOS, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, IPV6_V6ONLY, SO_ACCEPTCONN, SO_DOMAIN, SO_ERROR,
    SO_KEEPALIVE, SO_LINGER, SO_OOBINLINE, SO_PROTOCOL, SO_RCVBUF, SO_REUSEADDR, SO_SNDBUF,
    SO_TYPE, SOL_SOCKET, TCP_CONGESTION, TCP_INFO, TCP_KEEPCNT, TCP_KEEPIDLE, TCP_KEEPINTVL,
    TCP_MAXSEG, TCP_NODELAY, socklen_t,
};

use super::{keep_alive, table};
use crate::guard::{self, Errno};

/// `SOL_RDMA` of `rdma/rsocket.h`.
const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;
const RDMA_ROUTE: c_int = 4;

/// States of `struct tcp_info`.
const TCP_ESTABLISHED: u8 = 1;
const TCP_CLOSE: u8 = 7;
const TCP_LISTEN: u8 = 10;

/// Returns true for an option that the kernel keeps without a further effect. Data is sent immediately (`TCP_NODELAY`),
/// and urgent data is not supported (`SO_OOBINLINE`); the others are about segments, which belong to the connection
/// below.
const fn is_kept(level: c_int, name: c_int) -> bool {
    matches!(
        (level, name),
        (SOL_SOCKET, SO_LINGER | SO_OOBINLINE)
            | (
                IPPROTO_TCP,
                TCP_NODELAY | TCP_MAXSEG | TCP_CONGESTION | TCP_KEEPCNT | TCP_KEEPINTVL
            )
            | (IPPROTO_IP, IP_TOS)
    )
}

/// Reads a number of the program.
unsafe fn number(value: *const c_void, length: socklen_t) -> Result<c_int, Errno> {
    if (length as usize) < size_of::<c_int>() {
        return Err(Errno(libc::EINVAL));
    }
    if value.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: the program passes this many bytes.
    Ok(unsafe { value.cast::<c_int>().read_unaligned() })
}

unsafe fn keep(
    descriptor: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> Result<(), Errno> {
    // SAFETY: the program's arguments.
    match unsafe { libc::setsockopt(descriptor, level, name, value, length) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}

/// Returns a number that the kernel keeps.
fn kept(descriptor: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let (mut value, mut length) = (0, size_of::<c_int>() as socklen_t);
    // SAFETY: there is room for a number.
    let got = unsafe {
        libc::getsockopt(descriptor, level, name, (&raw mut value).cast(), &raw mut length)
    };
    (got == 0).then_some(value)
}

fn set_keep_alive(descriptor: c_int, socket: &std::sync::Arc<Socket>) -> Result<(), Errno> {
    let is_on = kept(descriptor, SOL_SOCKET, SO_KEEPALIVE).is_some_and(|on| on != 0);
    let idle =
        kept(descriptor, IPPROTO_TCP, TCP_KEEPIDLE).and_then(|idle| u64::try_from(idle).ok());
    let interval = idle.filter(|idle| is_on && *idle > 0).map(Duration::from_secs);
    keep_alive::set(descriptor, socket, interval)
}

/// Returns the behavior of a close.
pub(super) fn linger(descriptor: c_int) -> Linger {
    let mut value = libc::linger { l_onoff: 0, l_linger: 0 };
    let mut length = size_of::<libc::linger>() as socklen_t;
    // SAFETY: there is room for it.
    let got = unsafe {
        let value = (&raw mut value).cast();
        libc::getsockopt(descriptor, SOL_SOCKET, SO_LINGER, value, &raw mut length)
    };
    match (got, value.l_onoff, u64::try_from(value.l_linger)) {
        (0, 0, _) | (_, _, Err(_)) => Linger::Default,
        (0, _, Ok(0)) => Linger::Reset,
        (0, _, Ok(seconds)) => Linger::For(Duration::from_secs(seconds)),
        _ => Linger::Default,
    }
}

pub(crate) unsafe extern "C" fn rsetsockopt(
    descriptor: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    guard::done(|| {
        let socket = table::find(descriptor)?;
        // SAFETY: the program passes this many bytes.
        let number = || unsafe { number(value, length) };
        // SAFETY: the program's arguments.
        let keep = || unsafe { keep(descriptor, level, name, value, length) };
        let doubled = |bytes: c_int| u32::try_from(bytes).unwrap_or(0).saturating_mul(2);
        match (level, name) {
            (SOL_SOCKET, SO_RCVBUF) => {
                let bytes = doubled(number()?);
                Ok(socket.set(|options| options.receive_buffer = bytes)?)
            }
            (SOL_SOCKET, SO_SNDBUF) => {
                let bytes = doubled(number()?);
                Ok(socket.set(|options| options.send_buffer = bytes)?)
            }
            (SOL_SOCKET, SO_REUSEADDR) => {
                let is_on = number()? != 0;
                keep()?;
                Ok(socket.set(|options| options.is_reuse = is_on)?)
            }
            (IPPROTO_IPV6, IPV6_V6ONLY) => {
                let is_on = number()? != 0;
                keep()?;
                Ok(socket.set(|options| options.is_family_only = is_on)?)
            }
            (SOL_SOCKET, SO_KEEPALIVE) | (IPPROTO_TCP, TCP_KEEPIDLE) => {
                keep()?;
                set_keep_alive(descriptor, &socket)
            }
            (SOL_RDMA, RDMA_SQSIZE | RDMA_RQSIZE | RDMA_INLINE | RDMA_IOMAPSIZE) => {
                let number = u32::try_from(number()?).map_err(|_| Errno(libc::EINVAL))?;
                if socket.is_opened() {
                    return Err(Errno(libc::EINVAL));
                }
                Ok(socket.set(|options| match name {
                    RDMA_SQSIZE => options.send_queue = number,
                    RDMA_RQSIZE => options.receive_queue = number,
                    RDMA_INLINE => options.inline = number,
                    _ => options.iomap_entries = u16::try_from(number).unwrap_or(u16::MAX),
                })?)
            }
            _ if is_kept(level, name) => keep(),
            // RDMA_ROUTE, for example: on iWARP, routes are those of IP.
            _ => Err(Errno(libc::EOPNOTSUPP)),
        }
    })
}

/// Writes a value up to the given length, and its length.
unsafe fn write_value(
    value: *mut c_void,
    length: *mut socklen_t,
    octets: &[u8],
) -> Result<(), Errno> {
    if length.is_null() || value.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: the program passes a buffer of the given size.
    unsafe {
        let count = octets.len().min(*length as usize);
        ptr::copy_nonoverlapping(octets.as_ptr(), value.cast(), count);
        *length = count as socklen_t;
    }
    Ok(())
}

fn tcp_info(socket: &Socket) -> [u8; size_of::<libc::tcp_info>()] {
    let mut info = [0; size_of::<libc::tcp_info>()];
    info[mem::offset_of!(libc::tcp_info, tcpi_state)] = match socket.is_listening() {
        true => TCP_LISTEN,
        false if socket.peer_address().is_ok() => TCP_ESTABLISHED,
        false => TCP_CLOSE,
    };
    info
}

pub(crate) unsafe extern "C" fn rgetsockopt(
    descriptor: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    guard::done(|| {
        let socket = table::find(descriptor)?;
        let options = socket.options();
        let wide = |number: u32| c_int::try_from(number).unwrap_or(c_int::MAX);
        let number = match (level, name) {
            (SOL_SOCKET, SO_ERROR) => socket.take_error()?.map_or(0, |error| error.0),
            (SOL_SOCKET, SO_RCVBUF) => wide(options.receive_buffer),
            (SOL_SOCKET, SO_SNDBUF) => wide(options.send_buffer),
            (SOL_SOCKET, SO_ACCEPTCONN) => socket.is_listening().into(),
            (SOL_RDMA, RDMA_SQSIZE) => wide(options.send_queue),
            (SOL_RDMA, RDMA_RQSIZE) => wide(options.receive_queue),
            (SOL_RDMA, RDMA_INLINE) => wide(options.inline),
            (SOL_RDMA, RDMA_IOMAPSIZE) => options.iomap_entries.into(),
            // No path records.
            // SAFETY: the program passes a buffer of the given size.
            (SOL_RDMA, RDMA_ROUTE) => return unsafe { write_value(value, length, &[]) },
            (IPPROTO_TCP, TCP_INFO) => {
                // SAFETY: the program passes a buffer of the given size.
                return unsafe { write_value(value, length, &tcp_info(&socket)) };
            }
            (SOL_SOCKET, SO_REUSEADDR | SO_KEEPALIVE | SO_TYPE | SO_DOMAIN | SO_PROTOCOL)
            | (IPPROTO_TCP, TCP_KEEPIDLE)
            | (IPPROTO_IPV6, IPV6_V6ONLY) => return kernel(descriptor, level, name, value, length),
            _ if is_kept(level, name) => return kernel(descriptor, level, name, value, length),
            _ => return Err(Errno(libc::EOPNOTSUPP)),
        };
        // SAFETY: the program passes a buffer of the given size.
        unsafe { write_value(value, length, &number.to_ne_bytes()) }
    })
}

fn kernel(
    descriptor: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> Result<(), Errno> {
    // SAFETY: the program's arguments; the kernel checks them.
    match unsafe { libc::getsockopt(descriptor, level, name, value, length) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}
