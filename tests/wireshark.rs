//! Profile of `flue wireshark-profile`, and Wireshark's decoding of every kind of message and of every Terminate,
//! compared with flue's decoder frame by frame.
//!
//! `FLUE_CAPTURE=FILE cargo test --test wireshark` also writes the capture to FILE.

#[path = "wireshark/capture.rs"]
mod capture;
#[path = "wireshark/messages.rs"]
mod messages;

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use flue_test_support::{
    flue::Scratch,
    needs::{Need, lacks},
    tshark::{self, Fpdu, Pdu, PduKind},
};

use messages::{Message, messages, ours, reply, request};

const NEEDS: &[Need] = &[Need::Tool("tshark")];
/// Port with its own dissector (SMB Direct), which would take precedence without the profile.
const PORT: u16 = 5445;

/// Messages that Wireshark 4.0 decodes differently, with the reason. A listed message that is decoded alike is a
/// failure.
const KNOWN_FAULTS: &[(&str, &str)] = &[
    ("Terminate 0/1/00", TAGGED_HEADER),
    ("Terminate 0/1/01", TAGGED_HEADER),
    ("Terminate 0/1/02", TAGGED_HEADER),
    ("Terminate 0/1/03", TAGGED_HEADER),
    ("Terminate 0/1/04", TAGGED_HEADER),
    ("Terminate 0/1/09", TAGGED_HEADER),
    ("Terminate 0/1/ff", TAGGED_HEADER),
];
const TAGGED_HEADER: &str =
    "the header of a protection error is decoded as a tagged one of 14 octets";

/// Installs the profile; returns the configuration directory.
fn install(scratch: &Scratch) -> PathBuf {
    let config = scratch.file("config");
    let mut flue = Command::new(env!("CARGO_BIN_EXE_flue"));
    flue.arg("wireshark-profile").arg("--dir").arg(config.join("profiles")).arg("--json");
    let output = flue.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let directory = config.join("profiles/flue");
    assert_eq!(document["result"]["directory"], directory.to_str().unwrap());
    assert_eq!(fs::read_dir(directory).unwrap().count(), 5);
    config
}

/// Writes the capture: start-up, then one message per frame.
fn write_capture(path: &Path, messages: &[Message]) {
    let mut frames = capture::Connection::new(PORT);
    frames.client_sends(&request());
    frames.server_sends(&reply());
    for message in messages {
        frames.client_sends(&message.fpdu());
    }
    fs::write(path, frames.pcap()).unwrap();
    if let Some(copy) = std::env::var_os("FLUE_CAPTURE") {
        fs::copy(path, copy).unwrap();
    }
}

fn fpdus(pdus: &[Pdu]) -> Vec<&Fpdu> {
    pdus.iter()
        .filter_map(|pdu| match &pdu.kind {
            PduKind::Fpdu(fpdu) => Some(fpdu),
            PduKind::Request(_) | PduKind::Reply(_) => None,
        })
        .collect()
}

// Every kind of message and every Terminate error, decoded by Wireshark with the profile and by flue's decoder.
#[test]
fn wireshark_agrees_with_own_decoder() {
    if lacks(NEEDS) {
        return;
    }
    let scratch = Scratch::new();
    let (config, path) = (install(&scratch), scratch.file("messages.pcap"));
    let messages = messages();
    write_capture(&path, &messages);
    let pdus = tshark::pdus_with_profile(&path, &config);
    let [first, second, ..] = &pdus[..] else { panic!("{pdus:?}") };
    assert!(matches!(first.kind, PduKind::Request(_)) && matches!(second.kind, PduKind::Reply(_)));
    let fpdus = fpdus(&pdus);
    assert_eq!(fpdus.len(), messages.len(), "one FPDU per frame");
    let mut differences = String::new();
    for (message, theirs) in messages.iter().zip(fpdus) {
        let (name, ours) = (&message.name, ours(message));
        let known = KNOWN_FAULTS.iter().find(|(known, _)| known == name);
        match (known, *theirs == ours) {
            (None, true) | (Some(_), false) => {}
            (None, false) => {
                writeln!(differences, "{name}:\n  theirs {theirs:?}\n  ours   {ours:?}").unwrap();
            }
            (Some((_, why)), true) => {
                writeln!(differences, "{name} is decoded identically: {why}").unwrap()
            }
        }
    }
    assert!(differences.is_empty(), "\n{differences}");
    for (name, _) in KNOWN_FAULTS {
        assert!(messages.iter().any(|message| message.name == *name), "no message named {name}");
    }
}

// Wireshark accepts each line of the profile: it reports no error about preferences, colors or filters, and no
// malformed frame. Without the profile, the port's own dissector decodes the connection.
#[test]
fn profile_is_accepted_by_wireshark() {
    if lacks(NEEDS) {
        return;
    }
    let scratch = Scratch::new();
    let (config, path) = (install(&scratch), scratch.file("messages.pcap"));
    let messages = messages();
    write_capture(&path, &messages);
    let (columns, said) = tshark::with_profile(&path, &config, &["--color"]);
    assert_eq!(said, "", "an error about the profile");
    assert_eq!(columns.lines().count(), messages.len() + 2);
    assert!(!columns.contains("Malformed"), "{columns}");
    let (malformed, _) = tshark::with_profile(&path, &config, &["-Y", "_ws.malformed"]);
    assert_eq!(malformed, "");

    let buttons = fs::read_to_string(config.join("profiles/flue/dfilter_buttons")).unwrap();
    let mut shown = 0;
    for button in buttons.lines() {
        let [_, label, filter, _] =
            button.trim_matches('"').split("\",\"").collect::<Vec<_>>()[..].try_into().unwrap();
        let (rows, said) = tshark::with_profile(&path, &config, &["-Y", filter]);
        assert_eq!(said, "", "{label}");
        shown += usize::from(!rows.is_empty());
    }
    assert!(shown >= 6, "only {shown} buttons match frames");

    let plain = tshark::with_profile(&path, &scratch_profile(&scratch), &["-Y", "iwarp_mpa"]).0;
    assert_eq!(plain, "", "without the settings there is no iWARP on this port");
}

/// Creates a configuration with an empty profile of that name.
fn scratch_profile(scratch: &Scratch) -> PathBuf {
    let config = scratch.file("plain");
    fs::create_dir_all(config.join("profiles/flue")).unwrap();
    config
}
