//! House style that no other tool checks. All findings are reported together, with file and line.

#[path = "tidy/dependencies.rs"]
mod dependencies;
#[path = "tidy/entry_points.rs"]
mod entry_points;
#[path = "tidy/limits.rs"]
mod limits;
#[path = "tidy/modules.rs"]
mod modules;
#[path = "tidy/mutants.rs"]
mod mutants;
#[path = "tidy/prose.rs"]
mod prose;
#[path = "tidy/spelling.rs"]
mod spelling;

use std::{
    collections::BTreeMap,
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

/// Maximum lines of a source file; longer unit tests are moved to their own file.
const SOURCE_LINES_MAX: usize = 800;
/// Maximum characters of a line: above rustfmt's limit, for comments and strings that rustfmt does not wrap.
const COLUMNS_MAX: usize = 120;

/// Page with the files that may contain `unsafe`, each with its number of lines.
const UNSAFE_PAGE: &str = "docs/contributing/unsafe.md";
/// Files in which a thread may sleep: there the pause is the required behavior.
const SLEEP: &[&str] = &[
    "tests/support/src/kernel_peer.rs",
    "host-stack/tests/queues_cost.rs",
    // A connect is repeated until the peer listens.
    "judge/src/link.rs",
    // Events of a soak occur at random times of the traffic.
    "tests/verbs/soak.rs",
];

/// Libraries loaded into other programs: they start threads by `offload_engine::thread` only, which blocks the
/// program's signals.
const GUESTS: &[&str] = &[
    "offload-engine/src",
    "host-stack/src",
    "rdma-over-tcp/src",
    "adapter/src",
    "network/src",
    "verbs/core/src",
    "verbs/c/src",
    "verbs/paths/src",
    "ndkpi/src",
];
/// Thread starts of the standard library, split in two as in [`BANNED`].
const THREAD_STARTS: &[[&str; 2]] =
    &[["thread::", "spawn"], ["thread::", "Builder"], ["scope.", "spawn"], [".spawn", "_scoped("]];

/// Text that is not permitted in any source file. Split in two, so that this file does not match.
const BANNED: &[[&str; 2]] = &[
    ["to", "do!("],
    ["unimplement", "ed!("],
    ["db", "g!("],
    ["FIX", "ME"],
    ["XX", "X"],
    ["TO", "DO"],
    ["allow(dead", "_code)"],
    ["allow(missing", "_docs)"],
    ["allow(clip", "py::all)"],
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Files of the repository with this extension, at least one; built, fetched and hidden files are excluded.
fn files(extension: &str) -> Vec<(String, String)> {
    let found = files_or_none(extension);
    assert!(!found.is_empty(), "no file ends in .{extension}");
    found
}

fn files_or_none(extension: &str) -> Vec<(String, String)> {
    let is_of = |path: &String| Path::new(path).extension().is_some_and(|it| it == extension);
    let read = |path: String| {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        (path, text)
    };
    paths().into_iter().filter(is_of).map(read).collect()
}

/// Paths of all files of the repository, sorted; built, fetched and hidden files are excluded.
fn paths() -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![root().to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if !name.starts_with('.') && name != "target" {
                    open.push(path);
                }
            } else {
                found.push(path.strip_prefix(root()).unwrap().display().to_string());
            }
        }
    }
    found.sort();
    found
}

fn is_under(file: &str, places: &[&str]) -> bool {
    places.iter().any(|place| file.starts_with(place))
}

/// Code of a line, without its comment. A string that contains `//` is truncated, which can only hide a finding.
fn code(line: &str) -> &str {
    line.split_once("//").map_or(line, |(code, _)| code)
}

fn has_word(line: &str, word: &str) -> bool {
    line.split(|it: char| !it.is_alphanumeric() && it != '_').any(|it| it == word)
}

/// True if the line starts a thread that receives the program's signals.
fn starts_thread(line: &str) -> bool {
    THREAD_STARTS.iter().any(|parts| code(line).contains(&parts.concat()))
}

#[test]
fn libraries_start_threads_that_block_signals() {
    let mut findings = String::new();
    for (file, text) in files("rs") {
        let is_test = file.contains("tests") || file.ends_with("models.rs");
        if is_test || !is_under(&file, GUESTS) || file == "offload-engine/src/thread.rs" {
            continue;
        }
        let is_product =
            |line: &&str| !line.starts_with("#[cfg(test)]") && !line.starts_with("#[cfg(all(test");
        for (number, line) in (1..).zip(text.lines().take_while(is_product)) {
            if starts_thread(line) {
                writeln!(findings, "{file}:{number}: start it by offload_engine::thread").unwrap();
            }
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
    for line in ["std::thread::spawn(run)", "thread::Builder::new()", "scope.spawn(|| run())"] {
        assert!(starts_thread(line), "{line}");
    }
}

#[test]
fn sources() {
    let mut findings = String::new();
    for (file, text) in files("rs") {
        let mut find = |line: usize, what: &str| {
            writeln!(findings, "{file}:{line}: {what}").unwrap();
        };
        let lines = text.lines().count();
        let is_test = file.contains("tests");
        if !text.starts_with("//!") && !is_test {
            find(1, "does not start with a description (`//!`)");
        }
        if lines > SOURCE_LINES_MAX {
            find(lines, "is too long: split it by subject");
        }
        for (number, line) in (1..).zip(text.lines()) {
            if line.chars().count() > COLUMNS_MAX {
                find(number, "is too wide");
            }
            if line.contains('\t') || line.ends_with(' ') {
                find(number, "has a tab or trailing white space");
            }
            for banned in BANNED.iter().map(|parts| parts.concat()) {
                if line.contains(&banned) {
                    find(number, &format!("`{banned}` is not allowed here"));
                }
            }
            if code(line).contains(&["thread::", "sleep("].concat()) && !is_under(&file, SLEEP) {
                find(number, "sleep is not allowed: wait for an event with a deadline");
            }
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
}

/// File and number of a row of [`UNSAFE_PAGE`].
fn unsafe_row(line: &str) -> Option<(&str, usize)> {
    let (file, lines) = line.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | ")?;
    Some((file, lines.parse().ok()?))
}

#[test]
fn unsafe_code_is_listed() {
    let counts: BTreeMap<String, usize> = files("rs")
        .into_iter()
        .filter(|(file, _)| !file.contains("tests"))
        .map(|(file, text)| {
            (file, text.lines().filter(|line| has_word(code(line), "unsafe")).count())
        })
        .filter(|(_, count)| *count > 0)
        .collect();
    let path = root().join(UNSAFE_PAGE);
    let page = fs::read_to_string(&path).unwrap();
    let listed: BTreeMap<&str, usize> = page.lines().filter_map(unsafe_row).collect();
    for file in counts.keys() {
        assert!(listed.contains_key(file.as_str()), "{UNSAFE_PAGE}: no row of {file}");
    }
    let corrected: String = page
        .lines()
        .filter_map(|line| match unsafe_row(line) {
            Some((file, _)) => Some(format!("| `{file}` | {} |\n", counts.get(file)?)),
            None => Some(format!("{line}\n")),
        })
        .collect();
    if env::var_os("FLUE_BLESS").is_some() {
        fs::write(&path, &corrected).unwrap();
    } else {
        assert!(corrected == page, "FLUE_BLESS=1 cargo test --test tidy unsafe");
    }
}

/// Values that a message may format as `{…:?}`: quoted text, durations and ranges. Debug output of other types is for
/// developers.
const SHOWN_BY_DEBUG: &[&str] = &[
    // Words of a command line or file.
    "after",
    "asked",
    "cell",
    "column",
    "key",
    "letters",
    "line",
    "name",
    "order",
    "other",
    "output",
    "part",
    "text",
    "word",
    "line.schema",
    "document.schema",
    // Windows' name of a reason: the variant name.
    "reason",
    // Durations and ranges.
    "ANSWER_LIMIT",
    "DELAY_MAX",
    "LIMIT",
    "delay",
    "jitter",
    "limit",
    "range",
];
/// Files that compare Debug output or print internal state.
const DEBUG_OUTPUT: &[&str] = &[
    "offload-engine/src/state/variables.rs",
    "offload-engine/src/tcp/recovery/fast_path.rs",
    "host-stack/src/simulation.rs",
    "tests/",
];

/// Expressions that a line formats by Debug; for `{:?}` the first argument after the text.
fn shown_by_debug(line: &str) -> Vec<&str> {
    let argument = line.rsplit_once("\", ").map_or("", |(_, arguments)| arguments);
    let argument = argument.split([',', ')']).next().unwrap_or_default();
    let fields = line.split('{').skip(1).filter_map(|part| part.split_once('}'));
    let formatted = fields.filter_map(|(field, _)| match field.split_once(':')? {
        ("", "?" | "#?") => Some(argument),
        (expression, "?" | "#?") => Some(expression),
        _ => None,
    });
    formatted.collect()
}

#[test]
fn messages_have_no_debug_output() {
    assert_eq!(shown_by_debug(r#"format!("{text:?} {0:#?} {a:x}")"#), ["text", "0"]);
    assert_eq!(shown_by_debug(r#"format!("{:?}, not {X}", status.state)"#), ["status.state"]);
    let is_interior = |line: &str| {
        let macros = ["panic!(", "assert", "unreachable!(", "expect(", "write!(f, \""];
        macros.iter().any(|it| line.contains(it))
    };
    let mut findings = String::new();
    let mut allowed = 0;
    for (file, text) in files("rs") {
        if is_under(&file, DEBUG_OUTPUT) || file.contains("/tests") || file.contains("simulation") {
            continue;
        }
        // Test modules are at the end of their file.
        let code_lines = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]"));
        for (number, line) in (1..).zip(code_lines).filter(|(_, line)| !is_interior(line)) {
            for shown in shown_by_debug(code(line)) {
                match SHOWN_BY_DEBUG.contains(&shown) {
                    true => allowed += 1,
                    false => writeln!(findings, "{file}:{number}: {shown} by Debug").unwrap(),
                }
            }
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
    assert!(allowed > 20, "only {allowed}");
}

/// Rule ids in a line, such as `CH-SND-5`, of the families that `docs/conformance` defines.
fn rule_ids(line: &str) -> Vec<&str> {
    let is_of_id = |it: char| it.is_ascii_uppercase() || it.is_ascii_digit() || "-.".contains(it);
    let words = line.split(|it: char| !is_of_id(it)).map(|word| word.trim_matches(['-', '.']));
    let ends_in_number =
        |word: &&str| word.rsplit('-').next().is_some_and(|end| end.parse::<u32>().is_ok());
    let families = [
        "CH-", "NDK-", "MPA-", "MPE-", "DDP-", "RDM-", "EXT-", "SEC-", "MUST-", "SHLD-", "MAY-",
        "REC-",
    ];
    words
        .filter(|word| families.iter().any(|family| word.starts_with(family)))
        .filter(ends_in_number)
        .collect()
}

/// Topics of the chimney's design guide in a line, such as `CH §9.2`.
fn topics(line: &str) -> Vec<String> {
    let words = line.split([' ', ',', ';', ':', '(', ')']).map(|word| word.trim_end_matches('.'));
    let words: Vec<&str> = words.collect();
    let number = |word: &str| {
        let number = word.strip_prefix('§')?;
        let is_topic = number.split('.').count() == 2
            && number.split('.').all(|part| part.parse::<u8>().is_ok());
        is_topic.then(|| format!("CH §{number}"))
    };
    words.windows(2).filter(|pair| pair[0] == "CH").filter_map(|pair| number(pair[1])).collect()
}

/// Pitfalls of migration in a line, such as `P9`.
fn pitfalls(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split(|it: char| !it.is_alphanumeric() && it != '_');
    words.filter(|word| word.strip_prefix('P').is_some_and(|number| number.parse::<u8>().is_ok()))
}

/// True if a document is cited without `§`: `RFC 9293 s3`, `RFC 9293 section 3`, `RFC 6298 2.4`.
fn cites_otherwise(line: &str) -> bool {
    let words: Vec<&str> = line.split([' ', '(', ')', ';']).collect();
    let is_place = |word: &&str| {
        let number = word.strip_prefix('s').unwrap_or(word);
        *word == "section"
            || number.starts_with(|it: char| it.is_ascii_digit()) && number.contains('.')
            || *word != number && number.trim_end_matches([',', ':']).parse::<u8>().is_ok()
    };
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|it| it.is_ascii_digit());
    let rfc = words.windows(3).any(|it| it[0] == "RFC" && is_number(it[1]) && is_place(&it[2]));
    rfc || words.windows(2).any(|it| it[0] == "CH" && is_place(&it[1]))
}

#[test]
fn citations_have_one_form() {
    for line in [
        "RFC 9293 s3.8.1: x",
        "// (RFC 791 s3, x)",
        "RFC 8200 section 5",
        "RFC 6298 2.4,",
        "CH s9.2",
        "CH 9.1.",
    ] {
        assert!(cites_otherwise(line), "{line}");
    }
    for line in ["RFC 9293 §3.8.1", "RFC 5681 and 6582", "CH-SND-5", "RFC 6298, 2 s later"] {
        assert!(!cites_otherwise(line), "{line}");
    }
    let mut findings = String::new();
    for (file, text) in files("rs").into_iter().chain(files("md")) {
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| cites_otherwise(line)) {
            // This file contains the examples above.
            if file != "tests/tidy.rs" {
                writeln!(findings, "{file}:{number}: {}", line.trim()).unwrap();
            }
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
}

#[test]
fn every_pitfall_that_code_cites_is_listed() {
    let file = "docs/conformance/chimney.md";
    let text = fs::read_to_string(root().join(file)).unwrap();
    let rows = section(&text, "Pitfalls of migration");
    let mut findings = String::new();
    let mut cited = 0;
    for (source, text) in files("rs") {
        for (number, line) in (1..).zip(text.lines()) {
            for pitfall in pitfalls(line) {
                cited += 1;
                if !rows.iter().any(|row| row[0] == pitfall) {
                    writeln!(findings, "{source}:{number}: {pitfall} is not listed in {file}")
                        .unwrap();
                }
            }
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
    assert!(cited > 20, "only {cited} citations");
}

#[test]
fn every_rule_that_code_cites_is_in_the_conformance_documents() {
    let documents = files("md");
    let documents = documents.iter().filter(|(file, _)| file.starts_with("docs/conformance/"));
    let lines: Vec<&str> = documents.flat_map(|(_, text)| text.lines()).collect();
    let defined: Vec<&str> = lines.iter().flat_map(|line| rule_ids(line)).collect();
    let is_topic = |topic: &str| {
        let number = topic.trim_start_matches("CH §");
        let mut rows = lines.iter().filter(|line| line.starts_with("| CH "));
        rows.any(|row| row.split([' ', ',']).any(|word| word.trim_start_matches('§') == number))
    };
    let mut findings = String::new();
    let others = files("md").into_iter().filter(|(file, _)| !file.starts_with("docs/conformance/"));
    for (file, text) in files("rs").into_iter().chain(others) {
        for (number, line) in (1..).zip(text.lines()) {
            for id in rule_ids(line).into_iter().filter(|id| !defined.contains(id)) {
                writeln!(findings, "{file}:{number}: {id} is not defined").unwrap();
            }
            for topic in topics(line).into_iter().filter(|topic| !is_topic(topic)) {
                writeln!(findings, "{file}:{number}: {topic} is not defined").unwrap();
            }
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
}

/// Names after `::` in a row's last cell: `` `cq::overrun` `` is the function `overrun`.
fn named_tests(row: &str) -> impl Iterator<Item = &str> {
    let cell = row.trim_end_matches([' ', '|']).rsplit(" | ").next().unwrap_or_default();
    cell.split('`').skip(1).step_by(2).filter_map(|name| Some(name.rsplit_once("::")?.1))
}

/// Existence of the named tests; `docs/conformance/iwarp.md` has its own check next to the protocol cores.
#[test]
fn conformance_documents_name_existing_tests() {
    let sources: Vec<String> = files("rs").into_iter().map(|(_, text)| text).collect();
    let mut findings = String::new();
    let mut named = 0;
    for file in ["docs/conformance/ndk.md"] {
        let text = fs::read_to_string(root().join(file)).unwrap();
        let rows = text.lines().filter(|row| row.starts_with("| ") && !rule_ids(row).is_empty());
        for (row, name) in rows.flat_map(|row| named_tests(row).map(move |name| (row, name))) {
            named += 1;
            let function = format!("fn {name}(");
            if !sources.iter().any(|text| text.contains(&function)) {
                let rule = rule_ids(row)[0];
                writeln!(findings, "{file}: {rule}: test not found: {name}").unwrap();
            }
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
    assert!(named > 100, "only {named} tests are cited");
}

/// Test functions: the components of their file's path, without the extension, and their name.
fn test_functions() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (file, text) in files("rs") {
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            is_test |= line == "#[test]";
            let Some(rest) =
                line.trim_start_matches("pub(super) ").strip_prefix("fn ").filter(|_| is_test)
            else {
                continue;
            };
            let name = rest.split(['(', '<']).next().unwrap_or_default();
            found.push((file.trim_end_matches(".rs").to_owned(), name.to_owned()));
            is_test = false;
        }
    }
    found
}

/// True if `name` is a test: `file::function`, with that name of the file or of a parent directory, or a script under
/// `tests/packetdrill`.
fn is_test(name: &str, functions: &[(String, String)], scripts: &[(String, String)]) -> bool {
    if name.ends_with(".pkt") {
        return scripts.iter().any(|(file, _)| file.ends_with(&format!("/{name}")));
    }
    let Some((place, function)) = name.rsplit_once("::") else { return false };
    let is_there = |file: &str| file.split('/').any(|part| part == place);
    functions.iter().any(|(file, known)| known == function && is_there(file))
}

/// Cells of a table row that starts with a requirement: `MUST-7`, or `5961-3.2-1`.
fn requirement(row: &str) -> Option<Vec<&str>> {
    let cells: Vec<&str> = row.strip_prefix("| ")?.trim_end_matches('|').split('|').collect();
    let cells: Vec<&str> = cells.into_iter().map(str::trim).collect();
    let (family, rest) = cells[0].split_once('-')?;
    let is_label = ["MUST", "SHLD", "MAY", "REC"].contains(&family);
    let is_clause = family.len() == 4 && family.parse::<u16>().is_ok();
    ((is_label || is_clause) && rest.starts_with(|it: char| it.is_ascii_digit())).then_some(cells)
}

/// Error in a single row of `docs/conformance/tcp.md`.
fn row_errors(cells: &[&str], tests: &[&str]) -> Option<&'static str> {
    let &[_, section, level, _, verdict, _] = cells else { return Some("has not six cells") };
    let levels = ["must", "should", "may", "must not", "should not"];
    if section.is_empty() || !levels.contains(&level) {
        return Some("has no section, or no level");
    }
    let verdict = verdict.strip_prefix("host ").unwrap_or(verdict);
    let reason = verdict.split_once(": ").map_or("", |(_, reason)| reason);
    if verdict.starts_with("met") {
        return tests.is_empty().then_some("is met, and no test proves it");
    }
    let is_judged = verdict.starts_with("deviates: ") || verdict.starts_with("n.a.: ");
    (!is_judged || reason.len() < 5).then_some("has no verdict, or no reason for it")
}

/// Every label of RFC 9293 Appendix B.
fn labels() -> impl Iterator<Item = String> {
    let families = [("MUST", 69), ("SHLD", 31), ("MAY", 18), ("REC", 1)];
    families
        .into_iter()
        .flat_map(|(family, last)| (1..=last).map(move |number| format!("{family}-{number}")))
}

#[test]
fn tcp_requirements_have_verdicts_and_tests() {
    let file = "docs/conformance/tcp.md";
    let text = fs::read_to_string(root().join(file)).unwrap();
    let rows: Vec<_> = text.lines().filter_map(requirement).collect();
    let functions = test_functions();
    let scripts = files_or_none("pkt");
    let mut findings = String::new();
    for cells in &rows {
        let tests: Vec<&str> =
            cells.last().map_or(vec![], |cell| cell.split('`').skip(1).step_by(2).collect());
        let id = cells[0];
        if let Some(error) = row_errors(cells, &tests) {
            writeln!(findings, "{file}: {id} {error}").unwrap();
        }
        for name in tests.into_iter().filter(|name| !is_test(name, &functions, &scripts)) {
            writeln!(findings, "{file}: {id}: test not found: {name}").unwrap();
        }
    }
    let count = |id: &str| rows.iter().filter(|cells| cells[0] == id).count();
    for label in labels().filter(|label| count(label) != 1) {
        writeln!(findings, "{file}: {label} occurs {} times", count(&label)).unwrap();
    }
    for cells in rows.iter().filter(|cells| count(cells[0]) > 1) {
        writeln!(findings, "{file}: {} occurs twice", cells[0]).unwrap();
    }
    assert!(findings.is_empty(), "\n{findings}");
}

/// Cells of a row of `docs/conformance/chimney.md` for a rule or a topic.
fn chimney_row(row: &str) -> Option<Vec<&str>> {
    let cells: Vec<&str> = row.strip_prefix("| ")?.trim_end_matches('|').split('|').collect();
    let cells: Vec<&str> = cells.into_iter().map(str::trim).collect();
    (cells[0].starts_with("CH-") || cells[0].starts_with("CH ")).then_some(cells)
}

/// Error in a single row of `docs/conformance/chimney.md`.
fn chimney_row_errors(cells: &[&str], tests: &[&str]) -> Option<&'static str> {
    let &[_, duty, _, verdict, _] = cells else { return Some("has not five cells") };
    if !["target", "host", "both"].contains(&duty) {
        return Some("names no component");
    }
    let (verdict, reason) = verdict.split_once(": ").unwrap_or((verdict, ""));
    match verdict {
        "met" => tests.is_empty().then_some("is met, and no test proves it"),
        "by construction" | "unproved" | "deviates" | "n.a." => {
            (reason.len() < 5).then_some("has no reason for its verdict")
        }
        _ => Some("has no verdict"),
    }
}

/// Text in backticks in a cell.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// Errors in the numbering: each family is numbered from 1 without gaps, and each rule is listed once.
fn numbering_errors(ids: &[&str]) -> String {
    let mut findings = String::new();
    let mut sorted: Vec<(&str, u32)> = ids
        .iter()
        .filter_map(|id| id.rsplit_once('-'))
        .map(|(f, n)| (f, n.parse().unwrap()))
        .collect();
    sorted.sort_unstable();
    let mut before = ("", 0);
    for (family, number) in sorted {
        let expected = if family == before.0 { before.1 + 1 } else { 1 };
        if number != expected {
            writeln!(findings, "{family}-{number} in place of {family}-{expected}").unwrap();
        }
        before = (family, number);
    }
    findings
}

#[test]
fn chimney_rules_have_verdicts_and_tests() {
    let file = "docs/conformance/chimney.md";
    let text = fs::read_to_string(root().join(file)).unwrap();
    let rows: Vec<_> = text.lines().filter_map(chimney_row).collect();
    let functions = test_functions();
    let mut findings = String::new();
    for cells in &rows {
        let (id, tests) = (cells[0], cells.last().map_or(vec![], |cell| quoted(cell)));
        if let Some(error) = chimney_row_errors(cells, &tests) {
            writeln!(findings, "{file}: {id} {error}").unwrap();
        }
        for name in tests.into_iter().filter(|name| !is_test(name, &functions, &[])) {
            writeln!(findings, "{file}: {id}: test not found: {name}").unwrap();
        }
    }
    let ids: Vec<&str> =
        rows.iter().map(|cells| cells[0]).filter(|id| id.starts_with("CH-")).collect();
    findings += &numbering_errors(&ids);
    assert!(findings.is_empty(), "\n{findings}");
    assert!(ids.len() >= 130, "only {} rules", ids.len());
}

/// Status values of `status.rs`, `NAME = 0x4002_0001;`, in the format of the documents.
fn statuses() -> Vec<(String, String)> {
    let text = fs::read_to_string(root().join("offload-engine/src/status.rs")).unwrap();
    let pairs = text.lines().filter_map(|line| line.trim().strip_suffix(';')?.split_once(" = 0x"));
    pairs.map(|(name, value)| (name.to_owned(), format!("0x{}", value.replace('_', "")))).collect()
}

/// Rows of the tables in a section.
fn section<'a>(text: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let (_, rest) = text.split_once(&format!("\n## {heading}\n")).expect(heading);
    let rows = rest.lines().take_while(|line| !line.starts_with("## "));
    let rows = rows.filter_map(|line| line.strip_prefix("| "));
    rows.map(|row| row.trim_end_matches('|').split('|').map(str::trim).collect()).collect()
}

#[test]
fn chimney_document_has_every_status_and_its_tests() {
    let file = "docs/reference/chimney.md";
    let text = fs::read_to_string(root().join(file)).unwrap();
    let rows = section(&text, "Statuses");
    let functions = test_functions();
    let mut findings = String::new();
    let statuses = statuses();
    assert!(statuses.len() > 30, "only {} statuses", statuses.len());
    for (name, value) in &statuses {
        let row = rows.iter().find(|row| row.starts_with(&[name, value]));
        let Some(&[_, _, given_by, _, tests]) = row.map(Vec::as_slice) else {
            writeln!(findings, "{file}: no row has {name} with {value}").unwrap();
            continue;
        };
        let tests = quoted(tests);
        if tests.is_empty() != (given_by == "nothing") {
            writeln!(findings, "{file}: {name} is returned by {given_by}; tests: {tests:?}")
                .unwrap();
        }
        for test in tests.into_iter().filter(|test| !is_test(test, &functions, &[])) {
            writeln!(findings, "{file}: {name}: test not found: {test}").unwrap();
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
}

/// Public fields of a structure in `state.rs`.
fn fields(text: &str, structure: &str) -> Vec<String> {
    let (_, rest) = text.split_once(&format!("pub struct {structure} {{")).expect(structure);
    let (body, _) = rest.split_once("\n}").expect(structure);
    let lines = body.lines().filter_map(|line| line.trim().strip_prefix("pub "));
    lines.filter_map(|line| Some(line.split_once(':')?.0.to_owned())).collect()
}

/// Structures whose members are listed in `docs/reference/chimney-state.md`.
const STATE: [&str; 9] = [
    "NeighborConst",
    "NeighborCached",
    "NeighborDelegated",
    "PathConst",
    "PathCached",
    "TcpConst",
    "TcpCached",
    "TcpDelegated",
    "TimerState",
];

#[test]
fn chimney_document_has_every_variable() {
    let file = "docs/reference/chimney-state.md";
    let text = fs::read_to_string(root().join(file)).unwrap();
    let state = fs::read_to_string(root().join("offload-engine/src/state.rs")).unwrap();
    let known: Vec<String> = STATE.iter().flat_map(|structure| fields(&state, structure)).collect();
    let rows = section(&text, "State in three classes");
    let mut findings = String::new();
    for field in &known {
        if !rows.iter().any(|row| row[0] == format!("`{field}`")) {
            writeln!(findings, "{file}: no row defines {field}").unwrap();
        }
    }
    assert!(known.len() > 50, "only {} variables", known.len());
    assert!(findings.is_empty(), "\n{findings}");
}

#[test]
fn links_in_documents_resolve() {
    let mut findings = String::new();
    for (file, text) in files("md") {
        let directory = root().join(&file);
        let directory = directory.parent().unwrap();
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        for (target, _) in targets {
            let path = target.split('#').next().unwrap_or_default();
            let is_elsewhere = path.contains("://") || path.is_empty();
            if !is_elsewhere && !directory.join(path).exists() {
                writeln!(findings, "{file}: {target} not found").unwrap();
            }
            // The book has the files of docs only.
            let depth = Path::new(&file).components().count() - 1;
            if file.starts_with("docs/") && path.starts_with(&"../".repeat(depth)) {
                writeln!(findings, "{file}: {target} is not in the book").unwrap();
            }
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
}
