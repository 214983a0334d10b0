//! How a run ends when it does not end well: one of three kinds, each with its exit status.
//!
//! | status | kind | what the user does about it |
//! |---|---|---|
//! | 0 | - | nothing |
//! | 1 | [`Kind::Work`] | reads why the work failed |
//! | 2 | [`Kind::Usage`] | changes the command line |
//! | 3 | [`Kind::Lacking`] | changes the machine: a device node, a capability, a kernel setting |

use std::fmt;

use serde::{Deserialize, Serialize};

/// Whose turn it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The work was started and failed.
    Work,
    /// The command line does not make sense.
    Usage,
    /// The machine lacks something.
    Lacking,
}

impl Kind {
    /// The exit status that tells it to scripts.
    pub const fn exit_status(self) -> u8 {
        match self {
            Self::Work => 1,
            Self::Usage => 2,
            Self::Lacking => 3,
        }
    }
}

/// Why a run did not do what it was asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// Whose turn it is.
    pub kind: Kind,
    /// What failed, on which object, and why; one line.
    pub message: String,
    /// What would help, if that is known.
    pub hint: Option<String>,
}

impl Failure {
    /// The work failed.
    pub fn work(message: impl Into<String>) -> Self {
        Self { kind: Kind::Work, message: message.into(), hint: None }
    }

    /// The command line does not make sense; `message` names the option and its limit.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { kind: Kind::Usage, message: message.into(), hint: None }
    }

    /// The machine lacks something; `message` names it.
    pub fn lacking(message: impl Into<String>) -> Self {
        Self { kind: Kind::Lacking, message: message.into(), hint: None }
    }

    /// The same with advice.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// The same failure told with where it happened.
    #[must_use]
    pub fn at(self, place: &str) -> Self {
        Self { message: format!("{place}: {}", self.message), ..self }
    }

    /// The exit status that tells it to scripts.
    pub const fn exit_status(&self) -> u8 {
        self.kind.exit_status()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\n  hint: {hint}"),
            None => Ok(()),
        }
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
    fn advice_stands_on_its_own_line() {
        let failure = Failure::lacking("no TUN").with_hint("modprobe tun").at("node A");
        assert_eq!(failure.to_string(), "node A: no TUN\n  hint: modprobe tun");
    }
}
