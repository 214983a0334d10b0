//! Options of the chimney: offload and upload conditions, and the capacity of the target.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use flue_test_support::bench::{Bench, START};
use flue_test_support::process::Output;
use serde_json::Value;

use crate::table::{ALL, rows};
use crate::tcp::carry;

rows! { ALL;
    "--offload-after-bytes", "--offload-after-bytes 10000" => after_bytes;
    "--offload-after-age", "--offload-after-age 1" => after_age;
    "--offload-ports", "--offload-ports 1,5001" => ports;
    "--upload-on", "--upload-on low-activity,small-io" => upload_on;
    "--offload-holddown", "--offload-holddown 0" => offload_holddown;
    "--capacity", "--capacity tcp=0" => capacity;
}

const LITTLE: usize = 20_000;

/// Waits until `is_so` returns true for the connection of that node.
fn expect(bench: &Bench, host: u8, is_so: impl Fn(&Value) -> bool) -> Value {
    bench.expect(&format!("--node tap{host}"), is_so)
}

// Each node in turn transfers the same number of bytes; with the default it is not enough.
fn after_bytes(bench: &Bench) {
    let mut nodes = [(2, ""), (3, "--offload-after-bytes 20000")].map(|(host, options)| {
        let options = format!("--offload auto {options}");
        let mut flue = bench.listen_at(host, &options, Output::Bytes);
        let mut output = flue.take_output();
        let mut socket = bench.connect_to(host);
        carry(&mut socket, &mut output, LITTLE - 1);
        let one = expect(bench, host, |one| one["recv_q"] == 0);
        assert_eq!(one["offload_state"], "InHost", "{one}");
        carry(&mut socket, &mut output, 1);
        (flue, output, socket)
    });
    expect(bench, 3, |one| one["offload_state"] == "Offloaded");
    assert_eq!(expect(bench, 2, |_| true)["offload_state"], "InHost");
    let (_, output, socket) = &mut nodes[0];
    carry(socket, output, (64 << 10) - LITTLE);
    expect(bench, 2, |one| one["offload_state"] == "Offloaded");
}

fn after_age(bench: &Bench) {
    let _without = bench.listen_at(3, "--offload auto", Output::Bytes);
    let _older = bench.connect_to(3);
    let _flue = bench.listen_at(2, "--offload auto --offload-after-age 1", Output::Bytes);
    let began = Instant::now();
    let _socket = bench.connect_to(2);
    expect(bench, 2, |one| one["offload_state"] == "Offloaded");
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(expect(bench, 3, |_| true)["offload_state"], "InHost");
}

fn ports(bench: &Bench) {
    for (ports, state) in [("1,5001", "InHost"), ("1,5000", "Offloaded")] {
        let mut flue = bench.listen(&format!("--offload-ports {ports}"), Output::Bytes);
        let mut output = flue.take_output();
        let mut socket = bench.connect();
        carry(&mut socket, &mut output, 1 << 20);
        expect(bench, 2, |one| one["offload_state"] == state);
    }
}

// Enabled upload reasons, and for comparison a posted request that avoids the reason, and a reason that is not
// enabled.
fn upload_on(bench: &Bench) {
    const MUCH: usize = 4 << 20;
    let cases = [
        ("--upload-on no-buffer-preposting", MUCH, Some("NoBufferPreposting")),
        ("--upload-on no-buffer-preposting --prepost 65536", MUCH, None),
        ("--upload-on small-io --prepost 100", LITTLE, Some("SmallIo")),
        ("--upload-on small-io --prepost 1000", LITTLE, None),
        ("--prepost 100", LITTLE, None),
        ("--upload-on high-out-of-order-packets --reorder 30", MUCH, Some("HighOutOfOrderPackets")),
        ("--upload-on high-drop-rate --reorder 30", MUCH, None),
        ("--upload-on low-activity", 1, Some("LowActivity")),
        ("--upload-on small-io,low-activity --prepost 1000", 1, Some("LowActivity")),
    ];
    for (options, bytes, reason) in cases {
        let mut flue = bench.listen(options, Output::Bytes);
        let mut output = flue.take_output();
        let mut socket = bench.connect();
        // The connection is offloaded before there is any reason to upload it.
        bench.expect("", |one| one["offloads"] == 1);
        carry(&mut socket, &mut output, bytes);
        let one = bench.expect("", |one| reason.is_none() || one["uploads"] == 1);
        let expected = (Value::from(u32::from(reason.is_some())), Value::from(reason));
        let found = (one["uploads"].clone(), one["last_upload_reason"].clone());
        assert_eq!(found, expected, "{options}: {one}");
    }
}

// A connection with a hold-down of a day was uploaded before the one without, which is offloaded again.
fn offload_holddown(bench: &Bench) {
    let nodes = [(2, 86_400), (3, 0)].map(|(host, seconds)| {
        let options = format!("--upload-on small-io --prepost 100 --offload-holddown {seconds}");
        let mut flue = bench.listen_at(host, &options, Output::Bytes);
        let mut output = flue.take_output();
        let mut socket = bench.connect_to(host);
        expect(bench, host, |one| one["offloads"] == 1);
        carry(&mut socket, &mut output, LITTLE);
        let one = expect(bench, host, |one| one["uploads"].as_u64() >= Some(1));
        assert_eq!(one["last_upload_reason"], "SmallIo", "{one}");
        (flue, output, socket)
    });
    expect(bench, 3, |one| one["offloads"].as_u64() >= Some(2));
    let rests = expect(bench, 2, |_| true);
    assert_eq!((&rests["offloads"], &rests["offload_state"]), (&1.into(), &"InHost".into()));
    drop(nodes);
}

fn capacity(bench: &Bench) {
    for (kind, status) in [
        ("tcp=0", "TCP_ENTRIES"),
        ("path=0", "PATH_ENTRIES"),
        ("neighbor=0", "NEIGHBOR_ENTRIES"),
        ("ip=0", "IP_ADDRESS_ENTRIES"),
        ("window=10000", "TCP_RCV_WINDOW"),
    ] {
        let _flue = bench.listen(&format!("--capacity {kind}"), Output::Bytes);
        let _socket = bench.connect();
        refused(bench, status);
    }
    // Data of the migrated connection: unread received data, or unsent data to a peer that does not read.
    for (kind, queue, status) in
        [("receive=1000", "recv_q", "TCP_RCV_BUFFER"), ("send=1000", "send_q", "TCP_XMIT_BUFFER")]
    {
        let mut flue = bench.listen(&format!("--offload never --capacity {kind}"), Output::Bytes);
        let _output = flue.take_output();
        let mut input = flue.take_input();
        let socket = bench.connect();
        socket.set_nonblocking(true).unwrap();
        if queue == "send_q" {
            thread::spawn(move || while input.write_all(&[7; 65_536]).is_ok() {});
        }
        // While buffers on the path accept more, less data may be queued at the offload.
        let deadline = Instant::now() + START;
        loop {
            bench.expect("", |one| {
                while queue == "recv_q" && (&socket).write(&[7; 65_536]).is_ok() {}
                one[queue].as_u64() > Some(1000)
            });
            if bench.run_once("offload all").status == Some(1) {
                break;
            }
            assert!(Instant::now() < deadline, "{kind}: never refused");
            bench.run_once("upload all");
        }
        refused(bench, status);
    }
}

/// Waits until the target has refused the only connection with this status.
fn refused(bench: &Bench, status: &str) {
    let one = bench.expect("", |one| one["refusals"].as_u64() >= Some(1));
    let name = format!("NDIS_STATUS_OFFLOAD_{status}");
    assert_eq!(one["last_refusal"]["ndis_status_name"], name, "{one}");
    assert_eq!(one["offload_state"], "InHost", "{one}");
}
