//! Connections of queue pairs, one after the other, between two adapters on a link in memory: with their queue pairs
//! and connectors they are made, established on both sides, ended by one and the other, and closed.

use std::{sync::mpsc::channel, thread};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rdma_over_tcp::ndk::{
    AdapterConfig, Begun, Pair, QpLimits, ReadLimit,
    blocking::{Connection, Incoming, Wait},
};

const READS: ReadLimit = ReadLimit { inbound: 1, outbound: 1 };

fn connect(criterion: &mut Criterion) {
    let Pair { adapters: [near, far], nodes: [mut near_node, mut far_node] } =
        Pair::open(AdapterConfig::default()).expect("threads and descriptors");
    let server = (Pair::ADDRESSES[1], 7174).into();
    let mut incoming = Incoming::listen(&mut far_node, &far, server, 8).expect("a listener");
    let (next, wanted) = channel::<()>();
    let passive = thread::spawn(move || {
        let (pd, cq) = (far.create_pd().expect("a domain"), far.create_cq(16, |_| {}));
        let cq = cq.expect("a queue");
        while wanted.recv().is_ok() {
            let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default()).expect("a queue pair");
            let connector = incoming.next(&mut far_node).expect("a request");
            let accepted = Connection::accept(&mut far_node, connector, &qp, READS, &[]);
            let accepted = accepted.expect("a connection");
            far_node.wait(|| accepted.ended().reason()).expect("the peer ends it");
            accepted.disconnect(&mut far_node).expect("an end");
            let _ = accepted.connector().close(|| {});
            let _ = qp.close(|| {});
        }
    });
    let (pd, cq) = (near.create_pd().expect("a domain"), near.create_cq(16, |_| {}));
    let cq = cq.expect("a queue");
    let mut group = criterion.benchmark_group("connection");
    group.throughput(Throughput::Elements(1));
    group.bench_function("in turn", |bencher| {
        bencher.iter(|| {
            next.send(()).expect("the passive side waits");
            let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default()).expect("a queue pair");
            let connection = Connection::connect(&mut near_node, &near, &qp, server, READS, &[]);
            let connection = connection.expect("a connection");
            connection.disconnect(&mut near_node).expect("an end");
            let closed = [
                Begun::close(|done| connection.connector().close(done)),
                Begun::close(|done| qp.close(done)),
            ];
            for close in closed {
                let _ = near_node.wait(|| close.status()).expect("a close");
            }
        });
    });
    group.finish();
    drop(next);
    passive.join().expect("the passive side");
}

criterion_group!(benches, connect);
criterion_main!(benches);
