//! TIME-WAIT records of closed connections, without sockets.

use core::net::SocketAddr;

use offload_engine::{chimney::client::OffloadHandle, time::Duration};

use super::bench::{Bench, address};
use crate::{
    host::time_wait::REUSE_DELAY,
    socket::{HostError, Notice, OffloadPolicy, Request},
};

const COUNT: usize = 200;
const SOON: Duration = Duration::from_millis(50);

fn remote() -> SocketAddr {
    SocketAddr::new(address(2, false), 5000)
}

fn listening() -> Bench {
    let mut bench = Bench::new([OffloadPolicy::Never; 2]);
    bench.nodes[1].listen(remote(), 4, false);
    bench.run(SOON);
    bench
}

fn last_of(bench: &mut Bench, node: usize) -> OffloadHandle {
    let handle = bench.nodes[node].established().0;
    bench.nodes[node].notices.clear();
    handle
}

/// Opens a connection and closes it, the first node first.
fn open_and_close(bench: &mut Bench) {
    bench.nodes[0].connect(remote(), false);
    bench.run(SOON);
    for node in 0..2 {
        let handle = last_of(bench, node);
        bench.nodes[node].shutdown(handle);
        bench.run(SOON);
    }
}

// RFC 9293 §3.6.1: a closed connection has neither a socket nor poll work on either side; a record of a few hundred
// bytes answers late segments.
#[test]
fn closed_connection_has_no_socket() {
    let mut bench = listening();
    for _ in 0..COUNT {
        open_and_close(&mut bench);
    }
    for node in &bench.nodes {
        assert_eq!((node.host.sockets.iter().count(), node.host.connections.len()), (0, 0));
        assert_eq!(node.host.time_waits.len(), COUNT);
    }
    assert_eq!(bench.resets(0) + bench.resets(1), 0);
}

// RFC 9293 §3.6.1: the side that closed first does not reuse the 4-tuple immediately.
#[test]
fn closed_4_tuple_is_not_reused_at_once() {
    let mut bench = listening();
    let local = SocketAddr::new(address(1, false), 6000);
    let connect = |bench: &mut Bench, number| {
        let handle = OffloadHandle(number);
        bench.nodes[0].port.request(Request::Connect {
            handle,
            local: Some(local),
            endpoint: None,
            remote: remote(),
            timeout: Duration::from_secs(5),
            at_once: false,
        });
        bench.run(SOON);
        handle
    };
    let handle = connect(&mut bench, 1_000);
    bench.nodes[0].shutdown(handle);
    bench.run(SOON);
    let other = last_of(&mut bench, 1);
    bench.nodes[1].shutdown(other);
    bench.run(SOON);
    bench.nodes[0].notices.clear();
    connect(&mut bench, 1_001);
    assert!(bench.nodes[0].has(|notice| matches!(
        notice,
        Notice::ConnectFailed { error: HostError::AddressInUse, .. }
    )));
    bench.run(REUSE_DELAY);
    connect(&mut bench, 1_002);
    assert!(bench.nodes[0].has(|notice| matches!(notice, Notice::Established { .. })));
}
