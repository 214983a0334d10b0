//! Frames synthesized around the octets of a TCP connection whose segments are not visible, for captures.
//!
//! Only the octets, their order and their times are real. Sequence numbers begin at 0, windows are constant, and
//! acknowledgments cover all that was received.
#![forbid(unsafe_code)]

use std::{
    net::{IpAddr, SocketAddr},
    vec::Vec,
};

use etherparse::{PacketBuilder, PacketBuilderStep, TcpHeader};

use super::Direction;

/// Most octets of one segment.
const SEGMENT_OCTETS_MAX: usize = 64_000;
/// Window of every segment.
const WINDOW: u16 = u16::MAX;
/// Hop limit of every segment.
const HOPS: u8 = 64;
/// Ethernet addresses: kernel sockets have none.
const NEAR: [u8; 6] = [2, 0, 0, 0, 0, 1];
const FAR: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Event of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyntheticEvent<'a> {
    /// Three segments of the handshake.
    Handshake,
    /// Octets in one or more segments.
    Data(&'a [u8]),
    /// FIN.
    Fin,
    /// RST.
    Reset,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Flags {
    syn: bool,
    ack: bool,
    psh: bool,
    fin: bool,
    rst: bool,
}

const NONE: Flags = Flags { syn: false, ack: false, psh: false, fin: false, rst: false };
const SYN: Flags = Flags { syn: true, ..NONE };
const ACK: Flags = Flags { ack: true, ..NONE };

/// Connection of a capture.
#[derive(Clone, Debug)]
pub struct SyntheticFlow {
    local: SocketAddr,
    remote: SocketAddr,
    /// Next sequence number of each direction.
    sent: u32,
    received: u32,
}

impl SyntheticFlow {
    /// A connection without recorded octets.
    #[must_use]
    pub const fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        Self { local, remote, sent: 0, received: 0 }
    }

    /// Calls `record` with the direction and the octets of each frame of an event. `way` is the direction of the
    /// event: for a handshake, that of the first SYN.
    pub fn frames(
        &mut self,
        way: Direction,
        event: SyntheticEvent<'_>,
        frame: &mut Vec<u8>,
        mut record: impl FnMut(Direction, &[u8]),
    ) {
        let mut segment = |way, flags, payload: &[u8]| {
            self.segment(frame, way, flags, payload);
            record(way, frame);
        };
        match event {
            SyntheticEvent::Handshake => {
                let back = match way {
                    Direction::Outbound => Direction::Inbound,
                    Direction::Inbound => Direction::Outbound,
                };
                segment(way, SYN, &[]);
                segment(back, Flags { ack: true, ..SYN }, &[]);
                segment(way, ACK, &[]);
            }
            SyntheticEvent::Data(octets) => {
                let count = octets.len().div_ceil(SEGMENT_OCTETS_MAX);
                for (at, part) in octets.chunks(SEGMENT_OCTETS_MAX).enumerate() {
                    segment(way, Flags { psh: at + 1 == count, ..ACK }, part);
                }
            }
            SyntheticEvent::Fin => segment(way, Flags { fin: true, ..ACK }, &[]),
            SyntheticEvent::Reset => segment(way, Flags { rst: true, ..ACK }, &[]),
        }
    }

    fn segment(&mut self, frame: &mut Vec<u8>, way: Direction, flags: Flags, payload: &[u8]) {
        let (from, to, macs, sequence, acknowledged) = match way {
            Direction::Outbound => {
                (self.local, self.remote, (NEAR, FAR), &mut self.sent, self.received)
            }
            Direction::Inbound => {
                (self.remote, self.local, (FAR, NEAR), &mut self.received, self.sent)
            }
        };
        let header = TcpHeader {
            acknowledgment_number: if flags.ack { acknowledged } else { 0 },
            syn: flags.syn,
            ack: flags.ack,
            psh: flags.psh,
            fin: flags.fin,
            rst: flags.rst,
            ..TcpHeader::new(from.port(), to.port(), *sequence, WINDOW)
        };
        let octets = payload.len() as u32 + u32::from(flags.syn) + u32::from(flags.fin);
        *sequence = sequence.wrapping_add(octets);
        let ethernet = PacketBuilder::ethernet2(macs.0, macs.1);
        frame.clear();
        let written = match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => write(
                ethernet.ipv4(from.octets(), to.octets(), HOPS).tcp_header(header),
                frame,
                payload,
            ),
            (from, to) => {
                let octets = |address: IpAddr| match address {
                    IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                    IpAddr::V6(address) => address.octets(),
                };
                let step = ethernet.ipv6(octets(from), octets(to), HOPS).tcp_header(header);
                write(step, frame, payload)
            }
        };
        debug_assert!(written, "a segment fits");
    }
}

fn write(step: PacketBuilderStep<TcpHeader>, frame: &mut Vec<u8>, payload: &[u8]) -> bool {
    step.write(frame, payload).is_ok()
}

#[cfg(test)]
mod tests {
    use std::vec;

    use etherparse::SlicedPacket;

    use super::*;

    /// Sequence number, acknowledgment, flags and octets of each frame.
    fn segments(
        flow: &mut SyntheticFlow,
        way: Direction,
        event: SyntheticEvent<'_>,
    ) -> Vec<(u32, u32, &'static str, usize)> {
        let mut found = vec![];
        flow.frames(way, event, &mut Vec::new(), |_, frame| {
            let packet = SlicedPacket::from_ethernet(frame).unwrap();
            let Some(etherparse::TransportSlice::Tcp(tcp)) = packet.transport else { panic!() };
            let flags = match (tcp.syn(), tcp.ack(), tcp.psh(), tcp.fin(), tcp.rst()) {
                (true, false, ..) => "S",
                (true, true, ..) => "SA",
                (_, true, true, false, false) => "PA",
                (_, true, false, true, false) => "FA",
                (_, true, false, false, true) => "RA",
                _ => "A",
            };
            let (sequence, ack) = (tcp.sequence_number(), tcp.acknowledgment_number());
            found.push((sequence, ack, flags, tcp.payload().len()));
        });
        found
    }

    #[test]
    fn sequence_numbers_count_data_syn_and_fin() {
        use Direction::{Inbound, Outbound};
        for (local, remote) in [("10.0.0.1:1", "10.0.0.2:2"), ("[::1]:1", "[::2]:2")] {
            let mut flow = SyntheticFlow::new(local.parse().unwrap(), remote.parse().unwrap());
            let handshake = segments(&mut flow, Inbound, SyntheticEvent::Handshake);
            assert_eq!(handshake, [(0, 0, "S", 0), (0, 1, "SA", 0), (1, 1, "A", 0)]);
            let large = vec![0; SEGMENT_OCTETS_MAX + 1];
            let data = segments(&mut flow, Outbound, SyntheticEvent::Data(&large));
            assert_eq!(data, [(1, 1, "A", SEGMENT_OCTETS_MAX), (64_001, 1, "PA", 1)]);
            assert_eq!(segments(&mut flow, Inbound, SyntheticEvent::Data(&[])), []);
            assert_eq!(segments(&mut flow, Inbound, SyntheticEvent::Fin), [(1, 64_002, "FA", 0)]);
            assert_eq!(
                segments(&mut flow, Outbound, SyntheticEvent::Reset),
                [(64_002, 2, "RA", 0)]
            );
        }
    }
}
