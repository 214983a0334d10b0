//! Results of cases.

use std::collections::BTreeSet;

use serde::Serialize;

/// Result of a case.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The peer behaves as expected.
    Passed,
    /// The peer behaves differently.
    Failed,
    /// The case needs another consumer or role of the peer.
    NotObservable(String),
    /// The case was not selected, or could not be completed.
    NotRun(String),
}

/// Difference from the expected behavior, and the rules that it violates.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Difference {
    /// Rules; empty if the RFCs permit the behavior.
    pub rules: Vec<&'static str>,
    /// Observed and expected behavior.
    pub text: String,
}

/// A case and its result.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CaseResult {
    /// Name of the case.
    pub name: String,
    /// Rules that it tests.
    pub rules: Vec<&'static str>,
    /// Outcome.
    pub outcome: Outcome,
    /// Differences.
    pub differences: Vec<Difference>,
    /// Rules that the peer has met.
    pub met: BTreeSet<&'static str>,
    /// Last packets, if there are differences.
    pub packets: Vec<String>,
    /// Duration.
    pub milliseconds: u64,
}

impl CaseResult {
    pub(crate) fn new(name: &str, rules: &[&'static str], outcome: Outcome) -> Self {
        Self {
            name: name.to_owned(),
            rules: rules.to_vec(),
            outcome,
            differences: Vec::new(),
            met: BTreeSet::new(),
            packets: Vec::new(),
            milliseconds: 0,
        }
    }
}
