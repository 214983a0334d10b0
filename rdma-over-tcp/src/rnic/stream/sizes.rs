//! Length of an FPDU appended to a list.

use crate::{
    mpa::{LENGTH_OCTETS, MULPDU_MAX, MULPDU_MIN, crc::CRC_OCTETS, mulpdu},
    rnic::config::FpduSize,
};

/// Bytes of the longest list that is one GSO packet: a TCP segment with its headers in one IP packet.
const ONE_GSO_PACKET_MAX: usize = u16::MAX as usize;

/// Limits of a list in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListLimits {
    pub(super) emss: usize,
    pub(super) gso_payload: usize,
}

/// Upper limit of the room of a list that is sufficient for another FPDU.
const USEFUL_ROOM_MAX: usize = 4096;

/// Room of a list that is sufficient for another FPDU. A small remainder of one GSO packet after a large FPDU is not
/// used. A list of several GSO packets is filled, because only a list that ends with a full segment shares a write with
/// the next.
fn useful_room(gso_payload: usize) -> usize {
    match gso_payload <= ONE_GSO_PACKET_MAX {
        true => (gso_payload / 16).clamp(MULPDU_MIN.into(), USEFUL_ROOM_MAX),
        false => MULPDU_MIN.into(),
    }
}

/// Bytes left in the last segment of a list of `filled` bytes. Several full segments share a list only if every segment
/// boundary is an FPDU boundary, which requires an EMSS that is a multiple of 4.
fn segment_room(filled: usize, emss: usize, gso_payload: usize) -> usize {
    match filled % emss {
        0 if filled == 0 => emss,
        0 if filled + emss <= gso_payload => emss,
        0 => 0,
        used => emss - used,
    }
}

/// Returns the largest ULPDU after `filled` bytes of a list, for `payload` octets of a message after a header. `None`:
/// the message waits for the next list.
pub(super) fn ulpdu_max(
    size: FpduSize,
    markers: bool,
    limits: ListLimits,
    filled: usize,
    (header, payload): (usize, usize),
) -> Option<u16> {
    let ListLimits { emss, gso_payload } = limits;
    let is_aligned = match size {
        FpduSize::Emss => true,
        FpduSize::Max => false,
        FpduSize::Auto => markers || gso_payload <= emss,
    };
    let (room, useful_room) = match is_aligned {
        true => (segment_room(filled, emss, gso_payload), MULPDU_MIN.into()),
        false => (gso_payload.saturating_sub(filled), useful_room(gso_payload)),
    };
    let wanted = header + payload;
    let fits = ulpdu_room(room, markers);
    let ulpdu = match fits >= wanted.min(useful_room) {
        true if is_aligned || size == FpduSize::Max => Some(fits),
        true => {
            let whole = whole_trailer(filled, emss, wanted.min(fits));
            (whole == wanted || whole > header).then_some(whole)
        }
        false => None,
    };
    match ulpdu {
        None if filled == 0 => Some(mulpdu(emss as u32, markers)),
        ulpdu => ulpdu.map(|ulpdu| ulpdu as u16),
    }
}

/// Returns true if a whole message fits in one FPDU after `filled` bytes of a list.
#[inline]
pub(super) fn fits(
    size: FpduSize,
    markers: bool,
    limits: ListLimits,
    filled: usize,
    message @ (header, payload): (usize, usize),
) -> bool {
    let wanted = header + payload;
    let end = filled + (LENGTH_OCTETS + wanted).next_multiple_of(4) + CRC_OCTETS;
    // Fast path: a message that ends within the first segment fits under any rule. Most small messages do.
    if !markers && end <= limits.emss && wanted <= usize::from(MULPDU_MAX) {
        return true;
    }
    ulpdu_max(size, markers, limits, filled, message)
        .is_some_and(|mulpdu| wanted <= usize::from(mulpdu))
}

/// Returns the largest ULPDU of up to `ulpdu` octets after `filled` bytes of a list, with pad and CRC in one segment.
fn whole_trailer(filled: usize, emss: usize, ulpdu: usize) -> usize {
    let padded = (LENGTH_OCTETS + ulpdu).next_multiple_of(4);
    let trailer = padded - LENGTH_OCTETS - ulpdu + CRC_OCTETS;
    let end = filled + padded + CRC_OCTETS;
    // Octets after the boundary of the last two segments.
    match end % emss {
        beyond if (1..trailer).contains(&beyond) => {
            let room = (end - beyond - filled) & !3;
            room.saturating_sub(LENGTH_OCTETS + CRC_OCTETS)
        }
        _ => ulpdu,
    }
}

/// Returns the largest ULPDU whose FPDU fits in `room` bytes; 0 if none fits (RFC 5044 §4.5, without its minimum).
fn ulpdu_room(room: usize, markers: bool) -> usize {
    let markers = if markers { 4 * (room / 512 + 1) } else { 0 };
    room.saturating_sub(6 + markers + room % 4).min(MULPDU_MAX.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ddp::TAGGED_OCTETS;

    const EMSS: usize = 1448;
    const LIMITS: ListLimits = ListLimits { emss: EMSS, gso_payload: 45 * EMSS };

    /// Octets of the FPDU for a ULPDU.
    fn fpdu(ulpdu: usize) -> usize {
        (LENGTH_OCTETS + ulpdu).next_multiple_of(4) + CRC_OCTETS
    }

    fn ulpdu(size: FpduSize, filled: usize, payload: usize) -> Option<usize> {
        ulpdu_max(size, false, LIMITS, filled, (TAGGED_OCTETS, payload)).map(usize::from)
    }

    // FPDUs of `Auto` have pad and CRC in one segment, for any fill of the list and any segment length.
    #[test]
    fn trailers_are_not_split() {
        let mut cut = 0;
        for emss in [1445, 1446, 1447, EMSS] {
            let limits = ListLimits { emss, gso_payload: 44 * emss };
            for filled in (0..limits.gso_payload).step_by(4) {
                for payload in [0, 1, 2, 3, 64, 65, 1400, 1501, 70_000] {
                    let fits =
                        |size| ulpdu_max(size, false, limits, filled, (TAGGED_OCTETS, payload));
                    let Some(auto) = fits(FpduSize::Auto) else {
                        assert!(fits(FpduSize::Max).is_none() || payload < 8, "{filled} {payload}");
                        continue;
                    };
                    let wanted = TAGGED_OCTETS + payload;
                    let ulpdu = wanted.min(auto.into());
                    assert!(ulpdu == wanted || ulpdu > TAGGED_OCTETS);
                    let end = filled + fpdu(ulpdu);
                    let trailer = fpdu(ulpdu) - LENGTH_OCTETS - ulpdu;
                    assert_eq!((end - trailer) / emss, (end - 1) / emss, "{filled} {payload}");
                    assert!(end <= limits.gso_payload);
                    cut += usize::from(ulpdu < wanted && payload < 1000);
                }
            }
        }
        assert!(cut > 100, "the rule applied {cut} times");
    }

    // The fast path for messages that end within the first segment agrees with the rules, including the boundary.
    #[test]
    fn message_in_first_segment_fits() {
        let mut fast = 0;
        for emss in (100..300).chain([1445, 1446, 1447, EMSS]) {
            for gso_payload in [emss, 2 * emss, 44 * emss] {
                let limits = ListLimits { emss, gso_payload };
                for filled in (0..emss + 8).step_by(4) {
                    for payload in (0..12).chain([64, 65, 120, 121, 122, 123, 1000]) {
                        for size in [FpduSize::Emss, FpduSize::Max, FpduSize::Auto] {
                            let message = (TAGGED_OCTETS, payload);
                            let ulpdu = ulpdu_max(size, false, limits, filled, message);
                            let by_rules =
                                ulpdu.is_some_and(|max| TAGGED_OCTETS + payload <= max.into());
                            let found = fits(size, false, limits, filled, message);
                            assert_eq!(found, by_rules, "{size:?} {limits:?} {filled} {payload}");
                            let end = filled + fpdu(TAGGED_OCTETS + payload);
                            fast += usize::from(end <= emss);
                        }
                    }
                }
            }
        }
        assert!(fast > 10_000, "{fast} messages took the fast path");
    }

    // One FPDU fills a GSO packet, and a short remainder of a list is not used.
    #[test]
    fn one_fpdu_fills_a_gso_packet() {
        for size in [FpduSize::Auto, FpduSize::Max] {
            assert_eq!(ulpdu(size, 0, 1 << 20), Some(MULPDU_MAX.into()));
            assert_eq!(ulpdu(size, fpdu(MULPDU_MAX.into()), 1 << 20), None);
            // The end of a message and the start of the next share a GSO packet.
            let tail = fpdu(TAGGED_OCTETS + 782);
            assert_eq!(tail + fpdu(ulpdu(size, tail, 1 << 20).unwrap()), 45 * EMSS);
        }
    }

    // A list of several GSO packets ends with a full segment, for any end of the message.
    #[test]
    fn long_lists_are_filled() {
        let limits = ListLimits { emss: EMSS, gso_payload: 4 * 45 * EMSS };
        for size in [FpduSize::Auto, FpduSize::Max] {
            for first in (64..limits.gso_payload - 256).step_by(4) {
                let mut filled = first;
                while let Some(ulpdu) =
                    ulpdu_max(size, false, limits, filled, (TAGGED_OCTETS, 1 << 20))
                {
                    filled += fpdu(ulpdu.into());
                }
                let short = limits.gso_payload - filled;
                assert!(short < usize::from(MULPDU_MIN) + LENGTH_OCTETS + CRC_OCTETS, "{short}");
            }
        }
    }

    // Without GSO packets, and with markers, `Auto` equals `Emss`.
    #[test]
    fn auto_without_gso_is_aligned() {
        let plain = ListLimits { emss: EMSS, gso_payload: EMSS };
        for filled in (0..EMSS).step_by(4) {
            for (limits, markers) in [(plain, false), (LIMITS, true)] {
                let [auto, emss] = [FpduSize::Auto, FpduSize::Emss]
                    .map(|size| ulpdu_max(size, markers, limits, filled, (TAGGED_OCTETS, 5000)));
                assert_eq!(auto, emss, "{filled}");
            }
        }
    }

    // An FPDU that cannot be divided is deferred to the next list if its trailer would be split.
    #[test]
    fn indivisible_fpdu_is_deferred() {
        let limits = ListLimits { emss: 1446, gso_payload: 44 * 1446 };
        let filled = 1448 - fpdu(46);
        let read = |size| ulpdu_max(size, false, limits, filled, (46, 0));
        assert_eq!(read(FpduSize::Auto), None);
        assert!(read(FpduSize::Max).is_some());
    }
}
