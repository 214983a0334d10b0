//! `flue run` itself: the program is as if it had been started directly.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output, Stdio};

use flue_test_support::flue::Scratch;
use flue_test_support::needs::{Need, find_tool, lacks};

use crate::{FLUE, library};

/// `flue run` with options before the program, in a directory for temporary files of the test's own.
fn launcher(scratch: &Scratch, options: &str, program: &[&str]) -> Command {
    let mut command = Command::new(FLUE);
    command.arg("run").args(options.split_whitespace()).arg("--library").arg(library());
    command.arg("--").args(program);
    command.env("TMPDIR", scratch.file("")).env_remove("XDG_RUNTIME_DIR");
    // What tests/verbs/run sets, and the user may have set.
    for (name, _) in std::env::vars_os() {
        let is_ours = name.to_str().is_some_and(|name| name.starts_with("FLUE_VERBS_"));
        if is_ours || name == "LD_LIBRARY_PATH" {
            command.env_remove(name);
        }
    }
    command
}

fn run(command: &mut Command) -> (Output, String, String) {
    let output = command.stdin(Stdio::null()).output().expect("flue starts");
    let text = |octets: &[u8]| String::from_utf8_lossy(octets).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    (output, out, err)
}

#[test]
fn exit_status_and_signal_are_the_programs() {
    let scratch = Scratch::new();
    for status in [0, 1, 42, 255] {
        let script = format!("exit {status}");
        let (output, out, err) = run(&mut launcher(&scratch, "", &["sh", "-c", &script]));
        assert_eq!(output.status.code(), Some(status));
        assert_eq!((out.as_str(), err.as_str()), ("", ""));
    }
    for signal in [9, 15] {
        let script = format!("kill -{signal} $$");
        let (output, ..) = run(&mut launcher(&scratch, "", &["sh", "-c", &script]));
        assert_eq!(output.status.signal(), Some(signal));
    }
}

#[test]
fn a_file_that_cannot_be_written_is_refused_before_the_program_starts() {
    let scratch = Scratch::new();
    for option in ["--log", "--pcap"] {
        let options = format!("{option} /nowhere/%p");
        let (output, out, err) = run(&mut launcher(&scratch, &options, &["echo", "started"]));
        assert_eq!((output.status.code(), out.as_str()), (Some(1), ""), "{err}");
        assert!(err.contains("/nowhere/%p: No such file"), "{err}");
    }
}

#[test]
fn the_program_has_the_process_id_and_the_streams_of_the_launcher() {
    let scratch = Scratch::new();
    let mut command = launcher(&scratch, "", &["sh", "-c", "echo $$; cat; echo said >&2"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("flue starts");
    let id = child.id();
    child.stdin.take().expect("a pipe").write_all(b"\0\xffasked").expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.stdout, [format!("{id}\n").as_bytes(), b"\0\xffasked"].concat());
    assert_eq!(output.stderr, b"said\n");
}

#[test]
fn the_environment_has_the_library_in_front_and_the_options() {
    let scratch = Scratch::new();
    let script = "env | grep -E '^(LD_LIBRARY_PATH|FLUE_VERBS_)'";
    let (_, out, _) =
        run(launcher(&scratch, "", &["sh", "-c", script]).env("LD_LIBRARY_PATH", "/x:/y"));
    let line = out.lines().next().expect("a line");
    assert_eq!(out.lines().count(), 1, "{out}");
    let directory = line.strip_prefix("LD_LIBRARY_PATH=").and_then(|it| it.strip_suffix(":/x:/y"));
    let directory = std::path::Path::new(directory.expect(line));
    for name in ["libibverbs.so.1", "librdmacm.so.1", "libibverbs.so", "librdmacm.so"] {
        let target = fs::canonicalize(directory.join(name)).expect("a link");
        assert_eq!(target, fs::canonicalize(library()).expect("a file"));
    }
    let options = "--mpa-crc off --mpa-revision auto --pcap %p.pcapng --log l";
    let mut command = launcher(&scratch, options, &["sh", "-c", script]);
    let (_, out, err) = run(command.current_dir(scratch.file("")));
    let here = scratch.file("");
    for expected in [
        "FLUE_VERBS_MPA_CRC=off".to_owned(),
        "FLUE_VERBS_MPA_REVISION=auto".to_owned(),
        format!("FLUE_VERBS_PCAP={}", here.join("%p.pcapng").display()),
        format!("FLUE_VERBS_LOG={}", here.join("l").display()),
    ] {
        assert!(out.lines().any(|line| line == expected), "{expected}: {out}{err}");
    }
}

#[test]
fn what_cannot_work_is_refused_before_the_program_starts() {
    let scratch = Scratch::new();
    let (output, out, err) = run(&mut launcher(&scratch, "", &["/no/such/program"]));
    assert_eq!((output.status.code(), out.as_str()), (Some(3), ""));
    assert!(err.contains("/no/such/program"), "{err}");

    let mut command = Command::new(FLUE);
    command.args(["run", "--library", "/no/such/library.so", "--", "true"]);
    let (output, _, err) = run(&mut command);
    assert_eq!(output.status.code(), Some(3));
    assert!(err.contains("/no/such/library.so"), "{err}");

    let copy = scratch.file("set-id");
    fs::copy(find_tool("true").expect("every machine has it"), &copy).expect("it can be copied");
    fs::set_permissions(&copy, Permissions::from_mode(0o4755)).expect("the copy is ours");
    let (output, _, err) = run(&mut launcher(&scratch, "", &[copy.to_str().expect("a name")]));
    assert_eq!(output.status.code(), Some(3));
    assert!(err.contains("set-user-ID"), "{err}");
}

// Somebody else may have made the directory, to have the program load a library of theirs.
#[test]
fn a_directory_that_others_can_write_to_is_refused() {
    let scratch = Scratch::new();
    let directory = || {
        let made = fs::read_dir(scratch.file("")).expect("a directory");
        made.map(|entry| entry.expect("an entry").path()).next().expect("the launcher made one")
    };
    run(&mut launcher(&scratch, "", &["true"]));
    let directory = directory();
    assert_eq!(fs::metadata(&directory).expect("it is there").permissions().mode() & 0o777, 0o700);
    fs::set_permissions(&directory, Permissions::from_mode(0o777)).expect("it is ours");
    let (output, _, err) = run(&mut launcher(&scratch, "", &["true"]));
    assert_eq!(output.status.code(), Some(3), "{err}");
    assert!(err.contains("can write to"), "{err}");
}

#[test]
fn doctor_tells_of_it() {
    if lacks(&[Need::Tool("ibv_devices")]) {
        return;
    }
    let mut command = Command::new(FLUE);
    command.args(["doctor"]).env("FLUE_VERBS_LIBRARY", library());
    let (_, out, _) = run(&mut command);
    let line = out.lines().find(|line| line.contains("verbs programs:")).unwrap_or(&out).to_owned();
    assert!(line.starts_with("ok ") && line.contains("flue0"), "{line}");
    command.env("FLUE_VERBS_LIBRARY", "/no/such/library.so");
    let (_, out, _) = run(&mut command);
    assert!(out.contains("missing  verbs programs: library /no/such/library.so"), "{out}");
}
