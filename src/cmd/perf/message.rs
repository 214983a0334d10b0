//! What the two ends say to each other beside the data: JSON, one object a message, at most
//! [`MESSAGE_BYTES_MAX`] bytes; in Sends on a queue pair of its own, or behind their length on a TCP
//! connection of its own.
//!
//! ```text
//! client                        server
//! Hello (parameters)      -->
//!                         <--   Welcome, or Refused (why)
//! Prepare (size)          -->                                      once for each size
//!                         <--   Prepared
//!            ... connections for data, each with an Opening ...
//!                         <--   Ready
//! Begin (how long)        -->                                      warm-up, then the measurement
//!                         <--   Begun
//!            ... data ...
//! End (messages sent)     -->        who has sent; with -b both
//!                         <--   Ended
//! Finish                  -->
//!                         <--   Finished (processor time, messages)
//! Bye                     -->
//! ```

use serde::{Deserialize, Serialize};

use super::{cpu::Cpu, kind::Kind};
use crate::failure::Failure;

/// Bytes of a message.
pub const MESSAGE_BYTES_MAX: usize = 1024;
/// The version of this protocol.
pub const VERSION: u16 = 2;
/// Most queues of an end.
const QUEUES_MAX: usize = flue_adapter::QUEUES_MAX as usize;
/// Bytes of an [`Opening`].
pub const OPENING_BYTES: usize = 24;
/// How an opening begins.
const MAGIC: [u8; 8] = *b"flueperf";
/// Characters of a refusal.
const REASON_CHARS_MAX: usize = 200;

/// Who a connection is: the private data of MPA's Request, or the first bytes of a TCP connection.
///
/// ```text
/// 0 "flueperf" | 8 be16 version | 10 be16 role | 12 be32 index | 16 be64 session
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opening {
    /// What it is for.
    pub role: Role,
    /// Which of the connections for data.
    pub index: u32,
    /// Drawn by the client.
    pub session: u64,
}

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Messages.
    Control,
    /// Data.
    Data,
}

impl Opening {
    /// As on the wire.
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

    /// From the wire.
    ///
    /// # Errors
    /// It is no opening, or one of another version.
    pub fn decode(octets: &[u8]) -> Result<Self, Failure> {
        let strange = || {
            let shown = octets[..octets.len().min(16)].escape_ascii();
            Failure::work(format!("the peer is not flue perf: it begins with \"{shown}\""))
        };
        let octets: &[u8; OPENING_BYTES] = octets.try_into().map_err(|_| strange())?;
        if octets[..MAGIC.len()] != MAGIC {
            return Err(strange());
        }
        let number = |at: usize| u16::from_be_bytes([octets[at], octets[at + 1]]);
        if number(8) != VERSION {
            let other = number(8);
            return Err(Failure::work(format!(
                "the peer speaks version {other} of flue perf's protocol, not {VERSION}"
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

/// What the client wants measured, but for sizes and times.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Parameters {
    /// What.
    pub kind: Kind,
    /// Connections for data: 1..=1024.
    pub connections: u32,
    /// Messages under way on each.
    pub depth: u32,
    /// Messages posted before the doorbell is rung.
    pub post_list: u32,
    /// Both ends send.
    pub bidirectional: bool,
    /// The server sends, not the client.
    pub reverse: bool,
    /// Largest message that will come.
    pub size_max_bytes: u64,
}

/// Registered memory of one end: where it begins, and its tokens. What lies where in it follows from the
/// parameters.
///
/// Each queue of the end has an adapter, with which the memory is registered under a token of its own. The client's
/// connection n is on its queue n modulo their number; on which queue the server has it, the server says in the private
/// data of MPA's Reply: one octet.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Memory {
    /// Address of the first byte.
    pub address: u64,
    /// The remote token of each queue: 1..=16.
    pub tokens: Vec<u32>,
}

impl Memory {
    /// What a peer may say.
    ///
    /// # Errors
    /// It has no queue, or more than there can be.
    pub fn check(self) -> Result<Self, Failure> {
        match self.tokens.len() {
            1..=QUEUES_MAX => Ok(self),
            count => Err(Failure::work(format!("the peer has memory of {count} queues"))),
        }
    }
}

/// How long a phase lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// So many messages from each end that sends.
    Iterations(u64),
    /// So many nanoseconds, and then what is under way.
    DurationNs(u64),
}

/// A message.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum Message {
    /// The client's first.
    Hello {
        /// What to measure.
        parameters: Parameters,
        /// Queue pairs: the client's memory.
        memory: Option<Memory>,
    },
    /// Go on.
    Welcome {
        /// Queue pairs: the server's memory.
        memory: Option<Memory>,
        /// Version of the server.
        version: String,
    },
    /// No.
    Refused {
        /// Why.
        reason: String,
    },
    /// New connections, for messages of this size.
    Prepare {
        /// Bytes.
        size_bytes: u64,
    },
    /// The connections may come.
    Prepared,
    /// They are there.
    Ready,
    /// Begin a phase.
    Begin {
        /// How long.
        bound: Bound,
    },
    /// Begun.
    Begun,
    /// The sender of this message has sent everything.
    End {
        /// Messages sent.
        messages: u64,
        /// Receives that they consume at the peer.
        receives: u64,
        /// Slots of memory that they have filled, from the first on.
        slots: u64,
    },
    /// All of it has arrived.
    Ended,
    /// How was it?
    Finish,
    /// So.
    Finished {
        /// Processor time of the phase.
        cpu: Cpu,
        /// Messages that the server has sent in it.
        messages: u64,
        /// What arrived at the server was compared with what was sent.
        verified: Option<bool>,
    },
    /// The end.
    Bye,
}

impl Message {
    /// As on the wire.
    pub fn encode(&self) -> Vec<u8> {
        // Numbers, strings and no map: it cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// From the wire.
    ///
    /// # Errors
    /// It is not a message.
    pub fn decode(octets: &[u8]) -> Result<Self, Failure> {
        let message: Self = serde_json::from_slice(octets).map_err(|error| {
            Failure::work(format!("the peer says what is no message of flue perf: {error}"))
        })?;
        match message {
            Self::Refused { reason } => Err(Failure::work(format!("the peer refuses: {reason}"))),
            message => Ok(message),
        }
    }

    /// A refusal.
    pub fn refusal(reason: &str) -> Self {
        // JSON writes a control character as six.
        let printable = reason.chars().filter(|character| !character.is_control());
        Self::Refused { reason: printable.take(REASON_CHARS_MAX).collect() }
    }

    /// The name of the message, to say what came instead of another.
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

    /// The failure of having got this message out of turn.
    pub fn out_of_turn(&self, expected: &str) -> Failure {
        Failure::work(format!("the peer says {} where {expected} is due", self.name()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_opening_comes_back(index: u32, session: u64, is_data: bool) {
            let role = if is_data { Role::Data } else { Role::Control };
            let opening = Opening { role, index, session };
            prop_assert_eq!(Opening::decode(&opening.encode()), Ok(opening));
        }

        #[test]
        fn any_octets_are_answered(octets in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(Opening::decode(&octets).is_err());
            prop_assert!(Message::decode(&octets).is_err());
        }
    }

    #[test]
    fn another_version_is_named() {
        let mut octets = Opening { role: Role::Control, index: 0, session: 1 }.encode();
        octets[9] = 7;
        assert!(Opening::decode(&octets).unwrap_err().message.contains("version 7"));
        octets[0] = b'F';
        assert!(Opening::decode(&octets).unwrap_err().message.contains("Flueperf"));
    }

    #[test]
    fn messages_fit_and_come_back() {
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
    fn a_refusal_is_a_failure_and_fits() {
        let octets = Message::refusal(&"\u{1}".repeat(5000)).encode();
        assert!(octets.len() <= MESSAGE_BYTES_MAX, "{}", octets.len());
        let failure = Message::decode(&Message::refusal("busy").encode()).unwrap_err();
        assert_eq!(failure.message, "the peer refuses: busy");
    }
}
