//! Drawing of the live view: a summary, the table, the selected connection, and the keys.
//!
//! Columns are as wide as their cells. On a narrow screen columns are omitted ([`OPTIONAL`]) until the history of the
//! throughput has [`HISTORY_WIDTH_MIN`] cells; the lines of the selected connection have all values.

use std::fmt::Write as _;

use ratatui::{
    Frame,
    buffer::Buffer,
    layout::Rect,
    style::{Color, Modifier, Style},
};

use super::model::{Column, Entry, HISTORY_SAMPLES, Model, ends};
use crate::{
    control::record::shown,
    table::UNKNOWN,
    units::{format_bytes, format_rate},
};

/// Columns that are omitted on a narrow screen, the least important first.
const OPTIONAL: [Column; 8] = [
    Column::Requests,
    Column::Window,
    Column::Local,
    Column::Pid,
    Column::Qp,
    Column::Outstanding,
    Column::State,
    Column::Node,
];
/// Minimum width of the history of throughput.
const HISTORY_WIDTH_MIN: usize = 8;
/// Lines below the table: heading and four lines of the selected connection, and the keys.
const FOOTER_LINES: u16 = 6;
/// Minimum height of a screen with the lines of the selected connection.
const DETAIL_HEIGHT_MIN: u16 = 12;
/// Levels of the history, from the lowest.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Keys, on the last line.
const KEYS: &str = "q quit  ? help  s sort  r reverse  / filter  p pause  o/u migrate  c capture";
/// Text of the help.
const HELP: &[&str] = &[
    "Keys",
    "  Up, Down, PgUp, PgDn, Home, End   select a connection",
    "  s, r     sort by the next column, reverse the order",
    "  /        filter, as of flue ss: dport = :7174, offload kernel, state all",
    "  o, u     offload or upload the selected connection",
    "  c        capture the node of the selected connection to a file, or stop it",
    "  p        pause",
    "  ?        this help",
    "  q        quit",
    "",
    "Columns",
    "  Offload  data path, as in flue ss",
    "  Tx, Rx   throughput: bytes acknowledged by the peer, and received; bit/s",
    "  RTT      smoothed round-trip time",
    "  Retr     segments retransmitted",
    "  Out      requests of the queue pair posted and not complete",
    "  Req/s    requests of the queue pair started per second",
    "  Tx+Rx    history of the throughput, one cell per interval; full: its maximum",
    "  -        unknown: the host stack has no counters",
];

/// State of the screen outside the model.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Screen {
    /// True if colors are used.
    pub(super) is_colored: bool,
    /// True if the help is shown.
    pub(super) is_help: bool,
    /// Text of the filter while it is edited.
    pub(super) input: Option<String>,
    /// Interval of the listings, as text.
    pub(super) interval: String,
}

impl Screen {
    fn color(&self, color: Color) -> Style {
        if self.is_colored { Style::new().fg(color) } else { Style::new() }
    }
}

/// Returns the number of rows of the table on a screen with `height` lines.
pub(super) fn table_rows(height: u16) -> u16 {
    let footer = if height < DETAIL_HEIGHT_MIN { 1 } else { FOOTER_LINES };
    height.saturating_sub(2 + footer)
}

/// Draws the view.
pub(super) fn draw(frame: &mut Frame<'_>, model: &Model, screen: &Screen) {
    let area = frame.area();
    let buffer = frame.buffer_mut();
    if area.width == 0 || area.height == 0 {
        return;
    }
    line(buffer, area, 0, &summary(model, screen), Style::new().add_modifier(Modifier::BOLD));
    if screen.is_help {
        for (text, y) in HELP.iter().zip(2..area.height.saturating_sub(1)) {
            line(buffer, area, y, text, Style::new());
        }
    } else {
        draw_table(buffer, area, model, screen);
        if area.height >= DETAIL_HEIGHT_MIN {
            draw_selected(buffer, area, model, screen);
        }
    }
    draw_last_line(buffer, area, model, screen);
}

/// Writes a line, cut at the edge of the screen.
fn line(buffer: &mut Buffer, area: Rect, y: u16, text: &str, style: Style) {
    if y < area.height {
        buffer.set_stringn(area.x, area.y + y, text, area.width.into(), style);
    }
}

fn summary(model: &Model, screen: &Screen) -> String {
    let totals = model.totals();
    let count =
        |count: usize, name: &str| format!("{count} {name}{}", if count == 1 { "" } else { "s" });
    let mut text = format!(
        "flue top  {}  {}  Tx {}  Rx {}",
        count(totals.nodes, "node"),
        count(totals.connections, "connection"),
        format_rate(totals.send_bps),
        format_rate(totals.receive_bps),
    );
    if totals.captures > 0 {
        text.push_str("  capture");
    }
    let state = if model.is_paused() { "paused" } else { screen.interval.as_str() };
    let _ = write!(text, "  {state}");
    text
}

/// Returns the heading of a column.
const fn heading(column: Column) -> &'static str {
    match column {
        Column::Node => "Node",
        Column::Pid => "PID",
        Column::Qp => "QP",
        Column::State => "State",
        Column::Local => "Local",
        Column::Peer => "Peer",
        Column::Offload => "Offload",
        Column::Send => "Tx",
        Column::Receive => "Rx",
        Column::Rtt => "RTT",
        Column::Window => "Cwnd",
        Column::Retransmits => "Retr",
        Column::Outstanding => "Out",
        Column::Requests => "Req/s",
    }
}

/// True for columns aligned to the left.
const fn is_text(column: Column) -> bool {
    matches!(column, Column::Node | Column::State | Column::Local | Column::Peer | Column::Offload)
}

/// Minimum width of a column. The columns of numbers do not change their width with each listing.
const fn width_min(column: Column) -> usize {
    match column {
        Column::Send | Column::Receive | Column::Rtt | Column::Window => 6,
        Column::Retransmits | Column::Requests => 5,
        Column::Outstanding => 3,
        _ => 0,
    }
}

/// Maximum width of the name of a program, which is 15 characters in the kernel.
const NODE_WIDTH_MAX: usize = 15;

fn cell(entry: &Entry, column: Column) -> String {
    let record = &entry.row.record;
    let info = record.info.as_deref();
    let known = |text: Option<String>| text.unwrap_or_else(|| UNKNOWN.into());
    match column {
        Column::Node => entry.node.chars().take(NODE_WIDTH_MAX).collect(),
        Column::Pid => entry.pid.to_string(),
        Column::Qp => known(record.qp.map(|qp| qp.to_string())),
        Column::State => known(record.state.clone()),
        Column::Local => record.local.to_string(),
        Column::Peer => shown(record.remote),
        Column::Offload => record.offload_state.to_string(),
        Column::Send => known(entry.row.rates.map(|it| short(it.send_bps))),
        Column::Receive => known(entry.row.rates.map(|it| short(it.receive_bps))),
        Column::Rtt => known(info.and_then(|it| it.rtt_ns).map(short_time)),
        Column::Window => known(info.map(|it| short(it.snd_cwnd_bytes as f64))),
        Column::Retransmits => known(info.map(|it| short(it.total_retrans_segs as f64))),
        Column::Outstanding => known(record.rdma.as_ref().map(|it| it.outstanding.to_string())),
        Column::Requests => known(entry.row.rates.and_then(|it| it.requests_per_second).map(short)),
    }
}

/// Formats a number with at most three digits and a decimal prefix, such as "9.31G".
fn short(value: f64) -> String {
    let (value, prefix) = match value {
        v if v >= 999.5e9 => (v / 1e12, "T"),
        v if v >= 999.5e6 => (v / 1e9, "G"),
        v if v >= 999.5e3 => (v / 1e6, "M"),
        v if v >= 999.5 => (v / 1e3, "k"),
        v => return format!("{v:.0}"),
    };
    let digits = match value {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{prefix}")
}

/// Formats a time with three digits, such as "51.2µs".
fn short_time(nanos: u64) -> String {
    let (value, unit) = match nanos as f64 {
        v if v >= 999.5e6 => (v / 1e9, "s"),
        v if v >= 999.5e3 => (v / 1e6, "ms"),
        v => (v / 1e3, "µs"),
    };
    let digits = match value {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{unit}")
}

/// Returns the columns that fit into `width` with their widths, and the width of the history.
fn columns(model: &Model, width: usize) -> (Vec<(Column, usize)>, usize) {
    let mut columns: Vec<_> = Column::ALL
        .into_iter()
        .map(|column| {
            let cells = model.entries().iter().map(|entry| cell(entry, column).chars().count());
            let head = heading(column).chars().count();
            (column, cells.max().unwrap_or(0).max(head).max(width_min(column)))
        })
        .collect();
    let rest = |columns: &[(Column, usize)]| {
        width.saturating_sub(columns.iter().map(|(_, width)| width + 1).sum())
    };
    for column in OPTIONAL {
        if rest(&columns) >= HISTORY_WIDTH_MIN {
            break;
        }
        columns.retain(|(other, _)| *other != column);
    }
    let history = rest(&columns).min(HISTORY_SAMPLES);
    (columns, history)
}

/// Draws the history: the latest sample at the right edge, scaled to the maximum.
fn history(model: &Model, entry: &Entry, width: usize) -> String {
    let mut samples: Vec<_> = model.history(entry).rev().take(width).collect();
    samples.reverse();
    let max = samples.iter().flatten().copied().max().unwrap_or(0).max(1);
    let level = |sample: u64| match sample {
        0 => LEVELS[0],
        sample => {
            let level = sample as f64 / max as f64 * LEVELS.len() as f64;
            LEVELS[(level.ceil() as usize).clamp(1, LEVELS.len()) - 1]
        }
    };
    let blanks = std::iter::repeat_n(' ', width.saturating_sub(samples.len()));
    blanks.chain(samples.into_iter().map(|it| it.map_or(' ', level))).collect()
}

fn draw_table(buffer: &mut Buffer, area: Rect, model: &Model, screen: &Screen) {
    let (columns, history_width) = columns(model, area.width.into());
    let (sort, is_reversed) = model.order();
    let aligned = |text: &str, column: Column, width: usize| match is_text(column) {
        true => format!("{text:<width$} "),
        false => format!("{text:>width$} "),
    };
    let head_style = screen.color(Color::Cyan).add_modifier(Modifier::UNDERLINED);
    let mut head = String::new();
    for &(column, width) in &columns {
        head.push_str(&aligned(heading(column), column, width));
    }
    if history_width >= HISTORY_WIDTH_MIN {
        head.push_str(&format!("{:>history_width$}", "Tx+Rx"));
    }
    line(buffer, area, 1, &format!("{head:<0$}", usize::from(area.width)), head_style);
    mark_order(buffer, area, &columns, sort, head_style, is_reversed);
    let rows = usize::from(table_rows(area.height));
    if model.entries().is_empty() {
        draw_empty(buffer, area, model, rows);
        return;
    }
    let selected = model.selected().map_or(0, |(at, _)| at);
    // The page that contains the selection.
    let first = selected / rows.max(1) * rows.max(1);
    for ((at, entry), y) in
        model.entries().iter().enumerate().skip(first).take(rows).zip(2..area.height)
    {
        let mut text = String::new();
        for &(column, width) in &columns {
            text.push_str(&aligned(&cell(entry, column), column, width));
        }
        let history_at = text.chars().count();
        if history_width >= HISTORY_WIDTH_MIN {
            text.push_str(&history(model, entry, history_width));
        }
        let is_retransmitting =
            entry.row.rates.is_some_and(|rates| rates.retransmits_per_second > 0.0);
        let style = match (at == selected, is_retransmitting) {
            (true, _) => Style::new().add_modifier(Modifier::REVERSED),
            (false, true) => screen.color(Color::Yellow).add_modifier(Modifier::BOLD),
            (false, false) => Style::new(),
        };
        line(buffer, area, y, &format!("{text:<0$}", usize::from(area.width)), style);
        if at != selected && history_at < usize::from(area.width) {
            let x = area.x + history_at as u16;
            let bars = Rect { x, y: area.y + y, width: area.right() - x, height: 1 };
            buffer.set_style(bars, screen.color(Color::Green));
        }
    }
}

/// Marks the column of the order, in the blank next to its heading.
fn mark_order(
    buffer: &mut Buffer,
    area: Rect,
    columns: &[(Column, usize)],
    sort: Column,
    style: Style,
    is_reversed: bool,
) {
    let mut x = 0;
    for &(column, width) in columns {
        if column == sort {
            let length = heading(column).chars().count();
            let at = if is_text(column) { x + length } else { x + width - length };
            // A column of numbers has a blank on its left, also the one of the column before.
            let at = if is_text(column) { at } else { at.saturating_sub(1) };
            let mark = if is_reversed { "▴" } else { "▾" };
            if at < usize::from(area.width) && area.height > 1 {
                let style = style.add_modifier(Modifier::BOLD);
                buffer.set_stringn(area.x + at as u16, area.y + 1, mark, 1, style);
            }
        }
        x += width + 1;
    }
}

fn draw_empty(buffer: &mut Buffer, area: Rect, model: &Model, rows: usize) {
    let mut lines = model.idle_nodes();
    if lines.is_empty() && model.totals().nodes == 0 {
        lines.push("no running node: start one with \"flue run -- PROGRAM\" or \"flue nc\"".into());
    } else if lines.is_empty() {
        lines.push("no connection".into());
    }
    for (text, y) in lines.iter().take(rows).zip(3..area.height) {
        line(buffer, area, y, &format!("  {text}"), Style::new());
    }
}

/// Draws the values of the selected connection that the table does not have.
fn draw_selected(buffer: &mut Buffer, area: Rect, model: &Model, screen: &Screen) {
    let top = area.height - FOOTER_LINES;
    let Some((at, entry)) = model.selected() else { return };
    let record = &entry.row.record;
    let name = format!("{} (pid {})", entry.node, entry.pid);
    let count = format!("{} of {}", at + 1, model.entries().len());
    let mut head = format!("{}  {name}", ends(entry));
    if let Some(qp) = record.qp {
        let _ = write!(head, "  qp {qp}");
    }
    if let Some(peer) = record.peer_qp {
        let _ = write!(head, "  peer qp {peer}");
    }
    let width = usize::from(area.width);
    let head = format!("{:<1$}", head, width.saturating_sub(count.len())) + &count;
    let style = screen.color(Color::Cyan).add_modifier(Modifier::UNDERLINED);
    line(buffer, area, top, &head, style);
    for (values, y) in details(entry).iter().zip(top + 1..) {
        line(buffer, area, y, &fit(values, width), Style::new());
    }
}

/// Joins the values that fit into the width.
fn fit(values: &[String], width: usize) -> String {
    let mut text = String::new();
    for value in values {
        let separator = if text.is_empty() { "" } else { "  " };
        if text.chars().count() + separator.len() + value.chars().count() > width {
            break;
        }
        text.push_str(separator);
        text.push_str(value);
    }
    text
}

/// Returns the values of a connection, the most important first in each line.
fn details(entry: &Entry) -> [Vec<String>; 4] {
    let record = &entry.row.record;
    let mut lines = [const { Vec::new() }; 4];
    if let Some(info) = record.info.as_deref() {
        let time = |time: Option<u64>| time.map_or_else(|| UNKNOWN.to_owned(), short_time);
        lines[0] = vec![
            format!("rtt {}", time(info.rtt_ns)),
            format!("min {}", time(info.min_rtt_ns)),
            format!("rto {}", short_time(info.rto_ns)),
            format!("cwnd {}", format_bytes(info.snd_cwnd_bytes)),
            format!("mss {}", info.snd_mss_bytes),
            format!("retrans {}", info.total_retrans_segs),
            format!("lost {}", info.lost_segs),
            format!("unacked {}", info.unacked_segs),
        ];
        lines[1] = vec![
            format!("sent {}", format_bytes(info.bytes_acked)),
            format!("received {}", format_bytes(info.bytes_received)),
        ];
    } else {
        lines[0] = vec!["no counters: the host stack has the connection".into()];
    }
    if let Some(capture) = &entry.capture {
        let file =
            capture.path.file_name().map_or_else(Default::default, |it| it.to_string_lossy());
        match &capture.error {
            None => {
                let frames = short(capture.frames as f64);
                lines[1].push(format!("capture {file} {frames} frames"));
            }
            // First, because long values are omitted.
            Some(error) => lines[1].insert(0, format!("capture {file} ended: {error}")),
        }
    }
    let queue = record.send_q.map_or_else(|| UNKNOWN.to_owned(), format_bytes);
    let reason = record.last_upload_reason.as_ref();
    lines[1].extend([
        format!("send queue {queue}"),
        format!("offloads {}", record.offloads),
        format!("uploads {}", record.uploads),
    ]);
    lines[1].extend(reason.map(|reason| format!("upload reason {reason}")));
    if let Some(rdma) = record.rdma.as_deref() {
        let count = |name: &str, count: u64| format!("{name} {}", short(count as f64));
        let sized = |name: &str, count: u64, bytes: u64| {
            format!("{name} {}/{}B", short(count as f64), short(bytes as f64))
        };
        lines[2] = vec![
            sized("own: sends", rdma.sends, rdma.send_bytes),
            sized("writes", rdma.writes, rdma.write_bytes),
            sized("reads", rdma.reads, rdma.read_bytes),
            count("atomics", rdma.atomics),
            count("outstanding", rdma.outstanding),
        ];
        lines[3] = vec![
            sized("peer: sends", rdma.receives, rdma.receive_bytes),
            sized("writes", rdma.writes_placed, rdma.write_bytes_placed),
            sized("reads", rdma.read_responses, rdma.read_response_bytes),
            count("atomics", rdma.atomic_responses),
            count("posted", rdma.receives_posted),
        ];
    } else if let Some(refused) = &record.last_refusal {
        lines[2].push(format!("refused {}: {}", record.refusals, refused.message));
    }
    lines
}

fn draw_last_line(buffer: &mut Buffer, area: Rect, model: &Model, screen: &Screen) {
    let y = area.height - 1;
    match (&screen.input, model.message()) {
        (Some(text), _) => {
            line(buffer, area, y, &format!("/{text}_"), screen.color(Color::Yellow));
        }
        (None, Some(message)) => line(buffer, area, y, message, screen.color(Color::Yellow)),
        (None, None) => line(buffer, area, y, KEYS, screen.color(Color::DarkGray)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use ratatui::{Terminal, backend::TestBackend};

    use super::{super::model::tests::*, *};
    use crate::control::{message::CaptureReport, record::QueuePairCounters};

    fn text(model: &Model, screen: &Screen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, model, screen)).unwrap();
        let buffer = terminal.backend().buffer();
        let rows = buffer.content().chunks(width.into());
        rows.map(|row| {
            let row: String = row.iter().map(|cell| cell.symbol()).collect();
            row.trim_end().to_owned()
        })
        .collect()
    }

    fn model() -> Model {
        let (mut model, start) = (Model::new(filter("")), Instant::now());
        for (second, bytes) in [0, 1, 3, 4, 4, 8].into_iter().zip(0..) {
            model.update(sample(start, bytes, second * 100_000_000));
        }
        model
    }

    fn screen() -> Screen {
        Screen { interval: "1 s".into(), ..Screen::default() }
    }

    #[test]
    fn screen_of_80_columns() {
        let shown = text(&model(), &screen(), 80, 24);
        let summary = "flue top  2 nodes  4 connections  Tx 2.24 Gbit/s  Rx 22.4 Gbit/s  1 s";
        assert_eq!(shown[0], summary);
        assert!(shown.iter().all(|line| line.chars().count() <= 80), "{shown:#?}");
        for (row, words) in [
            (1, "State Peer Offload ▾Tx Rx RTT Retr"),
            (2, "ESTAB 10.77.0.1:40002 Offloaded 1.28G 12.8G 50.0µs 3"),
            (3, "ESTAB 10.77.0.1:40009 Kernel 640M 6.40G 50.0µs 3"),
            (5, "ESTAB 10.77.0.1:40003 InHost - - - -"),
        ] {
            let found: Vec<_> = shown[row].split_whitespace().collect();
            let words: Vec<_> = words.split_whitespace().collect();
            let at = found.windows(words.len()).any(|window| window == words);
            assert!(at, "{words:?}: {shown:#?}");
        }
        assert!(shown[2].ends_with("▂▄▂▁█"), "{shown:#?}");
        assert!(shown[18].starts_with("10.77.0.2:7174 - 10.77.0.1:40002  flue0 (pid 71)"));
        assert!(shown[18].ends_with("1 of 4"), "{shown:#?}");
        assert!(shown[19].starts_with("rtt 50.0µs  min 12.0µs  rto 204ms  cwnd 14.1 KiB"));
        assert!(shown[19].ends_with("mss 1448  retrans 3  lost 0"), "whole values: {shown:#?}");
        assert!(HELP.iter().chain([&KEYS]).all(|text| text.chars().count() <= 80));
        assert_eq!(shown[23], KEYS);
    }

    #[test]
    fn capture_has_its_file_and_its_error() {
        let mut entry = model().entries()[0].clone();
        let mut capture = CaptureReport {
            path: "/tmp/flue-flue0-71.pcapng".into(),
            is_running: true,
            frames: 12_345,
            error: None,
        };
        let line = |entry: &Entry| fit(&details(entry)[1], 80);
        let mut running = sample(Instant::now(), 0, 0);
        running.nodes[0].capture = Some(capture.clone());
        let mut recording = Model::new(filter(""));
        recording.update(running);
        assert!(text(&recording, &screen(), 80, 24)[0].ends_with("  capture  1 s"));
        entry.capture = Some(capture.clone());
        let shown = line(&entry);
        assert!(shown.contains("  capture flue-flue0-71.pcapng 12.3k frames"), "{shown}");
        (capture.is_running, capture.error) = (false, Some("No space left on device".into()));
        entry.capture = Some(capture.clone());
        let shown = line(&entry);
        assert!(shown.contains("capture flue-flue0-71.pcapng ended: No space left"), "{shown}");
        // The error is a message once.
        let (mut model, start) = (model(), Instant::now());
        for (second, is_new) in [(20, true), (21, false)] {
            model.clear_message();
            let mut sample = sample(start, second, 0);
            sample.nodes[0].capture = Some(capture.clone());
            model.update(sample);
            let expected = "capture /tmp/flue-flue0-71.pcapng: ended after 12345 frames: No space left on device";
            assert_eq!(model.message() == Some(expected), is_new, "{:?}", model.message());
        }
    }

    // The largest counters of both directions fit 80 columns.
    #[test]
    fn queue_pair_has_counters_of_both_directions() {
        let mut entry = model().entries()[1].clone();
        let counters = QueuePairCounters {
            outstanding: 128,
            receives_posted: 64,
            sends: 1_230_000,
            send_bytes: 9_990_000_000,
            writes: 102_000,
            write_bytes: 6_680_000_000,
            reads: 777_000,
            read_bytes: 888_000_000,
            atomics: 123_000,
            receives: 5,
            receive_bytes: 80,
            writes_placed: 3,
            write_bytes_placed: 196_608,
            read_responses: 2,
            read_response_bytes: 131_072,
            atomic_responses: 1,
            ..Default::default()
        };
        entry.row.record.rdma = Some(Box::new(counters));
        let [_, _, own, peer] = details(&entry).map(|line| fit(&line, 80));
        let expected =
            "own: sends 1.23M/9.99GB  writes 102k/6.68GB  reads 777k/888MB  atomics 123k";
        assert_eq!(own.strip_suffix("  outstanding 128").unwrap_or(&own), expected);
        let expected = "peer: sends 5/80B  writes 3/197kB  reads 2/131kB  atomics 1  posted 64";
        assert_eq!(peer, expected);
    }

    #[test]
    fn wide_screen_has_all_columns() {
        let shown = text(&model(), &screen(), 200, 60);
        let head: Vec<_> = shown[1].split_whitespace().collect();
        let expected = "Node PID QP State Local Peer Offload ▾Tx Rx RTT Cwnd Retr Out Req/s Tx+Rx";
        assert_eq!(head, expected.split_whitespace().collect::<Vec<_>>());
        let program: Vec<_> = shown[3].split_whitespace().collect();
        let expected = "ib_write_bw 4711 66001 ESTAB 10.77.0.2:7174 10.77.0.1:40009 Kernel 640M 6.40G \
                        50.0µs 14.5k 3 16 400k";
        assert_eq!(program[..14], expected.split_whitespace().collect::<Vec<_>>(), "{shown:#?}");
        assert_eq!(shown[59], KEYS);
    }

    #[test]
    fn small_screens_are_drawn() {
        let mut model = model();
        for (width, height) in [(0, 0), (1, 1), (20, 2), (40, 3), (40, 11), (30, 12)] {
            let shown = text(&model, &screen(), width.max(1), height.max(1));
            assert!(shown.iter().all(|line| line.chars().count() <= 80));
        }
        // The page with the selection.
        model.select(3);
        let shown = text(&model, &screen(), 80, 5);
        assert!(shown[3].contains("40003"), "{shown:#?}");
    }

    #[test]
    fn input_message_help_and_empty_list_are_shown() {
        let mut model = model();
        let editing = Screen { input: Some("dport = :1".into()), ..screen() };
        assert_eq!(text(&model, &editing, 80, 24)[23], "/dport = :1_");
        let help = Screen { is_help: true, ..screen() };
        let shown = text(&model, &help, 80, 24);
        assert!(shown.iter().any(|line| line.contains("offload or upload the selected")));
        assert_eq!(shown.iter().filter(|line| line.contains("10.77")).count(), 0);
        model.toggle_pause();
        assert!(text(&model, &screen(), 80, 24)[0].ends_with("  paused"));
        model.toggle_pause();
        model.update(super::super::model::Sample::default());
        let shown = text(&model, &screen(), 80, 24);
        assert!(shown[3].contains("no running node"), "{shown:#?}");
        assert!(shown[23].contains("node ended"), "{shown:#?}");
    }

    #[test]
    fn no_color_is_used_without_the_option() {
        let colors = |is_colored| {
            let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
            let screen = Screen { is_colored, ..screen() };
            terminal.draw(|frame| draw(frame, &model(), &screen)).unwrap();
            let cells = terminal.backend().buffer().content().to_vec();
            cells.iter().filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count()
        };
        assert_eq!(colors(false), 0);
        assert!(colors(true) > 80);
    }

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in
            [(0.0, "0"), (999.4, "999"), (999.5, "1.00k"), (12_340.0, "12.3k"), (9.31e9, "9.31G")]
        {
            assert_eq!(short(value), text);
        }
        assert_eq!(
            (short_time(51_240), short_time(204_000_000)),
            ("51.2µs".into(), "204ms".into())
        );
    }
}
