//! ICMP errors about sent segments.

use super::*;

fn flow_of(ipv6: bool) -> FlowKey {
    if ipv6 {
        FlowKey::new("[fd00::1]:40000".parse().unwrap(), "[fd00::2]:5000".parse().unwrap())
    } else {
        FlowKey::new("10.0.0.1:40000".parse().unwrap(), "10.0.0.2:5000".parse().unwrap())
    }
}

/// Verifies that an ICMP message that quotes a sent segment, up to its sequence number, is classified as `expected`.
fn assert_reads(ipv6: bool, [kind, code]: [u8; 2], rest: u32, expected: Option<PathErrorKind>) {
    let quoted = if ipv6 { 48 } else { 28 };
    let message = icmp_about(&frame_in_flight(ipv6), kind, code, rest, quoted);
    let found = classify_icmp(&message);
    assert_eq!(found.map(|found| found.error.kind), expected, "{kind}/{code}");
    if let Some(IcmpError { flow, vlan, error }) = found {
        assert_eq!((flow, vlan), (flow_of(ipv6), Vlan::Untagged));
        assert_eq!(error.seq, SeqNum(0xdead_beef));
    }
}

// RFC 792, RFC 1191 §4, RFC 1812 §5.2.7.1; RFC 9293 MUST-55: source quench is ignored.
#[test]
fn icmp_errors_over_ipv4_are_classified() {
    use SoftError::*;
    let too_big = |next_hop_mtu| PathErrorKind::TooBig { next_hop_mtu, packet_len: 140 };
    for (kind, code, rest, expected) in [
        (3, 4, 1280, Some(too_big(1280))),
        (3, 4, 0, Some(too_big(0))),
        (3, 4, 0xffff_0000, Some(too_big(0))),
        (3, 0, 0, Some(PathErrorKind::Soft(NetworkUnreachable))),
        (3, 1, 0, Some(PathErrorKind::Soft(HostUnreachable))),
        (3, 2, 0, Some(PathErrorKind::Soft(ProtocolUnreachable))),
        (3, 3, 0, Some(PathErrorKind::Soft(PortUnreachable))),
        (3, 13, 0, Some(PathErrorKind::Soft(Prohibited))),
        (11, 0, 0, Some(PathErrorKind::Soft(TimeExceeded))),
        (12, 0, 0, Some(PathErrorKind::Soft(ParameterProblem))),
        (4, 0, 0, None),
        (5, 1, 0, None),
        (0, 0, 0, None),
        (8, 0, 0, None),
    ] {
        assert_reads(false, [kind, code], rest, expected);
    }
}

// RFC 4443 §3; RFC 8201 §4: over IPv6 every router reports the MTU.
#[test]
fn icmp_errors_over_ipv6_are_classified() {
    use SoftError::*;
    let too_big = |next_hop_mtu| PathErrorKind::TooBig { next_hop_mtu, packet_len: 160 };
    for (kind, code, rest, expected) in [
        (2, 0, 1280, Some(too_big(1280))),
        (2, 0, 0, Some(too_big(1))),
        (2, 0, u32::MAX, Some(too_big(u32::MAX))),
        (1, 0, 0, Some(PathErrorKind::Soft(NetworkUnreachable))),
        (1, 1, 0, Some(PathErrorKind::Soft(Prohibited))),
        (1, 3, 0, Some(PathErrorKind::Soft(HostUnreachable))),
        (1, 4, 0, Some(PathErrorKind::Soft(PortUnreachable))),
        (3, 0, 0, Some(PathErrorKind::Soft(TimeExceeded))),
        (4, 1, 0, Some(PathErrorKind::Soft(ParameterProblem))),
        (128, 0, 0, None),
        (137, 0, 0, None),
    ] {
        assert_reads(true, [kind, code], rest, expected);
    }
}

// Ignored: a quote that is too short, of another protocol or of a later fragment, and a wrong checksum.
#[test]
fn invalid_icmp_errors_are_ignored() {
    for ipv6 in [false, true] {
        let (frame, header) = (frame_in_flight(ipv6), if ipv6 { 40 } else { 20 });
        let (kind, code) = if ipv6 { (2, 0) } else { (3, 4) };
        for quoted in 0..header + 8 {
            assert!(classify_icmp(&icmp_about(&frame, kind, code, 1280, quoted)).is_none());
        }
        let good = icmp_about(&frame, kind, code, 1280, header + 8);
        assert!(classify_icmp(&good).is_some());
        // IPv6 has no header checksum: hop limit, flow label and traffic class are not protected.
        for at in 14 + header..good.len() {
            let mut flipped = good.clone();
            flipped[at] ^= 0x10;
            assert!(classify_icmp(&flipped).is_none(), "byte {at}");
        }
        let mut udp = frame.clone();
        udp[14 + if ipv6 { 6 } else { 9 }] = 17;
        assert!(classify_icmp(&icmp_about(&udp, kind, code, 1280, header + 8)).is_none());
        assert!(classify(&good).is_none() && classify_icmp(&frame).is_none());
    }
    let mut fragment = frame_in_flight(false);
    fragment[20..22].copy_from_slice(&[0x00, 0x08]);
    assert!(classify_icmp(&icmp_about(&fragment, 3, 4, 1280, 28)).is_none());
}
