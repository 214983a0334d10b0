//! Initial sequence numbers of accepted connections, and SYN cookies (RFC 6528, RFC 4987 §3.6).
//!
//! Both are SipHash-2-4 of the 4-tuple with a secret key. A SYN cookie is a SYN-ACK's sequence number from which the
//! returning ACK restores the connection, so a SYN needs no memory:
//!
//! | bits of the cookie | content |
//! |---|---|
//! | 31..29 | index of the peer's MSS, rounded down to a value of [`MSS_TABLE`] |
//! | 28..0 | hash of the period, the 4-tuple, the peer's ISN and the index |
//!
//! The other options (window scale, SACK, ECN) are encoded in the low bits of the SYN-ACK's timestamp, which the peer
//! echoes. A connection of a peer without timestamps lacks these options.
//!
//! Limits: a cookie is valid for one to two periods of [`PERIOD`], and only while the host has sent cookies in them.
//! Otherwise an ACK must contain an exact 32-bit sequence number. A guessed ACK is accepted with a probability of
//! 2^-28.

use core::hash::{Hash, Hasher};

use offload_engine::{
    frame::FlowKey,
    tcp::SeqNum,
    time::{Duration, Instant},
};
use siphasher::sip::SipHasher24;

use crate::wire::{SynOptions, WINDOW_SCALE_MAX};

/// Time during which new cookies have the same hash.
pub(crate) const PERIOD: Duration = Duration::from_secs(64);
/// MSS values that a cookie can express, in bytes: the minimum that a peer may announce, the default of RFC 9293, and
/// those of common MTUs.
const MSS_TABLE: [u16; 8] = [64, 536, 1220, 1360, 1440, 1460, 8940, 8960];
/// MSS of a peer without the option (RFC 9293 §3.7.1).
const DEFAULT_MSS: u16 = 536;
const MSS_SHIFT: u32 = 29;
/// Low bits of a timestamp that encode options.
const OPTION_BITS: u32 = 0x3f;
/// Window scale code for no scaling.
const NO_SCALE: u8 = 15;
/// RFC 6528 §3: the clock of initial sequence numbers ticks every 4 us.
const CLOCK_MICROS: u64 = 4;

/// Domain separation of the hash inputs.
#[derive(Clone, Copy, Hash)]
enum Purpose {
    Isn,
    Cookie { period: u64, irs: u32, mss: u32 },
}

/// Options of a SYN that a cookie preserves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Restored {
    pub(crate) options: SynOptions,
    pub(crate) ecn: bool,
}

/// Source of initial sequence numbers.
#[derive(Debug)]
pub(crate) struct Isns {
    key: [u64; 2],
    /// Time of the last cookie.
    last_cookie: Option<Instant>,
}

impl Isns {
    pub(crate) const fn new(key: [u64; 2]) -> Self {
        Self { key, last_cookie: None }
    }

    fn hash(&self, tuple: &FlowKey, purpose: Purpose) -> u32 {
        let mut hasher = SipHasher24::new_with_keys(self.key[0], self.key[1]);
        (tuple, purpose).hash(&mut hasher);
        hasher.finish() as u32
    }

    /// Initial sequence number of a connection (RFC 6528 §3).
    pub(crate) fn isn(&self, now: Instant, tuple: &FlowKey) -> SeqNum {
        // Truncated modulo 2^32, like all sequence numbers.
        let clock = (now.as_micros() / CLOCK_MICROS) as u32;
        SeqNum(self.hash(tuple, Purpose::Isn).wrapping_add(clock))
    }

    /// Cookie for a SYN with sequence number `irs` and this MSS option.
    pub(crate) fn cookie(
        &mut self,
        now: Instant,
        tuple: &FlowKey,
        irs: SeqNum,
        mss: Option<u16>,
    ) -> SeqNum {
        self.last_cookie = Some(now);
        let mss = mss.unwrap_or(DEFAULT_MSS);
        let above = MSS_TABLE.partition_point(|&known| known <= mss);
        self.cookie_of(period(now), tuple, irs, above.saturating_sub(1) as u32)
    }

    fn cookie_of(&self, period: u64, tuple: &FlowKey, irs: SeqNum, mss: u32) -> SeqNum {
        let hash = self.hash(tuple, Purpose::Cookie { period, irs: irs.0, mss });
        SeqNum(mss << MSS_SHIFT | hash & ((1 << MSS_SHIFT) - 1))
    }

    /// True if a sent cookie may still be returned.
    pub(crate) fn expects_cookies(&self, now: Instant) -> bool {
        self.last_cookie.is_some_and(|sent| period(now) - period(sent) <= 1)
    }

    /// Options of a cookie returned as `iss`, with the echoed timestamp; `None`: not a cookie.
    pub(crate) fn restore(
        &self,
        now: Instant,
        tuple: &FlowKey,
        (irs, iss): (SeqNum, SeqNum),
        echo: Option<u32>,
    ) -> Option<Restored> {
        if !self.expects_cookies(now) {
            return None;
        }
        let (current, mss) = (period(now), iss.0 >> MSS_SHIFT);
        let mut periods = [Some(current), current.checked_sub(1)].into_iter().flatten();
        if !periods.any(|period| self.cookie_of(period, tuple, irs, mss) == iss) {
            return None;
        }
        let mss = Some(MSS_TABLE[mss as usize]);
        Some(match echo {
            None => {
                let options = SynOptions { mss, window_scale: None, sack: false };
                Restored { options, ecn: false }
            }
            Some(echo) => {
                let scale = (echo & 0xf) as u8;
                let window_scale = (scale <= WINDOW_SCALE_MAX).then_some(scale);
                let options = SynOptions { mss, window_scale, sack: echo & 1 << 4 != 0 };
                Restored { options, ecn: echo & 1 << 5 != 0 }
            }
        })
    }
}

/// Timestamp at or shortly before `clock` that encodes the options not in a cookie.
pub(crate) fn timestamp_with(clock: u32, kept: Restored) -> u32 {
    let scale = kept.options.window_scale.unwrap_or(NO_SCALE);
    let bits = u32::from(scale) | u32::from(kept.options.sack) << 4 | u32::from(kept.ecn) << 5;
    let value = clock & !OPTION_BITS | bits;
    // RFC 7323 §5.3: later segments of the connection have no smaller value.
    if bits > clock & OPTION_BITS { value.wrapping_sub(OPTION_BITS + 1) } else { value }
}

const fn period(now: Instant) -> u64 {
    now.as_micros() / PERIOD.as_micros() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u64; 2] = [7, 11];

    fn tuple(port: u16) -> FlowKey {
        FlowKey::new("10.0.0.2:5000".parse().unwrap(), ([10, 0, 0, 1], port).into())
    }

    fn at(secs: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(secs)
    }

    #[test]
    fn options_return_with_the_ack() {
        let mut isns = Isns::new(KEY);
        for (mss, expected) in [
            (None, 536),
            (Some(1), 64),
            (Some(100), 64),
            (Some(1460), 1460),
            (Some(1459), 1440),
            (Some(u16::MAX), 8960),
        ] {
            for window_scale in [None, Some(0), Some(7), Some(14)] {
                for (sack, ecn) in [(false, true), (true, false)] {
                    let options = SynOptions { mss: Some(expected), window_scale, sack };
                    let offer = Restored { options, ecn };
                    for clock in [0, 5, 63, 64, 1 << 20, u32::MAX] {
                        let iss = isns.cookie(at(9), &tuple(1), SeqNum(77), mss);
                        let echo = timestamp_with(clock, offer);
                        assert!(clock.wrapping_sub(echo) < 64, "{clock}: {echo}");
                        let ends = (SeqNum(77), iss);
                        let restored = isns.restore(at(9), &tuple(1), ends, Some(echo));
                        assert_eq!(restored, Some(offer));
                        let bare = isns.restore(at(9), &tuple(1), ends, None).unwrap();
                        assert_eq!((bare.options.window_scale, bare.ecn), (None, false));
                        assert!(bare.options.mss == Some(expected) && !bare.options.sack);
                    }
                }
            }
        }
    }

    #[test]
    fn cookies_expire_and_belong_to_one_syn() {
        let mut isns = Isns::new(KEY);
        let irs = SeqNum(77);
        let iss = isns.cookie(at(63), &tuple(1), irs, Some(1460));
        let is_valid = |isns: &Isns, secs, port, irs, iss| {
            isns.restore(at(secs), &tuple(port), (irs, iss), None)
        };
        assert!(is_valid(&isns, 63, 1, irs, iss).is_some());
        assert!(is_valid(&isns, 127, 1, irs, iss).is_some(), "the next period");
        assert_eq!(is_valid(&isns, 128, 1, irs, iss), None, "none was sent for two periods");
        isns.cookie(at(128), &tuple(9), irs, None);
        assert_eq!(is_valid(&isns, 128, 1, irs, iss), None, "expired");
        let iss = isns.cookie(at(128), &tuple(1), irs, Some(1460));
        assert_eq!(is_valid(&isns, 128, 2, irs, iss), None, "another 4-tuple");
        assert_eq!(is_valid(&isns, 128, 1, irs + 1, iss), None, "another SYN");
        assert_eq!(is_valid(&isns, 128, 1, irs, iss + 1), None, "another number");
        assert_eq!(is_valid(&isns, 128, 1, irs, SeqNum(iss.0 ^ 1 << 31)), None, "another MSS");
        assert_eq!(is_valid(&Isns { key: [7, 12], ..isns }, 128, 1, irs, iss), None, "another key");
    }

    // RFC 6528 §3: later connections of a 4-tuple have higher sequence numbers; other 4-tuples are independent.
    #[test]
    fn sequence_numbers_follow_the_clock_of_each_4_tuple() {
        let isns = Isns::new(KEY);
        let one = |secs, port| isns.isn(at(secs), &tuple(port));
        assert_eq!(one(5, 1).0.wrapping_sub(one(1, 1).0), 1_000_000);
        let mut starts = (0..200).map(|port| one(1, port).0 >> 24).collect::<alloc::vec::Vec<_>>();
        starts.sort_unstable();
        starts.dedup();
        assert!(starts.len() > 90, "{} of 256", starts.len());
    }
}
