//! The peer as responder: Requests and the Replies to them (RFC 5044 §7.1, RFC 6581).

use std::time::Duration;

use crate::{
    case::{Cases, Start},
    consumer::Consumer::{self, Flue, None as Any, Rping},
    expect::Expect,
    finding::{Blame, Step, Stop, ensure},
    link::{Link, Reply},
    wire::{
        C, ENHANCED, Enhanced, M, R, READ_RESPONSE, REPLY, REQUEST, Read, S, UNSPECIFIED, fpdu,
        frame_of, hex, rtr, tagged,
    },
};

fn request() -> Vec<u8> {
    frame_of(REQUEST, C | S, 2, &ENHANCED.encode(), None)
}

/// Not a Request: the connection is closed without a response.
fn invalid(cases: &mut Cases, name: &str, rules: &'static str, octets: Vec<u8>) {
    let case = cases.add(format!("startup-{name}"), rules, Any).start(Start::Tcp);
    case.put(move |_| octets.clone()).expect(Expect::Reset);
}

type Check = fn(&mut Link) -> Step;

/// A Request, and the Reply that a peer like flue sends.
struct Good {
    name: &'static str,
    rules: &'static str,
    flags: u8,
    revision: u8,
    word: Option<Enhanced>,
    /// Private data after the word.
    private: Vec<u8>,
    reply: (u8, u8, Option<Enhanced>),
    rtr: Vec<u8>,
    is_split: bool,
    /// Step after the RTR, and the consumer that it needs.
    after: Option<(Check, Consumer)>,
}

/// Returns flags, revision and word of a Reply as text.
fn shown((flags, revision, word): (u8, u8, Option<Enhanced>)) -> String {
    let word = word.map_or_else(|| "none".into(), |word| hex(&word.encode()));
    format!("flags {flags:#04x}, revision {revision}, word {word}")
}

impl Good {
    fn new(name: &'static str, rules: &'static str) -> Self {
        Self {
            name,
            rules,
            flags: C | S,
            revision: 2,
            word: Some(ENHANCED),
            private: Vec::new(),
            reply: (C | S, 2, Some(ENHANCED)),
            rtr: rtr(),
            is_split: false,
            after: None,
        }
    }

    fn word(name: &'static str, rules: &'static str, word: Enhanced, reply: Enhanced) -> Self {
        Self { word: Some(word), reply: (C | S, 2, Some(reply)), ..Self::new(name, rules) }
    }

    /// A Request without an enhanced word.
    fn plain(name: &'static str, rules: &'static str, flags: u8, revision: u8) -> Self {
        Self { flags, revision, word: None, reply: (C, revision, None), ..Self::new(name, rules) }
    }

    fn frame(&self) -> Vec<u8> {
        let word = self.word.map(Enhanced::encode);
        let private = [word.as_ref().map_or(&[][..], |it| it), &self.private].concat();
        frame_of(REQUEST, self.flags, self.revision, &private, None)
    }

    fn run(&self, link: &mut Link) -> Step {
        let frame = self.frame();
        match self.is_split {
            true => frame.iter().for_each(|octet| link.put(&[*octet])),
            false => link.put_request(&frame),
        }
        let reply = link.await_reply()?;
        self.check(link, &reply)?;
        let found = (reply.flags, reply.revision, reply.word);
        if link.peer.consumer == Flue && found != self.reply {
            let (found, expected) = (shown(found), shown(self.reply));
            link.find(Blame::Choice, format!("Reply with {found}: expected {expected}"));
        }
        // A responder must be silent until the first FPDU.
        let quiet = link.peer.settle.max(Duration::from_millis(20));
        let is_quiet = link.is_quiet(quiet);
        link.check(is_quiet, &["MPA-7.1.2-10"], || {
            "the responder sends before the first FPDU".into()
        });
        link.decoder.has_markers = self.flags & M != 0;
        link.put(&fpdu(&self.rtr));
        match self.after {
            Some((after, needs)) if link.peer.consumer >= needs => after(link),
            _ => Ok(()),
        }
    }

    /// Checks the rules of a Reply that do not depend on the peer's configuration.
    fn check(&self, link: &mut Link, reply: &Reply) -> Step {
        if reply.flags & R != 0 {
            let rules: Blame = match self.flags {
                flags if flags & M != 0 => Blame::Rules(&["MPA-4.3-1"]),
                _ => Blame::Case,
            };
            return Err(Stop::blaming(rules, "rejection of a valid Request"));
        }
        link.check(reply.flags & 0x0f == 0, &["MPA-7.1.1-8"], || {
            format!("reserved bits in the flags {:#04x} of the Reply: expected zeros", reply.flags)
        });
        let is_enhanced = (self.flags & S != 0 && self.revision == 2, reply.flags & S != 0);
        link.check(is_enhanced.0 == is_enhanced.1, &["MPE-10-1"], || {
            format!("S of the Reply is {}: expected {}", is_enhanced.1, is_enhanced.0)
        });
        let (Some(sent), Some(word)) = (self.word, reply.word) else { return Ok(()) };
        let needs_read = self.rtr != rtr();
        if needs_read && !word.d {
            let text = "the only offered RTR, by a Read, is not accepted";
            return Err(Stop::blaming(Blame::Rules(&["MPE-9.2-4"]), text));
        }
        let is_unspecified = sent.ird == UNSPECIFIED;
        link.check(is_unspecified || word.ord <= sent.ird, &["MPE-9.1-2"], || {
            format!("ORD {} of the Reply: the initiator's IRD is {}", word.ord, sent.ird)
        });
        link.check(word.a == sent.a, &["MPE-9.2-3"], || {
            format!("A of the Reply is {}: expected {}", word.a, sent.a)
        });
        let offers = [word.b, word.c, word.d].contains(&true);
        let rule = if sent.a { &["MPE-9.2-5"] } else { &["MPE-9.2-10"] };
        link.check(offers == sent.a, rule, || {
            format!("B {}, C {}, D {} of the Reply to A {}", word.b, word.c, word.d, sent.a)
        });
        if sent.ord == UNSPECIFIED {
            link.check(word.ird == UNSPECIFIED, &["MPE-9.1-8"], || {
                format!("IRD {:#x} in reply to an unspecified ORD: expected 0x3fff", word.ird)
            });
        }
        if is_unspecified {
            link.check(word.ord == UNSPECIFIED, &["MPE-9.1-9"], || {
                format!("ORD {:#x} in reply to an unspecified IRD: expected 0x3fff", word.ord)
            });
        }
        Ok(())
    }

    fn add(self, cases: &mut Cases) {
        let name = format!("startup-{}", self.name);
        let case = cases.add(name, self.rules, Any).start(Start::Tcp);
        if self.word.is_none_or(|word| word.ird == 0) {
            case.expect(Expect::AliveWithoutReads);
        }
        case.step(move |link| self.run(link));
    }
}

/// The response to an RTR by an empty Read.
fn empty_response(link: &mut Link) -> Step {
    let segment = link.segment()?;
    link.read_msn = 2;
    ensure(segment.ulpdu == tagged(READ_RESPONSE, 1, 0, b""), || {
        format!("{segment}: expected the empty response to the RTR")
    })
}

/// Replies of many sizes: each marker is at its position, and covered by the CRC.
fn marked(link: &mut Link) -> Step {
    for size in [1, 3, 480, 485, 488, 500, 1000] {
        let text = [b"E", &vec![0; size][..]].concat();
        let echo = link.ask(&text)?;
        ensure(echo == text, || "the echo differs from the sent data".into())?;
    }
    link.ask(b"B\0\0\x40\0")?;
    let octets = link.message()?.len();
    ensure(octets == 16_384, || format!("Send of {octets} octets: expected 16384"))?;
    let markers = link.decoder.markers;
    ensure(markers >= 30, || format!("{markers} markers: expected at least 30"))
}

/// A part of the first FPDU does not complete the Accept.
fn part_of_first_fpdu(link: &mut Link) -> Step {
    let octets = fpdu(&rtr());
    link.put(&octets[..10]);
    let number = link.number.unwrap_or_default();
    for _ in 0..5 {
        let witness = link.witness()?;
        witness.ping()?;
        let opened = witness.report(number)?.opened;
        ensure(opened.is_none(), || {
            let opened = opened.as_deref().unwrap_or("none");
            format!("status {opened} of Accept before the first FPDU")
        })?;
    }
    link.put(&octets[10..]);
    Ok(())
}

/// A Request without a response of the consumer, and octets after it.
fn before_the_reply(link: &mut Link) -> Step {
    let holds = link.witness()?.report(0)?.holds;
    link.request(b"H");
    link.report_when(0, |report| report.holds != holds)?;
    link.put(&fpdu(&rtr()));
    Ok(())
}

pub(super) fn add(cases: &mut Cases) {
    const KEY: &str = "MPA-7.1.1-2 MPA-7.1.2-3 MPA-7.1.2-11 MPA-8-3";
    invalid(cases, "first-octet-of-key", KEY, b"m".to_vec());
    invalid(cases, "last-octet-of-key", KEY, b"MPA ID Req FramE".to_vec());
    invalid(
        cases,
        "reply-to-a-responder",
        "MPA-7.1.1-2 MPA-7.1.2-3 MPA-7.1.2-11 MPA-8-3 MPA-7.1.2-13",
        frame_of(REPLY, C | S, 2, &ENHANCED.encode(), None),
    );
    invalid(cases, "http", KEY, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec());
    let tls = [&b"\x16\x03\x01\0\xc8\x01\0\0\xc4\x03\x03"[..], &[0; 64]].concat();
    invalid(cases, "tls", KEY, tls);
    for revision in [3, 255] {
        let frame = frame_of(REQUEST, C | S, revision, &ENHANCED.encode(), None);
        invalid(cases, &format!("revision-{revision}"), "MPA-7.1.1-9 MPA-7.1.2-3", frame);
    }
    for length in [513, 65_535] {
        // Complete: the peer cannot wait for more.
        let frame = frame_of(REQUEST, C | S, 2, &vec![0; usize::from(length)], Some(length));
        invalid(cases, &format!("private-data-{length}"), "MPA-7.1.1-10 MPA-7.1.2-14", frame);
    }
    let cut = frame_of(REQUEST, C | S, 2, b"\0\x04\0", None);
    invalid(cases, "enhanced-word-cut", "MPE-6-3 MPA-7.1.1-10", cut);
    let early = [request(), fpdu(&rtr())].concat();
    invalid(cases, "fpdu-behind-request", "MPA-7.1.2-10", early);
    invalid(cases, "two-requests", "MPA-7.1.2-10", request().repeat(2));

    // Truncated by a FIN at any octet.
    for octets in [0, 1, 15, 16, 17, 18, 19, 20, 23] {
        let case = cases.add(format!("startup-cut-{octets}"), "MPA-7.1.2-3 MPA-8-1", Any);
        case.start(Start::Tcp).put(move |_| request()[..octets].to_vec()).fin();
        case.expect(Expect::Closed);
    }
    // Truncated by silence: the time limit ends the connection.
    for octets in [0, 20] {
        let rules = "MPA-7.1.2-15 MPA-7.1.2-13";
        let case = cases.add(format!("startup-silence-{octets}"), rules, Any).slow();
        case.start(Start::Tcp).put(move |_| request()[..octets].to_vec()).expect(Expect::Reset);
    }
    let case = cases.add("startup-silence-behind-reply", "MPA-7.1.2-15", Any).slow();
    case.start(Start::Reply).expect(Expect::Reset).opened("IO_TIMEOUT");
    let case = cases.add("startup-part-of-first-fpdu", "MPA-7.1.2-10", Flue).start(Start::Reply);
    case.step(part_of_first_fpdu).opened("SUCCESS");
    let case = cases.add("startup-fpdu-before-reply", "MPA-7.1.2-10", Flue).start(Start::Tcp);
    case.step(before_the_reply).expect(Expect::Reset);
    valid(cases);

    let case = cases.add("startup-rejected", "MPA-7.1.2-4", Flue).start(Start::Tcp);
    case.step(|link| {
        link.request(b"R");
        let reply = link.await_reply()?;
        let is_rejection = reply.flags & R != 0 && reply.private == b"no";
        ensure(is_rejection, || {
            let private = hex(&reply.private);
            format!("flags {:#04x}, private data {private}: expected a rejection", reply.flags)
        })
    });
    case.expect(Expect::Fin(None));
    ends(cases);
}

/// Valid Requests.
fn valid(cases: &mut Cases) {
    let words = ENHANCED;
    let goods = [
        Good {
            is_split: true,
            ..Good::new("octet-by-octet", "MPA-7.1.2-2 MPA-7.1.2-10 MPA-5.1-3")
        },
        Good { flags: C | S | 0x0f, ..Good::new("reserved-bits", "MPA-7.1.1-8") },
        Good { flags: C | S | R, ..Good::new("rejection-in-request", "MPA-7.1.1-7") },
        Good { private: vec![0; 508], ..Good::new("private-data-512", "MPA-7.1.1-11 MPE-6-3") },
        Good::plain("revision-0", "MPE-10-1 MPA-7.1.1-9", C, 0),
        Good::plain("revision-1", "MPE-6-2 MPE-10-1 MPA-7.1.1-9", C, 1),
        Good {
            private: b"\0\x01\x02\x03".to_vec(),
            ..Good::plain("revision-1-with-s", "MPE-10-1 MPA-7.1.1-8", C | S, 1)
        },
        Good::plain("revision-2-plain", "MPE-10-1", C, 2),
        Good { flags: S, ..Good::new("crc-not-wanted", "MPA-7.1.1-5 MPA-4.4-3 MPA-4.4-6") },
        Good::word(
            "client-server",
            "MPE-9.2-9 MPE-9.2-10",
            Enhanced { a: false, c: false, ..words },
            Enhanced { a: false, c: false, ..words },
        ),
        Good::word(
            "client-server-with-rtr-bits",
            "MPE-9.2-10",
            Enhanced { a: false, b: true, c: true, d: true, ..words },
            Enhanced { a: false, c: false, ..words },
        ),
        Good::word("no-rtr-offered", "MPE-9.2-5 MPE-9.2-3", Enhanced { c: false, ..words }, words),
        Good::word(
            "rtr-by-send-only",
            "MPE-9.2-5 MPE-9.2-6",
            Enhanced { b: true, c: false, ..words },
            words,
        ),
        Good::word(
            "limits-unspecified",
            "MPE-9.1-8 MPE-9.1-9",
            Enhanced { ird: UNSPECIFIED, ord: UNSPECIFIED, ..words },
            Enhanced { ird: UNSPECIFIED, ord: UNSPECIFIED, ..words },
        ),
        Good::word(
            "no-reads-served",
            "MPE-9.1-2",
            Enhanced { ird: 0, ..words },
            Enhanced { ord: 0, ..words },
        ),
        Good::word(
            "one-read-served",
            "MPE-9.1-2 MPE-9-1",
            Enhanced { ird: 1, ord: 2, ..words },
            Enhanced { ord: 1, ..words },
        ),
        Good {
            rtr: Read { sink: (1, 0), ..Read::new(1, 0, 1, 0) }.encode(),
            after: Some((empty_response, Any)),
            ..Good::word(
                "rtr-by-read",
                "MPE-9.2-4 MPE-9.1-3 RDM-5.2.1-6 RDM-5.2.1-7",
                Enhanced { c: false, d: true, ..words },
                Enhanced { c: false, d: true, ..words },
            )
        },
        Good {
            flags: C | S | M,
            after: Some((marked, Flue)),
            ..Good::new(
                "markers-demanded",
                "MPA-7.1.1-4 MPA-4.3-1 MPA-4.3-2 MPA-4.3-3 MPA-4.3-6 MPA-4.3-9 MPA-7.1.2-12 MPA-4.2-1",
            )
        },
    ];
    for good in goods {
        good.add(cases);
    }
}

/// Ends during start-up.
fn ends(cases: &mut Cases) {
    let case = cases.add("startup-reset-at-once", "MPA-8-1", Flue).start(Start::Tcp);
    case.reset().expect(Expect::Gone(None));
    let case = cases.add("startup-reset-within-request", "MPA-8-1", Flue).start(Start::Tcp);
    case.put(|_| request()[..18].to_vec()).reset().expect(Expect::Gone(None));
    let case = cases.add("startup-reset-behind-request", "MPA-8-1", Flue).start(Start::Tcp);
    case.put(|_| request()).reset().expect(Expect::Gone(None));
    let case = cases.add("startup-reset-behind-reply", "MPA-8-1 RDM-7.1-1", Flue);
    case.start(Start::Reply).reset().expect(Expect::Gone(Some(0x2001)));
    case.opened("CONNECTION_ABORTED");
    let case = cases.add("startup-fin-behind-reply", "MPA-7.2-1 RDM-7.1-1", Rping);
    case.start(Start::Reply).fin().expect(Expect::Fin(Some(0x2001)));
    case.opened("CONNECTION_ABORTED");
    let rules = "MPA-7.1.2-12 MPA-7.1-1 MPA-8-1 RDM-6.1-1";
    let case = cases.add("startup-request-as-fpdu", rules, Rping).start(Start::Reply);
    case.put(|_| request()).fin().terminates_bare(2, 0, 1).opened("CONNECTION_ABORTED");
}
