use host_stack::{socket::OffloadPolicy, stream::OffloadState};

use offload_engine::tcp::{CaState, CongestionAlgorithm};

use super::{listing::Rates, *};
use crate::control::record::Record;
pub(crate) use crate::control::record::{QueuePairCounters, Refused, TcpInfo};

/// Returns an offloaded connection in ESTAB, or a listener.
pub(crate) fn connection(local: &str, remote: Option<&str>) -> Record {
    let remote = remote.map(|remote| remote.parse().unwrap());
    let (state, offload_state) = match remote {
        Some(_) => ("ESTAB", OffloadState::Offloaded),
        None => ("LISTEN", OffloadState::InHost),
    };
    Record {
        qp: None,
        peer_qp: None,
        rdma: None,
        handle: 7,
        state: Some(state.into()),
        offload_state,
        local: local.parse().unwrap(),
        remote,
        recv_q: Some(0),
        send_q: Some(128),
        timers: None,
        memory: None,
        offloads: u32::from(remote.is_some()),
        uploads: 0,
        last_upload_reason: None,
        refusals: 0,
        last_refusal: None,
        info: None,
        state_tree: None,
    }
}

pub(crate) fn info() -> TcpInfo {
    TcpInfo {
        timestamps: true,
        sack: true,
        ecn: false,
        wscale: Some((7, 8)),
        rto_ns: 204_000_000,
        rtt_ns: Some(50_000),
        rttvar_ns: Some(20_500),
        min_rtt_ns: Some(12_000),
        rcv_rtt_ns: Some(1_250_000),
        snd_mss_bytes: 1448,
        rcv_mss_bytes: 1448,
        advmss_bytes: 1460,
        pmtu_bytes: 1500,
        snd_cwnd_bytes: 14_480,
        snd_ssthresh_bytes: Some(28_960),
        snd_wnd_bytes: Some(65_536),
        rcv_wnd_bytes: Some(262_144),
        rcv_space_bytes: 262_144,
        bytes_sent: 100_000,
        bytes_retrans: 1448,
        bytes_acked: 98_552,
        bytes_received: 5,
        bytes_delivered: Some(98_552),
        segs_out: 70,
        segs_in: 36,
        segs_psh_out: Some(2),
        unacked_segs: 1,
        sacked_segs: 0,
        lost_segs: 0,
        retrans_segs: 0,
        total_retrans_segs: 3,
        fast_retransmits: Some(1),
        timeouts: Some(0),
        spurious_timeouts: Some(0),
        dsack_dups: 0,
        reord_seen: 0,
        delivered_ce_segs: 0,
        ce_received_segs: Some(0),
        challenge_acks: Some(0),
        path_mtu_reductions: Some(0),
        soft_errors: Some(0),
        ca_state: CaState::Open,
        pacing_rate_bps: Some(2_500_000),
        last_data_sent_ns: Some(4_000_000),
        last_data_recv_ns: None,
        last_ack_recv_ns: Some(3_999_999),
        busy_time_ns: 200_000_000,
        rwnd_limited_ns: 50_000_000,
    }
}

pub(crate) fn node() -> NodeName {
    NodeName {
        tap: "flue0".into(),
        pid: 71,
        queues: 1,
        addresses: vec!["10.0.0.2".parse().unwrap()],
        offload: OffloadPolicy::Always,
        congestion_control: CongestionAlgorithm::Cubic,
    }
}

pub(crate) fn listed(connections: Vec<Record>) -> [Listed; 1] {
    let connections = connections.into_iter().map(Row::from).collect();
    [Listed {
        control: "/x.sock".into(),
        at: Instant::now(),
        uid: Some(1000),
        program: Some("ping".into()),
        node: Some(node()),
        adapter: None,
        capture: None,
        connections,
        error: None,
    }]
}

fn args(line: &str) -> SsArgs {
    use clap::Parser;
    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        ss: SsArgs,
    }
    let words = std::iter::once("ss").chain(line.split_whitespace());
    Line::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}")).ss
}

#[test]
fn table_has_columns_of_ss_and_offload_state() {
    let nodes = listed(vec![
        connection("0.0.0.0:5000", None),
        connection("10.0.0.2:5000", Some("10.0.0.1:43210")),
    ]);
    let expected = "\
State   Recv-Q  Send-Q  Local Address:Port  Peer Address:Port  Offload
LISTEN  0       128           0.0.0.0:5000                *:*  InHost
ESTAB   0       128          10.0.0.2:5000     10.0.0.1:43210  Offloaded
";
    assert_eq!(render_table(&args("-a"), &nodes), expected);
    let without: String = expected.lines().skip(1).map(|line| format!("{line}\n")).collect();
    assert_eq!(render_table(&args("-aH"), &nodes), without);
    let with = render_table(&args("-ap"), &nodes);
    assert!(with.lines().nth(1).unwrap().ends_with("node:((\"flue0\",pid=71))"), "{with}");
}

#[test]
fn tables_fit_80_columns() {
    let mut record = connection("10.77.100.102:50000", Some("10.77.100.101:43210"));
    (record.recv_q, record.send_q) = (Some(262_144), Some(524_288));
    let mut nodes = listed(vec![record]);
    let rates = Rates { send_bps: 1.234e10, receive_bps: 9.87e8, ..Rates::default() };
    nodes[0].connections[0].rates = Some(rates);
    for line in ["", "--interval 1"] {
        let text = render_table(&args(line), &nodes);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}

// Order and names of ss -i (misc/ss.c of iproute2: tcp_stats_print).
#[test]
fn tcp_info_has_the_names_of_ss() {
    let mut record = connection("10.0.0.2:5000", Some("10.0.0.1:43210"));
    record.info = Some(Box::new(info()));
    let expected = "ts sack cubic wscale:7,8 rto:204 rtt:0.05/0.021 mss:1448 pmtu:1500 rcvmss:1448 advmss:1460 \
         cwnd:10 ssthresh:20 bytes_sent:100000 bytes_retrans:1448 bytes_acked:98552 bytes_received:5 \
         segs_out:70 segs_in:36 send 2.32Gbps lastsnd:4 lastack:3 pacing_rate 2.50Mbps \
         busy:200ms rwnd_limited:50ms(25.0%) unacked:1 retrans:0/3 rcv_rtt:1.25 rcv_space:262144 \
         minrtt:0.012 snd_wnd:65536 rcv_wnd:262144 offloads:1 uploads:0";
    assert_eq!(format::of(&record, &node()), expected);
    let text = render_table(&args("-iH"), &listed(vec![record.clone()]));
    assert_eq!(text.lines().count(), 2);
    assert_eq!(text.lines().nth(1).unwrap(), format!("\t {expected}"));
    assert_eq!(render_table(&args("-iOH"), &listed(vec![record])).lines().count(), 1);
}

#[test]
fn uploaded_connection_has_its_reason() {
    let mut record = connection("10.0.0.2:5000", Some("10.0.0.1:43210"));
    record.offload_state = OffloadState::InHost;
    record.uploads = 1;
    record.last_upload_reason = Some("LowActivity".into());
    record.refusals = 2;
    record.last_refusal = Some(Refused {
        message: "target: NDIS_STATUS_OFFLOAD_TCP_ENTRIES (0xc0231004)".into(),
        ndis_status: Some(0xc023_1004),
        ndis_status_name: Some("NDIS_STATUS_OFFLOAD_TCP_ENTRIES".into()),
    });
    assert_eq!(
        format::of(&record, &node()),
        "offloads:1 uploads:1 upload_reason:LowActivity \
         refused:2(target: NDIS_STATUS_OFFLOAD_TCP_ENTRIES (0xc0231004))"
    );
    assert_eq!(format::of(&connection("0.0.0.0:1", None), &node()), "");
}

#[test]
fn queue_pair_has_its_number_and_that_of_its_peer() {
    let mut record = connection("10.0.0.2:5000", Some("10.0.0.1:43210"));
    record.qp = Some(0x2_9c40);
    assert_eq!(format::of(&record, &node()), "qp:171072 offloads:1 uploads:0");
    record.peer_qp = Some(0x9c41);
    assert_eq!(format::of(&record, &node()), "qp:171072 peer_qp:40001 offloads:1 uploads:0");
}

#[test]
fn queue_pair_has_its_counters() {
    let mut record = connection("10.0.0.2:5000", Some("10.0.0.1:43210"));
    record.qp = Some(7);
    let counters = QueuePairCounters {
        outstanding: 2,
        receives_posted: 4,
        sends: 3,
        send_bytes: 96,
        reads: 1,
        write_bytes_placed: 8,
        ..Default::default()
    };
    record.rdma = Some(Box::new(counters));
    let expected = "qp:7 outstanding:2 receives_posted:4 sends:3 send_bytes:96 reads:1 write_bytes_placed:8 \
                    offloads:1 uploads:0";
    assert_eq!(format::of(&record, &node()), expected);
}

#[test]
fn owner_memory_and_timers_have_the_format_of_ss() {
    use crate::control::record::{BufferMemory, Timer, TimerKind};

    let mut record = connection("10.0.0.2:5000", Some("10.0.0.1:1"));
    record.timers = Some(vec![
        Timer { kind: TimerKind::Retransmit, left_ms: 200, count: 3 },
        Timer { kind: TimerKind::KeepAlive, left_ms: 7_199_000, count: 0 },
    ]);
    record.memory = Some(BufferMemory {
        receive_bytes: 1,
        receive_max_bytes: 2,
        send_bytes: 3,
        send_max_bytes: 4,
        transmit_bytes: None,
        forward_bytes: None,
        options_bytes: None,
        backlog_bytes: None,
        drops: None,
    });
    let mut nodes = listed(vec![record.clone()]);
    nodes[0].connections[0].inode = Some(9);
    let below = |line: &str| render_table(&args(line), &nodes).lines().skip(1).collect::<String>();
    assert_eq!(below("-oH"), "\t timer:(on,200ms,3) timer:(keepalive,119min,0)");
    assert_eq!(below("-eH"), "\t uid:1000 ino:9 program:ping pid:71 node:flue0 handle:7");
    assert_eq!(below("-mH"), "\t skmem:(r1,rb2,tb4,w3)");
    assert!(below("-emoH").starts_with("\t timer:(on") && below("-emoH").ends_with("w3)"));
    if let Some(memory) = &mut record.memory {
        memory.transmit_bytes = Some(5);
        (memory.forward_bytes, memory.options_bytes) = (Some(6), Some(7));
        (memory.backlog_bytes, memory.drops) = (Some(8), Some(9));
    }
    assert_eq!(format::memory(&record), "skmem:(r1,rb2,t5,tb4,f6,w3,o7,bl8,d9)");
    // Nothing is known of a connection in the host stack: no line follows.
    let host = listed(vec![connection("10.0.0.2:5000", Some("10.0.0.1:1"))]);
    assert_eq!(render_table(&args("-omH"), &host).lines().count(), 1);
}

// print_ms_timer of iproute2 (misc/ss.c).
#[test]
fn remaining_time_has_the_format_of_ss() {
    let mut record = connection("10.0.0.2:5000", Some("10.0.0.1:1"));
    for (left_ms, text) in [
        (0, "000ms"),
        (4_200, "4.200ms"),
        (4_000, "4sec"),
        (12_345, "12sec"),
        (60_000, "1min"),
        (64_000, "1min4sec"),
        (7_190_000, "119min"),
    ] {
        use crate::control::record::{Timer, TimerKind};
        record.timers = Some(vec![Timer { kind: TimerKind::Persist, left_ms, count: 0 }]);
        assert_eq!(format::timers(&record), format!("timer:(persist,{text},0)"));
    }
}

#[test]
fn summary_has_totals_by_state_and_data_path() {
    let mut pair = connection("10.0.0.2:5000", Some("10.0.0.1:1"));
    pair.rdma = Some(Box::new(QueuePairCounters {
        outstanding: 3,
        receives_posted: 5,
        ..Default::default()
    }));
    let v6 = connection("[fd00::2]:5000", Some("[fd00::1]:1"));
    let listed = listed(vec![connection("0.0.0.0:5000", None), pair, v6]);
    let expected = "\
Nodes: 1
TCP:   3 (ESTAB 2, LISTEN 1)
RDMA:  1 queue pair (3 requests outstanding, 5 receives posted)

Data path  Total  IPv4  IPv6  Queue pairs
InHost         1     1     0            0
Offloaded      2     1     1            1
";
    let nodes = ListedNodes::new(listed.to_vec());
    assert_eq!(render(&args("-s"), &nodes), expected);
    let document = serde_json::to_value(&nodes).unwrap();
    assert_eq!(document["summary"]["states"]["ESTAB"], 2);
    assert_eq!(document["summary"]["data_paths"]["Offloaded"]["queue_pairs"], 1);
    for other in ["-si", "-se", "-sO"] {
        use clap::Parser;
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            _ss: SsArgs,
        }
        assert!(Line::try_parse_from(["ss", other]).is_err(), "{other} would change nothing");
    }
}

#[test]
fn connections_of_several_nodes_are_grouped() {
    let one = |pid| {
        let mut listed = listed(vec![connection("10.0.0.2:5000", Some("10.0.0.1:1"))]);
        listed[0].node.as_mut().unwrap().pid = pid;
        listed[0].clone()
    };
    let own = std::process::id();
    let program = client::program_name(own).unwrap();
    let nodes = [one(own), one(u32::MAX)];
    let text = render_table(&args(""), &nodes);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 5, "{text}");
    assert_eq!(lines[1], format!("flue0: {program}, pid {own}"));
    assert_eq!(lines[3], "flue0: pid 4294967295");
    // Lines for scripts, and a single node, have no headings.
    for (line, nodes) in [("-H", &nodes[..]), ("-O", &nodes), ("", &nodes[..1])] {
        assert!(!render_table(&args(line), nodes).contains("pid"), "{line}");
    }
}

// Forms accepted by ss: `-tin`, `-j`, filters after the options.
#[test]
fn options_of_ss_are_accepted() {
    let line = args("-tin state established dport = :22");
    assert!(line.tcp && line.info && line.numeric && !line.all);
    assert_eq!(line.filter.join(" "), "state established dport = :22");
    assert!(
        args("-j").output_args().json
            && args("--json").output_args().json
            && !args("-l").output_args().json
    );
}

// Unknown is null, and a node that did not reply has an error instead of a name.
#[test]
fn document_has_all_keys() {
    let mut nodes = listed(vec![connection("10.0.0.2:5000", Some("10.0.0.1:1"))]).to_vec();
    nodes.push(Listed {
        control: "/y.sock".into(),
        at: Instant::now(),
        uid: None,
        program: None,
        node: None,
        adapter: None,
        capture: None,
        connections: Vec::new(),
        error: Some("late".into()),
    });
    let document = serde_json::to_value(ListedNodes::new(nodes)).unwrap();
    let connection = &document["nodes"][0]["connections"][0];
    assert_eq!(document["nodes"][0]["tap"], "flue0");
    assert_eq!(connection["offload_state"], "Offloaded");
    for key in [
        "last_upload_reason",
        "last_refusal",
        "info",
        "state_tree",
        "rdma",
        "rates",
        "timers",
        "memory",
        "inode",
    ] {
        assert!(connection.get(key).is_some_and(serde_json::Value::is_null), "{key}");
    }
    assert_eq!(document["nodes"][1]["error"], "late");
}
