//! Connect, accept, reject, disconnect, and loss of connections.

use std::{boxed::Box, net::SocketAddr, vec};

use offload_engine::time::Duration;

use super::{
    bench::Bench,
    sides::{LIMITS, Mailbox, RESET, Side, connected, disconnect_event, listen, listen_at},
};
use crate::{
    mpa::startup::{Revision, RtrKind, RtrSet},
    ndk::{
        AdapterConfig, Connector, Counters, Data, DisconnectReason, Listener, NtStatus, OpFlags,
        ReadLimit,
    },
    rnic::{ConnectError, Limits},
};

fn start_connect(
    bench: &Bench,
    side: &mut Side,
    private_data: &[u8],
    limits: ReadLimit,
) -> NtStatus {
    let connector = match side.connector.take() {
        Some(connector) => connector,
        None => side.adapter.create_connector().unwrap(),
    };
    let note = side.log.note("connect");
    let remote = bench.server;
    let status = connector.connect(&side.qp, None, remote, limits, private_data, note);
    side.connector = Some(connector);
    status
}

/// Returns a bench with a listener and two sides.
fn sides() -> (Bench, (Listener, Mailbox), Side, Side) {
    let mut bench = Bench::new(1);
    let listening = listen(&mut bench);
    let [active, passive] = [0, 1].map(|node| Side::new(&bench, node));
    (bench, listening, active, passive)
}

/// Connects the active side, and returns its request.
fn request(bench: &mut Bench, mailbox: &Mailbox, active: &mut Side) -> Connector {
    assert_eq!(start_connect(bench, active, b"", LIMITS), NtStatus::PENDING);
    bench.settle();
    mailbox.lock().unwrap().pop().expect("a connect event")
}

/// Accepts on the passive side, without its completion.
fn accept(bench: &mut Bench, passive: &Side, incoming: &Connector) {
    let note = passive.log.note("accept");
    assert_eq!(incoming.accept(&passive.qp, LIMITS, b"", None, note), NtStatus::PENDING);
    bench.settle();
}

// NDK-CD-1, -2, -3, NDK-CON-2, -4, -8, -12: both consumers can read the other's data, in their windows only.
#[test]
pub(super) fn connection_data() {
    let (mut bench, (_listener, mailbox), mut active, passive) = sides();
    let requested = ReadLimit { inbound: 3, outbound: 200 };
    assert_eq!(start_connect(&bench, &mut active, b"caller", requested), NtStatus::PENDING);
    bench.settle();
    let incoming = mailbox.lock().unwrap().pop().unwrap();
    let mut buffer = [0; 6];
    let (status, size, limits) = incoming.connection_data(Some(&mut buffer));
    assert_eq!((status, size, &buffer), (NtStatus::SUCCESS, 6, b"caller"));
    assert_eq!(limits, ReadLimit { inbound: 128, outbound: 3 });
    assert_eq!(incoming.connection_data(Some(&mut [0; 5])).0, NtStatus::BUFFER_TOO_SMALL);
    assert_eq!(incoming.local_address(), Some(bench.server));
    let note = passive.log.note("accept");
    let requested = ReadLimit { inbound: 9, outbound: 9 };
    assert_eq!(
        incoming.accept(&passive.qp, requested, b"callee data", None, note),
        NtStatus::PENDING
    );
    assert_eq!(incoming.connection_data(None).0, NtStatus::CONNECTION_INVALID);
    bench.settle();
    let connector = active.connector.clone().unwrap();
    let (status, size, limits) = connector.connection_data(None);
    assert_eq!((status, size), (NtStatus::SUCCESS, 11));
    assert_eq!(limits, ReadLimit { inbound: 3, outbound: 9 });
    assert!(!active.qp.is_connected(), "not before the completion");
    assert_eq!(connector.complete_connect(None, |_| {}), NtStatus::PENDING);
    assert_eq!(connector.complete_connect(None, |_| {}), NtStatus::CONNECTION_INVALID);
    assert_eq!(connector.connection_data(None).0, NtStatus::CONNECTION_INVALID);
    bench.settle();
    assert!(active.qp.is_connected() && passive.qp.is_connected());
    let expected = Counters { connect: 1, active_connection: 1, ..active.adapter.counters() };
    assert_eq!(active.adapter.counters(), expected);
    assert_eq!(passive.adapter.counters().accept, 1);
    let entries = passive.adapter.connections();
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].local, bench.server);
}

// NDK-CON-12: a post works inside the completions of Accept and CompleteConnect.
#[test]
pub(super) fn posts_inside_the_completion() {
    let (mut bench, (_listener, mailbox), mut active, passive) = sides();
    active.receive(1, 0, 10);
    passive.receive(1, 0, 10);
    let incoming = request(&mut bench, &mailbox, &mut active);
    let (qp, sge) = (passive.qp.clone(), passive.sge(0, 5));
    let post = move |_| qp.send(2, Data::Registered(&[sge]), OpFlags::empty()).unwrap();
    assert_eq!(incoming.accept(&passive.qp, LIMITS, b"", None, post), NtStatus::PENDING);
    bench.settle();
    let (qp, sge) = (active.qp.clone(), active.sge(0, 5));
    let post = move |_| qp.send(2, Data::Registered(&[sge]), OpFlags::empty()).unwrap();
    let connector = active.connector.clone().unwrap();
    assert_eq!(connector.complete_connect(None, post), NtStatus::PENDING);
    bench.settle();
    for side in [&active, &passive] {
        let mut outcomes = side.outcomes();
        outcomes.sort_unstable_by_key(|(context, _)| *context);
        assert_eq!(outcomes, [(1, NtStatus::SUCCESS), (2, NtStatus::SUCCESS)]);
    }
}

// NDK-CD-5, -6, MPA-7.1.1-11, MPE-6-3: one byte too much is rejected and the connector remains usable. The maximum
// arrives: that of the message format, or the adapter's lower limit.
#[test]
pub(super) fn private_data_limits() {
    for (revision, private_data_max, most) in [
        (Revision::Two, 508, 508),
        (Revision::Two, 512, 508),
        (Revision::One, 512, 512),
        (Revision::One, 508, 508),
        (Revision::Two, 7, 7),
    ] {
        let limits = Limits { private_data_max, ..Limits::default() };
        let mut bench = Bench::with(1, AdapterConfig { revision, limits, ..Default::default() });
        let (_listener, mailbox) = listen(&mut bench);
        let (mut active, passive) = (Side::new(&bench, 0), Side::new(&bench, 1));
        let (full, more) = (vec![7; most], vec![7; most + 1]);
        let info = active.adapter.info();
        assert_eq!([info.max_caller_data, info.max_callee_data], [most as u32; 2]);
        assert_eq!(
            start_connect(&bench, &mut active, &more, LIMITS),
            NtStatus::INVALID_BUFFER_SIZE
        );
        assert_eq!(start_connect(&bench, &mut active, &full, LIMITS), NtStatus::PENDING);
        bench.settle();
        let incoming = mailbox.lock().unwrap().pop().unwrap();
        assert_eq!(incoming.connection_data(None).1, most);
        let accept = |data: &[u8]| incoming.accept(&passive.qp, LIMITS, data, None, |_| {});
        assert_eq!(accept(&more), NtStatus::INVALID_BUFFER_SIZE);
        assert_eq!(incoming.reject(&more), NtStatus::INVALID_BUFFER_SIZE);
        assert_eq!(accept(&full), NtStatus::PENDING);
        bench.settle();
        assert_eq!(active.connector.clone().unwrap().connection_data(None).1, most);
    }
}

// MPE-9-1, MPE-9.1-5: read limits are negotiated exactly, up to the largest value of 14 bits.
#[test]
pub(super) fn read_limits_are_exact() {
    let limits = Limits { ird_max: u32::MAX, ord_max: u32::MAX, ..Limits::default() };
    for (requested, agreed) in
        [(3, 3), (1_000, 1_000), (0x3ffe, 0x3ffe), (0x3fff, 0x3ffe), (u32::MAX, 0x3ffe)]
    {
        let mut bench = Bench::with(1, AdapterConfig { limits, ..Default::default() });
        let (_listener, mailbox) = listen(&mut bench);
        let (mut active, passive) = (Side::new(&bench, 0), Side::new(&bench, 1));
        let requested = ReadLimit { inbound: requested, outbound: requested };
        let agreed = ReadLimit { inbound: agreed, outbound: agreed };
        assert_eq!(start_connect(&bench, &mut active, b"", requested), NtStatus::PENDING);
        bench.settle();
        let incoming = mailbox.lock().unwrap().pop().unwrap();
        assert_eq!(incoming.connection_data(None).2, agreed);
        assert_eq!(incoming.accept(&passive.qp, requested, b"", None, |_| {}), NtStatus::PENDING);
        bench.settle();
        assert_eq!(active.connector.clone().unwrap().connection_data(None).2, agreed);
    }
}

// NDK-CON-1, NDK-CD-7: a rejection carries data, and the same connector and queue pair may retry.
#[test]
pub(super) fn reject_and_retry() {
    let mut bench = Bench::new(1);
    let (_listener, mailbox) = listen(&mut bench);
    let mut active = Side::new(&bench, 0);
    active.receive(1, 0, 1);
    for _ in 0..2 {
        let incoming = request(&mut bench, &mailbox, &mut active);
        assert_eq!(incoming.reject(b"no"), NtStatus::SUCCESS);
        assert_eq!(incoming.reject(b"no"), NtStatus::CONNECTION_ABORTED);
        bench.settle();
        assert_eq!(active.log.take(), [("connect", NtStatus::CONNECTION_REFUSED)]);
        let mut buffer = [0; 2];
        let connector = active.connector.clone().unwrap();
        assert_eq!(connector.connection_data(Some(&mut buffer)).0, NtStatus::SUCCESS);
        assert_eq!(&buffer, b"no");
        assert_eq!(incoming.close(|| {}), NtStatus::SUCCESS);
    }
    assert_eq!(active.outcomes(), [], "the queue pair keeps its posted requests");
    assert_eq!(active.adapter.counters().connect_failure, 2);
    assert_eq!(bench.connections(), 0, "closed by both FINs");
}

// NDK-CON-3, NDK-CON-5, SDK NdConnReject and NdConnClose: the active side aborts after the Reply.
#[test]
pub(super) fn active_side_aborts() {
    for is_reject in [true, false] {
        let (mut bench, (_listener, mailbox), mut active, passive) = sides();
        let incoming = request(&mut bench, &mailbox, &mut active);
        accept(&mut bench, &passive, &incoming);
        let connector = active.connector.clone().unwrap();
        let status = if is_reject { connector.reject(b"") } else { connector.close(|| {}) };
        assert_eq!(status, NtStatus::SUCCESS);
        bench.settle();
        assert_eq!(passive.log.take(), [("accept", NtStatus::CONNECTION_ABORTED)]);
        assert_eq!(bench.connections(), 0);
    }
}

// NDK-CON-3: the peer aborts before the reply.
#[test]
pub(super) fn peer_aborts_before_reply() {
    let (mut bench, (_listener, mailbox), mut active, passive) = sides();
    let incoming = request(&mut bench, &mailbox, &mut active);
    assert_eq!(active.connector.clone().unwrap().close(|| {}), NtStatus::PENDING);
    bench.settle();
    assert_eq!(active.log.take(), [("connect", NtStatus::CANCELLED)]);
    let status = incoming.accept(&passive.qp, LIMITS, b"", None, |_| {});
    assert_eq!(status, NtStatus::CONNECTION_ABORTED);
    assert_eq!(incoming.reject(b""), NtStatus::CONNECTION_ABORTED);
}

// NdkConnect, NdkListen: errors of the transport map to the documented statuses.
#[test]
fn connect_errors() {
    for (error, status) in [
        (ConnectError::Refused, NtStatus::CONNECTION_REFUSED),
        (ConnectError::TimedOut, NtStatus::IO_TIMEOUT),
        (ConnectError::HostUnreachable, NtStatus::HOST_UNREACHABLE),
        (ConnectError::NetworkUnreachable, NtStatus::NETWORK_UNREACHABLE),
        (ConnectError::InvalidAddress, NtStatus::INVALID_ADDRESS),
        (ConnectError::AddressInUse, NtStatus::SHARING_VIOLATION),
        (ConnectError::NoPorts, NtStatus::TOO_MANY_ADDRESSES),
        (ConnectError::NoResources, NtStatus::INSUFFICIENT_RESOURCES),
        (ConnectError::NoDescriptors, NtStatus::INSUFFICIENT_RESOURCES),
    ] {
        let mut bench = Bench::new(1);
        bench.connect_error = Some(error);
        let mut active = Side::new(&bench, 0);
        assert_eq!(start_connect(&bench, &mut active, b"", LIMITS), NtStatus::PENDING);
        bench.settle();
        assert_eq!(active.log.take(), [("connect", status)]);
        assert_eq!(start_connect(&bench, &mut active, b"", LIMITS), NtStatus::PENDING, "again");
    }
}

// NDK-CON-7, SDK NdDualConnection, NdInvalidIP.
#[test]
pub(super) fn misuse() {
    let mut bench = Bench::new(1);
    let (mut active, _passive) = connected(&mut bench);
    let associated = NtStatus::ADDRESS_ALREADY_ASSOCIATED;
    assert_eq!(start_connect(&bench, &mut active, b"", LIMITS), associated);
    active.connector = None;
    assert_eq!(start_connect(&bench, &mut active, b"", LIMITS), NtStatus::CONNECTION_ACTIVE);
    let other = Side::new(&bench, 0);
    let connector = active.connector.clone().unwrap();
    let connect = |remote: &str| {
        connector.connect(&other.qp, None, remote.parse().unwrap(), LIMITS, b"", |_| {})
    };
    assert_eq!(connect("0.0.0.0:7000"), NtStatus::INVALID_ADDRESS);
    assert_eq!(connect("10.0.0.2:0"), NtStatus::INVALID_ADDRESS);
    assert_eq!(connector.disconnect(|_| {}), NtStatus::CONNECTION_INVALID);
    assert_eq!(connector.complete_connect(None, |_| {}), NtStatus::CONNECTION_INVALID);
    assert_eq!(connector.reject(b""), NtStatus::CONNECTION_INVALID);
}

// RFC 5044 §7.1.2 rule 10, NDK-CON-4, NDK-CON-6: every wait of start-up has a timeout.
#[test]
fn startup_time_limits() {
    let config = AdapterConfig::default();
    // The Reply does not arrive.
    let mut bench = Bench::new(1);
    let (_listener, mailbox) = listen(&mut bench);
    let mut active = Side::new(&bench, 0);
    assert_eq!(start_connect(&bench, &mut active, b"", LIMITS), NtStatus::PENDING);
    bench.settle();
    assert!(mailbox.lock().unwrap().pop().is_some());
    bench.advance(config.reply_timeout - Duration::from_millis(1));
    assert_eq!(active.log.take(), []);
    bench.advance(Duration::from_millis(1));
    assert_eq!(active.log.take(), [("connect", NtStatus::IO_TIMEOUT)]);
    assert_eq!(bench.connections(), 0, "reset");
    // The Request does not arrive.
    let mut bench = Bench::new(1);
    let (_listener, mailbox) = listen(&mut bench);
    let mut active = Side::new(&bench, 0);
    bench.is_cut = true;
    assert_eq!(start_connect(&bench, &mut active, b"", LIMITS), NtStatus::PENDING);
    bench.settle();
    bench.advance(config.request_timeout);
    assert_eq!(active.log.take(), [("connect", NtStatus::CONNECTION_REFUSED)]);
    assert!(mailbox.lock().unwrap().is_empty());
    // The first FPDU does not arrive; its timeout is that of the accept, not of the Request.
    let (mut bench, (_listener, mailbox), mut active, passive) = sides();
    let incoming = request(&mut bench, &mailbox, &mut active);
    bench.advance(Duration::from_secs(5));
    accept(&mut bench, &passive, &incoming);
    bench.advance(config.accept_timeout - Duration::from_millis(1));
    assert_eq!(passive.log.take(), []);
    bench.advance(Duration::from_millis(1));
    assert_eq!(passive.log.take(), [("accept", NtStatus::IO_TIMEOUT)]);
    let connector = active.connector.clone().unwrap();
    assert_eq!(connector.complete_connect(None, |_| {}), NtStatus::CONNECTION_ABORTED);
}

// A connection whose FIN is acknowledged may remain in FIN-WAIT-2 and TIME-WAIT for long: its buffers are freed.
#[test]
fn closed_connection_frees_buffers() {
    let mut bench = Bench::new(1);
    let (active, _passive) = connected(&mut bench);
    let state = |bench: &Bench| std::format!("{:?}", bench.nodes[0].access().lock());
    assert!(state(&bench).contains("Transmitter"));
    let connector = active.connector.as_ref().unwrap();
    assert_eq!(connector.disconnect(active.log.note("disconnect")), NtStatus::PENDING);
    bench.settle();
    assert_eq!(active.log.take(), [("disconnect", NtStatus::SUCCESS)]);
    assert_eq!(bench.connections(), 1, "the peer has not closed its side");
    let state = state(&bench);
    assert!(state.contains("Ended") && !state.contains("Transmitter"), "{state}");
}

// NDK-DISC-1, -2, -4, -5, -6: posted requests arrive, then the flush; the peer gets its event and is not flushed.
#[test]
pub(super) fn disconnect() {
    let mut bench = Bench::new(4);
    let (active, passive) = connected(&mut bench);
    active.receive(1, 0, 10);
    passive.receive(2, 0, 200_000);
    passive.receive(3, 0, 10);
    active.fill(0, 200_000, 6);
    active.send(4, 0, 200_000);
    let connector = active.connector.clone().unwrap();
    let note = active.log.note("disconnect");
    assert_eq!(connector.disconnect(note), NtStatus::PENDING);
    let data = Data::Registered(&[]);
    assert_eq!(active.qp.send(5, data, OpFlags::empty()), Err(NtStatus::CONNECTION_INVALID));
    bench.settle();
    assert_eq!(active.outcomes(), [(4, NtStatus::SUCCESS), (1, NtStatus::CANCELLED)]);
    assert_eq!(
        active.log.take(),
        [("disconnect", NtStatus::SUCCESS)],
        "no event for the disconnecting side"
    );
    assert_eq!(passive.log.take(), [("disconnect event", NtStatus(0))]);
    assert_eq!(passive.outcomes(), [(2, NtStatus::SUCCESS)], "3 is not flushed");
    // NDK-CON-11: the peer has flushed, and would place no message.
    let late = passive.qp.send(9, Data::Registered(&[]), OpFlags::empty());
    assert_eq!(late, Err(NtStatus::CONNECTION_INVALID));
    assert!(passive.content(0, 200_000) == active.content(0, 200_000));
    let note = passive.log.note("disconnect");
    assert_eq!(passive.connector.clone().unwrap().disconnect(note), NtStatus::PENDING);
    bench.settle();
    assert_eq!(passive.log.take(), [("disconnect", NtStatus::SUCCESS)]);
    assert_eq!(passive.outcomes(), [(3, NtStatus::CANCELLED)]);
    assert_eq!(bench.connections(), 0);
    active.receive(6, 0, 1);
    assert_eq!(active.outcomes(), [(6, NtStatus::CANCELLED)], "flushed at once");
    let other = active.adapter.create_connector().unwrap();
    let remote = bench.server;
    let status = other.connect(&active.qp, None, remote, LIMITS, b"", |_| {});
    assert_eq!(status, NtStatus::INVALID_DEVICE_STATE, "NDK-DISC-6");
    for side in [&active, &passive] {
        let counters = side.adapter.counters();
        assert_eq!((counters.active_connection, counters.connection_error), (0, 0));
    }
}

// NDK-DISC-5: a disconnect cancels reads that wait for responses.
#[test]
fn disconnect_cancels_reads() {
    let mut bench = Bench::new(4);
    let (active, passive) = connected(&mut bench);
    bench.is_cut = true;
    let source = passive.sge(0, 10);
    active
        .qp
        .read(1, &[active.sge(0, 10)], source.address, source.token, OpFlags::empty())
        .unwrap();
    active.qp.send(2, Data::Registered(&[]), OpFlags::READ_FENCE).unwrap();
    let note = active.log.note("disconnect");
    assert_eq!(active.connector.clone().unwrap().disconnect(note), NtStatus::PENDING);
    bench.settle();
    assert_eq!(active.outcomes(), []);
    bench.advance(AdapterConfig::default().disconnect_timeout);
    assert_eq!(active.outcomes(), [(1, NtStatus::CANCELLED), (2, NtStatus::CANCELLED)]);
    assert_eq!(active.log.take(), [("disconnect", NtStatus::IO_TIMEOUT)]);
    assert_eq!(passive.log.take(), [("disconnect event", RESET)], "reset");
    for side in [&active, &passive] {
        assert_eq!(side.connector.as_ref().unwrap().failure(), None, "it was established");
    }
}

// NDK-DISC-1: the peer resets while the disconnect is pending.
#[test]
fn reset_during_disconnect() {
    let mut bench = Bench::new(4);
    let (active, passive) = connected(&mut bench);
    bench.is_cut = true;
    active.send(1, 0, 100_000);
    let note = active.log.note("disconnect");
    assert_eq!(active.connector.clone().unwrap().disconnect(note), NtStatus::PENDING);
    bench.settle();
    assert_eq!(passive.connector.clone().unwrap().close(|| {}), NtStatus::SUCCESS);
    bench.settle();
    assert_eq!(active.outcomes(), [(1, NtStatus::CANCELLED)]);
    assert_eq!(active.log.take(), [("disconnect", NtStatus::SUCCESS)]);
    assert_eq!(active.adapter.counters().active_connection, 0);
    assert_eq!(bench.connections(), 0);
}

// NDK-DISC-3: optional behavior, as expected by NDSPI programs.
#[test]
pub(super) fn flush_on_peer_close() {
    let config = AdapterConfig { flush_on_peer_close: true, ..AdapterConfig::default() };
    let mut bench = Bench::with(1, config);
    let (active, passive) = connected(&mut bench);
    passive.receive(1, 0, 1);
    assert_eq!(active.connector.clone().unwrap().disconnect(|_| {}), NtStatus::PENDING);
    bench.settle();
    assert_eq!(passive.outcomes(), [(1, NtStatus::CANCELLED)]);
    assert_eq!(passive.log.take(), [("disconnect event", NtStatus(0))]);
    assert_eq!(passive.adapter.counters().connection_error, 0);
    assert_eq!(bench.connections(), 0);
}

// NDK-DISC-3, -4, NDK-LIFE-11: closing a connector without a disconnect resets; the peer is flushed, then its event is
// called.
#[test]
pub(super) fn abortive_close() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    for side in [&active, &passive] {
        side.receive(1, 0, 1);
    }
    assert_eq!(active.connector.clone().unwrap().close(|| {}), NtStatus::SUCCESS);
    assert_eq!(active.outcomes(), [(1, NtStatus::CANCELLED)]);
    bench.settle();
    assert_eq!(active.log.take(), []);
    assert_eq!(passive.outcomes(), [(1, NtStatus::CANCELLED)]);
    assert_eq!(passive.log.take(), [("disconnect event", RESET)]);
    assert_eq!(passive.adapter.counters().connection_error, 1);
    assert_eq!(bench.connections(), 0);
}

// The connection ends without a call of the consumer: its peer does not respond, or the host stack has lost it.
#[test]
fn lost_connections_are_reported() {
    for (error, reason) in [
        (ConnectError::TimedOut, DisconnectReason::NO_ANSWER),
        (ConnectError::Aborted, DisconnectReason(0x2001)),
    ] {
        let mut bench = Bench::new(1);
        let (active, passive) = connected(&mut bench);
        active.receive(1, 0, 1);
        bench.fail_connection(0, error);
        assert_eq!(active.outcomes(), [(1, NtStatus::CANCELLED)]);
        assert_eq!(active.log.take(), [("disconnect event", NtStatus(reason.0))]);
        assert!(!active.qp.is_connected());
        assert_eq!(passive.log.take(), [("disconnect event", RESET)]);
        assert_eq!(bench.connections(), 0);
    }
}

// Loss of the device: all pending requests end with that reason, and new ones are rejected.
#[test]
fn device_loss_ends_all_requests() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    let mut connecting = Side::new(&bench, 0);
    let listener = active.adapter.create_listener(|_| {}).unwrap();
    bench.is_cut = true;
    active.receive(1, 0, 1);
    active.send(2, 0, 100_000);
    passive.receive(3, 0, 1);
    assert_eq!(
        passive.connector.as_ref().unwrap().disconnect(passive.log.note("disconnect")),
        NtStatus::PENDING
    );
    bench.settle();
    assert_eq!(start_connect(&bench, &mut connecting, b"", LIMITS), NtStatus::PENDING);
    for node in 0..2 {
        bench.lose_device(node);
    }
    assert_eq!(active.outcomes(), [(2, NtStatus::CANCELLED), (1, NtStatus::CANCELLED)]);
    assert_eq!(
        active.log.take(),
        [("disconnect event", NtStatus(DisconnectReason::DEVICE_LOST.0))]
    );
    assert_eq!(passive.outcomes(), [(3, NtStatus::CANCELLED)]);
    assert_eq!(passive.log.take(), [("disconnect", NtStatus::DEVICE_REMOVED)]);
    assert_eq!(connecting.log.take(), [("connect", NtStatus::DEVICE_REMOVED)]);
    assert_eq!(start_connect(&bench, &mut connecting, b"", LIMITS), NtStatus::DEVICE_REMOVED);
    let status = listener.listen("10.0.0.1:9".parse().unwrap(), active.log.note("listen"));
    assert_eq!(status, NtStatus::DEVICE_REMOVED);
}

// NDK-FL-1, -3, -4: flush on a queue pair that was never connected, and on a connected one.
#[test]
pub(super) fn flush() {
    let mut bench = Bench::new(1);
    let side = Side::new(&bench, 0);
    side.receive(1, 0, 1);
    side.receive(2, 0, 1);
    side.arm(crate::ndk::CqNotify::Any);
    side.qp.flush();
    bench.settle();
    assert_eq!(side.log.take(), [("cq", NtStatus::SUCCESS)], "one notification");
    assert_eq!(side.outcomes(), [(1, NtStatus::CANCELLED), (2, NtStatus::CANCELLED)]);
    let (active, passive) = connected(&mut bench);
    active.receive(3, 0, 1);
    let sge = active.sge(0, 100_000);
    let silent = OpFlags::SILENT_SUCCESS | OpFlags::DEFER;
    active.qp.send(4, Data::Registered(&[sge]), silent).unwrap();
    active.qp.flush();
    assert_eq!(active.outcomes(), [(4, NtStatus::CANCELLED), (3, NtStatus::CANCELLED)]);
    bench.settle();
    assert!(!active.qp.is_connected() && !passive.qp.is_connected());
    assert_eq!(active.qp.stats().flushed, 2);
    // NDK-DISC-4: this side ended the connection, so only the peer gets an event.
    assert_eq!(active.log.take(), []);
    assert_eq!(passive.log.take(), [("disconnect event", RESET)]);
}

// NDK-EP-6, -7: paused listeners refuse; resumed ones accept.
#[test]
pub(super) fn pause() {
    let mut bench = Bench::new(1);
    let (listener, mailbox) = listen(&mut bench);
    let mut active = Side::new(&bench, 0);
    listener.control_connect_events(true);
    assert_eq!(start_connect(&bench, &mut active, b"", LIMITS), NtStatus::PENDING);
    bench.settle();
    assert_eq!(active.log.take(), [("connect", NtStatus::CONNECTION_REFUSED)]);
    assert!(mailbox.lock().unwrap().is_empty());
    listener.control_connect_events(false);
    assert_eq!(start_connect(&bench, &mut active, b"", LIMITS), NtStatus::PENDING);
    bench.settle();
    assert_eq!(mailbox.lock().unwrap().len(), 1);
}

// RDM-8.1.1-8, SEC-6.4.6-1: a peer that overruns a completion queue does not affect connections on other queues.
#[test]
pub(super) fn overrun_does_not_affect_other_queues() {
    let mut bench = Bench::new(1);
    let (_listener, mailbox) = listen(&mut bench);
    let mut pairs = [0, 1].map(|_| (Side::new(&bench, 0), Side::new(&bench, 1)));
    for (active, passive) in &mut pairs {
        let incoming = request(&mut bench, &mailbox, active);
        accept(&mut bench, passive, &incoming);
        let connector = active.connector.clone().unwrap();
        let completed = connector.complete_connect(None, active.log.note("complete"));
        assert_eq!(completed, NtStatus::PENDING);
        bench.settle();
    }
    let [(bad, victim), (good, other)] = &pairs;
    victim.cq.resize(2).unwrap();
    for n in 0..4 {
        if bad.qp.is_connected() {
            victim.receive(n, 0, 1);
            bad.send(n, 0, 1);
        }
        other.receive(n, 0, 1);
        good.send(n, 0, 1);
        bench.settle();
    }
    assert_eq!(victim.adapter.counters().cq_error, 1);
    assert!(!victim.qp.is_connected() && !bad.qp.is_connected());
    assert_eq!(other.outcomes(), [0, 1, 2, 3].map(|n| (n, NtStatus::SUCCESS)));
    assert!(other.qp.is_connected() && good.qp.is_connected());
}

// NDK-CQ-13: the overrun of a queue terminates the connections on it.
#[test]
pub(super) fn overrun_terminates_connections() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    let idle =
        passive.pd.create_qp(&passive.cq, &passive.cq, 7, crate::ndk::QpLimits::default()).unwrap();
    passive.cq.resize(2).unwrap();
    passive.arm(crate::ndk::CqNotify::Errors);
    for n in 0..4 {
        passive.receive(n, 0, 1);
        active.send(n, 0, 1);
    }
    bench.settle();
    assert_eq!(
        passive.log.take(),
        [
            ("cq", NtStatus::BUFFER_OVERFLOW),
            ("disconnect event", NtStatus(DisconnectReason::CQ_OVERRUN.0))
        ]
    );
    assert_eq!(passive.outcomes(), []);
    assert_eq!(passive.adapter.counters().cq_error, 1);
    assert_eq!(active.log.take(), [("disconnect event", RESET)]);
    assert!(!active.qp.is_connected());
    let connector = passive.adapter.create_connector().unwrap();
    let remote = bench.server;
    let status = connector.connect(&idle, None, remote, LIMITS, b"", passive.log.note("connect"));
    assert_eq!(status, NtStatus::INVALID_DEVICE_STATE, "its completions would be lost");
}

// NDK-CQ-13: the overrun of a queue aborts the connects on it, and is not reported as a refusal by the peer.
#[test]
pub(super) fn overrun_aborts_connects() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    let remote = SocketAddr::new(bench.server.ip(), bench.server.port() + 1);
    let (_listener, mailbox) = listen_at(&mut bench, remote);
    let other =
        active.pd.create_qp(&active.cq, &active.cq, 7, crate::ndk::QpLimits::default()).unwrap();
    let connector = active.adapter.create_connector().unwrap();
    let status = connector.connect(&other, None, remote, LIMITS, b"", active.log.note("connect"));
    assert_eq!(status, NtStatus::PENDING);
    bench.settle();
    assert_eq!(mailbox.lock().unwrap().len(), 1, "the peer has not replied yet");
    active.cq.resize(2).unwrap();
    for n in 0..4 {
        passive.receive(n, 0, 1);
        active.send(n, 0, 1);
    }
    bench.settle();
    let events = active.log.take();
    assert!(events.contains(&("connect", NtStatus::CONNECTION_ABORTED)), "{events:?}");
    assert_eq!(active.adapter.counters().cq_error, 1);
}

// NDK-DISC-4: a disconnect from inside the event does not deadlock.
#[test]
pub(super) fn disconnect_inside_the_event() {
    let (mut bench, (_listener, mailbox), mut active, passive) = sides();
    let incoming = request(&mut bench, &mailbox, &mut active);
    let (connector, log) = (incoming.clone(), passive.log.clone());
    let event = Box::new(move |_| {
        assert_eq!(connector.disconnect(log.note("disconnect")), NtStatus::PENDING);
    });
    let status = incoming.accept(&passive.qp, LIMITS, b"", Some(event), |_| {});
    assert_eq!(status, NtStatus::PENDING);
    bench.settle();
    let connector = active.connector.clone().unwrap();
    let event = disconnect_event(&active.log);
    assert_eq!(connector.complete_connect(event, |_| {}), NtStatus::PENDING);
    bench.settle();
    assert_eq!(connector.disconnect(active.log.note("disconnect")), NtStatus::PENDING);
    bench.settle();
    assert_eq!(passive.log.take(), [("disconnect", NtStatus::SUCCESS)]);
    assert_eq!(bench.connections(), 0);
}

// RFC 6581 §9.2, NDK-CON-9: RTR by Write, by Read (invisible), by Send (consumes a receive), and none (revision 1 has
// none). Without RTR Accept waits for the first message, and nothing is sent before it.
#[test]
pub(super) fn ready_to_receive() {
    let none = RtrSet::NONE;
    let read = RtrSet::only(RtrKind::Read);
    let (write, send) = (RtrSet::only(RtrKind::Write), RtrSet::only(RtrKind::Send));
    let (one, two) = (Revision::One, Revision::Two);
    for (revision, rtr) in [(two, none), (two, write), (two, read), (two, send), (one, write)] {
        let mut bench = Bench::with(1, AdapterConfig { revision, rtr, ..AdapterConfig::default() });
        // Revision 1 cannot encode it (MPE-6-1).
        let rtr = if revision == one { none } else { rtr };
        let (_listener, mailbox) = listen(&mut bench);
        let mut active = Side::new(&bench, 0);
        let passive = Side::new(&bench, 1);
        passive.receive(1, 0, 10);
        passive.receive(2, 0, 10);
        let incoming = request(&mut bench, &mailbox, &mut active);
        accept(&mut bench, &passive, &incoming);
        let connector = active.connector.clone().unwrap();
        let note = active.log.note("complete");
        assert_eq!(connector.complete_connect(None, note), NtStatus::PENDING);
        bench.settle();
        assert_eq!(active.log.take().last(), Some(&("complete", NtStatus::SUCCESS)));
        let is_accepted = passive.log.take() == [("accept", NtStatus::SUCCESS)];
        assert_eq!(is_accepted, rtr != none, "{rtr:?}");
        assert_eq!(passive.qp.is_connected(), rtr != none);
        let by_rtr = usize::from(rtr.send);
        assert_eq!(passive.outcomes().len(), by_rtr, "a Send is a message like any other");
        // Reads and sends continue with the numbers after the RTR's.
        let source = passive.sge(0, 10);
        active.send(3, 0, 10);
        let sink = active.sge(0, 10);
        active.qp.read(4, &[sink], source.address, source.token, OpFlags::empty()).unwrap();
        bench.settle();
        assert_eq!(active.outcomes(), [(3, NtStatus::SUCCESS), (4, NtStatus::SUCCESS)]);
        assert_eq!(passive.outcomes(), [(1 + by_rtr as u64, NtStatus::SUCCESS)]);
        assert!(passive.qp.is_connected());
        assert_eq!(active.qp.stats().reads, 1, "the RTR does not count");
    }
}
