//! Failures of a run: three kinds, each with an exit status. Library errors are converted to a failure here.
//! [`exit_status_help`] lists the exit statuses for help texts.

use std::fmt;

use flue_network::{Cause, NetError};
use serde::{Deserialize, Serialize};

/// Exit status of a command whose standard output is a broken pipe, as a shell reports it after SIGPIPE.
pub const BROKEN_PIPE_STATUS: u8 = 128 + 13;

/// The kind of a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The run started and failed.
    #[serde(rename = "failure")]
    Work,
    /// The command line is wrong.
    Usage,
    /// A prerequisite is missing.
    #[serde(rename = "prerequisite")]
    Lacking,
}

impl Kind {
    /// Returns the exit status.
    pub const fn exit_status(self) -> u8 {
        match self {
            Self::Work => 1,
            Self::Usage => 2,
            Self::Lacking => 3,
        }
    }

    /// Returns the meaning of the exit status.
    const fn meaning(self) -> &'static str {
        match self {
            Self::Work => "failure",
            Self::Usage => "usage error",
            Self::Lacking => "missing prerequisite: device node, capability or kernel setting",
        }
    }
}

/// Returns the section of help texts that lists the exit statuses of a failed run.
pub fn failure_status_help() -> String {
    let mut text = String::new();
    for kind in [Kind::Work, Kind::Usage, Kind::Lacking] {
        text.push_str(&format!("\n  {:<4} {}", kind.exit_status(), kind.meaning()));
    }
    text + &format!("\n  {BROKEN_PIPE_STATUS:<4} standard output is a broken pipe")
}

/// Returns the section of help texts that lists all exit statuses.
pub fn exit_status_help() -> String {
    format!("Exit status:\n  0    success{}", failure_status_help())
}

/// Failure of a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// The kind of failure.
    pub kind: Kind,
    /// The operation that failed, its object, and the reason; one line.
    pub message: String,
    /// The remedy, if known.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure of the run itself; `message` has the form `subject: problem`.
    pub fn work(message: impl Into<String>) -> Self {
        Self { kind: Kind::Work, message: message.into(), hint: None }
    }

    /// A wrong command line; `message` names the option and its limit.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { kind: Kind::Usage, message: message.into(), hint: None }
    }

    /// A missing prerequisite; `message` names it.
    pub fn lacking(message: impl Into<String>) -> Self {
        Self { kind: Kind::Lacking, message: message.into(), hint: None }
    }

    /// Adds the remedy.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Prefixes the message with the location of the failure.
    #[must_use]
    pub fn at(self, place: &str) -> Self {
        Self { message: format!("{place}: {}", self.message), ..self }
    }

    /// Returns the exit status.
    pub const fn exit_status(&self) -> u8 {
        self.kind.exit_status()
    }
}

impl From<Cause> for Kind {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Option => Self::Usage,
            Cause::Prerequisite => Self::Lacking,
            Cause::Operation => Self::Work,
        }
    }
}

impl From<flue_adapter::Error> for Failure {
    fn from(error: flue_adapter::Error) -> Self {
        Self {
            kind: error.cause().into(),
            message: error.message().to_owned(),
            hint: error.hint().map(str::to_owned),
        }
    }
}

impl From<flue_network::Error> for Failure {
    fn from(error: flue_network::Error) -> Self {
        flue_adapter::Error::from(error).into()
    }
}

impl From<NetError> for Failure {
    fn from(error: NetError) -> Self {
        flue_adapter::Error::from(error).into()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        flue_network::error::write(f, &self.message, self.hint.as_deref())
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_status() {
        assert_eq!(Failure::work("x").exit_status(), 1);
        assert_eq!(Failure::usage("x").exit_status(), 2);
        assert_eq!(Failure::lacking("x").exit_status(), 3);
        let help = exit_status_help();
        let lines: Vec<&str> = help.lines().skip(1).map(|line| line[..7].trim()).collect();
        assert_eq!(lines, ["0", "1", "2", "3", "141"], "{help}");
        assert!(help.contains("  2    usage error\n"), "{help}");
    }

    #[test]
    fn hint_has_its_own_line() {
        let failure = Failure::lacking("no TUN").with_hint("modprobe tun").at("node A");
        assert_eq!(failure.to_string(), "node A: no TUN\n  hint: modprobe tun");
    }
}
