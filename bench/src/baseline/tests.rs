use clap::Parser;
use serde_json::{Value, json};

use super::{latency::Samples, measure::Measured, *};
use crate::BenchArgs;

#[derive(Debug, Parser)]
struct Bench {
    #[command(flatten)]
    args: BenchArgs,
}

const MEASURED: Measured = Measured {
    seconds: 0.5,
    count: 1_000_000,
    cpu: Cpu { user_seconds: 0.25, system_seconds: 0.5 },
};

fn parsed(line: &str) -> Value {
    assert!(!line.contains('\n'), "one line");
    serde_json::from_str(line).unwrap()
}

#[test]
fn bandwidth_document_has_all_keys() {
    let outcome = Outcome::bandwidth(MEASURED, json!({ "mtu_bytes": 1500 }));
    let document = parsed(&document("tap-bw", &outcome));
    let expected = json!({
        "schema": "flue.baseline/1", "ok": true, "exit_status": 0, "error": null,
        "kind": "tap-bw", "value": 16e6, "unit": "bps",
        "samples": null, "latency_ns": null, "cpu": { "user_seconds": 0.25, "system_seconds": 0.5 },
        "bytes": 1_000_000, "seconds": 0.5, "detail": { "mtu_bytes": 1500 },
    });
    assert_eq!(document, expected);
}

#[test]
fn latency_document_has_distribution() {
    let mut samples = Samples::with_room_for(0.0);
    [2000, 4000, 6000].into_iter().for_each(|ns| samples.push(ns));
    let latency = samples.distribution(2).unwrap();
    let outcome = Ok(Outcome::half_round_trips(MEASURED, latency, 8, Value::Null));
    let document = parsed(&document("tap-rtt", &outcome));
    assert_eq!((&document["value"], &document["unit"]), (&json!(2000.0), &json!("ns")));
    assert_eq!((&document["samples"], &document["bytes"]), (&json!(3), &json!(8_000_000)));
    let latency = &document["latency_ns"];
    for (key, value) in [("min", 1000.0), ("mean", 2000.0), ("p50", 2000.0), ("max", 3000.0)] {
        assert_eq!(latency[key], value, "{key}");
    }
    for key in ["p90", "p99", "p999"] {
        assert_eq!(latency[key], 3000.0, "{key}");
    }
    assert_eq!(latency["histogram"], json!([[960, 1], [1920, 1], [2816, 1]]));
}

#[test]
fn failure_document_has_error() {
    let outcome = Err(Failure::lacking("no \"TUN\"\nhere"));
    let document = parsed(&document("bare-tcp-send", &outcome));
    let error = json!({ "kind": "prerequisite", "message": "no \"TUN\"\nhere", "hint": null, "signal": null });
    let expected = json!({
        "schema": "flue.baseline/1", "ok": false, "exit_status": 3, "error": error, "kind": "bare-tcp-send",
    });
    assert_eq!(document, expected);
}

#[test]
fn empty_measurement_is_an_error() {
    let nothing = Measured { count: 0, ..MEASURED };
    assert!(Outcome::bandwidth(nothing, Value::Null).is_err());
}

#[test]
fn every_kind_is_a_subcommand() {
    let names = [
        "tap-bw",
        "tap-rtt",
        "bare-tcp-send",
        "bare-tcp-recv",
        "smoltcp-send",
        "smoltcp-recv",
        "smoltcp-pair",
        "smoltcp-rtt",
    ];
    for name in names {
        let line = ["bench", "baseline", name, "--seconds", "0.05", "--cpus", "0,1"];
        let parsed = Bench::try_parse_from(line).unwrap();
        assert!(format!("{parsed:?}").contains("seconds: 50ms"), "{parsed:?}");
        assert!(format!("{parsed:?}").contains("cpus: Some((0, 1))"), "{parsed:?}");
    }
}

#[test]
fn out_of_range_values_are_rejected() {
    for text in ["0", "0.009", "601", "-1", "NaN", "inf", "x", ""] {
        assert!(parse_seconds(text).is_err(), "{text:?}");
    }
    assert_eq!(parse_seconds("0.05"), Ok(Duration::from_millis(50)));
    for text in ["0", "0,", ",1", "0,1024", "-1,0", "0,1,2", "a,b"] {
        assert!(parse_cpus(text).is_err(), "{text:?}");
    }
    assert_eq!(parse_cpus("0,1023"), Ok((0, 1023)));
    let refused = |line: &str| {
        let words = "bench baseline ".to_owned() + line;
        assert!(Bench::try_parse_from(words.split_whitespace()).is_err(), "{line}");
    };
    refused("bare-tcp-send --mtu 1279");
    refused("bare-tcp-send --checksum software");
    refused("smoltcp-send --buffer 1");
    refused("no-such-kind");
}
