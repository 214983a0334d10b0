//! Options specific to `flue rping`: a server on node 3, a client on node 2.

use std::sync::Arc;
use std::thread;

use flue::cmd::rping::wire::{ADVERT_BYTES, Advert};
use flue_test_support::bench::{Bench, START};
use flue_test_support::process::{Output, Process};
use host_stack::node::{Node, NodeConfig};
use host_stack::simulation::station;
use offload_engine::link::{TapOptions, VnetMode, open_tap};
use offload_engine::sync::Mutex;
use offload_engine::time::Duration;
use rdma_over_tcp::ndk::{
    Adapter, AdapterConfig, AdapterCore, Connector, Data, MrFlags, NdkResultEx, NtStatus, OpFlags,
    OperationType, QpLimits, ReadLimit, Sge, open,
};

use rustix::process::Signal;

use crate::table::rows;

rows! { &["rping"];
    "--server" => server;
    "--client" => client;
    "-a" => address;
    "--port" => port;
    "--count" => count;
    "--size" => size;
    "--show" => show;
    "--validate" => validate;
    "--transport" => transport;
    "--timeout" => timeout;
}

fn timeout(bench: &Bench) {
    crate::nc::assert_limit(bench, "rping -c -a 10.0.0.99");
}

/// Starts a server on node 3.
fn serve(bench: &Bench, options: &str) -> Process {
    let mut server =
        bench.start(&format!("rping -s {} {options}", Bench::attached(3)), Output::Lines);
    server.expect_line("listening", START);
    server
}

/// Runs a client on node 2 to its end; returns its exit status and output.
fn ping(bench: &Bench, options: &str) -> (Option<i32>, String) {
    let line = format!("rping -c {} {options}", Bench::attached(2));
    let mut client = bench.start(&line, Output::Lines);
    let status = client.wait(START).code();
    (status, client.all_lines(START))
}

// One process listens, the other connects, each with its own option; neither works without its peer.
fn server(bench: &Bench) {
    let mut server = serve(bench, "");
    let (status, said) = ping(bench, "-a 10.0.0.3 -C 1");
    assert_eq!(status, Some(0), "{said}");
    server.expect_exit(0, START);
    let text = server.all_lines(START);
    assert!(text.contains("connected: 10.0.0.3:7174 to 10.0.0.2:"), "{text}");
}

fn client(bench: &Bench) {
    let (status, said) = ping(bench, "-a 10.0.0.1 -C 1");
    assert_eq!(status, Some(1), "no server: {said}");
    let mut server = serve(bench, "");
    let (status, said) = ping(bench, "-a 10.0.0.3 -C 1");
    assert!(said.contains("connected: 10.0.0.2:") && said.contains("to 10.0.0.3:7174"), "{said}");
    assert!(!said.contains("listening"), "{said}");
    assert_eq!(status, Some(0), "{said}");
    server.expect_exit(0, START);
}

// The kernel serves the connection, without a TAP.
fn transport(bench: &Bench) {
    let line = "rping -s --transport kernel -a 10.0.0.1";
    let mut server = Process::start(&bench.kernel, bench.command(line), Output::Lines);
    server.expect_line("listening", START);
    assert_eq!(bench.kernel.links(), ["eth0"]);
    let (status, said) = ping(bench, "-a 10.0.0.1 -C 1");
    assert_eq!(status, Some(0), "{said}");
    server.expect_exit(0, START);
}

fn address(bench: &Bench) {
    let second = "--addr 10.0.0.6/24";
    for (options, to, status) in [
        (String::from(second), 6, 0),
        (format!("{second} -a 10.0.0.6"), 6, 0),
        (format!("{second} -a 10.0.0.6"), 3, 1),
    ] {
        let mut server = serve(bench, &options);
        let (ended, said) = ping(bench, &format!("-a 10.0.0.{to} -C 1"));
        assert_eq!(ended, Some(status), "{options}, to {to}: {said}");
        if status == 0 {
            server.expect_exit(0, START);
        }
    }
}

fn port(bench: &Bench) {
    let mut server = serve(bench, "-p 7200");
    let (status, said) = ping(bench, "-a 10.0.0.3 -C 1");
    assert_eq!(status, Some(1), "not rping's default port: {said}");
    let (status, said) = ping(bench, "-a 10.0.0.3 -C 1 --port 7200");
    assert_eq!(status, Some(0), "{said}");
    server.expect_exit(0, START);
}

fn count(bench: &Bench) {
    for count in [1, 17] {
        let mut server = serve(bench, "");
        let (status, said) = ping(bench, &format!("-a 10.0.0.3 --count {count}"));
        assert_eq!(status, Some(0), "{said}");
        assert!(said.contains(&format!("ended: {count} pings")), "{said}");
        server.expect_exit(0, START);
    }
    // Unlimited by default: interrupted after many pings.
    let _server = serve(bench, "");
    let line = format!("rping -c -v {} -a 10.0.0.3", Bench::attached(2));
    let mut client = bench.start(&line, Output::Lines);
    client.expect_line("rdma-ping-100:", START);
    client.signal(Signal::INT);
    client.expect_exit(130, START);
}

fn size(bench: &Bench) {
    for size in [64, 5000] {
        let options = if size == 64 { String::new() } else { format!("--size {size}") };
        let mut server = serve(bench, &options);
        let (status, said) = ping(bench, &format!("-a 10.0.0.3 -C 1 -v {options}"));
        assert_eq!(status, Some(0), "{said}");
        assert!(said.contains(&format!("pings of {size} bytes")), "{said}");
        // The data ends with a NUL.
        let data = said.lines().find_map(|line| line.strip_prefix("ping data: ")).unwrap();
        assert_eq!(data.len(), size - 1, "{data}");
        server.expect_exit(0, START);
    }
    // The server has its own buffer size.
    let mut server = serve(bench, "");
    assert_eq!(ping(bench, "-a 10.0.0.3 -C 1 -S 65").0, Some(1));
    server.expect_exit(1, START);
}

fn show(bench: &Bench) {
    for (options, lines) in [("", 0), ("--show", 3)] {
        let mut server = serve(bench, options);
        let (status, said) = ping(bench, &format!("-a 10.0.0.3 -C 3 {options}"));
        assert_eq!(status, Some(0), "{said}");
        server.expect_exit(0, START);
        let text = server.all_lines(START);
        for (text, start) in
            [(&text, "server ping data: rdma-ping-"), (&said, "ping data: rdma-ping-")]
        {
            let shown = text.lines().filter(|line| line.starts_with(start)).count();
            assert_eq!(shown, lines, "{text}");
        }
    }
}

/// Runs two pings against a server that reports a Write without performing it: the client detects that also without
/// the option.
fn validate(bench: &Bench) {
    let (node, adapter) = adapter(bench);
    thread::scope(|scope| {
        let liar = scope.spawn(|| {
            let incoming = Arc::new(Mutex::new(Vec::new()));
            let told = incoming.clone();
            let listener = adapter.create_listener(move |connector| told.lock().push(connector));
            let listener = listener.unwrap();
            assert_eq!(
                listener.listen("10.0.0.3:7174".parse().unwrap(), |_| ()),
                NtStatus::PENDING
            );
            for _ in 0..2 {
                let connector = wait(&node, || incoming.lock().pop());
                respond_without_data(&node, &adapter, &connector);
            }
        });
        for option in ["", "--validate"] {
            let (status, said) = ping(bench, &format!("-a 10.0.0.3 -C 1 {option}"));
            assert_eq!(status, Some(1), "{said}");
            assert!(said.contains("ping 0: octet 0: received 0x00, expected 0x72"), "{said}");
            assert!(said.contains("hint: the peer must be a server of rping"), "{said}");
        }
        liar.join().unwrap();
    });
}

const LIMIT: Duration = Duration::from_secs(60);

/// Node 3, in this process.
fn adapter(bench: &Bench) -> (Node<AdapterCore>, Adapter) {
    let options = TapOptions::new("tap3", 1500, VnetMode::Auto);
    let opened = bench.switch.attach("tap3", || open_tap(&options)).unwrap();
    open(Box::new(opened.link), NodeConfig::new(station(3)), AdapterConfig::default()).unwrap()
}

fn wait<T>(node: &Node<AdapterCore>, f: impl FnMut() -> Option<T>) -> T {
    node.wait_until(Some(LIMIT), f).expect("a client that is still running")
}

/// Responds to each message without transferring data, and disconnects when the client does.
fn respond_without_data(node: &Node<AdapterCore>, adapter: &Adapter, connector: &Connector) {
    let cq = adapter.create_cq(16, |_| ()).unwrap();
    let pd = adapter.create_pd().unwrap();
    let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default()).unwrap();
    let mr = pd.create_mr(false).unwrap();
    let buffer = adapter.allocate(ADVERT_BYTES).unwrap();
    mr.register(&buffer, 0, ADVERT_BYTES, MrFlags::ALLOW_LOCAL_WRITE).unwrap();
    let token = mr.local_token();
    let sge = Sge { address: buffer.address(), length: ADVERT_BYTES as u32, token };
    qp.receive(0, &[sge]).unwrap();
    let ended = Arc::new(Mutex::new(None));
    let event = ended.clone();
    let limits = ReadLimit { inbound: 1, outbound: 1 };
    let event = Box::new(move |reason| *event.lock() = Some(reason));
    let status = connector.accept(&qp, limits, &[], Some(event), |_| ());
    assert!([NtStatus::PENDING, NtStatus::SUCCESS].contains(&status), "{status}");
    let mut over = false;
    while !over {
        let mut results = [NdkResultEx::default()];
        let found = wait(node, || match cq.poll_ex(&mut results) {
            0 => ended.lock().map(|_| false),
            _ => Some(true),
        });
        over = !found;
        if found
            && results[0].operation == OperationType::Receive
            && results[0].status == NtStatus::SUCCESS
        {
            qp.receive(0, &[sge]).unwrap();
            let go_ahead = Advert::GO_AHEAD.encode();
            qp.send(1, Data::Inline(&[&go_ahead]), OpFlags::empty()).unwrap();
        }
    }
    // The client need not wait for the disconnect.
    let _ = connector.disconnect(|_| ());
}
