//! Language of documents: sentences of the front page and the guide; headings, words, links and anchors of all pages.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
};

use super::{files, is_under, root};

/// The front page and the guide, whose sentences are limited: pages and directories.
const GUIDE: &[&str] =
    &["README.md", "docs/README.md", "docs/guide/", "docs/tools/", "docs/concepts/"];
/// Maximum words of a sentence.
const SENTENCE_WORDS_MAX: usize = 35;
/// Maximum words of a page.
const PAGE_WORDS_MAX: usize = 3_000;
/// Pages that consist of a table for lookup, which may be longer.
const TABLES: &[&str] = &["docs/conformance/", "docs/measurements/", "docs/reference/limits.md"];
/// Words that must not open a heading.
const QUESTIONS: [&str; 8] = ["What", "Who", "Whose", "Which", "How", "Whether", "Where", "Why"];
/// Words to avoid.
const WORDS: &str = "tests/tidy/words.txt";
/// Pages written to disk by measurements and tests.
const GENERATED: &[&str] = &["docs/measurements/"];
/// Pages with help texts of the command.
const HELP: &[&str] = &["docs/reference/cli"];

/// A paragraph, list item, table cell or heading, with the number of its first line.
struct Text {
    line: usize,
    is_heading: bool,
    text: String,
}

/// Text in which inline code is one word, and link targets and comments are removed.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    for (index, part) in text.split('`').enumerate() {
        plain += if index % 2 == 0 { part } else { "CODE" };
    }
    let mut pieces = plain.split("](");
    let mut without_targets = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        without_targets += piece.split_once(')').map_or("", |(_, rest)| rest);
    }
    without_targets
}

/// Texts of a page outside of code blocks.
fn texts(page: &str) -> Vec<Text> {
    let mut texts: Vec<Text> = Vec::new();
    let mut is_code = false;
    let mut is_open = false;
    for (line, content) in (1..).zip(page.lines()) {
        let content = content.trim();
        if content.starts_with("```") {
            is_code = !is_code;
            is_open = false;
        } else if is_code
            || content.is_empty()
            || content.starts_with("<!--")
            || content.starts_with("![")
        {
            is_open = false;
        } else if let Some(heading) = content.strip_prefix('#') {
            let text = plain(heading.trim_start_matches('#').trim());
            texts.push(Text { line, is_heading: true, text });
            is_open = false;
        } else if content.starts_with('|') {
            for cell in
                content.replace("\\|", "/").split('|').filter(|cell| !cell.trim().is_empty())
            {
                texts.push(Text { line, is_heading: false, text: plain(cell.trim()) });
            }
            is_open = false;
        } else {
            let is_number =
                |word: &str| word.strip_suffix('.').is_some_and(|it| it.parse::<u32>().is_ok());
            let first = content.split(' ').next().unwrap_or_default();
            let is_item = ["-", "*", "+"].contains(&first) || is_number(first);
            match texts.last_mut() {
                Some(last) if is_open && !is_item => last.text = format!("{} {content}", last.text),
                _ => {
                    let text = if is_item { content[first.len()..].trim() } else { content };
                    texts.push(Text { line, is_heading: false, text: text.into() });
                }
            }
            is_open = true;
        }
    }
    // Code and links may continue on the next line.
    texts.iter_mut().for_each(|it| it.text = plain(&it.text));
    texts
}

/// Sentences of a text.
fn sentences(text: &str) -> Vec<&str> {
    let mut sentences = Vec::new();
    let mut start = 0;
    for (index, end) in text.match_indices([' ']) {
        let before = text[..index].trim_end_matches(['*', ')', '"']);
        let opens = text[index + end.len()..].chars().next();
        if before.ends_with(['.', '?', '!']) && opens.is_some_and(|it| !it.is_lowercase()) {
            sentences.push(text[start..index].trim());
            start = index;
        }
    }
    sentences.push(text[start..].trim());
    sentences
}

fn word_count(sentence: &str) -> usize {
    sentence
        .split_whitespace()
        .filter(|word| word.contains(|it: char| it.is_alphanumeric()))
        .count()
}

/// Words to avoid with their replacements: those of pages, or only those of code.
fn avoided(list: &str, of_pages: bool) -> impl Iterator<Item = (String, &str)> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_once(": ").expect(line)).filter_map(move |(word, instead)| {
        let word = match word.strip_suffix(" (pages)") {
            Some(word) => of_pages.then_some(word)?,
            None => word,
        };
        Some((format!(" {word} "), instead))
    })
}

/// Lower-case words of a text, separated by single spaces.
fn spaced(text: &str) -> String {
    let is_of_word = |it: char| it.is_alphanumeric() || it == '-' || it == '\'';
    let words: Vec<&str> =
        text.split(|it: char| !is_of_word(it)).filter(|it| !it.is_empty()).collect();
    format!(" {} ", words.join(" ").to_lowercase())
}

fn is_guide(file: &str) -> bool {
    is_under(file, GUIDE)
}

#[test]
fn pages_have_short_sentences_and_plain_words() {
    let list = fs::read_to_string(root().join(WORDS)).unwrap();
    let avoided: Vec<_> = avoided(&list, true).collect();
    let mut findings = String::new();
    let mut pages = 0;
    let is_checked = |file: &str| !is_under(file, GENERATED) && !is_under(file, HELP);
    for (file, page) in files("md").into_iter().filter(|(file, _)| is_checked(file)) {
        pages += 1;
        for Text { line, is_heading, text } in texts(&page) {
            let first = text.split([' ', '\'']).next().unwrap_or_default();
            if is_heading && QUESTIONS.contains(&first) {
                writeln!(findings, "{file}:{line}: heading opens with {first}: {text}").unwrap();
            }
            let is_long = |it: &&str| is_guide(&file) && word_count(it) > SENTENCE_WORDS_MAX;
            for sentence in sentences(&text).into_iter().filter(is_long) {
                writeln!(findings, "{file}:{line}: {} words: {sentence}", word_count(sentence))
                    .unwrap();
            }
            let spaced = spaced(&text);
            for (word, instead) in avoided.iter().filter(|(word, _)| spaced.contains(word.as_str()))
            {
                writeln!(findings, "{file}:{line}: \"{}\": write {instead}: {text}", word.trim())
                    .unwrap();
            }
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
    assert!(pages >= 30, "{pages} pages");
}

#[test]
fn pages_are_short() {
    let pages = files("md").into_iter().filter(|(file, _)| !is_under(file, TABLES));
    let lengths = pages.map(|(file, page)| (file, page.split_whitespace().count()));
    let long: Vec<_> = lengths.filter(|(_, words)| *words > PAGE_WORDS_MAX).collect();
    assert!(long.is_empty(), "more than {PAGE_WORDS_MAX} words, split them: {long:?}");
}

#[test]
fn sentences_headings_and_words_are_found() {
    let page = "# How it works\n\nOne `a b`. Two\nthree. [four](five)\n\n\
                - six. seven\n\n```\nnot this.\n```\n| a | b c. D |\n";
    let texts = texts(page);
    let found: Vec<_> = texts.iter().map(|it| (it.line, it.is_heading, it.text.as_str())).collect();
    let expected = [
        (1, true, "How it works"),
        (3, false, "One CODE. Two three. [four"),
        (6, false, "six. seven"),
        (11, false, "a"),
        (11, false, "b c. D"),
    ];
    assert_eq!(found, expected);
    assert_eq!(sentences("One CODE. Two three. [four"), ["One CODE.", "Two three.", "[four"]);
    assert_eq!(sentences("six. seven"), ["six. seven"]);
    assert_eq!(word_count("a - b, c"), 3);
    assert!(spaced("Hand-over, (vain)").contains(" vain "));
    assert!(!spaced("vainly").contains(" vain "));
}

/// Anchors of headings, as forges and mdBook derive them.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let mut is_code = false;
    for line in page.lines() {
        is_code ^= line.trim_start().starts_with("```");
        let Some(heading) = line.strip_prefix('#').filter(|_| !is_code) else { continue };
        let heading = heading.trim_start_matches('#').trim().replace('`', "").to_lowercase();
        let is_kept = |it: &char| it.is_alphanumeric() || ['-', '_', ' '].contains(it);
        let anchor = heading.chars().filter(is_kept).collect::<String>().replace(' ', "-");
        let count = seen.entry(anchor.clone()).or_default();
        anchors.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
        *count += 1;
    }
    anchors
}

#[test]
fn anchors_of_links_exist() {
    let heading = "## `flue ss`: the table\n## A\n## A\n```\n# no\n```\n";
    assert_eq!(anchors(heading).into_iter().collect::<Vec<_>>(), ["a", "a-1", "flue-ss-the-table"]);
    let pages: BTreeMap<String, String> = files("md").into_iter().collect();
    let mut findings = String::new();
    let mut links = 0;
    for (file, text) in &pages {
        let directory = Path::new(file).parent().unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0)) {
            let Some((path, anchor)) = target.split_once('#').filter(|_| !target.contains("://"))
            else {
                continue;
            };
            let mut parts: Vec<&str> = directory.iter().filter_map(|part| part.to_str()).collect();
            for part in path.split('/').filter(|part| !part.is_empty()) {
                if part == ".." { parts.pop().map_or((), drop) } else { parts.push(part) }
            }
            let page = if path.is_empty() { file.clone() } else { parts.join("/") };
            links += 1;
            if pages.get(&page).is_none_or(|page| !anchors(page).contains(anchor)) {
                writeln!(findings, "{file}: no heading #{anchor} in {page}").unwrap();
            }
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
    assert!(links > 50, "{links} links");
}

#[test]
fn every_page_is_in_the_summary() {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let mut findings = String::new();
    for (file, _) in files("md") {
        let Some(page) = file.strip_prefix("docs/").filter(|page| *page != "SUMMARY.md") else {
            continue;
        };
        if !is_under(&file, GENERATED) && summary.matches(&format!("]({page})")).count() != 1 {
            writeln!(findings, "docs/SUMMARY.md: {page} is not listed once").unwrap();
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
}

/// True if a line is a doc comment that opens with a question word.
fn is_question(line: &str) -> bool {
    let line = line.trim_start();
    let text = line.strip_prefix("/// ").or_else(|| line.strip_prefix("//! "));
    let first = text.and_then(|text| text.split([' ', '\'', ',']).next()).unwrap_or_default();
    QUESTIONS.contains(&first)
}

#[test]
fn doc_comments_open_with_a_noun_or_a_verb() {
    assert!(is_question("    /// Whether it is open.") && is_question("//! What a link is."));
    assert!(!is_question("/// Whatever is left.") && !is_question("// Why"));
    let mut findings = String::new();
    for (file, text) in files("rs") {
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| is_question(line)) {
            writeln!(findings, "{file}:{number}: {}", line.trim()).unwrap();
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
}

/// Text of a comment line; `None` for code, and for a doc comment in a file whose doc comments may be help texts.
fn comment(line: &str, has_help: bool) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    (!text.starts_with('/') || !has_help).then_some(text)
}

/// Crates whose error texts and events are checked.
const LIBRARIES: &[&str] =
    &["offload-engine/", "host-stack/", "rdma-over-tcp/", "ndkpi/", "verbs/"];
/// Starts of error texts and of events.
const MESSAGES: [&str; 6] = [
    "#[error(",
    "tracing::error!(",
    "tracing::warn!(",
    "tracing::info!(",
    "tracing::debug!(",
    "tracing::trace!(",
];

/// String literals of error texts and events, each with the number of its first line.
fn messages(file: &str) -> Vec<(usize, &str)> {
    let starts = MESSAGES.iter().flat_map(|start| file.match_indices(start));
    let literal = |(at, start): (usize, &str)| {
        let open = at + start.len() + file[at + start.len()..].find('"')? + 1;
        let is_end = |(end, _): &(usize, &str)| !file[..open + end].ends_with('\\');
        let (length, _) = file[open..].match_indices('"').find(is_end)?;
        let line = file[..open].matches('\n').count() + 1;
        Some((line, &file[open..open + length]))
    };
    starts.filter_map(literal).collect()
}

#[test]
fn comments_errors_and_events_use_plain_words() {
    let list = fs::read_to_string(root().join(WORDS)).unwrap();
    let avoided: Vec<_> = avoided(&list, false).collect();
    let mut findings = String::new();
    let mut check = |file: &str, line: usize, text: &str| {
        let spaced = spaced(&plain(text));
        for (word, instead) in avoided.iter().filter(|(word, _)| spaced.contains(word.as_str())) {
            let text = text.trim();
            writeln!(findings, "{file}:{line}: \"{}\": write {instead}: {text}", word.trim())
                .unwrap();
        }
    };
    let mut count = 0;
    for (file, text) in files("rs") {
        let has_help = ["clap", "option_enum!"].iter().any(|it| text.contains(it));
        for (line, text) in (1..).zip(text.lines()) {
            if let Some(comment) = comment(text, has_help) {
                check(&file, line, comment);
            }
        }
        let is_library = is_under(&file, LIBRARIES);
        for (line, message) in messages(&text).into_iter().filter(|_| is_library) {
            count += 1;
            check(&file, line, message);
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
    assert!(count > 150, "{count} messages");
}

#[test]
fn comments_and_messages_are_found() {
    assert_eq!(comment("    /// One `a`.", false), Some("/ One `a`."));
    assert_eq!(comment("    /// Help", true), None);
    assert_eq!(comment("//! Module", true), Some("! Module"));
    assert_eq!(comment("let a = 1; // b", false), None);
    let code = "#[error(\"a: {0}\")]\ntracing::warn!(%error,\n    \"b \\\"c\\\"\");\n";
    assert_eq!(messages(code), [(1, "a: {0}"), (3, "b \\\"c\\\"")]);
}
