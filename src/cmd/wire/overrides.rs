//! Overrides of one direction: `drop=1,delay=5ms`.

use std::{fmt, str::FromStr};

use flue_adapter::{Impairment, parse_burst, parse_nanos};

use crate::units::{BitRate, ParseError, Percent, QueueSize};

/// Settings of one direction that override those of both. Empty by default.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Overrides {
    text: String,
    settings: Vec<Setting>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Setting {
    Drop(Percent),
    Burst(u16),
    Dup(Percent),
    Reorder(Percent),
    Corrupt(Percent),
    Delay(u64),
    Jitter(u64),
    Rate(Option<BitRate>),
    Queue(QueueSize),
}

const KEYS: &str = "drop, burst, dup, reorder, corrupt, delay, jitter, rate, queue";

impl Overrides {
    /// Returns the settings for both directions with these overrides. A wire without a rate has no queue.
    pub fn applied_to(&self, both: &Impairment) -> Impairment {
        let mut impairment = *both;
        for setting in &self.settings {
            match *setting {
                Setting::Drop(share) => impairment.drop_ppm = share,
                Setting::Burst(frames) => impairment.burst_frames = frames,
                Setting::Dup(share) => impairment.dup_ppm = share,
                Setting::Reorder(share) => impairment.reorder_ppm = share,
                Setting::Corrupt(share) => impairment.corrupt_ppm = share,
                Setting::Delay(nanos) => impairment.delay_ns = nanos,
                Setting::Jitter(nanos) => impairment.jitter_ns = nanos,
                Setting::Rate(rate) => impairment.rate_bps = rate,
                Setting::Queue(size) => impairment.queue = Some(size),
            }
        }
        let sets_queue = self.settings.iter().any(|setting| matches!(setting, Setting::Queue(_)));
        let takes_rate = self.settings.contains(&Setting::Rate(None));
        if takes_rate && !sets_queue {
            impairment.queue = None;
        }
        impairment
    }
}

impl Setting {
    fn parse(key: &str, value: &str) -> Result<Self, String> {
        let why = |error: ParseError| format!("{key}={value}: {error}");
        let percent = || value.parse().map_err(why);
        let time = || parse_nanos(value).map_err(why);
        Ok(match key {
            "drop" | "loss" => Self::Drop(percent()?),
            "burst" => {
                Self::Burst(parse_burst(value).map_err(|why| format!("{key}={value}: {why}"))?)
            }
            "dup" | "duplicate" => Self::Dup(percent()?),
            "reorder" => Self::Reorder(percent()?),
            "corrupt" => Self::Corrupt(percent()?),
            "delay" => Self::Delay(time()?),
            "jitter" => Self::Jitter(time()?),
            "rate" if value == "unlimited" => Self::Rate(None),
            "rate" => Self::Rate(Some(value.parse().map_err(why)?)),
            "queue" | "limit" => Self::Queue(value.parse().map_err(why)?),
            _ => return Err(format!("{key:?}: expected one of {KEYS}")),
        })
    }
}

impl FromStr for Overrides {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words = text.split([',', ' ']).filter(|word| !word.is_empty());
        let setting = |word: &str| match word.split_once('=') {
            Some((key, value)) => Setting::parse(key, value),
            None => Err(format!("{word:?}: expected KEY=VALUE, such as drop=1")),
        };
        let settings = words.map(setting).collect::<Result<_, _>>()?;
        Ok(Self { text: text.to_owned(), settings })
    }
}

impl fmt::Display for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
