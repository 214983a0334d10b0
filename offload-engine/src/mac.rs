//! Ethernet addresses and their text form.

use core::{fmt, str::FromStr};

/// Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(try_from = "alloc::string::String", into = "alloc::string::String")
)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// Returns a locally administered unicast address that depends on `key` only. The hash is FNV-1a, 64 bits.
    #[must_use]
    pub fn derived(key: &[u8]) -> Self {
        let hash = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let [a, b, c, d, e, f, g, h] = hash.to_be_bytes();
        // Bit 1 of the first octet marks a locally administered address, bit 0 a group address.
        Self([((a ^ g) & !0x01) | 0x02, b ^ h, c, d, e, f])
    }
}

/// Error: text that is not the address of a station.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidMacAddress(&'static str);

/// Parses the address of a station: unicast and not zero.
impl FromStr for MacAddress {
    type Err = InvalidMacAddress;

    fn from_str(text: &str) -> Result<Self, InvalidMacAddress> {
        const EXPECTED: InvalidMacAddress =
            InvalidMacAddress("expected an Ethernet address such as 02:00:5e:10:00:01");
        let mut octets = [0; 6];
        let mut parts = text.split(':');
        for octet in &mut octets {
            // from_str_radix would accept a sign.
            let hex = |d: &&str| {
                matches!(d.len(), 1 | 2) && d.bytes().all(|digit| digit.is_ascii_hexdigit())
            };
            let digits = parts.next().filter(hex).ok_or(EXPECTED)?;
            *octet = u8::from_str_radix(digits, 16).map_err(|_| EXPECTED)?;
        }
        if parts.next().is_some() {
            return Err(EXPECTED);
        }
        if octets[0] & 0x01 != 0 {
            return Err(InvalidMacAddress(
                "group address: clear the lowest bit of the first octet",
            ));
        }
        if octets == [0; 6] {
            return Err(InvalidMacAddress("all octets are zero: expected a unicast address"));
        }
        Ok(Self(octets))
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(feature = "serde")]
impl TryFrom<alloc::string::String> for MacAddress {
    type Error = InvalidMacAddress;

    fn try_from(text: alloc::string::String) -> Result<Self, InvalidMacAddress> {
        text.parse()
    }
}

#[cfg(feature = "serde")]
impl From<MacAddress> for alloc::string::String {
    fn from(mac: MacAddress) -> Self {
        alloc::string::ToString::to_string(&mac)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_station_addresses_are_parsed() {
        let mac: MacAddress = "02:00:5e:10:0:1".parse().unwrap();
        assert_eq!(mac.0, [2, 0, 0x5e, 0x10, 0, 1]);
        assert_eq!(mac.to_string(), "02:00:5e:10:00:01");
        for bad in
            ["", "02:00:5e:10:00", "02:00:5e:10:00:01:02", "02:00:5e:10:00:001", "+2:0:0:0:0:1"]
        {
            assert!(bad.parse::<MacAddress>().is_err(), "{bad}");
        }
        let refused = |text: &str| text.parse::<MacAddress>().unwrap_err().to_string();
        assert!(refused("01:00:5e:00:00:01").contains("group"));
        assert!(refused("0:0:0:0:0:0").contains("zero"));
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in "\\PC{0,24}") {
            let _ = text.parse::<MacAddress>();
        }

        #[test]
        fn derived_addresses_are_local_unicast(key in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mac = MacAddress::derived(&key);
            prop_assert_eq!(mac.0[0] & 0x03, 0x02);
            prop_assert_eq!(mac.to_string().parse(), Ok(mac));
        }
    }
}
