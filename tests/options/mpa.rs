//! Options of MPA: the Request that a kernel socket receives, and the success of pings.

use std::io::Read;
use std::net::{SocketAddr, TcpListener};

use flue_test_support::bench::{Bench, START};
use flue_test_support::process::Output;
use rdma_over_tcp::mpa::startup::{Frame, FrameKind, Revision, RtrSet};

use crate::table::rows;

rows! { &["rping", "perf"];
    "--mpa-crc" => crc;
    "--mpa-markers" => markers;
    "--mpa-revision" => revision;
    "--rtr" => rtr;
}

/// Requests of a client that receives no Reply: one, or those of all its `connections`.
fn requests(bench: &Bench, options: &str, connections: usize) -> [Vec<Frame>; 2] {
    ["rping -c -a 10.0.0.1", "perf write-lat 10.0.0.1"].map(|command| {
        // A separate port: the previous listener may remain open for a moment in a child process that a concurrent
        // test forks.
        let any = SocketAddr::from(([0, 0, 0, 0], 0));
        let listener = bench.kernel.run(|| TcpListener::bind(any)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let line = format!("{command} -p {port} {} {options}", Bench::attached(2));
        let mut client = bench.start(&line, Output::Lines);
        let frames = (0..connections).map(|_| {
            let mut socket = listener.accept().unwrap().0;
            let mut octets = Vec::new();
            loop {
                if let Some((frame, _)) = Frame::parse(FrameKind::Request, &octets).unwrap() {
                    return frame;
                }
                let mut octet = [0];
                socket.read_exact(&mut octet).unwrap();
                octets.extend(octet);
            }
        });
        let frames = frames.collect();
        client.expect_exit(1, START);
        frames
    })
}

/// Runs two pings between two nodes with these options.
fn ping(bench: &Bench, server: &str, client: &str) {
    let line = format!("rping -s {} {server}", Bench::attached(3));
    let mut serving = bench.start(&line, Output::Lines);
    serving.expect_line("listening", START);
    let line = format!("rping -c -a 10.0.0.3 -C 2 -V {} {client}", Bench::attached(2));
    let mut pinging = bench.start(&line, Output::Lines);
    let status = pinging.wait(START).code();
    assert_eq!(status, Some(0), "{server}, {client}: {}", pinging.all_lines(START));
    serving.expect_exit(0, START);
}

fn crc(bench: &Bench) {
    for (options, is_on) in [("", true), ("--mpa-crc on", true), ("--mpa-crc off", false)] {
        for frames in requests(bench, options, 1) {
            assert_eq!(frames[0].crc, is_on, "{options}");
        }
        ping(bench, options, "--mpa-crc off");
    }
}

fn markers(bench: &Bench) {
    for (options, is_on) in [("", false), ("--mpa-markers on", true), ("--mpa-markers off", false)]
    {
        for frames in requests(bench, options, 1) {
            assert_eq!(frames[0].markers, is_on, "{options}");
        }
        ping(bench, options, "--mpa-markers on");
    }
}

fn revision(bench: &Bench) {
    use Revision::{One, Two};
    for (options, revisions) in [
        ("", &[Two][..]),
        ("--mpa-revision 2", &[Two]),
        ("--mpa-revision 1", &[One]),
        // The first Request is not answered.
        ("--mpa-revision auto", &[Two, One]),
    ] {
        for frames in requests(bench, options, revisions.len()) {
            let of_frames: Vec<_> = frames.iter().map(|frame| frame.revision).collect();
            assert_eq!(of_frames, revisions, "{options}");
            let is_enhanced = |frame: &Frame| frame.enhanced.is_some();
            assert!(frames.iter().all(|frame| is_enhanced(frame) == (frame.revision == Two)));
        }
        ping(bench, "", options);
    }
}

fn rtr(bench: &Bench) {
    let [write_or_read, write, read] = [(true, true), (true, false), (false, true)]
        .map(|(write, read)| RtrSet { send: false, write, read });
    for (options, offered) in [("", write_or_read), ("--rtr write", write), ("--rtr read", read)] {
        for frames in requests(bench, options, 1) {
            let enhanced = frames[0].enhanced.unwrap();
            assert_eq!((enhanced.peer_to_peer, enhanced.rtr), (true, offered), "{options}");
        }
        ping(bench, "", options);
        ping(bench, options, "");
    }
    ping(bench, "--rtr send", "--rtr send");
    let line = format!("perf write-lat 10.0.0.1 {} --rtr send", Bench::attached(2));
    let mut refused = bench.start(&line, Output::Lines);
    refused.expect_line("the server posts no receive for it", START);
    refused.expect_exit(2, START);
}
