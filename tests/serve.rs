//! `flue serve` from a driver author's view: a peer in another process, using the NDK API, parses the regions in the
//! Reply's private data and accesses them. The log contains each event.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use flue_test_support::flue::command;
use flue_test_support::needs::{Need, lacks};
use flue_test_support::process::{Output, Process};
use flue_test_support::switch::Switch;
use host_stack::host::HostConfig;
use host_stack::node::{Node, NodeConfig};
use offload_engine::link::{TapOptions, VnetMode, open_tap};
use offload_engine::state::MacAddress;
use rdma_over_tcp::ddp::{Msn, Stag, TaggedOffset};
use rdma_over_tcp::mpa::startup::{Frame, FrameKind, Initiator, RtrKind, RtrSet, StartupConfig};
use rdma_over_tcp::mpa::{Decoder, Encoder, Slab};
use rdma_over_tcp::ndk::{
    Adapter, AdapterConfig, AdapterCore, Connector, Cq, Data, DisconnectReason, Mr, MrFlags,
    NdkResultEx, NtStatus, OpFlags, OperationType, Qp, QpLimits, ReadLimit, RegisteredBuffer, Sge,
    open,
};
use rdma_over_tcp::ndk::{Disconnection, PendingCall};
use rdma_over_tcp::rdmap::{
    Inbound, ReadRequest, ReceivedTerminate, TerminatePhase, parse, read_request_header,
};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use serde_json::Value;

const FLUE: &str = env!("CARGO_BIN_EXE_flue");
const NEEDS: &[Need] = &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("unshare")];
const LIMIT: std::time::Duration = std::time::Duration::from_secs(120);
const WAIT: offload_engine::time::Duration = offload_engine::time::Duration::from_secs(120);
const LIMITS: ReadLimit = ReadLimit { inbound: 1, outbound: 16 };
const NONE: OpFlags = OpFlags::empty();

/// Memory region advertised in the private data.
#[derive(Clone, Debug)]
struct Region {
    stag: u32,
    address: u64,
    length: u64,
    rights: String,
}

/// Parses the lines of the private data.
fn regions(text: &str) -> Vec<Region> {
    let region = |line: &str| {
        let (version, fields) = line.split_once(' ').expect("a version and its fields");
        assert_eq!(version, "flue1");
        let fields: HashMap<&str, &str> =
            fields.split(' ').map(|field| field.split_once('=').unwrap()).collect();
        let number = |name: &str| {
            let digits = fields[name].strip_prefix("0x").expect("hexadecimal");
            u64::from_str_radix(digits, 16).unwrap()
        };
        Region {
            stag: u32::try_from(number("stag")).unwrap(),
            address: number("addr"),
            length: fields["len"].parse().unwrap(),
            rights: fields["rights"].to_owned(),
        }
    };
    text.lines().map(region).collect()
}

/// Node of this process with one queue pair.
struct Client {
    node: Node<AdapterCore>,
    adapter: Adapter,
    cq: Cq,
    qp: Qp,
    buffer: RegisteredBuffer,
    mr: Mr,
    ended: Disconnection,
}

impl Client {
    /// Creates node `index` of the network, 2 or higher.
    fn new(switch: &Switch, index: u8) -> Self {
        let name = format!("tap{index}");
        let options = TapOptions::new(&name, 1500, VnetMode::Auto);
        let opened = switch.attach(&name, || open_tap(&options)).unwrap();
        let host = HostConfig::new(MacAddress([2, 0, 0, 0, 5, index]), [10, 0, 0, index].into());
        let config = AdapterConfig { rfc7306: true, ..AdapterConfig::default() };
        let (node, adapter) = open(Box::new(opened.link), NodeConfig::new(host), config).unwrap();
        let (pd, cq) = (adapter.create_pd().unwrap(), adapter.create_cq(64, |_| {}).unwrap());
        let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default()).unwrap();
        let (buffer, mr) = (adapter.allocate(8192).unwrap(), pd.create_mr(false).unwrap());
        mr.register(&buffer, 0, 8192, MrFlags::ALLOW_LOCAL_WRITE).unwrap();
        Self { node, adapter, cq, qp, buffer, mr, ended: Disconnection::default() }
    }

    fn wait<T>(&self, look: impl FnMut() -> Option<T>) -> T {
        self.node.wait_until(Some(WAIT), look).unwrap()
    }

    fn sge(&self, offset: u64, length: u32) -> Sge {
        let address = self.buffer.address() + offset;
        Sge { address, length, token: self.mr.local_token() }
    }

    /// Connects; returns the regions advertised in the private data of the Reply.
    fn connect(&self, remote: SocketAddr) -> (Connector, Vec<Region>) {
        let connector = self.adapter.create_connector().unwrap();
        let begun = PendingCall::begin(|done| {
            connector.connect(&self.qp, None, remote, LIMITS, b"\x01hi", done)
        });
        assert_eq!(self.wait(|| begun.status()), NtStatus::SUCCESS);
        let mut octets = [0; 512];
        let (status, length, limits) = connector.connection_data(Some(&mut octets));
        assert_eq!((status, limits.outbound), (NtStatus::SUCCESS, 8), "--ird 8");
        let text = std::str::from_utf8(&octets[..length]).expect("text");
        let offered = regions(text);
        let event = Some(self.ended.event());
        let begun = PendingCall::begin(|done| connector.complete_connect(event, done));
        assert_eq!(self.wait(|| begun.status()), NtStatus::SUCCESS);
        (connector, offered)
    }

    /// Waits for the next completion.
    fn result(&self) -> NdkResultEx {
        let mut results = [NdkResultEx::default()];
        self.wait(|| (self.cq.poll_ex(&mut results) > 0).then_some(()));
        results[0]
    }

    fn success(&self) -> NdkResultEx {
        let result = self.result();
        assert_eq!(result.status, NtStatus::SUCCESS, "{result:?}");
        result
    }

    fn content(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut content = vec![0; length];
        self.buffer.read_at(offset, &mut content);
        content
    }
}

fn serve(switch: &Switch, options: &str) -> Process {
    let node = format!("--tap taps --addr 10.0.0.1/24 --bridge {}", Switch::BRIDGE);
    let line = format!("serve {node} {options}");
    let mut server = Process::start(switch.namespace(), command(FLUE, &line), Output::Lines);
    server.expect_line("listening", LIMIT);
    server
}

/// Events after the first, which reports the listener.
fn events(server: &mut Process) -> Vec<Value> {
    server.expect_exit(0, LIMIT);
    let text = server.all_lines(LIMIT);
    let lines = text.lines().filter(|line| line.starts_with('{'));
    let mut events = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
    let first = events.next().expect("an event");
    assert_eq!((&first["event"], &first["address"]), (&"listening".into(), &"0.0.0.0:7174".into()));
    events.collect()
}

fn names(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["event"].as_str().unwrap()).collect()
}

fn server_at() -> SocketAddr {
    ([10, 0, 0, 1], 7174).into()
}

#[test]
fn peer_accesses_offered_regions() {
    if lacks(NEEDS) {
        return;
    }
    let switch = Switch::new(1500);
    let options = "-1 --json --echo --ird 8 --receives 4 --region 4K:rwa --region 100:w";
    let mut server = serve(&switch, options);
    let client = Client::new(&switch, 2);
    let (connector, offered) = client.connect(server_at());
    let shown: Vec<_> = offered.iter().map(|it| (it.length, it.rights.as_str())).collect();
    assert_eq!(shown, [(4096, "rwa"), (100, "w")]);
    let Region { stag, address, .. } = offered[0].clone();

    // RDMA Write, and an RDMA Read of the written data.
    client.buffer.write_at(0, &[7; 1000]);
    let data = [client.sge(0, 1000)];
    client.qp.write(1, Data::Registered(&data), address + 8, stag, NONE).unwrap();
    client.qp.read(2, &[client.sge(4096, 1016)], address, stag, NONE).unwrap();
    assert_eq!((client.success().request_context, client.success().request_context), (1, 2));
    let expected = [&[0; 8][..], &[7; 1000], &[0; 8]].concat();
    assert_eq!(client.content(4096, 1016), expected);

    // Atomics on the preceding word.
    let sge = client.sge(6000, 8);
    client.qp.fetch_add(3, sge, address, stag, 40, NONE).unwrap();
    client.qp.compare_swap(4, client.sge(6008, 8), address, stag, (40, 2), NONE).unwrap();
    client.qp.fetch_add(5, client.sge(6016, 8), address, stag, 0, NONE).unwrap();
    (3..6).for_each(|context| assert_eq!(client.success().request_context, context));
    let found = [0, 40, 2].map(u64::to_ne_bytes).concat();
    assert_eq!(client.content(6000, 24), found);

    // More Sends than posted receives, each echoed; then Immediate Data.
    for round in 0..10_u8 {
        client.qp.receive(20, &[client.sge(2000, 100)]).unwrap();
        client.qp.send(10, Data::Inline(&[&[round; 5]]), NONE).unwrap();
        assert_eq!(client.success().operation, OperationType::Send);
        let echo = client.success();
        assert_eq!((echo.operation, echo.bytes_transferred), (OperationType::Receive, 5));
        assert_eq!(client.content(2000, 5), [round; 5]);
    }
    client.qp.receive(21, &[]).unwrap();
    client.qp.immediate(11, *b"immediat", NONE).unwrap();
    assert_eq!(client.success().operation, OperationType::Immediate);
    assert_eq!(client.success().immediate, *b"immediat");

    let begun = PendingCall::begin(|done| connector.disconnect(done));
    assert_eq!(client.wait(|| begun.status()), NtStatus::SUCCESS);
    let events = events(&mut server);
    let told = names(&events);
    assert_eq!(told[..2], ["request", "established"]);
    assert_eq!(events[0]["private_data"], "016869");
    assert_eq!((told[2..12].to_vec(), told[12]), (vec!["send"; 10], "immediate"));
    assert_eq!((&events[5]["bytes"], &events[5]["data"]), (&5.into(), &"0303030303".into()));
    assert_eq!(events[12]["data"], "696d6d6564696174");
    let ended = events.last().unwrap();
    assert_eq!((told.len(), &ended["event"], &ended["code"]), (14, &"ended".into(), &0.into()));
    let counters = &ended["counters"];
    assert_eq!((&counters["reads"], &counters["atomics"]), (&1.into(), &3.into()));
    assert_eq!((&counters["receives"], &counters["write_segments"]), (&11.into(), &1.into()));
}

// An access violation of the peer ends its connection, and the log names the Terminate sent.
#[test]
fn terminates_are_reported() {
    if lacks(NEEDS) {
        return;
    }
    let switch = Switch::new(1500);
    for (options, code, words) in [
        ("--region 100:w", 0x0102, "buffer does not permit the Read or Atomic Request"),
        ("--rfc7306 off", 0x0206, "opcode is unknown or not valid in this segment"),
    ] {
        let mut server = serve(&switch, &format!("-1 --json --ird 8 {options}"));
        let client = Client::new(&switch, 2);
        let (_connector, offered) = client.connect(server_at());
        let Region { stag, address, .. } = offered[0].clone();
        client.qp.fetch_add(1, client.sge(0, 8), address, stag, 1, NONE).unwrap();
        let result = client.result();
        assert_eq!(result.provider_error_code, code, "{result:?}");
        assert_eq!(client.wait(|| client.ended.reason()), 0x3_0000 | code, "the peer's Terminate");
        let events = events(&mut server);
        assert_eq!(names(&events), ["request", "established", "terminate", "ended"]);
        assert_eq!((&events[2]["sent"], &events[2]["code"]), (&true.into(), &code.into()));
        assert!(events[2]["reason"].as_str().unwrap().contains(words), "{:?}", events[2]);
        assert_eq!(events[3]["counters"]["atomics"], 0);
    }
}

// Text output, without echo: two concurrent peers read each other's Writes, and a signal ends the server.
#[test]
fn peers_share_the_regions() {
    if lacks(NEEDS) {
        return;
    }
    let switch = Switch::new(1500);
    let mut server = serve(&switch, "--ird 8 -p 7200 -a 10.0.0.1");
    server.expect_line("region: flue1 stag=0x", LIMIT);
    let [first, second] = [2, 3].map(|index| Client::new(&switch, index));
    let [one, other] = [&first, &second].map(|client| client.connect(([10, 0, 0, 1], 7200).into()));
    server.expect_line("2: established", LIMIT);
    let Region { stag, address, length, rights } = one.1[0].clone();
    assert_eq!((one.1.len(), length, rights.as_str()), (1, 65_536, "rwa"));
    assert_eq!((other.1[0].stag, other.1[0].address), (stag, address));
    first.qp.write(1, Data::Inline(&[b"shared"]), address, stag, NONE).unwrap();
    first.qp.send(2, Data::Inline(&[b"hello"]), NONE).unwrap();
    assert_eq!((first.success().request_context, first.success().request_context), (1, 2));
    server.expect_line("1: Send of 5 bytes 68656c6c6f", LIMIT);
    second.qp.read(3, &[second.sge(0, 6)], address, stag, NONE).unwrap();
    assert_eq!((second.success().request_context, second.content(0, 6)), (3, b"shared".to_vec()));
    let begun = PendingCall::begin(|done| one.0.disconnect(done));
    assert_eq!(first.wait(|| begun.status()), NtStatus::SUCCESS);
    let told = server.expect_line("1: ended: graceful disconnect by the peer", LIMIT);
    assert!(told.contains("receives 1, segments of Writes 1, Reads 0, atomics 0"), "{told}");
    assert!(server.is_running());
    server.signal(Signal::TERM);
    server.expect_exit(0, LIMIT);
    assert_ne!(second.wait(|| second.ended.reason()), 0, "reset");
}

/// Kind of a peer's first message.
#[derive(Clone, Copy, Debug)]
enum First {
    /// RDMA Read Request beyond the end of the region.
    ReadBeyondBounds,
    /// Send of RDMAP version 2.
    Version,
    /// Send with an incorrect CRC.
    Crc,
    /// FIN after half a header.
    HalfHeader,
    /// Terminate with the error number 1/1/01.
    Terminate,
    /// Terminate without an error number.
    EmptyTerminate,
}

impl First {
    /// Octets to send after the Reply, for a region at `address`.
    fn octets(self, Region { stag, address, length, .. }: &Region) -> Vec<u8> {
        let fpdu = |header: &[u8], payload: &[u8]| {
            let payload = [bytes::Bytes::copy_from_slice(payload)];
            let mut fpdu: Vec<bytes::Bytes> = Vec::new();
            Encoder::new(true, false).encode(header, &payload, &mut Slab::new(), &mut fpdu);
            fpdu.concat()
        };
        // DDP control octet of the last untagged segment, RDMAP control octet, RsvdULP, queue, MSN, offset.
        let untagged = |rdmap: u8, queue: u8| {
            [&[0x41, rdmap, 0, 0, 0, 0, 0, 0, 0, queue, 0, 0, 0, 1][..], &[0; 4]].concat()
        };
        match self {
            Self::ReadBeyondBounds => {
                let request = ReadRequest {
                    sink_stag: Stag(1),
                    sink_offset: TaggedOffset(0),
                    octets: 8,
                    source_stag: Stag(*stag),
                    source_offset: TaggedOffset(address + length - 7),
                };
                fpdu(&read_request_header(Msn(1), &request), b"")
            }
            Self::Version => fpdu(&untagged(0x83, 0), b"x"),
            Self::Crc => {
                let mut octets = fpdu(&untagged(0x43, 0), b"x");
                *octets.last_mut().unwrap() ^= 1;
                octets
            }
            Self::HalfHeader => fpdu(&untagged(0x43, 0), b"x")[..10].to_vec(),
            Self::Terminate => fpdu(&untagged(0x47, 2), &[0x11, 0x01, 0, 0]),
            Self::EmptyTerminate => fpdu(&untagged(0x47, 2), b""),
        }
    }
}

/// Connects from the calling thread's namespace, sends `first` and the FIN; returns the number of the received
/// Terminate, if any.
fn start_invalid(server: SocketAddr, first: First) -> Option<u32> {
    let mut socket = TcpStream::connect(server).unwrap();
    socket.write_all(&Initiator::new(StartupConfig::default()).request()).unwrap();
    let mut octets = Vec::new();
    let reply = loop {
        if let Some((frame, _)) = Frame::parse(FrameKind::Reply, &octets).unwrap() {
            break frame;
        }
        let mut octet = [0];
        socket.read_exact(&mut octet).unwrap();
        octets.extend(octet);
    };
    let text = std::str::from_utf8(reply.private_data.as_bytes()).unwrap().to_owned();
    socket.write_all(&first.octets(&regions(&text)[0])).unwrap();
    socket.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).unwrap();
    let mut rest = &answer[..];
    let ulpdu = Decoder::new(true, false).next(&mut rest).unwrap()?.to_vec();
    let Ok(Inbound::Terminate { payload, .. }) = parse(&ulpdu) else { panic!("{ulpdu:x?}") };
    let received = ReceivedTerminate::parse(payload, TerminatePhase::Startup).unwrap();
    Some(received.meant().number.code())
}

// The log has the error code sent on the wire. A connection that was never established is not logged as closed
// normally.
#[test]
fn error_in_first_message_is_logged_as_on_the_wire() {
    if lacks(NEEDS) {
        return;
    }
    let switch = Switch::new(1500);
    let kernel = switch.host("10.0.0.9/24");
    kernel.ip("link set lo up");
    let loopback = ([127, 0, 0, 1], 7174).into();
    let node = format!("--tap taps --addr 10.0.0.1/24 --bridge {}", Switch::BRIDGE);
    for (place, host, options, at) in [
        ("offloaded", switch.namespace(), node.clone(), server_at()),
        ("in the host stack", switch.namespace(), format!("{node} --offload never"), server_at()),
        ("kernel sockets", &kernel, "--transport kernel -a 127.0.0.1".to_owned(), loopback),
    ] {
        let line = format!("serve {options} --json");
        let mut server = Process::start(host, command(FLUE, &line), Output::Lines);
        server.expect_line("listening", LIMIT);
        for (first, sent, wire, ended) in [
            (First::ReadBeyondBounds, true, Some(0x0101), 0x0101),
            (First::Version, true, Some(0x0205), 0x0205),
            (First::Crc, true, Some(0x2002), 0x2002),
            (First::HalfHeader, true, Some(0x2001), DisconnectReason::WITHIN_FPDU.0),
            (First::Terminate, false, Some(0x1101), 0x3_1101),
            (First::EmptyTerminate, false, None, DisconnectReason::TERMINATED_UNNUMBERED.0),
        ] {
            let on_the_wire = kernel.run(|| start_invalid(at, first));
            assert_eq!(on_the_wire, wire.filter(|_| sent), "{place}: {first:?}");
            let event = |line: String| serde_json::from_str::<Value>(&line).unwrap();
            let terminate = event(server.expect_line("\"terminate\"", LIMIT));
            let code = wire.map_or(Value::Null, Value::from);
            assert_eq!((&terminate["sent"], &terminate["code"]), (&sent.into(), &code), "{place}");
            let reason = DisconnectReason(ended);
            assert_eq!(terminate["reason"], reason.to_string(), "{place}: {first:?}");
            let end = event(server.expect_line("\"ended\"", LIMIT));
            assert_eq!(end["code"], ended, "{place}: {first:?}");
            let words = end["reason"].as_str().unwrap();
            assert!(words.starts_with("not accepted"), "{place}: {words}");
            assert!(words.ends_with(&reason.to_string()), "{place}: {words}");
        }
        server.signal(Signal::TERM);
        server.expect_exit(0, LIMIT);
    }
}

// A connection that exceeds the available memory is rejected; the server and later clients are unaffected.
#[test]
fn connection_without_room_is_rejected() {
    if lacks(NEEDS) {
        return;
    }
    let switch = Switch::new(1500);
    // Receives of 1 GiB in total, with 256 MiB of address space left.
    let mut server = serve(&switch, "--ird 8 --receives 16 --receive-size 64M");
    let statm = std::fs::read_to_string(format!("/proc/{}/statm", server.id())).unwrap();
    let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
    let limit = pages * rustix::param::page_size() as u64 + (256 << 20);
    let pid = Pid::from_raw(server.id().cast_signed());
    let space = |current| {
        prlimit(pid, Resource::As, Rlimit { current, maximum: None }).unwrap();
    };
    space(Some(limit));
    let client = Client::new(&switch, 2);
    for _ in 0..2 {
        let connector = client.adapter.create_connector().unwrap();
        let begun = PendingCall::begin(|done| {
            connector.connect(&client.qp, None, server_at(), LIMITS, &[], done)
        });
        assert_eq!(client.wait(|| begun.status()), NtStatus::CONNECTION_REFUSED);
        let failure = connector.failure().unwrap().to_string();
        assert!(failure.contains("\"flue serve: out of resources\""), "{failure}");
    }
    space(None);
    drop(client.connect(server_at()));
    server.expect_line("1: established", LIMIT);
}

// A kernel socket receives a Reply that matches the options.
#[test]
fn options_of_mpa_are_in_the_reply() {
    if lacks(NEEDS) {
        return;
    }
    let switch = Switch::new(1500);
    let kernel = switch.host("10.0.0.9/24");
    let both = RtrSet { send: false, write: true, read: true };
    let asked = StartupConfig { crc: false, rtr: both, ..StartupConfig::default() };
    let request = Initiator::new(asked).request();
    // The Reply selects one of the RTR types offered by the Request.
    for (options, crc, markers, rtr) in [
        ("", true, false, RtrKind::Write),
        ("--mpa-crc off", false, false, RtrKind::Write),
        ("--mpa-markers on", true, true, RtrKind::Write),
        ("--rtr write", true, false, RtrKind::Write),
        ("--rtr read", true, false, RtrKind::Read),
    ] {
        let mut server = serve(&switch, &format!("-1 {options}"));
        let mut socket = kernel.run(|| TcpStream::connect(server_at())).unwrap();
        socket.write_all(&request).unwrap();
        let mut octets = Vec::new();
        let reply = loop {
            if let Some((frame, _)) = Frame::parse(FrameKind::Reply, &octets).unwrap() {
                break frame;
            }
            let mut octet = [0];
            socket.read_exact(&mut octet).unwrap();
            octets.extend(octet);
        };
        let enhanced = reply.enhanced.expect("enhanced data");
        let expected = (crc, markers, RtrSet::only(rtr));
        assert_eq!((reply.crc, reply.markers, enhanced.rtr), expected, "{options}");
        drop(socket);
        server.expect_exit(0, LIMIT);
    }
}
