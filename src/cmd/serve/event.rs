//! What is logged: a line of text, or a JSON object, for each event.

use std::{fmt, net::SocketAddr};

use rdma_over_tcp::ndk::{DisconnectReason, NdkResultEx, QpStats};
use serde::Serialize;

use super::offer::Offered;

/// Bytes of a message that are shown.
const SHOWN_BYTES: usize = 64;

/// An event.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// Peers may connect.
    Listening {
        /// Where.
        address: SocketAddr,
        /// What they are told.
        regions: Vec<Offered>,
    },
    /// A peer asks for a connection.
    Request {
        /// Counts from 1.
        connection: u64,
        /// Its address.
        peer: Option<SocketAddr>,
        /// Its private data, in hexadecimal.
        private_data: String,
        /// Reads and atomics of it that will be served at once.
        ird: u32,
    },
    /// Its first message has come.
    Established {
        /// Which.
        connection: u64,
    },
    /// A Send.
    Send {
        /// On which connection.
        connection: u64,
        /// Its length.
        bytes: u32,
        /// Its first bytes, in hexadecimal.
        data: String,
        /// The STag that it has invalidated.
        invalidated: Option<u32>,
    },
    /// Immediate data.
    Immediate {
        /// On which connection.
        connection: u64,
        /// In hexadecimal.
        data: String,
    },
    /// A request of ours, or a receive, has failed.
    Failed {
        /// On which connection.
        connection: u64,
        /// What it was.
        operation: String,
        /// Its status.
        status: String,
        /// The side that found the error, and the error, in words; null: it has none of its own.
        reason: Option<String>,
        /// Layer, type and code of the error as one number; 0: none.
        code: u32,
    },
    /// A Terminate.
    Terminate {
        /// On which connection.
        connection: u64,
        /// It is ours; else the peer's.
        sent: bool,
        /// Layer, type and code as one number; null: the peer's Terminate has none.
        code: Option<u32>,
        /// In words.
        reason: String,
    },
    /// A connection is over, or was not made.
    Ended {
        /// Which.
        connection: u64,
        /// In words.
        reason: String,
        /// As in NDK ([`DisconnectReason`]): 0 for an orderly end only.
        code: u32,
        /// What was counted.
        counters: Counters,
    },
}

/// What the adapter has counted of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Counters {
    /// FPDUs received.
    pub fpdus_in: u64,
    /// FPDUs sent.
    pub fpdus_out: u64,
    /// Sends and immediate data received.
    pub receives: u64,
    /// FPDUs of Writes that were placed.
    pub write_segments: u64,
    /// Reads answered.
    pub reads: u64,
    /// Atomics answered.
    pub atomics: u64,
}

impl From<&QpStats> for Counters {
    fn from(stats: &QpStats) -> Self {
        Self {
            fpdus_in: stats.fpdu_in,
            fpdus_out: stats.fpdu_out,
            receives: stats.receives,
            write_segments: stats.write_segments_placed,
            reads: stats.read_responses,
            atomics: stats.atomic_responses,
        }
    }
}

/// Octets in hexadecimal, as many as are shown.
pub fn hex(octets: &[u8]) -> String {
    octets.iter().take(SHOWN_BYTES).map(|octet| format!("{octet:02x}")).collect()
}

impl Event {
    /// A request or receive that has failed.
    pub fn failed(connection: u64, result: &NdkResultEx) -> Self {
        Self::Failed {
            connection,
            operation: result.operation.to_string(),
            status: result.status.to_string(),
            reason: result.error().map(|error| error.to_string()),
            code: result.provider_error_code,
        }
    }

    /// The Terminate of a connection with these counters, if there was one, that has ended for this reason.
    pub fn terminate(connection: u64, stats: &QpStats, reason: DisconnectReason) -> Option<Self> {
        let sent = stats.terminates_out > 0;
        let has_number = reason != DisconnectReason::TERMINATED_UNNUMBERED;
        (sent || stats.terminates_in > 0).then(|| Self::Terminate {
            connection,
            sent,
            code: has_number.then(|| reason.number().code()),
            reason: reason.to_string(),
        })
    }

    /// A line of the log.
    pub fn line(&self, is_json: bool) -> String {
        match is_json {
            // Numbers, strings and no map: it cannot fail.
            true => serde_json::to_string(self).unwrap_or_default(),
            false => self.to_string(),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listening { address, regions } => {
                write!(f, "listening: {address}")?;
                regions.iter().try_for_each(|region| write!(f, "\nregion: {region}"))
            }
            Self::Request { connection, peer, private_data, ird } => {
                write!(f, "{connection}: request")?;
                if let Some(peer) = peer {
                    write!(f, " of {peer}")?;
                }
                write!(f, ", IRD {ird}, private data \"{private_data}\"")
            }
            Self::Established { connection } => write!(f, "{connection}: established"),
            Self::Send { connection, bytes, data, invalidated } => {
                write!(f, "{connection}: Send of {bytes} bytes {data}")?;
                match invalidated {
                    Some(stag) => write!(f, ", invalidates {stag:#010x}"),
                    None => Ok(()),
                }
            }
            Self::Immediate { connection, data } => {
                write!(f, "{connection}: immediate data {data}")
            }
            Self::Failed { connection, operation, status, reason, code: _ } => {
                write!(f, "{connection}: {operation} failed: {status}")?;
                reason.iter().try_for_each(|reason| write!(f, ": {reason}"))
            }
            Self::Terminate { connection, sent, code: _, reason } => {
                let way = if *sent { "sent" } else { "received" };
                write!(f, "{connection}: Terminate {way}: {reason}")
            }
            Self::Ended { connection, reason, code: _, counters } => {
                let Counters { fpdus_in, fpdus_out, receives, write_segments, reads, atomics } =
                    counters;
                write!(
                    f,
                    "{connection}: ended: {reason}; FPDUs {fpdus_in} in, {fpdus_out} out; receives {receives}, \
                     segments of Writes {write_segments}, Reads {reads}, atomics {atomics}"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rdma_over_tcp::ndk::{NtStatus, OperationType};

    use super::*;

    #[test]
    fn events_are_lines_of_text_or_json() {
        let event = Event::Send {
            connection: 2,
            bytes: 3,
            data: hex(&[1, 0xab, 0]),
            invalidated: Some(0x1234),
        };
        assert_eq!(event.line(false), "2: Send of 3 bytes 01ab00, invalidates 0x00001234");
        let json: serde_json::Value = serde_json::from_str(&event.line(true)).unwrap();
        assert_eq!((&json["event"], &json["invalidated"]), (&"send".into(), &0x1234.into()));
        assert_eq!(hex(&[7; 100]).len(), 2 * SHOWN_BYTES);
    }

    #[test]
    fn terminates_are_told_with_their_direction() {
        let none = QpStats::default();
        assert_eq!(Event::terminate(1, &none, DisconnectReason(0x206)), None);
        let out = QpStats { terminates_out: 1, ..none };
        let told = Event::terminate(1, &out, DisconnectReason(0x206)).unwrap().to_string();
        assert!(told.starts_with("1: Terminate sent: this side found an error: RDMAP"), "{told}");
        let received = QpStats { terminates_in: 1, ..none };
        let told = Event::terminate(1, &received, DisconnectReason(0x3_1101)).unwrap();
        assert!(matches!(told, Event::Terminate { sent: false, code: Some(0x1101), .. }));
        let unnumbered = DisconnectReason::TERMINATED_UNNUMBERED;
        let told = Event::terminate(1, &received, unnumbered).unwrap();
        assert!(matches!(told, Event::Terminate { sent: false, code: None, .. }));
    }

    #[test]
    fn errors_are_told_in_words() {
        let receive = NdkResultEx {
            status: NtStatus::BUFFER_OVERFLOW,
            provider_error_code: 0x1205,
            ..NdkResultEx::default()
        };
        let told = Event::failed(1, &receive).to_string();
        let words = "this side found an error: DDP, untagged buffer error: message is longer";
        assert!(told.contains(words) && told.contains("(0x80000005)"), "{told}");
        let send = NdkResultEx { operation: OperationType::Send, ..receive };
        let told = Event::failed(1, &send).to_string();
        assert!(told.contains("the peer found an error") && told.contains("1/2/05"), "{told}");
        let local = NdkResultEx { provider_error_code: 0, ..receive };
        assert!(Event::failed(1, &local).to_string().ends_with(&local.status.to_string()));
    }
}
