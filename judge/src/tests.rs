//! A responder with the messages of rping that violates one rule at a time: each violation is detected.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use crate::{
    Consumer, Outcome, Settings, Verdict,
    consumer::READ_SIZE,
    judge,
    wire::{
        C, ENHANCED, Enhanced, FRAME_OCTETS, Header, READ_REQUEST, REPLY, REQUEST, Read, S, SEND,
        Segment, TERMINATE, WRITE, be32, be64, crc_field, fpdu, frame_of, tagged, unsealed,
    },
};

/// Violation of the responder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    KeyIgnored,
    RevisionIgnored,
    FlagsEchoed,
    RejectionEchoed,
    OrdTooLarge,
    PeerToPeerNotCopied,
    SendsFirst,
    CrcIgnored,
    CrcWrong,
    PadNotZero,
    VersionIgnored,
    VersionWrong,
    ReservedBits,
    NoTerminate,
    NothingAtAll,
    WrongCode,
    HalvesSwapped,
    NoHeaders,
    PayloadLength,
    HeaderChanged,
    TerminateQueue,
    DataAfterTerminate,
    EchoAfterError,
    WriteBeyond,
    ReadShort,
}

/// Faults, with a case that observes each, and the violated rule.
const FAULTS: &[(Fault, &str, &str)] = &[
    (Fault::KeyIgnored, "startup-last-octet-of-key", "MPA-7.1.1-2"),
    (Fault::RevisionIgnored, "startup-revision-3", "MPA-7.1.1-9"),
    (Fault::FlagsEchoed, "startup-reserved-bits", "MPA-7.1.1-8"),
    (Fault::RejectionEchoed, "startup-rejection-in-request", "MPA-7.1.1-7"),
    (Fault::OrdTooLarge, "startup-one-read-served", "MPE-9.1-2"),
    (Fault::PeerToPeerNotCopied, "startup-client-server", "MPE-9.2-3"),
    (Fault::SendsFirst, "startup-private-data-512", "MPA-7.1.2-10"),
    (Fault::CrcIgnored, "fpdu-crc-payload", "MPA-4.4-12"),
    (Fault::CrcWrong, "rdmap-exchange", "MPA-4.4-8"),
    (Fault::PadNotZero, "rdmap-exchange", "MPA-4.1-2"),
    (Fault::VersionIgnored, "untagged-version-2", "DDP-4.1-6"),
    (Fault::VersionWrong, "untagged-version-2", "DDP-4.1-6"),
    (Fault::ReservedBits, "rdmap-exchange", "DDP-4.1-5"),
    (Fault::NoTerminate, "tagged-stag-1", "RDM-6.2.1-1"),
    (Fault::NothingAtAll, "tagged-stag-1", "DDP-4.2-2"),
    (Fault::WrongCode, "tagged-stag-1", "DDP-7.2-1"),
    (Fault::HalvesSwapped, "untagged-queue-4", "RDM-4.8-1"),
    (Fault::NoHeaders, "untagged-queue-4", "RDM-7.1-3"),
    (Fault::PayloadLength, "untagged-queue-4", "RDM-4.8-3"),
    (Fault::HeaderChanged, "untagged-queue-4", "RDM-4.8-4"),
    (Fault::TerminateQueue, "tagged-stag-1", "RDM-5.4-1"),
    (Fault::DataAfterTerminate, "tagged-stag-1", "RDM-5.4-3"),
    (Fault::EchoAfterError, "rdmap-response-too-short", "DDP-7.1-2"),
    (Fault::WriteBeyond, "rdmap-exchange", "DDP-4.2-1"),
    (Fault::ReadShort, "rdmap-exchange", "RDM-4.4-1"),
];

/// Connection of the responder.
struct Responder {
    fault: Fault,
    stream: TcpStream,
    msn: u32,
    /// Octets read from the judge, and the number of Sends received.
    text: Vec<u8>,
    sends: u32,
}

impl Responder {
    fn put(&mut self, octets: &[u8]) -> Option<()> {
        self.stream.write_all(octets).ok()
    }

    fn post(&mut self, mut ulpdu: Vec<u8>) -> Option<()> {
        match self.fault {
            Fault::VersionWrong => ulpdu[0] ^= 3,
            Fault::ReservedBits => ulpdu[0] |= 4,
            _ => {}
        }
        let body = unsealed(&ulpdu, u8::from(self.fault == Fault::PadNotZero));
        let mut octets = [&body[..], &crc_field(&body)].concat();
        if self.fault == Fault::CrcWrong {
            octets = [&body[..], &[0; 4]].concat();
        }
        self.put(&octets)
    }

    fn send(&mut self, data: &[u8]) -> Option<()> {
        self.msn += 1;
        self.post(Header::untagged(SEND, 0, self.msn).with(data))
    }

    /// Receives and answers the Request. `None`: the connection is closed.
    fn start(&mut self) -> Option<()> {
        let mut frame = [0; FRAME_OCTETS];
        self.stream.read_exact(&mut frame[..1]).ok()?;
        let ignores_key = self.fault == Fault::KeyIgnored;
        if frame[0] != b'M' {
            return None;
        }
        self.stream.read_exact(&mut frame[1..16]).ok()?;
        if frame[..16] != *REQUEST && !ignores_key {
            return None;
        }
        if ignores_key {
            return self.put(&frame_of(REPLY, C | S, 2, &ENHANCED.encode(), None));
        }
        self.stream.read_exact(&mut frame[16..]).ok()?;
        let flags = frame[16];
        if frame[17] > 2 && self.fault != Fault::RevisionIgnored {
            return None;
        }
        let mut private = vec![0; usize::from(u16::from_be_bytes([frame[18], frame[19]]))];
        self.stream.read_exact(&mut private).ok()?;
        let asked = Enhanced::decode(*private.first_chunk()?);
        let mut word = Enhanced { ord: asked.ird.min(4), a: asked.a, ..ENHANCED };
        word.c = asked.a;
        let mut reply = C | S;
        match self.fault {
            Fault::OrdTooLarge => word.ord = 4,
            Fault::PeerToPeerNotCopied => word.a = !word.a,
            Fault::FlagsEchoed => reply |= flags & 0x0f,
            Fault::RejectionEchoed => reply |= flags & 0x20,
            _ => {}
        }
        self.put(&frame_of(REPLY, reply, 2, &word.encode(), None))?;
        if self.fault == Fault::SendsFirst {
            self.send(b"early")?;
        }
        Some(())
    }

    fn serve(&mut self) -> Option<()> {
        self.start()?;
        let mut input = Vec::new();
        let mut octets = vec![0; 65_536];
        loop {
            let count = self.stream.read(&mut octets).ok().filter(|count| *count > 0)?;
            input.extend_from_slice(&octets[..count]);
            while let Some(length) = input.first_chunk().map(|it| u16::from_be_bytes(*it)) {
                let whole = (usize::from(length) + 2).next_multiple_of(4) + 4;
                if input.len() < whole {
                    break;
                }
                let one: Vec<u8> = input.drain(..whole).collect();
                let is_intact = one == fpdu(&one[2..2 + usize::from(length)]);
                if !is_intact && self.fault != Fault::CrcIgnored {
                    return self.terminate((2, 0, 2), None);
                }
                self.receive(&one[2..2 + usize::from(length)])?;
            }
        }
    }

    fn receive(&mut self, ulpdu: &[u8]) -> Option<()> {
        let Some(segment) = Segment::decode(ulpdu.to_vec()) else {
            return self.terminate((2, 0, 3), None);
        };
        let Header { is_tagged, dv, op, qn, msn, .. } = segment.header;
        match (is_tagged, op) {
            _ if dv != 1 && self.fault != Fault::VersionIgnored => {
                self.terminate((1, 2, 6), Some(ulpdu))
            }
            (true, 0) if segment.data.is_empty() => Some(()),
            (true, 2) if segment.data.len() < READ_SIZE && self.fault != Fault::EchoAfterError => {
                self.terminate((1, 1, 1), Some(ulpdu))
            }
            (true, 2) => {
                self.text = segment.data;
                // 15 octets have a pad.
                self.send(&vec![0; 16 - usize::from(self.fault == Fault::PadNotZero)])
            }
            (true, _) if self.fault == Fault::NothingAtAll => Some(()),
            (true, _) => self.terminate((1, 1, 0), Some(ulpdu)),
            (false, _) if qn != 0 => self.terminate((1, 2, 1), Some(ulpdu)),
            (false, _) => self.exchange(msn, &segment.data),
        }
    }

    /// Executes a message of rping.
    fn exchange(&mut self, msn: u32, message: &[u8]) -> Option<()> {
        self.sends += 1;
        if self.sends != msn || message.len() != 16 {
            return self.terminate((2, 0, 2), None);
        }
        let (to, stag) = (be64(message, 0), be32(message, 8));
        if self.sends % 2 == 1 {
            let size = be32(message, 12) - u32::from(self.fault == Fault::ReadShort);
            let read = Read::new(self.sends.div_ceil(2), size, stag, to);
            debug_assert_eq!(read.header.op, READ_REQUEST);
            return self.post(read.encode());
        }
        let to = to + u64::from(self.fault == Fault::WriteBeyond);
        let write = tagged(WRITE, stag, to, &self.text.clone());
        self.post(write)?;
        self.send(&[0; 16])
    }

    /// Sends a Terminate with the header of the offending segment, and ends the connection.
    fn terminate(&mut self, numbers: (u8, u8, u8), offender: Option<&[u8]>) -> Option<()> {
        let (layer, kind, mut code) = numbers;
        if self.fault == Fault::WrongCode {
            code += 2;
        }
        let mut control = [layer << 4 | kind, code, 0, 0];
        let mut copies = Vec::new();
        if let Some(offender) = offender.filter(|_| self.fault != Fault::NoHeaders) {
            control[2] = 0xC0;
            let header = if offender[0] & 0x80 != 0 { 14 } else { 18 };
            let payload = if self.fault == Fault::PayloadLength { header } else { 0 };
            copies.extend(((offender.len() - payload) as u16).to_be_bytes());
            copies.extend_from_slice(&offender[..header]);
            if self.fault == Fault::HeaderChanged {
                copies[7] ^= 1;
            }
        }
        if self.fault == Fault::HalvesSwapped {
            control = [kind << 4 | layer, code, control[2].reverse_bits(), 0];
        }
        let queue = if self.fault == Fault::TerminateQueue { 0 } else { 2 };
        let message = Header::untagged(TERMINATE, queue, 1).with(&[&control[..], &copies].concat());
        if self.fault != Fault::NoTerminate {
            self.post(message)?;
        }
        if self.fault == Fault::DataAfterTerminate {
            self.send(b"more")?;
        }
        let _ = self.stream.shutdown(Shutdown::Write);
        // Data is discarded until the judge closes, so that the FIN is not replaced by a reset.
        let mut octets = [0; 4096];
        while self.stream.read(&mut octets).is_ok_and(|count| count > 0) {}
        None
    }
}

/// Number of the fault in effect, for connections of the listener.
fn respond(listener: &TcpListener, current: &AtomicUsize, faults: &[Fault]) {
    for stream in listener.incoming().map_while(Result::ok) {
        let Some(fault) = faults.get(current.load(Ordering::SeqCst)).copied() else { return };
        thread::spawn(move || {
            let mut responder = Responder { fault, stream, msn: 0, text: Vec::new(), sends: 0 };
            responder.serve()
        });
    }
}

fn settings(address: SocketAddr, case: &str) -> Settings {
    Settings {
        address,
        is_listening: false,
        consumer: Consumer::Rping,
        only: vec![case.into()],
        seed: 1,
        limit: Duration::from_secs(2),
        pcap: None,
    }
}

#[test]
fn each_violation_is_detected() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut faults: Vec<Fault> = FAULTS.iter().map(|(fault, ..)| *fault).collect();
    faults.push(Fault::None);
    let (current, none) = (Arc::new(AtomicUsize::new(0)), faults.len() - 1);
    thread::spawn({
        let (current, faults) = (Arc::clone(&current), faults.clone());
        move || respond(&listener, &current, &faults)
    });
    let mut problems = String::new();
    for (at, (fault, case, rule)) in FAULTS.iter().enumerate() {
        for (number, is_faulty) in [(at, true), (none, false)] {
            current.store(number, Ordering::SeqCst);
            let judgment = judge(&settings(address, case), &mut |_| {}).unwrap();
            let result = judgment.cases.iter().find(|it| it.name == *case).unwrap();
            let is_found = judgment.violated().any(|it| it.rule.id == *rule);
            let has_packets = !result.packets.is_empty();
            if is_faulty && !(is_found && has_packets) {
                problems += &format!("{fault:?}: {rule} is not violated: {result:#?}\n");
            }
            if !is_faulty && result.outcome != Outcome::Passed {
                problems += &format!("{case} without a fault: {result:#?}\n");
            }
        }
    }
    assert!(problems.is_empty(), "{problems}");
}

#[test]
fn rules_without_the_needed_consumer_are_not_observable() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || respond(&listener, &AtomicUsize::new(0), &[Fault::None]));
    let judgment = judge(&settings(address, "rdmap-exchange"), &mut |_| {}).unwrap();
    let verdict = |id: &str| {
        let rule = judgment.rules.iter().find(|it| it.rule.id == id).unwrap();
        (rule.verdict, rule.reason.clone().unwrap_or_default())
    };
    assert_eq!(verdict("RDM-4.4-1"), (Verdict::Met, String::new()));
    assert_eq!(verdict("MPA-7.1.1-2"), (Verdict::NotRun, "not selected".into()));
    assert_eq!(verdict("MPA-1.2-1").0, Verdict::NotObservable);
    let unknown = judge(&settings(address, "RDM-none"), &mut |_| {}).unwrap_err().0;
    assert_eq!(unknown.exit_status(), 2);
}

#[test]
fn unreachable_peer_is_a_failure() {
    // The listener is closed immediately.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (failure, judgment) = judge(&settings(address, "rdmap-*"), &mut |_| {}).unwrap_err();
    assert_eq!(failure.exit_status(), 1);
    assert!(failure.message.contains("connect to the peer: Connection refused"), "{failure:?}");
    assert!(judgment.is_none());
}
