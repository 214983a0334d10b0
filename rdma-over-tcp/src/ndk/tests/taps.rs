//! The bench on two TAPs in two namespaces, in virtual time, and the tests that run on it: NDKPI over real frames.
//!
//! ```text
//!   namespace              namespace
//!   tap - bridge - veth -- veth - bridge - tap
//! ```
//!
//! A wire exists as long as its test. The nodes are those of the simulation; only the path of the frames is the
//! kernel's. Virtual time advances when both nodes are idle and each has received as many frames as the other has sent.
//! TCP retransmits lost frames.

use std::{boxed::Box, cell::RefCell, format, net::Ipv4Addr, rc::Rc, vec::Vec};

use flue_test_support::{
    needs::{Need, lacks},
    netns::Namespace,
};
use host_stack::{host::HostConfig, node::Core, simulation::engine_with_long_time_wait};
use offload_engine::{
    link::{Link, TapOptions, VnetMode, open_tap},
    state::MacAddress,
    time::{Duration, Instant},
};

use crate::ndk::{Adapter, AdapterConfig, AdapterCore, simulation::AdapterClient};

const NEEDS: &[Need] = &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("unshare")];
const MTU: usize = 1500;
/// Interval after the last event within which TCP timers are due; later deadlines are other timeouts.
const HORIZON: Duration = Duration::from_secs(4);
/// Time after which a frame in the kernel counts as lost. This includes frames sent before the TAP was attached to the
/// bridge.
const LOST: Duration = Duration::from_millis(50);

std::thread_local! {
    static CHOSEN: RefCell<Option<Rc<Wire>>> = const { RefCell::new(None) };
}

/// Two namespaces joined by a veth pair, each with a bridge.
pub(super) struct Wire {
    hosts: [Namespace; 2],
    taps: RefCell<u32>,
}

impl Wire {
    /// Creates the namespaces; `None`: a prerequisite is missing.
    pub(super) fn new() -> Option<Self> {
        if lacks(NEEDS) {
            return None;
        }
        let hosts = [Namespace::new(), Namespace::new()];
        // Without IPv6 the kernel sends no frames itself.
        hosts.iter().for_each(|host| host.sysctl("net/ipv6/conf/all/disable_ipv6", "1"));
        let peer = hosts[1].path();
        hosts[0].ip(&format!("link add wire0 type veth peer name wire0 netns {}", peer.display()));
        for host in &hosts {
            host.ip("link add br0 type bridge mcast_snooping 0");
            host.ip("link set br0 up");
            host.ip("link set wire0 master br0 up");
        }
        Some(Self { hosts, taps: RefCell::new(0) })
    }

    /// Creates a TAP in one of the namespaces, attached to its bridge.
    pub(super) fn tap(&self, host: usize) -> impl Link + use<> {
        let name = format!("tap{}", self.taps.borrow());
        *self.taps.borrow_mut() += 1;
        let options = TapOptions::new(&name, MTU, VnetMode::On);
        let opened = self.hosts[host].run(|| open_tap(&options)).unwrap();
        self.hosts[host].ip(&format!("link set {name} master br0 up"));
        opened.link
    }
}

/// Returns the address of a node. The second node has the address of the pipe's server.
pub(super) const fn address(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, 1 + index as u8)
}

pub(super) fn host(index: usize) -> HostConfig {
    let mac = MacAddress([2, 0, 0, 0, 9, 1 + index as u8]);
    HostConfig { mtu: MTU, ..HostConfig::new(mac, address(index).into()) }
}

/// Runs a test whose benches are on TAPs.
fn run(test: fn()) {
    let Some(wire) = Wire::new() else { return };
    CHOSEN.set(Some(Rc::new(wire)));
    test();
    CHOSEN.set(None);
}

/// Returns the wire of this test's benches, if they are on TAPs.
pub(super) fn chosen() -> Option<Rc<Wire>> {
    CHOSEN.with_borrow(Clone::clone)
}

/// Node that only the test polls.
pub(super) struct PolledNode {
    core: Core,
    /// Frames sent by this node that count as lost.
    lost: u64,
}

impl PolledNode {
    pub(super) fn new(wire: &Wire, index: usize, config: AdapterConfig) -> (Self, Adapter) {
        let host = host(index);
        let core = Core::new(
            Box::new(wire.tap(index)),
            engine_with_long_time_wait(host.mac),
            host,
            |port| AdapterClient::new(AdapterCore::new(config, port, Box::new(|| {}))),
        );
        let core = core.unwrap();
        let adapter = core.clients.first::<AdapterClient>().adapter();
        (Self { core, lost: 0 }, adapter)
    }

    /// Runs one turn of the node, and the callbacks. Returns true if there was work.
    fn poll(&mut self, now: Instant) -> bool {
        let worked = self.core.poll(now).unwrap();
        let mut callbacks = Vec::new();
        self.core.clients.take_callbacks(&mut callbacks);
        let called = !callbacks.is_empty();
        callbacks.into_iter().for_each(|callback| callback());
        worked | called | self.core.has_input()
    }

    /// Returns the number of frames in flight to another node.
    fn in_flight(&self, to: &Self) -> u64 {
        let (sent, received) = (self.core.engine.link_stats(), to.core.engine.link_stats());
        sent.tx_frames.saturating_sub(received.rx_frames + self.lost)
    }

    /// True if no object remains.
    pub(super) fn is_idle(&self) -> bool {
        self.core.clients.first::<AdapterClient>().is_idle()
    }

    /// Returns the number of streams of the adapter.
    pub(super) fn connections(&self) -> usize {
        let adapter = self.core.clients.first::<AdapterClient>().adapter();
        adapter.with(|rnic, _| rnic.histories().count())
    }
}

/// Runs two nodes until TCP has no work left.
pub(super) fn settle(nodes: [&mut PolledNode; 2], now: &mut Instant) {
    let [near, far] = nodes;
    let (mut last, mut quiet) = (*now, None);
    loop {
        if near.poll(*now) | far.poll(*now) {
            (last, quiet) = (*now, None);
            continue;
        }
        let in_flight = [near.in_flight(far), far.in_flight(near)];
        if in_flight != [0; 2] {
            let since: &mut std::time::Instant = quiet.get_or_insert_with(std::time::Instant::now);
            if since.elapsed() < LOST {
                std::thread::yield_now();
                continue;
            }
            (near.lost, far.lost) = (near.lost + in_flight[0], far.lost + in_flight[1]);
        }
        let next = [near.core.poll_at(*now), far.core.poll_at(*now)].into_iter().flatten().min();
        match next.filter(|next| *next <= last + HORIZON) {
            Some(next) => *now = next.max(*now),
            None => return,
        }
    }
}

/// Defines a test on TAPs for each of these tests.
macro_rules! on_taps {
    ($($module:ident: $($test:ident)*;)*) => {
        $(mod $module {
            $(#[test]
            fn $test() {
                super::run(super::super::$module::$test);
            })*
        })*
    };
}

on_taps! {
    connections:
        connection_data
        posts_inside_the_completion
        private_data_limits
        reject_and_retry
        active_side_aborts
        misuse
        flush_on_peer_close
        abortive_close
        flush
        pause
        overrun_terminates_connections
        disconnect_inside_the_event;
    endpoints:
        shared_endpoints
        management;
    errors:
        no_receive_posted
        receive_too_short
        invalidation_refused
        local_protection;
    lifetimes:
        antecedents_first
        close_inside_the_own_completion
        close_of_a_connected_queue_pair
        endpoint_reuse
        close_after_disconnect;
    invalidation:
        fast_register_and_remote_invalidate
        read_with_local_invalidate;
    memory:
        refused_page_lists
        logical_addresses;
    operations:
        multiple_entries
        inline_data
        deferred_requests
        order_and_silence
        reads_beyond_the_limit_wait
        no_reads_allowed
        read_fence
        solicited_events
        post_limits;
    requests:
        silent_requests_with_a_failure
        window_violations_are_rejected
        deregistration_and_empty_buffers
        queue_pairs_at_the_limits
        window_of_four_mebibytes
        composite_flags_grant_documented_access;
    waits:
        disconnect_event_overtakes_waiting_messages
        disconnect_does_not_wait_for_receives;
    windows:
        window_lifecycle
        window_is_valid_for_its_queue_pair_only;
}
