//! Errors of options, of opening an adapter, and of control sockets.

use std::{fmt, io};

pub use flue_network::Cause;
use rustix::io::Errno;

/// An error of an adapter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// A wrong option: option and limit.
    Option(String),
    /// A failed operation: object and reason.
    Operation(String),
    /// As [`Error::Operation`]: no descriptor is available.
    Descriptors(String),
    /// Kernel sockets that cannot be opened.
    Sockets {
        /// The reason.
        message: String,
        /// errno(3) value of the reason, if it has one.
        errno: Option<i32>,
    },
    /// Another process uses the launched node on this TAP.
    Busy(String),
    /// A control socket that does not accept connections: socket and reason.
    Unreachable(String),
    /// An error of a prerequisite, or of the setup of the kernel's side of the node.
    Network(flue_network::Error),
}

impl Error {
    pub(crate) fn option(message: impl Into<String>) -> Self {
        Self::Option(message.into())
    }

    pub(crate) fn operation(message: impl Into<String>) -> Self {
        Self::Operation(message.into())
    }

    /// Creates the error of a failed operation on `object`.
    pub fn io(object: impl fmt::Display, error: &io::Error) -> Self {
        let message = format!("{object}: {error}");
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::MFILE | Errno::NFILE) => Self::Descriptors(message),
            _ => Self::Operation(message),
        }
    }

    pub(crate) fn prerequisite(message: impl Into<String>) -> Self {
        flue_network::Error::prerequisite(message).into()
    }

    pub(crate) fn sockets(error: &io::Error) -> Self {
        match Self::io("kernel sockets", error) {
            Self::Operation(message) => Self::Sockets { message, errno: error.raw_os_error() },
            error => error,
        }
    }

    /// Returns the kind of the error.
    pub const fn cause(&self) -> Cause {
        match self {
            Self::Option(_) => Cause::Option,
            Self::Network(error) => error.cause,
            Self::Operation(_)
            | Self::Descriptors(_)
            | Self::Sockets { .. }
            | Self::Busy(_)
            | Self::Unreachable(_) => Cause::Operation,
        }
    }

    /// Returns the object and the reason; one line.
    pub fn message(&self) -> &str {
        match self {
            Self::Option(message)
            | Self::Operation(message)
            | Self::Descriptors(message)
            | Self::Sockets { message, .. }
            | Self::Busy(message)
            | Self::Unreachable(message) => message,
            Self::Network(error) => &error.message,
        }
    }

    /// Returns the remedy, if one is known.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Unreachable(_) => Some("\"flue ss\" lists running nodes"),
            Self::Network(error) => error.hint.as_deref(),
            Self::Option(_)
            | Self::Operation(_)
            | Self::Descriptors(_)
            | Self::Sockets { .. }
            | Self::Busy(_) => None,
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
        flue_network::error::write(f, self.message(), self.hint())
    }
}

impl std::error::Error for Error {}
