//! Connection of the judge: kernel TCP, and the state of a case.

use std::{
    collections::{BTreeSet, VecDeque},
    io::{self, ErrorKind, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use offload_engine::link::{Direction, SyntheticEvent};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{
        AddressFamily, SocketFlags, SocketType,
        sockopt::{set_socket_linger, set_socket_recv_buffer_size},
    },
};

use crate::{
    capture::{Capture, Flow},
    consumer::Consumer,
    decoder::{Decoder, Malformed},
    finding::{Blame, End, Finding, Step, Stop},
    wire::{
        C, ENHANCED, Enhanced, FRAME_OCTETS, Header, M, R, REPLY, REQUEST, Read, S, SEND, Segment,
        WRITE, be32, be64, fpdu, frame_of, hex, rtr,
    },
};

/// Packets of a case that its verdict shows.
const PACKETS_MAX: usize = 24;
/// Start of the reason of a case that is not run because the peer cannot be reached.
pub(crate) const CONNECT: &str = "connect to the peer";
/// Time in which a refused connect is repeated, and the interval.
pub(crate) const RESTART: Duration = Duration::from_secs(5);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Octets of one receive.
const RECEIVE_OCTETS: usize = 65_536;

/// The judged peer, and the settings of a run.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) consumer: Consumer,
    /// Time limit of a response.
    pub(crate) limit: Duration,
    /// Time for which the peer must be silent between its Reply and the first FPDU.
    pub(crate) settle: Duration,
    pub(crate) seed: u64,
    pub(crate) capture: Option<Mutex<Capture>>,
    /// Listener for a peer that is the initiator.
    pub(crate) listener: Option<TcpListener>,
    /// Signal that ends the run; 0: none.
    pub(crate) stop: Arc<AtomicUsize>,
}

/// Input from the peer.
#[derive(Debug)]
pub(crate) enum Input {
    Octets(Vec<u8>),
    End(End),
}

/// Decoded Reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Reply {
    pub(crate) flags: u8,
    pub(crate) revision: u8,
    pub(crate) word: Option<Enhanced>,
    pub(crate) private: Vec<u8>,
}

/// Connection to the peer.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: Arc<Peer>,
    stream: Option<TcpStream>,
    pub(crate) local: SocketAddr,
    flow: Flow,
    pub(crate) decoder: Decoder,
    /// True if the Request has the C bit.
    wants_crc: bool,
    pub(crate) msn: u32,
    pub(crate) read_msn: u32,
    /// Read Requests of the peer so far.
    pub(crate) reads_of_peer: u32,
    /// Number of the connection, and pages, of the consumer [`Consumer::Flue`].
    pub(crate) number: Option<u32>,
    pub(crate) pages: Vec<(u32, u64)>,
    pub(crate) reply: Option<Reply>,
    /// Last posted segment.
    pub(crate) offender: Vec<u8>,
    was_reset: bool,
    /// Last Send of the peer, and values that steps keep for later steps.
    pub(crate) sent: Option<Segment>,
    pub(crate) sink: (u32, u64),
    pub(crate) fast: (u32, u64),
    pub(crate) stale: (u32, u64),
    /// Memory of the judge that the peer has read: octets of the exchange of [`Consumer::Rping`].
    pub(crate) exchanged: Option<Vec<u8>>,
    /// Well-behaved connection, if the consumer has reports.
    pub(crate) witness: Option<Box<Link>>,
    pub(crate) findings: Vec<Finding>,
    /// Rules that the peer has met besides those of the case.
    pub(crate) observed: BTreeSet<&'static str>,
    pub(crate) packets: VecDeque<String>,
}

fn failed(what: &str, error: &io::Error) -> Stop {
    Stop::Skip(format!("{what}: {error}"))
}

/// Connects; `receive_buffer`: bytes, the default of the kernel if `None`. A refused connect is repeated: the program
/// at the peer may be restarting.
fn dial(peer: &Peer, receive_buffer: Option<usize>) -> io::Result<TcpStream> {
    let deadline = Instant::now() + RESTART.min(peer.limit);
    loop {
        match dial_once(peer, receive_buffer) {
            Err(error) if is_refused(&error) && Instant::now() < deadline => {
                pause();
            }
            done => return done,
        }
    }
}

/// Waits before a connect is repeated. No event reports that the peer listens.
pub(crate) fn pause() {
    thread::sleep(RETRY_INTERVAL);
}

fn is_refused(error: &io::Error) -> bool {
    error.kind() == ErrorKind::ConnectionRefused
}

fn dial_once(peer: &Peer, receive_buffer: Option<usize>) -> io::Result<TcpStream> {
    let Some(bytes) = receive_buffer else {
        return TcpStream::connect_timeout(&peer.address, peer.limit);
    };
    let family = if peer.address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The window is announced by the handshake, so the size must be set before.
    set_socket_recv_buffer_size(&socket, bytes)?;
    rustix::net::connect(&socket, &peer.address)?;
    Ok(TcpStream::from(socket))
}

impl Link {
    /// Connects to the peer.
    pub(crate) fn connect(peer: &Arc<Peer>, receive_buffer: Option<usize>) -> Step<Self> {
        let stream = dial(peer, receive_buffer).map_err(|error| failed(CONNECT, &error))?;
        Self::adopt(peer, stream)
    }

    /// Takes over a connection.
    pub(crate) fn adopt(peer: &Arc<Peer>, stream: TcpStream) -> Step<Self> {
        let prepared = stream.set_nodelay(true).and_then(|()| {
            stream.set_write_timeout(Some(peer.limit))?;
            Ok((stream.local_addr()?, stream.peer_addr()?))
        });
        let (local, remote) = prepared.map_err(|error| failed("socket", &error))?;
        Ok(Self { stream: Some(stream), ..Self::detached(peer, local, remote) })
    }

    /// Creates the state of a case without a connection.
    pub(crate) fn detached(peer: &Arc<Peer>, local: SocketAddr, remote: SocketAddr) -> Self {
        Self {
            peer: Arc::clone(peer),
            stream: None,
            local,
            flow: Flow::new(local, remote),
            decoder: Decoder::new(),
            wants_crc: true,
            msn: 1,
            read_msn: 1,
            reads_of_peer: 0,
            number: None,
            pages: Vec::new(),
            reply: None,
            offender: Vec::new(),
            was_reset: false,
            sent: None,
            sink: (0, 0),
            fast: (0, 0),
            stale: (0, 0),
            exchanged: None,
            witness: None,
            findings: Vec::new(),
            observed: BTreeSet::new(),
            packets: VecDeque::new(),
        }
    }

    /// Returns the deadline of a response that starts now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.peer.limit
    }

    fn note(&mut self, packet: String) {
        if self.packets.len() == PACKETS_MAX {
            self.packets.pop_front();
        }
        self.packets.push_back(packet);
    }

    fn capture(&mut self, way: Direction, event: SyntheticEvent<'_>) {
        if let Some(capture) = &self.peer.capture {
            let mut capture = capture.lock().unwrap_or_else(PoisonError::into_inner);
            capture.record(&mut self.flow, way, event);
        }
    }

    /// Adds a finding, after which the case continues. A choice that the RFCs leave is a finding only for a consumer
    /// whose expected choices are known.
    pub(crate) fn find(&mut self, blame: Blame, text: impl Into<String>) {
        if blame == Blame::Choice && self.peer.consumer != Consumer::Flue {
            return;
        }
        self.findings.push(Finding { blame, text: text.into() });
    }

    /// Records the rules as met, or a finding against them.
    pub(crate) fn check(
        &mut self,
        is_met: bool,
        rules: &'static [&'static str],
        text: impl FnOnce() -> String,
    ) {
        match is_met {
            true => self.observed.extend(rules),
            false => self.find(Blame::Rules(rules), text()),
        }
    }

    // Octets.

    /// Sends octets. A reset is reported by the next receive.
    pub(crate) fn put(&mut self, octets: &[u8]) {
        self.note(format!("judge: {}", hex(octets)));
        self.capture(Direction::Outbound, SyntheticEvent::Data(octets));
        let Some(stream) = &mut self.stream else { return };
        if stream.write_all(octets).is_err() {
            // The kernel reports the reset only once.
            self.was_reset = true;
        }
    }

    /// Receives octets.
    ///
    /// # Errors
    /// No octets before the deadline.
    pub(crate) fn get(&mut self, deadline: Instant) -> Step<Input> {
        let Some(stream) = &mut self.stream else { return Ok(Input::End(End::Reset)) };
        let mut octets = vec![0; RECEIVE_OCTETS];
        let left = deadline.saturating_duration_since(Instant::now());
        // Zero would disable the limit.
        let _ = stream.set_read_timeout(Some(left.max(Duration::from_millis(1))));
        let end = match stream.read(&mut octets) {
            Ok(0) if self.was_reset => End::Reset,
            Ok(0) => End::Fin,
            Ok(count) => {
                octets.truncate(count);
                self.capture(Direction::Inbound, SyntheticEvent::Data(&octets));
                return Ok(Input::Octets(octets));
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                let seconds = self.peer.limit.as_secs();
                return Err(Stop::case(format!("no response of the peer within {seconds} s")));
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {
                return match self.peer.stop.load(Ordering::Relaxed) {
                    0 => self.get(deadline),
                    _ => Err(Stop::Skip("interrupted".into())),
                };
            }
            Err(_) => End::Reset,
        };
        self.note(format!("peer: {end}"));
        let event = match end {
            End::Fin => SyntheticEvent::Fin,
            End::Reset => SyntheticEvent::Reset,
        };
        self.capture(Direction::Inbound, event);
        Ok(Input::End(end))
    }

    /// Waits for the end of the connection. Returns it with the octets before it.
    pub(crate) fn end(&mut self) -> Step<(End, Vec<u8>)> {
        let (mut all, deadline) = (Vec::new(), self.deadline());
        loop {
            match self.get(deadline)? {
                Input::Octets(octets) => {
                    self.note(format!("peer: {}", hex(&octets)));
                    all.extend(octets);
                }
                Input::End(end) => return Ok((end, all)),
            }
        }
    }

    /// Returns true if nothing arrives within this time.
    pub(crate) fn is_quiet(&self, time: Duration) -> bool {
        !self.is_signaled(PollFlags::IN, time)
    }

    /// Waits for the peer's reset without receiving or sending.
    pub(crate) fn await_reset(&self) -> Step {
        match self.is_signaled(PollFlags::ERR, self.peer.limit) {
            true => Ok(()),
            false => Err(Stop::case("no reset by the peer")),
        }
    }

    fn is_signaled(&self, events: PollFlags, time: Duration) -> bool {
        let Some(stream) = &self.stream else { return false };
        let mut fds = [PollFd::new(stream, events)];
        let limit = Timespec::try_from(time).ok();
        let count = poll(&mut fds, limit.as_ref()).unwrap_or(0);
        // A hang-up alone is a FIN in both directions.
        count > 0 && (events.contains(PollFlags::IN) || fds[0].revents().intersects(events))
    }

    /// Sends a FIN.
    pub(crate) fn fin(&mut self) {
        self.note("judge: FIN".into());
        if let Some(stream) = &self.stream {
            // A connection that is reset cannot be shut down; the next receive reports the reset.
            let _ = stream.shutdown(Shutdown::Write);
        }
    }

    /// Resets the connection.
    pub(crate) fn reset(&mut self) {
        self.note("judge: RST".into());
        if let Some(stream) = self.stream.take() {
            let _ = set_socket_linger(&stream, Some(Duration::ZERO));
        }
    }

    /// Closes the connection.
    pub(crate) fn close(&mut self) {
        self.stream = None;
    }

    // Start-up.

    /// Sends a Request with these private data.
    pub(crate) fn request(&mut self, private: &[u8]) {
        let private = [&ENHANCED.encode()[..], private].concat();
        self.put_request(&frame_of(REQUEST, C | S, 2, &private, None));
    }

    /// Sends a Request as encoded.
    pub(crate) fn put_request(&mut self, frame: &[u8]) {
        self.wants_crc = frame.get(16).is_some_and(|flags| flags & C != 0);
        self.put(frame);
    }

    /// Receives the Reply.
    pub(crate) fn await_reply(&mut self) -> Step<Reply> {
        let (mut octets, deadline) = (Vec::new(), self.deadline());
        let needed = |octets: &[u8]| {
            let length = octets.get(18..20).map_or(0, |it| u16::from_be_bytes([it[0], it[1]]));
            FRAME_OCTETS + usize::from(length)
        };
        while octets.len() < needed(&octets) {
            match self.get(deadline)? {
                Input::Octets(more) => octets.extend(more),
                Input::End(end) => {
                    return Err(Stop::case(format!("{end} instead of a Reply")));
                }
            }
        }
        self.note(format!("peer: {}", hex(&octets)));
        if octets[..16] != *REPLY {
            return Err(Stop::case(format!("not a Reply: {}", hex(&octets))));
        }
        let rest = octets.split_off(needed(&octets));
        let (flags, revision, mut private) =
            (octets[16], octets[17], octets.split_off(FRAME_OCTETS));
        let word = match private.first_chunk().copied().filter(|_| flags & S != 0) {
            Some(word) => {
                private.drain(..4);
                Some(Enhanced::decode(word))
            }
            None => None,
        };
        self.check(rest.is_empty(), &["MPA-7.1.2-10"], || {
            format!("octets after the Reply, before the first FPDU: {}", hex(&rest))
        });
        self.decoder.has_crc = self.wants_crc || flags & C != 0;
        let reply = Reply { flags, revision, word, private };
        if flags & R == 0 {
            if flags & M != 0 {
                return Err(Stop::Skip(
                    "the peer requires markers, which the judge does not send".into(),
                ));
            }
            self.adverts(&reply.private);
        }
        self.reply = Some(reply.clone());
        Ok(reply)
    }

    /// Reads number and pages in the private data of a consumer with commands.
    fn adverts(&mut self, private: &[u8]) {
        if self.peer.consumer < Consumer::Flue || private.len() < 4 {
            return;
        }
        self.number = Some(be32(private, 0));
        let pages = private[4..].chunks_exact(12);
        self.pages = pages.map(|page| (be32(page, 0), be64(page, 4))).collect();
    }

    /// Completes the start-up. A rejection is not a finding: the peer cannot be judged.
    pub(crate) fn establish(&mut self, private: &[u8]) -> Step {
        self.request(private);
        self.await_acceptance()?;
        self.put(&fpdu(&rtr()));
        Ok(())
    }

    /// Receives a Reply that accepts, and the silence after it.
    pub(crate) fn await_acceptance(&mut self) -> Step {
        let reply = self.await_reply()?;
        if reply.flags & R != 0 {
            return Err(Stop::Skip("the peer rejects the connection".into()));
        }
        self.settle();
        Ok(())
    }

    /// Checks that the peer sends nothing between its Reply and the first FPDU. The pause is also the time in which a
    /// peer that replies before it is ready to receive becomes ready.
    pub(crate) fn settle(&mut self) {
        let is_quiet = self.is_quiet(self.peer.settle);
        self.check(is_quiet, &["MPA-7.1.2-10"], || {
            "the responder sends before the first FPDU".into()
        });
    }

    // Full Operation.

    /// Returns the next Send.
    pub(crate) fn send(&mut self, data: &[u8]) -> Vec<u8> {
        self.send_with(data, |_| {})
    }

    /// Returns the next Send with a changed header.
    pub(crate) fn send_with(&mut self, data: &[u8], change: impl FnOnce(&mut Header)) -> Vec<u8> {
        let mut header = Header::untagged(SEND, 0, self.msn);
        change(&mut header);
        self.msn += u32::from(header.is_last);
        header.with(data)
    }

    /// Returns STag and tagged offset in a page of the peer.
    pub(crate) fn at(&self, page: usize, offset: i64) -> (u32, u64) {
        let (stag, to) = self.pages.get(page).copied().unwrap_or_default();
        (stag, to.wrapping_add_signed(offset))
    }

    /// Returns an RDMA Write.
    pub(crate) fn write(&self, page: usize, offset: i64, data: &[u8]) -> Vec<u8> {
        self.write_with(page, offset, data, |_| {})
    }

    /// Returns an RDMA Write with a changed header.
    pub(crate) fn write_with(
        &self,
        page: usize,
        offset: i64,
        data: &[u8],
        change: impl FnOnce(&mut Header),
    ) -> Vec<u8> {
        let (stag, to) = self.at(page, offset);
        let mut header = Header::tagged(WRITE, stag, to);
        change(&mut header);
        header.with(data)
    }

    /// Returns a Read Request.
    pub(crate) fn read(&mut self, page: usize, offset: i64, size: u32) -> Vec<u8> {
        self.read_with(page, offset, size, |_| {})
    }

    /// Returns a changed Read Request.
    pub(crate) fn read_with(
        &mut self,
        page: usize,
        offset: i64,
        size: u32,
        change: impl FnOnce(&mut Read),
    ) -> Vec<u8> {
        let (stag, to) = self.at(page, offset);
        let mut read = Read::new(self.read_msn, size, stag, to);
        self.read_msn += 1;
        change(&mut read);
        read.encode()
    }

    /// Sends a segment, to which a Terminate refers.
    pub(crate) fn post(&mut self, ulpdu: Vec<u8>) {
        if let Some(segment) = Segment::decode(ulpdu.clone()) {
            self.note(format!("judge: {segment}"));
        }
        self.put(&fpdu(&ulpdu));
        self.offender = ulpdu;
    }

    /// Receives the peer's next segment, or the end of the connection.
    pub(crate) fn segment_or_end(&mut self) -> Step<Result<Segment, End>> {
        let deadline = self.deadline();
        let ulpdu = loop {
            let mut found = Vec::new();
            let next = self.decoder.next(&mut found);
            for Malformed { rules, text, .. } in found {
                self.find(Blame::Rules(rules), text);
            }
            match next.map_err(|it| Stop::blaming(Blame::Rules(it.rules), it.text))? {
                Some(ulpdu) => break ulpdu,
                None => match self.get(deadline)? {
                    Input::Octets(octets) => self.decoder.feed(&octets),
                    Input::End(end) => return Ok(Err(end)),
                },
            }
        };
        if self.decoder.has_crc {
            self.observed.extend(["MPA-4.4-8", "MPA-4.4-9", "MPA-4.1-2"]);
        }
        let octets = hex(&ulpdu);
        let Some(segment) = Segment::decode(ulpdu) else {
            return Err(Stop::case(format!("ULPDU {octets}: shorter than its header")));
        };
        self.note(format!("peer: {segment}: {octets}"));
        self.check_header(&segment);
        Ok(Ok(segment))
    }

    fn check_header(&mut self, segment: &Segment) {
        let Header { is_tagged, dv, rsvd, rv, rsv, op, word, qn, .. } = segment.header;
        self.check(dv == 1, &["DDP-4.1-6"], || format!("DV {dv} of a segment: expected 1"));
        self.check(rsvd == 0, &["DDP-4.1-5"], || {
            format!("reserved bits {rsvd:#x} of the DDP control octet: expected 0")
        });
        self.check((rv, rsv) == (1, 0), &["RDM-4.1-4"], || {
            format!("RV {rv}, reserved bits {rsv} of the RDMAP control octet: expected 1 and 0")
        });
        let invalidates = matches!(op, 4 | 6);
        self.check(word == 0 || invalidates, &["RDM-4.1-2"], || {
            format!("reserved word {word:#x} of a segment that invalidates no STag: expected 0")
        });
        let expected = match op {
            0 | 2 => (true, 0),
            1 => (false, 1),
            3..=6 => (false, 0),
            7 => (false, 2),
            _ => return,
        };
        self.check((is_tagged, qn) == expected, &["RDM-4.1-3"], || {
            let (tagged, queue) = expected;
            format!("opcode {op:X} with T {is_tagged}, QN {qn}: expected T {tagged}, QN {queue}")
        });
    }

    /// Receives the peer's next segment.
    pub(crate) fn segment(&mut self) -> Step<Segment> {
        let end = |end| Stop::case(format!("{end} instead of a segment"));
        self.segment_or_end()?.map_err(end)
    }

    /// Receives the octets of the peer's next Send.
    pub(crate) fn message(&mut self) -> Step<Vec<u8>> {
        let mut octets = Vec::new();
        loop {
            let segment = self.segment()?;
            let Header { is_tagged, is_last, op, mo, .. } = segment.header;
            if is_tagged || !(3..=6).contains(&op) || mo as usize != octets.len() {
                return Err(Stop::case(format!(
                    "{segment}: expected a Send at MO {}",
                    octets.len()
                )));
            }
            octets.extend_from_slice(&segment.data);
            if is_last {
                self.sent = Some(segment);
                return Ok(octets);
            }
        }
    }

    /// Sends a command and receives its reply.
    pub(crate) fn ask(&mut self, command: &[u8]) -> Step<Vec<u8>> {
        let send = self.send(command);
        self.put(&fpdu(&send));
        let reply = self.message()?;
        match reply.first() == command.first() {
            true => Ok(reply),
            false => Err(Stop::case(format!("reply {} to command {}", hex(&reply), hex(command)))),
        }
    }
}
