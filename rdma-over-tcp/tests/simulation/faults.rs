//! Errors that end a connection, on a bad network: the statuses on both sides, no data placed, and the other queue
//! pairs of the same adapters are not affected.

use oorandom::Rand64;
use rdma_over_tcp::{
    mpa::startup::{RtrKind, RtrSet},
    ndk::{Data, DisconnectReason, NtStatus, OpFlags, Sge},
};

use crate::{
    bench::Bench,
    plan::{Conversation, GUARD, Plan},
    scenario::{DisconnectOrder, World},
    side::Side,
};

/// Networks per error.
const SEEDS: u64 = 12;
/// Bytes of a request that is in flight when the peer ends the connection: more than TCP sends at once.
const LARGE: usize = 300 * 1024;
/// Context of the faulty request.
const FAULTY: u64 = 1000;
/// Context of the requests after it.
const AFTER: u64 = 1001;

/// Error of the active side.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    WriteBeyond,
    WriteWithWrongToken,
    ReadBeyond,
    ReadWithWrongToken,
    AtomicWithoutRight,
    SendTooLong,
    SendWithoutReceive,
}

impl Fault {
    /// Layer, type and code of the Terminate.
    const fn code(self) -> u32 {
        match self {
            Self::WriteBeyond => 0x1101,
            Self::WriteWithWrongToken => 0x1100,
            Self::ReadBeyond => 0x0101,
            Self::ReadWithWrongToken => 0x0100,
            Self::AtomicWithoutRight => 0x0102,
            Self::SendTooLong => 0x1205,
            Self::SendWithoutReceive => 0x1202,
        }
    }

    /// Status of the request if the Terminate arrives before its completion. TCP may have acknowledged all of a write
    /// or send before: then it is SUCCESS. A read or an atomic completes with its response.
    const fn status(self) -> NtStatus {
        match self {
            Self::WriteBeyond
            | Self::WriteWithWrongToken
            | Self::ReadBeyond
            | Self::ReadWithWrongToken
            | Self::AtomicWithoutRight => NtStatus::ACCESS_VIOLATION,
            Self::SendTooLong => NtStatus::REMOTE_RESOURCES,
            Self::SendWithoutReceive => NtStatus::IO_TIMEOUT,
        }
    }

    const fn is_read(self) -> bool {
        matches!(self, Self::ReadBeyond | Self::ReadWithWrongToken | Self::AtomicWithoutRight)
    }

    /// Statuses of the receives posted by the passive side.
    const fn receives(self) -> &'static [NtStatus] {
        match self {
            Self::SendTooLong => &[NtStatus::BUFFER_OVERFLOW, NtStatus::CANCELLED],
            Self::SendWithoutReceive => &[],
            _ => &[NtStatus::CANCELLED],
        }
    }

    fn commit(self, active: &Side, passive: &Side) {
        let end = passive.plan.image.len() - GUARD;
        // The first segment already exceeds the registered span by all but ten bytes.
        let beyond = passive.buffer.address() + end as u64 - 10;
        let source = passive.buffer.address() + passive.plan.source.start as u64;
        let [readable, writable] = passive.regions.each_ref().map(|mr| mr.remote_token());
        let large = active.plan.source.start..active.plan.source.start + LARGE;
        let sges = active.sges(&[large]);
        let data = Data::Registered(&sges);
        let sink = || {
            let target = active.plan.source.end..active.plan.source.end + 1;
            let [Sge { address, token, .. }] = active.sges(&[target])[..] else { unreachable!() };
            [Sge { address, length: 1, token }]
        };
        let (qp, flags) = (&active.qp, OpFlags::empty());
        for context in (FAULTY..).take(self.receives().len()) {
            let byte = passive.plan.source.end..passive.plan.source.end + 1;
            passive.qp.receive(context, &passive.sges(&[byte])).unwrap();
        }
        match self {
            Self::WriteBeyond => qp.write(FAULTY, data, beyond, writable, flags),
            Self::WriteWithWrongToken => qp.write(FAULTY, data, source, writable ^ 1, flags),
            Self::ReadBeyond => qp.read(FAULTY, &sink(), source - 1, readable, flags),
            Self::ReadWithWrongToken => qp.read(FAULTY, &sink(), source, readable ^ 1, flags),
            Self::AtomicWithoutRight => {
                let start = active.plan.source.end;
                let result = start..start + 8;
                let sge = active.sges(&[result])[0];
                qp.fetch_add(FAULTY, sge, source, writable, 1, flags)
            }
            Self::SendTooLong | Self::SendWithoutReceive => qp.send(FAULTY, data, flags),
        }
        .unwrap();
        qp.send(AFTER, Data::Registered(&[]), OpFlags::READ_FENCE).unwrap();
    }
}

/// Runs one seed. Returns true if the faulty request completed with the error.
fn scenario(fault: Fault, seed: u64) -> bool {
    let mut rng = Rand64::new(u128::from(seed) << 8);
    let mut plan = Plan::with(&mut rng, true);
    for adapter in &mut plan.adapters {
        adapter.rtr = RtrSet::only(RtrKind::Write);
        adapter.rfc7306 |= fault == Fault::AtomicWithoutRight;
    }
    let conversations = vec![
        Conversation::minimal(&mut rng, LARGE),
        Conversation::new(&mut rng, &plan),
        Conversation::new(&mut rng, &plan),
    ];
    let mut bench = Bench::new(&plan, [rng.rand_u64(), rng.rand_u64()]);
    let mut world = World::new(&mut rng, &bench, plan, conversations);
    world.listen(&mut bench);
    world.connect(&bench);
    let outcome = bench.run(|| {
        world.act();
        world.pairs[0].iter().all(Side::is_done)
    });
    world.check(&bench, "first messages", outcome);
    let [active, passive] = &mut world.pairs[0];
    (active.after, passive.after) = (Some(Vec::new()), Some(Vec::new()));
    fault.commit(active, passive);
    let outcome = bench.run(|| {
        world.act();
        let is_ended = |side: &Side| !side.results.lock().unwrap().events.is_empty();
        world.is_done() && world.pairs[0].iter().all(is_ended)
    });
    world.check(&bench, "error", outcome);

    let [active, passive] = &world.pairs[0];
    let by_peer = DisconnectReason::terminated(DisconnectReason(fault.code()).number());
    for (side, reason) in [(active, by_peer.0), (passive, fault.code())] {
        assert_eq!(side.results.lock().unwrap().events, [reason], "{fault:?}");
        assert!(!side.qp.is_connected());
    }
    assert_eq!((passive.qp.stats().terminates_out, active.qp.stats().terminates_in), (1, 1));
    let statuses = |side: &Side| -> Vec<_> {
        let results = side.after.iter().flatten();
        results.map(|result| (result.request_context, result.status)).collect()
    };
    let receives: Vec<_> = (FAULTY..).zip(fault.receives().iter().copied()).collect();
    assert_eq!(statuses(passive), receives, "{fault:?}");
    let has_failed = statuses(active)[0].1 == fault.status();
    let after = statuses(active)[1].1;
    match has_failed {
        true => {
            assert_eq!(active.after.as_ref().unwrap()[0].provider_error_code, fault.code());
            assert_eq!(after, NtStatus::CANCELLED);
        }
        false => {
            assert!(!fault.is_read(), "{:?}", statuses(active));
            assert_eq!(statuses(active)[0].1, NtStatus::SUCCESS);
            assert!([NtStatus::SUCCESS, NtStatus::CANCELLED].contains(&after));
        }
    }
    assert_eq!(statuses(active), [(FAULTY, statuses(active)[0].1), (AFTER, after)]);

    world.settle_shared();
    world.pairs.iter().flatten().for_each(Side::assert_image);
    let orders = [DisconnectOrder::Both; 3];
    let outcome = bench.run(|| world.disconnect(&orders));
    world.check(&bench, "disconnect", outcome);
    for adapter in &bench.adapters {
        let counters = adapter.counters();
        assert_eq!((counters.connection_error, counters.active_connection), (1, 0));
    }
    world.close(&mut rng, &mut bench);
    has_failed
}

fn on_all_networks(fault: Fault) {
    let failed = (0..SEEDS).filter(|seed| scenario(fault, *seed)).count();
    assert!(failed > 0, "{fault:?}: error never reported");
}

// RFC 5041 §7.1, NDK-ERR-1
#[test]
fn write_beyond_the_region() {
    on_all_networks(Fault::WriteBeyond);
}

// RFC 5041 §7.1, NDK-ERR-1
#[test]
fn write_with_a_wrong_token() {
    on_all_networks(Fault::WriteWithWrongToken);
}

// RFC 5040 §7.2, NDK-ERR-2
#[test]
fn read_beyond_the_region() {
    on_all_networks(Fault::ReadBeyond);
}

// RFC 5040 §7.2, NDK-ERR-2
#[test]
fn read_with_a_wrong_token() {
    on_all_networks(Fault::ReadWithWrongToken);
}

// RFC 7306 §8.2, EXT-8.1-1
#[test]
fn atomic_without_the_right() {
    on_all_networks(Fault::AtomicWithoutRight);
}

// RFC 5041 §7.1, NDK-ERR-3, -5
#[test]
fn send_longer_than_the_receive() {
    on_all_networks(Fault::SendTooLong);
}

// RFC 5041 §7.1, NDK-ERR-4
#[test]
fn send_without_a_receive() {
    on_all_networks(Fault::SendWithoutReceive);
}
