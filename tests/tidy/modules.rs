//! The order of modules of `rdma-over-tcp`: which may import which, and no circles of files.
//!
//! Imports are the paths that begin with `crate`, `super`, `self` or a child module, in `use` and in code. They are
//! followed through re-exports to the file that has the item. A re-export is no import of the module that has it.
//! Tests are left out.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use super::{code, files};

const SOURCES: &str = "rdma-over-tcp/src/";

/// Modules from the bottom up: each may import those before it.
const ORDER: [&str; 7] = ["error", "mpa", "ddp", "rdmap", "rnic", "transport", "ndk"];

/// The codec: modules that know no other crate of ours.
const CODEC: &[&str] = &["error", "mpa", "ddp", "rdmap"];

/// What the codec must not name.
const STACK: [&str; 4] = ["smoltcp", "host_stack", "offload_engine", "flue"];

/// What nothing below `ndk` may name, but for the words of NDIS in the transports.
const NDK: [&str; 3] = ["ndk::", "ntstatus", "ndis"];

/// `crate::mpa::crc` as `["mpa", "crc"]`.
type Path = Vec<String>;

/// One file of the crate.
#[derive(Debug, Default)]
struct File {
    name: String,
    /// Absolute paths that it imports.
    imports: Vec<Path>,
    /// Names that it re-exports, with their absolute paths.
    exports: BTreeMap<String, Path>,
    /// The codec's forbidden words.
    stack: Vec<&'static str>,
}

/// The files of the crate by their modules' paths.
type Crate = BTreeMap<Path, File>;

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// The word at the front.
fn word(text: &str) -> &str {
    text.split(|letter| !is_word(letter)).next().unwrap_or_default()
}

/// The module of a file, unless it holds tests.
fn module(file: &str) -> Option<Path> {
    let path = file.strip_prefix(SOURCES)?.strip_suffix(".rs")?;
    let parts: Path = path.split('/').map(str::to_owned).collect();
    let is_test = parts.iter().any(|part| part == "tests" || part == "models");
    let parts = parts.into_iter().filter(|part| part != "mod" && part != "lib").collect();
    (!is_test).then_some(parts)
}

/// The code of a file without its comments and its inline tests.
fn production(text: &str) -> String {
    let mut lines = Vec::new();
    let mut rest = text.lines().peekable();
    while let Some(line) = rest.next() {
        let next = rest.peek().copied().unwrap_or_default();
        if line == "#[cfg(test)]" && next.starts_with("mod ") && next.ends_with('{') {
            break;
        }
        lines.push(code(line));
    }
    lines.join("\n")
}

/// Reads a path, or a tree of them, that goes on behind `prefix`. Returns what follows it.
fn paths<'a>(mut text: &'a str, prefix: &Path, found: &mut Vec<Path>) -> &'a str {
    let mut path = prefix.clone();
    loop {
        text = text.trim_start();
        if let Some(mut list) = text.strip_prefix('{') {
            while let Some(item) = Some(list.trim_start()).filter(|it| !it.starts_with('}')) {
                if item.is_empty() {
                    return item;
                }
                let rest = paths(item, &path, found).trim_start();
                list = rest.strip_prefix(',').unwrap_or(rest);
                // Not a tree of paths after all.
                if list.len() == item.len() {
                    return list;
                }
            }
            return &list.trim_start()[1..];
        }
        let name = word(text);
        if !name.is_empty() && name != "self" {
            path.push(name.to_owned());
        }
        text = &text[name.len()..];
        match text.strip_prefix("::") {
            Some(rest) if rest.trim_start().starts_with(|it| is_word(it) || it == '{') => {
                text = rest
            }
            _ => {
                found.push(path);
                return text.strip_prefix("::*").unwrap_or(text);
            }
        }
    }
}

impl File {
    fn read(name: &str, module: &Path, text: &str) -> Self {
        let text = production(text);
        let children: Vec<&str> =
            text.lines().filter_map(|line| line.split_once("mod ")?.1.strip_suffix(';')).collect();
        let mut file = Self { name: name.to_owned(), ..Self::default() };
        file.stack = STACK.into_iter().filter(|name| super::has_word(&text, name)).collect();
        let mut at = 0;
        while at < text.len() {
            let rest = &text[at..];
            let first = word(rest);
            if first.is_empty() {
                at += rest.chars().next().map_or(1, char::len_utf8);
                continue;
            }
            let behind = &rest[first.len()..];
            let is_inner = text[..at].ends_with("::") || !behind.starts_with("::");
            let is_root = ["crate", "super", "self"].contains(&first);
            if is_inner || !(is_root || children.contains(&first)) {
                at += first.len();
                continue;
            }
            let statement = text[..at].rsplit([';', '}']).next().unwrap_or_default();
            let is_export = statement.contains("pub") && statement.trim_end().ends_with("use");
            let mut found = Vec::new();
            let after = match first {
                "crate" => paths(&behind[2..], &Path::new(), &mut found),
                "super" => {
                    let mut base = module.clone();
                    base.pop();
                    let mut behind = behind;
                    while let Some(rest) = behind.strip_prefix("::super") {
                        base.pop();
                        behind = rest;
                    }
                    paths(&behind[2..], &base, &mut found)
                }
                "self" => paths(&behind[2..], module, &mut found),
                _ => paths(rest, module, &mut found),
            };
            at = text.len() - after.len();
            match is_export {
                true => file.exports.extend(
                    found.into_iter().filter_map(|path| Some((path.last()?.clone(), path))),
                ),
                false => file.imports.extend(found),
            }
        }
        file
    }
}

fn read(sources: &[(String, String)]) -> Crate {
    let file = |(name, text): &(String, String)| {
        let module = module(name)?;
        let file = File::read(name, &module, text);
        Some((module, file))
    };
    sources.iter().filter_map(file).collect()
}

/// The module whose file has what a path names.
fn resolve(sources: &Crate, path: &Path) -> Path {
    let mut module = Path::new();
    for (depth, name) in path.iter().enumerate() {
        let child: Path = module.iter().chain([name]).cloned().collect();
        if sources.contains_key(&child) {
            module = child;
            continue;
        }
        let export = sources.get(&module).and_then(|file| file.exports.get(name));
        let Some(export) = export.filter(|export| *export != path) else { break };
        let rest = path[depth + 1..].iter();
        return resolve(sources, &export.iter().chain(rest).cloned().collect());
    }
    module
}

/// Modules, each with those that it imports.
fn edges(sources: &Crate) -> BTreeMap<&Path, BTreeSet<Path>> {
    let of = |(module, file): (_, &File)| {
        let imports = file.imports.iter().map(|path| resolve(sources, path));
        (module, imports.filter(|other| other != module && !other.is_empty()).collect())
    };
    sources.iter().filter(|(module, _)| !module.is_empty()).map(of).collect()
}

/// What is wrong with the order.
fn order_errors(sources: &Crate) -> String {
    let mut findings = String::new();
    let rank =
        |module: &Path| ORDER.iter().position(|name| module.first().is_some_and(|it| it == name));
    for (module, imports) in edges(sources) {
        let file = &sources[module];
        let Some(own) = rank(module) else {
            writeln!(findings, "{}: its module has no place in `ORDER`", file.name).unwrap();
            continue;
        };
        for import in imports.iter().filter(|import| rank(import) > Some(own)) {
            writeln!(findings, "{}: imports {}, which lies above", file.name, import.join("::"))
                .unwrap();
        }
        for name in file.stack.iter().filter(|_| CODEC.contains(&ORDER[own])) {
            writeln!(findings, "{}: the codec knows no {name}", file.name).unwrap();
        }
    }
    findings
}

/// The files from which imports lead back to themselves.
fn circle(sources: &Crate) -> BTreeSet<&str> {
    let edges = edges(sources);
    let is_in_circle = |module: &Path| {
        let (mut open, mut seen) = (vec![module], BTreeSet::new());
        while let Some(from) = open.pop() {
            for to in edges.get(from).into_iter().flatten() {
                if to == module {
                    return true;
                }
                if seen.insert(to) {
                    open.push(to);
                }
            }
        }
        false
    };
    let found = sources.iter().filter(|(module, _)| is_in_circle(module));
    found.map(|(_, file)| file.name.as_str()).collect()
}

fn sources() -> Vec<(String, String)> {
    files("rs").into_iter().filter(|(file, _)| file.starts_with(SOURCES)).collect()
}

#[test]
fn modules_import_what_lies_below() {
    let sources = read(&sources());
    assert!(sources.len() > 30, "only {} files", sources.len());
    let findings = order_errors(&sources);
    assert!(findings.is_empty(), "\n{findings}");
}

#[test]
fn files_do_not_import_each_other_in_circles() {
    let sources = read(&sources());
    let found = circle(&sources);
    assert!(found.is_empty(), "these files are in a circle: {found:#?}");
}

// The adapter knows nothing of the interfaces that map it, and an interface is a mapping.
#[test]
fn interfaces_stand_on_the_adapter() {
    let is_test = |file: &str| file.contains("/tests");
    let sources: Vec<_> = sources().into_iter().filter(|(file, _)| !is_test(file)).collect();
    let is_ndk = |file: &str| file.starts_with(&format!("{SOURCES}ndk/"));
    for (file, text) in sources.iter().filter(|(file, _)| !is_ndk(file)) {
        let text = production(text).to_lowercase();
        let allowed = if file.starts_with(&format!("{SOURCES}transport/")) { "ndis" } else { "" };
        let found = NDK.iter().find(|word| **word != allowed && text.contains(**word));
        assert_eq!(found, None, "{file}");
    }
    let lines = |is_counted: &dyn Fn(&str) -> bool| -> usize {
        let counted = sources.iter().filter(|(file, _)| is_counted(file));
        counted.map(|(_, text)| text.lines().count()).sum()
    };
    let (ndk, all) = (lines(&is_ndk), lines(&|_| true));
    assert!(0 < ndk && 3 * ndk < all, "{ndk} lines of {all}");
}

// An import the wrong way round, by any path, and a circle are found.
#[test]
fn what_is_out_of_order_is_found() {
    let with = |file: &str, line: &str| {
        let mut sources = sources();
        let name = format!("{SOURCES}{file}");
        let (_, text) =
            sources.iter_mut().find(|(it, _)| *it == name).expect("there is such a file");
        *text = format!("{line}\n{text}");
        sources
    };
    for (file, line) in [
        ("error.rs", "use crate::mpa::MpaError;"),
        ("mpa/crc.rs", "use crate::{ddp::{Msn, Stag}, error::WireError};"),
        ("mpa/startup/frame.rs", "use super::super::super::rdmap::Opcode;"),
        ("ddp/receive.rs", "fn name() -> &'static str { crate::rdmap::Terminate::NAME }"),
        ("rdmap/read.rs", "pub(crate) use crate::ndk::NtStatus as Status;\nuse crate::ndk::Cq;"),
        ("rnic/qp.rs", "use crate::transport::NodeRnic;"),
        ("transport/offloaded.rs", "use crate::ndk::Adapter;"),
        ("mpa/slab.rs", "use offload_engine::nbl::NetBuffer;"),
    ] {
        assert!(!order_errors(&read(&with(file, line))).is_empty(), "{file}: {line}");
    }
    let sources = with("mpa/crc.rs", "use super::{Encoder, marker::{self, Grid}};");
    let sources = read(&sources);
    let found = circle(&sources);
    for file in ["mpa/crc.rs", "mpa/encoder.rs"].map(|file| format!("{SOURCES}{file}")) {
        assert!(found.contains(file.as_str()), "{file} in {found:?}");
    }
    assert!(!found.contains(format!("{SOURCES}mpa/marker.rs").as_str()), "{found:?}");
}
