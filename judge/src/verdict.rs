//! Verdicts: what the results of the cases mean for each rule.

use std::fmt;

use flue_report::table::{Align, Table};
use serde::Serialize;

use crate::{
    result::{CaseResult, Outcome},
    rules::{self, Rule},
};

/// Verdict for a rule.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// A case shows that the peer violates it.
    Violated,
    /// The peer meets it in all cases that were run.
    Met,
    /// No case can observe it.
    NotObservable,
    /// No case was run.
    NotRun,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Violated => "violated",
            Self::Met => "met",
            Self::NotObservable => "not observable",
            Self::NotRun => "not run",
        })
    }
}

/// A rule with its verdict.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RuleVerdict {
    /// The rule.
    #[serde(flatten)]
    pub rule: Rule,
    /// Verdict.
    pub verdict: Verdict,
    /// Reason, if the verdict is not "met".
    pub reason: Option<String>,
    /// Cases that show the verdict.
    pub cases: Vec<String>,
}

/// Verdicts of a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Judgment {
    /// Verdicts, in the order of the rules.
    pub rules: Vec<RuleVerdict>,
    /// Results of the cases.
    pub cases: Vec<CaseResult>,
}

/// Reason of a rule without a case.
const NO_CASE: &str = "no case observes it";

impl Judgment {
    /// Derives the verdicts from the results.
    pub(crate) fn new(cases: Vec<CaseResult>) -> Self {
        let rules = rules::all().into_iter().map(|rule| verdict(rule, &cases)).collect();
        Self { rules, cases }
    }

    /// Returns the number of rules with this verdict.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        self.rules.iter().filter(|rule| rule.verdict == verdict).count()
    }

    /// Returns the violated rules.
    pub fn violated(&self) -> impl Iterator<Item = &RuleVerdict> {
        self.rules.iter().filter(|rule| rule.verdict == Verdict::Violated)
    }

    /// Returns the table of the rules that have a case.
    #[must_use]
    pub fn table(&self) -> Table {
        let left = Align::Left;
        let mut table = Table::new(&[
            ("verdict", left),
            ("rule", left),
            ("level", left),
            ("section", left),
            ("subject", left),
        ]);
        for RuleVerdict { rule, verdict, reason, .. } in &self.rules {
            if reason.as_deref() == Some(NO_CASE) {
                continue;
            }
            let subject = match reason.as_deref().filter(|_| *verdict != Verdict::Violated) {
                Some(reason) => format!("{} ({reason})", rule.subject),
                None => rule.subject.to_owned(),
            };
            table.row([
                verdict.to_string(),
                rule.id.to_owned(),
                rule.level.to_owned(),
                rule.section.to_string(),
                subject,
            ]);
        }
        table
    }
}

fn names<'a>(cases: impl Iterator<Item = &'a CaseResult>) -> Vec<String> {
    cases.map(|case| case.name.clone()).collect()
}

fn verdict(rule: Rule, cases: &[CaseResult]) -> RuleVerdict {
    let difference = |case: &CaseResult| {
        let mut differences = case.differences.iter();
        let found = differences.find(|difference| difference.rules.contains(&rule.id))?;
        Some(format!("{}: {}", case.name, found.text))
    };
    let failed: Vec<_> = cases.iter().filter(|case| difference(case).is_some()).collect();
    let of_rule = |case: &&CaseResult| case.rules.contains(&rule.id);
    let reason_of = |select: fn(&Outcome) -> Option<&String>| {
        cases.iter().filter(of_rule).find_map(|case| select(&case.outcome)).cloned()
    };
    let (verdict, reason, shown) = if let Some(first) = failed.first() {
        let text = difference(first).unwrap_or_default();
        match rule.level {
            "may" => {
                (Verdict::NotObservable, format!("optional; {text}"), names(failed.into_iter()))
            }
            _ => (Verdict::Violated, text, names(failed.into_iter())),
        }
    } else {
        let met = names(cases.iter().filter(|case| case.met.contains(rule.id)));
        let not_run = reason_of(|outcome| match outcome {
            Outcome::NotRun(reason) => Some(reason),
            _ => None,
        });
        let not_observable = reason_of(|outcome| match outcome {
            Outcome::NotObservable(reason) => Some(reason),
            _ => None,
        });
        match (met.is_empty(), not_run, not_observable) {
            (false, ..) => {
                return RuleVerdict { rule, verdict: Verdict::Met, reason: None, cases: met };
            }
            (true, Some(reason), _) => (Verdict::NotRun, reason, Vec::new()),
            (true, None, Some(reason)) => (Verdict::NotObservable, reason, Vec::new()),
            // All cases of the rule ended early.
            (true, None, None) if cases.iter().any(|case| of_rule(&case)) => {
                (Verdict::NotObservable, "the cases ended before".into(), Vec::new())
            }
            (true, None, None) => (Verdict::NotObservable, NO_CASE.into(), Vec::new()),
        }
    };
    RuleVerdict { rule, verdict, reason: Some(reason), cases: shown }
}
