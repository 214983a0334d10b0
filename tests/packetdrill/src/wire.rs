//! Wire to packetdrill: IP packets on packetdrill's side, Ethernet frames on the node's side.
//!
//! packetdrill's network device has no link layer. This wire therefore emulates a neighbor that owns every
//! other address and replies to ARP and neighbor solicitation immediately. Only TCP and ICMP errors are passed
//! to packetdrill.
//!
//! Sent packets are optionally rewritten like those of Linux, in respects that TCP leaves to the sender.
//! Scripts written for Linux can then be compared byte by byte. [`LinuxQuirks`] lists them; each can be
//! disabled.

use std::{
    collections::VecDeque,
    io,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use offload_engine::{
    checksum,
    link::{Link, LinkCapabilities, LinkStats, RxBatch, RxChecksum, TxFrame, TxOutcome},
    state::MacAddress,
    time::Instant,
};

use crate::options::TcpOptions;

/// MAC address of the adapter under test.
pub(crate) const OUR_MAC: MacAddress = MacAddress([0x02, 0, 0, 0, 0, 1]);
/// MAC address of the neighbor, which represents all hosts that packetdrill emulates.
const NEIGHBOR_MAC: MacAddress = MacAddress([0x02, 0, 0, 0, 0, 2]);
/// Maximum packets queued for packetdrill; more are dropped, as on a TAP.
const OUTBOUND_PACKETS_MAX: usize = 100_000;

const ETHERNET: usize = 14;
const IPV6_HEADER: usize = 40;
const TYPE_IPV4: u16 = 0x0800;
const TYPE_ARP: u16 = 0x0806;
const TYPE_IPV6: u16 = 0x86dd;
const TCP: u8 = 6;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const PSH: u8 = 0x08;

/// Choices of Linux where TCP permits several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LinuxQuirks {
    /// Order and padding of options (RFC 9293 §3.1: any order).
    pub(crate) options: bool,
    /// PSH on every GSO packet (RFC 9293 §3.9.1.2: a sender may set it at any point).
    pub(crate) push: bool,
}

/// Both directions of the wire.
#[derive(Debug)]
pub(crate) struct Wire {
    quirks: LinuxQuirks,
    inbound: VecDeque<Vec<u8>>,
    outbound: VecDeque<(Instant, Vec<u8>)>,
    stats: LinkStats,
}

/// The node's end.
#[derive(Debug)]
pub(crate) struct WireLink {
    wire: Arc<Mutex<Wire>>,
    capabilities: LinkCapabilities,
}

/// Locks the wire. A panic cannot leave a queue of whole packets invalid.
pub(crate) fn lock(wire: &Mutex<Wire>) -> MutexGuard<'_, Wire> {
    wire.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wire {
    pub(crate) fn new(quirks: LinuxQuirks) -> Self {
        Self {
            quirks,
            inbound: VecDeque::new(),
            outbound: VecDeque::new(),
            stats: LinkStats::default(),
        }
    }

    /// Queues a packet from packetdrill.
    pub(crate) fn inject(&mut self, packet: &[u8]) {
        let ethertype = match packet.first().map(|first| first >> 4) {
            Some(6) => TYPE_IPV6,
            _ => TYPE_IPV4,
        };
        self.inbound.push_back(frame(ethertype, packet));
    }

    /// Next packet for packetdrill, and its time.
    pub(crate) fn sniff(&mut self) -> Option<(Instant, Vec<u8>)> {
        self.outbound.pop_front()
    }

    fn transmit(&mut self, now: Instant, data: &[u8], is_gso: bool) {
        let ethertype = u16::from_be_bytes([data[12], data[13]]);
        let packet = &data[ETHERNET..];
        match ethertype {
            TYPE_ARP => self.inbound.extend(answer_arp(packet)),
            TYPE_IPV4 if packet.len() >= 20 => self.egress(now, packet, packet[9], is_gso),
            TYPE_IPV6 if packet.len() >= IPV6_HEADER => match answer_solicitation(packet) {
                Some(answer) => self.inbound.push_back(answer),
                None => self.egress(now, packet, packet[6], is_gso),
            },
            _ => {}
        }
    }

    fn egress(&mut self, now: Instant, packet: &[u8], protocol: u8, is_gso: bool) {
        let wanted = match protocol {
            TCP => true,
            ICMP => matches!(packet.get(20), Some(3 | 5 | 11 | 12)),
            ICMPV6 => matches!(packet.get(IPV6_HEADER), Some(1..=4)),
            _ => false,
        };
        if !wanted || self.outbound.len() >= OUTBOUND_PACKETS_MAX {
            return;
        }
        let mut packet = packet.to_vec();
        if protocol == TCP {
            apply_quirks(&mut packet, self.quirks, is_gso);
        }
        self.outbound.push_back((now, packet));
    }
}

impl WireLink {
    pub(crate) fn new(wire: Arc<Mutex<Wire>>, mtu: usize, tso: bool) -> Self {
        let tso_max = if tso { 65_535 } else { 0 };
        let capabilities =
            LinkCapabilities { mtu, tx_checksum: true, tso4_max: tso_max, tso6_max: tso_max };
        Self { wire, capabilities }
    }
}

impl Link for WireLink {
    fn capabilities(&self) -> LinkCapabilities {
        self.capabilities
    }

    fn receive(&mut self, _now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        let mut wire = lock(&self.wire);
        let mut added = 0;
        while !batch.is_full() {
            let Some(frame) = wire.inbound.pop_front() else { break };
            if batch.push(&frame, RxChecksum::Unverified, 0) {
                added += 1;
                wire.stats.rx_frames += 1;
                wire.stats.rx_bytes += frame.len() as u64;
            } else {
                wire.stats.rx_length_errors += 1;
            }
        }
        Ok(added)
    }

    fn transmit(&mut self, now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        let mut data = Vec::with_capacity(frame.len());
        frame.gather_into(&mut data);
        let mut wire = lock(&self.wire);
        if data.len() < ETHERNET {
            wire.stats.tx_errors += 1;
            return TxOutcome::Dropped;
        }
        let is_gso = frame.offload.segment.is_some_and(|segment| {
            data.len() > usize::from(segment.header_len) + usize::from(segment.size)
        });
        wire.stats.tx_frames += 1;
        wire.stats.tx_bytes += data.len() as u64;
        wire.stats.tx_gso_frames += u64::from(is_gso);
        wire.transmit(now, &data, is_gso);
        TxOutcome::Sent
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn poll_at(&self) -> Option<Instant> {
        None
    }

    fn stats(&self) -> LinkStats {
        lock(&self.wire).stats
    }
}

fn frame(ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(ETHERNET + packet.len());
    frame.extend_from_slice(&OUR_MAC.0);
    frame.extend_from_slice(&NEIGHBOR_MAC.0);
    frame.extend_from_slice(&ethertype.to_be_bytes());
    frame.extend_from_slice(packet);
    frame
}

/// Reply of the neighbor to an ARP request for any address (RFC 826).
fn answer_arp(request: &[u8]) -> Option<Vec<u8>> {
    if request.len() < 28 || request[..8] != [0, 1, 8, 0, 6, 4, 0, 1] {
        return None;
    }
    let mut reply = vec![0, 1, 8, 0, 6, 4, 0, 2];
    reply.extend_from_slice(&NEIGHBOR_MAC.0);
    reply.extend_from_slice(&request[24..28]);
    reply.extend_from_slice(&request[8..18]);
    Some(frame(TYPE_ARP, &reply))
}

/// Reply of the neighbor to a neighbor solicitation for any address (RFC 4861 §7.2.4).
fn answer_solicitation(packet: &[u8]) -> Option<Vec<u8>> {
    let message = &packet[IPV6_HEADER..];
    let is_solicitation = packet[6] == ICMPV6 && message.len() >= 24 && message[0] == 135;
    if !is_solicitation || packet[8..24] == [0; 16] {
        return None;
    }
    let target = &message[8..24];
    // Neighbor advertisement: solicited, override; target; target link-layer address.
    let mut answer = vec![136, 0, 0, 0, 0x60, 0, 0, 0];
    answer.extend_from_slice(target);
    answer.extend_from_slice(&[2, 1]);
    answer.extend_from_slice(&NEIGHBOR_MAC.0);
    let mut reply = vec![0x60, 0, 0, 0, 0, answer.len() as u8, ICMPV6, 255];
    reply.extend_from_slice(target);
    reply.extend_from_slice(&packet[8..24]);
    let sum = checksum::finish(checksum::add(pseudo_sum(&reply, ICMPV6, answer.len()), &answer));
    answer[2..4].copy_from_slice(&sum.to_be_bytes());
    reply.extend_from_slice(&answer);
    Some(frame(TYPE_IPV6, &reply))
}

/// Rewrites a TCP packet according to `quirks`, and completes the checksum that was left to the link.
fn apply_quirks(packet: &mut Vec<u8>, quirks: LinuxQuirks, is_gso: bool) {
    let is_ipv4 = packet[0] >> 4 == 4;
    let tcp = if is_ipv4 { usize::from(packet[0] & 0x0f) * 4 } else { IPV6_HEADER };
    if packet.len() < tcp + 20 {
        return;
    }
    let header = usize::from(packet[tcp + 12] >> 4) * 4;
    if header < 20 || packet.len() < tcp + header {
        return;
    }
    if quirks.options
        && let Some(options) = TcpOptions::parse(&packet[tcp + 20..tcp + header])
    {
        let options = options.as_linux();
        packet[tcp + 12] = ((20 + options.len()) as u8) << 2 | packet[tcp + 12] & 0x0f;
        packet.splice(tcp + 20..tcp + header, options);
    }
    if quirks.push && is_gso {
        packet[tcp + 13] |= PSH;
    }
    finish(packet, tcp, is_ipv4);
}

/// Sets lengths and checksums.
fn finish(packet: &mut [u8], tcp: usize, is_ipv4: bool) {
    if is_ipv4 {
        let total = packet.len() as u16;
        packet[2..4].copy_from_slice(&total.to_be_bytes());
        packet[10..12].fill(0);
        let header = checksum::finish(checksum::add(0, &packet[..tcp]));
        packet[10..12].copy_from_slice(&header.to_be_bytes());
    } else {
        let payload = (packet.len() - IPV6_HEADER) as u16;
        packet[4..6].copy_from_slice(&payload.to_be_bytes());
    }
    packet[tcp + 16..tcp + 18].fill(0);
    let segment = packet.len() - tcp;
    let sum = checksum::finish(checksum::add(pseudo_sum(packet, TCP, segment), &packet[tcp..]));
    packet[tcp + 16..tcp + 18].copy_from_slice(&sum.to_be_bytes());
}

/// Sum of the pseudo-header, RFC 9293 §3.1, RFC 8200 §8.1: addresses, protocol, length.
fn pseudo_sum(packet: &[u8], protocol: u8, length: usize) -> u64 {
    let addresses = if packet[0] >> 4 == 4 { &packet[12..20] } else { &packet[8..IPV6_HEADER] };
    checksum::add(u64::from(protocol) + length as u64, addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIRKS: LinuxQuirks = LinuxQuirks { options: true, push: true };

    fn packet(options: &[u8], payload: usize) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let mut tcp = [0; 20];
        tcp[12] = ((20 + options.len()) as u8) << 2;
        tcp[13] = 0x10;
        packet.extend_from_slice(&tcp);
        packet.extend_from_slice(options);
        packet.extend(core::iter::repeat_n(7, payload));
        packet
    }

    /// RFC 826, RFC 4861 §7.2.4: the neighbor replies for any address, to the requester.
    #[test]
    fn neighbor_replies_for_every_address() {
        let mut request = vec![0, 1, 8, 0, 6, 4, 0, 1];
        request.extend_from_slice(&[1, 1, 1, 1, 1, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 9]);
        let reply = answer_arp(&request).unwrap();
        assert_eq!(reply[20..22], [0, 2]);
        assert_eq!(reply[22..28], NEIGHBOR_MAC.0);
        assert_eq!(reply[28..32], [10, 0, 0, 9]);
        assert_eq!(reply[38..42], [10, 0, 0, 1]);
        assert_eq!(answer_arp(&reply[ETHERNET..]), None, "a reply causes no reply");
    }

    /// RFC 9293 §3.1: the checksum covers the rewritten packet; PSH is set only on a GSO packet.
    #[test]
    fn rewritten_packet_is_valid() {
        // Timestamps without the padding that Linux puts before them, MSS last.
        let options = [8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 2, 4, 5, 0xb4, 1, 0];
        for is_gso in [false, true] {
            let mut rewritten = packet(&options, 99);
            apply_quirks(&mut rewritten, QUIRKS, is_gso);
            assert_eq!(rewritten[40..44], [2, 4, 5, 0xb4]);
            assert_eq!(rewritten[44..48], [1, 1, 8, 10]);
            assert_eq!(usize::from(rewritten[32] >> 4) * 4, 36);
            assert_eq!(rewritten[33] & PSH != 0, is_gso);
            let total = u16::from_be_bytes([rewritten[2], rewritten[3]]);
            assert_eq!(usize::from(total), rewritten.len());
            assert_eq!(checksum::finish(checksum::add(0, &rewritten[..20])), 0);
            let pseudo = pseudo_sum(&rewritten, TCP, rewritten.len() - 20);
            assert_eq!(checksum::finish(checksum::add(pseudo, &rewritten[20..])), 0);
        }
    }

    /// Only TCP and ICMP errors are passed to packetdrill, which supports nothing else.
    #[test]
    fn other_protocols_are_dropped() {
        let mut wire = Wire::new(QUIRKS);
        let mut echo = packet(&[], 8);
        echo[9] = ICMP;
        echo[20] = 0;
        wire.transmit(Instant::ZERO, &frame(TYPE_IPV4, &echo), false);
        assert!(wire.outbound.is_empty());
        echo[20] = 3;
        wire.transmit(Instant::ZERO, &frame(TYPE_IPV4, &echo), false);
        assert_eq!(wire.outbound.len(), 1);
    }
}
