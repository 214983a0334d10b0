use clap::Parser;
use host_stack::{node::Progress, socket::OffloadPolicy};
use offload_engine::{
    chimney::client::UploadReason,
    link::{NapiMode, VnetMode},
    tcp::{CongestionAlgorithm, PushPolicy},
};

use super::*;
use crate::{Cause, Error, format::joined};

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    node: NodeOptions,
}

fn options(line: &str) -> Result<Command, clap::Error> {
    let words = std::iter::once("test").chain(line.split_whitespace());
    Command::try_parse_from(words)
}

fn config(line: &str) -> Result<NodeOptions, Error> {
    options(line).expect("each option is valid by itself").node.completed()
}

/// Checks that `line` is refused as an option error that contains all of `words`.
fn refused(line: &str, words: &[&str]) {
    let text = match options(line) {
        Err(error) => error.to_string(),
        Ok(options) => {
            let failure = options.node.completed().expect_err(line);
            assert_eq!(failure.cause(), Cause::Option, "{line}");
            failure.message().to_owned()
        }
    };
    for word in words {
        assert!(text.contains(word), "{line}: {word:?} is not in {text:?}");
    }
}

#[test]
fn defaults_are_those_of_the_help() {
    let config = config("--seed 1").unwrap();
    assert_eq!(config.tap, TAP_DEFAULT);
    assert_eq!(joined(&config.addresses), ADDRESS_DEFAULT);
    assert_eq!(config.mtu_bytes, 1500);
    assert_eq!((config.vnet, config.napi, config.queues), (VnetMode::Auto, NapiMode::Off, 1));
    assert_eq!(config.txqueuelen, None);
    assert_eq!(config.offload, OffloadPolicy::Always);
    assert_eq!(config.chimney.offload_after_bytes, 65_536);
    assert_eq!((config.chimney.offload_after_age_s, config.chimney.offload_holddown_s), (None, 10));
    assert!(config.chimney.offload_ports.is_none() && config.chimney.upload_on.is_empty());
    assert_eq!(config.chimney.capacity, Capacity::default());
    assert_eq!(config.psh, PushPolicy::EachList);
    assert_eq!(config.congestion_control, CongestionAlgorithm::Cubic);
    assert!(!config.pacing && config.tcp_trace.is_none());
    assert_eq!(config.max_retransmissions, 15);
    assert_eq!(config.receive_window_bytes, 4 << 20);
    assert_eq!(config.progress, Progress::Automatic);
    assert!(config.impairment.is_none());
    assert_eq!(config.pcap, None);
    assert_eq!(config.seed(), 1);
    assert_eq!(
        config,
        NodeOptions { seed: Some(1), ..NodeOptions::default() }.completed().unwrap()
    );
}

#[test]
fn each_limit_is_named() {
    refused("--offload-ports 0", &["--offload-ports"]);
    refused(&format!("--offload-ports {}", vec!["1"; 65].join(",")), &["65 ports", "at most 64"]);
    refused("--offload-after-age 0", &["1..=86400"]);
    refused("--offload-holddown 86401", &["0..=86400"]);
    refused("--upload-on timeouts", &["low-activity", "high-drop-rate"]);
    refused("--capacity tcp=many", &["--capacity", "tcp=many"]);
    refused("--txqueuelen 0", &["--txqueuelen", "1..=1000000"]);
    refused("--txqueuelen 1000001", &["--txqueuelen", "1..=1000000"]);
    refused("--mtu 1279", &["--mtu", "1280..=65521"]);
    refused("--mtu 65522", &["--mtu", "65521"]);
    refused("--drop 101", &["--drop", "0 to 100"]);
    refused("--delay 11s", &["--delay", "10s"]);
    refused("--rate 10", &["--rate", "1kbit"]);
    refused("--addr 10.0.0.1", &["--addr", "prefix length"]);
    refused("--addr 10.0.0.1/24 --addr 10.0.0.1/16", &["--addr", "duplicate"]);
    refused("--gateway 10.78.0.1", &["--gateway", "--addr"]);
    refused("--gateway 10.77.0.2", &["--gateway", "address of the node"]);
    refused("--gateway 10.77.0.1 --gateway 10.77.0.3", &["--gateway", "at most one"]);
    refused("--host-addr 10.77.0.2/24", &["--host-addr", "--addr"]);
    refused("--host-addr 10.77.0.1/24 --bridge br0", &["--host-addr", "--bridge"]);
    refused("--tap 0123456789abcdef", &["--tap", "15"]);
    refused("--tap a/b", &["--tap", "visible"]);
    refused("--vnet maybe", &["--vnet", "auto"]);
    refused("--max-retransmissions 0", &["--max-retransmissions", "1..=255"]);
    refused("--receive-window 4095", &["--receive-window", "4096..=1073741824"]);
    refused("--seed=-1", &["--seed"]);
    let nine: String = (1..=9).map(|host| format!("--addr 10.0.0.{host}/24 ")).collect();
    refused(&nine, &["--addr", "expected at most 8"]);
}

#[test]
fn ethernet_addresses_are_stable_and_differ_on_one_link() {
    let a = config("--addr 10.77.0.1/24").unwrap();
    let again = config("--addr 10.77.0.1/24").unwrap();
    let b = config("--addr 10.77.0.2/24").unwrap();
    assert_eq!(a.mac(), again.mac(), "a random seed does not change the address");
    assert_ne!(a.mac(), b.mac());
    assert_ne!(a.mac(), config("--addr 10.77.0.1/24 --seed 9").unwrap().mac());
    let given = config("--mac 02:00:00:00:00:07").unwrap();
    assert_eq!(given.mac().to_string(), "02:00:00:00:00:07");
}

#[test]
fn configurations_survive_json() {
    let config = config(
        "--addr 10.77.0.1/24 --addr fd77::1/64 --gateway 10.77.0.254 --gateway fd77::ff --drop 0.5 \
         --delay 5ms --rate 100Mbit --pcap x.pcapng --seed 18446744073709551615 --psh empty \
         --congestion-control none --pacing --tcp-trace t.csv --max-retransmissions 255 --receive-window 65536 \
          --progress manual --offload auto --vnet checksum --napi threaded --txqueuelen 20000",
    )
    .unwrap();
    let text = serde_json::to_string(&config).unwrap();
    assert_eq!(serde_json::from_str::<NodeOptions>(&text).unwrap(), config);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["mtu_bytes"], 1500);
    assert_eq!((&value["vnet"], &value["napi"]), (&"checksum".into(), &"threaded".into()));
    assert_eq!(value["txqueuelen"], 20_000);
    assert_eq!((&value["congestion_control"], &value["pacing"]), (&"none".into(), &true.into()));
    assert_eq!(value["impairment"]["drop_ppm"], 5000);
    assert_eq!(value["impairment"]["delay_ns"], 5_000_000);
    assert_eq!(value["impairment"]["rate_bps"], 100_000_000);
}

#[test]
fn congestion_control_has_a_short_name() {
    for (word, algorithm) in [
        ("cubic", CongestionAlgorithm::Cubic),
        ("newreno", CongestionAlgorithm::NewReno),
        ("none", CongestionAlgorithm::Unlimited),
    ] {
        assert_eq!(config(&format!("--cc {word}")).unwrap().congestion_control, algorithm);
    }
}

#[test]
fn printed_configuration_is_complete() {
    let text = config("--drop 1 --seed 7 --bridge br0 --gateway 10.77.0.1").unwrap().to_string();
    for part in
        ["flue0", "1500 bytes", "10.77.0.2/24", "gateway: 10.77.0.1", "drop 1%", "seed: 7", "br0"]
    {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(text.contains("tx-page-recycling auto, txqueuelen auto\n"), "{text}");
    let text = config("--txqueuelen 37 --napi threaded").unwrap().to_string();
    assert!(text.contains("txqueuelen 37, napi threaded\n"), "{text}");
}

#[test]
fn chimney_options_are_checked_and_printed() {
    let line = "--seed 1 --offload auto --offload-after-bytes 1 --offload-after-age 5 \
         --offload-ports 80,443 --upload-on small-io,low-activity,small-io --offload-holddown 0 --capacity tcp=2";
    let config = config(line).unwrap();
    let text = config.to_string();
    assert!(
        text.contains(
            "chimney: auto after 1 bytes or 5 s, ports 80, 443; \
             optional uploads: low-activity, small-io, hold-down 0 s; capacity tcp=2\n"
        ),
        "{text}"
    );
    assert_eq!(config.chimney.upload_on, [UploadReason::LowActivity, UploadReason::SmallIo]);
}

// Limits that clap enforces on command lines are checked for programs too.
#[test]
fn limits_are_checked_for_programs() {
    let base = NodeOptions::default();
    let chimney = |chimney| NodeOptions { chimney, ..NodeOptions::default() };
    let day = ChimneyOptions { offload_holddown_s: 86_401, ..ChimneyOptions::default() };
    let ages = ChimneyOptions { offload_after_age_s: Some(0), ..ChimneyOptions::default() };
    for (options, word) in [
        (NodeOptions { mtu_bytes: 1279, ..base.clone() }, "--mtu 1279: expected 1280..=65521"),
        (NodeOptions { txqueuelen: Some(0), ..base.clone() }, "--txqueuelen 0"),
        (NodeOptions { queues: 0, ..base.clone() }, "--queues 0"),
        (NodeOptions { queues: 17, ..base.clone() }, "--queues 17"),
        (NodeOptions { max_retransmissions: 0, ..base.clone() }, "--max-retransmissions 0"),
        (NodeOptions { receive_window_bytes: 4095, ..base.clone() }, "--receive-window 4095"),
        (NodeOptions { tap: "a/b".into(), ..base.clone() }, "--tap a/b"),
        (NodeOptions { tap_fd: Some(3), queues: 2, ..base.clone() }, "--tap-fd"),
        (NodeOptions { tap_fd: Some(3), napi: NapiMode::Threaded, ..base.clone() }, "--napi"),
        (
            NodeOptions {
                bridge: Some("br0".into()),
                host_addresses: vec!["10.77.0.1/24".parse().unwrap()],
                ..base
            },
            "--host-addr 10.77.0.1/24",
        ),
        (chimney(day), "--offload-holddown 86401"),
        (chimney(ages), "--offload-after-age 0"),
    ] {
        let failure = options.completed().expect_err(word);
        assert_eq!(failure.cause(), Cause::Option);
        assert!(failure.message().contains(word), "{word:?} is not in {failure}");
    }
}
