//! Variables of a connection with the names, order and units of `ss -i`: times in milliseconds, congestion windows in
//! segments, rates in bits per second. As in ss, zero and unknown values are omitted.

use std::fmt::Write;

use flue_adapter::word;
use host_stack::stream::OffloadState;

use super::listing::{Listed, Row};
use crate::{
    control::{
        message::NodeName,
        record::{BufferMemory, QueuePairCounters, Record, TcpInfo, Timer, TimerKind},
    },
    units::format_rate,
};

/// Returns the pending timers in the format of `ss -o`.
pub(super) fn timers(record: &Record) -> String {
    let mut words = Fields(String::new());
    for Timer { kind, left_ms, count } in record.timers.iter().flatten() {
        let name = match kind {
            TimerKind::Retransmit => "on",
            TimerKind::KeepAlive => "keepalive",
            TimerKind::TimeWait => "timewait",
            TimerKind::Persist => "persist",
        };
        words.put("timer", format_args!("({name},{},{count})", left(*left_ms)));
    }
    words.0
}

/// Returns the owner of a connection: user and inode as `ss -e`, program and process, node and handle.
pub(super) fn owner(listed: &Listed, node: &NodeName, row: &Row) -> String {
    let mut words = Fields(String::new());
    if let Some(uid) = listed.uid {
        words.put("uid", uid);
    }
    if let Some(inode) = row.inode {
        words.put("ino", inode);
    }
    if let Some(program) = &listed.program {
        words.put("program", program);
    }
    words.put("pid", node.pid);
    words.put("node", &node.tap);
    words.put("handle", row.record.handle);
    words.0
}

/// Returns the memory in the format of `ss -m`. Values that only the kernel has are omitted for offloaded connections.
pub(super) fn memory(record: &Record) -> String {
    let Some(memory) = &record.memory else { return String::new() };
    let BufferMemory {
        receive_bytes,
        receive_max_bytes,
        send_bytes,
        send_max_bytes,
        transmit_bytes,
        forward_bytes,
        options_bytes,
        backlog_bytes,
        drops,
    } = *memory;
    let values = [
        ("r", Some(receive_bytes)),
        ("rb", Some(receive_max_bytes)),
        ("t", transmit_bytes),
        ("tb", Some(send_max_bytes)),
        ("f", forward_bytes),
        ("w", Some(send_bytes)),
        ("o", options_bytes),
        ("bl", backlog_bytes),
        ("d", drops),
    ];
    let values = values.into_iter().filter_map(|(name, value)| Some(format!("{name}{}", value?)));
    format!("skmem:({})", values.collect::<Vec<_>>().join(","))
}

/// Formats a time as the timers of ss: minutes, seconds or milliseconds, or the two largest of them.
fn left(millis: u64) -> String {
    let (minutes, seconds, rest) = (millis / 60_000, millis / 1000 % 60, millis % 1000);
    match (minutes, seconds) {
        (10.., _) | (1.., 0) => format!("{minutes}min"),
        (1.., _) => format!("{minutes}min{seconds}sec"),
        (0, 0) => format!("{rest:03}ms"),
        (0, 1..=9) if rest > 0 => format!("{seconds}.{rest:03}ms"),
        (0, _) => format!("{seconds}sec"),
    }
}

/// Returns the line below a connection.
pub(super) fn of(record: &Record, node: &NodeName) -> String {
    let mut words = Fields(String::new());
    if let Some(info) = &record.info {
        words.options(info);
        // The kernel selects the congestion control of its sockets.
        if record.offload_state != OffloadState::Kernel {
            words.word(&word(node.congestion_control));
        }
        words.variables(info);
    }
    words.moves(record);
    words.0
}

struct Fields(String);

impl Fields {
    fn word(&mut self, word: &str) {
        if !self.0.is_empty() {
            self.0.push(' ');
        }
        self.0.push_str(word);
    }

    fn put(&mut self, name: &str, value: impl std::fmt::Display) {
        self.word(name);
        // Writing to a string cannot fail.
        let _ = write!(self.0, ":{value}");
    }

    fn count(&mut self, name: &str, value: u64) {
        if value > 0 {
            self.put(name, value);
        }
    }

    fn options(&mut self, info: &TcpInfo) {
        for (word, agreed) in [
            ("ts", info.timestamps),
            ("sack", info.sack),
            ("ecn", info.ecn),
            ("ecnseen", info.ce_received_segs.is_some_and(|count| count > 0)),
        ] {
            if agreed {
                self.word(word);
            }
        }
    }

    fn variables(&mut self, info: &TcpInfo) {
        if let Some((theirs, ours)) = info.wscale {
            self.put("wscale", format_args!("{theirs},{ours}"));
        }
        self.put("rto", millis(info.rto_ns));
        if let (Some(rtt), Some(variance)) = (info.rtt_ns, info.rttvar_ns) {
            self.put("rtt", format_args!("{}/{}", millis(rtt), millis(variance)));
        }
        self.put("mss", info.snd_mss_bytes);
        self.put("pmtu", info.pmtu_bytes);
        self.count("rcvmss", info.rcv_mss_bytes);
        self.put("advmss", info.advmss_bytes);
        let segments = |bytes: u64| bytes / info.snd_mss_bytes.max(1);
        self.put("cwnd", segments(info.snd_cwnd_bytes));
        if let Some(threshold) = info.snd_ssthresh_bytes {
            self.put("ssthresh", segments(threshold));
        }
        self.count("bytes_sent", info.bytes_sent);
        self.count("bytes_retrans", info.bytes_retrans);
        self.count("bytes_acked", info.bytes_acked);
        self.count("bytes_received", info.bytes_received);
        self.count("segs_out", info.segs_out);
        self.count("segs_in", info.segs_in);
        if let Some(rtt) = info.rtt_ns.filter(|rtt| *rtt > 0) {
            let rate = info.snd_cwnd_bytes as f64 * 8e9 / rtt as f64;
            self.word(&format!("send {}", bits(rate)));
        }
        for (word, since) in [
            ("lastsnd", info.last_data_sent_ns),
            ("lastrcv", info.last_data_recv_ns),
            ("lastack", info.last_ack_recv_ns),
        ] {
            if let Some(since) = since {
                self.put(word, since / 1_000_000);
            }
        }
        if let Some(rate) = info.pacing_rate_bps {
            self.word(&format!("pacing_rate {}", bits(rate as f64)));
        }
        self.recovery(info);
    }

    fn recovery(&mut self, info: &TcpInfo) {
        if info.busy_time_ns > 0 {
            self.put("busy", format_args!("{}ms", info.busy_time_ns / 1_000_000));
        }
        if info.rwnd_limited_ns > 0 {
            let (limited, busy) = (info.rwnd_limited_ns, info.busy_time_ns.max(1));
            let percent = limited as f64 * 100.0 / busy as f64;
            let limited = limited / 1_000_000;
            self.put("rwnd_limited", format_args!("{limited}ms({percent:.1}%)"));
        }
        self.count("unacked", info.unacked_segs);
        if info.retrans_segs > 0 || info.total_retrans_segs > 0 {
            let (now, ever) = (info.retrans_segs, info.total_retrans_segs);
            self.put("retrans", format_args!("{now}/{ever}"));
        }
        self.count("lost", info.lost_segs);
        self.count("sacked", info.sacked_segs);
        self.count("dsack_dups", info.dsack_dups);
        self.count("reord_seen", info.reord_seen);
        if let Some(rtt) = info.rcv_rtt_ns {
            self.put("rcv_rtt", millis(rtt));
        }
        self.count("rcv_space", info.rcv_space_bytes);
        if let Some(rtt) = info.min_rtt_ns {
            self.put("minrtt", millis(rtt));
        }
        self.count("snd_wnd", info.snd_wnd_bytes.unwrap_or(0));
        self.count("rcv_wnd", info.rcv_wnd_bytes.unwrap_or(0));
    }

    /// Adds the counters of the queue pair: messages and bytes by kind, and FPDUs.
    fn rdma(&mut self, counters: &QueuePairCounters) {
        let QueuePairCounters {
            outstanding,
            receives_posted,
            sends,
            send_bytes,
            writes,
            write_bytes,
            reads,
            read_bytes,
            atomics,
            immediates,
            receives,
            receive_bytes,
            writes_placed,
            write_bytes_placed,
            write_segments_placed,
            read_responses,
            read_response_bytes,
            atomic_responses,
            fpdus_sent,
            fpdus_received,
            requests_flushed,
            terminates_sent,
            terminates_received,
        } = *counters;
        for (name, count) in [
            ("outstanding", outstanding),
            ("receives_posted", receives_posted),
            ("sends", sends),
            ("send_bytes", send_bytes),
            ("writes", writes),
            ("write_bytes", write_bytes),
            ("reads", reads),
            ("read_bytes", read_bytes),
            ("atomics", atomics),
            ("immediates", immediates),
            ("receives", receives),
            ("receive_bytes", receive_bytes),
            ("writes_placed", writes_placed),
            ("write_bytes_placed", write_bytes_placed),
            ("write_segments_placed", write_segments_placed),
            ("read_responses", read_responses),
            ("read_response_bytes", read_response_bytes),
            ("atomic_responses", atomic_responses),
            ("fpdus_out", fpdus_sent),
            ("fpdus_in", fpdus_received),
            ("flushed", requests_flushed),
            ("terminates_out", terminates_sent),
            ("terminates_in", terminates_received),
        ] {
            self.count(name, count);
        }
    }

    /// Adds the variables that ss does not have: the migrations of the connection.
    fn moves(&mut self, record: &Record) {
        if record.is_listener() {
            return;
        }
        if let Some(qp) = record.qp {
            self.put("qp", qp);
        }
        if let Some(peer_qp) = record.peer_qp {
            self.put("peer_qp", peer_qp);
        }
        if let Some(rdma) = &record.rdma {
            self.rdma(rdma);
        }
        self.put("offloads", record.offloads);
        self.put("uploads", record.uploads);
        if let Some(reason) = &record.last_upload_reason {
            self.put("upload_reason", reason);
        }
        if let Some(refused) = &record.last_refusal {
            self.put("refused", format_args!("{}({})", record.refusals, refused.message));
        }
    }
}

/// Formats milliseconds with up to three decimals, without trailing zeros.
fn millis(nanos: u64) -> String {
    let text = format!("{:.3}", nanos as f64 / 1e6);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a rate without the blank that `format_rate` puts before the unit, because a blank ends the word.
pub(super) fn bits(rate: f64) -> String {
    format_rate(rate).replace("bit/s", "bps").replace(' ', "")
}
