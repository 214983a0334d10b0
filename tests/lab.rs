//! `flue lab`, whose demonstration is also a test: two adapters, a migration, Send, Write and Read, with every field
//! checked by Wireshark.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flue_test_support::capture;
use flue_test_support::flue::{Scratch, as_ordinary_user, command};
use flue_test_support::needs::{Need, lacks};
use flue_test_support::netns::Namespace;
use flue_test_support::process::{Output, Process};
use flue_test_support::stream::Stream;
use flue_test_support::tshark::{self, Conversation, opcode};
use serde_json::Value;

const FLUE: &str = env!("CARGO_BIN_EXE_flue");
const NEEDS: &[Need] = &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("unshare")];
const LIMIT: Duration = Duration::from_secs(300);
/// Bytes of the transferred files in runs that Wireshark checks.
const FILE_BYTES: usize = 3_000_001;
const FILE_SEED: u64 = 11;
/// Maximum runs of the lab until one capture has no Wireshark remark.
const RUNS_MAX: usize = 12;

/// Serializes the labs: nodes that are not scheduled in time treat the delay as loss.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// File to transfer, with fixed contents.
fn payload(scratch: &Scratch) -> PathBuf {
    let file = scratch.file("payload");
    let mut bytes = vec![0; FILE_BYTES];
    Stream::new(FILE_SEED).fill(&mut bytes);
    std::fs::write(&file, &bytes).unwrap();
    file
}

/// Lab command that writes its files to `scratch`.
fn lab(scratch: &Scratch, options: &str) -> Command {
    let (file, capture) = (payload(scratch), scratch.file("lab.pcapng"));
    let fixed = format!("lab --file {} --pcap {}", file.display(), capture.display());
    command(FLUE, &format!("{fixed} {options}"))
}

/// Runs the command to its end in its own namespace, which must have no links afterward.
fn run(command: Command) -> String {
    let _turn = turn();
    let host = Namespace::new();
    let mut lab = Process::start(&host, command, Output::Lines);
    lab.expect_exit(0, LIMIT);
    assert!(host.links().is_empty(), "links not removed by the lab: {:?}", host.links());
    lab.all_lines(LIMIT)
}

#[test]
fn lab_runs_as_root() {
    if !lacks(NEEDS) {
        let said = run(lab(&Scratch::new(), "-v"));
        for text in ["as root", "Offloaded", "A  connecting to", "# A: seed"] {
            assert!(said.contains(text), "{text}: {said}");
        }
    }
}

#[test]
fn lab_runs_as_ordinary_user() {
    if lacks(NEEDS) || lacks(&[Need::InitialRoot, Need::Tool("setpriv")]) {
        return;
    }
    let scratch = Scratch::new();
    payload(&scratch);
    let arguments = "lab --file payload --pcap lab.pcapng";
    let said = run(as_ordinary_user(&scratch, Path::new(FLUE), arguments));
    assert!(said.contains("through a user namespace"), "{said}");
    check_capture(&scratch.file("lab.pcapng"));
}

#[test]
fn json_is_one_document_and_nothing_else() {
    if lacks(NEEDS) {
        return;
    }
    let (host, scratch, _turn) = (Namespace::new(), Scratch::new(), turn());
    let (file, capture) = (payload(&scratch), scratch.file("lab.pcapng"));
    let [file, capture] = [file, capture].map(|path| path.display().to_string());
    let arguments = ["lab", "--json", "--seed", "5", "--file", &file, "--pcap", &capture];
    let output = host.output(FLUE, &arguments);
    let document: Value =
        serde_json::from_str(&output).expect("one JSON document on standard output");
    assert_eq!(document["schema"], "flue.lab/1");
    assert_eq!(document["ok"], true);
    assert_eq!(document["exit_status"], 0);
    assert_eq!(document["error"], Value::Null);
    assert!(document["config"].is_object() && document["result"].is_object(), "{document:#}");
    let operations = document["result"]["operations"].as_array().expect("a list");
    let told: Vec<_> = operations.iter().map(|one| one["operation"].as_str().unwrap()).collect();
    assert_eq!(told, ["send", "write", "read"]);
    for operation in operations {
        assert_eq!(operation["bytes"], FILE_BYTES);
        assert_eq!(operation["offload_state"], "Offloaded");
        // Segments hold at most 1448 octets, FPDU headers included.
        assert!(operation["segments"].as_u64().unwrap() > FILE_BYTES as u64 / 1448);
        assert!(operation["psh_segments"].as_u64().unwrap() > 0);
    }
}

#[test]
fn file_is_transferred_completely() {
    if lacks(NEEDS) {
        return;
    }
    let scratch = Scratch::new();
    let said = run(lab(&scratch, ""));
    let digest = Stream::new(FILE_SEED).digest(FILE_BYTES as u64);
    let hex: String = digest.sha256.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(said.contains(&hex), "digest {hex} not in the lab's output:\n{said}");
    // A table of three transfers and five lines. The events are printed with -v only.
    let lines = said.lines().filter(|line| !line.trim().is_empty()).count();
    assert!(lines == 4 + 5 && !said.contains("connecting to"), "{lines} lines:\n{said}");
}

#[test]
fn wireshark_sees_a_clean_conversation_field_by_field() {
    if lacks(NEEDS) || lacks(&[Need::Tool("tshark")]) {
        return;
    }
    let scratch = Scratch::new();
    run_clean(&scratch, "--seed 5 --vnet off");
    check_capture(&scratch.file("lab.pcapng"));
}

#[test]
fn wireshark_sees_the_same_in_gso_packets() {
    if lacks(NEEDS) || lacks(&[Need::Tool("tshark")]) {
        return;
    }
    let scratch = Scratch::new();
    run_clean(&scratch, "--seed 5 --vnet on");
    check_capture(&scratch.file("lab.pcapng"));
}

/// Runs the lab until Wireshark reports no remark, at most [`RUNS_MAX`] times. When a node is not scheduled for more
/// than 10 ms, its peer correctly sends a tail loss probe (RFC 8985 §7).
fn run_clean(scratch: &Scratch, options: &str) {
    for _ in 0..RUNS_MAX {
        run(lab(scratch, options));
        if tshark::faults(&scratch.file("lab.pcapng"), &[]).is_empty() {
            return;
        }
    }
}

/// Checks RFC 5044 §7.1 and RFC 6581 §9: MPA revision 2 with S, no markers, CRC; then the order of all operations.
fn check_capture(file: &Path) {
    tshark::assert_clean(file, &[]);
    let frames = capture::read(file).unwrap();
    assert_eq!(capture::segments(&frames), tshark::segments(file));
    let commented = frames.iter().filter(|frame| !frame.comments.is_empty()).count();
    assert!(commented > 0, "no packet comment of a net buffer list");
    let pdus = tshark::pdus(file);
    tshark::assert_crcs_good(&pdus);
    let Conversation { request, reply, initiator, responder } = &Conversation::of(&pdus, 0);
    for startup in [request, reply] {
        assert_eq!((startup.revision, startup.enhanced), (2, true));
        assert!(startup.crc && !startup.markers && !startup.reject);
        assert!(
            startup.private_data.len() >= 4,
            "private data shorter than four octets, RFC 6581 §9.1"
        );
    }
    Conversation::of(&pdus, 0).assert_orderly();
    let all = [Conversation::opcodes(initiator), Conversation::opcodes(responder)].concat();
    for wanted in [opcode::SEND, opcode::WRITE, opcode::READ_REQUEST, opcode::READ_RESPONSE] {
        assert!(all.contains(&wanted), "the lab did not use opcode {wanted}: {all:?}");
    }
    assert!(!all.contains(&opcode::TERMINATE), "a Terminate was sent");
}
