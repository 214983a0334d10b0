//! Full receive path: a peer that has completed startup sends a script of segments to a queue pair on virtual
//! time.
//!
//! Input: records of 8 octets and payload, see `segment`. The adapter may accept or reject them; in any case
//! - nothing panics, and memory without remote write access keeps its bytes;
//! - the adapter sends whole FPDUs with correct CRCs, and a Terminate is the last of them;
//! - after the peer has closed, the connection ends, every posted receive completes at most once, and no object
//!   remains.
//!
//! A bit of the input selects the service of the queue pair.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{Arc, Mutex, OnceLock},
};

use bytes::Bytes;
use host_stack::{node::Core, simulation::Pair, stream::Streams};
use offload_engine::{chimney::client::OffloadHandle, time::Duration};
use rdma_over_tcp::{
    ddp::{Msn, Stag, TaggedOffset},
    mpa::{
        Decoder,
        crc::crc32c,
        startup::{Initiator, RtrKind, StartupConfig},
    },
    ndk::{
        Adapter, Connector, Cq, Data, Listener, Mr, MrFlags, NdkResultEx, NtStatus, OpFlags, Pd,
        Qp, QpLimits, ReadLimit, RegisteredBuffer, Sge, simulation::AdapterClient,
    },
    rdmap::{
        Acknowledgment, Inbound, ReadRequest, SendKind, Syndrome, acknowledgment_header, parse,
        read_request_header, read_response_header, rtr_header, send_header, write_header,
    },
};

use super::node::pair;

const PORT: u16 = 7000;
const LIMITS: ReadLimit = ReadLimit { inbound: 2, outbound: 2 };
/// Bytes of each region.
const REGION: usize = 256;
const RECEIVES: u64 = 3;
const READ: u64 = 9;
/// Virtual time limit of a run: an unanswered FIN ends by a timeout of the adapter.
const LIMIT: Duration = Duration::from_secs(200);

type Mailbox<T> = Arc<Mutex<Vec<T>>>;

/// Consumer of the adapter.
struct Consumer {
    adapter: Adapter,
    listener: Listener,
    connectors: Mailbox<Connector>,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    buffer: RegisteredBuffer,
    /// Remotely writable; remotely readable; neither.
    regions: [Mr; 3],
}

/// Runs callbacks and then `look`, after each round of the nodes.
fn run<T>(pair: &mut Pair<Core>, mut look: impl FnMut(&mut Pair<Core>) -> Option<T>) -> T {
    let limit = pair.now + LIMIT;
    let found = pair.run(limit, |pair| {
        let mut callbacks = Vec::new();
        pair.a.clients.take_callbacks(&mut callbacks);
        pair.b.clients.take_callbacks(&mut callbacks);
        callbacks.into_iter().for_each(|callback| callback());
        look(pair)
    });
    found.unwrap_or_else(|stall| panic!("stalled: {stall:?}"))
}

impl Consumer {
    fn new(pair: &mut Pair<Core>, is_rc: bool) -> Result<Self, NtStatus> {
        let adapter = pair.b.clients.first::<AdapterClient>().adapter();
        let connectors = Mailbox::default();
        let inbox: Mailbox<Connector> = connectors.clone();
        let listener = adapter.create_listener(move |connector| {
            inbox.lock().expect("no panic").push(connector);
        })?;
        let listens = Arc::new(OnceLock::new());
        let result_cell = listens.clone();
        let status = listener.listen(SocketAddr::from(([10, 0, 0, 2], PORT)), move |status| {
            let _ = result_cell.set(status);
        });
        assert_eq!(status, NtStatus::PENDING);
        assert_eq!(run(pair, |_| listens.get().copied()), NtStatus::SUCCESS);
        let (pd, cq) = (adapter.create_pd()?, adapter.create_cq(64, |_| {})?);
        let qp = match is_rc {
            true => pd.create_rc_qp(&cq, &cq, 0, QpLimits::default())?,
            false => pd.create_qp(&cq, &cq, 0, QpLimits::default())?,
        };
        let buffer = adapter.allocate(4 * REGION)?;
        let rights =
            [MrFlags::ALLOW_REMOTE_WRITE, MrFlags::ALLOW_REMOTE_READ, MrFlags::ALLOW_LOCAL_WRITE];
        let mut region = 0;
        let regions = rights.map(|rights| {
            let mr = pd.create_mr(false).expect("a region");
            // The last region has the fourth part too: sink of Reads and receives.
            let length = if region == 2 { 2 * REGION } else { REGION };
            mr.register(&buffer, region * REGION, length, rights).expect("its memory");
            region += 1;
            mr
        });
        Ok(Self { adapter, listener, connectors, pd, cq, qp, buffer, regions })
    }

    fn sge(&self, offset: usize, length: u32) -> Sge {
        let address = self.buffer.address() + (3 * REGION + offset) as u64;
        Sge { address, length, token: self.regions[2].local_token() }
    }

    fn close(self) {
        let _ = self.listener.close(|| {});
        let _ = self.qp.close(|| {});
        let _ = self.cq.close(|| {});
        for mr in self.regions {
            let _ = mr.close(|| {});
        }
        let _ = self.pd.close(|| {});
        let _ = self.adapter.close(|| {});
    }
}

/// FPDU with a correct CRC.
fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let mut octets = (ulpdu.len() as u16).to_be_bytes().to_vec();
    octets.extend_from_slice(ulpdu);
    octets.resize(octets.len().next_multiple_of(4), 0);
    octets.extend_from_slice(&crc32c(&octets).to_le_bytes());
    octets
}

/// STags, addresses and sequence numbers that the script's segments refer to.
struct Names {
    tokens: [u32; 3],
    address: u64,
    sends: Msn,
    reads: Msn,
    acknowledgments: Msn,
    is_rc: bool,
    sink: Option<ReadRequest>,
}

/// Octets of a record: kind, flags, region, offset (two), size, two more; then `size` octets of payload are
/// taken from the input. Kinds 0 to 5 are messages that may be valid; 6 is a ULPDU; 7 are raw octets. With the other
/// service, a bit of the kind selects its private messages.
fn segment(record: [u8; 8], payload: &[u8], names: &mut Names) -> Vec<u8> {
    let [kind, flags, region, high, low, _, size, twist] = record;
    let last = flags & 1 == 0;
    let token = names.tokens[usize::from(region) % 3] ^ u32::from(flags >> 4) << 8;
    let offset = u64::from(high) << 8 | u64::from(low);
    let to = names.address + u64::from(region % 3) * REGION as u64 + offset;
    let private = names.is_rc && kind & 0x20 != 0;
    let header = match kind % 8 {
        0..4 if private => {
            let kind = SendKind::Immediate { data: [twist; 4], solicited: flags & 4 != 0 };
            let header = send_header(last, kind, names.sends, 0);
            if last {
                names.sends = names.sends.next();
            }
            header
        }
        _ if private => {
            let syndrome = match flags >> 4 & 3 {
                0 | 1 => Syndrome::Executed,
                2 => Syndrome::NotReady,
                _ => Syndrome::Failed(twist),
            };
            let acknowledgment = Acknowledgment { count: u32::from(low), syndrome };
            let header = acknowledgment_header(names.acknowledgments, &acknowledgment);
            names.acknowledgments = names.acknowledgments.next();
            return fpdu(&header);
        }
        0 => write_header(last, Stag(token), TaggedOffset(to)),
        1 | 2 => {
            let invalidates = SendKind::Invalidate(Stag(token));
            let kind = if kind % 8 == 1 { SendKind::Plain } else { invalidates };
            let header =
                send_header(last, kind, names.sends, u32::from(low) * u32::from(flags >> 1 & 1));
            if last {
                names.sends = names.sends.next();
            }
            header
        }
        3 => {
            let request = ReadRequest {
                sink_stag: Stag(5),
                sink_offset: TaggedOffset(6),
                octets: u32::from(size),
                source_stag: Stag(token),
                source_offset: TaggedOffset(to),
            };
            let header = read_request_header(names.reads, &request);
            names.reads = names.reads.next();
            return fpdu(&header);
        }
        4 => match names.sink {
            Some(sink) => read_response_header(
                last,
                sink.sink_stag,
                TaggedOffset(sink.sink_offset.0 + offset),
            ),
            None => read_response_header(last, Stag(token), TaggedOffset(to)),
        },
        5 => {
            let mut ulpdu =
                fpdu(&[&*write_header(last, Stag(token), TaggedOffset(to)), payload].concat());
            let at = usize::from(twist) % ulpdu.len();
            ulpdu[at] ^= flags | 1;
            return ulpdu;
        }
        6 => return fpdu(payload),
        _ => return payload.to_vec(),
    };
    fpdu(&[&*header, payload].concat())
}

fn send(pair: &mut Pair<Core>, handle: OffloadHandle, octets: Vec<u8>) {
    if !octets.is_empty() {
        pair.send(0, handle, Bytes::from(octets));
    }
}

/// Peer: its stream, and the messages received.
struct Peer {
    handle: OffloadHandle,
    /// Connector of the consumer.
    connector: Connector,
    disconnected: Arc<OnceLock<u32>>,
    decoder: Decoder,
    ended: bool,
    sink: Option<ReadRequest>,
}

impl Peer {
    fn streams(pair: &mut Pair<Core>) -> &mut Streams {
        pair.a.clients.first_mut::<Streams>()
    }

    fn send(&self, pair: &mut Pair<Core>, octets: Vec<u8>) {
        send(pair, self.handle, octets);
    }

    /// Disconnects the consumer after the peer's FIN.
    fn follow(&self) {
        if self.disconnected.get().is_some() {
            let _ = self.connector.disconnect(|_| {});
        }
    }

    fn receive(&mut self, pair: &mut Pair<Core>) {
        while let Some(data) = pair.receive(0, self.handle) {
            let mut rest = &data[..];
            while let Some(ulpdu) =
                self.decoder.next(&mut rest).expect("the adapter sends valid FPDUs")
            {
                assert!(!self.ended, "a message after a Terminate (RDM-5.4-3)");
                match parse(ulpdu).expect("the adapter sends valid messages") {
                    Inbound::Terminate { .. } => self.ended = true,
                    Inbound::ReadRequest { request, .. } => self.sink = Some(request),
                    _ => {}
                }
            }
        }
    }
}

fn establish(pair: &mut Pair<Core>, consumer: &Consumer, opened: &Arc<OnceLock<NtStatus>>) -> Peer {
    let server = SocketAddr::from(([10, 0, 0, 2], PORT));
    let handle = Peer::streams(pair).connect(None, server, LIMIT);
    run(pair, |pair| pair.status(0, handle).connected.then_some(()));
    let initiator = Initiator::new(StartupConfig::default());
    send(pair, handle, initiator.request().to_vec());
    let connector = run(pair, |_| consumer.connectors.lock().expect("no panic").pop());
    let disconnected = Arc::<OnceLock<u32>>::default();
    let (result_cell, reason_cell) = (opened.clone(), disconnected.clone());
    let event = Box::new(move |reason| reason_cell.set(reason).expect("disconnected once"));
    let status = connector.accept(&consumer.qp, LIMITS, &[], Some(event), move |status| {
        let _ = result_cell.set(status);
    });
    assert_eq!(status, NtStatus::PENDING);
    let mut octets = Vec::new();
    run(pair, |pair| {
        octets.extend_from_slice(&pair.receive(0, handle)?);
        initiator.receive(&octets).expect("a good Reply")
    });
    send(pair, handle, fpdu(&rtr_header(RtrKind::Write)));
    assert_eq!(run(pair, |_| opened.get().copied()), NtStatus::SUCCESS);
    let decoder = Decoder::new(true, false);
    Peer { handle, connector, disconnected, decoder, ended: false, sink: None }
}

/// Runs and checks one input.
///
/// # Panics
/// If a rule of the module documentation is violated.
pub fn check(data: &[u8]) {
    let pair = &mut pair();
    let is_rc = data.first().is_some_and(|it| it & 0x80 != 0);
    let consumer = Consumer::new(pair, is_rc).expect("within the adapter's limits");
    for context in 0..RECEIVES {
        let sge = consumer.sge(64 * context as usize, 64);
        consumer.qp.receive(context, &[sge]).expect("room");
    }
    let before: Vec<u8> = (0..2 * REGION).map(|at| at as u8).collect();
    consumer.buffer.write_at(REGION, &before);
    let mut results = BTreeSet::new();
    drive(pair, &consumer, data, &mut results);
    let mut after = vec![0; 2 * REGION];
    consumer.buffer.read_at(REGION, &mut after);
    assert!(before == after, "memory without the right to be written has changed");
    consumer.close();
    run(pair, |pair| pair.b.clients.first::<AdapterClient>().is_idle().then_some(()));
}

fn drive(pair: &mut Pair<Core>, consumer: &Consumer, data: &[u8], results: &mut BTreeSet<u64>) {
    let opened = Arc::default();
    let mut peer = establish(pair, consumer, &opened);
    let reads = data.first().is_some_and(|it| it & 0x40 != 0);
    if reads {
        let sge = consumer.sge(192, 64);
        consumer.qp.read(READ, &[sge], 1, 2, OpFlags::empty()).expect("connected");
        consumer.qp.send(READ + 1, Data::Inline(&[b"x"]), OpFlags::empty()).expect("connected");
        run(pair, |pair| {
            peer.receive(pair);
            peer.sink.map(|_| ())
        });
    }
    let mut names = Names {
        tokens: [0, 1, 2].map(|at: usize| consumer.regions[at].remote_token()),
        address: consumer.buffer.address(),
        sends: Msn::FIRST,
        reads: Msn::FIRST,
        acknowledgments: Msn::FIRST,
        is_rc: data.first().is_some_and(|it| it & 0x80 != 0),
        sink: peer.sink,
    };
    let mut rest = data;
    let mut batch = Vec::new();
    while let Some((record, behind)) = rest.split_first_chunk::<8>() {
        let (payload, behind) = behind.split_at(usize::from(record[6]).min(behind.len()));
        batch.extend(segment(*record, payload, &mut names));
        rest = behind;
        if record[1] & 8 != 0 {
            peer.send(pair, std::mem::take(&mut batch));
            peer.receive(pair);
        }
    }
    peer.send(pair, batch);
    let now = pair.now;
    let (streams, connections) = pair.parts(0);
    streams.shutdown(now, connections, peer.handle);
    let mut polled = [NdkResultEx::default(); 8];
    let is_over = |status: host_stack::stream::StreamStatus| status.peer_closed || status.closed;
    run(pair, |pair| {
        peer.receive(pair);
        let count = consumer.cq.poll_ex(&mut polled);
        for result in &polled[..count] {
            assert!(results.insert(result.request_context), "a request completes twice");
        }
        peer.follow();
        is_over(pair.status(0, peer.handle)).then_some(())
    });
    let _ = peer.connector.close(|| {});
}

/// Scripts of valid messages.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let record = |kind: u8, flags: u8, region: u8, low: u8, size: u8| {
        let mut record = vec![kind, flags, region, 0, low, 0, size, 9];
        // Different from the memory's content, so that a Write that should be rejected is detected.
        record.extend((0..size).map(|at| !at ^ kind));
        record
    };
    let all = [
        record(0, 0, 0, 0, 100),
        record(0, 1, 0, 8, 16),
        record(0, 0, 0, 24, 16),
        record(1, 0, 0, 0, 60),
        record(2, 0, 0, 0, 4),
        record(3, 0, 1, 0, 200),
        record(4, 0, 0, 0, 64),
        record(5, 0, 0, 0, 20),
        record(6, 8, 0, 0, 40),
        record(7, 0, 0, 0, 33),
        // Private messages.
        record(0x20, 4, 0, 0, 20),
        record(0x24, 0, 0, 1, 0),
    ];
    let mut seeds: Vec<Vec<u8>> = all.to_vec();
    seeds.push(all[..4].concat());
    seeds.push([&all[1][..], &all[3], &all[2], &all[5], &all[5]].concat());
    // Scripts for the other service.
    for (first, next) in [(0, 1), (3, 10), (4, 11), (11, 3)] {
        let mut script = [&all[first][..], &all[next], &all[3], &all[0]].concat();
        script[0] |= 0x80;
        seeds.push(script);
    }
    // A script with a Read of the consumer.
    seeds.push([0x40 | 4, 0, 0, 0, 0, 0, 64, 0].into_iter().chain([7; 64]).collect());
    seeds
}
