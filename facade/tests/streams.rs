//! Byte streams between two nodes on a link in memory.

use std::{
    io::{ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr},
    thread,
    time::Duration,
};

use flue_rdma::{OffloadState, prelude::*};
use host_stack::{
    host::HostConfig,
    node::{Node, NodeConfig},
    stream::Streams,
};
use offload_engine::{
    link::{Link, MemoryLinkOptions, memory_link_pair},
    state::MacAddress,
};

const LIMIT: Duration = Duration::from_secs(30);

fn address(host: u8) -> IpAddr {
    [10, 0, 0, host].into()
}

fn pair() -> [StreamNode; 2] {
    let (near, far) = memory_link_pair(MemoryLinkOptions::default());
    let start = |link: Box<dyn Link>, host: u8| {
        let config = HostConfig::new(MacAddress([2, 0, 0, 0, 0, host]), address(host));
        StreamNode::on(Node::start(link, NodeConfig::new(config), Streams::new).unwrap())
    };
    [start(Box::new(near), 1), start(Box::new(far), 2)]
}

#[test]
fn stream_carries_data_both_ways_and_is_offloaded() {
    let [near, far] = pair();
    let listener = far.listen(SocketAddr::new(address(2), 0)).unwrap();
    let server = listener.local_address();
    let data: Vec<u8> = (0..3_000_000).map(|index| (index % 251) as u8).collect();
    thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let mut stream = listener.accept().unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            stream.write_all(&received[..1000]).unwrap();
            stream.close(LIMIT).unwrap();
            received
        });
        let mut stream = near.connect(server, LIMIT).unwrap();
        assert_eq!(stream.write(&[]).unwrap(), 0);
        stream.write_all(&data).unwrap();
        assert_eq!(stream.status().unwrap().state, OffloadState::Offloaded);
        stream.shutdown();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).unwrap();
        assert_eq!(reply, data[..1000]);
        stream.close(LIMIT).unwrap();
        assert_eq!(echo.join().unwrap(), data);
    });
}

#[test]
fn failures_have_the_kinds_of_std() {
    let [near, far] = pair();
    let to =
        |host, port| near.connect(SocketAddr::new(address(host), port), Duration::from_secs(1));
    assert_eq!(to(2, 9).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert_eq!(to(9, 9).unwrap_err().kind(), ErrorKind::HostUnreachable);
    let listener = far.listen(SocketAddr::new(address(2), 9)).unwrap();
    let second = far.listen(listener.local_address()).unwrap_err();
    assert_eq!(second.kind(), ErrorKind::AddrInUse);
    let foreign = far.listen(SocketAddr::new(address(9), 9)).unwrap_err();
    assert_eq!(foreign.kind(), ErrorKind::AddrNotAvailable);
    // A dropped stream is reset.
    let mut stream = to(2, 9).unwrap();
    drop(listener.accept().unwrap());
    let error = stream.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}
