//! Processor time of this process, all of its threads.
//!
//! The sum is the kernel's own count in nanoseconds. How it divides into user and system time is known in
//! clock ticks only (a hundredth of a second), so short runs divide it coarsely.

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Processor time, seconds.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Cpu {
    /// In the program.
    pub user_seconds: f64,
    /// In the kernel on its behalf.
    pub system_seconds: f64,
}

/// A moment's reading.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    total_seconds: f64,
    user_ticks: u64,
    system_ticks: u64,
}

impl Reading {
    /// Now.
    pub fn now() -> Self {
        let total = clock_gettime(ClockId::ProcessCPUTime);
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let (user_ticks, system_ticks) = ticks(&stat).unwrap_or_default();
        let total_seconds = total.tv_sec as f64 + total.tv_nsec as f64 / 1e9;
        Self { total_seconds, user_ticks, system_ticks }
    }

    /// What was used since.
    pub fn elapsed(&self) -> Cpu {
        self.until(&Self::now())
    }

    /// What was used between two readings.
    fn until(&self, later: &Self) -> Cpu {
        let total = (later.total_seconds - self.total_seconds).max(0.0);
        let user = later.user_ticks.saturating_sub(self.user_ticks) as f64;
        let system = later.system_ticks.saturating_sub(self.system_ticks) as f64;
        let share = if user + system > 0.0 { user / (user + system) } else { 1.0 };
        Cpu { user_seconds: total * share, system_seconds: total * (1.0 - share) }
    }
}

/// utime and stime of /proc/PID/stat: the 14th and 15th field; the second may hold blanks, in parentheses.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_line_is_understood() {
        let line = "7 (a) b) R 1 2 3 4 5 6 7 8 9 10 321 45 0 0 20 0 1 0 100";
        assert_eq!(ticks(line), Some((321, 45)));
        assert_eq!(ticks("7 (a"), None);
        assert!(ticks(&std::fs::read_to_string("/proc/self/stat").unwrap()).is_some());
    }

    #[test]
    fn the_sum_is_divided_as_the_ticks_say() {
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
