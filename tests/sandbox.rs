//! Sandbox of running processes: rights that they have left, calls that fail, and features that still work.
//!
//! The restrictions are those of a thread, so a thread of the test enters the sandbox and attempts each call. Running
//! nodes are examined by `/proc/PID/status`.

use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread;
use std::time::Duration;

use flue::sandbox::{self, Policy};
use flue_test_support::bench::Bench;
use flue_test_support::flue::{ORDINARY_USER_ID, Scratch, command};
use flue_test_support::needs::{Need, lacks};
use flue_test_support::netns::Namespace;
use flue_test_support::process::{Output, Process};
use rustix::fs::{XattrFlags, setxattr};
use rustix::process::{Signal, getpid};
use rustix::thread::CapabilitySet;

const FLUE: &str = env!("CARGO_BIN_EXE_flue");
const NEEDS: &[Need] =
    &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("nft"), Need::Tool("unshare")];
const LIMIT: Duration = Duration::from_secs(60);
/// Data that a node sends in GSO packets.
const LARGE_BYTES: usize = 1 << 20;

/// Runs `work` on a thread in a sandbox. Returns `None` if the kernel has no filter of system calls.
fn inside<T: Send>(policy: Policy<'_>, work: impl FnOnce() -> T + Send) -> Option<T> {
    if sandbox::seccomp_support().is_err() {
        println!("skipped: the kernel has no filter of system calls");
        return None;
    }
    thread::scope(|scope| {
        let inside = scope.spawn(|| {
            sandbox::enter(policy);
            work()
        });
        Some(inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

fn is_denied<T>(result: std::io::Result<T>) -> bool {
    result.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

/// Returns the error of a system call without arguments, or with harmless ones.
fn errno_of(call: libc::c_long, arguments: [i64; 4]) -> Option<i32> {
    let [a, b, c, d] = arguments;
    // SAFETY: no argument is a pointer that the kernel could write to: each is null or a number.
    let returned = unsafe { libc::syscall(call, a, b, c, d, -1_i64, 0_i64) };
    (returned == -1).then(|| std::io::Error::last_os_error().raw_os_error()).flatten()
}

#[test]
fn node_cannot_open_execute_or_connect() {
    let scratch = Scratch::new();
    let (own, other) = (scratch.file("own"), Scratch::new());
    fs::create_dir(&own).unwrap();
    let (socket, file) = (own.join("flue.sock"), other.file("file"));
    for path in [&socket, &file] {
        fs::write(path, "x").unwrap();
    }
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = port.local_addr().unwrap();
    let unix = UnixListener::bind(other.file("unix")).unwrap();
    let has_landlock = sandbox::landlock_support().is_ok();
    let opened = File::open(&file).unwrap();
    let denied = inside(Policy::Node { control: Some(&socket) }, || {
        let denied = [
            ("open", is_denied(File::open(&file))),
            ("create", is_denied(File::create(other.file("new")))),
            ("rename", is_denied(fs::rename(&file, other.file("moved")))),
            ("chmod", is_denied(fs::set_permissions(&file, Permissions::from_mode(0o777)))),
            ("remove", is_denied(fs::remove_file(&file)) || !has_landlock),
            ("start", is_denied(Command::new("true").status())),
            ("exec", is_denied(Err::<(), _>(Command::new("/bin/true").exec()))),
            ("udp", is_denied(UdpSocket::bind("127.0.0.1:0"))),
            ("listen", is_denied(TcpListener::bind("127.0.0.1:0"))),
            ("connect", is_denied(TcpStream::connect(address))),
            ("unix", is_denied(UnixStream::connect(other.file("unix")))),
        ];
        let pid = i64::from(getpid().as_raw_nonzero().get());
        let readable = i64::from(libc::PROT_READ);
        let executable = i64::from(libc::PROT_READ | libc::PROT_EXEC);
        let anonymous = i64::from(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let calls = [
            (libc::SYS_ptrace, [-1, 0, 0, 0]),
            (libc::SYS_kill, [pid, 0, 0, 0]),
            (libc::SYS_bpf, [-1, 0, 0, 0]),
            (libc::SYS_io_uring_setup, [0, 0, 0, 0]),
            (libc::SYS_keyctl, [-1, 0, 0, 0]),
            (libc::SYS_unshare, [0, 0, 0, 0]),
            (libc::SYS_setns, [-1, 0, 0, 0]),
            (libc::SYS_mount, [0, 0, 0, 0]),
            (libc::SYS_mmap, [0, 4096, executable, anonymous]),
            (libc::SYS_mmap, [0, 4096, readable, i64::from(libc::MAP_SHARED)]),
            (libc::SYS_bind, [-1, 0, size_of::<libc::sockaddr_un>() as i64, 0]),
            (libc::SYS_seccomp, [-1, 0, 0, 0]),
        ];
        let calls = calls.map(|(call, arguments)| (call, errno_of(call, arguments)));
        let clone3 = errno_of(libc::SYS_clone3, [0, 0, 0, 0]);
        // Calls that a node makes after its start.
        let mut octet = [0];
        (&opened).read_exact(&mut octet).unwrap();
        let (mut left, mut right) = UnixStream::pair().unwrap();
        left.write_all(&octet).unwrap();
        right.read_exact(&mut octet).unwrap();
        assert_eq!(thread::spawn(move || octet).join().unwrap(), *b"x");
        fs::remove_file(&socket).unwrap();
        (denied, calls, clone3)
    });
    let Some((denied, calls, clone3)) = denied else { return };
    for (name, is_denied) in denied {
        assert!(is_denied, "{name}");
    }
    for (call, errno) in calls {
        assert_eq!(errno, Some(libc::EPERM), "system call {call}");
    }
    assert_eq!(clone3, Some(libc::ENOSYS), "the C library uses clone instead");
    assert_eq!((socket.exists(), file.exists()), (false, true));
    drop(unix);
}

#[test]
fn node_on_kernel_sockets_opens_ip_sockets_only() {
    let scratch = Scratch::new();
    let path = scratch.file("unix");
    let _unix = UnixListener::bind(&path).unwrap();
    let found = inside(Policy::Sockets { control: None }, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connected = TcpStream::connect(listener.local_addr().unwrap());
        let accepted = listener.accept();
        UdpSocket::bind("[::1]:0").or_else(|_| UdpSocket::bind("127.0.0.1:0")).unwrap();
        (connected.is_ok(), accepted.is_ok(), UnixStream::connect(&path), File::open("/dev/null"))
    });
    let Some((connected, accepted, unix, file)) = found else { return };
    assert!(connected && accepted && is_denied(unix) && is_denied(file));
}

#[test]
fn launcher_reads_but_does_not_write() {
    let scratch = Scratch::new();
    let (path, left) = (scratch.file("file"), scratch.file("left"));
    fs::create_dir(&left).unwrap();
    fs::write(left.join("file"), "x").unwrap();
    let found = inside(Policy::Launcher, || {
        fs::remove_dir_all(&left).unwrap();
        let read = fs::read_link(format!("/proc/{}/fd/0", std::process::id()));
        let started = Command::new("true").status();
        (
            read,
            File::create(&path),
            File::open("/proc/self/status"),
            started,
            UdpSocket::bind("127.0.0.1:0"),
        )
    });
    let Some((read, created, opened, started, socket)) = found else { return };
    assert!(read.is_ok() && opened.is_ok());
    assert!(is_denied(created) && is_denied(started) && is_denied(socket));
    assert!(!left.exists());
}

// In the sandbox, the kernel refuses each further restriction, as a kernel or container without support does.
#[test]
fn refused_restriction_is_skipped() {
    let policy = Policy::Node { control: None };
    let opened = inside(policy, || {
        sandbox::enter(Policy::Sockets { control: None });
        is_denied(File::open("/dev/null"))
    });
    assert_ne!(opened, Some(false));
}

/// Asserts the rights of each thread of a process: capabilities, and the sandbox.
fn assert_rights(pid: u32, capabilities: CapabilitySet, is_restricted: bool) {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut count = 0;
    for task in tasks {
        let text = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let of = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            line.unwrap_or_else(|| panic!("{key}: {text}")).trim().to_owned()
        };
        let set = format!("{:016x}", capabilities.bits());
        if is_restricted {
            for key in ["CapEff", "CapPrm"] {
                assert_eq!(of(key), set, "{key}: {text}");
            }
            assert_eq!((of("CapInh"), of("CapAmb")), ("0".repeat(16), "0".repeat(16)), "{text}");
        }
        let expected = if is_restricted { ["1", "2"] } else { ["0", "0"] };
        assert_eq!([of("NoNewPrivs"), of("Seccomp")], expected, "{text}");
        count += 1;
    }
    assert!(count > 0);
}

#[test]
fn node_has_no_rights_and_works() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new(FLUE);
    let trace = bench.runtime.file("trace.csv");
    let options = format!("--tx-page-recycling on --tcp-trace {}", trace.display());
    let mut flue = bench.listen(&options, Output::Bytes);
    assert_rights(flue.id(), CapabilitySet::empty(), true);
    let mut socket = bench.connect();
    bench.expect("", |one| one["offload_state"] == "Offloaded");
    let capture = bench.runtime.file("capture.pcapng");
    let started = bench.run_once(&format!("capture start {}", capture.display()));
    assert_eq!(started.status, Some(0), "{}", started.err);
    let peer = socket.local_addr().unwrap();
    for (command, state) in [("upload", "InHost"), ("offload", "Offloaded")] {
        let moved = bench.run_once(&format!("{command} {peer}"));
        assert_eq!(moved.status, Some(0), "{command}: {}", moved.err);
        bench.expect("", |one| one["offload_state"] == state);
    }
    socket.write_all(b"data").unwrap();
    bench.expect("", |one| one["info"]["bytes_received"] == 4);
    // Large frames: the packet socket that recycles their pages is bound now.
    let mut input = flue.take_input();
    input.write_all(&[7; LARGE_BYTES]).unwrap();
    socket.read_exact(&mut [0; LARGE_BYTES]).unwrap();
    let sockets = fs::read_to_string(format!("/proc/{}/net/packet", flue.id())).unwrap();
    // Columns: sk, RefCnt, Type, Proto, Iface, R.
    let is_bound = |line: &str| line.split_whitespace().nth(5) == Some("1");
    assert_eq!(sockets.lines().skip(1).map(is_bound).collect::<Vec<_>>(), [true], "{sockets}");
    let stopped = bench.run_once("capture stop");
    assert_eq!(stopped.status, Some(0), "{}", stopped.err);
    assert!(fs::metadata(&capture).unwrap().len() > 100, "{}", stopped.out);
    drop((socket, input));
    flue.expect_exit(0, LIMIT);
    assert!(fs::metadata(trace).unwrap().len() > 100);
    assert!(bench.sockets().is_empty(), "{:?}", bench.sockets());
}

#[test]
fn sandbox_off_keeps_rights() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new(FLUE);
    let flue = bench.listen("--sandbox off", Output::Lines);
    assert_rights(flue.id(), CapabilitySet::empty(), false);
}

/// Returns the only child of a process.
fn child_of(pid: u32) -> u32 {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.trim().parse().unwrap_or_else(|_| panic!("{pid}: {children}"))
}

#[test]
fn launcher_is_restricted_and_its_program_is_not() {
    if lacks(NEEDS) {
        return;
    }
    let (host, scratch) = (Namespace::new(), Scratch::new());
    let library = std::env::current_exe().unwrap().with_file_name("libflue_verbs.so");
    let line = format!(
        "run --tap tap0 --addr 10.0.0.2/24 --host-addr 10.0.0.1/24 --library {} -- sh",
        library.display()
    );
    let mut run = command(FLUE, &line);
    run.args(["-c", "echo started; read line; exit 7"]).env("XDG_RUNTIME_DIR", scratch.file(""));
    let mut front = Process::start(&host, run, Output::Lines);
    front.expect_line("started", LIMIT);
    // The program may start before its parents enter the sandbox; they enter it before they forward a signal.
    let monitor = child_of(front.id());
    let program = child_of(monitor);
    front.signal(Signal::STOP);
    front.signal(Signal::CONT);
    let has_entered = |pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status.lines().any(|line| line.starts_with("Seccomp:") && line.ends_with('2'))
            && fs::read_dir(format!("/proc/{pid}/task")).unwrap().count() > 1
    };
    let deadline = std::time::Instant::now() + LIMIT;
    while ![front.id(), monitor].into_iter().all(has_entered) {
        assert!(std::time::Instant::now() < deadline, "not in the sandbox");
        thread::yield_now();
    }
    for parent in [front.id(), monitor] {
        assert_rights(parent, CapabilitySet::KILL | CapabilitySet::SYS_PTRACE, true);
    }
    assert_rights(program, CapabilitySet::empty(), false);
    drop(front.take_input());
    front.expect_exit(7, LIMIT);
}

// With the capability of the file, a user without privileges runs a node on a TAP in a namespace of the machine.
#[test]
fn file_capability_replaces_root() {
    // VFS_CAP_REVISION_2 with the effective flag: CAP_NET_ADMIN permitted.
    const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    if lacks(NEEDS) || lacks(&[Need::InitialRoot]) {
        return;
    }
    let (host, scratch) = (Namespace::new(), Scratch::new());
    let (file, runtime) = (scratch.file("flue"), scratch.file("runtime"));
    fs::copy(FLUE, &file).unwrap();
    setxattr(&file, "security.capability", &CAPABILITY, XattrFlags::empty()).unwrap();
    fs::create_dir(&runtime).unwrap();
    chown(&runtime, Some(ORDINARY_USER_ID), Some(ORDINARY_USER_ID)).unwrap();
    let mut nc = command(&file, "nc -l 5000 --tap tap0 --addr 10.0.0.2/24 --host-addr 10.0.0.1/24");
    nc.uid(ORDINARY_USER_ID).gid(ORDINARY_USER_ID).env("XDG_RUNTIME_DIR", &runtime);
    let mut flue = Process::start(&host, nc, Output::Bytes);
    flue.expect_line("listening", LIMIT);
    assert_rights(flue.id(), CapabilitySet::empty(), true);
    let mut socket = host.run(|| TcpStream::connect("10.0.0.2:5000")).unwrap();
    socket.write_all(b"data").unwrap();
    drop((socket, flue.take_input()));
    let mut received = String::new();
    flue.take_output().read_to_string(&mut received).unwrap();
    assert_eq!(received, "data");
    flue.expect_exit(0, LIMIT);
}

/// Starts a node whose runtime directory `script` prepares in a mount namespace; returns its log.
fn log_of_node_with_runtime(prepare: &str, scratch: &Scratch) -> Vec<String> {
    let host = Namespace::new();
    let node = "nc -l 5000 --tap tap0 --addr 10.0.0.2/24 --host-addr 10.0.0.1/24";
    let script = format!("cd \"$XDG_RUNTIME_DIR\" && {prepare} && exec {FLUE} {node}");
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "--", "sh", "-c", &script]).env("XDG_RUNTIME_DIR", scratch.file(""));
    let mut flue = Process::start(&host, shell, Output::Lines);
    flue.expect_line("listening", LIMIT);
    flue.log().to_vec()
}

#[test]
fn node_runs_without_a_usable_runtime_directory() {
    if lacks(NEEDS) || lacks(&[Need::InitialRoot]) {
        return;
    }
    for (prepare, problem) in [
        // Its root and one directory.
        (
            "mount -t tmpfs -o nr_inodes=2,mode=700 none . && cd \"$XDG_RUNTIME_DIR\"",
            "No space left on device",
        ),
        ("mkdir -m 700 flue && chown 65534 flue", "owner is user 65534, expected 0"),
        ("ln -s \"$PWD\" flue", "not a directory"),
    ] {
        let scratch = Scratch::new();
        let log = log_of_node_with_runtime(prepare, &scratch).join("\n");
        assert!(
            log.contains("control socket: disabled") && log.contains(problem),
            "{prepare}: {log}"
        );
    }
}
