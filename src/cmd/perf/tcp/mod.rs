//! Measurements on TCP connections: of the node ([`streams`]) or of this machine's kernel ([`kernel`]).
//!
//! The first connection of a session carries length-prefixed control messages ([`super::message`]), the others carry
//! data. Each starts with an opening that identifies it. [`client`] and [`server`] are the two ends.

mod client;
mod kernel;
mod server;
mod streams;

use std::{net::SocketAddr, time::Duration};

use self::{kernel::Kernel, streams::NodeStack};
use super::{
    Plan,
    kind::Kind,
    message::{MESSAGE_BYTES_MAX, Message},
    phase::{ANSWER_LIMIT, Budget, Phase},
    report::Reporter,
};
use crate::{
    failure::Failure, options::NodeSetup, report::Console, sandbox::Policy, station::Station,
};

/// Last byte of a request, and of its response, if more requests follow.
const MORE: u8 = 0;
/// Last byte of the last request of a phase.
const LAST: u8 = 1;

/// TCP implementation.
trait Stack {
    /// Connection.
    type Conn;

    /// Returns the end of the connections.
    fn station(&self) -> &Station;

    /// Listens on all addresses. Returns the local address.
    fn listen(&mut self, port: u16) -> Result<SocketAddr, Failure>;

    /// Accepts the next connection; `None` after the time limit.
    fn accept(&mut self, limit: Option<Duration>) -> Result<Option<Self::Conn>, Failure>;

    /// Connects.
    fn connect(&mut self, remote: SocketAddr) -> Result<Self::Conn, Failure>;

    /// Returns the local and remote address.
    fn addresses(&self, conn: &Self::Conn) -> (Option<SocketAddr>, Option<SocketAddr>);

    /// Returns true if the connection is offloaded now.
    fn is_offloaded(&self, conn: &Self::Conn) -> bool;

    /// Sends all of `data`.
    fn write(&mut self, conn: &mut Self::Conn, data: &[u8]) -> Result<(), Failure>;

    /// Receives data until `buffer` is full.
    fn read(
        &mut self,
        conn: &mut Self::Conn,
        buffer: &mut [u8],
        limit: Duration,
    ) -> Result<(), Failure>;

    /// Returns true if the control connection has data or has ended, without blocking.
    fn is_readable(&mut self, conn: &mut Self::Conn) -> bool;

    /// Sends and receives without blocking on the data connections, as described by `bulk`. Without progress it waits
    /// as configured, for a fraction of a second at most. Progress is returned at once, because it may complete the
    /// phase.
    fn bulk(
        &mut self,
        data: &mut [Self::Conn],
        control: &mut Self::Conn,
        bulk: &mut Bulk,
    ) -> Result<(), Failure>;

    /// Waits for the peer's FIN.
    fn await_end(&mut self, conn: &mut Self::Conn, limit: Duration) -> Result<(), Failure>;

    /// Sends a FIN, then waits for the peer's FIN, at most `limit`.
    fn close(&mut self, conn: Self::Conn, limit: Duration) -> Result<(), Failure>;

    /// Returns an error if a signal was received.
    fn interrupted(&self) -> Result<(), Failure>;

    /// Completes pending closes before the end of the run.
    fn linger(&mut self) {}

    /// Returns the TCP segments received by each queue's engine; `None` without queues.
    fn segments(&self) -> Option<Vec<u64>> {
        None
    }
}

/// Transfer on the data connections in a phase.
struct Bulk {
    /// True if this end sends.
    sends: bool,
    /// True if this end receives.
    receives: bool,
    size_bytes: usize,
    /// Limit of unacknowledged bytes per connection, if the stack supports one.
    flight_bytes: usize,
    budget: Budget,
    /// Messages sent.
    sent: u64,
    /// Bytes received.
    received_bytes: u64,
    /// True if all started messages are completely sent.
    is_flushed: bool,
}

/// Runs one end on kernel sockets.
///
/// # Errors
/// Same as the command.
pub(super) fn run_kernel(
    plan: &Plan,
    reporter: &mut Reporter,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    plan.sandbox.enter(Policy::Sockets { control: None });
    run(plan, &mut Kernel::new(plan)?, reporter, console)
}

/// Runs one end on a node.
///
/// # Errors
/// Same as the command.
pub(super) fn run_node(
    plan: &Plan,
    setup: &NodeSetup,
    reporter: &mut Reporter,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    run(plan, &mut NodeStack::open(plan, setup, reporter, console)?, reporter, console)
}

fn run<S: Stack>(
    plan: &Plan,
    stack: &mut S,
    reporter: &mut Reporter,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let ended = match plan.remote {
        Some(remote) => client::run(plan, stack, remote, reporter, console),
        None => server::run(plan, stack, reporter, console),
    };
    if let Some(segments) = stack.segments() {
        reporter.segments(segments);
    }
    stack.linger();
    ended
}

/// Sends a control message.
fn send_message<S: Stack>(
    stack: &mut S,
    conn: &mut S::Conn,
    message: &Message,
) -> Result<(), Failure> {
    let octets = message.encode();
    let mut framed = (octets.len() as u32).to_be_bytes().to_vec();
    framed.extend(octets);
    stack.write(conn, &framed)
}

/// Receives the next control message.
fn receive_message<S: Stack>(stack: &mut S, conn: &mut S::Conn) -> Result<Message, Failure> {
    let mut length = [0; 4];
    stack.read(conn, &mut length, ANSWER_LIMIT)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(Failure::work(format!(
            "peer: message of {length} bytes, expected at most {MESSAGE_BYTES_MAX}: not flue perf?"
        )));
    }
    let mut octets = vec![0; length];
    stack.read(conn, &mut octets, ANSWER_LIMIT)?;
    Message::decode(&octets)
}

/// Receives the next control message, which must be `expected`.
fn expect<S: Stack>(stack: &mut S, conn: &mut S::Conn, expected: &Message) -> Result<(), Failure> {
    match receive_message(stack, conn)? {
        message if message == *expected => Ok(()),
        message => Err(message.out_of_turn(expected.name())),
    }
}

/// Runs the bandwidth phase of either end; returns messages sent by this end and by the peer.
fn bandwidth<S: Stack>(
    stack: &mut S,
    control: &mut S::Conn,
    data: &mut [S::Conn],
    phase: &mut Phase<'_, '_, '_>,
    (sends, receives): (bool, bool),
    (size_bytes, depth): (u64, u32),
) -> Result<(u64, u64), Failure> {
    let size = size_bytes as usize;
    let mut bulk = Bulk {
        sends,
        receives,
        size_bytes: size,
        flight_bytes: (size * depth as usize)
            .clamp(FLIGHT_MIN_BYTES, FLIGHT_MAX_BYTES)
            .max(2 * size),
        budget: phase.budget,
        sent: 0,
        received_bytes: 0,
        is_flushed: !sends,
    };
    let mut end_sent = !sends;
    let (mut is_ended, mut peer_messages) = (!sends, None);
    let mut ended_sent = !receives;
    loop {
        // Checked before waiting for data: the deadline and the arrival of the last bytes take precedence.
        stack.interrupted()?;
        let received = bulk.received_bytes / size_bytes;
        let done = if sends { bulk.sent } else { received };
        let activity = bulk.sent.wrapping_add(bulk.received_bytes);
        phase.budget = bulk.budget;
        phase.clock(std::time::Instant::now(), done, || activity)?;
        bulk.budget = phase.budget;
        if !end_sent && bulk.budget.is_over() && bulk.is_flushed {
            let end = Message::End { messages: bulk.sent, receives: 0, slots: 0 };
            send_message(stack, control, &end)?;
            end_sent = true;
        }
        // One message per iteration: any message after the last one of this phase belongs to the next phase.
        if stack.is_readable(control) {
            match receive_message(stack, control)? {
                Message::End { messages, .. } if receives => peer_messages = Some(messages),
                Message::Ended if end_sent => is_ended = true,
                message => return Err(message.out_of_turn("the end of a phase")),
            }
        }
        if let Some(messages) = peer_messages
            && !ended_sent
            && bulk.received_bytes >= messages.saturating_mul(size_bytes)
        {
            send_message(stack, control, &Message::Ended)?;
            ended_sent = true;
        }
        if is_ended && ended_sent {
            return Ok((bulk.sent, peer_messages.unwrap_or(0)));
        }
        stack.bulk(data, control, &mut bulk)?;
    }
}

/// Limits of the bytes in flight per connection.
const FLIGHT_MIN_BYTES: usize = 64 << 10;
const FLIGHT_MAX_BYTES: usize = 1 << 20;

/// Returns the time limit of an exchange.
fn exchange_limit(kind: Kind) -> Duration {
    match kind {
        Kind::ConnectRate => CONNECTION_LIMIT,
        _ => super::phase::INACTIVITY_LIMIT,
    }
}

/// Time limit of each step of a connect-rate connection.
const CONNECTION_LIMIT: Duration = Duration::from_secs(5);
