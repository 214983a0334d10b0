//! Client end of an RDMA measurement.

use std::{net::SocketAddr, time::Instant};

use super::{
    bandwidth::{self, Halves},
    latency::{self, PingNumber},
    node::PerfNode,
    session::{Dialogue, Session},
};
use crate::{
    cmd::perf::{
        Plan,
        message::{Bound, Message},
        phase::{ANSWER_LIMIT, Outcome, PeerHalf, Phase},
        report::{Measured, Reporter},
    },
    failure::Failure,
    report::Console,
};

/// Runs the client.
pub(super) fn run(
    plan: &Plan,
    node: &PerfNode,
    remote: SocketAddr,
    reporter: &mut Reporter,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let ended = converse(plan, node, remote, reporter, console);
    reporter.segments(node.segments());
    // Failed connections are aborted; linger until the peer has received the reset.
    node.linger();
    ended
}

fn converse(
    plan: &Plan,
    node: &PerfNode,
    remote: SocketAddr,
    reporter: &mut Reporter,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let mut dialogue = Dialogue::new(node, 0)?;
    node.connecting(remote, console);
    dialogue.connect(remote, plan.session)?;
    let (local, peer) = dialogue.addresses();
    reporter.peers(local, peer);
    reporter.crc(node.crc());
    let mut session = Session::new(dialogue, plan.parameters.clone())?;
    let memory = Some(session.region.memory());
    session
        .dialogue
        .send_message(&Message::Hello { parameters: plan.parameters.clone(), memory })?;
    match session.await_message()? {
        Message::Welcome { memory: Some(memory), version } => {
            session.peer = memory.check()?;
            reporter.peer_version(version);
        }
        message => return Err(message.out_of_turn("Welcome")),
    }
    for size_bytes in &plan.sizes {
        let measured = measure(plan, &mut session, *size_bytes, remote, reporter, console)?;
        reporter.measured(measured, console);
    }
    session.dialogue.send_message(&Message::Bye)?;
    session.disconnect(ANSWER_LIMIT)
}

/// Measures one size: connects, warms up, measures.
fn measure(
    plan: &Plan,
    session: &mut Session<'_>,
    size_bytes: u64,
    remote: SocketAddr,
    reporter: &mut Reporter,
    console: &mut Console<'_>,
) -> Result<Measured, Failure> {
    session.prepare(size_bytes)?;
    session.dialogue.send_message(&Message::Prepare { size_bytes })?;
    expect(session, &Message::Prepared)?;
    session.connect_lanes(remote, plan.session)?;
    expect(session, &Message::Ready)?;
    let mut number = PingNumber::default();
    let mut warm_up_iterations = 0;
    if !plan.warm_up.is_zero() {
        let bound = Bound::DurationNs(plan.warm_up.as_nanos() as u64);
        let warmed = phase(session, bound, &mut number, |phase| phase)?;
        warm_up_iterations = warmed.messages + warmed.received;
    }
    let outcome = phase(session, plan.bound, &mut number, |phase| {
        phase.reporting(plan.interval, reporter, console)
    })?;
    let verified = session.verify()?;
    session.dialogue.send_message(&Message::Finish)?;
    let peer = match session.await_message()? {
        Message::Finished { cpu, messages, verified: of_peer } => {
            PeerHalf { cpu, messages, verified: verified.or(of_peer) }
        }
        message => return Err(message.out_of_turn("Finished")),
    };
    Ok(outcome.measured(plan.kind, size_bytes, warm_up_iterations, peer))
}

fn phase<'p, 'r, 'w: 'r>(
    session: &mut Session<'_>,
    bound: Bound,
    number: &mut PingNumber,
    reporting: impl FnOnce(Phase<'p, 'r, 'w>) -> Phase<'p, 'r, 'w>,
) -> Result<Outcome, Failure> {
    session.begin_phase();
    session.dialogue.send_message(&Message::Begin { bound })?;
    expect(session, &Message::Begun)?;
    let mut phase = reporting(Phase::begin(bound, session.size_bytes));
    phase.begun = Instant::now();
    let parameters = &session.parameters;
    let (sent, received) = if parameters.kind.is_bandwidth() {
        let halves =
            Halves { sends: parameters.client_sends(), receives: parameters.server_sends() };
        bandwidth::run(session, &mut phase, halves)?
    } else {
        (latency::ping(session, &mut phase, number)?, 0)
    };
    Ok(phase.end(sent, received))
}

fn expect(session: &mut Session<'_>, expected: &Message) -> Result<(), Failure> {
    match session.await_message()? {
        message if message == *expected => Ok(()),
        message => Err(message.out_of_turn(expected.name())),
    }
}
