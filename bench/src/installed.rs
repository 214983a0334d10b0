//! Installed peers with their versions, and the packages of missing ones.

use std::{
    collections::HashMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde::Serialize;

use super::contest::Need;

/// The libfabric baseline, compiled on this machine.
const LIBFABRIC_SOURCE: &str = include_str!("baseline/libfabric.c");

/// External program with which flue is compared.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Peer {
    /// Name of the program.
    pub(super) name: &'static str,
    /// True if it is installed.
    pub(super) found: bool,
    /// Version, or the reason why it is missing.
    pub(super) detail: String,
    /// Debian package.
    pub(super) package: &'static str,
}

/// Result of the search.
#[derive(Debug)]
pub(super) struct Installed {
    /// All peers included in the search.
    pub(super) peers: Vec<Peer>,
    /// Paths of the programs.
    pub(super) programs: HashMap<Need, PathBuf>,
    /// Path of strace.
    pub(super) strace: Option<PathBuf>,
}

/// Searches for the software in `needs`; the libfabric baseline is built in `scratch`.
pub(super) fn search(scratch: &Path, needs: &[Need]) -> Installed {
    let mut found =
        Installed { peers: Vec::new(), programs: HashMap::new(), strace: find("strace") };
    if needs.contains(&Need::Libfabric) {
        let built = build_libfabric(scratch);
        let detail = match &built {
            Ok(_) => version(&["fi_info", "--version"]),
            Err(why) => why.clone(),
        };
        found.add(Need::Libfabric, "libfabric", "libfabric-dev gcc", built.ok(), detail);
    }
    if needs.contains(&Need::Perftest) {
        let program = find("ib_write_bw");
        let detail = version(&["ib_write_bw", "--version"]);
        found.add(Need::Perftest, "perftest", "perftest", program, detail);
    }
    if needs.contains(&Need::Cmtime) {
        let program = find("cmtime");
        let detail = program.as_ref().map_or_else(String::new, |path| path.display().to_string());
        found.add(Need::Cmtime, "cmtime", "rdmacm-utils", program, detail);
    }
    if needs.contains(&Need::Rstream) {
        let program = find("rstream");
        let detail = program.as_ref().map_or_else(String::new, |path| path.display().to_string());
        found.add(Need::Rstream, "rstream", "rdmacm-utils", program, detail);
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

impl Installed {
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

    /// Returns true if a job with this requirement can run.
    pub(super) fn has(&self, need: Need) -> bool {
        need == Need::Nothing || self.programs.contains_key(&need)
    }
}

/// Finds a program in PATH, or in the system administration directories.
fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path)
        .chain(more)
        .map(|directory| directory.join(name))
        .find(|it| it.is_file())
}

/// Returns the first line of a command's output; empty if it cannot run.
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
    fn installed_programs_are_found() {
        assert!(find("sh").is_some());
        assert_eq!(find("no-such-program-anywhere"), None);
        assert_eq!(version(&["no-such-program-anywhere", "-v"]), "");
        assert_eq!(version(&["echo", "1.2.3"]), "1.2.3");
    }

    #[test]
    fn search_is_limited_to_requirements() {
        let found = search(Path::new("/nonexistent"), &[Need::Nothing]);
        assert!(found.peers.is_empty() && found.has(Need::Nothing) && !found.has(Need::Ucx));
    }

    #[test]
    fn failed_build_has_a_reason() {
        let found = search(Path::new("/nonexistent"), &[Need::Libfabric]);
        let [peer] = &found.peers[..] else { panic!("{found:?}") };
        assert!(!peer.found && !peer.detail.is_empty(), "{peer:?}");
    }
}
