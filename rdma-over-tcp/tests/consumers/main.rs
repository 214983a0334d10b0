//! Byte streams and NDK as two consumers of one node. They share its addresses, but no port. Each gets the events of
//! its own connections; one that is removed releases its own resources, and the other is not affected.
#![cfg(not(loom))]

mod ends;
#[path = "../../../host-stack/tests/threads/link.rs"]
mod link;

use host_stack::{
    socket::HostError,
    stream::{OffloadState, Streams},
};
use offload_engine::{
    engine::{CLIENTS_MAX, TooManyClients},
    link::MemoryLinkOptions,
};
use rdma_over_tcp::ndk::{AdapterConfig, NtStatus, open_on};

use self::ends::{Calls, Host, at, closed};

const PORT: u16 = 5000;

/// Creates two nodes on one link.
fn hosts() -> [Host; 2] {
    let (one, other) = link::bell_links(MemoryLinkOptions::default());
    [ends::start(0, Box::new(one)), ends::start(1, Box::new(other))]
}

// NDK-EP-1, -2: byte streams cannot use an endpoint of NDK until NDK releases it.
#[test]
fn ndk_port_is_refused_to_streams() {
    let [near, far] = hosts();
    let any = (std::net::Ipv4Addr::UNSPECIFIED, PORT).into();
    let (listener, incoming) = far.ndk_listen(at(1, PORT)).unwrap();
    for local in [at(1, PORT), any] {
        assert_eq!(far.streams.listen(local).err(), Some(HostError::AddressInUse));
        assert_eq!(far.streams.bind(local), Err(HostError::AddressInUse));
    }
    let from = far.streams.connect(Some(at(1, PORT)), at(0, 9));
    assert_eq!(from, Err(HostError::AddressInUse));

    let [one, other] = near.ndk_pair(&far, &incoming, at(1, PORT));
    let local = one.connector.local_address().unwrap();
    assert_eq!(near.streams.listen(local).err(), Some(HostError::AddressInUse));
    // The connection ends; connector and listener keep their endpoints until they are closed.
    assert_eq!(one.qp.close(|| {}), NtStatus::PENDING);
    other.disconnected();
    assert_eq!(near.streams.bind(local), Err(HostError::AddressInUse));
    closed(&near.ndk, |done| one.connector.close(done));
    assert_eq!(near.streams.bind(local), Ok(local));

    let closing = listener.close(|| {});
    assert_eq!(closing, NtStatus::PENDING, "NDK-EP-5: an accepted connector is left");
    assert_eq!(far.streams.bind(at(1, PORT)), Err(HostError::AddressInUse));
    closed(&far.ndk, |done| other.connector.close(done));
    assert_eq!(far.streams.listen(at(1, PORT)).map(|(_, local)| local), Ok(at(1, PORT)));
}

// NDK cannot use an endpoint of a byte stream either.
#[test]
fn stream_port_is_refused_to_ndk() {
    let [near, far] = hosts();
    let in_use = Some(NtStatus::SHARING_VIOLATION);
    let (listener, _) = far.streams.listen(at(1, PORT)).unwrap();
    assert_eq!(far.ndk_listen(at(1, PORT)).err(), in_use);
    let bound = far.streams.bind(at(1, 0)).unwrap();
    assert_eq!(far.ndk_listen(bound).err(), in_use);

    let handle = near.streams.connect(None, at(1, PORT)).unwrap();
    far.streams.accept(listener);
    let local = near.streams.with(|streams, _, _| streams.status(handle)).unwrap().local.unwrap();
    assert_eq!(near.ndk_listen(local).err(), in_use);
    assert_eq!(near.ndk_connect(Some(local), at(1, 9)).err(), in_use);
    // NDK may request a refused endpoint again.
    near.streams.with(|streams, connections, now| streams.forget(now, connections, handle));
    let listened = near.ndk.wait_until(Some(ends::LIMIT), || near.ndk_listen(local).ok());
    assert!(listened.is_ok(), "port still in use after its connection was removed");
    far.streams.unlisten(listener);
    let (_, incoming) = far.ndk_listen(at(1, PORT)).unwrap();
    near.ndk_pair(&far, &incoming, at(1, PORT));
}

/// Both consumers concurrently between two nodes, on one address of each.
#[test]
fn both_move_data_on_one_address() {
    let [near, far] = hosts();
    let (listener, _) = far.streams.listen(at(1, PORT)).unwrap();
    let (_keep, incoming) = far.ndk_listen(at(1, PORT + 1)).unwrap();
    let one = near.streams.connect(None, at(1, PORT)).unwrap();
    let other = far.streams.accept(listener);
    let pairs = [(); 2].map(|()| near.ndk_pair(&far, &incoming, at(1, PORT + 1)));
    for round in 0..10_u8 {
        let data = [round; 100];
        near.streams.send(one, &data);
        far.streams.send(other, &data);
        for [a, b] in &pairs {
            a.send(&data);
            b.send(&data);
        }
        for [a, b] in &pairs {
            assert_eq!((a.received(), b.received()), (data.to_vec(), data.to_vec()));
        }
        assert_eq!(near.streams.read(one, data.len()), data);
        assert_eq!(far.streams.read(other, data.len()), data);
    }
    let locals = pairs.each_ref().map(|[_, b]| b.connector.local_address().unwrap().ip());
    assert_eq!(locals, [at(1, 0).ip(); 2]);
    near.streams.until(one, "the target", |status| status.state == OffloadState::Offloaded);
}

/// An adapter is removed with its last handle: its queue pair's peer gets a disconnect event, its ports are free, and
/// the byte streams continue. Another adapter can replace it.
#[test]
fn removed_adapter_does_not_affect_streams() {
    let [near, far] = hosts();
    let (listener, _) = far.streams.listen(at(1, PORT)).unwrap();
    let (_keep, incoming) = far.ndk_listen(at(1, PORT + 1)).unwrap();
    let one = near.streams.connect(None, at(1, PORT)).unwrap();
    let other = far.streams.accept(listener);
    let Host { streams, mut ndk, mut adapter } = near;
    for round in 0..3_u8 {
        let host = Host { streams: streams.clone(), ndk, adapter };
        let [end, peer] = host.ndk_pair(&far, &incoming, at(1, PORT + 1));
        let (listens, _) = host.ndk_listen(at(0, PORT)).unwrap();
        end.send(&[round; 50]);
        assert_eq!(peer.received(), [round; 50]);
        let local = end.connector.local_address().unwrap();
        assert_eq!(streams.bind(local), Err(HostError::AddressInUse));
        drop((end, listens, host));
        peer.disconnected();
        assert_eq!(peer.complete().status, NtStatus::CANCELLED, "posted receive not flushed");
        let bound = |local| streams.wait_until(Some(ends::LIMIT), || streams.bind(local).ok());
        assert_eq!(bound(local), Ok(local), "port not released in the host stack");
        streams.send(one, &[round; 50]);
        assert_eq!(far.streams.read(other, 50), [round; 50]);
        (ndk, adapter) = open_on(&streams, AdapterConfig::default()).unwrap();
        assert_eq!(adapter.connections(), []);
    }
}

/// Byte streams are removed, the queue pairs continue.
#[test]
fn removed_streams_do_not_affect_adapter() {
    let [near, far] = hosts();
    let (listener, _) = far.streams.listen(at(1, PORT)).unwrap();
    let (_keep, incoming) = far.ndk_listen(at(1, PORT + 1)).unwrap();
    let Host { streams, ndk, adapter } = near;
    let one = streams.connect(None, at(1, PORT)).unwrap();
    let other = far.streams.accept(listener);
    let local = streams.with(|streams, _, _| streams.status(one)).unwrap().local.unwrap();
    drop(streams);
    far.streams.until(other, "an end", |status| status.closed);
    let status = far.streams.with(|streams, _, _| streams.status(other)).unwrap();
    assert_eq!(status.error, Some(HostError::Reset));
    let near = Host { streams: ndk.register(Streams::new).unwrap(), ndk, adapter };
    assert_eq!(near.streams.bind(local), Ok(local));
    let [end, peer] = near.ndk_pair(&far, &incoming, at(1, PORT + 1));
    peer.send(b"still here");
    assert_eq!(end.received(), b"still here");
}

/// A node accepts its maximum of consumers, and another one after one was removed.
#[test]
fn consumers_beyond_the_maximum_are_refused() {
    let [near, _far] = hosts();
    let more = (2..CLIENTS_MAX).map(|_| near.streams.register(Streams::new).unwrap());
    let mut more = more.collect::<Vec<_>>();
    assert_eq!(near.streams.register(Streams::new).err(), Some(TooManyClients));
    assert_eq!(open_on(&near.streams, AdapterConfig::default()).err(), Some(TooManyClients));
    more.pop();
    let again = || near.streams.register(Streams::new).ok();
    assert!(near.streams.wait_until(Some(ends::LIMIT), again).is_ok());
}
