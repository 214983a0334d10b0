//! Conversion of completions to the numbers of `ibv_wc`.

use rdma_over_tcp::rnic::{Arrival, Completion, WcOpcode, WcStatus};

/// `IBV_WC_GRH`.
const GRH: u32 = 1;
/// Packet type: UDP over IPv6.
const UDP_IPV6: u8 = 8 | 1;
/// Packet type: UDP over IPv4.
const UDP_IPV4: u8 = 8 | 2;
/// `IBV_WC_WITH_IMM`.
const WITH_IMM: u32 = 2;
/// `IBV_WC_WITH_INV`.
const WITH_INV: u32 = 8;

/// Returns the QP number of a completion: that of the rendezvous, or that of the core.
#[inline]
pub const fn qp_number(completion: &Completion) -> u32 {
    match completion.qp_context {
        0 => completion.qp.number(),
        number => number as u32,
    }
}

/// Returns the `ibv_wc_status` of a completion.
pub const fn status(completion: &Completion) -> u32 {
    match completion.status {
        WcStatus::Success => 0,
        WcStatus::LocalLength => 1,
        WcStatus::LocalOperation => 2,
        WcStatus::LocalProtection => 4,
        WcStatus::Flushed => 5,
        WcStatus::RemoteInvalidRequest => 9,
        WcStatus::RemoteAccess => 10,
        // iWARP has no RNR NAK: a Send without a posted receive ends the connection.
        WcStatus::RemoteNotReady | WcStatus::RemoteOperation => 11,
        WcStatus::ConnectionLost | WcStatus::RetryExceeded => 12,
        WcStatus::RnrRetryExceeded => 13,
    }
}

/// Returns the `ibv_wc_opcode` of a completion.
pub const fn opcode(completion: &Completion) -> u32 {
    match completion.opcode {
        WcOpcode::Send => 0,
        // Only RDMA Writes with immediate data post an Immediate Data message.
        WcOpcode::Write | WcOpcode::Immediate => 1,
        WcOpcode::Read => 2,
        WcOpcode::CompareSwap => 3,
        WcOpcode::FetchAdd => 4,
        WcOpcode::Bind => 5,
        WcOpcode::Invalidate | WcOpcode::FastRegister => 6,
        WcOpcode::Receive if matches!(completion.arrival, Arrival::Immediate(_)) => 129,
        WcOpcode::Receive => 128,
    }
}

/// Returns the number of the queue pair that has sent a datagram; 0: the completion is not of a datagram.
pub const fn source(completion: &Completion) -> u32 {
    match completion.arrival {
        Arrival::Datagram { source, .. } => source,
        _ => 0,
    }
}

/// Returns the service level of a completion. Of a datagram on Ethernet, adapters report the type of the packet
/// instead, which UCX reads: that of UDP over IPv6 or IPv4.
pub const fn service_level(completion: &Completion) -> u8 {
    match completion.arrival {
        Arrival::Datagram { is_ipv4: true, .. } => UDP_IPV4,
        Arrival::Datagram { .. } => UDP_IPV6,
        _ => 0,
    }
}

/// Returns the immediate data in message order or the invalidated key, and `IBV_WC_*` flags.
pub const fn arrival(completion: &Completion) -> (u32, u32) {
    match completion.arrival {
        Arrival::Plain => (0, 0),
        Arrival::Invalidating(stag) => (stag.0, WITH_INV),
        Arrival::Immediate([a, b, c, d, ..]) | Arrival::SendImmediate([a, b, c, d]) => {
            (u32::from_ne_bytes([a, b, c, d]), WITH_IMM)
        }
        Arrival::Datagram { immediate: None, .. } => (0, GRH),
        Arrival::Datagram { immediate: Some(data), .. } => {
            (u32::from_ne_bytes(data), GRH | WITH_IMM)
        }
    }
}
