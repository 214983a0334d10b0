//! Expected responses of the peer. A difference is a finding against the rules that require the response: the rules of
//! the case, or those of the Terminate's form and of the close.

use crate::{
    consumer::Consumer,
    finding::{Blame, End, Step, Stop},
    link::Link,
    wire::{READ_OCTETS, Segment, TERMINATE, hex},
};

/// Rules of the Terminate that other rules cite.
const IS_SENT: &[&str] = &["RDM-6.2.1-1"];
const IS_LAST: &[&str] = &["RDM-5.4-3"];
const HEADER: &[&str] = &["RDM-5.4-1"];
const LAYOUT: &[&str] = &["RDM-4.8-1"];
const RESERVED: &[&str] = &["RDM-4.8-2"];
const LENGTH: &[&str] = &["RDM-4.8-3"];
const COPIES: &[&str] = &["RDM-4.8-4"];
const NEEDS_HEADERS: &[&str] = &["RDM-7.1-3"];
const NEEDS_READ: &[&str] = &["RDM-7.1-4"];
const GRACEFUL: &[&str] = &["RDM-6.2.1-3"];

/// Headers that a Terminate returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Headers {
    None,
    /// Length of the segment and DDP header.
    Ddp,
    /// Also the header of the Read Request.
    Read,
}

/// Expected Terminate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Terminate {
    numbers: (u8, u8, u8),
    headers: Headers,
    /// True if an RFC defines the numbers for this error.
    is_defined: bool,
    /// Opcode of segments that may precede the Terminate.
    before: Option<u8>,
}

/// Expected response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expect {
    /// The Terminate, then FIN.
    Terminate(Terminate),
    /// FIN, without octets before it. The number is the reason that the consumer reports.
    Fin(Option<u32>),
    /// RST, without octets before it; FIN is as good.
    Reset,
    /// FIN or RST, without octets before it.
    Closed,
    /// The connection works, and ends in order.
    Alive,
    /// As [`Expect::Alive`]; the consumer of rping, which needs reads, is not used.
    AliveWithoutReads,
    /// The steps have checked everything; the reason that the consumer reports.
    Gone(Option<u32>),
}

impl Expect {
    pub(crate) const fn terminate(layer: u8, kind: u8, code: u8) -> Self {
        let numbers = (layer, kind, code);
        Self::Terminate(Terminate {
            numbers,
            headers: Headers::Ddp,
            is_defined: true,
            before: None,
        })
    }

    pub(crate) const fn bare_terminate(layer: u8, kind: u8, code: u8) -> Self {
        Self::terminate(layer, kind, code).bare()
    }

    /// A Terminate for a Read Request.
    pub(crate) const fn read_terminate(code: u8) -> Self {
        let numbers = (0, 1, code);
        Self::Terminate(Terminate {
            numbers,
            headers: Headers::Read,
            is_defined: true,
            before: None,
        })
    }

    /// A Terminate whose numbers no RFC defines for the error.
    pub(crate) const fn chosen(layer: u8, kind: u8, code: u8) -> Self {
        let numbers = (layer, kind, code);
        Self::Terminate(Terminate {
            numbers,
            headers: Headers::Ddp,
            is_defined: false,
            before: None,
        })
    }

    /// The same after segments of this opcode.
    pub(crate) const fn after(self, op: u8) -> Self {
        match self {
            Self::Terminate(it) => Self::Terminate(Terminate { before: Some(op), ..it }),
            other => other,
        }
    }

    /// The same without headers.
    pub(crate) const fn bare(self) -> Self {
        match self {
            Self::Terminate(it) => Self::Terminate(Terminate { headers: Headers::None, ..it }),
            other => other,
        }
    }

    /// Reason of the end that the consumer reports; `None`: any.
    pub(crate) fn reason(self) -> Option<u32> {
        match self {
            Self::Terminate(Terminate { numbers: (layer, kind, code), .. }) => {
                Some(u32::from(layer) << 12 | u32::from(kind) << 8 | u32::from(code))
            }
            Self::Fin(reason) | Self::Gone(reason) => reason,
            Self::Alive | Self::AliveWithoutReads => Some(0),
            Self::Reset | Self::Closed => None,
        }
    }

    pub(crate) fn check(self, link: &mut Link) -> Step {
        match self {
            Self::Terminate(terminate) => terminate.check(link),
            Self::Fin(_) => closed(link, Some(End::Fin), Blame::Choice),
            Self::Reset => closed(link, Some(End::Reset), Blame::Choice),
            Self::Closed => closed(link, None, Blame::Choice),
            Self::Alive | Self::AliveWithoutReads => {
                let is_used = self == Self::Alive || link.peer.consumer != Consumer::Rping;
                if is_used {
                    link.ping()?;
                }
                link.fin();
                closed(link, Some(End::Fin), Blame::Choice)
            }
            Self::Gone(_) => Ok(()),
        }
    }
}

/// Checks that the peer closes without more octets; another end than expected is a finding against `blame`.
pub(crate) fn closed(link: &mut Link, expected: Option<End>, blame: Blame) -> Step {
    let (end, octets) = link.end()?;
    if !octets.is_empty() || !link.decoder.is_between() {
        return Err(Stop::case(format!("{end} after {}: expected no octets", hex(&octets))));
    }
    if let Some(expected) = expected.filter(|expected| *expected != end) {
        link.find(blame, format!("{end}: expected {expected}"));
    }
    Ok(())
}

impl Terminate {
    fn check(self, link: &mut Link) -> Step {
        let segment = loop {
            match link.segment_or_end()? {
                Err(end) => {
                    link.find(Blame::Rules(IS_SENT), format!("{end} without a Terminate"));
                    return Ok(());
                }
                Ok(segment) if Some(segment.header.op) != self.before => break segment,
                Ok(_) => {}
            }
        };
        self.check_segment(link, &segment)?;
        let ended = closed(link, Some(End::Fin), Blame::Rules(GRACEFUL));
        match ended {
            Err(Stop::Finding(finding)) => link.find(Blame::Rules(IS_LAST), finding.text),
            other => {
                other?;
                link.observed.extend(IS_LAST.iter().chain(GRACEFUL));
            }
        }
        Ok(())
    }

    fn check_segment(self, link: &mut Link, segment: &Segment) -> Step {
        if segment.header.op != TERMINATE {
            return Err(Stop::case(format!("{segment}: expected a Terminate")));
        }
        link.observed.extend(IS_SENT);
        let header = segment.header;
        let found = (header.is_tagged, header.qn, header.msn, header.mo, header.is_last);
        link.check(found == (false, 2, 1, 0, true), HEADER, || {
            format!("{segment}: expected QN 2, MSN 1, MO 0 and the last segment")
        });
        let Some(&[first, code, mut flags, reserved]) = segment.data.first_chunk() else {
            return Err(Stop::blaming(
                Blame::Rules(LAYOUT),
                format!("Terminate of {} octets: expected at least 4", segment.data.len()),
            ));
        };
        let (layer, kind, expected_code) = self.numbers;
        let expected = layer << 4 | kind;
        // An implementation whose bit fields depend on the byte order swaps the halves of each octet.
        let is_swapped = first != expected && first == kind << 4 | layer
            || layer == kind && flags & 0xe0 == 0 && flags & 7 != 0;
        link.check(!is_swapped, LAYOUT, || {
            format!(
                "Terminate {}: layer and type, or M, D and R, are in reverse order",
                hex(&segment.data)
            )
        });
        let mut numbers = first;
        if is_swapped {
            numbers = first.rotate_left(4);
            flags = flags.reverse_bits();
        }
        if (numbers, code) != (expected, expected_code) {
            let text = format!(
                "Terminate {:x}/{:x}/{code:02x}: expected {layer:x}/{kind:x}/{expected_code:02x}",
                numbers >> 4,
                numbers & 15,
            );
            link.find(if self.is_defined { self.code_rules() } else { Blame::Choice }, text);
        } else if let Blame::Rules(rules) = self.code_rules() {
            link.observed.extend(rules);
        }
        link.check(flags & 0x1f == 0 && reserved == 0, RESERVED, || {
            format!("reserved bits in {}: expected zeros", hex(&segment.data))
        });
        self.check_copies(link, flags >> 5, &segment.data[4..]);
        Ok(())
    }

    /// Rules that define the error numbers.
    const fn code_rules(self) -> Blame {
        Blame::Rules(match self.numbers {
            (2, _, 4..) => &["MPE-8-1"],
            (2, ..) => &["MPA-8-1"],
            (1, ..) => &["DDP-7.2-1"],
            _ => &["RDM-4.8-1"],
        })
    }

    /// Compares the returned headers with those of the offending segment. Bits of `flags`: R 1, D 2, M 4.
    fn check_copies(self, link: &mut Link, flags: u8, rest: &[u8]) {
        let offender = link.offender.clone();
        let ddp = if offender.first().is_some_and(|first| first & 0x80 != 0) { 14 } else { 18 };
        let (has_ddp, has_read) = (flags & 2 != 0, flags & 1 != 0);
        let (needs_ddp, needs_read) =
            (self.headers != Headers::None, self.headers == Headers::Read);
        // Error numbers of the own choice may have other headers.
        if self.is_defined && needs_ddp {
            link.check(has_ddp, NEEDS_HEADERS, || "Terminate without the DDP header".into());
        }
        if self.is_defined && needs_read {
            link.check(has_read, NEEDS_READ, || "Terminate without the Read Request".into());
        }
        if has_ddp != needs_ddp || has_read != needs_read {
            link.find(Blame::Choice, format!("flags {flags:03b} (MDR) of the headers"));
        }
        let mut expected = Vec::new();
        if has_ddp {
            let length = rest.first_chunk().map_or(0, |it| u16::from_be_bytes(*it));
            let is_valid = flags & 4 != 0;
            link.check(is_valid && usize::from(length) == offender.len(), LENGTH, || {
                format!("M {is_valid}, segment length {length}: expected {}", offender.len())
            });
            expected.extend_from_slice(&offender[..ddp.min(offender.len())]);
        }
        if has_read {
            let end = (ddp + READ_OCTETS).min(offender.len());
            expected.extend_from_slice(&offender[ddp.min(end)..end]);
        }
        let copies = rest.get(if has_ddp { 2.. } else { 0.. }).unwrap_or_default();
        link.check(copies == expected, COPIES, || {
            format!("returned headers {}: expected {}", hex(copies), hex(&expected))
        });
    }
}
