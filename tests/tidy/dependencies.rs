//! Dependencies of the shared libraries, and the minimum Rust version.

use std::{fs, process::Command};

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
