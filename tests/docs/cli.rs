//! `docs/reference/cli.md` lists the commands and their shared options; `docs/reference/cli/COMMAND.md` is the help of
//! one command.
//!
//! `FLUE_BLESS=1 cargo test --test docs reference` writes the pages. Options that at least [`SHARED_MIN`] commands have
//! with the same text are on the first page only.

use std::{collections::BTreeMap, env, fmt::Write as _, fs};

use clap::{Arg, ArgAction, Command, CommandFactory as _, builder::StyledStr};
use flue::cli::Cli;

use super::root;

/// Page of all commands.
const FILE: &str = "docs/reference/cli.md";
/// Directory of the pages of the commands.
const DIRECTORY: &str = "docs/reference/cli";
/// Second paragraph of each page.
const GENERATED: &str = "<!-- Generated: FLUE_BLESS=1 cargo test --test docs reference -->";
/// Heading of options without one.
const OWN: &str = "Options";
/// Minimum number of commands with an option for it to be a shared option.
const SHARED_MIN: usize = 3;

/// Option as shown on the page.
#[derive(Clone, PartialEq, Eq)]
struct Entry {
    heading: String,
    /// `-s, --size BYTES`.
    name: String,
    text: String,
}

/// Paragraphs of a help text, each on one line.
fn paragraphs(text: &StyledStr) -> Vec<String> {
    let text = text.to_string();
    let joined = text.split("\n\n").map(|it| it.split_whitespace().collect::<Vec<_>>().join(" "));
    joined.filter(|it| !it.is_empty()).map(escaped).collect()
}

/// Anchor of a heading.
fn anchor(heading: &str) -> String {
    let is_kept = |it: &char| it.is_alphanumeric() || ['-', ' '].contains(it);
    heading.to_lowercase().chars().filter(is_kept).collect::<String>().replace(' ', "-")
}

/// Text in which characters that Markdown would interpret outside of code are escaped.
fn escaped(text: impl AsRef<str>) -> String {
    text.as_ref().replace('<', "&lt;").replace('*', "\\*").replace('|', "\\|").replace("_", "\\_")
}

fn sentence(text: &str) -> String {
    if text.ends_with(['.', ':', '!', '?']) { text.into() } else { format!("{text}.") }
}

/// Synopsis of an argument.
fn name(arg: &Arg) -> String {
    let values = arg.get_value_names().unwrap_or_default();
    let values = values.iter().map(|value| value.as_str()).collect::<Vec<_>>().join(" ");
    let short = arg.get_short().map(|it| format!("-{it}"));
    let long = arg.get_long().map(|it| format!("--{it}"));
    let flags = short.into_iter().chain(long).collect::<Vec<_>>().join(", ");
    let has_value = !matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::Count);
    match (flags.is_empty(), has_value) {
        (true, _) => values,
        (false, true) => format!("{flags} {values}"),
        (false, false) => flags,
    }
}

fn entry(arg: &Arg) -> Entry {
    let help = arg.get_long_help().or_else(|| arg.get_help());
    let help = help.map(paragraphs).unwrap_or_default();
    let mut text = help.iter().map(|it| sentence(it)).collect::<Vec<_>>().join("\n\n  ");
    let takes_value = arg.get_action().takes_values();
    let has_list = takes_value && arg.get_possible_values().iter().any(|it| !it.is_hide_set());
    for value in arg.get_possible_values().iter().filter(|it| takes_value && !it.is_hide_set()) {
        let help = value.get_help().map(|it| format!(": {}", paragraphs(it).join(" ")));
        write!(text, "\n  - `{}`{}", value.get_name(), help.unwrap_or_default()).unwrap();
    }
    let defaults: Vec<_> = arg.get_default_values().iter().map(|it| it.to_string_lossy()).collect();
    if takes_value && !arg.is_hide_default_value_set() && !defaults.is_empty() {
        let before = if has_list { "\n\n  " } else { " " };
        write!(text, "{before}Default: `{}`.", defaults.join(" ")).unwrap();
    }
    let heading = arg.get_help_heading().unwrap_or(OWN).to_owned();
    Entry { heading, name: name(arg), text }
}

fn is_shown(arg: &Arg) -> bool {
    !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str())
}

/// Commands of the page with their options.
fn commands(cli: &Command) -> Vec<(&Command, Vec<Entry>)> {
    let shown = cli.get_subcommands().filter(|it| !it.is_hide_set() && it.get_name() != "help");
    let mut commands: Vec<_> = shown
        .map(|command| {
            (command, command.get_arguments().filter(|it| is_shown(it)).map(entry).collect())
        })
        .collect();
    commands.sort_by_key(|(command, _)| command.get_name().to_owned());
    commands
}

fn write_entries<'a>(page: &mut String, entries: impl IntoIterator<Item = &'a Entry>) {
    for Entry { heading: _, name, text } in entries {
        writeln!(page, "- **`{name}`**: {text}\n").unwrap();
    }
}

/// Writes a text whose line breaks are significant, such as examples.
fn write_block(page: &mut String, text: Option<&StyledStr>) {
    if let Some(text) = text {
        writeln!(page, "```text\n{}\n```\n", text.to_string().trim_end()).unwrap();
    }
}

/// Options that several commands have, and their headings in order.
struct Shared {
    entries: Vec<Entry>,
    headings: Vec<String>,
}

fn shared(commands: &[(&Command, Vec<Entry>)]) -> Shared {
    let (mut shared, mut headings) = (Vec::new(), Vec::new());
    for entry in commands.iter().flat_map(|(_, entries)| entries) {
        let count = commands.iter().filter(|(_, entries)| entries.contains(entry)).count();
        if entry.heading != OWN && count >= SHARED_MIN && !shared.contains(entry) {
            if !headings.contains(&entry.heading) {
                headings.push(entry.heading.clone());
            }
            shared.push(entry.clone());
        }
    }
    Shared { entries: shared, headings }
}

/// Page with all commands, their exit statuses and their shared options.
fn overview(cli: &Command, commands: &[(&Command, Vec<Entry>)], shared: &Shared) -> String {
    let mut page = format!(
        "# Command line\n\n{GENERATED}\n\n`flue help COMMAND` prints the text of a command's page, \
         `flue COMMAND -h` one line per option. [Shared options](#shared-options) are on this page. A short \
         option has one meaning; `nc`, `perf`, `rping` and `ss` have those of the programs of these names, except \
         `-q` (`--quiet`) and `-w` (`--timeout`).\n\n| Command | Purpose |\n|---|---|\n",
    );
    for (command, _) in commands {
        let name = command.get_name();
        let about = command.get_about().map(paragraphs).unwrap_or_default().join(" ");
        writeln!(page, "| [`flue {name}`](cli/{name}.md) | {about} |").unwrap();
    }
    page.push('\n');
    write_block(&mut page, cli.get_after_help());
    page.push_str("## Shared options\n\n");
    for heading in &shared.headings {
        writeln!(page, "### {heading}\n").unwrap();
        write_entries(&mut page, shared.entries.iter().filter(|it| it.heading == *heading));
    }
    page
}

/// Page of one command.
fn page(command: &Command, entries: &[Entry], shared: &Shared) -> String {
    let mut page = format!("# flue {}\n\n{GENERATED}\n\n", command.get_name());
    let about = command.get_long_about().or_else(|| command.get_about());
    for paragraph in about.map(paragraphs).unwrap_or_default() {
        writeln!(page, "{}\n", sentence(&paragraph)).unwrap();
    }
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").split_whitespace().collect::<Vec<_>>();
    writeln!(page, "```text\n{}\n```\n", usage.join(" ")).unwrap();
    let (common, own): (Vec<_>, Vec<_>) =
        entries.iter().partition(|entry| shared.entries.contains(entry));
    write_entries(&mut page, own);
    let mut by_heading: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for entry in common {
        let place = shared.headings.iter().position(|it| *it == entry.heading).unwrap();
        let flag = entry.name.split([' ', ',']).next().unwrap();
        by_heading.entry(place).or_default().push(format!("`{flag}`"));
    }
    for (place, names) in by_heading {
        let heading = &shared.headings[place];
        let anchor = anchor(heading);
        writeln!(page, "[{heading}](../cli.md#{anchor}): {}.\n", names.join(", ")).unwrap();
    }
    write_block(&mut page, command.get_after_long_help().or_else(|| command.get_after_help()));
    page
}

/// All pages by path.
fn pages() -> BTreeMap<String, String> {
    let mut cli = Cli::command();
    cli.build();
    let commands = commands(&cli);
    let shared = shared(&commands);
    let of_commands = commands.iter().map(|(command, entries)| {
        (format!("{DIRECTORY}/{}.md", command.get_name()), page(command, entries, &shared))
    });
    let mut pages: BTreeMap<String, String> = of_commands.collect();
    pages.insert(FILE.to_owned(), overview(&cli, &commands, &shared));
    pages.values_mut().for_each(|page| *page = format!("{}\n", page.trim_end()));
    pages
}

/// Options of other programs in the guide.
const OTHERS: &[&str] = &["--gid", "--use-srq", "--verb=send", "--nocapture"];

/// Options in inline code of a page: of spans that open with an option or with `flue`.
fn options_of(page: &str) -> Vec<&str> {
    let spans = page
        .lines()
        .filter(|line| !line.starts_with("```"))
        .flat_map(|line| line.split('`').skip(1).step_by(2));
    let of_flue = spans.filter(|span| span.starts_with("--") || span.starts_with("flue "));
    let words =
        of_flue.flat_map(|span| span.split(" -- ").next().unwrap_or_default().split_whitespace());
    let options =
        words.filter(|word| word.starts_with("--") && word.len() > 2 && !OTHERS.contains(word));
    options.map(|word| word.split(['=', '|', '\\', ',']).next().unwrap_or_default()).collect()
}

#[test]
fn options_in_pages_exist() {
    assert_eq!(options_of("`--a B`, `flue x --b=1 -- p --c`, `ls --d`"), ["--a", "--b"]);
    let mut cli = Cli::command();
    cli.build();
    let arguments =
        cli.get_subcommands().flat_map(Command::get_arguments).filter(|arg| !arg.is_hide_set());
    let known: Vec<String> = arguments
        .flat_map(|arg| arg.get_long_and_visible_aliases().unwrap_or_default())
        .map(|name| format!("--{name}"))
        .collect();
    let mut findings = String::new();
    for (page, text) in super::blocks::pages() {
        for option in
            options_of(&text).into_iter().filter(|option| !known.iter().any(|it| it == option))
        {
            writeln!(findings, "{page}: no command has {option}").unwrap();
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
}

/// Pages of commands in the repository.
fn committed() -> Vec<String> {
    let files = fs::read_dir(root().join(DIRECTORY)).into_iter().flatten();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.map(|name| format!("{DIRECTORY}/{name}")).collect()
}

#[test]
fn reference_of_the_command_line_is_current() {
    const REMEDY: &str = "FLUE_BLESS=1 cargo test --test docs reference";
    let pages = pages();
    let stale: Vec<_> = committed().into_iter().filter(|it| !pages.contains_key(it)).collect();
    if env::var_os("FLUE_BLESS").is_some() {
        fs::create_dir_all(root().join(DIRECTORY)).unwrap();
        stale.iter().for_each(|file| fs::remove_file(root().join(file)).unwrap());
        pages.iter().for_each(|(file, page)| fs::write(root().join(file), page).unwrap());
        return;
    }
    assert!(stale.is_empty(), "{stale:?}: no such command: {REMEDY}");
    for (file, page) in pages {
        let committed = fs::read_to_string(root().join(&file)).unwrap_or_default();
        let differs = committed.lines().zip(page.lines()).position(|(old, new)| old != new);
        let line = differs.unwrap_or_else(|| committed.lines().count().min(page.lines().count()));
        assert!(committed == page, "{file}:{}: not current: {REMEDY}", line + 1);
    }
}
