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

/// Bytes of the smallest and the largest buffer.
const BUFFER_BYTES: std::ops::RangeInclusive<u32> = 4096..=1 << 28;

/// Requests and messages in flight, at least and at most.
const QUEUE_DEPTH: std::ops::RangeInclusive<u16> = 16..=8192;

/// Bytes of a message with an iomap entry are always sent inline.
const INLINE_BYTES_MIN: u32 = 48;

/// An address family.
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

    /// An IPv6 socket that IPv4 peers use has addresses of its own family.
    pub(super) fn map(self, address: SocketAddr) -> SocketAddr {
        match (self, address) {
            (Self::V6, SocketAddr::V4(address)) => {
                SocketAddr::new(address.ip().to_ipv6_mapped().into(), address.port())
            }
            _ => address,
        }
    }
}

/// Directions to be shut down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shutdown {
    /// Nothing is to be received any more.
    Read,
    /// Nothing is to be sent any more.
    Write,
    /// Both.
    Both,
}

/// What a close does with data that are on their way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linger {
    /// It waits until they have left.
    Default,
    /// It waits so long.
    For(Duration),
    /// It resets the connection.
    Reset,
}

/// What a connection is to have; a listener's are those of its connections.
#[derive(Clone, Debug)]
pub struct SocketOptions {
    /// Bytes of the send buffer.
    pub send_buffer: u32,
    /// Bytes of the receive buffer.
    pub receive_buffer: u32,
    /// Requests in flight.
    pub send_queue: u32,
    /// Messages of the peer in flight.
    pub receive_queue: u32,
    /// Bytes that are sent without the send buffer.
    pub inline: u32,
    /// Buffers that the peer may map.
    pub iomap_entries: u16,
    /// The address may be shared.
    pub is_reuse: bool,
    /// IPv6 only.
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
    /// Brings them to what there can be.
    pub fn limit(&mut self) {
        let Self { send_buffer, receive_buffer, send_queue, receive_queue, .. } = self;
        for bytes in [send_buffer, receive_buffer] {
            // Halves that begin at addresses of their own.
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
