//! Debian 13: programs in a root directory of that release (`tests/verbs/root`), and the symbols that packages of a
//! release bind, compared with the list of exported symbols.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use flue_test_support::needs::{Need, lacks};
use flue_verbs_abi::symbols::symbols;

const RELEASE: &str = "trixie";

/// Returns the code name of the Debian release on which this test runs; empty on other systems.
pub(crate) fn codename() -> String {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let codename = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    codename.unwrap_or_default().trim_matches('"').to_owned()
}

/// Packages of the tests below, with hardware providers, and the tools that those tests require.
const PACKAGES: [&str; 6] = [
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "perftest",
    "python3-pyverbs",
    "rdmacm-utils",
];

/// Tests that run in the root: one start-up each of rdma-core, perftest and pyverbs, on either device.
const TESTS: [&str; 6] = [
    "programs::roce_sockets::ib_write_bw_with_immediate_data",
    "programs::roce_sockets::ibv_rc_pingpong",
    "programs::sockets::ib_write_bw",
    "programs::sockets::ibv_devinfo",
    "programs::sockets::rping",
    "suites::modules_of_pyverbs",
];

/// Time limit for creating the root, in seconds. It takes 80 s without a cache, on two CPUs.
const ROOT_LIMIT: &str = "900";

/// Returns the root of [`RELEASE`], or `None` if it cannot be created.
///
/// # Panics
///
/// In CI, if it cannot be created.
fn root() -> Option<PathBuf> {
    if lacks(&[Need::InitialRoot, Need::Tool("debootstrap"), Need::Tool("apt-get")]) {
        return None;
    }
    let mut command = Command::new("timeout");
    command.args([ROOT_LIMIT, "tests/verbs/root", RELEASE]).args(PACKAGES);
    let made = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("timeout starts");
    if made.status.success() {
        let path = String::from_utf8(made.stdout).expect("a path in UTF-8");
        return Some(path.trim_end().into());
    }
    let log = String::from_utf8_lossy(&made.stderr);
    let is_ci = env::var("CI").as_deref() == Ok("true");
    assert!(!is_ci, "no root directory of {RELEASE}: {}: {log}", made.status);
    println!("skipped: no root directory of {RELEASE}: {}: {log}", made.status);
    None
}

#[test]
fn programs_of_debian_13() {
    let Some(root) = root() else { return };
    let mut command = Command::new("tests/verbs/in-root");
    command.current_dir(env!("CARGO_MANIFEST_DIR")).arg(root);
    command.arg(env::current_exe().expect("the path of this test"));
    // With CI set, no test is skipped.
    command.args(["--exact", "--test-threads=1"]).args(TESTS).env("CI", "true");
    let ran = command.output().expect("the script starts");
    let text = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
    let expected = format!("{} passed", TESTS.len());
    assert!(ran.status.success() && text.contains(&expected), "{}: {text}", ran.status);
}

/// Returns installed packages that depend on libibverbs or librdmacm, including those libraries and providers.
fn packages(root: &Path) -> Vec<String> {
    let status = fs::read_to_string(root.join("var/lib/dpkg/status")).unwrap_or_default();
    let is_verbs = |word: &str| {
        ["libibverbs1", "librdmacm1", "librdmacm1t64", "ibverbs-providers"].contains(&word)
    };
    let package = |paragraph: &str| {
        let field = |name| paragraph.lines().find_map(|line: &str| line.strip_prefix(name));
        let name = field("Package: ")?;
        let is_installed = field("Status: ").is_some_and(|it| it.ends_with(" installed"));
        let depends = field("Depends: ").unwrap_or_default();
        let depends = depends.split([' ', ',', ':', '|']).any(is_verbs);
        (is_installed && (depends || is_verbs(name))).then(|| name.to_owned())
    };
    status.split("\n\n").filter_map(package).collect()
}

fn is_elf(file: &Path) -> bool {
    let mut magic = [0; 4];
    fs::symlink_metadata(file).is_ok_and(|found| found.is_file())
        && File::open(file).and_then(|mut file| file.read_exact(&mut magic)).is_ok()
        && magic == *b"\x7fELF"
}

/// Returns programs and libraries of a package.
fn executables(root: &Path, package: &str) -> Vec<PathBuf> {
    let database = root.join("var/lib/dpkg/info");
    let entries = fs::read_dir(database).into_iter().flatten().flatten();
    let is_list = |name: &str| {
        let name = name.strip_suffix(".list");
        name.is_some_and(|name| name.split(':').next() == Some(package))
    };
    let lists = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_list));
    let files = lists.flat_map(|entry| {
        let list = fs::read_to_string(entry.path()).unwrap_or_default();
        list.lines().map(|path| root.join(path.trim_start_matches('/'))).collect::<Vec<_>>()
    });
    files.filter(|file| is_elf(file)).collect()
}

/// Returns the references to symbols of libibverbs and librdmacm in the files, as `name@version`, with a file for
/// each.
fn references(files: &[PathBuf]) -> BTreeMap<String, String> {
    let mut nm = Command::new("nm");
    let listed = nm.args(["-D", "--undefined-only", "-A"]).args(files).output().expect("nm starts");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let reference = |line: &str| {
        let (file, rest) = line.split_once(": ")?;
        let symbol = rest.rsplit(' ').next()?;
        let is_ours = symbol.contains("@IBVERBS_") || symbol.contains("@RDMACM_");
        is_ours.then(|| (symbol.to_owned(), file.to_owned()))
    };
    listed.lines().filter_map(reference).collect()
}

/// Checks that each reference of the packages in `root` is to a listed symbol and version. The test of the exports
/// compares the list with the library.
fn check_references(root: &Path, required: &[&str]) {
    let packages = packages(root);
    for package in required {
        assert!(packages.iter().any(|it| it == package), "{package} not found in {packages:?}");
    }
    let files: Vec<_> = packages.iter().flat_map(|it| executables(root, it)).collect();
    let found = references(&files);
    let listed: BTreeSet<_> =
        symbols().map(|symbol| format!("{}@{}", symbol.name, symbol.version)).collect();
    let unlisted: Vec<_> = found.iter().filter(|(symbol, _)| !listed.contains(*symbol)).collect();
    assert!(unlisted.is_empty(), "not exported: {unlisted:#?}");
    let of_providers = found.keys().filter(|symbol| symbol.contains("@IBVERBS_PRIVATE_")).count();
    assert!(found.len() > 150 && of_providers > 60, "{} references of {files:?}", found.len());
}

#[test]
fn references_of_this_machines_packages_are_exported() {
    if lacks(&[Need::Tool("nm"), Need::Tool("dpkg-query"), Need::Tool("ib_write_bw")]) {
        return;
    }
    check_references(Path::new("/"), &["perftest", "rdmacm-utils"]);
}

#[test]
fn references_of_debian_13_are_exported() {
    if lacks(&[Need::Tool("nm")]) {
        return;
    }
    if let Some(root) = root() {
        check_references(
            &root,
            &["ibverbs-providers", "perftest", "python3-pyverbs", "rdmacm-utils"],
        );
    }
}
