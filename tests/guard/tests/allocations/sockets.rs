//! Two adapters on kernel sockets, on loopback. The consumer drives both: all counted work runs on the thread
//! of the test.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicU8, Ordering},
};

use flue_guard::rdma::{self, Operation, Traffic};
use rdma_over_tcp::ndk::{AdapterConfig, SocketsConfig, open_sockets};

use crate::{PORT, Transport};

pub(crate) struct SocketPair {
    traffic: Traffic,
}

impl SocketPair {
    pub(crate) fn new(operation: Operation, bytes: usize) -> Self {
        let open = || open_sockets(SocketsConfig::default(), AdapterConfig::default());
        let [a, b] = [open(), open()].map(|opened| opened.expect("sockets"));
        // An address that no other process uses, nor an earlier pair, whose adapters may still be closing.
        static PAIRS: AtomicU8 = AtomicU8::new(1);
        let [high, low] = (std::process::id() as u16).to_be_bytes();
        let pair = PAIRS.fetch_add(1, Ordering::Relaxed);
        let server = SocketAddr::from((Ipv4Addr::new(127, high, low, pair), PORT));
        // The threads of the sockets make progress.
        let mut step = std::thread::yield_now;
        let ends = rdma::connect([&a, &b], server, (operation, bytes), &mut step);
        Self { traffic: Traffic::new(ends.unwrap(), operation, bytes) }
    }
}

impl Transport for SocketPair {
    fn run(&mut self, messages: u64) {
        // Polls of empty completion queues drive the sockets.
        self.traffic.run(messages, &mut || {});
    }

    fn frames(&self) -> u64 {
        0
    }
}
