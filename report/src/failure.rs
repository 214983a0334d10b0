//! Failures of a run: three kinds, each with an exit status. Errors of the libraries become one here.
//!
//! | status | kind | what helps |
//! |---|---|---|
//! | 1 | [`Kind::Work`] | depends on the error |
//! | 2 | [`Kind::Usage`] | another command line |
//! | 3 | [`Kind::Lacking`] | a change to the machine: a device node, a capability, a kernel setting |

use std::fmt;

use flue_network::{Cause, NetError};
use serde::{Deserialize, Serialize};

/// The kind of a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The run started and failed.
    Work,
    /// The command line is wrong.
    Usage,
    /// The machine lacks something.
    Lacking,
}

impl Kind {
    /// The exit status.
    pub const fn exit_status(self) -> u8 {
        match self {
            Self::Work => 1,
            Self::Usage => 2,
            Self::Lacking => 3,
        }
    }
}

/// Why a run failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// The kind of failure.
    pub kind: Kind,
    /// The operation that failed, its object, and the reason; one line.
    pub message: String,
    /// What would help, if known.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure of the run itself.
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

    /// Adds advice.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Prefixes the message with the place of the failure.
    #[must_use]
    pub fn at(self, place: &str) -> Self {
        Self { message: format!("{place}: {}", self.message), ..self }
    }

    /// The exit status.
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
    }

    #[test]
    fn a_hint_has_its_own_line() {
        let failure = Failure::lacking("no TUN").with_hint("modprobe tun").at("node A");
        assert_eq!(failure.to_string(), "node A: no TUN\n  hint: modprobe tun");
    }
}
