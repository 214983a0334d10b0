//! Numbers in documents match those of the code: `docs/reference/limits.md` is compared with the constants, and
//! sentences of other documents with `docs/reference/limits.md`, or directly with constants.

use std::{collections::BTreeMap, fmt::Write as _, fs};

use offload_engine::{
    chimney::provider::OffloadCapabilities,
    engine::EngineConfig,
    state::MacAddress,
    tcp::{Share, UploadThresholds},
    time::Duration,
};
use rdma_over_tcp::rnic::{Capabilities, Limits};

use super::{files, root};

/// Path of the document.
const FILE: &str = "docs/reference/limits.md";

/// Limit in base units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Value {
    /// Bytes, frames, connections; bytes per second.
    Count(u64),
    /// Nanoseconds.
    Time(u64),
}

impl From<Duration> for Value {
    fn from(time: Duration) -> Self {
        Self::Time(u64::try_from(time.as_nanos()).unwrap())
    }
}

macro_rules! from_integers {
    ($($integer:ty),*) => {
        $(impl From<$integer> for Value {
            fn from(count: $integer) -> Self {
                Self::Count(u64::try_from(count).unwrap())
            }
        })*
    };
}

from_integers!(u8, u16, u32, u64, usize);

/// `(path, value)` of constants, from their paths.
macro_rules! constants {
    ($($path:path),* $(,)?) => { [$((stringify!($path), Value::from($path))),*] };
}

/// `(Type::field, value)` of configuration fields.
macro_rules! fields {
    ($name:literal, $config:expr; $($field:ident),* $(,)?) => {{
        let config = $config;
        [$((concat!($name, "::", stringify!($field)), Value::from(config.$field))),*]
    }};
}

/// Limits with a public name.
fn public() -> BTreeMap<&'static str, Value> {
    let mut known = BTreeMap::new();
    known.extend(engine_constants());
    known.extend(host_constants());
    known.extend(fields!["OffloadCapabilities", OffloadCapabilities::default();
        connections_max, paths_max, neighbors_max, ip_addresses_max, hw_addresses_max, vlans_max, transmit_buffer_max,
        receive_buffer_max, path_mtu_max]);
    known.extend(fields!["EngineConfig", EngineConfig::new(MacAddress([2, 0, 0, 0, 0, 1]));
        nce_stale, rx_batch_frames_max, rx_batch_bytes_max, gso_payload_max]);
    known.extend(fields!["tcp::Config", offload_engine::tcp::Config::default();
        rcv_wnd_max, reassembly_gaps_max, in_flight_min, link_rate, ack_frequency, delayed_ack, quick_acks, push_delay,
        rto_min, rto_max, retransmissions_max, duplicate_ack_threshold, fin_wait_2, time_wait]);
    known.extend(fields!["HostConfig", host_stack::host::HostConfig::default();
        time_wait, receive_buffer, send_buffer, receive_window_max]);
    known.extend(
        fields!["OffloadRules", host_stack::offload_policy::OffloadRules::default(); holddown],
    );
    known.extend(fields!["ListenerConfig", rdma_over_tcp::rnic::ListenerConfig::default();
        backlog, requests_max, requests_per_peer_max]);
    known.extend(fields!["rnic::Config", rdma_over_tcp::rnic::Config::default();
        reply_timeout, request_timeout, accept_timeout, connect_timeout, disconnect_timeout, end_wait,
        terminate_timeout, accept_race_timeout]);
    known.extend(fields!["Capabilities", Capabilities::default();
        max_pd_count, max_cq_count, max_qp_count, max_mr_count, max_mw_count, max_lam_count, max_srq_count,
        max_connector_count, max_listener_count]);
    known.extend(fields!["Limits", Limits::default();
        registration_bytes_max, fast_register_pages_max, send_sges_max, receive_sges_max, read_sges_max,
        transfer_bytes_max, inline_bytes_max, ird_max, ord_max, receive_depth_max, srq_depth_max, send_depth_max,
        cq_depth_max, private_data_max]);
    known
}

fn engine_constants() -> impl IntoIterator<Item = (&'static str, Value)> {
    constants![
        offload_engine::engine::BURST_BYTES_MAX,
        offload_engine::engine::CLIENTS_MAX,
        offload_engine::engine::EARLY_BYTES_MAX,
        offload_engine::engine::EARLY_FRAMES_MAX,
        offload_engine::engine::FROM_HOST_MESSAGES_MAX,
        offload_engine::engine::HELD_BYTES_MAX,
        offload_engine::engine::HELD_FRAMES_MAX,
        offload_engine::engine::DELAYED_TREES_MAX,
        offload_engine::engine::PASSED_FRAMES_MAX,
        offload_engine::engine::STALLED_FRAMES_MAX,
        offload_engine::engine::TRANSMIT_SEGMENTS_MAX,
        offload_engine::engine::port::TO_HOST_FRAMES_MAX,
        offload_engine::link::MTU_MAX,
        offload_engine::link::RATE_QUEUE_BYTES_MAX,
        offload_engine::link::REORDER_DISTANCE_MAX,
        offload_engine::link::REORDER_HOLD_MAX,
        offload_engine::link::TAP_QUEUES_MAX,
        offload_engine::tcp::SEND_BACKLOG,
        offload_engine::tcp::SLICES_MAX,
    ]
}

fn host_constants() -> impl IntoIterator<Item = (&'static str, Value)> {
    let buffers = host_stack::host::BUFFER_RANGE;
    let ends = [
        ("host_stack::host::BUFFER_RANGE.start()", Value::from(*buffers.start())),
        ("host_stack::host::BUFFER_RANGE.end()", Value::from(*buffers.end())),
    ];
    let constants = constants![
        flue_network::plumb::TXQUEUELEN_DEFAULT,
        flue_adapter::control::FILES_MAX,
        flue_adapter::units::DELAY_MAX,
        host_stack::host::ADDRESSES_MAX,
        host_stack::host::BACKLOG_MAX,
        host_stack::host::CONNECTIONS_MAX,
        host_stack::host::HANDSHAKE_MAX,
        host_stack::host::HELD_BYTES_MAX,
        host_stack::host::HELD_FRAMES_MAX,
        host_stack::host::MTU_MAX,
        host_stack::host::MTU_MIN,
        host_stack::host::RETRANSMISSION_MAX,
        host_stack::node::SHUTDOWN_DRAIN_MAX,
        host_stack::socket::AUTO_OFFLOAD_BYTES,
        host_stack::socket::DATAGRAMS_DELIVERED_MAX,
        host_stack::socket::DATAGRAMS_SENT_MAX,
        host_stack::socket::RECEIVE_CREDIT_BYTES,
        host_stack::socket::SEND_CREDIT_BYTES,
        host_stack::stream::RECEIVE_QUEUE_BYTES_MAX,
        rdma_over_tcp::mpa::MULPDU_MAX,
        rdma_over_tcp::mpa::startup::PRIVATE_DATA_OCTETS_MAX,
        rdma_over_tcp::rnic::COPY_ASIDE_MAX,
        rdma_over_tcp::rnic::KEEP_ALIVE_IDLE,
        rdma_over_tcp::rnic::KEEP_ALIVE_INTERVAL,
        rdma_over_tcp::rnic::KEEP_ALIVE_PROBES,
        rdma_over_tcp::rnic::PAGE_SIZE,
    ];
    constants.into_iter().chain(ends)
}

/// Value of an integer expression: `16 * 1024`, `256 << 20`, `1_024`.
fn integer(expression: &str) -> Option<u64> {
    if let Some((left, right)) = expression.split_once('*') {
        return integer(left)?.checked_mul(integer(right)?);
    }
    if let Some((left, right)) = expression.split_once("<<") {
        return integer(left)?.checked_shl(integer(right)?.try_into().ok()?);
    }
    expression.trim().replace('_', "").parse().ok()
}

/// Value of an integer expression, or of `Duration::from_secs(5)`.
fn evaluate(expression: &str) -> Option<Value> {
    let Some(time) = expression.trim().strip_prefix("Duration::from_") else {
        return integer(expression).map(Value::Count);
    };
    let (unit, count) = time.strip_suffix(')')?.split_once('(')?;
    let nanos = match unit {
        "secs" => 1_000_000_000,
        "millis" => 1_000_000,
        "micros" => 1_000,
        _ => return None,
    };
    Some(Value::Time(integer(count)? * nanos))
}

/// Right-hand side of `const NAME: Type = …;`.
fn right_hand_side<'a>(source: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = source.split_once(&format!("const {name}: "))?;
    Some(rest.split_once(" = ")?.1.split_once(';')?.0)
}

/// Value of a private constant, `directory/file.rs::NAME`.
fn private(path: &str, sources: &[(String, String)]) -> Result<Value, String> {
    let (file, name) = path.rsplit_once("::").unwrap();
    let of_file = |it: &&(String, String)| it.0 == file;
    let here = sources.iter().find(of_file).and_then(|(_, text)| right_hand_side(text, name));
    let Some(expression) = here else {
        let others = sources.iter().filter(|(_, text)| right_hand_side(text, name).is_some());
        let others: Vec<&str> = others.map(|(file, _)| file.as_str()).collect();
        return Err(format!("{path} not found; files with a constant of that name: {others:?}"));
    };
    evaluate(expression).ok_or_else(|| format!("{path} = {expression}: not a number"))
}

/// Value of a row's number and unit.
fn documented(value: &str, unit: &str) -> Option<Value> {
    let count: u64 = value.replace(',', "").parse().ok()?;
    Some(match unit {
        "KiB" => Value::Count(count << 10),
        "MiB" => Value::Count(count << 20),
        "GiB" => Value::Count(count << 30),
        "TiB" => Value::Count(count << 40),
        "Gbit/s" => Value::Count(count * 125_000_000),
        "ms" => Value::Time(count * 1_000_000),
        "s" => Value::Time(count * 1_000_000_000),
        _ => Value::Count(count),
    })
}

/// Row of the document.
struct Row<'a> {
    value: &'a str,
    unit: &'a str,
    constant: &'a str,
}

fn rows(text: &str) -> Vec<Row<'_>> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let cells = lines.map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    cells
        .filter(|cells| cells[0] != "limit")
        .map(|cells| {
            let &[_, value, unit, constant] = cells.as_slice() else {
                panic!("{FILE}: expected four cells: {cells:?}");
            };
            Row { value, unit, constant: constant.trim_matches('`') }
        })
        .collect()
}

#[test]
fn limits_document_matches_constants() {
    let text = fs::read_to_string(root().join(FILE)).unwrap();
    let (rows, sources) = (rows(&text), files("rs"));
    let mut known = public();
    let mut findings = String::new();
    for Row { value, unit, constant } in &rows {
        let actual = if constant.contains(".rs::") {
            private(constant, &sources)
        } else {
            known.remove(constant).ok_or_else(|| {
                format!("{constant} has two rows, or is missing in tests/tidy/limits.rs")
            })
        };
        match actual {
            Err(error) => writeln!(findings, "{FILE}: {error}").unwrap(),
            Ok(actual) if documented(value, unit) != Some(actual) => {
                writeln!(findings, "{FILE}: {constant} is {actual:?}, not {value} {unit}").unwrap();
            }
            Ok(_) => {}
        }
    }
    for constant in known.keys() {
        writeln!(findings, "{FILE}: {constant} is missing").unwrap();
    }
    assert!(findings.is_empty(), "\n{findings}");
    assert!(rows.len() > 100, "only {} rows", rows.len());
}

/// Sentences that state numbers, with the constant in place of its value. `{CONSTANT}` is a row of
/// `docs/reference/limits.md`; values of size, time and rate include their unit. `{UNIT:FILE::CONSTANT}` is a constant
/// of a file, without such a row.
const SENTENCES: &[(&str, &[&str])] = &[
    ("docs/contributing/architecture.md", ARCHITECTURE),
    ("docs/contributing/data-path.md", DATA_PATH),
    ("docs/contributing/decisions.md", DECISIONS),
    ("docs/reference/chimney.md", CHIMNEY),
    ("docs/reference/chimney-windows.md", CHIMNEY_WINDOWS),
    ("docs/concepts/iwarp.md", IWARP),
    ("docs/concepts/tcp-offload.md", OFFLOAD),
    ("docs/conformance/ndk.md", CONFORMANCE_NDK),
    ("docs/conformance/tcp.md", CONFORMANCE_TCP),
    ("docs/contributing/interop.md", INTEROP),
    ("docs/guide/rsockets.md", RSOCKETS),
    ("docs/guide/verbs.md", VERBS_GUIDE),
    ("docs/guide/transports.md", TRANSPORTS),
    ("docs/guide/verbs-tap.md", VERBS_TAP),
    ("docs/libraries/links.md", LINKS),
    ("docs/libraries/ndkpi.md", NDKPI),
    ("docs/libraries/rust.md", RUST),
    ("docs/reference/json.md", JSON),
    ("docs/reference/verbs.md", VERBS),
    ("docs/tools/perf.md", PERF),
    ("docs/tools/serve.md", SERVE),
    ("docs/tools/ss.md", SS),
    ("docs/reference/tcp.md", TCP),
    ("docs/tools/wire.md", WIRE),
];

const IWARP: &[&str] =
    &["Markers are {:rdma-over-tcp/src/mpa/marker.rs::MARKER_OCTETS}-octet pointers at every \
     {:rdma-over-tcp/src/mpa/marker.rs::INTERVAL} octets of the stream"];

const CONFORMANCE_NDK: &[&str] = &[
    "{rnic::Config::accept_timeout} between Request and answer, and between Reply and first message",
    "{Limits::private_data_max} bytes: {rdma_over_tcp::mpa::startup::PRIVATE_DATA_OCTETS_MAX} of MPA less four",
    "IO_TIMEOUT after {rnic::Config::end_wait}",
    "{ListenerConfig::backlog} handshakes and {ListenerConfig::requests_max} outstanding Requests per listener, or the \
     consumer's value, up to {host_stack::host::BACKLOG_MAX} handshakes",
    "acknowledged the last {rdma_over_tcp::rnic::COPY_ASIDE_MAX}",
];

const CONFORMANCE_TCP: &[&str] = &[
    "silly window avoidance is sent after {ms:offload-engine/src/tcp/output.rs::SMALL_SEGMENT_DELAY}",
    "met: {tcp::Config::delayed_ack}",
    "deviates: {tcp::Config::time_wait} as in Linux",
    "met: {tcp::Config::retransmissions_max} retransmissions take nearly 9 minutes",
    "the host has {host_stack::host::RETRANSMISSION_MAX}",
    "at least {:offload-engine/src/tcp/path_mtu.rs::MSS_MIN} bytes before options",
    "at most {:offload-engine/src/tcp/input.rs::STRAY_RESPONSES_MAX} empty ones per second",
    "one for SYNs in {s:offload-engine/src/tcp/input.rs::SYN_CHALLENGE_INTERVAL}, \
     {:offload-engine/src/tcp/input.rs::STRAY_RESPONSES_MAX} per second in all",
    "{offload-engine/src/tcp/rtt.rs::RTO_INITIAL} before the first sample",
    "deviates: SRTT and {tcp::Config::rto_min}",
    "met: {tcp::Config::rto_max} (`Config::rto_max`)",
    "met: {ms:offload-engine/src/tcp/recovery/probe.rs::PEER_ACK_DELAY}",
    "with HyStart++ {:offload-engine/src/tcp/congestion/hystart.rs::GROWTH_SEGMENTS_MAX} SMSS or \
     {KiB:offload-engine/src/tcp/congestion/hystart.rs::GROWTH_BYTES_MAX} at most",
    "bounded by 4 and {ms:offload-engine/src/tcp/congestion/hystart.rs::RISE_MAX}",
];

const INTEROP: &[&str] =
    &["has sent nothing {rnic::Config::accept_race_timeout} after flue's first FPDU"];

const RSOCKETS: &[&str] = &[
    "they poll for {µs:verbs/c/src/rsocket/poll.rs::POLL_TIME}, then sleep",
    "at most {s:verbs/core/src/rsocket/socket.rs::CLOSE_TIME} or as `SO_LINGER` defines",
    "waits at most {s:verbs/c/src/rsocket/table.rs::EXIT_TIME} for each open rsocket",
    "has {:verbs/core/src/rsocket/wire.rs::CONNECTION_DATA_BYTES} octets: version \
     {:verbs/core/src/rsocket/wire.rs::VERSION}",
    "a Send of {:verbs/core/src/rsocket/wire.rs::MESSAGE_BYTES} octets",
];

const VERBS_GUIDE: &[&str] = &[
    "loses up to {KiB:offload-engine/src/link/capture.rs::BUFFER_BYTES} of its capture",
    "holds such a message for {seconds:verbs/c/src/config.rs::RECEIVE_WAIT}",
];

const LINKS: &[&str] =
    &["pieces of frames of {KiB:host-stack/src/stream.rs::KEEP_BYTES_MIN} or more without limit"];

const NDKPI: &[&str] = &["after {ndkpi/src/objects.rs::QUARANTINE} other closes"];

const RUST: &[&str] =
    &["close the peer's window at {host_stack::stream::RECEIVE_QUEUE_BYTES_MAX}."];

const TRANSPORTS: &[&str] = &[
    "its own: `--addr IP/PREFIX`, at most {host_stack::host::ADDRESSES_MAX} |",
    "{offload-engine/src/socket.rs::PIECES_MAX} slices per call, up to \
     {rdma-over-tcp/src/transport/sockets/stream.rs::QUEUE_BYTES_MAX} ahead of the kernel",
    "messages of up to {rdma_over_tcp::rnic::COPY_ASIDE_MAX}, are copied",
    "for {rdma-over-tcp/src/rnic/queues/qp.rs::WAITING_BYTES_MAX}, or for",
    "up to {rdma-over-tcp/src/transport/sockets/core.rs::RECEIVE_BYTES} per call to one buffer",
    "queries epoll every {rdma-over-tcp/src/transport/sockets/core.rs::HOT_POLLS}th time",
    "checks every {offload-engine/src/runtime/progress.rs::DOZE} if it is needed",
    "nothing in {rdma-over-tcp/src/transport/sockets/core.rs::HOT_MISSES_MAX} passes",
    "awaited for up to {rdma-over-tcp/src/transport/sockets/core.rs::FIN_WAIT_MAX} |",
    "keep-alive probes after {rdma_over_tcp::rnic::KEEP_ALIVE_IDLE}, every \
     {rdma_over_tcp::rnic::KEEP_ALIVE_INTERVAL}, three",
    "pauses for {rdma-over-tcp/src/transport/sockets/core/opening.rs::ACCEPT_PAUSE} and logs",
    "{flue_network::plumb::TXQUEUELEN_DEFAULT} on a TAP that the node creates",
    "opens up to {offload_engine::link::TAP_QUEUES_MAX} queues",
    "a segment of at most {:offload-engine/src/link/synthetic.rs::SEGMENT_OCTETS_MAX} bytes",
];

const VERBS_TAP: &[&str] = &[
    "waits up to {verbs/core/src/device.rs::LINGER_LIMIT} for FINs",
    "in shared memory, up to {adapter/src/launched/table.rs::CONNECTIONS_MAX}.",
];

const VERBS: &[&str] = &[
    "After {verbs/c/src/config.rs::END_WAIT} without progress",
    "wait for it, {seconds:verbs/c/src/config.rs::RECEIVE_WAIT} by default",
    "Refused connects are repeated for {ms:verbs/core/src/cm/connect.rs::REFUSED_GRACE}",
    "blocks for up to {s:verbs/c/src/cm/id/channel.rs::FAIL_BLOCK_MAX}",
    "the child waits {s:verbs/c/src/inherit.rs::INHERIT_LIMIT} for that",
];

const SERVE: &[&str] = &[
    "At most {src/cmd/serve/mod.rs::CONNECTIONS_MAX} connections are open at once",
    "default: {ListenerConfig::backlog}. On a node, further SYNs",
    "default: {ListenerConfig::requests_max}. One more resets",
    "served at once; default: {:src/cmd/serve/mod.rs::IRD_MAX}. One more",
    "the first {:src/cmd/serve/event.rs::SHOWN_BYTES} of them as `data`",
];

const JSON: &[&str] = &[
    "at most {adapter/src/control/mod.rs::ROWS_MAX} connections after that handle",
    "or after {adapter/src/control/mod.rs::MOVE_LIMIT} |",
    "A request has {adapter/src/control/mod.rs::REQUEST_BYTES_MAX} and {adapter/src/control/mod.rs::REQUEST_LIMIT}, \
     a response {adapter/src/control/mod.rs::ANSWER_LIMIT}.",
];

const ARCHITECTURE: &[&str] = &[
    "for at most `SHUTDOWN_DRAIN_MAX` ({host_stack::node::SHUTDOWN_DRAIN_MAX})",
    "Messages of the host, at most {offload_engine::engine::FROM_HOST_MESSAGES_MAX}.",
    "it ends with {EngineConfig::rx_batch_frames_max} frames or {EngineConfig::rx_batch_bytes_max}.",
    "at most {offload_engine::engine::TRANSMIT_SEGMENTS_MAX} segments are sent.",
    "after {offload-engine/src/runtime/idle.rs::IDLE_POLLS} idle polls",
    "when {offload_engine::engine::port::TO_HOST_FRAMES_MAX} wait",
    "core's lock for {adapter/src/control/mod.rs::SNAPSHOTS_MAX} of them at a time",
    "polls for `NodeConfig::spin` ({µs:adapter/src/node/options.rs::SPIN} in the command",
];

const DATA_PATH: &[&str] = &[
    "held (CH-FWD-3), at most {host_stack::host::HELD_FRAMES_MAX} frames",
    "the engine cuts up to {offload_engine::engine::BURST_BYTES_MAX} into frames",
    "except pieces of up to {rdma-over-tcp/src/rnic/stream/transmit/fpdus.rs::COPIED_PIECE_MAX},",
    "At {rdma-over-tcp/src/rnic/queues/qp.rs::WAITING_BYTES_MAX} queued,",
    "over parts of {KiB:rdma-over-tcp/src/mpa/encoder.rs::COPY_OCTETS} that are copied",
    "when {host_stack::socket::AUTO_OFFLOAD_BYTES} have passed in one direction",
];

const DECISIONS: &[&str] = &[
    "Send or Write of up to {rdma_over_tcp::rnic::COPY_ASIDE_MAX} is copied aside",
    "if the peer does not follow in {rnic::Config::terminate_timeout} ",
    "MTU at least {host_stack::host::MTU_MIN} ",
];

const CHIMNEY: &[&str] = &[
    "| `connections_max`, both families together | {OffloadCapabilities::connections_max} |",
    "| `paths_max` | {OffloadCapabilities::paths_max} |",
    "| `neighbors_max` | {OffloadCapabilities::neighbors_max} |",
    "different source addresses | {OffloadCapabilities::ip_addresses_max} |",
    "besides the interface's | {OffloadCapabilities::hw_addresses_max} |",
    "| `vlans_max` | {OffloadCapabilities::vlans_max} |",
    "bytes of send data at an initiate | {OffloadCapabilities::transmit_buffer_max} |",
    "bytes of received data at an initiate | {OffloadCapabilities::receive_buffer_max} |",
    "| `path_mtu_max`, bytes | {OffloadCapabilities::path_mtu_max} |",
    "the push timer runs out: {tcp::Config::push_delay} without data",
    "those that have carried {host_stack::socket::AUTO_OFFLOAD_BYTES} in one direction",
    "or after a refusal | {OffloadRules::holddown};",
    "neither side has a proof within {EngineConfig::nce_stale} ",
];

const CHIMNEY_WINDOWS: &[&str] = &[
    "At most {offload-engine/src/link/batch.rs::LENT_BUFFERS_MAX} buffers are kept",
    "after {offload-engine/src/tcp/delivery.rs::IDLE_ROUNDS_MAX} rounds in which nothing moved",
];

const OFFLOAD: &[&str] = &[
    "greater of {tcp::Config::in_flight_min} and {tcp::Config::link_rate} times the smallest round trip",
];

const PERF: &[&str] = &[
    "Messages are 1 B to {src/cmd/perf/kind.rs::SIZE_MAX_BYTES}, connections 1 to \
     {src/cmd/perf/mod.rs::CONNECTIONS_MAX} (`-P`, `--qp`), requests outstanding on each 1 to \
     {src/cmd/perf/mod.rs::DEPTH_MAX} (`-t`), and requests posted per doorbell 1 to \
     {src/cmd/perf/mod.rs::POST_LIST_MAX} (`--post-list`).",
    "A TAP has up to {offload_engine::link::TAP_QUEUES_MAX} queues",
    "silent for {src/cmd/perf/phase.rs::INACTIVITY_LIMIT}.",
    "JSON objects of at most {src/cmd/perf/message.rs::MESSAGE_BYTES_MAX} bytes",
    "an incomplete opening after {s:src/cmd/perf/tcp/server.rs::OPENING_LIMIT}",
    "{:src/cmd/perf/rdma/session.rs::RESULTS_MAX} completions at a time",
    "So {KiB:bench/src/pace.rs::BUFFER_BYTES} are exchanged between the first two CPUs for \
     {ms:bench/src/pace.rs::SPAN} before and after each sample",
    "which polls for {µs:adapter/src/node/options.rs::SPIN} and then sleeps",
];

const SS: &[&str] = &[
    "waits for up to {adapter/src/control/mod.rs::CLIENTS_MAX} clients",
    "A request has {adapter/src/control/mod.rs::REQUEST_BYTES_MAX} and {adapter/src/control/mod.rs::REQUEST_LIMIT}, \
     a response {adapter/src/control/mod.rs::ANSWER_LIMIT}.",
    "locks the node for {adapter/src/control/mod.rs::SNAPSHOTS_MAX} connections at a time",
    "default: {host_stack::socket::AUTO_OFFLOAD_BYTES} in one direction",
    "after an upload or a refusal; default: \
     {:adapter/src/node/chimney.rs::OFFLOAD_HOLDDOWN_DEFAULT_SECONDS} seconds",
];

const TCP: &[&str] = &[
    "the greater of {tcp::Config::in_flight_min} and {tcp::Config::link_rate} times the smallest round trip",
    "| {tcp::Config::in_flight_min} | of 0.5 to 4 MiB",
    "| {tcp::Config::link_rate} | more than a TAP does",
    "(up to {EngineConfig::gso_payload_max}, cut by the kernel after the virtio-net header; \
     up to {offload_engine::engine::BURST_BYTES_MAX}, cut by the engine",
    "| duplicate ACKs that mean a loss | {tcp::Config::duplicate_ack_threshold} |",
    "| at least {tcp::Config::rto_min} beyond SRTT, at most {tcp::Config::rto_max}; \
     {offload-engine/src/tcp/rtt.rs::RTO_INITIAL} before the first sample |",
    "unanswered window probes | {tcp::Config::retransmissions_max} |",
    "| ACK for every n-th full segment | {tcp::Config::ack_frequency} |",
    "| delayed ACK | {tcp::Config::delayed_ack} |",
    "| ACKs at once at the start | {tcp::Config::quick_acks} |",
    "| receive window | {HostConfig::receive_buffer}, grows to {tcp::Config::rcv_wnd_max} |",
    "| gaps out of order | {tcp::Config::reassembly_gaps_max} |",
    "| FIN-WAIT-2 | {tcp::Config::fin_wait_2} |",
    "| TIME-WAIT | {tcp::Config::time_wait} |",
];

const WIRE: &[&str] = &[
    "by 1 to {offload_engine::link::REORDER_DISTANCE_MAX} later frames, \
     at most for {offload_engine::link::REORDER_HOLD_MAX} |",
    "Limits: {offload-engine/src/link/impair/lane.rs::HELD_FRAMES_MAX} frames or \
     {offload-engine/src/link/impair/lane.rs::HELD_BYTES_MAX} in flight in each direction, \
     delay {flue_adapter::units::DELAY_MAX}, jitter",
    "Within {µs:src/cmd/wire/pump.rs::SPIN} of that the wire polls",
];

/// Value in a unit, as documents write it; with no unit, the number alone.
fn written(value: Value, unit: &str) -> Option<String> {
    let (count, divisor) = match (value, unit) {
        (Value::Count(count), "") => (count, 1),
        (Value::Count(count), "KiB") => (count, 1 << 10),
        (Value::Time(nanos), "µs") => (nanos, 1_000),
        (Value::Time(nanos), "ms") => (nanos, 1_000_000),
        (Value::Time(nanos), "s" | "seconds") => (nanos, 1_000_000_000),
        _ => return None,
    };
    let digits = count.is_multiple_of(divisor).then(|| (count / divisor).to_string())?;
    let mut number = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            number.push(',');
        }
        number.push(digit);
    }
    Some(if unit.is_empty() { number } else { format!("{number} {unit}") })
}

/// Sentence with values in place of constants: of rows of the document, or of the sources.
fn filled(
    sentence: &str,
    rows: &BTreeMap<&str, String>,
    sources: &[(String, String)],
) -> Result<String, String> {
    let mut pieces = sentence.split('{');
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (constant, rest) = piece.split_once('}').ok_or("unclosed brace")?;
        text += &match constant.split_once(':').filter(|(_, path)| !path.starts_with(':')) {
            Some((unit, path)) => {
                let value = private(path, sources)?;
                written(value, unit).ok_or_else(|| format!("{path} = {value:?}: not in {unit}"))?
            }
            None => rows.get(constant).ok_or_else(|| format!("{FILE} has no {constant}"))?.clone(),
        };
        text += rest;
    }
    Ok(text)
}

#[test]
fn values_are_written_with_units() {
    assert_eq!(written(Value::Count(64_000), "").as_deref(), Some("64,000"));
    assert_eq!(written(Value::Count(256 << 10), "KiB").as_deref(), Some("256 KiB"));
    assert_eq!(written(Value::Count(100), "KiB"), None);
    assert_eq!(written(Value::Time(20_000), "µs").as_deref(), Some("20 µs"));
    let sources = [("a.rs".to_owned(), "const X: u8 = 7;".to_owned())];
    let rows = BTreeMap::from([("b::Y", "3 s".to_owned())]);
    assert_eq!(filled("{:a.rs::X} in {b::Y}.", &rows, &sources).as_deref(), Ok("7 in 3 s."));
    filled("{s:a.rs::X}", &rows, &sources).unwrap_err();
}

#[test]
fn other_documents_match_limits_document() {
    let text = fs::read_to_string(root().join(FILE)).unwrap();
    let shown = |row: &Row<'_>| match row.unit {
        "KiB" | "MiB" | "GiB" | "TiB" | "Gbit/s" | "ms" | "s" => {
            format!("{} {}", row.value, row.unit)
        }
        _ => row.value.to_owned(),
    };
    let values = rows(&text).iter().map(|row| (row.constant, shown(row))).collect();
    let sources = files("rs");
    let mut findings = String::new();
    for (file, sentences) in SENTENCES {
        let text = fs::read_to_string(root().join(file)).unwrap();
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for sentence in *sentences {
            match filled(sentence, &values, &sources) {
                Ok(expected) if words.contains(&expected) => {}
                Ok(expected) => {
                    writeln!(findings, "{file} does not contain \"{expected}\"").unwrap()
                }
                Err(error) => writeln!(findings, "{sentence}: {error}").unwrap(),
            }
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
}

#[test]
fn counts_in_documents_match_the_sources() {
    let read = |file: &str| fs::read_to_string(root().join(file)).unwrap();
    let entries = |file: &str, name: &str| {
        let text = read(file);
        let (_, rest) = text.split_once(&format!("\n{name}! {{\n")).expect(name);
        let (body, _) = rest.split_once("\n}").expect(name);
        let words = body.split([' ', '\n', ';']);
        words.filter(|word| !word.is_empty() && !word.ends_with(':')).count()
    };
    let sockets = entries("rdma-over-tcp/src/ndk/tests/sockets.rs", "over_kernel_sockets");
    let taps = entries("rdma-over-tcp/src/ndk/tests/taps.rs", "on_taps");
    let faults = read("tests/mutants/mutants.json").matches("\"file\":").count();
    let cases = read("tests/hostile/cases.txt").lines().count();
    let ci = read(".ci/run");
    let (_, fuzzing) = ci.split_once("tests/fuzz/run ").unwrap();
    let seconds = fuzzing.split_whitespace().next().unwrap();
    let lines = super::SOURCE_LINES_MAX;
    let thresholds = UploadThresholds::ALL;
    let percent = |share: Option<Share>| {
        let Share { sample, per_mille } = share.unwrap();
        let sample = written(Value::from(sample), "").unwrap();
        format!("{} % of {sample}", per_mille / 10)
    };
    let (activity, small) = (thresholds.low_activity.unwrap(), thresholds.small_io.unwrap());
    let ss = "docs/tools/ss.md";
    let suites = "docs/contributing/testing-suites.md";
    let campaigns = "docs/contributing/testing-campaigns.md";
    let expected = [
        (suites, format!("{sockets} of these tests on kernel sockets too, {taps} on TAPs")),
        (campaigns, format!("`mutants.json` has {faults} faults")),
        (suites, format!("hostile peers: {cases} cases")),
        (
            ss,
            format!(
                "less than {} transferred in {} |",
                written(Value::from(activity.bytes), "KiB").unwrap(),
                written(Value::from(activity.interval), "s").unwrap()
            ),
        ),
        (ss, format!("{} data segments retransmitted |", percent(thresholds.high_drop_rate))),
        (
            ss,
            format!(
                "{} consecutive receive requests of less than {} bytes |",
                small.requests, small.bytes
            ),
        ),
        (
            ss,
            format!(
                "{} MiB received without a posted receive request |",
                thresholds.no_buffer_preposting.unwrap() >> 20
            ),
        ),
        (ss, format!("{} packets are fragments |", percent(thresholds.high_fragmentation))),
        (ss, format!("{} data segments |", percent(thresholds.high_out_of_order))),
        ("docs/contributing/testing.md", format!("CI fuzzes for {seconds} seconds.")),
        ("CONTRIBUTING.md", format!("fails above {lines}.")),
    ];
    let mut findings = String::new();
    for (file, sentence) in expected {
        let words = read(file).split_whitespace().collect::<Vec<_>>().join(" ");
        if !words.contains(&sentence) {
            writeln!(findings, "{file} does not contain \"{sentence}\"").unwrap();
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
}
