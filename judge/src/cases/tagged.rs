//! Tagged segments and memory (RFC 5041 §4.2, §5, §7.1; RFC 5040 §8.1.1).

use crate::{
    case::{Case, Cases},
    consumer::{
        Consumer::{Flue, Rping},
        PAGE,
    },
    finding::Step,
    link::Link,
    wire::{Header, SEND_INVALIDATE, WRITE, be32, be64, fpdu, tagged},
};

const STAG: &str = "DDP-4.2-2 DDP-7.1-2 DDP-8.3-2";
const BOUNDS: &str = "DDP-7.1-2 RDM-8.1.1-2 SEC-6.2.1-1";
const REVOKED: &str = "RDM-8.1.1-4 SEC-6.2.2-2 DDP-8.3-1";
const LAST: i64 = PAGE as i64;

/// A refused RDMA Write.
fn refused<'a>(
    cases: &'a mut Cases,
    name: &str,
    rules: &'static str,
    code: u8,
    make: impl Fn(&mut Link) -> Vec<u8> + Send + Sync + 'static,
) -> &'a mut Case {
    cases.add(format!("tagged-{name}"), rules, Flue).post(make).terminates(1, 1, code)
}

/// A refused RDMA Write with a changed header.
fn changed<'a>(
    cases: &'a mut Cases,
    name: &str,
    rules: &'static str,
    code: u8,
    change: impl Fn(&mut Header) + Send + Sync + 'static,
) -> &'a mut Case {
    refused(cases, name, rules, code, move |link| link.write_with(0, 0, b"data", &change))
}

/// A valid RDMA Write.
fn valid<'a>(
    cases: &'a mut Cases,
    name: &str,
    rules: &'static str,
    make: impl Fn(&mut Link) -> Vec<u8> + Send + Sync + 'static,
) -> &'a mut Case {
    cases.add(format!("tagged-{name}"), rules, Flue).post(make)
}

/// STags.
fn stags(cases: &mut Cases) {
    for version in [0, 2, 3] {
        let name = format!("version-{version}");
        changed(cases, &name, "DDP-4.1-6 DDP-7.1-2", 4, move |header| header.dv = version).needs =
            Rping;
    }
    for stag in [0, 1, 0xDEAD_BEEF, u32::MAX] {
        let name = format!("stag-{stag:x}");
        changed(cases, &name, STAG, 0, move |header| header.stag = stag).needs = Rping;
    }
    let rules = "DDP-4.2-2 DDP-7.1-2 DDP-8.3-2 RDM-8.1.1-4";
    refused(cases, "stag-of-a-dead-registration", rules, 0, |link| link.write(4, 0, b"data"));
    let rules = "DDP-4.2-2 DDP-7.1-2 DDP-8.3-2 RDM-8.1.1-6";
    for bit in [0, 7] {
        let name = format!("stag-key-{bit}");
        changed(cases, &name, rules, 0, move |header| header.stag ^= 1 << bit);
    }
    changed(cases, "stag-index", rules, 0, |header| header.stag = header.stag.wrapping_add(256));
    let rules = "DDP-8.2-1 RDM-8.1.1-1 SEC-6.1.1-2";
    refused(cases, "stag-of-another-domain", rules, 2, |link| link.write(5, 0, b"data"));
    let rules = "DDP-8.2-1 RDM-8.1.1-1 SEC-6.1.1-1";
    let case = cases.add("tagged-stag-of-another-connection", rules, Flue);
    case.step(|link| {
        let (stag, to) = link.witness()?.at(0, 0);
        link.post(tagged(WRITE, stag, to, b"data"));
        Ok(())
    });
    case.terminates(1, 1, 2);
    let rules = "RDM-8.1.1-3 SEC-6.3.5-1";
    refused(cases, "no-right-read-only", rules, 0, |link| link.write(1, 0, b"data"));
    refused(cases, "no-right-local", "RDM-8.1.1-3", 0, |link| link.write(3, 0, b"data"));
    cases.add("tagged-guesses", "RDM-8.1.1-6 SEC-6.1.1-2", Flue).step(guesses);
}

/// Bounds of a region.
fn bounds(cases: &mut Cases) {
    refused(cases, "below", BOUNDS, 1, |link| link.write(0, -1, b"data"));
    refused(cases, "below-into-other-page", BOUNDS, 1, |link| link.write(2, -1, b"data"));
    refused(cases, "above", BOUNDS, 1, |link| link.write(0, LAST - 3, b"data"));
    refused(cases, "just-behind", BOUNDS, 1, |link| link.write(0, LAST, b"x"));
    changed(cases, "offset-0", BOUNDS, 1, |header| header.to = 0);
    refused(cases, "longer-than-the-page", BOUNDS, 1, |link| link.write(0, 0, &[0; PAGE + 1]));
    changed(cases, "wrap", "DDP-7.1-2", 3, |header| header.to = u64::MAX - 1);
    changed(cases, "wrap-by-one", "DDP-7.1-2", 3, |header| header.to = u64::MAX - 2);
    valid(cases, "last-octets", BOUNDS, |link| link.write(0, LAST - 4, &[0; 4])).changes(
        0,
        PAGE - 4,
        4,
    );
    let rules = "DDP-4.1-1 DDP-5.2-3 RDM-5.1-1";
    valid(cases, "whole-page", rules, |link| link.write(2, 0, &[0xff; PAGE])).changes(2, 0, 4080);
    valid(cases, "write-only-is-written", "RDM-8.1.1-3", |link| link.write(2, 8, b"\xff"))
        .changes(2, 8, 1);
    valid(cases, "reserved-bits", "DDP-4.1-5", |link| {
        link.write_with(0, 0, b"\xff", |header| header.rsvd = 15)
    })
    .changes(0, 0, 1);
    valid(cases, "empty-to-anywhere", "DDP-5.2-7 RDM-5.1-3 DDP-5.2-6", |_| {
        tagged(WRITE, 0xDEAD_BEEF, 7, b"")
    })
    .needs = Rping;
}

fn first(link: &mut Link) -> Vec<u8> {
    link.write_with(0, 0, &[0xff; 4], |header| header.is_last = false)
}

/// Messages of several segments: the first is valid and placed; the second is refused.
fn segments(cases: &mut Cases) {
    let case = cases.add("tagged-empty-then-foreign", "DDP-7.1-2", Flue);
    case.post(|link| link.write_with(5, 0, b"", |header| header.is_last = false));
    case.post(|link| link.write(5, 0, b"data")).terminates(1, 1, 2);
    let seconds: [(&str, &'static str, u8, usize, i64); 3] = [
        ("stag-changes-in-message", "DDP-4.2-1 DDP-7.1-3", 0, 2, 4),
        ("gap", "DDP-5.2-5 DDP-5.3-2", 1, 0, 5),
        ("overlap", "DDP-5.2-5 DDP-5.3-2", 1, 0, 3),
    ];
    for (name, rules, code, page, offset) in seconds {
        let case = cases.add(format!("tagged-{name}"), rules, Flue).post(first);
        case.post(move |link| link.write(page, offset, b"data"));
        // RFC 5041 has no number for these errors.
        case.expect(crate::expect::Expect::chosen(1, 1, code)).changes(0, 0, 4);
    }
    let case = cases.add("tagged-second-segment-leaves-the-page", BOUNDS, Flue);
    case.post(|link| link.write_with(0, LAST - 4, &[0; 4], |header| header.is_last = false));
    case.post(|link| link.write(0, LAST, b"x")).terminates(1, 1, 1).changes(0, PAGE - 4, 4);
    let case = cases.add("tagged-send-between-segments", "DDP-5.3-1 DDP-5.4-1", Flue);
    case.post(first).ask(b"E").post(|link| link.write(0, 4, &[0xff; 4])).changes(0, 0, 8);
}

/// Requests a fast registration of a page of the peer; keeps its STag and address.
pub(super) fn register(link: &mut Link) -> Step {
    let reply = link.ask(b"F")?;
    link.fast = (be32(&reply, 1), be64(&reply, 5));
    Ok(())
}

/// Returns a Send that invalidates the fast registration.
pub(super) fn invalidate(link: &mut Link) -> Vec<u8> {
    let word = link.fast.0;
    link.send_with(b"?", |header| (header.op, header.word) = (SEND_INVALIDATE, word))
}

/// Returns an RDMA Write to the fast registration.
pub(super) fn fast_write(link: &Link, data: &[u8]) -> Vec<u8> {
    tagged(WRITE, link.fast.0, link.fast.1, data)
}

/// Revocation.
fn revocation(cases: &mut Cases) {
    let case = cases.add("tagged-behind-deregistration", REVOKED, Flue);
    case.ask(b"D\0").post(|link| link.write(0, 0, b"data")).terminates(1, 1, 0);
    let case = cases.add("tagged-deregistration-within-message", REVOKED, Flue);
    case.post(first).ask(b"D\0").post(|link| link.write(0, 4, b"data")).terminates(1, 1, 0);
    case.changes(0, 0, 4);
    let rules = "RDM-8.1.1-4 SEC-6.2.2-2 DDP-8.3-1 RDM-5.3-5";
    let case = cases.add("tagged-behind-invalidation", rules, Flue);
    case.step(register).post(|link| fast_write(link, &[0; 4])).post(invalidate);
    case.post(|link| fast_write(link, &[0xff; 64])).terminates(1, 1, 0).changes(5, 0, 4);
    let case = cases.add("tagged-registered-again", "RDM-8.1.1-4 RDM-8.1.1-6", Flue);
    case.step(register).post(invalidate).step(|link| {
        link.stale = link.fast;
        register(link)
    });
    case.post(|link| tagged(WRITE, link.stale.0, link.stale.1, b"data")).terminates(1, 1, 0);
}

/// Random STags, and neighbors of valid STags: none grants access.
fn guesses(link: &mut Link) -> Step {
    let mut draw = oorandom::Rand32::new(link.peer.seed);
    let (known, to) = link.at(0, 0);
    let random = (0..24).map(|_| draw.rand_u32()).filter(|stag| *stag != known);
    let mut stags: Vec<u32> = random.collect();
    stags.extend((0..32).map(|bit| known ^ 1 << bit));
    let peer = std::sync::Arc::clone(&link.peer);
    for stag in stags {
        let mut other = Link::connect(&peer, None)?;
        other.establish(b"")?;
        other.offender = tagged(WRITE, stag, to, b"data");
        let octets = fpdu(&other.offender);
        other.put(&octets);
        let result = crate::expect::Expect::terminate(1, 1, 0).check(&mut other);
        link.findings.append(&mut other.findings);
        result?;
    }
    Ok(())
}

pub(super) fn add(cases: &mut Cases) {
    stags(cases);
    bounds(cases);
    segments(cases);
    revocation(cases);
}
