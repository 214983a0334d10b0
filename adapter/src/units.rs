//! Quantities of options: parsing, limits and formatting.
//!
//! Rates are bits per second with SI prefixes, sizes are bytes with binary prefixes, times are ns, µs, ms or s. Parsed
//! values have limits, which the errors name.

use std::{fmt, net::IpAddr, str::FromStr, time::Duration};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Maximum delay of an impairment.
pub const DELAY_MAX: Duration = Duration::from_secs(10);
/// Minimum rate of an impairment, bits per second: a full-sized frame in twelve seconds.
pub const RATE_BPS_MIN: u64 = 1_000;
/// Maximum rate of an impairment, bits per second.
pub const RATE_BPS_MAX: u64 = 1_000_000_000_000;

/// Text that is not a valid quantity. The error describes valid text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseError(String);

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ParseError {}

fn refuse<T>(why: impl Into<String>) -> Result<T, ParseError> {
    Err(ParseError(why.into()))
}

/// Splits "12.5Mbit" into number and unit. Only plain decimal numbers: no sign, exponent or "inf".
fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number = text[..end].parse().ok()?;
    Some((number, text[end..].trim_start()))
}

/// Probability in parts per million, written in percent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Percent {
    parts_per_million: u32,
}

impl Percent {
    /// Returns parts per million, 0..=1 000 000.
    pub const fn parts_per_million(self) -> u32 {
        self.parts_per_million
    }

    /// Returns percent, 0.0..=100.0.
    pub fn percent(self) -> f64 {
        f64::from(self.parts_per_million) / 1e4
    }
}

impl FromStr for Percent {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        const EXPECTED: &str = "expected a percentage, 0 to 100, such as 0.5 or 2%";
        match number_and_unit(text) {
            Some((number, "" | "%")) if number <= 100.0 => {
                Ok(Self { parts_per_million: (number * 1e4).round() as u32 })
            }
            _ => refuse(EXPECTED),
        }
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.percent())
    }
}

/// Parses a delay: "5ms", "100us", "1.5s"; at most [`DELAY_MAX`]. A number without a unit is refused, because tools
/// differ in its meaning.
///
/// # Errors
/// The text is not a number with a unit, or the delay is above the limit.
pub fn parse_delay(text: &str) -> Result<Duration, ParseError> {
    let nanos_per_unit = |unit| match unit {
        "s" => Some(1e9),
        "ms" => Some(1e6),
        "us" | "µs" => Some(1e3),
        "ns" => Some(1.0),
        _ => None,
    };
    let nanos = number_and_unit(text).and_then(|(n, unit)| Some(n * nanos_per_unit(unit)?));
    match nanos {
        Some(nanos) if nanos <= DELAY_MAX.as_nanos() as f64 => {
            Ok(Duration::from_nanos(nanos.round() as u64))
        }
        _ => refuse("expected a time with unit (ns, us, ms, s), 0s to 10s, such as 5ms"),
    }
}

/// Rate in bits per second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BitRate(u64);

impl BitRate {
    /// Returns bits per second.
    pub const fn bits_per_second(self) -> u64 {
        self.0
    }
}

impl FromStr for BitRate {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        const EXPECTED: &str =
            "expected a rate in bits per second, 1kbit to 1Tbit, such as 100Mbit";
        let Some((number, unit)) = number_and_unit(text) else { return refuse(EXPECTED) };
        let factor = match unit.to_ascii_lowercase().trim_end_matches("/s") {
            "bit" => 1.0,
            "kbit" => 1e3,
            "mbit" => 1e6,
            "gbit" => 1e9,
            "tbit" => 1e12,
            "bps" | "kbps" | "mbps" | "gbps" => {
                return refuse("bps is ambiguous: bits or bytes: use kbit, Mbit, Gbit");
            }
            _ => return refuse(EXPECTED),
        };
        let rate = number * factor;
        if rate < RATE_BPS_MIN as f64 || rate > RATE_BPS_MAX as f64 {
            return refuse(EXPECTED);
        }
        Ok(Self(rate.round() as u64))
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_rate(self.0 as f64))
    }
}

/// Queue length before a rate-limited wire: bytes, frames, or the time to transmit them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueSize {
    /// Bytes of frames, each from its Ethernet header to its last byte; at least 1.
    Bytes(u64),
    /// Frames; at least 1.
    Frames(u32),
    /// Nanoseconds at the wire's rate; at most [`DELAY_MAX`].
    Nanos(u64),
}

impl FromStr for QueueSize {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        const EXPECTED: &str = "expected bytes, 1B to 1GiB (kB, KiB, MB, MiB), frames, 1p to 1000000p, or a time \
                              at the rate, such as 20ms";
        if let Ok(time) = parse_delay(text) {
            return Ok(Self::Nanos(time.as_nanos() as u64));
        }
        let Some((number, unit)) = number_and_unit(text) else { return refuse(EXPECTED) };
        let factor = match unit {
            "p" if (1.0..=1e6).contains(&number) && number.fract() == 0.0 => {
                return Ok(Self::Frames(number as u32));
            }
            "B" => 1.0,
            "kB" => 1e3,
            "MB" => 1e6,
            "KiB" => 1024.0,
            "MiB" => 1024.0 * 1024.0,
            "b" | "kb" | "mb" | "k" | "m" => {
                return refuse("kb is ambiguous: bits or bytes: use kB or KiB");
            }
            _ => return refuse(EXPECTED),
        };
        let bytes = number * factor;
        if (1.0..=f64::from(1 << 30)).contains(&bytes) {
            Ok(Self::Bytes(bytes.round() as u64))
        } else {
            refuse(EXPECTED)
        }
    }
}

impl fmt::Display for QueueSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Bytes(bytes) => write!(f, "{bytes} B"),
            Self::Frames(frames) => write!(f, "{frames} frames"),
            Self::Nanos(nanos) => f.write_str(&format_duration(Duration::from_nanos(nanos))),
        }
    }
}

/// Unicast address with the length of its prefix.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IpPrefix(IpNet);

impl IpPrefix {
    /// Returns the address.
    pub fn address(self) -> IpAddr {
        self.0.addr()
    }

    /// Returns the length of the prefix: 1..=32 or 1..=128.
    pub fn prefix_len(self) -> u8 {
        self.0.prefix_len()
    }

    /// Returns true if `other` is reached without a router.
    pub fn contains(self, other: IpAddr) -> bool {
        self.0.contains(&other)
    }

    /// Returns the next address of the same prefix; `None` if that is not a host address.
    pub fn successor(self) -> Option<Self> {
        let address = match self.address() {
            IpAddr::V4(v4) => IpAddr::V4(v4.to_bits().checked_add(1)?.into()),
            IpAddr::V6(v6) => IpAddr::V6(v6.to_bits().checked_add(1)?.into()),
        };
        if self.contains(address) { Self::new(address, self.prefix_len()).ok() } else { None }
    }

    /// Checks an address and its prefix.
    ///
    /// # Errors
    /// The prefix is too long or zero, or the address is not a host address.
    pub fn new(address: IpAddr, prefix_len: u8) -> Result<Self, ParseError> {
        let net = match IpNet::new(address, prefix_len) {
            Ok(net) if prefix_len > 0 => net,
            _ => {
                let width = IpNet::from(address).max_prefix_len();
                return refuse(format!("prefix length {prefix_len}: expected 1..={width}"));
            }
        };
        let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
        if address.is_unspecified() || address.is_multicast() || address.is_loopback() || broadcast
        {
            return refuse(format!("address {address}: expected the unicast address of a host"));
        }
        let has_network_address = address.is_ipv4() && prefix_len < net.max_prefix_len() - 1;
        if has_network_address && (address == net.network() || address == net.broadcast()) {
            return refuse(format!(
                "address {net}: a network or broadcast address, expected that of a host"
            ));
        }
        Ok(Self(net))
    }
}

impl From<IpPrefix> for IpNet {
    fn from(prefix: IpPrefix) -> Self {
        prefix.0
    }
}

/// Bits of an IPv4-mapped IPv6 address before the IPv4 address (RFC 4291 §2.5.5.2).
const MAPPED_BITS: u8 = 96;

impl FromStr for IpPrefix {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        const EXPECTED: &str = "expected an address with prefix length, such as 10.77.0.2/24";
        let Some((address, prefix_len)) = text.split_once('/') else { return refuse(EXPECTED) };
        let (Ok(address), Ok(length), false) =
            (address.parse::<IpAddr>(), prefix_len.parse::<u8>(), prefix_len.starts_with('+'))
        else {
            return refuse(EXPECTED);
        };
        // An IPv4-mapped prefix is one of IPv4.
        let canonical = address.to_canonical();
        if canonical == address {
            return Self::new(address, length);
        }
        match length.checked_sub(MAPPED_BITS) {
            Some(length) => Self::new(canonical, length),
            None => refuse(format!(
                "prefix length {length} of an IPv4-mapped address: expected 97..=128"
            )),
        }
    }
}

impl TryFrom<String> for IpPrefix {
    type Error = ParseError;

    fn try_from(text: String) -> Result<Self, ParseError> {
        text.parse()
    }
}

impl From<IpPrefix> for String {
    fn from(prefix: IpPrefix) -> Self {
        prefix.to_string()
    }
}

impl fmt::Display for IpPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Returns three significant digits and the largest prefix with which the number is at least 1.
pub fn scaled(value: f64, base: f64, prefixes: &[&str]) -> (String, usize) {
    let mut value = value;
    let mut index = 0;
    // 999.5 would print as 1000.
    while value >= base.min(999.5) && index + 1 < prefixes.len() {
        value /= base;
        index += 1;
    }
    let digits = match value {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    (format!("{value:.digits$}"), index)
}

/// Formats bits per second with an SI prefix, such as "9.41 Gbit/s".
pub fn format_rate(bits_per_second: f64) -> String {
    const UNITS: [&str; 5] = ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"];
    let (number, index) = scaled(bits_per_second, 1e3, &UNITS);
    format!("{number} {}", UNITS[index])
}

/// Formats a duration, such as "812 µs", "3.21 ms", "1.20 s".
pub fn format_duration(duration: Duration) -> String {
    const UNITS: [&str; 4] = ["ns", "µs", "ms", "s"];
    let nanos = duration.as_nanos();
    if nanos < 1_000 {
        return format!("{nanos} ns");
    }
    let (number, index) = scaled(nanos as f64, 1e3, &UNITS);
    format!("{number} {}", UNITS[index])
}

#[cfg(test)]
mod tests;
