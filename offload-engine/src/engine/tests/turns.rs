//! Connections that share the in-flight limit of a path. The initial window is ten segments of 1460 bytes.

use super::{terminate::*, *};
use crate::chimney::tree::TargetContext;

const LIMIT: u64 = 2 * WINDOW as u64;
const WINDOW: usize = 14_600;

/// Offloads connections of one path, whose handles are their ports. Returns their names, the path's first.
fn offload(ports: &[u16]) -> (Bench, [TargetContext; 2], Vec<TargetContext>) {
    let mut config = EngineConfig::new(OURS);
    config.tcp.in_flight_min = LIMIT;
    config.tcp.link_rate = 1;
    let mut bench = Bench::with(config);
    let (neighbor, path, tcps) = bench.offload(ports);
    bench.sent();
    (bench, [neighbor, path], tcps)
}

/// Offloads connections of one path, and sends `bytes` on each.
fn bench(ports: &[u16], bytes: usize) -> Bench {
    let (mut bench, _, _) = offload(ports);
    for port in ports {
        post(&mut bench, *port, bytes);
    }
    flush(&mut bench);
    bench
}

fn flush(bench: &mut Bench) {
    bench.engine.flush(bench.now, &mut bench.clients);
}

fn post(bench: &mut Bench, port: u16, bytes: usize) {
    let list = NetBufferList::from_mdl(1, Bytes::from(vec![7; bytes]));
    let handle = OffloadHandle(port.into());
    bench.engine.connections().get(bench.now, handle).unwrap().send([list].into());
}

/// Bytes sent by each connection since the last call, in the order of the first segments.
fn sent(bench: &Bench) -> Vec<(u16, usize)> {
    let mut sent: Vec<(u16, usize)> = Vec::new();
    for frame in bench.sent() {
        let flow = classify(&frame).unwrap().flow;
        let bytes = tcp_of(&frame).2.len();
        match sent.iter_mut().find(|(port, _)| *port == flow.remote().port()) {
            Some((_, sum)) => *sum += bytes,
            None => sent.push((flow.remote().port(), bytes)),
        }
    }
    sent
}

// Two windows reach the limit, so the third connection waits. Each ACK is followed by the connection that waits
// longest.
#[test]
fn connections_of_a_path_wait_for_turns() {
    let mut bench = bench(&[80, 81, 82, 83], 100_000);
    assert_eq!(sent(&bench), [(80, WINDOW), (81, WINDOW)]);
    bench.arrives(from_peer(80, 5000, 1000 + WINDOW as u32, b""));
    bench.poll();
    assert_eq!(sent(&bench), [(82, WINDOW)]);
    // The turn of 82 continues although others wait. The one of 81 is interrupted, and 83 and 80 wait for theirs.
    let mut acked = WINDOW;
    bench.arrives(from_peer(82, 5000, 1000 + acked as u32, b""));
    bench.arrives(from_peer(81, 5000, 1000 + WINDOW as u32, b""));
    bench.poll();
    let next = loop {
        let sent = sent(&bench);
        match sent[..] {
            [(82, bytes)] => acked += bytes,
            [(82, bytes), (next, _)] => {
                acked += bytes;
                break next;
            }
            _ => panic!("{sent:?}"),
        }
        bench.arrives(from_peer(82, 5000, 1000 + acked as u32, b""));
        bench.poll();
    };
    assert_eq!((acked, next), (100_000, 81));
}

// Every third iteration finds the link full.
#[test]
fn all_data_is_sent_within_the_limit_in_long_turns() {
    const PORTS: [u16; 6] = [80, 81, 82, 83, 84, 85];
    const BYTES: usize = 3_000_000;
    let mut bench = bench(&PORTS, BYTES);
    let mut acked = [0; PORTS.len()];
    let (mut turns, mut before) = (0, Vec::new());
    for iteration in 0.. {
        let sent = sent(&bench);
        let in_flight: usize = sent.iter().map(|(_, bytes)| bytes).sum();
        // Beyond the limit: the last GSO packet, and a small flight.
        assert!(in_flight as u64 <= LIMIT + 16_060 + 8192, "{in_flight} bytes in flight");
        for (port, bytes) in &sent {
            let index = usize::from(port - PORTS[0]);
            acked[index] += bytes;
            bench.arrives(from_peer(*port, 5000, 1000 + acked[index] as u32, b""));
        }
        if acked == [BYTES; PORTS.len()] {
            break;
        }
        let senders: Vec<_> = sent.iter().map(|(port, _)| *port).collect();
        turns += senders.iter().filter(|port| !before.contains(*port)).count();
        before = senders;
        let full = iteration % 3 == 2;
        bench.wire.lock().unwrap().full = full;
        bench.now += Duration::from_micros(10);
        bench.poll();
        if full {
            bench.wire.lock().unwrap().full = false;
            bench.poll();
        }
        assert!(!bench.wire.lock().unwrap().sent.is_empty(), "no connection sends: {acked:?}");
    }
    assert!((6..=30).contains(&turns), "{turns} turns instead of three for each connection");
}

#[test]
fn timeout_ends_the_share_of_an_unreachable_connection() {
    let mut bench = bench(&[80, 81, 82], 100_000);
    sent(&bench);
    bench.now += Duration::from_secs(2);
    bench.poll();
    assert!(sent(&bench).contains(&(82, WINDOW)));
}

#[test]
fn removal_ends_the_share_of_a_connection() {
    let (mut bench, [neighbor, path], tcps) = offload(&[80, 81, 82, 83]);
    for port in 80..84 {
        post(&mut bench, port, 100_000);
    }
    flush(&mut bench);
    assert_eq!(sent(&bench), [(80, WINDOW), (81, WINDOW)]);
    // 82 is removed while it waits.
    bench.terminate(terminate_tree(Some(neighbor), Some(path), &[tcps[0], tcps[2]]));
    bench.poll();
    assert_eq!(sent(&bench), [(83, WINDOW)]);
}

#[test]
fn small_message_is_sent_without_a_turn() {
    let (mut bench, _, _) = offload(&[80, 81, 82, 83]);
    for port in 80..83 {
        post(&mut bench, port, 100_000);
    }
    flush(&mut bench);
    assert_eq!(sent(&bench), [(80, WINDOW), (81, WINDOW)]);
    // After the data of the same connection that waits, and on a connection without other data.
    post(&mut bench, 82, 100);
    post(&mut bench, 83, 100);
    flush(&mut bench);
    assert_eq!(sent(&bench), [(83, 100)]);
}

#[test]
fn only_connection_of_a_path_is_limited_by_tcp_alone() {
    let mut config = EngineConfig::new(OURS);
    config.tcp.in_flight_min = 5_000;
    let mut bench = Bench::with(config);
    let mut state = state(80);
    state.tcp.delegated.cwnd = 40_000;
    bench.initiate_state(80, state);
    bench.poll();
    bench.sent();
    post(&mut bench, 80, 100_000);
    flush(&mut bench);
    assert_eq!(sent(&bench), [(80, 40_000 / 1460 * 1460)]);
}
