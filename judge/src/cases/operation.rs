//! RDMAP: control octet, Read Requests, invalidation, messages of the peer (RFC 5040 §4, §5, §7).

use std::time::Instant;

use super::tagged::{fast_write, invalidate, register};
use crate::{
    case::{Case, Cases, Start, put_all},
    consumer::{
        Consumer::{Flue, Rping},
        PAGE, READ_SIZE, TARGET, pattern,
    },
    expect::Expect,
    finding::{Step, ensure},
    link::Link,
    wire::{
        Header, READ_RESPONSE, Read, SEND_EVENT, SEND_EVENT_INVALIDATE, SEND_INVALIDATE, WRITE,
        fpdu, rtr, tagged,
    },
};

/// The control octet.
fn control(cases: &mut Cases) {
    let rules = "RDM-4.1-4 RDM-7.2-1";
    for version in [0, 2, 3] {
        let case = cases.add(format!("rdmap-version-{version}"), rules, Rping);
        case.post(move |link| link.command_with(|header| header.rv = version));
        case.terminates(0, 2, 5);
        let case = cases.add(format!("rdmap-version-{version}-tagged"), rules, Rping);
        case.post(move |link| link.write_with(0, 0, b"data", |header| header.rv = version));
        case.terminates(0, 2, 5);
    }
    let case = cases.add("rdmap-reserved-bits", "RDM-4.1-4", Rping);
    case.step(|link| link.ping_with(|header| header.rsv = 3)).receives("SUCCESS", None);
    for opcode in 12..=15 {
        let case = cases.add(format!("rdmap-opcode-{opcode:x}"), "RDM-7.2-1 RDM-4.1-3", Rping);
        case.post(move |link| link.command_with(|header| header.op = opcode));
        case.terminates(0, 2, 6);
    }
    let rules = "RDM-4.1-3 RDM-7.2-1";
    for opcode in [1].into_iter().chain(3..=15) {
        let case = cases.add(format!("rdmap-opcode-{opcode:x}-tagged"), rules, Rping);
        case.post(move |link| link.write_with(0, 0, b"data", |header| header.op = opcode));
        case.terminates(0, 2, 6);
    }
    for opcode in [WRITE, READ_RESPONSE] {
        let case = cases.add(format!("rdmap-opcode-{opcode:x}-untagged"), rules, Rping);
        case.post(move |link| link.command_with(|header| header.op = opcode));
        case.terminates(0, 2, 6);
    }
    let case = cases.add("rdmap-solicited", "RDM-4.1-3", Rping);
    case.step(|link| link.ping_with(|header| header.op = SEND_EVENT)).receives("SUCCESS", None);
}

/// A changed Read Request of 64 octets.
fn read<'a>(
    cases: &'a mut Cases,
    name: &str,
    rules: &'static str,
    change: impl Fn(&mut Read) + Send + Sync + 'static,
) -> &'a mut Case {
    let case = cases.add(format!("rdmap-read-{name}"), rules, Rping);
    case.post(move |link| link.read_with(0, 0, 64, &change))
}

/// A Read Request whose source is refused.
fn protected<'a>(
    cases: &'a mut Cases,
    name: &str,
    rules: &'static str,
    code: u8,
    (page, offset): (usize, i64),
    change: impl Fn(&mut Read) + Send + Sync + 'static,
) -> &'a mut Case {
    let case = cases.add(format!("rdmap-read-{name}"), rules, Flue);
    case.post(move |link| link.read_with(page, offset, 64, &change));
    case.expect(Expect::read_terminate(code))
}

/// Invalid Read Requests.
fn invalid_reads(cases: &mut Cases) {
    let cut = "RDM-4.4-1 RDM-7.2-1";
    read(cases, "request-cut", cut, |read| read.cut = 27).terminates_bare(2, 0, 3);
    read(cases, "request-without-header", cut, |read| read.cut = 0).terminates_bare(2, 0, 3);
    let long = Expect::chosen(1, 2, 5);
    read(cases, "request-long", "RDM-4.4-1 DDP-7.1-1", |read| read.extra = b"x").expect(long);
    let rules = "RDM-5.2.1-1 DDP-7.1-1";
    read(cases, "request-not-last", rules, |read| read.header.is_last = false).expect(long);
    let rules = "DDP-4.3-2 RDM-5.2.1-2";
    read(cases, "request-msn", rules, |read| read.header.msn = 2).terminates(1, 2, 3);
    read(cases, "request-offset", "DDP-7.1-1", |read| read.header.mo = 28).terminates(1, 2, 4);
    for queue in [0, 2, 7] {
        let name = format!("request-queue-{queue}");
        let rules = "RDM-5.2.1-1 RDM-4.1-3";
        read(cases, &name, rules, move |read| read.header.qn = queue).terminates(1, 2, 1);
    }
    const SOURCE: &str = "RDM-5.2.1-5 RDM-7.2-3 RDM-7.1-4";
    protected(cases, "unknown-stag", SOURCE, 0, (0, 0), |read| read.stag = 0xDEAD_BEEF).needs =
        Rping;
    let rules = "RDM-5.2.1-5 RDM-7.2-3 RDM-7.1-4 RDM-8.1.1-4";
    protected(cases, "dead-stag", rules, 0, (4, 0), |_| {});
    let rules = "RDM-5.2.1-5 RDM-7.2-3 RDM-7.1-4 RDM-8.1.1-1 SEC-6.1.1-2";
    protected(cases, "foreign-stag", rules, 3, (5, 0), |_| {});
    let rules = "RDM-5.2.1-5 RDM-7.2-3 RDM-7.1-4 SEC-6.3.5-1 RDM-8.1.1-3";
    protected(cases, "write-only", rules, 2, (2, 0), |_| {});
    let rules = "RDM-5.2.1-5 RDM-7.2-3 RDM-7.1-4 RDM-8.1.1-3";
    protected(cases, "local", rules, 2, (3, 0), |_| {});
    let rules = "RDM-5.2.1-5 RDM-7.2-3 RDM-7.1-4 SEC-6.2.1-1";
    protected(cases, "below", rules, 1, (1, -1), |_| {});
    let rules = "RDM-5.2.1-5 RDM-7.2-3 RDM-7.1-4 SEC-6.2.1-1 RDM-5.2.1-3";
    protected(cases, "above", rules, 1, (1, PAGE as i64 - 63), |_| {});
    let rules = "RDM-5.2.1-5 RDM-7.2-3 RDM-7.1-4 RDM-8.1.1-2";
    protected(cases, "of-4-gib", rules, 1, (1, 0), |read| read.size = u32::MAX);
    protected(cases, "wrap", SOURCE, 4, (1, 0), |read| read.to = u64::MAX - 7);
    let rules = "RDM-8.1.1-4 SEC-6.2.2-2";
    let case = cases.add("rdmap-read-behind-deregistration", rules, Flue);
    case.ask(b"D\x01").post(|link| link.read(1, 0, 64)).expect(Expect::read_terminate(0));
    let rules = "RDM-6.1-3 RDM-8.1.1-9 SEC-6.4.3.3-1";
    let case = cases.add("rdmap-more-reads-than-agreed", rules, Flue);
    case.step(|link| {
        // One Read more than negotiated, in one segment.
        let requests: Vec<_> = (0..5).map(|_| link.read(1, 0, PAGE as u32)).collect();
        put_all(link, &requests);
        link.offender.clone_from(&requests[4]);
        Ok(())
    });
    case.expect(Expect::chosen(0, 2, 7).after(READ_RESPONSE));
}

/// Receives the complete response to the oldest read.
pub(super) fn response(link: &mut Link, (stag, to): (u32, u64), octets: &[u8]) -> Step {
    let mut found = Vec::new();
    loop {
        let segment = link.segment()?;
        let expected = (stag, to.wrapping_add(found.len() as u64));
        let is_next = (segment.header.stag, segment.header.to) == expected;
        ensure(segment.is(READ_RESPONSE, true) && is_next, || {
            let (stag, to) = expected;
            format!("{segment}: expected a Read Response to STag {stag:#x}, TO {to:#x}")
        })?;
        found.extend_from_slice(&segment.data);
        if segment.header.is_last {
            break;
        }
    }
    ensure(found == octets, || "the octets of the Read Response differ from the memory".into())
}

/// Valid Read Requests.
fn valid_reads(cases: &mut Cases) {
    let rules = "RDM-4.4-2 RDM-5.2-1 RDM-5.2.1-4 RDM-5.2.2-1 DDP-5.2-5";
    cases.add("rdmap-reads", rules, Flue).step(|link| {
        for size in [1, 63, 64, 1500, PAGE] {
            let sink = (0xAB00_0000 + size as u32, u64::MAX - 2 * PAGE as u64);
            let from = PAGE - size;
            let read = link.read_with(1, from as i64, size as u32, |read| read.sink = sink);
            link.post(read);
            response(link, sink, &pattern(1)[from..])?;
        }
        Ok(())
    });
    // The responder does not check the sink: its offsets wrap modulo 2^64.
    cases.add("rdmap-read-sink-wraps", "RDM-4.4-2 DDP-5.2-5", Flue).step(|link| {
        let sink = (8, u64::MAX - 99);
        let read = link.read_with(1, 0, PAGE as u32, |read| read.sink = sink);
        link.post(read);
        response(link, sink, &pattern(1))
    });
    let rules = "RDM-5.2.1-2 RDM-5.2.2-3 RDM-5.5-8 RDM-5.2.2-2";
    cases.add("rdmap-reads-in-order", rules, Flue).step(|link| {
        let sink = |at: u32| (at + 1, 0x1000 * u64::from(at));
        let one = |link: &mut Link, at: u32| {
            link.read_with(1, at.into(), 100 + at, |read| read.sink = sink(at))
        };
        let requests: Vec<_> = (0..4).map(|at| one(link, at)).collect();
        put_all(link, &requests);
        (0..4_usize)
            .try_for_each(|at| response(link, sink(at as u32), &pattern(1)[at..100 + 2 * at]))
    });
    cases.add("rdmap-empty-reads", "RDM-5.2.1-6 RDM-5.2.1-7", Rping).step(|link| {
        let foreign = link.at(5, 0);
        for (stag, to) in [(0, 0), (0xDEAD_BEEF, u64::MAX), foreign] {
            let read = link.read_with(0, 0, 0, |read| {
                (read.stag, read.to, read.sink) = (stag, to, (3, 4));
            });
            link.post(read);
            response(link, (3, 4), b"")?;
        }
        Ok(())
    });
    let case = cases.add("rdmap-read-sees-the-write", "RDM-5.5-3", Flue);
    case.step(|link| {
        let write = link.write(0, 8, b"new!");
        let read = link.read_with(0, 0, 16, |read| read.sink = (9, 9));
        put_all(link, [&write, &read]);
        let page = pattern(0);
        response(link, (9, 9), &[&page[..8], b"new!", &page[12..16]].concat())
    });
    case.changes(0, 8, 4);
    let case = cases.add("rdmap-send-overtakes-responses", "RDM-5.5-9", Flue);
    case.step(send_overtakes_responses).receive_buffer(2048).receives("SUCCESS", Some(1));
}

/// A Send completes at the peer while responses to earlier reads are blocked.
fn send_overtakes_responses(link: &mut Link) -> Step {
    let mut all: Vec<_> =
        (0..4).map(|at| link.read_with(1, 0, PAGE as u32, |read| read.sink = (at, 0))).collect();
    all.push(link.send(b"?"));
    put_all(link, &all);
    let (number, deadline) = (link.number.unwrap_or_default(), link.deadline());
    while link.witness()?.report(number)?.receives.is_empty() {
        ensure(Instant::now() < deadline, || "the Send is blocked by the responses".into())?;
    }
    (0..4).try_for_each(|at| response(link, (at, 0), &pattern(1)))
}

/// A Send with Invalidate of an STag that the peer must not invalidate.
fn not_invalidated<'a>(
    cases: &'a mut Cases,
    name: &str,
    rules: &'static str,
    numbers: (u8, u8, u8),
    stag: impl Fn(&mut Link) -> Step<u32> + Send + Sync + 'static,
) -> &'a mut Case {
    let case = cases.add(format!("rdmap-invalidate-{name}"), rules, Flue);
    case.step(move |link| {
        let word = stag(link)?;
        let send =
            link.send_with(b"?", |header| (header.op, header.word) = (SEND_INVALIDATE, word));
        link.post(send);
        Ok(())
    });
    case.terminates(numbers.0, numbers.1, numbers.2)
}

/// Invalidation.
fn invalidation(cases: &mut Cases) {
    const CANNOT: &str = "RDM-5.3-5 RDM-7.2-2";
    const SHARED: &str = "RDM-5.3-5 RDM-7.2-2 RDM-8.1.1-5";
    not_invalidated(cases, "unknown", CANNOT, (0, 2, 9), |_| Ok(0xDEAD_BEEF));
    not_invalidated(cases, "zero", CANNOT, (0, 2, 9), |_| Ok(0));
    not_invalidated(cases, "dead", CANNOT, (0, 2, 9), |link| Ok(link.at(4, 0).0));
    not_invalidated(cases, "foreign", SHARED, (0, 1, 9), |link| Ok(link.at(5, 0).0));
    let other = |link: &mut Link| Ok(link.witness()?.at(0, 0).0);
    not_invalidated(cases, "of-another-connection", SHARED, (0, 1, 9), other);
    not_invalidated(cases, "not-fast-registered", SHARED, (0, 1, 9), |link| Ok(link.at(0, 0).0));
    let case = cases.add("rdmap-invalidate-twice", CANNOT, Flue);
    case.step(register).post(invalidate).post(invalidate).terminates(0, 2, 9);
    case.receives("SUCCESS", None).receives("SUCCESS", None);
    let case = cases.add("rdmap-invalidate-with-event", "RDM-5.3-5 RDM-4.1-2", Flue);
    case.step(register).post(|link| {
        let word = link.fast.0;
        link.send_with(b"?", |header| (header.op, header.word) = (SEND_EVENT_INVALIDATE, word))
    });
    // The STag is invalidated by the complete message, not by its first segment.
    let case = cases.add("rdmap-invalidate-in-pieces", "RDM-5.3-5 DDP-5.4-1", Flue);
    case.step(register).step(|link| {
        let word = link.fast.0;
        let piece = |link: &mut Link, mo, is_last| {
            let send = link.send_with(b"?", |header| {
                *header = Header { op: SEND_INVALIDATE, word, mo, is_last, ..*header };
            });
            link.post(send);
        };
        piece(link, 0, false);
        link.post(fast_write(link, &[0; 4]));
        piece(link, 1, true);
        link.post(fast_write(link, &[0xff; 8]));
        Ok(())
    });
    case.terminates(1, 1, 0).changes(5, 0, 4);
    cases.add("rdmap-invalidate-of-ours", "RDM-4.1-1 RDM-4.1-2", Flue).step(|link| {
        link.ask(b"V\x12\x34\x56\x78")?;
        let message = link.message()?;
        ensure(message == b"V", || "no reply before the Send with Invalidate".into())?;
        let header = link.sent.as_ref().map(|segment| (segment.header.op, segment.header.word));
        let expected = Some((SEND_EVENT_INVALIDATE, 0x1234_5678));
        ensure(header == expected, || {
            "expected a Send with Solicited Event and Invalidate of the STag".into()
        })
    });
}

/// A Write of the peer.
fn write_of_peer(link: &mut Link) -> Step {
    let (stag, to) = TARGET;
    let command =
        [b"W", &stag.to_be_bytes()[..], &to.to_be_bytes(), &(PAGE as u32).to_be_bytes()].concat();
    let send = link.send(&command);
    link.put(&fpdu(&send));
    let octets = link.written(TARGET)?;
    ensure(octets == pattern(0), || "the RDMA Write has other octets than the memory".into())?;
    let reply = link.message()?;
    ensure(reply == b"W", || "no reply after the RDMA Write".into())
}

pub(super) fn add(cases: &mut Cases) {
    control(cases);
    invalid_reads(cases);
    valid_reads(cases);
    invalidation(cases);
    let rules = "RDM-5.1-1 RDM-5.1-2 RDM-5.5-4 DDP-4.2-1 DDP-5.2-5 DDP-5.3-1";
    cases.add("rdmap-write-of-ours", rules, Flue).step(write_of_peer);
    // Operations that every consumer requests: RDMA Read, Send, RDMA Write.
    let rules = "RDM-5.1-1 RDM-5.2-1 RDM-5.2.2-4 RDM-5.3-1 RDM-5.5-4 RDM-4.4-1 RDM-5.2.1-1 DDP-4.2-1 \
                 DDP-4.3-1 DDP-5.2-5 DDP-5.3-1";
    cases.add("rdmap-exchange", rules, Rping).start(Start::Reply).step(|link| {
        link.put(&fpdu(&rtr()));
        if link.peer.consumer == Flue {
            link.ask_read()?;
            let (stag, to) = link.sink;
            link.post(tagged(READ_RESPONSE, stag, to, &[b'r'; READ_SIZE]));
            link.answered(&[b'r'; READ_SIZE])?;
            return write_of_peer(link);
        }
        link.ping()?;
        link.ping()
    });
    let case = cases.add("rdmap-response-unasked-and-empty", "RDM-5.2.2-5 DDP-7.1-2", Rping);
    case.post(|_| tagged(READ_RESPONSE, 1, 0, b"")).expect(Expect::chosen(0, 2, 6));
}
