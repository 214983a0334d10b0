//! Compatibility of reservations.

use core::net::SocketAddr;

use offload_engine::chimney::client::ClientTag;

use super::*;
use crate::host::shards::ShardId;

const ANY: &str = "0.0.0.0:7000";
const OURS: &str = "10.0.0.1:7000";

fn at(local: &str) -> LocalAddress {
    local.parse::<SocketAddr>().unwrap().into()
}

/// Client of this consumer, on this shard.
fn holder(consumer: u64, shard: usize) -> Holder {
    let client = ClientId { shard: ShardId::numbered(shard), tag: ClientTag(consumer + 1) };
    Holder { client, consumer: ConsumerId(consumer) }
}

fn endpoint(id: u64) -> Name {
    Name::Endpoint(EndpointId(id))
}

fn listener(id: u64) -> Name {
    Name::Listener(ListenerId(id))
}

fn connection(id: u64) -> Name {
    Name::Connection(OffloadHandle(id))
}

fn claim(name: Name, local: &str, holder: Holder) -> Claim {
    Claim { name, local: at(local), holder, endpoint: None }
}

/// True if `wanted` is permitted while `there` is reserved.
fn coexist(there: (Name, &str, Holder), wanted: (Name, &str, Holder)) -> bool {
    let mut ports = Ports::new(50_000);
    ports.reserve(&claim(there.0, there.1, there.2));
    ports.permits(&claim(wanted.0, wanted.1, wanted.2))
}

#[test]
fn compatible_reservations_are_permitted() {
    let (own, other, sibling) = (holder(0, 0), holder(1, 0), holder(0, 1));
    let kinds = [endpoint(1), listener(1), connection(1)];
    // Rows and columns of the table in `ports`, for one consumer.
    let within = [[false, false, false], [false, false, false], [false, true, true]];
    for (row, there) in kinds.into_iter().enumerate() {
        for (column, wanted) in [endpoint(2), listener(2), connection(2)].into_iter().enumerate() {
            for local in [OURS, ANY] {
                let case = |holder| coexist((there, local, own), (wanted, OURS, holder));
                assert_eq!(case(own), within[row][column], "{there:?} {wanted:?}");
                assert!(!case(other), "{there:?} and another's {wanted:?}");
                // Addresses that overlap it.
                let covered = coexist((there, OURS, other), (wanted, local, own));
                assert!(!covered, "{there:?} {wanted:?}");
            }
            let elsewhere = ["10.0.0.2:7000", "10.0.0.1:7001", "[fd00::1]:7000"];
            for local in elsewhere {
                assert!(coexist((there, OURS, own), (wanted, local, other)), "{local}");
            }
            let v6 = (wanted, "[fd00::1]:7000", other);
            assert!(coexist((there, ANY, own), v6), "0.0.0.0 covers IPv4");
            assert!(!coexist((there, "[::]:7000", own), v6), "[::] covers IPv6");
            assert!(!coexist((there, "[::]:7000", own), (wanted, OURS, other)), "and IPv4");
        }
    }
    // Shards of one consumer share endpoints and listeners, on the same address.
    for there in [endpoint(1), listener(1)] {
        for wanted in [endpoint(2), listener(2)] {
            assert!(coexist((there, OURS, own), (wanted, OURS, sibling)));
            assert!(!coexist((there, ANY, own), (wanted, OURS, sibling)));
        }
        assert!(!coexist((there, OURS, own), (connection(2), OURS, sibling)));
    }
}

// The client that bound an endpoint uses it; the endpoint and its users end independently.
#[test]
fn endpoint_belongs_to_its_client() {
    let (own, other) = (holder(0, 0), holder(1, 0));
    let mut ports = Ports::new(50_000);
    ports.reserve(&claim(endpoint(1), OURS, own));
    let on = |name, holder, endpoint| Claim {
        endpoint: Some(EndpointId(endpoint)),
        ..claim(name, OURS, holder)
    };
    assert!(ports.permits(&on(listener(2), own, 1)));
    assert!(!ports.permits(&on(listener(2), other, 1)), "another client's");
    assert!(!ports.permits(&on(listener(2), own, 9)), "another name");
    assert_eq!(ports.endpoint(EndpointId(1), own.client), Ok(Some(at(OURS))));
    assert_eq!(ports.endpoint(EndpointId(1), other.client), Err(HostError::AddressInUse));
    assert_eq!(ports.endpoint(EndpointId(9), own.client), Ok(None));
    ports.reserve(&on(listener(2), own, 1));
    assert!(!ports.permits(&on(listener(3), own, 1)), "one listener");
    ports.unbind(EndpointId(1), other.client);
    assert!(!ports.permits(&claim(connection(4), OURS, own)));
    ports.unbind(EndpointId(1), own.client);
    assert!(!ports.is_unused(at(OURS)), "its listener stays");
    ports.release(listener(2));
    ports.release(listener(2));
    assert!(ports.is_unused(at(OURS)));
}

// An endpoint created for a connection is released if that fails, and remains if it ends.
#[test]
fn endpoint_outlives_an_opened_connection() {
    let own = holder(0, 0);
    let created = Claim { endpoint: Some(EndpointId(9)), ..claim(connection(1), OURS, own) };
    let mut ports = Ports::new(50_000);
    ports.reserve(&created);
    ports.fail(OffloadHandle(1));
    assert!(ports.is_unused(at(OURS)));
    ports.reserve(&created);
    ports.release(connection(1));
    assert!(!ports.is_unused(at(OURS)));
    // An endpoint that existed before remains in either case.
    ports.reserve(&Claim { name: connection(2), ..created });
    ports.fail(OffloadHandle(2));
    assert_eq!(ports.endpoint(EndpointId(9), own.client), Ok(Some(at(OURS))));
    ports.unbind(EndpointId(9), own.client);
    assert!(ports.is_unused(at(OURS)));
}

#[test]
fn departed_client_releases_its_reservations() {
    let (own, other) = (holder(0, 0), holder(1, 0));
    let mut ports = Ports::new(50_000);
    ports.reserve(&claim(endpoint(1), "10.0.0.1:1", own));
    ports.reserve(&claim(listener(2), "10.0.0.1:2", own));
    ports.reserve(&claim(connection(3), "10.0.0.1:3", own));
    ports.reserve(&claim(listener(4), "10.0.0.1:4", other));
    ports.release_client(own.client);
    let used =
        [1, 2, 3, 4].map(|port| !ports.is_unused(SocketAddr::from(([10, 0, 0, 1], port)).into()));
    assert_eq!(used, [false, false, false, true]);
    assert_eq!((ports.all.len(), ports.by_port.len()), (1, 1));
}

#[test]
fn ephemeral_ports_are_searched_once() {
    let mut ports = Ports::new(65_534);
    let walked = core::iter::repeat_with(|| ports.ephemeral(|_, _| true)).take(4);
    assert_eq!(walked.collect::<Vec<_>>(), [65_534, 65_535, 49_152, 49_153].map(Ok));
    assert_eq!(ports.ephemeral(|_, port| port == 60_000), Ok(60_000));
    assert_eq!(ports.ephemeral(|_, _| false), Err(HostError::NoPorts));
}
