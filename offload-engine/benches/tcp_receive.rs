//! TCP, receiving: a segment in order, delivered, and the acknowledgement when one is due.

mod paths;

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};

use self::paths::{BATCH, Ends, SEGMENT_BYTES, SUPER_SEGMENT_BYTES};

/// Receives so many segments. Sending them, and taking what answers them, is not timed.
fn timed(ends: &mut Ends, segments: u64) -> Duration {
    let mut spent = Duration::ZERO;
    let mut left = segments;
    while left > 0 {
        let count = left.min(BATCH);
        left -= count;
        let sent: Vec<_> = (0..count).map(|_| ends.transmit()).collect();
        let mut answers = Vec::with_capacity(sent.len());
        let begin = Instant::now();
        for transmit in &sent {
            answers.extend(ends.receive(transmit));
        }
        spent += begin.elapsed();
        answers.iter().for_each(|answer| ends.acknowledge(answer));
    }
    spent
}

fn receive(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("tcp_receive");
    for bytes in [SEGMENT_BYTES, SUPER_SEGMENT_BYTES] {
        group.throughput(Throughput::Bytes(bytes as u64));
        let mut ends = Ends::new(bytes);
        group.bench_function(bytes.to_string(), |bencher| {
            bencher.iter_custom(|segments| timed(&mut ends, segments));
        });
    }
    group.finish();
}

criterion_group!(benches, receive);
criterion_main!(benches);
