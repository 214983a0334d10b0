//! Connections in start-up that nobody answers.

use std::convert::Infallible;

use offload_engine::time::Duration;

use super::{
    bench::{Bench, SERVER},
    sides::{LIMITS, Side, listen},
};
use crate::ndk::{
    AdapterConfig, NtStatus,
    blocking::{CallError, Incoming, Wait},
};

/// Waits by running the bench.
struct Settle<'a>(&'a mut Bench);

impl Wait for Settle<'_> {
    type Error = Infallible;

    fn failed(&self, error: CallError) -> Infallible {
        panic!("{error}");
    }

    fn wait<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> Result<T, Infallible> {
        self.0.settle();
        Ok(look().expect("nothing happens any more"))
    }
}

// A connector for which there is no room is rejected at once: its peer does not run into a time-out.
#[test]
fn no_room_for_a_connector() {
    let mut bench = Bench::new(1);
    let sides = [(); 3].map(|()| Side::new(&bench, 0));
    let adapter = bench.nodes[1].adapter.clone();
    let remote = SERVER.parse().unwrap();
    let Ok(mut incoming) = Incoming::listen(&mut Settle(&mut bench), &adapter, remote, 2);
    for side in &sides {
        let connector = side.adapter.create_connector().unwrap();
        let note = side.log.note("connect");
        let status = connector.connect(&side.qp, None, remote, LIMITS, b"", note);
        assert_eq!(status, NtStatus::PENDING);
        bench.settle();
    }
    assert_eq!(sides[0].log.take(), []);
    assert_eq!(sides[1].log.take(), []);
    assert_eq!(sides[2].log.take(), [("connect", NtStatus::CONNECTION_REFUSED)]);
    let Ok(_first) = incoming.next(&mut Settle(&mut bench));
    let Ok(_second) = incoming.next(&mut Settle(&mut bench));
}

// NDK-CON-6: a consumer may take 120 s to answer. Then its peer is refused, and the consumer is told when it tries.
#[test]
fn a_connector_that_nobody_answers() {
    let config = AdapterConfig::default();
    let patient = AdapterConfig { reply_timeout: 10 * config.accept_timeout, ..config.clone() };
    let mut bench = Bench::with(1, patient);
    let (_listener, mailbox) = listen(&mut bench);
    let [active, passive] = [0, 1].map(|node| Side::new(&bench, node));
    let connector = active.adapter.create_connector().unwrap();
    let note = active.log.note("connect");
    let remote = SERVER.parse().unwrap();
    let status = connector.connect(&active.qp, None, remote, LIMITS, b"", note);
    assert_eq!(status, NtStatus::PENDING);
    bench.settle();
    let incoming = mailbox.lock().unwrap().pop().unwrap();
    bench.advance(config.accept_timeout - Duration::from_millis(1));
    assert_eq!(active.log.take(), []);
    bench.advance(Duration::from_millis(1));
    assert_eq!(active.log.take(), [("connect", NtStatus::CONNECTION_REFUSED)]);
    assert_eq!(bench.connections(), 0, "closed by FINs");
    let status = incoming.accept(&passive.qp, LIMITS, b"", None, |_| {});
    assert_eq!(status, NtStatus::CONNECTION_ABORTED);
    assert_eq!(passive.adapter.counters().connect_failure, 1);
}
