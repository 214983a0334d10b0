//! Headers of one connection, built once and patched per segment.

use core::net::IpAddr;

use crate::checksum;
use crate::{
    memory::Piece,
    segment::{Ecn, SackBlock, SegmentHeader, Timestamps},
    state::{MacAddress, NeighborState, PathState, TcpState},
};

const ETHERNET_BYTES: usize = 14;
const VLAN_BYTES: usize = 4;
const TCP_BYTES: usize = 20;
const TCP_OPTION_BYTES_MAX: usize = 40;
/// Bits of a TOS or traffic class set by the host: DSCP (RFC 2474). The other two are ECN bits.
const DSCP_MASK: u8 = 0xfc;
/// First IPv4 identification of the target (CH §6.4).
const IP_ID_FIRST: u16 = 0x8000;

/// Bytes of the largest header block: Ethernet, VLAN tag, IPv6, TCP with all options.
pub const HEADER_BYTES_MAX: usize =
    ETHERNET_BYTES + VLAN_BYTES + 40 + TCP_BYTES + TCP_OPTION_BYTES_MAX;

/// Prepared Ethernet, IP and TCP headers of one connection.
#[derive(Clone, Debug)]
pub struct HeaderTemplate {
    bytes: [u8; HEADER_BYTES_MAX],
    ip_at: usize,
    tcp_at: usize,
    ipv6: bool,
    /// Sum of the IPv4 header with zero length, id and checksum.
    ip_sum: u64,
    /// Sum of addresses and protocol. The TCP length is added per segment.
    pseudo_sum: u64,
    /// IPv4 identification of the next datagram, in the target's half 0x8000..=0xffff (CH §6.4).
    ip_id: u16,
}

impl HeaderTemplate {
    /// Creates the headers of a connection. `interface_mac` is used if the neighbor's source address is zero.
    pub fn new(
        neighbor: &NeighborState,
        path: &PathState,
        tcp: &TcpState,
        interface_mac: MacAddress,
    ) -> Self {
        let mut bytes = [0; HEADER_BYTES_MAX];
        let source = neighbor.constant.dl_source_address;
        let source = if source == MacAddress::default() { interface_mac } else { source };
        bytes[0..6].copy_from_slice(&neighbor.cached.dl_destination_address.0);
        bytes[6..12].copy_from_slice(&source.0);
        let tagged = neighbor.constant.vlan_id != 0 || tcp.cached.user_priority != 0;
        let ip_at = if tagged { ETHERNET_BYTES + VLAN_BYTES } else { ETHERNET_BYTES };
        if tagged {
            // CH §9.4: CFI is always 0.
            let tag =
                u16::from(tcp.cached.user_priority & 7) << 13 | neighbor.constant.vlan_id & 0xfff;
            bytes[12..14].copy_from_slice(&0x8100_u16.to_be_bytes());
            bytes[14..16].copy_from_slice(&tag.to_be_bytes());
        }
        let mut template = Self {
            bytes,
            ip_at,
            tcp_at: 0,
            ipv6: false,
            ip_sum: 0,
            pseudo_sum: 0,
            ip_id: IP_ID_FIRST,
        };
        template.fill_ip(path, tcp);
        let tcp_at = template.tcp_at;
        let ports = [tcp.constant.local_port, tcp.constant.remote_port];
        template.bytes[tcp_at..tcp_at + 2].copy_from_slice(&ports[0].to_be_bytes());
        template.bytes[tcp_at + 2..tcp_at + 4].copy_from_slice(&ports[1].to_be_bytes());
        template
    }

    fn fill_ip(&mut self, path: &PathState, tcp: &TcpState) {
        let at = self.ip_at;
        let ether_type: u16;
        match (path.constant.source_address, path.constant.destination_address) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                ether_type = 0x0800;
                self.tcp_at = at + 20;
                let ip = &mut self.bytes[at..at + 20];
                ip[0] = 0x45;
                ip[1] = tcp.cached.tos_or_traffic_class & DSCP_MASK;
                ip[6] = 0x40; // DF always (CH §6.4)
                ip[8] = tcp.cached.ttl_or_hop_limit;
                ip[9] = 6;
                ip[12..16].copy_from_slice(&source.octets());
                ip[16..20].copy_from_slice(&destination.octets());
                self.ip_sum = checksum::add(0, ip);
                self.pseudo_sum = checksum::add(6, &ip[12..20]);
            }
            (source, destination) => {
                ether_type = 0x86dd;
                self.ipv6 = true;
                self.tcp_at = at + 40;
                let class = u32::from(tcp.cached.tos_or_traffic_class & DSCP_MASK);
                let first = 6 << 28 | class << 20 | tcp.cached.flow_label & 0xf_ffff;
                let ip = &mut self.bytes[at..at + 40];
                ip[0..4].copy_from_slice(&first.to_be_bytes());
                ip[6] = 6;
                ip[7] = tcp.cached.ttl_or_hop_limit;
                ip[8..24].copy_from_slice(&super::octets(source));
                ip[24..40].copy_from_slice(&super::octets(destination));
                self.pseudo_sum = checksum::add(6, &ip[8..40]);
            }
        }
        self.bytes[at - 2..at].copy_from_slice(&ether_type.to_be_bytes());
    }

    /// True if the connection runs over IPv6.
    pub const fn is_ipv6(&self) -> bool {
        self.ipv6
    }

    /// Bytes before the IP header.
    pub const fn ip_offset(&self) -> usize {
        self.ip_at
    }

    /// Bytes before the TCP header.
    pub const fn tcp_offset(&self) -> usize {
        self.tcp_at
    }

    /// Rebuilds the headers after changes of the objects that the connection depends on. IPv4 identifications continue.
    pub fn renew(
        &mut self,
        neighbor: &NeighborState,
        path: &PathState,
        tcp: &TcpState,
        interface_mac: MacAddress,
    ) {
        *self = Self { ip_id: self.ip_id, ..Self::new(neighbor, path, tcp, interface_mac) };
    }

    /// Writes the headers of one segment into `out` and returns their length. The checksum field holds the
    /// pseudo-header sum, not inverted. The link completes it, or [`HeaderTemplate::finish_checksum`] in software.
    /// `pieces` is the number of datagrams into which the link segments it. It uses as many IPv4 ids.
    pub fn write(
        &mut self,
        out: &mut [u8; HEADER_BYTES_MAX],
        segment: &SegmentHeader<'_>,
        pieces: u16,
    ) -> usize {
        let SegmentHeader { seq, ack, flags, window, timestamps, sack, payload_len, ecn } =
            *segment;
        // Copies the bytes after the TCP header too: a copy of constant length takes a few moves.
        *out = self.bytes;
        let options_len = write_options(&mut out[self.tcp_at + TCP_BYTES..], timestamps, sack);
        let tcp_header_len = TCP_BYTES + options_len;
        let tcp_len = tcp_header_len + payload_len;
        self.patch_ip(out, tcp_len, pieces, ecn);

        let tcp = &mut out[self.tcp_at..self.tcp_at + TCP_BYTES];
        tcp[4..8].copy_from_slice(&seq.0.to_be_bytes());
        tcp[8..12].copy_from_slice(&ack.0.to_be_bytes());
        tcp[12] = (tcp_header_len as u8 / 4) << 4;
        tcp[13] = flags.0;
        tcp[14..16].copy_from_slice(&window.to_be_bytes());
        let pseudo = checksum::fold(self.pseudo_sum + tcp_len as u64);
        tcp[16..18].copy_from_slice(&pseudo.to_be_bytes());
        self.tcp_at + tcp_header_len
    }

    fn patch_ip(
        &mut self,
        out: &mut [u8; HEADER_BYTES_MAX],
        tcp_len: usize,
        pieces: u16,
        ecn: Ecn,
    ) {
        let at = self.ip_at;
        if self.ipv6 {
            // The traffic class spans the first two bytes.
            out[at + 1] |= ecn.bits() << 4;
            out[at + 4..at + 6].copy_from_slice(&(tcp_len as u16).to_be_bytes());
            return;
        }
        let total = (20 + tcp_len) as u16;
        let id = self.take_ids(pieces.max(1));
        out[at + 1] |= ecn.bits();
        let sum = self.ip_sum + u64::from(ecn.bits()) + u64::from(total) + u64::from(id);
        out[at + 2..at + 4].copy_from_slice(&total.to_be_bytes());
        out[at + 4..at + 6].copy_from_slice(&id.to_be_bytes());
        out[at + 10..at + 12].copy_from_slice(&checksum::finish(sum).to_be_bytes());
    }

    /// Returns the first of `count` consecutive identifications. The link increments it per datagram and wraps at 16
    /// bits, into the host's half, unless the range fits. Atomic datagrams may reuse ids immediately (RFC 6864 §4.1).
    const fn take_ids(&mut self, count: u16) -> u16 {
        let first = match self.ip_id.checked_add(count - 1) {
            Some(_) => self.ip_id,
            None => IP_ID_FIRST,
        };
        self.ip_id = match first.checked_add(count) {
            Some(next) => next,
            None => IP_ID_FIRST,
        };
        first
    }

    /// Completes the checksum that [`HeaderTemplate::write`] started, over TCP header and payload.
    pub fn finish_checksum<'p>(&self, header: &mut [u8], payload: impl Iterator<Item = Piece<'p>>) {
        let tcp = &mut header[self.tcp_at..];
        let mut sum = checksum::add(0, tcp);
        let mut odd = false;
        for piece in payload {
            (sum, odd) = checksum::add_piece(sum, piece, odd);
        }
        tcp[16..18].copy_from_slice(&checksum::finish(sum).to_be_bytes());
    }
}

/// Writes NOP NOP TS, then NOP NOP SACK, aligned for the fast path of Linux (RFC 7323 appendix A).
fn write_options(out: &mut [u8], timestamps: Option<Timestamps>, sack: &[SackBlock]) -> usize {
    let mut at = 0;
    if let Some(Timestamps { value, echo }) = timestamps {
        out[0..4].copy_from_slice(&[1, 1, 8, 10]);
        out[4..8].copy_from_slice(&value.to_be_bytes());
        out[8..12].copy_from_slice(&echo.to_be_bytes());
        at = 12;
    }
    let room = (TCP_OPTION_BYTES_MAX - at).saturating_sub(4) / 8;
    let blocks = &sack[..sack.len().min(room)];
    if !blocks.is_empty() {
        out[at..at + 4].copy_from_slice(&[1, 1, 5, 2 + 8 * blocks.len() as u8]);
        at += 4;
        for SackBlock { start, end } in blocks {
            out[at..at + 4].copy_from_slice(&start.0.to_be_bytes());
            out[at + 4..at + 8].copy_from_slice(&end.0.to_be_bytes());
            at += 8;
        }
    }
    at
}
