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
    self, Adapter, AdapterConfig, CallError, Cq, CqNotify, CrcRequest, Data, KeepAlive, Mr,
    MrFlags, NdkResultEx, NtStatus, OpFlags, Pd, Qp, QpLimits, ReadLimit, RegisteredBuffer, Sge,
    SocketsConfig,
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
        Inbound, ReadRequest, ReceivedTerminate, SendKind, TerminatePhase, parse,
        read_request_header, rtr_header, send_header, write_header,
    },
};

/// Longer than any operation that completes at all.
const LIMIT: Duration = Duration::from_secs(60);

const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// One end: an adapter and the objects of one queue pair.
struct End {
    adapter: Adapter,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    buffer: RegisteredBuffer,
    mr: Mr,
}

impl End {
    fn new(bytes: usize) -> Self {
        Self::with_config(bytes, AdapterConfig::default())
    }

    /// An end that does not request CRCs.
    fn without_crc(bytes: usize) -> Self {
        Self::with_config(bytes, AdapterConfig { crc: CrcRequest::Off, ..AdapterConfig::default() })
    }

    fn with_config(bytes: usize, config: AdapterConfig) -> Self {
        let adapter = ndk::open_sockets(SocketsConfig::default(), config).unwrap();
        let (pd, cq) = (adapter.create_pd().unwrap(), adapter.create_cq(256, |_| {}).unwrap());
        let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default()).unwrap();
        let (buffer, mr) = (adapter.allocate(bytes).unwrap(), pd.create_mr(false).unwrap());
        let rights =
            MrFlags::ALLOW_LOCAL_WRITE | MrFlags::ALLOW_REMOTE_READ | MrFlags::ALLOW_REMOTE_WRITE;
        mr.register(&buffer, 0, bytes, rights).unwrap();
        Self { adapter, pd, cq, qp, buffer, mr }
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
    let bytes = 2 * MESSAGE_BYTES;
    exchange_messages_of_each_kind(End::new(bytes), End::new(bytes));
}

#[test]
fn messages_of_each_kind_without_crc() {
    let bytes = 2 * MESSAGE_BYTES;
    exchange_messages_of_each_kind(End::without_crc(bytes), End::without_crc(bytes));
}

const MESSAGE_BYTES: usize = 3 << 20;

fn exchange_messages_of_each_kind(mut near: End, mut far: End) {
    const BYTES: usize = MESSAGE_BYTES;
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
    // Several entries.
    let sink = [
        near.sge(BYTES, 7),
        near.sge(BYTES + 7, BYTES / 2),
        near.sge(BYTES + 7 + BYTES / 2, BYTES / 2 - 7),
    ];
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
    raw_peer_with(far, true)
}

/// As [`raw_peer`]; it requests CRCs if `crc`.
fn raw_peer_with(far: &mut End, crc: bool) -> (TcpStream, Connection) {
    let initiator = move || {
        let rtr = RtrSet::only(RtrKind::Write);
        Initiator::new(StartupConfig { rtr, crc, ..StartupConfig::default() })
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

/// Octets of the FPDU of a Write, whose CRC field is not the CRC.
fn write_fpdu(stag: u32, offset: u64, payload: &[u8]) -> Vec<u8> {
    let ulpdu = [&write_header(true, Stag(stag), TaggedOffset(offset)), payload].concat();
    let mut octets = (ulpdu.len() as u16).to_be_bytes().to_vec();
    octets.extend(ulpdu);
    octets.resize(octets.len().next_multiple_of(4), 0);
    octets.extend([0xc7; 4]);
    octets
}

/// Waits until the octet at an offset of the buffer has a value.
fn await_octet(end: &End, offset: usize, value: u8) {
    let start = Instant::now();
    let mut octet = [0];
    while octet != [value] {
        assert!(start.elapsed() < LIMIT, "octet {offset} is {octet:?}");
        end.buffer.read_at(offset, &mut octet);
        thread::yield_now();
    }
}

/// Waits until the other end has read all data of the peer.
fn await_read(peer: &TcpStream) {
    let (near, far) = (peer.local_addr().unwrap().port(), peer.peer_addr().unwrap().port());
    // Octets of the peer that are not acknowledged, and octets received and not read.
    let queues = |local: u16, remote: u16| {
        let ends = [local, remote].map(|port| format!(":{port:04X}"));
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let mut rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let row = rows.find(|row| row[1].ends_with(&ends[0]) && row[2].ends_with(&ends[1]));
        row.map(|row| row[4].to_owned())
    };
    let is_read = || {
        queues(near, far).is_some_and(|queues| queues.starts_with("00000000:"))
            && queues(far, near).is_some_and(|queues| queues.ends_with(":00000000"))
    };
    let start = Instant::now();
    while !is_read() {
        assert!(start.elapsed() < LIMIT, "data is not read");
        thread::yield_now();
    }
}

const SEGMENT_BYTES: usize = 6000;

// MPA-5.2-1, DDP-5.4-1: octets are placed as they arrive, in their buffer only.
#[test]
fn segment_without_crc_may_be_cut_anywhere() {
    let mut far = End::without_crc(SEGMENT_BYTES + 2);
    let (mut peer, _connection) = raw_peer_with(&mut far, false);
    peer.set_nodelay(true).unwrap();
    let (stag, address) = (far.mr.remote_token(), far.buffer.address());
    let length = write_fpdu(stag, address, &[0; SEGMENT_BYTES]).len();
    let header = length - 4 - SEGMENT_BYTES;
    let cuts = (0..60).chain((60..length - 100).step_by(97)).chain(length - 100..length);
    let mut rounds = 0;
    for (round, cut) in cuts.enumerate() {
        rounds += 1;
        let value = (round % 250) as u8 + 1;
        let octets = write_fpdu(stag, address + 1, &[value; SEGMENT_BYTES]);
        peer.write_all(&octets[..cut]).unwrap();
        let placed = cut.saturating_sub(header).min(SEGMENT_BYTES);
        if placed > 0 {
            await_octet(&far, placed, value);
        }
        peer.write_all(&octets[cut..]).unwrap();
        await_octet(&far, SEGMENT_BYTES, value);
        let mut data = vec![0; SEGMENT_BYTES + 2];
        far.buffer.read_at(0, &mut data);
        let (first, last) = (data[0], data[SEGMENT_BYTES + 1]);
        assert_eq!((first, last), (0, 0), "outside of the segment, cut at {cut}");
        assert!(data[1..=SEGMENT_BYTES].iter().all(|octet| *octet == value), "cut at {cut}");
    }
    await_read(&peer);
    assert_eq!(far.qp.stats().write_segments_placed, rounds, "parts are not segments");
}

/// Receives the Terminate of `far`, whose octets have no valid CRC.
fn terminate_without_crc(peer: &mut TcpStream) -> ErrorNumber {
    let (mut decoder, mut input) = (Decoder::new(false, false), vec![0; 4096]);
    loop {
        let count = peer.read(&mut input).unwrap();
        assert!(count > 0, "FIN without a Terminate");
        let mut rest = &input[..count];
        while let Some(ulpdu) = decoder.next(&mut rest).unwrap() {
            if let Inbound::Terminate { payload, .. } = parse(ulpdu).unwrap() {
                let parsed = ReceivedTerminate::parse(payload, TerminatePhase::Operation);
                return parsed.unwrap().rfc.number;
            }
        }
    }
}

// DDP-7.1-1: all of a segment is checked before its first octet is placed, also if it arrives in parts.
#[test]
fn refused_segment_in_parts_is_not_placed() {
    const BYTES: usize = SEGMENT_BYTES;
    type Name = fn(&End, &Mr) -> (u32, u64);
    let cases: [(&str, Name, WireError); 5] = [
        (
            "foreign",
            |far, _| (far.mr.remote_token() ^ 0x100, far.buffer.address()),
            WireError::TaggedInvalidStag,
        ),
        (
            "too short",
            |far, _| (far.mr.remote_token(), far.buffer.address() + 1),
            WireError::TaggedBounds,
        ),
        (
            "before the start",
            |far, _| (far.mr.remote_token(), far.buffer.address() - 1),
            WireError::TaggedBounds,
        ),
        ("wraps", |far, _| (far.mr.remote_token(), u64::MAX - 9), WireError::TaggedWrap),
        (
            "read-only",
            |far, readable| (readable.remote_token(), far.buffer.address()),
            WireError::TaggedInvalidStag,
        ),
    ];
    for (name, target, error) in cases {
        let mut far = End::without_crc(BYTES);
        let readable = far.pd.create_mr(false).unwrap();
        let rights = MrFlags::ALLOW_REMOTE_READ;
        readable.register(&far.buffer, 0, BYTES, rights).unwrap();
        let (mut peer, _connection) = raw_peer_with(&mut far, false);
        let (stag, offset) = target(&far, &readable);
        let octets = write_fpdu(stag, offset, &[7; BYTES]);
        for part in octets.chunks(BYTES / 3) {
            peer.write_all(part).unwrap();
            await_read(&peer);
        }
        assert_eq!(terminate_without_crc(&mut peer), error.number(), "{name}");
        let mut data = vec![0; BYTES];
        far.buffer.read_at(0, &mut data);
        assert!(data.iter().all(|octet| *octet == 0), "{name}");
    }
}

// NDK-MEM-9, DDP-7.1-1: nothing is placed after a deregistration.
#[test]
fn region_is_deregistered_within_a_segment() {
    let mut far = End::without_crc(SEGMENT_BYTES);
    let (mut peer, _connection) = raw_peer_with(&mut far, false);
    let octets = write_fpdu(far.mr.remote_token(), far.buffer.address(), &[7; SEGMENT_BYTES]);
    let (first, rest) = octets.split_at(5000);
    let placed = first.len() - (octets.len() - 4 - SEGMENT_BYTES);
    peer.write_all(first).unwrap();
    await_octet(&far, placed - 1, 7);
    let (sender, receiver) = channel();
    if far.mr.deregister(move || sender.send(()).unwrap()) == NtStatus::PENDING {
        receiver.recv_timeout(LIMIT).unwrap();
    }
    peer.write_all(rest).unwrap();
    assert_eq!(terminate_without_crc(&mut peer), WireError::TaggedInvalidStag.number());
    let mut data = vec![0; SEGMENT_BYTES - placed];
    far.buffer.read_at(placed, &mut data);
    assert!(data.iter().all(|octet| *octet == 0), "octets placed after the deregistration");
}

/// Sends a Read Request for `octets` of a region, from its first address on.
fn request_read(peer: &mut TcpStream, octets: usize, (token, address): (u32, u64)) {
    let request = ReadRequest {
        sink_stag: Stag(9),
        sink_offset: TaggedOffset(0),
        octets: octets as u32,
        source_stag: Stag(token),
        source_offset: TaggedOffset(address),
    };
    peer.write_all(&fpdu(&read_request_header(Msn(1), &request))).unwrap();
}

/// Receives until the peer has `octets` of responses or a Terminate; each FPDU must have a valid CRC, if `crc`. Returns
/// the data, and the error of the Terminate, if any.
fn responses(peer: &mut TcpStream, octets: usize, crc: bool) -> (Vec<u8>, Option<ErrorNumber>) {
    let (mut decoder, mut data) = (Decoder::new(crc, false), Vec::new());
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
    request_read(&mut peer, BYTES, (far.mr.remote_token(), far.buffer.address()));
    let reader = thread::spawn(move || responses(&mut peer, BYTES, true));
    let mut round = 0_usize;
    while !reader.is_finished() {
        round += 1;
        let piece = vec![round as u8; 10_000];
        far.buffer.write_at(round * 7919 % (BYTES - piece.len()), &piece);
    }
    let (data, terminate) = reader.join().unwrap();
    assert_eq!((data.len(), terminate), (BYTES, None));
}

/// More than the kernel's buffers hold.
const LONG_READ: usize = 64 << 20;
/// Bytes of a source before and after its revocation.
const BEFORE: u8 = 0x11;
const AFTER: u8 = 0xee;

/// Reads the buffer of `far` by a token and an address, and calls `revoke` when the response has begun. Bytes written
/// after that are not sent, and a Terminate reports the rest.
fn revoked_during_read(
    crc: bool,
    far: &mut End,
    (peer, source): (&mut TcpStream, (u32, u64)),
    revoke: impl FnOnce(&mut End, &mut TcpStream),
) {
    request_read(peer, LONG_READ, source);
    while peer.peek(&mut [0]).unwrap() == 0 {}
    revoke(far, peer);
    far.buffer.write_at(0, &vec![AFTER; LONG_READ]);
    let (data, terminate) = responses(peer, LONG_READ, crc);
    assert!(data.iter().all(|octet| *octet == BEFORE), "octets written after the revocation");
    assert!(data.len() < LONG_READ);
    assert_eq!(terminate, Some(WireError::ProtectionInvalidStag.number()));
}

/// End whose memory is to be read, and its peer.
fn source_of_read(crc: bool) -> (End, TcpStream, Connection) {
    let mut far = if crc { End::new(LONG_READ) } else { End::without_crc(LONG_READ) };
    far.buffer.write_at(0, &vec![BEFORE; LONG_READ]);
    let (peer, connection) = raw_peer_with(&mut far, crc);
    (far, peer, connection)
}

// RDM-8.1.1-4, RDM-7.1-4. Without CRCs the data in the queue is the memory itself, for which the deregistration waits.
#[test]
fn source_is_deregistered_during_read() {
    for crc in [true, false] {
        let (mut far, mut peer, _connection) = source_of_read(crc);
        let source = (far.mr.remote_token(), far.buffer.address());
        revoked_during_read(crc, &mut far, (&mut peer, source), |far, _| {
            let (sender, receiver) = channel();
            let status = far.mr.deregister(move || sender.send(()).unwrap());
            assert_eq!(status, if crc { NtStatus::SUCCESS } else { NtStatus::PENDING });
            if !crc {
                receiver.recv_timeout(LIMIT).unwrap();
            }
        });
    }
}

// The same for a memory window that the peer unbinds by a Send with Invalidate: its completion does not wait for data
// in the queue.
#[test]
fn window_is_unbound_during_read() {
    for crc in [true, false] {
        let (mut far, mut peer, connection) = source_of_read(crc);
        let (mw, address) = (far.pd.create_mw().unwrap(), far.buffer.address());
        let rights = OpFlags::ALLOW_REMOTE_READ;
        let token = far.qp.bind(1, &far.mr, &mw, address, LONG_READ as u64, rights).unwrap();
        far.completion(&connection);
        far.qp.receive(2, &[]).unwrap();
        revoked_during_read(crc, &mut far, (&mut peer, (token, address)), |far, peer| {
            let send = send_header(true, SendKind::Invalidate(Stag(token)), Msn(1), 0);
            peer.write_all(&fpdu(&send)).unwrap();
            assert_eq!(far.completion(&connection).request_context, 2);
        });
    }
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
