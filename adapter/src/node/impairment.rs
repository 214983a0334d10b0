//! Impairments of a node's link: units, checks, and conversion for the link.

use std::{fmt, time::Duration};

use offload_engine::link::{Impairments, QueueLimit};
use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    units::{BitRate, ParseError, Percent, QueueSize, format_duration, parse_delay},
};

/// Minimum of a queue given as a time, bytes: a full-sized frame.
const QUEUE_MIN_BYTES: u64 = 1514;
/// Maximum mean burst, frames.
const BURST_FRAMES_MAX: u16 = 10_000;

/// Impairments of frames, applied in both directions. By default there are none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(
    feature = "clap",
    derive(clap::Args),
    command(next_help_heading = "Impairments (both directions, reproducible with --seed)")
)]
pub struct Impairment {
    /// Drop frames, percent: 0..=100
    // In parts per million.
    #[cfg_attr(
        feature = "clap",
        arg(long = "drop", value_name = "PERCENT", default_value_t, alias = "loss")
    )]
    pub drop_ppm: Percent,

    /// Drop in bursts of this mean length, frames: 1..=10000; 0: none
    ///
    /// --drop remains the share of all frames.
    #[cfg_attr(
        feature = "clap",
        arg(long = "burst", value_name = "FRAMES", default_value_t, value_parser = parse_burst)
    )]
    pub burst_frames: u16,

    /// Duplicate frames, percent: 0..=100
    // In parts per million, as the next two.
    #[cfg_attr(
        feature = "clap",
        arg(long = "dup", value_name = "PERCENT", default_value_t, alias = "duplicate")
    )]
    pub dup_ppm: Percent,

    /// Deliver frames after later ones, percent: 0..=100
    #[cfg_attr(feature = "clap", arg(long = "reorder", value_name = "PERCENT", default_value_t))]
    pub reorder_ppm: Percent,

    /// Invert one bit of frames, percent: 0..=100
    #[cfg_attr(feature = "clap", arg(long = "corrupt", value_name = "PERCENT", default_value_t))]
    pub corrupt_ppm: Percent,

    /// Delay each frame: 0s..=10s (ns, us, ms, s)
    // In nanoseconds.
    #[cfg_attr(
        feature = "clap",
        arg(long = "delay", value_name = "TIME", default_value = "0s", value_parser = parse_nanos)
    )]
    pub delay_ns: u64,

    /// Vary the delay by up to this time, in order: at most --delay
    // In nanoseconds.
    #[cfg_attr(
        feature = "clap",
        arg(long = "jitter", value_name = "TIME", default_value = "0s", value_parser = parse_nanos)
    )]
    pub jitter_ns: u64,

    /// Limit the rate, bits per second: 1kbit..=1Tbit [default: unlimited]
    #[cfg_attr(feature = "clap", arg(long = "rate", value_name = "RATE"))]
    pub rate_bps: Option<BitRate>,

    /// Limit the queue of --rate: 250kB, 100p or 20ms [default: 1514kB]
    ///
    /// Units: bytes (kB, KiB, MB, MiB), frames (p), or time at that rate (us, ms, s). Further frames are dropped.
    #[cfg_attr(feature = "clap", arg(long, value_name = "SIZE", alias = "limit"))]
    pub queue: Option<QueueSize>,
}

/// Parses the frames of a mean burst: 1..=10000, or 0 for none.
///
/// # Errors
/// The text is not a number in this range.
pub fn parse_burst(text: &str) -> Result<u16, String> {
    let frames = text.parse().ok().filter(|frames| *frames <= BURST_FRAMES_MAX);
    frames.ok_or_else(|| format!("expected frames, 1 to {BURST_FRAMES_MAX}, or 0 for no bursts"))
}

/// Parses a delay to nanoseconds, with the units of [`parse_delay`].
///
/// # Errors
/// As [`parse_delay`].
pub fn parse_nanos(text: &str) -> Result<u64, ParseError> {
    let delay = parse_delay(text)?;
    Ok(u64::try_from(delay.as_nanos()).expect("a delay is at most ten seconds"))
}

impl Impairment {
    /// Returns true if there are no impairments.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Converts the options for a link, with the seed of its random numbers.
    pub fn on_a_link(&self, seed: u64) -> Impairments {
        let rate_bps = self.rate_bps.map(BitRate::bits_per_second);
        let bytes_in = |nanos: u64| {
            let bits = u128::from(nanos) * u128::from(rate_bps.unwrap_or(0)) / 1_000_000_000;
            // A queue with room for less than one frame would drop every frame.
            u64::try_from(bits / 8).unwrap_or(u64::MAX).max(QUEUE_MIN_BYTES)
        };
        Impairments {
            drop_pct: self.drop_ppm.percent(),
            burst_mean: self.burst_frames.into(),
            duplicate_pct: self.dup_ppm.percent(),
            reorder_pct: self.reorder_ppm.percent(),
            corrupt_pct: self.corrupt_ppm.percent(),
            delay: Duration::from_nanos(self.delay_ns),
            jitter: Duration::from_nanos(self.jitter_ns),
            rate_bps,
            queue: match self.queue {
                None => QueueLimit::default(),
                Some(QueueSize::Bytes(bytes)) => QueueLimit::Bytes(bytes),
                Some(QueueSize::Frames(frames)) => QueueLimit::Frames(frames),
                Some(QueueSize::Nanos(nanos)) => QueueLimit::Bytes(bytes_in(nanos)),
            },
            seed,
        }
    }

    /// Checks the options against each other.
    ///
    /// # Errors
    /// An option error, naming the option and its limit.
    pub fn check(&self) -> Result<(), Error> {
        if let (Some(queue), None) = (self.queue, self.rate_bps) {
            return Err(Error::option(format!(
                "--queue {queue}: no effect without --rate: add --rate"
            )));
        }
        let checked = self.on_a_link(0).validate();
        checked.map_err(|error| Error::option(format!("impairment: {error}")))
    }
}

impl fmt::Display for Impairment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            return f.write_str("none");
        }
        let time = |nanos: u64| format_duration(Duration::from_nanos(nanos));
        write!(f, "drop {}", self.drop_ppm)?;
        if self.burst_frames > 0 {
            write!(f, " in bursts of {}", self.burst_frames)?;
        }
        write!(f, ", dup {}, reorder {}", self.dup_ppm, self.reorder_ppm)?;
        write!(f, ", corrupt {}, delay {}", self.corrupt_ppm, time(self.delay_ns))?;
        if self.jitter_ns > 0 {
            write!(f, " ± {}", time(self.jitter_ns))?;
        }
        match self.rate_bps {
            Some(rate) => write!(f, ", rate {rate}")?,
            None => f.write_str(", rate unlimited")?,
        }
        match self.queue {
            Some(queue) => write!(f, ", queue {queue}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impairments_keep_their_numbers() {
        let impairment = Impairment {
            drop_ppm: "0.5".parse().unwrap(),
            corrupt_ppm: "100".parse().unwrap(),
            delay_ns: 5_000_000,
            jitter_ns: 1_000_000,
            burst_frames: 3,
            rate_bps: Some("100Mbit".parse().unwrap()),
            queue: Some("20ms".parse().unwrap()),
            ..Impairment::default()
        };
        let impairments = impairment.on_a_link(7);
        assert_eq!(impairments.drop_pct, 0.5);
        assert_eq!(impairments.corrupt_pct, 100.0);
        assert_eq!(impairments.duplicate_pct, 0.0);
        assert_eq!(impairments.delay, Duration::from_millis(5));
        assert_eq!(impairments.rate_bps, Some(100_000_000));
        assert_eq!(impairments.jitter, Duration::from_millis(1));
        assert_eq!(impairments.burst_mean, 3.0);
        assert_eq!(impairments.queue, QueueLimit::Bytes(250_000));
        assert_eq!(impairments.seed, 7);
        assert_eq!(impairments.validate(), Ok(()));
    }
}
