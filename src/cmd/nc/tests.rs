use std::{
    collections::VecDeque,
    io::pipe,
    time::{Duration, Instant},
};

use clap::Parser;
use host_stack::{socket::HostError, stream::OffloadState};

use super::*;
use crate::failure::Kind;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    nc: NcArgs,
}

fn endpoint(line: &str) -> Result<Endpoint, String> {
    let words = std::iter::once("nc").chain(line.split_whitespace());
    let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
    line.nc.endpoint().map_err(|failure| {
        assert_eq!(failure.kind, Kind::Usage);
        failure.message
    })
}

#[test]
fn argument_forms_of_nc_are_accepted() {
    let listen = |text: &str| Ok(Endpoint::Listen(text.parse().unwrap()));
    assert_eq!(endpoint("-l 5000"), listen("0.0.0.0:5000"));
    assert_eq!(endpoint("-l -p 5000"), listen("0.0.0.0:5000"));
    assert_eq!(endpoint("-lp 5000"), listen("0.0.0.0:5000"));
    assert_eq!(endpoint("-l 10.77.0.2 5000"), listen("10.77.0.2:5000"));
    assert_eq!(endpoint("-l fd77::2 -p 5000"), listen("[fd77::2]:5000"));
    let timeout = Duration::from_secs(10);
    let remote = "10.0.0.1:5000".parse().unwrap();
    assert_eq!(endpoint("10.0.0.1 5000"), Ok(Endpoint::Connect { local: None, remote, timeout }));
    let local = Some("10.0.0.2:0".parse().unwrap());
    let timeout = Duration::from_secs(3);
    assert_eq!(
        endpoint("-s 10.0.0.2 -w 3 10.0.0.1 5000"),
        Ok(Endpoint::Connect { local, remote, timeout })
    );
}

#[test]
fn invalid_arguments_are_rejected() {
    let cases = [
        ("", "HOST PORT"),
        ("10.0.0.1", "HOST PORT"),
        ("-l", "PORT"),
        ("-l 1 2 3", "3"),
        ("-l 10.0.0.1 5000 -p 1", "PORT"),
        ("example.org 80", "not resolved"),
        ("10.0.0.1 0", "expected 1..=65535"),
        ("10.0.0.1 65536", "expected 1..=65535"),
        ("-s fd77::1 10.0.0.1 80", "family"),
        ("-s 10.0.0.1 -l 80", "cannot be used"),
        ("-w 0 10.0.0.1 80", "1..=600"),
    ];
    for (line, word) in cases {
        let text = endpoint(line).unwrap_err();
        assert!(text.contains(word), "{line}: {word:?} is not in {text}");
    }
}

/// Connection whose peer sends `script`, and acknowledges on request.
struct Peer {
    status: StreamStatus,
    script: VecDeque<Bytes>,
    sent: Vec<u8>,
}

impl Peer {
    fn new(script: &[&'static [u8]]) -> Self {
        let script: VecDeque<_> = script.iter().map(|part| Bytes::from_static(part)).collect();
        let status = StreamStatus {
            state: OffloadState::Offloaded,
            connected: true,
            local: None,
            remote: None,
            unacknowledged: 0,
            unread: script.iter().map(Bytes::len).sum(),
            peer_closed: false,
            shut_down: false,
            closed: false,
            error: None,
        };
        Self { status, script, sent: Vec::new() }
    }
}

impl ByteStream for Peer {
    fn status(&self) -> Option<StreamStatus> {
        Some(self.status)
    }

    fn send(&mut self, data: Bytes) {
        self.status.unacknowledged += data.len();
        self.sent.extend(&data);
    }

    fn shutdown(&mut self) {
        self.status.shut_down = true;
    }

    fn receive(&mut self) -> Option<Bytes> {
        let data = self.script.pop_front()?;
        self.status.unread -= data.len();
        Some(data)
    }
}

const LIMIT: Duration = Duration::from_secs(60);

/// Steps the pump after every wake-up, until it has ended or `enough` holds.
fn run(
    pump: &mut Pump,
    peer: &mut Peer,
    woken: &Receiver<()>,
    enough: impl Fn(&Peer) -> bool,
) -> Option<Result<(), Failure>> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let ended = pump.step(peer);
        if ended.is_some() || enough(peer) {
            return ended;
        }
        woken.recv_deadline(deadline).expect("a wake-up before the time limit");
    }
}

fn waker() -> (impl Fn() + Clone + Send + 'static, Receiver<()>) {
    let (sender, receiver) = crossbeam_channel::unbounded();
    let wake = move || {
        // The receiver is dropped at the end of its test.
        let _ = sender.send(());
    };
    (wake, receiver)
}

#[test]
fn directions_end_independently() {
    let (wake, woken) = waker();
    let (output_reader, output) = pipe().unwrap();
    let (input, mut input_writer) = pipe().unwrap();
    let reader = start_reader(input, wake.clone()).unwrap();
    let mut pump = Pump::new(reader, start_writer(output, wake).unwrap());
    let mut peer = Peer::new(&[b"from ", b"the peer"]);

    input_writer.write_all(b"to the peer").unwrap();
    drop(input_writer);
    assert!(run(&mut pump, &mut peer, &woken, |peer| peer.status.shut_down).is_none());
    assert_eq!(peer.sent, b"to the peer");

    assert!(pump.step(&mut peer).is_none(), "the peer may still send");
    peer.script.push_back(Bytes::from_static(b", and more"));
    peer.status.unread = 10;
    peer.status.peer_closed = true;
    assert_eq!(run(&mut pump, &mut peer, &woken, |_| false), Some(Ok(())));
    let mut text = String::new();
    { output_reader }.read_to_string(&mut text).unwrap();
    assert_eq!(text, "from the peer, and more");
    assert_eq!(pump.moved(), TransferCounts { sent_bytes: 11, received_bytes: 23 });
}

#[test]
fn peer_fin_leaves_send_direction_open() {
    let (wake, woken) = waker();
    let (output_reader, output) = pipe().unwrap();
    let (input, mut input_writer) = pipe().unwrap();
    let reader = start_reader(input, wake.clone()).unwrap();
    let mut pump = Pump::new(reader, start_writer(output, wake).unwrap());
    let mut peer = Peer::new(&[b"all"]);
    peer.status.peer_closed = true;
    assert!(pump.step(&mut peer).is_none());
    let mut text = String::new();
    { output_reader }.read_to_string(&mut text).unwrap();
    assert_eq!(text, "all", "standard output has ended");
    input_writer.write_all(b"still").unwrap();
    assert!(run(&mut pump, &mut peer, &woken, |peer| !peer.sent.is_empty()).is_none());
    drop(input_writer);
    assert_eq!(run(&mut pump, &mut peer, &woken, |_| false), Some(Ok(())));
}

#[test]
fn unacknowledged_data_stops_reading_input() {
    let (wake, woken) = waker();
    let (_output_reader, output) = pipe().unwrap();
    let reader = start_reader(io::repeat(7), wake.clone()).unwrap();
    let mut pump = Pump::new(reader, start_writer(output, wake).unwrap());
    let mut peer = Peer::new(&[]);
    let full = |peer: &Peer| peer.status.unacknowledged >= UNACKNOWLEDGED_BYTES_MAX;
    assert!(run(&mut pump, &mut peer, &woken, full).is_none());
    let sent = peer.sent.len();
    assert!(sent < UNACKNOWLEDGED_BYTES_MAX + CHUNK_BYTES_MAX);
    assert!(pump.step(&mut peer).is_none());
    assert_eq!(peer.sent.len(), sent, "no send before an acknowledgment");
    peer.status.unacknowledged = 0;
    assert!(run(&mut pump, &mut peer, &woken, |peer| peer.sent.len() > sent).is_none());
}

#[test]
fn reset_is_reported() {
    let (wake, _woken) = waker();
    let reader = start_reader(io::empty(), wake.clone()).unwrap();
    let mut pump = Pump::new(reader, start_writer(io::sink(), wake).unwrap());
    let mut peer = Peer::new(&[]);
    peer.status.closed = true;
    peer.status.error = Some(HostError::Reset);
    let failure = pump.step(&mut peer).unwrap().unwrap_err();
    assert_eq!(failure.message, "TCP: connection reset by peer");
}

#[test]
fn closed_output_ends_the_run() {
    let (wake, woken) = waker();
    let (output_reader, output) = pipe().unwrap();
    drop(output_reader);
    let (input, _input_writer) = pipe().unwrap();
    let reader = start_reader(input, wake.clone()).unwrap();
    let mut pump = Pump::new(reader, start_writer(output, wake).unwrap());
    let mut peer = Peer::new(&[b"data without a reader"]);
    let failure = run(&mut pump, &mut peer, &woken, |_| false).unwrap().unwrap_err();
    assert!(failure.message.starts_with("standard output"), "{failure}");
}
