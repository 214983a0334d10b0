//! The weather on the wire: what was typed, what it means, and the same in the words of the link.

use std::{fmt, time::Duration};

use clap::Args;
use offload_engine::link::{Impairments, QueueLimit};
use serde::{Deserialize, Serialize};

use crate::{
    failure::Failure,
    units::{BitRate, Percent, QueueSize, format_duration, parse_delay},
};

/// Least that a queue given as a time holds, bytes: a full-sized frame.
const QUEUE_MIN_BYTES: u64 = 1514;

/// Impairments of frames, applied in both directions, repeatable by `--seed`.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
#[command(next_help_heading = "Impairments (both directions, repeatable with --seed)")]
pub struct ImpairmentOptions {
    /// Frames to lose, percent: 0..=100
    #[arg(long, value_name = "PERCENT", default_value_t, alias = "loss")]
    pub drop: Percent,

    /// Lose frames in bursts of so many on average (--drop of all): 1..=10000
    /// [default: each for itself]
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub burst: Option<u16>,

    /// Frames to deliver twice, percent: 0..=100
    #[arg(long, value_name = "PERCENT", default_value_t, alias = "duplicate")]
    pub dup: Percent,

    /// Frames to deliver after their successors, percent: 0..=100
    #[arg(long, value_name = "PERCENT", default_value_t)]
    pub reorder: Percent,

    /// Frames to change one bit in, percent: 0..=100
    #[arg(long, value_name = "PERCENT", default_value_t)]
    pub corrupt: Percent,

    /// Time to hold each frame back: 0s..=10s, unit ns, us, ms or s [default: 0s]
    #[arg(long, value_name = "TIME", value_parser = parse_delay)]
    pub delay: Option<Duration>,

    /// Vary the delay by so much either way, in order: at most the delay [default: 0s]
    #[arg(long, value_name = "TIME", value_parser = parse_delay)]
    pub jitter: Option<Duration>,

    /// Rate of the wire: 1kbit..=1Tbit, bits per second [default: unlimited]
    #[arg(long, value_name = "RATE")]
    pub rate: Option<BitRate>,

    /// What may wait before a wire with --rate: bytes (250kB, 1MiB), frames (100p), or time at that
    /// rate (20ms); more is lost [default: 1514kB]
    #[arg(long, value_name = "SIZE", alias = "limit")]
    pub queue: Option<QueueSize>,
}

/// The weather on the wire, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Impairment {
    /// Frames lost, parts per million.
    pub drop_ppm: Percent,
    /// Frames lost in a row on average: 1..=10 000; 0: each for itself.
    pub burst_frames: u16,
    /// Frames delivered twice, parts per million.
    pub dup_ppm: Percent,
    /// Frames delivered after their successors, parts per million.
    pub reorder_ppm: Percent,
    /// Frames with one bit changed, parts per million.
    pub corrupt_ppm: Percent,
    /// Time each frame is held back, nanoseconds.
    pub delay_ns: u64,
    /// By how much that varies either way, nanoseconds: at most the delay.
    pub jitter_ns: u64,
    /// Rate of the wire; `None`: unlimited.
    pub rate_bps: Option<BitRate>,
    /// What may wait before a wire with a rate; `None`: 1 514 000 bytes.
    pub queue: Option<QueueSize>,
}

impl Impairment {
    /// Whether the wire is as good as it gets.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The same in the words of the link, with what its dice start from.
    pub fn on_a_link(&self, seed: u64) -> Impairments {
        let Self {
            drop_ppm,
            burst_frames,
            dup_ppm,
            reorder_ppm,
            corrupt_ppm,
            delay_ns,
            jitter_ns,
            rate_bps,
            queue,
        } = *self;
        let rate_bps = rate_bps.map(|rate| rate.bits_per_second());
        let bytes_in = |nanos: u64| {
            let bits = u128::from(nanos) * u128::from(rate_bps.unwrap_or(0)) / 1_000_000_000;
            // A queue that never has room for a frame would not be a short one, but none.
            u64::try_from(bits / 8).unwrap_or(u64::MAX).max(QUEUE_MIN_BYTES)
        };
        Impairments {
            drop_pct: drop_ppm.percent(),
            burst_mean: burst_frames.into(),
            duplicate_pct: dup_ppm.percent(),
            reorder_pct: reorder_ppm.percent(),
            corrupt_pct: corrupt_ppm.percent(),
            delay: Duration::from_nanos(delay_ns),
            jitter: Duration::from_nanos(jitter_ns),
            rate_bps,
            queue: match queue {
                None => QueueLimit::default(),
                Some(QueueSize::Bytes(bytes)) => QueueLimit::Bytes(bytes),
                Some(QueueSize::Frames(frames)) => QueueLimit::Frames(frames),
                Some(QueueSize::Nanos(nanos)) => QueueLimit::Bytes(bytes_in(nanos)),
            },
            seed,
        }
    }
}

impl ImpairmentOptions {
    /// Checks the options against each other.
    ///
    /// # Errors
    /// [`Failure::usage`], naming the option and its limit.
    pub fn resolve(&self) -> Result<Impairment, Failure> {
        let Self { drop, burst, dup, reorder, corrupt, delay, jitter, rate, queue } = self;
        let nanos = |time: &Option<Duration>| {
            let time = time.unwrap_or_default();
            u64::try_from(time.as_nanos()).expect("parse_delay bounds it to ten seconds")
        };
        if let (Some(queue), None) = (queue, rate) {
            return Err(Failure::usage(format!(
                "--queue {queue}: nothing waits before a wire without --rate"
            )));
        }
        let weather = Impairment {
            drop_ppm: *drop,
            burst_frames: burst.unwrap_or(0),
            dup_ppm: *dup,
            reorder_ppm: *reorder,
            corrupt_ppm: *corrupt,
            delay_ns: nanos(delay),
            jitter_ns: nanos(jitter),
            rate_bps: *rate,
            queue: *queue,
        };
        let checked = weather.on_a_link(0).validate();
        checked.map_err(|error| Failure::usage(format!("impairment: {error}")))?;
        Ok(weather)
    }
}

impl fmt::Display for Impairment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            return f.write_str("none");
        }
        let Self {
            drop_ppm,
            burst_frames,
            dup_ppm,
            reorder_ppm,
            corrupt_ppm,
            delay_ns,
            jitter_ns,
            rate_bps,
            queue,
        } = self;
        let time = |nanos: &u64| format_duration(Duration::from_nanos(*nanos));
        write!(f, "drop {drop_ppm}")?;
        if *burst_frames > 0 {
            write!(f, " in bursts of {burst_frames}")?;
        }
        write!(f, ", dup {dup_ppm}, reorder {reorder_ppm}, corrupt {corrupt_ppm}, ")?;
        write!(f, "delay {}", time(delay_ns))?;
        if *jitter_ns > 0 {
            write!(f, " ± {}", time(jitter_ns))?;
        }
        match rate_bps {
            Some(rate) => write!(f, ", rate {rate}")?,
            None => f.write_str(", rate unlimited")?,
        }
        match queue {
            Some(queue) => write!(f, ", queue {queue}"),
            None => Ok(()),
        }
    }
}
