//! Many connections on kernel sockets: sequentially, without leaks, and a thousand at once. One test, because
//! descriptors and memory are counted per process.

use std::{fs, net::SocketAddr, sync::mpsc::channel, thread, time::Duration};

use rdma_over_tcp::ndk::{
    self, Adapter, AdapterConfig, Cq, Data, MrFlags, NdkResultEx, NtStatus, OpFlags, Pd, Qp,
    QpLimits, ReadLimit, RegisteredBuffer, Sge, SocketsConfig,
    blocking::{Connection, Incoming},
};
use rustix::process::{Resource, getrlimit, setrlimit};

const IN_TURN: usize = 10_000;
const AT_ONCE: usize = 1000;
/// Connections after which memory no longer grows.
const WARM_UP: usize = 1000;
/// Allowance for memory kept by the allocator.
const GROWTH_MAX: u64 = 2 << 20;
const LIMIT: Duration = Duration::from_secs(60);
const READS: ReadLimit = ReadLimit { inbound: 1, outbound: 1 };
const BYTES: usize = 4096;

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Resident memory of this process, bytes.
fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// One end, with memory shared by all of its queue pairs.
struct End {
    adapter: Adapter,
    pd: Pd,
    cq: Cq,
    buffer: RegisteredBuffer,
    token: u32,
}

impl End {
    fn new(bytes: usize) -> Self {
        let adapter =
            ndk::open_sockets(SocketsConfig::default(), AdapterConfig::default()).unwrap();
        let (pd, cq) = (adapter.create_pd().unwrap(), adapter.create_cq(4096, |_| {}).unwrap());
        let (buffer, mr) = (adapter.allocate(bytes).unwrap(), pd.create_mr(false).unwrap());
        let rights =
            MrFlags::ALLOW_LOCAL_WRITE | MrFlags::ALLOW_REMOTE_READ | MrFlags::ALLOW_REMOTE_WRITE;
        mr.register(&buffer, 0, bytes, rights).unwrap();
        let token = mr.local_token();
        Self { adapter, pd, cq, buffer, token }
    }

    fn qp(&self) -> Qp {
        self.pd.create_qp(&self.cq, &self.cq, 0, QpLimits::default()).unwrap()
    }

    fn connect(&mut self, qp: &Qp, server: SocketAddr) -> Connection {
        Connection::connect(&mut self.adapter.clone(), qp, server, READS, &[]).unwrap()
    }

    fn sge(&self, at: usize) -> Sge {
        let address = self.buffer.address() + at as u64;
        Sge { address, length: BYTES as u32, token: self.token }
    }

    /// Waits for `count` completions.
    fn complete(&mut self, mut count: usize) {
        let mut results = [NdkResultEx::default(); 64];
        while count > 0 {
            let cq = &self.cq;
            let take = || Some(cq.poll_ex(&mut results)).filter(|taken| *taken > 0);
            let taken = self.adapter.wait_until(Some(LIMIT), take).unwrap();
            assert!(results[..taken].iter().all(|it| it.status == NtStatus::SUCCESS));
            count -= taken;
        }
    }
}

/// Asserts that the close of an object succeeds or pends.
fn closed(status: NtStatus) {
    assert!(matches!(status, NtStatus::SUCCESS | NtStatus::PENDING), "{status:?}");
}

fn in_turn(near: &mut End, far: &mut End, incoming: &mut Incoming) {
    let server = incoming.listener().local_address().unwrap();
    let (count, counted) = channel();
    let mut before = (0, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..IN_TURN {
                let qp = far.qp();
                let connector = incoming.next(&mut far.adapter.clone()).unwrap();
                let connection =
                    Connection::accept(&mut far.adapter.clone(), connector, &qp, READS, &[])
                        .unwrap();
                far.adapter
                    .wait_until(Some(LIMIT), || connection.disconnection().reason())
                    .unwrap();
                connection.disconnect(&mut far.adapter.clone()).unwrap();
                closed(connection.connector().close(|| {}));
                closed(qp.close(|| {}));
                count.send(()).unwrap();
            }
        });
        for number in 0..IN_TURN {
            let qp = near.qp();
            let connection = near.connect(&qp, server);
            connection.disconnect(&mut near.adapter.clone()).unwrap();
            closed(connection.connector().close(|| {}));
            closed(qp.close(|| {}));
            counted.recv().unwrap();
            if number == WARM_UP {
                before = (descriptors(), resident());
            }
        }
    });
    near.adapter.linger(LIMIT).unwrap();
    far.adapter.linger(LIMIT).unwrap();
    let (held, memory) = (descriptors(), resident());
    println!(
        "{IN_TURN} in turn: {held} descriptors, {} KiB more",
        memory.saturating_sub(before.1) >> 10
    );
    assert!(held <= before.0, "{held} descriptors, {} before", before.0);
    assert!(memory < before.1 + GROWTH_MAX, "{memory} bytes, {} before", before.1);
}

fn at_once(near: &mut End, far: &mut End, incoming: &mut Incoming) {
    let server = incoming.listener().local_address().unwrap();
    let (active, passive): (Vec<_>, Vec<_>) = thread::scope(|scope| {
        let passive = scope.spawn(|| {
            let accept = |_| {
                let qp = far.qp();
                let connector = incoming.next(&mut far.adapter.clone()).unwrap();
                let accepted =
                    Connection::accept(&mut far.adapter.clone(), connector, &qp, READS, &[]);
                (qp, accepted.unwrap())
            };
            (0..AT_ONCE).map(accept).collect::<Vec<_>>()
        });
        let connect = |_| {
            let qp = near.qp();
            let connection = near.connect(&qp, server);
            (qp, connection)
        };
        let active: Vec<_> = (0..AT_ONCE).map(connect).collect();
        (active, passive.join().unwrap())
    });
    assert_eq!(far.adapter.list(LIMIT).unwrap().len(), AT_ONCE + 1, "connections and listener");
    for (number, (qp, _)) in active.iter().enumerate() {
        near.buffer.write_at(0, &[number as u8; BYTES]);
        let remote = far.buffer.address() + (number * BYTES) as u64;
        let source = [near.sge(0)];
        qp.write(0, Data::Registered(&source), remote, far.token, OpFlags::empty()).unwrap();
        near.complete(1);
    }
    for (number, (qp, _)) in active.iter().enumerate() {
        let remote = far.buffer.address() + (number * BYTES) as u64;
        qp.read(0, &[near.sge(number * BYTES)], remote, far.token, OpFlags::empty()).unwrap();
    }
    near.complete(AT_ONCE);
    for number in 0..AT_ONCE {
        let mut data = [0; BYTES];
        near.buffer.read_at(number * BYTES, &mut data);
        assert_eq!(data, [number as u8; BYTES], "connection {number}");
    }
    drop((active, passive));
}

#[test]
fn many() {
    let limits = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limits.maximum, ..limits })
        .unwrap();
    let (mut near, mut far) = (End::new(BYTES * AT_ONCE), End::new(BYTES * AT_ONCE));
    let local = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut incoming = Incoming::listen(&mut far.adapter.clone(), local, 64).unwrap();
    in_turn(&mut near, &mut far, &mut incoming);
    at_once(&mut near, &mut far, &mut incoming);
}
