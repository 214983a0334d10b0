//! TCP, sending: a list posted and cut into a segment, and the acknowledgement that completes it.

mod paths;

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};

use self::paths::{BATCH, Ends, SEGMENT_BYTES, SUPER_SEGMENT_BYTES};

/// Sends so many segments and takes their acknowledgements. Receiving them is not timed.
fn timed(ends: &mut Ends, segments: u64) -> Duration {
    let mut spent = Duration::ZERO;
    let mut left = segments;
    while left > 0 {
        let count = left.min(BATCH);
        left -= count;
        let mut sent = Vec::with_capacity(count as usize);
        let begin = Instant::now();
        for _ in 0..count {
            sent.push(ends.transmit());
        }
        spent += begin.elapsed();
        let answers: Vec<_> = sent.iter().filter_map(|transmit| ends.receive(transmit)).collect();
        let begin = Instant::now();
        for answer in &answers {
            ends.acknowledge(answer);
        }
        spent += begin.elapsed();
    }
    spent
}

fn transmit(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("tcp_transmit");
    for bytes in [SEGMENT_BYTES, SUPER_SEGMENT_BYTES] {
        group.throughput(Throughput::Bytes(bytes as u64));
        let mut ends = Ends::new(bytes);
        group.bench_function(bytes.to_string(), |bencher| {
            bencher.iter_custom(|segments| timed(&mut ends, segments));
        });
    }
    group.finish();
}

criterion_group!(benches, transmit);
criterion_main!(benches);
