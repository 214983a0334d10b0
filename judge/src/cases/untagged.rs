//! Untagged segments (RFC 5041 §4.3, §5, §7.1).

use crate::{
    case::Cases,
    consumer::Consumer::{Flue, Rping},
    expect::Expect,
    wire::{Header, SEND, SEND_EVENT, SEND_INVALIDATE, be32, fpdu},
};

/// A Send with a changed header.
fn changed(
    cases: &mut Cases,
    name: String,
    rules: &'static str,
    code: u8,
    change: impl Fn(&mut Header) + Send + Sync + 'static,
) {
    let case = cases.add(format!("untagged-{name}"), rules, Rping);
    case.post(move |link| link.command_with(&change)).terminates(1, 2, code);
}

/// Headers that no valid Send has.
fn headers(cases: &mut Cases) {
    for version in [0, 2, 3] {
        let rules = "DDP-4.1-6 DDP-7.1-1 DDP-7.2-1";
        changed(cases, format!("version-{version}"), rules, 6, move |header| header.dv = version);
    }
    for queue in [1, 2, 3, 4, u32::MAX] {
        let rules = "DDP-7.1-1 RDM-4.1-3 RDM-7.2-1";
        changed(cases, format!("queue-{queue:x}"), rules, 1, move |header| header.qn = queue);
    }
    for number in [0, 2, 0x8000_0001, u32::MAX] {
        let name = format!("msn-{number:x}");
        changed(cases, name, "DDP-4.3-2 DDP-7.1-1", 3, move |header| header.msn = number);
        if let Some(case) = cases.0.last_mut() {
            case.receives("CANCELLED", None);
        }
    }
    let case = cases.add("untagged-msn-again", "DDP-4.3-2 DDP-5.3-4", Rping);
    case.step(|link| link.ping()).post(|link| link.command_with(|header| header.msn = 1));
    case.terminates(1, 2, 3).receives("SUCCESS", None);
    for offset in [1, u32::MAX] {
        let name = format!("offset-{offset:x}");
        changed(cases, name, "DDP-4.3-3 DDP-7.1-1", 4, move |header| header.mo = offset);
    }
}

/// A message in two segments, with a changed header of the second one. `word`: the STag to invalidate, 0 for none.
fn halves(
    cases: &mut Cases,
    name: &str,
    rules: &'static str,
    expect: Expect,
    word: u32,
    change: fn(&mut Header),
) {
    let op = if word == 0 { SEND } else { SEND_INVALIDATE };
    let case = cases.add(format!("untagged-{name}"), rules, Rping);
    case.post(move |link| {
        let command = link.command();
        link.send_with(&command[..command.len() / 2], |header| {
            *header = Header { op, word, is_last: false, ..*header };
        })
    });
    case.post(move |link| {
        let command = link.command();
        let half = command.len() / 2;
        link.send_with(&command[half..], |header| {
            *header = Header { op, word, mo: half as u32, ..*header };
            change(header);
        })
    });
    case.expect(expect);
}

/// Messages of several segments.
fn segments(cases: &mut Cases) {
    let offset = Expect::terminate(1, 2, 4);
    halves(cases, "offset-gap", "DDP-5.2-4 DDP-7.1-1", offset, 0, |header| header.mo += 1);
    halves(cases, "offset-overlap", "DDP-5.2-4 DDP-7.1-1", offset, 0, |header| header.mo -= 1);
    // No RFC has a number for these errors.
    let changed = Expect::chosen(0, 2, 6);
    halves(cases, "opcode-changes-in-message", "DDP-4.3-1", changed, 0, |header| {
        header.op = SEND_EVENT;
    });
    halves(cases, "stag-changes-in-message", "DDP-4.3-1", changed, 1, |header| header.word = 2);

    // A thousand empty segments before the last one.
    let case = cases.add("untagged-empty-segments", "DDP-5.4-1 DDP-5.3-4", Rping);
    case.step(|link| {
        let empty = fpdu(&link.send_with(b"", |header| header.is_last = false));
        link.put(&empty.repeat(1000));
        link.ping()
    });
    case.receives("SUCCESS", None);
    let rules = "DDP-4.1-1 DDP-5.2-3 DDP-5.2-4 DDP-5.4-2";
    let case = cases.add("untagged-octet-segments", rules, Rping);
    case.step(|link| {
        link.ping_by(|link, ulpdu| {
            let (header, data) = ulpdu.split_at(18);
            let msn = be32(header, 10);
            for (at, octet) in data.iter().enumerate() {
                let is_last = at + 1 == data.len();
                let header = Header { mo: at as u32, is_last, ..Header::untagged(SEND, 0, msn) };
                link.put(&fpdu(&header.with(&[*octet])));
            }
        })
    });
    case.receives("SUCCESS", None);
}

/// Receives of the peer.
fn receives(cases: &mut Cases) {
    // Both consumers post receives of less than 2 KiB.
    let case = cases.add("untagged-too-long", "RDM-5.3-2 DDP-7.1-1", Rping);
    case.post(|link| link.send(&[0; 1025])).terminates(1, 2, 5);
    case.receives("BUFFER_OVERFLOW", Some(0));
    let rules = "RDM-5.3-2 DDP-7.1-1";
    let case = cases.add("untagged-too-long-in-second-segment", rules, Flue);
    case.post(|link| link.send_with(&[0; 1024], |header| header.is_last = false));
    case.post(|link| link.send_with(b"x", |header| header.mo = 1024)).terminates(1, 2, 5);
    case.receives("BUFFER_OVERFLOW", None);
    let case = cases.add("untagged-no-receive", "DDP-7.1-1 RDM-5.3-1", Flue);
    case.private(b"N\0\x04\0\0").post(|link| link.send(b"E")).terminates(1, 2, 2);
    let case = cases.add("untagged-no-second-receive", "DDP-7.1-1 RDM-5.3-1", Flue);
    case.private(b"N\x01\x04\0\0").post(|link| link.send(b"1")).post(|link| link.send(b"2"));
    case.terminates(1, 2, 2).receives("SUCCESS", Some(1));
    let case = cases.add("untagged-empty-without-receive", "RDM-5.3-3 DDP-7.1-1", Flue);
    case.private(b"N\0\x04\0\0").post(|link| link.send(b"")).terminates(1, 2, 2);
    let case = cases.add("untagged-empty-takes-the-receive", "RDM-5.3-3 DDP-5.2-6", Flue);
    case.private(b"N\x01\0\0\0").post(|link| link.send(b"")).post(|link| link.send(b""));
    case.terminates(1, 2, 2).receives("SUCCESS", Some(0));
    let case = cases.add("untagged-one-octet-into-nothing", "RDM-5.3-2", Flue);
    case.private(b"N\x01\0\0\0").post(|link| link.send(b"x")).terminates(1, 2, 5);
    case.receives("BUFFER_OVERFLOW", None);
}

pub(super) fn add(cases: &mut Cases) {
    headers(cases);
    segments(cases);
    receives(cases);
    let case = cases.add("untagged-reserved-bits", "DDP-4.1-5", Rping);
    case.step(|link| link.ping_with(|header| header.rsvd = 15)).receives("SUCCESS", None);
    let case = cases.add("untagged-reserved-word", "RDM-4.1-2", Rping);
    case.step(|link| link.ping_with(|header| header.word = 0xDEAD_BEEF));
    case.receives("SUCCESS", None);
}
