//! The peer as initiator: its Request, and its handling of Replies (RFC 5044 §7.1.2, RFC 6581 §9).

use std::{
    net::{IpAddr, TcpListener, TcpStream},
    sync::Arc,
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    case::Cases,
    consumer::Consumer::Flue,
    expect::closed,
    finding::{Blame, End, Step, Stop, ensure},
    link::{Input, Link},
    wire::{
        C, ENHANCED, Enhanced, R, READ_REQUEST, REPLY, REQUEST, S, TERMINATE, WRITE, be32, fpdu,
        frame_of, hex, rtr,
    },
};

/// Number of a connection that the consumer has opened; `None` without a consumer that reports.
type Number = Option<u32>;

/// Request of the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    word: Option<Enhanced>,
}

impl Request {
    /// Returns the word of a Reply that accepts.
    fn word(self) -> Enhanced {
        let Some(word) = self.word else { return ENHANCED };
        let ord = ENHANCED.ord.min(word.ird);
        Enhanced { ord, a: word.a, b: false, c: word.c, d: !word.c && word.d, ..ENHANCED }
    }

    /// Returns a Reply with this word, in the form of the Request.
    fn reply(self, word: Enhanced) -> Vec<u8> {
        match self.word {
            Some(_) => frame_of(REPLY, C | S, 2, &word.encode(), None),
            None => frame_of(REPLY, C, 1, b"", None),
        }
    }
}

/// Causes the peer to connect to the judge, or waits for it, and receives its Request.
fn connect_back(link: &mut Link) -> Step<(Link, Request, Number)> {
    let peer = Arc::clone(&link.peer);
    let (stream, number) = match &peer.listener {
        Some(listener) => (accept(listener, peer.limit)?, None),
        None => dialed(link)?,
    };
    let mut other = Link::adopt(&peer, stream)?;
    let request = receive_request(&mut other)?;
    Ok((other, request, number))
}

/// Accepts a connection.
fn accept(listener: &TcpListener, limit: Duration) -> Step<TcpStream> {
    let failed = |error: std::io::Error| Stop::Skip(format!("listen: {error}"));
    let mut fds = [PollFd::new(listener, PollFlags::IN)];
    let timeout = Timespec::try_from(limit).ok();
    let count = poll(&mut fds, timeout.as_ref()).map_err(|error| failed(error.into()))?;
    if count == 0 {
        return Err(Stop::Skip(format!("no connection by the peer within {} s", limit.as_secs())));
    }
    Ok(listener.accept().map_err(failed)?.0)
}

/// Causes the consumer to connect.
fn dialed(link: &mut Link) -> Step<(TcpStream, Number)> {
    let failed = |error: std::io::Error| Stop::Skip(format!("listen: {error}"));
    let IpAddr::V4(ip) = link.local.ip().to_canonical() else {
        return Err(Stop::Skip("the consumer connects over IPv4 only".into()));
    };
    let listener = TcpListener::bind((ip, 0)).map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    let reply = link.ask(&[b"O", &ip.octets()[..], &port.to_be_bytes()].concat())?;
    let stream = accept(&listener, link.peer.limit)?;
    Ok((stream, Some(be32(&reply, 1))))
}

/// Receives the Request and checks the rules of an initiator.
fn receive_request(other: &mut Link) -> Step<Request> {
    let (mut octets, deadline) = (Vec::new(), other.deadline());
    let needed = |octets: &[u8]| {
        20 + octets.get(18..20).map_or(0, |it| usize::from(u16::from_be_bytes([it[0], it[1]])))
    };
    while octets.len() < needed(&octets) {
        match other.get(deadline)? {
            Input::Octets(more) => octets.extend(more),
            Input::End(end) => return Err(Stop::case(format!("{end} instead of a Request"))),
        }
    }
    other.packets.push_back(format!("peer: {}", hex(&octets)));
    let text = format!("Request {}", hex(&octets));
    other.check(octets[..16] == *REQUEST, &["MPA-7.1.1-1"], || text.clone());
    let flags = octets[16];
    other.check(flags & 0x0f == 0, &["MPA-7.1.1-8"], || format!("reserved bits: {text}"));
    other.check(flags & R == 0, &["MPA-7.1.1-7"], || format!("R is set: {text}"));
    other.check(octets.len() == needed(&octets), &["MPE-5-1"], || {
        format!("octets before the Reply: {text}")
    });
    let word = octets.get(20..24).and_then(|it| it.first_chunk()).map(|it| Enhanced::decode(*it));
    if let Some(word) = word.filter(|_| flags & S != 0) {
        let offers = [word.b, word.c, word.d].contains(&true);
        let rule = if word.a { &["MPE-9.2-1"] } else { &["MPE-9.2-10"] };
        other.check(offers == word.a, rule, || {
            format!("A {}, B {}, C {}, D {}", word.a, word.b, word.c, word.d)
        });
    }
    let offered = Enhanced { d: true, ..ENHANCED }.encode();
    if other.peer.consumer == Flue && octets != frame_of(REQUEST, C | S, 2, &offered, None) {
        other.find(Blame::Choice, format!("{text}: expected that of flue"));
    }
    Ok(Request { word: word.filter(|_| flags & S != 0) })
}

/// Adds the findings of the other connection to the case.
fn merge(link: &mut Link, mut other: Link) {
    link.findings.append(&mut other.findings);
    link.observed.append(&mut other.observed);
    link.packets.append(&mut other.packets);
}

fn await_opened(link: &mut Link, number: Number, status: &str) -> Step {
    let Some(number) = number else { return Ok(()) };
    let opened = link.report_when(number, |report| report.opened.is_some())?.opened;
    ensure(opened.as_deref() == Some(status), || {
        let opened = opened.as_deref().unwrap_or("none");
        format!("status {opened} of Connect: expected {status}")
    })
}

/// Adds a case: the Reply, the check of the new connection, and the status of the consumer's Connect.
fn add_case(
    cases: &mut Cases,
    name: &str,
    rules: &'static str,
    reply: impl Fn(Request) -> Vec<u8> + Send + Sync + 'static,
    status: &'static str,
    then: impl Fn(&mut Link, Request) -> Step + Send + Sync + 'static,
) {
    cases.add_initiator(name, rules, move |link| {
        let (mut other, request, number) = connect_back(link)?;
        other.put(&reply(request));
        let result = then(&mut other, request);
        merge(link, other);
        result?;
        await_opened(link, number, status)
    });
}

fn needs_word(request: Request) -> Step<Enhanced> {
    request.word.ok_or_else(|| Stop::Skip("the Request of the peer has no enhanced word".into()))
}

/// A Terminate is the first and only FPDU (RFC 6581 §9.1, §9.2).
fn terminated(code: u8) -> impl Fn(&mut Link, Request) -> Step {
    move |other, request| {
        let word = needs_word(request)?;
        if code == 7 && !word.a {
            return Err(Stop::Skip("the Request of the peer is not peer-to-peer".into()));
        }
        let segment = other.segment()?;
        let data = &segment.data;
        let is_expected = segment.header.op == TERMINATE && *data == [0x20, code, 0, 0];
        let is_swapped = segment.header.op == TERMINATE && data.first_chunk() == Some(&[2, code]);
        other.check(!is_swapped, &["RDM-4.8-1"], || {
            format!("Terminate {}: layer and type are in reverse order", hex(data))
        });
        ensure(is_expected || is_swapped, || {
            format!("{segment}: expected Terminate 2/0/{code:02x}")
        })?;
        closed(other, Some(End::Fin), Blame::Choice)
    }
}

/// The first FPDU is the RTR of a peer-to-peer connection.
fn works(other: &mut Link, request: Request) -> Step {
    let segment = other.segment()?;
    if request.word.is_none_or(|word| !word.a) {
        return Ok(());
    }
    let is_rtr = match segment.header.op {
        READ_REQUEST => be32(&segment.data, 12) == 0,
        op => op == WRITE && segment.data.is_empty(),
    };
    ensure(is_rtr, || format!("{segment}: expected an RTR"))?;
    if other.peer.consumer == Flue && segment.ulpdu != rtr() {
        other.find(Blame::Choice, format!("{segment}: expected the RTR by an empty Write"));
    }
    Ok(())
}

pub(super) fn add(cases: &mut Cases) {
    let good = |request: Request| request.reply(request.word());
    let rules = "MPE-5-1 MPE-9.2-7 MPA-7.1.2-9 MPA-7.1.1-1 MPE-9.2-1";
    add_case(cases, "good-reply", rules, good, "SUCCESS", works);
    let rules = "MPA-7.1.2-9 MPA-7.1-1 MPA-7.1-2";
    let early = move |request| [good(request), fpdu(&rtr())].concat();
    add_case(cases, "reply-with-fpdu-behind", rules, early, "SUCCESS", works);

    let word = ENHANCED.encode();
    let long = frame_of(REPLY, C | S, 2, &[&word[..], &[0; 509]].concat(), None);
    let as_reply = frame_of(REQUEST, C | S, 2, &word, None);
    let third = frame_of(REPLY, C | S, 3, &word, None);
    let plain = frame_of(REPLY, C, 2, b"", None);
    let cut = frame_of(REPLY, C | S, 2, b"\0\x01", None);
    let invalid = [
        ("request-as-reply", "MPA-7.1.2-13 MPA-7.1.2-7", as_reply),
        ("wrong-key", "MPA-7.1.2-7 MPA-7.1.1-2", b"MPA ID Rep Fram3\0\0\0\0".to_vec()),
        ("revision-3", "MPA-7.1.1-9 MPA-7.1.2-7", third),
        ("private-data-513", "MPA-7.1.1-10 MPA-7.1.2-14", long),
        ("plain-reply", "MPE-10-3", plain),
        ("enhanced-word-cut", "MPE-6-3", cut),
    ];
    let reset = |other: &mut Link, _| closed(other, Some(End::Reset), Blame::Choice);
    for (name, rules, octets) in invalid {
        add_case(cases, name, rules, move |_| octets.clone(), "CONNECTION_ABORTED", reset);
    }
    add_case(cases, "silence", "MPA-7.1.2-15", |_| Vec::new(), "IO_TIMEOUT", reset);
    if let Some(case) = cases.0.last_mut() {
        case.slow();
    }
    let rejection = |request: Request| {
        let mut frame = request.reply(request.word());
        frame[16] |= R;
        frame
    };
    add_case(cases, "rejection", "MPA-7.1.2-8", rejection, "CONNECTION_REFUSED", |other, _| {
        closed(other, Some(End::Fin), Blame::Choice)
    });
    let many = |request: Request| request.reply(Enhanced { ord: 100, ..request.word() });
    let rules = "MPE-9.1-6 MPE-8-1";
    add_case(cases, "more-reads-than-served", rules, many, "CONNECTION_ABORTED", terminated(6));
    let by_send = |request: Request| {
        request.reply(Enhanced { b: true, c: false, d: false, ..request.word() })
    };
    add_case(cases, "rtr-by-send", "MPE-9.2-8", by_send, "CONNECTION_ABORTED", terminated(7));
}
