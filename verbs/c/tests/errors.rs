//! Errors that programs get, and behavior that they rely on: C programs that use the library, over kernel sockets of
//! the loopback interface.
//!
//! Requires `cc` and the headers of libibverbs and librdmacm. Without them the tests are skipped, but fail in CI.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use flue_verbs_abi::settings::{self, LIBRARY_FILE, LIBRARY_NAMES};

/// Returns the path of the library, which cargo builds with this test.
fn library() -> PathBuf {
    let test = env::current_exe().unwrap();
    test.parent().unwrap().join(LIBRARY_FILE)
}

/// Creates a directory with the library under its names.
fn names(directory: &Path) -> PathBuf {
    let names = directory.join("lib");
    let _ = fs::remove_dir_all(&names);
    fs::create_dir_all(&names).unwrap();
    for name in LIBRARY_NAMES {
        symlink(library(), names.join(name)).unwrap();
    }
    names
}

/// Compiles a program and runs it in a separate directory, with arguments and variables.
fn run(name: &str, arguments: &[&str], variables: &[(&str, &str)]) {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let directory = directory.join([&[name][..], arguments].concat().join("-"));
    let (names, program) = (names(&directory), directory.join(name));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name).with_extension("c");
    let compiled = Command::new("cc")
        .args(["-Wall", "-Werror", "-o"])
        .arg(&program)
        .arg(&source)
        // A program that is linked to neither library has no reference to them. Functions that a program replaces are
        // exported to the library.
        .args(["-Wl,--as-needed", "-rdynamic", "-libverbs", "-lrdmacm", "-lpthread"])
        .output();
    match compiled {
        Ok(compiled) if compiled.status.success() => {}
        other => {
            let told = other.map(|it| String::from_utf8_lossy(&it.stderr).into_owned());
            assert!(env::var("CI").as_deref() != Ok("true"), "in CI no test is skipped: {told:?}");
            println!("skipped: the C program cannot be compiled: {told:?}");
            return;
        }
    }
    let mut timed = Command::new("timeout");
    timed.arg("60").arg(&program).args(arguments).env("LD_LIBRARY_PATH", &names);
    let ran = timed.envs(variables.iter().copied()).output().unwrap();
    let told = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{told}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(told.ends_with("0 failures\n"), "{told}");
}

#[test]
fn errors_and_guarantees() {
    run("errors", &[], &[]);
}

#[test]
fn write_with_immediate_data() {
    run("errors", &["write-immediate"], &[(settings::RFC7306, "on")]);
}

// The main thread destroys an event channel and exits while another thread reads it.
#[test]
fn destroyed_event_channel_fails_reader() {
    run("errors", &["channels"], &[]);
}

#[test]
fn loaded_by_the_program() {
    run("loaded", &[], &[]);
}

// `ibv_wr_complete` posts all requests or none.
#[test]
fn batches_of_requests() {
    run("errors", &["batches"], &[]);
}

#[test]
fn as_many_writes_with_immediate_data_as_of_other_requests() {
    run("errors", &["many-writes-immediate"], &[(settings::RFC7306, "on")]);
}

// Every kind of panic of the library, with threads that wait for events.
#[test]
fn panic_ends_device() {
    for place in ["call", "core", "thread"] {
        run("device", &[place], &[]);
    }
}

#[test]
fn rsockets() {
    run("rsockets", &[], &[]);
}

#[test]
fn signals_and_timers_reach_the_program_only() {
    run("guest", &["signals"], &[]);
}

#[test]
fn child_of_a_process_that_listens_goes_on_listening() {
    for how in ["prompt", "exit", "alive", "double", "polled", "epoll", "bound", "rsocket"] {
        run("guest", &[how], &[]);
    }
}

#[test]
fn child_of_a_process_with_a_connection_waits_for_nothing() {
    run("guest", &["connected"], &[]);
}

#[test]
fn closed_descriptors_of_the_library_are_not_used_for_files_of_the_program() {
    run("guest", &["closed"], &[]);
}

// The device is lost; a debug build does not abort.
#[test]
fn files_of_the_program_under_numbers_of_the_library_are_left_alone() {
    run("guest", &["lost"], &[]);
}

// From the three standard descriptors to enough for a listener: EMFILE, and no call that hangs.
#[test]
fn calls_without_a_descriptor_left_fail_with_emfile() {
    run("guest", &["limits"], &[]);
}

#[test]
fn accept_after_the_requester_has_left_flushes_receives() {
    run("guest", &["leaves"], &[]);
}

// Packed structures, and identifiers whose events another thread takes.
#[test]
fn structures_at_any_address_and_complete_identifiers() {
    run("structures", &[], &[]);
}

// Strangers at the port of a queue pair occupy bounded memory, and do not keep its peer away. The child of a fork has
// no connection.
#[test]
fn port_of_queue_pairs_serves_their_peers() {
    for test in ["strangers", "forked"] {
        run("rendezvous", &[test], &[(settings::DEVICE, "roce")]);
    }
}

#[test]
fn ports_of_queue_pairs_are_in_the_range() {
    let range = [(settings::DEVICE, "roce"), (settings::RENDEZVOUS_PORTS, "17400-17402")];
    run("rendezvous", &["ports"], &range);
}

/// Runs tests of queue pairs that the program connects itself.
fn connect(tests: &[&str]) {
    run("connect", tests, &[(settings::DEVICE, "roce")]);
}

#[test]
fn roce_device_has_gids_and_checks_each_change_of_a_queue_pair() {
    connect(&["identity", "refused", "last-receive"]);
}

// In one process and in one thread: no call waits for the peer.
#[test]
fn queue_pairs_connected_by_the_program() {
    connect(&["pair", "srq", "itself", "early", "not-ready", "drained", "identifiers", "forked"]);
    connect(&["windows", "timer"]);
}

/// Runs tests of queue pairs of type UD.
fn datagrams(tests: &[&str]) {
    run("datagrams", tests, &[(settings::DEVICE, "roce")]);
}

#[test]
fn datagrams_follow_the_states_of_their_queue_pair() {
    datagrams(&["states"]);
}

#[test]
fn datagrams_between_queue_pairs() {
    datagrams(&["messages", "dropped", "built", "events", "many"]);
}

#[test]
fn more_queue_pairs_than_numbers_of_one_port() {
    connect(&["many"]);
}

#[test]
fn errors_of_queue_pairs_connected_by_the_program() {
    connect(&["errors"]);
}

// Silence for the whole budget, then one error. The program advances the clock.
#[test]
fn absent_peers_of_queue_pairs_connected_by_the_program() {
    connect(&["absent"]);
}
