//! Records the commit of an optimized build: `FLUE_COMMIT` and `FLUE_MODIFIED` of `src/version.rs`.
//!
//! Sources, in this order: the variable `FLUE_COMMIT` (a package built from an archive), the file that `cargo publish`
//! adds to a crate, and git. A debug build has none, so a commit does not cause its compilation.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Written by `cargo publish`.
const PUBLISHED: &str = ".cargo_vcs_info.json";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=FLUE_COMMIT");
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let commit = env::var("FLUE_COMMIT").ok().filter(|commit| !commit.is_empty());
    let is_debug = env::var("PROFILE").as_deref() == Ok("debug");
    let source = match commit {
        Some(commit) => Some((commit, false)),
        None if is_debug => None,
        None => published(&root).map(|commit| (commit, false)).or_else(|| from_git(&root)),
    };
    if let Some((commit, is_modified)) = source {
        println!("cargo::rustc-env=FLUE_COMMIT={commit}");
        println!("cargo::rustc-env=FLUE_MODIFIED={is_modified}");
    }
}

/// Returns the commit from which a crate was published.
fn published(root: &Path) -> Option<String> {
    let text = fs::read_to_string(root.join(PUBLISHED)).ok()?;
    let (_, rest) = text.split_once("\"sha1\"")?;
    let commit = rest.split('"').nth(1)?;
    commit.bytes().all(|octet| octet.is_ascii_hexdigit()).then(|| commit.to_owned())
}

/// Returns the commit of the repository, and true if tracked files differ from it. `None`: the sources are not the top
/// of a repository, or git is not installed.
fn from_git(root: &Path) -> Option<(String, bool)> {
    let git = |words: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(root).args(words).stdin(Stdio::null()).stderr(Stdio::null());
        let output = command.output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    };
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if fs::canonicalize(top).ok()? != fs::canonicalize(root).ok()? {
        return None;
    }
    // The log of HEAD grows with each commit, checkout and reset; without it, HEAD changes with each checkout.
    for name in ["HEAD", "logs/HEAD"] {
        let path = root.join(git(&["rev-parse", "--git-path", name])?);
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    for file in git(&["ls-files", "*.rs", "*.toml", "*.lock"])?.lines() {
        println!("cargo::rerun-if-changed={}", root.join(file).display());
    }
    let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some((git(&["rev-parse", "HEAD"])?, !changes.is_empty()))
}
