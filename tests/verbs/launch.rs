//! Launcher of `flue run`: the program behaves as if started directly.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use flue_adapter::{
    AdapterOptions, Crc, MpaRevision, OPTIONS_VARIABLE, Rtr, SocketsOptions, TransportOptions,
};
use flue_test_support::flue::Scratch;
use flue_test_support::needs::{Need, find_tool, lacks};
use flue_verbs_abi::settings::{self, PATHS_LIBRARY_FILE};
use rustix::fs::{XattrFlags, setxattr};

use crate::group::Group;
use crate::test_bed::{LIMIT, ends, under_flue};
use crate::{FLUE, NEEDS, library, machine};

/// `flue run` with options before the program, with its own directory for temporary files.
pub(crate) fn launcher(scratch: &Scratch, options: &str, program: &[&str]) -> Command {
    let mut command = Command::new(FLUE);
    command.arg("run").args(options.split_whitespace()).arg("--library").arg(library());
    command.arg("--").args(program);
    command.env("TMPDIR", scratch.file("")).env_remove("XDG_RUNTIME_DIR");
    // Variables set by tests/verbs/run or by the user.
    for (name, _) in std::env::vars_os() {
        let is_ours = name
            .to_str()
            .is_some_and(|name| name.starts_with("FLUE_VERBS_") || name == OPTIONS_VARIABLE);
        if is_ours || name == "LD_LIBRARY_PATH" {
            command.env_remove(name);
        }
    }
    command
}

pub(crate) fn run(command: &mut Command) -> (Output, String, String) {
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
fn unwritable_file_is_refused_before_program_starts() {
    let scratch = Scratch::new();
    for option in ["--log", "--pcap"] {
        let options = format!("{option} /nowhere/%p");
        let (output, out, err) = run(&mut launcher(&scratch, &options, &["echo", "started"]));
        assert_eq!((output.status.code(), out.as_str()), (Some(1), ""), "{err}");
        assert!(err.contains("/nowhere/%p: No such file"), "{err}");
    }
}

#[test]
fn program_has_process_id_and_streams_of_launcher() {
    let scratch = Scratch::new();
    let mut command = launcher(&scratch, "", &["sh", "-c", "echo $$; cat; echo said >&2"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("flue starts");
    let id = child.id();
    child
        .stdin
        .take()
        .expect("a pipe")
        .write_all(b"\0\xffasked")
        .expect("a program that reads its input");
    let output = child.wait_with_output().expect("the end of the program");
    assert_eq!(output.stdout, [format!("{id}\n").as_bytes(), b"\0\xffasked"].concat());
    assert_eq!(output.stderr, b"said\n");
}

#[test]
fn environment_has_library_first_and_options() {
    let scratch = Scratch::new();
    let script = "env | grep -E '^(LD_LIBRARY_PATH|FLUE_)'";
    let (_, out, _) =
        run(launcher(&scratch, "", &["sh", "-c", script]).env("LD_LIBRARY_PATH", "/x:/y"));
    let (lists, others): (Vec<_>, Vec<_>) =
        out.lines().partition(|line| line.starts_with("LD_LIBRARY_PATH="));
    assert!(matches!(others[..], [line] if line.starts_with(settings::FILES)), "{out}");
    let [line] = lists[..] else { panic!("expected one line: {out}") };
    let directory = line.strip_prefix("LD_LIBRARY_PATH=").and_then(|it| it.strip_suffix(":/x:/y"));
    let directory = Path::new(directory.expect(line));
    for name in ["libibverbs.so.1", "librdmacm.so.1", "libibverbs.so", "librdmacm.so"] {
        let target = fs::canonicalize(directory.join(name)).expect("a link");
        assert_eq!(target, fs::canonicalize(library()).expect("a file"));
    }
    let options = "--mpa-crc off --mpa-revision auto --pcap %p.pcapng --log l";
    let mut command = launcher(&scratch, options, &["sh", "-c", script]);
    let (_, out, err) = run(command.current_dir(scratch.file("")));
    let here = scratch.file("");
    let log = format!("FLUE_VERBS_LOG={}", here.join("l").display());
    assert!(out.lines().any(|line| line == log), "{log}: {out}{err}");
    let passed = |out: &str| -> AdapterOptions {
        let line =
            out.lines().find_map(|line| line.strip_prefix(OPTIONS_VARIABLE)?.strip_prefix('='));
        line.unwrap_or_default().parse().unwrap_or_else(|error| panic!("{error}: {out}"))
    };
    let mut expected = AdapterOptions::default();
    expected.mpa.accept.crc = Some(Crc::Off);
    expected.mpa.revision = Some(MpaRevision::Auto);
    let pcap = Some(here.join("%p.pcapng"));
    expected.transport = TransportOptions::Sockets(SocketsOptions { pcap, seed: None });
    assert_eq!(passed(&out), expected);

    // Options take precedence over the environment; a nested launcher keeps the remaining ones.
    let options = "--rtr read --mpa-crc on";
    let mut command = launcher(&scratch, options, &["sh", "-c", script]);
    command.env(OPTIONS_VARIABLE, expected.to_string());
    command.env("FLUE_VERBS_MPA_CRC", "off").env("FLUE_VERBS_RFC7306", "on");
    let (_, out, err) = run(&mut command);
    expected.mpa.accept.crc = Some(Crc::On);
    expected.mpa.accept.rtr = Some(Rtr::Read);
    assert_eq!(passed(&out), expected, "{err}");
    assert!(!out.contains("FLUE_VERBS_MPA_CRC") && out.contains("FLUE_VERBS_RFC7306=on"), "{out}");
}

#[test]
fn invalid_setup_is_refused_before_program_starts() {
    let scratch = Scratch::new();
    let (output, out, err) = run(&mut launcher(&scratch, "", &["/no/such/program"]));
    assert_eq!((output.status.code(), out.as_str()), (Some(3), ""));
    assert!(err.contains("/no/such/program"), "{err}");

    for options in ["", "--verbose"] {
        let (output, _, err) = run(&mut launcher(&scratch, options, &["no-such-program"]));
        assert_eq!(output.status.code(), Some(3));
        assert!(err.contains("no-such-program: command not found in PATH"), "{err}");
        let (output, _, err) = run(&mut launcher(&scratch, options, &["--no-such-option", "true"]));
        assert_eq!(output.status.code(), Some(2));
        assert!(err.contains("--no-such-option: not an option of flue run"), "{err}");
    }

    let mut command = Command::new(FLUE);
    command.args(["run", "--library", "/no/such/library.so", "--", "true"]);
    let (output, _, err) = run(&mut command);
    assert_eq!(output.status.code(), Some(3));
    assert!(err.contains("/no/such/library.so"), "{err}");

    let copy = scratch.file("set-id");
    fs::copy(find_tool("true").expect("a tool of coreutils"), &copy).expect("a copied file");
    fs::set_permissions(&copy, Permissions::from_mode(0o4755)).expect("a file of this test");
    let (output, _, err) = run(&mut launcher(&scratch, "", &[copy.to_str().expect("a name")]));
    assert_eq!(output.status.code(), Some(3));
    assert!(err.contains("set-user-ID"), "{err}");
}

/// Directory that the launcher has created in `place`.
fn directory_in(place: &Path) -> PathBuf {
    let mut created = fs::read_dir(place).expect("a directory");
    created
        .find_map(|entry| {
            let path = entry.expect("an entry").path();
            path.file_name()?.to_str()?.starts_with("flue-verbs-").then_some(path)
        })
        .expect("a directory created by the launcher")
}

// Another user could create the directory to make the program load their library.
#[test]
fn directory_that_other_users_can_write_to_is_refused() {
    let scratch = Scratch::new();
    run(&mut launcher(&scratch, "", &["true"]));
    let directory = directory_in(&scratch.file(""));
    assert_eq!(
        fs::metadata(&directory).expect("an existing file").permissions().mode() & 0o777,
        0o700
    );
    let refused = |what: &str| {
        let (output, _, err) = run(&mut launcher(&scratch, "", &["true"]));
        assert_eq!(output.status.code(), Some(3), "{what}: {err}");
        assert!(err.contains(what) && err.contains("set TMPDIR"), "{what}: {err}");
    };
    fs::set_permissions(&directory, Permissions::from_mode(0o777)).expect("a file of this test");
    refused("can write to");
    fs::remove_dir_all(&directory).expect("a file of this test");
    let elsewhere = Scratch::new();
    symlink(elsewhere.file(""), &directory).expect("a link");
    refused("can write to");
    fs::remove_file(&directory).expect("a file of this test");
    fs::set_permissions(scratch.file(""), Permissions::from_mode(0o777))
        .expect("a file of this test");
    refused("sticky bit");
}

// The loader splits its lists at such characters.
#[test]
fn runtime_directory_that_the_loader_would_split_is_replaced() {
    let scratch = Scratch::new();
    let split = scratch.file("a:b");
    fs::create_dir(&split).expect("an unused name");
    let script = "echo $LD_LIBRARY_PATH; echo $LD_PRELOAD";
    let mut command = launcher(&scratch, "", &["sh", "-c", script]);
    let (_, out, err) = run(command.env("XDG_RUNTIME_DIR", &split));
    let directory = directory_in(&scratch.file(""));
    let directory = directory.display();
    let names = ["preload-libibverbs.so.1", "preload-librdmacm.so.1", PATHS_LIBRARY_FILE];
    let preloads = names.map(|it| format!("{directory}/{it}"));
    assert_eq!(out, format!("{directory}\n{}\n", preloads.join(":")), "{err}");

    for (place, problem) in [
        (split, "path with ':', ';', '$' or space"),
        ("/proc/self".into(), "/proc/self/flue-verbs-"),
    ] {
        let mut command = launcher(&scratch, "", &["true"]);
        let (output, _, err) = run(command.env("TMPDIR", place));
        assert_eq!(output.status.code(), Some(3), "{err}");
        assert!(err.contains(problem) && err.contains("set TMPDIR"), "{err}");
    }
}

/// Lists the devices; the program requires both libraries.
const DEVICES: &str = r#"
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
int main(void)
{
    int count = 0;
    struct ibv_device **all = ibv_get_device_list(&count);
    for (int i = 0; i < count; i++)
        puts(ibv_get_device_name(all[i]));
    return rdma_create_event_channel() == NULL;
}
"#;

/// Compiles a program.
pub(crate) fn compile(scratch: &Scratch, name: &str, source: &str, options: &[&str]) -> PathBuf {
    let file = scratch.file(name);
    let text = scratch.file(&format!("{name}.c"));
    fs::write(&text, source).expect("a directory of this test");
    let mut compiler = Command::new("cc");
    compiler.arg("-o").arg(&file).arg(text).args(options);
    assert!(compiler.status().expect("cc starts").success(), "{compiler:?}");
    file
}

// The loader searches DT_RPATH before LD_LIBRARY_PATH, and wrappers replace that variable.
#[test]
fn program_that_the_loaders_path_does_not_reach_gets_flue() {
    if lacks(&[Need::Tool("cc"), Need::Tool("ldd")]) {
        return;
    }
    let scratch = Scratch::new();
    let mut compiler = Command::new("cc");
    let (_, system, _) = run(compiler.arg("-print-file-name=libibverbs.so"));
    let system = fs::canonicalize(system.trim_end()).expect("libibverbs-dev is installed");
    let system = system.parent().expect("a directory").to_str().expect("a name").to_owned();
    let tag = format!("-Wl,--disable-new-dtags,-rpath,{system}");
    let links = ["-libverbs", "-lrdmacm"];
    let plain = compile(&scratch, "plain", DEVICES, &links);
    let rpath = compile(&scratch, "rpath", DEVICES, &[&tag, links[0], links[1]]);
    let [plain, rpath] = [&plain, &rpath].map(|file| file.to_str().expect("a name"));
    let other = format!("LD_LIBRARY_PATH={system}");
    for program in [
        &[rpath][..],
        &["env", &other, plain],
        &["env", &other, rpath],
        &["env", "LD_LIBRARY_PATH=/nowhere", plain],
        &["env", "-u", "LD_LIBRARY_PATH", plain],
    ] {
        let (output, out, err) = run(&mut launcher(&scratch, "", program));
        assert_eq!((out.as_str(), err.as_str()), ("flue0\n", ""), "{program:?}");
        assert_eq!(output.status.code(), Some(0), "{program:?}");
    }
    let (_, out, err) =
        run(launcher(&scratch, "", &["sh", "-c", "echo $LD_PRELOAD $ASAN_OPTIONS"])
            .env("LD_PRELOAD", "libc.so.6")
            .env("ASAN_OPTIONS", "verbosity=0"));
    assert!(out.starts_with("libc.so.6:/"), "{out}{err}");
    assert!(out.ends_with(" verify_asan_link_order=0:verbosity=0\n"), "{out}{err}");
}

#[test]
fn program_without_a_loader_for_the_library_is_reported() {
    if lacks(&[Need::Tool("cc")]) {
        return;
    }
    let scratch = Scratch::new();
    let text = "#include <stdio.h>\nint main(void) { puts(\"started\"); return 7; }\n";
    let file = compile(&scratch, "static", text, &["-static"]);
    let program = file.to_str().expect("a name");
    for line in [&[program][..], &[&script_of(&scratch, program)]] {
        let (output, out, err) = run(&mut launcher(&scratch, "", line));
        assert_eq!((output.status.code(), out.as_str()), (Some(7), "started\n"), "{err}");
        assert!(err.starts_with("flue: ") && err.contains("statically linked"), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
    }
    let other = compile(&scratch, "other", "int main(void) { return 0; }", &[]);
    let mut image = fs::read(&other).expect("an existing file");
    // e_machine: an unassigned value.
    image[18..20].copy_from_slice(&[0xf7, 0x7f]);
    fs::write(&other, image).expect("a file of this test");
    let (_, _, err) = run(&mut launcher(&scratch, "", &[other.to_str().expect("a name")]));
    assert!(err.contains("built for another architecture"), "{err}");
}

/// Script with `interpreter` in its first line.
fn script_of(scratch: &Scratch, interpreter: &str) -> String {
    let script = scratch.file("script");
    fs::write(&script, format!("#!{interpreter}\n")).expect("a directory of this test");
    fs::set_permissions(&script, Permissions::from_mode(0o755)).expect("a file of this test");
    script.to_str().expect("a name").to_owned()
}

// The loader ignores its variables for a program that gains privileges.
#[test]
fn program_with_file_capabilities_is_refused_to_a_user() {
    const UNPRIVILEGED_USER_ID: u32 = 65534;
    // VFS_CAP_REVISION_2 with the effective flag: CAP_NET_RAW permitted.
    const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    if lacks(&[Need::InitialRoot]) {
        return;
    }
    let scratch = Scratch::new();
    // The user may have no access to the build directory.
    let [flue, file] = ["flue", "true"].map(|name| scratch.file(name));
    fs::copy(FLUE, &flue).expect("a copied file");
    for name in ["libflue_verbs.so", PATHS_LIBRARY_FILE] {
        fs::copy(library().with_file_name(name), scratch.file(name)).expect("a copied file");
    }
    fs::copy(find_tool("true").expect("a tool of coreutils"), &file).expect("a copied file");
    setxattr(&file, "security.capability", &CAPABILITY, XattrFlags::empty())
        .expect("permitted to root");
    for (user, status) in [(0, Some(0)), (UNPRIVILEGED_USER_ID, Some(3))] {
        let mut command = Command::new(&flue);
        command.args(["run", "--"]).arg(&file).uid(user).gid(user);
        command.env("TMPDIR", scratch.file("")).env_remove("XDG_RUNTIME_DIR");
        let (output, _, err) = run(&mut command);
        assert_eq!(output.status.code(), status, "{user}: {err}");
        assert_eq!(err.contains("file capabilities"), status == Some(3), "{user}: {err}");
    }
}

#[test]
fn verbose_reports_the_use_of_the_device() {
    let scratch = Scratch::new();
    let (output, out, err) =
        run(&mut launcher(&scratch, "--verbose", &["sh", "-c", "echo out; exit 5"]));
    assert_eq!((output.status.code(), out.as_str()), (Some(5), "out\n"), "{err}");
    assert!(err.starts_with("flue: device not used: ") && err.lines().count() == 1, "{err}");
    let (output, ..) = run(&mut launcher(&scratch, "--verbose", &["sh", "-c", "kill -9 $$"]));
    assert_eq!(output.status.signal(), Some(9));
    if lacks(NEEDS) || lacks(&[Need::Tool("rping"), Need::Tool("ibv_devinfo")]) {
        return;
    }
    let (_, _, err) = run(&mut launcher(&scratch, "--verbose", &["ibv_devinfo"]));
    assert_eq!(err, "flue: device used: processes=1 queue_pairs=0 connections=0\n");
    let host = machine();
    let end = |end: &str| under_flue("--verbose", &format!("rping {end} -a 127.0.0.1 -C 1"));
    let server = Group::start(&host, end("-s"));
    assert_eq!(server.wait_for_listener(&host, 7174, LIMIT), Ok(()), "{}", server.report());
    let client = Group::start(&host, end("-c"));
    let text = ends(server, client);
    assert!(text.contains("flue: device used: processes=1 queue_pairs=1 connections=1"), "{text}");
}

#[test]
fn doctor_reports_verbs_library() {
    if lacks(&[Need::Tool("ibv_devices")]) {
        return;
    }
    let mut command = Command::new(FLUE);
    command.args(["doctor"]).env("FLUE_VERBS_LIBRARY", library());
    let (_, out, _) = run(&mut command);
    let line = out.lines().find(|line| line.contains("verbs programs:")).unwrap_or(&out).to_owned();
    assert!(line.starts_with("ok ") && line.contains("flue0"), "{line}");
    let files = "ok       files of the device: preloaded library redirects /dev/infiniband/uverbs";
    assert!(out.contains(files), "{out}");
    let scratch = Scratch::new();
    let copy = scratch.file("libflue_verbs.so");
    fs::copy(library(), &copy).expect("a copied file");
    let (_, out, _) = run(command.env("FLUE_VERBS_LIBRARY", copy));
    assert!(out.contains("missing  files of the device: library "), "{out}");
    command.env("FLUE_VERBS_LIBRARY", "/no/such/library.so");
    let (_, out, _) = run(&mut command);
    assert!(out.contains("missing  verbs programs: library /no/such/library.so"), "{out}");
}
