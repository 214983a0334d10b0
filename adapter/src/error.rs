//! Errors of a node's options and of its start.

use std::fmt;

pub use flue_network::Cause;

/// An error of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// A wrong option: names it and its limit.
    Option(String),
    /// A failed operation: names its object and the reason.
    Operation(String),
    /// The machine, or the kernel's side of the node.
    Network(flue_network::Error),
}

impl Error {
    pub(crate) fn option(message: impl Into<String>) -> Self {
        Self::Option(message.into())
    }

    pub(crate) fn operation(message: impl Into<String>) -> Self {
        Self::Operation(message.into())
    }

    pub(crate) fn prerequisite(message: impl Into<String>) -> Self {
        flue_network::Error::prerequisite(message).into()
    }

    /// Kind of the error.
    pub const fn cause(&self) -> Cause {
        match self {
            Self::Option(_) => Cause::Option,
            Self::Operation(_) => Cause::Operation,
            Self::Network(error) => error.cause,
        }
    }

    /// The object and the reason; one line.
    pub fn message(&self) -> &str {
        match self {
            Self::Option(message) | Self::Operation(message) => message,
            Self::Network(error) => &error.message,
        }
    }

    /// The remedy, if one is known.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Option(_) | Self::Operation(_) => None,
            Self::Network(error) => error.hint.as_deref(),
        }
    }
}

impl<E: Into<flue_network::Error>> From<E> for Error {
    fn from(error: E) -> Self {
        Self::Network(error.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Option(message) | Self::Operation(message) => f.write_str(message),
            Self::Network(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}
