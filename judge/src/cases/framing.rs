//! FPDUs (RFC 5044 §4, §8).

use crate::{
    case::{Cases, Start, put_all},
    consumer::{
        Consumer::{Flue, Rping},
        pattern,
    },
    expect::Expect,
    finding::{Step, ensure},
    link::Link,
    wire::{Header, SEND, TERMINATE, WRITE, crc_field, fpdu, rtr, tagged, unsealed},
};

/// Payload of a Send that makes an FPDU of 40 octets: 2 length, 18 header, 14 payload, 2 pad, 4 CRC.
const PADDED: &[u8; 14] = b"E1234567890123";

/// Invalid lengths and CRCs.
fn invalid(cases: &mut Cases) {
    // Lengths that are too short for a header.
    for length in [0, 1, 13] {
        let case = cases.add(format!("fpdu-length-{length}"), "MPA-8-1 RDM-7.2-1", Rping);
        case.put(move |_| fpdu(&tagged(WRITE, 1, 0, b"")[..length])).terminates_bare(2, 0, 3);
    }
    let case = cases.add("fpdu-length-17", "MPA-8-1 RDM-7.2-1", Rping);
    case.put(|_| fpdu(&Header::untagged(SEND, 0, 1).with(b"")[..17])).terminates_bare(2, 0, 3);
    let case = cases.add("fpdu-length-65535", "MPA-6-3 DDP-7.1-1", Rping);
    case.post(|link| link.send(&[0; 65_535 - 18])).terminates(1, 2, 5);
    case.receives("BUFFER_OVERFLOW", None);

    // One changed bit. A length of 33 instead of 32 does not change the size of the FPDU.
    for (part, needs) in
        [("length", Flue), ("header", Rping), ("payload", Rping), ("pad", Flue), ("crc", Rping)]
    {
        let rules = "MPA-4.4-9 MPA-4.4-12 MPA-8-1 MPA-8-6 DDP-7.1-5 RDM-6.2.1-1";
        let case = cases.add(format!("fpdu-crc-{part}"), rules, needs);
        case.put(move |link| {
            let data = if link.peer.consumer == Flue { PADDED.to_vec() } else { link.command() };
            let mut octets = fpdu(&link.send(&data));
            let at = match part {
                "length" => 1,
                "header" => 5,
                "payload" => 20,
                "pad" => 34,
                _ => octets.len() - 1,
            };
            octets[at] ^= 1;
            octets
        });
        case.terminates_bare(2, 0, 2);
    }
    let case = cases.add("fpdu-crc-zero", "MPA-4.4-8 MPA-4.4-12", Rping);
    case.put(|link| [unsealed(&link.command_with(|_| {}), 0), vec![0; 4]].concat());
    case.terminates_bare(2, 0, 2);
    let case = cases.add("fpdu-crc-byte-order", "MPA-4.4-8", Rping);
    case.put(|link| {
        let mut octets = fpdu(&link.command_with(|_| {}));
        let field = octets.len() - 4;
        octets[field..].reverse();
        octets
    });
    case.terminates_bare(2, 0, 2);
    let case = cases.add("fpdu-crc-of-first", "MPA-4.4-12 MPA-7.1.2-10", Rping);
    case.start(Start::Reply).put(|_| [&unsealed(&rtr(), 0)[..], b"\x01\x02\x03\x04"].concat());
    case.terminates_bare(2, 0, 2).opened("CONNECTION_ABORTED");
    // Markers are not enabled: four zero octets are the length 0, a pad, and the beginning of a CRC.
    let case = cases.add("fpdu-marker-unasked", "MPA-7.1.1-3 MPA-8-1", Rping);
    case.put(|_| [&[0; 4][..], &fpdu(&rtr())].concat()).terminates_bare(2, 0, 2);

    // Input after an error is ignored: valid FPDUs as well as other errors.
    let case = cases.add("fpdu-good-behind-bad-crc", "MPA-8-5 DDP-7.1-4", Flue);
    case.put(|link| {
        let first = unsealed(&link.write(0, 0, b"data"), 0);
        [first, vec![0; 4], fpdu(&link.write(0, 0, &[0; 64]))].concat()
    });
    case.terminates_bare(2, 0, 2);
    let case = cases.add("fpdu-first-of-two-errors", "RDM-7.1-5 DDP-7.1-4 DDP-7.1-3", Rping);
    case.step(|link| {
        let first = link.write_with(0, 0, b"data", |header| header.stag = 0xDEAD_BEEF);
        let second = link.send_with(b"", |header| header.qn = 9);
        let third = link.write(0, 0, &[0; 64]);
        put_all(link, [&first, &second, &third]);
        link.offender = first;
        Ok(())
    });
    case.terminates(1, 1, 0);
}

/// A FIN within an FPDU or message.
fn cut(cases: &mut Cases) {
    for octets in [1, 2, 3, 20, 37, 39] {
        let rules = "MPA-7.2-1 MPA-8-1 DDP-6.2.1-2";
        let case = cases.add(format!("fpdu-fin-{octets}"), rules, Rping);
        case.put(move |link| fpdu(&link.send(PADDED))[..octets].to_vec()).fin();
        case.terminates_bare(2, 0, 1).reason(0x12001);
    }
    let case = cases.add("fpdu-fin-in-message", "MPA-7.2-1 DDP-5.4-1", Rping);
    case.post(|link| link.send_with(b"E1", |header| header.is_last = false)).fin();
    case.expect(Expect::chosen(2, 0, 1).bare()).reason(0x22001).receives("CANCELLED", None);
    let case = cases.add("fpdu-fin-in-write", "MPA-7.2-1 DDP-5.4-1", Flue);
    case.post(|link| link.write_with(0, 0, &[0; 4], |header| header.is_last = false)).fin();
    case.expect(Expect::chosen(2, 0, 1).bare()).reason(0x22001).changes(0, 1, 3);
}

/// Sends the octets of the exchange with the consumer in pieces that `cut` divides.
fn in_pieces(link: &mut Link, cut: impl FnOnce(&mut Link, &[u8])) -> Step {
    link.ping_by(|link, ulpdu| cut(link, &fpdu(&ulpdu)))
}

fn split_everywhere(link: &mut Link) -> Step {
    let length = fpdu(&Header::untagged(SEND, 0, 1).with(&[0; 10])).len();
    for at in 1..length {
        in_pieces(link, |link, octets| {
            let (first, second) = octets.split_at(at.min(octets.len()));
            link.put(first);
            link.put(second);
        })?;
    }
    Ok(())
}

/// Valid FPDUs in any segmentation.
fn segmented(cases: &mut Cases) {
    // A pad that is not zero; the CRC is valid. Messages of rping have no pad.
    let case = cases.add("fpdu-pad-content", "MPA-4.1-2", Flue);
    case.step(|link| {
        in_pieces(link, |link, octets| {
            let length = usize::from(u16::from_be_bytes([octets[0], octets[1]]));
            let body = unsealed(&octets[2..2 + length], 0xff);
            let octets = [&body[..], &crc_field(&body)].concat();
            link.put(&octets);
        })
    });
    let rules = "MPA-5.1-3 MPA-A.4-1 MPA-5.2-1";
    cases.add("fpdu-split-at-every-octet", rules, Rping).step(split_everywhere);
    let case = cases.add("fpdu-octet-by-octet", "MPA-5.1-3 MPA-6-3", Rping);
    case.step(|link| {
        if link.peer.consumer == Flue {
            let write = fpdu(&link.write(0, 0, &[b'x'; 100]));
            write.iter().for_each(|octet| link.put(&[*octet]));
        }
        in_pieces(link, |link, octets| octets.iter().for_each(|octet| link.put(&[*octet])))
    });
    case.changes(0, 0, 100);
    let case = cases.add("fpdu-many-in-a-segment", "MPA-5.1-2 MPA-5.1-3", Flue);
    case.step(|link| {
        let mut writes: Vec<_> = (0..30).map(|at| link.write(0, 4 * at, &[0; 4])).collect();
        writes.push(link.send(b"E"));
        put_all(link, &writes);
        let echo = link.message()?;
        ensure(echo == b"E", || "no echo".into())
    });
    case.changes(0, 1, 119);
}

/// FPDUs of the peer: the segments of a large Send.
fn large(link: &mut Link) -> Step {
    link.ask(b"B\0\0\x40\0")?;
    let expected = pattern(0).repeat(4);
    let mut octets = Vec::new();
    while octets.len() < expected.len() {
        let segment = link.segment()?;
        let Header { op, qn, msn, mo, is_last, .. } = segment.header;
        let found = (op, qn, msn, mo as usize);
        ensure(op != TERMINATE && found == (SEND, 0, 2, octets.len()), || {
            format!("{segment}: expected Send 2 at MO {}", octets.len())
        })?;
        octets.extend_from_slice(&segment.data);
        let is_complete = octets.len() == expected.len();
        ensure(is_last == is_complete, || "the L bit is not in the last segment only".into())?;
        ensure(segment.ulpdu.len() <= 64_768, || format!("ULPDU of {}", segment.ulpdu.len()))?;
    }
    ensure(octets == expected, || "the data differs from the memory".into())
}

pub(super) fn add(cases: &mut Cases) {
    invalid(cases);
    segmented(cases);
    cut(cases);
    let rules = "DDP-4.1-2 DDP-4.3-1 DDP-4.3-3 DDP-5.2-1 DDP-5.2-4 DDP-5.3-2 MPA-3-5";
    cases.add("fpdu-large-send-of-ours", rules, Flue).step(large);
}
