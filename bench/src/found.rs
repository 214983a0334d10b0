//! Which peers this machine has, in which version, and how to get the others.

use std::{
    collections::HashMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde::Serialize;

use super::contest::Need;

/// The yardstick for libfabric, built where its headers are.
const LIBFABRIC_SOURCE: &str = include_str!("yardstick/libfabric.c");

/// A program that flue is measured beside, or measured by.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Peer {
    /// Its name.
    pub(super) name: &'static str,
    /// It is there.
    pub(super) found: bool,
    /// What it says of itself, or why it cannot be had.
    pub(super) detail: String,
    /// Debian's package.
    pub(super) package: &'static str,
}

/// What was found, and where what was built for it is.
#[derive(Debug)]
pub(super) struct Found {
    /// All that were looked for.
    pub(super) peers: Vec<Peer>,
    /// Programs by what needs them.
    pub(super) programs: HashMap<Need, PathBuf>,
    /// strace.
    pub(super) strace: Option<PathBuf>,
}

/// Looks for all; what has to be built goes into `scratch`.
pub(super) fn look(scratch: &Path, needs: &[Need]) -> Found {
    let mut found = Found { peers: Vec::new(), programs: HashMap::new(), strace: find("strace") };
    if needs.contains(&Need::Libfabric) {
        let built = build_libfabric(scratch);
        let detail = match &built {
            Ok(_) => version(&["fi_info", "--version"]),
            Err(why) => why.clone(),
        };
        found.add(Need::Libfabric, "libfabric", "libfabric-dev and gcc", built.ok(), detail);
    }
    if needs.contains(&Need::Ucx) {
        let program = find("ucx_perftest");
        let detail = version(&["ucx_info", "-v"]).trim_start_matches("# ").to_owned();
        found.add(Need::Ucx, "UCX", "ucx-utils", program, detail);
    }
    if needs.contains(&Need::Iperf3) {
        let program = find("iperf3");
        found.add(Need::Iperf3, "iperf3", "iperf3", program, version(&["iperf3", "--version"]));
    }
    found
}

impl Found {
    fn add(
        &mut self,
        need: Need,
        name: &'static str,
        package: &'static str,
        program: Option<PathBuf>,
        detail: String,
    ) {
        let detail =
            if program.is_none() && detail.is_empty() { "not found".into() } else { detail };
        self.peers.push(Peer { name, found: program.is_some(), detail, package });
        self.programs.extend(program.map(|program| (need, program)));
    }

    /// Whether a job that needs this can run.
    pub(super) fn has(&self, need: Need) -> bool {
        need == Need::Nothing || self.programs.contains_key(&need)
    }
}

/// A program on the PATH, or where a user's PATH does not lead.
fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path)
        .chain(more)
        .map(|directory| directory.join(name))
        .find(|it| it.is_file())
}

/// The first line a command prints; empty when it cannot be had.
pub(super) fn version(line: &[&str]) -> String {
    let Some((program, arguments)) = line.split_first() else { return String::new() };
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let Ok(output) = output else { return String::new() };
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().next().unwrap_or_default().trim().to_owned()
}

fn build_libfabric(scratch: &Path) -> Result<PathBuf, String> {
    let compiler = ["cc", "gcc", "clang"].into_iter().find_map(find).ok_or("no C compiler")?;
    let source = scratch.join("libfabric.c");
    let program = scratch.join("libfabric-bench");
    let failed = |error: std::io::Error| format!("{}: {error}", compiler.display());
    fs::write(&source, LIBFABRIC_SOURCE).map_err(failed)?;
    let mut command = Command::new(&compiler);
    command.args(["-O2", "-o"]).arg(&program).arg(&source).arg("-lfabric").stdin(Stdio::null());
    let output = command.output().map_err(failed)?;
    if output.status.success() {
        return Ok(program);
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let what = errors.lines().find(|line| line.contains("error") || line.contains("cannot find"));
    Err(what.unwrap_or("the compiler failed").trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_and_nonsense_is_not() {
        assert!(find("sh").is_some());
        assert_eq!(find("no-such-program-anywhere"), None);
        assert_eq!(version(&["no-such-program-anywhere", "-v"]), "");
        assert_eq!(version(&["echo", "1.2.3"]), "1.2.3");
    }

    #[test]
    fn nothing_is_looked_for_that_nobody_needs() {
        let found = look(Path::new("/nonexistent"), &[Need::Nothing]);
        assert!(found.peers.is_empty() && found.has(Need::Nothing) && !found.has(Need::Ucx));
    }

    #[test]
    fn what_cannot_be_built_says_why() {
        let found = look(Path::new("/nonexistent"), &[Need::Libfabric]);
        let [peer] = &found.peers[..] else { panic!("{found:?}") };
        assert!(!peer.found && !peer.detail.is_empty(), "{peer:?}");
    }
}
