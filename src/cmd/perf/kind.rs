//! Kinds of measurements, and message sizes.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::histogram::Part;

/// Largest message, bytes. Each end holds two of them.
pub const SIZE_MAX_BYTES: u64 = 64 << 20;
/// Largest size of `--all`, bytes.
pub const ALL_MAX_BYTES: u64 = 8 << 20;

/// Test.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// RDMA Write, pipelined: bandwidth and message rate
    WriteBw,
    /// RDMA Read, pipelined
    ReadBw,
    /// Send and Receive, pipelined, with credits
    SendBw,
    /// RDMA Write with Immediate Data (RFC 7306), pipelined, with credits
    WriteImmBw,
    /// Atomic FetchAdd on one word (RFC 7306), pipelined
    AtomicBw,
    /// RDMA Write ping-pong that polls the last byte in memory: half a round trip
    WriteLat,
    /// RDMA Read, one at a time: whole operation
    ReadLat,
    /// Send ping-pong: half a round trip
    SendLat,
    /// Atomic FetchAdd, one at a time: whole operation
    AtomicLat,
    /// Byte streams on TCP connections
    TcpBw,
    /// Request and response on a TCP connection: half a round trip
    TcpRr,
    /// TCP connections per second: open, echo one byte, close
    ConnectRate,
}

impl Kind {
    /// Returns true if the measurement uses queue pairs.
    pub const fn is_rdma(self) -> bool {
        !matches!(self, Self::TcpBw | Self::TcpRr | Self::ConnectRate)
    }

    /// Returns true if many messages are outstanding and bandwidth is reported.
    pub const fn is_bandwidth(self) -> bool {
        matches!(
            self,
            Self::WriteBw
                | Self::ReadBw
                | Self::SendBw
                | Self::WriteImmBw
                | Self::AtomicBw
                | Self::TcpBw
        )
    }

    /// Returns true if the measurement requires RFC 7306.
    pub const fn is_extension(self) -> bool {
        matches!(self, Self::WriteImmBw | Self::AtomicBw | Self::AtomicLat)
    }

    /// Returns true if the messages are atomic operations.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::AtomicBw | Self::AtomicLat)
    }

    /// Returns true if each message consumes a receive and many are outstanding, so the receiver grants credits.
    pub const fn has_credits(self) -> bool {
        matches!(self, Self::SendBw | Self::WriteImmBw)
    }

    /// Returns true if the message size is fixed.
    pub const fn has_one_size(self) -> bool {
        self.is_atomic() || matches!(self, Self::ConnectRate)
    }

    /// Returns the part of an operation that is timed; `None` if no times are measured.
    pub const fn timed_part(self) -> Option<Part> {
        match self {
            Self::WriteLat | Self::SendLat | Self::TcpRr => Some(Part::HalfRoundTrip),
            Self::ReadLat | Self::AtomicLat | Self::ConnectRate => Some(Part::Whole),
            Self::WriteBw
            | Self::ReadBw
            | Self::SendBw
            | Self::WriteImmBw
            | Self::AtomicBw
            | Self::TcpBw => None,
        }
    }

    /// Returns the default message size, bytes.
    pub const fn size_default_bytes(self) -> u64 {
        match self {
            Self::WriteBw | Self::ReadBw | Self::SendBw | Self::WriteImmBw | Self::TcpBw => {
                64 << 10
            }
            Self::WriteLat | Self::ReadLat | Self::SendLat | Self::TcpRr => 8,
            Self::AtomicBw | Self::AtomicLat => 8,
            Self::ConnectRate => 1,
        }
    }

    /// Returns the title for text output.
    pub const fn title(self) -> &'static str {
        match self {
            Self::WriteBw => "RDMA Write, bandwidth",
            Self::ReadBw => "RDMA Read, bandwidth",
            Self::SendBw => "Send/Receive, bandwidth",
            Self::WriteImmBw => "RDMA Write with immediate data, bandwidth",
            Self::AtomicBw => "Atomic FetchAdd, rate",
            Self::WriteLat => "RDMA Write, latency",
            Self::ReadLat => "RDMA Read, latency",
            Self::SendLat => "Send/Receive, latency",
            Self::AtomicLat => "Atomic FetchAdd, latency",
            Self::TcpBw => "TCP, bandwidth",
            Self::TcpRr => "TCP, request and response",
            Self::ConnectRate => "TCP, connections opened and closed",
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&flue_adapter::word(*self))
    }
}

/// Returns the powers of two from 2 bytes to [`ALL_MAX_BYTES`].
pub fn all_sizes() -> impl Iterator<Item = u64> {
    (1..).map(|power| 1_u64 << power).take_while(|size| *size <= ALL_MAX_BYTES)
}

/// Parses a size in bytes: a number, with K, M or G (or KiB, MiB, GiB) for the binary multiples.
///
/// # Errors
/// Not a number of this form, 0, or above [`SIZE_MAX_BYTES`].
pub fn parse_size(text: &str) -> Result<u64, String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let factor = match &text[end..] {
        "" | "B" => Some(1_u64),
        "K" | "k" | "KiB" => Some(1 << 10),
        "M" | "m" | "MiB" => Some(1 << 20),
        "G" | "g" | "GiB" => Some(1 << 30),
        _ => None,
    };
    let number = text[..end].parse::<u64>().ok();
    let bytes = number.zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
    bytes
        .filter(|bytes| (1..=SIZE_MAX_BYTES).contains(bytes))
        .ok_or_else(|| "expected bytes, 1 to 64 MiB, such as 64, 4K or 1M".to_owned())
}

/// Parses seconds, with an optional fraction.
///
/// # Errors
/// Not a number from 0 to one day.
pub fn parse_seconds(text: &str) -> Result<f64, String> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let seconds = text.parse::<f64>().ok().filter(|seconds| plain && *seconds <= 86_400.0);
    seconds.ok_or_else(|| "expected seconds, 0 to 86400".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_multiples_are_parsed() {
        let cases = [("1", 1), ("64", 64), ("4K", 4096), ("1M", 1 << 20), ("2MiB", 2 << 20)];
        for (text, bytes) in cases {
            assert_eq!(parse_size(text), Ok(bytes));
        }
        for text in ["", "0", "K", "-1", "1.5M", "65M", "1G", "1T", "99999999999999999999"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn seconds_are_plain_numbers() {
        assert_eq!(parse_seconds("0.25"), Ok(0.25));
        for text in ["", "-1", "inf", "NaN", "1e3", "86401"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn all_sizes_are_from_2_bytes_to_8_mebibytes() {
        let sizes: Vec<_> = all_sizes().collect();
        assert_eq!((sizes.len(), sizes[0], sizes[22]), (23, 2, ALL_MAX_BYTES));
    }
}
