//! Order of the modules in each library: permitted imports, and no import cycles between files.
//!
//! Imports are paths that start with `crate`, `super`, `self` or a child module, in `use` and in code. They are
//! resolved, through re-exports and the imports of a parent, to the file that defines the item. A re-export is not an
//! import by its module, nor is a parent's import of its own children. Tests are excluded.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
};

use super::{code, files, root};

/// Module order of one library.
struct Layers {
    sources: &'static str,
    /// Modules in order: each may import those before it. For each file the longest matching entry applies.
    order: &'static [&'static str],
    /// Modules in which certain words are not permitted.
    pure: &'static [&'static str],
    forbidden: &'static [&'static str],
    /// True if a parent may name its children, and they may use it: the methods of one type are in several files.
    has_parents: bool,
}

/// The codec depends on no other crate of the project.
const RDMA: Layers = Layers {
    sources: "rdma-over-tcp/src/",
    order: &[
        "error",
        "mpa",
        "ddp",
        "rdmap",
        "datagram",
        "rnic::config",
        "rnic::status",
        "rnic::objects",
        "rnic::transport",
        "rnic::memory",
        "rnic::connection",
        "rnic::stats",
        "rnic::queues",
        "rnic::tables",
        "rnic::stream",
        "rnic::rnic",
        "rnic::datagrams",
        "rnic::calls",
        "rnic",
        "transport",
        "adapter",
        "ndk",
    ],
    pure: &["error", "mpa", "ddp", "rdmap", "datagram"],
    forbidden: &["smoltcp", "host_stack", "offload_engine", "flue"],
    has_parents: false,
};

/// `tcp` does not use frames, and `chimney` transports the types of `tcp` and `state`.
const ENGINE: Layers = Layers {
    sources: "offload-engine/src/",
    order: &[
        "address",
        "mac",
        "time",
        "table",
        "status",
        "sync",
        "descriptor",
        "thread",
        "fault",
        "memory",
        "checksum",
        "socket",
        "link",
        "nbl",
        "segment",
        "state",
        "frame",
        "tcp",
        "chimney",
        "listing",
        "engine",
        "runtime",
    ],
    // The build without `std` proves this already.
    pure: &[],
    forbidden: &[],
    has_parents: true,
};

/// Crates that access the operating system.
const SYSTEM: &[&str] = &["std", "crossbeam_channel", "rustix", "libc", "tun_tap", "tracing"];

/// The export of connections from smoltcp and their import are pure; the host stack uses them.
const HOST: Layers = Layers {
    sources: "host-stack/src/",
    order: &[
        "wire",
        "clock",
        "cookie",
        "copy",
        "dad",
        "device",
        "frame_log",
        "window",
        "socket",
        "switch",
        "offload_policy",
        "observer",
        "retrieve",
        "handoff",
        "host",
        "stream",
        "node",
        "simulation",
    ],
    pure: &[
        "wire", "cookie", "copy", "dad", "device", "window", "switch", "observer", "retrieve",
        "handoff",
    ],
    forbidden: SYSTEM,
    has_parents: true,
};

/// Rules of the two interfaces, without C.
const VERBS_CORE: Layers = Layers {
    sources: "verbs/core/src/",
    order: &[
        "errno",
        "sync",
        "process",
        "usage",
        "event_queue",
        "async_event",
        "address",
        "gid",
        "identity",
        "attributes",
        "completion",
        "device",
        "pd",
        "mr",
        "mw",
        "srq",
        "cq",
        "rendezvous",
        "qp",
        "cm",
        "fatal",
        "rsocket",
    ],
    pure: &["errno", "sync", "process", "completion"],
    forbidden: &["libc", "flue_adapter", "host_stack"],
    has_parents: true,
};

/// C interface of `verbs/core`: helpers, a file for each object, then contexts, connection management and exports.
const VERBS: Layers = Layers {
    sources: "verbs/c/src/",
    order: &[
        "enum_str",
        "rate",
        "settings",
        "log",
        "fatal",
        "guard",
        "exit",
        "event_queue",
        "object",
        "fork",
        "unsupported",
        "provider",
        "address",
        "inherit",
        "interfaces",
        "config",
        "pd",
        "ah",
        "mr",
        "context",
        "request",
        "cq",
        "srq",
        "mw",
        "qp",
        "device",
        "open",
        "async_event",
        "cm",
        "rsocket",
        "exports",
    ],
    pure: &[],
    forbidden: &[],
    has_parents: true,
};

/// NDKPI in C: helpers, and each dispatch table.
const NDKPI: Layers = Layers {
    sources: "ndkpi/src/",
    order: &[
        "abi",
        "config",
        "fatal",
        "guard",
        "objects",
        "callbacks",
        "create",
        "address",
        "mdl",
        "sgl",
        "close",
        "cq",
        "mr",
        "srq",
        "qp",
        "pd",
        "listener",
        "connector",
        "endpoint",
        "lam",
        "adapter",
        "open",
    ],
    pure: &[],
    forbidden: &[],
    has_parents: true,
};

const LIBRARIES: [&Layers; 6] = [&RDMA, &ENGINE, &HOST, &VERBS_CORE, &VERBS, &NDKPI];

/// Sources without a module order, which must have no cycles: the command, and libraries of few modules.
const UNORDERED: [&str; 13] = [
    "src/",
    "adapter/src/",
    "network/src/",
    "report/src/",
    "bench/src/",
    "judge/src/",
    "verbs/abi/src/",
    "verbs/paths/src/",
    "tests/support/src/",
    "tests/packetdrill/src/",
    "tests/fuzz/src/",
    "tests/hostile/src/",
    "tests/guard/src/",
];

const fn unordered(sources: &'static str) -> Layers {
    Layers { sources, order: &[], pure: &[], forbidden: &[], has_parents: true }
}

/// Names that nothing below `ndk` may use, except the NDIS terms in the transports.
const NDK: [&str; 3] = ["ndk::", "ntstatus", "ndis"];

/// Module path: `crate::mpa::crc` is `["mpa", "crc"]`.
type Path = Vec<String>;

/// File of the crate.
#[derive(Debug, Default)]
struct File {
    name: String,
    /// Absolute paths that it imports.
    imports: Vec<Path>,
    /// Names that it re-exports or imports, with their absolute paths.
    names: BTreeMap<String, Path>,
    /// Forbidden words in the file.
    forbidden: Vec<&'static str>,
}

/// Files of the crate by module path.
type Crate = BTreeMap<Path, File>;

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// First word of the text.
fn word(text: &str) -> &str {
    text.split(|letter| !is_word(letter)).next().unwrap_or_default()
}

/// Module of a file, unless the file contains tests.
fn module(layers: &Layers, file: &str) -> Option<Path> {
    let path = file.strip_prefix(layers.sources)?.strip_suffix(".rs")?;
    let parts: Path = path.split('/').map(str::to_owned).collect();
    let is_test = parts.iter().any(|part| part == "tests" || part == "models");
    let parts = parts.into_iter().filter(|part| part != "mod" && part != "lib").collect();
    (!is_test).then_some(parts)
}

/// Code of a file without comments and inline tests.
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

/// Parses a path, or a tree of paths, that continues `prefix`. Returns the rest of the text.
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
                // The braces do not enclose a tree of paths.
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
    fn read(layers: &Layers, name: &str, module: &Path, text: &str) -> Self {
        let text = production(text);
        let children: Vec<&str> =
            text.lines().filter_map(|line| line.split_once("mod ")?.1.strip_suffix(';')).collect();
        let mut file = Self { name: name.to_owned(), ..Self::default() };
        let forbidden = layers.forbidden.iter().copied();
        file.forbidden = forbidden.filter(|name| super::has_word(&text, name)).collect();
        let mut at = 0;
        while at < text.len() {
            let rest = &text[at..];
            let first = word(rest);
            if first.is_empty() {
                at += rest.chars().next().map_or(1, char::len_utf8);
                continue;
            }
            let behind = &rest[first.len()..];
            let before = &text[..at];
            let is_inner = before.ends_with("::") || !behind.starts_with("::");
            // `pub(in path)` imports nothing.
            let is_inner = is_inner || before.ends_with("pub(in ");
            let is_root = ["crate", "super", "self"].contains(&first);
            if is_inner || !(is_root || children.contains(&first)) {
                at += first.len();
                continue;
            }
            let statement = before.rsplit([';', '}']).next().unwrap_or_default();
            let is_use = statement.trim_end().ends_with("use");
            let is_export = is_use && statement.contains("pub");
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
            if is_use {
                let name = |path: &Path| Some((path.last()?.clone(), path.clone()));
                file.names.extend(found.iter().filter_map(name));
            }
            if !is_export {
                file.imports.extend(found);
            }
        }
        file
    }
}

fn read(layers: &Layers, sources: &[(String, String)]) -> Crate {
    let file = |(name, text): &(String, String)| {
        let module = module(layers, name)?;
        let file = File::read(layers, name, &module, text);
        Some((module, file))
    };
    sources.iter().filter_map(file).collect()
}

/// Module whose file defines the target of the path.
fn resolve(sources: &Crate, path: &Path) -> Path {
    let mut module = Path::new();
    for (depth, name) in path.iter().enumerate() {
        let child: Path = module.iter().chain([name]).cloned().collect();
        if sources.contains_key(&child) {
            module = child;
            continue;
        }
        let target = sources.get(&module).and_then(|file| file.names.get(name));
        let Some(target) = target.filter(|target| *target != path) else { break };
        let rest = path[depth + 1..].iter();
        return resolve(sources, &target.iter().chain(rest).cloned().collect());
    }
    module
}

/// Modules, each with its imports.
fn edges<'a>(layers: &Layers, sources: &'a Crate) -> BTreeMap<&'a Path, BTreeSet<Path>> {
    let of = |(module, file): (&'a Path, &File)| {
        let imports = file.imports.iter().map(|path| resolve(sources, path));
        let is_own = |other: &Path| match layers.has_parents {
            true => other.starts_with(module),
            false => other == module,
        };
        (module, imports.filter(|other| !is_own(other) && !other.is_empty()).collect())
    };
    sources.iter().filter(|(module, _)| !module.is_empty()).map(of).collect()
}

/// Violations of the order.
fn order_errors(layers: &Layers, sources: &Crate) -> String {
    let mut findings = String::new();
    let rank = |module: &Path| {
        let has = |entry: &str| {
            let parts: Vec<_> = entry.split("::").collect();
            module.len() >= parts.len() && parts.iter().zip(module).all(|(part, name)| part == name)
        };
        let entries = layers.order.iter().enumerate().filter(|(_, entry)| has(entry));
        entries.max_by_key(|(_, entry)| entry.len()).map(|(position, _)| position)
    };
    for (module, imports) in edges(layers, sources) {
        let file = &sources[module];
        let Some(own) = rank(module) else {
            writeln!(findings, "{}: its module is not in the order", file.name).unwrap();
            continue;
        };
        for import in imports.iter().filter(|import| rank(import) > Some(own)) {
            writeln!(findings, "{}: imports {}, a higher layer", file.name, import.join("::"))
                .unwrap();
        }
        for name in file.forbidden.iter().filter(|_| layers.pure.contains(&layers.order[own])) {
            writeln!(findings, "{}: `{name}` is not allowed here", file.name).unwrap();
        }
    }
    findings
}

/// Files that are part of an import cycle.
fn circle<'a>(layers: &Layers, sources: &'a Crate) -> BTreeSet<&'a str> {
    let edges = edges(layers, sources);
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

fn sources(layers: &Layers) -> Vec<(String, String)> {
    files("rs").into_iter().filter(|(file, _)| file.starts_with(layers.sources)).collect()
}

#[test]
fn modules_import_lower_layers_only() {
    for layers in LIBRARIES {
        let sources = read(layers, &sources(layers));
        assert!(sources.len() >= layers.order.len(), "only {} files", sources.len());
        let findings = order_errors(layers, &sources);
        assert!(findings.is_empty(), "\n{findings}");
    }
}

/// `docs/contributing/architecture.md` has a row for each library.
#[test]
fn document_lists_modules_in_order() {
    let text = fs::read_to_string(root().join("docs/contributing/architecture.md")).unwrap();
    for layers in LIBRARIES {
        let library = layers.sources.trim_end_matches("/src/");
        let row = format!("| `{library}` | `{}` |", layers.order.join(" < "));
        assert!(text.contains(&row), "docs/contributing/architecture.md: missing row\n{row}");
    }
}

#[test]
fn files_do_not_import_each_other_in_circles() {
    let unordered = UNORDERED.map(unordered);
    for layers in LIBRARIES.into_iter().chain(&unordered) {
        let sources = read(layers, &sources(layers));
        assert!(sources.len() > 1, "{} has {} files", layers.sources, sources.len());
        let found = circle(layers, &sources);
        assert!(found.is_empty(), "files in an import cycle: {found:#?}");
    }
}

// The adapter does not depend on the interfaces above it, and an interface is a mapping.
#[test]
fn interfaces_depend_on_adapter() {
    let is_test = |file: &str| file.contains("/tests");
    let sources: Vec<_> = sources(&RDMA).into_iter().filter(|(file, _)| !is_test(file)).collect();
    let is_ndk = |file: &str| file.starts_with(&format!("{}ndk/", RDMA.sources));
    for (file, text) in sources.iter().filter(|(file, _)| !is_ndk(file)) {
        let text = production(text).to_lowercase();
        let allowed =
            if file.starts_with(&format!("{}transport/", RDMA.sources)) { "ndis" } else { "" };
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

/// A file of `verbs/c` is the C interface of the object whose file has the same path in `verbs/core`.
#[test]
fn files_of_verbs_state_their_layer() {
    let head = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    let heads = |layers: &Layers| -> BTreeMap<String, String> {
        let own = |(file, text): (String, String)| {
            Some((file.strip_prefix(layers.sources)?.to_owned(), head(&text)))
        };
        sources(layers).into_iter().filter_map(own).collect()
    };
    let (c, core) = (heads(&VERBS), heads(&VERBS_CORE));
    let shared: Vec<_> = c.keys().filter(|file| core.contains_key(*file)).collect();
    assert!(shared.len() > 15, "{shared:?}");
    for file in shared.into_iter().filter(|file| *file != "lib.rs") {
        let (outer, inner) = (&c[file], &core[file]);
        assert!(outer.starts_with("//! C interface of "), "verbs/c/src/{file}: {outer}");
        assert!(!inner.starts_with("//! C interface"), "verbs/core/src/{file}: {inner}");
    }
}

/// Files of a library, one of them with an additional line.
fn with(layers: &Layers, file: &str, line: &str) -> Crate {
    let mut sources = sources(layers);
    let name = format!("{}{file}", layers.sources);
    let (_, text) = sources.iter_mut().find(|(it, _)| *it == name).expect("a file of the library");
    *text = format!("{line}\n{text}");
    read(layers, &sources)
}

// An import against the order, by any path, is detected, and so is a forbidden word.
#[test]
fn order_violation_is_detected() {
    for (layers, file, line) in [
        (&RDMA, "error.rs", "use crate::mpa::MpaError;"),
        (&RDMA, "mpa/crc.rs", "use crate::{ddp::{Msn, Stag}, error::WireError};"),
        (&RDMA, "mpa/startup/frame.rs", "use super::super::super::rdmap::Opcode;"),
        (&RDMA, "ddp/receive.rs", "fn name() -> &'static str { crate::rdmap::Terminate::NAME }"),
        (&RDMA, "rdmap/read.rs", "pub(crate) use crate::ndk::NtStatus as S;\nuse crate::ndk::Cq;"),
        (&RDMA, "rnic/queues/qp.rs", "use crate::transport::NodeRnic;"),
        (&RDMA, "rnic/queues/wr.rs", "use crate::rnic::{Rnic, objects::id::QpId};"),
        (&RDMA, "rnic/memory/fast.rs", "use super::super::queues::qp::Qp;"),
        (&RDMA, "transport/offloaded.rs", "use crate::ndk::Adapter;"),
        (&RDMA, "mpa/slab.rs", "use offload_engine::nbl::NetBuffer;"),
        (&ENGINE, "state.rs", "use crate::tcp::Event;"),
        (&ENGINE, "tcp/input.rs", "use crate::{chimney::provider, time::Instant};"),
        (&ENGINE, "tcp/state.rs", "use crate::{chimney::tree::TcpObject, nbl::NblChain};"),
        (&ENGINE, "frame/classify.rs", "use crate::tcp::Event;"),
        (&ENGINE, "chimney/client.rs", "fn now() { crate::engine::Engine::now() }"),
        (&HOST, "observer.rs", "use crate::handoff::export::export;"),
        (&HOST, "handoff/import.rs", "use crate::{host::Host, wire};"),
        (&HOST, "socket.rs", "use crate::host::HostConfig;"),
        (&HOST, "handoff/stage.rs", "use std::time::Instant;"),
        (&VERBS_CORE, "event_queue.rs", "use crate::device::Device;"),
        (&VERBS_CORE, "device.rs", "use crate::qp::Qp;"),
        (&VERBS, "guard.rs", "use crate::context;"),
        (&VERBS, "cq.rs", "use crate::open::of_identifiers;"),
    ] {
        let sources = with(layers, file, line);
        assert!(!order_errors(layers, &sources).is_empty(), "{file}: {line}");
    }
}

// A cycle is detected; files that only one of its members imports are not part of it.
#[test]
fn circles_are_found() {
    for (layers, line, files, outside) in [
        (
            &RDMA,
            "use super::{Encoder, marker::{self, Grid}};",
            ["mpa/crc.rs", "mpa/encoder.rs"],
            "mpa/marker.rs",
        ),
        // By the name under which the parent imports it.
        (&ENGINE, "use super::UploadMonitor;", ["tcp/config.rs", "tcp/retrieve.rs"], "tcp/seq.rs"),
        (
            &ENGINE,
            "use super::plain::PlainTap;",
            ["link/attach.rs", "link/plain.rs"],
            "link/tun.rs",
        ),
        (&HOST, "use super::list;", ["host/connection.rs", "host/list.rs"], "host/history.rs"),
        (&VERBS_CORE, "use crate::qp::Qp;", ["device.rs", "cq.rs"], "event_queue.rs"),
        (&VERBS, "use crate::qp;", ["mw.rs", "qp.rs"], "cq.rs"),
        (
            &unordered("src/"),
            "use super::phase::Outcome;",
            ["cmd/perf/report.rs", "cmd/perf/phase.rs"],
            "cmd/perf/kind.rs",
        ),
    ] {
        let sources = with(layers, files[0], line);
        let found = circle(layers, &sources);
        for file in files.map(|file| format!("{}{file}", layers.sources)) {
            assert!(found.contains(file.as_str()), "{file} in {found:?}");
        }
        let outside = format!("{}{outside}", layers.sources);
        assert!(!found.contains(outside.as_str()), "{found:?}");
    }
}
