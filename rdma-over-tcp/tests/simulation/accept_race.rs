//! A peer that accepts and then sends nothing. The adapter sends zero-length Writes after its first FPDU, if the peer
//! supports them. Tested with the adapter's connection in the offload target and in the host stack.

use std::net::SocketAddr;

use host_stack::socket::OffloadPolicy;
use offload_engine::{
    chimney::client::OffloadHandle,
    time::{Duration, Instant},
};
use rdma_over_tcp::{
    ddp::Msn,
    mpa::{
        Decoder,
        startup::{PrivateData, ReadLimits, Responder, ResponderConfig, Revision, RtrKind, RtrSet},
    },
    ndk::{AdapterConfig, Connector, Data, NtStatus, OpFlags, ReadLimit, RegisteredBuffer},
    rdmap::{Inbound, SendKind, parse, send_header},
};

use crate::{
    bench::Bench,
    foreign::{CallbackResults, Side},
    raw::{DELAY, Peer, assert_place, bench, config, fpdu},
};

const POLICIES: [OffloadPolicy; 2] = [OffloadPolicy::Always, OffloadPolicy::Never];
const LIMITS: ReadLimit = ReadLimit { inbound: 4, outbound: 4 };
/// Longer than the times of all empty Writes, shorter than any limit that ends a connection.
const LONG: Duration = Duration::from_secs(4);
const EMPTY_WRITES: usize = 6;
const SEND: u64 = 9;

/// Connection of the adapter to a peer whose MPA frames are built by the test.
struct Connected {
    bench: Bench,
    peer: Peer,
    handle: OffloadHandle,
    side: Side,
    connector: Connector,
    decoder: Decoder,
}

impl Connected {
    /// Runs until the Reply; the peer supports `rtr`.
    fn new(policy: OffloadPolicy, config: AdapterConfig, rtr: RtrSet) -> Self {
        let (mut bench, plan) = bench(policy, config);
        let peer = Peer::new(&mut bench);
        let remote = SocketAddr::new(plan.addresses[0], 7000);
        let listener = peer.now(&mut bench, |streams, _, _| streams.listen(remote, 4));
        peer.run(&mut bench, |streams, _, _| streams.listening(listener)?.ok());
        let side = Side::new(&bench.adapters[1]);
        let connector = bench.adapters[1].create_connector().unwrap();
        let done = CallbackResults::default();
        let status = connector.connect(&side.qp, None, remote, LIMITS, &[], done.callback());
        assert_eq!(status, NtStatus::PENDING);
        let handle = peer.run(&mut bench, |streams, _, _| streams.accept(listener));
        let request = peer
            .run(&mut bench, |streams, connections, now| streams.receive(now, connections, handle));
        let responder = Responder::new(ResponderConfig { rtr, ..ResponderConfig::default() });
        let offer = responder.receive(&request).unwrap().unwrap();
        let limits = ReadLimits { ird: 4, ord: 4 };
        let (reply, _) = offer.accept(limits, PrivateData::default());
        peer.send(&mut bench, handle, reply.to_vec());
        peer.until(&mut bench, || done.is_done());
        assert_eq!(done.take(), Some(NtStatus::SUCCESS));
        assert_place(&mut bench, policy);
        let decoder = Decoder::new(true, false);
        Self { bench, peer, handle, side, connector, decoder }
    }

    fn complete(&mut self) {
        let done = CallbackResults::default();
        assert_eq!(self.connector.complete_connect(None, done.callback()), NtStatus::PENDING);
        self.peer.until(&mut self.bench, || done.is_done());
        assert_eq!(done.take(), Some(NtStatus::SUCCESS));
    }

    fn send(&mut self) {
        self.side.qp.send(SEND, Data::Inline(&[b"hello"]), OpFlags::empty()).unwrap();
    }

    /// Returns the messages received until `time` after `begun`.
    fn messages(&mut self, begun: Instant, time: Duration) -> Vec<&'static str> {
        let handle = self.handle;
        let _ = self.bench.pair.run(begun + time, |pair| {
            let mut callbacks = Vec::new();
            pair.b.clients.take_callbacks(&mut callbacks);
            callbacks.into_iter().for_each(|callback| callback());
            None::<()>
        });
        let octets = self.peer.now(&mut self.bench, |streams, connections, now| {
            let mut octets = Vec::new();
            while let Some(data) = streams.receive(now, connections, handle) {
                octets.extend_from_slice(&data);
            }
            octets
        });
        let mut messages = Vec::new();
        let mut rest = &octets[..];
        while let Some(ulpdu) = self.decoder.next(&mut rest).unwrap() {
            messages.push(match parse(ulpdu).unwrap() {
                Inbound::Write { payload: [], .. } => "empty Write",
                Inbound::ReadRequest { .. } => "Read",
                Inbound::Send { .. } => "Send",
                other => panic!("{other:?}"),
            });
        }
        messages
    }

    fn empty_writes(&self) -> u64 {
        self.bench.adapters[1].counters().empty_writes
    }
}

// RDM-5.1-3, MPE-9.2-7: Writes after the RTR, no sooner than their times, which double, and no more than six.
#[test]
fn silent_peer_receives_empty_writes() {
    for policy in POLICIES {
        let config = config();
        let time = config.accept_race_timeout;
        let mut it = Connected::new(policy, config, RtrSet::only(RtrKind::Write));
        let begun = it.bench.pair.now;
        it.complete();
        assert_eq!(it.messages(begun, time), ["empty Write"], "{policy:?}: the RTR");
        let mut due = time;
        for sent in 1..=EMPTY_WRITES as u64 {
            let messages = it.messages(begun, due + 4 * DELAY);
            assert_eq!(messages, ["empty Write"], "{policy:?}: empty Write {sent}");
            assert_eq!(it.empty_writes(), sent);
            assert_eq!(it.messages(begun, due + time * (1 << sent)), [""; 0], "{policy:?}: {sent}");
            due += time * (1 << sent);
        }
        it.send();
        let begun = it.bench.pair.now;
        assert_eq!(it.messages(begun, LONG), ["Send"], "{policy:?}");
        assert_eq!(it.empty_writes(), EMPTY_WRITES as u64);
        assert_eq!(it.side.qp.stats().writes, 0, "not a request of the consumer");
        assert_eq!(it.side.outcome(SEND), Some(NtStatus::SUCCESS));
        assert!(it.side.qp.is_connected());
    }
}

// A peer that has sent a message has received the first one.
#[test]
fn peer_that_sends_receives_no_empty_writes() {
    for policy in POLICIES {
        let mut it = Connected::new(policy, config(), RtrSet::only(RtrKind::Write));
        it.side.receive(1, 64);
        let begun = it.bench.pair.now;
        it.complete();
        let send = fpdu(&send_header(true, SendKind::Plain, Msn(1), 0), b"hello");
        it.peer.send(&mut it.bench, it.handle, send);
        assert_eq!(it.messages(begun, LONG), ["empty Write"], "{policy:?}: the RTR");
        assert_eq!(it.side.outcome(1), Some(NtStatus::SUCCESS));
        assert_eq!(it.empty_writes(), 0);
    }
}

// A peer that sends before the consumer's first message gets no Writes either.
#[test]
fn peer_that_sends_first_receives_no_empty_writes() {
    let config = AdapterConfig { rtr: RtrSet::NONE, ..config() };
    for policy in POLICIES {
        let mut it = Connected::new(policy, config.clone(), RtrSet::only(RtrKind::Write));
        it.side.receive(1, 64);
        it.complete();
        let send = fpdu(&send_header(true, SendKind::Plain, Msn(1), 0), b"hello");
        it.peer.send(&mut it.bench, it.handle, send);
        let begun = it.bench.pair.now;
        assert_eq!(it.messages(begun, LONG), [""; 0], "{policy:?}");
        assert_eq!(it.side.outcome(1), Some(NtStatus::SUCCESS));
        it.send();
        let begun = it.bench.pair.now;
        assert_eq!(it.messages(begun, LONG), ["Send"], "{policy:?}");
        assert_eq!(it.empty_writes(), 0);
    }
}

// A peer that sends late gets no further Writes.
#[test]
fn late_peer_message_stops_empty_writes() {
    for policy in POLICIES {
        let config = config();
        let time = config.accept_race_timeout;
        let mut it = Connected::new(policy, config, RtrSet::only(RtrKind::Write));
        it.side.receive(1, 64);
        let begun = it.bench.pair.now;
        it.complete();
        assert_eq!(
            it.messages(begun, 2 * time),
            ["empty Write"; 2],
            "{policy:?}: RTR and empty Write"
        );
        let send = fpdu(&send_header(true, SendKind::Plain, Msn(1), 0), b"hello");
        it.peer.send(&mut it.bench, it.handle, send);
        assert_eq!(it.messages(begun, LONG), [""; 0], "{policy:?}");
        assert_eq!(it.side.outcome(1), Some(NtStatus::SUCCESS));
        assert_eq!(it.empty_writes(), 1);
        assert!(it.side.qp.is_connected());
    }
}

// A peer that selects a Read as RTR has not announced support of an empty Write.
#[test]
fn peer_with_other_rtr_receives_no_empty_writes() {
    let rtr = RtrSet { send: false, write: true, read: true };
    for policy in POLICIES {
        let config = AdapterConfig { rtr, ..config() };
        let mut it = Connected::new(policy, config, RtrSet::only(RtrKind::Read));
        let begun = it.bench.pair.now;
        it.complete();
        assert_eq!(it.messages(begun, LONG), ["Read"], "{policy:?}: the RTR");
        assert_eq!(it.empty_writes(), 0);
    }
}

// MPE-9.2-9, MPA-7.1.2-10: without an RTR, in the client-server model and with revision 1, the consumer sends the first
// message.
#[test]
fn empty_writes_follow_first_message() {
    let client_server = AdapterConfig { rtr: RtrSet::NONE, ..config() };
    let plain = AdapterConfig { revision: Revision::One, ..config() };
    for policy in POLICIES {
        for config in [client_server.clone(), plain.clone()] {
            let mut it = Connected::new(policy, config, RtrSet::only(RtrKind::Write));
            let begun = it.bench.pair.now;
            it.complete();
            assert_eq!(it.messages(begun, LONG), [""; 0], "{policy:?}");
            it.send();
            let begun = it.bench.pair.now;
            let messages = it.messages(begun, LONG);
            assert_eq!(messages.split_first(), Some((&"Send", &["empty Write"; EMPTY_WRITES][..])));
            assert_eq!(it.empty_writes(), EMPTY_WRITES as u64);
        }
    }
}

// Requests completed inside the adapter send no message: the empty Writes begin after the first one that does.
#[test]
fn late_first_message_is_followed_by_all_empty_writes() {
    let config = AdapterConfig { rtr: RtrSet::NONE, ..config() };
    for policy in POLICIES {
        let mut it = Connected::new(policy, config.clone(), RtrSet::only(RtrKind::Write));
        it.complete();
        let memory = RegisteredBuffer::allocate(64).unwrap();
        it.side.fast_registered(1, &memory, OpFlags::empty());
        let begun = it.bench.pair.now;
        assert_eq!(it.messages(begun, LONG), [""; 0], "{policy:?}");
        assert_eq!(it.side.outcome(1), Some(NtStatus::SUCCESS));
        it.send();
        let begun = it.bench.pair.now;
        let messages = it.messages(begun, LONG);
        assert_eq!(messages.split_first(), Some((&"Send", &["empty Write"; EMPTY_WRITES][..])));
    }
}

// A disconnect before the empty Write is due: the FIN wakes the peer.
#[test]
fn disconnect_stops_empty_writes() {
    for policy in POLICIES {
        let mut it = Connected::new(policy, config(), RtrSet::only(RtrKind::Write));
        let begun = it.bench.pair.now;
        it.complete();
        let done = CallbackResults::default();
        assert_eq!(it.connector.disconnect(done.callback()), NtStatus::PENDING);
        assert_eq!(it.messages(begun, LONG), ["empty Write"], "{policy:?}: the RTR");
        assert!(done.is_done());
        assert_eq!(it.empty_writes(), 0);
    }
}
