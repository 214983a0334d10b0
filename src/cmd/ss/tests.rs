use host_stack::{socket::OffloadPolicy, stream::OffloadState};

use offload_engine::tcp::{CaState, CongestionAlgorithm};

use super::*;
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
        addresses: vec!["10.0.0.2".parse().unwrap()],
        offload: OffloadPolicy::Always,
        congestion_control: CongestionAlgorithm::Cubic,
    }
}

pub(crate) fn listed(connections: Vec<Record>) -> [Listed; 1] {
    let connections = connections.into_iter().map(Row::from).collect();
    let (control, at) = ("/x.sock".into(), Instant::now());
    [Listed { control, at, node: Some(node()), adapter: None, connections, error: None }]
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
    assert_eq!(render(&args("-a"), &nodes), expected);
    let without: String = expected.lines().skip(1).map(|line| format!("{line}\n")).collect();
    assert_eq!(render(&args("-aH"), &nodes), without);
    let with = render(&args("-ap"), &nodes);
    assert!(with.lines().nth(1).unwrap().ends_with("node:((\"flue0\",pid=71))"), "{with}");
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
    let text = render(&args("-iH"), &listed(vec![record.clone()]));
    assert_eq!(text.lines().count(), 2);
    assert_eq!(text.lines().nth(1).unwrap(), format!("\t {expected}"));
    assert_eq!(render(&args("-iOH"), &listed(vec![record])).lines().count(), 1);
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
    let counters = QueuePairCounters { outstanding: 2, sends: 3, reads: 1, ..Default::default() };
    record.rdma = Some(Box::new(counters));
    let expected = "qp:7 outstanding:2 sends:3 reads:1 offloads:1 uploads:0";
    assert_eq!(format::of(&record, &node()), expected);
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
    let text = render(&args(""), &nodes);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 5, "{text}");
    assert_eq!(lines[1], format!("flue0: {program}, pid {own}"));
    assert_eq!(lines[3], "flue0: pid 4294967295");
    // Lines for scripts, and a single node, have no headings.
    for (line, nodes) in [("-H", &nodes[..]), ("-O", &nodes), ("", &nodes[..1])] {
        assert!(!render(&args(line), nodes).contains("pid"), "{line}");
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
        node: None,
        adapter: None,
        connections: Vec::new(),
        error: Some("late".into()),
    });
    let document = serde_json::to_value(ListedNodes { unix_time_ns: 7, nodes }).unwrap();
    let connection = &document["nodes"][0]["connections"][0];
    assert_eq!(document["nodes"][0]["tap"], "flue0");
    assert_eq!(connection["offload_state"], "Offloaded");
    for key in ["last_upload_reason", "last_refusal", "info", "state_tree", "rdma", "rates"] {
        assert!(connection.get(key).is_some_and(serde_json::Value::is_null), "{key}");
    }
    assert_eq!(document["nodes"][1]["error"], "late");
}
