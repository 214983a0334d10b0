//! The command line: selects the command, initializes the log, and maps the outcome to an exit status.
//!
//! [`exit_status_help`] lists the exit statuses.

use std::{
    ffi::OsString,
    io::{self, Write},
    process::ExitCode,
};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, error::ErrorKind};
use flue_bench::BenchArgs;
use tracing::level_filters::LevelFilter;

use crate::{
    adapter,
    cmd::{
        capture::{self, CaptureArgs},
        completions::{self, CompletionsArgs},
        doctor::{self, DoctorArgs},
        hand_over::{self, OffloadArgs, UploadArgs},
        judge::{self, JudgeArgs},
        lab::{
            self, LabArgs,
            node::{self, LabNodeArgs},
        },
        man_pages::{self, ManPagesArgs},
        metrics::{self, MetricsArgs},
        nc::{self, NcArgs},
        perf::{self, PerfArgs},
        playground::{
            down::{self, DownArgs},
            enter::{self, EnterArgs},
            keeper::{self, KeeperArgs},
            up::{self, UpArgs},
        },
        plot::{self, PlotArgs},
        rping::{self, RpingArgs},
        run::{self, RunArgs},
        serve::{self, ServeArgs},
        ss::{self, SsArgs},
        top::{self, TopArgs},
        wire::{self, WireArgs},
        wireshark_profile::{self, WiresharkProfileArgs},
    },
    control::message::Destination,
    failure::{Failure, exit_status_help, failure_status_help},
    options::OutputArgs,
    report::{
        Body, Console, Document, DocumentTo, ERROR, Style,
        stdout::{self, Stdout},
        write_document,
    },
    version,
};

/// A software RDMA adapter in user space: verbs programs, iWARP, and a TCP chimney on a TAP
///
/// Requires Linux, but no RDMA adapter or kernel module. TAP nodes require TUN, and root or a user namespace.
#[derive(Parser, Debug)]
#[command(name = "flue", version = version::VERSION.as_str(), max_term_width = 100, after_help = exit_status_help())]
pub struct Cli {
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands. The help text of each is that of its arguments.
#[derive(Subcommand, Debug)]
#[allow(missing_docs, reason = "a comment on a variant would replace its help")]
pub enum Command {
    Bench(Box<BenchArgs>),
    Capture(CaptureArgs),
    Completions(CompletionsArgs),
    Doctor(DoctorArgs),
    Down(DownArgs),
    Enter(EnterArgs),
    Judge(JudgeArgs),
    Lab(Box<LabArgs>),
    #[command(hide = true)]
    LabNode(LabNodeArgs),
    ManPages(ManPagesArgs),
    Metrics(MetricsArgs),
    Nc(Box<NcArgs>),
    Offload(OffloadArgs),
    Perf(Box<PerfArgs>),
    #[command(hide = true)]
    PlaygroundKeeper(KeeperArgs),
    Plot(PlotArgs),
    Rping(Box<RpingArgs>),
    Run(Box<RunArgs>),
    Serve(Box<ServeArgs>),
    Ss(SsArgs),
    Top(TopArgs),
    Up(UpArgs),
    Upload(UploadArgs),
    Wire(Box<WireArgs>),
    WiresharkProfile(WiresharkProfileArgs),
}

impl Command {
    /// Returns the command name, its quietness, the destination of its JSON document, and true if events are logged.
    const fn output_args(&self) -> (&'static str, OutputArgs, DocumentTo, bool) {
        match self {
            Self::Bench(_) => (
                "bench",
                OutputArgs { quiet: true, trace: false, json: false },
                DocumentTo::Stdout,
                false,
            ),
            Self::Capture(args) => ("capture", args.output, DocumentTo::Stdout, false),
            Self::Completions(_) => (
                "completions",
                OutputArgs { quiet: false, trace: false, json: false },
                DocumentTo::Stdout,
                false,
            ),
            Self::Doctor(args) => ("doctor", args.output, DocumentTo::Stdout, false),
            Self::Down(args) => ("down", args.output, DocumentTo::Stdout, false),
            // The command in a node owns the output.
            Self::Enter(_) => (
                "enter",
                OutputArgs { quiet: true, trace: false, json: false },
                DocumentTo::Stdout,
                false,
            ),
            Self::Judge(args) => ("judge", args.output, DocumentTo::Stdout, false),
            Self::Lab(args) => ("lab", args.output, DocumentTo::Stdout, args.verbose),
            Self::LabNode(args) => {
                (lab::NODE_COMMAND, args.output_args(), DocumentTo::Stderr, args.verbose)
            }
            Self::ManPages(args) => ("man-pages", args.output, DocumentTo::Stdout, false),
            Self::Metrics(args) => ("metrics", args.output_args(), DocumentTo::Stdout, false),
            Self::Nc(args) => ("nc", args.output, DocumentTo::Stderr, args.verbose),
            Self::Offload(args) => ("offload", args.common.output, DocumentTo::Stdout, false),
            Self::Perf(args) => ("perf", args.output_args(), DocumentTo::Stdout, args.verbose),
            Self::PlaygroundKeeper(_) => (
                keeper::COMMAND,
                OutputArgs { quiet: true, trace: false, json: false },
                DocumentTo::Stderr,
                false,
            ),
            Self::Plot(args) => ("plot", args.output, DocumentTo::Stdout, false),
            Self::Rping(args) => ("rping", args.output, DocumentTo::Stdout, args.verbose),
            // The program started by `flue run` owns the output.
            Self::Run(_) => (
                "run",
                OutputArgs { quiet: true, trace: false, json: false },
                DocumentTo::Stdout,
                false,
            ),
            Self::Serve(args) => ("serve", args.output_args(), DocumentTo::Stdout, args.verbose),
            Self::Ss(args) => ("ss", args.output_args(), DocumentTo::Stdout, false),
            Self::Top(_) => (
                "top",
                OutputArgs { quiet: true, trace: false, json: false },
                DocumentTo::Stdout,
                false,
            ),
            Self::Up(args) => ("up", args.output, DocumentTo::Stdout, false),
            Self::Upload(args) => ("upload", args.common.output, DocumentTo::Stdout, false),
            Self::Wire(args) => ("wire", args.output, DocumentTo::Stdout, args.verbose),
            Self::WiresharkProfile(args) => {
                ("wireshark-profile", args.output, DocumentTo::Stdout, false)
            }
        }
    }

    fn run(&self, console: &mut Console<'_>) -> Result<(), Failure> {
        match self {
            Self::Bench(args) => flue_bench::run(args, version::BUILD, console),
            Self::Capture(args) => capture::run(args, console),
            Self::Completions(args) => completions::run(args, &mut command(), console),
            Self::Doctor(args) => doctor::run(args, console),
            Self::Down(args) => down::run(args, console),
            Self::Enter(args) => enter::run(args),
            Self::Judge(args) => judge::run(args, console),
            Self::Lab(args) => lab::run(args, console),
            Self::LabNode(args) => node::run(args),
            Self::ManPages(args) => man_pages::run(args, command(), console),
            Self::Metrics(args) => metrics::run(args, console),
            Self::Nc(args) => nc::run(args, console),
            Self::Offload(args) => hand_over::run(&args.common, Destination::Target, console),
            Self::Perf(args) => perf::run(args, console),
            Self::PlaygroundKeeper(args) => keeper::run(args),
            Self::Plot(args) => plot::run(args, console),
            Self::Rping(args) => rping::run(args, console),
            Self::Run(args) => run::run(args, console),
            Self::Serve(args) => serve::run(args, console),
            Self::Ss(args) => ss::run(args, console),
            Self::Top(args) => top::run(args),
            Self::Up(args) => up::run(args, console),
            Self::Upload(args) => hand_over::run(&args.common, Destination::Host, console),
            Self::Wire(args) => wire::run(args, console),
            Self::WiresharkProfile(args) => wireshark_profile::run(args, console),
        }
    }
}

/// Runs the command selected by `arguments` (the program name first) on the standard streams of the process.
///
/// Call it from `main`, before a second thread is started.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let command = match parse(&arguments) {
        Ok(cli) => cli.command,
        Err(error) => {
            let status = refuse(&error, &arguments, &mut Stdout, &mut io::stderr());
            return ExitCode::from(status);
        }
    };
    let (name, output, document_to, verbose) = command.output_args();
    start_log(output, verbose);
    let style = Style { json: output.json, quiet: output.quiet, document_to };
    let mut console = Console::new(name, style);
    let ended = command.run(&mut console);
    let ended = adapter::with_failed_outputs(ended);
    ExitCode::from(console.finish(ended))
}

/// Heading of the examples in the help text of a command.
const EXAMPLES: &str = "Examples:\n";

/// Help text of a command: examples before the options.
const TEMPLATE: &str =
    "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}{all-args}{after-help}";

/// Divides a help text into its examples and the rest.
fn divided(text: &str) -> (String, String) {
    let Some(start) = text.find(EXAMPLES) else { return (String::new(), text.to_owned()) };
    let from = start + EXAMPLES.len();
    // Examples are indented; the next heading is not.
    let is_heading = |at: &usize| text[at + 2..].starts_with(|it: char| it.is_alphabetic());
    let mut breaks = text[from..].match_indices("\n\n").map(|(at, _)| from + at);
    let end = breaks.find(is_heading).map_or(text.len(), |at| at + 2);
    (text[start..end].trim_end().to_owned(), format!("{}{}", &text[..start], &text[end..]))
}

/// Returns the command line. A long help text begins with examples, and ends with the exit statuses.
pub fn command() -> clap::Command {
    Cli::command().mut_subcommands(|command| {
        let own = command.get_after_long_help().or_else(|| command.get_after_help());
        let (examples, own) = own.map(|text| divided(&text.to_string())).unwrap_or_default();
        let own = if own.is_empty() { own } else { format!("{}\n\n", own.trim_end()) };
        let command = match examples.is_empty() {
            true => command,
            false => command.help_template(TEMPLATE).before_long_help(examples),
        };
        let statuses = match command.get_name() {
            "enter" => {
                format!(
                    "Exit status: that of the command. Before its start:{}",
                    failure_status_help()
                )
            }
            "run" => {
                format!(
                    "Exit status: that of the program. Before its start:{}",
                    failure_status_help()
                )
            }
            _ => exit_status_help(),
        };
        command.after_long_help(format!("{own}{statuses}"))
    })
}

fn parse(arguments: &[OsString]) -> Result<Cli, clap::Error> {
    let mut command = command();
    let mut matches = command.try_get_matches_from_mut(arguments)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// Prints the output of clap: help and version on `out`, errors on `err`. With `--json` among the arguments, an error
/// is printed as a document on `out`. Returns the exit status.
fn refuse(
    error: &clap::Error,
    arguments: &[OsString],
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let written = write!(out, "{}", error.render()).and_then(|()| out.flush());
        return written.map_or_else(|error| stdout::fail(&error, err, "help"), |()| 0);
    }
    let text = error.render().to_string();
    // The first paragraph contains the error, the others contain usage hints.
    let wrong = text.split("\n\n").next().unwrap_or_default().trim_end();
    let failure = Failure::usage(wrong.trim_start_matches("error: "));
    if arguments.iter().any(|argument| argument == "--json") {
        // A write error on the output stream cannot be reported anywhere else; the exit status remains.
        let _ = write_document(out, &Document::new(ERROR, Some(&failure), Body::default()));
    } else {
        let _ = writeln!(err, "{}", text.trim_end());
    }
    failure.exit_status()
}

fn start_log(output: OutputArgs, verbose: bool) {
    let level = match (output.trace, verbose, output.quiet) {
        (true, _, _) => LevelFilter::TRACE,
        (_, true, _) => LevelFilter::DEBUG,
        (_, _, true) => LevelFilter::ERROR,
        _ => LevelFilter::WARN,
    };
    let log = tracing_subscriber::fmt().with_max_level(level).with_writer(io::stderr);
    // A second call (from tests) keeps the log of the first call.
    let _ = log.with_ansi(rustix::termios::isatty(io::stderr())).try_init();
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn refused(line: &str) -> (String, String, u8) {
        let arguments: Vec<OsString> =
            std::iter::once("flue").chain(line.split_whitespace()).map(Into::into).collect();
        let error = parse(&arguments).unwrap_err();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let status = refuse(&error, &arguments, &mut out, &mut err);
        (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap(), status)
    }

    #[test]
    fn command_line_is_consistent() {
        command().debug_assert();
    }

    /// Limit of the help text of an option in `-h`, so that it takes one line.
    const SHORT_HELP_CHARS_MAX: usize = 70;

    #[test]
    fn short_help_of_an_option_is_one_line() {
        let mut findings = String::new();
        for sub in command().get_subcommands().filter(|sub| !sub.is_hide_set()) {
            for arg in sub.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                let (length, name) = (help.chars().count(), sub.get_name());
                if !(1..=SHORT_HELP_CHARS_MAX).contains(&length) || help.contains('\n') {
                    findings
                        .push_str(&format!("flue {name}: {}: {length}: {help}\n", arg.get_id()));
                }
            }
        }
        assert!(findings.is_empty(), "\n{findings}");
    }

    #[test]
    fn long_help_begins_with_examples() {
        let texts = [
            ("A:\n  a\n\nExamples:\n  # b\n  c\n\n  d\n\nE:\n  e", "Examples:\n  # b\n  c\n\n  d"),
            ("Examples:\n  c", "Examples:\n  c"),
        ];
        for (text, examples) in texts {
            let (found, rest) = divided(text);
            assert_eq!(found, examples);
            assert!(!rest.contains("  c") && rest.is_empty() == (text == examples), "{rest}");
        }
        for name in ["nc", "perf", "ss", "bench", "wire"] {
            let mut command = command();
            let command = command.find_subcommand_mut(name).unwrap();
            let help = command.render_long_help().to_string();
            let [usage, examples, options] =
                ["Usage:", EXAMPLES, "\nOptions:"].map(|it| help.find(it).expect(it));
            assert!(usage < examples && examples < options, "{help}");
            assert_eq!(help.matches(EXAMPLES).count(), 1, "{help}");
        }
    }

    #[test]
    fn each_long_help_ends_with_the_exit_statuses() {
        for sub in command().get_subcommands_mut().filter(|sub| !sub.is_hide_set()) {
            let help = sub.render_long_help().to_string();
            assert!(help.trim_end().ends_with(&failure_status_help()), "{help}");
        }
    }

    /// Commands with the short options of the program that they are named after.
    const NAMESAKES: [&str; 4] = ["nc", "perf", "rping", "ss"];

    #[test]
    fn short_option_has_one_meaning() {
        let mut meanings = std::collections::BTreeMap::from([('q', "quiet"), ('w', "timeout")]);
        let command = command();
        for sub in command.get_subcommands() {
            let is_namesake = NAMESAKES.contains(&sub.get_name());
            for arg in sub.get_arguments() {
                let (Some(short), Some(long)) = (arg.get_short(), arg.get_long()) else { continue };
                if is_namesake && !['q', 'w'].contains(&short) {
                    continue;
                }
                let meaning = *meanings.entry(short).or_insert(long);
                assert_eq!(long, meaning, "flue {}: -{short}", sub.get_name());
            }
        }
    }

    #[test]
    fn usage_errors_have_status_2_also_in_json() {
        let (out, err, status) = refused("no-such-command");
        assert_eq!((out.as_str(), status), ("", 2));
        assert!(err.contains("no-such-command"), "{err}");
        let (out, err, status) = refused("doctor --no-such-option --json");
        assert_eq!((err.as_str(), status), ("", 2));
        let document: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(document["schema"], "flue.error/1");
        assert_eq!(document["error"]["kind"], "usage");
        assert_eq!(document["exit_status"], 2);
        let message = document["error"]["message"].as_str().unwrap();
        assert!(message.contains("--no-such-option") && !message.contains("--help"), "{message}");
    }

    #[test]
    fn help_is_no_error() {
        let (out, err, status) = refused("--help");
        assert_eq!((err.as_str(), status), ("", 0));
        assert!(out.contains("doctor") && out.contains("Exit status"), "{out}");
        let (out, _, _) = refused("nc --help");
        assert!(out.starts_with("Copy standard input to a connection"), "{out}");
        assert!(out.contains("[default: flue0]") && out.contains("1280..=65521"), "{out}");
    }
}
