//! TCP segments in frames: as much of their headers as says which connection begins or ends, and the segments that end
//! one.

use std::net::{IpAddr, SocketAddr};

use etherparse::{
    EtherType, Ethernet2HeaderSlice, IpNumber, Ipv4HeaderSlice, Ipv6HeaderSlice, PacketBuilder,
    TcpHeaderSlice,
};

pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const ACK: u8 = 16;

const HOP_LIMIT: u8 = 64;

/// An Ethernet address.
pub(super) type Octets = [u8; 6];

/// The fields of a segment's headers that matter here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Segment {
    pub(super) to: Octets,
    pub(super) from: Octets,
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    /// Octets of payload, by the IP header.
    pub(super) len: u32,
}

impl Segment {
    /// The segment whose headers are in `frame`; `None`: it is something else, or a fragment.
    pub(super) fn of(frame: &[u8]) -> Option<Self> {
        let ethernet = Ethernet2HeaderSlice::from_slice(frame).ok()?;
        let packet = frame.get(ethernet.slice().len()..)?;
        let (source, destination, tcp, octets): (IpAddr, IpAddr, _, _) = match ethernet.ether_type()
        {
            EtherType::IPV4 => {
                let ip = Ipv4HeaderSlice::from_slice(packet).ok()?;
                if ip.is_fragmenting_payload() || ip.protocol() != IpNumber::TCP {
                    return None;
                }
                let tcp = packet.get(ip.slice().len()..)?;
                (ip.source_addr().into(), ip.destination_addr().into(), tcp, ip.payload_len().ok()?)
            }
            EtherType::IPV6 => {
                let ip = Ipv6HeaderSlice::from_slice(packet).ok()?;
                if ip.next_header() != IpNumber::TCP {
                    return None;
                }
                let tcp = packet.get(ip.slice().len()..)?;
                (ip.source_addr().into(), ip.destination_addr().into(), tcp, ip.payload_length())
            }
            _ => return None,
        };
        let tcp = TcpHeaderSlice::from_slice(tcp).ok()?;
        let header = u32::try_from(tcp.slice().len()).ok()?;
        Some(Self {
            to: ethernet.destination(),
            from: ethernet.source(),
            source: SocketAddr::new(source, tcp.source_port()),
            destination: SocketAddr::new(destination, tcp.destination_port()),
            seq: tcp.sequence_number(),
            ack: tcp.acknowledgment_number(),
            flags: tcp.slice()[13],
            len: u32::from(octets).saturating_sub(header),
        })
    }

    /// A frame with this segment: no options, no payload, no window. `None`: its ends are of two families.
    pub(super) fn frame(&self) -> Option<Vec<u8>> {
        let Self { to, from, source, destination, seq, ack, flags, len: _ } = *self;
        let builder = PacketBuilder::ethernet2(from, to);
        let builder = match (source.ip(), destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                builder.ipv4(source.octets(), destination.octets(), HOP_LIMIT)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                builder.ipv6(source.octets(), destination.octets(), HOP_LIMIT)
            }
            _ => return None,
        };
        let mut builder = builder.tcp(source.port(), destination.port(), seq, 0);
        if flags & RST != 0 {
            builder = builder.rst();
        }
        if flags & ACK != 0 {
            builder = builder.ack(ack);
        }
        let mut frame = Vec::with_capacity(builder.size(0));
        builder.write(&mut frame, &[]).ok()?;
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use offload_engine::frame::{FlowKey, classify};

    use super::*;

    const ETHERNET: usize = 14;

    fn segment(source: &str, destination: &str) -> Segment {
        Segment {
            to: [2, 0, 0, 0, 0, 1],
            from: [2, 0, 0, 0, 0, 2],
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            seq: 0xffff_fff0,
            ack: 7,
            flags: RST | ACK,
            len: 0,
        }
    }

    // Encoding and decoding agree, checksums are right, and a truncated frame is no segment.
    #[test]
    fn segments_go_both_ways() {
        for (source, destination) in
            [("10.0.0.1:80", "10.0.0.2:65535"), ("[fd00::1]:80", "[fd00::2]:1")]
        {
            for (flags, ack) in [(RST | ACK, 7), (ACK, 7), (RST, 0)] {
                let segment = Segment { flags, ack, ..segment(source, destination) };
                let frame = segment.frame().unwrap();
                assert_eq!(Segment::of(&frame), Some(segment));
                for length in 0..frame.len() {
                    assert_eq!(Segment::of(&frame[..length]), None, "{length} octets");
                }
                let classified = classify(&frame).expect("headers that the target accepts");
                assert!(classified.checksum_is_valid());
                assert_eq!(classified.flow, FlowKey::new(segment.destination, segment.source));
            }
        }
    }

    #[test]
    fn fragments_and_other_protocols_are_no_segments() {
        let mut frame = segment("10.0.0.1:80", "10.0.0.2:81").frame().unwrap();
        frame[ETHERNET + 6] = 0x20;
        assert_eq!(Segment::of(&frame), None, "more fragments");
        frame[ETHERNET + 6] = 0x40;
        frame[ETHERNET + 9] = 17;
        assert_eq!(Segment::of(&frame), None, "UDP");
        assert_eq!(Segment::of(&[0xff; 64]), None);
    }
}
