//! CPU time of this process, all threads.
//!
//! The total is the kernel's count in nanoseconds. The split into user and system time is known only in clock ticks (10
//! ms), so it is coarse for short runs.

use std::{fs::File, os::unix::fs::FileExt as _, sync::OnceLock};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Statistics of this process; `None`: not available.
static STAT: OnceLock<Option<File>> = OnceLock::new();
/// Maximum length of the statistics, bytes: 52 numbers and a name.
const STAT_BYTES_MAX: usize = 2048;

/// Opens the statistics of this process. Readings may then be taken without a right to open files.
pub(super) fn prepare() {
    STAT.get_or_init(|| File::open("/proc/self/stat").ok());
}

fn stat() -> String {
    prepare();
    let mut octets = [0; STAT_BYTES_MAX];
    let file = STAT.get().and_then(Option::as_ref);
    let length = file.and_then(|file| file.read_at(&mut octets, 0).ok()).unwrap_or(0);
    String::from_utf8_lossy(&octets[..length]).into_owned()
}

/// CPU time.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Cpu {
    /// User time, seconds.
    pub user_seconds: f64,
    /// System time, seconds.
    pub system_seconds: f64,
}

/// CPU times at one instant.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    total_seconds: f64,
    user_ticks: u64,
    system_ticks: u64,
}

impl Reading {
    /// Reads the current CPU times.
    pub fn now() -> Self {
        let total = clock_gettime(ClockId::ProcessCPUTime);
        let (user_ticks, system_ticks) = ticks(&stat()).unwrap_or_default();
        let total_seconds = total.tv_sec as f64 + total.tv_nsec as f64 / 1e9;
        Self { total_seconds, user_ticks, system_ticks }
    }

    /// Returns the CPU time used since this reading.
    pub fn elapsed(&self) -> Cpu {
        self.until(&Self::now())
    }

    /// Returns the CPU time used between two readings.
    fn until(&self, later: &Self) -> Cpu {
        let total = (later.total_seconds - self.total_seconds).max(0.0);
        let user = later.user_ticks.saturating_sub(self.user_ticks) as f64;
        let system = later.system_ticks.saturating_sub(self.system_ticks) as f64;
        let share = if user + system > 0.0 { user / (user + system) } else { 1.0 };
        Cpu { user_seconds: total * share, system_seconds: total * (1.0 - share) }
    }
}

/// Returns utime and stime of /proc/PID/stat: fields 14 and 15. Field 2, in parentheses, may contain blanks.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_line_is_parsed() {
        let line = "7 (a) b) R 1 2 3 4 5 6 7 8 9 10 321 45 0 0 20 0 1 0 100";
        assert_eq!(ticks(line), Some((321, 45)));
        assert_eq!(ticks("7 (a"), None);
        assert!(ticks(&stat()).is_some());
    }

    #[test]
    fn total_is_split_in_proportion_to_ticks() {
        let reading = |total_seconds, user_ticks, system_ticks| Reading {
            total_seconds,
            user_ticks,
            system_ticks,
        };
        let used = reading(1.0, 10, 10).until(&reading(3.0, 160, 60));
        assert_eq!(used, Cpu { user_seconds: 1.5, system_seconds: 0.5 });
        let too_short_for_a_tick = reading(1.0, 10, 10).until(&reading(1.001, 10, 10));
        assert!(too_short_for_a_tick.user_seconds > 0.0009);
    }
}
