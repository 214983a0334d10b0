use clap::Parser;

use super::*;
use crate::{cmd::lab::control::FpduCut, failure::Kind, options::NodeArgs};

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    node: NodeArgs,
}

fn plan(address: &str) -> NodePlan {
    let line = ["test", "--seed", "1", "--bridge", "br0", "--addr", address];
    NodePlan {
        setup: Command::try_parse_from(line).unwrap().node.resolve().unwrap(),
        transport: Transport::Tap,
        cable: Some("cable".into()),
        target: "10.77.0.2".parse().unwrap(),
        port: 7174,
        file: "/proc/self/exe".into(),
        chunk_bytes: 65536,
        window_receives: 16,
    }
}

fn director() -> Director {
    Director::new([plan("10.77.0.1/24"), plan("10.77.0.2/24")])
}

/// Returns the pending actions without printed steps.
fn actions(director: &mut Director) -> Vec<Action> {
    std::iter::from_fn(|| director.poll())
        .filter(|action| !matches!(action, Action::Print(_)))
        .collect()
}

fn printed(director: &mut Director) -> String {
    let texts = std::iter::from_fn(|| director.poll()).filter_map(|action| match action {
        Action::Print(text) => Some(text),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

fn passed(passage: TransferKind, segments: u64) -> Report {
    Report::Passed {
        passage,
        bytes: 1_000_000,
        time_ns: 1_000_000,
        counters: Counters {
            segments: Some(segments),
            retransmitted_segments: Some(0),
            psh_segments: None,
        },
        state: OffloadState::Offloaded,
    }
}

#[test]
fn orders_follow_reports() {
    let mut director = director();
    director.handle(Side::B, Report::Namespace { pid: 12 }).unwrap();
    assert_eq!(actions(&mut director), []);
    director.handle(Side::A, Report::Namespace { pid: 11 }).unwrap();
    let done = actions(&mut director);
    assert_eq!(done[0], Action::Cable([11, 12]), "cable before orders");
    let started = [plan("10.77.0.1/24"), plan("10.77.0.2/24")].map(Box::new);
    let [a, b] = started.map(|plan| Order::Start { plan });
    assert_eq!(done[1..], [Action::Order(Side::A, a), Action::Order(Side::B, b)]);

    director.handle(Side::A, Report::Linked { vnet_header: Some(true) }).unwrap();
    director.handle(Side::B, Report::Listening).unwrap();
    assert_eq!(actions(&mut director), [], "B's link is missing");
    director.handle(Side::B, Report::Linked { vnet_header: Some(false) }).unwrap();
    assert_eq!(actions(&mut director), [Action::Order(Side::A, Order::Connect)]);

    director.handle(Side::A, Report::Done).unwrap();
    assert_eq!(actions(&mut director), []);
    assert!(director.is_done(Side::A) && !director.is_done(Side::B));
    director.handle(Side::B, Report::Done).unwrap();
    assert_eq!(actions(&mut director), [Action::Finish]);
}

#[test]
fn transfer_is_reported_by_the_node_with_the_file() {
    let mut director = director();
    for passage in TransferKind::ALL {
        director.handle(Side::A, passed(passage, 1)).unwrap();
        director.handle(Side::B, passed(passage, 2)).unwrap();
        let sha256 = "ab".repeat(32);
        director.handle(Side::B, Report::Verified { passage, sha256: sha256.clone() }).unwrap();
        director.handle(Side::A, Report::Verified { passage, sha256 }).unwrap();
    }
    let operations = &director.result().operations;
    let reported =
        operations.iter().map(|o| (o.operation, o.counters.segments)).collect::<Vec<_>>();
    assert_eq!(
        reported,
        [
            (TransferKind::Send, Some(1)),
            (TransferKind::Write, Some(1)),
            (TransferKind::Read, Some(1))
        ]
    );
    assert_eq!(operations[0].rate_bps, Some(8e9));
    let table = director.result().table().to_string();
    let row = table.lines().nth(1).unwrap();
    for part in ["Send/Receive", "1.000", "8.00", "Offloaded", "abababab equal"] {
        assert!(row.contains(part), "{part:?} is not in {row}");
    }
    // Counters that are unknown have no column, as on kernel sockets.
    assert!(!table.contains("PSH") && !row.contains(" - "), "{table}");
    assert!(table.contains("segments") && table.lines().all(|line| line.len() <= 80), "{table}");
    assert!(printed(&mut director).contains("RDMA Read: 977 KiB in 1.00 ms, 8.00 Gbit/s"));
    let json = serde_json::to_value(director.result()).unwrap();
    assert_eq!(json["operations"][2]["operation"], "read");
    assert_eq!(json["operations"][0]["segments"], 1);
    assert!(json["operations"][0]["psh_segments"].is_null(), "unknown is null");
}

#[test]
fn progress_counts_completed_transfers() {
    let mut director = director();
    let progress = |passage, bytes| Report::Progress { passage, bytes };
    director.handle(Side::A, progress(TransferKind::Send, 65_536)).unwrap();
    director.handle(Side::A, passed(TransferKind::Send, 1)).unwrap();
    director.handle(Side::A, progress(TransferKind::Write, 65_536)).unwrap();
    director.handle(Side::A, passed(TransferKind::Write, 1)).unwrap();
    director.handle(Side::A, passed(TransferKind::Read, 1)).unwrap();
    // B requests the Reads; its report may be the last.
    director.handle(Side::B, progress(TransferKind::Read, 65_536)).unwrap();
    assert_eq!(
        actions(&mut director),
        [
            Action::Progress(TransferKind::Send, 65_536),
            Action::Progress(TransferKind::Write, 1_065_536),
            Action::Progress(TransferKind::Read, 2_065_536),
        ]
    );
}

#[test]
fn state_changes_are_kept_in_order() {
    let mut director = director();
    for (at_ns, state) in [
        (1000, OffloadState::InHost),
        (2000, OffloadState::Offloading),
        (9000, OffloadState::Offloaded),
    ] {
        director.handle(Side::A, Report::Moved { state, at_ns }).unwrap();
    }
    let text = printed(&mut director);
    assert!(text.contains("A  connection is Offloading (2.00 µs after connect)"), "{text}");
    assert_eq!(director.result().moves.len(), 3);
    let json = serde_json::to_value(director.result()).unwrap();
    assert_eq!(json["moves"][2]["offload_state"], "Offloaded");
    assert_eq!(json["moves"][2]["node"], "A");
}

#[test]
fn failures_keep_their_kind_and_name_the_node() {
    let failure = Failure::lacking("no TUN").with_hint("modprobe tun");
    let error = director().handle(Side::B, Report::Failed { failure }).unwrap_err();
    assert_eq!(error.kind, Kind::Lacking);
    assert_eq!(error.message, "node B: no TUN");
    assert_eq!(error.hint.as_deref(), Some("modprobe tun"));
}

#[test]
fn unexpected_reports_are_errors() {
    assert!(director().handle(Side::A, Report::Listening).is_err());
    let sha256 = String::new();
    let early = Report::Verified { passage: TransferKind::Send, sha256 };
    assert!(director().handle(Side::A, early).is_err());
    let mut director = director();
    director.handle(Side::A, passed(TransferKind::Send, 1)).unwrap();
    assert!(director.handle(Side::A, passed(TransferKind::Send, 1)).is_err());
}

#[test]
fn negotiated_parameters_are_printed() {
    let mut director = director();
    let negotiated = Negotiated {
        mpa_revision: Some(2),
        crc: Some(true),
        markers: Some(false),
        inbound_reads: Some(16),
        outbound_reads: None,
        fpdus: Some(FpduCut::Emss),
    };
    director.handle(Side::B, Report::Connected { negotiated }).unwrap();
    let text = printed(&mut director);
    assert_eq!(
        text,
        "B  MPA revision 2, CRC on, markers off, IRD 16, ORD -, FPDUs one per segment"
    );
}
