//! Output options, which are shared by all commands, each tested with each command.

use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};

use flue_test_support::bench::{Bench, START};
use flue_test_support::process::Output;
use serde_json::Value;

use crate::table::{ALL, rows};

rows! { ALL;
    "--quiet" => quiet;
    "--verbose" => verbose;
    "--trace" => trace;
    "--json" => json;
    "--sandbox" => sandbox;
}

/// Standard output, standard error and exit status of a client.
struct CommandOutput {
    out: String,
    err: String,
    status: Option<i32>,
}

/// Runs a client on node 2 to its end.
fn client(bench: &Bench, line: &str) -> CommandOutput {
    let mut client = bench.start(&format!("{line} {}", Bench::attached(2)), Output::Bytes);
    drop(client.take_input());
    let mut out = String::new();
    client.take_output().read_to_string(&mut out).expect("flue writes UTF-8");
    let status = client.wait(START).code();
    CommandOutput { out, err: client.all_lines(START), status }
}

/// Runs a client of each command with these options against a server; all exit with 0.
fn each(bench: &Bench, options: &str) -> [CommandOutput; 3] {
    let listener = bench.kernel.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))).unwrap();
    let port = listener.local_addr().unwrap().port();
    let accepted = std::thread::spawn(move || listener.accept().map(drop));
    let nc = client(bench, &format!("nc 10.0.0.1 {port} {options}"));
    accepted.join().unwrap().unwrap();
    let served = |server: &str, line: &str| {
        let mut server = bench.start(&format!("{server} {}", Bench::attached(3)), Output::Lines);
        server.expect_line("listening", START);
        let told = client(bench, &format!("{line} {options}"));
        server.expect_exit(0, START);
        told
    };
    let rping = served("rping -s", "rping -c -a 10.0.0.3 -C 2 -v");
    let perf = served("perf tcp-bw -1", "perf tcp-bw -n 10 -O 0 10.0.0.3");
    let told = [nc, rping, perf];
    for CommandOutput { out, err, status } in &told {
        assert_eq!(*status, Some(0), "{options}: {out}{err}");
    }
    told
}

/// True, for each of the three, if standard error contains the word.
fn contain(told: &[CommandOutput; 3], word: &str) -> [bool; 3] {
    told.each_ref().map(|told| told.err.contains(word))
}

fn quiet(bench: &Bench) {
    let loud = each(bench, "");
    assert_eq!(contain(&loud, "# tap: tap2"), [true; 3], "the configuration");
    let quiet = each(bench, "--quiet");
    for CommandOutput { err, .. } in &quiet {
        assert_eq!(err, "");
    }
    let [nc, rping, perf] = &quiet;
    assert_eq!((nc.out.as_str(), rping.out.lines().count()), ("", 2), "{}", rping.out);
    assert!(perf.out.contains("iterations"), "{}", perf.out);
}

fn verbose(bench: &Bench) {
    assert_eq!(contain(&each(bench, ""), "DEBUG"), [false; 3]);
    let verbose = each(bench, "--verbose");
    assert_eq!(contain(&verbose, "DEBUG"), [true; 3]);
}

fn trace(bench: &Bench) {
    let frames = ["sent ", "received "].map(|word| format!("{word}66 bytes: EthernetII "));
    let trace = each(bench, "--trace");
    for word in frames.iter().map(String::as_str).chain(["; TCP src=", "; ARP type=", "TRACE"]) {
        assert_eq!(contain(&trace, word), [true; 3], "{word}: {}", trace[0].err);
    }
    assert_eq!(contain(&each(bench, "--verbose"), "TRACE"), [false; 3]);
}

fn json(bench: &Bench) {
    let parse = |text: &str| -> Value {
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
    };
    let [nc, rping, perf] = each(bench, "--json");
    assert_eq!(nc.out, "", "standard output carries the data only");
    let documents = [&nc.err, &rping.out, &perf.out].map(|text| parse(text));
    assert_eq!(documents[0]["result"]["sent_bytes"], 0);
    assert_eq!(documents[1]["result"]["pings"], 2);
    assert_eq!(documents[2]["result"]["measurements"][0]["iterations"], 10);
    // Also if the run fails: nothing listens on that port.
    let lines = [
        "nc 10.0.0.1 9 --json",
        "rping -c -a 10.0.0.1 -p 9 -C 1 --json",
        "perf tcp-bw 10.0.0.1 -p 9 -n 1 --json",
    ];
    for line in lines {
        let told = client(bench, line);
        let document = parse(if line.starts_with("nc") { &told.err } else { &told.out });
        assert!(!document["error"].is_null() && told.status == Some(1), "{line}: {document}");
    }
}

// tests/sandbox.rs attempts the denied calls.
fn sandbox(bench: &Bench) {
    for (value, expected) in [("on", "Seccomp:\t2"), ("off", "Seccomp:\t0")] {
        for command in ["nc -l 5000", "rping -s", "perf write-bw"] {
            let line = format!("{command} {} --sandbox {value}", Bench::attached(2));
            let mut node = bench.start(&line, Output::Lines);
            node.expect_line("listening", START);
            let status = fs::read_to_string(format!("/proc/{}/status", node.id())).expect("runs");
            assert!(status.lines().any(|line| line == expected), "{line}: {status}");
        }
    }
}
