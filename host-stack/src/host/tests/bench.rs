//! Two hosts, and between them a wire in virtual time. The bench plays both engines: it passes frames,
//! and answers initiates as the test says.

use alloc::{collections::VecDeque, sync::Arc, vec, vec::Vec};
use core::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender};
use offload_engine::{
    chimney::{
        client::{ClientTag, InitiateOffload, OffloadHandle},
        state::{ConnectionState, MacAddress},
    },
    engine::{
        doorbell::Doorbell,
        port::{FromHost, HostPort, ToHost},
    },
    link::LinkCapabilities,
    status::NdisStatus,
    time::{Duration, Instant},
};

use crate::{
    host::{Host, HostConfig},
    socket::{ListenerId, Notice, OffloadPolicy, Request, SocketPort},
};

/// A frame takes this long.
const LATENCY: Duration = Duration::from_millis(1);

pub(super) struct Node {
    pub(super) host: Host,
    pub(super) port: SocketPort,
    pub(super) to_host: Sender<ToHost>,
    from_host: Receiver<FromHost>,
    pub(super) notices: Vec<Notice>,
    pub(super) initiates: VecDeque<InitiateOffload>,
    pub(super) forwards: Vec<Vec<u8>>,
    /// Every frame it has sent.
    pub(super) sent: Vec<Vec<u8>>,
}

pub(super) const CLIENT: ClientTag = ClientTag(7);

/// 10.0.0.`number` and fd00::`number`.
pub(super) fn address(number: u8, v6: bool) -> IpAddr {
    if v6 {
        core::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number.into()).into()
    } else {
        [10, 0, 0, number].into()
    }
}

pub(super) fn config(number: u8, policy: OffloadPolicy) -> HostConfig {
    HostConfig {
        mac: MacAddress([2, 0, 0, 0, 0, number]),
        addresses: vec![(address(number, false), 24), (address(number, true), 64)],
        policy,
        seed: number.into(),
        ..HostConfig::default()
    }
}

impl Node {
    pub(super) fn new(config: HostConfig) -> Self {
        let (to_engine, from_host) = crossbeam_channel::unbounded();
        let (to_host, from_engine) = crossbeam_channel::unbounded();
        let host_doorbell = Arc::new(Doorbell::new().unwrap());
        let (port, clients) = SocketPort::pair(host_doorbell.clone());
        let mtu = config.mtu;
        let engine = HostPort {
            to_engine,
            from_engine,
            engine_doorbell: Arc::new(Doorbell::new().unwrap()),
            host_doorbell,
            capabilities: LinkCapabilities { mtu, tx_checksum: false, tso4_max: 0, tso6_max: 0 },
        };
        Self {
            host: Host::new(config, engine, clients).unwrap(),
            port,
            to_host,
            from_host,
            notices: Vec::new(),
            initiates: VecDeque::new(),
            forwards: Vec::new(),
            sent: Vec::new(),
        }
    }

    pub(super) fn listen(&self, local: SocketAddr, backlog: usize, must: bool) -> ListenerId {
        let listener = ListenerId(self.port.allocate());
        let client = CLIENT;
        self.port.request(Request::Listen { listener, client, local, backlog, must_offload: must });
        listener
    }

    pub(super) fn connect(&self, remote: SocketAddr, must_offload: bool) -> OffloadHandle {
        let handle = OffloadHandle(self.port.allocate());
        self.port.request(Request::Connect {
            handle,
            client: CLIENT,
            local: None,
            remote,
            timeout: Duration::from_secs(5),
            must_offload,
        });
        handle
    }

    pub(super) fn send(&self, handle: OffloadHandle, data: impl Into<Bytes>) {
        self.port.request(Request::Send { handle, data: data.into() });
    }

    pub(super) fn shutdown(&self, handle: OffloadHandle) {
        self.port.request(Request::Shutdown { handle });
    }

    /// A received frame, its checksum unverified.
    pub(super) fn frame(&self, data: Vec<u8>) {
        self.to_host.send(ToHost::Frame { data, checksum_valid: false }).unwrap();
    }

    /// The answer to an initiate.
    pub(super) fn complete(&self, handle: OffloadHandle, state: Option<ConnectionState>) {
        let status =
            if state.is_some() { NdisStatus::OFFLOAD_TCP_ENTRIES } else { NdisStatus::SUCCESS };
        let state = state.map(alloc::boxed::Box::new);
        self.to_host.send(ToHost::InitiateConnectionComplete { handle, status, state }).unwrap();
    }

    /// The handle of the only `Established` so far, and whether it was offloading.
    pub(super) fn established(&self) -> (OffloadHandle, bool) {
        let mut found = self.notices.iter().filter_map(|notice| match notice {
            Notice::Established { handle, offloading, .. } => Some((*handle, *offloading)),
            _ => None,
        });
        let first = found.next().expect("an Established notice");
        assert!(found.next().is_none(), "a second Established notice");
        first
    }

    pub(super) fn has(&self, matches: impl Fn(&Notice) -> bool) -> bool {
        self.notices.iter().any(matches)
    }

    /// All data delivered to the client so far.
    pub(super) fn data(&self) -> Vec<u8> {
        let pieces = self.notices.iter().filter_map(|notice| match notice {
            Notice::Data { data, .. } => Some(data.clone()),
            _ => None,
        });
        pieces.collect::<Vec<_>>().concat()
    }
}

pub(super) struct Bench {
    pub(super) nodes: [Node; 2],
    pub(super) now: Instant,
    wire: VecDeque<(Instant, usize, Vec<u8>)>,
    /// Whether a frame from that node arrives.
    pub(super) passes: fn(usize, &[u8]) -> bool,
}

impl Bench {
    pub(super) fn new(policies: [OffloadPolicy; 2]) -> Self {
        Self::with([config(1, policies[0]), config(2, policies[1])])
    }

    pub(super) fn with(configs: [HostConfig; 2]) -> Self {
        Self {
            nodes: configs.map(Node::new),
            now: Instant::from_millis(5),
            wire: VecDeque::new(),
            passes: |_, _| true,
        }
    }

    /// Polls both hosts until they are quiet, and takes what they said.
    pub(super) fn settle(&mut self) {
        for (index, node) in self.nodes.iter_mut().enumerate() {
            let mut rounds = 0;
            while node.host.poll(self.now) {
                rounds += 1;
                assert!(rounds < 1_000, "host {index} does not come to rest");
            }
            assert!(!node.host.has_input());
            for message in node.from_host.try_iter() {
                match message {
                    FromHost::Frame(frame) => {
                        node.sent.push(frame.clone());
                        if (self.passes)(index, &frame) {
                            self.wire.push_back((self.now + LATENCY, 1 - index, frame));
                        }
                    }
                    FromHost::InitiateConnection(initiate) => node.initiates.push_back(initiate),
                    FromHost::ForwardFrame(frame) => node.forwards.push(frame),
                    other => panic!("not asked for: {other:?}"),
                }
            }
            while let Some(notice) = node.port.notice() {
                node.notices.push(notice);
            }
        }
    }

    /// Lets `time` pass, from event to event.
    pub(super) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        let mut events = 0;
        loop {
            self.settle();
            events += 1;
            assert!(events < 1_000_000, "a host wants to be polled without end");
            let due = self.nodes.iter().filter_map(|node| node.host.poll_at(self.now));
            let next = due.chain(self.wire.front().map(|frame| frame.0)).min();
            match next {
                Some(next) if next <= end => {
                    self.now = self.now.max(next);
                }
                _ => {
                    self.now = end;
                    return;
                }
            }
            while self.wire.front().is_some_and(|frame| frame.0 <= self.now) {
                let (_, to, data) = self.wire.pop_front().unwrap();
                self.nodes[to].frame(data);
            }
        }
    }

    /// Runs for at most two minutes, until `done`.
    pub(super) fn run_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..120_000 {
            if done(self) {
                return;
            }
            self.run(Duration::from_millis(1));
        }
        panic!("nothing came of it: {:?}", self.nodes[0].notices);
    }

    /// Frames sent by `node` that are TCP resets.
    pub(super) fn resets(&self, node: usize) -> usize {
        let is_reset = |frame: &&Vec<u8>| {
            matches!(crate::wire::parse(frame), crate::wire::Frame::Tcp(segment)
                if segment.flags.contains(offload_engine::tcp::Flags::RST))
        };
        self.nodes[node].sent.iter().filter(is_reset).count()
    }
}
