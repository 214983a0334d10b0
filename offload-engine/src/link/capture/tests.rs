use std::{
    boxed::Box,
    format,
    fs::File,
    io,
    process::Command,
    string::String,
    sync::{Arc, Mutex},
    vec,
    vec::Vec,
};

use super::*;
use crate::link::{
    Impaired, Impairments, MemoryLinkOptions, TxOffload, memory_link_pair,
    testing::{parse, partial_frame, pattern, receive_all, segment_offload, tcp_frame, transmit},
};

/// Output that can be read while it is written.
#[derive(Clone, Debug, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Output with limited space in bytes.
#[derive(Debug)]
struct Disk {
    room: usize,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.room = self.room.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

/// Returns the blocks of a file, with type and body. Checks both lengths and the alignment.
fn blocks(mut file: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut blocks = Vec::new();
    while !file.is_empty() {
        let len = u32_at(file, 4) as usize;
        assert_eq!(len % 4, 0);
        assert_eq!(u32_at(file, len - 4) as usize, len);
        blocks.push((u32_at(file, 0), file[8..len - 4].to_vec()));
        file = &file[len..];
    }
    blocks
}

fn options(mut bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut options = Vec::new();
    loop {
        let (code, len) = (u16_at(bytes, 0), usize::from(u16_at(bytes, 2)));
        if code == 0 {
            assert_eq!((len, bytes.len()), (0, 4), "the end option is last");
            return options;
        }
        options.push((code, bytes[4..4 + len].to_vec()));
        bytes = &bytes[4 + len.next_multiple_of(4)..];
    }
}

#[derive(Debug, PartialEq)]
struct Packet {
    nanos: u64,
    data: Vec<u8>,
    comment: Option<String>,
    flags: u32,
}

/// Checks the first two blocks and returns the packets.
fn packets(file: &[u8], interface: &str) -> Vec<Packet> {
    let blocks = blocks(file);
    let (kind, section) = &blocks[0];
    assert_eq!((*kind, u32_at(section, 0)), (0x0a0d_0d0a, 0x1a2b_3c4d));
    assert_eq!((u16_at(section, 4), u16_at(section, 6)), (1, 0));
    assert_eq!(section[8..16], [0xff; 8]);
    assert_eq!(options(&section[16..]), [(4, b"flue".to_vec())]);
    let (kind, description) = &blocks[1];
    assert_eq!((*kind, u16_at(description, 0), u32_at(description, 4)), (1, 1, 262_144));
    assert_eq!(options(&description[8..]), [(2, interface.as_bytes().to_vec()), (9, vec![9])]);
    blocks[2..]
        .iter()
        .map(|(kind, body)| {
            assert_eq!((*kind, u32_at(body, 0)), (6, 0));
            let len = u32_at(body, 12) as usize;
            assert_eq!(len, u32_at(body, 16) as usize);
            let mut packet = Packet {
                nanos: u64::from(u32_at(body, 4)) << 32 | u64::from(u32_at(body, 8)),
                data: body[20..20 + len].to_vec(),
                comment: None,
                flags: 0,
            };
            for (code, value) in options(&body[20 + len.next_multiple_of(4)..]) {
                match code {
                    1 => packet.comment = Some(String::from_utf8(value).unwrap()),
                    2 => packet.flags = u32_at(&value, 0),
                    _ => panic!("unexpected option {code}"),
                }
            }
            packet
        })
        .collect()
}

const START: u64 = 1_790_000_000_000_000_000;

#[test]
fn both_directions_are_recorded_with_checksums_times_and_comments() {
    let (a, b) = memory_link_pair(MemoryLinkOptions::default());
    let (out_a, out_b) = (Shared::default(), Shared::default());
    let boxed: Box<dyn Link> = Box::new(a);
    let mut a = CaptureLink::new(boxed, out_a.clone(), "tap0", START).unwrap();
    let mut b = CaptureLink::new(b, out_b.clone(), "sim", 0).unwrap();
    assert!(a.uses_comments());

    let whole = tcp_frame(true, 5, b"odd");
    let (large, place) = partial_frame(false, 9, &pattern(30_000));
    let later = Instant::from_nanos(5_000_000_001);
    transmit(&mut a, Instant::ZERO, &whole, TxOffload::default());
    transmit(&mut a, later, &large, segment_offload(&large, place, 1448));
    assert_eq!(receive_all(&mut b, later).len(), 2);
    let frames = |status: Option<CaptureStatus>| status.map(|it| it.frames);
    assert_eq!((frames(a.status()), frames(b.status())), (Some(2), Some(2)));
    a.flush_file().unwrap();
    drop(b);

    let sent = packets(&out_a.0.lock().unwrap(), "tap0");
    assert_eq!(
        sent[0],
        Packet { nanos: START, data: whole.clone(), comment: Some("NBL 7".into()), flags: 2 }
    );
    assert_eq!((sent[1].nanos, sent[1].flags), (START + 5_000_000_001, 2));
    assert_eq!(parse(&sent[1].data).expect("finished").payload, pattern(30_000));
    let received = packets(&out_b.0.lock().unwrap(), "sim");
    assert_eq!(
        received[0],
        Packet { nanos: later.as_nanos(), data: whole, comment: None, flags: 1 }
    );
    assert_eq!(parse(&received[1].data).expect("finished").payload, pattern(30_000));
    assert_eq!(sent.len() + received.len(), 4);
}

#[test]
fn refused_frames_are_not_recorded() {
    let options = MemoryLinkOptions { queue_frames_max: 1, ..MemoryLinkOptions::default() };
    let (a, _b) = memory_link_pair(options);
    let mut a = CaptureLink::new(a, Shared::default(), "a", 0).unwrap();
    let frame = tcp_frame(false, 1, b"x");
    assert_eq!(transmit(&mut a, Instant::ZERO, &frame, TxOffload::default()), TxOutcome::Sent);
    assert_eq!(transmit(&mut a, Instant::ZERO, &frame, TxOffload::default()), TxOutcome::Full);
    assert_eq!((a.status().unwrap().frames, a.stats().tx_full), (1, 1));
}

#[test]
fn capture_below_impairment_records_wire() {
    let (a, mut b) = memory_link_pair(MemoryLinkOptions::default());
    let output = Shared::default();
    let tee = CaptureLink::new(a, output.clone(), "wire", 0).unwrap();
    let lossy = Impairments { drop_pct: 50.0, seed: 3, ..Impairments::default() };
    let mut a = Impaired::new(tee, lossy, Impairments::default()).unwrap();
    let (large, place) = partial_frame(false, 0, &pattern(50_000));
    transmit(&mut a, Instant::ZERO, &large, segment_offload(&large, place, 1000));
    drop(a);
    let recorded = packets(&output.0.lock().unwrap(), "wire");
    let arrived = receive_all(&mut b, Instant::ZERO);
    assert!(recorded.len() < 50);
    assert_eq!(recorded.len(), arrived.len());
    for (packet, (data, ..)) in recorded.iter().zip(&arrived) {
        assert_eq!(&packet.data, data);
        assert_eq!(packet.comment.as_deref(), Some("NBL 7"));
    }
}

#[test]
fn write_error_ends_capture_but_not_traffic() {
    let (a, mut b) = memory_link_pair(MemoryLinkOptions::default());
    let mut a = CaptureLink::new(a, Disk { room: 300_000 }, "a", 0).unwrap();
    let frame = tcp_frame(false, 1, &pattern(1000));
    for _ in 0..600 {
        assert_eq!(transmit(&mut a, Instant::ZERO, &frame, TxOffload::default()), TxOutcome::Sent);
        receive_all(&mut b, Instant::ZERO);
    }
    let status = a.status().unwrap();
    assert!(status.error.is_some_and(|error| error.contains("space")));
    assert!(!a.uses_comments());
    assert!((200..600).contains(&status.frames));
    assert_eq!((a.stats().tx_frames, b.stats().rx_frames), (600, 600));
    a.flush_file().unwrap();
}

// Frames before the start and after the end of a capture are not recorded, and a second capture has a file of its own.
#[test]
fn capture_starts_and_stops_while_the_link_is_used() {
    let (a, mut b) = memory_link_pair(MemoryLinkOptions::default());
    let mut a = CaptureLink::idle(a);
    let frame = tcp_frame(false, 1, b"x");
    let mut send = |a: &mut CaptureLink<_, Shared>, count: usize| {
        for _ in 0..count {
            let sent = transmit(a, Instant::ZERO, &frame, TxOffload::default());
            assert_eq!(sent, TxOutcome::Sent);
        }
        receive_all(&mut b, Instant::ZERO);
    };
    send(&mut a, 1);
    assert_eq!((a.status(), a.stop(), a.uses_comments()), (None, None, false));
    for count in [2, 3] {
        let output = Shared::default();
        a.start(Recorder::new(output.clone(), "tap0", 0).unwrap());
        assert!(a.uses_comments());
        send(&mut a, count);
        let expected = CaptureStatus { frames: count as u64, error: None };
        assert_eq!(a.stop(), Some(expected));
        send(&mut a, 1);
        assert_eq!(packets(&output.0.lock().unwrap(), "tap0").len(), count);
    }
}

#[test]
fn long_comments_are_cut_at_a_character() {
    let mut writer = PcapngWriter::new(Shared::default(), "a").unwrap();
    let comment = "ü".repeat(3000);
    writer.frame(0, Direction::Inbound, Some(&format!("x{comment}")), &[0; 14]).unwrap();
    writer.flush().unwrap();
    let file = writer.output.get_ref().0.lock().unwrap().clone();
    assert_eq!(packets(&file, "a")[0].comment.as_ref().unwrap().len(), 4095);
}

/// Reads the file with Wireshark, if it is installed.
#[test]
fn tshark_reads_capture_without_errors() {
    if Command::new("tshark").arg("--version").output().is_err() {
        std::println!("skipped: tshark is not installed");
        return;
    }
    let path = std::env::temp_dir().join(format!("flue-capture-{}.pcapng", std::process::id()));
    let (a, mut b) = memory_link_pair(MemoryLinkOptions::default());
    let mut a = CaptureLink::new(a, File::create(&path).unwrap(), "tap0", START).unwrap();
    for ipv6 in [false, true] {
        let (large, place) = partial_frame(ipv6, 9, &pattern(30_000));
        transmit(&mut a, Instant::ZERO, &large, segment_offload(&large, place, 1400));
        let (small, place) = partial_frame(ipv6, 9, &pattern(3));
        let offload = TxOffload { checksum: Some(place), segment: None };
        transmit(&mut b, Instant::ZERO, &small, offload);
    }
    receive_all(&mut a, Instant::from_nanos(1));
    drop(a);
    let output = Command::new("tshark")
        .args(["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"])
        .args(["-T", "fields", "-e", "tcp.checksum.status", "-e", "frame.time_epoch"])
        .args(["-e", "frame.interface_name", "-e", "frame.packet_flags_direction"])
        .args(["-e", "frame.comment", "-e", "_ws.malformed", "-r"])
        .arg(&path)
        .output()
        .unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(rows.len(), 4, "{text}");
    let expected = [(0, 2, "NBL 7"), (0, 2, "NBL 7"), (1, 1, ""), (1, 1, "")];
    for (row, (nanos, way, comment)) in rows.iter().zip(expected) {
        let [status, time, interface, direction, said, malformed] = row[..] else {
            panic!("{text}")
        };
        assert!(["1", "Good"].contains(&status), "{text}");
        assert_eq!(time, format!("1790000000.00000000{nanos}"));
        assert!(direction.ends_with(&format!("{way}")), "{text}");
        assert_eq!((interface, said, malformed), ("tap0", comment, ""), "{text}");
    }
}
