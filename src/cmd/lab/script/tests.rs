use proptest::prelude::*;
use sha2::Digest as _;

use super::*;

const SOURCE: Remote = Remote { address: 0x10_0000, token: 0xa1 };
const SINK: Remote = Remote { address: 0x20_0000, token: 0xb2 };

fn hash(octets: &[u8]) -> Digest {
    sha2::Sha256::digest(octets).into()
}

/// Seeded random choice, so that a failing case repeats.
struct Choice(u64);

impl Choice {
    fn below(&mut self, bound: usize) -> usize {
        // xorshift64; the state is never zero.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// Message between the nodes.
enum InFlightMessage {
    Control([u8; CONTROL_BYTES]),
    Data(Vec<u8>),
    Write { at: usize, octets: Vec<u8> },
    ReadRequest { from: usize, to: Chunk },
    ReadResponse { to: Chunk, octets: Vec<u8> },
}

enum Posted {
    Control,
    Data(Chunk),
}

/// Two state machines, their memories, and the messages between them.
struct TestBench {
    a: Initiator,
    b: Target,
    file: Vec<u8>,
    sink: Vec<u8>,
    to_a: VecDeque<InFlightMessage>,
    to_b: VecDeque<InFlightMessage>,
    /// Requests sent by A whose completion was not delivered.
    a_done: usize,
    /// Requests of B in order; true if complete.
    b_done: VecDeque<bool>,
    a_controls: usize,
    b_receives: VecDeque<Posted>,
    /// Transfer in which one byte is corrupted.
    corrupt: Option<TransferKind>,
    passage: Option<TransferKind>,
    verified: Vec<(char, TransferKind)>,
    a_requests: usize,
    b_requests: usize,
    over: [bool; 2],
}

impl TestBench {
    fn new(file: Vec<u8>, chunk: u32, window: u32, depth: u32) -> Self {
        let digest = hash(&file);
        Self {
            a: Initiator::new(file.len() as u64, chunk, depth, SOURCE, digest).unwrap(),
            b: Target::new(window, depth).unwrap(),
            file,
            sink: Vec::new(),
            to_a: VecDeque::new(),
            to_b: VecDeque::new(),
            a_done: 0,
            b_done: VecDeque::new(),
            a_controls: Initiator::receives_before_connect(),
            b_receives: [Posted::Control].into(),
            corrupt: None,
            passage: None,
            verified: Vec::new(),
            a_requests: 0,
            b_requests: 0,
            over: [false; 2],
        }
    }

    fn slice(memory: &[u8], chunk: Chunk) -> Vec<u8> {
        memory[chunk.offset as usize..][..chunk.length as usize].to_vec()
    }

    fn corrupted(&mut self, passage: TransferKind, mut octets: Vec<u8>) -> Vec<u8> {
        if self.corrupt == Some(passage) {
            octets[0] ^= 1;
            self.corrupt = None;
        }
        octets
    }

    /// Executes one work item of A. Returns false if there was none.
    fn step_a(&mut self, depth: u32) -> bool {
        let Some(work) = self.a.poll() else { return false };
        if work.is_request() {
            self.a_done += 1;
            self.a_requests += 1;
            assert!(self.a_done <= depth as usize, "queue depth");
        }
        match work {
            Work::SendControl(control) => {
                self.to_b.push_back(InFlightMessage::Control(control.encode()))
            }
            Work::SendData(chunk) => {
                let octets = Self::slice(&self.file, chunk);
                let octets = self.corrupted(TransferKind::Send, octets);
                self.to_b.push_back(InFlightMessage::Data(octets));
            }
            Work::Write { from, to } => {
                assert_eq!(to.token, SINK.token);
                let octets = Self::slice(&self.file, from);
                let octets = self.corrupted(TransferKind::Write, octets);
                let at = (to.address - SINK.address) as usize;
                self.to_b.push_back(InFlightMessage::Write { at, octets });
            }
            Work::ReceiveControl => self.a_controls += 1,
            Work::Begin(passage) => self.passage = Some(passage),
            Work::End(passage) => assert_eq!(self.passage, Some(passage)),
            Work::Verified(passage, _) => self.verified.push(('a', passage)),
            Work::Done => self.over[0] = true,
            other => panic!("unexpected work of A: {other:?}"),
        }
        true
    }

    fn step_b(&mut self, depth: u32) -> Result<bool, ScriptError> {
        let Some(work) = self.b.poll() else { return Ok(false) };
        if work.is_request() {
            self.b_requests += 1;
            self.b_done.push_back(!matches!(work, Work::Read { .. }));
            assert!(self.b_done.len() <= depth as usize, "queue depth");
        }
        match work {
            Work::Prepare(length) => {
                self.sink = vec![0; length as usize];
                self.b.handle(&Event::Prepared(SINK))?;
            }
            Work::SendControl(control) => {
                self.to_a.push_back(InFlightMessage::Control(control.encode()))
            }
            Work::ReceiveControl => self.b_receives.push_back(Posted::Control),
            Work::ReceiveData(chunk) => self.b_receives.push_back(Posted::Data(chunk)),
            Work::Read { from, to } => {
                assert_eq!(from.token, SOURCE.token);
                let from = (from.address - SOURCE.address) as usize;
                self.to_a.push_back(InFlightMessage::ReadRequest { from, to });
            }
            Work::Hash => {
                let digest = hash(&self.sink);
                self.b.handle(&Event::Hashed(digest))?;
            }
            Work::Clear => self.sink.fill(0),
            Work::Begin(_) | Work::End(_) => {}
            Work::Verified(passage, _) => self.verified.push(('b', passage)),
            Work::Done => self.over[1] = true,
            other => panic!("unexpected work of B: {other:?}"),
        }
        Ok(true)
    }

    fn arrive_at_b(&mut self) -> Result<bool, ScriptError> {
        let Some(flying) = self.to_b.pop_front() else { return Ok(false) };
        match flying {
            InFlightMessage::Control(octets) => match self.b_receives.pop_front() {
                Some(Posted::Control) => self.b.handle(&Event::Control(&octets))?,
                Some(Posted::Data(_)) => panic!("control message into a data receive"),
                None => panic!("no receive posted at B"),
            },
            InFlightMessage::Data(octets) => match self.b_receives.pop_front() {
                Some(Posted::Data(chunk)) => {
                    self.sink[chunk.offset as usize..][..octets.len()].copy_from_slice(&octets);
                    self.b.handle(&Event::Data(octets.len() as u32))?;
                }
                Some(Posted::Control) => panic!("data into a control receive"),
                None => panic!("no receive posted at B"),
            },
            InFlightMessage::Write { at, octets } => {
                self.sink[at..][..octets.len()].copy_from_slice(&octets);
            }
            InFlightMessage::ReadResponse { to, octets } => {
                let octets = self.corrupted(TransferKind::Read, octets);
                self.sink[to.offset as usize..][..octets.len()].copy_from_slice(&octets);
                let oldest =
                    self.b_done.iter_mut().find(|done| !**done).expect("an outstanding read");
                *oldest = true;
            }
            InFlightMessage::ReadRequest { .. } => panic!("A does not read"),
        }
        Ok(true)
    }

    fn arrive_at_a(&mut self) -> Result<bool, ScriptError> {
        let Some(flying) = self.to_a.pop_front() else { return Ok(false) };
        match flying {
            InFlightMessage::Control(octets) => {
                self.a_controls = self.a_controls.checked_sub(1).expect("no receive posted at A");
                self.a.handle(&Event::Control(&octets))?;
            }
            InFlightMessage::ReadRequest { from, to } => {
                let octets = self.file[from..][..to.length as usize].to_vec();
                self.to_b.push_back(InFlightMessage::ReadResponse { to, octets });
            }
            _ => panic!("B sends no data"),
        }
        Ok(true)
    }

    fn complete_a(&mut self) -> Result<bool, ScriptError> {
        if self.a_done == 0 {
            return Ok(false);
        }
        self.a_done -= 1;
        self.a.handle(&Event::RequestDone).map(|()| true)
    }

    fn complete_b(&mut self) -> Result<bool, ScriptError> {
        if self.b_done.front() != Some(&true) {
            return Ok(false);
        }
        self.b_done.pop_front();
        self.b.handle(&Event::RequestDone).map(|()| true)
    }

    /// Runs until no step is possible. A step limit turns a livelock into a failure.
    fn run(&mut self, seed: u64, depth: u32) -> Result<(), ScriptError> {
        let mut choice = Choice(seed | 1);
        for _ in 0..1_000_000 {
            let first = choice.below(6);
            let mut moved = false;
            for turn in 0..6 {
                moved = match (first + turn) % 6 {
                    0 => self.step_a(depth),
                    1 => self.step_b(depth)?,
                    2 => self.arrive_at_a()?,
                    3 => self.arrive_at_b()?,
                    4 => self.complete_a()?,
                    _ => self.complete_b()?,
                };
                if moved {
                    break;
                }
            }
            if !moved {
                return Ok(());
            }
        }
        panic!("livelock");
    }
}

fn file_of(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + index / 251 + 1) as u8).collect()
}

proptest! {
    /// Three transfers in every interleaving, for any sizes: all data arrives, no Send lacks a receive, and the queue
    /// limits hold.
    #[test]
    fn file_is_transferred_three_times(
        length in 1_usize..3000,
        chunk in 1_u32..700,
        window in 1_u32..20,
        depth in 1_u32..10,
        seed in any::<u64>(),
    ) {
        let mut bench = TestBench::new(file_of(length), chunk, window, depth);
        prop_assert_eq!(bench.run(seed, depth), Ok(()));
        prop_assert_eq!(bench.over, [true, true]);
        prop_assert!(bench.file == bench.sink, "sink holds the last transfer");
        for passage in TransferKind::ALL {
            for node in ['a', 'b'] {
                let times = bench.verified.iter().filter(|entry| **entry == (node, passage)).count();
                prop_assert_eq!(times, 1);
            }
        }
        let chunks = length.div_ceil(chunk as usize);
        prop_assert_eq!(bench.a_requests, 2 * chunks + 3, "chunks twice; Hello, Written, Offer");
        // Ready, three times Arrived and Digest, the reads, and the credits.
        prop_assert!(bench.b_requests >= chunks + 7);
        prop_assert!(bench.to_a.is_empty() && bench.to_b.is_empty());
        prop_assert_eq!(bench.a_controls, CONTROL_RECEIVES);
        prop_assert!(bench.b_receives.is_empty(), "unused receives");
    }

    #[test]
    fn corrupted_byte_is_detected(which in 0_usize..3, seed in any::<u64>()) {
        let passage = TransferKind::ALL[which];
        let mut bench = TestBench::new(file_of(500), 64, 4, 4);
        bench.corrupt = Some(passage);
        prop_assert_eq!(bench.run(seed, 4), Err(ScriptError::DigestMismatch(passage)));
        let before = bench.verified.iter().filter(|(node, _)| *node == 'a').count();
        prop_assert_eq!(before, which, "earlier transfers succeed");
    }

    /// Input from a peer never panics, in any state.
    #[test]
    fn arbitrary_message_never_panics(octets in proptest::collection::vec(any::<u8>(), 0..80), kind in 0_u8..9) {
        let mut valid = Control::Arrived.encode();
        let tail = octets.len().min(CONTROL_BYTES - 6);
        valid[6..6 + tail].copy_from_slice(&octets[..tail]);
        valid[5] = kind;
        for bytes in [octets.as_slice(), &valid] {
            let mut target = Target::new(4, 4).unwrap();
            let mut initiator = Initiator::new(10, 4, 4, SOURCE, [0; 32]).unwrap();
            for _ in 0..3 {
                let _ = target.handle(&Event::Control(bytes));
                let _ = initiator.handle(&Event::Control(bytes));
                for _ in 0..50 {
                    let _ = (target.poll(), initiator.poll());
                }
            }
        }
    }
}

#[test]
fn control_messages_round_trip() {
    let memory = Remote { address: u64::MAX - 1, token: 0xdead_beef };
    let messages = [
        Control::Hello { length: FILE_BYTES_MAX, chunk: 7 },
        Control::Ready { sink: memory, credit: 16 },
        Control::Credit { credit: 8 },
        Control::Arrived,
        Control::Digest([7; 32]),
        Control::Written,
        Control::Offer { source: memory },
    ];
    for message in messages {
        assert_eq!(Control::decode(&message.encode()), Ok(message));
    }
    let good = Control::Arrived.encode();
    assert_eq!(Control::decode(&good[..63]), Err(ScriptError::Malformed("length")));
    for (at, what) in [(0, "magic"), (4, "version"), (5, "kind")] {
        let mut bad = good;
        bad[at] = 0xee;
        assert_eq!(Control::decode(&bad), Err(ScriptError::Malformed(what)));
    }
}

#[test]
fn sizes_beyond_limits_are_rejected() {
    let new = |length, chunk| Initiator::new(length, chunk, 1, SOURCE, [0; 32]).err();
    assert_eq!(new(0, 1), Some(ScriptError::Limit("length of the file")));
    assert_eq!(new(FILE_BYTES_MAX + 1, 1), Some(ScriptError::Limit("length of the file")));
    assert_eq!(new(1, 0), Some(ScriptError::Limit("length of a chunk")));
    assert_eq!(new(1, CHUNK_BYTES_MAX + 1), Some(ScriptError::Limit("length of a chunk")));
    assert!(Target::new(0, 1).is_err() && Target::new(WINDOW_RECEIVES_MAX + 1, 1).is_err());
    let mut target = Target::new(1, 1).unwrap();
    let hello = Control::Hello { length: FILE_BYTES_MAX + 1, chunk: 1 }.encode();
    assert_eq!(
        target.handle(&Event::Control(&hello)),
        Err(ScriptError::Limit("length of the file"))
    );
    assert_eq!(target.poll(), None, "no memory is allocated for an oversized file");
}
