//! Range of TCP ports.

use std::{fmt, ops::RangeInclusive, str::FromStr};

use serde::{Deserialize, Serialize};

/// Lowest port of a range: a process needs no privileges to listen at it.
const PORT_MIN: u16 = 1024;

/// Range of TCP ports, from 1024 on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// Returns the ports.
    #[must_use]
    pub const fn ports(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }
}

impl FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ends = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (ends.0.parse().ok(), ends.1.parse().ok());
        let range = first.zip(last).filter(|(first, last)| (PORT_MIN..=*last).contains(first));
        let (first, last) = range.ok_or("expected FIRST-LAST, ports 1024..=65535")?;
        Ok(Self { first, last })
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl From<PortRange> for String {
    fn from(range: PortRange) -> Self {
        range.to_string()
    }
}

impl TryFrom<String> for PortRange {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_ordered_and_not_privileged() {
        let parse = |text: &str| text.parse::<PortRange>().map(PortRange::ports);
        assert_eq!(parse("4000-4015"), Ok(4000..=4015));
        assert_eq!(parse("1024-65535"), Ok(1024..=65_535));
        assert_eq!(parse("4000"), Ok(4000..=4000));
        for text in
            ["", "-", "4001-4000", "1023-4000", "0", "4000-", "-4000", "4000-65536", "4000:4001"]
        {
            assert!(parse(text).is_err_and(|error| error.contains("1024")), "{text}");
        }
        let range: PortRange = "4000-4015".parse().unwrap();
        let json = serde_json::to_string(&range).unwrap();
        assert_eq!(
            (json.as_str(), serde_json::from_str(&json).unwrap()),
            (r#""4000-4015""#, range)
        );
        assert!(serde_json::from_str::<PortRange>(r#""9-4""#).is_err());
    }
}
