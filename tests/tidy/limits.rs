//! Limits in documents match those of the code: `docs/reference/limits.md` is compared with the constants, and
//! sentences of other documents with `docs/reference/limits.md`.

use std::{collections::BTreeMap, fmt::Write as _, fs};

use offload_engine::{
    chimney::provider::OffloadCapabilities, engine::EngineConfig, state::MacAddress, time::Duration,
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
        nce_stale, rx_batch_frames_max, rx_batch_bytes_max, super_segment_max]);
    known.extend(fields!["tcp::Config", offload_engine::tcp::Config::default();
        rcv_wnd_max, reassembly_gaps_max, in_flight_min, link_rate, ack_frequency, delayed_ack, quick_acks, push_delay,
        rto_min, rto_max, retransmissions_max, duplicate_ack_threshold, fin_wait_2, time_wait]);
    known.extend(fields!["HostConfig", host_stack::host::HostConfig::default();
        time_wait, receive_buffer, send_buffer, receive_window_max]);
    known
        .extend(fields!["OffloadRules", host_stack::offload_policy::OffloadRules::default(); rest]);
    known.extend(fields!["ListenerConfig", rdma_over_tcp::rnic::ListenerConfig::default();
        backlog, requests_max, requests_per_peer_max]);
    known.extend(fields!["rnic::Config", rdma_over_tcp::rnic::Config::default();
        reply_timeout, request_timeout, accept_timeout, connect_timeout, disconnect_timeout, end_wait,
        terminate_timeout, nudge_timeout]);
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
        offload_engine::engine::HELD_TREES_MAX,
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
        return Err(format!("there is no {path}; files with a constant of that name: {others:?}"));
    };
    evaluate(expression).ok_or_else(|| format!("{path} = {expression}, which is no plain number"))
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
fn the_limits_document_says_what_the_constants_say() {
    let text = fs::read_to_string(root().join(FILE)).unwrap();
    let (rows, sources) = (rows(&text), files("rs"));
    let mut known = public();
    let mut findings = String::new();
    for Row { value, unit, constant } in &rows {
        let actual = if constant.contains(".rs::") {
            private(constant, &sources)
        } else {
            known.remove(constant).ok_or_else(|| {
                format!("{constant} has two rows, or tests/tidy/limits.rs does not know it")
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

/// Sentences that state limits, with the constant in place of its value. Values of size, time and rate include their
/// unit.
const SENTENCES: &[(&str, &[&str])] = &[
    ("docs/contributing/architecture.md", ARCHITECTURE),
    ("docs/contributing/data-path.md", DATA_PATH),
    ("docs/contributing/decisions.md", DECISIONS),
    ("docs/reference/chimney.md", CHIMNEY),
    ("docs/reference/chimney-windows.md", CHIMNEY_WINDOWS),
    ("docs/concepts/tcp-offload.md", OFFLOAD),
    ("docs/guide/transports.md", TRANSPORTS),
    ("docs/guide/verbs-tap.md", VERBS_TAP),
    ("docs/libraries/rust.md", RUST),
    ("docs/reference/json.md", JSON),
    ("docs/reference/verbs.md", VERBS),
    ("docs/tools/perf.md", PERF),
    ("docs/tools/serve.md", SERVE),
    ("docs/tools/ss.md", SS),
    ("docs/reference/tcp.md", TCP),
    ("docs/tools/wire.md", WIRE),
];

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
];

const VERBS_TAP: &[&str] = &[
    "waits up to {verbs/core/src/device.rs::LINGER_LIMIT} for FINs",
    "in shared memory, up to {adapter/src/launched/table.rs::CONNECTIONS_MAX}.",
];

const VERBS: &[&str] = &["After {verbs/c/src/config.rs::END_WAIT} without progress"];

const SERVE: &[&str] = &[
    "At most {src/cmd/serve/mod.rs::CONNECTIONS_MAX} connections are open at once",
    "default: {ListenerConfig::backlog}. On a node, further SYNs",
    "default: {ListenerConfig::requests_max}. One more resets",
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
    "core's lock for {adapter/src/control/mod.rs::LOOK_MAX} of them at a time",
];

const DATA_PATH: &[&str] = &[
    "held (CH-FWD-3), at most {host_stack::host::HELD_FRAMES_MAX} frames",
    "the engine cuts up to {offload_engine::engine::BURST_BYTES_MAX} into frames",
    "except pieces of up to {rdma-over-tcp/src/rnic/stream/transmit/fpdus.rs::COPIED_PIECE_MAX},",
    "At {rdma-over-tcp/src/rnic/queues/qp.rs::WAITING_BYTES_MAX} queued,",
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
    "or after a refusal | {OffloadRules::rest};",
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
];

const SS: &[&str] = &[
    "waits for up to {adapter/src/control/mod.rs::CLIENTS_MAX} clients",
    "A request has {adapter/src/control/mod.rs::REQUEST_BYTES_MAX} and {adapter/src/control/mod.rs::REQUEST_LIMIT}, \
     a response {adapter/src/control/mod.rs::ANSWER_LIMIT}.",
    "locks the node for {adapter/src/control/mod.rs::LOOK_MAX} connections at a time",
    "default: {host_stack::socket::AUTO_OFFLOAD_BYTES} in one direction",
];

const TCP: &[&str] = &[
    "the greater of {tcp::Config::in_flight_min} and {tcp::Config::link_rate} times the smallest round trip",
    "| {tcp::Config::in_flight_min} | of 0.5 to 4 MiB",
    "| {tcp::Config::link_rate} | more than a TAP does",
    "(up to {EngineConfig::super_segment_max}, cut by the kernel after the virtio-net header; \
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
];

/// Sentence with values in place of constants.
fn filled(sentence: &str, values: &BTreeMap<&str, String>) -> Result<String, String> {
    let mut pieces = sentence.split('{');
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (constant, rest) = piece.split_once('}').ok_or("a brace is not closed")?;
        text += values.get(constant).ok_or_else(|| format!("{FILE} has no {constant}"))?;
        text += rest;
    }
    Ok(text)
}

#[test]
fn other_documents_say_what_the_limits_document_says() {
    let text = fs::read_to_string(root().join(FILE)).unwrap();
    let shown = |row: &Row<'_>| match row.unit {
        "KiB" | "MiB" | "GiB" | "TiB" | "Gbit/s" | "ms" | "s" => {
            format!("{} {}", row.value, row.unit)
        }
        _ => row.value.to_owned(),
    };
    let values = rows(&text).iter().map(|row| (row.constant, shown(row))).collect();
    let mut findings = String::new();
    for (file, sentences) in SENTENCES {
        let text = fs::read_to_string(root().join(file)).unwrap();
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for sentence in *sentences {
            match filled(sentence, &values) {
                Ok(expected) if words.contains(&expected) => {}
                Ok(expected) => writeln!(findings, "{file} does not say \"{expected}\"").unwrap(),
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
    let suites = "docs/contributing/testing-suites.md";
    let expected = [
        (suites, format!("{sockets} of these tests on kernel sockets too, {taps} on TAPs")),
        (suites, format!("`mutants.json` has {faults} faults")),
        (suites, format!("hostile peers: {cases} cases")),
        ("docs/contributing/testing.md", format!("CI fuzzes for {seconds} seconds.")),
        ("CONTRIBUTING.md", format!("fails above {lines}.")),
    ];
    let mut findings = String::new();
    for (file, sentence) in expected {
        let words = read(file).split_whitespace().collect::<Vec<_>>().join(" ");
        if !words.contains(&sentence) {
            writeln!(findings, "{file} does not say \"{sentence}\"").unwrap();
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
}
