//! Server end: serves one client after the other; a failed session does not end the server.

use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use rdma_over_tcp::ndk::{Connector, Listener, NtStatus, PendingCall, reject_and_close};

use super::{
    bandwidth::{self, Halves},
    latency::{self, PingNumber},
    node::{AcceptedConnection, PerfNode, not_accepted, refused},
    session::{Dialogue, Session},
};
use crate::{
    cmd::perf::{
        Plan,
        cpu::Cpu,
        message::{Bound, Message, OPENING_BYTES, Opening, Role},
        phase::{ANSWER_LIMIT, Phase},
        report::Reporter,
    },
    failure::Failure,
    report::Console,
};

/// Time limit for a refused client to disconnect.
const REFUSAL_LIMIT: Duration = Duration::from_secs(2);

/// Runs the server.
pub(super) fn run(
    plan: &Plan,
    node: &PerfNode,
    reporter: &mut Reporter,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let (listeners, incoming) = node.listen(plan.port, plan.listen)?;
    let shown = node.shown(listeners.first().and_then(Listener::local_address));
    console.remark(format_args!("listening: {} at {shown}", plan.kind));
    let ended = loop {
        let (opening, accepted) = match next_client(node, &incoming, console) {
            Ok(client) => client,
            Err(failure) => break Err(failure),
        };
        let ended = serve(plan, node, opening, accepted, &incoming, reporter, console);
        if let Err(interrupted) = node.interrupted() {
            break Err(interrupted);
        }
        if plan.one_off {
            break ended;
        }
        if let Err(failure) = ended {
            console.remark(format_args!("client: {failure}"));
        }
    };
    for listener in listeners {
        let _ = listener.close(|| {});
    }
    reporter.segments(node.segments());
    node.linger();
    ended
}

/// Accepts the next control connection. Any other connection is rejected.
fn next_client(
    node: &PerfNode,
    incoming: &Receiver<AcceptedConnection>,
    console: &mut Console<'_>,
) -> Result<(Opening, AcceptedConnection), Failure> {
    loop {
        let Some(accepted) = node.wait(None, || incoming.try_recv().ok())? else {
            return Err(Failure::work("no client connected"));
        };
        let why = match opening_of(&accepted.connector) {
            Ok(opening) if opening.role == Role::Control => return Ok((opening, accepted)),
            Ok(_) => Failure::work("data connection of an earlier session"),
            Err(failure) => failure,
        };
        reject_and_close(&accepted.connector, b"flue perf: invalid request");
        console.remark(format_args!("client rejected: {why}"));
    }
}

/// Serves one client.
fn serve(
    plan: &Plan,
    node: &PerfNode,
    opening: Opening,
    accepted: AcceptedConnection,
    incoming: &Receiver<AcceptedConnection>,
    reporter: &mut Reporter,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let mut dialogue = Dialogue::new(node, accepted.queue)?;
    dialogue.accept(accepted)?;
    let (local, peer) = dialogue.addresses();
    reporter.peers(local, peer);
    reporter.crc(node.crc());
    if let Some(peer) = peer {
        console.remark(format_args!("client: {peer}"));
    }
    let (parameters, memory) = match dialogue.await_message()? {
        Message::Hello { parameters, memory: Some(memory) } => (parameters, memory),
        message => return Err(refuse(dialogue, message.out_of_turn("Hello"))),
    };
    let memory = match parameters.check(plan.kind).and_then(|()| memory.check()) {
        Ok(memory) => memory,
        Err(failure) => return Err(refuse(dialogue, failure)),
    };
    reporter.parameters(&parameters);
    let mut session = Session::new(dialogue, parameters)?;
    session.peer = memory;
    let memory = Some(session.region.memory());
    let version = env!("CARGO_PKG_VERSION").to_owned();
    session.dialogue.send_message(&Message::Welcome { memory, version })?;
    let ended = converse(&mut session, opening.session, incoming);
    match &ended {
        Ok(()) => session.disconnect(ANSWER_LIMIT)?,
        Err(failure) => {
            // Best effort: the client may still receive the reason. The lanes are aborted.
            let _ = session.dialogue.send_message(&Message::refusal(&failure.message));
            session.dialogue.disconnect(REFUSAL_LIMIT)?;
        }
    }
    ended
}

/// Sends the refusal, and waits until the client has disconnected.
fn refuse(dialogue: Dialogue<'_>, failure: Failure) -> Failure {
    if dialogue.send_message(&Message::refusal(&failure.message)).is_ok() {
        let closed = || dialogue.ended.reason().map(|_| ());
        // Best effort: the result does not matter.
        let _ = dialogue.host.wait(Some(REFUSAL_LIMIT), closed);
    }
    failure
}

fn opening_of(connector: &Connector) -> Result<Opening, Failure> {
    let mut octets = [0; OPENING_BYTES];
    let (status, length, _) = connector.connection_data(Some(&mut octets));
    if status != NtStatus::SUCCESS && status != NtStatus::BUFFER_TOO_SMALL {
        return Err(refused("private data", status));
    }
    Opening::decode(&octets[..length.min(OPENING_BYTES)])
}

/// Handles the client's messages in order.
fn converse(
    session: &mut Session<'_>,
    key: u64,
    incoming: &Receiver<AcceptedConnection>,
) -> Result<(), Failure> {
    let mut number = PingNumber::default();
    let mut last = (Cpu::default(), 0);
    loop {
        match session.await_message()? {
            Message::Prepare { size_bytes } => {
                if size_bytes == 0 || size_bytes > session.parameters.size_max_bytes {
                    let most = session.parameters.size_max_bytes;
                    return Err(Failure::work(format!(
                        "size of {size_bytes} bytes, expected 1 to {most}"
                    )));
                }
                session.prepare(size_bytes)?;
                number = PingNumber::default();
                session.dialogue.send_message(&Message::Prepared)?;
                accept_lanes(session, key, incoming)?;
                session.dialogue.send_message(&Message::Ready)?;
            }
            Message::Begin { bound } => last = phase(session, bound, &mut number)?,
            Message::Finish => {
                let verified = session.verify()?;
                let (cpu, messages) = last;
                session.dialogue.send_message(&Message::Finished { cpu, messages, verified })?;
            }
            Message::Bye => return Ok(()),
            message => return Err(message.out_of_turn("a request")),
        }
    }
}

fn accept_lanes(
    session: &mut Session<'_>,
    key: u64,
    incoming: &Receiver<AcceptedConnection>,
) -> Result<(), Failure> {
    let wanted = session.lanes.len();
    let mut pending: Vec<(usize, PendingCall)> = Vec::new();
    let (mut accepted, mut done) = (0, 0);
    let mut until = Instant::now() + ANSWER_LIMIT;
    while done < wanted {
        let host = session.dialogue.host;
        let waited = host.wait(Some(ANSWER_LIMIT), || {
            let settled = pending.iter().any(|(_, begun)| begun.status().is_some());
            let has_left = session.dialogue.ended.reason().is_some();
            (settled || has_left || !incoming.is_empty()).then_some(())
        })?;
        if session.dialogue.ended.reason().is_some() {
            return Err(session.dialogue.no_reply());
        }
        if waited.is_none() || Instant::now() > until {
            return Err(Failure::work(format!(
                "{done} connections within the time limit, expected {wanted}"
            )));
        }
        while let Ok(one) = incoming.try_recv() {
            match opening_of(&one.connector) {
                Ok(Opening { role: Role::Data, index, session: theirs }) if theirs == key => {
                    let begun = session.accept_lane(index as usize, one)?;
                    pending.extend(begun.map(|begun| (index as usize, begun)));
                    accepted += 1;
                }
                _ => reject_and_close(&one.connector, b"flue perf: busy"),
            }
        }
        let mut failed = None;
        pending.retain(|(index, asked)| match asked.status() {
            None => true,
            Some(NtStatus::SUCCESS) => {
                done += 1;
                until = Instant::now() + ANSWER_LIMIT;
                false
            }
            Some(status) => {
                failed = Some((*index, status));
                false
            }
        });
        if let Some((index, status)) = failed {
            let what = format!("accept (connection {accepted} of {wanted})");
            return Err(not_accepted(&what, status, session.lanes[index].connector.as_ref()));
        }
    }
    Ok(())
}

/// Runs a phase; returns the CPU time and the messages sent by this end.
fn phase(
    session: &mut Session<'_>,
    bound: Bound,
    number: &mut PingNumber,
) -> Result<(Cpu, u64), Failure> {
    session.begin_phase();
    let mut phase = Phase::begin(bound, session.size_bytes);
    session.dialogue.send_message(&Message::Begun)?;
    let parameters = &session.parameters;
    let sent = if parameters.kind.is_bandwidth() {
        let halves =
            Halves { sends: parameters.server_sends(), receives: parameters.client_sends() };
        bandwidth::run(session, &mut phase, halves)?.0
    } else {
        latency::pong(session, &mut phase, number)?;
        0
    };
    let outcome = phase.end(sent, 0);
    Ok((outcome.cpu, sent))
}
