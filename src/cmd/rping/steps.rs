//! Steps of a ping, as pure state machines: the work that follows from each event.
//!
//! ```text
//! client                                     server
//!   1 Send: source advert              ->
//!                                      <-  2 RDMA Read of the whole source
//!                                      <-  4 Send "go ahead"
//!   5 Send: sink advert                ->
//!                                      <-  6 RDMA Write of the text into it
//!                                      <-  7 Send "go ahead"
//! ```
//!
//! Each side has exactly one posted receive, and reposts it before it replies: neither side ever sends two messages in
//! a row. The client disconnects after its last ping; for the server a disconnect between pings is the regular end.

use super::wire::{Advert, WrongLength};

/// Protocol violation of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StepError {
    /// Message that is not an advert.
    #[error(transparent)]
    Length(#[from] WrongLength),
    /// Event that is unexpected in this state.
    #[error("rping: unexpected {what} while {state}")]
    Unexpected {
        /// Event received.
        what: &'static str,
        /// Event expected.
        state: &'static str,
    },
    /// The client's source exceeds this server's buffer.
    #[error(
        "rping: client size of {offered} octets, expected at most {own}: raise -S of the server"
    )]
    Size {
        /// Size of the client's source, bytes.
        offered: u32,
        /// Size of the server's buffer, bytes.
        own: u32,
    },
    /// The client's sink is smaller than the text.
    #[error("rping: client sink of {sink} octets, expected at least {text}")]
    Sink {
        /// Size of the sink, bytes.
        sink: u32,
        /// Length of the text, bytes.
        text: u32,
    },
}

/// Work to execute, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Post the one receive, of 16 bytes.
    Receive,
    /// Post a Send of an advert.
    Send(Advert),
    /// Client: fill the source with the text of this ping, then call [`Client::filled`] with its advert.
    Fill(u32),
    /// Client: the sink holds the server's response to this ping: compare and print it.
    Compare(u32),
    /// Client: disconnect.
    Disconnect,
    /// Server: post an RDMA Read of `size` bytes.
    Read(Advert),
    /// Server: the buffer holds that many bytes from the client: print the text, then call [`Server::shown`] with its
    /// length.
    Show(u32),
    /// Server: post an RDMA Write of the first `size` bytes of the buffer.
    Write(Advert),
}

/// State of the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ClientState {
    Filling,
    /// Step 1 is sent.
    SourceSent,
    /// Step 5 is sent.
    SinkSent,
    Done,
}

/// State machine of the client.
#[derive(Debug)]
pub struct Client {
    state: ClientState,
    number: u32,
    /// `None`: unlimited.
    count: Option<u32>,
    sink: Advert,
}

impl Client {
    /// Creates the state machine for `count` pings (`None`: unlimited) into `sink`. First post a receive and connect,
    /// then execute the work of [`Client::connected`].
    pub const fn new(count: Option<u32>, sink: Advert) -> Self {
        Self { state: ClientState::Filling, number: 0, count, sink }
    }

    /// Returns the number of completed pings.
    pub const fn completed(&self) -> u32 {
        self.number
    }

    /// Handles the connection of the queue pair.
    pub fn connected(&mut self) -> Work {
        self.next()
    }

    fn next(&mut self) -> Work {
        if self.count.is_some_and(|count| self.number >= count) {
            self.state = ClientState::Done;
            Work::Disconnect
        } else {
            self.state = ClientState::Filling;
            Work::Fill(self.number)
        }
    }

    /// Handles the completion of [`Work::Fill`].
    ///
    /// # Errors
    /// It was not requested.
    pub fn filled(&mut self, source: Advert) -> Result<Work, StepError> {
        if self.state != ClientState::Filling {
            return Err(self.unexpected("filled source"));
        }
        self.state = ClientState::SourceSent;
        Ok(Work::Send(source))
    }

    /// Handles the completion of the receive, with its data.
    ///
    /// # Errors
    /// The server violates the protocol.
    pub fn received(&mut self, octets: &[u8]) -> Result<[Option<Work>; 3], StepError> {
        Advert::decode(octets)?;
        match self.state {
            ClientState::SourceSent => {
                self.state = ClientState::SinkSent;
                Ok([Some(Work::Receive), Some(Work::Send(self.sink)), None])
            }
            ClientState::SinkSent => {
                let compare = Work::Compare(self.number);
                self.number = self.number.wrapping_add(1);
                let next = self.next();
                let receive = (next != Work::Disconnect).then_some(Work::Receive);
                Ok([Some(compare), receive, Some(next)])
            }
            ClientState::Filling | ClientState::Done => Err(self.unexpected("message")),
        }
    }

    const fn unexpected(&self, what: &'static str) -> StepError {
        let state = match self.state {
            ClientState::Filling => "filling the source",
            ClientState::SourceSent => "waiting for the server to read",
            ClientState::SinkSent => "waiting for the server to write",
            ClientState::Done => "disconnecting",
        };
        StepError::Unexpected { what, state }
    }
}

/// State of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ServerState {
    /// Waits for step 1.
    Idle,
    /// Step 2 is posted, with that many bytes.
    Reading(u32),
    Showing,
    /// Waits for step 5; the text to write back has that many bytes.
    Answered(u32),
    /// Step 6 is posted.
    Writing,
}

/// State machine of the server.
#[derive(Debug)]
pub struct Server {
    state: ServerState,
    size: u32,
    completed: u32,
}

impl Server {
    /// Creates the state machine for a buffer of `size` bytes. First post a receive and accept.
    pub const fn new(size: u32) -> Self {
        Self { state: ServerState::Idle, size, completed: 0 }
    }

    /// Returns the number of completed pings.
    pub const fn completed(&self) -> u32 {
        self.completed
    }

    /// Returns true if a disconnect is a regular end in this state.
    pub fn may_end(&self) -> bool {
        self.state == ServerState::Idle
    }

    /// Handles the completion of the receive, with its data.
    ///
    /// # Errors
    /// The client violates the protocol, or its source is larger than the buffer.
    pub fn received(&mut self, octets: &[u8]) -> Result<[Work; 2], StepError> {
        let advert = Advert::decode(octets)?;
        match self.state {
            ServerState::Idle if advert.size > self.size => {
                Err(StepError::Size { offered: advert.size, own: self.size })
            }
            ServerState::Idle => {
                self.state = ServerState::Reading(advert.size);
                Ok([Work::Receive, Work::Read(advert)])
            }
            ServerState::Answered(text) if text > advert.size => {
                Err(StepError::Sink { sink: advert.size, text })
            }
            ServerState::Answered(text) => {
                self.state = ServerState::Writing;
                Ok([Work::Receive, Work::Write(Advert { size: text, ..advert })])
            }
            _ => Err(self.unexpected("message")),
        }
    }

    /// Handles the completion of the Read.
    ///
    /// # Errors
    /// No Read was posted.
    pub fn read_done(&mut self) -> Result<Work, StepError> {
        let ServerState::Reading(size) = self.state else {
            return Err(self.unexpected("completion of a Read"));
        };
        self.state = ServerState::Showing;
        Ok(Work::Show(size))
    }

    /// Handles the completion of [`Work::Show`]; `text` bytes are written back, see
    /// [`text_len`](super::pattern::text_len).
    ///
    /// # Errors
    /// It was not requested.
    pub fn shown(&mut self, text: u32) -> Result<Work, StepError> {
        if self.state != ServerState::Showing {
            return Err(self.unexpected("shown text"));
        }
        self.state = ServerState::Answered(text);
        Ok(Work::Send(Advert::GO_AHEAD))
    }

    /// Handles the completion of the Write.
    ///
    /// # Errors
    /// No Write was posted.
    pub fn write_done(&mut self) -> Result<Work, StepError> {
        if self.state != ServerState::Writing {
            return Err(self.unexpected("completion of a Write"));
        }
        self.state = ServerState::Idle;
        self.completed = self.completed.wrapping_add(1);
        Ok(Work::Send(Advert::GO_AHEAD))
    }

    const fn unexpected(&self, what: &'static str) -> StepError {
        let state = match self.state {
            ServerState::Idle => "waiting for a source",
            ServerState::Reading(_) => "reading",
            ServerState::Showing => "showing",
            ServerState::Answered(_) => "waiting for a sink",
            ServerState::Writing => "writing",
        };
        StepError::Unexpected { what, state }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cmd::rping::pattern;

    const SOURCE: Advert = Advert { address: 0x1000, token: 0xa1, size: 64 };
    const SINK: Advert = Advert { address: 0x2000, token: 0xb2, size: 64 };

    /// Runs client and server with their memory, message by message. Returns the completed pings of each.
    fn run(count: u32, size: u32) -> Result<(u32, u32), StepError> {
        let (source, sink) = (Advert { size, ..SOURCE }, Advert { size, ..SINK });
        let mut client = Client::new(Some(count), sink);
        let mut server = Server::new(size);
        let (mut sent, mut buffer) = (vec![0; size as usize], vec![0; size as usize]);
        let mut received = vec![0; size as usize];
        let (mut client_receives, mut server_receives) = (1, 1);
        let mut work = client.connected();
        loop {
            let (number, advert) = match work {
                Work::Disconnect => break,
                Work::Fill(number) => {
                    pattern::fill(&mut sent, number);
                    let Work::Send(advert) = client.filled(source)? else { panic!() };
                    (number, advert)
                }
                other => panic!("unexpected first work: {other:?}"),
            };
            assert_eq!(advert, source);
            server_receives -= 1;
            let [Work::Receive, Work::Read(read)] = server.received(&advert.encode())? else {
                panic!()
            };
            server_receives += 1;
            assert!(!server.may_end());
            assert_eq!(read, source);
            buffer.copy_from_slice(&sent);
            let Work::Show(shown) = server.read_done()? else { panic!() };
            assert_eq!(shown, size);
            let text = pattern::text_len(&buffer[..shown as usize]) as u32;
            let Work::Send(go_ahead) = server.shown(text)? else { panic!() };
            client_receives -= 1;
            let [Some(Work::Receive), Some(Work::Send(advert)), None] =
                client.received(&go_ahead.encode())?
            else {
                panic!()
            };
            client_receives += 1;
            assert_eq!(advert, sink);
            server_receives -= 1;
            let [Work::Receive, Work::Write(write)] = server.received(&advert.encode())? else {
                panic!()
            };
            server_receives += 1;
            received.fill(0xee);
            received[..write.size as usize].copy_from_slice(&buffer[..write.size as usize]);
            let Work::Send(go_ahead) = server.write_done()? else { panic!() };
            client_receives -= 1;
            let [Some(Work::Compare(compared)), receive, Some(next)] =
                client.received(&go_ahead.encode())?
            else {
                panic!()
            };
            client_receives += i32::from(receive.is_some());
            assert_eq!(compared, number);
            assert_eq!(pattern::first_difference(&sent, &received), None);
            assert_eq!(
                (client_receives, server_receives),
                (i32::from(next != Work::Disconnect), 1)
            );
            work = next;
        }
        assert!(server.may_end());
        Ok((client.completed(), server.completed()))
    }

    proptest! {
        #[test]
        fn every_ping_is_returned(count in 1_u32..70, size in 26_u32..300) {
            prop_assert_eq!(run(count, size), Ok((count, count)));
        }

        #[test]
        fn arbitrary_message_never_panics(octets in proptest::collection::vec(any::<u8>(), 0..20)) {
            let mut client = Client::new(None, SINK);
            let mut server = Server::new(64);
            for _ in 0..2 {
                let _ = (client.received(&octets), server.received(&octets));
                let _ = (client.filled(SOURCE), server.read_done(), server.shown(1));
                let _ = (client.received(&octets), server.received(&octets), server.write_done());
            }
        }
    }

    #[test]
    fn zero_pings_disconnect_at_once() {
        assert_eq!(run(0, 64), Ok((0, 0)));
    }

    #[test]
    fn oversized_client_is_rejected_with_sizes() {
        let mut server = Server::new(64);
        let error = server.received(&Advert { size: 65, ..SOURCE }.encode()).unwrap_err();
        assert_eq!(error, StepError::Size { offered: 65, own: 64 });
        assert!(error.to_string().contains("-S"));
    }

    #[test]
    fn small_sink_is_not_overrun() {
        let mut server = Server::new(64);
        server.received(&SOURCE.encode()).unwrap();
        server.read_done().unwrap();
        server.shown(64).unwrap();
        let error = server.received(&Advert { size: 63, ..SINK }.encode()).unwrap_err();
        assert_eq!(error, StepError::Sink { sink: 63, text: 64 });
    }

    #[test]
    fn out_of_order_events_are_errors() {
        let mut server = Server::new(64);
        assert!(matches!(server.read_done(), Err(StepError::Unexpected { .. })));
        server.received(&SOURCE.encode()).unwrap();
        assert!(matches!(server.received(&SOURCE.encode()), Err(StepError::Unexpected { .. })));
        let mut client = Client::new(Some(1), SINK);
        assert!(matches!(client.received(&[0; 16]), Err(StepError::Unexpected { .. })));
        assert!(matches!(client.received(&[0; 15]), Err(StepError::Length(WrongLength(15)))));
    }
}
