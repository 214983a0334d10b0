//! Net buffer lists: posting, completion, and the send backlog (CH §6, CH-ST-2).

use super::*;
use crate::{memory::to_vec, nbl::NetBuffer};

const ABORTED: NdisStatus = NdisStatus::REQUEST_ABORTED;

/// Returns a list of net buffers, each a chain of MDLs.
fn parts(context: u64, net_buffers: &[&[&'static [u8]]]) -> NetBufferList {
    let mut list = NetBufferList::new(context);
    for mdls in net_buffers {
        let mut net_buffer = NetBuffer::new();
        mdls.iter().for_each(|mdl| net_buffer.push_mdl(Bytes::from_static(mdl)));
        list.net_buffers.push(net_buffer);
    }
    list
}

// CH-SND-1 to -4, CH-SNC-3: lists of several net buffers and irregular MDLs, in two calls. The stream has their bytes
// in order, and an acknowledgment of several lists completes one chain.
#[test]
fn lists_of_any_shape_are_sent_in_order() {
    let mut bench = Bench::new(state());
    let first = [
        parts(1, &[&[b"ab", b"", b"c"], &[b"d"]]),
        parts(2, &[&[], &[b"ef"], &[]]),
        parts(3, &[&[b"g", b"h", b"i"]]),
    ];
    bench.tcp.post_send(bench.now, first.into());
    bench.tcp.post_send(bench.now, [parts(4, &[]), parts(5, &[&[b"jk"], &[b"l"]])].into());
    let sent = bench.transmit(WIRE);
    let stream: Vec<u8> = sent.iter().flat_map(|t| to_vec(bench.tcp.payload(t))).collect();
    assert_eq!(stream, b"abcdefghijkl");
    bench.ack(5);
    assert_eq!(completions(&bench.events()), [(1, NdisStatus::SUCCESS, 4)]);
    bench.ack(11);
    bench.ack(12);
    let events = bench.events();
    assert_eq!(events.len(), 1, "CH-SNC-3: one chain for all completions not polled yet");
    let all: Vec<_> = completions(&events).iter().map(|c| (c.0, c.2)).collect();
    assert_eq!(all, [(2, 2), (3, 3), (4, 0), (5, 3)]);
}

// CH-SNC-1, -2, -4: after a reset at most one list is partly sent. Its data start is advanced by the acknowledged
// bytes, across net buffers; later lists have none, and nothing more is sent.
#[test]
fn reset_leaves_at_most_one_list_partly_sent() {
    for acked in 0..=9_u32 {
        let mut bench = Bench::new(state());
        let lists = [
            parts(1, &[&[b"abc"]]),
            parts(2, &[&[b"d"], &[b"e", b"f"]]),
            parts(3, &[&[b"gh"], &[b"i"]]),
        ];
        bench.tcp.post_send(bench.now, lists.into());
        bench.sent();
        bench.ack(acked);
        bench.input_raw(Segment { flags: Flags::RST, ..ack() });
        let mut partly = 0;
        let mut lists = 0;
        for event in bench.events() {
            let Event::SendComplete(chain) = event else { continue };
            for list in chain {
                let (start, end) = ((list.context as u32 - 1) * 3, list.context as u32 * 3);
                let bytes = acked.clamp(start, end) - start;
                let status = if bytes == 3 { NdisStatus::SUCCESS } else { ABORTED };
                assert_eq!((list.status, list.bytes_transferred), (status, bytes as usize));
                let rest = &b"abcdefghi"[(start + bytes) as usize..end as usize];
                assert_eq!(list.to_vec(), rest);
                partly += u32::from(bytes > 0 && bytes < 3);
                lists += 1;
            }
        }
        assert_eq!((lists, partly), (3, u32::from(!acked.is_multiple_of(3))));
        assert!(bench.sent().is_empty(), "CH-SNC-2, CH-DIS-2");
    }
}

// CH-SNC-5: sequence numbers are compared modulo 2^32.
#[test]
fn completions_follow_sequence_number_wrap() {
    let mut state = state();
    let start = SeqNum(u32::MAX - 3);
    let delegated = &mut state.tcp.delegated;
    (delegated.snd_una, delegated.snd_nxt, delegated.snd_max) = (start, start, start);
    let mut bench = Bench::new(state);
    bench.post(3);
    bench.post(3);
    bench.post(0);
    assert_eq!(bench.transmit(WIRE).len(), 2);
    bench.input(Segment { ack: start + 5, ..ack() });
    assert_eq!(completions(&bench.events()), [(1, NdisStatus::SUCCESS, 3)]);
    bench.input(Segment { ack: SeqNum(2), ..ack() });
    let rest = [(2, NdisStatus::SUCCESS, 3), (3, NdisStatus::SUCCESS, 0)];
    assert_eq!(completions(&bench.events()), rest);
}

// CH-SND-9: a list without bytes completes after everything before it, in any position.
#[test]
fn empty_lists_complete_in_order() {
    let mut bench = Bench::new(state());
    bench.post(0);
    bench.post(5);
    bench.post(0);
    bench.post(0);
    assert_eq!(completions(&bench.events()), [(1, NdisStatus::SUCCESS, 0)]);
    assert_eq!(bench.sent().len(), 1);
    bench.ack(4);
    assert!(bench.events().is_empty());
    bench.input_raw(Segment { flags: Flags::RST, ..ack() });
    assert_eq!(completions(&bench.events()), [(2, ABORTED, 4), (3, ABORTED, 0), (4, ABORTED, 0)]);
}

// CH-TRM-5, -8, CH-SNB-2: sends posted after a mandatory reason are kept for the upload, after earlier ones. They are
// exported unchanged: contexts, order, and the data from SND.UNA on.
#[test]
fn sends_after_mandatory_reason_are_uploaded() {
    let mut bench = Bench::new(state());
    bench.post(10);
    bench.post(20);
    bench.sent();
    bench.ack(4);
    bench.input_raw(Segment { flags: Flags::ACK | Flags::URG, ack: LOCAL + 4, ..data(0, b"!") });
    bench.post(30);
    assert!(bench.sent().is_empty());
    let reason = UploadReason::ReceivedUrgentData;
    assert!(matches!(bench.events()[..], [Event::Retrieve(seen)] if seen == reason));
    bench.tcp.prepare_upload(bench.now);
    bench.post(40);
    assert!(bench.sent().is_empty() && bench.events().is_empty());
    let (state, disconnect) = bench.tcp.into_state(bench.now);
    assert!(disconnect.is_none());
    let lists: Vec<_> = state.send_data.iter().map(|l| (l.context, l.data_length())).collect();
    assert_eq!(lists, [(1, 6), (2, 20), (3, 30), (4, 40)]);
    assert!(state.send_data.iter().all(|list| list.status == NdisStatus::PENDING));
    let delegated = &state.tcp.delegated;
    let offsets = [delegated.snd_una, delegated.snd_nxt, delegated.snd_max];
    assert_eq!(offsets.map(|at| at.distance(LOCAL)), [4, 30, 30]);
}

fn backlog_changes(bench: &mut Bench) -> Vec<usize> {
    let size = |event| match event {
        Event::SendBacklogChange(size) => Some(size),
        _ => None,
    };
    bench.events().into_iter().filter_map(size).collect()
}

// CH-ST-2, CH §8.2: the ideal size depends on window and path, not on posted bytes. It is indicated when doubled or
// halved, and at most once per RTT.
#[test]
fn send_backlog_change_is_indicated_once_per_rtt() {
    let mut state = state();
    state.tcp.constant.window_scaling_enabled = true;
    state.tcp.constant.snd_wind_scale = 7;
    state.tcp.delegated.cwnd = 4_000_000;
    // 80 / 8 ms.
    state.tcp.delegated.srtt = 80;
    let mut bench = Bench::new(state);
    let backlog = |window: usize| window + SEND_BACKLOG;
    assert_eq!(bench.tcp.send_backlog_size() as usize, backlog(WINDOW as usize));
    bench.post(1_000_000);
    assert_eq!(bench.tcp.send_backlog_size() as usize, backlog(WINDOW as usize), "CH-ST-2");

    let update = |bench: &mut Bench, units: u16, millis| {
        bench.now += Duration::from_millis(millis);
        bench.input(Segment { window: units, ..ack() });
        backlog_changes(bench)
    };
    // It starts at 191,072; 382,144 is twice that.
    assert_eq!(
        update(&mut bench, 1_961, 0),
        [0_usize; 0],
        "a window of 251,008 bytes is below the doubled size"
    );
    assert_eq!(update(&mut bench, 1_962, 0), [backlog(251_136)]);
    assert_eq!(update(&mut bench, 20_000, 9), [0_usize; 0], "at most once per RTT");
    assert_eq!(update(&mut bench, 20_000, 1), [backlog(20_000 * 128)]);
    assert_eq!(update(&mut bench, 20_000, 100), [0_usize; 0], "indicated once");
    assert_eq!(update(&mut bench, 0, 100), [backlog(0)], "a closed window halves it");
    // The congestion window limits it too.
    assert_eq!(update(&mut bench, u16::MAX, 100), [backlog(4_000_000)]);
}
