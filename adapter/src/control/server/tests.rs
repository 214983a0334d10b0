use std::{
    io::{BufRead, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use crate::NodeOptions;
use host_stack::{
    socket::{MigrationCounts, Refusal, SocketState},
    stream::OffloadState,
};
use offload_engine::status::NdisStatus;
use rdma_over_tcp::rnic::{Counters, QpStats};

use host_stack::socket::OffloadPolicy;
use offload_engine::tcp::CongestionAlgorithm;

use super::*;
use crate::control::{ANSWER_BYTES_MAX, ANSWER_LIMIT, REQUEST_LIMIT, client};

/// A node without a network: a move completes after a number of listings.
#[derive(Clone, Default)]
struct Fake(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    rows: Vec<ConnectionRow>,
    queue_pairs: Vec<ConnectionEntry>,
    statistics: Option<TcpStatistics>,
    moving: Option<(OffloadHandle, Destination)>,
    /// True if the target refuses.
    refuses: bool,
    /// Listings until a move completes.
    listings_left: u32,
    move_requests: u32,
    /// Output of the capture that runs, with the interface's name.
    capture: Option<(CaptureOutput, String)>,
    /// Error of the capture's output.
    capture_error: Option<String>,
}

impl Controlled for Fake {
    fn rows(&self, _limit: Duration) -> Result<Vec<ConnectionRow>, WaitError> {
        let mut state = self.0.lock().unwrap();
        if let Some((handle, to)) = state.moving {
            let refuses = state.refuses;
            state.listings_left = state.listings_left.saturating_sub(1);
            if state.listings_left == 0 {
                state.moving = None;
                let row = state.rows.iter_mut().find(|row| row.handle == handle);
                if let Some(row) = row {
                    if refuses {
                        row.moves.refusals += 1;
                        let status = NdisStatus::OFFLOAD_TCP_ENTRIES;
                        row.moves.last_refusal = Some(Refusal::Target(status));
                    } else {
                        row.offload = match to {
                            Destination::Target => OffloadState::Offloaded,
                            Destination::Host => OffloadState::InHost,
                        };
                    }
                }
            }
        }
        Ok(state.rows.clone())
    }

    fn row(
        &self,
        handle: OffloadHandle,
        limit: Duration,
    ) -> Result<Option<ConnectionRow>, WaitError> {
        Ok(self.rows(limit)?.into_iter().find(|row| row.handle == handle))
    }

    fn snapshots(&self, handles: &[OffloadHandle]) -> Vec<Option<ConnectionSnapshot>> {
        assert!(
            handles.len() <= SNAPSHOTS_MAX,
            "too many connections copied while the node is locked"
        );
        vec![None; handles.len()]
    }

    fn statistics(&self, handles: &[OffloadHandle]) -> Vec<Option<TcpStatistics>> {
        vec![self.0.lock().unwrap().statistics; handles.len()]
    }

    fn counters(&self) -> Option<AdapterCounters> {
        let counters = Counters { connect: 2, fpdu_out_octets: 100, ..Counters::default() };
        Some(AdapterCounters::default().plus(&counters).plus(&counters))
    }

    fn queue_pairs(&self) -> Vec<ConnectionEntry> {
        self.0.lock().unwrap().queue_pairs.clone()
    }

    fn start_capture(&self, interface: &str, open: &mut OpenCapture<'_>) -> io::Result<()> {
        self.0.lock().unwrap().capture = Some((open(0)?, interface.to_owned()));
        open(1).map(drop).inspect_err(|_| drop(self.stop_capture()))
    }

    fn stop_capture(&self) -> Option<CaptureStatus> {
        let status = self.capture();
        self.0.lock().unwrap().capture = None;
        status
    }

    fn capture(&self) -> Option<CaptureStatus> {
        let state = self.0.lock().unwrap();
        let error = state.capture_error.clone();
        state.capture.as_ref().map(|_| CaptureStatus { frames: 7, error })
    }

    fn move_to(&self, handle: OffloadHandle, to: Destination) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.moving = Some((handle, to));
        state.move_requests += 1;
        Ok(())
    }
}

fn row(handle: u64) -> ConnectionRow {
    ConnectionRow {
        handle: OffloadHandle(handle),
        local: "10.0.0.2:5000".parse().unwrap(),
        remote: Some("10.0.0.1:7174".parse().unwrap()),
        state: Some(SocketState::Established),
        offload: OffloadState::InHost,
        recv_q: Some(0),
        send_q: Some(0),
        moves: MigrationCounts::default(),
    }
}

fn name() -> NodeName {
    NodeName {
        tap: "flue0".into(),
        pid: 71,
        queues: 2,
        addresses: Vec::new(),
        offload: OffloadPolicy::Never,
        congestion_control: CongestionAlgorithm::Cubic,
    }
}

/// Tolerance above a limit, for a busy machine.
const BUSY: Duration = Duration::from_secs(60);

fn path(test: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("flue-{}-{test}.sock", std::process::id()));
    let _ = fs::remove_file(&path);
    path
}

fn start(fake: Fake, path: PathBuf) -> Result<Control, Error> {
    ControlListener::bind(name(), path)?.serve(fake)
}

impl Control {
    fn path(&self) -> &Path {
        &self.file.as_ref().unwrap().0
    }
}

fn served(test: &str, rows: impl Iterator<Item = u64>) -> (Fake, Control) {
    let fake = Fake::default();
    fake.0.lock().unwrap().rows = rows.map(row).collect();
    let control = start(fake.clone(), path(test)).unwrap();
    (fake, control)
}

/// Sends `request` unchanged and reads one line of the reply.
fn raw(control: &Control, request: &[u8]) -> String {
    let mut stream = UnixStream::connect(control.path()).unwrap();
    stream.write_all(request).unwrap();
    let mut line = String::new();
    io::BufReader::new(stream).read_line(&mut line).unwrap();
    line
}

// More connections than fit one reply are listed in pages, without duplicates or omissions.
#[test]
fn long_list_is_split_into_pages() {
    let many = 2 * ROWS_MAX as u64 + 3;
    let (_, control) = served("pages", 1..=many);
    let (node, connections) = client::list(control.path(), false).unwrap();
    assert_eq!(node, name());
    let handles: Vec<_> = connections.iter().map(|record| record.handle).collect();
    assert_eq!(handles, (1..=many).collect::<Vec<_>>());
    let operation = Operation::List { after: None, state: false };
    let Ok(Answer::List(page)) = client::request(control.path(), operation) else {
        panic!("no list")
    };
    assert!(page.more && page.connections.len() == ROWS_MAX);
    let operation = Operation::List { after: Some(many - 1), state: false };
    let Ok(Answer::List(page)) = client::request(control.path(), operation) else {
        panic!("no list")
    };
    assert!(!page.more && page.connections.len() == 1);
}

// A client accepts a reply of the maximum size.
#[test]
fn largest_page_fits_a_reply() {
    let (_, control) = served("size", 1..=ROWS_MAX as u64);
    let line = raw(&control, b"{\"flue_control\":1,\"request\":\"list\"}\n");
    // State and TCP_INFO of an offloaded connection take less than 8 KiB.
    assert!(line.len() + ROWS_MAX * 8192 < ANSWER_BYTES_MAX, "{} bytes", line.len());
}

#[test]
fn reply_waits_for_a_move() {
    let (fake, control) = served("move", 1..=2);
    fake.0.lock().unwrap().listings_left = 3;
    let wanted = Move { handle: 2, to: Destination::Target, begin: true, refusals: 0 };
    let answer = client::request(control.path(), Operation::Move(wanted)).unwrap();
    let Answer::Moved { connection: Some(record) } = answer else { panic!("{answer:?}") };
    assert_eq!((record.handle, record.offload_state), (2, OffloadState::Offloaded));
    assert_eq!(fake.0.lock().unwrap().move_requests, 1);
    // With begin: false no move is requested.
    let looked = Move { handle: 1, begin: false, ..wanted };
    let answer = client::request(control.path(), Operation::Move(looked)).unwrap();
    let Answer::Moved { connection: Some(record) } = answer else { panic!("{answer:?}") };
    assert_eq!(record.offload_state, OffloadState::InHost);
    assert_eq!(fake.0.lock().unwrap().move_requests, 1);
}

#[test]
fn refused_move_returns_its_reason_immediately() {
    let (fake, control) = served("refused", 1..=1);
    {
        let mut state = fake.0.lock().unwrap();
        (state.refuses, state.listings_left) = (true, 2);
    }
    let wanted = Move { handle: 1, to: Destination::Target, begin: true, refusals: 0 };
    let began = Instant::now();
    let answer = client::request(control.path(), Operation::Move(wanted)).unwrap();
    let Answer::Moved { connection: Some(record) } = answer else { panic!("{answer:?}") };
    assert!(began.elapsed() < MOVE_LIMIT, "waited for a move that was refused");
    let refused = record.last_refusal.unwrap();
    assert_eq!(refused.ndis_status, Some(0xC023_1004));
    assert_eq!(refused.ndis_status_name.as_deref(), Some("NDIS_STATUS_OFFLOAD_TCP_ENTRIES"));
    let unknown = Move { handle: 9, ..wanted };
    let answer = client::request(control.path(), Operation::Move(unknown)).unwrap();
    assert_eq!(answer, Answer::Moved { connection: None });
}

#[test]
fn invalid_request_is_answered_by_its_problem() {
    let (_, control) = served("garbage", 1..=1);
    let too_long = vec![b'['; REQUEST_BYTES_MAX + 1];
    let nested = [vec![b'['; 4000], b"\n".to_vec()].concat();
    let cases: [(&[u8], &str); 8] = [
        (b"\n", "invalid request"),
        (b"\xff\xfe\n", "invalid request"),
        (b"GET / HTTP/1.1\r\n\r\n", "invalid request"),
        (b"{\"flue_control\":1}\n", "invalid request"),
        (b"{\"flue_control\":1,\"request\":\"reboot\"}\n", "invalid request"),
        (b"{\"flue_control\":2,\"request\":\"list\"}\n", "version 2, expected 1"),
        (&too_long, "at most 4096 bytes"),
        (&nested, "invalid request"),
    ];
    for (request, word) in cases {
        let line = raw(&control, request);
        assert!(line.contains("\"response\":\"failed\"") && line.contains(word), "{word}: {line}");
    }
    assert!(
        client::list(control.path(), false).is_ok(),
        "the server stopped after an invalid request"
    );
}

/// Clients with half a request, and clients that do not read their replies.
fn silent_clients(control: &Control, count: usize) -> Vec<UnixStream> {
    let connect = |number: usize| {
        let mut client = UnixStream::connect(control.path()).unwrap();
        let request: &[u8] = match number % 3 {
            0 => b"",
            1 => b"{\"flue_control\":1,",
            _ => b"{\"flue_control\":1,\"request\":\"list\"}\n",
        };
        // Fails if the client was replaced.
        let _ = client.write_all(request);
        client
    };
    (0..count).map(connect).collect()
}

// One of several attempts must be well within the limit: the machine may be busy.
#[test]
fn client_among_silent_ones_is_served_at_once() {
    let (_, control) = served("silent-ones", 1..=ROWS_MAX as u64);
    let is_prompt = |count: usize| {
        (0..10).any(|_| {
            let silent = silent_clients(&control, count);
            let began = Instant::now();
            client::list(control.path(), false).expect("a reply to the client");
            let took = began.elapsed();
            drop(silent);
            took < REQUEST_LIMIT / 2
        })
    };
    for count in [1, CLIENTS_MAX - 1, CLIENTS_MAX, 4 * CLIENTS_MAX] {
        assert!(is_prompt(count), "{count} silent clients delay another client");
    }
}

#[test]
fn silent_clients_are_closed_after_their_limits() {
    let (_, control) = served("limits", 1..=ROWS_MAX as u64);
    let began = Instant::now();
    let clients = silent_clients(&control, 3);
    for (number, mut client) in clients.into_iter().enumerate() {
        let limit = if number == 2 { ANSWER_LIMIT } else { REQUEST_LIMIT };
        if number == 2 {
            // Detect the end of the connection without reading the reply.
            let mut ended = [PollFd::new(&client, PollFlags::RDHUP)];
            let most = Timespec::try_from(BUSY).ok();
            assert_eq!(poll(&mut ended, most.as_ref()), Ok(1), "client {number}");
        } else {
            client.set_read_timeout(Some(BUSY)).unwrap();
            assert_eq!(client.read(&mut [0]).unwrap_or(0), 0, "client {number}");
        }
        let took = began.elapsed();
        assert!(limit <= took && took < limit + BUSY, "client {number}: {took:?}");
    }
}

// A silent client does not delay the shutdown of the node. One of several attempts must be within the
// limit, because on a busy machine this thread may wait for a CPU.
#[test]
fn shutdown_does_not_wait_for_a_silent_client() {
    let ends = (0..10).any(|_| {
        let (_, control) = served("silent", 1..=1);
        let silent = UnixStream::connect(control.path()).unwrap();
        let began = Instant::now();
        let path = control.path().to_owned();
        drop(control);
        let took = began.elapsed();
        assert!(!path.exists());
        drop(silent);
        took < REQUEST_LIMIT / 2
    });
    assert!(ends, "the shutdown waited for a client");
}

#[test]
fn socket_is_private_and_removed_with_its_node() {
    let (_, control) = served("private", 0..0);
    let path = control.path().to_owned();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    drop(control);
    assert!(!path.exists());
}

fn serve_at(socket_path: &ControlSocketPath) -> Result<Option<Control>, Error> {
    serve(Fake::default(), NodeName::of(&NodeOptions::default()), socket_path)
}

// A connection of a queue pair has its number and its counters. A connection during set-up, a listener and other
// connections have none.
#[test]
fn connections_have_the_numbers_of_their_queue_pairs() {
    let fake = Fake::default();
    let other = ConnectionRow { remote: Some("10.0.0.9:7174".parse().unwrap()), ..row(2) };
    let listener = ConnectionRow { remote: None, ..row(3) };
    fake.0.lock().unwrap().rows = vec![row(1), other, listener];
    let entry = ConnectionEntry {
        local: "10.0.0.2:5000".parse().unwrap(),
        remote: "10.0.0.1:7174".parse().unwrap(),
        qp: 77,
        peer_qp: Some(78),
        outstanding: 3,
        receives_posted: 5,
        stats: QpStats { writes: 9, write_bytes: 90, ..QpStats::default() },
    };
    let path = path("pairs");
    fake.0.lock().unwrap().queue_pairs = vec![entry];
    let control = start(fake, path).unwrap();
    let (_, records) = client::list(control.path(), false).unwrap();
    let numbers: Vec<_> = records.iter().map(|record| (record.qp, record.peer_qp)).collect();
    assert_eq!(numbers, [(Some(77), Some(78)), (None, None), (None, None)]);
    let counters = records[0].rdma.as_deref().copied().unwrap();
    assert_eq!((counters.outstanding, counters.receives_posted), (3, 5));
    assert_eq!((counters.writes, counters.write_bytes, counters.reads), (9, 90, 0));
    assert_eq!(records[1].rdma, None);
}

// The listing has the capture until it is stopped; an error of its file ends it, and stays until then.
#[test]
fn capture_is_started_listed_and_stopped() {
    let fake = Fake::default();
    let control = start(fake.clone(), path("capture")).unwrap();
    let socket = control.path();
    let directory = std::env::temp_dir().join(format!("flue-captures-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let (file, second) = (directory.join("a.pcapng"), directory.join("a.1.pcapng"));
    let listed = || client::page(socket, false, client::LIMIT).unwrap().capture;
    let refused = |file: Option<&Path>| {
        client::capture(socket, file.map(Path::to_owned)).unwrap_err().message().to_owned()
    };
    assert_eq!((listed(), refused(None)), (None, "capture: none is running".into()));
    assert_eq!(refused(Some(Path::new("a"))), "capture a: expected an absolute path");

    let running = |frames, error: Option<&str>| CaptureReport {
        path: file.clone(),
        is_running: error.is_none(),
        frames,
        error: error.map(str::to_owned),
    };
    assert_eq!(client::capture(socket, Some(file.clone())).unwrap(), running(0, None));
    assert!(file.exists() && second.exists(), "a file for each queue");
    assert_eq!(fake.0.lock().unwrap().capture.as_ref().unwrap().1, name().tap);
    assert_eq!(listed(), Some(running(7, None)));
    let other = refused(Some(&directory.join("b.pcapng")));
    assert!(other.ends_with(&format!("already running: {}", file.display())), "{other}");
    let stopped = CaptureReport { is_running: false, ..running(7, None) };
    assert_eq!(client::capture(socket, None).unwrap(), stopped);
    assert_eq!((listed(), fake.capture()), (None, None));

    // The file exists now; and so does that of the second queue: the first one is removed.
    assert!(refused(Some(&file)).contains("File exists"));
    fs::remove_file(&file).unwrap();
    assert!(refused(Some(&file)).contains("File exists"));
    assert!(!file.exists() && second.exists() && fake.capture().is_none());

    fs::remove_file(&second).unwrap();
    // Another client: without a descriptor, and with one that could block.
    let request = |files: &[File]| {
        let mut stream = UnixStream::connect(socket).unwrap();
        let operation = Operation::StartCapture { path: file.clone() };
        let line = serde_json::to_string(&Request::new(operation)).unwrap() + "\n";
        client::send(&mut stream, line.as_bytes(), files).unwrap();
        let mut answer = String::new();
        io::BufReader::new(stream).read_line(&mut answer).unwrap();
        answer
    };
    assert!(request(&[]).contains("no descriptor for queue 0"));
    let null = File::options().write(true).open("/dev/null").unwrap();
    assert!(request(&[null]).contains("expected a regular file"));
    assert!(fake.capture().is_none());

    client::capture(socket, Some(file.clone())).unwrap();
    fake.0.lock().unwrap().capture_error = Some("No space left on device".into());
    let full = running(7, Some("No space left on device"));
    assert_eq!((listed(), fake.capture()), (Some(full.clone()), None));
    assert_eq!((listed(), client::capture(socket, None).unwrap()), (Some(full.clone()), full));
    assert_eq!(listed(), None);
    fs::remove_dir_all(directory).unwrap();
}

// A connection on a kernel socket has the statistics of the kernel. Values that the kernel does not have are null.
#[test]
fn kernel_socket_has_statistics_of_the_kernel() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    near.write_all(&[7; 1000]).unwrap();
    far.read_exact(&mut [0; 1000]).unwrap();
    let fake = Fake::default();
    fake.0.lock().unwrap().rows = vec![row(1)];
    fake.0.lock().unwrap().statistics = TcpStatistics::of(near.as_fd());
    let control = start(fake, path("statistics")).unwrap();
    let page = client::page(control.path(), false, client::LIMIT).unwrap();
    let info = page.connections[0].info.as_deref().unwrap();
    assert_eq!((info.bytes_sent, info.total_retrans_segs, info.timestamps), (1000, 0, true));
    assert!(info.rtt_ns.is_some_and(|rtt| rtt > 0) && info.snd_mss_bytes > 500, "{info:?}");
    assert_eq!(info.snd_cwnd_bytes % info.snd_mss_bytes, 0);
    assert_eq!((info.snd_ssthresh_bytes, info.timeouts, info.segs_psh_out), (None, None, None));
    // The sum of two adapters.
    let adapter = page.adapter.unwrap();
    assert_eq!((adapter.connects, adapter.fpdu_bytes_sent, adapter.accepts), (4, 200, 0));
}

// A socket without a listener is replaced; a socket with a server, and a regular file, are refused.
#[test]
fn stale_socket_is_replaced() {
    let path = path("stale");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let wanted = ControlSocketPath::Path(path.clone());
    let control = serve_at(&wanted).unwrap().expect("the socket was requested");
    assert!(client::list(&path, false).is_ok());
    let failure = serve_at(&wanted).map(drop).unwrap_err();
    assert!(failure.message().contains("another process listens"), "{failure}");
    drop(control);
    fs::write(&path, "a file").unwrap();
    assert!(serve_at(&wanted).is_err());
    assert_eq!(fs::read(&path).unwrap(), b"a file");
    fs::remove_file(&path).unwrap();
}

#[test]
fn missing_socket_is_a_failure_only_if_requested() {
    let long = std::env::temp_dir().join("x".repeat(PATH_BYTES_MAX));
    let failure = serve_at(&ControlSocketPath::Path(long.clone()));
    let failure = failure.map(drop).unwrap_err();
    assert!(failure.message().contains("at most 107"), "{failure}");
    let nowhere = ControlSocketPath::Directory("/nonexistent/flue".into());
    assert!(serve_at(&nowhere).unwrap().is_none());
    assert!(serve_at(&ControlSocketPath::None).unwrap().is_none());
}

#[test]
fn socket_replaces_no_file_and_is_removed() {
    use std::os::unix::fs::symlink;

    let (_, control) = served("private", iter::empty());
    let (link, target) = (path("link"), path("target"));
    symlink(&target, &link).unwrap();
    let error = ControlListener::bind(name(), link.clone()).unwrap_err();
    assert!(error.message().contains("Address already in use"), "{error}");
    assert!(!target.exists() && link.is_symlink());
    fs::remove_file(link).unwrap();
    let removed = control.path().to_owned();
    drop(control);
    assert!(!removed.exists());
    // A listener that is not served removes its socket too.
    drop(ControlListener::bind(name(), removed.clone()).unwrap());
    assert!(!removed.exists());
}

#[test]
fn client_of_another_user_is_refused() {
    let own = geteuid();
    let other = Uid::from_raw(own.as_raw() + 1);
    assert!(is_permitted(own) && is_permitted(Uid::ROOT) && !is_permitted(other));
}
