use std::collections::BTreeMap;

use clap::Parser;

use super::*;
use crate::failure::Kind;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    wire: WireArgs,
}

fn parse(line: &str) -> Result<WireArgs, String> {
    let words = std::iter::once("wire").chain(line.split_whitespace());
    Line::try_parse_from(words).map(|line| line.wire).map_err(|error| error.to_string())
}

fn config(line: &str) -> WireConfig {
    parse(line).unwrap_or_else(|error| panic!("{error}")).resolve().unwrap()
}

/// Asserts that the line is rejected as a usage error whose text contains `word`.
fn refused(line: &str, word: &str) {
    let text = match parse(line) {
        Err(text) => text,
        Ok(args) => {
            let failure = args.resolve().expect_err(line);
            assert_eq!(failure.kind, Kind::Usage, "{line}");
            failure.message
        }
    };
    assert!(text.contains(word), "{line}: {word:?} is not in {text:?}");
}

#[test]
fn default_wire_has_no_impairments() {
    let config = config("w0 w1 --seed 3");
    assert!(config.a_to_b.is_none() && config.b_to_a.is_none());
    assert_eq!((config.seed, config.duration()), (3, None));
    assert_eq!((config.a.tap.as_str(), config.b.tap.as_str()), ("w0", "w1"));
}

#[test]
fn directions_are_configured_separately() {
    let line = "w0 w1 --delay 10ms --rate 100mbit --queue 20ms --drop 1 \
                --ab drop=0.1,burst=5,jitter=2ms --ba rate=unlimited,loss=0%,delay=0s";
    let config = config(line);
    let to_b = config.a_to_b.on_a_link(7);
    assert_eq!((to_b.drop_pct, to_b.burst_mean), (0.1, 5.0));
    assert_eq!(to_b.delay, Duration::from_millis(10));
    assert_eq!(to_b.jitter, Duration::from_millis(2));
    assert_eq!(to_b.rate_bps, Some(100_000_000));
    assert_eq!(to_b.queue, offload_engine::link::QueueLimit::Bytes(250_000));
    assert!(config.b_to_a.is_none(), "{}", config.b_to_a);
}

/// Every key of the overrides is also an option with the same effect.
#[test]
fn override_keys_match_options() {
    let values = BTreeMap::from([
        ("drop", "1"),
        ("burst", "4"),
        ("dup", "2%"),
        ("reorder", "3"),
        ("corrupt", "4"),
        ("delay", "5ms"),
        ("jitter", "1ms"),
        ("rate", "10mbit"),
        ("queue", "100p"),
    ]);
    let options: Vec<String> =
        values.iter().map(|(key, value)| format!("--{key} {value}")).collect();
    let settings: Vec<String> =
        values.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let by_options = config(&format!("w0 w1 {}", options.join(" ")));
    let by_settings = config(&format!("w0 w1 --ab {}", settings.join(",")));
    assert_eq!(by_options.a_to_b, by_settings.a_to_b);
    assert_eq!(by_options.b_to_a, by_options.a_to_b);
    assert!(by_settings.b_to_a.is_none());
}

#[test]
fn invalid_options_are_rejected() {
    refused("w0", "TAP_B");
    refused("w0 w0", "same as TAP_A");
    refused("w0 w1 --ab drop=101", "0 to 100");
    refused("w0 w1 --ab speed=1", "expected one of drop, burst");
    refused("w0 w1 --ba drop", "KEY=VALUE");
    refused(
        "w0 w1 --ab jitter=5ms",
        "--ab: impairment: jitter of 5ms: expected at most the delay of 0ns",
    );
    refused("w0 w1 --queue 20ms", "--rate");
    refused("w0 w1 --drop 90 --burst 2", "at most 66.7 %");
    refused("w0 w1 --burst 10001", "1 to 10000, or 0");
    refused("w0 w1 --ab burst=10001", "1 to 10000, or 0");
    refused("w0 w1 -D 0", "1..=604800");
    refused("w0 w1 --bridge-a br0 --addr-a 10.0.0.1/24", "cannot be used with");
    assert!(parse("w0 w0 --netns-a left").unwrap().resolve().is_ok(), "names are per namespace");
}

#[test]
fn namespaces_by_name_and_by_path() {
    let config = config("w0 w1 --netns-a left --netns-b /proc/7/ns/net");
    assert_eq!(config.a.netns.unwrap().to_str(), Some("/run/netns/left"));
    assert_eq!(config.b.netns.unwrap().to_str(), Some("/proc/7/ns/net"));
}

#[test]
fn configuration_is_printed() {
    let text = config("w0 w1 --seed 9 --drop 0.5 --burst 3 --delay 5ms --jitter 1ms").to_string();
    let line = "A to B: drop 0.5% in bursts of 3, dup 0%, reorder 0%, corrupt 0%, \
                delay 5.00 ms ± 1.00 ms, rate unlimited";
    assert!(text.contains(line) && text.contains("seed: 9"), "{text}");
}
