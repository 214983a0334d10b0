//! Choice of the initial sequence number of a smoltcp socket.
//!
//! `Socket::connect` draws the ISN from the interface's generator, an LCG modulo 2^64 with an output shift, seeded by
//! `Config::random_seed`. An LCG is invertible, so the seed of a given ISN can be computed. The ISN is put into the
//! upper half of the state, with the three top bits 0 so that the output shift is 29. The state is then stepped back by
//! the number of draws before the ISN.
//!
//! A draw in between that must not be 0 is repeated when it is (1 in 65 536), and then the ISN is wrong: the importer
//! checks the SYN and tries another salt. The unit test fails if a new version of smoltcp draws differently; at run
//! time the same check refuses the import. (The alternative needs no knowledge of the generator: shifting sequence
//! numbers, acknowledgment numbers and SACK edges of every later frame by a constant.)

/// Draws from seeding up to and including the ISN of the first `connect`: the interface draws one for its IPv4
/// identification.
const DRAWS: u32 = 2;
const MULTIPLIER: u64 = 0xbb2e_fcec_3c39_611d;
const INCREMENT: u64 = 0x7590_ef39;

/// Inverse of the multiplier modulo 2^64, by Newton's iteration: each round doubles the number of correct bits.
const INVERSE: u64 = {
    let mut inverse: u64 = 1;
    let mut round = 0;
    while round < 6 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(MULTIPLIER.wrapping_mul(inverse)));
        round += 1;
    }
    inverse
};

/// Number of salts tried: each fails independently with probability 1 in 65 536.
pub(super) const SALTS: u32 = 8;

/// Seed for which the first `connect` of a fresh interface draws `isn`. Every `salt` below 2^29 yields another one.
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
        let socket = stage.add_socket(fresh_socket(1024, 1024));
        assert!(stage.connect(socket));
        stage.poll(Instant::ZERO)[0].seq.0
    }

    #[test]
    fn inverse_inverts() {
        assert_eq!(MULTIPLIER.wrapping_mul(INVERSE), 1);
    }

    // Calibration: fails if smoltcp changes its generator or draws more often.
    #[test]
    fn chosen_isn_is_drawn() {
        let mut random = oorandom::Rand32::new(7);
        let mut isns = std::vec![0, 1, 0xffff_fff0, u32::MAX, 1 << 31];
        isns.extend((0..2_000).map(|_| random.rand_u32()));
        for isn in isns {
            let found = (0..SALTS).position(|salt| drawn(seed_for(isn, salt)) == isn);
            assert!(found.is_some_and(|salt| salt <= 1), "ISN {isn}: {found:?}");
        }
    }
}
