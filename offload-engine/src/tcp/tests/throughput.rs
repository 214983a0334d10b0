//! Duration of a bulk transfer in virtual time over a short, lossy path, and counts of timeouts and retransmissions. A
//! regression of recovery exceeds a bound.

use oorandom::Rand64;

use super::{pair::pair, *};

/// One-way delay of the path.
const DELAY: Duration = Duration::from_micros(50);
/// Bytes of the transfer.
const TRANSFER: u64 = 16 * 1024 * 1024;
/// Bytes of one list.
const LIST: usize = 64 * 1024;

#[derive(Clone, Copy)]
struct LossyPath {
    sack: bool,
    gso_packets: bool,
    /// Frames dropped of 1000, in each direction.
    loss: u64,
}

fn transfer(path: LossyPath, seed: u128) -> (Duration, Info) {
    let mut pair = pair(DELAY, true, |tcp, config| {
        tcp.constant.sack_enabled = path.sack;
        tcp.cached.initial_rcv_wnd = 1 << 20;
        *config = Config::default();
    });
    pair.limits = if path.gso_packets { GSO } else { WIRE };
    pair.loss = Some((path.loss, Rand64::new(seed)));
    let block = Bytes::from(vec![7; LIST]);
    let mut posted = 0;
    let time = pair.until_received(TRANSFER as usize, |pair| {
        while posted < TRANSFER && pair.sender.send_room() > 0 {
            posted += LIST as u64;
            let list = NetBufferList::from_mdl(0, block.clone());
            pair.sender.post_send(pair.now, NblChain::from([list]));
        }
    });
    (time, pair.sender.info(pair.now))
}

/// Bounds of a row of the table.
struct Bound {
    path: LossyPath,
    millis: u64,
    timeouts: u64,
}

fn bound(sack: bool, loss: u64, millis: u64, timeouts: u64) -> Bound {
    Bound { path: LossyPath { sack, gso_packets: loss.is_multiple_of(20), loss }, millis, timeouts }
}

// RFC 8985, RFC 6582, RFC 6298: 16 MiB over 100 us. Timeouts are rare, even at 5 % and without SACK.
#[test]
fn losses_are_repaired_within_bounds() {
    for Bound { path, millis, timeouts } in [
        bound(true, 0, 10, 0),
        bound(false, 0, 10, 0),
        bound(true, 10, 450, 1),
        bound(true, 50, 5_000, 14),
        bound(false, 10, 2_500, 6),
        bound(false, 50, 20_000, 40),
    ] {
        for seed in 0..4 {
            let (time, info) = transfer(path, seed);
            let LossyPath { sack, loss, .. } = path;
            let row = alloc::format!("sack {sack} loss {loss} seed {seed}: {time:?} {info:?}");
            assert!(time <= Duration::from_millis(millis), "{row}");
            assert!(info.timeouts <= timeouts, "{row}");
            assert_eq!(info.bytes_sent, TRANSFER, "{row}");
            if loss == 0 {
                assert_eq!((info.total_retrans, info.fast_retransmits), (0, 0), "{row}");
                // Every list is 45 full segments and a short one with PSH.
                let lists = TRANSFER / LIST as u64;
                assert_eq!((info.segs_out, info.push_out), (46 * lists, lists), "{row}");
            }
        }
    }
}
