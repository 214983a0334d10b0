//! State of the live view: rows, histories, order and selection. It takes listings and returns what is shown; it has no
//! clock and no terminal.

use std::{
    cmp::Ordering,
    collections::{HashMap, VecDeque},
    path::PathBuf,
};

use crate::{
    cmd::{
        capture,
        ss::{
            filter::Filter,
            listing::{Listed, Rates, Row},
            rates::RateMeter,
        },
    },
    control::{message::CaptureReport, record::shown},
};

/// Number of samples in the history of a connection.
pub(super) const HISTORY_SAMPLES: usize = 60;

/// Number of listings for which a message is shown.
const MESSAGE_LISTINGS: u8 = 5;

/// Column of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Column {
    /// Program on kernel sockets, or TAP of a node.
    Node,
    /// Process id.
    Pid,
    /// Queue pair number.
    Qp,
    /// TCP state.
    State,
    /// Local address.
    Local,
    /// Peer's address.
    Peer,
    /// Data path.
    Offload,
    /// Throughput sent.
    Send,
    /// Throughput received.
    Receive,
    /// Smoothed round-trip time.
    Rtt,
    /// Congestion window.
    Window,
    /// Segments retransmitted.
    Retransmits,
    /// Requests outstanding.
    Outstanding,
    /// Requests started per second.
    Requests,
}

impl Column {
    /// All columns, in the order of the table.
    pub(super) const ALL: [Self; 14] = [
        Self::Node,
        Self::Pid,
        Self::Qp,
        Self::State,
        Self::Local,
        Self::Peer,
        Self::Offload,
        Self::Send,
        Self::Receive,
        Self::Rtt,
        Self::Window,
        Self::Retransmits,
        Self::Outstanding,
        Self::Requests,
    ];

    /// Columns that `s` sorts by, in this order.
    const SORTED: [Self; 8] = [
        Self::Send,
        Self::Receive,
        Self::Rtt,
        Self::Retransmits,
        Self::Outstanding,
        Self::Node,
        Self::Peer,
        Self::Offload,
    ];

    /// True if the order begins with the largest value.
    const fn is_descending(self) -> bool {
        !matches!(self, Self::Node | Self::Peer | Self::Offload)
    }
}

/// Identity of a connection: control socket of its node, and handle.
pub(super) type Key = (PathBuf, u64);

/// Connection of the view.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Control socket of its node.
    pub(super) control: PathBuf,
    /// Name of its node: the program on kernel sockets, otherwise the TAP.
    pub(super) node: String,
    /// Process id of the node.
    pub(super) pid: u32,
    /// Capture of its node.
    pub(super) capture: Option<CaptureReport>,
    /// The connection and its throughput.
    pub(super) row: Row,
}

impl Entry {
    /// Returns the identity of the connection.
    pub(super) fn key(&self) -> Key {
        (self.control.clone(), self.row.record.handle)
    }

    fn rates(&self) -> Rates {
        self.row.rates.unwrap_or_default()
    }

    fn compare(&self, other: &Self, column: Column) -> Ordering {
        let info = |entry: &Self| entry.row.record.info.as_deref().copied();
        let count = |entry: &Self| entry.row.record.rdma.as_ref().map(|it| it.outstanding);
        match column {
            Column::Send => self.rates().send_bps.total_cmp(&other.rates().send_bps),
            Column::Receive => self.rates().receive_bps.total_cmp(&other.rates().receive_bps),
            Column::Rtt => {
                let rtt = |entry| info(entry).and_then(|info| info.rtt_ns);
                rtt(self).cmp(&rtt(other))
            }
            Column::Retransmits => {
                let retransmits = |entry| info(entry).map(|info| info.total_retrans_segs);
                retransmits(self).cmp(&retransmits(other))
            }
            Column::Outstanding => count(self).cmp(&count(other)),
            Column::Node => self.node.cmp(&other.node),
            Column::Peer => self.row.record.remote.cmp(&other.row.record.remote),
            Column::Offload => {
                let state = |entry: &Self| entry.row.record.offload_state.to_string();
                state(self).cmp(&state(other))
            }
            // Not in the cycle of `s`.
            Column::Pid
            | Column::Qp
            | Column::State
            | Column::Local
            | Column::Window
            | Column::Requests => Ordering::Equal,
        }
    }
}

/// Sum of all connections.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(super) struct Totals {
    /// Nodes that replied.
    pub(super) nodes: usize,
    /// Connections of all nodes that the filter selects.
    pub(super) connections: usize,
    /// Captures that run.
    pub(super) captures: usize,
    /// Bits per second sent.
    pub(super) send_bps: f64,
    /// Bits per second received.
    pub(super) receive_bps: f64,
}

/// Listing of all nodes, with the names of their programs.
#[derive(Debug, Default)]
pub(super) struct Sample {
    /// The nodes.
    pub(super) nodes: Vec<Listed>,
    /// Names of programs by process id.
    pub(super) programs: HashMap<u32, String>,
    /// Reason for the missing list of nodes.
    pub(super) error: Option<String>,
}

/// State of the view.
#[derive(Debug)]
pub(super) struct Model {
    filter: Filter,
    meter: RateMeter,
    sample: Sample,
    entries: Vec<Entry>,
    /// Bits per second of both directions, the latest last; `None`: unknown.
    histories: HashMap<Key, VecDeque<Option<u64>>>,
    sort: Column,
    is_reversed: bool,
    is_paused: bool,
    selected: usize,
    /// Identity of the selected connection, which may move to another row; `None`: the first row.
    selected_key: Option<Key>,
    totals: Totals,
    /// Last event of a node or a migration, and the number of listings for which it is shown.
    message: Option<(String, u8)>,
}

impl Model {
    /// Creates a view without connections.
    pub(super) fn new(filter: Filter) -> Self {
        Self {
            filter,
            meter: RateMeter::default(),
            sample: Sample::default(),
            entries: Vec::new(),
            histories: HashMap::new(),
            sort: Column::Send,
            is_reversed: false,
            is_paused: false,
            selected: 0,
            selected_key: None,
            totals: Totals::default(),
            message: None,
        }
    }

    /// Takes a listing, unless the view is paused.
    pub(super) fn update(&mut self, mut sample: Sample) {
        if self.is_paused {
            return;
        }
        self.message =
            self.message.take().and_then(|(text, left)| Some((text, left.checked_sub(1)?)));
        self.report_changes(&sample);
        self.meter.measure(&mut sample.nodes);
        let mut histories = HashMap::with_capacity(self.histories.len());
        for Listed { control, connections, .. } in &sample.nodes {
            for Row { record, rates, .. } in connections {
                let key = (control.clone(), record.handle);
                let mut history = self.histories.remove(&key).unwrap_or_default();
                history.push_back(rates.map(|it| (it.send_bps + it.receive_bps) as u64));
                if history.len() > HISTORY_SAMPLES {
                    history.pop_front();
                }
                histories.insert(key, history);
            }
        }
        self.histories = histories;
        self.sample = sample;
        self.arrange();
    }

    /// Sets the message to a node that has ended, or does not reply.
    fn report_changes(&mut self, sample: &Sample) {
        let name = |listed: &Listed| {
            let node = listed.node.as_ref();
            node.map_or_else(|| listed.control.display().to_string(), ToString::to_string)
        };
        let is_listed = |old: &Listed| sample.nodes.iter().any(|new| new.control == old.control);
        let ended = self.sample.nodes.iter().find(|old| !is_listed(old)).map(&name);
        if let Some(ended) = ended {
            self.set_message(format!("{ended}: node ended"));
        }
        let error_of =
            |listed: &Listed| listed.capture.as_ref().filter(|it| it.error.is_some()).cloned();
        let was = |new: &Listed| {
            let old = self.sample.nodes.iter().find(|old| old.control == new.control);
            old.and_then(error_of)
        };
        let ended = sample.nodes.iter().filter(|new| was(new).is_none()).find_map(error_of);
        if let Some(ended) = ended {
            self.set_message(capture::describe(&ended));
        }
        let errors = sample.nodes.iter().filter_map(|listed| listed.error.as_ref());
        if let Some(error) = sample.error.iter().chain(errors).next() {
            self.set_message(error.clone());
        }
    }

    /// Selects and sorts the connections, and keeps the selection on its connection.
    fn arrange(&mut self) {
        let mut entries = Vec::new();
        let mut totals = Totals::default();
        for listed in &self.sample.nodes {
            let Some(node) = &listed.node else { continue };
            totals.nodes += 1;
            totals.captures += usize::from(listed.capture.as_ref().is_some_and(|it| it.is_running));
            let program = self.sample.programs.get(&node.pid).filter(|_| node.addresses.is_empty());
            for row in listed.connections.iter().filter(|row| self.filter.shows(&row.record)) {
                let rates = row.rates.unwrap_or_default();
                totals.connections += 1;
                totals.send_bps += rates.send_bps;
                totals.receive_bps += rates.receive_bps;
                entries.push(Entry {
                    control: listed.control.clone(),
                    node: program.unwrap_or(&node.tap).clone(),
                    pid: node.pid,
                    capture: listed.capture.clone(),
                    row: row.clone(),
                });
            }
        }
        let (sort, is_reversed) = (self.sort, self.is_reversed);
        entries.sort_by(|left, right| {
            let order = left.compare(right, sort);
            let order = if sort.is_descending() { order.reverse() } else { order };
            let order = if is_reversed { order.reverse() } else { order };
            order.then_with(|| left.key().cmp(&right.key()))
        });
        self.entries = entries;
        self.totals = totals;
        // The first row, until a connection is selected.
        let Some(key) = &self.selected_key else { return };
        let found = self.entries.iter().position(|entry| entry.key() == *key);
        // After the end of the selected connection, the next one is selected.
        self.selected = found.unwrap_or(self.selected).min(self.entries.len().saturating_sub(1));
        self.selected_key = self.entries.get(self.selected).map(Entry::key);
    }

    /// Moves the selection by `rows`.
    pub(super) fn select(&mut self, rows: isize) {
        let last = self.entries.len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(rows).min(last);
        self.selected_key = self.entries.get(self.selected).map(Entry::key);
    }

    /// Sorts by the next column.
    pub(super) fn sort_by_next(&mut self) {
        let at = Column::SORTED.iter().position(|column| *column == self.sort).unwrap_or(0);
        self.sort = Column::SORTED[(at + 1) % Column::SORTED.len()];
        self.arrange();
    }

    /// Reverses the order.
    pub(super) fn reverse(&mut self) {
        self.is_reversed = !self.is_reversed;
        self.arrange();
    }

    /// Shows the connections that `filter` selects.
    pub(super) fn set_filter(&mut self, filter: Filter) {
        self.filter = filter;
        self.arrange();
    }

    /// Stops or continues to take listings.
    pub(super) const fn toggle_pause(&mut self) {
        self.is_paused = !self.is_paused;
    }

    /// Sets the message.
    pub(super) fn set_message(&mut self, message: impl Into<String>) {
        self.message = Some((message.into(), MESSAGE_LISTINGS));
    }

    /// Removes the message.
    pub(super) fn clear_message(&mut self) {
        self.message = None;
    }

    /// Returns the connections in the order of the table.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the selected connection.
    pub(super) fn selected(&self) -> Option<(usize, &Entry)> {
        self.entries.get(self.selected).map(|entry| (self.selected, entry))
    }

    /// Returns the history of a connection, the latest sample last.
    pub(super) fn history(&self, entry: &Entry) -> impl DoubleEndedIterator<Item = Option<u64>> {
        self.histories.get(&entry.key()).into_iter().flatten().copied()
    }

    /// Returns the column of the order, and true if the order is reversed.
    pub(super) const fn order(&self) -> (Column, bool) {
        (self.sort, self.is_reversed)
    }

    /// Returns the sum of all connections.
    pub(super) const fn totals(&self) -> Totals {
        self.totals
    }

    /// Returns true if no listing is taken.
    pub(super) const fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Returns the message.
    pub(super) fn message(&self) -> Option<&str> {
        self.message.as_ref().map(|(text, _)| text.as_str())
    }

    /// Returns a line for each node without a listener and a connection.
    pub(super) fn idle_nodes(&self) -> Vec<String> {
        let idle = self.sample.nodes.iter().filter(|it| it.connections.is_empty());
        idle.filter_map(|listed| listed.node.as_ref())
            .map(|node| {
                let program = self.sample.programs.get(&node.pid).map_or("", |name| name);
                format!("{node} {program}: device open, no connection")
            })
            .collect()
    }
}

/// Returns both endpoints of a connection.
pub(super) fn ends(entry: &Entry) -> String {
    let record = &entry.row.record;
    format!("{} - {}", record.local, shown(record.remote))
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{
        cmd::ss::{
            filter::States,
            tests::{TcpInfo, connection, info, listed},
        },
        control::record::QueuePairCounters,
    };

    pub(in super::super) fn filter(text: &str) -> Filter {
        Filter::parse(&[text.to_owned()], States::connected()).unwrap()
    }

    /// Returns a listing `second` seconds after `start`, of a program and of a TAP node. Connection 1 has received
    /// `bytes`, connection 2 four times as many; connection 3 is in the host stack.
    pub(in super::super) fn sample(start: Instant, second: u64, bytes: u64) -> Sample {
        let at = start + Duration::from_secs(second);
        let row = |handle: u64, bytes: u64| {
            let mut record = connection("10.77.0.2:7174", Some(&format!("10.77.0.1:4000{handle}")));
            record.handle = handle;
            let counts = TcpInfo { bytes_received: bytes, bytes_acked: bytes / 10, ..info() };
            record.info = Some(Box::new(counts));
            record
        };
        let [mut tap] = listed(vec![row(1, bytes), row(2, 4 * bytes), row(3, 0)]);
        tap.connections[2].record.info = None;
        tap.connections[2].record.offload_state = host_stack::stream::OffloadState::InHost;
        let mut record = row(9, 2 * bytes);
        record.qp = Some(66_001);
        let counters =
            QueuePairCounters { outstanding: 16, writes: bytes / 1000, ..Default::default() };
        record.rdma = Some(Box::new(counters));
        record.offload_state = host_stack::stream::OffloadState::Kernel;
        let [mut program] = listed(vec![record]);
        program.control = "/run/kernel-4711.sock".into();
        if let Some(node) = &mut program.node {
            (node.tap, node.pid, node.addresses) = ("kernel".into(), 4711, Vec::new());
        }
        let mut nodes = vec![tap, program];
        nodes.iter_mut().for_each(|node| node.at = at);
        Sample { nodes, programs: [(4711, "ib_write_bw".to_owned())].into(), error: None }
    }

    fn handles(model: &Model) -> Vec<u64> {
        model.entries().iter().map(|entry| entry.row.record.handle).collect()
    }

    #[test]
    fn connections_are_sorted_and_the_selection_follows_its_connection() {
        let (mut model, start) = (Model::new(filter("")), Instant::now());
        model.update(sample(start, 0, 0));
        assert_eq!(handles(&model), [9, 1, 2, 3], "without rates: by node and handle");
        model.select(2);
        model.update(sample(start, 1, 1_000_000));
        assert_eq!(handles(&model), [2, 9, 1, 3]);
        assert_eq!(model.selected().unwrap().1.row.record.handle, 2);
        assert_eq!(model.totals().connections, 4);
        assert_eq!(model.totals().receive_bps, 8.0 * 7e6);
        model.reverse();
        assert_eq!(handles(&model), [3, 1, 9, 2]);
        model.reverse();
        for _ in 0..4 {
            model.sort_by_next();
        }
        assert_eq!((model.order(), handles(&model)[0]), ((Column::Outstanding, false), 9));
        model.sort_by_next();
        assert_eq!((model.order(), handles(&model)), ((Column::Node, false), vec![1, 2, 3, 9]));
        model.select(-9);
        assert_eq!(model.selected().unwrap().0, 0);
        model.select(99);
        assert_eq!(model.selected().unwrap().0, 3);
    }

    #[test]
    fn history_has_the_last_samples() {
        let (mut model, start) = (Model::new(filter("")), Instant::now());
        for second in 0..70 {
            model.update(sample(start, second, second * 1000));
        }
        let first = model.entries().iter().find(|entry| entry.row.record.handle == 1).unwrap();
        let history: Vec<_> = model.history(first).collect();
        assert_eq!(history.len(), HISTORY_SAMPLES);
        assert!(history.iter().all(|sample| *sample == Some(8800)), "{history:?}");
        let in_host = model.entries().iter().find(|entry| entry.row.record.handle == 3).unwrap();
        assert!(model.history(in_host).all(|sample| sample.is_none()));
    }

    #[test]
    fn paused_view_takes_no_listing() {
        let (mut model, start) = (Model::new(filter("")), Instant::now());
        model.update(sample(start, 0, 0));
        model.toggle_pause();
        model.update(Sample::default());
        assert_eq!((model.entries().len(), model.is_paused()), (4, true));
        model.toggle_pause();
        model.update(Sample::default());
        assert_eq!(model.entries().len(), 0);
    }

    #[test]
    fn end_of_a_node_is_a_message_and_moves_the_selection() {
        let (mut model, start) = (Model::new(filter("")), Instant::now());
        model.update(sample(start, 0, 0));
        model.select(-9);
        assert_eq!(model.selected().unwrap().1.node, "ib_write_bw");
        let mut without = sample(start, 1, 0);
        without.nodes.truncate(1);
        model.update(without);
        assert_eq!(model.message(), Some("kernel (pid 4711): node ended"));
        assert_eq!(model.selected().unwrap().1.node, "flue0");
        let mut silent = sample(start, 2, 0);
        silent.nodes.truncate(1);
        (silent.nodes[0].node, silent.nodes[0].error) = (None, Some("no answer".into()));
        silent.nodes[0].connections.clear();
        model.update(silent);
        assert_eq!((model.message(), model.entries().len()), (Some("no answer"), 0));
        assert_eq!(model.selected().map(|it| it.0), None);
    }

    #[test]
    fn filter_selects_rows() {
        let (mut model, start) = (Model::new(filter("offload inhost")), Instant::now());
        model.update(sample(start, 0, 0));
        assert_eq!(handles(&model), [3]);
        model.set_filter(filter("dport = :40002"));
        assert_eq!(handles(&model), [2]);
    }
}
