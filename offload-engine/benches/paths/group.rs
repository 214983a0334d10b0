//! Benchmark group with one benchmark per segment size.

use std::time::Duration;

use criterion::{Criterion, Throughput};

use super::paths::{BATCH, Ends, GSO_PACKET_BYTES, SEGMENT_BYTES};

/// Runs one benchmark per size. `timed` processes the given number of segments and returns the time spent.
pub(crate) fn sizes(criterion: &mut Criterion, name: &str, timed: fn(&mut Ends, u64) -> Duration) {
    let mut group = criterion.benchmark_group(name);
    for bytes in [SEGMENT_BYTES, GSO_PACKET_BYTES] {
        group.throughput(Throughput::Bytes(bytes as u64));
        let mut ends = Ends::new(bytes);
        group.bench_function(bytes.to_string(), |bencher| {
            bencher.iter_custom(|segments| timed(&mut ends, segments));
        });
    }
    group.finish();
}

/// Splits `segments` into batches of at most [`BATCH`] and returns their total time.
pub(crate) fn batches(segments: u64, batch: impl FnMut(u64) -> Duration) -> Duration {
    let full = segments / BATCH;
    (0..full)
        .map(|_| BATCH)
        .chain((!segments.is_multiple_of(BATCH)).then_some(segments % BATCH))
        .map(batch)
        .sum()
}
