//! Members of TCP_INFO.

use super::*;

const MSS: u32 = 1460;
const MILLI: Duration = Duration::from_millis(1);

fn info(bench: &Bench) -> Info {
    bench.tcp.info(bench.now)
}

// Unknown values are `None`, not 0 as in Linux' tcp_info.
#[test]
fn unknown_values_are_none() {
    let info = info(&Bench::new(state()));
    assert_eq!(
        (info.rtt, info.min_rtt, info.pacing_rate, info.snd_ssthresh),
        (None, None, None, None)
    );
    assert_eq!((info.last_data_sent, info.last_data_recv, info.last_ack_recv), (None, None, None));
    assert_eq!((info.ca_state, info.busy_time), (CaState::Open, Duration::ZERO));
    assert_eq!((info.advmss, info.pmtu), (1460, 1500));
}

// Segment counts of the flight, and the recovery state of each.
#[test]
fn flight_is_counted_in_segments() {
    let mut state = state();
    state.tcp.constant.sack_enabled = true;
    let mut bench = Bench::new(state);
    bench.post(20 * MSS as usize + 5);
    bench.sent();
    bench.now += MILLI * 10;
    assert_eq!((info(&bench).unacked, info(&bench).ca_state), (10, CaState::Open));
    let block = |from: u32, to: u32| SackBlock { start: LOCAL + from * MSS, end: LOCAL + to * MSS };
    bench.input(Segment { sack: &[block(2, 3)], ..ack() });
    assert_eq!((info(&bench).sacked, info(&bench).ca_state), (1, CaState::Disorder));
    bench.input(Segment { sack: &[block(2, 10)], ..ack() });
    let counts = |info: Info| (info.unacked, info.sacked, info.lost, info.retrans);
    assert_eq!(counts(info(&bench)), (10, 8, 2, 0));
    assert_eq!(info(&bench).bytes_delivered, 8 * u64::from(MSS));
    bench.sent();
    let after = info(&bench);
    assert_eq!((after.lost, after.retrans, after.ca_state), (0, 2, CaState::Recovery));
    assert_eq!(after.min_rtt, Some(MILLI * 10));
    while info(&bench).timeouts == 0 {
        bench.wait_for_timer();
    }
    assert_eq!(info(&bench).ca_state, CaState::Loss);
}

// tcpi_last_data_sent, tcpi_last_data_recv, tcpi_last_ack_recv.
#[test]
fn last_activity_times_are_reported() {
    let mut bench = Bench::new(state());
    bench.post(10);
    bench.sent();
    bench.now += MILLI * 3;
    bench.ack(10);
    bench.now += MILLI * 4;
    bench.input(data(0, b"x"));
    bench.now += MILLI * 5;
    let info = info(&bench);
    assert_eq!(info.last_data_sent, Some(MILLI * 12));
    assert_eq!(info.last_data_recv, Some(MILLI * 5));
    assert_eq!(info.last_ack_recv, Some(MILLI * 5));
}

// tcpi_busy_time, tcpi_rwnd_limited: from post to acknowledgment; and while the peer's window is too small.
#[test]
fn busy_and_rwnd_limited_times_are_counted() {
    let mut bench = Bench::new(state());
    bench.sent();
    bench.now += MILLI * 100;
    bench.post(3 * MSS as usize);
    bench.sent();
    bench.now += MILLI * 10;
    // The window is one segment: the first segment fits, the two later ones do not.
    bench.input(Segment { ack: LOCAL + 3 * MSS, window: MSS as u16, ..ack() });
    bench.sent();
    bench.now += MILLI * 100;
    assert_eq!((info(&bench).busy_time, info(&bench).rwnd_limited), (MILLI * 10, Duration::ZERO));
    bench.post(2 * MSS as usize);
    bench.sent();
    bench.now += MILLI * 20;
    assert_eq!((info(&bench).busy_time, info(&bench).rwnd_limited), (MILLI * 30, MILLI * 20));
    bench.ack(4 * MSS);
    bench.sent();
    bench.now += MILLI * 30;
    bench.ack(5 * MSS);
    bench.sent();
    bench.now += MILLI * 100;
    assert_eq!((info(&bench).busy_time, info(&bench).rwnd_limited), (MILLI * 60, MILLI * 20));
}
