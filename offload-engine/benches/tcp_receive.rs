//! TCP receive path: an in-order segment, its delivery, and the acknowledgment when one is due.

#[path = "paths/group.rs"]
mod group;
mod paths;

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};

use self::paths::Ends;

/// Time to receive `segments` segments. Sending them and processing the acknowledgments is not measured.
fn timed(ends: &mut Ends, segments: u64) -> Duration {
    group::batches(segments, |count| {
        let sent: Vec<_> = (0..count).map(|_| ends.transmit()).collect();
        let mut answers = Vec::with_capacity(sent.len());
        let begin = Instant::now();
        for transmit in &sent {
            answers.extend(ends.receive(transmit));
        }
        let spent = begin.elapsed();
        answers.iter().for_each(|answer| ends.acknowledge(answer));
        spent
    })
}

fn receive(criterion: &mut Criterion) {
    group::sizes(criterion, "tcp_receive", timed);
}

criterion_group!(benches, receive);
criterion_main!(benches);
