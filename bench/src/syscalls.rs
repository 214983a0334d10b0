//! System calls of flue per message and per MB, counted by strace.
//!
//! Both ends run under strace twice, with few messages and with many. The difference is the cost of the messages;
//! startup, handshake and shutdown cancel out. Tracing slows an end down several times, so batch sizes differ slightly
//! from an untraced run.

use std::collections::BTreeMap;

use flue_report::units::three_digits;
use serde::Serialize;

/// System calls of both ends of a job.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Calls {
    /// Name of the group.
    pub(super) id: String,
    /// Description of the workload.
    pub(super) title: String,
    /// Message size, bytes.
    pub(super) size_bytes: u64,
    /// Difference in messages between the two runs.
    pub(super) messages: u64,
    /// Calls of the client.
    pub(super) client: EndCalls,
    /// Calls of the server.
    pub(super) server: EndCalls,
    /// Reason why they could not be counted.
    pub(super) error: Option<String>,
}

/// System calls of one end, for all the messages.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub(super) struct EndCalls {
    /// Counts by name; only of calls that the long run made more often.
    pub(super) by_name: BTreeMap<String, u64>,
}

impl EndCalls {
    /// Returns the total.
    pub(super) fn sum(&self) -> u64 {
        self.by_name.values().sum()
    }

    /// Returns the calls of `long` minus those of `short`.
    pub(super) fn between(short: &Counts, long: &Counts) -> Self {
        let more = |(name, &count): (&String, &u64)| {
            let before = short.get(name).copied().unwrap_or(0);
            (count > before).then(|| (name.clone(), count - before))
        };
        Self { by_name: long.iter().filter_map(more).collect() }
    }

    /// Returns the three most frequent calls, each with its number per message.
    pub(super) fn most_frequent(&self, messages: u64) -> Vec<String> {
        let mut names: Vec<_> = self.by_name.iter().collect();
        names.sort_by(|a, b| b.1.cmp(a.1));
        let each = |(name, count): &(&String, &u64)| {
            let per_message = three_digits(**count as f64 / messages.max(1) as f64);
            format!("{name} {per_message}")
        };
        names.iter().take(3).map(each).collect()
    }
}

impl Calls {
    /// Returns the ends with counts; the client if neither has any.
    pub(super) fn ends(&self) -> Vec<(&'static str, &EndCalls)> {
        let both = [("client", &self.client), ("server", &self.server)];
        let counted: Vec<_> = both.into_iter().filter(|(_, it)| !it.by_name.is_empty()).collect();
        if counted.is_empty() { vec![both[0]] } else { counted }
    }

    /// Returns the calls of an end per message, and per 10^6 bytes.
    pub(super) fn rates(&self, end: &EndCalls) -> Option<(f64, f64)> {
        let messages = self.messages as f64;
        let mbytes = messages * self.size_bytes as f64 / 1e6;
        (self.messages > 0).then(|| (end.sum() as f64 / messages, end.sum() as f64 / mbytes))
    }
}

/// Calls by name.
pub(super) type Counts = BTreeMap<String, u64>;

/// Parses the table of `strace -c`.
pub(super) fn parse(text: &str) -> Result<Counts, String> {
    let mut lines = text.lines().skip_while(|line| !line.trim_start().starts_with("% time"));
    let head: Vec<&str> =
        lines.next().ok_or("strace printed no table")?.split_whitespace().collect();
    // The heading "% time" is two words, but one column.
    let column =
        head.iter().position(|&it| it == "calls").ok_or("strace: no column \"calls\"")? - 1;
    let mut counts = Counts::new();
    for line in lines.filter(|line| !line.starts_with('-')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some((&name, _)) = words.split_last() else { continue };
        if name == "total" {
            break;
        }
        let count = words.get(column).and_then(|word| word.parse::<u64>().ok());
        let count = count.ok_or("strace: no number of calls")?;
        *counts.entry(name.to_owned()).or_default() += count;
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
strace: Process 7 attached
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.01    0.000600           6       100        12 readv
 39.99    0.000400           8        50           writev
------ ----------- ----------- --------- --------- ----------------
100.00    0.001000           6       150        12 total
";

    #[test]
    fn table_is_parsed() {
        let counts = parse(TEXT).unwrap();
        assert_eq!(counts, Counts::from([("readv".into(), 100), ("writev".into(), 50)]));
        assert!(parse("").is_err());
        assert!(parse("% time seconds\n").is_err());
    }

    #[test]
    fn calls_of_both_runs_cancel_out() {
        let short = Counts::from([("mmap".into(), 90), ("readv".into(), 20)]);
        let long = Counts::from([("mmap".into(), 90), ("readv".into(), 60), ("ppoll".into(), 10)]);
        let end = EndCalls::between(&short, &long);
        assert_eq!(end.by_name, Counts::from([("readv".into(), 40), ("ppoll".into(), 10)]));
        assert_eq!(end.sum(), 50);
        assert_eq!(end.most_frequent(100), ["readv 0.400", "ppoll 0.100"]);
        let calls = Calls {
            id: "x".into(),
            title: "x".into(),
            size_bytes: 1_000_000,
            messages: 100,
            client: end.clone(),
            server: EndCalls::default(),
            error: None,
        };
        assert_eq!(calls.rates(&end), Some((0.5, 0.5)));
        assert_eq!(calls.rates(&calls.server), Some((0.0, 0.0)));
        assert_eq!(calls.ends(), [("client", &end)]);
    }
}
