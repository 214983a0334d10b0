//! Who waits is not left waiting.

use offload_engine::{
    chimney::{
        client::{ClientTag, ConnectionEvent, ConnectionIo, OffloadClient},
        state::MacAddress,
    },
    link::{MemoryLinkOptions, memory_link_pair},
    nbl::{NblChain, NetBufferList, ReceiveChain},
};

use super::*;

const LIMIT: Duration = Duration::from_secs(5);

/// A client with no connection, whose host has one thing to say.
#[derive(Debug, Default)]
struct Listener {
    said: bool,
    heard: bool,
}

impl OffloadClient for Listener {
    fn offloaded(&mut self, _io: &mut ConnectionIo<'_>, _client: ClientTag) {}
    fn receive(&mut self, _io: &mut ConnectionIo<'_>, data: &[u8], _push: bool) -> usize {
        data.len()
    }
    fn receive_complete(&mut self, _io: &mut ConnectionIo<'_>, _chain: ReceiveChain) {}
    fn send_complete(&mut self, _io: &mut ConnectionIo<'_>, _chain: NblChain) {}
    fn send_room(&mut self, _io: &mut ConnectionIo<'_>) {}
    fn disconnect_complete(&mut self, _io: &mut ConnectionIo<'_>, _nbl: NetBufferList) {}
    fn event(&mut self, _io: &mut ConnectionIo<'_>, _event: ConnectionEvent) {}
}

impl NodeClient for Listener {
    fn poll(&mut self, _now: Instant, _connections: &mut Connections) -> bool {
        let news = self.said && !self.heard;
        self.heard |= news;
        news
    }
    fn poll_at(&self) -> Option<Instant> {
        None
    }
    fn has_input(&self) -> bool {
        self.said && !self.heard
    }
    fn take_callbacks(&mut self, _callbacks: &mut Vec<Callback>) {}
}

/// The condition looks, then the same call takes the notice in: nobody else will signal it.
fn a_notice_after_the_look_ends_the_wait(progress: Progress) {
    let (link, _far) = memory_link_pair(MemoryLinkOptions::default());
    let config = NodeConfig {
        engine: EngineConfig::new(MacAddress([2, 0, 0, 0, 0, 1])),
        host: HostConfig::default(),
        progress,
        spin: Duration::ZERO,
    };
    let node = Node::start(Box::new(link), config, |_| Listener::default()).unwrap();
    let (begin, mut looks) = (node.now(), 0);
    let heard = node.wait(Some(LIMIT), |client, _, _| {
        let heard = client.heard;
        client.said = true;
        looks += 1;
        heard.then_some(())
    });
    assert_eq!(heard, Ok(()));
    assert_eq!(looks, 2);
    assert!(node.now() - begin < LIMIT, "only the time limit ended the wait");
}

#[test]
fn a_notice_after_the_look_ends_the_wait_with_threads() {
    a_notice_after_the_look_ends_the_wait(Progress::Automatic);
}

#[test]
fn a_notice_after_the_look_ends_the_wait_without_threads() {
    a_notice_after_the_look_ends_the_wait(Progress::Manual);
}
