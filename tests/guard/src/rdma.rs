//! Two connected queue pairs, and continuous traffic from the first to the second.
//!
//! The consumer's part allocates nothing: completions are stored in arrays, and memory is registered once. The
//! counts are therefore those of the adapters.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use rdma_over_tcp::ndk::{
    Adapter, Connector, Cq, Data, MrFlags, NdkResultEx, NtStatus, OpFlags, OperationType, Qp,
    QpLimits, ReadLimit, RegisteredBuffer, Sge,
};

/// Outstanding requests of up to [`SMALL_BYTES`]: enough for them to share segments.
const DEPTH_SMALL: u64 = 64;
/// Outstanding requests of larger sizes.
const DEPTH: u64 = 16;
/// Maximum size of a small request, bytes.
const SMALL_BYTES: usize = 2048;
const LIMITS: ReadLimit = ReadLimit { inbound: 16, outbound: 16 };
/// Steps without a completion after which traffic counts as stuck.
const IDLE_STEPS_MAX: u64 = 20_000_000;

/// Operation of the first queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// RDMA Write.
    Write,
    /// Send, into receives that are reposted immediately.
    Send,
    /// RDMA Read.
    Read,
    /// Atomic FetchAdd, of 8 bytes.
    FetchAdd,
    /// Immediate data, into receives like a Send.
    Immediate,
    /// RDMA Write between queue pairs of reliable connected service.
    RcWrite,
    /// Send between queue pairs of reliable connected service.
    RcSend,
}

impl Operation {
    /// True if it consumes receives.
    const fn is_received(self) -> bool {
        matches!(self, Self::Send | Self::Immediate | Self::RcSend)
    }

    /// True for queue pairs of reliable connected service.
    const fn is_rc(self) -> bool {
        matches!(self, Self::RcWrite | Self::RcSend)
    }
}

/// One end of the connection.
#[derive(Debug)]
pub struct End {
    /// Queue pair.
    pub qp: Qp,
    cq: Cq,
    buffer: RegisteredBuffer,
    token: u32,
    connector: Option<Connector>,
}

type CallbackResults<T> = Arc<Mutex<Option<T>>>;

fn store_result<T: Send + 'static>(
    callback_result: &CallbackResults<T>,
) -> impl Fn(T) + Send + Sync + 'static {
    let callback_result = callback_result.clone();
    move |value| *callback_result.lock().unwrap_or_else(PoisonError::into_inner) = Some(value)
}

fn wait<T>(callback_result: &CallbackResults<T>, step: &mut dyn FnMut(), what: &str) -> T {
    for _ in 0..IDLE_STEPS_MAX {
        if let Some(value) = callback_result.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return value;
        }
        step();
    }
    panic!("{what} does not end");
}

/// Asserts SUCCESS, returned immediately or by the callback.
fn settle(
    inline: NtStatus,
    callback_result: &CallbackResults<NtStatus>,
    step: &mut dyn FnMut(),
    what: &str,
) {
    let status =
        if inline == NtStatus::PENDING { wait(callback_result, step, what) } else { inline };
    assert_eq!(status, NtStatus::SUCCESS, "{what}");
}

impl End {
    fn new(adapter: &Adapter, operation: Operation, buffer_bytes: usize) -> Result<Self, NtStatus> {
        let cq = adapter.create_cq(4 * DEPTH_SMALL as u32, |_| {})?;
        let pd = adapter.create_pd()?;
        let limits = QpLimits::default();
        let qp = match operation.is_rc() {
            true => pd.create_rc_qp(&cq, &cq, 0, limits)?,
            false => pd.create_qp(&cq, &cq, 0, limits)?,
        };
        let mr = pd.create_mr(false)?;
        let buffer = adapter.allocate(buffer_bytes)?;
        qp.allow_extensions(true)?;
        let rights = MrFlags::ALLOW_LOCAL_WRITE
            | MrFlags::ALLOW_REMOTE_READ
            | MrFlags::ALLOW_REMOTE_WRITE
            | MrFlags::ALLOW_REMOTE_ATOMIC;
        mr.register(&buffer, 0, buffer_bytes, rights)?;
        Ok(Self { qp, cq, buffer, token: mr.local_token(), connector: None })
    }

    fn sge(&self, bytes: usize) -> Sge {
        Sge { address: self.buffer.address(), length: bytes as u32, token: self.token }
    }
}

/// Connects a queue pair of the first adapter with one of the second, at `server`, for traffic of `operation`. `step`
/// runs both nodes.
///
/// # Errors
/// If an object cannot be created.
///
/// # Panics
/// If a step of the connection fails, or never completes.
pub fn connect(
    adapters: [&Adapter; 2],
    server: SocketAddr,
    (operation, buffer_bytes): (Operation, usize),
    step: &mut dyn FnMut(),
) -> Result<[End; 2], NtStatus> {
    let mut near = End::new(adapters[0], operation, buffer_bytes)?;
    let mut far = End::new(adapters[1], operation, buffer_bytes)?;
    let incoming = CallbackResults::<Connector>::default();
    let listener = adapters[1].create_listener(store_result(&incoming))?;
    let callback_result = CallbackResults::<NtStatus>::default();
    settle(
        listener.listen(server, store_result(&callback_result)),
        &callback_result,
        step,
        "listen",
    );
    let connector = adapters[0].create_connector()?;
    let connecting = CallbackResults::<NtStatus>::default();
    let inline = connector.connect(&near.qp, None, server, LIMITS, &[], store_result(&connecting));
    let passive = wait(&incoming, step, "the request");
    let accepting = CallbackResults::<NtStatus>::default();
    let accepted = passive.accept(&far.qp, LIMITS, &[], None, store_result(&accepting));
    settle(inline, &connecting, step, "connect");
    settle(
        connector.complete_connect(None, store_result(&callback_result)),
        &callback_result,
        step,
        "complete",
    );
    settle(accepted, &accepting, step, "accept");
    near.connector = Some(connector);
    far.connector = Some(passive);
    Ok([near, far])
}

/// Requests of one kind and size.
#[derive(Debug)]
pub struct Traffic {
    ends: [End; 2],
    operation: Operation,
    bytes: usize,
    posted: u64,
    done: u64,
    received: u64,
    idle_turns: u64,
}

impl Traffic {
    /// Creates traffic of `bytes` per request, from the first to the second of `ends`.
    pub fn new(ends: [End; 2], operation: Operation, bytes: usize) -> Self {
        let traffic =
            Self { ends, operation, bytes, posted: 0, done: 0, received: 0, idle_turns: 0 };
        if operation.is_received() {
            for _ in 0..2 * traffic.depth() {
                traffic.post_receive();
            }
        }
        traffic
    }

    fn post_receive(&self) {
        let end = &self.ends[1];
        end.qp.receive(0, &[end.sge(self.bytes)]).expect("a receive");
    }

    /// A request may complete long before its receive does, so there are no more requests than receives.
    fn has_room(&self) -> bool {
        let is_taken =
            !self.operation.is_received() || self.posted < self.received + 2 * self.depth();
        self.posted < self.done + self.depth() && is_taken
    }

    const fn depth(&self) -> u64 {
        if self.bytes <= SMALL_BYTES { DEPTH_SMALL } else { DEPTH }
    }

    /// Posts another request; at most 64 are outstanding.
    pub fn post(&mut self) {
        self.post_with(OpFlags::empty());
    }

    /// Posts `count` requests that are sent together.
    pub fn post_together(&mut self, count: u64) {
        (1..count).for_each(|_| self.post_with(OpFlags::DEFER));
        self.post();
    }

    fn post_with(&mut self, flags: OpFlags) {
        let [near, far] = &self.ends;
        let sge = [near.sge(self.bytes)];
        let (address, token) = (far.buffer.address(), far.token);
        let data = Data::Registered(&sge);
        match self.operation {
            Operation::Write | Operation::RcWrite => {
                near.qp.write(self.posted, data, address, token, flags)
            }
            Operation::Send | Operation::RcSend => near.qp.send(self.posted, data, flags),
            Operation::Read => near.qp.read(self.posted, &sge, address, token, flags),
            Operation::FetchAdd => near.qp.fetch_add(self.posted, sge[0], address, token, 1, flags),
            Operation::Immediate => {
                near.qp.immediate(self.posted, self.posted.to_be_bytes(), flags)
            }
        }
        .expect("a post");
        self.posted += 1;
    }

    /// Polls completions. True if there were any.
    fn take(&mut self, index: usize) -> bool {
        let mut results = [NdkResultEx::default(); DEPTH_SMALL as usize];
        let count = self.ends[index].cq.poll_ex(&mut results);
        for result in &results[..count] {
            assert_eq!(result.status, NtStatus::SUCCESS, "{result:?}");
            let is_immediate = result.operation == OperationType::ReceiveImmediate;
            if is_immediate || result.operation == OperationType::Receive {
                let bytes = if is_immediate { 0 } else { self.bytes };
                assert_eq!(result.bytes_transferred as usize, bytes);
                self.received += 1;
                self.post_receive();
            } else {
                assert_eq!(result.request_context, self.done, "in the order of the posts");
                self.done += 1;
            }
        }
        count > 0
    }

    /// Polls the completions of requests, and returns their number.
    ///
    /// # Panics
    /// If a request has failed.
    pub fn take_completions(&mut self) -> u64 {
        let before = self.done;
        while self.take(0) {}
        self.done - before
    }

    /// Transfers `messages` more, keeping the queue full, and waits for all of them. `step` runs both nodes.
    ///
    /// # Panics
    /// As [`Traffic::finish`].
    pub fn run(&mut self, messages: u64, step: &mut dyn FnMut()) {
        let end = self.posted + messages;
        while self.posted < end {
            while self.posted < end && self.has_room() {
                self.post();
            }
            self.turn(step);
        }
        self.finish(step);
    }

    /// Waits for all posted requests.
    ///
    /// # Panics
    /// If a request fails, or no completion arrives.
    pub fn finish(&mut self, step: &mut dyn FnMut()) {
        let receives = if self.operation.is_received() { self.posted } else { 0 };
        while self.done < self.posted || self.received < receives {
            self.turn(step);
        }
    }

    fn turn(&mut self, step: &mut dyn FnMut()) {
        let took = self.take(0) | self.take(1);
        self.idle_turns = if took { 0 } else { self.idle_turns + 1 };
        assert!(self.idle_turns < IDLE_STEPS_MAX, "{self:?} is stuck");
        step();
    }
}
