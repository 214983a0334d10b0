//! Two nodes on TAPs of a bridge, in a separate namespace, with manual progress: all work runs on the
//! thread of the test.

use std::{boxed::Box, sync::Arc};

use flue_guard::{
    rdma::{self, Operation, Traffic},
    stream::Pump,
    virtual_time::{address, configuration},
    wire::{Calls, CountedLink},
};
use flue_test_support::switch::Switch;
use host_stack::node::{Node, NodeConfig, Progress};
use offload_engine::{
    engine::NodeClient,
    link::{Link, ReclaimMode, TapOptions, VnetMode, open_tap},
    time::Duration,
};
use rdma_over_tcp::ndk::{AdapterConfig, AdapterCore, open};

use crate::{PORT, Transport};

const MTU: u32 = 1500;
/// Time limit for the connection setup; the kernel may delay the first frames of a new bridge.
const LIMIT: Duration = Duration::from_secs(120);

/// Bridge with its TAPs.
pub(crate) struct TapPair {
    links: [CountedLink<Box<dyn Link>>; 2],
    calls: [Arc<Calls>; 2],
    /// Keeps the bridge alive.
    switch: Switch,
}

fn plug(switch: &Switch, index: usize) -> Box<dyn Link> {
    let name = format!("tap{index}");
    let options = TapOptions::new(name.clone(), MTU as usize, VnetMode::On);
    let options = TapOptions { reclaim: ReclaimMode::Off, ..options };
    switch.attach(&name, || open_tap(&options)).expect("a TAP with a virtio-net header").link
}

impl TapPair {
    pub(crate) fn new() -> Self {
        let switch = Switch::new(MTU);
        // Frames of the kernel itself, mainly router solicitations, would be counted.
        switch.namespace().sysctl("net/ipv6/conf/all/disable_ipv6", "1");
        switch.namespace().sysctl("net/ipv6/conf/default/disable_ipv6", "1");
        let [(near, near_calls), (far, far_calls)] =
            [0, 1].map(|index| CountedLink::new(plug(&switch, index), false));
        Self { links: [near, far], calls: [near_calls, far_calls], switch }
    }

    /// RDMA traffic of queue pairs.
    pub(crate) fn rdma(self, operation: Operation, bytes: usize) -> RdmaOverTaps {
        let Self { links: [near, far], calls, switch } = self;
        let start = |index, link| open(Box::new(link), config(index), AdapterConfig::default());
        let (near, near_adapter) = start(0, near).expect("a node");
        let (far, far_adapter) = start(1, far).expect("a node");
        let nodes = [near, far];
        let mut step = || nodes.iter().for_each(turn);
        let ends = rdma::connect(
            [&near_adapter, &far_adapter],
            address(1, PORT),
            (operation, bytes),
            &mut step,
        );
        let traffic = Traffic::new(ends.expect("queue pairs"), operation, bytes);
        RdmaOverTaps { traffic, calls, nodes, _switch: switch }
    }

    /// Streams both ways.
    pub(crate) fn stream(self, list_bytes: usize) -> StreamOverTaps {
        let Self { links: [near, far], calls, switch } = self;
        let start = |index, link| {
            Node::start(Box::new(link), config(index), |port| Pump::new(port, list_bytes))
        };
        let nodes = [start(0, near).expect("a node"), start(1, far).expect("a node")];
        nodes[1].with(|pump, _, _| pump.listen(address(1, PORT)));
        nodes[0].with(|pump, _, _| pump.connect(address(1, PORT)));
        let deadline = nodes[0].now() + LIMIT;
        let is_up = |node: &Node<Pump>| node.with(|pump, _, _| pump.offloaded().is_some());
        while !nodes.iter().all(is_up) {
            nodes.iter().for_each(turn);
            assert!(nodes[0].now() < deadline, "the connection is not established");
        }
        nodes.iter().for_each(|node| node.with(|pump, _, _| pump.sends = true));
        StreamOverTaps { nodes, calls, _switch: switch }
    }
}

fn config(index: usize) -> NodeConfig {
    let (engine, host) = configuration(index);
    NodeConfig { engine, host, progress: Progress::Manual, spin: Duration::ZERO }
}

/// One iteration of a node.
fn turn<C: NodeClient>(node: &Node<C>) {
    // A timeout of zero is expected.
    let _ = node.wait(Some(Duration::ZERO), |_, _, _| None::<()>);
}

fn frames(calls: &[Arc<Calls>; 2]) -> u64 {
    calls.iter().map(|calls| calls.counts().transmits).sum()
}

pub(crate) struct RdmaOverTaps {
    traffic: Traffic,
    calls: [Arc<Calls>; 2],
    nodes: [Node<AdapterCore>; 2],
    _switch: Switch,
}

impl Transport for RdmaOverTaps {
    fn run(&mut self, messages: u64) {
        // Polling an empty completion queue runs an iteration of its node. Small writes complete before the
        // peer has them, so the first node's queue is rarely empty.
        let Self { traffic, nodes, .. } = self;
        traffic.run(messages, &mut || turn(&nodes[0]));
    }

    fn frames(&self) -> u64 {
        frames(&self.calls)
    }
}

pub(crate) struct StreamOverTaps {
    nodes: [Node<Pump>; 2],
    calls: [Arc<Calls>; 2],
    _switch: Switch,
}

impl Transport for StreamOverTaps {
    fn run(&mut self, lists: u64) {
        let mut last = [0; 2];
        let is_through = |node: &Node<Pump>, last: &mut u64| {
            let sent = node.wait(Some(Duration::ZERO), |pump, _, _| Some(pump.lists_sent));
            let sent = sent.expect("the TAP exists");
            if *last == 0 {
                *last = sent + lists;
            }
            sent >= *last
        };
        loop {
            let [near, far] = [0, 1].map(|index| is_through(&self.nodes[index], &mut last[index]));
            if near && far {
                return;
            }
        }
    }

    fn frames(&self) -> u64 {
        frames(&self.calls)
    }
}
