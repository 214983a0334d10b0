//! Endurance: long-lived servers under all kinds of traffic, with impairments, migrations, killed and stopped peers,
//! outages and address changes.
//!
//! Rounds of actions alternate with samples. In a round, one thread acts on kernel sockets and one on nodes; a seed
//! selects the actions. All programs verify their data and exit with 0, except those that the test kills. Before a
//! sample all connections have ended. Threads, descriptors and gauges of the last sample are those of the baseline,
//! the first sample after [`BASELINE`]; memory has grown by at most [`GROWTH_KIB_MAX`].
//!
//! `tests/soak/run` selects the time, and writes the samples as JSON and as a chart.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use flue_report::svg::{Anchor, Axis, Canvas};
use flue_report::table::{Align, Table};
use flue_test_support::flue::{Scratch, command};
use flue_test_support::needs::{Need, lacks};
use flue_test_support::netns::Namespace;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::group::Group;
use crate::servers::{Footprint, LATE_READER};
use crate::test_bed::{LIMIT, under_flue};
use crate::{FLUE, NEEDS, machine};

/// Environment variables: time of the run in seconds, directory of the results, and seed.
const SECONDS: &str = "FLUE_SOAK_SECONDS";
const OUTPUT: &str = "FLUE_SOAK_OUTPUT";
const SEED: &str = "FLUE_SEED";

/// Time of a run without [`SECONDS`].
const SHORT: Duration = Duration::from_secs(60);
/// Time after which the baseline is sampled, in a run of at least three times that.
const BASELINE: Duration = Duration::from_secs(60);
/// Growth of resident memory after the baseline, of each process. It has few steps: a rare combination of events, such
/// as loss, stopped readers and concurrent connections, needs more buffers than any before.
const GROWTH_KIB_MAX: u64 = 2048;
/// Growth in a shorter run, in which some actions occur only after the baseline.
const SHORT_GROWTH_KIB_MAX: u64 = 8 << 10;
/// Rounds of a run, at most one per second.
const ROUNDS: u32 = 60;

/// Time limit for the end of a server's connections after a round.
const SETTLE_LIMIT: Duration = Duration::from_secs(90);

/// Text before the rate and the latency in the output of a program.
const PINGS: &str = "usec/iter";
const RATE: &str = "BW average[";

/// Impairments of a client on a node.
const IMPAIRMENTS: &[&str] =
    &["", "--drop 1", "--reorder 3", "--drop 0.5 --delay 1ms", "--corrupt 0.5", "--duplicate 2"];

/// Long-lived server.
struct Server {
    name: &'static str,
    group: Group,
    process: u32,
    /// Directory of its control socket.
    runtime: Scratch,
    /// Threads without a connection.
    threads: usize,
}

/// State of a server without connections.
#[derive(Clone, PartialEq, Debug)]
struct State {
    footprint: Footprint,
    /// Gauges of `flue ss`: connections with listeners, queue pairs, posted receives, requests.
    gauges: [u64; 4],
    /// Totals of the adapter: accepted connections, and received FPDUs.
    totals: [u64; 2],
}

impl Server {
    fn start(name: &'static str, program: &str, host: &Namespace, mut command: Command) -> Self {
        let runtime = Scratch::new();
        command.env("XDG_RUNTIME_DIR", runtime.file(""));
        let group = Group::start(host, command);
        let mut server = Self { name, group, process: 0, runtime, threads: 0 };
        let listens = server
            .group
            .wait_until("listens", LIMIT, || server.counters().is_some_and(|it| it.0[0] > 0));
        assert_eq!(listens, Ok(()), "{}", server.group.report());
        server.process = server.group.process(program);
        server.threads = Footprint::of(server.process).threads;
        server
    }

    /// Gauges and totals; `None` while `flue ss` does not list the node.
    fn counters(&self) -> Option<([u64; 4], [u64; 2])> {
        let mut ss = command(FLUE, "ss -a --json");
        ss.env("XDG_RUNTIME_DIR", self.runtime.file(""));
        let output = ss.output().expect("flue starts");
        let document: Value = serde_json::from_slice(&output.stdout).ok()?;
        let (result, summary) = (&document["result"], &document["result"]["summary"]);
        let adapter = &result["nodes"].as_array()?.first()?["adapter"];
        let gauge = |name: &str| summary[name].as_u64();
        let gauges = [
            gauge("connections")?,
            gauge("queue_pairs")?,
            gauge("receives_posted")?,
            gauge("outstanding")?,
        ];
        Some((gauges, ["accepts", "fpdus_received"].map(|it| adapter[it].as_u64().unwrap_or(0))))
    }

    /// Waits until it has no connection and at most `descriptors_max` descriptors, and returns its state.
    fn settled(&self, descriptors_max: usize) -> State {
        let mut last = None;
        let settled = self.group.wait_until("connections have ended", SETTLE_LIMIT, || {
            // Before the query, which is a connection of the server's control socket.
            let footprint = Footprint::of(self.process);
            last = self.counters().map(|(gauges, totals)| State { footprint, gauges, totals });
            last.as_ref().is_some_and(|State { footprint, gauges, .. }| {
                footprint.threads == self.threads
                    && footprint.descriptors <= descriptors_max
                    && gauges[1..] == [0; 3]
            })
        });
        assert_eq!(settled, Ok(()), "{}: {last:?}\n{}", self.name, self.group.report());
        last.expect("a state")
    }

    /// Runs `flue offload` or `flue upload` for its connections; each may be refused.
    fn migrate(&self, verb: &str) {
        let mut command = command(FLUE, &format!("{verb} all --wait 0"));
        command.env("XDG_RUNTIME_DIR", self.runtime.file(""));
        let output = command.output().expect("flue starts");
        let code = output.status.code();
        assert!(matches!(code, Some(0 | 1)), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Random numbers of one thread.
struct Random(oorandom::Rand32);

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.0.rand_range(0..limit)
    }

    /// Pauses for a random time, at which an event occurs in the middle of the traffic.
    fn pause(&mut self, milliseconds: std::ops::Range<u32>) {
        thread::sleep(Duration::from_millis(self.0.rand_range(milliseconds).into()));
    }
}

/// Measured values of programs: name, seconds since the start, value.
type Measured = Mutex<Vec<(&'static str, f64, f64)>>;

/// Environment of the actions of one thread.
struct Actions<'a> {
    host: &'a Namespace,
    /// Server of rping on this host.
    server: &'a Server,
    runtime: Scratch,
    stress: &'a Path,
    begun: Instant,
    measured: &'a Measured,
    counts: BTreeMap<&'static str, u32>,
    random: Random,
}

impl Actions<'_> {
    fn start(&self, mut command: Command) -> Group {
        command.env("XDG_RUNTIME_DIR", self.runtime.file(""));
        Group::start(self.host, command)
    }

    /// Waits until the program has exited with 0. A client of rping may have read its destroyed channel.
    fn succeeds(&self, mut program: Group) -> String {
        let ended = program.wait(LIMIT).map(|status| status.code());
        program.kill();
        let is_late = program.said().contains(LATE_READER.trim_matches('\''));
        assert!(
            ended == Ok(Some(0)) || is_late,
            "{ended:?}: {}{}",
            program.report(),
            self.server.group.report()
        );
        program.said()
    }

    /// Runs a pair of programs on kernel sockets, both of which exit with 0; returns the client's output.
    fn pair(&self, line: &str, address: &str, between: impl FnOnce()) -> String {
        let server = self.start(under_flue("", line));
        let found = server.wait_for_listener(self.host, 18515, LIMIT);
        assert_eq!(found, Ok(()), "{}", server.report());
        between();
        let client = self.start(under_flue("", &format!("{line} {address}")));
        let said = self.succeeds(client);
        self.succeeds(server);
        said
    }

    /// Records the value that is `back` words before the end of the first line after the one with that text.
    fn measure(&self, name: &'static str, value: Option<f64>) {
        let value = value.unwrap_or_else(|| panic!("{name}: no value"));
        let at = self.begun.elapsed().as_secs_f64();
        self.measured.lock().expect("no panic").push((name, at, value));
    }

    /// Selects and counts the next action.
    fn choose(&mut self, actions: &[&'static str]) -> &'static str {
        let action = actions[self.random.below(actions.len() as u32) as usize];
        *self.counts.entry(action).or_default() += 1;
        action
    }

    /// Kills a client of rping's server at a random time after its first message. A connection that ends before it is
    /// established raises CONNECT_ERROR at the server, at which rping exits.
    fn kill_connected(&mut self, client: Command) {
        let messages = || self.server.counters().map(|it| it.1[1]);
        let before = messages();
        let client = self.start(client);
        let runs = client.wait_until("is connected", LIMIT, || messages() > before);
        assert_eq!(runs, Ok(()), "{}{}", client.report(), self.server.group.report());
        self.kill(client);
    }

    /// Kills rping at a random time.
    fn kill(&mut self, mut client: Group) {
        self.random.pause(0..400);
        if let Some(process) = client.find_process("rping") {
            let process = i32::try_from(process).ok().and_then(Pid::from_raw);
            // It may have exited.
            let _ = kill_process(process.expect("a process id"), Signal::KILL);
            // The launcher resets the connections of its program.
            let ended = client.wait(LIMIT);
            assert!(ended.is_ok(), "{ended:?}: {}", client.report());
        }
    }

    fn on_sockets(&mut self) {
        const ACTIONS: [&str; 10] = [
            "rping on kernel sockets",
            "rping on kernel sockets, killed",
            "client of flue serve on kernel sockets, killed",
            "rping on kernel sockets, server stopped",
            "ib_write_bw",
            "ib_send_bw -R -e",
            "ibv_rc_pingpong",
            "queue pairs",
            "address change",
            "flue serve on kernel sockets",
        ];
        let action = self.choose(&ACTIONS);
        let (count, size) = (1 + self.random.below(200), 64 + self.random.below(20_000));
        let client = format!("rping -c -a 127.0.0.1 -V -S {size}");
        match action {
            "rping on kernel sockets" => {
                self.succeeds(self.start(under_flue("", &format!("{client} -C {count}"))));
            }
            "rping on kernel sockets, killed" => {
                self.kill_connected(under_flue("", &client));
            }
            "client of flue serve on kernel sockets, killed" => {
                let client = self.start(under_flue("", &format!("{client} -p 7175")));
                self.kill(client);
            }
            "rping on kernel sockets, server stopped" => {
                let running = self.start(under_flue("", &format!("{client} -C {}", 10 * count)));
                self.random.pause(20..200);
                self.server.group.signal("rping", Signal::STOP);
                self.random.pause(20..500);
                self.server.group.signal("rping", Signal::CONT);
                self.succeeds(running);
            }
            "ib_write_bw" => {
                let said = self.pair("ib_write_bw -F -n 500", "127.0.0.1", || {});
                self.measure("ib_write_bw, MB/s", cell(&said, RATE, 3));
            }
            "ib_send_bw -R -e" => {
                let said = self.pair("ib_send_bw -F -R -e -n 500", "127.0.0.1", || {});
                self.measure("ib_send_bw -R -e, MB/s", cell(&said, RATE, 3));
            }
            "ibv_rc_pingpong" => {
                let said = self.pair("ibv_rc_pingpong -g 0 -c -n 500", "127.0.0.1", || {});
                let words = said.lines().find(|line| line.contains(PINGS));
                let value = words.and_then(|line| line.rsplit(' ').nth(1)?.parse().ok());
                self.measure("ibv_rc_pingpong, us", value);
            }
            "queue pairs" => {
                let line = format!("{} 3 8 4", self.stress.display());
                self.succeeds(self.start(under_flue("", &line)));
            }
            "address change" => {
                self.host.ip("address add 10.77.0.9/24 dev eth0");
                self.pair("ibv_rc_pingpong -g 0 -c -n 100", "10.77.0.1", || {
                    self.host.ip("address del 10.77.0.9/24 dev eth0");
                });
            }
            _ => {
                self.succeeds(self.start(under_flue("", "rdma_client -s 127.0.0.1 -p 7175")));
            }
        }
    }

    fn on_nodes(&mut self) {
        const NODE: &str = "--tap tap1 --addr 10.9.0.2/24 --bridge br0";
        const ACTIONS: [&str; 9] = [
            "client of flue serve, killed",
            "rping",
            "rping, impaired",
            "rping, killed",
            "rping, server stopped",
            "rping, migrations",
            "rping, link down",
            "flue rping",
            "flue serve",
        ];
        let action = self.choose(&ACTIONS);
        let (count, size) = (1 + self.random.below(200), 64 + self.random.below(20_000));
        let seed = self.random.below(1000);
        let client = format!("rping -c -a 10.9.0.1 -V -S {size}");
        let on_node = |options: &str, line: &str| {
            under_flue(&format!("{NODE} --seed {seed} {options}"), line)
        };
        let many = format!("{client} -C {}", 10 * count);
        match action {
            "rping" => {
                self.succeeds(self.start(on_node("", &format!("{client} -C {count}"))));
            }
            "rping, impaired" => {
                let options = IMPAIRMENTS[self.random.below(IMPAIRMENTS.len() as u32) as usize];
                self.succeeds(self.start(on_node(options, &format!("{client} -C {count}"))));
            }
            "rping, killed" => {
                self.kill_connected(on_node("", &client));
            }
            "client of flue serve, killed" => {
                let client = client.replace("10.9.0.1", "10.9.0.3");
                self.kill(self.start(on_node("", &client)));
            }
            "rping, server stopped" => {
                let running = self.start(on_node("", &many));
                self.random.pause(100..400);
                self.server.group.signal("rping", Signal::STOP);
                self.random.pause(20..500);
                self.server.group.signal("rping", Signal::CONT);
                self.succeeds(running);
            }
            "rping, migrations" => {
                let running = self.start(on_node("", &many));
                for _ in 0..8 {
                    self.server.migrate("upload");
                    self.server.migrate("offload");
                }
                self.succeeds(running);
            }
            "rping, link down" => {
                let running = self.start(on_node("", &many));
                self.random.pause(100..400);
                self.host.ip("link set br0 down");
                self.random.pause(20..500);
                self.host.ip("link set br0 up");
                self.succeeds(running);
            }
            "flue rping" => {
                let line = format!("rping -c -a 10.9.0.1 -V -C {count} {NODE} --seed {seed}");
                self.succeeds(self.start(command(FLUE, &line)));
            }
            _ => {
                self.succeeds(self.start(on_node("", "rdma_client -s 10.9.0.3 -p 7174")));
            }
        }
    }
}

/// Number in the line after the one with `heading`.
fn cell(said: &str, heading: &str, at: usize) -> Option<f64> {
    let line = said.lines().skip_while(|line| !line.contains(heading)).nth(1)?;
    line.split_whitespace().nth(at)?.parse().ok()
}

/// States of the servers at one time, in their order.
struct Sample {
    seconds: f64,
    states: Vec<State>,
}

/// Chart of resident memory of each server, and of each measured value, over time.
fn chart(servers: &[Server], samples: &[Sample], measured: &[(&str, f64, f64)]) -> String {
    const STYLE: &str = "text { font: 13px sans-serif; } .grid { stroke: #ddd; } \
                         .paper { fill: #fff; } .line { fill: none; stroke: #1f77b4; stroke-width: 2; }";
    const PANEL: (f64, f64) = (760.0, 150.0);
    let mut panels: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for sample in samples {
        for (server, state) in servers.iter().zip(&sample.states) {
            let resident = state.footprint.resident_kib as f64 / 1024.0;
            let name = format!("{}: resident memory, MiB", server.name);
            panels.entry(name).or_default().push((sample.seconds, resident));
        }
    }
    for (name, at, value) in measured {
        panels.entry((*name).to_owned()).or_default().push((*at, *value));
    }
    let size = (PANEL.0, PANEL.1 * panels.len() as f64);
    let mut canvas = Canvas::document(size, "Servers over time", STYLE);
    canvas.rect("paper", (0.0, 0.0), size);
    let last = samples.last().map_or(1.0, |sample| sample.seconds);
    let x = Axis::linear([last], (70.0, PANEL.0 - 20.0));
    for (row, (name, points)) in panels.iter().enumerate() {
        let top = PANEL.1 * row as f64 + 25.0;
        let y = Axis::linear(points.iter().map(|it| it.1), (top + PANEL.1 - 55.0, top));
        canvas.text("", (70.0, top - 8.0), Anchor::Start, &format!("{name}, over seconds"));
        canvas.grid_across(&y, x.pixels);
        canvas.grid_upright(&x, (y.pixels.1, y.pixels.0));
        canvas.path("line", points.iter().map(|it| (x.at(it.0), y.at(it.1))));
    }
    canvas.finish()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Text of the results.
fn summary(
    servers: &[Server],
    samples: &[Sample],
    baseline: usize,
    measured: &[(&str, f64, f64)],
    counts: &BTreeMap<&str, u32>,
) -> String {
    let head = ["server", "sample, s", "VmRSS, KiB", "descriptors", "threads"];
    let head = head.into_iter().chain(["accepted", "FPDUs received"]);
    let head: Vec<_> = head
        .enumerate()
        .map(|(at, it)| (it, if at == 0 { Align::Left } else { Align::Right }))
        .collect();
    let mut table = Table::new(&head);
    for (at, server) in servers.iter().enumerate() {
        for sample in [&samples[0], &samples[baseline], &samples[samples.len() - 1]] {
            let State { footprint, totals, .. } = &sample.states[at];
            let values = [
                format!("{:.0}", sample.seconds),
                footprint.resident_kib.to_string(),
                footprint.descriptors.to_string(),
                footprint.threads.to_string(),
                totals[0].to_string(),
                totals[1].to_string(),
            ];
            table.row([server.name.to_owned()].into_iter().chain(values));
        }
    }
    let mut medians = Table::new(&[
        ("measurement", Align::Left),
        ("samples", Align::Right),
        ("median of the first quarter", Align::Right),
        ("of the last", Align::Right),
    ]);
    let mut values: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (name, _, value) in measured {
        values.entry(name).or_default().push(*value);
    }
    for (name, values) in values {
        let quarter = values.len().div_ceil(4);
        let [first, last] = [&values[..quarter], &values[values.len() - quarter..]]
            .map(|part| format!("{:.1}", median(part.to_vec())));
        medians.row([name.to_owned(), values.len().to_string(), first, last]);
    }
    let counts: Vec<_> = counts.iter().map(|(name, count)| format!("{name}: {count}")).collect();
    format!("{table}\n{medians}\nactions: {}\n", counts.join("; "))
}

fn seconds_of(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}: {text}")))
}

fn start_servers(sockets: &Namespace, nodes: &Namespace) -> [Server; 4] {
    let node = |at: u32| format!("--tap tap{at} --addr 10.9.0.{}/24 --bridge br0", at + 1);
    let serve = |options: &str| command(FLUE, &format!("serve --echo -q {options}"));
    [
        Server::start(
            "rping on kernel sockets",
            "rping",
            sockets,
            under_flue("", "rping -s -P -a 127.0.0.1 -V -S 65000"),
        ),
        Server::start(
            "rping on a node",
            "rping",
            nodes,
            under_flue(&node(0), "rping -s -P -a 10.9.0.1 -V -S 65000"),
        ),
        Server::start(
            "flue serve on kernel sockets",
            "flue",
            sockets,
            serve("--transport kernel -p 7175"),
        ),
        Server::start("flue serve on a node", "flue", nodes, serve(&node(2))),
    ]
}

#[test]
fn servers_do_not_grow_under_mixed_traffic() {
    const TOOLS: [&str; 6] =
        ["rping", "rdma_client", "ib_write_bw", "ib_send_bw", "ibv_rc_pingpong", "cc"];
    if lacks(NEEDS) || lacks(&[Need::Tun]) || lacks(&TOOLS.map(Need::Tool)) {
        return;
    }
    let time = seconds_of(SECONDS).map_or(SHORT, Duration::from_secs);
    let seed = seconds_of(SEED).unwrap_or(1);
    let stress_scratch = Scratch::new();
    let stress = compile_stress(&stress_scratch);
    let (sockets, nodes) = (machine(), machine());
    nodes.ip("link add br0 type bridge");
    nodes.ip("link set br0 up");
    let servers = start_servers(&sockets, &nodes);
    let (begun, measured) = (Instant::now(), Measured::default());
    let actions = |host, server, stream: u64| Actions {
        host,
        server,
        runtime: Scratch::new(),
        stress: &stress,
        begun,
        measured: &measured,
        counts: BTreeMap::new(),
        random: Random(oorandom::Rand32::new_inc(seed, stream)),
    };
    let (mut on_sockets, mut on_nodes) =
        (actions(&sockets, &servers[0], 1), actions(&nodes, &servers[1], 2));
    let round = (time / ROUNDS).max(Duration::from_secs(1));
    let baseline_at = BASELINE.min(time / 3);
    let (mut samples, mut baseline) = (Vec::new(), None);
    while begun.elapsed() < time || samples.len() < 3 {
        let end = Instant::now() + round;
        thread::scope(|scope| {
            scope.spawn(|| {
                while Instant::now() < end {
                    on_sockets.on_sockets();
                }
            });
            scope.spawn(|| {
                while Instant::now() < end {
                    on_nodes.on_nodes();
                }
            });
        });
        let before: Option<&Sample> = baseline.and_then(|at: usize| samples.get(at));
        let states = servers.iter().enumerate().map(|(at, server)| {
            let descriptors_max = before.map(|it| it.states[at].footprint.descriptors);
            server.settled(descriptors_max.unwrap_or(usize::MAX))
        });
        let states = states.collect();
        if begun.elapsed() >= baseline_at {
            baseline.get_or_insert(samples.len());
        }
        samples.push(Sample { seconds: begun.elapsed().as_secs_f64(), states });
    }
    let baseline = baseline.expect("a sample at the end").min(samples.len() - 2);
    let mut counts = on_nodes.counts;
    counts.extend(on_sockets.counts);
    let measured = measured.into_inner().expect("no panic");
    let text = summary(&servers, &samples, baseline, &measured, &counts);
    println!("{} s, seed {seed}\n{text}", begun.elapsed().as_secs());
    if let Some(directory) = env::var_os(OUTPUT).map(PathBuf::from) {
        write_results(&directory, &servers, &samples, baseline, &measured, &text);
    }
    let growth_max = if time < 3 * BASELINE { SHORT_GROWTH_KIB_MAX } else { GROWTH_KIB_MAX };
    check_growth(&servers, &samples[baseline], &samples[samples.len() - 1], growth_max);
}

fn check_growth(servers: &[Server], before: &Sample, after: &Sample, growth_kib_max: u64) {
    for ((server, before), after) in servers.iter().zip(&before.states).zip(&after.states) {
        let wrong = || format!("{}: {before:?}, then {after:?}", server.name);
        assert_eq!(after.gauges, before.gauges, "{}", wrong());
        assert_eq!(after.footprint.threads, before.footprint.threads, "{}", wrong());
        let resident_max = before.footprint.resident_kib + growth_kib_max;
        assert!(after.footprint.resident_kib <= resident_max, "{}", wrong());
    }
}

/// Compiles the program that creates, uses and destroys queue pairs.
fn compile_stress(scratch: &Scratch) -> PathBuf {
    let path = scratch.file("stress");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/verbs/connect/stress.c");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-D_GNU_SOURCE", "-o"]).arg(&path).args([source, "-libverbs"]);
    let compiled = cc.status().expect("cc runs");
    assert!(compiled.success(), "the program requires libibverbs-dev");
    path
}

fn write_results(
    directory: &Path,
    servers: &[Server],
    samples: &[Sample],
    baseline: usize,
    measured: &[(&str, f64, f64)],
    text: &str,
) {
    let state = |(server, state): (&Server, &State)| {
        let Footprint { threads, descriptors, resident_kib } = state.footprint;
        json!({
            "server": server.name, "threads": threads, "descriptors": descriptors,
            "resident_kib": resident_kib, "gauges": state.gauges, "totals": state.totals,
        })
    };
    let sample = |it: &Sample| {
        let states: Vec<_> = servers.iter().zip(&it.states).map(state).collect();
        json!({ "seconds": it.seconds, "servers": states })
    };
    let samples_json: Vec<_> = samples.iter().map(sample).collect();
    let document = json!({ "baseline": baseline, "samples": samples_json, "measured": measured });
    let write = |name: &str, text: String| {
        fs::write(directory.join(name), text).expect("a directory for the results");
    };
    write("soak.json", format!("{document:#}\n"));
    write("soak.svg", chart(servers, samples, measured));
    write("soak.txt", text.to_owned());
}
