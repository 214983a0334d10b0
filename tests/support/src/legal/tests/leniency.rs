//! What the monitor lets pass and a strict reading would not, each beside its near miss.

use super::*;

/// smoltcp, if `like_smoltcp`.
fn open(offer: Offer, like_smoltcp: bool) -> Trace {
    let mut trace = Trace::open(offer);
    trace.monitor.rules.like_smoltcp = like_smoltcp;
    trace
}

/// The peer's window ends at 101, and smoltcp's fast retransmission goes up to 201.
fn beyond_the_window() -> Trace {
    let mut trace = Trace::new(false);
    trace.monitor.rules.like_smoltcp = true;
    let mut syn = ours("S", 0, 0, &[]);
    syn.ack = None;
    trace.sent(syn);
    trace.heard(Forged { window: 100, ..theirs("S", 0, 1, &[]) });
    trace.sent(ours("", 1, 1, &[7; 100]));
    trace.sent(ours("", 1, 1, &[7; 200]));
    trace
}

/// The peer has taken what was in its window, and closes it.
fn closed(mut trace: Trace) -> Trace {
    trace.heard(Forged { window: 0, ..theirs("", 1, 101, &[]) });
    trace
}

/// A byte has probed a window that is closed at 2001.
fn probed(like_smoltcp: bool) -> Trace {
    let mut trace = open(PLAIN, like_smoltcp);
    trace.sent(ours("", 1, 1, &[7; 1400]));
    trace.sent(ours("", 1401, 1, &[7; 600]));
    trace.heard(Forged { window: 0, ..theirs("", 1, 2001, &[]) });
    trace.sent(ours("", 2001, 1, &[7]));
    trace
}

/// The last segment violates `clause`, and no other violates anything; `None`: nothing is violated.
#[track_caller]
fn expect(trace: &Trace, clause: Option<Clause>) {
    let violations = trace.monitor.violations();
    assert_eq!(trace.clauses(), clause.into_iter().collect::<Vec<_>>(), "{violations:?}");
    assert!(violations.iter().all(|violation| violation.time_ns == trace.now_ms * MS));
}

// Behind smoltcp's fast retransmission its FIN lies beyond the window; a byte with it does not get there.
#[test]
fn smoltcps_fin_follows_what_it_has_sent() {
    for (seq, payload, clause) in [
        (201, &b""[..], None),
        (101, b"", Some(Clause::Fin)),
        (201, b"x", Some(Clause::PeerWindow)),
        (202, b"", Some(Clause::Sequence)),
    ] {
        let mut trace = beyond_the_window();
        trace.sent(ours("F", seq, 1, payload));
        expect(&trace, clause);
    }
    for like_smoltcp in [true, false] {
        let mut trace = probed(like_smoltcp);
        trace.sent(ours("F", 2002, 1, &[]));
        expect(&trace, if like_smoltcp { None } else { Some(Clause::PeerWindow) });
    }
}

// Its window probes come there too: one byte, at the end of what it has sent, while the window is closed.
#[test]
fn smoltcps_probes_follow_what_it_has_sent() {
    for (seq, bytes, clause) in [
        (201, 1, None),
        (150, 1, None),
        (201, 2, Some(Clause::PeerWindow)),
        (150, 2, Some(Clause::PeerWindow)),
        (202, 1, Some(Clause::Sequence)),
    ] {
        let mut trace = closed(beyond_the_window());
        trace.sent(ours("", seq, 1, &[7; 2][..bytes]));
        expect(&trace, clause);
    }
    // The window is open.
    let mut trace = beyond_the_window();
    trace.sent(ours("", 201, 1, b"x"));
    expect(&trace, Some(Clause::PeerWindow));
    for like_smoltcp in [true, false] {
        let mut trace = probed(like_smoltcp);
        trace.sent(ours("", 2002, 1, &[7]));
        expect(&trace, if like_smoltcp { None } else { Some(Clause::PeerWindow) });
    }
}

// RFC 5961 s5.2: a segment whose acknowledgement is old may be dropped whole, with its mark.
#[test]
fn a_mark_with_an_old_acknowledgement_may_be_dropped() {
    for (ack, echo, clause) in [
        (100, "", None),
        (100, "E", None),
        (101, "E", None),
        (101, "", Some(Clause::Ecn)),
        (151, "", Some(Clause::Ecn)),
    ] {
        let mut trace = open(ALL, false);
        trace.sent(ours("", 1, 1, &[7; 200]));
        trace.heard(theirs("", 1, 101, &[]));
        let ecn = IpEcn::CongestionExperienced;
        trace.heard(Forged { ecn, ..theirs("", 1, ack, b"a") });
        trace.sent(ours(echo, 201, 2, &[]));
        expect(&trace, clause);
    }
}

// RFC 3168 s6.1.3, and frames of one moment may be read in another order: CWR last leaves nothing to echo.
#[test]
fn a_mark_and_cwr_of_one_moment() {
    let ecn = IpEcn::CongestionExperienced;
    for (at_once, echo, clause) in
        [(true, "", None), (true, "E", None), (false, "E", None), (false, "", Some(Clause::Ecn))]
    {
        let mut trace = open(ALL, false);
        trace.heard(theirs("W", 1, 1, b"a"));
        trace.now_ms += u64::from(!at_once);
        trace.heard_at_once(Forged { ecn, ..theirs("", 2, 1, b"b") });
        trace.sent(ours(echo, 1, 3, &[]));
        expect(&trace, clause);
    }
    // A mark of the next moment is owed, whatever there was at this one.
    let mut trace = open(ALL, false);
    trace.heard(theirs("W", 1, 1, b"a"));
    trace.heard_at_once(Forged { ecn, ..theirs("", 2, 1, b"b") });
    trace.heard(Forged { ecn, ..theirs("", 3, 1, b"c") });
    trace.sent(ours("", 1, 4, &[]));
    expect(&trace, Some(Clause::Ecn));
}

// RFC 9293 s3.10.7.4: only data can be old when they are read; a bare acknowledgement counts in any order.
#[test]
fn bare_acknowledgements_bind_in_any_order() {
    for (payload, clause) in [(&b"x"[..], None), (b"", Some(Clause::Sequence))] {
        let mut trace = Trace::of(false, false);
        trace.handshake(PLAIN);
        trace.sent(ours("", 1, 1, &[7; 100]));
        trace.heard(theirs("", 1, 101, payload));
        trace.sent(ours("", 1, 1 + payload.len() as u32, &[7; 100]));
        expect(&trace, clause);
    }
}

// RFC 9293 s3.8.4: the byte of a keep-alive probe may be any, and is the last that is acknowledged or may be.
#[test]
fn a_keep_alive_probe_holds_any_byte() {
    for (seq, payload, clause) in [
        (100, &[0][..], None),
        (99, &[0], Some(Clause::Content)),
        (99, &[0, 0], Some(Clause::Content)),
        (99, &[7], None),
    ] {
        let mut trace = open(PLAIN, false);
        trace.sent(ours("", 1, 1, &[7; 100]));
        trace.heard(theirs("", 1, 101, &[]));
        trace.sent_at_once(ours("", seq, 1, payload));
        expect(&trace, clause);
    }
}
