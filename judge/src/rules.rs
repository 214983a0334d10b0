//! Rules: the rows of `rules.txt`. An id has the document and the section.

use std::fmt;

use serde::{Serialize, Serializer};

/// Rows of `docs/conformance/iwarp.md`: id, level and subject.
const TABLE: &str = include_str!("../rules.txt");

/// Rule of an RFC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Rule {
    /// Id: document, section and number in the section.
    pub id: &'static str,
    /// Place in the RFC.
    pub section: Section,
    /// Level: "must", "should" or "may".
    pub level: &'static str,
    /// Subject, as in docs/conformance/iwarp.md. The text of the RFC is authoritative.
    pub subject: &'static str,
}

/// Section of an RFC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Section {
    rfc: u16,
    number: &'static str,
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RFC {} §{}", self.rfc, self.number)
    }
}

impl Serialize for Section {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Rule {
    fn parse(row: &'static str) -> Option<Self> {
        let (id, rest) = row.split_once(' ')?;
        let (level, subject) = rest.split_once(' ')?;
        let (document, rest) = id.split_once('-')?;
        let (number, _) = rest.rsplit_once('-')?;
        let rfc = match document {
            "MPA" => 5044,
            "MPE" => 6581,
            "DDP" => 5041,
            "RDM" => 5040,
            "EXT" => 7306,
            "SEC" => 5042,
            _ => return None,
        };
        Some(Self { id, section: Section { rfc, number }, level, subject })
    }
}

/// Returns all rules.
pub fn all() -> Vec<Rule> {
    TABLE.lines().filter_map(Rule::parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_a_rule() {
        let rules = all();
        assert_eq!(rules.len(), TABLE.lines().count());
        let first = &rules[0];
        assert_eq!((first.id, first.section.to_string()), ("MPA-1.2-1", "RFC 5044 §1.2".into()));
        let mut ids: Vec<_> = rules.iter().map(|rule| rule.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), rules.len());
    }
}
