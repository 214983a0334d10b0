//! Examples that are not in Rust, and the list of all. Those in Rust run as tests of their own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use flue_test_support::{
    flue::Scratch,
    needs::{Need, lacks},
    netns::Namespace,
    process::{Output, Process},
};

const FLUE: &str = env!("CARGO_BIN_EXE_flue");
const LIMIT: Duration = Duration::from_secs(60);
/// Most lines of an example.
const LINES_MAX: usize = 100;

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

#[test]
fn verbs_program_runs_as_documented() {
    let needs = [Need::Root, Need::Tool("ip"), Need::Tool("cc"), Need::Tool("make")];
    if lacks(&needs) {
        return;
    }
    let (host, scratch) = (Namespace::new(), Scratch::new());
    let sources = examples().join("verbs");
    for file in ["send.c", "Makefile"] {
        fs::copy(sources.join(file), scratch.file(file)).unwrap();
    }
    let mut make = Command::new("make");
    make.arg("-s").arg("CFLAGS=-Wall -Wextra -Werror").current_dir(scratch.file(""));
    assert!(make.status().unwrap().success());

    let program = scratch.file("send");
    let start = |arguments: &[&str]| {
        let mut command = Command::new(FLUE);
        command.args(["run", "--"]).arg(&program).args(arguments);
        Process::start(&host, command, Output::Lines)
    };
    let mut server = start(&["7471"]);
    let listens = || host.output("ss", &["-Hltn"]).contains(":7471 ");
    let deadline = std::time::Instant::now() + LIMIT;
    while !listens() {
        assert!(std::time::Instant::now() < deadline && server.is_running(), "{:?}", server.log());
    }
    let mut client = start(&["7471", "127.0.0.1"]);
    client.expect_exit(0, LIMIT);
    server.expect_exit(0, LIMIT);
    let source = fs::read_to_string(sources.join("send.c")).unwrap();
    let documented = source.lines().filter_map(|line| line.strip_prefix(" *   "));
    let documented: Vec<_> = documented.filter(|line| !line.starts_with('$')).collect();
    assert_eq!(documented, [server.all_lines(LIMIT), client.all_lines(LIMIT)]);
}

#[test]
fn every_example_is_listed_and_short() {
    let list = fs::read_to_string(examples().join("README.md")).unwrap();
    let mut names = Vec::new();
    for directory in ["", "verbs", "ci"] {
        for entry in fs::read_dir(examples().join(directory)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(examples()).unwrap().display().to_string();
            if path.is_file() && !["README.md", "verbs/Makefile", "verbs/send"].contains(&&*name) {
                let lines = fs::read_to_string(&path).unwrap().lines().count();
                assert!(lines <= LINES_MAX, "{name}: {lines} lines, expected at most {LINES_MAX}");
                names.push(name);
            }
        }
    }
    for name in &names {
        assert!(list.contains(&format!("]({name})")), "{name} is not in examples/README.md");
    }
    assert_eq!(names.len(), list.matches(".rs](").count() + list.matches(".c](").count() + 1);
}
