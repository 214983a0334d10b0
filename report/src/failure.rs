//! Failures of a run: three kinds, each with an exit status. Library errors are converted to a failure here.
//! [`exit_status_help`] lists the exit statuses for help texts.

use std::fmt;

use flue_network::{Cause, NetError};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Exit status of a command whose standard output is a broken pipe, as a shell reports it after SIGPIPE.
pub const BROKEN_PIPE_STATUS: u8 = SIGNAL_STATUS + 13;

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
    /// A signal ended the run.
    Interrupted,
}

/// Exit status of a run that a signal ended, less the number of the signal, as in a shell.
const SIGNAL_STATUS: u8 = 128;

impl Kind {
    /// Returns the exit status of a run that failed; `signal`: the signal that ended it, 0 if unknown.
    const fn exit_status(self, signal: u8) -> u8 {
        match self {
            Self::Work => 1,
            Self::Usage => 2,
            Self::Lacking => 3,
            // Read from the report of another process, too.
            Self::Interrupted => SIGNAL_STATUS.saturating_add(signal),
        }
    }

    /// Returns the meaning of the exit status in help texts; of [`Kind::Interrupted`], that of SIGINT.
    fn meaning(self) -> String {
        let [hangup, terminate] =
            [SIGHUP, SIGTERM].map(|signal| Failure::interrupted(signal).exit_status());
        match self {
            Self::Work => "failure".into(),
            Self::Usage => "usage error".into(),
            Self::Lacking => {
                "missing prerequisite: device node, capability or kernel setting".into()
            }
            Self::Interrupted => {
                format!("interrupted by SIGINT; {hangup}: by SIGHUP, {terminate}: by SIGTERM")
            }
        }
    }
}

/// Returns the section of help texts that lists the exit statuses of a failed run.
pub fn failure_status_help() -> String {
    let of = |failure: Failure| (failure.exit_status(), failure.kind.meaning());
    let failures =
        [Failure::work(""), Failure::usage(""), Failure::lacking(""), Failure::interrupted(SIGINT)];
    let broken_pipe = (BROKEN_PIPE_STATUS, "standard output is a broken pipe".into());
    let statuses = failures.map(of).into_iter().chain([broken_pipe]);
    statuses.map(|(status, meaning)| format!("\n  {status:<4} {meaning}")).collect()
}

/// Returns the section of help texts that lists all exit statuses.
pub fn exit_status_help() -> String {
    let success = "success; a server or view that a signal has stopped";
    format!("Exit status:\n  0    {success}{}", failure_status_help())
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
    /// The signal that ended the run.
    #[serde(default)]
    pub signal: Option<u8>,
}

impl Failure {
    fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, signal: None }
    }

    /// A failure of the run itself; `message` has the form `subject: problem`.
    pub fn work(message: impl Into<String>) -> Self {
        Self::new(Kind::Work, message)
    }

    /// The end of a run by a signal.
    pub fn interrupted(signal: i32) -> Self {
        let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
        let message = format!("interrupted by {name}");
        Self { signal: u8::try_from(signal).ok(), ..Self::new(Kind::Interrupted, message) }
    }

    /// A wrong command line; `message` names the option and its limit.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, message)
    }

    /// A missing prerequisite; `message` names it.
    pub fn lacking(message: impl Into<String>) -> Self {
        Self::new(Kind::Lacking, message)
    }

    /// Adds the remedy. A run that a signal ended needs none.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        let hint = (self.kind != Kind::Interrupted).then(|| hint.into());
        Self { hint, ..self }
    }

    /// Prefixes the message with the location of the failure.
    #[must_use]
    pub fn at(self, place: &str) -> Self {
        Self { message: format!("{place}: {}", self.message), ..self }
    }

    /// Returns the exit status.
    pub fn exit_status(&self) -> u8 {
        self.kind.exit_status(self.signal.unwrap_or(0))
    }
}

/// Returns the result of a server or view, which runs until a signal stops it: that is success.
///
/// # Errors
/// Other failures.
pub fn unless_stopped(ended: Result<(), Failure>) -> Result<(), Failure> {
    ended.or_else(|failure| match failure.kind {
        Kind::Interrupted => Ok(()),
        _ => Err(failure),
    })
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
        let hint = error.hint().map(str::to_owned);
        Self { hint, ..Self::new(error.cause().into(), error.message()) }
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
        assert_eq!(lines, ["0", "1", "2", "3", "130", "141"], "{help}");
        assert!(help.contains("  2    usage error\n"), "{help}");
        assert!(help.contains("  130  interrupted by SIGINT; 129: by SIGHUP, 143: by SIGTERM\n"));
    }

    // The table of the JSON documents has the kinds by their names, with their statuses.
    #[test]
    fn document_has_the_status_of_each_kind() {
        let page = include_str!("../../docs/reference/json.md");
        for failure in [Failure::work("x"), Failure::usage("x"), Failure::lacking("x")] {
            let kind = serde_json::to_value(failure.kind).unwrap();
            let row = format!("| `{}` | {} |", kind.as_str().unwrap(), failure.exit_status());
            assert!(page.contains(&row), "{row}");
        }
        let row = format!("| `interrupted` | {SIGNAL_STATUS} + `signal`: 130 for SIGINT |");
        assert!(page.contains(&row), "{row}");
    }

    #[test]
    fn signal_is_a_status_of_its_own_without_a_hint() {
        for (signal, name, status) in [(1, "SIGHUP", 129), (2, "SIGINT", 130), (15, "SIGTERM", 143)]
        {
            let failure = Failure::interrupted(signal).with_hint("start a server");
            assert_eq!(failure.to_string(), format!("interrupted by {name}"));
            assert_eq!(failure.exit_status(), status);
            assert_eq!(unless_stopped(Err(failure)), Ok(()));
        }
        assert!(unless_stopped(Err(Failure::work("x"))).is_err());
        let wild = Failure { signal: Some(u8::MAX), ..Failure::interrupted(2) };
        assert_eq!(wild.exit_status(), u8::MAX);
    }

    #[test]
    fn hint_has_its_own_line() {
        let failure = Failure::lacking("no TUN").with_hint("modprobe tun").at("node A");
        assert_eq!(failure.to_string(), "node A: no TUN\n  hint: modprobe tun");
    }
}
