//! C interface of addresses: `sockaddr`, `rdma_getaddrinfo`.

use std::{
    ffi::{CStr, c_char, c_int},
    mem,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    ptr,
};

use flue_verbs_abi::{
    cm::{
        RAI_FAMILY, RAI_NUMERICHOST, RAI_PASSIVE, RDMA_PS_IB, RDMA_PS_IPOIB, RDMA_PS_TCP,
        RDMA_PS_UDP, rdma_addrinfo,
    },
    enums::{IBV_QPT_RC, IBV_QPT_UD},
};
use libc::{addrinfo, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use crate::guard::{self, Errno, copied};

/// Reads an address of the program.
///
/// # Safety
/// The pointer is null, or refers to an address with the length of its family.
pub(crate) unsafe fn read(address: *const sockaddr) -> Result<SocketAddr, Errno> {
    if address.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: guaranteed by the caller; the family is the first member of all.
    unsafe {
        match c_int::from((&raw const (*address).sa_family).read_unaligned()) {
            libc::AF_INET => {
                let found = address.cast::<sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(u32::from_be(found.sin_addr.s_addr));
                Ok(SocketAddrV4::new(ip, u16::from_be(found.sin_port)).into())
            }
            libc::AF_INET6 => {
                let found = address.cast::<sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(found.sin6_addr.s6_addr);
                let (port, flow) = (u16::from_be(found.sin6_port), found.sin6_flowinfo);
                Ok(SocketAddrV6::new(ip, port, flow, found.sin6_scope_id).into())
            }
            // AF_IB, for example.
            _ => Err(Errno(libc::ENODEV)),
        }
    }
}

/// Converts an address for the program.
pub(crate) fn storage(address: SocketAddr) -> sockaddr_storage {
    // SAFETY: zero octets are an address of no family.
    let mut storage = unsafe { mem::zeroed::<sockaddr_storage>() };
    let place = &raw mut storage;
    // SAFETY: there is room for either family.
    unsafe {
        match address {
            SocketAddr::V4(address) => {
                let mut raw = mem::zeroed::<sockaddr_in>();
                raw.sin_family = libc::AF_INET as libc::sa_family_t;
                raw.sin_port = address.port().to_be();
                raw.sin_addr.s_addr = u32::from(*address.ip()).to_be();
                place.cast::<sockaddr_in>().write(raw);
            }
            SocketAddr::V6(address) => {
                let mut raw = mem::zeroed::<sockaddr_in6>();
                raw.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                raw.sin6_port = address.port().to_be();
                raw.sin6_flowinfo = address.flowinfo();
                raw.sin6_addr.s6_addr = address.ip().octets();
                raw.sin6_scope_id = address.scope_id();
                place.cast::<sockaddr_in6>().write(raw);
            }
        }
    }
    storage
}

/// Copies an address to memory of the C library.
unsafe fn copy(address: *const sockaddr, length: socklen_t) -> Result<*mut sockaddr, Errno> {
    // SAFETY: guaranteed by the caller; source and copy have this many bytes.
    unsafe {
        let copied = libc::malloc(length as usize);
        if copied.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        ptr::copy_nonoverlapping(address.cast::<u8>(), copied.cast(), length as usize);
        Ok(copied.cast())
    }
}

/// Resolves a name. The result is the first one of getaddrinfo(3).
unsafe fn resolve(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
    into: &mut rdma_addrinfo,
) -> Result<c_int, Errno> {
    let flags = hints.map_or(0, |hints| hints.ai_flags as u32);
    // SAFETY: zero octets are hints of nothing; names are the program's, or null.
    unsafe {
        let mut wanted = mem::zeroed::<addrinfo>();
        if flags & RAI_PASSIVE != 0 {
            wanted.ai_flags |= libc::AI_PASSIVE;
        }
        if flags & RAI_NUMERICHOST != 0 {
            wanted.ai_flags |= libc::AI_NUMERICHOST;
        }
        if let Some(hints) = hints.filter(|_| flags & RAI_FAMILY != 0) {
            wanted.ai_family = hints.ai_family;
        }
        wanted.ai_socktype = libc::SOCK_STREAM;
        let mut found = ptr::null_mut();
        let failed = libc::getaddrinfo(node, service, &raw const wanted, &raw mut found);
        if failed != 0 {
            return Ok(failed);
        }
        into.ai_family = (*found).ai_family;
        let copied = copy((*found).ai_addr, (*found).ai_addrlen);
        let length = (*found).ai_addrlen;
        let name = match (*found).ai_canonname.is_null() {
            true => ptr::null_mut(),
            false => libc::strdup(CStr::from_ptr((*found).ai_canonname).as_ptr()),
        };
        libc::freeaddrinfo(found);
        let place = match flags & RAI_PASSIVE != 0 {
            true => (&mut into.ai_src_addr, &mut into.ai_src_len, &mut into.ai_src_canonname),
            false => (&mut into.ai_dst_addr, &mut into.ai_dst_len, &mut into.ai_dst_canonname),
        };
        *place.2 = name;
        *place.0 = copied?;
        *place.1 = length;
    }
    Ok(0)
}

/// Derives a missing port space or type of queue pair from the other.
fn spaces(hints: Option<&rdma_addrinfo>) -> (c_int, c_int) {
    let (space, kind) = hints.map_or((0, 0), |hints| (hints.ai_port_space, hints.ai_qp_type));
    let (tcp, rc) = (RDMA_PS_TCP.0 as c_int, IBV_QPT_RC.0 as c_int);
    let (udp, ud) = (RDMA_PS_UDP.0 as c_int, IBV_QPT_UD.0 as c_int);
    match (space, kind) {
        (0, 0) => (tcp, rc),
        (0, kind) if kind == ud => (udp, kind),
        (0, kind) => (tcp, kind),
        (space, 0) if space == udp || space == RDMA_PS_IPOIB.0 as c_int => (space, ud),
        (space, 0) if space == tcp || space == RDMA_PS_IB.0 as c_int => (space, rc),
        given => given,
    }
}

pub(crate) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    guard::number(|| {
        // SAFETY: guaranteed by the program.
        let hints = unsafe { copied(hints) };
        if node.is_null() && service.is_null() && hints.is_none() {
            return Err(Errno(libc::EINVAL));
        }
        let made = Box::into_raw(Box::new(rdma_addrinfo::zeroed()));
        // SAFETY: it was created above; the rest is guaranteed by the program.
        let failed = unsafe { fill(&mut *made, node, service, hints.as_ref()) };
        match failed {
            Ok(0) => {
                // SAFETY: the program passes writable memory for it.
                unsafe { res.write_unaligned(made) };
                Ok(0)
            }
            other => {
                // SAFETY: the list has no other owner.
                unsafe { free(made) };
                other
            }
        }
    })
}

unsafe fn fill(
    into: &mut rdma_addrinfo,
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> Result<c_int, Errno> {
    (into.ai_port_space, into.ai_qp_type) = spaces(hints);
    if let Some(hints) = hints {
        into.ai_flags = hints.ai_flags;
        into.ai_family = hints.ai_family;
    }
    if !node.is_null() || !service.is_null() {
        // SAFETY: guaranteed by the caller.
        let failed = unsafe { resolve(node, service, hints, into) }?;
        if failed != 0 {
            return Ok(failed);
        }
    }
    if let Some(hints) = hints {
        // SAFETY: the program passes addresses of the given lengths.
        unsafe {
            if into.ai_src_len == 0 && hints.ai_src_len > 0 && !hints.ai_src_addr.is_null() {
                into.ai_src_addr = copy(hints.ai_src_addr, hints.ai_src_len)?;
                into.ai_src_len = hints.ai_src_len;
            }
            if into.ai_dst_len == 0 && hints.ai_dst_len > 0 && !hints.ai_dst_addr.is_null() {
                into.ai_dst_addr = copy(hints.ai_dst_addr, hints.ai_dst_len)?;
                into.ai_dst_len = hints.ai_dst_len;
            }
        }
    }
    Ok(0)
}

/// # Safety
/// The pointer is a result of [`rdma_getaddrinfo`].
unsafe fn free(made: *mut rdma_addrinfo) {
    // SAFETY: guaranteed by the caller; its members are the C library's memory, or null.
    unsafe {
        let made = Box::from_raw(made);
        libc::free(made.ai_src_addr.cast());
        libc::free(made.ai_dst_addr.cast());
        libc::free(made.ai_src_canonname.cast());
        libc::free(made.ai_dst_canonname.cast());
    }
}

pub(crate) unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    guard::nothing(|| {
        let mut next = res;
        while !next.is_null() {
            // SAFETY: the program passes a list that it received.
            unsafe {
                let after = (*next).ai_next;
                free(next);
                next = after;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_go_both_ways() {
        for text in ["192.0.2.1:7", "[2001:db8::1]:65535", "[fe80::1%3]:9", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().unwrap();
            let stored = storage(address);
            // SAFETY: the storage is one of an address.
            assert_eq!(unsafe { read((&raw const stored).cast()) }, Ok(address));
        }
        // SAFETY: null is allowed, and so is a family that is not known.
        unsafe {
            assert_eq!(read(ptr::null()), Err(Errno(libc::EINVAL)));
            let mut stored = storage("192.0.2.1:7".parse().unwrap());
            stored.ss_family = 27;
            assert_eq!(read((&raw const stored).cast()), Err(Errno(libc::ENODEV)));
        }
    }
}
