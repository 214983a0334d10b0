//! Error numbers of Terminate messages, in one table.
//!
//! Layers, types and codes of RFC 5040 §4.8, RFC 5041 §7.2, RFC 5044 §8, RFC 6581 §8 and RFC 7306 §8. Each has a name,
//! a text and the side at fault. All errors of MPA, DDP and RDMAP map to a [`WireError`], so this module is below the
//! three and imports none of them. Terminates, logs and completions take names and texts from here.

use core::fmt;

/// Layer, error type and error code as encoded in a Terminate header, known or unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ErrorNumber {
    /// Layer: 0 RDMAP, 1 DDP, 2 LLP (MPA over TCP); 0..=15 on the wire.
    pub layer: u8,
    /// Error type within the layer, 0..=15.
    pub etype: u8,
    /// Error code within the type, 0..=255.
    pub code: u8,
}

impl ErrorNumber {
    /// Returns the number with layer and type exchanged. Senders with the wrong bit-field order encode it this way.
    pub(crate) const fn swapped(self) -> Self {
        Self { layer: self.etype, etype: self.layer, code: self.code }
    }

    /// Returns layer, type and code as one number, `0xLTCC`.
    #[inline]
    pub const fn code(self) -> u32 {
        let Self { layer, etype, code } = self;
        u32::from_be_bytes([0, 0, layer << 4 | etype & 0x0f, code])
    }

    /// Returns [`ErrorNumber::code`] for a field in which 0 means no error: 0/0/00 is [`ErrorNumber::ZERO_CODE`].
    #[inline]
    pub const fn nonzero_code(self) -> u32 {
        match self.code() {
            0 => Self::ZERO_CODE,
            code => code,
        }
    }

    /// Returns the number of a code; the upper 16 bits are ignored.
    pub const fn from_code(code: u32) -> Self {
        let [_, _, kind, code] = code.to_be_bytes();
        Self { layer: kind >> 4, etype: kind & 0x0f, code }
    }

    /// Code of 0/0/00 in fields where 0 means no error.
    pub const ZERO_CODE: u32 = 0x8_0000;

    /// Returns the table's entry for this number.
    pub fn known(self) -> Option<WireError> {
        WireError::from_number(self)
    }
}

impl fmt::Display for ErrorNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layer, etype, code } = self;
        write!(f, "{layer}/{etype}/{code:02x}")
    }
}

/// Side at fault, as seen by the side that detects the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The peer, or the path from it, violated a protocol rule.
    PeerViolated,
    /// The peer complies with the protocol but requires something that this side does not support.
    PeerIncompatible,
    /// Failure of this side.
    Local,
}

/// Position in the peer's stream at which its FIN cut it off. MPA treats such a FIN as a connection loss
/// ([`WireError::MpaConnectionLost`]). Only a FIN after a whole message is an orderly close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Truncation {
    /// Within an FPDU.
    Fpdu,
    /// Between two FPDUs of a message, before the one with the last segment.
    Message,
}

/// Cause of a connection loss reported by TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    /// The peer reset the connection.
    Reset,
    /// The peer does not respond: no acknowledgment of data or of a FIN, and no response to keep-alive probes.
    NoAnswer,
    /// The local device was lost.
    Device,
    /// Another cause, on this side.
    Other,
}

/// Cause of the end of an established connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// Error detected by this side, which reports it to the peer.
    Detected(ErrorNumber),
    /// Error detected by the peer and reported in a Terminate.
    Terminated(ErrorNumber),
    /// Error detected by the peer, whose Terminate is too short to hold a number.
    TerminatedUnnumbered,
    /// The peer's FIN arrived too early.
    Truncated(Truncation),
    /// TCP lost the connection.
    Lost(Loss),
    /// A completion queue of the queue pair overran.
    CqOverrun,
}

/// Display form of an error number: layer, type, the error's text, and the number.
#[derive(Clone, Copy, Debug)]
pub struct ErrorText(pub ErrorNumber);

impl fmt::Display for ErrorText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number) = self;
        let kind = match (number.layer, number.etype) {
            (0, 0) => "RDMAP, local catastrophic error",
            (0, 1) => "RDMAP, remote protection error",
            (0, 2) => "RDMAP, remote operation error",
            (0, _) => "RDMAP",
            (1, 0) => "DDP, local catastrophic error",
            (1, 1) => "DDP, tagged buffer error",
            (1, 2) => "DDP, untagged buffer error",
            (1, _) => "DDP",
            (2, _) => "MPA",
            _ => "unknown layer",
        };
        match number.known() {
            Some(error) => write!(f, "{kind}: {} ({number})", error.text()),
            None => write!(f, "{kind}: unknown error ({number})"),
        }
    }
}

impl fmt::Display for EndReason {
    /// Writes the side that detected the error, and the error.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lost = |f: &mut fmt::Formatter<'_>, text| {
            write!(f, "{text} ({})", WireError::MpaConnectionLost.number())
        };
        match self {
            Self::Detected(number) => {
                write!(f, "error detected by this side: {}", ErrorText(*number))
            }
            Self::Terminated(number) => {
                write!(f, "error reported by the peer: {}", ErrorText(*number))
            }
            Self::TerminatedUnnumbered => {
                f.write_str("error reported by the peer: Terminate without an error number")
            }
            Self::Truncated(Truncation::Fpdu) => {
                lost(f, "MPA: the peer's FIN arrived within an FPDU")
            }
            Self::Truncated(Truncation::Message) => {
                lost(f, "RDMAP: the peer's FIN arrived within a message")
            }
            Self::Lost(Loss::Reset) => lost(f, "TCP: connection reset by peer"),
            Self::Lost(Loss::NoAnswer) => {
                lost(f, "TCP: no response from the peer to retransmissions or keep-alive probes")
            }
            Self::Lost(Loss::Device) => lost(f, "device of this side: removed"),
            Self::Lost(Loss::Other) => lost(f, "TCP: connection lost on this side"),
            Self::CqOverrun => f.write_str("error detected by this side: completion queue overrun"),
        }
    }
}

macro_rules! wire_errors {
    ($($name:ident = $layer:literal / $etype:literal / $code:literal, $fault:ident, $text:literal;)*) => {
        /// Error with a number of its own on the wire.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum WireError {
            $(
                #[doc = concat!(stringify!($layer), "/", stringify!($etype), "/", stringify!($code), ": ", $text, ".")]
                $name,
            )*
        }

        impl WireError {
            /// All entries of the table.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Returns layer, type and code.
            pub const fn number(self) -> ErrorNumber {
                match self {
                    $(Self::$name => ErrorNumber { layer: $layer, etype: $etype, code: $code },)*
                }
            }

            /// Returns the name of the variant.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            /// Returns a short description of the error.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// Returns the side at fault.
            pub const fn fault(self) -> Fault {
                match self {
                    $(Self::$name => Fault::$fault,)*
                }
            }
        }
    };
}

wire_errors! {
    RdmapLocalCatastrophic       = 0/0/0x00, Local,            "RDMAP failed locally";
    ProtectionInvalidStag        = 0/1/0x00, PeerViolated,     "STag of a Read or Atomic Request is not valid";
    ProtectionBounds             = 0/1/0x01, PeerViolated,     "Read or Atomic Request exceeds its buffer";
    ProtectionAccess             = 0/1/0x02, PeerViolated,     "buffer does not permit the Read or Atomic Request";
    ProtectionNotAssociated      = 0/1/0x03, PeerViolated,     "STag of a request belongs to another stream or PD";
    ProtectionWrap               = 0/1/0x04, PeerViolated,     "offset of a Read or Atomic Request wraps around";
    ProtectionCannotInvalidate   = 0/1/0x09, PeerViolated,     "STag to invalidate belongs to another stream or PD";
    ProtectionUnspecified        = 0/1/0xff, PeerViolated,     "unspecified remote protection error";
    OperationVersion             = 0/2/0x05, PeerIncompatible, "RDMAP version is not 1";
    OperationUnexpectedOpcode    = 0/2/0x06, PeerViolated,     "opcode is unknown or not valid in this segment";
    OperationStreamCatastrophic  = 0/2/0x07, PeerViolated,     "stream failed: more Reads than IRD, unaligned atomic";
    OperationGlobalCatastrophic  = 0/2/0x08, Local,            "RDMAP failed on all streams";
    OperationCannotInvalidate    = 0/2/0x09, PeerViolated,     "STag to invalidate does not exist";
    OperationUnspecified         = 0/2/0xff, PeerViolated,     "unspecified remote operation error";
    DdpLocalCatastrophic         = 1/0/0x00, Local,            "DDP failed locally";
    TaggedInvalidStag            = 1/1/0x00, PeerViolated,     "STag of a tagged segment is not valid or not writable";
    TaggedBounds                 = 1/1/0x01, PeerViolated,     "tagged segment exceeds its buffer";
    TaggedNotAssociated          = 1/1/0x02, PeerViolated,     "STag belongs to another stream or PD";
    TaggedWrap                   = 1/1/0x03, PeerViolated,     "tagged offset wraps around";
    TaggedVersion                = 1/1/0x04, PeerIncompatible, "DDP version of a tagged segment is not 1";
    UntaggedQueue                = 1/2/0x01, PeerViolated,     "queue number is not valid for the message";
    UntaggedNoBuffer             = 1/2/0x02, PeerViolated,     "no buffer is posted for the message";
    UntaggedMsn                  = 1/2/0x03, PeerViolated,     "message sequence number is out of range";
    UntaggedOffset               = 1/2/0x04, PeerViolated,     "message offset is not the expected one";
    UntaggedTooLong              = 1/2/0x05, PeerViolated,     "message is longer than its buffer";
    UntaggedVersion              = 1/2/0x06, PeerIncompatible, "DDP version of an untagged segment is not 1";
    MpaConnectionLost            = 2/0/0x01, PeerViolated,     "TCP connection is closed, lost, reset or timed out";
    MpaCrc                       = 2/0/0x02, PeerViolated,     "CRC of an FPDU does not match";
    MpaMarker                    = 2/0/0x03, PeerViolated,     "marker mismatch, or ULPDU shorter than its header";
    MpaStartup                   = 2/0/0x04, PeerViolated,     "MPA Request or Reply is not valid";
    MpaLocalCatastrophic         = 2/0/0x05, Local,            "MPA failed locally during start-up";
    MpaInsufficientIrd           = 2/0/0x06, PeerIncompatible, "ORD of the peer exceeds the IRD";
    MpaNoMatchingRtr             = 2/0/0x07, PeerIncompatible, "no RTR message supported by both sides";
}

impl WireError {
    /// Returns the table's entry for a number. Any code of RDMAP's local catastrophic type (0/0) is one error, since
    /// RFC 5040 §4.8 assigns it no codes.
    pub fn from_number(number: ErrorNumber) -> Option<Self> {
        if (number.layer, number.etype) == (0, 0) {
            return Some(Self::RdmapLocalCatastrophic);
        }
        Self::ALL.iter().copied().find(|known| known.number() == number)
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.text(), self.number())
    }
}

impl core::error::Error for WireError {}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    // DDP-7.2-1, MPE-8-1, RDM-4.8-1: numbers are unique, and each maps back to its error.
    #[test]
    fn numbers_are_unique() {
        for (at, error) in WireError::ALL.iter().enumerate() {
            assert_eq!(WireError::from_number(error.number()), Some(*error));
            assert!(WireError::ALL[..at].iter().all(|other| other.number() < error.number()));
        }
    }

    #[test]
    fn unknown_numbers_stay_numbers() {
        for (layer, etype, code) in [(0, 1, 5), (1, 3, 0), (2, 1, 2), (2, 0, 8), (15, 15, 255)] {
            let number = ErrorNumber { layer, etype, code };
            assert_eq!(number.known(), None, "{number}");
        }
        let number = ErrorNumber { layer: 0, etype: 0, code: 77 };
        assert_eq!(number.known(), Some(WireError::RdmapLocalCatastrophic));
    }

    #[test]
    fn display_has_text_and_number() {
        assert_eq!(WireError::MpaCrc.to_string(), "CRC of an FPDU does not match (2/0/02)");
    }
}
