//! Read Responses to the peer (RFC 5040 §5.2.2).

use crate::{
    case::Cases,
    consumer::{
        Consumer::{Flue, Rping},
        READ_SIZE,
    },
    expect::Expect,
    link::Link,
    wire::{READ_RESPONSE, WRITE, tagged},
};

const RULES: &str = "RDM-5.2.2-5 DDP-7.1-2";

/// Read Response with an offset from the sink.
#[derive(Clone, Copy)]
struct Part {
    octets: usize,
    stag: u32,
    at: i64,
    is_last: bool,
}

const ALL: Part = Part { octets: READ_SIZE, stag: 0, at: 0, is_last: true };

impl Part {
    fn encode(self, link: &Link) -> Vec<u8> {
        let (stag, to) = link.sink;
        let to = to.wrapping_add_signed(self.at);
        let mut header =
            crate::wire::Header::tagged(READ_RESPONSE, stag.wrapping_add(self.stag), to);
        header.is_last = self.is_last;
        header.with(&vec![b'r'; self.octets])
    }
}

/// The peer reads, and gets these parts of a response, the last of which it refuses.
fn refused(cases: &mut Cases, name: &str, code: u8, parts: &'static [Part]) {
    let case = cases.add(format!("rdmap-response-{name}"), RULES, Rping).step(Link::ask_read);
    for part in parts {
        case.post(|link| part.encode(link));
    }
    // RFC 5040 has no number for a response that differs from its request.
    case.expect(Expect::chosen(1, 1, code));
}

pub(super) fn add(cases: &mut Cases) {
    let octets = [b'r'; READ_SIZE];
    let case = cases.add("rdmap-response", "RDM-5.2.2-4 RDM-5.5-7 RDM-5.2-1", Rping);
    case.step(Link::ask_read).post(|link| ALL.encode(link));
    case.step(move |link| link.answered(&octets));
    let rules = "RDM-5.2.2-1 DDP-5.4-1 DDP-4.1-1";
    let case = cases.add("rdmap-response-in-pieces", rules, Rping).step(Link::ask_read);
    const FIRST: usize = READ_SIZE / 2 + 3;
    case.post(|link| Part { octets: FIRST, is_last: false, ..ALL }.encode(link));
    case.post(|link| Part { octets: READ_SIZE - FIRST, at: FIRST as i64, ..ALL }.encode(link));
    case.step(move |link| link.answered(&octets));
    let case = cases.add("rdmap-response-unasked", RULES, Rping);
    case.post(|link| {
        let (stag, to) = link.at(0, 0);
        tagged(READ_RESPONSE, stag, to, b"data")
    });
    case.expect(Expect::chosen(0, 2, 6));
    let case = cases.add("rdmap-response-twice", RULES, Rping).step(Link::ask_read);
    case.post(|link| ALL.encode(link)).step(move |link| link.answered(&octets));
    case.post(|link| ALL.encode(link)).expect(Expect::chosen(0, 2, 6));

    refused(cases, "to-other-stag", 0, &[Part { stag: 1, ..ALL }]);
    let case = cases.add("rdmap-response-to-registered-stag", RULES, Flue).step(Link::ask_read);
    case.post(|link| {
        let (stag, to) = link.at(0, 0);
        tagged(READ_RESPONSE, stag, to, &[b'r'; READ_SIZE])
    });
    case.expect(Expect::chosen(1, 1, 0));
    refused(cases, "below", 1, &[Part { at: -1, ..ALL }]);
    refused(cases, "above", 1, &[Part { at: 1, ..ALL }]);
    refused(cases, "too-long", 1, &[Part { octets: READ_SIZE + 1, ..ALL }]);
    refused(cases, "too-short", 1, &[Part { octets: READ_SIZE - 1, ..ALL }]);
    refused(cases, "empty", 1, &[Part { octets: 0, ..ALL }]);
    const SHORT: Part = Part { octets: READ_SIZE - 1, is_last: false, ..ALL };
    const BEHIND: Part = Part { octets: 2, at: READ_SIZE as i64 - 1, is_last: false, ..ALL };
    refused(cases, "too-long-in-pieces", 1, &[SHORT, BEHIND]);
    const TEN: Part = Part { octets: 10, is_last: false, ..ALL };
    refused(cases, "gap", 1, &[TEN, Part { at: 11, ..TEN }]);

    let case = cases.add("rdmap-response-cut-by-fin", "MPA-7.2-1 RDM-5.5-7", Rping);
    case.step(Link::ask_read).post(|link| TEN.encode(link)).fin();
    case.expect(Expect::chosen(2, 0, 1).bare()).reason(0x22001);
    let case = cases.add("rdmap-write-into-read-sink", "RDM-8.1.1-3 SEC-6.2.1-1", Flue);
    case.step(Link::ask_read).post(|link| tagged(WRITE, link.sink.0, link.sink.1, b"data"));
    case.terminates(1, 1, 0);
}
