//! Local addresses in use: by listeners, and by connectors until they are closed (NDK-EP-1, -2).

use alloc::vec::Vec;
use core::net::SocketAddr;

/// Local endpoints with their reference counts.
#[derive(Debug, Default)]
pub(crate) struct Endpoints(Vec<(SocketAddr, u32)>);

impl Endpoints {
    /// Returns whether `address` is in use, or one that covers it: an unspecified address covers all.
    pub(crate) fn is_in_use(&self, address: SocketAddr) -> bool {
        self.0.iter().any(|(used, _)| {
            used.port() == address.port()
                && used.is_ipv4() == address.is_ipv4()
                && (used.ip() == address.ip()
                    || used.ip().is_unspecified()
                    || address.ip().is_unspecified())
        })
    }

    pub(crate) fn reference(&mut self, address: SocketAddr) -> SocketAddr {
        match self.0.iter_mut().find(|(used, _)| *used == address) {
            Some((_, count)) => *count += 1,
            None => self.0.push((address, 1)),
        }
        address
    }

    pub(crate) fn release(&mut self, address: SocketAddr) {
        if let Some(index) = self.0.iter().position(|(used, _)| *used == address) {
            self.0[index].1 -= 1;
            if self.0[index].1 == 0 {
                self.0.swap_remove(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    // NDK-EP-1, NDK-EP-2
    #[test]
    fn in_use_until_the_last_reference() {
        let mut endpoints = Endpoints::default();
        endpoints.reference(address("0.0.0.0:7000"));
        endpoints.reference(address("10.0.0.1:7000"));
        endpoints.reference(address("10.0.0.1:7000"));
        endpoints.release(address("0.0.0.0:7000"));
        assert!(endpoints.is_in_use(address("10.0.0.1:7000")));
        assert!(endpoints.is_in_use(address("0.0.0.0:7000")), "covers it");
        assert!(!endpoints.is_in_use(address("10.0.0.2:7000")));
        assert!(!endpoints.is_in_use(address("[::]:7000")));
        assert!(!endpoints.is_in_use(address("10.0.0.1:7001")));
        endpoints.release(address("10.0.0.1:7000"));
        assert!(endpoints.is_in_use(address("10.0.0.1:7000")));
        endpoints.release(address("10.0.0.1:7000"));
        assert!(!endpoints.is_in_use(address("10.0.0.1:7000")));
    }
}
