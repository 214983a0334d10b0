//! Local addresses in use: by listeners, and by connectors until they are closed (NDK-EP-1, -2).
//!
//! The transport reserves the addresses of listeners and of outgoing connections, so that no other user of its node
//! takes them. It releases an address with its last reference. An accepted connection pins its listener, so its
//! references need no reservation.

use alloc::vec::Vec;

use offload_engine::address::LocalAddress;

use crate::rnic::transport::Reservation;

/// Local endpoints with their reference counts.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    used: Vec<Used>,
    /// Reservations that the transport has to release.
    released: Vec<Reservation>,
}

#[derive(Debug)]
struct Used {
    address: LocalAddress,
    count: u32,
    reservations: Vec<Reservation>,
}

impl Endpoints {
    /// Returns true if an address that overlaps this one is in use.
    pub(crate) fn is_in_use(&self, address: impl Into<LocalAddress>) -> bool {
        let address = address.into();
        self.used.iter().any(|used| used.address.overlaps(&address))
    }

    pub(crate) fn reference(&mut self, address: impl Into<LocalAddress>) -> LocalAddress {
        let address = address.into();
        match self.used.iter_mut().find(|used| used.address == address) {
            Some(used) => used.count += 1,
            None => self.used.push(Used { address, count: 1, reservations: Vec::new() }),
        }
        address
    }

    /// As [`Endpoints::reference`], for an address that the transport has reserved.
    pub(crate) fn reserve(
        &mut self,
        address: impl Into<LocalAddress>,
        reservation: Reservation,
    ) -> LocalAddress {
        let address = self.reference(address);
        if let Some(used) = self.used.iter_mut().find(|used| used.address == address) {
            used.reservations.push(reservation);
        }
        address
    }

    pub(crate) fn release(&mut self, address: LocalAddress) {
        if let Some(index) = self.used.iter().position(|used| used.address == address) {
            self.used[index].count -= 1;
            if self.used[index].count == 0 {
                self.released.append(&mut self.used.swap_remove(index).reservations);
            }
        }
    }

    pub(crate) fn has_released(&self) -> bool {
        !self.released.is_empty()
    }

    /// Removes and returns the reservations without references.
    pub(crate) fn take_released(&mut self) -> Vec<Reservation> {
        core::mem::take(&mut self.released)
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use super::*;
    use crate::rnic::objects::id::StreamId;

    fn address(text: &str) -> LocalAddress {
        text.parse::<SocketAddr>().unwrap().into()
    }

    // NDK-EP-1, NDK-EP-2
    #[test]
    fn in_use_until_the_last_reference() {
        let mut endpoints = Endpoints::default();
        let name = Reservation::Stream(StreamId(1));
        endpoints.reserve(address("0.0.0.0:7000"), name);
        assert!(endpoints.is_in_use(address("10.0.0.2:7000")), "covered by the wildcard address");
        endpoints.reference(address("10.0.0.1:7000"));
        endpoints.reference(address("10.0.0.1:7000"));
        assert_eq!(endpoints.take_released(), []);
        endpoints.release(address("0.0.0.0:7000"));
        assert_eq!(endpoints.take_released(), [name]);
        assert!(endpoints.is_in_use(address("10.0.0.1:7000")));
        assert!(endpoints.is_in_use(address("0.0.0.0:7000")), "the wildcard address covers it");
        assert!(!endpoints.is_in_use(address("10.0.0.2:7000")));
        assert!(endpoints.is_in_use(address("[::]:7000")), "covers IPv4 as well");
        let v6_only = LocalAddress { v6_only: true, ..address("[::]:7000") };
        assert!(!endpoints.is_in_use(v6_only));
        assert!(!endpoints.is_in_use(address("10.0.0.1:7001")));
        endpoints.release(address("10.0.0.1:7000"));
        assert!(endpoints.is_in_use(address("10.0.0.1:7000")));
        endpoints.release(address("10.0.0.1:7000"));
        assert!(!endpoints.is_in_use(address("10.0.0.1:7000")));
    }
}
