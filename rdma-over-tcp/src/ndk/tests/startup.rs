//! Connections in start-up whose consumer or peer does not respond.

use std::{
    convert::Infallible,
    format,
    string::{String, ToString},
};

use offload_engine::time::Duration;

use super::{
    bench::Bench,
    sides::{LIMITS, Side, listen},
};
use crate::{
    ndk::{
        Adapter, AdapterConfig, CallError, Connector, NtStatus,
        blocking::{Incoming, Wait},
    },
    rnic::ConnectError,
};

/// Wait that runs the bench.
struct BenchWait<'a>(&'a mut Bench);

impl Wait for BenchWait<'_> {
    type Error = Infallible;

    fn adapter(&self) -> &Adapter {
        &self.0.nodes[1].adapter
    }

    fn failed(&self, error: CallError) -> Infallible {
        panic!("{error}");
    }

    fn wait<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> Result<T, Infallible> {
        self.0.settle();
        Ok(look().expect("the bench is idle"))
    }
}

// A connector over the backlog is rejected immediately: its peer does not run into a timeout.
#[test]
pub(super) fn connector_over_backlog_is_rejected() {
    let mut bench = Bench::new(1);
    let sides = [(); 3].map(|()| Side::new(&bench, 0));
    let remote = bench.server;
    let Ok(mut incoming) = Incoming::listen(&mut BenchWait(&mut bench), remote, 2);
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
    let Ok(_first) = incoming.next(&mut BenchWait(&mut bench));
    let Ok(_second) = incoming.next(&mut BenchWait(&mut bench));
}

// NDK-CON-6: a consumer has 120 s to reply. Then its peer is refused, and the consumer's next call fails.
#[test]
pub(super) fn unanswered_connector_times_out() {
    let config = AdapterConfig::default();
    let patient = AdapterConfig { reply_timeout: 10 * config.accept_timeout, ..config.clone() };
    let mut bench = Bench::with(1, patient);
    let (_listener, mailbox) = listen(&mut bench);
    let [active, passive] = [0, 1].map(|node| Side::new(&bench, node));
    let connector = active.adapter.create_connector().unwrap();
    let note = active.log.note("connect");
    let remote = bench.server;
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

/// Creates a connector, and connects it to the server's address.
fn connecting(bench: &mut Bench, side: &Side) -> Connector {
    let connector = side.adapter.create_connector().unwrap();
    let remote = bench.server;
    let note = side.log.note("connect");
    assert_eq!(connector.connect(&side.qp, None, remote, LIMITS, b"", note), NtStatus::PENDING);
    bench.settle();
    connector
}

// MPA-7.1.2-4: a peer that does not close after a rejecting Reply is reset after the time limit.
#[test]
fn rejected_peer_without_close_is_reset() {
    let mut bench = Bench::new(1);
    let (_listener, mailbox) = listen(&mut bench);
    let active = Side::new(&bench, 0);
    let _connector = connecting(&mut bench, &active);
    let incoming = mailbox.lock().unwrap().pop().unwrap();
    bench.is_cut = true;
    assert_eq!(incoming.reject(b"no"), NtStatus::SUCCESS);
    bench.settle();
    let limit = AdapterConfig::default().terminate_timeout;
    bench.advance(limit - Duration::from_millis(1));
    assert_eq!(bench.connections(), 1);
    bench.advance(Duration::from_millis(1));
    assert_eq!(bench.connections(), 0);
}

fn cause_text(connector: &Connector) -> String {
    connector.failure().expect("a cause").to_string()
}

// NDK-CD-7: causes with one status are distinguished by the side that detected the failure, the layer, and the limit. A
// rejection's cause includes its private data.
#[test]
fn causes_of_failures() {
    let mut bench = Bench::new(1);
    let active = Side::new(&bench, 0);
    bench.connect_error = Some(ConnectError::TimedOut);
    let connector = connecting(&mut bench, &active);
    assert_eq!(cause_text(&connector), "TCP: no response from the peer within 30 s");
    bench.connect_error = None;
    let (_listener, mailbox) = listen(&mut bench);
    for (data, words) in [
        (&b""[..], ", without private data"),
        (b"flue perf: busy", ", with \"flue perf: busy\""),
        (b"\x00\xff", ", with 00ff"),
    ] {
        let connector = connecting(&mut bench, &active);
        let incoming = mailbox.lock().unwrap().pop().unwrap();
        assert_eq!(incoming.reject(data), NtStatus::SUCCESS);
        bench.settle();
        assert_eq!(cause_text(&connector), format!("MPA: connection rejected by the peer{words}"));
        assert_eq!(active.log.take().pop(), Some(("connect", NtStatus::CONNECTION_REFUSED)));
    }

    // The Reply does not arrive in time.
    let connector = connecting(&mut bench, &active);
    bench.advance(AdapterConfig::default().reply_timeout);
    assert_eq!(cause_text(&connector), "MPA: no Reply from the peer within 10 s");
    assert_eq!(active.log.take(), [("connect", NtStatus::IO_TIMEOUT)]);
    let incoming = mailbox.lock().unwrap().pop().unwrap();
    assert_eq!(
        cause_text(&incoming),
        "MPA start-up failed: TCP: connection reset by peer (2/0/01)"
    );

    // A retry clears the connector's cause.
    let connector = connecting(&mut bench, &active);
    assert_eq!(connector.failure(), None);
}

// The same at the accepting end.
#[test]
pub(super) fn causes_of_failed_accepts() {
    let config = AdapterConfig::default();
    let patient = AdapterConfig { reply_timeout: 10 * config.accept_timeout, ..config.clone() };
    let mut bench = Bench::with(1, patient);
    let (_listener, mailbox) = listen(&mut bench);
    let [active, passive] = [0, 1].map(|node| Side::new(&bench, node));
    let mut connector = connecting(&mut bench, &active);
    let incoming = mailbox.lock().unwrap().pop().unwrap();
    bench.advance(config.accept_timeout);
    assert_eq!(cause_text(&incoming), "MPA: Request not answered by this side within 120 s");
    assert_eq!(
        cause_text(&connector),
        "MPA: connection rejected by the peer, without private data"
    );

    // The initiator's consumer does not continue.
    connector = connecting(&mut bench, &active);
    let incoming = mailbox.lock().unwrap().pop().unwrap();
    let note = passive.log.note("accept");
    assert_eq!(incoming.accept(&passive.qp, LIMITS, b"", None, note), NtStatus::PENDING);
    bench.settle();
    bench.advance(config.accept_timeout);
    assert_eq!(cause_text(&incoming), "MPA: no message from the peer within 120 s after the Reply");
    assert_eq!(passive.log.take(), [("accept", NtStatus::IO_TIMEOUT)]);
    bench.settle();
    assert_eq!(
        cause_text(&connector),
        "MPA start-up failed: TCP: connection reset by peer (2/0/01)"
    );
}
