//! Seeds of a run: from the environment, or CI's two slices.

use std::{ops::Range, process::Command};

/// Lower bound of the seeds of a commit, above every campaign that counts from 0.
const COMMIT_SEEDS_FROM: u64 = 1_000_000;
/// Replaces the commit if there is no repository.
const NO_COMMIT: &str = "5eed5eed";

/// Range selected by `FLUE_SEED` or `FLUE_SEEDS`; `None` without either. The flag is true for a single seed.
///
/// # Panics
/// If a value is neither a number nor a range.
pub fn from_environment() -> Option<(Range<u64>, bool)> {
    let variable = |name| std::env::var(name).ok();
    chosen(variable("FLUE_SEED").as_deref(), variable("FLUE_SEEDS").as_deref())
        .unwrap_or_else(|error| panic!("{error}"))
}

pub(super) fn chosen(
    seed: Option<&str>,
    seeds: Option<&str>,
) -> Result<Option<(Range<u64>, bool)>, String> {
    if let Some(text) = seed {
        let seed = number(text).filter(|seed| *seed < u64::MAX);
        let seed = seed.ok_or_else(|| format!("FLUE_SEED={text} is not a number"))?;
        return Ok(Some((seed..seed + 1, true)));
    }
    let Some(text) = seeds else { return Ok(None) };
    let range = match text.split_once("..") {
        Some((start, end)) => number(start).zip(number(end)),
        None => number(text).map(|end| (0, end)),
    };
    match range {
        Some((start, end)) if start < end => Ok(Some((start..end, false))),
        _ => Err(format!(
            "FLUE_SEEDS={text} is neither a count, as 5000, nor a range, as 1000..6000"
        )),
    }
}

/// Number of digits, with `_` between them.
fn number(text: &str) -> Option<u64> {
    text.replace('_', "").parse().ok()
}

/// First eight digits of the workspace's commit.
pub(super) fn commit() -> String {
    let git =
        Command::new("git").args(["rev-parse", "HEAD"]).current_dir(super::workspace()).output();
    let hash = git.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    let hash = hash.and_then(|hash| String::from_utf8(hash).ok());
    hash.and_then(|hash| Some(hash.get(..8)?.to_owned())).unwrap_or_else(|| NO_COMMIT.into())
}

/// Range of `count` seeds derived from a commit.
pub(super) fn of_commit(commit: &str, count: u64) -> Range<u64> {
    let digits = u32::from_str_radix(commit, 16).expect("eight hexadecimal digits");
    let start = COMMIT_SEEDS_FROM + u64::from(digits);
    start..start + count
}
