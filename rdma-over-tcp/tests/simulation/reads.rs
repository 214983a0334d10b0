//! Reads of a peer, above 16 KiB: the bytes sent while their source is written, and after it is revoked. The connection
//! is in the offload target and in the host stack, and frames are lost.

use std::net::SocketAddr;

use host_stack::socket::OffloadPolicy;
use offload_engine::{chimney::client::OffloadHandle, link::Impairments, time::Duration};
use rdma_over_tcp::{
    ddp::{Msn, Stag, TaggedOffset},
    error::WireError,
    mpa::Decoder,
    ndk::{AdapterConfig, Mr, MrFlags, NtStatus, OpFlags, ReadLimit, RegisteredBuffer},
    rdmap::{
        Inbound, ReadRequest, ReceivedTerminate, SendKind, Terminate, TerminatePhase, parse,
        read_request_header, send_header,
    },
};

use crate::{
    bench::Bench,
    foreign::{CallbackResults, Side},
    raw::{Peer, assert_place, bench_with, config, fpdu, listen},
};

const POLICIES: [OffloadPolicy; 2] = [OffloadPolicy::Always, OffloadPolicy::Never];
const LIMITS: ReadLimit = ReadLimit { inbound: 4, outbound: 4 };
/// More than the receive buffer of a peer that does not read, and than is in flight on a path of 20 µs.
const LARGE: usize = 4 << 20;
/// Above [`COPY_ASIDE_MAX`](rdma_over_tcp::ndk::COPY_ASIDE_MAX).
const SMALL: usize = 20_000;
/// Content of memory after its revocation.
const LATER: u8 = 0xee;

/// Connected peer, and the side that it reads from.
struct Fixture {
    bench: Bench,
    peer: Peer,
    handle: OffloadHandle,
    side: Side,
    /// Octets received by the peer after the Reply.
    octets: Vec<u8>,
}

impl Fixture {
    fn new(policy: OffloadPolicy, seed: u64) -> Self {
        let mut adapter: AdapterConfig = config();
        adapter.limits.fast_register_pages_max = 1024;
        let drop_pct = if seed == 0 { 0.0 } else { 3.0 };
        let lossy = Impairments {
            delay: Duration::from_micros(10),
            drop_pct,
            seed,
            ..Impairments::default()
        };
        let (mut bench, plan) = bench_with(policy, adapter, lossy);
        let peer = Peer::new(&mut bench);
        let side = Side::new(&bench.adapters[1]);
        let remote = SocketAddr::new(plan.addresses[1], 7000);
        let (_listener, mailbox) = listen(&mut bench, remote);
        let accepted = CallbackResults::default();
        let (handle, _connector) = peer.establish(&mut bench, remote, &mailbox, |connector| {
            let status = connector.accept(&side.qp, LIMITS, &[], None, accepted.callback());
            assert_eq!(status, NtStatus::PENDING);
        });
        peer.until(&mut bench, || accepted.is_done());
        assert_eq!(accepted.take(), Some(NtStatus::SUCCESS));
        assert_place(&mut bench, policy);
        Self { bench, peer, handle, side, octets: Vec::new() }
    }

    fn memory(&self, octets: usize) -> RegisteredBuffer {
        let memory = self.bench.adapters[1].allocate(octets).unwrap();
        memory.write_at(0, &pattern(octets));
        memory
    }

    fn registered(&self, octets: usize) -> (RegisteredBuffer, Mr) {
        let memory = self.memory(octets);
        let mr = self.side.register(&memory, MrFlags::ALLOW_REMOTE_READ);
        (memory, mr)
    }

    /// Sends a Read Request for the whole region, with reserved bits set. Returns the ULPDU.
    fn request_read(&mut self, msn: u32, address: u64, token: u32, octets: usize) -> Vec<u8> {
        let request = ReadRequest {
            sink_stag: Stag(0x0707_0700 + msn),
            sink_offset: TaggedOffset(1 << 40),
            octets: octets as u32,
            source_stag: Stag(token),
            source_offset: TaggedOffset(address),
        };
        let mut ulpdu = read_request_header(Msn(msn), &request).to_vec();
        ulpdu[0] |= 0x3c;
        ulpdu[1] |= 0x30;
        self.peer.send(&mut self.bench, self.handle, fpdu(&ulpdu, b""));
        ulpdu
    }

    /// Runs without reading at the peer, until no more data can arrive.
    fn stall(&mut self) {
        let until = self.bench.pair.now + Duration::from_secs(2);
        let _ = self.bench.pair.run(until, |_| None::<()>);
        self.bench.pair.now = until;
    }

    /// Receives until the peer has `wanted` octets of responses, or the connection has ended; `each` is called between
    /// any two events.
    fn drain(&mut self, wanted: usize, mut each: impl FnMut()) -> Drained {
        let Self { bench, peer, handle, octets, .. } = self;
        peer.run(bench, |streams, connections, now| {
            each();
            let before = octets.len();
            while let Some(data) = streams.receive(now, connections, *handle) {
                octets.extend_from_slice(&data);
            }
            let status = streams.status(*handle)?;
            let is_over = status.peer_closed || status.closed;
            (octets.len() > before || is_over).then_some(())?;
            let drained = Drained::of(octets);
            (is_over || drained.data.len() >= wanted).then_some(drained)
        })
    }
}

fn pattern(octets: usize) -> Vec<u8> {
    (0..octets).map(|at| (at % 233) as u8).collect()
}

/// Data received: responses, and a Terminate with its octets.
#[derive(Debug, Default)]
struct Drained {
    data: Vec<u8>,
    terminate: Option<(Terminate, Vec<u8>)>,
}

impl Drained {
    /// Decodes the octets; every FPDU must be complete, with a valid CRC.
    fn of(octets: &[u8]) -> Self {
        let (mut decoder, mut rest) = (Decoder::new(true, false), octets);
        let mut drained = Self::default();
        while let Some(ulpdu) = decoder.next(&mut rest).expect("valid CRC") {
            assert!(drained.terminate.is_none(), "FPDU after a Terminate");
            match parse(ulpdu).unwrap() {
                Inbound::ReadResponse { payload, .. } => drained.data.extend_from_slice(payload),
                Inbound::Terminate { payload, .. } => {
                    let phase = TerminatePhase::Operation;
                    let terminate = ReceivedTerminate::parse(payload, phase).unwrap().rfc;
                    drained.terminate = Some((terminate, payload.to_vec()));
                }
                other => panic!("{other:?}"),
            }
        }
        drained
    }

    /// Asserts that the Terminate reports this Read Request after `sent` octets: the DDP header as received, and the
    /// unanswered rest.
    fn assert_terminate(&self, error: WireError, ulpdu: &[u8], sent: usize) {
        let (terminate, octets) = self.terminate.as_ref().expect("a Terminate");
        assert_eq!(terminate.number.known(), Some(error));
        assert_eq!(terminate.segment_octets, Some(ulpdu.len() as u16));
        assert_eq!(octets[6..24], ulpdu[..18], "the DDP header");
        let Ok(Inbound::ReadRequest { request, .. }) = parse(ulpdu) else { panic!() };
        assert_eq!(terminate.read_request, Some(request.advanced(sent as u32)));
    }
}

// RDM-7.1-4, RDM-6.2.1-3: the source is revoked before the response starts: the Terminate has the headers of that very
// request.
#[test]
fn revoked_before_its_turn() {
    for policy in POLICIES {
        for seed in 0..3 {
            let mut fixture = Fixture::new(policy, seed);
            let (first, first_mr) = fixture.registered(LARGE);
            let (second, second_mr) = fixture.registered(SMALL);
            fixture.request_read(1, first.address(), first_mr.remote_token(), LARGE);
            let ulpdu = fixture.request_read(2, second.address(), second_mr.remote_token(), SMALL);
            fixture.stall();
            assert_eq!(second_mr.deregister(|| {}), NtStatus::SUCCESS);
            let drained = fixture.drain(usize::MAX, || {});
            assert!(
                drained.data == pattern(LARGE),
                "{policy:?}, seed {seed}: first response incomplete"
            );
            drained.assert_terminate(WireError::ProtectionInvalidStag, &ulpdu, 0);
        }
    }
}

/// Revocation of a region that a peer reads from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Revocation {
    Deregister,
    Close,
    Invalidate,
    /// By a Send with Invalidate of the peer.
    ByPeer,
}

/// Revokes the region in the middle of a response, and overwrites the memory when that is complete.
fn revoked_midway(policy: OffloadPolicy, seed: u64, revocation: Revocation) {
    let mut fixture = Fixture::new(policy, seed);
    let memory = fixture.memory(LARGE);
    let is_fast = matches!(revocation, Revocation::Invalidate | Revocation::ByPeer);
    let (mr, address) = match is_fast {
        false => (fixture.side.register(&memory, MrFlags::ALLOW_REMOTE_READ), memory.address()),
        true => {
            let mr = fixture.side.fast_registered(1, &memory, OpFlags::ALLOW_REMOTE_READ);
            let Fixture { bench, peer, side, .. } = &mut fixture;
            peer.until(bench, || side.outcome(1).is_some());
            (mr, 0)
        }
    };
    let token = mr.remote_token();
    let ulpdu = fixture.request_read(1, address, token, LARGE);
    fixture.stall();
    let done = CallbackResults::default();
    let callback = done.callback();
    let end = move || callback(NtStatus::SUCCESS);
    match revocation {
        Revocation::Deregister => assert_eq!(mr.deregister(end), NtStatus::SUCCESS),
        Revocation::Close => {
            let status = mr.close(end);
            let Fixture { bench, peer, .. } = &mut fixture;
            if status == NtStatus::PENDING {
                peer.until(bench, || done.is_done());
            }
        }
        Revocation::Invalidate => {
            fixture.side.qp.invalidate(2, &mr, OpFlags::empty()).unwrap();
            // It is processed after the response.
            assert_eq!(fixture.side.outcome(2), None);
            let drained = fixture.drain(LARGE, || {});
            assert!(drained.data == pattern(LARGE), "{policy:?}, seed {seed}");
            let Fixture { bench, peer, side, .. } = &mut fixture;
            peer.until(bench, || side.outcome(2).is_some());
            assert_eq!(side.outcome(2), Some(NtStatus::SUCCESS));
            let ulpdu = fixture.request_read(2, address, token, SMALL);
            let drained = fixture.drain(usize::MAX, || {});
            return drained.assert_terminate(WireError::ProtectionInvalidStag, &ulpdu, 0);
        }
        Revocation::ByPeer => {
            fixture.side.qp.receive(3, &[]).unwrap();
            let kind = SendKind::Invalidate(Stag(token));
            let send = fpdu(&send_header(true, kind, Msn(1), 0), b"");
            let Fixture { bench, peer, handle, side, .. } = &mut fixture;
            peer.send(bench, *handle, send);
            peer.until(bench, || side.outcome(3).is_some());
            assert_eq!(side.outcome(3), Some(NtStatus::SUCCESS));
        }
    }
    memory.write_at(0, &vec![LATER; LARGE]);
    let drained = fixture.drain(usize::MAX, || {});
    let sent = drained.data.len();
    assert!(sent > SMALL && sent < LARGE, "{policy:?}, seed {seed}, {revocation:?}: {sent}");
    assert!(drained.data == pattern(LARGE)[..sent], "bytes written after the revocation");
    drained.assert_terminate(WireError::ProtectionInvalidStag, &ulpdu, sent);
}

// RDM-8.1.1-4, RDM-7.1-4: after a deregistration, a close or an invalidation is complete, no later byte of the region
// is sent. A Terminate reports the rest of the Read.
#[test]
fn nothing_is_sent_after_revocation() {
    for policy in POLICIES {
        for revocation in
            [Revocation::Deregister, Revocation::Close, Revocation::Invalidate, Revocation::ByPeer]
        {
            (0..3).for_each(|seed| revoked_midway(policy, seed, revocation));
        }
    }
}

// MPA-4.4-9: the source is written continuously while the response is built, queued, sent and retransmitted. Every CRC
// matches the octets received.
#[test]
fn written_while_it_is_read() {
    for policy in POLICIES {
        for (seed, octets) in [(1, LARGE), (2, LARGE), (3, SMALL), (4, SMALL)] {
            let mut fixture = Fixture::new(policy, seed);
            let (memory, mr) = fixture.registered(octets);
            fixture.request_read(1, memory.address(), mr.remote_token(), octets);
            let mut round = 0_usize;
            let drained = fixture.drain(octets, || {
                round += 1;
                let piece = SMALL / 2;
                memory.write_at(round * 7919 % (octets - piece), &vec![round as u8; piece]);
            });
            assert_eq!(drained.data.len(), octets);
            assert!(drained.terminate.is_none());
        }
    }
}
