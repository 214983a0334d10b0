//! One end of a queue pair's connection: posts the operations of the plan, and checks every completion.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex},
};

use flue_test_support::check;
use rdma_over_tcp::ndk::{
    Adapter, AtomicOperation, Connector, Cq, Data, DisconnectEvent, Mr, MrFlags, Mw, NdkResultEx,
    NtStatus, OpFlags, OperationType, Pd, Qp, RegisteredBuffer, Sge,
};

use crate::{
    extensions::{Shared, Target},
    plan::{Action, GUARD, Operation, SidePlan, Source, Span, Via},
};

/// Results of callbacks.
#[derive(Debug, Default)]
pub(crate) struct CallbackResults {
    pub(crate) connected: Option<NtStatus>,
    pub(crate) completed: Option<NtStatus>,
    pub(crate) disconnected: Option<NtStatus>,
    /// Reasons of disconnect events.
    pub(crate) events: Vec<u32>,
}

/// Memory and receives that the peer may use.
#[derive(Debug)]
struct Grants {
    address: u64,
    source_token: u32,
    target_token: u32,
    words_token: Option<u32>,
    /// Address and token of the node's words.
    shared: Option<(u64, u32)>,
    /// Tokens and first addresses of windows whose registration has completed.
    windows: Vec<Option<(u32, u64)>>,
    /// Receives posted since the start.
    receives: usize,
}

/// Object of a window of the plan.
enum Opening {
    Registered(Mr),
    Bound(Mw),
}

pub(crate) struct Side {
    pub(crate) plan: SidePlan,
    pub(crate) qp: Qp,
    pub(crate) connector: Option<Connector>,
    pub(crate) results: Arc<Mutex<CallbackResults>>,
    pub(crate) buffer: RegisteredBuffer,
    pub(crate) regions: [Mr; 2],
    words: Option<Mr>,
    windows: Vec<(Opening, Option<u32>)>,
    grants: Grants,
    /// Index of the next operation to post.
    next: usize,
    /// Operations posted but not known to be complete.
    outstanding: VecDeque<(usize, bool)>,
    receives_posted: usize,
    receives_done: usize,
    pub(crate) is_active: bool,
    /// True if every further completion is flushed.
    pub(crate) is_ending: bool,
    pub(crate) cancelled: usize,
    pub(crate) solicited: usize,
    /// Completions after the plan, during a provoked error; kept unchecked.
    pub(crate) after: Option<Vec<NdkResultEx>>,
}

impl fmt::Debug for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Side")
            .field("operation", &self.next)
            .field("of", &self.plan.operations.len())
            .field("doing", &self.plan.operations.get(self.next))
            .field("outstanding", &self.outstanding)
            .field("receives_posted", &self.receives_posted)
            .field("receives_done", &self.receives_done)
            .field("of", &self.plan.receives.len())
            .field("results", &self.results)
            .field("stats", &self.qp.stats())
            .finish_non_exhaustive()
    }
}

impl Side {
    pub(crate) fn new(
        adapter: &Adapter,
        pd: &Pd,
        [receive_cq, initiator_cq]: [&Cq; 2],
        shared: Option<&Shared>,
        context: u64,
        is_active: bool,
        plan: SidePlan,
    ) -> Self {
        let buffer = adapter.allocate(plan.initial.len()).unwrap();
        buffer.write_at(0, &plan.initial);
        let register = |span: Span, flags| {
            let mr = pd.create_mr(false).unwrap();
            mr.register(&buffer, span.start, span.len(), flags).unwrap();
            mr
        };
        let targets = plan.source.end..plan.initial.len() - GUARD;
        let rights = MrFlags::ALLOW_LOCAL_WRITE | MrFlags::ALLOW_REMOTE_WRITE;
        let regions =
            [register(plan.source.clone(), MrFlags::ALLOW_REMOTE_READ), register(targets, rights)];
        let words = (!plan.words.is_empty())
            .then(|| register(plan.words.clone(), MrFlags::ALLOW_REMOTE_ATOMIC));
        let windows: Vec<_> = plan
            .windows
            .iter()
            .map(|window| {
                if window.is_bound {
                    return (Opening::Bound(pd.create_mw().unwrap()), None);
                }
                let mr = pd.create_mr(true).unwrap();
                // One page more: the span need not be page-aligned.
                let pages = window.span.len().div_ceil(4096) as u32 + 1;
                mr.initialize_fast_register(pages, window.is_remote).unwrap();
                (Opening::Registered(mr), None)
            })
            .collect();
        let grants = Grants {
            address: buffer.address(),
            source_token: regions[0].remote_token(),
            target_token: regions[1].remote_token(),
            words_token: words.as_ref().map(Mr::remote_token),
            shared: shared.map(Shared::grant),
            windows: vec![None; windows.len()],
            receives: 0,
        };
        Self {
            qp: pd.create_qp(receive_cq, initiator_cq, context, plan.limits).unwrap(),
            connector: None,
            results: Arc::default(),
            buffer,
            regions,
            words,
            windows,
            grants,
            next: 0,
            outstanding: VecDeque::new(),
            receives_posted: 0,
            receives_done: 0,
            is_active,
            is_ending: false,
            cancelled: 0,
            solicited: 0,
            after: None,
            plan,
        }
    }

    /// Returns a callback that stores its arguments.
    pub(crate) fn note(
        &self,
        keep: impl FnOnce(&mut CallbackResults, NtStatus) + Send + 'static,
    ) -> impl FnOnce(NtStatus) + Send + 'static {
        let results = self.results.clone();
        move |status| keep(&mut results.lock().unwrap(), status)
    }

    pub(crate) fn disconnect_event(&self) -> Option<DisconnectEvent> {
        let results = self.results.clone();
        Some(Box::new(move |reason| results.lock().unwrap().events.push(reason)))
    }

    pub(crate) fn mrs(&self) -> impl Iterator<Item = &Mr> {
        let registered = self.windows.iter().filter_map(|(opening, _)| match opening {
            Opening::Registered(mr) => Some(mr),
            Opening::Bound(_) => None,
        });
        self.regions.iter().chain(&self.words).chain(registered)
    }

    pub(crate) fn mws(&self) -> impl Iterator<Item = &Mw> {
        self.windows.iter().filter_map(|(opening, _)| match opening {
            Opening::Registered(_) => None,
            Opening::Bound(mw) => Some(mw),
        })
    }

    /// Returns the address of a window's first byte.
    fn window_base(&self, window: usize) -> u64 {
        let plan = &self.plan.windows[window];
        match plan.is_bound {
            true => self.buffer.address() + plan.span.start as u64,
            false => plan.base,
        }
    }

    fn region_token(&self, span: &Span) -> u32 {
        match span.start < self.plan.source.end {
            true => self.grants.source_token,
            false => self.grants.target_token,
        }
    }

    pub(crate) fn sges(&self, spans: &[Span]) -> Vec<Sge> {
        let sge = |span: &Span| Sge {
            address: self.buffer.address() + span.start as u64,
            length: span.len() as u32,
            token: self.region_token(span),
        };
        spans.iter().map(sge).collect()
    }

    pub(crate) fn content(&self, span: Span) -> Vec<u8> {
        let mut content = vec![0; span.len()];
        self.buffer.read_at(span.start, &mut content);
        content
    }

    /// Asserts that `span` matches the plan; only the first `bytes` of it are compared.
    fn assert_placed(&self, span: &Span, bytes: usize, what: &dyn fmt::Debug) {
        let span = span.start..span.start + bytes.min(span.len());
        let is_equal = self.content(span.clone()) == self.plan.image[span.clone()];
        check!(WrongData, is_equal, "{span:?} of {what:?}");
    }

    /// Posts receives up to the queue's depth: one per send of the peer, then the spare ones.
    pub(crate) fn post_receives(&mut self) {
        let depth = self.plan.limits.receive_queue_depth as usize;
        let most = self.plan.receives.len() + self.plan.spare_receives;
        while self.receives_posted < most && self.receives_posted - self.receives_done < depth {
            let sges = match self.plan.receives.get(self.receives_posted) {
                Some(receive) => self.sges(&receive.spans),
                None => Vec::new(),
            };
            self.qp.receive(self.receives_posted as u64, &sges).unwrap();
            self.receives_posted += 1;
        }
        self.grants.receives = self.receives_posted;
    }

    /// Posts all operations allowed at this time.
    pub(crate) fn post(&mut self, peer: &mut Self) {
        let mut sends = self.sends_before(self.next);
        while self.may_post(self.next, peer, sends) {
            sends += usize::from(self.plan.operations[self.next].action.takes_receive());
            let flags = self.flags(peer, sends);
            self.post_one(peer, flags);
            self.next += 1;
        }
    }

    fn sends_before(&self, end: usize) -> usize {
        let operations = &self.plan.operations[..end];
        operations.iter().filter(|operation| operation.action.takes_receive()).count()
    }

    /// True if there is room, a receive for a send, and the peer's grant for its window.
    fn may_post(&self, index: usize, peer: &Self, sends: usize) -> bool {
        let Some(operation) = self.plan.operations.get(index) else { return false };
        let granted = match operation.action {
            Action::Send { .. } | Action::Immediate { .. } => {
                peer.plan.waits || sends + peer.plan.rtr_receives < peer.grants.receives
            }
            Action::Write { via: Via::Window(window), .. } => peer.grants.windows[window].is_some(),
            _ => true,
        };
        granted && self.outstanding.len() < self.plan.limits.initiator_queue_depth as usize
    }

    /// Returns the plan's flags, except for two that depend on later operations. A consumer needs one completion per
    /// queue to detect room, and a deferred request needs a posted successor.
    fn flags(&mut self, peer: &Self, sends: usize) -> OpFlags {
        let depth = self.plan.limits.initiator_queue_depth as usize;
        let mut flags = self.plan.operations[self.next].flags;
        if self.outstanding.len() + 1 == depth || self.next + 1 == self.plan.operations.len() {
            flags = flags.difference(OpFlags::SILENT_SUCCESS);
        }
        self.outstanding.push_back((self.next, flags.contains(OpFlags::SILENT_SUCCESS)));
        if !self.may_post(self.next + 1, peer, sends) {
            flags = flags.difference(OpFlags::DEFER);
        }
        flags
    }

    fn post_one(&mut self, peer: &Self, flags: OpFlags) {
        let context = self.next as u64;
        let Operation { action, .. } = &self.plan.operations[self.next];
        let (qp, bytes) = (&self.qp, |span: &Span| self.content(span.clone()));
        match action {
            Action::Send { source, invalidate } => self.with_data(source, bytes, |data| {
                match invalidate.map(|window| peer.grants.windows[window].unwrap().0) {
                    Some(token) => qp.send_and_invalidate(context, data, token, flags).unwrap(),
                    None => qp.send(context, data, flags).unwrap(),
                }
            }),
            Action::Write { source, target, via } => self.with_data(source, bytes, |data| {
                let (token, address) = match *via {
                    Via::Region => {
                        let address = peer.grants.address + target.start as u64;
                        (peer.grants.target_token, address)
                    }
                    Via::Window(window) => peer.grants.windows[window].unwrap(),
                };
                qp.write(context, data, address, token, flags).unwrap();
            }),
            Action::Read { sinks, via, source } => {
                let sges = match *via {
                    Via::Region => self.sges(sinks),
                    Via::Window(window) => vec![Sge {
                        address: self.plan.windows[window].base,
                        length: sinks[0].len() as u32,
                        token: self.windows[window].1.unwrap(),
                    }],
                };
                let address = peer.grants.address + source.start as u64;
                qp.read(context, &sges, address, peer.grants.source_token, flags).unwrap();
            }
            Action::Register { window } => {
                let plan = &self.plan.windows[*window];
                let rights = match plan.is_remote {
                    true => OpFlags::ALLOW_REMOTE_WRITE,
                    false => OpFlags::ALLOW_LOCAL_WRITE,
                };
                let (offset, length) = (plan.span.start, plan.span.len());
                let flags = flags | rights;
                let token = match &self.windows[*window].0 {
                    Opening::Registered(mr) => qp
                        .fast_register(context, mr, &self.buffer, offset, length, plan.base, flags)
                        .unwrap(),
                    Opening::Bound(mw) => {
                        let (region, base) = (&self.regions[1], self.window_base(*window));
                        qp.bind(context, region, mw, base, length as u64, flags).unwrap()
                    }
                };
                let window = *window;
                self.windows[window].1 = Some(token);
            }
            Action::Atomic { sink, target, operation } => {
                let sge = self.sges(std::slice::from_ref(sink))[0];
                let grants = &peer.grants;
                let (address, token) = match target {
                    Target::Own(word) => {
                        (grants.address + word.start as u64, grants.words_token.unwrap())
                    }
                    Target::SharedSum => grants.shared.unwrap(),
                    Target::SharedChain => {
                        let (address, token) = grants.shared.unwrap();
                        (address + 8, token)
                    }
                };
                qp.atomic(context, sge, address, token, *operation, flags).unwrap();
            }
            Action::Immediate { data } => qp.immediate(context, *data, flags).unwrap(),
            Action::Invalidate { window } => match &self.windows[*window].0 {
                Opening::Registered(mr) => qp.invalidate(context, mr, flags).unwrap(),
                Opening::Bound(mw) => qp.invalidate(context, mw, flags).unwrap(),
            },
        }
    }

    fn with_data(
        &self,
        source: &Source,
        bytes: impl Fn(&Span) -> Vec<u8>,
        post: impl FnOnce(Data<'_>),
    ) {
        match source {
            Source::Registered(spans) => post(Data::Registered(&self.sges(spans))),
            Source::Inline(span, parts) => {
                let data = bytes(span);
                let size = data.len().div_ceil(*parts).max(1);
                let parts: Vec<&[u8]> = data.chunks(size).collect();
                post(Data::Inline(&parts));
            }
        }
    }

    /// Checks the order and all fields of a completion.
    pub(crate) fn complete(&mut self, result: &NdkResultEx, peer: &Self) {
        if let Some(after) = &mut self.after {
            after.push(*result);
            return;
        }
        match result.operation {
            OperationType::Receive
            | OperationType::ReceiveAndInvalidate
            | OperationType::ReceiveImmediate => {
                self.complete_receive(result, peer);
            }
            _ => self.complete_request(result),
        }
    }

    fn complete_receive(&mut self, result: &NdkResultEx, peer: &Self) {
        let index = self.receives_done;
        self.receives_done += 1;
        assert_eq!(result.request_context, index as u64, "receive completed out of posting order");
        let Some(receive) = self.plan.receives.get(index) else {
            assert!(self.is_ending, "{result:?} without a send");
            assert_eq!(result.status, NtStatus::CANCELLED);
            self.cancelled += 1;
            return;
        };
        assert_eq!(result.status, NtStatus::SUCCESS, "receive {index}: {result:?}");
        assert_eq!(result.bytes_transferred as usize, receive.bytes);
        assert_eq!(result.immediate, receive.immediate.unwrap_or_default());
        match receive.invalidates {
            _ if receive.immediate.is_some() => {
                assert_eq!(result.operation, OperationType::ReceiveImmediate);
            }
            Some(window) => {
                assert_eq!(result.operation, OperationType::ReceiveAndInvalidate);
                assert_eq!(Some(result.invalidated_token), self.windows[window].1);
            }
            None => {
                assert_eq!(result.operation, OperationType::Receive);
                assert_eq!(result.invalidated_token, 0);
            }
        }
        let mut left = receive.bytes;
        for span in &receive.spans {
            self.assert_placed(span, left, receive);
            left = left.saturating_sub(span.len());
        }
        self.solicited += usize::from(receive.is_solicited);
        if let Some(send) = index.checked_sub(self.plan.rtr_receives) {
            self.assert_writes_before(send, peer);
        }
    }

    /// Asserts that the data written by the peer before its send number `send` is placed (RFC 5040 §5.5, 12).
    fn assert_writes_before(&self, send: usize, peer: &Self) {
        let mut sends = 0;
        for operation in &peer.plan.operations {
            match &operation.action {
                action if action.takes_receive() && sends == send => return,
                action if action.takes_receive() => sends += 1,
                Action::Write { target, .. } if sends == send => {
                    self.assert_placed(target, target.len(), operation);
                }
                _ => {}
            }
        }
    }

    fn complete_request(&mut self, result: &NdkResultEx) {
        let index = loop {
            match self.outstanding.pop_front() {
                Some((_, true)) => {}
                Some((index, false)) => break index,
                None => panic!("{result:?} completes nothing"),
            }
        };
        let operation = &self.plan.operations[index];
        assert_eq!(result.request_context, index as u64, "request completed out of posting order");
        assert_eq!(result.status, NtStatus::SUCCESS, "{operation:?}: {result:?}");
        assert_eq!(result.provider_error_code, 0);
        let expected = match &operation.action {
            Action::Send { .. } => OperationType::Send,
            Action::Write { .. } => OperationType::Write,
            Action::Read { sinks, .. } => {
                sinks.iter().for_each(|sink| self.assert_placed(sink, sink.len(), operation));
                OperationType::Read
            }
            Action::Register { window } => {
                let token = self.windows[*window].1.unwrap();
                self.grants.windows[*window] = Some((token, self.window_base(*window)));
                match self.plan.windows[*window].is_bound {
                    true => OperationType::Bind,
                    false => OperationType::FastRegister,
                }
            }
            Action::Invalidate { .. } => OperationType::Invalidate,
            Action::Atomic { sink, target, operation: atomic } => {
                if matches!(target, Target::Own(_)) {
                    self.assert_placed(sink, 8, operation);
                }
                match atomic {
                    AtomicOperation::FetchAdd { .. } => OperationType::FetchAdd,
                    AtomicOperation::CompareSwap { .. } => OperationType::CompareSwap,
                }
            }
            Action::Immediate { .. } => OperationType::Immediate,
        };
        assert_eq!(result.operation, expected);
    }

    /// True if the plan is complete.
    pub(crate) fn is_done(&self) -> bool {
        self.next == self.plan.operations.len()
            && self.outstanding.is_empty()
            && self.receives_done >= self.plan.receives.len()
            && self.receives_posted == self.plan.receives.len() + self.plan.spare_receives
    }

    /// Checks that every byte of the buffer, guards and gaps included, matches the plan.
    pub(crate) fn assert_image(&self) {
        let content = self.content(0..self.plan.image.len());
        let wrong = content.iter().zip(&self.plan.image).position(|(is, should)| is != should);
        let of = content.len();
        check!(WrongData, wrong.is_none(), "{wrong:?} is the first wrong byte of {of}");
    }
}
