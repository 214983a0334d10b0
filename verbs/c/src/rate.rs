//! C interface of link rates: conversions between enumeration, multiple and Mbit/s.

use std::ffi::c_int;

use flue_verbs_abi::enums::{IBV_RATE_MAX, ibv_rate};

/// Rates: number, multiple of 2.5 Gbit/s, Mbit/s. Lanes of 14 and 25 Gbit/s have no multiple.
const RATES: [(u32, Option<c_int>, c_int); 23] = [
    (2, Some(1), 2500),
    (5, Some(2), 5000),
    (3, Some(4), 10_000),
    (6, Some(8), 20_000),
    (4, Some(12), 30_000),
    (7, Some(16), 40_000),
    (8, Some(24), 60_000),
    (9, Some(32), 80_000),
    (10, Some(48), 120_000),
    (11, None, 14_062),
    (12, None, 56_250),
    (13, None, 112_500),
    (14, None, 168_750),
    (15, None, 25_781),
    (16, None, 103_125),
    (17, None, 206_250),
    (18, None, 309_375),
    (19, Some(11), 28_125),
    (20, Some(20), 53_125),
    (21, Some(160), 425_000),
    (22, Some(240), 637_500),
    (23, Some(320), 850_000),
    (24, Some(480), 1_275_000),
];

pub(crate) extern "C" fn ibv_rate_to_mult(rate: ibv_rate) -> c_int {
    RATES.iter().find(|row| row.0 == rate.0).and_then(|row| row.1).unwrap_or(-1)
}

pub(crate) extern "C" fn mult_to_ibv_rate(mult: c_int) -> ibv_rate {
    RATES.iter().find(|row| row.1 == Some(mult)).map_or(IBV_RATE_MAX, |row| ibv_rate(row.0))
}

pub(crate) extern "C" fn ibv_rate_to_mbps(rate: ibv_rate) -> c_int {
    RATES.iter().find(|row| row.0 == rate.0).map_or(-1, |row| row.2)
}

pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate {
    RATES.iter().find(|row| row.2 == mbps).map_or(IBV_RATE_MAX, |row| ibv_rate(row.0))
}
