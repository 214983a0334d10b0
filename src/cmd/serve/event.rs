//! Log of the server: one line of text or one JSON object per event.

use std::{fmt, net::SocketAddr};

use rdma_over_tcp::ndk::{DisconnectReason, NdkResultEx, QpStats};
use serde::Serialize;

use super::offer::Offered;
use crate::report;

/// Name of the schema of the events.
pub const NAME: &str = "serve";

/// Largest number of message bytes in the log.
const SHOWN_BYTES: usize = 64;

/// Line of the log in JSON.
#[derive(Serialize)]
struct Line<'a> {
    schema: String,
    #[serde(flatten)]
    event: &'a Event,
}

/// Event of the server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// The server is listening.
    Listening {
        /// Local address.
        address: SocketAddr,
        /// Text of the local address.
        #[serde(skip)]
        shown: String,
        /// Regions announced to peers.
        regions: Vec<Offered>,
    },
    /// A peer requests a connection.
    Request {
        /// Connection number, from 1.
        connection: u64,
        /// Address of the peer.
        peer: Option<SocketAddr>,
        /// Private data of the request, hexadecimal.
        private_data: String,
        /// IRD: outstanding Reads and atomics accepted from the peer.
        ird: u32,
    },
    /// The first message of the peer has arrived.
    Established {
        /// Connection number.
        connection: u64,
    },
    /// A Send was received.
    Send {
        /// Connection number.
        connection: u64,
        /// Length, bytes.
        bytes: u32,
        /// First bytes, hexadecimal.
        data: String,
        /// STag invalidated by the Send.
        invalidated: Option<u32>,
    },
    /// Immediate data was received.
    Immediate {
        /// Connection number.
        connection: u64,
        /// Immediate data, hexadecimal.
        data: String,
    },
    /// A local request or receive failed.
    Failed {
        /// Connection number.
        connection: u64,
        /// Operation type.
        operation: String,
        /// Completion status.
        status: String,
        /// Text with the error and the side that detected it; null if the connection has no error of its own.
        reason: Option<String>,
        /// Layer, type and code of the error as one number; 0: none.
        code: u32,
    },
    /// A Terminate was sent or received.
    Terminate {
        /// Connection number.
        connection: u64,
        /// True if sent, false if received.
        sent: bool,
        /// Layer, type and code as one number; null: the peer's Terminate has none.
        code: Option<u32>,
        /// Text of the reason.
        reason: String,
    },
    /// A connection has ended, or was not established.
    Ended {
        /// Connection number.
        connection: u64,
        /// Text of the reason.
        reason: String,
        /// NDK code ([`DisconnectReason`]): 0 only for a graceful disconnect.
        code: u32,
        /// Counters of the connection.
        counters: Counters,
    },
}

/// Counters of a connection, from the adapter.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Counters {
    /// FPDUs received.
    pub fpdus_in: u64,
    /// FPDUs sent.
    pub fpdus_out: u64,
    /// Sends and immediate data received.
    pub receives: u64,
    /// FPDUs of placed Writes.
    pub write_segments: u64,
    /// Reads served.
    pub reads: u64,
    /// Atomics served.
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

/// Returns bytes in hexadecimal, limited to 64 bytes (`SHOWN_BYTES`).
pub fn hex(octets: &[u8]) -> String {
    octets.iter().take(SHOWN_BYTES).map(|octet| format!("{octet:02x}")).collect()
}

impl Event {
    /// Returns the event of a failed request or receive.
    pub fn failed(connection: u64, result: &NdkResultEx) -> Self {
        Self::Failed {
            connection,
            operation: result.operation.to_string(),
            status: result.status.to_string(),
            reason: result.error().map(|error| error.to_string()),
            code: result.provider_error_code,
        }
    }

    /// Returns the event for a Terminate, if one was sent or received, of a connection with these counters and
    /// disconnect reason.
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

    /// Returns the line of the log.
    pub fn line(&self, is_json: bool) -> String {
        match is_json {
            // Cannot fail: numbers and strings, no map.
            true => {
                let line = Line { schema: report::schema(NAME), event: self };
                serde_json::to_string(&line).unwrap_or_default()
            }
            false => self.to_string(),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listening { address: _, shown, regions } => {
                write!(f, "listening: {shown}")?;
                regions.iter().try_for_each(|region| write!(f, "\nregion: {region}"))
            }
            Self::Request { connection, peer, private_data, ird } => {
                write!(f, "{connection}: request")?;
                if let Some(peer) = peer {
                    write!(f, " from {peer}")?;
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
        assert_eq!(json["schema"], "flue.serve/1");
        assert_eq!((&json["event"], &json["invalidated"]), (&"send".into(), &0x1234.into()));
        assert_eq!(hex(&[7; 100]).len(), 2 * SHOWN_BYTES);
    }

    #[test]
    fn terminate_is_logged_with_direction() {
        let none = QpStats::default();
        assert_eq!(Event::terminate(1, &none, DisconnectReason(0x206)), None);
        let out = QpStats { terminates_out: 1, ..none };
        let text = Event::terminate(1, &out, DisconnectReason(0x206)).unwrap().to_string();
        assert!(
            text.starts_with("1: Terminate sent: error detected by this side: RDMAP"),
            "{text}"
        );
        let received = QpStats { terminates_in: 1, ..none };
        let text = Event::terminate(1, &received, DisconnectReason(0x3_1101)).unwrap();
        assert!(matches!(text, Event::Terminate { sent: false, code: Some(0x1101), .. }));
        let unnumbered = DisconnectReason::TERMINATED_UNNUMBERED;
        let text = Event::terminate(1, &received, unnumbered).unwrap();
        assert!(matches!(text, Event::Terminate { sent: false, code: None, .. }));
    }

    #[test]
    fn errors_are_logged_as_text() {
        let receive = NdkResultEx {
            status: NtStatus::BUFFER_OVERFLOW,
            provider_error_code: 0x1205,
            ..NdkResultEx::default()
        };
        let text = Event::failed(1, &receive).to_string();
        let words = "error detected by this side: DDP, untagged buffer error: message is longer";
        assert!(text.contains(words) && text.contains("(0x80000005)"), "{text}");
        let send = NdkResultEx { operation: OperationType::Send, ..receive };
        let text = Event::failed(1, &send).to_string();
        assert!(text.contains("error reported by the peer") && text.contains("1/2/05"), "{text}");
        let local = NdkResultEx { provider_error_code: 0, ..receive };
        assert!(Event::failed(1, &local).to_string().ends_with(&local.status.to_string()));
    }
}
