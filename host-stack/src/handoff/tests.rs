//! Two sockets on a lossy wire, one of which is repeatedly exported from smoltcp and imported again.

mod pitfalls;

use alloc::{string::String, vec, vec::Vec};

use proptest::prelude::*;
use smoltcp::{
    iface::{Config, Interface, SocketHandle, SocketSet},
    phy::Medium,
    socket::tcp::{Socket, State},
    wire::{EthernetAddress, HardwareAddress, IpCidr},
};
use std::{collections::VecDeque, format};

use super::{
    export::{ExportError, ExportInput, export, push_acknowledgment},
    import::{ImportError, Imported, fresh_socket, import, tuple_of},
    rewind::{can_rewind, rewind},
    stage::Stage,
    take,
};
use crate::{
    clock::{self, TimestampClock, to_smoltcp},
    device::QueueDevice,
    observer::{Disposition, Flow},
    retrieve::{SegmentFrames, SeqState, retrieve},
    window::{raise_scale, scale_of_buffer},
    wire::{self, Acknowledgment, Frame, FrameAddresses},
};
use offload_engine::{
    frame::FlowKey,
    memory::{SharedSpan, Span, to_vec},
    nbl::NetBufferList,
    state::{ConnectionState, MacAddress, TcpCached},
    tcp::{SeqNum, TcpPhase, Timestamps},
    time::{Duration, Instant},
};

const RECEIVE_BUFFER: usize = 100_000;
const SEND_BUFFER: usize = 60_000;

/// One end: an interface with one socket, and the byte counts of the host layer above it.
struct SocketEnd {
    interface: Interface,
    device: QueueDevice,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    tuple: FlowKey,
    flow: Flow,
    first_sent: SeqNum,
    written: u64,
    first_received: SeqNum,
    read: u64,
    /// Bytes written to all sockets, and bytes read.
    stream_out: u64,
    stream_in: u64,
    /// Accepted data that is not yet written.
    rest: VecDeque<bytes::Bytes>,
    /// Salt of the sent stream.
    stream: u64,
    /// As in the host.
    scale_raise: u8,
    /// True to close the socket when all data is written.
    closing: bool,
    clock: TimestampClock,
    imported: bool,
}

/// Shared memory with `data`, as writable by another owner.
fn shared(data: &[u8]) -> Span {
    let memory = SharedSpan::allocate(data.len().max(1), 1).expect("memory");
    memory.write(0, data);
    memory.slice(0..data.len()).into()
}

fn pattern(stream: u64, position: u64) -> u8 {
    let mixed = (position ^ stream << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

impl SocketEnd {
    fn new(number: u8, v6: bool, timestamps: bool, random: &mut oorandom::Rand32) -> Self {
        let address = |n: u8| -> core::net::IpAddr {
            if v6 { format!("fd00::{n}").parse().unwrap() } else { [10, 0, 0, n].into() }
        };
        let mut device = QueueDevice::new(Medium::Ethernet, 1500);
        let mac = EthernetAddress([2, 0, 0, 0, 0, number]);
        let mut config = Config::new(HardwareAddress::Ethernet(mac));
        config.random_seed = u64::from(random.rand_u32());
        let mut interface = Interface::new(config, &mut device, to_smoltcp(Instant::ZERO));
        let prefix = if v6 { 64 } else { 24 };
        interface.update_ip_addrs(|list| {
            list.push(IpCidr::new(address(number).into(), prefix)).unwrap();
        });
        let mut socket = fresh_socket(RECEIVE_BUFFER, SEND_BUFFER);
        socket.set_tsval_generator(timestamps.then_some(clock::tsval));
        let mut sockets = SocketSet::new(vec![]);
        let (local, remote) = if number == 1 { (40_000, 5_000) } else { (5_000, 40_000) };
        Self {
            interface,
            device,
            socket: sockets.add(socket),
            sockets,
            tuple: FlowKey::new(
                (address(number), local).into(),
                (address(3 - number), remote).into(),
            ),
            flow: Flow::new(Instant::ZERO),
            first_sent: SeqNum(0),
            written: 0,
            first_received: SeqNum(0),
            read: 0,
            stream_out: 0,
            stream_in: 0,
            rest: VecDeque::new(),
            stream: u64::from(number) - 1,
            scale_raise: 0,
            closing: false,
            clock: TimestampClock::new(random.rand_u32()),
            imported: false,
        }
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.socket)
    }

    fn receive(&mut self, now: Instant, mut frame: Vec<u8>) {
        self.clock.set_tsval(now);
        // RFC 9293 §3.10.7.1: segments after the end of the connection are answered with RST, which is not part of the
        // test.
        if self.socket().state() == State::Closed {
            return;
        }
        if let Frame::Tcp(segment) = wire::parse(&frame) {
            assert!(segment.frame.checksum_is_valid());
            self.rewind(now, &segment);
            let socket = self.sockets.get::<Socket<'_>>(self.socket);
            let SegmentFrames { ahead, mut whole } =
                retrieve(&segment, &self.flow, socket, self.seq_state());
            let window = self.flow.kept_window(&segment).unwrap_or(segment.window);
            if let Some(mut frame) = ahead {
                let Frame::Tcp(first) = wire::parse(&frame) else { panic!("a segment") };
                assert!(first.is_well_formed && first.frame.checksum_is_valid());
                let tcp_at = first.tcp_at;
                self.flow.incoming(now, &first);
                wire::set_window(&mut frame, tcp_at, window);
                self.process(now, frame);
                whole &= self.socket().state() != State::Closed;
            }
            self.flow.incoming(now, &segment);
            if !whole {
                return;
            }
            let tcp_at = segment.tcp_at;
            wire::set_window(&mut frame, tcp_at, window);
        }
        self.process(now, frame);
    }

    /// As in the host.
    fn rewind(&mut self, now: Instant, segment: &wire::Segment<'_>) {
        let socket = self.sockets.get::<Socket<'_>>(self.socket);
        let seq_state = self.seq_state();
        let queued = seq_state.snd_una + socket.send_queue() as u32;
        if self.flow.is_overrun(now, segment)
            && can_rewind(socket.state())
            && segment.ack.is_before(queued)
            && seq_state.rcv_nxt == self.flow.acknowledged
        {
            let ends = (seq_state.snd_una, seq_state.rcv_nxt);
            let socket = take(&mut self.sockets, self.socket);
            let socket = rewind(to_smoltcp(now), self.tuple, socket, ends);
            self.socket = self.sockets.add(socket);
            self.flow.rewound();
        }
    }

    fn process(&mut self, now: Instant, frame: Vec<u8>) {
        self.device.received.push_back(frame);
        let at = to_smoltcp(now);
        let _ = self.interface.poll_ingress_single(at, &mut self.device, &mut self.sockets);
    }

    fn seq_state(&self) -> SeqState {
        let socket = self.sockets.get::<Socket<'_>>(self.socket);
        let fin_received = fin_received(socket.state());
        let acknowledged = self.written - socket.send_queue() as u64;
        let received = self.read + socket.recv_queue() as u64;
        SeqState {
            snd_una: self.first_sent
                + acknowledged as u32
                + u32::from(fin_acknowledged(socket.state())),
            rcv_nxt: self.first_received + received as u32 + u32::from(fin_received),
            fin_received,
        }
    }

    fn transmit(&mut self, now: Instant) -> Vec<Vec<u8>> {
        self.clock.set_tsval(now);
        while let Some(data) = self.rest.front_mut() {
            let count = self.sockets.get_mut::<Socket<'_>>(self.socket).send_slice(data).unwrap();
            self.written += count as u64;
            bytes::Buf::advance(data, count);
            if !data.is_empty() {
                break;
            }
            self.rest.pop_front();
        }
        if self.closing && self.rest.is_empty() {
            self.socket().close();
        }
        let _ = self.interface.poll(to_smoltcp(now), &mut self.device, &mut self.sockets);
        let mut sent = Vec::new();
        for mut frame in self.device.sent.drain(..) {
            raise_scale(&mut frame, self.scale_raise, self.flow.windows_are_scaled());
            if let Frame::Tcp(mut segment) = wire::parse(&frame) {
                match self.flow.outgoing(now, &mut segment) {
                    Disposition::Unchanged => {}
                    Disposition::Changed => frame = wire::rewritten(&frame, &segment).unwrap(),
                    Disposition::Dropped => continue,
                }
            }
            sent.push(frame);
        }
        sent
    }

    fn write(&mut self, stream: u64, count: usize) {
        if !self.rest.is_empty() {
            return;
        }
        let start = self.stream_out;
        let data = (start..start + count as u64).map(|at| pattern(stream, at)).collect::<Vec<_>>();
        if let Ok(count) = self.socket().send_slice(&data) {
            self.written += count as u64;
            self.stream_out += count as u64;
        }
    }

    fn read(&mut self, stream: u64, most: usize) {
        let mut data = vec![0; most.min(self.socket().recv_queue())];
        let Ok(count) = self.socket().recv_slice(&mut data) else { return };
        for byte in &data[..count] {
            assert_eq!(*byte, pattern(stream, self.stream_in), "byte {}", self.stream_in);
            self.stream_in += 1;
        }
        self.read += count as u64;
    }

    fn establish(&mut self) {
        self.first_sent = self.flow.iss().unwrap() + 1;
        self.first_received = self.flow.irs().unwrap() + 1;
    }

    fn push_acknowledgment(&mut self, now: Instant) -> Vec<Vec<u8>> {
        push_acknowledgment(
            to_smoltcp(now),
            &mut self.interface,
            &mut self.device,
            &mut self.sockets,
            &mut self.socket,
        );
        self.transmit(now)
    }

    fn export(&mut self, now: Instant) -> Result<ConnectionState, ExportError> {
        self.clock.set_tsval(now);
        let SeqState { snd_una, rcv_nxt, .. } = self.seq_state();
        let socket = take(&mut self.sockets, self.socket);
        let input = ExportInput {
            beyond: &VecDeque::new(),
            tuple: self.tuple,
            flow: &self.flow,
            snd_una,
            rcv_nxt,
            cached: TcpCached { initial_rcv_wnd: RECEIVE_BUFFER as u32, ..TcpCached::default() },
            closing: self.closing,
            path_mtu: 1500,
            ts_time: self.clock.at(now),
        };
        let queued = socket.send_queue() as u64;
        match export(now, socket, &input) {
            Ok(mut state) => {
                assert!(state.send_data.is_empty(), "the caller has it");
                // Two lists, as a host would have kept them.
                let rest = self.rest.iter().map(bytes::Bytes::len).sum::<usize>() as u64;
                let end = self.stream_out - rest;
                let middle = end - queued / 3;
                for positions in [end - queued..middle, middle..end] {
                    let data = positions.map(|at| pattern(self.stream, at)).collect::<Vec<_>>();
                    state.send_data.push_back(NetBufferList::from_mdl(1, shared(&data)));
                }
                let rest = self.rest.drain(..).map(|data| NetBufferList::from_mdl(2, data));
                state.send_data.extend(rest);
                Ok(*state)
            }
            Err(refused) => {
                let (error, socket) = *refused;
                self.socket = self.sockets.add(socket);
                Err(error)
            }
        }
    }

    fn import(&mut self, now: Instant, state: &ConnectionState) {
        self.clock.set_tsval(now);
        let imported = import(to_smoltcp(now), state, SEND_BUFFER, clock::tsval).unwrap();
        assert_eq!(imported.closing, fin_requested(state.tcp.delegated.state));
        let undelivered = imported.socket.recv_queue() as u32;
        let fin = u32::from(fin_received(imported.socket.state()));
        self.first_sent =
            state.tcp.delegated.snd_una - u32::from(fin_acknowledged(imported.socket.state()));
        self.written = imported.written;
        self.first_received = state.tcp.delegated.rcv_nxt - undelivered - fin;
        self.read = 0;
        let all = to_vec(state.send_data.iter().flat_map(|list| list.pieces()));
        let rest = all[imported.written as usize..].to_vec();
        self.rest =
            Some(rest.into()).filter(|rest: &bytes::Bytes| !rest.is_empty()).into_iter().collect();
        self.scale_raise = imported.scale_raise;
        self.closing = imported.closing;
        self.flow = Flow::restored(state, now);
        self.imported = true;
        self.socket = self.sockets.add(imported.socket);
    }
}

/// Private fields of a socket, from its `Debug` output: for tests only, since its format is not stable.
struct Oracle {
    text: String,
    send_queue: usize,
    recv_queue: usize,
}

impl Oracle {
    fn of(socket: &Socket<'_>) -> Self {
        let text = format!("{socket:?}");
        // The buffers' contents are megabytes of digits without fields of interest.
        Self { text, send_queue: socket.send_queue(), recv_queue: socket.recv_queue() }
    }

    fn field(&self, name: &str) -> i64 {
        let start = self.text.find(&format!(" {name}: ")).unwrap() + name.len() + 3;
        let digits = self.text[start..]
            .chars()
            .skip_while(|c| !c.is_ascii_digit() && *c != '-')
            .take_while(|c| c.is_ascii_digit() || *c == '-')
            .collect::<String>();
        digits.parse().unwrap()
    }

    fn sequence(&self, name: &str) -> SeqNum {
        SeqNum(self.field(name) as i32 as u32)
    }

    fn check(&self, state: &ConnectionState, imported: bool) {
        let delegated = &state.tcp.delegated;
        assert_eq!(delegated.snd_una, self.sequence("local_seq_no"));
        // With a closed window nothing is in flight on an imported socket: it probes.
        let probes = imported && delegated.snd_wnd == 0;
        // Data beyond the peer's window are not sent.
        let snd_nxt = self.sequence("remote_last_seq").earlier(delegated.snd_max);
        assert!(probes || delegated.snd_nxt == snd_nxt);
        // P3: a window probe and a rewound SND.NXT are on the wire, but not in the field.
        assert!(delegated.snd_max.is_at_or_after(delegated.snd_nxt));
        assert_eq!(delegated.rcv_nxt, self.sequence("remote_seq_no") + self.recv_queue as u32);
        let scale = self.field("remote_win_shift");
        // An import makes its buffer, and so its scale, no larger than necessary.
        assert!(i64::from(state.tcp.constant.rcv_wind_scale) >= scale);
        // P9: the last advertised window ends at the edge or before it.
        let last = (self.field("remote_last_win") as u32) << scale;
        let edge = self.sequence("remote_last_ack") + last;
        // A socket that has sent only its SYN interprets the unscaled window as scaled.
        let only_syn = last as usize > RECEIVE_BUFFER;
        // An imported socket may assume a larger window: room freed by reads that was never advertised.
        assert!(
            imported || only_syn || (delegated.rcv_nxt + delegated.rcv_wnd).is_at_or_after(edge)
        );
        let sent = state.send_data.iter().map(|list| list.data_length()).sum::<usize>();
        assert!(sent >= self.send_queue);
        let undelivered = state.buffered_data.iter().map(bytes::Bytes::len).sum::<usize>();
        assert_eq!(undelivered, self.recv_queue);
        assert!(state.send_data.iter().all(|list| list.net_buffers.len() == 1), "CH-SNB-1");
    }
}

/// Both ends and the wire between them.
struct Bench {
    ends: [SocketEnd; 2],
    now: Instant,
    wire: Vec<(Instant, usize, Vec<u8>)>,
    random: oorandom::Rand32,
    loss_percent: u32,
    /// True to compare states with the sockets' private fields, which dominates the run time of a case.
    consults_oracle: bool,
    moves: u32,
    moved_in_flight: u32,
    moved_unsent: u32,
    moved_undelivered: u32,
    moved_out_of_order: u32,
}

impl Bench {
    fn new(seed: u64, v6: bool, timestamps: bool, loss_percent: u32) -> Self {
        let mut random = oorandom::Rand32::new(seed);
        let mut ends = [
            SocketEnd::new(1, v6, timestamps, &mut random),
            SocketEnd::new(2, v6, true, &mut random),
        ];
        let listen = ends[1].tuple.local();
        ends[1].socket().listen(listen).unwrap();
        let SocketEnd { interface, sockets, socket, tuple, .. } = &mut ends[0];
        sockets
            .get_mut::<Socket<'_>>(*socket)
            .connect(interface.context(), tuple.remote(), tuple.local())
            .unwrap();
        let mut bench = Self {
            ends,
            now: Instant::from_millis(1),
            wire: Vec::new(),
            random,
            loss_percent: 0,
            consults_oracle: true,
            moves: 0,
            moved_in_flight: 0,
            moved_unsent: 0,
            moved_undelivered: 0,
            moved_out_of_order: 0,
        };
        for _ in 0..20 {
            bench.step();
        }
        assert!(bench.ends.iter_mut().all(|end| end.socket().state() == State::Established));
        bench.ends.iter_mut().for_each(SocketEnd::establish);
        bench.loss_percent = loss_percent;
        bench
    }

    /// Advances by one millisecond: delivers due frames, and lets both ends send. Latency is 0 to 3 ms, so frames are
    /// reordered.
    fn step(&mut self) {
        self.now += Duration::from_millis(1);
        let due;
        (due, self.wire) =
            core::mem::take(&mut self.wire).into_iter().partition(|f| f.0 <= self.now);
        for (_, to, frame) in due {
            self.ends[to].receive(self.now, frame);
        }
        self.exchange();
    }

    fn exchange(&mut self) {
        for from in 0..2 {
            for frame in self.ends[from].transmit(self.now) {
                if self.random.rand_range(0..100) >= self.loss_percent {
                    let latency = u64::from(self.random.rand_range(0..4));
                    self.wire.push((self.now + Duration::from_millis(latency), 1 - from, frame));
                }
            }
        }
    }

    fn chatter(&mut self) {
        for index in 0..2 {
            if self.random.rand_range(0..3) == 0 {
                let count = self.random.rand_range(1..20_000) as usize;
                self.ends[index].write(index as u64, count);
            }
            if self.random.rand_range(0..4) == 0 {
                let most = self.random.rand_range(1..40_000) as usize;
                self.ends[index].read(1 - index as u64, most);
            }
        }
    }

    /// Exports and imports one end, and compares its state with the oracle.
    fn export_and_import(&mut self, index: usize) -> ConnectionState {
        self.try_export_and_import(index).unwrap_or_else(|error| panic!("{error}"))
    }

    /// As `export_and_import`, but returns an error if it is too early.
    fn try_export_and_import(&mut self, index: usize) -> Result<ConnectionState, ExportError> {
        // A due acknowledgment is sent first (CH-INI-7).
        self.exchange();
        for frame in self.ends[index].push_acknowledgment(self.now) {
            self.wire.push((self.now, 1 - index, frame));
        }
        let end = &mut self.ends[index];
        let oracle = self.consults_oracle.then(|| Oracle::of(end.socket()));
        let (send_queue, recv_queue) = (end.socket().send_queue(), end.socket().recv_queue());
        let state = end.export(self.now)?;
        if let Some(oracle) = oracle {
            oracle.check(&state, end.imported);
        }
        let delegated = &state.tcp.delegated;
        let in_flight = delegated.snd_max.distance(delegated.snd_una) as usize;
        self.moves += 1;
        self.moved_in_flight += u32::from(in_flight > 0);
        self.moved_unsent += u32::from(send_queue > in_flight);
        self.moved_undelivered += u32::from(recv_queue > 0);
        self.moved_out_of_order += u32::from(!state.out_of_order.is_empty());
        self.check_data(index, &state);
        let end = &mut self.ends[index];
        end.import(self.now, &state);
        if self.consults_oracle {
            let fresh = Oracle::of(end.socket());
            assert_eq!(fresh.sequence("local_seq_no"), delegated.snd_una);
            let sent = if delegated.snd_wnd == 0 { delegated.snd_una } else { delegated.snd_max };
            assert_eq!(fresh.sequence("remote_last_seq"), sent);
            let raised = fresh.field("remote_win_shift") + i64::from(end.scale_raise);
            assert_eq!(i64::from(state.tcp.constant.rcv_wind_scale), raised);
        }
        Ok(state)
    }

    /// Verifies that every byte of the state belongs to the stream.
    fn check_data(&self, index: usize, state: &ConnectionState) {
        let (ours, theirs) = (index as u64, 1 - index as u64);
        let end = &self.ends[index];
        let data = to_vec(state.send_data.iter().flat_map(|list| list.pieces()));
        let first = end.stream_out - data.len() as u64;
        for (at, byte) in (first..).zip(&data) {
            assert_eq!(*byte, pattern(ours, at), "send data");
        }
        let mut at = end.stream_in;
        for byte in state.buffered_data.iter().flatten() {
            assert_eq!(*byte, pattern(theirs, at), "buffered data");
            at += 1;
        }
        let mut last = state.tcp.delegated.rcv_nxt;
        for (seq, block) in &state.out_of_order {
            assert!(seq.is_after(last), "blocks are disjoint and in order");
            let ahead = seq.distance(state.tcp.delegated.rcv_nxt) as u64;
            for (at, byte) in (at + ahead..).zip(block) {
                assert_eq!(*byte, pattern(theirs, at), "out-of-order data");
            }
            last = *seq + block.len() as u32;
        }
    }

    /// Without further loss or data, everything written must arrive.
    fn drain(&mut self) {
        self.loss_percent = 0;
        for _ in 0..200_000 {
            self.step();
            for index in 0..2 {
                self.ends[index].read(1 - index as u64, 200_000);
            }
            if self.ends[0].stream_out == self.ends[1].stream_in
                && self.ends[1].stream_out == self.ends[0].stream_in
            {
                return;
            }
        }
        let streams = self.ends.iter().map(|e| (e.stream_out, e.stream_in)).collect::<Vec<_>>();
        panic!("stuck at {streams:?}");
    }

    fn close(&mut self) {
        self.ends[0].socket().close();
        for _ in 0..3_000 {
            self.step();
        }
        assert_eq!(self.ends[1].socket().state(), State::CloseWait);
        self.ends[1].socket().close();
        for _ in 0..3_000 {
            self.step();
        }
        assert_eq!(self.ends[1].socket().state(), State::Closed);
        assert_eq!(self.ends[0].socket().state(), State::TimeWait);
        assert!(self.ends.iter().all(|end| !end.flow.reset_sent && !end.flow.reset_received));
    }
}

fn campaign(seed: u64, v6: bool, timestamps: bool, loss_percent: u32) -> Bench {
    let mut bench = Bench::new(seed, v6, timestamps, loss_percent);
    for _ in 0..3_000 {
        bench.chatter();
        bench.step();
        if bench.random.rand_range(0..40) == 0 {
            let index = bench.random.rand_range(0..2) as usize;
            bench.export_and_import(index);
        }
    }
    bench.drain();
    bench.close();
    bench
}

// Round trip of handoff §2.2 and §3, with every mix of data, compared with the private fields.
#[test]
fn moves_without_loss() {
    for seed in 0..4 {
        let bench = campaign(seed, seed % 2 == 1, seed % 3 != 0, 0);
        assert!(bench.moves > 40 && bench.moved_in_flight > 5, "{}", bench.moves);
        assert!(bench.moved_undelivered > 5 && bench.moved_unsent > 0);
    }
}

// The same with loss and reordering: out-of-order data is exported too (RFC 2018 §8, no reneging).
#[test]
fn moves_under_loss() {
    let mut out_of_order = 0;
    for seed in 10..16 {
        let bench = campaign(seed, seed % 2 == 1, seed % 3 != 0, 3);
        assert!(bench.moves > 40 && bench.moved_in_flight > 5);
        out_of_order += bench.moved_out_of_order;
    }
    assert!(out_of_order > 5, "{out_of_order}");
}

/// True if our FIN is acknowledged in this state.
fn fin_acknowledged(state: State) -> bool {
    matches!(state, State::FinWait2 | State::TimeWait)
}

fn fin_received(state: State) -> bool {
    matches!(state, State::CloseWait | State::LastAck | State::Closing | State::TimeWait)
}

fn fin_requested(phase: TcpPhase) -> bool {
    !matches!(phase, TcpPhase::Established | TcpPhase::CloseWait)
}

proptest! {
    // Any seed, family, timestamps and loss: byte-exact, no reset, closed by both sides.
    #[test]
    fn any_campaign_is_byte_exact(
        seed: u64,
        v6: bool,
        timestamps: bool,
        loss in 0_u32..8,
        consults_oracle in prop::bool::weighted(0.05),
    ) {
        let mut bench = Bench::new(seed, v6, timestamps, loss);
        bench.consults_oracle = consults_oracle;
        for _ in 0..600 {
            bench.chatter();
            bench.step();
            if bench.random.rand_range(0..20) == 0 {
                let index = bench.random.rand_range(0..2) as usize;
                bench.export_and_import(index);
            }
        }
        bench.drain();
        bench.close();
    }
}
