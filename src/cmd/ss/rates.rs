//! Throughput between two listings, from the differences of counters.

use std::{collections::HashMap, path::PathBuf, time::Instant};

use super::listing::{Listed, Rates};
use crate::control::record::Record;

/// Counters of a connection.
#[derive(Clone, Copy, Debug)]
struct Counts {
    at: Instant,
    bytes_acked: u64,
    bytes_received: u64,
    retransmits: u64,
    requests: Option<u64>,
}

impl Counts {
    /// Returns the counters of `record`; `None`: unknown, as for connections in the host stack.
    fn of(at: Instant, record: &Record) -> Option<Self> {
        let info = record.info.as_ref()?;
        let requests = record.rdma.as_ref();
        Some(Self {
            at,
            bytes_acked: info.bytes_acked,
            bytes_received: info.bytes_received,
            retransmits: info.total_retrans_segs,
            requests: requests
                .map(|it| it.sends + it.writes + it.reads + it.atomics + it.immediates),
        })
    }

    /// Returns the rates since `earlier`; `None`: no time has passed, or a migration restarted the counters.
    fn since(&self, earlier: &Self) -> Option<Rates> {
        let seconds = self.at.saturating_duration_since(earlier.at).as_secs_f64();
        let rate = |now: u64, then: u64| {
            let difference = now.checked_sub(then)?;
            (seconds > 0.0).then(|| difference as f64 / seconds)
        };
        Some(Rates {
            seconds,
            send_bps: 8.0 * rate(self.bytes_acked, earlier.bytes_acked)?,
            receive_bps: 8.0 * rate(self.bytes_received, earlier.bytes_received)?,
            retransmits_per_second: rate(self.retransmits, earlier.retransmits)?,
            requests_per_second: match (self.requests, earlier.requests) {
                (Some(now), Some(then)) => rate(now, then),
                _ => None,
            },
        })
    }
}

/// Computes rates from successive listings.
#[derive(Debug, Default)]
pub struct RateMeter {
    /// Counters of the previous listing, by control socket and handle.
    last: HashMap<PathBuf, HashMap<u64, Counts>>,
}

impl RateMeter {
    /// Sets the rates of the connections in `nodes`. Nodes and connections that are not listed are forgotten.
    pub fn measure(&mut self, nodes: &mut [Listed]) {
        let mut now = HashMap::with_capacity(nodes.len());
        for Listed { control, at, connections, .. } in nodes {
            let last = self.last.remove(control).unwrap_or_default();
            let mut counts = HashMap::with_capacity(connections.len());
            for row in connections {
                let Some(count) = Counts::of(*at, &row.record) else { continue };
                let handle = row.record.handle;
                row.rates = last.get(&handle).and_then(|earlier| count.since(earlier));
                counts.insert(handle, count);
            }
            now.insert(control.clone(), counts);
        }
        self.last = now;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{cmd::ss::tests::*, control::record::QueuePairCounters};

    fn listing(at: Instant, bytes: u64, sends: Option<u64>) -> [Listed; 1] {
        let mut record = connection("10.0.0.2:5000", Some("10.0.0.1:1"));
        record.info =
            Some(Box::new(TcpInfo { bytes_acked: bytes, bytes_received: 2 * bytes, ..info() }));
        record.rdma =
            sends.map(|sends| Box::new(QueuePairCounters { sends, ..Default::default() }));
        let mut listed = listed(vec![record]);
        listed[0].at = at;
        listed
    }

    #[test]
    fn rate_is_difference_of_counters_by_time_of_replies() {
        let (mut meter, start) = (RateMeter::default(), Instant::now());
        let mut first = listing(start, 1000, None);
        meter.measure(&mut first);
        assert_eq!(first[0].connections[0].rates, None);
        let mut second = listing(start + Duration::from_secs(2), 3000, Some(5));
        meter.measure(&mut second);
        let expected = Rates {
            seconds: 2.0,
            send_bps: 8000.0,
            receive_bps: 16_000.0,
            retransmits_per_second: 0.0,
            requests_per_second: None,
        };
        assert_eq!(second[0].connections[0].rates, Some(expected));
        let mut third = listing(start + Duration::from_secs(3), 3000, Some(15));
        meter.measure(&mut third);
        let rates = third[0].connections[0].rates.unwrap();
        assert_eq!((rates.send_bps, rates.requests_per_second), (0.0, Some(10.0)));
    }

    // A migration restarts the counters.
    #[test]
    fn restarted_counters_have_no_rate() {
        let (mut meter, start) = (RateMeter::default(), Instant::now());
        for (second, bytes, known) in [(0, 1000, false), (1, 10, false), (2, 20, true)] {
            let mut listed = listing(start + Duration::from_secs(second), bytes, None);
            meter.measure(&mut listed);
            assert_eq!(listed[0].connections[0].rates.is_some(), known, "{second}");
        }
        let mut gone = [];
        meter.measure(&mut gone);
        let mut again = listing(start + Duration::from_secs(4), 30, None);
        meter.measure(&mut again);
        assert_eq!(again[0].connections[0].rates, None);
        let mut same_time = listing(start + Duration::from_secs(4), 30, None);
        meter.measure(&mut same_time);
        assert_eq!(same_time[0].connections[0].rates, None);
    }
}
