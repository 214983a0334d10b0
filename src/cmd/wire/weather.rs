//! What one direction does differently: `drop=1,delay=5ms`.

use std::{fmt, str::FromStr, time::Duration};

use crate::{
    options::ImpairmentOptions,
    units::{BitRate, ParseError, Percent, QueueSize, parse_delay},
};

/// Settings of one direction that take the place of those for both. Nothing by default.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Overrides {
    text: String,
    settings: Vec<Setting>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Setting {
    Drop(Percent),
    Burst(Option<u16>),
    Dup(Percent),
    Reorder(Percent),
    Corrupt(Percent),
    Delay(Duration),
    Jitter(Duration),
    Rate(Option<BitRate>),
    Queue(QueueSize),
}

const KEYS: &str = "drop, burst, dup, reorder, corrupt, delay, jitter, rate, queue";

impl Overrides {
    /// The settings for both directions with these in their place. A wire without a rate has no queue.
    pub fn applied_to(&self, both: &ImpairmentOptions) -> ImpairmentOptions {
        let mut options = both.clone();
        for setting in &self.settings {
            match *setting {
                Setting::Drop(share) => options.drop = share,
                Setting::Burst(frames) => options.burst = frames,
                Setting::Dup(share) => options.dup = share,
                Setting::Reorder(share) => options.reorder = share,
                Setting::Corrupt(share) => options.corrupt = share,
                Setting::Delay(time) => options.delay = Some(time),
                Setting::Jitter(time) => options.jitter = Some(time),
                Setting::Rate(rate) => options.rate = rate,
                Setting::Queue(size) => options.queue = Some(size),
            }
        }
        let sets_queue = self.settings.iter().any(|setting| matches!(setting, Setting::Queue(_)));
        let takes_rate = self.settings.contains(&Setting::Rate(None));
        if takes_rate && !sets_queue {
            options.queue = None;
        }
        options
    }
}

impl Setting {
    fn parse(key: &str, value: &str) -> Result<Self, String> {
        let why = |error: ParseError| format!("{key}={value}: {error}");
        let percent = || value.parse().map_err(why);
        let time = || parse_delay(value).map_err(why);
        Ok(match key {
            "drop" | "loss" => Self::Drop(percent()?),
            "burst" => Self::Burst(parse_burst(value)?),
            "dup" | "duplicate" => Self::Dup(percent()?),
            "reorder" => Self::Reorder(percent()?),
            "corrupt" => Self::Corrupt(percent()?),
            "delay" => Self::Delay(time()?),
            "jitter" => Self::Jitter(time()?),
            "rate" if value == "unlimited" => Self::Rate(None),
            "rate" => Self::Rate(Some(value.parse().map_err(why)?)),
            "queue" | "limit" => Self::Queue(value.parse().map_err(why)?),
            _ => return Err(format!("{key:?}: not one of {KEYS}")),
        })
    }
}

fn parse_burst(value: &str) -> Result<Option<u16>, String> {
    match value.parse() {
        Ok(0) => Ok(None),
        Ok(frames @ 1..=10_000) => Ok(Some(frames)),
        _ => Err(format!("burst={value}: not a number of frames from 0 (no bursts) to 10000")),
    }
}

impl FromStr for Overrides {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words = text.split([',', ' ']).filter(|word| !word.is_empty());
        let setting = |word: &str| match word.split_once('=') {
            Some((key, value)) => Setting::parse(key, value),
            None => Err(format!("{word:?}: not KEY=VALUE, such as drop=1")),
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
