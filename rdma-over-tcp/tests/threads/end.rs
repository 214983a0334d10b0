//! One end of a queue pair's connection: fills memory, sends it, writes it to the peer, reads the peer's, and checks
//! the same operations of the peer.

use std::{net::SocketAddr, sync::Arc};

use host_stack::{node::Node, socket::Request, stream::OffloadState};
use offload_engine::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};
use rdma_over_tcp::ndk::{
    Adapter, AdapterCore, Connector, Cq, CqNotify, Data, MrFlags, NdkResultEx, NtStatus, OpFlags,
    OperationType, Qp, QpLimits, ReadLimit, RegisteredBuffer, Sge,
};

/// Bytes of a message, and of the Write in the same round: more than a segment.
const LENGTH: usize = 5_000;
/// Offsets in the one buffer of an end.
const SEND_AT: usize = 0;
const RECEIVE_AT: usize = LENGTH;
const TARGET_AT: usize = 3 * LENGTH;
const READ_AT: usize = 4 * LENGTH;
/// Bytes of memory written while it is sent: more than is copied aside.
const RACE: usize = 60_000;
const RACE_AT: usize = 5 * LENGTH;
/// Offset of memory read while the peer writes it.
const CONCURRENT_READ_AT: usize = RACE_AT + RACE;
const BUFFER: usize = CONCURRENT_READ_AT + RACE;
/// Writes and Reads of that memory.
pub(crate) const RACES: u32 = 12;
/// Last message of a round, and of the last round.
const MORE: &[u8; 4] = b"more";
const LAST: &[u8; 4] = b"last";
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const LIMITS: ReadLimit = ReadLimit { inbound: 4, outbound: 4 };

pub(crate) type TestNode = Node<AdapterCore>;

/// Results of callbacks for the thread of an end.
#[derive(Default)]
pub(crate) struct CallbackResults {
    pub(crate) status: Mutex<Option<NtStatus>>,
    notified: AtomicBool,
    /// Callbacks of this end in progress: at most one.
    running: AtomicU32,
}

impl CallbackResults {
    pub(crate) fn callback(self: &Arc<Self>) -> impl FnOnce(NtStatus) + Send + 'static {
        let callbacks = self.clone();
        move |status| *callbacks.status.lock() = Some(status)
    }
}

/// One end of a connection.
pub(crate) struct End {
    adapter: Adapter,
    pub(crate) callbacks: Arc<CallbackResults>,
    pub(crate) cq: Cq,
    pub(crate) qp: Qp,
    buffer: RegisteredBuffer,
    token: u32,
    /// Address and token of the peer's memory.
    peer: (u64, u32),
    sends: u32,
    writes: u32,
    reads: u32,
    receives: u32,
}

fn pattern(round: u32, index: usize) -> u8 {
    (round as usize * 31 + index * 7) as u8
}

impl End {
    pub(crate) fn new(adapter: &Adapter) -> Self {
        let callbacks = Arc::new(CallbackResults::default());
        let of_cq = callbacks.clone();
        let notification = move |status| {
            // NDK-CQ-3
            assert_eq!(of_cq.running.fetch_add(1, Ordering::Relaxed), 0);
            assert_eq!(status, NtStatus::SUCCESS);
            of_cq.notified.store(true, Ordering::Relaxed);
            of_cq.running.fetch_sub(1, Ordering::Relaxed);
        };
        let cq = adapter.create_cq(64, notification).unwrap();
        let pd = adapter.create_pd().unwrap();
        let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default()).unwrap();
        let mr = pd.create_mr(false).unwrap();
        let buffer = adapter.allocate(BUFFER).unwrap();
        let rights =
            MrFlags::ALLOW_LOCAL_WRITE | MrFlags::ALLOW_REMOTE_READ | MrFlags::ALLOW_REMOTE_WRITE;
        mr.register(&buffer, 0, BUFFER, rights).unwrap();
        let token = mr.local_token();
        let end = Self {
            adapter: adapter.clone(),
            callbacks,
            cq,
            qp,
            buffer,
            token,
            peer: (0, 0),
            sends: 0,
            writes: 0,
            reads: 0,
            receives: 0,
        };
        // The peer is at most one message ahead.
        for slot in 0..2 {
            end.post_receive(slot);
        }
        end
    }

    fn sge(&self, offset: usize) -> Sge {
        let address = self.buffer.address() + offset as u64;
        Sge { address, length: LENGTH as u32, token: self.token }
    }

    fn post_receive(&self, slot: u32) {
        let offset = RECEIVE_AT + slot as usize % 2 * LENGTH;
        self.qp.receive(u64::from(slot), &[self.sge(offset)]).unwrap();
    }

    pub(crate) fn wait<T>(&self, what: &str, f: impl FnMut() -> Option<T>) -> T {
        self.adapter.wait_until(Some(LIMIT), f).unwrap_or_else(|error| panic!("{what}: {error}"))
    }

    /// Waits for the status of a request.
    pub(crate) fn status(&self, what: &str, inline: NtStatus) {
        if inline == NtStatus::PENDING {
            let later = self.wait(what, || self.callbacks.status.lock().take());
            assert_eq!(later, NtStatus::SUCCESS, "{what}");
        } else {
            assert_eq!(inline, NtStatus::SUCCESS, "{what}");
        }
    }

    pub(crate) fn connect(&self, connector: &Connector, remote: SocketAddr) {
        let status =
            connector.connect(&self.qp, None, remote, LIMITS, &[], self.callbacks.callback());
        self.status("connect", status);
        self.status("complete", connector.complete_connect(None, self.callbacks.callback()));
    }

    /// Polls completions until `is_enough`; arms and waits when there are none.
    fn complete(&mut self, is_enough: impl Fn(&Self) -> bool) {
        while !is_enough(self) {
            let mut results = [NdkResultEx::default(); 4];
            let count = self.cq.poll_ex(&mut results);
            for result in &results[..count] {
                assert_eq!(result.status, NtStatus::SUCCESS, "{result:?}");
                match result.operation {
                    OperationType::Receive => self.receives += 1,
                    OperationType::Send => self.sends += 1,
                    OperationType::Write => self.writes += 1,
                    OperationType::Read => self.reads += 1,
                    other => panic!("{other:?}"),
                }
            }
            if count == 0 {
                self.cq.arm(CqNotify::Any);
                let notified =
                    || self.callbacks.notified.swap(false, Ordering::Relaxed).then_some(());
                self.wait("a notification", notified);
            }
        }
    }

    fn check(&self, round: u32, offset: usize) {
        let mut data = vec![0; LENGTH];
        self.buffer.read_at(offset, &mut data);
        let wrong = data.iter().enumerate().position(|(at, byte)| *byte != pattern(round, at));
        assert_eq!(wrong, None, "round {round}, {offset}");
    }

    /// Sends the address and token of this end's memory, in the first message.
    fn send_advert(&mut self) {
        let mut advert = [0; 12];
        advert[..8].copy_from_slice(&self.buffer.address().to_be_bytes());
        advert[8..].copy_from_slice(&self.token.to_be_bytes());
        self.qp.send(0, Data::Inline(&[&advert]), OpFlags::empty()).unwrap();
        self.complete(|end| end.receives >= 1 && end.sends == 1);
        let mut theirs = [0; 12];
        self.buffer.read_at(RECEIVE_AT, &mut theirs);
        let (address, token) = theirs.split_at(8);
        self.peer = (
            u64::from_be_bytes(address.try_into().unwrap()),
            u32::from_be_bytes(token.try_into().unwrap()),
        );
        self.post_receive(2);
    }

    /// One round. Memory is filled, written to the peer and sent. The peer's data is checked where it was placed, and
    /// the data it has sent is read from its memory. A last message reports that all is done, so that memory may be
    /// refilled, and if it was the last round. Returns true for the last round.
    fn round(&mut self, round: u32, is_last: bool) -> bool {
        let data: Vec<u8> = (0..LENGTH).map(|at| pattern(round, at)).collect();
        self.buffer.write_at(SEND_AT, &data);
        let (address, token) = self.peer;
        let sge = [self.sge(SEND_AT)];
        let target = address + TARGET_AT as u64;
        self.qp.write(1, Data::Registered(&sge), target, token, OpFlags::empty()).unwrap();
        self.qp.send(2, Data::Registered(&sge), OpFlags::empty()).unwrap();
        self.complete(|end| end.receives >= 2 * round);
        self.check(round, RECEIVE_AT + (2 * round as usize - 1) % 2 * LENGTH);
        self.check(round, TARGET_AT);
        self.post_receive(2 * round + 1);
        let source = address + SEND_AT as u64;
        self.qp.read(3, &[self.sge(READ_AT)], source, token, OpFlags::empty()).unwrap();
        self.complete(|end| end.reads == round);
        self.check(round, READ_AT);
        let word = if is_last { LAST } else { MORE };
        self.qp.send(4, Data::Inline(&[word]), OpFlags::empty()).unwrap();
        // The peer's next message may have arrived already.
        self.complete(|end| end.receives > 2 * round && end.sends > 2 * round);
        assert_eq!((self.sends, self.writes), (2 * round + 1, round));
        let mut theirs = [0; 4];
        self.buffer.read_at(RECEIVE_AT, &mut theirs);
        assert!([MORE, LAST].contains(&&theirs), "{theirs:?}");
        self.post_receive(2 * round + 2);
        is_last || theirs == *LAST
    }

    /// Memory that is written while it is sent and while the peer reads it, and read while the peer writes it: always
    /// with the same bytes, otherwise CRCs would not match.
    pub(crate) fn race(mut self) -> u32 {
        self.send_advert();
        let data: Vec<u8> = (0..RACE).map(|at| pattern(1, at) | 1).collect();
        self.buffer.write_at(RACE_AT, &data);
        let is_over = Arc::<AtomicBool>::default();
        let racer = {
            let (buffer, data, is_over) = (self.buffer.clone(), data.clone(), is_over.clone());
            std::thread::spawn(move || {
                let mut seen = vec![0; RACE];
                while !is_over.load(Ordering::Relaxed) {
                    buffer.write_at(RACE_AT, &data);
                    buffer.read_at(CONCURRENT_READ_AT, &mut seen);
                    assert!(seen.iter().zip(&data).all(|(seen, byte)| [0, *byte].contains(seen)));
                }
            })
        };
        // From here on the peer may read.
        self.qp.send(2, Data::Inline(&[b"filled"]), OpFlags::empty()).unwrap();
        self.complete(|end| end.receives >= 2);
        let (address, token) = self.peer;
        let source = [Sge { length: RACE as u32, ..self.sge(RACE_AT) }];
        for round in 1..=RACES {
            let target = address + CONCURRENT_READ_AT as u64;
            self.qp.write(1, Data::Registered(&source), target, token, OpFlags::empty()).unwrap();
            let theirs = address + RACE_AT as u64;
            self.qp.read(3, &[self.sge(READ_AT)], theirs, token, OpFlags::empty()).unwrap();
            self.complete(|end| end.writes == round && end.reads == round);
        }
        self.qp.send(4, Data::Inline(&[b"done"]), OpFlags::empty()).unwrap();
        self.complete(|end| end.receives == 3 && end.sends == 3);
        is_over.store(true, Ordering::Relaxed);
        racer.join().unwrap();
        let mut placed = vec![0; RACE];
        self.buffer.read_at(CONCURRENT_READ_AT, &mut placed);
        assert!(placed == data);
        self.receives + self.reads + self.sends + self.writes
    }

    /// Runs rounds until `is_last` returns true, at either end. Returns the completions.
    pub(crate) fn run(mut self, mut is_last: impl FnMut(u32) -> bool) -> u32 {
        self.send_advert();
        let mut round = 1;
        while !self.round(round, is_last(round)) {
            round += 1;
        }
        self.receives + self.reads + self.sends + self.writes
    }
}

/// Requests the move of all connections of a node, and waits until they are complete.
pub(crate) fn move_connections(node: &TestNode, to: OffloadState) {
    loop {
        let rows = node.list(LIMIT).unwrap();
        let mut left = rows.iter().filter(|row| row.remote.is_some() && row.offload != to);
        let Some(first) = left.next() else { return };
        for row in std::iter::once(first).chain(left) {
            let handle = row.handle;
            // A moving connection is requested again after its move.
            match (row.offload, to) {
                (OffloadState::InHost, OffloadState::Offloaded) => {
                    node.request(Request::Offload { handle });
                }
                (OffloadState::Offloaded, OffloadState::InHost) => {
                    node.request(Request::Upload { handle });
                }
                _ => {}
            }
        }
        std::thread::yield_now();
    }
}
