//! Two connections joined by a seeded network in virtual time: loss, duplication, reordering, delay, and offloads and
//! uploads in between.
//!
//! For any impairments both streams arrive exactly, every list completes once and in order, both ends close, and no
//! wait exceeds the timers. A failed run prints its seed and the command that repeats it.

use alloc::collections::BTreeMap;
use std::{env, println};

use oorandom::Rand64;

use super::*;
use crate::memory::to_vec;

/// Limit of virtual time for every scenario: lossy tails wait for timers with backoff.
const TIME_MAX: Duration = Duration::from_secs(3_600);
/// Limit of loop turns for every scenario: more means that the ends send without progress.
const TURNS_MAX: u32 = 400_000;

/// Segment on the network.
#[derive(Clone, Debug)]
struct Frame {
    to: usize,
    transmit: Transmit,
    payload: Vec<u8>,
    gso_size: usize,
}

#[derive(Clone, Copy, Debug)]
struct Impairments {
    loss: f64,
    duplicate: f64,
    reorder: f64,
    delay: Duration,
    jitter: Duration,
    /// Share of ECN-capable frames marked.
    mark: f64,
    /// MTU of a narrow link, and true if its router sends ICMP errors (RFC 1191), false for a black hole (RFC 2923).
    narrow_link: Option<(usize, bool)>,
}

impl Impairments {
    /// Draws later additions from a separate generator, so that the other choices keep their seeds.
    fn add_impairments(&mut self, random: &mut Rand64) {
        self.mark = [0.0, 0.02, 0.3][pick(random, 0, 2)];
        if chance(random, 0.3) {
            let mtu = [1280, 1000, 576][pick(random, 0, 2)];
            self.narrow_link = Some((mtu, chance(random, 0.6)));
        }
    }
}

struct Host {
    tcp: Connection,
    tx_max: usize,
    to_send: Vec<u8>,
    posted: usize,
    lists: u64,
    completed: u64,
    received: Vec<u8>,
    refusal: f64,
    resume_at: Option<Instant>,
    next_post: Instant,
    disconnected: bool,
    disconnect_complete: bool,
    peer_closed: bool,
    closed: bool,
    config: Config,
    /// True if the connection was exported and imported during the run.
    handed_over: bool,
}

struct Scenario {
    now: Instant,
    random: Rand64,
    impairments: Impairments,
    coalesce: bool,
    /// Probability per turn that an end is exported and imported.
    handover_rate: f64,
    wire: BTreeMap<(Instant, u64), Frame>,
    frames: u64,
    /// ICMP errors of the router for an end.
    errors: Vec<(usize, PathError)>,
    extra_random: Rand64,
    hosts: [Host; 2],
}

fn chance(random: &mut Rand64, probability: f64) -> bool {
    random.rand_float() < probability
}

fn pick(random: &mut Rand64, low: usize, high: usize) -> usize {
    random.rand_range(low as u64..high as u64 + 1) as usize
}

impl Scenario {
    fn new(seed: u64) -> Self {
        let mut random = Rand64::new(u128::from(seed));
        let lossless = chance(&mut random, 0.2);
        let mut rate = |max: f64| if lossless { 0.0 } else { random.rand_float() * max };
        let (loss, duplicate, reorder) = (rate(0.12), rate(0.05), rate(0.1));
        let delay = Duration::from_micros(pick(&mut random, 5, 20_000) as u64);
        let jitter = Duration::from_micros(pick(&mut random, 0, 3_000) as u64);
        let mut impairments =
            Impairments { loss, duplicate, reorder, delay, jitter, mark: 0.0, narrow_link: None };
        let mut extra_random = Rand64::new(u128::from(seed) << 64 | 1);
        impairments.add_impairments(&mut extra_random);
        let ecn = chance(&mut extra_random, 0.5);
        let isns = [
            SeqNum(random.rand_u64() as u32),
            SeqNum(u32::MAX - pick(&mut random, 0, 9_000) as u32),
        ];
        let scale = pick(&mut random, 0, 5) as u8;
        let (timestamps, sack) = (chance(&mut random, 0.5), chance(&mut random, 0.7));
        let mss = [1460, 1460, 536, 8960, 100][pick(&mut random, 0, 4)];
        let windows: [u32; 2] = [0, 1].map(|_| pick(&mut random, 2_000, 65_000 << scale) as u32);
        let mut random_host = |index: usize| {
            let mut state = state();
            let tcp = &mut state.tcp;
            tcp.constant.timestamp_enabled = timestamps;
            tcp.constant.sack_enabled = sack;
            tcp.constant.ecn_enabled = ecn;
            tcp.constant.window_scaling_enabled = true;
            tcp.constant.snd_wind_scale = scale;
            tcp.constant.rcv_wind_scale = scale;
            tcp.constant.remote_mss = mss;
            tcp.constant.local_mss = mss;
            tcp.cached.initial_rcv_wnd = windows[index];
            tcp.cached.nagling_enabled = chance(&mut random, 0.3);
            tcp.delegated.rcv_nxt = isns[1 - index];
            tcp.delegated.rcv_wnd = windows[index].min(60_000);
            tcp.delegated.snd_una = isns[index];
            tcp.delegated.snd_nxt = isns[index];
            tcp.delegated.snd_max = isns[index];
            tcp.delegated.snd_wnd = windows[1 - index].min(60_000);
            tcp.delegated.snd_wl1 = isns[1 - index];
            tcp.delegated.ts_time = random.rand_u64() as u32;
            let config = Config {
                push: [PushPolicy::EachList, PushPolicy::QueueEmpty][pick(&mut random, 0, 1)],
                // A peer that detects a black hole by timeouts of a minute needs many of them.
                fin_wait_2: Duration::from_secs(1_800),
                time_wait: Duration::from_secs(30),
                ..Config::default()
            };
            let length = [0, 1, 5_000, 60_000, 200_000][pick(&mut random, 0, 4)];
            Host {
                tcp: Connection::from_state(Instant::ZERO, state, 9000, config)
                    .expect("a valid state"),
                tx_max: [0, 65_160][pick(&mut random, 0, 1)],
                to_send: (0..length).map(|_| random.rand_u64() as u8).collect(),
                posted: 0,
                lists: 0,
                completed: 0,
                received: Vec::new(),
                refusal: [0.0, 0.1, 0.6][pick(&mut random, 0, 2)],
                resume_at: None,
                next_post: Instant::ZERO,
                disconnected: false,
                disconnect_complete: false,
                peer_closed: false,
                closed: false,
                config,
                handed_over: false,
            }
        };
        let mut hosts = [random_host(0), random_host(1)];
        if timestamps {
            let values =
                [0, 1].map(|n: usize| hosts[n].tcp.tcp_state(Instant::ZERO).delegated.ts_time);
            hosts[0].tcp.clock.recent = values[1];
            hosts[1].tcp.clock.recent = values[0];
        }
        let coalesce = chance(&mut random, 0.4);
        let handover_rate = [0.0, 0.0, 0.002, 0.05][pick(&mut random, 0, 3)];
        Self {
            now: Instant::ZERO,
            random,
            impairments,
            coalesce,
            handover_rate,
            wire: BTreeMap::new(),
            frames: 0,
            errors: Vec::new(),
            extra_random,
            hosts,
        }
    }

    fn run(&mut self) {
        for turn in 0.. {
            assert!(turn < TURNS_MAX, "the ends send without progress");
            self.act();
            self.deliver();
            for index in 0..2 {
                self.drain(index);
                self.hand_over(index);
            }
            self.deliver_errors();
            if self.hosts.iter().all(|host| host.closed) {
                break;
            }
            let arrival = self.wire.keys().next().map(|(at, _)| *at);
            let timers = self.hosts.iter().flat_map(|host| {
                let post = (!host.disconnected).then_some(host.next_post);
                [host.tcp.poll_timeout(), host.resume_at, post]
            });
            let next = timers.chain([arrival]).flatten().min();
            let next = next.expect("open connections have a pending event");
            self.now = self.now.max(next);
            assert!(self.now - Instant::ZERO < TIME_MAX, "stalled");
            for host in &mut self.hosts {
                if host.tcp.poll_timeout().is_some_and(|deadline| deadline <= self.now) {
                    host.tcp.handle_timeout(self.now);
                }
            }
        }
        self.check();
    }

    /// Exports a connection and imports it again, at any time.
    fn hand_over(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        let can_hand_over = !matches!(host.tcp.phase, TcpPhase::TimeWait | TcpPhase::Closed);
        if !can_hand_over || !chance(&mut self.random, self.handover_rate) {
            return;
        }
        // The host keeps the path MTU learned by the target and offloads it again.
        let payload = host.tcp.path_mtu() as usize - 40;
        let empty =
            Connection::from_state(self.now, state(), 9000, host.config).expect("a valid state");
        let (state, disconnect) = core::mem::replace(&mut host.tcp, empty).into_state(self.now);
        // The previous owner completes it UPLOAD_IN_PROGRESS; its data and the FIN are exported.
        host.disconnect_complete |= disconnect.is_some();
        host.handed_over = true;
        host.tcp = Connection::from_state(self.now, state, payload, host.config)
            .unwrap_or_else(|(error, state)| panic!("{error}: {state:?}"));
        self.drain(index);
    }

    /// Actions of the upper layers: post, disconnect, resume.
    fn act(&mut self) {
        for host in &mut self.hosts {
            if host.resume_at.is_some_and(|at| at <= self.now) {
                host.resume_at = None;
                host.tcp.resume_receive();
            }
            if host.next_post > self.now || host.disconnected {
                continue;
            }
            let pause = pick(&mut self.random, 0, 3_000) as u64;
            host.next_post = self.now + Duration::from_micros(pause);
            let mut chain = NblChain::new();
            for _ in 0..pick(&mut self.random, 0, 3) {
                let room = host.to_send.len() - host.posted;
                let length = pick(&mut self.random, 0, 20_000).min(room);
                let data = Bytes::copy_from_slice(&host.to_send[host.posted..host.posted + length]);
                let cut = pick(&mut self.random, 0, length);
                let mut list = NetBufferList::new(host.lists);
                for part in [data.slice(..cut), data.slice(cut..)] {
                    list.net_buffers.push(part.into());
                }
                chain.push_back(list);
                host.posted += length;
                host.lists += 1;
            }
            host.tcp.post_send(self.now, chain);
            if host.to_send.len() - host.posted <= 500 {
                let rest = list(u64::MAX, &host.to_send[host.posted..]);
                host.disconnected = true;
                host.tcp.disconnect(self.now, Disconnect::Graceful, rest);
            }
        }
    }

    fn deliver(&mut self) {
        while let Some(entry) = self.wire.first_entry()
            && entry.key().0 <= self.now
        {
            let mut frame = entry.remove();
            if self.coalesce {
                self.coalesce(&mut frame);
            }
            let Frame { to, transmit, payload, gso_size } = frame;
            let segment = Segment { gso_size, ..transmit.received(&payload) };
            let host = &mut self.hosts[to];
            let waiting = host.tcp.backlog().is_some() || host.tcp.receive_blocked();
            let received = host.tcp.handle_segment(self.now, &segment);
            let fresh = &payload[received.in_order];
            let taken = if waiting || fresh.is_empty() {
                0
            } else {
                consume(&mut self.random, host, fresh, self.now)
            };
            host.tcp.settle(&fresh[taken..], received.push);
        }
    }

    /// Joins adjacent segments, as receive offload does.
    fn coalesce(&mut self, frame: &mut Frame) {
        let plain = |flags: Flags| flags == Flags::ACK || flags == Flags::ACK | Flags::PSH;
        while let Some(entry) = self.wire.first_entry()
            && entry.key().0 <= self.now
        {
            let next = entry.get();
            let joins = next.to == frame.to
                && !frame.payload.is_empty()
                && !next.payload.is_empty()
                && plain(next.transmit.flags)
                && frame.transmit.flags == Flags::ACK
                && next.transmit.ack == frame.transmit.ack
                && next.transmit.ecn == frame.transmit.ecn
                && next.transmit.timestamps == frame.transmit.timestamps
                && next.transmit.seq == frame.transmit.seq + frame.payload.len() as u32
                && frame.payload.len().is_multiple_of(frame.transmit.mss)
                && frame.payload.len() < 40_000;
            if !joins {
                return;
            }
            let next = entry.remove();
            frame.payload.extend_from_slice(&next.payload);
            frame.transmit.flags = next.transmit.flags;
            frame.transmit.window = next.transmit.window;
            frame.gso_size = frame.transmit.mss;
        }
    }

    fn drain(&mut self, index: usize) {
        loop {
            let host = &mut self.hosts[index];
            while !host.tcp.receive_blocked()
                && let Some((data, _)) = host.tcp.backlog()
            {
                let data = data.clone();
                let taken = consume(&mut self.random, host, &data, self.now);
                host.tcp.backlog_consumed(taken);
            }
            let limits = TxLimits { gso_payload_max: host.tx_max, new_data: true };
            let Some(transmit) = host.tcp.poll_transmit(self.now, limits) else { break };
            let payload = to_vec(host.tcp.payload(&transmit));
            assert_eq!(payload.len(), transmit.payload_len);
            self.send(1 - index, transmit, &payload);
        }
        let host = &mut self.hosts[index];
        while let Some(event) = host.tcp.poll_event() {
            assert!(!host.closed, "event after Closed: {event:?}");
            match event {
                Event::SendComplete(chain) => {
                    assert!(!chain.is_empty() && (host.handed_over || !host.disconnect_complete));
                    for list in chain {
                        if host.handed_over && list.context == u64::MAX {
                            continue;
                        }
                        assert_eq!(
                            (list.context, list.status),
                            (host.completed, NdisStatus::SUCCESS)
                        );
                        assert_eq!(list.data_length(), 0);
                        host.completed += 1;
                    }
                }
                Event::DisconnectComplete(list) => {
                    assert!(!host.disconnect_complete);
                    assert_eq!(list.status, NdisStatus::SUCCESS);
                    assert_eq!(host.completed, host.lists);
                    host.disconnect_complete = true;
                }
                Event::PeerClosed => {
                    assert!(
                        (host.handed_over || !host.peer_closed) && host.tcp.backlog().is_none()
                    );
                    host.peer_closed = true;
                }
                Event::SendBacklogChange(_) => {}
                Event::Retrieve(UploadReason::TimeoutExpiration) => {
                    panic!("the connection timed out")
                }
                Event::Closed => host.closed = true,
                other => panic!("{other:?}"),
            }
        }
        // The peer is closed and sends nothing more, so the last ACK may be lost for good.
        if self.hosts[index].closed && !self.hosts[1 - index].closed {
            let other = &mut self.hosts[1 - index];
            if matches!(other.tcp.phase, TcpPhase::LastAck | TcpPhase::Closing) {
                let una = other.tcp.snd.max.seq();
                let nxt = other.tcp.receiver.nxt().seq();
                let last = Segment { seq: nxt, ack: una, ..ack() };
                let last = Segment {
                    timestamps: other
                        .tcp
                        .constant
                        .timestamp_enabled
                        .then_some(Timestamps { value: other.tcp.clock.recent, echo: 0 }),
                    ..last
                };
                other.tcp.handle_segment(self.now, &last);
                self.drain(1 - index);
            }
        }
    }

    /// Applies segmentation offload, then the impairments.
    fn send(&mut self, to: usize, transmit: Transmit, payload: &[u8]) {
        let tail = Flags::FIN.0 | Flags::PSH.0;
        let mut offset = 0;
        loop {
            let end = payload.len().min(offset + transmit.mss);
            let last = end == payload.len();
            let mut piece = transmit;
            piece.seq = transmit.seq + offset as u32;
            if !last {
                piece.flags = Flags(transmit.flags.0 & !tail);
            }
            self.send_frame(Frame {
                to,
                transmit: piece,
                payload: payload[offset..end].to_vec(),
                gso_size: 0,
            });
            offset = end;
            if last {
                return;
            }
        }
    }

    /// Delivers ICMP errors for packets that were too big.
    fn deliver_errors(&mut self) {
        while let Some((index, error)) = self.errors.pop() {
            self.hosts[index].tcp.handle_path_error(self.now, &error);
            self.drain(index);
        }
    }

    /// Returns true if the narrow link of the path carries the frame.
    fn fits(&mut self, frame: &Frame) -> bool {
        let Some((mtu, sends_icmp)) = self.impairments.narrow_link else { return true };
        let Frame { to, transmit, payload, gso_size: _ } = frame;
        let options = if transmit.timestamps.is_some() { 12 } else { 0 };
        let packet_len = 40 + options + payload.len();
        let fits = packet_len <= mtu;
        if !fits && sends_icmp {
            let (next_hop_mtu, packet_len) = (mtu as u32, packet_len as u32);
            let kind = PathErrorKind::TooBig { next_hop_mtu, packet_len };
            self.errors.push((1 - to, PathError { seq: transmit.seq, kind }));
        }
        fits
    }

    fn send_frame(&mut self, mut frame: Frame) {
        let Impairments { loss, duplicate, reorder, delay, jitter, mark, narrow_link: _ } =
            self.impairments;
        if !self.fits(&frame) {
            return;
        }
        if frame.transmit.ecn == Ecn::Capable0 && chance(&mut self.extra_random, mark) {
            frame.transmit.ecn = Ecn::Congestion;
        }
        let copies = 1 + usize::from(chance(&mut self.random, duplicate));
        for _ in 0..copies {
            if chance(&mut self.random, loss) {
                continue;
            }
            let mut at = self.now + delay;
            if chance(&mut self.random, reorder) {
                at += Duration::from_nanos(self.random.rand_range(0..jitter.as_nanos() as u64 + 1));
            }
            self.frames += 1;
            self.wire.insert((at, self.frames), frame.clone());
        }
    }

    fn check(&self) {
        for index in 0..2 {
            let (host, peer) = (&self.hosts[index], &self.hosts[1 - index]);
            assert!(host.received == peer.to_send, "received stream differs");
            assert!(host.peer_closed && host.disconnect_complete);
            assert_eq!(host.completed, host.lists);
            let info = host.tcp.info(self.now);
            assert_eq!(info.phase, TcpPhase::Closed);
            assert_eq!(host.tcp.send_outstanding(), 0);
            if host.handed_over {
                continue;
            }
            assert_eq!(info.bytes_sent, host.to_send.len() as u64);
            assert_eq!(info.bytes_acked, host.to_send.len() as u64);
            assert_eq!(info.bytes_received, host.received.len() as u64);
            let unimpaired = self.impairments.loss == 0.0 && self.impairments.duplicate == 0.0;
            if unimpaired
                && self.impairments.reorder == 0.0
                && self.impairments.narrow_link.is_none()
            {
                assert_eq!(info.fast_retransmits, 0, "fast retransmit without loss");
            }
        }
    }
}

fn consume(random: &mut Rand64, host: &mut Host, data: &[u8], now: Instant) -> usize {
    let mut taken = data.len();
    if chance(random, host.refusal) {
        taken = pick(random, 0, data.len());
        if taken < data.len() {
            host.tcp.block_receive();
            host.resume_at = Some(now + Duration::from_micros(pick(random, 0, 50_000) as u64));
        }
    }
    host.received.extend_from_slice(&data[..taken]);
    taken
}

struct SeedReport(u64);

impl Drop for SeedReport {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!(
                "seed {0}; repeat: FLUE_SEED={0} cargo test -p offload-engine tcp::tests::scenario",
                self.0
            );
        }
    }
}

/// Events covered by a scenario.
#[derive(Clone, Copy, Default, Debug)]
struct Coverage {
    handed_over: u32,
    narrowed: u32,
    black_holes: u32,
    marked: u32,
}

/// Runs one scenario.
fn run(seed: u64) -> Coverage {
    let report = SeedReport(seed);
    let mut scenario = Scenario::new(seed);
    scenario.run();
    drop(report);
    let any = |predicate: fn(&Info) -> bool| {
        let mut infos = scenario.hosts.iter().map(|host| host.tcp.info(scenario.now));
        u32::from(infos.any(|info| predicate(&info)))
    };
    Coverage {
        handed_over: u32::from(scenario.hosts.iter().any(|host| host.handed_over)),
        narrowed: any(|info| info.path_mtu_reductions > info.black_holes),
        black_holes: any(|info| info.black_holes > 0),
        marked: any(|info| info.ecn_reductions > 0),
    }
}

// RFC 9293 as a whole; CH-SND-1, -2, CH-SNC-1, -5, CH-IND-6, CH-EVT-6, CH-DIS-4, CH-TRM-5.
#[test]
fn streams_survive_impairments() {
    if let Ok(seed) = env::var("FLUE_SEED") {
        run(seed.parse().expect("FLUE_SEED is a number"));
        return;
    }
    let coverage = (0..600).map(run).fold(Coverage::default(), |sum, coverage| Coverage {
        handed_over: sum.handed_over + coverage.handed_over,
        narrowed: sum.narrowed + coverage.narrowed,
        black_holes: sum.black_holes + coverage.black_holes,
        marked: sum.marked + coverage.marked,
    });
    let Coverage { handed_over, narrowed, black_holes, marked } = coverage;
    let enough = handed_over > 100 && narrowed > 20 && black_holes > 10 && marked > 50;
    assert!(enough, "600 scenarios do not cover all kinds: {coverage:?}");
}
