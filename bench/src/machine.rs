//! Machine, build and date, for comparing results.

use std::{
    fs,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::Serialize;

/// Properties of the machine; unknown values are null.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Machine {
    /// Model name of the first CPU.
    pub(super) cpu_model: Option<String>,
    /// Number of CPUs on which this process may run.
    pub(super) cores: Option<usize>,
    /// Memory, bytes.
    pub(super) memory_bytes: Option<u64>,
    /// Kernel name and release.
    pub(super) kernel: String,
    /// Frequency governor of the first CPU.
    pub(super) governor: Option<String>,
    /// True if the CPU flags indicate a virtual machine.
    pub(super) is_virtual: bool,
}

/// Properties of a build of flue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Build {
    /// Version of flue.
    pub version: &'static str,
    /// Commit of the sources, if known.
    pub commit: Option<&'static str>,
    /// True if the sources had uncommitted changes.
    pub is_changed: Option<bool>,
    /// "release" or "debug"; results of a debug build are meaningless.
    pub profile: &'static str,
}

impl Machine {
    /// Reads the properties from /proc and /sys.
    pub(super) fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).ok();
        let cpuinfo = text("/proc/cpuinfo").unwrap_or_default();
        let name = rustix::system::uname();
        let word = |word: &std::ffi::CStr| word.to_string_lossy().into_owned();
        Self {
            cpu_model: field(&cpuinfo, "model name").map(str::to_owned),
            cores: std::thread::available_parallelism().ok().map(Into::into),
            memory_bytes: text("/proc/meminfo").as_deref().and_then(memory_bytes),
            kernel: format!("{} {}", word(name.sysname()), word(name.release())),
            governor: text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
                .map(|governor| governor.trim().to_owned()),
            is_virtual: field(&cpuinfo, "flags")
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
        }
    }
}

/// Returns the value after "name :" in a file of /proc.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    })
}

fn memory_bytes(meminfo: &str) -> Option<u64> {
    let kib = field(meminfo, "MemTotal")?.strip_suffix(" kB")?;
    kib.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the current time, UTC, in the format of RFC 3339.
pub(super) fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    rfc_3339(since.as_secs())
}

fn rfc_3339(unix_seconds: u64) -> String {
    let (days, second_of_day) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let (year, month, day) = date_of(days);
    let (hour, minute, second) =
        (second_of_day / 3_600, second_of_day / 60 % 60, second_of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Returns year, month and day from days since 1970-01-01. In the computation years begin in March, so that a leap day
/// is the last day of its year.
fn date_of(days: u64) -> (u64, u64, u64) {
    const DAYS_OF_400_YEARS: u64 = 146_097;
    let since_march_0 = days + 719_468;
    let (era, day_of_era) = (since_march_0 / DAYS_OF_400_YEARS, since_march_0 % DAYS_OF_400_YEARS);
    let leap_days_passed = day_of_era / 1_460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leap_days_passed) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // From March on, month lengths repeat every five months: 31 30 31 30 31, 153 days.
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_formatted_as_rfc_3339() {
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_795_313_465, "2026-11-22T02:11:05Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ];
        for (seconds, date) in cases {
            assert_eq!(rfc_3339(seconds), date);
        }
    }

    #[test]
    fn proc_files_are_parsed() {
        let cpuinfo = "processor\t: 0\nmodel name\t: A Model\nflags\t\t: fpu hypervisor\n\n";
        assert_eq!(field(cpuinfo, "model name"), Some("A Model"));
        assert_eq!(field(cpuinfo, "model"), None);
        assert_eq!(memory_bytes("MemTotal:       16 kB\nMemFree: 1 kB\n"), Some(16_384));
        assert_eq!(memory_bytes("MemTotal: much\n"), None);
        let machine = Machine::read();
        assert!(machine.kernel.starts_with("Linux ") && machine.cores > Some(0));
    }
}
