//! TCP transmit path: a list posted, its segment built, and the acknowledgment that completes it.

#[path = "paths/group.rs"]
mod group;
mod paths;

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};

use self::paths::Ends;

/// Time to send `segments` segments and process their acknowledgments. Receiving them is not measured.
fn timed(ends: &mut Ends, segments: u64) -> Duration {
    group::batches(segments, |count| {
        let mut sent = Vec::with_capacity(count as usize);
        let begin = Instant::now();
        for _ in 0..count {
            sent.push(ends.transmit());
        }
        let sending = begin.elapsed();
        let answers: Vec<_> = sent.iter().filter_map(|transmit| ends.receive(transmit)).collect();
        let begin = Instant::now();
        for answer in &answers {
            ends.acknowledge(answer);
        }
        sending + begin.elapsed()
    })
}

fn transmit(criterion: &mut Criterion) {
    group::sizes(criterion, "tcp_transmit", timed);
}

criterion_group!(benches, transmit);
criterion_main!(benches);
