//! Control protocol of the two ends: JSON, one object per message, at most [`MESSAGE_BYTES_MAX`] bytes. Messages are
//! Sends on a separate queue pair, or length-prefixed records on a separate TCP connection.
//!
//! ```text
//! client                        server
//! Hello (parameters)      -->
//!                         <--   Welcome, or Refused (reason)
//! Prepare (size)          -->                                      once for each size
//!                         <--   Prepared
//!            ... connections for data, each with an Opening ...
//!                         <--   Ready
//! Begin (bound)           -->                                      warm-up, then the measurement
//!                         <--   Begun
//!            ... data ...
//! End (messages sent)     -->        from each end that sends data: both with -b
//!                         <--   Ended
//! Finish                  -->
//!                         <--   Finished (CPU time, messages)
//! Bye                     -->
//! ```

use serde::{Deserialize, Serialize};

use super::{cpu::Cpu, kind::Kind};
use crate::failure::Failure;

/// Largest message, bytes.
pub const MESSAGE_BYTES_MAX: usize = 1024;
/// Version of this protocol.
pub const VERSION: u16 = 2;
/// Largest number of queues of an end.
const QUEUES_MAX: usize = flue_adapter::QUEUES_MAX as usize;
/// Length of an [`Opening`], bytes.
pub const OPENING_BYTES: usize = 24;
/// First bytes of an opening.
const MAGIC: [u8; 8] = *b"flueperf";
/// Longest reason of a refusal, characters.
const REASON_CHARS_MAX: usize = 200;

/// Identification of a connection: the private data of the MPA Request, or the first bytes of a TCP connection.
///
/// ```text
/// 0 "flueperf" | 8 be16 version | 10 be16 role | 12 be32 index | 16 be64 session
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opening {
    /// Role of the connection.
    pub role: Role,
    /// Index among the data connections.
    pub index: u32,
    /// Session id, drawn at random by the client.
    pub session: u64,
}

/// Role of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Control messages.
    Control,
    /// Data.
    Data,
}

impl Opening {
    /// Encodes the opening.
    pub fn encode(&self) -> [u8; OPENING_BYTES] {
        let role: u16 = match self.role {
            Role::Control => 0,
            Role::Data => 1,
        };
        let mut octets = [0; OPENING_BYTES];
        octets[..8].copy_from_slice(&MAGIC);
        octets[8..10].copy_from_slice(&VERSION.to_be_bytes());
        octets[10..12].copy_from_slice(&role.to_be_bytes());
        octets[12..16].copy_from_slice(&self.index.to_be_bytes());
        octets[16..].copy_from_slice(&self.session.to_be_bytes());
        octets
    }

    /// Decodes an opening.
    ///
    /// # Errors
    /// Not an opening, or one of another version.
    pub fn decode(octets: &[u8]) -> Result<Self, Failure> {
        let strange = || {
            let shown = octets[..octets.len().min(16)].escape_ascii();
            Failure::work(format!("peer: not flue perf: its data starts with \"{shown}\""))
        };
        let octets: &[u8; OPENING_BYTES] = octets.try_into().map_err(|_| strange())?;
        if octets[..MAGIC.len()] != MAGIC {
            return Err(strange());
        }
        let number = |at: usize| u16::from_be_bytes([octets[at], octets[at + 1]]);
        if number(8) != VERSION {
            let other = number(8);
            return Err(Failure::work(format!(
                "peer: version {other} of the flue perf protocol, expected {VERSION}"
            )));
        }
        let role = match number(10) {
            0 => Role::Control,
            1 => Role::Data,
            _ => return Err(strange()),
        };
        let index = u32::from(number(12)) << 16 | u32::from(number(14));
        let mut session = [0; 8];
        session.copy_from_slice(&octets[16..]);
        Ok(Self { role, index, session: u64::from_be_bytes(session) })
    }
}

/// Parameters requested by the client, without sizes and times.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Parameters {
    /// Kind of the measurement.
    pub kind: Kind,
    /// Data connections: 1..=16,384.
    pub connections: u32,
    /// Outstanding messages per connection.
    pub depth: u32,
    /// Messages posted per doorbell.
    pub post_list: u32,
    /// True if both ends send.
    pub bidirectional: bool,
    /// True if the server sends instead of the client.
    pub reverse: bool,
    /// Largest message of the session, bytes.
    pub size_max_bytes: u64,
}

/// Registered memory of one end: start address and tokens. The layout follows from the parameters.
///
/// Each queue of the end has an adapter, which registers the memory under its own token. The client's connection n uses
/// its queue n modulo the number of queues. The server sends the index of its queue in the private data of the MPA
/// Reply, as one byte.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Memory {
    /// Address of the first byte.
    pub address: u64,
    /// Remote token of each queue: 1..=16.
    pub tokens: Vec<u32>,
}

impl Memory {
    /// Validates the memory of a peer.
    ///
    /// # Errors
    /// It has no queue, or too many.
    pub fn check(self) -> Result<Self, Failure> {
        match self.tokens.len() {
            1..=QUEUES_MAX => Ok(self),
            count => Err(Failure::work(format!("peer: memory of {count} queues"))),
        }
    }
}

/// Length of a phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Number of messages from each end that sends.
    Iterations(u64),
    /// Nanoseconds, after which outstanding messages are completed.
    DurationNs(u64),
}

/// Control message.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum Message {
    /// First message of the client.
    Hello {
        /// Parameters of the session.
        parameters: Parameters,
        /// Memory of the client, with queue pairs.
        memory: Option<Memory>,
    },
    /// Acceptance of the session.
    Welcome {
        /// Memory of the server, with queue pairs.
        memory: Option<Memory>,
        /// Version of the server.
        version: String,
    },
    /// Refusal of the session.
    Refused {
        /// Reason for the refusal.
        reason: String,
    },
    /// Request for new connections with this message size.
    Prepare {
        /// Message size, bytes.
        size_bytes: u64,
    },
    /// The server accepts the connections.
    Prepared,
    /// All connections are established.
    Ready,
    /// Start of a phase.
    Begin {
        /// Length of the phase.
        bound: Bound,
    },
    /// The phase has started.
    Begun,
    /// The sender of this message has sent all its data.
    End {
        /// Messages sent.
        messages: u64,
        /// Receives that they consume at the peer.
        receives: u64,
        /// Slots of memory that they filled, from the first on.
        slots: u64,
    },
    /// All of the data has arrived.
    Ended,
    /// Request for the results of the phase.
    Finish,
    /// Results of the phase.
    Finished {
        /// CPU time of the phase.
        cpu: Cpu,
        /// Messages sent by the server in the phase.
        messages: u64,
        /// True if the data received by the server matches the data sent; `None` if it was not compared.
        verified: Option<bool>,
    },
    /// End of the session.
    Bye,
}

impl Message {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        // Cannot fail: numbers and strings, no map.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// Not a message.
    pub fn decode(octets: &[u8]) -> Result<Self, Failure> {
        let message: Self = serde_json::from_slice(octets)
            .map_err(|error| Failure::work(format!("peer: invalid message: {error}")))?;
        match message {
            Self::Refused { reason } => Err(Failure::work(format!("peer: refused: {reason}"))),
            message => Ok(message),
        }
    }

    /// Returns a refusal with a printable, shortened reason.
    pub fn refusal(reason: &str) -> Self {
        // JSON encodes a control character as six characters.
        let printable = reason.chars().filter(|character| !character.is_control());
        Self::Refused { reason: printable.take(REASON_CHARS_MAX).collect() }
    }

    /// Returns the name of the message, for errors.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "Hello",
            Self::Welcome { .. } => "Welcome",
            Self::Refused { .. } => "Refused",
            Self::Prepare { .. } => "Prepare",
            Self::Prepared => "Prepared",
            Self::Ready => "Ready",
            Self::Begin { .. } => "Begin",
            Self::Begun => "Begun",
            Self::End { .. } => "End",
            Self::Ended => "Ended",
            Self::Finish => "Finish",
            Self::Finished { .. } => "Finished",
            Self::Bye => "Bye",
        }
    }

    /// Returns the failure for this message, received out of order.
    pub fn out_of_turn(&self, expected: &str) -> Failure {
        Failure::work(format!("peer: unexpected message {}, expected {expected}", self.name()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn opening_round_trips(index: u32, session: u64, is_data: bool) {
            let role = if is_data { Role::Data } else { Role::Control };
            let opening = Opening { role, index, session };
            prop_assert_eq!(Opening::decode(&opening.encode()), Ok(opening));
        }

        #[test]
        fn arbitrary_bytes_are_rejected(octets in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(Opening::decode(&octets).is_err());
            prop_assert!(Message::decode(&octets).is_err());
        }
    }

    #[test]
    fn other_version_is_reported() {
        let mut octets = Opening { role: Role::Control, index: 0, session: 1 }.encode();
        octets[9] = 7;
        assert!(Opening::decode(&octets).unwrap_err().message.contains("version 7"));
        octets[0] = b'F';
        assert!(Opening::decode(&octets).unwrap_err().message.contains("Flueperf"));
    }

    #[test]
    fn messages_fit_and_round_trip() {
        let parameters = Parameters {
            kind: Kind::ConnectRate,
            connections: u32::MAX,
            depth: u32::MAX,
            post_list: u32::MAX,
            bidirectional: false,
            reverse: false,
            size_max_bytes: u64::MAX,
        };
        let memory = Some(Memory { address: u64::MAX, tokens: vec![u32::MAX; QUEUES_MAX] });
        let end = Message::End { messages: u64::MAX, receives: u64::MAX, slots: u64::MAX };
        let bound = Bound::DurationNs(u64::MAX);
        for message in
            [Message::Hello { parameters, memory }, end, Message::Begin { bound }, Message::Bye]
        {
            let octets = message.encode();
            assert!(octets.len() <= MESSAGE_BYTES_MAX);
            assert_eq!(Message::decode(&octets), Ok(message));
        }
    }

    #[test]
    fn memory_has_a_token_for_each_queue() {
        let memory = |queues| Memory { address: 4096, tokens: vec![7; queues] };
        assert_eq!(memory(QUEUES_MAX).check(), Ok(memory(QUEUES_MAX)));
        for queues in [0, QUEUES_MAX + 1] {
            assert!(memory(queues).check().unwrap_err().message.contains("queues"));
        }
    }

    #[test]
    fn refusal_is_a_failure_and_fits() {
        let octets = Message::refusal(&"\u{1}".repeat(5000)).encode();
        assert!(octets.len() <= MESSAGE_BYTES_MAX, "{}", octets.len());
        let failure = Message::decode(&Message::refusal("busy").encode()).unwrap_err();
        assert_eq!(failure.message, "peer: refused: busy");
    }
}
