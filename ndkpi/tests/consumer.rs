//! C programs linked with the library: under AddressSanitizer and UndefinedBehaviorSanitizer, which check the programs,
//! and under valgrind, which checks the library too.
//!
//! Needs `cc`, and valgrind for one test. Without them the tests print that and pass, but fail in CI.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use flue_test_support::{
    needs::{Need, lacks},
    netns::Namespace,
};

/// Returns the directory in which cargo has built the library: that of this test.
fn libraries() -> PathBuf {
    env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// Options of the sanitizers, which end a program at the first error.
const SANITIZERS: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// Compiles a program of this directory with the sanitizers. `None`: there is no compiler.
fn compile(name: &str) -> Option<PathBuf> {
    compile_with(name, &SANITIZERS)
}

fn compile_with(name: &str, options: &[&str]) -> Option<PathBuf> {
    if lacks(&[Need::Tool("cc")]) {
        return None;
    }
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (source, libraries) = (own.join("tests").join(name).with_extension("c"), libraries());
    // Tests run in parallel: each compiles its own program.
    let test = thread::current().name().unwrap_or("a test").to_owned();
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{test}"));
    let compiled = Command::new("cc")
        .args(["-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror"])
        .args(options)
        .arg("-I")
        .arg(own.join("include"))
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .arg("-L")
        .arg(&libraries)
        .args(["-lflue_ndkpi", "-lpthread", "-Wl,-rpath"])
        .arg(&libraries)
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    Some(program)
}

/// Returns the command of a program, with a time limit.
fn timed(program: &Path) -> Command {
    let mut timed = Command::new("timeout");
    timed.arg("60").arg(program);
    timed
}

/// Runs a command and checks that it succeeds.
fn run(command: &mut Command) {
    let ran = command.output().unwrap();
    let output = String::from_utf8_lossy(&ran.stdout);
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(
        ran.status.success() && output.ends_with("0 failures\n"),
        "{}: {output}{errors}",
        ran.status
    );
}

#[test]
fn opening() {
    if let Some(program) = compile("opening") {
        run(&mut timed(&program));
    }
}

#[test]
fn over_kernel_sockets() {
    if let Some(program) = compile("consumer") {
        run(timed(&program).arg("sockets"));
    }
}

// Without the sanitizers: valgrind detects each access of the library to memory that was freed.
#[test]
fn under_valgrind() {
    if lacks(&[Need::Tool("valgrind")]) {
        return;
    }
    let Some(program) = compile_with("consumer", &[]) else { return };
    let mut watched = Command::new("timeout");
    watched.args(["600", "valgrind", "-q", "--error-exitcode=9"]).arg(program).arg("sockets");
    run(&mut watched);
}

// Creates, requests and closes that need not pend do so at random.
#[test]
fn with_deferral() {
    if let Some(program) = compile("consumer") {
        run(timed(&program).arg("deferral"));
    }
}

#[test]
fn over_two_taps() {
    if lacks(&[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("unshare")]) {
        return;
    }
    let Some(program) = compile("consumer") else { return };
    let host = Namespace::new();
    host.ip("link add br0 type bridge");
    host.ip("link set br0 up");
    host.run(|| run(timed(&program).arg("taps")));
}

#[test]
fn threads_of_callbacks() {
    if let Some(program) = compile("ends") {
        run(timed(&program).arg("threads"));
    }
}

// From the three standard descriptors to enough for a listener and a connect. No sanitizer: it opens its own files.
#[test]
fn calls_without_a_descriptor_left_fail_for_lack_of_resources() {
    if let Some(program) = compile_with("limits", &[]) {
        run(&mut timed(&program));
    }
}

// Each kind of panic of the library.
#[test]
fn panic_ends_the_adapters() {
    let Some(program) = compile("ends") else { return };
    for place in ["call", "core", "thread"] {
        run(timed(&program).arg(place));
    }
}

// The program and the command of the guide, run from another directory.
#[test]
fn quick_start_of_the_guide_runs_anywhere() {
    if lacks(&[Need::Tool("cc")]) {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = std::fs::read_to_string(root.join("docs/libraries/ndkpi.md")).unwrap();
    let (_, program) = page.split_once("```c\n").expect("a program");
    let (program, _) = program.split_once("```").unwrap();
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("quick-start");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("consumer.c"), program).unwrap();
    let line = page.lines().find(|line| line.starts_with("cc ")).expect("a command");
    // The libraries of this test are not those of a release; sources and output are not in the repository.
    let libraries = libraries().display().to_string();
    let line = line.replace("$PWD/target/release", &libraries);
    let line = line.replace("target/release", &libraries);
    let line = line.replace("consumer ", &format!("{}/consumer ", directory.display()));
    let line = line.replace(" consumer.c", &format!(" {}/consumer.c", directory.display()));
    let built = Command::new("sh").args(["-c", &line]).current_dir(root).output().unwrap();
    assert!(built.status.success(), "{line}: {}", String::from_utf8_lossy(&built.stderr));
    let ran = timed(&directory.join("consumer")).current_dir("/").output().unwrap();
    let output = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && output.contains("entries in a completion queue"), "{output}");
}
