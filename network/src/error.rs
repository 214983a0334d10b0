//! Errors of the setup: the operation, the cause and the remedy.

use std::fmt;

use rustix::io::Errno;

use crate::NetError;

/// The cause of an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// An option is wrong.
    Option,
    /// A prerequisite is missing: a device node, a capability, a kernel setting.
    Prerequisite,
    /// An operation failed.
    Operation,
}

/// An error of links, addresses, TAPs and namespaces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// The cause.
    pub cause: Cause,
    /// The operation that failed, its object, and the reason; one line.
    pub message: String,
    /// The remedy, if one is known.
    pub hint: Option<String>,
}

impl Error {
    fn new(cause: Cause, message: impl Into<String>) -> Self {
        Self { cause, message: message.into(), hint: None }
    }

    /// A wrong option; `message` names it and its limit.
    pub fn option(message: impl Into<String>) -> Self {
        Self::new(Cause::Option, message)
    }

    /// A missing prerequisite; `message` names it.
    pub fn prerequisite(message: impl Into<String>) -> Self {
        Self::new(Cause::Prerequisite, message)
    }

    /// A failed operation.
    pub fn operation(message: impl Into<String>) -> Self {
        Self::new(Cause::Operation, message)
    }

    /// Adds the remedy.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Prefixes the message with the location of the error, such as the name of a node.
    #[must_use]
    pub fn at(self, place: &str) -> Self {
        Self { message: format!("{place}: {}", self.message), ..self }
    }
}

/// Writes the message of an error, and its remedy on a separate line.
///
/// # Errors
/// Those of the formatter.
pub fn write(f: &mut fmt::Formatter<'_>, message: &str, hint: Option<&str>) -> fmt::Result {
    f.write_str(message)?;
    match hint {
        Some(hint) => write!(f, "\n  hint: {hint}"),
        None => Ok(()),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, &self.message, self.hint.as_deref())
    }
}

impl std::error::Error for Error {}

impl From<NetError> for Error {
    fn from(error: NetError) -> Self {
        let code = error.source.raw_os_error().map(Errno::from_raw_os_error);
        match code {
            Some(Errno::PERM | Errno::ACCESS) => Self::prerequisite(error.to_string())
                .with_hint("run with CAP_NET_ADMIN in the network namespace of the link"),
            Some(Errno::OPNOTSUPP) => Self::prerequisite(error.to_string())
                .with_hint("load the kernel module of this link type, or use a kernel that has it"),
            _ => Self::operation(error.to_string()),
        }
    }
}
