//! Errors of control sockets.

use std::fmt;

/// An operation on a control socket that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// The socket and the reason; one line.
    pub message: String,
    /// The remedy, if one is known.
    pub hint: Option<&'static str>,
}

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    pub(crate) fn with_hint(self, hint: &'static str) -> Self {
        Self { hint: Some(hint), ..self }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match self.hint {
            Some(hint) => write!(f, "\n  hint: {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}
