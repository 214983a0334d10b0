//! Length of an FPDU that is appended to a list.

use crate::{
    mpa::{LENGTH_OCTETS, MULPDU_MAX, MULPDU_MIN, crc::CRC_OCTETS, mulpdu},
    rnic::config::FpduSize,
};

/// Bytes of the longest list that is one super-segment: a TCP segment with its headers is one IP packet.
const ONE_SUPER_SEGMENT_MAX: usize = u16::MAX as usize;

/// Limits of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) emss: usize,
    pub(super) super_segment: usize,
}

/// Room of a list that is worth another FPDU however long the list is.
const WORTHWHILE_MAX: usize = 4096;

/// Room of a list that is worth another FPDU. What a large FPDU leaves of a super-segment is not, if it is little; a
/// list of several super-segments is filled, because only what ends with a full segment shares a write with the next.
fn worthwhile(super_segment: usize) -> usize {
    match super_segment <= ONE_SUPER_SEGMENT_MAX {
        true => (super_segment / 16).clamp(MULPDU_MIN.into(), WORTHWHILE_MAX),
        false => MULPDU_MIN.into(),
    }
}

/// Bytes left in the segment that a list of `filled` bytes ends in. Several full segments share a list as
/// long as every boundary between them is one between FPDUs: the EMSS is a multiple of 4 then.
fn segment_room(filled: usize, emss: usize, super_segment: usize) -> usize {
    match filled % emss {
        0 if filled == 0 => emss,
        0 if filled + emss <= super_segment => emss,
        0 => 0,
        used => emss - used,
    }
}

/// The largest ULPDU that may follow `filled` bytes of a list, for `payload` octets of a message behind a header.
/// `None`: the message waits for the next list.
pub(super) fn ulpdu_max(
    size: FpduSize,
    markers: bool,
    limits: Limits,
    filled: usize,
    (header, payload): (usize, usize),
) -> Option<u16> {
    let Limits { emss, super_segment } = limits;
    let is_aligned = match size {
        FpduSize::Emss => true,
        FpduSize::Max => false,
        FpduSize::Auto => markers || super_segment <= emss,
    };
    let (room, worthwhile) = match is_aligned {
        true => (segment_room(filled, emss, super_segment), MULPDU_MIN.into()),
        false => (super_segment.saturating_sub(filled), worthwhile(super_segment)),
    };
    let wanted = header + payload;
    let fits = ulpdu_room(room, markers);
    let ulpdu = match fits >= wanted.min(worthwhile) {
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

/// Returns whether a whole message goes into one FPDU behind `filled` bytes of a list.
#[inline]
pub(super) fn fits(
    size: FpduSize,
    markers: bool,
    limits: Limits,
    filled: usize,
    message @ (header, payload): (usize, usize),
) -> bool {
    let wanted = header + payload;
    let end = filled + (LENGTH_OCTETS + wanted).next_multiple_of(4) + CRC_OCTETS;
    // Whatever the rules, it does where it ends within the first segment: most small messages do.
    if !markers && end <= limits.emss && wanted <= usize::from(MULPDU_MAX) {
        return true;
    }
    ulpdu_max(size, markers, limits, filled, message)
        .is_some_and(|mulpdu| wanted <= usize::from(mulpdu))
}

/// The largest ULPDU of up to `ulpdu` octets behind `filled` bytes of a list whose pad and CRC lie in one segment.
fn whole_trailer(filled: usize, emss: usize, ulpdu: usize) -> usize {
    let padded = (LENGTH_OCTETS + ulpdu).next_multiple_of(4);
    let trailer = padded - LENGTH_OCTETS - ulpdu + CRC_OCTETS;
    let end = filled + padded + CRC_OCTETS;
    // So many octets of it lie behind the boundary of the last two segments.
    match end % emss {
        beyond if (1..trailer).contains(&beyond) => {
            let room = (end - beyond - filled) & !3;
            room.saturating_sub(LENGTH_OCTETS + CRC_OCTETS)
        }
        _ => ulpdu,
    }
}

/// The largest ULPDU whose FPDU fits into `room` bytes; 0 when none does (RFC 5044 §4.5, without its minimum).
fn ulpdu_room(room: usize, markers: bool) -> usize {
    let markers = if markers { 4 * (room / 512 + 1) } else { 0 };
    room.saturating_sub(6 + markers + room % 4).min(MULPDU_MAX.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ddp::TAGGED_OCTETS;

    const EMSS: usize = 1448;
    const LIMITS: Limits = Limits { emss: EMSS, super_segment: 45 * EMSS };

    /// Octets of the FPDU of a ULPDU.
    fn fpdu(ulpdu: usize) -> usize {
        (LENGTH_OCTETS + ulpdu).next_multiple_of(4) + CRC_OCTETS
    }

    fn ulpdu(size: FpduSize, filled: usize, payload: usize) -> Option<usize> {
        ulpdu_max(size, false, LIMITS, filled, (TAGGED_OCTETS, payload)).map(usize::from)
    }

    // FPDUs of `Auto` have pad and CRC in one segment, whatever the list holds and however long segments are.
    #[test]
    fn trailers_are_not_split() {
        let mut cut = 0;
        for emss in [1445, 1446, 1447, EMSS] {
            let limits = Limits { emss, super_segment: 44 * emss };
            for filled in (0..limits.super_segment).step_by(4) {
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
                    assert!(end <= limits.super_segment);
                    cut += usize::from(ulpdu < wanted && payload < 1000);
                }
            }
        }
        assert!(cut > 100, "the rule was needed {cut} times");
    }

    // A message that ends within the first segment fits by the rules, too, its very end included.
    #[test]
    fn what_ends_in_the_first_segment_fits() {
        let mut fast = 0;
        for emss in (100..300).chain([1445, 1446, 1447, EMSS]) {
            for super_segment in [emss, 2 * emss, 44 * emss] {
                let limits = Limits { emss, super_segment };
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
        assert!(fast > 10_000, "{fast} ended there");
    }

    // A super-segment is one FPDU, and the short rest of a list is not begun with.
    #[test]
    fn one_fpdu_fills_a_super_segment() {
        for size in [FpduSize::Auto, FpduSize::Max] {
            assert_eq!(ulpdu(size, 0, 1 << 20), Some(MULPDU_MAX.into()));
            assert_eq!(ulpdu(size, fpdu(MULPDU_MAX.into()), 1 << 20), None);
            // The end of a message and the begin of the next share one.
            let tail = fpdu(TAGGED_OCTETS + 782);
            assert_eq!(tail + fpdu(ulpdu(size, tail, 1 << 20).unwrap()), 45 * EMSS);
        }
    }

    // A list of several super-segments ends with a full segment, whatever the message ends with.
    #[test]
    fn long_lists_are_filled() {
        let limits = Limits { emss: EMSS, super_segment: 4 * 45 * EMSS };
        for size in [FpduSize::Auto, FpduSize::Max] {
            for first in (64..limits.super_segment - 256).step_by(4) {
                let mut filled = first;
                while let Some(ulpdu) =
                    ulpdu_max(size, false, limits, filled, (TAGGED_OCTETS, 1 << 20))
                {
                    filled += fpdu(ulpdu.into());
                }
                let short = limits.super_segment - filled;
                assert!(short < usize::from(MULPDU_MIN) + LENGTH_OCTETS + CRC_OCTETS, "{short}");
            }
        }
    }

    // Where no super-segments flow, and with markers, `Auto` is `Emss`.
    #[test]
    fn auto_is_aligned_elsewhere() {
        let plain = Limits { emss: EMSS, super_segment: EMSS };
        for filled in (0..EMSS).step_by(4) {
            for (limits, markers) in [(plain, false), (LIMITS, true)] {
                let [auto, emss] = [FpduSize::Auto, FpduSize::Emss]
                    .map(|size| ulpdu_max(size, markers, limits, filled, (TAGGED_OCTETS, 5000)));
                assert_eq!(auto, emss, "{filled}");
            }
        }
    }

    // An FPDU that cannot be cut begins the next list where its trailer would be split.
    #[test]
    fn what_cannot_be_cut_waits() {
        let limits = Limits { emss: 1446, super_segment: 44 * 1446 };
        let filled = 1448 - fpdu(46);
        let read = |size| ulpdu_max(size, false, limits, filled, (46, 0));
        assert_eq!(read(FpduSize::Auto), None);
        assert!(read(FpduSize::Max).is_some());
    }
}
