//! Client end of a TCP measurement.

use std::{net::SocketAddr, time::Instant};

use super::{LAST, MORE, Stack, bandwidth, exchange_limit, expect, receive_message, send_message};
use crate::{
    cmd::perf::{
        Plan,
        kind::Kind,
        message::{Bound, Message, Opening, Role},
        no_server,
        phase::{ANSWER_LIMIT, Outcome, PeerHalf, Phase},
        report::{Measured, Reporter},
    },
    failure::Failure,
    report::Console,
};

/// Limit of consecutive failed connections.
const FAILURES_MAX: u32 = 10;

/// Runs the client.
pub(super) fn run<S: Stack>(
    plan: &Plan,
    stack: &mut S,
    remote: SocketAddr,
    reporter: &mut Reporter,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    stack.station().connecting(remote, console);
    let mut control = open(plan, stack, remote, Role::Control, 0).map_err(no_server)?;
    let (local, peer) = stack.addresses(&control);
    reporter.peers(local, peer);
    let hello = Message::Hello { parameters: plan.parameters.clone(), memory: None };
    send_message(stack, &mut control, &hello)?;
    match receive_message(stack, &mut control).map_err(no_server)? {
        Message::Welcome { version, .. } => reporter.peer_version(version),
        message => return Err(message.out_of_turn("Welcome")),
    }
    for size_bytes in &plan.sizes {
        let measured = measure(plan, stack, &mut control, *size_bytes, remote, reporter, console)?;
        reporter.measured(measured, console);
    }
    send_message(stack, &mut control, &Message::Bye)?;
    stack.close(control, ANSWER_LIMIT)
}

fn open<S: Stack>(
    plan: &Plan,
    stack: &mut S,
    remote: SocketAddr,
    role: Role,
    index: u32,
) -> Result<S::Conn, Failure> {
    let mut conn = stack.connect(remote)?;
    stack.write(&mut conn, &Opening { role, index, session: plan.session }.encode())?;
    Ok(conn)
}

/// Measures one size: connects, warms up, measures.
fn measure<S: Stack>(
    plan: &Plan,
    stack: &mut S,
    control: &mut S::Conn,
    size_bytes: u64,
    remote: SocketAddr,
    reporter: &mut Reporter,
    console: &mut Console<'_>,
) -> Result<Measured, Failure> {
    send_message(stack, control, &Message::Prepare { size_bytes })?;
    expect(stack, control, &Message::Prepared)?;
    let mut data = Vec::new();
    if plan.kind != Kind::ConnectRate {
        for index in 0..plan.parameters.connections {
            data.push(open(plan, stack, remote, Role::Data, index)?);
        }
    }
    expect(stack, control, &Message::Ready)?;
    let mut run = |bound, reporting: Option<(&mut Reporter, &mut Console<'_>)>| {
        let run = Run { plan, remote, size_bytes, bound };
        run.phase(stack, control, &mut data, reporting)
    };
    let mut warm_up_iterations = 0;
    if !plan.warm_up.is_zero() {
        let warmed = run(Bound::DurationNs(plan.warm_up.as_nanos() as u64), None)?;
        warm_up_iterations = warmed.messages + warmed.received;
    }
    let outcome = run(plan.bound, Some((reporter, console)))?;
    send_message(stack, control, &Message::Finish)?;
    let peer = match receive_message(stack, control)? {
        Message::Finished { cpu, messages, verified } => PeerHalf { cpu, messages, verified },
        message => return Err(message.out_of_turn("Finished")),
    };
    for conn in data {
        stack.close(conn, ANSWER_LIMIT)?;
    }
    Ok(outcome.measured(plan.kind, size_bytes, warm_up_iterations, peer))
}

/// Context of one phase.
struct Run<'a> {
    plan: &'a Plan,
    remote: SocketAddr,
    size_bytes: u64,
    bound: Bound,
}

impl Run<'_> {
    fn phase<S: Stack>(
        &self,
        stack: &mut S,
        control: &mut S::Conn,
        data: &mut [S::Conn],
        reporting: Option<(&mut Reporter, &mut Console<'_>)>,
    ) -> Result<Outcome, Failure> {
        let Self { plan, size_bytes, bound, .. } = *self;
        send_message(stack, control, &Message::Begin { bound })?;
        expect(stack, control, &Message::Begun)?;
        let mut phase = Phase::begin(bound, size_bytes);
        if let Some((reporter, console)) = reporting {
            phase = phase.reporting(plan.interval, reporter, console);
        }
        let (sent, received) = match plan.kind {
            Kind::TcpBw => {
                let halves = (plan.parameters.client_sends(), plan.parameters.server_sends());
                let cut = (size_bytes, plan.parameters.depth);
                bandwidth(stack, control, data, &mut phase, halves, cut)?
            }
            Kind::ConnectRate => (self.connections(stack, &mut phase)?, 0),
            _ => (self.requests(stack, data, &mut phase)?, 0),
        };
        Ok(phase.end(sent, received))
    }

    /// Exchanges requests and responses in sequence; the last byte indicates if more follow.
    fn requests<S: Stack>(
        &self,
        stack: &mut S,
        data: &mut [S::Conn],
        phase: &mut Phase<'_, '_, '_>,
    ) -> Result<u64, Failure> {
        let [conn, ..] = data else { return Err(Failure::work("data connection: missing")) };
        let mut buffer = vec![0x5a; self.size_bytes as usize];
        let last = buffer.len() - 1;
        let limit = exchange_limit(self.plan.kind);
        let mut messages = 0;
        let mut before = Instant::now();
        loop {
            phase.budget.left = phase.budget.left.saturating_sub(1);
            buffer[last] = if phase.budget.is_over() { LAST } else { MORE };
            let is_last = buffer[last] == LAST;
            stack.write(conn, &buffer)?;
            stack.read(conn, &mut buffer, limit)?;
            let now = Instant::now();
            phase.histogram.record((now - before).as_nanos() as u64 / 2);
            before = now;
            messages += 1;
            if is_last {
                return Ok(messages);
            }
            phase.budget.update(now);
            if phase.is_clock_due() {
                stack.interrupted()?;
                phase.clock(now, messages, || messages)?;
            }
        }
    }

    /// Opens connections in sequence: connect, one byte in each direction, active close.
    fn connections<S: Stack>(
        &self,
        stack: &mut S,
        phase: &mut Phase<'_, '_, '_>,
    ) -> Result<u64, Failure> {
        let mut messages = 0;
        let mut failed_in_a_row = 0;
        loop {
            phase.budget.left = phase.budget.left.saturating_sub(1);
            let is_last = phase.budget.is_over();
            let before = Instant::now();
            let ended = self.connection(stack, phase, if is_last { LAST } else { MORE });
            let now = Instant::now();
            match ended {
                Ok(()) => {
                    phase.histogram.record((now - before).as_nanos() as u64);
                    messages += 1;
                    failed_in_a_row = 0;
                    if is_last {
                        return Ok(messages);
                    }
                }
                Err(failure) => {
                    stack.interrupted()?;
                    phase.failures += 1;
                    failed_in_a_row += 1;
                    // The server ends its phase with the last connection, so a failed last connection is repeated.
                    if failed_in_a_row >= FAILURES_MAX {
                        return Err(
                            failure.at(&format!("{FAILURES_MAX} consecutive connections failed"))
                        );
                    }
                }
            }
            phase.budget.update(now);
            if phase.is_clock_due() {
                stack.interrupted()?;
                phase.clock(now, messages, || messages)?;
            }
        }
    }

    fn connection<S: Stack>(
        &self,
        stack: &mut S,
        phase: &mut Phase<'_, '_, '_>,
        byte: u8,
    ) -> Result<(), Failure> {
        let limit = exchange_limit(self.plan.kind);
        let mut conn = stack.connect(self.remote)?;
        stack.write(&mut conn, &[byte])?;
        let mut echo = [!byte];
        stack.read(&mut conn, &mut echo, limit)?;
        if echo != [byte] {
            return Err(Failure::work("echo: differs from the data sent"));
        }
        phase.offloaded += u64::from(stack.is_offloaded(&conn));
        stack.close(conn, limit)
    }
}
