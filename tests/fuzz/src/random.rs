//! Scripts from seeds.

use oorandom::Rand32;

use crate::script::{AckFrom, Forged, Op, SeqFrom, Setup, Stamp};

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
const URG: u8 = 0x20;
const ECE: u8 = 0x40;
const CWR: u8 = 0x80;

/// Behavior of one seed's adversary.
struct AdversaryProfile {
    /// Segments per thousand that no conforming peer would send.
    hostile: u32,
    /// Segments per thousand with data.
    data_per_mille: u32,
    /// Segments per thousand with an RST at the right sequence number.
    fatal: u32,
}

fn chance(random: &mut Rand32, of_thousand: u32) -> bool {
    random.rand_range(0..1_000) < of_thousand
}

fn below(random: &mut Rand32, end: u32) -> u32 {
    random.rand_range(0..end)
}

fn length(random: &mut Rand32) -> u16 {
    let most = [1, 100, 1_460, 5_000, 40_000][below(random, 5) as usize];
    random.rand_range(0..most + 1) as u16
}

/// Script of a seed.
pub fn script(seed: u64) -> (Setup, Vec<Op>) {
    let mut random = Rand32::new(seed);
    let random = &mut random;
    let near_wrap = |random: &mut Rand32| match below(random, 2) {
        0 => random.rand_u32(),
        _ => u32::MAX - below(random, 20_000),
    };
    let setup = Setup {
        timestamps: chance(random, 500),
        sack: chance(random, 700),
        nagle: chance(random, 300),
        push_at_end: chance(random, 500),
        unlimited: chance(random, 200),
        newreno: chance(random, 400),
        ecn: chance(random, 300),
        pacing: chance(random, 200),
        scale: [0, 0, 1, 3, 7, 14][below(random, 6) as usize],
        mss: below(random, 256) as u8,
        receive_window: random.rand_u32() as u16,
        send_window: random.rand_u32() as u16,
        local_isn: near_wrap(random),
        remote_isn: near_wrap(random),
    };
    let profile = AdversaryProfile {
        hostile: [0, 50, 300, 700][below(random, 4) as usize],
        data_per_mille: [100, 500, 900][below(random, 3) as usize],
        fatal: [0, 0, 0, 5][below(random, 4) as usize],
    };
    let count = 20 + below(random, 300);
    (setup, (0..count).map(|_| op(random, &profile)).collect())
}

fn op(random: &mut Rand32, profile: &AdversaryProfile) -> Op {
    match below(random, 1_000) {
        0..520 => Op::Segment(segment(random, profile)),
        520..620 => Op::Post { lists: 1 + below(random, 4) as u8, len: length(random) },
        620..800 => {
            let count = [1, 3, 255][below(random, 3) as usize];
            Op::Transmit { count, gso_packets: chance(random, 500) }
        }
        800..860 => Op::Timer,
        860..920 => {
            let most = [1_000, 50_000, 2_000_000][below(random, 3) as usize];
            Op::Wait { micros: below(random, most) }
        }
        920..945 => Op::Refuse { after: length(random) },
        945..985 => Op::Resume,
        985..990 => Op::Detach,
        990..992 => Op::Disconnect { len: length(random) },
        992 if profile.fatal > 0 => Op::Abort,
        _ => Op::Timer,
    }
}

/// Segment that a conforming peer on a bad path could send, or that an attacker would.
fn segment(random: &mut Rand32, profile: &AdversaryProfile) -> Forged {
    let mut forged = conforming_segment(random, profile);
    if chance(random, profile.fatal) {
        return Forged { seq_from: SeqFrom::Next, seq: 0, flags: RST | ACK, ..forged };
    }
    if !chance(random, profile.hostile) {
        return forged;
    }
    // One or two fields are wrong.
    for _ in 0..1 + below(random, 2) {
        match below(random, 10) {
            0 => {
                forged.seq_from = SeqFrom::Anywhere;
                forged.seq = random.rand_u32().cast_signed();
            }
            1 => {
                forged.seq_from = SeqFrom::Edge;
                forged.seq = below(random, 3_000).cast_signed() - 1_500;
            }
            2 => {
                forged.ack_from = AckFrom::Anywhere;
                forged.ack = random.rand_u32().cast_signed();
            }
            3 => {
                forged.ack_from = AckFrom::Max;
                forged.ack = below(random, 4_000).cast_signed() - 1_000;
            }
            4 => forged.flags = random.rand_u32() as u8 & !(URG | RST),
            5 => {
                // A reset close to the exact sequence number.
                forged.flags = RST | forged.flags & ACK;
                forged.seq_from = SeqFrom::Next;
                forged.seq = below(random, 5_000).cast_signed() - 2_000;
                forged.seq += i32::from(forged.seq == 0);
            }
            6 => forged.flags = SYN | [0, ACK][below(random, 2) as usize],
            7 => {
                let stamps = [Stamp::Absent, Stamp::Ancient, Stamp::Late, Stamp::Ahead];
                forged.stamp = stamps[below(random, 4) as usize];
                forged.echo = (random.rand_u32() as u16).cast_signed();
            }
            8 => {
                forged.blocks = 1 + below(random, 4) as u8;
                forged.block = [0; 3].map(|_| (random.rand_u32() as u16).cast_signed());
            }
            _ if chance(random, 10) => forged.flags |= URG,
            _ => forged.window = [0, 1, 65_535][below(random, 3) as usize],
        }
    }
    forged
}

fn conforming_segment(random: &mut Rand32, profile: &AdversaryProfile) -> Forged {
    let len = if chance(random, profile.data_per_mille) { length(random) } else { 0 };
    let seq = match below(random, 10) {
        // In order, a duplicate or an overlap, or after a gap.
        0..6 => 0,
        6 => -below(random, 3_000).cast_signed(),
        _ => below(random, 6_000).cast_signed(),
    };
    let seq_from = if chance(random, 200) { SeqFrom::Highest } else { SeqFrom::Next };
    let (ack_from, ack) = match below(random, 4) {
        0 => (AckFrom::Una, 0),
        1 => (AckFrom::Max, 0),
        _ => (AckFrom::Between, below(random, 65_536).cast_signed()),
    };
    let flags = match below(random, 60) {
        0 => ACK | FIN,
        1..20 => ACK | PSH,
        20..25 => ACK | ECE,
        25..28 => ACK | CWR,
        _ => ACK,
    };
    let window = match below(random, 12) {
        0 => 0,
        1 => below(random, 2_000) as u16,
        _ => random.rand_u32() as u16,
    };
    let blocks = if chance(random, 200) { 1 + below(random, 3) as u8 } else { 0 };
    let stamp = if chance(random, 30) { Stamp::Late } else { Stamp::Current };
    let block = [below(random, 8_000), 1 + below(random, 3_000), 1 + below(random, 6_000)]
        .map(|n| n as i16);
    Forged {
        seq_from,
        seq: if seq_from == SeqFrom::Highest { 0 } else { seq },
        ack_from,
        ack,
        flags,
        window,
        len,
        stamp,
        blocks,
        ecn: [0, 2, 2, 3][below(random, 4) as usize],
        echo: 0,
        block,
    }
}
