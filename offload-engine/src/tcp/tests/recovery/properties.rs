//! Retransmissions and scoreboard sums for any correct receiver and any network.

use proptest::prelude::*;

use super::*;

/// Events of the network for the segments of one turn, and the duration of the turn.
#[derive(Clone, Debug)]
struct Turn {
    /// Lost, late or duplicated segments: two bits per segment.
    outcomes: u64,
    /// Lost acknowledgments: one bit per segment.
    acks_lost: u64,
    micros: u64,
    post: usize,
}

fn turn() -> impl Strategy<Value = Turn> {
    // The AND of two masks sets a quarter of the bits.
    let sparse = || (any::<u64>(), any::<u64>()).prop_map(|(a, b)| a & b);
    (sparse(), sparse(), 1_u64..30_000, 0_usize..20_000)
        .prop_map(|(outcomes, acks_lost, micros, post)| Turn { outcomes, acks_lost, micros, post })
}

fn options() -> impl Strategy<Value = RecoveryOptions> {
    any::<[bool; 8]>().prop_map(|[a, b, c, d, e, f, g, h]| RecoveryOptions {
        rack: a,
        tail_loss_probe: b,
        prr: c,
        limited_transmit: d,
        early_retransmit: e,
        f_rto: f,
        undo: g,
        dsack: h,
    })
}

/// Receiver that conforms to the RFCs.
#[derive(Default)]
struct Peer {
    have: Vec<bool>,
    nxt: usize,
    /// Blocks, newest first.
    blocks: Vec<(usize, usize)>,
    sacked: Vec<bool>,
}

impl Peer {
    fn take(&mut self, start: usize, end: usize) -> Option<(usize, usize)> {
        self.have.resize(self.have.len().max(end), false);
        let duplicate = self.have[start..end].iter().all(|have| *have).then_some((start, end));
        self.have[start..end].fill(true);
        while self.have.get(self.nxt) == Some(&true) {
            self.nxt += 1;
        }
        let (mut low, mut high) = (start, end);
        if high > self.nxt {
            while low > self.nxt && self.have[low - 1] {
                low -= 1;
            }
            while self.have.get(high) == Some(&true) {
                high += 1;
            }
            self.blocks.retain(|(a, b)| *b < low || *a > high);
            self.blocks.insert(0, (low, high));
        }
        let nxt = self.nxt;
        self.blocks.retain(|(a, _)| *a > nxt);
        duplicate
    }

    /// Returns the SACK blocks of the acknowledgment, a DSACK first.
    fn sacks(&self, duplicate: Option<(usize, usize)>) -> Vec<(usize, usize)> {
        duplicate.into_iter().chain(self.blocks.iter().copied()).take(4).collect()
    }
}

struct Wire {
    bench: Bench,
    peer: Peer,
    with_sack: bool,
    late: Vec<(usize, usize)>,
    posted: usize,
}

impl Wire {
    /// Sends all segments allowed now; checks each.
    fn send(&mut self) -> Result<Vec<(usize, usize)>, TestCaseError> {
        let mut sent = vec![];
        for transmit in self.bench.transmit(WIRE) {
            let start = transmit.seq.distance(LOCAL);
            let una = self.bench.tcp.snd.una.seq().distance(LOCAL);
            prop_assert!(start >= una, "segment below SND.UNA");
            let (start, end) = (start as usize, start as usize + transmit.payload_len);
            prop_assert!(end <= self.posted);
            if transmit.retransmission {
                let sacked = self.peer.sacked.get(start..end).unwrap_or(&[]);
                prop_assert!(
                    !sacked.contains(&true),
                    "sacked bytes are retransmitted: {start}..{end}"
                );
            }
            sent.push((start, end));
        }
        Ok(sent)
    }

    fn arrive(&mut self, start: usize, end: usize, acked: bool) {
        let duplicate = self.peer.take(start, end);
        if !acked {
            return;
        }
        let sacks = if self.with_sack { self.peer.sacks(duplicate) } else { vec![] };
        self.peer.sacked.resize(self.peer.have.len(), false);
        for (start, end) in &sacks {
            self.peer.sacked[*start..*end].fill(true);
        }
        let seq = |offset: usize| LOCAL + offset as u32;
        let blocks: Vec<_> =
            sacks.iter().map(|(a, b)| SackBlock { start: seq(*a), end: seq(*b) }).collect();
        self.bench.input(Segment { ack: seq(self.peer.nxt), sack: &blocks, ..ack() });
    }

    fn turn(&mut self, turn: &Turn) -> Result<(), TestCaseError> {
        self.bench.post(turn.post);
        self.posted += turn.post;
        let late = core::mem::take(&mut self.late);
        let sent = self.send()?;
        self.bench.now += Duration::from_micros(turn.micros);
        if self.bench.tcp.poll_timeout().is_some_and(|at| at <= self.bench.now) {
            self.bench.tcp.handle_timeout(self.bench.now);
        }
        for (index, (start, end)) in sent.into_iter().enumerate() {
            let acked = turn.acks_lost >> (index % 64) & 1 == 0;
            match turn.outcomes >> (2 * index % 64) & 3 {
                1 => {}
                2 => self.late.push((start, end)),
                3 => {
                    self.arrive(start, end, acked);
                    self.arrive(start, end, acked);
                }
                _ => self.arrive(start, end, acked),
            }
        }
        for (start, end) in late {
            self.arrive(start, end, true);
        }
        self.check()
    }

    /// RFC 6675 §4: checks `pipe` and its parts.
    fn check(&mut self) -> Result<(), TestCaseError> {
        let tcp = &self.bench.tcp;
        let outstanding = tcp.snd.nxt.since(tcp.snd.una);
        prop_assert!(tcp.recovery.in_flight() <= outstanding);
        prop_assert!(tcp.recovery.occupied() <= outstanding);
        prop_assert!(tcp.recovery.is_idle() == (outstanding == 0));
        let timer_runs = outstanding == 0 || tcp.timers.is_running(Timer::Retransmit);
        prop_assert!(timer_runs, "outstanding data without a retransmission timer");
        Ok(())
    }
}

proptest! {
    // RFC 2018 §5, RFC 6675 §4: nothing below SND.UNA and nothing sacked is retransmitted, also after a timeout. The
    // sums hold, and all data arrives in the end.
    #[test]
    fn only_unsacked_data_is_retransmitted(
        with_sack: bool,
        recovery in options(),
        turns in prop::collection::vec(turn(), 1..60),
    ) {
        let mut state = state();
        state.tcp.constant.sack_enabled = with_sack;
        let bench = reno(state, recovery);
        let mut wire = Wire { bench, peer: Peer::default(), with_sack, late: vec![], posted: 0 };
        for turn in &turns {
            wire.turn(turn)?;
        }
        let no_impairments = Turn { outcomes: 0, acks_lost: 0, micros: 1_000, post: 0 };
        for _ in 0..2_000 {
            if wire.peer.nxt == wire.posted {
                break;
            }
            wire.turn(&no_impairments)?;
            let deadline = wire.bench.tcp.poll_timeout();
            wire.bench.now = wire.bench.now.max(deadline.unwrap_or(wire.bench.now));
            wire.bench.tcp.handle_timeout(wire.bench.now);
        }
        prop_assert_eq!(wire.peer.nxt, wire.posted);
    }
}
