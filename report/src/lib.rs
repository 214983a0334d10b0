//! Output of flue's commands. [`Console`] prints steps and results on standard output and everything else on standard
//! error. With `--json` it prints one document only. [`failure`] has the kinds of failures and their exit statuses;
//! [`table`] and [`units`] format text, [`svg`] draws charts, [`progress`] shows the progress of long commands.
#![forbid(unsafe_code)]

pub mod failure;
pub mod progress;
pub mod stdout;
pub mod svg;
pub mod table;
pub mod units;

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;

use crate::failure::Failure;

/// Version of the schemas. It increases when a key changes its meaning or is removed, not when a key is added.
pub const SCHEMA_VERSION: u32 = 1;
/// Name of the schema of an error without a command, such as an unknown option.
pub const ERROR: &str = "error";

/// Returns the schema of the documents `name`, usually the name of a command: `flue.NAME/VERSION`.
pub fn schema(name: &str) -> String {
    format!("flue.{name}/{SCHEMA_VERSION}")
}

/// A document: the keys that all documents have, then those of the body. All keys are always present; unknown values
/// are null.
#[derive(Serialize, Debug)]
pub struct Document<'a, B> {
    /// [`schema`].
    pub schema: String,
    /// True if the run succeeded.
    pub ok: bool,
    /// Exit status of the process.
    pub exit_status: u8,
    /// The failure; `None` if `ok`.
    pub error: Option<&'a Failure>,
    /// Keys of this schema.
    #[serde(flatten)]
    pub body: B,
}

/// Body of the documents of a [`Console`].
#[derive(Serialize, Clone, Copy, Debug, Default)]
pub struct Body<'a> {
    /// The effective configuration, if known.
    pub config: Option<&'a Value>,
    /// The results so far, if any.
    pub result: Option<&'a Value>,
}

impl<'a, B: Serialize> Document<'a, B> {
    /// Creates the document `name` of a run that ended with `error`.
    pub fn new(name: &str, error: Option<&'a Failure>, body: B) -> Self {
        Self {
            schema: schema(name),
            ok: error.is_none(),
            exit_status: error.map_or(0, Failure::exit_status),
            error,
            body,
        }
    }

    /// Returns the document on several lines.
    ///
    /// # Errors
    /// The body has a map with keys that are not strings.
    pub fn pretty(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    /// Returns the document on one line.
    ///
    /// # Errors
    /// As [`Document::pretty`].
    pub fn line(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }
}

/// Stream for the document.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DocumentTo {
    /// Standard output.
    #[default]
    Stdout,
    /// Standard error, for commands that write data to standard output.
    Stderr,
}

/// Amount and form of output.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Style {
    /// True for one JSON document instead of text.
    pub json: bool,
    /// True if only results and errors are printed.
    pub quiet: bool,
    /// Stream for the document.
    pub document_to: DocumentTo,
}

/// The output of a run.
pub struct Console<'w> {
    command: &'static str,
    style: Style,
    out: Box<dyn Write + 'w>,
    err: Box<dyn Write + 'w>,
    config: Option<Value>,
    result: Option<Value>,
    write_error: Option<io::Error>,
}

impl std::fmt::Debug for Console<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { command, style, .. } = self;
        f.debug_struct("Console")
            .field("command", command)
            .field("style", style)
            .finish_non_exhaustive()
    }
}

impl Console<'static> {
    /// Creates a console on standard output and standard error.
    pub fn new(command: &'static str, style: Style) -> Self {
        Self::on(command, style, Box::new(stdout::Stdout), Box::new(io::stderr()))
    }
}

impl<'w> Console<'w> {
    /// Creates a console on other streams.
    pub fn on(
        command: &'static str,
        style: Style,
        out: Box<dyn Write + 'w>,
        err: Box<dyn Write + 'w>,
    ) -> Self {
        Self { command, style, out, err, config: None, result: None, write_error: None }
    }

    /// Returns amount and form of the output.
    pub const fn style(&self) -> Style {
        self.style
    }

    /// Prints the effective configuration to standard error, and adds it to the document.
    pub fn config(&mut self, config: &(impl Serialize + std::fmt::Display)) {
        self.set_config(config);
        if !self.style.quiet && !self.style.json {
            for line in config.to_string().lines() {
                // A write error on standard error cannot be reported.
                let _ = writeln!(self.err, "# {line}");
            }
        }
    }

    /// Adds the effective configuration to the document, and does not print it.
    pub fn set_config(&mut self, config: &impl Serialize) {
        self.config = serde_json::to_value(config).ok();
    }

    /// Prints a step or a part of the result. Prints nothing with `--json`.
    pub fn print(&mut self, text: impl std::fmt::Display) {
        if !self.style.json {
            let written = writeln!(self.out, "{text}").and_then(|()| self.out.flush());
            self.note_error(written);
        }
    }

    /// Prints a step that scripts do not need. Prints nothing with `-q`.
    pub fn step(&mut self, text: impl std::fmt::Display) {
        if !self.style.quiet {
            self.print(text);
        }
    }

    /// Prints a remark to standard error. Prints nothing with `-q`.
    pub fn remark(&mut self, text: impl std::fmt::Display) {
        if !self.style.quiet && !self.style.json {
            // One write: lines of concurrent programs do not mix.
            let _ = self.err.write_all(format!("{text}\n").as_bytes());
        }
    }

    /// Sets the `result` of the document, or replaces it.
    pub fn result(&mut self, result: &impl Serialize) {
        self.result = serde_json::to_value(result).ok();
    }

    /// Checks that standard output is writable, for commands that run until they are stopped.
    ///
    /// # Errors
    /// The first write error of standard output. [`Console::finish`] treats it as it treats the write error itself.
    pub fn check(&self) -> Result<(), Failure> {
        self.write_error.as_ref().map_or(Ok(()), |error| Err(stdout::failure(error)))
    }

    fn note_error(&mut self, written: io::Result<()>) {
        if let Err(error) = written {
            self.unwritten(error);
        }
    }

    /// Records a write error of standard output, for a command that writes to it directly.
    pub fn unwritten(&mut self, error: io::Error) {
        self.write_error.get_or_insert(error);
    }

    /// Ends the run: prints the document or the error, and returns the exit status. A run that failed only because
    /// standard output is a broken pipe prints nothing and returns [`stdout::BROKEN_PIPE_STATUS`].
    pub fn finish(mut self, ended: Result<(), Failure>) -> u8 {
        let unwritten = self.check().err();
        let is_broken = self.write_error.as_ref().is_some_and(stdout::is_broken_pipe);
        let failure = ended.err().or_else(|| unwritten.clone());
        // With a broken standard output, a document on standard error can still be written.
        let is_silent = !self.style.json || self.style.document_to == DocumentTo::Stdout;
        if is_broken && is_silent && failure == unwritten {
            return stdout::BROKEN_PIPE_STATUS;
        }
        if self.style.json {
            let body = Body { config: self.config.as_ref(), result: self.result.as_ref() };
            let document = Document::new(self.command, failure.as_ref(), body);
            let stream = match self.style.document_to {
                DocumentTo::Stdout => &mut self.out,
                DocumentTo::Stderr => &mut self.err,
            };
            let is_stdout = self.style.document_to == DocumentTo::Stdout;
            match write_document(stream, &document) {
                Ok(()) => {}
                Err(error) if is_stdout && failure.is_none() => {
                    return stdout::fail(&error, &mut self.err, self.command);
                }
                Err(_) => return failure.map_or(1, |failure| failure.exit_status()),
            }
        } else if let Some(failure) = &failure {
            let _ = writeln!(self.err, "flue {}: {failure}", self.command);
        }
        failure.map_or(0, |failure| failure.exit_status())
    }
}

/// Writes `document` and a newline.
///
/// # Errors
/// Errors of the stream.
pub fn write_document(
    out: &mut dyn Write,
    document: &Document<'_, impl Serialize>,
) -> io::Result<()> {
    let text = document.pretty().map_err(io::Error::other)?;
    writeln!(out, "{text}")?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(
        style: Style,
        ended: Result<(), Failure>,
        talk: impl FnOnce(&mut Console<'_>),
    ) -> (String, String, u8) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut console = Console::on("test", style, Box::new(&mut out), Box::new(&mut err));
        talk(&mut console);
        let status = console.finish(ended);
        (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap(), status)
    }

    const JSON: Style = Style { json: true, quiet: false, document_to: DocumentTo::Stdout };

    #[test]
    fn results_go_to_standard_output_errors_to_standard_error() {
        let ended = Err(Failure::work("peer closed"));
        let (out, err, status) = run(Style::default(), ended, |console| console.print("a result"));
        assert_eq!(out, "a result\n");
        assert_eq!(err, "flue test: peer closed\n");
        assert_eq!(status, 1);
    }

    #[test]
    fn quiet_keeps_results() {
        let style = Style { quiet: true, ..Style::default() };
        let (out, err, status) = run(style, Ok(()), |console| {
            console.step("step");
            console.remark("remark");
            console.print("result");
        });
        assert_eq!((out.as_str(), err.as_str(), status), ("result\n", "", 0));
    }

    #[test]
    fn json_is_one_document_also_on_error() {
        let ended = Err(Failure::lacking("no TUN").with_hint("modprobe tun"));
        let (out, _, status) = run(JSON, ended, |console| {
            console.print("not in the document");
            console.result(&serde_json::json!({ "time_ns": 5, "rtt_ns": null }));
        });
        assert_eq!(status, 3);
        assert!(out.starts_with("{\n  \"schema\": \"flue.test/1\",\n"), "{out}");
        let document: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(document["ok"], false);
        assert_eq!(document["exit_status"], 3);
        assert_eq!(document["error"]["kind"], "prerequisite");
        assert_eq!(document["error"]["hint"], "modprobe tun");
        assert!(document["config"].is_null());
        assert_eq!(document["result"]["time_ns"], 5);
    }

    #[test]
    fn document_is_written_to_standard_error() {
        let style = Style { document_to: DocumentTo::Stderr, ..JSON };
        let (out, err, _) = run(style, Ok(()), |_| {});
        assert_eq!(out, "");
        assert_eq!(serde_json::from_str::<Value>(&err).unwrap()["ok"], true);
    }

    /// A stream whose writes fail.
    struct Failing(io::ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns status and standard error of a run whose standard output fails.
    fn run_without_output(
        style: Style,
        kind: io::ErrorKind,
        ended: impl FnOnce(&mut Console<'_>) -> Result<(), Failure>,
    ) -> (u8, String) {
        let mut err = Vec::new();
        let mut console = Console::on("test", style, Box::new(Failing(kind)), Box::new(&mut err));
        let ended = ended(&mut console);
        let status = console.finish(ended);
        (status, String::from_utf8(err).unwrap())
    }

    #[test]
    fn full_standard_output_is_a_failure() {
        for style in [Style::default(), JSON] {
            let (status, err) = run_without_output(style, io::ErrorKind::StorageFull, |console| {
                console.print("result");
                Ok(())
            });
            assert_eq!(
                (status, err.as_str()),
                (1, "flue test: standard output: no storage space\n")
            );
        }
    }

    #[test]
    fn broken_pipe_ends_the_run_silently() {
        for style in [Style::default(), JSON] {
            let (status, err) = run_without_output(style, io::ErrorKind::BrokenPipe, |console| {
                console.print("result");
                console.check()
            });
            assert_eq!((status, err.as_str()), (stdout::BROKEN_PIPE_STATUS, ""));
        }
        let (status, err) =
            run_without_output(Style::default(), io::ErrorKind::BrokenPipe, |console| {
                console.print("result");
                console.check().map_err(|failure| failure.at("log"))
            });
        assert_eq!((status, err.as_str()), (1, "flue test: log: standard output: broken pipe\n"));
    }

    #[test]
    fn failure_is_reported_without_standard_output() {
        let failed = |_: &mut Console<'_>| Err(Failure::lacking("no TUN"));
        let (status, err) = run_without_output(Style::default(), io::ErrorKind::BrokenPipe, failed);
        assert_eq!((status, err.as_str()), (3, "flue test: no TUN\n"));
    }

    proptest! {
        /// The document is valid JSON for any error text.
        #[test]
        fn json_is_valid_for_any_text(message in any::<String>(), hint in any::<Option<String>>()) {
            let mut failure = Failure::work(message.clone());
            failure.hint = hint;
            let (out, _, _) = run(JSON, Err(failure), |_| {});
            let document: Value = serde_json::from_str(&out).unwrap();
            prop_assert_eq!(document["error"]["message"].as_str(), Some(message.as_str()));
        }
    }

    #[test]
    fn configuration_is_printed_once_in_each_form() {
        #[derive(Serialize)]
        struct Config {
            seed: u64,
        }
        impl std::fmt::Display for Config {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "seed: {}\nbridge: none", self.seed)
            }
        }
        let config = Config { seed: 7 };
        let (out, err, _) = run(Style::default(), Ok(()), |console| console.config(&config));
        assert_eq!((out.as_str(), err.as_str()), ("", "# seed: 7\n# bridge: none\n"));
        let (out, _, _) = run(JSON, Ok(()), |console| console.config(&config));
        let document: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(document["config"]["seed"], 7);
    }
}
