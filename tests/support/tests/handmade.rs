//! Hand-written capture with every layout of a real one: two FPDUs in a segment, an FPDU over two segments, a
//! lost frame, a wrong CRC, IPv6. Both tshark and the bench's own reader must find these.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use etherparse::PacketBuilder;
use flue_test_support::capture::{self, Direction, Flags};
use flue_test_support::flue::Scratch;
use flue_test_support::needs::{Need, lacks};
use flue_test_support::tshark::{
    self, BufferModel, Crc, Fpdu, PduKind, ReadRequest, Severity, opcode,
};

/// Both ends of a connection and the frames between them.
struct Conversation {
    ends: [SocketAddr; 2],
    next: [u32; 2],
    frames: Vec<Vec<u8>>,
}

const CLIENT: usize = 0;
const SERVER: usize = 1;

impl Conversation {
    /// Conversation after the three-way handshake, with sequence numbers close to the wrap.
    fn open(client: &str, server: &str) -> Self {
        let ends = [client, server].map(|end| end.parse().unwrap());
        let mut this = Self { ends, next: [u32::MAX - 50, 7], frames: Vec::new() };
        this.frame(CLIENT, &[], Flags::SYN);
        this.next[CLIENT] = this.next[CLIENT].wrapping_add(1);
        this.frame(SERVER, &[], Flags::SYN | Flags::ACK);
        this.next[SERVER] = this.next[SERVER].wrapping_add(1);
        this.frame(CLIENT, &[], Flags::ACK);
        this
    }

    fn frame(&mut self, from: usize, payload: &[u8], flags: Flags) {
        let (source, destination) = (self.ends[from], self.ends[1 - from]);
        let ethernet = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let ip = match (source, destination) {
            (SocketAddr::V4(from), SocketAddr::V4(to)) => {
                ethernet.ipv4(from.ip().octets(), to.ip().octets(), 64)
            }
            (SocketAddr::V6(from), SocketAddr::V6(to)) => {
                ethernet.ipv6(from.ip().octets(), to.ip().octets(), 64)
            }
            _ => unreachable!("both ends are of one family"),
        };
        let mut tcp = ip.tcp(source.port(), destination.port(), self.next[from], 60_000);
        if flags.has(Flags::SYN) {
            tcp = tcp.syn();
        }
        if flags.has(Flags::ACK) {
            tcp = tcp.ack(self.next[1 - from]);
        }
        if flags.has(Flags::PSH) {
            tcp = tcp.psh();
        }
        let mut frame = Vec::new();
        tcp.write(&mut frame, payload).unwrap();
        self.frames.push(frame);
    }

    /// Sends `payload` and its acknowledgment.
    fn send(&mut self, from: usize, payload: &[u8], push: bool) {
        self.frame(from, payload, if push { Flags::PSH | Flags::ACK } else { Flags::ACK });
        self.next[from] = self.next[from].wrapping_add(u32::try_from(payload.len()).unwrap());
        self.frame(1 - from, &[], Flags::ACK);
    }

    fn startup(&mut self) {
        // RFC 5044 §7.1.1: key, C, revision 1, two octets of private data.
        self.send(CLIENT, b"MPA ID Req Frame\x40\x01\x00\x02hi", true);
        self.send(SERVER, b"MPA ID Rep Frame\x40\x01\x00\x00", true);
    }

    fn write_pcap(&self, path: &Path) {
        let mut file = std::fs::File::create(path).unwrap();
        // Version 2.4, no zone, no limit below 65535 bytes, Ethernet.
        let header = [0xa1b2_c3d4, 0x0002_0004, 0, 0, 0xffff, 1u32];
        let big_endian =
            |words: &[u32]| words.iter().flat_map(|w| w.to_be_bytes()).collect::<Vec<_>>();
        file.write_all(&big_endian(&header)).unwrap();
        for (millisecond, frame) in (1..).zip(&self.frames) {
            let bytes = u32::try_from(frame.len()).unwrap();
            file.write_all(&big_endian(&[1_000_000, millisecond * 1000, bytes, bytes])).unwrap();
            file.write_all(frame).unwrap();
        }
    }
}

/// CRC32C bit by bit (RFC 5044 §4.4): slow, and independent of any library.
fn crc32c(data: &[u8]) -> [u8; 4] {
    let crc = data.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 }
        })
    });
    (!crc).to_le_bytes()
}

/// FPDU around a ULPDU (RFC 5044 §4.1).
fn framed(ulpdu: &[u8]) -> Vec<u8> {
    let mut fpdu = u16::try_from(ulpdu.len()).unwrap().to_be_bytes().to_vec();
    fpdu.extend(ulpdu);
    fpdu.resize(fpdu.len().next_multiple_of(4), 0);
    let crc = crc32c(&fpdu);
    fpdu.extend(crc);
    fpdu
}

/// Untagged DDP segment, RFC 5041 §4.3, RFC 5040 §4.1.
fn untagged(op: u8, queue: u32, msn: u32, payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = vec![0x41, 0x40 | op, 0, 0, 0, 0];
    ulpdu.extend([queue, msn, 0].into_iter().flat_map(u32::to_be_bytes));
    ulpdu.extend(payload);
    framed(&ulpdu)
}

/// Tagged DDP segment, RFC 5041 §4.2.
fn tagged(op: u8, last: bool, stag: u32, offset: u64, payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = vec![if last { 0xc1 } else { 0x81 }, 0x40 | op];
    ulpdu.extend(stag.to_be_bytes());
    ulpdu.extend(offset.to_be_bytes());
    ulpdu.extend(payload);
    framed(&ulpdu)
}

/// RFC 5040 §4.4: 5000 bytes from STag 9, offset 2^40, to STag 8, offset 3.
fn read_request() -> Vec<u8> {
    let mut body = 8u32.to_be_bytes().to_vec();
    body.extend(3u64.to_be_bytes());
    body.extend(5000u32.to_be_bytes());
    body.extend(9u32.to_be_bytes());
    body.extend((1u64 << 40).to_be_bytes());
    untagged(opcode::READ_REQUEST, 1, 1, &body)
}

fn fpdus_in(path: &Path) -> Vec<(usize, Fpdu)> {
    let pdus = tshark::pdus(path);
    let fpdus = pdus.into_iter().filter_map(|pdu| match pdu.kind {
        PduKind::Fpdu(fpdu) => Some((pdu.frame, fpdu)),
        PduKind::Request(_) | PduKind::Reply(_) => None,
    });
    fpdus.collect()
}

fn check_layouts(client: &str, server: &str) {
    if lacks(&[Need::Tool("tshark")]) {
        return;
    }
    let mut conversation = Conversation::open(client, server);
    conversation.startup();
    // Two FPDUs in one segment.
    let two = [untagged(opcode::SEND, 0, 1, b"hello"), read_request()].concat();
    conversation.send(CLIENT, &two, true);
    // One FPDU over two segments; the second has PSH.
    let response = tagged(opcode::READ_RESPONSE, false, 8, 3, &[0xee; 1000]);
    conversation.send(SERVER, &response[..400], false);
    conversation.send(SERVER, &response[400..], true);
    let mut wrong = tagged(opcode::WRITE, true, 0xdead_0001, u64::MAX, b"x");
    *wrong.last_mut().unwrap() ^= 1;
    conversation.send(CLIENT, &wrong, true);
    let scratch = Scratch::new();
    let file = &scratch.file("talk.pcap");
    conversation.write_pcap(file);

    let ours = capture::segments(&capture::read(file).unwrap());
    assert_eq!(ours, tshark::segments(file));
    assert_eq!(ours.len(), conversation.frames.len());
    tshark::assert_clean(file, &[]);

    let [client, server] = conversation.ends;
    let sent = Direction::find(&ours, client, server).unwrap();
    let two_end = 22 + two.len() as u64;
    assert_eq!(sent.pushes(), [22, two_end, two_end + wrong.len() as u64]);
    let answered = Direction::find(&ours, server, client).unwrap();
    assert_eq!(
        answered.segments[1..],
        [(20, 400, false), (420, response.len() as u32 - 400, true)]
    );
    assert_eq!(answered.bytes(), 20 + response.len() as u64);

    let fpdus = fpdus_in(file);
    let seen: Vec<_> = fpdus.iter().map(|(_, one)| (one.opcode, one.last, one.crc)).collect();
    assert_eq!(
        seen,
        [
            (opcode::SEND, true, Crc::Good),
            (opcode::READ_REQUEST, true, Crc::Good),
            (opcode::READ_RESPONSE, false, Crc::Good),
            (opcode::WRITE, true, Crc::Bad),
        ]
    );
    assert_eq!(fpdus[0].0, fpdus[1].0, "the first two are in one frame");
    assert_eq!(fpdus[0].1.ulpdu_length, 18 + 5);
    assert_eq!(fpdus[0].1.buffer, BufferModel::Untagged { queue: 0, msn: 1, offset: 0 });
    let expected = ReadRequest {
        sink_stag: 8,
        sink_offset: 3,
        size: 5000,
        source_stag: 9,
        source_offset: 1 << 40,
    };
    assert_eq!(fpdus[1].1.read_request, Some(expected));
    assert_eq!(fpdus[2].1.buffer, BufferModel::Tagged { stag: 8, offset: 3 });
    assert_eq!(fpdus[3].1.buffer, BufferModel::Tagged { stag: 0xdead_0001, offset: u64::MAX });
    let judge = || tshark::assert_crcs_good(&tshark::pdus(file));
    assert!(std::panic::catch_unwind(judge).is_err(), "a wrong CRC passed");
}

#[test]
fn handmade_capture_is_dissected_ipv4() {
    // Port 445 belongs to SMB: without heuristics first, the frames would not be dissected.
    check_layouts("10.1.2.3:40000", "10.1.2.4:445");
}

#[test]
fn handmade_capture_is_dissected_ipv6() {
    check_layouts("[fd00::1]:40000", "[fd00::2]:5000");
}

#[test]
fn lost_repeated_and_corrupted_segments_are_not_clean() {
    if lacks(&[Need::Tool("tshark")]) {
        return;
    }
    let (mut lost, mut repeated, mut corrupted) =
        (Conversation::open("10.0.0.1:1", "10.0.0.2:2"), Vec::new(), Vec::new());
    for _ in 0..3 {
        lost.send(CLIENT, &[0; 100], true);
    }
    repeated.clone_from(&lost.frames);
    corrupted.clone_from(&lost.frames);
    lost.frames.remove(5);
    repeated.insert(6, repeated[5].clone());
    *corrupted[5].last_mut().unwrap() ^= 1;
    let scratch = Scratch::new();
    let verdict = |name: &str, frames: Vec<Vec<u8>>| {
        let file = &scratch.file(name);
        Conversation { ends: lost.ends, next: lost.next, frames }.write_pcap(file);
        assert!(std::panic::catch_unwind(|| tshark::assert_clean(file, &[])).is_err(), "{name}");
        let remarks = tshark::remarks(file);
        remarks
            .into_iter()
            .filter(|one| one.severity >= Severity::Note)
            .map(|one| one.summary)
            .collect::<String>()
    };
    let text = verdict("lost.pcap", lost.frames.clone());
    assert!(text.contains("not captured"), "{text}");
    let text = verdict("repeated.pcap", repeated);
    assert!(text.contains("retransmission"), "{text}");
    let text = verdict("corrupted.pcap", corrupted);
    assert!(text.to_lowercase().contains("checksum"), "{text}");
}

#[test]
fn pcapng_and_pcap_yield_the_same_frames() {
    if lacks(&[Need::Tool("tshark")]) {
        return;
    }
    let mut conversation = Conversation::open("10.0.0.1:1", "10.0.0.2:2");
    conversation.send(SERVER, b"odd", true);
    let scratch = Scratch::new();
    let (pcap, pcapng) = (scratch.file("a.pcap"), scratch.file("a.pcapng"));
    conversation.write_pcap(&pcap);
    let mut convert = std::process::Command::new("tshark");
    convert.arg("-r").arg(&pcap).arg("-w").arg(&pcapng);
    assert!(convert.output().unwrap().status.success());
    let (from_pcap, from_pcapng) = (capture::read(&pcap).unwrap(), capture::read(&pcapng).unwrap());
    assert_eq!(from_pcap, from_pcapng);
    assert_eq!(from_pcap[0].time_ns, 1_000_000_001_000_000);
    assert_eq!(from_pcap.len(), 5);
}

/// pcapng by the specification: big-endian section, clock in nanoseconds, a packet with a comment.
#[test]
fn pcapng_comments_and_clocks_are_parsed_in_both_byte_orders() {
    fn file(u32_bytes: fn(u32) -> [u8; 4], u16_bytes: fn(u16) -> [u8; 2]) -> Vec<u8> {
        let block = |kind: u32, body: &[u8]| {
            let length = u32_bytes(u32::try_from(body.len()).unwrap() + 12);
            [&u32_bytes(kind)[..], &length, body, &length].concat()
        };
        let section = [&u32_bytes(0x1a2b_3c4d)[..], &u16_bytes(1), &u16_bytes(0), &[0xff; 8]];
        let clock = [&u16_bytes(9)[..], &u16_bytes(1), &[9, 0, 0, 0], &[0; 4]].concat();
        let interface = [&u16_bytes(1)[..], &u16_bytes(0), &u32_bytes(0), &clock].concat();
        let packet = [
            &u32_bytes(0)[..],
            &u32_bytes(1),
            &u32_bytes(5),
            &u32_bytes(3),
            &u32_bytes(60),
            &[1, 2, 3, 0],
            &u16_bytes(1),
            &u16_bytes(5),
            b"nbl 7\0\0\0",
            &[0; 4],
        ];
        [
            block(0x0a0d_0d0a, &section.concat()),
            block(1, &interface),
            block(0xbad, &[0; 4]),
            block(6, &packet.concat()),
        ]
        .concat()
    }
    for file in [file(u32::to_be_bytes, u16::to_be_bytes), file(u32::to_le_bytes, u16::to_le_bytes)]
    {
        let frames = capture::parse(&file).unwrap();
        assert_eq!(frames.len(), 1);
        assert_eq!(frames[0].time_ns, (1 << 32) + 5);
        assert_eq!((frames[0].wire_bytes, &*frames[0].data), (60, &[1, 2, 3][..]));
        assert_eq!(frames[0].comments, ["nbl 7"]);
        for cut in 1..file.len() {
            // A truncated file is rejected or has fewer frames; no panic.
            assert!(capture::parse(&file[..cut]).map_or(true, |frames| frames.is_empty()));
        }
    }
}
