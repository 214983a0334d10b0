//! The lab's network path, created by threads instead of processes: each has its namespace.

use std::{
    io::{BufReader, PipeReader, PipeWriter, pipe},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use offload_engine::{
    link::{Link, RxBatch, TxFrame, TxOffload, TxOutcome},
    time::Instant as EngineInstant,
};

use super::*;
use crate::{
    adapter::Transport,
    cmd::lab::director::{Action, Director},
    environment,
    net::{NamespaceOf, VethEnd},
    options::NodeArgs,
};

const LIMIT: Duration = Duration::from_secs(60);
/// IEEE 802 local experimental EtherType 2.
const ETHER_TYPE: [u8; 2] = [0x88, 0xb6];

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    node: NodeArgs,
}

fn plan(address: &str, vnet: &str, mtu: &str) -> NodePlan {
    let line =
        ["test", "--seed", "1", "--bridge", "br0", "--addr", address, "--vnet", vnet, "--mtu", mtu];
    NodePlan {
        setup: Command::try_parse_from(line).unwrap().node.resolve().unwrap(),
        transport: Transport::Tap,
        cable: Some("cable0".into()),
        target: "10.77.0.2".parse().unwrap(),
        port: 7174,
        file: "/proc/self/exe".into(),
        chunk_bytes: 65536,
        window_receives: 16,
    }
}

fn transmit(link: &mut dyn Link, payload: &[u8]) {
    let mut head = vec![0xff; 6];
    head.extend([2, 0, 0, 0, 0, 1]);
    head.extend(ETHER_TYPE);
    head.extend(payload);
    head.resize(60, 0);
    let offload = TxOffload::default();
    let frame = TxFrame { offload, head: &head, payload: &[], lender: None, comment: None };
    assert_eq!(link.transmit(EngineInstant::ZERO, &frame), TxOutcome::Sent);
}

/// Returns the payload of the next frame of [`ETHER_TYPE`].
fn receive(link: &mut dyn Link) -> Vec<u8> {
    let deadline = Instant::now() + LIMIT;
    let mut batch = RxBatch::new(16);
    while Instant::now() < deadline {
        batch.clear();
        link.receive(EngineInstant::ZERO, &mut batch).unwrap();
        let ours = batch.frames().find(|frame| frame.data.get(12..14) == Some(&ETHER_TYPE));
        if let Some(frame) = ours {
            return frame.data[14..].to_vec();
        }
        thread::yield_now();
    }
    panic!("no frame within {LIMIT:?}");
}

fn node(side: Side, orders: PipeReader, reports: PipeWriter) {
    let mut session = Session::open(side, false, BufReader::new(orders), reports).unwrap();
    let OpenLinks { mut links, vnet_header, .. } = session.open_links().unwrap();
    session.linked(Some(vnet_header)).unwrap();
    let _orders = session.listening().unwrap();
    let ended = match side {
        Side::A => {
            transmit(&mut *links[0], b"to B");
            receive(&mut *links[0])
        }
        Side::B => {
            let received = receive(&mut *links[0]);
            transmit(&mut *links[0], b"to A");
            received
        }
    };
    let expected = if side == Side::A { b"to A" } else { b"to B" };
    assert!(ended.starts_with(expected));
    session.end(Ok(())).unwrap();
}

/// Creates the path under control of the director, until both nodes are done.
fn build(plans: [NodePlan; 2]) -> Director {
    if !namespace::has_net_admin() {
        println!("skipped: no CAP_NET_ADMIN");
        return Director::new(plans);
    }
    if let Err(failure) = environment::check_tun() {
        println!("skipped: {failure}");
        return Director::new(plans);
    }
    thread::scope(|scope| {
        let lab = scope.spawn(|| {
            namespace::enter_below().unwrap();
            let mtu = plans[0].setup.node.mtu_bytes;
            let mut director = Director::new(plans);
            let (sender, inputs) = mpsc::channel();
            let mut orders = Vec::new();
            for side in Side::BOTH {
                let (order_reader, order_writer) = pipe().unwrap();
                let (report_reader, report_writer) = pipe().unwrap();
                orders.push(order_writer);
                scope.spawn(move || node(side, order_reader, report_writer));
                let sender = sender.clone();
                scope.spawn(move || {
                    for line in BufReader::new(report_reader).lines() {
                        let report: Report = serde_json::from_str(&line.unwrap()).unwrap();
                        sender.send((side, report)).unwrap();
                    }
                });
            }
            loop {
                while let Some(act) = director.poll() {
                    match act {
                        Action::Finish => return director,
                        Action::Print(_) | Action::Progress(..) => {}
                        Action::Order(side, order) => {
                            let line = serde_json::to_string(&order).unwrap();
                            writeln!(orders[side.index()], "{line}").unwrap();
                        }
                        Action::Cable(pids) => {
                            let [a, b] = pids.map(|pid| VethEnd {
                                name: "cable0",
                                namespace: Some(NamespaceOf { pid }),
                            });
                            Netlink::open().unwrap().create_veth(a, b, mtu).unwrap();
                        }
                    }
                }
                let (side, report) = inputs.recv_timeout(LIMIT).unwrap();
                director.handle(side, report).unwrap();
            }
        });
        lab.join().unwrap()
    })
}

#[test]
fn frames_pass_from_tap_to_tap_with_and_without_vnet() {
    for (vnet, mtu) in [("off", "1500"), ("auto", "9000")] {
        let director = build([plan("10.77.0.1/24", vnet, mtu), plan("10.77.0.2/24", vnet, mtu)]);
        for node in &director.result().nodes {
            if node.pid.is_some() && vnet == "off" {
                assert_eq!(node.vnet_header, Some(false));
            }
        }
    }
}
