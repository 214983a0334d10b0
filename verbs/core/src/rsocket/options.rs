//! Options of an rsocket: sizes, limits, defaults.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use super::{
    resources::Sizes,
    wire::{DATA_BYTES_MAX, encodable_iomap_entries},
};
use crate::{device::Device, errno::Errno};

/// Valid sizes of a buffer, in bytes.
const BUFFER_BYTES: std::ops::RangeInclusive<u32> = 4096..=1 << 28;

/// Valid depths of the queues.
const QUEUE_DEPTH: std::ops::RangeInclusive<u16> = 16..=8192;

/// Bytes of a message with an iomap entry, which is always sent inline.
const INLINE_BYTES_MIN: u32 = 48;

/// Address family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    pub(super) const fn unspecified(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Self::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        }
    }

    pub(super) fn check(self, address: SocketAddr) -> Result<(), Errno> {
        if address.is_ipv4() == (self == Self::V4) { Ok(()) } else { Err(Errno::AFNOSUPPORT) }
    }

    /// Converts an IPv4 address of an IPv6 socket to an IPv4-mapped one.
    pub(super) fn map(self, address: SocketAddr) -> SocketAddr {
        match (self, address) {
            (Self::V6, SocketAddr::V4(address)) => {
                SocketAddr::new(address.ip().to_ipv6_mapped().into(), address.port())
            }
            _ => address,
        }
    }
}

/// Directions of a shutdown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shutdown {
    /// Receive direction.
    Read,
    /// Send direction.
    Write,
    /// Both directions.
    Both,
}

/// Behavior of a close with unsent data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linger {
    /// Waits until all data is sent.
    Default,
    /// Waits for this time.
    For(Duration),
    /// Resets the connection.
    Reset,
}

/// Options of a socket. Accepted connections inherit those of the listener.
#[derive(Clone, Debug)]
pub struct SocketOptions {
    /// Send buffer, in bytes.
    pub send_buffer: u32,
    /// Receive buffer, in bytes.
    pub receive_buffer: u32,
    /// Send queue depth, in requests.
    pub send_queue: u32,
    /// Receive queue depth, in messages.
    pub receive_queue: u32,
    /// Maximum number of bytes that are sent inline.
    pub inline: u32,
    /// Maximum number of buffers that the peer may map.
    pub iomap_entries: u16,
    /// True if the address may be shared (`SO_REUSEADDR`).
    pub is_reuse: bool,
    /// True if IPv4 is disabled (`IPV6_V6ONLY`).
    pub is_family_only: bool,
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self {
            send_buffer: 1 << 18,
            receive_buffer: 1 << 18,
            send_queue: 384,
            receive_queue: 384,
            inline: 64,
            iomap_entries: 0,
            is_reuse: false,
            is_family_only: false,
        }
    }
}

impl SocketOptions {
    /// Clamps the values to the supported ranges.
    pub fn limit(&mut self) {
        let Self { send_buffer, receive_buffer, send_queue, receive_queue, .. } = self;
        for bytes in [send_buffer, receive_buffer] {
            // A multiple of 16, so that both halves of the ring are aligned.
            *bytes = (*bytes).clamp(*BUFFER_BYTES.start(), *BUFFER_BYTES.end()) & !15;
        }
        for depth in [send_queue, receive_queue] {
            *depth = (*depth).clamp((*QUEUE_DEPTH.start()).into(), (*QUEUE_DEPTH.end()).into());
        }
        self.inline = self.inline.min(DATA_BYTES_MAX);
        self.iomap_entries = encodable_iomap_entries(self.iomap_entries);
    }

    pub(super) fn sizes(&self, device: &Device) -> Sizes {
        let mut limited = self.clone();
        limited.limit();
        let narrow = |depth: u32| u16::try_from(depth).unwrap_or(*QUEUE_DEPTH.end());
        Sizes {
            send_buffer: limited.send_buffer,
            half: limited.receive_buffer / 2,
            send_queue: narrow(limited.send_queue),
            credits: narrow(limited.receive_queue),
            inline: limited.inline.max(INLINE_BYTES_MIN).min(device.limits().inline_bytes_max),
            iomap_entries: limited.iomap_entries,
        }
    }
}
