//! Table of the metrics, and their text. Names and units are those of the conventions of Prometheus; the metrics of
//! ports have the names and units of `/sys/class/infiniband/*/ports/1/counters`.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text},
    metrics::MetricType,
    registry::{Registry, Unit},
};

use crate::{
    cmd::ss::listing::Listed,
    control::{
        client,
        record::{AdapterCounters, QueuePairCounters, Record, TcpInfo, shown},
        socket_path,
    },
};

/// Words of four octets, the unit of `port_xmit_data` and `port_rcv_data`.
const WORD_OCTETS: u64 = 4;

/// Node with the name of its program.
#[derive(Debug)]
pub(super) struct Scraped {
    listed: Listed,
    /// Labels of the node: TAP, process id, program.
    labels: Labels,
}

type Labels = Vec<(&'static str, String)>;

impl Scraped {
    pub(super) fn new(listed: Listed) -> Self {
        let named = listed.node.as_ref().map(|node| (node.tap.clone(), node.pid));
        // Without a reply, the name of the socket has both.
        let parsed = || socket_path::parse(&listed.control).map(|(tap, pid)| (tap.to_owned(), pid));
        let (tap, pid) = named.or_else(parsed).unwrap_or_default();
        let program = client::program_name(pid).unwrap_or_default();
        let labels = vec![("node", tap), ("pid", pid.to_string()), ("program", program)];
        Self { listed, labels }
    }
}

/// Value of a metric.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Value {
    Counter(u64),
    Gauge(f64),
}

/// Metric of one object: a connection, or a node.
struct Metric<T> {
    name: &'static str,
    unit: Option<Unit>,
    help: &'static str,
    kind: MetricType,
    value: fn(&T) -> Option<Value>,
}

const fn counter<T>(
    name: &'static str,
    unit: Option<Unit>,
    help: &'static str,
    value: fn(&T) -> Option<Value>,
) -> Metric<T> {
    Metric { name, unit, help, kind: MetricType::Counter, value }
}

const fn gauge<T>(
    name: &'static str,
    unit: Option<Unit>,
    help: &'static str,
    value: fn(&T) -> Option<Value>,
) -> Metric<T> {
    Metric { name, unit, help, kind: MetricType::Gauge, value }
}

fn tcp(record: &Record, value: impl Fn(&TcpInfo) -> Option<u64>) -> Option<Value> {
    record.info.as_deref().and_then(value).map(Value::Counter)
}

fn tcp_gauge(record: &Record, value: impl Fn(&TcpInfo) -> Option<f64>) -> Option<Value> {
    record.info.as_deref().and_then(value).map(Value::Gauge)
}

fn qp(record: &Record, value: impl Fn(&QueuePairCounters) -> u64) -> Option<Value> {
    record.rdma.as_deref().map(value).map(Value::Counter)
}

fn adapter(scraped: &Scraped, value: impl Fn(&AdapterCounters) -> u64) -> Option<Value> {
    scraped.listed.adapter.as_ref().map(value).map(Value::Counter)
}

const fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

const BYTES: Option<Unit> = Some(Unit::Bytes);
const SECONDS: Option<Unit> = Some(Unit::Seconds);

/// Metrics of a connection.
const OF_CONNECTIONS: &[Metric<Record>] = &[
    counter("flue_tcp_acknowledged", BYTES, "Bytes acknowledged by the peer", |it| {
        tcp(it, |info| Some(info.bytes_acked))
    }),
    counter("flue_tcp_received", BYTES, "Bytes received", |it| {
        tcp(it, |info| Some(info.bytes_received))
    }),
    counter("flue_tcp_sent", BYTES, "Bytes sent, retransmissions included", |it| {
        tcp(it, |info| Some(info.bytes_sent))
    }),
    counter("flue_tcp_retransmitted", BYTES, "Bytes retransmitted", |it| {
        tcp(it, |info| Some(info.bytes_retrans))
    }),
    counter("flue_tcp_sent_segments", None, "Segments sent", |it| {
        tcp(it, |info| Some(info.segs_out))
    }),
    counter("flue_tcp_received_segments", None, "Segments received", |it| {
        tcp(it, |info| Some(info.segs_in))
    }),
    counter("flue_tcp_retransmissions", None, "Segments retransmitted", |it| {
        tcp(it, |info| Some(info.total_retrans_segs))
    }),
    counter("flue_tcp_timeouts", None, "Retransmission timeouts; offloaded connections", |it| {
        tcp(it, |info| info.timeouts)
    }),
    gauge("flue_tcp_rtt", SECONDS, "Smoothed round-trip time", |it| {
        tcp_gauge(it, |info| info.rtt_ns.map(seconds))
    }),
    gauge("flue_tcp_min_rtt", SECONDS, "Minimum round-trip time", |it| {
        tcp_gauge(it, |info| info.min_rtt_ns.map(seconds))
    }),
    gauge("flue_tcp_congestion_window", BYTES, "Congestion window", |it| {
        tcp_gauge(it, |info| Some(info.snd_cwnd_bytes as f64))
    }),
    gauge("flue_tcp_send_queue", BYTES, "Bytes sent and not acknowledged", |it| {
        it.send_q.map(|bytes| Value::Gauge(bytes as f64))
    }),
    counter("flue_connection_offloads", None, "Completed offloads", |it| {
        Some(Value::Counter(it.offloads.into()))
    }),
    counter("flue_connection_uploads", None, "Completed uploads", |it| {
        Some(Value::Counter(it.uploads.into()))
    }),
    counter("flue_connection_refusals", None, "Refused offloads and uploads", |it| {
        Some(Value::Counter(it.refusals.into()))
    }),
    gauge("flue_qp_outstanding_requests", None, "Requests posted and not complete", |it| {
        it.rdma.as_ref().map(|rdma| Value::Gauge(rdma.outstanding as f64))
    }),
    gauge("flue_qp_posted_receives", None, "Receives posted that no message has taken", |it| {
        it.rdma.as_ref().map(|rdma| Value::Gauge(rdma.receives_posted as f64))
    }),
    counter("flue_qp_sends", None, "Sends started", |it| qp(it, |rdma| rdma.sends)),
    counter("flue_qp_send", BYTES, "Payload of Sends started", |it| qp(it, |rdma| rdma.send_bytes)),
    counter("flue_qp_writes", None, "RDMA Writes started", |it| qp(it, |rdma| rdma.writes)),
    counter("flue_qp_write", BYTES, "Payload of RDMA Writes started", |it| {
        qp(it, |rdma| rdma.write_bytes)
    }),
    counter("flue_qp_reads", None, "RDMA Read Requests sent", |it| qp(it, |rdma| rdma.reads)),
    counter("flue_qp_read", BYTES, "Payload of RDMA Read Responses placed", |it| {
        qp(it, |rdma| rdma.read_bytes)
    }),
    counter("flue_qp_atomics", None, "Atomic Requests sent", |it| qp(it, |rdma| rdma.atomics)),
    counter("flue_qp_immediates", None, "Immediate Data messages sent", |it| {
        qp(it, |rdma| rdma.immediates)
    }),
    counter("flue_qp_receives", None, "Sends and immediate data received", |it| {
        qp(it, |rdma| rdma.receives)
    }),
    counter("flue_qp_receive", BYTES, "Payload of Sends received", |it| {
        qp(it, |rdma| rdma.receive_bytes)
    }),
    counter("flue_qp_placed_writes", None, "Writes of the peer placed in full", |it| {
        qp(it, |rdma| rdma.writes_placed)
    }),
    counter("flue_qp_placed_write", BYTES, "Payload of the peer's Writes placed", |it| {
        qp(it, |rdma| rdma.write_bytes_placed)
    }),
    counter("flue_qp_placed_write_segments", None, "FPDUs of the peer's Writes placed", |it| {
        qp(it, |rdma| rdma.write_segments_placed)
    }),
    counter("flue_qp_read_responses", None, "Read Requests answered", |it| {
        qp(it, |rdma| rdma.read_responses)
    }),
    counter("flue_qp_read_response", BYTES, "Payload of Read Responses sent", |it| {
        qp(it, |rdma| rdma.read_response_bytes)
    }),
    counter("flue_qp_atomic_responses", None, "Atomic Requests answered", |it| {
        qp(it, |rdma| rdma.atomic_responses)
    }),
    counter("flue_qp_sent_fpdus", None, "FPDUs sent", |it| qp(it, |rdma| rdma.fpdus_sent)),
    counter("flue_qp_received_fpdus", None, "FPDUs received", |it| {
        qp(it, |rdma| rdma.fpdus_received)
    }),
    counter("flue_qp_flushed_requests", None, "Requests completed as flushed", |it| {
        qp(it, |rdma| rdma.requests_flushed)
    }),
    counter("flue_qp_sent_terminates", None, "Terminate messages sent", |it| {
        qp(it, |rdma| rdma.terminates_sent)
    }),
    counter("flue_qp_received_terminates", None, "Terminate messages received", |it| {
        qp(it, |rdma| rdma.terminates_received)
    }),
];

/// Metrics of a node. Counters include closed connections.
const OF_NODES: &[Metric<Scraped>] = &[
    gauge("flue_up", None, "1 if the node has replied, 0 if not", |it| {
        Some(Value::Gauge(if it.listed.node.is_some() { 1.0 } else { 0.0 }))
    }),
    gauge("flue_node_connections", None, "Connections and listeners", |it| {
        it.listed.node.as_ref().map(|_| Value::Gauge(it.listed.connections.len() as f64))
    }),
    gauge("flue_node_offloaded_connections", None, "Connections in the offload target", |it| {
        let is_offloaded =
            |record: &Record| record.offload_state == host_stack::stream::OffloadState::Offloaded;
        let rows = it.listed.connections.iter();
        let count = rows.filter(|row| is_offloaded(&row.record)).count();
        it.listed.node.as_ref().map(|_| Value::Gauge(count as f64))
    }),
    gauge("flue_adapter_active_connections", None, "Queue pairs connected", |it| {
        let counters = it.listed.adapter.as_ref();
        counters.map(|counters| Value::Gauge(counters.active_connections as f64))
    }),
    counter("flue_adapter_connects", None, "Outbound connections of queue pairs", |it| {
        adapter(it, |counters| counters.connects)
    }),
    counter("flue_adapter_accepts", None, "Inbound connections of queue pairs", |it| {
        adapter(it, |counters| counters.accepts)
    }),
    counter("flue_adapter_connect_failures", None, "Connection attempts that failed", |it| {
        adapter(it, |counters| counters.connect_failures)
    }),
    counter("flue_adapter_connection_errors", None, "Connections ended by an error", |it| {
        adapter(it, |counters| counters.connection_errors)
    }),
    counter("flue_adapter_cq_errors", None, "Completion queues that failed", |it| {
        adapter(it, |counters| counters.cq_errors)
    }),
    counter(
        "flue_adapter_datagrams_dropped",
        None,
        "Datagrams that no queue pair has taken",
        |it| adapter(it, |counters| counters.datagrams_dropped),
    ),
    counter("flue_port_xmit_data", None, "FPDU octets sent, in words of 4 octets", |it| {
        adapter(it, |counters| counters.fpdu_bytes_sent / WORD_OCTETS)
    }),
    counter("flue_port_rcv_data", None, "FPDU octets received, in words of 4 octets", |it| {
        adapter(it, |counters| counters.fpdu_bytes_received / WORD_OCTETS)
    }),
    counter("flue_port_xmit_packets", None, "FPDUs sent", |it| {
        adapter(it, |counters| counters.fpdus_sent)
    }),
    counter("flue_port_rcv_packets", None, "FPDUs received", |it| {
        adapter(it, |counters| counters.fpdus_received)
    }),
];

/// Encodes one family: `values` of all objects, with their labels.
fn encode_family<T>(
    encoder: &mut DescriptorEncoder<'_>,
    metric: &Metric<T>,
    values: impl Iterator<Item = (Labels, Option<Value>)>,
) -> fmt::Result {
    let Metric { name, unit, help, kind, value: _ } = metric;
    let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), *kind)?;
    for (labels, value) in values {
        let Some(value) = value else { continue };
        let mut encoder: MetricEncoder<'_> = family.encode_family(&labels)?;
        match value {
            Value::Counter(count) => encoder.encode_counter::<NoLabelSet, _, u64>(&count, None)?,
            Value::Gauge(number) => encoder.encode_gauge(&number)?,
        }
    }
    Ok(())
}

/// Labels of a connection, after those of its node.
fn connection_labels(scraped: &Scraped, record: &Record) -> Labels {
    let mut labels = scraped.labels.clone();
    labels.push(("local", record.local.to_string()));
    labels.push(("remote", shown(record.remote)));
    labels.push(("qp", record.qp.map_or_else(String::new, |qp| qp.to_string())));
    labels
}

#[derive(Debug)]
struct Snapshot(Vec<Scraped>);

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for metric in OF_NODES {
            let values = self.0.iter().map(|it| (it.labels.clone(), (metric.value)(it)));
            encode_family(&mut encoder, metric, values)?;
        }
        for metric in OF_CONNECTIONS {
            let values = self.0.iter().flat_map(|scraped| {
                let rows = scraped.listed.connections.iter().map(|row| &row.record);
                let rows = rows.filter(|record| !record.is_listener());
                rows.map(|it| (connection_labels(scraped, it), (metric.value)(it)))
            });
            encode_family(&mut encoder, metric, values)?;
        }
        Ok(())
    }
}

/// Returns the text of the metrics.
pub(super) fn text(nodes: Vec<Scraped>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Snapshot(nodes)));
    let mut text = String::new();
    // Cannot fail: a string takes any text.
    let _ = prometheus_text::encode(&mut text, &registry);
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::cmd::ss::tests::*;

    fn scraped() -> Vec<Scraped> {
        let mut record = connection("10.0.0.2:5000", Some("10.0.0.1:43210"));
        record.info = Some(Box::new(info()));
        record.qp = Some(77);
        record.rdma = Some(Box::new(QueuePairCounters {
            writes: 9,
            write_bytes: 90,
            receives_posted: 4,
            ..Default::default()
        }));
        let [mut node] = listed(vec![record, connection("0.0.0.0:1", None)]);
        let counters = AdapterCounters { fpdu_bytes_sent: 4_000_000_001, ..Default::default() };
        node.adapter = Some(counters);
        let [mut silent] = listed(Vec::new());
        (silent.node, silent.control) = (None, "/run/flue/kernel-4194305.sock".into());
        vec![Scraped::new(node), Scraped::new(silent)]
    }

    #[test]
    fn values_have_names_units_and_labels() {
        let mut nodes = scraped();
        nodes[0].labels[2].1 = "a\"b".into();
        let text = text(nodes);
        let own = r#"node="flue0",pid="71",program="a\"b""#;
        let of = format!(r#"{own},local="10.0.0.2:5000",remote="10.0.0.1:43210",qp="77""#);
        for line in [
            format!("flue_up{{{own}}} 1.0"),
            r#"flue_up{node="kernel",pid="4194305",program=""} 0.0"#.into(),
            format!("flue_node_connections{{{own}}} 2.0"),
            format!("flue_port_xmit_data_total{{{own}}} 1000000000"),
            format!("flue_tcp_retransmissions_total{{{of}}} 3"),
            format!("flue_tcp_acknowledged_bytes_total{{{of}}} 98552"),
            format!("flue_tcp_rtt_seconds{{{of}}} 0.00005"),
            format!("flue_qp_writes_total{{{of}}} 9"),
            format!("flue_qp_write_bytes_total{{{of}}} 90"),
            format!("flue_qp_posted_receives{{{of}}} 4.0"),
            "# TYPE flue_tcp_retransmissions_total counter".into(),
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
        // A listener has no counters.
        assert!(!text.contains("0.0.0.0:1"), "{text}");
    }

    #[test]
    fn each_metric_has_a_name_of_its_own_and_a_type() {
        let text = text(scraped());
        let types: Vec<_> = text.lines().filter_map(|it| it.strip_prefix("# TYPE ")).collect();
        assert_eq!(types.len(), OF_NODES.len() + OF_CONNECTIONS.len());
        let names: BTreeSet<_> = types.iter().filter_map(|it| it.split(' ').next()).collect();
        assert_eq!(names.len(), types.len());
        for line in types {
            let is_total = line.contains("_total ");
            assert_eq!(line.ends_with(" counter"), is_total, "{line}");
        }
    }

    // A renamed metric would leave an empty panel.
    #[test]
    fn dashboard_names_exported_metrics() {
        let dashboard = include_str!("../../../docs/tools/grafana.json");
        let document: serde_json::Value = serde_json::from_str(dashboard).unwrap();
        let panels = document["panels"].as_array().unwrap();
        let expressions = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
        let expressions: String =
            expressions.map(|target| target["expr"].as_str().unwrap().to_owned() + "\n").collect();
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let words = expressions.split(|letter| !is_name(letter));
        let named: BTreeSet<_> = words.filter(|word| word.starts_with("flue_")).collect();
        assert!(named.len() >= 8, "{named:?}");
        let text = text(scraped());
        for name in named {
            assert!(text.contains(&format!("# TYPE {name} ")), "{name} is not exported");
        }
    }
}
