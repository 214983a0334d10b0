//! Baselines of `flue bench` on real TAPs: each transfers its bytes, counts them at both ends, and reports one line
//! of JSON. Throughput is not judged.

use std::process::{Command, Output};

use flue_test_support::needs::Need;
use serde_json::Value;

const NEEDS: &[Need] = &[Need::Root, Need::Tun];

fn run(arguments: &str) -> (Output, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flue"));
    command.args(["bench", "baseline"]).args(arguments.split_whitespace());
    let output = command.output().expect("flue starts");
    let text = String::from_utf8(output.stdout.clone()).expect("JSON is text");
    assert_eq!(text.lines().count(), 1, "{arguments}: {text:?}");
    let document: Value = serde_json::from_str(&text).expect("a document");
    assert_eq!(document["schema"], "flue.baseline/1");
    let kind = arguments.split(' ').next().unwrap_or_default();
    assert_eq!(document["kind"], kind);
    (output, document)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("not a number: {value}"))
}

/// Runs a measurement of 50 ms and checks the invariants of every result.
fn measured(arguments: &str) -> Value {
    let (output, document) = run(&format!("{arguments} --seconds 0.05"));
    assert!(output.status.success(), "{arguments}: {document}");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(document["error"].is_null());
    let (bytes, seconds) = (number(&document["bytes"]), number(&document["seconds"]));
    assert!(bytes > 0.0 && seconds >= 0.05, "{document}");
    let cpu = &document["cpu"];
    assert!(number(&cpu["user_seconds"]) >= 0.0 && number(&cpu["system_seconds"]) >= 0.0);
    document
}

/// Runs a bandwidth baseline: its rate is the received bytes divided by the elapsed time.
fn bandwidth(arguments: &str) -> Value {
    let document = measured(arguments);
    assert_eq!(document["unit"], "bps");
    assert!(document["samples"].is_null() && document["latency_ns"].is_null());
    let expected = number(&document["bytes"]) * 8.0 / number(&document["seconds"]);
    assert!((number(&document["value"]) / expected - 1.0).abs() < 1e-6, "{document}");
    document["detail"].clone()
}

/// Runs a latency baseline: its latency is the median of the samples, and the histogram counts each sample once.
fn latency(arguments: &str) {
    let document = measured(arguments);
    assert_eq!(document["unit"], "ns");
    let latency = &document["latency_ns"];
    assert_eq!((&document["value"], &document["samples"]), (&latency["p50"], &latency["samples"]));
    let order = ["min", "p50", "p90", "p99", "p999", "max"].map(|key| number(&latency[key]));
    assert!(order.is_sorted() && order[0] > 0.0, "{latency}");
    let buckets = latency["histogram"].as_array().expect("buckets");
    let total: f64 = buckets.iter().map(|bucket| number(&bucket[1])).sum();
    assert!((total - number(&latency["samples"])).abs() < 0.5, "{latency}");
}

flue_test_support::tests! { NEEDS;
    tap_bw => {
        let detail = bandwidth("tap-bw");
        assert!(number(&detail["frames_per_second"]) > 0.0);
        assert_eq!((&detail["frame_bytes"], &detail["vnet_header"]), (&1514.into(), &false.into()));
    };
    tap_bw_super => {
        assert_eq!(bandwidth("tap-bw --frame 64294 --gso")["vnet_header"], true);
    };
    tap_bw_small => drop(bandwidth("tap-bw --frame 64"));
    tap_rtt => latency("tap-rtt");
    bare_tcp_send => {
        let detail = bandwidth("bare-tcp-send");
        assert!(number(&detail["segment_bytes_mean"]) > 1460.0, "{detail}");
        assert_eq!(detail["checksum"], "header");
    };
    /// The kernel verifies the checksums that flue computes.
    bare_tcp_send_plain => {
        let detail = bandwidth("bare-tcp-send --plain --checksum software");
        assert_eq!((&detail["segment_bytes_max"], &detail["checksum"]), (&1460.into(), &"software".into()));
    };
    bare_tcp_send_plain_with_header => {
        let detail = bandwidth("bare-tcp-send --plain");
        assert_eq!((&detail["segment_bytes_max"], &detail["checksum"]), (&1460.into(), &"header".into()));
    };
    bare_tcp_recv => {
        assert!(number(&bandwidth("bare-tcp-recv")["segment_bytes_mean"]) > 1460.0);
    };
    /// flue verifies the checksums that the kernel computes.
    bare_tcp_recv_plain => {
        let detail = bandwidth("bare-tcp-recv --plain --mtu 9000");
        assert_eq!(detail["segment_bytes_max"], 8960);
        assert!(number(&detail["segment_bytes_mean"]) <= 8960.0, "{detail}");
    };
    /// A kernel thread (threaded NAPI) processes merged frames; none is lost or corrupted.
    bare_tcp_plain_with_threaded_napi => {
        for kind in ["bare-tcp-send", "bare-tcp-recv"] {
            let detail = bandwidth(&format!("{kind} --plain --napi threaded"));
            assert_eq!(detail["threaded_napi"], true, "{kind}");
        }
    };
    smoltcp_send => drop(bandwidth("smoltcp-send"));
    smoltcp_recv => drop(bandwidth("smoltcp-recv"));
    smoltcp_pair => drop(bandwidth("smoltcp-pair"));
    smoltcp_rtt => latency("smoltcp-rtt");

    oversized_frame_is_refused => {
        let (output, document) = run("tap-bw --frame 1515");
        assert_eq!(output.status.code(), Some(2));
        assert!(document["error"]["message"].as_str().is_some_and(|text| text.contains("64 to 1514")));
    };
    two_taps_are_two => {
        let (output, document) = run("tap-rtt --tap one-alone");
        assert_eq!(output.status.code(), Some(2), "{document}");
    };
}
