//! TCP segments in frames: as much of their headers as says which connection begins or ends, and the segments that end
//! one.

use std::net::{IpAddr, SocketAddr};

pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const ACK: u8 = 16;

const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const TCP_BYTES: usize = 20;
const TCP: u8 = 6;
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

fn array<const N: usize>(frame: &[u8], at: usize) -> Option<[u8; N]> {
    frame.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn word(frame: &[u8], at: usize) -> Option<u16> {
    array(frame, at).map(u16::from_be_bytes)
}

impl Segment {
    /// The segment whose headers are in `frame`; `None`: it is something else, or a fragment.
    pub(super) fn of(frame: &[u8]) -> Option<Self> {
        let ip = ETHERNET_BYTES;
        let (source, destination, tcp, octets): (IpAddr, IpAddr, usize, usize) =
            match (word(frame, 12)?, frame.get(ip)? >> 4) {
                (0x0800, 4) => {
                    let header = usize::from(frame[ip] & 15) * 4;
                    // Neither more fragments nor an offset.
                    let is_whole = word(frame, ip + 6)? & 0x3fff == 0;
                    if !is_whole || *frame.get(ip + 9)? != TCP {
                        return None;
                    }
                    let octets = usize::from(word(frame, ip + 2)?).checked_sub(header)?;
                    let source = array::<4>(frame, ip + 12)?.into();
                    (source, array::<4>(frame, ip + 16)?.into(), ip + header, octets)
                }
                (0x86dd, 6) => {
                    if *frame.get(ip + 6)? != TCP {
                        return None;
                    }
                    let source = array::<16>(frame, ip + 8)?.into();
                    let octets = word(frame, ip + 4)?.into();
                    (source, array::<16>(frame, ip + 24)?.into(), ip + IPV6_BYTES, octets)
                }
                _ => return None,
            };
        let header = usize::from(frame.get(tcp + 12)? >> 4) * 4;
        Some(Self {
            to: array(frame, 0)?,
            from: array(frame, 6)?,
            source: SocketAddr::new(source, word(frame, tcp)?),
            destination: SocketAddr::new(destination, word(frame, tcp + 2)?),
            seq: u32::from_be_bytes(array(frame, tcp + 4)?),
            ack: u32::from_be_bytes(array(frame, tcp + 8)?),
            flags: *frame.get(tcp + 13)?,
            len: u32::try_from(octets.saturating_sub(header)).ok()?,
        })
    }

    /// A frame with this segment: no options, no payload, no window.
    pub(super) fn frame(&self) -> Vec<u8> {
        let Self { to, from, source, destination, seq, ack, flags, len: _ } = *self;
        let mut tcp = [source.port().to_be_bytes(), destination.port().to_be_bytes()].concat();
        tcp.extend([seq.to_be_bytes(), ack.to_be_bytes()].concat());
        tcp.extend([(TCP_BYTES as u8 / 4) << 4, flags, 0, 0, 0, 0, 0, 0]);
        let mut frame = [to, from].concat();
        match (source.ip(), destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let ends = [source.octets(), destination.octets()].concat();
                let checksum = sum(&[&ends, &[0, TCP, 0, TCP_BYTES as u8], &tcp]);
                put(&mut tcp, 16, checksum);
                let total = (IPV4_BYTES + TCP_BYTES) as u8;
                // Don't Fragment.
                let mut ip = vec![0x45, 0, 0, total, 0, 0, 0x40, 0, HOP_LIMIT, TCP, 0, 0];
                ip.extend(ends);
                let checksum = sum(&[&ip]);
                put(&mut ip, 10, checksum);
                frame.extend([8, 0]);
                frame.extend(ip);
            }
            (source, destination) => {
                let octets = |ip: IpAddr| match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                    IpAddr::V6(ip) => ip.octets(),
                };
                let ends = [octets(source), octets(destination)].concat();
                let tail = [0, 0, 0, TCP_BYTES as u8, 0, 0, 0, TCP];
                let checksum = sum(&[&ends, &tail, &tcp]);
                put(&mut tcp, 16, checksum);
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, TCP_BYTES as u8, TCP, HOP_LIMIT]);
                frame.extend(ends);
            }
        }
        frame.extend(tcp);
        frame
    }
}

fn put(octets: &mut [u8], at: usize, value: u16) {
    octets[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// The Internet checksum of these pieces, each of an even length (RFC 1071).
fn sum(pieces: &[&[u8]]) -> u16 {
    let pairs = pieces.iter().flat_map(|piece| piece.chunks(2));
    let total = pairs.fold(0_u32, |total, pair| {
        total + u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]))
    });
    let folded = (total & 0xffff) + (total >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

/// The answer to a question for the link-layer address of `own`: ARP (RFC 826), or Neighbor Solicitation
/// (RFC 4861 §7.2.4).
pub(super) fn answer(
    frame: &[u8],
    own: Octets,
    is_own: impl Fn(IpAddr) -> bool,
) -> Option<Vec<u8>> {
    let asker: Octets = array(frame, 6)?;
    let ip = ETHERNET_BYTES;
    match word(frame, 12)? {
        0x0806 => {
            let request = [0, 1, 8, 0, 6, 4, 0, 1];
            if array(frame, ip)? != request {
                return None;
            }
            let (hardware, protocol) = (array::<6>(frame, ip + 8)?, array::<4>(frame, ip + 14)?);
            let wanted = array::<4>(frame, ip + 24)?;
            if !is_own(wanted.into()) {
                return None;
            }
            let mut reply = [asker, own].concat();
            reply.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
            reply.extend(own);
            reply.extend(wanted);
            reply.extend(hardware);
            reply.extend(protocol);
            Some(reply)
        }
        0x86dd => {
            const ICMPV6: u8 = 58;
            const SOLICITATION: u8 = 135;
            let icmp = ip + IPV6_BYTES;
            let is_solicitation = *frame.get(ip + 6)? == ICMPV6
                && *frame.get(ip + 7)? == 255
                && *frame.get(icmp)? == SOLICITATION;
            let (source, wanted) = (array::<16>(frame, ip + 8)?, array::<16>(frame, icmp + 8)?);
            // The unspecified address asks for duplicates (RFC 4862 §5.4.2).
            if !is_solicitation || source == [0; 16] || !is_own(wanted.into()) {
                return None;
            }
            // Solicited, override; option: target link-layer address.
            let mut body = vec![136, 0, 0, 0, 0x60, 0, 0, 0];
            body.extend(wanted);
            body.extend([2, 1]);
            body.extend(own);
            let ends = [wanted, source].concat();
            let tail = [0, 0, 0, body.len() as u8, 0, 0, 0, ICMPV6];
            let checksum = sum(&[&ends, &tail, &body]);
            put(&mut body, 2, checksum);
            let mut reply = [asker, own].concat();
            reply.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, body.len() as u8, ICMPV6, 255]);
            reply.extend(ends);
            reply.extend(body);
            Some(reply)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let segment = segment(source, destination);
            let frame = segment.frame();
            assert_eq!(Segment::of(&frame), Some(segment));
            for length in 0..frame.len() - 6 {
                assert_eq!(Segment::of(&frame[..length]), None, "{length} octets");
            }
            let ip = &frame[ETHERNET_BYTES..];
            let (ends, tcp) =
                if ip[0] == 0x45 { (&ip[12..20], &ip[20..]) } else { (&ip[8..40], &ip[40..]) };
            assert_eq!(sum(&[ends, &[0, TCP, 0, TCP_BYTES as u8], tcp]), 0);
            if ip[0] == 0x45 {
                assert_eq!(sum(&[&ip[..20]]), 0);
            }
        }
    }

    #[test]
    fn fragments_and_other_protocols_are_no_segments() {
        let mut frame = segment("10.0.0.1:80", "10.0.0.2:81").frame();
        frame[ETHERNET_BYTES + 6] = 0x20;
        assert_eq!(Segment::of(&frame), None, "more fragments");
        frame[ETHERNET_BYTES + 6] = 0x40;
        frame[ETHERNET_BYTES + 9] = 17;
        assert_eq!(Segment::of(&frame), None, "UDP");
        assert_eq!(Segment::of(&[0xff; 64]), None);
    }

    #[test]
    fn questions_for_other_addresses_are_not_answered() {
        let own = [2, 0, 0, 0, 0, 9];
        let is_own = |ip: IpAddr| ip == IpAddr::from([10, 0, 0, 9]);
        let mut question = [[0xff; 6], [2, 0, 0, 0, 0, 1]].concat();
        question.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1]);
        question.extend([0, 0, 0, 0, 0, 0, 10, 0, 0, 9]);
        let reply = answer(&question, own, is_own).expect("an ARP reply");
        assert_eq!(reply[..12], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9]);
        assert_eq!(reply[20..32], [0, 2, 2, 0, 0, 0, 0, 9, 10, 0, 0, 9]);
        question[41] = 8;
        assert_eq!(answer(&question, own, is_own), None);
        assert_eq!(answer(&question[..30], own, is_own), None);
    }
}
