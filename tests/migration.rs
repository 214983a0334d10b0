//! Busy queue pairs on real TAPs while their connections are offloaded and uploaded, or remain in the host stack.

#[path = "../rdma-over-tcp/tests/threads/end.rs"]
#[allow(dead_code, reason = "another program has tests of more")]
mod end;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use flue_test_support::flue::{Scratch, command};
use flue_test_support::needs::{Need, lacks};
use flue_test_support::process::{Output, Process};
use flue_test_support::switch::Switch;
use host_stack::host::HostConfig;
use host_stack::node::NodeConfig;
use host_stack::stream::OffloadState;
use offload_engine::link::{TapOptions, VnetMode, open_tap};
use offload_engine::state::MacAddress;
use offload_engine::sync::Mutex;
use offload_engine::time::Duration;
use rdma_over_tcp::ndk::{Adapter, AdapterConfig, FpduSize, NtStatus, open};

use self::end::{CallbackResults, End, LIMIT, LIMITS, TestNode, move_connections};

const NEEDS: &[Need] = &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("unshare")];
/// Interval, in migrations, between those that complete a full round of messages; the rest transfer as much as time
/// permits.
const FULL_ROUND_INTERVAL: u32 = 20;

fn node(switch: &Switch, index: usize, vnet: VnetMode, fpdu_size: FpduSize) -> (TestNode, Adapter) {
    let name = format!("tap{index}");
    let opened = switch.attach(&name, || open_tap(&TapOptions::new(&name, 1500, vnet))).unwrap();
    let mac = MacAddress([2, 0, 0, 0, 4, 1 + index as u8]);
    let address = format!("10.4.0.{}", 1 + index).parse().unwrap();
    let config = NodeConfig::new(HostConfig::new(mac, address));
    open(Box::new(opened.link), config, AdapterConfig { fpdu_size, ..AdapterConfig::default() })
        .unwrap()
}

/// Runs two nodes with a queue pair each. The connection of the first is offloaded and uploaded `count` times, that
/// of the second occasionally.
fn busy_queue_pair_migrates(count: u32, vnet: VnetMode, fpdu_size: FpduSize) {
    if lacks(NEEDS) {
        return;
    }
    let switch = Switch::new(1500);
    let [near, far] = [0, 1].map(|index| node(&switch, index, vnet, fpdu_size));
    let server = "10.4.0.2:7174".parse().unwrap();
    let incoming = Arc::new(Mutex::new(Vec::new()));
    let told = incoming.clone();
    let listener = far.1.create_listener(move |connector| told.lock().push(connector)).unwrap();
    let listening = Arc::new(CallbackResults::default());
    assert_eq!(listener.listen(server, listening.callback()), NtStatus::PENDING);
    let status = far.0.wait_until(Some(LIMIT), || listening.status.lock().take());
    assert_eq!(status, Ok(NtStatus::SUCCESS));

    let (over, rounds) = (AtomicBool::new(false), AtomicU32::new(0));
    thread::scope(|scope| {
        let passive = scope.spawn(|| {
            let end = End::new(&far.1);
            let connector = end.wait("a request", || incoming.lock().pop());
            let status = connector.accept(&end.qp, LIMITS, &[], None, end.callbacks.callback());
            end.status("accept", status);
            end.run(|_| false)
        });
        let active = scope.spawn(|| {
            let end = End::new(&near.1);
            let connector = near.1.create_connector().unwrap();
            end.connect(&connector, server);
            end.run(|round| {
                rounds.store(round, Ordering::Relaxed);
                over.load(Ordering::Relaxed)
            })
        });
        let works = |round: u32| {
            let moved = || (rounds.load(Ordering::Relaxed) >= round).then_some(());
            near.0.wait_until(Some(LIMIT), moved).expect("the queue pair continues");
        };
        works(1);
        for index in 0..count {
            for to in [OffloadState::InHost, OffloadState::Offloaded] {
                move_connections(&near.0, to);
                if index % FULL_ROUND_INTERVAL == 0 {
                    works(rounds.load(Ordering::Relaxed) + 2);
                    move_connections(&far.0, to);
                }
            }
        }
        over.store(true, Ordering::Relaxed);
        assert_eq!(active.join().unwrap(), passive.join().unwrap());
    });
    let history = near.0.list(LIMIT).unwrap();
    let moves = history
        .iter()
        .find(|row| row.remote.is_some())
        .expect("the connection is still listed")
        .moves;
    assert_eq!((moves.offloads, moves.uploads), (1 + count, count));
    assert!(rounds.into_inner() > 2 * count / FULL_ROUND_INTERVAL);
}

#[test]
fn busy_queue_pair_migrates_with_gso_packets() {
    busy_queue_pair_migrates(1_000, VnetMode::On, FpduSize::Auto);
}

#[test]
fn busy_queue_pair_migrates_with_aligned_fpdus() {
    busy_queue_pair_migrates(1_000, VnetMode::Off, FpduSize::Emss);
}

/// Time limit of a failing run, so it may be long.
const FAILURE_TIME_LIMIT: Duration = Duration::from_secs(120);
/// Address of the ping server.
const SERVER: &str = "10.0.0.2";

/// Runs pings between two processes with these policies; `meanwhile` runs repeatedly until they end.
fn pings(count: u32, policies: [&str; 2], runtime: &Scratch, mut meanwhile: impl FnMut()) {
    let switch = Switch::new(1500);
    let rping = |what: &str, host: u8, policy: &str| {
        let node = format!("--tap tap{host} --addr 10.0.0.{host}/24 --bridge {}", Switch::BRIDGE);
        let line = format!("rping {what} -S 4096 -V {node} --offload {policy}");
        Process::start(switch.namespace(), flue(runtime, &line), Output::Lines)
    };
    let mut server = rping(&format!("-s -a {SERVER}"), 2, policies[1]);
    server.expect_line("listening", FAILURE_TIME_LIMIT);
    let mut client = rping(&format!("-c -a {SERVER} -C {count}"), 1, policies[0]);
    client.expect_line("connected", FAILURE_TIME_LIMIT);
    while client.is_running() {
        meanwhile();
    }
    client.expect_exit(0, FAILURE_TIME_LIMIT);
    server.expect_exit(0, FAILURE_TIME_LIMIT);
}

fn flue(runtime: &Scratch, line: &str) -> Command {
    let mut command = command(env!("CARGO_BIN_EXE_flue"), line);
    command.env("XDG_RUNTIME_DIR", runtime.file(""));
    command
}

// The data path remains in the host stack at both ends or at one, or is offloaded immediately.
#[test]
fn queue_pairs_run_in_either_stack() {
    if lacks(NEEDS) {
        return;
    }
    for policies in [["never", "never"], ["always", "never"], ["never", "auto"]] {
        pings(200, policies, &Scratch::new(), thread::yield_now);
    }
}

// `flue upload` and `flue offload` on a busy queue pair.
#[test]
fn user_migrates_queue_pairs() {
    if lacks(NEEDS) {
        return;
    }
    let (runtime, mut moved) = (Scratch::new(), [0; 2]);
    pings(20_000, ["always"; 2], &runtime, || {
        for (way, name) in ["upload", "offload"].into_iter().enumerate() {
            let said = flue(&runtime, &format!("{name} all")).output().expect("flue starts");
            // The last commands find nodes that are exiting.
            moved[way] += u32::from(said.status.success());
        }
    });
    assert!(moved.iter().all(|moved| *moved >= 3), "{moved:?}");
}
