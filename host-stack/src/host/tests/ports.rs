//! Reserved local endpoints, from the clients' point of view.

use core::net::SocketAddr;

use offload_engine::{
    chimney::client::{ClientTag, OffloadHandle},
    time::Duration,
};

use super::bench::{Bench, CLIENT, Node, address};
use crate::socket::{
    ConsumerId, EndpointId, HostError, ListenerId, Notice, OffloadPolicy, Request, SocketPort,
};

const NEVER: [OffloadPolicy; 2] = [OffloadPolicy::Never; 2];

fn ours(port: u16) -> SocketAddr {
    SocketAddr::new(address(1, false), port)
}

fn peer() -> SocketAddr {
    SocketAddr::new(address(2, false), 5000)
}

/// Answer of the host to the last request.
#[derive(PartialEq, Eq, Debug)]
enum PortAnswer {
    Is(SocketAddr),
    Not(HostError),
}

fn answer(notice: Notice) -> Option<PortAnswer> {
    match notice {
        Notice::Bound { local, .. }
        | Notice::Listening { local, .. }
        | Notice::Established { local, .. } => Some(PortAnswer::Is(local)),
        Notice::BindFailed { error, .. }
        | Notice::ListenFailed { error, .. }
        | Notice::ConnectFailed { error, .. } => Some(PortAnswer::Not(error)),
        _ => None,
    }
}

/// Clients of host 1, and the bench.
struct EndpointBench {
    bench: Bench,
    second: SocketPort,
}

impl EndpointBench {
    /// Host 2 listens on [`peer`]; host 1 has a second consumer.
    fn new() -> Self {
        let mut bench = Bench::new(NEVER);
        bench.nodes[1].listen(peer(), 16, false);
        let requests = bench.nodes[0].port.requests().clone();
        let second = requests.register(ClientTag(CLIENT.0 + 1), "second", ConsumerId(77));
        bench.run(Duration::from_millis(1));
        Self { bench, second }
    }

    fn node(&self) -> &Node {
        &self.bench.nodes[0]
    }

    fn port(&self, second: bool) -> &SocketPort {
        if second { &self.second } else { &self.node().port }
    }

    fn request(&mut self, second: bool, request: Request) -> PortAnswer {
        self.port(second).request(request);
        self.bench.run(Duration::from_millis(100));
        let of_first = self.bench.nodes[0].notices.drain(..).filter_map(answer).last();
        let of_second = core::iter::from_fn(|| self.second.notice()).filter_map(answer).last();
        (if second { of_second } else { of_first }).expect("an answer")
    }

    fn bind(&mut self, second: bool, local: SocketAddr) -> (EndpointId, PortAnswer) {
        let endpoint = EndpointId(self.node().port.allocate());
        (endpoint, self.request(second, Request::Bind { endpoint, local }))
    }

    fn listen(
        &mut self,
        second: bool,
        local: SocketAddr,
        endpoint: Option<EndpointId>,
    ) -> (ListenerId, PortAnswer) {
        let listener = ListenerId(self.node().port.allocate());
        let (backlog, at_once) = (1, false);
        let local = local.into();
        let request = Request::Listen { listener, local, endpoint, backlog, at_once };
        (listener, self.request(second, request))
    }

    fn connect(
        &mut self,
        second: bool,
        local: SocketAddr,
        endpoint: Option<EndpointId>,
        remote: SocketAddr,
    ) -> (OffloadHandle, PortAnswer) {
        let handle = OffloadHandle(self.node().port.allocate());
        let (timeout, at_once) = (Duration::from_secs(5), false);
        let local = Some(local);
        let request = Request::Connect { handle, local, endpoint, remote, timeout, at_once };
        (handle, self.request(second, request))
    }

    /// Makes a request without an answer.
    fn request_without_answer(&mut self, second: bool, request: Request) {
        self.port(second).request(request);
        self.bench.run(Duration::from_millis(100));
    }
}

const IN_USE: PortAnswer = PortAnswer::Not(HostError::AddressInUse);

#[test]
fn endpoint_of_another_consumer_is_in_use() {
    let mut endpoints = EndpointBench::new();
    for (first, second) in [(false, true), (true, false)] {
        let (bound, is) = endpoints.bind(first, ours(7000));
        assert_eq!(is, PortAnswer::Is(ours(7000)));
        let (listener, is) = endpoints.listen(first, ours(7001), None);
        assert_eq!(is, PortAnswer::Is(ours(7001)));
        let (connection, is) = endpoints.connect(first, ours(7002), None, peer());
        assert_eq!(is, PortAnswer::Is(ours(7002)));
        for port in [7000, 7001, 7002] {
            let any = SocketAddr::new([0, 0, 0, 0].into(), port);
            for local in [ours(port), any] {
                assert_eq!(endpoints.bind(second, local).1, IN_USE, "{local}");
                assert_eq!(endpoints.listen(second, local, None).1, IN_USE, "{local}");
                assert_eq!(endpoints.listen(second, local, Some(bound)).1, IN_USE, "not its own");
                assert_eq!(endpoints.connect(second, local, None, peer()).1, IN_USE, "{local}");
            }
        }
        endpoints.request_without_answer(second, Request::Unbind { endpoint: bound });
        assert_eq!(endpoints.bind(second, ours(7000)).1, IN_USE, "only the owner can release it");
        endpoints.request_without_answer(first, Request::Unbind { endpoint: bound });
        endpoints.request_without_answer(first, Request::Unlisten { listener });
        endpoints.request_without_answer(first, Request::Abort { handle: connection });
        for port in [7000, 7001, 7002] {
            let (bound, is) = endpoints.bind(second, ours(port));
            assert_eq!(is, PortAnswer::Is(ours(port)));
            endpoints.request_without_answer(second, Request::Unbind { endpoint: bound });
        }
    }
}

#[test]
fn bound_endpoint_listens_and_connects() {
    let mut endpoints = EndpointBench::new();
    // Any port, of all addresses: the connection's local address is one of them.
    let (endpoint, is) = endpoints.bind(false, SocketAddr::new([0, 0, 0, 0].into(), 0));
    let PortAnswer::Is(bound) = is else { panic!("{is:?}") };
    assert!(bound.ip().is_unspecified() && bound.port() >= 49_152);
    let (_, is) = endpoints.connect(false, ours(1), Some(endpoint), peer());
    assert_eq!(is, PortAnswer::Is(ours(bound.port())), "the bound address applies");
    let other = SocketAddr::new(peer().ip(), 5001);
    endpoints.bench.nodes[1].listen(other, 1, false);
    let (_, is) = endpoints.connect(false, ours(1), Some(endpoint), other);
    assert_eq!(is, PortAnswer::Is(ours(bound.port())), "another peer, another connection");
    assert_eq!(
        endpoints.connect(false, ours(1), Some(endpoint), other).1,
        IN_USE,
        "the same 4-tuple"
    );
    let (listener, is) = endpoints.listen(false, ours(1), Some(endpoint));
    assert_eq!(is, PortAnswer::Is(bound));
    endpoints.request_without_answer(false, Request::Unbind { endpoint });
    assert_eq!(endpoints.bind(true, bound).1, IN_USE, "the listener holds it");
    endpoints.request_without_answer(false, Request::Unlisten { listener });
    assert_eq!(endpoints.bind(true, bound).1, IN_USE, "the connections hold it");
}

// An endpoint ID named by a connection or listener outlives it, unless it failed.
#[test]
fn named_endpoint_outlives_its_connection() {
    let mut endpoints = EndpointBench::new();
    let name = |endpoints: &EndpointBench| EndpointId(endpoints.node().port.allocate());
    let (one, two, three) = (name(&endpoints), name(&endpoints), name(&endpoints));
    let (handle, is) = endpoints.connect(false, ours(0), Some(one), peer());
    let PortAnswer::Is(local) = is else { panic!("{is:?}") };
    let (listener, is) = endpoints.listen(false, ours(7000), Some(two));
    assert_eq!(is, PortAnswer::Is(ours(7000)));
    let closed_port = SocketAddr::new(peer().ip(), 9);
    let (_, is) = endpoints.connect(false, ours(7001), Some(three), closed_port);
    assert_eq!(is, PortAnswer::Not(HostError::Refused));
    assert_eq!(
        endpoints.bind(true, ours(7001)).1,
        PortAnswer::Is(ours(7001)),
        "the connect failed"
    );
    endpoints.request_without_answer(false, Request::Abort { handle });
    endpoints.request_without_answer(false, Request::Unlisten { listener });
    for (local, endpoint) in [(local, one), (ours(7000), two)] {
        assert_eq!(endpoints.bind(true, local).1, IN_USE);
        endpoints.request_without_answer(false, Request::Unbind { endpoint });
        assert_eq!(endpoints.bind(true, local).1, PortAnswer::Is(local));
    }
}

// As on Linux with SO_REUSEADDR: connections of a closed listener, open or in TIME-WAIT, do not conflict with a new
// listener.
#[test]
fn listener_reuses_its_port_beside_old_connections() {
    let mut endpoints = EndpointBench::new();
    let (listener, _) = endpoints.listen(false, ours(7000), None);
    // Two connections from host 2; the first is closed by host 1, and so is in TIME-WAIT there.
    for _ in 0..2 {
        endpoints.bench.nodes[1].connect(ours(7000), false);
        endpoints.bench.run(Duration::from_millis(100));
    }
    let accepted = |notice: &Notice| match notice {
        Notice::Established { handle, .. } => Some(*handle),
        _ => None,
    };
    let first = endpoints.node().notices.iter().find_map(accepted).unwrap();
    let far = endpoints.bench.nodes[1].notices.iter().find_map(accepted).unwrap();
    endpoints.node().shutdown(first);
    endpoints.bench.run(Duration::from_millis(100));
    endpoints.bench.nodes[1].shutdown(far);
    endpoints.bench.run(Duration::from_millis(100));
    let ended = |notice: &Notice| matches!(notice, Notice::Closed { error: None, .. });
    assert!(endpoints.node().has(ended), "in TIME-WAIT");
    assert_eq!(endpoints.node().host.connections.len(), 1, "the other is open");
    endpoints.request_without_answer(false, Request::Unlisten { listener });
    let (listener, is) = endpoints.listen(false, ours(7000), None);
    assert_eq!(is, PortAnswer::Is(ours(7000)));
    endpoints.request_without_answer(false, Request::Unlisten { listener });
    assert_eq!(
        endpoints.listen(true, ours(7000), None).1,
        PortAnswer::Is(ours(7000)),
        "no conflict with the other consumer either"
    );
}

// The reservations of a client are released when it unregisters, and its later requests are ignored.
#[test]
fn departed_client_holds_no_port() {
    let mut endpoints = EndpointBench::new();
    assert_eq!(endpoints.bind(true, ours(7000)).1, PortAnswer::Is(ours(7000)));
    assert_eq!(endpoints.listen(true, ours(7001), None).1, PortAnswer::Is(ours(7001)));
    assert_eq!(endpoints.connect(true, ours(7002), None, peer()).1, PortAnswer::Is(ours(7002)));
    endpoints.request_without_answer(true, Request::Unregister);
    let endpoint = EndpointId(endpoints.node().port.allocate());
    endpoints.request_without_answer(true, Request::Bind { endpoint, local: ours(7003) });
    for port in [7000, 7001, 7002, 7003] {
        assert_eq!(endpoints.bind(false, ours(port)).1, PortAnswer::Is(ours(port)));
    }
    assert_eq!(endpoints.bench.resets(0), 1, "its connection");
}

// The search for ephemeral ports skips ports in use by any client.
#[test]
fn ephemeral_ports_in_use_are_skipped() {
    let mut endpoints = EndpointBench::new();
    let PortAnswer::Is(first) = endpoints.bind(false, ours(0)).1 else { panic!() };
    for port in first.port() + 1..first.port() + 4 {
        assert_eq!(endpoints.bind(true, ours(port)).1, PortAnswer::Is(ours(port)));
    }
    let next = PortAnswer::Is(ours(first.port() + 4));
    assert_eq!(endpoints.connect(false, ours(0), None, peer()).1, next);
}
