//! A queue pair at work on real TAPs, whose connection is handed over and taken back a thousand times.

#[path = "../rdma-over-tcp/tests/threads/end.rs"]
mod end;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use flue_test_support::needs::{Need, lacks};
use flue_test_support::switch::Switch;
use host_stack::host::HostConfig;
use host_stack::node::{NodeConfig, Progress};
use host_stack::stream::OffloadState;
use offload_engine::chimney::state::MacAddress;
use offload_engine::engine::EngineConfig;
use offload_engine::link::{TapOptions, VnetMode, open_tap};
use offload_engine::sync::Mutex;
use offload_engine::time::Duration;
use rdma_over_tcp::ndk::{Adapter, AdapterConfig, FpduSize, NtStatus, open};

use self::end::{End, LIMIT, LIMITS, TestNode, Told, hand_over};

const NEEDS: &[Need] = &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("unshare")];
/// In one of so many stays a round of messages begins and ends, in the others as much as there is time for.
const LONG_STAYS: u32 = 20;

fn node(switch: &Switch, index: usize, vnet: VnetMode, fpdu_size: FpduSize) -> (TestNode, Adapter) {
    let name = format!("tap{index}");
    let opened = switch.namespace().run(|| open_tap(&TapOptions::new(&name, 1500, vnet))).unwrap();
    switch.namespace().ip(&format!("link set {name} master {} up", Switch::BRIDGE));
    let mac = MacAddress([2, 0, 0, 0, 4, 1 + index as u8]);
    let address = format!("10.4.0.{}", 1 + index).parse().unwrap();
    let host = HostConfig { mac, addresses: vec![(address, 24)], ..HostConfig::default() };
    let (progress, spin) = (Progress::Automatic, Duration::from_micros(20));
    let config = NodeConfig { engine: EngineConfig::new(mac), host, progress, spin };
    open(Box::new(opened.link), config, AdapterConfig { fpdu_size, ..AdapterConfig::default() })
        .unwrap()
}

/// Two nodes with a queue pair each; the connection of the first is moved `count` times up and down, and now and then
/// that of the second.
fn a_queue_pair_at_work_moves(count: u32, vnet: VnetMode, fpdu_size: FpduSize) {
    if lacks(NEEDS) {
        return;
    }
    let switch = Switch::new(1500);
    let [near, far] = [0, 1].map(|index| node(&switch, index, vnet, fpdu_size));
    let server = "10.4.0.2:7174".parse().unwrap();
    let incoming = Arc::new(Mutex::new(Vec::new()));
    let told = incoming.clone();
    let listener = far.1.create_listener(move |connector| told.lock().push(connector)).unwrap();
    let listening = Arc::new(Told::default());
    assert_eq!(listener.listen(server, listening.tells()), NtStatus::PENDING);
    let status = far.0.wait_until(Some(LIMIT), || listening.status.lock().take());
    assert_eq!(status, Ok(NtStatus::SUCCESS));

    let (over, rounds) = (AtomicBool::new(false), AtomicU32::new(0));
    thread::scope(|scope| {
        let passive = scope.spawn(|| {
            let end = End::new(&far.0, &far.1);
            let connector = end.wait("a request", || incoming.lock().pop());
            let status = connector.accept(&end.qp, LIMITS, &[], None, end.told.tells());
            end.status("accept", status);
            end.run(|_| false)
        });
        let active = scope.spawn(|| {
            let end = End::new(&near.0, &near.1);
            let connector = near.1.create_connector().unwrap();
            end.connect(&connector, server);
            end.run(|round| {
                rounds.store(round, Ordering::Relaxed);
                over.load(Ordering::Relaxed)
            })
        });
        let works = |round: u32| {
            let moved = || (rounds.load(Ordering::Relaxed) >= round).then_some(());
            near.0.wait_until(Some(LIMIT), moved).expect("the queue pair goes on");
        };
        works(1);
        for index in 0..count {
            for to in [OffloadState::InHost, OffloadState::Offloaded] {
                hand_over(&near.0, to);
                if index % LONG_STAYS == 0 {
                    works(rounds.load(Ordering::Relaxed) + 2);
                    hand_over(&far.0, to);
                }
            }
        }
        over.store(true, Ordering::Relaxed);
        assert_eq!(active.join().unwrap(), passive.join().unwrap());
    });
    let history = near.0.list(LIMIT).unwrap();
    let moves = history.iter().find(|row| row.remote.is_some()).expect("it is there still").moves;
    assert_eq!((moves.offloads, moves.uploads), (1 + count, count));
    assert!(rounds.into_inner() > 2 * count / LONG_STAYS);
}

#[test]
fn a_queue_pair_at_work_moves_on_super_segments() {
    a_queue_pair_at_work_moves(1_000, VnetMode::On, FpduSize::Auto);
}

// In the host one segment is under way at a time, and the peer delays its acknowledgement: so these are fewer.
#[test]
fn a_queue_pair_at_work_moves_with_aligned_fpdus() {
    a_queue_pair_at_work_moves(100, VnetMode::Off, FpduSize::Emss);
}
