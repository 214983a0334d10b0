//! Behavior that the monitor accepts and a strict reading would not, each with a similar violation.

use super::*;

/// Opens a trace, with smoltcp's echoes if `echoes_latest_timestamp`.
fn open(offer: Offer, echoes_latest_timestamp: bool) -> Trace {
    let mut trace = Trace::open(offer);
    trace.monitor.rules.echoes_latest_timestamp = echoes_latest_timestamp;
    trace
}

/// Asserts that the last segment violates `clause` and no other violates anything; `None`: no violation.
#[track_caller]
fn expect(trace: &Trace, clause: Option<Clause>) {
    let violations = trace.monitor.violations();
    assert_eq!(trace.clauses(), clause.into_iter().collect::<Vec<_>>(), "{violations:?}");
    assert!(violations.iter().all(|violation| violation.time_ns == trace.now_ms * MS));
}

// A FIN needs no window, a byte does; after a byte that has probed the window, neither is allowed.
#[test]
fn fin_needs_no_window() {
    for (probes, seq, payload, clause) in [
        (false, 2001, &b""[..], None),
        (false, 2001, b"x", Some(Clause::PeerWindow)),
        (true, 2002, b"", Some(Clause::PeerWindow)),
    ] {
        let mut trace = open(PLAIN, true);
        trace.sent(ours("", 1, 1, &[7; 1400]));
        trace.sent(ours("", 1401, 1, &[7; 600]));
        if probes {
            trace.received(Forged { window: 0, ..theirs("", 1, 2001, &[]) });
            trace.sent(ours("", 2001, 1, &[7]));
        }
        trace.sent(ours("F", seq, 1, payload));
        expect(&trace, clause);
    }
}

// RFC 5961 §5.2: a segment with an old acknowledgment may be dropped as a whole, with its mark.
#[test]
fn mark_with_old_acknowledgment_may_be_dropped() {
    for (ack, echo, clause) in [
        (100, "", None),
        (100, "E", None),
        (101, "E", None),
        (101, "", Some(Clause::Ecn)),
        (151, "", Some(Clause::Ecn)),
    ] {
        let mut trace = open(ALL, false);
        trace.sent(ours("", 1, 1, &[7; 200]));
        trace.received(theirs("", 1, 101, &[]));
        let ecn = IpEcn::CongestionExperienced;
        trace.received(Forged { ecn, ..theirs("", 1, ack, b"a") });
        trace.sent(ours(echo, 201, 2, &[]));
        expect(&trace, clause);
    }
}

// RFC 3168 §6.1.3, and frames of one instant may be processed in another order: if CWR is last, there is
// nothing to echo.
#[test]
fn mark_and_cwr_of_one_instant_may_be_reordered() {
    let ecn = IpEcn::CongestionExperienced;
    for (at_once, echo, clause) in
        [(true, "", None), (true, "E", None), (false, "E", None), (false, "", Some(Clause::Ecn))]
    {
        let mut trace = open(ALL, false);
        trace.received(theirs("W", 1, 1, b"a"));
        trace.now_ms += u64::from(!at_once);
        trace.received_at_once(Forged { ecn, ..theirs("", 2, 1, b"b") });
        trace.sent(ours(echo, 1, 3, &[]));
        expect(&trace, clause);
    }
    // A mark of the next instant requires an echo, regardless of this one.
    let mut trace = open(ALL, false);
    trace.received(theirs("W", 1, 1, b"a"));
    trace.received_at_once(Forged { ecn, ..theirs("", 2, 1, b"b") });
    trace.received(Forged { ecn, ..theirs("", 3, 1, b"c") });
    trace.sent(ours("", 1, 4, &[]));
    expect(&trace, Some(Clause::Ecn));
}

// RFC 9293 §3.10.7.4: only data can be old when processed; a bare acknowledgment counts in any order.
#[test]
fn bare_acknowledgments_are_binding_in_any_order() {
    for (payload, clause) in [(&b"x"[..], None), (b"", Some(Clause::Sequence))] {
        let mut trace = Trace::of(false, false);
        trace.handshake(PLAIN);
        trace.sent(ours("", 1, 1, &[7; 100]));
        trace.received(theirs("", 1, 101, payload));
        trace.sent(ours("", 1, 1 + payload.len() as u32, &[7; 100]));
        expect(&trace, clause);
    }
}

// RFC 9293 §3.8.4: the byte of a keep-alive probe is arbitrary. It is the last acknowledged byte, or may be.
#[test]
fn keep_alive_probe_may_carry_any_byte() {
    for (seq, payload, clause) in [
        (100, &[0][..], None),
        (99, &[0], Some(Clause::Content)),
        (99, &[0, 0], Some(Clause::Content)),
        (99, &[7], None),
    ] {
        let mut trace = open(PLAIN, false);
        trace.sent(ours("", 1, 1, &[7; 100]));
        trace.received(theirs("", 1, 101, &[]));
        trace.sent_at_once(ours("", seq, 1, payload));
        expect(&trace, clause);
    }
}
