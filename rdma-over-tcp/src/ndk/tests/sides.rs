//! Consumers on the bench.

use std::{
    boxed::Box,
    net::SocketAddr,
    sync::{Arc, Mutex},
    vec::Vec,
};

use super::bench::Bench;
use crate::ndk::{
    Adapter, Connector, Cq, CqNotify, Data, DisconnectEvent, DisconnectReason, Listener, Mr,
    MrFlags, NdkResultEx, NtStatus, OpFlags, Pd, Qp, QpLimits, ReadLimit, RegisteredBuffer, Sge,
};

/// Log of called callbacks, in order.
#[derive(Clone, Default)]
pub(super) struct Log(Arc<Mutex<Vec<(&'static str, NtStatus)>>>);

impl Log {
    pub(super) fn note(&self, name: &'static str) -> impl Fn(NtStatus) + Send + Sync + 'static {
        let log = self.0.clone();
        move |status| log.lock().unwrap().push((name, status))
    }

    pub(super) fn take(&self) -> Vec<(&'static str, NtStatus)> {
        core::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Consumer on one node, with one queue pair and one registered buffer.
pub(super) struct Side {
    pub(super) adapter: Adapter,
    pub(super) pd: Pd,
    pub(super) cq: Cq,
    pub(super) qp: Qp,
    pub(super) mr: Mr,
    pub(super) buffer: RegisteredBuffer,
    pub(super) connector: Option<Connector>,
    pub(super) log: Log,
}

pub(super) const BUFFER: usize = 4 << 20;
pub(super) const ALL_RIGHTS: MrFlags = MrFlags::from_bits_retain(0x7);

impl Side {
    pub(super) fn new(bench: &Bench, node: usize) -> Self {
        Self::with(
            bench,
            node,
            BUFFER,
            QpLimits {
                max_initiator_request_sge: 8,
                max_receive_request_sge: 8,
                ..QpLimits::default()
            },
        )
    }

    pub(super) fn with(bench: &Bench, node: usize, buffer: usize, limits: QpLimits) -> Self {
        let adapter = bench.nodes[node].adapter.clone();
        let log = Log::default();
        let pd = adapter.create_pd().unwrap();
        let cq = adapter.create_cq(1024, log.note("cq")).unwrap();
        let qp = pd.create_qp(&cq, &cq, 100 + node as u64, limits).unwrap();
        let buffer = adapter.allocate(buffer).unwrap();
        let mr = pd.create_mr(false).unwrap();
        mr.register(&buffer, 0, buffer.len(), ALL_RIGHTS).unwrap();
        Self { adapter, pd, cq, qp, mr, buffer, connector: None, log }
    }

    pub(super) fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge {
            address: self.buffer.address() + offset as u64,
            length: length as u32,
            token: self.mr.local_token(),
        }
    }

    /// Fills a range with a pattern that depends on `seed` and position.
    pub(super) fn fill(&self, offset: usize, length: usize, seed: u8) {
        self.buffer.write_at(offset, &pattern(length, seed));
    }

    pub(super) fn content(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut content = std::vec![0; length];
        self.buffer.read_at(offset, &mut content);
        content
    }

    /// Returns all available completions.
    pub(super) fn poll(&self) -> Vec<NdkResultEx> {
        let mut results = [NdkResultEx::default(); 64];
        let mut all = Vec::new();
        loop {
            match self.cq.poll_ex(&mut results) {
                0 => return all,
                count => all.extend_from_slice(&results[..count]),
            }
        }
    }

    /// Returns contexts and statuses of all completions.
    pub(super) fn outcomes(&self) -> Vec<(u64, NtStatus)> {
        self.poll().into_iter().map(|result| (result.request_context, result.status)).collect()
    }

    pub(super) fn send(&self, context: u64, offset: usize, length: usize) {
        let sge = self.sge(offset, length);
        self.qp.send(context, Data::Registered(&[sge]), OpFlags::empty()).unwrap();
    }

    pub(super) fn receive(&self, context: u64, offset: usize, length: usize) {
        self.qp.receive(context, &[self.sge(offset, length)]).unwrap();
    }

    pub(super) fn arm(&self, notify: CqNotify) {
        self.cq.arm(notify);
    }
}

pub(super) fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|n| (n % 251) as u8 ^ seed ^ (n >> 12) as u8).collect()
}

pub(super) const LIMITS: ReadLimit = ReadLimit { inbound: 16, outbound: 16 };

pub(super) type Mailbox = Arc<Mutex<Vec<Connector>>>;

/// Listens on node 1; incoming connectors are added to a mailbox.
pub(super) fn listen(bench: &mut Bench) -> (Listener, Mailbox) {
    listen_at(bench, bench.server)
}

pub(super) fn listen_at(bench: &mut Bench, server: SocketAddr) -> (Listener, Mailbox) {
    let mailbox = Arc::new(Mutex::new(Vec::new()));
    let inbox = mailbox.clone();
    let listener = bench.nodes[1]
        .adapter
        .create_listener(move |connector| inbox.lock().unwrap().push(connector))
        .unwrap();
    let log = Log::default();
    assert_eq!(listener.listen(server, log.note("listen")), NtStatus::PENDING);
    bench.settle();
    assert_eq!(log.take(), [("listen", NtStatus::SUCCESS)]);
    (listener, mailbox)
}

/// Connects two sides.
pub(super) fn connected(bench: &mut Bench) -> (Side, Side) {
    connected_with(bench, LIMITS, LIMITS)
}

pub(super) fn connected_with(
    bench: &mut Bench,
    active_limits: ReadLimit,
    passive_limits: ReadLimit,
) -> (Side, Side) {
    let mut active = Side::new(bench, 0);
    let mut passive = Side::new(bench, 1);
    connect(bench, &mut active, &mut passive, active_limits, passive_limits);
    (active, passive)
}

pub(super) fn connect(
    bench: &mut Bench,
    active: &mut Side,
    passive: &mut Side,
    active_limits: ReadLimit,
    passive_limits: ReadLimit,
) {
    connect_at(bench, active, passive, [active_limits, passive_limits], bench.server);
}

/// Connects two sides through their own listener: a bench may have several.
pub(super) fn connect_at(
    bench: &mut Bench,
    active: &mut Side,
    passive: &mut Side,
    [active_limits, passive_limits]: [ReadLimit; 2],
    server: SocketAddr,
) {
    let (listener, mailbox) = listen_at(bench, server);
    let connector = active.adapter.create_connector().unwrap();
    let remote = server;
    let note = active.log.note("connect");
    let status = connector.connect(&active.qp, None, remote, active_limits, b"hello", note);
    assert_eq!(status, NtStatus::PENDING);
    bench.settle();
    let incoming = mailbox.lock().unwrap().pop().expect("a connect event");
    let disconnect = disconnect_event(&passive.log);
    let note = passive.log.note("accept");
    let status = incoming.accept(&passive.qp, passive_limits, b"welcome", disconnect, note);
    assert_eq!(status, NtStatus::PENDING);
    bench.settle();
    assert_eq!(active.log.take(), [("connect", NtStatus::SUCCESS)]);
    assert_eq!(passive.log.take(), [], "accept waits for the first FPDU");
    let disconnect = disconnect_event(&active.log);
    let status = connector.complete_connect(disconnect, active.log.note("complete"));
    assert_eq!(status, NtStatus::PENDING);
    bench.settle();
    assert_eq!(active.log.take(), [("complete", NtStatus::SUCCESS)]);
    assert_eq!(passive.log.take(), [("accept", NtStatus::SUCCESS)]);
    active.connector = Some(connector);
    passive.connector = Some(incoming);
    // The close pends until the accepted connector is closed.
    assert_eq!(listener.close(|| {}), NtStatus::PENDING);
    bench.settle();
}

/// Reason of the disconnect event after a reset.
pub(super) const RESET: NtStatus = NtStatus(DisconnectReason::RESET.0);

pub(super) fn disconnect_event(log: &Log) -> Option<DisconnectEvent> {
    let note = log.note("disconnect event");
    Some(Box::new(move |reason| note(NtStatus(reason))))
}
