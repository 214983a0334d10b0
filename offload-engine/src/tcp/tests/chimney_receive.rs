//! Receive requests, indications, and the placement of bytes (CH §7).

use alloc::{collections::VecDeque, format, string::String};
use std::println;

use bytes::BytesMut;
use oorandom::Rand64;

use super::{
    endings::{ack_fin, event_name},
    *,
};
use crate::nbl::{ReceiveBufferList, ReceiveChain};

/// Consumer with scripted responses that records its upcalls.
#[derive(Default)]
pub(super) struct ScriptedConsumer {
    /// Bytes taken of the next indications; later ones are taken completely.
    takes: VecDeque<usize>,
    /// Chains posted inside the next upcalls.
    posts: VecDeque<ReceiveChain>,
    log: Vec<String>,
    /// All delivered bytes, in order of delivery.
    stream: Vec<u8>,
    /// Reasons of upload requests.
    pub(super) reasons: Vec<UploadReason>,
    inside: bool,
}

impl ScriptedConsumer {
    fn enter(&mut self, tcp: &mut Connection) {
        // CH-RCC-2: one upcall at a time.
        assert!(!core::mem::replace(&mut self.inside, true), "nested upcall");
        if let Some(chain) = self.posts.pop_front() {
            tcp.post_receive(tcp.now, chain);
        }
    }

    fn complete(&mut self, chain: ReceiveChain) {
        for list in chain {
            let bytes = list.slices().collect::<Vec<_>>().concat();
            assert_eq!(bytes.len(), list.bytes_transferred, "CH-RCC-1");
            let text = String::from_utf8_lossy(&bytes);
            self.log.push(format!("{} {:?} {text}", list.context, list.status));
            self.stream.extend(bytes);
        }
    }

    /// Returns the upcalls and events since the last call.
    fn log(&mut self) -> Vec<String> {
        core::mem::take(&mut self.log)
    }
}

impl Consumer for ScriptedConsumer {
    fn receive_complete(&mut self, tcp: &mut Connection, chain: ReceiveChain) {
        self.complete(chain);
        self.enter(tcp);
        self.inside = false;
    }

    fn indicate(&mut self, tcp: &mut Connection, data: &[u8], push: bool) -> usize {
        assert!(!tcp.requests.is_available(), "CH-RCV-4: posted requests first");
        let taken = self.takes.pop_front().unwrap_or(usize::MAX).min(data.len());
        let (yes, no) = data.split_at(taken);
        let [yes_text, no_text] = [yes, no].map(String::from_utf8_lossy);
        let push = if push { "!" } else { "" };
        self.log.push(format!("indicated {yes_text}|{no_text}{push}"));
        self.stream.extend_from_slice(yes);
        self.enter(tcp);
        self.inside = false;
        taken
    }
}

impl Bench {
    /// Processes a segment; returns the resulting upcalls and events.
    pub(super) fn feed(
        &mut self,
        consumer: &mut ScriptedConsumer,
        segment: Segment<'_>,
    ) -> Vec<String> {
        let received = self.tcp.handle_segment(self.now, &segment);
        let data = &segment.payload[received.in_order];
        self.tcp.deliver(self.now, data, received.push, consumer);
        self.drain(consumer)
    }

    /// Posts requests outside an upcall; returns the resulting upcalls and events.
    pub(super) fn request(
        &mut self,
        consumer: &mut ScriptedConsumer,
        chain: impl Into<ReceiveChain>,
    ) -> Vec<String> {
        self.tcp.post_receive(self.now, chain.into());
        assert!(consumer.log.is_empty(), "a post only queues");
        self.tcp.deliver_backlog(self.now, consumer);
        self.drain(consumer)
    }

    pub(super) fn drain(&mut self, consumer: &mut ScriptedConsumer) -> Vec<String> {
        for event in self.events() {
            match event {
                Event::ReceiveComplete(chain) => consumer.complete(chain),
                Event::Retrieve(reason) => consumer.reasons.push(reason),
                event => consumer.log.push(event_name(&event).into()),
            }
        }
        consumer.log()
    }
}

fn push(segment: Segment<'_>) -> Segment<'_> {
    Segment { flags: Flags::ACK | Flags::PSH, ..segment }
}

/// Returns a request in push mode with `length` bytes.
pub(super) fn push_request(context: u64, length: usize) -> ReceiveBufferList {
    ReceiveBufferList::from_mdl(context, BytesMut::zeroed(length))
}

/// Returns a request in non-push mode.
pub(super) fn non_push_request(context: u64, length: usize) -> ReceiveBufferList {
    ReceiveBufferList { no_push: true, ..push_request(context, length) }
}

fn bench() -> (Bench, ScriptedConsumer) {
    (Bench::new(state()), ScriptedConsumer::default())
}

const PUSH_DELAY: Duration = Duration::from_millis(500);

// CH-RCV-1, -2, -4, CH-RCC-1, -3: requests in order before indications; one completion for several posts.
#[test]
fn requests_are_filled_before_indications() {
    let (mut bench, mut consumer) = bench();
    assert!(bench.request(&mut consumer, [push_request(1, 3)]).is_empty());
    assert!(bench.request(&mut consumer, [push_request(2, 2), push_request(3, 1)]).is_empty());
    let log = bench.feed(&mut consumer, push(data(0, b"abcdefgh")));
    assert_eq!(log, ["1 SUCCESS abc", "2 SUCCESS de", "3 SUCCESS f", "indicated gh|!"]);
    assert_eq!(bench.feed(&mut consumer, data(8, b"i")), ["indicated i|"]);
}

// CH-RCV-1, CH-BUF-1: a chain of MDLs is filled, wherever segments and MDLs end.
#[test]
fn mdl_chains_are_filled_in_order() {
    for cut in 1..9 {
        let (mut bench, mut consumer) = bench();
        let mut list = non_push_request(1, 3);
        list.mdls.extend([0, 1, 0, 5].map(BytesMut::zeroed));
        bench.request(&mut consumer, [list]);
        assert!(bench.feed(&mut consumer, data(0, &b"abcdefghi"[..cut])).is_empty());
        let log = bench.feed(&mut consumer, data(cut as u32, &b"abcdefghi"[cut..]));
        assert_eq!(log, ["1 SUCCESS abcdefghi"], "cut at {cut}");
    }
}

// CH-RCV-5: a PSH completes a request in push mode, and is ignored in non-push mode.
#[test]
fn psh_completes_push_mode_requests_only() {
    let (mut bench, mut consumer) = bench();
    bench
        .request(&mut consumer, [push_request(1, 10), non_push_request(2, 6), push_request(3, 10)]);
    assert!(bench.feed(&mut consumer, data(0, b"ab")).is_empty());
    assert_eq!(bench.feed(&mut consumer, push(data(2, b"cd"))), ["1 SUCCESS abcd"]);
    assert!(bench.feed(&mut consumer, push(data(4, b"efg"))).is_empty());
    assert!(!bench.tcp.timers.is_running(Timer::Push), "no push timer in non-push mode");
    // CH-DEL-4: the PSH applies to the request with its last byte.
    let log = bench.feed(&mut consumer, push(data(7, b"hijk")));
    assert_eq!(log, ["2 SUCCESS efghij", "3 SUCCESS k"]);
}

// CH-RCV-5, -6, CH-DEL-6, CH §10.6: the push timer starts with the first byte, restarts with more, and completes the
// request.
#[test]
fn push_timer_completes_partly_filled_request() {
    let (mut bench, mut consumer) = bench();
    bench.request(&mut consumer, [push_request(1, 10), push_request(2, 2)]);
    assert!(!bench.tcp.timers.is_running(Timer::Push));
    bench.feed(&mut consumer, data(0, b"a"));
    bench.now += Duration::from_millis(400);
    assert!(bench.feed(&mut consumer, data(1, b"b")).is_empty());
    assert_eq!(bench.tcp.timers.deadline(Timer::Push), Some(bench.now + PUSH_DELAY));
    bench.now += PUSH_DELAY;
    bench.tcp.handle_timeout(bench.now);
    assert_eq!(bench.drain(&mut consumer), ["1 SUCCESS ab"]);
    assert_eq!(bench.feed(&mut consumer, data(2, b"cd")), ["2 SUCCESS cd"]);
    assert!(!bench.tcp.timers.is_running(Timer::Push), "stopped by a completion");

    // The delay is configurable by the host (TcpPushTicks); an expiry without a request has no effect.
    let config = Config { push_delay: Duration::from_millis(7), ..Config::default() };
    let mut bench = Bench::with(state(), config);
    bench.request(&mut consumer, [push_request(1, 10)]);
    bench.feed(&mut consumer, data(0, b"a"));
    bench.now += Duration::from_millis(7);
    bench.tcp.handle_timeout(bench.now);
    assert_eq!(bench.drain(&mut consumer), ["1 SUCCESS a"]);
    bench.tcp.on_push_timeout();
    assert!(bench.drain(&mut consumer).is_empty());
}

// CH-RCV-5: a request that contains bytes when posted is continued; in push mode the timer starts immediately.
#[test]
fn partly_filled_requests_are_continued() {
    for (no_push, timer) in [(true, None), (false, Some(PUSH_DELAY))] {
        let (mut bench, mut consumer) = bench();
        let mut list = ReceiveBufferList { no_push, ..push_request(1, 2) };
        list.mdls.push(BytesMut::from(&b"x___"[..]));
        list.mdls[0].copy_from_slice(b"ab");
        list.bytes_transferred = 3;
        bench.request(&mut consumer, [list]);
        let deadline = bench.tcp.timers.deadline(Timer::Push);
        assert_eq!(deadline, timer.map(|delay| bench.now + delay));
        if no_push {
            let log = bench.feed(&mut consumer, data(0, b"cdef"));
            assert_eq!(log, ["1 SUCCESS abxcde", "indicated f|"]);
        } else {
            bench.now += PUSH_DELAY;
            bench.tcp.handle_timeout(bench.now);
            assert_eq!(bench.drain(&mut consumer), ["1 SUCCESS abx"]);
        }
    }
}

// CH-IND-1, -2: after a refusal no indication until a post. A zero-byte request enables the next one; another request
// is filled first, and only the rest is indicated.
#[test]
fn refused_data_waits_for_post() {
    let (mut bench, mut consumer) = bench();
    consumer.takes = [0, 2, 1].into();
    assert_eq!(bench.feed(&mut consumer, data(0, b"abc")), ["indicated |abc"]);
    assert!(bench.feed(&mut consumer, data(3, b"def")).is_empty());
    bench.tcp.deliver_backlog(bench.now, &mut consumer);
    assert!(bench.drain(&mut consumer).is_empty(), "no indication without a post");
    let log = bench.request(&mut consumer, [push_request(1, 0)]);
    assert_eq!(log, ["1 SUCCESS ", "indicated ab|cdef"]);
    assert!(bench.feed(&mut consumer, data(6, b"ghi")).is_empty());
    let log = bench.request(&mut consumer, [push_request(2, 2)]);
    assert_eq!(log, ["2 SUCCESS cd", "indicated e|fghi"]);
    assert!(bench.feed(&mut consumer, push(data(9, b"jkl"))).is_empty());
    // Refused bytes keep their PSH, which completes a request that takes all of them.
    assert_eq!(bench.request(&mut consumer, [push_request(3, 20)]), ["3 SUCCESS fghijkl"]);
    assert_eq!(bench.feed(&mut consumer, data(12, b"m")), ["indicated m|"]);
    assert_eq!(consumer.stream, b"abcdefghijklm");
}

// CH-RCV-7, -8, CH-DEL-5: a zero-byte request waits for bytes, keeps its order, and takes none.
#[test]
fn zero_byte_requests_complete_on_arrival() {
    let (mut bench, mut consumer) = bench();
    assert!(
        bench
            .request(&mut consumer, [push_request(1, 4), push_request(2, 0), push_request(3, 0)])
            .is_empty()
    );
    assert!(bench.feed(&mut consumer, data(0, b"ab")).is_empty(), "not before the first");
    assert_eq!(bench.feed(&mut consumer, data(2, b"cd")), ["1 SUCCESS abcd"]);
    let log = bench.feed(&mut consumer, data(4, b"ef"));
    assert_eq!(log, ["2 SUCCESS ", "3 SUCCESS ", "indicated ef|"]);
    // Requests after it are filled before anything is indicated.
    bench.request(&mut consumer, [push_request(4, 0), push_request(5, 1)]);
    let log = bench.feed(&mut consumer, data(6, b"gh"));
    assert_eq!(log, ["4 SUCCESS ", "5 SUCCESS g", "indicated h|"]);
}

// CH-RCC-2, CH-DEL-7: requests posted inside a completion or an indication are processed after it returns.
#[test]
fn posts_inside_upcalls_are_processed_after_return() {
    let (mut bench, mut consumer) = bench();
    bench.request(&mut consumer, [push_request(1, 2)]);
    consumer.posts = [[push_request(2, 3)].into(), [].into(), [push_request(3, 3)].into()].into();
    consumer.takes = [0].into();
    let log = bench.feed(&mut consumer, data(0, b"abcdefg"));
    assert_eq!(log, ["1 SUCCESS ab", "2 SUCCESS cde", "indicated |fg"]);
    // The request posted in the same call takes the refused bytes.
    assert_eq!(bench.feed(&mut consumer, data(7, b"hij")), ["3 SUCCESS fgh", "indicated ij|"]);
    assert_eq!(consumer.stream, b"abcdefghij");
}

// A consumer that refuses data and posts again in every upcall: the delivery loop ends, and no data is lost.
#[test]
fn repeated_refusals_are_bounded() {
    let (mut bench, mut consumer) = bench();
    consumer.takes = [0; 1_000].into();
    consumer.posts = (0..2_000).map(|n| [push_request(n, 0)].into()).collect();
    let log = bench.feed(&mut consumer, data(0, b"abc"));
    assert!(log.len() < 200, "{}", log.len());
    (consumer.takes, consumer.posts) = Default::default();
    bench.request(&mut consumer, [push_request(9, 1)]);
    assert_eq!(consumer.stream, b"abc");
}

// CH-IND-4: RcvIndicationSize bytes at a time; a request posted for the rest gets it.
#[test]
fn indications_are_limited_in_size() {
    let mut state = state();
    state.tcp.cached.rcv_indication_size = 4;
    let (mut bench, mut consumer) = (Bench::new(state), ScriptedConsumer::default());
    consumer.posts = [[push_request(1, 3)].into()].into();
    let log = bench.feed(&mut consumer, push(data(0, b"headbodtail.")));
    assert_eq!(log, ["indicated head|", "1 SUCCESS bod", "indicated tail|", "indicated .|!"]);
}

// CH-DEL-3, CH-INI-5: imported data waits for a post, and is delivered before newer data.
#[test]
fn imported_data_waits_for_post() {
    let mut state = state();
    state.buffered_data = vec![Bytes::from_static(b"old"), Bytes::from_static(b"er")];
    let (mut bench, mut consumer) = (Bench::new(state), ScriptedConsumer::default());
    bench.tcp.deliver_backlog(bench.now, &mut consumer);
    assert!(bench.drain(&mut consumer).is_empty());
    assert!(bench.feed(&mut consumer, data(0, b"new")).is_empty());
    let log = bench.request(&mut consumer, [push_request(1, 4)]);
    assert_eq!(log, ["1 SUCCESS olde", "indicated rnew|"]);
}

// CH-DEL-4: refused bytes keep their PSH; of all bytes placed at once the last one decides.
#[test]
fn refused_data_keeps_psh() {
    for (last, completes) in [(false, false), (true, true)] {
        let (mut bench, mut consumer) = bench();
        consumer.takes = [0].into();
        bench.feed(&mut consumer, push(data(0, b"abc")));
        let flags = if last { Flags::ACK | Flags::PSH } else { Flags::ACK };
        bench.feed(&mut consumer, Segment { flags, ..data(3, b"def") });
        let log = bench.request(&mut consumer, [push_request(1, 10)]);
        assert_eq!(log.len(), usize::from(completes), "{log:?}");
        assert_eq!(bench.tcp.timers.is_running(Timer::Push), !completes);
    }
    // A PSH does not complete a request that ends before it.
    let (mut bench, mut consumer) = bench();
    consumer.takes = [0].into();
    bench.feed(&mut consumer, push(data(0, b"abcdef")));
    consumer.takes = [0].into();
    bench.request(&mut consumer, [non_push_request(1, 4)]);
    let log = bench.request(&mut consumer, [push_request(2, 9)]);
    assert_eq!(log, ["2 SUCCESS ef"]);
}

// CH-DEL-2: bytes that fill a gap are delivered first, then those after them, into the same requests.
#[test]
fn out_of_order_bytes_fill_requests_in_order() {
    let (mut bench, mut consumer) = bench();
    bench.request(&mut consumer, [non_push_request(1, 4), non_push_request(2, 4)]);
    assert!(bench.feed(&mut consumer, data(3, b"defghi")).is_empty());
    let log = bench.feed(&mut consumer, data(0, b"abc"));
    assert_eq!(log, ["1 SUCCESS abcd", "2 SUCCESS efgh", "indicated i|"]);
}

// CH-RCV-9, -10, CH-EVT-6: at the FIN requests complete with their bytes, then PeerClosed, then posts fail.
#[test]
fn peer_fin_completes_requests() {
    let fin = |offset, payload| Segment { flags: ack_fin(), ..data(offset, payload) };
    let (mut bench, mut consumer) = bench();
    bench
        .request(&mut consumer, [non_push_request(1, 10), push_request(2, 10), push_request(3, 0)]);
    let log = bench.feed(&mut consumer, fin(0, b"abc"));
    assert_eq!(log, ["1 SUCCESS abc", "2 SUCCESS ", "3 SUCCESS ", "PeerClosed"]);
    let log = bench.request(&mut consumer, [push_request(4, 5), push_request(5, 0)]);
    assert_eq!(log, ["4 INVALID_STATE ", "5 INVALID_STATE "]);

    // After refused data the FIN waits, and so does the completion of posted requests.
    let (mut bench, mut consumer) = self::bench();
    consumer.takes = [0].into();
    assert_eq!(bench.feed(&mut consumer, fin(0, b"abc")), ["indicated |abc"]);
    assert_eq!(
        bench.request(&mut consumer, [non_push_request(1, 2)]),
        ["1 SUCCESS ab", "indicated c|", "PeerClosed"]
    );
}

// CH §7.2, §8.2, CH-EVT-7: a RST or an abortive disconnect completes requests REQUEST_ABORTED with their valid bytes;
// the backlog is dropped.
#[test]
fn reset_aborts_requests() {
    let (mut bench, mut consumer) = bench();
    bench.request(&mut consumer, [push_request(1, 10), push_request(2, 0)]);
    bench.feed(&mut consumer, data(0, b"abc"));
    let rst = Segment { flags: Flags::RST, ..data(3, b"") };
    let log = bench.feed(&mut consumer, rst);
    assert_eq!(log, ["1 REQUEST_ABORTED abc", "2 REQUEST_ABORTED ", "Reset", "Closed"]);
    assert_eq!(bench.request(&mut consumer, [push_request(3, 1)]), ["3 REQUEST_ABORTED "]);
    assert_eq!(bench.tcp.poll_timeout(), None);

    let (mut bench, mut consumer) = self::bench();
    bench.request(&mut consumer, [push_request(1, 10)]);
    bench.feed(&mut consumer, data(0, b"abc"));
    bench.tcp.disconnect(bench.now, Disconnect::Abortive, list(9, b""));
    assert_eq!(bench.drain(&mut consumer), ["1 REQUEST_ABORTED abc"]);
    assert_eq!(bench.sent().len(), 1);
    assert_eq!(bench.drain(&mut consumer), ["Disconnected", "Closed"]);
    assert_eq!(bench.request(&mut consumer, [push_request(3, 1)]), ["3 REQUEST_ABORTED "]);
}

// CH-TRM-3, -6, -10: an upload returns requests in order with the bytes placed, which are not exported again.
#[test]
fn upload_returns_requests() {
    let (mut bench, mut consumer) = bench();
    bench
        .request(&mut consumer, [push_request(1, 2), push_request(2, 10), non_push_request(3, 10)]);
    assert_eq!(bench.feed(&mut consumer, data(0, b"abcde")), ["1 SUCCESS ab"]);
    bench.input_raw(data(6, b"gh"));
    bench.tcp.prepare_upload(bench.now);
    let log = bench.drain(&mut consumer);
    assert_eq!(log, ["2 UPLOAD_IN_PROGRESS cde", "3 UPLOAD_IN_PROGRESS "]);
    bench.sent();
    let (state, _) = bench.tcp.into_state(bench.now);
    assert!(state.buffered_data.is_empty());
    assert_eq!(state.tcp.delegated.rcv_nxt, REMOTE + 5);
    assert_eq!(state.out_of_order, [(REMOTE + 6, Bytes::from_static(b"gh"))]);
}

// CH §5.6, CH-RCV-2: after a failure requests complete REQUEST_ABORTED at the terminate, in order with those posted
// since.
#[test]
fn failure_aborts_requests_at_terminate() {
    let (mut bench, mut consumer) = bench();
    bench.request(&mut consumer, [push_request(1, 10)]);
    bench.feed(&mut consumer, data(0, b"abc"));
    bench.tcp.fail(bench.now);
    assert_eq!(bench.drain(&mut consumer), ["Reset"]);
    assert_eq!(consumer.reasons, [UploadReason::HardwareFailure]);
    assert!(bench.request(&mut consumer, [push_request(2, 10)]).is_empty());
    bench.tcp.close_failed(bench.now);
    let log = bench.drain(&mut consumer);
    assert_eq!(log, ["1 REQUEST_ABORTED abc", "2 REQUEST_ABORTED ", "Closed"]);
    assert_eq!(bench.request(&mut consumer, [push_request(3, 1)]), ["3 REQUEST_ABORTED "]);
}

// CH-IND-6, CH-ST-3: bytes in posted memory are consumed; the backlog reduces the window.
#[test]
fn backlog_reduces_window() {
    let (mut bench, mut consumer) = bench();
    let window = |bench: &mut Bench| {
        bench.post(1);
        u32::from(bench.transmit(WIRE)[0].window)
    };
    bench.request(&mut consumer, [non_push_request(1, 8_000)]);
    bench.feed(&mut consumer, data(0, &[b'a'; 5_000]));
    assert_eq!((window(&mut bench), bench.tcp.receive_backlog_size()), (WINDOW, 0));
    consumer.takes = [0].into();
    bench.feed(&mut consumer, data(5_000, &[b'b'; 5_000]));
    assert_eq!((window(&mut bench), bench.tcp.receive_backlog_size()), (WINDOW - 2_000, 2_000));
    bench.request(&mut consumer, [non_push_request(2, 1_500), non_push_request(3, 1_500)]);
    assert_eq!((window(&mut bench), bench.tcp.receive_backlog_size()), (WINDOW, 0));
}

struct SeedReport(u64);

impl Drop for SeedReport {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!(
                "seed {0}; repeat: FLUE_SEED={0} cargo test -p offload-engine random_walk_delivers",
                self.0
            );
        }
    }
}

/// Runs one seed of [`random_walk_delivers_exact_stream`].
fn walk(seed: u64) {
    let _report = SeedReport(seed);
    let mut random = Rand64::new(seed.into());
    let mut below = |limit: u64| random.rand_range(0..limit);
    let stream: Vec<u8> = (0..below(4_000) + 1).map(|_| b'a' + below(26) as u8).collect();
    let (mut bench, mut consumer) = bench();
    let (mut posted, mut completed, mut next) = (0_u64, 0_u64, 0_usize);
    let mut statuses = Vec::new();
    for _ in 0..4_000 {
        let log = match below(8) {
            0..=4 => {
                // From a little before RCV.NXT to a little beyond it.
                let start = (next + below(60) as usize).saturating_sub(30).min(stream.len());
                let end = (start + below(80) as usize).min(stream.len());
                let mut flags = if below(3) == 0 { Flags::PSH } else { Flags(0) };
                flags |= if end == stream.len() { ack_fin() } else { Flags::ACK };
                let segment = Segment { flags, ..data(start as u32, &stream[start..end]) };
                bench.feed(&mut consumer, segment)
            }
            5 | 6 => {
                let mut chain = ReceiveChain::new();
                for _ in 0..=below(2) {
                    let mut list = push_request(posted, 0);
                    list.mdls.extend((0..below(4)).map(|_| BytesMut::zeroed(below(40) as usize)));
                    list.no_push = below(2) == 0;
                    chain.push_back(list);
                    posted += 1;
                }
                match below(3) {
                    0 => consumer.posts.push_back(chain),
                    _ => {
                        let log = bench.request(&mut consumer, chain);
                        statuses.extend(log);
                    }
                }
                bench.drain(&mut consumer)
            }
            _ => {
                consumer.takes = (0..below(3)).map(|_| below(30) as usize).collect();
                bench.now += Duration::from_millis(below(600));
                bench.tcp.handle_timeout(bench.now);
                bench.drain(&mut consumer)
            }
        };
        statuses.extend(log);
        bench.sent();
        next = bench.tcp.receiver.nxt().seq().distance(REMOTE) as usize;
    }
    posted -= consumer.posts.drain(..).map(|chain| chain.len() as u64).sum::<u64>();
    for log in &statuses {
        completed += u64::from(log.as_bytes()[0].is_ascii_digit());
    }
    assert!(stream.starts_with(&consumer.stream), "delivered bytes differ from the stream");
    let ended = statuses.iter().filter(|log| *log == "PeerClosed").count();
    if ended > 0 {
        assert_eq!(ended, 1, "CH-EVT-6: once");
        assert_eq!(consumer.stream, stream, "all bytes before the FIN are delivered");
        assert_eq!(completed, posted, "CH-RCV-8: every request once");
    } else {
        assert_eq!(completed + bench.tcp.requests.len() as u64, posted);
    }
}

// CH-DEL-1, -2, CH-RCV-2, -8: for any order of events the stream is exact, and each request completes once.
#[test]
fn random_walk_delivers_exact_stream() {
    if let Ok(seed) = std::env::var("FLUE_SEED") {
        walk(seed.parse().expect("FLUE_SEED is a number"));
        return;
    }
    (0..300).for_each(walk);
}
