//! Invalidation: by the peer's Send, by a Read, by a local request.

use std::{net::SocketAddr, vec::Vec};

use super::{
    bench::Bench,
    sides::{ALL_RIGHTS, LIMITS, Side, connect_at, connected, pattern},
};
use crate::ndk::{Data, NdkResult, NtStatus, OpFlags, OperationType, Sge};

// NDK-RI-1, -4, NDK-RES-2, NDK-CQ-17, NDK-MEM-8, -9, -10: fast register, then invalidation by the peer.
#[test]
pub(super) fn fast_register_and_remote_invalidate() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    let mr = passive.pd.create_mr(true).unwrap();
    mr.initialize_fast_register(4, true).unwrap();
    let rights = OpFlags::ALLOW_REMOTE_WRITE;
    let token =
        passive.qp.fast_register(1, &mr, &passive.buffer, 0, 8192, 1 << 40, rights).unwrap();
    assert_eq!(token, mr.remote_token());
    bench.settle();
    let results = passive.poll();
    assert_eq!(
        (results[0].operation, results[0].status),
        (OperationType::FastRegister, NtStatus::SUCCESS)
    );
    active.fill(0, 100, 1);
    let sge = active.sge(0, 100);
    let data = Data::Registered(&[sge]);
    active.qp.write(2, data, (1 << 40) + 8000, token, OpFlags::empty()).unwrap();
    passive.receive(3, 20_000, 100);
    active.qp.send_and_invalidate(4, data, token, OpFlags::empty()).unwrap();
    bench.settle();
    let sent = active.poll();
    assert_eq!(
        sent.iter().map(|result| result.operation).collect::<Vec<_>>(),
        [OperationType::Write, OperationType::Send]
    );
    assert!(passive.content(8000, 100) == pattern(100, 1));
    let mut plain = [NdkResult::default(); 2];
    passive.receive(5, 20_000, 100);
    let results = passive.poll();
    assert_eq!(results[0].operation, OperationType::ReceiveAndInvalidate);
    assert_eq!(results[0].invalidated_token, token);
    // The plain poll works as well (NDK-CQ-17).
    let token = passive.qp.fast_register(6, &mr, &passive.buffer, 0, 8192, 0, rights).unwrap();
    bench.settle();
    assert_eq!(passive.cq.poll(&mut plain), 1);
    active.qp.send_and_invalidate(7, data, token, OpFlags::empty()).unwrap();
    bench.settle();
    assert_eq!(passive.cq.poll(&mut plain), 1);
    assert_eq!((plain[0].status, plain[0].bytes_transferred), (NtStatus::SUCCESS, 100));
    // A later invalidation fails, and with it the connection (NDK-CQ-17, NDK-MEM-10).
    passive.qp.invalidate(8, &mr, OpFlags::empty()).unwrap();
    bench.settle();
    assert_eq!(passive.outcomes(), [(8, NtStatus::INVALID_DEVICE_REQUEST)]);
    assert!(!passive.qp.is_connected() && !active.qp.is_connected());
}

// NDK-FLG-3: a successful read with local invalidate revokes the right.
#[test]
pub(super) fn read_with_local_invalidate() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    let mr = active.pd.create_mr(true).unwrap();
    mr.initialize_fast_register(1, false).unwrap();
    let token = active
        .qp
        .fast_register(0, &mr, &active.buffer, 0, 100, 0, OpFlags::ALLOW_LOCAL_WRITE)
        .unwrap();
    passive.fill(0, 100, 4);
    let source = passive.sge(0, 100);
    let sink = Sge { address: 0, length: 100, token };
    let flags = OpFlags::RDMA_READ_LOCAL_INVALIDATE;
    active.qp.read(1, &[sink], source.address, source.token, flags).unwrap();
    bench.settle();
    assert_eq!(active.outcomes(), [(0, NtStatus::SUCCESS), (1, NtStatus::SUCCESS)]);
    assert!(active.content(0, 100) == pattern(100, 4));
    active.qp.send(2, Data::Registered(&[sink]), OpFlags::empty()).unwrap();
    bench.settle();
    assert_eq!(active.outcomes(), [(2, NtStatus::ACCESS_VIOLATION)]);
}

/// Asserts that a Read fails that would invalidate the token of its empty first entry.
fn assert_refused_invalidation(bench: &mut Bench, active: &Side, passive: &Side, first: Sge) {
    let source = passive.sge(0, 100);
    let sinks = [first, active.sge(0, 100)];
    let flags = OpFlags::RDMA_READ_LOCAL_INVALIDATE;
    active.qp.read(1, &sinks, source.address, source.token, flags).unwrap();
    bench.settle();
    assert_eq!(active.outcomes(), [(1, NtStatus::ACCESS_VIOLATION)]);
}

// NDK-MEM-9, -15: the bytes of an empty entry are not looked up, so its token may belong to any region.
#[test]
pub(super) fn read_does_not_invalidate_foreign_region() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    let others = active.adapter.create_pd().unwrap().create_mr(false).unwrap();
    others.register(&active.buffer, 0, 100, ALL_RIGHTS).unwrap();
    let nothing = Sge { address: active.buffer.address(), length: 0, token: others.local_token() };
    assert_refused_invalidation(&mut bench, &active, &passive, nothing);
    let again = others.register(&active.buffer, 0, 100, ALL_RIGHTS);
    assert_eq!(again, Err(NtStatus::INVALID_PARAMETER), "it is still registered");
}

// NDK-FLG-3: a region registered by a work request in another domain is not invalidated either.
#[test]
fn read_does_not_invalidate_fast_region_of_other_domain() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    let (mut other, mut peer) = (Side::new(&bench, 0), Side::new(&bench, 1));
    let server = SocketAddr::new(bench.server.ip(), bench.server.port() + 1);
    connect_at(&mut bench, &mut other, &mut peer, [LIMITS; 2], server);
    let mr = other.pd.create_mr(true).unwrap();
    mr.initialize_fast_register(1, true).unwrap();
    let rights = OpFlags::ALLOW_REMOTE_WRITE;
    let token = other.qp.fast_register(1, &mr, &other.buffer, 0, 100, 0, rights).unwrap();
    bench.settle();
    assert_eq!(other.outcomes(), [(1, NtStatus::SUCCESS)]);

    let nothing = Sge { address: 0, length: 0, token: mr.local_token() };
    assert_refused_invalidation(&mut bench, &active, &passive, nothing);
    peer.qp.write(3, Data::Inline(&[b"open"]), 0, token, OpFlags::empty()).unwrap();
    bench.settle();
    assert_eq!(peer.outcomes(), [(3, NtStatus::SUCCESS)]);
    assert_eq!(other.content(0, 4), b"open");
}
