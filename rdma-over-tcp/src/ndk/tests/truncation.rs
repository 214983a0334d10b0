//! A peer's FIN within an FPDU, or within a message: an error with its own reason.

use super::{
    bench::Bench,
    errors::fpdu,
    sides::{LIMITS, Side, connected, disconnect_event, listen},
};
use crate::{
    ddp::Msn,
    ndk::{Data, DisconnectReason, NtStatus, OpFlags},
    rdmap::{SendKind, send_header},
};

/// More bytes than a list of FPDUs can hold.
const LARGE: usize = 300_000;

/// Asserts that `passive` received a FIN too early: it reports this to its consumer and to the peer, and flushes.
fn assert_truncated(bench: &mut Bench, active: &Side, passive: &Side, reason: DisconnectReason) {
    assert!(passive.qp.is_connected());
    bench.close_sending(0);
    bench.settle();
    assert_eq!(passive.log.take(), [("disconnect event", NtStatus(reason.0))]);
    assert_eq!(active.log.take(), [("disconnect event", NtStatus(0x3_2001))]);
    assert_eq!((passive.qp.stats().terminates_out, active.qp.stats().terminates_in), (1, 1));
    assert_eq!(passive.adapter.counters().connection_error, 1);
    assert!(!passive.qp.is_connected());
    assert_eq!(bench.connections(), 0, "closed by FINs");
}

/// Limits the bench to one list of FPDUs in flight.
fn one_list(bench: &mut Bench) {
    bench.hold_acks = true;
    bench.window = 1;
}

// MPA-7.2-1, DDP-3-9, RDM-6.2.1-1, -2: a FIN at any position within an FPDU.
#[test]
fn fin_within_an_fpdu() {
    let whole = fpdu(&send_header(true, SendKind::Plain, Msn(1), 0), b"four");
    for octets in 1..whole.len() {
        let mut bench = Bench::new(octets as u64);
        let (active, passive) = connected(&mut bench);
        passive.receive(1, 0, 10);
        bench.inject(0, &whole[..octets]);
        bench.settle();
        assert_truncated(&mut bench, &active, &passive, DisconnectReason::WITHIN_FPDU);
        assert_eq!(passive.outcomes(), [(1, NtStatus::CANCELLED)], "{octets} octets");
    }
}

// MPA-7.2-1, DDP-3-9: a FIN between two segments of a Send, of a Write, of a Read Response.
#[test]
fn fin_within_a_message() {
    let reason = DisconnectReason::WITHIN_MESSAGE;
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    passive.receive(1, 0, LARGE);
    one_list(&mut bench);
    active.send(2, 0, LARGE);
    bench.settle();
    assert_truncated(&mut bench, &active, &passive, reason);
    assert_eq!(passive.outcomes(), [(1, NtStatus::CANCELLED)]);

    let mut bench = Bench::new(2);
    let (active, passive) = connected(&mut bench);
    one_list(&mut bench);
    let (from, to) = (active.sge(0, LARGE), passive.sge(0, LARGE));
    let data = Data::Registered(&[from]);
    active.qp.write(2, data, to.address, to.token, OpFlags::empty()).unwrap();
    bench.settle();
    assert_truncated(&mut bench, &active, &passive, reason);

    let mut bench = Bench::new(3);
    let (active, passive) = connected(&mut bench);
    one_list(&mut bench);
    let (to, from) = (passive.sge(0, LARGE), active.sge(0, LARGE));
    passive.qp.read(1, &[to], from.address, from.token, OpFlags::empty()).unwrap();
    bench.settle();
    bench.window = 64 * 1024;
    assert_truncated(&mut bench, &active, &passive, reason);
    assert_eq!(passive.outcomes(), [(1, NtStatus::CANCELLED)]);
}

// NDK-DISC-2: a FIN after a whole message is the peer's orderly close.
#[test]
fn fin_after_message() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    passive.receive(1, 0, LARGE);
    passive.receive(2, 0, LARGE);
    active.send(3, 0, LARGE);
    bench.settle();
    bench.close_sending(0);
    bench.settle();
    assert_eq!(passive.log.take(), [("disconnect event", NtStatus(0))]);
    assert_eq!(passive.outcomes(), [(1, NtStatus::SUCCESS)]);
    assert!(!passive.qp.is_connected(), "no posts are accepted");
}

// An incomplete connect, and a complete disconnect, can also end with such a FIN.
#[test]
fn fin_within_an_fpdu_before_and_after_operation() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    passive.receive(1, 0, 10);
    bench.inject(0, &[0, 22]);
    bench.settle();
    bench.hold_acks = true;
    bench.is_cut = true;
    let note = passive.log.note("disconnect");
    assert_eq!(passive.connector.as_ref().unwrap().disconnect(note), NtStatus::PENDING);
    bench.settle();
    bench.is_cut = false;
    bench.close_sending(0);
    bench.settle();
    assert_eq!(passive.log.take(), [("disconnect", NtStatus::SUCCESS)], "and no event");
    assert_eq!(passive.outcomes(), [(1, NtStatus::CANCELLED)]);
    assert_eq!(bench.connections(), 0);
    drop(active);

    // Accept waits for the first FPDU, of which only a part arrives.
    let mut bench = Bench::new(2);
    let (_listener, mailbox) = listen(&mut bench);
    let (active, passive) = (Side::new(&bench, 0), Side::new(&bench, 1));
    let connector = active.adapter.create_connector().unwrap();
    let remote = bench.server;
    let _ = connector.connect(&active.qp, None, remote, LIMITS, b"", |_| {});
    bench.settle();
    let incoming = mailbox.lock().unwrap().pop().unwrap();
    let event = disconnect_event(&passive.log);
    let note = passive.log.note("accept");
    let status = incoming.accept(&passive.qp, LIMITS, b"", event, note);
    assert_eq!(status, NtStatus::PENDING);
    bench.settle();
    bench.inject(0, &[0, 22]);
    bench.close_sending(0);
    bench.settle();
    assert_eq!(passive.log.take(), [("accept", NtStatus::CONNECTION_ABORTED)]);
}
