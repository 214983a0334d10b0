//! Changes while connections are offloaded.

use alloc::{vec, vec::Vec};

use offload_engine::{
    chimney::{
        client::OffloadHandle,
        tree::{ClassQuery, ObjectNode, UpdateNode},
    },
    engine::port::ToHost,
    state::{MacAddress, TcpCached, Ticks},
    status::NdisStatus,
    tcp::Flags,
    time::Duration,
};
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    EthernetRepr,
};

use super::{
    bench::{Bench, config},
    offloading::{connected, remote},
};
use crate::{
    host::{HostConfig, RETRANSMISSION_MAX, stalls::STALL, upkeep::NEIGHBOR_STALE},
    socket::{HostError, Notice, OffloadPolicy, Request},
    wire::{self, Acknowledgment, Frame, FrameAddresses},
};

const MOMENT: Duration = Duration::from_millis(10);
const FIRST_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const NEW_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 9]);

fn offloaded() -> (Bench, OffloadHandle) {
    let (mut bench, _) = connected(OffloadPolicy::Always, false, false);
    let initiate = bench.nodes[1].initiates.pop_front().unwrap();
    bench.nodes[1].complete(initiate.handle, None);
    bench.run(MOMENT);
    (bench, initiate.handle)
}

/// ARP announcement of the first host's new Ethernet address.
fn arp(mac: MacAddress) -> Vec<u8> {
    arp_of(1, mac)
}

/// ARP announcement of 10.0.0.`number` to the second host.
fn arp_of(number: u8, mac: MacAddress) -> Vec<u8> {
    arp_between((number, mac), (2, MacAddress([2, 0, 0, 0, 0, 2])))
}

fn arp_between(from: (u8, MacAddress), to: (u8, MacAddress)) -> Vec<u8> {
    let packet = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Reply,
        source_hardware_addr: EthernetAddress(from.1.0),
        source_protocol_addr: [10, 0, 0, from.0].into(),
        target_hardware_addr: EthernetAddress(to.1.0),
        target_protocol_addr: [10, 0, 0, to.0].into(),
    };
    let header = EthernetRepr {
        src_addr: EthernetAddress(from.1.0),
        dst_addr: EthernetAddress(to.1.0),
        ethertype: EthernetProtocol::Arp,
    };
    let mut frame = vec![0; header.buffer_len() + packet.buffer_len()];
    header.emit(&mut EthernetFrame::new_unchecked(&mut frame[..]));
    packet.emit(&mut ArpPacket::new_unchecked(&mut frame[header.buffer_len()..]));
    frame
}

/// Neighbor variables in the oldest update.
fn neighbor_update(bench: &Bench) -> (MacAddress, Ticks) {
    match &bench.nodes[1].updates[0][0].payload {
        UpdateNode::Cached { cached, .. } => {
            (cached.dl_destination_address, cached.host_reachability_delta)
        }
        other => panic!("{other:?}"),
    }
}

fn query_neighbors(bench: &mut Bench) {
    let neighbor = *bench.nodes[1].neighbors.keys().next().unwrap();
    bench.nodes[1]
        .to_host
        .send(ToHost::NeighborReachabilityQuery {
            neighbor,
            host_reachability_delta: 40_000,
            nic_reachability_delta: 40_000,
        })
        .unwrap();
    bench.run(MOMENT);
}

// CH-UPD-5, -7: a new Ethernet address causes an update of the neighbor. A change during the initiate is sent after its
// completion (CH-INI-1).
#[test]
fn moved_neighbor_is_updated() {
    for during in [false, true] {
        let (mut bench, _) = connected(OffloadPolicy::Always, false, false);
        let initiate = bench.nodes[1].initiates.pop_front().unwrap();
        let was = initiate.state.neighbor.cached.dl_destination_address;
        assert_eq!(was, MacAddress([2, 0, 0, 0, 0, 1]));
        if during {
            bench.nodes[1].frame(arp(NEW_MAC));
            bench.run(MOMENT);
            assert!(bench.nodes[1].updates.is_empty());
        }
        bench.nodes[1].complete(initiate.handle, None);
        bench.run(MOMENT);
        if !during {
            // An unchanged address causes no update.
            bench.nodes[1].frame(arp(was));
            bench.run(MOMENT);
            assert!(bench.nodes[1].updates.is_empty());
            bench.nodes[1].frame(arp(NEW_MAC));
            bench.run(MOMENT);
        }
        assert_eq!(neighbor_update(&bench).0, NEW_MAC);
        bench.nodes[1].updated(NdisStatus::SUCCESS);
        bench.run(MOMENT);
        assert!(bench.nodes[1].updates.is_empty());
    }
}

// CH-UPD-4: a connection that could not be updated is uploaded, and objects without dependents are terminated.
#[test]
fn failed_update_uploads_connections() {
    let (mut bench, handle) = offloaded();
    bench.nodes[1].frame(arp(NEW_MAC));
    bench.run(MOMENT);
    bench.nodes[1].updated(NdisStatus::FAILURE);
    bench.run(MOMENT);
    assert_eq!(bench.nodes[1].terminating(), [handle]);
    bench.nodes[1].terminated(|_| None);
    bench.run(MOMENT);
    assert!(bench.nodes[1].neighbors.is_empty());
}

// CH-UPD-1, -3, -5: changed settings cause an update of every connection; the next update is deferred, and so is a
// terminate (CH-TRM-1).
#[test]
fn changed_settings_update_connections() {
    let (mut bench, handle) = offloaded();
    let host = &mut bench.nodes[1].host;
    let first = TcpCached { keep_alive_enabled: true, ..TcpCached::default() };
    host.set_tcp(first).unwrap();
    bench.run(MOMENT);
    let next_update =
        |bench: &Bench| match &bench.nodes[1].updates[0][0].dependents[0].dependents[0].payload {
            UpdateNode::Cached { cached, .. } => **cached,
            other => panic!("{other:?}"),
        };
    let update = next_update(&bench);
    assert!(update.keep_alive_restart && !update.max_rt_restart && !update.update_rcv_wnd);
    assert_eq!(update.cached, TcpCached { initial_rcv_wnd: 256 * 1024, ..first });
    let second = TcpCached { max_rt: Some(9_000), ..first };
    bench.nodes[1].host.set_tcp(second).unwrap();
    bench.nodes[1].port.request(Request::Upload { handle });
    bench.run(MOMENT);
    assert_eq!(bench.nodes[1].updates.len(), 1);
    assert!(bench.nodes[1].terminating().is_empty());
    bench.nodes[1].updated(NdisStatus::SUCCESS);
    bench.run(MOMENT);
    assert_eq!(bench.nodes[1].terminating(), [handle]);
    assert!(bench.nodes[1].updates.is_empty(), "its upload is outstanding");
}

// CH-UPD-5: settings changed during an initiate cause an update after its completion.
#[test]
fn settings_changed_during_an_initiate_are_updated() {
    let (mut bench, _) = connected(OffloadPolicy::Always, false, false);
    let initiate = bench.nodes[1].initiates.pop_front().unwrap();
    let tcp = TcpCached { max_rt: Some(9_000), ..TcpCached::default() };
    bench.nodes[1].host.set_tcp(tcp).unwrap();
    bench.run(MOMENT);
    assert!(bench.nodes[1].updates.is_empty(), "the target does not have it yet");
    bench.nodes[1].complete(initiate.handle, None);
    bench.run(MOMENT);
    let UpdateNode::Cached { cached, .. } =
        &bench.nodes[1].updates[0][0].dependents[0].dependents[0].payload
    else {
        panic!()
    };
    assert_eq!(cached.cached.max_rt, Some(9_000));
}

// Only the second setting is changed: only its flag is set.
#[test]
fn single_changed_setting_sets_its_flag_only() {
    let (mut bench, _) = offloaded();
    for ticks in [1_000, 2_000] {
        let tcp = TcpCached { max_rt: Some(ticks), ..TcpCached::default() };
        bench.nodes[1].host.set_tcp(tcp).unwrap();
        bench.run(MOMENT);
    }
    bench.nodes[1].updated(NdisStatus::SUCCESS);
    bench.run(MOMENT);
    let UpdateNode::Cached { cached, .. } =
        &bench.nodes[1].updates[0][0].dependents[0].dependents[0].payload
    else {
        panic!()
    };
    assert_eq!(cached.cached.max_rt, Some(2_000));
    assert!(cached.max_rt_restart && !cached.keep_alive_restart);
}

// CH §9.7: a recently confirmed neighbor is answered with the time. Otherwise the answer is "now", and the host
// solicits the neighbor; a reply confirms it.
#[test]
fn reachability_is_answered() {
    let (mut bench, _) = offloaded();
    bench.run(Duration::from_secs(5));
    query_neighbors(&mut bench);
    let (_, delta) = neighbor_update(&bench);
    assert!((5_000..6_000).contains(&delta), "{delta}");
    bench.nodes[1].updated(NdisStatus::SUCCESS);
    bench.run(NEIGHBOR_STALE);
    let before = bench.nodes[1].sent.len();
    query_neighbors(&mut bench);
    assert_eq!(neighbor_update(&bench).1, 0);
    bench.nodes[1].updated(NdisStatus::SUCCESS);
    assert!(bench.nodes[1].sent.len() > before, "a solicitation");
    bench.run(Duration::from_secs(20));
    assert!(bench.nodes[1].queries.is_empty() && bench.nodes[1].invalidates.is_empty());
    query_neighbors(&mut bench);
    assert!(neighbor_update(&bench).1 > 15_000);
}

// CH §9.7: an unresponsive neighbor is invalidated, unless an offloaded connection has made forward progress meanwhile.
#[test]
fn silent_neighbor_is_invalidated() {
    for goes_forward in [true, false] {
        let (mut bench, _) = offloaded();
        bench.run(NEIGHBOR_STALE + MOMENT);
        bench.passes = |_, _| false;
        query_neighbors(&mut bench);
        bench.run(Duration::from_secs(5));
        let mut query = bench.nodes[1].queries.pop_front().expect("a query");
        assert!(bench.nodes[1].queries.is_empty());
        let ObjectNode::Object { payload, .. } = &mut query[0].payload else { panic!() };
        assert_eq!((payload.constant, payload.cached), (ClassQuery::No, ClassQuery::No));
        let nic_reachability_delta = if goes_forward { 500 } else { 60_000 };
        payload.delegated =
            ClassQuery::Answer(offload_engine::state::NeighborDelegated { nic_reachability_delta });
        query[0].status = NdisStatus::SUCCESS;
        bench.nodes[1].to_host.send(ToHost::QueryComplete(query)).unwrap();
        bench.run(MOMENT);
        assert_eq!(bench.nodes[1].invalidates.len(), usize::from(!goes_forward));
    }
}

// CH-QRY-3: connections whose state cannot be read are uploaded.
#[test]
fn failed_query_uploads_connections() {
    let (mut bench, handle) = offloaded();
    bench.run(NEIGHBOR_STALE + MOMENT);
    bench.passes = |_, _| false;
    query_neighbors(&mut bench);
    bench.run(Duration::from_secs(5));
    let mut query = bench.nodes[1].queries.pop_front().expect("a query");
    query[0].status = NdisStatus::FAILURE;
    bench.nodes[1].to_host.send(ToHost::QueryComplete(query)).unwrap();
    bench.run(MOMENT);
    assert!(bench.nodes[1].invalidates.is_empty());
    assert_eq!(bench.nodes[1].terminating(), [handle]);
}

// RFC 826, RFC 4861: an announcement of another address has no effect.
#[test]
fn other_announcements_are_ignored() {
    let (mut bench, _) = offloaded();
    let mut other = arp(NEW_MAC);
    // Sender protocol address.
    other[14 + 14 + 3] = 77;
    bench.nodes[1].frame(other);
    bench.nodes[1].frame(arp(NEW_MAC)[..30].to_vec());
    bench.run(MOMENT);
    assert!(bench.nodes[1].updates.is_empty());
}

/// The hosts are on different links; the second one uses a gateway.
fn hosts_on_two_links(policy: OffloadPolicy) -> Bench {
    let far = HostConfig {
        addresses: vec![([10, 0, 0, 77].into(), 24)],
        ..config(1, OffloadPolicy::Never)
    };
    let near = HostConfig {
        addresses: vec![([10, 0, 0, 2].into(), 30)],
        gateways: vec![[10, 0, 0, 3].into()],
        ..config(2, policy)
    };
    let mut bench = Bench::with([far, near]);
    bench.nodes[1].listen(remote(false), 4, false);
    bench.nodes[1].frame(arp_of(3, FIRST_MAC));
    // smoltcp ignores ARP requests from outside its network.
    let second = (2, MacAddress([2, 0, 0, 0, 0, 2]));
    bench.nodes[0].frame(arp_between(second, (77, FIRST_MAC)));
    bench.nodes[0].connect(remote(false), false);
    bench.run(MOMENT * 10);
    bench
}

/// The second host has sent 2,000 bytes, which are lost, and optionally its FIN. The fast retransmission occurs while a
/// new next hop is unresolved, and smoltcp's timer stops. Also returns addresses and acknowledgment of the first host.
fn stalled(closes: bool) -> (Bench, FrameAddresses, Acknowledgment) {
    let mut bench = hosts_on_two_links(OffloadPolicy::Never);
    let (passive, _) = bench.nodes[1].established();
    bench.passes = |from, _| from == 0;
    bench.nodes[1].sent.clear();
    bench.nodes[1].send(passive, vec![7; 2_000]);
    if closes {
        bench.nodes[1].shutdown(passive);
    }
    bench.settle();
    let Frame::Tcp(first) = wire::parse(&bench.nodes[1].sent[0]) else { panic!() };
    let (seq, ack) = (first.ack, first.seq);
    let macs = (first.destination_mac, first.source_mac);
    let way =
        FrameAddresses { macs, from: first.frame.flow.local(), to: first.frame.flow.remote() };
    let ack = Acknowledgment { seq, ack, window: 40_000, timestamps: None, ece: false, fin: false };
    let again = wire::ack_frame(way, 64, &ack).unwrap();
    bench.nodes[1].host.set_gateways(vec![[10, 0, 0, 1].into()]).unwrap();
    bench.settle();
    for _ in 0..4 {
        bench.nodes[1].frame(again.clone());
    }
    bench.settle();
    bench.nodes[1].frame(arp_of(1, FIRST_MAC));
    bench.nodes[1].sent.clear();
    (bench, way, ack)
}

// RFC 5681 §3.2, RFC 6298 §5.
#[test]
fn dropped_retransmission_is_repeated() {
    let (mut bench, _, _) = stalled(false);
    bench.passes = |_, _| true;
    bench.run(Duration::from_secs(10));
    assert!(bench.nodes[0].data().is_empty(), "smoltcp's timer has stopped");
    // Repeated: smoltcp's neighbor entry expires after a minute.
    bench.run(STALL);
    bench.nodes[1].frame(arp_of(1, FIRST_MAC));
    bench.run(Duration::from_secs(5));
    assert_eq!(bench.nodes[0].data(), [7; 2_000]);
}

// RFC 9293 §3.8.4: the peer must not take a probe's byte for data.
#[test]
fn no_probe_is_sent_over_data_in_flight() {
    let (mut bench, _, ack) = stalled(false);
    bench.passes = |_, _| true;
    let tcp =
        TcpCached { keep_alive_enabled: true, ka_timeout: 1_000, ..bench.nodes[1].host.config.tcp };
    bench.nodes[1].host.set_tcp(tcp).unwrap();
    bench.run(STALL);
    bench.nodes[1].frame(arp_of(1, FIRST_MAC));
    bench.run(Duration::from_secs(5));
    assert!(bench.nodes[0].data() == [7; 2_000], "probes are not progress");
    let mut probes = 0;
    for frame in &bench.nodes[1].sent {
        let Frame::Tcp(segment) = wire::parse(frame) else { continue };
        let is_probe = segment.seq == ack.ack + 1_999;
        assert!(!is_probe || segment.payload_len == 1, "a probe after all data");
        probes += usize::from(is_probe);
        assert!(is_probe || segment.frame.payload().iter().all(|byte| *byte == 7));
    }
    assert!((2..6).contains(&probes), "{probes}, once everything is acknowledged");
}

#[test]
fn stalled_fin_is_retransmitted() {
    let (mut bench, way, ack) = stalled(true);
    let after_data = Acknowledgment { ack: ack.ack + 2_000, ..ack };
    bench.nodes[1].frame(wire::ack_frame(way, 64, &after_data).unwrap());
    bench.run(STALL + Duration::from_secs(2));
    let frames = bench.nodes[1].sent.iter().map(|frame| wire::parse(frame));
    let fins = frames.filter(|frame| match frame {
        Frame::Tcp(tcp) => tcp.flags.contains(Flags::FIN) && tcp.seq == after_data.ack,
        _ => false,
    });
    assert_eq!(fins.count(), 1);
}

// A connection with unsent data ends with RetransmissionLimit.
#[test]
fn unsent_data_do_not_end_in_order() {
    let mut bench = hosts_on_two_links(OffloadPolicy::Never);
    let (passive, _) = bench.nodes[1].established();
    let (active, _) = bench.nodes[0].established();
    bench.nodes[0].shutdown(active);
    bench.run(MOMENT);
    bench.nodes[1].host.set_gateways(vec![[10, 0, 0, 1].into()]).unwrap();
    bench.nodes[1].send(passive, vec![7; 2_000]);
    bench.nodes[1].shutdown(passive);
    bench.run(RETRANSMISSION_MAX + Duration::from_secs(70));
    let limit = Some(HostError::RetransmissionLimit);
    let ended = |n: &Notice| matches!(n, Notice::Closed { error, .. } if *error == limit);
    assert!(bench.nodes[1].has(ended));
}

// A gateway's Ethernet address is solicited, not taken from segments that arrived through another one.
#[test]
fn gateway_is_resolved_before_the_offload() {
    let mut bench = hosts_on_two_links(OffloadPolicy::Never);
    let (passive, _) = bench.nodes[1].established();
    bench.nodes[1].host.set_gateways(vec![[10, 0, 0, 1].into()]).unwrap();
    bench.nodes[1].sent.clear();
    bench.nodes[1].port.request(Request::Offload { handle: passive });
    bench.run(Duration::from_secs(3));
    assert!(bench.nodes[1].initiates.is_empty());
    assert_eq!(bench.nodes[1].sent.len(), 4, "solicited once per second");
    bench.nodes[1].frame(arp_of(1, NEW_MAC));
    bench.run(MOMENT);
    let initiate = bench.nodes[1].initiates.pop_front().expect("it is offloaded");
    assert_eq!(initiate.state.neighbor.cached.dl_destination_address, NEW_MAC);
}

// A gateway that is the peer itself has the source address of its segments.
#[test]
fn gateway_may_be_the_peer() {
    let peer =
        HostConfig { gateways: vec![[10, 0, 0, 1].into()], ..config(2, OffloadPolicy::Never) };
    let mut bench = Bench::with([config(1, OffloadPolicy::Never), peer]);
    bench.nodes[1].listen(remote(false), 4, false);
    bench.nodes[0].connect(remote(false), false);
    bench.run(MOMENT);
    let (passive, _) = bench.nodes[1].established();
    bench.nodes[1].host.gateway_macs.clear();
    bench.nodes[1].port.request(Request::Offload { handle: passive });
    bench.run(MOMENT);
    let initiate = bench.nodes[1].initiates.pop_front().expect("it is offloaded");
    assert_eq!(initiate.state.neighbor.cached.dl_destination_address, FIRST_MAC);
}

// An announcement is newer than the last segment of an idle connection.
#[test]
fn announced_neighbor_address_is_offloaded() {
    let (mut bench, _) = connected(OffloadPolicy::Never, false, false);
    let (passive, _) = bench.nodes[1].established();
    bench.nodes[1].frame(arp(NEW_MAC));
    bench.nodes[1].port.request(Request::Offload { handle: passive });
    bench.run(MOMENT);
    let initiate = bench.nodes[1].initiates.pop_front().expect("it is offloaded");
    assert_eq!(initiate.state.neighbor.cached.dl_destination_address, NEW_MAC);
}

// CH-UPD-7: the path for which a neighbor is offloaded is removed before that completes.
#[test]
fn late_neighbor_is_terminated() {
    let mut bench = hosts_on_two_links(OffloadPolicy::Always);
    let initiate = bench.nodes[1].initiates.pop_front().unwrap();
    bench.nodes[1].complete(initiate.handle, None);
    bench.run(MOMENT);
    bench.nodes[1].host.set_gateways(vec![[10, 0, 0, 1].into()]).unwrap();
    bench.nodes[1].holds_neighbors = true;
    bench.run(MOMENT);
    bench.nodes[1].frame(arp_of(1, NEW_MAC));
    bench.run(MOMENT);
    assert_eq!(bench.nodes[1].shapes.last().unwrap(), "N{}");
    bench.nodes[1].port.request(Request::Upload { handle: initiate.handle });
    bench.run(MOMENT);
    bench.nodes[1].terminated(|_| None);
    bench.run(Duration::from_secs(2));
    assert_eq!(bench.nodes[1].neighbors.len(), 1, "the new one");
    bench.nodes[1].release_neighbors();
    bench.run(MOMENT);
    assert!(bench.nodes[1].neighbors.is_empty());
}

// CH-UPD-2, -7: a changed gateway is resolved and offloaded, the path is linked to it, and the old one is terminated.
// If that fails the connection is uploaded.
#[test]
fn new_next_hop_is_linked() {
    for fails in [false, true] {
        let mut bench = hosts_on_two_links(OffloadPolicy::Always);
        let initiate = bench.nodes[1].initiates.pop_front().unwrap();
        assert_eq!(initiate.state.neighbor.cached.dl_destination_address, FIRST_MAC);
        bench.nodes[1].complete(initiate.handle, None);
        bench.run(MOMENT);
        let before = bench.nodes[1].sent.len();
        bench.nodes[1].host.set_gateways(vec![[10, 0, 0, 1].into()]).unwrap();
        bench.run(MOMENT);
        assert!(bench.nodes[1].sent.len() > before, "a solicitation");
        bench.nodes[1].frame(arp_of(1, NEW_MAC));
        bench.run(MOMENT);
        assert_eq!(bench.nodes[1].shapes, ["N{NT}", "N{}"]);
        // The bench has already answered that one.
        bench.run(MOMENT);
        let node = &bench.nodes[1].updates[0][0];
        assert!(matches!(node.payload, UpdateNode::Linker(_)));
        assert!(matches!(node.dependents[0].payload, UpdateNode::Linker(_)));
        assert_eq!(bench.nodes[1].neighbors.len(), 2);
        let status = if fails { NdisStatus::FAILURE } else { NdisStatus::SUCCESS };
        bench.nodes[1].updated(status);
        bench.run(MOMENT);
        assert_eq!(bench.nodes[1].terminating().len(), usize::from(fails));
        let macs = bench.nodes[1].neighbors.values();
        let macs = macs.map(|neighbor| neighbor.cached.dl_destination_address).collect::<Vec<_>>();
        assert_eq!(macs, [if fails { FIRST_MAC } else { NEW_MAC }]);
    }
}
