//! `flue man-pages`: writes the manual pages, one for the program and one for each command, from the definition of the
//! command line.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use clap::Args;
use clap_mangen::{
    Man,
    roff::{Roff, roman},
};
use serde::Serialize;

use crate::{failure::Failure, options::OutputArgs, report::Console};

/// Title of the manual.
const MANUAL: &str = "flue manual";
/// Words of a heading; a longer first line of a paragraph is text.
const HEADING_WORDS_MAX: usize = 3;

/// Write the manual pages to a directory
///
/// Writes flue.1 and flue-COMMAND.1. "man" finds them in the directory man1 of its search path; "manpath" prints that
/// path. Existing files are replaced.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  flue man-pages ~/.local/share/man/man1
  man flue-run")]
pub struct ManPagesArgs {
    /// Directory, created if absent
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub directory: PathBuf,

    /// Output options.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// The `result` object of the JSON document.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Written {
    /// Directory of the pages.
    directory: PathBuf,
    /// Names of the pages.
    files: Vec<String>,
}

/// Runs `flue man-pages`. `command` is the command line.
///
/// # Errors
/// The directory cannot be written.
pub fn run(
    args: &ManPagesArgs,
    command: clap::Command,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let ManPagesArgs { directory, output: _ } = args;
    let written = pages(command).and_then(|pages| write(directory, &pages));
    let files =
        written.map_err(|error| Failure::work(format!("{}: {error}", directory.display())))?;
    console.print(format_args!("{} pages: {}", files.len(), directory.display()));
    console.result(&Written { directory: directory.clone(), files });
    Ok(())
}

fn write(directory: &Path, pages: &[(String, Vec<u8>)]) -> io::Result<Vec<String>> {
    fs::create_dir_all(directory)?;
    for (name, page) in pages {
        fs::write(directory.join(name), page)?;
    }
    Ok(pages.iter().map(|(name, _)| name.clone()).collect())
}

/// Returns all pages, each with its file name.
fn pages(command: clap::Command) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    shown.chain([&command]).map(page).collect()
}

fn page(command: &clap::Command) -> io::Result<(String, Vec<u8>)> {
    // All options of a command would fill a screen.
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim().to_owned();
    let after = command.get_after_long_help().or_else(|| command.get_after_help());
    let notes = command.get_before_long_help().into_iter().chain(after);
    let notes = notes.map(ToString::to_string).collect::<Vec<_>>().join("\n\n");
    let source = format!("flue {}", env!("CARGO_PKG_VERSION"));
    let is_whole = command.has_subcommands();
    let command = command.clone().override_usage(usage).after_help(None::<&str>);
    let page = Man::new(command.after_long_help(None::<&str>)).source(source).manual(MANUAL);
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    if is_whole {
        page.render_subcommands_section(&mut text)?;
    }
    page.render_options_section(&mut text)?;
    let mut roff = Roff::new();
    sections(&notes, &mut roff);
    if !is_whole {
        roff.control("SH", ["SEE ALSO"]).text([roman("flue(1)")]);
    }
    roff.to_writer(&mut text)?;
    Ok((page.get_filename(), text))
}

/// Appends a section for each paragraph: a line that ends with a colon, and indented lines. A paragraph of indented
/// lines only continues the section before it.
fn sections(notes: &str, roff: &mut Roff) {
    for paragraph in notes.split("\n\n") {
        if paragraph.starts_with("  ") {
            roff.control("PP", []);
            unfilled(paragraph, roff);
            continue;
        }
        let (first, lines) = paragraph.split_once('\n').unwrap_or((paragraph, ""));
        let (heading, text) = match first.split_once(':') {
            Some((heading, rest)) if heading.split(' ').count() <= HEADING_WORDS_MAX => {
                (heading, rest.trim())
            }
            _ => ("Notes", first),
        };
        if first.is_empty() {
            continue;
        }
        roff.control("SH", [heading.to_uppercase().as_str()]);
        if !text.is_empty() {
            roff.text([roman(text)]);
            roff.control("PP", []);
        }
        unfilled(lines, roff);
    }
}

/// Appends indented lines as they are.
fn unfilled(lines: &str, roff: &mut Roff) {
    roff.control("nf", []);
    for line in lines.lines() {
        roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
    }
    roff.control("fi", []);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    #[test]
    fn each_command_has_a_page() {
        let pages = pages(cli::command()).unwrap();
        let names: Vec<_> = pages.iter().map(|(name, _)| name.as_str()).collect();
        let command = cli::command();
        let shown = command.get_subcommands().filter(|it| !it.is_hide_set());
        let expected: Vec<_> = shown.map(|it| format!("flue-{}.1", it.get_name())).collect();
        assert_eq!(names[..names.len() - 1], expected);
        assert_eq!(names.last(), Some(&"flue.1"));
        for (name, page) in &pages {
            let page = std::str::from_utf8(page).unwrap();
            for heading in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS"] {
                let heading = match heading.contains(' ') {
                    true => format!(".SH \"{heading}\"\n"),
                    false => format!(".SH {heading}\n"),
                };
                assert_eq!(page.matches(&heading).count(), 1, "{name}: {heading}");
            }
        }
    }

    #[test]
    fn pages_contain_options_and_unfilled_examples() {
        let pages = pages(cli::command()).unwrap();
        let of = |name: &str| {
            let (_, page) = pages.iter().find(|(it, _)| it == name).unwrap();
            String::from_utf8(page.clone()).unwrap()
        };
        let run = of("flue-run.1");
        assert!(run.contains("\\fBflue run\\fR [OPTIONS] <PROGRAM>...\n"), "{run}");
        assert!(run.contains("\\fB\\-\\-device\\fR") && run.contains(".SH \"SEE ALSO\""), "{run}");
        let examples = ".SH EXAMPLES\n.nf\nflue man\\-pages ~/.local/share/man/man1\n";
        let own = of("flue-man-pages.1");
        assert!(own.contains(examples), "{own}");
        let perf = of("flue-perf.1");
        assert!(perf.contains(".PP\n.nf\n# a ping\\-pong of 8 B on kernel sockets\n"), "{perf}");
        assert!(of("flue.1").contains("flue\\-run(1)"));
    }
}
