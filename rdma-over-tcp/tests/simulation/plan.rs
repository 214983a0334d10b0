//! Plan of a seed: the network, both adapters, and every operation of every queue pair with the resulting memory.
//!
//! Placement is checked against an image: the final content of the whole buffer of a side. Each target range is used
//! once, with a gap of random length before it. The image is therefore independent of the order of events, and extra or
//! misplaced bytes are detected.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::Range,
};

use host_stack::socket::OffloadPolicy;
use offload_engine::{
    link::{Impairments, MemoryLinkOptions},
    tcp::PushPolicy,
    time::Duration,
};
use oorandom::Rand64;
use rdma_over_tcp::{
    mpa::startup::{RtrKind, RtrSet},
    ndk::{AdapterConfig, AtomicOperation, CrcRequest, FpduSize, OpFlags, QpLimits, ReadLimit},
};

use crate::extensions::Target;

/// Bytes before and after the registered spans of a buffer.
pub(crate) const GUARD: usize = 4096;
/// Maximum bytes of inline data of a queue pair.
pub(crate) const INLINE_MAX: u32 = 256;
/// Maximum entries of a request.
pub(crate) const SGES_MAX: usize = 4;
/// Maximum queue pairs of a seed.
const QPS_MAX: u64 = 4;

/// Byte range of a side's buffer.
pub(crate) type Span = Range<usize>;

/// Draws from `0..below`.
pub(crate) fn draw(rng: &mut Rand64, below: usize) -> usize {
    rng.rand_range(0..below as u64) as usize
}

/// True once in `n` draws.
pub(crate) fn once_in(rng: &mut Rand64, n: usize) -> bool {
    draw(rng, n) == 0
}

/// Network between two nodes, and the configuration of both.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) impairments: [Impairments; 2],
    pub(crate) link: MemoryLinkOptions,
    pub(crate) push: PushPolicy,
    pub(crate) addresses: [IpAddr; 2],
    /// Listening port of the second node.
    pub(crate) port: u16,
    pub(crate) receive_buffer: usize,
    pub(crate) policies: [OffloadPolicy; 2],
    pub(crate) adapters: [AdapterConfig; 2],
}

fn impairments(rng: &mut Rand64, is_bad: bool, may_corrupt: bool) -> Impairments {
    let mut percent = |most: u64| rng.rand_range(0..most * 100) as f64 / 100.0;
    let chances = [percent(5), percent(5), percent(10), percent(2)];
    let mut one = Impairments { seed: rng.rand_u64(), ..Impairments::default() };
    one.delay = Duration::from_micros(rng.rand_range(0..3_000));
    if is_bad {
        [one.drop_pct, one.duplicate_pct, one.reorder_pct, one.corrupt_pct] = chances;
    }
    if !may_corrupt {
        one.corrupt_pct = 0.0;
    }
    one
}

impl Plan {
    pub(crate) fn new(rng: &mut Rand64) -> Self {
        let is_bad = !once_in(rng, 3);
        Self::with(rng, is_bad)
    }

    pub(crate) fn with(rng: &mut Rand64, is_bad: bool) -> Self {
        // Without CRCs, corruption not detected by TCP's checksum is silent.
        let crc = !once_in(rng, 4);
        let impairments = [impairments(rng, is_bad, crc), impairments(rng, is_bad, crc)];
        let link = MemoryLinkOptions {
            mtu: [1280, 1500, 9000][draw(rng, 3)],
            offloads: once_in(rng, 2),
            ..MemoryLinkOptions::default()
        };
        let texts = match once_in(rng, 3) {
            true => ["fd00::1", "fd00::2"],
            false => ["10.1.0.1", "10.1.0.2"],
        };
        let rtr = Self::rtr(rng);
        let mut adapter = || AdapterConfig {
            seed: u128::from(rng.rand_u64()),
            fpdu_size: match rng.rand_range(0..3) {
                0 => FpduSize::Emss,
                1 => FpduSize::Max,
                _ => FpduSize::Auto,
            },
            crc: if crc { CrcRequest::On } else { CrcRequest::Off },
            markers: once_in(rng, 3),
            rtr,
            // A lost SYN or FIN costs seconds; none of these limits may end a connection.
            connect_timeout: Duration::from_secs(120),
            reply_timeout: Duration::from_secs(120),
            request_timeout: Duration::from_secs(120),
            accept_timeout: Duration::from_secs(300),
            disconnect_timeout: Duration::from_secs(300),
            end_wait: Duration::from_secs(300),
            terminate_timeout: Duration::from_secs(60),
            ..AdapterConfig::default()
        };
        let mut adapters = [adapter(), adapter()];
        let rfc7306 = adapters[0].seed % 2 == 0;
        adapters.iter_mut().for_each(|adapter| adapter.rfc7306 = rfc7306);
        Self {
            impairments,
            link,
            adapters,
            push: match once_in(rng, 2) {
                true => PushPolicy::EachList,
                false => PushPolicy::QueueEmpty,
            },
            addresses: texts.map(|text| text.parse().unwrap()),
            port: 7000,
            receive_buffer: [8 * 1024, 64 * 1024, 512 * 1024][draw(rng, 3)],
            policies: [OffloadPolicy::Always; 2],
        }
    }

    /// Uses the loopback of this machine, and any free port.
    pub(crate) fn on_loopback(&mut self) {
        let loopback: IpAddr = match self.addresses[0].is_ipv4() {
            true => Ipv4Addr::LOCALHOST.into(),
            false => Ipv6Addr::LOCALHOST.into(),
        };
        (self.addresses, self.port) = ([loopback; 2], 0);
    }

    /// Selects offload policies: connections may stay in the host, or start there.
    pub(crate) fn mix_policies(&mut self, rng: &mut Rand64) {
        let policies = [OffloadPolicy::Always, OffloadPolicy::Auto, OffloadPolicy::Never];
        self.policies = [(); 2].map(|()| policies[draw(rng, 3)]);
    }

    /// Configures some adapters to queue messages that arrive before their receives.
    pub(crate) fn allow_queued_messages(&mut self) {
        for adapter in &mut self.adapters {
            if adapter.seed % 3 == 0 {
                adapter.receive_wait = Duration::from_secs(900);
            }
        }
    }

    /// Selects one kind of RTR, all, or none: the client-server model.
    fn rtr(rng: &mut Rand64) -> RtrSet {
        match draw(rng, 5) {
            0 => RtrSet::NONE,
            1 => RtrSet { send: true, write: true, read: true },
            2 => RtrSet::only(RtrKind::Send),
            3 => RtrSet::only(RtrKind::Write),
            _ => RtrSet::only(RtrKind::Read),
        }
    }

    /// Selects a size near a boundary of segment, FPDU or window; about the EMSS of this network, or random.
    fn size(&self, rng: &mut Rand64, most: usize) -> usize {
        let mss = self.link.mtu - if self.addresses[0].is_ipv4() { 40 } else { 60 };
        let size = match draw(rng, 6) {
            0 => draw(rng, 3),
            1 => draw(rng, 300),
            // MULPDU of one segment or several: EMSS less length, CRC, header, option, markers.
            2 | 3 => (mss * (1 + draw(rng, 3))).saturating_sub(draw(rng, 80)),
            _ => draw(rng, most),
        };
        size.min(most)
    }
}

/// Source of the bytes of a send or write.
#[derive(Debug)]
pub(crate) enum Source {
    /// Spans of this side's buffer.
    Registered(Vec<Span>),
    /// A span of this side's buffer, copied inline in that many parts.
    Inline(Span, usize),
}

/// Token that grants access to a target.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Via {
    /// Token of the region registered for the life of the side.
    Region,
    /// Token of a window of the side that owns the target, by its number.
    Window(usize),
}

/// Initiator request.
#[derive(Debug)]
pub(crate) enum Action {
    Send { source: Source, invalidate: Option<usize> },
    Write { source: Source, target: Span, via: Via },
    Read { sinks: Vec<Span>, via: Via, source: Span },
    Register { window: usize },
    Invalidate { window: usize },
    Atomic { sink: Span, target: Target, operation: AtomicOperation },
    Immediate { data: [u8; 8] },
}

impl Action {
    /// True if it consumes a receive of the peer.
    pub(crate) const fn takes_receive(&self) -> bool {
        matches!(self, Self::Send { .. } | Self::Immediate { .. })
    }
}

/// Initiator request with its flags.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) action: Action,
    pub(crate) flags: OpFlags,
}

/// Receive; the n-th is for the peer's n-th send or immediate data.
#[derive(Debug)]
pub(crate) struct Receive {
    pub(crate) spans: Vec<Span>,
    /// Bytes of the send.
    pub(crate) bytes: usize,
    /// Window of this side that the send invalidates.
    pub(crate) invalidates: Option<usize>,
    /// Immediate data; `None` for a send.
    pub(crate) immediate: Option<[u8; 8]>,
    pub(crate) is_solicited: bool,
}

/// Span registered, or bound to a memory window, by a work request.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) span: Span,
    pub(crate) base: u64,
    /// True if peers write through it; false if it is the sink of a read.
    pub(crate) is_remote: bool,
    /// True for a memory window over a part of the region that is registered as a whole.
    pub(crate) is_bound: bool,
}

/// One end of a queue pair's connection.
#[derive(Debug)]
pub(crate) struct SidePlan {
    pub(crate) limits: QpLimits,
    pub(crate) reads: ReadLimit,
    pub(crate) operations: Vec<Operation>,
    pub(crate) receives: Vec<Receive>,
    /// 1 if the peer's RTR is a send: as any message, it consumes the first receive.
    pub(crate) rtr_receives: usize,
    /// Receives beyond the peer's sends: they are cancelled at the end.
    pub(crate) spare_receives: usize,
    /// True if messages are queued for receives: the peer does not wait for posted receives.
    pub(crate) waits: bool,
    pub(crate) windows: Vec<Window>,
    /// Targets of the peer's atomics; empty without RFC 7306.
    pub(crate) words: Span,
    /// Constant bytes that may be sent and read.
    pub(crate) source: Span,
    /// Initial content of the buffer.
    pub(crate) initial: Vec<u8>,
    /// Final content of the buffer.
    pub(crate) image: Vec<u8>,
}

impl SidePlan {
    pub(crate) fn new(rng: &mut Rand64, source_bytes: usize) -> Self {
        let depth = |rng: &mut Rand64| 1 + draw(rng, 24) as u32;
        let mut side = Self {
            limits: QpLimits {
                receive_queue_depth: depth(rng),
                initiator_queue_depth: depth(rng),
                max_receive_request_sge: SGES_MAX as u32,
                max_initiator_request_sge: SGES_MAX as u32,
                inline_data_size: INLINE_MAX,
            },
            reads: ReadLimit {
                inbound: 1 + draw(rng, 16) as u32,
                outbound: 1 + draw(rng, 16) as u32,
            },
            operations: Vec::new(),
            receives: Vec::new(),
            rtr_receives: 0,
            spare_receives: 0,
            waits: false,
            windows: Vec::new(),
            words: 0..0,
            source: GUARD..GUARD + source_bytes,
            initial: Vec::new(),
            image: Vec::new(),
        };
        side.spare_receives = draw(rng, side.limits.receive_queue_depth as usize + 1).min(3);
        side.grow(rng, GUARD + source_bytes);
        side
    }

    /// Appends random bytes to the buffer.
    fn grow(&mut self, rng: &mut Rand64, bytes: usize) {
        let start = self.initial.len();
        while self.initial.len() < start + bytes {
            self.initial.extend_from_slice(&rng.rand_u64().to_le_bytes());
        }
        self.initial.truncate(start + bytes);
        self.image.extend_from_slice(&self.initial[start..]);
    }

    /// Allots a range that has no other use.
    pub(crate) fn allot(&mut self, rng: &mut Rand64, bytes: usize) -> Span {
        let gap = 1 + draw(rng, 70);
        self.grow(rng, gap + bytes);
        self.initial.len() - bytes..self.initial.len()
    }

    /// Allots a range in several pieces.
    fn allot_pieces(&mut self, rng: &mut Rand64, bytes: usize) -> Vec<Span> {
        pieces(rng, bytes).into_iter().map(|piece| self.allot(rng, piece)).collect()
    }

    /// Selects some bytes of the source.
    fn pick(&self, rng: &mut Rand64, bytes: usize) -> Span {
        let start = self.source.start + draw(rng, self.source.len() - bytes + 1);
        start..start + bytes
    }

    fn pick_pieces(&self, rng: &mut Rand64, bytes: usize) -> Vec<Span> {
        pieces(rng, bytes).into_iter().map(|piece| self.pick(rng, piece)).collect()
    }

    fn source_of(&self, rng: &mut Rand64, bytes: usize) -> Source {
        match bytes <= INLINE_MAX as usize && once_in(rng, 2) {
            true => Source::Inline(self.pick(rng, bytes), 1 + draw(rng, 5)),
            false => Source::Registered(self.pick_pieces(rng, bytes)),
        }
    }

    /// Returns the final bytes of a source.
    fn content(&self, source: &Source) -> Vec<u8> {
        match source {
            Source::Registered(spans) => self.gather(spans),
            Source::Inline(span, _) => self.image[span.clone()].to_vec(),
        }
    }

    fn gather(&self, spans: &[Span]) -> Vec<u8> {
        spans.iter().flat_map(|span| self.image[span.clone()].iter().copied()).collect()
    }

    fn scatter(&mut self, spans: &[Span], mut data: &[u8]) {
        for span in spans {
            let (here, rest) = data.split_at(data.len().min(span.len()));
            self.image[span.start..span.start + here.len()].copy_from_slice(here);
            data = rest;
        }
        assert!(data.is_empty(), "data exceeds the spans of the plan");
    }

    /// Allots a span to be registered by a work request.
    fn window(&mut self, rng: &mut Rand64, bytes: usize, is_remote: bool) -> usize {
        let span = self.allot(rng, bytes);
        // The address is any with the same offset in its page as the span (NDK-MEM-8).
        let page = rng.rand_range(0..1 << 40) * 4096;
        let is_bound = is_remote && once_in(rng, 2);
        self.windows.push(Window { base: page, span, is_remote, is_bound });
        self.windows.len() - 1
    }
}

/// Splits a number into at most `SGES_MAX` parts, some of them 0.
fn pieces(rng: &mut Rand64, bytes: usize) -> Vec<usize> {
    let mut left = bytes;
    let mut parts = Vec::new();
    if bytes == 0 && once_in(rng, 2) {
        return parts;
    }
    for _ in 0..draw(rng, SGES_MAX) {
        let part = draw(rng, left + 1);
        parts.push(part);
        left -= part;
    }
    parts.push(left);
    parts
}

/// Both ends of one queue pair's connection, with their operations.
pub(crate) struct Conversation {
    pub(crate) sides: [SidePlan; 2],
}

impl Conversation {
    /// Creates operations in both directions.
    pub(crate) fn new(rng: &mut Rand64, plan: &Plan) -> Self {
        // Most conversations are short: a thousand seeds must run in a minute or two.
        let most = [3_000, 20_000, 60_000, 300 * 1024][draw(rng, 10).saturating_sub(6)];
        let source_bytes = most + 100;
        let mut this =
            Self { sides: [SidePlan::new(rng, source_bytes), SidePlan::new(rng, source_bytes)] };
        if plan.adapters[0].rtr == RtrSet::only(RtrKind::Send) {
            let passive = &mut this.sides[1];
            passive.rtr_receives = 1;
            let spans = passive.allot_pieces(rng, 9);
            passive.receives.push(Receive {
                spans,
                bytes: 0,
                invalidates: None,
                immediate: None,
                is_solicited: false,
            });
        }
        for from in 0..2 {
            this.plan_side(rng, plan, from, most);
        }
        this.extend(plan);
        for side in &mut this.sides {
            side.grow(rng, GUARD);
            let SidePlan { windows, .. } = side;
            for window in windows {
                window.base += (window.span.start % 4096) as u64;
            }
        }
        this
    }

    /// Creates one message in each direction, and `source_bytes` for sends beyond the plan.
    pub(crate) fn minimal(rng: &mut Rand64, source_bytes: usize) -> Self {
        let mut this =
            Self { sides: [SidePlan::new(rng, source_bytes), SidePlan::new(rng, source_bytes)] };
        for from in 0..2 {
            this.sides[from].spare_receives = 0;
            this.sides[from].limits.receive_queue_depth = 4;
            this.sides[from].limits.initiator_queue_depth = 4;
            this.last_message(rng, from);
        }
        this.sides.iter_mut().for_each(|side| side.grow(rng, GUARD));
        this
    }

    /// Appends the last message: all writes are placed when it is received (RFC 5040 §5.5).
    fn last_message(&mut self, rng: &mut Rand64, from: usize) {
        self.send(rng, from, 8, None);
        if let Some(last) = self.sides[from].operations.last_mut() {
            last.flags = OpFlags::SEND_AND_SOLICIT_EVENT;
        }
        if let Some(receive) = self.sides[1 - from].receives.last_mut() {
            receive.is_solicited = true;
        }
    }

    fn plan_side(&mut self, rng: &mut Rand64, plan: &Plan, from: usize, most: usize) {
        // In the client-server model the passive side does not send before the active side.
        self.send(rng, from, 8, None);
        let count = 1 + draw(rng, 24);
        let mut budget = 2 * most;
        for _ in 0..count {
            let bytes = plan.size(rng, most.min(budget).max(1));
            budget = budget.saturating_sub(bytes);
            match draw(rng, 12) {
                0..=3 => self.send(rng, from, bytes, None),
                4..=6 => self.write(rng, from, bytes, Via::Region),
                7 | 8 => self.read(rng, from, bytes),
                9 => self.fenced_echo(rng, from, bytes),
                10 => self.read_into_window(rng, from, bytes.max(1)),
                _ => self.write_into_window(rng, from, bytes.max(1)),
            }
        }
        self.last_message(rng, from);
    }

    pub(crate) fn flags(rng: &mut Rand64) -> OpFlags {
        let mut flags = OpFlags::empty();
        for (flag, rarity) in
            [(OpFlags::SILENT_SUCCESS, 3), (OpFlags::READ_FENCE, 8), (OpFlags::DEFER, 3)]
        {
            if once_in(rng, rarity) {
                flags |= flag;
            }
        }
        flags
    }

    fn push(&mut self, from: usize, action: Action, flags: OpFlags) {
        self.sides[from].operations.push(Operation { action, flags });
    }

    fn send(&mut self, rng: &mut Rand64, from: usize, bytes: usize, invalidate: Option<usize>) {
        let source = self.sides[from].source_of(rng, bytes);
        self.send_from(rng, from, source, invalidate, OpFlags::empty());
    }

    fn send_from(
        &mut self,
        rng: &mut Rand64,
        from: usize,
        source: Source,
        invalidate: Option<usize>,
        more: OpFlags,
    ) {
        let mut flags = Self::flags(rng) | more;
        let is_solicited = once_in(rng, 4);
        if is_solicited {
            flags |= OpFlags::SEND_AND_SOLICIT_EVENT;
        }
        let data = self.sides[from].content(&source);
        let peer = &mut self.sides[1 - from];
        let slack = if once_in(rng, 3) { draw(rng, 500) } else { 0 };
        let spans = peer.allot_pieces(rng, data.len() + slack);
        peer.scatter(&spans, &data);
        let bytes = data.len();
        let receive =
            Receive { spans, bytes, invalidates: invalidate, immediate: None, is_solicited };
        peer.receives.push(receive);
        self.push(from, Action::Send { source, invalidate }, flags);
    }

    fn write(&mut self, rng: &mut Rand64, from: usize, bytes: usize, via: Via) {
        let target = self.sides[1 - from].allot(rng, bytes);
        self.write_to(rng, from, target, via);
    }

    fn write_to(&mut self, rng: &mut Rand64, from: usize, target: Span, via: Via) {
        let source = self.sides[from].source_of(rng, target.len());
        let data = self.sides[from].content(&source);
        self.sides[1 - from].scatter(std::slice::from_ref(&target), &data);
        let flags = Self::flags(rng);
        self.push(from, Action::Write { source, target, via }, flags);
    }

    fn read(&mut self, rng: &mut Rand64, from: usize, bytes: usize) {
        let sinks = self.sides[from].allot_pieces(rng, bytes);
        let flags = Self::flags(rng);
        self.read_to(rng, from, sinks, Via::Region, flags);
    }

    fn read_to(
        &mut self,
        rng: &mut Rand64,
        from: usize,
        sinks: Vec<Span>,
        via: Via,
        flags: OpFlags,
    ) {
        let bytes = sinks.iter().map(Span::len).sum();
        let source = self.sides[1 - from].pick(rng, bytes);
        let data = self.sides[1 - from].image[source.clone()].to_vec();
        self.sides[from].scatter(&sinks, &data);
        self.push(from, Action::Read { sinks, via, source }, flags);
    }

    /// Reads, and sends the data read: correct only if the fence is honored (NDK-FEN-1).
    fn fenced_echo(&mut self, rng: &mut Rand64, from: usize, bytes: usize) {
        let sinks = self.sides[from].allot_pieces(rng, bytes);
        let flags = Self::flags(rng);
        self.read_to(rng, from, sinks.clone(), Via::Region, flags);
        self.send_from(rng, from, Source::Registered(sinks), None, OpFlags::READ_FENCE);
    }

    /// Reads to a sink registered for one read: the read revokes the right (NDK-FLG-3), or the next request does
    /// (NDK-MEM-9).
    fn read_into_window(&mut self, rng: &mut Rand64, from: usize, bytes: usize) {
        let window = self.sides[from].window(rng, bytes, false);
        let sink = self.sides[from].windows[window].span.clone();
        let flags = Self::flags(rng);
        self.push(from, Action::Register { window }, flags);
        let by_read = once_in(rng, 2);
        let mut flags = Self::flags(rng);
        if by_read {
            flags |= OpFlags::RDMA_READ_LOCAL_INVALIDATE;
        }
        self.read_to(rng, from, vec![sink], Via::Window(window), flags);
        if !by_read {
            let flags = Self::flags(rng) | OpFlags::READ_FENCE;
            self.push(from, Action::Invalidate { window }, flags);
        }
    }

    /// Writes to a window granted by the peer, and revokes it by a send (NDK-RI-1).
    fn write_into_window(&mut self, rng: &mut Rand64, from: usize, bytes: usize) {
        let peer = &mut self.sides[1 - from];
        let window = peer.window(rng, bytes, true);
        let span = peer.windows[window].span.clone();
        // Grants are posted first, so that no grant depends on a request that needs a grant.
        let grant = Operation { action: Action::Register { window }, flags: OpFlags::empty() };
        peer.operations.insert(0, grant);
        self.write_to(rng, from, span, Via::Window(window));
        let last = draw(rng, 40);
        self.send(rng, from, last, Some(window));
    }
}

/// Creates the conversations of a seed.
pub(crate) fn conversations(rng: &mut Rand64, plan: &Plan) -> Vec<Conversation> {
    let count = 1 + rng.rand_range(0..QPS_MAX);
    let mut conversations: Vec<_> = (0..count).map(|_| Conversation::new(rng, plan)).collect();
    for conversation in &mut conversations {
        for (side, adapter) in conversation.sides.iter_mut().zip(&plan.adapters) {
            side.waits = !adapter.receive_wait.is_zero();
        }
    }
    conversations
}
