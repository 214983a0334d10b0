//! Choosing the initial sequence number of a smoltcp socket.
//!
//! `Socket::connect` draws the ISN from the interface's generator, an LCG modulo 2^64 with an output
//! shift, seeded by `Config::random_seed`. An LCG runs backward as well as forward, so a seed can be
//! computed that yields a given ISN: put it in the state's upper half, with the three top bits 0 so
//! that the output shift is 29, and step back as often as the interface draws before.
//!
//! A draw in between that must not be 0 is repeated when it is (1 in 65 536), and then the ISN comes
//! out wrong: the importer looks at the SYN and tries another salt. The unit test fails when a new
//! version of smoltcp draws differently; at run time the same look at the SYN refuses the import.
//! (The alternative, a constant shift of sequence and acknowledgement numbers and of SACK edges in the
//! frame path for the connection's remaining life, would need no knowledge of the generator.)

/// Draws from seeding to the ISN of the first `connect`, that one included: the interface takes one
/// for its IPv4 identification.
const DRAWS: u32 = 2;
const MULTIPLIER: u64 = 0xbb2e_fcec_3c39_611d;
const INCREMENT: u64 = 0x7590_ef39;

/// The multiplier's inverse modulo 2^64, by Newton's iteration: each round doubles the right bits.
const INVERSE: u64 = {
    let mut inverse: u64 = 1;
    let mut round = 0;
    while round < 6 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(MULTIPLIER.wrapping_mul(inverse)));
        round += 1;
    }
    inverse
};

/// Salts worth trying: each fails independently with a chance of 1 in 65 536.
pub(super) const SALTS: u32 = 8;

/// The seed that makes the first `connect` of a fresh interface draw `isn`. Every `salt` below 2^29
/// gives another one.
pub(super) fn seed_for(isn: u32, salt: u32) -> u64 {
    // An odd multiplier spreads small salts over the 29 bits.
    let low = salt.wrapping_mul(0x9e37_79b1) & 0x1fff_ffff;
    let mut state = u64::from(isn) << 29 | u64::from(low);
    for _ in 0..DRAWS {
        state = state.wrapping_sub(INCREMENT).wrapping_mul(INVERSE);
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handoff::{import::fresh_socket, stage::Stage};
    use offload_engine::frame::FlowKey;
    use smoltcp::time::Instant;

    fn drawn(seed: u64) -> u32 {
        let tuple = FlowKey::new("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
        let mut stage = Stage::new(Instant::ZERO, tuple, seed);
        let socket = stage.enter(fresh_socket(1024, 1024));
        assert!(stage.connect(socket));
        stage.listen(Instant::ZERO)[0].seq.0
    }

    #[test]
    fn inverse_inverts() {
        assert_eq!(MULTIPLIER.wrapping_mul(INVERSE), 1);
    }

    // The calibration: fails loudly when smoltcp changes its generator or draws more often.
    #[test]
    fn isn_comes_out_as_chosen() {
        let mut random = oorandom::Rand32::new(7);
        let mut isns = std::vec![0, 1, 0xffff_fff0, u32::MAX, 1 << 31];
        isns.extend((0..2_000).map(|_| random.rand_u32()));
        for isn in isns {
            let found = (0..SALTS).position(|salt| drawn(seed_for(isn, salt)) == isn);
            assert!(found.is_some_and(|salt| salt <= 1), "ISN {isn}: {found:?}");
        }
    }
}
