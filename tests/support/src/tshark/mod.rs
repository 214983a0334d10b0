//! Wireshark's dissection of a capture.
//!
//! tshark runs with the options that iWARP needs: heuristics before port numbers, reassembly of out-of-order
//! segments, verified checksums. The two dissectors that claim small Sends are disabled. The output format is
//! PDML, since JSON lacks the CRC status.
//!
//! Known limits of the dissector (4.0), which are not faults of a capture:
//! - The MPA Request and Reply must be in the capture, and a 4-tuple may occur only once in a file.
//! - FPDUs in the frame of the Request or Reply are not shown.
//! - Only RFC 5044 is supported. Revision 2 and the S bit (RFC 6581) cause a warning each, see
//!   [`KNOWN_REMARKS`].
//! - Markers in one direction are taken for markers in both.
//! - Of RFC 7306, atomics (opcodes 10 and 11) are supported; immediate data (8 and 9) is shown as "unknown".

mod conversation;
mod pdml;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::capture::{Flags, Segment};
use crate::needs::find_tool;
pub use conversation::Conversation;
use pdml::{Element, packets};

/// Options of every tshark run.
const OPTIONS: &[&str] = &[
    "-n",
    "-o",
    "tcp.try_heuristic_first:TRUE",
    "-o",
    "tcp.reassemble_out_of_order:TRUE",
    "-o",
    "tcp.check_checksum:TRUE",
    "-o",
    "ip.check_checksum:TRUE",
    "--disable-protocol",
    "rpcordma",
    "--disable-protocol",
    "smb_direct",
];

/// Remarks that a clean capture causes too: an orderly close, and the parts of RFC 6581 that Wireshark lacks.
pub const KNOWN_REMARKS: &[&str] = &[
    "This frame initiates the connection closing",
    "This frame undergoes the connection closing",
    "Res field is NOT set to zero as required by RFC 5044",
    "Rev field is NOT set to one as required by RFC 5044",
];

fn tshark(capture: &Path, more: &[&str]) -> String {
    let options: Vec<&str> = OPTIONS.iter().chain(more).copied().collect();
    // The user's preferences must not change the result.
    run(capture, Path::new("/nonexistent"), &options).0
}

/// Runs tshark on a capture with the profile `flue` of a configuration directory and no other preferences.
/// Returns its standard output and standard error, without the warning about running as root.
///
/// # Panics
///
/// If it fails.
pub fn with_profile(capture: &Path, config: &Path, more: &[&str]) -> (String, String) {
    let options: Vec<&str> = ["-n", "-C", "flue"].iter().chain(more).copied().collect();
    run(capture, config, &options)
}

fn run(capture: &Path, config: &Path, options: &[&str]) -> (String, String) {
    let mut command = Command::new(find_tool("tshark").expect("tshark is installed"));
    command.arg("-r").arg(capture).args(options).stdin(Stdio::null());
    command.env("WIRESHARK_CONFIG_DIR", config);
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} exited with {}: {stderr}", output.status);
    let said = stderr.lines().filter(|line| !line.starts_with("Running as user"));
    let said = said.collect::<Vec<_>>().join("\n");
    (String::from_utf8(output.stdout).expect("tshark prints UTF-8"), said)
}

/// Severity of an expert remark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// A comment by a user.
    Comment,
    /// Part of normal operation.
    Chat,
    /// Notable, such as a retransmission.
    Note,
    /// Problem, such as a lost segment.
    Warning,
    /// Broken, such as a malformed frame.
    Error,
}

/// Expert remark and its number of occurrences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// Severity.
    pub severity: Severity,
    /// Occurrences.
    pub count: u64,
    /// Wireshark's group, such as `Sequence`, `Checksum`, `Malformed`.
    pub group: String,
    /// Dissector that reported it, such as `TCP`.
    pub protocol: String,
    /// Text.
    pub summary: String,
}

/// All expert remarks on a capture.
pub fn remarks(capture: &Path) -> Vec<Remark> {
    parse_remarks(&tshark(capture, &["-q", "-z", "expert"]))
}

fn parse_remarks(table: &str) -> Vec<Remark> {
    let mut severity = None;
    let mut found = Vec::new();
    for line in table.lines() {
        severity = match line.split_once(" (").map(|(word, _)| word) {
            Some("Errors") => Some(Severity::Error),
            Some("Warns") => Some(Severity::Warning),
            Some("Notes") => Some(Severity::Note),
            Some("Chats") => Some(Severity::Chat),
            Some("Comments") => Some(Severity::Comment),
            _ => severity,
        };
        let mut words = line.split_whitespace();
        let count = words.next().and_then(|word| word.parse().ok());
        if let (Some(severity), Some(count)) = (severity, count) {
            let mut word = || words.next().unwrap_or_default().to_owned();
            let (group, protocol) = (word(), word());
            let summary = words.collect::<Vec<_>>().join(" ");
            found.push(Remark { severity, count, group, protocol, summary });
        }
    }
    found
}

/// Asserts that Wireshark reports no problem: no malformed frame, bad checksum, retransmission, gap,
/// reordering, zero window or reset. Remarks above a chat are accepted only if they are in [`KNOWN_REMARKS`] or
/// contain one of `allowed`.
///
/// # Panics
///
/// If there are other remarks; the message lists them.
pub fn assert_clean(capture: &Path, allowed: &[&str]) {
    let wrong = faults(capture, allowed);
    assert!(wrong.is_empty(), "Wireshark reports for {}: {wrong:#?}", capture.display());
}

/// Remarks that [`assert_clean`] does not accept.
pub fn faults(capture: &Path, allowed: &[&str]) -> Vec<Remark> {
    let known = |remark: &Remark| {
        KNOWN_REMARKS.iter().chain(allowed).any(|known| remark.summary.contains(known))
    };
    let grave = |remark: &Remark| {
        remark.severity >= Severity::Note || ["Malformed", "Checksum"].contains(&&*remark.group)
    };
    let mut wrong = remarks(capture);
    wrong.retain(|remark| grave(remark) && !known(remark));
    wrong
}

/// TCP segments of a capture as dissected by tshark, for comparison with
/// [`capture::segments`](crate::capture::segments).
pub fn segments(capture: &Path) -> Vec<Segment> {
    let fields = [
        "frame.number",
        "ip.src",
        "ipv6.src",
        "tcp.srcport",
        "ip.dst",
        "ipv6.dst",
        "tcp.dstport",
        "tcp.seq_raw",
        "tcp.ack_raw",
        "tcp.len",
        "tcp.flags",
        "tcp.window_size_value",
    ];
    let mut args = vec!["-Y", "tcp", "-T", "fields"];
    args.extend(fields.iter().flat_map(|field| ["-e", field]));
    let table = tshark(capture, &args);
    table.lines().map(|line| segment(line).unwrap_or_else(|| panic!("segment {line:?}"))).collect()
}

fn segment(line: &str) -> Option<Segment> {
    let columns: Vec<&str> = line.split('\t').collect();
    let &[frame, from4, from6, from_port, to4, to6, to_port, seq, ack, len, flags, window] =
        columns.as_slice()
    else {
        return None;
    };
    let address = |v4: &str, v6: &str, port: &str| -> Option<SocketAddr> {
        let ip: IpAddr = if v4.is_empty() { v6 } else { v4 }.parse().ok()?;
        Some((ip, port.parse().ok()?).into())
    };
    Some(Segment {
        frame: frame.parse().ok()?,
        from: address(from4, from6, from_port)?,
        to: address(to4, to6, to_port)?,
        seq: seq.parse().ok()?,
        ack: ack.parse().ok()?,
        payload_bytes: len.parse().ok()?,
        flags: Flags::from_octet((number(flags)? & 0xff) as u8),
        window: window.parse().ok()?,
    })
}

/// MPA frame of a connection, in the order of the capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pdu {
    /// Number of the frame that completes it, from 1.
    pub frame: usize,
    /// Wireshark's number of the TCP connection, from 0.
    pub connection: u32,
    /// TCP source port.
    pub source_port: u16,
    /// Kind and content.
    pub kind: PduKind,
}

/// Kinds of MPA frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PduKind {
    /// RFC 5044 §7.1.1, Request.
    Request(Startup),
    /// RFC 5044 §7.1.1, Reply.
    Reply(Startup),
    /// RFC 5044 §4.1.
    Fpdu(Fpdu),
}

/// MPA Request or Reply, RFC 5044 §7.1.1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Startup {
    /// M: the sender requires markers.
    pub markers: bool,
    /// C: the sender requires CRCs.
    pub crc: bool,
    /// R: the connection is refused.
    pub reject: bool,
    /// S of RFC 6581 §6, the highest of Wireshark's "reserved" bits.
    pub enhanced: bool,
    /// Revision.
    pub revision: u8,
    /// Private data, preceded by the enhanced data if `enhanced`.
    pub private_data: Vec<u8>,
}

/// CRC status according to Wireshark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crc {
    /// Equal to the computed CRC.
    Good,
    /// Different from the computed CRC.
    Bad,
    /// Not in use on this connection.
    Unused,
}

/// FPDU and its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fpdu {
    /// ULPDU_Length, bytes.
    pub ulpdu_length: u16,
    /// CRC status.
    pub crc: Crc,
    /// L bit of DDP.
    pub last: bool,
    /// DDP placement of the payload.
    pub buffer: BufferModel,
    /// RDMAP opcode, RFC 5040 §4.1.
    pub opcode: u8,
    /// Invalidate STag of a Send with Invalidate.
    pub invalidate_stag: Option<u32>,
    /// Body of a Read Request.
    pub read_request: Option<ReadRequest>,
    /// First three octets of a Terminate: layer and type, code, header control bits.
    pub terminate: Option<[u8; 3]>,
    /// Body of an Atomic Request or Response.
    pub atomic: Option<Atomic>,
    /// Headers returned by a Terminate.
    pub returned: Returned,
}

/// Headers that a Terminate returns, RFC 5040 §4.8.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Returned {
    /// DDP Segment Length.
    pub length: Option<u16>,
    /// Terminated DDP header.
    pub ddp: Vec<u8>,
    /// Terminated RDMA header.
    pub rdma: Vec<u8>,
}

/// DDP's two buffer models, RFC 5041 §4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferModel {
    /// Tagged.
    Tagged {
        /// Steering tag.
        stag: u32,
        /// Tagged offset.
        offset: u64,
    },
    /// Untagged.
    Untagged {
        /// Queue number.
        queue: u32,
        /// Message sequence number.
        msn: u32,
        /// Message offset.
        offset: u32,
    },
}

/// Read Request, RFC 5040 §4.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Data sink STag.
    pub sink_stag: u32,
    /// Data sink tagged offset.
    pub sink_offset: u64,
    /// Message size, bytes.
    pub size: u32,
    /// Data source STag.
    pub source_stag: u32,
    /// Data source tagged offset.
    pub source_offset: u64,
}

/// Atomic operation, RFC 7306 §5.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// FetchAdd request.
    FetchAdd {
        /// Request identifier.
        identifier: u32,
        /// Remote STag.
        stag: u32,
        /// Remote tagged offset.
        offset: u64,
        /// Add data and mask.
        operands: [u64; 2],
    },
    /// CmpSwap request.
    CompareSwap {
        /// Request identifier.
        identifier: u32,
        /// Remote STag.
        stag: u32,
        /// Remote tagged offset.
        offset: u64,
        /// Swap data and mask, compare data and mask.
        operands: [u64; 4],
    },
    /// Atomic Response.
    Response {
        /// Identifier of the request.
        identifier: u32,
        /// Original value.
        original: u64,
    },
}

/// RDMAP opcodes of RFC 5040 §4.1 and RFC 7306 §4.1, the values of [`Fpdu::opcode`].
pub mod opcode {
    /// RDMA Write.
    pub const WRITE: u8 = 0;
    /// RDMA Read Request.
    pub const READ_REQUEST: u8 = 1;
    /// RDMA Read Response.
    pub const READ_RESPONSE: u8 = 2;
    /// Send.
    pub const SEND: u8 = 3;
    /// Send with Invalidate.
    pub const SEND_INVALIDATE: u8 = 4;
    /// Send with Solicited Event.
    pub const SEND_SOLICITED: u8 = 5;
    /// Send with Solicited Event and Invalidate.
    pub const SEND_SOLICITED_INVALIDATE: u8 = 6;
    /// Terminate.
    pub const TERMINATE: u8 = 7;
    /// Immediate Data.
    pub const IMMEDIATE: u8 = 8;
    /// Immediate Data with Solicited Event.
    pub const IMMEDIATE_SOLICITED: u8 = 9;
    /// Atomic Request.
    pub const ATOMIC_REQUEST: u8 = 10;
    /// Atomic Response.
    pub const ATOMIC_RESPONSE: u8 = 11;
}

/// Every MPA frame of a capture, dissected.
///
/// # Panics
///
/// If tshark's output cannot be parsed; the message names the field and the frame.
pub fn pdus(capture: &Path) -> Vec<Pdu> {
    packets(&tshark(capture, PDUS)).iter().flat_map(packet_pdus).collect()
}

/// MPA frames of a capture, dissected by [`with_profile`].
///
/// # Panics
///
/// As [`pdus`].
pub fn pdus_with_profile(capture: &Path, config: &Path) -> Vec<Pdu> {
    packets(&with_profile(capture, config, PDUS).0).iter().flat_map(packet_pdus).collect()
}

/// tshark options that select the MPA frames of a capture.
const PDUS: &[&str] =
    &["-Y", "iwarp_mpa", "-T", "pdml", "-J", "frame tcp iwarp_mpa iwarp_ddp_rdmap"];

/// FPDUs of one connection among `pdus`, sent from one port.
pub fn fpdus(pdus: &[Pdu], connection: u32, source_port: u16) -> Vec<&Fpdu> {
    let ours =
        pdus.iter().filter(|pdu| pdu.connection == connection && pdu.source_port == source_port);
    ours.filter_map(|pdu| match &pdu.kind {
        PduKind::Fpdu(fpdu) => Some(fpdu),
        PduKind::Request(_) | PduKind::Reply(_) => None,
    })
    .collect()
}

/// Asserts that CRCs are in use and that Wireshark computes the same CRC for each FPDU of `pdus`.
///
/// # Panics
///
/// If the assertion fails, or there is no FPDU.
pub fn assert_crcs_good(pdus: &[Pdu]) {
    let mut fpdus = 0;
    for Pdu { frame, kind, .. } in pdus {
        if let PduKind::Fpdu(fpdu) = kind {
            assert_eq!(fpdu.crc, Crc::Good, "the CRC of an FPDU in frame {frame}: {fpdu:?}");
            fpdus += 1;
        }
    }
    assert!(fpdus > 0, "no FPDU in the capture");
}

fn packet_pdus(packet: &Element) -> Vec<Pdu> {
    let frame = packet.number("frame.number");
    let connection = packet.number("tcp.stream");
    let source_port = packet.number("tcp.srcport");
    let mut found: Vec<Pdu> = Vec::new();
    for (index, layer) in packet.children.iter().enumerate() {
        if layer.name != "iwarp_mpa" {
            continue;
        }
        let upper = packet.children[index + 1..].iter().find(|one| one.name.starts_with("iwarp_"));
        let kind = if let Some(request) = layer.find("iwarp_mpa.req") {
            PduKind::Request(startup(request))
        } else if let Some(reply) = layer.find("iwarp_mpa.rep") {
            PduKind::Reply(startup(reply))
        } else {
            let upper = upper.filter(|upper| upper.name == "iwarp_ddp_rdmap");
            let upper = upper.unwrap_or_else(|| panic!("frame {frame}: an FPDU without DDP"));
            PduKind::Fpdu(fpdu(layer, upper))
        };
        found.push(Pdu { frame, connection, source_port, kind });
    }
    found
}

fn startup(body: &Element) -> Startup {
    const S_AMONG_RESERVED: u8 = 0x10;
    Startup {
        markers: body.bit("iwarp_mpa.marker_flag"),
        crc: body.bit("iwarp_mpa.crc_flag"),
        reject: body.bit("iwarp_mpa.rej_flag"),
        enhanced: body.number::<u8>("iwarp_mpa.res") & S_AMONG_RESERVED != 0,
        revision: body.number("iwarp_mpa.rev"),
        private_data: body.find("iwarp_mpa.privatedata").map_or_else(Vec::new, Element::octets),
    }
}

fn fpdu(mpa: &Element, upper: &Element) -> Fpdu {
    let crc = match mpa.find("iwarp_mpa.crc_check") {
        None => Crc::Unused,
        Some(check) if check.showname.contains("Good CRC32") => Crc::Good,
        Some(_) => Crc::Bad,
    };
    let buffer = if upper.bit("iwarp_ddp.tagged_flag") {
        BufferModel::Tagged {
            stag: upper.number("iwarp_ddp.stag"),
            offset: upper.number("iwarp_ddp.tagged_offset"),
        }
    } else {
        BufferModel::Untagged {
            queue: upper.number("iwarp_ddp.qn"),
            msn: upper.number("iwarp_ddp.msn"),
            offset: upper.number("iwarp_ddp.mo"),
        }
    };
    Fpdu {
        ulpdu_length: mpa.number("iwarp_mpa.ulpdulength"),
        crc,
        last: upper.bit("iwarp_ddp.last_flag"),
        buffer,
        opcode: upper.number("iwarp_rdma.opcode"),
        invalidate_stag: upper.maybe_number("iwarp_rdma.inval_stag"),
        read_request: upper.find("iwarp_rdma.rr").map(read_request),
        terminate: upper.find("iwarp_rdma.terminate").map(terminate),
        atomic: atomic(upper),
        returned: returned(upper),
    }
}

/// Parses the returned headers: all fields, the length included, are octets.
fn returned(upper: &Element) -> Returned {
    let octets = |name| upper.find(name).map_or_else(Vec::new, Element::octets);
    let length = octets("iwarp_rdma.term_ddp_seg_len").first_chunk().copied();
    Returned {
        length: length.map(u16::from_be_bytes),
        ddp: octets("iwarp_rdma.term_ddp_h"),
        rdma: octets("iwarp_rdma.term_rdma_h"),
    }
}

fn atomic(upper: &Element) -> Option<Atomic> {
    let long = |name: &str| upper.number::<u64>(&format!("iwarp_rdma.atomic.{name}"));
    let short = |name: &str| upper.number::<u32>(&format!("iwarp_rdma.atomic.{name}"));
    if upper.find("iwarp_rdma.atomic.original_request_identifier").is_some() {
        let identifier = short("original_request_identifier");
        return Some(Atomic::Response { identifier, original: long("original_remote_data_value") });
    }
    upper.find("iwarp_rdma.atomic.opcode")?;
    let (identifier, stag) = (short("request_identifier"), short("remote_stag"));
    let offset = long("remote_tagged_offset");
    Some(match short("opcode") {
        0 => {
            let operands = ["add_data", "add_mask"].map(long);
            Atomic::FetchAdd { identifier, stag, offset, operands }
        }
        _ => {
            let operands = ["swap_data", "swap_mask", "compare_data", "compare_mask"].map(long);
            Atomic::CompareSwap { identifier, stag, offset, operands }
        }
    })
}

fn read_request(body: &Element) -> ReadRequest {
    ReadRequest {
        sink_stag: body.number("iwarp_rdma.sinkstag"),
        sink_offset: body.number("iwarp_rdma.sinkto"),
        size: body.number("iwarp_rdma.rdmardsz"),
        source_stag: body.number("iwarp_rdma.srcstag"),
        source_offset: body.number("iwarp_rdma.srcto"),
    }
}

/// Parses the control field of a Terminate. Wireshark names the fields after the assumed layer. Their octets
/// are in `unmaskedvalue` (bit fields) or `value`, in wire order.
fn terminate(body: &Element) -> [u8; 3] {
    let control = body.find("iwarp_rdma.term_ctrl").expect("a Terminate has its control field");
    let code = control.children.iter().find(|field| field.name.contains("term_errcode"));
    let octet = |field: Option<&Element>| {
        let octets = field.map(Element::octets).unwrap_or_default();
        *octets.first().expect("a Terminate has three octets")
    };
    [
        octet(control.find("iwarp_rdma.term_layer")),
        octet(code),
        octet(control.find("iwarp_rdma.term_hdrct_m")),
    ]
}

/// Decimal or `0x` hexadecimal, as tshark shows numbers.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expert_table_is_parsed() {
        let table = "\nErrors (2)\n=============\n   Frequency      Group           Protocol  Summary\n\
                     \x20          2 Malformed          IWARP_MPA  Malformed Packet (Exception occurred)\n\
                     \nNotes (1)\n=============\n   Frequency      Group           Protocol  Summary\n\
                     \x20          1   Sequence                TCP  Duplicate ACK (#1)\n";
        let remarks = parse_remarks(table);
        assert_eq!(remarks.len(), 2);
        assert_eq!(remarks[0].severity, Severity::Error);
        assert_eq!((remarks[0].count, &*remarks[0].group), (2, "Malformed"));
        assert_eq!(remarks[1].severity, Severity::Note);
        assert_eq!(remarks[1].summary, "Duplicate ACK (#1)");
    }
}
