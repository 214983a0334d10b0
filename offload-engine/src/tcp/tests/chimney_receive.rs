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
pub(super) struct Taker {
    /// Bytes taken of the next indications; later ones are taken completely.
    takes: VecDeque<usize>,
    /// Chains posted inside the next upcalls.
    posts: VecDeque<ReceiveChain>,
    told: Vec<String>,
    /// All delivered bytes, in order of delivery.
    stream: Vec<u8>,
    /// Reasons of upload requests.
    pub(super) reasons: Vec<UploadReason>,
    inside: bool,
}

impl Taker {
    fn enter(&mut self, tcp: &mut Connection) {
        // CH-RCC-2: one upcall at a time.
        assert!(!core::mem::replace(&mut self.inside, true), "upcalls nest");
        if let Some(chain) = self.posts.pop_front() {
            tcp.post_receive(tcp.now, chain);
        }
    }

    fn complete(&mut self, chain: ReceiveChain) {
        for list in chain {
            let bytes = list.slices().collect::<Vec<_>>().concat();
            assert_eq!(bytes.len(), list.bytes_transferred, "CH-RCC-1");
            let text = String::from_utf8_lossy(&bytes);
            self.told.push(format!("{} {:?} {text}", list.context, list.status));
            self.stream.extend(bytes);
        }
    }

    /// Returns the upcalls and events since the last call.
    fn told(&mut self) -> Vec<String> {
        core::mem::take(&mut self.told)
    }
}

impl Consumer for Taker {
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
        self.told.push(format!("indicated {yes_text}|{no_text}{push}"));
        self.stream.extend_from_slice(yes);
        self.enter(tcp);
        self.inside = false;
        taken
    }
}

impl Bench {
    /// Processes a segment; returns the resulting upcalls and events.
    pub(super) fn feed(&mut self, taker: &mut Taker, segment: Segment<'_>) -> Vec<String> {
        let received = self.tcp.handle_segment(self.now, &segment);
        let data = &segment.payload[received.in_order];
        self.tcp.deliver(self.now, data, received.push, taker);
        self.drain(taker)
    }

    /// Posts requests outside an upcall; returns the resulting upcalls and events.
    pub(super) fn request(
        &mut self,
        taker: &mut Taker,
        chain: impl Into<ReceiveChain>,
    ) -> Vec<String> {
        self.tcp.post_receive(self.now, chain.into());
        assert!(taker.told.is_empty(), "a post only queues");
        self.tcp.deliver_waiting(self.now, taker);
        self.drain(taker)
    }

    pub(super) fn drain(&mut self, taker: &mut Taker) -> Vec<String> {
        for event in self.events() {
            match event {
                Event::ReceiveComplete(chain) => taker.complete(chain),
                Event::Retrieve(reason) => taker.reasons.push(reason),
                event => taker.told.push(event_name(&event).into()),
            }
        }
        taker.told()
    }
}

fn push(segment: Segment<'_>) -> Segment<'_> {
    Segment { flags: Flags::ACK | Flags::PSH, ..segment }
}

/// Returns a request in push mode with `length` bytes.
pub(super) fn room(context: u64, length: usize) -> ReceiveBufferList {
    ReceiveBufferList::from_mdl(context, BytesMut::zeroed(length))
}

/// Returns a request in non-push mode.
pub(super) fn whole(context: u64, length: usize) -> ReceiveBufferList {
    ReceiveBufferList { no_push: true, ..room(context, length) }
}

fn bench() -> (Bench, Taker) {
    (Bench::new(state()), Taker::default())
}

const PUSH_DELAY: Duration = Duration::from_millis(500);

// CH-RCV-1, -2, -4, CH-RCC-1, -3: requests in order before indications; one completion for several posts.
#[test]
fn requests_come_before_indications() {
    let (mut bench, mut taker) = bench();
    assert!(bench.request(&mut taker, [room(1, 3)]).is_empty());
    assert!(bench.request(&mut taker, [room(2, 2), room(3, 1)]).is_empty());
    let told = bench.feed(&mut taker, push(data(0, b"abcdefgh")));
    assert_eq!(told, ["1 SUCCESS abc", "2 SUCCESS de", "3 SUCCESS f", "indicated gh|!"]);
    assert_eq!(bench.feed(&mut taker, data(8, b"i")), ["indicated i|"]);
}

// CH-RCV-1, CH-BUF-1: a chain of MDLs is filled, wherever segments and MDLs end.
#[test]
fn requests_of_several_mdls() {
    for cut in 1..9 {
        let (mut bench, mut taker) = bench();
        let mut list = whole(1, 3);
        list.mdls.extend([0, 1, 0, 5].map(BytesMut::zeroed));
        bench.request(&mut taker, [list]);
        assert!(bench.feed(&mut taker, data(0, &b"abcdefghi"[..cut])).is_empty());
        let told = bench.feed(&mut taker, data(cut as u32, &b"abcdefghi"[cut..]));
        assert_eq!(told, ["1 SUCCESS abcdefghi"], "cut at {cut}");
    }
}

// CH-RCV-5: a PSH completes a request in push mode, and is ignored in non-push mode.
#[test]
fn push_and_non_push_mode() {
    let (mut bench, mut taker) = bench();
    bench.request(&mut taker, [room(1, 10), whole(2, 6), room(3, 10)]);
    assert!(bench.feed(&mut taker, data(0, b"ab")).is_empty());
    assert_eq!(bench.feed(&mut taker, push(data(2, b"cd"))), ["1 SUCCESS abcd"]);
    assert!(bench.feed(&mut taker, push(data(4, b"efg"))).is_empty());
    assert!(!bench.tcp.timers.is_running(Timer::Push), "no push timer in non-push mode");
    // CH-DEL-4: the PSH applies to the request with its last byte.
    let told = bench.feed(&mut taker, push(data(7, b"hijk")));
    assert_eq!(told, ["2 SUCCESS efghij", "3 SUCCESS k"]);
}

// CH-RCV-5, -6, CH-DEL-6, CH §10.6: the push timer starts with the first byte, restarts with more, and completes the
// request.
#[test]
fn the_push_timer() {
    let (mut bench, mut taker) = bench();
    bench.request(&mut taker, [room(1, 10), room(2, 2)]);
    assert!(!bench.tcp.timers.is_running(Timer::Push));
    bench.feed(&mut taker, data(0, b"a"));
    bench.now += Duration::from_millis(400);
    assert!(bench.feed(&mut taker, data(1, b"b")).is_empty());
    assert_eq!(bench.tcp.timers.deadline(Timer::Push), Some(bench.now + PUSH_DELAY));
    bench.now += PUSH_DELAY;
    bench.tcp.handle_timeout(bench.now);
    assert_eq!(bench.drain(&mut taker), ["1 SUCCESS ab"]);
    assert_eq!(bench.feed(&mut taker, data(2, b"cd")), ["2 SUCCESS cd"]);
    assert!(!bench.tcp.timers.is_running(Timer::Push), "stopped by a completion");

    // The delay is configurable by the host (TcpPushTicks); an expiry without a request has no effect.
    let config = Config { push_delay: Duration::from_millis(7), ..Config::default() };
    let mut bench = Bench::with(state(), config);
    bench.request(&mut taker, [room(1, 10)]);
    bench.feed(&mut taker, data(0, b"a"));
    bench.now += Duration::from_millis(7);
    bench.tcp.handle_timeout(bench.now);
    assert_eq!(bench.drain(&mut taker), ["1 SUCCESS a"]);
    bench.tcp.on_push_timeout();
    assert!(bench.drain(&mut taker).is_empty());
}

// CH-RCV-5: a request that contains bytes when posted is continued; in push mode the timer starts at once.
#[test]
fn partly_filled_requests_are_continued() {
    for (no_push, timer) in [(true, None), (false, Some(PUSH_DELAY))] {
        let (mut bench, mut taker) = bench();
        let mut list = ReceiveBufferList { no_push, ..room(1, 2) };
        list.mdls.push(BytesMut::from(&b"x___"[..]));
        list.mdls[0].copy_from_slice(b"ab");
        list.bytes_transferred = 3;
        bench.request(&mut taker, [list]);
        let deadline = bench.tcp.timers.deadline(Timer::Push);
        assert_eq!(deadline, timer.map(|delay| bench.now + delay));
        if no_push {
            let told = bench.feed(&mut taker, data(0, b"cdef"));
            assert_eq!(told, ["1 SUCCESS abxcde", "indicated f|"]);
        } else {
            bench.now += PUSH_DELAY;
            bench.tcp.handle_timeout(bench.now);
            assert_eq!(bench.drain(&mut taker), ["1 SUCCESS abx"]);
        }
    }
}

// CH-IND-1, -2: after a refusal no indication until a post. A zero-byte request enables the next one; another request
// is filled first, and only the rest is indicated.
#[test]
fn refusals() {
    let (mut bench, mut taker) = bench();
    taker.takes = [0, 2, 1].into();
    assert_eq!(bench.feed(&mut taker, data(0, b"abc")), ["indicated |abc"]);
    assert!(bench.feed(&mut taker, data(3, b"def")).is_empty());
    bench.tcp.deliver_waiting(bench.now, &mut taker);
    assert!(bench.drain(&mut taker).is_empty(), "no indication without a post");
    let told = bench.request(&mut taker, [room(1, 0)]);
    assert_eq!(told, ["1 SUCCESS ", "indicated ab|cdef"]);
    assert!(bench.feed(&mut taker, data(6, b"ghi")).is_empty());
    let told = bench.request(&mut taker, [room(2, 2)]);
    assert_eq!(told, ["2 SUCCESS cd", "indicated e|fghi"]);
    assert!(bench.feed(&mut taker, push(data(9, b"jkl"))).is_empty());
    // Refused bytes keep their PSH, which completes a request that takes all of them.
    assert_eq!(bench.request(&mut taker, [room(3, 20)]), ["3 SUCCESS fghijkl"]);
    assert_eq!(bench.feed(&mut taker, data(12, b"m")), ["indicated m|"]);
    assert_eq!(taker.stream, b"abcdefghijklm");
}

// CH-RCV-7, -8, CH-DEL-5: a zero-byte request waits for bytes, keeps its order, and takes none.
#[test]
fn zero_byte_requests() {
    let (mut bench, mut taker) = bench();
    assert!(bench.request(&mut taker, [room(1, 4), room(2, 0), room(3, 0)]).is_empty());
    assert!(bench.feed(&mut taker, data(0, b"ab")).is_empty(), "not before the first");
    assert_eq!(bench.feed(&mut taker, data(2, b"cd")), ["1 SUCCESS abcd"]);
    let told = bench.feed(&mut taker, data(4, b"ef"));
    assert_eq!(told, ["2 SUCCESS ", "3 SUCCESS ", "indicated ef|"]);
    // Requests after it are filled before anything is indicated.
    bench.request(&mut taker, [room(4, 0), room(5, 1)]);
    let told = bench.feed(&mut taker, data(6, b"gh"));
    assert_eq!(told, ["4 SUCCESS ", "5 SUCCESS g", "indicated h|"]);
}

// CH-RCC-2, CH-DEL-7: requests posted inside a completion or an indication are processed after it returns.
#[test]
fn posts_inside_upcalls() {
    let (mut bench, mut taker) = bench();
    bench.request(&mut taker, [room(1, 2)]);
    taker.posts = [[room(2, 3)].into(), [].into(), [room(3, 3)].into()].into();
    taker.takes = [0].into();
    let told = bench.feed(&mut taker, data(0, b"abcdefg"));
    assert_eq!(told, ["1 SUCCESS ab", "2 SUCCESS cde", "indicated |fg"]);
    // The request posted in the same call takes the refused bytes.
    assert_eq!(bench.feed(&mut taker, data(7, b"hij")), ["3 SUCCESS fgh", "indicated ij|"]);
    assert_eq!(taker.stream, b"abcdefghij");
}

// A consumer that refuses data and posts again in every upcall: the delivery loop ends, and no data is lost.
#[test]
fn endless_refusals_end() {
    let (mut bench, mut taker) = bench();
    taker.takes = [0; 1_000].into();
    taker.posts = (0..2_000).map(|n| [room(n, 0)].into()).collect();
    let told = bench.feed(&mut taker, data(0, b"abc"));
    assert!(told.len() < 200, "{}", told.len());
    (taker.takes, taker.posts) = Default::default();
    bench.request(&mut taker, [room(9, 1)]);
    assert_eq!(taker.stream, b"abc");
}

// CH-IND-4: RcvIndicationSize bytes at a time; a request posted for the rest gets it.
#[test]
fn the_size_of_indications() {
    let mut state = state();
    state.tcp.cached.rcv_indication_size = 4;
    let (mut bench, mut taker) = (Bench::new(state), Taker::default());
    taker.posts = [[room(1, 3)].into()].into();
    let told = bench.feed(&mut taker, push(data(0, b"headbodtail.")));
    assert_eq!(told, ["indicated head|", "1 SUCCESS bod", "indicated tail|", "indicated .|!"]);
}

// CH-DEL-3, CH-INI-5: imported data waits for a post, and is delivered before newer data.
#[test]
fn data_that_was_brought_along_waits() {
    let mut state = state();
    state.buffered_data = vec![Bytes::from_static(b"old"), Bytes::from_static(b"er")];
    let (mut bench, mut taker) = (Bench::new(state), Taker::default());
    bench.tcp.deliver_waiting(bench.now, &mut taker);
    assert!(bench.drain(&mut taker).is_empty());
    assert!(bench.feed(&mut taker, data(0, b"new")).is_empty());
    let told = bench.request(&mut taker, [room(1, 4)]);
    assert_eq!(told, ["1 SUCCESS olde", "indicated rnew|"]);
}

// CH-DEL-4: refused bytes keep their PSH; of all bytes placed at once the last one decides.
#[test]
fn push_is_remembered() {
    for (last, completes) in [(false, false), (true, true)] {
        let (mut bench, mut taker) = bench();
        taker.takes = [0].into();
        bench.feed(&mut taker, push(data(0, b"abc")));
        let flags = if last { Flags::ACK | Flags::PSH } else { Flags::ACK };
        bench.feed(&mut taker, Segment { flags, ..data(3, b"def") });
        let told = bench.request(&mut taker, [room(1, 10)]);
        assert_eq!(told.len(), usize::from(completes), "{told:?}");
        assert_eq!(bench.tcp.timers.is_running(Timer::Push), !completes);
    }
    // A PSH does not complete a request that ends before it.
    let (mut bench, mut taker) = bench();
    taker.takes = [0].into();
    bench.feed(&mut taker, push(data(0, b"abcdef")));
    taker.takes = [0].into();
    bench.request(&mut taker, [whole(1, 4)]);
    let told = bench.request(&mut taker, [room(2, 9)]);
    assert_eq!(told, ["2 SUCCESS ef"]);
}

// CH-DEL-2: bytes that fill a gap are delivered first, then those after them, into the same requests.
#[test]
fn bytes_out_of_order_reach_requests() {
    let (mut bench, mut taker) = bench();
    bench.request(&mut taker, [whole(1, 4), whole(2, 4)]);
    assert!(bench.feed(&mut taker, data(3, b"defghi")).is_empty());
    let told = bench.feed(&mut taker, data(0, b"abc"));
    assert_eq!(told, ["1 SUCCESS abcd", "2 SUCCESS efgh", "indicated i|"]);
}

// CH-RCV-9, -10, CH-EVT-6: at the FIN requests complete with their bytes, then PeerClosed, then posts fail.
#[test]
fn the_peers_fin_ends_requests() {
    let fin = |offset, payload| Segment { flags: ack_fin(), ..data(offset, payload) };
    let (mut bench, mut taker) = bench();
    bench.request(&mut taker, [whole(1, 10), room(2, 10), room(3, 0)]);
    let told = bench.feed(&mut taker, fin(0, b"abc"));
    assert_eq!(told, ["1 SUCCESS abc", "2 SUCCESS ", "3 SUCCESS ", "PeerClosed"]);
    let told = bench.request(&mut taker, [room(4, 5), room(5, 0)]);
    assert_eq!(told, ["4 INVALID_STATE ", "5 INVALID_STATE "]);

    // After refused data the FIN waits, and so does the completion of posted requests.
    let (mut bench, mut taker) = self::bench();
    taker.takes = [0].into();
    assert_eq!(bench.feed(&mut taker, fin(0, b"abc")), ["indicated |abc"]);
    assert_eq!(
        bench.request(&mut taker, [whole(1, 2)]),
        ["1 SUCCESS ab", "indicated c|", "PeerClosed"]
    );
}

// CH §7.2, §8.2, CH-EVT-7: a RST or an abortive disconnect completes requests REQUEST_ABORTED with their valid bytes;
// the backlog is dropped.
#[test]
fn a_reset_aborts_requests() {
    let (mut bench, mut taker) = bench();
    bench.request(&mut taker, [room(1, 10), room(2, 0)]);
    bench.feed(&mut taker, data(0, b"abc"));
    let rst = Segment { flags: Flags::RST, ..data(3, b"") };
    let told = bench.feed(&mut taker, rst);
    assert_eq!(told, ["1 REQUEST_ABORTED abc", "2 REQUEST_ABORTED ", "Reset", "Closed"]);
    assert_eq!(bench.request(&mut taker, [room(3, 1)]), ["3 REQUEST_ABORTED "]);
    assert_eq!(bench.tcp.poll_timeout(), None);

    let (mut bench, mut taker) = self::bench();
    bench.request(&mut taker, [room(1, 10)]);
    bench.feed(&mut taker, data(0, b"abc"));
    bench.tcp.disconnect(bench.now, Disconnect::Abortive, list(9, b""));
    assert_eq!(bench.drain(&mut taker), ["1 REQUEST_ABORTED abc"]);
    assert_eq!(bench.sent().len(), 1);
    assert_eq!(bench.drain(&mut taker), ["Disconnected", "Closed"]);
    assert_eq!(bench.request(&mut taker, [room(3, 1)]), ["3 REQUEST_ABORTED "]);
}

// CH-TRM-3, -6, -10: an upload returns requests in order with the bytes placed, which are not exported again.
#[test]
fn an_upload_returns_requests() {
    let (mut bench, mut taker) = bench();
    bench.request(&mut taker, [room(1, 2), room(2, 10), whole(3, 10)]);
    assert_eq!(bench.feed(&mut taker, data(0, b"abcde")), ["1 SUCCESS ab"]);
    bench.input_raw(data(6, b"gh"));
    bench.tcp.prepare_upload(bench.now);
    let told = bench.drain(&mut taker);
    assert_eq!(told, ["2 UPLOAD_IN_PROGRESS cde", "3 UPLOAD_IN_PROGRESS "]);
    bench.sent();
    let (state, _) = bench.tcp.into_state(bench.now);
    assert!(state.buffered_data.is_empty());
    assert_eq!(state.tcp.delegated.rcv_nxt, REMOTE + 5);
    assert_eq!(state.out_of_order, [(REMOTE + 6, Bytes::from_static(b"gh"))]);
}

// CH §5.6, CH-RCV-2: after a failure requests complete REQUEST_ABORTED at the terminate, in order with those posted
// since.
#[test]
fn a_failure_aborts_requests_at_the_terminate() {
    let (mut bench, mut taker) = bench();
    bench.request(&mut taker, [room(1, 10)]);
    bench.feed(&mut taker, data(0, b"abc"));
    bench.tcp.fail(bench.now);
    assert_eq!(bench.drain(&mut taker), ["Reset"]);
    assert_eq!(taker.reasons, [UploadReason::HardwareFailure]);
    assert!(bench.request(&mut taker, [room(2, 10)]).is_empty());
    bench.tcp.give_up(bench.now);
    let told = bench.drain(&mut taker);
    assert_eq!(told, ["1 REQUEST_ABORTED abc", "2 REQUEST_ABORTED ", "Closed"]);
    assert_eq!(bench.request(&mut taker, [room(3, 1)]), ["3 REQUEST_ABORTED "]);
}

// CH-IND-6, CH-ST-3: bytes in posted memory are consumed; the backlog reduces the window.
#[test]
fn the_window_counts_what_waits() {
    let (mut bench, mut taker) = bench();
    let window = |bench: &mut Bench| {
        bench.post(1);
        u32::from(bench.transmit(WIRE)[0].window)
    };
    bench.request(&mut taker, [whole(1, 8_000)]);
    bench.feed(&mut taker, data(0, &[b'a'; 5_000]));
    assert_eq!((window(&mut bench), bench.tcp.receive_backlog_size()), (WINDOW, 0));
    taker.takes = [0].into();
    bench.feed(&mut taker, data(5_000, &[b'b'; 5_000]));
    assert_eq!((window(&mut bench), bench.tcp.receive_backlog_size()), (WINDOW - 2_000, 2_000));
    bench.request(&mut taker, [whole(2, 1_500), whole(3, 1_500)]);
    assert_eq!((window(&mut bench), bench.tcp.receive_backlog_size()), (WINDOW, 0));
}

struct Repeat(u64);

impl Drop for Repeat {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!(
                "seed {0}; repeat: FLUE_SEED={0} cargo test -p offload-engine any_walk_delivers",
                self.0
            );
        }
    }
}

/// Runs one seed of [`any_walk_delivers_the_stream`].
fn walk(seed: u64) {
    let _repeat = Repeat(seed);
    let mut random = Rand64::new(seed.into());
    let mut below = |limit: u64| random.rand_range(0..limit);
    let stream: Vec<u8> = (0..below(4_000) + 1).map(|_| b'a' + below(26) as u8).collect();
    let (mut bench, mut taker) = bench();
    let (mut posted, mut completed, mut next) = (0_u64, 0_u64, 0_usize);
    let mut statuses = Vec::new();
    for _ in 0..4_000 {
        let told = match below(8) {
            0..=4 => {
                // From a little before RCV.NXT to a little beyond it.
                let start = (next + below(60) as usize).saturating_sub(30).min(stream.len());
                let end = (start + below(80) as usize).min(stream.len());
                let mut flags = if below(3) == 0 { Flags::PSH } else { Flags(0) };
                flags |= if end == stream.len() { ack_fin() } else { Flags::ACK };
                let segment = Segment { flags, ..data(start as u32, &stream[start..end]) };
                bench.feed(&mut taker, segment)
            }
            5 | 6 => {
                let mut chain = ReceiveChain::new();
                for _ in 0..=below(2) {
                    let mut list = room(posted, 0);
                    list.mdls.extend((0..below(4)).map(|_| BytesMut::zeroed(below(40) as usize)));
                    list.no_push = below(2) == 0;
                    chain.push_back(list);
                    posted += 1;
                }
                match below(3) {
                    0 => taker.posts.push_back(chain),
                    _ => {
                        let told = bench.request(&mut taker, chain);
                        statuses.extend(told);
                    }
                }
                bench.drain(&mut taker)
            }
            _ => {
                taker.takes = (0..below(3)).map(|_| below(30) as usize).collect();
                bench.now += Duration::from_millis(below(600));
                bench.tcp.handle_timeout(bench.now);
                bench.drain(&mut taker)
            }
        };
        statuses.extend(told);
        bench.sent();
        next = bench.tcp.receiver.nxt().seq().distance(REMOTE) as usize;
    }
    posted -= taker.posts.drain(..).map(|chain| chain.len() as u64).sum::<u64>();
    for told in &statuses {
        completed += u64::from(told.as_bytes()[0].is_ascii_digit());
    }
    assert!(stream.starts_with(&taker.stream), "delivered bytes differ from the stream");
    let ended = statuses.iter().filter(|told| *told == "PeerClosed").count();
    if ended > 0 {
        assert_eq!(ended, 1, "CH-EVT-6: once");
        assert_eq!(taker.stream, stream, "all bytes before the FIN are delivered");
        assert_eq!(completed, posted, "CH-RCV-8: every request once");
    } else {
        assert_eq!(completed + bench.tcp.requests.len() as u64, posted);
    }
}

// CH-DEL-1, -2, CH-RCV-2, -8: for any order of events the stream is exact, and each request completes once.
#[test]
fn any_walk_delivers_the_stream() {
    if let Ok(seed) = std::env::var("FLUE_SEED") {
        walk(seed.parse().expect("FLUE_SEED is a number"));
        return;
    }
    (0..300).for_each(walk);
}
