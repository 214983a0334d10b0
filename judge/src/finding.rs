//! Findings of a case, and the rules that they violate.

use std::fmt;

/// Rules that a finding violates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Blame {
    /// All rules of the case.
    Case,
    /// These rules.
    Rules(&'static [&'static str]),
    /// None: the RFCs permit the behavior, and the case expects another one of a peer with commands.
    Choice,
}

/// Difference from the expected behavior.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Finding {
    pub(crate) blame: Blame,
    pub(crate) text: String,
}

/// Reason for which a case ends early.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// The peer did not behave as expected.
    Finding(Finding),
    /// The case cannot be run against this peer.
    Skip(String),
}

impl Stop {
    /// A finding against all rules of the case.
    pub(crate) fn case(text: impl Into<String>) -> Self {
        Self::blaming(Blame::Case, text)
    }

    pub(crate) fn blaming(blame: Blame, text: impl Into<String>) -> Self {
        Self::Finding(Finding { blame, text: text.into() })
    }
}

/// Result of a step.
pub(crate) type Step<T = ()> = Result<T, Stop>;

/// Returns [`Stop::case`] with the text unless the condition is true.
pub(crate) fn ensure(is_met: bool, text: impl FnOnce() -> String) -> Step {
    if is_met { Ok(()) } else { Err(Stop::case(text())) }
}

/// End of a connection by the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// FIN.
    Fin,
    /// RST.
    Reset,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fin => "FIN",
            Self::Reset => "RST",
        })
    }
}
