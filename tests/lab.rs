//! `flue lab`: the demonstration is a test. Two adapters, a hand-over, Send, Write and Read, and
//! Wireshark agreeing with every field.

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
/// Bytes of the files that Wireshark looks at.
const FILE_BYTES: usize = 3_000_001;
const FILE_SEED: u64 = 11;
/// Runs that the lab has, to show a capture without a remark.
const TRIES: usize = 12;

/// One lab after the other: where nodes wait for a processor they take that for loss, and rightly.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file to pass, the same each time.
fn payload(scratch: &Scratch) -> PathBuf {
    let file = scratch.file("payload");
    let mut bytes = vec![0; FILE_BYTES];
    Stream::new(FILE_SEED).fill(&mut bytes);
    std::fs::write(&file, &bytes).unwrap();
    file
}

/// The lab with what it writes in `scratch`.
fn lab(scratch: &Scratch, options: &str) -> Command {
    let (file, capture) = (payload(scratch), scratch.file("lab.pcapng"));
    let fixed = format!("lab --file {} --pcap {}", file.display(), capture.display());
    command(FLUE, &format!("{fixed} {options}"))
}

/// Runs it to its end in a namespace of its own, which must be as empty afterwards.
fn run(command: Command) -> String {
    let _turn = turn();
    let host = Namespace::new();
    let mut lab = Process::start(&host, command, Output::Lines);
    lab.expect_exit(0, LIMIT);
    assert!(host.links().is_empty(), "the lab leaves {:?}", host.links());
    lab.all_lines(LIMIT)
}

#[test]
fn it_runs_as_root() {
    if !lacks(NEEDS) {
        let said = run(lab(&Scratch::new(), "-v"));
        assert!(said.contains("as root") && said.contains("Offloaded"), "{said}");
    }
}

#[test]
fn it_runs_as_an_ordinary_user() {
    if lacks(NEEDS) || lacks(&[Need::InitialRoot, Need::Tool("setpriv")]) {
        return;
    }
    let scratch = Scratch::new();
    payload(&scratch);
    let arguments = "lab --file payload --pcap lab.pcapng";
    let said = run(as_ordinary_user(&scratch, Path::new(FLUE), arguments));
    assert!(said.contains("through a user namespace"), "{said}");
    judge(&scratch.file("lab.pcapng"));
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
    let document: Value = serde_json::from_str(&output).expect("standard output is one document");
    assert_eq!(document["schema"], "flue.lab");
    assert_eq!(document["schema_version"], 1);
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
        // Of 1448 octets each, with the headers of FPDUs among them.
        assert!(operation["segments"].as_u64().unwrap() > FILE_BYTES as u64 / 1448);
        assert!(operation["psh_segments"].as_u64().unwrap() > 0);
    }
}

#[test]
fn a_file_goes_over_whole() {
    if lacks(NEEDS) {
        return;
    }
    let scratch = Scratch::new();
    let said = run(lab(&scratch, ""));
    let digest = Stream::new(FILE_SEED).digest(FILE_BYTES as u64);
    let hex: String = digest.sha256.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(said.contains(&hex), "the lab does not tell the file's digest {hex}:\n{said}");
}

#[test]
fn wireshark_sees_a_clean_conversation_field_by_field() {
    if lacks(NEEDS) || lacks(&[Need::Tool("tshark")]) {
        return;
    }
    let scratch = Scratch::new();
    run_clean(&scratch, "--seed 5 --vnet off");
    judge(&scratch.file("lab.pcapng"));
}

#[test]
fn wireshark_sees_the_same_in_super_segments() {
    if lacks(NEEDS) || lacks(&[Need::Tool("tshark")]) {
        return;
    }
    let scratch = Scratch::new();
    run_clean(&scratch, "--seed 5 --vnet on");
    judge(&scratch.file("lab.pcapng"));
}

/// Runs until Wireshark has nothing to say, at most [`TRIES`] times: when a machine keeps a node from its
/// processor for more than 10 ms its peer's TCP probes, and rightly so (RFC 8985 §7).
fn run_clean(scratch: &Scratch, options: &str) {
    for _ in 0..TRIES {
        run(lab(scratch, options));
        if tshark::faults(&scratch.file("lab.pcapng"), &[]).is_empty() {
            return;
        }
    }
}

/// RFC 5044 §7.1, RFC 6581 §9: revision 2 with S, no markers, CRC; then everything in order.
fn judge(file: &Path) {
    tshark::assert_clean(file, &[]);
    let frames = capture::read(file).unwrap();
    assert_eq!(capture::segments(&frames), tshark::segments(file));
    let commented = frames.iter().filter(|frame| !frame.comments.is_empty()).count();
    assert!(commented > 0, "no comment names a net buffer list");
    let pdus = tshark::pdus(file);
    tshark::assert_crcs_good(&pdus);
    let Conversation { request, reply, initiator, responder } = &Conversation::of(&pdus, 0);
    for startup in [request, reply] {
        assert_eq!((startup.revision, startup.enhanced), (2, true));
        assert!(startup.crc && !startup.markers && !startup.reject);
        assert!(startup.private_data.len() >= 4, "RFC 6581 §9.1 has four octets");
    }
    Conversation::of(&pdus, 0).assert_orderly();
    let all = [Conversation::opcodes(initiator), Conversation::opcodes(responder)].concat();
    for wanted in [opcode::SEND, opcode::WRITE, opcode::READ_REQUEST, opcode::READ_RESPONSE] {
        assert!(all.contains(&wanted), "the lab did not use opcode {wanted}: {all:?}");
    }
    assert!(!all.contains(&opcode::TERMINATE), "a Terminate was sent");
}
