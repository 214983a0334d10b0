//! C interface of the addresses of this machine: getifaddrs(3).

use std::{
    ffi::{CStr, c_int},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ptr,
};

use flue_verbs_core::gid::InterfaceAddress;

/// Returns the addresses of interfaces that are up. Without them, for lack of memory or descriptors, the list is empty.
pub(crate) fn addresses() -> Vec<InterfaceAddress> {
    let mut list = ptr::null_mut();
    // SAFETY: the C library writes a list to the place, or fails.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: the element is one of the list, which is freed below.
        let element = unsafe { &*next };
        // SAFETY: as above.
        found.extend(unsafe { address(element) });
        next = element.ifa_next;
    }
    // SAFETY: the list is that of the call above, and no longer used.
    unsafe { libc::freeifaddrs(list) };
    found
}

/// Returns the address of an element; `None`: of another family, or of an interface that is down.
///
/// # Safety
/// The element is one of getifaddrs(3).
unsafe fn address(element: &libc::ifaddrs) -> Option<InterfaceAddress> {
    let has = |flag: c_int| element.ifa_flags & flag as u32 != 0;
    if element.ifa_addr.is_null() || !has(libc::IFF_UP) {
        return None;
    }
    // SAFETY: guaranteed by the caller; the family selects the type of the address.
    let (ip, index) = unsafe {
        match c_int::from((*element.ifa_addr).sa_family) {
            libc::AF_INET => {
                let address = element.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr));
                (IpAddr::from(ip), libc::if_nametoindex(element.ifa_name))
            }
            libc::AF_INET6 => {
                let address = element.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from_octets(address.sin6_addr.s6_addr);
                (IpAddr::from(ip), libc::if_nametoindex(element.ifa_name))
            }
            _ => return None,
        }
    };
    // SAFETY: guaranteed by the caller.
    let name = unsafe { CStr::from_ptr(element.ifa_name) }.to_string_lossy().into_owned();
    Some(InterfaceAddress { ip, name, index, is_loopback: has(libc::IFF_LOOPBACK) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_address_is_found() {
        let found = addresses();
        let loopback = found.iter().find(|it| it.ip == IpAddr::from([127, 0, 0, 1]));
        let loopback = loopback.expect("the loopback interface is up");
        assert_eq!((loopback.name.as_str(), loopback.is_loopback), ("lo", true));
        assert_ne!(loopback.index, 0);
    }
}
