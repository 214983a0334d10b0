//! Formatting of quantities: those of options ([`flue_adapter::units`]), and those of results.

use std::time::Duration;

pub use flue_adapter::units::*;

/// Three significant digits, at most five decimals, no prefix.
pub fn three_digits(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        v if v >= 0.099_95 => 3,
        v if v >= 0.009_995 => 4,
        _ => 5,
    };
    format!("{value:.digits$}")
}

/// "11.2 MiB": bytes with a binary prefix, whole bytes below 1 KiB.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (number, index) = scaled(bytes as f64, 1024.0, &UNITS);
    format!("{number} {}", UNITS[index])
}

/// Bits per second of `bytes` in `duration`; `None` when no time has passed.
pub fn rate_of(bytes: u64, duration: Duration) -> Option<f64> {
    let seconds = duration.as_secs_f64();
    (seconds > 0.0).then(|| bytes as f64 * 8.0 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits() {
        assert_eq!(format_bytes(1023), "1023 B");
        assert_eq!(format_bytes(1024), "1.00 KiB");
        assert_eq!(format_bytes(11_744_051), "11.2 MiB");
        assert_eq!(rate_of(125, Duration::ZERO), None);
        assert_eq!(rate_of(125_000_000, Duration::from_secs(1)), Some(1e9));
    }

    #[test]
    fn numbers_have_three_digits() {
        let cases = [
            (85.71, "85.7"),
            (3.1, "3.10"),
            (0.0451, "0.0451"),
            (0.00135, "0.00135"),
            (0.0, "0.00000"),
            (1408.0, "1408"),
        ];
        for (value, shown) in cases {
            assert_eq!(three_digits(value), shown);
        }
    }
}
