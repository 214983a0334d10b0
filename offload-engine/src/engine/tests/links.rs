//! Duties of the engine toward a link: one flush after each batch, return of buffers, and no change of memory while it
//! is borrowed.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{
    terminate::{object, terminate_tree},
    *,
};
use crate::{
    link::{
        TxLoan,
        wrapper::{LinkWrapper, wraps},
    },
    memory::{Piece, SharedSpan, Span, to_vec},
};

/// Device with rings, controlled by the test.
#[derive(Default)]
struct Device {
    /// Received frames in buffers of the device.
    arriving: VecDeque<Bytes>,
    /// Frames queued until the next flush.
    queued: Vec<Posted>,
    /// Frames sent and not completed: the device may still read them.
    sent: Vec<Posted>,
    flushes: usize,
    full: bool,
    /// True if sent frames complete at the next receive.
    completes: bool,
}

struct Posted {
    head: Vec<u8>,
    payload: TxLoan,
}

impl Posted {
    fn frame(&self) -> Vec<u8> {
        let payload = self.payload.pieces().iter().map(Span::piece);
        to_vec([Piece::Private(&self.head)].into_iter().chain(payload))
    }
}

struct Ring(TestLink, Arc<Mutex<Device>>);

impl LinkWrapper for Ring {
    wraps!(TestLink, 0);

    fn receive(&mut self, _now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        let mut device = self.1.lock().unwrap();
        if device.completes {
            device.sent.clear();
        }
        let before = batch.len();
        while !batch.is_full()
            && let Some(frame) = device.arriving.pop_front()
        {
            assert!(batch.push_lent(frame, RxChecksum::Valid, 0));
        }
        Ok(batch.len() - before)
    }

    fn transmit(&mut self, _now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        let mut device = self.1.lock().unwrap();
        if device.full {
            return TxOutcome::Full;
        }
        let mut payload = TxLoan::default();
        frame.lend(&mut payload);
        device.queued.push(Posted { head: frame.head.to_vec(), payload });
        TxOutcome::Sent
    }

    fn flush(&mut self, _now: Instant) {
        let device = &mut *self.1.lock().unwrap();
        device.flushes += 1;
        device.sent.append(&mut device.queued);
    }
}

/// Creates a bench on such a device, and a connection on port 80 with handle 7.
fn bench() -> (Bench, Arc<Mutex<Device>>, crate::chimney::tree::TargetContext) {
    let device = Arc::<Mutex<Device>>::default();
    let link = Box::new(Ring(TestLink(Arc::default()), device.clone()));
    let mut bench = Bench::on(link, Arc::default(), EngineConfig::new(OURS));
    let (_, _, tcps) = bench.offload(&[80]);
    let mut made = device.lock().unwrap();
    assert!(made.queued.is_empty());
    (made.flushes, made.sent) = (0, Vec::new());
    drop(made);
    (bench, device, tcps[0])
}

/// Memory that counts when it is freed.
struct Owned(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

fn owned(data: &[u8]) -> (Bytes, Arc<AtomicUsize>) {
    let freed = Arc::<AtomicUsize>::default();
    (Bytes::from_owner(Owned(data.to_vec(), freed.clone())), freed)
}

impl Bench {
    fn send(&mut self, context: u64, data: impl Into<Span>) {
        let chain = NblChain::from([NetBufferList::from_mdl(context, data)]);
        let handle = OffloadHandle(80);
        self.engine.connections().get(self.now, handle).expect("offloaded").send(chain);
    }

    fn completed(&mut self) -> Vec<(u64, NdisStatus)> {
        let completed = core::mem::take(&mut self.client().completed);
        completed.into_iter().map(|list| (list.context, list.status)).collect()
    }
}

impl Device {
    /// Adds a received frame.
    fn arrives(&mut self, frame: &[u8]) -> Arc<AtomicUsize> {
        let (frame, freed) = owned(frame);
        self.arriving.push_back(frame);
        freed
    }
}

// Each batch ends with one flush. Sources of batches are a poll, an interrupted poll, a flush from outside, the host's
// frames, and a device that is no longer full.
#[test]
fn batch_ends_with_one_flush() {
    let (mut bench, device, _) = bench();
    let flushed = |frames: usize| {
        let device = &mut *device.lock().unwrap();
        assert!(device.queued.is_empty(), "no flush");
        assert_eq!(device.sent.len(), frames);
        device.sent.clear();
        core::mem::take(&mut device.flushes)
    };
    bench.poll();
    assert_eq!(flushed(0), 0, "nothing to send");

    bench.send(1, vec![1; 4 * 1460]);
    bench.poll();
    assert_eq!(flushed(4), 1);

    bench.send(2, vec![2; 2 * 1460]);
    bench.engine.flush(bench.now, &mut bench.clients);
    assert_eq!(flushed(2), 1);

    for _ in 0..3 {
        bench.port.to_engine.send(FromHost::Frame(vec![0; 60])).unwrap();
    }
    bench.poll();
    assert_eq!(flushed(3), 1);

    // All data is acknowledged. Next, a small frame is answered before the next one is read.
    device.lock().unwrap().arrives(&from_peer(80, 5000, 1000 + 6 * 1460, b""));
    bench.poll();
    assert_eq!(flushed(0), 0);
    bench.port.to_engine.send(FromHost::Frame(vec![0; 60])).unwrap();
    let question = from_peer(80, 5000, 1000 + 6 * 1460, b"question");
    let freed = device.lock().unwrap().arrives(&question);
    assert!(bench.engine.poll_first_frame(bench.now, &mut bench.clients).unwrap());
    assert!(bench.engine.has_batch_left());
    assert_eq!(freed.load(Ordering::Relaxed), 1, "its buffer is returned before the next receive");
    assert_eq!(flushed(1), 1, "frames sent before the interruption");

    device.lock().unwrap().full = true;
    bench.send(3, vec![3; 1460]);
    bench.poll();
    assert!(bench.engine.awaits_writable());
    flushed(0);
    device.lock().unwrap().full = false;
    bench.poll();
    assert_eq!(flushed(1), 1);
}

// A frame is read in place, and its buffer is returned after the poll. Part of a large frame may be kept.
#[test]
fn lent_buffers_are_read_in_place_and_returned() {
    let (mut bench, device, _) = bench();
    const HEADERS: usize = 54;
    let arrive = |data: &[u8], seq: u32| {
        let mut device = device.lock().unwrap();
        let freed = device.arrives(&from_peer(80, seq, 1000, data));
        (device.arriving.back().unwrap().as_ptr() as usize + HEADERS, freed)
    };
    let small = [arrive(b"abc", 5000), arrive(b"defgh", 5003)];
    let (large_place, large) = arrive(&[9; 40_000], 5008);
    let other = device.lock().unwrap().arrives(&from_peer(81, 1, 1, b"the host's"));
    bench.poll();
    let expected = [small[0].0, small[1].0, large_place];
    assert_eq!(bench.client().places, expected);
    assert_eq!(bench.client().received[..8], *b"abcdefgh");
    assert_eq!(bench.client().received.len(), 40_008);
    for (_, freed) in &small {
        assert_eq!(freed.load(Ordering::Relaxed), 1);
    }
    assert_eq!(other.load(Ordering::Relaxed), 1);

    let kept = core::mem::take(&mut bench.client().kept);
    let [piece] = &kept[..] else { panic!("only the large frame is kept") };
    assert_eq!((piece.as_ptr() as usize, large.load(Ordering::Relaxed)), (large_place, 0));
    assert!(piece.iter().all(|byte| *byte == 9));
    drop(kept);
    assert_eq!(large.load(Ordering::Relaxed), 1);
}

// Payload is borrowed in place. Until the device returns it, no completion permits writing it, even if the peer has
// acknowledged it. Data sent meanwhile does not extend the delay.
#[test]
fn completions_are_withheld_until_device_returns_payload() {
    let (mut bench, device, _) = bench();
    let (memory, freed) = owned(&[5; 2000]);
    let place = memory.as_ptr() as usize;
    bench.send(1, memory.slice(100..1900));
    drop(memory);
    bench.poll();
    let sent = core::mem::take(&mut device.lock().unwrap().sent);
    let pieces: Vec<(usize, usize)> = sent
        .iter()
        .flat_map(|posted| posted.payload.pieces())
        .map(|piece| (piece.as_ptr() as usize - place, piece.len()))
        .collect();
    assert_eq!(pieces, [(100, 1460), (1560, 340)]);
    let frames: Vec<Vec<u8>> = sent.iter().map(Posted::frame).collect();
    assert!(frames.iter().all(|frame| classify(frame).is_some_and(|tcp| tcp.checksum_is_valid())));

    bench.send(2, vec![6; 100]);
    bench.poll();
    device.lock().unwrap().arrives(&from_peer(80, 5000, 1000 + 1900, b"data"));
    bench.poll();
    assert_eq!(bench.client().received, b"data", "reception continues");
    assert_eq!(bench.completed(), []);
    assert!(!bench.engine.has_input(), "no work until the device completes");
    // The tail of a message must not be copied to complete it.
    let (now, handle) = (bench.now, OffloadHandle(80));
    assert!(!bench.engine.connections().get(now, handle).unwrap().detach_tail(usize::MAX));
    // The first list waits for the loans made before it was acknowledged, not for later ones.
    device.lock().unwrap().sent.drain(..).for_each(|mut posted| posted.payload.end());
    bench.send(3, vec![7; 100]);
    bench.poll();
    assert_eq!(bench.completed(), []);

    let kept = frames.iter().zip(&sent).all(|(before, posted)| posted.frame() == *before);
    assert!(kept, "the memory is unchanged");
    assert_eq!(freed.load(Ordering::Relaxed), 0);
    drop(sent);
    assert!(bench.engine.has_input(), "the sleep ends");
    assert!(bench.poll());
    let success = NdisStatus::SUCCESS;
    assert_eq!(bench.completed(), [(1, success), (2, success)]);
    assert_eq!(freed.load(Ordering::Relaxed), 1);

    device.lock().unwrap().sent.clear();
    device.lock().unwrap().arrives(&from_peer(80, 5004, 1000 + 2000, b""));
    bench.poll();
    assert_eq!(bench.completed(), [(3, success)]);
    bench.poll();
    assert!(!bench.engine.has_input());
    assert!(bench.engine.connections().get(now, handle).unwrap().detach_tail(usize::MAX));
}

// Shared memory withdrawn by its owner is released by TCP, and by the device after completion.
#[test]
fn withdrawn_memory_is_released_by_tcp_and_device() {
    let (mut bench, device, _) = bench();
    let owner = Arc::new(());
    let memory = SharedSpan::allocate(2000, 64).unwrap();
    memory.write(0, &[5; 2000]);
    let registered = memory.under(owner.clone());
    bench.send(1, registered.clone());
    bench.poll();
    registered.withdraw();
    drop(registered);
    let (now, handle) = (bench.now, OffloadHandle(80));
    bench.engine.connections().get(now, handle).unwrap().detach_withdrawn();
    assert_eq!(Arc::strong_count(&owner), 2, "the device reads it");
    let frames = |device: &Device| device.sent.iter().map(Posted::frame).collect::<Vec<_>>();
    let first = frames(&device.lock().unwrap());
    device.lock().unwrap().sent.clear();
    assert_eq!(Arc::strong_count(&owner), 1);
    memory.write(0, &[0; 2000]);
    // Nothing is acknowledged: the same bytes are retransmitted from a copy.
    while frames(&device.lock().unwrap()).is_empty() {
        bench.now = bench.engine.poll_at(&bench.clients).expect("a timer");
        bench.poll();
    }
    let again = frames(&device.lock().unwrap());
    let data = |frame: &Vec<u8>| (tcp_of(frame).0, tcp_of(frame).2);
    assert!(again.iter().all(|frame| first.iter().any(|it| data(it) == data(frame))));
}

// The reset of a connection and its completions are withheld too, in the same order as without loans.
#[test]
fn reset_is_withheld_until_device_returns_payload() {
    let reset = |lends: bool| {
        let (mut bench, device, _) = bench();
        let (memory, freed) = owned(&[5; 3000]);
        bench.send(1, memory);
        bench.poll();
        let sent = core::mem::take(&mut device.lock().unwrap().sent);
        let held = lends.then_some(sent);
        let segment = peer_segment(80, 5000, 0, TcpBuilder::rst, b"");
        device.lock().unwrap().arrives(&segment);
        bench.poll();
        assert_eq!(bench.client().completed.is_empty(), lends);
        assert_eq!(bench.client().events.is_empty(), lends);
        assert_eq!(freed.load(Ordering::Relaxed), 0);
        drop(held);
        while bench.engine.has_input() {
            bench.poll();
        }
        let completed = bench.completed();
        assert_eq!(freed.load(Ordering::Relaxed), 1);
        assert!(bench.engine.connections().is_empty());
        (completed, core::mem::take(&mut bench.client().events))
    };
    assert_eq!(reset(true), reset(false));
    let (completed, events) = reset(true);
    assert_eq!(completed, [(1, NdisStatus::REQUEST_ABORTED)]);
    assert_eq!(events, [ConnectionEvent::Abort, ConnectionEvent::Released]);
}

// CH-TRM-5: lists are uploaded with the state, so the terminate is delayed too, and later messages of the host after
// it.
#[test]
fn terminate_is_delayed_until_device_returns_payload() {
    let (mut bench, device, context) = bench();
    bench.send(1, vec![5; 3000]);
    bench.poll();
    bench.host_messages();
    let sent = core::mem::take(&mut device.lock().unwrap().sent);
    bench.port.terminate(terminate_tree(None, None, &[context]));
    bench.port.to_engine.send(FromHost::Frame(vec![0; 60])).unwrap();
    bench.send(2, vec![6; 100]);
    bench.poll();
    assert!(bench.host_messages().is_empty());
    assert!(device.lock().unwrap().sent.is_empty(), "nothing more is borrowed");
    assert!(!bench.engine.has_input());

    drop(sent);
    assert!(bench.engine.has_input());
    bench.poll();
    let messages = bench.host_messages().into_iter().find_map(|message| match message {
        ToHost::TerminateComplete(tree) => Some(object(tree)),
        _ => None,
    });
    let object = messages.expect("a state");
    assert_eq!(object.send_data.iter().map(|list| list.context).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(device.lock().unwrap().sent.len(), 1, "the frame of the host");
    bench.poll();
    assert!(!bench.engine.has_input());
}

// The device completes after the engine has checked the terminate. The engine checks again before it sleeps.
#[test]
fn completion_after_poll_is_detected_before_sleep() {
    let (mut bench, device, context) = bench();
    bench.send(1, vec![5; 3000]);
    bench.poll();
    bench.host_messages();
    bench.port.terminate(terminate_tree(None, None, &[context]));
    bench.poll();
    device.lock().unwrap().completes = true;
    let mut polls = 1;
    while bench.poll() || bench.engine.has_input() {
        polls += 1;
    }
    assert!(polls < 10, "{polls}");
    assert!(
        bench.host_messages().iter().any(|message| matches!(message, ToHost::TerminateComplete(_)))
    );
    assert!(bench.engine.connections().is_empty());
}

// Payload without a lender is copied. The loans of a link remain readable after its engine was dropped.
#[test]
fn loan_outlives_its_engine() {
    let (mut bench, device, _) = bench();
    bench.port.to_engine.send(FromHost::Frame(vec![1; 60])).unwrap();
    bench.send(1, vec![5; 100]);
    bench.poll();
    drop(bench);
    let device = device.lock().unwrap();
    let frames: Vec<Vec<u8>> = device.sent.iter().map(Posted::frame).collect();
    assert_eq!(frames[0], [1; 60]);
    assert_eq!(tcp_of(&frames[1]).2, [5; 100]);

    let mut loan = TxLoan::default();
    let payload = [Piece::Private(b"ab"), Piece::Private(b"c")];
    let offload = crate::link::TxOffload::default();
    let frame = TxFrame { offload, head: b"head", payload: &payload, lender: None, comment: None };
    frame.lend(&mut loan);
    assert_eq!(to_vec(loan.pieces().iter().map(Span::piece)), b"abc");
    loan.end();
    assert!(loan.pieces().is_empty());
}
