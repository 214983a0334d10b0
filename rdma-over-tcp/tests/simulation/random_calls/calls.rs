//! The calls, each with arguments that are valid, nearly valid or random.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use rdma_over_tcp::ndk::{
    Adapter, AtomicOperation, Connector, CqNotify, Created, Data, Invalidate, MrFlags, NdkResult,
    NdkResultEx, NtStatus, OpFlags, PAGE_SIZE, Pd, QpLimits, ReadLimit, Sge,
};

use super::{BYTES, REGISTERED, World, pool::Handles, pool::Offer};
use crate::plan::{Plan, draw, once_in};
use flue_test_support::check;

/// Rounds in which a message usually arrives.
const ROUNDS_MAX: usize = 200;
/// Rounds until short pending calls complete.
const PASSES_MAX: usize = 10_000;

/// Status of a call without a completion.
fn status<T>(outcome: &Result<T, NtStatus>) -> NtStatus {
    outcome.as_ref().err().copied().unwrap_or(NtStatus::SUCCESS)
}

/// A handle of this consumer or, occasionally, of the other one; no call if there is none.
macro_rules! any {
    ($world:ident, $node:expr, $kind:ident) => {{
        let node = if $world.is_wild(4) { 1 - $node } else { $node };
        match $world.pools[node].$kind.any(&mut $world.rng) {
            Some(handle) => handle,
            None => return,
        }
    }};
}

/// A handle of this consumer; no call if there is none.
macro_rules! own {
    ($world:ident, $node:expr, $kind:ident) => {
        match $world.pools[$node].$kind.any(&mut $world.rng) {
            Some(handle) => handle,
            None => return,
        }
    };
}

/// Stores a new object, and closes the one that it displaces.
macro_rules! keep {
    ($world:ident, $node:expr, $kind:ident, $handle:expr) => {
        if let Some(oldest) = $world.pools[$node].$kind.add($handle) {
            close!($world, oldest, $kind);
        }
    };
}

macro_rules! close {
    ($world:ident, $handle:expr, $kind:ident) => {{
        let calls = $world.expect();
        let done = calls.clone();
        let status = $handle.close(move || {
            done.fetch_add(1, Ordering::Relaxed);
        });
        $world.record_call(concat!("close ", stringify!($kind)), status, calls);
    }};
}

/// Creates an object by one of its two forms.
macro_rules! create {
    ($world:ident, $node:expr, $name:literal, $kind:ident, $plain:expr, $begin:expr) => {
        if once_in(&mut $world.rng, 2) {
            let outcome = $plain;
            $world.record_status($name, status(&outcome));
            if let Ok(handle) = outcome {
                keep!($world, $node, $kind, handle);
            }
        } else {
            let calls = $world.expect();
            let completion = created(&calls, &$world.pools[$node].$kind);
            match $begin(completion) {
                Ok(Created::Done(handle)) => {
                    $world.record_call($name, NtStatus::SUCCESS, calls);
                    keep!($world, $node, $kind, handle);
                }
                Ok(Created::Pending) => $world.record_call($name, NtStatus::PENDING, calls),
                Err(status) => $world.record_call($name, status, calls),
            }
        }
    };
}

/// Completion of a create: stores the object.
fn created<T: Closes>(
    calls: &Arc<AtomicU32>,
    handles: &Handles<T>,
) -> impl FnOnce(Result<T, NtStatus>) + Send + 'static {
    let (calls, handles) = (calls.clone(), handles.clone());
    move |outcome| {
        calls.fetch_add(1, Ordering::Relaxed);
        if let Some(oldest) = outcome.ok().and_then(|handle| handles.add(handle)) {
            oldest.close_unseen();
        }
    }
}

/// Objects that a callback closes when they are displaced.
trait Closes: Clone + Send + 'static {
    fn close_unseen(&self);
}

macro_rules! closes {
    ($($name:ident)*) => {$(
        impl Closes for rdma_over_tcp::ndk::$name {
            fn close_unseen(&self) {
                let _ = self.close(|| {});
            }
        }
    )*};
}

closes! { Pd Cq Qp Srq Mr Mw Connector Listener SharedEndpoint }

mod connections;

/// Completion of a request, which counts its calls.
fn done(calls: &Arc<AtomicU32>) -> impl FnOnce(NtStatus) + Send + 'static {
    let calls = calls.clone();
    move |_status| {
        calls.fetch_add(1, Ordering::Relaxed);
    }
}

fn has_ended(calls: &AtomicU32) -> bool {
    calls.load(Ordering::Relaxed) > 0
}

impl World {
    fn adapter(&self, node: usize) -> Adapter {
        self.bench.adapters[node].clone()
    }

    /// Creates a listener, memory and a queue pair per node: most calls fail early without them.
    pub(super) fn begin(&mut self, plan: &Plan) {
        for (node, port) in [(0, 7_999), (1, plan.port)] {
            let adapter = self.adapter(node);
            let incoming = self.pools[node].connectors.clone();
            let event = move |connector: Connector| {
                if let Some(oldest) = incoming.add(connector) {
                    oldest.close_unseen();
                }
            };
            let listener = adapter.create_listener(event).unwrap();
            let local = (plan.addresses[node], port).into();
            assert_eq!(listener.listen(local, |_| {}), NtStatus::PENDING);
            self.pools[node].listeners.add(listener);
            self.pools[node].pds.add(adapter.create_pd().unwrap());
        }
        self.pass(20);
    }

    /// Connects two new queue pairs correctly. It may fail nevertheless: tables are full, and a listener may be paused
    /// or closed.
    fn establish(&mut self) {
        let mut qps = Vec::new();
        for node in [0, 1] {
            let (adapter, pd) = (self.adapter(node), own!(self, node, pds));
            let cq = adapter.create_cq(64, |_| {});
            self.record_status("create cq", status(&cq));
            let Ok(cq) = cq else { return };
            let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default());
            self.record_status("create qp", status(&qp));
            keep!(self, node, cqs, cq);
            let Ok(qp) = qp else { return };
            qps.push(qp.clone());
            keep!(self, node, qps, qp);
            let mr = pd.create_mr(false);
            self.record_status("create mr", status(&mr));
            let Ok(mr) = mr else { continue };
            let rights = MrFlags::ALLOW_REMOTE_READ | MrFlags::ALLOW_REMOTE_WRITE;
            let registered = mr.register(&self.memory[node], 0, REGISTERED, rights);
            self.record_status("register", status(&registered));
            if registered.is_ok() {
                self.offer(node, mr.local_token(), 0, REGISTERED);
            }
            keep!(self, node, mrs, mr);
            self.equip(node, &pd);
        }
        let passive = draw(&mut self.rng, 2);
        let active = 1 - passive;
        let connector = self.adapter(active).create_connector();
        self.record_status("create connector", status(&connector));
        let (Ok(connector), Some(server)) = (connector, self.listening(passive)) else { return };
        let limits = ReadLimit { inbound: 8, outbound: 8 };
        let known = self.pools[passive].connectors.added();
        let calls = self.expect();
        let begun = connector.connect(&qps[active], None, server, limits, b"hello", done(&calls));
        self.record_call("connect", begun, calls.clone());
        let incoming = self.pools[passive].connectors.clone();
        self.pass_until(ROUNDS_MAX, || incoming.added() > known);
        if let Some(incoming) = incoming.all().pop() {
            let accepted = self.expect();
            let status = incoming.accept(&qps[passive], limits, b"", None, done(&accepted));
            self.record_call("accept", status, accepted.clone());
            self.pass_until(ROUNDS_MAX, || has_ended(&calls));
            let completed = self.expect();
            let status = connector.complete_connect(None, done(&completed));
            self.record_call("complete connect", status, completed);
            self.pass_until(ROUNDS_MAX, || has_ended(&accepted));
        }
        keep!(self, active, connectors, connector);
    }

    /// Address of a listener: an existing one, which may be paused, or a new one.
    fn listening(&mut self, node: usize) -> Option<SocketAddr> {
        let known = self.pools[node].listeners.any(&mut self.rng)?;
        if let Some(address) = known.local_address().filter(|_| once_in(&mut self.rng, 2)) {
            return Some(address);
        }
        let incoming = self.pools[node].connectors.clone();
        let listener = self.adapter(node).create_listener(move |connector| {
            if let Some(oldest) = incoming.add(connector) {
                oldest.close_unseen();
            }
        });
        self.record_status("create listener", status(&listener));
        let listener = listener.ok()?;
        let (local, calls) = ((self.addresses[node], 0).into(), self.expect());
        let status = listener.listen(local, done(&calls));
        self.record_call("listen", status, calls.clone());
        self.pass_until(ROUNDS_MAX, || has_ended(&calls));
        keep!(self, node, listeners, listener.clone());
        listener.local_address()
    }

    /// Posts requests on a connection, if any, each with a receive before it: without them most connections would end
    /// with the first Send.
    fn converse(&mut self) {
        for _ in 0..draw(&mut self.rng, 40) {
            let node = draw(&mut self.rng, 2);
            self.receive(1 - node);
            match draw(&mut self.rng, 9) {
                0 => self.fast_register(node),
                1 => self.bind(node),
                2 => self.invalidate(node),
                3 | 4 => self.send(node),
                5 | 6 => self.write(node),
                7 => self.read(node),
                _ => self.extension(node),
            }
            let rounds = 1 + draw(&mut self.rng, 6);
            self.pass(rounds);
            self.poll(0);
            self.poll(1);
        }
    }

    /// Creates a region for fast registrations, and a window, in the domain of a queue pair.
    fn equip(&mut self, node: usize, pd: &Pd) {
        let mr = pd.create_mr(true);
        self.record_status("create mr", status(&mr));
        if let Ok(mr) = mr {
            let prepared = mr.initialize_fast_register(64, true);
            self.record_status("initialize fast register", status(&prepared));
            keep!(self, node, mrs, mr);
        }
        let mw = pd.create_mw();
        self.record_status("create mw", status(&mw));
        if let Ok(mw) = mw {
            keep!(self, node, mws, mw);
        }
    }

    fn offer(&mut self, node: usize, token: u32, offset: usize, length: usize) {
        let address = self.memory[node].address() + offset as u64;
        self.pools[node].offers.add(Offer { address, length: length as u64, token });
    }

    pub(super) fn call(&mut self, node: usize) {
        if once_in(&mut self.rng, 80) {
            self.establish();
            self.converse();
        }
        match draw(&mut self.rng, 34) {
            0 => self.create(node),
            1 => self.create_of_domain(node),
            2 => self.register(node),
            3 => self.fast_register(node),
            4 => self.bind(node),
            5 => self.invalidate(node),
            6..=11 => self.receive(node),
            12..=16 => self.send(node),
            17..=19 => self.write(node),
            20..=22 => self.read(node),
            23 => self.extension(node),
            24 | 25 => self.poll(node),
            26 => self.change_queue(node),
            27 => self.connect(node),
            28 | 29 => self.answer(node),
            30 => self.listen(node),
            31 => self.query(node),
            _ => self.end(node),
        }
    }

    fn create(&mut self, node: usize) {
        let adapter = self.adapter(node);
        match draw(&mut self.rng, 5) {
            0 => {
                let depth = self.number(64);
                create!(self, node, "create cq", cqs, adapter.create_cq(depth, |_| {}), |done| {
                    adapter.begin_create_cq(depth, |_| {}, done)
                });
            }
            1 => create!(self, node, "create pd", pds, adapter.create_pd(), |done| adapter
                .begin_create_pd(done)),
            2 => create!(self, node, "create connector", connectors, adapter.create_connector(), {
                |done| adapter.begin_create_connector(done)
            }),
            3 => {
                let event = |connectors: &Handles<Connector>| {
                    let connectors = connectors.clone();
                    move |connector| {
                        if let Some(oldest) = connectors.add(connector) {
                            oldest.close_unseen();
                        }
                    }
                };
                let event = [0, 1].map(|_| event(&self.pools[node].connectors));
                let [plain, begun] = event;
                create!(
                    self,
                    node,
                    "create listener",
                    listeners,
                    adapter.create_listener(plain),
                    { |done| adapter.begin_create_listener(begun, done) }
                );
            }
            _ => {
                let calls = self.expect();
                let completion = created(&calls, &self.pools[node].endpoints);
                let local = self.address(node);
                let status = adapter.create_shared_endpoint(local, completion);
                self.record_call("create shared endpoint", status, calls);
            }
        }
    }

    fn create_of_domain(&mut self, node: usize) {
        let pd = own!(self, node, pds);
        match draw(&mut self.rng, 6) {
            0 | 1 => {
                let fast = once_in(&mut self.rng, 2);
                create!(self, node, "create mr", mrs, pd.create_mr(fast), |done| pd
                    .begin_create_mr(fast, done));
            }
            2 => {
                create!(self, node, "create mw", mws, pd.create_mw(), |done| pd
                    .begin_create_mw(done));
            }
            3 => {
                let [depth, sges, limit] = [64, 4, 8].map(|most| self.number(most));
                let plain = || pd.create_srq(depth, sges, limit, |_| {});
                create!(self, node, "create srq", srqs, plain(), |done| {
                    pd.begin_create_srq(depth, sges, limit, |_| {}, done)
                });
            }
            4 => {
                let (one, other) = (any!(self, node, cqs), any!(self, node, cqs));
                let limits = self.limits();
                create!(
                    self,
                    node,
                    "create qp",
                    qps,
                    pd.create_qp(&one, &other, 1, limits),
                    |done| { pd.begin_create_qp(&one, &other, 1, limits, done) }
                );
            }
            _ => {
                let (one, other) = (any!(self, node, cqs), any!(self, node, cqs));
                let (srq, limits) = (any!(self, node, srqs), self.limits());
                let plain = || pd.create_qp_with_srq(&one, &other, &srq, 2, limits);
                create!(self, node, "create qp with srq", qps, plain(), |done| {
                    pd.begin_create_qp_with_srq((&one, &other), &srq, 2, limits, done)
                });
            }
        }
    }

    /// True occasionally: more often in seeds with wild consumers.
    fn is_wild(&mut self, rarity: usize) -> bool {
        once_in(&mut self.rng, rarity * self.wild_argument_rarity)
    }

    /// Occasionally selects one of this number of invalid arguments.
    fn wildly(&mut self, ways: usize) -> Option<usize> {
        self.is_wild(3).then(|| draw(&mut self.rng, ways))
    }

    /// Returns a number up to `most`, or a wild one.
    fn number(&mut self, most: usize) -> u32 {
        match self.wildly(3) {
            Some(0) => self.rng.rand_u64() as u32,
            Some(1) => u32::MAX,
            Some(_) => 0,
            None => draw(&mut self.rng, most + 1) as u32,
        }
    }

    fn limits(&mut self) -> QpLimits {
        let usual = QpLimits::default();
        if !once_in(&mut self.rng, 3) {
            return usual;
        }
        QpLimits {
            receive_queue_depth: self.number(8),
            initiator_queue_depth: self.number(8),
            max_receive_request_sge: self.number(4),
            max_initiator_request_sge: self.number(4),
            inline_data_size: self.number(64),
        }
    }

    /// Selects a part of the memory that may be registered, or a span that registrations must refuse.
    fn span(&mut self) -> (usize, usize) {
        match self.wildly(4) {
            Some(0) => (draw(&mut self.rng, BYTES), usize::MAX - draw(&mut self.rng, BYTES)),
            Some(1) => (usize::MAX - draw(&mut self.rng, 10), draw(&mut self.rng, BYTES)),
            Some(2) => (BYTES, 1 + draw(&mut self.rng, BYTES)),
            Some(_) => (draw(&mut self.rng, REGISTERED), 0),
            None => {
                let offset = draw(&mut self.rng, REGISTERED - 1);
                (offset, 1 + draw(&mut self.rng, REGISTERED - offset))
            }
        }
    }

    fn register(&mut self, node: usize) {
        let mr = own!(self, node, mrs);
        match draw(&mut self.rng, 6) {
            0 => {
                let calls = self.expect();
                let pages = self.number(64);
                let remote = once_in(&mut self.rng, 2);
                let status = mr.begin_initialize_fast_register(pages, remote, done(&calls));
                self.record_call("initialize fast register", status, calls);
            }
            1 => {
                let calls = self.expect();
                let completion = done(&calls);
                let status = mr.deregister(move || completion(NtStatus::SUCCESS));
                self.record_call("deregister", status, calls);
            }
            _ => {
                let (offset, length) = self.span();
                let flags = match draw(&mut self.rng, 4) {
                    0 => MrFlags::from_bits_retain(self.rng.rand_u64() as u32),
                    _ => MrFlags::from_bits_retain(draw(&mut self.rng, 16) as u32),
                };
                let (calls, memory) = (self.expect(), self.memory[node].clone());
                let status = mr.begin_register(&memory, offset, length, flags, done(&calls));
                self.record_call("register", status, calls);
                if [NtStatus::SUCCESS, NtStatus::PENDING].contains(&status) {
                    self.offer(node, mr.local_token(), offset, length);
                }
            }
        }
    }

    fn flags(&mut self, legal: &[OpFlags]) -> OpFlags {
        if self.is_wild(2) {
            return OpFlags::from_bits_retain(self.rng.rand_u64() as u32);
        }
        match once_in(&mut self.rng, 2) {
            true => OpFlags::empty(),
            false => legal[draw(&mut self.rng, legal.len())],
        }
    }

    fn context(&mut self) -> u64 {
        self.next_context += 1;
        self.next_context
    }

    fn fast_register(&mut self, node: usize) {
        let (qp, mr) = (own!(self, node, qps), any!(self, node, mrs));
        let (offset, length) = self.span();
        let (context, memory) = (self.context(), self.memory[node].clone());
        let rights = [OpFlags::ALLOW_REMOTE_READ, OpFlags::ALLOW_REMOTE_WRITE, OpFlags::DEFER];
        let flags = self.flags(&rights);
        let base = match draw(&mut self.rng, 3) {
            0 => self.rng.rand_u64(),
            _ => (draw(&mut self.rng, 64) * PAGE_SIZE) as u64 + offset as u64 % PAGE_SIZE as u64,
        };
        let outcome = qp.fast_register(context, &mr, &memory, offset, length, base, flags);
        self.record_post(node, "fast register", context, status(&outcome));
        if let Ok(token) = outcome {
            self.pools[node].offers.add(Offer { address: base, length: length as u64, token });
        }
    }

    fn bind(&mut self, node: usize) {
        let (qp, mr, mw) = (own!(self, node, qps), any!(self, node, mrs), any!(self, node, mws));
        let offer = own!(self, node, offers);
        let (address, length) = self.part(offer);
        let flags = self.flags(&[OpFlags::ALLOW_REMOTE_READ, OpFlags::ALLOW_REMOTE_WRITE]);
        let context = self.context();
        let outcome = qp.bind(context, &mr, &mw, address, length, flags);
        self.record_post(node, "bind", context, status(&outcome));
        if let Ok(token) = outcome {
            self.pools[node].offers.add(Offer { address, length, token });
        }
    }

    fn invalidate(&mut self, node: usize) {
        let (qp, context) = (own!(self, node, qps), self.context());
        let flags = self.flags(&[OpFlags::READ_FENCE, OpFlags::DEFER]);
        let outcome = match once_in(&mut self.rng, 2) {
            true => qp.invalidate(context, Invalidate::Mr(&any!(self, node, mrs)), flags),
            false => qp.invalidate(context, Invalidate::Mw(&any!(self, node, mws)), flags),
        };
        self.record_post(node, "invalidate", context, status(&outcome));
    }

    /// Selects bytes within an offer, or some outside.
    fn part(&mut self, offer: Offer) -> (u64, u64) {
        match self.wildly(5) {
            Some(0) => (self.rng.rand_u64(), self.rng.rand_u64()),
            Some(1) => (offer.address.wrapping_sub(1), 2),
            Some(2) => (offer.address.wrapping_add(offer.length), 1),
            Some(3) => (offer.address, offer.length.wrapping_add(1)),
            Some(_) => (u64::MAX - draw(&mut self.rng, 100) as u64, 100),
            None => {
                let length = offer.length.clamp(1, 1 << 20) as usize;
                let at = draw(&mut self.rng, length);
                let most = (length - at).min(8 * PAGE_SIZE);
                (offer.address.wrapping_add(at as u64), draw(&mut self.rng, most + 1) as u64)
            }
        }
    }

    fn sges(&mut self, node: usize) -> Vec<Sge> {
        let count = if self.is_wild(3) { 20 } else { draw(&mut self.rng, 4) };
        let mut sges = Vec::new();
        for _ in 0..count {
            // A token of the peer belongs to its own adapter; in this adapter it is unknown, or that of another object.
            let from = if self.is_wild(4) { 1 - node } else { node };
            let Some(offer) = self.pools[from].offers.any(&mut self.rng) else { break };
            let (address, length) = self.part(offer);
            let token = match self.is_wild(4) {
                true => self.rng.rand_u64() as u32,
                false => offer.token,
            };
            sges.push(Sge { address, length: length as u32, token });
        }
        sges
    }

    /// Selects memory of the peer: address and token.
    fn remote(&mut self, node: usize) -> (u64, u32) {
        let Some(offer) = self.pools[1 - node].offers.any(&mut self.rng) else { return (0, 0) };
        let (address, _) = self.part(offer);
        let token = if self.is_wild(4) { offer.token ^ 0x100 } else { offer.token };
        (address, token)
    }

    fn receive(&mut self, node: usize) {
        let (sges, context) = (self.sges(node), self.context());
        let outcome = match once_in(&mut self.rng, 4) {
            true => own!(self, node, srqs).receive(context, &sges),
            false => own!(self, node, qps).receive(context, &sges),
        };
        self.record_post(node, "receive", context, status(&outcome));
    }

    fn send(&mut self, node: usize) {
        let (qp, context) = (own!(self, node, qps), self.context());
        let flags = self.flags(&[
            OpFlags::SEND_AND_SOLICIT_EVENT,
            OpFlags::READ_FENCE,
            OpFlags::DEFER,
            OpFlags::INLINE,
        ]);
        let (sges, bytes) = (self.sges(node), vec![0x11; draw(&mut self.rng, 300)]);
        let slices = [&bytes[..]];
        let data = match once_in(&mut self.rng, 2) {
            true => Data::Inline(&slices),
            false => Data::Registered(&sges),
        };
        if once_in(&mut self.rng, 6) {
            let (_, token) = self.remote(node);
            let outcome = qp.send_and_invalidate(context, data, token, flags);
            self.record_post(node, "send and invalidate", context, status(&outcome));
        } else {
            let outcome = qp.send(context, data, flags);
            self.record_post(node, "send", context, status(&outcome));
        }
    }

    fn write(&mut self, node: usize) {
        let (qp, context, sges) = (own!(self, node, qps), self.context(), self.sges(node));
        let (address, token) = self.remote(node);
        let flags = self.flags(&[OpFlags::READ_FENCE, OpFlags::SILENT_SUCCESS, OpFlags::DEFER]);
        let outcome = qp.write(context, Data::Registered(&sges), address, token, flags);
        self.record_post(node, "write", context, status(&outcome));
    }

    fn read(&mut self, node: usize) {
        let (qp, context, sges) = (own!(self, node, qps), self.context(), self.sges(node));
        let (address, token) = self.remote(node);
        let flags = self.flags(&[OpFlags::RDMA_READ_LOCAL_INVALIDATE, OpFlags::READ_FENCE]);
        let outcome = qp.read(context, &sges, address, token, flags);
        self.record_post(node, "read", context, status(&outcome));
    }

    fn extension(&mut self, node: usize) {
        let (qp, context) = (own!(self, node, qps), self.context());
        let flags = self.flags(&[OpFlags::READ_FENCE]);
        if once_in(&mut self.rng, 2) {
            let outcome = qp.immediate(context, [0x22; 8], flags);
            return self.record_post(node, "immediate", context, status(&outcome));
        }
        let (sge, (mut address, token)) = (self.sges(node).pop(), self.remote(node));
        let Some(mut sge) = sge else { return };
        if !self.is_wild(2) {
            (sge.length, address) = (8, address & !7);
        }
        // The value written is small, as are all that consumers write in this test.
        let swap = u64::from_ne_bytes([0x33; 8]);
        let (compare_mask, swap_mask) = (0, u64::MAX);
        let operation = AtomicOperation::CompareSwap { compare: 0, compare_mask, swap, swap_mask };
        let outcome = qp.atomic(context, sge, address, token, operation, flags);
        self.record_post(node, "atomic", context, status(&outcome));
    }
}
