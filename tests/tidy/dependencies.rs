//! Dependencies: their documentation, those of the shared libraries, and the minimum Rust version.

use std::{collections::BTreeSet, fs, process::Command};

use super::root;

/// Crates of the command alone: its options, which are a feature of `flue-adapter`, its screen, its exporter and its
/// sandbox.
const OF_THE_COMMAND: [&str; 6] =
    ["clap", "httparse", "landlock", "prometheus-client", "ratatui", "seccompiler"];

#[test]
fn shared_libraries_contain_no_crates_of_the_command() {
    for library in ["flue-verbs", "flue-ndkpi"] {
        let tree = Command::new(env!("CARGO"))
            .args([
                "tree",
                "--offline",
                "--locked",
                "-e",
                "normal",
                "--prefix",
                "none",
                "-p",
                library,
            ])
            .current_dir(root())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&tree.stdout);
        assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
        assert!(text.lines().any(|line| line.starts_with("flue-adapter ")), "{library}: {text}");
        let is_of_the_command =
            |line: &&str| OF_THE_COMMAND.iter().any(|name| line.starts_with(name));
        let found = text.lines().find(is_of_the_command);
        assert_eq!(found, None, "cargo tree -p {library} -e normal");
    }
}

#[test]
fn documents_match_minimum_rust_version() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let (_, rest) = manifest.split_once("rust-version = \"").unwrap();
    let (version, _) = rest.split_once('"').unwrap();
    for document in ["README.md", "CHANGELOG.md"] {
        let text = fs::read_to_string(root().join(document)).unwrap();
        assert!(text.contains(version), "{document} does not name Rust {version}");
    }
}

#[test]
fn every_dependency_is_documented() {
    let read = |file: &str| fs::read_to_string(root().join(file)).unwrap();
    let (manifest, page) = (read("Cargo.toml"), read("docs/contributing/dependencies.md"));
    let (_, dependencies) = manifest.split_once("[workspace.dependencies]").unwrap();
    let (dependencies, _) = dependencies.split_once("\n[").unwrap();
    let of_others = dependencies.lines().filter(|line| !line.starts_with('#'));
    let of_others = of_others.filter(|line| !line.contains("path = "));
    let used: BTreeSet<_> = of_others.filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    let listed: BTreeSet<_> = rows.flat_map(|names| names.split(", ")).collect();
    let listed: BTreeSet<_> = listed.iter().map(|name| name.trim_matches('`')).collect();
    assert_eq!(used, listed, "docs/contributing/dependencies.md");
}
