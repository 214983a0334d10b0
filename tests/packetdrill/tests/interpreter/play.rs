//! Execution of events on the interface.

use std::{
    collections::HashMap,
    fs, io,
    net::{Ipv4Addr, SocketAddrV4},
    sync::{Arc, mpsc},
    thread::JoinHandle,
};

use flue_packetdrill::Adapter;

use super::{
    language::{Action, Argument, Call, Comparison, Event, EventTime, Field, Packet, Script},
    packet::Live,
};

/// Time tolerance of an event, in microseconds: packetdrill's default.
const TOLERANCE: i64 = 4_000;
/// Tolerance of the adapter's timestamps, in milliseconds: one delayed ACK more or less.
const TIMESTAMP_TOLERANCE: i32 = 45;
const LOCAL: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 168, 0, 1), 8080);
/// Port of a connecting peer, and the server to connect to.
const PEER_PORT: u16 = 40_000;
const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 8080);
/// Bytes of tcp_info.
const TCP_INFO_BYTES: usize = 280;

type Outcome = Result<(), String>;
/// Result and time of a call in the background.
type Background = JoinHandle<(io::Result<i64>, i64)>;

struct Player {
    adapter: Arc<Adapter>,
    /// Live descriptors, by the script's descriptor.
    descriptors: HashMap<i64, i32>,
    /// Descriptor of the last accepted or connecting socket.
    connection: Option<i64>,
    local: SocketAddrV4,
    peer: SocketAddrV4,
    /// Added to the adapter's sequence numbers in the script.
    offset: u32,
    /// Live timestamps by the script's, and the first pair.
    timestamps: HashMap<u32, u32>,
    first_timestamp: Option<(u32, u32)>,
    start: i64,
    background: Option<(Background, i32, i64, Call)>,
}

/// Runs a script with these `--so_flags`.
///
/// # Errors
/// The line number, and the difference from the script.
pub(crate) fn run(script: &Script, flags: &str) -> Outcome {
    let adapter = Arc::new(Adapter::new(flags)?);
    let start = adapter.time();
    let mut player = Player {
        adapter,
        descriptors: HashMap::new(),
        connection: None,
        local: LOCAL,
        peer: SocketAddrV4::new(*SERVER.ip(), PEER_PORT),
        offset: 0,
        timestamps: HashMap::new(),
        first_timestamp: None,
        start,
        background: None,
    };
    for event in &script.events {
        player.play(event).map_err(|error| format!("{}: {error}", event.line))?;
    }
    let last = script.events.last().map_or(0, |event| event.line);
    player.finish_background().map_err(|error| format!("{last}: {error}"))?;
    player.expect_no_packet().map_err(|error| format!("{last}: {error}"))
}

fn check<T: PartialEq + std::fmt::Debug>(what: &str, expected: T, actual: T) -> Outcome {
    if expected == actual {
        return Ok(());
    }
    Err(format!("{what}: expected {expected:?}, not {actual:?}"))
}

impl Player {
    fn now(&self) -> i64 {
        self.adapter.time() - self.start
    }

    fn play(&mut self, event: &Event) -> Outcome {
        let mut when = event.when;
        if when.relative {
            let now = self.now();
            when.from += now;
            when.to += now;
            when.until = when.until.map(|until| until + now);
        }
        match &event.action {
            Action::Expect(packet) => return self.expect(when, packet),
            _ => self.wait_for(when)?,
        }
        match &event.action {
            Action::Inject(packet) => self.inject(packet),
            Action::Call(call) => self.call(when, call),
            Action::Assert(comparisons) => self.assert(comparisons),
            Action::Expect(_) => Ok(()),
        }
    }

    fn wait_for(&self, when: EventTime) -> Outcome {
        let wait = when.from - self.now();
        if let Ok(wait) = u32::try_from(wait) {
            self.adapter.sleep(wait);
        }
        self.check_time(when, self.now())
    }

    fn check_time(&self, when: EventTime, now: i64) -> Outcome {
        if when.any || (when.from - TOLERANCE..=when.to + TOLERANCE).contains(&now) {
            return Ok(());
        }
        let seconds = |micros| micros as f64 / 1e6;
        let (from, to, now) = (seconds(when.from), seconds(when.to), seconds(now));
        Err(format!("time: expected {from:.6}~{to:.6}, not {now:.6}"))
    }

    fn inject(&mut self, packet: &Packet) -> Outcome {
        let options = packet.options.clone().unwrap_or_default();
        let live = |value: u32| value.wrapping_sub(self.offset);
        let options = options.into_iter().map(|field| match field {
            Field::Sack(blocks) => {
                let live = |(start, end)| (live(start), live(end));
                Field::Sack(blocks.into_iter().map(live).collect())
            }
            Field::Timestamps(value, echo) => Field::Timestamps(value, self.live_timestamp(echo)),
            other => other,
        });
        let live = Live {
            source: self.peer,
            destination: self.local,
            ecn: packet.ecn.unwrap_or(0),
            flags: packet.flags,
            seq: packet.seq,
            ack: packet.ack.map_or(0, live),
            window: packet.window.unwrap_or(0),
            options: options.collect(),
            length: packet.length,
        };
        self.adapter.inject(&live.build()?);
        Ok(())
    }

    fn live_timestamp(&self, script: u32) -> u32 {
        match (self.timestamps.get(&script), self.first_timestamp) {
            (Some(live), _) => *live,
            (None, Some((first, live))) => script.wrapping_sub(first).wrapping_add(live),
            (None, None) => script,
        }
    }

    /// Checks the next packet, merged from as many segments as the script's packet has bytes for.
    fn expect(&mut self, when: EventTime, packet: &Packet) -> Outcome {
        let mut whole: Option<Live> = None;
        let mut piece = 0;
        loop {
            let (at, bytes) = self.adapter.sniff().ok_or("no packet received")?;
            let next = Live::read(&bytes)?;
            if next.flags & 0x12 == 0x02 {
                self.local = next.source;
                self.peer = next.destination;
            }
            if next.flags & 0x02 != 0 {
                self.offset = packet.seq.wrapping_sub(next.seq);
            }
            check("addresses", (self.local, self.peer), (next.source, next.destination))?;
            let last = match whole.take() {
                None => next,
                Some(first) => {
                    let follows = first.seq.wrapping_add(first.length) == next.seq;
                    if !follows || piece != first.length.min(piece) {
                        return Err(format!("payload: {next:?} does not continue {first:?}"));
                    }
                    Live { seq: first.seq, length: first.length + next.length, ..next }
                }
            };
            piece = if piece == 0 { last.length } else { piece };
            if last.length >= packet.length || last.length == 0 {
                self.check_packet(packet, &last)?;
                return self.check_time(when, at - self.start);
            }
            whole = Some(last);
        }
    }

    fn check_packet(&mut self, expected: &Packet, actual: &Live) -> Outcome {
        let result = self.check_fields(expected, actual);
        result.map_err(|error| format!("{error} (in {})", self.describe(actual)))
    }

    fn check_fields(&mut self, expected: &Packet, actual: &Live) -> Outcome {
        check("payload", expected.length, actual.length)?;
        check("flags", expected.flags, actual.flags)?;
        check("sequence number", expected.seq, actual.seq.wrapping_add(self.offset))?;
        check("acknowledgment", expected.ack.unwrap_or(0), actual.ack)?;
        check("window", expected.window.unwrap_or(actual.window), actual.window)?;
        check("ECN", expected.ecn.unwrap_or(actual.ecn), actual.ecn)?;
        let Some(fields) = &expected.options else { return Ok(()) };
        check("number of options", fields.len(), actual.options.len())?;
        for (expected, actual) in fields.iter().zip(&actual.options) {
            if let (Field::Timestamps(value, echo), Field::Timestamps(live, live_echo)) =
                (expected, actual)
            {
                check("echoed timestamp", echo, live_echo)?;
                self.timestamps.insert(*value, *live);
                let (first, first_live) = *self.first_timestamp.get_or_insert((*value, *live));
                let drift = live.wrapping_sub(first_live).wrapping_sub(value.wrapping_sub(first));
                if (drift as i32).abs() > TIMESTAMP_TOLERANCE {
                    return Err(format!("timestamp {value}: {} ms off", drift as i32));
                }
            } else {
                check("options", expected, actual)?;
            }
        }
        Ok(())
    }

    fn describe(&self, packet: &Live) -> String {
        let seq = packet.seq.wrapping_add(self.offset);
        let end = seq.wrapping_add(packet.length);
        let Live { flags, length, ack, window, options, .. } = packet;
        format!("flags {flags:#x} {seq}:{end}({length}) ack {ack} win {window} {options:?}")
    }

    fn expect_no_packet(&self) -> Outcome {
        let before = self.adapter.time();
        match self.adapter.sniff() {
            Some((at, bytes)) if at <= before => {
                let live = Live::read(&bytes)?;
                Err(format!("no line expects {}", self.describe(&live)))
            }
            _ => Ok(()),
        }
    }

    fn assert(&self, comparisons: &[Comparison]) -> Outcome {
        let fd = self.connection.and_then(|fd| self.descriptors.get(&fd)).ok_or("no connection")?;
        let info = self
            .adapter
            .getsockopt(*fd, libc::IPPROTO_TCP, libc::TCP_INFO, TCP_INFO_BYTES)
            .map_err(|error| format!("TCP_INFO: {error}"))?;
        for Comparison { name, operator, number } in comparisons {
            let value = member(&info, name)?;
            let holds = match operator.as_str() {
                "==" => value == *number,
                "!=" => value != *number,
                "<" => value < *number,
                "<=" => value <= *number,
                ">" => value > *number,
                _ => value >= *number,
            };
            if !holds {
                return Err(format!("{name} {operator} {number}: value {value}"));
            }
        }
        Ok(())
    }

    fn call(&mut self, when: EventTime, call: &Call) -> Outcome {
        self.finish_background()?;
        let (adapter, copy) = (self.adapter.clone(), call_of(call, &self.descriptors)?);
        if matches!(call.name.as_str(), "connect") {
            self.connection = copy.script_fd;
        }
        let Some(until) = when.until else {
            let result = copy.make(&adapter);
            return self.check_result(call, result);
        };
        let (sender, receiver) = mpsc::channel();
        let handle = std::thread::spawn(move || {
            let _ = sender.send(rustix::thread::gettid().as_raw_nonzero().get());
            let result = copy.make(&adapter);
            (result, adapter.time())
        });
        let thread = receiver.recv().map_err(|_| "the thread of the call exited")?;
        let call = Call {
            name: call.name.clone(),
            arguments: Vec::new(),
            result: call.result,
            errno: call.errno,
        };
        while !handle.is_finished() && !is_asleep(thread) {
            std::thread::yield_now();
        }
        self.background = Some((handle, thread, until, call));
        Ok(())
    }

    fn finish_background(&mut self) -> Outcome {
        let Some((handle, thread, until, call)) = self.background.take() else { return Ok(()) };
        while !handle.is_finished() {
            if is_asleep(thread) && !handle.is_finished() {
                return Err(format!("{} is still blocked", call.name));
            }
            std::thread::yield_now();
        }
        let (result, ended) = handle.join().map_err(|_| "the thread of the call panicked")?;
        let when = EventTime { any: false, relative: false, from: until, to: until, until: None };
        self.check_time(when, ended - self.start)?;
        self.check_result(&call, result)
    }

    fn check_result(&mut self, call: &Call, result: io::Result<i64>) -> Outcome {
        let opens = matches!(call.name.as_str(), "socket" | "accept");
        match result {
            Ok(fd) if opens && call.result >= 0 => {
                self.descriptors.insert(call.result, fd as i32);
                if call.name == "accept" {
                    self.connection = Some(call.result);
                }
                Ok(())
            }
            Ok(value) => check(&call.name, call.result, value),
            Err(error) => {
                check(&format!("{} ({error})", call.name), call.result, -1)?;
                check("errno", call.errno, error.raw_os_error())
            }
        }
    }
}

/// Call with live values.
struct LiveCall {
    name: String,
    script_fd: Option<i64>,
    fd: i32,
    numbers: Vec<i64>,
    linger: Option<(i32, i32)>,
    expected_value: Option<i64>,
}

fn call_of(call: &Call, descriptors: &HashMap<i64, i32>) -> Result<LiveCall, String> {
    let number = |argument: &Argument| match argument {
        Argument::Number(value) | Argument::Value(value) => *value,
        Argument::Ellipsis | Argument::Linger(..) => 0,
    };
    let numbers: Vec<i64> = call.arguments.iter().map(number).collect();
    let (script_fd, fd) = match (call.name.as_str(), numbers.first()) {
        ("socket", _) | (_, None) => (None, 0),
        (name, Some(fd)) => {
            let live = descriptors.get(fd).ok_or_else(|| format!("{name}: {fd} is not open"))?;
            (Some(*fd), *live)
        }
    };
    let linger = call.arguments.iter().find_map(|argument| match argument {
        Argument::Linger(on, seconds) => Some((*on, *seconds)),
        _ => None,
    });
    let value = call.arguments.iter().find_map(|argument| match argument {
        Argument::Value(value) => Some(*value),
        _ => None,
    });
    let known = [
        "socket",
        "bind",
        "listen",
        "accept",
        "connect",
        "read",
        "recv",
        "write",
        "send",
        "fcntl",
        "ioctl",
        "close",
        "shutdown",
        "getsockopt",
        "setsockopt",
    ];
    if !known.contains(&call.name.as_str()) {
        return Err(format!("{}: unknown", call.name));
    }
    let name = call.name.clone();
    Ok(LiveCall { name, script_fd, fd, numbers, linger, expected_value: value })
}

impl LiveCall {
    fn make(&self, adapter: &Adapter) -> io::Result<i64> {
        let at = |index: usize| self.numbers.get(index).copied().unwrap_or(0) as i32;
        let size = |index: usize| usize::try_from(at(index)).unwrap_or(0);
        let same = |value: i64| match self.expected_value {
            Some(expected) if expected != value => {
                Err(io::Error::other(format!("expected [{expected}], not [{value}]")))
            }
            _ => Ok(0),
        };
        let count = match self.name.as_str() {
            "socket" => adapter.socket(libc::AF_INET, at(1), at(2))?.into(),
            "bind" => adapter.bind(self.fd, LOCAL.into())?.into(),
            "listen" => adapter.listen(self.fd, at(1))?.into(),
            "accept" => adapter.accept(self.fd)?.into(),
            "connect" => adapter.connect(self.fd, SERVER.into())?.into(),
            "read" | "recv" => adapter.recv(self.fd, &mut vec![0; size(2)], at(3))? as i64,
            "write" | "send" => adapter.send(self.fd, &vec![0; size(2)], at(3))? as i64,
            "fcntl" => adapter.fcntl(self.fd, at(1), at(2))?.into(),
            "ioctl" => same(adapter.ioctl(self.fd, self.numbers[1] as u64)?.into())?,
            "close" => adapter.close(self.fd)?.into(),
            "shutdown" => adapter.shutdown(self.fd, at(1))?.into(),
            "getsockopt" => {
                let value = adapter.getsockopt(self.fd, at(1), at(2), 4)?;
                let value = value.first_chunk().copied().unwrap_or_default();
                same(i32::from_ne_bytes(value).into())?
            }
            "setsockopt" => {
                let (first, second) = self.linger.unwrap_or_else(|| (at(3), 0));
                let mut value = first.to_ne_bytes().to_vec();
                value.extend(second.to_ne_bytes());
                value.truncate(size(4));
                adapter.setsockopt(self.fd, at(1), at(2), &value)?.into()
            }
            other => return Err(io::Error::other(format!("{other}: unknown"))),
        };
        Ok(count)
    }
}

/// True if a thread sleeps. Its call is then blocked, since no lock that it needs is held.
fn is_asleep(thread: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'))
}

/// Value of a tcp_info member (Linux' include/uapi/linux/tcp.h), by its offset and size.
fn member(info: &[u8], name: &str) -> Result<i64, String> {
    let (at, size) = match name {
        "tcpi_state" => (0, 1),
        "tcpi_ca_state" => (1, 1),
        "tcpi_retransmits" => (2, 1),
        "tcpi_backoff" => (4, 1),
        "tcpi_options" => (5, 1),
        "tcpi_rto" => (8, 4),
        "tcpi_snd_mss" => (16, 4),
        "tcpi_unacked" => (24, 4),
        "tcpi_sacked" => (28, 4),
        "tcpi_lost" => (32, 4),
        "tcpi_pmtu" => (60, 4),
        "tcpi_rtt" => (68, 4),
        "tcpi_snd_ssthresh" => (76, 4),
        "tcpi_snd_cwnd" => (80, 4),
        "tcpi_reordering" => (88, 4),
        "tcpi_total_retrans" => (100, 4),
        "tcpi_bytes_acked" => (120, 8),
        "tcpi_bytes_received" => (128, 8),
        "tcpi_notsent_bytes" => (144, 4),
        "tcpi_delivered_ce" => (196, 4),
        "tcpi_bytes_sent" => (200, 8),
        "tcpi_bytes_retrans" => (208, 8),
        "tcpi_dsack_dups" => (216, 4),
        "tcpi_snd_wnd" => (228, 4),
        "tcpi_total_rto" => (240, 2),
        _ => return Err(format!("{name}: unknown name")),
    };
    let bytes = info.get(at..at + size).ok_or_else(|| format!("tcp_info has no {name}"))?;
    Ok(bytes.iter().rev().fold(0, |value, byte| value << 8 | i64::from(*byte)))
}
