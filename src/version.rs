//! Version and commit of this build.

use std::sync::LazyLock;

use flue_bench::Build;

/// Version and commit of this build, for `flue --version`.
pub static VERSION: LazyLock<String> = LazyLock::new(|| text(&BUILD));

/// This build.
pub const BUILD: Build = Build {
    version: env!("CARGO_PKG_VERSION"),
    commit: option_env!("FLUE_COMMIT"),
    is_changed: match option_env!("FLUE_MODIFIED") {
        Some(is_modified) => Some(matches!(is_modified.as_bytes(), b"true")),
        None => None,
    },
    profile: if cfg!(debug_assertions) { "debug" } else { "release" },
};

/// Digits of a commit.
const COMMIT_DIGITS: usize = 12;

fn text(build: &Build) -> String {
    let Build { version, commit, is_changed, profile } = build;
    let commit = commit.map(|commit| commit.get(..COMMIT_DIGITS).unwrap_or(commit));
    match (commit, is_changed) {
        (Some(commit), Some(true)) => format!("{version} ({commit}, modified)"),
        (Some(commit), _) => format!("{version} ({commit})"),
        (None, _) if *profile == "debug" => format!("{version} (debug build)"),
        (None, _) => (*version).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_contains_the_commit_of_the_build() {
        let commit = Some("0123456789abcdef0123456789abcdef01234567");
        let build = Build { version: "1.2.3", commit, is_changed: Some(false), profile: "release" };
        assert_eq!(text(&build), "1.2.3 (0123456789ab)");
        assert_eq!(
            text(&Build { is_changed: Some(true), ..build }),
            "1.2.3 (0123456789ab, modified)"
        );
        assert_eq!(text(&Build { commit: Some("v1"), is_changed: None, ..build }), "1.2.3 (v1)");
        assert_eq!(text(&Build { commit: None, ..build }), "1.2.3");
        assert_eq!(text(&Build { commit: None, profile: "debug", ..build }), "1.2.3 (debug build)");
    }
}
