//! Atomic operations and immediate data (RFC 7306). The RFC defines no negotiation: the consumer enables them for a
//! connection.

use super::operation::response;
use crate::{
    case::{Case, Cases, put_all},
    consumer::{Consumer::Flue, pattern},
    expect::Expect,
    finding::{Step, ensure},
    link::Link,
    wire::{Header, be64, hex},
};

/// Opcodes.
const IMMEDIATE: u8 = 8;
const IMMEDIATE_EVENT: u8 = 9;
const ATOMIC_REQUEST: u8 = 10;
const ATOMIC_RESPONSE: u8 = 11;
/// Atomic operations.
const FETCH_ADD: u8 = 0;
const COMPARE_SWAP: u8 = 2;
/// Private data that enables the extensions.
const ENABLE: &[u8] = b"A";
/// Identifier of a request.
const IDENTIFIER: u32 = 0x1D;

/// Operands of an operation, at an offset in page 0.
#[derive(Clone, Copy)]
struct Atomic {
    operation: u8,
    offset: i64,
    /// Data and mask of the addition or swap, then of the comparison.
    operands: [u64; 4],
}

/// Adds 1.
const ADD: Atomic = Atomic { operation: FETCH_ADD, offset: 8, operands: [1, 0, 0, u64::MAX] };

impl Atomic {
    fn encode(self, link: &mut Link, stag_change: u32) -> Vec<u8> {
        let (stag, to) = link.at(0, self.offset);
        let header = Header::untagged(ATOMIC_REQUEST, 1, link.read_msn);
        link.read_msn += 1;
        let mut data = [
            &u32::from(self.operation).to_be_bytes()[..],
            &IDENTIFIER.to_be_bytes(),
            &(stag ^ stag_change).to_be_bytes(),
            &to.to_be_bytes(),
        ]
        .concat();
        self.operands.iter().for_each(|operand| data.extend(operand.to_be_bytes()));
        header.with(&data)
    }
}

/// Returns the word of page 0 at an offset, in the byte order of the peer's memory. Both ends are little-endian.
fn word(offset: usize) -> u64 {
    let page = pattern(0);
    page[offset..].first_chunk().map_or(0, |octets| u64::from_le_bytes(*octets))
}

/// Receives the response with this number; `original`: the value before the operation.
fn answered(link: &mut Link, msn: u32, original: u64) -> Step {
    let segment = link.segment()?;
    let found = (segment.header.qn, segment.header.msn, segment.header.mo, segment.header.is_last);
    ensure(segment.is(ATOMIC_RESPONSE, false) && found == (3, msn, 0, true), || {
        format!("{segment}: expected Atomic Response {msn} on QN 3")
    })?;
    let expected = [&IDENTIFIER.to_be_bytes()[..], &original.to_be_bytes()].concat();
    ensure(segment.data == expected, || {
        format!("Atomic Response {}: expected {}", hex(&segment.data), hex(&expected))
    })
}

fn extended<'a>(cases: &'a mut Cases, name: &str, rules: &'static str) -> &'a mut Case {
    cases.add(format!("extension-{name}"), rules, Flue).private(ENABLE)
}

/// Immediate data.
fn immediate(cases: &mut Cases) {
    for (name, op) in [("immediate", IMMEDIATE), ("immediate-with-event", IMMEDIATE_EVENT)] {
        let case = extended(cases, name, "EXT-6.3-1 EXT-4.1-1");
        case.post(move |link| link.send_with(b"\0\x01\x02\x03\x04\x05\x06\x07", |it| it.op = op));
        case.receives("SUCCESS", Some(0));
    }
    let case = extended(cases, "immediate-within-a-send", "EXT-6.3-1");
    case.post(|link| link.send_with(b"E", |header| header.is_last = false));
    case.post(|link| link.send_with(&[0; 8], |header| (header.op, header.mo) = (IMMEDIATE, 1)));
    case.expect(Expect::chosen(0, 2, 6));
    let case = extended(cases, "immediate-of-7-octets", "EXT-6.3-2");
    case.post(|link| link.send_with(&[0; 7], |header| header.op = IMMEDIATE));
    case.expect(Expect::chosen(2, 0, 3).bare());
    let case = extended(cases, "immediate-of-9-octets", "EXT-6.3-2");
    case.post(|link| link.send_with(&[0; 9], |header| header.op = IMMEDIATE));
    case.expect(Expect::chosen(1, 2, 5));
}

/// Valid operations.
fn valid(cases: &mut Cases) {
    let rules = "EXT-5-2 EXT-5-3 EXT-5.2-1 EXT-5.2.1-1 EXT-5.2.1-3 EXT-4.1-1";
    let case = extended(cases, "fetch-add", rules);
    case.post(|link| ADD.encode(link, 0)).step(|link| answered(link, 1, word(8)));
    case.changes(0, 8, 1);
    // A mask cuts the carry: the lowest octet is a field of its own.
    let case = extended(cases, "fetch-add-of-fields", "EXT-5-2");
    case.step(|link| {
        let original = word(16);
        let addend = 0x100 - (original & 0xff) + 1;
        let operands = [addend & 0xff, 0x80, 0, u64::MAX];
        let request = Atomic { offset: 16, operands, ..ADD }.encode(link, 0);
        link.post(request);
        answered(link, 1, original)?;
        let request = Atomic { offset: 16, operands: [0, 0, 0, u64::MAX], ..ADD }.encode(link, 0);
        link.post(request);
        answered(link, 2, original & !0xff | 1)
    });
    case.changes(0, 16, 1);
    let case = extended(cases, "compare-swap", "EXT-5.1.2-1 EXT-5-2 EXT-5.2.1-3");
    case.step(|link| {
        let (original, new) = (word(8), !word(8));
        let operands = [new, u64::MAX, original, u64::MAX];
        let swap = Atomic { operation: COMPARE_SWAP, offset: 8, operands };
        let request = swap.encode(link, 0);
        link.post(request);
        answered(link, 1, original)?;
        // The comparison fails now.
        let request = swap.encode(link, 0);
        link.post(request);
        answered(link, 2, new)
    });
    case.changes(0, 8, 8);
    let rules = "EXT-5.2.2-2 EXT-5.2.2-1 EXT-5.2.1-3";
    let case = extended(cases, "atomics-and-reads-in-order", rules);
    case.step(|link| {
        let sink = (7, 0x1000);
        let first = ADD.encode(link, 0);
        let read = link.read_with(0, 8, 8, |read| read.sink = sink);
        let second = ADD.encode(link, 0);
        put_all(link, [&first, &read, &second]);
        answered(link, 1, word(8))?;
        let once = (word(8) + 1).to_le_bytes();
        response(link, sink, &once)?;
        answered(link, 2, be64(&(word(8) + 1).to_be_bytes(), 0))
    });
    case.changes(0, 8, 1);
}

/// Refused operations.
fn refused(cases: &mut Cases) {
    for offset in [1, 4] {
        let name = format!("unaligned-by-{offset}");
        let case = extended(cases, &name, "EXT-5.1-1 EXT-8.2-1");
        case.post(move |link| Atomic { offset, ..ADD }.encode(link, 0)).terminates(0, 2, 7);
    }
    let case = extended(cases, "unknown-operation", "EXT-5.2.1-2");
    case.post(|link| Atomic { operation: 1, ..ADD }.encode(link, 0));
    case.expect(Expect::chosen(0, 2, 6));
    let case = extended(cases, "atomic-unknown-stag", "EXT-8.1-1");
    case.post(|link| ADD.encode(link, 1)).terminates(0, 1, 0);
    // Without the consumer's permission the opcodes are unexpected.
    for op in [IMMEDIATE, IMMEDIATE_EVENT, ATOMIC_REQUEST, ATOMIC_RESPONSE] {
        let case = cases.add(format!("extension-opcode-{op:x}-disabled"), "RDM-7.2-1", Flue);
        case.post(move |link| link.send_with(&[0; 8], |header| header.op = op));
        case.terminates(0, 2, 6);
    }
}

pub(super) fn add(cases: &mut Cases) {
    immediate(cases);
    valid(cases);
    refused(cases);
}
