//! Socket addresses of consumers: `sockaddr` of Linux, of either family.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    ptr,
};

use libc::{sockaddr_in, sockaddr_in6};
use rdma_over_tcp::ndk::NtStatus;

use crate::abi::types::{SOCKADDR, ULONG};

/// Reads an address of the consumer.
///
/// # Errors
/// INVALID_PARAMETER: null, of another family, or too short for its family.
///
/// # Safety
/// The pointer is null, or `length` bytes can be read from it.
pub(crate) unsafe fn read(address: *const SOCKADDR, length: ULONG) -> Result<SocketAddr, NtStatus> {
    let length = length as usize;
    if address.is_null() || length < size_of::<libc::sa_family_t>() {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    // SAFETY: the caller guarantees it; all families have the same first member.
    let family = unsafe { (&raw const (*address).sa_family).read_unaligned() };
    match i32::from(family) {
        libc::AF_INET if length >= size_of::<sockaddr_in>() => {
            // SAFETY: the length was checked.
            let found = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(found.sin_addr.s_addr));
            Ok(SocketAddrV4::new(ip, u16::from_be(found.sin_port)).into())
        }
        libc::AF_INET6 if length >= size_of::<sockaddr_in6>() => {
            // SAFETY: the length was checked.
            let found = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(found.sin6_addr.s6_addr);
            let (port, flow) = (u16::from_be(found.sin6_port), found.sin6_flowinfo);
            Ok(SocketAddrV6::new(ip, port, flow, found.sin6_scope_id).into())
        }
        _ => Err(NtStatus::INVALID_PARAMETER),
    }
}

/// Writes an address and its length for the consumer. If the consumer's buffer is too small, only the length is
/// written.
///
/// # Errors
/// BUFFER_TOO_SMALL; INVALID_PARAMETER: `length` is null, or `address` is null although the length is not 0.
///
/// # Safety
/// Each pointer is null or can be written; `address` has as many bytes as `length` contains.
pub(crate) unsafe fn write(
    found: SocketAddr,
    address: *mut SOCKADDR,
    length: *mut ULONG,
) -> Result<(), NtStatus> {
    if length.is_null() {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    // SAFETY: the caller guarantees it.
    let room = unsafe { length.read() } as usize;
    if address.is_null() && room > 0 {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    match found {
        SocketAddr::V4(found) => {
            let encoded = sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: found.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*found.ip()).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: the caller guarantees it.
            unsafe { put(encoded, address, room, length) }
        }
        SocketAddr::V6(found) => {
            let encoded = sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: found.port().to_be(),
                sin6_flowinfo: found.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: found.ip().octets() },
                sin6_scope_id: found.scope_id(),
            };
            // SAFETY: the caller guarantees it.
            unsafe { put(encoded, address, room, length) }
        }
    }
}

/// # Safety
/// As [`write`]; `room` bytes can be written at `address`.
unsafe fn put<T>(
    encoded: T,
    address: *mut SOCKADDR,
    room: usize,
    length: *mut ULONG,
) -> Result<(), NtStatus> {
    let bytes = size_of::<T>();
    // SAFETY: the caller guarantees it.
    unsafe { length.write(bytes as ULONG) };
    if room < bytes {
        return Err(NtStatus::BUFFER_TOO_SMALL);
    }
    // SAFETY: `address` has room for this many bytes.
    unsafe { ptr::copy_nonoverlapping((&raw const encoded).cast::<u8>(), address.cast(), bytes) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for text in ["192.0.2.1:7", "[2001:db8::1]:65535", "[fe80::1%3]:9", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().unwrap();
            let mut bytes = [0_u8; 28];
            let place = (&raw mut bytes).cast::<SOCKADDR>();
            let needed = if address.is_ipv4() { 16 } else { 28 };
            // SAFETY: the lengths are at most the size of the buffer.
            unsafe {
                let mut length = needed - 1;
                let short = write(address, place, &raw mut length);
                assert_eq!((short, length), (Err(NtStatus::BUFFER_TOO_SMALL), needed));
                assert_eq!(write(address, place, &raw mut length), Ok(()));
                assert_eq!(read(place, needed), Ok(address));
                for length in [0, 1, needed - 1] {
                    assert_eq!(read(place, length), Err(NtStatus::INVALID_PARAMETER));
                }
                assert_eq!(read(ptr::null(), needed), Err(NtStatus::INVALID_PARAMETER));
                let none = write(address, ptr::null_mut(), &raw mut length);
                assert_eq!(none, Err(NtStatus::INVALID_PARAMETER));
                assert_eq!(write(address, place, ptr::null_mut()), none);
                place.cast::<u8>().write(1);
                assert_eq!(read(place, 28), Err(NtStatus::INVALID_PARAMETER));
            }
        }
    }
}
