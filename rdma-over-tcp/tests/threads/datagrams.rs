//! Queue pairs of unreliable datagram service: the consumer posts and makes no other call.

use std::{net::SocketAddr, sync::Arc};

use host_stack::node::Progress;
use offload_engine::{link::MemoryLinkOptions, time::Duration};
use rdma_over_tcp::{
    datagram::ROUTE_HEADER_OCTETS,
    ndk::{Adapter, RegisteredBuffer},
    rnic::{
        Access, Completion, CompletionQueue, Data, DatagramPath, Destination, ErrorStatePosts,
        QpConfig, QpId, QpLimits, QpService, Sge, WrFlags,
    },
};

use crate::{LIMIT, address, link, node};

const BYTES: usize = 4096;
const KEY: u32 = 7;
/// Datagrams. Between them the sender's thread has time to sleep.
const ROUNDS: u8 = 20;
const PAUSE: Duration = Duration::from_millis(5);

/// Queue pair with one buffer.
struct Datagrams {
    adapter: Adapter,
    number: u32,
    qp: QpId,
    queue: Arc<CompletionQueue>,
    buffer: RegisteredBuffer,
    token: u32,
}

impl Datagrams {
    fn new(adapter: &Adapter, port: u16) -> Self {
        let buffer = adapter.allocate(BYTES).unwrap();
        adapter.open_datagrams(port).unwrap();
        // A repeated call has no effect.
        adapter.open_datagrams(port).unwrap();
        let (qp, queue, token) = adapter.with(|rnic, _| {
            let pd = rnic.create_pd().unwrap();
            let (cq, queue) = rnic.create_cq(64, Arc::new(|_| {})).unwrap();
            let config = QpConfig {
                receive_cq: cq,
                send_cq: cq,
                context: 0,
                limits: QpLimits::default(),
                srq: None,
                error_state_posts: ErrorStatePosts::Flush,
                service: QpService::Ud,
            };
            let qp = rnic.create_qp(pd, config).unwrap();
            let region = rnic.create_region(pd, false).unwrap();
            rnic.register(region, &buffer, 0, BYTES, Access::LOCAL_WRITE).unwrap();
            rnic.set_qp_numbers(qp, port.into(), None);
            rnic.set_datagram_key(qp, KEY).unwrap();
            rnic.start_datagrams(qp, 1024).unwrap();
            rnic.allow_sends(qp).unwrap();
            (qp, queue, rnic.token(region).unwrap())
        });
        Self { adapter: adapter.clone(), number: port.into(), qp, queue, buffer, token }
    }

    fn sge(&self, length: u32) -> Sge {
        Sge { address: self.buffer.address(), length, token: self.token }
    }

    fn receive(&self) {
        let sge = self.sge(BYTES as u32);
        self.adapter.post(|rnic| rnic.post_receive(self.qp, 0, &[sge])).unwrap();
    }

    fn send(&self, octet: u8, to: (usize, u32)) {
        self.buffer.write_at(0, &[octet]);
        let sge = self.sge(1);
        let (local, remote) = (address(0).ip(), SocketAddr::new(address(to.0).ip(), 0));
        let to = Destination { path: DatagramPath { local, remote }, qp: to.1, key: KEY };
        let post = |adapter: &Adapter| {
            adapter.post(|rnic| {
                let data = Data::Registered(&[sge]);
                rnic.post_datagram(self.qp, 0, (to, None), data, WrFlags::NONE)
            })
        };
        post(&self.adapter).unwrap();
    }

    /// Waits for a datagram, and returns its octet.
    fn wait(&self) -> u8 {
        let mut found = [None::<Completion>; 1];
        let completion = self.adapter.wait_until(Some(LIMIT), || {
            (self.queue.poll(&mut found) > 0).then(|| found[0]).flatten()
        });
        assert_eq!(completion.unwrap().bytes as usize, ROUTE_HEADER_OCTETS + 1);
        let mut octet = [0];
        self.buffer.read_at(ROUTE_HEADER_OCTETS, &mut octet);
        octet[0]
    }
}

fn exchange(progress: Progress) {
    let (one, other) = link::bell_links(MemoryLinkOptions::default());
    let (_near, near) = node(0, Box::new(one), progress);
    let (_far, far) = node(1, Box::new(other), progress);
    let (sender, receiver) = (Datagrams::new(&near, 4000), Datagrams::new(&far, 4001));
    for round in 0..ROUNDS {
        receiver.receive();
        sender.send(round, (1, receiver.number));
        assert_eq!(receiver.wait(), round, "{progress:?}");
        let _ = far.wait_until(Some(PAUSE), || None::<()>);
    }
}

#[test]
fn datagrams_are_sent_without_another_call() {
    exchange(Progress::Automatic);
    exchange(Progress::Shared);
}

// Completed requests are sent before the process exits, also if they wait for the address of the neighbor.
#[test]
fn datagrams_are_sent_before_the_end() {
    for progress in [Progress::Automatic, Progress::Shared, Progress::Manual] {
        let (one, other) = link::bell_links(MemoryLinkOptions::default());
        let (_far, far) = node(1, Box::new(other), Progress::Automatic);
        let receiver = Datagrams::new(&far, 4001);
        receiver.receive();
        let (_near, near) = node(0, Box::new(one), progress);
        let sender = Datagrams::new(&near, 4000);
        sender.send(9, (1, receiver.number));
        near.finish(LIMIT);
        assert_eq!(receiver.wait(), 9, "{progress:?}");
    }
}
