//! Queue pairs on kernel sockets, over loopback.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::mpsc::channel,
    thread,
    time::{Duration, Instant},
};

use offload_engine::runtime::WaitError;

use rdma_over_tcp::ndk::{
    self, Adapter, AdapterConfig, CallError, Cq, CqNotify, Data, KeepAlive, Mr, MrFlags,
    NdkResultEx, NtStatus, OpFlags, Qp, QpLimits, ReadLimit, RegisteredBuffer, Sge, SocketsConfig,
    blocking::{Connection, Incoming, NodeError},
};
use rdma_over_tcp::{
    ddp::{Msn, Stag, TaggedOffset},
    error::{ErrorNumber, WireError},
    mpa::{
        Decoder, Encoder, Slab,
        startup::{Initiator, RtrKind, RtrSet, StartupConfig},
    },
    rdmap::{
        Inbound, ReadRequest, ReceivedTerminate, TerminatePhase, parse, read_request_header,
        rtr_header,
    },
};

/// Longer than any operation that completes at all.
const LIMIT: Duration = Duration::from_secs(60);

const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// One end: an adapter and the objects of one queue pair.
struct End {
    adapter: Adapter,
    cq: Cq,
    qp: Qp,
    buffer: RegisteredBuffer,
    mr: Mr,
}

impl End {
    fn new(bytes: usize) -> Self {
        let adapter =
            ndk::open_sockets(SocketsConfig::default(), AdapterConfig::default()).unwrap();
        let (pd, cq) = (adapter.create_pd().unwrap(), adapter.create_cq(256, |_| {}).unwrap());
        let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default()).unwrap();
        let (buffer, mr) = (adapter.allocate(bytes).unwrap(), pd.create_mr(false).unwrap());
        let rights =
            MrFlags::ALLOW_LOCAL_WRITE | MrFlags::ALLOW_REMOTE_READ | MrFlags::ALLOW_REMOTE_WRITE;
        mr.register(&buffer, 0, bytes, rights).unwrap();
        Self { adapter, cq, qp, buffer, mr }
    }

    fn sge(&self, offset: usize, length: usize) -> Sge {
        let address = self.buffer.address() + offset as u64;
        Sge { address, length: length as u32, token: self.mr.local_token() }
    }

    fn completion(&mut self, connection: &Connection) -> NdkResultEx {
        let mut results = [NdkResultEx::default()];
        let count = connection.poll(&mut self.adapter.clone(), &self.cq, &mut results).unwrap();
        assert_eq!(count, 1, "ended: {:?}", connection.disconnection().reason());
        let [result] = results;
        assert_eq!(result.status, NtStatus::SUCCESS);
        result
    }
}

fn limits() -> ReadLimit {
    ReadLimit { inbound: 4, outbound: 4 }
}

/// Connects to a listener.
fn connect_to(end: &End, server: SocketAddr) -> Result<Connection, NodeError> {
    let End { adapter, qp, .. } = end;
    Connection::connect(&mut adapter.clone(), qp, server, limits(), &[])
}

/// Connects two ends.
fn connect(near: &mut End, far: &mut End) -> (Connection, Connection) {
    let local = SocketAddr::from((LOOPBACK, 0));
    let mut incoming = Incoming::listen(&mut far.adapter.clone(), local, 1).unwrap();
    let server = incoming.listener().local_address().unwrap();
    thread::scope(|scope| {
        let passive = scope.spawn(|| -> Result<Connection, NodeError> {
            let connector = incoming.next(&mut far.adapter.clone())?;
            Connection::accept(&mut far.adapter.clone(), connector, &far.qp, limits(), b"welcome")
        });
        let active = connect_to(near, server);
        (active.unwrap(), passive.join().unwrap().unwrap())
    })
}

// Send, Write and Read of 3 MiB, and a disconnect reported on both sides.
#[test]
fn messages_of_each_kind() {
    const BYTES: usize = 3 << 20;
    let (mut near, mut far) = (End::new(2 * BYTES), End::new(2 * BYTES));
    let (active, passive) = connect(&mut near, &mut far);
    let pattern: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
    near.buffer.write_at(0, &pattern);
    far.qp.receive(1, &[far.sge(0, BYTES)]).unwrap();
    let all = [near.sge(0, BYTES)];
    near.qp.send(2, Data::Registered(&all), OpFlags::empty()).unwrap();
    assert_eq!(near.completion(&active).request_context, 2);
    assert_eq!(far.completion(&passive).bytes_transferred as usize, BYTES);
    let mut data = vec![0; BYTES];
    far.buffer.read_at(0, &mut data);
    assert_eq!(data, pattern);

    let remote = far.buffer.address() + BYTES as u64;
    near.qp
        .write(3, Data::Registered(&all), remote, far.mr.remote_token(), OpFlags::empty())
        .unwrap();
    assert_eq!(near.completion(&active).request_context, 3);
    let sink = [near.sge(BYTES, BYTES)];
    near.qp.read(4, &sink, remote, far.mr.remote_token(), OpFlags::empty()).unwrap();
    assert_eq!(near.completion(&active).request_context, 4);
    near.buffer.read_at(BYTES, &mut data);
    assert_eq!(data, pattern);

    active.disconnect(&mut near.adapter.clone()).unwrap();
    let mut results = [NdkResultEx::default()];
    assert_eq!(passive.poll(&mut far.adapter.clone(), &far.cq, &mut results).unwrap(), 0);
    assert_eq!(passive.disconnection().reason(), Some(0));
    passive.disconnect(&mut far.adapter.clone()).unwrap();
}

/// Creates a peer whose FPDUs are built by the test, connected to `far`.
fn raw_peer(far: &mut End) -> (TcpStream, Connection) {
    let initiator = || {
        let rtr = RtrSet::only(RtrKind::Write);
        Initiator::new(StartupConfig { rtr, ..StartupConfig::default() })
    };
    let local = SocketAddr::from((LOOPBACK, 0));
    let mut incoming = Incoming::listen(&mut far.adapter.clone(), local, 1).unwrap();
    let server = incoming.listener().local_address().unwrap();
    let peer = thread::spawn(move || {
        let mut peer = TcpStream::connect(server).unwrap();
        peer.set_read_timeout(Some(LIMIT)).unwrap();
        peer.write_all(&initiator().request()).unwrap();
        let mut reply = Vec::new();
        while initiator().receive(&reply).unwrap().is_none() {
            let mut octet = [0];
            peer.read_exact(&mut octet).unwrap();
            reply.extend(octet);
        }
        peer.write_all(&fpdu(&rtr_header(RtrKind::Write))).unwrap();
        peer
    });
    let connector = incoming.next(&mut far.adapter.clone()).unwrap();
    let accepted = Connection::accept(&mut far.adapter.clone(), connector, &far.qp, limits(), &[]);
    (peer.join().unwrap(), accepted.unwrap())
}

fn fpdu(header: &[u8]) -> Vec<u8> {
    let mut pieces: Vec<bytes::Bytes> = Vec::new();
    Encoder::new(true, false).encode(header, &[] as &[bytes::Bytes], &mut Slab::new(), &mut pieces);
    pieces.concat()
}

/// Sends a Read Request for the whole buffer of the end.
fn request_read(peer: &mut TcpStream, far: &End) {
    let request = ReadRequest {
        sink_stag: Stag(9),
        sink_offset: TaggedOffset(0),
        octets: far.buffer.len() as u32,
        source_stag: Stag(far.mr.remote_token()),
        source_offset: TaggedOffset(far.buffer.address()),
    };
    peer.write_all(&fpdu(&read_request_header(Msn(1), &request))).unwrap();
}

/// Receives until the peer has `octets` of responses or a Terminate; each FPDU must have a valid CRC. Returns the data,
/// and the error of the Terminate, if any.
fn responses(peer: &mut TcpStream, octets: usize) -> (Vec<u8>, Option<ErrorNumber>) {
    let (mut decoder, mut data) = (Decoder::new(true, false), Vec::new());
    let mut input = vec![0; 65_536];
    while data.len() < octets {
        let count = peer.read(&mut input).unwrap();
        assert!(count > 0, "FIN before the end");
        let mut rest = &input[..count];
        while let Some(ulpdu) = decoder.next(&mut rest).expect("valid CRC") {
            match parse(ulpdu).unwrap() {
                Inbound::ReadResponse { payload, .. } => data.extend_from_slice(payload),
                Inbound::Terminate { payload, .. } => {
                    let parsed = ReceivedTerminate::parse(payload, TerminatePhase::Operation);
                    return (data, Some(parsed.unwrap().rfc.number));
                }
                other => panic!("{other:?}"),
            }
        }
    }
    (data, None)
}

// MPA-4.4-9: the source of a Read is written continuously: every CRC matches the octets received.
#[test]
fn source_is_written_during_read() {
    const BYTES: usize = 16 << 20;
    let mut far = End::new(BYTES);
    let (mut peer, _connection) = raw_peer(&mut far);
    request_read(&mut peer, &far);
    let reader = thread::spawn(move || responses(&mut peer, BYTES));
    let mut round = 0_usize;
    while !reader.is_finished() {
        round += 1;
        let piece = vec![round as u8; 10_000];
        far.buffer.write_at(round * 7919 % (BYTES - piece.len()), &piece);
    }
    let (data, terminate) = reader.join().unwrap();
    assert_eq!((data.len(), terminate), (BYTES, None));
}

// RDM-8.1.1-4, RDM-7.1-4: bytes written after a deregistration are not sent.
#[test]
fn source_is_deregistered_during_read() {
    // More than the kernel's buffers hold.
    const BYTES: usize = 64 << 20;
    const BEFORE: u8 = 0x11;
    let mut far = End::new(BYTES);
    far.buffer.write_at(0, &vec![BEFORE; BYTES]);
    let (mut peer, _connection) = raw_peer(&mut far);
    request_read(&mut peer, &far);
    // The response has begun.
    while peer.peek(&mut [0]).unwrap() == 0 {}
    let (sender, receiver) = channel();
    if far.mr.deregister(move || sender.send(()).unwrap()) == NtStatus::PENDING {
        receiver.recv_timeout(LIMIT).unwrap();
    }
    far.buffer.write_at(0, &vec![0xee; BYTES]);
    let (data, terminate) = responses(&mut peer, BYTES);
    assert!(data.iter().all(|octet| *octet == BEFORE), "octets written after the deregistration");
    assert!(data.len() < BYTES);
    assert_eq!(terminate, Some(WireError::ProtectionInvalidStag.number()));
}

/// Status of a connect that fails.
fn refusal(end: &mut End, remote: SocketAddr) -> NtStatus {
    let outcome = Connection::connect(&mut end.adapter.clone(), &end.qp, remote, limits(), &[]);
    match outcome {
        Err(NodeError::Call(CallError { status, .. })) => status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn unusable_addresses_are_refused() {
    let mut end = End::new(4096);
    let taken = TcpListener::bind((LOOPBACK, 0)).unwrap().local_addr().unwrap();
    assert_eq!(refusal(&mut end, taken), NtStatus::CONNECTION_REFUSED, "port still open");
    let holder = TcpListener::bind((LOOPBACK, 0)).unwrap();
    let listen = |local| match Incoming::listen(&mut end.adapter.clone(), local, 1) {
        Err(NodeError::Call(CallError { status, .. })) => Err(status),
        other => other.map_err(|error| panic!("{error}")),
    };
    let held = holder.local_addr().unwrap();
    assert_eq!(listen(held).map(drop), Err(NtStatus::SHARING_VIOLATION));
    // A documentation address (RFC 5737) is not assigned to this host.
    let foreign = SocketAddr::from(([192, 0, 2, 1], 0));
    assert_eq!(listen(foreign).map(drop), Err(NtStatus::INVALID_ADDRESS));
    let listening = listen(SocketAddr::from((LOOPBACK, 0))).unwrap();
    assert_ne!(listening.listener().local_address().unwrap().port(), 0);
}

// Peers that do not use MPA, or close without data.
#[test]
fn peers_without_mpa_are_refused() {
    let mut end = End::new(4096);
    let server = TcpListener::bind((LOOPBACK, 0)).unwrap();
    let address = server.local_addr().unwrap();
    for reply in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b""] {
        let answer = thread::scope(|scope| {
            let peer = scope.spawn(|| {
                let (mut peer, _) = server.accept().unwrap();
                let mut request = [0; 20];
                peer.read_exact(&mut request).unwrap();
                assert_eq!(request[..16], *b"MPA ID Req Frame");
                peer.write_all(reply).unwrap();
            });
            let status = refusal(&mut end, address);
            peer.join().unwrap();
            status
        });
        assert!(
            matches!(answer, NtStatus::CONNECTION_ABORTED | NtStatus::CONNECTION_REFUSED),
            "{answer:?}"
        );
        assert_eq!(end.adapter.linger(LIMIT), Ok(()), "connections left");
    }
}

// A thread of the sockets serves one-sided requests without calls of the target's program.
#[test]
fn passive_target_serves_requests() {
    let (mut near, mut far) = (End::new(1 << 20), End::new(1 << 20));
    let (active, _passive) = connect(&mut near, &mut far);
    for round in 0..100_u8 {
        near.buffer.write_at(0, &[round; 4096]);
        let (remote, token) = (far.buffer.address(), far.mr.remote_token());
        let source = [near.sge(0, 4096)];
        near.qp.write(1, Data::Registered(&source), remote, token, OpFlags::empty()).unwrap();
        near.completion(&active);
        let sink = [near.sge(8192, 4096)];
        near.qp.read(2, &sink, remote, token, OpFlags::empty()).unwrap();
        near.completion(&active);
        let mut data = [0; 4096];
        near.buffer.read_at(8192, &mut data);
        assert_eq!(data, [round; 4096]);
    }
}

// A consumer arms its queue and sleeps outside of the library.
#[test]
fn notification_wakes_sleeper() {
    let (mut near, mut far) = (End::new(4096), End::new(4096));
    let (notify, notified) = channel();
    let cq = far.adapter.create_cq(16, move |status| notify.send(status).unwrap()).unwrap();
    let pd = far.adapter.create_pd().unwrap();
    let (qp, mr) =
        (pd.create_qp(&cq, &cq, 0, QpLimits::default()).unwrap(), pd.create_mr(false).unwrap());
    mr.register(&far.buffer, 0, 4096, MrFlags::ALLOW_LOCAL_WRITE).unwrap();
    (far.qp, far.cq, far.mr) = (qp, cq, mr);
    let (active, _passive) = connect(&mut near, &mut far);
    for round in 0..200 {
        far.qp.receive(round, &[far.sge(0, 64)]).unwrap();
        far.cq.arm(CqNotify::Any);
        near.qp.send(round, Data::Inline(&[b"wake up"]), OpFlags::empty()).unwrap();
        assert_eq!(notified.recv_timeout(LIMIT), Ok(NtStatus::SUCCESS), "round {round}");
        let mut results = [NdkResultEx::default(); 2];
        assert_eq!(far.cq.poll_ex(&mut results), 1);
        assert_eq!(results[0].request_context, round);
        near.completion(&active);
    }
}

// A dropped end resets its connections; the peer gets a disconnect event, and its requests are flushed.
#[test]
fn dropped_end_disconnects_its_peer() {
    let (mut near, mut far) = (End::new(4096), End::new(4096));
    let (active, passive) = connect(&mut near, &mut far);
    far.qp.receive(7, &[far.sge(0, 64)]).unwrap();
    drop((active, near));
    let mut results = [NdkResultEx::default(); 2];
    let count = passive.poll(&mut far.adapter.clone(), &far.cq, &mut results).unwrap();
    assert_eq!((count, results[0].status), (1, NtStatus::CANCELLED));
    assert_eq!(passive.poll(&mut far.adapter.clone(), &far.cq, &mut results).unwrap(), 0);
    assert_eq!(far.adapter.linger(LIMIT), Ok(()));
}

// Many connections, most of them without a Request: nothing is left of them.
#[test]
fn connections_leave_nothing() {
    let far = End::new(4096);
    let local = SocketAddr::from((LOOPBACK, 0));
    let mut incoming = Incoming::listen(&mut far.adapter.clone(), local, 16).unwrap();
    let server = incoming.listener().local_address().unwrap();
    for round in 0..300 {
        let mut peer = TcpStream::connect(server).unwrap();
        match round % 3 {
            // Closes with data, closes immediately, or is silent until it is closed.
            0 => peer.write_all(b"MPA ID Req").unwrap(),
            1 => drop(peer),
            _ => {
                peer.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
                let ended = peer.read(&mut [0; 64]);
                assert!(
                    matches!(&ended, Ok(0))
                        || ended.as_ref().is_err_and(|it| it.kind() == ErrorKind::ConnectionReset),
                    "{ended:?}"
                );
            }
        }
    }
    assert_eq!(far.adapter.linger(LIMIT), Ok(()), "{:?}", far.adapter.list(LIMIT).unwrap());
    assert_eq!(far.adapter.list(LIMIT).unwrap().len(), 1, "more than the listener left");
    // The listener still works.
    let near = End::new(4096);
    thread::scope(|scope| {
        let active = scope.spawn(|| connect_to(&near, server));
        let connector = incoming.next(&mut far.adapter.clone()).unwrap();
        Connection::accept(&mut far.adapter.clone(), connector, &far.qp, limits(), &[]).unwrap();
        active.join().unwrap().unwrap();
    });
}

#[test]
fn wait_ends_at_its_limit() {
    let end = End::new(4096);
    let began = Instant::now();
    let limit = Duration::from_millis(20);
    assert_eq!(end.adapter.wait_until(Some(limit), || None::<()>), Err(WaitError::TimedOut));
    assert!(began.elapsed() >= limit);
}

#[test]
fn keep_alive_has_limits() {
    let second = Duration::from_secs(1);
    let default = KeepAlive { idle: second, interval: second, probes: 127 };
    let open = |keep_alive| {
        let adapter = AdapterConfig { keep_alive: Some(keep_alive), ..AdapterConfig::default() };
        ndk::open_sockets(SocketsConfig::default(), adapter)
    };
    for refused in [
        KeepAlive { probes: 128, ..default },
        KeepAlive { probes: 0, ..default },
        KeepAlive { idle: Duration::from_millis(999), ..default },
        KeepAlive { interval: Duration::from_secs(32_768), ..default },
    ] {
        assert_eq!(open(refused).unwrap_err().kind(), ErrorKind::InvalidInput, "{refused:?}");
    }
    open(default).unwrap();
}
