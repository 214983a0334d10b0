//! Shared endpoints, and the management entries of endpoints and connections.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    vec::Vec,
};

use super::{
    bench::Bench,
    sides::{LIMITS, Log, Side, connected, listen_at},
};
use crate::ndk::{Adapter, Connector, NtStatus, SharedEndpoint};

/// Creates a shared endpoint and returns the result of its completion.
pub(super) fn create(
    bench: &mut Bench,
    adapter: &Adapter,
    local: SocketAddr,
) -> Result<SharedEndpoint, NtStatus> {
    let outcome = Arc::new(Mutex::new(None));
    let result = outcome.clone();
    let status =
        adapter.create_shared_endpoint(local, move |made| *result.lock().unwrap() = Some(made));
    if status != NtStatus::PENDING {
        return Err(status);
    }
    bench.settle();
    let outcome = outcome.lock().unwrap().take();
    outcome.expect("a completion")
}

fn connect(
    bench: &mut Bench,
    side: &Side,
    endpoint: &SharedEndpoint,
    remote: SocketAddr,
) -> (Connector, NtStatus) {
    let connector = side.adapter.create_connector().unwrap();
    let note = side.log.note("connect");
    let qp = &side.qp;
    let status = connector.connect_with_shared_endpoint(qp, endpoint, remote, LIMITS, b"", note);
    bench.settle();
    (connector, status)
}

// NDK-EP-1, -2, -3, -4: one local address for connections to several peers. It is in use until the last of them, and
// the endpoint, are closed.
#[test]
pub(super) fn shared_endpoints() {
    let mut bench = Bench::new(1);
    let adapter = bench.nodes[0].adapter.clone();
    let [first, second] = [0, 1].map(|n| SocketAddr::new(bench.server.ip(), 7000 + n));
    let (_one, mailbox) = listen_at(&mut bench, first);
    let (_other, other_mailbox) = listen_at(&mut bench, second);
    let own = bench.address(0);
    let endpoint = create(&mut bench, &adapter, SocketAddr::new(own, 0)).unwrap();
    let local = endpoint.local_address().unwrap();
    assert_ne!(local.port(), 0);
    assert_eq!(create(&mut bench, &adapter, local).err(), Some(NtStatus::SHARING_VIOLATION));
    let listener = adapter.create_listener(|_| {}).unwrap();
    assert_eq!(listener.listen(local, |_| {}), NtStatus::SHARING_VIOLATION);
    let sides = [0, 1, 2].map(|_| Side::new(&bench, 0));
    let (connector, status) = connect(&mut bench, &sides[0], &endpoint, first);
    assert_eq!(status, NtStatus::PENDING);
    let (other, status) = connect(&mut bench, &sides[1], &endpoint, second);
    assert_eq!(status, NtStatus::PENDING);
    let (third, status) = connect(&mut bench, &sides[2], &endpoint, first);
    assert_eq!(status, NtStatus::ADDRESS_ALREADY_EXISTS);
    for mailbox in [mailbox, other_mailbox] {
        let incoming = mailbox.lock().unwrap().pop().expect("a connect event");
        assert_eq!(incoming.peer_address(), Some(local), "both use the endpoint's address");
        assert_eq!(incoming.reject(b""), NtStatus::SUCCESS);
    }
    bench.settle();
    assert_eq!(sides[0].log.take(), [("connect", NtStatus::CONNECTION_REFUSED)]);
    assert_eq!(sides[1].log.take(), [("connect", NtStatus::CONNECTION_REFUSED)]);
    // A failed connect releases the endpoint; a pending one references it (NDK-LIFE-5, -10).
    assert_eq!(third.close(|| {}), NtStatus::SUCCESS);
    let status =
        third.connect_with_shared_endpoint(&sides[2].qp, &endpoint, first, LIMITS, b"", |_| {});
    assert_eq!(status, NtStatus::INVALID_PARAMETER, "closed");
    let (third, status) = connect(&mut bench, &sides[2], &endpoint, first);
    assert_eq!(status, NtStatus::PENDING);
    let log = Log::default();
    let note = log.note("closed");
    assert_eq!(endpoint.close(move || note(NtStatus::SUCCESS)), NtStatus::PENDING);
    let status = connector.connect_with_shared_endpoint(
        &sides[0].qp,
        &endpoint,
        second,
        LIMITS,
        b"",
        |_| {},
    );
    assert_eq!(status, NtStatus::INVALID_PARAMETER, "it is being closed");
    assert_eq!(create(&mut bench, &adapter, local).err(), Some(NtStatus::SHARING_VIOLATION));
    assert_eq!(third.close(|| {}), NtStatus::PENDING);
    bench.settle();
    assert_eq!(log.take(), [("closed", NtStatus::SUCCESS)]);
    assert_eq!(endpoint.local_address(), None);
    assert_eq!(other.close(|| {}), NtStatus::SUCCESS);
    assert!(create(&mut bench, &adapter, local).is_ok(), "address is free again");
}

// NDK-MGT-1, SDK idea 18: two entries for each connection and each endpoint. The odd ones are those of TCP and have no
// owner.
#[test]
pub(super) fn management() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    let mut ends = Vec::new();
    for side in [&active, &passive] {
        let connections = side.adapter.connection_entries();
        assert!(connections.mapped_to_tcp_connections);
        let [of_ndk, of_tcp] = connections.entries[..] else { panic!("{connections:?}") };
        assert_eq!((of_ndk.user_mode_owner, of_ndk.owner_pid), (true, std::process::id()));
        assert_eq!((of_tcp.user_mode_owner, of_tcp.owner_pid), (false, 0));
        assert_eq!((of_ndk.local, of_ndk.remote), (of_tcp.local, of_tcp.remote));
        ends.push((of_tcp.local, of_tcp.remote));
    }
    assert_eq!((ends[0].0, ends[0].1), (ends[1].1, ends[1].0));
    let adapter = &active.adapter;
    assert_eq!(adapter.local_endpoints().entries, []);
    let local = SocketAddr::new(bench.address(0), 0);
    let endpoint = create(&mut bench, adapter, local).unwrap();
    let local = endpoint.local_address().unwrap();
    let listener = adapter.create_listener(|_| {}).unwrap();
    assert_eq!(listener.listen(SocketAddr::new(local.ip(), 7007), |_| {}), NtStatus::PENDING);
    bench.settle();
    let endpoints = adapter.local_endpoints();
    assert!(endpoints.mapped_to_tcp_local_endpoints);
    let rows: Vec<_> =
        endpoints.entries.iter().map(|it| (it.local.port(), it.listener, it.owner_pid)).collect();
    let pid = std::process::id();
    let port = local.port();
    assert_eq!(rows, [(7007, true, pid), (7007, true, 0), (port, false, pid), (port, false, 0)]);
}
