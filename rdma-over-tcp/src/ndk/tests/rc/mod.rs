//! Queue pairs of reliable connected service (`QpService::Rc`), directly on the adapter.

mod completions;
mod early;
mod ends;
mod errors;
mod hostile;
mod receives;
mod unreliable;

use std::{
    boxed::Box,
    net::SocketAddr,
    sync::{Arc, Mutex},
    vec::Vec,
};

use super::{bench::Bench, sides::pattern};
use crate::{
    adapter::Adapter,
    error::EndReason,
    rnic::{
        Access, Arrival, Close, Completion, CompletionQueue, ConnectError, ConnectorId, CqId, Data,
        ErrorStatePosts, Key, ListenerId, Operation, PdId, QpConfig, QpEvent, QpId, QpLimits,
        QpService, QpState, RcPeer, ReadLimit, RegionId, RegisteredBuffer, Remote, Sge, VerbError,
        WcOpcode, WcStatus, WrFlags,
    },
};

const LIMITS: ReadLimit = ReadLimit { inbound: 4, outbound: 4 };
const ALL: Access = Access::REMOTE;
const BUFFER: usize = 2 << 20;

/// Shared record of callbacks.
pub(super) struct Record<T>(Arc<Mutex<Vec<T>>>);

impl<T> Clone for Record<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Send + 'static> Record<T> {
    fn new() -> Self {
        Self(Arc::default())
    }

    fn push(&self, value: T) {
        self.0.lock().unwrap().push(value);
    }

    fn take(&self) -> Vec<T> {
        core::mem::take(&mut self.0.lock().unwrap())
    }

    fn callback(&self) -> Box<dyn FnOnce(T) + Send> {
        let record = self.clone();
        Box::new(move |value| record.push(value))
    }
}

/// Queue pair with its domain, completion queue and memory.
pub(super) struct End {
    pub(super) adapter: Adapter,
    pd: PdId,
    cq: CqId,
    queue: Arc<CompletionQueue>,
    qp: QpId,
    region: RegionId,
    buffer: RegisteredBuffer,
    token: u32,
    connector: Option<ConnectorId>,
    limits: ReadLimit,
    /// Events of the queue pair.
    events: Record<QpEvent>,
    /// Disconnect events.
    ends: Record<Option<EndReason>>,
}

/// Completion in the form of an interface.
struct Polled(Option<Completion>);

impl From<Completion> for Polled {
    fn from(completion: Completion) -> Self {
        Self(Some(completion))
    }
}

impl End {
    fn new(bench: &Bench, node: usize) -> Self {
        Self::of_service(bench, node, QpService::Rc)
    }

    fn of_service(bench: &Bench, node: usize, service: QpService) -> Self {
        let adapter = bench.nodes[node].adapter.clone();
        let buffer = adapter.allocate(BUFFER).unwrap();
        let events = Record::new();
        let (pd, cq, queue, qp, region, token) = adapter.with(|rnic, _| {
            let pd = rnic.create_pd().unwrap();
            let (cq, queue) = rnic.create_cq(4096, Arc::new(|_| {})).unwrap();
            let limits = QpLimits { initiator_queue_depth: 256, ..QpLimits::default() };
            let config = QpConfig {
                receive_cq: cq,
                send_cq: cq,
                context: 70 + node as u64,
                limits,
                srq: None,
                error_state_posts: ErrorStatePosts::Flush,
                service,
            };
            let qp = rnic.create_qp(pd, config).unwrap();
            let record = events.clone();
            rnic.notify_of_qp(qp, Arc::new(move |event| record.push(event))).unwrap();
            let region = rnic.create_region(pd, false).unwrap();
            let rights = ALL | Access::LOCAL_WRITE;
            rnic.register(region, &buffer, 0, BUFFER, rights).unwrap();
            (pd, cq, queue, qp, region, rnic.token(region).unwrap())
        });
        let ends = Record::new();
        let (connector, limits) = (None, LIMITS);
        Self { adapter, pd, cq, queue, qp, region, buffer, token, connector, limits, events, ends }
    }

    fn sge(&self, offset: usize, length: usize) -> Sge {
        let address = self.buffer.address() + offset as u64;
        Sge { address, length: length as u32, token: self.token }
    }

    fn remote(&self, offset: usize) -> Remote {
        Remote::new(self.buffer.address() + offset as u64, self.token)
    }

    fn fill(&self, offset: usize, length: usize, seed: u8) {
        self.buffer.write_at(offset, &pattern(length, seed));
    }

    fn content(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut content = std::vec![0; length];
        self.buffer.read_at(offset, &mut content);
        content
    }

    fn try_post(
        &self,
        context: u64,
        operation: Operation,
        sges: &[Sge],
        flags: WrFlags,
    ) -> Result<(), VerbError> {
        let data = Data::Registered(sges);
        self.adapter.post(|rnic| rnic.post(self.qp, context, operation, data, flags))
    }

    fn post(&self, context: u64, operation: Operation, (offset, length): (usize, usize)) {
        self.try_post(context, operation, &[self.sge(offset, length)], WrFlags::NONE).unwrap();
    }

    fn send(&self, context: u64, offset: usize, length: usize) {
        self.post(context, Operation::Send { invalidate: None }, (offset, length));
    }

    fn write(&self, context: u64, range: (usize, usize), to: Remote) {
        self.post(context, Operation::Write { to }, range);
    }

    fn read(&self, context: u64, range: (usize, usize), from: Remote) {
        self.post(context, Operation::Read { from, invalidate_sink: false }, range);
    }

    fn receive(&self, context: u64, offset: usize, length: usize) {
        let sges = [self.sge(offset, length)];
        self.adapter.post(|rnic| rnic.post_receive(self.qp, context, &sges)).unwrap();
    }

    /// All available completions.
    fn poll(&self) -> Vec<Completion> {
        let mut all = Vec::new();
        loop {
            let mut polled = [Polled(None)];
            if self.queue.poll(&mut polled) == 0 {
                return all;
            }
            all.extend(polled.into_iter().filter_map(|Polled(completion)| completion));
        }
    }

    /// Contexts and statuses of all available completions.
    fn outcomes(&self) -> Vec<(u64, WcStatus)> {
        self.poll().into_iter().map(|completion| (completion.context, completion.status)).collect()
    }

    fn state(&self) -> QpState {
        self.adapter.with(|rnic, _| rnic.qp_state(self.qp)).unwrap()
    }

    fn set_peer(&self, rnr_retries: Option<u8>, rnr_timer: core::time::Duration) {
        let peer = RcPeer { rnr_retries, rnr_timer };
        self.adapter.with(|rnic, _| rnic.set_rc_peer(self.qp, peer)).unwrap();
    }

    fn close(&self, key: Key) -> Close {
        self.adapter.with(|rnic, _| rnic.close(key, Box::new(|| {})))
    }

    /// Closes the connector of the last connection or attempt.
    fn close_connector(&mut self) {
        if let Some(connector) = self.connector.take() {
            let _ = self.close(Key::Connector(connector));
        }
    }

    /// Destroys the queue pair, as a program does after its last completion.
    fn destroy(&mut self) {
        if let Some(connector) = self.connector.take() {
            // The connector holds the queue pair.
            assert_eq!(self.close(Key::Qp(self.qp)), Close::Pending);
            let _ = self.close(Key::Connector(connector));
        }
    }
}

/// Pairs of contexts and successes.
fn success<const N: usize>(contexts: [u64; N]) -> [(u64, WcStatus); N] {
    contexts.map(|context| (context, WcStatus::Success))
}

/// Listens on node 1. Returns the connectors of the requests.
fn listen(bench: &mut Bench, server: SocketAddr) -> (ListenerId, Record<ConnectorId>) {
    let (requests, done) = (Record::new(), Record::new());
    let incoming = requests.clone();
    let listener = bench.nodes[1].adapter.with(|rnic, _| {
        let event = Arc::new(move |connector| incoming.push(connector));
        let listener = rnic.create_listener(event).unwrap();
        rnic.listen(listener, server, Default::default(), done.callback()).unwrap();
        listener
    });
    bench.settle();
    assert_eq!(done.take(), [Ok(())]);
    (listener, requests)
}

/// Starts a connect of `active`. Returns the record of its outcome.
fn dial(active: &mut End, server: SocketAddr) -> Record<Result<(), ConnectError>> {
    let done = Record::new();
    let qp = active.qp;
    active.connector = Some(active.adapter.with(|rnic, _| {
        let connector = rnic.create_connector().unwrap();
        rnic.connect(connector, qp, (None, server), LIMITS, &[], done.callback()).unwrap();
        connector
    }));
    done
}

/// Accepts a request for `passive`.
fn accept(passive: &mut End, connector: ConnectorId) -> Record<Result<(), ConnectError>> {
    let done = Record::new();
    let (qp, limits, ends) = (passive.qp, passive.limits, passive.ends.callback());
    passive.connector = Some(connector);
    let accepted = done.callback();
    passive.adapter.with(|rnic, now| {
        rnic.accept(now, connector, qp, limits, &[], Some(ends), accepted).unwrap();
    });
    done
}

/// Completes the connect of `active`.
fn complete(active: &End) -> Record<Result<(), ConnectError>> {
    let (done, connector) = (Record::new(), active.connector.unwrap());
    let (ends, completed) = (active.ends.callback(), done.callback());
    active.adapter.with(|rnic, _| {
        rnic.complete_connect(connector, Some(ends), completed).unwrap();
    });
    done
}

/// Connects two ends at `server`.
fn connect_at(bench: &mut Bench, active: &mut End, passive: &mut End, server: SocketAddr) {
    let (listener, requests) = listen(bench, server);
    let connected = dial(active, server);
    bench.settle();
    let [request] = requests.take()[..] else { panic!("no request") };
    let accepted = accept(passive, request);
    bench.settle();
    assert_eq!(connected.take(), [Ok(())]);
    let completed = complete(active);
    bench.settle();
    assert_eq!((completed.take(), accepted.take()), (Vec::from([Ok(())]), Vec::from([Ok(())])));
    let _ = passive.close(Key::Listener(listener));
    bench.settle();
}

/// Two connected ends.
fn connected(bench: &mut Bench) -> (End, End) {
    let (mut active, mut passive) = (End::new(bench, 0), End::new(bench, 1));
    let server = bench.server;
    connect_at(bench, &mut active, &mut passive, server);
    (active, passive)
}

/// The tests over kernel sockets.
mod sockets {
    macro_rules! tests {
        ($($module:ident: $($test:ident)*;)*) => {
            $($(#[test]
            fn $test() {
                super::super::kernel::run(super::$module::$test);
            })*)*
        };
    }

    tests! {
        completions:
            unacknowledged_requests_count_as_posted
            immediate_data
            reads_and_atomics_complete_in_order
            early_requests_are_queued
            twin_receives_for_the_queue_pair;
        early:
            local_operations_need_no_connection
            held_operations_start_with_the_next_requests
            failed_local_operation_ends_the_queue_pair;
        receives:
            retries_end_the_wait
            no_retries_and_unlimited_retries
            responses_overtake_waiting_messages
            sender_pauses
            much_data_behind_a_message_is_delivered
            responses_overtake_much_data
            partly_sent_message_waits
            waiting_messages_of_a_closed_peer;
        errors:
            failed_requests_have_exact_statuses
            local_failures_do_not_reach_the_peer
            reads_of_a_peer_without_reads;
        ends:
            last_acknowledgment_arrives
            lost_queue_pairs_queue_requests
            failed_write_with_immediate_data_completes_once
            failed_attempts_leave_the_queue_pair_idle
            reset_queue_pairs_are_connected_again
            disconnect_follows_the_execution;
        unreliable:
            messages_are_executed
            messages_that_cannot_be_executed_are_dropped
            requests_of_a_lost_queue_pair_complete;
    }
}
