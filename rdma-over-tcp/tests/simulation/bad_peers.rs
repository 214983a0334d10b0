//! Peers that violate MPA, with the adapter's connection in the offload target and in the host stack.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use host_stack::{
    socket::{OffloadPolicy, Request},
    stream::Streams,
};
use offload_engine::time::{Duration, Instant};
use rdma_over_tcp::{
    ddp::{Msn, Stag, TaggedOffset},
    error::WireError,
    mpa::{
        Decoder,
        startup::{Frame, FrameKind, Revision},
    },
    ndk::{AdapterConfig, DisconnectReason, ListenerConfig, NtStatus, ReadLimit},
    rdmap::{
        Inbound, ReceivedTerminate, SendKind, TerminatePhase, parse, send_header, write_header,
    },
};

use crate::{
    bench::Bench,
    foreign::{CallbackResults, Side},
    raw::{DELAY, Peer, assert_place, bench, config, fpdu, initiator, listen, listen_with},
};

const POLICIES: [OffloadPolicy; 2] = [OffloadPolicy::Always, OffloadPolicy::Never];
const LIMITS: ReadLimit = ReadLimit { inbound: 4, outbound: 4 };
/// Several round trips, and less than any timeout.
const SOON: Duration = Duration::from_millis(100);

/// Returns the error of the only message in `octets` after the adapter's Reply: a Terminate.
fn terminate(octets: &[u8]) -> WireError {
    let mut decoder = Decoder::new(true, false);
    let mut rest = octets;
    let ulpdu = decoder.next(&mut rest).unwrap().unwrap();
    let Ok(Inbound::Terminate { payload, .. }) = parse(ulpdu) else { panic!("{ulpdu:02x?}") };
    let terminate = ReceivedTerminate::parse(payload, TerminatePhase::Operation).unwrap();
    assert!(rest.is_empty(), "octets after a Terminate");
    terminate.meant().number.known().unwrap()
}

// MPA-7.2-1, DDP-3-9, RDM-6.2.1-1, -2: a FIN within an FPDU or a message is reported with its reason, on both sides.
#[test]
fn early_fin_is_reported() {
    let send = |last, octets| fpdu(&send_header(last, SendKind::Plain, Msn(1), 0), octets);
    let whole = send(true, b"all of it");
    let write = fpdu(&write_header(false, Stag(0x100), TaggedOffset(0)), b"");
    let cases = [
        (whole[..1].to_vec(), DisconnectReason::WITHIN_FPDU.0),
        (whole[..whole.len() - 1].to_vec(), DisconnectReason::WITHIN_FPDU.0),
        (send(false, b"a part"), DisconnectReason::WITHIN_MESSAGE.0),
        (write, DisconnectReason::WITHIN_MESSAGE.0),
        (whole, 0),
        (Vec::new(), 0),
    ];
    for policy in POLICIES {
        for (octets, reason) in &cases {
            let (mut bench, plan) = bench(policy, config());
            let peer = Peer::new(&mut bench);
            let mut side = Side::new(&bench.adapters[1]);
            side.receive(1, 64);
            let remote = SocketAddr::new(plan.addresses[1], 7000);
            let (_listener, mailbox) = listen(&mut bench, remote);
            let (accepted, event) =
                (CallbackResults::default(), Arc::<Mutex<Option<u32>>>::default());
            let reason_slot = event.clone();
            let (handle, connector) = peer.establish(&mut bench, remote, &mailbox, |connector| {
                let event = Box::new(move |reason| *reason_slot.lock().unwrap() = Some(reason));
                let status =
                    connector.accept(&side.qp, LIMITS, &[], Some(event), accepted.callback());
                assert_eq!(status, NtStatus::PENDING);
            });
            peer.until(&mut bench, || accepted.is_done());
            assert_eq!(accepted.take(), Some(NtStatus::SUCCESS));
            assert_place(&mut bench, policy);
            let begun = bench.pair.now;
            if !octets.is_empty() {
                peer.send(&mut bench, handle, octets.clone());
            }
            peer.shutdown(&mut bench, handle);
            peer.until(&mut bench, || event.lock().unwrap().is_some());
            assert_eq!(*event.lock().unwrap(), Some(*reason), "{policy:?}, {octets:02x?}");
            if *reason == 0 {
                assert!(!side.qp.is_connected(), "posts still accepted");
                let done = CallbackResults::default();
                assert_eq!(connector.disconnect(done.callback()), NtStatus::PENDING);
                peer.until(&mut bench, || done.is_done());
                continue;
            }
            assert!(!side.qp.is_connected());
            assert_eq!(side.outcome(1), Some(NtStatus::CANCELLED));
            let (received, status) = peer.receive_all(&mut bench, handle);
            assert_eq!(terminate(&received), WireError::MpaConnectionLost);
            assert!(status.peer_closed, "no FIN after the Terminate: {status:?}");
            assert!(bench.pair.now - begun < SOON, "{policy:?}: ended by a timeout");
        }
    }
}

/// Start-up frame: key, then flags, revision, length and private data.
fn frame(kind: FrameKind, octets: &[u8]) -> Vec<u8> {
    [kind.key(), octets].concat()
}

/// Prefixes of octets that cannot become a frame of this kind.
fn no_frames(kind: FrameKind) -> Vec<Vec<u8>> {
    let other = match kind {
        FrameKind::Request => FrameKind::Reply,
        FrameKind::Reply => FrameKind::Request,
    };
    vec![
        b"H".to_vec(),
        kind.key()[..15].iter().chain(b"E").copied().collect(),
        other.key().to_vec(),
        frame(kind, &[0x40, 3]),
        frame(kind, &[0x40, 2, 0x02, 0x01]),
        frame(kind, &[0x50, 2, 0, 3]),
    ]
}

// MPA-7.1.2-3, MPA-7.1.2-14, MPA-8-3: octets that cannot become a Request end the connection immediately.
#[test]
fn no_request() {
    for policy in POLICIES {
        for octets in no_frames(FrameKind::Request) {
            let (mut bench, plan) = bench(policy, config());
            let peer = Peer::new(&mut bench);
            let remote = SocketAddr::new(plan.addresses[1], 7000);
            let (_listener, mailbox) = listen(&mut bench, remote);
            let handle = peer.connect(&mut bench, remote);
            let begun = bench.pair.now;
            peer.send(&mut bench, handle, octets.clone());
            let (received, status) = peer.receive_all(&mut bench, handle);
            assert!(received.is_empty() && status.error.is_some(), "{octets:02x?}: {status:?}");
            let took = bench.pair.now - begun;
            assert!((2 * DELAY..SOON).contains(&took), "{policy:?}, {octets:02x?}: {took:?}");
            assert!(mailbox.lock().unwrap().is_empty());
            assert_eq!(bench.adapters[1].counters().connect_failure, 1);
        }
    }
}

// MPA-7.1.2-7, MPA-7.1.2-14, MPA-8-3, MPE-10-3: octets that cannot become a Reply, or a Reply that does not match the
// Request, end the connection immediately. The connect completes immediately.
#[test]
fn no_reply() {
    let mut replies = no_frames(FrameKind::Reply);
    replies.push(frame(FrameKind::Reply, &[0x40, 1, 0, 0]));
    replies.push(frame(FrameKind::Reply, &[0x40, 2, 0, 0]));
    let invalid = "MPA: invalid Reply from the peer:";
    let frame = "not an MPA frame:";
    let short = "enhanced frame with 3 octets of private data: expected at least 4";
    let form =
        "without enhanced data, expected revision 2 with enhanced data: connect with revision 1";
    let words = [
        format!(
            "MPA: the peer's response is not a Reply: {frame} key of the frame: octet 0 differs"
        ),
        format!(
            "MPA: the peer's response is not a Reply: {frame} key of the frame: octet 15 differs"
        ),
        format!(
            "MPA: the peer's response is not a Reply: {frame} key of the frame: octet 9 differs"
        ),
        format!("{invalid} {frame} MPA revision 3: expected 0 to 2"),
        format!("{invalid} {frame} private data of 513 octets: expected at most 512"),
        format!("{invalid} {frame} {short}"),
        format!("{invalid} revision 1 {form}"),
        format!("{invalid} revision 2 {form}"),
    ];
    for policy in POLICIES {
        for (octets, words) in replies.iter().zip(&words) {
            let (mut bench, plan) = bench(policy, config());
            let peer = Peer::new(&mut bench);
            let remote = SocketAddr::new(plan.addresses[0], 7000);
            let listener = peer.now(&mut bench, |streams, _, _| streams.listen(remote, 4));
            let is_listening = |streams: &mut Streams| streams.listening(listener)?.ok();
            peer.run(&mut bench, |streams, _, _| is_listening(streams));
            let side = Side::new(&bench.adapters[1]);
            let connector = bench.adapters[1].create_connector().unwrap();
            let done = CallbackResults::default();
            let status = connector.connect(&side.qp, None, remote, LIMITS, &[], done.callback());
            assert_eq!(status, NtStatus::PENDING);
            let handle = peer.run(&mut bench, |streams, _, _| streams.accept(listener));
            // The Request has arrived.
            peer.run(&mut bench, |streams, connections, now| {
                streams.receive(now, connections, handle)
            });
            assert_place(&mut bench, policy);
            let begun = bench.pair.now;
            peer.send(&mut bench, handle, octets.clone());
            peer.until(&mut bench, || done.is_done());
            assert_eq!(done.take(), Some(NtStatus::CONNECTION_ABORTED), "{octets:02x?}");
            let why = connector.failure().unwrap().to_string();
            assert_eq!(why, format!("{words} (2/0/04)"));
            let status = peer.receive_all(&mut bench, handle).1;
            assert!(status.error.is_some(), "no reset: {status:?}");
            let took = bench.pair.now - begun;
            assert!((2 * DELAY..SOON).contains(&took), "{policy:?}, {octets:02x?}: {took:?}");
            // The queue pair may connect again (NDK-CON-1).
            assert!(!side.qp.is_connected());
        }
    }
}

// NDK-EP-9: connections that do not send their Request displace each other, oldest first, per peer or per listener, and
// are counted. A connection that has sent it is not displaced.
#[test]
fn silent_connections() {
    let limits = ListenerConfig::with_backlog(7);
    let few_of_a_peer = ListenerConfig { requests_max: 100, requests_per_peer_max: 3, ..limits };
    let few = ListenerConfig { requests_max: 3, requests_per_peer_max: 100, ..limits };
    for policy in POLICIES {
        for limits in [few, few_of_a_peer] {
            let (mut bench, plan) = bench(policy, config());
            let peer = Peer::new(&mut bench);
            let remote = SocketAddr::new(plan.addresses[1], 7000);
            let (_listener, mailbox) = listen_with(&mut bench, remote, limits);
            let (reply, rows) = crossbeam_channel::bounded(1);
            bench.pair.b.request(Request::List { only: None, reply });
            let polite = peer.connect(&mut bench, remote);
            peer.send(&mut bench, polite, initiator().request().to_vec());
            peer.until(&mut bench, || !mailbox.lock().unwrap().is_empty());
            let rows = rows.recv().unwrap();
            assert_eq!(rows.iter().find_map(|row| row.send_q), Some(7), "the backlog");

            let silent: Vec<_> = (0..5).map(|_| peer.connect(&mut bench, remote)).collect();
            for handle in &silent[..2] {
                let status = peer.receive_all(&mut bench, *handle).1;
                assert!(status.error.is_some(), "{policy:?}: no reset: {status:?}");
            }
            assert_place(&mut bench, policy);
            assert!(bench.pair.now < Instant::ZERO + SOON);
            let is_open = |streams: &mut Streams, handle| !streams.status(handle).unwrap().closed;
            for handle in silent[2..].iter().chain([&polite]) {
                assert!(peer.now(&mut bench, |streams, _, _| is_open(streams, *handle)));
            }
            let counters = bench.adapters[1].counters();
            assert_eq!((counters.requests_displaced, counters.connect_failure), (2, 2));

            // A late Request is accepted as an early one, and frees its slot.
            peer.send(&mut bench, silent[2], initiator().request().to_vec());
            peer.until(&mut bench, || mailbox.lock().unwrap().len() == 2);
            peer.connect(&mut bench, remote);
            assert_eq!(bench.adapters[1].counters().requests_displaced, 2);
        }
    }
}

/// Peer without RFC 6581, by its reaction to an enhanced Request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LegacyPeer {
    Closes,
    Resets,
    AnswersPlain,
}

// MPE-10-3: a peer without enhanced start-up gets a plain Request on a new connection, once, if the adapter is
// configured to retry.
#[test]
fn peer_without_rfc_6581_gets_a_plain_request() {
    let plain = frame(FrameKind::Reply, &[0x40, 1, 0, 0]);
    for policy in POLICIES {
        for old in [LegacyPeer::Closes, LegacyPeer::Resets, LegacyPeer::AnswersPlain] {
            for retry_plain in [true, false] {
                let (mut bench, plan) = bench(policy, AdapterConfig { retry_plain, ..config() });
                let peer = Peer::new(&mut bench);
                let remote = SocketAddr::new(plan.addresses[0], 7000);
                let listener = peer.now(&mut bench, |streams, _, _| streams.listen(remote, 4));
                peer.run(&mut bench, |streams, _, _| streams.listening(listener)?.ok());
                let side = Side::new(&bench.adapters[1]);
                let connector = bench.adapters[1].create_connector().unwrap();
                let done = CallbackResults::default();
                let status =
                    connector.connect(&side.qp, None, remote, LIMITS, b"", done.callback());
                assert_eq!(status, NtStatus::PENDING);
                let request = |bench: &mut Bench| {
                    let handle = peer.run(bench, |streams, _, _| streams.accept(listener));
                    let octets = peer.run(bench, |streams, connections, now| {
                        streams.receive(now, connections, handle)
                    });
                    (handle, Frame::parse(FrameKind::Request, &octets).unwrap().unwrap().0)
                };
                let (handle, first) = request(&mut bench);
                assert!(first.revision == Revision::Two && first.enhanced.is_some());
                match old {
                    LegacyPeer::Closes => peer.shutdown(&mut bench, handle),
                    LegacyPeer::Resets => peer.now(&mut bench, |streams, connections, now| {
                        streams.abort(now, connections, handle);
                    }),
                    LegacyPeer::AnswersPlain => peer.send(&mut bench, handle, plain.clone()),
                }
                if retry_plain {
                    let (handle, second) = request(&mut bench);
                    assert!(second.revision == Revision::One && second.enhanced.is_none());
                    assert!(!done.is_done());
                    peer.send(&mut bench, handle, plain.clone());
                }
                peer.until(&mut bench, || done.is_done());
                let is_connected = done.take() == Some(NtStatus::SUCCESS);
                assert_eq!(is_connected, retry_plain, "{policy:?}, {old:?}");
                let failures = bench.adapters[1].counters().connect_failure;
                assert_eq!(failures, u64::from(!retry_plain));
                assert_eq!(connector.failure().is_none(), retry_plain);
            }
        }
    }
}
