//! ICMP messages of a network.

use etherparse::{
    Icmpv4Type, Icmpv6Type, NetSlice, PacketBuilder, SlicedPacket, icmpv4::DestUnreachableHeader,
};

const ETHERNET_BYTES: usize = 14;
/// Bytes of a packet that a message quotes.
const QUOTED_BYTES: usize = 100;

/// "Packet too big" (IPv6) or "fragmentation needed" (IPv4) error for `frame`, sent to its sender by the
/// neighbor that the frame was for.
pub fn too_big(frame: &[u8], mtu: usize) -> Option<Vec<u8>> {
    let packet = SlicedPacket::from_ethernet(frame).ok()?;
    let net = packet.net?;
    let (to, from): ([u8; 6], [u8; 6]) =
        (frame[6..12].try_into().ok()?, frame[..6].try_into().ok()?);
    let quoted = &frame[ETHERNET_BYTES..frame.len().min(ETHERNET_BYTES + QUOTED_BYTES)];
    let mut made = Vec::new();
    let builder = PacketBuilder::ethernet2(from, to);
    match net {
        NetSlice::Ipv4(ip) => {
            let (source, destination) = (ip.header().source(), ip.header().destination());
            let next_hop_mtu = u16::try_from(mtu).ok()?;
            let header = DestUnreachableHeader::FragmentationNeeded { next_hop_mtu };
            let kind = Icmpv4Type::DestinationUnreachable(header);
            builder.ipv4(destination, source, 64).icmpv4(kind).write(&mut made, quoted).ok()?;
        }
        NetSlice::Ipv6(ip) => {
            let (source, destination) = (ip.header().source(), ip.header().destination());
            let kind = Icmpv6Type::PacketTooBig { mtu: u32::try_from(mtu).ok()? };
            builder.ipv6(destination, source, 64).icmpv6(kind).write(&mut made, quoted).ok()?;
        }
        NetSlice::Arp(_) => return None,
    }
    Some(made)
}
