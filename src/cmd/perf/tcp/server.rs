//! Server end: serves one client after the other; a failed session does not end the server.

use std::time::Duration;

use super::{LAST, Stack, bandwidth, exchange_limit, receive_message, send_message};
use crate::{
    cmd::perf::{
        Plan,
        cpu::Cpu,
        kind::Kind,
        message::{Bound, Message, OPENING_BYTES, Opening, Parameters, Role},
        phase::{ANSWER_LIMIT, Phase},
        report::Reporter,
    },
    failure::Failure,
    report::Console,
};

/// Limit of consecutive failed connections in a connect-rate phase.
const FAILURES_MAX: u32 = 100;

/// Time limit for the opening of a new connection.
const OPENING_LIMIT: Duration = Duration::from_secs(2);
/// Time limit for a refused client to disconnect.
const REFUSAL_LIMIT: Duration = Duration::from_secs(2);

/// Runs the server.
pub(super) fn run<S: Stack>(
    plan: &Plan,
    stack: &mut S,
    reporter: &mut Reporter,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let local = stack.listen(plan.port)?;
    let shown = stack.station().shown(local);
    console.remark(format_args!("listening: {} at {shown}", plan.kind));
    loop {
        let (session, control) = next_client(stack, console)?;
        let ended = serve(plan, stack, session, control, reporter, console);
        stack.interrupted()?;
        if plan.one_off {
            return ended;
        }
        if let Err(failure) = ended {
            console.remark(format_args!("client: {failure}"));
        }
    }
}

/// Accepts the next control connection, and returns its session. Any other connection is rejected.
fn next_client<S: Stack>(
    stack: &mut S,
    console: &mut Console<'_>,
) -> Result<(u64, S::Conn), Failure> {
    loop {
        let Some(mut conn) = stack.accept(None)? else {
            return Err(Failure::work("no client connected"));
        };
        let why = match opening_of(stack, &mut conn) {
            Ok(opening) if opening.role == Role::Control => return Ok((opening.session, conn)),
            Ok(_) => Failure::work("data connection of an earlier session"),
            Err(failure) => failure,
        };
        stack.interrupted()?;
        reject(stack, conn);
        console.remark(format_args!("client rejected: {why}"));
    }
}

/// Closes a connection without waiting for its peer.
fn reject<S: Stack>(stack: &mut S, conn: S::Conn) {
    // The peer has not closed yet, which is expected.
    let _ = stack.close(conn, Duration::ZERO);
}

/// Serves one client.
fn serve<S: Stack>(
    plan: &Plan,
    stack: &mut S,
    session: u64,
    mut control: S::Conn,
    reporter: &mut Reporter,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let (local, peer) = stack.addresses(&control);
    reporter.peers(local, peer);
    if let Some(peer) = peer {
        console.remark(format_args!("client: {peer}"));
    }
    let ended = negotiate(plan, stack, &mut control).and_then(|parameters| {
        reporter.parameters(&parameters);
        let mut client_session =
            ClientSession { parameters, session, data: Vec::new(), size_bytes: 1 };
        let ended = client_session.converse(stack, &mut control);
        client_session.data.drain(..).for_each(|conn| reject(stack, conn));
        ended
    });
    match ended {
        Ok(()) => stack.close(control, ANSWER_LIMIT),
        Err(failure) => {
            // Best effort: the client may still receive the reason.
            let _ = send_message(stack, &mut control, &Message::refusal(&failure.message))
                .and_then(|()| stack.close(control, REFUSAL_LIMIT));
            Err(failure)
        }
    }
}

fn negotiate<S: Stack>(
    plan: &Plan,
    stack: &mut S,
    control: &mut S::Conn,
) -> Result<Parameters, Failure> {
    match receive_message(stack, control)? {
        Message::Hello { parameters, .. } => {
            parameters.check(plan.kind)?;
            let version = env!("CARGO_PKG_VERSION").to_owned();
            send_message(stack, control, &Message::Welcome { memory: None, version })?;
            Ok(parameters)
        }
        message => Err(message.out_of_turn("Hello")),
    }
}

fn opening_of<S: Stack>(stack: &mut S, conn: &mut S::Conn) -> Result<Opening, Failure> {
    let mut octets = [0; OPENING_BYTES];
    stack.read(conn, &mut octets, OPENING_LIMIT)?;
    Opening::decode(&octets)
}

/// Session with a client.
struct ClientSession<C> {
    parameters: Parameters,
    session: u64,
    data: Vec<C>,
    size_bytes: u64,
}

impl<C> ClientSession<C> {
    /// Handles the client's messages in order.
    fn converse<S: Stack<Conn = C>>(
        &mut self,
        stack: &mut S,
        control: &mut C,
    ) -> Result<(), Failure> {
        let mut last = (Cpu::default(), 0);
        loop {
            match receive_message(stack, control)? {
                Message::Prepare { size_bytes } => {
                    if size_bytes == 0 || size_bytes > self.parameters.size_max_bytes {
                        let most = self.parameters.size_max_bytes;
                        return Err(Failure::work(format!(
                            "size of {size_bytes} bytes, expected 1 to {most}"
                        )));
                    }
                    self.size_bytes = size_bytes;
                    self.close(stack)?;
                    send_message(stack, control, &Message::Prepared)?;
                    self.accept(stack)?;
                    send_message(stack, control, &Message::Ready)?;
                }
                Message::Begin { bound } => last = self.phase(stack, control, bound)?,
                Message::Finish => {
                    let (cpu, messages) = last;
                    let finished = Message::Finished { cpu, messages, verified: None };
                    send_message(stack, control, &finished)?;
                    self.close(stack)?;
                }
                Message::Bye => return Ok(()),
                message => return Err(message.out_of_turn("a request")),
            }
        }
    }

    fn close<S: Stack<Conn = C>>(&mut self, stack: &mut S) -> Result<(), Failure> {
        self.data.drain(..).try_for_each(|conn| stack.close(conn, ANSWER_LIMIT))
    }

    fn accept<S: Stack<Conn = C>>(&mut self, stack: &mut S) -> Result<(), Failure> {
        let wanted = match self.parameters.kind {
            Kind::ConnectRate => 0,
            _ => self.parameters.connections as usize,
        };
        let mut accepted = Vec::new();
        while accepted.len() < wanted {
            let Some(mut conn) = stack.accept(Some(ANSWER_LIMIT))? else {
                let accepted = accepted.len();
                return Err(Failure::work(format!(
                    "{accepted} connections within the time limit, expected {wanted}"
                )));
            };
            match opening_of(stack, &mut conn) {
                Ok(opening) if opening.role == Role::Data && opening.session == self.session => {
                    accepted.push((opening.index, conn));
                }
                // Connection of another session: rejected without waiting.
                _ => reject(stack, conn),
            }
        }
        // Both ends close sequentially and wait for each other, so both must use the client's order. With several
        // queues the arrival order may differ.
        accepted.sort_by_key(|(index, _)| *index);
        self.data = accepted.into_iter().map(|(_, conn)| conn).collect();
        Ok(())
    }

    /// Runs a phase; returns the CPU time and the messages sent by this end.
    fn phase<S: Stack<Conn = C>>(
        &mut self,
        stack: &mut S,
        control: &mut C,
        bound: Bound,
    ) -> Result<(Cpu, u64), Failure> {
        let mut phase = Phase::begin(bound, self.size_bytes);
        send_message(stack, control, &Message::Begun)?;
        let sent = match self.parameters.kind {
            Kind::TcpBw => {
                let halves = (self.parameters.server_sends(), self.parameters.client_sends());
                let cut = (self.size_bytes, self.parameters.depth);
                bandwidth(stack, control, &mut self.data, &mut phase, halves, cut)?.0
            }
            Kind::ConnectRate => {
                self.connections(stack)?;
                0
            }
            _ => {
                self.requests(stack)?;
                0
            }
        };
        let outcome = phase.end(sent, 0);
        Ok((outcome.cpu, sent))
    }

    fn requests<S: Stack<Conn = C>>(&mut self, stack: &mut S) -> Result<(), Failure> {
        let limit = exchange_limit(self.parameters.kind);
        let [conn, ..] = &mut self.data[..] else {
            return Err(Failure::work("data connection: missing"));
        };
        let mut buffer = vec![0; self.size_bytes as usize];
        loop {
            stack.read(conn, &mut buffer, limit)?;
            stack.write(conn, &buffer)?;
            if buffer.last() == Some(&LAST) {
                return Ok(());
            }
        }
    }

    fn connections<S: Stack<Conn = C>>(&mut self, stack: &mut S) -> Result<(), Failure> {
        let mut failures = 0;
        loop {
            stack.interrupted()?;
            match self.connection(stack) {
                Ok(LAST) => return Ok(()),
                Ok(_) => failures = 0,
                Err(failure) => {
                    failures += 1;
                    if failures >= FAILURES_MAX {
                        return Err(
                            failure.at(&format!("{FAILURES_MAX} consecutive connections failed"))
                        );
                    }
                }
            }
        }
    }

    fn connection<S: Stack<Conn = C>>(&self, stack: &mut S) -> Result<u8, Failure> {
        let limit = exchange_limit(self.parameters.kind);
        let Some(mut conn) = stack.accept(Some(limit))? else {
            return Err(Failure::work("no connection within the time limit"));
        };
        let mut byte = [0];
        stack.read(&mut conn, &mut byte, limit)?;
        stack.write(&mut conn, &byte)?;
        stack.await_end(&mut conn, limit)?;
        stack.close(conn, limit)?;
        Ok(byte[0])
    }
}
