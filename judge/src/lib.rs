//! Conformance tester of iWARP peers: judges the behavior of any implementation on the wire by the rules of RFC 5044,
//! 6581, 5041, 5040 and 7306.
//!
//! [`judge`] connects to a peer over TCP sockets of the kernel, and runs [cases](list). A case sends valid or invalid
//! octets and compares the response with the expected one. A difference is a finding against the rules of the case, or
//! against those of the form of the response. [`Judgment`] has the verdict for each rule.
//!
//! | module | purpose |
//! |---|---|
//! | `rules` | table of the rules |
//! | `case`, `cases` | form of a case; the cases |
//! | `expect`, `finding` | expected responses; differences from them |
//! | `consumer`, `exchange` | consumers of the peer; their messages |
//! | `link` | connection, and the state of a case |
//! | `wire`, `decoder` | encoder and decoder, independent of the adapter |
//! | `capture` | pcapng |
//! | `run`, `result`, `verdict` | run of the cases; their results; verdicts |
//!
//! Limits: one peer; markers are received but not sent; a response must arrive within the time limit of the run.
#![forbid(unsafe_code)]

mod capture;
mod case;
mod cases;
mod consumer;
mod decoder;
mod exchange;
mod expect;
mod finding;
mod link;
mod result;
mod rules;
mod run;
#[cfg(test)]
mod tests;
mod verdict;
mod wire;

pub use self::{
    consumer::Consumer,
    result::{CaseResult, Difference, Outcome},
    rules::{Rule, Section, all as rules},
    run::{Settings, judge, list},
    verdict::{Judgment, RuleVerdict, Verdict},
};
