//! Upcalls are delivered to the client that owns the connection. Clients may be added and removed.

use std::string::ToString;

use super::{terminate::terminate_tree, *};
use crate::{chimney::client::ClientTag, engine::CLIENTS_MAX};

/// Creates two connections of two clients, on the ports 80 and 81.
fn two_clients() -> (Bench, [ClientTag; 2]) {
    let mut bench = Bench::new(10);
    let other = bench.clients.insert(|_| Client { takes: usize::MAX, ..Client::default() });
    let tags = [Clients::FIRST, other.unwrap()];
    for (port, tag) in [80, 81].into_iter().zip(tags) {
        bench.initiate_of(tag, u64::from(port), state(port));
    }
    bench.poll();
    (bench, tags)
}

fn client(bench: &mut Bench, tag: ClientTag) -> &mut Client {
    bench.clients.get_mut(tag).unwrap()
}

#[test]
fn upcalls_are_delivered_to_owner() {
    let (mut bench, tags) = two_clients();
    bench.arrives(from_peer(81, 5000, 1000, b"second's"));
    bench.arrives(from_peer(80, 5000, 1000, b"first's"));
    bench.poll();
    for (tag, handle, data) in [(tags[0], 80, &b"first's"[..]), (tags[1], 81, b"second's")] {
        let client = client(&mut bench, tag);
        assert_eq!(
            (&client.offloaded[..], &client.received[..]),
            (&[OffloadHandle(handle)][..], data)
        );
    }
}

// In either order: the connection of the removed client is reset and released, and that of the other client continues.
#[test]
fn removed_client_leaves_other_clients_unaffected() {
    for leaves in [0, 1] {
        let (mut bench, tags) = two_clients();
        let (gone, stays) = (80 + leaves as u16, 81 - leaves as u16);
        bench.host_messages();
        bench.port.to_engine.send(FromHost::RemoveClient(tags[leaves])).unwrap();
        bench.arrives(from_peer(gone, 5000, 1000, b"unknown"));
        bench.arrives(from_peer(stays, 5000, 1000, b"mine"));
        bench.poll();
        assert!(!bench.clients.contains(tags[leaves]));
        assert!(bench.clients.get::<Client>(tags[leaves]).is_none());
        assert_eq!(client(&mut bench, tags[1 - leaves]).received, b"mine");
        assert!(client(&mut bench, tags[1 - leaves]).events.is_empty());
        let resets = bench.sent().into_iter().filter(|frame| is_reset(frame)).collect::<Vec<_>>();
        assert_eq!(resets.len(), 1);
        let released = bench.host_messages().into_iter().find_map(|message| match message {
            ToHost::Released { handle } => Some(handle),
            _ => None,
        });
        assert_eq!(released, Some(OffloadHandle(gone.into())));
        assert_eq!(bench.engine.connections().len(), 1);
    }
}

fn is_reset(frame: &[u8]) -> bool {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    matches!(sliced.transport, Some(TransportSlice::Tcp(tcp)) if tcp.rst())
}

// The initiate of the connection is still delayed by a pause.
#[test]
fn delayed_connection_of_removed_client_is_reset() {
    let mut bench = Bench::new(10);
    bench.engine.pause();
    bench.initiate(80, 80);
    bench.poll();
    bench.port.to_engine.send(FromHost::RemoveClient(Clients::FIRST)).unwrap();
    bench.poll();
    assert!(bench.sent().is_empty());
    let capabilities = *bench.engine.objects().capabilities();
    bench.engine.resume(capabilities);
    bench.poll();
    bench.poll();
    assert!(bench.sent().iter().any(|frame| is_reset(frame)));
    assert!(bench.engine.connections().is_empty());
}

// The terminate precedes the removal: the host receives the connection. A later terminate fails.
#[test]
fn client_removed_during_upload_loses_no_state() {
    let (mut bench, tags) = two_clients();
    let messages = bench.host_messages();
    let tree = messages.into_iter().find_map(|message| match message {
        ToHost::InitiateComplete(tree) => Some(tree),
        _ => None,
    });
    let tree = tree.unwrap();
    let InitiateNode::New { context: Some(context), .. } =
        tree[0].dependents[0].dependents[0].payload
    else {
        panic!("not offloaded")
    };
    let tree = || terminate_tree(None, None, &[context]);
    bench.port.terminate(tree());
    bench.port.to_engine.send(FromHost::RemoveClient(tags[0])).unwrap();
    bench.port.terminate(tree());
    bench.poll();
    let messages = bench.host_messages().into_iter();
    let given_back = messages.filter_map(|message| match message {
        ToHost::TerminateComplete(tree) => Some(tree[0].dependents[0].dependents[0].status),
        _ => None,
    });
    assert_eq!(given_back.collect::<Vec<_>>(), [NdisStatus::SUCCESS, NdisStatus::FAILURE]);
    assert_eq!(bench.engine.connections().len(), 1);
}

#[test]
fn tags_are_never_reused() {
    let mut clients = one_client();
    assert!(clients.remove(Clients::FIRST));
    assert!(!clients.remove(Clients::FIRST), "already removed");
    let again = clients.insert(|tag| {
        assert_ne!(tag, Clients::FIRST);
        Client::default()
    });
    assert!(clients.contains(again.unwrap()) && !clients.contains(Clients::FIRST));
    assert!(!clients.contains(ClientTag::NONE) && !clients.remove(ClientTag::NONE));
    assert!(clients.get::<Client>(ClientTag::NONE).is_none());
    for _ in 1..CLIENTS_MAX {
        clients.insert(|_| Client::default()).unwrap();
    }
    let error = clients.insert(|_| -> Client { panic!("there is no room") }).unwrap_err();
    assert_eq!(error.to_string(), "node: client limit of 256 reached");
}

// A removed client is dropped where no lock is held, after its last callbacks.
#[test]
fn removed_client_is_dropped_with_its_callbacks() {
    let mut clients = one_client();
    let kept = Bytes::from(vec![1, 2, 3]);
    clients.get_mut::<Client>(Clients::FIRST).unwrap().kept.push(kept.clone());
    clients.remove(Clients::FIRST);
    assert!(!kept.is_unique());
    let mut callbacks = Vec::new();
    clients.take_callbacks(&mut callbacks);
    callbacks.into_iter().for_each(|callback| callback());
    assert!(kept.is_unique());
}
